"""The facets of the list of workflows: rows with any of the chosen values and none of the excluded ones."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from django.contrib.admin.filters import ListFilter
from django.contrib.admin.options import IncorrectLookupParameters
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from catalogue.admin.base import since
from catalogue.exposure import Explanation, Visibility, explain_all, members_of_toolsets
from catalogue.long_lists import among, read_key
from catalogue.models import Source, Toolset, Workflow, WorkflowFilter
from catalogue.models.workflow import is_overridden, is_tagged
from catalogue.presentation import CURATORS_HINTS
from catalogue.search_terms import MARKS

MAX_VALUES, MAX_LENGTH = 50, 255  # Of one facet in an address
SHOWN = 100  # Tags, of the most frequent ones
NOT = "not-"
NONE = Q(pk__in=[])

MOVED = {
    **{f"hint={hint}": f"is={mark}" for hint, mark in {
        "readOnlyHint": "read-only", "destructiveHint": "destructive",
        "idempotentHint": "idempotent", "openWorldHint": "open-world",
    }.items()},
    "enabled__exact=1": "is=enabled", "enabled__exact=0": "not-is=enabled",
    "available=missing": "is=missing", "available=present": "not-is=missing",
    "description=none": "is=undescribed", "warning=yes": "is=suspicious", "lookalike=yes": "is=look-alike",
    "schema=replaced": "is=schema-replaced", "schema=own": "not-is=schema-replaced",
    "limit=own": "is=limited", "limit=none": "not-is=limited",
    "cache=cached": "is=cached", "cache=never": "not-is=cached",
    "offered_as_prompt__exact=1": "is=prompt", "offered_as_prompt__exact=0": "not-is=prompt",
    "review=changed": "is=change-held", "review=new": "is=new-held",
}  # fmt: skip
"""Addresses of former filters, which people have in their bookmarks."""


@dataclass(frozen=True, slots=True)
class Choice:
    value: str
    label: Any
    count: int
    is_wanted: bool
    is_unwanted: bool
    wish: str  # The address that adds or takes away the value
    exclusion: str

    @property
    def removal(self) -> str:
        """The address without a chosen value; empty for others."""
        if self.is_wanted:
            return self.wish
        return self.exclusion if self.is_unwanted else ""


class Facet(ListFilter):
    def __init__(self, request: HttpRequest, params: dict[str, Any], model: Any, model_admin: Any) -> None:
        super().__init__(request, params, model, model_admin)
        self.wanted = list(dict.fromkeys(params.pop(self.name, [])))
        self.unwanted = list(dict.fromkeys(params.pop(NOT + self.name, [])))
        chosen = [*self.wanted, *self.unwanted]
        if len(chosen) > MAX_VALUES or any(len(value) > MAX_LENGTH for value in chosen):
            raise IncorrectLookupParameters
        self.counts: Mapping[str, int] = {}  # Of the rows by the values that the page offers, in order

    name: ClassVar[str]
    may_see = ""  # The permission without which the facet is not there
    labels: Mapping[str, Any] = {}  # By the value, where it is not shown itself

    def has_output(self) -> bool:
        return True

    def expected_parameters(self) -> list[str | None]:
        return [self.name, NOT + self.name]

    @property
    def is_active(self) -> bool:
        return bool(self.wanted or self.unwanted)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.wanted:
            queryset = queryset.filter(Q(*map(self.condition, self.wanted), _connector=Q.OR))
        if self.unwanted:
            excluded = Q(*map(self.condition, self.unwanted), _connector=Q.OR)
            # Unknown conditions, such as those of a column without a value, are false.
            queryset = queryset.filter(~Q(pk__in=Workflow.objects.filter(excluded).order_by().values("pk")))
        return queryset

    def condition(self, value: str) -> Q:
        raise NotImplementedError

    def count(self, rows: Any) -> Mapping[str, int]:
        raise NotImplementedError

    def choices(self, changelist: Any) -> Iterator[Choice]:  # type: ignore[override]
        """Those that leave rows, and the chosen ones."""
        chosen = (*self.wanted, *self.unwanted)
        shown = {value: number for value, number in self.counts.items() if number or value in chosen}
        for value, number in (shown | {value: 0 for value in chosen if value not in shown}).items():
            yield Choice(
                value,
                self.labels.get(value, value),
                number,
                value in self.wanted,
                value in self.unwanted,
                wish=self._toggled(changelist, value, self.name),
                exclusion=self._toggled(changelist, value, NOT + self.name),
            )

    def _toggled(self, changelist: Any, value: str, name: str) -> str:
        chosen = {self.name: self.wanted, NOT + self.name: self.unwanted}
        is_chosen = value in chosen[name]
        changed = {one: [each for each in values if each != value] for one, values in chosen.items()}
        if not is_chosen:
            changed[name].append(value)
        address: str = changelist.get_query_string({one: values or None for one, values in changed.items()})
        return address


class OptionsFacet(Facet):
    options: ClassVar[Mapping[str, tuple[Any, Q | Callable[[], Q]]]]
    """By the parameter's value: the label, and the condition for the rows."""

    def condition(self, value: str) -> Q:
        _, condition = self.options.get(value, ("", NONE))
        return condition if isinstance(condition, Q) else condition()

    @property
    def labels(self) -> Mapping[str, Any]:  # type: ignore[override]
        return {value: label for value, (label, _) in self.options.items()}

    def count(self, rows: Any) -> Mapping[str, int]:
        return count_options([self], rows)[0]


