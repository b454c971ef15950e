"""What happens to calls while they wait in the queue."""

import asyncio
from datetime import timedelta

import pytest
from django.utils import timezone

from catalogue.actions.sources import change_source, switch_sources
from catalogue.actions.workflows import disable_workflows, override_workflow
from catalogue.models import Source, Workflow
from executions import waiting
from executions.models import Execution, State
from executions.queue import admit_queued
from executions.reading import describe_execution
from executions.tasks import poll_due_executions
from executions.wakeups import wake
from tests.connectors.scripted import replies, sends_and_hangs_up
from tests.executions.engines import completed, in_thread, in_turn, receipt, until
from tests.executions.queueing import (
    hold_one,
    make_queued,
    names_of,
    queue_up,
    runs,
)
from tests.executions.steps import (
    advance_due_executions,
    call,
    cancel,
    in_database,
    let_pass,
    make_active,
    read,
    timeline,
    told,
)
from tests.factories import make_execution, make_workflow

__all__ = ["runs"]

pytestmark = pytest.mark.django_db(transaction=True)


async def test_a_call_whose_wait_ends_in_the_queue_gets_a_handle_that_says_so(runs, workflow, configured):
    """A7.1, A8.2: and is started later all the same."""
    configured(max_concurrent_executions=1)
    first = await hold_one(runs)

    queued = await call("report", seconds=0.3)

    assert queued.is_queued
    described = await in_database(describe_execution, queued)
    assert (described["state"], described["progress_message"]) == ("pending", "waiting in the queue")
    assert await in_database(timeline, queued) == ["created", "queued"]
    runs.end_all()
    assert (await first).succeeded
    await until(lambda: not read(queued).is_queued, "it gets the place that became free")
    await in_thread(advance_due_executions)
    record = await in_database(read, queued)
    assert record.succeeded
    assert await in_database(timeline, record) == ["created", "queued", "admitted", "started", "completed"]


async def test_a_client_that_waits_in_the_queue_is_told_again_and_again(
    runs, workflow, configured, monkeypatch
):
    """A7.3: or it would lose patience, and call again."""
    monkeypatch.setattr(waiting, "QUEUE_NEWS_SECONDS", 0.01)
    configured(max_concurrent_executions=1)
    first = await hold_one(runs)
    heard: list[str] = []

    async def listen(execution: Execution) -> None:
        heard.append(execution.state_label)

    queued = asyncio.create_task(call("report", on_progress=listen))
    await until(lambda: len(heard) >= 3)
    assert set(heard) == {"waiting in the queue"}
    runs.end_all()
    assert (await first).succeeded and (await queued).succeeded


async def test_a_patient_callers_time_begins_again_with_the_place(runs, workflow, configured, monkeypatch):
    """A7.1: the timeout of a run does not pass in the queue, so the patience for it does not either."""
    monkeypatch.setattr(waiting, "GRACE_SECONDS", -1.5)
    configured(max_concurrent_executions=1)
    await in_database(lambda: override_workflow(workflow, timeout_seconds=3))
    await in_database(make_active, workflow, State.RUNNING)
    patient = asyncio.create_task(call("report", patient=True))
    queued = await until(lambda: Execution.objects.queued().first())
    noticeable = queued.created_at + timedelta(seconds=0.3)
    await until(lambda: timezone.now() >= noticeable)
    assert await in_database(queued.admit)
    wake(queued.pk)

    returned = await patient

    assert returned.pk == queued.pk
    assert timezone.now() >= queued.admitted_at + timedelta(seconds=1.5)


async def test_the_timeout_begins_with_the_place(workflow):
    """A7.2: a run has all its time, however long it had to wait."""
    queued = await in_database(lambda: make_queued(workflow, seconds_ago=200, timeout_seconds=300))
    before = timezone.now()
    assert await in_thread(admit_queued) == 1
    admitted = await in_database(read, queued)
    assert admitted.deadline_at >= before + timedelta(seconds=300)
    assert admitted.next_attempt_at <= timezone.now() and admitted.admitted_at >= before
    assert await in_database(told, admitted, "admitted") != []


@pytest.mark.databases("executions.queue")
async def test_who_waits_longer_than_its_timeout_is_given_up(engine, workflow, configured):
    """A7.2, B5: also when a place becomes free in the same moment; nothing is started."""
    configured(max_concurrent_executions=5)
    late = await in_database(lambda: make_queued(workflow, seconds_ago=61, timeout_seconds=60))
    assert await in_thread(admit_queued) == 0
    ended = await in_database(read, late)
    assert (ended.state, ended.error_kind) == (State.TIMED_OUT, "timeout")
    assert ended.error == "It waited in the queue longer than its timeout of 60 s. Nothing was started."
    assert await in_thread(advance_due_executions) == 0
    assert engine.requests == []


