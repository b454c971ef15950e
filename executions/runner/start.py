"""Starts a run exactly once: retries only idempotent starts, otherwise looks the run up."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.conf import settings
from django.db import InterfaceError, OperationalError
from django.db.models import Q
from django.utils import timezone

from catalogue.database import after_commit, run_in_database
from catalogue.models import Source, Workflow
from connectors.errors import (
    ConnectorError,
    NotFound,
    OutcomeUnknown,
    Rejected,
    Unreachable,
    backoff_seconds,
)
from connectors.protocol import (
    Capabilities,
    Connector,
    ReportProgress,
    RunCaller,
    RunSnapshot,
    RunState,
    Started,
    WorkflowRef,
    ignore_progress,
)
from executions import run_callers
from executions.approvals import begin_if_approved, lacks_approval
from executions.models import RUNS_HIDDEN, ErrorKind, Execution, FailureEffect
from executions.refusals import HELD_CHANGE
from executions.run_callers import ANSWERS, Asker, withdraw
from executions.runner.engine_calls import (
    READ_SECONDS,
    START_SECONDS,
    ask,
    capabilities_of,
    connector_of,
    log_of,
    read_capabilities,
)
from executions.runner.follow import log_end, record_timeout
from executions.runner.lease import LEASE
from executions.runner.recording import record
from executions.runner.schedule import learnt_pause, next_try_after
from executions.wakeups import woken_by

FIRST_POLL = timedelta(milliseconds=200)  # If nothing was learned. B2's interval applies between two polls
LAST_WORD_SECONDS = 2.0  # How long after the deadline a connector may take for its last answer
DATABASE_RETRY_SECONDS = 0.5
DATABASE_PATIENCE = timedelta(seconds=90)  # How long a start's answer is kept while the database is down


async def start(execution: Execution, on_progress: Callable[[], None] | None = None) -> None:
    if execution.is_new:
        # It was recorded as STARTING under our lease.
        execution.is_new = False
        await _send_start(execution, execution.payload.sent_input, on_progress=on_progress)
    elif execution.cancel_requested_at is not None:
        await run_in_database(execution.cancel, "Cancelled before it was started.")
    elif execution.deadline_at <= timezone.now():
        await run_in_database(_record_too_late, execution)
    elif off := switched_off(execution.known_workflow, execution.door):
        why = f"It was not started: {off}."
        await run_in_database(execution.fail, why, kind=ErrorKind.CONFIGURATION)
    elif execution.from_failed_step and await run_in_database(is_elsewhere, execution):
        await run_in_database(execution.fail, ELSEWHERE, kind=ErrorKind.CONFIGURATION)
    elif (arguments := await run_in_database(_begin, execution)) is not None:
        await _send_start(execution, arguments, on_progress=on_progress)


async def start_again(execution: Execution) -> None:
    """Resolves a start without a recorded answer, or leaves that to an administrator.

    The start is repeated only if that cannot make a second run, and never after a lookup.
    """
    if not (why_not := await _why_not_again(execution)):
        if (arguments := await run_in_database(_begin, execution, again=True)) is not None:
            await _send_start(execution, arguments, again=True)
    elif await can_be_looked_up(execution):
        if (found := await look_up(execution)) is not None:
            await record_start_with_retry(execution, found)
    else:
        await run_in_database(_record_unconfirmed, execution, why_not)


async def _send_start(
    execution: Execution,
    arguments: dict[str, Any],
    *,
    again: bool = False,
    on_progress: Callable[[], None] | None = None,
) -> None:
    """Sends the start of a STARTING execution under our lease.

    `again`: it may have been sent before, so that a refusal says nothing about the first attempt.
    """
    first_poll, sent_at = FIRST_POLL, timezone.now()
    try:
        async with connector_of(execution) as connector:
            workflow = replace(execution.known_workflow.ref, timeout_seconds=execution.timeout_seconds)
            capabilities = capabilities_of(connector, execution)
            if capabilities.can_wait:
                first_poll = timedelta()
            else:
                learnt = learnt_pause(execution, shortest=capabilities.min_poll_seconds)
                first_poll = FIRST_POLL if learnt is None else learnt
            started = await _send(connector, execution, arguments, workflow, capabilities, on_progress)
    except BrokenOff:
        await run_in_database(_record_broken_off, execution)
    except ConnectorError as error:
        execution.raised = error
        await _record_failure(execution, error, unsure=again or isinstance(error, OutcomeUnknown))
    else:
        await record_start_with_retry(execution, started, first_poll, sent_at=sent_at)


def _send(
    connector: Connector,
    execution: Execution,
    arguments: dict[str, Any],
    workflow: WorkflowRef,
    capabilities: Capabilities,
    on_progress: Callable[[], None] | None,
) -> Coroutine[Any, Any, Started]:
    """Returns an awaitable of the engine's answer. Raises what `ask` and `await_start` raise."""
    longest, left = START_SECONDS, max(0.0, (execution.deadline_at - timezone.now()).total_seconds())
    if not capabilities.keeps_runs:
        workflow = replace(workflow, timeout_seconds=left)
    if capabilities.cancellable_start:
        # Cancelled at the deadline, at the engine too.
        longest = left + START_SECONDS
    elif not capabilities.keeps_runs:
        # The start is the run and leaves nothing to poll: the connector itself ends it at the deadline.
        longest = left + LAST_WORD_SECONDS
    elif execution.known_workflow.effective_execution_type == Workflow.ExecutionType.SYNC:
        # The answer is the result, and the timeout bounds it.
        longest = max(START_SECONDS, left)

    if not capabilities.cancellable_start:
        call = _start_or_retry(connector, execution, arguments, workflow)
        return ask(call, seconds=longest, otherwise=OutcomeUnknown, returns=Started)

    async def start_asking(report: ReportProgress, asker: Asker) -> Started:
        more: dict[str, Any] = {}
        if capabilities.asks_caller:
            client = execution.payload.metadata.get("client") or {}
            by_card = run_callers.OF_CARDS if client.get(run_callers.CARDS) else {}
            pass_on = partial(run_callers.pass_on, execution.pk)
            more["caller"] = RunCaller(
                capabilities=by_card | (client.get(ANSWERS) or {}),
                ask=asker.ask,
                key=execution.caller,
                log_level=await run_callers.wanted_level(execution.pk),
                log=pass_on,
                progress=pass_on,
                protocol_version=client.get("protocol_version", ""),
            )
        call = connector.start(workflow, arguments, key=execution.pk, report=report, **more)
        return await ask(call, seconds=longest, otherwise=OutcomeUnknown, returns=Started)

    return await_start(execution, start_asking, on_progress)


