"""What the contract's tests need from an engine: `EngineHarness`, and shared steps."""

import asyncio
import itertools
import json
import os
import socket
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar
from unittest.mock import ANY
from uuid import UUID, uuid4

import pytest

from connectors.errors import ConnectorError, Unreachable, Unsupported
from connectors.protocol import (
    Capabilities,
    Connector,
    RunRef,
    RunSnapshot,
    RunState,
    Started,
    WorkflowRef,
    capabilities_for,
)

DEADLINE_SECONDS = 10.0
SILENCE_SECONDS = 60.0
"""What a connector that waits for an answer takes to have passed: more than its default time limit."""
POLL_SECONDS = 0.02

Answered = TypeVar("Answered")
WORKERS = 16
PORTS = range(
    20_000 + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % WORKERS, 30_000, WORKERS
)
"""Disjoint for pytest's workers, and outside the system's ephemeral ports."""
_turns = itertools.count(os.getpid() * 386)
"""Runs that are started together have adjacent process ids, but begin far apart."""

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
_FIELDS = (
    *("id", "name", "run_id", "runId", "workflow_id", "state", "state_type", "status", "started", "ended"),
    *("items", "data", "results", "workflows", "jobs", "runs", "run", "count", "total", "next"),
)
BROKEN_OFF = "an answer that breaks off"
EMPTY_LIST = "an empty list"  # A valid answer of a lookup without results


def free_port() -> int:
    """A port of this machine that no other test gets before it is used."""
    for turn in itertools.islice(_turns, len(PORTS)):
        port = PORTS[turn % len(PORTS)]
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
    raise RuntimeError(f"Every port from {PORTS[0]} to {PORTS[-1]} is taken.")


@asynccontextmanager
async def silent_engine() -> AsyncIterator[int]:
    """The port of an engine that accepts requests and never answers."""
    async with silent_engines(1) as (port,):
        yield port


@asynccontextmanager
async def silent_engines(ports: int) -> AsyncIterator[list[int]]:
    """The same for an engine with several ports."""

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(65_536):
            # By then, all of the request is sent.
            await asyncio.sleep(POLL_SECONDS)
            advance_clock(SILENCE_SECONDS)

    async with _listening(take, ports) as listened_to:
        yield listened_to


def advance_clock(seconds: float) -> None:
    """As if this much time had passed on this event loop: its time limits end without a wait for them. Does
    nothing on a loop that takes its time from elsewhere, such as uvloop's."""
    loop = asyncio.get_running_loop()
    ahead = loop.time() + seconds - time.monotonic()
    with suppress(AttributeError):
        loop.time = lambda: time.monotonic() + ahead  # type: ignore[method-assign]


@dataclass(frozen=True)
class Asked:
    """An HTTP request as it arrived."""

    method: str
    target: str
    body: bytes


@asynccontextmanager
async def answering_engines(answer: Callable[[Asked], bytes], ports: int) -> AsyncIterator[list[int]]:
    """The ports of an HTTP engine that answers each request with these bytes and hangs up."""

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
            # A task that is cancelled before its first step cannot close it.
            writer.transport.abort()
        await asyncio.gather(*serving, return_exceptions=True)


def http_answer(body: bytes, *, content_type: str = "application/json", missing: int = 0) -> bytes:
    """A success response that announces `missing` bytes more than it sends."""
    head = (
        f"HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\n"
        f"content-length: {len(body) + missing}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body


def _wrong_types() -> dict[str, Any]:
    """Common keys of engines' answers, with values of impossible types."""
    values = itertools.cycle([[[]], {"": None}, True, -1.5])
    return dict(zip(_FIELDS, values, strict=False))


def _json(value: Any) -> bytes:
    return http_answer(json.dumps(value).encode())


UNREADABLE: Mapping[str, bytes] = {
    "a web page": http_answer(b"<!doctype html><title>Sign in</title>", content_type="text/html"),
    "nothing": http_answer(b""),
    "JSON cut in half": http_answer(b'{"id": "7", "status": "COMPL'),
    "bytes that are not text": http_answer(b'{"id": "\xff\xfe"}'),
    "10,000 lists in one another": http_answer(b"[" * 10_000 + b"]" * 10_000),
    BROKEN_OFF: http_answer(b'{"id": "7"}', missing=100),
}
"""HTTP answers that are never valid for a JSON API."""
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
    "an object of lists of no objects": _json({key: [None, 7, "x", []] for key in _FIELDS}),
}
"""The same, and JSON of unexpected shapes."""


