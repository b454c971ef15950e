"""The ORM from asynchronous code: one hop to a thread per unit of work."""

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any, ParamSpec, TypeVar

from django.db import close_old_connections, connection

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

THREADS = 2 if connection.vendor == "sqlite" else 8
"""SQLite has one writer, and who waits for it naps for up to 100 ms: with eight threads the slowest calls
take twice as long as with two. PostgreSQL gains nothing from more than eight: Python runs one at a time."""


@cache
def _threads() -> ThreadPoolExecutor:
    # Not asgiref's sync_to_async: without a context of its own per request it uses one thread for all.
    return ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="database")


def lend_connection() -> None:
    """Give this thread's connection back to the pool before a long wait; the next query takes one again."""
    if not connection.in_atomic_block:
        close_old_connections()


async def run_in_database(
    unit: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
) -> Result:
    """Run a synchronous unit of work in a thread; its connection goes back to the pool afterwards."""
    context = contextvars.copy_context()
    call = partial(context.run, _with_clean_connection, partial(unit, *args, **kwargs))
    return await asyncio.get_running_loop().run_in_executor(_threads(), call)


def _with_clean_connection(unit: Callable[[], Any]) -> Any:
    close_old_connections()
    try:
        return unit()
    finally:
        close_old_connections()
