"""The state machine: what each verb does from each state, and that it does nothing from the others."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from connectors.protocol import RunSnapshot, RunState, Started
from executions.models import ACTIVE, FINAL, Execution, ExecutionEvent, ExecutionPayload, State
from tests.executions.steps import read, timeline
from tests.factories import make_execution, make_workflow

pytestmark = pytest.mark.django_db

SOON = timezone.now() + timedelta(hours=1)
HOLDER = "this process"
RUNNING = RunSnapshot(state=RunState.RUNNING, progress=50.0, progress_message="half", raw={"half": True})
COMPLETED = RunSnapshot(state=RunState.COMPLETED, output={"sum": 3}, raw={"whole": True})
FAILED = RunSnapshot(state=RunState.FAILED, error="no paper", raw={"whole": True})
CANCELLED = RunSnapshot(state=RunState.CANCELLED, error="by the operator", raw={"whole": True})


@dataclass(frozen=True)
class Verb:
    """How a verb is said, from which states it is allowed, and where it leads (None: it stays)."""

    say: Callable[[Execution], bool]
    allowed: tuple[State, ...]
    leads_to: State | None = None
    event: str = ""


VERBS = {
    "hold": Verb(lambda e: e.hold(holder=HOLDER, until=SOON), ACTIVE),
    "let_go": Verb(lambda e: e.let_go(holder=HOLDER), ACTIVE),
    "begin_start": Verb(lambda e: e.begin_start(), (State.PENDING,), State.STARTING),
    "postpone_start": Verb(
        lambda e: e.postpone_start(next_attempt_at=SOON, why="busy"),
        (State.STARTING,),
        State.PENDING,
        "start_postponed",
    ),
    "postpone_start_again": Verb(
        lambda e: e.postpone_start_again(next_attempt_at=SOON, why="silence"),
        (State.STARTING,),
        None,
        "start_unknown",
    ),
    "mark_running": Verb(
        lambda e: e.mark_running(Started(run_id="run-7", raw={"id": 7}), next_attempt_at=SOON),
        (State.STARTING,),
        State.RUNNING,
        "started",
    ),
    "mark_unconfirmed": Verb(
        lambda e: e.mark_unconfirmed("silence"), (State.STARTING,), State.UNCONFIRMED, "unconfirmed"
    ),
    "record_poll": Verb(
        lambda e: e.record_poll(RUNNING, next_attempt_at=SOON), (State.RUNNING,), None, "progress"
    ),
    "record_failed_poll": Verb(
        lambda e: e.record_failed_poll("silence", next_attempt_at=SOON), (State.RUNNING,), None, "poll_failed"
    ),
    "wait_for_next_poll": Verb(lambda e: e.wait_for_next_poll(next_attempt_at=SOON), (State.RUNNING,)),
    "record_internal_error": Verb(
        lambda e: e.record_internal_error("a bug", next_attempt_at=SOON), ACTIVE, None, "internal_error"
    ),
    "complete": Verb(lambda e: e.complete(COMPLETED), ACTIVE, State.COMPLETED, "completed"),
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
    "mark_cancel_sent": Verb(lambda e: e.mark_cancel_sent(), (State.RUNNING,), None, "cancel_sent"),
    "mark_cancel_refused": Verb(
        lambda e: e.mark_cancel_refused("too late"), (State.RUNNING,), None, "cancel_refused"
    ),
}
ALLOWED = [(name, state) for name, verb in VERBS.items() for state in verb.allowed]
REFUSED = [(name, state) for name, verb in VERBS.items() for state in State if state not in verb.allowed]


def in_state(state: State) -> Execution:
    """An execution under our lease."""
    return make_execution(state=state, lease_holder=HOLDER, lease_expires_at=SOON)


def everything_about(execution: Execution) -> list[list[dict[str, Any]]]:
    return [
        list(Execution.objects.filter(pk=execution.pk).values()),
        list(ExecutionPayload.objects.filter(pk=execution.pk).values()),
        list(ExecutionEvent.objects.filter(execution=execution).values()),
    ]


@pytest.mark.parametrize(("name", "state"), ALLOWED)
def test_an_allowed_verb_moves_the_row_and_the_instance_alike(name: str, state: State) -> None:
    """A8.3, B8: the transition, its event, and the caller's own view of it."""
    verb, execution = VERBS[name], in_state(state)

    assert verb.say(execution)

    stored = read(execution)
    assert stored.state == execution.state == (verb.leads_to or state)
    assert stored.lease_holder == execution.lease_holder
    assert stored.next_attempt_at == execution.next_attempt_at
    assert stored.finished_at == execution.finished_at
    assert timeline(execution) == ["created", *([verb.event] if verb.event else [])]


