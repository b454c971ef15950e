"""Engines that do not answer, or answer with garbage, and ports where none listens."""

import asyncio
import itertools
import json
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

WORKERS = 16
PORTS = range(
    20_000 + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % WORKERS, 30_000, WORKERS
)
"""Each of pytest's workers has its own, and none are of those that the system itself gives out."""
_turns = itertools.count(os.getpid())

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def free_port() -> int:
    """A port of this machine on which nobody listens, and that nobody else is given before it is used."""
    for turn in itertools.islice(_turns, len(PORTS)):
        port = PORTS[turn % len(PORTS)]
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
    raise RuntimeError(f"Every port from {PORTS[0]} to {PORTS[-1]} is taken.")


@asynccontextmanager
async def silent_engine() -> AsyncIterator[int]:
    """The port of an engine that takes every request and answers none."""
    async with silent_engines(1) as (port,):
        yield port


@asynccontextmanager
async def silent_engines(ports: int) -> AsyncIterator[list[int]]:
    """The ports of an engine that listens on so many of them."""

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(65_536):
            pass

    async with _listening(take, ports) as listened_to:
        yield listened_to


@dataclass(frozen=True)
class Asked:
    """One HTTP request, as it arrived."""

    method: str
    target: str
    body: bytes


@asynccontextmanager
async def answering_engines(answer: Callable[[Asked], bytes], ports: int) -> AsyncIterator[list[int]]:
    """The ports of an HTTP engine that writes these bytes in answer to a request, and hangs up then."""

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        request_line, *lines = head.strip().split("\r\n")
        method, target, _ = request_line.split(" ", 2)
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(fields.get("content-length", "0")))
        writer.write(answer(Asked(method, target, body)))
        await writer.drain()

    async with _listening(take, ports) as listened_to:
        yield listened_to


@asynccontextmanager
async def _listening(take: Serve, ports: int) -> AsyncIterator[list[int]]:
    serving: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                await take(reader, writer)
        finally:
            writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving[asyncio.create_task(serve(reader, writer))] = writer

    servers = [await asyncio.start_server(accept, "127.0.0.1", 0) for _ in range(ports)]
    try:
        yield [server.sockets[0].getsockname()[1] for server in servers]
    finally:
        # Python 3.11 loses a connection, unclosed, whose server closes between its arrival and the next step.
        for server in servers:
            asyncio.get_running_loop().remove_reader(server.sockets[0].fileno())
        await asyncio.sleep(0)
        for server in servers:
            server.close()
        for task, writer in serving.items():
            task.cancel()
            # A task that is cancelled before its first step does not get to close it.
            writer.transport.abort()
        await asyncio.gather(*serving, return_exceptions=True)


def http_answer(body: bytes, *, content_type: str = "application/json", missing: int = 0) -> bytes:
    """A success; `missing` bytes of what it announces never come."""
    head = (
        f"HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\n"
        f"content-length: {len(body) + missing}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body


_FIELDS = (
    *("id", "name", "run_id", "runId", "workflow_id", "state", "state_type", "status", "started", "ended"),
    *("items", "data", "results", "workflows", "runs", "run", "count", "total", "next"),
)


def _wrong_types() -> dict[str, Any]:
    """What engines often call the parts of their answers, with values that none of these can have."""
    values = itertools.cycle([[[]], {"": None}, True, -1.5])
    return dict(zip(_FIELDS, values, strict=False))


def _json(value: Any) -> bytes:
    return http_answer(json.dumps(value).encode())


BROKEN_OFF = "an answer that breaks off"
EMPTY_LIST = "an empty list"
"""This one may be right where something is looked up: there is nothing."""
UNREADABLE: Mapping[str, bytes] = {
    "a web page": http_answer(b"<!doctype html><title>Sign in</title>", content_type="text/html"),
    "nothing": http_answer(b""),
    "JSON cut in half": http_answer(b'{"id": "7", "status": "COMPL'),
    "bytes that are no text": http_answer(b'{"id": "\xff\xfe"}'),
    "10,000 lists in one another": http_answer(b"[" * 10_000 + b"]" * 10_000),
    BROKEN_OFF: http_answer(b'{"id": "7"}', missing=100),
}
"""What no engine that speaks JSON means, as whole HTTP answers."""
GARBAGE: Mapping[str, bytes] = {
    **UNREADABLE,
    "null": _json(None),
    "a number": _json(7),
    "a text": _json("ok"),
    "an empty object": _json({}),
    EMPTY_LIST: _json([]),
    "a list of no objects": _json([None, 7, "x", []]),
    "an object of wrong types": _json(_wrong_types()),
    "a list of objects of wrong types": _json([_wrong_types()]),
}
"""And JSON of another shape than was asked for."""
