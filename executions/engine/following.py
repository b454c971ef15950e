"""Following a run at the engine: polls, cancels and the deadline."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil

from django.conf import settings
from django.utils import timezone

from catalogue.database import run_in_database
from connectors.errors import ConnectorError, NotFound, Rejected, Unreachable, Unsupported
from connectors.protocol import Capabilities, Connector, RunSnapshot, RunState
from executions.engine.conversing import (
    LONGEST_INTERVAL_SECONDS,
    READ_SECONDS,
    ask,
    capabilities_of,
    connector_of,
    log_of,
    next_try_after,
)
from executions.engine.recording import record, record_together
from executions.models import Execution
from executions.models.polls import Poll, record_polls
from executions.waking import woken_by

SHORTEST_WAIT_SECONDS = 2.0
LONGEST_WAIT_SECONDS = 10.0
"""Of one request to an engine that says by itself when a run ends; then its progress is looked at, and the
record. Within these bounds a fifth of the run's age."""
FORGIVEN_NOT_FOUND = 3
"""Engines that record a start late answer "not found" for a moment."""


@dataclass(frozen=True, slots=True)
class _Look:
    """What the engine said, and how long to leave it in peace."""

    snapshot: RunSnapshot
    interval: timedelta


async def follow(execution: Execution, *, waited_for: bool) -> None:
    """Ask the engine about a run. Past the deadline have it cancelled first, and end it by what is seen then.

    So a run that ended in time, while nobody could ask, keeps its result (A7.2, A7.5). Of one that nobody
    waits for the lease is given back with what is recorded.
    """
    overdue, let_go = execution.deadline_at <= timezone.now(), not waited_for
    try:
        async with connector_of(execution) as connector:
            capabilities = capabilities_of(connector, execution)
            await _send_its_end(connector, execution, overdue=overdue)
            if waited_for and not overdue and capabilities.can_wait:
                look = await _wait(connector, execution)
            else:
                look = await _poll(connector, execution, waited_for=waited_for)
            grace = capabilities.terminates_after_seconds
    except ConnectorError as error:
        await record(_record_failed_poll, execution, error, overdue=overdue, let_go=let_go)
        return
    if isinstance(look, datetime):
        await record(execution.wait_for_next_poll, next_attempt_at=look, let_go=let_go)
    elif let_go and not overdue and _goes_on(execution, look.snapshot, look.interval):
        # Whole seconds, so that many have the same.
        seconds = ceil(look.interval.total_seconds())
        await record_together(_record_polls, (execution, look.snapshot), seconds=seconds)
    else:
        interval = min(look.interval, _grace_left(execution, grace))
        await record(_record_snapshot, execution, look.snapshot, interval, overdue=overdue, let_go=let_go)


async def _poll(connector: Connector, execution: Execution, *, waited_for: bool) -> _Look | datetime:
    """What it said; or before when it must not be asked."""
    capabilities = capabilities_of(connector, execution)
    if (not_before := _earliest_poll(execution, capabilities)) > timezone.now():
        return not_before
    snapshot = await ask(connector.poll(execution.run), seconds=READ_SECONDS, otherwise=Unreachable)
    return _Look(snapshot, poll_interval(execution, capabilities, waited_for=waited_for))


async def _wait(connector: Connector, execution: Execution) -> _Look | datetime:
    """Have the engine say when the run ends, until its progress is to be shown or somebody stirs us.

    Who stirs us changed the record, so that it has to be read again at once.
    """
    asked_at = timezone.now()
    seconds = max(0.0, min(_longest_wait(execution), (execution.deadline_at - asked_at).total_seconds()))
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


async def _send_its_end(connector: Connector, execution: Execution, *, overdue: bool) -> None:
    """Tell the engine to cancel a run that is to end; later, if that did not help, to terminate it."""
    if execution.cancel_sent_at is None:
        if overdue or execution.cancel_requested_at is not None:
            await _send_cancel(connector, execution)
        return
    grace = capabilities_of(connector, execution).terminates_after_seconds
    if _grace_left(execution, grace) <= timedelta():
        await _send_terminate(connector, execution)


def _grace_left(execution: Execution, seconds: float | None) -> timedelta:
    """How long a run that was cancelled may still go on before it is terminated."""
    if seconds is None or execution.cancel_sent_at is None or execution.terminate_sent_at is not None:
        return timedelta.max
    return max(timedelta(), execution.cancel_sent_at + timedelta(seconds=seconds) - timezone.now())


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
