import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from functools import partial

from django.conf import settings
from django.db import InterfaceError, OperationalError
from django.utils import timezone
from loguru import logger

from access.callers import Caller
from catalogue.database import DatabaseOutage, run_in_database
from catalogue.models import Workflow
from executions import advancing
from executions.change_feed import watching
from executions.interacting import CancelOutcome, cancel_execution
from executions.models import ACTIVE, OPEN, Execution, State
from executions.models.lifecycle import StartRequest
from executions.refusals import StartRefused
from executions.runner.follow import CANCELLATION_GRACE
from executions.runner.lease import LEASE, renewing_lease
from executions.runner.recording import record_prepared
from executions.starting import prepare_execution
from executions.wakeups import has_other_waiters, is_too_old, waits, wake, woken_by

ProgressListener = Callable[[Execution], Awaitable[None]]
LOOK_AGAIN_SECONDS = 1.0  # How often a waiting request reads the row, which others may have changed
GRACE_SECONDS = CANCELLATION_GRACE.total_seconds() + 5.0  # For a patient caller, beyond the run's timeout
QUEUE_NEWS_SECONDS = 10.0  # Interval of progress for a client in the queue; many time out after 60 s
NOTING_SECONDS = 1.0  # How long a cancelled request stays to record that it ended
CALLER_GONE = "The caller's connection closed before it received an answer."


async def start_and_wait(
    request: StartRequest,
    *,
    seconds: float | None = None,
    patient: bool = False,
    set_wait: float | None = None,
    on_progress: ProgressListener | None = None,
) -> Execution:
    """Starts a workflow and waits until it is settled or asks its caller for input, at most `seconds`.

    Without `seconds`, as long as the workflow's settings say, up to `set_wait`, which replaces the product's
    default and is the inline wait of the caller's token or toolset; until the run's deadline for a `patient`
    caller, whose client waits as long as progress arrives. The execution may still be active; a worker then
    follows it. Cancelling the call ends the wait and applies the workflow's `on_disconnect`. Raises what
    `create_execution` raises.
    """
    patient = patient and set_wait is None
    driver = ExecutionDriver(request)
    answered = False
    try:
        execution = await driver.created()
        limit = inline_wait(execution, patient=patient, set_wait=set_wait) if seconds is None else seconds
        # Admission from the queue restarts the time.
        restarts = patient and seconds is None and execution.is_queued
        with contextlib.suppress(TimeoutError):
            async with waits.at_most(limit) as timeout:
                while await driver.has_news():
                    execution = driver.execution
                    if execution.is_asking:
                        break
                    if restarts and not execution.is_queued:
                        waits.restart(timeout, limit)
                        restarts = False
                    is_under_way = execution.polled_at is not None or execution.is_queued
                    if on_progress is not None and is_under_way and not execution.is_settled:
                        await on_progress(execution)
        execution = driver.execution
        execution.is_reattached = execution.pk != request.id and not request.idempotency_key
        answered = True
        return execution
    finally:
        await driver.release(answered=answered)


def inline_wait(execution: Execution, *, patient: bool, set_wait: float | None) -> float | None:
    """Returns seconds; None: without a limit. Takes arguments as `start_and_wait` does."""
    workflow = execution.workflow
    is_sync = workflow is not None and workflow.effective_execution_type == Workflow.ExecutionType.SYNC
    # A fast run says nothing about how long people take to decide
    if is_sync and execution.state != State.UNAPPROVED:
        return None if set_wait is None else float(set_wait)
    if patient or (workflow is None and set_wait is None):
        return float(execution.timeout_seconds) + GRACE_SECONDS
    decided = None if workflow is None else workflow.inline_wait_seconds
    known = [float(limit) for limit in (decided, set_wait) if limit is not None]
    return min(known, default=float(settings.CATALOGUE.inline_wait))


