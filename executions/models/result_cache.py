"""What a workflow's runs came to, kept to answer the same call again.

A workflow's row of `CacheUse` is the lock of its cached results: who stores, uses or removes one locks it
first, several in the order of their keys. So the counters are exact, and nobody waits in a circle.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import ClassVar

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import F

from catalogue.fields import JSONTextField
from catalogue.models import Recorded, Workflow
from executions.models.record import ExecutionRecord

MEGABYTE = 1024 * 1024
SHARE_OF_ONE = 10
"""The largest result that is cached is this part of the limit, so that one cannot evict all the others."""


class CachePolicy(Recorded):
    """What holds for the cached results of all workflows: one row, which an admin edits."""

    ONLY = 1

    id = models.PositiveSmallIntegerField(primary_key=True, default=ONLY, editable=False)
    enabled = models.BooleanField(
        default=True,
        help_text="Off: no result is stored and none is used; those that there are stay until they expire.",
    )
    max_bytes = models.PositiveBigIntegerField(
        "limit",
        default=100 * MEGABYTE,
        validators=[MinValueValidator(1024), MaxValueValidator(1024 * 1024 * MEGABYTE)],
        help_text="Bytes of all results together. Beyond it those go that were not used for longest; "
        "a result larger than a tenth of it is not cached.",
    )
    cleanup_seconds = models.PositiveIntegerField(
        "cleanup interval",
        default=300,
        validators=[MinValueValidator(10), MaxValueValidator(86_400)],
        help_text="Seconds between two removals of what has expired. It is not used in the meantime either.",
    )
    cleaned_at = models.DateTimeField(null=True, editable=False)

    class Meta:
        verbose_name = verbose_name_plural = "result cache"
        constraints = [models.CheckConstraint(condition=models.Q(id=1), name="one_cache_policy")]

    def __str__(self) -> str:
        return "Result cache"

    @classmethod
    def current(cls) -> CachePolicy:
        """As the admin set it; the defaults where nobody has."""
        return cls.objects.filter(pk=cls.ONLY).first() or cls()

    @property
    def largest_result(self) -> int:
        """In bytes."""
        return self.max_bytes // SHARE_OF_ONE

    def is_cleanup_due(self, now: datetime) -> bool:
        return self.cleaned_at is None or self.cleaned_at + timedelta(seconds=self.cleanup_seconds) <= now


class CacheUse(models.Model):
    """How the cached results of one workflow are used, counted since caching was first switched on for it."""

    workflow = models.OneToOneField(
        Workflow, on_delete=models.CASCADE, primary_key=True, related_name="cache_use"
    )
    entries = models.PositiveBigIntegerField("results", default=0, help_text="Cached at present.")
    bytes = models.PositiveBigIntegerField(default=0, help_text="Of the results that are cached at present.")
    hits = models.PositiveBigIntegerField(default=0, help_text="Calls answered from the cache.")
    misses = models.PositiveBigIntegerField(default=0, help_text="Calls that no result could answer.")
    refreshes = models.PositiveBigIntegerField(default=0, help_text="Calls that asked for a fresh run.")
    stored = models.PositiveBigIntegerField(default=0, help_text="Results that were put into the cache.")
    oversized = models.PositiveBigIntegerField(default=0, help_text="Results that were too large for it.")
    evictions = models.PositiveBigIntegerField(default=0, help_text="Results that made room for others.")
    expired = models.PositiveBigIntegerField(default=0, help_text="Results removed because of their age.")
    cleared = models.PositiveBigIntegerField(default=0, help_text="Results removed because somebody said so.")
    clearings = models.PositiveBigIntegerField(
        default=0, help_text="How often it was cleared: what began to run before the last time is not cached."
    )
    cleared_at = models.DateTimeField(null=True)

    class Meta:
        verbose_name = "workflow in the result cache"
        verbose_name_plural = "workflows in the result cache"

    def __str__(self) -> str:
        return f"cached results of {self.workflow}"

    @classmethod
    def add(cls, workflow_id: int, **numbers: int) -> None:
        """Count, in the transaction of what is counted and as late in it as can be."""
        changes = {name: F(name) + number for name, number in numbers.items()}
        mine = cls.objects.filter(pk=workflow_id)
        if not mine.update(**changes):
            CacheUse.objects.bulk_create([CacheUse(workflow_id=workflow_id)], ignore_conflicts=True)
            mine.update(**changes)

    @classmethod
    def lock(cls, workflows: Iterable[int]) -> list[CacheUse]:
        """Within a transaction: nobody else changes these workflows' cached results until it ends."""
        return list(cls.objects.select_for_update().filter(pk__in=set(workflows)).order_by("pk"))

    @classmethod
    def total_bytes(cls) -> int:
        return cls.objects.aggregate(total=models.Sum("bytes"))["total"] or 0


