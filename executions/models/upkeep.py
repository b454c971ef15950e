"""The settings of the retention, and which process does the workers' work."""

from datetime import timedelta

from django.core.validators import MaxValueValidator
from django.db import models
from django.utils import timezone

from catalogue.models import Recorded

LONGEST_DAYS = 36_500
SHORTEST = timedelta(minutes=5)  # The minimum, also for 0 days: a waiting caller has to get its result


def _days(
    default: int, verbose_name: str, help_text: str
) -> "models.PositiveIntegerField[int | None, int | None]":
    return models.PositiveIntegerField(
        verbose_name,
        default=default,
        null=True,
        blank=True,
        validators=[MaxValueValidator(LONGEST_DAYS)],
        help_text=f"{help_text} In days; 0 = not kept: removed within a quarter of an hour; empty = kept for "
        "ever.",
    )


class Retention(Recorded):
    """How long finished records are kept; unfinished and unconfirmed ones are never removed."""

    ONLY = 1

    id = models.PositiveSmallIntegerField(primary_key=True, default=ONLY, editable=False)
    keep_records_days = _days(
        90,
        "keep executions for",
        "After this an execution that has ended is removed with all that belongs to it: who ran what, "
        "when, and how it ended, with the engine's words for an error. Natural-language requests go at the "
        "same age.",
    )
    keep_payloads_days = _days(
        30,
        "keep payloads for",
        "After this the input, the output and the engine's raw answers are removed, and the texts of "
        "natural-language requests; the record stays and says so.",
    )
    keep_events_days = _days(
        30, "keep timelines for", "After this the timeline is removed; the execution stays and says so."
    )
    keep_discovery_runs_days = _days(
        30, "keep discovery runs for", "After this the record of a listing of a source is removed."
    )
    keep_statistics_days = _days(
        730,
        "keep statistics for",
        "After this the hourly sums behind charts, usage and REST's statistics are removed. They are small, "
        "without arguments, results or errors, and outlast the executions.",
    )

    class Meta:
        verbose_name_plural = "retention"
        constraints = [models.CheckConstraint(condition=models.Q(id=1), name="one_retention")]

    def __str__(self) -> str:
        return "Retention"

    def keeps_for(self, kind: str) -> timedelta | None:
        """Of "records", "payloads", "events", "discovery_runs" or "statistics"; None: for ever."""
        days: int | None = getattr(self, f"keep_{kind}_days")
        return None if days is None else max(timedelta(days=days), SHORTEST)

    @property
    def keeps_results_for(self) -> timedelta | None:
        """The shorter of payloads and records."""
        limits = (self.keeps_for("payloads"), self.keeps_for("records"))
        return min((limit for limit in limits if limit is not None), default=None)

    @classmethod
    def current(cls) -> "Retention":
        """The defaults before the first change."""
        return cls.objects.filter(pk=cls.ONLY).first() or cls()


class WorkerPresence(models.Model):
    """One row, renewed by workers at each tick, or by the one process that stands in for them."""

    ONLY = 1

    id = models.PositiveSmallIntegerField(primary_key=True, default=ONLY, editable=False)
    seen_at = models.DateTimeField(default=timezone.now, help_text="When the due work was last done.")
    process = models.CharField(
        max_length=64, blank=True, help_text="Of a process that stands in for the workers. Empty: a worker."
    )

    class Meta:
        constraints = [models.CheckConstraint(condition=models.Q(id=1), name="one_worker_presence")]

    def __str__(self) -> str:
        return f"{self.process or 'a worker'} at {self.seen_at}"
