"""Log messages of a run, on their way to the request of this process that waits for its start.

They are not kept: what comes while no request waits, or what a client takes too slowly, is lost.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

from django.db import Error as DatabaseError
from loguru import logger

from connectors.protocol import LogMessage, covers_level

MOST_UNSENT = 100
_listeners: dict[uuid.UUID, "LogListener"] = {}


class LogListener:
    """The messages for one request, in the order of their arrival. Belongs to the event loop that made it."""

    def __init__(self, find_level: Callable[[], Awaitable[str]]) -> None:
        self._find_level = find_level
        self._loop = asyncio.get_running_loop()
        self._unsent: asyncio.Queue[LogMessage] = asyncio.Queue(MOST_UNSENT)
        self._level: str | None = None

    async def level(self) -> str:
        """The least severe one that its client wants; empty: it wants none."""
        if self._level is None:
            try:
                self._level = await self._find_level()
            except DatabaseError as error:
                logger.warning("The level of log messages cannot be read: {}", error)
                self._level = ""
        return self._level

    def put(self, message: LogMessage) -> None:
        """From any thread."""
        # The loop may be closed.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._keep, message)

    async def send_each(self, send: Callable[[LogMessage], Awaitable[None]]) -> None:
        """Until it is cancelled."""
        while True:
            message = await self._unsent.get()
            try:
                if covers_level(await self.level(), message.level):
                    await send(message)
            except Exception as error:  # noqa: BLE001 - no message is worth a call
                logger.debug("A log message of a run did not reach its client: {!r}", error)
            finally:
                self._unsent.task_done()

    async def drain(self) -> None:
        """Until all that has come so far is sent."""
        # Messages of this loop's own calls are on their way to the queue.
        await asyncio.sleep(0)
        await self._unsent.join()

    def _keep(self, message: LogMessage) -> None:
        with suppress(asyncio.QueueFull):
            self._unsent.put_nowait(message)


@contextmanager
def listening(execution_id: uuid.UUID, listener: LogListener) -> Iterator[None]:
    """The latest request for an execution gets the messages."""
    _listeners[execution_id] = listener
    try:
        yield
    finally:
        if _listeners.get(execution_id) is listener:
            del _listeners[execution_id]


async def wanted_level(execution_id: uuid.UUID) -> str:
    """At a start; empty if no request of this process waits for it."""
    listener = _listeners.get(execution_id)
    return "" if listener is None else await listener.level()


def pass_on(execution_id: uuid.UUID, message: LogMessage) -> None:
    if (listener := _listeners.get(execution_id)) is not None:
        listener.put(message)
