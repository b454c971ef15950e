"""The result cache: answering a call with what the same call came to before, as long as a curator allows.

Storing is in `models.cache_store`, in the transaction that completes a run. What may happen at the same time:

- Two calls miss: both run, and the later result takes the place of the earlier. They take turns by the lock
  of `CacheUse`, so that neither finds the key taken.
- A hit and a removal (cleared, evicted, expired, replaced): whoever locks `CacheUse` first goes first. A hit
  that comes second finds its result gone; it is undone, and the call runs.
- A run and a clearing: each clearing has a number, a run notes the last one before it begins, and its result
  is stored only if that is still the last. So nothing comes back that was made before the cache was cleared.
- A run and a curator or a discovery run that change its workflow: the key is made anew when the run ends,
  and another key stores nothing.
- Several processes store more than there is room for: each evicts until the total is within the limit.
- A process that is killed between storing and evicting: the next that stores, or the cleanup, evicts.
"""

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import F, QuerySet, Sum
from django.db.models.functions import Coalesce
from django.utils import timezone
from loguru import logger

from catalogue import declared_workflows
from catalogue.database import in_turn
from catalogue.models import Workflow
from connectors.temporal.declarations import CacheBlock
from executions.creating import StartRequest, insert_execution, new_execution
from executions.models import CachedResult, CachePolicy, CacheUse, Execution, State
from executions.models.cache_store import BATCH, evict_excess, remove_results
from executions.models.payload import size_of
from executions.models.result_cache import cache_key
from executions.models.usage import count_end

COPIED_BYTES = 64 * 1024
"""Of a larger output a hit keeps no copy: its record refers to that of the run."""


class _Gone(Exception):
    """Somebody removed or replaced the result meanwhile."""


def answer_from_cache(request: StartRequest, workflow: Workflow, *, digest: str) -> Execution | None:
    """A completed execution made of a cached result, without a run; None where there is none to use.

    For calls that nothing else stands in the way of. A hit takes up no room within the limits.
    """
    if workflow.effective_cache_seconds is None or request.fresh:
        return None
    if (found := _find_usable(workflow, digest)) is None:
        return None
    try:
        execution = _record_hit(request, workflow, digest, found)
    except _Gone:
        return None
    logger.bind(execution=execution.pk, tool=request.tool_name, caller=request.caller.key).info(
        "Answered from the result cache"
    )
    return execution


def _find_usable(workflow: Workflow, digest: str) -> CachedResult | None:
    found = CachedResult.find(cache_key(workflow, digest))
    # By what the curator says now: a time that was shortened holds for what is cached already.
    if found is None or not found.answers(timezone.now(), seconds=workflow.effective_cache_seconds or 0):
        return None
    return found


@in_turn
@transaction.atomic
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
        output_characters=found.size if content is None else size_of(content),
    )
    shares = found.size > COPIED_BYTES and found.execution_id is not None
    insert_execution(
        execution,
        request,
        workflow,
        ("cached", _describe_origin(found)),
        output=None if shares else output,
        content=None if shares else content,
        shares_output=shares,
    )
    count_end(execution)
    if not found.use(now):
        raise _Gone
    execution.payload.output, execution.payload.content = output, content
    return execution


def _describe_origin(found: CachedResult) -> str:
    run = f" of execution {found.execution_id}" if found.execution_id else ""
    return f"From the result cache, run at {found.created_at:%Y-%m-%d %H:%M:%S} UTC: the result{run}."


def mark_for_cache(workflow: Workflow, *, digest: str) -> dict[str, Any]:
    """The fields of an execution that is about to run, if its result is to be cached."""
    if workflow.effective_cache_seconds is None or not CachePolicy.current().enabled:
        return {}
    clearings = CacheUse.objects.filter(pk=workflow.pk).values_list("clearings", flat=True).first()
    return {"cache_key": cache_key(workflow, digest), "cache_clearings": clearings or 0}


def count_run(execution: Execution, *, fresh: bool) -> None:
    """Last in the transaction that records it: the row that counts is one for all calls of the workflow."""
    if execution.cache_key and execution.workflow_id is not None:
        CacheUse.add(execution.workflow_id, **{"refreshes" if fresh else "misses": 1})


def clear_results(workflows: Collection[int] | None = None) -> int:
    """Remove what is cached for these workflows, or for all. Returns how many results that were.

    What began to run before is not cached when it ends.
    """
    cleared, used = 0, _begin_clearing(workflows)
    for batch in _batches(CachedResult.objects.filter(workflow__in=used)):
        cleared += remove_results(batch, counted_as="cleared")
    logger.info("Cleared the result cache of {} results", cleared)
    return cleared


@transaction.atomic
def _begin_clearing(workflows: Collection[int] | None) -> list[int]:
    """Those of them for which anything was ever cached or is about to be."""
    used = set(CacheUse.objects.values_list("pk", flat=True))
    locked = [use.pk for use in CacheUse.lock(used if workflows is None else used & set(workflows))]
    CacheUse.objects.filter(pk__in=locked).update(clearings=F("clearings") + 1, cleared_at=timezone.now())
    return locked


