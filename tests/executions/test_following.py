"""Runs that nobody waits for: polls, engines that misbehave meanwhile, deadlines, and who may ask when."""

import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.utils import timezone
from loguru import logger

from catalogue.models import Source, Workflow
from connectors.background import run_in_background_loop
from connectors.testing import free_port
from executions.advancing import advance
from executions.models import Execution, State
from executions.reading import UnknownExecution, describe_execution, find_execution
from executions.runner.follow import CANCELLATION_GRACE
from executions.runner.lease import LANE_ROOM, Lane, claim_due_executions
from tests.connectors.scripted import replies, sends_and_hangs_up, stays_silent_after
from tests.executions.engines import (
    Gate,
    completed,
    in_turn,
    status,
)
from tests.executions.steps import (
    ADMIN,
    ALICE,
    BOB,
    advance_due_executions,
    expire_lease,
    let_pass,
    make_active,
    payload_of,
    reach_deadline,
    read,
    timeline,
    told,
)
from tests.factories import make_execution, make_source, make_workflow
from tests.threads import together

pytestmark = pytest.mark.django_db(transaction=True)

GRACE = CANCELLATION_GRACE.total_seconds()
NOT_FOUND = replies(404, {"error": "no such run"})
HTML = replies(200, "<html><body>Please log in</body></html>", content_type="text/html")


@pytest.fixture
def running(workflow: Workflow) -> Execution:
    """A run at the wire engine that nobody waits for, due for a poll."""
    return make_active(workflow, State.RUNNING)


def tick(execution: Execution, *, after: float = 40) -> Execution:
    """One tick of a worker, that much later."""
    let_pass(execution, after)
    advance_due_executions()
    return read(execution)


# What polls find.


def test_a_worker_records_progress_when_it_is_news_and_the_result(engine, running):
    """A7.3, A8.2, A8.4: the timeline has each step once, the record the latest."""
    engine.on_status = in_turn(
        replies(200, status(progress=25, progress_message="reading")),
        replies(200, status(progress=25, progress_message="reading")),
        replies(200, status(progress=80.5, progress_message="adding up")),
        replies(200, completed({"sum": 3})),
    )
    for expected in [(25.0, "reading"), (25.0, "reading"), (80.5, "adding up")]:
        record = tick(running)
        assert (record.progress, record.progress_message) == expected
        assert record.lease_holder == ""
    record = tick(running)
    assert record.succeeded and record.payload.output == {"sum": 3}
    assert told(record, "progress") == ["25 % reading", "80.5 % adding up"]
    assert record.polls == engine.count("status") == 4, "B3: the poll that shows the end counts too"
    assert advance_due_executions() == 0


@pytest.fixture
def log() -> Iterator[list[str]]:
    lines: list[str] = []
    sink = logger.add(lines.append, level="DEBUG", format="{level} {message} {extra[execution]}")
    yield lines
    logger.remove(sink)


def test_progress_and_the_end_of_a_run_reach_the_log(engine, running, log):
    """A5.2, A7.3: each step once, where a log of many runs has room for it, and a failure with the engine's
    words."""
    engine.on_status = in_turn(
        replies(200, status(progress=25, progress_message="reading")),
        replies(200, status(progress=25, progress_message="reading")),
        replies(200, status(progress=80, progress_message="adding\nINFO up")),
        replies(200, status("FAILED", error="line 7 has 3 columns instead of 4")),
    )
    for _ in range(4):
        tick(running)
    steps, end = log[:-1], log[-1]
    assert steps == [
        f"DEBUG Progress: {news} {running.pk}\n" for news in ("25 % reading", "80 % adding\nINFO up")
    ]
    assert end.startswith("WARNING Execution failed after ")
    assert end.endswith(f": line 7 has 3 columns instead of 4 {running.pk}\n")


def test_a_long_traceback_keeps_its_beginning_and_its_last_line(engine, running):
    """A2.4, A7.4: the last line says what happened."""
    frames = "\n".join(f'  File "/app/step.py", line {line}, in run' for line in range(400))
    last = "ValueError: line 7 has 3 columns instead of 4"
    engine.on_status = replies(200, status("FAILED", error=f"Traceback:\n{frames}\n{last}"))
    error = tick(running).error
    assert error.startswith("Traceback:\n") and error.endswith(last)
    assert "characters left out" in error and len(error) < 4_100


