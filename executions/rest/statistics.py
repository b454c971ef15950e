from datetime import datetime
from typing import Any

import django_filters  # type: ignore[import-untyped]
from django.db.models import QuerySet
from django.utils import timezone
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from access.callers import Scope
from access.permissions import Access
from catalogue.rest.base import MomentFilter, Problem, Refusal
from catalogue.rest.views import ApiViewSet
from executions.models import Execution, HourlyUsage
from executions.models.usage import Outcome, hour_of
from executions.rest.shared import caller_of
from executions.statistics import COLUMN_OF, DAY, HOUR, Figures, Period, Subject, figures_since

MAX_PERIODS = {"hour": 35 * DAY, "day": 400 * DAY, "": 800 * DAY}  # The longest time of one answer, by bucket


class StatisticsFilters(django_filters.FilterSet):  # type: ignore[misc]
    """What is counted and how it is grouped."""

    ended_after = MomentFilter(
        method="by_start", label="The first hour, given as any time within it. Default: 24 hours ago."
    )
    ended_before = MomentFilter(
        method="by_end", label="The end, exclusive of the hour that contains this time. Default: now."
    )
    bucket = django_filters.ChoiceFilter(
        choices=[("hour", "hour"), ("day", "day")],
        method="as_it_is",
        label="A row for each hour (up to 35 days) or UTC day (up to 400 days) in which something ended. "
        "Default: one for the whole period.",
    )
    group_by = django_filters.MultipleChoiceFilter(
        choices=[(subject.value, subject.value) for subject in Subject],
        method="as_it_is",
        label="A row for each of these; can be repeated: `group_by=tool&group_by=door`. Default: one total.",
    )
    tool = django_filters.CharFilter(field_name="tool_name", label="The tool's name at the time.")
    toolset = django_filters.CharFilter(label="The slug of the toolset whose address was called.")
    caller = django_filters.CharFilter(label="The caller, such as `token:7` or `user:1`.")
    source = django_filters.CharFilter(field_name="source_name", label="The source's name at the time.")
    door = django_filters.ChoiceFilter(choices=Execution.Door.choices)
    outcome = django_filters.MultipleChoiceFilter(
        choices=Outcome.choices, label="Several may be named: `outcome=failed&outcome=timed_out`."
    )

    def by_start(self, rows: QuerySet[HourlyUsage], name: str, moment: datetime) -> QuerySet[HourlyUsage]:
        return rows.filter(hour__gte=hour_of(moment))

    def by_end(self, rows: QuerySet[HourlyUsage], name: str, moment: datetime) -> QuerySet[HourlyUsage]:
        return rows.filter(hour__lt=hour_of(moment))

    def as_it_is(self, rows: QuerySet[HourlyUsage], name: str, value: Any) -> QuerySet[HourlyUsage]:
        """Groups the rows instead of selecting them."""
        return rows


class StatisticsSerializer(serializers.Serializer[Any]):
    """The figures of the executions that ended in a period; null in columns outside the grouping."""

    time = serializers.DateTimeField(allow_null=True, help_text="When the hour or day begins.")
    tool = serializers.CharField(allow_null=True, help_text="The tool's name at the time.")
    toolset = serializers.CharField(allow_null=True, help_text="Empty: the address of all tools.")
    caller = serializers.CharField(allow_null=True)
    source = serializers.CharField(allow_null=True)  # type: ignore[assignment]
    door = serializers.CharField(allow_null=True)
    calls = serializers.IntegerField(help_text="Executions that ended.")
    failures = serializers.IntegerField(help_text="Executions that failed or timed out.")
    cancelled = serializers.IntegerField()
    cached = serializers.IntegerField(help_text="Answered from the result cache, without a run.")
    cards = serializers.IntegerField(help_text="Shown by a card in a chat.")
    mean_ms = serializers.IntegerField(allow_null=True, help_text="Mean duration of runs that ended.")
    p50_ms = serializers.IntegerField(allow_null=True, help_text="Median duration, to within 20 %.")
    p95_ms = serializers.IntegerField(allow_null=True, help_text="95th percentile, to within 20 %.")
    input_tokens = serializers.IntegerField(help_text="Estimated from the characters of the arguments.")
    output_tokens = serializers.IntegerField(help_text="Estimated from the characters of the results.")
    last_at = serializers.DateTimeField(help_text="When the last of them ended.")


NUMBERS = [name for name in StatisticsSerializer().get_fields() if hasattr(Figures, name)]


@extend_schema_view(
    list=extend_schema(
        operation_id="statistics_list", summary="Read statistics", responses=StatisticsSerializer(many=True)
    )
)
@extend_schema(tags=["Statistics"])
class StatisticsViewSet(ApiViewSet[HourlyUsage]):
    """Of executions that have ended, by the hour or day in which they did and by what they were for; the
    earliest first, then what was called most. Kept longer than the executions. Callers who are not
    administrators see only their own calls."""

    queryset = HourlyUsage.objects.none()
    filterset_class = StatisticsFilters
    serializer_class = StatisticsSerializer
    access = {"list": Access(Scope.READ, "executions.view_execution")}

    def get_queryset(self) -> QuerySet[HourlyUsage]:
        return HourlyUsage.objects.visible_to(caller_of(self.request))

    def list(self, request: Request) -> Response:
        rows = self.filter_queryset(self.get_queryset())
        asked = StatisticsFilters(request.query_params, queryset=HourlyUsage.objects.none()).form
        asked.is_valid()
        chosen: dict[str, Any] = asked.cleaned_data
        start = chosen["ended_after"] or Period.DAY.start()
        longest = MAX_PERIODS[chosen["bucket"]]
        if (chosen["ended_before"] or timezone.now()) - start > longest + HOUR:
            why = f"The period is too long: request at most {longest.days} days, or use another bucket."
            raise Refusal.invalid(why, [Problem("?ended_after", why)])
        columns = [COLUMN_OF[Subject(name)] for name in chosen["group_by"]]
        length = {"": None, "hour": HOUR, "day": DAY}[chosen["bucket"]]
        named = [*(["time"] if length else []), *chosen["group_by"]]
        found = [
            dict.fromkeys(("time", *Subject))
            | dict(zip(named, key, strict=True))
            | {name: getattr(figures, name) for name in NUMBERS}
            for key, figures in figures_since(rows, hour_of(start), *columns, bucket=length).items()
        ]
        found.sort(
            key=lambda row: (row["time"] or start, -row["calls"], *(row[one] or "" for one in Subject))
        )
        page = self.paginate_queryset(found)
        return self.get_paginated_response(self.get_serializer(page, many=True).data)