def clean_if_due() -> None:
    """Clean, if the interval that the admin set is over. Of several processes one does it."""
    now = timezone.now()
    policy, _ = CachePolicy.objects.get_or_create(pk=CachePolicy.ONLY)
    same = CachePolicy.objects.filter(pk=policy.pk, cleaned_at=policy.cleaned_at)
    if policy.is_cleanup_due(now) and same.update(cleaned_at=now):
        clean()


def clean() -> int:
    """Remove what cannot be used any more, and what is beyond the limit. Returns how many results went."""
    now, expired = timezone.now(), 0
    for results in (CachedResult.objects.filter(expires_at__lte=now), *_shortened(now)):
        for batch in _batches(results):
            expired += remove_results(batch, counted_as="expired")
    evicted = evict_excess()
    if expired or evicted:
        logger.info("Result cache: {} expired, {} evicted", expired, evicted)
    return expired + evicted


def _shortened(now: datetime) -> Iterator[QuerySet[CachedResult]]:
    """What is older than the curator allows since it was cached."""
    allowed = CacheUse.objects.filter(entries__gt=0).order_by("pk")
    kept_for = Coalesce("workflow__cache_seconds", "workflow__upstream_cache_seconds")
    for workflow, seconds in allowed.values_list("pk", kept_for):
        oldest = now - timedelta(seconds=seconds or 0)
        yield CachedResult.objects.filter(workflow=workflow, created_at__lte=oldest)


def forget_results(*, older_than: datetime) -> int:
    """Remove outputs that are kept no longer, a batch of them. Returns how many."""
    old = CachedResult.objects.filter(created_at__lt=older_than).order_by("created_at")
    return remove_results(old.values_list("pk", flat=True)[:BATCH], counted_as="expired")


def _batches(results: QuerySet[CachedResult]) -> Iterator[list[int]]:
    """Each of what is left when it is asked for; what others remove meanwhile is not in it."""
    last = 0
    while batch := list(results.filter(pk__gt=last).order_by("pk").values_list("pk", flat=True)[:BATCH]):
        last = batch[-1]
        yield batch


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheFigures:
    """How the result cache does, for all workflows or for one."""

    enabled: bool
    max_bytes: int
    """Of all workflows together."""
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
        """From 0 to 1, of the calls that a cached result might have answered; None before the first."""
        asked = self.hits + self.misses
        return self.hits / asked if asked else None


COUNTED = (
    "entries",
    "bytes",
    "hits",
    "misses",
    "refreshes",
    "stored",
    "oversized",
    "evictions",
    "expired",
    "cleared",
)


def cache_figures(workflow: int | None = None) -> CacheFigures:
    """As they stand in the database, so the same in every process. For every door, and for metrics."""
    uses = CacheUse.objects.all() if workflow is None else CacheUse.objects.filter(pk=workflow)
    sums = uses.aggregate(**{name: Sum(name, default=0) for name in COUNTED})
    policy = CachePolicy.current()
    return CacheFigures(enabled=policy.enabled, max_bytes=policy.max_bytes, **sums)


WHERE = "an administrator changes it under Result cache"


def take_cache_settings(block: CacheBlock, *, apply: bool) -> list[str]:
    """Set what nobody has changed yet; of the rest, tell what differs. Returns what there is to tell."""
    policy, notes, wanted = CachePolicy.current(), [], _wanted(block)
    for name, value in wanted.items():
        if (note := _settle(policy, name, value)) is not None:
            notes.append(note)
    if apply and notes:
        policy.save()
    if block.enabled and not policy.enabled:
        notes.append(f"The result cache is switched off for all workflows; {WHERE}.")
    if block.database_path is not None:
        notes.append("cache.databasePath has no effect: results are kept in the product's own database.")
    return notes


def _wanted(block: CacheBlock) -> dict[str, tuple[str, int]]:
    """By field, the file's key and the value."""
    wanted = {}
    if block.max_cache_size is not None:
        wanted["max_bytes"] = ("maxCacheSize", block.max_cache_size)
    if block.cleanup_interval is not None:
        wanted["cleanup_seconds"] = ("cleanupInterval", math.ceil(block.cleanup_interval))
    return wanted


def _settle(policy: CachePolicy, name: str, wanted: tuple[str, int]) -> str | None:
    key, value = wanted
    field: Any = CachePolicy._meta.get_field(name)
    unit, present = ("bytes" if name == "max_bytes" else "s"), getattr(policy, name)
    if value == present:
        return None
    if present != field.default:
        return f"cache.{key} is {value:,} {unit}, but {present:,} {unit} were set here, which hold; {WHERE}."
    try:
        field.clean(value, policy)
    except ValidationError as error:
        return f"cache.{key} is not taken over: {' '.join(error.messages)}"
    setattr(policy, name, value)
    return f"Result cache, {field.verbose_name}: {value:,} {unit} instead of {present:,} {unit}."


declared_workflows.cache_takers.append(take_cache_settings)
