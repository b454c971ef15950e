"""Reconciliation: what a listing changes in the catalogue, with queries per batch, never per workflow."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from django.db import transaction
from django.utils import timezone

from catalogue.argument_overrides import find_override_problems
from catalogue.interactions import read_interactions
from catalogue.models import DiscoveryRun, Revision, Source, Workflow
from catalogue.naming import BUILT_IN_TOOLS, looks_of, make_tool_name
from catalogue.presentation import read_hints, read_icons
from catalogue.schema_limits import UnsafeSchema
from catalogue.schemas import check_input_schema, check_output_schema
from connectors.definitions import RejectedDefinition, WorkflowDefinition

RECORDED_OBJECTS = 1000
BATCH = 500
NO_DESCRIPTION = "It has no description, by which agents choose: it needs one from a curator."

UPSTREAM_FIELDS = (
    "name",
    "upstream_title",
    "description",
    "category",
    "version",
    "author",
    "tags",
    "execution_type",
    "input_schema",
    "output_schema",
    "schema_problem",
    "resembles",
    "hints",
    "icons",
    "upstream_timeout_seconds",
    "upstream_cache_seconds",
    "queries",
    "signals",
    "metadata",
    "content_hash",
    "changed_at",
    "missing_since",
)
ADDED_LATER = {
    "upstream_title",
    "hints",
    "icons",
    "upstream_timeout_seconds",
    "upstream_cache_seconds",
    "queries",
    "signals",
}
COMPARED_FIELDS = (
    "source",
    "upstream_id",
    "tool_name",
    "argument_overrides",
    "enabled",
    "resembles",
    "content_hash",
    "changed_at",
    "missing_since",
)


class Superseded(Exception):
    """The listing no longer counts: the source was reconfigured, deleted or listed anew meanwhile."""


@dataclass(slots=True)
class Listing:
    """What an engine lists, checked and ready to be compared with what we know."""

    layers: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The fields that upstream decides, by the engine's id and in the engine's order."""
    skipped: list[dict[str, Any]] = field(default_factory=list)
    flagged: list[dict[str, Any]] = field(default_factory=list)


def read_listing(items: Iterable[WorkflowDefinition | RejectedDefinition]) -> Listing:
    """Check every object for itself; a bad one is skipped with its reason (A5.3, B6)."""
    listing = Listing()
    for position, item in enumerate(items):
        try:
            _read(item, listing)
        except _Skipped as reason:
            listing.skipped.append(
                {"position": position, "id": item.id, "name": item.name, "reason": str(reason)}
            )
    return listing


def reconcile(
    source: Source, listing: Listing, run: DiscoveryRun, *, is_whole: bool = True, enable: bool | None = None
) -> None:
    """Add, update, bring back and mark missing, and count it all on the run.

    A listing that is not the whole one leaves alone what it does not mention. `enable` decides on new
    workflows in place of the source's policy. Raises Superseded, and changes nothing then.
    """
    changes = _apply(source, listing, is_whole=is_whole, enable=enable)
    run.added, run.updated, run.returned = len(changes.new), len(changes.updated), len(changes.returned)
    run.unchanged, run.missing = changes.unchanged, len(changes.missing)
    run.skipped_count, run.skipped = len(listing.skipped), listing.skipped[:RECORDED_OBJECTS]
    run.flagged = listing.flagged[:RECORDED_OBJECTS]


class _Skipped(Exception):
    """The object cannot become a workflow; the message says why."""


