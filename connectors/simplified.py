"""The simplified workflow API over HTTP: list, start, status, and optionally cancel and look up by key."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from typing import Annotated, Any, ClassVar
from uuid import UUID

import httpx2
from pydantic import AfterValidator, BaseModel, Field, SecretStr

from connectors import settings
from connectors.definitions import RejectedDefinition, WorkflowDefinition, parse_definition
from connectors.errors import ConnectorError, InvalidAnswer, NotFound, OutcomeUnknown, Unsupported
from connectors.formats.json import LISTING_DEPTH, as_object, is_number, read_percent, read_unix_time
from connectors.network.client import EngineClient, fill_path
from connectors.network.headers import objection_to_name
from connectors.network.policy import normalise_base_url
from connectors.network.redaction import LINE_LIMIT, extract_error_message, printable, shorten, shorten_error
from connectors.protocol import (
    Capabilities,
    Health,
    ReportProgress,
    RunRef,
    RunSnapshot,
    RunState,
    Started,
    WorkflowRef,
    health_of,
    ignore_progress,
)
from connectors.settings import SourceConfig, hint, names_in_braces

WORKFLOWS_PATH = "/api/v1/service/workflows"
RUN_PATH = WORKFLOWS_PATH + "/{workflow_id}/runs/{run_id}"
FORMATS = hint(group="Paths and formats")
STARTS = hint(group="Idempotency of starts")
MAX_PAGES = 1_000
MAX_WORKFLOWS = 50_000
NEXT_KEYS = ("next", "next_cursor", "nextCursor")
MORE_KEYS = (
    *("has_more", "hasMore", "has_next", "hasNext", "next_page", "nextPage"),
    *("next_page_token", "nextPageToken", "next_url", "nextUrl"),
)
"""They announce more items without a link or cursor that this connector can follow."""
TOTAL_KEYS = ("total", "total_count", "totalCount", "total_items", "totalItems")
STATES = {
    "RUNNING": RunState.RUNNING,
    "COMPLETED": RunState.COMPLETED,
    "FAILED": RunState.FAILED,
    "CANCELLED": RunState.CANCELLED,
    "CANCELED": RunState.CANCELLED,
}
MAX_ID_LENGTH = 255
NO_REASON = {
    RunState.FAILED: "The workflow failed and the engine gave no reason.",
    RunState.CANCELLED: "The workflow was cancelled at the engine.",
}


def _path(required: str = "", *, optional: bool = False) -> AfterValidator:
    """A path below the base URL. With `required`, it must contain that placeholder and may contain
    {workflow_id}; otherwise it has none."""
    allowed = {required, "workflow_id"} if required else set()

    def check(path: str) -> str:
        if optional and not path:
            return path
        if not path.startswith("/") or not path.isascii() or not path.isprintable() or " " in path:
            raise ValueError("must start with '/' and contain neither spaces nor characters outside ASCII")
        found = set(names_in_braces(path))
        if required and required not in found:
            raise ValueError(f"must contain {{{required}}}")
        if unknown := found - allowed:
            raise ValueError(f"must not contain {{{min(unknown)}}}")
        return path

    return AfterValidator(check)


def _http_word(text: str) -> str:
    if not all(char.isascii() and (char.isalnum() or char in "-_.") for char in text):
        raise ValueError("may only contain letters, digits, '-', '_' and '.'")
    return text


def _header_for_a_key(name: str) -> str:
    if name and (why := objection_to_name(name)):
        raise ValueError(f"{name} {why}")
    return name


HttpWord = Annotated[str, AfterValidator(_http_word)]
KeyHeader = Annotated[HttpWord, AfterValidator(_header_for_a_key)]


class SimplifiedConfig(SourceConfig):
    base_url: Annotated[str, AfterValidator(normalise_base_url)] = Field(
        title="Base URL",
        description="The address of the engine, such as https://engine.example.com. It may include a path "
        "prefix.",
        json_schema_extra=hint(address=True),
    )
    api_key: settings.HeaderSecret = Field(
        default=SecretStr(""),
        title="API key",
        description="Sent with every request in the Authorization header. Leave empty to omit the header.",
    )
    authorization_scheme: HttpWord = Field(
        default="Api-Key",
        title="Authorization scheme",
        description="The scheme before the key in the Authorization header. Leave empty to send the key "
        "alone.",
        json_schema_extra=FORMATS,
    )
    list_path: Annotated[str, _path()] = Field(
        default=WORKFLOWS_PATH,
        title="Listing path",
        description="GET returns the engine's workflows.",
        json_schema_extra=FORMATS,
    )
    start_path: Annotated[str, _path("workflow_id")] = Field(
        default=WORKFLOWS_PATH + "/{workflow_id}/start",
        title="Start path",
        description="POST starts a run. The path must contain {workflow_id}.",
        json_schema_extra=FORMATS,
    )
    status_path: Annotated[str, _path("run_id", optional=True)] = Field(
        default=RUN_PATH + "/status",
        title="Status path",
        description="GET returns a run's status. The path must contain {run_id} and may contain "
        "{workflow_id}. Leave empty if the engine does not report on runs: a run that has not ended by "
        "the response to its start then becomes unconfirmed.",
        json_schema_extra=FORMATS,
    )
    cancel_path: Annotated[str, _path("run_id", optional=True)] = Field(
        default=RUN_PATH + "/cancel",
        title="Cancel path",
        description="POST cancels a run. The path must contain {run_id}. Leave empty if the engine cannot "
        "cancel runs.",
        json_schema_extra=FORMATS,
    )
    list_keys: list[str] = Field(
        default=["workflows", "items", "data", "results"],
        min_length=1,
        title="Listing keys",
        description="The keys that may hold the listing's array, unless the response itself is an array.",
        json_schema_extra=FORMATS,
    )
    ignores_total: bool = Field(
        default=False,
        title="Ignore the listing's total",
        description="For an engine whose total also counts workflows that it does not list. Otherwise a "
        "listing that ends before its total counts as incomplete and is not used.",
        json_schema_extra=FORMATS,
    )
    cursor_parameter: HttpWord = Field(
        default="cursor",
        min_length=1,
        title="Cursor parameter",
        description="The query parameter for the next page, if the engine returns a cursor instead of a "
        "link.",
        json_schema_extra=FORMATS,
    )
    source: str = Field(
        default="application",
        min_length=1,
        max_length=100,
        title="Source",
        description="The caller's name, sent with each start.",
        json_schema_extra=FORMATS,
    )
    idempotency_header: KeyHeader = Field(
        default="",
        title="Idempotency header",
        description="Set this (for example to Idempotency-Key) only if the engine starts a single run for "
        "each key. If empty, a start whose outcome is unknown is never retried.",
        json_schema_extra=STARTS,
    )
    run_lookup_path: Annotated[str, _path("key", optional=True)] = Field(
        default="",
        title="Run lookup path",
        description="GET returns the run, or the list of runs, that was started with a key, such as "
        "/runs?workflow_id={workflow_id}&idempotency_key={key}. An empty list or 404 means that there is "
        "none. The path must contain {key}. Starts whose outcome is unknown are looked up there. Leave "
        "empty if the engine has no such lookup.",
        json_schema_extra=STARTS,
    )
    key_header: KeyHeader = Field(
        default="",
        title="Key header of the lookup",
        description="The header of a start that carries the key for the lookup, if no idempotency header "
        "is set. Defaults to Idempotency-Key. Only sent if a run lookup path is set.",
        json_schema_extra=STARTS,
    )
    min_poll_seconds: settings.MinPollSeconds = 1.0
    request_timeout_seconds: settings.RequestTimeoutSeconds = Field(
        default=30.0,
        description="The time limit for one complete request. A synchronous workflow must finish within it.",
    )
    max_response_bytes: settings.MaxResponseBytes = 10_000_000
    verify_tls: settings.VerifyTls = True
    ca_file: settings.CaFile = ""


class SimplifiedConnector:
    """An engine that lists, starts, shows and cancels workflows by the simplified API over HTTP."""

    kind: ClassVar[str] = "simplified"
    label: ClassVar[str] = "Simplified workflow API (HTTP)"
    Config: ClassVar[type[BaseModel]] = SimplifiedConfig
    starts_by_metadata: ClassVar[bool] = False

    def __init__(self, config: SimplifiedConfig) -> None:
        self._config = config
        key = config.api_key.get_secret_value()
        authorization = f"{config.authorization_scheme} {key}".strip()
        self._client = EngineClient.of(
            config,
            base_url=config.base_url,
            headers={"accept-language": "en"} | ({"authorization": authorization} if key else {}),
        )

    def __repr__(self) -> str:
        return f"SimplifiedConnector({self._config.base_url})"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            idempotent_start=bool(self._config.idempotency_header),
            can_cancel=bool(self._config.cancel_path),
            can_find_runs=bool(self._config.run_lookup_path),
            min_poll_seconds=self._config.min_poll_seconds,
            status_is_optional=True,
        )

    async def check(self) -> Health:
        return await health_of(self._greet())

    async def _greet(self) -> str:
        items, following = await self._page(self._config.list_path, 0)
        count = f"at least {len(items)}" if following else str(len(items))
        return f"The engine answered; workflows listed: {count}."

    async def discover(self) -> AsyncIterator[WorkflowDefinition | RejectedDefinition]:
        items = walk_listing(
            self._page,
            self._config.list_path,
            listing="The engine's listing",
            of="workflows",
            most=MAX_WORKFLOWS,
        )
        async with aclosing(items):
            async for position, item in items:
                yield parse_definition(item, position=position)

    async def start(
        self,
        workflow: WorkflowRef,
        arguments: dict[str, Any],
        *,
        key: UUID,
        report: ReportProgress = ignore_progress,
    ) -> Started:
        header = self._config.idempotency_header
        if not header and self._config.run_lookup_path:
            header = self._config.key_header or "Idempotency-Key"
        answer = await self._client.request_json(
            "POST",
            fill_path(self._config.start_path, workflow_id=workflow.id),
            body={"input": arguments, "source": self._config.source},
            headers={header: str(key)} if header else None,
            repeatable=False,
        )
        return read_started(answer)

    async def poll(self, run: RunRef) -> RunSnapshot:
        if not self._config.status_path:
            raise Unsupported("The source's settings do not have a status path.")
        with _unsupported_if_not_implemented():
            answer = await self._client.request_json("GET", _run_path(self._config.status_path, run))
        return read_snapshot(answer)

    async def cancel(self, run: RunRef) -> None:
        if not self._config.cancel_path:
            raise Unsupported("This engine cannot cancel a run.")
        with _unsupported_if_not_implemented():
            await self._client.request("POST", _run_path(self._config.cancel_path, run))

    async def find_run(
        self, workflow: WorkflowRef, arguments: dict[str, Any], *, key: UUID
    ) -> Started | None:
        if not self._config.run_lookup_path:
            raise Unsupported("This engine cannot look up a run by its key.")
        path = fill_path(self._config.run_lookup_path, workflow_id=workflow.id, key=str(key))
        try:
            answer = await self._client.request_json("GET", path, max_depth=LISTING_DEPTH)
        except NotFound:
            return None
        return read_found_run(answer, self._config.list_keys, workflow_id=workflow.id, key=str(key))

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _page(self, target: str, before: int) -> tuple[list[Any], str]:
        answer = await self._client.request_json("GET", target, max_depth=LISTING_DEPTH, is_listing=True)
        items, link = read_listing(
            answer,
            self._config.list_keys,
            before,
            checks_total=not self._config.ignores_total,
            advice=" If its total also counts workflows that it does not list, set "
            '"Ignore the listing\'s total".',
        )
        if not link or "://" in link or link.startswith(("/", "?")):
            return items, link and self._client.follow(link, found_at=target)
        current = httpx2.URL(self._client.follow("", found_at=target))
        return items, str(current.copy_set_param(self._config.cursor_parameter, link))


@contextmanager
def _unsupported_if_not_implemented() -> Iterator[None]:
    try:
        yield
    except ConnectorError as error:
        if error.details.get("status") in (405, 501):
            raise Unsupported(error.message, details=error.details) from None
        raise


def _run_path(path: str, run: RunRef) -> str:
    return fill_path(path, workflow_id=run.workflow.id, run_id=run.run_id)


async def walk_listing(
    fetch_page: Callable[[str, int], Awaitable[tuple[list[Any], str]]],
    first: str = "",
    *,
    listing: str,
    of: str,
    most: int = 10_000,
) -> AsyncGenerator[tuple[int, Any]]:
    """The items of all pages with their positions. Raises InvalidAnswer for an endless listing. `fetch_page`
    gets a page and the number of items before it, and returns its items and the next page, empty on the last.
    `listing` and `of` name them in errors."""
    target, visited, position = first, set[int](), 0
    while True:
        if hash(target) in visited:
            raise InvalidAnswer(f"{listing} links back to an earlier page.")
        if len(visited) == MAX_PAGES:
            raise InvalidAnswer(f"{listing} has more than {MAX_PAGES:,} pages.")
        visited.add(hash(target))  # A cursor may be as long as an answer
        items, target = await fetch_page(target, position)
        for item in items:
            if position == most:
                raise InvalidAnswer(f"{listing} has more than {most:,} {of}.")
            yield position, item
            position += 1
        if not target:
            return


def read_listing(
    answer: Any, keys: list[str], before: int, *, checks_total: bool = True, advice: str = ""
) -> tuple[list[Any], str]:
    """A page's workflows and the link or cursor of the next page, empty on the last. Raises InvalidAnswer for
    a page without an array, or one that announces more items without a link. `before`: the number of items of
    earlier pages."""
    items, envelope = find_items(answer, keys)
    link = _next_of(envelope) or _next_of(answer)
    if not link and (said := _more_of(envelope) or _more_of(answer)):
        raise InvalidAnswer(
            f"The listing announces more items ({said}), but has no link to the next page under "
            f"{', '.join(NEXT_KEYS)}. It is not used, because it is incomplete."
        )
    if not link and checks_total:
        refuse_incomplete(envelope, listed=before + len(items), advice=advice)
        refuse_incomplete(answer, listed=before + len(items), advice=advice)
    return items, link


def refuse_incomplete(envelope: Any, *, listed: int, advice: str = "") -> None:
    """Raises InvalidAnswer if the last page announces more items than were listed."""
    given = as_object(envelope)
    for key in TOTAL_KEYS:
        total: Any = given.get(key)
        if is_number(total) and total > listed:
            raise InvalidAnswer(
                f"The listing announces {total:,} items ({key}), but has only {listed:,} and no next page. "
                f"It is not used, because it is incomplete.{advice}"
            )


def find_items(answer: Any, keys: list[str]) -> tuple[list[Any], Any]:
    """A listing's array and the object that holds it."""
    envelopes = [answer] if isinstance(answer, dict) else []
    # Such as {"data": {"workflows": []}}.
    envelopes += [one[key] for one in envelopes for key in keys if isinstance(one.get(key), dict)]
    for envelope in envelopes:
        for key in keys:
            if isinstance(envelope.get(key), list):
                return envelope[key], envelope
    if isinstance(answer, list):
        return answer, None
    raise InvalidAnswer(f"The listing has no array under {', '.join(keys)}; it is {shape_of(answer)}.")


