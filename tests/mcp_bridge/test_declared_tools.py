"""From a submitted ToolConfig to the request that reaches its API: over REST in, over MCP called."""

import asyncio
import json
import socket
import struct
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from mcp import MCPError

from catalogue.connections import close_connectors
from catalogue.exposure import forget_catalogue
from catalogue.models import Source
from connectors.background import run_in_background_loop
from connectors.testing import free_port
from executions.models import Execution, State
from mcp_bridge.request_meta import EXECUTION_ID
from tests.api.clients import administrator
from tests.connectors.http_tool_hosts import http_tool_hosts
from tests.declared_tools import BEARER, TOKEN, declared
from tests.engines.target_answers import PNG
from tests.engines.target_api import Reply, TargetApi, running_target_api
from tests.executions.engines import in_thread, until
from tests.executions.steps import only, reach_deadline
from tests.mcp_bridge.database import in_database
from tests.mcp_bridge.test_tasks import work_on


@pytest.fixture
def api() -> Iterator[TargetApi]:
    """It answers only who brings the token along."""
    required = {"Authorization": f"Bearer {TOKEN}"}
    with http_tool_hosts("127.0.0.1"), running_target_api(required_headers=required) as running:
        yield running
        run_in_background_loop(close_connectors())


def place_order(api: TargetApi) -> dict[str, Any]:
    return declared(
        "place_order",
        endpoint=f"{api.base_url}/v1/customers/{{customer}}/orders",
        method="POST",
        api={"authentication": BEARER, "idempotency_header": "Idempotency-Key"},
        input_schema={
            "type": "object",
            "properties": {
                "customer": {"type": "string"},
                "amount": {"type": "number", "minimum": 0},
                "urgent": {"type": "boolean"},
                "note": {"type": "string"},
            },
            "required": ["customer", "amount"],
        },
        field_mappings={
            "input": {
                "amount": {"in": "body", "name": "/payment/amount"},
                "urgent": {"in": "query"},
                "note": {"in": "header", "name": "X-Note"},
            },
            "constants": [{"in": "query", "name": "format", "value": "full"}],
            "output": {"number": "/order/number"},
        },
    )


@in_database
def submit(tool: Any) -> str:
    """What changed by it."""
    client = administrator()
    answer = client.post("/tools", tool)
    assert answer.status_code in (200, 201), answer.json()
    forget_catalogue()
    change: str = answer.json()["tools"][0]["change"]
    return change


@in_database
def remove(tool_id: str) -> None:
    assert administrator().delete(f"/api/tools/{tool_id}/").status_code == 204
    forget_catalogue()


async def test_a_submitted_tool_is_called_over_mcp_and_sends_exactly_what_it_declares(api, connect):
    """C1.1, C1.4, C5.1, A2.2, A2.3, A2.5: and nothing else arrives."""
    answered = {"order": {"number": "A-7"}, "internal": "x"}
    api.tell("POST", "/v1/customers/caf%C3%A9%20%26%20co/orders", Reply(201, answered))
    await submit(place_order(api))

    async with connect() as client:
        (listed,) = [tool for tool in (await client.list_tools()).tools if tool.name == "place_order"]
        assert listed.input_schema["additionalProperties"] is False
        refused = await client.call_tool("place_order", {"customer": "x", "amount": -1, "extra": 1})
        assert refused.is_error and not api.arrived
        result = await client.call_tool(
            "place_order", {"customer": "café & co", "amount": 12.5, "urgent": True, "note": "by hand"}
        )

    assert result.structured_content == {"number": "A-7"}
    (arrived,) = api.arrived
    assert (arrived.method, arrived.path) == ("POST", "/v1/customers/caf%C3%A9%20%26%20co/orders")
    assert sorted(arrived.query) == [("format", "full"), ("urgent", "true")]
    assert arrived.json == {"payment": {"amount": 12.5}}
    assert arrived.header("X-Note") == "by hand"
    execution = await in_database(Execution.objects.select_related("payload").get)()
    assert execution.state == State.COMPLETED
    assert arrived.header("Idempotency-Key") == str(execution.pk)
    assert TOKEN not in str(vars(execution.payload))


