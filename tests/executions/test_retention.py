"""What is removed after how long, and what never is."""

from collections.abc import Iterator
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from celery.signals import worker_shutting_down
from django.core.exceptions import ValidationError
from django.core.management import call_command
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from catalogue.models import DiscoveryRun
from connectors.background import process_ends
from executions import retention
from executions.models import (
    ACTIVE,
    FINAL,
    Execution,
    Retention,
    State,
)
from executions.reading import describe_execution
from executions.retention import Pruned, prune
from executions.starting import create_execution
from executions.tasks import prune_executions
from mcp_bridge.results import execution_result
from tests.executions.steps import ALICE, read, request_for, timeline
from tests.factories import make_discovery_run, make_execution, make_source, make_workflow
from tests.threads import together

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.databases("executions.retention", "executions.models.execution"),
]

ANSWERS = {
    "input": {"name": "Ada"},
    "output": {"sum": 3},
    "start_answer": {"workflow_id": "run-1"},
    "status_answer": {"status": "COMPLETED"},
    "metadata": {"version": "2.1"},
}


def ended(days_ago: float, **fields: Any) -> Execution:
    """An execution that ended so many days ago and began a day before."""
    at = timezone.now() - timedelta(days=days_ago)
    times = {"finished_at": at, "created_at": at - timedelta(days=1)}
    return make_execution(**{"payload": ANSWERS} | times | fields)


def keep(**days: int) -> None:
    """For ever, except for the days given."""
    kinds = ("records", "payloads", "events", "discovery_runs", "statistics")
    Retention.objects.all().delete()
    Retention.objects.create(**{f"keep_{kind}_days": days.get(kind) for kind in kinds})


def exists(execution: Execution) -> bool:
    return Execution.objects.filter(pk=execution.pk).exists()


def test_by_default_payloads_and_timelines_go_after_30_days_and_records_after_90():
    """B3, B7, E6: without anybody having set anything; counted from the end of the execution."""
    young, old, ancient = ended(29.9), ended(30.1), ended(90.1)

    pruned = prune()

    assert pruned == Pruned(executions=1, payloads=1, timelines=1)
    assert not exists(ancient)
    assert read(young).payload.output == {"sum": 3} and timeline(young) == ["created"]
    record = read(old)
    payload = record.payload
    assert (payload.input, payload.output, payload.start_answer, payload.status_answer) == (None,) * 4
    assert payload.metadata == {"version": "2.1"}, "what says which version ran is no payload"
    assert record.payload_pruned_at and record.events_pruned_at and timeline(old) == []
    assert prune() == Pruned()


@pytest.mark.parametrize("state", [*ACTIVE, State.UNCONFIRMED])
def test_what_has_not_ended_is_kept_whole_however_old_it_is(state):
    """B7: and so is what an admin still has to find out."""
    keep(records=1, payloads=1, events=1)
    long_ago = timezone.now() - timedelta(days=400)
    execution = make_execution(state=state, created_at=long_ago, payload=ANSWERS)
    assert prune() == Pruned()
    assert read(execution).payload.input == {"name": "Ada"} and timeline(execution) == ["created"]


@pytest.mark.parametrize("state", FINAL)
def test_whatever_way_it_ended_it_goes(state):
    """B7."""
    keep(records=1)
    execution = ended(2, state=state)
    prune()
    assert not exists(execution)


@pytest.mark.parametrize("kind", ["records", "payloads", "events"])
def test_zero_keeps_nothing_once_whoever_waited_had_the_time_to_read_it(kind):
    """E6: the record or its parts; what has just ended is there for a moment."""
    keep(**{kind: 0})
    over, just_over = ended(6 / (24 * 60)), ended(4 / (24 * 60))
    answered = make_execution(state=State.RUNNING, payload=ANSWERS)

    prune()

    def is_there(execution: Execution) -> bool:
        if kind == "records":
            return exists(execution)
        whole = read(execution)
        return bool(whole.payload.output if kind == "payloads" else timeline(execution))

    assert not is_there(over)
    assert is_there(just_over) and is_there(answered)


def test_empty_keeps_for_ever():
    """B7: each kind of its own."""
    keep()
    execution = ended(10_000)
    old = timezone.now() - timedelta(days=10_000)
    make_discovery_run(started_at=old, finished_at=old)
    assert prune() == Pruned()
    assert exists(execution) and DiscoveryRun.objects.count() == 1


def test_discovery_runs_go_too_but_not_the_one_that_is_under_way():
    """B7."""
    keep(discovery_runs=30)
    source, old = make_source(), timezone.now() - timedelta(days=31)
    make_discovery_run(source, started_at=old, finished_at=old)
    recent = make_discovery_run(source)
    running = make_discovery_run(source, started_at=old, outcome="running", finished_at=None)
    assert prune() == Pruned(discovery_runs=1)
    assert set(DiscoveryRun.objects.all()) == {recent, running}


