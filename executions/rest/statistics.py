from collections.abc import Iterator
from datetime import datetime
from typing import Any

import django_filters  # type: ignore[import-untyped]
from django.db.models import QuerySet
from django.utils import timezone
from drf_spectacular.utils import OpenApiExample, extend_schema, extend_schema_view
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from catalogue.access import Scope
from catalogue.permissions import Access
from catalogue.rest.base import MomentFilter, Problem, Refusal
from catalogue.rest.views import ApiViewSet
from executions.models import Execution, HourlyUsage
from executions.models.usage import Outcome, hour_of
from executions.rest.base import caller_of
from executions.statistics import COLUMN_OF, DAY, HOUR, Period, Subject, figures_since

LONGEST = {"hour": 35 * DAY, "day": 400 * DAY, "": 800 * DAY}  # The longest time of one answer, by bucket
NUMBERS = (
    "calls", "failures", "cancelled", "cached", "mean_ms", "p50_ms", "p95_ms", "input_tokens",
    "output_tokens", "last_at",
)  # fmt: skip


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
        label="One row for each hour (up to 35 days) or each day in UTC (up to 400 days) in which something "
        "ended. Default: one row for the whole period.",
    )
    group_by = django_filters.MultipleChoiceFilter(
        choices=[(subject.value, subject.value) for subject in Subject],
        method="as_it_is",
        label="One row for each tool, toolset, caller, source or door; can be repeated: "
        "`group_by=tool&group_by=door`. Default: one total.",
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
    source = serializers.CharField(  # type: ignore[assignment]
        allow_null=True, help_text="The source's name at the time."
    )
    door = serializers.CharField(allow_null=True)
    calls = serializers.IntegerField(help_text="Executions that ended.")
    failures = serializers.IntegerField(help_text="Executions that failed or timed out.")
    cancelled = serializers.IntegerField()
    cached = serializers.IntegerField(help_text="Answered from the result cache, without a run.")
    mean_ms = serializers.IntegerField(allow_null=True, help_text="Mean duration of runs that ended.")
    p50_ms = serializers.IntegerField(allow_null=True, help_text="Median duration, estimated to within 20 %.")
    p95_ms = serializers.IntegerField(
        allow_null=True, help_text="95th percentile of the duration, estimated likewise."
    )
    input_tokens = serializers.IntegerField(help_text="Estimated from the characters of the arguments.")
    output_tokens = serializers.IntegerField(help_text="Estimated from the characters of the results.")
    last_at = serializers.DateTimeField(help_text="When the last of them ended.")


@extend_schema_view(
    list=extend_schema(
        operation_id="statistics_list",
        summary="Read statistics",
        description="Calls, failures, durations and tokens of executions that have ended, by the hour or day "
        "in which they did and by what they were for; the earliest first, then what was called most. They "
        "are kept longer than the executions. Callers who are not administrators see only their own calls.",
        responses=StatisticsSerializer(many=True),
        examples=[
            OpenApiExample(
                "The tools of a week",
                {
                    "time": None, "tool": "text_statistics", "toolset": None, "caller": None, "source": None,
                    "door": None, "calls": 120, "failures": 3, "cancelled": 0, "cached": 17, "mean_ms": 850,
                    "p50_ms": 790, "p95_ms": 2200, "input_tokens": 5200, "output_tokens": 9800,
                    "last_at": "2026-11-20T09:41:07Z",
                },
                response_only=True,
            )
        ],
    )
)  # fmt: skip
@extend_schema(tags=["Statistics"])
class StatisticsViewSet(ApiViewSet[HourlyUsage]):
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
        longest = LONGEST[chosen["bucket"]]
        if (chosen["ended_before"] or timezone.now()) - start > longest + HOUR:
            why = f"The period is too long: request at most {longest.days} days, or use another bucket."
            raise Refusal.invalid(why, [Problem("?ended_after", why)])
        found = sorted(
            _rows(rows, hour_of(start), chosen["bucket"], chosen["group_by"]),
            key=lambda row: (row["time"] or start, -row["calls"], *(row[one] or "" for one in Subject)),
        )
        page = self.paginate_queryset(found)
        return self.get_paginated_response(self.get_serializer(page, many=True).data)


def _rows(
    rows: QuerySet[HourlyUsage], start: datetime, bucket: str, group_by: list[str]
) -> Iterator[dict[str, Any]]:
    columns = [COLUMN_OF[Subject(name)] for name in group_by]
    lengths = {"": None, "hour": HOUR, "day": DAY}
    for key, figures in figures_since(rows, start, *columns, bucket=lengths[bucket]).items():
        time, values = (key[0], key[1:]) if bucket else (None, key)
        named = dict.fromkeys((subject.value for subject in Subject), None)
        numbers = {name: getattr(figures, name) for name in NUMBERS}
        yield {"time": time, **named, **dict(zip(group_by, values, strict=True)), **numbers}
