"""Cancelling: at once where nobody else is at the engine, and with the truth about what came of it."""

import asyncio
import contextlib
import threading

import pytest

from catalogue.models import Source, Workflow
from connectors.background import run_in_background_loop
from executions.interacting import Cancellation, CancelOutcome
from executions.models import Execution, State
from executions.models.lifecycle import StartRequest
from executions.reading import UnknownExecution
from executions.runner.lease import claim_due_executions
from executions.starting import create_execution
from tests.connectors.scripted import replies, sends_and_hangs_up
from tests.executions.engines import (
    Gate,
    completed,
    in_thread,
    in_turn,
    receipt,
    status,
    wait_until,
)
from tests.executions.steps import (
    ADMIN,
    ALICE,
    BOB,
    advance_due_executions,
    call,
    cancel,
    expire_lease,
    let_pass,
    make_active,
    only,
    read,
    timeline,
    told,
)
from tests.factories import make_source, make_workflow

pytestmark = pytest.mark.django_db(transaction=True)

CANCELLED = replies(200, status("CANCELLED"))


def cancel_now(execution: Execution, caller=ALICE) -> Cancellation:
    """As the admin and REST do it."""
    return run_in_background_loop(cancel(execution, caller))


@pytest.fixture
def running(workflow: Workflow) -> Execution:
    return make_active(workflow, State.RUNNING)


def test_a_cancel_that_the_engine_confirms_at_once_is_told_at_once(engine, running):
    """A7.5, A8.3."""
    engine.on_status = CANCELLED
    cancellation = cancel_now(running)
    assert cancellation.outcome == CancelOutcome.CANCELLED
    assert cancellation.execution.state == State.CANCELLED
    assert timeline(running) == ["created", "cancel_requested", "cancel_sent", "cancelled"]
    assert [request.kind for request in engine.requests] == ["cancel", "status"]


def test_a_cancel_that_takes_its_time_is_told_as_asked_for(engine, running):
    """The truth: asked for, not yet done. The engine is told once, however often one asks."""
    assert cancel_now(running).outcome == CancelOutcome.REQUESTED
    assert cancel_now(running, ADMIN).outcome == CancelOutcome.REQUESTED
    assert engine.count("cancel") == 1
    assert told(running, "cancel_requested") == ["Alice asked for it."]

    engine.on_status = CANCELLED
    let_pass(running, 10)
    advance_due_executions()
    assert read(running).state == State.CANCELLED


def test_an_execution_that_is_not_started_yet_is_cancelled_without_the_engine(engine, workflow):
    """A7.5."""
    execution = create_execution(
        StartRequest(tool_name="report", arguments={}, caller=ALICE, door=Execution.Door.REST)
    )
    cancellation = cancel_now(execution)
    assert cancellation.outcome == CancelOutcome.CANCELLED
    assert read(execution).error == "Cancelled before it was started."
    assert engine.requests == []


@pytest.mark.databases("executions.interacting")
def test_a_cancel_beats_the_worker_that_is_about_to_start_it(engine, workflow):
    """Cancel against start: the worker read the row before, and must not start it all the same."""
    execution = create_execution(
        StartRequest(tool_name="report", arguments={}, caller=ALICE, door=Execution.Door.REST)
    )
    (claimed,) = claim_due_executions(limit=1)
    assert cancel_now(execution).outcome == CancelOutcome.REQUESTED

    assert not claimed.begin_start()

    expire_lease(execution)
    advance_due_executions()
    assert read(execution).state == State.CANCELLED
    assert engine.requests == []


@pytest.mark.usefixtures("quick_looks")
def test_a_cancel_during_the_start_is_sent_once_the_run_is_known(engine, workflow):
    """Cancel against start: the engine has it already, so it has to be told."""
    gate = Gate(replies(200, receipt()))
    engine.on_start, engine.on_status = gate, CANCELLED
    ended: list[Execution] = []
    waiting = threading.Thread(target=lambda: ended.append(run_in_background_loop(call("report"))))
    waiting.start()
    gate.wait_for_request()

    assert cancel_now(only()).outcome == CancelOutcome.REQUESTED
    gate.open()
    waiting.join()

    assert ended[0].state == State.CANCELLED
    assert [request.kind for request in engine.requests] == ["start", "cancel", "status"]


def test_a_cancel_during_somebody_elses_poll_is_sent_by_the_next_step(engine, running):
    """Cancel against poll: at the next tick, not after the interval."""
    engine.on_status = gate = Gate(replies(200, status()))
    polling = threading.Thread(target=advance_due_executions)
    polling.start()
    gate.wait_for_request()

    assert cancel_now(running).outcome == CancelOutcome.REQUESTED
    assert engine.count("cancel") == 0
    gate.open()
    polling.join()

    assert advance_due_executions() == 1
    assert engine.count("cancel") == 1


