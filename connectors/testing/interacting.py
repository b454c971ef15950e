"""Querying, signalling and listing runs."""

from collections.abc import Sequence

import pytest

from connectors.errors import NotFound, Rejected
from connectors.protocol import Connector, ListedRun, RunFilter, RunPage, RunState
from connectors.testing.harness import (
    EngineHarness,
    capabilities_of,
    eventually,
    is_unsupported,
    start,
    unknown_run,
)


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
