"""Connections that reach only the addresses that were checked, and one HTTP request over them."""

import asyncio
import contextlib
import os
import select
import ssl
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache, lru_cache, partial
from http.client import responses
from typing import Any, Protocol, Self

import httpcore2
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

IDLE_SECONDS = 4.0  # Common servers close idle connections after 5 s; a start must never meet that
WORDS_LIMIT = 500  # Characters of an engine's message in an error
RETRY_AFTER_LIMIT = 3600.0
MOST_UNREAD = 256 * 1024  # Bytes of a connection in memory, beyond which the engine must wait
TRANSPORT_ERRORS = (httpcore2.NetworkError, httpcore2.TimeoutException, httpcore2.ProtocolError, OSError)


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpLimits:
    connect_seconds: float = 5.0  # For a free slot in the pool, and again to connect
    read_seconds: float = 30.0  # Before and between chunks of a response
    total_seconds: float = 30.0  # From waiting for a connection to the last byte of the response
    max_response_bytes: int = 10_000_000
    max_connections: int = 50

    @classmethod
    def within(cls, seconds: float, *, max_response_bytes: int = 10_000_000) -> Self:
        return cls(
            connect_seconds=min(cls().connect_seconds, seconds),
            read_seconds=seconds,
            total_seconds=seconds,
            max_response_bytes=max_response_bytes,
        )


class BeingSent(Protocol):
    """A request that learns of its first byte on the wire."""

    sent: bool


being_sent: ContextVar[BeingSent | None] = ContextVar("being_sent", default=None)
"""The request of this task: only its stream knows whether it was sent before a deadline passed."""


class _Readability:
    """Which sockets of a pool can be read: one system call for all, as the pool asks about each idle one.

    What it found holds for one turn of the event loop, and until one of them is read.
    """

    def __init__(self) -> None:
        self._poll = select.poll() if hasattr(select, "poll") else None
        self.found: dict[int, int] | None = None

    def add(self, number: int) -> None:
        if self._poll is not None:
            self._poll.register(number, select.POLLIN)
        self.found = None

    def remove(self, number: int) -> None:
        if self._poll is not None:
            with contextlib.suppress(KeyError):
                self._poll.unregister(number)

    def forget(self) -> None:
        self.found = None

    def has(self, number: int) -> bool:
        if self._poll is None:
            return bool(select.select([number], [], [], 0)[0])
        if self.found is None:
            self.found = dict(self._poll.poll(0))
            asyncio.get_running_loop().call_soon(self.forget)
        return number in self.found


class GuardedNetwork(httpcore2.AsyncNetworkBackend):
    """Connects to the very addresses that were checked. The pool resolves the name again when it connects,
    and its owner may answer differently then. TLS verifies the name, not the address."""

    def __init__(self, policy: AddressPolicy) -> None:
        self._policy = policy
        self._readable = _Readability()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        assert timeout is not None, "every request of ours has a time limit"
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout

        async def connect(address: str, *, share: int) -> httpcore2.AsyncNetworkStream:
            seconds = max(deadline - loop.time(), 0) / share
            try:
                async with asyncio.timeout(seconds):
                    _, connection = await loop.create_connection(_Connection, address, port)
            except TimeoutError as error:
                raise httpcore2.ConnectTimeout(str(error)) from error
            except OSError as error:
                raise httpcore2.ConnectError(str(error)) from error
            return _Stream(connection, self._readable)

        addresses = await self._resolve(host, port, deadline)
        for left in range(len(addresses), 1, -1):
            with contextlib.suppress(httpcore2.ConnectError, httpcore2.ConnectTimeout):
                return await connect(addresses[-left], share=left)
        return await connect(addresses[-1], share=1)

    async def _resolve(self, host: str, port: int, deadline: float) -> list[str]:
        try:
            async with asyncio.timeout_at(deadline):
                return await self._policy.resolve(host, port)
        except TimeoutError:
            raise httpcore2.ConnectTimeout(f"the name {host} was not resolved in time") from None


