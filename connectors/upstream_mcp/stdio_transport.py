"""MCP over the standard streams of a program in its own process group."""

import asyncio
import contextlib
import json
import os
import re
import signal
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from loguru import logger
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from connectors.errors import ConnectorError, InvalidAnswer, Misconfigured, OutcomeUnknown
from connectors.formats.json import UnreadableJSON
from connectors.network.policy import allowed_stdio_command
from connectors.network.redaction import Redactor, printable, shorten
from connectors.upstream_mcp.config import McpConfig, variables
from connectors.upstream_mcp.messages import FloodGate, TooManyMessages, UnusableAnswer, read_message
from connectors.upstream_mcp.session import TransportFailures

Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]
CHUNK_BYTES = 65_536
KEPT_BYTES = 300  # Bytes of both ends of an oversized message, to find its request's id
ID = rb'"id"\s*:\s*(\d{1,15}|"call-[0-9a-f]{32}")\s*'
ID_AT_START = re.compile(rb'\A\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?' + ID + rb"[,}]")
ID_AT_END = re.compile(ID + rb"\}\s*\Z")
EXIT_SECONDS = 2.0  # After its input closes, and again after SIGTERM
STDERR_SECONDS = 0.5


@dataclass(slots=True)
class ProgramExit:
    """The program's exit status and last line of standard error, for error messages."""

    text: str = ""
    status: int | None = None

    def __str__(self) -> str:
        ended = f" The command ended with status {self.status}." if self.status is not None else ""
        return f"{ended} It said: {self.text}" if self.text else ended


def command_line(config: McpConfig) -> list[str]:
    """Raises Misconfigured for what the operator does not allow."""
    allowed = allowed_stdio_command(config.command)
    if config.arguments and not allowed.more_arguments:
        raise Misconfigured(
            f"The command {config.command!r} takes no arguments from sources. An operator can allow them "
            "with more_arguments in CATALOGUE_STDIO_COMMANDS."
        )
    if refused := sorted(variables(config).keys() - allowed.environment):
        raise Misconfigured(
            f"The command {config.command!r} takes no environment variable {refused[0]} from sources. An "
            "operator can allow it under environment in CATALOGUE_STDIO_COMMANDS."
        )
    return [*allowed.command, *config.arguments]


@asynccontextmanager
async def open_stdio(
    config: McpConfig, *, redactor: Redactor, failures: TransportFailures, program_exit: ProgramExit
) -> AsyncGenerator[Streams]:
    """A program's streams; it ends with them."""
    process, pipes = await _start(config)
    program_exit.text, program_exit.status = "", None
    to_us, from_program = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    to_program, from_us = anyio.create_memory_object_stream[SessionMessage](0)
    stderr_read = asyncio.Event()
    async with contextlib.AsyncExitStack() as stack:
        group = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(group.cancel_scope.cancel)
        stack.push_async_callback(_end, process, pipes, program_exit, stderr_read)
        for stream in (to_us, from_program, to_program, from_us):
            stack.callback(stream.close)
        group.start_soon(_read_messages, process, to_us, _Lines(config.max_response_bytes), failures)
        group.start_soon(_speak, process, from_us)
        group.start_soon(_read_stderr, process, redactor, program_exit, stderr_read)
        yield from_program, to_program


