"""Asking and telling runs something: who may, when, and what the record says of it."""

import asyncio
from typing import Any

import pytest

from access.callers import Caller
from catalogue.models import Workflow
from connectors.errors import InvalidAnswer, Misconfigured, NotFound, OutcomeUnknown, Rejected, Unreachable
from connectors.protocol import Capabilities
from executions.interacting import (
    EngineRefused,
    EngineUnavailable,
    InteractionRefused,
    NotNow,
    NotSupported,
    SignalUncertain,
    UnfitArguments,
    UnknownInteraction,
    query_execution,
    signal_execution,
)
from executions.models import Execution, State
from executions.reading import UnknownExecution, describe_execution, find_execution
from tests.executions.engines import until
from tests.executions.steps import ADMIN, ALICE, BOB, in_database, timeline, told
from tests.executions.talkative import review, talker
from tests.factories import make_execution

__all__ = ["review", "talker"]

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def running(review: Workflow) -> Execution:
    return execution_of(review, State.RUNNING)


def execution_of(workflow: Workflow | None, state: State, **fields: Any) -> Execution:
    fields = {"run_id": "run-1", "caller": ALICE.key, "caller_name": ALICE.name} | fields
    return make_execution(workflow, state=state, **fields)


async def ask(execution: Execution, name: str, arguments: Any = None, caller: Caller = ALICE) -> Any:
    return (await query_execution(str(execution.pk), name, arguments or {}, caller=caller)).value


async def tell(execution: Execution, name: str, arguments: Any = None, caller: Caller = ALICE) -> None:
    await signal_execution(str(execution.pk), name, arguments or {}, caller=caller)


async def test_a_query_is_answered_by_the_run_and_leaves_no_trace_in_the_record(running, talker):
    """E10."""
    before = await in_database(timeline, running)
    talker.answer = {"percent": 40}
    assert await ask(running, "progress") == {"percent": 40}
    assert await ask(running, "count", {"text": "tea"}) == {"percent": 40}
    assert talker.heard == [("run-1", "progress", {}), ("run-1", "count", {"text": "tea"})]
    assert await in_database(timeline, running) == before


@pytest.mark.databases("executions.interacting")
async def test_a_signal_reaches_the_run_and_the_timeline_says_who_sent_it(running, talker):
    """E10."""
    await tell(running, "approve", {"text": "yes, secretly"})
    assert talker.heard == [("run-1", "approve", {"text": "yes, secretly"})]
    assert await in_database(told, running, "signalled") == ["Alice sent approve."]


@pytest.mark.parametrize("talk", [ask, tell])
async def test_only_who_started_a_run_and_administrators_can_talk_to_it(running, talker, talk):
    """E10: whether there is such an execution is not told either."""
    name, arguments = ("count" if talk is ask else "approve"), {"text": "tea"}
    with pytest.raises(UnknownExecution):
        await talk(running, name, arguments, BOB)
    assert talker.heard == []
    await talk(running, name, arguments, ADMIN)
    assert len(talker.heard) == 1


@pytest.mark.parametrize("talk", [query_execution, signal_execution])
@pytest.mark.parametrize("execution_id", ["8f496b6a-c905-41bb-b7b7-200a8982ab30", "no id", ""])
async def test_an_execution_that_does_not_exist_is_unknown(talker, talk, execution_id):
    """E10."""
    with pytest.raises(UnknownExecution):
        await talk(execution_id, "progress", {}, caller=ALICE)


async def test_names_that_the_workflow_does_not_declare_never_reach_the_engine(running, talker):
    """E10: built-in queries of an engine, such as its stack traces, are none of a caller's business."""
    for name in ("approve", "__stack_trace", "", "x" * 10_000):
        with pytest.raises(UnknownInteraction, match="It has progress, count"):
            await ask(running, name)
    with pytest.raises(UnknownInteraction, match=r"no signal 'progress'\. It has approve"):
        await tell(running, "progress")
    with pytest.raises(UnknownInteraction, match="Did you mean progress"):
        await ask(running, "progess")
    assert talker.heard == []


