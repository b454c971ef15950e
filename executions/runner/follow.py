"""Following a run at the engine: polls, cancels and the deadline.

A run whose timeout has passed is cancelled, and polled on for the time that it may need to follow that. If it
does not, it is terminated where its source wants that, and what the engine says last is recorded.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil
from typing import Any

from django.conf import settings
from django.db import connection, transaction
from django.db.models import F, Value
from django.db.models.functions import Coalesce
from django.utils import timezone

from catalogue.database import run_in_database
from connectors.errors import ConnectorError, NotFound, Rejected, Unreachable, Unsupported
from connectors.network.redaction import printable
from connectors.protocol import Capabilities, Connector, RunSnapshot, RunState
from executions.models import ErrorKind, Execution
from executions.models.event import ExecutionEvent
from executions.models.execution import log_progress
from executions.models.states import State
from executions.querysets import ExecutionQuerySet
from executions.runner.batch import record, record_together
from executions.runner.engine_calls import (
    LONGEST_INTERVAL_SECONDS,
    READ_SECONDS,
    ask,
    capabilities_of,
    connector_of,
    log_of,
    next_try_after,
)
from executions.wakeups import woken_by

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


SHORTEST_WAIT_SECONDS = 2.0
LONGEST_WAIT_SECONDS = 10.0
"""Of one request to an engine that says by itself when a run ends; then its progress is looked at, and the
record. Within these bounds a fifth of the run's age."""
FORGIVEN_NOT_FOUND = 3
"""Engines that record a start late answer "not found" for a moment."""
CANCELLATION_GRACE = timedelta(seconds=20)
"""How long a run whose timeout has passed may go on after the engine was told to cancel it."""
TERMINATION_GRACE = timedelta(seconds=10)
"""The same after it was told to terminate it."""


@dataclass(frozen=True, slots=True)
class _Look:
    """What the engine said, and how long to leave it in peace."""

    snapshot: RunSnapshot
    interval: timedelta


async def follow(execution: Execution, *, waited_for: bool) -> None:
    """Ask the engine about a run, and past its deadline, or once somebody wants that, have it ended first.

    It is ended by what the engine says, however late: a run that completed while nobody could ask keeps its
    result (A7.2, A7.5). Of one that nobody waits for the lease is given back with what is recorded.
    """
    is_late = execution.overdue_since is None and execution.deadline_at <= timezone.now()
    if is_late and not await record(execution.mark_overdue):
        return  # Somebody else has gone on with it.
    let_go, capabilities = not waited_for, Capabilities()
    try:
        async with connector_of(execution) as connector:
            capabilities = capabilities_of(connector, execution)
            await _send_its_end(connector, execution, capabilities)
            if waited_for and capabilities.can_wait:
                look = await _wait(connector, execution, until=_next_turn(execution, capabilities))
            else:
                look = await _poll(connector, execution, waited_for=waited_for)
    except ConnectorError as error:
        await record(_record_failed_poll, execution, error, capabilities, let_go=let_go)
        return
    if isinstance(look, datetime):
        await record(execution.wait_for_next_poll, next_attempt_at=look, let_go=let_go)
    elif let_go and _goes_on(execution, look.snapshot, look.interval):
        # Whole seconds, so that many have the same.
        seconds = ceil(look.interval.total_seconds())
        await record_together(_record_polls, (execution, look.snapshot), seconds=seconds)
    else:
        await record(_record_snapshot, execution, look, capabilities, let_go=let_go)


async def _poll(connector: Connector, execution: Execution, *, waited_for: bool) -> _Look | datetime:
    """What it said; or before when it must not be asked."""
    capabilities = capabilities_of(connector, execution)
    if (not_before := _earliest_poll(execution, capabilities)) > timezone.now():
        return not_before
    snapshot = await ask(connector.poll(execution.run), seconds=READ_SECONDS, otherwise=Unreachable)
    return _Look(snapshot, poll_interval(execution, capabilities, waited_for=waited_for))


async def _wait(connector: Connector, execution: Execution, *, until: datetime) -> _Look | datetime:
    """Have the engine say when the run ends, until its progress is to be shown or somebody stirs us.

    Who stirs us changed the record, so that it has to be read again at once.
    """
    asked_at = timezone.now()
    seconds = max(0.0, min(_longest_wait(execution), (until - asked_at).total_seconds()))
    stirred = asyncio.Event()
    waiting = asyncio.create_task(
        ask(
            connector.wait(execution.run, seconds=seconds),
            seconds=seconds + READ_SECONDS,
            otherwise=Unreachable,
        )
    )
    waiting.add_done_callback(lambda _: stirred.set())
    try:
        with woken_by(execution.pk, stirred, looks_on=True):
            await stirred.wait()
    finally:
        was_heard = waiting.done()
        waiting.cancel()
    if not was_heard:
        return timezone.now()
    # A connector that does not really wait must not be asked again and again.
    shortest = timedelta(seconds=capabilities_of(connector, execution).min_poll_seconds)
    return _Look(waiting.result(), max(timedelta(), shortest - (timezone.now() - asked_at)))


