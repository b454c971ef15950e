"""The queue in front of the limits: who gets the next free place, and when.

The oldest of the caller that has the fewest running comes next, so that one caller with a thousand calls
holds up nobody else's single one. Who waits for a room that is full does not block who waits for another.
"""

import asyncio
import heapq
import threading
import time
import uuid
from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from django.db import DatabaseError, InterfaceError, connection, transaction
from django.db.models import Q
from django.utils import timezone
from loguru import logger

from catalogue.database import run_in_database
from catalogue.models import Workflow
from executions.limits import PRODUCT, Occupancy, Place, Room, expected, read_occupancy
from executions.models import ErrorKind, Execution
from executions.runner.engine_calls import log_of
from executions.runner.start import switched_off
from executions.wakeups import wake


@dataclass(frozen=True, slots=True)
class Waiting:
    """One that has no place yet."""

    key: uuid.UUID
    place: Place


@dataclass(slots=True)
class Choice:
    chosen: list[uuid.UUID] = field(default_factory=list)
    full: set[Room] = field(default_factory=set)
    """What the others wait for."""
    is_cut: bool = False
    """It has as many as it may have; there may be room for others too."""


def choose(queue: Iterable[Waiting], occupancy: Occupancy, *, at_most: int) -> Choice:
    """Who of the queue, which is in the order in which they came, gets a place.

    The occupancy is counted on with them.
    """
    choice = Choice()
    lines: dict[str, deque[tuple[int, Waiting]]] = defaultdict(deque)
    for position, waiting in enumerate(queue):
        lines[waiting.place.caller].append((position, waiting))
    heads = [_turn(line, occupancy) for line in lines.values()]
    heapq.heapify(heads)
    while heads and not choice.is_cut:
        line = lines[heapq.heappop(heads)[2]]
        _, waiting = line.popleft()
        full = set(occupancy.full(waiting.place.limits))
        if not full:
            choice.chosen.append(waiting.key)
            choice.is_cut = len(choice.chosen) >= at_most
            occupancy.take(waiting.place)
        # What is full now stays full for the rest of this choice, so nobody has to be looked at twice.
        choice.full |= full
        if PRODUCT in full:
            break
        if line and waiting.place.callers_room not in full:
            heapq.heappush(heads, _turn(line, occupancy))
    return choice


def _turn(line: deque[tuple[int, Waiting]], occupancy: Occupancy) -> tuple[int, int, str]:
    """Sorts callers: who has the fewest running, then whose call came first."""
    position, waiting = line[0]
    return occupancy.number_in(waiting.place.callers_room), position, waiting.place.caller


AT_A_TIME = 100
"""Places that are given away in one transaction, while which nobody else can be admitted."""
ADMISSIONS = 0x7763_6164
"""The advisory lock of PostgreSQL; any number that nobody else uses in this database."""


def lock_admissions() -> None:
    """Let nobody else count and admit until the present transaction ends.

    So the count of one is never out of date when it commits what it admitted. SQLite needs no more than
    the transaction, which began as the only one that writes.
    """
    assert connection.in_atomic_block, "the lock is the transaction's"
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [ADMISSIONS])


_asked = threading.Event()
_at_it = threading.Lock()


async def give_places_soon() -> None:
    """Give free places away now; however many ask at the same time, one look serves them all."""
    _asked.set()
    while _asked.is_set() and _at_it.acquire(blocking=False):
        try:
            _asked.clear()
            began = time.monotonic()
            await run_in_database(admit_queued)
            # Leaves the others as much time, so that under load one look serves more ends.
            await asyncio.sleep(time.monotonic() - began)
        except (DatabaseError, InterfaceError) as error:
            logger.warning("Free places are given away at the next tick: {}", error)
        finally:
            _at_it.release()


def admit_queued() -> int:
    """Give free places to those who wait, and end those who wait in vain. Returns how many got one."""
    if expected.is_empty and not Execution.objects.queued().exists():
        return 0
    admitted, is_more = 0, True
    while is_more:
        with transaction.atomic():
            lock_admissions()
            number, is_more = give_places()
        admitted += number
    return admitted


def give_places() -> tuple[int, bool]:
    """Within the lock: how many got a place, and whether others could get one too."""
    if not Execution.objects.queued().exists():
        expected.learn(())
        return 0, False
    _end_those_in_vain()
    choice = choose(_read_queue(), read_occupancy(), at_most=AT_A_TIME)
    # Rows that somebody else is changing are left out, since they may be locked by who waits for ours.
    rows = (
        Execution.objects.queued()
        .filter(pk__in=choice.chosen)
        .select_for_update(skip_locked=True, no_key=True)
    )
    admitted = [execution for execution in rows if execution.admit()]
    expected.learn(choice.full, unsure=len(admitted) < len(choice.chosen))
    for execution in admitted:
        log_of(execution).info("Execution admitted")
    transaction.on_commit(partial(_set_going, admitted))
    return len(admitted), choice.is_cut and bool(admitted)


def _read_queue() -> list[Waiting]:
    """Those who may get a place, in the order in which they came.

    As plain as it is because SQLite would read all that ever ran to join it or to number the rows.
    """
    in_time = Execution.objects.queued().filter(deadline_at__gt=timezone.now())
    rows = list(in_time.values_list("pk", "caller", "workflow", "door"))
    workflows = _read_workflows({workflow for _, _, workflow, _ in rows})
    kinds = {(caller, workflow, door) for _, caller, workflow, door in rows}
    places = {
        (caller, workflow, door): Place.of(workflows[workflow], caller)
        for caller, workflow, door in kinds
        if workflow in workflows and not switched_off(workflows[workflow], door)
    }
    return [
        Waiting(key, places[caller, workflow, door])
        for key, caller, workflow, door in rows
        if (caller, workflow, door) in places
    ]


def _read_workflows(keys: Iterable[Any]) -> dict[Any, Workflow]:
    columns = (
        "enabled", "missing_since", "max_concurrent",
        "source__name", "source__enabled", "source__max_concurrent",
    )  # fmt: skip
    return Workflow.objects.select_related("source").only(*columns).in_bulk(keys)


def _end_those_in_vain() -> None:
    shown = Q(workflow__enabled=True) | Q(door=Execution.Door.ADMIN)
    startable = shown & Q(workflow__missing_since=None, workflow__source__enabled=True)
    too_late = Q(workflow=None) | Q(deadline_at__lte=timezone.now())
    in_vain = Execution.objects.queued().filter(too_late | ~startable).select_related("workflow__source")
    free = in_vain.select_for_update(skip_locked=True, no_key=True, of=("self",))
    for execution in free[:AT_A_TIME]:
        kind, why = _why_in_vain(execution)
        if execution.give_up_queued(why, kind=kind):
            log_of(execution).warning("Execution left the queue: {}", why)
            transaction.on_commit(partial(wake, execution.pk))


def _why_in_vain(execution: Execution) -> tuple[ErrorKind, str]:
    if execution.workflow is None:
        return ErrorKind.CONFIGURATION, "It was not started: its workflow was deleted."
    if off := switched_off(execution.workflow, execution.door):
        return ErrorKind.CONFIGURATION, f"It was not started: {off}."
    waited = f"It waited in the queue longer than its timeout of {execution.timeout_seconds} s."
    return ErrorKind.TIMEOUT, f"{waited} Nothing was started."


def _set_going(admitted: Iterable[Execution]) -> None:
    """A request of this process that waits starts its own; workers start the others."""
    from executions.dispatch import ask_for_a_poll

    for_workers = [execution for execution in admitted if not (wake(execution.pk) and execution.is_awaited)]
    if for_workers:
        ask_for_a_poll()
