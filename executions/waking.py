"""Telling the requests of this process that something they wait for has moved."""

import asyncio
import contextlib
import uuid
from collections.abc import Iterator

_waiting: dict[uuid.UUID, set[tuple[asyncio.AbstractEventLoop, asyncio.Event]]] = {}


@contextlib.contextmanager
def woken_by(execution_id: uuid.UUID, event: asyncio.Event) -> Iterator[None]:
    """Have `event`, of the running loop, set whenever somebody in this process moves the execution."""
    mine = (asyncio.get_running_loop(), event)
    _waiting.setdefault(execution_id, set()).add(mine)
    try:
        yield
    finally:
        others = _waiting[execution_id]
        others.discard(mine)
        if not others:
            del _waiting[execution_id]


def wake(execution_id: uuid.UUID) -> bool:
    """From any thread. False where nobody in this process waits for it."""
    waiting = tuple(_waiting.get(execution_id, ()))
    for loop, event in waiting:
        # A loop that is closed has nobody left to wake.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(event.set)
    return bool(waiting)
