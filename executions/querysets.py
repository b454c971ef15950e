"""Reads that repeat."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from django.db import models
from django.db.models import Q

if TYPE_CHECKING:
    from executions.callers import Caller
    from executions.models import Execution  # noqa: F401


class ExecutionQuerySet(models.QuerySet["Execution"]):
    def active(self) -> ExecutionQuerySet:
        """Those that will still change by themselves."""
        return self.filter(state__in=["pending", "starting", "running"])

    def due(self, now: datetime) -> ExecutionQuerySet:
        """Active, their time has come, and nobody holds them."""
        free = Q(lease_expires_at=None) | Q(lease_expires_at__lt=now)
        queued = Q(state="pending", admitted_at=None)
        return self.active().filter(free, ~queued, next_attempt_at__lte=now).order_by("next_attempt_at")

    def queued(self) -> ExecutionQuerySet:
        """Recorded, but the limits have had no room for them yet; the first come first."""
        return self.filter(state="pending", admitted_at=None).order_by("created_at", "pk")

    def admitted(self) -> ExecutionQuerySet:
        """Active ones that take up room within the limits."""
        return self.active().exclude(state="pending", admitted_at=None)

    def visible_to(self, caller: Caller) -> ExecutionQuerySet:
        """What the caller started; everything for a caller that sees all."""
        return self.all() if caller.sees_everything else self.filter(caller=caller.key)
