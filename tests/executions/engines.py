"""Engines for these tests: one whose every answer a test decides on the wire, and one with bugs."""

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar
from uuid import UUID

import httpx2
from django.db import connection
from pydantic import BaseModel

from connectors.protocol import (
    Capabilities,
    Health,
    ReportProgress,
    RunRef,
    RunSnapshot,
    RunState,
    Started,
    WorkflowRef,
    ignore_progress,
)
from tests import plain_http
from tests.connectors.scripted import Behaviour, Received, replies, response
from tests.engines.hostile_servers import hostile
from tests.processes import ExampleEngine

PATIENCE_SECONDS = 60.0
WORKFLOW_ID = "2724"
RUN_ID = "8f496b6a-c905-41bb-b7b7-200a8982ab30"


def wait_until(condition: Callable[[], Any], what: str = "") -> Any:
    """The condition's first true value; an error after a while."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.01)
    raise AssertionError(f"never true: {what or condition}")


async def until(condition: Callable[[], Any], what: str = "") -> Any:
    """The same without holding up the event loop; the condition may ask the database."""
    return await in_thread(wait_until, condition, what)


async def in_thread(work: Callable[..., Any], *args: Any) -> Any:
    """Work that may ask the database, in a thread whose connection goes back to the pool afterwards."""

    def work_and_close() -> Any:
        try:
            return work(*args)
        finally:
            connection.close()

    return await asyncio.to_thread(work_and_close)


def receipt(run_id: str = RUN_ID, **more: Any) -> dict[str, Any]:
    """The answer to a start, as B1 has it."""
    return {"correlation_id": f"{WORKFLOW_ID}_{run_id[:8]}", "workflow_id": run_id} | more


def status(state: str = "RUNNING", **more: Any) -> dict[str, Any]:
    """The answer to a status request, as B2 has it."""
    return {
        "create_time": 1_790_000_000_000,
        "update_time": 1_790_000_002_000,
        "start_time": 1_790_000_001_000,
        "status": state,
        "workflow_id": WORKFLOW_ID,
        "input": {"context": {}},
        "output": None,
    } | more


def completed(output: Any = None, **more: Any) -> dict[str, Any]:
    return status("COMPLETED", output={"answer": 42} if output is None else output) | {
        "end_time": 1_790_000_004_500
    } | more  # fmt: skip


@dataclass(frozen=True)
class Request:
    kind: str
    """`start`, `status`, `cancel`, `workflows`, the listing, or `runs`, the lookup by key."""
    at: float
    """When it had arrived, by time.monotonic()."""
    received: Received

    @property
    def key(self) -> str:
        return self.received.headers.get("idempotency-key", "")


class Gate:
    """Keeps every request that meets it until the test opens it, then lets the behaviour answer."""

    def __init__(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour
        self._opened = threading.Event()
        self.met = threading.Event()

    async def __call__(self, request: Received, writer: asyncio.StreamWriter) -> None:
        self.met.set()
        await asyncio.to_thread(self._opened.wait, PATIENCE_SECONDS)
        await self._behaviour(request, writer)

    def open(self) -> None:
        self._opened.set()

    def wait_for_request(self) -> None:
        assert self.met.wait(PATIENCE_SECONDS), "no request came"

    async def request(self) -> None:
        await asyncio.to_thread(self.wait_for_request)

    async def keep(self, call: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Begin the call, and return its task once its request is kept waiting."""
        task = asyncio.create_task(call)
        await self.request()
        return task


def in_turn(*behaviours: Behaviour) -> Behaviour:
    """One after the other; the last one from then on."""
    following = itertools.chain(behaviours, itertools.repeat(behaviours[-1]))

    async def behave(request: Received, writer: asyncio.StreamWriter) -> None:
        await next(following)(request, writer)

    return behave


