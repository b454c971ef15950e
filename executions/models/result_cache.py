"""Results of runs, kept to answer the same call again.

A workflow's `CacheUse` row is the lock of its cached results: each transaction that stores, uses or removes
one locks it first, several in the order of their keys. So the counters are exact and deadlocks impossible.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, ClassVar

from django.conf import settings
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import DatabaseError, connection, models, transaction
from django.db.models import Count, F, Sum
from django.db.models.expressions import RawSQL
from django.utils.translation import gettext_lazy as _
from loguru import logger

from catalogue.fields import JSONTextField
from catalogue.models import Recorded, Workflow
from catalogue.schemas import find_argument_problems
from connectors.background import CLOCKS_APART
from executions.models.execution import ExecutionRecord, size_of
from executions.models.statements import adapt_key, adapt_time, carry_out, read_row, update

MEGABYTE = 1024 * 1024
ONE_HIT_MORE: dict[str, Any] = {"hits": RawSQL("hits + 1", [])}
SHARE_OF_ONE = 10  # The largest cached result is a tenth of the limit, so that one cannot evict all others


class CachePolicy(Recorded):
    ONLY = 1
    id = models.PositiveSmallIntegerField(primary_key=True, default=ONLY, editable=False)
    enabled = models.BooleanField(
        default=True, help_text=_("Off: no result is stored or used; existing ones stay until they expire.")
    )
    max_bytes = models.PositiveBigIntegerField(
        _("limit"),
        default=100 * MEGABYTE,
        validators=[MinValueValidator(1024), MaxValueValidator(1024 * 1024 * MEGABYTE)],
        help_text=_(
            "Bytes of all results together. Beyond it the least recently used are evicted; "
            "a result larger than a tenth of it is not cached."
        ),
    )
    cleanup_seconds = models.PositiveIntegerField(
        _("cleanup interval"),
        default=300,
        validators=[MinValueValidator(10), MaxValueValidator(86_400)],
        help_text=_(
            "Seconds between two removals of expired results. Expired results are never used, "
            "even before they are removed."
        ),
    )
    cleaned_at = models.DateTimeField(null=True, editable=False)

    class Meta:
        verbose_name = verbose_name_plural = _("result cache")
        constraints = [models.CheckConstraint(condition=models.Q(id=1), name="one_cache_policy")]

    def __str__(self) -> str:
        return "Result cache"

    @classmethod
    def current(cls) -> CachePolicy:
        """Returns the defaults before the first change."""
        return cls.objects.filter(pk=cls.ONLY).first() or cls()


class CacheUse(models.Model):
    workflow = models.OneToOneField(
        Workflow, on_delete=models.CASCADE, primary_key=True, related_name="cache_use"
    )
    entries = models.PositiveBigIntegerField(_("results"), default=0, help_text=_("Cached now."))
    bytes = models.PositiveBigIntegerField(default=0, help_text=_("Of the results that are cached now."))
    hits = models.PositiveBigIntegerField(default=0, help_text=_("Calls answered from the cache."))
    misses = models.PositiveBigIntegerField(default=0, help_text=_("Calls that no result could answer."))
    refreshes = models.PositiveBigIntegerField(default=0, help_text=_("Calls that asked for a fresh run."))
    stored = models.PositiveBigIntegerField(default=0, help_text=_("Results that were stored in the cache."))
    oversized = models.PositiveBigIntegerField(
        default=0, help_text=_("Results that were too large for the cache.")
    )
    evictions = models.PositiveBigIntegerField(
        default=0, help_text=_("Results that were evicted to make room for others.")
    )
    expired = models.PositiveBigIntegerField(default=0, help_text=_("Results removed because of their age."))
    cleared = models.PositiveBigIntegerField(default=0, help_text=_("Results cleared on request."))
    clearings = models.PositiveBigIntegerField(
        default=0,
        help_text=_("How often it was cleared. Runs that began before the last time are not cached."),
    )
    cleared_at = models.DateTimeField(null=True)

    class Meta:
        verbose_name = _("workflow in the result cache")
        verbose_name_plural = _("workflows in the result cache")

    def __str__(self) -> str:
        return f"cached results of {self.workflow}"

    @classmethod
    def add(cls, workflow_id: int, **numbers: int) -> None:
        """Call it late in the transaction of the counted event."""
        changes = {name: F(name) + number for name, number in numbers.items()}
        mine = cls.objects.filter(pk=workflow_id)
        if not mine.update(**changes):
            CacheUse.objects.bulk_create([CacheUse(workflow_id=workflow_id)], ignore_conflicts=True)
            mine.update(**changes)

    @classmethod
    def lock(cls, workflows: Iterable[int]) -> list[CacheUse]:
        """Keeps other transactions from these workflows' cached results until this one ends."""
        return list(cls.objects.select_for_update().filter(pk__in=set(workflows)).order_by("pk"))

    @classmethod
    def total_bytes(cls) -> int:
        return cls.objects.aggregate(total=models.Sum("bytes"))["total"] or 0


