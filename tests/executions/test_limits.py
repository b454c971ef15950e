"""Limits on how many executions run at a time."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from catalogue import exposure, product_settings
from catalogue.actions.sources import change_source
from catalogue.actions.workflows import override_workflow
from catalogue.exposure import forget_catalogue
from catalogue.models import Workflow
from executions import starting
from executions.models import Execution, State
from executions.queue import admit_queued, limits_on, may_be_queued
from executions.starting import create_execution, forget_admissions
from tests.connectors.scripted import replies
from tests.executions.engines import completed, in_thread, until
from tests.executions.queueing import (
    LIMITS,
    all_succeed,
    calls,
    hold_one,
    other_workflow,
    queue_up,
    runs,
)
from tests.executions.steps import (
    ALICE,
    BOB,
    advance_due_executions,
    call,
    in_database,
    let_pass,
    make_active,
    read,
    request_for,
)
from tests.factories import make_execution, make_source, make_workflow

__all__ = ["other_workflow", "runs"]

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.databases("executions.starting", "executions.queue"),
]


@pytest.mark.parametrize("limit", LIMITS)
async def test_no_more_run_at_a_time_than_a_limit_allows_and_all_get_their_result(
    limit, runs, workflow, configured
):
    """B7: further calls wait in the queue, and each place that becomes free is taken without any tick."""
    await in_database(limit, workflow, configured)
    called = calls(7)
    await until(lambda: Execution.objects.queued().count() == 5, "five calls wait")
    await asyncio.to_thread(runs.wait_for, 2)
    assert await in_database(Execution.objects.admitted().count) == 2

    runs.end_all()

    assert await all_succeed(called)
    assert (runs.peak, len(runs.arrived)) == (2, 7)


async def test_the_narrowest_limit_decides(runs, workflow, other_workflow, configured):
    """B7: 3 of the source, of these 1 of the workflow, though the caller may have 4 and the product 5."""
    configured(max_concurrent_executions=5, max_concurrent_per_caller=4)
    await in_database(change_source, workflow.source, max_concurrent=3)
    await in_database(lambda: override_workflow(workflow, max_concurrent=1))
    called = calls(3)
    await until(lambda: Execution.objects.queued().count() == 2, "two calls of the workflow wait")
    called += calls(3, "summary", caller=BOB)
    await until(lambda: Execution.objects.queued().count() == 3, "one call of the other waits for the source")
    assert await in_database(Execution.objects.admitted().count) == 3
    await asyncio.to_thread(runs.wait_for, 3)

    runs.end_all()

    assert await all_succeed(called)
    assert runs.peak == 3


async def test_a_full_workflow_holds_up_nobody_who_does_not_want_it(runs, workflow, other_workflow):
    """B7: also the same caller's call of something else goes past the queue."""
    await in_database(lambda: override_workflow(workflow, max_concurrent=1))
    called = [await hold_one(runs), await queue_up("second")]

    called += calls(1, "summary")

    await asyncio.to_thread(runs.wait_for, 2)
    assert await in_database(Execution.objects.queued().count) == 1
    runs.end_all()
    assert await all_succeed(called)


async def test_a_run_that_goes_on_without_its_caller_keeps_its_place(engine, workflow):
    """What counts is what runs at the engine, whoever waits for it."""
    await in_database(lambda: override_workflow(workflow, max_concurrent=1))
    running = await call("report", {"call": 1}, seconds=0)
    await until(lambda: read(running).state == State.RUNNING)

    second = await call("report", {"call": 2}, seconds=0.1)

    assert second.is_queued and engine.count("start") == 1
    engine.on_status = replies(200, completed())
    await until(lambda: not read(running).lease_holder)
    await in_database(let_pass, running, 60)
    await in_thread(advance_due_executions)
    admitted = await until(lambda: Execution.objects.filter(pk=second.pk, admitted_at__isnull=False).first())
    await in_thread(advance_due_executions)
    assert (await until(lambda: read(admitted).run_id)) and engine.count("start") == 2


