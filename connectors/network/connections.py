"""Connections to the addresses that a policy allows, by aiohttp, which parses answers in C. Imported at first
use: aiohttp loads the public authorities as it is imported."""

import asyncio
import contextlib
import io
import select
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextvars import ContextVar
from functools import partial
from typing import Any
from weakref import WeakSet

import aiohttp
import httpx2
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http_exceptions import HttpProcessingError
from cachetools import TTLCache
from multidict import CIMultiDict
from yarl import URL

from connectors.network.compat import take_unread
from connectors.network.policy import ENGINE_ADDRESSES, AddressPolicy, OutboundProxy, outbound_proxy
from connectors.network.redaction import remember_credentials

MAX_HEADER_BYTES = 65_536  # Of one header; aiohttp's own limit is below what gateways send
LARGE_BYTES = 65_536  # A larger body is written in parts, between which the event loop goes on
CLOSED = "the connections to the engine were closed before the request was sent"
FAILURES = (aiohttp.ClientError, HttpProcessingError, OSError)


class Connections:
    """Opens at most `most` at a time. Errors: httpx2's TransportErrors, and Misconfigured for an address that
    may not be contacted. No request is sent twice."""

    def __init__(
        self,
        *,
        most: int,
        connect_seconds: float,
        tls: ssl.SSLContext | None,
        policy: AddressPolicy,
        being_sent: ContextVar[Any],
    ) -> None:
        """`connect_seconds`: for one to become free, and again to connect. `being_sent`: the task's object
        whose attribute `sent` becomes true before the first byte."""
        self._free = asyncio.Semaphore(most)
        self._connect_seconds = connect_seconds
        connector = partial(
            _Connector,
            policy,
            tls=tls,
            # A part of the time, so that an error can say that the name is to blame.
            resolve_seconds=connect_seconds * 0.9,
            being_sent=being_sent,
        )
        self._direct = _session(connector(reached=policy))
        self._proxy = outbound_proxy()
        if self._proxy is not None:
            self._through_proxy = _session(connector(reached=ENGINE_ADDRESSES), self._proxy)

    async def open(
        self,
        method: str,
        url: httpx2.URL,
        headers: Mapping[str, str] | list[tuple[str, str]],
        content: bytes | None,
        *,
        silence: float | None,
    ) -> "Response":
        """`silence`: seconds before and between the parts of the response."""
        try:
            async with asyncio.timeout(self._connect_seconds):
                await self._free.acquire()
        except TimeoutError:
            raise httpx2.PoolTimeout("") from None
        _transport.set(None)
        place, session = _spelt_out(url), self._direct
        if self._proxy is not None and self._proxy.carries(place.host or "", place.port or 0):
            session = self._through_proxy
        try:
            if session.closed:  # While this waited; aiohttp's error would be a bug's
                raise httpx2.ConnectError(CLOSED)
            response = await session.request(
                method,
                place,
                headers=headers,
                data=io.BytesIO(content) if content and len(content) > LARGE_BYTES else content,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=None, connect=self._connect_seconds, sock_read=silence),
            )
        except BaseException as error:
            self._free.release()
            _abort(_transport.get())
            if isinstance(error, FAILURES):
                raise _as_httpx2(error) from error
            raise
        return Response(response, self._free)

    async def aclose(self) -> None:
        try:
            await self._direct.close()
        finally:
            if self._proxy is not None:
                await self._through_proxy.close()


def _session(connector: "_Connector", proxy: OutboundProxy | None = None) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("accept", "accept-encoding", "content-type", "user-agent"),  # The caller's
        auto_decompress=False,
        max_line_size=MAX_HEADER_BYTES,
        max_field_size=MAX_HEADER_BYTES,
        max_headers=1_000,
        middlewares=(_once, *([_ProxyLogin(proxy)] if proxy and proxy.user else [])),
        proxy=URL.build(scheme="http", host=proxy.host, port=proxy.port) if proxy else None,
    )


