"""A run on its way to its end, and ending it before it ends by itself."""

import asyncio
from uuid import uuid4

import pytest

from connectors.errors import NotFound, Rejected, Unsupported
from connectors.protocol import Connector, RunSnapshot, RunState
from connectors.testing.harness import (
    POLL_SECONDS,
    EngineHarness,
    capabilities_of,
    is_unsupported,
    start,
    unknown_run,
    until_ended,
)


class Following:
    """`poll` and `wait` at a good engine."""

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
        started, run = await start(connector, harness.lasting)
        assert started.snapshot is None or started.snapshot.state is RunState.RUNNING
        snapshot = await connector.poll(run)
        assert snapshot.state is RunState.RUNNING
        assert snapshot.finished_at is None

    async def test_waiting_ends_with_the_run_or_when_the_time_is_up(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """A7.1: an engine that says by itself that a run has ended need not be asked again and again."""
        if not capabilities_of(connector, harness.lasting).can_wait:
            await is_unsupported(connector, "wait", unknown_run(harness, harness.lasting), seconds=0.1)
            return
        _, run = await start(connector, harness.completing)
        assert (await connector.wait(run, seconds=harness.deadline_seconds)).state is RunState.COMPLETED
        _, lasting = await start(connector, harness.lasting)
        assert (await connector.wait(lasting, seconds=0.1)).state is RunState.RUNNING
        with pytest.raises(NotFound):
            await connector.wait(unknown_run(harness, harness.lasting), seconds=0.1)

    async def test_an_unknown_run_is_not_found(self, connector: Connector, harness: EngineHarness) -> None:
        """A8.1: asking for a run that the engine does not know is an error of its own."""
        with pytest.raises(NotFound):
            await connector.poll(unknown_run(harness, harness.lasting))


class Ending:
    """`cancel`, `terminate`, and breaking off a start that lasts as long as its run."""

    async def test_a_start_that_lasts_tells_how_far_it_is_and_ends_at_the_engine_when_it_is_broken_off(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """A7.5, A8.2: where the answer to a start is the result, to wait for it no longer ends the run."""
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
            while harness.starts_broken_off() == before:  # noqa: ASYNC110 - the engine tells only who asks
                await asyncio.sleep(POLL_SECONDS)
        assert {snapshot.state for snapshot in reported} <= {RunState.RUNNING}
        assert all(snapshot.progress is not None or snapshot.progress_message for snapshot in reported)

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
        """A7.5: a run that does not follow its cancellation can be ended, if the connector says so."""
        if capabilities_of(connector, harness.lasting).terminates_after_seconds is None:
            await is_unsupported(connector, "terminate", unknown_run(harness, harness.lasting))
            return
        _, run = await start(connector, harness.lasting)
        await connector.terminate(run)
        ended = await until_ended(connector, run, seconds=harness.deadline_seconds)
        assert ended.state in (RunState.CANCELLED, RunState.FAILED)
        with pytest.raises(Rejected):
            await connector.terminate(run)
        with pytest.raises(NotFound):
            await connector.terminate(unknown_run(harness, harness.lasting))
