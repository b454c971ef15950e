"""What is counted when executions end, and that it agrees with them for ever after."""

from datetime import datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from access.callers import Caller
from catalogue.models import Workflow
from connectors.protocol import RunSnapshot, RunState
from executions.engine_runs import resolve_as_not_started
from executions.models import Execution, HourlyUsage, Retention, State
from executions.retention import prune
from executions.starting import create_execution
from executions.statistics import (
    DAY,
    HOUR,
    Figures,
    Period,
    figures_by,
    figures_in,
    fold,
    prune_statistics,
    recount,
    usage_since,
)
from executions.tasks import fold_statistics
from tests.executions.caching import cache_for, finish_run
from tests.executions.steps import ADMIN, request_for
from tests.factories import make_execution, make_toolset, make_workflow
from tests.threads import together

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.databases("executions.statistics", "executions.models.usage"),
]

THIS_HOUR = timezone.now().replace(minute=0, second=0, microsecond=0)
AFTER_SOME_SECONDS = RunSnapshot(state=RunState.COMPLETED, output={"sum": 3})


def running(workflow: Workflow, **fields: Any) -> Execution:
    return make_execution(workflow, state="running", **fields)


def outcomes() -> dict[str, int]:
    """How many ends of each kind are counted."""
    counted = figures_by(HourlyUsage.objects.all(), "outcome")
    return {outcome: figures.calls for (outcome,), figures in counted.items()}


def total() -> Figures:
    return figures_by(HourlyUsage.objects.all()).get((), Figures())


def test_each_way_to_end_is_counted_once():
    """Completed, failed, timed out, cancelled, resolved by hand, given up in the queue, cached."""
    workflow = make_workflow()
    done = running(workflow)
    assert done.finish_as_reported(AFTER_SOME_SECONDS)
    assert not done.finish_as_reported(AFTER_SOME_SECONDS)
    assert running(workflow).fail("It broke.")
    assert running(workflow).time_out("Its time was up.")
    assert running(workflow).cancel("Somebody asked for it.")
    assert make_execution(workflow, state="starting").conclude_not_started("It is not there.")
    assert running(workflow, door="test").fail("A curator's test broke.")
    queued = make_execution(workflow, state="pending")
    Execution.objects.filter(pk=queued.pk).update(admitted_at=None)
    assert queued.cancel_queued("Ada")
    unconfirmed = make_execution(workflow, state="starting")
    assert unconfirmed.mark_unconfirmed("The answer was lost.")
    assert outcomes() == {"completed": 1, "failed": 2, "timed_out": 1, "cancelled": 2}
    resolve_as_not_started(str(unconfirmed.pk), caller=ADMIN)
    ran = make_execution(workflow, state="unconfirmed")
    assert ran.confirm_ran({"sum": 3}, by="Ada")
    finish_run(cache_for(workflow), output={"sum": 3})
    recount()
    assert outcomes() == {"completed": 3, "failed": 3, "timed_out": 1, "cancelled": 2}


def test_a_cached_answer_is_counted_apart_and_says_nothing_of_durations(workflow):
    """Issue 13, A8."""
    cache_for(workflow)
    first = create_execution(request_for(workflow.tool_name))
    Execution.objects.filter(pk=first.pk).update(state=State.RUNNING, started_at=timezone.now())
    first.refresh_from_db()
    assert first.finish_as_reported(AFTER_SOME_SECONDS)
    assert create_execution(request_for(workflow.tool_name)).cached_at
    assert outcomes() == {"completed": 1, "cached": 1}
    assert (total().calls, total().cached, total().timed) == (2, 1, 1)


def test_calls_that_a_card_showed_are_counted_and_counted_again(workflow):
    for client in ({"cards": True}, {"name": "other"}, {"cards": True}):
        execution = create_execution(request_for(workflow.tool_name, client=client))
        assert execution.fail("It broke.")
    assert (total().calls, total().cards) == (3, 2)
    fold()
    assert (total().calls, total().cards) == (3, 2)
    HourlyUsage.objects.update(cards=0)
    assert recount().differed
    assert (total().calls, total().cards) == (3, 2)


def test_an_end_costs_one_statement_more_and_nothing_is_counted_without_one():
    """Cheap, in the transaction that records the end."""
    execution = running(make_workflow())
    with CaptureQueriesContext(connection) as queries:
        execution.finish_as_reported(AFTER_SOME_SECONDS)
    assert len([query for query in queries if "executions_hourlyusage" in query["sql"]]) == 1
    before = total().calls
    assert not execution.fail("Too late.")
    assert total().calls == before


def test_what_went_in_and_out_is_counted_with_the_toolset_caller_and_door(workflow):
    """Tokens are estimated from the characters of arguments and result."""
    make_toolset("finance", picked=[workflow])
    caller = Caller(key="token:7", name="Robot", toolset="finance")
    execution = create_execution(request_for(workflow.tool_name, {"name": "Ada"}, caller=caller))
    Execution.objects.filter(pk=execution.pk).update(state=State.RUNNING)
    execution.refresh_from_db()
    execution.finish_as_reported(RunSnapshot(state=RunState.COMPLETED, output="x" * 398))
    counted = HourlyUsage.objects.get()
    assert (counted.toolset, counted.caller, counted.caller_name) == ("finance", "token:7", "Robot")
    assert (counted.door, counted.source_name) == ("mcp", workflow.source.name)
    assert (total().input_tokens, total().output_tokens) == (4, 100)


