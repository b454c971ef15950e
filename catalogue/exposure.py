"""The exposed catalogue: a pure function of the rows and the filters, cached per revision. The first filter
that matches a workflow decides about it (A4.2)."""

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property, lru_cache
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from django.db import DatabaseError, InterfaceError
from django.db.models import QuerySet
from django.utils.text import capfirst
from django.utils.translation import gettext
from loguru import logger

from access.callers import Bounds, Person
from catalogue.database import DatabaseOutage, SharedReading, Watcher, Watchers, run_in_database
from catalogue.models import (
    ChoosingRule,
    Revision,
    ServerFeature,
    Source,
    Toolset,
    ToolsetRule,
    Workflow,
    WorkflowFilter,
)
from catalogue.models.source import OBSERVED
from catalogue.patterns import pattern_matcher
from catalogue.portable_schemas import alias_tools, limit_for_tools
from connectors.formats.mcp_apps import app_address

MAX_AGE_SECONDS = 0.5  # How old the revision known to a process may be; agents see a change after at most 1 s
Workflows = Mapping[str, Workflow]  # By tool name, in alphabetical order
NOTHING: Workflows = MappingProxyType({})
Rule = TypeVar("Rule", bound=ChoosingRule)


FILTERED_FIELDS = (
    *("source", "tool_name", "name", "upstream_id", "category", "tags", "tags_override"),
    *("enabled", "only_in_toolsets", "missing_since"),
)
"""What filters and rules read of a workflow."""
VALUE_OF: dict[str, Callable[[Workflow], str]] = {
    "name": attrgetter("name"),
    "id": attrgetter("upstream_id"),
    "category": attrgetter("category"),
    "source": attrgetter("source.name"),
}
"""The subjects with one value per workflow; tags are not among them."""


class FilterChain(Generic[Rule]):
    """The enabled filters, compiled. A workflow that no filter matches is let through unless there is an
    include filter. A filter with an unusable pattern, such as one loaded without validation, hides each
    workflow that reaches it, because its intended matches are unknown."""

    def __init__(self, filters: Iterable[Rule]) -> None:
        self._rules = [(rule, *_compiled(rule)) for rule in filters if rule.enabled]
        self._default = not any(is_shown for _, is_shown, _ in self._rules)

    def deciding_filter(self, workflow: Workflow) -> Rule | None:
        return next((rule for rule, _, matches in self._rules if matches(workflow)), None)

    def lets_through(self, workflow: Workflow) -> bool:
        # Each toolset checks each workflow, and `next` would take twice as long.
        for _, is_shown, matches in self._rules:
            if matches(workflow):
                return is_shown
        return self._default


def _compiled(rule: ChoosingRule) -> tuple[bool, Callable[[Workflow], object]]:
    """Returns whether it shows the workflows that it matches, and its matcher."""
    try:
        matches = pattern_matcher(syntax=rule.syntax, pattern=rule.pattern)
    except ValueError as error:
        kind = capfirst(rule._meta.verbose_name)
        logger.warning("{} {} is unusable and hides every workflow that reaches it: {}", kind, rule.pk, error)
        return False, lambda _: True
    if rule.subject == "tag":
        return rule.action == "include", lambda workflow: any(map(matches, workflow.shown_tags))
    value_of = VALUE_OF.get(rule.subject, VALUE_OF["name"])
    return rule.action == "include", lambda workflow: matches(value_of(workflow))


def enabled_filters() -> FilterChain[WorkflowFilter]:
    return FilterChain(WorkflowFilter.objects.filter(enabled=True))


