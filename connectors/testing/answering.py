"""Engines that are down, silent, answer with garbage or refuse credentials, and what may show of those."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any
from uuid import uuid4

import pytest

from connectors.definitions import RejectedDefinition, WorkflowDefinition
from connectors.errors import ConnectorError, InvalidAnswer, NotFound, OutcomeUnknown, Rejected, Unreachable
from connectors.protocol import Connector, Health, RunFilter, RunPage, RunState
from connectors.testing.harness import (
    BROKEN_OFF,
    EMPTY_LIST,
    UNREADABLE,
    EngineHarness,
    Sample,
    answer_or_error,
    capabilities_of,
    closing,
    everything_told_by,
    start,
    unknown_run,
)

TRIES = 3


class Answering:
    """Every method at an engine whose answer is missing or unusable."""

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
                await connector.poll(unknown_run(harness, harness.completing))

    async def test_an_engine_that_is_down_is_unreachable_and_nothing_was_started(
        self, harness: EngineHarness
    ) -> None:
        """A1.4, A5.1: a start that never left may be repeated."""
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
        """A7.2: a caller that gets "none" starts the run once more."""
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
        async with aclosing(bad_answers(harness)) as answers:
            async for name, connector in answers:
                answer = await ask(name, start, connector, harness.completing)
                assert isinstance(answer, OutcomeUnknown), f"start, answered with {name}: {answer!r}"

    async def test_a_status_that_is_garbage_is_an_invalid_answer(self, harness: EngineHarness) -> None:
        """B6: what cannot be read is neither a state nor an error of Python's."""
        async with aclosing(bad_answers(harness)) as answers:
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
        """A1.4, B6: else every workflow of the source would be gone."""
        async with aclosing(bad_answers(harness)) as answers:
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
        """B9: an engine whose answer means nothing is unhealthy, in words."""
        async with aclosing(bad_answers(harness)) as answers:
            async for name, connector in answers:
                health = await ask(name, connector.check)
                assert isinstance(health, Health), f"check, answered with {name}: {health!r}"
                assert health.message
                assert not (health.ok and name in UNREADABLE), f"check, answered with {name}: {health!r}"

    async def test_a_lookup_whose_answer_is_garbage_finds_no_run_and_denies_none(
        self, harness: EngineHarness
    ) -> None:
        """A7.2, B6: both answers would be believed."""
        async with aclosing(bad_answers(harness)) as answers:
            async for name, connector in answers:
                if not capabilities_of(connector, harness.completing).can_find_runs:
                    return
                sample = harness.completing
                answer = await ask(name, connector.find_run, sample.workflow, sample.arguments, key=uuid4())
                if not (answer is None and name == EMPTY_LIST):
                    assert_unreadable(answer, name, "find_run")

    async def test_a_list_of_runs_that_is_garbage_is_no_empty_list(self, harness: EngineHarness) -> None:
        """B6, E10: an operator would look for the runs elsewhere."""
        async with aclosing(bad_answers(harness)) as answers:
            async for name, connector in answers:
                if not connector.capabilities.can_list_runs:
                    return
                answer = await ask(name, connector.list_runs, RunFilter(), page_size=10)
                if not (name == EMPTY_LIST and isinstance(answer, RunPage) and not answer.runs):
                    assert_unreadable(answer, name, "list_runs")

    async def test_garbage_in_answer_to_a_command_is_no_error_of_pythons(
        self, harness: EngineHarness
    ) -> None:
        """A7.5, B6: a signal that may have been heard is not sent again."""
        async with aclosing(bad_answers(harness)) as answers:
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


async def bad_answers(harness: EngineHarness) -> AsyncGenerator[tuple[str, Connector]]:
    """Yields nothing if the harness has no garbage."""
    if not harness.garbage:
        return
    async with aclosing(harness.connectors_with_garbage()) as answers:
        async for name, connector in answers:
            yield name, connector


async def ask(name: str, method: Callable[..., Awaitable[Any]], *given: Any, **named: Any) -> Any:
    """The method's result or ConnectorError; any other error fails the test.

    These connectors have short time limits, so a busy machine may need several tries.
    """
    tried = 0
    while True:
        tried += 1
        answer = await answer_or_error(method(*given, **named), to=f"{method.__name__}, answered with {name}")
        if name == BROKEN_OFF or tried == TRIES or not isinstance(answer, Unreachable):
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


class Credentials:
    """Every method with wrong credentials, and all output with right ones.

    An engine without credentials (`has_credentials`) has nothing to refuse or hide.
    """

    async def test_check_with_wrong_credentials_says_so_instead_of_raising(
        self, harness: EngineHarness
    ) -> None:
        """B9: an engine that refuses us is unhealthy, in words."""
        if not harness.has_credentials:
            return
        async with closing(harness.connector_with_wrong_credentials()) as intruder:
            health = await intruder.check()
        assert not health.ok
        assert health.message

    async def test_wrong_credentials_are_rejected_by_every_call(self, harness: EngineHarness) -> None:
        """A5.1, A5.2: a wrong key is told apart from an engine that is down."""
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
        assert harness.secrets, "the harness has to name its credentials"
        assert not [secret for secret in harness.secrets if secret in "\n".join(shown)]


async def refusal_of(connector: Connector, sample: Sample) -> str:
    """The output of a start with wrong credentials: an error, or the end of a run."""
    try:
        started, _ = await start(connector, sample)
    except Rejected as error:
        return everything_told_by(error)
    assert not connector.capabilities.keeps_runs, "a start was taken in spite of wrong credentials"
    assert started.snapshot is not None
    assert started.snapshot.state is RunState.FAILED
    assert started.snapshot.error
    return repr(started)
