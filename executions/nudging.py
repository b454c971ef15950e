"""Telling a worker at once that something is due, where the next tick would tell it a second later."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Event

from django.db import transaction
from loguru import logger

from executions.tasks import poll_due_executions

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
        poll_due_executions.apply_async(expires=MESSAGE_LIFETIME_SECONDS, retry=False)
    except Exception as error:  # noqa: BLE001 - each broker's library raises its own
        logger.warning("The broker cannot be reached; the schedule starts what is due: {}", error)


@cache
def _publisher() -> ThreadPoolExecutor:
    """A thread of its own, since connecting to a dead broker takes seconds."""
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="nudging")
