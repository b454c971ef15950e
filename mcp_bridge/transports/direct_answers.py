"""Well-formed `tools/list` and `tools/call` requests over HTTP, answered without the SDK's dispatcher.

Lists are answered from memory. A request that repeats an earlier one, by its digest, is not validated again;
access is checked every time.

Calls of 2026-07-28 are validated by the SDK's own functions and pass through its middleware. This saves the
SDK's tasks and streams between the request and the tool, and the second validation of an answer that is made
from its models. Requests for progress or log messages, and malformed ones, go through the SDK.
"""

import asyncio
import hashlib
import json
from collections.abc import Awaitable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import chain
from typing import Any, cast

from cachetools import FIFOCache
from mcp import MCPError
from mcp.server.connection import Connection
from mcp.server.context import CallNext, HandlerResult
from mcp.server.runner import modern_error_data
from mcp.shared.inbound import (
    ERROR_CODE_HTTP_STATUS,
    MCP_PARAM_HEADER_PREFIX,
    MCP_PROTOCOL_VERSION_HEADER,
    InboundModernRoute,
    classify_inbound_request,
    find_duplicated_routing_header,
)
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    CORE_RESULT_TYPES,
    DEFAULT_NEGOTIATED_VERSION,
    LOG_LEVEL_META_KEY,
    SERVER_INFO_META_KEY,
    CallToolRequestParams,
    CallToolResult,
    ClientCapabilities,
    InitializeRequestParams,
)
from mcp_types.methods import serialize_server_result, validate_client_request
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcp_bridge.bearers import recognise, sent_token
from mcp_bridge.request_meta import Context
from mcp_bridge.server import CatalogueServer
from mcp_bridge.tokens import Access, OtherToolset, digest_of
from mcp_bridge.tool_lists import METHOD, ToolLists, View
from telemetry.metrics import mcp_requests

UNCACHED = (b"cache-control", b"no-store")
MEMBERS = {"jsonrpc", "id", "method", "params"}
LARGEST_ID = 2**63  # Python converts no integer of more than 4,300 digits
REMEMBERED_REQUESTS = 4096
LARGEST_REMEMBERED_BODY = 4096
METHOD_BYTES = METHOD.encode()
ANSWERED = mcp_requests.labels(METHOD, "ok")
CALL_METHOD = "tools/call"
UNWATCHED_SECONDS = 0.02  # Until the connection is watched; most cached answers are sent by then
PING_SECONDS = 15.0  # As the SDK: after so long without an answer an event stream begins, which proxies keep
STREAM_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"connection", b"keep-alive"),
    (b"x-accel-buffering", b"no"),
]
PING = {"type": "http.response.body", "body": b": ping\r\n\r\n", "more_body": True}
PARAM_HEADER = MCP_PARAM_HEADER_PREFIX.lower().encode()


@dataclass(slots=True)
class ListingRequest:
    id: str | int
    version: str
    cursor: str | None
    token_digest: str
    slug: str | None
    _asked_by: tuple[Access, Access, View | None] | None = field(default=None, repr=False)

    @property
    def view(self) -> View | None:
        """None if the token is unknown to this process or bound to another toolset."""
        known = recognise(self.token_digest)
        if known is None:
            return None
        if self._asked_by is None or self._asked_by[0] is not known:
            try:
                access = known.at(self.slug)
            except OtherToolset:
                return None
            unlimited = None if access.bounds.person is not None else View.at_once(access, self.version)
            self._asked_by = (known, access, unlimited)
        _, access, view = self._asked_by
        # Reservations change without the token.
        return view or View.at_once(access, self.version)


