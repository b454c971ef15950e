"""Reconciling the catalogue with a listing, in queries per batch rather than per workflow."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Any, NamedTuple

from django.db import transaction
from django.db.models import Q, Subquery
from django.db.models.functions import Coalesce
from django.utils import timezone

from catalogue.actions.workflows import disable_workflows
from catalogue.approval_rules import find_rule_problems
from catalogue.argument_overrides import find_override_problems
from catalogue.connections import starts_by_metadata
from catalogue.database import in_batches
from catalogue.drift import Difference, describe_differences, find_differences, is_harmless, warning_of
from catalogue.exposure import Placement
from catalogue.history import Actor, record_values
from catalogue.models import DiscoveryRun, Review, Revision, Source, Workflow
from catalogue.naming import BUILT_IN_TOOLS, DISGUISES, SEPARATORS, counted, looks_of, make_tool_name
from catalogue.presentation import read_hints, read_icons
from catalogue.schema_limits import UnsafeSchema
from catalogue.schemas import check_input_schema, check_output_schema
from connectors.definitions import Interaction, RejectedDefinition, WorkflowDefinition

RECORDED_OBJECTS = 1000
MAX_INTERACTIONS = 50  # Queries, and as many signals, kept per workflow
BATCH = 500
NO_DESCRIPTION = "It has no description. Agents choose by descriptions, so a curator must write one."

LAYER_FIELDS = (  # The fields that are accepted of a workflow, or offered in their place
    "name", "upstream_title", "description", "category", "version", "author", "tags", "execution_type",
    "input_schema", "output_schema", "schema_problem", "resembles", "hints", "icons",
    "upstream_timeout_seconds", "upstream_cache_seconds", "queries", "signals", "metadata", "content_hash",
)  # fmt: skip
UPSTREAM_FIELDS = (*LAYER_FIELDS, "warning", "changed_at", "missing_since")
COPIED_FIELDS = (
    "name", "description", "category", "version", "author", "tags", "execution_type", "metadata",
)  # fmt: skip
ADDED_LATER = {
    "upstream_title", "hints", "icons", "upstream_timeout_seconds", "upstream_cache_seconds", "queries",
    "signals",
}  # fmt: skip
COMPARED_FIELDS = (
    "source", "upstream_id", "name", "tool_name", "argument_overrides", "enabled", "resembles",
    "warning", "content_hash", "changed_at", "missing_since",
)  # fmt: skip
MIN_GUARDED = 5  # Fewer missing workflows need no confirmation, unless all are missing


class Superseded(Exception):
    """The source was reconfigured, deleted or listed again meanwhile, so the listing no longer counts."""


class ListingHeld(Exception):
    """So many workflows are missing that an administrator must confirm the listing; nothing was changed."""

    def __init__(self, missing: list[Workflow], present: int, digest: str) -> None:
        gone = f"{len(missing):,} of {counted(present, 'workflow')} {'is' if len(missing) == 1 else 'are'}"
        super().__init__(
            f"The listing is held: {gone} missing. The last good list is kept until the engine lists them "
            "again, or an administrator confirms that they are gone."
        )
        self.missing, self.digest = missing, digest


@dataclass(slots=True)
class Listing:
    layers: dict[str, dict[str, Any]] = field(default_factory=dict)  # By the engine's id, in its order
    skipped: list[dict[str, Any]] = field(default_factory=list)
    flagged: list[dict[str, Any]] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)  # Reasons by the engine's id

    def skip(self, position: int, item: WorkflowDefinition | RejectedDefinition, reason: str) -> None:
        self.unreadable.setdefault(item.id, reason)
        self.skipped.append({"position": position, "id": item.id, "name": item.name, "reason": reason})

    def flag(self, upstream_id: str, name: str, reason: str) -> None:
        self.flagged.append({"id": upstream_id, "name": name, "reason": reason})


def read_listing(items: Iterable[WorkflowDefinition | RejectedDefinition]) -> Listing:
    """Check each object separately; a bad one is skipped with its reason (A5.3, B6)."""
    listing = Listing()
    for position, item in enumerate(items):
        if isinstance(item, RejectedDefinition):
            listing.skip(position, item, item.reason)
            continue
        if item.id in listing.layers:
            listing.skip(position, item, "an earlier object of this listing has the same id")
            continue
        try:
            checked = check_input_schema(item.input_schema)
        except UnsafeSchema as error:
            listing.skip(position, item, str(error))
            continue
        hints, hint_problems = read_hints(item.annotations)
        icons, icon_problems = read_icons(item.icons)
        queries, query_problems = read_interactions(item.queries)
        signals, signal_problems = read_interactions(item.signals)
        of_parts = [*hint_problems, *icon_problems, *query_problems, *signal_problems]
        undescribed = "" if item.description else NO_DESCRIPTION
        if problems := [*filter(None, [undescribed, checked.remark]), *of_parts]:
            listing.flag(item.id, item.name, " ".join(problems))
        layer = {name: getattr(item, name) for name in COPIED_FIELDS} | {
            "upstream_id": item.id,
            "upstream_title": item.title,
            "input_schema": checked.schema,
            "output_schema": check_output_schema(item.output_schema),
            "schema_problem": checked.problem,
            "hints": hints,
            "icons": icons,
            "upstream_timeout_seconds": item.timeout_seconds,
            "upstream_cache_seconds": item.cache_seconds,
            "queries": queries,
            "signals": signals,
        }
        listing.layers[item.id] = layer | {"content_hash": hash_layer(layer)}
    return listing


def read_interactions(declared: Iterable[Interaction]) -> tuple[list[dict[str, Any]], list[str]]:
    """The kept interactions, `[{name, description, inputSchema}]`, and the problems of the others. A broken
    schema is replaced by one that takes any object, as for workflows; an interaction with a dangerous schema
    is dropped."""
    kept: dict[str, dict[str, Any]] = {}
    problems: list[str] = []
    for interaction in declared:
        if interaction.name in kept or len(kept) == MAX_INTERACTIONS:
            is_twice = interaction.name in kept
            why = "it is declared twice" if is_twice else f"there are more than {MAX_INTERACTIONS}"
            problems.append(f"{interaction.name} is left out: {why}.")
            continue
        try:
            checked = check_input_schema(interaction.input_schema)
        except UnsafeSchema as error:
            problems.append(f"{interaction.name} is left out: {error}")
            continue
        if checked.remark:
            problems.append(f"{interaction.name}: {checked.remark}")
        kept[interaction.name] = interaction.model_dump() | {"inputSchema": checked.schema}
    return list(kept.values()), problems


def reconcile(
    source: Source,
    listing: Listing,
    run: DiscoveryRun,
    *,
    is_whole: bool = True,
    enable: bool | None = None,
    by_hand: bool = False,
    by: Actor | None = None,
) -> list[Workflow]:
    """Add, update, hold and restore workflows, mark missing ones, and record all of this on the run. Returns
    the added rows. A partial listing does not touch workflows that it omits. `enable` overrides the source's
    policy for new workflows. `by_hand` is for declarations in this catalogue, which need no review; `by` is
    the actor in the history. Raises Superseded or ListingHeld, and then changes nothing."""
    run.skipped_count, run.skipped = len(listing.skipped), listing.skipped[:RECORDED_OBJECTS]
    try:
        with transaction.atomic():
            current = lock_as_listed(source)
            by_itself = enable is None and current.new_workflows == Source.NewWorkflows.EXPOSED
            policy = Source.ChangePolicy.FOLLOW if by_hand else Source.ChangePolicy(current.change_policy)
            changes = _compare(current, listing, enable=bool(enable) or by_itself, policy=policy)
            if not is_whole:
                changes.missing = []
            elif not by_hand:
                _hold_if_much_is_missing(current, listing, changes)
            looks = _Lookalikes(current, gone=changes.missing)
            _judge(current, listing, changes, looks, policy)
            if enable is None:
                _review_new(current, changes)
            _flag_dangers(looks, listing, changes, hide=by_itself)
            before = {} if by is None else _read_replaced(current, changes)
            _write(current, changes)
            if by is not None:
                _record(by, changes, before)
    except ListingHeld as held:
        run.missing, run.vanishing_digest = len(held.missing), held.digest
        run.changes = _named(missing=held.missing)
        raise
    run.added, run.updated, run.unchanged = len(changes.new), len(changes.updated), changes.unchanged
    run.returned = len(changes.returned) + len(changes.returned_as_accepted)
    returned = {workflow.pk for workflow in changes.returned_as_accepted}
    run.missing, run.held = len(changes.missing), sum(row.pk not in returned for row in changes.held)
    run.flagged = listing.flagged[:RECORDED_OBJECTS]
    run.changes = _named(
        added=changes.new,
        updated=changes.updated,
        returned=[*changes.returned, *changes.returned_as_accepted],
        missing=changes.missing,
        held=changes.held,
    )
    return changes.new


def _named(**changed: list[Workflow]) -> dict[str, list[dict[str, Any]]]:
    return {
        change: [
            {
                "workflow": workflow.pk,
                "id": workflow.upstream_id,
                "name": workflow.name,
                "tool_name": workflow.tool_name,
            }
            for workflow in workflows[:RECORDED_OBJECTS]
        ]
        for change, workflows in changed.items()
        if workflows
    }


def hash_layer(layer: Mapping[str, Any]) -> str:
    """Covers what the engine listed, with its id. Fields that were added later count only if set, so that
    older hashes stay valid."""
    listed = {name: value for name, value in layer.items() if name not in ("content_hash", "resembles")}
    counted = {name: value for name, value in listed.items() if value or name not in ADDED_LATER}
    canonical = json.dumps(counted, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


@dataclass(slots=True)
class _Changes:
    """The changes of a listing, by how they are written."""

    new: list[Workflow] = field(default_factory=list)
    updated: list[Workflow] = field(default_factory=list)
    returned: list[Workflow] = field(default_factory=list)
    returned_as_accepted: list[Workflow] = field(default_factory=list)  # With a change held or refused
    held: list[Workflow] = field(default_factory=list)  # Held since this listing
    unchanged: int = 0
    present: int = 0  # Before
    missing: list[Workflow] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)  # Ids of enabled workflows that became look-alikes
    doubtful: list[tuple[Workflow, dict[str, Any]]] = field(default_factory=list)  # For the policy
    to_review: list[Workflow] = field(default_factory=list)  # New workflows, which have no key yet
    reviews: list[Review] = field(default_factory=list)  # Replace existing ones
    settled: list[int] = field(default_factory=list)  # Keys of workflows that no longer need review


def lock_as_listed(source: Source) -> Source:
    """Lock the catalogue and the source, as the listing found it. Raises Superseded."""
    Revision.lock()
    current = Source.objects.select_for_update().filter(pk=source.pk).first()
    if current is None:
        raise Superseded("The source was deleted during the listing.")
    if current.settings_fingerprint != source.settings_fingerprint:
        raise Superseded("The source's settings were changed during the listing.")
    if current.refresh_lease_expires_at != source.refresh_lease_expires_at:
        raise Superseded("A later listing of the source has started.")
    return current


def _read_replaced(source: Source, changes: _Changes) -> dict[str, Workflow]:
    """The stored rows that the changes replace, by the engine's ids."""
    ids = [workflow.upstream_id for workflow in (*changes.updated, *changes.returned)]
    stored = source.workflows.only("upstream_id", "tool_name", *LAYER_FIELDS).order_by()
    return {
        row.upstream_id: row
        for batch in in_batches(ids, BATCH)
        for row in stored.filter(upstream_id__in=batch)
    }