def _start_or_retry(
    connector: Connector, execution: Execution, arguments: dict[str, Any], workflow: WorkflowRef
) -> Coroutine[Any, Any, Started]:
    if execution.from_failed_step:
        return connector.retry(execution.retried_run, key=execution.pk)
    return connector.start(workflow, arguments, key=execution.pk, report=ignore_progress)


async def record_start_with_retry(
    execution: Execution,
    started: Started,
    first_poll: timedelta = FIRST_POLL,
    *,
    sent_at: datetime | None = None,
) -> None:
    """Retries while the database is down: only this process knows the run's id."""
    give_up_at = timezone.now() + DATABASE_PATIENCE
    while True:
        try:
            await record(_record_started, execution, started, first_poll, sent_at)
        except (OperationalError, InterfaceError) as error:
            if timezone.now() > give_up_at:
                raise
            log_of(execution).warning("Recording the run {} failed, trying again: {}", started.run_id, error)
            await asyncio.sleep(DATABASE_RETRY_SECONDS)
        else:
            return


async def _record_failure(execution: Execution, error: ConnectorError, *, unsure: bool) -> None:
    again_at, too_late = next_try_after(execution, error), ""
    asked = error.retry_after if isinstance(error, Unreachable) else None
    left = max(0.0, (execution.deadline_at - timezone.now()).total_seconds())
    if asked is not None and asked >= left:
        too_late = (
            f"Nothing was done: the engine asks clients to wait {asked:,.0f} s, "
            f"and only {left:,.0f} s of the timeout are left."
        )
    attempts_left = execution.attempts < settings.CATALOGUE.retry_attempts
    worth_it = attempts_left and not too_late and isinstance(error, Unreachable | OutcomeUnknown)
    postponed: dict[str, Any] = {"next_attempt_at": again_at, "why": error.message, "answer": error.details}
    # At the deadline there is no other attempt, and the timeout would hide this error.
    if worth_it and not unsure and again_at < execution.deadline_at:
        await run_in_database(execution.postpone_start, **postponed)
        log_of(execution).warning("Start postponed: {}", error.message)
    elif worth_it and unsure and (await _known_capabilities(execution)).idempotent_start:
        await run_in_database(execution.postpone_start, **postponed, unsure=True)
        log_of(execution).warning("Start of unknown outcome, to be repeated: {}", error.message)
    elif unsure and await can_be_looked_up(execution):
        await run_in_database(_begin_to_look_up, execution, error)
    elif unsure:
        await run_in_database(_record_unconfirmed, execution, error.message, error.details)
    else:
        await run_in_database(_record_refused_start, execution, error, too_late)


