"""The rules that hold when a run starts decide whether it needs approval, and whose (H10, H11)."""

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.utils import timezone

from access.callers import Caller
from catalogue.actions.toolsets import write_toolset
from catalogue.actions.workflows import override_workflow
from catalogue.models import Toolset, Workflow
from executions import approvals
from executions.approvals import AlreadyDecided, NotAllowed, decide
from executions.models import Approval, Execution, StandingApproval, State
from executions.queue import admit_queued
from executions.starting import create_execution
from tests.connectors.scripted import replies
from tests.executions.engines import completed, until
from tests.executions.queueing import hold_one, make_queued, names_of, queue_up, runs
from tests.executions.steps import advance_due_executions, make_active, read, request_for, wrapping_statements
from tests.executions.test_approvals import anna, ben
from tests.factories import make_toolset
from tests.mcp_bridge.database import in_database
from tests.threads import together

__all__ = ["anna", "ben", "runs"]

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.databases("executions.approvals", "executions.runner.start"),
]


def work() -> None:
    admit_queued()
    advance_due_executions()


def require_by_workflow() -> None:
    override_workflow(Workflow.objects.get(), approval_required=True)


def require_by_rule() -> None:
    rule = {"argument": "/amount", "is": "over", "value": 5}
    override_workflow(Workflow.objects.get(), approval_rules=[rule])


def require_by_toolset() -> None:
    make_toolset("finance", picked=[Workflow.objects.get()], approval_required=True)


def require_by_rule_of_a_toolset() -> None:
    toolset = make_toolset("finance")
    toolset.rules.create(position=1, action="include", subject="name", syntax="glob", pattern="rep*")
    write_toolset(toolset, approval_required=True)


REQUIRE = [require_by_workflow, require_by_rule, require_by_toolset, require_by_rule_of_a_toolset]


def queue(workflow: Workflow) -> Execution:
    return make_queued(workflow, payload={"input": {"amount": 7}, "output": None})


def record(workflow: Workflow) -> Execution:
    """As a REST call does, for a worker to start."""
    return create_execution(request_for("report", {"amount": 7}))


def postpone(workflow: Workflow) -> Execution:
    """The engine was away at the first attempt."""
    asked = record(workflow)
    Execution.objects.update(attempts=1, next_attempt_at=timezone.now())
    return asked


@pytest.mark.parametrize("require", REQUIRE)
@pytest.mark.parametrize("ask", [queue, record, postpone])
def test_a_call_that_waits_to_start_needs_the_approval_that_is_required_since(
    ask, require, engine, workflow, anna
):
    asked = ask(workflow)
    require()
    work()
    held = read(asked)
    assert (held.state, held.admitted_at, held.lease_holder) == (State.UNAPPROVED, None, "")
    assert engine.count("start") == 0
    decide(asked.pk, user=anna, verdict="approve")
    work()
    assert (read(asked).state, engine.count("start")) == (State.RUNNING, 1)


async def test_a_client_that_waits_in_the_queue_is_told_at_once(runs, workflow, anna, configured):
    configured(max_concurrent_per_caller=1)
    first = await hold_one(runs)
    second = await queue_up("second")
    await in_database(require_by_workflow)()
    runs.end()
    assert (await asyncio.wait_for(first, 20)).succeeded
    held = await asyncio.wait_for(second, 20)
    assert held.state == State.UNAPPROVED
    await until(lambda: not read(held).is_awaited, "that it was answered is recorded")
    await in_database(lambda: decide(held.pk, user=anna, verdict="approve"))()
    working = asyncio.ensure_future(in_database(work)())
    await asyncio.to_thread(runs.wait_for, 2)
    runs.end_all()
    await working
    assert names_of(runs) == ["first", "second"]


