"""What agents see: a pure function of the rows and the filters, remembered per revision."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from operator import attrgetter
from types import MappingProxyType
from typing import Any, TypeVar

from catalogue.filters import FilterChain
from catalogue.models import Revision, Source, Toolset, ToolsetRule, Workflow, WorkflowFilter
from catalogue.portable_names import alias_tools, limit_for_tools

MAX_AGE_SECONDS = 0.5
"""How long a process may go without asking for the revision; agents see a change at most 1 s later."""

Workflows = Mapping[str, Workflow]
"""By tool name, in alphabetical order."""
NOTHING: Workflows = MappingProxyType({})
Derived = TypeVar("Derived")


@dataclass(frozen=True, slots=True)
class ExposedToolset:
    """An enabled toolset with those of the exposed workflows that it shows."""

    toolset: Toolset
    workflows: Workflows
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Of a portable toolset: what those tools are called in it whose names some clients refuse."""


@dataclass(frozen=True, slots=True)
class ExposedCatalogue:
    """The exposed workflows of one revision, and how the toolsets divide them."""

    revision: int
    workflows: Workflows
    toolsets: Mapping[str, ExposedToolset] = field(default_factory=dict)
    """By slug; only those that are enabled."""

    def seen_through(self, slug: str | None) -> Workflows:
        """What whoever comes through this toolset may see; None: everything that is exposed.

        Nothing, if there is no such toolset any more.
        """
        if slug is None:
            return self.workflows
        return self.toolsets[slug].workflows if slug in self.toolsets else NOTHING


def find_by_alias(workflows: Workflows, name: str) -> Workflow | None:
    """The one that calls by this former name still run."""
    # Few have any, so that most are passed over without reading a time.
    had_it = (workflow for workflow in workflows.values() if name in workflow.tool_aliases)
    return next((workflow for workflow in had_it if name in workflow.live_aliases), None)


def find_named(workflows: Workflows, name: str) -> Workflow | None:
    """The one of this tool name, else the one whose former name it is, as long as that still works."""
    return workflows.get(name) or find_by_alias(workflows, name)


class Placement:
    """Where workflows are shown for what filters and rules read of them: three queries, for however many."""

    @cached_property
    def _filters(self) -> FilterChain[WorkflowFilter]:
        return FilterChain(WorkflowFilter.objects.filter(enabled=True))

    @cached_property
    def _rules(self) -> dict[str, FilterChain[ToolsetRule]]:
        toolsets = Toolset.objects.filter(enabled=True).prefetch_related("rules")
        with_rules = {
            toolset.slug: [rule for rule in toolset.rules.all() if rule.enabled] for toolset in toolsets
        }
        return {slug: FilterChain(rules) for slug, rules in with_rules.items() if rules}

    def tell_move(self, old: Workflow, new: Workflow) -> str:
        """What becomes of it if it is as `new`: "it would come into the toolset finance"; empty: nothing."""
        was_shown, is_shown = self._filters.lets_through(old), self._filters.lets_through(new)
        if was_shown != is_shown:
            return "agents would see it" if is_shown else "agents would no longer see it"
        if not is_shown:
            return ""
        moves = {
            slug: chain.lets_through(new)
            for slug, chain in self._rules.items()
            if chain.lets_through(new) != chain.lets_through(old)
        }
        told = [
            f"{'come into' if comes else 'leave'} the toolset {slug}" for slug, comes in sorted(moves.items())
        ]
        return f"it would {' and '.join(told)}" if told else ""


def load_exposed_catalogue() -> ExposedCatalogue:
    """Read it from the database: at most seven queries, whatever its size."""
    # The revision first: rows that change while we read then belong to a later one, which is noticed.
    revision = Revision.current()
    chain = FilterChain(WorkflowFilter.objects.filter(enabled=True))
    # Not by the database, whose alphabet depends on its locale: cursors compare names.
    # Each source once: joined, its columns would be read and converted again with each workflow.
    runnable = Workflow.objects.runnable().order_by().prefetch_related("source")
    candidates = sorted(runnable, key=attrgetter("tool_name"))
    shown = {workflow.tool_name: workflow for workflow in candidates if chain.lets_through(workflow)}
    toolsets = Toolset.objects.filter(enabled=True).prefetch_related("rules")
    picked = _picked_workflows()
    divided = {
        toolset.slug: expose(toolset, choose_for(toolset, shown.values(), picked[toolset.pk]))
        for toolset in toolsets
    }
    return ExposedCatalogue(revision, MappingProxyType(shown), MappingProxyType(divided))