@dataclass(eq=False)
class ExposedToolset:
    """Its members are chosen at the first use: with many toolsets, few are used at each revision."""

    toolset: Toolset
    exposed: Workflows = field(repr=False)
    picked: Collection[int] = field(default=(), repr=False)
    derived: dict[str, Any] = field(default_factory=dict, repr=False)  # What other rooms keep with it

    @cached_property
    def chooses(self) -> Callable[[Workflow], bool]:
        return _chooser(list(self.toolset.rules.all()), self.picked)

    @cached_property
    def workflows(self) -> Workflows:
        return _by_name(filter(self.chooses, self.exposed.values()))

    @cached_property
    def aliases(self) -> Mapping[str, str]:
        """Portable names of tools that need one."""
        if not self.toolset.portable:
            return {}
        return alias_tools(self.workflows, limit=limit_for_tools(self.toolset.slug))


@dataclass(frozen=True, slots=True)
class Exclusions:
    """Lists what reservations exclude one person from. Persons with the same exclusions share views."""

    sources: frozenset[int] = frozenset()
    toolsets: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.sources or self.toolsets)


MAX_VIEWS = 1_000  # Of one revision


@dataclass(frozen=True)
class Reservations:
    sources: Mapping[int, Person] = field(default_factory=dict)  # Who may use it, by key
    toolsets: Mapping[str, Person] = field(default_factory=dict)  # By slug; disabled ones reserve, too

    @cached_property
    def _names(self) -> Person:
        return frozenset().union(*self.sources.values(), *self.toolsets.values())

    def relevant_of(self, person: Person | None) -> Person | None:
        """Equal for persons with the same exclusions, so that they share cached results."""
        return None if person is None or not self._names else person & self._names

    def exclusions_for(self, person: Person | None) -> Exclusions:
        if person is None:
            return Exclusions()
        return Exclusions(
            frozenset(key for key, admitted in self.sources.items() if person.isdisjoint(admitted)),
            frozenset(slug for slug, admitted in self.toolsets.items() if person.isdisjoint(admitted)),
        )


