"""Telling a worker at once that something is due, where the next tick would tell it a second later."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import cache
from threading import Event

from celery import current_app
from django.db import transaction
from django.utils import timezone
from loguru import logger

from executions.models import Execution, State

POLL_TASK = "executions.poll_due_executions"
MESSAGE_LIFETIME_SECONDS = 5
_on_its_way = Event()
_here: list[Callable[[], None]] = []
"""What looks for what is due in this process, where it stands in for the workers."""


def answer_nudges(poll: Callable[[], None] | None) -> None:
    """Have this process look for what is due, as nobody else would hear of it; None: a worker does."""
    _here[:] = [] if poll is None else [poll]


def ask_for_a_poll() -> None:
    """Have a worker look for due executions once the present transaction is committed.

    Never waits for the broker and never fails with it: what is due stands in the database.
    """
    transaction.on_commit(_publish_soon)


def _publish_soon() -> None:
    # One message stands for every execution that was committed before it is sent.
    if not _on_its_way.is_set():
        _on_its_way.set()
        _publisher().submit(_publish)


def _publish() -> None:
    _on_its_way.clear()
    for poll in _here.copy():
        poll()
        return
    try:
        current_app.send_task(POLL_TASK, expires=MESSAGE_LIFETIME_SECONDS, retry=False)
    except Exception as error:  # noqa: BLE001 - each broker's library raises its own
        logger.warning("The broker cannot be reached; the schedule starts what is due: {}", error)


@cache
def _publisher() -> ThreadPoolExecutor:
    """A thread of its own, since connecting to a dead broker takes seconds."""
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="dispatch")


FRESH_SECONDS = 2.0
"""A status that is no older is good enough for anybody."""


def want_fresh(execution: Execution) -> None:
    """Have a worker ask the engine soon, if the status that was just read is old and nobody waits for it.

    For database threads. Costs nothing where it is not needed, and of many readers one causes the poll.
    """
    now = timezone.now()
    if execution.state != State.RUNNING or execution.workflow_id is None or execution.next_attempt_at <= now:
        return
    if (execution.polled_at or execution.started_at or execution.created_at) > now - _shortest(execution):
        return
    if execution.bring_poll_forward(unless_since=now - _shortest(execution)):
        ask_for_a_poll()


def _shortest(execution: Execution) -> timedelta:
    """Between two polls. Whoever polls keeps the engine's minimum; here it only saves asking in vain."""
    minimum = execution.workflow.source.config.get("min_poll_seconds") if execution.workflow else None
    return timedelta(seconds=max(FRESH_SECONDS, minimum or 0.0))
