"""Following the runs that nobody waits for."""

import asyncio
import uuid

from django.utils import timezone

from catalogue.database import run_in_database
from connectors.background import run_in_background_loop
from executions.advancing import advance_and_let_go, begin
from executions.leases import LEASE
from executions.models import Execution

MAX_IN_FLIGHT = 200
"""Executions that one process advances at a time."""
MAX_IN_FLIGHT_PER_SOURCE = 50
"""So that an engine that answers slowly cannot use up all of them."""

_in_flight: dict[asyncio.Task[None], str] = {}
"""The tasks on the background loop, and the source that each one talks to."""


def claim_due_executions(*, limit: int, busy_sources: set[str] | None = None) -> list[Execution]:
    """Take the leases of due executions that nobody holds; each is claimed by one process only."""
    now, holder = timezone.now(), uuid.uuid4().hex
    due = Execution.objects.due(now).exclude(source_name__in=busy_sources or ())
    keys = list(due.values_list("pk", flat=True)[:limit])
    if not keys:
        return []
    # The conditions again, in the UPDATE itself: another process may have been faster since.
    Execution.objects.due(now).filter(pk__in=keys).update(lease_holder=holder, lease_expires_at=now + LEASE)
    return list(Execution.objects.filter(pk__in=keys, lease_holder=holder).select_related("workflow__source"))


def poll_due_executions() -> int:
    """Begin to advance what is due, without waiting for slow engines. Returns how many were begun."""
    return run_in_background_loop(_begin_due())


def advance_due_executions() -> int:
    """Advance everything that is due now and wait for it. Returns how many there were."""
    return run_in_background_loop(_advance_due())


async def _begin_due() -> int:
    room = MAX_IN_FLIGHT - len(_in_flight)
    if room <= 0:
        return 0
    claimed = await run_in_database(claim_due_executions, limit=room, busy_sources=_busy_sources())
    for execution in claimed:
        task = begin(advance_and_let_go(execution))
        _in_flight[task] = execution.source_name
        task.add_done_callback(_in_flight.pop)
    return len(claimed)


async def _advance_due() -> int:
    claimed = await run_in_database(claim_due_executions, limit=MAX_IN_FLIGHT)
    await asyncio.gather(*(advance_and_let_go(execution) for execution in claimed))
    return len(claimed)


def _busy_sources() -> set[str]:
    busy = list(_in_flight.values())
    return {name for name in set(busy) if busy.count(name) >= MAX_IN_FLIGHT_PER_SOURCE}