@dataclass(frozen=True, slots=True, eq=False)
class ExposedCatalogue:
    revision: int
    workflows: Workflows  # All that are exposed
    outside: Workflows  # Those that are also served outside of toolsets
    toolsets: Mapping[str, ExposedToolset] = field(default_factory=dict)  # Enabled ones, by slug
    runnable: Mapping[int, Workflow] = field(default_factory=dict, repr=False, compare=False)
    """By key, in the order of their names, also those that filters hide."""
    features: Sequence[ServerFeature] = field(default=(), repr=False, compare=False)
    """Exposed prompts, resources and templates of MCP servers, sorted by what they are served as."""
    apps: Mapping[tuple[int, str], ServerFeature] = field(default_factory=dict, repr=False, compare=False)
    """Those features that are apps, by source and the server's own address."""
    reservations: Reservations = field(default_factory=Reservations, repr=False, compare=False)
    reserved: Mapping[str, ExposedToolset] = field(default_factory=dict, repr=False, compare=False)
    """Reserved toolsets by slug, also disabled ones."""
    with_app_tools: "ExposedCatalogue | None" = field(default=None, repr=False, compare=False)
    _views: dict[tuple[str | None, Exclusions], Workflows] = field(
        default_factory=dict, repr=False, compare=False
    )

    @property
    def for_cards(self) -> "ExposedCatalogue":
        """Returns what clients that show apps may call: also tools that are only for apps."""
        return self.with_app_tools or self

    def find_for_app(self, bounds: Bounds, upstream_id: str) -> Workflow | None:
        """Returns the tool that an app calls by its server's own name; None unless it is the only one among
        the servers with an enabled app."""
        with_apps = {source for source, _ in self.apps}
        seen = self.for_cards.seen_within(bounds).values() if with_apps else ()
        found = [one for one in seen if one.upstream_id == upstream_id and one.source_id in with_apps]
        return found[0] if len(found) == 1 else None

    def seen_within(self, bounds: Bounds) -> Workflows:
        """Returns what a caller sees and runs. Empty for an unknown toolset, or one reserved for others."""
        return self.visible_workflows(self.reservations.exclusions_for(bounds.person), bounds.toolset)

    def visible_workflows(self, exclusions: Exclusions, slug: str | None) -> Workflows:
        if slug is not None and (slug not in self.toolsets or slug in exclusions.toolsets):
            return NOTHING
        whole = self.outside if slug is None else self.toolsets[slug].workflows
        if not exclusions:
            return whole
        if (known := self._views.get((slug, exclusions))) is None:
            seen = (one for one in whole.values() if one.source_id not in exclusions.sources)
            if slug is None:
                # Workflows of toolsets that are all reserved for others are hidden outside of them, too.
                every = {**self.reserved, **self.toolsets}
                others = [entry for slug, entry in every.items() if slug not in exclusions.toolsets]
                barred = [every[slug] for slug in exclusions.toolsets]
                seen = (
                    one
                    for one in seen
                    if not any(entry.chooses(one) for entry in barred)
                    or any(entry.chooses(one) for entry in others)
                )
            if len(self._views) >= MAX_VIEWS:
                self._views.clear()
            known = self._views[slug, exclusions] = _by_name(seen)
        return known

    def features_within(self, bounds: Bounds) -> Sequence[ServerFeature]:
        """Features of sources of which the caller sees a workflow, and outside toolsets also of sources
        without workflows."""
        if not self.features:
            return ()
        sources = {workflow.source_id for workflow in self.seen_within(bounds).values()}
        if bounds.toolset is None:
            with_workflows = {workflow.source_id for workflow in self.runnable.values()}
            excluded = self.reservations.exclusions_for(bounds.person).sources
            sources |= {feature.source_id for feature in self.features} - with_workflows - excluded
        return tuple(feature for feature in self.features if feature.source_id in sources)

    def toolset_within(self, bounds: Bounds) -> ExposedToolset | None:
        """None without a toolset, and for a toolset that is unknown or reserved for others."""
        slug, exclusions = bounds.toolset, self.reservations.exclusions_for(bounds.person)
        if slug is None or slug not in self.toolsets or slug in exclusions.toolsets:
            return None
        entry = self.toolsets[slug]
        if not exclusions:
            return entry
        seen = ExposedToolset(entry.toolset, entry.exposed, entry.picked)
        seen.aliases, seen.workflows = entry.aliases, self.visible_workflows(exclusions, slug)
        return seen


def _by_name(workflows: Iterable[Workflow]) -> Workflows:
    return MappingProxyType({workflow.tool_name: workflow for workflow in workflows})


def find_by_alias(workflows: Workflows, name: str) -> Workflow | None:
    # Few workflows have aliases: skip the others without parsing a time.
    had_it = (workflow for workflow in workflows.values() if name in workflow.tool_aliases)
    return next((workflow for workflow in had_it if name in workflow.live_aliases), None)


def find_named(workflows: Workflows, name: str) -> Workflow | None:
    """Finds it by its tool name, or by a former one that still works."""
    return workflows.get(name) or find_by_alias(workflows, name)


class Placement:
    """Finds where filters and rules show workflows, in three queries for any number of them."""

    @cached_property
    def _filters(self) -> FilterChain[WorkflowFilter]:
        return enabled_filters()

    @cached_property
    def _rules(self) -> dict[str, FilterChain[ToolsetRule]]:
        toolsets = Toolset.objects.filter(enabled=True).prefetch_related("rules")
        with_rules = {
            toolset.slug: [rule for rule in toolset.rules.all() if rule.enabled] for toolset in toolsets
        }
        return {slug: FilterChain(rules) for slug, rules in with_rules.items() if rules}

    def describe_move(self, old: Workflow, new: Workflow) -> str:
        """Says how the change to `new` moves it: "it would join the toolset finance"; empty if it stays."""
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
        phrases = [
            f"{'join' if comes else 'leave'} the toolset {slug}" for slug, comes in sorted(moves.items())
        ]
        return f"it would {' and '.join(phrases)}" if phrases else ""


