import asyncio
import contextlib
import math
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

from celery import current_app
from django.db import transaction
from django.utils import timezone
from loguru import logger

from executions.models import Execution, State

_woken: dict[uuid.UUID, list[tuple[asyncio.AbstractEventLoop, asyncio.Event, bool]]] = {}
_changing = threading.Lock()  # A process has several event loops, each in its own thread


@contextlib.contextmanager
def woken_by(execution_id: uuid.UUID, event: asyncio.Event, *, observer: bool = False) -> Iterator[None]:
    """Sets `event` at each change by this process; an observer does not count as waiting."""
    mine = (asyncio.get_running_loop(), event, observer)
    with _changing:
        _woken.setdefault(execution_id, []).append(mine)
    try:
        yield
    finally:
        with _changing:
            _woken[execution_id].remove(mine)
            if not _woken[execution_id]:
                del _woken[execution_id]


def wake(execution_id: uuid.UUID) -> bool:
    """May be called from any thread. Returns whether a request of this process waits for it."""
    with _changing:
        woken = tuple(_woken.get(execution_id, ()))
    for loop, event, _ in woken:
        # The loop may be closed.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(event.set)
    return not all(is_observer for *_, is_observer in woken)


def has_other_waiters(event: asyncio.Event, execution_id: uuid.UUID) -> bool:
    """Returns whether a request of this process waits for it, other than the one that `event` wakes."""
    with _changing:
        woken = _woken.get(execution_id, ())
        return any(other is not event and not is_observer for _, other, is_observer in woken)


class Waits:
    """Requests of this process that wait for a run."""

    def __init__(self) -> None:
        self.timeouts: dict[asyncio.Timeout, asyncio.AbstractEventLoop] = {}
        self.all_end_at = math.inf  # By the monotonic clock

    @contextlib.asynccontextmanager
    async def at_most(self, seconds: float | None) -> AsyncIterator[asyncio.Timeout]:
        """Raises TimeoutError, as `asyncio.timeout` does; None: without a limit of its own."""
        async with asyncio.timeout(None) as timeout:
            self.timeouts[timeout] = asyncio.get_running_loop()
            self.restart(timeout, seconds)
            try:
                yield timeout
            finally:
                del self.timeouts[timeout]

    def restart(self, timeout: asyncio.Timeout, seconds: float | None) -> None:
        left = min(math.inf if seconds is None else seconds, self.all_end_at - time.monotonic())
        now = asyncio.get_running_loop().time()
        timeout.reschedule(None if left == math.inf else now + max(0.0, left))

    def end(self, *, within: float) -> None:
        """Limits waits before the process ends, from any thread: requests then answer with what is known by
        that time, and the runs go on. Holds for waits that begin later, too."""
        self.all_end_at = time.monotonic() + within
        for timeout, loop in list(self.timeouts.items()):
            # The loop may be closed.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._shorten, timeout, loop)

    def _shorten(self, timeout: asyncio.Timeout, loop: asyncio.AbstractEventLoop) -> None:
        if timeout in self.timeouts and not timeout.expired():
            ends_at = timeout.when()
            self.restart(timeout, None if ends_at is None else ends_at - loop.time())


waits = Waits()

POLL_TASK = "executions.poll_due_executions"
MESSAGE_LIFETIME_SECONDS = 5
# In a thread of its own, since connecting to a dead broker takes seconds.
_publisher = ThreadPoolExecutor(max_workers=1, thread_name_prefix="dispatch")
_on_its_way = threading.Event()
_here: list[Callable[[], None]] = []  # The poll of this process, if it stands in for the workers


def poll_in_this_process(poll: Callable[[], None] | None) -> None:
    """Polls in this process, which stands in for the workers; None: sends tasks to a worker again."""
    _here[:] = [] if poll is None else [poll]


def stands_in_for_workers() -> bool:
    return bool(_here)


def request_poll() -> None:
    """Has a worker poll after this transaction commits; neither waits for the broker nor fails with it."""
    transaction.on_commit(_publish_soon)


def _publish_soon() -> None:
    # One message stands for every execution committed before it is sent.
    if not _on_its_way.is_set():
        _on_its_way.set()
        _publisher.submit(_publish)


def _publish() -> None:
    _on_its_way.clear()
    for poll in _here.copy():
        poll()
        return
    try:
        current_app.send_task(POLL_TASK, expires=MESSAGE_LIFETIME_SECONDS, retry=False)
    except Exception as error:  # noqa: BLE001 - each broker's library raises its own
        text = "The broker cannot be reached; the schedule starts due work: {}"
        logger.bind(recurring=f"broker: {error}").warning(text, error)


FRESH_SECONDS = 2.0  # A younger status is fresh enough for every reader
OLDEST = timedelta(seconds=10)  # For who waits, it may be as old as a twentieth of the run, up to this
UNREPORTED_SECONDS = 20.0  # The least time between two polls of a run while a webhook reports ends


def request_poll_if_stale(execution: Execution) -> None:
    """Has a worker poll soon if the status is stale and no request waits. For database threads."""
    now = timezone.now()
    if execution.state != State.RUNNING or execution.workflow_id is None or execution.next_attempt_at <= now:
        return
    if _asked_at(execution) > now - _shortest(execution):
        return
    if execution.bring_poll_forward(unless_since=now - _shortest(execution)):
        request_poll()


def is_too_old(execution: Execution) -> bool:
    """Returns whether the status of a run is, for a request that waits for it."""
    now, asked_at = timezone.now(), _asked_at(execution)
    longest = min((now - (execution.started_at or execution.created_at)) / 20, OLDEST)
    return execution.state == State.RUNNING and now - asked_at >= max(longest, _shortest(execution))


def _asked_at(execution: Execution) -> datetime:
    return execution.polled_at or execution.started_at or execution.created_at


def _shortest(execution: Execution) -> timedelta:
    """Between two polls. The poller keeps the engine's minimum; here it only avoids useless requests."""
    minimum = execution.workflow.source.config.get("min_poll_seconds") if execution.workflow else None
    least = UNREPORTED_SECONDS if has_working_webhook(execution) else FRESH_SECONDS
    return timedelta(seconds=max(least, minimum or 0.0))


def has_working_webhook(execution: Execution) -> bool:
    workflow = execution.workflow
    return workflow is not None and workflow.source.webhook_matched_at is not None
