"""MCP over Streamable HTTP, within limits and the address policy."""

import asyncio
import contextlib
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any

import httpx2
from mcp.client import Transport
from mcp.client.streamable_http import streamable_http_client
from mcp_types import INVALID_PARAMS

from connectors.errors import ConnectorError, backoff_seconds
from connectors.formats.json import UnreadableJSON, as_object, write_json
from connectors.network.client import REFUSAL_BYTES, USER_AGENT
from connectors.network.oauth import ClientCredentials
from connectors.network.redaction import Redactor
from connectors.network.transport import (
    TRANSPORT_ERRORS,
    Exchange,
    GuardedTransport,
    HttpLimits,
    being_sent,
    failure_reason,
    tls_context,
)
from connectors.upstream_mcp.config import McpConfig
from connectors.upstream_mcp.messages import (
    FloodGate,
    TooManyMessages,
    UnusableAnswer,
    is_answer,
    read_message,
)
from connectors.upstream_mcp.run_callers import CALL, CALL_PREFIX, CAPABILITY_OF, LOG_MESSAGE
from connectors.upstream_mcp.session import TransportFailures

STREAM_BYTES_PER_SECOND = 64_000  # Growth of an event stream beyond the largest answer
EVENTS = {"content-type": "text/event-stream; charset=utf-8-sig"}  # Always UTF-8, perhaps after a BOM
MARKED = CAPABILITY_OF.keys() | {LOG_MESSAGE}
MAY_ASK = ("tools/call", "prompts/get", "resources/read")
FIRST_STREAM_SECONDS = 1.0
CALLS = ("tools/call", "tasks/result", "subscriptions/listen")
EXPLAINED_BY_STATUS = (401, 403, 408, 429, 503)  # Statuses that explain the failure, whatever the body says
COMES_BACK = {408, 425, 429, 500, 502, 503, 504}
SECONDS_BEFORE_RESUMING = 0.2
BUSY = (408, 425, 429)  # Statuses that say nothing of the session
LAST_EVENT, SESSION = "last-event-id", "mcp-session-id"
NOT_BEGUN = re.compile(r"\bnot initialized\b", re.IGNORECASE)
NO_SUCH_SESSION = re.compile(r"\bsession\b|\bnot initialized\b", re.IGNORECASE)
FIRST_PAUSE_SECONDS = 1.0


sent_call: ContextVar[str] = ContextVar("sent_call", default="")
"""The id of the request that a caller may have caused. The SDK resumes its stream in the same task."""


class StreamNews(Enum):
    BACK = auto()  # Open again; notifications in between are lost
    SESSION_GONE = auto()
    SESSION_DOUBTFUL = auto()  # A request was refused, perhaps for want of the session


