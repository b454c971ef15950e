"""The contract of every connector, as tests to subclass, also for other packages. Write an `EngineHarness`
for the engine, and a subclass of `ConnectorContract` with a fixture `harness`. It needs pytest with
pytest-asyncio in its mode "auto"."""

import asyncio
import contextlib
import inspect
import itertools
import json
import logging
import os
import socket
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar
from unittest.mock import ANY
from uuid import UUID, uuid4

import pytest
from loguru import logger

from connectors.definitions import RejectedDefinition, WorkflowDefinition
from connectors.errors import (
    ConnectorError,
    InvalidAnswer,
    Misconfigured,
    NotFound,
    OutcomeUnknown,
    Rejected,
    Unreachable,
    Unsupported,
)
from connectors.protocol import (
    Capabilities,
    Connector,
    Health,
    ListedRun,
    Question,
    RunFilter,
    RunPage,
    RunRef,
    RunSnapshot,
    RunState,
    Started,
    WorkflowRef,
    capabilities_for,
)
from connectors.registry import objection_to

DEADLINE_SECONDS = 10.0
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

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(65_536):
            # By then, all of the request is sent. The connector's default time limit is shorter.
            await asyncio.sleep(POLL_SECONDS)
            advance_clock(60.0)

    async with _listening(take) as port:
        yield port


def advance_clock(seconds: float) -> None:
    """Pretend that this much time has passed on this event loop: its time limits end without a wait for them.
    Does nothing on a loop that takes its time from elsewhere, such as uvloop's."""
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
async def answering_engine(answer: Callable[[Asked], bytes]) -> AsyncIterator[int]:
    """The port of an HTTP engine that answers each request with these bytes and hangs up."""

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        request_line, *lines = head.strip().split("\r\n")
        method, target, _ = request_line.split(" ", 2)
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(fields.get("content-length", "0")))
        writer.write(answer(Asked(method, target, body)))
        await writer.drain()

    async with _listening(take) as port:
        yield port


@asynccontextmanager
async def _listening(take: Serve) -> AsyncIterator[int]:
    serving: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                await take(reader, writer)
        finally:
            writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving[asyncio.create_task(serve(reader, writer))] = writer

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        # Python 3.11 loses a connection, unclosed, whose server closes between its arrival and the next step.
        asyncio.get_running_loop().remove_reader(server.sockets[0].fileno())
        await asyncio.sleep(0)
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
    """A real engine, and connectors to it and to worse ones. The defaults suit an engine with credentials
    and JSON over HTTP."""

    completing: Sample
    """Ends soon, with an output."""
    output: Any = ANY
    """Set it: otherwise, a connector that returns a wrong output passes."""
    failing: Sample
    """Ends soon, with a reason that contains `failure`, also when it is retried."""
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
    garbage: Mapping[str, bytes] = GARBAGE
    """HTTP answers that the engine never gives, by their names in failed tests. Add almost valid answers, and
    remove those that the engine may give. Empty: the tests with garbage do not apply."""

    query: Interaction | None = None
    """Needed if runs can be queried."""
    signal: Interaction | None = None
    """Needed if runs can be signalled, as is `has_heard_signal`."""
    asking: Sample | None = None
    """Soon waits for a person and completes soon after the answer; needed if runs ask people."""
    consent: Mapping[str, Any] = {}
    """The answer to the question of `asking`."""
    unfit: Mapping[str, Any] | None = None
    """An answer that the engine refuses and then still asks; None: it takes any."""

    @abstractmethod
    def connector(self) -> Connector:
        """A connector to the real engine."""

    def connector_with_wrong_credentials(self) -> Connector:
        """Returns a connector whose credentials the engine refuses; needed if `has_credentials`."""
        raise NotImplementedError

    def connector_at(self, port: int) -> Connector:
        """A connector to another engine on this machine, which listens on this port alone, with time limits
        of a fraction of a second."""
        raise NotImplementedError

    def connector_to_nothing(self) -> Connector:
        """A connector to an engine that is down."""
        return self.connector_at(free_port())

    @asynccontextmanager
    async def connector_without_answers(self) -> AsyncIterator[Connector]:
        """A connector whose start reaches an engine that never answers."""
        async with silent_engine() as port, closing(self.connector_at(port)) as connector:
            yield connector

    async def connectors_with_garbage(self) -> AsyncGenerator[tuple[str, Connector]]:
        """The name of each piece of `garbage`, and a connector whose engine answers with it until the next.
        Override this for an engine without HTTP; the names decide what tests expect."""
        if not self.garbage:
            return
        answers = [b""]

        def answer(asked: Asked) -> bytes:
            return self.garbled(asked, answers[0])

        async with answering_engine(answer) as port, closing(self.connector_at(port)) as connector:
            for name, answers[0] in self.garbage.items():
                yield name, connector

    def garbled(self, asked: Asked, garbage: bytes) -> bytes:
        """The whole HTTP answer. Give logins and handshakes a valid one, so that the start reaches the
        garbage."""
        return garbage

    @abstractmethod
    def runs_started_with(self, key: UUID) -> int:
        """Returns how many runs this key started, or retried, by the engine's own record."""

    def unknown_run_id(self) -> str:
        """An id without a run, in the engine's format."""
        return str(uuid4())

    def another_workflow(self) -> WorkflowRef | None:
        """Returns a workflow other than that of `completing`; None: the engine has no other."""
        others = (self.failing.workflow, self.lasting.workflow)
        return next((other for other in others if other.id != self.completing.workflow.id), None)

    async def ended(self, connector: Connector, sample: Sample) -> tuple[RunRef, RunSnapshot]:
        """A run that has ended; if runs take seconds, one of an earlier test."""
        started, run = await start(connector, sample)
        return run, await outcome(connector, started, run, seconds=self.deadline_seconds)

    def starts_last(self, connector: Connector) -> bool:
        """Returns True if the answer to a start of `lasting` is the result, so that no run can be polled."""
        return capabilities_for(connector, self.lasting.workflow).cancellable_start

    async def lasting_has_begun(self, told: asyncio.Event) -> None:
        """Wait until the engine has a start of `lasting`: `told` is set when the connector reports progress,
        otherwise ask the engine."""
        await told.wait()

    def starts_broken_off(self) -> int:
        """Returns how many starts were cancelled, by the engine's own record. Needed only if starts last."""
        raise NotImplementedError

    async def has_heard_signal(self, connector: Connector, run: RunRef) -> bool:
        """Returns True if the run received `signal`, by the engine's own record."""
        raise NotImplementedError


