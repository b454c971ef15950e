"""Metrics from the database, in a constant number of queries.

Every process reports the same values, so that a query over several takes their maximum, not their sum. Calls
are counted from midnight UTC, which Prometheus treats as a reset of the counter; restarts change nothing.
Labels are bounded: the first SOURCES sources have their own series, and as many tools as the setting allows.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from itertools import product
from typing import Any

from django.conf import settings
from django.db.models import Count, ExpressionWrapper, F, Min, OuterRef, Q, Subquery, Sum
from django.db.models.fields import BooleanField
from django.utils import timezone
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from catalogue.descriptions import CHARACTERS_PER_TOKEN
from catalogue.models import DiscoveryRun, Source, Workflow
from executions.models import Execution, HourlyUsage, State, WorkerPresence
from executions.models.result_cache import CacheUse
from executions.models.usage import Outcome, day_of, is_timed
from telemetry.metrics import OTHER

SOURCES = 100
BUCKET_CLASSES = tuple(range(24, 97, 8))
"""Upper bounds of the buckets as classes of duration: 64 ms, then each four times the last, to 4.7 hours."""
UNENDED = (State.PENDING, State.STARTING, State.RUNNING, State.UNAPPROVED, State.UNCONFIRMED)
QUEUED = "queued"


def read_measures() -> list[Metric]:
    """Raises the database's errors."""
    now = timezone.now()
    return [
        *_of_sources(),
        *_of_executions(now),
        *_of_usage(day_of(now)),
        *_of_workers(),
        *_of_the_cache(),
    ]


def _gauge(name: str, meaning: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"catalogue_{name}", meaning, labels=labels)


def _counter(name: str, meaning: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"catalogue_{name}", meaning, labels=labels)


def _single(name: str, meaning: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"catalogue_{name}", meaning, value=value)


def _of_sources() -> list[Metric]:
    succeeded = DiscoveryRun.objects.filter(
        source=OuterRef("pk"), outcome=DiscoveryRun.Outcome.SUCCEEDED
    ).order_by("-started_at", "-pk")
    sources = list(
        Source.objects.filter(enabled=True)
        .order_by("pk")
        .annotate(last_run=Subquery(succeeded.values("pk")[:1]))
        .values_list("pk", "name", "health_state", "last_refreshed_at", "failures", "last_run")[:SOURCES]
    )
    up = _gauge("source_up", "Whether the last listing of an enabled source succeeded.", "source")
    last = _gauge("source_last_success_timestamp_seconds", "When a listing last succeeded.", "source")
    failures = _gauge("source_failures", "Failed listings in a row.", "source")
    for _, name, health, refreshed_at, failed, _ in sources:
        if health != Source.HealthState.UNKNOWN:
            up.add_metric([name], health == Source.HealthState.OK)
        if refreshed_at is not None:
            last.add_metric([name], refreshed_at.timestamp())
        failures.add_metric([name], failed)
    ratio = _gauge(
        "workflows_registered_ratio",
        "Share of the last listing's workflows that could be registered.",
        "source",
    )
    runs = DiscoveryRun.objects.in_bulk([run for *_, run in sources if run is not None])
    for _, name, *_, run_id in sources:
        if (run := runs.get(run_id)) is not None and (listed := run.found + run.skipped_count):
            ratio.add_metric([name], run.found / listed)
    return [up, last, failures, ratio, _workflows([name for _, name, *_ in sources])]


def _workflows(shown: Sequence[str]) -> Metric:
    workflows = _gauge("workflows", "Workflows of sources, by state.", "source", "state")
    missing = ExpressionWrapper(Q(missing_since__isnull=False), output_field=BooleanField())
    groups = (
        Workflow.objects.order_by()
        .annotate(is_missing=missing)
        .values_list("source__name", "enabled", "is_missing")
        .annotate(number=Count("pk"))
    )
    counts: Counter[tuple[str, str]] = Counter()
    for source, enabled, is_missing, number in groups:
        state = "missing" if is_missing else "enabled" if enabled else "disabled"
        counts[source if source in shown else OTHER, state] += number
    for labels, number in sorted(counts.items()):
        workflows.add_metric(labels, number)
    return workflows


def _of_executions(now: datetime) -> list[Metric]:
    by_state = _gauge("executions", "Executions that have not ended, by state.", "state")
    is_waiting = ExpressionWrapper(Q(admitted_at__isnull=True), output_field=BooleanField())
    groups = (
        Execution.objects.filter(state__in=UNENDED)
        .order_by()
        .annotate(is_waiting=is_waiting)
        .values_list("state", "is_waiting")
        .annotate(number=Count("pk"), oldest=Min("created_at"))
    )
    counts: Counter[str] = Counter({state.value: 0 for state in UNENDED} | {QUEUED: 0})
    waits = 0.0
    for state, waiting, number, oldest in groups:
        is_queued = waiting and state == State.PENDING
        counts[QUEUED if is_queued else state] += number
        if is_queued:
            waits = max(0.0, (now - oldest).total_seconds())
    for state, number in sorted(counts.items()):
        by_state.add_metric([state], number)
    due = Execution.objects.due(now).order_by().aggregate(number=Count("pk"), oldest=Min("next_attempt_at"))
    late = 0.0 if due["oldest"] is None else max(0.0, (now - due["oldest"]).total_seconds())
    return [
        by_state,
        _single("queue_length", "Calls that wait for a free place.", counts[QUEUED]),
        _single("queue_oldest_seconds", "How long the oldest of them has waited.", waits),
        _single("steps_due", "Runs whose next step is due and taken by no process.", due["number"]),
        _single("steps_due_oldest_seconds", "How long the step that waits longest has been due.", late),
        _single("approvals_waiting", "Calls that wait for a person's approval.", counts[State.UNAPPROVED]),
    ]