async def end_workflow(workflow: Workflow) -> None:
    await in_database(disable_workflows, Workflow.objects.filter(pk=workflow.pk))


async def end_source(workflow: Workflow) -> None:
    await in_database(switch_sources, Source.objects.filter(pk=workflow.source_id), enabled=False)


async def lose_workflow(workflow: Workflow) -> None:
    await in_database(Workflow.objects.filter(pk=workflow.pk).update, missing_since=timezone.now())


async def delete_source(workflow: Workflow) -> None:
    await in_database(workflow.source.delete)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (end_workflow, "the workflow was disabled"),
        (end_source, "was switched off"),
        (lose_workflow, "the engine no longer lists the workflow"),
        (delete_source, "its workflow was deleted"),
    ],
)
@pytest.mark.databases("executions.queue")
async def test_what_may_not_run_any_more_leaves_the_queue(runs, workflow, configured, change, why):
    """A4.2, B5: at the next tick, whether or not there is room; the waiting call hears why."""
    configured(max_concurrent_executions=1)
    elsewhere = await in_database(make_active, await in_database(make_workflow), State.RUNNING)
    queued = await queue_up("second")
    await change(workflow)

    await in_thread(admit_queued)

    ended = await queued
    assert (ended.state, ended.error_kind) == (State.FAILED, "configuration")
    assert ended.error.startswith("It was not started: ") and why in ended.error
    assert runs.arrived == [] and not (await in_database(read, elsewhere)).is_settled


async def test_who_waits_in_the_queue_can_be_cancelled_at_once(runs, workflow, configured):
    """A7.5: the waiting call ends, and no place is wasted on it."""
    configured(max_concurrent_executions=1)
    called = [await hold_one(runs), await queue_up("second"), await queue_up("third")]
    second = await in_database(Execution.objects.queued().first)

    assert (await cancel(second)).outcome == "cancelled"

    assert (await called[1]).state == State.CANCELLED
    runs.end_all()
    assert (await called[0]).succeeded and (await called[2]).succeeded
    assert names_of(runs) == ["first", "third"]


async def test_a_source_that_changed_while_it_was_queued_is_the_one_that_it_is_started_at(
    engine, keyed_workflow
):
    """A6: only a change after the start leaves it open which engine has the run."""
    engine.on_start = in_turn(sends_and_hangs_up(), replies(200, completed() | receipt()))
    queued = await in_database(make_queued, keyed_workflow)
    await in_database(lambda: change_source(keyed_workflow.source, max_concurrent=5))
    assert await in_thread(admit_queued) == 1
    await in_thread(advance_due_executions)
    assert (await in_database(read, queued)).state == State.STARTING
    await in_database(let_pass, queued, 60)
    await in_thread(advance_due_executions)
    assert (await in_database(read, queued)).succeeded


@pytest.mark.databases("executions.queue")
async def test_what_a_killed_process_queued_is_started_by_a_worker(engine, workflow):
    """A6: the queue is in the database."""
    engine.on_start = replies(200, completed() | receipt())
    queued = await in_database(make_queued, workflow)
    assert await in_thread(advance_due_executions) == 0
    await in_thread(poll_due_executions)
    assert not (await in_database(read, queued)).is_queued, "the tick lets it in"
    await in_thread(poll_due_executions)
    await until(lambda: read(queued).succeeded)


@pytest.mark.databases("executions.queue")
def test_hundreds_are_let_in_once_there_is_room(workflow, configured):
    """A limit that is lifted: in several transactions, since others want to be admitted too."""
    configured(max_concurrent_per_caller=0)
    for _ in range(210):
        make_execution(workflow, state=State.PENDING)
    Execution.objects.update(admitted_at=None, deadline_at=timezone.now() + timedelta(hours=1))
    assert admit_queued() == 210
    assert not Execution.objects.queued().exists()


@pytest.mark.databases("executions.queue")
def test_giving_places_costs_as_much_however_many_wait(workflow, configured, django_assert_max_num_queries):
    """B7: who gets none costs no query."""
    configured(max_concurrent_executions=1)
    for _ in range(40):
        make_queued(workflow)
    with django_assert_max_num_queries(13):
        assert admit_queued() == 1