async def _why_not_again(execution: Execution) -> str:
    """Returns an empty text if starting again finds the possible run, or creates one that is still wanted."""
    if execution.deadline_at <= timezone.now():
        return "its timeout passed before this could be determined."
    if execution.cancel_requested_at is not None:
        return "it was cancelled before this could be determined."
    if off := switched_off(execution.known_workflow, execution.door):
        return f"{off} before this could be determined."
    # With another address, or without idempotent starts when it was sent, it would create a second run.
    if _settings_changed_since(execution, execution.known_workflow.source):
        return "the source's settings were changed before this could be determined."
    if await run_in_database(lacks_approval, execution):
        return "it now lacks an approval."
    if not (await _known_capabilities(execution)).idempotent_start:
        return "the start was interrupted before the engine's answer was recorded."
    return "" if execution.looked_up_since is None else "the engine can no longer be asked about it."


def _settings_changed_since(execution: Execution, source: Source) -> bool:
    return source.configured_at > (execution.admitted_at or execution.created_at)


ELSEWHERE = (
    "The failed run may be at another engine, as the source's settings were changed since. Retry all of it."
)


def is_elsewhere(execution: Execution) -> bool:
    """Returns whether the run that it has, or whose failed steps it runs again, may be at another engine."""
    known = Execution.objects.filter(run_id=execution.last_run.run_id, workflow=execution.workflow_id)
    latest = known.order_by("created_at").last()
    return latest is None or _settings_changed_since(latest, execution.known_workflow.source)


def switched_off(workflow: Workflow, door: str) -> str:
    """Returns why the workflow cannot start now; else empty. The admin may also start hidden ones."""
    if not workflow.source.enabled:
        return f"source {workflow.source.name} was switched off"
    if not workflow.enabled and door not in RUNS_HIDDEN:
        return "the workflow was disabled"
    return "" if workflow.missing_since is None else "the engine no longer lists the workflow"


def _begin(execution: Execution, *, again: bool = False) -> dict[str, Any] | None:
    """Returns the arguments; None if another process was faster, it was cancelled or it lacks an approval."""
    if again:
        is_ours = execution.hold(holder=execution.lease_holder, until=timezone.now() + LEASE)
    else:
        is_ours = begin_if_approved(execution)
    return input_of(execution) if is_ours else None


def _record_started(
    execution: Execution, started: Started, first_poll_in: timedelta, sent_at: datetime | None
) -> None:
    snapshot, first_poll = started.snapshot, timezone.now() + first_poll_in
    if snapshot is not None and snapshot.state != RunState.RUNNING:
        # Engines that answer with the result also report there what they reject.
        if snapshot.state == RunState.FAILED and (held := _held_change(execution)):
            snapshot = replace(snapshot, error=f"{snapshot.error.removesuffix('.')}. {held}")
        if execution.finish_start(started, snapshot, sent_at=sent_at):
            log_end(execution)
            return
    elif execution.mark_running(started, next_attempt_at=first_poll):
        after_commit(lambda: log_of(execution).info("The engine runs it as {}", started.run_id))
        return
    by = "The answer to the start came late"
    if execution.confirm_started(started.run_id, by=by, next_attempt_at=first_poll, started=started):
        log_of(execution).warning("The unconfirmed start is confirmed: the run is {}", started.run_id)
    elif not Execution.objects.filter(pk=execution.pk, run_id=started.run_id).exists():
        execution.note(
            "started_late",
            f"The engine runs it as {started.run_id}, but the execution had already been given up.",
        )
        log_of(execution).error("The engine started {} after the execution was given up", started.run_id)


def _record_too_late(execution: Execution) -> None:
    failed = execution.events.filter(kind="start_postponed").values_list("message", flat=True).last()
    why = f" The last attempt failed: {failed}" if failed else ""
    record_timeout(execution, f"before the engine accepted it.{why}")


def _record_broken_off(execution: Execution) -> None:
    if execution.cancel_requested_at is None:
        record_timeout(execution, "and the engine was asked to cancel it.")
    elif execution.cancel("The engine was asked to cancel it while it ran."):
        log_end(execution)


