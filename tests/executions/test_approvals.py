"""Calls that a person has to approve: what runs, what does not, and who wins of several at once."""

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.utils import timezone

from audit.models import Entry
from audit.sealing import verify
from catalogue.actions.workflows import override_workflow
from catalogue.approval_rules import reason_for_approval
from catalogue.exposure import forget_catalogue
from catalogue.models import Review, Source, Workflow
from executions import approvals
from executions.approvals import AlreadyDecided, NotAllowed, NotDecided, decide
from executions.interacting import CancelOutcome
from executions.models import Approval, Execution, ExecutionPayload, StandingApproval, State
from executions.queue import admit_queued
from executions.reading import describe_changed_input, describe_execution
from executions.starting import create_execution
from tests.connectors.scripted import replies
from tests.executions.engines import WireEngine, completed
from tests.executions.steps import (
    ALICE_IN_FINANCE,
    BOB,
    advance_due_executions,
    call,
    cancel,
    read,
    reconfigure,
    request_for,
    timeline,
)
from tests.factories import make_toolset
from tests.mcp_bridge.database import in_database
from tests.threads import together

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.databases(
        "executions.approvals", "executions.approval_notices", "executions.admin.approvals"
    ),
]


def make_approver(name: str) -> User:
    user = User.objects.create_user(name, f"{name}@example.com", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="decide_approval"))
    return User.objects.get(pk=user.pk)


@pytest.fixture
def anna() -> User:
    return make_approver("anna")


@pytest.fixture
def ben() -> User:
    return make_approver("ben")


@pytest.fixture
def guarded(workflow: Workflow) -> Workflow:
    return override_workflow(workflow, approval_required=True)


async def ask(**arguments: Any) -> Execution:
    return await call("report", arguments)


approve = in_database(
    lambda execution, user, **more: decide(execution.pk, user=user, verdict="approve", **more)
)


@in_database
def refuse(execution: Execution, user: User, words: str = "No.") -> Approval:
    return decide(execution.pk, user=user, verdict="refuse", words=words)


@in_database
def work() -> None:
    """As a worker does at each tick."""
    approvals.end_expired()
    approvals.end_outdated()
    admit_queued()
    advance_due_executions()


reread = in_database(read)


def sent(engine: WireEngine) -> list[Any]:
    return [json.loads(request.received.body) for request in engine.asked("start")]


async def test_a_call_runs_once_it_is_approved_and_with_its_arguments(engine, guarded, anna):
    asked = await ask(amount=7)
    assert (asked.state, asked.admitted_at, asked.lease_holder) == (State.UNAPPROVED, None, "")
    await work()
    assert engine.requests == []
    told = (await in_database(describe_execution)(asked))["approval"]
    assert "waits for approval until" in told
    assert "Each call of report needs approval." in told

    await approve(asked, anna)
    await work()

    assert (await reread(asked)).state == State.RUNNING
    assert '"amount": 7' in json.dumps(sent(engine))
    await work()
    assert engine.count("start") == 1


async def test_a_refusal_ends_the_call_with_the_words(engine, guarded, anna):
    asked = await ask(amount=7)
    await refuse(asked, anna, "Ask the owner first.")
    ended = await reread(asked)
    assert ended.state == State.FAILED
    assert "anna refused it: Ask the owner first." in ended.error
    await work()
    assert engine.requests == []


async def test_the_audit_has_who_asked_who_answered_and_what_became_of_it(guarded, anna):
    await refuse(await ask(amount=7), anna, "Ask the owner first.")
    await approve(await ask(amount=8), anna, minutes=10)
    standing = await in_database(StandingApproval.objects.get)()
    await in_database(approvals.revoke_standing)(standing.pk, by="ben")
    entries = Entry.objects.filter(kind="approval").order_by("pk")
    found = await in_database(list)(entries.values_list("event", "actor_name", "outcome"))
    asker = found[0][1]
    assert asker
    assert found == [
        ("approval.requested", asker, ""),
        ("approval.answered", "anna", "refused"),
        ("approval.ended", "", "refused"),
        ("approval.requested", asker, ""),
        ("approval.answered", "anna", "approved"),
        ("approval.ended", "", "approved"),
        ("approval.revoked", "ben", "revoked"),
    ]