def test_runs_are_followed_though_their_workflow_was_disabled(engine, running):
    """A1.3, A4.4: switching off stops new runs; what runs is followed to its end."""
    Workflow.objects.update(enabled=False, missing_since=timezone.now())
    Source.objects.update(enabled=False)
    engine.on_status = replies(200, completed())
    assert tick(running).succeeded


def test_a_run_whose_workflow_was_deleted_says_that_nobody_can_ask(engine, running):
    """B5, A7.5: it may still be running there: nobody is told to try again, and an admin resolves it."""
    Workflow.objects.all().delete()
    record = tick(running)
    assert (record.state, record.error_kind) == (State.UNCONFIRMED, "configuration")
    assert "may still be running at the engine. Check it there before you start it again" in record.error
    assert engine.requests == []
    assert record.confirm_ran({"found": "there"}, by="Ada")


def test_a_source_that_is_reconfigured_is_asked_with_its_new_settings(engine, running):
    """A4.4: a key that was replaced counts for the runs that are under way, too."""
    tick(running)
    source = Source.objects.get()
    source.credentials = {"api_key": "another-key-9876543210"}
    source.save()
    tick(running)
    keys = [request.received.headers["authorization"] for request in engine.asked("status")]
    assert keys == ["Api-Key example-key-0123456789", "Api-Key another-key-9876543210"]


# Engines that do not answer as they should.


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        (replies(401, {"error": "key expired"}), "key expired"),
        (replies(500, {"error": "database gone"}), "database gone"),
        (replies(200, status("PAUSED")), "PAUSED"),
        (HTML, "expected JSON"),
        (sends_and_hangs_up(), "connection broke"),
    ],
    ids=["401", "500", "unknown status", "HTML", "hangs up"],
)
def test_a_bad_answer_to_a_poll_keeps_the_run_until_its_deadline(engine, running, behaviour, words):
    """A7.2, B6: what the engine cannot tell now it may tell later; the timeline says it once."""
    engine.on_status = behaviour
    for _ in range(5):
        record = tick(running)
        assert record.state == State.RUNNING
    assert len(told(running, "poll_failed")) == 1 and words in told(running, "poll_failed")[0]

    engine.on_status = replies(200, completed())
    assert tick(running).succeeded


def test_a_run_that_the_engine_never_tells_of_ends_at_its_deadline(engine, running):
    """A7.2, A7.5."""
    engine.on_status = replies(401, {"error": "key expired"})
    engine.on_cancel = replies(401, {"error": "key expired"})
    tick(running)
    reach_deadline(running)
    advance_due_executions()
    record = read(running)
    assert (record.state, record.error_kind) == (State.TIMED_OUT, "timeout")
    assert "timeout of 300 s and the engine does not report its outcome" in record.error
    assert "key expired" in record.error


def test_an_engine_that_is_away_for_hours_costs_nothing_but_time():
    """B6: however many polls have failed in a row, the next one is planned within a minute."""
    away = make_workflow(make_source(base_url=f"http://127.0.0.1:{free_port()}"))
    execution = make_active(away, State.RUNNING, attempts=5000, timeout_seconds=2_592_000)
    advance_due_executions()
    record = read(execution)
    assert record.state == State.RUNNING and record.attempts == 5001
    assert record.next_attempt_at <= timezone.now() + timedelta(seconds=60)


def test_polls_that_fail_back_off(engine, running):
    """B7: an engine in trouble is not asked ever more."""
    engine.on_status = replies(500)
    waits = []
    for _ in range(8):
        waits.append((tick(running, after=61).next_attempt_at - timezone.now()).total_seconds())
        Execution.objects.update(deadline_at=timezone.now() + timedelta(hours=1))
    assert [round(wait) for wait in waits] == [1, 2, 4, 8, 16, 32, 60, 60]


