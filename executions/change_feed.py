"""Watching executions: whoever waits for a change learns of it, whichever process made it.

All watches of an event loop share one look at the database per second; while nobody watches there is none.
"""

import asyncio
import contextlib
import itertools
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.db import DatabaseError, InterfaceError
from django.utils import timezone
from loguru import logger

from catalogue.database import run_in_database
from executions.callers import Caller
from executions.dispatch import want_fresh
from executions.models import Execution, State
from executions.reading import find_execution
from executions.wakeups import woken_by

LOOK_SECONDS = 1.0
"""Between two looks; a change that this process makes itself is looked at at once."""
LOOKS_PER_REFRESH = 2
"""Every so many looks, workers are asked to poll those of the watched whose status has become old."""
OLDEST = timedelta(seconds=10)
"""A status may be as old as a twentieth of the run, but no older than this."""
AT_A_TIME = 500
"""Databases bound the number of a query's parameters."""
SHOWN = ("state", "admitted_at", "progress", "progress_message", "cancel_requested_at")
"""What a watcher wants to know of."""

Look = tuple[Any, ...]


class Watch:
    """The executions that one watcher has an eye on, and how it saw each of them last.

    At first all of them count as changed, so that nothing gets lost before the first look.
    """

    def __init__(self, executions: Iterable[uuid.UUID], *, stirred: asyncio.Event | None = None) -> None:
        self._seen: dict[uuid.UUID, Look | None] = dict.fromkeys(executions)
        self._changed = set(self._seen)
        self.stirred = stirred or asyncio.Event()
        """Set when something has changed; others may set it too, to be heard by the same watcher."""
        self.stirred.set()

    @property
    def executions(self) -> Iterable[uuid.UUID]:
        """Those that are still watched."""
        return self._seen.keys()

    async def changes(self) -> list[uuid.UUID]:
        """Those that have to be read again, as soon as there are some or `stirred` was set."""
        await self.stirred.wait()
        self.stirred.clear()
        changed = [key for key in self._seen if key in self._changed]
        self._changed.clear()
        return changed

    def saw(self, execution: Execution) -> bool:
        """Note what the watcher knows now; False where that is no news to it."""
        look = _look_of(execution)
        self._changed.discard(execution.pk)
        known, self._seen[execution.pk] = self._seen.get(execution.pk), look
        return known != look

    def forget(self, execution_id: uuid.UUID) -> None:
        self._seen.pop(execution_id, None)

    def compare(self, looks: dict[uuid.UUID, Look]) -> None:
        """One that is gone counts as changed too: reading it will tell."""
        changed = {key for key, seen in self._seen.items() if looks.get(key) != seen}
        if changed:
            self._changed |= changed
            self.stirred.set()


@dataclass(slots=True)
class _Watcher:
    """What is watched on one event loop."""

    watches: set[Watch] = field(default_factory=set)
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    looking: asyncio.Task[None] | None = None


_watchers: dict[asyncio.AbstractEventLoop, _Watcher] = {}


@contextlib.contextmanager
def watching(
    executions: Iterable[uuid.UUID], *, woken: bool = True, stirred: asyncio.Event | None = None
) -> Iterator[Watch]:
    """Have an eye on them until the block ends. For code that runs on an event loop.

    Without `woken`, what this process changes is seen at the next look only, unless the watcher hears of it.
    `stirred`: an event by which the watcher hears of other things too; without it, one of its own.
    """
    loop, watch = asyncio.get_running_loop(), Watch(executions, stirred=stirred)
    watcher = _watchers.setdefault(loop, _Watcher())
    watcher.watches.add(watch)
    if watcher.looking is None or watcher.looking.done():
        watcher.looking = loop.create_task(_keep_looking(watcher))
    with contextlib.ExitStack() as wakings:
        for key in list(watch.executions) if woken else ():
            wakings.enter_context(woken_by(key, watcher.woken, looks_on=True))
        try:
            yield watch
        finally:
            watcher.watches.discard(watch)
            if not watcher.watches:
                watcher.looking.cancel()
                _watchers.pop(loop, None)


async def watch_until_settled(
    execution_id: str,
    *,
    caller: Caller,
    seconds: float,
    on_progress: Callable[[Execution], Awaitable[None]] | None = None,
) -> Execution:
    """The execution as soon as it is settled, or as it is when the time is up. Raises UnknownExecution.

    `on_progress` hears of each change in between. Whoever is cancelled while waiting ends the wait only.
    """
    execution = await run_in_database(find_fresh_execution, execution_id, caller=caller)
    if execution.is_settled or seconds <= 0:
        return execution
    with watching([execution.pk]) as watch, contextlib.suppress(TimeoutError):
        watch.saw(execution)
        async with asyncio.timeout(seconds):
            while not execution.is_settled:
                if not await watch.changes():
                    continue
                execution = await run_in_database(find_execution, execution_id, caller=caller)
                if watch.saw(execution) and on_progress is not None and not execution.is_settled:
                    await on_progress(execution)
    return execution


def find_fresh_execution(execution_id: str, *, caller: Caller) -> Execution:
    """As it is known now; a status that is old is asked for anew. Raises UnknownExecution."""
    execution = find_execution(execution_id, caller=caller)
    want_fresh(execution)
    return execution


async def _keep_looking(watcher: _Watcher) -> None:
    for number in itertools.count(1):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS):
                await watcher.woken.wait()
        watcher.woken.clear()
        watched = list({key for watch in watcher.watches for key in watch.executions})
        try:
            looks = await run_in_database(_look_at, watched, refresh=number % LOOKS_PER_REFRESH == 0)
        except (DatabaseError, InterfaceError) as error:
            logger.warning("Watching executions failed, trying again in {:g} s: {}", LOOK_SECONDS, error)
            continue
        for watch in list(watcher.watches):
            watch.compare(looks)


def _look_at(watched: list[uuid.UUID], *, refresh: bool) -> dict[uuid.UUID, Look]:
    looks: dict[uuid.UUID, Look] = {}
    for at in range(0, len(watched), AT_A_TIME):
        rows = Execution.objects.filter(pk__in=watched[at : at + AT_A_TIME])
        looks |= {key: tuple(shown) for key, *shown in rows.values_list("pk", *SHOWN)}
        if refresh:
            for execution in rows.filter(state=State.RUNNING).select_related("workflow__source"):
                _refresh(execution)
    return looks


def _refresh(execution: Execution) -> None:
    now, begun = timezone.now(), execution.started_at or execution.created_at
    if now - (execution.polled_at or begun) >= min((now - begun) / 20, OLDEST):
        want_fresh(execution)


def _look_of(execution: Execution) -> Look:
    return tuple(getattr(execution, name) for name in SHOWN)
