"""What happens at the same moment at the limits."""

import pytest
from django.db import connection

from executions.models import Execution, State
from executions.queue import admit_queued
from executions.starting import create_execution
from tests.executions.engines import in_thread
from tests.executions.queueing import LIMITS, make_queued
from tests.executions.steps import (
    BOB,
    cancel,
    in_database,
    read,
    request_for,
)
from tests.threads import together

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.databases("executions.queue"),
]


@pytest.mark.parametrize("limit", LIMITS)
def test_of_many_that_are_created_at_the_same_time_only_as_many_are_admitted(limit, workflow, configured):
    """B7: no two see the same place free. As several processes do: nothing of it is in their memory."""
    limit(workflow, configured)
    created = together(*[lambda: create_execution(request_for("report")) for _ in range(8)])
    assert sum(not execution.is_queued for execution in created) == 2
    assert Execution.objects.admitted().count() == 2


def test_two_that_give_away_places_give_each_away_once(workflow, configured):
    """Two ends at once, or an end and the tick."""
    configured(max_concurrent_executions=3)
    for _ in range(6):
        make_queued(workflow)
    assert sum(together(*[admit_queued] * 4)) == 3
    assert Execution.objects.admitted().count() == 3


def test_one_that_comes_and_one_that_gets_a_place_do_not_share_it(workflow, configured):
    configured(max_concurrent_executions=1)
    make_queued(workflow)
    together(admit_queued, lambda: create_execution(request_for("report", caller=BOB)))
    assert Execution.objects.admitted().count() == 1


def test_a_cancel_and_a_place_at_the_same_moment_come_to_one_of_the_two(workflow):
    queued = [make_queued(workflow) for _ in range(5)]

    def cancel_all() -> list[bool]:
        return [Execution.objects.get(pk=one.pk).cancel_queued("Alice") for one in queued]

    admitted, cancelled = together(admit_queued, cancel_all)
    # A row that was locked in that moment is let in by the next look.
    admitted += admit_queued()
    rows = [read(one) for one in queued]
    assert [row.state == State.CANCELLED for row in rows] == cancelled
    assert [row.admitted_at is None for row in rows] == cancelled
    assert admitted == len(queued) - sum(cancelled)


async def test_a_cancel_that_comes_after_the_place_is_not_lost(workflow):
    """It read the row as queued; by then it is admitted, and has to be cancelled as such."""
    queued = await in_database(make_queued, workflow)
    stale = await in_database(read, queued)
    assert await in_thread(admit_queued) == 1
    assert not await in_database(stale.cancel_queued, "Alice")
    assert (await cancel(stale)).outcome == "cancelled"
    assert (await in_database(read, queued)).run_id == ""


def test_a_row_that_somebody_is_changing_holds_up_nobody(workflow, configured):
    """PostgreSQL: who waits for a row while it holds others may wait for ever."""
    if connection.vendor == "sqlite":
        pytest.skip("SQLite locks no rows")
    from django.db import transaction

    changed, free = make_queued(workflow, seconds_ago=20), make_queued(workflow)
    with transaction.atomic():
        Execution.objects.filter(pk=changed.pk).update(polls=1)
        (admitted,) = together(admit_queued)
    assert admitted == 1 and not read(free).is_queued
    assert admit_queued() == 1 and not read(changed).is_queued