def expose(toolset: Toolset, workflows: Workflows) -> ExposedToolset:
    """A toolset with what it shows, under the names that its clients take."""
    if not toolset.portable:
        return ExposedToolset(toolset, workflows)
    aliases = alias_tools(workflows, limit=limit_for_tools(toolset.slug))
    return ExposedToolset(toolset, workflows, MappingProxyType(aliases))


def choose_for(toolset: Toolset, exposed: Iterable[Workflow], picked: Collection[int]) -> Workflows:
    """Those of the exposed workflows that are in the toolset."""
    return choose(exposed, rules=list(toolset.rules.all()), picked=picked)


def choose(
    exposed: Iterable[Workflow], *, rules: Collection[ToolsetRule], picked: Collection[int]
) -> Workflows:
    """What a toolset of these rules and picks has of them. Without rules only what was picked by hand."""
    chain = FilterChain(rules)
    has_rules = any(rule.enabled for rule in rules)
    return MappingProxyType(
        {
            workflow.tool_name: workflow
            for workflow in exposed
            if workflow.pk in picked or (has_rules and chain.lets_through(workflow))
        }
    )


def shown_by(toolset: Toolset, catalogue: ExposedCatalogue) -> Workflows:
    """What the toolset shows, or would if it were switched on."""
    if (entry := catalogue.toolsets.get(toolset.slug)) is not None:
        return entry.workflows
    picked = {workflow.pk for workflow in toolset.picked.all()}
    return choose_for(toolset, catalogue.workflows.values(), picked)


@dataclass(frozen=True, slots=True)
class Membership:
    """That a toolset has a workflow, and why."""

    toolset: Toolset
    picked: bool
    """By hand; otherwise a rule lets it through."""


def memberships_of(workflow: Workflow) -> list[Membership]:
    """The toolsets that show the workflow as long as it is exposed: three queries, however many there are."""
    picking = set(workflow.toolsets.values_list("pk", flat=True))
    return [
        Membership(toolset, toolset.pk in picking)
        for toolset in Toolset.objects.prefetch_related("rules")
        if choose_for(toolset, [workflow], {workflow.pk} if toolset.pk in picking else ())
    ]


def _picked_workflows() -> dict[int, set[int]]:
    """Keys of workflows by key of the toolset."""
    picked: dict[int, set[int]] = defaultdict(set)
    for toolset, workflow in Toolset.picked.through.objects.values_list("toolset_id", "workflow_id"):
        picked[toolset].add(workflow)
    return picked


class Visibility(StrEnum):
    """Whether agents see a workflow, and if not, the first thing that stands in the way."""

    EXPOSED = "exposed"
    SOURCE_OFF = "source switched off"
    MISSING = "missing"
    DISABLED = "disabled"
    FILTERED = "hidden by filter"


@dataclass(frozen=True, slots=True)
class Explanation:
    visibility: Visibility
    deciding_filter: WorkflowFilter | None = None
    """The filter that lets it through or hides it; None where none matched, or it did not come to that."""


def explain_exposure(workflow: Workflow, chain: FilterChain[WorkflowFilter]) -> Explanation:
    """Why agents see the workflow or not; the same verdict as the exposed catalogue's."""
    if not workflow.source.enabled:
        return Explanation(Visibility.SOURCE_OFF)
    if workflow.missing_since is not None:
        return Explanation(Visibility.MISSING)
    if not workflow.enabled:
        return Explanation(Visibility.DISABLED)
    shown = chain.lets_through(workflow)
    return Explanation(Visibility.EXPOSED if shown else Visibility.FILTERED, chain.deciding_filter(workflow))


def explain_all() -> Mapping[int, Explanation]:
    """The verdict on every workflow by its key: a query, and three more where the revision is a new one."""
    return _remembered.at_present("verdicts", _explain_all)


def members_of_toolsets() -> Mapping[str, set[int]]:
    """The keys of the workflows of each toolset by its slug, exposed or not: likewise."""
    return _remembered.at_present("members", _members_of_toolsets)


def _explain_all() -> dict[int, Explanation]:
    chain = FilterChain(WorkflowFilter.objects.filter(enabled=True))
    return {workflow.pk: explain_exposure(workflow, chain) for workflow in _light_workflows()}


def _members_of_toolsets() -> dict[str, set[int]]:
    workflows, picked = list(_light_workflows()), _picked_workflows()
    return {
        toolset.slug: {
            workflow.pk for workflow in choose_for(toolset, workflows, picked[toolset.pk]).values()
        }
        for toolset in Toolset.objects.prefetch_related("rules")
    }


LIGHT = (
    "source", "tool_name", "name", "upstream_id", "category", "tags", "tags_override", "enabled",
    "missing_since",
)  # fmt: skip
"""The columns that decide about exposure."""


