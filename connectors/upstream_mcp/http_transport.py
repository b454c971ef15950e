"""MCP over Streamable HTTP, within limits and the address policy."""

import asyncio
import contextlib
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import httpx2
from mcp.client import Transport
from mcp.client.streamable_http import streamable_http_client
from mcp_types import INVALID_PARAMS

from connectors.errors import ConnectorError, backoff_seconds
from connectors.formats.json import UnreadableJSON, as_object, is_nested_deeper, parse_json
from connectors.network.client import REFUSAL_BYTES, USER_AGENT
from connectors.network.oauth import ClientCredentials
from connectors.network.redaction import Redactor, shorten
from connectors.network.transport import (
    TRANSPORT_ERRORS,
    Exchange,
    GuardedTransport,
    HttpLimits,
    being_sent,
    failure_reason,
    tls_context,
)
from connectors.upstream_mcp import rate_limits
from connectors.upstream_mcp.config import McpConfig
from connectors.upstream_mcp.conversation import TransportFailures
from connectors.upstream_mcp.run_callers import CALL, CAPABILITY_OF, LOG_MESSAGE

MAX_CONNECTIONS = 500  # Each running call holds one
STREAM_BYTES_PER_SECOND = 64_000  # Growth of an event stream beyond the largest answer
DATA_LINE = re.compile(rb"^data:([^\r\n]*)(?:\r\n|\r|\n)?", re.MULTILINE)
NO_MESSAGE = b"\nevent: cut\n\n"  # Ends an incomplete event, so that it is not read as a message
NOTIFICATION_SECONDS = 10.0
METHOD = re.compile(rb'"method":\s*"([a-z/]+)"')
CALL_ID = re.compile(rb'"id":\s*"(call-[0-9a-f]{32})"')
OF_A_CALL = re.compile(rb'"method"\s*:\s*"(?:elicitation|sampling|roots|notifications)\\?/')
MARKED = CAPABILITY_OF.keys() | {LOG_MESSAGE}
MAY_ASK = (b"tools/call", b"prompts/get", b"resources/read")
FIRST_STREAM_SECONDS = 1.0
CALLS = (b"tools/call", b"tasks/result", b"subscriptions/listen")
EXPLAINED_BY_STATUS = (401, 403, 408, 429, 503)  # Statuses that explain the failure, whatever the body says
COMES_BACK = {408, 425, 429, 500, 502, 503, 504}
RESUMING_SECONDS = 15.0  # For resuming a broken stream, as a call may wait for it
SECONDS_BEFORE_RESUMING = 0.2
LAST_EVENT, SESSION = "last-event-id", "mcp-session-id"
NOT_BEGUN = re.compile(r"\bnot initialized\b", re.IGNORECASE)
NO_SUCH_SESSION = re.compile(r"\bsession\b|\bnot initialized\b", re.IGNORECASE)
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0
LONG_ENOUGH_SECONDS = 30.0


class StreamNews(Enum):
    BACK = auto()  # Open again; notifications in between are lost
    SESSION_GONE = auto()


@dataclass(frozen=True, slots=True)
class HttpFailure:
    """An exchange without an MCP message; `problem` if the status does not explain it."""

    exchange: Exchange
    failure: str = ""
    problem: str = ""
    session_is_gone: bool = False
    unsent: ConnectorError | None = None

    def error(self, *, repeatable: bool) -> ConnectorError:
        self.exchange.repeatable = repeatable
        if self.unsent is not None:
            return self.unsent
        if self.failure:
            return self.exchange.unanswered(self.failure)
        return self.exchange.unusable(self.problem) if self.problem else self.exchange.refusal()


