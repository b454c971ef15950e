"""Ending a run before it ends by itself."""

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


class Ending:
    """`cancel`, `terminate`, and breaking off a start that lasts as long as its run."""

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
        async with asyncio.timeout(harness.deadline_seconds):
            await harness.lasting_has_begun(heard)
            lasting.cancel()
            await asyncio.wait({lasting})
            while harness.starts_broken_off() == before:  # noqa: ASYNC110 - the engine tells only who asks
                await asyncio.sleep(POLL_SECONDS)
        assert {snapshot.state for snapshot in told} <= {RunState.RUNNING}
        assert all(snapshot.progress is not None or snapshot.progress_message for snapshot in told)

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
