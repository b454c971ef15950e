"""The ORM from asynchronous code: one hop to a thread per unit of work."""

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial, wraps
from typing import Any, ParamSpec, TypeVar

from django.db import close_old_connections, connection

from connectors.background import run_in_background_loop

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

THREADS = 2 if connection.vendor == "sqlite" else 6
"""SQLite has one writer. For PostgreSQL more threads bridge its waits, but get into each other's way, since
Python runs one at a time: docs/decisions/0009-call-path.md has the figures."""

_turn = threading.Lock()


@cache
def _threads() -> ThreadPoolExecutor:
    # Not asgiref's sync_to_async: without a context of its own per request it uses one thread for all.
    return ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="database")


def require_database() -> None:
    """Raises OperationalError with the server's own words, at once: the pool would try for a while first."""
    probe = connection.copy()
    probe.settings_dict["OPTIONS"].pop("pool", None)
    try:
        probe.ensure_connection()
    finally:
        probe.close()


def lend_connection() -> None:
    """Give this thread's connection back to the pool before a long wait; the next query takes one again."""
    if not connection.in_atomic_block:
        close_old_connections()


def run_without_connection(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Wait for what the background loop does, and keep no connection from those who need one meanwhile."""
    lend_connection()
    return run_in_background_loop(coroutine)


def in_turn(unit: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """For what is one write transaction and runs in every call: on SQLite, those of a process take turns.

    SQLite itself lets who waits for the writer nap for 1 to 100 ms, again and again while others are faster:
    with eight callers the slowest took 140 ms, and take 50 ms in turns.
    """

    @wraps(unit)
    def taking_turns(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        # Who is within a transaction may have SQLite's own lock, for which another's turn would wait.
        if connection.vendor != "sqlite" or connection.in_atomic_block:
            return unit(*args, **kwargs)
        with _turn:
            return unit(*args, **kwargs)

    return taking_turns


async def run_in_database(
    unit: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
) -> Result:
    """Run a synchronous unit of work in a thread; its connection goes back to the pool afterwards.

    Once the interpreter is ending there are no threads any more, and whoever wants one is cancelled.
    """
    context = contextvars.copy_context()
    call = partial(context.run, _with_clean_connection, partial(unit, *args, **kwargs))
    try:
        hop: asyncio.Future[Result] = asyncio.get_running_loop().run_in_executor(_threads(), call)
    except RuntimeError:
        if threading.main_thread().is_alive():
            raise
        raise asyncio.CancelledError("the process ends") from None
    return await hop


def _with_clean_connection(unit: Callable[[], Any]) -> Any:
    close_old_connections()
    try:
        return unit()
    finally:
        close_old_connections()
