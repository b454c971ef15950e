"""Servers that speak the protocol with a handshake and the one without: each caller is served in its own."""

import asyncio
import json
from typing import Any
from uuid import uuid4

import pytest

from connectors.errors import Rejected
from connectors.protocol import RunCaller, RunState, WorkflowRef
from connectors.testing import closing
from connectors.upstream_mcp.config import McpConfig
from connectors.upstream_mcp.connector import McpConnector
from tests.connectors.scripted import Received, ScriptedEngine, response
from tests.engines.hostile_servers import GOOD_TOOL, SESSION, STREAM_HEAD, error, initialized, result

FORMS = {"elicitation": {"form": {}}}
ASKED = {
    "jsonrpc": "2.0",
    "id": "q",
    "method": "elicitation/create",
    "params": {"message": "Which seat?", "requestedSchema": {"type": "object"}},
}


class BothEras:
    """Asks during a call only with a handshake."""

    def __init__(
        self,
        older: list[str],
        *,
        refuses: bool = False,
        fails: bool = False,
        asks_on_its_own_stream: bool = False,
    ) -> None:
        self.older = older
        self.refuses = refuses
        self.fails = fails
        self.asks_on_its_own_stream = asks_on_its_own_stream
        self.called, self.answered = asyncio.Event(), asyncio.Event()
        self.listed = 0

    async def behave(self, request: Received, writer: asyncio.StreamWriter) -> None:
        if request.method != "POST":
            await self.stream(request, writer)
            return
        message, is_older = request.json, "mcp-session-id" in request.headers
        answer: Any = b""
        match message.get("method"):
            case "server/discover":
                answer = result(message, {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}})
            case "initialize":
                answer = error(message, "not here") if self.refuses else initialized(message)
            case "tools/list":
                self.listed += is_older
                names = self.older if is_older else ["good", "newer"]
                answer = result(message, {"tools": [GOOD_TOOL | {"name": name} for name in names]})
            case "tools/call":
                await self.answer_call(message, writer, is_older=is_older)
                return
            case None:
                self.answered.set()
        session = {"mcp_session_id": SESSION} if message.get("method") == "initialize" else {}
        writer.write(response(200, json.dumps(answer), **session) if answer else response(202))

    async def answer_call(self, message: Any, writer: asyncio.StreamWriter, *, is_older: bool) -> None:
        self.called.set()
        writer.write(STREAM_HEAD)
        if is_older and self.fails:
            writer.write(f"data: {json.dumps(error(message, 'Invalid result', -32603))}\n\n".encode())
            writer.close()
            return
        if is_older:
            if not self.asks_on_its_own_stream:
                writer.write(f"data: {json.dumps(ASKED)}\n\n".encode())
            await self.answered.wait()
        text = "asked" if is_older else "not asked"
        answer = result(message, {"content": [{"type": "text", "text": text}]})
        writer.write(f"data: {json.dumps(answer)}\n\n".encode())
        writer.close()

    async def stream(self, request: Received, writer: asyncio.StreamWriter) -> None:
        if request.method != "GET" or not self.asks_on_its_own_stream:
            writer.write(response(405))
            return
        writer.write(STREAM_HEAD)
        await writer.drain()
        await self.called.wait()
        writer.write(b"id: 1\ndata:\n\nid: 2\ndata: " + json.dumps(ASKED).encode() + b"\n\n")
        await asyncio.Event().wait()


async def call(connector: McpConnector, *, tool: str = "good", task: bool = False, **caller: Any) -> Any:
    async def ask(requests: dict[str, Any]) -> dict[str, Any]:
        return {key: {"action": "decline"} for key in requests}

    called_by = RunCaller(**({"capabilities": FORMS, "protocol_version": "2025-11-25"} | caller), ask=ask)
    ref = WorkflowRef(id=tool, name=tool, metadata={"mcp": {"task": task}})
    snapshot = (await connector.start(ref, {}, key=uuid4(), caller=called_by)).snapshot
    assert snapshot is not None and snapshot.state is RunState.COMPLETED
    return snapshot.output


@pytest.mark.parametrize(
    ("server", "caller", "heard"),
    [
        ({}, {}, "asked"),
        ({}, {"protocol_version": "2025-03-26"}, "asked"),
        ({"asks_on_its_own_stream": True}, {}, "asked"),
        ({}, {"protocol_version": "2026-07-28"}, "not asked"),
        ({}, {"protocol_version": ""}, "not asked"),
        ({}, {"capabilities": {}}, "not asked"),
        ({}, {"capabilities": {"sampling": {}}}, "not asked"),
        ({}, {"tool": "newer"}, "not asked"),
        ({}, {"task": True}, "not asked"),
        ({"refuses": True}, {}, "not asked"),
    ],
)
async def test_a_caller_is_asked_during_the_call_if_both_it_and_the_server_know_the_handshake(
    server, caller, heard
):
    both = BothEras(["good"], **server)
    async with ScriptedEngine(both.behave) as engine:
        connector = McpConnector(McpConfig(url=f"{engine.base_url}/mcp"))
        async with closing(connector):
            assert await call(connector, **caller) == heard
            assert await call(connector, **caller) == heard
    assert both.listed <= 1


async def test_a_tool_that_fails_with_the_handshake_is_called_without_it_from_then_on():
    """Some ask only in the newest form, which the SDKs answer to callers with a handshake by an error."""
    both = BothEras(["good"], fails=True)
    async with ScriptedEngine(both.behave) as engine:
        connector = McpConnector(McpConfig(url=f"{engine.base_url}/mcp"))
        async with closing(connector):
            with pytest.raises(Rejected):
                await call(connector)
            assert await call(connector) == "not asked"
