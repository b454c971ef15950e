"""Servers of the handshake era tell of changes on a stream, which breaks, is refused, and comes back."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any
from uuid import uuid4

import pytest

from connectors.errors import ConnectorError
from connectors.protocol import RunState, WorkflowRef
from connectors.testing import closing
from connectors.upstream_mcp import http_transport, session
from connectors.upstream_mcp.config import McpConfig
from connectors.upstream_mcp.connector import McpConnector
from tests.connectors.scripted import Received, ScriptedEngine, response
from tests.engines.hostile_servers import STREAM_HEAD, error, initialized, result, server
from tests.executions.engines import until

Stream = Callable[[Received, asyncio.StreamWriter], Awaitable[None]]
RETRY = b"retry: 10\n\n"
"""Otherwise the SDK would wait for a second."""
CHANGED = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_transport, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(session, "FIRST_PAUSE_SECONDS", 0.01)


class Told:
    """How often the connector told of a change."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> None:
        self.times += 1


@asynccontextmanager
async def listening(*streams: Stream) -> AsyncIterator[tuple[Told, ScriptedEngine]]:
    """To a server that answers each request for a stream by the next of these; the last goes on."""
    left = list(streams)

    async def answer(request: Received, writer: asyncio.StreamWriter) -> None:
        await (left.pop(0) if len(left) > 1 else left[0])(request, writer)

    async with ScriptedEngine(server(stream=answer)) as engine:
        connector = McpConnector(McpConfig(url=f"{engine.base_url}/mcp"))
        async with closing(connector):
            told = Told()
            connector.on_listing_changed(told)
            yield told, engine


async def stays(request: Received, writer: asyncio.StreamWriter) -> None:
    writer.write(STREAM_HEAD)
    await asyncio.Event().wait()


async def tells(request: Received, writer: asyncio.StreamWriter) -> None:
    writer.write(STREAM_HEAD + f"event: message\ndata: {json.dumps(CHANGED)}\n\n".encode())
    await asyncio.Event().wait()


async def breaks(request: Received, writer: asyncio.StreamWriter) -> None:
    """In the middle of a chunk."""
    head = STREAM_HEAD.replace(b"connection: close", b"transfer-encoding: chunked")
    writer.write(head + b"40\r\n" + RETRY)
    await writer.drain()
    writer.transport.abort()


async def ends(request: Received, writer: asyncio.StreamWriter) -> None:
    writer.write(STREAM_HEAD + RETRY)
    await writer.drain()
    writer.close()


