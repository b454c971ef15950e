"""What our layer adds to a run, against each engine's own client (goal: 25 ms at its start, p95)."""

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
from mcp.client import Client as McpClient
from temporalio.client import Client as TemporalClient

from connectors.testing import free_port
from dev.benchmarks._figures import milliseconds, percentile, table
from dev.benchmarks._processes import McpServer, catalogue_server, own_database
from dev.benchmarks.calls import META, VERSION
from tests.engines.prefect.server import AUTH, BUSY_TRIES, ENVIRONMENT, running_prefect
from tests.engines.temporal.server import TASK_QUEUE, running_server, running_worker
from tests.processes import running

GOAL_START_SECONDS = 0.025
GOAL_END_SECONDS = 0.05
POLL_SECONDS = 1.0
"""Between two looks at a run of an engine that has to be asked."""
GOAL_POLLED_END_SECONDS = POLL_SECONDS + 0.1
WARM_UP = 5
RUNS = 60
BUSY_SECONDS = 0.1
PREFECT_WARM_UP = 1
PREFECT_RUNS = 6
"""Each takes seconds, however short its flow is."""
LASTS_SECONDS = 0.1


@dataclass(frozen=True)
class Times:
    """One run, by this machine's clock."""

    sent: float
    taken: float
    """When the engine had it."""
    ended: float
    """When the engine was done with it."""
    heard: float
    """When its caller had the result."""


Run = Callable[[], Awaitable[Times]]


@dataclass(frozen=True)
class Measured:
    engine: str
    goal_end_seconds: float
    ours: list[Times] = field(default_factory=list)
    theirs: list[Times] = field(default_factory=list)

    async def measure(
        self, *, ours: Run, theirs: Run, runs: int = RUNS, warm_up: int = WARM_UP
    ) -> "Measured":
        """In turns, so that a busy machine disturbs both."""
        for number in range(warm_up + runs):
            for run, times in ((theirs, self.theirs), (ours, self.ours)):
                one = await run()
                if number >= warm_up:
                    times.append(one)
        return self


class ProductClient:
    """Calls tools of the product's web server and gives their structured results."""

    def __init__(self, server: McpServer, client: httpx2.AsyncClient) -> None:
        self._server, self._client = server, client

    async def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        headers = {
            "accept": "application/json, text/event-stream",
            "authorization": f"Bearer {self._server.token}",
            "mcp-protocol-version": VERSION,
            "mcp-method": "tools/call",
            "mcp-name": name,
        }
        params = {"_meta": META, "name": name, "arguments": arguments}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        answer = await self._client.post(self._server.url, json=body, headers=headers, timeout=60)
        result: dict[str, Any] = answer.raise_for_status().json()["result"]
        assert not result.get("isError"), result
        return result


Measuring = Callable[[ProductClient], Awaitable[Measured]]
"""Measures one engine, with the product's web server as it is."""


def connect(kind: str, config: dict[str, Any], credentials: dict[str, str] | None = None) -> dict[str, str]:
    """A source of this kind, listed, with all that it has enabled: the tools by the engine's names."""
    from catalogue.actions.sources import create_source
    from catalogue.actions.workflows import enable_workflows
    from catalogue.discovery import refresh_source
    from catalogue.models import Workflow

    source = create_source(name=kind, kind=kind, config=config, credentials=credentials or {})
    run = refresh_source(source)
    assert run.added, run.error
    workflows = Workflow.objects.filter(source=source)
    enable_workflows(workflows)
    return dict(workflows.values_list("name", "tool_name"))


@contextmanager
def temporal(folder: Path) -> Iterator[Measuring]:
    async def look(client: TemporalClient, run: str, sent: float, heard: float) -> Times:
        seen = await client.get_workflow_handle(run).describe()
        assert seen.close_time is not None
        return Times(sent, seen.start_time.timestamp(), seen.close_time.timestamp(), heard)

    async def measure(product: ProductClient) -> Measured:
        client = await TemporalClient.connect(server.address)

        async def ours() -> Times:
            sent = time.time()
            result = await product.call("Later", {"seconds": LASTS_SECONDS})
            return await look(client, execution_of(result), sent, time.time())

        async def theirs() -> Times:
            run, sent = str(uuid4()), time.time()
            arguments = {"seconds": LASTS_SECONDS}
            await client.execute_workflow("Later", arguments, id=run, task_queue=TASK_QUEUE)
            return await look(client, run, sent, time.time())

        return await Measured("Temporal", GOAL_END_SECONDS).measure(ours=ours, theirs=theirs)

    with running_server(folder) as server, running_worker(server):
        connect("temporal", {"host_port": server.address, "definitions": json.dumps(DEFINITIONS)})
        yield measure


@contextmanager
def mcp_server(folder: Path) -> Iterator[Measuring]:
    def times(sent: float, text: str) -> Times:
        taken, ended = map(float, text.split())
        return Times(sent, taken, ended, time.time())

    async def measure(product: ProductClient) -> Measured:
        arguments = {"seconds": LASTS_SECONDS}
        async with McpClient(f"{address}/mcp", cache=None) as client:

            async def ours() -> Times:
                sent = time.time()
                result = await product.call("timed", arguments)
                return times(sent, result["content"][0]["text"])

            async def theirs() -> Times:
                sent = time.time()
                result = await client.call_tool("timed", arguments)
                return times(sent, result.content[0].text)

            return await Measured("MCP server", GOAL_END_SECONDS).measure(ours=ours, theirs=theirs)

    port = free_port()
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "dev.benchmarks._timed_upstream", str(port)]
    with running(command, answers_at=f"{address}/ready", log=folder / "upstream.log"):
        connect("mcp", {"url": f"{address}/mcp"})
        yield measure


