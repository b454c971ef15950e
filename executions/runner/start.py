"""Starting a run at the engine: once, or again where that cannot make a second run."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import InterfaceError, OperationalError, transaction
from django.utils import timezone

from catalogue.database import in_turn, run_in_database
from catalogue.models import Workflow
from connectors.errors import ConnectorError, Misconfigured, NotFound, OutcomeUnknown, Rejected, Unreachable
from connectors.protocol import Connector, ReportProgress, RunSnapshot, RunState, Started, ignore_progress
from executions.models import Aftermath, ErrorKind, Execution
from executions.refusals import HELD_CHANGE
from executions.runner.engine_calls import (
    START_SECONDS,
    ask,
    capabilities_of,
    connector_of,
    log_of,
    next_try_after,
)
from executions.runner.follow import log_end, record_timeout
from executions.runner.lease import LEASE
from executions.runner.recover import begin_to_look_up, can_be_looked_up, input_of, look_up
from executions.wakeups import woken_by

FIRST_POLL = timedelta(milliseconds=200)
"""After a start. B2's interval lies between two polls, and many runs are done by then. Engines that say by
themselves when a run ends are asked at once."""

LAST_WORD_SECONDS = 2.0
"""How long after the deadline a connector that was told of it may take to say what it knows."""
DATABASE_RETRY_SECONDS = 0.5
DATABASE_PATIENCE = timedelta(seconds=90)
"""How long the answer to a start is kept in memory while the database is away."""


async def start(execution: Execution) -> None:
    """Begin with an execution that is PENDING, unless it is too late."""
    assert execution.workflow is not None, "advance() ends executions without a workflow"
    if execution.cancel_requested_at is not None:
        await run_in_database(execution.cancel, "Cancelled before it was started.")
    elif execution.deadline_at <= timezone.now():
        await run_in_database(record_timeout, execution, "before the engine took it.")
    elif off := switched_off(execution.workflow, execution.door):
        why = f"It was not started: {off}."
        await run_in_database(execution.fail, why, kind=ErrorKind.CONFIGURATION)
    elif (arguments := await run_in_database(_begin, execution)) is not None:
        await send_start(execution, arguments)


async def start_again(execution: Execution) -> None:
    """Find out what came of a start whose answer nobody recorded, or leave that to an admin.

    It is repeated where that cannot make a second run. Once it is looked up it is never sent again: what the
    engine said of it would not hold any more.
    """
    if not (why_not := await _why_not_again(execution)):
        if (arguments := await run_in_database(_begin_again, execution)) is not None:
            await send_start(execution, arguments, again=True)
    elif await can_be_looked_up(execution):
        if (found := await look_up(execution)) is not None:
            await _keep(execution, found)
    else:
        await run_in_database(_record_unconfirmed, execution, why_not)


async def send_start(execution: Execution, arguments: dict[str, Any], *, again: bool = False) -> None:
    """Contact the engine for an execution that is STARTING and ours.

    `again`: it may have been started before, so a refusal now says nothing of what became of that.
    """
    first_poll = FIRST_POLL
    try:
        async with connector_of(execution) as connector:
            if capabilities_of(connector, execution).can_wait:
                first_poll = timedelta()
            started = await _ask_to_start(connector, execution, arguments)
    except BrokenOff:
        await run_in_database(_record_broken_off, execution)
    except ConnectorError as error:
        execution.raised = error
        await _record_failure(execution, error, unsure=again or isinstance(error, OutcomeUnknown))
    else:
        await _keep(execution, started, first_poll)


async def _ask_to_start(connector: Connector, execution: Execution, arguments: dict[str, Any]) -> Started:
    capabilities = capabilities_of(connector, execution)
    can_be_broken_off = capabilities.starts_can_be_broken_off
    workflow, longest = execution.run.workflow, _longest_start(execution, until_deadline=can_be_broken_off)
    if not (capabilities.keeps_runs or can_be_broken_off):
        # The start is the run, and nobody can be asked about it later. The connector, which knows what was
        # sent, ends it at the deadline by itself.
        left = _seconds_left(execution)
        workflow, longest = replace(workflow, timeout_seconds=left), left + LAST_WORD_SECONDS

    async def start(report: ReportProgress) -> Started:
        return await ask(
            connector.start(workflow, arguments, key=execution.pk, report=report),
            seconds=longest,
            otherwise=OutcomeUnknown,
        )

    return await hear_out(execution, start) if can_be_broken_off else await start(ignore_progress)


def _longest_start(execution: Execution, *, until_deadline: bool) -> float:
    """In seconds. Synchronous workflows answer when they are done, which their timeout bounds."""
    assert execution.workflow is not None, "advance() ends executions without a workflow"
    left = _seconds_left(execution)
    if until_deadline:
        # Whoever hears the start out breaks it off then, with a word to the engine.
        return left + START_SECONDS
    synchronous = execution.workflow.effective_execution_type == Workflow.ExecutionType.SYNC
    return max(START_SECONDS, left) if synchronous else START_SECONDS


def _seconds_left(execution: Execution) -> float:
    return max(0.0, (execution.deadline_at - timezone.now()).total_seconds())


async def _keep(execution: Execution, started: Started, first_poll: timedelta = FIRST_POLL) -> None:
    """Nobody else knows the run's id: a database that is away for a moment must not lose it."""
    give_up_at = timezone.now() + DATABASE_PATIENCE
    while True:
        try:
            await run_in_database(_record_started, execution, started, first_poll)
        except (OperationalError, InterfaceError) as error:
            if timezone.now() > give_up_at:
                raise
            log_of(execution).warning("Recording the run {} failed, trying again: {}", started.run_id, error)
            await asyncio.sleep(DATABASE_RETRY_SECONDS)
        else:
            return


