"""Django's PostgreSQL backend with faster arrays of strings, and a pool that recovers immediately after a
restart of the server."""

from functools import partial
from typing import Any

from django.db.backends.postgresql import base
from psycopg import OperationalError
from psycopg.abc import Buffer
from psycopg.adapt import AdaptersMap
from psycopg.types.array import ListDumper

from config.compat import check_connections_with

TEXT_OR_NULL = {str, type(None)}


class TextsDumper(ListDumper):
    """Django sends each column of a `bulk_create` as an array. The original dumper escapes every quote in it
    by a Python call, and JSON is full of quotes: this took a third of an import of tools."""

    def dump(self, obj: list[Any]) -> Buffer | None:
        if obj and TEXT_OR_NULL.issuperset(map(type, obj)):
            written = f"{{{','.join(map(_quoted, obj))}}}"
            # The original raises the error for this character.
            if "\0" not in written:
                return written.encode()
        return super().dump(obj)


def _quoted(text: str | None) -> str:
    if text is None:
        return "NULL"
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


class DatabaseWrapper(base.DatabaseWrapper):
    def get_connection_params(self) -> dict[str, Any]:
        params: dict[str, Any] = super().get_connection_params()
        params["context"] = AdaptersMap(params["context"].adapters)
        params["context"].register_dumper(list, TextsDumper)
        return params

    @property
    def pool(self) -> Any:
        """psycopg_pool discards dead connections one by one and waits 1, 2, 4 ... seconds between them. With
        more than five in the pool, requests failed for 15 s. Django does not let a project set the check."""
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
