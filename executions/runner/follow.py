"""Following a run at the engine: polls, cancels and the deadline.

A run past its timeout is cancelled and given a grace period. If it continues, it is terminated if its
source allows that, and the engine's last answer is recorded.
"""

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import F, Value
from django.db.models.functions import Coalesce
from django.utils import timezone

from catalogue.database import after_commit, run_in_database
from catalogue.discovery import list_again_after_outage
from connectors.background import CLOCKS_APART
from connectors.errors import (
    ConnectorError,
    NotFound,
    OutcomeUnknown,
    Rejected,
    Unreachable,
    Unsupported,
    error_name,
)
from connectors.network.redaction import printable
from connectors.protocol import Capabilities, Connector, RunSnapshot, RunState
from executions.engine_webhooks import stop_relying_if_missed
from executions.models import ErrorKind, Execution, InputRequest
from executions.models.execution import ExecutionEvent, ExecutionQuerySet, State
from executions.models.lifecycle import log_progress
from executions.questions import begin_sending, is_news, record_questions, record_sent
from executions.runner.engine_calls import (
    READ_SECONDS,
    ask,
    capabilities_of,
    connector_of,
    log_of,
    poll_outages,
)
from executions.runner.recording import record, record_together
from executions.runner.schedule import MAX_INTERVAL_SECONDS, learn_from_end, learnt_pause, next_try_after
from executions.wakeups import UNREPORTED_SECONDS, has_working_webhook, woken_by
from telemetry import metrics

Poll = tuple[Execution, RunSnapshot]


