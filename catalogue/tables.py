"""Lists as CSV, for programs and spreadsheets: the same columns and cells at each interface."""

import csv
import json
import re
from collections.abc import Callable, Collection, Iterator
from io import StringIO
from typing import Any

from django.db.models import Model, QuerySet
from django.http import StreamingHttpResponse

from catalogue.audit import record_export
from catalogue.database import lend_connection
from catalogue.history import Actor
from catalogue.long_lists import all_pages

CSV = "text/csv"
AT_A_TIME = 100  # Their instances are in memory while the reader takes them
# Spreadsheets would evaluate an engine's or agent's text; the wide forms too, in East Asian settings.
FORMULA_BEGINS = ("=", "+", "-", "@", "\t", "\r", "\n", *"\uff1d\uff0b\uff0d\uff20")
# The characters by which spreadsheets of other languages separate the same file.
BEFORE_FORMULAS = re.compile(r'(?<=[;\t\r\n])(?=["\s]*[=+\-@\uff1d\uff0b\uff0d\uff20])')

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


def _lines(rows: QuerySet[Any], serializer: Any, newest_by: str) -> Iterator[bytes]:
    columns = {name: _columns_of(name, field) for name, field in serializer.fields.items()}
    yield _write([[column for several in columns.values() for column in several]])
    for page in all_pages(rows, by=newest_by, at_a_time=AT_A_TIME):
        yield _write(_cells(serializer.to_representation(row), columns) for row in page)
        # A slow reader keeps no connection.
        lend_connection()


def _columns_of(name: str, field: Any) -> tuple[str, ...]:
    """Several for an object; the serializer of that may name them."""
    if not hasattr(field, "fields"):
        return (name,)
    return getattr(field, "columns", None) or tuple(f"{name}_{inner}" for inner in field.fields)


def _cells(row: dict[str, Any], columns: dict[str, tuple[str, ...]]) -> list[Any]:
    cells: list[Any] = []
    for name, its in columns.items():
        value = row[name]
        if its == (name,):
            cells.append(value)
        else:
            cells += [None] * len(its) if value is None else value.values()
    return [_harmless(_as_text(cell)) for cell in cells]


def _as_text(cell: Any) -> Any:
    """`true` and `false`, lists of texts with commas, and other values of several parts as JSON."""
    if isinstance(cell, list) and all(isinstance(one, str) for one in cell):
        return ", ".join(cell)
    return json.dumps(cell, ensure_ascii=False) if isinstance(cell, bool | list | dict) else cell


def _harmless(cell: Any) -> Any:
    """No formula."""
    if not isinstance(cell, str):
        return cell
    text = BEFORE_FORMULAS.sub("'", cell)
    return f"'{text}" if text.startswith(FORMULA_BEGINS) else text


def _write(rows: Any) -> bytes:
    text = StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue().encode("utf-8", "replace")
