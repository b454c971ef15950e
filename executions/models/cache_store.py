"""What goes into the result cache, and what has to go for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.conf import settings
from django.db import DatabaseError, models, transaction
from django.db.models import Count, F, Sum
from loguru import logger

from catalogue.models import Workflow
from catalogue.schemas import find_argument_problems
from executions.models.payload import size_of
from executions.models.record import ExecutionRecord
from executions.models.result_cache import CachedResult, CachePolicy, CacheUse, cache_key

BATCH = 200
"""Results of a transaction: SQLite has one writer, which must not be kept from others for long."""
READ = (
    "cache_seconds", "upstream_cache_seconds", "content_hash", "output_schema", "metadata",
    "source__kind", "source__config", "source__encrypted_credentials",
)  # fmt: skip


def keep_result(execution: ExecutionRecord, output: Any, content: Any) -> None:
    """Cache what an execution came to, in the transaction that records it as completed.

    Only of one that began when its workflow's results were cached, if they still are and nothing of what the
    key stands for has changed since. Whatever fails here, the result itself is not lost for it.
    """
    try:
        with transaction.atomic():
            _keep(execution, output, content)
    except DatabaseError as error:
        logger.bind(execution=execution.pk).warning("The result could not be cached: {}", error)


def _keep(execution: ExecutionRecord, output: Any, content: Any) -> None:
    # Not the workflow in memory: a curator may have decided otherwise while it ran.
    known = Workflow.objects.filter(executions=execution.pk)
    workflow, policy = known.select_related("source").only(*READ).first(), CachePolicy.current()
    if workflow is None or not policy.enabled or not _is_worth_keeping(execution, workflow, output, content):
        return
    sizes = [size_of(output), *([size_of(content)] if content is not None else [])]
    if max(sizes) > settings.CATALOGUE["max_payload_bytes"]:
        return
    if (size := sum(sizes)) > policy.largest_result:
        CacheUse.add(workflow.pk, oversized=1)
        return
    if any(use.clearings == execution.cache_clearings for use in CacheUse.lock([workflow.pk])):
        CachedResult.put(execution, workflow, size=size, output=output, content=content)
        if CacheUse.total_bytes() > policy.max_bytes:
            # In a transaction of its own: it locks what belongs to other workflows.
            transaction.on_commit(evict_excess, robust=True)


def _is_worth_keeping(execution: ExecutionRecord, workflow: Workflow, output: Any, content: Any) -> bool:
    """Whether it answers the same call again: whole, as promised, and of what the workflow is now."""
    if workflow.effective_cache_seconds is None or (output is None and content is None):
        return False
    if cache_key(workflow, execution.arguments_hash) != execution.cache_key:
        return False
    promised = workflow.promised_output_schema
    return promised is None or not find_argument_problems(promised, output)


def evict_excess() -> int:
    """Remove what was not used for longest until the cache is within its limit. Returns how many went.

    Not within a transaction: each batch is one.
    """
    evicted = 0
    while (excess := CacheUse.total_bytes() - CachePolicy.current().max_bytes) > 0:
        if not (victims := _least_recently_used(excess)):
            break
        evicted += remove_results(victims, counted_as="evictions")
    return evicted


def _least_recently_used(excess: int) -> list[int]:
    """As many as have to go, at most a batch."""
    victims = []
    oldest = CachedResult.objects.order_by("last_used_at", "pk").values_list("pk", "size")
    for key, size in oldest[:BATCH]:
        victims.append(key)
        if (excess := excess - size) <= 0:
            break
    return victims


@transaction.atomic
def remove_results(keys: Iterable[int], *, counted_as: str) -> int:
    """Remove these where they are still there. Returns how many that were."""
    rows = CachedResult.objects.filter(pk__in=list(keys)).order_by()
    CacheUse.lock(rows.values_list("workflow", flat=True))
    found = rows.values_list("workflow").annotate(entries=Count("pk"), total=Sum("size"))
    counts = sorted((workflow, entries, total) for workflow, entries, total in found)
    rows.delete()
    for workflow, entries, total in counts:
        less: dict[str, models.expressions.Combinable] = {
            "entries": F("entries") - entries,
            "bytes": F("bytes") - total,
            counted_as: F(counted_as) + entries,
        }
        CacheUse.objects.filter(pk=workflow).update(**less)
    return sum(entries for _, entries, _ in counts)