class _Connection(asyncio.Protocol):
    """The bytes that have arrived but were not read, and whether more can be written."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.received = bytearray()
        self.is_paused = self.has_ended = False
        self.error: Exception | None = None
        self.arrival: asyncio.Future[None] | None = None
        self.room: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        if len(self.received) > MOST_UNREAD and not self.is_paused:
            self.is_paused = True
            self.transport.pause_reading()
        self._wake(self.arrival)

    def eof_received(self) -> None:
        self.has_ended = True
        self._wake(self.arrival)

    def connection_lost(self, error: Exception | None) -> None:
        self.has_ended, self.error = True, error
        self._wake(self.arrival)
        self.resume_writing()

    def pause_writing(self) -> None:
        self.room = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        self._wake(self.room)
        self.room = None

    def _wake(self, waiting: asyncio.Future[None] | None) -> None:
        if waiting is not None and not waiting.done():
            waiting.set_result(None)


class _Stream(httpcore2.AsyncNetworkStream):
    """Uses asyncio directly: httpcore2's own stream supports any event loop, but takes twice the time."""

    def __init__(self, connection: _Connection, readable: _Readability) -> None:
        self._connection, self._transport = connection, connection.transport
        self._socket = self._transport.get_extra_info("socket")
        self._readable = readable
        if self._socket is not None:
            readable.add(self._socket.fileno())

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        connection = self._connection
        self._readable.found = None
        if not connection.received and not connection.has_ended:
            connection.arrival = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(timeout):
                    await connection.arrival
            except TimeoutError as error:
                raise httpcore2.ReadTimeout(str(error)) from error
            finally:
                connection.arrival = None
        if connection.received:
            data = bytes(connection.received[:max_bytes])
            del connection.received[:max_bytes]
            if connection.is_paused and not self._transport.is_closing():
                connection.is_paused = False
                self._transport.resume_reading()
            return data
        if connection.error is not None:
            raise httpcore2.ReadError(str(connection.error)) from connection.error
        return b""

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if (request := being_sent.get()) is not None:
            request.sent = True
        if not buffer:
            return
        if self._transport.is_closing():
            raise httpcore2.WriteError("the connection is closed") from self._connection.error
        self._transport.write(buffer)
        if self._connection.room is not None:
            try:
                async with asyncio.timeout(timeout):
                    await self._connection.room
            except TimeoutError as error:
                raise httpcore2.WriteTimeout(str(error)) from error
            if self._connection.error is not None:
                raise httpcore2.WriteError(str(self._connection.error)) from self._connection.error

    async def aclose(self) -> None:
        if self._socket is not None and (number := self._socket.fileno()) >= 0:
            self._readable.remove(number)
        if not self._transport.is_closing():
            self._transport.close()
            await asyncio.sleep(0)
        self._transport.abort()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.AsyncNetworkStream:
        connection, loop = self._connection, asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout):
                connection.transport = await loop.start_tls(
                    self._transport, connection, ssl_context, server_hostname=server_hostname
                )
        except BaseException as error:
            # Also of a handshake that is cancelled.
            await self.aclose()
            if isinstance(error, TimeoutError):
                raise httpcore2.ConnectTimeout(str(error)) from error
            if isinstance(error, OSError):
                raise httpcore2.ConnectError(str(error)) from error
            raise
        return _Stream(connection, self._readable)

    def get_extra_info(self, info: str) -> Any:
        if info != "is_readable":
            return self._transport.get_extra_info(info)
        # An idle connection is readable only if it was closed.
        if self._connection.received or self._connection.has_ended or self._transport.is_closing():
            return True
        if self._socket is None or (number := self._socket.fileno()) < 0:
            return True
        return self._readable.has(number)


class GuardedTransport(httpx2.AsyncBaseTransport):
    """httpx2's transport cannot pass a network backend to its pool; this one does."""

    def __init__(
        self, *, limits: HttpLimits, tls: ssl.SSLContext | None, policy: AddressPolicy = ENGINE_ADDRESSES
    ) -> None:
        self.pool = httpcore2.AsyncConnectionPool(
            ssl_context=tls,
            max_connections=limits.max_connections,
            max_keepalive_connections=limits.max_connections,
            keepalive_expiry=IDLE_SECONDS,
            network_backend=GuardedNetwork(policy),
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await self.pool.handle_async_request(for_pool(request))
        return httpx2.Response(
            status_code=response.status,
            headers=response.headers,
            stream=_PooledBody(response),
            extensions=response.extensions,
        )

    async def aclose(self) -> None:
        await self.pool.aclose()


def _pool_url(url: httpx2.URL) -> httpcore2.URL:
    return httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)


