"""PostgreSQL as Django has it, with a pool that recovers at once when the server was restarted."""

from functools import partial
from typing import Any

from django.db.backends.postgresql import base
from psycopg import OperationalError

from config.compat import check_connections_with


class DatabaseWrapper(base.DatabaseWrapper):
    @property
    def pool(self) -> Any:
        """psycopg_pool discards dead connections one by one and waits 1, 2, 4 ... seconds between them. With
        more than five in the pool, requests failed for 15 s. Django leaves no room for a check of ours."""
        pool: Any = super().pool
        if pool is not None:
            check_connections_with(pool, partial(_check_connection, pool))
        return pool


def _check_connection(pool: Any, connection: Any) -> None:
    """If one connection is dead, the others probably are too, so they are replaced with it."""
    try:
        pool.check_connection(connection)
    except OperationalError:
        pool.check()
        raise
