"""By what the catalogue's lists can be narrowed and ordered."""

import django_filters  # type: ignore[import-untyped]
from django.db.models import Q, QuerySet

from catalogue.exposure import confirmed_catalogue
from catalogue.models import DiscoveryRun, Review, Source, Workflow
from catalogue.querysets import WorkflowQuerySet
from catalogue.rest.errors import Problem, Refusal
from catalogue.rest.lists import StableOrdering, StrictBooleanFilter


class SourceFilters(django_filters.FilterSet):  # type: ignore[misc]
    enabled = StrictBooleanFilter()
    kind = django_filters.CharFilter()
    health = django_filters.ChoiceFilter(field_name="health_state", choices=Source.HealthState.choices)
    ordering = StableOrdering(fields=["name", "created_at", "last_refreshed_at"])


class WorkflowFilters(django_filters.FilterSet):  # type: ignore[misc]
    source = django_filters.CharFilter(field_name="source__name", label="The source's name.")
    enabled = StrictBooleanFilter(label="Enabled by a curator.")
    missing = StrictBooleanFilter(
        field_name="missing_since", lookup_expr="isnull", exclude=True, label="Gone from the engine's list."
    )
    exposed = StrictBooleanFilter(method="filter_exposed", label="Agents see it and may call it.")
    category = django_filters.CharFilter()
    execution_type = django_filters.ChoiceFilter(
        choices=Workflow.ExecutionType.choices, method="filter_execution_type"
    )
    limited = StrictBooleanFilter(
        field_name="max_concurrent",
        lookup_expr="isnull",
        exclude=True,
        label="Has a limit of its own for concurrent runs.",
    )
    cached = StrictBooleanFilter(
        method="filter_cached", label="Calls may be answered with an earlier result."
    )
    needs_description = StrictBooleanFilter(
        method="filter_undescribed", label="Has no description, neither the engine's nor a curator's."
    )
    review = django_filters.ChoiceFilter(
        choices=Review.Kind.choices, method="filter_review", label="Awaits review as this."
    )
    offered_as_prompt = StrictBooleanFilter(label="Clients show it to people as a command.")
    tag = django_filters.CharFilter(method="filter_tag", label="Carries this tag, in any case of letters.")
    search = django_filters.CharFilter(
        method="filter_search", label="Has this text in a name or description, or as its engine's id."
    )
    ordering = StableOrdering(
        fields=["tool_name", "name", "category", "first_seen_at", "changed_at", ("source__name", "source")]
    )

    def filter_cached(self, workflows: QuerySet[Workflow], name: str, value: bool) -> QuerySet[Workflow]:
        cached = Workflow.objects.cached().values("pk")
        return workflows.filter(pk__in=cached) if value else workflows.exclude(pk__in=cached)

    def filter_undescribed(self, workflows: QuerySet[Workflow], name: str, value: bool) -> QuerySet[Workflow]:
        undescribed = Workflow.objects.undescribed().values("pk")
        return workflows.filter(pk__in=undescribed) if value else workflows.exclude(pk__in=undescribed)

    def filter_review(self, workflows: QuerySet[Workflow], name: str, value: str) -> QuerySet[Workflow]:
        return workflows.filter(review__in=Review.objects.awaiting().filter(kind=value))

    def filter_exposed(self, queryset: QuerySet[Workflow], name: str, value: bool) -> QuerySet[Workflow]:
        return filter_by_exposure(queryset, exposed=value)

    def filter_execution_type(
        self, queryset: QuerySet[Workflow], name: str, value: str
    ) -> QuerySet[Workflow]:
        ours, engines = Q(execution_type_override=value), Q(execution_type_override="", execution_type=value)
        return queryset.filter(ours | engines)

    def filter_tag(self, queryset: WorkflowQuerySet, name: str, value: str) -> QuerySet[Workflow]:
        return queryset.tagged(value)

    def filter_search(self, queryset: WorkflowQuerySet, name: str, value: str) -> QuerySet[Workflow]:
        return queryset.matching(value)


class ToolFilters(django_filters.FilterSet):  # type: ignore[misc]
    ids = django_filters.CharFilter(
        method="filter_ids", label="Only these, separated by commas; each of them has to exist."
    )
    source = django_filters.CharFilter(field_name="source__name", label="The source's name.")
    exposed = StrictBooleanFilter(method="filter_exposed", label="Agents see it and may call it.")
    search = django_filters.CharFilter(
        method="filter_search", label="Has this text in a name or description."
    )
    ordering = StableOrdering(
        fields=[("tool_name", "id"), ("source__name", "source"), ("changed_at", "updated_at")]
    )

    def filter_ids(self, queryset: QuerySet[Workflow], name: str, value: str) -> QuerySet[Workflow]:
        wanted = dict.fromkeys(filter(None, (part.strip() for part in value.split(","))))
        chosen = queryset.filter(tool_name__in=wanted)
        if unknown := wanted.keys() - set(chosen.values_list("tool_name", flat=True)):
            told = [tool_id for tool_id in wanted if tool_id in unknown]
            problems = [Problem("?ids", f"No such tool: {tool_id[:100]}") for tool_id in told]
            raise Refusal(404, f"There are no such tools: {', '.join(told)[:2000]}.", errors=problems)
        return chosen

    def filter_exposed(self, queryset: QuerySet[Workflow], name: str, value: bool) -> QuerySet[Workflow]:
        return filter_by_exposure(queryset, exposed=value)

    def filter_search(self, queryset: WorkflowQuerySet, name: str, value: str) -> QuerySet[Workflow]:
        return queryset.matching(value)


def filter_by_exposure(workflows: QuerySet[Workflow], *, exposed: bool) -> QuerySet[Workflow]:
    names = list(confirmed_catalogue().workflows)
    return workflows.filter(tool_name__in=names) if exposed else workflows.exclude(tool_name__in=names)


class DiscoveryRunFilters(django_filters.FilterSet):  # type: ignore[misc]
    source = django_filters.CharFilter(field_name="source__name", label="The source's name.")
    outcome = django_filters.ChoiceFilter(choices=DiscoveryRun.Outcome.choices)
    trigger = django_filters.ChoiceFilter(choices=DiscoveryRun.Trigger.choices)
    ordering = StableOrdering(fields=["started_at"])
