"""The protocol that every engine connector speaks, and the values that cross it."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar, Protocol
from uuid import UUID

from pydantic import BaseModel

from connectors.definitions import RejectedDefinition, WorkflowDefinition
from connectors.errors import ConnectorError, Unsupported


@dataclass(frozen=True, kw_only=True, slots=True)
class Capabilities:
    """What an engine can do with the settings at hand."""

    idempotent_start: bool = False
    """Starting twice with one key starts one run."""
    can_cancel: bool = False
    can_find_runs: bool = False
    """Runs can be looked up by the key that they were started with."""
    min_poll_seconds: float = 1.0
    """Never ask for one run's status more often than this."""
    status_is_optional: bool = False
    """The engine's API may lack a way to ask about runs: "not found" need not mean that the run is gone."""
    can_wait: bool = False
    """`wait` hears of a run's end as it happens."""
    starts_can_be_broken_off: bool = False
    """The answer to a start is the run's result, and cancelling the task that awaits it cancels the run."""
    terminates_after_seconds: float | None = None
    """A run that goes on so long after it was to be cancelled is ended by `terminate`; None: never."""
    can_query: bool = False
    can_signal: bool = False
    can_list_runs: bool = False
    lists_workflows: bool = True
    """`discover` asks the engine; False: the workflows are declared here, and `discover` yields nothing."""
    keeps_runs: bool = True
    """A run can be asked about later; False: the answer to its start was all that there is."""
    tells_of_changes: bool = False
    """The engine says by itself when its listing has changed."""
    differ_by_workflow: bool = False
    """What is said here of runs holds for some workflows only: `capabilities_for` says for which."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Health:
    """The answer to "can we talk to this engine?"."""

    ok: bool
    message: str
    """One sentence for the admin: what answered, or the engine's own words of refusal."""
    latency_seconds: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkflowRef:
    """What a connector needs to start a workflow; never a database row."""

    id: str
    """The engine's own id."""
    name: str
    metadata: dict[str, Any] = field(default_factory=dict)
    """The engine-specific part of the definition, as discovered."""
    timeout_seconds: float | None = None
    """How long a run of it may take; who starts it sees to that, engines may do so as well."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRef:
    """One run at the engine."""

    workflow: WorkflowRef
    run_id: str
    key: UUID
    """The key that the run was started with."""


class RunState(StrEnum):
    """The states that engines' own states map to."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSnapshot:
    """A run as the engine showed it at one moment."""

    state: RunState
    output: Any = None
    """Any JSON value; meaningful once the run is completed (some engines also fill it on failure)."""
    error: str = ""
    """The engine's words for a failure or cancellation, fit for a user."""
    content: Sequence[dict[str, Any]] | None = None
    """MCP's content blocks, from engines that answer with such; `output` is then what programs read."""
    needs_operator: bool = False
    """The credentials or settings made it fail, so that no other arguments would help."""
    depends_on_arguments: bool = True
    """Other arguments may help; False where surely none do."""
    may_have_effect: bool = False
    """It failed after it may have taken effect, so that repeating it could have that effect twice."""
    progress: float | None = None
    """Percent, 0 to 100; None when the engine does not say."""
    progress_message: str = ""
    created_at: datetime | None = None
    started_at: datetime | None = None
    updated_at: datetime | None = None
    finished_at: datetime | None = None
    raw: dict[str, Any] = field(default_factory=dict)
    """The engine's whole answer, kept for the record."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Started:
    """The engine took the start."""

    run_id: str
    correlation_id: str = ""
    snapshot: RunSnapshot | None = None
    """The run's state, where the answer to the start has it; terminal for synchronous workflows."""
    raw: dict[str, Any] = field(default_factory=dict)


ReportProgress = Callable[[RunSnapshot], None]
"""Receives a run's progress. Cheap, and never raises: call it for each message of the engine."""