def _record_unconfirmed(execution: Execution, why: str, answer: dict[str, Any] | None = None) -> None:
    execution.mark_unconfirmed(f"It is not known whether the run was started: {why}", answer=answer)
    log_of(execution).warning("Start unconfirmed: {}", why)


def _record_refused_start(execution: Execution, error: ConnectorError, too_late: str) -> None:
    why = f"{error.message.removesuffix('.')}. {too_late}" if too_late else error.message
    if isinstance(error, Rejected | NotFound) and (told := _held_change(execution)):
        why = f"{why.removesuffix('.')}. {told}"
    aftermath = None if error.depends_on_arguments else FailureEffect.NO_OTHER_ARGUMENTS
    execution.refuse_start(
        why,
        kind=ErrorKind.CONFIGURATION if error.needs_operator else ErrorKind.EXECUTION,
        answer=error.details,
        aftermath=FailureEffect.NOTHING_DONE if isinstance(error, Unreachable) else aftermath,
    )
    is_callers = isinstance(error, Rejected) and not error.needs_operator
    log_of(execution).log("INFO" if is_callers else "ERROR", "The engine did not start it: {}", why)


def _held_change(execution: Execution) -> str:
    """Empty if agents see the workflow as the engine has it."""
    held = Workflow.objects.filter(review__kind="changed", pk__in=[execution.workflow_id])  # Also if rejected
    return HELD_CHANGE if held.exists() else ""


LOOK_SECONDS = 1.0  # Between two reads of the record, and between two records of progress
BREAK_OFF_SECONDS = 5.0  # How long a connector may take to cancel at the engine


class BrokenOff(Exception):
    """The run was cancelled at the engine, and its answer is not awaited."""


async def await_start(
    execution: Execution,
    start: Callable[[ReportProgress, Asker], Coroutine[Any, Any, Started]],
    on_progress: Callable[[], None] | None,
) -> Started:
    """Awaits the answer to a cancellable start. Raises what that raises, or BrokenOff.

    A cancel request in this process takes effect immediately, in another one at the next read of the record.
    """
    heard, changed = deque[RunSnapshot](maxlen=1), asyncio.Event()  # The latest progress
    asker = Asker(changed)
    task = asyncio.create_task(start(heard.append, asker))
    task.add_done_callback(lambda _: changed.set())
    try:
        with woken_by(execution.pk, changed, observer=True):
            while not task.done():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS):
                        await changed.wait()
                changed.clear()
                if not task.done() and await _is_to_end(execution, heard, asker, on_progress):
                    task.cancel()
                    await asyncio.wait({task}, timeout=BREAK_OFF_SECONDS)
                    # The result may have arrived at the last moment.
                    if not task.done() or task.cancelled() or task.exception() is not None:
                        raise BrokenOff
        return task.result()
    finally:
        task.cancel()
        if asker.is_open:
            await run_in_database(withdraw, execution)


async def _is_to_end(
    execution: Execution, heard: deque[RunSnapshot], asker: Asker, on_progress: Callable[[], None] | None
) -> bool:
    snapshot = heard.pop() if heard else None
    try:
        execution.cancel_requested_at, asks = await run_in_database(_look, execution, snapshot, asker)
    except (OperationalError, InterfaceError) as error:
        log_of(execution).warning("Reading the record failed, trying again: {}", error)
        return False
    asker.deliver()
    if (snapshot is not None or asks) and on_progress is not None:
        on_progress()
    return execution.cancel_requested_at is not None or execution.deadline_at <= timezone.now()


def _look(execution: Execution, snapshot: RunSnapshot | None, asker: Asker) -> tuple[datetime | None, bool]:
    """Records progress. Returns when the cancellation was requested, if it was, and whether it asks anew."""
    if snapshot is not None:
        execution.record_start_progress(snapshot)
    asks = asker.look(execution)
    row = Execution.objects.filter(pk=execution.pk)
    return row.values_list("cancel_requested_at", flat=True).first(), asks


LOOKING_UP = timedelta(seconds=60)  # How long a start that the engine does not know may still be on its way
MIN_LOOKS = 3  # Consecutive empty answers that are needed: a restarted engine may not know the run yet
MAX_PAUSE_SECONDS = 30.0


async def can_be_looked_up(execution: Execution) -> bool:
    # Perhaps another engine, or another header.
    if _settings_changed_since(execution, execution.known_workflow.source):
        return False
    return (await _known_capabilities(execution)).can_find_runs


async def _known_capabilities(execution: Execution) -> Capabilities:
    """None of them if the settings cannot be used or the connector fails."""
    try:
        return await read_capabilities(execution)
    except ConnectorError:
        return Capabilities()


