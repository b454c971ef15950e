"""The queue of curation: hidden workflows on which nobody has decided, and changes that are held for review.

What may happen between a page and the decision made on it, and how it ends:

- The engine changes the workflow: the decision names another hash, and nothing is decided.
- Another curator decides first: the second decision has no effect, also if both decide alike.
- Another curator turns a change down that this one accepts: it stays turned down.
- A flag appears that the page did not show: nothing is exposed until it is named.
- Somebody edits the same texts: the second edit is refused.
- Somebody decides after a decision that is then undone: the later one stays, and nothing is undone.
- The engine changes a workflow whose exposure is undone: it is hidden, and shown again as it is now.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from functools import cached_property
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Case, CharField, Exists, OuterRef, Q, QuerySet, Value, When
from django.db.models.expressions import Combinable
from django.db.models.functions import Cast
from django.utils import timezone

from catalogue.actions.reverting import RevertRefused, revert_change
from catalogue.actions.reviews import (
    REVIEW,
    Decided,
    accept_offers,
    differences_of,
    differing_only_in,
    fields_together,
    keep_accepted,
)
from catalogue.actions.toolsets import add_to_toolset, write_toolset
from catalogue.actions.workflows import override_workflow
from catalogue.drift import Difference, is_harmless
from catalogue.exposure import Placement
from catalogue.history import Actor, changed_fields, record_change
from catalogue.models import HistoryEntry, Review, Revision, Toolset, Workflow

HARMLESS = "harmless"
# What entries of decisions have in their JSON, which is written without white space.
ENABLED, DISABLED, REVIEWED = '"enabled":[false,true]', '"enabled":[true,false]', f'"{REVIEW}":['
UNDOABLE = timedelta(hours=12)
ALIAS_DAYS = 30
MAX_JUDGED = 500  # Held changes that are searched for flags, to show these first
BREAKING = ("required", "gone", "values", "bounds", "schema")
Place = tuple[int, str, str, int]  # Rank, name of the source, tool name and key of a row of the queue


class Flag(StrEnum):
    COMMANDING = "commanding"
    LOOK_ALIKE = "look-alike"
    DESTRUCTIVE = "destructive"


class FlagsNotNamed(Exception):
    def __init__(self, flags: Collection[str]) -> None:
        super().__init__(f"Name what is flagged to expose it: {', '.join(flags)}.")


class EditedMeanwhile(Exception):
    """Nothing was changed."""


@dataclass
class Candidate:
    """A workflow to decide on, with the change that is held of it, if any."""

    workflow: Workflow
    placement: Placement

    @cached_property
    def review(self) -> Review | None:
        return getattr(self.workflow, "review", None)

    @property
    def is_change(self) -> bool:
        return self.review is not None and self.review.kind == Review.Kind.CHANGED

    @property
    def is_turned_down(self) -> bool:
        return self.review is not None and self.review.kept_at is not None

    @property
    def seen(self) -> str:
        """The hash by which a decision names what was shown."""
        return self.workflow.content_hash if self.review is None else self.review.offer_hash

    @cached_property
    def differences(self) -> list[Difference]:
        return [] if self.review is None else differences_of(self.review, self.placement)

    @property
    def breaking(self) -> list[Difference]:
        """By which calls that succeed today may fail."""
        return [
            one
            for one in self.differences
            if one.field == "input_schema" and not one.harmless and one.aspect in BREAKING
        ]

    def flags(self, fields: Collection[str] = ()) -> dict[Flag, str]:
        """What to say of each danger; of a change only of new ones, in these fields if there are any."""
        workflow = self.workflow
        if not self.is_change:
            is_destructive = workflow.effective_hints.get("destructiveHint")
            found = workflow.warning, workflow.resembles, is_destructive
        else:
            chosen = {one for field in fields for one in fields_together(field, workflow.source)}
            differing = [one for one in self.differences if not fields or one.field in chosen]
            offered: dict[str, Any] = (self.review and self.review.offered) or {}
            looks_like = (
                offered.get("resembles", "") if workflow.resembles != offered.get("resembles") else ""
            )
            named = any(one.field in ("name", "upstream_title") for one in differing)
            hints, now = offered.get("hints", {}), workflow.effective_hints
            hinted = any(one.field == "hints" for one in differing) and workflow.destructive_hint is None
            becomes_destructive = hinted and hints.get("destructiveHint") and not now.get("destructiveHint")
            warnings = dict.fromkeys(one.warning for one in differing if one.warning)
            found = ", ".join(warnings), looks_like if named else "", becomes_destructive
        warning, resembles, destructive = found
        told = {
            Flag.COMMANDING: warning,
            Flag.LOOK_ALIKE: resembles,
            Flag.DESTRUCTIVE: "destructive" if destructive else "",
        }
        return {flag: text for flag, text in told.items() if text}


def is_undecided() -> Combinable:
    """Hidden workflows that no curator has disabled or left hidden, and of which nothing is held; a listing
    may have hidden one that a curator had enabled, because it imitates another."""
    entries = HistoryEntry.objects.filter(
        model=HistoryEntry.label_of(Workflow),
        object_id=Cast(OuterRef("pk"), CharField()),
        kind=HistoryEntry.Kind.CHANGED,
    )
    reviewed = Q(changes__contains=f'{REVIEWED}"{Review.Kind.NEW}') & ~Q(changes__contains=ENABLED)
    hidden = entries.filter(Q(changes__contains=DISABLED) | reviewed)
    # SQLite has no index for "NOT enabled", which Django writes for `enabled=False`.
    return Q(enabled__in=[False], review=None) & ~Exists(hidden)


@dataclass(frozen=True, kw_only=True)
class Queue:
    """Candidates in order: flagged ones, then changes, then new workflows, each by source and name. Empty
    criteria do not narrow it."""

    source: int | None = None
    tag: str = ""
    kind: str = ""
    only: str = ""  # HARMLESS, or a kind of difference
    turned_down: bool = False

    def rows(self) -> QuerySet[Any]:
        rows = Workflow.objects.present()
        rows = rows.tagged(self.tag) if self.tag else rows
        rows = rows.filter(source=self.source) if self.source else rows
        if self.turned_down:
            rows = rows.filter(review__kept_at__isnull=False)
        else:
            # Databases combine two indexes, but not two conditions of which one is on another table.
            awaited = Review.objects.filter(kept_at=None).order_by().values("pk")
            undecided = Workflow.objects.filter(is_undecided()).order_by().values("pk")
            rows = rows.filter(pk__in=awaited.union(undecided))
        is_change = Q(review__kind=Review.Kind.CHANGED)
        if self.kind:
            rows = rows.filter(is_change if self.kind == Review.Kind.CHANGED else ~is_change)
        if self.only:
            rows = rows.filter(pk__in=self._differing_so(rows).values("pk"))
        flagged = Q(pk__in=_flagged_changes(self.turned_down)) | ~is_change & ~Q(warning="", resembles="")
        rank = Case(When(flagged, Value(0)), When(is_change, Value(1)), default=Value(2))
        return rows.annotate(rank=rank).order_by("rank", "source__name", "tool_name")

    def _differing_so(self, rows: QuerySet[Workflow]) -> QuerySet[Review]:
        reviews = Review.objects.changes().filter(workflow__in=rows.order_by().values("pk"))
        if self.only != HARMLESS:
            return differing_only_in(reviews, [self.only])
        placement = Placement()
        held = reviews.select_related("workflow__source").order_by()
        return reviews.filter(pk__in=[one.pk for one in held if is_harmless(differences_of(one, placement))])

    def upcoming(self, place: Place | None, count: int) -> list[dict[str, Any]]:
        """The rows after that one; after the last, it goes on with the first."""
        rows = self.rows().values(
            "pk", "tool_name", "source__name", "rank", "review__kind", "review__kept_at"
        )
        if place is None:
            return list(rows[:count])
        found = list(rows.filter(_beyond(place, "gt"))[:count])
        if len(found) < count:
            known = {place[3], *(row["pk"] for row in found)}
            first = rows.exclude(pk__in=known)[: count - len(found)]
            found += [row for row in first if row["pk"] not in known]
        return found

    def before(self, place: Place) -> int | None:
        """The key of the row before that one; before the first, of the last."""
        rows = self.rows().order_by("-rank", "-source__name", "-tool_name").values_list("pk", flat=True)
        return rows.filter(_beyond(place, "lt")).first() or rows.exclude(pk=place[3]).first()

    def unflagged_changes(self, count: int) -> QuerySet[Any]:
        """The first changes of the queue that nothing is flagged of."""
        return self.rows().filter(rank=1, review__kind=Review.Kind.CHANGED)[:count]


def _beyond(place: Place, side: str) -> Q:
    rank, source, name, _ = place
    return (
        Q(**{f"rank__{side}": rank})
        | Q(rank=rank, **{f"source__name__{side}": source})
        | Q(rank=rank, source__name=source, **{f"tool_name__{side}": name})
    )


_judged: dict[tuple[int, str, str], bool] = {}  # By key and hashes, which say all that flags depend on


def _flagged_changes(turned_down: bool) -> list[int]:
    reviews = Review.objects.changes().filter(kept_at__isnull=not turned_down)
    keys = list(reviews.values_list("pk", "workflow__content_hash", "offer_hash")[:MAX_JUDGED])
    if len(_judged) > 10 * MAX_JUDGED:
        _judged.clear()
    unknown = {key[0]: key for key in keys if key not in _judged}
    for candidate in read_candidates(list(unknown)):
        _judged[unknown[candidate.workflow.pk]] = bool(candidate.flags())
    return [key[0] for key in keys if _judged.get(key)]


def read_candidates(keys: Sequence[int]) -> list[Candidate]:
    """In the order of the keys."""
    found = Workflow.objects.select_related("source", "review").in_bulk(keys) if keys else {}
    placement = Placement()
    return [Candidate(found[key], placement) for key in keys if key in found]


def decide(
    key: int,
    seen: str,
    *,
    by: Actor,
    accepts: bool,
    fields: Collection[str] = (),
    named: Collection[str] = (),
    awaiting: bool = True,
) -> Decided:
    """Expose a hidden workflow or accept what is held of one, or leave it as it is. `named`: the flags that
    the curator saw; `awaiting`: whether it was seen without a decision. Raises FlagsNotNamed and
    UnknownFields."""
    with transaction.atomic():
        Revision.lock()
        hidden = Workflow.objects.present().filter(is_undecided(), pk=key)
        for pk, content_hash in hidden.values_list("pk", "content_hash"):
            # Like one that awaits review, so that the history has the decision, and can revert it.
            Review.objects.create(workflow_id=pk, kind=Review.Kind.NEW, offer_hash=content_hash)
        for candidate in read_candidates([key]) if accepts else ():
            if candidate.seen == seen and (unnamed := candidate.flags(fields).keys() - set(named)):
                raise FlagsNotNamed(sorted(unnamed))
        shown, awaited = {key: seen}, [key] if awaiting else []
        if accepts:
            decided = accept_offers(shown, by=by, fields=fields, awaiting=awaited)
        else:
            decided = keep_accepted(shown, by=by, awaiting=awaited)
        if not decided.done:
            transaction.set_rollback(True)
    return decided


@transaction.atomic
def undo_last_decision(by: Actor) -> HistoryEntry:
    """Reverts the actor's last decision on a candidate. Raises RevertRefused."""
    Revision.lock()
    mine = HistoryEntry.objects.filter(
        actor=by.key,
        door=by.door,
        model=HistoryEntry.label_of(Workflow),
        at__gte=timezone.now() - UNDOABLE,
        reverts=None,
        reverted_by=None,
        changes__contains=REVIEWED,
    )
    # What was disabled may have changed since: to enable it again would expose it unseen.
    last = mine.exclude(changes__contains=DISABLED).order_by("-at", "-pk").first()
    if last is None:
        raise RevertRefused("You have decided nothing in the last 12 hours that could be undone.")
    revert_change(last, by=by)
    return last


