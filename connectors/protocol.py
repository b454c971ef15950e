"""The protocol that every engine connector speaks, and the values that cross it."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar, Protocol
from uuid import UUID

from pydantic import BaseModel, JsonValue

from connectors.definitions import RejectedDefinition, WorkflowDefinition
from connectors.errors import Unsupported

ADDRESS: dict[str, JsonValue] = {"address": True}


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
    """The run's state when the engine told it with the start; terminal for synchronous workflows."""
    raw: dict[str, Any] = field(default_factory=dict)


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

    Fields of type SecretStr are stored encrypted and never shown again. Fields with `ADDRESS` in
    `json_schema_extra` say where those secrets are sent: whoever changes one has to enter them again.
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

    async def start(self, workflow: WorkflowRef, arguments: dict[str, Any], *, key: UUID) -> Started:
        """Start one run. Raises OutcomeUnknown whenever the run may have been started."""
        ...

    async def poll(self, run: RunRef) -> RunSnapshot: ...

    async def cancel(self, run: RunRef) -> None:
        """Ask the engine to cancel; the state that results is learnt by polling.

        Raises Rejected when the run has already ended.
        """
        ...

    async def find_run(self, workflow: WorkflowRef, *, key: UUID) -> Started | None:
        """The run that was started with this key, None where the engine has none.

        Only called where `capabilities.can_find_runs`; a connector without it may leave it out. It says None
        only if the engine said so: whoever is told that may start the run once more.
        """
        raise Unsupported("This engine cannot look a run up by the key of its start.")

    async def aclose(self) -> None: ...