class ExecutionDriver:
    """Creates or finds one execution and drives it under its lease, in a task that outlives the request.

    The request may be cancelled at any time:
    - before the record is written: the thread that writes it cancels it, if the workflow says so;
    - during a step: the task finishes the step, releases the lease and ends;
    - while another request waits for the same execution: the run then goes on.
    The task and the request share one event loop; `_record` is called in a database thread.
    """

    execution: Execution  # Once `created` has returned

    def __init__(self, request: StartRequest) -> None:
        self._request = request
        self._holder = uuid.uuid4().hex
        self._failure: BaseException | None = None  # Of the creation
        self._created = asyncio.Event()
        self._news = asyncio.Event()  # For the request
        self._changed = asyncio.Event()  # For the task
        self._owns = self._is_released = self._is_abandoned = self._was_changed = False
        self._begun_at = timezone.now()
        self._task = advancing.begin(self._run())

    async def created(self) -> Execution:
        """Raises what creating it raises."""
        await self._created.wait()
        if self._failure is not None:
            raise self._failure
        return self.execution

    async def has_news(self) -> bool:
        """Waits for a change. Returns False once the task has ended."""
        if self._task.done():
            return False
        await self._news.wait()
        self._news.clear()
        return True

    async def release(self, *, answered: bool) -> None:
        """Ends the wait: the step under way finishes, then the lease is released."""
        self._is_released, self._is_abandoned = True, not answered
        self._changed.set()
        if answered:
            # The transition that settles it records the answer too, unless the heartbeat may have failed for
            # too long.
            is_noted = self.execution.awaited_here and self.execution.state not in OPEN
            if self.execution.cached_at is not None or (is_noted and timezone.now() < self._begun_at + LEASE):
                return
        concluding = advancing.begin(self._conclude(answered=answered))
        if not answered:
            # A closing loop lets cancelled tasks finish, but starts no new ones.
            await asyncio.wait({concluding}, timeout=NOTING_SECONDS)

    async def _run(self) -> None:
        try:
            request, holder = self._request, self._holder
            create = record_prepared(lambda: partial(self._record, prepare_execution(request, holder)))
            self.execution = created = await create
            # A request that repeats a key only watches: the first one answers.
            self._owns = not created.is_repeated
            # Approval takes long: a call that waits for it is answered immediately.
            created.awaited_here = self._owns and created.state in ACTIVE
        except BaseException as error:
            self._failure = error
            if not isinstance(error, Exception):
                raise
            if self._is_abandoned and not isinstance(error, StartRefused):
                logger.opt(exception=error).error("Creating an execution failed, and its caller is gone")
            return
        finally:
            self._created.set()
        if created.state not in ACTIVE:
            return
        self._outage = DatabaseOutage("Following the execution", execution=created.pk)
        try:
            with (
                woken_by(created.pk, self._changed),
                renewing_lease(created.pk, holder=self._holder, awaited=self._owns),
            ):
                try:
                    if created.lease_holder == self._holder:
                        await advancing.advance(created, on_progress=self._news.set)
                    await self._follow()
                finally:
                    await advancing.end_steps(self.execution, holder=self._holder)
        finally:
            self._news.set()
            wake(created.pk)

    def _record(self, write: Callable[[], Execution]) -> Execution:
        execution = write()
        is_ours = execution.lease_holder == self._holder
        if is_ours and self._is_abandoned and _is_cancelled_on_disconnect(execution):
            execution.cancel(f"{CALLER_GONE} It was not started.")
        return execution

    async def _follow(self) -> None:
        try:
            if self.execution.is_queued:
                await self._queue_up()
            # Not one that came to need an approval in the queue
            while self.execution.state in ACTIVE and await self._is_waited_for():
                try:
                    self.execution = await self._take_step(self.execution)
                    self._news.set()
                    self._outage.end()
                except (OperationalError, InterfaceError) as error:
                    await self._wait_for_database(error)
        except Exception:  # noqa: BLE001 - said in the next line
            # The record exists: the caller gets it, and a worker continues.
            logger.bind(execution=self.execution.pk).exception("Following the execution failed")

    async def _queue_up(self) -> None:
        """Waits for admission; all queued requests share one read per second."""
        execution = self.execution
        with watching([execution.pk], woken=False) as watch:
            watch.change_event = self._changed
            while execution.is_queued and not self._is_released:
                self._news.set()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(QUEUE_NEWS_SECONDS):
                        await watch.changes()
                try:
                    execution = await run_in_database(advancing.read_execution, execution.pk)
                    watch.saw(execution)
                    self._outage.end()
                except (OperationalError, InterfaceError) as error:
                    await self._wait_for_database(error)
        execution.awaited_here = self._owns and not execution.is_settled
        self.execution = execution
        self._news.set()
        self._changed.set()

    async def _wait_for_database(self, error: Exception) -> None:
        self._outage.note(error)
        await asyncio.sleep(LOOK_AGAIN_SECONDS)

    async def _take_step(self, execution: Execution) -> Execution:
        # A row that this process has just written, under a lease that lasts, is not read again: no other
        # process can have contacted the engine. A cancellation by another process that came since is seen at
        # the next read, like one that comes during a poll; one by this process wakes the wait.
        fresh, now = execution, timezone.now()
        begun, until = execution.started_at, execution.lease_expires_at
        is_first_poll = execution.state == State.RUNNING and execution.polled_at is None
        if (
            self._was_changed
            or execution.lease_holder != self._holder
            or begun is None
            or until is None
            or not is_first_poll
            or now - begun >= timedelta(seconds=LOOK_AGAIN_SECONDS)
            or until - now <= LEASE / 2
        ):
            fresh = await run_in_database(advancing.hold_and_read, execution, holder=self._holder)
        fresh.awaited_here = self._owns and not fresh.is_settled
        # A later poll, such as was planned without a waiting request, would delay progress and result.
        is_due = fresh.next_attempt_at <= timezone.now() or (not fresh.attempts and is_too_old(fresh))
        if fresh.lease_holder == self._holder and is_due:
            await advancing.advance(fresh, waited_for=True)
        return fresh

    async def _is_waited_for(self) -> bool:
        """Sleeps until the next attempt or look is due. Returns False once the wait has ended."""
        seconds = (self.execution.next_attempt_at - timezone.now()).total_seconds()
        if seconds <= 0 and self.execution.lease_holder not in ("", self._holder):
            seconds = LOOK_AGAIN_SECONDS
        if seconds > 0 or self._changed.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(seconds, LOOK_AGAIN_SECONDS)):
                    await self._changed.wait()
        self._was_changed = self._changed.is_set()
        if not self._is_released:
            self._changed.clear()
        return not self._is_released

    async def _conclude(self, *, answered: bool) -> None:
        await self._created.wait()
        # The same call finds a cached result again, or runs.
        if not self._owns or self.execution.cached_at is not None:
            return
        execution = self.execution
        if answered:
            await run_in_database(execution.mark_answered)
        elif _is_cancelled_on_disconnect(execution) and not has_other_waiters(self._changed, execution.pk):
            await _cancel(execution, caller=self._request.caller, own_steps=self._task)
        elif execution.state != State.CANCELLED:
            # Before the step under way ends, since the same call may arrive earlier.
            await run_in_database(execution.mark_unanswered, CALLER_GONE)


