"""The timeline of an execution."""

from django.db import models
from django.utils import timezone


class ExecutionEvent(models.Model):
    """One line of an execution's timeline."""

    execution = models.ForeignKey("executions.Execution", on_delete=models.CASCADE, related_name="events")
    at = models.DateTimeField(default=timezone.now)
    kind = models.CharField(max_length=30)
    message = models.TextField(blank=True)

    class Meta:
        ordering = ("pk",)

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"