@asynccontextmanager
async def closing(connector: Connector) -> AsyncIterator[Connector]:
    try:
        yield connector
    finally:
        await connector.aclose()


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
    """Tells how the run ended: by the answer to its start if that is the result, else by polling."""
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


def everything_told_by(error: BaseException) -> str:
    """Everything that a log or page could show of an error and its causes."""
    text = "".join(traceback.format_exception(error))
    link: BaseException | None = error
    while link is not None:
        text += f"{link} {link!r} {vars(link)}"
        link = link.__cause__ or link.__context__
    return text


METHODS_BY_CAPABILITY = {
    "can_retry": "retry",
    "can_find_retries": "find_retry",
    "can_pause": "pause",
    "can_terminate": "terminate",
    "can_find_runs": "find_run",
    "can_wait": "wait",
    "terminates_after_seconds": "terminate",
    "can_query": "query",
    "can_signal": "signal",
    "asks_people": "answer",
    "can_list_runs": "list_runs",
}


def _terminates(capabilities: Capabilities) -> bool:
    return capabilities.can_terminate or capabilities.terminates_after_seconds is not None


class ConnectorContract:
    """Subclass and provide the fixture `harness`."""

    @pytest.fixture
    async def connector(self, harness: EngineHarness) -> AsyncIterator[Connector]:
        async with closing(harness.connector()) as connector:
            yield connector

    @pytest.fixture
    def log(self, caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
        """Everything that our code (loguru) and its libraries (logging) write, at every level."""
        caplog.set_level(logging.DEBUG)
        lines: list[str] = []
        sink = logger.add(lines.append, level=0, diagnose=False)
        yield lines
        logger.remove(sink)

    async def test_a_source_can_have_this_class_as_its_connector(self, connector: Connector) -> None:
        """B10: the class passes the check that the registry makes before `add_source` takes its kind."""
        found = type(connector)
        assert objection_to(found, getattr(found, "kind", "")) == ""

    async def test_credentials_are_settings_that_are_stored_encrypted(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """E6: other settings are stored and shown as they are."""
        schema = json.dumps(type(connector).Config.model_json_schema())
        is_secret = '"format": "password"' in schema
        assert is_secret or not harness.has_credentials, "no setting of Config is a SecretStr"

    async def test_what_the_capabilities_promise_has_its_method(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """B10: the product calls an optional method once the capabilities promise it."""
        for sample in (harness.completing, harness.failing, harness.lasting):
            capabilities = capabilities_for(connector, sample.workflow)
            for capability, method in METHODS_BY_CAPABILITY.items():
                promised = getattr(capabilities, capability) not in (None, False)
                found = getattr(connector, method, None)
                assert not promised or inspect.iscoroutinefunction(found), f"{capability} needs {method}()"
            assert not capabilities.reports_listing_changes or callable(
                getattr(connector, "on_listing_changed", None)
            )

    # check and discover

    async def test_check_of_a_good_engine_is_ok_and_timed(self, connector: Connector) -> None:
        """B9: the engine's health can be checked."""
        health = await connector.check()
        assert health.ok
        assert health.message
        assert (health.latency_seconds or 0) > 0

    async def test_discovery_finds_the_engines_workflows(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """A1.1, A3.1: the listing yields each workflow with its id and name."""
        found = [item async for item in connector.discover() if isinstance(item, WorkflowDefinition)]
        if not connector.capabilities.lists_workflows:
            assert found == []
            return
        names_by_id = {definition.id: definition.name for definition in found}
        for sample in (harness.completing, harness.failing, harness.lasting):
            assert names_by_id.get(sample.workflow.id) == sample.workflow.name
        assert harness.unknown_workflow.id not in names_by_id

    # start and find_run

    async def test_an_unknown_workflow_cannot_be_started(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """A2.4: the engine's refusal reaches the caller."""
        # For declared workflows, a missing declaration is a misconfiguration.
        undeclared = () if connector.capabilities.lists_workflows else (Misconfigured,)
        with pytest.raises((NotFound, Rejected, *undeclared)):
            await connector.start(harness.unknown_workflow, {}, key=uuid4())

    async def test_one_key_starts_one_run_or_nothing_is_promised(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """B3: a start sent twice makes one run, by the engine's own record, where that is declared."""
        if not capabilities_for(connector, harness.completing.workflow).idempotent_start:
            return
        key = uuid4()
        first, _ = await start(connector, harness.completing, key)
        second, _ = await start(connector, harness.completing, key)
        assert first.run_id == second.run_id
        assert harness.runs_started_with(key) == 1

    async def test_simultaneous_starts_with_one_key_keep_the_promise_too(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """B3: one key starts one run under a race as well, where that is declared."""
        if not capabilities_for(connector, harness.completing.workflow).idempotent_start:
            return
        key = uuid4()
        starts = await asyncio.gather(*(start(connector, harness.completing, key) for _ in range(5)))
        assert len({started.run_id for started, _ in starts}) == 1
        assert harness.runs_started_with(key) == 1

    async def test_different_keys_start_different_runs(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """B3: a run belongs to the call that it was started for."""
        if capabilities_for(connector, harness.completing.workflow).cancellable_start:
            # The answer is the result, so that the run's id does not matter.
            return
        (first, _), (second, _) = [await start(connector, harness.completing) for _ in range(2)]
        assert first.run_id != second.run_id

    async def test_a_run_is_found_by_its_key_or_looking_it_up_is_unsupported(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """B3: the run of a start without an answer can be found."""
        workflow, arguments = harness.completing.workflow, harness.completing.arguments
        if not capabilities_for(connector, harness.completing.workflow).can_find_runs:
            await is_unsupported(connector, "find_run", workflow, arguments, key=uuid4())
            return
        run, _ = await harness.ended(connector, harness.completing)
        found = await connector.find_run(workflow, arguments, key=run.key)
        assert found is not None and found.run_id == run.run_id
        assert await connector.find_run(workflow, arguments, key=uuid4()) is None

    async def test_the_key_of_another_workflows_run_finds_nothing(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """B3: a run of another workflow is never returned instead."""
        another = harness.another_workflow()
        if another is None or not capabilities_for(connector, harness.completing.workflow).can_find_runs:
            return
        run, _ = await harness.ended(connector, harness.completing)
        assert await connector.find_run(another, harness.completing.arguments, key=run.key) is None

    # poll and wait

    async def test_poll_accepts_what_start_returned_and_reaches_the_result(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """A2.3, A8.4, B2: a run that was started can be followed to its output."""
        _, snapshot = await harness.ended(connector, harness.completing)
        assert snapshot.state is RunState.COMPLETED
        assert snapshot.output is not None
        assert snapshot.output == harness.output
        assert snapshot.raw
        assert snapshot.error == ""

    async def test_all_that_is_recorded_of_a_run_is_json(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """B6: a run whose snapshot cannot be stored goes on until its timeout."""
        started, _ = await start(connector, harness.completing)
        _, snapshot = await harness.ended(connector, harness.completing)
        recorded = {
            "Started.raw": started.raw,
            "RunSnapshot.raw": snapshot.raw,
            "RunSnapshot.output": snapshot.output,
            "RunSnapshot.content": snapshot.content,
        }
        for name, value in recorded.items():
            try:
                json.dumps(value, allow_nan=False)
            except (TypeError, ValueError) as error:
                raise AssertionError(f"{name} is not JSON: {error}") from None
        assert isinstance(started.run_id, str), f"Started.run_id must be a str: {started.run_id!r}"
        assert isinstance(started.raw, dict), f"Started.raw must be a dict: {started.raw!r}"

    async def test_a_completed_run_says_when_it_ran(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """B3: the times of a run are in order; RunSnapshot refuses those without a time zone."""
        _, snapshot = await harness.ended(connector, harness.completing)
        assert snapshot.started_at
        assert snapshot.finished_at
        assert snapshot.started_at <= snapshot.finished_at

    async def test_a_failed_run_is_failed_with_the_engines_reason(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """A2.4, A7.4: a failure has the engine's words."""
        _, snapshot = await harness.ended(connector, harness.failing)
        assert snapshot.state is RunState.FAILED
        assert harness.failure in snapshot.error

    async def test_a_run_that_goes_on_is_running(self, connector: Connector, harness: EngineHarness) -> None:
        """A8.1, A8.2: an unfinished run's status can be polled."""
        if harness.starts_last(connector):
            return
        started, run = await start(connector, harness.lasting)
        assert started.snapshot is None or started.snapshot.state is RunState.RUNNING
        snapshot = await connector.poll(run)
        assert snapshot.state is RunState.RUNNING
        assert snapshot.finished_at is None

    async def test_waiting_ends_with_the_run_or_when_the_time_is_up(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """A7.1: an engine that announces the end of a run need not be polled."""
        if not capabilities_for(connector, harness.lasting.workflow).can_wait:
            await is_unsupported(connector, "wait", unknown_run(harness, harness.lasting), seconds=0.1)
            return
        _, run = await start(connector, harness.completing)
        assert (await connector.wait(run, seconds=harness.deadline_seconds)).state is RunState.COMPLETED
        _, lasting = await start(connector, harness.lasting)
        assert (await connector.wait(lasting, seconds=0.1)).state is RunState.RUNNING
        with pytest.raises(NotFound):
            await connector.wait(unknown_run(harness, harness.lasting), seconds=0.1)

    async def test_an_unknown_run_is_not_found(self, connector: Connector, harness: EngineHarness) -> None:
        """A8.1: polling a run that the engine does not know is a distinct error."""
        with pytest.raises(NotFound):
            await connector.poll(unknown_run(harness, harness.lasting))

    # cancel, terminate, and cancelling a start that lasts as long as its run

    async def test_a_start_that_lasts_tells_how_far_it_is_and_ends_at_the_engine_when_it_is_broken_off(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """A7.5, A8.2: where the answer to a start is the result, cancelling the start ends the run."""
        if not harness.starts_last(connector):
            return
        reported: list[RunSnapshot] = []
        heard = asyncio.Event()

        def report(snapshot: RunSnapshot) -> None:
            reported.append(snapshot)
            heard.set()

        before = harness.starts_broken_off()
        lasting = asyncio.create_task(
            connector.start(harness.lasting.workflow, harness.lasting.arguments, key=uuid4(), report=report)
        )
        async with asyncio.timeout(harness.deadline_seconds):
            await harness.lasting_has_begun(heard)
            lasting.cancel()
            await asyncio.wait({lasting})
            while harness.starts_broken_off() == before:  # noqa: ASYNC110 - engines must be polled
                await asyncio.sleep(POLL_SECONDS)
        assert {snapshot.state for snapshot in reported} <= {RunState.RUNNING}
        assert all(snapshot.progress is not None or snapshot.progress_message for snapshot in reported)

    async def test_cancel_ends_a_run_or_is_unsupported(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """A7.5, A8.5: a run is cancelled in the engine, or the connector reports that it cannot be."""
        if harness.starts_last(connector):
            return
        _, run = await start(connector, harness.lasting)
        if not capabilities_for(connector, harness.lasting.workflow).can_cancel:
            with pytest.raises(Unsupported):
                await connector.cancel(run)
            return
        await accepted(lambda: connector.cancel(run), seconds=harness.deadline_seconds)
        with contextlib.suppress(NotFound):  # Some engines forget what they cancel
            ended = await until_ended(connector, run, seconds=harness.deadline_seconds)
            assert ended.state is RunState.CANCELLED

    async def test_a_run_that_has_ended_cannot_be_cancelled(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """A7.5: cancelling too late is refused, not ignored."""
        run, _ = await harness.ended(connector, harness.completing)
        with pytest.raises((Rejected, Unsupported)):
            await connector.cancel(run)

    async def test_an_unknown_run_cannot_be_cancelled(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """A8.1: there is no run that the engine could cancel."""
        with pytest.raises((NotFound, Unsupported)):
            await connector.cancel(unknown_run(harness, harness.lasting))

    async def test_terminate_ends_a_run_or_is_unsupported(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """A7.5: a run that ignores its cancellation can be ended, if the connector declares this."""
        if not _terminates(capabilities_for(connector, harness.lasting.workflow)):
            await is_unsupported(connector, "terminate", unknown_run(harness, harness.lasting))
            return
        _, run = await start(connector, harness.lasting)
        await accepted(lambda: connector.terminate(run), seconds=harness.deadline_seconds)
        ended = await until_ended(connector, run, seconds=harness.deadline_seconds)
        assert ended.state in (RunState.CANCELLED, RunState.FAILED)
        with pytest.raises(Rejected):
            await connector.terminate(run)
        with pytest.raises(NotFound):
            await connector.terminate(unknown_run(harness, harness.lasting))

    # retry, pause and resume

    async def test_a_failed_run_goes_on_with_a_retry_or_retries_are_unsupported(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """A7.2: polling shows how the retry ended, never the failure before it."""
        capabilities = capabilities_for(connector, harness.failing.workflow)
        nowhere = unknown_run(harness, harness.failing)
        if not capabilities.can_find_retries:
            await is_unsupported(connector, "find_retry", nowhere, key=uuid4())
        if not capabilities.can_retry:
            await is_unsupported(connector, "retry", nowhere, key=uuid4())
            return
        completed, _ = await harness.ended(connector, harness.completing)
        with pytest.raises(Rejected):
            await connector.retry(completed, key=uuid4())
        with pytest.raises((NotFound, Rejected)):
            await connector.retry(nowhere, key=uuid4())
        # Not a run of an earlier test, which the retry would change.
        started, run = await start(connector, harness.failing)
        failed = await outcome(connector, started, run, seconds=harness.deadline_seconds)
        key = uuid4()
        retried = await connector.retry(run, key=key)
        if capabilities.idempotent_retry:
            assert (await connector.retry(run, key=key)).run_id == retried.run_id
            assert harness.runs_started_with(key) <= 1
        again = replace(run, run_id=retried.run_id, key=key)
        ended = await until_ended(connector, again, seconds=harness.deadline_seconds)
        assert ended.state is RunState.FAILED
        assert harness.failure in ended.error
        assert (retried.run_id, ended.finished_at) != (run.run_id, failed.finished_at)
        if capabilities.can_find_retries:
            found = await connector.find_retry(run, key=key)
            assert found is not None and found.run_id == retried.run_id
            assert await connector.find_retry(run, key=uuid4()) is None

    async def test_a_retry_without_a_readable_answer_is_none(self, harness: EngineHarness) -> None:
        """A7.2: neither a run nor, if it is looked up, its absence."""
        run = unknown_run(harness, harness.failing)

        async def look(name: str, connector: Connector) -> None:
            capabilities = capabilities_for(connector, run.workflow)
            if capabilities.can_retry:
                answer = await ask(name, connector.retry, run, key=uuid4())
                assert isinstance(answer, ConnectorError), f"retry, answered with {name}: {answer!r}"
            if capabilities.can_find_retries:
                answer = await ask(name, connector.find_retry, run, key=uuid4())
                is_none = answer is None and name == EMPTY_LIST
                assert is_none or isinstance(answer, ConnectorError), f"find_retry, {name}: {answer!r}"

        async with (
            harness.connector_without_answers() as mute,
            closing(harness.connector_to_nothing()) as gone,
            aclosing(harness.connectors_with_garbage()) as answers,
        ):
            await look("silence", mute)
            await look("no connection", gone)
            async for name, connector in answers:
                await look(name, connector)

    async def test_a_run_is_held_until_it_is_resumed_or_pausing_is_unsupported(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """A7.5: a run is paused and resumed once, however often that is requested."""
        nowhere, seconds = unknown_run(harness, harness.lasting), harness.deadline_seconds
        if not capabilities_for(connector, harness.lasting.workflow).can_pause:
            await is_unsupported(connector, "pause", nowhere)
            await is_unsupported(connector, "resume", nowhere)
            return
        _, run = await start(connector, harness.lasting)
        completed, _ = await harness.ended(connector, harness.completing)

        async def is_paused(wanted: bool) -> bool:
            seen = await connector.poll(run)
            assert seen.state is RunState.RUNNING
            return seen.is_paused is wanted

        assert await is_paused(False)
        for hold, wanted in ((connector.pause, True), (connector.resume, False)):
            await accepted(partial(hold, run), seconds=seconds)
            await eventually(partial(is_paused, wanted), seconds=seconds)
            await hold(run)
            assert await is_paused(wanted)
            with pytest.raises(Rejected):
                await hold(completed)
            with pytest.raises(NotFound):
                await hold(nowhere)

    # query, signal and list_runs

    async def test_a_run_answers_a_query_or_queries_are_unsupported(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """A8.2: a run answers the queries of its workflow, and no others."""
        nowhere = unknown_run(harness, harness.lasting)
        if not capabilities_for(connector, harness.lasting.workflow).can_query:
            await is_unsupported(connector, "query", nowhere, "anything", {})
            return
        query = harness.query
        assert query is not None, "the harness must define a query"
        _, run = await start(connector, harness.lasting)
        assert await connector.query(run, query.name, query.arguments) == query.answer
        with pytest.raises((Rejected, NotFound)):
            await connector.query(run, f"not-{query.name}", {})
        with pytest.raises(NotFound):
            await connector.query(nowhere, query.name, query.arguments)

    async def test_a_run_hears_a_signal_or_signals_are_unsupported(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """A8.2: a signal arrives at its run, by the engine's own record."""
        nowhere = unknown_run(harness, harness.lasting)
        if not capabilities_for(connector, harness.lasting.workflow).can_signal:
            await is_unsupported(connector, "signal", nowhere, "anything", {})
            return
        signal = harness.signal
        assert signal is not None, "the harness must define a signal"
        _, run = await start(connector, harness.lasting)
        await connector.signal(run, signal.name, signal.arguments)
        await eventually(lambda: harness.has_heard_signal(connector, run), seconds=harness.deadline_seconds)
        with pytest.raises(NotFound):
            await connector.signal(nowhere, signal.name, signal.arguments)
        ended, _ = await harness.ended(connector, harness.completing)
        with pytest.raises((NotFound, Rejected)):
            await connector.signal(ended, signal.name, signal.arguments)

    async def test_a_run_that_asks_goes_on_with_the_answer_or_answers_are_unsupported(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """A8.2: a run tells what it waits for, and takes one answer to it."""
        asking = harness.asking
        if asking is None or not capabilities_for(connector, asking.workflow).asks_people:
            assert not connector.capabilities.asks_people, "the harness must define `asking`"
            await is_unsupported(connector, "answer", unknown_run(harness, harness.lasting), "anything", {})
            return
        with pytest.raises(NotFound):
            await connector.answer(unknown_run(harness, asking), "anything", {})
        _, run = await start(connector, asking)

        async def asked() -> Sequence[Question]:
            snapshot = await connector.poll(run)
            assert snapshot.state is RunState.RUNNING, "it must wait for the answer"
            return snapshot.questions or ()

        (question,) = await eventually(asked, seconds=harness.deadline_seconds)
        assert question.schema.get("type") == "object"
        with pytest.raises(NotFound):
            await connector.answer(run, f"not-{question.id}", dict(harness.consent))
        if harness.unfit is not None:
            with pytest.raises(Rejected):
                await connector.answer(run, question.id, dict(harness.unfit))
        assert [still.id for still in await asked()] == [question.id]
        await connector.answer(run, question.id, dict(harness.consent))
        ended = await until_ended(connector, run, seconds=harness.deadline_seconds)
        assert (ended.state, ended.questions) == (RunState.COMPLETED, ())
        with pytest.raises(NotFound):
            await connector.answer(run, question.id, dict(harness.consent))

    async def test_runs_are_listed_as_the_filter_wants_or_listing_is_unsupported(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """E10: a run is listed with its state, its workflow and its key, and left out by other filters."""
        if not connector.capabilities.can_list_runs:
            await is_unsupported(connector, "list_runs", RunFilter(), page_size=1)
            return
        run, _ = await harness.ended(connector, harness.completing)
        workflow = run.workflow.name
        completed = frozenset({RunState.COMPLETED})
        wanted = RunFilter(workflow=workflow, run=run.run_id, states=completed)

        async def listed() -> Sequence[ListedRun]:
            return (await connector.list_runs(wanted, page_size=10)).runs

        (found,) = await eventually(listed, seconds=harness.deadline_seconds)
        assert (found.run_id, found.state) == (run.run_id, RunState.COMPLETED)
        assert found.workflow in (run.workflow.name, run.workflow.id)
        assert found.key in (run.key, None)
        assert found.told_state
        others = [RunFilter(run=run.run_id, states=frozenset(RunState) - completed)]
        if (another := harness.another_workflow()) is not None:
            others.append(RunFilter(run=run.run_id, workflow=another.name))
        for other in others:
            assert not (await connector.list_runs(other, page_size=10)).runs

    async def test_runs_are_listed_in_pages_the_latest_first(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """E10: a page is no larger than requested, and its cursor leads to other runs."""
        if not connector.capabilities.can_list_runs:
            return
        for sample in (harness.completing, harness.failing):
            await harness.ended(connector, sample)

        async def several() -> RunPage | None:
            page = await connector.list_runs(RunFilter(), page_size=1)
            return page if page.next_cursor else None

        page = await eventually(several, seconds=harness.deadline_seconds)
        assert page is not None
        (latest,) = page.runs
        following = await connector.list_runs(RunFilter(), page_size=1, cursor=page.next_cursor)
        assert [run.run_id for run in following.runs] != [latest.run_id]
        over = RunFilter(states=frozenset({RunState.COMPLETED, RunState.FAILED}))
        runs = (await connector.list_runs(over, page_size=10)).runs
        started = [run.started_at for run in runs if run.started_at is not None]
        ended = [run.finished_at for run in runs if run.finished_at is not None]
        # Engines sort by one or the other.
        assert any(moments == sorted(moments, reverse=True) for moments in (started, ended))
        with pytest.raises(Rejected):
            await connector.list_runs(RunFilter(), page_size=1, cursor="the next one")

    # Every method, when the answer is missing or unusable

    async def test_a_start_without_an_answer_has_an_unknown_outcome(self, harness: EngineHarness) -> None:
        """A7.2: a timeout does not mean that nothing happened."""
        async with harness.connector_without_answers() as connector:
            with pytest.raises(OutcomeUnknown):
                await start(connector, harness.completing)

    async def test_a_poll_without_an_answer_is_unreachable(self, harness: EngineHarness) -> None:
        """A7.2: a status may be requested again at any time."""
        async with harness.connector_without_answers() as connector:
            if not connector.capabilities.keeps_runs:
                return
            with pytest.raises(Unreachable):
                await connector.poll(unknown_run(harness, harness.completing))

    async def test_an_engine_that_is_down_is_unreachable_and_nothing_was_started(
        self, harness: EngineHarness
    ) -> None:
        """A1.4, A5.1: a start that was never sent may be repeated."""
        async with closing(harness.connector_to_nothing()) as connector:
            assert not (await connector.check()).ok
            with pytest.raises(Unreachable):
                await start(connector, harness.completing)
            if connector.capabilities.lists_workflows:
                with pytest.raises(Unreachable):
                    await anext(aiter(connector.discover()))

    async def test_a_lookup_without_an_answer_never_says_that_there_is_no_run(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """A7.2: a caller that gets "none" starts the run again."""
        if not capabilities_for(connector, harness.completing.workflow).can_find_runs:
            return
        sample = harness.completing
        async with (
            harness.connector_without_answers() as mute,
            closing(harness.connector_to_nothing()) as gone,
        ):
            for unheard in (mute, gone):
                with pytest.raises(Unreachable):
                    await unheard.find_run(sample.workflow, sample.arguments, key=uuid4())

    async def test_a_start_whose_answer_is_garbage_has_an_unknown_outcome(
        self, harness: EngineHarness
    ) -> None:
        """A7.2, B6: a success that cannot be read may have started a run."""
        async with aclosing(harness.connectors_with_garbage()) as answers:
            async for name, connector in answers:
                answer = await ask(name, start, connector, harness.completing)
                assert isinstance(answer, OutcomeUnknown), f"start, answered with {name}: {answer!r}"

    async def test_a_status_that_is_garbage_is_an_invalid_answer(self, harness: EngineHarness) -> None:
        """B6: an unreadable answer is neither a state nor a Python error."""
        async with aclosing(harness.connectors_with_garbage()) as answers:
            async for name, connector in answers:
                capabilities = capabilities_for(connector, harness.lasting.workflow)
                run = unknown_run(harness, harness.lasting)
                if capabilities.keeps_runs:
                    answer = await ask(name, connector.poll, run)
                    assert_unreadable(answer, name, "poll", nothing=NotFound)
                if capabilities.can_wait:
                    answer = await ask(name, connector.wait, run, seconds=0.2)
                    assert_unreadable(answer, name, "wait", nothing=NotFound)

    async def test_a_listing_that_is_garbage_is_no_empty_listing(self, harness: EngineHarness) -> None:
        """A1.4, B6: otherwise, every workflow of the source would disappear."""
        async with aclosing(harness.connectors_with_garbage()) as answers:
            async for name, connector in answers:
                if not connector.capabilities.lists_workflows:
                    return
                answer = await ask(name, discover, connector)
                if isinstance(answer, list):
                    assert not any(isinstance(item, WorkflowDefinition) for item in answer), name
                    assert answer or name == EMPTY_LIST, f"discover, answered with {name}: no workflows"
                    continue
                assert_unreadable(answer, name, "discover")

    async def test_check_of_an_engine_that_answers_with_garbage_never_raises(
        self, harness: EngineHarness
    ) -> None:
        """B9: an engine with an unusable answer is unhealthy, with a message."""
        async with aclosing(harness.connectors_with_garbage()) as answers:
            async for name, connector in answers:
                health = await ask(name, connector.check)
                assert isinstance(health, Health), f"check, answered with {name}: {health!r}"
                assert health.message
                assert not (health.ok and name in UNREADABLE), f"check, answered with {name}: {health!r}"

    async def test_a_lookup_whose_answer_is_garbage_finds_no_run_and_denies_none(
        self, harness: EngineHarness
    ) -> None:
        """A7.2, B6: the caller would act on either answer."""
        async with aclosing(harness.connectors_with_garbage()) as answers:
            async for name, connector in answers:
                if not capabilities_for(connector, harness.completing.workflow).can_find_runs:
                    return
                sample = harness.completing
                answer = await ask(name, connector.find_run, sample.workflow, sample.arguments, key=uuid4())
                if not (answer is None and name == EMPTY_LIST):
                    assert_unreadable(answer, name, "find_run")

    async def test_a_list_of_runs_that_is_garbage_is_no_empty_list(self, harness: EngineHarness) -> None:
        """B6, E10: an operator would look for the runs elsewhere."""
        async with aclosing(harness.connectors_with_garbage()) as answers:
            async for name, connector in answers:
                if not connector.capabilities.can_list_runs:
                    return
                answer = await ask(name, connector.list_runs, RunFilter(), page_size=10)
                if not (name == EMPTY_LIST and isinstance(answer, RunPage) and not answer.runs):
                    assert_unreadable(answer, name, "list_runs")

    async def test_garbage_in_answer_to_a_command_is_no_error_of_pythons(
        self, harness: EngineHarness
    ) -> None:
        """A7.5, B6: a signal that may have been delivered is not sent again."""
        async with aclosing(harness.connectors_with_garbage()) as answers:
            async for name, connector in answers:
                capabilities = capabilities_for(connector, harness.lasting.workflow)
                run = unknown_run(harness, harness.lasting)
                await ask(name, connector.cancel, run)
                if _terminates(capabilities):
                    await ask(name, connector.terminate, run)
                for hold in (connector.pause, connector.resume) if capabilities.can_pause else ():
                    await ask(name, hold, run)
                if capabilities.can_query and (query := harness.query) is not None:
                    answer = await ask(name, connector.query, run, query.name, query.arguments)
                    assert isinstance(answer, ConnectorError) or name not in UNREADABLE, f"query: {name}"
                if capabilities.can_signal and (signal := harness.signal) is not None:
                    answer = await ask(name, connector.signal, run, signal.name, signal.arguments)
                    assert not isinstance(answer, Unreachable), f"signal, answered with {name}: {answer!r}"
                if capabilities.asks_people:
                    answer = await ask(name, connector.answer, run, "anything", {})
                    assert isinstance(answer, ConnectorError) or name not in UNREADABLE, f"answer: {name}"

    # Every method with wrong credentials, and leaks of valid ones; not for engines without credentials

    async def test_check_with_wrong_credentials_says_so_instead_of_raising(
        self, harness: EngineHarness
    ) -> None:
        """B9: an engine that refuses the credentials is unhealthy, with a message."""
        if not harness.has_credentials:
            return
        async with closing(harness.connector_with_wrong_credentials()) as intruder:
            health = await intruder.check()
        assert not health.ok
        assert health.message

    async def test_wrong_credentials_are_rejected_by_every_call(self, harness: EngineHarness) -> None:
        """A5.1, A5.2: a wrong key is distinguished from an engine that is down."""
        if not harness.has_credentials:
            return
        async with closing(harness.connector_with_wrong_credentials()) as intruder:
            await refusal_of(intruder, harness.completing)
            if intruder.capabilities.keeps_runs:
                with pytest.raises(Rejected):
                    await intruder.poll(unknown_run(harness, harness.completing))
            if intruder.capabilities.lists_workflows:
                with pytest.raises(Rejected):
                    await anext(aiter(intruder.discover()))
            sample = harness.completing
            if capabilities_for(intruder, sample.workflow).can_find_runs:
                with pytest.raises(Rejected):
                    await intruder.find_run(sample.workflow, sample.arguments, key=uuid4())

    async def test_no_secret_shows_in_errors_logs_or_reprs(
        self, connector: Connector, harness: EngineHarness, log: list[str], caplog: pytest.LogCaptureFixture
    ) -> None:
        """E6, A5.1: credentials stay out of all that people and logs see."""
        if not harness.has_credentials:
            return
        shown = [repr(connector), str(connector), repr(vars(connector))]
        async with closing(harness.connector_with_wrong_credentials()) as intruder:
            shown += [repr(await intruder.check()), await refusal_of(intruder, harness.completing)]
        async with (
            harness.connector_without_answers() as mute,
            closing(harness.connector_to_nothing()) as gone,
        ):
            for bad in (mute, gone):
                with pytest.raises(ConnectorError) as caught:
                    await start(bad, harness.completing)
                shown.append(everything_told_by(caught.value))
        shown += [repr(await harness.ended(connector, harness.completing)), *log, caplog.text]
        assert harness.secrets, "the harness must define its credentials"
        assert not [secret for secret in harness.secrets if secret in "\n".join(shown)]


async def ask(name: str, method: Callable[..., Awaitable[Any]], *given: Any, **named: Any) -> Any:
    """The method's result or ConnectorError; any other error fails the test. These connectors have short time
    limits, so a busy machine may need several tries."""
    answer: Any = None
    for _ in range(3):
        try:
            answer = await method(*given, **named)
        except ConnectorError as error:
            answer = error
        except Exception as error:
            told = f"{method.__name__}, answered with {name}: it raised {type(error).__name__}"
            raise AssertionError(f"{told}, not a ConnectorError") from error
        if name == BROKEN_OFF or not isinstance(answer, Unreachable):
            break
    return answer


def assert_unreadable(
    answer: Any, name: str, method: str, *, nothing: type[ConnectorError] = InvalidAnswer
) -> None:
    """A broken answer counts as none, and an empty list may mean that there is `nothing`."""
    allowed: tuple[type[ConnectorError], ...] = (InvalidAnswer,)
    if name == BROKEN_OFF:
        allowed = (InvalidAnswer, Unreachable)
    elif name == EMPTY_LIST:
        allowed = (InvalidAnswer, nothing)
    assert isinstance(answer, allowed), f"{method}, answered with {name}: {answer!r}"


async def discover(connector: Connector) -> list[WorkflowDefinition | RejectedDefinition]:
    return [item async for item in connector.discover()]


async def refusal_of(connector: Connector, sample: Sample) -> str:
    """The output of a start with wrong credentials: an error, or the end of a run."""
    try:
        started, _ = await start(connector, sample)
    except Rejected as error:
        return everything_told_by(error)
    assert not connector.capabilities.keeps_runs, "a start was accepted despite wrong credentials"
    assert started.snapshot is not None
    assert started.snapshot.state is RunState.FAILED
    assert started.snapshot.error
    return repr(started)
