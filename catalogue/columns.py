"""The rows of long lists, column by column: how a field is read is decided once for many rows."""

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from operator import attrgetter
from typing import Any

from django.core.exceptions import ObjectDoesNotExist
from rest_framework.fields import Field
from rest_framework.relations import PKOnlyObject
from rest_framework.serializers import ListSerializer

Column = tuple[Any, list[Any]]  # A field, and its value in each row
REPEATED = {str, bool, datetime, type(None)}  # Of different types, no two values are equal


class Rows(ListSerializer[Any]):
    """The same values in less time. For lists of serializers whose every row has every field."""

    def to_representation(self, data: Any) -> list[dict[str, Any]]:
        return _as_rows(self.child, list(data.all() if hasattr(data, "all") else data))


def columns_of(serializer: Any, rows: list[Any]) -> Iterator[Column]:
    """Of a field that has fields itself, the values are what these are read from, or None."""
    for field in serializer.fields.values():
        values = _values(field, rows)
        yield field, values if hasattr(field, "fields") else map_repeated(field.to_representation, values)


def spread(found: Iterable[Any], values: Iterable[Any]) -> list[Any]:
    """What was found for those of the values that are not None, at their places."""
    following = iter(found)
    return [None if value is None else next(following) for value in values]


def present(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if value is not None]


def map_repeated(convert: Callable[[Any], Any], values: list[Any]) -> list[Any]:
    """None stays None; of equal texts, truths and times, one is converted."""
    if not set(map(type, values)) <= REPEATED:
        return [None if value is None else convert(value) for value in values]
    known = {value: None if value is None else convert(value) for value in set(values)}
    return [known[value] for value in values]


def _as_rows(serializer: Any, rows: list[Any]) -> list[dict[str, Any]]:
    columns = {}
    for field, values in columns_of(serializer, rows):
        nested = hasattr(field, "fields")
        columns[field.field_name] = spread(_as_rows(field, present(values)), values) if nested else values
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _values(field: Any, rows: list[Any]) -> list[Any]:
    if type(field).get_attribute is Field.get_attribute and field.source_attrs:
        try:
            values = list(map(attrgetter(".".join(field.source_attrs)), rows))
        except (AttributeError, KeyError, ObjectDoesNotExist):
            return [_value(field, row) for row in rows]
        if not any(map(callable, values)):
            return values
    return [_value(field, row) for row in rows]


def _value(field: Any, row: Any) -> Any:
    attribute = field.get_attribute(row)
    return None if isinstance(attribute, PKOnlyObject) and attribute.pk is None else attribute