async def change_arguments(execution: Execution) -> None:
    await in_database(ExecutionPayload.objects.filter(pk=execution.pk).update)(input={"amount": 9_999})


async def change_content(execution: Execution) -> None:
    await in_database(Workflow.objects.update)(content_hash="f" * 64)


async def hold_change(execution: Execution) -> None:
    await in_database(Review.objects.create)(
        workflow=execution.workflow, kind="changed", offer_hash="e" * 64, offered={}
    )


async def change_source(execution: Execution) -> None:
    await in_database(lambda: reconfigure(Source.objects.get()))()


async def change_constant(execution: Execution) -> None:
    await in_database(lambda: override_workflow(Workflow.objects.get(), argument_overrides={}))()
    await in_database(Workflow.objects.update)(argument_overrides={"amount": {"default": 3}})


CHANGES = [change_content, hold_change, change_source, change_constant]


@pytest.mark.parametrize("change", [change_arguments, *CHANGES])
async def test_what_changes_after_the_approval_is_not_started(change, engine, guarded, anna):
    asked = await ask(amount=7)
    await approve(asked, anna)
    await change(asked)
    await work()
    ended = await reread(asked)
    assert (ended.state, engine.count("start")) == (State.FAILED, 0)
    assert "It was not started" in ended.error


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("swept", [False, True])
async def test_a_change_before_the_approval_ends_the_call(change, swept, guarded, anna):
    asked = await ask(amount=7)
    await change(asked)
    if swept:
        await work()
    with pytest.raises(AlreadyDecided, match="can no longer be approved"):
        await approve(asked, anna)
    assert (await reread(asked)).state == State.FAILED
    assert (await in_database(Approval.objects.get)()).state == Approval.State.OUTDATED


async def test_so_many_different_people_are_needed(engine, guarded, anna, ben):
    await in_database(lambda: override_workflow(Workflow.objects.get(), approvers_needed=2))()
    asked = await ask(amount=7)
    await approve(asked, anna)
    with pytest.raises(AlreadyDecided, match="Approvals still needed: 1"):
        await approve(asked, anna)
    assert (await reread(asked)).state == State.UNAPPROVED
    await approve(asked, ben)
    await work()
    assert engine.count("start") == 1


async def test_only_others_with_the_permission_decide(guarded, anna, settings, configured):
    own = request_for(
        "report", {"amount": 1}, caller=approvals.Caller(key="token:9", name="hers", user_id=anna.pk)
    )
    asked = await in_database(lambda: create_execution(own))()
    with pytest.raises(NotAllowed, match="own call"):
        await approve(asked, anna)
    outsider = await in_database(User.objects.create_user)("eve")
    with pytest.raises(NotAllowed, match="permission"):
        await approve(asked, outsider)
    configured(approve_own_calls=True)
    assert (await approve(asked, anna)).state == Approval.State.APPROVED


async def test_the_same_call_passes_for_the_time_that_was_given(engine, guarded, anna):
    engine.on_start = replies(200, completed())
    first = await ask(amount=7)
    await approve(first, anna, minutes=10)
    await work()
    again = await ask(amount=7)
    assert again.state != State.UNAPPROVED
    assert "approved" in await in_database(timeline)(again)
    other_arguments = await ask(amount=8)
    other_caller = await call("report", {"amount": 7}, request={"caller": BOB})
    assert {other_arguments.state, other_caller.state} == {State.UNAPPROVED}
    await in_database(StandingApproval.objects.update)(until=timezone.now() - timedelta(seconds=1))
    assert (await ask(amount=7)).state == State.UNAPPROVED