def _read(item: WorkflowDefinition | RejectedDefinition, listing: Listing) -> None:
    if isinstance(item, RejectedDefinition):
        raise _Skipped(item.reason)
    if item.id in listing.layers:
        raise _Skipped("an earlier object of this listing has the same id")
    try:
        checked = check_input_schema(item.input_schema)
    except UnsafeSchema as error:
        raise _Skipped(str(error)) from None
    hints, hint_problems = read_hints(item.annotations)
    icons, icon_problems = read_icons(item.icons)
    queries, query_problems = read_interactions(item.queries)
    signals, signal_problems = read_interactions(item.signals)
    of_parts = [*hint_problems, *icon_problems, *query_problems, *signal_problems]
    undescribed = "" if item.description else NO_DESCRIPTION
    if problems := [*filter(None, [undescribed, checked.remark]), *of_parts]:
        listing.flagged.append({"id": item.id, "name": item.name, "reason": " ".join(problems)})
    layer = {
        "upstream_id": item.id,
        "name": item.name,
        "upstream_title": item.title,
        "description": item.description,
        "category": item.category,
        "version": item.version,
        "author": item.author,
        "tags": item.tags,
        "execution_type": item.execution_type,
        "input_schema": checked.schema,
        "output_schema": check_output_schema(item.output_schema),
        "schema_problem": checked.problem,
        "hints": hints,
        "icons": icons,
        "upstream_timeout_seconds": item.timeout_seconds,
        "upstream_cache_seconds": item.cache_seconds,
        "queries": queries,
        "signals": signals,
        "metadata": item.metadata,
    }
    listing.layers[item.id] = layer | {"content_hash": _content_hash(layer)}


def _content_hash(layer: dict[str, Any]) -> str:
    """Workflows without what was added later keep the hash that they had before."""
    told = {name: value for name, value in layer.items() if value or name not in ADDED_LATER}
    canonical = json.dumps(told, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


@dataclass(slots=True)
class _Changes:
    """What a listing changes, sorted by what has to be written."""

    new: list[Workflow] = field(default_factory=list)
    updated: list[Workflow] = field(default_factory=list)
    returned: list[Workflow] = field(default_factory=list)
    unchanged: int = 0
    missing: list[int] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)
    """The engine's ids of known workflows that were enabled, and have come to look like another tool."""

    def __bool__(self) -> bool:
        return bool(self.new or self.updated or self.returned or self.missing)


@transaction.atomic
def _apply(source: Source, listing: Listing, *, is_whole: bool, enable: bool | None) -> _Changes:
    Revision.lock()
    current = Source.objects.select_for_update().filter(pk=source.pk).first()
    if current is None:
        raise Superseded("The source was deleted during the listing.")
    if current.settings_fingerprint != source.settings_fingerprint:
        raise Superseded("The source's settings were changed during the listing.")
    if current.refresh_lease_expires_at != source.refresh_lease_expires_at:
        raise Superseded("A later listing of the source was begun meanwhile.")
    by_itself = enable is None and current.new_workflows == Source.NewWorkflows.EXPOSED
    changes = _compare(current, listing, enable=bool(enable) or by_itself)
    _look_for_imitations(current, listing, changes, hide=by_itself)
    if not is_whole:
        changes.missing = []
    _write(current, changes)
    return changes


def _compare(source: Source, listing: Listing, *, enable: bool) -> _Changes:
    now, changes = timezone.now(), _Changes()
    known = {workflow.upstream_id: workflow for workflow in source.workflows.only(*COMPARED_FIELDS)}
    names = _Names(source)
    for upstream_id, upstream in listing.layers.items():
        workflow = known.pop(upstream_id, None)
        if workflow is None:
            changes.new.append(
                Workflow(
                    source=source,
                    tool_name=names.make(upstream),
                    enabled=enable,
                    first_seen_at=now,
                    changed_at=now,
                    **upstream,
                )
            )
        else:
            _compare_one(workflow, upstream, changes, now)
            _look_at_overrides(workflow, upstream, listing)
    changes.missing = [workflow.pk for workflow in known.values() if workflow.missing_since is None]
    return changes


def _look_at_overrides(workflow: Workflow, upstream: dict[str, Any], listing: Listing) -> None:
    """Tell of values that a curator has set, and that a change of the engine's schema makes useless."""
    if not workflow.argument_overrides or workflow.content_hash == upstream["content_hash"]:
        return
    problems = find_override_problems(upstream["input_schema"], workflow.argument_overrides)
    told = " ".join(f"{name}: {problem}" for name, problem in problems.items())
    if told:
        reason = f"What a curator has set for its arguments no longer fits. {told}"
        listing.flagged.append({"id": workflow.upstream_id, "name": upstream["name"], "reason": reason})