@pytest.mark.parametrize(("name", "state"), REFUSED)
def test_a_refused_verb_returns_false_and_changes_nothing(name: str, state: State) -> None:
    """Whoever comes too late looks again instead of insisting."""
    execution = in_state(state)
    before = everything_about(execution)

    assert not VERBS[name].say(execution)

    assert everything_about(execution) == before
    assert execution.state == state


@pytest.mark.parametrize("name", [name for name, verb in VERBS.items() if verb.leads_to])
def test_a_stale_instance_cannot_move_a_row_that_was_settled_meanwhile(name: str) -> None:
    """Cancel against completion, poll against timeout: the first wins, whatever the other still believes."""
    stale = in_state(VERBS[name].allowed[0])
    assert read(stale).complete(COMPLETED)
    before = everything_about(stale)

    assert not VERBS[name].say(stale)

    assert everything_about(stale) == before


def test_every_state_is_either_active_or_settled_and_the_final_ones_are_settled() -> None:
    """A8.2."""
    settled = {state for state in State if Execution(state=state).is_settled}
    assert settled == set(State) - set(ACTIVE) == {*FINAL, State.UNCONFIRMED}


def lease_held_by_another(until: datetime) -> Execution:
    return make_execution(state=State.RUNNING, lease_holder="another process", lease_expires_at=until)


def test_a_lease_is_held_by_one_process_until_it_expires() -> None:
    """Whoever holds the lease is alone at the engine."""
    held = lease_held_by_another(timezone.now() + timedelta(seconds=30))
    expired = lease_held_by_another(timezone.now() - timedelta(seconds=1))

    assert not held.hold(holder=HOLDER, until=SOON)
    assert expired.hold(holder=HOLDER, until=SOON)
    assert read(held).lease_holder == "another process"
    assert read(expired).lease_holder == HOLDER


def test_a_holder_renews_its_own_lease_and_gives_back_no_other() -> None:
    """A lease that was lost is left to who has it now."""
    ours = make_execution(state=State.RUNNING, lease_holder=HOLDER, lease_expires_at=timezone.now())
    theirs = lease_held_by_another(SOON)

    assert ours.hold(holder=HOLDER, until=SOON) and read(ours).lease_expires_at == SOON
    assert not theirs.let_go(holder=HOLDER) and read(theirs).lease_expires_at == SOON


def test_a_process_that_lost_its_lease_may_not_begin_a_start() -> None:
    """A start is sent at most once: only under the lease, and only while nobody asked to cancel."""
    stale = make_execution(state=State.PENDING, lease_holder=HOLDER, lease_expires_at=SOON)
    Execution.objects.filter(pk=stale.pk).update(lease_holder="another process")
    cancelled = make_execution(state=State.PENDING, lease_holder=HOLDER, lease_expires_at=SOON)
    assert read(cancelled).request_cancel("Alice")

    assert not stale.begin_start()
    assert not cancelled.begin_start()


def test_a_cancel_asked_for_while_a_poll_was_under_way_is_due_at_once() -> None:
    """A7.5: what the poll found must not put the cancel off to the next interval."""
    polling = in_state(State.RUNNING)
    assert read(polling).request_cancel("Alice")

    assert polling.record_poll(RUNNING, next_attempt_at=SOON)

    assert read(polling).next_attempt_at <= timezone.now()


def test_a_cancel_is_asked_for_once() -> None:
    """The record keeps who asked first."""
    execution = in_state(State.RUNNING)
    assert execution.request_cancel("Alice")
    assert not execution.request_cancel("Bob")
    assert read(execution).cancel_requested_by == "Alice"


def test_a_settled_execution_has_no_lease_and_keeps_the_engines_words() -> None:
    """B3."""
    execution = in_state(State.RUNNING)
    assert execution.finish_as_reported(FAILED)
    stored = read(execution)
    assert (stored.lease_holder, stored.lease_expires_at) == ("", None)
    assert (stored.error, stored.error_kind) == ("no paper", "execution")
    assert stored.payload.status_answer == {"whole": True}


def test_a_failure_without_a_reason_says_so() -> None:
    """A2.4."""
    execution = in_state(State.RUNNING)
    execution.finish_as_reported(RunSnapshot(state=RunState.FAILED))
    assert read(execution).error == "The engine gave no reason."


def test_the_duration_is_the_engines_where_it_tells_both_times() -> None:
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


def test_the_run_of_an_execution_whose_workflow_was_deleted_is_an_error() -> None:
    """A1.3: the history stays, but the engine cannot be asked."""
    workflow = make_workflow()
    execution = make_execution(workflow, state=State.RUNNING)
    workflow.delete()
    with pytest.raises(ValueError, match="deleted"):
        _ = read(execution).run
    assert read(execution).workflow_name == workflow.name
    assert str(execution) == f"{execution.tool_name} {uuid.UUID(str(execution.pk))}"