class DirectAnswer:
    """A JSON-RPC answer that does not copy the bytes of the shared result."""

    def __init__(self, request: ListingRequest, closed_result: bytes) -> None:
        """`closed_result`: the result with the closing brace of the answer."""
        self._begin = b'{"jsonrpc":"2.0","id":%b,"result":' % json.dumps(request.id).encode()
        self._end = closed_result

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        length = str(len(self._begin) + len(self._end)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", length), UNCACHED]
        ANSWERED.inc()
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": self._begin, "more_body": True})
        await send({"type": "http.response.body", "body": self._end, "more_body": False})


class DirectAnswers:
    def __init__(self, lists: ToolLists) -> None:
        self._lists = lists
        self._known: FIFOCache[bytes, ListingRequest] = FIFOCache(REMEMBERED_REQUESTS)

    def read(self, scope: Scope, body: bytes, message: dict[str, Any]) -> ListingRequest | None:
        if message.get("method") != METHOD or (version := valid_version(scope, message)) is None:
            return None
        sent = next(value for name, value in scope["headers"] if name == b"authorization")
        request = ListingRequest(
            id=message["id"],
            version=version,
            cursor=(message.get("params") or {}).get("cursor"),
            token_digest=digest_of(sent_token(sent.decode("latin-1")) or ""),
            slug=scope.get("path_params", {}).get("slug"),
        )
        if len(body) <= LARGEST_REMEMBERED_BODY:
            self._known[_digest(scope, body)] = request
        return request

    async def answer(self, request: ListingRequest, access: Access) -> DirectAnswer | None:
        """None for an invalid cursor, which the SDK reports."""
        try:
            page_json = await self._lists.page_json(access, request.version, request.cursor)
        except MCPError:
            return None
        return DirectAnswer(request, page_json)

    def recall(self, scope: Scope, first: Message) -> DirectAnswer | None:
        """The answer to a request seen before, if all it needs is in memory and fresh. `first`: the message
        that its body begins with."""
        body = first.get("body", b"")
        if METHOD_BYTES not in body or first.get("more_body") or len(body) > LARGEST_REMEMBERED_BODY:
            return None
        request = self._known.get(_digest(scope, body))
        view = None if request is None else request.view
        if request is None or view is None:
            return None
        try:
            page_json = self._lists.recall(view, request.cursor)
        except MCPError:
            return None
        return None if page_json is None else DirectAnswer(request, page_json)


@dataclass(frozen=True)
class Shortcut:
    """ASGI middleware in front of everything; passes on what it cannot answer."""

    app: ASGIApp
    answers: DirectAnswers
    endpoint: ASGIApp  # What the router would choose for /mcp; it recalls answers itself

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] != "http" or scope["method"] != "POST" or not scope["path"].startswith("/mcp"):
            return self.app(scope, receive, send)
        if scope["path"] == "/mcp":
            return self.endpoint(scope, receive, send)
        return self._recall_or_route(scope, receive, send)

    async def _recall_or_route(self, scope: Scope, receive: Receive, send: Send) -> None:
        first = await receive()
        answer = self.answers.recall(scope, first)
        if answer is not None:
            await answer(scope, receive, send)
        else:
            await self.app(scope, with_first(first, receive), send)


def with_first(first: Message, receive: Receive) -> Receive:
    """Receives `first`, which has been received already, and then what follows it."""
    again = [first]

    async def replay() -> Message:
        return again.pop() if again else await receive()

    return replay


async def wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def event_of(message: bytes) -> bytes:
    """One message of an event stream."""
    return b"event: message\r\ndata: %b\r\n\r\n" % message


def _digest(scope: Scope, body: bytes) -> bytes:
    """Of all that makes a request well-formed; keeps no secret."""
    parts = [b"%d" % len(body), body, scope["path"].encode(), *chain.from_iterable(scope["headers"])]
    return hashlib.sha256(b"\0".join(parts)).digest()


def valid_version(scope: Scope, message: dict[str, Any]) -> str | None:
    """The protocol version of a request that passes the SDK's checks."""
    key = message.get("id")
    is_usual = type(key) is str or (type(key) is int and abs(key) <= LARGEST_ID)
    if message.keys() - MEMBERS or message.get("jsonrpc") != "2.0" or not is_usual:
        return None
    pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
    headers = dict(reversed(pairs))  # The first of several, as in the SDK.
    version: str | None = headers.get(MCP_PROTOCOL_VERSION_HEADER, DEFAULT_NEGOTIATED_VERSION)
    if version not in HANDSHAKE_PROTOCOL_VERSIONS:
        if find_duplicated_routing_header(pairs) is not None:
            return None
        route = classify_inbound_request(message, headers=headers)
        version = route.protocol_version if isinstance(route, InboundModernRoute) else None
    if version is None:
        return None
    try:
        validate_client_request(message["method"], version, message.get("params"))
    except ValidationError:
        return None
    return version


