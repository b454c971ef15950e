"""The streams that servers of the handshake era tell things on without being asked.

The SDK asks for one when a conversation begins, and gives it up for good after two failures. Here it is asked
for until it comes or is refused, so that a server may be away for hours and is heard again afterwards.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from enum import Enum, auto

import httpx2

from connectors.network.exchange import TRANSPORT_ERRORS
from connectors.upstream_mcp.pauses import Pauses

COMES_BACK = {408, 425, 429, 500, 502, 503, 504}
RESUMING_SECONDS = 15.0
"""How long the rest of a stream is asked for that has broken: a call may wait for it."""
SECONDS_BEFORE_RESUMING = 0.2
LAST_EVENT, SESSION = "last-event-id", "mcp-session-id"


class StreamNews(Enum):
    """What became of a stream that had been lost."""

    BACK = auto()
    """The server is heard again; what it told meanwhile was missed."""
    SESSION_GONE = auto()
    """The server is there, but does not know the conversation any more."""


class ServerStreams:
    """Opens them for one connector."""

    def __init__(
        self,
        carry_out: Callable[[httpx2.Request], Awaitable[httpx2.Response]],
        *,
        tell: Callable[[StreamNews], None],
    ) -> None:
        self._carry_out = carry_out
        self._tell = tell
        self._pauses = Pauses()
        self._opened_at = 0.0
        self._heard_session = ""
        """Of which there was a stream: others may be kept by servers that have none."""

    async def open(self, request: httpx2.Request) -> httpx2.Response:
        """The server's answer, as soon as there is one that will not be another after a while."""
        began, was_away, resumes = time.monotonic(), False, LAST_EVENT in request.headers
        # Not to ask again and again a server that ends the stream at once.
        if resumes:
            await asyncio.sleep(SECONDS_BEFORE_RESUMING)
        elif self._opened_at:
            await self._pauses.take(lasted=began - self._opened_at)
        while (response := await self._attempt(request)) is None:
            was_away = True
            if resumes and time.monotonic() - began > RESUMING_SECONDS:
                return await self._carry_out(request)
            await self._pauses.take()
        self._opened_at = time.monotonic()
        self._note(request.headers.get(SESSION, ""), response.status_code, was_away=was_away)
        return response

    async def _attempt(self, request: httpx2.Request) -> httpx2.Response | None:
        try:
            response = await self._carry_out(request)
        except TRANSPORT_ERRORS:
            return None
        if response.status_code in COMES_BACK:
            await response.aclose()
            return None
        return response

    def _note(self, session: str, status: int, *, was_away: bool) -> None:
        if status == httpx2.codes.OK:
            self._heard_session = session
            if was_away:
                self._tell(StreamNews.BACK)
        elif session and session == self._heard_session:
            self._heard_session = ""
            self._tell(StreamNews.SESSION_GONE)


async def unbroken(response: httpx2.Response) -> AsyncIterator[bytes]:
    """The pieces of an event stream. One that breaks ends, which the SDK does not count as a failure."""
    try:
        async for piece in response.aiter_raw():
            yield piece
    except TRANSPORT_ERRORS:
        return
