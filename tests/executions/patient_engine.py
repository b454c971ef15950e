"""Engines that say by themselves when a run ends: to whoever waits for it, or as the answer to its start."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar
from uuid import UUID

from pydantic import BaseModel

from connectors.errors import ConnectorError
from connectors.protocol import (
    Capabilities,
    Connector,
    Health,
    ReportProgress,
    RunRef,
    RunSnapshot,
    RunState,
    Started,
    WorkflowRef,
    ignore_progress,
)

TICK_SECONDS = 0.005
GOES_ON = RunSnapshot(state=RunState.RUNNING)


@dataclass
class PatientEngine:
    """One run, which a test moves and a connector looks at."""

    now: RunSnapshot = GOES_ON
    failure: ConnectorError | None = None
    """What every call raises, while it is set."""
    calls: list[tuple[str, float]] = field(default_factory=list)
    """The connector's methods that were called, and when by time.monotonic()."""
    on_cancel: Callable[[], None] = lambda: None
    on_terminate: Callable[[], None] = lambda: None
    terminates_after: float | None = None
    waits: bool = True
    """Whether it keeps whoever waits until something happens."""
    survives: bool = False
    """Whether a start that is broken off answers all the same."""

    def count(self, name: str) -> int:
        return [called for called, _ in self.calls].count(name)

    def complete(self, output: Any = "done") -> None:
        self.now = RunSnapshot(state=RunState.COMPLETED, output=output)

    def tell(self, progress: float, message: str) -> None:
        self.now = RunSnapshot(state=RunState.RUNNING, progress=progress, progress_message=message)

    def be_cancelled(self) -> None:
        self.now = RunSnapshot(state=RunState.CANCELLED)

    @property
    def keeps_waiting(self) -> bool:
        return self.waits and self.failure is None and self.now.state is RunState.RUNNING

    def answer(self, name: str) -> RunSnapshot:
        self.calls.append((name, time.monotonic()))
        if self.failure is not None:
            raise self.failure
        return self.now


class NoSettings(BaseModel):
    pass


engine = PatientEngine()
"""The engine of the test that is running."""


def renew() -> PatientEngine:
    global engine
    engine = PatientEngine()
    return engine


class _PatientConnector(Connector):
    Config: ClassVar[type[BaseModel]] = NoSettings

    def __init__(self, config: NoSettings) -> None:
        pass

    async def check(self) -> Health:
        return Health(ok=True, message="It has time.")

    async def discover(self) -> AsyncIterator[Any]:
        for nothing in ():
            yield nothing

    async def cancel(self, run: RunRef) -> None:
        engine.answer("cancel")
        engine.on_cancel()

    async def poll(self, run: RunRef) -> RunSnapshot:
        return engine.answer("poll")

    async def aclose(self) -> None:
        return


class WaitingConnector(_PatientConnector):
    """It may be polled once a minute, and keeps whoever waits until the run has ended."""

    kind: ClassVar[str] = "waiting"
    label: ClassVar[str] = "Waiting"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            can_cancel=True,
            can_wait=True,
            min_poll_seconds=60 if engine.waits else 0.2,
            terminates_after_seconds=engine.terminates_after,
        )

    async def start(
        self,
        workflow: WorkflowRef,
        arguments: dict[str, Any],
        *,
        key: UUID,
        report: ReportProgress = ignore_progress,
    ) -> Started:
        engine.answer("start")
        return Started(run_id="run-1")

    async def wait(self, run: RunRef, *, seconds: float) -> RunSnapshot:
        engine.answer("wait")
        try:
            async with asyncio.timeout(seconds):
                while engine.keeps_waiting:  # noqa: ASYNC110 - tests move it from other threads
                    await asyncio.sleep(TICK_SECONDS)
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            engine.answer("wait broken off")
            raise
        if engine.failure is not None:
            raise engine.failure
        return engine.now

    async def terminate(self, run: RunRef) -> None:
        engine.answer("terminate")
        engine.on_terminate()


class HoldingConnector(_PatientConnector):
    """Its answer to the start is the result; breaking the start off cancels the run."""

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
        engine.answer("start")
        try:
            while engine.now.state is RunState.RUNNING:
                report(engine.now)
                await asyncio.sleep(TICK_SECONDS)
        except asyncio.CancelledError:
            engine.answer("broken off")
            if not engine.survives:
                raise
            engine.complete("in the last moment")
        return Started(run_id=str(key), snapshot=engine.now)
