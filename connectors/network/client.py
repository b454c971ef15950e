"""The HTTP client of all connectors: JSON and whole exchanges with one engine."""

import asyncio
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote_plus, urlencode, urljoin

import httpx2

from connectors.errors import InvalidAnswer, Misconfigured, Rejected
from connectors.formats.json import MAX_DEPTH, UnreadableJSON, parse_json, parse_listing
from connectors.network.exchange import Exchange, HttpSender
from connectors.network.headers import by_lower_name, check_values, checked_headers
from connectors.network.policy import ENGINE_ADDRESSES, AddressPolicy, normalise_base_url
from connectors.network.redaction import Redactor, shorten
from connectors.network.redirects import Hop, RedirectChain, follow_chain
from connectors.network.transport import HttpLimits, tls_context


def fill_path(path: str, /, **ids: str) -> str:
    """`/runs/{run_id}` with the id in its place, percent-encoded.

    Raises Rejected for an id that would lead to another path.
    """
    for name, value in ids.items():
        # Proxies resolve "." and ".." even when they are percent-encoded, and so would reach another path.
        if value in ("", ".", ".."):
            raise Rejected(f"{value!r} cannot be used as {name} in the engine's address.")
        path = path.replace(f"{{{name}}}", quote(value, safe=""))
    return path


def with_query(url: httpx2.URL, query: Sequence[tuple[str, str]], *, replace: bool = False) -> httpx2.URL:
    """The URL with `query` after what it has already; `replace`: in place of what it has by these names."""
    if not query:
        return url
    taken = {name for name, _ in query} if replace else ()
    kept = (part for part in url.query.decode("ascii").split("&") if part)
    kept = (part for part in kept if unquote_plus(part.partition("=")[0]) not in taken)
    return url.copy_with(query="&".join([*kept, urlencode(query, quote_via=quote)]).encode("ascii"))


def encode_body(body: Any, form: Mapping[str, str] | None) -> tuple[dict[str, str], bytes | None]:
    """The header that says what is sent, and its bytes. Raises Rejected for what JSON cannot say."""
    if form is not None:
        return {"content-type": "application/x-www-form-urlencoded"}, urlencode(form).encode()
    if body is None:
        return {}, None
    try:
        content = json.dumps(body, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError):
        raise Rejected("The arguments cannot be written as JSON, so they were not sent.") from None
    return {"content-type": "application/json"}, content


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole response. Headers and body may repeat our secrets: mask them before they are shown."""

    status: int
    headers: httpx2.Headers = field(repr=False)
    body: bytes = field(repr=False)
    seconds: float
    """From sending the first request to the last byte of this response."""
    url: str
    """The URL that answered, without its query, which may carry credentials."""
    carried_out: bool = False
    """A redirect (303) confirmed that the request was carried out, and this answer describes the result: the
    request must not be sent again, whatever the status is."""
    not_followed: str = ""
    """Why a redirect was not followed, in a sentence."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Credentials for outgoing requests, added only to those to the configured origin."""

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    query: Sequence[tuple[str, str]] = field(default=(), repr=False)

    def secrets(self) -> Iterator[str]:
        """The values to mask: all of them, and the `x` of `Bearer x`."""
        for value in self.headers.values():
            yield value
            yield value.split()[-1] if value.split() else ""
        for _, value in self.query:
            yield value


NO_CREDENTIALS = Credentials()


USER_AGENT = "workflow-catalogue"
REFUSAL_BYTES = 64_000
"""Bytes that are read of an error response: enough for its message."""


