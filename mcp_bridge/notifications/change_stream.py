"""`GET /mcp`, for clients of handshake versions: a stream of notifications that a list has changed."""

import json
from dataclasses import dataclass

import anyio
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp.shared.subscriptions import ServerEvent, event_to_notification
from mcp_types import DEFAULT_NEGOTIATED_VERSION, INVALID_REQUEST
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from mcp_bridge.notifications import notifier

EVENT_STREAM = "text/event-stream"
PING_SECONDS = 15.0  # Between comments, which keep proxies from closing the connection
RECONNECT_MILLISECONDS = 3000  # Clients wait as long when the server has ended the stream, as at a restart
RETRY_SECONDS = 60
HEADERS = {"content-type": EVENT_STREAM, "cache-control": "no-cache, no-transform", "x-accel-buffering": "no"}


@dataclass(frozen=True)
class ChangeStreams:
    """The ASGI application for authenticated GET requests."""

    streams: notifier.OpenStreams
    snapshots: notifier.ListSnapshots

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, access = Headers(scope=scope), scope["state"]["access"]
        version = headers.get(MCP_PROTOCOL_VERSION_HEADER, DEFAULT_NEGOTIATED_VERSION)
        interests = notifier.Interests(events=notifier.admissible_lists(access))
        if version not in HANDSHAKE_PROTOCOL_VERSIONS or not interests.events:
            await Response(status_code=405, headers={"Allow": "POST"})(scope, receive, send)
        elif EVENT_STREAM not in headers.get("accept", "").lower():
            refusal = _refusal(406, f"GET opens a stream of notifications: send Accept: {EVENT_STREAM}.")
            await refusal(scope, receive, send)
        else:
            try:
                with self.streams.opened(access) as stream:
                    changes = notifier.Notifier(
                        stream=stream, interests=interests, version=version, snapshots=self.snapshots
                    )
                    await _EventStream(receive, send).carry(changes)
            except notifier.TooManyStreams as error:
                refusal = _refusal(429, str(error), headers={"Retry-After": str(RETRY_SECONDS)})
                await refusal(scope, receive, send)


@dataclass(frozen=True)
class _EventStream:
    receive: Receive
    send: Send

    async def carry(self, changes: notifier.Notifier) -> None:
        """Until the client disconnects or nothing more can come."""
        async with anyio.create_task_group() as together:

            async def begin() -> None:
                headers = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                await self.send({"type": "http.response.start", "status": 200, "headers": headers})
                await self._write(f"retry: {RECONNECT_MILLISECONDS}")
                together.start_soon(self._keep_alive)

            together.start_soon(self._cancel_at_disconnect, together.cancel_scope)
            await changes.run(self._notify, begin=begin)
            together.cancel_scope.cancel()
        await self.send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _notify(self, news: ServerEvent | notifier.TaskChanged) -> None:
        # Tasks cannot be subscribed to here.
        if not isinstance(news, notifier.TaskChanged):
            notification = event_to_notification(news, {})
            message = notification.model_dump(by_alias=True, mode="json", exclude_none=True)
            await self._write(f"event: message\r\ndata: {json.dumps({'jsonrpc': '2.0', **message})}")

    async def _keep_alive(self) -> None:
        while True:
            await anyio.sleep(PING_SECONDS)
            await self._write(": ping")

    async def _write(self, text: str) -> None:
        await self.send({"type": "http.response.body", "body": f"{text}\r\n\r\n".encode(), "more_body": True})

    async def _cancel_at_disconnect(self, scope: anyio.CancelScope) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass
        scope.cancel()


def _refusal(status: int, message: str, *, headers: dict[str, str] | None = None) -> Response:
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": INVALID_REQUEST, "message": message}}
    return JSONResponse(error, status_code=status, headers=headers)
