"""One HTTP request to an engine: sending it, reading the answer, and the error for each outcome."""

import asyncio
import os
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import responses
from typing import Any

import httpcore2
import httpx2
from loguru import logger

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
from connectors.network.policy import AddressPolicy
from connectors.network.redaction import Redactor, shorten, words_of
from connectors.network.transport import GuardedTransport, HttpLimits

WORDS_LIMIT = 500
"""Characters of an engine's message that an error quotes."""
RETRY_AFTER_LIMIT = 3600.0
TRANSPORT_ERRORS = (
    httpcore2.NetworkError,
    httpcore2.TimeoutException,
    httpcore2.ProtocolError,
    OSError,
)


@dataclass(slots=True, eq=False, repr=False)
class Exchange:
    """A request, and its response as far as it has arrived. Its errors show no secret."""

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
        """Method and path; a query may carry tokens."""
        return self.redactor.text(f"{self.method} {self.url.path}")

    def __repr__(self) -> str:
        return f"Exchange({self})"

    @property
    def place(self) -> str:
        """The URL without its query."""
        return self.redactor.text(str(self.url.copy_with(query=None, fragment=None)))

    async def watch(self, event: str, info: Mapping[str, Any]) -> None:
        """The pool's trace: it alone knows whether the request was sent before a deadline passed."""
        if event.endswith(".send_request_headers.started"):
            self.sent = True

    @property
    def refused(self) -> bool:
        """Whether the engine answered with a status other than 2xx."""
        return self.status != 0 and not 200 <= self.status < 300

    @property
    def encoding(self) -> str:
        encoding = str(self.headers.get("content-encoding", "")).strip().lower()
        return "" if encoding == "identity" else encoding

    @property
    def location(self) -> str:
        """The target of a redirect as it was sent; it may contain secrets."""
        return str(self.headers.get("location", ""))

    def words(self) -> str:
        """The engine's message, redacted before it is cut so that no half of a secret remains."""
        words = "" if self.encoding else words_of(bytes(self.body))
        return shorten(self.redactor.text(words), WORDS_LIMIT)

    def unanswered(self, reason: str) -> ConnectorError:
        """The error for a response that did not arrive, or not completely."""
        reason = self.redactor.text(reason)
        if not self.sent:
            return Unreachable(f"Could not connect to {self.url.netloc.decode('ascii')}: {reason}.")
        if self.repeatable:
            return Unreachable(f"{self}: {reason}.")
        return OutcomeUnknown(f"{self}: {reason}. The engine may have carried it out.")

    def unusable(self, reason: str) -> ConnectorError:
        """The error for a 2xx response that cannot be read."""
        kind = InvalidAnswer if self.repeatable else OutcomeUnknown
        return kind(f"{self}: {reason}", details=self._details())

    def not_json(self, error: UnreadableJSON) -> ConnectorError:
        media_type = self._header("content-type").partition(";")[0].strip().lower()
        if not self.body or media_type.endswith("json"):
            return self.unusable(f"expected JSON. {error}")
        return self.unusable(f"expected JSON, got {shorten(media_type, 50) or 'no type'}: {self.words()}")

    def refusal(self) -> ConnectorError:
        """The error for any status but 2xx."""
        status, line, details = self.status, self._status_line(), self._details()
        wait = retry_after(self.headers)
        message = f"{self}: the engine answered {line}"
        if 300 <= status < 400:
            return self._redirect()
        if status in (401, 403):
            words = f"{self}: the engine refused our credentials ({line})"
            return Rejected(words, details=details, needs_operator=True)
        if status in (404, 410):
            return NotFound(message, details=details)
        if status == 429 or (status == 503 and wait is not None):
            return Unreachable(message, retry_after=wait, details=details)
        # 408: a gateway may say this of a request that the engine behind it is still working on.
        if 400 <= status < 500 and status != 408:
            return Rejected(message, details=details)
        kind = Unreachable if self.repeatable else OutcomeUnknown
        return kind(message, details=details)

    def _redirect(self) -> ConnectorError:
        """Not followed: the credentials are meant for the configured address only."""
        target = self._header("location").partition("?")[0]
        place = shorten(target, 200) or "nowhere"
        reason = f"the engine answered {self.status} and points to {place}, which is not followed"
        if self.status in (301, 307, 308):
            return Misconfigured(f"{self}: {reason}. Correct the base URL or the path.")
        return self.unusable(f"{reason}.")

    def _status_line(self) -> str:
        """`404 Not Found: no such run`."""
        phrase = responses.get(self.status, "")
        line = f"{self.status} {phrase}".strip()
        words = self.words()
        return f"{line}: {words}" if words and words.lower() != phrase.lower() else line

    def _header(self, name: str) -> str:
        """Redacted before it is cut, like the engine's words."""
        return self.redactor.text(str(self.headers.get(name, "")))

    def _details(self) -> dict[str, Any]:
        details = {"request": str(self), "status": self.status, "answer": self.words()}
        return details | ({"truncated": True} if self.truncated else {})