@pytest.mark.parametrize("seconds", [[1], [1, 2, 3], [0.02] * 90 + [60] * 10, [5] * 95 + [600] * 5])
def test_percentiles_are_within_a_fifth_of_the_true_durations(seconds):
    """Issue 13."""
    workflow, end = make_workflow(), timezone.now()
    for duration in seconds:
        began = end - timedelta(seconds=duration)
        make_execution(workflow, created_at=began, started_at=began, finished_at=end)
    for percent in (50, 95):
        position = max(0, -(-len(seconds) * percent // 100) - 1)
        true = sorted(seconds)[position] * 1000
        assert total().percentile(percent) == pytest.approx(true, rel=0.2)


def test_readers_get_the_same_numbers_before_and_after_rows_are_folded():
    """And what ends afterwards is added to them."""
    workflow = make_workflow()
    for _ in range(5):
        make_execution(workflow)
    make_execution(workflow, state="failed")
    before = total()
    assert fold() == 6 and fold() == 0
    assert total() == before and HourlyUsage.objects.count() == 2
    make_execution(workflow)
    fold_statistics()
    assert total().calls == 7 and HourlyUsage.objects.count() == 2


def test_ends_folding_and_recounting_at_the_same_time_count_each_end_once():
    """Whoever is first, as with several processes."""
    workflow = make_workflow()
    executions = [running(workflow) for _ in range(6)]

    def end(execution: Execution) -> None:
        for _ in range(2):
            execution.finish_as_reported(AFTER_SOME_SECONDS)

    twins = [Execution.objects.get(pk=execution.pk) for execution in executions]
    ends = [lambda execution=execution: end(execution) for execution in (*executions, *twins)]
    together(*ends[:4], fold, recount, *ends[4:8], fold, recount, *ends[8:])
    assert total().calls == 6
    fold()
    assert total().calls == 6
    assert recount().differed == 0


def test_a_recount_repairs_what_the_executions_say_otherwise():
    """What is missing, what is too much, and what is wrong."""
    workflow = make_workflow()
    for hours in range(4):
        make_execution(workflow, finished_at=timezone.now() - hours * HOUR)
    before = total()
    lost, doubled, wrong = HourlyUsage.objects.order_by("hour")[:3]
    lost.delete()
    doubled.pk = None
    doubled.save(force_insert=True)
    HourlyUsage.objects.filter(pk=wrong.pk).update(milliseconds=1)
    assert total() != before
    out = StringIO()
    call_command("recount_statistics", stdout=out)
    assert "Counted 4 hours" in out.getvalue() and "3 differed" in out.getvalue()
    assert total() == before
    assert recount().differed == 0


def test_statistics_outlast_the_executions_and_a_recount_leaves_them_alone():
    """Also the hour of which the retention has removed a part; until their own time is up."""
    workflow, now = make_workflow(), timezone.now()
    for days in (1, 5, 5, 10):
        make_execution(workflow, finished_at=now - timedelta(days=days))
    Retention.objects.create(keep_statistics_days=None, keep_records_days=2)
    assert prune().executions == 3
    fold()
    assert total().calls == 4
    assert (recount().differed, total().calls) == (0, 4)
    Retention.objects.update(keep_statistics_days=7)
    assert prune().statistics == 1
    assert total().calls == 3
    HourlyUsage.objects.filter(hour__gte=now - timedelta(days=2)).delete()
    assert recount().differed == 1
    assert total().calls == 3


def test_what_is_remembered_of_past_days_is_what_their_rows_say_at_any_time(subtests):
    """Late ends, folding, counting again and pruning show with the next question."""
    workflow, now = make_workflow(), timezone.now()

    def end(days: int) -> None:
        moment = now - timedelta(days=days)
        make_execution(workflow, created_at=moment - HOUR, finished_at=moment)

    def lose_rows_and_recount() -> None:
        HourlyUsage.objects.filter(hour__lt=now - 5 * DAY).delete()
        recount()

    def assert_the_same() -> None:
        for period in Period:
            rows = usage_since(period.start())
            assert figures_in(period, "tool_name") == figures_by(rows, "tool_name"), period

    for days in (0, 1, 6, 20):
        end(days)
    assert_the_same()
    for name, change in {
        "late end": lambda: end(6),
        "folding": fold,
        "another late end": lambda: end(20),
        "folding once more": fold,
        "recount": lose_rows_and_recount,
        "pruning": lambda: prune_statistics(now - 10 * DAY),
    }.items():
        with subtests.test(after=name):
            change()
            assert_the_same()
    with CaptureQueriesContext(connection) as queries:
        figures_in(Period.MONTH, "tool_name")
    assert len(queries) == 3
    assert "is_folded" in queries[1]["sql"], "what had changed is asked without counting all rows"


def test_after_an_upgrade_what_had_ended_before_is_counted_by_itself():
    """Once; nobody has to know of the command."""
    make_execution()
    HourlyUsage.objects.all().delete()
    fold_statistics()
    assert total().calls == 1
    HourlyUsage.objects.all().delete()
    fold_statistics()
    assert total().calls == 0


def test_statistics_of_a_deleted_workflow_stay_under_its_name():
    """Issue 13."""
    workflow = make_workflow(name="gone")
    make_execution(workflow)
    workflow.source.delete()
    assert figures_by(usage_since(THIS_HOUR - HOUR), "workflow", "tool_name").keys() == {(None, "gone")}
    assert recount().differed == 0


def test_periods_begin_with_a_whole_hour_or_day():
    """So that a chart's first bar is not cut off."""
    now = datetime.fromisoformat("2026-03-05T10:20:30+00:00")
    assert [period.start(now).isoformat() for period in Period] == [
        "2026-03-04T11:00:00+00:00",
        "2026-02-27T00:00:00+00:00",
        "2026-02-04T00:00:00+00:00",
    ]