def load_exposed_catalogue(known: ExposedCatalogue | None = None) -> ExposedCatalogue:
    """Takes a bounded number of queries, whatever the size. What has not changed comes from `known`, so a
    workflow is a new object if and only if its row or its source's has changed."""
    # The revision first: rows that change during the read belong to a later one, which is noticed.
    revision = Revision.current()
    runnable, chain = _read_runnable({} if known is None else known.runnable), enabled_filters()
    # Not sorted by the database, because its order depends on the locale and cursors compare names.
    runnable = {row.pk: row for row in sorted(runnable.values(), key=attrgetter("tool_name"))}
    sources = {row.source_id: row.source for row in runnable.values()}
    features = list(ServerFeature.objects.exposed().defer("offered").order_by())
    sources |= Source.objects.in_bulk({feature.source_id for feature in features} - sources.keys())
    # A source may have been deleted since the rows were read.
    features = [feature for feature in features if feature.source_id in sources]
    for feature in features:
        feature.source = sources[feature.source_id]
    apps = {(one.source_id, one.upstream_id): one for one in features if one.is_shown_app}
    with_apps = {source for source, _ in apps}
    shown = _by_name(
        one
        for one in filter(chain.lets_through, runnable.values())
        if one.is_for_models or (one.source_id in with_apps and one.is_for_apps)
    )
    outside = _by_name(one for one in shown.values() if not one.only_in_toolsets)
    picked = _picked_workflows()
    toolsets = [
        ExposedToolset(toolset, shown, picked[toolset.pk])
        for toolset in Toolset.objects.exclude(enabled=False, reserved_for=[]).prefetch_related("rules")
    ]
    approving = [one for one in toolsets if one.toolset.enabled and one.toolset.approval_required]
    for workflow in shown.values():
        # On the workflows themselves, so that a call finds out without a query or a search.
        workflow.approving_toolsets = tuple(one.toolset for one in approving if one.chooses(workflow))
        workflow.app = apps.get((workflow.source_id, app_address(workflow.presentation))) if apps else None
    reserved = {one.toolset.slug: one for one in toolsets if one.toolset.reserved_for}
    whole = ExposedCatalogue(
        revision,
        shown,
        shown if len(outside) == len(shown) else outside,
        MappingProxyType({one.toolset.slug: one for one in toolsets if one.toolset.enabled}),
        runnable,
        sorted(features, key=attrgetter("served_as")),
        apps,
        Reservations(
            sources={key: source.admitted for key, source in sources.items() if source.reserved_for},
            toolsets={slug: one.toolset.admitted for slug, one in reserved.items()},
        ),
        reserved,
    )
    return whole if all(one.is_for_models for one in shown.values()) else _without_app_tools(whole)


def _without_app_tools(whole: ExposedCatalogue) -> ExposedCatalogue:
    shown, outside = (
        _by_name(one for one in workflows.values() if one.is_for_models)
        for workflows in (whole.workflows, whole.outside)
    )
    toolsets, reserved = (
        {slug: ExposedToolset(one.toolset, shown, one.picked) for slug, one in entries.items()}
        for entries in (whole.toolsets, whole.reserved)
    )
    return replace(
        whole,
        workflows=shown,
        outside=outside,
        toolsets=MappingProxyType(toolsets),
        reserved=reserved,
        with_app_tools=whole,
        _views={},
    )


MAX_KEYS = 500  # Of rows to read; databases limit the parameters of a query


