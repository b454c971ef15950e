"""Discovery runs: one listing of one source each."""

from typing import ClassVar, Self

from django.db import models
from django.db.models.functions import Coalesce
from django.utils import timezone

from catalogue.fields import JSONTextField
from catalogue.models.source import Source


class DiscoveryRunQuerySet(models.QuerySet["DiscoveryRun"]):
    def for_lists(self) -> "DiscoveryRunQuerySet":
        return self.defer("skipped", "flagged", "changes")

    def held(self) -> "DiscoveryRunQuerySet":
        """Held listings that are the latest of their sources."""
        of_source = DiscoveryRun.objects.filter(source=models.OuterRef("source"))
        newest = of_source.filter(outcome__in=("succeeded", "held")).order_by("-pk").values("pk")[:1]
        return self.filter(outcome="held", pk=models.Subquery(newest))

    def confirmed_since_success(self, source: Source) -> "DiscoveryRunQuerySet":
        """Held listings of the source that were confirmed and that no later good listing has replaced."""
        succeeded = self.filter(source=source, outcome="succeeded").order_by("-pk").values("pk")[:1]
        later = self.filter(source=source, outcome="held").exclude(confirmed_at=None)
        return later.filter(pk__gt=Coalesce(models.Subquery(succeeded), 0))


class DiscoveryRun(models.Model):
    class Trigger(models.TextChoices):
        SCHEDULE = "schedule", "schedule"
        START = "start", "start of the product"
        MANUAL = "manual", "by hand"

    class Outcome(models.TextChoices):
        RUNNING = "running", "running"
        SUCCEEDED = "succeeded", "succeeded"
        FAILED = "failed", "failed"
        HELD = "held", "held"

    source = models.ForeignKey(Source, on_delete=models.CASCADE, related_name="discovery_runs")
    trigger = models.CharField(max_length=10, choices=Trigger.choices)
    outcome = models.CharField(max_length=10, choices=Outcome.choices, default=Outcome.RUNNING)
    started_at = models.DateTimeField(default=timezone.now)
    finished_at = models.DateTimeField(null=True)
    added = models.PositiveIntegerField(default=0)
    updated = models.PositiveIntegerField(default=0)
    unchanged = models.PositiveIntegerField(default=0)
    returned = models.PositiveIntegerField(default=0, help_text="Were missing and are back.")
    missing = models.PositiveIntegerField(default=0, help_text="Newly gone from the engine's list.")
    held = models.PositiveIntegerField(
        default=0, help_text="Changed in a way that awaits review; agents see them as they were accepted."
    )
    skipped_count = models.PositiveIntegerField(default=0)
    skipped = JSONTextField(
        default=list, help_text="Objects left out: [{position, id, name, reason}], at most 1,000."
    )
    flagged = JSONTextField(
        default=list, help_text="Workflows to look at, and why: [{id, name, reason}], at most 1,000."
    )
    changes = JSONTextField(
        default=dict,
        help_text="The workflows behind the counts: {added: [{workflow, id, name, tool_name}], ...}, at most "
        "1,000 of each. Of listings that are held again and again, the last one has them.",
    )
    vanishing_digest = models.CharField(
        max_length=64, blank=True, help_text="Of a held listing: which workflows exactly it has lost."
    )
    confirmed_at = models.DateTimeField(
        null=True, help_text="When somebody confirmed that these workflows are gone."
    )
    error = models.TextField(blank=True)

    objects: ClassVar[models.Manager["DiscoveryRun"]] = DiscoveryRunQuerySet.as_manager()

    class Meta:
        ordering = ("-started_at", "-pk")
        indexes = [models.Index(fields=["source", "-started_at"])]

    def __str__(self) -> str:
        return f"{self.source} {self.started_at:%Y-%m-%d %H:%M:%S}"

    @property
    def duration_ms(self) -> int | None:
        if self.finished_at is None:
            return None
        return round((self.finished_at - self.started_at).total_seconds() * 1000)

    @property
    def found(self) -> int:
        return self.added + self.updated + self.unchanged + self.returned + self.held

    def finish(self, *, outcome: "DiscoveryRun.Outcome", error: str = "") -> Self:
        """Write the outcome and all counts once; a run that is finished or deleted already stays as it is."""
        self.outcome, self.error, self.finished_at = outcome, error, timezone.now()
        fields = [field.attname for field in self._meta.concrete_fields if not field.primary_key]
        values = {name: getattr(self, name) for name in fields}
        DiscoveryRun.objects.filter(pk=self.pk, outcome=self.Outcome.RUNNING).update(**values)
        return self