def shape_of(answer: Any) -> str:
    if not isinstance(answer, dict):
        return _json_type(answer)
    keys = ", ".join(printable(shorten(key, 50)) for key in list(answer)[:20])
    return f"an object with the keys {keys}" if keys else "an empty object"


def _json_type(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case str():
            return "a string"
        case int() | float():
            return "a number"
        case list():
            return "an array"
    return "an object"


def _next_of(envelope: Any) -> str:
    given = as_object(envelope)
    link = next((given[key] for key in NEXT_KEYS if given.get(key)), "")
    if isinstance(link, bool) or not isinstance(link, str | int):
        raise InvalidAnswer(f"The listing's link to the next page is {_json_type(link)}, not a string.")
    return str(link)


def _more_of(envelope: Any) -> str:
    """The key that announces more items; empty without one."""
    given = as_object(envelope)
    if said := next((key for key in MORE_KEYS if given.get(key)), ""):
        return said
    return next((f"{key}.next" for key in ("links", "_links") if as_object(given.get(key)).get("next")), "")


def read_started(answer: Any) -> Started:
    """Raises OutcomeUnknown for an answer without a run id: the run may exist."""
    if not isinstance(answer, dict):
        raise OutcomeUnknown(f"The engine's answer to the start is {_json_type(answer)}, not an object.")
    named = answer.get("workflow_id")
    run_id = identifier(named)
    if not run_id and named and isinstance(named, str):
        raise OutcomeUnknown(
            f"The run id in the engine's answer to the start has {len(named):,} characters; it must have at "
            f"most {MAX_ID_LENGTH} characters, all printable."
        )
    if not run_id:
        raise OutcomeUnknown(
            f"The engine's answer to the start has no run id under workflow_id; it is {shape_of(answer)}."
        )
    return _started(run_id, answer)


def _started(run_id: str, answer: dict[str, Any]) -> Started:
    snapshot = None
    # If its status is unreadable, `poll` can ask again.
    with suppress(InvalidAnswer):
        snapshot = read_snapshot(answer) if "status" in answer else None
    correlation_id = identifier(answer.get("correlation_id"))
    return Started(run_id=run_id, correlation_id=correlation_id, snapshot=snapshot, raw=answer)


def identifier(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        return ""
    text = str(value)
    return text if len(text) <= MAX_ID_LENGTH and text.isprintable() else ""


def read_snapshot(answer: Any) -> RunSnapshot:
    """Raises InvalidAnswer for an unknown status."""
    if not isinstance(answer, dict):
        raise InvalidAnswer(f"The engine's answer to the status request is {_json_type(answer)}.")
    status = answer.get("status")
    if not isinstance(status, str):
        raise InvalidAnswer(f"The run's status is {_json_type(status)}, not a string.")
    state = STATES.get(status.strip().upper())
    if state is None:
        shown = printable(shorten(status, 50))
        raise InvalidAnswer(f"The run has the status {shown!r}, which this connector does not know.")
    said = answer.get("progress_message")
    return RunSnapshot(
        state=state,
        output=answer.get("output"),
        error=_error_of(answer, state),
        progress=read_percent(answer.get("progress")),
        progress_message=shorten(printable(said), LINE_LIMIT) if isinstance(said, str) else "",
        created_at=read_unix_time(answer.get("create_time"), per_second=1000),
        started_at=read_unix_time(answer.get("start_time"), per_second=1000),
        updated_at=read_unix_time(answer.get("update_time"), per_second=1000),
        finished_at=read_unix_time(answer.get("end_time"), per_second=1000),
        raw=answer,
    )


def _error_of(answer: dict[str, Any], state: RunState) -> str:
    if state not in NO_REASON:
        return ""
    output = as_object(answer.get("output"))
    candidates = (
        answer.get("error"),
        output.get("error"),
        output.get("message"),
        answer.get("reasonForIncompletion"),
        output.get("reasonForIncompletion"),
    )
    words = next(filter(None, map(extract_error_message, candidates)), NO_REASON[state])
    return shorten_error(words)


def read_found_run(answer: Any, keys: list[str], *, workflow_id: str, key: str) -> Started | None:
    """The engine's run for the key, or None. Raises InvalidAnswer for an ambiguous answer, since a wrong None
    starts a second run."""
    if isinstance(answer, dict) and run_id_of(answer, workflow_id):
        runs: list[Any] = [answer]
    elif isinstance(answer, dict) and isinstance(answer.get("run"), dict):
        runs = [answer["run"]]
    else:
        runs, _ = find_items(answer, ["runs", "run", *keys])
    if not runs:
        return None
    if len(runs) > 1:
        raise InvalidAnswer(f"The engine returned {len(runs)} runs for the key {key}: it seems to ignore it.")
    run = runs[0]
    if not isinstance(run, dict) or not (run_id := run_id_of(run, workflow_id)):
        raise InvalidAnswer(f"The engine returned a run without an id for the key; it is {shape_of(run)}.")
    named = (run.get(name) for name in ("idempotency_key", "idempotencyKey", "key"))
    if others := {name for name in named if isinstance(name, str)} - {key}:
        raise InvalidAnswer(f"For the key {key}, the engine returned a run with the key {min(others)[:100]}.")
    return _started(run_id, run)


def run_id_of(run: dict[str, Any], workflow_id: str) -> str:
    """`workflow_id` is the run's id in the answer to a start, and the workflow's in a status."""
    named = (identifier(run.get(name)) for name in ("run_id", "runId", "id"))
    receipt = identifier(run.get("workflow_id"))
    return next(filter(None, named), "" if receipt == workflow_id else receipt)