def _record(by: Actor, changes: _Changes, before: Mapping[str, Workflow]) -> None:
    declared = [name for name in LAYER_FIELDS if name != "content_hash"]
    entries: list[tuple[Workflow, str, dict[str, list[Any]]]] = []
    for row in changes.new:
        values = {name: [None, value] for name in declared if (value := getattr(row, name))}
        entries.append((row, f"Declared: {Change.ADDED}.", values))
    for what, rows in ((Change.UPDATED, changes.updated), (Change.RETURNED, changes.returned)):
        for row in rows:
            old = before[row.upstream_id]
            pairs = {name: [getattr(old, name), getattr(row, name)] for name in declared}
            values = {name: [was, is_now] for name, (was, is_now) in pairs.items() if was != is_now}
            entries.append((old, f"Declared: {what}.", values))
    entries += [(row, f"Declared: {Change.REMOVED}.", {}) for row in changes.missing]
    record_values(by, entries)


def _compare(source: Source, listing: Listing, *, enable: bool, policy: Source.ChangePolicy) -> _Changes:
    now, changes = timezone.now(), _Changes()
    known = {workflow.upstream_id: workflow for workflow in source.workflows.only(*COMPARED_FIELDS)}
    changes.present = sum(row.missing_since is None for row in known.values())
    reviews = {
        review.pk: review for review in Review.objects.filter(workflow__source=source).defer("offered")
    }
    taken: set[str] = set()
    if listing.layers.keys() - known.keys():
        # A name that was just given up still serves as an alias.
        taken = {*Workflow.objects.values_list("tool_name", flat=True), *Workflow.objects.live_aliases()}
    for upstream_id, upstream in listing.layers.items():
        workflow = known.pop(upstream_id, None)
        if workflow is None:
            tool_name = make_tool_name(
                name=upstream["name"], upstream_id=upstream_id, source_name=source.name, taken=taken
            )
            taken.add(tool_name)
            changes.new.append(
                Workflow(
                    source=source,
                    tool_name=tool_name,
                    enabled=enable,
                    first_seen_at=now,
                    changed_at=now,
                    **upstream,
                )
            )
            continue
        _compare_one(workflow, upstream, reviews.get(workflow.pk), changes, policy)
        # Values that a curator has set may not fit the engine's new schema, whether it is held or not.
        if workflow.argument_overrides and workflow.content_hash != upstream["content_hash"]:
            problems = find_override_problems(upstream["input_schema"], workflow.argument_overrides)
            if misfits := " ".join(f"{name}: {problem}" for name, problem in problems.items()):
                reason = "The curator's settings of its arguments do not fit the engine's new schema."
                listing.flag(upstream_id, upstream["name"], f"{reason} {misfits}")
    changes.missing = _find_missing(listing, known.values())
    return changes


