"""An engine that takes every start, and ends the runs when the test says so."""

import asyncio
import threading
from collections import deque

from tests.connectors.scripted import Received, replies
from tests.executions.engines import PATIENCE_SECONDS, completed, receipt, wait_until


class HeldRuns:
    """Synchronous runs that last until the test ends them; counts how many there were at a time."""

    def __init__(self) -> None:
        self.arrived: list[dict[str, object]] = []
        """The input of each run in the order in which they came."""
        self.peak = 0
        self._running = 0
        self._held: deque[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = deque()
        self._are_open = threading.Event()

    async def __call__(self, request: Received, writer: asyncio.StreamWriter) -> None:
        self._running += 1
        self.peak = max(self.peak, self._running)
        self.arrived.append(request.json["input"])
        held = asyncio.Event()
        self._held.append((asyncio.get_running_loop(), held))
        if not self._are_open.is_set():
            await asyncio.wait_for(held.wait(), PATIENCE_SECONDS)
        # Others get their turn, as they do while a run takes its time.
        for _ in range(20):
            await asyncio.sleep(0)
        self._running -= 1
        await replies(200, completed() | receipt())(request, writer)

    def wait_for(self, number: int) -> None:
        """Until so many runs have come in all."""
        wait_until(lambda: len(self.arrived) >= number, f"{number} runs have come, of {self.arrived}")

    def end(self, number: int = 1) -> None:
        """The oldest runs come to their end."""
        for _ in range(number):
            loop, held = self._held.popleft()
            loop.call_soon_threadsafe(held.set)

    def end_all(self) -> None:
        """These, and those that come from now on."""
        self._are_open.set()
        self.end(len(self._held))
