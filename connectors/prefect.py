"""Prefect: deployments are workflows, flow runs are runs."""

import asyncio
import base64
import re
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, ClassVar, Self, TypeVar
from uuid import UUID

from loguru import logger
from pydantic import AfterValidator, BaseModel, Field, SecretStr, field_validator, model_validator

from connectors import settings
from connectors.definitions import RejectedDefinition, WorkflowDefinition, parse_definition, usable_tags
from connectors.errors import (
    InvalidAnswer,
    NotFound,
    OutcomeUnknown,
    Rejected,
    Unreachable,
    backoff_seconds,
    spread,
)
from connectors.formats.json import (
    LISTING_DEPTH,
    TooDeep,
    UnreadableJSON,
    as_object,
    parse_json,
    read_percent,
    read_time,
    read_uuid,
    write_arguments,
    write_json,
)
from connectors.network.client import EngineClient, fill_path
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
from connectors.questions import read_question
from connectors.settings import FieldProblem, SourceConfig, hint

RESULTS = hint(group="Results and logs")
MAX_ROWS = 200
FIRST_PAUSE_SECONDS = 0.25
INFO, ERROR = 20, 40
MAX_WORKFLOWS = 10_000
MAX_TASK_RUNS = 10_000
PAUSES_FOR_LOGS = (0.2, 0.4, 0.8, 1.6)  # In seconds
TAG = "workflow-catalogue"
Answer = TypeVar("Answer")
MARK = "__prefect_kind"
OF_PREFECT = ("position", "block_type_slug", "block_schema_references", "secret_fields", "prefect_kind")
"""Keywords of Prefect's forms, which do not constrain arguments."""


class PrefectConfig(SourceConfig):
    base_url: Annotated[str, AfterValidator(normalise_base_url)] = Field(
        title="API URL",
        description="The value of PREFECT_API_URL, such as http://prefect.example.com:4200/api, or "
        "https://api.prefect.cloud/api/accounts/.../workspaces/... for a workspace in Prefect Cloud.",
        json_schema_extra=hint(address=True),
    )
    api_key: settings.HeaderSecret = Field(
        default=SecretStr(""),
        title="API key",
        description="The API key of Prefect Cloud or of a gateway, sent as a bearer token.",
    )
    auth_string: SecretStr = Field(
        default=SecretStr(""),
        title="Auth string",
        description="user:password, if the server was started with PREFECT_SERVER_API_AUTH_STRING.",
    )
    include_tags: list[str] = Field(
        default=[],
        title="Only with these tags",
        description="Only deployments that have at least one of these tags are listed. Leave empty to list "
        "all.",
    )
    result_artifact_key: str = Field(
        default="catalog-result",
        pattern=r"^[a-z0-9-]+$",
        max_length=255,
        title="Key of the result artifact",
        description="The key of the artifact that holds a run's result. Without it, the result is the "
        "message of the run's final state. Prefect allows lowercase letters, digits and dashes.",
        json_schema_extra=RESULTS,
    )
    log_lines: int = Field(
        default=20,
        ge=0,
        le=200,
        title="Lines of the log",
        description="The number of a run's last log lines to store with its execution. While the run is "
        "active, the newest line is its progress message. Enter 0 to never read logs.",
        json_schema_extra=RESULTS,
    )
    min_poll_seconds: settings.MinPollSeconds = 1.0
    request_timeout_seconds: settings.RequestTimeoutSeconds = 30.0
    max_response_bytes: settings.MaxResponseBytes = Field(
        default=10_000_000,
        description="Larger responses are rejected. A page holds up to 200 deployments.",
    )
    verify_tls: settings.VerifyTls = True
    ca_file: settings.CaFile = ""

    @field_validator("auth_string")
    @classmethod
    def _user_and_password(cls, auth: SecretStr) -> SecretStr:
        if (value := auth.get_secret_value().strip()) and ":" not in value:
            raise ValueError("must be user:password")
        return SecretStr(value)

    @model_validator(mode="after")
    def _one_way_to_log_in(self) -> Self:
        if self.api_key.get_secret_value() and self.auth_string.get_secret_value():
            raise FieldProblem("auth_string", "Set either an API key or an auth string, not both.")
        return self


