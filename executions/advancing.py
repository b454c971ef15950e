import asyncio
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from django.db import DatabaseError, InterfaceError
from django.utils import timezone
from loguru import logger

from catalogue.database import run_in_database, run_without_connection
from executions.models import ErrorKind, Execution, State
from executions.queue import admit_soon, may_be_queued
from executions.runner.engine_calls import log_of
from executions.runner.follow import follow, record_timeout
from executions.runner.lease import LANE_ROOM, LEASE, Lane, claim_due_executions, renewing_lease
from executions.runner.schedule import next_try_after
from executions.runner.start import start, start_again
from executions.wakeups import wake
from telemetry import traces

Outcome = TypeVar("Outcome")
LAST_STEPS_SECONDS = 8.0  # Supervisors kill after 10 s
RUN_LOST = (
    "Its workflow was deleted with its source while it ran; it may still be running at the engine. "
    "Check it there before you start it again."
)
_under_way: set[asyncio.Task[Any]] = set()  # Keeps tasks alive: the loop holds them weakly


def begin(steps: Coroutine[Any, Any, Outcome]) -> asyncio.Task[Outcome]:
    """Runs in a task that outlives a cancelled request: a call cut off half-way leaves an unknown run."""
    task = asyncio.create_task(steps)
    _under_way.add(task)
    task.add_done_callback(_forget)
    return task


def _forget(task: asyncio.Task[Any]) -> None:
    """Logs an error, as the request that would have raised it may be gone."""
    _under_way.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.opt(exception=error).error("A step of an execution failed")


async def finish_steps() -> None:
    """Wait for the tasks of this loop before the loop or its connectors are closed."""
    loop = asyncio.get_running_loop()
    last = loop.time() + LAST_STEPS_SECONDS
    # Repeated, because the last step of one may begin another.
    while (left := last - loop.time()) > 0:
        mine = [task for task in _under_way.copy() if task.get_loop() is loop and not task.done()]
        if not mine:
            return
        await asyncio.wait(mine, timeout=left)


def hold_and_read(execution: Execution, *, holder: str) -> Execution:
    """Takes or renews the lease if it is free, then reads the row: one read earlier may be stale."""
    execution.hold(holder=holder, until=timezone.now() + LEASE)
    return read_execution(execution.pk)


def read_execution(execution_id: uuid.UUID) -> Execution:
    return Execution.objects.select_related("workflow__source").get(pk=execution_id)


async def advance(
    execution: Execution, *, waited_for: bool = False, on_progress: Callable[[], None] | None = None
) -> None:
    """Does the next step; with `waited_for`, polls as often as the engine allows. `on_progress` is called
    when progress during the start has been recorded."""
    step = "poll" if execution.state == State.RUNNING else "start"
    with traces.step(f"{step} {execution.tool_name}", execution=execution.pk):
        try:
            if execution.workflow is None:
                await run_in_database(_record_deleted_workflow, execution)
            elif execution.state == State.PENDING or execution.is_new:
                await start(execution, on_progress)
            elif execution.state == State.STARTING:
                await start_again(execution)
            elif execution.state == State.RUNNING:
                await follow(execution, waited_for=waited_for)
        except Exception:  # noqa: BLE001 - it delays this execution, or costs its result, but stops no other
            log_of(execution).exception("Advancing the execution failed")
            await run_in_database(_record_internal_error, execution)


async def advance_and_release(execution: Execution, *, waited_for: bool = False) -> None:
    holder = execution.lease_holder
    # Part of the request that created it, not of the one that causes this step.
    with traces.continued(traceparent=execution.traceparent, identity=execution.request_id):
        try:
            with renewing_lease(execution.pk, holder=holder):
                await advance(execution, waited_for=waited_for)
        finally:
            await end_steps(execution, holder=holder)
            if execution.is_settled:
                wake(execution.pk)


async def end_steps(execution: Execution, *, holder: str) -> None:
    """Releases the lease, and gives the slot of an execution that has ended to a queued one."""
    if execution.lease_holder == holder:
        await run_in_database(execution.release_lease, holder=holder)
    if execution.is_settled and may_be_queued.is_set():
        begin(admit_soon())  # Without waiting for the tick


def _record_internal_error(execution: Execution) -> None:
    why = "An internal error; the log has the details."
    # A STARTING execution may be running; the next step finds out.
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
            log_of(execution).warning("Its workflow was deleted: its run cannot be followed")


MAX_IN_FLIGHT = 1000  # Executions that one process advances at a time; twenty dead engines fill it
CLAIM = 200
REFILL_SECONDS = 0.05  # A claim costs milliseconds, so it waits for so long after the first step that ended


class _Drain:
    def __init__(self) -> None:
        self._in_flight: dict[asyncio.Task[None], Lane] = {}
        self._changed = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._is_stopped = self._is_refilling = False

    async def stir(self) -> None:
        self._changed.set()
        if self._running is None or self._running.done():
            self._running = begin(self._run())

    async def stop(self) -> None:
        """Claim no more until the next `stir`; running steps continue."""
        self._is_stopped = True
        self._changed.set()
        if self._running is not None:
            await asyncio.wait({self._running})
        self._is_stopped = False

    async def _run(self) -> None:
        try:
            while not self._is_stopped:
                self._changed.clear()
                if not await self._begin_due() and not self._changed.is_set():
                    return
                await self._changed.wait()
        except (DatabaseError, InterfaceError) as error:
            text = "Claiming due executions failed; the next tick tries again: {}"
            logger.bind(recurring=str(error)).warning(text, error)

    async def _begin_due(self) -> bool:
        """Returns whether due executions may remain because there was no room."""
        self._is_refilling = False
        if (room := min(CLAIM, MAX_IN_FLIGHT - len(self._in_flight))) <= 0:
            return True
        busy = Counter(self._in_flight.values())
        claimed = await run_in_database(claim_due_executions, limit=room, in_flight=busy)
        for execution in claimed:
            lane = Lane.of(execution.source_name, execution.state)
            task = begin(advance_and_release(execution))
            self._in_flight[task] = lane
            task.add_done_callback(self._end_step)
            busy[lane] += 1
        if len(claimed) == room:
            self._changed.set()
        # Compares the counts at the claim: steps may have ended since.
        return any(count >= LANE_ROOM for count in busy.values())

    def _end_step(self, task: asyncio.Task[None]) -> None:
        del self._in_flight[task]
        if not self._is_refilling:
            self._is_refilling = True
            task.get_loop().call_later(REFILL_SECONDS, self._changed.set)


_drain = _Drain()


def poll_due_executions() -> None:
    run_without_connection(_drain.stir())


async def finish_polling() -> None:
    await _drain.stop()
    await finish_steps()
