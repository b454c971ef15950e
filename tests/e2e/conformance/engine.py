"""An engine whose workflows have the names that the official conformance suite calls.

    python -m tests.e2e.conformance.engine --listen URL --product URL --token-file FILE

It speaks the simplified workflow API. The token lets it do, by REST, what a curator does when the suite asks
for a list to change.
"""

import argparse
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests import plain_http
from tests.e2e.conformance.workflows import CHANGING, WORKFLOWS, Fixture

WORKFLOWS_PATH = "/api/v1/service/workflows"
RUN_PATH = WORKFLOWS_PATH + "/{workflow_id}/runs/{run_id}"
Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass
class Run:
    """A run is a function of the clock: nothing happens while it goes on."""

    fixture: Fixture
    input: dict[str, Any]
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
    def __init__(self, product: str, token_file: Path) -> None:
        self._product = product
        self._token_file = token_file
        self._runs: dict[str, Run] = {}
        self._shown = True

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
        return JSONResponse([fixture.listed() for fixture in WORKFLOWS.values()])

    async def start(self, request: Request) -> Response:
        fixture = WORKFLOWS[request.path_params["workflow_id"]]
        if fixture.changes_the_lists:
            await self._turn_a_workflow_on_or_off()
        run_id = str(uuid.uuid4())
        self._runs[run_id] = run = Run(fixture, (await request.json())["input"], time.time())
        known = {} if fixture.is_asynchronous else run.describe()
        return JSONResponse(known | {"workflow_id": run_id, "correlation_id": f"run-{run_id}"})

    async def status(self, request: Request) -> Response:
        return JSONResponse(self._runs[request.path_params["run_id"]].describe())

    async def cancel(self, request: Request) -> Response:
        run = self._runs[request.path_params["run_id"]]
        run.cancelled = True
        return JSONResponse(run.describe())

    async def _turn_a_workflow_on_or_off(self) -> None:
        self._shown = not self._shown
        verb = "enable" if self._shown else "disable"
        headers = {"authorization": f"Bearer {self._token_file.read_text().strip()}"}
        async with plain_http.AsyncClient(headers=headers) as client:
            answer = await client.post(f"{self._product}/api/workflows/{CHANGING}/{verb}/")
        answer.raise_for_status()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--listen", type=urlsplit, required=True)
    parser.add_argument("--product", required=True)
    parser.add_argument("--token-file", type=Path, required=True)
    chosen = parser.parse_args()
    app = Engine(chosen.product, chosen.token_file).build_app()
    uvicorn.run(app, host=chosen.listen.hostname, port=chosen.listen.port, log_level="warning")


if __name__ == "__main__":
    main()
