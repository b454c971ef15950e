"""What every connector has to do, whatever its engine: tests to subclass, also for other packages.

Write an `EngineHarness` for the engine, and a subclass of `ConnectorContract` with a fixture `harness`. It
takes pytest with pytest-asyncio in its mode "auto".
"""

import asyncio
import itertools
import logging
import os
import socket
import traceback
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import pytest
from loguru import logger

from connectors.definitions import WorkflowDefinition
from connectors.errors import (
    ConnectorError,
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
    RunRef,
    RunSnapshot,
    RunState,
    Started,
    WorkflowRef,
    capabilities_for,
)

DEADLINE_SECONDS = 10.0
POLL_SECONDS = 0.02
WORKERS = 16
PORTS = range(
    20_000 + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % WORKERS, 30_000, WORKERS
)
"""Each of pytest's workers has its own, and none are of those that the system itself gives out."""
_turns = itertools.count(os.getpid())


@dataclass(frozen=True)
class Sample:
    """A workflow of the engine, with arguments that it accepts."""

    workflow: WorkflowRef
    arguments: dict[str, Any]


class EngineHarness(ABC):
    """A real engine, and connectors to it and to worse ones."""

    completing: Sample
    """Ends soon, with an output."""
    failing: Sample
    """Ends soon, with a reason that contains `failure`."""
    failure: str
    lasting: Sample
    """Runs longer than any test."""
    secrets: frozenset[str]
    """Every credential that the connectors made here carry."""

    @abstractmethod
    def connector(self) -> Connector:
        """A connector to the real engine."""

    @abstractmethod
    def connector_with_wrong_credentials(self) -> Connector: ...

    @abstractmethod
    def connector_at(self, port: int) -> Connector:
        """A connector to another engine on this machine, patient for a fraction of a second."""

    @asynccontextmanager
    async def connector_without_answers(self) -> AsyncIterator[Connector]:
        """A connector whose start reaches an engine that never answers it, nor anything else."""
        async with silent_engine() as port, closing(self.connector_at(port)) as connector:
            yield connector

    @abstractmethod
    def runs_started_with(self, key: UUID) -> int:
        """How many runs the engine itself says it started for this key."""

    async def ended(self, connector: Connector, sample: Sample) -> tuple[RunRef, RunSnapshot]:
        """A run that has come to its end; where each costs seconds, one that earlier tests have seen."""
        started, run = await start(connector, sample)
        return run, await outcome(connector, started, run)

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


@asynccontextmanager
async def closing(connector: Connector) -> AsyncIterator[Connector]:
    try:
        yield connector
    finally:
        await connector.aclose()


@asynccontextmanager
async def silent_engine() -> AsyncIterator[int]:
    """The port of an engine that takes every request and answers none."""
    open_ones: set[asyncio.StreamWriter] = set()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_ones.add(writer)
        with suppress(ConnectionError):
            while await reader.read(65_536):
                pass

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in open_ones:
            writer.transport.abort()


def free_port() -> int:
    """A port of this machine on which nobody listens, and that nobody else is given before it is used."""
    for turn in itertools.islice(_turns, len(PORTS)):
        port = PORTS[turn % len(PORTS)]
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
    raise RuntimeError(f"Every port from {PORTS[0]} to {PORTS[-1]} is taken.")


def capabilities_of(connector: Connector, sample: Sample) -> Capabilities:
    return capabilities_for(connector, sample.workflow)


async def start(connector: Connector, sample: Sample, key: UUID | None = None) -> tuple[Started, RunRef]:
    key = key or uuid4()
    started = await connector.start(sample.workflow, sample.arguments, key=key)
    return started, RunRef(workflow=sample.workflow, run_id=started.run_id, key=key)


async def until_ended(connector: Connector, run: RunRef) -> RunSnapshot:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            if (snapshot := await connector.poll(run)).state is not RunState.RUNNING:
                return snapshot
            await asyncio.sleep(POLL_SECONDS)


