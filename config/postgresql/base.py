"""Django's PostgreSQL backend with a pool that recovers immediately after a restart or a long outage of the
server."""

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from django.db.backends.postgresql import base
from loguru import logger
from psycopg import OperationalError
from psycopg_pool import PoolTimeout

from config.compat import check_connections_with

RETRY_SECONDS = 1.0  # Between two attempts to reach a server that is away
SILENT_SECONDS = 4.0  # Less than the pool tries for; without a live connection for as long, an outage begins


class _Outage:
    """Begins when a pool gives up a connection and none of its others lives. From then on, queries fail at
    once with the server's own words: a process has few threads for the database, and if each query waited for
    the pool, probes and requests would be answered after minutes. One query a second tries to connect."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._began_at = time.monotonic()
        self._tried_at = float("-inf")
        self.problem = "the database cannot be reached"
        self._is_logged = False

    def end_or_raise(self, connect: Callable[[], Any]) -> None:
        if time.monotonic() - self._tried_at < RETRY_SECONDS or not self._lock.acquire(blocking=False):
            raise OperationalError(self.problem)
        try:
            connect().close()
        except OperationalError as error:
            if not self._is_logged:
                logger.error("The database cannot be reached; trying again each second: {}", error)
            self.problem, self._is_logged = str(error), True
            raise
        finally:
            self._tried_at = time.monotonic()
            self._lock.release()
        logger.warning("The database could not be reached for {:.0f} s", self._tried_at - self._began_at)


_outages: WeakKeyDictionary[Any, _Outage] = WeakKeyDictionary()
_alive_at: WeakKeyDictionary[Any, float] = WeakKeyDictionary()  # By the monotonic clock


def _give_up(pool: Any) -> None:
    """A server may also refuse more connections than the pool has. The pool's size does not tell: it counts
    the connections that threads hold, dead ones too, and those that are still being tried."""
    if time.monotonic() - _alive_at.get(pool, float("-inf")) >= SILENT_SECONDS:
        _outages.setdefault(pool, _Outage())


class DatabaseWrapper(base.DatabaseWrapper):
    @property
    def pool(self) -> Any:
        """psycopg_pool discards dead connections one by one and waits 1, 2, 4 ... seconds between them. With
        more than five in the pool, requests failed for 15 s. Django does not let a project set the check."""
        if options := self.settings_dict["OPTIONS"].get("pool"):
            options["reconnect_failed"] = _give_up
        pool: Any = super().pool
        if pool is not None:
            check_connections_with(pool, partial(_check_connection, pool))
        return pool

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        pool = self.pool
        if pool is not None and (outage := _outages.get(pool)) is not None:
            outage.end_or_raise(partial(self.Database.connect, **conn_params))
            _outages.pop(pool, None)
        elif pool is not None and pool not in _alive_at:
            # The pool would try for seconds before it says that the server refuses.
            self.Database.connect(**conn_params).close()
        try:
            return super().get_new_connection(conn_params)
        except PoolTimeout:
            # The outage began while this thread waited: the pool is not merely exhausted.
            if (outage := _outages.get(pool)) is not None:
                raise OperationalError(outage.problem) from None
            raise


def _check_connection(pool: Any, connection: Any) -> None:
    """Checks the whole pool if one connection is dead, because the others probably are too."""
    try:
        pool.check_connection(connection)
    except OperationalError:
        pool.check()
        raise
    _alive_at[pool] = time.monotonic()
