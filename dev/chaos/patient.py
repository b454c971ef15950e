"""An engine that says by itself when a run ends: to whoever waits for it, or as the answer to its start."""

from typing import Any, ClassVar
from uuid import UUID

from connectors.protocol import (
    Capabilities,
    ReportProgress,
    RunRef,
    RunSnapshot,
    RunState,
    Started,
    WorkflowRef,
    ignore_progress,
)
from connectors.simplified import SimplifiedConnector


class WaitingConnector(SimplifiedConnector):
    """Waits for a run's end in a request that the engine answers when the run has moved."""

    kind: ClassVar[str] = "waiting"
    label: ClassVar[str] = "Waiting"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(can_wait=True, min_poll_seconds=0)

    async def wait(self, run: RunRef, *, seconds: float) -> RunSnapshot:
        return await self.poll(run)


class HoldingConnector(SimplifiedConnector):
    """Its start lasts as long as the run, whose result it answers with; breaking it off cancels the run."""

    kind: ClassVar[str] = "holding"
    label: ClassVar[str] = "Holding"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(cancellable_start=True)

    async def start(
        self,
        workflow: WorkflowRef,
        arguments: dict[str, Any],
        *,
        key: UUID,
        report: ReportProgress = ignore_progress,
    ) -> Started:
        started = await super().start(workflow, arguments, key=key)
        ended = RunSnapshot(state=RunState.COMPLETED, output={"answer": started.run_id})
        return Started(run_id=started.run_id, snapshot=ended)