@dataclass(frozen=True)
class Sample:
    """A workflow of the engine, with valid arguments."""

    workflow: WorkflowRef
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Interaction:
    """A query or signal that a run of `lasting` accepts."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    answer: Any = None
    """A new run's answer to the query; signals have none."""


class EngineHarness(ABC):
    """A real engine, and connectors to it and to worse ones. The defaults suit an engine with one port,
    credentials and JSON over HTTP."""

    completing: Sample
    """Ends soon, with an output."""
    output: Any = ANY
    """Set it: otherwise, a connector that returns a wrong output passes."""
    failing: Sample
    """Ends soon, with a reason that contains `failure`."""
    failure: str
    lasting: Sample
    """Runs longer than any test."""
    unknown_workflow = WorkflowRef(id="no-such-workflow", name="no such workflow")
    """Not in the engine, with an id in the engine's format."""
    deadline_seconds = DEADLINE_SECONDS
    """The longest time in which the engine ends a run or lists it."""
    has_credentials = True
    """False: the engine has no access control, so neither wrong credentials nor secrets exist."""
    secrets: frozenset[str] = frozenset()
    """All credentials of the connectors made here."""
    ports = 1
    """How many the engine listens on; with more than one, override `connector_at_ports`."""
    garbage: Mapping[str, bytes] = GARBAGE
    """HTTP answers that the engine never gives, by their names in failed tests. Add almost valid answers, and
    remove those that the engine may give. Empty: the tests with garbage do not apply."""

    query: Interaction | None = None
    """Needed if runs can be queried."""
    signal: Interaction | None = None
    """Needed if runs can be signalled, as is `has_heard_signal`."""

    @abstractmethod
    def connector(self) -> Connector:
        """A connector to the real engine."""

    def connector_with_wrong_credentials(self) -> Connector:
        """Needed if `has_credentials`."""
        raise NotImplementedError

    def connector_at(self, port: int) -> Connector:
        """A connector to another engine on this machine, with time limits of a fraction of a second."""
        raise NotImplementedError

    def connector_at_ports(self, ports: Sequence[int]) -> Connector:
        """The same for an engine with several ports."""
        (port,) = ports
        return self.connector_at(port)

    def connector_to_nothing(self) -> Connector:
        """A connector to an engine that is down."""
        return self.connector_at_ports([free_port() for _ in range(self.ports)])

    @asynccontextmanager
    async def connector_without_answers(self) -> AsyncIterator[Connector]:
        """A connector whose start reaches an engine that never answers."""
        async with silent_engines(self.ports) as ports, closing(self.connector_at_ports(ports)) as connector:
            yield connector

    async def connectors_with_garbage(self) -> AsyncGenerator[tuple[str, Connector]]:
        """The name of each piece of `garbage`, and a connector whose engine answers with it until the next.
        Override this for an engine without HTTP; the names decide what tests expect."""
        if not self.garbage:
            return
        answers = [b""]

        def answer(asked: Asked) -> bytes:
            return self.garbled(asked, answers[0])

        async with (
            answering_engines(answer, self.ports) as ports,
            closing(self.connector_at_ports(ports)) as connector,
        ):
            for name, answers[0] in self.garbage.items():
                yield name, connector

    def garbled(self, asked: Asked, garbage: bytes) -> bytes:
        """The whole HTTP answer. Give logins and handshakes a valid one, so that the start reaches the
        garbage."""
        return garbage

    @abstractmethod
    def runs_started_with(self, key: UUID) -> int:
        """How many runs this key started, by the engine's own record."""

    def unknown_run_id(self) -> str:
        """An id without a run, in the engine's format."""
        return str(uuid4())

    def another_workflow(self) -> WorkflowRef | None:
        """Not that of `completing`; None: the engine has no other."""
        others = (self.failing.workflow, self.lasting.workflow)
        return next((other for other in others if other.id != self.completing.workflow.id), None)

    async def ended(self, connector: Connector, sample: Sample) -> tuple[RunRef, RunSnapshot]:
        """A run that has ended; if runs take seconds, one of an earlier test."""
        started, run = await start(connector, sample)
        return run, await outcome(connector, started, run, seconds=self.deadline_seconds)

    def starts_last(self, connector: Connector) -> bool:
        """Whether the answer to a start of `lasting` is the result, so that no run can be polled."""
        return capabilities_of(connector, self.lasting).cancellable_start

    async def lasting_has_begun(self, told: asyncio.Event) -> None:
        """Wait until the engine has a start of `lasting`: `told` is set when the connector reports progress,
        otherwise ask the engine."""
        await told.wait()

    def starts_broken_off(self) -> int:
        """How many starts were cancelled, by the engine's own record. Needed only if starts last."""
        raise NotImplementedError

    async def has_heard_signal(self, connector: Connector, run: RunRef) -> bool:
        """Whether the run received `signal`, by the engine's own record."""
        raise NotImplementedError