@dataclass(frozen=True, slots=True)
class _Client:
    """What a call asks its session for; without progress and log messages it sends nothing."""

    client_params: InitializeRequestParams | None
    client_capabilities: ClientCapabilities | None


@lru_cache(maxsize=1_000)
def _client(version: str, envelope: str) -> _Client:
    known = Connection.from_envelope(version, *json.loads(envelope))
    return _Client(known.client_params, known.client_capabilities)


class DirectCalls:
    def __init__(self, server: CatalogueServer) -> None:
        tool_calls = server.get_request_handler(CALL_METHOD)
        assert tool_calls is not None, "the server has tools"
        self._call_tool, self._middleware = tool_calls.handler, server.middleware
        self._stamp = server.server_info_stamp

    def read(self, scope: Scope, message: dict[str, Any]) -> "DirectCall | None":
        version = valid_version(scope, message)
        if version not in MODERN_PROTOCOL_VERSIONS:
            return None
        sent: dict[str, Any] = message["params"]
        meta = sent["_meta"]
        if "progressToken" in meta or LOG_LEVEL_META_KEY in meta:
            return None
        if any(name.startswith(PARAM_HEADER) for name, _ in scope["headers"]):
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
            method=CALL_METHOD,
            params=sent,
            request_id=message["id"],
            meta=params.meta,
            request=Request(scope),
        )
        return DirectCall(self, context, params)

    def result(self, context: Context, params: CallToolRequestParams) -> Awaitable[HandlerResult]:
        call: CallNext = partial(self._run, params)
        for middleware in reversed(self._middleware):
            call = partial(middleware, call_next=call)
        return call(context)

    async def _run(self, params: CallToolRequestParams, context: Context) -> HandlerResult:
        result: Any = await self._call_tool(context, params)
        if isinstance(result, CallToolResult):
            shown = result.model_dump(by_alias=True, mode="json", exclude_none=True)
        elif result["resultType"] in CORE_RESULT_TYPES:
            shown = serialize_server_result(CALL_METHOD, context.protocol_version, result)
        else:
            shown = dict(result)
        shown["_meta"] = {**(shown.get("_meta") or {}), SERVER_INFO_META_KEY: self._stamp}
        return shown


class DirectCall:
    """ASGI application that answers one call. A client that closes the connection cancels it."""

    def __init__(self, calls: DirectCalls, context: Context, params: CallToolRequestParams) -> None:
        self._calls, self._context, self._params = calls, context, params
        self._watch: asyncio.Task[None] | None = None
        self._is_stream = self._is_gone = self._is_writing = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None, "requests are tasks"

        def watch() -> None:
            self._watch = loop.create_task(self._attend(task, receive, send))

        timer = loop.call_later(UNWATCHED_SECONDS, watch)
        status, document = 200, dict[str, Any](jsonrpc="2.0", id=self._context.request_id)
        try:
            document["result"] = await self._calls.result(self._context, self._params)
        except asyncio.CancelledError:
            if not self._is_gone:
                raise
            task.uncancel()
            return
        except Exception as problem:  # noqa: BLE001 - logged where it is no refusal
            error = modern_error_data(problem)
            status = ERROR_CODE_HTTP_STATUS.get(error.code, 200)
            document["error"] = error.model_dump(by_alias=True, mode="json", exclude_none=True)
        finally:
            timer.cancel()
            if self._watch is not None:
                self._watch.cancel()
        if self._watch is not None and self._is_writing:
            await asyncio.wait({self._watch})
        body = json.dumps(document, separators=(",", ":")).encode()
        if self._is_stream:
            await send({"type": "http.response.body", "body": event_of(body), "more_body": False})
            return
        length = str(len(body)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", length), UNCACHED]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})

    async def _attend(self, task: asyncio.Task[Any], receive: Receive, send: Send) -> None:
        while True:
            try:
                async with asyncio.timeout(PING_SECONDS):
                    await wait_for_disconnect(receive)
            except TimeoutError:
                self._is_writing = True
                if not self._is_stream:
                    await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
                    self._is_stream = True
                await send(PING)
                self._is_writing = False
            else:
                self._is_gone = True
                task.cancel()
                return