@pytest.mark.databases("executions.interacting")
def test_a_run_that_completes_before_the_cancel_keeps_its_result(engine, running):
    """Cancel against completion: finished before the cancel, and so it is told."""
    engine.on_cancel = replies(409, {"error": "The run has already ended."})
    engine.on_status = replies(200, completed({"sum": 3}))
    cancellation = cancel_now(running)
    assert cancellation.outcome == CancelOutcome.ALREADY_FINISHED
    assert "already completed" in cancellation.message
    assert read(running).payload.output == {"sum": 3}
    assert told(running, "cancel_refused")


@pytest.mark.parametrize("state", [State.COMPLETED, State.FAILED, State.CANCELLED, State.TIMED_OUT])
def test_a_finished_execution_cannot_be_cancelled(engine, workflow, state):
    """A8.5."""
    execution = make_active(workflow, state)
    cancellation = cancel_now(execution)
    assert cancellation.outcome == CancelOutcome.ALREADY_FINISHED
    assert cancellation.message.startswith("Nothing to cancel: the execution is already ")
    assert engine.requests == [] and timeline(execution) == ["created"]


def test_an_engine_that_cannot_cancel_is_told_as_such(engine):
    """A8.5: an explicit "not supported", and nothing is noted that nobody will do."""
    source = make_source("press", base_url=engine.base_url, config={"cancel_path": ""})
    running = make_active(make_workflow(source), State.RUNNING)
    cancellation = cancel_now(running)
    assert cancellation.outcome == CancelOutcome.NOT_SUPPORTED
    assert "Not supported: the engine behind press cannot cancel runs" in cancellation.message
    assert read(running).cancel_requested_at is None
    assert engine.requests == []


def test_a_source_with_unusable_settings_says_why_it_cannot_cancel(engine, running):
    """B5."""
    Source.objects.update(config={})
    cancellation = cancel_now(running)
    assert cancellation.outcome == CancelOutcome.NOT_SUPPORTED
    assert "base_url" in cancellation.message


@pytest.mark.parametrize("behaviour", [replies(500), sends_and_hangs_up()], ids=["500", "hangs up"])
def test_an_engine_whose_cancel_is_broken_is_followed_all_the_same(engine, running, behaviour):
    """A7.5, A8.3: it is told again at each step, and the result is not missed meanwhile."""
    engine.on_cancel = behaviour
    engine.on_status = in_turn(replies(200, status()), replies(200, status()), replies(200, completed()))
    assert cancel_now(running).outcome == CancelOutcome.REQUESTED
    for _ in range(2):
        let_pass(running, 10)
        advance_due_executions()
    assert read(running).succeeded
    assert engine.count("cancel") == 3


def test_a_cancel_does_not_poll_sooner_than_the_engine_allows(engine, running):
    """B2: worker, waiter and canceller share one interval; the cancel itself is sent at once."""
    advance_due_executions()
    cancel_now(running)
    cancel_now(running)
    assert [request.kind for request in engine.requests] == ["status", "cancel"]


def test_an_unconfirmed_start_cannot_be_cancelled(engine, workflow):
    """Nobody knows whether there is a run to cancel: an admin finds out."""
    execution = make_active(workflow, State.UNCONFIRMED)
    cancellation = cancel_now(execution)
    assert cancellation.outcome == CancelOutcome.ALREADY_FINISHED
    assert "an administrator must find out" in cancellation.message
    assert engine.requests == []


def test_a_run_that_was_lost_with_its_source_cannot_be_cancelled(engine, running):
    """A8.3: nobody is told that there may be no run at all."""
    Source.objects.all().delete()
    let_pass(running, 10)
    advance_due_executions()
    cancellation = cancel_now(running)
    assert cancellation.outcome == CancelOutcome.ALREADY_FINISHED
    assert "the run may continue, and the engine can no longer be asked" in cancellation.message
    assert engine.requests == []


def test_others_executions_can_neither_be_seen_nor_cancelled(engine, running):
    """A8.1: Bob learns nothing, an administrator may."""
    with pytest.raises(UnknownExecution):
        cancel_now(running, BOB)
    assert engine.requests == []
    assert cancel_now(running, ADMIN).outcome == CancelOutcome.REQUESTED


async def test_a_canceller_that_leaves_cuts_nothing_off(engine, running):
    """The engine's answer is recorded whoever still waits for it."""
    engine.on_status = gate = Gate(replies(200, status("CANCELLED")))
    cancelling = await gate.keep(cancel(running))
    cancelling.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await cancelling
    gate.open()
    await in_thread(wait_until, lambda: read(running).state == State.CANCELLED)