async def _record_failure(execution: Execution, error: ConnectorError, *, unsure: bool) -> None:
    too_late = _why_too_late(execution, error)
    attempts_left = execution.attempts < settings.CATALOGUE["retry_attempts"]
    worth_it = attempts_left and not too_late and isinstance(error, Unreachable | OutcomeUnknown)
    postponed: dict[str, Any] = {
        "next_attempt_at": next_try_after(execution, error),
        "why": error.message,
        "answer": error.details,
    }
    if worth_it and not unsure:
        await run_in_database(execution.postpone_start, **postponed)
        log_of(execution).warning("Start postponed: {}", error.message)
    elif worth_it and await _starts_are_idempotent(execution):
        await run_in_database(execution.postpone_start_again, **postponed)
        log_of(execution).warning("Start of unknown outcome, to be repeated: {}", error.message)
    elif unsure and await can_be_looked_up(execution):
        await run_in_database(begin_to_look_up, execution, error.message)
    elif unsure:
        await run_in_database(_record_unconfirmed, execution, error.message, error.details)
    else:
        await run_in_database(_record_refused_start, execution, error, too_late)


def _why_too_late(execution: Execution, error: ConnectorError) -> str:
    """A sentence where the engine wants to be asked again only after the deadline; else empty."""
    asked, left = error.retry_after if isinstance(error, Unreachable) else None, _seconds_left(execution)
    if asked is None or asked < left:
        return ""
    return (
        f"Nothing was done: the engine asks to be left alone for {asked:,.0f} s, "
        f"and of the timeout only {left:,.0f} s are left."
    )


async def _why_not_again(execution: Execution) -> str:
    """Empty where starting it again finds the run that there may be, or makes one that is still wanted."""
    assert execution.workflow is not None, "advance() ends executions without a workflow"
    source = execution.workflow.source
    if execution.deadline_at <= timezone.now():
        return "its timeout passed before that could be found out."
    if execution.cancel_requested_at is not None:
        return "it was cancelled before that could be found out."
    if off := switched_off(execution.workflow, execution.door):
        return f"{off} before that could be found out."
    # Another address, or no promise to know our keys when it was sent: the engine would start a second run.
    if source.configured_at > (execution.admitted_at or execution.created_at):
        return "the source's settings were changed before that could be found out."
    if not await _starts_are_idempotent(execution):
        return "the start was broken off before the engine's answer was recorded."
    return "" if execution.looked_up_since is None else "the engine cannot be asked about it any more."


def switched_off(workflow: Workflow, door: str) -> str:
    """Why nothing of it is started now; empty otherwise. In the admin, hidden workflows are tried as well."""
    if not workflow.source.enabled:
        return f"source {workflow.source.name} was switched off"
    if not workflow.enabled and door != Execution.Door.ADMIN:
        return "the workflow was disabled"
    return "" if workflow.missing_since is None else "the engine does not list the workflow any more"


async def _starts_are_idempotent(execution: Execution) -> bool:
    try:
        async with connector_of(execution) as connector:
            return capabilities_of(connector, execution).idempotent_start
    except Misconfigured:
        return False


def _begin(execution: Execution) -> dict[str, Any] | None:
    """The arguments; None where somebody was faster, or cancelled it."""
    return input_of(execution) if execution.begin_start() else None


def _begin_again(execution: Execution) -> dict[str, Any] | None:
    held = execution.hold(holder=execution.lease_holder, until=timezone.now() + LEASE)
    return input_of(execution) if held else None


@in_turn
@transaction.atomic
def _record_started(execution: Execution, started: Started, first_poll_in: timedelta) -> None:
    snapshot, first_poll = started.snapshot, timezone.now() + first_poll_in
    if snapshot is not None and snapshot.state != RunState.RUNNING:
        if execution.finish_start(started, _with_held_change(execution, snapshot)):
            log_end(execution)
            return
    elif execution.mark_running(started, next_attempt_at=first_poll):
        return
    by = "The answer to the start came late"
    if execution.confirm_started(started.run_id, by=by, next_attempt_at=first_poll, started=started):
        log_of(execution).warning("The unconfirmed start is confirmed: the run is {}", started.run_id)
    elif not Execution.objects.filter(pk=execution.pk, run_id=started.run_id).exists():
        execution.note("started_late", f"The engine runs it as {started.run_id}, but it had been given up.")
        log_of(execution).error("The engine started {} after the execution was given up", started.run_id)