def test_the_engines_retry_after_holds_for_polls(engine, running):
    """B2, B4."""
    engine.on_status = replies(429, {"error": "slow down"}, retry_after="90")
    wait = tick(running).next_attempt_at - timezone.now()
    assert 85 < wait.total_seconds() <= 90


def test_a_run_that_an_engine_back_from_an_outage_does_not_know_is_given_up_within_seconds(engine, running):
    """A8.2: not as seldom as an engine is asked that is away; and meanwhile its status says so."""
    engine.on_status = in_turn(replies(200, status()), *[replies(500)] * 7, NOT_FOUND)
    for _ in range(8):
        tick(running, after=61)
        Execution.objects.update(deadline_at=timezone.now() + timedelta(hours=1))
    waits = []
    for _ in range(3):
        record = tick(running, after=61)
        waits.append(round((record.next_attempt_at - timezone.now()).total_seconds()))
        assert "no such run" in describe_execution(record)["status_problem"]
        Execution.objects.update(deadline_at=timezone.now() + timedelta(hours=1))
    assert waits == [1, 2, 4]
    assert len(told(running, "poll_failed")) == 2
    assert tick(running).state == State.FAILED
    assert "status_problem" not in describe_execution(read(running))


# Engines that do not tell how runs are.


@pytest.mark.parametrize(
    "answer", [NOT_FOUND, replies(405), replies(501, {"error": "not implemented"})], ids=["404", "405", "501"]
)
def test_a_run_of_an_engine_that_tells_of_none_is_left_to_a_human_and_says_not_supported(
    engine, running, answer
):
    """A8.5: it took the start, so nobody may call it failed, nor wait for its timeout."""
    engine.on_status = answer
    for _ in range(3):
        assert tick(running).state == State.RUNNING
        assert "did not return the run's state" in read(running).poll_problem
    record = tick(running)
    assert (record.state, record.error_kind) == (State.UNCONFIRMED, "execution")
    assert record.error.startswith(f"Status is not supported: the engine behind {record.source_name}")
    assert "accepted the start as run run-1, which may still be running there" in record.error
    assert engine.count("cancel") == 0
    assert record.confirm_ran({"found": "there"}, by="Ada")


def test_an_engine_whose_settings_name_no_status_path_is_not_asked(engine):
    """A8.5: the caller need not wait to be told."""
    source = make_source(base_url=engine.base_url, config={"status_path": ""})
    execution = make_active(make_workflow(source), State.RUNNING)
    assert tick(execution).state == State.UNCONFIRMED
    assert "Status is not supported" in read(execution).error
    assert engine.requests == []


@pytest.mark.parametrize("answer", [NOT_FOUND, replies(501)], ids=["404", "501"])
@pytest.mark.databases("executions.runner.follow")
def test_an_engine_that_has_told_of_another_run_is_believed_to_be_able_to(engine, workflow, answer):
    """A8.5: then "not found" means this run, and "not implemented" an engine in trouble."""
    engine.on_status = replies(200, completed())
    assert tick(make_active(workflow, State.RUNNING)).succeeded
    running, engine.on_status = make_active(workflow, State.RUNNING), answer
    for _ in range(3):
        tick(running)
    assert tick(running).state == (State.FAILED if answer is NOT_FOUND else State.RUNNING)


def test_a_cancel_that_the_engine_has_no_operation_for_is_not_supported(engine, running):
    """A8.5: it is told once, and the run is followed to its end."""
    engine.on_cancel = replies(501, {"error": "not implemented"})
    assert read(running).request_cancel("Alice")
    tick(running)
    record = tick(running)
    assert engine.count("cancel") == 1
    assert "501 Not Implemented" in record.cancel_refusal and record.state == State.RUNNING


def test_only_not_found_in_a_row_counts(engine, running):
    """An engine that is being restarted: away for a while, and then not all there for a moment."""
    broken = replies(500)
    engine.on_status = in_turn(
        *[NOT_FOUND, broken] * 4, *[broken] * 4, *[NOT_FOUND] * 3, replies(200, completed())
    )
    for _ in range(15):
        assert tick(running, after=62).state == State.RUNNING
        Execution.objects.update(deadline_at=timezone.now() + timedelta(hours=1))
    assert tick(running, after=62).succeeded