def ignore_progress(snapshot: RunSnapshot) -> None:
    """For callers that need no progress."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFilter:
    """Which of an engine's runs to list; what is left empty does not matter."""

    workflow: str = ""
    """The engine's name or id of the workflow."""
    run: str = ""
    """What the run's id begins with."""
    states: frozenset[RunState] = frozenset()
    started_after: datetime | None = None
    started_before: datetime | None = None
    engine_query: str = ""
    """A condition in the engine's own query language, in addition."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedRun:
    """A run in the engine's own list, also one that was not started by this product."""

    run_id: str
    workflow: str
    """The engine's name or id of the workflow."""
    state: RunState
    told_state: str
    """The engine's own word for the state."""
    key: UUID | None = None
    """The key that the run was started with, where the list has it."""
    started_at: datetime | None = None
    finished_at: datetime | None = None
    details: dict[str, Any] = field(default_factory=dict)
    """Everything else in the list, as JSON values."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPage:
    runs: Sequence[ListedRun]
    next_cursor: str = ""
    """Empty on the last page."""


class Connector(Protocol):
    """One engine behind one small async protocol.

    A connector is made once per source and event loop and serves many concurrent calls.
    Every method raises only `connectors.errors.ConnectorError` subclasses for what the engine or the
    network did; nothing it raises, logs or shows in its repr contains a secret.
    """

    kind: ClassVar[str]
    label: ClassVar[str]
    """What an admin reads in the list of kinds."""
    Config: ClassVar[type[BaseModel]]
    """The source's settings.

    Titles, descriptions, defaults and bounds make the admin's form. Fields of type SecretStr are stored
    encrypted and never shown again. `connectors.settings` has what else can be said of a field: above all
    that it is an `address`, to which those secrets are sent; changing one requires entering them again.
    """

    def __init__(self, config: Any) -> None: ...

    @property
    def capabilities(self) -> Capabilities: ...

    async def check(self) -> Health:
        """Try the cheapest call that proves address and credentials; never raises for a bad engine."""
        ...

    def discover(self) -> AsyncIterator[WorkflowDefinition | RejectedDefinition]:
        """Yield every object of the engine's listing, in its order.

        One that is no usable workflow is yielded as rejected and never ends it; one that is listed twice is
        yielded twice.
        """
        ...

    async def start(
        self,
        workflow: WorkflowRef,
        arguments: dict[str, Any],
        *,
        key: UUID,
        report: ReportProgress = ignore_progress,
    ) -> Started:
        """Start one run. Raises OutcomeUnknown whenever the run may have been started.

        `report` is for engines whose answer to the start is the result: it hears of the run meanwhile.
        """
        ...

    async def poll(self, run: RunRef) -> RunSnapshot:
        """The run as it is now.

        Raises NotFound for a run that the engine does not know, Unsupported where it reports no runs;
        without details that is final.
        """
        ...

    async def cancel(self, run: RunRef) -> None:
        """Ask the engine to cancel; the state that results is learnt by polling.

        Raises Rejected when the run has already ended.
        """
        ...

    async def aclose(self) -> None:
        """Close all connections; no other method is called after this."""
        ...

    # The rest is for connectors whose capabilities say so; the others may leave it out.

    def capabilities_for(self, workflow: WorkflowRef) -> Capabilities:
        """For connectors that run some workflows in one way and some in another."""
        return self.capabilities

    async def wait(self, run: RunRef, *, seconds: float) -> RunSnapshot:
        """The run as soon as it has ended, or as it is after `seconds`. Raises what `poll` raises.

        It may be cancelled at any time.
        """
        raise Unsupported("This engine does not say by itself when a run ends.")

    async def terminate(self, run: RunRef) -> None:
        """End a run that does not follow its cancellation. Raises what `cancel` raises."""
        raise Unsupported("This engine cannot terminate a run.")

    async def query(self, run: RunRef, name: str, arguments: dict[str, Any]) -> Any:
        """The answer of a run, running or ended, to a query: any JSON value. Changes nothing."""
        raise Unsupported("This engine's runs cannot be asked anything.")

    async def signal(self, run: RunRef, name: str, arguments: dict[str, Any]) -> None:
        """Send a signal to a running run. Raises OutcomeUnknown whenever it may have been delivered."""
        raise Unsupported("This engine's runs cannot be told anything.")

    async def list_runs(self, wanted: RunFilter, *, page_size: int, cursor: str = "") -> RunPage:
        """Runs of the engine, the latest first, by any client. Raises Rejected for a bad filter."""
        raise Unsupported("This engine cannot list its runs.")

    def tell_of_changes(self, listener: Callable[[], None]) -> None:
        """Call `listener`, on the loop of the connector, whenever the listing may have changed."""
        raise Unsupported("This engine does not say when its listing changes.")

    async def find_run(
        self, workflow: WorkflowRef, arguments: dict[str, Any], *, key: UUID
    ) -> Started | None:
        """The run that was started with this key and these arguments, None where the engine has none.

        `arguments` are those of the start, for engines whose run ids are derived from them. None only if the
        engine confirms that there is none: the caller may then start the run again.
        """
        raise Unsupported("This engine cannot look a run up by the key of its start.")


def capabilities_for(connector: Connector, workflow: WorkflowRef) -> Capabilities:
    """What holds for the runs of this workflow."""
    of_all = connector.capabilities
    return connector.capabilities_for(workflow) if of_all.differ_by_workflow else of_all


async def health_of(answer: Awaitable[str]) -> Health:
    """Await a sentence about the engine, and time it; an error's message is that of the Health."""
    started = time.perf_counter()
    try:
        message = await answer
    except ConnectorError as error:
        return Health(ok=False, message=error.message)
    return Health(ok=True, message=message, latency_seconds=time.perf_counter() - started)