@dataclass
class WireEngine:
    """An engine of the simplified API that does on the wire what the test says, in a thread of its own."""

    on_start: Behaviour = field(default_factory=lambda: replies(200, receipt()))
    on_status: Behaviour = field(default_factory=lambda: replies(200, status()))
    on_cancel: Behaviour = field(default_factory=lambda: replies(200, status("CANCELLED")))
    on_lookup: Behaviour = field(default_factory=lambda: replies(200, {"runs": []}))
    on_answer: Behaviour = field(default_factory=lambda: replies(404))
    on_listing: Behaviour = field(default_factory=lambda: replies(503))
    """Its workflows stay those that the test made."""
    others: dict[str, Behaviour] = field(default_factory=dict)
    """Of requests by kind, beside or instead of these."""
    requests: list[Request] = field(default_factory=list)
    base_url: str = ""

    def asked(self, kind: str) -> list[Request]:
        return [request for request in self.requests if request.kind == kind]

    def count(self, kind: str) -> int:
        return len(self.asked(kind))

    async def behave(self, received: Received, writer: asyncio.StreamWriter) -> None:
        kind = received.target.partition("?")[0].rpartition("/")[2]
        self.requests.append(Request(kind, time.monotonic(), received))
        behaviours = {
            "start": self.on_start,
            "status": self.on_status,
            "cancel": self.on_cancel,
            "runs": self.on_lookup,
            "answer": self.on_answer,
            "workflows": self.on_listing,
        }
        await (behaviours | self.others)[kind](received, writer)


@contextmanager
def running_wire_engine() -> Iterator[WireEngine]:
    engine = WireEngine()
    with hostile(engine.behave) as scripted:
        engine.base_url = scripted.base_url
        yield engine


def relays(engine: ExampleEngine, *, answers: bool = True) -> Behaviour:
    """Pass every request on to a real engine; without `answers`, cut the connection once it has it."""

    def pass_on(request: Received) -> httpx2.Response:
        wanted = ("authorization", "content-type", "idempotency-key")
        headers = {name: request.headers[name] for name in wanted if name in request.headers}
        return plain_http.request(
            request.method,
            engine.base_url + request.target,
            content=request.body,
            headers=headers,
        )

    async def behave(request: Received, writer: asyncio.StreamWriter) -> None:
        answer = await asyncio.to_thread(pass_on, request)
        if answers:
            writer.write(response(answer.status_code, answer.content))
        else:
            writer.close()

    return behave


BAD_VALUES: dict[str, dict[str, Any]] = {
    "a state": {"state": "done"},
    "a time": {"finished_at": datetime(2026, 11, 26, 9, 30)},  # noqa: DTZ001 - the bug
    "a progress": {"state": RunState.RUNNING, "progress": "50 %"},
    "an output": {"output": {"rate": float("nan")}},
    "a raw answer": {"raw": {"rate": float("inf")}},
}


class ClumsyConnector:
    """A connector with bugs: what its settings name raises an error that no connector may raise, or is wrong
    in what it returns of a run."""

    kind: ClassVar[str] = "clumsy"
    label: ClassVar[str] = "Clumsy"

    class Config(BaseModel):
        stumbles_over: str
        idempotent: bool = False

    def __init__(self, config: "ClumsyConnector.Config") -> None:
        self._config = config
        self._stumble("making")

    def _stumble(self, what: str) -> None:
        if self._config.stumbles_over == what:
            raise KeyError(f"a bug in {what}")
        if self._config.stumbles_over == f"{what}, and exits":
            raise SystemExit(f"a bug in {what}")

    @property
    def capabilities(self) -> Capabilities:
        self._stumble("capabilities")
        return Capabilities(idempotent_start=self._config.idempotent, can_cancel=True)

    async def check(self) -> Health:
        return Health(ok=True, message="")

    async def discover(self) -> Any:
        return
        yield

    async def start(
        self,
        workflow: WorkflowRef,
        arguments: dict[str, Any],
        *,
        key: UUID,
        report: ReportProgress = ignore_progress,
    ) -> Any:
        self._stumble("start")
        return "run-1" if self._config.stumbles_over == "a receipt" else Started(run_id="run-1")

    async def poll(self, run: RunRef) -> Any:
        self._stumble("poll")
        if self._config.stumbles_over == "a snapshot":
            return {"state": "done"}
        if self._config.stumbles_over == "a percentage":
            return RunSnapshot(state=RunState.RUNNING, progress=1234.0)
        if bad := BAD_VALUES.get(self._config.stumbles_over):
            return RunSnapshot(**{"state": RunState.COMPLETED, "output": 7} | bad)
        raise AssertionError("never asked")

    async def cancel(self, run: RunRef) -> None:
        self._stumble("cancel")

    async def aclose(self) -> None:
        pass