def _read_runnable(known: Mapping[int, Workflow]) -> dict[int, Workflow]:
    sources = Source.objects.in_bulk()
    for key, source in {row.source_id: row.source for row in known.values()}.items():
        present = sources.get(key)
        if present is not None and present.settings_values() == source.settings_values():
            # The known object stays, with what was observed of it since.
            for name in OBSERVED:
                setattr(source, name, getattr(present, name))
            sources[key] = source
    rows = Workflow.objects.runnable().order_by()
    versions = dict(rows.values_list("pk", "row_version")) if known else {}
    current = {
        key: row
        for key, row in known.items()
        if versions.get(key) == row.row_version and row.source is sources.get(row.source_id)
    }
    changed = versions.keys() - current.keys()
    if not known or len(changed) > MAX_KEYS:
        current, changed = {}, set()
    else:
        rows = rows.filter(pk__in=changed)
    for row in rows:
        # A source may have been added or deleted since the sources were read.
        if row.source_id in sources:
            row.source = sources[row.source_id]
            current[row.pk] = row
    return current


def choose(
    exposed: Iterable[Workflow], *, rules: Collection[ToolsetRule], picked: Collection[int]
) -> Workflows:
    """The workflows that the rules include or that are picked; without rules only the picked ones."""
    return _by_name(filter(_chooser(rules, picked), exposed))


def _chooser(rules: Collection[ToolsetRule], picked: Collection[int]) -> Callable[[Workflow], bool]:
    if not any(rule.enabled for rule in rules):
        return lambda workflow: workflow.pk in picked
    lets_through = FilterChain(rules).lets_through
    return (lambda workflow: lets_through(workflow) or workflow.pk in picked) if picked else lets_through


def shown_by(toolset: Toolset, catalogue: ExposedCatalogue) -> Workflows:
    if (entry := catalogue.toolsets.get(toolset.slug)) is not None:
        return entry.workflows
    picked = {workflow.pk for workflow in toolset.picked.all()}
    return ExposedToolset(toolset, catalogue.workflows, picked).workflows


def memberships_of(workflow: Workflow) -> list[tuple[Toolset, bool]]:
    """The toolsets that show the workflow while it is exposed, and whether it is picked by hand; in three
    queries."""
    picking = set(workflow.toolsets.values_list("pk", flat=True))
    return [
        (toolset, toolset.pk in picking)
        for toolset in Toolset.objects.prefetch_related("rules")
        if toolset.pk in picking or _chooser(list(toolset.rules.all()), ())(workflow)
    ]


def _picked_workflows() -> dict[int, set[int]]:
    picked: dict[int, set[int]] = defaultdict(set)
    for toolset, workflow in Toolset.picked.through.objects.values_list("toolset_id", "workflow_id"):
        picked[toolset].add(workflow)
    return picked


class Visibility(StrEnum):
    EXPOSED = "exposed"
    IN_TOOLSETS = "exposed only in toolsets"
    SOURCE_OFF = "source switched off"
    MISSING = "missing"
    DISABLED = "disabled"
    FOR_APPS = "only for apps"
    FILTERED = "hidden by filter"  # Exposure rules were called filters; REST keeps the value

    @property
    def words(self) -> str:
        return gettext("hidden by an exposure rule") if self is self.FILTERED else gettext(self.value)


@dataclass(frozen=True, slots=True)
class Explanation:
    visibility: Visibility
    deciding_filter: WorkflowFilter | None = None  # None: no filter matched, or none was reached

    @property
    def is_exposed(self) -> bool:
        return self.visibility in (Visibility.EXPOSED, Visibility.IN_TOOLSETS)


def explain_exposure(workflow: Workflow, chain: FilterChain[WorkflowFilter]) -> Explanation:
    if not workflow.source.enabled:
        return Explanation(Visibility.SOURCE_OFF)
    if workflow.missing_since is not None:
        return Explanation(Visibility.MISSING)
    if not workflow.enabled:
        return Explanation(Visibility.DISABLED)
    visibility = Visibility.FILTERED
    if chain.lets_through(workflow):
        visibility = Visibility.IN_TOOLSETS if workflow.only_in_toolsets else Visibility.EXPOSED
        visibility = visibility if workflow.is_for_models else Visibility.FOR_APPS
    return Explanation(visibility, chain.deciding_filter(workflow))


