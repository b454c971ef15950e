"""The state machine: what each verb does from each state, and that it does nothing from the others."""

import itertools
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from catalogue.models import Workflow
from connectors.protocol import RunSnapshot, RunState, Started
from executions.models import (
    ACTIVE,
    FINAL,
    OPEN,
    ErrorKind,
    Execution,
    ExecutionEvent,
    ExecutionPayload,
    State,
)
from tests.executions.steps import read, timeline
from tests.factories import make_execution, make_workflow
from tests.tables import table_row

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.databases(
        "executions.models.lifecycle", "executions.models.statements", "executions.models.transitions"
    ),
]

SOON = timezone.now() + timedelta(hours=1)
PAST = timezone.now() - timedelta(minutes=1)
STARTED = Started(run_id="run-7", correlation_id="corr-7", raw={"id": 7})
HOLDER = "this process"
RUNNING = RunSnapshot(state=RunState.RUNNING, progress=50.0, progress_message="half", raw={"half": True})
COMPLETED = RunSnapshot(state=RunState.COMPLETED, output={"sum": 3}, raw={"whole": True})
FAILED = RunSnapshot(state=RunState.FAILED, error="no paper", raw={"whole": True})
CANCELLED = RunSnapshot(state=RunState.CANCELLED, error="by the operator", raw={"whole": True})


ALL = tuple(State)
NOT_CANCELLED = tuple(state for state in State if state != State.CANCELLED)


@dataclass(frozen=True)
class Verb:
    """How a verb is said, from which states it is allowed, where it leads (None: it stays), what it tells."""

    say: Callable[[Execution], bool]
    allowed: tuple[State, ...]
    leads_to: State | None = None
    events: str = ""
    row: dict[str, Any] = field(default_factory=dict)
    """What else has to be true of the row."""


