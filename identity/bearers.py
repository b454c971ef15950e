"""Authenticates bearer tokens, for MCP over HTTP and for REST. A kind of token has a line in `KINDS`."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from django.conf import settings
from django.contrib.auth import SESSION_KEY
from django.http import parse_cookie
from starlette.datastructures import Headers

from catalogue.database import run_in_database
from identity import tokens
from identity.oauth import grants
from identity.tokens import REMEMBERED_ORIGINS, Access, Kind, arriving, digest_of

REMEMBERED_SECONDS = 0.5  # Without a query; so a revoked token is refused within a second
MAX_REMEMBERED_TOKENS = 10_000
_remembered: dict[str, tuple[float, Access]] = {}
_looking_up: dict[str, asyncio.Task[Access | None]] = {}
forget_bearers = _remembered.clear


class AuthenticationUnavailable(Exception):
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
    """Returns what the bearer may do. A token costs queries at most twice a second.

    Raises AuthenticationUnavailable.
    """
    digest = digest_of(text)
    if (known := recognise(digest)) is not None:
        return known
    asked_at, kind = time.monotonic(), _kind_of(text)
    access = None if kind is None else kind.read(text)
    if access is None:
        _remembered.pop(digest, None)
        return None
    if len(_remembered) >= MAX_REMEMBERED_TOKENS:
        _remembered.clear()
    _remembered[digest] = (asked_at, access)
    return access


async def find_bearer(text: str) -> Access | None:
    """Does what `authenticate` does; concurrent requests with one token share the look-up."""
    digest = digest_of(text)
    if (known := recognise(digest)) is not None:
        return known
    if (looking := _looking_up.get(digest)) is None:
        looking = _looking_up[digest] = asyncio.create_task(_look_up(text))
        looking.add_done_callback(lambda _: _looking_up.pop(digest))
    # The first of the requests may disconnect.
    found = await asyncio.shield(looking)
    # Records the origin.
    return recognise(digest) or found


async def _look_up(text: str) -> Access | None:
    kind = _kind_of(text)
    if kind is not None and kind.prepare is not None:
        await kind.prepare(text)
    return await run_in_database(authenticate, text)


def recognise(digest: str) -> Access | None:
    """A token authenticated within REMEMBERED_SECONDS; no query. Records the origin."""
    asked_at, access = _remembered.get(digest, (0.0, None))
    if access is None or time.monotonic() - asked_at >= REMEMBERED_SECONDS:
        return None
    if (origin := arriving.get()) is not None and len(access.origins) < REMEMBERED_ORIGINS:
        access.origins.add(origin)
    return access


def still_usable(accesses: Collection[Access]) -> set[Access]:
    """Returns those whose token is still valid."""
    found: set[Access] = set()
    for name, kind in KINDS.items():
        if those := [access for access in accesses if access.kind is name]:
            found |= kind.usable(those)
    return found | {access for access in accesses if access.kind is Kind.LOCAL}


async def withdrawn(accesses: Collection[Access]) -> set[Access]:
    """Returns those that another server has revoked. Takes as long as that server needs to answer."""
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
    """Returns the token in the header's value; None if it has another scheme than Bearer."""
    scheme, _, text = authorization.partition(" ")
    return text.strip() if scheme.lower() == "bearer" else None


async def is_known(scope: dict[str, Any]) -> bool:
    """Returns whether the request has a usable token or the cookie of a signed-in user."""
    headers = Headers(scope=scope)
    session = parse_cookie(headers.get("cookie", "")).get(settings.SESSION_COOKIE_NAME, "")
    if (text := sent_token(headers.get("authorization", ""))) is not None:
        try:
            return await find_bearer(text) is not None
        except AuthenticationUnavailable:
            return False
    store = import_module(settings.SESSION_ENGINE).SessionStore(session)
    return bool(session) and await run_in_database(store.__contains__, SESSION_KEY)


def _kind_of(text: str) -> TokenKind | None:
    for kind in KINDS.values():
        if kind.fits(text):
            return kind
    return None
