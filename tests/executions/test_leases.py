"""Whoever lives keeps what it holds, whoever was killed loses it, and whoever lost it does no harm."""

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError
from django.utils import timezone

from catalogue.models import Workflow
from executions.advancing import advance_and_release, poll_due_executions
from executions.models import Execution, State
from executions.runner import lease
from executions.runner.lease import claim_due_executions, renewing_lease
from tests.connectors.scripted import replies
from tests.executions.engines import (
    RUN_ID,
    Gate,
    completed,
    in_turn,
    receipt,
    status,
    until,
    wait_until,
)
from tests.executions.steps import (
    advance_due_executions,
    expire_lease,
    in_database,
    let_pass,
    make_active,
    read,
    timeline,
    wrapping_statements,
)

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.databases("executions.runner.lease"),
]


@pytest.fixture(autouse=True)
def _renewed_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "RENEWAL_SECONDS", 0.02)


@pytest.fixture
def running(workflow: Workflow) -> Execution:
    """A run that nobody waits for, due for a poll."""
    return make_active(workflow, State.RUNNING)


def run_out(execution: Execution) -> None:
    """The holder has not renewed its lease in time, for whatever reason."""
    past = timezone.now() - timedelta(seconds=1)
    Execution.objects.filter(pk=execution.pk).update(lease_expires_at=past)


def is_held(execution: Execution) -> bool:
    expires_at = read(execution).lease_expires_at
    return expires_at is not None and expires_at > timezone.now()


def take_over(execution: Execution) -> Execution:
    """Another worker goes on, since the lease has run out."""
    expire_lease(execution)
    (taken,) = claim_due_executions(limit=1)
    assert taken.pk == execution.pk
    return taken


# The living.


def test_a_step_that_takes_longer_than_its_lease_keeps_it(engine, running):
    """B8: a lease that nobody else has taken is the holder's own again with the next renewal."""
    engine.on_status = gate = Gate(replies(200, completed()))
    poll_due_executions()
    gate.wait_for_request()
    for _ in range(3):
        run_out(running)
        wait_until(lambda: is_held(running), "the lease is renewed")
        assert claim_due_executions(limit=1) == []

    gate.open()

    wait_until(lambda: read(running).succeeded)
    assert engine.count("status") == 1


async def test_of_a_batch_each_execution_is_renewed_as_long_as_its_own_step(workflow):
    """B8: one whose step broke off is free again though others, claimed with it, take their time."""
    for _ in range(2):
        await in_database(make_active, workflow, State.RUNNING)
    quick, slow = await in_database(claim_due_executions, limit=2)
    assert quick.lease_holder == slow.lease_holder

    with renewing_lease(slow.pk, holder=slow.lease_holder):
        with renewing_lease(quick.pk, holder=quick.lease_holder):
            await in_database(run_out, quick)
            await until(lambda: is_held(quick), "it is renewed")
        # A renewal that had begun before still counts it.
        await in_database(run_out, slow)
        await until(lambda: is_held(slow), "it is renewed")
        await in_database(run_out, quick)
        await in_database(run_out, slow)
        await until(lambda: is_held(slow), "it is renewed")
        assert not await in_database(is_held, quick)


async def test_an_execution_is_renewed_until_the_last_of_its_steps_ends(running):
    """B8."""
    (claimed,) = await in_database(claim_due_executions, limit=1)
    with renewing_lease(claimed.pk, holder=claimed.lease_holder):
        with renewing_lease(claimed.pk, holder=claimed.lease_holder):
            pass
        await in_database(run_out, claimed)
        await until(lambda: is_held(claimed), "it is renewed")


