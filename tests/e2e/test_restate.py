"""Restate's handlers through the product's MCP endpoint, the server's death included."""

import asyncio
import json
from collections.abc import Iterator

import pytest

from tests.e2e.line import Line, survive
from tests.e2e.product import Product, Rest, product_of_engine, wait_until
from tests.e2e.test_clients import client_of_2026
from tests.e2e.test_prefect import answer_what_it_asks, begin, until
from tests.engines.restate.server import TOKEN, RestateServer, restate

__all__ = ["restate"]
pytestmark = pytest.mark.e2e

PATIENCE_SECONDS = 30.0
GRACE_SECONDS = 4
"""In which a handler that listens is cancelled on a busy machine too; another one is killed then."""
ORDER, FAILING, LASTING = "Orders_place", "Orders_fail", "Orders_last"
BOILING, APPROVAL, ASKING = "Kettle_boil", "Approval_run", "Ask_ask_run"


@pytest.fixture(scope="module")
def line(restate: RestateServer) -> Iterator[Line]:
    """To the ingress."""
    line = Line(restate.ingress, restate.kill, restate.start)
    line.open()
    yield line
    line.close()


@pytest.fixture(scope="module")
def product(
    restate: RestateServer, line: Line, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Product]:
    config = {**restate.addresses(), "ingress_url": f"http://127.0.0.1:{line.port}"}
    config |= {"cancel_grace_seconds": GRACE_SECONDS, "request_timeout_seconds": 2}
    secret = ("--secret", f"token={TOKEN}")
    with product_of_engine(tmp_path_factory.mktemp("product"), "restate", config, *secret) as running:
        running.manage("enable_workflows", "--source", "restate", "--all")
        yield running


@pytest.fixture(scope="module")
def rest(product: Product) -> Rest:
    return Rest(product, product.manage("create_mcp_token", "reader", "--scope", "catalogue:admin"))


async def test_handlers_of_services_and_objects_answer_the_agent(product, rest):
    """A1.1, A2.1, A2.3, A2.4: described, called and refused as the handlers themselves have it."""
    async with client_of_2026(product) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert {ORDER, FAILING, LASTING, BOILING, APPROVAL} <= tools.keys()
        assert tools[ORDER].input_schema["required"] == ["order_id"]
        order = await client.call_tool(ORDER, {"order_id": "A17"})
        boiled = await client.call_tool(BOILING, {"key": "red", "input": 0})
        failure = await client.call_tool(FAILING, {"input": "The tea went cold."})
    assert order.structured_content == {"order_id": "A17", "amount": 1.5}
    assert boiled.structured_content == {"kettle": "red", "times": 1}
    assert failure.is_error
    recorded = rest.execution(rest.executions(tool=FAILING)[0]["id"])
    assert (recorded["state"], recorded["error"]["message"]) == ("failed", "The tea went cold.")


async def test_a_workflow_that_asks_goes_on_with_the_answer(product, rest):
    """A8.2."""
    async with client_of_2026(product) as client:
        execution = await begin(client, ASKING, {"order_id": "A20"})
    ended = await answer_what_it_asks(rest, execution, {"approve": True})
    assert ended["output"] == {"told": {"approve": True}}


async def test_answers_outlive_the_death_of_the_server_and_arrive_once(product, rest, restate, line):
    """A8.2, A7.2: one has arrived, one is on its way, one is given while Restate is away."""
    async with client_of_2026(product) as client:
        runs = [await begin(client, ASKING, {"order_id": f"A3{number}"}) for number in range(3)]
    told = {"approve": True, "why": "{{ 6 * 7 }}"}
    ended = await asyncio.to_thread(survive, rest, line, runs, told, lambda run: f"/Ask/{run}/take".encode())
    assert [one["output"] for one in ended] == [{"told": told}] * 3
    for run in runs:
        taken = restate.rows(f"target_service_key = '{run}' and target_handler_name = 'take'")
        assert len(taken) == 1


async def test_a_run_outlives_the_death_of_the_server(product, rest, restate, line):
    """A1.4, A7.2: what was going on is followed again as soon as Restate is back, to its result."""
    async with client_of_2026(product) as client:
        execution = await begin(client, APPROVAL, {"order_id": "A18"})
        await asyncio.to_thread(line.kill)
        told = await client.call_tool("get_execution_status", {"execution_id": execution})
        assert told.structured_content["state"] == "running"
        await asyncio.to_thread(line.start)
        decided = {"execution_id": execution, "name": "decide", "arguments": {"input": "later"}}
        async with asyncio.timeout(PATIENCE_SECONDS):
            # It answers before all of it has come back, and refuses meanwhile.
            while (await client.call_tool("signal_execution", decided)).is_error:
                pass
        ended = await until(rest, execution, state="completed")
        assert ended["output"] == {"order": "A18", "decision": "later"}
        assert (await client.list_tools()).tools
    assert len(restate.rows(f"target_service_key = '{execution}' and target_handler_name = 'run'")) == 1


async def test_a_start_whose_answer_is_lost_makes_one_run(product, rest, restate):
    """A7.2, B3: the server takes it and is silent; it is sent again with the same key."""
    async with client_of_2026(product) as client:
        with restate.silent():
            execution = await begin(client, ORDER, {"order_id": "A19"})

            def has_been_sent() -> bool:
                return "no complete response" in json.dumps(rest.execution(execution)["events"])

            await asyncio.to_thread(wait_until, has_been_sent, PATIENCE_SECONDS)
        ended = await until(rest, execution, state="completed")
    assert ended["output"] == {"order_id": "A19", "amount": 1.5}
    assert len(restate.rows(f"idempotency_key = '{execution}'")) == 1