def _longest_wait(execution: Execution) -> float:
    age = (timezone.now() - (execution.started_at or execution.created_at)).total_seconds()
    return max(SHORTEST_WAIT_SECONDS, min(age / 5, LONGEST_WAIT_SECONDS))


def poll_interval(execution: Execution, capabilities: Capabilities, *, waited_for: bool) -> timedelta:
    """Never below the engine's minimum (B2); for a run that nobody waits for a tenth of its age.

    A run that is to end as its timeout has passed is looked at more often.
    """
    shortest, now = capabilities.min_poll_seconds, timezone.now()
    if waited_for:
        return timedelta(seconds=shortest)
    if execution.overdue_since is not None:
        return max(timedelta(seconds=shortest), (now - execution.overdue_since) / 5)
    age = (now - (execution.started_at or execution.created_at)).total_seconds()
    relaxed = max(settings.CATALOGUE["status_check_interval"], age / 10)
    return timedelta(seconds=max(shortest, min(relaxed, LONGEST_INTERVAL_SECONDS)))


def _earliest_poll(execution: Execution, capabilities: Capabilities) -> datetime:
    """The engine's minimum holds between any two polls of a run, whoever makes them (B2)."""
    if execution.polled_at is None:
        return execution.created_at
    return execution.polled_at + timedelta(seconds=capabilities.min_poll_seconds)


async def _send_its_end(connector: Connector, execution: Execution, capabilities: Capabilities) -> None:
    """Tell the engine to cancel a run that is to end; later, if that did not help, to terminate it."""
    if execution.cancel_sent_at is None:
        if execution.overdue_since is not None or execution.cancel_requested_at is not None:
            await _send_cancel(connector, execution)
        return
    terminated_at = _terminated_at(execution, capabilities)
    if terminated_at is not None and terminated_at <= timezone.now():
        await _send_terminate(connector, execution)


def _terminated_at(execution: Execution, capabilities: Capabilities) -> datetime | None:
    """When a run that was cancelled is to be terminated if it still goes on; None: never, or that is done."""
    grace, told_at = capabilities.terminates_after_seconds, execution.cancel_sent_at
    if grace is None or told_at is None or execution.terminate_sent_at is not None:
        return None
    return told_at + timedelta(seconds=grace)


def _given_up_at(execution: Execution, capabilities: Capabilities) -> datetime | None:
    """Until when a run whose timeout has passed is asked for its end; None before that.

    Counted from when somebody noticed, or from when the engine could be told, whichever was later.
    """
    if (begun := execution.overdue_since) is None:
        return None
    begun = max(begun, execution.cancel_sent_at or begun)
    if execution.terminate_sent_at is not None:
        return max(begun, execution.terminate_sent_at) + TERMINATION_GRACE
    if (grace := capabilities.terminates_after_seconds) is not None:
        return begun + timedelta(seconds=grace) + TERMINATION_GRACE
    # What the engine does not cancel it need not be given time for.
    return begun if execution.cancel_refusal else begun + CANCELLATION_GRACE


def _next_turn(execution: Execution, capabilities: Capabilities) -> datetime:
    """When something is to be done about the run even if the engine has nothing new to say."""
    given_up_at = _given_up_at(execution, capabilities) or execution.deadline_at
    terminated_at = _terminated_at(execution, capabilities)
    # One that could not be told in time is told at the next step.
    return min(given_up_at, max(terminated_at, timezone.now())) if terminated_at else given_up_at


async def _send_terminate(connector: Connector, execution: Execution) -> None:
    try:
        await ask(connector.terminate(execution.run), seconds=READ_SECONDS, otherwise=Unreachable)
    except (Rejected, NotFound, Unsupported) as error:
        await run_in_database(execution.mark_terminate_sent, f"The engine refused: {error.message}")
    except ConnectorError as error:
        log_of(execution).warning("Terminating at the engine failed: {}", error.message)
    else:
        told = "It went on after it was to be cancelled, so the engine was told to terminate it."
        await run_in_database(execution.mark_terminate_sent, told)


async def _send_cancel(connector: Connector, execution: Execution) -> None:
    """Tell the engine; what came of it, a poll shows. One that could not be told is told at the next step."""
    try:
        await ask(connector.cancel(execution.run), seconds=READ_SECONDS, otherwise=Unreachable)
    except (Rejected, NotFound, Unsupported) as error:
        await run_in_database(execution.mark_cancel_refused, error.message)
    except ConnectorError as error:
        log_of(execution).warning("Cancelling at the engine failed: {}", error.message)
    else:
        await run_in_database(execution.mark_cancel_sent)


def _goes_on(execution: Execution, snapshot: RunSnapshot, interval: timedelta) -> bool:
    """Still running and far from its end, as most polls of long runs find it."""
    return (
        snapshot.state == RunState.RUNNING
        and execution.cancel_requested_at is None
        and timezone.now() + interval + timedelta(seconds=READ_SECONDS) < execution.deadline_at
    )


