"""How many executions may run at a time, and how many do.

What counts is admitted and active: PENDING with its place, STARTING, RUNNING. It takes up room in four ways:
in the product, with its caller, at its source, in its workflow. Each may have a limit.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.conf import settings
from django.db.models import Count

from catalogue.models import Workflow
from executions.models import Execution, State


class Room(NamedTuple):
    """Something that may be full: the product, or all that has this key in this field."""

    field: str = ""
    key: str | int | None = None


PRODUCT = Room()
CALLER, SOURCE, WORKFLOW = "caller", "workflow__source", "workflow"


Limits = Mapping[Room, int]
"""The most executions at a time; a room that is not named has no limit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """What one execution takes up room in."""

    caller: str
    workflow: int | None
    """None once the workflow is deleted; its run may go on."""
    source: int | None
    workflow_limit: int | None = None
    source_limit: int | None = None

    @classmethod
    def of(cls, workflow: Workflow | None, caller: str) -> Place:
        if workflow is None:
            return cls(caller=caller, workflow=None, source=None)
        return cls(
            caller=caller,
            workflow=workflow.pk,
            source=workflow.source_id,
            workflow_limit=workflow.max_concurrent,
            source_limit=workflow.source.max_concurrent,
        )

    @property
    def callers_room(self) -> Room:
        return Room(CALLER, self.caller)

    @property
    def rooms(self) -> list[Room]:
        known = [PRODUCT, self.callers_room]
        if self.workflow is not None:
            known += [Room(SOURCE, self.source), Room(WORKFLOW, self.workflow)]
        return known

    @property
    def limits(self) -> Limits:
        most = {
            PRODUCT: settings.CATALOGUE["max_concurrent_executions"],
            self.callers_room: settings.CATALOGUE["max_concurrent_per_caller"],
            Room(SOURCE, self.source): self.source_limit,
            Room(WORKFLOW, self.workflow): self.workflow_limit,
        }
        return {room: limit for room, limit in most.items() if limit}


class Occupancy:
    """How many executions there are in each room."""

    def __init__(self) -> None:
        self._numbers: Counter[Room] = Counter()

    def take(self, place: Place, number: int = 1) -> None:
        for room in place.rooms:
            self._numbers[room] += number

    def number_in(self, room: Room) -> int:
        return self._numbers[room]

    def full(self, limits: Limits) -> Iterable[Room]:
        return (room for room, most in limits.items() if self._numbers[room] >= most)


def read_occupancy() -> Occupancy:
    """One look at all that is active: for decisions about many, not for one call.

    Sources without a limit are not counted.
    """
    occupancy = Occupancy()
    limited = Workflow.objects.exclude(source__max_concurrent=None).order_by()
    source_of = dict(limited.values_list("pk", "source"))
    # The admitted ones, in words with which SQLite reads nothing but the index of just these.
    admitted = Execution.objects.filter(admitted_at__isnull=False, finished_at=None)
    groups = admitted.exclude(state=State.UNCONFIRMED).order_by().values_list("workflow", "caller")
    for workflow, caller, number in groups.annotate(number=Count("*")):
        occupancy.take(Place(caller=caller, workflow=workflow, source=source_of.get(workflow)), number)
    return occupancy


def has_room(limits: Limits) -> bool:
    """By the database's present state; looks at no more rows than the limits are high."""
    return all(_number_in(room, at_most=most) < most for room, most in limits.items())


def _number_in(room: Room, *, at_most: int) -> int:
    there: dict[str, Any] = {room.field: room.key} if room.field else {}
    return Execution.objects.admitted().filter(**there).order_by()[:at_most].count()


STALE_SECONDS = 1.0
"""How long a process relies on what it saw of the queue: no longer than the tick that looks anyway."""


class _Expectation:
    """Which full rooms somebody waits for, as far as this process knows.

    An end far from any limit must cost nothing, so only one that leaves such a room has the queue looked at.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._rooms: frozenset[Room] = frozenset()
        self._unsure = False
        self._learned_at = 0.0

    def add(self, rooms: Iterable[Room]) -> None:
        self._rooms |= frozenset(rooms)

    def learn(self, rooms: Iterable[Room], *, unsure: bool = False) -> None:
        """What a look at the whole queue showed."""
        self._rooms, self._unsure, self._learned_at = frozenset(rooms), unsure, time.monotonic()

    def suspect(self) -> None:
        """Somebody waits, perhaps for what another process filled."""
        if time.monotonic() - self._learned_at > STALE_SECONDS:
            self._unsure = True

    @property
    def is_empty(self) -> bool:
        return not self._rooms and not self._unsure

    def concerns(self, rooms: Iterable[Room]) -> bool:
        return self._unsure or not self._rooms.isdisjoint(rooms)


expected = _Expectation()


def is_waited_for(execution: Execution) -> bool:
    """Whether somebody may be waiting for the place of an execution that has ended."""
    return not expected.is_empty and expected.concerns(Place.of(execution.workflow, execution.caller).rooms)