class PrefectConnector:
    """Deployments of a Prefect server or of a workspace in Prefect Cloud."""

    kind: ClassVar[str] = "prefect"
    label: ClassVar[str] = "Prefect"
    Config: ClassVar[type[BaseModel]] = PrefectConfig

    def __init__(self, config: PrefectConfig) -> None:
        self._config = config
        key, auth = config.api_key.get_secret_value(), config.auth_string.get_secret_value()
        basic = base64.b64encode(auth.encode()).decode()
        authorization = f"Bearer {key}" if key else f"Basic {basic}" if auth else ""
        self._client = EngineClient.of(
            config,
            base_url=config.base_url,
            headers={"authorization": authorization} if authorization else {},
            secrets=[auth.partition(":")[2]],
        )
        self._only_tagged = {"tags": {"any_": config.include_tags}} if config.include_tags else {}

    def __repr__(self) -> str:
        return f"PrefectConnector({self._config.base_url})"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            idempotent_start=True,
            can_cancel=True,
            can_find_runs=True,
            can_list_runs=True,
            asks_people=True,
            can_retry=True,
            can_find_retries=True,
            min_poll_seconds=self._config.min_poll_seconds,
        )

    async def check(self) -> Health:
        return await health_of(self._greet())

    async def _greet(self) -> str:
        """Counting needs valid credentials; the version may be public."""
        count = await self._ask("POST", "/deployments/count", {"deployments": self._only_tagged})
        if not isinstance(count, int):
            raise InvalidAnswer("Prefect's count of deployments is not a number.")
        version = await _or_else("", self._ask("GET", "/admin/version"))
        shown = version if isinstance(version, str) else ""
        return f"Prefect {shown} answered; deployments: {count}.".replace("  ", " ")

    async def discover(self) -> AsyncIterator[WorkflowDefinition | RejectedDefinition]:
        position = 0
        flow_names: dict[str, str] = {}
        wanted = {"sort": "CREATED_DESC", "deployments": self._only_tagged}
        # A page of the server's size, which is empty after the last.
        while page := await self._rows("/deployments/filter", {"offset": position, **wanted}):
            ids = {str(raw.get("flow_id")) for raw in page if isinstance(raw, dict)} - flow_names.keys()
            flow_names |= await self._flow_names(ids) if ids else {}
            for raw in page:
                if position == MAX_WORKFLOWS:
                    raise InvalidAnswer(f"Prefect lists more than {MAX_WORKFLOWS:,} deployments.")
                yield read_deployment(raw, flow_names, position=position)
                position += 1

    async def start(
        self,
        workflow: WorkflowRef,
        arguments: dict[str, Any],
        *,
        key: UUID,
        report: ReportProgress = ignore_progress,
    ) -> Started:
        if is_evaluated(arguments):
            # Evaluated values could read the workspace's variables.
            raise Rejected(
                f"The arguments contain the key {MARK}, which Prefect would evaluate as a template or a "
                "variable. Pass the value itself."
            )
        wanted = {"parameters": arguments, "idempotency_key": str(key), "name": f"{TAG}-{key}", "tags": [TAG]}
        path = f"/deployments/{_id(workflow.id, 'deployment')}/create_flow_run"
        started = _read_started(await self._ask("POST", path, wanted, repeatable=False))
        if started is None:
            raise OutcomeUnknown("Prefect's answer to the start has no flow run id.")
        return started

    async def poll(self, run: RunRef) -> RunSnapshot:
        until = asyncio.get_running_loop().time() + DETAILS_SECONDS
        flow_run = _object(await self._ask("GET", f"/flow_runs/{_id(run.run_id, 'flow run')}"))
        if not isinstance(flow_run.get("id"), str):
            raise InvalidAnswer("Prefect's answer is not a flow run.")
        seen = snapshot_of(flow_run)
        if seen.state is not RunState.RUNNING:
            return await self._ended(run.run_id, flow_run, seen, until)
        if type_of(flow_run) == "PAUSED":
            return replace(seen, questions=await self._questions(run.run_id, flow_run))
        return await self._under_way(run.run_id, seen) if type_of(flow_run) == "RUNNING" else seen

    async def cancel(self, run: RunRef) -> None:
        asked = {"type": "CANCELLING", "message": f"Cancelled by {TAG}."}
        path = f"/flow_runs/{_id(run.run_id, 'flow run')}/set_state"
        answer = _object(await self._ask("POST", path, {"state": asked, "force": False}))
        details, state = as_object(answer.get("details")), answer.get("state")
        reason = _reason_in(answer)
        match answer.get("status"):
            case "ACCEPT":
                return
            # A run that has not started is cancelled at once.
            case "REJECT" if isinstance(state, dict) and state.get("type") in ("CANCELLING", "CANCELLED"):
                return
            case "WAIT":
                seconds = details.get("delay_seconds")
                wait = float(seconds) if isinstance(seconds, int) else None
                raise Unreachable(f"Prefect cannot cancel the run at the moment: {reason}", retry_after=wait)
            case "REJECT" | "ABORT":
                raise Rejected(f"Prefect refused to cancel the run: {reason}")
        raise InvalidAnswer("Prefect's answer does not say whether it cancels the run.")

    async def answer(self, run: RunRef, question_id: str, content: dict[str, Any]) -> None:
        """Reads the state first: the request names no pause, so it would resume a later one as well."""
        path = f"/flow_runs/{_id(run.run_id, 'flow run')}"
        flow_run = _object(await self._ask("GET", path))
        if type_of(flow_run) != "PAUSED" or question_id != _state(flow_run).get("id"):
            raise NotFound("The flow run is no longer in this pause: it was resumed, or the pause has ended.")
        # JSON as text is the one form of which Prefect evaluates nothing, neither templates nor variables.
        wanted = {"run_input": {MARK: "json", "value": write_arguments(content)}} if content else {}
        # Not by `_ask`: an answer that is sent again could reach the next pause.
        answer = await self._client.request_json("POST", f"{path}/resume", body=wanted, repeatable=False)
        words = _reason_in(answer)
        match as_object(answer).get("status"):
            case "ACCEPT":
                return
            # A refused answer leaves the run in its pause.
            case "REJECT" if as_object(answer.get("state")).get("type", "PAUSED") == "PAUSED":
                raise Rejected(f"Prefect refused the answer: {words}")
            case "REJECT" | "ABORT":
                raise NotFound(f"Prefect does not resume the flow run: {words}")
            case "WAIT":
                raise Unreachable(f"Prefect cannot resume the flow run at the moment: {words}")
        raise OutcomeUnknown("Prefect's answer does not say whether it resumes the run.")

    async def retry(self, run: RunRef, *, key: UUID) -> Started:
        path = f"/flow_runs/{_id(run.run_id, 'flow run')}"
        if STATES[type_of(_object(await self._ask("GET", path)))] is not RunState.FAILED:
            raise Rejected("Only a flow run that has failed can go on from its failed step.")
        if repeated := await self._tasks_without_result(run.run_id):
            raise Rejected(
                "Tasks that have succeeded would run again, because Prefect has not persisted their results: "
                f"{shorten(printable(', '.join(repeated)), 300)}. Set persist_result for them."
            )
        wanted = {"type": "SCHEDULED", "name": "AwaitingRetry", "message": retried_with(key)}
        # Not by `_ask`: Prefect would schedule the run for each request.
        answer = await self._client.request_json(
            "POST", f"{path}/set_state", body={"state": wanted, "force": False}, repeatable=False
        )
        words = _reason_in(answer)
        match as_object(answer).get("status"):
            case "ACCEPT":
                return Started(run_id=run.run_id, raw=answer)
            case "REJECT" | "ABORT":
                raise Rejected(f"Prefect refused to run the flow again: {words}")
            case "WAIT":
                raise Unreachable(f"Prefect cannot run the flow again at the moment: {words}")
        raise OutcomeUnknown("Prefect's answer does not say whether it runs the flow again.")

    async def _tasks_without_result(self, run_id: str) -> list[str]:
        """The names of tasks that have succeeded, and whose results a retry could not use."""
        types = {"task_runs": {"state": {"type": {"any_": ["COMPLETED"]}}}}
        wanted = {"flow_runs": {"id": {"any_": [run_id]}}, "limit": MAX_ROWS, **types}
        names: set[str] = set()
        for offset in range(0, MAX_TASK_RUNS, MAX_ROWS):
            page = await self._rows("/task_runs/filter", wanted | {"offset": offset})
            without = [row for row in _objects(page) if not isinstance(_state(row).get("data"), dict)]
            names |= {str(row.get("name")) for row in without}
            if len(page) < MAX_ROWS:
                break
        return sorted(names)

    async def find_retry(self, run: RunRef, *, key: UUID) -> Started | None:
        """All states of a flow run keep their messages."""
        path = fill_path("/flow_run_states/?flow_run_id={id}", id=_id(run.run_id, "flow run"))
        states = await self._ask("GET", path)
        if not isinstance(states, list) or not all(
            as_object(state).get("type") in STATES for state in states
        ):
            raise InvalidAnswer("Prefect's answer is not a list of states.")
        if any(state.get("message") == retried_with(key) for state in states):
            return Started(run_id=run.run_id)
        return None

    async def find_run(
        self, workflow: WorkflowRef, arguments: dict[str, Any], *, key: UUID
    ) -> Started | None:
        wanted = {"limit": 2, "flow_runs": {"idempotency_key": {"any_": [str(key)]}}}
        found = await self._runs(wanted)
        for run in found:
            started = _read_started(run)
            # A version that ignores the condition lists other runs.
            if started is None or run.get("idempotency_key") != str(key):
                raise InvalidAnswer("Prefect answered with a flow run that has another key.")
            # Runs of a deleted deployment lose its id.
            if run.get("deployment_id") in (workflow.id, None):
                return started
        return None

    async def list_runs(self, wanted: RunFilter, *, page_size: int, cursor: str = "") -> RunPage:
        offset, size = read_offset(cursor), min(page_size, MAX_ROWS)
        found = await self._runs(wanted_runs(wanted) | {"limit": size, "offset": offset})
        flows = {str(run["flow_id"]) for run in found if run.get("flow_id")}
        deployments = {str(run["deployment_id"]) for run in found if run.get("deployment_id")}
        with_ids = {"deployments": {"id": {"any_": sorted(deployments)}}}
        flow_names, named = await asyncio.gather(
            self._flow_names(flows), self._rows("/deployments/filter", with_ids)
        )
        by_id = {str(deployment.get("id")): deployment for deployment in _objects(named)}
        return RunPage(
            runs=[read_listed(run, by_id, flow_names) for run in found],
            next_cursor=str(offset + size) if len(found) == size else "",
        )

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _under_way(self, run_id: str, seen: RunSnapshot) -> RunSnapshot:
        """Missing logs or progress do not fail the poll."""
        logs, artifact = await asyncio.gather(
            self._last_logs(run_id, lines=min(1, self._config.log_lines)),
            _or_else(None, self._newest_artifact(run_id, type="progress")),
        )
        newest = next(filter(None, (first_line(message_in(entry)) for entry in logs)), "")
        percent = read_percent(artifact.get("data")) if artifact else None
        return replace(seen, progress=percent, progress_message=newest)

    async def _questions(self, run_id: str, flow_run: dict[str, Any]) -> list[Question]:
        """A pause for input asks once its schema is there, which the flow writes just after the pause."""
        state = _state(flow_run)
        details = as_object(state.get("state_details"))
        keys, schema, words = as_object(details.get("run_input_keyset")), None, None
        if keys:
            schema = _cleaned(await self._input(run_id, keys.get("schema")))
            words = await self._input(run_id, keys.get("description"))
        if keys and schema is None:
            return []
        message, until = words or message_of(flow_run), details.get("pause_timeout")
        return [read_question(id=state.get("id"), message=message, schema=schema, until=until)]

    async def _input(self, run_id: str, key: Any) -> Any:
        """None if the flow has not written it."""
        try:
            path = fill_path("/flow_runs/{run_id}/input/{key}", run_id=run_id, key=str(key))
            return await self._ask("GET", path)
        except NotFound:
            return None

    async def _ended(
        self, run_id: str, flow_run: dict[str, Any], seen: RunSnapshot, until: float
    ) -> RunSnapshot:
        if seen.state is RunState.COMPLETED:
            seen = await with_result(seen, self._result(run_id, flow_run), until=until)
        logs = await _or_else([], self._logs_of_ended(run_id, seen), until=until)
        oldest_first = [
            {
                "time": str(entry.get("timestamp")),
                "level": entry.get("level"),
                "message": shorten(message_in(entry), 2_000),
            }
            for entry in reversed(logs)
            if read_time(entry.get("timestamp"))
        ]
        logged = last_error(logs) if seen.state is RunState.FAILED else ""
        words = f"{seen.error}\nThe last logged error: {logged}" if logged else seen.error
        return replace(seen, error=words, raw=seen.raw | {"logs": oldest_first})

    async def _result(self, run_id: str, flow_run: dict[str, Any]) -> Any:
        """The artifact's data, else the state's message, else None."""
        artifact = await self._newest_artifact(run_id, key=self._config.result_artifact_key)
        if artifact is None:
            return message_of(flow_run) or None
        return read_result(artifact.get("data"))

    async def _logs_of_ended(self, run_id: str, seen: RunSnapshot) -> list[dict[str, Any]]:
        """Flow runs send their logs every two seconds, and the rest after their final state. The logs of a
        run that has just failed are requested again until they are complete."""
        lines = self._config.log_lines
        logs = await self._last_logs(run_id, lines=lines)
        # By Prefect's clock, which may differ from ours by as much.
        age = None if seen.finished_at is None else abs(datetime.now(UTC) - seen.finished_at)
        is_new = age is not None and age < timedelta(seconds=10)
        has_just_failed = seen.state is RunState.FAILED and is_new
        for pause in PAUSES_FOR_LOGS if lines and has_just_failed else ():
            if len(logs) == lines or any(LAST_LINE in message_in(entry) for entry in logs):
                break
            await asyncio.sleep(pause)
            logs = await self._last_logs(run_id, lines=lines)
        return logs

    async def _last_logs(self, run_id: str, *, lines: int) -> list[dict[str, Any]]:
        """Newest first."""
        logs = {"flow_run_id": {"any_": [run_id]}, "level": {"ge_": INFO}}
        wanted = {"limit": lines, "sort": "TIMESTAMP_DESC", "logs": logs}
        return _objects(await _or_else([], self._rows("/logs/filter", wanted))) if lines else []

    async def _newest_artifact(self, run_id: str, **which: str) -> dict[str, Any] | None:
        """The run's newest artifact with this `key` or `type`."""
        chosen = {name: {"any_": [value]} for name, value in which.items()}
        wanted = {
            "limit": 1,
            "sort": "CREATED_DESC",
            "artifacts": {"flow_run_id": {"any_": [run_id]}, **chosen},
        }
        return next(iter(_objects(await self._rows("/artifacts/filter", wanted))), None)

    async def _flow_names(self, ids: Iterable[str]) -> dict[str, str]:
        rows = await self._rows("/flows/filter", {"flows": {"id": {"any_": sorted(ids)}}})
        named = [(row.get("id"), row.get("name")) for row in _objects(rows)]
        return {key: name for key, name in named if isinstance(key, str) and isinstance(name, str)}

    async def _runs(self, wanted: dict[str, Any]) -> list[dict[str, Any]]:
        rows = await self._rows("/flow_runs/filter", wanted)
        if not all(isinstance(row, dict) and isinstance(row.get("id"), str) for row in rows):
            raise InvalidAnswer("Prefect's list of flow runs contains something else.")
        return rows

    async def _rows(self, path: str, wanted: dict[str, Any]) -> list[Any]:
        answer = await self._ask("POST", path, wanted)
        if not isinstance(answer, list):
            raise InvalidAnswer(f"Prefect's answer to {path} is not a list.")
        return answer

    async def _ask(self, method: str, path: str, body: Any = None, *, repeatable: bool = True) -> Any:
        """Asks up to four times again after 503, the answer while the database is busy; Prefect's own clients
        do so as well. Even a start is safe to repeat, because it has a key."""
        repeated = 0
        while True:
            try:
                return await self._client.request_json(
                    method, path, body=body, repeatable=repeatable, max_depth=LISTING_DEPTH, is_listing=True
                )
            except (Unreachable, OutcomeUnknown) as error:
                # If the server says when to retry, the caller waits until then.
                says_when = getattr(error, "retry_after", None) is not None
                if repeated == 4 or error.details.get("status") != 503 or says_when:
                    raise
            await asyncio.sleep(spread(backoff_seconds(repeated, first=FIRST_PAUSE_SECONDS, longest=2.0)))
            repeated += 1