@contextmanager
def prefect(folder: Path) -> Iterator[Measuring]:
    async def look(client: httpx2.AsyncClient, wanted: dict[str, Any]) -> dict[str, Any]:
        (run,) = await ask_prefect(client, "/flow_runs/filter", {"flow_runs": wanted})
        return dict(run)

    def times(run: dict[str, Any], sent: float, heard: float) -> Times:
        taken, ended = (datetime.fromisoformat(run[name]).timestamp() for name in ("created", "end_time"))
        return Times(sent, taken, ended, heard)

    async def measure(product: ProductClient) -> Measured:
        user, _, password = AUTH.partition(":")
        async with httpx2.AsyncClient(
            base_url=server.base_url, auth=(user, password), trust_env=False, timeout=30
        ) as client:

            async def ours() -> Times:
                sent = time.time()
                result = await product.call(tool, {"name": "you"})
                heard = time.time()
                run = await look(client, {"idempotency_key": {"any_": [execution_of(result)]}})
                return times(run, sent, heard)

            async def theirs() -> Times:
                sent = time.time()
                path, body = f"/deployments/{deployment}/create_flow_run", {"parameters": {"name": "you"}}
                run = await ask_prefect(client, path, body)
                while run["state_type"] != "COMPLETED":
                    await asyncio.sleep(POLL_SECONDS)
                    run = await look(client, {"id": {"any_": [run["id"]]}})
                return times(run, sent, time.time())

            found = Measured("Prefect", GOAL_POLLED_END_SECONDS)
            return await found.measure(ours=ours, theirs=theirs, runs=PREFECT_RUNS, warm_up=PREFECT_WARM_UP)

    with running_prefect(folder) as server:
        deployment = server.deployments()["plain"]
        tool = connect("prefect", {"base_url": server.base_url}, {"auth_string": AUTH})["greet/plain"]
        yield measure


async def ask_prefect(client: httpx2.AsyncClient, path: str, body: Any) -> Any:
    """Again while Prefect's database is busy, as Prefect's own client does it."""
    for _ in range(BUSY_TRIES):
        answer = await client.post(path, json=body)
        if answer.status_code != httpx2.codes.SERVICE_UNAVAILABLE:
            break
        await asyncio.sleep(BUSY_SECONDS)
    return answer.raise_for_status().json()


def execution_of(result: dict[str, Any]) -> str:
    from mcp_bridge.request_meta import EXECUTION_ID

    return str(result["_meta"][EXECUTION_ID])


DEFINITIONS = {
    "workflows": {
        "Later": {
            "purpose": "Take some time.",
            "taskQueue": TASK_QUEUE,
            "input": {"type": "Later", "fields": [{"seconds": {"type": "number"}}]},
        }
    }
}


def report(found: list[Measured]) -> bool:
    print(f"  {RUNS} runs of {LASTS_SECONDS:g} s ({PREFECT_RUNS} at Prefect), in turns with the own client")
    rows = [("", "to the start, p50", "p95", "from the end, p50", "p95")]
    for one in found:
        for name, times in (("own client", one.theirs), ("through us", one.ours)):
            parts = (percentile(of(times), percent) for of in (to_start, from_end) for percent in (50, 95))
            rows.append((f"{one.engine}, {name}", *map(milliseconds, parts)))
    table(*rows)
    met = True
    for one in found:
        added = percentile(to_start(one.ours), 95) - percentile(to_start(one.theirs), 95)
        met &= told(f"{one.engine}: added to the start, p95", added, GOAL_START_SECONDS)
        last = percentile(from_end(one.ours), 95)
        met &= told(f"{one.engine}: from the end to the answer, p95", last, one.goal_end_seconds)
    return met


def to_start(times: list[Times]) -> list[float]:
    return [one.taken - one.sent for one in times]


def from_end(times: list[Times]) -> list[float]:
    return [one.heard - one.ended for one in times]


def told(what: str, seconds: float, goal: float) -> bool:
    met = seconds < goal
    print(f"  goal: {what}: {milliseconds(seconds)} of {milliseconds(goal)} {'met' if met else 'MISSED'}")
    return met


async def measure(server: McpServer, measuring: Measuring) -> Measured:
    async with httpx2.AsyncClient(trust_env=False) as http:
        return await measuring(ProductClient(server, http))


def main() -> None:
    found = []
    with own_database(os.environ.get("DATABASE_URL", "")) as database, tempfile.TemporaryDirectory() as name:
        print(f"  database: {database}")
        folder = Path(name)
        engines = [temporal, mcp_server]
        if ENVIRONMENT.exists():
            engines.append(prefect)
        else:
            print("  without Prefect, which `make install-all` installs")
        for engine in engines:
            with engine(folder) as measuring, catalogue_server(folder) as server:
                found.append(asyncio.run(measure(server, measuring)))
    sys.exit(not report(found))


if __name__ == "__main__":
    main()
