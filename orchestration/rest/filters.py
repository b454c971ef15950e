"""By what the list of requests in words can be narrowed and ordered."""

import django_filters  # type: ignore[import-untyped]

from catalogue.rest.lists import StableOrdering, StrictBooleanFilter
from orchestration.models import WorkflowRequest
from orchestration.stages import Failure, Stage


class WorkflowRequestFilters(django_filters.FilterSet):  # type: ignore[misc]
    status = django_filters.ChoiceFilter(choices=WorkflowRequest.Status.choices)
    tool = django_filters.CharFilter(field_name="selected_tool", label="The tool that was chosen.")
    caller = django_filters.CharFilter(label="Who asked, such as `token:7` or `user:1`.")
    idempotency_key = django_filters.CharFilter(label="The key that its caller gave it.")
    error_stage = django_filters.ChoiceFilter(choices=Stage.choices)
    failure = django_filters.ChoiceFilter(choices=Failure.choices)
    dry_run = StrictBooleanFilter()
    created_after = django_filters.IsoDateTimeFilter(field_name="created_at", lookup_expr="gte")
    created_before = django_filters.IsoDateTimeFilter(field_name="created_at", lookup_expr="lt")
    ordering = StableOrdering(
        fields=["created_at", "finished_at", "status", ("selected_tool", "tool"), "prompt_tokens"]
    )
