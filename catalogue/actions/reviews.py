"""Reviewing held changes, new workflows and held listings; a decision on an outdated offer has no effect."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from catalogue.actions.workflows import enable_workflows
from catalogue.approval_rules import find_rule_problems
from catalogue.argument_overrides import find_override_problems
from catalogue.connections import starts_by_metadata
from catalogue.database import in_batches
from catalogue.discovery import BeingRefreshed, RefreshRefused, make_due, refresh_source
from catalogue.drift import ASPECTS, SIDES, Difference, describe_differences, kinds_held
from catalogue.exposure import Placement
from catalogue.history import Actor, record_change, record_changes
from catalogue.models import DiscoveryRun, Review, Revision, Source, Workflow
from catalogue.naming import counted, listed
from catalogue.reconciliation import (
    BATCH,
    LAYER_FIELDS,
    accept_upstream_versions,
    classify_change,
    hash_layer,
    layer_of,
)

NAMED = 10
REVIEW = "review"  # In entries of the history: the states of the review before and after
Offers = Mapping[int, str]  # By the workflow's key, the hash of the offer that was seen
RUN_BY = ("name", "input_schema", "metadata")  # What starts a run, for engines that start by metadata
NOTED_WITH = {"input_schema": ("schema_problem",), "name": ("resembles",), "upstream_title": ("resembles",)}
"""Findings that are accepted together with the field."""
ACCEPTABLE = tuple(  # The fields that can be accepted alone
    name for name in LAYER_FIELDS if name not in ("content_hash", "schema_problem", "resembles")
)


KINDS = (  # Of differences
    *(name for name in ACCEPTABLE if name not in SIDES),
    *(f"{side}-{aspect}" for side in SIDES.values() for aspect in ASPECTS),
)


class UnknownFields(ValueError):
    def __init__(self, names: list[str]) -> None:
        super().__init__(f"Unknown fields: {', '.join(names)}. Choose from {', '.join(ACCEPTABLE)}.")


class ReviewRefused(Exception):
    """There is nothing left to decide."""


@dataclass(slots=True)
class Decided:
    """The tools' names by the result of the decision."""

    done: list[str] = field(default_factory=list)
    changed_again: list[str] = field(default_factory=list)  # The engine offers something else now
    nothing_held: list[str] = field(default_factory=list)  # Decided already, or withdrawn by the engine
    turned_down: list[str] = field(default_factory=list)  # Since it was read as awaiting a decision
    only_whole: list[str] = field(default_factory=list)  # New workflows, which cannot be accepted by field

    def refusal(self) -> str:
        """Empty if everything was decided."""
        refused = {
            "Changed again, so review again": self.changed_again,
            "No longer held": self.nothing_held,
            "Turned down in the meantime": self.turned_down,
            "New workflows can only be accepted as a whole": self.only_whole,
        }
        return " ".join(f"{why}: {listed(names, NAMED)}." for why, names in refused.items() if names)


def differences_of(review: Review, placement: Placement | None = None) -> list[Difference]:
    """None for a new workflow. Select the workflow and its source before; calls can share `placement`."""
    if review.offered is None:
        return []
    offered = layer_of(Workflow()) | review.offered
    return classify_change(review.workflow, offered, placement or Placement())


def warning_of_review(review: Review, differences: Collection[Difference]) -> str:
    """Excerpts of new texts, or of all of a new workflow, that may be instructions to agents."""
    if review.kind == Review.Kind.NEW:
        return review.workflow.warning
    return ", ".join(dict.fromkeys(one.warning for one in differences if one.warning))


def differing_only_in(reviews: QuerySet[Review], kinds: Collection[str]) -> QuerySet[Review]:
    """Returns the reviews of changed workflows where only these kinds of differences need a decision."""
    placement, changed = Placement(), reviews.changes().select_related("workflow__source")  # type: ignore[attr-defined]
    keys = [one.pk for one in changed if {*kinds} >= {*kinds_held(differences_of(one, placement))}]
    return reviews.filter(pk__in=keys)


def find_misfits(review: Review) -> list[str]:
    """The curator's settings that the offered schema breaks, a sentence or two each."""
    workflow = review.workflow
    schema: dict[str, Any] | None = (review.offered or {}).get("input_schema")
    if schema is None or schema == workflow.input_schema:
        return []
    values = find_override_problems(schema, workflow.argument_overrides).items()
    rules = find_rule_problems(schema, workflow.approval_rules)
    return [
        *(f"The value that is set for {name}: {problem} Calls may be refused." for name, problem in values),
        *(f"A rule for approval: {problem} Each call would wait for approval." for problem in rules),
    ]