def test_there_is_one_retention_and_its_days_are_bounded():
    """E6: nobody can set a second one beside it, or a time that no date can tell."""
    keep()
    with pytest.raises(IntegrityError), transaction.atomic():
        Retention.objects.create(pk=2)
    with pytest.raises(ValidationError):
        Retention(keep_records_days=10_000_000).full_clean(validate_unique=False, validate_constraints=False)


# In batches


def test_a_batch_costs_the_same_number_of_queries_whatever_its_size():
    """B7."""
    _queries_for(1)
    assert _queries_for(3) == _queries_for(40)


def _queries_for(count: int) -> int:
    workflow = make_workflow()
    for _ in range(count):
        ended(31, workflow=workflow)
        ended(91, workflow=workflow)
    with CaptureQueriesContext(connection) as queries:
        assert prune().payloads == count
    return len(queries)


def test_what_goes_with_its_record_is_not_emptied_first(monkeypatch):
    """After the first retention of a large database, that was a quarter of the work."""
    monkeypatch.setattr(retention, "BATCH", 2)
    keep(records=30, payloads=30, events=60)
    for _ in range(5):
        ended(61)
    assert prune() == Pruned(executions=5)


def test_when_the_time_is_up_the_rest_is_left_to_the_next_one(monkeypatch):
    """B7: the worker has other things to do."""
    monkeypatch.setattr(retention, "BATCH", 2)
    for _ in range(5):
        ended(91)
    assert prune(seconds=0) == Pruned(all_done=False)
    assert Execution.objects.count() == 5
    assert prune(seconds=60).executions == 5


@pytest.fixture
def _ending_begins() -> Iterator[None]:
    """As Celery says it of a worker that got SIGTERM."""
    worker_shutting_down.send(sender=None, sig="SIGTERM", how="Warm", exitcode=0)
    yield
    process_ends.clear()


@pytest.mark.usefixtures("_ending_begins")
def test_a_worker_that_is_to_end_leaves_what_is_due_to_the_next_one():
    """E8: its end waits for tasks that have begun."""
    ended(91)
    assert prune(seconds=60) == Pruned(all_done=False)
    assert prune() == Pruned(all_done=False)


@pytest.mark.django_db(transaction=True)
def test_several_workers_may_prune_at_the_same_time():
    """B7: together they remove each row once, and no one fails."""
    workflow = make_workflow()
    for _ in range(40):
        ended(91, workflow=workflow)
        ended(31, workflow=workflow)
    results = together(*[prune] * 3)
    assert sum(result.executions for result in results) == 40
    assert sum(result.payloads for result in results) == 40
    assert Execution.objects.filter(payload_pruned_at__isnull=False).count() == 40


def test_the_workers_task_prunes():
    """B7."""
    execution = ended(91)
    prune_executions()
    assert not exists(execution)


def test_the_schedule_has_a_worker_prune():
    """B7: a name that no task has would be dropped in silence."""
    from config.celery import app

    entry = app.conf.beat_schedule["prune-executions"]
    assert entry["task"] == prune_executions.name
    assert entry["options"]["expires"] < entry["schedule"]


def test_the_command_prints_what_it_removed():
    ended(31)
    ended(91)
    out = StringIO()
    call_command("prune_executions", stdout=out)
    assert out.getvalue() == (
        "Removed: 1 executions, 1 payloads, 1 timelines, 0 discovery runs, 0 rows of statistics, "
        "0 cached results.\n"
    )


@pytest.mark.skipif(connection.vendor != "sqlite", reason="PostgreSQL reads small tables whole")
@pytest.mark.parametrize(
    ("kept", "index"),
    [
        ({}, "execution_finished"),
        ({"payload_pruned_at": None}, "execution_payload_kept"),
        ({"events_pruned_at": None}, "execution_events_kept"),
    ],
)
def test_the_oldest_are_found_by_an_index(kept, index):
    """B7: among millions of records that are not due, or have been pruned already."""
    due = retention._ended(timezone.now()).filter(**kept).order_by("finished_at")
    plan = due.explain()
    assert index in plan and "TEMP B-TREE" not in plan


# What is left to read


def test_a_key_whose_payload_was_removed_still_stands_for_its_execution():
    """B7: the same request is not started again because its result is gone."""
    workflow = make_workflow(tool_name="greet")
    execution = create_execution(request_for("greet", {"name": "Ada"}, idempotency_key="order-7"))
    assert execution.workflow == workflow and execution.fail("no paper")
    keep(payloads=1)
    Execution.objects.update(finished_at=timezone.now() - timedelta(days=2))
    assert prune().payloads == 1

    again = create_execution(request_for("greet", {"name": "Ada"}, idempotency_key="order-7"))

    assert again.pk == execution.pk and again.caller == ALICE.key


def test_an_agent_is_told_that_the_result_is_kept_no_longer():
    """E6, A8.4: not an empty output, which would pass for the result."""
    execution = ended(31)
    prune()
    record = read(execution)

    described = describe_execution(record)
    assert described["output"] is None and described["output_removed_at"]
    result = execution_result(record, protocol_version="2026-07-28")
    assert result.is_error and "no longer stored" in result.content[0].text
