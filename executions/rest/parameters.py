"""What a request has besides its body: caller, headers and filters, and whether it may wait."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import django_filters  # type: ignore[import-untyped]
from django.db.models import Q, QuerySet
from rest_framework import status
from rest_framework.request import Request

from catalogue.permissions import is_administrator
from catalogue.rest.base import Refusal, StableOrdering, StrictBooleanFilter
from executions.callers import Caller
from executions.models import Execution, State
from executions.models.record import ExecutionQuerySet
from executions.refusals import InvalidIdempotencyKey
from executions.starting import read_idempotency_key


def caller_of(request: Request) -> Caller:
    token: Any = request.auth
    if token is not None:
        caller: Caller = token.caller
        return replace(caller, sees_everything=is_administrator(request))
    user: Any = request.user
    return Caller(key=f"user:{user.pk}", name=user.get_username(), sees_everything=is_administrator(request))


IDEMPOTENCY_KEY = "Idempotency-Key"
IDEMPOTENT_REPLAYED = "Idempotent-Replayed"
CACHE_CONTROL = "Cache-Control"


def idempotency_key_of(request: Request) -> str:
    """Empty if none was sent. Raises Refusal for an invalid one."""
    sent = request.headers.get(IDEMPOTENCY_KEY)
    try:
        return "" if sent is None else read_idempotency_key(sent)
    except InvalidIdempotencyKey as error:
        raise Refusal(status.HTTP_400_BAD_REQUEST, str(error), kind="validation") from None


def wants_fresh(request: Request) -> bool:
    """Whether a cached result may not answer."""
    directives = request.headers.get(CACHE_CONTROL, "").split(",")
    return "no-cache" in [directive.strip().lower() for directive in directives]


class ExecutionFilters(django_filters.FilterSet):  # type: ignore[misc]
    state = django_filters.MultipleChoiceFilter(
        choices=State.choices,
        label="Several may be named: `state=running&state=failed`.",
        distinct=False,  # No join multiplies the rows.
    )
    tool = django_filters.CharFilter(field_name="tool_name", label="The tool's name at the time.")
    source = django_filters.CharFilter(field_name="source_name", label="The source's name at the time.")
    caller = django_filters.CharFilter(label="Who started it, such as `token:7` or `user:1`.")
    idempotency_key = django_filters.CharFilter(label="The key that its caller gave it.")
    queued = StrictBooleanFilter(method="by_queue", label="Whether it waits in the queue.")
    cached = StrictBooleanFilter(
        field_name="cached_at",
        lookup_expr="isnull",
        exclude=True,
        label="Whether a cached result answered it, without a run.",
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
    ordering = StableOrdering(
        fields=["created_at", "finished_at", "state", ("tool_name", "tool"), ("source_name", "source")]
    )

    def by_text(self, executions: ExecutionQuerySet[Execution], name: str, text: str) -> QuerySet[Execution]:
        return executions.matching(text.strip())

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
