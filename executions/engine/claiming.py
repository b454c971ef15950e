"""Claiming what is due: each execution goes to one process, and no engine takes up the room of the others."""

import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import NamedTuple

from django.db import transaction
from django.db.models import Prefetch, Q
from django.utils import timezone

from catalogue.models import Workflow
from executions.engine.leases import LEASE
from executions.models import Execution, State

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