def _find_missing(listing: Listing, omitted: Iterable[Workflow]) -> list[Workflow]:
    missing = []
    for workflow in omitted:
        if workflow.missing_since is not None:
            continue
        if reason := listing.unreadable.get(workflow.upstream_id, ""):
            message = f"It is kept unchanged, because its object cannot be read: {reason}"
            listing.flag(workflow.upstream_id, workflow.name, message)
        else:
            missing.append(workflow)
    return missing


def _hold_if_much_is_missing(source: Source, listing: Listing, changes: _Changes) -> None:
    """Raises ListingHeld if too many are missing, unless exactly these were confirmed since the last listing
    that succeeded."""
    missing, present = changes.missing, changes.present
    is_much = len(missing) >= MIN_GUARDED and 100 * len(missing) > source.vanishing_share_percent * present
    if not missing or (listing.layers and not is_much):
        return
    ids = json.dumps(sorted(workflow.upstream_id for workflow in missing))
    digest = hashlib.sha256(ids.encode()).hexdigest()
    succeeded = source.discovery_runs.filter(outcome="succeeded").order_by("-pk").values("pk")[:1]
    held = source.discovery_runs.filter(outcome="held", pk__gt=Coalesce(Subquery(succeeded), 0))
    if not held.filter(vanishing_digest=digest).exclude(confirmed_at=None).exists():
        raise ListingHeld(missing, present, digest)