class _ProxyLogin:
    """aiohttp names the user to the proxy only when it connects, which is too seldom for plain HTTP."""

    def __init__(self, proxy: OutboundProxy) -> None:
        remember_credentials([proxy.password])
        self._words = {"Proxy-Authorization": aiohttp.encode_basic_auth(proxy.user, proxy.password)}

    async def __call__(
        self, request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        if request.is_ssl():
            request.proxy_headers = CIMultiDict(self._words)
        else:
            request.headers.update(self._words)
        return await send(request)


class Response(httpx2.AsyncByteStream):
    """Yields its parts as they arrive. Close it, read or not."""

    def __init__(self, response: aiohttp.ClientResponse, free: asyncio.Semaphore) -> None:
        self.status, self.headers = response.status, response.raw_headers
        self._response = response
        self._free: asyncio.Semaphore | None = free

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while part := await self._response.content.readany():
                yield part
        except FAILURES as error:
            if arrived := take_unread(self._response.content):  # Which may be a whole answer
                yield arrived
            raise _as_httpx2(error) from error

    def close(self) -> None:
        if self._free is not None:
            connection = self._response.connection  # None: read to its end, and free for others
            transport = None if connection is None else connection.transport
            self._response.close()
            _abort(transport)
            self._free.release()
            self._free = None

    async def aclose(self) -> None:
        self.close()


_transport: ContextVar[asyncio.BaseTransport | None] = ContextVar("_transport", default=None)
"""Of this task's last request, once it has a connection."""


def _abort(transport: Any) -> None:
    """aiohttp closes it, but waits for the engine's end of TLS, which may outlast the event loop."""
    if transport is not None:
        transport.abort()


def _spelt_out(url: httpx2.URL) -> URL:
    """127.1 and 127.0.0.1. become the address that resolvers take them for, which aiohttp would not do."""
    host = url.host.removesuffix(".")
    with contextlib.suppress(OSError):
        if host.replace(".", "").isdigit():
            url = url.copy_with(host=socket.inet_ntoa(socket.inet_aton(host)))
        elif host == "localhost":
            url = url.copy_with(host=host)
    return URL(f"{url.scheme}://{url.netloc.decode()}{url.raw_path.decode()}", encoded=True)


async def _once(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """aiohttp repeats a GET, PUT or DELETE whose connection broke; the engine may have carried it out."""
    try:
        return await send(request)
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise _as_httpx2(error) from error


_THE_PROXY = "the proxy of CATALOGUE_OUTBOUND_PROXY,"


def _as_httpx2(error: Exception) -> httpx2.TransportError:
    kind: type[httpx2.TransportError]
    match error:
        case aiohttp.ConnectionTimeoutError():
            return httpx2.ConnectTimeout("")
        case aiohttp.ClientHttpProxyError():
            return httpx2.ProxyError(
                f"{_THE_PROXY} {outbound_proxy()}, answered {error.status} {error.message}"
            )
        case aiohttp.ClientProxyConnectionError():
            return httpx2.ProxyError(f"{_THE_PROXY} {error.host}:{error.port}, cannot be reached")
        case TimeoutError():
            return httpx2.ReadTimeout("")
        case aiohttp.ClientConnectorError():
            kind = httpx2.ConnectError
        case aiohttp.ClientOSError():
            kind = httpx2.ReadError
        case _:
            kind = httpx2.RemoteProtocolError
    return kind(str(error))


class _Connector(aiohttp.TCPConnector):
    """Uses no connection again of which the engine may think otherwise."""

    def __init__(
        self,
        policy: AddressPolicy,
        *,
        reached: AddressPolicy,
        tls: ssl.SSLContext | None,
        resolve_seconds: float,
        being_sent: ContextVar[Any],
    ) -> None:
        """`policy` holds for the hosts of requests, `reached` for the names that are resolved here, which are
        the proxy's where there is one."""
        super().__init__(
            ssl=tls or True,
            limit=0,
            resolver=_Resolver(reached, resolve_seconds),
            use_dns_cache=False,
            # Common servers close idle connections after 5 s; a start must never meet that.
            keepalive_timeout=4.0,
        )
        self._policy = policy
        # For a minute, a name that the proxy resolves need not be looked up here again.
        self._checked_for_proxy: TTLCache[tuple[str, int], bool] = TTLCache(100, 60.0)
        self._being_sent = being_sent
        self._used: WeakSet[ResponseHandler] = WeakSet()

    async def connect(
        self, req: aiohttp.ClientRequest, traces: list[Any], timeout: aiohttp.ClientTimeout
    ) -> Connection:
        assert req.host
        host, port = req.host, req.port or 0
        if req.proxy is None:
            self._policy.check(host, port)  # aiohttp resolves no address
        elif (host, port) not in self._checked_for_proxy:
            await self._policy.check_for_proxy(host, port)
            self._checked_for_proxy[host, port] = True
        while True:
            connection = await super().connect(req, traces, timeout)
            protocol = connection.protocol
            assert protocol is not None
            if protocol not in self._used or not _is_stale(protocol):
                break
            connection.close()
        self._used.add(protocol)
        _transport.set(protocol.transport)
        if (request := self._being_sent.get()) is not None:
            request.sent = True
        return connection


def _is_stale(idle: ResponseHandler) -> bool:
    """It was closed, or the engine has sent what nobody asked for, which must not answer the next request."""
    if idle.should_close or idle.transport is None:
        return True
    number = idle.transport.get_extra_info("socket").fileno()
    if number < 0:
        return True
    asked = select.poll()
    asked.register(number, select.POLLIN)
    return bool(asked.poll(0))


class _Resolver(AbstractResolver):
    """Finds only what the policy allows: a name's owner may answer differently each time. TLS verifies the
    name, not the address."""

    def __init__(self, policy: AddressPolicy, seconds: float) -> None:
        self._policy, self._seconds = policy, seconds

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        try:
            async with asyncio.timeout(self._seconds):
                addresses = await self._policy.resolve(host, port)
        except TimeoutError:
            raise httpx2.ConnectTimeout(f"the name {host} was not resolved in time") from None
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in addresses
        ]

    async def close(self) -> None:
        """Nothing is open."""
