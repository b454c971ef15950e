"""One HTTP request and its answer, with limits and errors that show no secret."""

import asyncio
import os
import ssl
import time
import zlib
from collections.abc import AsyncIterable
from contextlib import closing
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cached_property, lru_cache, partial
from http.client import responses
from typing import TYPE_CHECKING, Any, Self

import httpx2
from loguru import logger
from opentelemetry.trace import SpanKind

from connectors.errors import (
    ConnectorError,
    InvalidAnswer,
    Misconfigured,
    NotFound,
    OutcomeUnknown,
    Rejected,
    Unreachable,
)
from connectors.formats.json import UnreadableJSON
from connectors.network.policy import ENGINE_ADDRESSES, AddressPolicy
from connectors.network.redaction import Redactor, shorten, words_of
from telemetry import metrics, traces

if TYPE_CHECKING:
    from connectors.network.connections import Connections

WORDS_LIMIT = 500  # Characters of an engine's message in an error
MAX_RETRY_AFTER_SECONDS = 3600.0
PACKED = ("gzip", "x-gzip", "deflate")
FRAMING = ("connection", "content-length", "host", "transfer-encoding")  # Set by aiohttp
TRANSPORT_ERRORS = (httpx2.TransportError, OSError)
PHRASES = {  # Those of RFC 9110 first, which Python has from 3.13 on, then those of before
    413: ("Content Too Large", "Payload Too Large", "Request Entity Too Large"),
    414: ("URI Too Long", "Request-URI Too Long"),
    416: ("Range Not Satisfiable", "Requested Range Not Satisfiable"),
    422: ("Unprocessable Content", "Unprocessable Entity"),
}


def status_line(status: int) -> str:
    """`404 Not Found`; of an unknown status the number alone."""
    return f"{status} {_phrases(status)[0]}".strip()


def is_phrase(words: str, status: int) -> bool:
    """Returns True if the words only repeat the status."""
    return words.lower() in {phrase.lower() for phrase in _phrases(status)}


def _phrases(status: int) -> tuple[str, ...]:
    return PHRASES.get(status) or (responses.get(status, ""),)


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpLimits:
    connect_seconds: float = 5.0  # For a free slot in the pool, and again to connect
    read_seconds: float = 30.0  # Before and between chunks of a response
    total_seconds: float = 30.0  # From waiting for a connection to the last byte of the response
    max_response_bytes: int = 10_000_000
    max_connections: int = 50

    @classmethod
    def within(cls, seconds: float, *, max_response_bytes: int = 10_000_000) -> Self:
        """Suits an engine, of which a worker polls 50 runs and starts 50 others at a time."""
        return cls(
            connect_seconds=min(cls().connect_seconds, seconds),
            read_seconds=seconds,
            total_seconds=seconds,
            max_response_bytes=max_response_bytes,
            max_connections=100,
        )

    @classmethod
    def of(cls, config: Any) -> Self:
        """Takes the settings that `connectors.settings` has for requests."""
        return cls.within(config.request_timeout_seconds, max_response_bytes=config.max_response_bytes)


being_sent: ContextVar["Exchange | None"] = ContextVar("being_sent", default=None)
"""The request of this task: only its stream knows whether it was sent before a deadline passed."""


