"""Starting a workflow and waiting for it, and ending the wait without ending the run."""

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from django.conf import settings
from django.utils import timezone
from loguru import logger

from catalogue.database import run_in_database
from executions.advancing import advance, begin, hold_and_read, launch, let_go
from executions.callers import Caller
from executions.models import Execution
from executions.starting import create_execution

ProgressListener = Callable[[Execution], Awaitable[None]]
LOOK_AGAIN_SECONDS = 1.0
"""How often a waiting request reads the row though nothing is due: others may have changed it."""


async def start_and_wait(
    *,
    tool_name: str,
    arguments: dict[str, Any],
    caller: Caller,
    door: Execution.Door,
    seconds: float | None = None,
    on_progress: ProgressListener | None = None,
) -> Execution:
    """Start a workflow and wait until it is settled, at most `seconds`.

    Without `seconds`, as long as the workflow's settings say; a listener for progress keeps its client
    patient, so then until the run's own deadline. The execution that is returned may still be active; a
    worker follows it from then on. Whoever is cancelled while waiting ends the wait, not the run.
    Raises what `create_execution` raises.
    """
    holder = uuid.uuid4().hex
    create = partial(
        create_execution, tool_name=tool_name, arguments=arguments, caller=caller, door=door, holder=holder
    )
    follower = _Follower(holder)
    follower.begin(create, arguments)
    try:
        execution = await follower.created()
        limit = _inline_wait(execution, patient=on_progress is not None) if seconds is None else seconds
        return await follower.wait(limit, on_progress)
    finally:
        follower.release()


def _inline_wait(execution: Execution, *, patient: bool) -> float:
    if patient:
        return float(execution.timeout_seconds) + 5.0
    assert execution.workflow is not None, "an execution that was just created has its workflow"
    own = execution.workflow.inline_wait_seconds
    default: float = settings.CATALOGUE["inline_wait"]
    return default if own is None else float(own)


class _Follower:
    """Creates one execution and drives it under its lease, in a task of its own.

    The task is not the waiting request's: when that is cancelled, what was begun comes to its end.
    """

    def __init__(self, holder: str) -> None:
        self._holder = holder
        self._execution: Execution | None = None
        self._created = asyncio.Event()
        self._news = asyncio.Event()
        self._released = asyncio.Event()

    def begin(self, create: Callable[[], Execution], arguments: dict[str, Any]) -> None:
        self._task = begin(self._run(create, arguments))

    def release(self) -> None:
        """Let the step that is under way come to its end, then give the lease back."""
        self._released.set()

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
                    if on_progress is not None and execution.polled_at and not execution.is_settled:
                        await on_progress(execution)
        return await self.created()

    async def _run(self, create: Callable[[], Execution], arguments: dict[str, Any]) -> None:
        try:
            self._execution = execution = await run_in_database(create)
        finally:
            self._created.set()
        try:
            await launch(execution, arguments)
            await self._follow()
        except Exception:  # noqa: BLE001 - said in the next line
            # The record is there: whoever waits gets it, and a worker goes on with it.
            logger.bind(execution=execution.pk).exception("Following the execution failed")
        finally:
            await let_go(self._execution, holder=self._holder)
            self._news.set()

    async def _follow(self) -> None:
        assert self._execution is not None, "there is nothing to follow before it is created"
        while not self._execution.is_settled and await self._is_waited_for():
            fresh = await run_in_database(hold_and_read, self._execution, holder=self._holder)
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
        try:
            async with asyncio.timeout(min(max(seconds, 0.0), LOOK_AGAIN_SECONDS)):
                await self._released.wait()
        except TimeoutError:
            return True
        return False
