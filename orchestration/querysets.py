"""Reads that repeat."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from django.db import models

if TYPE_CHECKING:
    from executions.callers import Caller
    from orchestration.models import WorkflowRequest  # noqa: F401


class WorkflowRequestQuerySet(models.QuerySet["WorkflowRequest"]):
    def visible_to(self, caller: Caller) -> WorkflowRequestQuerySet:
        """What the caller asked for; everything for a caller that sees all."""
        return self.all() if caller.sees_everything else self.filter(caller=caller.key)

    def overdue(self, now: datetime) -> WorkflowRequestQuerySet:
        """Whoever worked on them has given up, or is gone."""
        return self.filter(finished_at=None, deadline_at__lt=now)
