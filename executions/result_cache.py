"""The result cache: answering a call with the result of an earlier, identical one.

`models.result_cache` stores results, in the transaction that completes a run. Under concurrency:
- Two misses: both run, and the later result replaces the earlier. The lock of `CacheUse` orders them.
- A hit and a removal: the first to lock `CacheUse` wins; a hit that comes second is undone and the call
runs.
- A run and a clearing: a run stores its result only if the cache has not been cleared since it began.
- A run and a change of its workflow: the key is computed again at the end, and another key stores nothing.
- Several processes exceed the limit: each evicts until the total is within it.
- A process is killed between storing and evicting: the next store, or the cleanup, evicts.
"""

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ValidationError
from django.db import connection, transaction
from django.db.models import F, QuerySet, Sum
from django.db.models.functions import Coalesce
from django.utils import timezone
from loguru import logger

from catalogue.database import after_commit
from catalogue.models import Workflow
from connectors.background import CLOCKS_APART
from executions.models import CachedResult, CachePolicy, CacheUse, Execution, State
from executions.models.execution import size_of
from executions.models.lifecycle import StartRequest, insert_execution, new_execution
from executions.models.result_cache import BATCH, cache_key, evict_excess, remove_results

if TYPE_CHECKING:
    from connectors.temporal.declarations import CacheBlock

COPIED_BYTES = 64 * 1024  # A hit does not copy a larger output: its record refers to the original run


class _Gone(Exception):
    pass


def answer_from_cache(request: StartRequest, workflow: Workflow, *, digest: str) -> Execution | None:
    """A completed execution from a cached result, or None. Hits do not count towards the limits."""
    found = None if request.fresh else CachedResult.find(cache_key(workflow, digest))
    # By the present setting: a shortened time applies to results that are already cached.
    if found is None or not found.answers(timezone.now(), seconds=workflow.effective_cache_seconds or 0):
        return None
    try:
        execution = _record_hit(request, workflow, digest, found)
    except _Gone:
        return None
    bound = logger.bind(execution=execution.pk, tool=request.tool_name, caller=request.caller.key)
    after_commit(lambda: bound.info("Answered from the result cache"))
    return execution


# On SQLite, what several calls record is one transaction: nothing changes in it that `found` was read in.
@transaction.atomic(savepoint=connection.vendor != "sqlite")
def _record_hit(request: StartRequest, workflow: Workflow, digest: str, found: CachedResult) -> Execution:
    now, output, content = timezone.now(), found.kept.output, found.kept.content
    execution = new_execution(
        request,
        workflow,
        digest=digest,
        now=now,
        state=State.COMPLETED,
        finished_at=now,
        cached_from_id=found.execution_id,
        cached_at=found.created_at,
        output_characters=found.size if content is None else max(size_of(output), size_of(content)),
    )
    of_run = f" of execution {found.execution_id}" if found.execution_id else ""
    shares = found.size > COPIED_BYTES and found.execution_id is not None
    event = f"From the result cache, run at {found.created_at:%Y-%m-%d %H:%M:%S} UTC: the result{of_run}."
    insert_execution(
        execution,
        request,
        workflow,
        ("cached", event),
        output=None if shares else output,
        content=None if shares else content,
        shares_output=shares,
    )
    if not found.use(now):
        raise _Gone
    execution.payload.output, execution.payload.content = output, content
    return execution


def mark_for_cache(workflow: Workflow, *, digest: str) -> dict[str, Any]:
    """The fields of an execution that is about to run, of a workflow whose results are cached."""
    if not CachePolicy.current().enabled:
        return {}
    clearings = CacheUse.objects.filter(pk=workflow.pk).values_list("clearings", flat=True).first()
    return {"cache_key": cache_key(workflow, digest), "cache_clearings": clearings or 0}


def count_run(execution: Execution, *, fresh: bool) -> None:
    """Last in its transaction: all calls of the workflow share the row."""
    if execution.cache_key and execution.workflow_id is not None:
        CacheUse.add(execution.workflow_id, **{"refreshes" if fresh else "misses": 1})


def clear_results(workflows: Collection[int] | None = None) -> int:
    """Clear these workflows' results, or all; running executions store none. Returns how many there were."""
    with transaction.atomic():
        used = set(CacheUse.objects.values_list("pk", flat=True))
        locked = [use.pk for use in CacheUse.lock(used if workflows is None else used & set(workflows))]
        CacheUse.objects.filter(pk__in=locked).update(clearings=F("clearings") + 1, cleared_at=timezone.now())
    cleared = 0
    for batch in _batches(CachedResult.objects.filter(workflow__in=locked)):
        cleared += remove_results(batch, counted_as="cleared")
    logger.info("Cleared the result cache of {} results", cleared)
    return cleared


