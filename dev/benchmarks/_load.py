"""Requests over kept-alive connections, by a client that costs less than the servers it measures."""

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from dev.benchmarks._processes import McpServer


class _Connection(asyncio.BufferedProtocol):
    """One request at a time; the answer's status and body, which has to say how long it is.

    Whatever comes goes into one buffer: a client that copied it would be slower than the server.
    """

    def __init__(self) -> None:
        self._answer: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self._buffer = bytearray(1024 * 1024)
        self._filled = 0
        self._end: int | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._filled == len(self._buffer):
            self._buffer = self._buffer + bytearray(len(self._buffer))
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, received: int) -> None:
        self._filled += received
        if self._end is None:
            self._read_head()
        if self._end is not None and self._filled >= self._end:
            self._answer.set_result((self._status, bytes(self._buffer[self._body : self._end])))

    def _read_head(self) -> None:
        end = self._buffer.find(b"\r\n\r\n", 0, self._filled)
        if end < 0:
            return
        first, *lines = bytes(self._buffer[:end]).lower().split(b"\r\n")
        headers = dict(line.split(b": ", 1) for line in lines)
        self._status, self._body = int(first.split()[1]), end + 4
        self._end = self._body + int(headers[b"content-length"])

    def connection_lost(self, error: Exception | None) -> None:
        if not self._answer.done():
            self._answer.set_exception(error or ConnectionError("The server closed the connection."))

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        self._answer = asyncio.get_running_loop().create_future()
        self._filled, self._end = 0, None
        self._transport.write(request)
        return await self._answer

    def close(self) -> None:
        self._transport.close()


async def send_load(
    server: McpServer,
    body: Mapping[str, Any] | None,
    headers: Mapping[str, str],
    *,
    clients: int,
    requests: int,
    expected: bytes = b'"result"',
) -> list[float]:
    """Send the same request again and again, from each client one at a time; how long each took.

    Without a body it is a GET. `expected`: what every answer has in it.
    """
    request, left, seconds = _as_bytes(server.url, body, headers), requests, list[float]()
    url = urlsplit(server.url)

    async def client() -> None:
        nonlocal left
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(_Connection, url.hostname, url.port)
        while left > 0:
            left -= 1
            started = time.perf_counter()
            status, answer = await connection.ask(request)
            seconds.append(time.perf_counter() - started)
            assert status == 200 and expected in answer, answer[:500]
            assert b'"isError":true' not in answer, answer[:500]
        connection.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    return seconds


def _as_bytes(url: str, body: Mapping[str, Any] | None, headers: Mapping[str, str]) -> bytes:
    parts = urlsplit(url)
    method, content = ("GET", b"") if body is None else ("POST", json.dumps(body).encode())
    own = {"host": parts.netloc, "content-type": "application/json", "content-length": len(content)}
    lines = (f"{name}: {value}" for name, value in (own | dict(headers)).items())
    target = f"{parts.path}?{parts.query}" if parts.query else parts.path
    head = [f"{method} {target} HTTP/1.1", *lines, "", ""]
    return "\r\n".join(head).encode() + content