def count_options(facets: list[OptionsFacet], rows: Any) -> list[Mapping[str, int]]:
    """Counts all options of several facets with one query."""
    counts = rows.order_by().aggregate(
        **{
            f"n{place}_{number}": Count("pk", filter=facet.condition(value))
            for place, facet in enumerate(facets)
            for number, value in enumerate(facet.options)
        }
    )
    return [
        {value: counts[f"n{place}_{number}"] for number, value in enumerate(facet.options)}
        for place, facet in enumerate(facets)
    ]


class VisibilityFacet(Facet):
    title, name = _("visibility"), "visibility"
    HIDDEN, UNMATCHED, BY_FILTER = "hidden", "no-filter", "filter-"

    @cached_property
    def labels(self) -> Mapping[str, Any]:  # type: ignore[override]
        rules = WorkflowFilter.objects.filter(enabled=True)
        return {
            Visibility.EXPOSED.name.lower(): _("exposed"),
            self.HIDDEN: _("not visible, for any reason"),
            **{one.name.lower(): one.words for one in Visibility if one != Visibility.EXPOSED},
            self.UNMATCHED: _("hidden because no exposure rule includes it"),
            **{f"{self.BY_FILTER}{rule.pk}": f"hidden by: {rule}" for rule in rules},
        }

    def condition(self, value: str) -> Q:
        return among(key for key, verdict in explain_all().items() if value in self._values_of(verdict))

    def count(self, rows: Any) -> Mapping[str, int]:
        verdicts, keys = explain_all(), rows.order_by().values_list("pk", flat=True)
        # Those that were added meanwhile have no verdict.
        counts = Counter(value for key in keys if key in verdicts for value in self._values_of(verdicts[key]))
        return {value: counts[value] for value in self.labels}

    def _values_of(self, verdict: Explanation) -> list[str]:
        values = [verdict.visibility.name.lower()]
        if verdict.visibility != Visibility.EXPOSED:
            values.append(Visibility.EXPOSED.name.lower() if verdict.is_exposed else self.HIDDEN)
        if verdict.visibility == Visibility.FILTERED:
            rule = verdict.deciding_filter
            values.append(self.UNMATCHED if rule is None else f"{self.BY_FILTER}{rule.pk}")
        return values


