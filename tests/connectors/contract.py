"""What every connector has to do, whatever its engine.

For a new connector write an `EngineHarness` and add it to HARNESSES in test_contract.py.
"""

import asyncio
import logging
import traceback
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import pytest
from loguru import logger

from connectors.definitions import WorkflowDefinition
from connectors.errors import (
    ConnectorError,
    NotFound,
    OutcomeUnknown,
    Rejected,
    Unreachable,
    Unsupported,
)
from connectors.protocol import Connector, RunRef, RunSnapshot, RunState, Started, WorkflowRef
from tests.connectors.scripted import ScriptedEngine, stays_silent_after
from tests.processes import free_port

DEADLINE_SECONDS = 10.0
POLL_SECONDS = 0.02


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

    @abstractmethod
    def runs_started_with(self, key: UUID) -> int:
        """How many runs the engine itself says it started for this key."""


@asynccontextmanager
async def closing(connector: Connector) -> AsyncIterator[Connector]:
    try:
        yield connector
    finally:
        await connector.aclose()


@asynccontextmanager
async def silent_engine() -> AsyncIterator[int]:
    """The port of an engine that takes every request and answers none."""
    async with ScriptedEngine(stays_silent_after()) as engine:
        yield engine.port


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


def unknown_run(sample: Sample) -> RunRef:
    return RunRef(workflow=sample.workflow, run_id=str(uuid4()), key=uuid4())


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

    def silent(self, harness: EngineHarness) -> AbstractAsyncContextManager[Connector]:
        @asynccontextmanager
        async def connected() -> AsyncIterator[Connector]:
            async with silent_engine() as port, closing(harness.connector_at(port)) as connector:
                yield connector

        return connected()

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
        names_by_id = {definition.id: definition.name for definition in found}
        for sample in (harness.completing, harness.failing, harness.lasting):
            assert names_by_id[sample.workflow.id] == sample.workflow.name

    async def test_poll_accepts_what_start_returned_and_reaches_the_result(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """A2.3, A8.4, B2: a run that was started can be followed to its output."""
        _, run = await start(connector, harness.completing)
        snapshot = await until_ended(connector, run)
        assert snapshot.state is RunState.COMPLETED
        assert snapshot.output is not None
        assert snapshot.raw
        assert snapshot.error == ""

    async def test_a_completed_run_says_when_it_ran(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """B3: the times of a run are moments in UTC, in order."""
        _, run = await start(connector, harness.completing)
        snapshot = await until_ended(connector, run)
        assert snapshot.started_at
        assert snapshot.finished_at
        assert snapshot.finished_at.utcoffset() is not None
        assert snapshot.started_at <= snapshot.finished_at

    async def test_a_failed_run_is_failed_with_the_engines_reason(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """A2.4, A7.4: a failure is told in the engine's words."""
        _, run = await start(connector, harness.failing)
        snapshot = await until_ended(connector, run)
        assert snapshot.state is RunState.FAILED
        assert harness.failure in snapshot.error

    async def test_a_run_that_goes_on_is_running(self, connector: Connector, harness: EngineHarness) -> None:
        """A8.1, A8.2: an unfinished run's status can be asked for."""
        _, run = await start(connector, harness.lasting)
        snapshot = await connector.poll(run)
        assert snapshot.state is RunState.RUNNING
        assert snapshot.finished_at is None

    async def test_cancel_ends_a_run_or_is_unsupported(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """A7.5, A8.5: a run is cancelled at the engine, or the connector says that it cannot be."""
        _, run = await start(connector, harness.lasting)
        if not connector.capabilities.can_cancel:
            with pytest.raises(Unsupported):
                await connector.cancel(run)
            return
        await connector.cancel(run)
        assert (await until_ended(connector, run)).state is RunState.CANCELLED

    async def test_a_run_that_has_ended_cannot_be_cancelled(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """A7.5: cancelling too late is refused, not ignored."""
        _, run = await start(connector, harness.completing)
        await until_ended(connector, run)
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
        with pytest.raises((NotFound, Rejected)):
            await connector.start(stranger, {}, key=uuid4())

    async def test_wrong_credentials_are_rejected_by_every_call(
        self, intruder: Connector, harness: EngineHarness
    ) -> None:
        """A5.1, A5.2: a wrong key is told apart from an engine that is down."""
        with pytest.raises(Rejected):
            await start(intruder, harness.completing)
        with pytest.raises(Rejected):
            await intruder.poll(unknown_run(harness.completing))
        with pytest.raises(Rejected):
            await anext(aiter(intruder.discover()))

    async def test_a_start_without_an_answer_has_an_unknown_outcome(self, harness: EngineHarness) -> None:
        """A7.2: a timeout does not pass for "nothing happened"."""
        async with self.silent(harness) as connector:
            with pytest.raises(OutcomeUnknown):
                await start(connector, harness.completing)

    async def test_a_poll_without_an_answer_is_unreachable(self, harness: EngineHarness) -> None:
        """A7.2: a status may be asked for again at any time."""
        async with self.silent(harness) as connector:
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
            with pytest.raises(Unreachable):
                await anext(aiter(connector.discover()))

    async def test_one_key_starts_one_run_or_nothing_is_promised(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """B3: a start sent twice makes one run, by the engine's own record, where that is declared."""
        key = uuid4()
        first, _ = await start(connector, harness.completing, key)
        second, _ = await start(connector, harness.completing, key)
        if connector.capabilities.idempotent_start:
            assert first.run_id == second.run_id
            assert harness.runs_started_with(key) == 1

    async def test_a_run_is_found_by_its_key_or_looking_it_up_is_unsupported(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """B3: a start whose answer was lost can be found out; nobody else's run is taken for it."""
        key, stranger = uuid4(), uuid4()
        started, run = await start(connector, harness.completing, key)
        if not connector.capabilities.can_find_runs:
            with pytest.raises(Unsupported):
                await connector.find_run(harness.completing.workflow, key=key)
            return
        await until_ended(connector, run)
        found = await connector.find_run(harness.completing.workflow, key=key)
        assert found is not None and found.run_id == started.run_id
        assert await connector.find_run(harness.completing.workflow, key=stranger) is None

    async def test_a_lookup_that_is_refused_or_unanswered_never_says_that_there_is_no_run(
        self, connector: Connector, intruder: Connector, harness: EngineHarness
    ) -> None:
        """A7.2: whoever hears "none" starts the run once more."""
        if not connector.capabilities.can_find_runs:
            return
        with pytest.raises(Rejected):
            await intruder.find_run(harness.completing.workflow, key=uuid4())
        async with self.silent(harness) as mute, closing(harness.connector_at(free_port())) as gone:
            for unheard in (mute, gone):
                with pytest.raises(Unreachable):
                    await unheard.find_run(harness.completing.workflow, key=uuid4())

    async def test_simultaneous_starts_with_one_key_keep_the_promise_too(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """B3: one key starts one run under a race as well, where that is declared."""
        key = uuid4()
        starts = await asyncio.gather(*(start(connector, harness.completing, key) for _ in range(5)))
        if connector.capabilities.idempotent_start:
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
        async with self.silent(harness) as mute, closing(harness.connector_at(free_port())) as gone:
            for bad in (intruder, mute, gone):
                with pytest.raises(ConnectorError) as caught:
                    await start(bad, harness.completing)
                shown.append(everything_told_by(caught.value))
        _, run = await start(connector, harness.completing)
        shown += [repr(await until_ended(connector, run)), *log, caplog.text]
        assert not [secret for secret in harness.secrets if secret in "\n".join(shown)]