@asynccontextmanager
async def closing(connector: Connector) -> AsyncIterator[Connector]:
    try:
        yield connector
    finally:
        await connector.aclose()


def capabilities_of(connector: Connector, sample: Sample) -> Capabilities:
    return capabilities_for(connector, sample.workflow)


async def start(connector: Connector, sample: Sample, key: UUID | None = None) -> tuple[Started, RunRef]:
    key = key or uuid4()
    started = await connector.start(sample.workflow, sample.arguments, key=key)
    return started, RunRef(workflow=sample.workflow, run_id=started.run_id, key=key)


async def until_ended(connector: Connector, run: RunRef, *, seconds: float = DEADLINE_SECONDS) -> RunSnapshot:
    async with asyncio.timeout(seconds):
        while True:
            if (snapshot := await connector.poll(run)).state is not RunState.RUNNING:
                return snapshot
            await asyncio.sleep(POLL_SECONDS)


async def outcome(
    connector: Connector, started: Started, run: RunRef, *, seconds: float = DEADLINE_SECONDS
) -> RunSnapshot:
    """How the run ended: by the answer to its start if that is the result, else by polling."""
    first = started.snapshot
    capabilities = capabilities_for(connector, run.workflow)
    is_result = capabilities.cancellable_start or not capabilities.keeps_runs
    if is_result and first is not None and first.state is not RunState.RUNNING:
        return first
    return await until_ended(connector, run, seconds=seconds)


async def accepted(ask: Callable[[], Awaitable[None]], *, seconds: float) -> None:
    """Repeats a request that the engine cannot carry out yet, as the product does."""
    async with asyncio.timeout(seconds):
        while True:
            try:
                return await ask()
            except Unreachable:
                await asyncio.sleep(POLL_SECONDS)


async def eventually(ask: Callable[[], Awaitable[Answered]], *, seconds: float) -> Answered:
    """The first truthy answer, as engines record some things late."""
    async with asyncio.timeout(seconds):
        while not (answer := await ask()):  # noqa: ASYNC110 - engines must be polled
            await asyncio.sleep(POLL_SECONDS)
        return answer


def unknown_run(harness: EngineHarness, sample: Sample) -> RunRef:
    return RunRef(workflow=sample.workflow, run_id=harness.unknown_run_id(), key=uuid4())


async def is_unsupported(connector: Connector, method: str, *given: Any, **named: Any) -> None:
    """An optional method is missing, or raises Unsupported."""
    if hasattr(connector, method):
        with pytest.raises(Unsupported):
            await getattr(connector, method)(*given, **named)


async def answer_or_error(asked: Awaitable[Answered], *, to: str) -> Answered | ConnectorError:
    """The method's result or ConnectorError; `to` names the call if it raises another error."""
    try:
        return await asked
    except ConnectorError as error:
        return error
    except Exception as error:
        raise AssertionError(f"{to}: it raised {type(error).__name__}, not a ConnectorError") from error


def everything_told_by(error: BaseException) -> str:
    """Everything that a log or page could show of an error and its causes."""
    text = "".join(traceback.format_exception(error))
    link: BaseException | None = error
    while link is not None:
        text += f"{link} {link!r} {vars(link)}"
        link = link.__cause__ or link.__context__
    return text