def _flag_dangers(looks: "_Lookalikes", listing: Listing, changes: _Changes, *, hide: bool) -> None:
    """Flag new and changed workflows that resemble another tool, or whose texts may instruct agents.
    `hide`: nothing of the source is reviewed before agents see it, so a workflow is hidden for a curator when
    it begins to resemble the other tool, and not again at each change."""
    new = sorted(changes.new, key=lambda workflow: len(DISGUISES.findall(workflow.name)))
    for position, workflow in enumerate([*new, *changes.updated, *changes.returned]):
        warned, workflow.warning = workflow.warning, warning_of(layer_of(workflow))
        if workflow.warning not in ("", warned):
            message = f"Its texts may try to command agents: {workflow.warning}."
            listing.flag(workflow.upstream_id, workflow.name, message)
        before, workflow.resembles = workflow.resembles, looks.find(workflow)
        if not workflow.resembles:
            looks.add(workflow)
        if not workflow.resembles or workflow.resembles == before:
            continue
        message = f"Its name or title can be mistaken for {workflow.resembles}."
        if hide and position < len(new):
            workflow.enabled = False
            changes.to_review.append(workflow)
        elif hide and workflow.enabled:
            changes.hidden.append(workflow.upstream_id)
        if hide:
            message += " It is hidden until a curator enables it."
        listing.flag(workflow.upstream_id, workflow.name, message)


class _Known(NamedTuple):
    text: str
    name: str  # The engine's
    described: str
    own_id: str | None  # The engine's id, of a workflow of the listed source