def retried_with(key: UUID) -> str:
    return f"Retried by {TAG}: {key}"


def _reason_in(answer: Any) -> str:
    details = as_object(as_object(answer).get("details"))
    return shorten_error(printable(str(details.get("reason") or "Prefect gave no reason.")))


def _id(text: str, what: str) -> str:
    """Raises NotFound for anything but a UUID, which could change the path."""
    try:
        return str(UUID(text))
    except ValueError:
        raise NotFound(f"{text!r} is not the id of a {what}. Nothing was sent to Prefect.") from None


def _object(answer: Any) -> dict[str, Any]:
    if not isinstance(answer, dict):
        raise InvalidAnswer("Prefect's answer is not an object.")
    return answer


def _objects(rows: list[Any]) -> list[dict[str, Any]]:
    return [row for row in rows if isinstance(row, dict)]


async def _or_else(
    otherwise: Answer, asked: Coroutine[Any, Any, Answer], *, until: float | None = None
) -> Answer:
    """Makes an optional request, whose errors are only logged."""
    try:
        async with asyncio.timeout_at(until):
            return await asked
    except (Rejected, NotFound, InvalidAnswer, Unreachable, TimeoutError) as error:
        logger.debug("An optional request to Prefect failed: {}", error)
        return otherwise


def _read_started(answer: Any) -> Started | None:
    """None without a run id. For a run that has ended, `poll` makes the snapshot."""
    run_id = answer.get("id") if isinstance(answer, dict) else None
    if not isinstance(run_id, str) or not run_id:
        return None
    try:
        seen = snapshot_of(answer)
    except InvalidAnswer:
        return Started(run_id=run_id, raw=without_storage(answer))
    under_way = seen.state is RunState.RUNNING
    return Started(run_id=run_id, snapshot=seen if under_way else None, raw=seen.raw)