async def outcome(connector: Connector, started: Started, run: RunRef) -> RunSnapshot:
    """How the run ended: as the answer to its start tells where that is the result, otherwise by polling."""
    told = started.snapshot
    capabilities = capabilities_for(connector, run.workflow)
    is_result = capabilities.starts_can_be_broken_off or not capabilities.keeps_runs
    if is_result and told is not None and told.state is not RunState.RUNNING:
        return told
    return await until_ended(connector, run)


def unknown_run(sample: Sample) -> RunRef:
    return RunRef(workflow=sample.workflow, run_id=str(uuid4()), key=uuid4())


async def refusal_of(connector: Connector, sample: Sample) -> str:
    """All that is told of a start with wrong credentials: an error, or the end of a run that nobody keeps."""
    try:
        started, _ = await start(connector, sample)
    except Rejected as error:
        return everything_told_by(error)
    assert not connector.capabilities.keeps_runs, "a start was taken in spite of wrong credentials"
    assert started.snapshot is not None
    assert started.snapshot.state is RunState.FAILED
    assert started.snapshot.error
    return repr(started)


def everything_told_by(error: BaseException) -> str:
    """All that a log or an admin page could show of an error and of what led to it."""
    told = "".join(traceback.format_exception(error))
    link: BaseException | None = error
    while link is not None:
        told += f"{link} {link!r} {vars(link)}"
        link = link.__cause__ or link.__context__
    return told


