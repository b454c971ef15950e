"""200 Temporal runs at the same time through one web process, against Temporal's own client."""

import asyncio
import os
import re
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from temporalio.client import Client

from dev.benchmarks._figures import milliseconds, percentile, stopwatch, table
from dev.benchmarks._processes import McpServer, catalogue_server, own_database
from dev.benchmarks.calls import META, VERSION
from tests.engines.temporal.definitions import definitions
from tests.engines.temporal.server import TASK_QUEUE, TemporalServer, running_server, running_worker

TOGETHER = 200
SECONDS = 5
"""How long each run takes."""
WARM_UP = 10
GOAL_TIMES = 2.0
"""The time that Temporal's own client needs for the same, all of them together."""
EXECUTION_ID = re.compile(r'"workflow-catalogue/execution-id":\s*"([0-9a-f-]{36})"')


@dataclass
class Times:
    """Of each run, by this machine's clock."""

    starts: list[float] = field(default_factory=list)
    """From the call to when Temporal says that it started."""
    ends: list[float] = field(default_factory=list)
    """From when Temporal says that it ended to the result at the caller."""

    async def add(self, client: Client, workflow_id: str, called_at: float, answered_at: float) -> None:
        description = await client.get_workflow_handle(workflow_id).describe()
        assert description.close_time is not None
        self.starts.append(description.start_time.timestamp() - called_at)
        self.ends.append(answered_at - description.close_time.timestamp())


def add_source(server: TemporalServer) -> None:
    from catalogue.actions.sources import create_source
    from catalogue.actions.workflows import enable_workflows
    from catalogue.discovery import refresh_source
    from catalogue.models import Workflow

    config = {"host_port": server.address, "definitions": definitions()}
    source = create_source(name="temporal", kind="temporal", config=config, credentials={})
    assert refresh_source(source).added
    enable_workflows(Workflow.objects.filter(source=source))


class Callers:
    """Of the product's tools."""

    def __init__(self, server: McpServer, http: httpx2.AsyncClient) -> None:
        self._server = server
        self._http = http

    async def call(self, tool: str, arguments: dict[str, Any]) -> tuple[str, float, float]:
        """The execution's id, when it was called and when the result was there."""
        headers = {
            "accept": "application/json, text/event-stream",
            "authorization": f"Bearer {self._server.token}",
            "mcp-protocol-version": VERSION,
            "mcp-method": "tools/call",
            "mcp-name": tool,
        }
        # Whoever wants to hear of progress is kept waiting until the run has ended.
        meta = META | {"progressToken": str(uuid.uuid4())}
        params = {"_meta": meta, "name": tool, "arguments": arguments}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        called_at = time.time()
        answer = await self._http.post(self._server.url, json=body, headers=headers)
        answered_at = time.time()
        found = EXECUTION_ID.search(answer.text)
        assert answer.status_code == 200 and found, answer.text
        assert '"isError":false' in answer.text, answer.text
        return found[1], called_at, answered_at


async def direct(client: Client, name: str, arguments: dict[str, Any]) -> tuple[str, float, float]:
    workflow_id, called_at = str(uuid.uuid4()), time.time()
    await client.execute_workflow(name, arguments, id=workflow_id, task_queue=TASK_QUEUE)
    return workflow_id, called_at, time.time()


async def at_the_same_time(client: Client, callers: Callers) -> tuple[dict[str, Times], dict[str, float]]:
    found, took = {}, {}
    for name in ("product", "Temporal's client"):
        found[name] = Times()
        with stopwatch() as watch:
            if name == "product":
                calls = (callers.call("Later", {"seconds": SECONDS}) for _ in range(TOGETHER))
            else:
                calls = (direct(client, "Later", {"seconds": SECONDS}) for _ in range(TOGETHER))
            runs = await asyncio.gather(*calls)
        took[name] = watch.seconds
        for run in runs:
            await found[name].add(client, *run)
    return found, took


async def measure(engine: TemporalServer, server: McpServer) -> bool:
    client = await engine.client()
    limits = httpx2.Limits(max_connections=TOGETHER)
    async with httpx2.AsyncClient(timeout=120, trust_env=False, limits=limits) as http:
        callers = Callers(server, http)
        for _ in range(WARM_UP):
            await callers.call("Echo", {})
        found, took = await at_the_same_time(client, callers)
    report(found, took)
    times = took["product"] / took["Temporal's client"]
    met = times < GOAL_TIMES
    print(f"  goal: under {GOAL_TIMES:g} times its client's time: {times:.2f} {'met' if met else 'MISSED'}")
    return met


def report(found: dict[str, Times], took: dict[str, float]) -> None:
    table(
        (f"{TOGETHER} runs of {SECONDS} s", "to start p50", "p95", "from end p50", "p95", "all done in"),
        *(
            (
                name,
                *(milliseconds(percentile(times.starts, percent)) for percent in (50, 95)),
                *(milliseconds(percentile(times.ends, percent)) for percent in (50, 95)),
                f"{took[name]:.2f} s",
            )
            for name, times in found.items()
        ),
    )


def main() -> None:
    os.environ["CATALOGUE_MAX_CONCURRENT_EXECUTIONS"] = "0"
    with own_database(os.environ.get("DATABASE_URL", "")) as database, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with running_server(folder) as engine, running_worker(engine):
            add_source(engine)
            with catalogue_server(folder) as server:
                print(f"  {database}, Temporal's dev server with one worker")
                met = asyncio.run(measure(engine, server))
    sys.exit(not met)


if __name__ == "__main__":
    main()
