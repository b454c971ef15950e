"""Authenticates bearer tokens, for MCP over HTTP and for REST. A kind of token has a line in `KINDS`."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from django.conf import settings
from django.contrib.auth import SESSION_KEY
from django.http import parse_cookie
from starlette.datastructures import Headers

from catalogue.database import run_in_database
from catalogue.exposure import current_catalogue
from mcp_bridge import tokens
from mcp_bridge.oauth import grants
from mcp_bridge.tokens import REMEMBERED_ORIGINS, Access, Kind, arriving, digest_of

REMEMBERED_SECONDS = 0.5  # Without a query; so a revoked token is refused within a second
JOINED_SECONDS = 0.25  # How long after its start a look-up also answers other requests
REMEMBERED_TOKENS = 10_000
_remembered: dict[str, tuple[float, Access]] = {}
_looking_up: dict[str, tuple[float, asyncio.Task[Access | None]]] = {}
forget_bearers = _remembered.clear


class Undecided(Exception):
    """The token can be neither accepted nor refused at present."""

    def __init__(self, message: str, *, seconds: int) -> None:
        super().__init__(message)
        self.seconds = seconds  # After which to try again


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenKind:
    """`read` and `usable` run in a thread that may use the database."""

    fits: Callable[[str], bool]  # Judges the text's form, without a query
    read: Callable[[str], Access | None]  # None: unknown, expired, revoked, or of a disabled user
    usable: Callable[[Collection[Access]], set[Access]]  # Those that are still valid; for open streams
    describe: Callable[[str], str]  # Why `read` refused it, for the log, without secrets
    prepare: Callable[[str], Awaitable[object]] | None = None  # Network requests before `read`
    withdrawn: Callable[[Collection[Access]], Awaitable[set[Access]]] | None = None
    """Those that another server has revoked, by a network request: `usable` cannot know them."""


KINDS: dict[Kind, TokenKind] = {  # In this order; the first whose form fits decides
    Kind.ACCESS_TOKEN: TokenKind(
        fits=lambda text: text.startswith(tokens.TOKEN_START),
        read=tokens.read_token,
        usable=tokens.usable_tokens,
        describe=tokens.describe_wrong_token,
    ),
    Kind.OAUTH: TokenKind(
        fits=lambda text: settings.CATALOGUE.oauth_enabled and text.startswith(grants.TOKEN_START),
        read=grants.read_token,
        usable=grants.usable_tokens,
        describe=grants.describe_wrong_token,
    ),
}


def authenticate(text: str) -> Access | None:
    """What the bearer may do; a token costs queries at most twice a second. Raises Undecided."""
    digest = digest_of(text)
    return recognise(digest) or look_up(text)


async def prepare(text: str) -> None:
    """Call it before `look_up` where few threads share the database. Raises Undecided."""
    kind = _kind_of(text)
    if kind is not None and kind.prepare is not None:
        await kind.prepare(text)


async def find_bearer(text: str) -> Access | None:
    """As `authenticate`. Concurrent requests with one token share the look-up. Raises Undecided."""
    digest, now = digest_of(text), time.monotonic()
    if (known := recognise(digest)) is not None:
        return known
    begun_at, looking = _looking_up.get(digest, (0.0, None))
    if (
        looking is None
        or looking.get_loop() is not asyncio.get_running_loop()
        or now - begun_at >= JOINED_SECONDS
    ):
        looking = asyncio.create_task(_prepare_and_look_up(text, digest))
        _looking_up[digest] = now, looking
        looking.add_done_callback(partial(_forget_look_up, digest))
    found = await asyncio.shield(looking)
    # Records the origin.
    return recognise(digest) or found


def _forget_look_up(digest: str, ended: asyncio.Task[Access | None]) -> None:
    if _looking_up.get(digest, (0.0, None))[1] is ended:
        del _looking_up[digest]
    if not ended.cancelled():
        # All its requests may have disconnected.
        ended.exception()


async def _prepare_and_look_up(text: str, digest: str) -> Access | None:
    await prepare(text)
    return await run_in_database(_look_up_with_catalogue, text, digest, _kind_of(text))


def _look_up_with_catalogue(text: str, digest: str, kind: TokenKind | None) -> Access | None:
    """Reads the catalogue, which is needed next, in the same database thread."""
    access = _read(text, digest, kind)
    if access is not None:
        current_catalogue()
    return access


def look_up(text: str) -> Access | None:
    return _read(text, digest_of(text), _kind_of(text))


def _read(text: str, digest: str, kind: TokenKind | None) -> Access | None:
    asked_at = time.monotonic()
    access = None if kind is None else kind.read(text)
    if access is None:
        _remembered.pop(digest, None)
        return None
    if len(_remembered) >= REMEMBERED_TOKENS:
        _remembered.clear()
    _remembered[digest] = (asked_at, access)
    return access


def recognise(digest: str) -> Access | None:
    """A token authenticated within REMEMBERED_SECONDS; no query. Records the origin."""
    asked_at, access = _remembered.get(digest, (0.0, None))
    if access is None or time.monotonic() - asked_at >= REMEMBERED_SECONDS:
        return None
    if (origin := arriving.get()) is not None and len(access.origins) < REMEMBERED_ORIGINS:
        access.origins.add(origin)
    return access


def still_usable(accesses: Collection[Access]) -> set[Access]:
    """Those whose token is still valid."""
    found: set[Access] = set()
    for name, kind in KINDS.items():
        if those := [access for access in accesses if access.kind is name]:
            found |= kind.usable(those)
    return found | {access for access in accesses if access.kind is Kind.LOCAL}


async def withdrawn(accesses: Collection[Access]) -> set[Access]:
    """Those that another server has revoked. Takes as long as that server needs to answer."""
    found: set[Access] = set()
    for name, kind in KINDS.items():
        those = [access for access in accesses if access.kind is name]
        if those and kind.withdrawn is not None:
            found |= await kind.withdrawn(those)
    return found


def describe_wrong_bearer(text: str) -> str:
    kind = _kind_of(text)
    if kind is None:
        return f"it does not begin with {tokens.TOKEN_START}"
    return kind.describe(text)


def sent_token(authorization: str) -> str | None:
    """Of this header's value; None if it has another scheme than Bearer."""
    scheme, _, text = authorization.partition(" ")
    return text.strip() if scheme.lower() == "bearer" else None


async def is_known(scope: dict[str, Any]) -> bool:
    """Whether the request has a usable token or the cookie of a signed-in user."""
    headers = Headers(scope=scope)
    session = parse_cookie(headers.get("cookie", "")).get(settings.SESSION_COOKIE_NAME, "")
    if (text := sent_token(headers.get("authorization", ""))) is not None:
        try:
            await prepare(text)
            return await run_in_database(authenticate, text) is not None
        except Undecided:
            return False
    store = import_module(settings.SESSION_ENGINE).SessionStore(session)
    return bool(session) and await run_in_database(store.__contains__, SESSION_KEY)


def _kind_of(text: str) -> TokenKind | None:
    for kind in KINDS.values():
        if kind.fits(text):
            return kind
    return None