REPEAT_NOT = "It may have taken effect: do not simply call it again."
OPERATOR = "Other arguments do not help: tell the person who runs this product."
ARGUMENTS = (
    "If the arguments are the reason, try again with others; if not, tell the person who runs the workflow."
)
LATER = "Nothing was done. Try again later, or tell the person who runs the workflow."
ADVICE: dict[str, tuple[str, Reply, str]] = {
    "a server's error in what changes something": ("POST", Reply(500, {"error": "oh"}), REPEAT_NOT),
    "a redirect that nobody follows": ("PATCH", Reply(302, None, {"Location": "/done"}), REPEAT_NOT),
    "a server's error in what may be repeated": ("PUT", Reply(500, {"error": "oh"}), ARGUMENTS),
    "a server's error in what reads": ("GET", Reply(500, {"error": "oh"}), ARGUMENTS),
    "wrong arguments": ("POST", Reply(422, {"note": ["Too long."]}), ARGUMENTS),
    "unknown credentials": ("POST", Reply(401, {"error": "who?"}), OPERATOR),
    "forbidden": ("GET", Reply(403, {"error": "no"}), OPERATOR),
    "not for an hour": ("POST", Reply(429, {"error": "slow"}, {"Retry-After": "3600"}), LATER),
}


@pytest.mark.parametrize("case", ADVICE)
async def test_agents_are_told_to_do_what_fits_the_failure(api, connect, case):
    """A2.4, C5.3, C8.3: above all not to repeat what may have been carried out."""
    method, reply, advice = ADVICE[case]
    api.tell(method, "/things", reply)
    tool = declared("thing", endpoint=f"{api.base_url}/things", method=method, api={"authentication": BEARER})
    await submit(tool)

    async with connect() as client:
        result = await client.call_tool("thing", {})

    (block,) = result.content
    assert result.is_error and block.type == "text"
    assert block.text.partition("\n")[2].startswith(advice)
    assert len(api.arrived) == 1


PICTURE = {"Content-Type": "image/png"}
LINK = '<https://api.example.com/items?page=2>; rel="next"'


OUTPUTS = [({"id": 1}, True), ({"id": 1}, False), ([{"id": 1}], False), ("one, two", False), (None, False)]


async def test_an_etag_does_not_cost_the_structured_output(api, connect):
    """C5.4: clients that show a text beside it have both."""
    api.tell("GET", "/items", Reply(200, b'{"id": 7}', {"ETag": '"v7"', "Content-Type": "application/json"}))
    await submit(
        declared("items", endpoint=f"{api.base_url}/items", api={"authentication": BEARER})
        | {"output_is_promised": False}
    )
    async with connect() as client:
        result = await client.call_tool("items", {})
    assert result.structured_content == {"id": 7}
    assert [block.text for block in result.content][1:] == ['(ETag: "v7")']


@pytest.mark.parametrize(("output", "is_promised"), OUTPUTS)
async def test_what_the_headers_say_is_read_beside_the_output_at_every_door(
    api, connect, output, is_promised
):
    """A2.3, C5.4, E4: from the cache too. Clients refuse a promised output without its structure."""
    api.tell(
        "GET", "/items", Reply(200, json.dumps(output), {"Link": LINK, "Content-Type": "application/json"})
    )
    promise = {"output_schema": {"type": "object"}} if is_promised else {}
    tool = declared(
        "items", endpoint=f"{api.base_url}/items", api={"authentication": BEARER}, cache_seconds=60
    )
    await submit(tool | promise)
    async with connect() as client:
        results = [await client.call_tool("items", {}) for _ in range(2)]
        asked = {"execution_id": results[0].meta[EXECUTION_ID]}
        status = await client.call_tool("get_execution_status", asked)
    said = output if isinstance(output, str) else json.dumps(output)
    for result in results:
        text, note = result.content[:2]
        assert (text.text, note.text, result.is_error) == (said, f"(Link: {LINK})", False)
        assert (result.structured_content is not None) == is_promised
    assert "From the result cache" in results[1].content[2].text and len(api.arrived) == 1
    assert status.structured_content["output"] == output
    assert status.structured_content["note"] == f"Link: {LINK}"
    address = f"/api/executions/{asked['execution_id']}/"
    shown = await in_database(lambda: administrator().get(address))()
    assert shown.json()["output"] == output
    assert [block["text"] for block in shown.json()["content"]] == [f"Link: {LINK}"]