def retry_after(headers: httpx2.Headers) -> float | None:
    """Seconds from now, 0 to RETRY_AFTER_LIMIT; None when the header is absent or unreadable."""
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
    """What one of TRANSPORT_ERRORS means, without its own words where these could quote what was sent."""
    match error:
        case httpcore2.ReadTimeout() | httpcore2.WriteTimeout():
            return f"no answer within {limits.read_seconds:g} s"
        case httpcore2.PoolTimeout():
            return f"all {limits.max_connections} connections to the engine stayed busy"
        case httpcore2.ConnectTimeout():
            return str(error) or f"no connection within {limits.connect_seconds:g} s"
        case httpcore2.ConnectError():
            return _root_cause(error)
    return "the connection broke before the answer was complete"


def _root_cause(error: BaseException) -> str:
    """The operating system's or TLS's reason behind the pool's error."""
    cause = error
    # The pool re-raises "from None", which leaves only the context to follow.
    while deeper := cause.__cause__ or cause.__context__:
        cause = deeper
        if isinstance(cause, ssl.SSLError):
            return str(cause)
        if isinstance(cause, OSError) and cause.errno:
            return os.strerror(cause.errno).lower()
    return str(error)


class HttpSender:
    """Sends the requests of one client; close it with `aclose`."""

    def __init__(self, *, limits: HttpLimits, tls: ssl.SSLContext | None, policy: AddressPolicy) -> None:
        self._limits = limits
        self._transport = GuardedTransport(limits=limits, tls=tls, policy=policy)

    async def carry_out(
        self,
        exchange: Exchange,
        *,
        headers: dict[str, str],
        content: bytes | None,
        until: float,
        seconds: float,
        refusal_bytes: int,
    ) -> str:
        """Send the request and read the response into the exchange; return why it is incomplete, or nothing.

        `until` is in the loop's time; `seconds`, the limit for all hops together, is for the message. Raises
        Misconfigured for an address that may not be contacted.
        """
        request = httpx2.Request(
            exchange.method,
            exchange.url,
            content=content,
            headers=headers,
            extensions={"timeout": self._timeouts, "trace": exchange.watch},
        )
        started = time.perf_counter()
        failure = ""
        try:
            async with asyncio.timeout_at(until):
                await self._read_answer(request, exchange, refusal_bytes)
        except TimeoutError:
            failure = f"no complete answer within {round(seconds, 2):g} s"
        except TRANSPORT_ERRORS as error:
            failure = failure_reason(error, self._limits)
        took = time.perf_counter() - started
        logger.debug("{}: {} in {:.3f} s", exchange, failure or exchange.status, took)
        return failure

    async def aclose(self) -> None:
        await self._transport.aclose()

    async def _read_answer(self, request: httpx2.Request, exchange: Exchange, refusal_bytes: int) -> None:
        # Not through a client: redirects, cookies and authentication are not its business, and cost 0.2 ms.
        response = await self._transport.handle_async_request(request)
        exchange.status, exchange.headers = response.status_code, response.headers
        limit = refusal_bytes if exchange.refused else self._limits.max_response_bytes
        try:
            async for chunk in response.aiter_raw():
                exchange.body += chunk
                if len(exchange.body) > limit:
                    exchange.truncated = True
                    break
        finally:
            await response.aclose()

    @property
    def _timeouts(self) -> dict[str, float | None]:
        limits = self._limits
        # A short wait for the pool leaves a start enough of its time: once sent, being late makes it unknown.
        return httpx2.Timeout(
            limits.read_seconds, connect=limits.connect_seconds, pool=limits.connect_seconds
        ).as_dict()