VERBS = {
    "hold": Verb(lambda e: e.hold(holder=HOLDER, until=SOON), ACTIVE),
    "release_lease": Verb(lambda e: e.release_lease(holder=HOLDER), ACTIVE),
    "begin_start": Verb(lambda e: e.begin_start(), (State.PENDING,), State.STARTING),
    "postpone_start": Verb(
        lambda e: e.postpone_start(next_attempt_at=SOON, why="busy"),
        (State.STARTING,),
        State.PENDING,
        "start_postponed",
    ),
    "postpone_start (unsure)": Verb(
        lambda e: e.postpone_start(next_attempt_at=SOON, why="silence", unsure=True),
        (State.STARTING,),
        None,
        "start_unknown",
    ),
    "mark_running": Verb(
        lambda e: e.mark_running(STARTED, next_attempt_at=SOON),
        (State.STARTING,),
        State.RUNNING,
        "started",
    ),
    "finish_start (completed)": Verb(
        lambda e: e.finish_start(STARTED, COMPLETED), (State.STARTING,), State.COMPLETED, "started completed"
    ),
    "finish_start (failed)": Verb(
        lambda e: e.finish_start(STARTED, FAILED), (State.STARTING,), State.FAILED, "started failed"
    ),
    "finish_start (cancelled)": Verb(
        lambda e: e.finish_start(STARTED, CANCELLED), (State.STARTING,), State.CANCELLED, "started cancelled"
    ),
    "schedule_run_lookup": Verb(
        lambda e: e.schedule_run_lookup(next_attempt_at=SOON, why="silence"),
        (State.STARTING,),
        None,
        "looked_up",
    ),
    "conclude_not_started": Verb(
        lambda e: e.conclude_not_started("no run"), (State.STARTING,), State.FAILED, "failed"
    ),
    "conclude_not_started (cancelled)": Verb(
        lambda e: e.conclude_not_started("no run"),
        (State.STARTING,),
        State.CANCELLED,
        "cancelled",
        {"cancel_requested_at": PAST},
    ),
    "confirm_started": Verb(
        lambda e: e.confirm_started("run-7", by="Ada", next_attempt_at=SOON),
        (State.UNCONFIRMED,),
        State.RUNNING,
        "confirmed",
    ),
    "confirm_started (by the engine)": Verb(
        lambda e: e.confirm_started("run-7", by="The answer", next_attempt_at=SOON, started=STARTED),
        (State.UNCONFIRMED,),
        State.RUNNING,
        "confirmed",
    ),
    "confirm_not_started": Verb(
        lambda e: e.confirm_not_started(by="Ada"), (State.UNCONFIRMED,), State.FAILED, "failed"
    ),
    "mark_unconfirmed": Verb(
        lambda e: e.mark_unconfirmed("silence"), (State.STARTING,), State.UNCONFIRMED, "unconfirmed"
    ),
    "lose_run": Verb(lambda e: e.lose_run("deleted"), (State.RUNNING,), State.UNCONFIRMED, "unconfirmed"),
    "record_poll": Verb(
        lambda e: e.record_poll(RUNNING, next_attempt_at=SOON), (State.RUNNING,), None, "progress"
    ),
    "record_failed_poll": Verb(
        lambda e: e.record_failed_poll("silence", next_attempt_at=SOON), (State.RUNNING,), None, "poll_failed"
    ),
    "wait_for_next_poll": Verb(lambda e: e.wait_for_next_poll(next_attempt_at=SOON), (State.RUNNING,)),
    "bring_poll_forward": Verb(
        lambda e: e.bring_poll_forward(unless_since=timezone.now()),
        (State.RUNNING,),
        row={"polled_at": PAST, "next_attempt_at": SOON, "lease_holder": "", "lease_expires_at": None},
    ),
    "record_internal_error": Verb(
        lambda e: e.record_internal_error("a bug", next_attempt_at=SOON), ACTIVE, None, "internal_error"
    ),
    "fail": Verb(lambda e: e.fail("no paper"), ACTIVE, State.FAILED, "failed"),
    "cancel": Verb(lambda e: e.cancel("not needed"), ACTIVE, State.CANCELLED, "cancelled"),
    "time_out": Verb(lambda e: e.time_out("too slow"), ACTIVE, State.TIMED_OUT, "timed_out"),
    "finish_as_reported (completed)": Verb(
        lambda e: e.finish_as_reported(COMPLETED), ACTIVE, State.COMPLETED, "completed"
    ),
    "finish_as_reported (failed)": Verb(
        lambda e: e.finish_as_reported(FAILED), ACTIVE, State.FAILED, "failed"
    ),
    "finish_as_reported (cancelled)": Verb(
        lambda e: e.finish_as_reported(CANCELLED), ACTIVE, State.CANCELLED, "cancelled"
    ),
    "request_cancel": Verb(lambda e: e.request_cancel("Alice"), ACTIVE, None, "cancel_requested"),
    "request_terminate": Verb(lambda e: e.request_terminate("Alice"), ACTIVE, None, "terminate_requested"),
    "mark_overdue": Verb(lambda e: e.mark_overdue(), (State.RUNNING,), None, "overdue"),
    "mark_cancel_sent": Verb(lambda e: e.mark_cancel_sent(), (State.RUNNING,), None, "cancel_sent"),
    "mark_cancel_refused": Verb(
        lambda e: e.mark_cancel_refused("too late"), (State.RUNNING,), None, "cancel_refused"
    ),
    "mark_not_cancellable": Verb(
        lambda e: e.mark_not_cancellable("not supported"), ACTIVE, None, "not_cancelled"
    ),
    "hold_for_approval": Verb(
        lambda e: e.hold_for_approval("Each call needs approval.", approval_hash="0" * 64),
        (State.PENDING,),
        State.UNAPPROVED,
        "unapproved",
    ),
    "approve": Verb(lambda e: e.approve("anna approved it."), (State.UNAPPROVED,), State.PENDING, "approved"),
    "end_unapproved": Verb(
        lambda e: e.end_unapproved(State.TIMED_OUT, "too late", kind=ErrorKind.TIMEOUT),
        (State.UNAPPROVED,),
        State.TIMED_OUT,
        "timed_out",
    ),
    "admit": Verb(lambda e: e.admit(), (State.PENDING,), None, "admitted", {"admitted_at": None}),
    "cancel_queued": Verb(
        lambda e: e.cancel_queued("Alice"),
        (State.PENDING,),
        State.CANCELLED,
        "cancelled",
        {"admitted_at": None},
    ),
    "give_up_queued (too late)": Verb(
        lambda e: e.give_up_queued("too long", kind=ErrorKind.TIMEOUT),
        (State.PENDING,),
        State.TIMED_OUT,
        "timed_out",
        {"admitted_at": None},
    ),
    "give_up_queued (switched off)": Verb(
        lambda e: e.give_up_queued("switched off", kind=ErrorKind.CONFIGURATION),
        (State.PENDING,),
        State.FAILED,
        "failed",
        {"admitted_at": None},
    ),
    "reattach": Verb(
        lambda e: e.reattach(until=SOON), NOT_CANCELLED, None, "reattached", {"awaited_until": PAST}
    ),
    "mark_answered": Verb(lambda e: e.mark_answered(), ALL, None, "", {"awaited_until": SOON}),
    "mark_unanswered": Verb(
        lambda e: e.mark_unanswered("gone"), ALL, None, "caller_gone", {"awaited_until": SOON}
    ),
    "mark_unanswered (as was said)": Verb(lambda e: e.mark_unanswered(), ALL, None, ""),
}
REFUSED = {name: [state for state in State if state not in verb.allowed] for name, verb in VERBS.items()}