def is_evaluated(value: Any) -> bool:
    """Returns True if Prefect would evaluate the value or one nested in it."""
    return f'"{MARK}":' in write_json(value)  # In a text, the quotes are escaped


def read_deployment(
    raw: Any, flow_names: dict[str, str], *, position: int
) -> WorkflowDefinition | RejectedDefinition:
    """A paused deployment counts: a pause stops schedules, not requested runs. Values that change whenever a
    worker restarts are left out, since each change counts as one of the workflow."""
    if not isinstance(raw, dict) or isinstance(raw, TooDeep):
        return parse_definition(raw, position=position)
    flow = flow_names.get(str(raw.get("flow_id")), "")
    name, description = name_of(raw, flow_names), raw.get("description")
    # Prefect stores "None" for a flow without a description.
    if not isinstance(description, str) or description.strip() in ("", "None"):
        description = f"Runs the Prefect deployment {name}, which does not say what it does."
    definition = {
        "id": raw.get("id"),
        "name": name,
        "description": description,
        "version": raw.get("version"),
        "tags": usable_tags(raw.get("tags")),
        "inputSchema": input_schema(raw),
        "metadata": {
            "flow": flow,
            "deployment": raw.get("name"),
            "entrypoint": raw.get("entrypoint"),
            "work_pool": raw.get("work_pool_name"),
            "prefect_checks_parameters": raw.get("enforce_parameter_schema") is True,
        },
    }
    return parse_definition(definition, position=position)