@dataclass(eq=False)
class HttpFailure(Exception):
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
            max_connections=500,  # Each running call holds one
        )
        is_https = config.url.startswith("https:")
        tls = tls_context(verify=config.verify_tls, ca_file=config.ca_file) if is_https else None
        self._network = GuardedTransport(limits=self._limits, tls=tls)
        self._token = config.bearer_token.get_secret_value()
        self._credentials: ClientCredentials | None = None
        if config.oauth_url:
            seconds = config.request_timeout_seconds
            self._credentials = ClientCredentials(
                config, url=config.oauth_url, seconds=seconds, ca_file=config.ca_file
            )
        self._streams = ServerStreams(self._network.handle_async_request, report=stream_news)
        self._report = stream_news

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        exchange = Exchange(request.method, request.url, True, self._redactor)
        sent: dict[str, Any] = json.loads(request.content or b"{}")
        silence = self._longest_silence(request, sent.get("method", ""))
        if str(sent.get("id")).startswith(CALL_PREFIX):
            sent_call.set(sent["id"])
        request.extensions = request.extensions | {
            "timeout": httpx2.Timeout(
                silence, connect=self._limits.connect_seconds, pool=self._limits.connect_seconds
            ).as_dict(),
        }
        try:
            carry_out = self._streams.open if request.method == "GET" else self._network.handle_async_request
            await self._authorize(request)
            if SESSION in request.headers and sent.get("method") in MAY_ASK:
                await self._streams.wait_for_first()
            being_sent.set(exchange)
            response = await carry_out(request)
            if response.status_code == httpx2.codes.UNAUTHORIZED and self._credentials is not None:
                self._credentials.forget(self._token)
                await response.aclose()
                await self._authorize(request)
                being_sent.set(exchange)
                response = await carry_out(request)
            exchange.status, exchange.headers = response.status_code, response.headers
            return await self._answer(request, sent, response, exchange)
        except (HttpFailure, UnusableAnswer) as error:
            failure: HttpFailure | UnusableAnswer = error
        except ConnectorError as error:
            failure = HttpFailure(exchange, unsent=error)
        except TRANSPORT_ERRORS as error:
            limits = replace(self._limits, read_seconds=silence or 0)
            failure = HttpFailure(exchange, failure_reason(error, limits))
        status = exchange.status if exchange.status >= 400 else 502
        return httpx2.Response(status, json=self._failures.write(failure), request=request)

    async def _authorize(self, request: httpx2.Request) -> None:
        """Raises ConnectorError without a token; the request is not sent then."""
        if self._credentials is not None:
            token = await self._credentials.token()
            if token != self._token:
                self._redactor.learn(token)
                self._token = token
        if self._token:
            value = f"{self._config.authorization_scheme} {self._token}".strip()
            request.headers[self._config.authorization_header] = value

    async def aclose(self) -> None:
        if self._credentials is not None:
            await self._credentials.aclose()
        await self._network.aclose()

    def _longest_silence(self, request: httpx2.Request, method: str) -> float | None:
        if request.method == "GET":
            return None
        if request.method != "POST" or method.startswith("notifications/"):
            return min(10.0, self._config.request_timeout_seconds)
        if method == "subscriptions/listen":
            return None
        return self._config.call_timeout_seconds if method in CALLS else self._config.request_timeout_seconds

    async def _answer(
        self, request: httpx2.Request, sent: dict[str, Any], response: httpx2.Response, exchange: Exchange
    ) -> httpx2.Response:
        """The response for the SDK. Raises HttpFailure and UnusableAnswer."""
        if exchange.encoding:
            await response.aclose()
            problem = "the response is compressed, although the request did not accept compression."
            raise HttpFailure(exchange, problem=problem)
        media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        # Whatever else it is called, it may be an answer.
        if exchange.refused or media_type != "text/event-stream":
            return await self._whole_answer(request, sent, response, exchange)
        most, headers = self._config.max_response_bytes, dict(response.headers) | EVENTS
        events = _EventStream(request, response, exchange, self._failures, most)
        return httpx2.Response(response.status_code, headers=headers, stream=events)

    async def _whole_answer(
        self, request: httpx2.Request, sent: dict[str, Any], response: httpx2.Response, exchange: Exchange
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
        is_of_session = request.method == "POST" and SESSION in request.headers
        if exchange.refused and is_of_session and exchange.status not in BUSY:
            self._report(StreamNews.SESSION_DOUBTFUL)
        message = self._read(request, sent, exchange)
        left_out = ("content-length", "content-type")
        headers = {name: value for name, value in exchange.headers.items() if name.lower() not in left_out}
        # The SDK reads no result of a refusal.
        status = httpx2.codes.OK if "result" in message else exchange.status
        return httpx2.Response(status, headers=headers, json=message, request=request)

    def _read(self, request: httpx2.Request, sent: dict[str, Any], exchange: Exchange) -> dict[str, Any]:
        """The message in the body. Raises HttpFailure and UnusableAnswer."""
        if exchange.truncated and not exchange.refused:
            raise HttpFailure(exchange, problem=_too_large(self._config.max_response_bytes))
        if 300 <= exchange.status < 400:
            if self._stays_here(request, exchange):
                return {}
            raise HttpFailure(exchange)
        is_request = "id" in sent and "method" in sent
        message = _message_in(exchange, is_expected=is_request and not exchange.refused)
        if exchange.refused:
            gone = _is_lost(exchange, message, has_session=SESSION in request.headers)
            explains_itself = exchange.status not in EXPLAINED_BY_STATUS and is_answer(message)
            if gone or not explains_itself:
                raise HttpFailure(exchange, session_is_gone=gone)
        if _is_of_another_call(message, sent.get("id")):
            raise HttpFailure(exchange, problem="the server answered another call than this one.")
        # As the SDK does it on event streams: the answer to a request can have no other id.
        return message | {"id": sent.get("id")} if is_answer(message) else message

    def _stays_here(self, request: httpx2.Request, exchange: Exchange) -> bool:
        try:
            target = request.url.join(exchange.headers.get("location", ""))
        except httpx2.InvalidURL:
            return False
        same = (target.scheme, target.netloc) == (request.url.scheme, request.url.netloc)
        return same and not target.userinfo and exchange.status in (307, 308)


@dataclass(eq=False)
class _EventStream(httpx2.AsyncByteStream):
    """The events of a stream in a form that the SDK reads, within the limits of size and rate."""

    request: httpx2.Request
    response: httpx2.Response
    exchange: Exchange
    failures: TransportFailures
    most: int
    is_over: bool = False
    odd: UnusableAnswer | None = None  # What came last, if it is no message
    call_id: str = field(default_factory=sent_call.get)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        gate, can_resume = FloodGate(), False
        lines = httpx2.Response(200, headers=EVENTS, content=self._lines(), request=self.request)
        try:
            async for event in httpx2.EventSource(lines, max_event_size=self.most):
                data = event.data.encode()
                if not gate.admits(data):
                    continue
                message = self._read(data) if event.event == "message" else None
                if self.is_over and (message is None or not is_answer(message)):
                    # The event is not complete. A resumed stream repeats it.
                    break
                can_resume = bool(event.id)
                yield _as_event(event, message)
            if self.odd is not None and not can_resume:
                yield self._end(self.odd)
        except httpx2.SSEError:
            yield self._end(HttpFailure(self.exchange, problem=_too_large(self.most)))
        except TooManyMessages:
            problem = "the server sends messages faster than they can be read."
            yield self._end(HttpFailure(self.exchange, problem=problem))

    async def _lines(self) -> AsyncIterator[bytes]:
        """The stream with LF at the end of each line: after CR, the parser would wait for the next byte, and
        the server perhaps for an answer."""
        received, began, after_cr = 0, time.monotonic(), False
        async for chunk in unbroken(self.response):
            received += len(chunk)
            if received > self.most + STREAM_BYTES_PER_SECOND * (time.monotonic() - began):
                raise httpx2.SSEError("larger than the limit")
            text = chunk.removeprefix(b"\n") if after_cr else chunk
            after_cr = chunk.endswith(b"\r")
            yield text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        self.is_over = True
        # An answer may be complete, and only the end of its event be missing.
        yield b"\n\n"

    def _read(self, data: bytes) -> dict[str, Any] | None:
        """The message, or the failure that its answer is; of a call's questions and log messages with the
        call's id."""
        try:
            message = read_message(data)
        except UnreadableJSON:
            return None
        except UnusableAnswer as answer:
            return self.failures.write(answer)
        if self.call_id and message and _is_of_another_call(message, self.call_id):
            return None
        self.odd = None if message else UnusableAnswer("it is not an MCP message", message)
        if message is not None and self.call_id and message.get("method") in MARKED:
            params = as_object(message.get("params"))
            meta = as_object(params.get("_meta")) | {CALL: self.call_id}
            return message | {"params": params | {"_meta": meta}}
        return message

    def _end(self, failure: HttpFailure | UnusableAnswer) -> bytes:
        return _as_event(httpx2.ServerSentEvent(), self.failures.write(failure))

    async def aclose(self) -> None:
        await self.response.aclose()


def _as_event(event: httpx2.ServerSentEvent, message: dict[str, Any] | None) -> bytes:
    """Writes it also without a message: a stream is resumed after the last id."""
    fields = [f"id: {event.id}"] if event.id else []
    if event.retry is not None:
        fields.append(f"retry: {min(max(event.retry, 0), 60_000)}")
    if message is not None:
        fields.append(f"data: {write_json(message)}")
    return "".join(f"{field}\n" for field in [*fields, ""]).encode()


def open_http(config: McpConfig, transport: LimitedTransport) -> Transport:
    headers = {"user-agent": USER_AGENT, "accept-encoding": "identity"}
    client = httpx2.AsyncClient(transport=transport, headers=headers, trust_env=False, timeout=None)
    # The events are within the limit already, and may be longer as they are written here.
    return streamable_http_client(config.url, http_client=client, max_sse_event_size=None)


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
            if began - self._opened_at > 30.0:
                self._in_a_row = 0
            await self._pause()
        while (response := await self._attempt(request)) is None:
            was_away = True
            # A call may wait for the broken stream.
            if resumes and time.monotonic() - began > 15.0:
                return await self._carry_out(request)
            await self._pause()
        self._opened_at = time.monotonic()
        self._note(request.headers.get(SESSION, ""), response.status_code, was_away=was_away)
        return response

    async def wait_for_first(self) -> None:
        """Waits until the server has answered the first request for a stream, at most a second: the SDK's own
        drops what it asks during a call before that."""
        if not self._first_is_over.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FIRST_STREAM_SECONDS):
                    await self._first_is_over.wait()
            self._first_is_over.set()

    async def _pause(self) -> None:
        repeated, self._in_a_row = self._in_a_row, self._in_a_row + 1
        await asyncio.sleep(backoff_seconds(repeated, first=FIRST_PAUSE_SECONDS, longest=60.0))

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