class _Names:
    """Makes tool names; looks those of all sources up when the first new one is needed."""

    def __init__(self, source: Source) -> None:
        self._source = source

    @cached_property
    def _taken(self) -> set[str]:
        # A new workflow must not take over the calls by a name that another has just given up.
        return {*Workflow.objects.values_list("tool_name", flat=True), *Workflow.objects.live_aliases()}

    def make(self, upstream: dict[str, Any]) -> str:
        name = make_tool_name(
            name=upstream["name"],
            upstream_id=upstream["upstream_id"],
            source_name=self._source.name,
            taken=self._taken,
        )
        self._taken.add(name)
        return name


def _look_for_imitations(source: Source, listing: Listing, changes: _Changes, *, hide: bool) -> None:
    """Say of new and changed workflows which tool they can be mistaken for.

    `hide`: nobody looks at what this source brings before agents do, so such a workflow waits for a curator,
    who may enable it. It is hidden when it begins to look like the other, not again at every change.
    """
    candidates = [*changes.new, *changes.updated, *changes.returned]
    if not candidates:
        return
    known = _Lookalikes(source)
    for position, workflow in enumerate(candidates):
        before, workflow.resembles = workflow.resembles, known.find(workflow)
        if not workflow.resembles or workflow.resembles == before:
            continue
        told = f"Its name or title can be mistaken for {workflow.resembles}."
        if hide and position < len(changes.new):
            workflow.enabled = False
        elif hide and workflow.enabled:
            changes.hidden.append(workflow.upstream_id)
        if hide:
            told += " It is hidden until a curator enables it."
        listing.flagged.append({"id": workflow.upstream_id, "name": workflow.name, "reason": told})


class _Lookalikes:
    """What the names and titles of built-in tools and of other sources' workflows look like."""

    def __init__(self, source: Source) -> None:
        self._by_look: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for name, title in BUILT_IN_TOOLS.items():
            self._add("", f"the built-in tool {name}", name, title)
        others = (
            Workflow.objects.filter(missing_since=None).exclude(source=source).order_by("first_seen_at", "pk")
        )
        shown = ("name", "tool_name", "upstream_title", "title_override", "source__name")
        for name, tool_name, title, ours, source_name in others.values_list(*shown):
            self._add(name, f"{tool_name} of {source_name}", name, tool_name, title, ours)

    def _add(self, name: str, described: str, *texts: str) -> None:
        for look in set().union(*map(looks_of, texts)):
            self._by_look[look].append((name, described))

    def find(self, workflow: Workflow) -> str:
        """Of what it may be mistaken for, the first; empty if nothing.

        Two sources may well have a workflow of the very same name, such as two stages of one engine; the name
        of their tools tells those apart.
        """
        texts = (workflow.name, workflow.upstream_title)
        for look in sorted(set().union(*map(looks_of, texts))):
            for name, described in self._by_look.get(look, ()):
                if name != workflow.name:
                    return described
        return ""


def _compare_one(workflow: Workflow, upstream: dict[str, Any], changes: _Changes, now: datetime) -> None:
    was_missing = workflow.missing_since is not None
    changed = workflow.content_hash != upstream["content_hash"]
    if not was_missing and not changed:
        changes.unchanged += 1
        return
    changed_at = now if changed else workflow.changed_at
    # Not the row itself, which was read in part: only UPSTREAM_FIELDS of this one are written.
    row = Workflow(
        source=workflow.source,
        tool_name=workflow.tool_name,
        enabled=workflow.enabled,
        resembles=workflow.resembles,
        changed_at=changed_at,
        **upstream,
    )
    (changes.returned if was_missing else changes.updated).append(row)


def _write(source: Source, changes: _Changes) -> None:
    if not changes:
        return
    # An upsert for both: `bulk_update` writes a CASE per field and row, and takes six times as long.
    Workflow.objects.bulk_create(
        [*changes.new, *changes.updated, *changes.returned],
        update_conflicts=True,
        unique_fields=("source", "upstream_id"),
        update_fields=UPSTREAM_FIELDS,
        batch_size=BATCH,
    )
    for start in range(0, len(changes.hidden), BATCH):
        hidden = changes.hidden[start : start + BATCH]
        Workflow.objects.filter(source=source, upstream_id__in=hidden).update(enabled=False)
    for start in range(0, len(changes.missing), BATCH):
        batch = changes.missing[start : start + BATCH]
        Workflow.objects.filter(pk__in=batch).update(missing_since=timezone.now())
    Revision.bump()
