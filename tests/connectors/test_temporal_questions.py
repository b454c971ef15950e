"""What workflows of a real Temporal server ask people, and the answers that they take."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from connectors.errors import NotFound, OutcomeUnknown, Rejected, Unreachable, Unsupported
from connectors.protocol import Question, RunRef, RunState
from connectors.temporal.connector import TemporalConnector
from connectors.testing import Sample, start, until_ended
from tests.engines.temporal.definitions import connector_to, workflow_ref
from tests.engines.temporal.proxy import gateway_to
from tests.engines.temporal.server import TemporalServer, running_worker

BY_UPDATE = {"query": "open_questions", "update": "decide"}
BY_SIGNAL = {"query": "open_questions", "signal": "hear"}


@pytest.fixture
async def connector(temporal_server: TemporalServer) -> AsyncIterator[TemporalConnector]:
    async with connector_to(temporal_server.address) as connector:
        yield connector


async def asked(
    connector: TemporalConnector, asks: dict[str, str], **arguments: Any
) -> tuple[RunRef, list[Question]]:
    _, run = await start(connector, Sample(workflow_ref("Asking", asks=asks), arguments))
    async with asyncio.timeout(15):
        while not (questions := (await connector.poll(run)).questions):  # noqa: ASYNC110 - it must be polled
            await asyncio.sleep(0.05)
    return run, list(questions)


@pytest.mark.parametrize("asks", [BY_UPDATE, BY_SIGNAL])
async def test_an_answer_that_is_sent_twice_is_taken_once(connector, asks):
    """A8.2: also by a run that lists the question a moment longer."""
    two = [{"id": "a", "message": "?"}, {"id": "b", "message": "?"}]
    run, questions = await asked(connector, asks, questions=two, keeps=True)
    assert [question.id for question in questions] == ["a", "b"]
    for question_id in "aaab":
        await connector.answer(run, question_id, {"approve": question_id == "a"})
    ended = await until_ended(connector, run)
    assert ended.output == {"answers": [{"approve": True}, {"approve": False}]}


async def test_a_refusal_is_told_in_the_runs_words_and_another_answer_is_taken(connector):
    """A8.2, E6: hostile words too."""
    run, (question,) = await asked(connector, BY_UPDATE)
    assert question.message == "Is the  tea good?"
    with pytest.raises(Rejected, match="refused the answer: Undecided: approve must be  true or false"):
        await connector.answer(run, question.id, {"approve": 1})
    told = {"approve": False, "why": '{{ 6 * 7 }} \u202e"\\'}
    await connector.answer(run, question.id, told)
    assert (await until_ended(connector, run)).output["answers"] == [told]


async def test_a_signal_takes_an_answer_and_a_run_that_has_ended_does_not(connector):
    """A8.2: Temporal takes the signal in any case, so that the run is asked first."""
    run, (question,) = await asked(connector, BY_SIGNAL)
    await connector.answer(run, question.id, {"approve": True})
    assert (await until_ended(connector, run)).output["answers"] == [{"approve": True}]
    with pytest.raises(NotFound, match="has ended"):
        await connector.answer(run, question.id, {"approve": True})
    late, (missed,) = await asked(connector, BY_SIGNAL, seconds=0.5)
    await until_ended(connector, late)
    with pytest.raises(NotFound):
        await connector.answer(late, missed.id, {"approve": True})


@pytest.mark.parametrize("asks", [BY_UPDATE, BY_SIGNAL])
async def test_a_service_that_is_silent_after_an_answer_leaves_its_outcome_unknown(temporal_server, asks):
    """A8.2: the update and the signal may have arrived."""
    with gateway_to(temporal_server.address) as gateway:
        async with connector_to(gateway.address, timeout_seconds=1.0) as connector:
            run, (question,) = await asked(connector, asks)
            gateway.swallowed = {"UpdateWorkflowExecution", "SignalWorkflowExecution"}
            with pytest.raises(OutcomeUnknown):
                await connector.answer(run, question.id, {"approve": True})


async def test_without_a_worker_what_a_run_asks_is_unknown_and_not_nothing(temporal_server):
    """A8.2: a question that is missing would count as answered."""
    with running_worker(temporal_server, task_queue="asked-queue"):
        async with connector_to(temporal_server.address) as connector:
            workflow = workflow_ref("Asking", asks=BY_UPDATE, task_queue="asked-queue")
            _, run = await start(connector, Sample(workflow, {}))
            assert (await connector.poll(run)).state is RunState.RUNNING
    async with connector_to(temporal_server.address, timeout_seconds=1.0) as connector:
        with pytest.raises(Unreachable):
            await connector.poll(run)
        with pytest.raises(Unreachable):
            await connector.answer(run, "any", {"approve": True})


async def test_a_query_that_fails_is_told_and_asks_nothing(connector):
    """A8.2: a mistake in a definition shows where somebody looks."""
    asks = {"query": "refuse", "update": "decide"}
    _, run = await start(connector, Sample(workflow_ref("Asking", asks=asks), {}))
    seen = await connector.poll(run)
    assert seen.progress_message.startswith("What it asks is unknown:")
    assert "nobody's business" in seen.progress_message and not seen.questions
    await connector.cancel(run)


async def test_workflows_that_declare_nothing_are_not_queried(temporal_server):
    """A8.2: nor do they take answers."""
    with gateway_to(temporal_server.address) as gateway:
        async with connector_to(gateway.address) as connector:
            _, run = await start(connector, Sample(workflow_ref("Lasting"), {}))
            await connector.poll(run)
            assert not connector.capabilities_for(run.workflow).asks_people
            with pytest.raises(Unsupported):
                await connector.answer(run, "any", {})
            await connector.cancel(run)
    assert gateway.seen["QueryWorkflow"] == 0
