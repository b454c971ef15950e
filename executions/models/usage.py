"""Statistics: calls, outcomes and durations, summed by the hour.

The transaction that ends an execution inserts a row of its own, so that ends never wait for one another.
`executions.statistics` folds these into one row for each key; readers add up all rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple

from django.db import connection, models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from access.callers import Caller
from catalogue.models import Workflow
from executions.models.execution import ExecutionRecord, State, milliseconds_between
from executions.models.statements import Statement, carry_out, insertion

CACHED = "cached"


class Outcome(models.TextChoices):
    COMPLETED = State.COMPLETED.value, _("completed")
    CACHED = "cached", _("answered from the result cache")
    FAILED = State.FAILED.value, _("failed")
    CANCELLED = State.CANCELLED.value, _("cancelled")
    TIMED_OUT = State.TIMED_OUT.value, _("timed out")


FAILURES = (Outcome.FAILED, Outcome.TIMED_OUT)
TIMED = (Outcome.COMPLETED, Outcome.FAILED, Outcome.TIMED_OUT)
"""Outcomes whose durations count: neither cached answers nor cancelled runs."""


def hour_of(moment: datetime) -> datetime:
    """Returns the time at which the hour begins."""
    return moment.replace(minute=0, second=0, microsecond=0)


def day_of(moment: datetime) -> datetime:
    return hour_of(moment).replace(hour=0)


def is_timed(outcome: str, duration_class: int) -> bool:
    return outcome in TIMED and duration_class != NEVER_RAN


class Key(NamedTuple):
    """Groups ends of executions; the fields are columns of the model."""

    hour: datetime
    workflow_id: int | None
    tool_name: str
    source_name: str
    toolset: str
    caller: str
    door: str
    outcome: str
    duration_class: int


@dataclass(slots=True)
class Sums:
    calls: int
    milliseconds: int
    input_characters: int
    output_characters: int
    last_at: datetime
    caller_name: str
    cards: int = 0

    def add(self, other: Sums) -> None:
        self.calls += other.calls
        self.milliseconds += other.milliseconds
        self.input_characters += other.input_characters
        self.output_characters += other.output_characters
        self.cards += other.cards
        self.last_at = max(self.last_at, other.last_at)


class UsageQuerySet(models.QuerySet["HourlyUsage"]):
    def visible_to(self, caller: Caller) -> UsageQuerySet:
        return self.all() if caller.sees_everything else self.filter(caller.own)


class HourlyUsage(models.Model):
    hour = models.DateTimeField(help_text="When the hour in which they ended begins.")
    # No constraint: an execution may end while its workflow is being deleted.
    workflow = models.ForeignKey(
        Workflow,
        null=True,
        on_delete=models.SET_NULL,
        related_name="usage",
        db_index=False,
        db_constraint=False,
    )
    tool_name = models.CharField(max_length=64)
    source_name = models.CharField(max_length=64)
    toolset = models.CharField(max_length=64, blank=True)
    caller = models.CharField(max_length=100)
    door = models.CharField(max_length=10)
    outcome = models.CharField(max_length=12, choices=Outcome.choices)
    duration_class = models.PositiveSmallIntegerField(help_text="See `duration_class_of`.")
    calls = models.PositiveIntegerField()
    milliseconds = models.PositiveBigIntegerField()
    input_characters = models.PositiveBigIntegerField()
    output_characters = models.PositiveBigIntegerField()
    cards = models.PositiveIntegerField(
        default=0, db_default=0, help_text="How many of them a card showed in a chat."
    )
    last_at = models.DateTimeField(help_text="When the last of them ended.")
    caller_name = models.CharField(max_length=255, blank=True)
    is_folded = models.BooleanField(
        default=False, help_text="It is the one row of its key. Otherwise it will be added to that one."
    )
    objects: ClassVar[models.Manager[HourlyUsage]] = UsageQuerySet.as_manager()

    class Meta:
        indexes = [
            models.Index(fields=["hour"], name="usage_hour"),
            # Contains what lists of workflows sort by, so that the rows need not be read.
            models.Index(
                fields=["workflow", "hour", "outcome", "calls", "last_at"], name="usage_of_workflows"
            ),
            models.Index(fields=["id"], name="usage_to_fold", condition=models.Q(is_folded=False)),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=[name.removesuffix("_id") for name in Key._fields],
                condition=models.Q(is_folded=True),
                name="one_folded_usage",
            )
        ]

    def __str__(self) -> str:
        return f"{self.tool_name} {self.outcome} {self.hour:%Y-%m-%d %H}h: {self.calls}"

    @property
    def key(self) -> Key:
        return Key(*(getattr(self, name) for name in Key._fields))

    @property
    def sums(self) -> Sums:
        return Sums(**{name: getattr(self, name) for name in Sums.__slots__})


class StatisticsState(models.Model):
    """One row: which hours can be counted again."""

    ONLY = 1
    id = models.PositiveSmallIntegerField(primary_key=True, default=ONLY, editable=False)
    removed_until = models.DateTimeField(
        null=True,
        help_text="Executions that ended before this may have been removed by the retention policy.",
    )
    counted_from_rows_at = models.DateTimeField(
        null=True, help_text="When executions that ended before statistics existed were counted."
    )
    past_changes = models.PositiveBigIntegerField(
        default=0,
        help_text="How often sums of past days were changed. They are remembered until the next change.",
    )

    class Meta:
        constraints = [models.CheckConstraint(condition=models.Q(id=1), name="one_statistics_state")]

    def __str__(self) -> str:
        return "Statistics"

    @classmethod
    def note_removal(cls, ended_before: datetime) -> None:
        """Runs in the transaction that removes executions."""
        StatisticsState.objects.bulk_create([StatisticsState()], ignore_conflicts=True)
        earlier = models.Q(removed_until=None) | models.Q(removed_until__lt=ended_before)
        cls.objects.filter(earlier, pk=cls.ONLY).update(removed_until=ended_before)

    @classmethod
    def note_change(cls, hour: datetime) -> None:
        """Runs in the transaction that changes sums of this hour, or of it and later ones."""
        if hour < day_of(timezone.now()):
            StatisticsState.objects.bulk_create([StatisticsState()], ignore_conflicts=True)
            cls.objects.filter(pk=cls.ONLY).update(past_changes=models.F("past_changes") + 1)


NEVER_RAN = 32_767
"""The class of calls that ended while they waited: they count, but not for durations."""


def duration_class_of(milliseconds: int | None) -> int:
    """Class n ends at 2 ** (n / 4) ms; durations in a class differ by less than a fifth."""
    if milliseconds is None:
        return NEVER_RAN
    return 0 if milliseconds <= 1 else math.ceil(4 * math.log2(milliseconds))


def end_of(execution: ExecutionRecord, changes: Mapping[str, Any]) -> tuple[Key, Sums]:
    finished_at: datetime = changes.get("finished_at", execution.finished_at)
    milliseconds = milliseconds_between(
        admitted_at=changes.get("admitted_at", execution.admitted_at),
        started_at=changes.get("started_at", execution.started_at),
        finished_at=finished_at,
        engine_started_at=changes.get("engine_started_at", execution.engine_started_at),
        engine_finished_at=changes.get("engine_finished_at", execution.engine_finished_at),
    )
    key = Key(
        hour=hour_of(finished_at),
        workflow_id=execution.workflow_id,
        tool_name=execution.tool_name,
        source_name=execution.source_name,
        toolset=execution.toolset,
        caller=execution.caller,
        door=str(execution.door),
        outcome=CACHED if execution.cached_at else str(changes.get("state", execution.state)),
        duration_class=duration_class_of(milliseconds),
    )
    sums = Sums(
        calls=1,
        milliseconds=milliseconds or 0,
        input_characters=execution.input_characters,
        output_characters=changes.get("output_characters", execution.output_characters),
        cards=int(bool(execution.had_card)),
        last_at=finished_at,
        caller_name=execution.caller_name,
    )
    return key, sums


COLUMNS = (*Key._fields, *Sums.__slots__, "is_folded")
ADDED = ("calls", "milliseconds", "input_characters", "output_characters", "cards")
values_of = attrgetter(*Sums.__slots__)


def usage_insertion(
    rows: Iterable[tuple[Key, Sums]], *, folded: bool = False, only_if_changed: bool = False
) -> Statement:
    """Returns the INSERT; not folded, for the transaction that ends the executions."""
    values = [(*key, *values_of(sums), folded) for key, sums in rows]
    return insertion(HourlyUsage, COLUMNS, values, only_if_changed=only_if_changed)


def add_usage(rows: Iterable[tuple[Key, Sums]]) -> None:
    """Add each to the existing row of its key, which Django cannot do."""
    table = HourlyUsage._meta.db_table
    greatest = "GREATEST" if connection.vendor == "postgresql" else "MAX"
    sums_up = [f"{name} = {table}.{name} + excluded.{name}" for name in ADDED]
    sums_up.append(f"last_at = {greatest}({table}.last_at, excluded.last_at)")
    sql, values = usage_insertion(rows, folded=True)
    sql += f" ON CONFLICT ({', '.join(Key._fields)}) WHERE is_folded DO UPDATE SET {', '.join(sums_up)}"
    carry_out((sql, values))
