"""JSON over HTTP to engines: the only module that builds HTTP clients."""

import asyncio
import json
import time
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urljoin

import httpx2
from loguru import logger

from connectors.addresses import normalise_base_url
from connectors.errors import InvalidAnswer, Misconfigured, Rejected
from connectors.exchange import TRANSPORT_ERRORS, Exchange, failure_reason
from connectors.guarded_network import GuardedTransport, tls_context
from connectors.http_limits import HttpLimits
from connectors.json_limits import MAX_DEPTH, UnreadableJSON, parse_json
from connectors.redaction import Redactor, shorten

USER_AGENT = "workflow-catalogue"
REFUSAL_BYTES = 64_000
"""How much is read of an answer that is no success: enough for the engine's words."""


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
    ) -> None:
        """`secrets` are masked wherever an engine echoes them. Raises Misconfigured for unusable settings."""
        try:
            self._base_url = normalise_base_url(base_url)
        except ValueError as error:
            raise Misconfigured(f"Base URL: {error}") from None
        self._limits = limits or HttpLimits()
        self._redactor = Redactor(secrets)
        tls = tls_context(verify=verify_tls, ca_file=ca_file) if self._base_url.startswith("https:") else None
        self._transport = GuardedTransport(limits=self._limits, tls=tls)
        self._headers = {
            "accept": "application/json",
            "accept-encoding": "identity",
            "user-agent": USER_AGENT,
            **_sendable(headers or {}),
        }

    def __repr__(self) -> str:
        return f"EngineClient({self._base_url})"

    async def request_json(
        self,
        method: str,
        target: str,
        *,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        repeatable: bool = True,
        max_depth: int = MAX_DEPTH,
    ) -> Any:
        """Send `body` as JSON and return the JSON of a 2xx answer; everything else is an error.

        `target` is a path below the base URL, or a whole URL of the same origin. With `repeatable=False`
        whatever leaves open if the engine acted is OutcomeUnknown.
        """
        exchange = await self._succeed(method, target, body=body, headers=headers, repeatable=repeatable)
        content = bytes(exchange.body)
        try:
            return self._redactor.answer(parse_json(content, max_depth=max_depth), content)
        except UnreadableJSON as error:
            raise exchange.not_json(error) from None

    async def request(self, method: str, target: str) -> None:
        """Like `request_json`, for a caller to whom the content of a 2xx answer does not matter."""
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
        await self._transport.aclose()

    async def _succeed(
        self,
        method: str,
        target: str,
        *,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        repeatable: bool = True,
    ) -> Exchange:
        exchange = Exchange(method, self._url(target), repeatable, self._redactor)
        content_type = {} if body is None else {"content-type": "application/json"}
        request = httpx2.Request(
            method,
            exchange.url,
            content=_json_bytes(body),
            headers=self._headers | _sendable(headers or {}) | content_type,
            extensions={"timeout": self._timeouts, "trace": exchange.watch},
        )
        failure = await self._carry_out(request, exchange)
        # Raised here, where no transport error is being handled: those may quote what was sent.
        if exchange.refused:
            raise exchange.refusal()
        if failure:
            raise exchange.unanswered(failure)
        self._refuse_unreadable(exchange)
        return exchange

    async def _carry_out(self, request: httpx2.Request, exchange: Exchange) -> str:
        """Fill the exchange as far as the engine lets us; return why it ended early, if it did."""
        started = time.perf_counter()
        failure = ""
        try:
            async with asyncio.timeout(self._limits.total_seconds):
                await self._read_answer(request, exchange)
        except TimeoutError:
            failure = f"no complete answer within {self._limits.total_seconds:g} s"
        except TRANSPORT_ERRORS as error:
            failure = failure_reason(error, self._limits)
        seconds = time.perf_counter() - started
        logger.debug("{}: {} in {:.3f} s", exchange, failure or exchange.status, seconds)
        return failure

    async def _read_answer(self, request: httpx2.Request, exchange: Exchange) -> None:
        # Not through a client: redirects, cookies and authentication are not for us, and cost 0.2 ms.
        response = await self._transport.handle_async_request(request)
        exchange.status, exchange.headers = response.status_code, response.headers
        limit = REFUSAL_BYTES if exchange.refused else self._limits.max_response_bytes
        try:
            async for chunk in response.aiter_raw():
                exchange.body += chunk
                if len(exchange.body) > limit:
                    exchange.truncated = True
                    break
        finally:
            await response.aclose()

    def _refuse_unreadable(self, exchange: Exchange) -> None:
        if exchange.truncated:
            raise exchange.unusable(f"the answer is larger than {self._limits.max_response_bytes:,} bytes.")
        # Unpacking is left out: a few kilobytes can unpack to more memory than any limit on what is read.
        if exchange.encoding:
            raise exchange.unusable("the answer is compressed although we asked for a plain one.")

    def _url(self, target: str) -> httpx2.URL:
        try:
            url = httpx2.URL(self._base_url + target if target.startswith("/") else target)
        except httpx2.InvalidURL:
            raise Misconfigured("The path makes no valid URL.") from None
        base = httpx2.URL(self._base_url)
        if (url.scheme, url.netloc) != (base.scheme, base.netloc) or url.userinfo:
            raise Misconfigured(f"The URL is not on {self._base_url}.")
        return url

    @property
    def _timeouts(self) -> dict[str, float | None]:
        limits = self._limits
        # A short wait for the pool leaves a start enough of its time: once sent, being late makes it unknown.
        return httpx2.Timeout(
            limits.read_seconds, connect=limits.connect_seconds, pool=limits.connect_seconds
        ).as_dict()


def _json_bytes(body: Any) -> bytes | None:
    if body is None:
        return None
    try:
        return json.dumps(body, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError):
        raise Rejected("The arguments cannot be written as JSON, so they were not sent.") from None


def _sendable(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers, checked here because the HTTP library's complaint would quote their values."""
    for name, value in headers.items():
        if not (value.isascii() and value.isprintable() and value == value.strip()):
            raise Misconfigured(f"The header {name} has characters that HTTP does not allow there.")
    return dict(headers)