class _Lookalikes:
    """The looks of the names and titles of built-in tools and of workflows, except those of the listed source
    that are look-alikes themselves or `gone`."""

    def __init__(self, source: Source, *, gone: Iterable[Workflow]) -> None:
        self._source, self._gone = source, {workflow.upstream_id for workflow in gone}

    @cached_property
    def _by_look(self) -> dict[str, list[_Known]]:
        known: dict[str, list[_Known]] = defaultdict(list)
        for name, title in BUILT_IN_TOOLS.items():
            _know(known, name, title, described=f"the built-in tool {name}")
        others = Workflow.objects.filter(missing_since=None).exclude(~Q(resembles=""), source=self._source)
        shown = ("source", "upstream_id", "source__name", "name", "tool_name", "upstream_title")
        rows = others.order_by("first_seen_at", "pk").values_list(*shown, "title_override")
        for source, upstream_id, source_name, name, tool_name, *titles in rows:
            own_id = upstream_id if source == self._source.pk else None
            if own_id not in self._gone:
                described = f"{tool_name} of {source_name}"
                _know(known, name, tool_name, *titles, name=name, described=described, own_id=own_id)
        return known

    def add(self, workflow: Workflow) -> None:
        texts, own_id = (workflow.name, workflow.upstream_title), workflow.upstream_id
        described = f"{workflow.tool_name} of {self._source.name}"
        _know(self._by_look, *texts, name=workflow.name, described=described, own_id=own_id)

    def find(self, workflow: Workflow) -> str:
        """The first tool that it resembles, or empty. Equal names are those of two stages of an engine, or of
        an engine that knows its workflows by their ids."""
        texts = (workflow.name, workflow.upstream_title)
        for look, own in sorted((look, text) for text in texts for look in looks_of(text)):
            alike = self._by_look.get(look, ())
            # Within its source, only a new text can be an imitation.
            is_new = (workflow.upstream_id, own) not in {(one.own_id, one.text) for one in alike}
            for one in alike:
                # Names are identifiers; titles that differ in case and separators are equal.
                plain, other_plain = (SEPARATORS.sub("", text).casefold() for text in (own, one.text))
                is_name = (own, one.text) == (workflow.name, one.name)
                passes = one.own_id != workflow.upstream_id and (is_name or plain != other_plain)
                if one.name != workflow.name and (one.own_id is None or (is_new and passes)):
                    return one.described
        return ""


def _know(
    known: dict[str, list[_Known]], *texts: str, described: str, name: str = "", own_id: str | None = None
) -> None:
    for text in dict.fromkeys(texts):
        for look in looks_of(text):
            known[look].append(_Known(text, name, described, own_id))


def _compare_one(
    workflow: Workflow,
    upstream: dict[str, Any],
    review: Review | None,
    changes: _Changes,
    policy: Source.ChangePolicy,
) -> None:
    change = review if review is not None and review.kind == Review.Kind.CHANGED else None
    offer_hash = upstream["content_hash"]
    if workflow.content_hash == offer_hash:
        if change is not None:
            changes.settled.append(workflow.pk)
        if workflow.missing_since is None:
            changes.unchanged += 1
        else:
            changes.returned.append(_row(workflow, upstream, changed_at=workflow.changed_at))
    elif (
        change is not None
        and change.offer_hash == offer_hash
        # A rejected offer stays rejected under any policy.
        and (change.kept_at is not None or policy != Source.ChangePolicy.FOLLOW)
    ):
        if workflow.missing_since is None:
            changes.unchanged += 1
        else:
            changes.returned_as_accepted.append(workflow)
    elif _may_be_held(workflow, review, policy):
        changes.doubtful.append((workflow, upstream))
    else:
        _follow(workflow, upstream, review, changes)


def _may_be_held(workflow: Workflow, review: Review | None, policy: Source.ChangePolicy) -> bool:
    """A workflow that is not enabled was never accepted; the policy `hold` holds its changes nevertheless."""
    if policy == Source.ChangePolicy.FOLLOW:
        return False
    is_new = review is not None and review.kind == Review.Kind.NEW
    return workflow.enabled or (policy == Source.ChangePolicy.HOLD and not is_new)


def _follow(workflow: Workflow, upstream: dict[str, Any], review: Review | None, changes: _Changes) -> None:
    row = _row(workflow, upstream, changed_at=timezone.now())
    (changes.updated if workflow.missing_since is None else changes.returned).append(row)
    if review is not None and review.kind == Review.Kind.NEW:
        review.offer_hash = upstream["content_hash"]
        changes.reviews.append(review)
    elif review is not None:
        changes.settled.append(workflow.pk)


