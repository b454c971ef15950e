"""When an engine is asked about a run, once runs of its workflow have taught how long they take."""

from datetime import datetime, timedelta

import pytest
from django.utils import timezone

from catalogue.models import Workflow
from executions.models import Execution, State
from executions.runner.schedule import LatestRuns
from tests.connectors.scripted import replies
from tests.executions.engines import WireEngine, completed, status
from tests.executions.steps import advance_due_executions, let_pass, make_active, read
from tests.factories import make_workflow

pytestmark = pytest.mark.django_db(transaction=True)


def milliseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def finish_runs(
    engine: WireEngine, workflow: Workflow, *, seconds: float, found_after: float, runs: int = 6
) -> None:
    """Runs that took so long and are polled for the first time at that age."""
    for _ in range(runs):
        execution = make_active(workflow, State.RUNNING, run_id="run-1")
        let_pass(execution, found_after - 10)
        begun = read(execution).started_at
        assert begun is not None
        end = milliseconds(begun + timedelta(seconds=seconds)) if seconds else None
        engine.on_status = replies(200, completed() | {"end_time": end})
        advance_due_executions()
        assert read(execution).state == State.COMPLETED


def next_poll_of_new_run(engine: WireEngine, workflow: Workflow, *, age: float = 0.0) -> float:
    """At which age it comes, in seconds, of a run that was just found running at another."""
    engine.on_status = replies(200, status())
    execution = make_active(workflow, State.RUNNING, run_id="run-1")
    let_pass(execution, age - 10)
    advance_due_executions()
    found: Execution = read(execution)
    assert found.state == State.RUNNING and found.started_at is not None
    return (found.next_attempt_at - found.started_at).total_seconds()


def test_the_poll_comes_when_runs_of_this_workflow_usually_are_over(engine, workflow):
    """B2, issue 15."""
    other = make_workflow(workflow.source, name="other", upstream_id="other")
    finish_runs(engine, workflow, seconds=8, found_after=11)
    assert next_poll_of_new_run(engine, workflow, age=2) == pytest.approx(8, abs=0.5)
    assert next_poll_of_new_run(engine, other, age=2) == pytest.approx(7, abs=0.5)


def test_between_two_polls_of_a_run_the_engines_minimum_holds(engine, workflow):
    """B2."""
    finish_runs(engine, workflow, seconds=8, found_after=11)
    assert next_poll_of_new_run(engine, workflow, age=7.9) >= 8.9


def test_progress_is_looked_at_before_the_end_can_be_expected(engine, workflow):
    """A7.3, issue 15."""
    finish_runs(engine, workflow, seconds=200, found_after=205)
    assert next_poll_of_new_run(engine, workflow, age=40) == pytest.approx(65, abs=2)


def test_of_an_engine_without_times_the_end_is_found_earlier_with_each_run(engine, workflow):
    """Issue 15: a run that is over at its first poll may have been so for long."""
    ages = []
    for found_after, runs in ((8.0, 5), (4.0, 20)):
        finish_runs(engine, workflow, seconds=0, found_after=found_after, runs=runs)
        ages.append(next_poll_of_new_run(engine, workflow, age=0.1))
    assert ages[0] == pytest.approx(4, abs=1.2)
    assert ages[1] < ages[0]


def test_a_poll_that_came_too_early_is_not_repeated_with_the_next_run(engine, workflow):
    """Issue 15: one run that took longer is news at once, however many are remembered."""
    finish_runs(engine, workflow, seconds=0, found_after=8, runs=20)
    longer = make_active(workflow, State.RUNNING, run_id="run-1")
    let_pass(longer, 5 - 10)
    engine.on_status = replies(200, status())
    advance_due_executions()
    let_pass(longer, 6)
    engine.on_status = replies(200, completed() | {"end_time": None})
    advance_due_executions()
    assert read(longer).succeeded
    assert next_poll_of_new_run(engine, workflow, age=0.1) > 5


@pytest.mark.parametrize(("seconds", "earliest", "latest"), [(0.005, 0.005, 0.02), (0.05, 0.05, 0.15)])
def test_without_times_some_dozens_of_runs_teach_when_a_short_one_is_over(seconds, earliest, latest):
    """Issue 15: a poll that comes too early costs a second, and shows that the others were not that short."""
    runs = LatestRuns()
    for _ in range(60):
        age = runs.pause(0.0, shortest=1.0) or 0.2
        runs.add(*((0.0, age) if age >= seconds else (age, age + 1.0)))
    assert earliest <= (runs.pause(0.0, shortest=1.0) or 0.0) <= latest


def test_a_run_that_is_being_cancelled_is_asked_about_soon(engine, workflow):
    """C5."""
    finish_runs(engine, workflow, seconds=200, found_after=205)
    engine.on_status = replies(200, status())
    execution = make_active(workflow, State.RUNNING, run_id="run-1", cancel_requested_at=timezone.now())
    advance_due_executions()
    found = read(execution)
    assert engine.count("cancel") == 1
    assert found.next_attempt_at < timezone.now() + timedelta(seconds=6)


@pytest.mark.parametrize(
    ("durations", "age", "expected"),
    [
        ([8.0] * 100, 0.0, 8.0),
        ([0.005] * 100, 0.0, 0.01),
        ([3.0] * 50 + [30.0] * 50, 0.0, 3.0),
        ([3.0] * 50 + [30.0] * 50, 25, 30.0),
        ([3.0] * 99 + [30.0], 31.0, None),
        ([0.5] * 50 + [1.0] * 50, 0.0, 0.5),
        ([600.0] * 50 + [602.0] * 50, 590.0, 602.0),
    ],
)
def test_the_age_of_the_next_poll_follows_the_durations(durations, age, expected):
    """B2, issue 15: half a second matters to a run of one second, two do not to one of ten minutes."""
    runs = LatestRuns()
    for duration in durations:
        runs.add(duration, duration)
    pause = runs.pause(age, shortest=1.0)
    assert pause == (None if expected is None else pytest.approx(expected - age, abs=0.02))
