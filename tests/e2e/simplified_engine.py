"""An engine of the simplified API whose workflows a test lists; each answers from its input alone."""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

WORKFLOWS_PATH = "/api/v1/service/workflows"
RUN_PATH = WORKFLOWS_PATH + "/{workflow_id}/runs/{run_id}"
Arguments = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Fixture:
    """A workflow."""

    name: str
    description: str
    input_schema: dict[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})
    output_schema: dict[str, Any] | None = None
    answer: Callable[[Arguments], Any] = lambda _: "Done."
    error: str = ""
    """What the run fails with; empty when it succeeds."""
    is_asynchronous: bool = False
    seconds: Callable[[Arguments], float] = lambda _: 0.0
    """How long a run takes; a synchronous one is answered then."""

    def listed(self) -> dict[str, Any]:
        return {
            "id": self.name,
            "name": self.name,
            "description": self.description,
            "inputSchema": self.input_schema,
            "executionType": "async" if self.is_asynchronous else "sync",
            "metadata": {"outputSchema": self.output_schema} if self.output_schema else {},
        }


@dataclass
class Run:
    """A run is a function of the clock: nothing happens while it goes on."""

    fixture: Fixture
    input: Arguments
    started_at: float
    cancelled: bool = False

    def describe(self) -> dict[str, Any]:
        elapsed, length = time.time() - self.started_at, self.fixture.seconds(self.input)
        if self.cancelled:
            ended: dict[str, Any] = {"status": "CANCELLED"}
        elif elapsed < length:
            done = elapsed / length
            ended = {"status": "RUNNING", "progress": 100 * done, "progress_message": f"{done:.0%} done"}
        elif self.fixture.error:
            ended = {"status": "FAILED", "error": self.fixture.error}
        else:
            ended = {"status": "COMPLETED", "output": self.fixture.answer(self.input)}
        started = round(self.started_at * 1000)
        return {"workflow_id": self.fixture.name, "start_time": started, "input": self.input, **ended}


class Engine:
    """`before_start` is awaited before each run."""

    def __init__(
        self,
        workflows: Mapping[str, Fixture],
        before_start: Callable[[Fixture], Awaitable[None]] | None = None,
    ) -> None:
        self._workflows = workflows
        self._before_start = before_start
        self._runs: dict[str, Run] = {}

    def serve(self, url: str) -> None:
        """Until the process is ended, at an address like http://127.0.0.1:8090."""
        parts = urlsplit(url)
        assert parts.hostname and parts.port
        uvicorn.run(self.build_app(), host=parts.hostname, port=parts.port, log_level="warning")

    def build_app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/healthz", self.healthz),
                Route(WORKFLOWS_PATH, self.list_workflows),
                Route(WORKFLOWS_PATH + "/{workflow_id}/start", self.start, methods=["POST"]),
                Route(RUN_PATH + "/status", self.status),
                Route(RUN_PATH + "/cancel", self.cancel, methods=["POST"]),
            ]
        )

    async def healthz(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def list_workflows(self, request: Request) -> Response:
        return JSONResponse([fixture.listed() for fixture in self._workflows.values()])

    async def start(self, request: Request) -> Response:
        fixture = self._workflows[request.path_params["workflow_id"]]
        if self._before_start:
            await self._before_start(fixture)
        run_id = str(uuid.uuid4())
        self._runs[run_id] = run = Run(fixture, (await request.json())["input"], time.time())
        if not fixture.is_asynchronous:
            await asyncio.sleep(fixture.seconds(run.input))
        known = {} if fixture.is_asynchronous else run.describe()
        return JSONResponse(known | {"workflow_id": run_id, "correlation_id": f"run-{run_id}"})

    async def status(self, request: Request) -> Response:
        return JSONResponse(self._runs[request.path_params["run_id"]].describe())

    async def cancel(self, request: Request) -> Response:
        run = self._runs[request.path_params["run_id"]]
        run.cancelled = True
        return JSONResponse(run.describe())