def says(status: int) -> Stream:
    async def answer(request: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(response(status))

    return answer


@asynccontextmanager
async def calling(
    stream: Stream,
) -> AsyncIterator[tuple[ScriptedEngine, McpConnector, asyncio.Task[Any]]]:
    """The first call to a server that answers requests for a stream like this."""
    async with ScriptedEngine(server(stream=stream)) as engine:
        connector = McpConnector(McpConfig(url=f"{engine.base_url}/mcp"))
        async with closing(connector):
            tool = WorkflowRef(id="good", name="good")
            yield engine, connector, asyncio.create_task(connector.start(tool, {}, key=uuid4()))


async def test_a_first_call_waits_until_the_server_has_a_stream_for_its_questions():
    """The SDK's server drops a question without a call's id before that, and then waits for ever."""
    may_open = asyncio.Event()

    async def opens_late(request: Received, writer: asyncio.StreamWriter) -> None:
        await may_open.wait()
        await stays(request, writer)

    async with calling(opens_late) as (engine, connector, call):
        await until(lambda: "GET" in [request.method for request in engine.received], "it is asked for one")
        await anext(aiter(connector.discover()))
        assert not asked_for(engine, "tools/call")
        may_open.set()
        await call
    assert asked_for(engine, "tools/call") == 1


async def test_a_first_call_does_not_wait_for_ever_for_a_stream(monkeypatch):
    """Some servers answer with the first message on it."""
    monkeypatch.setattr(http_transport, "FIRST_STREAM_SECONDS", 0.01)

    async def never(request: Received, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with calling(never) as (engine, _, call):
        await call
    assert asked_for(engine, "tools/call") == 1


def asked_for(engine: ScriptedEngine, method: str) -> int:
    return sum(request.method == "POST" and request.json["method"] == method for request in engine.received)


async def test_a_change_is_told_at_once():
    """A4.3, B10"""
    async with listening(tells) as (told, _):
        await until(lambda: told.times == 1, "the change is told")


@pytest.mark.parametrize("bad", [breaks, ends], ids=["breaks", "ends"])
async def test_a_stream_that_is_cut_again_and_again_is_opened_again(bad):
    """A5.4: proxies cut streams that are quiet."""
    async with listening(bad, bad, bad, bad, tells) as (told, engine):
        await until(lambda: told.times >= 1, "the change is told")
        assert asked_for(engine, "initialize") == 1


async def test_what_a_server_that_was_away_may_have_told_meanwhile_counts_as_a_change():
    """A1.1"""
    async with listening(ends, says(503), says(502), stays) as (told, _):
        await until(lambda: told.times == 1, "the server is back")


async def test_a_server_that_has_forgotten_the_session_is_listened_to_in_another():
    """A5.4: it was restarted."""
    async with listening(ends, says(404), tells) as (told, engine):
        await until(lambda: asked_for(engine, "initialize") == 2, "there is another session")
        await until(lambda: told.times >= 1, "a change is told")


@pytest.mark.parametrize("status", [405, 404, 400])
async def test_a_server_without_such_a_stream_is_left_in_peace(status):
    """B6: neither asked again and again, nor taken for one that forgets."""
    async with listening(says(status)) as (told, engine):
        await until(lambda: any(request.method == "GET" for request in engine.received), "it was asked")
        for _ in range(50):
            await asyncio.sleep(0)
        assert asked_for(engine, "initialize") == 1 and told.times == 0
        assert sum(request.method == "GET" for request in engine.received) <= 2


@pytest.mark.parametrize("name", ["tools", "prompts", "resources"])
async def test_a_change_of_any_list_is_told_by_a_server_with_a_handshake(name):
    async def tells_of_it(request: Received, writer: asyncio.StreamWriter) -> None:
        message = CHANGED | {"method": f"notifications/{name}/list_changed"}
        writer.write(STREAM_HEAD + f"event: message\ndata: {json.dumps(message)}\n\n".encode())
        await asyncio.Event().wait()

    async with listening(tells_of_it) as (told, _):
        await until(lambda: told.times == 1, "the change is told")


async def test_a_stateless_server_is_asked_for_the_changes_that_it_announces():
    listened: list[dict[str, Any]] = []

    async def behave(request: Received, writer: asyncio.StreamWriter) -> None:
        message = request.json
        if message["method"] == "server/discover":
            capabilities = {
                name: {"listChanged": name != "tools"} for name in ("tools", "prompts", "resources")
            }
            found = {
                "supportedVersions": ["2026-07-28"],
                "capabilities": capabilities,
                "resultType": "complete",
            }
            answer = {"jsonrpc": "2.0", "id": message["id"], "result": found}
            writer.write(response(200, json.dumps(answer)))
            return
        listened.append(message["params"]["notifications"])
        changed = CHANGED | {"method": "notifications/prompts/list_changed"}
        writer.write(STREAM_HEAD + f"event: message\ndata: {json.dumps(changed)}\n\n".encode())
        await asyncio.Event().wait()

    async with ScriptedEngine(behave) as engine:
        connector = McpConnector(McpConfig(url=f"{engine.base_url}/mcp"))
        async with closing(connector):
            told = Told()
            connector.on_listing_changed(told)
            await until(lambda: told.times == 1, "the change is told")
    assert listened[0] == {"promptsListChanged": True, "resourcesListChanged": True}


class Sessions:
    """A server with sessions, which it can lose."""

    def __init__(self, refusal: bytes) -> None:
        self.refusal = refusal
        self.known: set[str] = set()
        self.begun = self.pings = 0
        self.may_answer = asyncio.Event()

    async def behave(self, request: Received, writer: asyncio.StreamWriter) -> None:
        if request.method != "POST":
            writer.write(response(405))
            return
        message, session = request.json, request.headers.get("mcp-session-id", "")
        if message["method"] == "server/discover":
            writer.write(response(404, json.dumps(error(message, "Method not found"))))
        elif message["method"] == "initialize":
            self.begun += 1
            self.known.add(session := f"session-{self.begun}")
            writer.write(response(200, json.dumps(initialized(message)), mcp_session_id=session))
        elif session not in self.known or message.get("params", {}).get("name") == "breaks":
            writer.write(self.refusal)
        elif "id" not in message:
            writer.write(response(202))
        else:
            self.pings += message["method"] == "ping"
            if message.get("params", {}).get("name") == "slow":
                await self.may_answer.wait()
            writer.write(response(200, json.dumps(result(message, {"content": []}))))


ERROR = '{"jsonrpc": "2.0", "id": null, "error": {"code": -32000, "message": "Session not found"}}'
REFUSALS = [
    response(status, body, content_type=kind)
    for status in (500, 502, 503, 501, 401, 403)
    for body, kind in (("", "text/plain"), ("Session expired", "text/plain"), (ERROR, "application/json"))
] + [response(410, "Gone"), response(400, "Unknown client"), response(409, "{}")]


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: " ".join(str(refusal[9:12]).split()))
async def test_a_session_that_a_server_lost_without_saying_so_is_replaced_with_the_next_call(refusal):
    """A5.4: it should answer 404, and some answer with what they answer to anything that goes wrong."""
    sessions = Sessions(refusal)
    async with ScriptedEngine(sessions.behave) as engine:
        connector = McpConnector(McpConfig(url=f"{engine.base_url}/mcp"))
        async with closing(connector):
            await call(connector, "good")
            sessions.known.clear()
            with suppress(ConnectorError):
                await call(connector, "good")
            await call(connector, "good")
    assert sessions.begun == 2


@pytest.mark.parametrize("refusal", REFUSALS[:12:2], ids=lambda refusal: str(refusal[9:12]))
async def test_a_refusal_by_a_server_with_its_session_costs_no_other_call_anything(refusal):
    """It is asked once whether it knows the session, and that goes on."""
    sessions = Sessions(refusal)
    async with ScriptedEngine(sessions.behave) as engine:
        connector = McpConnector(McpConfig(url=f"{engine.base_url}/mcp"))
        async with closing(connector):
            slow = asyncio.create_task(call(connector, "slow"))
            for _ in range(2):
                with pytest.raises(ConnectorError):
                    await call(connector, "breaks")
                await call(connector, "good")
            sessions.known.clear()
            with suppress(ConnectorError):
                await call(connector, "good")
            await call(connector, "good")
            sessions.may_answer.set()
            await slow
    assert sessions.begun == 2
    assert sessions.pings == 2


async def call(connector: McpConnector, name: str) -> None:
    started = await connector.start(WorkflowRef(id=name, name=name), {}, key=uuid4())
    assert started.snapshot is not None and started.snapshot.state is RunState.COMPLETED
