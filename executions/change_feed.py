"""Watching executions for changes by any process, with one query per second and event loop."""

import asyncio
import contextlib
import itertools
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

from django.db import DatabaseError, InterfaceError

from access.callers import Caller
from catalogue.database import DatabaseOutage, Watcher, Watchers, in_batches, run_in_database
from executions.models import Execution, State
from executions.reading import find_execution
from executions.wakeups import is_too_old, request_poll_if_stale, waits, woken_by

LOOK_SECONDS = 1.0  # Between two queries; changes made by this process are seen at once
LOOKS_PER_REFRESH = 2  # Between two requests to workers to poll what has a stale status
AT_A_TIME = 500  # Databases limit the parameters of a query
# The fields whose changes count, besides whether it still waits for a place.
SHOWN = ("state", "progress", "progress_message", "cancel_requested_at", "cancel_refusal", "input_request")
Look = tuple[Any, ...]


class Watch:
    """The executions of one watcher. At first all count as changed, so that nothing is missed."""

    def __init__(self, executions: Iterable[uuid.UUID], *, change_event: asyncio.Event | None = None) -> None:
        self._seen: dict[uuid.UUID, Look | None] = dict.fromkeys(executions)
        self._changed = set(self._seen)
        self.change_event = change_event or asyncio.Event()  # Set on a change; its owner may set it as well
        self.change_event.set()

    @property
    def executions(self) -> Iterable[uuid.UUID]:
        return self._seen.keys()

    async def changes(self) -> list[uuid.UUID]:
        """Wait for changes or for `change_event`. Returns the executions to read again."""
        await self.change_event.wait()
        self.change_event.clear()
        changed = [key for key in self._seen if key in self._changed]
        self._changed.clear()
        return changed

    def saw(self, execution: Execution) -> bool:
        look = (execution.admitted_at is not None, *(getattr(execution, name) for name in SHOWN))
        self._changed.discard(execution.pk)
        known, self._seen[execution.pk] = self._seen.get(execution.pk), look
        return known != look

    def forget(self, execution_id: uuid.UUID) -> None:
        self._seen.pop(execution_id, None)

    def compare(self, looks: dict[uuid.UUID, Look]) -> None:
        changed = {key for key, seen in self._seen.items() if looks.get(key) != seen}
        if changed:
            self._changed |= changed
            self.change_event.set()


_watchers = Watchers[Watch]()


@contextlib.contextmanager
def watching(
    executions: Iterable[uuid.UUID], *, woken: bool = True, change_event: asyncio.Event | None = None
) -> Iterator[Watch]:
    """Watch until the block ends. Without `woken`, this process's own changes are seen at the next query."""
    watch = Watch(executions, change_event=change_event)
    with contextlib.ExitStack() as wakings, _watchers.watching(watch, _watch_executions) as watcher:
        for key in list(watch.executions) if woken else ():
            wakings.enter_context(woken_by(key, watcher.woken, observer=True))
        yield watch


async def watch_until_settled(
    execution_id: str,
    *,
    caller: Caller,
    seconds: float,
    on_progress: Callable[[Execution], Awaitable[None]] | None = None,
    unless_asks: bool = False,
) -> Execution:
    """Wait until it is settled or the time is up; `on_progress` gets each change. Raises UnknownExecution.

    `unless_asks`: also end when it asks for input that it did not ask for when the wait began.
    """
    execution = await run_in_database(find_fresh_execution, execution_id, caller=caller)
    if execution.is_settled or seconds <= 0:
        return execution
    known = execution.input_request
    with watching([execution.pk]) as watch, contextlib.suppress(TimeoutError):
        watch.saw(execution)
        async with waits.at_most(seconds):
            while not execution.is_settled:
                if not await watch.changes():
                    continue
                execution = await run_in_database(find_execution, execution_id, caller=caller)
                if watch.saw(execution) and on_progress is not None and not execution.is_settled:
                    await on_progress(execution)
                if unless_asks and execution.is_asking and execution.input_request != known:
                    break
    return execution


def find_fresh_execution(execution_id: str, *, caller: Caller) -> Execution:
    """Has a worker poll it if its status is stale. Raises UnknownExecution."""
    execution = find_execution(execution_id, caller=caller)
    request_poll_if_stale(execution)
    return execution


async def _watch_executions(watcher: Watcher[Watch]) -> None:
    outage = DatabaseOutage("Watching executions")
    for number in itertools.count(1):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS):
                await watcher.woken.wait()
        watcher.woken.clear()
        watched = list({key for watch in watcher.watches for key in watch.executions})
        try:
            looks = await run_in_database(_look_at, watched, refresh=number % LOOKS_PER_REFRESH == 0)
        except (DatabaseError, InterfaceError) as error:
            outage.note(error)
            continue
        outage.end()
        for watch in list(watcher.watches):
            watch.compare(looks)


def _look_at(watched: list[uuid.UUID], *, refresh: bool) -> dict[uuid.UUID, Look]:
    looks: dict[uuid.UUID, Look] = {}
    for keys in in_batches(watched, AT_A_TIME):
        rows = Execution.objects.filter(pk__in=keys)
        shown = rows.values_list("pk", "admitted_at", *SHOWN)
        looks |= {key: (admitted_at is not None, *rest) for key, admitted_at, *rest in shown}
        if refresh:
            for execution in rows.filter(state=State.RUNNING).select_related("workflow__source"):
                if is_too_old(execution):
                    request_poll_if_stale(execution)
    return looks
