"""Deciding on changed and new workflows that are held, and on held listings, for every door.

Whoever decides says which offer they saw: an engine that changes its mind meanwhile is looked at again.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from catalogue.discovery import BeingRefreshed, RefreshRefused, make_due, refresh_source
from catalogue.drift import Difference, find_differences, tell_differences
from catalogue.history import Actor, record_change, record_changes
from catalogue.kinds import starts_by_metadata
from catalogue.models import DiscoveryRun, Review, Revision, Source, Workflow
from catalogue.reconciliation import BATCH, LAYER_FIELDS, layer_of

Offers = Mapping[int, str]
"""By the workflow's key the hash of the offer that was seen."""


class ReviewRefused(Exception):
    """There is nothing to decide any more; the message says why."""


@dataclass(slots=True)
class Decided:
    """What became of the decisions, by the tools' names."""

    done: list[str] = field(default_factory=list)
    changed_again: list[str] = field(default_factory=list)
    """The engine says something else than what was seen: look again."""
    nothing_held: list[str] = field(default_factory=list)
    """Somebody else decided, or the engine says again what was accepted."""

    def tell_refused(self) -> str:
        """Empty where everything was decided."""
        told = []
        if self.changed_again:
            told.append(f"Changed again, look at it once more: {_named(self.changed_again)}.")
        if self.nothing_held:
            told.append(f"Nothing is held any more: {_named(self.nothing_held)}.")
        return " ".join(told)


def differences_of(review: Review) -> list[Difference]:
    """Between what agents see and what the engine says now; none for a new workflow.

    Reads the workflow with its source, unless they were selected.
    """
    if review.offered is None:
        return []
    workflow = review.workflow
    return find_differences(
        layer_of(workflow),
        layer_of(Workflow()) | review.offered,
        starts_by_metadata=starts_by_metadata(workflow.source.kind),
    )


def offers_of(reviews: QuerySet[Review]) -> dict[int, str]:
    """What is offered at this moment, for whoever decides on all of it unseen."""
    return dict(reviews.order_by("pk").values_list("pk", "offer_hash"))


def accept_offers(offers: Offers, *, by: Actor) -> Decided:
    """Serve what the engine says now; a new workflow is enabled."""
    return _decide(offers, by, _accept)


def keep_accepted(offers: Offers, *, by: Actor) -> Decided:
    """Go on serving what was accepted, until the engine says something else again; a new one stays hidden."""
    return _decide(offers, by, _keep)


def _decide(offers: Offers, by: Actor, decide: Callable[[list[Review], Actor], None]) -> Decided:
    decided = Decided()
    for keys in _batches(offers):
        with transaction.atomic():
            # As listings do: so neither works on what the other is about to write.
            Revision.lock()
            names = dict(Workflow.objects.filter(pk__in=keys).values_list("pk", "tool_name"))
            held = (
                Review.objects.select_for_update(of=("self",))
                .select_related("workflow__source")
                .in_bulk(keys)
            )
            agreed = []
            for key in [key for key in keys if key in names]:
                if key not in held:
                    decided.nothing_held.append(names[key])
                elif held[key].offer_hash != offers[key]:
                    decided.changed_again.append(names[key])
                else:
                    agreed.append(held[key])
                    decided.done.append(names[key])
            decide(agreed, by)
    return decided


def _accept(reviews: list[Review], by: Actor) -> None:
    changed, new = _by_kind(reviews)
    Workflow.objects.bulk_create(
        [_as_offered(review) for review in changed],
        update_conflicts=True,
        unique_fields=("source", "upstream_id"),
        update_fields=(*LAYER_FIELDS, "changed_at"),
    )
    Workflow.objects.filter(pk__in=[review.pk for review in new]).update(enabled=True)
    Review.objects.filter(pk__in=[review.pk for review in reviews]).delete()
    if reviews:
        Revision.bump()
    _record(by, changed, "Accepted the engine's change: {}.")
    _record(by, new, "Accepted as a new workflow, and enabled.")


def _by_kind(reviews: list[Review]) -> tuple[list[Review], list[Review]]:
    """The changes, and the new workflows."""
    changed = [review for review in reviews if review.kind == Review.Kind.CHANGED]
    return changed, [review for review in reviews if review.kind == Review.Kind.NEW]


def _record(by: Actor, reviews: list[Review], message: str) -> None:
    """After the change, with the workflows as they were before it."""
    told = ((review.workflow, message.format(tell_differences(differences_of(review)))) for review in reviews)
    record_changes(by, told)


def _as_offered(review: Review) -> Workflow:
    """For an upsert, which leaves alone what the curator decided."""
    workflow, offered = review.workflow, review.offered or {}
    layer = {name: offered[name] for name in LAYER_FIELDS if name in offered}
    return Workflow(
        source=workflow.source,
        upstream_id=workflow.upstream_id,
        tool_name=workflow.tool_name,
        changed_at=timezone.now(),
        **layer,
    )


def _keep(reviews: list[Review], by: Actor) -> None:
    changed, new = _by_kind(reviews)
    Review.objects.filter(pk__in=[review.pk for review in changed]).update(kept_at=timezone.now())
    Review.objects.filter(pk__in=[review.pk for review in new]).delete()
    _record(by, changed, "Turned down the engine's change: {}.")
    _record(by, new, "Looked at as a new workflow, and left hidden.")


def confirm_listing(run: DiscoveryRun, *, by: Actor) -> DiscoveryRun | None:
    """Say that the workflows which this held listing has lost are gone, and list the source anew.

    Returns the new listing, which is held as well if it has lost others. None where the source cannot be
    listed now: then the listing that is under way, or the next one, is taken over. Raises ReviewRefused.
    """
    with transaction.atomic():
        Revision.lock()
        source = run.source
        held = DiscoveryRun.objects.filter(pk=run.pk, outcome=DiscoveryRun.Outcome.HELD)
        later = source.discovery_runs.filter(pk__gt=run.pk, outcome=DiscoveryRun.Outcome.SUCCEEDED)
        if later.exists() or not held.update(confirmed_at=timezone.now()):
            raise ReviewRefused(
                "There is nothing to confirm: this listing is not held, or a later one is good."
            )
        record_change(by, [source], f"Confirmed that {run.missing:,} workflows are gone.")
    try:
        return refresh_source(source)
    except BeingRefreshed:
        make_due(Source.objects.filter(pk=source.pk))
    except RefreshRefused:
        pass
    return None


def _batches(offers: Offers) -> Iterator[list[int]]:
    keys = iter(offers)
    while batch := list(islice(keys, BATCH)):
        yield batch


def _named(names: Iterable[str], most: int = 10) -> str:
    known = list(names)
    more = f" and {len(known) - most} more" if len(known) > most else ""
    return f"{', '.join(known[:most])}{more}"