class LimitedTransport(httpx2.AsyncBaseTransport):
    """Sends the SDK's requests. Failures become responses, since exceptions would end the conversation."""

    def __init__(
        self,
        config: McpConfig,
        *,
        redactor: Redactor,
        failures: TransportFailures,
        stream_news: Callable[[StreamNews], None] = lambda news: None,
    ) -> None:
        """`stream_news`: called when the stream of notifications is lost or back. Raises Misconfigured for an
        unusable CA file."""
        self._config = config
        self._redactor = redactor
        self._failures = failures
        self._limits = HttpLimits(
            connect_seconds=min(HttpLimits().connect_seconds, config.request_timeout_seconds),
            max_response_bytes=config.max_response_bytes,
            max_connections=MAX_CONNECTIONS,
        )
        is_https = config.url.startswith("https:")
        tls = tls_context(verify=config.verify_tls, ca_file=config.ca_file) if is_https else None
        self._network = GuardedTransport(limits=self._limits, tls=tls)
        self._authorization = Authorization(config, redactor)
        self._streams = ServerStreams(self._network.handle_async_request, report=stream_news)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        exchange = Exchange(request.method, request.url, True, self._redactor)
        silence = self._longest_silence(request)
        request.extensions = request.extensions | {
            "timeout": httpx2.Timeout(
                silence, connect=self._limits.connect_seconds, pool=self._limits.connect_seconds
            ).as_dict(),
        }
        try:
            carry_out = self._streams.open if request.method == "GET" else self._network.handle_async_request
            await self._authorization.add_to(request)
            if SESSION in request.headers and _method_of(request) in MAY_ASK:
                await self._streams.wait_for_first()
            being_sent.set(exchange)
            response = await carry_out(request)
            if self._authorization.renews_after(response.status_code):
                await response.aclose()
                await self._authorization.add_to(request)
                being_sent.set(exchange)
                response = await carry_out(request)
            exchange.status, exchange.headers = response.status_code, response.headers
            return await self._answer(request, response, exchange)
        except ConnectorError as error:
            return self._failed(request, HttpFailure(exchange, unsent=error))
        except TRANSPORT_ERRORS as error:
            limits = HttpLimits(
                connect_seconds=self._limits.connect_seconds,
                read_seconds=silence or 0,
                max_connections=MAX_CONNECTIONS,
            )
            return self._failed(request, HttpFailure(exchange, failure=failure_reason(error, limits)))

    async def aclose(self) -> None:
        await self._authorization.aclose()
        await self._network.aclose()

    def _longest_silence(self, request: httpx2.Request) -> float | None:
        if request.method == "GET":
            return None
        method = _method_of(request)
        if request.method != "POST" or method.startswith(b"notifications/"):
            return min(NOTIFICATION_SECONDS, self._config.request_timeout_seconds)
        if method == b"subscriptions/listen":
            return None
        return self._config.call_timeout_seconds if method in CALLS else self._config.request_timeout_seconds

    async def _answer(
        self, request: httpx2.Request, response: httpx2.Response, exchange: Exchange
    ) -> httpx2.Response:
        """The response for the SDK, or the failure as a response."""
        if exchange.encoding:
            await response.aclose()
            return self._failed(
                request,
                HttpFailure(
                    exchange,
                    problem="the response is compressed, although the request did not accept compression.",
                ),
            )
        media_type_as_sent = response.headers.get("content-type", "").partition(";")[0].strip()
        media_type = media_type_as_sent.lower()
        if exchange.refused or media_type == "application/json":
            return await self._whole_answer(request, response, exchange)
        if response.status_code == 202 or media_type == "text/event-stream":
            bounded = _BoundedStream(
                response, self._config.max_response_bytes, self._failures, exchange, call_id=_call_of(request)
            )
            return httpx2.Response(response.status_code, headers=response.headers, stream=bounded)
        await response.aclose()
        shown = shorten(self._redactor.text(media_type_as_sent), 50) or "no media type"
        problem = f"the server answered with {shown}, not with MCP."
        return self._failed(request, HttpFailure(exchange, problem=problem))

    async def _whole_answer(
        self, request: httpx2.Request, response: httpx2.Response, exchange: Exchange
    ) -> httpx2.Response:
        limit = REFUSAL_BYTES if exchange.refused else self._config.max_response_bytes
        try:
            async for chunk in response.aiter_raw():
                exchange.body += chunk
                if len(exchange.body) > limit:
                    exchange.truncated = True
                    break
        finally:
            await response.aclose()
        if not exchange.truncated and _method_of(request) == b"tools/list":
            exchange.body[:] = rate_limits.cut_deep_tools(bytes(exchange.body))
        if failure := self._failure_in(request, exchange):
            return self._failed(request, failure)
        headers = {
            name: value for name, value in exchange.headers.items() if name.lower() != "content-length"
        }
        return httpx2.Response(
            exchange.status, headers=headers, content=bytes(exchange.body), request=request
        )

    def _failure_in(self, request: httpx2.Request, exchange: Exchange) -> HttpFailure | None:
        if exchange.truncated and not exchange.refused:
            return HttpFailure(exchange, problem=_too_large(self._config.max_response_bytes))
        if 300 <= exchange.status < 400:
            return None if self._stays_here(request, exchange) else HttpFailure(exchange)
        message, unreadable = _message_in(exchange)
        is_message = "error" in message or "result" in message
        if exchange.refused:
            gone = _is_lost(exchange, message, has_session=SESSION in request.headers)
            explains_itself = exchange.status not in EXPLAINED_BY_STATUS and is_message
            return HttpFailure(exchange, session_is_gone=gone) if gone or not explains_itself else None
        is_answered = request.method == "POST" and not _method_of(request).startswith(b"notifications/")
        if is_message or not is_answered:
            return None
        why = f"the answer is not an MCP message in JSON. {unreadable}"
        return HttpFailure(exchange, problem=why.strip())

    def _stays_here(self, request: httpx2.Request, exchange: Exchange) -> bool:
        try:
            target = request.url.join(exchange.headers.get("location", ""))
        except httpx2.InvalidURL:
            return False
        same = (target.scheme, target.netloc) == (request.url.scheme, request.url.netloc)
        return same and not target.userinfo and exchange.status in (307, 308)

    def _failed(self, request: httpx2.Request, failure: HttpFailure) -> httpx2.Response:
        status = failure.exchange.status if failure.exchange.refused else 502
        if 300 <= status < 400:
            status = 502
        return httpx2.Response(
            status,
            headers={"content-type": "application/json"},
            content=self._failures.write(failure),
            request=request,
        )