class ConnectorContract:
    """Subclass and provide the fixture `harness`."""

    @pytest.fixture
    async def connector(self, harness: EngineHarness) -> AsyncIterator[Connector]:
        async with closing(harness.connector()) as connector:
            yield connector

    @pytest.fixture
    async def intruder(self, harness: EngineHarness) -> AsyncIterator[Connector]:
        async with closing(harness.connector_with_wrong_credentials()) as connector:
            yield connector

    @pytest.fixture
    def log(self, caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
        """All that our code (loguru) and the libraries below it (logging) write, at every level."""
        caplog.set_level(logging.DEBUG)
        lines: list[str] = []
        sink = logger.add(lines.append, level=0, diagnose=False)
        yield lines
        logger.remove(sink)

    async def test_check_of_a_good_engine_is_ok_and_timed(self, connector: Connector) -> None:
        """B9: the engine's health can be asked for."""
        health = await connector.check()
        assert health.ok
        assert health.message
        assert (health.latency_seconds or 0) > 0

    async def test_check_with_wrong_credentials_says_so_instead_of_raising(self, intruder: Connector) -> None:
        """B9: an engine that refuses us is unhealthy, in words."""
        health = await intruder.check()
        assert not health.ok
        assert health.message

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
            assert names_by_id[sample.workflow.id] == sample.workflow.name

    async def test_poll_accepts_what_start_returned_and_reaches_the_result(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """A2.3, A8.4, B2: a run that was started can be followed to its output."""
        _, snapshot = await harness.ended(connector, harness.completing)
        assert snapshot.state is RunState.COMPLETED
        assert snapshot.output is not None
        assert snapshot.raw
        assert snapshot.error == ""

    async def test_a_completed_run_says_when_it_ran(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """B3: the times of a run are moments in UTC, in order."""
        _, snapshot = await harness.ended(connector, harness.completing)
        assert snapshot.started_at
        assert snapshot.finished_at
        assert snapshot.finished_at.utcoffset() is not None
        assert snapshot.started_at <= snapshot.finished_at

    async def test_a_failed_run_is_failed_with_the_engines_reason(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """A2.4, A7.4: a failure is told in the engine's words."""
        _, snapshot = await harness.ended(connector, harness.failing)
        assert snapshot.state is RunState.FAILED
        assert harness.failure in snapshot.error

    async def test_a_run_that_goes_on_is_running(self, connector: Connector, harness: EngineHarness) -> None:
        """A8.1, A8.2: an unfinished run's status can be asked for."""
        if harness.starts_last(connector):
            return
        _, run = await start(connector, harness.lasting)
        snapshot = await connector.poll(run)
        assert snapshot.state is RunState.RUNNING
        assert snapshot.finished_at is None

    async def test_a_start_that_lasts_tells_how_far_it_is_and_ends_at_the_engine_when_it_is_broken_off(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """A7.5, A8.2: where the answer to a start is the result, to wait for it no longer ends the run."""
        if not harness.starts_last(connector):
            return
        told: list[RunSnapshot] = []
        heard = asyncio.Event()

        def report(snapshot: RunSnapshot) -> None:
            told.append(snapshot)
            heard.set()

        before = harness.starts_broken_off()
        lasting = asyncio.create_task(
            connector.start(harness.lasting.workflow, harness.lasting.arguments, key=uuid4(), report=report)
        )
        async with asyncio.timeout(DEADLINE_SECONDS):
            await harness.lasting_has_begun(heard)
            lasting.cancel()
            await asyncio.wait({lasting})
            while harness.starts_broken_off() == before:  # noqa: ASYNC110 - the engine tells only who asks
                await asyncio.sleep(POLL_SECONDS)
        assert {snapshot.state for snapshot in told} <= {RunState.RUNNING}
        assert all(snapshot.progress is not None or snapshot.progress_message for snapshot in told)

    async def test_waiting_ends_with_the_run_or_when_the_time_is_up(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """A7.1: where an engine says by itself that a run has ended, nobody has to ask again and again."""
        if not capabilities_of(connector, harness.lasting).can_wait:
            return
        _, run = await start(connector, harness.completing)
        assert (await connector.wait(run, seconds=DEADLINE_SECONDS)).state is RunState.COMPLETED
        _, lasting = await start(connector, harness.lasting)
        assert (await connector.wait(lasting, seconds=0.1)).state is RunState.RUNNING
        with pytest.raises(NotFound):
            await connector.wait(unknown_run(harness.lasting), seconds=0.1)

    async def test_cancel_ends_a_run_or_is_unsupported(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """A7.5, A8.5: a run is cancelled at the engine, or the connector says that it cannot be."""
        if harness.starts_last(connector):
            return
        _, run = await start(connector, harness.lasting)
        if not capabilities_of(connector, harness.lasting).can_cancel:
            with pytest.raises(Unsupported):
                await connector.cancel(run)
            return
        await connector.cancel(run)
        assert (await until_ended(connector, run)).state is RunState.CANCELLED

    async def test_a_run_that_has_ended_cannot_be_cancelled(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """A7.5: cancelling too late is refused, not ignored."""
        run, _ = await harness.ended(connector, harness.completing)
        with pytest.raises((Rejected, Unsupported)):
            await connector.cancel(run)

    async def test_an_unknown_run_is_not_found(self, connector: Connector, harness: EngineHarness) -> None:
        """A8.1: asking for a run that the engine does not know is an error of its own."""
        with pytest.raises(NotFound):
            await connector.poll(unknown_run(harness.lasting))
        with pytest.raises((NotFound, Unsupported)):
            await connector.cancel(unknown_run(harness.lasting))

    async def test_an_unknown_workflow_cannot_be_started(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """A2.4: the engine's refusal reaches the caller."""
        stranger = WorkflowRef(id="no-such-workflow", name="no such workflow")
        # Where workflows are declared here, one without a declaration is a mistake of ours.
        undeclared = () if connector.capabilities.lists_workflows else (Misconfigured,)
        with pytest.raises((NotFound, Rejected, *undeclared)):
            await connector.start(stranger, {}, key=uuid4())

    async def test_wrong_credentials_are_rejected_by_every_call(
        self, intruder: Connector, harness: EngineHarness
    ) -> None:
        """A5.1, A5.2: a wrong key is told apart from an engine that is down."""
        await refusal_of(intruder, harness.completing)
        if intruder.capabilities.keeps_runs:
            with pytest.raises(Rejected):
                await intruder.poll(unknown_run(harness.completing))
        if intruder.capabilities.lists_workflows:
            with pytest.raises(Rejected):
                await anext(aiter(intruder.discover()))

    async def test_a_start_without_an_answer_has_an_unknown_outcome(self, harness: EngineHarness) -> None:
        """A7.2: a timeout does not pass for "nothing happened"."""
        async with harness.connector_without_answers() as connector:
            with pytest.raises(OutcomeUnknown):
                await start(connector, harness.completing)

    async def test_a_poll_without_an_answer_is_unreachable(self, harness: EngineHarness) -> None:
        """A7.2: a status may be asked for again at any time."""
        async with harness.connector_without_answers() as connector:
            if not connector.capabilities.keeps_runs:
                return
            with pytest.raises(Unreachable):
                await connector.poll(unknown_run(harness.completing))

    async def test_an_engine_that_is_down_is_unreachable_and_nothing_was_started(
        self, harness: EngineHarness
    ) -> None:
        """A1.4, A5.1: a start that never left may be repeated."""
        async with closing(harness.connector_at(free_port())) as connector:
            assert not (await connector.check()).ok
            with pytest.raises(Unreachable):
                await start(connector, harness.completing)
            if connector.capabilities.lists_workflows:
                with pytest.raises(Unreachable):
                    await anext(aiter(connector.discover()))

    async def test_one_key_starts_one_run_or_nothing_is_promised(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """B3: a start sent twice makes one run, by the engine's own record, where that is declared."""
        key = uuid4()
        first, _ = await start(connector, harness.completing, key)
        second, _ = await start(connector, harness.completing, key)
        if capabilities_of(connector, harness.completing).idempotent_start:
            assert first.run_id == second.run_id
            assert harness.runs_started_with(key) == 1

    async def test_a_run_is_found_by_its_key_or_looking_it_up_is_unsupported(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """B3: a start whose answer was lost can be found out; nobody else's run is taken for it."""
        if not capabilities_of(connector, harness.completing).can_find_runs:
            if hasattr(connector, "find_run"):
                with pytest.raises(Unsupported):
                    await connector.find_run(harness.completing.workflow, key=uuid4())
            return
        run, _ = await harness.ended(connector, harness.completing)
        found = await connector.find_run(harness.completing.workflow, key=run.key)
        assert found is not None and found.run_id == run.run_id
        assert await connector.find_run(harness.completing.workflow, key=uuid4()) is None

    async def test_a_lookup_that_is_refused_or_unanswered_never_says_that_there_is_no_run(
        self, connector: Connector, intruder: Connector, harness: EngineHarness
    ) -> None:
        """A7.2: whoever hears "none" starts the run once more."""
        if not capabilities_of(connector, harness.completing).can_find_runs:
            return
        with pytest.raises(Rejected):
            await intruder.find_run(harness.completing.workflow, key=uuid4())
        async with (
            harness.connector_without_answers() as mute,
            closing(harness.connector_at(free_port())) as gone,
        ):
            for unheard in (mute, gone):
                with pytest.raises(Unreachable):
                    await unheard.find_run(harness.completing.workflow, key=uuid4())

    async def test_simultaneous_starts_with_one_key_keep_the_promise_too(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """B3: one key starts one run under a race as well, where that is declared."""
        key = uuid4()
        starts = await asyncio.gather(*(start(connector, harness.completing, key) for _ in range(5)))
        if capabilities_of(connector, harness.completing).idempotent_start:
            assert len({started.run_id for started, _ in starts}) == 1
            assert harness.runs_started_with(key) == 1

    async def test_no_secret_shows_in_errors_logs_or_reprs(
        self,
        connector: Connector,
        intruder: Connector,
        harness: EngineHarness,
        log: list[str],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """E6, A5.1: credentials stay out of all that people and logs see."""
        shown = [repr(connector), str(connector), repr(vars(connector)), repr(await intruder.check())]
        shown.append(await refusal_of(intruder, harness.completing))
        async with (
            harness.connector_without_answers() as mute,
            closing(harness.connector_at(free_port())) as gone,
        ):
            for bad in (mute, gone):
                with pytest.raises(ConnectorError) as caught:
                    await start(bad, harness.completing)
                shown.append(everything_told_by(caught.value))
        shown += [repr(await harness.ended(connector, harness.completing)), *log, caplog.text]
        assert not [secret for secret in harness.secrets if secret in "\n".join(shown)]
