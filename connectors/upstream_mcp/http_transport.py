"""Streamable HTTP within our limits and address policy."""

import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx2
from mcp.client._transport import TransportStreams
from mcp.client.streamable_http import streamable_http_client

from connectors.errors import ConnectorError
from connectors.exchange import TRANSPORT_ERRORS, Exchange, failure_reason
from connectors.guarded_network import GuardedTransport, tls_context
from connectors.http import REFUSAL_BYTES, USER_AGENT
from connectors.http_limits import HttpLimits
from connectors.redaction import Redactor
from connectors.upstream_mcp.authorization import Authorization
from connectors.upstream_mcp.config import McpConfig
from connectors.upstream_mcp.floods import Events, TooManyMessages
from connectors.upstream_mcp.http_messages import cut_deep_tools, is_lost, is_message, why_unreadable
from connectors.upstream_mcp.server_streams import ServerStreams, StreamNews, unbroken
from connectors.upstream_mcp.verdicts import Verdicts

MAX_CONNECTIONS = 500
"""Each call keeps one for as long as it lasts."""
STREAM_BYTES_PER_SECOND = 64_000
"""By so much an event stream may grow beyond the largest answer."""
NO_MESSAGE = b"\nevent: cut\n\n"
"""Ends an event in its middle, so that nobody takes it for a message."""
NOTIFICATION_SECONDS = 10.0
METHOD = re.compile(rb'"method":\s*"([a-z/]+)"')
CALLS = (b"tools/call", b"tasks/result", b"subscriptions/listen")
"""Requests that may be silent for long."""
OURS_TO_TELL = (401, 403, 408, 429, 503)
"""Whatever stands in the body of such an answer, its status says what is wrong."""


@dataclass(frozen=True, slots=True)
class HttpVerdict:
    """An exchange that brought no MCP message; `problem` where the status does not tell what is wrong."""

    exchange: Exchange
    failure: str = ""
    problem: str = ""
    session_is_gone: bool = False
    unsent: ConnectorError | None = None
    """Why the request was not even sent."""

    def error(self, *, repeatable: bool) -> ConnectorError:
        self.exchange.repeatable = repeatable
        if self.unsent is not None:
            return self.unsent
        if self.failure:
            return self.exchange.unanswered(self.failure)
        return self.exchange.unusable(self.problem) if self.problem else self.exchange.refusal()


class LimitedTransport(httpx2.AsyncBaseTransport):
    """Carries the SDK's requests, and never fails one in a way that would end the conversation."""

    def __init__(
        self,
        config: McpConfig,
        *,
        redactor: Redactor,
        verdicts: Verdicts,
        stream_news: Callable[[StreamNews], None] = lambda news: None,
    ) -> None:
        """`stream_news` hears what becomes of the stream on which the server tells things unasked.

        Raises Misconfigured for an unusable CA file.
        """
        self._config = config
        self._redactor = redactor
        self._verdicts = verdicts
        self._limits = HttpLimits(
            connect_seconds=min(HttpLimits().connect_seconds, config.request_timeout_seconds),
            max_response_bytes=config.max_response_bytes,
            max_connections=MAX_CONNECTIONS,
        )
        tls = tls_context(verify=config.verify_tls, ca_file=config.ca_file) if _is_https(config) else None
        self._network = GuardedTransport(limits=self._limits, tls=tls)
        self._authorization = Authorization(config, redactor)
        self._streams = ServerStreams(self._network.handle_async_request, tell=stream_news)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        exchange = Exchange(request.method, request.url, True, self._redactor)
        silence = self._longest_silence(request)
        request.extensions = request.extensions | {
            "timeout": httpx2.Timeout(
                silence, connect=self._limits.connect_seconds, pool=self._limits.connect_seconds
            ).as_dict(),
            "trace": exchange.watch,
        }
        try:
            carry_out = self._streams.open if request.method == "GET" else self._network.handle_async_request
            await self._authorization.add_to(request)
            response = await carry_out(request)
            if self._authorization.renews_after(response.status_code):
                await response.aclose()
                await self._authorization.add_to(request)
                response = await carry_out(request)
            exchange.status, exchange.headers = response.status_code, response.headers
            return await self._answer(request, response, exchange)
        except ConnectorError as error:
            return self._tell(request, HttpVerdict(exchange, unsent=error))
        except TRANSPORT_ERRORS as error:
            limits = HttpLimits(
                connect_seconds=self._limits.connect_seconds,
                read_seconds=silence or 0,
                max_connections=MAX_CONNECTIONS,
            )
            return self._tell(request, HttpVerdict(exchange, failure=failure_reason(error, limits)))

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
        """The response as the SDK may see it, or the verdict on it."""
        if exchange.encoding:
            await response.aclose()
            return self._tell(
                request,
                HttpVerdict(exchange, problem="the answer is compressed although we asked for a plain one."),
            )
        media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if exchange.refused or media_type == "application/json":
            return await self._whole_answer(request, response, exchange)
        if response.status_code == 202 or media_type == "text/event-stream":
            bounded = _BoundedStream(response, self._config.max_response_bytes, self._verdicts, exchange)
            return httpx2.Response(response.status_code, headers=response.headers, stream=bounded)
        await response.aclose()
        kind = f"answered with {media_type}" if media_type else "did not say what it answered with"
        return self._tell(request, HttpVerdict(exchange, problem=f"the server {kind}, not with MCP."))

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
            exchange.body[:] = cut_deep_tools(bytes(exchange.body))
        if verdict := self._verdict_on(request, exchange):
            return self._tell(request, verdict)
        headers = {
            name: value for name, value in exchange.headers.items() if name.lower() != "content-length"
        }
        return httpx2.Response(
            exchange.status, headers=headers, content=bytes(exchange.body), request=request
        )

    def _verdict_on(self, request: httpx2.Request, exchange: Exchange) -> HttpVerdict | None:
        if exchange.truncated and not exchange.refused:
            return HttpVerdict(exchange, problem=_too_large(self._config.max_response_bytes))
        if 300 <= exchange.status < 400:
            return None if self._stays_here(request, exchange) else HttpVerdict(exchange)
        if exchange.refused:
            gone = is_lost(exchange, has_session="mcp-session-id" in request.headers)
            is_told = exchange.status not in OURS_TO_TELL and is_message(bytes(exchange.body))
            return HttpVerdict(exchange, session_is_gone=gone) if gone or not is_told else None
        if not _expects_answer(request) or is_message(bytes(exchange.body)):
            return None
        why = f"the answer is not the JSON of an MCP message. {why_unreadable(bytes(exchange.body))}"
        return HttpVerdict(exchange, problem=why.strip())

    def _stays_here(self, request: httpx2.Request, exchange: Exchange) -> bool:
        try:
            target = request.url.join(exchange.headers.get("location", ""))
        except httpx2.InvalidURL:
            return False
        same = (target.scheme, target.netloc) == (request.url.scheme, request.url.netloc)
        return same and not target.userinfo and exchange.status in (307, 308)

    def _tell(self, request: httpx2.Request, verdict: HttpVerdict) -> httpx2.Response:
        status = verdict.exchange.status if verdict.exchange.refused else 502
        if 300 <= status < 400:
            status = 502
        return httpx2.Response(
            status,
            headers={"content-type": "application/json"},
            content=self._verdicts.write(verdict),
            request=request,
        )


