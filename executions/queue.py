"""Limits on concurrent executions, and the queue in front of them.

The next free slot goes to the caller with the fewest running executions, oldest call first. An execution
that waits for one full limit does not block those that wait for another.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
import time
import uuid
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from django.conf import settings
from django.db import DatabaseError, InterfaceError, connection, transaction
from django.db.models import Count, Q
from django.utils import timezone
from loguru import logger

from catalogue.database import run_in_database
from catalogue.models import Workflow
from executions.models import RUNS_HIDDEN, ErrorKind, Execution, State
from executions.runner.engine_calls import log_of
from executions.runner.start import switched_off
from executions.wakeups import request_poll, wake


class ConcurrencyLimit(NamedTuple):
    """Bounds all executions of the product, or those with this key in this field."""

    field: str = ""
    key: str | int | None = None


GLOBAL = ConcurrencyLimit()
CALLER, SOURCE, WORKFLOW = "caller", "workflow__source", "workflow"
Limits = Mapping[ConcurrencyLimit, int | None]  # The most concurrent executions; 0 and None: any number
Occupancy = Counter[ConcurrencyLimit]


def limits_on(workflow: Workflow, caller: str) -> Limits:
    """Returns every limit that such an execution counts for."""
    return {
        GLOBAL: settings.CATALOGUE.max_concurrent_executions,
        ConcurrencyLimit(CALLER, caller): settings.CATALOGUE.max_concurrent_per_caller,
        ConcurrencyLimit(SOURCE, workflow.source_id): workflow.source.max_concurrent,
        ConcurrencyLimit(WORKFLOW, workflow.pk): workflow.max_concurrent,
    }


def read_occupancy() -> Occupancy:
    """Counts all active executions at once, to decide about many. Skips sources without a limit."""
    occupancy = Occupancy()
    limited = Workflow.objects.exclude(source__max_concurrent=None).order_by()
    source_of = dict(limited.values_list("pk", "source"))
    # Phrased so that SQLite reads only the partial index of admitted executions.
    admitted = Execution.objects.filter(admitted_at__isnull=False, finished_at=None)
    groups = (
        admitted.exclude(state__in=[State.UNAPPROVED, State.UNCONFIRMED])
        .order_by()
        .values_list("workflow", "caller")
    )
    for workflow, caller, number in groups.annotate(number=Count("*")):
        occupancy[GLOBAL] += number
        occupancy[ConcurrencyLimit(CALLER, caller)] += number
        occupancy[ConcurrencyLimit(SOURCE, source_of.get(workflow))] += number
        occupancy[ConcurrencyLimit(WORKFLOW, workflow)] += number
    return occupancy


def has_room(limits: Limits) -> bool:
    """Read from the database; counts at most as many rows as the limits allow."""
    for limit, most in limits.items():
        there: dict[str, Any] = {limit.field: limit.key} if limit.field else {}
        if most and Execution.objects.admitted().filter(**there).order_by()[:most].count() >= most:
            return False
    return True


may_be_queued = threading.Event()  # Whether this process reads the queue when a run ends


@dataclass(frozen=True, slots=True)
class Waiting:
    key: uuid.UUID
    caller: str
    limits: Limits


def choose(queue: Iterable[Waiting], occupancy: Occupancy, *, at_most: int) -> list[uuid.UUID]:
    """Chooses the executions to admit, and adds them to the occupancy. `queue` is in order of arrival."""
    chosen: list[uuid.UUID] = []
    lines: dict[str, deque[tuple[int, Waiting]]] = defaultdict(deque)
    for position, waiting in enumerate(queue):
        lines[waiting.caller].append((position, waiting))
    heads = [_turn(line, occupancy) for line in lines.values()]
    heapq.heapify(heads)
    while heads and len(chosen) < at_most:
        line = lines[heapq.heappop(heads)[2]]
        _, waiting = line.popleft()
        full = {limit for limit, most in waiting.limits.items() if most and occupancy[limit] >= most}
        if not full:
            chosen.append(waiting.key)
            occupancy.update(waiting.limits.keys())
        # A full scope stays full for the rest of this choice, so each execution is checked once.
        if GLOBAL in full:
            break
        if line and ConcurrencyLimit(CALLER, waiting.caller) not in full:
            heapq.heappush(heads, _turn(line, occupancy))
    return chosen


def _turn(line: deque[tuple[int, Waiting]], occupancy: Occupancy) -> tuple[int, int, str]:
    """Returns the sort key of a caller: fewest running executions, then the oldest call."""
    position, waiting = line[0]
    return occupancy[ConcurrencyLimit(CALLER, waiting.caller)], position, waiting.caller


PAUSE_SHARE = 3  # Of the time that a read of the queue took
AT_A_TIME = 100  # Admissions in one transaction, during which no other process can admit
ADMISSIONS = 0x7763_6164  # PostgreSQL's advisory lock; any number that nothing else uses in this database


def lock_admissions() -> None:
    """Keeps other processes from admitting until this transaction ends. SQLite has one writer anyway."""
    assert connection.in_atomic_block, "the lock is the transaction's"
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [ADMISSIONS])


_asked = threading.Event()
_at_it = threading.Lock()


async def admit_soon() -> None:
    """Admits queued executions now; concurrent requests share one read of the queue."""
    _asked.set()
    while _asked.is_set() and _at_it.acquire(blocking=False):
        try:
            _asked.clear()
            began = time.monotonic()
            await run_in_database(admit_queued)
            # So that under load one read serves more ends.
            await asyncio.sleep(PAUSE_SHARE * (time.monotonic() - began))
        except (DatabaseError, InterfaceError) as error:
            text = "Admitting queued executions failed; the next tick tries again: {}"
            logger.bind(recurring=str(error)).warning(text, error)
        finally:
            _at_it.release()


def admit_queued() -> int:
    if not may_be_queued.is_set() and not Execution.objects.queued().exists():
        return 0
    admitted, is_more = 0, True
    while is_more:
        with transaction.atomic():
            lock_admissions()
            number, is_more = admit_batch()
        admitted += number
    return admitted


def admit_batch() -> tuple[int, bool]:
    """Needs the lock. Returns how many were admitted, and whether more might be."""
    may_be_queued.clear()
    if not Execution.objects.queued().exists():
        return 0, False
    may_be_queued.set()
    _end_unstartable()
    chosen = choose(_read_queue(), read_occupancy(), at_most=AT_A_TIME)
    # Skip locked rows: their lock may be held by a transaction that waits for ours.
    rows = Execution.objects.queued().filter(pk__in=chosen).select_for_update(skip_locked=True, no_key=True)
    admitted = [execution for execution in rows if execution.admit()]
    for execution in admitted:
        log_of(execution).info("Execution admitted")
    transaction.on_commit(partial(_start_admitted, admitted))
    # Of as many as were asked for, more might be admitted.
    return len(admitted), len(chosen) == AT_A_TIME and bool(admitted)


def _read_queue() -> list[Waiting]:
    """Returns the executions that may be admitted, in order. Joins would make SQLite read all history."""
    in_time = Execution.objects.queued().filter(deadline_at__gt=timezone.now())
    rows = list(in_time.values_list("pk", "caller", "workflow", "door"))
    columns = (
        "enabled", "missing_since", "max_concurrent",
        "source__name", "source__enabled", "source__max_concurrent",
    )  # fmt: skip
    read = Workflow.objects.select_related("source").only(*columns)
    workflows = read.in_bulk({workflow for _, _, workflow, _ in rows})
    limits = {
        (caller, workflow, door): limits_on(workflows[workflow], caller)
        for caller, workflow, door in {row[1:] for row in rows}
        if workflow in workflows and not switched_off(workflows[workflow], door)
    }
    return [
        Waiting(key, caller, limits[caller, workflow, door])
        for key, caller, workflow, door in rows
        if (caller, workflow, door) in limits
    ]


def _end_unstartable() -> None:
    shown = Q(workflow__enabled=True) | Q(door__in=RUNS_HIDDEN)
    startable = shown & Q(workflow__missing_since=None, workflow__source__enabled=True)
    too_late = Q(workflow=None) | Q(deadline_at__lte=timezone.now())
    in_vain = Execution.objects.queued().filter(too_late | ~startable).select_related("workflow__source")
    free = in_vain.select_for_update(skip_locked=True, no_key=True, of=("self",))
    for execution in free[:AT_A_TIME]:
        kind, why = _why_unstartable(execution)
        if execution.give_up_queued(why, kind=kind):
            log_of(execution).warning("Execution left the queue: {}", why)
            transaction.on_commit(partial(wake, execution.pk))


def _why_unstartable(execution: Execution) -> tuple[ErrorKind, str]:
    if execution.workflow is None:
        return ErrorKind.CONFIGURATION, "It was not started: its workflow was deleted."
    if off := switched_off(execution.workflow, execution.door):
        return ErrorKind.CONFIGURATION, f"It was not started: {off}."
    waited = f"It waited in the queue longer than its timeout of {execution.timeout_seconds} s."
    return ErrorKind.TIMEOUT, f"{waited} Nothing was started."


def _start_admitted(admitted: Iterable[Execution]) -> None:
    for_workers = [execution for execution in admitted if not (wake(execution.pk) and execution.is_awaited)]
    if for_workers:
        request_poll()
