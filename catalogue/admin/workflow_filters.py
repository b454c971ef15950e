"""By what the list of workflows can be narrowed."""

from collections.abc import Iterator
from typing import Any, ClassVar

from django.db.models import QuerySet
from django.http import HttpRequest
from unfold.contrib.filters.admin import DropdownFilter

from catalogue.models import Review, Workflow


class EmptinessFilter(DropdownFilter):  # type: ignore[misc]
    """Whether a column holds something."""

    column: ClassVar[str]
    filled: ClassVar[tuple[str, str]]
    empty: ClassVar[tuple[str, str]]

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [self.filled, self.empty]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Workflow]) -> QuerySet[Workflow]:
        if self.value() in (self.filled[0], self.empty[0]):
            return queryset.filter(**{f"{self.column}__isnull": self.value() == self.empty[0]})
        return queryset


class AvailabilityFilter(EmptinessFilter):
    """Whether the engine still lists it."""

    title = "presence in the engine's list"
    parameter_name = "available"
    column = "missing_since"
    filled = ("missing", "missing")
    empty = ("present", "present")


class LimitFilter(EmptinessFilter):
    """Whether a curator bounds how many runs of it there are at a time."""

    title = "concurrent runs"
    parameter_name = "limit"
    column = "max_concurrent"
    filled = ("own", "limited for the workflow")
    empty = ("none", "without a limit of its own")


class CacheFilter(DropdownFilter):  # type: ignore[misc]
    """Whether calls may be answered with an earlier result."""

    title = "results"
    parameter_name = "cache"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("cached", "cached"), ("never", "never cached")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Workflow]) -> QuerySet[Workflow]:
        cached = Workflow.objects.cached().values("pk")
        if self.value() == "cached":
            return queryset.filter(pk__in=cached)
        return queryset.exclude(pk__in=cached) if self.value() == "never" else queryset


class SchemaFilter(DropdownFilter):  # type: ignore[misc]
    title = "input schema"
    parameter_name = "schema"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("own", "the engine's own"), ("replaced", "replaced, because invalid")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Workflow]) -> QuerySet[Workflow]:
        if self.value() == "own":
            return queryset.filter(schema_problem="")
        return queryset.exclude(schema_problem="") if self.value() == "replaced" else queryset


class LookalikeFilter(DropdownFilter):  # type: ignore[misc]
    title = "name and title"
    parameter_name = "lookalike"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("yes", "can be mistaken for another tool's")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Workflow]) -> QuerySet[Workflow]:
        return queryset.exclude(resembles="") if self.value() == "yes" else queryset


class DescriptionFilter(DropdownFilter):  # type: ignore[misc]
    title = "description"
    parameter_name = "description"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("none", "needs one")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Workflow]) -> QuerySet[Workflow]:
        return (
            queryset.filter(description="", description_override="") if self.value() == "none" else queryset
        )


class ReviewFilter(DropdownFilter):  # type: ignore[misc]
    """Whether a curator has something to decide about it."""

    title = "review"
    parameter_name = "review"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("changed", "a change is held"), ("new", "new, and held")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Workflow]) -> QuerySet[Workflow]:
        if self.value() not in Review.Kind.values:
            return queryset
        return queryset.filter(review__in=Review.objects.awaiting().filter(kind=self.value()))


class CategoryFilter(DropdownFilter):  # type: ignore[misc]
    title = "category"
    parameter_name = "category"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterator[tuple[str, str]]:
        categories = Workflow.objects.order_by("category").values_list("category", flat=True).distinct()
        return ((category, category) for category in categories)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Workflow]) -> QuerySet[Workflow]:
        return queryset.filter(category=self.value()) if self.value() else queryset
