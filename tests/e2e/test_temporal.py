"""Temporal, end to end: its workflows as tools of the running product, and a server that dies on the way."""

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from connectors.testing import free_port
from tests.connectors.calling import steps_taken
from tests.e2e.line import Line, survive
from tests.e2e.product import Product, Rest, place_for_one, started, wait_until
from tests.e2e.test_clients import client_of_2026, newest, text_of
from tests.e2e.test_prefect import answer_what_it_asks, begin, until
from tests.engines.temporal.definitions import definitions
from tests.engines.temporal.proxy import gateway_to
from tests.engines.temporal.server import TemporalServer, running_server, running_worker
from tests.engines.temporal.workflows import WORKFLOWS
from tests.processes import end_group

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

PATIENCE_SECONDS = 40.0
GRACE_SECONDS = 4
"""In which a run that follows its cancellation does so on a busy machine too; others are terminated then."""
TOOLS = {"Echo", "Fail", "Lasting", "Heartbeating", "Stubborn", "Later"}
NARROW = {"type": "object", "fields": [{"greeting": {"type": "string", "description": "What to say."}}]}
ASKING = {"asks": {"query": "open_questions", "update": "decide"}}
DESERTED = {"taskQueue": "deserted"}


@dataclass
class Engine:
    """A Temporal server with its worker, which can be killed and brought back with all that it knew."""

    folder: Path
    port: int = field(default_factory=free_port)
    _running: ExitStack = field(default_factory=ExitStack)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def bring_up(self) -> TemporalServer:
        database = self.folder / "temporal.sqlite3"
        server = self._running.enter_context(running_server(self.folder, port=self.port, database=database))
        self._running.enter_context(running_worker(server))
        self.server = server
        return server

    def kill(self) -> None:
        end_group(self.server.process)
        self._running.close()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    engine = Engine(tmp_path_factory.mktemp("temporal"))
    engine.bring_up()
    try:
        yield engine
    finally:
        engine.kill()


class GatewayLine(Line):
    """Sees what the requests are, which gRPC compresses. Its `gateway` loses replies until the death."""

    def open(self) -> None:
        self._open = ExitStack()
        gateway = self._open.enter_context(gateway_to(f"127.0.0.1:{self.engine}", port=self.port))
        self.gateway, self.dies = gateway, gateway.has_swallowed

    def close(self) -> None:
        self._open.close()


@pytest.fixture(scope="module")
def line(engine: Engine) -> Iterator[Line]:
    line = GatewayLine(engine.port, engine.kill, engine.bring_up)
    line.open()
    yield line
    line.close()


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory, line: Line) -> Iterator[Product]:
    """A product of its own with the server as a source, added as an operator does."""
    with place_for_one(tmp_path_factory.mktemp("product")) as place:
        place |= {"CATALOGUE_INLINE_WAIT": "2", "CATALOGUE_STATUS_CHECK_INTERVAL": "1"}
        with started(place) as product:
            product.wait_until_up()
            config = {
                "host_port": f"127.0.0.1:{line.port}",
                "definitions": definitions(Echo={"input": NARROW}, Positional=DESERTED, Asking=ASKING),
                "cancel_grace_seconds": GRACE_SECONDS,
                "timeout_seconds": 5,
                "pause_enabled": True,
            }
            product.manage("add_source", "temporal", "temporal", "--config", json.dumps(config))
            yield product


@pytest.fixture(scope="module")
def rest(product: Product) -> Rest:
    """REST as an administrator, once the source was listed in the background and its workflows enabled."""
    rest = Rest(product, product.manage("create_mcp_token", "dashboard", "--scope", "catalogue:admin"))
    listed = len(WORKFLOWS)
    wait_until(lambda: rest.get("/workflows/", source="temporal")["count"] == listed, PATIENCE_SECONDS)
    assert f"enabled: {listed}" in product.manage("enable_workflows", "--source", "temporal", "--all")
    return rest


def status_of(rest: Rest, tool: str, state: str) -> dict[str, Any]:
    """The tool's latest execution, once it is in that state."""
    found: dict[str, Any] = wait_until(
        lambda: (latest := newest(rest, tool))["state"] == state and latest, PATIENCE_SECONDS
    )
    return found


async def ignore(value: float, total: float | None, message: str | None) -> None:
    """Progress makes a call wait for as long as the run takes."""


