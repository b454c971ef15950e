"""Pauses between attempts at what should last."""

import asyncio

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0
LONG_ENOUGH_SECONDS = 30.0
"""What lasted so long was a success."""


class Pauses:
    """Twice as long each time, until an attempt was a success."""

    def __init__(self) -> None:
        self._next = FIRST_PAUSE_SECONDS

    async def take(self, *, lasted: float = 0.0) -> None:
        if lasted > LONG_ENOUGH_SECONDS:
            self._next = FIRST_PAUSE_SECONDS
        pause, self._next = self._next, min(2 * self._next, LONGEST_PAUSE_SECONDS)
        await asyncio.sleep(pause)
