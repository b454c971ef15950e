"""By what the list of executions can be narrowed and ordered."""

import django_filters  # type: ignore[import-untyped]
from django.db.models import Q, QuerySet

from catalogue.rest.lists import StableOrdering, StrictBooleanFilter
from executions.models import Execution, State
from executions.querysets import ExecutionQuerySet


class ExecutionFilters(django_filters.FilterSet):  # type: ignore[misc]
    state = django_filters.MultipleChoiceFilter(
        choices=State.choices, label="Several may be named: `state=running&state=failed`."
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
    # After all others: it looks at the newest of what they leave.
    search = django_filters.CharFilter(
        method="by_text",
        label="Has this text, in any case of letters, in the name of its tool, workflow, source or caller, "
        "in its error or last progress message, or in an id of the engine's or a key. Looks at the newest "
        "20,000 that the other parameters leave, and gives the newest 1,000 of what it finds; "
        "`created_before` reaches older ones. The whole id of an execution or a run is found however old it "
        "is. Payloads are not searched.",
    )
    ordering = StableOrdering(
        fields=["created_at", "finished_at", "state", ("tool_name", "tool"), ("source_name", "source")]
    )

    def by_text(self, executions: ExecutionQuerySet, name: str, text: str) -> QuerySet[Execution]:
        return executions.matching(text.strip())

    def by_queue(self, executions: QuerySet[Execution], name: str, wanted: bool) -> QuerySet[Execution]:
        waiting = Q(state=State.PENDING, admitted_at=None)
        return executions.filter(waiting if wanted else ~waiting)
