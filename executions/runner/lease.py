"""Leases: which process follows a run, for how long, and how another takes over."""

import asyncio
import contextlib
import uuid
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db import DatabaseError, InterfaceError, transaction
from django.db.models import Prefetch, Q
from django.utils import timezone
from loguru import logger

from catalogue.database import DatabaseOutage, in_batches, run_in_database
from catalogue.models import Workflow
from connectors.background import CLOCKS_APART
from executions.models import ACTIVE, Execution, State
from telemetry import metrics
from telemetry.traces import create_detached_task

LEASE = timedelta(seconds=20)  # How long a killed process blocks its executions
RENEWAL_SECONDS = 5.0  # Three renewals may fail before another process takes over
AT_A_TIME = 500  # Databases limit the parameters of a query
Held = tuple[uuid.UUID, str]


@dataclass(slots=True)
class _Renewals:
    held: Counter[Held] = field(default_factory=Counter)
    awaited: Counter[uuid.UUID] = field(default_factory=Counter)
    renewal: asyncio.TimerHandle | asyncio.Task[None] | None = None


_renewals: dict[asyncio.AbstractEventLoop, _Renewals] = {}


@contextlib.contextmanager
def renewing_lease(execution_id: uuid.UUID, *, holder: str, awaited: bool = False) -> Iterator[None]:
    """Renews the holder's lease until the block ends; `awaited`: a request waits for the execution."""
    loop = asyncio.get_running_loop()
    renewals = _renewals.setdefault(loop, _Renewals())
    renewals.held[execution_id, holder] += 1
    if awaited:
        renewals.awaited[execution_id] += 1
    if renewals.renewal is None or (isinstance(renewals.renewal, asyncio.Task) and renewals.renewal.done()):
        # Most blocks end before, and so need no task.
        renewals.renewal = loop.call_later(RENEWAL_SECONDS, _begin_renewing, renewals)
    try:
        yield
    finally:
        renewals.held[execution_id, holder] -= 1
        if not renewals.held[execution_id, holder]:
            del renewals.held[execution_id, holder]
        if awaited:
            renewals.awaited[execution_id] -= 1
            if not renewals.awaited[execution_id]:
                del renewals.awaited[execution_id]
        if not renewals.held:
            renewals.renewal.cancel()
            _renewals.pop(loop, None)


def _begin_renewing(renewals: _Renewals) -> None:
    renewals.renewal = create_detached_task(_renew(renewals))


async def _renew(renewals: _Renewals) -> None:
    outage = DatabaseOutage("Renewing leases")
    while True:
        try:
            await run_in_database(_extend, list(renewals.held), list(renewals.awaited))
        except (DatabaseError, InterfaceError) as error:
            outage.note(error)
        else:
            outage.end()
        await asyncio.sleep(RENEWAL_SECONDS)


def _extend(held: Sequence[Held], awaited: Sequence[uuid.UUID]) -> None:
    now = timezone.now()
    until = now + LEASE
    for batch in in_batches(held, AT_A_TIME):
        keys, holders = zip(*batch, strict=True)
        # Expired ones too: if another process had taken one, its holder would differ.
        ours = Execution.objects.filter(pk__in=keys, lease_holder__in=set(holders), state__in=ACTIVE)
        with transaction.atomic():
            # Rows that a step has locked are renewed the next time.
            unlocked = ours.select_for_update(skip_locked=True).values("pk")
            Execution.objects.filter(pk__in=unlocked).update(lease_expires_at=until)
    for waiting in in_batches(awaited, AT_A_TIME):
        waited_for = Execution.objects.filter(pk__in=waiting)
        # Not for callers that disconnected during a step.
        waited_for.filter(awaited_until__gt=now).update(awaited_until=until)


WRITTEN = (
    "started_at", "polled_at", "admitted_at", "progress_noted_at", "end_reported_at", "looked_up_since",
    "cancel_requested_at", "overdue_since", "cancel_sent_at", "terminate_sent_at",
    "question_answered_at",
)  # fmt: skip
PLANNED_AHEAD = timedelta(hours=1)  # The most that an engine or a source's settings may ask for
CORRECTED_AT_A_TIME = 500