async def test_a_changed_limit_counts_without_a_restart(runs, workflow):
    """B4: raised, it lets in who waits at the next tick; lowered, it holds for the next call."""
    await in_database(lambda: override_workflow(workflow, max_concurrent=1))
    called = [await hold_one(runs), await queue_up("second")]

    await in_database(lambda: override_workflow(workflow, max_concurrent=2))
    assert await in_thread(admit_queued) == 1
    await asyncio.to_thread(runs.wait_for, 2)

    await in_database(lambda: override_workflow(workflow, max_concurrent=None))
    forget_catalogue()
    called += calls(1)
    await asyncio.to_thread(runs.wait_for, 3)
    await in_database(lambda: override_workflow(workflow, max_concurrent=3))
    forget_catalogue()
    called.append(await queue_up("fourth"))
    runs.end_all()
    assert await all_succeed(called)


async def test_what_another_process_ended_is_noticed_by_the_tick(runs, workflow):
    """The net: a process that knows nothing of the queue passes its place on within a second."""
    await in_database(lambda: override_workflow(workflow, max_concurrent=1))
    elsewhere = await in_database(make_active, workflow, State.RUNNING)
    waiting_one = await queue_up("second")

    def end_elsewhere() -> None:
        may_be_queued.clear()
        Execution.objects.get(pk=elsewhere.pk).fail("It ended in another process.")

    await in_database(end_elsewhere)
    assert await in_database(Execution.objects.queued().count) == 1
    assert await in_thread(admit_queued) == 1
    await asyncio.to_thread(runs.wait_for, 1)
    runs.end_all()
    assert (await waiting_one).succeeded


@pytest.mark.usefixtures("quick_looks")
async def test_a_waiter_learns_of_the_place_that_another_process_gave_it(runs, workflow):
    """It looks at the database itself, once a second for all who wait in the queue here."""
    await in_database(lambda: override_workflow(workflow, max_concurrent=1))
    elsewhere = await in_database(make_active, workflow, State.RUNNING)
    waiting_one = await queue_up("second")

    def admit_elsewhere() -> None:
        """As another process does it: nobody is woken here."""
        Execution.objects.get(pk=elsewhere.pk).fail("It ended in another process.")
        assert Execution.objects.queued().get().admit()

    await in_database(admit_elsewhere)
    await asyncio.to_thread(runs.wait_for, 1)
    runs.end_all()
    assert (await waiting_one).succeeded


# What it costs


def statements_of(create: Callable[[], Any]) -> list[str]:
    with CaptureQueriesContext(connection) as captured:
        create()
    return [query["sql"].split()[0] for query in captured.captured_queries]


def test_only_near_a_limit_is_anything_counted(workflow, configured, monkeypatch):
    """E7: half of the limit away, a call costs nothing more; nearer, it takes its turn and counts."""
    for remembering in (starting, product_settings, exposure):
        monkeypatch.setattr(remembering, "MAX_AGE_SECONDS", 3600)
    configured(max_concurrent_per_caller=206)
    for _ in range(100):
        make_execution(workflow, state=State.RUNNING, caller=ALICE.key)

    costs = [statements_of(lambda: create_execution(request_for("report"))) for _ in range(5)]

    kinds = [[kind for kind in cost if kind in ("SELECT", "INSERT", "WITH")] for cost in costs]
    writes = ["WITH"] if connection.vendor == "postgresql" else ["INSERT"] * 3
    assert kinds[1] == kinds[2] == writes
    assert [len(kind) > len(writes) for kind in kinds] == [True, False, False, True, True]


def test_the_states_that_take_no_place_are_left_out_of_the_count(workflow, configured):
    configured(max_concurrent_executions=1)
    for state in (State.COMPLETED, State.FAILED, State.CANCELLED, State.TIMED_OUT, State.UNCONFIRMED):
        make_execution(workflow, state=state)
    assert not create_execution(request_for("report")).is_queued
    forget_admissions()
    assert create_execution(request_for("report")).is_queued


def test_numbers_that_are_remembered_are_those_that_are_counted(source, workflow):
    """The look at everything and the count of one agree, for every kind of room."""
    from executions.queue import has_room, read_occupancy

    change_source(source, max_concurrent=50)
    other = make_workflow(make_source(), name="elsewhere")
    rows = itertools.product((workflow, other), ("token:1", "token:2"), State)
    for one, caller, state in rows:
        make_execution(one, caller=caller, state=state)
    occupancy = read_occupancy()
    limits = limits_on(Workflow.objects.select_related("source").get(pk=workflow.pk), "token:1")
    for room in limits:
        assert not has_room({room: occupancy[room]})
        assert has_room({room: occupancy[room] + 1})
    assert [occupancy[room] for room in limits] == [12, 6, 6, 6]
