"""For clients that can send no token: a proxy on loopback that adds the Authorization header and no more."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from functools import partial

START_SECONDS = 10.0
PIECE = 65_536


@contextlib.contextmanager
def authorizing(port: int, token: str) -> Iterator[str]:
    """The base URL of a proxy in front of that port of this machine, for the length of the block."""
    addresses: list[str] = []
    stop: list[partial[object]] = []
    up = threading.Event()

    async def serve() -> None:
        over = asyncio.Event()
        stop.append(partial(asyncio.get_running_loop().call_soon_threadsafe, over.set))
        proxy = _Proxy(port, token)
        async with await asyncio.start_server(proxy.accept, "127.0.0.1", 0) as server:
            addresses.append(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            up.set()
            await over.wait()
            await proxy.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="proxy")
    thread.start()
    assert up.wait(START_SECONDS), "the proxy did not start"
    try:
        yield addresses[0]
    finally:
        stop[0]()
        thread.join(START_SECONDS)


class _Proxy:
    def __init__(self, port: int, token: str) -> None:
        self._port = port
        self._line = f"Authorization: Bearer {token}\r\n".encode()
        self._connections: set[asyncio.Task[None]] = set()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._connect(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass  # Either side went away; the block below tells the other one.
        except asyncio.CancelledError:
            if not writer.transport.is_closing():
                writer.transport.abort()
        finally:
            self._connections.discard(task)

    async def close(self) -> None:
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_product, to_product = await asyncio.open_connection("127.0.0.1", self._port)
        ways = [
            asyncio.create_task(self._pass_requests(reader, to_product)),
            asyncio.create_task(_pass_answers(from_product, writer)),
        ]
        try:
            # Whichever side hangs up first, the other one is to notice.
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            to_product.transport.abort()
            writer.close()

    async def _pass_requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            request_line, _, fields = head.partition(b"\r\n")
            writer.write(request_line + b"\r\n" + self._line + fields)
            writer.write(await reader.readexactly(_length(fields)))
            await writer.drain()


async def _pass_answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(PIECE):
        writer.write(piece)
        await writer.drain()


def _length(fields: bytes) -> int:
    """Of the body that follows; these clients send none in chunks."""
    named = dict(line.lower().split(b":", 1) for line in fields.split(b"\r\n") if line)
    assert b"transfer-encoding" not in named, "this proxy takes no chunked requests"
    return int(named.get(b"content-length", b"0"))
