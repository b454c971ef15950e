"""Restate: handlers are workflows, invocations are runs."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from math import inf, isfinite
from typing import Annotated, Any, ClassVar, Literal
from uuid import UUID, uuid5

from loguru import logger
from pydantic import AfterValidator, BaseModel, Field, SecretStr

from connectors import settings
from connectors.definitions import MAX_SECONDS, RejectedDefinition, WorkflowDefinition, parse_definition
from connectors.errors import (
    ConnectorError,
    InvalidAnswer,
    NotFound,
    OutcomeUnknown,
    Rejected,
    Unreachable,
    Unsupported,
)
from connectors.formats.json import (
    LISTING_DEPTH,
    UnreadableJSON,
    as_object,
    is_number,
    parse_json,
    read_time,
    read_uuid,
)
from connectors.network.client import EngineClient, encode_body, fill_path
from connectors.network.policy import normalise_base_url
from connectors.network.redaction import first_line, printable, shorten, shorten_error
from connectors.protocol import (
    DETAILS_SECONDS,
    Capabilities,
    Health,
    ListedRun,
    Question,
    ReportProgress,
    RunFilter,
    RunPage,
    RunRef,
    RunSnapshot,
    RunState,
    Started,
    WorkflowRef,
    health_of,
    ignore_progress,
    read_offset,
    with_result,
)
from connectors.questions import digest_of, read_told
from connectors.settings import SourceConfig, hint

SERVICE, OBJECT, WORKFLOW = "Service", "VirtualObject", "Workflow"
DEFINITIONS = ("$defs", "definitions")  # References into them must stay valid
DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?) *([a-zµ]+)")
"""A part of a duration in Restate, such as "1h 30m"."""
SECONDS = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 0.001, "us": 0.0, "µs": 0.0, "ns": 0.0}
MIN_RETENTION_SECONDS = 600.0  # The time in which a start without an answer is looked up
LABEL = "workflow-catalogue"
"""In the metadata of a workflow's shared handler: "query", "signal", or "answer", which takes answers."""
ANSWER = "answer"
QUESTION = "question"
"""The state in which a workflow with such a handler keeps what it asks."""
Takes = Literal["nothing", "fields", "value"]
"""No body; a body with the arguments as fields; the argument `input` as the body."""


