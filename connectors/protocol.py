"""The protocol of engine connectors, and the values that cross it."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar, Protocol
from uuid import UUID

from pydantic import BaseModel

from connectors.definitions import FeatureDefinition, FeatureKind, RejectedDefinition, WorkflowDefinition
from connectors.errors import ConnectorError, Rejected, Unreachable, Unsupported

MAX_POLL_SECONDS = 3_600.0
DETAILS_SECONDS = 25.0
"""From the beginning of a poll, which may take 30 s: what the engine has not said by then of a result, a
reason or logs is left out, because the run's state must not be lost with it."""
ABOUT_OUTPUT = {"workflow-catalogue/about-output": True}
ASIDE = {"workflow-catalogue/about-output": "aside"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Capabilities:
    """Declares what an engine can do with the source's settings."""

    idempotent_start: bool = False
    """Two starts with one key start one run."""
    can_cancel: bool = False
    can_find_runs: bool = False
    """Runs can be looked up by the key of their start."""
    min_poll_seconds: float = 1.0
    """The shortest interval between two polls of one run; more than 3,600 counts as 3,600."""
    status_is_optional: bool = False
    """The API may have no status request: "not found" may not mean that the run is gone."""
    can_wait: bool = False
    """`wait` returns as soon as a run ends."""
    cancellable_start: bool = False
    """The answer to a start is the run's result, and cancelling the task that awaits it cancels the run."""
    terminates_after_seconds: float | None = None
    """How long after its cancellation a running run is ended by `terminate`; None: never."""
    can_query: bool = False
    can_signal: bool = False
    can_list_runs: bool = False
    lists_workflows: bool = True
    """False: workflows are declared in the catalogue, and `discover` yields none."""
    keeps_runs: bool = True
    """False: the answer to a start is all that the engine reports of a run."""
    reports_listing_changes: bool = False
    """The engine announces changes of its listing."""
    differ_by_workflow: bool = False
    """They hold for some workflows only; see `capabilities_for`."""
    reports_ends: bool = False
    """A webhook reports the ends of runs: `read_delivery` reads what it sends."""
    asks_caller: bool = False
    """`start` takes `caller`, and may ask it for input; needs `cancellable_start`."""
    has_features: bool = False
    """The engine is an MCP server, which may have prompts and resources."""
    asks_people: bool = False
    """A run may wait for a person: `poll` reports the questions, and `answer` answers one."""
    can_retry: bool = False
    """`retry` runs the failed steps of an ended run again, and keeps what the others have done."""
    idempotent_retry: bool = False
    """Two retries with one key make one."""
    can_find_retries: bool = False
    """Retries can be looked up by their key."""
    can_pause: bool = False
    """`pause` holds a running run, and `resume` continues it."""
    can_terminate: bool = False
    """`terminate` ends a running run at once, also without a cancellation before it."""

    def __post_init__(self) -> None:
        # A later poll would be taken for the plan of a clock that is ahead.
        object.__setattr__(self, "min_poll_seconds", min(self.min_poll_seconds, MAX_POLL_SECONDS))


@dataclass(frozen=True, kw_only=True, slots=True)
class Health:
    ok: bool
    message: str
    """A sentence for administrators: what answered, or the engine's reason for refusing."""
    latency_seconds: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkflowRef:
    """Holds what a connector needs to start a workflow; never a database row."""

    id: str
    """The engine's own id."""
    name: str
    metadata: dict[str, Any] = field(default_factory=dict)
    """The engine-specific part of the definition, as discovered."""
    timeout_seconds: float | None = None
    """How long a run may take. The caller enforces it; an engine may, too."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRef:
    workflow: WorkflowRef
    run_id: str
    key: UUID
    """The key that the run was started with."""


class RunState(StrEnum):
    """The states to which connectors map those of their engines."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """What a run waits for: a person's answer."""

    id: str
    """At the engine; another id is another question."""
    message: str
    """May be empty."""
    schema: dict[str, Any]
    """JSON Schema of the answer, an object; without properties, consent is enough."""
    url: str = ""
    """Where the engine itself asks people, if it does; dropped unless http or https."""
    until: datetime | None = None
    """When the engine stops asking."""

    def __post_init__(self) -> None:
        if not self.id or {type(self.id), type(self.message)} != {str}:
            raise TypeError(f"a question needs an id and a message, not {self.id!r} and {self.message!r}")
        if not isinstance(self.schema, dict):
            raise TypeError(f"the schema of an answer must be a dict, not {type(self.schema).__name__}")
        if self.until is not None and self.until.utcoffset() is None:
            raise ValueError(f"until must have a time zone, unlike {self.until.isoformat()}")
        if not self.url.startswith(("http://", "https://")):
            object.__setattr__(self, "url", "")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSnapshot:
    """A run's state at one moment."""

    state: RunState
    output: Any = None
    """Any JSON value of a completed run; some engines also fill it on failure."""
    error: str = ""
    """The engine's reason for a failure or cancellation, fit for a user."""
    content: Sequence[dict[str, Any]] | None = None
    """MCP's content blocks, if the engine answers with them; `output` is then for programs. Texts with
    ABOUT_OUTPUT as `_meta` come last: what a model has to know about the output, and no part of it; with
    ASIDE what it may know."""
    unread: ConnectorError | None = None
    """Why the result of a completed run, or a part of it, could not be read. If it is Unreachable or
    NotFound, the run is polled again for a while."""
    needs_operator: bool = False
    """Credentials or settings made it fail: no other arguments help."""
    depends_on_arguments: bool = True
    """False: no other arguments can help."""
    may_have_effect: bool = False
    """It failed after it may have had an effect, which a repetition could repeat."""
    progress: float | None = None
    """Percent, kept between 0 and 100; None: unknown."""
    progress_message: str = ""
    is_paused: bool = False
    """Of a running run: held by `pause`, or by somebody at the engine."""
    questions: Sequence[Question] | None = ()
    """Of a running run: all that it waits for people to answer, also in what `wait` returns. A question that
    is missing counts as answered; None: what it asks is unknown at present."""
    created_at: datetime | None = None
    started_at: datetime | None = None
    updated_at: datetime | None = None
    finished_at: datetime | None = None
    raw: dict[str, Any] = field(default_factory=dict)
    """The engine's whole answer, for the record."""

    def __post_init__(self) -> None:
        """Raises in the connector, so that the traceback shows its author the line."""
        if not isinstance(self.state, RunState):
            raise TypeError(f"state must be a RunState, not {self.state!r}")
        if not isinstance(self.raw, dict):
            raise TypeError(f"raw must be a dict, not {type(self.raw).__name__}")
        if self.progress is not None and not math.isfinite(self.progress):
            raise ValueError(f"progress must be finite, not {self.progress!r}")
        if self.progress is not None:
            object.__setattr__(self, "progress", min(max(self.progress, 0.0), 100.0))
        for name in ("created_at", "started_at", "updated_at", "finished_at"):
            at: datetime | None = getattr(self, name)
            if at is not None and at.utcoffset() is None:
                raise ValueError(f"{name} must have a time zone, unlike {at.isoformat()}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Started:
    run_id: str
    correlation_id: str = ""
    snapshot: RunSnapshot | None = None
    """The run's state, if the answer has it; terminal for synchronous workflows."""
    raw: dict[str, Any] = field(default_factory=dict)


ReportProgress = Callable[[RunSnapshot], None]
"""Receives a run's progress; cheap and never raises, so call it for each of the engine's messages."""


def ignore_progress(snapshot: RunSnapshot) -> None:
    """The default of callers that need no progress."""


LOG_LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""Of MCP and syslog, the least severe first."""


def covers_level(wanted: str, level: str) -> bool:
    """Returns True if a client that wants messages from the level `wanted` on gets one of `level`; an unknown
    level is neither wanted nor passed on."""
    if wanted not in LOG_LEVELS or level not in LOG_LEVELS:
        return False
    return LOG_LEVELS.index(wanted) <= LOG_LEVELS.index(level)


@dataclass(frozen=True, kw_only=True, slots=True)
class LogMessage:
    level: str
    """One of LOG_LEVELS."""
    data: Any
    """Any JSON value."""
    logger: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """Reports progress as an MCP server counts it: `value` of `total`, None if it is unknown."""

    value: float
    total: float | None
    message: str


def ignore_news(news: LogMessage | Progress) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class RunCaller:
    """The client that waits for a run, or will request its result, and what can be sent to it meanwhile."""

    capabilities: Mapping[str, Any]
    """MCP's client capabilities `elicitation`, `sampling` and `roots`, as far as the client has them."""
    ask: Callable[[dict[str, dict[str, Any]]], Awaitable[dict[str, dict[str, Any]]]]
    """Takes MCP requests, `{key: {"method", "params"}}`, and returns their results by the same keys, once the
    client has sent all of them. The caller of `start` bounds the wait."""
    key: str = ""
    """Identifies the client's user: callers with different keys must not see each other's messages."""
    log_level: str = ""
    """The least severe level of log messages that the client requested; empty: none."""
    log: Callable[[LogMessage], None] = ignore_news
    """Takes a log message of the run; drops it if the client is gone."""
    progress: Callable[[Progress], None] = ignore_news
    """Takes progress of the run as it comes; drops it if the client is gone. The record has the latest."""
    protocol_version: str = ""
    """Of MCP, as the client speaks it; empty for other clients."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GivenInput:
    """Holds what a client can be asked before it gets a prompt or a resource, and its answers so far."""

    capabilities: Mapping[str, Any]
    """As in RunCaller."""
    caller: str
    """As `key` in RunCaller."""
    responses: Mapping[str, Any] = field(default_factory=dict)
    """The results of the requests in the answer before, by their keys."""
    state: str | None = None
    """`requestState` of the answer before."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFilter:
    """Selects the runs of an engine to list; empty fields match all."""

    workflow: str = ""
    """The engine's name or id."""
    run: str = ""
    """A prefix of the run's id."""
    states: frozenset[RunState] = frozenset()
    started_after: datetime | None = None
    started_before: datetime | None = None
    engine_query: str = ""
    """A further condition in the engine's query language."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedRun:
    """A run in the engine's list, started by any client."""

    run_id: str
    workflow: str
    """The engine's name or id."""
    state: RunState
    told_state: str
    """The engine's name of the state."""
    key: UUID | None = None
    """The key of the start, if the list has it."""
    started_at: datetime | None = None
    finished_at: datetime | None = None
    details: dict[str, Any] = field(default_factory=dict)
    """Other JSON values of the list."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPage:
    runs: Sequence[ListedRun]
    next_cursor: str = ""
    """Empty on the last page."""


def read_offset(cursor: str) -> int:
    """Reads the cursor of an engine that lists from an offset. Raises Rejected."""
    if not cursor:
        return 0
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) <= len("1000000000")):
        raise Rejected("The cursor does not belong to this listing.")
    return int(cursor)


@dataclass(frozen=True, kw_only=True, slots=True)
class Delivery:
    """A request from an engine's webhook."""

    headers: Mapping[str, str]
    """By names in lower case."""
    body: bytes
    received_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportedEnd:
    """A run that has ended, as reported by a webhook; polling shows its result."""

    run_id: str
    workflow_id: str = ""
    """The engine's id of its workflow, where run ids are unique within a workflow only."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """Values that a server suggests for an argument."""

    values: Sequence[str] = ()
    total: int | None = None
    has_more: bool = False


class Connector(Protocol):
    """An engine behind one async protocol.

    Make one per source and event loop; it serves concurrent calls. Methods raise only ConnectorError for what
    the engine or the network did, and no error, log entry or repr contains a secret.
    """

    kind: ClassVar[str]
    label: ClassVar[str]
    """The admin's name of the kind."""
    Config: ClassVar[type[BaseModel]]
    """The source's settings: titles, descriptions, defaults and bounds make the admin's form.

    SecretStr fields are stored encrypted and never shown again. Mark fields that decide where those secrets
    are sent as `address` (`connectors.settings`): changing one requires entering the secrets again.
"""

    def __init__(self, config: Any) -> None: ...

    @property
    def capabilities(self) -> Capabilities: ...

    async def check(self) -> Health:
        """Make the cheapest call that proves address and credentials; never raises for a bad engine."""
        ...

    def discover(self) -> AsyncIterator[WorkflowDefinition | RejectedDefinition]:
        """Yield every entry of the engine's listing, in its order, also one that is listed twice. An unusable
        entry is yielded as rejected and does not end the listing."""
        ...

    async def start(
        self,
        workflow: WorkflowRef,
        arguments: dict[str, Any],
        *,
        key: UUID,
        report: ReportProgress = ignore_progress,
    ) -> Started:
        """Start one run. Raises OutcomeUnknown whenever the run may have been started. `report`: for the
        run's progress, from engines whose answer to the start is the result. Connectors with `asks_caller`
        also take `caller: RunCaller | None = None`."""
        ...

    async def poll(self, run: RunRef) -> RunSnapshot:
        """The run's state now. Raises NotFound for a run that the engine does not know, which after an
        accepted cancellation means that it was cancelled, and Unsupported if the engine reports no runs;
        without details that is final."""
        ...

    async def cancel(self, run: RunRef) -> None:
        """Request cancellation; polling shows the result. Raises Rejected for a run that has ended."""
        ...

    async def aclose(self) -> None:
        """Close all connections; no other method is called afterwards."""
        ...

    # The other methods are optional; the capabilities announce them.

    def capabilities_for(self, workflow: WorkflowRef) -> Capabilities:
        """Returns what the engine can do with this workflow; override it with `differ_by_workflow`."""
        return self.capabilities

    async def wait(self, run: RunRef, *, seconds: float) -> RunSnapshot:
        """The run once it has ended, or after `seconds`; may be cancelled. Raises what `poll` raises."""
        raise Unsupported("This engine does not report the end of a run.")

    async def terminate(self, run: RunRef) -> None:
        """End a run that ignores its cancellation. Raises what `cancel` raises."""
        raise Unsupported("This engine cannot terminate a run.")

    async def pause(self, run: RunRef) -> None:
        """Hold a running run; polling shows it. Of a paused one that is no error. Raises what `cancel`
        raises."""
        raise Unsupported("This engine cannot pause a run.")

    async def resume(self, run: RunRef) -> None:
        """Continue a paused run; of a running one that is no error. Raises what `cancel` raises."""
        raise Unsupported("This engine cannot resume a run.")

    async def retry(self, run: RunRef, *, key: UUID) -> Started:
        """Run the failed steps of an ended run again, as the engine's own run or another one. Raises what
        `start` raises: OutcomeUnknown whenever it may run again, Rejected for a run that did not fail."""
        raise Unsupported("This engine cannot run failed steps again.")

    async def find_retry(self, run: RunRef, *, key: UUID) -> Started | None:
        """The run that `retry` made of this one with this key. None only if the engine confirms that there
        is none."""
        raise Unsupported("This engine cannot look up a retry by its key.")

    async def query(self, run: RunRef, name: str, arguments: dict[str, Any]) -> Any:
        """A run's answer, also after its end: any JSON value. Changes nothing."""
        raise Unsupported("This engine's runs answer no queries.")

    async def signal(self, run: RunRef, name: str, arguments: dict[str, Any]) -> None:
        """Send a signal to a running run. Raises OutcomeUnknown whenever it may have been delivered."""
        raise Unsupported("This engine's runs accept no signals.")

    async def answer(self, run: RunRef, question_id: str, content: dict[str, Any]) -> None:
        """Answers a question of a run; `content` fits its schema. Raises NotFound if the engine does not, or
        no longer, ask it, Rejected with the engine's reason if it refuses the answer and still asks,
        OutcomeUnknown whenever the answer may have arrived, and Unreachable if it surely did not."""
        raise Unsupported("This engine's runs ask no questions.")

    async def list_runs(self, wanted: RunFilter, *, page_size: int, cursor: str = "") -> RunPage:
        """The engine's runs by any client, the latest first. Raises Rejected for a bad filter."""
        raise Unsupported("This engine cannot list its runs.")

    def read_delivery(self, delivery: Delivery) -> ReportedEnd | None:
        """The end that a webhook reports; None for a genuine delivery about anything else. Must be cheap:
        anyone can send deliveries. Raises NotGenuine, and InvalidAnswer for an unreadable genuine one."""
        raise Unsupported("This engine has no webhook.")

    def on_listing_changed(self, listener: Callable[[], None]) -> None:
        """Call `listener` on the connector's loop whenever the listing may have changed."""
        raise Unsupported("This engine does not announce changes of its listing.")

    def list_features(self) -> AsyncIterator[FeatureDefinition | RejectedDefinition]:
        """The server's prompts, resources and templates, like `discover`."""
        raise Unsupported("This engine has neither prompts nor resources.")

    async def get_prompt(
        self, name: str, arguments: Mapping[str, str], *, given: GivenInput | None = None
    ) -> dict[str, Any]:
        """The result of `prompts/get` as the server sends it; with `given`, perhaps one with the `resultType`
        "input_required", which only asks for what the client can answer."""
        raise Unsupported("This engine has no prompts.")

    async def read_resource(self, uri: str, *, given: GivenInput | None = None) -> dict[str, Any]:
        """The result of `resources/read` as the server sends it, as in `get_prompt`. Raises NotFound."""
        raise Unsupported("This engine has no resources.")

    async def complete(
        self, kind: FeatureKind, identifier: str, argument: str, typed: str, given: Mapping[str, str]
    ) -> Completion:
        """Values for the argument of a prompt, or the variable of a template, `identifier`. `given`: the
        other arguments."""
        raise Unsupported("This engine completes no arguments.")

    async def find_run(
        self, workflow: WorkflowRef, arguments: dict[str, Any], *, key: UUID
    ) -> Started | None:
        """The run that was started with this key, and with these arguments if run ids derive from them. None
        only if the engine confirms that there is none: the caller may then start the run again."""
        raise Unsupported("This engine cannot look up a run by its key.")


def capabilities_for(connector: Connector, workflow: WorkflowRef) -> Capabilities:
    of_all = connector.capabilities
    return connector.capabilities_for(workflow) if of_all.differ_by_workflow else of_all


async def with_result(ended: RunSnapshot, reading: Awaitable[Any], *, until: float) -> RunSnapshot:
    """The completed run with its result, or with the reason why it cannot be read. `until`: in loop time."""
    try:
        async with asyncio.timeout_at(until):
            return replace(ended, output=await reading)
    except TimeoutError:
        return replace(ended, unread=Unreachable("The engine did not send it in time."))
    except ConnectorError as error:
        return replace(ended, unread=error)


async def health_of(answer: Awaitable[str]) -> Health:
    """Await a sentence about the engine and time it; an error becomes an unhealthy answer."""
    started = time.perf_counter()
    try:
        message = await answer
    except ConnectorError as error:
        return Health(ok=False, message=error.message)
    return Health(ok=True, message=message, latency_seconds=time.perf_counter() - started)
