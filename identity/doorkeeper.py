"""Delays for clients that guess credentials, and CORS.

Guesses must not slow down callers with valid tokens. Answers to guesses are delayed, and no valid token is
refused; `authentication` decides which guesses are refused. All origins may read the metadata; the origins
that the operator lists may use MCP and the authorization server. No answer depends on a cookie, and browsers
may not send any.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

from django.conf import settings
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from access.addresses import client_address, neighbourhood
from connectors.formats.lists import split_list

SIGN_IN_PAGES = frozenset({"/admin/login/", "/oauth/sign-in"})
PACE_SECONDS = 0.5  # Between two requests to these pages, which take some 20 ms of a process each
PATIENCE_SECONDS = 15.0  # After so long without a turn a request is refused
FREE_GUESSES = 3  # Wrong tokens of one address that are refused at once, within WINDOW_SECONDS
HOLD_SECONDS = 2.0  # Added to the delay with each further one
MAX_HOLDS = 5
WINDOW_SECONDS = 60.0
REFUSAL_SECONDS = 0.5  # Between two refusals whatever their addresses: each takes some 10 ms of a process
REFUSED_AT_ONCE = 5  # After a pause
REMEMBERED_ADDRESSES = 10_000
METADATA = (
    "/.well-known/oauth-protected-resource",
    "/.well-known/oauth-authorization-server",
    "/.well-known/openid-configuration",
)
ENDPOINTS = ("/mcp", "/oauth/token", "/oauth/register", "/oauth/revoke")
READABLE = ("WWW-Authenticate", "Mcp-Session-Id", "Retry-After")  # Besides those that pages always see


class Throttled(Exception):
    """Too many clients are signing in or sending wrong tokens."""

    seconds = int(PATIENCE_SECONDS)


class Doorkeeper:
    """One for each process, used on its event loop."""

    def __init__(
        self,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sleep, self._clock = sleep, clock
        self._next_turn = self._next_refusal = 0.0
        self._at_door: dict[str, tuple[asyncio.Lock, int]] = {}  # By address, with how many hold or want it
        self._guesses: dict[str, tuple[float, int]] = {}  # By address: since when, and how many

    @asynccontextmanager
    async def turn(self, scope: dict[str, Any]) -> AsyncIterator[None]:
        """One request per address at a time, and all at a limited rate. Raises Throttled."""
        if scope["path"] not in SIGN_IN_PAGES:
            yield
            return
        place = neighbourhood(address_in(scope))
        lock, number = self._at_door.get(place, (asyncio.Lock(), 0))
        self._at_door[place] = (lock, number + 1)
        try:
            try:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await lock.acquire()
            except TimeoutError:
                raise Throttled from None
            try:
                await self._keep_pace()
                yield
            finally:
                lock.release()
        finally:
            lock, number = self._at_door[place]
            self._at_door[place] = (lock, number - 1)
            if number == 1:
                del self._at_door[place]

    async def _keep_pace(self) -> None:
        now = self._clock()
        mine = max(now, self._next_turn)
        if mine - now > PATIENCE_SECONDS:
            raise Throttled
        self._next_turn = mine + PACE_SECONDS
        await self._sleep(mine - now)

    async def delay(self, scope: MutableMapping[str, Any]) -> bool:
        """Delay the refusal of a wrong token; a sleeping request costs nothing. False: so many wait that this
        one must be refused unchecked."""
        place, now = neighbourhood(address_in(scope)), self._clock()
        since, number = self._guesses.get(place, (now, 0))
        if now - since > WINDOW_SECONDS:
            since, number = now, 0
        if len(self._guesses) >= REMEMBERED_ADDRESSES:
            self._guesses.clear()
        self._guesses[place] = (since, number + 1)
        longest = HOLD_SECONDS * MAX_HOLDS
        hold = min(HOLD_SECONDS * max(0, number - FREE_GUESSES + 1), longest)
        mine = max(now - (REFUSED_AT_ONCE - 1) * REFUSAL_SECONDS, self._next_refusal)
        if has_turn := mine - now <= longest:
            self._next_refusal = mine + REFUSAL_SECONDS
        hold = max(hold, min(mine - now, longest))
        if hold > 0:
            await self._sleep(hold)
        return has_turn

    def forget(self) -> None:
        self._guesses.clear()
        self._next_turn = self._next_refusal = 0.0


doorkeeper = Doorkeeper()


def address_in(scope: MutableMapping[str, Any]) -> str:
    """The client's, of an ASGI request."""
    peer = (scope.get("client") or ("",))[0]
    return client_address(peer, Headers(scope=scope).get("x-forwarded-for", ""))


def allowed_origins() -> frozenset[str]:
    return frozenset(origin.rstrip("/").lower() for origin in split_list(settings.CATALOGUE.allowed_origins))


class CrossOrigin:
    """Middleware; answers preflight requests."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._for_all = CORSMiddleware(app, allow_origins=["*"], allow_headers=["*"])
        for_listed = CORSMiddleware(
            app,
            allow_origins=sorted(allowed_origins()),
            allow_methods=["GET", "POST", "DELETE"],  # Those of MCP; an endpoint refuses those that it lacks
            allow_headers=["*"],
            expose_headers=READABLE,
        )
        self._for_endpoints: ASGIApp = for_listed if allowed_origins() else app

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        path = scope.get("path", "")
        if path.startswith(METADATA):
            return self._for_all(scope, receive, send)
        is_endpoint = path in ENDPOINTS or path.startswith("/mcp/")
        return (self._for_endpoints if is_endpoint else self._app)(scope, receive, send)
