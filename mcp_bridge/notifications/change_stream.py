"""`GET /mcp`, for clients of handshake versions: a stream of notifications that a list has changed."""

import json

import anyio
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp.shared.subscriptions import ServerEvent, event_to_notification
from mcp_types import DEFAULT_NEGOTIATED_VERSION, INVALID_REQUEST
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from mcp_bridge.notifications.notifier import (
    Interests,
    ListSnapshots,
    Notifier,
    OpenStreams,
    TaskChanged,
    TooManyStreams,
    admissible_lists,
)
from mcp_bridge.tokens import Access

EVENT_STREAM = "text/event-stream"
PING_SECONDS = 15.0  # Between comments, which keep proxies from closing the connection
RECONNECT_MILLISECONDS = 3000
"""After which clients reconnect when the server ends the stream, as at a restart."""
RETRY_SECONDS = 60
HEADERS = {"content-type": EVENT_STREAM, "cache-control": "no-cache, no-transform", "x-accel-buffering": "no"}


class ChangeStreams:
    """The ASGI application for authenticated GET requests."""

    def __init__(self, streams: OpenStreams, snapshots: ListSnapshots) -> None:
        self._streams = streams
        self._snapshots = snapshots

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, access = Headers(scope=scope), scope["state"]["access"]
        version = headers.get(MCP_PROTOCOL_VERSION_HEADER, DEFAULT_NEGOTIATED_VERSION)
        interests = Interests(events=admissible_lists(access))
        if version not in HANDSHAKE_PROTOCOL_VERSIONS or not interests.events:
            await Response(status_code=405, headers={"Allow": "POST"})(scope, receive, send)
        elif EVENT_STREAM not in headers.get("accept", "").lower():
            refusal = _refusal(406, f"GET opens a stream of notifications: send Accept: {EVENT_STREAM}.")
            await refusal(scope, receive, send)
        else:
            await self._serve(access, interests, version, scope, receive, send)

    async def _serve(
        self, access: Access, interests: Interests, version: str, scope: Scope, receive: Receive, send: Send
    ) -> None:
        try:
            with self._streams.opened(access) as stream:
                notifier = Notifier(
                    stream=stream, interests=interests, version=version, snapshots=self._snapshots
                )
                await _EventStream(receive, send).carry(notifier)
        except TooManyStreams as error:
            refusal = _refusal(429, str(error), headers={"Retry-After": str(RETRY_SECONDS)})
            await refusal(scope, receive, send)


class _EventStream:
    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send

    async def carry(self, notifier: Notifier) -> None:
        """Until the client disconnects or nothing more can come."""
        async with anyio.create_task_group() as together:

            async def begin() -> None:
                await self._begin()
                together.start_soon(self._keep_alive)

            together.start_soon(self._cancel_at_disconnect, together.cancel_scope)
            await notifier.run(self._notify, begin=begin)
            together.cancel_scope.cancel()
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _begin(self) -> None:
        headers = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._write(f"retry: {RECONNECT_MILLISECONDS}")

    async def _notify(self, news: ServerEvent | TaskChanged) -> None:
        # Tasks cannot be subscribed to here.
        if not isinstance(news, TaskChanged):
            notification = event_to_notification(news, {})
            message = notification.model_dump(by_alias=True, mode="json", exclude_none=True)
            await self._write(f"event: message\r\ndata: {json.dumps({'jsonrpc': '2.0', **message})}")

    async def _keep_alive(self) -> None:
        while True:
            await anyio.sleep(PING_SECONDS)
            await self._write(": ping")

    async def _write(self, text: str) -> None:
        await self._send(
            {"type": "http.response.body", "body": f"{text}\r\n\r\n".encode(), "more_body": True}
        )

    async def _cancel_at_disconnect(self, scope: anyio.CancelScope) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        scope.cancel()


def _refusal(status: int, message: str, *, headers: dict[str, str] | None = None) -> Response:
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": INVALID_REQUEST, "message": message}}
    return JSONResponse(error, status_code=status, headers=headers)
