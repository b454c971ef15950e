from datetime import timedelta
from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from unfold.contrib.filters.admin import DropdownFilter

from catalogue.admin.rendering import link_if_allowed
from catalogue.long_lists import begin_at
from catalogue.models import Source, Toolset
from catalogue.reservations import person_of
from executions.callers import Caller
from executions.models import Execution, State
from executions.models.record import recorded_source_names
from executions.models.states import ACTIVE
from executions.models.usage import FAILURES
from executions.statistics import Period


def caller_of(request: HttpRequest) -> Caller:
    return Caller(
        key=f"user:{request.user.pk}",
        name=request.user.get_username(),
        sees_everything=True,
        person=person_of(request.user),
        user_id=request.user.pk,
    )


caller_pages = {"user": "auth_user_change"}  # By kind of caller key; the rooms above add theirs


def show_caller(request: HttpRequest, *, key: str, name: str) -> Any:
    told = f"{name} ({key})"
    kind, _, number = key.partition(":")
    if kind not in caller_pages or not number.isdecimal():
        return told
    return link_if_allowed(request, told, caller_pages[kind], number)


QUEUED = "queued"
SHOWN_SOURCES = 500
AGES = {
    "in the last hour": timedelta(hours=1),
    "in the last 24 hours": timedelta(hours=24),
    "in the last 7 days": timedelta(days=7),
    "in the last 30 days": timedelta(days=30),
}
UNDER_WAY, UNSUCCESSFUL = "under_way", "unsuccessful"
ALL_TOOLS = "*"


class StateFilter(DropdownFilter):  # type: ignore[misc]
    title = "state"
    parameter_name = "state__exact"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [
            (QUEUED, "waiting in the queue"),
            *State.choices,
            (UNDER_WAY, "running, or about to"),
            (UNSUCCESSFUL, "failed or timed out"),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Execution]) -> QuerySet[Execution]:
        match self.value():
            case None:
                return queryset
            case "queued":
                return queryset.filter(state=State.PENDING, admitted_at=None)
            case "pending":
                return queryset.filter(state=State.PENDING, admitted_at__isnull=False)
            case "under_way":
                return queryset.filter(state__in=ACTIVE, admitted_at__isnull=False)
            case "unsuccessful":
                return queryset.filter(state__in=FAILURES)
        return queryset.filter(state=self.value())


class SourceFilter(DropdownFilter):  # type: ignore[misc]
    """By the name at the time: executions outlast their source."""

    title = "source"
    parameter_name = "source_name"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        names = {*Source.objects.values_list("name", flat=True), *recorded_source_names(limit=SHOWN_SOURCES)}
        return [(name, name) for name in sorted(names)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Execution]) -> QuerySet[Execution]:
        return queryset.filter(source_name=self.value()) if self.value() else queryset


class CacheFilter(DropdownFilter):  # type: ignore[misc]
    title = "result"
    parameter_name = "cached"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("yes", "from the result cache"), ("no", "from a run of its own")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Execution]) -> QuerySet[Execution]:
        if self.value() in ("yes", "no"):
            return queryset.filter(cached_at__isnull=self.value() == "no")
        return queryset


class ToolsetFilter(DropdownFilter):  # type: ignore[misc]
    title = "toolset"
    parameter_name = "toolset"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        slugs = Toolset.objects.values_list("slug", flat=True)
        return [(ALL_TOOLS, "none: the address of all tools"), *((slug, slug) for slug in slugs)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Execution]) -> QuerySet[Execution]:
        match self.value():
            case None:
                return queryset
            case "*":
                return queryset.filter(toolset="")
        return queryset.filter(toolset=self.value())


class EndedFilter(DropdownFilter):  # type: ignore[misc]
    """Matches what the statistics of the period count."""

    title = "ended"
    parameter_name = "ended"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(period.value, f"in the last {period.words}") for period in Period]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Execution]) -> QuerySet[Execution]:
        if self.value() not in list(Period):
            return queryset
        return begin_at(queryset, "finished_at", Period(self.value()).start())


class CreatedFilter(DropdownFilter):  # type: ignore[misc]
    title = "created"
    parameter_name = "created"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, name) for name in AGES]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Execution]) -> QuerySet[Execution]:
        age = AGES.get(self.value() or "")
        return queryset if age is None else queryset.filter(created_at__gte=timezone.now() - age)
