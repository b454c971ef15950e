"""An MCP server that begins a conversation as it should and says nothing more; as a program, over stdio."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mcp_types.version import LATEST_HANDSHAKE_VERSION, LATEST_MODERN_VERSION
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from connectors.testing import Asked, http_answer

CAPABILITIES = {"tools": {}, "tasks": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}}
INFO = {"name": "mute", "version": "1"}


def greeting(message: dict[str, Any], era: str) -> dict[str, Any] | None:
    """The answer to a message that begins a conversation in this era; None to all others."""
    if message.get("method") == "server/discover" and era != "2025":
        result: dict[str, Any] = {"supportedVersions": [LATEST_MODERN_VERSION], "resultType": "complete"}
    elif message.get("method") == "server/discover":
        error = {"code": -32601, "message": "Method not found"}
        return {"jsonrpc": "2.0", "id": message["id"], "error": error}
    elif message.get("method") == "initialize":
        result = {"protocolVersion": LATEST_HANDSHAKE_VERSION, "serverInfo": INFO}
    else:
        return None
    return {"jsonrpc": "2.0", "id": message["id"], "result": result | {"capabilities": CAPABILITIES}}


@contextmanager
def serving_mute_server(era: str) -> Iterator[str]:
    """Its URL, for the length of the block."""
    # This needs Django's settings, which a program over stdio has not.
    from tests.mcp_bridge.serving import serving

    async def answer(request: Request) -> Response:
        message = await request.json()
        if (told := greeting(message, era)) is not None:
            return JSONResponse(told)
        if "id" not in message:
            return Response(status_code=202)
        await request.receive()
        return Response(status_code=204)

    application = Starlette(routes=[Route("/mcp", answer, methods=["POST"])])
    with serving(application, timeout_graceful_shutdown=1) as address:
        yield f"{address}/mcp"


def answer_after_handshake(asked: Asked, answer: bytes, *, era: str) -> bytes:
    """The whole HTTP answer: `answer` to every request but those that begin a conversation."""
    if asked.method != "POST":
        return b"HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    message = json.loads(asked.body)
    if (told := greeting(message, era)) is not None:
        return http_answer(json.dumps(told).encode())
    if "id" not in message:
        return b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    return answer


def main() -> None:
    for line in sys.stdin:
        if (told := greeting(json.loads(line), "2026")) is not None:
            print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
