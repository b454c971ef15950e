"""Reads that repeat."""

from __future__ import annotations

import contextlib
import uuid
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.db import connection, models
from django.db.models import Q

if TYPE_CHECKING:
    from executions.callers import Caller
    from executions.models import Execution  # noqa: F401


ABANDONED = (
    "SELECT 1 FROM executions_execution"
    " WHERE caller = %s AND arguments_hash = %s AND awaited_until < %s LIMIT 1"
)

# From each name to the next by the index: the table has many rows and few names.
SOURCE_NAMES = (
    "WITH RECURSIVE known(name) AS ("
    " SELECT MIN(source_name) FROM executions_execution"
    " UNION ALL"
    " SELECT (SELECT MIN(source_name) FROM executions_execution WHERE source_name > known.name)"
    " FROM known WHERE known.name IS NOT NULL"
    ") SELECT name FROM known WHERE name IS NOT NULL LIMIT %s"
)


SEARCHED = 20_000
"""Executions in which a text is looked for, the newest ones: no index helps to find it."""
MOST_FOUND = 1_000
TEXTS = (
    "tool_name", "workflow_name", "upstream_id", "source_name", "caller_name", "error", "progress_message",
    "run_id", "correlation_id", "idempotency_key",
)  # fmt: skip
"""Of a record, in which a search looks; payloads are not searched."""


class _IsActive(models.Func):
    """The condition of the index on what is due, spelled out.

    SQLite uses a partial index only where the statement says, without parameters, that its condition holds,
    and without the hint it would rather sort all the active ones.
    """

    template = "%(expressions)s IN ('pending', 'starting', 'running')"
    output_field = models.BooleanField()

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, template=f"likely({self.template})", **context)


class ExecutionQuerySet(models.QuerySet["Execution"]):
    def active(self) -> ExecutionQuerySet:
        """Those that will still change by themselves."""
        return self.filter(state__in=["pending", "starting", "running"])

    def due(self, now: datetime) -> ExecutionQuerySet:
        """Active, their time has come, and nobody holds them."""
        free = Q(lease_expires_at=None) | Q(lease_expires_at__lt=now)
        queued = Q(state="pending", admitted_at=None)
        due = self.filter(_IsActive("state"), free, ~queued, next_attempt_at__lte=now)
        return due.order_by("next_attempt_at")

    def queued(self) -> ExecutionQuerySet:
        """Recorded, but the limits have had no room for them yet; the first come first."""
        # Nothing gets beyond PENDING without a place, so that the index of just these says it all.
        return self.filter(admitted_at=None, finished_at=None).order_by("created_at", "pk")

    def admitted(self) -> ExecutionQuerySet:
        """Active ones that take up room within the limits."""
        return self.active().filter(admitted_at__isnull=False, finished_at=None)

    def matching(self, text: str) -> ExecutionQuerySet:
        """The newest that have the text in a name, an id or what went wrong, in any case of letters.

        Of the newest `SEARCHED`, so that it takes no longer the more there are; whole ids of executions and
        runs are found among all. Asks at once.
        """
        anywhere = Q()
        for field in TEXTS:
            anywhere |= Q(**{f"{field}__icontains": text})
        newest = self.order_by("-created_at")
        oldest = list(newest.values_list("created_at", flat=True)[SEARCHED - 1 : SEARCHED])
        searched = newest.filter(created_at__gte=oldest[0]) if oldest else newest
        by_id = [self.filter(run_id=text)]
        with contextlib.suppress(ValueError):
            by_id.append(self.filter(pk=uuid.UUID(text)))
        found = {
            key
            for matches in (searched.filter(anywhere), *by_id)
            for key in matches.values_list("pk", flat=True)[:MOST_FOUND]
        }
        return self.filter(pk__in=found)

    def visible_to(self, caller: Caller) -> ExecutionQuerySet:
        """What the caller started; everything for a caller that sees all."""
        return self.all() if caller.sees_everything else self.filter(caller=caller.key)


def has_abandoned(*, caller: str, arguments_hash: str, now: datetime) -> bool:
    """Whether the caller went away from a call with these arguments, whatever it called.

    As SQL, because every call asks it.
    """
    moment = connection.ops.adapt_datetimefield_value(now)
    with connection.cursor() as cursor:
        cursor.execute(ABANDONED, [caller, arguments_hash, moment])
        return cursor.fetchone() is not None


def recorded_source_names(*, limit: int) -> list[str]:
    """The names of the sources of all executions, also of sources that are gone, in their order."""
    with connection.cursor() as cursor:
        cursor.execute(SOURCE_NAMES, [limit])
        return [name for (name,) in cursor.fetchall()]
