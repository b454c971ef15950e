"""Recording many polls in few statements: with thousands of runs, one for each would be most of the work."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import connection, transaction
from django.db.models import F, Value
from django.db.models.functions import Coalesce
from django.utils import timezone

from connectors.network.redaction import printable
from connectors.protocol import RunSnapshot
from executions.models.event import ExecutionEvent
from executions.models.execution import Execution, log_progress
from executions.models.states import State
from executions.querysets import ExecutionQuerySet

Poll = tuple[Execution, RunSnapshot]


def record_polls(polls: Sequence[Poll], *, interval: timedelta) -> None:
    """Polls that ended just now found these still running; their leases are given back.

    What somebody else has moved since it was claimed stays as it is. All or none is recorded.
    """
    now = timezone.now()
    ours = Execution.objects.filter(
        pk__in=[execution.pk for execution, _ in polls],
        lease_holder__in={execution.lease_holder for execution, _ in polls},
        state=State.RUNNING,
    )
    with transaction.atomic():
        _record_news(ours, [poll for poll in polls if _is_news(*poll)], now)
        ours.update(
            # At once if a cancel was asked for since the row was read.
            next_attempt_at=Coalesce("cancel_requested_at", Value(now + interval)),
            attempts=0,
            not_found=0,
            poll_failure="",
            polled_at=now,
            polls=F("polls") + 1,
            lease_holder="",
            lease_expires_at=None,
        )
    for execution, _ in polls:
        execution.lease_holder = ""


def _is_news(execution: Execution, snapshot: RunSnapshot) -> bool:
    """Whether the engine tells anything else than the row does."""
    shown = execution.shown_by(snapshot)
    return any(getattr(execution, name) != value for name, value in shown.items())


def _record_news(ours: ExecutionQuerySet, polls: Sequence[Poll], now: datetime) -> None:
    held = set(ours.values_list("pk", flat=True)) if polls else set()
    rows, events = [], []
    for execution, snapshot in polls:
        if execution.pk not in held:
            continue
        message = execution.news_in(snapshot, now)
        if message:
            log_progress(execution, message)
            events.append(ExecutionEvent(execution=execution, kind="progress", message=printable(message)))
        noted_at = now if message else execution.progress_noted_at
        rows.append({"id": execution.pk, "progress_noted_at": noted_at} | execution.shown_by(snapshot))
    if rows:
        _update_each(rows)
        ExecutionEvent.objects.bulk_create(events)


def _update_each(rows: Sequence[dict[str, Any]]) -> None:
    """One statement that gives each row, named by its id, values of its own.

    `bulk_update` does the same and takes several times as long over it.
    """
    known = {field.name: field for field in Execution._meta.concrete_fields}
    fields = [known[name] for name in rows[0]]
    names = [connection.ops.quote_name(str(field.column)) for field in fields]
    # Without a context PostgreSQL takes every value for a text.
    typed = connection.features.requires_casted_case_in_updates
    places = [f"CAST(%s AS {field.db_type(connection)})" if typed else "%s" for field in fields]
    values = [
        field.get_db_prep_save(value, connection)
        for row in rows
        for field, value in zip(fields, row.values(), strict=True)
    ]
    table = connection.ops.quote_name(Execution._meta.db_table)
    row = f"({', '.join(places)})"
    sql = (
        f"WITH news({', '.join(names)}) AS (VALUES {', '.join([row] * len(rows))}) "  # noqa: S608 - only names
        f"UPDATE {table} SET {', '.join(f'{name} = news.{name}' for name in names[1:])} "
        f"FROM news WHERE {table}.{names[0]} = news.{names[0]}"
    )
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
