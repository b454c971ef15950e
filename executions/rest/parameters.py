"""What a request has besides its body: caller, headers, filters, a place to wait; lists as pages or CSV."""

import csv
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from io import StringIO
from typing import Any

import django_filters  # type: ignore[import-untyped]
from django.db.models import Q, QuerySet
from drf_spectacular.utils import OpenApiParameter
from rest_framework import status
from rest_framework.request import Request

from catalogue.database import lend_connection
from catalogue.permissions import is_administrator
from catalogue.reservations import person_of
from catalogue.rest import base
from executions.callers import Caller
from executions.models import Execution, State
from executions.models.record import ExecutionQuerySet
from executions.reading import all_of
from executions.refusals import InvalidIdempotencyKey
from executions.starting import read_idempotency_key


def caller_of(request: Request) -> Caller:
    token: Any = request.auth
    if token is not None:
        caller: Caller = token.caller
        return replace(caller, sees_everything=is_administrator(request))
    user: Any = request.user
    return Caller(
        key=f"user:{user.pk}",
        name=user.get_username(),
        sees_everything=is_administrator(request),
        person=person_of(user),
        user_id=user.pk,
    )


IDEMPOTENCY_KEY = "Idempotency-Key"
IDEMPOTENT_REPLAYED = "Idempotent-Replayed"
CACHE_CONTROL = "Cache-Control"


def idempotency_key_of(request: Request) -> str:
    """Empty if none was sent. Raises Refusal for an invalid one."""
    sent = request.headers.get(IDEMPOTENCY_KEY)
    try:
        return "" if sent is None else read_idempotency_key(sent)
    except InvalidIdempotencyKey as error:
        raise base.Refusal(status.HTTP_400_BAD_REQUEST, str(error), kind="validation") from None


def wants_fresh(request: Request) -> bool:
    directives = request.headers.get(CACHE_CONTROL, "").split(",")
    return "no-cache" in [directive.strip().lower() for directive in directives]


class ExecutionFilters(django_filters.FilterSet):  # type: ignore[misc]
    state = django_filters.MultipleChoiceFilter(
        choices=State.choices, method="by_state", label="Several may be named: `state=running&state=failed`."
    )
    tool = django_filters.CharFilter(field_name="tool_name", label="The tool's name at the time.")
    source = django_filters.CharFilter(field_name="source_name", label="The source's name at the time.")
    caller = django_filters.CharFilter(label="Who started it, such as `token:7` or `user:1`.")
    idempotency_key = django_filters.CharFilter(label="The key that its caller gave it.")
    queued = base.StrictBooleanFilter(method="by_queue", label="Whether it waits in the queue.")
    cached = base.StrictBooleanFilter(
        method="by_cache", label="Whether a cached result answered it, without a run."
    )
    door = django_filters.ChoiceFilter(choices=Execution.Door.choices)
    created_after = django_filters.IsoDateTimeFilter(field_name="created_at", lookup_expr="gte")
    created_before = django_filters.IsoDateTimeFilter(field_name="created_at", lookup_expr="lt")
    # Last: it searches the newest that the other filters leave.
    search = django_filters.CharFilter(
        method="by_text",
        label="Has this text, in any case of letters, in the name of its tool, workflow, source or caller, "
        "in its error or last progress message, or in an id of the engine's or a key. Looks at the newest "
        "20,000 that the other parameters leave, and gives the newest 1,000 of what it finds; "
        "`created_before` reaches older ones. The whole id of an execution or a run, and the whole name of a "
        "tool, are found however old they are. Payloads are not searched.",
    )
    ordering = base.StableOrdering(
        fields=["created_at", "finished_at", "state", ("tool_name", "tool"), ("source_name", "source")]
    )

    def by_text(self, executions: ExecutionQuerySet[Execution], name: str, text: str) -> QuerySet[Execution]:
        return executions.matching(text.strip())

    def by_state(self, executions: QuerySet[Execution], name: str, states: list[str]) -> QuerySet[Execution]:
        return executions.filter(state__in=states) if states else executions

    def by_cache(self, executions: QuerySet[Execution], name: str, wanted: bool) -> QuerySet[Execution]:
        # Not by excluding, in which SQLite does not recognise the condition of the index.
        return executions.filter(cached_at__isnull=not wanted)

    def by_queue(self, executions: QuerySet[Execution], name: str, wanted: bool) -> QuerySet[Execution]:
        waiting = Q(state=State.PENDING, admitted_at=None)
        return executions.filter(waiting if wanted else ~waiting)


MOST = 128  # Concurrent waits of one web process, which has twice as many threads
MOST_OF_ONE = 64  # Of one caller


class WaitingPlaces:
    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._taken: Counter[str] = Counter()

    @contextmanager
    def one_for(self, caller: str) -> Iterator[bool]:
        """Returns whether there was a place, which is held for the block."""
        has_place = self._take(caller)
        try:
            yield has_place
        finally:
            if has_place:
                with self._turn:
                    self._taken[caller] -= 1
                    if not self._taken[caller]:
                        del self._taken[caller]

    def _take(self, caller: str) -> bool:
        with self._turn:
            has_place = self._taken.total() < MOST and self._taken[caller] < MOST_OF_ONE
            if has_place:
                self._taken[caller] += 1
        return has_place


waiting_places = WaitingPlaces()
FORMAT = OpenApiParameter(
    "format",
    enum=["json", "csv"],
    description="`csv`: all executions that the other parameters leave, the newest first, as one table.",
)


CSV = "text/csv"
AT_A_TIME = 500
FORMULA_BEGINS = ("=", "+", "-", "@", "\t", "\r")  # Spreadsheets would evaluate an engine's or agent's text
NESTED = {"error": ("error_kind", "error")}


def wants_csv(request: Request) -> bool:
    """Raises Refusal for an unknown format, and for parameters of pages."""
    wanted = request.query_params.get(FORMAT.name, "json")
    beside = [name for name in ("page", "page_size", "cursor", "ordering") if name in request.query_params]
    problems = []
    if wanted not in ("json", "csv"):
        problems = [base.Problem(f"?{FORMAT.name}", "Use json or csv.")]
    elif wanted == "csv":
        problems = [base.Problem(f"?{name}", "A table is whole, the newest first.") for name in beside]
    if problems:
        raise base.Refusal(400, base.REFUSED, kind="validation", errors=problems)
    return wanted == "csv"


def write_csv(executions: QuerySet[Execution], serializer: Any) -> Iterator[bytes]:
    names = list(serializer.fields)
    yield _write([[column for name in names for column in NESTED.get(name, (name,))]])
    for page in all_of(executions, at_a_time=AT_A_TIME):
        yield _write(_cells(serializer.to_representation(row), names) for row in page)
        # A slow reader keeps no connection.
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
    """Empty for None, `true` and `false`, and no formulas."""
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if isinstance(cell, str) and cell.startswith(FORMULA_BEGINS):
        return f"'{cell}"
    return cell


def _write(rows: Any) -> bytes:
    text = StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue().encode("utf-8", "replace")