def test_nobody_approves_their_own_call_that_is_held_later(workflow, anna):
    caller = Caller(key="token:9", name="hers", user_id=anna.pk)
    asked = create_execution(request_for("report", {"amount": 7}, caller=caller))
    require_by_workflow()
    work()
    with pytest.raises(NotAllowed):
        decide(asked.pk, user=anna, verdict="approve")


def test_the_user_of_a_call_may_be_gone_when_it_is_held(workflow, anna):
    caller = Caller(key="token:9", name="hers", user_id=anna.pk)
    asked = create_execution(request_for("report", {"amount": 7}, caller=caller))
    anna.delete()
    require_by_workflow()
    work()
    assert Approval.objects.get(pk=asked.pk).asked_by is None


def need_two() -> None:
    override_workflow(Workflow.objects.get(), approvers_needed=2)


def need_two_for_a_toolset() -> None:
    make_toolset("finance", picked=[Workflow.objects.get()], approval_required=True, approvers_needed=2)


@pytest.mark.parametrize("raise_number", [need_two, need_two_for_a_toolset])
def test_of_a_waiting_call_as_many_must_approve_as_are_needed_now(raise_number, engine, workflow, anna, ben):
    require_by_workflow()
    asked = create_execution(request_for("report", {"amount": 7}))
    raise_number()
    decide(asked.pk, user=anna, verdict="approve")
    work()
    assert (read(asked).state, engine.count("start")) == (State.UNAPPROVED, 0)
    with pytest.raises(AlreadyDecided):
        decide(asked.pk, user=anna, verdict="approve")
    decide(asked.pk, user=ben, verdict="approve")
    work()
    assert (read(asked).state, engine.count("start")) == (State.RUNNING, 1)


@pytest.mark.parametrize("raise_number", [need_two, need_two_for_a_toolset])
def test_an_approved_call_in_the_queue_waits_for_the_second_approver(
    raise_number, engine, workflow, anna, ben
):
    require_by_workflow()
    asked = create_execution(request_for("report", {"amount": 7}))
    decide(asked.pk, user=anna, verdict="approve")
    raise_number()
    work()
    assert (read(asked).state, engine.count("start")) == (State.UNAPPROVED, 0)
    decide(asked.pk, user=ben, verdict="approve")
    work()
    assert (read(asked).state, engine.count("start")) == (State.RUNNING, 1)


@pytest.mark.parametrize("first", [True, False])
def test_a_number_that_was_lowered_counts_too(first, engine, workflow, anna, ben):
    """Also for the one who approved before it was lowered."""
    require_by_workflow()
    need_two()
    asked = create_execution(request_for("report", {"amount": 7}))
    decide(asked.pk, user=anna, verdict="approve")
    override_workflow(Workflow.objects.get(), approvers_needed=1)
    decide(asked.pk, user=anna if first else ben, verdict="approve")
    work()
    assert (read(asked).state, engine.count("start")) == (State.RUNNING, 1)


def deactivate(user: User) -> None:
    User.objects.filter(pk=user.pk).update(is_active=False)


def take_permission(user: User) -> None:
    user.user_permissions.clear()


def delete(user: User) -> None:
    user.delete()


@pytest.mark.parametrize("lose", [deactivate, take_permission, delete])
def test_an_approver_who_may_approve_no_more_does_not_count(lose, engine, workflow, anna, ben):
    require_by_workflow()
    asked = create_execution(request_for("report", {"amount": 7}))
    decide(asked.pk, user=anna, verdict="approve")
    lose(anna)
    work()
    assert (read(asked).state, engine.count("start")) == (State.UNAPPROVED, 0)
    decide(asked.pk, user=ben, verdict="approve")
    work()
    assert engine.count("start") == 1


def test_an_own_approval_counts_no_more_once_the_setting_is_off(engine, workflow, anna, configured):
    require_by_workflow()
    configured(approve_own_calls=True)
    caller = Caller(key="token:9", name="hers", user_id=anna.pk)
    asked = create_execution(request_for("report", {"amount": 7}, caller=caller))
    decide(asked.pk, user=anna, verdict="approve")
    configured(approve_own_calls=False)
    work()
    assert (read(asked).state, engine.count("start")) == (State.UNAPPROVED, 0)