def _wire_headers(
    exchange: "Exchange", headers: dict[str, str], content: bytes | None
) -> list[tuple[bytes, bytes]]:
    """Including those that HTTP requires."""
    wire = [(b"Host", exchange.url.netloc)]
    if content is not None or exchange.method in ("POST", "PUT", "PATCH"):
        wire.append((b"Content-Length", b"%d" % len(content or b"")))
    own = (b"host", b"content-length")
    wire += [
        (encoded, value.encode("ascii"))
        for name, value in headers.items()
        if (encoded := name.encode("ascii")).lower() not in own
    ]
    return wire


def for_pool(request: httpx2.Request) -> httpcore2.Request:
    assert isinstance(request.stream, httpx2.AsyncByteStream)
    return httpcore2.Request(
        method=request.method,
        url=_pool_url(request.url),
        headers=request.headers.raw,
        content=request.stream,
        extensions=request.extensions,
    )


class _PooledBody(httpx2.AsyncByteStream):
    def __init__(self, response: httpcore2.Response) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._response.aiter_stream():
            yield chunk

    async def aclose(self) -> None:
        await self._response.aclose()


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

    def __str__(self) -> str:
        """Without the query, which may carry tokens."""
        return self.redactor.text(f"{self.method} {self.url.path}")

    def __repr__(self) -> str:
        return f"Exchange({self})"

    @property
    def place(self) -> str:
        text = str(self.url)
        if "?" in text or "#" in text:
            text = str(self.url.copy_with(query=None, fragment=None))
        return self.redactor.text(text)

    @property
    def refused(self) -> bool:
        return self.status != 0 and not 200 <= self.status < 300

    @property
    def encoding(self) -> str:
        encoding = str(self.headers.get("content-encoding", "")).strip().lower()
        return "" if encoding == "identity" else encoding

    @property
    def location(self) -> str:
        """A redirect's target as sent; may contain secrets."""
        return str(self.headers.get("location", ""))

    def words(self) -> str:
        """The engine's message, redacted before it is cut so that no half of a secret remains."""
        words = "" if self.encoding else words_of(bytes(self.body))
        return shorten(self.redactor.text(words), WORDS_LIMIT)

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
        return self.unusable(f"expected JSON, got {shorten(media_type, 50) or 'no type'}: {self.words()}")

    def refusal(self) -> ConnectorError:
        """The error for any other status."""
        status, words, phrase = self.status, self.words(), responses.get(self.status, "")
        line = f"{status} {phrase}".strip()
        line += f": {words}" if words and words.lower() != phrase.lower() else ""
        details = self._details()
        wait = retry_after(self.headers)
        message = f"{self}: the engine answered {line}"
        if 300 <= status < 400:
            return self._redirect()
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

    def _redirect(self) -> ConnectorError:
        """Not followed: credentials are for the configured address only."""
        target = self._header("location").partition("?")[0]
        place = shorten(target, 200) or "nowhere"
        reason = f"the engine answered {self.status} and points to {place}, which is not followed"
        if self.status in (301, 307, 308):
            return Misconfigured(f"{self}: {reason}. Correct the base URL or the path.")
        return self.unusable(f"{reason}.")

    def _header(self, name: str) -> str:
        """Redacted before it is cut."""
        return self.redactor.text(str(self.headers.get(name, "")))

    def _details(self) -> dict[str, Any]:
        details = {"request": str(self), "status": self.status, "answer": self.words()}
        return details | ({"truncated": True} if self.truncated else {})