def _light_workflows(rows: QuerySet[Workflow] | None = None) -> Iterator[Workflow]:
    sources = Source.objects.only("name", "enabled", "kind", "config").in_bulk()
    with_apps = [key for key, source in sources.items() if source.shows_apps]
    of_apps = Workflow.objects.filter(source__in=with_apps).values_list("pk", "metadata")
    metadata = dict(of_apps) if with_apps else {}
    rows = Workflow.objects.all() if rows is None else rows
    for workflow in rows.order_by().only(*FILTERED_FIELDS):
        # The source may have been added after the query above.
        if (source := sources.get(workflow.source_id)) is not None:
            workflow.source = source
            if workflow.pk in metadata:  # It says which are only for apps
                workflow.metadata = metadata[workflow.pk]
            yield workflow


def count_switched(keys: Collection[int], *, enabled: bool) -> int:
    """Counts those of the workflows that agents would newly see if all were enabled, or no longer see if
    none were."""
    chain, chosen = enabled_filters(), frozenset(keys)
    switched = [
        one
        for one in _light_workflows()
        if one.pk in chosen
        and one.enabled != enabled
        and one.source.enabled
        and one.missing_since is None
        and chain.lets_through(one)
    ]
    if not any(one.only_in_toolsets for one in switched):
        return len(switched)
    on = Toolset.objects.filter(enabled=True).values_list("slug", flat=True)
    in_toolsets = set().union(*(members_of_toolsets()[slug] for slug in on))
    return sum(one.pk in in_toolsets or not one.only_in_toolsets for one in switched)


@dataclass(frozen=True, slots=True)
class FilterPreview:
    """Tool names, of the workflows otherwise ready to be exposed."""

    shown: list[str] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)


def exposed_tools() -> dict[int, str]:
    """The names by key of what agents see by the rows of this transaction."""
    chain = enabled_filters()
    exposed = (one for one in _light_workflows() if explain_exposure(one, chain).is_exposed)
    return {one.pk: one.tool_name for one in sorted(exposed, key=attrgetter("tool_name"))}


def preview_filters(rules: Iterable[WorkflowFilter]) -> FilterPreview:
    chain, preview = FilterChain(rules), FilterPreview()
    for workflow in confirmed_catalogue().runnable.values():
        (preview.shown if chain.lets_through(workflow) else preview.hidden).append(workflow.tool_name)
    return preview


def effect_of_replacing(
    stored: Iterable[WorkflowFilter], proposed: Iterable[WorkflowFilter]
) -> FilterPreview:
    """Returns what agents would newly see, and no longer see, with the proposed filters."""
    in_order = sorted(proposed, key=lambda rule: (rule.position, rule.pk is None, rule.pk))
    now, then, effect = FilterChain(stored), FilterChain(in_order), FilterPreview()
    for workflow in confirmed_catalogue().runnable.values():
        if (is_shown := then.lets_through(workflow)) != now.lets_through(workflow):
            (effect.shown if is_shown else effect.hidden).append(workflow.tool_name)
    return effect


def match_rule(rule: WorkflowFilter) -> tuple[list[str], list[str]]:
    """Names of the matching tools: enabled workflows of enabled sources, and the others."""
    _, matches = _compiled(rule)
    off = Workflow.objects.present().exclude(enabled=True, source__enabled=True)
    enabled = filter(matches, confirmed_catalogue().runnable.values())
    others = filter(matches, _light_workflows(off))
    return [one.tool_name for one in enabled], sorted(one.tool_name for one in others)