def in_state(state: State, *, of: Workflow | None = None, **row: Any) -> Execution:
    """An execution under our lease, of a workflow of its own unless one is given."""
    execution = make_execution(of, state=state, lease_holder=HOLDER, lease_expires_at=SOON)
    Execution.objects.filter(pk=execution.pk).update(**row)
    for name, value in row.items():
        setattr(execution, name, value)
    return execution


# But for the counter, which the database counts up.
COLUMNS = [column.attname for column in Execution._meta.concrete_fields if column.attname != "polls"]


KEYS = (Execution._meta.pk, ExecutionPayload._meta.pk, ExecutionEvent._meta.get_field("execution"))
ROWS = [f"SELECT * FROM {key.model._meta.db_table} WHERE {key.column} = %s ORDER BY 1" for key in KEYS]


def everything_about(execution: Execution) -> list[list[tuple[Any, ...]]]:
    """Its rows as they are stored; having Django write this SQL each time takes half of the module's time."""
    key = KEYS[0].get_db_prep_value(execution.pk, connection)
    found = []
    with connection.cursor() as cursor:
        for question in ROWS:
            cursor.execute(question, [key])
            found.append(cursor.fetchall())
    return found


@pytest.mark.parametrize("name", VERBS)
def test_an_allowed_verb_moves_the_row_and_the_instance_alike(name, subtests):
    """A8.3, B8: the transition, its event, and the caller's own view of it."""
    verb, workflow = VERBS[name], make_workflow()
    for state in verb.allowed:
        with table_row(subtests, state.value):
            execution = in_state(state, of=workflow, **verb.row)

            assert verb.say(execution)

            stored = read(execution)
            assert stored.state == (verb.leads_to or state)
            assert [name for name in COLUMNS if getattr(stored, name) != getattr(execution, name)] == []
            assert timeline(execution) == ["created", *verb.events.split()]
            if verb.leads_to is not None and stored.is_settled and state != State.UNCONFIRMED:
                assert (stored.lease_holder, stored.lease_expires_at) == ("", None)


