"""Well-formed `tools/call` requests of 2026-07-28 over HTTP, run without the SDK's dispatcher.

The SDK's own functions validate them and its middleware surrounds them. What is saved are its tasks and
streams between the request and the tool, and the second validation of an answer that is made from its models.
Requests that want progress, and all that is not well-formed, go the SDK's way.
"""

import asyncio
import json
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, cast

from mcp.server.connection import Connection
from mcp.server.context import CallNext, HandlerResult
from mcp.server.runner import modern_error_data
from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS, MCP_PARAM_HEADER_PREFIX
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    CORE_RESULT_TYPES,
    SERVER_INFO_META_KEY,
    CallToolRequestParams,
    CallToolResult,
    ClientCapabilities,
    InitializeRequestParams,
    RequestId,
)
from mcp_types.methods import serialize_server_result
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from mcp_bridge.declarations import Context
from mcp_bridge.server import CatalogueServer
from mcp_bridge.transports.direct_answers import UNCACHED, valid_version

METHOD = "tools/call"
UNWATCHED_SECONDS = 0.02  # Until the connection is watched; most cached answers are sent by then
PING_SECONDS = 15.0  # As the SDK: after so long without an answer an event stream begins, which proxies keep
EVENT_STREAM = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"connection", b"keep-alive"),
    (b"x-accel-buffering", b"no"),
]
PING = {"type": "http.response.body", "body": b": ping\r\n\r\n", "more_body": True}
PARAM_HEADER = MCP_PARAM_HEADER_PREFIX.lower().encode()


@dataclass(frozen=True, slots=True)
class _Client:
    """What a call asks its session for; without progress it sends nothing."""

    client_params: InitializeRequestParams | None
    client_capabilities: ClientCapabilities | None


@lru_cache(maxsize=1_000)
def _client(version: str, envelope: str) -> _Client:
    known = Connection.from_envelope(version, *json.loads(envelope))
    return _Client(known.client_params, known.client_capabilities)


class DirectCalls:
    def __init__(self, server: CatalogueServer) -> None:
        tool_calls = server.get_request_handler(METHOD)
        assert tool_calls is not None, "the server has tools"
        self._call_tool, self._middleware = tool_calls.handler, server.middleware
        self._stamp = server.server_info_stamp

    def read(self, scope: Scope, message: dict[str, Any]) -> "DirectCall | None":
        version = valid_version(scope, message)
        if version not in MODERN_PROTOCOL_VERSIONS:
            return None
        sent: dict[str, Any] = message["params"]
        meta = sent["_meta"]
        if "progressToken" in meta:
            return None
        for name, _ in scope["headers"]:
            if name.startswith(PARAM_HEADER):
                return None
        try:
            params = CallToolRequestParams.model_validate(sent, by_name=False)
        except ValidationError:
            return None
        envelope = json.dumps([meta.get(CLIENT_INFO_META_KEY), meta.get(CLIENT_CAPABILITIES_META_KEY)])
        context = Context(
            session=cast(Any, _client(version, envelope)),
            lifespan_context=None,
            protocol_version=version,
            method=METHOD,
            params=sent,
            request_id=message["id"],
            meta=params.meta,
            request=Request(scope),
        )
        return DirectCall(self, context, params)

    async def result(self, context: Context, params: CallToolRequestParams) -> dict[str, Any]:
        call: CallNext = partial(self._run, params)
        for middleware in reversed(self._middleware):
            call = partial(middleware, call_next=call)
        return cast(dict[str, Any], await call(context))

    async def _run(self, params: CallToolRequestParams, context: Context) -> HandlerResult:
        result: Any = await self._call_tool(context, params)
        if isinstance(result, CallToolResult):
            shown = result.model_dump(by_alias=True, mode="json", exclude_none=True)
        elif result["resultType"] in CORE_RESULT_TYPES:
            shown = serialize_server_result(METHOD, context.protocol_version, result)
        else:
            shown = dict(result)
        shown["_meta"] = {**(shown.get("_meta") or {}), SERVER_INFO_META_KEY: self._stamp}
        return shown


class DirectCall:
    """ASGI application that answers one call. A client that closes the connection cancels it."""

    def __init__(self, calls: DirectCalls, context: Context, params: CallToolRequestParams) -> None:
        self._calls, self._context, self._params = calls, context, params
        self._watch: asyncio.Task[None] | None = None
        self._is_stream = self._is_gone = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None, "requests are tasks"

        def watch() -> None:
            self._watch = loop.create_task(self._attend(task, receive, send))

        timer = loop.call_later(UNWATCHED_SECONDS, watch)
        try:
            status, body = await self._answer(self._context.request_id)
        except asyncio.CancelledError:
            if not self._is_gone:
                raise
            task.uncancel()
            return
        finally:
            timer.cancel()
            if self._watch is not None:
                self._watch.cancel()
        if self._watch is not None:
            # It may be writing.
            await asyncio.wait({self._watch})
        if self._is_stream:
            event = b"event: message\r\ndata: %b\r\n\r\n" % body
            await send({"type": "http.response.body", "body": event, "more_body": False})
            return
        length = str(len(body)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", length), UNCACHED]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})

    async def _answer(self, request_id: RequestId | None) -> tuple[int, bytes]:
        document: dict[str, Any] = {"jsonrpc": "2.0", "id": request_id}
        status = 200
        try:
            document["result"] = await self._calls.result(self._context, self._params)
        except Exception as problem:  # noqa: BLE001 - logged where it is no refusal
            error = modern_error_data(problem)
            status = ERROR_CODE_HTTP_STATUS.get(error.code, 200)
            document["error"] = error.model_dump(by_alias=True, mode="json", exclude_none=True)
        return status, json.dumps(document, separators=(",", ":")).encode()

    async def _attend(self, task: asyncio.Task[Any], receive: Receive, send: Send) -> None:
        while True:
            try:
                async with asyncio.timeout(PING_SECONDS):
                    while (await receive())["type"] != "http.disconnect":
                        pass
            except TimeoutError:
                if not self._is_stream:
                    await send({"type": "http.response.start", "status": 200, "headers": EVENT_STREAM})
                    self._is_stream = True
                await send(PING)
            else:
                self._is_gone = True
                task.cancel()
                return