async def test_an_approval_for_a_time_of_fewer_people_than_are_needed_now_holds_no_longer(
    engine, guarded, anna, ben
):
    engine.on_start = replies(200, completed())
    await approve(await ask(amount=7), anna, minutes=10)
    await in_database(Workflow.objects.update)(approvers_needed=2)
    await in_database(forget_catalogue)()
    asked = await ask(amount=7)
    assert asked.state == State.UNAPPROVED
    await approve(asked, anna, minutes=10)
    await approve(asked, ben, minutes=10)
    assert (await ask(amount=7)).state != State.UNAPPROVED


async def test_a_revoked_approval_for_a_time_holds_no_longer(guarded, anna):
    await approve(await ask(amount=7), anna, minutes=10)
    standing = await in_database(StandingApproval.objects.get)()
    assert await in_database(approvals.revoke_standing)(standing.pk, by="ben")
    assert (await ask(amount=7)).state == State.UNAPPROVED


async def test_it_expires(engine, guarded, anna):
    first, second = await ask(amount=1), await ask(amount=2)
    await in_database(Approval.objects.update)(expires_at=timezone.now() - timedelta(seconds=1))
    with pytest.raises(AlreadyDecided, match="It was not approved by"):
        await approve(first, anna)
    await work()
    for ended in (await reread(first), await reread(second)):
        assert ended.state == State.TIMED_OUT
    assert engine.requests == []


async def test_its_caller_can_cancel_it(engine, guarded, anna):
    asked = await ask(amount=7)
    assert (await cancel(asked)).outcome == CancelOutcome.CANCELLED
    with pytest.raises(AlreadyDecided, match="cancelled it"):
        await approve(asked, anna)
    await work()
    assert engine.requests == []


async def test_the_identical_call_joins_the_one_that_waits(guarded):
    retried = {"may_reattach": True}
    await in_database(make_toolset)("finance", picked=[guarded])
    first = await call("report", {"amount": 7}, request=retried)
    assert (await call("report", {"amount": 7}, request=retried)).pk == first.pk
    for other in (
        {"caller": BOB},
        {"caller": ALICE_IN_FINANCE},
        {"idempotency_key": "another"},
        {"may_reattach": False},
    ):
        assert (await call("report", {"amount": 7}, request=retried | other)).pk != first.pk


async def test_a_caller_may_have_only_so_many_waiting(guarded, configured):
    configured(max_unapproved_per_caller=2)
    await ask(amount=1)
    await ask(amount=2)
    with pytest.raises(Exception, match="are already waiting for approval"):
        await ask(amount=3)


# Who wins of several at once

Act = Callable[[Execution, User, User], Any]


def by_anna(execution: Execution, anna: User, ben: User) -> None:
    decide(execution.pk, user=anna, verdict="approve")


def by_ben(execution: Execution, anna: User, ben: User) -> None:
    decide(execution.pk, user=ben, verdict="approve")


def refused_by_ben(execution: Execution, anna: User, ben: User) -> None:
    decide(execution.pk, user=ben, verdict="refuse", words="No.")


def cancelled(execution: Execution, anna: User, ben: User) -> None:
    approvals.cancel_unapproved(execution, by="Alice")


def edited_by_ben(execution: Execution, anna: User, ben: User) -> None:
    seen = Approval.objects.get().binding
    approvals.change_arguments(execution.pk, user=ben, arguments={"amount": 5}, seen=seen)


def expired(execution: Execution, anna: User, ben: User) -> None:
    approvals.end_expired()


def changed(execution: Execution, anna: User, ben: User) -> None:
    Workflow.objects.update(content_hash="d" * 64)
    approvals.end_outdated()


def started(execution: Execution, anna: User, ben: User) -> None:
    admit_queued()
    advance_due_executions()


