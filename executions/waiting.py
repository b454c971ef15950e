"""Starting a workflow and waiting for it, and ending the wait without ending the run."""

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable

from django.conf import settings
from django.db import InterfaceError, OperationalError
from django.utils import timezone
from loguru import logger

from catalogue.database import run_in_database
from catalogue.models import Workflow
from executions.advancing import advance, begin, hold_and_read, launch, let_go, pass_on_place, read_execution
from executions.cancelling import CancelOutcome, cancel_execution
from executions.change_feed import watching
from executions.creating import StartRequest
from executions.models import Execution, State
from executions.refusals import StartRefused
from executions.runner.lease import LEASE, keep
from executions.starting import create_execution
from executions.wakeups import is_awaited_besides, wake, woken_by

ProgressListener = Callable[[Execution], Awaitable[None]]
LOOK_AGAIN_SECONDS = 1.0
"""How often a waiting request reads the row though nothing is due: others may have changed it."""
GRACE_SECONDS = 5.0
"""What a patient caller waits beyond the run's timeout, for what the engine says about its end."""
QUEUE_NEWS_SECONDS = 10.0
"""How often a client that waits in the queue is told so; many lose patience after 60."""
NOTING_SECONDS = 1.0
"""How long a request that was cancelled stays until that is noted; nobody hears of it any more."""
CALLER_GONE = "The caller's connection ended before it had an answer."


async def start_and_wait(
    request: StartRequest,
    *,
    seconds: float | None = None,
    patient: bool = False,
    patience: float | None = None,
    on_progress: ProgressListener | None = None,
) -> Execution:
    """Start a workflow and wait until it is settled, at most `seconds`.

    Without `seconds`, as long as the workflow's settings say; never longer than the `patience` of a caller of
    which that is known, and until the run's own deadline for a `patient` one, whose client the progress keeps
    waiting. The execution that is returned may still be active; a worker follows it from then on. Whoever is
    cancelled while waiting ends the wait; what that means for the run the workflow's `on_disconnect` says.
    Raises what `create_execution` raises.
    """
    patient = patient and patience is None
    follower = _Follower(request)
    answered = False
    try:
        execution = await follower.created()
        limit = _inline_wait(execution, patient=patient, patience=patience) if seconds is None else seconds
        again = patient and seconds is None and execution.is_queued
        execution = await follower.wait(limit, on_progress, again_once_admitted=again)
        answered = True
        return execution
    finally:
        await follower.release(answered=answered)


def _inline_wait(execution: Execution, *, patient: bool, patience: float | None) -> float | None:
    """In seconds; None: however long it takes."""
    workflow = execution.workflow
    if workflow is not None and workflow.effective_execution_type == Workflow.ExecutionType.SYNC:
        return None if patience is None else float(patience)
    if patient or (workflow is None and patience is None):
        return float(execution.timeout_seconds) + GRACE_SECONDS
    decided = None if workflow is None else workflow.inline_wait_seconds
    known = [float(limit) for limit in (decided, patience) if limit is not None]
    default: float = settings.CATALOGUE["inline_wait"]
    return min(known, default=default)


