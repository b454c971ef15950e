"""The HTTP client of all connectors: JSON requests and whole exchanges with one engine."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, Self
from urllib.parse import quote, unquote, unquote_plus, urlencode, urljoin

import httpx2
from pydantic import SecretStr

from connectors.errors import InvalidAnswer, Misconfigured, Rejected
from connectors.formats.json import MAX_DEPTH, UnreadableJSON, parse_json, parse_listing, write_arguments
from connectors.network.headers import check_values, checked_headers
from connectors.network.policy import ENGINE_ADDRESSES, AddressPolicy, normalise_base_url, port_of
from connectors.network.redaction import Redactor, printable, shorten
from connectors.network.transport import Exchange, HttpLimits, HttpSender, tls_context

MAX_REDIRECTS = 5
REDIRECTS = (301, 302, 303, 307, 308)
USER_AGENT = "workflow-catalogue"
REFUSAL_BYTES = 64_000


class NotFollowed(Exception):
    """The message ends a sentence."""


@dataclass(frozen=True, slots=True)
class Hop:
    """One request of a chain of redirects, without credentials."""

    method: str
    url: httpx2.URL = field(repr=False)
    headers: dict[str, str] = field(repr=False)  # By lower-case name
    content: bytes | None = field(repr=False)
    cut_at: float | None = None  # See Exchange
    at_origin: bool = True  # No redirect has left the configured origin, so credentials are sent
    carried_out: bool = False  # The original request was carried out; this one fetches its result
    number: int = 0


async def follow_chain(hop: Hop, exchange: Exchange, send: Callable[[Hop], Awaitable[Exchange]]) -> Exchange:
    """Returns the last response to the request of `hop`, which `exchange` answered. Raises nothing for a
    redirect that is not followed: the request may have been carried out."""
    while exchange.status in REDIRECTS and exchange.location:
        try:
            further = _next_hop(hop, exchange)
            exchange = await send(further)
        except (NotFollowed, Misconfigured) as refusal:
            # Redacted before it is cut; without user name and query.
            place = printable(exchange.redactor.text(exchange.location).partition("?")[0])
            shown = shorten(re.sub(r"//[^/]*@", "//", place), 200)
            points = f"The response {exchange.status} points to {shown}"
            exchange.not_followed = f"{points}, which was not followed: {refusal}"
            break
        hop = further
    exchange.carried_out = hop.carried_out
    return exchange


def _next_hop(hop: Hop, exchange: Exchange) -> Hop:
    if hop.number == MAX_REDIRECTS:
        raise NotFollowed(f"{MAX_REDIRECTS} redirects have been followed already.")
    url = _target(hop, exchange.location)
    moved = replace(hop, url=url, number=hop.number + 1)
    if _origin(url) != _origin(hop.url):
        # An API that redirects to the same path elsewhere repeats the key of our query.
        location = exchange.location
        spellings = (location, unquote(location), unquote_plus(location), unquote(unquote(location)))
        if any(exchange.redactor.text(spelling) != spelling for spelling in spellings):
            raise NotFollowed("it would send the source's credentials to another address.")
        harmless = ("accept", "accept-encoding", "accept-language", "user-agent")
        headers = {name: value for name, value in hop.headers.items() if name in harmless}
        moved = replace(moved, at_origin=False, headers=headers)
    if hop.method in ("GET", "HEAD"):
        return moved
    # The method and origin of a request that changes something must stay.
    if exchange.status == 303:
        headers = {name: value for name, value in moved.headers.items() if not name.startswith("content-")}
        return replace(moved, method="GET", content=None, headers=headers, carried_out=True)
    if exchange.status in (301, 302):
        raise NotFollowed(f"the redirect of a {moved.method} request is not well-defined.")
    if not moved.at_origin:
        raise NotFollowed(f"a {moved.method} request is not repeated at another address.")
    return moved


def _target(hop: Hop, location: str) -> httpx2.URL:
    try:
        url = hop.url.join(location).copy_with(fragment=None)
    except httpx2.InvalidURL:
        raise NotFollowed("that is not a valid URL.") from None
    if url.scheme not in ("http", "https") or not url.host or not 1 <= port_of(url) <= 65535:
        raise NotFollowed("that is not an http:// or https:// URL.")
    if url.userinfo:
        raise NotFollowed("that contains a user name or password.")
    if (hop.url.scheme, url.scheme) == ("https", "http"):
        raise NotFollowed("that leads from https to http.")
    return url


def _origin(url: httpx2.URL) -> tuple[str, str, int]:
    return url.scheme, url.host, port_of(url)


def fill_path(path: str, /, **ids: str) -> str:
    """`/runs/{run_id}` with percent-encoded ids. Raises Rejected for an id that leads to another path."""
    for name, value in ids.items():
        # Proxies resolve "." and ".." even when they are percent-encoded, and so would reach another path.
        if value in ("", ".", ".."):
            raise Rejected(f"{value!r} cannot be used as {name} in the engine's address.")
        path = path.replace(f"{{{name}}}", quote(value, safe=""))
    return path


def with_query(
    url: httpx2.URL,
    query: Sequence[tuple[str, str]],
    *,
    replace: bool = False,
    comma_separated: Collection[str] = (),
) -> httpx2.URL:
    """Append `query`, or with `replace` let it replace parameters of the same names. Commas of
    `comma_separated` parameters stay: an encoded one is part of an item (RFC 6570, 3.2.8)."""
    if not query:
        return url
    taken = {name for name, _ in query} if replace else ()
    kept = (part for part in url.query.decode("ascii").split("&") if part)
    kept = (part for part in kept if unquote_plus(part.partition("=")[0]) not in taken)
    added = (
        f"{quote(name, safe='')}={quote(value, safe=',' if name in comma_separated else '')}"
        for name, value in query
    )
    return url.copy_with(query="&".join([*kept, *added]).encode("ascii"))


class Multipart(dict[str, str]):
    """A form that is sent as multipart/form-data."""


def encode_body(body: Any, form: Mapping[str, str] | None) -> tuple[dict[str, str], bytes | None]:
    """The content-type header and the bytes. Raises Rejected for what JSON cannot express."""
    if isinstance(form, Multipart):
        parts = {name: (None, value.encode()) for name, value in form.items()}
        request = httpx2.Request("POST", "http://parts", files=parts)
        return {"content-type": request.headers["content-type"]}, request.read()
    if form is not None:
        return {"content-type": "application/x-www-form-urlencoded"}, urlencode(form).encode()
    if body is None:
        return {}, None
    return {"content-type": "application/json"}, write_arguments(body, ascii_only=True).encode()


@dataclass(frozen=True, slots=True)
class Credentials:
    """Added only to requests to the configured origin."""

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    query: Sequence[tuple[str, str]] = field(default=(), repr=False)

    def secrets(self) -> Iterator[str]:
        for value in self.headers.values():
            yield value
            yield value.split()[-1] if value.split() else ""
        for _, value in self.query:
            yield value


NO_CREDENTIALS = Credentials()


_parsed = lru_cache(maxsize=1_000)(httpx2.URL)  # Most requests of an engine have one of a few URLs


class EngineClient:
    """One engine's address, credentials and limits. Make one per engine and event loop, share it, close it
    with `aclose`. Methods raise only ConnectorError, and no error shows a secret."""

    def __init__(
        self,
        *,
        base_url: str,
        headers: Mapping[str, str] | None = None,
        secrets: Iterable[str] = (),
        limits: HttpLimits | None = None,
        verify_tls: bool = True,
        ca_file: str = "",
        policy: AddressPolicy = ENGINE_ADDRESSES,
    ) -> None:
        """`secrets` are masked in what the engine echoes. Raises Misconfigured for unusable settings."""
        try:
            self._base_url = normalise_base_url(base_url, policy=policy)
        except ValueError as error:
            raise Misconfigured(f"Base URL: {error}") from None
        base = httpx2.URL(self._base_url)
        self._origin = base.scheme, base.netloc
        self._limits = limits or HttpLimits()
        self.redactor = Redactor(secrets)  # Learns the credentials of all exchanges
        tls = tls_context(verify=verify_tls, ca_file=ca_file) if self._base_url.startswith("https:") else None
        self._sender = HttpSender(limits=self._limits, tls=tls, policy=policy)
        self._sender_elsewhere: HttpSender | None = None
        self._policy, self._ca_file = policy, ca_file
        self._headers = {
            "accept": "application/json",
            "accept-encoding": "identity",
            "user-agent": USER_AGENT,
            **{name.lower(): value for name, value in check_values(headers or {}).items()},
        }

    @classmethod
    def of(cls, config: Any, *, secrets: Iterable[str] = (), **options: Any) -> Self:
        """Takes the settings that `connectors.settings` has for requests and TLS, and all secrets of the
        source. `secrets`: further ones, such as those in another encoding."""
        own = [value.get_secret_value() for _, value in config if isinstance(value, SecretStr)]
        return cls(
            limits=HttpLimits.of(config),
            verify_tls=config.verify_tls,
            ca_file=config.ca_file,
            secrets=[*own, *secrets],
            **options,
        )

    def __repr__(self) -> str:
        return f"EngineClient({self._base_url})"

    async def exchange(
        self,
        method: str,
        target: str,
        *,
        query: Sequence[tuple[str, str]] = (),
        comma_separated: Collection[str] = (),
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        credentials: Credentials = NO_CREDENTIALS,
        repeatable: bool,
        follow_redirects: bool = False,
        seconds: float | None = None,
        cut_after: float | None = None,
    ) -> Exchange:
        """Make one whole exchange: any status is an answer, also a redirect that was not followed. Its
        headers and content may echo secrets: mask them before showing them.

        `target`: as in `request_json`; empty: the base URL. `seconds`: a shorter limit than the client's.
        `cut_after`: of a body that has not ended after so many seconds, or is too large, a part will do.
        Raises Misconfigured for a forbidden address or unusable header, Unreachable without an answer,
        InvalidAnswer for one that is too large or compressed; with `repeatable=False` OutcomeUnknown where it
        may have had effect.
        """
        for secret in credentials.secrets():
            self.redactor.learn(secret)
        url = self._url(target)
        if query:
            url = with_query(url, query, comma_separated=comma_separated)
        now, started = asyncio.get_running_loop().time(), time.perf_counter()
        cut_at = None if cut_after is None else now + cut_after
        first = Hop(method, url, self._headers | checked_headers(headers or {}), content, cut_at)
        longest = self._limits.total_seconds if seconds is None else min(seconds, self._limits.total_seconds)
        send = partial(
            self._hop, credentials=credentials, repeatable=repeatable, until=now + longest, seconds=longest
        )
        last = await send(first)
        if follow_redirects and last.status in REDIRECTS:
            last = await follow_chain(first, last, send)
        last.seconds = time.perf_counter() - started
        self._refuse_unreadable(last)
        return last

    async def send(self, method: str, target: str, *, content: bytes, headers: Mapping[str, str]) -> int:
        """The status of the response, also of a redirect, which is not followed. Nothing else of it matters:
        its body may be of any size, and incomplete. Raises as `exchange` with `repeatable`."""
        exchange = await self._sender.carry_out(
            Exchange(method, self._url(target), True, self.redactor, status_decides=True),
            headers=self._headers | checked_headers(headers),
            content=content,
            refusal_bytes=REFUSAL_BYTES,
        )
        return exchange.status

    async def request_json(
        self,
        method: str,
        target: str,
        *,
        body: Any = None,
        form: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        secrets: Iterable[str] = (),
        repeatable: bool = True,
        max_depth: int = MAX_DEPTH,
        is_listing: bool = False,
        may_be_text: bool = False,
    ) -> Any:
        """Send `body` as JSON, or a form, and return the JSON of a 2xx answer; all else is an error.
        `target`: a path below the base URL, or a URL of the same origin. `secrets`: of this request alone,
        masked in errors. With `repeatable=False` failures after which the engine may have acted are
        OutcomeUnknown. Objects of a listing that are nested too deep become TooDeep. `may_be_text`: an answer
        of a text type, such as CSV, is its text if it is not JSON."""
        parse = parse_listing if is_listing else parse_json
        redactor = self.redactor.also(secrets) if secrets else self.redactor
        exchange = Exchange(method, self._url(target), repeatable, redactor)
        await self._succeed(exchange, body, form, headers)
        content = exchange.content
        try:
            return self.redactor.answer(parse(content, max_depth=max_depth), content)
        except UnreadableJSON as error:
            media_type = str(exchange.headers.get("content-type", ""))
            # A page, such as a login, is no answer of an engine.
            if may_be_text and media_type.startswith("text/") and not media_type.startswith("text/html"):
                text = httpx2.Response(200, headers={"content-type": media_type}, content=content).text
                return self.redactor.text(text.removeprefix("\ufeff"))
            raise exchange.not_json(error) from None

    async def request(
        self,
        method: str,
        target: str,
        *,
        body: Any = None,
        form: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        repeatable: bool = True,
        redirect_is_success: bool = False,
    ) -> tuple[httpx2.Headers, str]:
        """Works like `request_json`, but returns the headers and the text of a 2xx answer, without our
        secrets. A redirect is not followed: it may say that the request was carried out."""
        exchange = Exchange(method, self._url(target), repeatable, self.redactor)
        await self._succeed(exchange, body, form, headers, redirect_is_success=redirect_is_success)
        return exchange.headers, self.redactor.text(exchange.content.decode("utf-8", "replace"))

    def follow(self, link: str, *, found_at: str) -> str:
        """The target of a link in the answer of `found_at`. Raises InvalidAnswer for another origin."""
        try:
            url = self._url(urljoin(str(self._url(found_at)), link))
        except (Misconfigured, ValueError):
            shown = shorten(self.redactor.text(link).partition("?")[0], 200)
            raise InvalidAnswer(f"The engine links to {shown}, which is not on {self._base_url}.") from None
        return str(url)

    async def aclose(self) -> None:
        try:
            await self._sender.aclose()
        finally:
            if self._sender_elsewhere:
                await self._sender_elsewhere.aclose()

    async def _succeed(
        self,
        exchange: Exchange,
        body: Any,
        form: Mapping[str, str] | None,
        headers: Mapping[str, str] | None,
        *,
        redirect_is_success: bool = False,
    ) -> None:
        content_type, content = encode_body(body, form)
        await self._sender.carry_out(
            exchange,
            headers=self._headers | check_values({**(headers or {}), **content_type}),
            content=content,
            refusal_bytes=REFUSAL_BYTES,
        )
        if exchange.refused and not (redirect_is_success and exchange.status in (302, 303)):
            raise exchange.refusal()
        self._refuse_unreadable(exchange)

    def _hop(
        self, hop: Hop, *, credentials: Credentials, repeatable: bool, until: float, seconds: float
    ) -> Coroutine[Any, Any, Exchange]:
        url, headers = hop.url, hop.headers
        if hop.at_origin:
            url = with_query(url, credentials.query, replace=True)
            own = checked_headers(credentials.headers)
            # A request has one header for all of its cookies (RFC 6265, 5.4).
            both = [sent["cookie"] for sent in (headers, own) if "cookie" in sent]
            headers = headers | own | ({"cookie": "; ".join(both)} if both else {})
        exchange = Exchange(
            hop.method, url, repeatable, self.redactor, sent=hop.carried_out, cut_at=hop.cut_at
        )
        # A closed one makes no other, which nobody would close.
        is_first = hop.at_origin or self._sender.is_closed
        sender = self._sender if is_first else self._sender_elsewhere
        if sender is None:
            # The TLS of other origins is always verified.
            tls = tls_context(verify=True, ca_file=self._ca_file)
            sender = HttpSender(limits=self._limits, tls=tls, policy=self._policy)
            self._sender_elsewhere = sender
        return sender.carry_out(exchange, headers=headers, content=hop.content, until=until, seconds=seconds)

    def _refuse_unreadable(self, exchange: Exchange) -> None:
        if exchange.truncated and not exchange.cut:
            raise exchange.unusable(f"the response is larger than {self._limits.max_response_bytes:,} bytes.")
        if exchange.encoding:
            raise exchange.unusable(
                f"the response is compressed ({shorten(exchange.encoding, 50)}) and cannot be unpacked; "
                "the request did not accept compression."
            )

    def _url(self, target: str) -> httpx2.URL:
        try:
            url = _parsed(self._base_url + target if target.startswith("/") or not target else target)
        except httpx2.InvalidURL:
            raise Misconfigured("The path does not make a valid URL.") from None
        if (url.scheme, url.netloc) != self._origin or url.userinfo:
            raise Misconfigured(f"The URL is not on {self._base_url}.")
        return url
