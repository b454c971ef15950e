"""Starting, finding and following runs, querying and signalling them, and listing those of the engine."""

import asyncio
from collections.abc import Sequence
from uuid import uuid4

import pytest

from connectors.errors import Misconfigured, NotFound, Rejected, Unsupported
from connectors.protocol import Connector, ListedRun, RunFilter, RunPage, RunSnapshot, RunState
from connectors.testing.harness import (
    POLL_SECONDS,
    EngineHarness,
    capabilities_of,
    eventually,
    is_unsupported,
    start,
    unknown_run,
    until_ended,
)


class Starting:
    """`start` and `find_run` at a good engine."""

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
        if not capabilities_of(connector, harness.completing).idempotent_start:
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
        if not capabilities_of(connector, harness.completing).idempotent_start:
            return
        key = uuid4()
        starts = await asyncio.gather(*(start(connector, harness.completing, key) for _ in range(5)))
        assert len({started.run_id for started, _ in starts}) == 1
        assert harness.runs_started_with(key) == 1

    async def test_different_keys_start_different_runs(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """B3: a run belongs to the call that it was started for."""
        if capabilities_of(connector, harness.completing).cancellable_start:
            # The answer is the result, so that the run's id does not matter.
            return
        (first, _), (second, _) = [await start(connector, harness.completing) for _ in range(2)]
        assert first.run_id != second.run_id

    async def test_a_run_is_found_by_its_key_or_looking_it_up_is_unsupported(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """B3: a start whose answer was lost can be found out."""
        workflow, arguments = harness.completing.workflow, harness.completing.arguments
        if not capabilities_of(connector, harness.completing).can_find_runs:
            await is_unsupported(connector, "find_run", workflow, arguments, key=uuid4())
            return
        run, _ = await harness.ended(connector, harness.completing)
        found = await connector.find_run(workflow, arguments, key=run.key)
        assert found is not None and found.run_id == run.run_id
        assert await connector.find_run(workflow, arguments, key=uuid4()) is None

    async def test_the_key_of_another_workflows_run_finds_nothing(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """B3: no other workflow's run is taken for the one that was looked for."""
        another = harness.another_workflow()
        if another is None or not capabilities_of(connector, harness.completing).can_find_runs:
            return
        run, _ = await harness.ended(connector, harness.completing)
        assert await connector.find_run(another, harness.completing.arguments, key=run.key) is None


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


class Interacting:
    """`query`, `signal` and `list_runs` at a good engine."""

    async def test_a_run_answers_a_query_or_queries_are_unsupported(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """A8.2: a run answers what its workflow lets itself be asked, and nothing else."""
        nowhere = unknown_run(harness, harness.lasting)
        if not capabilities_of(connector, harness.lasting).can_query:
            await is_unsupported(connector, "query", nowhere, "anything", {})
            return
        query = harness.query
        assert query is not None, "the harness has to name a query"
        _, run = await start(connector, harness.lasting)
        assert await connector.query(run, query.name, query.arguments) == query.answer
        with pytest.raises((Rejected, NotFound)):
            await connector.query(run, f"not-{query.name}", {})
        with pytest.raises(NotFound):
            await connector.query(nowhere, query.name, query.arguments)

    async def test_a_run_hears_a_signal_or_signals_are_unsupported(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """A8.2: a signal arrives at its run, by the engine's own word."""
        nowhere = unknown_run(harness, harness.lasting)
        if not capabilities_of(connector, harness.lasting).can_signal:
            await is_unsupported(connector, "signal", nowhere, "anything", {})
            return
        signal = harness.signal
        assert signal is not None, "the harness has to name a signal"
        _, run = await start(connector, harness.lasting)
        await connector.signal(run, signal.name, signal.arguments)
        await eventually(lambda: harness.has_heard_signal(connector, run), seconds=harness.deadline_seconds)
        with pytest.raises(NotFound):
            await connector.signal(nowhere, signal.name, signal.arguments)
        ended, _ = await harness.ended(connector, harness.completing)
        with pytest.raises((NotFound, Rejected)):
            await connector.signal(ended, signal.name, signal.arguments)

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
        """E10: a page is no larger than asked for, and its cursor leads on to other runs."""
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
        begun = [run.started_at for run in runs if run.started_at is not None]
        ended = [run.finished_at for run in runs if run.finished_at is not None]
        # Engines go by the one or the other.
        assert any(moments == sorted(moments, reverse=True) for moments in (begun, ended))
        with pytest.raises(Rejected):
            await connector.list_runs(RunFilter(), page_size=1, cursor="the next one")
