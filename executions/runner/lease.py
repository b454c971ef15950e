"""Leases: which process follows a run, for how long, and who takes it over."""

import asyncio
import contextlib
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db import DatabaseError, InterfaceError, transaction
from django.db.models import Prefetch, Q
from django.utils import timezone
from loguru import logger

from catalogue.database import run_in_database
from catalogue.models import Workflow
from executions.models import ACTIVE, Execution, State

LEASE = timedelta(seconds=20)
"""How long a killed process keeps others from its executions."""
RENEWAL_SECONDS = 5.0
"""Three renewals may fail before anybody takes over."""
AT_A_TIME = 500
"""Databases bound the number of a query's parameters."""


Held = tuple[uuid.UUID, str]
"""An execution and its holder."""


@dataclass(slots=True)
class _Kept:
    """What the steps on one event loop hold at present, each as often as there are steps that need it."""

    held: Counter[Held] = field(default_factory=Counter)
    awaited: Counter[uuid.UUID] = field(default_factory=Counter)
    renewing: asyncio.Task[None] | None = None


_kept: dict[asyncio.AbstractEventLoop, _Kept] = {}


@contextlib.asynccontextmanager
async def keep(execution_id: uuid.UUID, *, holder: str, awaited: bool = False) -> AsyncIterator[None]:
    """Renew the lease that `holder` has until the block ends; `awaited` says that a request waits for it."""
    loop = asyncio.get_running_loop()
    kept = _kept.setdefault(loop, _Kept())
    kept.held[execution_id, holder] += 1
    if awaited:
        kept.awaited[execution_id] += 1
    if kept.renewing is None or kept.renewing.done():
        kept.renewing = loop.create_task(_renew(kept))
    try:
        yield
    finally:
        _drop_one(kept.held, (execution_id, holder))
        if awaited:
            _drop_one(kept.awaited, execution_id)
        if not kept.held:
            kept.renewing.cancel()
            _kept.pop(loop, None)


def _drop_one(counts: Counter[Any], key: Any) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]


async def _renew(kept: _Kept) -> None:
    while True:
        await asyncio.sleep(RENEWAL_SECONDS)
        try:
            await run_in_database(_extend, list(kept.held), list(kept.awaited))
        except (DatabaseError, InterfaceError) as error:
            logger.warning("Renewing leases failed, trying again in {} s: {}", RENEWAL_SECONDS, error)


def _extend(held: Sequence[Held], awaited: Sequence[uuid.UUID]) -> None:
    now = timezone.now()
    until = now + LEASE
    for at in range(0, len(held), AT_A_TIME):
        keys, holders = zip(*held[at : at + AT_A_TIME], strict=True)
        # Also one that has run out meanwhile: nobody has taken it, or the holder would be another.
        ours = Execution.objects.filter(pk__in=keys, lease_holder__in=set(holders), state__in=ACTIVE)
        with transaction.atomic():
            # Rows that others lock at the moment, for what a step found, are renewed the next time.
            unlocked = ours.select_for_update(skip_locked=True).values("pk")
            Execution.objects.filter(pk__in=unlocked).update(lease_expires_at=until)
    for at in range(0, len(awaited), AT_A_TIME):
        waited_for = Execution.objects.filter(pk__in=awaited[at : at + AT_A_TIME])
        # Not those whose caller has gone while a step of theirs is still under way.
        waited_for.filter(awaited_until__gt=now).update(awaited_until=until)


LANE_ROOM = 50
"""Steps of one lane that a process has under way: as many as it has connections to one engine."""


class Lane(NamedTuple):
    """What is slow together: the polls of a source, or its starts, which may take as long as runs do."""

    source_name: str
    polls: bool

    @classmethod
    def of(cls, source_name: str, state: str) -> "Lane":
        return cls(source_name, state == State.RUNNING)


def claim_due_executions(*, limit: int, in_flight: Mapping[Lane, int] | None = None) -> list[Execution]:
    """Take the leases of due executions that nobody holds, the earliest first, as far as lanes have room.

    Each is claimed by one process only, and comes with its workflow and source.
    """
    now, holder, counts = timezone.now(), uuid.uuid4().hex, Counter(in_flight or {})
    claimed: list[uuid.UUID] = []
    while len(claimed) < limit:
        due = Execution.objects.due(now).exclude(_in_any(_full(counts)))
        found = list(due.values_list("pk", "source_name", "state")[: limit - len(claimed)])
        picked = _pick(found, counts)
        _take(picked, now=now, holder=holder)
        claimed += picked
        # Otherwise a lane is full now, and behind it others may have something due.
        if len(picked) == len(found):
            break
    return _read(claimed, holder=holder) if claimed else []


def _pick(found: Iterable[tuple[uuid.UUID, str, str]], counts: Counter[Lane]) -> list[uuid.UUID]:
    picked = []
    for key, source_name, state in found:
        lane = Lane.of(source_name, state)
        if counts[lane] < LANE_ROOM:
            counts[lane] += 1
            picked.append(key)
    return picked


def _take(keys: Collection[uuid.UUID], *, now: datetime, holder: str) -> None:
    if not keys:
        return
    with transaction.atomic():
        # The conditions again, in the UPDATE itself: another process may have been faster since. What others
        # lock at the moment is left out, where rows have locks: who waits for several may do so for ever.
        free = Execution.objects.due(now).filter(pk__in=keys).select_for_update(skip_locked=True)
        lease = {"lease_holder": holder, "lease_expires_at": now + LEASE}
        Execution.objects.filter(pk__in=free.values("pk")).update(**lease)


def _read(keys: Collection[uuid.UUID], *, holder: str) -> list[Execution]:
    # A claim is often many runs of few workflows, which are read once; steps need no schemas.
    workflows = Workflow.objects.select_related("source").defer(
        "input_schema", "output_schema", "description"
    )
    claimed = Execution.objects.filter(pk__in=keys, lease_holder=holder)
    return list(claimed.prefetch_related(Prefetch("workflow", workflows)))


def _full(counts: Mapping[Lane, int]) -> list[Lane]:
    return [lane for lane, count in counts.items() if count >= LANE_ROOM]


def _in_any(lanes: Iterable[Lane]) -> Q:
    polls = [lane.source_name for lane in lanes if lane.polls]
    starts = [lane.source_name for lane in lanes if not lane.polls]
    return Q(source_name__in=polls, state=State.RUNNING) | Q(
        source_name__in=starts, state__in=[State.PENDING, State.STARTING]
    )
