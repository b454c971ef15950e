"""An engine whose runs answer and listen as a test says, to whatever is asked of them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar
from uuid import UUID

import pytest
from pydantic import BaseModel

from catalogue.models import Source, Workflow
from connectors.protocol import (
    Capabilities,
    Connector,
    Health,
    ListedRun,
    ReportProgress,
    RunFilter,
    RunPage,
    RunRef,
    RunSnapshot,
    RunState,
    Started,
    WorkflowRef,
    ignore_progress,
)
from connectors.registry import BUILT_IN
from tests.factories import make_workflow

TEXT = {
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
    "additionalProperties": False,
}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
QUERIES = [
    {"name": "progress", "description": "How far it is.", "inputSchema": NOTHING},
    {"name": "count", "description": "How often a text came.", "inputSchema": TEXT},
]
SIGNALS = [{"name": "approve", "description": "Lets it go on.", "inputSchema": TEXT}]
ABLE = Capabilities(can_query=True, can_signal=True, can_list_runs=True)
EMPTY = RunPage(runs=())


@dataclass
class TalkativeEngine:
    capabilities: Capabilities = ABLE
    answer: Any = 42
    """What a query is answered with; an exception is raised, a function is called."""
    heard: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    """Run, name and arguments of each query and signal that came."""
    page: RunPage = EMPTY
    asked_for: list[tuple[RunFilter, int, str]] = field(default_factory=list)

    async def reply(self) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        answer = self.answer() if isinstance(self.answer, Callable) else self.answer
        return await answer if asyncio.iscoroutine(answer) else answer

    def list(self, *runs: ListedRun, next_cursor: str = "") -> None:
        self.page = RunPage(runs=runs, next_cursor=next_cursor)


engine = TalkativeEngine()
"""The engine of the test that is running."""


def renew() -> TalkativeEngine:
    global engine
    engine = TalkativeEngine()
    return engine


@pytest.fixture
def talker(monkeypatch: pytest.MonkeyPatch) -> TalkativeEngine:
    """Import this name, and the next one, into the test module that wants them."""
    monkeypatch.setitem(BUILT_IN, "talkative", "tests.executions.talkative:TalkativeConnector")
    return renew()


@pytest.fixture
def review(talker: TalkativeEngine) -> Workflow:
    """A workflow of that engine with two queries and a signal."""
    source = Source.objects.create(name="talkative", kind="talkative")
    return make_workflow(source, name="review", queries=QUERIES, signals=SIGNALS)


class TalkativeConnector(Connector):
    kind: ClassVar[str] = "talkative"
    label: ClassVar[str] = "Talkative"

    class Config(BaseModel):
        pass

    def __init__(self, config: Any) -> None:
        pass

    @property
    def capabilities(self) -> Capabilities:
        return engine.capabilities

    async def check(self) -> Health:
        return Health(ok=True, message="")

    async def discover(self) -> AsyncIterator[Any]:
        for nothing in ():
            yield nothing

    async def start(
        self,
        workflow: WorkflowRef,
        arguments: dict[str, Any],
        *,
        key: UUID,
        report: ReportProgress = ignore_progress,
    ) -> Started:
        return Started(run_id=f"run-of-{key}")

    async def poll(self, run: RunRef) -> RunSnapshot:
        return RunSnapshot(state=RunState.RUNNING)

    async def cancel(self, run: RunRef) -> None:
        return

    async def query(self, run: RunRef, name: str, arguments: dict[str, Any]) -> Any:
        engine.heard.append((run.run_id, name, arguments))
        return await engine.reply()

    async def signal(self, run: RunRef, name: str, arguments: dict[str, Any]) -> None:
        engine.heard.append((run.run_id, name, arguments))
        await engine.reply()

    async def list_runs(self, wanted: RunFilter, *, page_size: int, cursor: str = "") -> RunPage:
        engine.asked_for.append((wanted, page_size, cursor))
        await engine.reply()
        return engine.page

    async def aclose(self) -> None:
        return