# Deadlines.


def test_the_deadline_is_noticed_in_time(engine, workflow):
    """A7.2: the interval grows with the run's age, but not beyond the deadline."""
    soon = timezone.now() + timedelta(seconds=12)
    execution = make_active(workflow, State.RUNNING, deadline_at=soon)
    advance_due_executions()
    record = read(execution)
    assert record.next_attempt_at == record.deadline_at


def test_a_result_that_nobody_asked_for_in_time_is_kept(engine, running):
    """Poll against timeout: workers that were away find the run complete, and lose nothing."""
    engine.on_cancel = replies(409, {"error": "it has ended"})
    engine.on_status = replies(200, completed({"sum": 3}))
    reach_deadline(running)
    advance_due_executions()
    record = read(running)
    assert record.succeeded and record.payload.output == {"sum": 3}
    assert told(record, "cancel_refused")


@pytest.mark.parametrize(
    "behaviour", [replies(409, {"error": "not now"}), replies(500), stays_silent_after()],
    ids=["refused", "500", "silence"],
)  # fmt: skip
def test_a_run_that_cannot_be_cancelled_times_out_and_says_so(engine, behaviour):
    """A7.5: best effort at the engine, and the truth in the record."""
    impatient = make_source(base_url=engine.base_url, config={"request_timeout_seconds": 0.5})
    execution = make_active(make_workflow(impatient), State.RUNNING)
    engine.on_cancel = behaviour
    reach_deadline(execution)
    advance_due_executions()
    if not read(execution).cancel_refusal:
        # Nobody knows whether it heard: it is told again, and polled until its time for that is over.
        assert read(execution).state == State.RUNNING
        let_pass(execution, GRACE)
        advance_due_executions()
    record = read(execution)
    assert record.state == State.TIMED_OUT
    assert "the engine has not cancelled it: it may still be running there" in record.error
    assert engine.count("cancel") == (1 if record.cancel_refusal else 2)


# The grace of a run whose timeout has passed: its engine may take a while to cancel it.


def pass_deadline(execution: Execution) -> Execution:
    """The step that notices it; the run goes on so far."""
    reach_deadline(execution)
    advance_due_executions()
    record = read(execution)
    assert record.state == State.RUNNING and record.overdue_since is not None
    assert record.state_label == "being ended, as its timeout has passed"
    assert record.next_attempt_at > timezone.now()
    return record


def test_a_run_that_follows_its_cancellation_a_little_later_is_recorded_as_cancelled(engine, running):
    """A7.5: polls go on until the engine says what came of it."""
    engine.on_cancel = replies(200, {})
    engine.on_status = in_turn(*[replies(200, status())] * 3, replies(200, status("CANCELLED")))
    pass_deadline(running)
    for _ in range(2):
        assert tick(running, after=2).state == State.RUNNING
    record = tick(running, after=2)
    assert (record.state, record.error_kind) == (State.TIMED_OUT, "timeout")
    assert record.error == "It took longer than its timeout of 300 s and was cancelled at the engine."
    assert engine.count("cancel") == 1
    assert timeline(record)[-3:] == ["overdue", "cancel_sent", "timed_out"]


@pytest.mark.parametrize(
    ("end", "state"),
    [(completed({"sum": 3}), State.COMPLETED), (status("FAILED", error="no paper"), State.FAILED)],
    ids=["completed", "failed"],
)
def test_a_run_that_ends_otherwise_after_its_deadline_is_recorded_as_it_ended(engine, running, end, state):
    """A7.2, A7.4: what the engine says counts, not what it was told to do."""
    engine.on_cancel, engine.on_status = (
        replies(200, {}),
        in_turn(replies(200, status()), replies(200, end)),
    )
    pass_deadline(running)
    assert tick(running, after=2).state == state


def test_a_run_that_does_not_follow_its_cancellation_is_given_up_after_its_grace(engine, running):
    """A7.5: the truth at that time, by a last look."""
    engine.on_cancel = replies(200, {})
    pass_deadline(running)
    assert tick(running, after=GRACE / 2).state == State.RUNNING
    record = tick(running, after=GRACE)
    assert record.state == State.TIMED_OUT
    assert "the engine has not cancelled it: it may still be running there" in record.error
    assert engine.count("status") == 3


