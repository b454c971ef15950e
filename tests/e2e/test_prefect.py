"""Prefect's deployments through the product's MCP endpoint, the server's death included."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp_types import CallToolResult, ElicitResult

from tests.connectors.calling import steps_taken
from tests.e2e.line import Line, survive
from tests.e2e.product import Product, Rest, product_of_engine, wait_until
from tests.e2e.test_clients import client_of_2026, text_of
from tests.engines.prefect.server import AUTH, PrefectServer, prefect

__all__ = ["prefect"]
# Two servers and a product start first, and each flow run takes some seconds.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

PATIENCE_SECONDS = 140.0
ORDER, GREETING, FAILING, LASTING = "place-order_shop", "greet_somebody", "fail_always", "last_long"
ASKING, STEPS = "ask_asking", "take-steps_steps"
Heard = list[tuple[float, str | None]]


@pytest.fixture(scope="module")
def line(prefect: PrefectServer) -> Iterator[Line]:
    line = Line(prefect.port, prefect.kill, prefect.start)
    line.open()
    yield line
    line.close()


@pytest.fixture(scope="module")
def product(line: Line, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    """One whose curator has looked at what Prefect offers and enabled some of it."""
    config, secret = {"base_url": f"http://127.0.0.1:{line.port}/api"}, ("--secret", f"auth_string={AUTH}")
    with product_of_engine(tmp_path_factory.mktemp("product"), "prefect", config, *secret) as running:
        running.manage(
            "enable_workflows", "--source", "prefect", ORDER, GREETING, FAILING, LASTING, ASKING, STEPS
        )
        yield running


@pytest.fixture(scope="module")
def rest(product: Product) -> Rest:
    return Rest(product, product.manage("create_mcp_token", "reader", "--scope", "catalogue:admin"))


@pytest.fixture
def mortal(prefect: PrefectServer, line: Line) -> Iterator[Line]:
    """For a test that ends the server; the flows are served anew after it."""
    yield line
    prefect.serve_flows()


@pytest.fixture(autouse=True)
def _nothing_goes_on(prefect: PrefectServer) -> Iterator[None]:
    yield
    prefect.cancel_everything()


async def call(
    client: Client, tool: str, arguments: dict[str, Any], *, on_half: Path | None = None
) -> tuple[CallToolResult, Heard]:
    """The result, waited for as long as it takes, and the progress until then. `on_half` is made once half of
    the steps are heard of."""
    heard: Heard = []

    async def note(value: float, total: float | None, message: str | None) -> None:
        heard.append((value, message))
        if on_half is not None and 50.0 <= value < 51.0 and message == "Step 2 of 2.":
            on_half.touch()  # noqa: ASYNC240 - an empty file

    return await client.call_tool(tool, arguments, progress_callback=note), heard


async def begin(client: Client, tool: str, arguments: dict[str, Any]) -> str:
    """The id of an execution that is left to itself."""
    result = await client.call_tool(tool, arguments)
    found: str = result.structured_content["execution_id"]
    return found


async def retry_from_the_failed_step(
    client: Client, rest: Rest, tool: str, arguments: dict[str, Any], folder: Path
) -> dict[str, Any]:
    """The retry of a run whose third step fails and then succeeds, when it has completed: no other step has
    run again."""
    result = await client.call_tool(tool, arguments, progress_callback=ignore)
    assert result.is_error and steps_taken(folder) == {"one": 1, "two": 1, "three": 1}
    failed = rest.executions(tool=tool)[0]
    (folder / "fixed").touch()
    retried = rest.post(f"/executions/{failed['id']}/control/", action="retry_failed")
    ended = await until(rest, retried["id"], state="completed")
    assert steps_taken(folder) == {"one": 1, "two": 1, "three": 2}
    assert (ended["retry_of"], rest.execution(failed["id"])["state"]) == (failed["id"], "failed")
    return ended | {"is_same_run": ended["run_id"] == failed["run_id"]}


async def ignore(value: float, total: float | None, message: str | None) -> None:
    """Progress makes a call wait for as long as the run takes."""


async def until(rest: Rest, execution_id: str, **wanted: Any) -> dict[str, Any]:
    """The execution once it is as wanted."""

    def look() -> dict[str, Any] | None:
        seen = rest.execution(execution_id)
        return seen if wanted.items() <= seen.items() else None

    def told() -> str:
        return str(rest.execution(execution_id))

    found: dict[str, Any] = await asyncio.to_thread(wait_until, look, PATIENCE_SECONDS, told)
    return found


async def answer_what_it_asks(rest: Rest, execution_id: str, content: dict[str, Any]) -> dict[str, Any]:
    """As a person does by REST. Returns the execution once it has completed."""

    def look() -> Any:
        return rest.execution(execution_id)["questions"]

    (asked,) = await asyncio.to_thread(wait_until, look, PATIENCE_SECONDS)
    path = f"/executions/{execution_id}/answer/"
    await asyncio.to_thread(rest.post, path, question=asked["question"], content=content)
    ended = await until(rest, execution_id, state="completed")
    kinds = [event["kind"] for event in ended["events"]]
    assert [kinds.count(kind) for kind in ("asked", "answered", "answer_sent")] == [1, 1, 1], kinds
    return ended


async def test_a_paused_flow_asks_the_agents_user_and_goes_on(product, rest):
    """A8.2: the answer is not rendered as a template."""
    asked = []

    async def decide(context: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult(action="accept", content={"approve": True, "reason": "{{ 6 * 7 }}"})

    async with client_of_2026(product, elicitation_callback=decide) as client:
        result, _ = await call(client, ASKING, {})
    assert result.structured_content == {"approve": True, "reason": "{{ 6 * 7 }}"}, result
    assert len(asked) == 1 and "tea good?" in asked[0]


async def test_results_failures_and_progress_of_flows_reach_the_agent(product, rest, tmp_path):
    """A2.2, A2.3, A2.4, A7.3: three flows at once, each with what it has to say."""
    done = tmp_path / "done"
    async with client_of_2026(product) as client:
        (order, _), (greeting, _), (failure, _), (lasting, heard) = await asyncio.gather(
            call(client, ORDER, {"order_id": "A17", "address": {"street": "Mint Lane"}}),
            call(client, GREETING, {}),
            call(client, FAILING, {"words": "The tea went cold."}),
            call(client, LASTING, {"seconds": 6, "steps": 2, "until": str(done)}, on_half=done),
        )
        refused = await client.call_tool(ORDER, {"order_id": "A18", "colour": "red"})
    assert order.structured_content == {
        "order_id": "A17",
        "amount": 1.5,
        "priority": "normal",
        "street": "Mint Lane",
    }
    assert "Hello somebody!" in text_of(greeting)
    assert failure.is_error
    assert "ValueError: The tea went cold." in text_of(failure)
    assert "The kettle is empty." in text_of(failure)
    assert lasting.structured_content == {"steps": 2}
    assert done.exists(), heard
    assert [value for value, _ in heard] == sorted({value for value, _ in heard})
    assert refused.is_error
    recorded = rest.execution(rest.executions(tool=ORDER)[0]["id"])
    assert (recorded["state"], recorded["output"]) == ("completed", order.structured_content)


async def test_answers_outlive_the_death_of_the_server_and_arrive_once(product, rest, prefect, mortal):
    """A8.2, A7.2: one has arrived, one is on its way, one is given while Prefect is away."""
    async with client_of_2026(product) as client:
        runs = [await begin(client, ASKING, {"asked": "suspended"}) for _ in range(3)]
    engines = {run: rest.execution(run)["run_id"] for run in runs}
    told = {"approve": True, "reason": "{{ 6 * 7 }}"}
    ended = await asyncio.to_thread(
        survive, rest, mortal, runs, told, lambda run: f"{engines[run]}/resume".encode()
    )
    assert [one["output"] for one in ended] == [{"approve": True}] * 3


async def test_a_run_outlives_the_death_of_the_server(product, rest, mortal, tmp_path):
    """A1.4, A7.2: what was going on is followed again as soon as Prefect is back, to its result."""
    done = tmp_path / "done"
    async with client_of_2026(product) as client:
        execution = await begin(client, LASTING, {"steps": 1, "until": str(done)})
        await until(rest, execution, progress_message="Step 1 of 1.")
        await asyncio.to_thread(mortal.kill)
        told = await client.call_tool("get_execution_status", {"execution_id": execution})
        assert told.structured_content["state"] == "running"
        await asyncio.to_thread(mortal.start)
        done.touch()
        ended = await until(rest, execution, state="completed")
        assert ended["output"] == {"steps": 1}
        assert (await client.list_tools()).tools


async def test_a_failed_flow_goes_on_from_its_failed_task_when_it_is_retried(product, rest, tmp_path):
    """A7.2: as an execution of its own, and the same flow run."""
    async with client_of_2026(product) as client:
        folder = {"folder": str(tmp_path)}
        retried = await retry_from_the_failed_step(client, rest, STEPS, folder, tmp_path)
    assert retried["output"] == "three steps" and retried["is_same_run"]
