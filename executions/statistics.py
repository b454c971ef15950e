"""Calls, durations and failures, read from the hourly sums and never from the executions.

`models.usage` counts ends in the transaction that records them. Under concurrency:
- Two processes end an execution: the transition is a compare-and-set, and only the winner counts.
- Readers during folding: rows and the sums that replace them change in one transaction.
- Two processes fold: each takes unlocked rows and adds them in the order of their keys.
- The retention removes executions: their sums stay; hours before `removed_until` are not recounted.
- A recount and ends or folding: an hour is replaced under a table lock. SQLite has one writer anyway.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from threading import Lock
from typing import Any, TypeVar

from cachetools import LRUCache
from django.db import connection, transaction
from django.db.models import Exists, Max, Min, OuterRef, Q, QuerySet, Sum, TextField
from django.db.models.functions import Cast, Substr
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.translation import gettext
from loguru import logger

from catalogue.database import in_batches
from catalogue.descriptions import tokens_for
from catalogue.long_lists import Unindexed
from catalogue.models import Workflow
from executions.models import FINAL, Execution, HourlyUsage, StatisticsState, usage

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
FOLDED_AT_ONCE = 500
PRUNED_AT_ONCE = 500
Read = TypeVar("Read")


class Period(StrEnum):
    """The periods of the pages. Each ends now and begins with a whole hour or day."""

    DAY = "24h"
    WEEK = "7d"
    MONTH = "30d"

    @property
    def words(self) -> str:
        return {"24h": gettext("24 hours"), "7d": gettext("7 days"), "30d": gettext("30 days")}[self.value]

    @property
    def bucket(self) -> timedelta:
        return HOUR if self is Period.DAY else DAY

    def start(self, now: datetime | None = None) -> datetime:
        hour = usage.hour_of(now or timezone.now())
        if self is Period.DAY:
            return hour - 23 * HOUR
        return usage.day_of(hour) - (6 if self is Period.WEEK else 29) * DAY

    def buckets(self) -> list[datetime]:
        """When each hour or day of the period begins."""
        start = self.start()
        count = (timezone.now() - start) // self.bucket + 1
        return [start + number * self.bucket for number in range(count)]

    def label(self, bucket: datetime) -> str:
        """Hours are in the reader's zone; of days, the statistics know those in UTC."""
        if self.bucket == HOUR:
            return date_format(timezone.localtime(bucket), "H:i")
        return date_format(bucket, "j M")


