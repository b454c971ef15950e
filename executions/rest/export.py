"""Executions as a table, for spreadsheets: as many as there are, a page of them in memory at a time."""

import csv
from collections.abc import Iterator
from io import StringIO
from typing import Any

from django.db.models import QuerySet
from django.http import StreamingHttpResponse
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request

from catalogue.database import lend_connection
from catalogue.rest.errors import Problem, Refusal
from catalogue.rest.lists import REFUSED
from executions.models import Execution
from executions.reading import all_of

CSV = "text/csv"
AT_A_TIME = 500
FORMAT = OpenApiParameter(
    "format",
    enum=["json", "csv"],
    description="`csv`: all executions that the other parameters leave, the newest first, as one table.",
)
FORMULA_BEGINS = ("=", "+", "-", "@", "\t", "\r")
"""What makes spreadsheets compute a text, which engines and agents may have written."""
NESTED = {"error": ("error_kind", "error")}
"""A field that is an object, and its columns: its members in their order."""


def wants_csv(request: Request) -> bool:
    """Raises Refusal for a format that there is not, and for what goes with pages only."""
    wanted = request.query_params.get(FORMAT.name, "json")
    beside = [name for name in ("page", "page_size", "cursor", "ordering") if name in request.query_params]
    problems = []
    if wanted not in ("json", "csv"):
        problems = [Problem(f"?{FORMAT.name}", "Say json or csv.")]
    elif wanted == "csv":
        problems = [Problem(f"?{name}", "A table is whole, the newest first.") for name in beside]
    if problems:
        raise Refusal(400, REFUSED, kind="validation", errors=problems)
    return wanted == "csv"


def write_csv(executions: QuerySet[Execution], serializer: Any) -> StreamingHttpResponse:
    response = StreamingHttpResponse(_lines(executions, serializer), content_type=f"{CSV}; charset=utf-8")
    response["Content-Disposition"] = 'attachment; filename="executions.csv"'
    return response


def _lines(executions: QuerySet[Execution], serializer: Any) -> Iterator[bytes]:
    names = list(serializer.fields)
    yield _write([[column for name in names for column in NESTED.get(name, (name,))]])
    for page in all_of(executions, at_a_time=AT_A_TIME):
        yield _write(_cells(serializer.to_representation(row), names) for row in page)
        # Whoever reads slowly keeps no connection from others.
        lend_connection()


def _cells(row: dict[str, Any], names: list[str]) -> list[Any]:
    cells: list[Any] = []
    for name in names:
        if name in NESTED:
            cells += list((row[name] or dict.fromkeys(NESTED[name])).values())
        else:
            cells.append(row[name])
    return [_harmless(cell) for cell in cells]


def _harmless(cell: Any) -> Any:
    """Nothing as nothing, truth as REST says it, and no text that would be computed."""
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if isinstance(cell, str) and cell.startswith(FORMULA_BEGINS):
        return f"'{cell}"
    return cell


def _write(rows: Any) -> bytes:
    text = StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue().encode("utf-8", "replace")