def fields_together(field: str, source: Source) -> tuple[str, ...]:
    """Accepted together, so that a call made by one schema is never sent by another's rules."""
    return RUN_BY if field in RUN_BY and starts_by_metadata(source.kind) else (field,)


def offers_of(reviews: QuerySet[Review]) -> dict[int, str]:
    """The current offers, for a decision on all of them without review."""
    return dict(reviews.order_by("pk").values_list("pk", "offer_hash"))


def accept_offers(
    offers: Offers, *, by: Actor, fields: Collection[str] = (), awaiting: Collection[int] = ()
) -> Decided:
    """New workflows are enabled. `fields`: only these and what goes with them. `awaiting`: keys of those that
    were seen without a decision; what was turned down since stays so. Raises UnknownFields."""
    if unknown := sorted(set(fields) - set(ACCEPTABLE)):
        raise UnknownFields(unknown)
    return _decide(offers, by, partial(_accept, fields=fields), fields, awaiting)


def keep_accepted(offers: Offers, *, by: Actor, awaiting: Collection[int] = ()) -> Decided:
    """Keep the accepted layer until the engine offers another one; new workflows stay hidden. `awaiting`: as
    for `accept_offers`."""
    return _decide(offers, by, _keep, awaiting=awaiting)


def _decide(
    offers: Offers,
    by: Actor,
    decide: Callable[[list[Review], Actor, Placement], None],
    fields: Collection[str] = (),
    awaiting: Collection[int] = (),
) -> Decided:
    decided, placement = Decided(), Placement()
    for keys in in_batches(list(offers), BATCH):
        with transaction.atomic():
            # The same lock as for listings, so that neither overwrites the other.
            Revision.lock()
            names = dict(Workflow.objects.filter(pk__in=keys).values_list("pk", "tool_name"))
            reviews = Review.objects.select_for_update(of=("self",)).select_related("workflow__source")
            held, agreed = reviews.in_bulk(keys), list[Review]()
            for key in [key for key in keys if key in names]:
                review, result = held.get(key), decided.nothing_held
                if review is None:
                    pass
                elif review.offer_hash != offers[key]:
                    result = decided.changed_again
                elif key in awaiting and review.kept_at:
                    result = decided.turned_down
                elif fields and review.kind == Review.Kind.NEW:
                    result = decided.only_whole
                elif not fields or _split(review, fields, placement)[0]:
                    result = decided.done
                    agreed.append(review)
                result.append(names[key])
            decide(agreed, by, placement)
    return decided


def _accept(reviews: list[Review], by: Actor, placement: Placement, *, fields: Collection[str] = ()) -> None:
    changed, new = _by_kind(reviews)
    splits = {review: _split(review, fields, placement) for review in changed} if fields else {}
    in_part = {review: split for review, split in splits.items() if split[1]}
    whole = [review for review in changed if review not in in_part]
    layers = [(review.workflow, review.offered or {}) for review in whole]
    layers += [(review.workflow, _layer_in_part(review, fields)) for review in in_part]
    for workflow, layer in layers:
        note_layer(workflow, layer)
    for review in (*whole, *new):
        note_state(review, None)
    accept_upstream_versions(layers)
    if new:
        enable_workflows(Workflow.objects.filter(pk__in=[review.pk for review in new]))
    Review.objects.filter(pk__in=[review.pk for review in whole]).delete()
    if layers:
        Revision.bump()
    _record(by, whole, placement, "Accepted the engine's change: {}.")
    _record(by, new, placement, "Accepted as a new workflow, and enabled.")
    message = "Accepted of the engine's change: {}. Still held: {}."
    parts = [
        (one.workflow, message.format(*map(describe_differences, split))) for one, split in in_part.items()
    ]
    record_changes(by, parts)


def _split(
    review: Review, fields: Collection[str], placement: Placement
) -> tuple[list[Difference], list[Difference]]:
    """The differences in the fields, and the others."""
    source = review.workflow.source
    chosen = {one for field in fields for one in fields_together(field, source)}
    accepted, held = list[Difference](), list[Difference]()
    for difference in differences_of(review, placement):
        (accepted if difference.field in chosen else held).append(difference)
    return accepted, held


def _layer_in_part(review: Review, fields: Collection[str]) -> dict[str, Any]:
    """The accepted layer with the chosen fields of the offer, and its hash."""
    workflow, offered = review.workflow, layer_of(Workflow()) | (review.offered or {})
    chosen = {one for field in fields for one in fields_together(field, workflow.source)}
    columns = [column for field in chosen for column in (field, *NOTED_WITH.get(field, ()))]
    layer = layer_of(workflow) | {column: offered[column] for column in columns}
    return layer | {"content_hash": hash_layer({"upstream_id": workflow.upstream_id, **layer})}


