"""A clock that was ahead, of all processes or of one, and is right again."""

from datetime import timedelta

import pytest
from django.db.models import F
from django.utils import timezone

from audit.models import Entry
from audit.sealing import seal, verify
from catalogue.discovery import due_sources
from catalogue.models import Source
from connectors.protocol import Capabilities
from connectors.simplified import SimplifiedConnector
from executions import tasks
from executions.local_worker import SILENCE, note_worker, stand_in
from executions.models import CachePolicy, Execution, State, WorkerPresence
from executions.runner.lease import LEASE, claim_due_executions
from executions.runner.schedule import learn_from_end
from executions.starting import create_execution
from executions.tasks import clean_result_cache, correct_times
from tests.connectors.scripted import replies
from tests.executions.caching import cache_for, finish_run, let_results_age
from tests.executions.engines import completed, status
from tests.executions.steps import advance_due_executions, let_pass, make_active, read, request_for
from tests.factories import make_execution, make_workflow

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.databases(
        "executions.runner.lease", "executions.local_worker", "audit.sealing", "executions.result_cache"
    ),
]
DAY = 86_400.0


@pytest.fixture(autouse=True)
def _sources_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_correct_sources", tasks.discovery.correct_times)


def set_back(execution: Execution, seconds: float = DAY) -> None:
    """The clock, after it wrote all of the row's times."""
    let_pass(execution, -seconds)


@pytest.mark.parametrize("seconds", [DAY, 7200.0, 300.0])
def test_a_run_whose_times_lie_ahead_is_polled_and_keeps_its_timeout(engine, workflow, seconds):
    """It was polled only once the time was reached, and its timeout passed no earlier."""
    engine.on_status = replies(200, status())
    running = make_active(workflow, State.RUNNING, polled_at=timezone.now())
    set_back(running, seconds)
    advance_due_executions()
    assert engine.count("status") == 0

    correct_times()
    let_pass(running, 2)  # The engine's minimum between two polls
    advance_due_executions()

    found = read(running)
    assert engine.count("status") == 1 and found.state == State.RUNNING
    now = timezone.now()
    assert found.polled_at is not None and found.polled_at <= now
    assert found.deadline_at <= now + timedelta(seconds=found.timeout_seconds)
    assert found.next_attempt_at <= now + timedelta(seconds=60)


def test_a_cancellation_that_was_requested_ahead_is_carried_out(engine, workflow):
    engine.on_status = replies(200, completed())
    running = make_active(workflow, State.RUNNING, cancel_requested_at=timezone.now())
    set_back(running)
    correct_times()
    advance_due_executions()
    assert engine.count("cancel") == 1


def test_a_lease_that_ends_far_ahead_is_lost_after_its_usual_time(engine, workflow):
    """And not before, since its holder may be alive and only have a wrong clock."""
    running = make_active(workflow, State.RUNNING)
    far = timezone.now() + timedelta(seconds=DAY)
    Execution.objects.filter(pk=running.pk).update(lease_holder="a process", lease_expires_at=far)

    correct_times()

    expires_at = read(running).lease_expires_at
    assert expires_at is not None and timedelta() < expires_at - timezone.now() <= LEASE
    assert claim_due_executions(limit=1) == []
    let_pass(running, LEASE.total_seconds() + 1)
    assert [claimed.pk for claimed in claim_due_executions(limit=1)] == [running.pk]


def test_times_of_clocks_that_differ_by_seconds_stay(workflow):
    running = make_active(workflow, State.RUNNING, polled_at=timezone.now())
    set_back(running, 30)
    before = read(running)
    correct_times()
    after = read(running)
    for name in ("polled_at", "next_attempt_at", "deadline_at", "started_at"):
        assert getattr(after, name) == getattr(before, name)


def test_runs_during_which_the_clock_was_set_back_teach_nothing(engine, workflow):
    """After five of them, each poll of the workflow's runs failed with an internal error."""
    now = timezone.now()
    for _ in range(6):
        run = Execution(workflow=workflow, started_at=now, polled_at=now + timedelta(hours=2))
        learn_from_end(run, ended_at=None)
    engine.on_status = replies(200, status())
    running = make_active(workflow, State.RUNNING)

    advance_due_executions()

    assert read(running).attempts == 0 and read(running).polls == 1


def test_another_process_stands_in_for_workers_that_were_last_seen_in_the_future():
    """None did until the time was reached."""
    note_worker()
    WorkerPresence.objects.update(seen_at=timezone.now() + timedelta(days=1))
    assert not stand_in("a")
    assert WorkerPresence.objects.get().seen_at <= timezone.now()
    WorkerPresence.objects.update(seen_at=F("seen_at") - SILENCE - timedelta(seconds=1))
    assert stand_in("a")


def test_a_source_that_was_listed_in_the_future_is_due(engine, workflow):
    """And its listing's lease is that of a process that may be alive."""
    source = workflow.source
    far = timezone.now() + timedelta(days=1)
    Source.objects.update(last_refreshed_at=far, next_refresh_at=far, refresh_lease_expires_at=far)
    correct_times()
    assert due_sources() == []
    Source.objects.update(refresh_lease_expires_at=F("refresh_lease_expires_at") - timedelta(seconds=61))
    assert due_sources() == [source.pk]


def test_calls_that_ended_after_the_clock_was_set_back_are_sealed():
    """They were missing in the audit for ever if the clock had been ahead by more than a minute or two."""
    workflow = make_workflow()
    ahead = timezone.now() + timedelta(days=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timezone, "now", lambda: ahead)
        seal()
    make_execution(workflow, state=State.COMPLETED, finished_at=timezone.now())

    seal()

    assert Entry.objects.filter(event="call.ended").count() == 1
    assert verify().holds


def test_a_result_from_a_clock_that_was_ahead_answers_no_calls():
    """It would be a day older than its workflow allows; and the cleaning goes on."""
    workflow = cache_for(make_workflow(name="report"))
    digest = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    finish_run(workflow, digest=digest, output={"run": 1})
    let_results_age(-DAY)
    assert create_execution(request_for("report")).cached_at is None

    clean_result_cache()
    CachePolicy.objects.update(cleaned_at=timezone.now() + timedelta(days=1))
    clean_result_cache()
    cleaned_at = CachePolicy.objects.get().cleaned_at
    assert cleaned_at is not None and cleaned_at <= timezone.now()


def test_the_plan_of_an_engine_that_wants_few_polls_is_not_a_wrong_clock(engine, workflow, monkeypatch):
    rare = Capabilities(min_poll_seconds=DAY)
    monkeypatch.setattr(SimplifiedConnector, "capabilities", rare)
    engine.on_status = replies(200, status())
    ends_at = timezone.now() + timedelta(days=7)
    execution = make_active(workflow, State.RUNNING, timeout_seconds=int(7 * DAY), deadline_at=ends_at)
    advance_due_executions()
    planned = read(execution).next_attempt_at
    assert planned > timezone.now() + timedelta(minutes=50)
    correct_times()
    assert read(execution).next_attempt_at == planned