async def test_a_file_with_a_note_and_a_large_output_with_one_are_read(api, connect, settings):
    """A2.3: the note comes last."""
    settings.CATALOGUE = settings.CATALOGUE | {"inline_result_characters": 100}
    api.tell(
        "GET",
        "/items",
        Reply(200, ["x" * 500], {"X-Total": "7"}),
        Reply(200, PNG, PICTURE | {"X-Total": "7"}),
    )
    await submit(declared("items", endpoint=f"{api.base_url}/items", api={"authentication": BEARER}))
    async with connect() as client:
        large = await client.call_tool("items", {})
        picture = await client.call_tool("items", {})
    assert "get_execution_status" in large.content[0].text
    assert [result.content[-1].text for result in (large, picture)] == ["(X-Total: 7)"] * 2
    assert (picture.content[0].type, len(picture.content)) == ("image", 2)


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_success_that_cannot_be_read_is_no_failure_and_is_not_cached(api, connect, method):
    """A2.3, C5.4, E4: what came is delivered, with what is wrong with it."""
    page = "<html>Please log in.</html>"
    api.tell(method, "/things", Reply(200, page, {"Content-Type": "application/json"}))
    path = {"endpoint": f"{api.base_url}/things", "method": method}
    await submit(declared("thing", **path, api={"authentication": BEARER}, cache_seconds=60))
    async with connect() as client:
        results = [await client.call_tool("thing", {}) for _ in range(2)]
    for result in results:
        text, why = result.content
        assert (result.is_error, result.structured_content, text.text) == (False, None, page)
        assert f"{method} /things: the answer is labelled application/json" in why.text
    assert len(api.arrived) == 2
    execution = await in_database(Execution.objects.select_related("payload").earliest)("created_at")
    assert (execution.state, execution.payload.output) == (State.COMPLETED, page)
    assert "a part of its result could not be read" in execution.error


async def test_a_removed_tool_can_no_longer_be_called_and_comes_back(api, connect):
    """A1.3, C1.1"""
    tool = declared("orders", endpoint=f"{api.base_url}/orders", api={"authentication": BEARER})
    await submit(tool)
    await remove("orders")

    async with connect() as client:
        with pytest.raises(MCPError, match="Unknown or disabled tool: orders"):
            await client.call_tool("orders", {})
    assert not api.arrived

    assert await submit(tool) == "returned"
    async with connect() as client:
        back = await client.call_tool("orders", {})
    assert not back.is_error and len(api.arrived) == 1


async def test_results_of_a_submitted_tool_are_cached_as_it_says(api, connect):
    """E4: like those of any workflow."""
    tool = declared(
        "weather",
        endpoint=f"{api.base_url}/weather/{{city}}",
        api={"authentication": BEARER},
        cache_seconds=60,
    )
    await submit(tool)

    async with connect() as client:
        first = await client.call_tool("weather", {"city": "Ulm"})
        second = await client.call_tool("weather", {"city": "Ulm"})

    assert first.content[0] == second.content[0] and not first.is_error
    assert len(api.arrived) == 1


@in_database
def resolve(execution_id: str, **said: Any) -> dict[str, Any]:
    answer = administrator().post(f"/api/executions/{execution_id}/resolve/", said)
    assert answer.status_code == 200, answer.json()
    resolved: dict[str, Any] = answer.json()
    return resolved


