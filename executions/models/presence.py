"""Which process does the work that is due, as far as the database knows."""

from django.db import models
from django.utils import timezone


class WorkerPresence(models.Model):
    """One row, renewed by the workers at their ticks, or by the one process that stands in for them."""

    ONLY = 1

    id = models.PositiveSmallIntegerField(primary_key=True, default=ONLY, editable=False)
    seen_at = models.DateTimeField(default=timezone.now, help_text="When somebody last did what was due.")
    process = models.CharField(
        max_length=64, blank=True, help_text="Of a process that stands in for the workers. Empty: a worker."
    )

    class Meta:
        constraints = [models.CheckConstraint(condition=models.Q(id=1), name="one_worker_presence")]

    def __str__(self) -> str:
        return f"{self.process or 'a worker'} at {self.seen_at}"