async def look_up(execution: Execution) -> Started | None:
    """Asks the engine once for the run; if it has none, records another attempt, a failure or that it is
    unknown."""
    try:
        async with connector_of(execution) as connector:
            if (found := await _find_run(connector, execution)) is not None:
                return found
            blind_to = await _find_run_missed(connector, execution) if _looked_enough(execution) else None
    except ConnectorError as error:
        await run_in_database(_record_unanswered_look, execution, error)
    else:
        await run_in_database(_record_empty_look, execution, blind_to)
    return None


async def _find_run(connector: Connector, execution: Execution) -> Started | None:
    if execution.from_failed_step:
        looking = connector.find_retry(execution.retried_run, key=execution.pk)
    else:
        arguments = await run_in_database(input_of, execution)
        looking = connector.find_run(execution.run.workflow, arguments, key=execution.pk)
    return await ask(looking, seconds=READ_SECONDS, otherwise=Unreachable, returns=Started | None)


async def _find_run_missed(connector: Connector, execution: Execution) -> Execution | None:
    """Returns a run that a faulty lookup misses too; one that the engine has forgotten proves nothing."""
    workflow = execution.known_workflow
    # Of the same workflow, started with the source's present settings.
    same = Execution.objects.filter(workflow=workflow, payload_pruned_at=None).exclude(run_id="")
    starts = Q(retried_run_id="")  # Retries are looked up in another way
    same = same.exclude(starts) if execution.from_failed_step else same.filter(starts)
    since = same.filter(created_at__gt=workflow.source.configured_at).order_by("-created_at")
    known = await run_in_database(since.select_related("workflow__source").first)
    if known is None or await _find_run(connector, known) is not None:
        return None
    try:
        await ask(connector.poll(known.run), seconds=READ_SECONDS, otherwise=Unreachable)
    except NotFound:
        return None
    return known


def input_of(execution: Execution) -> dict[str, Any]:
    arguments: dict[str, Any] = execution.payload.sent_input
    return arguments


def _begin_to_look_up(execution: Execution, error: ConnectorError) -> None:
    log_of(execution).warning("Start of unknown outcome, to be looked up: {}", error.message)
    execution.schedule_run_lookup(
        next_attempt_at=_next_look(execution),
        why=f"It is not known whether the run was started: {error.message}",
        answer=error.details,
    )


def _record_empty_look(execution: Execution, blind_to: Execution | None) -> None:
    why = "The engine has no run for it."
    if blind_to is not None:
        execution.mark_unconfirmed(
            "It is not known whether the run was started: the engine finds no run for it, but it does not "
            f"find run {blind_to.run_id} of execution {blind_to.pk} either, which exists. Run lookup does "
            "not seem to work; if the source has a run lookup path, check it."
        )
        log_of(execution).warning("Start unconfirmed: the lookup does not find a run that exists")
    elif not _looked_enough(execution):
        execution.schedule_run_lookup(
            next_attempt_at=_next_look(execution),
            why=f"{why} The start may still be on its way.",
            found_nothing=True,
        )
    elif execution.conclude_not_started(f"{why} The start did not happen; it is safe to call again."):
        log_of(execution).warning("The start did not happen: the engine has no run for our key")


def _record_unanswered_look(execution: Execution, error: ConnectorError) -> None:
    if _looked_long_enough(execution) and execution.deadline_at <= timezone.now():
        why = (
            f"It is not known whether the run was started, and the engine does not report it: {error.message}"
        )
        execution.mark_unconfirmed(why)
        log_of(execution).warning("Start unconfirmed: {}", error.message)
    else:
        execution.schedule_run_lookup(next_attempt_at=_next_look(execution, error), why=error.message)


def _looked_enough(execution: Execution) -> bool:
    return execution.not_found + 1 >= MIN_LOOKS and _looked_long_enough(execution)


def _looked_long_enough(execution: Execution) -> bool:
    since = execution.looked_up_since
    return since is not None and timezone.now() >= since + LOOKING_UP


def _next_look(execution: Execution, error: ConnectorError | None = None) -> datetime:
    """1, 2, 4, ... 30 s; also past the deadline, as the run may exist."""
    asked = error.retry_after if isinstance(error, Unreachable) else None
    attempts = execution.attempts if execution.looked_up_since else 0
    pause = backoff_seconds(attempts, first=1, longest=MAX_PAUSE_SECONDS)
    return timezone.now() + timedelta(seconds=max(pause, asked or 0.0))