class _BoundedStream(httpx2.AsyncByteStream):
    """An event stream that ends with a failure beyond the limits of size and rate."""

    def __init__(
        self,
        response: httpx2.Response,
        most: int,
        failures: TransportFailures,
        exchange: Exchange,
        *,
        call_id: str,
    ) -> None:
        self._call_id = call_id
        self._response = response
        self._most = most
        self._failures = failures
        self._exchange = exchange

    async def __aiter__(self) -> AsyncIterator[bytes]:
        received, began, events = 0, time.monotonic(), rate_limits.Events(self._fit)
        async for chunk in unbroken(self._response):
            received += len(chunk)
            if received > self._most + STREAM_BYTES_PER_SECOND * (time.monotonic() - began):
                yield self._end(_too_large(self._most))
                return
            try:
                admitted = events.feed(chunk)
            except rate_limits.TooManyMessages:
                yield self._end("the server sends messages faster than they can be read.")
                return
            if admitted:
                yield admitted
        yield bytes(events.rest)

    def _fit(self, event: bytes) -> bytes:
        """The event, with the usable part of its message."""
        data = b"\n".join(line.removeprefix(b" ") for line in DATA_LINE.findall(event))
        if not is_nested_deeper(data, rate_limits.MAX_DEPTH):
            message = self._with_call(data)
            return event if message is None else _with_data(event, message)
        try:
            message = rate_limits.without_depth(data)
        except rate_limits.TooDeepAnswer as answer:
            failure = HttpFailure(self._exchange, problem=str(answer))
            message = self._failures.write(failure, request_id=answer.request_id)
        return _with_data(event, message)

    def _with_call(self, data: bytes) -> bytes | None:
        """A request or log message of the server, with the id of the call that it belongs to; None: nothing
        to add."""
        if not self._call_id or not OF_A_CALL.search(data):
            return None
        try:
            message = parse_json(data, max_depth=rate_limits.MAX_DEPTH)
        except UnreadableJSON:
            return None
        if not isinstance(message, dict) or message.get("method") not in MARKED:
            return None
        params = as_object(message.get("params"))
        meta = as_object(params.get("_meta")) | {CALL: self._call_id}
        return json.dumps(message | {"params": params | {"_meta": meta}}).encode()

    def _end(self, problem: str) -> bytes:
        failure = HttpFailure(self._exchange, problem=problem)
        return NO_MESSAGE + b"data: " + self._failures.write(failure) + b"\n\n"

    async def aclose(self) -> None:
        await self._response.aclose()


def _with_data(event: bytes, message: bytes) -> bytes:
    """The other fields stay: a stream is resumed after the last id."""
    return b"data: " + message + b"\n" + DATA_LINE.sub(b"", event).lstrip(b"\r\n")


def open_http(config: McpConfig, transport: LimitedTransport) -> Transport:
    headers = {"user-agent": USER_AGENT, "accept-encoding": "identity"}
    client = httpx2.AsyncClient(transport=transport, headers=headers, trust_env=False, timeout=None)
    return streamable_http_client(
        config.url, http_client=client, max_sse_event_size=config.max_response_bytes
    )


def _method_of(request: httpx2.Request) -> bytes:
    """The SDK writes the method before anything from the caller."""
    try:
        found = METHOD.search(request.content[:200])
    except httpx2.RequestNotRead:
        return b""
    return found[1] if found else b""


def _call_of(request: httpx2.Request) -> str:
    """The id of a request that a caller may have caused; empty for any other one."""
    try:
        found = CALL_ID.search(request.content)
    except httpx2.RequestNotRead:
        return ""
    return found[1].decode() if found else ""


def _too_large(most: int) -> str:
    return f"the response is larger than {most:,} bytes."