class _Follower:
    """Creates one execution, or finds it, and drives it under its lease, in a task of its own.

    The task is not the waiting request's: when that is cancelled, what was begun comes to its end.
    """

    def __init__(self, request: StartRequest) -> None:
        self._request = request
        self._holder = uuid.uuid4().hex
        self._execution: Execution | None = None
        self._failure: Exception | None = None
        self._created = asyncio.Event()
        self._news = asyncio.Event()
        self._stirred = asyncio.Event()
        self._is_released = self._is_abandoned = False
        self._begun_at = timezone.now()
        self._task = begin(self._run())

    async def release(self, *, answered: bool) -> None:
        """Nobody waits any more: what is under way comes to its end, then the lease is given back."""
        self._is_released, self._is_abandoned = True, not answered
        self._stirred.set()
        if answered and self._is_noted_as_answered():
            return
        concluding = begin(self._conclude(answered=answered))
        if not answered:
            # A loop that is closing lets the tasks that it has cancelled come to their end, but no new ones.
            await asyncio.wait({concluding}, timeout=NOTING_SECONDS)

    def _is_noted_as_answered(self) -> bool:
        """What settles it notes the answer too, unless the heartbeat may have failed for too long."""
        execution = self._execution
        if execution is not None and execution.cached_at is not None:
            return True
        if execution is None or not (execution.is_settled and execution.in_hand):
            return False
        return timezone.now() < self._begun_at + LEASE

    async def created(self) -> Execution:
        """The execution once its record is committed. Raises what creating it raised."""
        await self._created.wait()
        if self._failure is not None:
            raise self._failure
        if self._execution is None:
            self._task.result()
        assert self._execution is not None, "a task without an execution has raised why"
        return self._execution

    async def wait(
        self,
        seconds: float | None,
        on_progress: ProgressListener | None,
        *,
        again_once_admitted: bool = False,
    ) -> Execution:
        """The execution as it is when it is settled or the time is up.

        `again_once_admitted` gives it that time again when it leaves the queue, as its timeout begins then.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds) as patience:
                while not self._task.done():
                    await self._news.wait()
                    self._news.clear()
                    execution = await self.created()
                    if again_once_admitted and not execution.is_queued and seconds is not None:
                        patience.reschedule(asyncio.get_running_loop().time() + seconds)
                        again_once_admitted = False
                    shows_something = execution.polled_at is not None or execution.is_queued
                    if on_progress is not None and shows_something and not execution.is_settled:
                        await on_progress(execution)
        execution = await self.created()
        execution.is_reattached = execution.pk != self._request.id and not self._request.idempotency_key
        return execution

    @property
    def _owns(self) -> bool:
        """Whether the answer is this request's to give; one that repeats a key only looks on."""
        assert self._execution is not None, "there is nothing to own before it is created"
        return self._execution.pk == self._request.id or not self._request.idempotency_key

    async def _run(self) -> None:
        try:
            self._execution = created = await run_in_database(self._create)
            created.in_hand = self._owns and not created.is_settled
            created.news = self._news
        except Exception as error:  # noqa: BLE001 - raised in `created`, for whoever waits
            self._failure = error
            if self._is_abandoned and not isinstance(error, StartRefused):
                logger.opt(exception=error).error("Creating an execution failed, and its caller is gone")
            return
        finally:
            self._created.set()
        if created.is_settled:
            # From the result cache, or found as it had ended: there is nothing to follow.
            self._news.set()
            return
        try:
            with woken_by(created.pk, self._stirred):
                async with keep(created.pk, holder=self._holder, awaited=self._owns):
                    await self._drive(created)
        finally:
            self._news.set()
            wake(created.pk)

    def _create(self) -> Execution:
        execution = create_execution(self._request, holder=self._holder)
        is_ours = execution.lease_holder == self._holder
        if is_ours and self._is_abandoned and _is_cancelled_on_disconnect(execution):
            execution.cancel(f"{CALLER_GONE} It was not started.")
        return execution

    async def _drive(self, execution: Execution) -> None:
        try:
            if execution.lease_holder == self._holder:
                await launch(execution, execution.payload.input)
            elif execution.is_queued:
                await self._queue_up(execution)
            await self._follow()
        except Exception:  # noqa: BLE001 - said in the next line
            # The record is there: whoever waits gets it, and a worker goes on with it.
            logger.bind(execution=execution.pk).exception("Following the execution failed")
        finally:
            await let_go(self._execution or execution, holder=self._holder)
            pass_on_place(self._execution or execution)

    async def _queue_up(self, execution: Execution) -> None:
        """Until it has a place or nobody waits any more. All who queue here share one look a second."""
        with watching([execution.pk], woken=False) as watch:
            watch.stirred = self._stirred
            while execution.is_queued and not self._is_released:
                self._news.set()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(QUEUE_NEWS_SECONDS):
                        await watch.changes()
                try:
                    execution = await run_in_database(read_execution, execution.pk)
                    watch.saw(execution)
                except (OperationalError, InterfaceError) as error:
                    await _outlast(error, execution)
        execution.in_hand = self._owns and not execution.is_settled
        self._execution = execution
        self._news.set()
        self._stirred.set()

    async def _follow(self) -> None:
        assert self._execution is not None, "there is nothing to follow before it is created"
        while not self._execution.is_settled and await self._is_waited_for():
            try:
                self._execution = await self._take_step(self._execution)
                self._news.set()
            except (OperationalError, InterfaceError) as error:
                await _outlast(error, self._execution)

    async def _take_step(self, execution: Execution) -> Execution:
        """What is due now, where it is ours to do; the row as it is then."""
        fresh = await run_in_database(hold_and_read, execution, holder=self._holder)
        fresh.in_hand = self._owns and not fresh.is_settled
        if fresh.lease_holder == self._holder and fresh.next_attempt_at <= timezone.now():
            await advance(fresh, waited_for=True)
        return fresh

    async def _is_waited_for(self) -> bool:
        """Sleep until the next attempt or a look at the row is due; False once nobody waits any more."""
        assert self._execution is not None, "there is nothing to wait for before it is created"
        seconds = (self._execution.next_attempt_at - timezone.now()).total_seconds()
        if seconds <= 0 and self._execution.lease_holder != self._holder:
            seconds = LOOK_AGAIN_SECONDS
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(max(seconds, 0.0), LOOK_AGAIN_SECONDS)):
                await self._stirred.wait()
        if not self._is_released:
            self._stirred.clear()
        return not self._is_released

    async def _conclude(self, *, answered: bool) -> None:
        """Note whether the caller has an answer; without one, do what its workflow says."""
        await self._created.wait()
        execution = self._execution
        if execution is None or not self._owns:
            return
        if execution.cached_at is not None:
            # Nothing to come back to: the same call finds the cached result again, or runs.
            return
        if answered:
            await run_in_database(execution.mark_answered)
        elif _is_cancelled_on_disconnect(execution) and not is_awaited_besides(self._stirred, execution.pk):
            await self._cancel(execution)
        elif execution.state != State.CANCELLED:
            # At once: the same call may come again before the step that is under way has come to its end.
            await run_in_database(execution.mark_unanswered, CALLER_GONE)

    async def _cancel(self, execution: Execution) -> None:
        """As its workflow says. What cannot be cancelled, or has ended before, is kept for the same call."""
        await run_in_database(
            execution.note, "caller_gone", f"{CALLER_GONE} This cancels runs of the workflow."
        )
        policy = f"The on_disconnect policy of {execution.tool_name}"
        key, caller = str(execution.pk), self._request.caller
        cancellation = await cancel_execution(key, caller=caller, by=policy)
        if cancellation.outcome == CancelOutcome.REQUESTED:
            # That is recorded, for whoever goes on with it. The engine hears of it once our own step is over.
            await asyncio.wait({self._task})
            cancellation = await cancel_execution(key, caller=caller, by=policy)
        if cancellation.outcome == CancelOutcome.NOT_SUPPORTED:
            await run_in_database(execution.note, "not_cancelled", cancellation.message)
        if cancellation.outcome != CancelOutcome.CANCELLED:
            await run_in_database(execution.mark_unanswered)


async def _outlast(error: Exception, execution: Execution) -> None:
    bound = logger.bind(execution=execution.pk)
    bound.warning("The database failed, trying again in {} s: {}", LOOK_AGAIN_SECONDS, error)
    await asyncio.sleep(LOOK_AGAIN_SECONDS)


def _is_cancelled_on_disconnect(execution: Execution) -> bool:
    policy = execution.workflow.on_disconnect if execution.workflow else None
    return policy == Workflow.OnDisconnect.CANCEL and not execution.is_settled
