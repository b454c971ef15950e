"""Database access: from asynchronous code in one hop to a thread, watching for news, and migrations."""

import asyncio
import contextvars
import fcntl
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Generic, ParamSpec, Protocol, TypeVar
from weakref import WeakSet

from django.conf import settings
from django.core.management import CommandError, call_command
from django.db import close_old_connections, connection, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader
from django.db.utils import DatabaseError, InterfaceError, OperationalError
from loguru import logger

from catalogue.database_problems import describe_problem
from catalogue.naming import counted
from connectors.background import run_in_background_loop
from telemetry.traces import create_detached_task

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Row = TypeVar("Row")
Watch = TypeVar("Watch")
CONNECTIONS: int = settings.ENVIRONMENT.database_connections
THREADS = 2 if connection.vendor == "sqlite" else min(6, CONNECTIONS // 2)
"""SQLite has one writer. PostgreSQL gains from threads that bridge its waits until Python's lock makes them
slower: docs/decisions/0010-cost-of-a-call.md has the figures."""
REQUESTS_AT_ONCE = CONNECTIONS - THREADS
"""Django's requests that may use the database at the same time: each thread has a connection for certain."""
SHARED_READING_SECONDS = 15.0
MigrationKey = tuple[str, str]
"""App and name."""


@cache
def _threads() -> ThreadPoolExecutor:
    # Not asgiref's sync_to_async: without a context per request, it uses one thread for all requests.
    return ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="database")


class _ClosedWithThread:
    """Closes the connections of a thread as it ends. They are parts of cycles, which the garbage collector
    looks for rarely."""

    def __init__(self) -> None:
        self.connections: WeakSet[BaseDatabaseWrapper] = WeakSet()
        self._thread = threading.get_ident()

    def __del__(self) -> None:
        # The process that ends takes the connections of its daemon threads along.
        if self._thread == threading.get_ident():
            for opened in self.connections:
                opened.close()


_of_thread = threading.local()


def close_with_thread(connection: BaseDatabaseWrapper, **_: Any) -> None:
    """A receiver of `connection_created`. PostgreSQL's connections return to the pool after each use."""
    if connection.vendor == "sqlite" and threading.current_thread() is not threading.main_thread():
        vars(_of_thread).setdefault("closed", _ClosedWithThread()).connections.add(connection)


def require_database() -> None:
    """Raises OperationalError with the server's own message immediately; the pool would keep trying."""
    probe = connection.copy()
    probe.settings_dict["OPTIONS"].pop("pool", None)
    try:
        probe.ensure_connection()
    finally:
        probe.close()


def release_connection() -> None:
    """Return this thread's connection to the pool before a long wait; the next query takes one again."""
    if not connection.in_atomic_block:
        close_old_connections()


class Place(Protocol):
    """Holds a request's place among the REQUESTS_AT_ONCE that may use the database."""

    def release(self) -> None: ...

    def reacquire(self) -> None: ...


place: contextvars.ContextVar[Place | None] = contextvars.ContextVar("place", default=None)


@contextmanager
def without_connection() -> Iterator[None]:
    """Leaves this thread's connection and the request's place to other requests during a long wait. In a
    transaction the thread keeps both."""
    release_connection()
    held = None if connection.in_atomic_block else place.get()
    if held is not None:
        held.release()
    try:
        yield
    finally:
        if held is not None:
            held.reacquire()


def run_without_connection(coroutine: Coroutine[Any, Any, Result]) -> Result:
    with without_connection():
        return run_in_background_loop(coroutine)


class SharedReading:
    """Lets one thread at a time read what all threads of the process share.

    The reader may wait for a connection, so the others wait for it without one, and not in a transaction,
    which keeps its connection: there a thread reads by itself. For the same reason no thread may hold any
    other lock of the process while it queries the database.
    """

    def __init__(self) -> None:
        self._turn = threading.Lock()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Raises OperationalError if another thread has been reading for too long."""
        if not self._turn.acquire(blocking=False):
            if connection.in_atomic_block:
                yield
                return
            release_connection()
            if not self._turn.acquire(timeout=SHARED_READING_SECONDS):
                raise OperationalError(f"another thread has been reading for {SHARED_READING_SECONDS:.0f} s")
        try:
            yield
        finally:
            self._turn.release()


def in_batches(rows: Sequence[Row], size: int) -> Iterator[Sequence[Row]]:
    """Splits rows for statements that name them: databases limit the parameters of one."""
    return (rows[start : start + size] for start in range(0, len(rows), size))


def run_in_database(
    unit: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
) -> asyncio.Future[Result]:
    """Run a synchronous unit of work in a thread; its connection returns to the pool afterwards. Raises
    CancelledError once the interpreter is shutting down and threads can no longer start."""
    context = contextvars.copy_context()
    call = partial(context.run, _with_clean_connection, partial(unit, *args, **kwargs))
    try:
        # As `run_in_executor` does; that of uvloop also looks whether any part of the partial is a coroutine.
        return asyncio.wrap_future(_threads().submit(call), loop=asyncio.get_running_loop())
    except RuntimeError:
        if threading.main_thread().is_alive():
            raise
        raise asyncio.CancelledError("the process ends") from None


def after_commit(act: Callable[[], object]) -> None:
    """Calls `act` after the commit, for entries of the log: what is not committed did not happen. `act` has
    the caller's request id, also where several requests share the transaction."""
    transaction.on_commit(partial(contextvars.copy_context().run, act))


