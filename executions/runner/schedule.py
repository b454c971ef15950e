"""Chooses when to poll a run: by how long earlier runs of its workflow took, and later after each failure.

Each process learns from the ends that it sees, without a query, and starts with nothing.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from datetime import datetime, timedelta
from threading import Lock
from typing import TYPE_CHECKING

from cachetools import LRUCache
from django.utils import timezone

from connectors.errors import ConnectorError, Unreachable, backoff_seconds

if TYPE_CHECKING:
    from executions.models import Execution

MAX_WORKFLOWS = 5_000
MAX_RUNS = 100  # Of each workflow
MIN_RUNS = 5
WAIT_SHARE = 0.08  # One poll finds runs whose ages at their ends differ by this share, ...
WAIT_POLLS = 0.4  # ... or by this share of the least time between two polls, if that is longer
MARGIN_SECONDS = 0.003
MAX_PAUSE_SECONDS = 60.0
MAX_INTERVAL_SECONDS = 60.0  # Between two polls for which no request waits, and after failures
PROGRESS_SECONDS = 10.0  # The least time between two polls that only read the progress ...
PROGRESS_POLLS = 8  # ... and about how many of them come before the end can be expected


def next_try_after(
    execution: Execution,
    error: ConnectorError | None = None,
    *,
    failures: int | None = None,
    by: datetime | None = None,
) -> datetime:
    """Doubles from 1 s with each failure; at least the engine's delay, at most until `by` or the deadline."""
    asked = error.retry_after if isinstance(error, Unreachable) else None
    in_a_row = execution.attempts if failures is None else failures
    backoff = backoff_seconds(in_a_row, first=1, longest=MAX_INTERVAL_SECONDS)
    now = timezone.now()
    latest = execution.deadline_at if by is None else by
    return max(now, min(now + timedelta(seconds=max(backoff, asked or 0.0)), latest))


class LatestRuns:
    """Holds how long the latest runs of one workflow took."""

    def __init__(self) -> None:
        self._bounds: deque[tuple[float, float]] = deque(maxlen=MAX_RUNS)
        self._durations: list[float] = []  # Ascending

    def add(self, low: float, high: float) -> None:
        """Adds a run that continued at the age `low` and was over at `high`, in seconds.

        They are equal if the engine reported when it ended. Otherwise it most likely ended before the
        earliest age after `low` at which one was over, and after the latest before that at which one
        continued.
        """
        self._bounds.append((low, high))
        lows, highs = (sorted(ages) for ages in zip(*self._bounds, strict=True))
        durations = []
        for continued, over in self._bounds:
            if continued < over:
                end = highs[bisect_right(highs, continued)]
                durations.append((lows[bisect_left(lows, end) - 1] + end) / 2)
            else:
                durations.append(over)
        self._durations = sorted(durations)

    def pause(self, age: float, *, shortest: float) -> float | None:
        """Seconds until the next poll of a run that continues at this age (0: its first).

        None if too few runs are known or it takes longer than all. `shortest`: least time between two polls.
        """
        left = self._durations[bisect_right(self._durations, age) :]
        if len(self._durations) < MIN_RUNS or not left:
            return None
        earliest = age + shortest if age else 0.0
        latest = max(left[0] * (1 + WAIT_SHARE), left[0] + WAIT_POLLS * shortest, earliest)
        wanted = max(left[bisect_right(left, latest) - 1] + MARGIN_SECONDS, earliest)
        # While the end is far off, occasional polls read the progress.
        longest = min(max(wanted / PROGRESS_POLLS, PROGRESS_SECONDS), MAX_PAUSE_SECONDS)
        return max(0.0, min(wanted - age, longest))


_runs: LRUCache[int, LatestRuns] = LRUCache(MAX_WORKFLOWS)
_lock = Lock()


def forget_runs() -> None:
    """Resets it for tests, which use the keys of workflows again."""
    with _lock:
        _runs.clear()


def learn_from_end(execution: Execution, *, ended_at: datetime | None) -> None:
    """Learns from a polled run that is over; `ended_at`: when, if the engine reported it."""
    begun, found_at = execution.started_at, timezone.now()
    if execution.workflow_id is None or begun is None:
        return
    last_poll = execution.polled_at or begun
    if ended_at is not None and last_poll <= ended_at <= found_at:
        last_poll = found_at = ended_at
    if not begun <= last_poll <= found_at:
        return  # The clock was set back during the run.
    with _lock:
        if (runs := _runs.get(execution.workflow_id)) is None:
            runs = _runs[execution.workflow_id] = LatestRuns()
        runs.add((last_poll - begun).total_seconds(), (found_at - begun).total_seconds())


def learnt_pause(execution: Execution, *, shortest: float) -> timedelta | None:
    """Returns the time from now until the best next poll; None if nothing useful was learned."""
    with _lock:
        runs = _runs.get(execution.workflow_id) if execution.workflow_id is not None else None
    if runs is None:
        return None
    begun = execution.started_at
    age = 0.0 if begun is None else (timezone.now() - begun).total_seconds()
    pause = runs.pause(age, shortest=shortest)
    return None if pause is None else timedelta(seconds=pause)
