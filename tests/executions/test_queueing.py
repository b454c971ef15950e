"""The queue in front of the limits: whose turn it is, how long it may be, and what happens in it."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from catalogue.models import Source, Workflow
from executions.models import Execution
from executions.queue import Occupancy, Waiting, choose, limits_on
from executions.refusals import Busy
from executions.starting import create_execution
from tests.executions.queueing import (
    all_succeed,
    hold_one,
    make_queued,
    names_of,
    other_workflow,
    queue_up,
    runs,
)
from tests.executions.steps import (
    BOB,
    read,
    request_for,
)
from tests.factories import make_execution

__all__ = ["other_workflow", "runs"]

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.databases("executions.queue"),
]


# Whose turn it is


async def test_calls_of_one_caller_are_taken_in_the_order_in_which_they_came(runs, workflow, configured):
    configured(max_concurrent_per_caller=1)
    called = [await hold_one(runs)]
    called += [await queue_up(name) for name in ("second", "third", "fourth")]
    for number in range(1, 4):
        runs.end()
        await asyncio.to_thread(runs.wait_for, number + 1)
    runs.end_all()
    assert await all_succeed(called)
    assert names_of(runs) == ["first", "second", "third", "fourth"]


async def test_a_single_call_does_not_wait_behind_the_many_of_another_caller(runs, workflow, configured):
    """B7: the next place is for the oldest of the caller that has the fewest running."""
    configured(max_concurrent_executions=2)
    called = [await hold_one(runs), await hold_one(runs)]
    called += [await queue_up(f"Alice's {n}") for n in range(4)]
    called.append(await queue_up("Bob's", caller=BOB))

    runs.end()
    await asyncio.to_thread(runs.wait_for, 3)

    assert names_of(runs)[2:] == ["Bob's"]
    runs.end()
    await asyncio.to_thread(runs.wait_for, 4)
    assert names_of(runs)[3:] == ["Alice's 0"]
    runs.end_all()
    assert await all_succeed(called)


def test_a_place_that_is_free_belongs_to_who_waits_and_not_to_who_comes(workflow, configured):
    """B7: nobody jumps the queue in the moment before it is looked at."""
    configured(max_concurrent_executions=1)
    first = make_queued(workflow)

    newcomer = create_execution(request_for("report", caller=BOB))

    assert newcomer.is_queued
    assert not read(first).is_queued


def test_a_newcomer_gets_the_place_that_is_left_over(workflow, configured):
    configured(max_concurrent_executions=2)
    first = make_queued(workflow)
    newcomer = create_execution(request_for("report", caller=BOB))
    assert not newcomer.is_queued
    assert not read(first).is_queued


def waiting(key: Any, caller: str, *, workflow: int = 1, limit: int | None = None) -> Waiting:
    called = Workflow(pk=workflow, source=Source(pk=1), max_concurrent=limit)
    return Waiting(key, caller, limits_on(called, caller))


def chosen(order: str, *, room: int, running: str = "") -> str:
    """Whose turn it is, as letters; `order` names the callers of who waits."""
    occupancy = Occupancy()
    for caller in running:
        occupancy.update(waiting(0, caller).limits.keys())
    queue = [waiting(n, caller) for n, caller in enumerate(order)]
    keys = choose(queue, occupancy, at_most=room)
    return "".join(order[key] for key in keys)  # type: ignore[index]


@pytest.mark.parametrize(
    ("order", "running", "room", "turns"),
    [
        ("aaab", "", 2, "ab"),
        ("aaab", "", 4, "abaa"),
        ("aaab", "b", 2, "aa"),
        ("baaa", "aa", 2, "ba"),
        ("abab", "", 4, "abab"),
        ("aabb", "aab", 3, "bab"),
        ("", "a", 3, ""),
    ],
)
def test_the_caller_with_the_fewest_running_comes_next_and_then_the_oldest(order, running, room, turns):
    assert chosen(order, running=running, room=room) == turns


# A queue has an end


def test_beyond_the_queue_a_call_is_refused_and_nothing_is_recorded(workflow, configured):
    """B5, B7: with how long to wait, which the door tells."""
    configured(max_concurrent_executions=1, max_queued_executions=2)
    for _ in range(3):
        create_execution(request_for("report"))
    with pytest.raises(Busy, match=r"the queue is full, with 2 waiting.*try again in \d+ s") as refused:
        create_execution(request_for("report"))
    assert 1 <= refused.value.retry_after <= 300
    assert Execution.objects.count() == 3


def test_one_caller_cannot_fill_the_queue_for_others(workflow, configured):
    """B7: whoever has nothing in the queue is always let in."""
    configured(max_concurrent_executions=1, max_queued_executions=2)
    for _ in range(3):
        create_execution(request_for("report"))
    assert create_execution(request_for("report", caller=BOB)).is_queued
    with pytest.raises(Busy):
        create_execution(request_for("report", caller=BOB))


def test_one_caller_may_queue_only_so_many(workflow, configured):
    configured(max_concurrent_executions=1, max_queued_per_caller=1)
    for _ in range(2):
        create_execution(request_for("report"))
    with pytest.raises(Busy, match="your share of the queue is full, with 1 waiting"):
        create_execution(request_for("report"))
    assert create_execution(request_for("report", caller=BOB)).is_queued


@pytest.mark.parametrize("bound", ["max_queued_executions", "max_queued_per_caller"])
def test_where_no_queue_is_allowed_nobody_waits(workflow, configured, bound):
    configured(**{"max_concurrent_executions": 1, bound: 0})
    create_execution(request_for("report"))
    with pytest.raises(Busy, match="queueing is disabled"):
        create_execution(request_for("report", caller=BOB))


@pytest.mark.parametrize(("came_through", "seconds"), [(0, 60), (1, 60), (30, 2), (100, 1)])
def test_how_long_to_wait_follows_from_how_fast_the_queue_moves(workflow, configured, came_through, seconds):
    """An estimate from the last minute: half of these came through before it, and some never queued."""
    configured(max_concurrent_executions=1, max_queued_executions=1)
    now = timezone.now()
    for number in range(2 * came_through):
        at = now - timedelta(seconds=30 if number % 2 else 90)
        make_execution(workflow, admitted_at=at, created_at=at - timedelta(seconds=100))
    make_execution(workflow, created_at=now, admitted_at=now)
    ahead = now + timedelta(days=1)  # By a clock that has been set back
    make_execution(workflow, created_at=ahead, admitted_at=ahead + timedelta(seconds=9))
    for _ in range(2):
        create_execution(request_for("report"))
    with pytest.raises(Busy) as refused:
        create_execution(request_for("report"))
    assert refused.value.retry_after == seconds
