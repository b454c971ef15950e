"""By what the list of workflows can be narrowed."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, ClassVar

from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from unfold.contrib.filters.admin import DropdownFilter

from catalogue.curation import known_tags
from catalogue.exposure import Explanation, Visibility, explain_all, members_of_toolsets
from catalogue.models import Review, Toolset, Workflow, WorkflowFilter
from catalogue.presentation import CURATORS_HINTS

HINT_WORDS = {
    "readOnlyHint": ("read-only", "changes things"),
    "destructiveHint": ("destructive", "not destructive"),
    "idempotentHint": ("idempotent", "not idempotent"),
    "openWorldHint": ("open world", "closed world"),
}
"""What is said of a hint that holds, and of one that does not."""


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


class VisibilityFilter(DropdownFilter):  # type: ignore[misc]
    """Whether agents see it, and if not, what stands in the way."""

    title = "visibility"
    parameter_name = "visibility"
    HIDDEN, UNMATCHED, BY_FILTER = "hidden", "no-filter", "filter-"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        rules = WorkflowFilter.objects.filter(enabled=True)
        return [
            (Visibility.EXPOSED.name.lower(), "exposed"),
            (self.HIDDEN, "not visible, for whatever reason"),
            *((one.name.lower(), one.value) for one in Visibility if one != Visibility.EXPOSED),
            (self.UNMATCHED, "hidden, as no filter includes it"),
            *((f"{self.BY_FILTER}{rule.pk}", f"hidden by: {rule}") for rule in rules),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Workflow]) -> QuerySet[Workflow]:
        if not (wanted := self.value()):
            return queryset
        return queryset.filter(
            pk__in=[key for key, verdict in explain_all().items() if self._is(wanted, verdict)]
        )

    def _is(self, wanted: str, verdict: Explanation) -> bool:
        if wanted == self.HIDDEN:
            return verdict.visibility != Visibility.EXPOSED
        if wanted != self.UNMATCHED and not wanted.startswith(self.BY_FILTER):
            return verdict.visibility.name.lower() == wanted
        rule = verdict.deciding_filter
        name = self.UNMATCHED if rule is None else f"{self.BY_FILTER}{rule.pk}"
        return verdict.visibility == Visibility.FILTERED and name == wanted


class ToolsetFilter(DropdownFilter):  # type: ignore[misc]
    """What a toolset has, picked by hand or by its rules, exposed or not."""

    title = "toolset"
    parameter_name = "toolset"
    IN_NONE = "-"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        slugs = Toolset.objects.values_list("slug", flat=True)
        return [*((slug, slug) for slug in slugs), (self.IN_NONE, "in no toolset")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Workflow]) -> QuerySet[Workflow]:
        if not (wanted := self.value()):
            return queryset
        members = members_of_toolsets()
        if wanted == self.IN_NONE:
            return queryset.exclude(pk__in=set().union(*members.values()))
        return queryset.filter(pk__in=members.get(wanted, ()))


class TagFilter(DropdownFilter):  # type: ignore[misc]
    title = "tag"
    parameter_name = "tag"
    MOST = 1_000

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(tag, tag) for tag in known_tags()[: self.MOST]]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Workflow]) -> QuerySet[Workflow]:
        if not (tag := self.value()):
            return queryset
        return queryset.filter(pk__in=Workflow.objects.tagged(tag).order_by().values("pk"))


class HintFilter(DropdownFilter):  # type: ignore[misc]
    """What clients are told that it does."""

    title = "hint"
    parameter_name = "hint"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(hint, words[0]) for hint, words in HINT_WORDS.items()] + [("none", "none of these")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Workflow]) -> QuerySet[Workflow]:
        wanted, everything = self.value(), Workflow.objects.order_by()
        if wanted in HINT_WORDS:
            return queryset.filter(pk__in=everything.hinted(wanted).values("pk"))
        if wanted == "none":
            for hint in HINT_WORDS:
                queryset = queryset.exclude(pk__in=everything.hinted(hint).values("pk"))
        return queryset


class OverriddenFilter(DropdownFilter):  # type: ignore[misc]
    """Where a curator's word stands for the engine's."""

    title = "curated"
    parameter_name = "overridden"
    PARTS: ClassVar[dict[str, tuple[str, tuple[str, ...]]]] = {
        "any": ("anything", ()),
        "title": ("title", ("title_override",)),
        "description": ("description", ("description_override",)),
        "tags": ("tags", ("tags_override",)),
        "name": ("tool name", ("former_tool_names",)),
        "hints": ("hints", tuple(CURATORS_HINTS)),
        "limits": ("limits", ("timeout_seconds", "max_concurrent", "cache_seconds")),
    }

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        named = [(name, title) for name, (title, _) in self.PARTS.items()]
        return [*named, ("nothing", "nothing: all as the engine says")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Workflow]) -> QuerySet[Workflow]:
        wanted, everything = self.value(), Workflow.objects.order_by()
        if wanted == "nothing":
            return queryset.exclude(pk__in=everything.overridden().values("pk"))
        if wanted not in self.PARTS:
            return queryset
        return queryset.filter(pk__in=everything.overridden(*self.PARTS[wanted][1]).values("pk"))


class ChangedFilter(DropdownFilter):  # type: ignore[misc]
    """When the engine last said something else of it, or began to list it."""

    title = "changed upstream"
    parameter_name = "changed"
    SINCE: ClassVar[dict[str, tuple[str, str, timedelta]]] = {
        "day": ("changed in the last 24 hours", "changed_at", timedelta(days=1)),
        "week": ("changed in the last 7 days", "changed_at", timedelta(days=7)),
        "month": ("changed in the last 30 days", "changed_at", timedelta(days=30)),
        "new-day": ("new in the last 24 hours", "first_seen_at", timedelta(days=1)),
        "new-week": ("new in the last 7 days", "first_seen_at", timedelta(days=7)),
        "new-month": ("new in the last 30 days", "first_seen_at", timedelta(days=30)),
    }

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, title) for name, (title, _, _) in self.SINCE.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Workflow]) -> QuerySet[Workflow]:
        if self.value() not in self.SINCE:
            return queryset
        _, column, age = self.SINCE[self.value()]
        return queryset.filter(**{f"{column}__gte": timezone.now() - age})


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