class CachedResult(models.Model):
    """One result, as long as it answers the same call. The output itself is in `CachedOutput`."""

    # Without an index of its own: cached_result_by_age begins with it.
    workflow = models.ForeignKey(
        Workflow, on_delete=models.CASCADE, related_name="cached_results", db_index=False
    )
    key = models.CharField(max_length=64, unique=True, help_text="See `cache_key`.")
    execution = models.ForeignKey(
        "executions.Execution", null=True, on_delete=models.SET_NULL, related_name="+"
    )
    size = models.PositiveBigIntegerField(help_text="Bytes of the output and its content blocks as JSON.")
    created_at = models.DateTimeField(help_text="When the run ended.")
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
        """With its output at hand, however old it is; None also where an admin has switched the cache off."""
        for found in cls.objects.raw(FIND, [key]):
            texts = vars(found)["output_text"], vars(found)["content_text"] or "null"
            output, content = map(json.loads, texts)
            found.kept = CachedOutput(result=found, output=output, content=content)
            return found
        return None

    def answers(self, now: datetime, *, seconds: int) -> bool:
        """Whether it may still be used, if results of its workflow are now to be cached for so long."""
        return now < min(self.expires_at, self.created_at + timedelta(seconds=seconds))

    def use(self, now: datetime) -> bool:
        """Count a hit, last in the transaction that records it. False: it is gone, or another now."""
        CacheUse.add(self.workflow_id, hits=1)
        same = CachedResult.objects.filter(
            pk=self.pk, execution=self.execution_id, created_at=self.created_at
        )
        return same.update(hits=F("hits") + 1, last_used_at=now) == 1

    @classmethod
    def put(
        cls, execution: ExecutionRecord, workflow: Workflow, *, size: int, output: object, content: object
    ) -> None:
        """Keep the output of an execution that has just completed; its workflow's `CacheUse` is locked.

        It takes the place of an older one.
        """
        seconds = workflow.effective_cache_seconds
        assert seconds is not None and execution.finished_at is not None, "see keep_result"
        key, ended_at = execution.cache_key, execution.finished_at
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
    """Apart from the row that every hit writes: SQLite would write a large output each time, too."""

    result = models.OneToOneField(
        CachedResult, on_delete=models.CASCADE, primary_key=True, related_name="kept"
    )
    output = JSONTextField()
    content = JSONTextField(null=True, help_text="The output as MCP content blocks, if the engine gave such.")

    def __str__(self) -> str:
        return f"output of {self.result_id}"


FIND = f"""
    SELECT result.*, kept.output AS output_text, kept.content AS content_text
    FROM {CachedResult._meta.db_table} result
    JOIN {CachedOutput._meta.db_table} kept ON kept.result_id = result.id
    WHERE result.key = %s AND NOT EXISTS (SELECT 1 FROM {CachePolicy._meta.db_table} WHERE NOT enabled)
"""  # noqa: S608 - only names
"""Written out: Django takes ten times as long to put it together as the database to answer it."""


def cache_key(workflow: Workflow, arguments_hash: str) -> str:
    """What has to be the same for one run to answer another call: the workflow, its content upstream, the
    engine with its settings, and the arguments."""
    same = [workflow.pk, workflow.content_hash, workflow.source.settings_fingerprint, arguments_hash]
    return hashlib.sha256(json.dumps(same).encode()).hexdigest()