def name_of(raw: dict[str, Any], flow_names: dict[str, str]) -> Any:
    """`flow/deployment`, Prefect's full name."""
    flow, deployment = flow_names.get(str(raw.get("flow_id")), ""), raw.get("name")
    return f"{flow}/{deployment}" if flow and isinstance(deployment, str) else deployment


def input_schema(raw: dict[str, Any]) -> Any:
    """The parameters' schema, with the deployment's values as defaults. None if there is none; an unusable
    schema stays as it is, for the catalogue to report."""
    given = raw.get("parameter_openapi_schema")
    if not isinstance(given, dict):
        return given
    schema = _cleaned(given)
    properties = schema.get("properties")
    if schema.get("type") == "object" and isinstance(properties, dict):
        values = as_object(raw.get("parameters"))
        for name in values.keys() & properties.keys():
            if isinstance(properties[name], dict) and not is_evaluated(values[name]):
                properties[name]["default"] = values[name]
        if isinstance(required := schema.get("required"), list):
            schema["required"] = [name for name in required if name not in values]
            if not schema["required"]:
                del schema["required"]
        # Prefect accepts unknown parameters, and then fails the run.
        schema.setdefault("additionalProperties", False)
    return schema


def _cleaned(schema: Any) -> Any:
    """Drops Prefect's keywords, and titles that repeat a name, at every level."""
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in _parts(schema) if key not in OF_PREFECT}
    # Prefect writes the keyword of an older draft of JSON Schema.
    return {"$defs" if key == "definitions" else key: value for key, value in kept.items()}