class ServerStreams:
    """Opens the streams on which servers of the handshake era send notifications. The SDK asks for one at the
    beginning of a conversation, and gives up after two failures. This one retries until the server's answer
    is final, so that a server may be down for hours."""

    def __init__(
        self,
        carry_out: Callable[[httpx2.Request], Awaitable[httpx2.Response]],
        *,
        report: Callable[[StreamNews], None],
    ) -> None:
        self._carry_out = carry_out
        self._report = report
        self._in_a_row = 0  # Consecutive failures and short streams
        self._opened_at = 0.0
        self._heard_session = ""  # The last session with a stream; servers without streams keep sessions, too
        self._first_is_over = asyncio.Event()

    async def open(self, request: httpx2.Request) -> httpx2.Response:
        began, was_away, resumes = time.monotonic(), False, LAST_EVENT in request.headers
        # Do not overload a server that ends the stream immediately.
        if resumes:
            await asyncio.sleep(SECONDS_BEFORE_RESUMING)
        elif self._opened_at:
            if began - self._opened_at > LONG_ENOUGH_SECONDS:
                self._in_a_row = 0
            await self._pause()
        while (response := await self._attempt(request)) is None:
            was_away = True
            if resumes and time.monotonic() - began > RESUMING_SECONDS:
                return await self._carry_out(request)
            await self._pause()
        self._opened_at = time.monotonic()
        self._note(request.headers.get(SESSION, ""), response.status_code, was_away=was_away)
        return response

    async def wait_for_first(self) -> None:
        """Until the server has answered the first request for a stream, at most a second: the SDK's own
        drops what it asks during a call before that."""
        if not self._first_is_over.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FIRST_STREAM_SECONDS):
                    await self._first_is_over.wait()
            self._first_is_over.set()

    async def _pause(self) -> None:
        repeated, self._in_a_row = self._in_a_row, self._in_a_row + 1
        await asyncio.sleep(
            backoff_seconds(repeated, first=FIRST_PAUSE_SECONDS, longest=LONGEST_PAUSE_SECONDS)
        )

    async def _attempt(self, request: httpx2.Request) -> httpx2.Response | None:
        try:
            response = await self._carry_out(request)
        except TRANSPORT_ERRORS:
            return None
        finally:
            self._first_is_over.set()
        if response.status_code in COMES_BACK:
            await response.aclose()
            return None
        return response

    def _note(self, session: str, status: int, *, was_away: bool) -> None:
        if status == httpx2.codes.OK:
            self._heard_session = session
            if was_away:
                self._report(StreamNews.BACK)
        elif session and session == self._heard_session:
            self._heard_session = ""
            self._report(StreamNews.SESSION_GONE)


async def unbroken(response: httpx2.Response) -> AsyncIterator[bytes]:
    """The stream's chunks; a broken stream ends, which the SDK does not count as a failure."""
    try:
        async for piece in response.aiter_raw():
            yield piece
    except TRANSPORT_ERRORS:
        return


def _is_lost(exchange: Exchange, message: dict[str, Any], *, has_session: bool) -> bool:
    """MCP demands 404 for a lost session; some servers answer 400 with a reason."""
    if exchange.status == 404:
        return has_session
    error = message.get("error")
    code = error.get("code") if isinstance(error, dict) else None
    if exchange.status != 400 or code == INVALID_PARAMS:
        return False
    return bool((NO_SUCH_SESSION if has_session else NOT_BEGUN).search(exchange.words()))


def _message_in(exchange: Exchange) -> tuple[dict[str, Any], str]:
    """The body's message or empty, and why the body cannot be read."""
    try:
        message = parse_json(bytes(exchange.body), max_depth=rate_limits.MAX_DEPTH)
    except UnreadableJSON as error:
        return {}, str(error)
    return as_object(message), ""


class Authorization:
    """The Authorization header, with a configured token or one by client credentials."""

    def __init__(self, config: McpConfig, redactor: Redactor) -> None:
        self._header = config.authorization_header
        self._scheme = config.authorization_scheme
        self._token = config.bearer_token.get_secret_value()
        self._redactor = redactor
        self._credentials: ClientCredentials | None = None
        if config.oauth_url:
            limits = HttpLimits.within(config.request_timeout_seconds)
            self._credentials = ClientCredentials.of(
                config, url=config.oauth_url, limits=limits, ca_file=config.ca_file
            )

    async def add_to(self, request: httpx2.Request) -> None:
        """Raises ConnectorError without a token; the request is not sent then."""
        if self._credentials is not None:
            token = await self._credentials.token()
            if token != self._token:
                self._redactor.learn(token)
                self._token = token
        if self._token:
            request.headers[self._header] = f"{self._scheme} {self._token}".strip()

    def renews_after(self, status: int) -> bool:
        """Whether to retry with a new token."""
        if status != httpx2.codes.UNAUTHORIZED or self._credentials is None:
            return False
        self._credentials.forget(self._token)
        return True

    async def aclose(self) -> None:
        if self._credentials is not None:
            await self._credentials.aclose()
