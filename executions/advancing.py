"""One step of one execution, for whoever holds its lease and so is alone at the engine."""

import asyncio
import uuid
from collections.abc import Awaitable, Coroutine
from typing import Any

from django.utils import timezone
from loguru import logger

from catalogue.database import run_in_database
from executions.limits import is_waited_for
from executions.models import ErrorKind, Execution, State
from executions.queue import give_places_soon
from executions.runner.engine_calls import log_of, next_try_after
from executions.runner.follow import follow, record_timeout
from executions.runner.lease import LEASE, keep
from executions.runner.start import send_start, start, start_again

LAST_STEPS_SECONDS = 8.0
"""Supervisors kill what has not stopped after 10."""
RUN_LOST = (
    "Its workflow was deleted with its source while it ran; it may go on at the engine. "
    "Do not start it again before somebody has looked there."
)

_under_way: set[asyncio.Task[None]] = set()
"""Keeps tasks alive until they are done; the loop alone holds them weakly."""


def begin(steps: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Run them in a task of their own, not in that of a request.

    Were a call cut off in the middle because the request was, only the engine would know what came of it.
    """
    task = asyncio.create_task(steps)
    _under_way.add(task)
    task.add_done_callback(_forget)
    return task


def _forget(task: asyncio.Task[None]) -> None:
    """Nobody may be left to hear of an error, so it is said here."""
    _under_way.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.opt(exception=error).error("What was under way broke off")


async def finish_steps(*, within: float = LAST_STEPS_SECONDS) -> None:
    """Let what is under way on this loop come to its end before the loop, or its connectors, are closed.

    A start that is cut off leaves a run that only the engine knows of.
    """
    loop = asyncio.get_running_loop()
    last = loop.time() + within
    # Again, because the last step of one may begin another.
    while (mine := _unfinished(loop)) and (left := last - loop.time()) > 0:
        await asyncio.wait(mine, timeout=left)


def _unfinished(loop: asyncio.AbstractEventLoop) -> list[asyncio.Task[None]]:
    return [task for task in _under_way.copy() if task.get_loop() is loop and not task.done()]


def hold_and_read(execution: Execution, *, holder: str) -> Execution:
    """Take or renew the lease where that is possible, then read the row; its `lease_holder` says if it was.

    In this order: what is read before the lease is held may be old by then.
    """
    execution.hold(holder=holder, until=timezone.now() + LEASE)
    return read_execution(execution.pk)


def read_execution(execution_id: uuid.UUID) -> Execution:
    return Execution.objects.select_related("workflow__source").get(pk=execution_id)


async def advance(execution: Execution, *, waited_for: bool = False) -> None:
    """Start, poll, cancel or give up: whatever is due for an execution whose row was just read.

    `waited_for` asks as often as the engine allows; otherwise the interval grows with the run's age.
    """
    await _survive(execution, _advance(execution, waited_for))


async def advance_and_let_go(execution: Execution, *, waited_for: bool = False) -> None:
    """One step under the lease that the row shows, which is given back afterwards."""
    holder = execution.lease_holder
    try:
        async with keep(execution.pk, holder=holder):
            await advance(execution, waited_for=waited_for)
    finally:
        await let_go(execution, holder=holder)
        pass_on_place(execution)


def pass_on_place(execution: Execution) -> None:
    """An execution that has ended leaves a place: who waits for it gets it now and not at the next tick."""
    if execution.is_settled and is_waited_for(execution):
        begin(give_places_soon())


async def let_go(execution: Execution, *, holder: str) -> None:
    """Give the lease back, unless what was recorded last has done so."""
    if execution.lease_holder == holder:
        await run_in_database(execution.let_go, holder=holder)


async def launch(execution: Execution, arguments: dict[str, Any]) -> None:
    """The first step of an execution that was created STARTING and ours."""
    await _survive(execution, send_start(execution, arguments))


async def _advance(execution: Execution, waited_for: bool) -> None:
    if execution.workflow is None:
        await run_in_database(_record_deleted_workflow, execution)
    elif execution.state == State.PENDING:
        await start(execution)
    elif execution.state == State.STARTING:
        await start_again(execution)
    elif execution.state == State.RUNNING:
        await follow(execution, waited_for=waited_for)


async def _survive(execution: Execution, step: Awaitable[None]) -> None:
    """A bug costs an execution a delay, and past its deadline its result; never the others their turn."""
    try:
        await step
    except Exception:  # noqa: BLE001 - said in the next line
        log_of(execution).exception("Advancing the execution failed")
        await run_in_database(_record_internal_error, execution)


def _record_internal_error(execution: Execution) -> None:
    why = "An error of ours; the log has the details."
    # One that is being started may be running: that is told by the next step.
    if execution.state != State.STARTING and execution.deadline_at <= timezone.now():
        record_timeout(execution, f"and could not be followed. {why}")
    else:
        execution.record_internal_error(why, next_attempt_at=next_try_after(execution))


def _record_deleted_workflow(execution: Execution) -> None:
    match execution.state:
        case State.PENDING:
            why = "Its workflow was deleted before it was started."
            execution.fail(why, kind=ErrorKind.CONFIGURATION)
        case State.STARTING:
            execution.mark_unconfirmed("Its workflow was deleted while it was being started.")
        case _:
            execution.lose_run(RUN_LOST)
            log_of(execution).warning("Its workflow was deleted: nobody knows what becomes of its run")
