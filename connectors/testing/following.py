"""A run on its way to its end."""

import pytest

from connectors.errors import NotFound
from connectors.protocol import Connector, RunState
from connectors.testing.harness import EngineHarness, capabilities_of, is_unsupported, start, unknown_run


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
