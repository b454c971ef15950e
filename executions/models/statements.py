"""Builds the SQL of every call: Django takes several times as long to build a statement as to run it.

On PostgreSQL what belongs together is one statement, and so needs no transaction around it.
"""

import contextlib
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache, lru_cache
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from django.core.exceptions import ObjectDoesNotExist
from django.db import connection, models, transaction
from django.db.models.expressions import RawSQL

from catalogue.fields import JSONTextField
from connectors.formats.json import write_json

Row = TypeVar("Row", bound=models.Model)
Statement = tuple[str, Sequence[Any]]
ONE_STATEMENT = connection.vendor == "postgresql"
ONLY_IF_CHANGED = "EXISTS (SELECT 1 FROM changed)"


class _Column(NamedTuple):
    name: str
    db_type: str
    prepare: Callable[[Any], Any] | None
    of_none: str | None
    given: tuple[str, str]  # Its name, and its place in an insertion: a parameter
    empty: tuple[str, str] | None  # The same for an empty value, as a literal


@cache
def _columns(model: type[models.Model]) -> dict[str, _Column]:
    """Returns the columns by attribute name, without a key that the database assigns."""
    fields = (field for field in model._meta.concrete_fields if not isinstance(field, models.AutoField))
    return {field.attname: _column_of(field) for field in fields}


def _column_of(field: Any) -> _Column:
    name, is_json = connection.ops.quote_name(str(field.column)), isinstance(field, JSONTextField)
    literals = [literal for kind, literal in LITERALS.items() if isinstance(field, kind) and not is_json]
    return _Column(
        name,
        field.rel_db_type(connection) or "",
        _prepare_for(field),
        field.get_prep_value(None) if is_json else None,
        (name, "%s"),
        (name, literals[0]) if literals else None,
    )


LITERALS: dict[Any, str] = {
    models.CharField: "''",
    models.TextField: "''",
    models.IntegerField: "0",
    models.BooleanField: "FALSE",
}


@cache
def _table_of(model: type[models.Model]) -> str:
    return connection.ops.quote_name(model._meta.db_table)


def _prepare_for(field: Any) -> Callable[[Any], Any] | None:
    """The function that converts a value other than None for the driver."""
    target = field.target_field if field.is_relation else field
    if isinstance(field, JSONTextField):
        return write_json
    if isinstance(target, models.CharField | models.TextField):
        # Drivers do not accept choices as text.
        return str
    if ONE_STATEMENT:
        return None
    if isinstance(target, models.DateTimeField):
        return adapt_time
    return attrgetter("hex") if isinstance(target, models.UUIDField) else None


@lru_cache(maxsize=1_000)
def adapt_time(value: datetime | None) -> Any:
    """Converts aware times as Django does. Cached: a call writes each of its times in several places."""
    if value is None or ONE_STATEMENT:
        return value
    return str(value.astimezone(UTC).replace(tzinfo=None))


def find_row(model: type[Row], key: uuid.UUID) -> Row:
    """By its primary key. Raises ObjectDoesNotExist."""
    with connection.cursor() as cursor:
        cursor.execute(_selection_text(model), [adapt_key(key)])
        values = cursor.fetchone()
    if values is None:
        raise ObjectDoesNotExist
    return read_row(model, values)


@cache
def _selection_text(model: type[models.Model]) -> str:
    fields, key = model._meta.concrete_fields, model._meta.pk.column
    names = ", ".join(connection.ops.quote_name(str(field.column)) for field in fields)
    return f"SELECT {names} FROM {_table_of(model)} WHERE {key} = %s"  # noqa: S608 - only names


def read_row(model: type[Row], values: Iterable[Any]) -> Row:
    """`values`: of all columns in the model's order, as the driver returns them."""
    read = [
        value if convert is None else convert(value)
        for convert, value in zip(_readings(model), values, strict=True)
    ]
    return model.from_db(None, list(_attributes(model)), read)


@cache
def _attributes(model: type[models.Model]) -> tuple[str, ...]:
    return tuple(field.attname for field in model._meta.concrete_fields)


@cache
def _readings(model: type[models.Model]) -> tuple[Callable[[Any], Any] | None, ...]:
    return tuple(_reading(field.get_col(field.model._meta.db_table)) for field in model._meta.concrete_fields)


def _reading(column: Any) -> Callable[[Any], Any] | None:
    converters = connection.ops.get_db_converters(column) + column.get_db_converters(connection)
    if not converters:
        return None

    def convert(value: Any) -> Any:
        for converter in converters:
            value = converter(value, column, connection)
        return value

    return convert


def adapt_key(value: Any) -> Any:
    return value if value is None or ONE_STATEMENT else value.hex