def _record_broken_off(execution: Execution) -> None:
    if execution.cancel_requested_at is None:
        record_timeout(execution, "and the engine was told to cancel it.")
    elif execution.cancel("The engine was told to cancel it while it ran."):
        log_end(execution)


def _record_unconfirmed(execution: Execution, why: str, answer: dict[str, Any] | None = None) -> None:
    execution.mark_unconfirmed(f"It is not known whether the run was started: {why}", answer=answer)
    log_of(execution).warning("Start unconfirmed: {}", why)


def _record_refused_start(execution: Execution, error: ConnectorError, too_late: str) -> None:
    why = f"{error.message.removesuffix('.')}. {too_late}" if too_late else error.message
    if isinstance(error, Rejected | NotFound) and (told := _held_change(execution)):
        why = f"{why.removesuffix('.')}. {told}"
    execution.refuse_start(
        why,
        kind=ErrorKind.CONFIGURATION if error.needs_operator else ErrorKind.EXECUTION,
        answer=error.details,
        aftermath=_aftermath_of(error),
    )
    log_of(execution).error("The engine did not start it: {}", why)


def _with_held_change(execution: Execution, snapshot: RunSnapshot) -> RunSnapshot:
    """Engines that answer a start with the result say there what they do not take."""
    if snapshot.state != RunState.FAILED or not (told := _held_change(execution)):
        return snapshot
    return replace(snapshot, error=f"{snapshot.error.removesuffix('.')}. {told}")


def _held_change(execution: Execution) -> str:
    """Empty where agents see the workflow as the engine has it."""
    held = Workflow.objects.with_held_changes().filter(pk__in=[execution.workflow_id])
    return HELD_CHANGE if held.exists() else ""


def _aftermath_of(error: ConnectorError) -> Aftermath | None:
    if isinstance(error, Unreachable):
        return Aftermath.NOTHING_DONE
    return None if error.depends_on_arguments else Aftermath.NO_OTHER_ARGUMENTS


LOOK_SECONDS = 1.0
"""Between two looks at the record, and so between two records of progress."""
BREAK_OFF_SECONDS = 5.0
"""How long a connector may take to tell the engine."""


class BrokenOff(Exception):
    """The engine was told to cancel the run, and its answer is waited for no longer."""


class _Heard:
    """What the engine told last, as long as nobody has recorded it."""

    def __init__(self) -> None:
        self._latest: RunSnapshot | None = None

    def report(self, snapshot: RunSnapshot) -> None:
        self._latest = snapshot

    def take(self) -> RunSnapshot | None:
        latest, self._latest = self._latest, None
        return latest


async def hear_out(
    execution: Execution, start: Callable[[ReportProgress], Coroutine[Any, Any, Started]]
) -> Started:
    """The answer to the start. Raises what that raises, or BrokenOff.

    A cancel that this process was asked for is heard of at once, others at the next look.
    """
    heard, stirred = _Heard(), asyncio.Event()
    task = asyncio.create_task(start(heard.report))
    task.add_done_callback(lambda _: stirred.set())
    try:
        with woken_by(execution.pk, stirred, looks_on=True):
            while not task.done():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS):
                        await stirred.wait()
                stirred.clear()
                if not task.done() and await _is_to_end(execution, heard):
                    return await _break_off(task)
        return task.result()
    finally:
        task.cancel()


async def _is_to_end(execution: Execution, heard: _Heard) -> bool:
    snapshot = heard.take()
    try:
        execution.cancel_requested_at = await run_in_database(_look, execution, snapshot)
    except (OperationalError, InterfaceError) as error:
        log_of(execution).warning("Looking at the record failed, trying again: {}", error)
        return False
    if snapshot is not None and execution.news is not None:
        execution.news.set()
    return execution.cancel_requested_at is not None or execution.deadline_at <= timezone.now()


def _look(execution: Execution, snapshot: RunSnapshot | None) -> datetime | None:
    """Record the progress that there is; when somebody asked to cancel it, if anybody did."""
    if snapshot is not None:
        execution.record_start_progress(snapshot)
    row = Execution.objects.filter(pk=execution.pk)
    return row.values_list("cancel_requested_at", flat=True).first()


async def _break_off(task: asyncio.Task[Started]) -> Started:
    """Its result, should it have come in the last moment."""
    task.cancel()
    await asyncio.wait({task}, timeout=BREAK_OFF_SECONDS)
    if task.done() and not task.cancelled() and task.exception() is None:
        return task.result()
    raise BrokenOff