async def test_arguments_are_checked_before_the_engine_is_asked(running, talker):
    """E5, E10: with every offending path."""
    with pytest.raises(UnfitArguments) as wrong:
        await ask(running, "count", {"text": 3, "colour": "red"})
    assert {problem.path for problem in wrong.value.problems} == {"/text", "/colour"}
    with pytest.raises(UnfitArguments):
        await tell(running, "approve")
    with pytest.raises(UnfitArguments, match="no such argument"):
        await ask(running, "progress", {"colour": "red"})
    with pytest.raises(UnfitArguments):
        await ask(running, "count", {"text": float("nan")})
    assert talker.heard == []


NOT_RUNNING: dict[str, tuple[State, dict[str, Any], str]] = {
    "queued": (State.PENDING, {"run_id": "", "admitted_at": None}, "waits in the queue"),
    "pending": (State.PENDING, {"run_id": ""}, "try again in a moment"),
    "starting": (State.STARTING, {"run_id": ""}, "try again in a moment"),
    "unconfirmed": (State.UNCONFIRMED, {"run_id": ""}, "administrator must find out"),
    "never ran": (State.FAILED, {"run_id": ""}, "and never ran"),
}


@pytest.mark.parametrize("case", NOT_RUNNING)
async def test_without_a_run_there_is_nobody_to_talk_to(review, talker, case):
    """E10."""
    state, fields, words = NOT_RUNNING[case]
    execution = await in_database(execution_of, review, state, **fields)
    if case == "queued":
        await in_database(Execution.objects.filter(pk=execution.pk).update, admitted_at=None)
    for talk, name in ((ask, "progress"), (tell, "approve")):
        with pytest.raises(NotNow, match=words):
            await talk(execution, name, {} if talk is ask else {"text": "yes"})
    assert talker.heard == []


async def test_what_a_cached_result_answered_has_no_run(review, talker):
    """E4, E10."""
    execution = await in_database(execution_of, review, State.COMPLETED, run_id="")
    await in_database(Execution.objects.filter(pk=execution.pk).update, cached_at=execution.created_at)
    with pytest.raises(NotNow, match="from the result cache"):
        await ask(execution, "progress")


@pytest.mark.parametrize("state", [State.COMPLETED, State.FAILED, State.CANCELLED, State.TIMED_OUT])
async def test_an_ended_run_can_still_be_asked_but_not_told(review, talker, state):
    """E10."""
    ended = await in_database(execution_of, review, state)
    assert await ask(ended, "progress") == 42
    with pytest.raises(NotNow, match=f"It is {state.label} and no longer accepts signals"):
        await tell(ended, "approve", {"text": "yes"})
    assert len(talker.heard) == 1


async def test_a_run_whose_workflow_was_deleted_cannot_be_reached(running):
    """E10."""
    await in_database(Workflow.objects.all().delete)
    with pytest.raises(NotNow, match="was deleted"):
        await ask(running, "progress")


async def test_an_engine_that_cannot_do_it_is_said_to_be_unable(running, talker):
    """A8.5."""
    talker.capabilities = Capabilities(can_signal=True)
    with pytest.raises(
        NotSupported, match="Not supported: runs at the engine behind talkative cannot answer queries"
    ):
        await ask(running, "progress")
    talker.capabilities = Capabilities(can_query=True)
    with pytest.raises(NotSupported, match="cannot receive signals"):
        await tell(running, "approve", {"text": "yes"})
    assert talker.heard == []


ERRORS: dict[str, tuple[Exception, type[InteractionRefused]]] = {
    "rejected": (Rejected("The kettle is cold."), EngineRefused),
    "not found": (NotFound("The kettle is cold."), EngineRefused),
    "unreadable": (InvalidAnswer("The kettle is cold."), EngineRefused),
    "unreachable": (Unreachable("The kettle is cold."), EngineUnavailable),
    "misconfigured": (Misconfigured("The kettle is cold."), EngineUnavailable),
}