class ToolsetFacet(Facet):
    title, name = _("toolset"), "toolset"
    may_see = "catalogue.view_toolset"
    IN_NONE = "-"

    labels = {IN_NONE: _("in no toolset")}

    def condition(self, value: str) -> Q:
        members = members_of_toolsets()
        if value == self.IN_NONE:
            return ~among(set().union(*members.values()))
        return among(members.get(value, ()))

    def count(self, rows: Any) -> Mapping[str, int]:
        members, keys = members_of_toolsets(), set(rows.order_by().values_list("pk", flat=True))
        in_none = len(keys.difference(*members.values()))
        slugs = Toolset.objects.values_list("slug", flat=True)
        return {self.IN_NONE: in_none} | {slug: len(keys & members.get(slug, set())) for slug in slugs}


class TagFacet(Facet):
    title, name = _("tag"), "tag"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.wanted, self.unwanted = ([*map(str.lower, tags)] for tags in (self.wanted, self.unwanted))

    def condition(self, value: str) -> Q:
        return is_tagged(value)

    def count(self, rows: Any) -> Mapping[str, int]:
        chosen, counts = (*self.wanted, *self.unwanted), rows.count_tags()
        shown = counts[:SHOWN] + [one for one in counts[SHOWN:] if one[0] in chosen]
        self.labels = {tag: spelled for tag, spelled, _ in shown}
        return {tag: number for tag, _, number in shown}


class SourceFacet(Facet):
    title, name = _("source"), "source__id__exact"

    def condition(self, value: str) -> Q:
        key = read_key(value)
        return NONE if key is None else Q(source=key)

    @cached_property
    def labels(self) -> Mapping[str, Any]:  # type: ignore[override]
        return {str(key): name for key, name in Source.objects.values_list("pk", "name")}

    def count(self, rows: Any) -> Mapping[str, int]:
        counts = dict(rows.order_by().values_list("source").annotate(Count("pk")))
        return {key: counts.get(int(key), 0) for key in self.labels}


class CategoryFacet(Facet):
    title, name = _("category"), "category"

    def condition(self, value: str) -> Q:
        return Q(category=value)

    def count(self, rows: Any) -> Mapping[str, int]:
        return dict(rows.order_by("category").values_list("category").annotate(Count("pk")))


class MarkFacet(OptionsFacet):
    title, name = _("marks"), "is"
    options = {
        mark: (_(mark.replace("-", " ")), condition)
        for mark, condition in MARKS.items()
        if mark not in ("exposed", "new", "changed")  # Other facets have these
    }


class OverriddenFacet(OptionsFacet):
    title, name = _("curated"), "overridden"
    options = {
        "any": (_("anything"), is_overridden()),
        "title": (_("title"), is_overridden("title_override")),
        "description": (_("description"), is_overridden("description_override")),
        "tags": (_("tags"), is_overridden("tags_override")),
        "name": (_("tool name"), is_overridden("former_tool_names")),
        "hints": (_("hints"), is_overridden(*CURATORS_HINTS)),
        "limits": (_("limits"), is_overridden("timeout_seconds", "max_concurrent", "cache_seconds")),
        "nothing": (
            _("nothing"),
            lambda: ~Q(pk__in=Workflow.objects.filter(is_overridden()).order_by().values("pk")),
        ),
    }


class ChangedFacet(OptionsFacet):
    title, name = _("changed upstream"), "changed"
    options = {
        "day": (_("changed in 24 hours"), since("changed_at", days=1)),
        "week": (_("changed in 7 days"), since("changed_at", days=7)),
        "month": (_("changed in 30 days"), since("changed_at", days=30)),
        "new-day": (_("new in 24 hours"), since("first_seen_at", days=1)),
        "new-week": (_("new in 7 days"), since("first_seen_at", days=7)),
        "new-month": (_("new in 30 days"), since("first_seen_at", days=30)),
    }


FACETS = (
    VisibilityFacet, SourceFacet, TagFacet, MarkFacet, ToolsetFacet, ChangedFacet, CategoryFacet,
    OverriddenFacet,
)  # fmt: skip