@pytest.mark.parametrize(
    "others",
    [
        [by_ben],
        [refused_by_ben],
        [cancelled],
        [expired],
        [changed],
        [by_anna],
        [edited_by_ben],
        [edited_by_ben, by_ben, cancelled],
        [by_ben, refused_by_ben, cancelled, started],
    ],
)
@pytest.mark.parametrize("attempt", range(3))
def test_of_several_at_once_one_decides_and_nothing_runs_twice(others, attempt, engine, guarded, anna, ben):
    asked = create_execution(request_for("report", {"amount": 7}))
    if expired in others:
        Approval.objects.update(expires_at=timezone.now() + timedelta(milliseconds=30))

    def act(one: Act) -> None:
        with suppress(NotDecided):
            one(asked, anna, ben)

    together(*(partial(act, one) for one in (by_anna, *others)))
    admit_queued()
    advance_due_executions()

    approval, execution = Approval.objects.get(), read(asked)
    was_approved = approval.state == Approval.State.APPROVED
    # What changes after the decision ends the call in the queue.
    runs = {0, 1} if changed in others else {1}
    assert engine.count("start") in (runs if was_approved else {0})
    assert was_approved or execution.state in (ENDS[Approval.State(approval.state)])
    assert timeline(asked).count("approved") == was_approved
    # Both saw 7.
    assert '"amount": 5' not in json.dumps(sent(engine))


# Arguments that an approver changes

change = in_database(
    lambda execution, user, arguments: approvals.change_arguments(
        execution.pk, user=user, arguments=arguments, seen=binding_of(execution)
    )
)


def binding_of(execution: Execution) -> str:
    return Approval.objects.get(pk=execution.pk).binding


seen_of = in_database(binding_of)


async def test_changed_arguments_are_sent_and_the_caller_is_told(engine, guarded, anna):
    asked = await ask(amount=7)
    await change(asked, anna, {"amount": 5})
    await approve(asked, anna, seen=await seen_of(asked))
    await work()
    assert '"amount": 5' in json.dumps(sent(engine)) and '"amount": 7' not in json.dumps(sent(engine))
    payload = await in_database(ExecutionPayload.objects.get)(pk=asked.pk)
    assert (payload.input, payload.changed_input, payload.changed_by) == (
        {"amount": 7},
        {"amount": 5},
        "anna",
    )
    assert "input_changed" in await in_database(timeline)(asked)
    execution = await reread(asked)
    told = await in_database(describe_changed_input)(execution)
    assert "anna" in told and '{"amount": 5}' in told


async def test_nobody_approves_what_another_has_changed_meanwhile(engine, guarded, anna, ben):
    asked = await ask(amount=7)
    seen = await seen_of(asked)
    await change(asked, ben, {"amount": 5})
    for given in (seen, ""):
        with pytest.raises(AlreadyDecided, match="ben has changed the arguments"):
            await approve(asked, anna, seen=given)
    await work()
    assert engine.requests == [] and (await reread(asked)).state == State.UNAPPROVED
    await approve(asked, anna, seen=await seen_of(asked))
    await work()
    assert engine.count("start") == 1


async def test_a_change_resets_the_approvals_that_were_given(engine, guarded, anna, ben):
    await in_database(override_workflow)(guarded, approvers_needed=2)
    asked = await ask(amount=7)
    await approve(asked, anna)
    await change(asked, ben, {"amount": 5})
    await approve(asked, ben, seen=await seen_of(asked))
    await work()
    assert engine.requests == []
    await approve(asked, anna, seen=await seen_of(asked))
    await work()
    assert engine.count("start") == 1
    assert (await in_database(verify)()).problems == []


async def test_changed_arguments_are_not_approved_for_a_period(engine, guarded, anna):
    asked = await ask(amount=7)
    await change(asked, anna, {"amount": 5})
    with pytest.raises(NotDecided, match="for this call only"):
        await approve(asked, anna, seen=await seen_of(asked), minutes=5)
    assert not await in_database(StandingApproval.objects.exists)()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"amount": "many"}, "/amount"),
        ([1], "JSON object"),
        ({"amount": float("nan")}, "NaN"),
        ({"amount": 7}, "arguments that it has"),
        ({"amount": 5, "region": "us"}, "/region"),
    ],
)
async def test_what_does_not_fit_is_no_change(arguments, problem, engine, guarded, anna):
    properties = {"amount": {"type": "number"}, "region": {"type": "string"}}
    guarded.input_schema = {"type": "object", "properties": properties}
    await in_database(guarded.save)()
    await in_database(override_workflow)(guarded, argument_overrides={"region": {"constant": "eu"}})
    asked = await ask(amount=7)
    with pytest.raises(NotDecided, match=problem):
        await change(asked, anna, arguments)
    payload = await in_database(ExecutionPayload.objects.get)(pk=asked.pk)
    assert (payload.changed_input, payload.changed_by) == (None, "")


