"""Connections that reach only the addresses that were checked.

GuardedTransport    httpx2 over a connection pool of our own
└── GuardedNetwork  resolves names, and refuses addresses that its policy forbids
"""

import asyncio
import contextlib
import select
import ssl
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import httpcore2
import httpx2

from connectors.errors import Misconfigured
from connectors.network.policy import ENGINE_ADDRESSES, AddressPolicy


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpLimits:
    """Times and sizes of the requests to one engine."""

    connect_seconds: float = 5.0
    """To get a connection: once for a free slot in the pool, once more to connect."""
    read_seconds: float = 30.0
    """Between two chunks of a response, and before the first."""
    total_seconds: float = 30.0
    """One whole request, from waiting for a connection to the last byte of the response."""
    max_response_bytes: int = 10_000_000
    max_connections: int = 50


IDLE_SECONDS = 4.0
"""Less than the 5 s after which common servers close an idle connection, so that a start never meets that."""


class GuardedNetwork(httpcore2.AsyncNetworkBackend):
    """Connects to the very addresses that were checked.

    A check before the request would prove nothing: the pool resolves the name again when it connects, and
    its owner may answer differently then. TLS still verifies the name, not the address.
    """

    def __init__(self, policy: AddressPolicy) -> None:
        self._policy = policy
        self._network = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        assert timeout is not None, "every request of ours has a time limit"
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout

        async def connect(address: str, *, share: int) -> httpcore2.AsyncNetworkStream:
            seconds = max(deadline - clock(), 0) / share
            stream = await self._network.connect_tcp(address, port, seconds, local_address, socket_options)
            return _TidyStream(stream)

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


class _TidyStream(httpcore2.AsyncNetworkStream):
    """Closes its socket when a TLS handshake is cancelled; httpcore2 leaves that to the garbage collector."""

    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream
        self._socket = stream.get_extra_info("socket")

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return await self._stream.read(max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        try:
            return _TidyStream(await self._stream.start_tls(ssl_context, server_hostname, timeout))
        except BaseException:
            await self.aclose()
            raise

    def get_extra_info(self, info: str) -> Any:
        # The pool asks this of every idle connection at every request, and anyio takes long to answer it.
        if info == "is_readable":
            return _is_readable(self._socket)
        return self._stream.get_extra_info(info)


def _is_readable(connected: Any) -> bool:
    """Of an idle connection: whether it has been closed, since nothing else is to be read from it."""
    if connected is None or (number := connected.fileno()) < 0:
        return True
    if not hasattr(select, "poll"):
        return bool(select.select([number], [], [], 0)[0])
    poll = select.poll()
    poll.register(number, select.POLLIN)
    return bool(poll.poll(0))


class GuardedTransport(httpx2.AsyncBaseTransport):
    """httpx2's own transport builds its pool without a network backend, so this one builds it with ours."""

    def __init__(
        self,
        *,
        limits: HttpLimits,
        tls: ssl.SSLContext | None,
        policy: AddressPolicy = ENGINE_ADDRESSES,
    ) -> None:
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=tls,
            max_connections=limits.max_connections,
            max_keepalive_connections=limits.max_connections,
            keepalive_expiry=IDLE_SECONDS,
            network_backend=GuardedNetwork(policy),
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        assert isinstance(request.stream, httpx2.AsyncByteStream)
        url = request.url
        response = await self._pool.handle_async_request(
            httpcore2.Request(
                method=request.method,
                url=httpcore2.URL(
                    scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
                ),
                headers=request.headers.raw,
                content=request.stream,
                extensions=request.extensions,
            )
        )
        return httpx2.Response(
            status_code=response.status,
            headers=response.headers,
            stream=_PooledBody(response),
            extensions=response.extensions,
        )

    async def aclose(self) -> None:
        await self._pool.aclose()


class _PooledBody(httpx2.AsyncByteStream):
    def __init__(self, response: httpcore2.Response) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._response.aiter_stream():
            yield chunk

    async def aclose(self) -> None:
        await self._response.aclose()


def tls_context(*, verify: bool, ca_file: str) -> ssl.SSLContext:
    """Public authorities and, where given, those in `ca_file`. Raises Misconfigured for an unusable file."""
    if not ca_file:
        return _shared_context(verify)
    context = httpx2.create_ssl_context(verify=verify, trust_env=False)
    try:
        context.load_verify_locations(ca_file)
    except OSError as error:
        reason = error.strerror or "no certificate found"
        raise Misconfigured(f"The CA file {ca_file} cannot be used: {reason}.") from None
    return context


@lru_cache
def _shared_context(verify: bool) -> ssl.SSLContext:
    """Loading the public authorities takes 38 ms of CPU, which each client need not pay anew."""
    return httpx2.create_ssl_context(verify=verify, trust_env=False)