def _light_workflows() -> Iterator[Workflow]:
    """All workflows, with the columns that decide about exposure alone."""
    sources = Source.objects.only("name", "enabled").in_bulk()
    for workflow in Workflow.objects.only(*LIGHT).order_by():
        # One that was added since is not there yet.
        if (source := sources.get(workflow.source_id)) is not None:
            workflow.source = source
            yield workflow


@dataclass(frozen=True, slots=True)
class FilterPreview:
    """What a chain of filters does to the workflows that are otherwise ready to be exposed, by tool name."""

    shown: list[str] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)


def preview_filters(*chains: Iterable[WorkflowFilter]) -> list[FilterPreview]:
    """What each of the chains would do, from one reading of the workflows."""
    compiled = [FilterChain(rules) for rules in chains]
    previews = [FilterPreview() for _ in compiled]
    for workflow in _filterable_workflows():
        for chain, preview in zip(compiled, previews, strict=True):
            (preview.shown if chain.lets_through(workflow) else preview.hidden).append(workflow.tool_name)
    return previews


def effect_of_filter(rule: WorkflowFilter) -> FilterPreview:
    """What is shown or hidden only because of this filter, or would be if it were enabled."""
    rules = list(WorkflowFilter.objects.all())
    others = [other for other in rules if other.pk != rule.pk]
    for other in rules:
        other.enabled = other.enabled or other.pk == rule.pk
    without, with_it = preview_filters(others, rules)
    return FilterPreview(
        shown=sorted(set(with_it.shown) - set(without.shown)),
        hidden=sorted(set(with_it.hidden) - set(without.hidden)),
    )


def match_rule(rule: WorkflowFilter) -> tuple[list[str], list[str]]:
    """The tool names of what it matches: the enabled workflows of enabled sources, and the others."""
    chain, enabled, others = FilterChain([rule], whether_enabled=False), list[str](), list[str]()
    for workflow in _light_workflows():
        if workflow.missing_since is None and chain.deciding_filter(workflow):
            is_ready = workflow.enabled and workflow.source.enabled
            (enabled if is_ready else others).append(workflow.tool_name)
    return sorted(enabled), sorted(others)


def effect_of_replacing(
    stored: Iterable[WorkflowFilter], proposed: Iterable[WorkflowFilter]
) -> FilterPreview:
    """What agents would see besides, and what no longer, if these filters took the place of the stored."""
    in_order = sorted(proposed, key=lambda rule: (rule.position, rule.pk is None, rule.pk))
    now, then = preview_filters(stored, in_order)
    return FilterPreview(
        shown=sorted(set(then.shown) - set(now.shown)), hidden=sorted(set(then.hidden) - set(now.hidden))
    )


def _filterable_workflows() -> Iterable[Workflow]:
    columns = ("tool_name", "name", "upstream_id", "category", "tags", "tags_override", "source__name")
    return (
        Workflow.objects.runnable().select_related("source").only(*columns).order_by("tool_name").iterator()
    )


class _Remembered:
    """The last catalogue of this process, and when its revision was last confirmed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._catalogue: ExposedCatalogue | None = None
        self._confirmed_at = 0.0
        self._derived: dict[str, tuple[int, Any]] = {}

    def at_present(self, name: str, derive: Callable[[], Derived]) -> Derived:
        """What follows from the rows and the filters, derived once for each revision."""
        revision = Revision.current()
        known = self._derived.get(name)
        if known is None or known[0] != revision:
            self._derived[name] = known = (revision, derive())
        derived: Derived = known[1]
        return derived

    def fresh(self) -> ExposedCatalogue | None:
        """Without touching the database; None when it has to be asked."""
        return self._catalogue if time.monotonic() - self._confirmed_at < MAX_AGE_SECONDS else None

    def current(self) -> ExposedCatalogue:
        if (catalogue := self.fresh()) is not None:
            return catalogue
        with self._lock:
            return self.fresh() or self._confirm()

    def confirmed(self) -> ExposedCatalogue:
        """Never older than the last change that was committed; costs a query."""
        with self._lock:
            return self._confirm()

    def _confirm(self) -> ExposedCatalogue:
        asked_at = time.monotonic()
        if self._catalogue is None or self._catalogue.revision != Revision.current():
            self._catalogue = load_exposed_catalogue()
        self._confirmed_at = asked_at
        return self._catalogue

    def forget(self) -> None:
        self._catalogue, self._confirmed_at = None, 0.0
        self._derived = {}


_remembered = _Remembered()
fresh_catalogue = _remembered.fresh
current_catalogue = _remembered.current
confirmed_catalogue = _remembered.confirmed
forget_catalogue = _remembered.forget
