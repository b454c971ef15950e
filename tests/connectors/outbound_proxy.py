"""A proxy that knows names which nobody else knows, and the operator's setting that names it."""

import asyncio
import base64
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from connectors.network.policy import use_outbound_proxy
from tests.connectors.scripted import Received, read_request


@dataclass
class Proxy:
    """Of HTTP/1.1: tunnels by CONNECT, and hands on requests that have whole addresses."""

    names: Mapping[str, int]
    """The ports on this machine that stand for other machines."""
    login: str = ""
    """`user:password`; empty: everybody may use it."""
    port: int = 0
    asked: list[str] = field(default_factory=list)
    """What it was asked for, as `METHOD target`."""
    _serving: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._answer(await read_request(reader, 0), reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(
        self, request: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Whether the connection is good for another request."""
        self.asked.append(f"{request.method} {request.target}")
        is_tunnel = request.method == "CONNECT"
        parts = urlsplit(f"//{request.target}" if is_tunnel else request.target)
        expected = "Basic " + base64.b64encode(self.login.encode()).decode()
        if self.login and request.headers.get("proxy-authorization") != expected:
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n")
            return True
        if parts.hostname not in self.names:
            writer.write(b"HTTP/1.1 502 No Such Host\r\ncontent-length: 0\r\n\r\n")
            return True
        theirs, ours = await asyncio.open_connection("127.0.0.1", self.names[parts.hostname])
        try:
            if is_tunnel:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                await asyncio.gather(_copy(reader, ours), _copy(theirs, writer))
                return False
            kept = [f"{name}: {value}" for name, value in request.headers.items() if name[:6] != "proxy-"]
            head = "\r\n".join([f"{request.method} {parts.path} HTTP/1.1", *kept, "", ""])
            ours.write(head.encode() + request.body)
            ours.write_eof()
            return await _copy(theirs, writer) > 0
        finally:
            ours.close()

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._serving.add(asyncio.create_task(self._serve(reader, writer)))


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> int:
    """Until the source ends; returns how many bytes there were."""
    copied = 0
    while part := await source.read(65_536):
        copied += len(part)
        sink.write(part)
        await sink.drain()
    return copied


@asynccontextmanager
async def running_proxy(names: Mapping[str, int], *, login: str = "") -> AsyncIterator[Proxy]:
    proxy = Proxy(names, login)
    server = await asyncio.start_server(proxy._begin, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        for task in proxy._serving:
            task.cancel()
        await asyncio.gather(*proxy._serving, return_exceptions=True)
        await server.wait_closed()


@contextmanager
def proxied(url: str, *, but: str = "") -> Iterator[None]:
    """As if CATALOGUE_OUTBOUND_PROXY and CATALOGUE_NO_PROXY were these; afterwards there is no proxy."""
    use_outbound_proxy(url, but)
    try:
        yield
    finally:
        use_outbound_proxy("", "")