def retry_after(headers: httpx2.Headers) -> float | None:
    """Seconds from now, 0 to RETRY_AFTER_LIMIT; None if absent or unreadable."""
    text = str(headers.get("retry-after", "")).strip()
    if text.isascii() and text.isdigit():
        return min(float(text), RETRY_AFTER_LIMIT)
    try:
        when = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    seconds = (when.replace(tzinfo=when.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    return min(max(seconds, 0.0), RETRY_AFTER_LIMIT)


def failure_reason(error: Exception, limits: HttpLimits) -> str:
    """The meaning of one of TRANSPORT_ERRORS, without messages that may quote the request."""
    match error:
        case httpcore2.ReadTimeout() | httpcore2.WriteTimeout():
            return f"no response within {limits.read_seconds:g} s"
        case httpcore2.PoolTimeout():
            return f"all {limits.max_connections} connections to the engine stayed busy"
        case httpcore2.ConnectTimeout():
            return str(error) or f"no connection within {limits.connect_seconds:g} s"
        case httpcore2.ConnectError():
            return _root_cause(error)
    return "the connection broke before the response was complete"


def _root_cause(error: BaseException) -> str:
    """The reason of the operating system or TLS behind the pool's error."""
    cause = error
    # The pool re-raises "from None", which leaves only the context to follow.
    while deeper := cause.__cause__ or cause.__context__:
        cause = deeper
        if isinstance(cause, ssl.SSLError):
            return str(cause)
        if isinstance(cause, OSError) and cause.errno:
            return os.strerror(cause.errno).lower()
    return str(error)


# `labels` looks the series up under a lock and checks the names each time.
@cache
def _counted(status: int) -> Any:
    return metrics.engine_requests.labels(metrics.status_class(status))


class HttpSender:
    """Sends the requests of one client; close it with `aclose`."""

    def __init__(self, *, limits: HttpLimits, tls: ssl.SSLContext | None, policy: AddressPolicy) -> None:
        self._limits = limits
        # A short wait for the pool leaves a start enough of its time: once sent, being late makes it unknown.
        # No limit for a part that the whole exchange would not reach.
        part = limits.read_seconds if limits.read_seconds < limits.total_seconds else None
        self._timeouts = httpx2.Timeout(
            part, connect=limits.connect_seconds, pool=limits.connect_seconds
        ).as_dict()
        self._transport = GuardedTransport(limits=limits, tls=tls, policy=policy)

    async def carry_out(
        self,
        exchange: Exchange,
        *,
        headers: dict[str, str],
        content: bytes | None,
        until: float,
        seconds: float,
        refusal_bytes: int | None = None,
    ) -> Exchange:
        """Send the request and read the response into the exchange. `until` is in the loop's time; `seconds`,
        the limit for all hops together, is for the message. `refusal_bytes`: so many of a refusal are enough,
        and an incomplete one will do. Raises Misconfigured for an address that may not be contacted, else
        what `unanswered` says of an incomplete response."""
        place = exchange.url
        with traces.span(
            exchange.method,
            kind=SpanKind.CLIENT,
            attributes={
                "http.request.method": exchange.method,
                "server.address": place.host,
                "server.port": place.port or (443 if place.scheme == "https" else 80),
            },
        ) as span:
            await self._send(
                exchange,
                headers=traces.outgoing_headers() | headers,
                content=content,
                until=until,
                seconds=seconds,
                refusal_bytes=refusal_bytes,
            )
            if span is not None:
                span.set("http.response.status_code", exchange.status)
        return exchange

    async def _send(
        self,
        exchange: Exchange,
        *,
        headers: dict[str, str],
        content: bytes | None,
        until: float,
        seconds: float,
        refusal_bytes: int | None,
    ) -> None:
        # Not as httpx2's request, and not through its client, whose redirects, cookies and authentication are
        # not needed: both together cost 0.3 ms.
        request = httpcore2.Request(
            exchange.method,
            _pool_url(exchange.url),
            headers=_wire_headers(exchange, headers, content),
            content=content or b"",
            extensions={"timeout": self._timeouts},
        )
        being_sent.set(exchange)
        started = time.perf_counter()
        failure = ""
        try:
            sending = self._transport.pool.handle_async_request(request)
            async with asyncio.timeout_at(until), aclosing(await sending) as response:
                exchange.status, exchange.headers = response.status, httpx2.Headers(response.headers)
                limit = self._limits.max_response_bytes
                if refusal_bytes is not None and exchange.refused:
                    limit = refusal_bytes
                async for chunk in response.aiter_stream():
                    exchange.body += chunk
                    if len(exchange.body) > limit:
                        exchange.truncated = True
                        break
        except TimeoutError:
            failure = f"no complete response within {round(seconds, 2):g} s"
        except TRANSPORT_ERRORS as error:
            failure = failure_reason(error, self._limits)
        took = time.perf_counter() - started
        metrics.engine_seconds.observe(took)
        _counted(exchange.status).inc()
        logger.debug("{}: {} in {:.3f} s", exchange, failure or exchange.status, took)
        # Raised here, where no transport error is being handled: those may quote what was sent.
        if failure and (refusal_bytes is None or not exchange.refused):
            raise exchange.unanswered(failure)

    async def aclose(self) -> None:
        await self._transport.aclose()
