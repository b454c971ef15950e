"""No request waits beyond the end of its process; tests/e2e/test_chaos.py shows what clients see of that."""

import asyncio
from collections.abc import Callable

import pytest

from executions.wakeups import Waits

LONG_SECONDS = 600.0
GIVE_UP_SECONDS = 10.0


async def is_ended(waits: Waits, seconds: float | None, then: Callable[[asyncio.Timeout], None]) -> bool:
    """Whether a wait of that length ends by itself, long before its time."""

    async def wait() -> None:
        async with waits.at_most(seconds) as timeout:
            then(timeout)
            await asyncio.Event().wait()

    waiting = asyncio.create_task(wait())
    await asyncio.wait({waiting}, timeout=GIVE_UP_SECONDS)
    ended = waiting.done() and isinstance(waiting.exception(), TimeoutError)
    waiting.cancel()
    return ended


@pytest.mark.parametrize("seconds", [None, LONG_SECONDS])
async def test_a_wait_ends_when_its_process_does(seconds):
    """E10"""
    waits = Waits()
    assert await is_ended(waits, seconds, lambda _: waits.end(within=0.0))


async def test_a_wait_that_begins_later_or_is_given_more_time_ends_as_well():
    """E10"""
    waits = Waits()
    waits.end(within=0.0)
    assert await is_ended(waits, None, lambda timeout: waits.restart(timeout, LONG_SECONDS))


async def test_a_shorter_wait_stays_as_short_and_one_that_is_over_is_left_alone():
    waits = Waits()
    async with waits.at_most(LONG_SECONDS):
        waits.end(within=LONG_SECONDS)
    await asyncio.sleep(0)
    assert await is_ended(waits, 0.0, lambda _: None)
