from datetime import datetime
from typing import Any

from django.db import models
from django.utils import timezone


class Notice(models.Model):
    """A message to send, or sent: at least once, by `executions.notices`."""

    created_at = models.DateTimeField(default=timezone.now)
    next_attempt_at = models.DateTimeField(default=timezone.now)
    attempts = models.PositiveIntegerField(default=0)
    sent_at = models.DateTimeField(null=True)
    given_up_at = models.DateTimeField(null=True)
    error = models.TextField(blank=True)

    class Meta:
        abstract = True

    @property
    def message_id(self) -> str:
        """The same for each attempt."""
        return f"{self._meta.model_name}-{self.pk}"

    def claim(self, *, until: datetime) -> None:
        self.next_attempt_at, self.attempts = until, self.attempts + 1
        self.save(update_fields=["next_attempt_at", "attempts"])

    def mark_sent(self) -> None:
        self.sent_at, self.error = timezone.now(), ""
        self.save(update_fields=["sent_at", "error"])

    def give_up(self) -> None:
        self.given_up_at = timezone.now()
        self.save(update_fields=["given_up_at"])

    @property
    def logged(self) -> dict[str, Any]:
        """What the log's lines about it are bound to."""
        return {}
