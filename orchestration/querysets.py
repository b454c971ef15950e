"""Reads that repeat."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from django.db import models

from executions.models import ACTIVE

if TYPE_CHECKING:
    from executions.callers import Caller
    from orchestration.models import WorkflowRequest  # noqa: F401


class WorkflowRequestQuerySet(models.QuerySet["WorkflowRequest"]):
    def visible_to(self, caller: Caller) -> WorkflowRequestQuerySet:
        """What the caller asked for; everything for a caller that sees all."""
        return self.all() if caller.sees_everything else self.filter(caller=caller.key)

    def with_ended_run(self) -> WorkflowRequestQuerySet:
        """Answered before their run was over, which it is by now, or its record is gone."""
        waiting = self.filter(finished_at=None, deadline_at=None)
        return waiting.exclude(execution__state__in=ACTIVE)

    def overdue(self, now: datetime) -> WorkflowRequestQuerySet:
        """Whoever worked on them has given up, or is gone."""
        return self.filter(finished_at=None, deadline_at__lt=now)
