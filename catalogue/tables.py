"""Lists as CSV, for programs and spreadsheets: the same columns and cells at each interface."""

import csv
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from io import StringIO
from itertools import chain
from typing import Any

from django.db.models import Model, QuerySet
from django.http import StreamingHttpResponse

from catalogue.audit import record_export
from catalogue.database import release_connection
from catalogue.history import Actor
from catalogue.long_lists import all_pages

CSV = "text/csv"
write_as_json = json.JSONEncoder(ensure_ascii=False).encode
AT_A_TIME = 500  # Their instances are in memory while the reader takes them
# Spreadsheets would evaluate an engine's or agent's text; the wide forms too, in East Asian settings.
FORMULA_BEGINS = ("=", "+", "-", "@", "\t", "\r", "\n", *"\uff1d\uff0b\uff0d\uff20")
# The characters by which spreadsheets of other languages separate the same file.
BEFORE_FORMULAS = re.compile(r'(?<=[;\t\r\n])(?=["\s]*[=+\-@\uff1d\uff0b\uff0d\uff20])')

SEPARATORS = re.compile(r"[;\t\r\n]")

serializers: dict[type[Model], Callable[..., Any]] = {}
"""Those of REST's lists, which register themselves: the admin's tables have their columns, too."""


def send_table(
    rows: QuerySet[Any], serializer: Any, *, by: Actor, filters: Collection[str], newest_by: str
) -> StreamingHttpResponse:
    """All of the rows, by `newest_by` or in their order; read page by page while they are sent."""
    name = str(rows.model._meta.verbose_name_plural)
    record_export(by, name, filters=sorted(filters))
    response = StreamingHttpResponse(
        _lines(rows, serializer, newest_by), content_type=f"{CSV}; charset=utf-8"
    )
    response["Content-Disposition"] = f'attachment; filename="{name}.csv"'
    return response


def send_rows(
    names: Iterable[str], rows: Iterable[Iterable[Any]], *, name: str, by: Actor, **filters: Any
) -> StreamingHttpResponse:
    """A table that is not one of a model; the rows are made while they are sent."""
    record_export(by, name, **filters)
    lines = (_write([row]) for row in chain([names], (map(_cell, row) for row in rows)))
    response = StreamingHttpResponse(lines, content_type=f"{CSV}; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{name}.csv"'
    return response


def _lines(rows: QuerySet[Any], serializer: Any, newest_by: str) -> Iterator[bytes]:
    yield _write([_names(serializer)])
    for page in all_pages(rows, by=newest_by, at_a_time=AT_A_TIME):
        yield _write(_cells(serializer, row) for row in page)
        # A slow reader keeps no connection.
        release_connection()


def _names(serializer: Any) -> Iterator[str]:
    """An object has several columns, which its serializer may name."""
    for name, field in serializer.fields.items():
        if hasattr(field, "fields"):
            yield from getattr(field, "columns", None) or (f"{name}_{inner}" for inner in field.fields)
        else:
            yield name


def _cells(serializer: Any, row: Any) -> Iterator[Any]:
    shown = serializer.to_representation(row)
    for name, field in serializer.fields.items():
        if hasattr(field, "fields"):
            parts = shown[name] or dict.fromkeys(field.fields)
            yield from map(_cell, parts.values())
        else:
            yield _cell(shown[name])


def _cell(cell: Any) -> Any:
    """`true` and `false`, lists of texts with commas, and other values of several parts as JSON; no text is
    a formula."""
    if isinstance(cell, list) and all(isinstance(one, str) for one in cell):
        cell = ", ".join(cell)
    elif isinstance(cell, bool | list | dict):
        cell = write_as_json(cell)
    if not isinstance(cell, str):
        return cell
    # Most cells have no separator: the search for one takes a tenth of the time.
    text = BEFORE_FORMULAS.sub("'", cell) if SEPARATORS.search(cell) else cell
    return f"'{text}" if text.startswith(FORMULA_BEGINS) else text


def _write(rows: Iterable[Iterable[Any]]) -> bytes:
    text = StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue().encode("utf-8", "replace")