def record_polls(polls: Sequence[Poll], *, seconds: int) -> None:
    """Record that these runs continue and release their leases, all or none; changes since the claim are
    kept."""
    now = timezone.now()
    ours = Execution.objects.filter(
        pk__in=[execution.pk for execution, _ in polls],
        lease_holder__in={execution.lease_holder for execution, _ in polls},
        state=State.RUNNING,
    )
    with transaction.atomic():
        _record_news(ours, polls, now)
        _record_asked(polls)
        ours.update(
            # Immediately if, since the row was read, a cancellation was requested, its end reported, or a
            # question answered.
            next_attempt_at=Coalesce(
                "cancel_requested_at",
                "end_reported_at",
                "question_answered_at",
                Value(now + timedelta(seconds=seconds)),
            ),
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


def _record_news(ours: ExecutionQuerySet[Execution], polls: Sequence[Poll], now: datetime) -> None:
    changed = [
        (execution, snapshot)
        for execution, snapshot in polls
        if any(getattr(execution, name) != value for name, value in execution.shown_by(snapshot).items())
    ]
    held = set(ours.values_list("pk", flat=True)) if changed else set()
    shown: dict[str, Any] = {}
    rows, events = [], []
    for execution, snapshot in changed:
        if execution.pk not in held:
            continue
        noted_at, shown = execution.progress_noted_at, execution.shown_by(snapshot)
        if message := execution.news_in(snapshot, now):
            noted_at = now
            log_progress(execution, message)
            events.append(ExecutionEvent(execution=execution, kind="progress", message=printable(message)))
        # Not the execution itself: if the database fails the batch, its next record has the same news.
        rows.append(Execution(pk=execution.pk, progress_noted_at=noted_at, **shown))
    if rows:
        Execution.objects.bulk_update(rows, ["progress_noted_at", *shown])
        ExecutionEvent.objects.bulk_create(events)


def _record_asked(polls: Sequence[Poll]) -> None:
    """No query without questions, and one for those that are the same as before."""
    asking = [poll for poll in polls if _is_concerned(*poll)]
    keys = [execution.pk for execution, _ in asking]
    rows = {row.execution_id: row for row in InputRequest.objects.filter(execution__in=keys)} if keys else {}
    for execution, snapshot in asking:
        asked = snapshot.questions or ()
        if is_news(rows.get(execution.pk), asked):
            record_questions(execution, asked)


def _is_concerned(execution: Execution, snapshot: RunSnapshot) -> bool:
    return snapshot.questions is not None and (bool(snapshot.questions) or execution.has_asked)


MIN_WAIT_SECONDS = 2.0  # Bounds of one waiting request to an engine,
MAX_WAIT_SECONDS = 10.0  # which otherwise takes a twentieth of the run's age
FORGIVEN_NOT_FOUND = 3  # Engines that record a start late answer "not found" at first
FORGIVEN_UNREAD = {Unreachable: 6, NotFound: 3}  # The same of its result: about a minute, and 7 s
CANCELLATION_GRACE = timedelta(seconds=20)  # How long a run past its timeout may go on after the cancellation
TERMINATION_GRACE = timedelta(seconds=10)  # The same after the termination


@dataclass(frozen=True, slots=True)
class PollResult:
    snapshot: RunSnapshot
    interval: timedelta


async def follow(execution: Execution, *, waited_for: bool) -> None:
    """Polls a run; past its deadline, or on request, has it cancelled first.

    The engine's answer counts, however late: a run that completed during an outage keeps its result (A7.2,
    A7.5). Without a waiting request, recording the answer releases the lease.
    """
    is_late = execution.overdue_since is None and execution.deadline_at <= timezone.now()
    if is_late and not await record(execution.mark_overdue):
        return  # Another process has continued it.
    release, capabilities = not waited_for, Capabilities()
    try:
        async with connector_of(execution) as connector:
            capabilities = capabilities_of(connector, execution)
            refusal = await _send_its_end(connector, execution, capabilities)
            await _send_answers(connector, execution)
            if waited_for and capabilities.can_wait:
                result = await _wait(connector, execution, until=_next_turn(execution, capabilities))
            else:
                result = await _poll(connector, execution, waited_for=waited_for)
    except ConnectorError as error:
        metrics.polls.labels(error_name(error)).inc()
        await record(_record_failed_poll, execution, error, capabilities, release=release)
        return
    if isinstance(result, datetime):
        await record(execution.wait_for_next_poll, next_attempt_at=result, release=release)
        return
    if refusal:
        await run_in_database(execution.mark_cancel_refused, refusal)
    metrics.polls.labels("ok").inc()
    if execution.poll_failure and poll_outages.end(execution):
        await run_in_database(list_again_after_outage, execution.source_name)
    goes_on = (
        result.snapshot.state == RunState.RUNNING
        and execution.cancel_requested_at is None
        and execution.end_reported_at is None
        and execution.question_answered_at is None
        and timezone.now() + result.interval + timedelta(seconds=READ_SECONDS) < execution.deadline_at
    )
    if release and goes_on:
        # Whole seconds, so that many rows share one statement.
        seconds = ceil(result.interval.total_seconds())
        await record_together(record_polls, (execution, result.snapshot), seconds=seconds)
    else:
        await record(_record_snapshot, execution, result, capabilities, release=release)


async def _poll(connector: Connector, execution: Execution, *, waited_for: bool) -> PollResult | datetime:
    """Returns the engine's answer, or when it may next be asked."""
    capabilities = capabilities_of(connector, execution)
    if execution.polled_at is not None:
        # The engine's minimum applies between any two polls of a run (B2).
        not_before = execution.polled_at + timedelta(seconds=capabilities.min_poll_seconds)
        # Not if the last poll lies ahead: the clock was set back.
        if not_before > timezone.now() >= execution.polled_at - CLOCKS_APART:
            return not_before
    poll = connector.poll(execution.run)
    snapshot = await ask(poll, seconds=READ_SECONDS, otherwise=Unreachable, returns=RunSnapshot)
    return PollResult(snapshot, poll_interval(execution, capabilities, waited_for=waited_for))


async def _wait(connector: Connector, execution: Execution, *, until: datetime) -> PollResult | datetime:
    """Waits at the engine for the run's end, until progress is due or the record changes."""
    asked_at = timezone.now()
    age = (asked_at - (execution.started_at or execution.created_at)).total_seconds()
    longest = max(MIN_WAIT_SECONDS, min(age / 20, MAX_WAIT_SECONDS))
    seconds = max(0.0, min(longest, (until - asked_at).total_seconds()))
    changed = asyncio.Event()
    waiting = asyncio.create_task(
        ask(
            connector.wait(execution.run, seconds=seconds),
            seconds=seconds + READ_SECONDS,
            otherwise=Unreachable,
            returns=RunSnapshot,
        )
    )
    waiting.add_done_callback(lambda _: changed.set())
    try:
        with woken_by(execution.pk, changed, observer=True):
            await changed.wait()
    finally:
        was_heard = waiting.done()
        waiting.cancel()
    if not was_heard:
        return timezone.now()
    # A connector that does not really wait must not be called in a tight loop.
    shortest = timedelta(seconds=capabilities_of(connector, execution).min_poll_seconds)
    return PollResult(waiting.result(), max(timedelta(), shortest - (timezone.now() - asked_at)))


def poll_interval(execution: Execution, capabilities: Capabilities, *, waited_for: bool) -> timedelta:
    """Returns at least the engine's minimum (B2), and as long as earlier runs of the workflow suggest.

    If they suggest nothing and no request waits, a tenth of the run's age. Shorter for a run past its timeout
    or being cancelled.
    """
    shortest, now = capabilities.min_poll_seconds, timezone.now()
    is_to_end = _is_to_end(execution)
    if capabilities.reports_ends and not is_to_end and has_working_webhook(execution):
        shortest = max(shortest, UNREPORTED_SECONDS)
    if not is_to_end and (learnt := learnt_pause(execution, shortest=shortest)) is not None:
        return max(timedelta(seconds=shortest), learnt)
    if waited_for:
        return timedelta(seconds=shortest)
    if execution.overdue_since is not None:
        return max(timedelta(seconds=shortest), (now - execution.overdue_since) / 5)
    age = (now - (execution.started_at or execution.created_at)).total_seconds()
    relaxed = max(settings.CATALOGUE.status_check_interval, age / 10)
    return timedelta(seconds=max(shortest, min(relaxed, MAX_INTERVAL_SECONDS)))


def _is_to_end(execution: Execution) -> bool:
    return execution.overdue_since is not None or execution.cancel_requested_at is not None


async def _send_its_end(connector: Connector, execution: Execution, capabilities: Capabilities) -> str:
    """Cancels a run that is to end; if it continues, terminates it later. Returns as `_send_cancel`."""
    if execution.terminate_requested_at is not None and execution.terminate_sent_at is None:
        await _send_terminate(connector, execution)
        return ""
    if execution.cancel_sent_at is None:
        return await _send_cancel(connector, execution, capabilities) if _is_to_end(execution) else ""
    terminated_at = _terminated_at(execution, capabilities)
    if terminated_at is not None and terminated_at <= timezone.now():
        await _send_terminate(connector, execution)
    return ""


def _terminated_at(execution: Execution, capabilities: Capabilities) -> datetime | None:
    """Returns when to terminate a cancelled run that continues; None: never, or already done."""
    grace, told_at = capabilities.terminates_after_seconds, execution.cancel_sent_at
    if grace is None or told_at is None or execution.terminate_sent_at is not None:
        return None
    return told_at + timedelta(seconds=grace)


def _given_up_at(execution: Execution, capabilities: Capabilities) -> datetime | None:
    """Returns until when a run past its timeout is polled, by its detection or cancellation; None before
    that."""
    if (begun := execution.overdue_since) is None:
        return None
    begun = max(begun, execution.cancel_sent_at or begun)
    if execution.terminate_sent_at is not None:
        return max(begun, execution.terminate_sent_at) + TERMINATION_GRACE
    if (grace := capabilities.terminates_after_seconds) is not None:
        return begun + timedelta(seconds=grace) + TERMINATION_GRACE
    # A refused cancellation needs no grace period.
    return begun if execution.cancel_refusal else begun + CANCELLATION_GRACE


def _next_turn(execution: Execution, capabilities: Capabilities) -> datetime:
    given_up_at = _given_up_at(execution, capabilities) or execution.deadline_at
    terminated_at = _terminated_at(execution, capabilities)
    # A termination that failed is repeated at the next step.
    return min(given_up_at, max(terminated_at, timezone.now())) if terminated_at else given_up_at


async def _send_terminate(connector: Connector, execution: Execution) -> None:
    try:
        await ask(connector.terminate(execution.run), seconds=READ_SECONDS, otherwise=Unreachable)
    except (Rejected, NotFound, Unsupported) as error:
        told = f"The engine refused: {error.message}"
        # "Not found" may come of an earlier request whose answer was lost.
        is_refusal = execution.terminate_requested_at is not None and not isinstance(error, NotFound)
        refusal = error.message if is_refusal else execution.cancel_refusal
        await run_in_database(execution.mark_terminate_sent, told, refusal=refusal)
    except ConnectorError as error:
        log_of(execution).bind(recurring=f"{execution.pk} terminate {error.message}").warning(
            "Terminating at the engine failed, and is tried again: {}", error.message
        )
    else:
        told = "The engine was asked to terminate it."
        if execution.terminate_requested_at is None:
            told = "It continued after the cancellation request, so the engine was asked to terminate it."
        await run_in_database(execution.mark_terminate_sent, told)


def cannot_cancel(execution: Execution) -> str:
    return f"Not supported: the engine behind {execution.source_name} cannot cancel runs."


async def _send_cancel(connector: Connector, execution: Execution, capabilities: Capabilities) -> str:
    """Cancels at the engine; a poll shows the outcome. Repeated at the next step if it failed. Returns the
    engine's "not found", which is a refusal only if the poll finds the run: an earlier request, whose answer
    was lost, may have ended it."""
    try:
        await ask(connector.cancel(execution.run), seconds=READ_SECONDS, otherwise=Unreachable)
    except (Rejected, NotFound, Unsupported) as error:
        answered = error.details.get("status")
        is_missing = answered in (405, 501) or (answered == 404 and capabilities.status_is_optional)
        why = f"{cannot_cancel(execution)} {error.message}" if is_missing else error.message
        log_of(execution).warning("The engine did not cancel the run: {}", why)
        if isinstance(error, NotFound) and (_has_reported(execution) or not is_missing):
            return why
        await run_in_database(execution.mark_cancel_refused, why)
    except ConnectorError as error:
        log_of(execution).bind(recurring=f"{execution.pk} cancel {error.message}").warning(
            "Cancelling at the engine failed, and is tried again: {}", error.message
        )
    else:
        await run_in_database(execution.mark_cancel_sent)
    return ""


async def _send_answers(connector: Connector, execution: Execution) -> None:
    """A poll decides about those whose outcome is unknown. None are sent to a run that is being ended."""
    if execution.question_answered_at is None or (_is_to_end(execution) and not execution.cancel_refusal):
        return
    for key, content in (await run_in_database(begin_sending, execution)).items():
        error: ConnectorError | None = None
        try:
            await ask(
                connector.answer(execution.run, key, content), seconds=READ_SECONDS, otherwise=OutcomeUnknown
            )
        except ConnectorError as refusal:
            error = refusal
        await run_in_database(record_sent, execution, key, error)


def _record_snapshot(
    execution: Execution, result: PollResult, capabilities: Capabilities, *, release: bool
) -> None:
    snapshot, given_up_at = result.snapshot, _given_up_at(execution, capabilities)
    if snapshot.state == RunState.CANCELLED and _is_ended_by_timeout(execution):
        done = "cancelled" if execution.terminate_sent_at is None else "terminated"
        record_timeout(execution, f"and was {done} at the engine.", snapshot=snapshot)
    elif snapshot.state != RunState.RUNNING:
        last_poll = execution.polled_at or execution.started_at or execution.created_at
        unread, missed = snapshot.unread, execution.not_found
        if unread and missed < FORGIVEN_UNREAD.get(type(unread), 0) and execution.overdue_since is None:
            again = next_try_after(execution, unread, failures=missed)
            execution.record_failed_poll(
                unread.message, next_attempt_at=again, not_found=True, release=release
            )
            return
        if snapshot.state != RunState.CANCELLED:
            learn_from_end(execution, ended_at=snapshot.finished_at)
        if execution.finish_as_reported(snapshot):
            log_end(execution)
            stop_relying_if_missed(execution, ended_at=max(snapshot.finished_at or last_poll, last_poll))
    elif given_up_at is not None and given_up_at <= timezone.now():
        tried = "cancelled" if execution.terminate_sent_at is None else "ended"
        record_timeout(
            execution, f"and the engine has not {tried} it: it may still be running there.", snapshot=snapshot
        )
    else:
        planned = min(timezone.now() + result.interval, _next_turn(execution, capabilities))
        is_concerned = _is_concerned(execution, snapshot)
        with transaction.atomic() if is_concerned else nullcontext():
            if is_concerned:
                pause = record_questions(execution, snapshot.questions or ())
                planned = planned if pause is None else min(planned, timezone.now() + pause)
            execution.record_poll(snapshot, next_attempt_at=planned, release=release)


def _record_failed_poll(
    execution: Execution, error: ConnectorError, capabilities: Capabilities, *, release: bool
) -> None:
    given_up_at = _given_up_at(execution, capabilities)
    is_unknown = isinstance(error, NotFound | Unsupported)
    if given_up_at is not None and given_up_at <= timezone.now():
        record_timeout(execution, f"and the engine does not report its outcome: {error.message}")
    elif _cannot_report_runs(execution, error, capabilities):
        _record_unreported(execution, error)
    elif isinstance(error, NotFound) and execution.not_found >= FORGIVEN_NOT_FOUND:
        _record_forgotten(execution, f"The engine no longer knows the run: {error.message}")
    else:
        # An engine back from an outage is not polled as rarely as during it.
        failures = execution.not_found if is_unknown else None
        next_try = next_try_after(execution, error, failures=failures, by=given_up_at)
        execution.record_failed_poll(
            error.message, next_attempt_at=next_try, not_found=is_unknown, release=release
        )
        poll_outages.note(execution, error)


def _record_forgotten(execution: Execution, why: str) -> None:
    """Cancelled, if the engine accepted that; also if its answer to it was lost and it knew the run before:
    most likely, it forgets what it cancels. A refused cancellation ended nothing."""
    was_known = execution.cancel_sent_at is not None or _has_reported(execution)
    if not (_is_to_end(execution) and was_known) or execution.cancel_refusal:
        execution.fail(why, polled=True)
    elif _is_ended_by_timeout(execution):
        record_timeout(execution, f"and was to be cancelled. {why}")
    else:
        execution.cancel(f"It was to be cancelled. {why}", polled=True)
    log_of(execution).warning("{}", why)


def _is_ended_by_timeout(execution: Execution) -> bool:
    """Rather than by a request to cancel it."""
    overdue_since, asked_at = execution.overdue_since, execution.cancel_requested_at
    return overdue_since is not None and (asked_at is None or asked_at > overdue_since)


def _has_reported(execution: Execution) -> bool:
    return execution.polls > execution.attempts


def _cannot_report_runs(execution: Execution, error: ConnectorError, capabilities: Capabilities) -> bool:
    if isinstance(error, Unsupported) and not error.details:
        # The settings caused it, not an answer of the engine.
        return True
    is_doubtful = isinstance(error, Unsupported) or (
        isinstance(error, NotFound) and capabilities.status_is_optional
    )
    if not is_doubtful or execution.not_found < FORGIVEN_NOT_FOUND or _has_reported(execution):
        return False
    source = execution.known_workflow.source
    others = Execution.objects.filter(workflow__source=source, created_at__gt=source.configured_at)
    return not others.filter(polled_at__isnull=False, poll_failure="").exclude(pk=execution.pk).exists()


def _record_unreported(execution: Execution, error: ConnectorError) -> None:
    """Records it as unconfirmed: the run continues, and only the engine shows it."""
    why = (
        f"Status is not supported: the engine behind {execution.source_name} does not report the "
        f"status of runs ({error.message.removesuffix('.')}). It accepted the start as run "
        f"{execution.run_id}, which may still be running there. Check it there before you start it again."
    )
    if execution.lose_run(why, kind=ErrorKind.EXECUTION, polled=True):
        log_of(execution).warning("The engine does not report the status of the run: {}", error.message)


def record_timeout(execution: Execution, fate: str, snapshot: RunSnapshot | None = None) -> None:
    why = f"It took longer than its timeout of {execution.timeout_seconds} s {fate}"
    if execution.is_paused:
        why += " It was waiting for a person's answer, which counts towards the timeout."
    elif execution.is_held:
        why += " It was paused at the engine, which counts towards the timeout."
    if execution.time_out(why, snapshot=snapshot):
        log_of(execution).warning("Execution timed out: {}", why)


def log_end(execution: Execution) -> None:
    level = "WARNING" if execution.error else "INFO"
    told = (execution.state, execution.duration_ms, f": {execution.error}" if execution.error else "")
    bound = log_of(execution)
    after_commit(lambda: bound.log(level, "Execution {} after {} ms{}", *told))