@pytest.mark.parametrize("name", [name for name, states in REFUSED.items() if states])
def test_a_refused_verb_returns_false_and_changes_nothing(name, subtests):
    """A caller that comes too late reads the row again instead of insisting."""
    workflow = make_workflow()
    for state in REFUSED[name]:
        with table_row(subtests, state.value):
            execution = in_state(state, of=workflow, **VERBS[name].row)
            before = everything_about(execution)

            assert not VERBS[name].say(execution)

            assert everything_about(execution) == before
            assert execution.state == state


def test_a_stale_instance_cannot_move_a_row_that_was_settled_meanwhile(subtests):
    """Cancel against completion, poll against timeout: the first wins, whatever the other still believes."""
    workflow = make_workflow()
    for name in (name for name, verb in VERBS.items() if verb.leads_to):
        with table_row(subtests, name):
            verb = VERBS[name]
            stale = in_state(verb.allowed[0], of=workflow, **verb.row)
            faster = read(stale)
            assert (
                faster.finish_as_reported(COMPLETED)
                or faster.confirm_not_started(by="Ada")
                or faster.end_unapproved(State.CANCELLED, "Cancelled.", kind=ErrorKind.EXECUTION)
            )
            before = everything_about(stale)

            assert not verb.say(stale)

            assert everything_about(stale) == before
            assert stale.state == verb.allowed[0]


def test_every_state_is_either_active_or_settled_and_the_final_ones_are_settled():
    """A8.2."""
    settled = {state for state in State if Execution(state=state).is_settled}
    assert settled == set(State) - set(OPEN) == {*FINAL, State.UNCONFIRMED}
    assert set(OPEN) - set(ACTIVE) == {State.UNAPPROVED}


@pytest.mark.parametrize("name", ["admit", "cancel_queued", "give_up_queued (too late)"])
def test_what_has_its_place_is_not_in_the_queue_any_more(name):
    """Admitted against cancelled, or given up: whoever was first."""
    admitted = in_state(State.PENDING)
    before = everything_about(admitted)
    assert not VERBS[name].say(admitted)
    assert everything_about(admitted) == before


def test_what_waits_in_the_queue_can_be_held_by_nobody():
    """So that nobody starts it."""
    queued = make_execution(state=State.PENDING)
    Execution.objects.update(admitted_at=None)
    assert not queued.hold(holder=HOLDER, until=SOON)
    assert queued.admit() and queued.hold(holder=HOLDER, until=SOON)


def test_a_start_that_is_confirmed_late_has_its_time_anew():
    """A7.2: nobody could follow it until now."""
    overdue = in_state(State.UNCONFIRMED, deadline_at=PAST, error="silence", error_kind=ErrorKind.EXECUTION)
    assert overdue.confirm_started("run-7", by="Ada", next_attempt_at=SOON)
    left = (read(overdue).deadline_at - timezone.now()).total_seconds()
    assert 200 < left <= overdue.timeout_seconds
    assert (read(overdue).error, read(overdue).error_kind) == ("", "")

    in_time = in_state(State.UNCONFIRMED, deadline_at=SOON)
    assert in_time.confirm_started("run-8", by="Ada", next_attempt_at=SOON)
    assert read(in_time).deadline_at == SOON


IN_HAND = [
    "finish_as_reported (completed)",
    "fail",
    "cancel",
    "time_out",
    "finish_as_reported (failed)",
    "finish_start (completed)",
    "mark_unconfirmed",
    "lose_run",
    "conclude_not_started",
]


CALLERS = {
    "its caller waits here": (True, SOON, None),
    "its caller has gone": (True, PAST, PAST),
    "its caller waits elsewhere": (False, SOON, SOON),
}
"""Whether the caller waits in this process, until when it waits, and what is left of that."""


