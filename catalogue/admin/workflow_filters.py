from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from unfold.contrib.filters.admin import BooleanRadioFilter, DropdownFilter, RelatedDropdownFilter

from catalogue.admin.base import OptionsFilter
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


def _overridden(*fields: str) -> Callable[[QuerySet[Workflow]], QuerySet[Workflow]]:
    return lambda rows: rows.filter(pk__in=Workflow.objects.order_by().overridden(*fields).values("pk"))


def _since(column: str, *, days: int) -> Callable[[QuerySet[Workflow]], QuerySet[Workflow]]:
    return lambda rows: rows.filter(**{f"{column}__gte": timezone.now() - timedelta(days=days)})


def _awaiting(kind: str) -> QuerySet[Review]:
    return Review.objects.awaiting().filter(kind=kind)


class VisibilityFilter(DropdownFilter):  # type: ignore[misc]
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


class OverriddenFilter(OptionsFilter):
    title = "curated"
    parameter_name = "overridden"
    options = {
        "any": ("anything", _overridden()),
        "title": ("title", _overridden("title_override")),
        "description": ("description", _overridden("description_override")),
        "tags": ("tags", _overridden("tags_override")),
        "name": ("tool name", _overridden("former_tool_names")),
        "hints": ("hints", _overridden(*CURATORS_HINTS)),
        "limits": ("limits", _overridden("timeout_seconds", "max_concurrent", "cache_seconds")),
        "nothing": (
            "nothing: all as the engine says",
            lambda rows: rows.exclude(pk__in=Workflow.objects.order_by().overridden().values("pk")),
        ),
    }


class ChangedFilter(OptionsFilter):
    title = "changed upstream"
    parameter_name = "changed"
    options = {
        "day": ("changed in the last 24 hours", _since("changed_at", days=1)),
        "week": ("changed in the last 7 days", _since("changed_at", days=7)),
        "month": ("changed in the last 30 days", _since("changed_at", days=30)),
        "new-day": ("new in the last 24 hours", _since("first_seen_at", days=1)),
        "new-week": ("new in the last 7 days", _since("first_seen_at", days=7)),
        "new-month": ("new in the last 30 days", _since("first_seen_at", days=30)),
    }


class AvailabilityFilter(OptionsFilter):
    title = "presence in the engine's list"
    parameter_name = "available"
    options = {
        "missing": ("missing", lambda rows: rows.exclude(missing_since=None)),
        "present": ("present", lambda rows: rows.filter(missing_since=None)),
    }


class LimitFilter(OptionsFilter):
    title = "concurrent runs"
    parameter_name = "limit"
    options = {
        "own": ("limited for the workflow", lambda rows: rows.exclude(max_concurrent=None)),
        "none": ("without a limit of its own", lambda rows: rows.filter(max_concurrent=None)),
    }


class CacheFilter(OptionsFilter):
    title = "results"
    parameter_name = "cache"
    options = {
        "cached": ("cached", lambda rows: rows.filter(pk__in=Workflow.objects.cached().values("pk"))),
        "never": ("never cached", lambda rows: rows.exclude(pk__in=Workflow.objects.cached().values("pk"))),
    }


class SchemaFilter(OptionsFilter):
    title = "input schema"
    parameter_name = "schema"
    options = {
        "own": ("the engine's own", lambda rows: rows.filter(schema_problem="")),
        "replaced": ("replaced, because invalid", lambda rows: rows.exclude(schema_problem="")),
    }


class LookalikeFilter(OptionsFilter):
    title = "name and title"
    parameter_name = "lookalike"
    options = {"yes": ("can be mistaken for another tool's", lambda rows: rows.exclude(resembles=""))}


class DescriptionFilter(OptionsFilter):
    title = "description"
    parameter_name = "description"
    options = {"none": ("needs one", lambda rows: rows.filter(description="", description_override=""))}


class ReviewFilter(OptionsFilter):
    title = "review"
    parameter_name = "review"
    options = {
        "changed": ("a change is held", lambda rows: rows.filter(review__in=_awaiting("changed"))),
        "new": ("new, and held", lambda rows: rows.filter(review__in=_awaiting("new"))),
    }


class CategoryFilter(DropdownFilter):  # type: ignore[misc]
    title = "category"
    parameter_name = "category"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterator[tuple[str, str]]:
        categories = Workflow.objects.order_by("category").values_list("category", flat=True).distinct()
        return ((category, category) for category in categories)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Workflow]) -> QuerySet[Workflow]:
        return queryset.filter(category=self.value()) if self.value() else queryset


LIST_FILTERS = (
    VisibilityFilter, ReviewFilter, ("source", RelatedDropdownFilter), TagFilter, HintFilter,
    ToolsetFilter, CategoryFilter, OverriddenFilter, ChangedFilter, ("enabled", BooleanRadioFilter),
    AvailabilityFilter, DescriptionFilter, SchemaFilter, LookalikeFilter, LimitFilter, CacheFilter,
    ("offered_as_prompt", BooleanRadioFilter),
)  # fmt: skip