class _BoundedStream(httpx2.AsyncByteStream):
    """An event stream that may grow by so much, and by so much a second; then it ends with the verdict."""

    def __init__(self, response: httpx2.Response, most: int, verdicts: Verdicts, exchange: Exchange) -> None:
        self._response = response
        self._most = most
        self._verdicts = verdicts
        self._exchange = exchange

    async def __aiter__(self) -> AsyncIterator[bytes]:
        received, began, events = 0, time.monotonic(), Events()
        async for chunk in unbroken(self._response):
            received += len(chunk)
            if received > self._most + STREAM_BYTES_PER_SECOND * (time.monotonic() - began):
                yield self._end(_too_large(self._most))
                return
            try:
                admitted = events.feed(chunk)
            except TooManyMessages:
                yield self._end("the server sends more messages than anybody could read.")
                return
            if admitted:
                yield admitted
        yield bytes(events.rest)

    def _end(self, problem: str) -> bytes:
        verdict = HttpVerdict(self._exchange, problem=problem)
        return NO_MESSAGE + b"data: " + self._verdicts.write(verdict) + b"\n\n"

    async def aclose(self) -> None:
        await self._response.aclose()


@asynccontextmanager
async def open_http(config: McpConfig, transport: LimitedTransport) -> AsyncGenerator[TransportStreams]:
    """The streams of a conversation; its session, if the server gives it one, ends with it."""
    headers = {"user-agent": USER_AGENT, "accept-encoding": "identity"}
    client = httpx2.AsyncClient(transport=transport, headers=headers, trust_env=False, timeout=None)
    async with streamable_http_client(
        config.url, http_client=client, max_sse_event_size=config.max_response_bytes
    ) as streams:
        yield streams


def _is_https(config: McpConfig) -> bool:
    return config.url.startswith("https:")


def _method_of(request: httpx2.Request) -> bytes:
    """The SDK writes it in front of everything that the caller chose."""
    found = METHOD.search(_body_of(request)[:200])
    return found[1] if found else b""


def _body_of(request: httpx2.Request) -> bytes:
    try:
        return bytes(request.content)
    except httpx2.RequestNotRead:
        return b""


def _expects_answer(request: httpx2.Request) -> bool:
    return request.method == "POST" and not _method_of(request).startswith(b"notifications/")


def _too_large(most: int) -> str:
    return f"the answer is larger than {most:,} bytes."