def _row(workflow: Workflow, upstream: dict[str, Any], *, changed_at: datetime) -> Workflow:
    """A new instance, since the row was read in part; only UPSTREAM_FIELDS are written."""
    return Workflow(
        source=workflow.source,
        tool_name=workflow.tool_name,
        enabled=workflow.enabled,
        resembles=workflow.resembles,
        warning=workflow.warning,
        changed_at=changed_at,
        **upstream,
    )


def _judge(
    source: Source, listing: Listing, changes: _Changes, looks: _Lookalikes, policy: Source.ChangePolicy
) -> None:
    """Follow harmless changes and hold the others."""
    placement = Placement()
    for batch in in_batches(changes.doubtful, BATCH):
        read = Workflow.objects.only("upstream_id", *CURATED, *LAYER_FIELDS)
        accepted = read.in_bulk([workflow.pk for workflow, _ in batch])
        for workflow, upstream in batch:
            row = _row(workflow, upstream, changed_at=workflow.changed_at)
            offered = upstream | {"resembles": looks.find(row)}
            accepted[workflow.pk].source = source
            differences = classify_change(accepted[workflow.pk], offered, placement)
            if policy == Source.ChangePolicy.CAREFUL and is_harmless(differences):
                _follow(workflow, upstream, None, changes)
                changes.settled.append(workflow.pk)
            else:
                changes.held.append(workflow)
                if workflow.missing_since is not None:
                    changes.returned_as_accepted.append(workflow)
                held = {"offer_hash": offered["content_hash"], "offered": offered}
                changes.reviews.append(Review(workflow=workflow, kind=Review.Kind.CHANGED, **held))
                message = f"The change is held for review: {describe_differences(differences)}."
                listing.flag(workflow.upstream_id, workflow.name, message)


def layer_of(workflow: Workflow) -> dict[str, Any]:
    return {name: getattr(workflow, name) for name in LAYER_FIELDS}


CHOSEN_BY = ("name", "category", "tags")  # Upstream fields that filters and toolset rules may read
CURATED = ("tags_override", "argument_overrides", "approval_rules")  # A curator's fields that decide as well


def classify_change(workflow: Workflow, offered: Mapping[str, Any], placement: Placement) -> list[Difference]:
    """Judges by the policy `careful`; exposing, hiding, moving between toolsets and breaking a curator's
    settings are never harmless."""
    by_metadata = starts_by_metadata(workflow.source.kind)
    schema = offered["input_schema"]
    values = find_override_problems(schema, workflow.argument_overrides).keys()
    rules = {*find_rule_problems(schema, workflow.approval_rules)}
    misfits = values - workflow.argument_problems.keys() or rules - {*workflow.approval_rule_problems}
    differences = [
        replace(one, harmless=False) if misfits and one.field == "input_schema" else one
        for one in find_differences(layer_of(workflow), offered, starts_by_metadata=by_metadata)
    ]
    if not any(one.field in CHOSEN_BY for one in differences):
        return differences
    then = Workflow(
        source=workflow.source,
        upstream_id=workflow.upstream_id,
        tags_override=workflow.tags_override,
        **{name: offered[name] for name in CHOSEN_BY},
    )
    if not (moved := placement.describe_move(workflow, then)):
        return differences
    return [
        replace(one, harmless=False, text=f"{one.text}, by which {moved}") if one.field in CHOSEN_BY else one
        for one in differences
    ]


def accept_upstream_versions(layers: Iterable[tuple[Workflow, Mapping[str, Any]]]) -> None:
    """Accept the layers, in queries per batch; curators' decisions stay."""
    now = timezone.now()
    Workflow.objects.bulk_create(
        [
            Workflow(
                source=workflow.source,
                upstream_id=workflow.upstream_id,
                tool_name=workflow.tool_name,
                changed_at=now,
                warning=warning_of(layer),
                **{name: layer[name] for name in LAYER_FIELDS if name in layer},
            )
            for workflow, layer in layers
        ],
        update_conflicts=True,
        unique_fields=("source", "upstream_id"),
        update_fields=(*LAYER_FIELDS, "warning", "changed_at"),
        batch_size=BATCH,
    )


