"""Removing records past their retention (B7, E6); concurrent processes skip each other's locked rows."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.db import models, transaction
from django.utils import timezone
from loguru import logger

from audit.sealing import gathered_until, seal
from catalogue.models import DiscoveryRun
from connectors.background import WorkTime
from executions.audit import ENDED
from executions.models import (
    OPEN,
    CachedResult,
    Execution,
    ExecutionEvent,
    ExecutionPayload,
    ProblemReport,
    Retention,
    State,
    StatisticsState,
)
from executions.result_cache import forget_results
from executions.statistics import prune_statistics

BATCH = 50  # Rows per transaction: SQLite has one writer
TURNS = 8  # Of cached results and of all others, in a pass with a limited time
NEVER_PRUNED = (*OPEN, State.UNCONFIRMED)
REPORTS = "problem reports"


@dataclass(frozen=True, kw_only=True, slots=True)
class Pruned:
    cached_results: int = 0
    executions: int = 0
    payloads: int = 0
    timelines: int = 0
    discovery_runs: int = 0
    statistics: int = 0
    others: Mapping[str, int] = field(default_factory=dict)  # Of other packages, by name; without zeros
    all_done: bool = True  # False if the time was up first

    def __str__(self) -> str:
        counts = {
            "executions": self.executions,
            "payloads": self.payloads,
            "timelines": self.timelines,
            "discovery runs": self.discovery_runs,
            "rows of statistics": self.statistics,
            "cached results": self.cached_results,
            **self.others,
        }
        return ", ".join(f"{count} {name}" for name, count in counts.items())


PruneBatch = Callable[[datetime], int]  # Removes a batch of what ended before the moment. Returns how many.


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptAlike:
    name: str
    prune_records: PruneBatch
    payloads: str
    prune_payloads: PruneBatch


kept_alike: list[KeptAlike] = []


def prune(*, seconds: float | None = None) -> Pruned:
    """Remove what is due, one batch of each kind in turn, for about `seconds` if given, after sealing the
    audit for as long."""
    # The audit creates its entries of calls from these records.
    seal(seconds=seconds)
    # Not before: while many calls wait to be sealed, nothing would be removed.
    work_time = WorkTime(seconds)
    retention, now = Retention.current(), timezone.now()
    counts: Counter[str] = Counter()
    cached: dict[str, Callable[[], int]] = {}
    if (limit := retention.keeps_results_for) is not None:
        cached["cached_results"] = partial(forget_results, older_than=now - limit)
    turn = seconds and seconds / TURNS
    while True:
        # A record stays as long as a cached result refers to it.
        _remove(cached, counts, work_time, WorkTime(turn))
        due = _what_is_due(retention, now)
        _remove(due, counts, work_time, WorkTime(turn))
        if work_time.is_over or not (cached or due):
            break
    total, names = counts.total(), [REPORTS]
    names += [name for kept in kept_alike for name in (kept.name, kept.payloads)]
    others = {name: removed for name in names if (removed := counts.pop(name, 0))}
    pruned = Pruned(all_done=not (cached or due), others=others, **counts)
    if total:
        logger.info("Retention removed {}{}", pruned, "" if pruned.all_done else "; more is due")
    return pruned


def _remove(due: dict[str, Callable[[], int]], counts: Counter[str], *times: WorkTime) -> None:
    """A batch of each kind in turn, until nothing is due or a time is over. Leaves the kinds still due."""
    while due and not any(work_time.is_over for work_time in times):
        for kind, prune_batch in list(due.items()):
            begun = time.monotonic()
            if removed := prune_batch():
                counts[kind] += removed
                times[0].rest_after(begun)
            else:
                del due[kind]


def _what_is_due(retention: Retention, now: datetime) -> dict[str, Callable[[], int]]:
    records, payloads = retention.keeps_for("records"), retention.keeps_for("payloads")
    kinds: dict[str, tuple[timedelta | None, PruneBatch]] = {
        "executions": (records, _prune_records),
        "payloads": (payloads, _prune_payloads),
        "timelines": (retention.keeps_for("events"), _prune_timelines),
        "discovery_runs": (retention.keeps_for("discovery_runs"), _prune_discovery_runs),
        "statistics": (retention.keeps_for("statistics"), prune_statistics),
        REPORTS: (records, lambda before: ProblemReport.objects.filter(last_at__lt=before).delete()[0]),
    }
    parts = {"payloads", "timelines"}
    for kept in kept_alike:
        kinds[kept.name] = (records, kept.prune_records)
        kinds[kept.payloads] = (payloads, kept.prune_payloads)
        parts.add(kept.payloads)
    return {
        kind: partial(prune_batch, now - limit)
        for kind, (limit, prune_batch) in kinds.items()
        # What is removed with its record is not emptied first.
        if limit is not None and (kind not in parts or records is None or limit < records)
    }


@transaction.atomic
def _prune_records(ended_before: datetime) -> int:
    if keys := take_batch(_ended(ended_before)):
        _empty_payloads(_that_share_output_of(keys))
        Execution.objects.filter(pk__in=keys).delete()
        StatisticsState.note_removal(ended_before)
    return len(keys)


@transaction.atomic
def _prune_payloads(ended_before: datetime) -> int:
    """The row stays: it names the version and the client."""
    if keys := take_batch(_ended(ended_before).filter(payload_pruned_at=None)):
        _empty_payloads([*keys, *_that_share_output_of(keys)])
    return len(keys)


def _empty_payloads(keys: list[Any]) -> None:
    if keys:
        payloads = ExecutionPayload.objects.filter(pk__in=keys)
        emptied = dict.fromkeys(
            ("input", "changed_input", "output", "content", "start_answer", "status_answer")
        )
        payloads.update(**emptied, shares_output=False)
        Execution.objects.filter(pk__in=keys).update(payload_pruned_at=timezone.now())


def _that_share_output_of(keys: list[Any]) -> list[Any]:
    """Executions that were answered from the cache and share the output of these."""
    sharing = ExecutionPayload.objects.filter(execution__cached_from__in=keys, shares_output=True)
    return list(sharing.values_list("pk", flat=True))


@transaction.atomic
def _prune_timelines(ended_before: datetime) -> int:
    if keys := take_batch(_ended(ended_before).filter(events_pruned_at=None)):
        ExecutionEvent.objects.filter(execution__in=keys).delete()
        Execution.objects.filter(pk__in=keys).update(events_pruned_at=timezone.now())
    return len(keys)


@transaction.atomic
def _prune_discovery_runs(ended_before: datetime) -> int:
    if keys := take_batch(DiscoveryRun.objects.filter(finished_at__lt=ended_before)):
        DiscoveryRun.objects.filter(pk__in=keys).delete()
    return len(keys)


def _ended(before: datetime) -> models.QuerySet[Execution]:
    before = min(before, gathered_until(ENDED))
    # Not "in a final state": SQLite would walk all of those instead of the oldest.
    ended = Execution.objects.filter(finished_at__lt=before).exclude(state__in=NEVER_PRUNED)
    is_cached = CachedResult.objects.filter(execution=models.OuterRef("pk"))
    return ended.filter(~models.Exists(is_cached))


def take_batch(due: models.QuerySet[Any]) -> list[Any]:
    oldest = due.order_by("finished_at").select_for_update(skip_locked=True)
    return list(oldest.values_list("pk", flat=True)[:BATCH])
