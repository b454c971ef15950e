"""Telling the requests of this process that something they wait for has moved."""

import asyncio
import contextlib
import threading
import uuid
from collections import Counter
from collections.abc import Iterator

_Waiting = tuple[asyncio.AbstractEventLoop, asyncio.Event]
_Places = dict[uuid.UUID, Counter[_Waiting]]
_waiting: _Places = {}
_looking_on: _Places = {}
"""Those who watch an execution that others wait for."""
_changing = threading.Lock()
"""A process has several loops, each in a thread of its own."""


@contextlib.contextmanager
def woken_by(execution_id: uuid.UUID, event: asyncio.Event, *, looks_on: bool = False) -> Iterator[None]:
    """Have `event`, of the running loop, set whenever somebody in this process moves the execution.

    Who only `looks_on` is not counted as waiting for it.
    """
    places, mine = _looking_on if looks_on else _waiting, (asyncio.get_running_loop(), event)
    with _changing:
        places.setdefault(execution_id, Counter())[mine] += 1
    try:
        yield
    finally:
        with _changing:
            places[execution_id] -= Counter({mine: 1})
            if not places[execution_id]:
                del places[execution_id]


def wake(execution_id: uuid.UUID) -> bool:
    """From any thread. False where nobody in this process waits for it."""
    waiting = _those_in(_waiting, execution_id)
    for loop, event in (*waiting, *_those_in(_looking_on, execution_id)):
        # A loop that is closed has nobody left to wake.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(event.set)
    return bool(waiting)


def is_awaited_besides(event: asyncio.Event, execution_id: uuid.UUID) -> bool:
    """Whether another request of this process waits for it than the one that `event` wakes."""
    return any(other is not event for _, other in _those_in(_waiting, execution_id))


def _those_in(places: _Places, execution_id: uuid.UUID) -> tuple[_Waiting, ...]:
    with _changing:
        return tuple(places.get(execution_id, ()))