async def test_a_workflow_asks_people_by_its_query_and_takes_the_answer_by_an_update(product, rest):
    """A8.2."""
    async with client_of_2026(product) as client:
        execution = await begin(client, "Asking", {})
    ended = await answer_what_it_asks(rest, execution, {"approve": True})
    assert ended["output"] == {"answers": [{"approve": True}]}


async def test_answers_outlive_the_death_of_the_server_and_arrive_once(product, rest, line):
    """A8.2, A7.2: one is at the service, which does not reply, and one is given while Temporal is away."""
    async with client_of_2026(product) as client:
        runs = [await begin(client, "Asking", {}) for _ in range(2)]
    told = {"approve": True, "why": "{{ 6 * 7 }}"}
    line.gateway.swallowed = {"UpdateWorkflowExecution"}
    ended = await asyncio.to_thread(survive, rest, line, runs, told, lambda _: b"")
    assert [one["output"] for one in ended] == [{"answers": [told]}] * 2


async def test_declared_workflows_are_tools_with_their_schema_and_return_the_result(product, rest):
    """E1, E3, A1.2, A2.3: purpose and fields are what agents see; a call runs it on its task queue."""
    async with client_of_2026(product) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        result = await client.call_tool("Echo", {"greeting": "hello"}, progress_callback=ignore)
        refused = await client.call_tool("Echo", {"greetings": "hello"})
    assert tools.keys() >= TOOLS
    assert tools["Echo"].description.startswith("Completes at once with its single input.")
    assert tools["Echo"].input_schema["properties"]["greeting"]["description"] == "What to say."
    assert result.structured_content == {"greeting": "hello"}
    assert refused.is_error
    recorded = newest(rest, "Echo")
    assert (recorded["state"], recorded["output"]) == ("completed", {"greeting": "hello"})


async def test_runs_outlive_the_death_of_their_server_and_starts_wait_for_its_return(
    product, rest, engine, line
):
    """A7.2, A8.3: whoever waits goes on waiting; a start that never left is repeated until it arrives."""
    async with client_of_2026(product) as client:
        lasting = asyncio.create_task(client.call_tool("Lasting", {}, progress_callback=ignore))
        execution = await asyncio.to_thread(status_of, rest, "Lasting", "running")
        await asyncio.to_thread(line.kill)
        with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", line.port)):
            pass
        meanwhile = asyncio.create_task(
            client.call_tool("Echo", {"greeting": "anybody there?"}, progress_callback=ignore)
        )
        await asyncio.to_thread(
            wait_until, lambda: "start_postponed" in str(newest(rest, "Echo")["events"]), PATIENCE_SECONDS
        )
        await asyncio.to_thread(line.start)
        temporal = await engine.server.client()
        await temporal.get_workflow_handle(execution["id"]).signal("finish")
        result, echoed = await asyncio.wait_for(asyncio.gather(lasting, meanwhile), PATIENCE_SECONDS)
    assert not result.is_error, text_of(result)
    assert result.structured_content == {"total": 0, "notes": []}
    assert echoed.structured_content == {"greeting": "anybody there?"}
    assert (await temporal.count_workflows("WorkflowType = 'Lasting'")).count == 1


async def test_a_failed_run_goes_on_from_its_failed_step_when_it_is_retried(product, rest, tmp_path):
    """A7.2: as an execution of its own, and no step that has succeeded runs again."""
    async with client_of_2026(product) as client:
        result = await client.call_tool("Steps", {"folder": str(tmp_path)}, progress_callback=ignore)
    assert result.is_error
    failed = newest(rest, "Steps")
    (tmp_path / "fixed").touch()
    retried = rest.post(f"/executions/{failed['id']}/control/", action="retry_failed", wait_seconds=30)
    assert (retried["state"], retried["output"]) == ("completed", ["one", "two", "three"])
    assert (retried["retry_of"], retried["run_id"]) == (failed["id"], failed["run_id"])
    assert steps_taken(tmp_path) == {"one": 1, "two": 1, "three": 2}
    assert rest.execution(failed["id"])["state"] == "failed"


async def test_a_running_run_is_paused_resumed_and_terminated(product, rest):
    """A7.5, A8.2: the engine does it, and polls show it."""
    async with client_of_2026(product) as client:
        lasting = await begin(client, "Lasting", {})
    for action, wanted in (
        ("pause", {"paused": True}),
        ("resume", {"paused": False}),
        ("terminate", {"state": "cancelled"}),
    ):
        rest.post(f"/executions/{lasting}/control/", action=action)
        await until(rest, lasting, **wanted)