def _listed(services: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Yields each handler that is meant for callers, with its service: public ones, except the queries and
    signals of a workflow's run."""
    for service in services:
        if not isinstance(service, dict) or not isinstance(service.get("handlers"), list):
            yield service, None
        elif service.get("public") is not False:
            for one in service["handlers"]:
                # An unreadable one counts, so that it is rejected with a reason.
                is_readable = isinstance(one, dict)
                if not is_readable or (one.get("public") is not False and not _is_shared(service, one)):
                    yield service, one


def _is_shared(service: dict[str, Any], handler: dict[str, Any]) -> bool:
    # The handler that is a workflow's run has the type of its service.
    return service.get("ty") == WORKFLOW and handler.get("ty") != WORKFLOW


def _read_handler(
    service: dict[str, Any], handler: Any, timeout_seconds: int, position: int
) -> WorkflowDefinition | RejectedDefinition:
    name, kind = service.get("name"), service.get("ty")
    if not isinstance(handler, dict) or not all(isinstance(one, str) for one in (name, handler.get("name"))):
        return parse_definition({"name": name}, position=position)
    target = f"{name}/{handler['name']}"
    if problem := _problem_with(service, handler):
        return RejectedDefinition(position=position, id=target, name=target, reason=problem)
    takes, schema = _arguments(handler, besides=("key",) if kind == OBJECT else ())
    if kind == OBJECT:
        key = {"type": "string", "minLength": 1, "description": f"Which {name}: the object's key."}
        required = schema.get("required")
        schema = schema | {
            "properties": {"key": key, **schema["properties"]},
            "required": ["key", *(required if isinstance(required, list) else [])],
        }
    shared = _shared_handlers(service) if kind == WORKFLOW else []
    answering = [one["name"] for one in shared if _label(one) == ANSWER]
    shared = [one for one in shared if _label(one) != ANSWER]
    retention = _retention_seconds(service, handler)
    texts = (handler.get("documentation"), service.get("documentation"))
    documented = (text for text in texts if isinstance(text, str) and text.strip())
    raw = {
        "id": target,
        "name": target,
        "description": next(documented, f"Runs {target} at Restate, which does not say what it does."),
        "inputSchema": schema,
        "outputSchema": handler.get("output_json_schema"),
        "queries": [_interaction(one) for one in shared if _is_query(one)],
        "signals": [_interaction(one) for one in shared if not _is_query(one)],
        "metadata": {
            "type": kind,
            "takes": takes,
            "shared": {str(one["name"]): _arguments(one)[0] for one in shared},
            **({"answering": answering[0]} if answering else {}),
            "labels": as_object(service.get("metadata")) | as_object(handler.get("metadata")),
            **({"remembered_seconds": retention} if isfinite(retention) else {}),
        },
    }
    if kind == WORKFLOW:
        raw["timeout_seconds"] = timeout_seconds
    return parse_definition(raw, position=position)


def _problem_with(service: dict[str, Any], handler: dict[str, Any]) -> str:
    kind = service.get("ty")
    if kind not in (SERVICE, OBJECT, WORKFLOW):
        return f"its service is of the type {str(kind)[:50]!r}, which this connector does not know"
    if not _takes_json(handler):
        return f"its input is {str(handler.get('input_description'))[:100]}, but calls can only send JSON"
    if (retention := _retention_seconds(service, handler)) < MIN_RETENTION_SECONDS:
        return (
            f"Restate keeps its results for only {retention:g} s ({_retention_name(service)}); looking up a "
            f"start requires at least {MIN_RETENTION_SECONDS:g} s"
        )
    return ""


def _retention_name(service: dict[str, Any]) -> str:
    is_workflow = service.get("ty") == WORKFLOW
    return "workflow_completion_retention" if is_workflow else "idempotency_retention"


def _retention_seconds(service: dict[str, Any], handler: dict[str, Any]) -> float:
    """Returns how long Restate remembers an ended invocation and its key; infinite if it does not say."""
    name = _retention_name(service)
    written = handler.get(name, service.get(name))
    parts = DURATION.findall(written) if isinstance(written, str) else []
    # Other units are weeks, months and years.
    return sum(float(number) * SECONDS.get(unit, 604_800.0) for number, unit in parts) if parts else inf


def _takes_json(handler: dict[str, Any]) -> bool:
    described = str(handler.get("input_description") or "").lower()
    return not described or "json" in described or "*" in described or described == "none"


def _arguments(handler: dict[str, Any], *, besides: tuple[str, ...] = ()) -> tuple[Takes, dict[str, Any]]:
    """The kind of the body, and the schema of the arguments. `besides`: names of other arguments."""
    given, described = handler.get("input_json_schema"), str(handler.get("input_description") or "")
    if given is None and described.lower() == "none":
        return "nothing", {"type": "object", "properties": {}, "additionalProperties": False}
    if isinstance(given, dict) and given.get("type") == "object":
        fields = given.get("properties")
        if isinstance(fields, dict) and not fields.keys() & {*besides}:
            return "fields", given
    schema = dict(as_object(given))
    hoisted = {name: schema.pop(name) for name in DEFINITIONS if name in schema}
    # Of an input without a schema Restate does not say whether it may be missing.
    required = {"required": ["input"]} if schema else {}
    schema.setdefault("description", "What the handler takes: any JSON value that it understands.")
    wrapped = {"type": "object", "properties": {"input": schema}, **required, "additionalProperties": False}
    return "value", wrapped | hoisted


def _shared_handlers(service: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        one
        for one in service["handlers"]
        if isinstance(one, dict)
        and isinstance(one.get("name"), str)
        and _is_shared(service, one)
        and one.get("public") is not False
        and _takes_json(one)
    ]


def _label(handler: dict[str, Any]) -> Any:
    return as_object(handler.get("metadata")).get(LABEL)


def _is_query(handler: dict[str, Any]) -> bool:
    """Decides by its metadata; else a handler with an output but no input is a query. Restate does not mark
    read-only handlers, so the others are signals, which are sent once and require the right to change."""
    if (said := _label(handler)) in ("query", "signal"):
        return bool(said == "query")
    return _arguments(handler)[0] == "nothing" and handler.get("output_description") != "none"


def _interaction(handler: dict[str, Any]) -> dict[str, Any]:
    description = handler.get("documentation")
    return {
        "name": handler["name"],
        "description": description if isinstance(description, str) else "",
        "inputSchema": _arguments(handler)[1],
    }


def type_of(workflow: WorkflowRef) -> str:
    return str(workflow.metadata.get("type") or SERVICE)


def start_request(
    workflow: WorkflowRef, arguments: dict[str, Any], key: UUID
) -> tuple[str, Any, dict[str, str]]:
    """Path, body and headers. A workflow's id is the key; other handlers have it as their idempotency key."""
    service, _, handler = workflow.id.partition("/")
    names, kind = {"service": service, "handler": handler}, type_of(workflow)
    rest = dict(arguments)
    headers = {} if kind == WORKFLOW else {"idempotency-key": str(key)}
    if kind == SERVICE:
        path = fill_path("/{service}/{handler}/send", **names)
    else:
        of = str(key) if kind == WORKFLOW else rest.pop("key", None)
        if not isinstance(of, str):
            raise Rejected(f"The argument key must be a string, the key of the {service}.")
        path = fill_path("/{service}/{of}/{handler}/send", of=of, **names)
    return path, body_of(workflow.metadata.get("takes"), rest), headers


def body_of(takes: Any, arguments: dict[str, Any]) -> Any:
    """None: no body."""
    match takes:
        case "fields":
            return arguments
        case "value":
            return arguments.get("input")
    return None


RUNS = hint(group="Runs")
MAX_WORKFLOWS = 10_000
MAX_ROWS = 200
ID = re.compile(r"inv_[0-9A-Za-z]{1,100}")
CODE = re.compile(r"\[(\d{3})[^\]]*\] ?")
"""Before the message of a failure, as in "[422] No such order" and "[500 Internal] ..."."""
COLUMNS = (
    "select id, target, target_service_name, target_handler_name, target_service_key, idempotency_key, "
    "status, completion_result, completion_failure, retry_count, last_failure, next_retry_at, invoked_by, "
    "created_at, modified_at, running_at, completed_at from sys_invocation"
)
WHEREABOUTS = "select target_service_key, status, completion_result, completion_failure from sys_invocation"
EVENTS = "select event_json from sys_journal_events"
STATE = "select value_utf8 from state"
CANCELLED = ("[409] cancelled", "[409] canceled", "[409] killed")
"""Restate has no state for a cancelled invocation: it fails with these words."""
IS_CANCELLED = f"lower(completion_failure) in ({', '.join(repr(words) for words in CANCELLED)})"
CONDITIONS = {
    RunState.RUNNING: "status <> 'completed'",
    RunState.COMPLETED: "completion_result = 'success'",
    RunState.CANCELLED: IS_CANCELLED,
    RunState.FAILED: f"completion_result = 'failure' and not {IS_CANCELLED}",
}
UNDER_WAY = {
    "pending": "Waiting: another invocation has the same key.",
    "scheduled": "Scheduled for later.",
    "ready": "",
    "running": "",
    "suspended": "",
    "backing-off": "An attempt failed and is retried",
    "paused": "Paused until it is resumed",
}


class RestateConfig(SourceConfig):
    ingress_url: Annotated[str, AfterValidator(normalise_base_url)] = Field(
        title="Ingress URL",
        description="The address at which handlers are invoked, such as http://restate.example.com:8080.",
        json_schema_extra=hint(address=True),
    )
    admin_url: Annotated[str, AfterValidator(normalise_base_url)] = Field(
        title="Admin URL",
        description="The address of the admin API, which lists services and shows and cancels invocations, "
        "such as http://restate.example.com:9070.",
        json_schema_extra=hint(address=True),
    )
    token: settings.HeaderSecret = Field(
        default=SecretStr(""),
        title="Token",
        description="The API key of Restate Cloud or of a gateway, sent to both addresses as a bearer token.",
    )
    admin_token: settings.HeaderSecret = Field(
        default=SecretStr(""),
        title="Admin token",
        description="The token of the admin API, if it differs. Leave empty to use the same token.",
    )
    workflow_timeout_seconds: int = Field(
        default=86_400,
        ge=1,
        le=MAX_SECONDS,
        title="Longest run of a workflow (s)",
        description="The time limit of a Restate workflow, unless a curator sets another timeout. Service "
        "and object handlers have the product's default timeout.",
        json_schema_extra=RUNS,
    )
    cancel_grace_seconds: float = Field(
        default=10.0,
        ge=0,
        le=86_400,
        title="Grace after a cancel (s)",
        description="An invocation that is still running this long after its cancellation is killed, which "
        "skips its compensations. Enter 0 to never kill invocations.",
        json_schema_extra=RUNS,
    )
    min_poll_seconds: settings.MinPollSeconds = 1.0
    request_timeout_seconds: settings.RequestTimeoutSeconds = 30.0
    max_response_bytes: settings.MaxResponseBytes = 10_000_000
    verify_tls: settings.VerifyTls = True
    ca_file: settings.CaFile = ""


def checked_id(run_id: str) -> str:
    """Raises NotFound for anything else, since it becomes part of a query."""
    if not ID.fullmatch(run_id):
        raise NotFound(f"{run_id[:100]!r} is not an invocation id. Nothing was sent to Restate.")
    return run_id


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def query_listed(wanted: RunFilter, *, size: int, offset: int) -> str:
    if wanted.engine_query:
        raise Rejected("Runs of Restate cannot be filtered by an additional condition.")
    conditions = [f"({CONDITIONS[state]})" for state in sorted(wanted.states)]
    conditions = [f"({' or '.join(conditions)})"] if conditions else []
    if wanted.run:
        if not re.fullmatch(r"(?:inv_?)?[0-9A-Za-z]{0,100}", wanted.run):
            raise Rejected("An invocation id must begin with inv_ and contain only letters and digits.")
        conditions.append(f"starts_with(id, {quoted(wanted.run)})")
    names = ("target_service_name", "target_handler_name")
    parts = filter(None, wanted.workflow.split("/", 1))
    conditions += [f"{name} = {quoted(part)}" for name, part in zip(names, parts, strict=False)]
    for moment, sign in ((wanted.started_after, ">="), (wanted.started_before, "<=")):
        if moment:
            conditions.append(f"created_at {sign} timestamp {quoted(moment.astimezone(UTC).isoformat())}")
    where = f"where {' and '.join(conditions)}" if conditions else ""
    return f"{COLUMNS} {where} order by created_at desc, id limit {size} offset {offset}"


def state_of(row: dict[str, Any]) -> RunState:
    """Raises InvalidAnswer for a state that this connector does not know."""
    status = row.get("status")
    if status == "completed":
        if row.get("completion_result") == "success":
            return RunState.COMPLETED
        if row.get("completion_result") == "failure":
            failure = str(row.get("completion_failure")).lower()
            return RunState.CANCELLED if failure in CANCELLED else RunState.FAILED
    if not isinstance(status, str) or status not in UNDER_WAY:
        shown = printable(shorten(str(status), 50))
        raise InvalidAnswer(f"The invocation has the status {shown!r}, which this connector does not know.")
    return RunState.RUNNING


def snapshot_of(row: dict[str, Any]) -> RunSnapshot:
    """Lacks the output, which the ingress has."""
    state, failure = state_of(row), CODE.sub("", str(row.get("completion_failure") or ""), count=1)
    error = ""
    if state is RunState.FAILED:
        error = shorten_error(printable(failure)) or "The invocation failed and Restate gave no reason."
    elif state is RunState.CANCELLED:
        error = "The invocation was killed." if failure == "killed" else "The invocation was cancelled."
    is_running = state is RunState.RUNNING
    return RunSnapshot(
        state=state,
        error=error,
        progress_message=progress_of(row, row.get("last_failure")) if is_running else "",
        is_paused=row.get("status") == "paused",
        created_at=read_time(row.get("created_at")),
        # Empty for an invocation that was cancelled while it was waiting.
        started_at=read_time(row.get("running_at")),
        updated_at=read_time(row.get("modified_at")),
        finished_at=None if is_running else read_time(row.get("completed_at")),
        raw=row,
    )


def progress_of(row: dict[str, Any], failure: Any) -> str:
    """The progress of a running invocation; `failure`: of its last attempt."""
    words = UNDER_WAY.get(str(row.get("status")), "")
    if not words or words.endswith("."):
        return words
    due = read_time(row.get("next_retry_at"))
    if due is not None and due > datetime.now(UTC):
        words += f" at {due.astimezone(UTC):%H:%M:%S} UTC"
    line = first_line(CODE.sub("", failure, count=1)) if isinstance(failure, str) else ""
    return f"{words}: {line}" if line else f"{words}."


def read_listed(row: dict[str, Any]) -> ListedRun:
    return ListedRun(
        run_id=str(row.get("id")),
        workflow=f"{row.get('target_service_name')}/{row.get('target_handler_name')}",
        state=state_of(row),
        told_state=str(row.get("status")),
        key=read_uuid(row.get("idempotency_key") or row.get("target_service_key")),
        started_at=read_time(row.get("created_at")),
        finished_at=read_time(row.get("completed_at")),
        details={
            name: row.get(name)
            for name in ("target", "invoked_by", "retry_count", "last_failure", "completion_failure")
        },
    )


class RestateConnector:
    """Services, virtual objects and workflows of a Restate server."""

    kind: ClassVar[str] = "restate"
    label: ClassVar[str] = "Restate"
    Config: ClassVar[type[BaseModel]] = RestateConfig

    def __init__(self, config: RestateConfig) -> None:
        self._config = config
        self._ingress = self._client(config.ingress_url, config.token)
        # Separate, so that waiting for runs does not use up the connections for starts.
        self._waiting = self._client(config.ingress_url, config.token)
        self._admin = self._client(config.admin_url, config.admin_token or config.token)

    def _client(self, url: str, token: SecretStr) -> EngineClient:
        secret = token.get_secret_value()
        headers = {"authorization": f"Bearer {secret}"} if secret else {}
        return EngineClient.of(self._config, base_url=url, headers=headers)

    def __repr__(self) -> str:
        return f"RestateConnector({self._config.ingress_url}, {self._config.admin_url})"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            idempotent_start=True,
            can_cancel=True,
            can_find_runs=True,
            can_wait=True,
            can_query=True,
            can_signal=True,
            asks_people=True,
            can_list_runs=True,
            differ_by_workflow=True,
            terminates_after_seconds=self._config.cancel_grace_seconds or None,
            can_pause=True,
            can_terminate=True,
            min_poll_seconds=self._config.min_poll_seconds,
        )

    def capabilities_for(self, workflow: WorkflowRef) -> Capabilities:
        """Only workflow runs accept queries and signals."""
        is_workflow = type_of(workflow) == WORKFLOW
        remembered = workflow.metadata.get("remembered_seconds", inf)
        return replace(
            self.capabilities,
            # A start that is repeated within the run's timeout must find the run, even if it ended early.
            idempotent_start=is_number(remembered) and remembered >= (workflow.timeout_seconds or 0.0),
            can_query=is_workflow,
            can_signal=is_workflow,
            asks_people="answering" in workflow.metadata,
        )

    async def check(self) -> Health:
        return await health_of(self._greet())

    async def _greet(self) -> str:
        services, _ = await asyncio.gather(self._services(), self._ingress.request("GET", "/restate/health"))
        return f"Restate answered at both addresses; services: {len(services)}."

    async def _services(self) -> list[Any]:
        answer = await self._admin.request_json("GET", "/services", max_depth=LISTING_DEPTH, is_listing=True)
        services = answer.get("services") if isinstance(answer, dict) else None
        if not isinstance(services, list):
            raise InvalidAnswer("Restate's answer has no list of services.")
        return services

    async def discover(self) -> AsyncIterator[WorkflowDefinition | RejectedDefinition]:
        longest = self._config.workflow_timeout_seconds
        for position, (service, handler) in enumerate(_listed(await self._services())):
            if position == MAX_WORKFLOWS:
                raise InvalidAnswer(f"Restate lists more than {MAX_WORKFLOWS:,} handlers.")
            if isinstance(service, dict):
                yield _read_handler(service, handler, longest, position)
            else:
                yield parse_definition(service, position=position)

    async def start(
        self,
        workflow: WorkflowRef,
        arguments: dict[str, Any],
        *,
        key: UUID,
        report: ReportProgress = ignore_progress,
    ) -> Started:
        path, body, headers = start_request(workflow, arguments, key)
        answer = await self._ingress.request_json("POST", path, body=body, headers=headers, repeatable=False)
        run_id = answer.get("invocationId") if isinstance(answer, dict) else None
        if not isinstance(run_id, str) or not ID.fullmatch(run_id):
            raise OutcomeUnknown("Restate's answer to the start has no invocation id.")
        return Started(run_id=run_id, raw=answer)

    async def find_run(
        self, workflow: WorkflowRef, arguments: dict[str, Any], *, key: UUID
    ) -> Started | None:
        service, _, handler = workflow.id.partition("/")
        column = "target_service_key" if type_of(workflow) == WORKFLOW else "idempotency_key"
        rows = await self._rows(
            f"{COLUMNS} where target_service_name = {quoted(service)} "
            f"and target_handler_name = {quoted(handler)} and {column} = {quoted(str(key))} limit 2"
        )
        if len(rows) > 1:
            raise InvalidAnswer(f"Restate has several invocations for the key {key}.")
        return Started(run_id=_id_in(rows[0]), raw=rows[0]) if rows else None

    async def poll(self, run: RunRef) -> RunSnapshot:
        until = asyncio.get_running_loop().time() + DETAILS_SECONDS
        row = await self._row(f"{COLUMNS} where id = {quoted(checked_id(run.run_id))}")
        seen = snapshot_of(row)
        if seen.state is RunState.COMPLETED:
            return await with_result(seen, self._output(run.run_id), until=until)
        if row.get("status") == "paused":
            seen = replace(seen, progress_message=await self._why_paused(row))
        if seen.state is RunState.RUNNING and "answering" in run.workflow.metadata:
            return replace(seen, questions=await self._questions(run.workflow, row))
        return seen

    async def _questions(self, workflow: WorkflowRef, row: dict[str, Any]) -> list[Question]:
        """Reads the workflow's state: a handler would leave one more invocation with each poll, which stays
        for as long as its service is down."""
        service, key = workflow.id.partition("/")[0], _key_in(row)
        rows = await self._rows(
            f"{STATE} where service_name = {quoted(service)} and service_key = {quoted(key)} "
            f"and key = {quoted(QUESTION)}"
        )
        told = rows[0].get("value_utf8") if rows else None
        try:
            return read_told(parse_json(told.encode("utf-8", "replace")) if isinstance(told, str) else None)
        except UnreadableJSON as error:
            raise InvalidAnswer(f"The workflow's state {QUESTION!r} is not JSON: {error}") from None

    async def answer(self, run: RunRef, question_id: str, content: dict[str, Any]) -> None:
        handler = run.workflow.metadata.get("answering")
        if not isinstance(handler, str):
            raise Unsupported(f"No handler of this workflow takes answers: none has the label {LABEL}.")
        row = await self._row(f"{WHEREABOUTS} where id = {quoted(checked_id(run.run_id))}")
        if state_of(row) is not RunState.RUNNING:
            raise NotFound("The run has ended, so it asks nothing any more.")
        if question_id not in {question.id for question in await self._questions(run.workflow, row)}:
            raise NotFound("The run does not ask this any more.")
        service = run.workflow.id.partition("/")[0]
        path = fill_path("/{service}/{key}/{handler}", service=service, key=_key_in(row), handler=handler)
        headers, sent = encode_body({"id": question_id, "answer": content}, None)
        # One answer is taken once; another answer has its own key, so that it is not refused like the first.
        headers["idempotency-key"] = str(uuid5(run.key, f"{question_id} {digest_of(content)}"))
        await self._ask("POST", path, content=sent, headers=headers, repeatable=False)

    async def wait(self, run: RunRef, *, seconds: float) -> RunSnapshot:
        path = fill_path("/restate/invocation/{id}/attach", id=checked_id(run.run_id))
        try:
            async with asyncio.timeout(seconds):
                await self._waiting.exchange("GET", path, repeatable=True)
        except (TimeoutError, Unreachable, InvalidAnswer) as error:
            # The status shows the result, whatever happened to the answer.
            logger.debug("Attaching to {} ended with {}", run.run_id, type(error).__name__)
        return await self.poll(run)

    async def cancel(self, run: RunRef) -> None:
        await self._end(run, "cancel")

    async def terminate(self, run: RunRef) -> None:
        await self._end(run, "kill")

    async def pause(self, run: RunRef) -> None:
        await self._hold(run, "pause", paused=True)

    async def resume(self, run: RunRef) -> None:
        await self._hold(run, "resume", paused=False)

    async def _hold(self, run: RunRef, how: str, *, paused: bool) -> None:
        row = await self._row(f"{WHEREABOUTS} where id = {quoted(checked_id(run.run_id))}")
        if state_of(row) is not RunState.RUNNING:
            raise Rejected("The run has ended, so it can be neither paused nor resumed.")
        if (row.get("status") == "paused") is not paused:
            await self._end(run, how)

    async def _end(self, run: RunRef, how: str) -> None:
        path = fill_path("/invocations/{id}/{how}", id=checked_id(run.run_id), how=how)
        await self._admin.request("PATCH", path)

    async def query(self, run: RunRef, name: str, arguments: dict[str, Any]) -> Any:
        row = await self._whereabouts(run)
        return await self._call(run.workflow, row, name, arguments, repeatable=True)

    async def signal(self, run: RunRef, name: str, arguments: dict[str, Any]) -> None:
        row = await self._whereabouts(run)
        if state_of(row) is not RunState.RUNNING:
            # Restate would accept it: the state of a workflow outlives its run.
            raise Rejected("The run has ended, so it does not accept signals.")
        await self._call(run.workflow, row, name, arguments, repeatable=False)

    async def _whereabouts(self, run: RunRef) -> dict[str, Any]:
        if type_of(run.workflow) != WORKFLOW:
            raise Unsupported("In Restate, only workflow runs accept queries and signals.")
        return await self._row(f"{WHEREABOUTS} where id = {quoted(checked_id(run.run_id))}")

    async def list_runs(self, wanted: RunFilter, *, page_size: int, cursor: str = "") -> RunPage:
        offset, size = read_offset(cursor), min(page_size, MAX_ROWS)
        rows = await self._rows(query_listed(wanted, size=size, offset=offset))
        return RunPage(
            runs=[read_listed(row) for row in rows if _id_in(row)],
            next_cursor=str(offset + size) if len(rows) == size else "",
        )

    async def aclose(self) -> None:
        for client in (self._ingress, self._waiting, self._admin):
            await client.aclose()

    async def _rows(self, sql: str) -> list[dict[str, Any]]:
        answer = await self._admin.request_json("POST", "/query", body={"query": sql})
        rows = answer.get("rows") if isinstance(answer, dict) else None
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise InvalidAnswer("Restate's answer to a query has no rows.")
        return rows

    async def _row(self, sql: str) -> dict[str, Any]:
        try:
            rows = await self._rows(sql)
        except Unreachable as error:
            # Restate's answer to an id that only looks like one is a 500.
            if "non valid invocation id" not in str(error.details.get("answer")):
                raise
            rows = []
        if not rows:
            raise NotFound("Restate does not know the invocation, or has forgotten it after its retention.")
        return rows[0]

    async def _why_paused(self, row: dict[str, Any]) -> str:
        """Only the journal has the reason; without it, the reason is left out."""
        pauses = f"id = {quoted(checked_id(_id_in(row)))} and event_type = 'Paused'"
        try:
            events = await self._rows(f"{EVENTS} where {pauses} order by appended_at desc limit 1")
            event = events[0].get("event_json") if events else None
            read = parse_json(event.encode("utf-8", "replace")) if isinstance(event, str) else None
        except (ConnectorError, UnreadableJSON) as error:
            logger.debug("Restate did not say why an invocation is paused: {}", error)
            read = None
        return progress_of(row, as_object(as_object(read).get("last_failure")).get("error_message"))

    async def _output(self, run_id: str) -> Any:
        path = fill_path("/restate/invocation/{id}/output", id=run_id)
        return await self._ask("GET", path, repeatable=True)

    async def _call(
        self,
        workflow: WorkflowRef,
        row: dict[str, Any],
        name: str,
        arguments: dict[str, Any],
        *,
        repeatable: bool,
    ) -> Any:
        """The answer of a workflow's shared handler."""
        key = _key_in(row)
        shared = as_object(workflow.metadata.get("shared"))
        if name not in shared:
            raise NotFound(f"{workflow.name} has no shared handler {name[:100]!r}.")
        service = workflow.id.partition("/")[0]
        path = fill_path("/{service}/{key}/{handler}", service=service, key=key, handler=name)
        headers, content = encode_body(body_of(shared[name], arguments), None)
        return await self._ask("POST", path, content=content, headers=headers, repeatable=repeatable)

    async def _ask(self, method: str, path: str, *, repeatable: bool, **sent: Any) -> Any:
        """JSON, or the text of another type."""
        answer = await self._ingress.exchange(method, path, repeatable=repeatable, **sent)
        # A handler can fail with any status; a header shows that the failure is the handler's.
        if answer.refused and answer.headers.get("x-restate-error-source") == "invocation":
            details = {"status": answer.status, "answer": answer.words()}
            raise Rejected(f"The handler refused: {answer.words()}", details=details)
        if answer.refused:
            raise answer.refusal()
        if "x-restate-id" not in answer.headers:
            # A proxy's page, such as a login, must not be taken for a result.
            raise answer.unusable("the answer has no invocation id, so it is not from Restate.")
        content = answer.content
        if not content:
            return None
        media_type = str(answer.headers.get("content-type", "")).partition(";")[0].strip().lower()
        if media_type.endswith("json"):
            try:
                return self._ingress.redactor.answer(parse_json(content), content)
            except UnreadableJSON as error:
                raise answer.not_json(error) from None
        try:
            return self._ingress.redactor.text(content.decode())
        except UnicodeDecodeError:
            return f"{len(content):,} bytes of {media_type or 'no type'}, which are not text."


def _key_in(row: dict[str, Any]) -> str:
    key = row.get("target_service_key")
    if not isinstance(key, str) or not key:
        raise InvalidAnswer("Restate does not say which workflow the invocation belongs to.")
    return key


def _id_in(row: dict[str, Any]) -> str:
    run_id = row.get("id")
    if not isinstance(run_id, str) or not ID.fullmatch(run_id):
        raise InvalidAnswer("Restate's answer has no invocation id.")
    return run_id