@contextlib.asynccontextmanager
async def while_people_decide(execution: Execution, *, caller: Caller) -> AsyncIterator[None]:
    """Surrounds the wait of a call for an approval or an answer: cancelling it applies the workflow's
    `on_disconnect`, as cancelling `start_and_wait` does."""

    async def leave() -> None:
        none_of_ours = asyncio.Event()
        if _is_cancelled_on_disconnect(execution) and not has_other_waiters(none_of_ours, execution.pk):
            await _cancel(execution, caller=caller)
        else:
            await run_in_database(execution.mark_unanswered, CALLER_GONE)

    try:
        yield
    except asyncio.CancelledError:
        await asyncio.wait({advancing.begin(leave())}, timeout=NOTING_SECONDS)
        raise


async def _cancel(
    execution: Execution, *, caller: Caller, own_steps: asyncio.Task[None] | None = None
) -> None:
    """Applies the workflow's setting; an execution that cannot be cancelled remains for the same call."""
    await run_in_database(execution.note, "caller_gone", f"{CALLER_GONE} This cancels runs of the workflow.")
    policy = f"The on_disconnect policy of {execution.tool_name}"
    key = str(execution.pk)
    cancellation = await cancel_execution(key, caller=caller, by=policy)
    if cancellation.outcome == CancelOutcome.REQUESTED and own_steps is not None:
        # The request is recorded for the next lease holder; the engine gets it after this process's own step.
        await asyncio.wait({own_steps})
        cancellation = await cancel_execution(key, caller=caller, by=policy)
    if cancellation.outcome != CancelOutcome.CANCELLED:
        await run_in_database(execution.mark_unanswered)


def _is_cancelled_on_disconnect(execution: Execution) -> bool:
    policy = execution.workflow.on_disconnect if execution.workflow else None
    return policy == Workflow.OnDisconnect.CANCEL and not execution.is_settled