class CatalogueCache:
    def __init__(self) -> None:
        self._reading = SharedReading()
        self._catalogue: ExposedCatalogue | None = None
        self._confirmed_at = 0.0

    def fresh(self) -> ExposedCatalogue | None:
        """Does not use the database; None if it must be queried."""
        oldest = max(time.monotonic() - MAX_AGE_SECONDS, Revision.changed_here_at)
        return self._catalogue if self._confirmed_at > oldest else None

    def current(self) -> ExposedCatalogue:
        if (known := self.fresh()) is None:
            with self._reading.turn():
                known = self.fresh() or self._confirm()
        return known

    def confirmed(self) -> ExposedCatalogue:
        """Never older than the last committed change; costs a query."""
        with self._reading.turn():
            return self._confirm()

    def _confirm(self) -> ExposedCatalogue:
        asked_at = time.monotonic()
        if self._catalogue is None or self._catalogue.revision != Revision.current():
            self._catalogue = load_exposed_catalogue(self._catalogue)
        self._confirmed_at = asked_at
        return self._catalogue

    def forget(self) -> None:
        self._catalogue, self._confirmed_at = None, 0.0
        _explain_all.cache_clear()
        _members_of_toolsets.cache_clear()


_cache = CatalogueCache()
fresh_catalogue = _cache.fresh
current_catalogue = _cache.current
confirmed_catalogue = _cache.confirmed
forget_catalogue = _cache.forget


async def present_catalogue() -> ExposedCatalogue:
    """Returns `current_catalogue`, and uses a thread only if the database must be queried."""
    known = fresh_catalogue()
    return await run_in_database(current_catalogue) if known is None else known


def explain_all() -> Mapping[int, Explanation]:
    """Explains each workflow, by key, in one query, and three more after a new revision."""
    return _explain_all(Revision.current())


@lru_cache(maxsize=1)  # Each page of the admin's list of workflows counts them
def _explain_all(revision: int) -> Mapping[int, Explanation]:
    chain = enabled_filters()
    return {workflow.pk: explain_exposure(workflow, chain) for workflow in _light_workflows()}


def members_of_toolsets() -> Mapping[str, set[int]]:
    """Workflow keys by slug, exposed or not; queries as for `explain_all`."""
    return _members_of_toolsets(Revision.current())


@lru_cache(maxsize=1)
def _members_of_toolsets(revision: int) -> Mapping[str, set[int]]:
    workflows, picked = list(_light_workflows()), _picked_workflows()
    choosers = {
        toolset.slug: _chooser(list(toolset.rules.all()), picked[toolset.pk])
        for toolset in Toolset.objects.prefetch_related("rules")
    }
    return {
        slug: {workflow.pk for workflow in workflows if chooses(workflow)}
        for slug, chooses in choosers.items()
    }


LOOK_SECONDS = 0.25


@dataclass(slots=True, eq=False)
class RevisionWatch:
    """Set `moved` to False to wait for the next revision."""

    change_event: asyncio.Event  # Set on a new revision; the holder may also set it for other news
    moved: bool = False


_watchers = Watchers[RevisionWatch]()


@contextlib.contextmanager
def watching_revisions(change_event: asyncio.Event) -> Iterator[RevisionWatch]:
    """Signal each new revision of any process until the block ends; for code on an event loop. At the signal,
    `current_catalogue()` already returns that revision. Read the first catalogue inside the block, so that no
    revision is missed. All watches of a loop share one query; without watches there is none."""
    watch = RevisionWatch(change_event)
    with _watchers.watching(watch, _watch_revisions):
        yield watch


async def _watch_revisions(watcher: Watcher[RevisionWatch]) -> None:
    known: ExposedCatalogue | None = None
    outage = DatabaseOutage("Watching the catalogue")
    while True:
        try:
            catalogue = await run_in_database(confirmed_catalogue)
        except (DatabaseError, InterfaceError) as error:
            outage.note(error)
        else:
            outage.end()
            if catalogue is not known:
                known = catalogue
                for watch in list(watcher.watches):
                    watch.moved = True
                    watch.change_event.set()
        await asyncio.sleep(LOOK_SECONDS)