@transaction.atomic
def rename_candidate(key: int, version: str, *, by: Actor, **texts: Any) -> Workflow:
    """`version`: the `row_version` that the curator saw. The former name of a tool that agents see still
    works for a while. Raises EditedMeanwhile, ValidationError."""
    Revision.lock()
    workflow = Workflow.objects.select_related("source").get(pk=key)
    if str(workflow.row_version) != version:
        raise EditedMeanwhile
    changed = {name: text for name, text in texts.items() if getattr(workflow, name) != text}
    if changed:
        is_called = workflow.enabled and "tool_name" in changed
        override_workflow(workflow, alias_days=ALIAS_DAYS if is_called else None, **changed)
        record_change(by, [workflow], changed_fields(changed))
    return workflow


@transaction.atomic
def add_to_toolset_named(slug: str, key: int, *, by: Actor, may_create: bool) -> Toolset:
    """Raises ValidationError, also if there is none and the actor may not make one."""
    Revision.lock()
    toolset = Toolset.objects.filter(slug=slug).first()
    if toolset is None:
        if not may_create:
            raise ValidationError(f"There is no toolset {slug}.")
        toolset = write_toolset(Toolset(), slug=slug)
        record_change(by, [toolset], "Added.")
        toolset = Toolset.objects.get(pk=toolset.pk)
    add_to_toolset(toolset, Workflow.objects.filter(pk=key), by=by)
    return toolset
