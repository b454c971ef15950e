import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from functools import cached_property, partial

from django.conf import settings
from django.db import InterfaceError, OperationalError
from django.utils import timezone
from loguru import logger

from catalogue.access import Caller
from catalogue.database import DatabaseOutage, run_in_database
from catalogue.models import Workflow
from executions import advancing
from executions.change_feed import watching
from executions.interacting import CancelOutcome, cancel_execution
from executions.models import ACTIVE, OPEN, Execution, State
from executions.models.lifecycle import StartRequest
from executions.refusals import StartRefused
from executions.runner.follow import CANCELLATION_GRACE
from executions.runner.lease import LEASE, keep
from executions.runner.recording import record_prepared
from executions.runner.start import send_start
from executions.starting import prepare_execution
from executions.wakeups import Patience, is_awaited_besides, is_too_old, waits, wake, woken_by
from telemetry import traces

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
    """Start a workflow and wait until it is settled or asks its caller for input, at most `seconds`.

    Without `seconds`, as long as the workflow's settings say, up to `set_wait`, which replaces the product's
    default and is the inline wait of the caller's token or toolset; until the run's deadline for a `patient`
    caller, whose client waits as long as progress arrives. The execution may still be active; a worker then
    follows it. Cancelling the call ends the wait and applies the workflow's `on_disconnect`. Raises what
    `create_execution` raises.
    """
    patient = patient and set_wait is None
    limit_of = partial(inline_wait, patient=patient, set_wait=set_wait)
    follower = _Follower(request, seconds, limit_of, restarts=patient and seconds is None)
    answered = False
    try:
        execution = await follower.wait(on_progress)
        answered = True
        return execution
    finally:
        await follower.release(answered=answered)


def inline_wait(execution: Execution, *, patient: bool, set_wait: float | None) -> float | None:
    """In seconds; None: without a limit. Arguments as in `start_and_wait`."""
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