class GuardedTransport(httpx2.AsyncBaseTransport):
    """Reaches only what the policy allows. Raises httpx2's TransportErrors, and Misconfigured for other
    addresses."""

    def __init__(
        self, *, limits: HttpLimits, tls: ssl.SSLContext | None, policy: AddressPolicy = ENGINE_ADDRESSES
    ) -> None:
        self._limits, self._tls, self._policy = limits, tls, policy
        self.is_closed = False

    @cached_property
    def connections(self) -> "Connections":
        """Raises httpx2.ConnectError once it is closed."""
        from connectors.network.connections import CLOSED, Connections

        if self.is_closed:
            raise httpx2.ConnectError(CLOSED)

        return Connections(
            most=self._limits.max_connections,
            connect_seconds=self._limits.connect_seconds,
            tls=self._tls,
            policy=self._policy,
            being_sent=being_sent,
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        headers = [(name, value) for name, value in request.headers.multi_items() if name not in FRAMING]
        response = await self.connections.open(
            request.method,
            request.url,
            headers,
            await request.aread() or None,
            silence=request.extensions["timeout"]["read"],
        )
        return httpx2.Response(response.status, headers=response.headers, stream=response)

    async def aclose(self) -> None:
        self.is_closed = True
        if "connections" in self.__dict__:
            await self.connections.aclose()


def tls_context(*, verify: bool, ca_file: str) -> ssl.SSLContext:
    """Trusts public authorities and those in `ca_file`. Raises Misconfigured for an unusable file."""
    if not ca_file:
        return _shared_context(verify=verify)
    context = httpx2.create_ssl_context(verify=verify, trust_env=False)
    try:
        context.load_verify_locations(ca_file)
    except OSError as error:
        reason = error.strerror or "no certificate found"
        raise Misconfigured(f"The CA file {ca_file} cannot be used: {reason}.") from None
    return context


# Loading the public authorities takes 38 ms of CPU, which clients need not pay again.
_shared_context = lru_cache(partial(httpx2.create_ssl_context, trust_env=False))


@dataclass(slots=True, eq=False, repr=False)
class Exchange:
    """A request and its response as far as it has arrived. Its errors show no secret."""

    method: str
    url: httpx2.URL
    repeatable: bool
    redactor: Redactor
    sent: bool = False
    status: int = 0
    headers: httpx2.Headers = field(default_factory=httpx2.Headers)
    body: bytearray = field(default_factory=bytearray)
    truncated: bool = False
    is_unpacked: bool = False
    status_decides: bool = False  # Whatever the body says
    cut_at: float | None = None  # In the loop's time: what has arrived of a body by then will do
    cut: str = ""  # `after 30 s`, if it was cut
    seconds: float = 0.0  # From the first request of a chain of redirects to the last byte
    carried_out: bool = False
    """A redirect (303) confirmed the request, and this is its result: whatever the status is, the request
    must not be sent again."""
    not_followed: str = ""  # Why the last redirect was not followed, in a sentence

    def __str__(self) -> str:
        """Leaves out the query, which may carry tokens."""
        return self.redactor.text(f"{self.method} {self.url.path}")

    def __repr__(self) -> str:
        return f"Exchange({self})"

    @property
    def content(self) -> bytes:
        return bytes(self.body)

    @property
    def place(self) -> str:
        """Returns the URL without its query."""
        return self.redactor.text(str(self.url.copy_with(query=None, fragment=None)))

    @property
    def refused(self) -> bool:
        return self.status != 0 and not 200 <= self.status < 300

    @property
    def is_decided(self) -> bool:
        """Returns True if an incomplete body will do."""
        return self.refused or (self.status_decides and self.status != 0)

    @property
    def encoding(self) -> str:
        """Tells how the body is encoded as it is here."""
        encoding = self._header("content-encoding").strip().lower()
        return "" if encoding == "identity" or self.is_unpacked else encoding

    @property
    def location(self) -> str:
        """A redirect's target as sent; may contain secrets."""
        return str(self.headers.get("location", ""))

    def words(self) -> str:
        """The engine's message, redacted before it is cut so that no half of a secret remains."""
        words = "" if self.encoding else words_of(self.content, self.redactor)
        return shorten(words, WORDS_LIMIT)

    def unanswered(self, reason: str) -> ConnectorError:
        """The error for an incomplete or missing response."""
        reason = self.redactor.text(reason)
        if not self.sent:
            return Unreachable(f"Could not connect to {self.url.netloc.decode('ascii')}: {reason}.")
        if self.repeatable:
            return Unreachable(f"{self}: {reason}.")
        return OutcomeUnknown(f"{self}: {reason}. The engine may have carried it out.")

    def unusable(self, reason: str) -> ConnectorError:
        """The error for an unreadable 2xx response."""
        kind = InvalidAnswer if self.repeatable else OutcomeUnknown
        return kind(f"{self}: {reason}", details=self._details())

    def not_json(self, error: UnreadableJSON) -> ConnectorError:
        media_type = self._header("content-type").partition(";")[0].strip().lower()
        if not self.body or media_type.endswith("json"):
            return self.unusable(f"expected JSON. {error}")
        said = f"{len(self.body):,} bytes" if b"\0" in self.body else self.words()  # Not of a picture
        return self.unusable(f"expected JSON, got {shorten(media_type, 50) or 'no type'}: {said}")

    def refusal(self) -> ConnectorError:
        """The error for any other status."""
        status, words = self.status, self.words()
        line = status_line(status)
        line += f": {words}" if words and not is_phrase(words, status) else ""
        details = self._details()
        wait = retry_after(self.headers)
        who = "proxy" if status == 407 else "engine"
        message = f"{self}: the {who} answered {line}"
        if 300 <= status < 400:
            # Not followed: credentials are for the configured address only.
            place = shorten(self._header("location").partition("?")[0], 200) or "nowhere"
            reason = f"the engine answered {status} and points to {place}, which is not followed"
            if status in (301, 307, 308):
                return Misconfigured(f"{self}: {reason}. Correct the base URL or the path.")
            return self.unusable(f"{reason}.")
        if status in (401, 403):
            refused = f"{self}: the engine rejected the credentials ({line})"
            return Rejected(refused, details=details, needs_operator=True)
        if status in (404, 410):
            return NotFound(message, details=details)
        if status == 429 or (status == 503 and wait is not None):
            return Unreachable(message, retry_after=wait, details=details)
        # 408: the engine behind a gateway may still be working on the request.
        if 400 <= status < 500 and status != 408:
            return Rejected(message, details=details)
        kind = Unreachable if self.repeatable else OutcomeUnknown
        return kind(message, details=details)

    def _header(self, name: str) -> str:
        """Redacted before it is cut."""
        return self.redactor.text(str(self.headers.get(name, "")))

    def _details(self) -> dict[str, Any]:
        return {"request": str(self), "status": self.status, "answer": self.words()}


def retry_after(headers: httpx2.Headers) -> float | None:
    """Seconds from now, 0 to MAX_RETRY_AFTER_SECONDS; None if absent or unreadable."""
    text = str(headers.get("retry-after", "")).strip()
    if text.isascii() and text.isdigit():
        return min(float(text), MAX_RETRY_AFTER_SECONDS)
    try:
        when = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    seconds = (when.replace(tzinfo=when.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    return min(max(seconds, 0.0), MAX_RETRY_AFTER_SECONDS)


def failure_reason(error: Exception, limits: HttpLimits) -> str:
    """The meaning of one of TRANSPORT_ERRORS, without messages that may quote the request."""
    match error:
        case httpx2.ReadTimeout() | httpx2.WriteTimeout():
            return f"no response within {limits.read_seconds:g} s"
        case httpx2.PoolTimeout():
            return f"all {limits.max_connections} connections to the engine stayed busy"
        case httpx2.ConnectTimeout():
            return str(error) or f"no connection within {limits.connect_seconds:g} s"
        case httpx2.ConnectError():
            return _root_cause(error)
        case httpx2.ProxyError():
            return str(error)
    return "the connection broke before the response was complete"


def _root_cause(error: BaseException) -> str:
    """The reason of the operating system or TLS behind the pool's error."""
    cause = error
    while deeper := cause.__cause__ or cause.__context__:
        cause = deeper
        if isinstance(cause, ssl.SSLError):
            return _tls_reason(cause)
        if isinstance(cause, OSError) and cause.errno:
            return os.strerror(cause.errno).lower()
    return str(error)


def _tls_reason(error: ssl.SSLError) -> str:
    """Leaves out the words that aiohttp and OpenSSL put around it."""
    error = getattr(error, "certificate_error", getattr(error, "os_error", error))
    if isinstance(error, ssl.SSLCertVerificationError):
        # By OpenSSL's X509_V_ERR codes.
        advices = {9: "; compare the clocks of both machines", 10: "; renew it on that server"}
        advice = advices.get(error.verify_code, "")
        return f"certificate verify failed: {error.verify_message.rstrip('.')}{advice}"
    return f"TLS failed: {error.reason.replace('_', ' ').lower()}" if error.reason else str(error)


class HttpSender(GuardedTransport):
    """Sends the requests of one client; close it with `aclose`."""

    async def carry_out(
        self,
        exchange: Exchange,
        *,
        headers: dict[str, str],
        content: bytes | None,
        until: float | None = None,
        seconds: float | None = None,
        refusal_bytes: int | None = None,
    ) -> Exchange:
        """Send the request and read the response into the exchange. `until` is in the loop's time; `seconds`,
        the limit for all hops together, is for the message. `refusal_bytes`: so many are enough of a response
        that is decided by its status, and an incomplete one will do. Raises Misconfigured for an address that
        may not be contacted, else what `unanswered` says of an incomplete response."""
        being_sent.set(exchange)
        place, failure = exchange.url, ""
        started, begun = time.perf_counter(), asyncio.get_running_loop().time()
        limits = self._limits
        # No limit for a part that the whole exchange would not reach.
        silence = limits.read_seconds if limits.read_seconds < limits.total_seconds else None
        seconds = limits.total_seconds if seconds is None else seconds
        until = begun + seconds if until is None else until
        with traces.span(
            exchange.method,
            kind=SpanKind.CLIENT,
            attributes={
                "http.request.method": exchange.method,
                "server.address": place.host,
                "server.port": place.port or (443 if place.scheme == "https" else 80),
            },
        ) as span:
            try:
                # Not as httpx2's request, and not through its client, whose redirects, cookies and
                # authentication are not needed: both together cost 0.3 ms.
                sending = self.connections.open(
                    exchange.method,
                    place,
                    traces.outgoing_headers() | headers,
                    content or None,
                    silence=silence,
                )
                async with asyncio.timeout_at(until) as limit_of_time:
                    with closing(await sending) as response:
                        exchange.status, exchange.headers = response.status, httpx2.Headers(response.headers)
                        if exchange.cut_at is not None:
                            limit_of_time.reschedule(min(until, exchange.cut_at))
                        limit = limits.max_response_bytes
                        if refusal_bytes is not None and exchange.is_decided:
                            limit = refusal_bytes
                        await self._read(response, exchange, limit)
            except TimeoutError:
                if exchange.status and exchange.cut_at is not None:
                    exchange.cut = f"after {round(min(until, exchange.cut_at) - begun, 2):g} s"
                    exchange.is_unpacked = exchange.encoding in PACKED
                else:
                    failure = f"no complete response within {round(seconds, 2):g} s"
            except TRANSPORT_ERRORS as error:
                failure = failure_reason(error, limits)
            took = time.perf_counter() - started
            metrics.engine_seconds.observe(took)
            metrics.engine_requests.labels(metrics.status_class(exchange.status)).inc()
            logger.debug("{}: {} in {:.3f} s", exchange, failure or exchange.status, took)
            # Raised here, where no transport error is being handled: those may quote what was sent.
            if failure and (refusal_bytes is None or not exchange.is_decided):
                raise exchange.unanswered(failure)
            if span is not None:
                span.set_attribute("http.response.status_code", exchange.status)
        return exchange

    async def _read(self, response: AsyncIterable[bytes], exchange: Exchange, limit: int) -> None:
        """Reads at most `limit` bytes and what makes it known that there are more. What some servers send
        compressed, though nobody asked for it, is unpacked; if it cannot be, it is left out."""
        is_packed = exchange.encoding in PACKED
        inflate = zlib.decompressobj(zlib.MAX_WBITS | 32) if is_packed else None  # gzip or zlib
        is_empty = True
        async for part in response:
            is_empty = False
            try:
                exchange.body += inflate.decompress(part, limit + 1 - len(exchange.body)) if inflate else part
            except zlib.error:
                exchange.body.clear()
                return
            if len(exchange.body) > limit:
                exchange.truncated = True
                if exchange.cut_at is not None:
                    exchange.cut = f"after {limit:,} bytes"
                    del exchange.body[limit:]
                break
        exchange.is_unpacked = is_empty or (inflate is not None and (inflate.eof or exchange.truncated))
