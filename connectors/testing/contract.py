"""The contract: the promises of `connectors.protocol`, as tests."""

import asyncio
import contextlib
import inspect
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from typing import Any
from uuid import uuid4

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
from connectors.protocol import Connector, Health, ListedRun, RunFilter, RunPage, RunSnapshot, RunState
from connectors.registry import objection_to
from connectors.testing.harness import (
    BROKEN_OFF,
    EMPTY_LIST,
    POLL_SECONDS,
    UNREADABLE,
    EngineHarness,
    Sample,
    accepted,
    answer_or_error,
    capabilities_of,
    closing,
    eventually,
    everything_told_by,
    is_unsupported,
    start,
    unknown_run,
    until_ended,
)

METHODS_BY_CAPABILITY = {
    "can_find_runs": "find_run",
    "can_wait": "wait",
    "terminates_after_seconds": "terminate",
    "can_query": "query",
    "can_signal": "signal",
    "can_list_runs": "list_runs",
}


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
            capabilities = capabilities_of(connector, sample)
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
        """B3: the run of a start without an answer can be found."""
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
        """B3: a run of another workflow is never returned instead."""
        another = harness.another_workflow()
        if another is None or not capabilities_of(connector, harness.completing).can_find_runs:
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
        if not capabilities_of(connector, harness.lasting).can_cancel:
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
        if capabilities_of(connector, harness.lasting).terminates_after_seconds is None:
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

    # query, signal and list_runs

    async def test_a_run_answers_a_query_or_queries_are_unsupported(
        self, connector: Connector, harness: EngineHarness
    ) -> None:
        """A8.2: a run answers the queries of its workflow, and no others."""
        nowhere = unknown_run(harness, harness.lasting)
        if not capabilities_of(connector, harness.lasting).can_query:
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
        if not capabilities_of(connector, harness.lasting).can_signal:
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
        if not capabilities_of(connector, harness.completing).can_find_runs:
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
                capabilities = capabilities_of(connector, harness.lasting)
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
                if not capabilities_of(connector, harness.completing).can_find_runs:
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
                capabilities = capabilities_of(connector, harness.lasting)
                run = unknown_run(harness, harness.lasting)
                await ask(name, connector.cancel, run)
                if capabilities.terminates_after_seconds is not None:
                    await ask(name, connector.terminate, run)
                if capabilities.can_query and (query := harness.query) is not None:
                    answer = await ask(name, connector.query, run, query.name, query.arguments)
                    assert isinstance(answer, ConnectorError) or name not in UNREADABLE, f"query: {name}"
                if capabilities.can_signal and (signal := harness.signal) is not None:
                    answer = await ask(name, connector.signal, run, signal.name, signal.arguments)
                    assert not isinstance(answer, Unreachable), f"signal, answered with {name}: {answer!r}"

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
            if capabilities_of(intruder, sample).can_find_runs:
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
    tried = 0
    while True:
        tried += 1
        answer = await answer_or_error(method(*given, **named), to=f"{method.__name__}, answered with {name}")
        if name == BROKEN_OFF or tried == 3 or not isinstance(answer, Unreachable):
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
