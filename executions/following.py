"""Following a run at the engine: polls, cancels and the deadline."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from math import ceil

from django.conf import settings
from django.utils import timezone

from catalogue.database import run_in_database
from connectors.errors import ConnectorError, NotFound, Rejected, Unreachable, Unsupported
from connectors.protocol import Capabilities, Connector, RunSnapshot, RunState
from executions.conversing import (
    LONGEST_INTERVAL_SECONDS,
    READ_SECONDS,
    ask,
    connector_of,
    log_of,
    next_try_after,
)
from executions.models import Execution
from executions.models.polls import Poll, record_polls
from executions.recording import record, record_together

FORGIVEN_NOT_FOUND = 3
"""Engines that record a start late answer "not found" for a moment."""


async def follow(execution: Execution, *, waited_for: bool) -> None:
    """Ask the engine about a run. Past the deadline have it cancelled first, and end it by what is seen then.

    So a run that ended in time, while nobody could ask, keeps its result (A7.2, A7.5). Of one that nobody
    waits for the lease is given back with what is recorded.
    """
    overdue, let_go = execution.deadline_at <= timezone.now(), not waited_for
    try:
        async with connector_of(execution) as connector:
            if execution.cancel_sent_at is None and (overdue or execution.cancel_requested_at is not None):
                await _send_cancel(connector, execution)
            if (not_before := _earliest_poll(execution, connector.capabilities)) > timezone.now():
                await record(execution.wait_for_next_poll, next_attempt_at=not_before, let_go=let_go)
                return
            snapshot = await ask(connector.poll(execution.run), seconds=READ_SECONDS, otherwise=Unreachable)
            interval = poll_interval(execution, connector.capabilities, waited_for=waited_for)
    except ConnectorError as error:
        await record(_record_failed_poll, execution, error, overdue=overdue, let_go=let_go)
    else:
        if let_go and not overdue and _goes_on(execution, snapshot, interval):
            # Whole seconds, so that many have the same.
            seconds = ceil(interval.total_seconds())
            await record_together(_record_polls, (execution, snapshot), seconds=seconds)
        else:
            await record(_record_snapshot, execution, snapshot, interval, overdue=overdue, let_go=let_go)


def poll_interval(execution: Execution, capabilities: Capabilities, *, waited_for: bool) -> timedelta:
    """Never below the engine's minimum (B2); for a run that nobody waits for a tenth of its age."""
    shortest = capabilities.min_poll_seconds
    if waited_for:
        return timedelta(seconds=shortest)
    age = (timezone.now() - (execution.started_at or execution.created_at)).total_seconds()
    relaxed = max(settings.CATALOGUE["status_check_interval"], age / 10)
    return timedelta(seconds=max(shortest, min(relaxed, LONGEST_INTERVAL_SECONDS)))


def _earliest_poll(execution: Execution, capabilities: Capabilities) -> datetime:
    """The engine's minimum holds between any two polls of a run, whoever makes them (B2)."""
    if execution.polled_at is None:
        return execution.created_at
    return execution.polled_at + timedelta(seconds=capabilities.min_poll_seconds)


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


def _record_snapshot(
    execution: Execution, snapshot: RunSnapshot, interval: timedelta, *, overdue: bool, let_go: bool
) -> None:
    if overdue and _ended_by_deadline(execution, snapshot):
        record_timeout(execution, _fate(execution, snapshot), snapshot)
    elif snapshot.state != RunState.RUNNING:
        record_end(execution, snapshot)
    else:
        _record_running(execution, snapshot, interval, let_go=let_go)


def _ended_by_deadline(execution: Execution, snapshot: RunSnapshot) -> bool:
    """Still running, or cancelled because we said so and nobody else did."""
    if snapshot.state == RunState.CANCELLED:
        return execution.cancel_sent_at is not None and execution.cancel_requested_at is None
    return snapshot.state == RunState.RUNNING


def _fate(execution: Execution, snapshot: RunSnapshot) -> str:
    if snapshot.state == RunState.CANCELLED:
        return "and was cancelled at the engine."
    return "and the engine has not cancelled it: it may go on there."


def _record_running(
    execution: Execution, snapshot: RunSnapshot, interval: timedelta, *, let_go: bool
) -> None:
    planned = min(timezone.now() + interval, execution.deadline_at)
    if (
        execution.record_poll(snapshot, next_attempt_at=planned, let_go=let_go)
        and snapshot.progress is not None
    ):
        log_of(execution).debug("Progress {} %: {}", snapshot.progress, snapshot.progress_message)


def _record_failed_poll(execution: Execution, error: ConnectorError, *, overdue: bool, let_go: bool) -> None:
    not_found = isinstance(error, NotFound)
    if overdue:
        record_timeout(execution, f"and the engine does not say what became of it: {error.message}")
    elif not_found and execution.not_found >= FORGIVEN_NOT_FOUND:
        execution.fail(f"The engine does not know the run any more: {error.message}")
    else:
        next_try = next_try_after(execution, error)
        execution.record_failed_poll(
            error.message, next_attempt_at=next_try, not_found=not_found, let_go=let_go
        )
        log_of(execution).warning("Poll failed, the run goes on: {}", error.message)


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