def _record_polls(polls: Sequence[Poll], *, seconds: int) -> None:
    record_polls(polls, interval=timedelta(seconds=seconds))


def _record_snapshot(execution: Execution, look: _Look, capabilities: Capabilities, *, let_go: bool) -> None:
    snapshot, given_up_at = look.snapshot, _given_up_at(execution, capabilities)
    if snapshot.state == RunState.CANCELLED and _is_our_cancellation(execution):
        done = "cancelled" if execution.terminate_sent_at is None else "terminated"
        record_timeout(execution, f"and was {done} at the engine.", snapshot=snapshot)
    elif snapshot.state != RunState.RUNNING:
        record_end(execution, snapshot)
    elif given_up_at is not None and given_up_at <= timezone.now():
        tried = "cancelled" if execution.terminate_sent_at is None else "ended"
        record_timeout(
            execution, f"and the engine has not {tried} it: it may go on there.", snapshot=snapshot
        )
    else:
        planned = min(timezone.now() + look.interval, _next_turn(execution, capabilities))
        execution.record_poll(snapshot, next_attempt_at=planned, let_go=let_go)


def _is_our_cancellation(execution: Execution) -> bool:
    """It was cancelled for its timeout, and not because somebody had asked for that before."""
    overdue_since, asked_at = execution.overdue_since, execution.cancel_requested_at
    return overdue_since is not None and (asked_at is None or asked_at > overdue_since)


def _record_failed_poll(
    execution: Execution, error: ConnectorError, capabilities: Capabilities, *, let_go: bool
) -> None:
    given_up_at = _given_up_at(execution, capabilities)
    is_unknown = isinstance(error, NotFound | Unsupported)
    if given_up_at is not None and given_up_at <= timezone.now():
        record_timeout(execution, f"and the engine does not say what became of it: {error.message}")
    elif _is_never_told(execution, error, capabilities):
        _record_untold(execution, error)
    elif isinstance(error, NotFound) and execution.not_found >= FORGIVEN_NOT_FOUND:
        execution.fail(f"The engine does not know the run any more: {error.message}")
        log_of(execution).warning("The engine does not know the run any more: {}", error.message)
    else:
        # An engine that is back from an outage is not asked as seldom as one that is away.
        failures = execution.not_found if is_unknown else None
        next_try = next_try_after(execution, error, failures=failures, by=given_up_at)
        execution.record_failed_poll(
            error.message, next_attempt_at=next_try, not_found=is_unknown, let_go=let_go
        )
        log_of(execution).warning("Poll failed, the run goes on: {}", error.message)


def _is_never_told(execution: Execution, error: ConnectorError, capabilities: Capabilities) -> bool:
    """Whether the engine has no way to ask about runs, by all that it has said so far."""
    if isinstance(error, Unsupported) and not error.details:
        # Not an answer of the engine: its settings say so.
        return True
    is_doubtful = isinstance(error, Unsupported) or (
        isinstance(error, NotFound) and capabilities.status_is_optional
    )
    return is_doubtful and execution.not_found >= FORGIVEN_NOT_FOUND and not _has_told_of_runs(execution)


def _has_told_of_runs(execution: Execution) -> bool:
    """Whether the engine has ever said how a run is, of those started with the source's present settings."""
    assert execution.workflow is not None, "advance() ends executions without a workflow"
    if execution.polls > execution.attempts:
        return True
    source = execution.workflow.source
    others = Execution.objects.filter(workflow__source=source, created_at__gt=source.configured_at)
    return others.filter(polled_at__isnull=False, poll_failure="").exclude(pk=execution.pk).exists()


def _record_untold(execution: Execution, error: ConnectorError) -> None:
    """Not failed: the run goes on, and only the engine's own people can see how it ends."""
    why = (
        f"Status is not supported: the engine behind {execution.source_name} does not tell how a run is "
        f"({error.message.removesuffix('.')}). It took the start as run {execution.run_id}, which may go on "
        "there. Do not start it again before somebody has looked."
    )
    if execution.lose_run(why, kind=ErrorKind.EXECUTION):
        log_of(execution).warning("The engine does not tell how the run is: {}", error.message)


def record_timeout(execution: Execution, fate: str, snapshot: RunSnapshot | None = None) -> None:
    why = f"It took longer than its timeout of {execution.timeout_seconds} s {fate}"
    if execution.time_out(why, snapshot=snapshot):
        log_of(execution).warning("Execution timed out: {}", why)


def record_end(execution: Execution, snapshot: RunSnapshot) -> None:
    if execution.finish_as_reported(snapshot):
        log_end(execution)


def log_end(execution: Execution) -> None:
    level = "INFO" if execution.succeeded else "WARNING"
    log_of(execution).log(
        level,
        "Execution {} after {} ms{}",
        execution.state,
        execution.duration_ms,
        f": {execution.error}" if execution.error else "",
    )
