"""Restate's handlers through the product's MCP endpoint, the server's death included."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests import plain_http
from tests.e2e.product import AGENT, Product, Rest, place_for_one, started, wait_until
from tests.engines.restate.server import TOKEN, RestateServer, restate

__all__ = ["restate"]
pytestmark = pytest.mark.e2e

PATIENCE_SECONDS = 30.0
GRACE_SECONDS = 4
"""In which a handler that listens is cancelled on a busy machine too; another one is killed then."""
ORDER, FAILING, LASTING, STUBBORN = "Orders_place", "Orders_fail", "Orders_last", "Orders_stubborn"
BOILING, APPROVAL = "Kettle_boil", "Approval_run"


@pytest.fixture(scope="module")
def product(restate: RestateServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    config = json.dumps(
        {**restate.addresses(), "cancel_grace_seconds": GRACE_SECONDS, "request_timeout_seconds": 2}
    )
    with place_for_one(tmp_path_factory.mktemp("product")) as place:
        short = {"CATALOGUE_INLINE_WAIT": "2", "CATALOGUE_STATUS_CHECK_INTERVAL": "1"}
        with started(place | short) as running:
            running.wait_until_up()
            by_hand = ("--refresh-interval=0", "--secret", f"token={TOKEN}")
            running.manage("add_source", "durable", "restate", "--config", config, *by_hand)
            running.manage("refresh_sources", "durable")
            running.manage("enable_workflows", "--source", "durable", "--all")
            yield running


@pytest.fixture(scope="module")
def rest(product: Product) -> Rest:
    return Rest(product, product.manage("create_mcp_token", "reader", "--scope", "catalogue:admin"))


@asynccontextmanager
async def agent(product: Product) -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {product.token}"}
    async with plain_http.AsyncClient(headers=headers, timeout=60) as http:
        transport = streamable_http_client(f"{product.url}/mcp", http_client=http)
        async with Client(transport, mode="2026-07-28", cache=None, client_info=AGENT) as client:
            yield client


async def begin(client: Client, tool: str, arguments: dict[str, Any]) -> str:
    """The id of an execution that is left to itself."""
    found: str = (await client.call_tool(tool, arguments)).structured_content["execution_id"]
    return found


async def until(rest: Rest, execution_id: str, **wanted: Any) -> dict[str, Any]:
    """The execution once it is as wanted."""

    def look() -> dict[str, Any] | None:
        seen = rest.execution(execution_id)
        return seen if wanted.items() <= seen.items() else None

    found: dict[str, Any] = await asyncio.to_thread(wait_until, look, PATIENCE_SECONDS)
    return found


async def test_handlers_of_services_and_objects_answer_the_agent(product: Product, rest: Rest) -> None:
    """A1.1, A2.1, A2.3, A2.4: described, called and refused as the handlers themselves have it."""
    async with agent(product) as client:
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


async def test_an_agent_asks_a_workflow_and_decides_about_it(product: Product, rest: Rest) -> None:
    """A8.2: the run waits for the signal, and ends with what it says."""
    async with agent(product) as client:
        execution = await begin(client, APPROVAL, {"order_id": "A17"})
        asked = {"execution_id": execution, "name": "stage"}
        answer = await client.call_tool("query_execution", asked)
        assert answer.structured_content["answer"] == "waiting"
        told = {"execution_id": execution, "name": "decide", "arguments": {"input": "yes"}}
        assert not (await client.call_tool("signal_execution", told)).is_error
        ended = await until(rest, execution, state="completed")
    assert ended["output"] == {"order": "A17", "decision": "yes"}


async def test_an_agents_cancellation_reaches_restate_and_ends_in_a_kill_if_it_has_to(
    product: Product, rest: Rest, restate: RestateServer
) -> None:
    """A7.5, A8.5: the handler that listens is cancelled, the one that does not is killed."""
    async with agent(product) as client:
        lasting, stubborn = [
            await begin(client, tool, arguments)
            for tool, arguments in ((LASTING, {"input": 600}), (STUBBORN, {}))
        ]
        for execution, failure in ((lasting, "[409] cancelled"), (stubborn, "[409] killed")):
            await client.call_tool("cancel_execution", {"execution_id": execution})
            await until(rest, execution, state="cancelled")
            (row,) = restate.rows(f"idempotency_key = '{execution}'")
            assert row["completion_failure"] == failure


async def test_a_run_outlives_the_death_of_the_server(
    product: Product, rest: Rest, restate: RestateServer
) -> None:
    """A1.4, A7.2: what was going on is followed again as soon as Restate is back, to its result."""
    async with agent(product) as client:
        execution = await begin(client, APPROVAL, {"order_id": "A18"})
        await asyncio.to_thread(restate.kill)
        told = await client.call_tool("get_execution_status", {"execution_id": execution})
        assert told.structured_content["state"] == "running"
        await asyncio.to_thread(restate.start)
        decided = {"execution_id": execution, "name": "decide", "arguments": {"input": "later"}}
        async with asyncio.timeout(PATIENCE_SECONDS):
            # It answers before all of it has come back, and refuses meanwhile.
            while (await client.call_tool("signal_execution", decided)).is_error:
                pass
        ended = await until(rest, execution, state="completed")
        assert ended["output"] == {"order": "A18", "decision": "later"}
        assert (await client.list_tools()).tools
    assert len(restate.rows(f"target_service_key = '{execution}' and target_handler_name = 'run'")) == 1


async def test_a_start_whose_answer_is_lost_makes_one_run(
    product: Product, rest: Rest, restate: RestateServer
) -> None:
    """A7.2, B3: the server takes it and is silent; it is sent again with the same key."""
    async with agent(product) as client:
        with restate.silent():
            execution = await begin(client, ORDER, {"order_id": "A19"})

            def has_been_sent() -> bool:
                return "no complete response" in json.dumps(rest.execution(execution)["events"])

            await asyncio.to_thread(wait_until, has_been_sent, PATIENCE_SECONDS)
        ended = await until(rest, execution, state="completed")
    assert ended["output"] == {"order_id": "A19", "amount": 1.5}
    assert len(restate.rows(f"idempotency_key = '{execution}'")) == 1
