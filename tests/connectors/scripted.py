"""An HTTP server that does whatever a test tells it to do on the wire."""

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from connectors.testing import advance_clock


@dataclass(frozen=True)
class Received:
    """One request as it arrived."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes
    connection: int
    """Which connection it came on, counted from 1."""

    @property
    def json(self) -> Any:
        return json.loads(self.body)


ARRIVED_SECONDS = 0.02
Behaviour = Callable[[Received, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class ScriptedEngine:
    """Use as `async with ScriptedEngine(behaviour) as engine`."""

    behave: Behaviour
    tls: ssl.SSLContext | None = None
    host: str = "127.0.0.1"
    wanted_port: int = 0
    received: list[Received] = field(default_factory=list)
    connections: int = 0
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once a request has arrived whole."""
    _serving: dict[asyncio.Task[None], asyncio.StreamWriter] = field(default_factory=dict)
    _closed: bool = False

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, self.host, self.wanted_port, ssl=self.tls)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        # Python 3.11 loses a connection, unclosed, whose server closes between its arrival and the next step.
        for listener in self._server.sockets:
            asyncio.get_running_loop().remove_reader(listener.fileno())
        await asyncio.sleep(0)
        self._server.close()
        for task, writer in self._serving.items():
            task.cancel()
            # A task that is cancelled before its first step does not get to do that.
            writer.transport.abort()
        await asyncio.gather(*self._serving, return_exceptions=True)
        await self._server.wait_closed()

    def stop_listening(self) -> None:
        """Open connections go on."""
        self._server.close()

    @property
    def base_url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.host}:{self.port}"

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._closed:
            # It was accepted before, and is ready only now.
            writer.transport.abort()
            return
        self.connections += 1
        self._serving[asyncio.create_task(self._serve(reader, writer, self.connections))] = writer

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: int
    ) -> None:
        try:
            while not writer.is_closing():
                request = await read_request(reader, connection)
                self.received.append(request)
                self.asked.set()
                await self.behave(request, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.transport.abort()


async def read_request(reader: asyncio.StreamReader, connection: int) -> Received:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    request_line, *lines = head.strip().split("\r\n")
    method, target, _ = request_line.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Received(method, target, headers, body, connection)


def response(status: int, body: bytes | str = b"", **headers: str) -> bytes:
    """The bytes of a whole answer; `retry_after="7"` becomes the header `retry-after: 7`."""
    content = body.encode() if isinstance(body, str) else body
    fields = {"content-type": "application/json", "content-length": str(len(content))}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"HTTP/1.1 {status} Whatever", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode() + content


def replies(status: int, body: Any = b"", **headers: str) -> Behaviour:
    """Answer every request like this; what is neither bytes nor text is sent as JSON."""
    content = body if isinstance(body, bytes | str) else json.dumps(body)
    whole = response(status, content, **headers)
    head = whole[: whole.index(b"\r\n\r\n") + 4]

    async def behave(request: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(head if request.method == "HEAD" else whole)

    return behave


def sends(raw: bytes) -> Behaviour:
    async def behave(request: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(raw)

    return behave


def sends_and_hangs_up(raw: bytes = b"") -> Behaviour:
    async def behave(request: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(raw)
        await writer.drain()
        writer.close()

    return behave


def stays_silent_after(raw: bytes = b"", *, seconds: float = 0.0) -> Behaviour:
    """For a client on the same event loop, so many seconds pass as soon as `raw` has arrived."""

    async def behave(request: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(raw)
        await asyncio.sleep(ARRIVED_SECONDS)
        advance_clock(seconds)
        await asyncio.Event().wait()

    return behave


def repeats(raw: bytes, piece: bytes, *, every_seconds: float, seconds: float = 0.0) -> Behaviour:
    """Send `raw`, then `piece` again and again without end. For a client on the same event loop, so many
    `seconds` more pass after each piece."""

    async def behave(request: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(raw)
        while True:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(every_seconds)
            advance_clock(seconds)

    return behave


def routes(answers: Mapping[str, Any]) -> Behaviour:
    """Answer 200 with the JSON given for the request's target, 404 for any other."""

    async def behave(request: Received, writer: asyncio.StreamWriter) -> None:
        known = request.target in answers
        body = json.dumps(answers[request.target] if known else {"error": f"nothing at {request.target}"})
        writer.write(response(200 if known else 404, body))

    return behave