def clean_if_due() -> None:
    now = timezone.now()
    policy, _ = CachePolicy.objects.get_or_create(pk=CachePolicy.ONLY)
    pause = timedelta(seconds=policy.cleanup_seconds)
    same = CachePolicy.objects.filter(pk=policy.pk, cleaned_at=policy.cleaned_at)
    # Also if it was cleaned in the future: the clock was set back.
    is_due = policy.cleaned_at is None or not now - pause < policy.cleaned_at <= now + CLOCKS_APART
    if is_due and same.update(cleaned_at=now):
        clean()


def clean() -> int:
    now, expired = timezone.now(), 0
    for results in (CachedResult.objects.filter(expires_at__lte=now), *_shortened(now)):
        for batch in _batches(results):
            expired += remove_results(batch, counted_as="expired")
    evicted = evict_excess()
    if expired or evicted:
        logger.info("Result cache: {} expired, {} evicted", expired, evicted)
    return expired + evicted


def _shortened(now: datetime) -> Iterator[QuerySet[CachedResult]]:
    allowed = CacheUse.objects.filter(entries__gt=0).order_by("pk")
    kept_for = Coalesce("workflow__cache_seconds", "workflow__upstream_cache_seconds")
    for workflow, seconds in allowed.values_list("pk", kept_for):
        oldest = now - timedelta(seconds=seconds or 0)
        yield CachedResult.objects.filter(workflow=workflow, created_at__lte=oldest)


def forget_results(*, older_than: datetime) -> int:
    old = CachedResult.objects.filter(created_at__lt=older_than).order_by("created_at")
    return remove_results(old.values_list("pk", flat=True)[:BATCH], counted_as="expired")


def _batches(results: QuerySet[CachedResult]) -> Iterator[list[int]]:
    last = 0
    while batch := list(results.filter(pk__gt=last).order_by("pk").values_list("pk", flat=True)[:BATCH]):
        last = batch[-1]
        yield batch


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheFigures:
    enabled: bool
    max_bytes: int
    entries: int
    bytes: int
    hits: int
    misses: int
    refreshes: int
    stored: int
    oversized: int
    evictions: int
    expired: int
    cleared: int

    @property
    def hit_rate(self) -> float | None:
        """Returns 0 to 1, of the calls that a result might have answered; None before the first."""
        asked = self.hits + self.misses
        return self.hits / asked if asked else None


COUNTED = [field.name for field in fields(CacheFigures) if field.name not in ("enabled", "max_bytes")]


def cache_figures(workflow: int | None = None) -> CacheFigures:
    uses = CacheUse.objects.all() if workflow is None else CacheUse.objects.filter(pk=workflow)
    sums = uses.aggregate(**{name: Sum(name, default=0) for name in COUNTED})
    policy = CachePolicy.current()
    return CacheFigures(enabled=policy.enabled, max_bytes=policy.max_bytes, **sums)


WHERE = "an administrator changes it under Result cache"


def take_cache_settings(block: "CacheBlock", *, apply: bool) -> list[str]:
    """Apply the settings that are still the defaults. Returns notes on changes and differences."""
    policy, notes = CachePolicy.current(), []
    for name, key, wanted in (
        ("max_bytes", "maxCacheSize", block.max_cache_size),
        ("cleanup_seconds", "cleanupInterval", block.cleanup_interval),
    ):
        if wanted is not None and (note := _settle(policy, name, key, math.ceil(wanted))) is not None:
            notes.append(note)
    if apply and notes:
        policy.save()
    if block.enabled and not policy.enabled:
        notes.append(f"The result cache is switched off for all workflows; {WHERE}.")
    if block.database_path is not None:
        notes.append("cache.databasePath has no effect: results are kept in the product's own database.")
    return notes


def _settle(policy: CachePolicy, name: str, key: str, value: int) -> str | None:
    field: Any = CachePolicy._meta.get_field(name)
    unit, present = ("bytes" if name == "max_bytes" else "s"), getattr(policy, name)
    if value == present:
        return None
    if present != field.default:
        here = f"{present:,} {unit} are set here and remain in effect; {WHERE}."
        return f"cache.{key} is {value:,} {unit}, but {here}"
    try:
        field.clean(value, policy)
    except ValidationError as error:
        return f"cache.{key} is not applied: {' '.join(error.messages)}"
    setattr(policy, name, value)
    return f"Result cache, {field.verbose_name}: {value:,} {unit} instead of {present:,} {unit}."
