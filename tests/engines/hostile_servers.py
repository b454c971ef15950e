"""MCP servers that do on the wire what no server should, each as a behaviour of a scripted engine."""

import asyncio
import itertools
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from connectors.background import start_in_background_loop
from connectors.testing import advance_clock
from tests.connectors.scripted import ARRIVED_SECONDS, Behaviour, Received, ScriptedEngine, response

SESSION = "the-session"
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n"
    b"mcp-session-id: the-session\r\n\r\n"
)
GOOD_TOOL: dict[str, Any] = {"name": "good", "description": "A good tool.", "inputSchema": {"type": "object"}}

Answer = Callable[[Any, asyncio.StreamWriter], Any]
"""Gets the request's JSON-RPC message; returns what to send as JSON, or None where it has sent something."""


def result(message: Any, value: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": message["id"], "result": value}


def error(message: Any, words: str, code: int = -32601) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": message.get("id"), "error": {"code": code, "message": words}}


def initialized(message: Any) -> dict[str, Any]:
    version = message["params"]["protocolVersion"]
    capabilities = {"tools": {"listChanged": True}}
    return result(
        message,
        {
            "protocolVersion": version,
            "capabilities": capabilities,
            "serverInfo": {"name": "x", "version": "1"},
        },
    )


def server(**answers: Answer) -> Behaviour:
    """Well-behaved but for what is given for `initialize`, `list`, `call` or `stream`; prompts and resources
    only where `prompts`, `resources`, `templates`, `prompt` or `resource` is given."""
    methods = {"initialize": "initialize", "tools/list": "list", "tools/call": "call"}
    further = {
        "prompts/list": "prompts",
        "prompts/get": "prompt",
        "resources/list": "resources",
        "resources/templates/list": "templates",
        "resources/read": "resource",
    }
    methods |= {method: name for method, name in further.items() if name in answers}
    usual: dict[str, Answer] = {
        "initialize": lambda message, _: initialized(message),
        "list": lambda message, _: result(message, {"tools": [GOOD_TOOL]}),
        "call": lambda message, _: result(message, {"content": [{"type": "text", "text": "done"}]}),
    }

    async def behave(request: Received, writer: asyncio.StreamWriter) -> None:
        if request.method != "POST":
            await _answer_stream(answers.get("stream"), request, writer)
            return
        message = request.json
        name = methods.get(message.get("method"))
        if name is None:
            known = "id" not in message or "method" not in message
            body = b"" if known else json.dumps(error(message, "Method not found")).encode()
            writer.write(response(202 if known else 404, body))
            return
        answer = (usual | answers)[name](message, writer)
        if asyncio.iscoroutine(answer):
            answer = await answer
        send(answer, writer)

    return behave


def send(answer: Any, writer: asyncio.StreamWriter) -> None:
    """JSON as such; bytes as they are; None has been sent already."""
    if answer is not None:
        is_raw = isinstance(answer, bytes)
        writer.write(answer if is_raw else response(200, json.dumps(answer), mcp_session_id=SESSION))


def as_event(message: Any) -> bytes:
    """On an event stream, which ends with it."""
    event = f"event: message\ndata: {json.dumps(message)}\n\n"
    return response(200, event, content_type="text/event-stream", mcp_session_id=SESSION)


async def _answer_stream(answer: Answer | None, request: Received, writer: asyncio.StreamWriter) -> None:
    if answer is None or request.method != "GET":
        writer.write(response(405))
        return
    await answer(request, writer)


async def silence(message: Any, writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def passing_silence(message: Any, writer: asyncio.StreamWriter) -> None:
    """Ten seconds of it pass at once for clients on this event loop and on the background loop."""
    start_in_background_loop(_pass_quickly())
    await _pass_quickly()
    await asyncio.Event().wait()


async def _pass_quickly() -> None:
    await asyncio.sleep(ARRIVED_SECONDS)
    advance_clock(10)


def cursors_for_ever() -> Answer:
    """Every page is full of new tools and leads to another one."""
    pages = itertools.count()

    def answer(message: Any, _: asyncio.StreamWriter) -> Any:
        page = next(pages)
        tools = [GOOD_TOOL | {"name": f"tool-{page}-{number}"} for number in range(500)]
        return result(message, {"tools": tools, "nextCursor": str(page)})

    return answer


async def huge_event(message: Any, writer: asyncio.StreamWriter) -> None:
    """50 MB in one event."""
    writer.write(STREAM_HEAD + b'event: message\ndata: {"jsonrpc": "2.0", "id": 1, "result": {"x": "')
    await _pour(writer, b"x" * 65_536, 50_000_000)


async def huge_body(message: Any, writer: asyncio.StreamWriter) -> None:
    """50 MB of JSON."""
    writer.write(response(200, b"", content_length="50000000") + b'{"jsonrpc": "2.0", "result": "')
    await _pour(writer, b"x" * 65_536, 50_000_000)


async def endless_progress(message: Any, writer: asyncio.StreamWriter) -> None:
    """As many notifications as the line takes."""
    token = message.get("params", {}).get("_meta", {}).get("progressToken", 0)
    params = {"progressToken": token, "progress": 1, "total": 2, "message": "still here"}
    told = json.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
    writer.write(STREAM_HEAD)
    await _pour(writer, f"event: message\ndata: {told}\n\n".encode() * 500, 10_000_000_000)


async def _pour(writer: asyncio.StreamWriter, piece: bytes, most: int) -> None:
    sent = 0
    while sent < most:
        writer.write(piece)
        sent += len(piece)
        await writer.drain()
    await asyncio.Event().wait()


def sends_raw(body: bytes) -> Answer:
    def answer(message: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(response(200, body, mcp_session_id=SESSION))

    return answer


def lists(*tools: Any) -> Answer:
    return lambda message, _: result(message, {"tools": list(tools)})


def answers(value: Any) -> Answer:
    return lambda message, _: result(message, value)


@contextmanager
def hostile(behave: Behaviour) -> Iterator[ScriptedEngine]:
    """On a loop in a thread of its own, so that it goes on whatever the test waits for."""
    engine, up, end = ScriptedEngine(behave), threading.Event(), []

    async def serve() -> None:
        over = asyncio.Event()
        end.append(partial(asyncio.get_running_loop().call_soon_threadsafe, over.set))
        async with engine:
            up.set()
            await over.wait()

    # `asyncio.run` also ends what the loop still does for connections that are not ready yet.
    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert up.wait(20), "the server did not start"
    try:
        yield engine
    finally:
        end[0]()
        thread.join(20)
