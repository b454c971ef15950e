"""Following the runs that nobody waits for."""

import asyncio
from collections import Counter

from django.db import DatabaseError, InterfaceError
from loguru import logger

from catalogue.database import run_in_database
from connectors.background import run_in_background_loop
from executions.advancing import advance_and_let_go, begin, finish_steps
from executions.models import Execution
from executions.runner.lease import LANE_ROOM, Lane, claim_due_executions

MAX_IN_FLIGHT = 1000
"""Executions that one process advances at a time: so many that it takes twenty dead engines to fill it."""
CLAIM = 200
"""The most that one claim takes."""
REFILL = 25
"""A claim costs some milliseconds, so it waits for this many steps to end ..."""
REFILL_SECONDS = 0.05
"""... or, after the first that did, for so long."""


class _Drain:
    """Claims what is due and begins its steps, again as others end, until nothing is left behind."""

    def __init__(self) -> None:
        self._in_flight: dict[asyncio.Task[None], Lane] = {}
        self._ended = 0
        self._stirred = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._is_stopped = False

    def stir(self) -> None:
        """Something may be due."""
        self._stirred.set()
        if self._running is None or self._running.done():
            self._running = begin(self._run())

    async def stop(self) -> None:
        """Claim no more until it is stirred again; what was begun goes on."""
        self._is_stopped = True
        self._stirred.set()
        if self._running is not None:
            await asyncio.wait({self._running})
        self._is_stopped = False

    async def _run(self) -> None:
        try:
            while not self._is_stopped:
                self._stirred.clear()
                if not await self._begin_due() and not self._stirred.is_set():
                    return
                await self._stirred.wait()
        except (DatabaseError, InterfaceError) as error:
            logger.warning("Nothing could be claimed, the next tick tries again: {}", error)

    async def _begin_due(self) -> bool:
        """Whether something that is due may have been left behind for want of room."""
        self._ended = 0
        if (room := min(CLAIM, MAX_IN_FLIGHT - len(self._in_flight))) <= 0:
            return True
        busy = Counter(self._in_flight.values())
        claimed = await run_in_database(claim_due_executions, limit=room, in_flight=busy)
        for execution in claimed:
            lane = Lane.of(execution.source_name, execution.state)
            self._begin_step(execution, lane)
            busy[lane] += 1
        if len(claimed) == room:
            self._stirred.set()
        # As the claim saw it: steps may have ended meanwhile.
        return any(count >= LANE_ROOM for count in busy.values())

    def _begin_step(self, execution: Execution, lane: Lane) -> None:
        task = begin(advance_and_let_go(execution))
        self._in_flight[task] = lane
        task.add_done_callback(self._end_step)

    def _end_step(self, task: asyncio.Task[None]) -> None:
        del self._in_flight[task]
        self._ended += 1
        if self._ended == 1:
            task.get_loop().call_later(REFILL_SECONDS, self._stirred.set)
        elif self._ended == REFILL:
            self._stirred.set()


_drain = _Drain()
"""Of the background loop."""


def poll_due_executions() -> None:
    """Begin to advance what is due, and what of it has no room yet as soon as it has; waits for nothing."""
    run_in_background_loop(_stir())


def advance_due_executions() -> int:
    """Advance what is due now and wait for it. Returns how many there were."""
    return run_in_background_loop(_advance_due())


async def finish_polling() -> None:
    """Claim no more, and hear the engines out."""
    await _drain.stop()
    await finish_steps()


async def _stir() -> None:
    _drain.stir()


async def _advance_due() -> int:
    claimed = await run_in_database(claim_due_executions, limit=MAX_IN_FLIGHT)
    await asyncio.gather(*(advance_and_let_go(execution) for execution in claimed))
    return len(claimed)