class EngineClient:
    """One engine's address, credentials and limits.

    Make one per engine and event loop, share it between calls, close it with `aclose`.
    Every method raises only ConnectorError subclasses, and none of these shows a secret.
    """

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
        """`secrets` are masked wherever an engine echoes them. Raises Misconfigured for unusable settings."""
        try:
            self._base_url = normalise_base_url(base_url, policy=policy)
        except ValueError as error:
            raise Misconfigured(f"Base URL: {error}") from None
        self._limits = limits or HttpLimits()
        self._redactor = Redactor(secrets)
        tls = tls_context(verify=verify_tls, ca_file=ca_file) if self._base_url.startswith("https:") else None
        self._sender = HttpSender(limits=self._limits, tls=tls, policy=policy)
        self._sender_elsewhere: HttpSender | None = None
        self._policy, self._ca_file = policy, ca_file
        self._headers = {
            "accept": "application/json",
            "accept-encoding": "identity",
            "user-agent": USER_AGENT,
            **check_values(headers or {}),
        }

    @property
    def redactor(self) -> Redactor:
        """Knows this client's secrets, also the credentials of all exchanges so far."""
        return self._redactor

    def __repr__(self) -> str:
        return f"EngineClient({self._base_url})"

    async def exchange(
        self,
        method: str,
        target: str,
        *,
        query: Sequence[tuple[str, str]] = (),
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        credentials: Credentials = NO_CREDENTIALS,
        repeatable: bool,
        follow_redirects: bool = False,
        seconds: float | None = None,
    ) -> Answer:
        """One whole exchange: every status is an answer, also that of a redirect that was not followed.

        `target` is as in `request_json`; empty, it is the base URL itself. `seconds` is how long all of it
        may take, where that is less than the client's limits allow. Raises Misconfigured when the
        address may not be contacted or a header cannot be sent; Unreachable when no answer came;
        InvalidAnswer when it is too large or compressed; OutcomeUnknown instead of these, with
        `repeatable=False` only, where it is open what happened.
        """
        for secret in credentials.secrets():
            self._redactor.learn(secret)
        first = Hop(
            method,
            with_query(self._url(target), query),
            by_lower_name(self._headers) | checked_headers(headers or {}),
            content,
        )
        longest = self._limits.total_seconds if seconds is None else min(seconds, self._limits.total_seconds)
        until, started = self._after(longest), time.perf_counter()

        async def send(hop: Hop) -> Exchange:
            return await self._hop(hop, credentials, repeatable=repeatable, until=until, seconds=longest)

        journey = await follow_chain(first, send) if follow_redirects else RedirectChain(await send(first))
        took = time.perf_counter() - started
        self._refuse_unreadable(journey.last)
        return Answer(
            journey.last.status,
            journey.last.headers,
            bytes(journey.last.body),
            took,
            journey.last.place,
            journey.carried_out,
            journey.not_followed,
        )

    async def request_json(
        self,
        method: str,
        target: str,
        *,
        body: Any = None,
        form: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        repeatable: bool = True,
        max_depth: int = MAX_DEPTH,
        is_listing: bool = False,
    ) -> Any:
        """Send `body` as JSON, or a form, and return the JSON of a 2xx answer; everything else is an error.

        `target` is a path below the base URL, or a whole URL of the same origin. With `repeatable=False`
        every failure after which the engine may have acted is OutcomeUnknown. Objects of a listing that are
        nested too deep become TooDeep.
        """
        parse = parse_listing if is_listing else parse_json
        content_type, sent = encode_body(body, form)
        exchange = await self._succeed(
            method, target, content=sent, headers={**(headers or {}), **content_type}, repeatable=repeatable
        )
        content = bytes(exchange.body)
        try:
            return self._redactor.answer(parse(content, max_depth=max_depth), content)
        except UnreadableJSON as error:
            raise exchange.not_json(error) from None

    async def request(self, method: str, target: str) -> None:
        """Like `request_json`, without reading the content of a 2xx answer."""
        await self._succeed(method, target)

    def follow(self, link: str, *, found_at: str) -> str:
        """Where a link in the answer of `found_at` leads. Raises InvalidAnswer for another origin."""
        try:
            url = self._url(urljoin(str(self._url(found_at)), link))
        except (Misconfigured, ValueError):
            shown = shorten(self._redactor.text(link).partition("?")[0], 200)
            raise InvalidAnswer(f"The engine links to {shown}, which is not on {self._base_url}.") from None
        return str(url)

    async def aclose(self) -> None:
        await self._sender.aclose()
        if self._sender_elsewhere:
            await self._sender_elsewhere.aclose()

    async def _succeed(
        self,
        method: str,
        target: str,
        *,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        repeatable: bool = True,
    ) -> Exchange:
        exchange = Exchange(method, self._url(target), repeatable, self._redactor)
        failure = await self._sender.carry_out(
            exchange,
            headers=self._headers | check_values(headers or {}),
            content=content,
            until=self._after(self._limits.total_seconds),
            seconds=self._limits.total_seconds,
            refusal_bytes=REFUSAL_BYTES,
        )
        # Raised here, where no transport error is being handled: those may quote what was sent.
        if exchange.refused:
            raise exchange.refusal()
        if failure:
            raise exchange.unanswered(failure)
        self._refuse_unreadable(exchange)
        return exchange

    async def _hop(
        self, hop: Hop, credentials: Credentials, *, repeatable: bool, until: float, seconds: float
    ) -> Exchange:
        url, headers = hop.url, hop.headers
        if hop.at_home:
            url = with_query(url, credentials.query, replace=True)
            headers = headers | checked_headers(credentials.headers)
        exchange = Exchange(hop.method, url, repeatable, self._redactor, sent=hop.carried_out)
        sender = self._sender if hop.at_home else self._elsewhere()
        failure = await sender.carry_out(
            exchange,
            headers=headers,
            content=hop.content,
            until=until,
            seconds=seconds,
            refusal_bytes=self._limits.max_response_bytes,
        )
        if failure:
            raise exchange.unanswered(failure)
        return exchange

    def _elsewhere(self) -> HttpSender:
        """For other origins, with TLS verified: only the configured origin can be exempt from that."""
        if self._sender_elsewhere is None:
            tls = tls_context(verify=True, ca_file=self._ca_file)
            self._sender_elsewhere = HttpSender(limits=self._limits, tls=tls, policy=self._policy)
        return self._sender_elsewhere

    @staticmethod
    def _after(seconds: float) -> float:
        return asyncio.get_running_loop().time() + seconds

    def _refuse_unreadable(self, exchange: Exchange) -> None:
        if exchange.truncated:
            raise exchange.unusable(f"the answer is larger than {self._limits.max_response_bytes:,} bytes.")
        # Unpacking is left out: a few kilobytes can unpack to more memory than any limit on what is read.
        if exchange.encoding:
            raise exchange.unusable("the answer is compressed although we asked for a plain one.")

    def _url(self, target: str) -> httpx2.URL:
        try:
            url = httpx2.URL(self._base_url + target if target.startswith("/") or not target else target)
        except httpx2.InvalidURL:
            raise Misconfigured("The path makes no valid URL.") from None
        base = httpx2.URL(self._base_url)
        if (url.scheme, url.netloc) != (base.scheme, base.netloc) or url.userinfo:
            raise Misconfigured(f"The URL is not on {self._base_url}.")
        return url
