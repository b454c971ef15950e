"""Calls that clients of the handshake era give up over HTTP.

They say so in a request of its own, which the SDK, serving them without sessions, cannot connect with the
call. (Clients of 2026-07-28 close the call's own connection, and on standard input there is only one.)
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio
from mcp import MCPError
from mcp.server.streamable_http import REQUEST_CANCELLED
from mcp_types import CancelledNotificationParams, RequestId

from mcp_bridge.access import Access
from mcp_bridge.declarations import Context, is_modern

Client = tuple[Any, ...]
"""As well as a client can be told from others of the same caller."""


class OpenCalls:
    """The calls of the handshake era that are waited for in this process."""

    def __init__(self) -> None:
        self._scopes: defaultdict[tuple[Client, RequestId], list[anyio.CancelScope]] = defaultdict(list)

    @contextmanager
    def interruptible(self, context: Context, access: Access) -> Iterator[None]:
        """Raises what the SDK answers, which nobody reads, when the client gives the call up."""
        if context.request is None or context.request_id is None or is_modern(context):
            yield
            return
        key = (_client_of(context, access), context.request_id)
        with anyio.CancelScope() as scope:
            self._scopes[key].append(scope)
            try:
                yield
            finally:
                self._scopes[key].remove(scope)
                if not self._scopes[key]:
                    del self._scopes[key]
        if scope.cancelled_caught:
            raise MCPError(REQUEST_CANCELLED, "Request cancelled")

    def interrupt(self, context: Context, params: CancelledNotificationParams, access: Access) -> None:
        """End the one call that is meant; where that could be one of several, none."""
        if context.request is None or params.request_id is None:
            return
        meant = self._scopes.get((_client_of(context, access), params.request_id), [])
        if len(meant) == 1:
            meant[0].cancel()


def _client_of(context: Context, access: Access) -> Client:
    """Request ids alone are small numbers, which two clients with one token both use."""
    request: Any = context.request
    address = request.client.host if request.client else ""
    return access.caller.key, address, request.headers.get("user-agent", "")
