"""Calls that clients give up over HTTP, and what that tells of their patience.

Clients of the handshake era say so in a request of its own, which the SDK, serving them without sessions,
cannot connect with the call; or they close the call's own connection, as those of 2026-07-28 do. (On standard
input there is only one.)
"""

import math
import re
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import anyio
from django.utils import timezone
from mcp import MCPError
from mcp.server.streamable_http import REQUEST_CANCELLED
from mcp_types import CancelledNotificationParams, RequestId

from catalogue.database import run_in_database
from executions.advancing import begin
from mcp_bridge.access import Access
from mcp_bridge.declarations import Context, is_modern
from mcp_bridge.tokens import note_given_up

SAYS_TIME_IS_UP = re.compile(r"time[d ]*[- ]?out|deadline", re.IGNORECASE)
"""In the reason of a cancellation, which for a call that a person stops is another."""
SHORTEST_PATIENCE = 2
USUAL_PATIENCE_STEP = 5
"""Clients that only close the connection tell nothing; their limits are round numbers of seconds."""
EARLY_SECONDS = 0.3
"""How much later than its client a server may begin to count; it learns of the end within the second."""
Client = tuple[Any, ...]
"""As well as a client can be told from others of the same caller."""


@dataclass
class _OpenCall:
    scope: anyio.CancelScope
    says_time_is_up: bool = False


class _GivenUp(Exception):
    def __init__(self, says_time_is_up: bool) -> None:
        super().__init__()
        self.says_time_is_up = says_time_is_up


class OpenCalls:
    """The calls of the handshake era that are waited for in this process."""

    def __init__(self) -> None:
        self._calls: defaultdict[tuple[Client, RequestId], list[_OpenCall]] = defaultdict(list)

    @contextmanager
    def interruptible(self, context: Context, access: Access) -> Iterator[None]:
        """Raises what the SDK answers, which nobody reads, when the client gives the call up."""
        if context.request is None or context.request_id is None:
            yield
            return
        begun = time.monotonic()
        try:
            with self._found_by(context, access):
                yield
        except _GivenUp as given_up:
            if given_up.says_time_is_up:
                _learn_patience(access, time.monotonic() - begun, said=True)
            raise MCPError(REQUEST_CANCELLED, "Request cancelled") from None
        except anyio.get_cancelled_exc_class():
            _learn_patience(access, time.monotonic() - begun, said=False)
            raise

    @contextmanager
    def _found_by(self, context: Context, access: Access) -> Iterator[None]:
        """Clients of the handshake era say what they give up by its number. Raises `_GivenUp`."""
        if is_modern(context) or context.request_id is None:
            yield
            return
        key, call = (_client_of(context, access), context.request_id), _OpenCall(anyio.CancelScope())
        with call.scope:
            self._calls[key].append(call)
            try:
                yield
            finally:
                self._calls[key].remove(call)
                if not self._calls[key]:
                    del self._calls[key]
        if call.scope.cancelled_caught:
            raise _GivenUp(call.says_time_is_up)

    def interrupt(self, context: Context, params: CancelledNotificationParams, access: Access) -> None:
        """End the one call that is meant; where that could be one of several, none."""
        if context.request is None or params.request_id is None:
            return
        meant = self._calls.get((_client_of(context, access), params.request_id), [])
        if len(meant) == 1:
            meant[0].says_time_is_up = SAYS_TIME_IS_UP.search(params.reason or "") is not None
            meant[0].scope.cancel()


def _learn_patience(access: Access, seconds: float, *, said: bool) -> None:
    """From a call that was given up after so long; `said`: the client's own word that the time was up.

    Of that word, a round number of seconds and a second such call it takes two. A person who stops a call
    gives no such word, and a network that fails does not do so twice after the same round time.
    """
    patience = math.floor(seconds + EARLY_SECONDS)
    is_round = patience % USUAL_PATIENCE_STEP == 0
    if access.token_id is None or patience < SHORTEST_PATIENCE or not (said or is_round):
        return
    begun_at = timezone.now() - timedelta(seconds=seconds)
    noting = partial(note_given_up, after_seconds=patience, begun_at=begun_at, is_certain=said and is_round)
    begin(run_in_database(noting, access.token_id))


def _client_of(context: Context, access: Access) -> Client:
    """Request ids alone are small numbers, which two clients with one token both use."""
    request: Any = context.request
    address = request.client.host if request.client else ""
    return access.caller.key, address, request.headers.get("user-agent", "")
