"""Starting a workflow and waiting for it, and ending the wait without ending the run."""

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable

from django.conf import settings
from django.utils import timezone
from loguru import logger

from catalogue.database import run_in_database
from catalogue.models import Workflow
from executions.advancing import advance, begin, hold_and_read, launch, let_go
from executions.cancelling import cancel_execution
from executions.leases import keep
from executions.models import Execution, State
from executions.starting import StartRequest, create_execution
from executions.waking import woken_by

ProgressListener = Callable[[Execution], Awaitable[None]]
LOOK_AGAIN_SECONDS = 1.0
"""How often a waiting request reads the row though nothing is due: others may have changed it."""


async def start_and_wait(
    request: StartRequest, *, seconds: float | None = None, on_progress: ProgressListener | None = None
) -> Execution:
    """Start a workflow and wait until it is settled, at most `seconds`.

    Without `seconds`, as long as the workflow's settings say; a listener for progress keeps its client
    patient, so then until the run's own deadline. The execution that is returned may still be active; a
    worker follows it from then on. Whoever is cancelled while waiting ends the wait; what that means for the
    run the workflow's `on_disconnect` says. Raises what `create_execution` raises.
    """
    follower = _Follower(request)
    answered = False
    try:
        execution = await follower.created()
        limit = _inline_wait(execution, patient=on_progress is not None) if seconds is None else seconds
        execution = await follower.wait(limit, on_progress)
        answered = True
        return execution
    finally:
        follower.release(answered=answered)


def _inline_wait(execution: Execution, *, patient: bool) -> float:
    workflow = execution.workflow
    whole = float(execution.timeout_seconds) + 5.0
    if patient or workflow is None or workflow.effective_execution_type == Workflow.ExecutionType.SYNC:
        return whole
    default: float = settings.CATALOGUE["inline_wait"]
    return default if workflow.inline_wait_seconds is None else float(workflow.inline_wait_seconds)


class _Follower:
    """Creates one execution, or finds it, and drives it under its lease, in a task of its own.

    The task is not the waiting request's: when that is cancelled, what was begun comes to its end.
    """

    def __init__(self, request: StartRequest) -> None:
        self._request = request
        self._holder = uuid.uuid4().hex
        self._execution: Execution | None = None
        self._created = asyncio.Event()
        self._news = asyncio.Event()
        self._stirred = asyncio.Event()
        self._is_released = False
        self._task = begin(self._run())

    def release(self, *, answered: bool) -> None:
        """Nobody waits any more: what is under way comes to its end, then the lease is given back."""
        self._is_released = True
        self._stirred.set()
        execution = self._execution
        if answered and execution is not None and execution.is_settled and execution.in_hand:
            return  # What settled it has noted the answer too.
        begin(self._conclude(answered=answered))

    async def created(self) -> Execution:
        """The execution once its record is committed. Raises what creating it raised."""
        await self._created.wait()
        if self._execution is None:
            self._task.result()
        assert self._execution is not None, "a task without an execution has raised why"
        return self._execution

    async def wait(self, seconds: float, on_progress: ProgressListener | None) -> Execution:
        """The execution as it is when it is settled or the time is up."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self._task.done():
                    await self._news.wait()
                    self._news.clear()
                    execution = await self.created()
                    shows_something = execution.polled_at is not None or execution.is_queued
                    if on_progress is not None and shows_something and not execution.is_settled:
                        await on_progress(execution)
        return await self.created()

    @property
    def _owns(self) -> bool:
        """Whether the answer is this request's to give; one that repeats a key only looks on."""
        assert self._execution is not None, "there is nothing to own before it is created"
        return self._execution.pk == self._request.id or not self._request.idempotency_key

    async def _run(self) -> None:
        try:
            created = await run_in_database(create_execution, self._request, holder=self._holder)
            self._execution = created
            created.in_hand = self._owns and not created.is_settled
        finally:
            self._created.set()
        with woken_by(created.pk, self._stirred):
            async with keep(self._holder, awaited=created.pk if self._owns else None):
                try:
                    if created.lease_holder == self._holder:
                        await launch(created, self._request.arguments)
                    await self._follow()
                except Exception:  # noqa: BLE001 - said in the next line
                    # The record is there: whoever waits gets it, and a worker goes on with it.
                    logger.bind(execution=created.pk).exception("Following the execution failed")
                finally:
                    await let_go(self._execution, holder=self._holder)
        self._news.set()

    async def _follow(self) -> None:
        assert self._execution is not None, "there is nothing to follow before it is created"
        while not self._execution.is_settled and await self._is_waited_for():
            fresh = await run_in_database(hold_and_read, self._execution, holder=self._holder)
            fresh.in_hand = self._owns and not fresh.is_settled
            if fresh.lease_holder == self._holder and fresh.next_attempt_at <= timezone.now():
                await advance(fresh, waited_for=True)
            self._execution = fresh
            self._news.set()

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
        if answered:
            await run_in_database(execution.mark_answered)
        elif _is_cancelled_on_disconnect(execution):
            gone = (
                "The caller's connection ended before it had an answer, which cancels runs of this workflow."
            )
            await run_in_database(execution.note, "caller_gone", gone)
            await asyncio.wait({self._task})
            await cancel_execution(str(execution.pk), caller=self._request.caller)
        elif execution.state != State.CANCELLED:
            # At once: the same call may come again before the step that is under way has come to its end.
            await run_in_database(execution.mark_unanswered)


def _is_cancelled_on_disconnect(execution: Execution) -> bool:
    policy = execution.workflow.on_disconnect if execution.workflow else None
    return policy == Workflow.OnDisconnect.CANCEL and not execution.is_settled