@dataclass(slots=True)
class Figures:
    calls: int = 0
    by_outcome: dict[str, int] = field(default_factory=dict)
    input_characters: int = 0
    output_characters: int = 0
    cards: int = 0
    last_at: datetime | None = None
    milliseconds: int = 0  # Total duration of the timed calls
    timed: int = 0  # Calls that ran to an end
    # For each duration class, the number of timed calls and their milliseconds.
    by_duration: dict[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def failures(self) -> int:
        return sum(self.by_outcome.get(outcome, 0) for outcome in usage.FAILURES)

    @property
    def cancelled(self) -> int:
        return self.by_outcome.get(usage.Outcome.CANCELLED, 0)

    @property
    def cached(self) -> int:
        return self.by_outcome.get(usage.CACHED, 0)

    @property
    def input_tokens(self) -> int:
        return tokens_for(self.input_characters)

    @property
    def output_tokens(self) -> int:
        return tokens_for(self.output_characters)

    @property
    def mean_ms(self) -> int | None:
        return round(self.milliseconds / self.timed) if self.timed else None

    @property
    def p50_ms(self) -> int | None:
        return self.percentile(50)

    @property
    def p95_ms(self) -> int | None:
        return self.percentile(95)

    def percentile(self, percent: float) -> int | None:
        """The mean of its class, within a fifth of the true duration; None without timed calls."""
        wanted, seen = self.timed * percent / 100, 0
        for _, (count, milliseconds) in sorted(self.by_duration.items()):
            seen += count
            if seen >= wanted:
                return round(milliseconds / count)
        return None

    def add(self, outcome: str, duration_class: int, row: dict[str, Any]) -> None:
        self.calls += row["calls"]
        self.input_characters += row["input_characters"]
        self.output_characters += row["output_characters"]
        self.cards += row["cards"]
        self.by_outcome[outcome] = self.by_outcome.get(outcome, 0) + row["calls"]
        if usage.is_timed(outcome, duration_class):
            self.timed += row["calls"]
            self.milliseconds += row["milliseconds"]
            self._add_durations(duration_class, row["calls"], row["milliseconds"])

    def include(self, other: Figures) -> None:
        self.calls += other.calls
        self.timed += other.timed
        self.milliseconds += other.milliseconds
        self.input_characters += other.input_characters
        self.output_characters += other.output_characters
        self.cards += other.cards
        for outcome, count in other.by_outcome.items():
            self.by_outcome[outcome] = self.by_outcome.get(outcome, 0) + count
        for number, (count, milliseconds) in other.by_duration.items():
            self._add_durations(number, count, milliseconds)
        self.last_at = max(filter(None, (self.last_at, other.last_at)), default=None)

    def _add_durations(self, duration_class: int, count: int, milliseconds: int) -> None:
        known = self.by_duration.get(duration_class, (0, 0))
        self.by_duration[duration_class] = (known[0] + count, known[1] + milliseconds)


def usage_since(start: datetime) -> usage.UsageQuerySet:
    return HourlyUsage.objects.filter(hour__gte=start)


def figures_by(rows: QuerySet[HourlyUsage], *by: str) -> dict[tuple[Any, ...], Figures]:
    figures: defaultdict[tuple[Any, ...], Figures] = defaultdict(Figures)
    lasts: defaultdict[tuple[Any, ...], str] = defaultdict(str)
    # As text in UTC: parsing a time takes longer than everything else about a row.
    sums = {name: Sum(name) for name in usage.ADDED} | {"last": Cast(Max("last_at"), TextField())}
    for row in rows.order_by().values(*by, "outcome", "duration_class").annotate(**sums):
        key = tuple(row[name] for name in by)
        figures[key].add(row["outcome"], row["duration_class"], row)
        lasts[key] = max(lasts[key], row["last"])
    for key, last in lasts.items():
        figures[key].last_at = datetime.fromisoformat(last).replace(tzinfo=UTC)
    return dict(figures)


def figures_over_time(
    rows: QuerySet[HourlyUsage], *by: str, bucket: timedelta = HOUR
) -> dict[tuple[Any, ...], Figures]:
    """Like `figures_by`, with the start of the hour or UTC day as the first key."""
    if bucket == HOUR:
        return figures_by(rows, "hour", *by)
    # Not TruncDay, a Python function for each row on SQLite. Both databases answer in UTC.
    daily = figures_by(rows.annotate(day=Substr(Cast("hour", TextField()), 1, 10)), "day", *by)
    return {
        (datetime.fromisoformat(f"{day}T00:00:00+00:00"), *rest): figures
        for (day, *rest), figures in daily.items()
    }


REMEMBERED_FIGURES = 50_000  # Of all readings together; about a kilobyte each
# By query and reading: the state of the rows, and the result.
_past: LRUCache[Hashable, tuple[Hashable, Any]] = LRUCache(
    REMEMBERED_FIGURES, getsizeof=lambda remembered: len(remembered[1]) + 1
)
_past_lock = Lock()


def forget_past_days() -> None:
    """Resets it for tests, whose databases reuse keys."""
    with _past_lock:
        _past.clear()


def _read_by_days(
    rows: QuerySet[HourlyUsage],
    start: datetime,
    name: str,
    read: Callable[[QuerySet[HourlyUsage]], Read],
    *,
    read_today: Callable[[QuerySet[HourlyUsage]], Read] | None = None,
    hour: str = "hour",
) -> tuple[Read | None, Read]:
    """The results of `read` for the rows between `start` and today, if that is a day or more, and for those
    of today.

    `read_today`: replaces `read` for today. `hour`: the expression that limits the past. The past is cached
    until `StatisticsState` or its unfolded rows show a change: checking takes no longer with more rows.
    """
    today = usage.day_of(timezone.now())
    read_today = read_today or read
    if today - start < DAY:
        return None, read_today(rows.filter(hour__gte=start))
    past = rows.filter(**{f"{hour}__gte": start, f"{hour}__lt": today})
    changes = StatisticsState.objects.values_list("past_changes", flat=True).first()
    # Not also by the hour: SQLite would then not use the index of these few rows.
    single = HourlyUsage.objects.filter(is_folded=False).order_by("pk").values_list("pk", "hour")
    late = tuple(key for key, hour in single if hour < today)
    key, state = (name, *past.query.sql_with_params()), (changes, late)
    with _past_lock:
        known = _past.get(key)
    if known is None or known[0] != state:
        known = (state, read(past))
        with _past_lock, suppress(ValueError):  # too large to keep
            _past[key] = known
    return known[1], read_today(rows.filter(hour__gte=today))


def figures_since(
    rows: QuerySet[HourlyUsage], start: datetime, *by: str, bucket: timedelta | None = None
) -> dict[tuple[Any, ...], Figures]:
    """Like `figures_by`, or with a bucket like `figures_over_time`, of the rows from `start` on."""

    def read(rows: QuerySet[HourlyUsage]) -> dict[tuple[Any, ...], Figures]:
        return figures_by(rows, *by) if bucket is None else figures_over_time(rows, *by, bucket=bucket)

    past, present = _read_by_days(rows, start, f"{by} {bucket}", read)
    if past is None:
        return present
    joined = past | present
    for key in past.keys() & present.keys():
        joined[key] = Figures()
        joined[key].include(past[key])
        joined[key].include(present[key])
    return joined


def figures_in(period: Period, *by: str, bucket: timedelta | None = None) -> dict[tuple[Any, ...], Figures]:
    return figures_since(HourlyUsage.objects.all(), period.start(), *by, bucket=bucket)


class Subject(StrEnum):
    TOOL = "tool"
    TOOLSET = "toolset"
    CALLER = "caller"
    SOURCE = "source"
    DOOR = "door"


COLUMN_OF = {
    Subject.TOOL: "tool_name",
    Subject.TOOLSET: "toolset",
    Subject.CALLER: "caller",
    Subject.SOURCE: "source_name",
    Subject.DOOR: "door",
}


@dataclass(frozen=True, slots=True)
class Use:
    name: str  # For people: a tool's present name; empty for the address of all tools
    key: str  # As executions store it
    figures: Figures
    workflow_id: int | None = None  # Of a tool whose workflow exists


def usage_by(subject: Subject, period: Period) -> list[Use]:
    """Unsorted; at most six queries."""
    if subject is Subject.TOOL:
        return _usage_by_tool(period)
    column = COLUMN_OF[subject]
    figures = figures_in(period, column)
    names = _names_of_callers(period) if subject is Subject.CALLER else {}
    return [Use(names.get(key) or key, key, found) for (key,), found in figures.items()]


def _names_of_callers(period: Period) -> dict[str, str]:
    def read(rows: QuerySet[HourlyUsage]) -> dict[str, str]:
        return dict(rows.order_by().values_list("caller").annotate(Max("caller_name")))

    past, present = _read_by_days(HourlyUsage.objects.all(), period.start(), "names of callers", read)
    return (past or {}) | {caller: name for caller, name in present.items() if name}


def _usage_by_tool(period: Period) -> list[Use]:
    """A renamed workflow counts as one; deleted ones go by the tool's name."""
    found = figures_in(period, "workflow", "tool_name")
    known = Workflow.objects.filter(pk__in={workflow for workflow, _ in found if workflow is not None})
    names = dict(known.order_by().values_list("pk", "tool_name"))
    merged: dict[tuple[int | None, str], Figures] = {}
    for (workflow, tool_name), figures in found.items():
        key = (workflow, names[workflow]) if workflow in names else (None, tool_name)
        merged.setdefault(key, Figures()).include(figures)
    return [Use(name, name, figures, workflow) for (workflow, name), figures in merged.items()]


def calls_of(keys: Iterable[int], period: Period) -> dict[int, Figures]:
    """Calls, failures and the last call of these workflows, if any: read from an index alone."""

    def read(rows: QuerySet[HourlyUsage]) -> dict[int | None, tuple[int, int, datetime]]:
        failed = Sum("calls", filter=Q(outcome__in=usage.FAILURES), default=0)
        sums = rows.order_by().values_list("workflow")
        found = sums.annotate(number=Sum("calls"), failed=failed, last=Max("last_at"))
        return {workflow: (number, failures, last) for workflow, number, failures, last in found}

    wanted = set(keys)
    past, present = _read_by_days(
        HourlyUsage.objects.alias(most=Unindexed("hour")),
        period.start(),
        "calls of workflows",
        read,
        read_today=lambda rows: read(rows.filter(workflow__in=wanted)),
        hour="most",
    )
    found: dict[int, Figures] = {}
    for part in (past or {}, present):
        for workflow, (calls, failed, last) in part.items():
            if workflow in wanted:
                figures = Figures(calls=calls, by_outcome={usage.Outcome.FAILED: failed}, last_at=last)
                found.setdefault(workflow, Figures()).include(figures)
    return found


def last_calls_of(keys: Iterable[int]) -> dict[int, datetime]:
    """Workflows that were never called are missing."""
    rows = HourlyUsage.objects.filter(workflow__in=list(keys)).order_by()
    return dict(rows.values_list("workflow").annotate(Max("last_at")))


def called_since(start: datetime | None = None) -> Exists:
    """A condition for workflows: a call has ended since then (or ever), or is running."""
    ended = HourlyUsage.objects.filter(workflow=OuterRef("pk"))
    active = Execution.objects.admitted().filter(workflow=OuterRef("pk"))
    return Exists(ended if start is None else ended.filter(hour__gte=start)) | Exists(active)  # type: ignore[return-value]


def fold() -> int:
    folded = 0
    while batch := _fold_batch():
        folded += batch
        if batch < FOLDED_AT_ONCE:
            break
    return folded


@transaction.atomic
def _fold_batch() -> int:
    single = HourlyUsage.objects.filter(is_folded=False).order_by("pk").select_for_update(skip_locked=True)
    taken = list(single[:FOLDED_AT_ONCE])
    if taken:
        usage.add_usage(_in_order(_sum_up((row.key, row.sums) for row in taken)))
        HourlyUsage.objects.filter(pk__in=[row.pk for row in taken]).delete()
        StatisticsState.note_change(min(row.hour for row in taken))
    return len(taken)


def _sum_up(ends: Iterable[tuple[usage.Key, usage.Sums]]) -> dict[usage.Key, usage.Sums]:
    total: dict[usage.Key, usage.Sums] = {}
    for key, sums in ends:
        if key in total:
            total[key].add(sums)
        else:
            total[key] = sums
    return total


def _in_order(sums: dict[usage.Key, usage.Sums]) -> list[tuple[usage.Key, usage.Sums]]:
    """The same in every process, which rules out deadlocks."""
    return sorted(sums.items(), key=lambda row: tuple(str(part) for part in row[0]))


def prune_statistics(before: datetime) -> int:
    """Remove a batch of older rows. Returns how many."""
    old = HourlyUsage.objects.filter(hour__lt=before - HOUR).order_by("hour")
    with transaction.atomic():
        keys = list(old.select_for_update(skip_locked=True).values_list("pk", flat=True)[:PRUNED_AT_ONCE])
        if keys:
            HourlyUsage.objects.filter(pk__in=keys).delete()
            StatisticsState.note_change(before - DAY)
    return len(keys)


@dataclass(frozen=True, slots=True)
class Recount:
    hours: int  # Hours counted
    differed: int  # Hours that differed and were corrected
    since: datetime | None  # The first hour with all its executions; None without any


def recount() -> Recount:
    state, _ = StatisticsState.objects.get_or_create(pk=StatisticsState.ONLY)
    hours = list(_countable_hours(state.removed_until))
    differed = sum(_recount_hour(hour) for hour in hours)
    StatisticsState.objects.update(counted_from_rows_at=timezone.now())
    logger.log("INFO" if hours else "DEBUG", "Recounted {} hours; {} differed", len(hours), differed)
    return Recount(hours=len(hours), differed=differed, since=min(hours, default=None))


def _countable_hours(removed_until: datetime | None) -> Iterator[datetime]:
    """Hours with ends, or with sums, from which no execution was removed."""
    ends = Execution.objects.filter(finished_at__isnull=False).order_by()
    first_end = ends.aggregate(first=Min("finished_at"))["first"]
    first_sum = HourlyUsage.objects.aggregate(first=Min("hour"))["first"]
    first, now = min(filter(None, (first_end, first_sum)), default=None), timezone.now()
    if first is None:
        return
    hour = usage.hour_of(first)
    if removed_until is not None:
        while hour < removed_until:
            hour += HOUR
    counted = set(HourlyUsage.objects.order_by().values_list("hour", flat=True).distinct())
    while hour <= now:
        if hour in counted or ends.filter(finished_at__gte=hour, finished_at__lt=hour + HOUR).exists():
            yield hour
        hour += HOUR


def _recount_hour(hour: datetime) -> bool:
    counted = _sum_up((row.key, row.sums) for row in HourlyUsage.objects.filter(hour=hour))
    if _same(counted, _ended_in(hour)):
        return False
    with transaction.atomic():
        if connection.vendor == "postgresql":
            # Until the transaction ends; transactions that are writing finish first.
            with connection.cursor() as cursor:
                table = connection.ops.quote_name(HourlyUsage._meta.db_table)
                cursor.execute(f"LOCK TABLE {table} IN EXCLUSIVE MODE")
        ended = _ended_in(hour)
        # After reading them: it shows a removal before that.
        removed_until = StatisticsState.objects.values_list("removed_until", flat=True).first()
        if removed_until is not None and hour < removed_until:
            return False
        HourlyUsage.objects.filter(hour=hour).delete()
        StatisticsState.note_change(hour)
        for rows in in_batches(_in_order(ended), FOLDED_AT_ONCE):
            usage.add_usage(rows)
    return True


def _ended_in(hour: datetime) -> dict[usage.Key, usage.Sums]:
    # Without the state, by which SQLite would read the whole history.
    finished = Execution.objects.filter(finished_at__gte=hour, finished_at__lt=hour + HOUR).order_by()
    rows = finished.defer("error", "poll_failure").iterator()
    ended = (execution for execution in rows if execution.state in FINAL and execution.is_counted)
    return _sum_up(usage.end_of(execution, {}) for execution in ended)


def _same(counted: dict[usage.Key, usage.Sums], ended: dict[usage.Key, usage.Sums]) -> bool:
    return {key: _numbers(sums) for key, sums in counted.items()} == {
        key: _numbers(sums) for key, sums in ended.items()
    }


def _numbers(sums: usage.Sums) -> Sequence[int]:
    return [getattr(sums, name) for name in usage.ADDED]