async def test_who_made_the_call_does_not_change_it(guarded, anna):
    asked = await ask(amount=7)
    await in_database(Approval.objects.update)(asked_by=anna)
    with pytest.raises(NotAllowed):
        await change(asked, anna, {"amount": 5})


async def test_what_was_changed_in_the_database_is_not_sent(engine, guarded, anna):
    asked = await ask(amount=7)
    await change(asked, anna, {"amount": 5})
    await approve(asked, anna, seen=await seen_of(asked))
    await in_database(ExecutionPayload.objects.update)(changed_input={"amount": 9_000})
    await work()
    assert engine.requests == [] and (await reread(asked)).state == State.FAILED


ENDS = {
    Approval.State.WAITING: [State.UNAPPROVED],
    Approval.State.REFUSED: [State.FAILED],
    Approval.State.CANCELLED: [State.CANCELLED],
    Approval.State.EXPIRED: [State.TIMED_OUT],
    Approval.State.OUTDATED: [State.FAILED],
}


# Rules

ITEMS = {"items": [{"price": 5}, {"price": 2_000}]}


@pytest.mark.parametrize(
    ("argument", "comparison", "value", "arguments", "needs"),
    [
        ("/amount", "over", 1000, {"amount": 1000}, False),
        ("/amount", "over", 1000, {"amount": 1000.01}, True),
        ("/amount", "at_least", 1000, {"amount": 1000}, True),
        ("/amount", "under", 0, {"amount": 0}, False),
        ("/amount", "at_most", 0, {"amount": 0}, True),
        ("/amount", "over", 1000, {"amount": 10**400}, True),
        ("/to", "none_of", ["DE"], {"to": "DE"}, False),
        ("/to", "none_of", ["DE"], {"to": "FR"}, True),
        ("/to", "none_of", ["DE"], {"to": ["DE"]}, True),
        ("/to", "one_of", ["XX"], {"to": "DE"}, False),
        ("/to", "one_of", ["XX"], {"to": 5}, True),
        ("/to", "equal_to", "all", {"to": "one"}, False),
        ("/to", "equal_to", "all", {"to": "all"}, True),
        ("/to", "equal_to", 1, {"to": True}, True),
        ("/to", "other_than", 1, {"to": 1.0}, False),
        ("/to", "other_than", 1, {"to": True}, True),
        ("/items/*/price", "over", 1000, ITEMS, True),
        ("/items/*/price", "over", 2000, ITEMS, False),
        ("/items/*/price", "over", 1, {"items": []}, False),
        ("/items/*/price", "over", 1, {"items": [{}]}, True),
        ("/items/*/price", "over", 1, {"items": {"a": 1}}, True),
        ("/items/*/price", "over", 1000, {"items": {"*": {"price": 1}, "a": {"price": 2_000}}}, True),
        ("/items/*", "over", 1000, {"items": [[2_000]]}, True),
        ("/amount", "over", 1000, {"amount": float("nan")}, True),
        ("/amount", "under", 0, {"amount": float("nan")}, True),
        ("/amount", "equal_to", 1, {"amount": float("nan")}, True),
        ("/amount", "over", 1000, {"amount": float("-inf")}, True),
        ("/to", "other_than", "caf\u00e9", {"to": "cafe\u0301"}, True),
        ("/to", "other_than", "DE", {"to": "\uff24\uff25"}, True),
        ("/a/b", "over", 1, {"a": 1}, True),
        ("/a", "newer_than", 1, {"a": 1}, True),
    ],
)
def test_what_a_rule_cannot_judge_needs_approval(argument, comparison, value, arguments, needs):
    rule = {"argument": argument, "is": comparison, "value": value}
    assert bool(reason_for_approval(rule, arguments)) == needs