@pytest.mark.parametrize("said", [None, {"number": "A-9"}], ids=["output unknown", "output known"])
async def test_a_call_whose_answer_was_lost_has_completed_once_an_administrator_says_that_it_ran(
    api, connect, said
):
    """B8, C5.3: the API keeps no runs that could be named; record and agent learn who said so."""
    await submit(
        declared("pay", endpoint=f"{api.base_url}/hang-up", method="POST", api={"authentication": BEARER})
    )

    async with connect() as client:
        lost = await client.call_tool("pay", {})
        assert lost.is_error and "Do not call it again" in str(lost.content)
        execution = await in_database(Execution.objects.get)()
        resolved = await resolve(str(execution.pk), ran=True, output=said)
        status = await client.call_tool("get_execution_status", {"execution_id": str(execution.pk)})

    assert (resolved["state"], resolved["error"], resolved["output"]) == ("completed", None, said)
    by = resolved["metadata"]["said_by"]
    assert [event["message"] for event in resolved["events"] if event["kind"] == "completed"] == [
        f"{by}: it ran. Its output is not known."
        if said is None
        else f"{by}: it ran. {by} reported its output."
    ]
    assert not status.is_error
    told = str(status.content)
    assert by in told and ("its output is not known" in told) == (said is None)
    assert status.structured_content is not None
    assert status.structured_content.get("output") == said
    assert len(api.arrived) == 1


async def speak_no_tls(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    writer.close()


async def reset(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    options = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, options)
    writer.close()


UNREACHED = {
    "refused": ("http://127.0.0.1:{closed}/x", "onnect", "refused"),
    "unknown host": ("http://nowhere.invalid/x", "nowhere.invalid", ""),
    "no TLS": ("https://127.0.0.1:{plain}/x", "onnect", "TLS"),
    "reset": ("http://127.0.0.1:{resetting}/x", "connection", ""),
}


@pytest.mark.parametrize(("method", "timeout_seconds"), [("GET", 2), ("POST", 1)])
@pytest.mark.parametrize("kind", UNREACHED)
async def test_a_call_whose_attempts_use_up_its_time_tells_why_they_failed(
    connect, kind, method, timeout_seconds
):
    """C5.3, A7.2: what went wrong, rather than that the time is up."""
    endpoint, *words = UNREACHED[kind]
    async with AsyncExitStack() as stack:
        ports = {"closed": free_port()}
        for name, behave in (("plain", speak_no_tls), ("resetting", reset)):
            server = await stack.enter_async_context(await asyncio.start_server(behave, "127.0.0.1", 0))
            ports[name] = server.sockets[0].getsockname()[1]
        url = endpoint.format(**ports)
        with http_tool_hosts("127.0.0.1,nowhere.invalid"):
            await submit(declared("probe", endpoint=url, method=method, timeout_seconds=timeout_seconds))
            async with connect() as client:
                result = await client.call_tool("probe", {})
            await close_connectors()
    text = result.content[0].text
    assert result.is_error and all(word in text for word in words), text
    assert "longer than its timeout" not in text


@pytest.mark.databases("executions.runner.start")
async def test_a_start_that_no_attempt_is_left_for_tells_why_the_last_one_failed(connect, long_workflow):
    """C5.3, A7.2: a worker that comes late finds the time over."""
    away = f"http://127.0.0.1:{free_port()}"
    await in_database(Source.objects.update)(config={"base_url": away})
    async with connect() as client:
        handle = (await client.call_tool("report", {})).structured_content
        await until(lambda: only().attempts, "an attempt has failed")
        await until(lambda: not only().lease_holder, "a worker could go on")
        await in_thread(lambda: reach_deadline(only()))
        await in_thread(work_on)
        asking = {"execution_id": handle["execution_id"]}
        shown = (await client.call_tool("get_execution_status", asking)).structured_content
    assert shown["state"] == "timed_out" and "refused" in shown["error"]
