"""No thread queries the database while it holds a lock of the product (loaded with `-p tests.locks`).

It may have to wait for a connection, and those that have one may wait for the lock: the whole process stands
still. Exempt are the turns to write to SQLite, whose threads have connections of their own, and those of
`catalogue.database.SharedReading`, for which nobody waits with a connection.
"""

import sys
import threading
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper

ROOMS = {
    "access",
    "audit",
    "catalogue",
    "config",
    "connectors",
    "executions",
    "identity",
    "mcp_bridge",
    "orchestration",
    "telemetry",
}
EXEMPT = {"config.sqlite.base", "catalogue.database"}
_lock_of_python = threading.Lock


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.held: list[str] = []


_of_thread = _OfThread()


class WatchedLock:
    """A lock by the place that made it. One that a thread has without ever waiting for it does not count."""

    def __init__(self, made_at: str) -> None:
        self._lock, self._made_at, self._counts = _lock_of_python(), made_at, False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        taken = self._lock.acquire(blocking, timeout)
        if taken and blocking:
            self._counts = True
            _of_thread.held.append(self._made_at)
        return taken

    def release(self) -> None:
        if self._counts:
            self._counts = False
            _of_thread.held.remove(self._made_at)
        self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def _make_lock() -> Any:
    caller = sys._getframe(1)
    module = caller.f_globals.get("__name__", "")
    if module.partition(".")[0] in ROOMS and module not in EXEMPT:
        return WatchedLock(f"{module}, line {caller.f_lineno}")
    return _lock_of_python()


def _watch_queries() -> None:
    make_cursor = BaseDatabaseWrapper._cursor

    def cursor(wrapper: BaseDatabaseWrapper, name: str | None = None) -> Any:
        assert not _of_thread.held, f"A query under the lock of {_of_thread.held[-1]}"
        return make_cursor(wrapper, name)

    BaseDatabaseWrapper._cursor = cursor  # type: ignore[method-assign]


threading.Lock = _make_lock  # type: ignore[assignment,misc]
_watch_queries()