def test_an_engine_that_is_away_at_the_deadline_is_told_to_cancel_when_it_is_back(engine, running):
    """A7.5: within the grace."""
    engine.on_cancel = in_turn(sends_and_hangs_up(), replies(200, {}))
    engine.on_status = in_turn(sends_and_hangs_up(), replies(200, status("CANCELLED")))
    pass_deadline(running)
    record = tick(running, after=5)
    assert record.state == State.TIMED_OUT and "was cancelled at the engine" in record.error


def test_workers_that_were_away_at_the_deadline_give_the_run_its_whole_grace(engine, running):
    """A7.5: it is counted from when somebody noticed."""
    engine.on_cancel = replies(200, {})
    reach_deadline(running)
    let_pass(running, 3600)
    advance_due_executions()
    assert read(running).state == State.RUNNING
    engine.on_status = replies(200, status("CANCELLED"))
    assert "was cancelled at the engine" in tick(running, after=2).error


@pytest.mark.databases("executions.runner.follow")
def test_a_worker_that_is_killed_within_the_grace_leaves_it_to_another(engine, running):
    """B8: which neither cancels again nor begins the grace anew."""
    engine.on_cancel = replies(200, {})
    pass_deadline(running)
    expire_lease(running)
    record = tick(running, after=GRACE + 1)
    assert record.state == State.TIMED_OUT and engine.count("cancel") == 1


@pytest.mark.parametrize(("asked_first", "state"), [(True, State.CANCELLED), (False, State.TIMED_OUT)])
def test_whether_somebody_or_the_timeout_cancelled_a_run_is_told_by_who_was_first(
    engine, running, asked_first, state
):
    """A7.5: cancelling what is to be cancelled anyway changes nothing."""
    engine.on_cancel = replies(200, {})
    if asked_first:
        assert read(running).request_cancel("Alice")
    pass_deadline(running)
    if not asked_first:
        assert read(running).request_cancel("Alice")
    engine.on_status = replies(200, status("CANCELLED"))
    assert tick(running, after=2).state == state
    assert engine.count("cancel") == 1


@pytest.mark.databases("executions.runner.follow")
def test_only_one_of_two_processes_notices_that_the_timeout_has_passed(engine, running):
    """B8: the other, whose lease has run out meanwhile, leaves the engine alone."""
    reach_deadline(running)
    (slow,) = claim_due_executions(limit=10)
    expire_lease(running, holder=slow.lease_holder)
    advance_due_executions()
    before = len(engine.requests)
    run_in_background_loop(advance(slow))
    assert len(engine.requests) == before
    assert timeline(running).count("overdue") == 1


def test_a_run_of_an_engine_that_cannot_cancel_times_out_all_the_same(engine):
    """A8.5."""
    source = make_source(base_url=engine.base_url, config={"cancel_path": ""})
    execution = make_active(make_workflow(source), State.RUNNING)
    reach_deadline(execution)
    advance_due_executions()
    assert read(execution).state == State.TIMED_OUT
    assert told(execution, "cancel_refused") == ["This engine cannot cancel a run."]
    assert engine.count("cancel") == 0


# Who asks, and when.


def test_whoever_asks_the_engine_keeps_its_minimum(engine, running):
    """B2: a worker that comes too early for the engine does not ask, and comes back in time."""
    advance_due_executions()
    Execution.objects.update(next_attempt_at=timezone.now())

    assert advance_due_executions() == 1

    record = read(running)
    assert engine.count("status") == 1
    assert record.next_attempt_at == record.polled_at + timedelta(seconds=1)


def test_the_interval_grows_with_the_age_of_the_run(engine, running):
    """B4, B7: 5 s at first, a tenth of the age later, a minute at most."""
    Execution.objects.update(deadline_at=timezone.now() + timedelta(days=1))
    waits = [(tick(running, after=after).next_attempt_at - timezone.now()).seconds for after in (0, 90, 2000)]
    assert [round(wait, -1) for wait in waits] == [0, 10, 60] or waits == [4, 9, 59]


