"""Groups the failures of a period by their cause.

A cause is what remains of an error's message without ids, numbers, times, addresses and quoted values.
"""

import hashlib
import re
import uuid
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

from django.db.models import Case, F, Q, QuerySet, TextField, Value, When
from django.db.models.functions import Cast, Coalesce, Concat, Left, Length, Right

from catalogue.long_lists import MAX_FOUND, Unindexed, newest_of
from executions.models import Execution, State
from executions.statistics import Period

WINDOW = 2_000  # The newest failures, which are grouped in 40 ms
STATES = (State.FAILED, State.TIMED_OUT, State.UNCONFIRMED)
LONGEST_RUN = timedelta(days=7)  # An index finds runs by their beginning; longer ones may be missing
BEGINNING, END, LINE = 300, 1_000, 300  # Characters that are read of an error, and shown of its cause
VARIES = re.compile(
    r"""
      (?:(?<=HTTP\ ) | (?<=status\ ) | (?<=code\ ) | (?<=answered\ )) [0-9]{1,3}\b  (?P<status>)
    | \b[45][0-9]{2}\b (?=\ [A-Z])  (?P<named_status>)
    | "[^"]*" | “[^”]*” | `[^`]*` | (?<!\w)'[^']*'(?!\w)
    | \b[a-zA-Z]\w*://\S+
    | \b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b
    | (?<!\S)\S+@\S+
    | [-+\#]?\b\w*[0-9](?:[\w.:/+-]*\w)?
    """,
    re.VERBOSE,
)
SEVERAL = re.compile(r"…(?:[\s,;]*…)+")


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureFilter:
    """Empty texts match all."""

    period: Period = Period.DAY
    tool: str = ""
    source: str = ""
    caller: str = ""


Named = tuple[str, str]  # What a filter compares, and its name


@dataclass(kw_only=True, slots=True)
class Cause:
    key: str
    state: State
    error_kind: str
    words: str
    """The line of the newest of them, in its own words; empty if no error is recorded."""
    example: uuid.UUID
    runs: int = 0
    keys: list[uuid.UUID] = field(default_factory=list)
    """Of the newest MAX_FOUND executions."""
    first_at: datetime
    last_at: datetime
    tools: Counter[Named] = field(default_factory=Counter)
    sources: Counter[Named] = field(default_factory=Counter)
    callers: Counter[Named] = field(default_factory=Counter)
    buckets: Counter[int] = field(default_factory=Counter)
    """By the number of the hour or day in the period."""

    def add(self, failure: "_Failure", at: datetime, bucket: int) -> None:
        self.runs += 1
        if self.runs <= MAX_FOUND:
            self.keys.append(uuid.UUID(failure.key))
        self.first_at = min(self.first_at, at)
        self.last_at = max(self.last_at, at)
        self.tools[failure.tool, failure.tool] += 1
        self.sources[failure.source, failure.source] += 1
        self.callers[failure.caller, failure.caller_name or failure.caller] += 1
        self.buckets[bucket] += 1


@dataclass(kw_only=True, slots=True)
class Failures:
    causes: list[Cause]
    """The most frequent first."""
    runs: int
    is_bounded: bool
    """Whether older failures of the period were left out."""

    def count(self, column: str) -> Counter[Named]:
        """The executions by "tools", "sources" or "callers"."""
        counted: Counter[Named] = Counter()
        for cause in self.causes:
            counted.update(getattr(cause, column))
        return counted

    def find(self, key: str) -> Cause | None:
        return next((cause for cause in self.causes if cause.key == key), None)


class _Failure(NamedTuple):
    key: str
    at: str
    state: str
    error_kind: str
    tool: str
    source: str
    caller: str
    caller_name: str
    error: str


