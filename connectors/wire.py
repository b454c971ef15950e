"""Carrying one request out, within limits of time and size."""

import asyncio
import ssl
import time

import httpx2
from loguru import logger

from connectors.addresses import AddressPolicy
from connectors.exchange import TRANSPORT_ERRORS, Exchange, failure_reason
from connectors.guarded_network import GuardedTransport
from connectors.http_limits import HttpLimits


class Wire:
    """Connections of one client; close it with `aclose`."""

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
        """Fill the exchange as far as the other side lets us; return why it ended early, if it did.

        `until` is in the loop's time; `seconds`, what all hops together had until then, is told. Raises
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