@pytest.mark.parametrize("case", ERRORS)
async def test_what_an_engine_says_against_it_is_told_in_its_words(running, talker, case):
    """B5, E10: of a signal also on the timeline."""
    talker.answer, expected = ERRORS[case]
    for talk, name in ((ask, "progress"), (tell, "approve")):
        with pytest.raises(expected, match="The kettle is cold") as refused:
            await talk(running, name, {} if talk is ask else {"text": "yes"})
        assert type(refused.value) is expected
    assert await in_database(told, running, "signal_failed") == ["approve by Alice: The kettle is cold."]


@pytest.mark.parametrize("answer", [OutcomeUnknown("The line went dead."), KeyError("a bug")])
async def test_a_signal_of_unknown_outcome_is_said_to_be_one_and_is_not_sent_again(running, talker, answer):
    """A5.2, E10."""
    talker.answer = answer
    with pytest.raises(SignalUncertain, match="Do not send it again"):
        await tell(running, "approve", {"text": "yes"})
    assert len(talker.heard) == 1
    assert timeline_of_signals(await in_database(timeline, running)) == ["signal_unknown"]


async def test_a_bug_of_a_connector_is_none_of_the_callers_business(running, talker):
    """B6."""
    talker.answer = KeyError("a bug")
    with pytest.raises(EngineUnavailable, match="the log has the details"):
        await ask(running, "progress")


async def test_an_engine_that_never_answers_is_not_waited_for(running, talker, monkeypatch):
    """A7.2, E10."""
    monkeypatch.setattr("executions.interacting.READ_SECONDS", 0.05)
    talker.answer = asyncio.Event().wait
    with pytest.raises(EngineUnavailable, match="did not answer within"):
        await ask(running, "progress")
    with pytest.raises(SignalUncertain):
        await tell(running, "approve", {"text": "yes"})


async def test_an_answer_is_no_larger_than_a_result_and_is_json(running, talker, configured):
    """E5, E10."""
    configured(max_payload_bytes=1024)
    talker.answer = "x" * 2_000
    with pytest.raises(EngineRefused, match="too large: 2,002 bytes"):
        await ask(running, "progress")
    for no_json in (b"bytes", float("inf"), object()):
        talker.answer = no_json
        with pytest.raises(EngineRefused, match="not JSON"):
            await ask(running, "progress")


@pytest.mark.databases("executions.interacting")
async def test_a_signal_whose_sender_goes_away_is_still_noted(running, talker):
    """A5.2: the run may have been told, so the record has to say so."""
    arrived, released = asyncio.Event(), asyncio.Event()

    async def hesitate() -> None:
        arrived.set()
        await released.wait()

    talker.answer = hesitate
    telling = asyncio.create_task(tell(running, "approve", {"text": "yes"}))
    await arrived.wait()
    telling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await telling
    released.set()
    await until(lambda: timeline_of_signals(timeline(running)) == ["signalled"])


async def test_a_running_execution_names_what_it_can_be_asked_and_told(running, review):
    """A8.2, E10: and one that has ended does not."""

    def described(execution: Execution) -> dict[str, Any]:
        return describe_execution(find_execution(str(execution.pk), caller=ADMIN))

    shown = await in_database(described, running)
    assert shown["queries"] == ["progress", "count"] and shown["signals"] == ["approve"]
    ended = await in_database(execution_of, review, State.COMPLETED)
    assert not {"queries", "signals"} & (await in_database(described, ended)).keys()
    plain = await in_database(execution_of, None, State.RUNNING)
    assert not {"queries", "signals"} & (await in_database(described, plain)).keys()


def timeline_of_signals(kinds: list[str]) -> list[str]:
    return [kind for kind in kinds if kind.startswith("signal")]