async def _start(config: McpConfig) -> tuple[asyncio.subprocess.Process, asyncio.SubprocessTransport]:
    """Works like asyncio.create_subprocess_exec, which does not return the transport."""
    line, loop = command_line(config), asyncio.get_running_loop()
    try:
        pipes, protocol = await loop.subprocess_exec(
            lambda: asyncio.subprocess.SubprocessStreamProtocol(limit=CHUNK_BYTES, loop=loop),
            *line,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            # Only the basic variables of our environment: the others hold secrets.
            env=get_default_environment() | variables(config),
            cwd=allowed_stdio_command(config.command).directory,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        number = error.errno if isinstance(error, OSError) else None
        reason = os.strerror(number).lower() if number else "it contains an invalid character"
        raise Misconfigured(f"The command {config.command!r} cannot be started: {reason}.") from None
    return asyncio.subprocess.Process(pipes, protocol, loop), pipes


async def _read_messages(
    process: asyncio.subprocess.Process,
    to_us: MemoryObjectSendStream[SessionMessage | Exception],
    lines: "_Lines",
    failures: TransportFailures,
) -> None:
    assert process.stdout is not None
    gate, reader_gone = FloodGate(), (anyio.BrokenResourceError, anyio.ClosedResourceError)
    with contextlib.suppress(TooManyMessages, ConnectionError):
        async with to_us:
            while chunk := await process.stdout.read(CHUNK_BYTES):
                for line in lines.feed(chunk):
                    if isinstance(line, bytes) and not gate.admits(line):
                        continue
                    if (message := _read(line, failures)) is None:
                        continue
                    # Keep reading: a full pipe would keep the program from exiting.
                    with contextlib.suppress(*reader_gone):
                        await to_us.send(
                            SessionMessage(jsonrpc_message_adapter.validate_python(message, by_name=False))
                        )


def _read(line: "bytes | _TooLong", failures: TransportFailures) -> dict[str, Any] | None:
    """Returns the message, or the failure that its answer is; None for what is neither."""
    if isinstance(line, _TooLong):
        return failures.write(line, request_id=line.request_id)
    try:
        return read_message(line)
    except UnreadableJSON:
        return None
    except UnusableAnswer as answer:
        return failures.write(answer, request_id=answer.request_id)


async def _speak(
    process: asyncio.subprocess.Process, from_us: MemoryObjectReceiveStream[SessionMessage]
) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError, RuntimeError):
        async for item in from_us:
            text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
            process.stdin.write(text.encode() + b"\n")
            await process.stdin.drain()


async def _read_stderr(
    process: asyncio.subprocess.Process,
    redactor: Redactor,
    program_exit: ProgramExit,
    stderr_read: asyncio.Event,
) -> None:
    assert process.stderr is not None
    lines, logged, since = _Lines(CHUNK_BYTES), 0, time.monotonic()

    def readable(line: bytes) -> str:
        return shorten(printable(redactor.text(line.decode("utf-8", "replace"))), 500)

    while chunk := await process.stderr.read(CHUNK_BYTES):
        if time.monotonic() - since > 60:
            logged, since = 0, time.monotonic()
        last = b""
        for line in lines.feed(chunk):
            if isinstance(line, bytes) and line.strip():
                last = line
                if logged < 100:  # A minute
                    logged += 1
                    logger.debug("MCP server {}: {}", process.pid, readable(line))
        if last:
            # Only the last line: making all lines of a flood readable would block the loop.
            program_exit.text = readable(last)
    stderr_read.set()


async def _end(
    process: asyncio.subprocess.Process,
    pipes: asyncio.SubprocessTransport,
    program_exit: ProgramExit,
    stderr_read: asyncio.Event,
) -> None:
    """Close its input, then end the process group."""
    with anyio.CancelScope(shield=True):
        assert process.stdin is not None
        process.stdin.close()
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number is not None:
                _signal_group(process, number)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EXIT_SECONDS):
                    # wait() would also wait for other processes that hold the pipes.
                    while process.returncode is None:  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
                break
        _signal_group(process, signal.SIGKILL)
        program_exit.status = process.returncode
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STDERR_SECONDS):
                await stderr_read.wait()
        # A grandchild may still hold the other ends of the pipes.
        pipes.close()


def _signal_group(process: asyncio.subprocess.Process, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


@dataclass(frozen=True, slots=True)
class _TooLong:
    """Both ends of an oversized line."""

    start: bytes
    end: bytes
    most: int
    session_is_gone: ClassVar[bool] = False

    @property
    def request_id(self) -> int | str | None:
        found = ID_AT_END.search(self.end) or ID_AT_START.search(self.start)
        return json.loads(found[1]) if found else None

    def error(self, *, repeatable: bool) -> ConnectorError:
        kind = InvalidAnswer if repeatable else OutcomeUnknown
        return kind(f"The server's answer is larger than {self.most:,} bytes.")


@dataclass(slots=True)
class _Lines:
    """Splits chunks into lines of bounded length."""

    most: int
    _line: bytearray = field(default_factory=bytearray)
    _start: bytes = b""

    def feed(self, chunk: bytes) -> Iterator[bytes | _TooLong]:
        *ended, rest = chunk.split(b"\n")
        for part in ended:
            self._add(part)
            yield _TooLong(self._start, bytes(self._line), self.most) if self._start else bytes(self._line)
            self._line.clear()
            self._start = b""
        self._add(rest)

    def _add(self, part: bytes) -> None:
        self._line += part
        if len(self._line) > self.most or self._start:
            self._start = self._start or bytes(self._line[:KEPT_BYTES])
            del self._line[:-KEPT_BYTES]