def correct_times() -> None:
    """Limits what a clock that was ahead wrote into active executions to what the present time allows.

    Otherwise such a run would be polled, timed out and taken over only once the time is reached. A process
    whose clock is still ahead renews its leases, and so keeps them.
    """
    now = timezone.now()
    ahead = now + CLOCKS_APART
    wrong = Q(lease_expires_at__gt=ahead + LEASE) | Q(awaited_until__gt=ahead + LEASE)
    wrong |= Q(next_attempt_at__gt=ahead + PLANNED_AHEAD)
    for name in WRITTEN:
        wrong |= Q(**{f"{name}__gt": ahead})
    corrected = 0
    for execution in Execution.objects.active().filter(wrong)[:CORRECTED_AT_A_TIME]:
        changes = _corrections(execution, now)
        # What has changed since is corrected the next time.
        same = {name: getattr(execution, name) for name in (*changes, "state", "lease_holder")}
        corrected += Execution.objects.filter(pk=execution.pk, **same).update(**changes)
    if corrected:
        logger.warning(
            "{} executions had times in the future; compare the clocks of all processes", corrected
        )


def _corrections(execution: Execution, now: datetime) -> dict[str, Any]:
    ahead = now + CLOCKS_APART
    limits = {"lease_expires_at": LEASE, "awaited_until": LEASE, "next_attempt_at": PLANNED_AHEAD}
    limits["deadline_at"] = timedelta(seconds=execution.timeout_seconds)
    changes: dict[str, Any] = {}
    for name in (*limits, *WRITTEN):
        value, limit = getattr(execution, name), limits.get(name, timedelta())
        if value is not None and value > ahead + limit:
            changes[name] = now + limit
    if not changes.keys().isdisjoint({*WRITTEN, "next_attempt_at"}):
        changes["next_attempt_at"] = min(execution.next_attempt_at, now)
    return changes


LANE_ROOM = 50  # Concurrent steps of one lane in a process; an engine's pool has connections for both


class Lane(NamedTuple):
    """Steps that are slow together: the polls of a source, or its starts, which may take as long as runs."""

    source_name: str
    polls: bool

    @classmethod
    def of(cls, source_name: str, state: str) -> "Lane":
        return cls(source_name, state == State.RUNNING)


def claim_due_executions(*, limit: int, in_flight: Mapping[Lane, int] | None = None) -> list[Execution]:
    """Leases due executions, the earliest first, as far as their lanes have room."""
    now, holder, counts = timezone.now(), uuid.uuid4().hex, Counter(in_flight or {})
    claimed: list[uuid.UUID] = []
    while len(claimed) < limit:
        full = [lane for lane, count in counts.items() if count >= LANE_ROOM]
        polls = Q(source_name__in=[lane.source_name for lane in full if lane.polls], state=State.RUNNING)
        others = [lane.source_name for lane in full if not lane.polls]
        starts = Q(source_name__in=others, state__in=[State.PENDING, State.STARTING])
        due = Execution.objects.due(now).exclude(polls | starts)
        named = due.values_list("pk", "source_name", "state", "next_attempt_at", "lease_holder")
        found = list(named[: limit - len(claimed)])
        picked = []
        for key, source_name, state, *_ in found:
            lane = Lane.of(source_name, state)
            if counts[lane] < LANE_ROOM:
                counts[lane] += 1
                picked.append(key)
        if _take(picked, now=now, holder=holder) == len(picked):
            # Another process may have been faster with some; only the read shows which.
            metrics.steps_claimed.inc(len(picked))
            taken = set(picked)
            for _, _, _, due_at, former_holder in (row for row in found if row[0] in taken):
                metrics.step_lag.observe(max(0.0, (now - due_at).total_seconds()))
                if former_holder:
                    metrics.leases_lost.inc()
        claimed += picked
        # Otherwise a lane is full, and behind it others may be due.
        if len(picked) == len(found):
            break
    # A claim is often many runs of few workflows; steps need no schemas.
    workflows = Workflow.objects.select_related("source").defer(
        "input_schema", "output_schema", "description"
    )
    ours = Execution.objects.filter(pk__in=claimed, lease_holder=holder)
    return list(ours.prefetch_related(Prefetch("workflow", workflows))) if claimed else []


def _take(keys: Collection[uuid.UUID], *, now: datetime, holder: str) -> int:
    """Returns how many."""
    if not keys:
        return 0
    with transaction.atomic():
        # Repeats the conditions, as another process may have been faster; skips locked rows to rule out
        # deadlocks.
        free = Execution.objects.due(now).filter(pk__in=keys).select_for_update(skip_locked=True)
        lease = {"lease_holder": holder, "lease_expires_at": now + LEASE}
        return Execution.objects.filter(pk__in=free.values("pk")).update(**lease)
