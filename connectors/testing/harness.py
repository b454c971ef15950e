"""What a test of a connector needs of its engine: `EngineHarness`, and steps that tests share."""

import asyncio
import itertools
import json
import os
import socket
import traceback
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar
from unittest.mock import ANY
from uuid import UUID, uuid4

import pytest

from connectors.errors import ConnectorError, Unsupported
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
POLL_SECONDS = 0.02

Answered = TypeVar("Answered")
WORKERS = 16
PORTS = range(
    20_000 + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % WORKERS, 30_000, WORKERS
)
"""Disjoint for pytest's workers, and outside of the system's ephemeral ports."""
_turns = itertools.count(os.getpid())

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


_FIELDS = (
    *("id", "name", "run_id", "runId", "workflow_id", "state", "state_type", "status", "started", "ended"),
    *("items", "data", "results", "workflows", "runs", "run", "count", "total", "next"),
)


def free_port() -> int:
    """An unused port of this machine, which no other test gets before it is used."""
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
    """A success that announces `missing` bytes more than it sends."""
    head = (
        f"HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\n"
        f"content-length: {len(body) + missing}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body


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


@dataclass(frozen=True)
class Sample:
    """A workflow of the engine, with arguments that it accepts."""

    workflow: WorkflowRef
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Interaction:
    """A query or a signal that a run of `lasting` accepts."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    answer: Any = None
    """What a run that has only just begun answers to the query; a signal has no answer."""


class EngineHarness(ABC):
    """A real engine, and connectors to it and to worse ones.

    What has a value here may be left as it is by a connector to an engine with one port, credentials and
    answers in JSON over HTTP.
    """

    completing: Sample
    """Ends soon, with an output."""
    output: Any = ANY
    """What it ends with. State it: only then a connector fails that returns something else."""
    failing: Sample
    """Ends soon, with a reason that contains `failure`."""
    failure: str
    lasting: Sample
    """Runs longer than any test."""
    unknown_workflow = WorkflowRef(id="no-such-workflow", name="no such workflow")
    """Not at the engine, though its id has the form that the engine's ids have."""
    deadline_seconds = DEADLINE_SECONDS
    """The longest that the engine takes to end a run, or to list it."""

    has_credentials = True
    """False: the engine lets everyone in, so that there are neither wrong credentials nor secrets."""
    secrets: frozenset[str] = frozenset()
    """Every credential that the connectors made here carry."""

    ports = 1
    """On how many the engine listens. With more than one, override `connector_at_ports`."""
    garbage: Mapping[str, bytes] = GARBAGE
    """HTTP answers that the engine never gives, by what a failed test calls them.

    Add answers that are almost right, leave out what the engine may well mean. Empty: no engine that answers
    with garbage can be made, and those tests do not apply.
    """

    query: Interaction | None = None
    """Needed where runs can be queried."""
    signal: Interaction | None = None
    """Needed where runs can be signalled, as is `has_heard_signal`."""

    @abstractmethod
    def connector(self) -> Connector:
        """A connector to the real engine."""

    def connector_with_wrong_credentials(self) -> Connector:
        """Needed where `has_credentials`."""
        raise NotImplementedError

    def connector_at(self, port: int) -> Connector:
        """A connector to another engine on this machine, patient for a fraction of a second."""
        raise NotImplementedError

    def connector_at_ports(self, ports: Sequence[int]) -> Connector:
        """The same for an engine that listens on as many `ports` as are given."""
        (port,) = ports
        return self.connector_at(port)

    def connector_to_nothing(self) -> Connector:
        """A connector to an engine that is down."""
        return self.connector_at_ports([free_port() for _ in range(self.ports)])

    @asynccontextmanager
    async def connector_without_answers(self) -> AsyncIterator[Connector]:
        """A connector whose start reaches an engine that never answers it, nor anything else."""
        async with silent_engines(self.ports) as ports, closing(self.connector_at_ports(ports)) as connector:
            yield connector

    async def connectors_with_garbage(self) -> AsyncGenerator[tuple[str, Connector]]:
        """For each piece of `garbage` its name, and a connector whose engine answers with it until the next.

        Override this for an engine that does not speak HTTP; the names decide what tests expect.
        """
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
        """The whole HTTP answer to this request. A right one for what has to come before others, such as a
        login or a handshake, lets the start itself reach the garbage."""
        return garbage

    @abstractmethod
    def runs_started_with(self, key: UUID) -> int:
        """How many runs the engine itself says it started for this key."""

    def unknown_run_id(self) -> str:
        """One that no run has, in the form that the engine's ids have."""
        return str(uuid4())

    def another_workflow(self) -> WorkflowRef | None:
        """One that is not `completing`'s. None: the engine has no other, so that none can be confused."""
        others = (self.failing.workflow, self.lasting.workflow)
        return next((other for other in others if other.id != self.completing.workflow.id), None)

    async def ended(self, connector: Connector, sample: Sample) -> tuple[RunRef, RunSnapshot]:
        """A run that has come to its end; where each costs seconds, one that earlier tests have seen."""
        started, run = await start(connector, sample)
        return run, await outcome(connector, started, run, seconds=self.deadline_seconds)

    def starts_last(self, connector: Connector) -> bool:
        """Whether the answer to a start of `lasting` is the result, so that there is no run to ask about."""
        return capabilities_of(connector, self.lasting).starts_can_be_broken_off

    async def lasting_has_begun(self, told: asyncio.Event) -> None:
        """Until the engine has a start of `lasting`. `told` is set when the connector tells how far it is; an
        engine that says nothing of that has to be asked."""
        await told.wait()

    def starts_broken_off(self) -> int:
        """How many starts the engine itself says were broken off. Needed only where starts last."""
        raise NotImplementedError

    async def has_heard_signal(self, connector: Connector, run: RunRef) -> bool:
        """Whether the run has heard `signal`, by the engine's own word."""
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
    """How the run ended: as the answer to its start tells where that is the result, otherwise by polling."""
    first = started.snapshot
    capabilities = capabilities_for(connector, run.workflow)
    is_result = capabilities.starts_can_be_broken_off or not capabilities.keeps_runs
    if is_result and first is not None and first.state is not RunState.RUNNING:
        return first
    return await until_ended(connector, run, seconds=seconds)


async def eventually(ask: Callable[[], Awaitable[Answered]], *, seconds: float) -> Answered:
    """The first truthy answer, since engines record some things late."""
    async with asyncio.timeout(seconds):
        while not (answer := await ask()):  # noqa: ASYNC110 - the engine tells only who asks
            await asyncio.sleep(POLL_SECONDS)
        return answer


def unknown_run(harness: EngineHarness, sample: Sample) -> RunRef:
    return RunRef(workflow=sample.workflow, run_id=harness.unknown_run_id(), key=uuid4())


async def is_unsupported(connector: Connector, method: str, *given: Any, **named: Any) -> None:
    """An optional method is left out, or says that the engine cannot do that."""
    if hasattr(connector, method):
        with pytest.raises(Unsupported):
            await getattr(connector, method)(*given, **named)


async def answer_or_error(asked: Awaitable[Answered], *, to: str) -> Answered | ConnectorError:
    """What a method returns, or the error that it may raise. `to` names the call where it raises another."""
    try:
        return await asked
    except ConnectorError as error:
        return error
    except Exception as error:
        raise AssertionError(f"{to}: it raised {type(error).__name__}, no ConnectorError") from error


def everything_told_by(error: BaseException) -> str:
    """All that a log or an admin page could show of an error and its causes."""
    text = "".join(traceback.format_exception(error))
    link: BaseException | None = error
    while link is not None:
        text += f"{link} {link!r} {vars(link)}"
        link = link.__cause__ or link.__context__
    return text