class _Follower:
    """Creates or finds one execution and drives it under its lease, in a task that outlives the request."""

    def __init__(
        self,
        request: StartRequest,
        seconds: float | None,
        limit_of: Callable[[Execution], float | None],
        *,
        restarts: bool,
    ) -> None:
        """`limit_of`: how long to wait without `seconds`. `restarts`: admission from the queue restarts the
        time."""
        self._request = request
        self._seconds, self._limit_of, self._restarts = seconds, limit_of, restarts
        self._patience: Patience | None = None
        self._restart: Callable[[], None] | None = None  # Until it is admitted
        self._holder = uuid.uuid4().hex
        self._execution: Execution | None = None
        self._failure: Exception | None = None
        self._created = asyncio.Event()
        self._news = asyncio.Event()
        self._stirred = asyncio.Event()
        self._owns = self._is_released = self._is_abandoned = self._was_stirred = False
        self._begun_at = timezone.now()
        self._task = advancing.begin(self._run())

    async def release(self, *, answered: bool) -> None:
        """End the wait: the step under way finishes, then the lease is released."""
        self._is_released, self._is_abandoned = True, not answered
        if self._patience is not None:
            self._patience.end()
        self._stirred.set()
        execution = self._execution
        if answered and execution is not None:
            # The transition that settles it records the answer too, unless the heartbeat may have failed for
            # too long.
            is_noted = execution.awaited_here and execution.state not in OPEN
            if execution.cached_at is not None or (is_noted and timezone.now() < self._begun_at + LEASE):
                return
        concluding = advancing.begin(self._conclude(answered=answered))
        if not answered:
            # A closing loop lets cancelled tasks finish, but starts no new ones.
            await asyncio.wait({concluding}, timeout=NOTING_SECONDS)

    async def wait(self, on_progress: ProgressListener | None) -> Execution:
        """Until it is settled, asks for input or the time is up. Raises what creating it raises.

        The creation does not wake the request, which would cost each of its coroutines a step: the task sets
        the time itself.
        """
        try:
            async with asyncio.timeout(None) as self._timeout:
                while not self._task.done():
                    await self._news.wait()
                    self._news.clear()
                    execution = self._execution
                    if execution is None or execution.is_asking:
                        break
                    if self._restart is not None and not execution.is_queued:
                        self._restart()
                        self._restart = None
                    is_under_way = execution.polled_at is not None or execution.is_queued
                    if on_progress is not None and is_under_way and not execution.is_settled:
                        await on_progress(execution)
        except TimeoutError:
            pass
        if self._failure is not None:
            raise self._failure
        if self._execution is None:
            self._task.result()
        assert self._execution is not None, "a task without an execution has raised why"
        execution = self._execution
        execution.is_reattached = execution.pk != self._request.id and not self._request.idempotency_key
        return execution

    async def _run(self) -> None:
        created: Execution | None = None  # If there is something to follow
        try:
            recorded = await record_prepared(
                lambda: partial(self._create, prepare_execution(self._request, self._holder))
            )
            created = recorded if self._begin(recorded) else None
        except Exception as error:  # noqa: BLE001 - raised in `wait`
            self._note_failure(error)
        finally:
            self._created.set()
            if created is None:
                self._news.set()
        if created is None:
            return
        try:
            with (
                woken_by(created.pk, self._stirred),
                keep(created.pk, holder=self._holder, awaited=self._owns),
            ):
                try:
                    if created.lease_holder == self._holder:
                        with traces.step(f"start {created.tool_name}", execution=created.pk):
                            try:
                                await send_start(created, created.payload.input, on_progress=self._news.set)
                            except Exception:  # noqa: BLE001 - it is logged
                                await advancing.record_bug(created)
                    if created.state in ACTIVE:
                        await self._follow()
                finally:
                    followed = self._execution or created
                    if followed.lease_holder == self._holder:
                        await advancing.release_lease(followed, holder=self._holder)
                    advancing.admit_next(followed)
        finally:
            self._news.set()
            wake(created.pk)

    def _begin(self, created: Execution) -> bool:
        """False: it is answered from the cache or has ended, so there is nothing to follow."""
        self._execution = created
        # A request that repeats a key only watches: the first one answers.
        self._owns = created.pk == self._request.id or not self._request.idempotency_key
        # Approval takes long: a call that waits for it is answered immediately.
        is_begun = created.state in ACTIVE
        created.awaited_here = self._owns and is_begun
        if is_begun and not self._is_released:
            limit = self._limit_of(created) if self._seconds is None else self._seconds
            self._patience = Patience(self._timeout, waits, limit)
            if self._restarts and created.is_queued:
                self._restart = partial(self._patience.reschedule, limit)
        return is_begun

    def _note_failure(self, error: Exception) -> None:
        self._failure = error
        if self._is_abandoned and not isinstance(error, StartRefused):
            logger.opt(exception=error).error("Creating an execution failed, and its caller is gone")

    @cached_property
    def _outage(self) -> DatabaseOutage:
        assert self._execution is not None, "there is nothing to follow before it is created"
        return DatabaseOutage("Following the execution", execution=self._execution.pk)

    def _create(self, write: Callable[[], Execution]) -> Execution:
        execution = write()
        is_ours = execution.lease_holder == self._holder
        if is_ours and self._is_abandoned and _is_cancelled_on_disconnect(execution):
            execution.cancel(f"{CALLER_GONE} It was not started.")
        return execution

    async def _queue_up(self, execution: Execution) -> None:
        """Wait for admission; all queued requests share one read per second."""
        with watching([execution.pk], woken=False) as watch:
            watch.stirred = self._stirred
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
        self._execution = execution
        self._news.set()
        self._stirred.set()

    async def _follow(self) -> None:
        assert self._execution is not None, "there is nothing to follow before it is created"
        try:
            if self._execution.is_queued:
                await self._queue_up(self._execution)
            # Not one that came to need an approval in the queue
            while self._execution.state in ACTIVE and await self._is_waited_for():
                try:
                    self._execution = await self._take_step(self._execution)
                    self._news.set()
                    self._outage.end()
                except (OperationalError, InterfaceError) as error:
                    await self._wait_for_database(error)
        except Exception:  # noqa: BLE001 - said in the next line
            # The record exists: the caller gets it, and a worker continues.
            logger.bind(execution=self._execution.pk).exception("Following the execution failed")

    async def _wait_for_database(self, error: Exception) -> None:
        self._outage.note(error)
        await asyncio.sleep(LOOK_AGAIN_SECONDS)

    async def _take_step(self, execution: Execution) -> Execution:
        fresh = execution
        if not self._knows(execution):
            fresh = await run_in_database(advancing.hold_and_read, execution, holder=self._holder)
        fresh.awaited_here = self._owns and not fresh.is_settled
        # A later poll, such as was planned without a waiting request, would delay progress and result.
        is_due = fresh.next_attempt_at <= timezone.now() or (not fresh.attempts and is_too_old(fresh))
        if fresh.lease_holder == self._holder and is_due:
            await advancing.advance(fresh, waited_for=True)
        return fresh

    def _knows(self, execution: Execution) -> bool:
        """Whether the row is as this process has just written it, under a lease that lasts.

        No other process can have contacted the engine then. A cancellation by another process that came since
        is seen at the next read, like one that comes during a poll; one by this process wakes the wait.
        """
        begun, until = execution.started_at, execution.lease_expires_at
        if self._was_stirred or execution.lease_holder != self._holder or begun is None or until is None:
            return False
        now = timezone.now()
        is_first_poll = execution.state == State.RUNNING and execution.polled_at is None
        is_fresh = now - begun < timedelta(seconds=LOOK_AGAIN_SECONDS) and until - now > LEASE / 2
        return is_first_poll and is_fresh

    async def _is_waited_for(self) -> bool:
        """Sleep until the next attempt or look is due. Returns False once the wait has ended."""
        assert self._execution is not None, "there is nothing to wait for before it is created"
        seconds = (self._execution.next_attempt_at - timezone.now()).total_seconds()
        if seconds <= 0 and self._execution.lease_holder not in ("", self._holder):
            seconds = LOOK_AGAIN_SECONDS
        if seconds > 0 or self._stirred.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(seconds, LOOK_AGAIN_SECONDS)):
                    await self._stirred.wait()
        self._was_stirred = self._stirred.is_set()
        if not self._is_released:
            self._stirred.clear()
        return not self._is_released

    async def _conclude(self, *, answered: bool) -> None:
        await self._created.wait()
        execution = self._execution
        if execution is None or not self._owns:
            return
        if execution.cached_at is not None:
            # The same call finds the cached result again, or runs.
            return
        if answered:
            await run_in_database(execution.mark_answered)
        elif _is_cancelled_on_disconnect(execution) and not is_awaited_besides(self._stirred, execution.pk):
            await _cancel(execution, caller=self._request.caller, own_steps=self._task)
        elif execution.state != State.CANCELLED:
            # Before the step under way ends, since the same call may arrive earlier.
            await run_in_database(execution.mark_unanswered, CALLER_GONE)


@contextlib.asynccontextmanager
async def while_people_decide(execution: Execution, *, caller: Caller) -> AsyncIterator[None]:
    """For the wait of a call for an approval or an answer: cancelling it applies the workflow's
    `on_disconnect`, as cancelling `start_and_wait` does."""
    try:
        yield
    except asyncio.CancelledError:
        leaving = advancing.begin(_leave(execution, caller))
        await asyncio.wait({leaving}, timeout=NOTING_SECONDS)
        raise


async def _leave(execution: Execution, caller: Caller) -> None:
    none_of_ours = asyncio.Event()
    if _is_cancelled_on_disconnect(execution) and not is_awaited_besides(none_of_ours, execution.pk):
        await _cancel(execution, caller=caller)
    else:
        await run_in_database(execution.mark_unanswered, CALLER_GONE)


async def _cancel(
    execution: Execution, *, caller: Caller, own_steps: asyncio.Task[None] | None = None
) -> None:
    """By the workflow's setting; an execution that cannot be cancelled remains for the same call."""
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
