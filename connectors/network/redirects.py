"""Which redirects of an HTTP API are followed, and what is sent to the new address.

Credentials and all but a few harmless headers stay with the configured origin: a key may be in any header, so
only an allowlist is safe. Dropped headers stay dropped.
"""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from urllib.parse import unquote, unquote_plus

import httpx2

from connectors.errors import Misconfigured
from connectors.network.policy import port_of
from connectors.network.redaction import printable, shorten
from connectors.network.transport import Exchange

MOST_REDIRECTS = 5
REDIRECTS = (301, 302, 303, 307, 308)
SAFE_METHODS = ("GET", "HEAD")
HARMLESS_HEADERS = ("accept", "accept-encoding", "accept-language", "user-agent")
USER_INFORMATION = re.compile(r"//[^/]*@")


class NotFollowed(Exception):
    """The message ends a sentence."""


@dataclass(frozen=True, slots=True)
class Hop:
    """One request of a chain of redirects, without credentials."""

    method: str
    url: httpx2.URL = field(repr=False)
    headers: dict[str, str] = field(repr=False)
    """By lower-case name."""
    content: bytes | None = field(repr=False)
    at_origin: bool = True
    """No redirect has left the configured origin, so credentials are sent."""
    carried_out: bool = False
    """The original request was carried out; this one fetches its result."""
    number: int = 0


@dataclass(frozen=True, slots=True)
class RedirectChain:
    last: Exchange
    carried_out: bool = False
    not_followed: str = ""
    """Why a final redirect was not followed, in a sentence."""


async def follow_chain(
    hop: Hop, exchange: Exchange, send: Callable[[Hop], Awaitable[Exchange]]
) -> RedirectChain:
    """Where the request of `hop` ends, which `exchange` answered.

    Raises nothing for a redirect that is not followed: the request may have been carried out.
    """
    while exchange.status in REDIRECTS and exchange.location:
        try:
            further = _next_hop(hop, exchange)
            exchange = await send(further)
        except (NotFollowed, Misconfigured) as refusal:
            points = f"The answer {exchange.status} points to {_shown(exchange)}"
            return RedirectChain(exchange, hop.carried_out, f"{points}, which was not followed: {refusal}")
        hop = further
    return RedirectChain(exchange, hop.carried_out)


def _next_hop(hop: Hop, exchange: Exchange) -> Hop:
    """Raises NotFollowed."""
    if hop.number == MOST_REDIRECTS:
        raise NotFollowed(f"{MOST_REDIRECTS} redirects have been followed already.")
    url = _target(hop, exchange.location)
    moved = replace(hop, url=url, number=hop.number + 1)
    if _origin(url) != _origin(hop.url):
        _refuse_repeated_secrets(exchange)
        harmless = {name: value for name, value in hop.headers.items() if name in HARMLESS_HEADERS}
        moved = replace(moved, at_origin=False, headers=harmless)
    return moved if hop.method in SAFE_METHODS else _unsafe_hop(moved, exchange.status)


def _unsafe_hop(moved: Hop, status: int) -> Hop:
    """The method and origin of a request that changes something must stay."""
    if status == 303:
        headers = {name: value for name, value in moved.headers.items() if not name.startswith("content-")}
        return replace(moved, method="GET", content=None, headers=headers, carried_out=True)
    if status in (301, 302):
        raise NotFollowed(f"what becomes of a {moved.method} request then is not defined.")
    if not moved.at_origin:
        raise NotFollowed(f"a {moved.method} request is not repeated at another address.")
    return moved


def _target(hop: Hop, location: str) -> httpx2.URL:
    try:
        url = hop.url.join(location).copy_with(fragment=None)
    except httpx2.InvalidURL:
        raise NotFollowed("that is no valid URL.") from None
    if url.scheme not in ("http", "https") or not url.host or not 1 <= port_of(url) <= 65535:
        raise NotFollowed("that is no http:// or https:// address.")
    if url.userinfo:
        raise NotFollowed("that contains a user name or password.")
    if (hop.url.scheme, url.scheme) == ("https", "http"):
        raise NotFollowed("that leads from https to http.")
    return url


def _refuse_repeated_secrets(exchange: Exchange) -> None:
    """An API that redirects to the same path elsewhere repeats the key of our query."""
    location = exchange.location
    spellings = (location, unquote(location), unquote_plus(location), unquote(unquote(location)))
    if any(exchange.redactor.text(spelling) != spelling for spelling in spellings):
        raise NotFollowed("that repeats our credentials to another address.")


def _origin(url: httpx2.URL) -> tuple[str, str, int]:
    return url.scheme, url.host, port_of(url)


def _shown(exchange: Exchange) -> str:
    """Redacted before it is cut; without user name and query."""
    place = exchange.redactor.text(exchange.location).partition("?")[0]
    return shorten(USER_INFORMATION.sub("//", printable(place)), 200)
