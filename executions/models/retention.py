"""How long records are kept: one row, which an admin edits while the product runs."""

from django.core.validators import MaxValueValidator
from django.db import models

LONGEST_DAYS = 36_500


def _days(default: int, verbose_name: str, help_text: str) -> "models.PositiveIntegerField[int, int]":
    return models.PositiveIntegerField(
        verbose_name,
        default=default,
        validators=[MaxValueValidator(LONGEST_DAYS)],
        help_text=f"{help_text} In days; 0 = kept for ever.",
    )


class Retention(models.Model):
    """Times after which finished records are removed; what is unfinished or unconfirmed is kept whole."""

    ONLY = 1

    id = models.PositiveSmallIntegerField(primary_key=True, default=ONLY, editable=False)
    keep_records_days = _days(
        90,
        "keep executions for",
        "After this an execution that has ended is removed with all that belongs to it: who ran what, "
        "when, and how it ended, with the engine's words for an error. Requests in words go at the same age.",
    )
    keep_payloads_days = _days(
        30,
        "keep payloads for",
        "After this the input, the output and the engine's raw answers are removed, and what requests in "
        "words say; the record stays and says so.",
    )
    keep_events_days = _days(
        30, "keep timelines for", "After this the timeline is removed; the execution stays and says so."
    )
    keep_discovery_runs_days = _days(
        30, "keep discovery runs for", "After this the record of a listing of a source is removed."
    )

    class Meta:
        verbose_name_plural = "retention"
        constraints = [models.CheckConstraint(condition=models.Q(id=1), name="one_retention")]

    def __str__(self) -> str:
        return "Retention"

    @classmethod
    def current(cls) -> "Retention":
        """As the admin set it; the defaults where nobody has."""
        return cls.objects.filter(pk=cls.ONLY).first() or cls()