def test_a_run_that_waited_long_for_its_start_is_young(engine, running):
    """B4: it is asked about as often as any that has just begun, however old the call is."""
    Execution.objects.update(created_at=timezone.now() - timedelta(hours=1))
    assert tick(running, after=0).next_attempt_at < timezone.now() + timedelta(seconds=6)


@pytest.mark.databases("executions.runner.follow")
def test_two_pollers_record_one_end(engine, running):
    """The slower one finds the row settled: what the faster one recorded stays."""
    gate = Gate(replies(200, completed({"by": "the slow one"})))
    engine.on_status = in_turn(gate, replies(200, completed({"by": "the fast one"})))
    slow = threading.Thread(target=advance_due_executions)
    slow.start()
    gate.wait_for_request()
    expire_lease(running)
    assert advance_due_executions() == 1

    gate.open()
    slow.join()

    assert payload_of(running).output == {"by": "the fast one"}
    assert timeline(running).count("completed") == 1


# Claims.


def make_due(count: int, workflow: Workflow) -> list[Execution]:
    return [make_active(workflow, State.RUNNING) for _ in range(count)]


@pytest.mark.databases("executions.runner.lease")
def test_several_workers_claim_each_execution_once():
    """Two workers, two databases: compare-and-set, no locks that SQLite does not have."""
    executions, workflow = 60, make_workflow()
    make_due(executions, workflow)

    def work() -> list[Execution]:
        mine: list[Execution] = []
        while taken := claim_due_executions(limit=7):
            mine += taken
        return mine

    claimed = together(*[work] * 4)

    keys = [execution.pk for mine in claimed for execution in mine]
    assert len(keys) == len(set(keys)) == executions
    assert all(
        execution.lease_holder == read(execution).lease_holder for mine in claimed for execution in mine
    )


@pytest.mark.parametrize("count", [1, 30])
@pytest.mark.databases("executions.runner.lease")
def test_a_claim_costs_few_queries_however_many_are_due(count, django_assert_num_queries):
    """E7."""
    make_due(count, make_workflow())
    # What is due, who gets it (in a transaction), what it is, and of which workflows.
    with django_assert_num_queries(6):
        claimed = claim_due_executions(limit=100)
    with django_assert_num_queries(0):
        assert all(execution.workflow.source.name for execution in claimed if execution.workflow)
    assert len(claimed) == count
    with django_assert_num_queries(1):
        assert claim_due_executions(limit=100) == []


@pytest.mark.databases("executions.runner.lease")
def test_only_what_is_due_active_and_free_is_claimed():
    """A8.1: the earliest first, those of busy sources not at all."""
    workflow, busy = make_workflow(), make_workflow(make_source("busy"))
    in_flight = {Lane("busy", polls=True): LANE_ROOM}
    later = timezone.now() + timedelta(minutes=1)
    first, second = make_due(2, workflow)
    let_pass(first, 100)
    make_active(busy, State.RUNNING)
    make_execution(workflow, state=State.RUNNING, next_attempt_at=later)
    held = make_active(workflow, State.RUNNING)
    held.hold(holder="another", until=later)
    for state in (State.COMPLETED, State.FAILED, State.CANCELLED, State.TIMED_OUT, State.UNCONFIRMED):
        make_active(workflow, state)

    assert [e.pk for e in claim_due_executions(limit=1, in_flight=in_flight)] == [first.pk]
    assert [e.pk for e in claim_due_executions(limit=9, in_flight=in_flight)] == [second.pk]


# Who may see what.


def test_a_caller_sees_what_it_started_and_an_administrator_everything(workflow):
    """A8.1, B8: another's execution is as unknown as one that never was."""
    execution = make_active(workflow, State.RUNNING)
    assert find_execution(str(execution.pk), caller=ALICE) == execution
    assert find_execution(str(execution.pk), caller=ADMIN) == execution
    for unknown in (str(execution.pk), "8f496b6a-c905-41bb-b7b7-200a8982ab30", "no id", ""):
        with pytest.raises(UnknownExecution, match="Unknown execution"):
            find_execution(unknown, caller=BOB)
    assert not Execution.objects.visible_to(BOB).exists()
