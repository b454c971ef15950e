"""Statistics: how often what was called, how it ended and how long it took, summed up by the hour.

Each end of an execution adds a row of its own in the transaction that records it, so that ends never wait
for one another. `executions.statistics` folds those rows into one for each combination of what they are
counted by; a reader adds up whatever rows there are, so it gets the same numbers before and after.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from django.db import connection, models

from catalogue.models import Workflow
from executions.models.states import State

if TYPE_CHECKING:
    from executions.callers import Caller
    from executions.models.record import ExecutionRecord


CACHED = "cached"


class Outcome(models.TextChoices):
    COMPLETED = State.COMPLETED.value, "completed"
    CACHED = "cached", "answered from the result cache"
    FAILED = State.FAILED.value, "failed"
    CANCELLED = State.CANCELLED.value, "cancelled"
    TIMED_OUT = State.TIMED_OUT.value, "timed out"


FAILURES = (Outcome.FAILED, Outcome.TIMED_OUT)
TIMED = (Outcome.COMPLETED, Outcome.FAILED, Outcome.TIMED_OUT)
"""Outcomes whose durations say how fast a tool is: neither a cached answer nor a cancelled run does."""


class Key(NamedTuple):
    """What ends are counted by; the fields have the names of the model's columns."""

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
    """What is added up for each key."""

    calls: int
    milliseconds: int
    input_characters: int
    output_characters: int
    last_at: datetime
    caller_name: str

    def add(self, other: Sums) -> None:
        self.calls += other.calls
        self.milliseconds += other.milliseconds
        self.input_characters += other.input_characters
        self.output_characters += other.output_characters
        self.last_at = max(self.last_at, other.last_at)


class UsageQuerySet(models.QuerySet["HourlyUsage"]):
    def visible_to(self, caller: Caller) -> UsageQuerySet:
        """What the caller started; everything for a caller that sees all."""
        return self.all() if caller.sees_everything else self.filter(caller=caller.key)


class HourlyUsage(models.Model):
    """Ends of executions within one hour that are alike in everything they are counted by."""

    hour = models.DateTimeField(help_text="When the hour in which they ended begins.")
    # Without a constraint: an execution has to end also where its workflow is being deleted.
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
    last_at = models.DateTimeField(help_text="When the last of them ended.")
    caller_name = models.CharField(max_length=255, blank=True)
    is_folded = models.BooleanField(
        default=False, help_text="It is the one row of its key. Otherwise it will be added to that one."
    )

    objects: ClassVar[models.Manager[HourlyUsage]] = UsageQuerySet.as_manager()

    class Meta:
        indexes = [
            models.Index(fields=["hour"], name="usage_hour"),
            models.Index(fields=["workflow", "hour"], name="usage_by_workflow"),
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
        null=True, help_text="Executions that ended before this may have been removed by the retention."
    )
    counted_from_rows_at = models.DateTimeField(
        null=True, help_text="When what had ended before there were statistics was counted."
    )

    class Meta:
        constraints = [models.CheckConstraint(condition=models.Q(id=1), name="one_statistics_state")]

    def __str__(self) -> str:
        return "Statistics"

    @classmethod
    def note_removal(cls, ended_before: datetime) -> None:
        """In the transaction that removes executions."""
        StatisticsState.objects.bulk_create([StatisticsState()], ignore_conflicts=True)
        earlier = models.Q(removed_until=None) | models.Q(removed_until__lt=ended_before)
        cls.objects.filter(earlier, pk=cls.ONLY).update(removed_until=ended_before)


def duration_class_of(milliseconds: int) -> int:
    """Class n ends at 2 ** (n / 4) ms: within a class, durations differ by less than a fifth."""
    return 0 if milliseconds <= 1 else math.ceil(4 * math.log2(milliseconds))


def end_of(execution: ExecutionRecord, changes: Mapping[str, Any]) -> tuple[Key, Sums]:
    """How an execution counts that has ended, once `changes` are made to it."""
    from executions.models.record import milliseconds_between

    def value(name: str) -> Any:
        return changes.get(name, getattr(execution, name))

    finished_at: datetime = value("finished_at")
    milliseconds = milliseconds_between(
        created_at=execution.created_at,
        started_at=value("started_at"),
        finished_at=finished_at,
        engine_started_at=value("engine_started_at"),
        engine_finished_at=value("engine_finished_at"),
    )
    key = Key(
        hour=finished_at.replace(minute=0, second=0, microsecond=0),
        workflow_id=execution.workflow_id,
        tool_name=execution.tool_name,
        source_name=execution.source_name,
        toolset=execution.toolset,
        caller=execution.caller,
        door=str(execution.door),
        outcome=CACHED if execution.cached_at else str(value("state")),
        duration_class=duration_class_of(milliseconds),
    )
    sums = Sums(
        calls=1,
        milliseconds=milliseconds,
        input_characters=execution.input_characters,
        output_characters=value("output_characters"),
        last_at=finished_at,
        caller_name=execution.caller_name,
    )
    return key, sums


def count_end(execution: ExecutionRecord, changes: Mapping[str, Any] | None = None) -> None:
    """Count an execution that has just ended, in the transaction that records its end: one INSERT."""
    insert_usage([end_of(execution, changes or {})], folded=False)


COLUMNS = (*Key._fields, *Sums.__slots__, "is_folded")
ADDED = ("calls", "milliseconds", "input_characters", "output_characters")


def insert_usage(rows: Iterable[tuple[Key, Sums]], *, folded: bool) -> None:
    """In one statement; what is folded is added to the row of its key where there is one.

    As SQL: Django cannot add on a conflict, and each call ends with this.
    """
    values = [_prepared(key, sums, folded) for key, sums in rows]
    quote = connection.ops.quote_name
    table = quote(HourlyUsage._meta.db_table)
    names = ", ".join(quote(name) for name in COLUMNS)
    places = f"({', '.join(['%s'] * len(COLUMNS))})"
    sql = f"INSERT INTO {table} ({names}) VALUES {', '.join([places] * len(values))}"  # noqa: S608 - only names
    if folded:
        greatest = "GREATEST" if connection.vendor == "postgresql" else "MAX"
        sums_up = [f"{quote(name)} = {table}.{quote(name)} + excluded.{quote(name)}" for name in ADDED]
        sums_up.append(f"last_at = {greatest}({table}.last_at, excluded.last_at)")
        sql += (
            f" ON CONFLICT ({', '.join(quote(name) for name in Key._fields)}) WHERE is_folded"
            f" DO UPDATE SET {', '.join(sums_up)}"
        )
    with connection.cursor() as cursor:
        cursor.execute(sql, [value for row in values for value in row])


def _prepared(key: Key, sums: Sums, folded: bool) -> Sequence[Any]:
    adapt = connection.ops.adapt_datetimefield_value
    row = [*key, *(getattr(sums, name) for name in Sums.__slots__), folded]
    return [adapt(value) if isinstance(value, datetime) else value for value in row]
