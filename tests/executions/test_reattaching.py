"""A caller that lost its connection calls again: the same run, its result once, and never a second start."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from catalogue.models import Workflow
from executions.models import Execution, State
from executions.models.lifecycle import LONG_PAST
from tests.connectors.scripted import Behaviour, replies, sends_and_hangs_up
from tests.executions.engines import (
    Gate,
    WireEngine,
    completed,
    in_thread,
    in_turn,
    receipt,
    status,
    until,
)
from tests.executions.steps import (
    ALICE,
    ALICE_IN_FINANCE,
    BOB,
    advance_due_executions,
    call,
    cancel,
    disconnect,
    forget_caller,
    in_database,
    is_abandoned,
    let_pass,
    make_active,
    only,
    reach_deadline,
    read,
    timeline,
)
from tests.factories import make_toolset, make_workflow

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("quick_looks"),
    pytest.mark.databases("executions.starting", "executions.models.execution"),
]


async def ask(tool_name: str = "report", arguments: dict[str, Any] | None = None, **fields: Any) -> Execution:
    """A call over MCP, which can be repeated."""
    options = {"seconds": fields.pop("seconds")} if "seconds" in fields else {}
    return await call(tool_name, arguments, request={"may_reattach": True} | fields, **options)


async def lose(engine: WireEngine, behaviour: Behaviour, **fields: Any) -> Execution:
    """A call whose client goes away before the engine has answered its start, as told by `behaviour`."""
    before = set(await in_database(lambda: list(Execution.objects.values_list("pk", flat=True))))
    gate, later = Gate(behaviour), engine.on_start
    engine.on_start = gate
    waiting = await gate.keep(ask(**fields))
    engine.on_start = later
    execution = await in_database(Execution.objects.exclude(pk__in=before).get)
    await disconnect(waiting)
    await until(lambda: is_abandoned(execution), "the caller is gone")
    gate.open()
    await until(lambda: not read(execution).lease_holder, "the step has come to its end")
    return execution


async def test_the_same_call_goes_on_with_the_run_that_was_started(engine, workflow):
    """A7.5: the client lost its connection while the run went on."""
    lost = await lose(engine, replies(200, receipt()))
    engine.on_status = replies(200, completed({"sum": 3}))

    again = await ask()

    assert (again.pk, again.succeeded) == (lost.pk, True)
    assert engine.count("start") == 1
    kinds = await in_database(timeline, lost)
    assert kinds == ["created", "caller_gone", "started", "reattached", "completed"]


async def test_the_same_call_need_not_wait_for_the_end_of_a_step_of_the_first(engine, workflow):
    """The start is still under way when the call comes again."""
    engine.on_start = gate = Gate(replies(200, completed() | receipt()))
    first = await gate.keep(ask())
    await disconnect(first)
    await until(lambda: is_abandoned(only()))

    again = asyncio.create_task(ask())
    await until(lambda: "reattached" in timeline(only()))
    gate.open()

    assert (await again).succeeded
    assert engine.count("start") == 1
    assert (await in_database(only)).awaited_until is None


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (replies(200, completed() | receipt()), State.COMPLETED),
        (replies(200, status("FAILED", error="no paper") | receipt()), State.FAILED),
        (sends_and_hangs_up(), State.UNCONFIRMED),
    ],
    ids=["completed", "failed", "unconfirmed"],
)
async def test_a_result_that_nobody_got_is_given_once_and_at_once(engine, workflow, answer, state):
    """A7.5: never a second start for a call that comes again; after that it is a new call."""
    engine.on_start = replies(200, completed({"new": True}) | receipt())
    lost = await lose(engine, answer)
    asked = len(engine.requests)

    again = await ask()

    assert (again.pk, again.state) == (lost.pk, state)
    assert len(engine.requests) == asked
    new = await ask()
    assert new.pk != lost.pk and new.succeeded
    assert (await ask()).pk not in (lost.pk, new.pk)


async def test_a_run_that_timed_out_meanwhile_is_told_as_such(engine, workflow):
    """A7.2: not started anew."""
    lost = await lose(engine, replies(200, receipt()))
    engine.on_status = replies(200, status("CANCELLED"))
    await in_database(reach_deadline, lost)
    await in_thread(advance_due_executions)

    again = await ask()

    assert (again.pk, again.state) == (lost.pk, State.TIMED_OUT)
    assert engine.count("start") == 1


async def test_of_two_calls_that_were_lost_each_is_found_again_once(engine, workflow):
    engine.on_start = replies(200, completed() | receipt("run-3"))
    first = await lose(engine, replies(200, completed() | receipt("run-1")), seconds=30)
    engine.on_start = replies(200, completed() | receipt("run-3"))
    # Not the same call while it is lost, or it would find the first.
    await in_database(Execution.objects.filter(pk=first.pk).update, awaited_until=None)
    second = await lose(engine, replies(200, completed() | receipt("run-2")))
    await in_database(forget_caller, first)

    repeated = await asyncio.gather(ask(), ask())

    assert {execution.pk for execution in repeated} == {first.pk, second.pk}
    assert (await ask()).run_id == "run-3"


async def test_of_two_repeats_in_the_same_instant_one_is_a_new_call(engine, workflow):
    """Both may be meant: an agent that calls a tool twice at a time."""
    engine.on_start = replies(200, completed() | receipt("run-2"))
    lost = await lose(engine, replies(200, completed() | receipt("run-1")))

    repeated = await asyncio.gather(ask(), ask())

    assert sorted(execution.run_id for execution in repeated) == ["run-1", "run-2"]
    assert await in_database(timeline, lost) == [
        "created",
        "caller_gone",
        "started",
        "completed",
        "reattached",
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {"arguments": {"year": 2025}},
        {"tool_name": "other"},
        {"caller": BOB},
        {"caller": ALICE_IN_FINANCE},
        {"may_reattach": False},
        {"door": Execution.Door.COMMAND},
        {"idempotency_key": "a key"},
    ],
    ids=["arguments", "tool", "caller", "an application of a toolset", "not repeatable", "door", "key"],
)
async def test_another_call_is_a_new_run(engine, workflow, fields):
    """Only the identical call of the same caller, by a door whose calls get lost, and without a key."""
    await in_database(lambda: make_workflow(workflow.source, name="other"))
    await in_database(lambda: make_toolset("finance", picked=[workflow]))
    engine.on_start = replies(200, completed() | receipt())
    lost = await lose(engine, replies(200, receipt()), arguments={"year": 2026})

    again = await ask(**{"arguments": {"year": 2026}} | fields)

    assert again.pk != lost.pk and again.succeeded
    assert engine.count("start") == 2
    assert await in_database(is_abandoned, lost)


async def test_a_call_with_a_key_is_found_again_by_its_key_alone(engine, workflow):
    engine.on_start = replies(200, completed() | receipt())
    lost = await lose(engine, replies(200, completed() | receipt()), idempotency_key="a key")

    assert (await ask()).pk != lost.pk
    assert (await ask(idempotency_key="another")).pk != lost.pk
    assert (await ask(idempotency_key="a key")).pk == lost.pk


async def test_a_workflow_may_rule_it_out(engine, workflow):
    """Where identical calls are meant to be several runs."""
    await in_database(Workflow.objects.update, reattach=False)
    engine.on_start = replies(200, completed() | receipt())
    lost = await lose(engine, replies(200, receipt()))
    assert (await ask()).pk != lost.pk
    assert engine.count("start") == 2


@pytest.mark.parametrize(
    ("seconds", "ago", "found"),
    [(3600.0, 3500, True), (3600.0, 3700, False), (0.0, 1, False)],
    ids=["in time", "too late", "never"],
)
async def test_it_is_found_again_for_as_long_as_the_settings_say(
    engine, workflow, configured, seconds, ago, found
):
    configured(reattach_seconds=seconds)
    engine.on_start = replies(200, completed() | receipt())
    lost = await lose(engine, replies(200, completed() | receipt()))
    then = timezone.now() - timedelta(seconds=ago)
    await in_database(Execution.objects.update, awaited_until=then)
    assert ((await ask()).pk == lost.pk) is found


@pytest.mark.parametrize(
    ("answer", "left", "ended", "found"),
    [
        (completed, 3500, 100, True),
        (completed, 100, 3500, True),
        (completed, 140, 140, False),
        (completed, 3500, -3600, False),
        (status, 3500, None, True),
    ],
    ids=[
        "it ended a moment ago",
        "its caller left a moment ago",
        "both are long ago",
        "the clock was ahead when it ended",
        "it goes on",
    ],
)
async def test_an_old_result_is_for_retries_only_while_a_run_that_goes_on_is_joined(
    engine, workflow, answer, left, ended, found
):
    """A7.5: minutes later the same call is likely to ask for how things are now."""
    engine.on_start = replies(200, completed() | receipt())
    lost = await lose(engine, replies(200, answer() | receipt()))
    engine.on_status = replies(200, completed())
    now = timezone.now()
    times: dict[str, Any] = {"awaited_until": now - timedelta(seconds=left) - LONG_PAST}
    if ended is not None:
        times["finished_at"] = now - timedelta(seconds=ended)
    await in_database(Execution.objects.update, **times)
    again = await ask()
    assert (again.pk == lost.pk, again.is_reattached) == (found, found)


async def test_a_start_that_may_have_happened_is_not_repeated_for_as_long_as_a_run_may_be_joined(
    engine, workflow
):
    """A7.2: there is no result that could be old, and a second start may be what hurts."""
    lost = await lose(engine, sends_and_hangs_up())
    await in_database(Execution.objects.update, awaited_until=timezone.now() - timedelta(seconds=3500))
    assert (await ask()).pk == lost.pk


async def test_a_handle_is_an_answer(engine, workflow):
    """Whoever knows how to ask for the rest and calls again wants another run."""
    engine.on_start = in_turn(replies(200, receipt()), replies(200, completed() | receipt()))
    given = await ask(seconds=0)
    await until(lambda: only().awaited_until is None and not only().lease_holder, "it is noted")
    assert (await ask()).pk != given.pk


@pytest.mark.parametrize(
    "answer", [replies(200, completed() | receipt()), sends_and_hangs_up()], ids=["completed", "unconfirmed"]
)
async def test_a_result_that_was_given_is_not_given_again(engine, workflow, answer):
    engine.on_start = answer
    first = await ask()
    await until(lambda: only().awaited_until is None, "it is noted")
    assert (await ask()).pk != first.pk
    assert engine.count("start") == 2


async def test_a_result_that_was_given_after_the_heartbeat_failed_is_not_given_again(
    engine, workflow, monkeypatch
):
    """A database that was away, or a machine that slept, for longer than a lease."""
    monkeypatch.setattr("executions.waiting.LEASE", timedelta(0))
    gate = Gate(replies(200, completed() | receipt()))
    engine.on_start = in_turn(gate, replies(200, completed() | receipt()))
    waiting = await gate.keep(ask())
    execution = await in_database(only)
    past = timezone.now() - timedelta(seconds=1)
    await in_database(Execution.objects.update, awaited_until=past)
    gate.open()
    assert (await waiting).succeeded
    await until(lambda: only().awaited_until is None, "it is noted")
    assert (await ask()).pk != execution.pk


async def test_a_heartbeat_does_not_bring_back_a_caller_that_is_gone(engine, workflow, monkeypatch):
    """A long step goes on under its lease, which is renewed; that somebody waits for it is not."""
    monkeypatch.setattr("executions.runner.lease.RENEWAL_SECONDS", 0.01)
    engine.on_start = gate = Gate(replies(200, completed() | receipt()))
    waiting = await gate.keep(ask())
    await disconnect(waiting)
    await until(lambda: is_abandoned(only()))

    for _ in range(2):
        lease = (await in_database(only)).lease_expires_at
        await until(lambda lease=lease: only().lease_expires_at > lease, "the lease is renewed")

    assert await in_database(is_abandoned, await in_database(only))
    gate.open()
    await until(lambda: only().succeeded)
    assert await in_database(is_abandoned, await in_database(only))


async def test_what_is_being_cancelled_is_not_gone_on_with_either(engine, workflow):
    lost = await lose(engine, replies(200, receipt()))
    assert await in_database(lost.request_cancel, "an admin")
    engine.on_start = replies(200, completed() | receipt())
    assert (await ask()).pk != lost.pk


async def test_a_run_that_completed_in_spite_of_a_cancel_gives_its_result(engine, workflow):
    """Cancel against completion: what is there need not be run again."""
    lost = await lose(engine, replies(200, receipt()))
    engine.on_cancel = replies(409, {"error": "The run has already ended."})
    engine.on_status = replies(200, completed())
    await cancel(lost)
    await until(lambda: read(lost).succeeded)
    assert (await ask()).pk == lost.pk
    assert engine.count("start") == 1


async def test_a_call_that_is_lost_again_is_found_again(engine, workflow):
    lost = await lose(engine, replies(200, receipt()))
    for times in (1, 2):
        waiting = asyncio.create_task(ask())
        await until(lambda times=times: timeline(lost).count("reattached") == times)
        await disconnect(waiting)
        await until(lambda: is_abandoned(lost))
    engine.on_status = replies(200, completed())
    await until(lambda: not read(lost).lease_holder)
    await in_database(let_pass, lost, 10)
    assert (await ask()).pk == lost.pk
    assert engine.count("start") == 1


async def test_a_killed_web_processes_caller_comes_back_once_its_heartbeat_is_missed(engine, workflow):
    """A7.5: nobody noted anything; the row itself tells, after LEASE at the latest."""
    engine.on_start = replies(200, receipt())
    handle = await ask(seconds=0)
    await until(lambda: only().awaited_until is None and not only().lease_holder)
    await in_database(forget_caller, handle)
    engine.on_status = replies(200, completed())

    again = await ask()

    assert (again.pk, again.succeeded) == (handle.pk, True)
    assert engine.count("start") == 1


async def test_until_then_the_same_call_is_another_one(engine, workflow):
    """It cannot be told from a parallel call on purpose."""
    running = await in_database(make_active, workflow, State.RUNNING)
    soon = timezone.now() + timedelta(seconds=20)
    await in_database(Execution.objects.update, awaited_until=soon, lease_expires_at=soon)
    engine.on_start = replies(200, completed() | receipt())
    assert (await ask(arguments={"text": "To be"}, caller=ALICE)).pk != running.pk


PLANS = {
    "a worker's, after a tenth of its age": {"polled_at": -3, "next_attempt_at": 60},
    "for when such runs usually end": {"polled_at": -3, "next_attempt_at": 10},
    "the first one": {"polled_at": None, "next_attempt_at": 600},
    "a long run's": {"polled_at": -9, "next_attempt_at": 60, "age": 170},
}


@pytest.mark.parametrize("plan", PLANS)
async def test_a_call_that_waits_for_a_run_does_not_wait_for_a_poll_that_was_planned_without_it(
    engine, workflow, plan
):
    """Its result, and before that its progress, would come as late as that poll."""
    lost = await lose(engine, replies(200, receipt()))
    await in_database(plan_poll, lost, **PLANS[plan])
    engine.on_status = replies(200, completed({"sum": 3}))

    again = await ask(seconds=10)

    assert (again.pk, again.succeeded) == (lost.pk, True)


FRESH_ENOUGH = {
    "just asked": {"polled_at": -1},
    "a long run": {"polled_at": -5, "age": 400},
    "an engine that fails": {"polled_at": -30, "attempts": 1},
}


@pytest.mark.parametrize("plan", FRESH_ENOUGH)
async def test_a_call_that_waits_asks_no_engine_without_need(engine, workflow, plan):
    lost = await lose(engine, replies(200, receipt()))
    await in_database(plan_poll, lost, **{"next_attempt_at": 600} | FRESH_ENOUGH[plan])

    again = await ask(seconds=0.5)

    assert (again.pk, again.state, engine.count("status")) == (lost.pk, State.RUNNING, 0)


def plan_poll(
    execution: Execution,
    *,
    next_attempt_at: float,
    polled_at: float | None,
    age: float = 5,
    attempts: int = 0,
) -> None:
    """Times in seconds from now."""
    now = timezone.now()
    Execution.objects.filter(pk=execution.pk).update(
        started_at=now - timedelta(seconds=age),
        polled_at=None if polled_at is None else now + timedelta(seconds=polled_at),
        next_attempt_at=now + timedelta(seconds=next_attempt_at),
        attempts=attempts,
    )
