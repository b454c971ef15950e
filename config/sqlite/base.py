"""Django's SQLite backend. Threads write in turns, conditions take any number of values and any letters, and
texts are sorted regardless of case.

SQLite's busy handler polls every 1 to 100 ms and is unfair: with eight callers a call took 144 ms (p99), and
takes 52 ms in turns. A statement has at most 32,766 parameters, or as many as SQLite was built for, so a long
list of values, such as the keys of all workflows, is one parameter.
"""

import json
import sqlite3
import threading
from typing import Any

from django.core.exceptions import FieldError
from django.db.backends.sqlite3 import base
from django.db.models import CharField, Field, ForeignObject, OrderBy, TextField, lookups
from django.db.models.fields.related_lookups import RelatedIn

from catalogue.naming import spellings

WRITES = frozenset({"BEGIN ", "INSERT", "UPDATE", "DELETE"})
TURN_SECONDS = 20.0  # Then a writer leaves it to SQLite, which waits as long and says that it is locked
MAX_BOUND_VALUES = 500  # Of a condition; a statement may have several


class _Turn:
    """Admits one connection of this process at a time, for a statement or from BEGIN until it ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: sqlite3.Connection | None = None

    def take(self, connection: sqlite3.Connection) -> None:
        if self._lock.acquire(timeout=TURN_SECONDS):
            self._holder = connection

    def end(self, connection: sqlite3.Connection | None) -> None:
        if connection is not None and self._holder is connection:
            self._holder = None
            self._lock.release()


_turn = _Turn()


class _Cursor(base.SQLiteCursorWrapper):
    def execute(self, query: str, params: Any = None) -> Any:
        connection = self.connection
        if connection.in_transaction or query[:6] not in WRITES:
            return super().execute(query, params)
        _turn.take(connection)
        try:
            return super().execute(query, params)
        finally:
            if not connection.in_transaction:
                _turn.end(connection)


class DatabaseWrapper(base.DatabaseWrapper):
    def create_cursor(self, name: str | None = None) -> Any:
        return self.connection.cursor(factory=_Cursor)

    def commit(self) -> None:
        super().commit()
        _turn.end(self.connection)

    def rollback(self) -> None:
        super().rollback()
        _turn.end(self.connection)

    def close(self) -> None:
        closed = self.connection
        try:
            super().close()
        finally:
            _turn.end(closed)


class _In(lookups.In):
    def process_rhs(self, compiler: Any, connection: Any) -> Any:
        sql, values = super().process_rhs(compiler, connection)
        is_long = (
            connection.vendor == "sqlite" and self.rhs_is_direct_value() and len(values) > MAX_BOUND_VALUES
        )
        if is_long and all(isinstance(value, int | str) for value in values):
            return "(SELECT value FROM json_each(%s))", [json.dumps(values)]
        return sql, values


class _RelatedIn(_In, RelatedIn):
    """Compares foreign keys."""


class _IContains(lookups.IContains):
    """SQLite's LIKE takes only ASCII letters for the same in either case."""

    def as_sqlite(self, compiler: Any, connection: Any, **_: Any) -> Any:
        if not isinstance(self.rhs, str) or self.rhs.isascii():
            return self.as_sql(compiler, connection)
        each = [type(self)(self.lhs, text).as_sql(compiler, connection) for text in spellings(self.rhs)]
        conditions, parameters = zip(*each, strict=True)
        return f"({' OR '.join(conditions)})", [value for values in parameters for value in values]


# The second term, by bytes, makes the order complete.
WITHOUT_CASE = "%(expression)s COLLATE NOCASE %(ordering)s, %(expression)s %(ordering)s"


def _order(order: OrderBy, compiler: Any, connection: Any, **context: Any) -> Any:
    """Names in the order of the alphabet, as PostgreSQL sorts them by the collation of a language; SQLite has
    all capitals first."""
    if order.nulls_first or order.nulls_last or not _is_name(order.expression):
        return order.as_sql(compiler, connection, **context)
    return order.as_sql(compiler, connection, template=WITHOUT_CASE, **context)


def _is_name(expression: Any) -> bool:
    """A text that no index sorts, besides one of unique names. Tables that grow with use are sorted by their
    indexes, such as executions by tool."""
    try:
        field = expression.output_field
    except FieldError:  # The database alone knows the type
        return False
    indexes = field.model._meta.indexes if hasattr(field, "model") else ()
    indexed = {name for index in indexes for name, _ in index.fields_orders}
    return isinstance(field, CharField | TextField) and not field.choices and field.name not in indexed


OrderBy.as_sqlite = _order  # type: ignore[attr-defined]
Field.register_lookup(_In)
Field.register_lookup(_IContains)
ForeignObject.register_lookup(_RelatedIn)