def _by_kind(reviews: list[Review]) -> tuple[list[Review], list[Review]]:
    """Changed workflows, and new ones."""
    changed = [review for review in reviews if review.kind == Review.Kind.CHANGED]
    return changed, [review for review in reviews if review.kind == Review.Kind.NEW]


def _record(by: Actor, reviews: list[Review], placement: Placement, message: str) -> None:
    """Call it after the change, with the workflows as read before it."""
    entries = [
        (review.workflow, message.format(describe_differences(differences_of(review, placement))))
        for review in reviews
    ]
    record_changes(by, entries)


def _keep(reviews: list[Review], by: Actor, placement: Placement) -> None:
    (changed, new), now = _by_kind(reviews), timezone.now()
    Review.objects.filter(pk__in=[review.pk for review in changed]).update(kept_at=now)
    Review.objects.filter(pk__in=[review.pk for review in new]).delete()
    for review in reviews:
        note_state(review, now)
    _record(by, changed, placement, "Turned down the engine's change: {}.")
    _record(by, new, placement, "Reviewed as a new workflow, and left hidden.")


def note_layer(workflow: Workflow, layer: Mapping[str, Any]) -> None:
    """Notes for the history what the row, as read, loses and gets."""
    old, new = layer_of(workflow), layer_of(Workflow()) | {**layer}
    workflow.changed_besides = {name: [old[name], new[name]] for name in old if old[name] != new[name]}


def note_state(review: Review, kept_at: datetime | None) -> None:
    """Likewise, of the review; None: it is decided."""
    before, review.kept_at = review.state, kept_at
    after = review.state if kept_at and review.kind == Review.Kind.CHANGED else None
    review.workflow.changed_besides = {**review.workflow.changed_besides, REVIEW: [before, after]}


def state_of(workflow: Workflow) -> str | None:
    review = Review.objects.defer("offered").filter(pk=workflow.pk).first()
    return None if review is None else review.state


def take_back(workflow: Workflow, wanted: Mapping[str, Any]) -> None:
    """Restore fields of the accepted layer, and the review: what the engine says instead is held again, and
    turned down where the source would follow it. Raises ValidationError."""
    review, state = Review.objects.filter(pk=workflow.pk).first(), wanted.get(REVIEW) or ""
    before, is_settled, follows = review and review.state, not state, False
    offer: dict[str, Any] = {"workflow": workflow, "offer_hash": workflow.content_hash}
    served = layer_of(workflow)
    if restored := {name: wanted[name] for name in served if name in wanted}:
        layer = served | restored
        layer["content_hash"] = hash_layer({"upstream_id": workflow.upstream_id, **layer})
        review = review or Review(kind=Review.Kind.CHANGED, offered=served, **offer)
        is_settled = review.offer_hash == layer["content_hash"]
        follows = workflow.source.change_policy == Source.ChangePolicy.FOLLOW
        note_layer(workflow, layer)
        accept_upstream_versions([(workflow, layer)])
        Revision.bump()
    elif state.startswith(Review.Kind.NEW):
        if workflow.enabled:
            raise ValidationError(f"{workflow} is enabled now: disable it instead.")
        review = Review(kind=Review.Kind.NEW, **offer)
    if is_settled:
        Review.objects.filter(pk=workflow.pk).delete()
        review = None
    elif review is not None:
        review.kept_at = timezone.now() if follows or state.startswith("turned down") else None
        review.save()
    workflow.changed_besides = {**workflow.changed_besides, REVIEW: [before, review and review.state]}


def confirm_listing(run: DiscoveryRun, *, by: Actor) -> DiscoveryRun | None:
    """Confirm that the workflows missing from a held listing are gone, and list the source again. Returns the
    new listing, held again if it misses others. None if the source cannot be listed now; the listing in
    progress or the next one applies then. Raises ReviewRefused."""
    with transaction.atomic():
        Revision.lock()
        source = run.source
        held = DiscoveryRun.objects.filter(pk=run.pk, outcome=DiscoveryRun.Outcome.HELD)
        later = source.discovery_runs.filter(pk__gt=run.pk, outcome=DiscoveryRun.Outcome.SUCCEEDED)
        if later.exists() or not held.update(confirmed_at=timezone.now()):
            raise ReviewRefused(
                "There is nothing to confirm: this listing is not held, or a later one succeeded."
            )
        gone = counted(run.missing, "workflow is", "workflows are")
        record_change(by, [source], f"Confirmed that {gone} gone.")
    try:
        return refresh_source(source)
    except BeingRefreshed:
        make_due(Source.objects.filter(pk=source.pk))
    except RefreshRefused:
        pass
    return None