def insertion(
    model: type[models.Model],
    names: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    only_if_changed: bool = False,
) -> Statement:
    """`names`: the attributes that each row has values for."""
    columns = list(map(_columns(model).__getitem__, names))
    values = []
    for row in rows:
        for column, value in zip(columns, row, strict=True):
            prepare = column.prepare
            values.append(column.of_none if value is None else prepare(value) if prepare else value)
    return _insertion_text(model, tuple(names), len(values) // len(columns), only_if_changed), values


@cache
def _insertion_text(
    model: type[models.Model], names: tuple[str, ...], number: int, only_if_changed: bool
) -> str:
    columns = [_columns(model)[name] for name in names]
    place = ", ".join(["%s"] * len(columns))
    into = f"INSERT INTO {_table_of(model)} ({', '.join(column.name for column in columns)})"
    if not only_if_changed:
        return f"{into} VALUES {', '.join([f'({place})'] * number)}"
    # PostgreSQL does not infer the types of values that are not inserted directly.
    typed = ", ".join(f"CAST(%s AS {column.db_type})" for column in columns)
    rows = ", ".join([f"({typed})", *[f"({place})"] * (number - 1)])
    return f"{into} SELECT * FROM (VALUES {rows}) AS news WHERE {ONLY_IF_CHANGED}"  # noqa: S608 - only names


def insertion_of(row: models.Model) -> Statement:
    """Empty columns, which are most of a new row, are literals: they cost less than parameters."""
    model, attributes, places, values = type(row), vars(row), list[tuple[str, str]](), list[Any]()
    for name, column in _columns(model).items():
        value = attributes[name]
        if value is None:
            if (value := column.of_none) is None:
                continue
        elif not value and column.empty is not None:
            places.append(column.empty)
            continue
        elif column.prepare is not None:
            value = column.prepare(value)
        places.append(column.given)
        values.append(value)
    return _row_text(_table_of(model), tuple(places)), values


@lru_cache(maxsize=100)
def _row_text(table: str, places: tuple[tuple[str, str], ...]) -> str:
    columns, literals = zip(*places, strict=True)
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join(literals)})"  # noqa: S608 - only names


def update(
    model: type[models.Model], changes: Mapping[str, Any], condition: str, parameters: Sequence[Any]
) -> Statement:
    """`changes` may be RawSQL, whose parameters are as the database takes them."""
    columns, places, values = _columns(model), [], []
    for name, value in changes.items():
        column = columns[name]
        if isinstance(value, RawSQL):
            places.append(f"{column.name} = {value.sql}")
            values += value.params
        else:
            places.append(f"{column.name} = %s")
            prepare = column.prepare
            values.append(column.of_none if value is None else prepare(value) if prepare else value)
    sql = f"UPDATE {_table_of(model)} SET {', '.join(places)} WHERE {condition}"  # noqa: S608 - only names
    return sql, [*values, *parameters]


def carry_out(*statements: Statement) -> int:
    """All or none. Returns how many rows the last one wrote."""
    with connection.cursor() as cursor:
        if ONE_STATEMENT:
            *others, (last, _) = statements
            parts = ", ".join(f"part_{number} AS ({sql})" for number, (sql, _) in enumerate(others))
            parameters = [value for _, values in statements for value in values]
            cursor.execute(f"WITH {parts} {last}" if parts else last, parameters)
        else:
            with transaction.atomic(savepoint=False) if len(statements) > 1 else contextlib.nullcontext():
                for sql, values in statements:
                    cursor.execute(sql, values)
        return int(cursor.rowcount)


def change_and(changing: Statement, *others: Statement) -> bool:
    """Run the other statements if the first changes a row, in one transaction. Returns whether it did.

    On PostgreSQL the others contain this condition as ONLY_IF_CHANGED.
    """
    sql, parameters = changing
    if ONE_STATEMENT and others:
        parts = "".join(f", part_{number} AS ({other})" for number, (other, _) in enumerate(others))
        parameters = [*parameters, *(value for _, values in others for value in values)]
        with connection.cursor() as cursor:
            sql = f"WITH changed AS ({sql} RETURNING 1){parts} SELECT COUNT(*) FROM changed"  # noqa: S608
            cursor.execute(sql, parameters)
            return bool(cursor.fetchone()[0])
    with (
        transaction.atomic(savepoint=False) if others else contextlib.nullcontext(),
        connection.cursor() as cursor,
    ):
        cursor.execute(sql, parameters)
        is_changed = bool(cursor.rowcount)
        for other, values in others if is_changed else ():
            cursor.execute(other, values)
    return is_changed