def test_what_settles_it_in_the_hand_of_its_caller_answers_the_caller(subtests):
    """One statement less for every call; but nobody who has gone counts as answered."""
    workflow = make_workflow()
    for name, caller in itertools.product(IN_HAND, CALLERS):
        with table_row(subtests, f"{name}: {caller}"):
            awaited_here, awaited_until, left = CALLERS[caller]
            execution = in_state(VERBS[name].allowed[0], of=workflow, awaited_until=awaited_until)
            execution.awaited_here = awaited_here
            assert VERBS[name].say(execution)
            assert read(execution).awaited_until == left


def test_a_caller_that_goes_in_the_instant_of_the_end_is_gone():
    """Disconnect against completion: the statement that ends it may have been made a moment before."""
    completed = "finish_as_reported (completed)"
    for first, second in (("mark_unanswered", completed), (completed, "mark_unanswered")):
        execution = in_state(State.RUNNING, awaited_until=SOON)
        execution.awaited_here = True
        assert VERBS[first].say(execution) and VERBS[second].say(execution)
        assert read(execution).awaited_until < timezone.now() - timedelta(seconds=20)


def test_a_failure_without_a_reason_says_so():
    """A2.4."""
    execution = in_state(State.RUNNING)
    execution.finish_as_reported(RunSnapshot(state=RunState.FAILED))
    assert read(execution).error == "The engine gave no reason."


def test_the_duration_is_the_engines_where_it_tells_both_times():
    """B3."""
    begun = timezone.now()
    by_us = Execution(created_at=begun, started_at=begun, finished_at=begun + timedelta(seconds=9))
    by_the_engine = Execution(
        created_at=begun,
        engine_started_at=begun,
        engine_finished_at=begun + timedelta(seconds=3.5),
        finished_at=begun + timedelta(seconds=9),
    )
    assert (by_us.duration_ms, by_the_engine.duration_ms) == (9000, 3500)
    assert Execution(created_at=begun).duration_ms is None
    unsent = Execution(created_at=begun, finished_at=begun + timedelta(seconds=9))
    assert unsent.duration_ms is None


def test_the_run_of_an_execution_whose_workflow_was_deleted_is_an_error():
    """A1.3: the history stays, but the engine cannot be asked."""
    workflow = make_workflow()
    execution = make_execution(workflow, state=State.RUNNING)
    workflow.delete()
    with pytest.raises(ValueError, match="deleted"):
        _ = read(execution).run
    assert read(execution).workflow_name == workflow.name
    assert str(execution) == f"{execution.tool_name} {uuid.UUID(str(execution.pk))}"


def test_only_who_holds_the_lease_of_what_nobody_asked_to_cancel_may_begin_its_start():
    """A start is sent at most once."""
    stale = make_execution(state=State.PENDING, lease_holder=HOLDER, lease_expires_at=SOON)
    Execution.objects.filter(pk=stale.pk).update(lease_holder="another process")
    cancelled = make_execution(state=State.PENDING, lease_holder=HOLDER, lease_expires_at=SOON)
    assert read(cancelled).request_cancel("Alice")

    assert not stale.begin_start()
    assert not cancelled.begin_start()


def test_a_cancel_asked_for_while_a_poll_was_under_way_is_due_at_once():
    """A7.5: what the poll found must not put the cancel off to the next interval."""
    polling = in_state(State.RUNNING)
    assert read(polling).request_cancel("Alice")

    assert polling.record_poll(RUNNING, next_attempt_at=SOON)

    assert read(polling).next_attempt_at <= timezone.now()


def test_a_termination_after_a_cancellation_is_due_at_once_too():
    polling = in_state(State.RUNNING, cancel_requested_at=PAST)
    assert read(polling).request_terminate("Alice")

    assert polling.record_poll(RUNNING, next_attempt_at=SOON)

    assert read(polling).next_attempt_at <= timezone.now()


def test_one_of_two_who_come_back_gets_it():
    execution = in_state(State.COMPLETED, awaited_until=PAST)
    other = read(execution)

    assert execution.reattach(until=SOON)
    assert not other.reattach(until=SOON)
