"""Tools and sources that fail far more often in the last 24 hours than before, from the hourly sums."""

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import sqrt
from threading import Lock
from typing import NamedTuple

from cachetools import TTLCache, cached
from django.db.models import Q, QuerySet, Sum

from catalogue.models import Workflow
from executions.models import HourlyUsage
from executions.models.usage import FAILURES, TIMED
from executions.statistics import Period

MIN_FAILURES = 5
MIN_RATE = 0.05
MIN_CALLS_BEFORE = 10  # Fewer say nothing about what is usual: the failures count as new.
TIMES, DEVIATIONS = 2, 3  # How far above the usual rate, at least
REMEMBERED_SECONDS = 30.0  # Of hourly sums; to find them takes 0.1 s of CPU after a million runs
MAX_CANDIDATES = 200  # Of each kind, those with the most failures


class Runs(NamedTuple):
    """Calls that ran to an end: neither cached answers nor cancelled runs."""

    calls: int = 0
    failed: int = 0

    @property
    def rate(self) -> float:
        return self.failed / self.calls if self.calls else 0.0

    def plus(self, other: "Runs") -> "Runs":
        return Runs(self.calls + other.calls, self.failed + other.failed)


@dataclass(frozen=True, slots=True)
class Spikes:
    """The runs of the last 24 hours, by key."""

    workflows: dict[int, Runs]
    sources: dict[int, Runs]


def is_spike(recent: Runs, *before: Runs) -> bool:
    """Compares with the better one of the periods before."""
    usual = min((runs.rate for runs in before if runs.calls >= MIN_CALLS_BEFORE), default=0.0)
    deviation = sqrt(usual * (1 - usual) / recent.calls) if recent.calls else 0.0
    least = max(MIN_RATE, TIMES * usual, usual + DEVIATIONS * deviation)
    return recent.failed >= MIN_FAILURES and recent.rate >= least


@cached(TTLCache(maxsize=1, ttl=REMEMBERED_SECONDS), lock=Lock())
def find_spikes() -> Spikes:
    """At most two queries; the statistics of longer periods are read of the candidates alone."""
    start = Period.DAY.start()
    (recent,) = _sums_since(HourlyUsage.objects.all(), start)
    workflows, sources = _candidates(recent.workflows), _candidates(recent.sources)
    if not workflows and not sources:
        return Spikes({}, {})
    of_candidates = Workflow.objects.filter(Q(pk__in=list(workflows)) | Q(source__in=list(sources)))
    # By one condition, which the index of the sums answers alone.
    earlier = HourlyUsage.objects.filter(workflow__in=of_candidates.order_by().values("pk"), hour__lt=start)
    week, month = _sums_since(earlier, *(start - timedelta(days=days) for days in (7, 30)))
    return Spikes(
        {
            key: runs
            for key, runs in workflows.items()
            if is_spike(runs, week.workflows[key], month.workflows[key])
        },
        {key: runs for key, runs in sources.items() if is_spike(runs, week.sources[key], month.sources[key])},
    )


class _Sums:
    def __init__(self) -> None:
        self.workflows: defaultdict[int, Runs] = defaultdict(Runs)
        self.sources: defaultdict[int, Runs] = defaultdict(Runs)


def _sums_since(rows: QuerySet[HourlyUsage], *starts: datetime) -> list[_Sums]:
    """One query for all of the starts."""
    ended = rows.filter(outcome__in=TIMED, workflow__source__isnull=False, hour__gte=min(starts)).order_by()
    columns = {}
    for number, start in enumerate(starts):
        since = Q(hour__gte=start)
        columns[f"calls_{number}"] = Sum("calls", filter=since, default=0)
        columns[f"failed_{number}"] = Sum("calls", filter=since & Q(outcome__in=FAILURES), default=0)
    sums = [_Sums() for _ in starts]
    for workflow, source, *numbers in ended.values_list("workflow", "workflow__source").annotate(**columns):
        for each, runs in zip(sums, map(Runs, numbers[::2], numbers[1::2]), strict=True):
            each.workflows[workflow] = runs
            each.sources[source] = each.sources[source].plus(runs)
    return sums


def _candidates(found: dict[int, Runs]) -> dict[int, Runs]:
    possible = {key: runs for key, runs in found.items() if is_spike(runs)}
    return dict(sorted(possible.items(), key=lambda item: -item[1].failed)[:MAX_CANDIDATES])
