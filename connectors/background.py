"""An event loop in a thread for synchronous callers, and time limits for long work in workers."""

import asyncio
import atexit
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

Result = TypeVar("Result")
Finish = TypeVar("Finish", bound=Callable[[], Coroutine[Any, Any, None]])

# The largest assumed difference of clocks. Times further ahead are from a clock that was or is wrong.
CLOCKS_APART = timedelta(seconds=60)
CLOSING_SECONDS = 2.0
process_ends = threading.Event()  # Set when a worker must end


class WorkTime:
    """The time for work in steps: over after `seconds` (None: never), or when the process must end."""

    def __init__(self, seconds: float | None) -> None:
        self._until = None if seconds is None else time.monotonic() + seconds

    @property
    def is_over(self) -> bool:
        return process_ends.is_set() or (self._until is not None and time.monotonic() >= self._until)

    def rest_after(self, begun: float) -> None:
        """Waits for as long as a step has taken that began at this time of the monotonic clock, half a second
        at most, so that others get their turn."""
        process_ends.wait(min(time.monotonic() - begun, 0.5))


@cache
def _background_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="background-loop", daemon=True).start()
    return loop


def start_in_background_loop(coroutine: Coroutine[Any, Any, Result]) -> Future[Result]:
    """Start the coroutine on the process's loop, where clients keep their connections between calls.
    Cancelling the future cancels the coroutine."""
    return asyncio.run_coroutine_threadsafe(coroutine, _background_loop())


def run_in_background_loop(coroutine: Coroutine[Any, Any, Result]) -> Result:
    return start_in_background_loop(coroutine).result()


def finish_in_background_loop(finish: Callable[[], Coroutine[Any, Any, None]], *, seconds: float) -> None:
    """Run a last coroutine before the process ends, unless the loop was never used."""
    if _background_loop.cache_info().currsize:
        with contextlib.suppress(TimeoutError):
            start_in_background_loop(finish()).result(seconds)


def finish_at_exit(finish: Finish) -> Finish:
    """Decorates a coroutine function that closes connections of the background loop."""
    atexit.register(finish_in_background_loop, finish, seconds=CLOSING_SECONDS)
    return finish