class DatabaseOutage:
    """Logs the first of several failures in a row and their end, instead of each attempt, for a loop that
    repeats a query until the database answers."""

    def __init__(self, activity: str, **bound: Any) -> None:
        self._activity, self._bound = activity, bound  # Each call has one, and few are needed.
        self._began_at: float | None = None

    def note(self, error: Exception) -> None:
        if self._began_at is None:
            self._began_at = time.monotonic()
            logger.bind(**self._bound).warning(
                "{} failed, and is repeated until the database answers: {}", self._activity, error
            )

    def end(self) -> None:
        if self._began_at is not None:
            seconds = time.monotonic() - self._began_at
            self._began_at = None
            logger.bind(**self._bound).warning(
                "{} works again; the database failed for {:.0f} s", self._activity, seconds
            )


@dataclass(slots=True)
class Watcher(Generic[Watch]):
    """Holds the watches of one event loop, and the task that looks for their news in the database."""

    watches: set[Watch] = field(default_factory=set)
    woken: asyncio.Event = field(default_factory=asyncio.Event)  # For a look before its time
    looking: asyncio.Task[None] | None = None


class Watchers(dict[asyncio.AbstractEventLoop, Watcher[Watch]]):
    @contextmanager
    def watching(
        self, watch: Watch, look: Callable[[Watcher[Watch]], Coroutine[Any, Any, None]]
    ) -> Iterator[Watcher[Watch]]:
        """All watches of a loop share one `look`, which goes on until the last of them ends."""
        loop = asyncio.get_running_loop()
        watcher = self.setdefault(loop, Watcher())
        watcher.watches.add(watch)
        if watcher.looking is None or watcher.looking.done():
            watcher.looking = create_detached_task(look(watcher))
        try:
            yield watcher
        finally:
            watcher.watches.discard(watch)
            if not watcher.watches:
                watcher.looking.cancel()
                self.pop(loop, None)


def _with_clean_connection(unit: Callable[[], Any]) -> Any:
    close_old_connections()
    try:
        return unit()
    finally:
        close_old_connections()


def bring_up_to_date(say: Callable[[str], None], *, only_new: bool = False) -> None:
    """Apply pending migrations, one process of a data folder at a time; with `only_new`, to an empty database
    only. Raises OperationalError, and CommandError for a partly migrated database."""
    file = Path(connection.settings_dict["NAME"])
    if connection.vendor == "sqlite" and file.is_file() and not os.access(file, os.W_OK):
        # Otherwise processes would start, and fail at the first change.
        raise OperationalError("attempt to write a readonly database")
    with (settings.DATA_DIR / "migrations.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if only_new and connection.introspection.table_names():
            return
        executor = MigrationExecutor(connection)
        if problem := describe_partly_migrated(executor.loader):
            raise CommandError(problem)
        if executor.migration_plan(executor.loader.graph.leaf_nodes()):
            say("Bringing the database up to date ...")
            # Standard output may be a client's.
            call_command("migrate", verbosity=0, interactive=False, stdout=sys.stderr)
        else:
            executor.check_replacements()  # As `migrate` does, of a database from before the squash


def known_migrations(loader: MigrationLoader) -> set[MigrationKey]:
    """Includes those that this version has squashed: Django records these, too."""
    squashed = (replacement.replaces for replacement in loader.replacements.values())
    return {*loader.disk_migrations, *itertools.chain.from_iterable(squashed)}


def describe_partly_migrated(
    loader: MigrationLoader, applied: Collection[MigrationKey] | None = None
) -> str | None:
    """Says what to do about a database with only some of the migrations that are squashed now. Django
    takes it for up to date, as the files of the others are gone. `applied` is what the loader's database has,
    unless given."""
    applied = loader.applied_migrations or () if applied is None else applied
    for (app, _), replacement in loader.replacements.items():
        done = [name for _, name in replacement.replaces if (app, name) in applied]
        gone = set(replacement.replaces) - set(applied) - loader.disk_migrations.keys()
        if done and gone:
            return (
                f"The database has the migrations of {app} up to {done[-1]} only, and this version has "
                f"squashed those up to {max(gone)[1]}. Apply these with the last code that has them first: "
                "docs/decisions/0004-installing-and-upgrading.md says how."
            )
    return None


def describe_pending_migrations(database: BaseDatabaseWrapper | None = None) -> str | None:
    """Says what to do about a database that lacks some. Those of newer code do not matter."""
    executor = MigrationExecutor(database or connection)
    if problem := describe_partly_migrated(executor.loader):
        return problem
    missing = len(executor.migration_plan(executor.loader.graph.leaf_nodes()))
    told = counted(missing, "migration is", "migrations are")
    return f"{told} not applied. {settings.MIGRATE_FIRST}" if missing else None


def warn_of_pending_migrations() -> None:
    """A server may be away or hang, or a running `migrate` lock the table: the process starts meanwhile."""
    threading.Thread(target=_warn_of_pending_migrations, name="pending migrations", daemon=True).start()


def _warn_of_pending_migrations() -> None:
    database = connection.copy()
    database.settings_dict["OPTIONS"].pop("pool", None)  # Which would try again and complain
    try:
        database.ensure_connection()
        if problem := describe_pending_migrations(database):
            logger.warning("The database is not up to date: {}", problem)
    except (DatabaseError, InterfaceError) as error:
        logger.error("{} This process tries again whenever it needs the database", describe_problem(error))
    finally:
        database.close()


def prepare_embedded_database(*, only_new: bool = False) -> None:
    """Only for SQLite; operators migrate database servers. One with tables may belong to other code. Raises
    OperationalError for a file that cannot be written."""
    if connection.vendor == "sqlite":
        bring_up_to_date(logger.info, only_new=only_new)