def _message_in(exchange: Exchange, *, is_expected: bool) -> dict[str, Any]:
    """Empty without one. Raises HttpFailure and UnusableAnswer if an answer is expected."""
    try:
        message = read_message(exchange.content) or {}
        if is_expected and not is_answer(message):
            raise UnusableAnswer("it is not an MCP message", message)
    except (UnusableAnswer, UnreadableJSON) as error:
        if is_expected and isinstance(error, UnusableAnswer):
            raise
        if is_expected:
            problem = f"the answer is not an MCP message in JSON. {error}"
            raise HttpFailure(exchange, problem=problem) from None
        return {}
    return message


def _is_of_another_call(message: dict[str, Any], request_id: Any) -> bool:
    """A server that mixes up the calls of two callers must not show one's result to the other."""
    given = message.get("id")
    return is_answer(message) and str(given).startswith(CALL_PREFIX) and given != request_id


def _is_lost(exchange: Exchange, message: dict[str, Any], *, has_session: bool) -> bool:
    """MCP demands 404 for a lost session; some servers answer 410, or 400 with a reason."""
    if exchange.status in (404, 410):
        return has_session
    code = as_object(message.get("error")).get("code")
    if exchange.status != 400 or code == INVALID_PARAMS:
        return False
    return bool((NO_SUCH_SESSION if has_session else NOT_BEGUN).search(exchange.words()))
