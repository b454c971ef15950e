"""Engines that say by themselves when a run ends, and runs that go on after they were to be cancelled."""

import asyncio
import itertools
from datetime import timedelta

import pytest
from django.utils import timezone

from catalogue.exposure import forget_catalogue
from catalogue.models import Source, Workflow
from connectors.errors import Rejected, Unreachable
from connectors.registry import BUILT_IN
from executions.models import Execution, State
from tests.executions.engines import until
from tests.executions.patient_engine import PatientEngine, renew
from tests.executions.steps import (
    advance_due_executions,
    call,
    cancel,
    in_database,
    let_pass,
    make_active,
    only,
    reach_deadline,
    read,
    timeline,
    told,
)
from tests.factories import make_workflow

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> PatientEngine:
    monkeypatch.setitem(BUILT_IN, "waiting", "tests.executions.patient_engine:WaitingConnector")
    return renew()


@pytest.fixture
def workflow(patient: PatientEngine) -> Workflow:
    """Of an engine that may be polled once a minute."""
    source = Source.objects.create(name="waiting", kind="waiting")
    return make_workflow(source, name="report", inline_wait_seconds=30)


async def begin_call(patient: PatientEngine) -> "asyncio.Task[Execution]":
    """A call whose run the engine is being asked to wait for."""
    waiting = asyncio.create_task(call("report"))
    await until(lambda: patient.count("wait"), "the engine is asked to wait")
    return waiting


async def test_the_end_of_a_run_is_heard_without_a_poll(workflow, patient):
    """A7.1, B2: however seldom the engine may be polled."""
    waiting = await begin_call(patient)
    patient.complete()
    assert (await waiting).succeeded
    assert patient.count("poll") == 0


async def test_a_cancel_does_not_have_to_wait_for_the_engine(workflow, patient):
    """A7.5: the wait for the run's end is interrupted."""
    patient.on_cancel = patient.be_cancelled
    waiting = await begin_call(patient)

    await cancel(await in_database(only))

    assert (await waiting).state == State.CANCELLED
    assert patient.count("wait") <= 3
    called = [name for name, _ in patient.calls]
    assert called.index("wait broken off") < called.index("cancel")


async def test_an_engine_that_does_not_keep_its_word_is_not_asked_again_and_again(workflow, patient):
    """B2: its minimum between two polls holds then."""
    patient.waits = False
    waiting = await begin_call(patient)
    await until(lambda: patient.count("wait") >= 3, "it is asked again")
    patient.complete()
    await waiting
    times = [at for name, at in patient.calls if name == "wait"]
    assert all(later - earlier >= 0.2 for earlier, later in itertools.pairwise(times))


@pytest.mark.usefixtures("quick_repeats")
async def test_a_wait_that_fails_is_begun_again(workflow, patient):
    """A5.2: the run goes on without us."""
    waiting = await begin_call(patient)
    patient.failure = Unreachable("It is away.")
    record = await until(lambda: "poll_failed" in timeline(only()) and only(), "the failure is recorded")
    assert record.state == State.RUNNING

    patient.failure = None
    patient.complete()

    assert (await waiting).succeeded


def cancelled_long_ago(workflow: Workflow, seconds: float) -> Execution:
    return make_active(
        workflow,
        State.RUNNING,
        deadline_at=timezone.now() + timedelta(hours=1),
        cancel_requested_at=timezone.now(),
        cancel_sent_at=timezone.now() - timedelta(seconds=seconds),
    )


def test_a_run_that_does_not_follow_its_cancellation_is_terminated_once(workflow, patient):
    """A7.5: after the grace that the connector gives it, and the timeline says so."""
    patient.terminates_after = 30
    execution = cancelled_long_ago(workflow, 60)

    advance_due_executions()
    Execution.objects.update(next_attempt_at=timezone.now(), polled_at=None)
    advance_due_executions()

    assert patient.count("terminate") == 1
    assert told(execution, "terminate_sent") == [
        "It continued after the cancellation request, so the engine was asked to terminate it."
    ]


def test_a_run_has_its_grace_before_it_is_terminated(workflow, patient):
    """A7.5: and is looked at again when that is over, not at the next poll some day."""
    patient.terminates_after = 30
    execution = cancelled_long_ago(workflow, 10)

    advance_due_executions()

    assert patient.count("terminate") == 0
    left = read(execution).next_attempt_at - timezone.now()
    assert left < timedelta(seconds=30)


@pytest.mark.parametrize(
    ("failure", "told_as"),
    [(Rejected("It is protected."), ["The engine refused: It is protected."]), (Unreachable("Away."), [])],
)
def test_an_engine_that_refuses_to_terminate_is_told_once_and_one_that_is_away_again(
    workflow, patient, failure, told_as
):
    """A7.5, A8.5."""
    patient.terminates_after, patient.failure = 30, failure  # type: ignore[assignment]
    execution = cancelled_long_ago(workflow, 60)

    advance_due_executions()

    assert told(execution, "terminate_sent") == told_as
    assert (read(execution).terminate_sent_at is None) == (told_as == [])


def test_a_run_whose_timeout_has_passed_is_terminated_if_it_does_not_follow_its_cancellation(
    workflow, patient
):
    """A7.5: cancelled at the deadline, terminated after its grace, and recorded as the engine says then."""
    patient.terminates_after = 30
    patient.on_terminate = patient.be_cancelled
    execution = make_active(workflow, State.RUNNING)
    reach_deadline(execution)
    for after, terminated in ((0, 0), (20, 0), (20, 1)):
        let_pass(execution, after)
        Execution.objects.update(next_attempt_at=timezone.now(), polled_at=None)
        advance_due_executions()
        assert (patient.count("cancel"), patient.count("terminate")) == (1, terminated)
    record = read(execution)
    assert record.state == State.TIMED_OUT
    assert record.error == "It took longer than its timeout of 300 s and was terminated at the engine."


def test_a_run_that_outlives_even_its_termination_is_given_up(workflow, patient):
    """A7.5: some seconds later, with the truth."""
    patient.terminates_after = 30
    execution = make_active(workflow, State.RUNNING)
    reach_deadline(execution)
    for after, state in ((0, State.RUNNING), (31, State.RUNNING), (11, State.TIMED_OUT)):
        let_pass(execution, after)
        Execution.objects.update(next_attempt_at=timezone.now(), polled_at=None)
        advance_due_executions()
        assert read(execution).state == state
    assert "the engine has not ended it: it may still be running there" in read(execution).error
    assert patient.count("terminate") == 1


async def test_whoever_waits_at_the_deadline_hears_of_the_cancellation_as_it_happens(workflow, patient):
    """A7.2, A7.5: however seldom the engine may be polled."""
    await in_database(Workflow.objects.update, timeout_seconds=1)
    await in_database(forget_catalogue)
    waiting = await begin_call(patient)
    await until(lambda: patient.count("cancel"), "the engine is told to cancel")
    assert not waiting.done()
    patient.be_cancelled()
    execution = await waiting
    assert execution.state == State.TIMED_OUT and "was cancelled at the engine" in execution.error


def test_an_engine_that_cannot_terminate_is_not_asked_to(workflow, patient):
    """A8.5."""
    cancelled_long_ago(workflow, 600)
    advance_due_executions()
    assert patient.count("terminate") == 0 and patient.count("poll") == 1
