"""Starts that last as long as the run: their answer is its result.

Meanwhile the progress that the engine tells is recorded, and a start is broken off, and with it the run, once
somebody has asked to cancel it or its timeout has passed.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Any

from django.db import InterfaceError, OperationalError
from django.utils import timezone

from catalogue.database import run_in_database
from connectors.protocol import ReportProgress, RunSnapshot, Started
from executions.engine.conversing import log_of
from executions.models import Execution
from executions.waking import woken_by

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