class CachedResult(models.Model):
    # No index of its own: cached_result_by_age begins with it.
    workflow = models.ForeignKey(
        Workflow, on_delete=models.CASCADE, related_name="cached_results", db_index=False
    )
    key = models.CharField(max_length=64, unique=True, help_text=_("See `cache_key`."))
    execution = models.ForeignKey(
        "executions.Execution", null=True, on_delete=models.SET_NULL, related_name="+"
    )
    size = models.PositiveBigIntegerField(help_text=_("Bytes of the output and its content blocks as JSON."))
    created_at = models.DateTimeField(help_text=_("When the run ended."))
    expires_at = models.DateTimeField(db_index=True)
    last_used_at = models.DateTimeField(db_index=True)
    hits = models.PositiveBigIntegerField(default=0)
    objects: ClassVar[models.Manager[CachedResult]] = models.Manager()

    class Meta:
        ordering = ("-last_used_at", "-pk")
        indexes = [
            models.Index(fields=["workflow", "created_at"], name="cached_result_by_age"),
            models.Index(fields=["created_at"], name="cached_result_created"),
        ]

    def __str__(self) -> str:
        return f"result of {self.workflow} {self.pk}"

    @classmethod
    def find(cls, key: str) -> CachedResult | None:
        """Returns the result with its output, however old; None if there is none or the cache is disabled."""
        with connection.cursor() as cursor:
            cursor.execute(FIND, [key])
            row = cursor.fetchone()
        if row is None:
            return None
        *values, output, content = row
        found = read_row(cls, values)
        found.kept = CachedOutput(
            result=found, output=json.loads(output), content=json.loads(content or "null")
        )
        return found

    def answers(self, now: datetime, *, seconds: int) -> bool:
        """Returns whether it may still be used if its workflow's results are now cached for `seconds`."""
        ends_at = min(self.expires_at, self.created_at + timedelta(seconds=seconds))
        # Not one from a clock that was ahead: it would answer for that much longer.
        return self.created_at - CLOCKS_APART < now < ends_at

    def use(self, now: datetime) -> bool:
        """Count a hit, last in its transaction. Returns False if the result was removed or replaced."""
        key = [] if self.execution_id is None else [adapt_key(self.execution_id)]
        same = f"id = %s AND created_at = %s AND execution_id {'= %s' if key else 'IS NULL'}"
        # One after the other: that locks `CacheUse` first.
        carry_out(update(CacheUse, ONE_HIT_MORE, "workflow_id = %s", [self.workflow_id]))
        used = [self.pk, adapt_time(self.created_at), *key]
        return carry_out(update(CachedResult, ONE_HIT_MORE | {"last_used_at": now}, same, used)) == 1

    @classmethod
    def put(
        cls, execution: ExecutionRecord, workflow: Workflow, *, size: int, output: object, content: object
    ) -> None:
        """Store the output of a completed execution under the lock of `CacheUse`, replacing an older one."""
        seconds = workflow.effective_cache_seconds
        key, ended_at = execution.cache_key, execution.ended_at
        assert seconds is not None and ended_at is not None, "see keep_result"
        before = cls.objects.filter(key=key).first()
        kept = cls(
            pk=None if before is None else before.pk,
            workflow=workflow,
            key=key,
            execution_id=execution.pk,
            size=size,
            created_at=ended_at,
            expires_at=ended_at + timedelta(seconds=seconds),
            last_used_at=ended_at,
        )
        kept.save(force_insert=before is None, force_update=before is not None)
        CachedOutput(result=kept, output=output, content=content).save(
            force_insert=before is None, force_update=before is not None
        )
        grown = size if before is None else size - before.size
        CacheUse.add(workflow.pk, stored=1, entries=int(before is None), bytes=grown)