def _of_usage(since: datetime) -> list[Metric]:
    sources = list(Source.objects.order_by("pk").values_list("name", flat=True)[:SOURCES])
    most_tools = settings.CATALOGUE.metrics_tools
    tools = set(Workflow.objects.order_by("pk").values_list("tool_name", flat=True)[:most_tools])
    rows = (
        HourlyUsage.objects.filter(hour__gte=since)
        .order_by()
        .values_list("source_name", "tool_name", "outcome", "duration_class")
        .annotate(Sum("calls"), Sum("milliseconds"), Sum("input_characters"), Sum("output_characters"))
    )
    # From 0, so that runs which fail together, the first of their source or day, count as an increase.
    ended: Counter[tuple[str, str]] = Counter(dict.fromkeys(product(sources, Outcome.values), 0))
    by_tool: Counter[tuple[str, str]] = Counter()
    buckets: dict[str, Counter[int]] = {}
    milliseconds: Counter[str] = Counter()
    characters: Counter[str] = Counter()
    for source, tool, outcome, duration_class, calls, took, read, written in rows:
        shown = source if source in sources else OTHER
        ended[shown, outcome] += calls
        if most_tools:
            by_tool[tool if tool in tools else OTHER, outcome] += calls
        if is_timed(outcome, duration_class):
            buckets.setdefault(shown, Counter())[duration_class] += calls
            milliseconds[shown] += took
        characters["arguments"] += read
        characters["results"] += written
    return [
        _counted("executions_ended", "Executions that ended today, by source.", ended, "source", "outcome"),
        _counted(
            "tool_calls",
            "The same by tool, for as many tools as CATALOGUE_METRICS_TOOLS.",
            by_tool,
            "tool",
            "outcome",
        ),
        _durations(buckets, milliseconds),
        _counted(
            "served_tokens",
            "Estimated tokens of arguments and results today.",
            Counter({(what,): number // CHARACTERS_PER_TOKEN for what, number in characters.items()}),
            "part",
        ),
    ]


def _counted(name: str, meaning: str, counts: Counter[Any], *labels: str) -> Metric:
    family = _counter(name, meaning, *labels)
    for key, number in sorted(counts.items()):
        family.add_metric(key, number)
    return family


def _durations(buckets: dict[str, Counter[int]], milliseconds: Counter[str]) -> Metric:
    family = HistogramMetricFamily(
        "catalogue_execution_duration_seconds", "Durations of executions that ended today.", labels=["source"]
    )
    for source, counts in sorted(buckets.items()):
        cumulated = []
        for last in BUCKET_CLASSES:
            number = sum(number for of, number in counts.items() if of <= last)
            cumulated.append((f"{2 ** (last // 4) / 1000:g}", float(number)))
        cumulated.append(("+Inf", float(counts.total())))
        family.add_metric([source], cumulated, milliseconds[source] / 1000)
    return family


def _of_workers() -> list[Metric]:
    tick = _gauge("last_tick_timestamp_seconds", "When a worker last did what beat's tick asked for.")
    seen = _gauge("worker_seen_timestamp_seconds", "When a worker was last alive.")
    presence = WorkerPresence.objects.filter(pk=WorkerPresence.ONLY).first()
    if presence is not None:
        tick.add_metric([], presence.seen_at.timestamp())
        seen.add_metric([], (presence.worker_at or presence.seen_at).timestamp())
    return [tick, seen]


def _of_the_cache() -> list[Metric]:
    names = ("hits", "misses", "evictions", "entries", "bytes")
    sums = CacheUse.objects.aggregate(**{f"all_{name}": Sum(F(name)) for name in names})
    made: list[Metric] = []
    for name, meaning in (
        ("hits", "Calls answered from the result cache."),
        ("misses", "Calls that no cached result could answer."),
        ("evictions", "Cached results that made room for others."),
    ):
        made.append(
            CounterMetricFamily(f"catalogue_result_cache_{name}", meaning, value=sums[f"all_{name}"] or 0)
        )
    made.append(_single("result_cache_entries", "Results in the cache.", sums["all_entries"] or 0))
    made.append(_single("result_cache_bytes", "Bytes of the results in the cache.", sums["all_bytes"] or 0))
    return made
