"""When to poll a run: learned from how long runs of its workflow take.

Each process learns from the ends that it sees, without a query, and starts with nothing. A poll comes at the
age that costs least: each poll has a cost, and so has the time between an end and its poll, in proportion to
the duration of the run. If an engine does not report when a run ended, it was between its last two polls:
other runs show where, and a first poll that finds every run over comes earlier the next time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import accumulate, pairwise
from math import ceil
from threading import Lock
from typing import TYPE_CHECKING

from cachetools import LRUCache
from django.utils import timezone

if TYPE_CHECKING:
    from executions.models import Execution

REMEMBERED_WORKFLOWS = 5_000
REMEMBERED_RUNS = 100  # Of each workflow
FEWEST_RUNS = 5
GROUPS = 20
ROUNDS = 10  # Of an estimate; more change little
FRESH_SHARE = 10  # An estimate is used until a tenth of its runs are new
GOOD_WAIT_SHARE = 0.1  # Of a run's duration: a wait for its poll that costs one, ...
GOOD_WAIT_SECONDS = 0.06  # ... or this, where it is longer
POLL_COST = 0.05
OVERTIME_COST = 2.0  # Of a run that takes longer than all others did
MARGIN_SECONDS = 0.005
LONGEST_PAUSE_SECONDS = 60.0
PROGRESS_SECONDS = 10.0  # The least time between two polls that only read the progress ...
PROGRESS_POLLS = 8  # ... and about how many of them come before the end can be expected


class UsualDurations:
    """How long some runs took, in up to twenty groups of similar durations."""

    def __init__(self, durations: Iterable[float]) -> None:
        """In seconds."""
        ascending = sorted(durations)
        size = ceil(len(ascending) / GROUPS)
        groups = [ascending[start : start + size] for start in range(0, len(ascending), size)]
        self._ages = [group[-1] + MARGIN_SECONDS for group in groups]
        weights = [len(group) / max(GOOD_WAIT_SECONDS, GOOD_WAIT_SHARE * group[-1]) for group in groups]
        weighted = [weight * age for weight, age in zip(weights, self._ages, strict=True)]
        # For the runs before each group, and at last for all: how many, and what a second of waiting costs.
        self._over = list(accumulate(map(len, groups), initial=0))
        self._weights = list(accumulate(weights, initial=0.0))
        self._weighted_ages = list(accumulate(weighted, initial=0.0))
        self._first: dict[float, float] = {}

    def next_age(self, age: float, shortest: float) -> float | None:
        """The best age for the next poll of a run that continues at this age (0: its first), in seconds.

        `shortest`: the least time between two polls. None if the run takes longer than all others did.
        """
        # Each run that starts asks for this one.
        if not age and shortest in self._first:
            return self._first[shortest]
        begin = bisect_right(self._ages, age)
        if begin == len(self._ages):
            return None
        # From the last group back: the costs of the polls after one at the end of the group before.
        costs = [OVERTIME_COST] * (len(self._ages) + 1)
        for index in range(len(self._ages) - 1, begin, -1):
            costs[index], _ = self._best(index, self._ages[index - 1] + shortest, costs)
        _, wanted = self._best(begin, age + shortest if age else 0.0, costs)
        if not age:
            self._first[shortest] = wanted
        return wanted

    def _best(self, begin: int, earliest: float, costs: list[float]) -> tuple[float, float]:
        """The least cost of a run of group `begin` or later, and the age of the poll that leads to it."""
        best, index = (float("inf"), earliest), begin
        while index < len(self._ages):
            age = max(self._ages[index], earliest)
            end = bisect_right(self._ages, age)
            waits = age * (self._weights[end] - self._weights[begin])
            waits -= self._weighted_ages[end] - self._weighted_ages[begin]
            later = (self._over[-1] - self._over[end]) * costs[end]
            best = min(best, (POLL_COST + (waits + later) / (self._over[-1] - self._over[begin]), age))
            index = end
        return best


def estimated(bounds: Sequence[tuple[float, float]]) -> list[float]:
    """The likely durations of runs that are known only to have ended between two ages each.

    Turnbull's estimator: ends lie only between the lower bound of one run and the next upper bound of
    another. The likeliest number of ends in each such interval is found iteratively.
    """
    counts = Counter(bounds)
    lows, highs = {low for low, _ in counts}, {high for _, high in counts}
    ages = sorted(lows | highs)
    place = {age: index for index, age in enumerate(ages)}
    spans = list(pairwise(ages))
    masses = [float(low in lows and high in highs) for low, high in spans]
    for _ in range(ROUNDS):
        sums = list(accumulate(masses, initial=0.0))
        changes = [0.0] * len(ages)
        for (low, high), count in counts.items():
            share = count / (sums[place[high]] - sums[place[low]])
            changes[place[low]] += share
            changes[place[high]] -= share
        masses = [mass * factor for mass, factor in zip(masses, accumulate(changes), strict=False)]
    up_to = list(accumulate(masses))
    steps = ((number + 0.5) / len(bounds) * up_to[-1] for number in range(len(bounds)))
    return [sum(spans[min(bisect_left(up_to, step), len(spans) - 1)]) / 2 for step in steps]


class LatestRuns:
    """Of one workflow."""

    def __init__(self) -> None:
        self._bounds: deque[tuple[float, float]] = deque(maxlen=REMEMBERED_RUNS)
        self._new = 0
        self._usual: UsualDurations | None = None

    def add(self, low: float, high: float) -> None:
        """The last age at which a run continued, and the first at which it was over, in seconds; equal if the
        engine reported when it ended."""
        # In milliseconds: many runs then have the same bounds, and the estimate takes an eighth of the time.
        self._bounds.append((round(low, 3), round(high, 3)))
        self._new += 1
        if 0.0 < low < high:
            # The poll came too early; the next run's should not.
            self._usual = None

    @property
    def usual(self) -> UsualDurations | None:
        if len(self._bounds) < FEWEST_RUNS:
            return None
        if self._usual is None or self._new * FRESH_SHARE >= len(self._bounds):
            unclear = [(low, high) for low, high in self._bounds if low < high]
            clear = [low for low, high in self._bounds if low == high]
            self._usual, self._new = UsualDurations(clear + (estimated(unclear) if unclear else [])), 0
        return self._usual


_runs: LRUCache[int, LatestRuns] = LRUCache(REMEMBERED_WORKFLOWS)
_lock = Lock()


def forget_runs() -> None:
    """For tests, which use the keys of workflows again."""
    with _lock:
        _runs.clear()


def learn_from_end(execution: Execution, *, ended_at: datetime | None) -> None:
    """A polled run is over; `ended_at`: when, if the engine reported it."""
    begun, found_at = execution.started_at, timezone.now()
    if execution.workflow_id is None or begun is None:
        return
    last_poll = execution.polled_at or begun
    if ended_at is not None and last_poll <= ended_at <= found_at:
        last_poll = found_at = ended_at
    if not begun <= last_poll <= found_at:
        return  # The clock was set back during the run.
    with _lock:
        runs = _runs.setdefault(execution.workflow_id, LatestRuns())
        runs.add((last_poll - begun).total_seconds(), (found_at - begun).total_seconds())


def learnt_pause(execution: Execution, *, shortest: float) -> timedelta | None:
    """From now until the best time of the next poll; None if nothing useful was learned."""
    with _lock:
        runs = _runs.get(execution.workflow_id) if execution.workflow_id is not None else None
        usual = None if runs is None else runs.usual
    if usual is None:
        return None
    begun = execution.started_at
    age = 0.0 if begun is None else (timezone.now() - begun).total_seconds()
    pause = pause_before(usual, age, shortest=shortest)
    return None if pause is None else timedelta(seconds=pause)


def pause_before(usual: UsualDurations, age: float, *, shortest: float) -> float | None:
    """In seconds. While the end is far off, occasional polls read the progress."""
    wanted = usual.next_age(age, shortest)
    if wanted is None:
        return None
    longest = min(max(wanted / PROGRESS_POLLS, PROGRESS_SECONDS), LONGEST_PAUSE_SECONDS)
    return max(0.0, min(wanted - age, longest))