def find_failures(wanted: FailureFilter) -> Failures:
    """Takes two queries; reads the newest WINDOW failures."""
    start = wanted.period.start()
    causes: dict[tuple[str, str, str], Cause] = {}
    read = _read(wanted, start)
    for failure in read[:WINDOW]:
        line, normalised = find_cause(failure.error)
        at = datetime.fromisoformat(failure.at).replace(tzinfo=UTC)
        kind = failure.state, failure.error_kind, normalised
        if (cause := causes.get(kind)) is None:
            cause = causes[kind] = Cause(
                key=_digest(*kind),
                state=State(failure.state),
                error_kind=failure.error_kind,
                words=line,
                example=uuid.UUID(failure.key),
                first_at=at,
                last_at=at,
            )
        cause.add(failure, at, (at - start) // wanted.period.bucket)
    return Failures(
        causes=sorted(causes.values(), key=lambda cause: (-cause.runs, cause.key)),
        runs=min(len(read), WINDOW),
        is_bounded=len(read) > WINDOW,
    )


def _read(wanted: FailureFilter, start: datetime) -> list[_Failure]:
    """The newest first, one more than WINDOW if there are more."""
    rows: Any = Execution.objects.filter(state__in=STATES, created_at__gte=start - LONGEST_RUN)
    rows = rows.alias(failed_at=Coalesce("finished_at", "created_at")).filter(failed_at__gte=start)
    for column, value in (
        ("tool_name", wanted.tool),
        ("source_name", wanted.source),
        ("caller", wanted.caller),
    ):
        if value:
            # Most executions of a tool did not fail: its own index would find these first.
            rows = rows.alias(**{f"of_{column}": Unindexed(column)}).filter(**{f"of_{column}": value})
    newest = newest_of(rows, "created_at", WINDOW + 1).order_by("-created_at")
    # As texts: to read thousands of times and keys takes longer than all else.
    texts = Cast("pk", TextField()), Cast(Coalesce("finished_at", "created_at"), TextField())
    columns = ("state", "error_kind", "tool_name", "source_name", "caller", "caller_name", "cut_error")
    return [_Failure(*row) for row in _cut(newest).values_list(*texts, *columns)[: WINDOW + 1]]


def _cut(rows: QuerySet[Execution]) -> QuerySet[Execution]:
    """Of a long error, the database sends only its beginning and its end."""
    is_short = Q(characters__lte=BEGINNING + END)
    beginning_and_end = Concat(
        Left("error", BEGINNING), Value("\n"), Right("error", END), output_field=TextField()
    )
    return rows.alias(characters=Length("error")).annotate(
        cut_error=Case(When(is_short, then=F("error")), default=beginning_and_end)
    )


def find_line(error: str) -> str:
    """The line that tells the cause: of a traceback its exception, else the first line."""
    if len(error) > BEGINNING + END:
        error = f"{error[:BEGINNING]}\n{error[-END:]}"
    line = " ".join((_line_of(error.splitlines()) if "\n" in error else error).split())
    return line if len(line) <= LINE else f"{line[: LINE - 1]}…"


def _line_of(lines: list[str]) -> str:
    frames = [number for number, line in enumerate(lines) if line.lstrip(" |").startswith('File "')]
    filled = [one for line in lines if (one := line.strip(" |+-\t"))] or [""]
    if frames:
        # An exception's message may have several lines, of which the first is the least particular.
        after = lines[frames[-1] + 1 :]
        return next((line for line in after if line[:1].strip()), filled[-1])
    if roots := [line for line in filled if line.startswith("Caused by: ")]:
        return roots[-1]
    return " ".join(filled[: 2 if filled[0].endswith(":") else 1])


def cause_key(state: str, error_kind: str, error: str) -> str:
    """The key of the cause of an execution that failed."""
    return _digest(state, error_kind, find_cause(error)[1])


def _digest(*kind: str) -> str:
    return hashlib.sha256("\n".join(kind).encode()).hexdigest()[:16]


@lru_cache(maxsize=4_000)
def find_cause(error: str) -> tuple[str, str]:
    """The line that tells the cause, and the same without what varies from run to run."""
    line = find_line(error)
    return line, SEVERAL.sub("…", VARIES.sub(_leave_out, line)).casefold()


def _leave_out(found: re.Match[str]) -> str:
    """Statuses stay: 404 and 503 are not the same failure."""
    is_status = found["status"] is not None or found["named_status"] is not None
    return found[0] if is_status else "…"