def test_an_approval_for_a_period_that_was_revoked_starts_nothing_that_waits(engine, workflow, anna):
    require_by_workflow()
    engine.on_start = replies(200, completed())
    first = create_execution(request_for("report", {"amount": 7}))
    decide(first.pk, user=anna, verdict="approve", minutes=10)
    work()
    again = create_execution(request_for("report", {"amount": 7}))
    assert again.state == State.PENDING
    approvals.revoke_standing(StandingApproval.objects.get().pk, by="ben")
    work()
    assert (read(again).state, engine.count("start")) == (State.UNAPPROVED, 1)


def test_a_call_that_needs_approval_no_more_starts_once_a_person_decides(engine, workflow, anna):
    require_by_workflow()
    need_two()
    asked = create_execution(request_for("report", {"amount": 7}))
    override_workflow(Workflow.objects.get(), approval_required=False)
    decide(asked.pk, user=anna, verdict="approve")
    work()
    assert (read(asked).state, engine.count("start")) == (State.RUNNING, 1)


def test_a_start_that_may_have_been_sent_is_not_repeated_without_the_approval(engine, workflow):
    asked = make_active(workflow, State.STARTING, run_id="")
    require_by_workflow()
    work()
    assert (read(asked).state, engine.count("start")) == (State.UNCONFIRMED, 0)


# A change of the rules at the moment of the start


@pytest.mark.parametrize("require", REQUIRE)
def test_rules_that_change_between_their_look_and_the_start_hold(require, engine, workflow):
    """The change is committed by another connection just before the statement that begins the start."""
    asked = record(workflow)
    changed = threading.Event()

    def change_first(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        starts = sql.startswith("UPDATE") and "executions_execution" in sql and "starting" in (params or ())
        if starts and not changed.is_set():
            changed.set()
            change = threading.Thread(target=change_and_close, args=(require,))
            change.start()
            change.join()
        return execute(sql, params, many, context)

    with wrapping_statements(change_first):
        work()
    assert changed.is_set()
    assert (read(asked).state, engine.count("start")) == (State.UNAPPROVED, 0)


def change_and_close(change: Callable[[], None]) -> None:
    try:
        change()
    finally:
        connection.close()


def test_other_changes_at_that_moment_do_not_keep_it_from_starting(engine, workflow):
    asked = record(workflow)
    left = iter(range(3))

    def change_first(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        starts = sql.startswith("UPDATE") and "executions_execution" in sql and "starting" in (params or ())
        if starts and (number := next(left, None)) is not None:
            change = threading.Thread(
                target=change_and_close, args=(lambda: Toolset.objects.create(slug=f"t{number}"),)
            )
            change.start()
            change.join()
        return execute(sql, params, many, context)

    with wrapping_statements(change_first):
        work()
    assert next(left, None) is None
    assert (read(asked).state, engine.count("start")) == (State.RUNNING, 1)


@pytest.mark.parametrize("attempt", range(3))
def test_a_start_and_a_change_of_the_rules_at_once_leave_it_started_or_waiting(attempt, engine, workflow):
    asked = record(workflow)
    together(work, require_by_workflow)
    work()
    expected = {State.RUNNING: 1, State.UNAPPROVED: 0}
    assert engine.count("start") == expected[State(read(asked).state)]


def test_calls_that_need_no_approval_read_the_rules_in_one_statement(
    engine, workflow, django_assert_num_queries
):
    record(workflow)
    asked = Execution.objects.select_related("workflow__source", "payload").get()
    assert asked.hold(holder="me", until=timezone.now() + timedelta(minutes=1))
    with django_assert_num_queries(2):
        assert approvals.begin_if_approved(asked)