def _parts(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in schema.items():
        if key in ("properties", "definitions", "$defs", "patternProperties") and isinstance(value, dict):
            parts = {name: _cleaned(part) for name, part in value.items()}
            for name, part in parts.items():
                if isinstance(part, dict) and _plain(part.get("title")) == _plain(name):
                    del part["title"]
            yield key, parts
        elif key in ("anyOf", "oneOf", "allOf", "prefixItems") and isinstance(value, list):
            yield key, [_cleaned(part) for part in value]
        elif key in ("items", "additionalProperties", "not", "contains", "if", "then", "else"):
            yield key, _cleaned(value)
        elif key == "$ref" and isinstance(value, str):
            yield key, value.replace("#/definitions/", "#/$defs/", 1)
        else:
            yield key, value


def _plain(text: Any) -> Any:
    return text.lower().replace(" ", "_") if isinstance(text, str) else text


STATES = {
    "SCHEDULED": RunState.RUNNING,
    "PENDING": RunState.RUNNING,
    "RUNNING": RunState.RUNNING,
    "PAUSED": RunState.RUNNING,
    "CANCELLING": RunState.RUNNING,
    "COMPLETED": RunState.COMPLETED,
    "FAILED": RunState.FAILED,
    "CRASHED": RunState.FAILED,
    "CANCELLED": RunState.CANCELLED,
}
NO_REASON = {
    "FAILED": "The flow run failed and Prefect gave no reason.",
    "CRASHED": "The process ended without a message.",
    "CANCELLED": "The flow run was cancelled in Prefect.",
}
SCHEDULED_FOR_A_REASON = {
    "AwaitingRetry": "Waiting for a retry",
    "AwaitingConcurrencySlot": "Waiting for a concurrency slot",
    "Resuming": "Resumed, waiting for a worker",
}
LAST_LINE = "Finished in state "
EXAMPLE = '{"tags": {"all_": ["nightly"]}}'


def type_of(flow_run: dict[str, Any]) -> str:
    """A run without a state counts as scheduled."""
    kind = flow_run.get("state_type")
    if kind is None:
        return "SCHEDULED"
    if not isinstance(kind, str) or kind not in STATES:
        shown = printable(shorten(str(kind), 50))
        raise InvalidAnswer(f"The flow run has the state {shown!r}, which this connector does not know.")
    return kind


def snapshot_of(flow_run: dict[str, Any]) -> RunSnapshot:
    """Lacks result, logs and progress, which Prefect keeps elsewhere."""
    kind = type_of(flow_run)
    state = STATES[kind]
    # A run that was cancelled before its start has no end time.
    ended = read_time(flow_run.get("end_time")) or read_time(_state(flow_run).get("timestamp"))
    error = ""
    if kind in NO_REASON:
        error = shorten_error(message_of(flow_run)) or NO_REASON[kind]
    return RunSnapshot(
        state=state,
        error=f"The flow run crashed. {error}" if kind == "CRASHED" else error,
        progress_message=_waiting_for(flow_run, kind) if state is RunState.RUNNING else "",
        created_at=read_time(flow_run.get("created")),
        started_at=read_time(flow_run.get("start_time")),
        updated_at=read_time(flow_run.get("updated")),
        finished_at=None if state is RunState.RUNNING else ended,
        raw=without_storage(flow_run),
    )


def message_of(flow_run: dict[str, Any]) -> str:
    return message_in(_state(flow_run))


def message_in(entry: dict[str, Any]) -> str:
    """Returns the message of a state or a line of the log."""
    message = entry.get("message")
    return printable(message) if isinstance(message, str) else ""


def without_storage(flow_run: dict[str, Any]) -> dict[str, Any]:
    """A state's data is the path of a pickle, of use only to Prefect's clients."""
    state = {key: value for key, value in _state(flow_run).items() if key != "data"}
    return flow_run | ({"state": state} if state else {})


def _state(flow_run: dict[str, Any]) -> dict[str, Any]:
    return as_object(flow_run.get("state"))


def _waiting_for(flow_run: dict[str, Any], kind: str) -> str:
    """Empty while the flow runs."""
    match kind:
        case "SCHEDULED":
            return _scheduled(flow_run)
        case "PENDING":
            return "A worker is preparing the run."
        case "PAUSED":
            words = first_line(message_of(flow_run))
            return f"Paused in Prefect until it is resumed{f': {words}' if words else '.'}"
        case "CANCELLING":
            return "Prefect is cancelling the run."
    return ""


def _scheduled(flow_run: dict[str, Any]) -> str:
    due = read_time(flow_run.get("next_scheduled_start_time")) or read_time(
        flow_run.get("expected_start_time")
    )
    reason = SCHEDULED_FOR_A_REASON.get(str(flow_run.get("state_name")))
    if due is None:
        return f"{reason or 'Waiting for a worker'}."
    when = f"{due.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    if reason or due > datetime.now(UTC):
        return f"{reason or 'Scheduled'}: due at {when}."
    return f"Waiting for a worker since {when}."


def wanted_runs(wanted: RunFilter) -> dict[str, Any]:
    conditions: dict[str, Any] = {}
    if wanted.run:
        try:
            conditions["id"] = {"any_": [str(UUID(wanted.run))]}
        except ValueError:
            raise Rejected("Prefect can only find a run by its complete id.") from None
    if wanted.states:
        types = [kind for kind, state in STATES.items() if state in wanted.states]
        conditions["state"] = {"type": {"any_": types}}
    limits = {"after_": wanted.started_after, "before_": wanted.started_before}
    if times := {name: moment.isoformat() for name, moment in limits.items() if moment}:
        conditions["start_time"] = times
    if wanted.engine_query:
        conditions = _with_query(conditions, wanted.engine_query)
    return {"sort": "START_TIME_DESC", "flow_runs": conditions, **_of_workflow(wanted.workflow)}


def read_listed(
    run: dict[str, Any], deployments: dict[str, dict[str, Any]], flow_names: dict[str, str]
) -> ListedRun:
    kind, flow = type_of(run), str(run.get("flow_id", ""))
    deployment = deployments.get(str(run.get("deployment_id")))
    return ListedRun(
        run_id=str(run.get("id", "")),
        workflow=str(name_of(deployment, flow_names)) if deployment else flow_names.get(flow, flow),
        state=STATES[kind],
        told_state=str(run.get("state_name") or kind),
        key=read_uuid(run.get("idempotency_key")),
        started_at=read_time(run.get("start_time")),
        finished_at=read_time(run.get("end_time")),
        details={
            "name": run.get("name"),
            "tags": run.get("tags"),
            "message": first_line(message_of(run)),
            "expected_start_time": run.get("expected_start_time"),
        },
    )


def _of_workflow(name: str) -> dict[str, Any]:
    """Filters by a deployment's id, `flow/deployment`, or a part of either name."""
    if not name:
        return {}
    try:
        return {"deployments": {"id": {"any_": [str(UUID(name))]}}}
    except ValueError:
        match name.split("/"):
            case [flow, deployment] if flow and deployment:
                return {"flows": {"name": {"any_": [flow]}}, "deployments": {"name": {"any_": [deployment]}}}
    return {"deployments": {"flow_or_deployment_name": {"like_": name}}}


def _with_query(conditions: dict[str, Any], query: str) -> dict[str, Any]:
    """Prefect has no query language, so the query is JSON of its filter."""
    try:
        added = parse_json(query.encode("utf-8", "replace"))
    except UnreadableJSON as error:
        raise Rejected(f"A condition for Prefect must be JSON such as {EXAMPLE}. {error}") from None
    if not isinstance(added, dict):
        raise Rejected(f"A condition for Prefect must be a JSON object such as {EXAMPLE}.")
    if twice := conditions.keys() & added.keys():
        raise Rejected(f"The condition contains {min(twice)}, which the other filters already set.")
    return conditions | added


def read_result(data: Any) -> Any:
    """An artifact's data; JSON text, also in a code block, is parsed."""
    if not isinstance(data, str):
        return data
    block = re.fullmatch(r"\s*```(?:json)?[ \t]*\n(.*)\n[ \t]*```\s*", data, re.DOTALL)
    try:
        return parse_json((block[1] if block else data).encode("utf-8", "replace"))
    except UnreadableJSON:
        return data


def last_error(logs: list[dict[str, Any]]) -> str:
    """The last error line of the flow, or empty. Lines in which Prefect repeats a run's end do not count."""
    for entry in logs:
        level, message = entry.get("level"), entry.get("message")
        is_error = isinstance(level, int) and level >= ERROR
        repeats_the_end = ("Traceback (most recent call last)", LAST_LINE)
        if is_error and isinstance(message, str) and not any(words in message for words in repeats_the_end):
            return first_line(message)
    return ""