async def test_a_database_that_is_away_for_a_renewal_costs_no_lease(running):
    """B8: the next one makes up for it."""
    (claimed,) = await in_database(claim_due_executions, limit=1)
    failed = threading.Event()

    def refuse(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.startswith("UPDATE") and "lease_expires_at" in sql:
            failed.set()
            raise OperationalError("the database is away")
        return execute(sql, params, many, context)

    with renewing_lease(claimed.pk, holder=claimed.lease_holder):
        away = wrapping_statements(refuse)
        await asyncio.to_thread(away.__enter__)
        await asyncio.to_thread(failed.wait, 30)
        await asyncio.to_thread(away.__exit__, None, None, None)
        await in_database(run_out, claimed)
        await until(lambda: is_held(claimed), "it is renewed")


async def test_whoever_waits_is_renewed_as_waiting(running):
    """B8: and somebody else, who holds it without waiting, says nothing of that."""
    soon = timezone.now() + timedelta(seconds=10)
    await in_database(Execution.objects.update, awaited_until=soon)
    (claimed,) = await in_database(claim_due_executions, limit=1)

    with renewing_lease(claimed.pk, holder=claimed.lease_holder):
        await in_database(run_out, claimed)
        await until(lambda: is_held(claimed), "it is renewed")
        assert (await in_database(read, claimed)).awaited_until == soon
        with renewing_lease(claimed.pk, holder="a request", awaited=True):
            await until(lambda: read(claimed).awaited_until > soon, "it is renewed")


async def test_nothing_is_renewed_when_nothing_is_held(running):
    """E7: no task goes on by itself, and the next one that is held gets a new one."""
    (claimed,) = await in_database(claim_due_executions, limit=1)
    before = asyncio.all_tasks()
    for _ in range(2):
        with renewing_lease(claimed.pk, holder=claimed.lease_holder):
            await in_database(run_out, claimed)
            await until(lambda: is_held(claimed), "it is renewed")
            (renewing,) = asyncio.all_tasks() - before
        await asyncio.wait({renewing})
    assert asyncio.all_tasks() == before and not lease._renewals


# The dead.


def test_what_a_killed_process_held_goes_on_after_its_lease(engine, running):
    """B8: not before."""
    engine.on_status = replies(200, completed())
    (claimed,) = claim_due_executions(limit=1)
    assert claimed.lease_expires_at is not None and claimed.lease_expires_at > timezone.now()
    assert advance_due_executions() == 0

    run_out(running)

    assert advance_due_executions() == 1
    assert read(running).succeeded


# Those that come back to an execution that somebody else has gone on with.


async def begin_step(execution: Execution, gate: Gate) -> "asyncio.Task[None]":
    """A worker claims it and asks the engine, which keeps it waiting."""
    (claimed,) = await in_database(claim_due_executions, limit=1)
    assert claimed.pk == execution.pk
    return await gate.keep(advance_and_release(claimed))


async def test_an_old_answer_does_not_overwrite_a_newer_one(engine, running):
    """A8.3: nor does it give back the lease of whoever has it now."""
    gate = Gate(replies(200, status(progress=10)))
    engine.on_status = in_turn(gate, replies(200, status(progress=60)))
    late = await begin_step(running, gate)
    taken = await in_database(take_over, running)
    await advance_and_release(taken)
    await in_database(let_pass, running, 60)
    (holding,) = await in_database(claim_due_executions, limit=1)

    gate.open()
    await late

    record = await in_database(read, running)
    assert (record.progress, record.polls, record.lease_holder) == (60, 1, holding.lease_holder)


async def test_an_uneventful_answer_that_comes_late_changes_nothing(engine, running):
    """A8.3: the same for what is recorded for many at once."""
    await in_database(advance_due_executions)
    await in_database(let_pass, running, 60)
    engine.on_status = gate = Gate(replies(200, status()))
    late = await begin_step(running, gate)
    taken = await in_database(take_over, running)
    before = await in_database(read, running)

    gate.open()
    await late

    record = await in_database(read, running)
    assert (record.polls, record.lease_holder) == (before.polls, taken.lease_holder)
    assert record.next_attempt_at == before.next_attempt_at


async def test_who_lost_the_lease_ends_no_run_that_others_still_follow(engine, running):
    """A7.4: "not found" for the fourth time, but the engine has found it for somebody else meanwhile."""
    await in_database(Execution.objects.update, not_found=3)
    gate = Gate(replies(404, {"error": "no such run"}))
    engine.on_status = in_turn(gate, replies(200, status(progress=60)))
    late = await begin_step(running, gate)
    await advance_and_release(await in_database(take_over, running))

    gate.open()
    await late

    record = await in_database(read, running)
    assert (record.state, record.not_found, record.progress) == (State.RUNNING, 0, 60)


async def test_the_end_of_a_run_counts_whoever_heard_of_it(engine, running):
    """A8.4: what the engine says of it is true, with or without a lease."""
    engine.on_status = gate = Gate(replies(200, completed({"sum": 3})))
    late = await begin_step(running, gate)
    await in_database(take_over, running)

    gate.open()
    await late

    record = await in_database(read, running)
    assert record.succeeded and record.payload.output == {"sum": 3} and not record.lease_holder


@pytest.mark.parametrize(
    "refusal",
    [replies(409, {"error": "this key is being started"}), replies(503, retry_after="1")],
    ids=["refused", "not now"],
)
async def test_a_start_that_is_refused_late_does_not_end_the_run_that_another_started(
    engine, keyed_workflow, refusal
):
    """A6.2: two workers have sent the start with one key, and the second one's run is the one."""
    pending = await in_database(make_active, keyed_workflow, State.PENDING)
    first, second = Gate(refusal), Gate(replies(200, receipt()))
    engine.on_start = in_turn(first, second)
    late = await begin_step(pending, first)
    taken = await in_database(take_over, pending)
    other = asyncio.create_task(advance_and_release(taken))
    await second.request()

    first.open()
    await late
    assert (await in_database(read, pending)).state == State.STARTING

    second.open()
    await other
    record = await in_database(read, pending)
    assert (record.state, record.run_id) == (State.RUNNING, RUN_ID)
    assert {request.key for request in engine.asked("start")} == {str(pending.pk)}


async def test_who_lost_the_lease_before_the_start_does_not_start(engine, workflow):
    """A6.2: a process that was stopped between its claim and the start."""
    pending = await in_database(make_active, workflow, State.PENDING)
    (stopped,) = await in_database(claim_due_executions, limit=1)
    taken = await in_database(take_over, pending)
    await advance_and_release(taken)

    await advance_and_release(stopped)

    assert engine.count("start") == 1
    assert (await in_database(read, pending)).state == State.RUNNING


async def test_a_cancel_that_is_answered_late_changes_nothing(engine, running):
    """A7.5: another worker has told the engine and seen the end of the run."""
    await in_database(running.request_cancel, "Alice")
    gate = Gate(replies(409, {"error": "it has ended"}))
    engine.on_cancel = in_turn(gate, replies(200, status("CANCELLED")))
    engine.on_status = replies(200, status("CANCELLED"))
    late = await begin_step(running, gate)
    await advance_and_release(await in_database(take_over, running))
    before = await in_database(timeline, running)

    gate.open()
    await late

    assert (await in_database(read, running)).state == State.CANCELLED
    assert await in_database(timeline, running) == before