class CachedOutput(models.Model):
    """A table of its own: SQLite would rewrite a large output with every hit."""

    result = models.OneToOneField(
        CachedResult, on_delete=models.CASCADE, primary_key=True, related_name="kept"
    )
    output = JSONTextField()
    content = JSONTextField(
        null=True, help_text=_("The output as MCP content blocks, if the engine returned them.")
    )

    def __str__(self) -> str:
        return f"output of {self.result_id}"


FIND = f"""
    SELECT {", ".join(f"result.{field.column}" for field in CachedResult._meta.concrete_fields)},
        kept.output, kept.content
    FROM {CachedResult._meta.db_table} result
    JOIN {CachedOutput._meta.db_table} kept ON kept.result_id = result.id
    WHERE result.key = %s AND NOT EXISTS (SELECT 1 FROM {CachePolicy._meta.db_table} WHERE NOT enabled)
"""  # noqa: S608 - only names
"""Raw SQL: Django takes ten times as long to build it as the database to answer."""


def cache_key(workflow: Workflow, arguments_hash: str) -> str:
    """A hash of everything that must match: workflow, content, the engine's settings and arguments."""
    same = [workflow.pk, workflow.content_hash, workflow.source.settings_fingerprint, arguments_hash]
    return hashlib.sha256(json.dumps(same).encode()).hexdigest()


BATCH = 200  # Results per transaction: SQLite has one writer
READ = (
    "cache_seconds", "upstream_cache_seconds", "content_hash", "output_schema", "metadata",
    "source__kind", "source__config", "source__encrypted_credentials",
)  # fmt: skip


def keep_result(execution: ExecutionRecord, output: Any, content: Any) -> None:
    """Caches the result if its workflow still caches and the key is unchanged; failures are only logged."""
    try:
        with transaction.atomic():
            _keep_output(execution, output, content)
    except DatabaseError as error:
        logger.bind(execution=execution.pk).warning("The result could not be cached: {}", error)


def _keep_output(execution: ExecutionRecord, output: Any, content: Any) -> None:
    # Read again: a curator may have changed it during the run.
    known = Workflow.objects.filter(executions=execution.pk)
    workflow, policy = known.select_related("source").only(*READ).first(), CachePolicy.current()
    if workflow is None or not policy.enabled or not _is_worth_keeping(execution, workflow, output, content):
        return
    sizes = [size_of(output), *([size_of(content)] if content is not None else [])]
    if max(sizes) > settings.CATALOGUE.max_payload_bytes:
        return
    if (size := sum(sizes)) > policy.max_bytes // SHARE_OF_ONE:
        CacheUse.add(workflow.pk, oversized=1)
        return
    if any(use.clearings == execution.cache_clearings for use in CacheUse.lock([workflow.pk])):
        CachedResult.put(execution, workflow, size=size, output=output, content=content)
        if CacheUse.total_bytes() > policy.max_bytes:
            # In a transaction of its own: it locks other workflows' rows.
            transaction.on_commit(evict_excess, robust=True)


def _is_worth_keeping(execution: ExecutionRecord, workflow: Workflow, output: Any, content: Any) -> bool:
    """Returns whether it can answer the same call again: complete, valid and of the present workflow."""
    if workflow.effective_cache_seconds is None or (output is None and content is None):
        return False
    if cache_key(workflow, execution.arguments_hash) != execution.cache_key:
        return False
    promised = workflow.promised_output_schema
    return promised is None or not find_argument_problems(promised, output)


def evict_excess() -> int:
    """Evicts the least recently used results until the cache is within its limit, in several transactions."""
    evicted = 0
    while (excess := CacheUse.total_bytes() - CachePolicy.current().max_bytes) > 0:
        victims = []
        oldest = CachedResult.objects.order_by("last_used_at", "pk").values_list("pk", "size")
        for key, size in oldest[:BATCH]:
            victims.append(key)
            if (excess := excess - size) <= 0:
                break
        if not victims:
            break
        evicted += remove_results(victims, counted_as="evictions")
    return evicted


@transaction.atomic
def remove_results(keys: Iterable[int], *, counted_as: str) -> int:
    """Returns how many of them were still there."""
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