def apply_policy_to_held(source: Source) -> int:
    """Returns how many are accepted; rejected ones stay. Call it under `Revision.lock`."""
    served = 0
    held = Review.objects.changes().filter(workflow__source=source, kept_at=None)
    keys, placement = list(held.order_by("pk").values_list("pk", flat=True)), Placement()
    for batch in in_batches(keys, BATCH):
        reviews = held.select_related("workflow__source").filter(pk__in=batch)
        followed = [review for review in reviews if _is_followed(review, source, placement)]
        accept_upstream_versions((review.workflow, review.offered or {}) for review in followed)
        Review.objects.filter(pk__in=[review.pk for review in followed]).delete()
        served += len(followed)
    if served:
        Revision.bump()
    return served


def _is_followed(review: Review, source: Source, placement: Placement) -> bool:
    workflow, offered = review.workflow, layer_of(Workflow()) | (review.offered or {})
    if source.change_policy == Source.ChangePolicy.FOLLOW:
        # The next listing decides whether to hide an imitation.
        return not offered["resembles"] or offered["resembles"] == workflow.resembles
    if source.change_policy == Source.ChangePolicy.CAREFUL:
        return not workflow.enabled or is_harmless(classify_change(workflow, offered, placement))
    return False


def _review_new(source: Source, changes: _Changes) -> None:
    """Agents choose by the description, so a workflow without one is not exposed automatically."""
    for workflow in changes.new:
        if source.new_workflows == Source.NewWorkflows.HELD:
            changes.to_review.append(workflow)
        elif workflow.enabled and not workflow.description:
            workflow.enabled = False
            changes.to_review.append(workflow)


def _write(source: Source, changes: _Changes) -> None:
    if changes.new or changes.updated or changes.returned or changes.returned_as_accepted or changes.missing:
        # One upsert: `bulk_update` writes a CASE for each field and row, and takes six times as long.
        Workflow.objects.bulk_create(
            [*changes.new, *changes.updated, *changes.returned],
            update_conflicts=True,
            unique_fields=("source", "upstream_id"),
            update_fields=UPSTREAM_FIELDS,
            batch_size=BATCH,
        )
        for hidden in in_batches(changes.hidden, BATCH):
            disable_workflows(Workflow.objects.filter(source=source, upstream_id__in=hidden))
        for rows, since in ((changes.missing, timezone.now()), (changes.returned_as_accepted, None)):
            for batch in in_batches([row.pk for row in rows], BATCH):
                Workflow.objects.filter(pk__in=batch).update(missing_since=since)
        Revision.bump()
    for batch in in_batches(changes.settled, BATCH):
        Review.objects.filter(pk__in=batch).delete()
    changes.reviews += [
        Review(workflow=workflow, kind=Review.Kind.NEW, offer_hash=workflow.content_hash)
        for workflow in {workflow.upstream_id: workflow for workflow in changes.to_review}.values()
    ]
    Review.objects.bulk_create(
        changes.reviews,
        update_conflicts=True,
        unique_fields=("workflow",),
        update_fields=("kind", "offer_hash", "offered", "held_since", "kept_at"),
        batch_size=BATCH,
    )


class Change(StrEnum):
    ADDED = "added"
    UPDATED = "updated"
    UNCHANGED = "unchanged"
    RETURNED = "returned"  # Listed again after it was missing
    REMOVED = "removed"  # Removed from the list; its executions stay on record
    KEPT = "kept"  # Declared earlier, and not mentioned this time


def plan_changes(source: Source | None, listing: Listing) -> dict[str, Change]:
    """Returns the changes by the engine's ids: listed workflows in order, then those that a whole listing
    lacks."""
    rows = source.workflows.values_list("upstream_id", "content_hash", "missing_since") if source else ()
    known = {upstream_id: (content_hash, missing) for upstream_id, content_hash, missing in rows}
    changes = {}
    for upstream_id, layer in listing.layers.items():
        content_hash, missing = known.pop(upstream_id, (None, None))
        if content_hash is None:
            changes[upstream_id] = Change.ADDED
        elif missing is not None:
            changes[upstream_id] = Change.RETURNED
        else:
            same = content_hash == layer["content_hash"]
            changes[upstream_id] = Change.UNCHANGED if same else Change.UPDATED
    gone = sorted(upstream_id for upstream_id, (_, missing) in known.items() if missing is None)
    return changes | dict.fromkeys(gone, Change.REMOVED)
