import json
from argparse import ArgumentParser
from collections.abc import Collection, Iterable
from functools import partial
from typing import Any

from django.core.management.base import CommandError
from django.db.models import QuerySet

from catalogue.actions.reviews import (
    ACCEPTABLE,
    KINDS,
    Decided,
    Offers,
    ReviewRefused,
    accept_offers,
    confirm_listing,
    differences_of,
    differing_only_in,
    keep_accepted,
    offers_of,
    warning_of_review,
)
from catalogue.drift import READ_BY_AGENTS
from catalogue.exposure import Placement
from catalogue.history import command
from catalogue.management.base import CatalogueCommand, add_consent_option, ask_for_consent, source_named
from catalogue.models import DiscoveryRun, Review, Source, Workflow

BY = command("review_changes")
SHOWN_OFFER = 12
EVERYTHING = "*"


def _awaiting(source: Source | None, kinds: Collection[str] | None) -> QuerySet[Review]:
    awaiting: QuerySet[Review] = Review.objects.awaiting()
    if source is not None:
        awaiting = awaiting.filter(workflow__source=source)
    return differing_only_in(awaiting, kinds) if kinds else awaiting


class Command(CatalogueCommand):
    help = (
        "Show changes of engines that curators have not accepted yet, and decide on them. Exits with 1 if "
        "something has changed again since you reviewed it."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        decision = "tool names as shown, each with its offer, such as report_1:5f1d09c2ab34; "
        parser.add_argument("--source", metavar="NAME", help="only what this source changed")
        parser.add_argument(
            "--only",
            action="append",
            choices=KINDS,
            metavar="KIND",
            help="only changes of which just this kind needs a decision, such as tags; may be repeated",
        )
        parser.add_argument(
            "--accept",
            nargs="+",
            default=[],
            metavar="NAME:OFFER",
            help=f"{decision}* accepts everything that --source and --only leave, after it was shown",
        )
        parser.add_argument(
            "--field",
            action="append",
            default=[],
            dest="fields",
            choices=ACCEPTABLE,
            metavar="FIELD",
            help="with --accept: only this field, such as description; may be repeated. The rest stays held",
        )
        parser.add_argument(
            "--keep",
            nargs="+",
            default=[],
            metavar="NAME:OFFER",
            help="keep serving the accepted version; named in the same way",
        )
        parser.add_argument(
            "--confirm-listing",
            action="store_true",
            help="with --source: the workflows that its held listing has lost are gone",
        )

        add_consent_option(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        source = None if options["source"] is None else source_named(options["source"])
        awaiting = _awaiting(source, options["only"])
        if options["confirm_listing"]:
            self._confirm(source)
        if not (options["accept"] or options["keep"]):
            if not options["confirm_listing"]:
                self._show(awaiting, source)
            return
        if options["fields"] and not options["accept"]:
            raise CommandError("--field requires --accept: --keep applies to whole workflows.")
        known = offers_of(awaiting)
        if EVERYTHING in options["accept"] and known:
            self._show(awaiting, source, in_full=True)
            ask_for_consent(f"Accept {len(known):,}?", options)
        accept = partial(accept_offers, fields=options["fields"], awaiting=known)
        refused = [
            self._report(decide(_seen(options[name], known), by=BY), done)
            for name, decide, done in (("accept", accept, "Accepted"), ("keep", keep_accepted, "Kept"))
            if options[name]
        ]
        if message := " ".join(filter(None, refused)):
            raise CommandError(message)

    def _show(self, awaiting: Any, source: Source | None, *, in_full: bool = False) -> None:
        """Those with warnings first."""
        held = DiscoveryRun.objects.held().for_lists().select_related("source")
        for run in held if source is None else held.filter(source=source):
            self.stdout.write(f"{run.source}: {run.error}")
        reviews = awaiting.select_related("workflow__source").order_by("workflow__tool_name")
        placement = Placement()
        told = ((review, differences_of(review, placement)) for review in reviews.iterator())
        for review, differences in sorted(told, key=lambda one: not warning_of_review(*one)):
            offer = review.offer_hash[:SHOWN_OFFER]
            self.stdout.write(
                f"{review.workflow.tool_name}:{offer} ({review.kind}, {review.workflow.source})"
            )
            for difference in differences:
                warning = difference.warning and f"; may try to command agents: {difference.warning}"
                kind = f" [{difference.kind}]" if difference.kind != difference.field else ""
                self.stdout.write(f"  {difference.field}: {difference.text}{kind}{warning}")
                for sign, value in (("-", difference.old), ("+", difference.new)) if in_full else ():
                    self.stdout.write(f"    {sign} {json.dumps(value, ensure_ascii=False)}")
            if review.kind == Review.Kind.NEW:
                self._show_new(review.workflow, in_full=in_full)
        self.stdout.write(f"To review: {awaiting.count()}.")

    def _show_new(self, workflow: Workflow, *, in_full: bool) -> None:
        found = {"may try to command agents": workflow.warning, "can be mistaken for": workflow.resembles}
        for told, value in found.items():
            if value:
                self.stdout.write(f"  {told}: {value}")
        for field in READ_BY_AGENTS if in_full else ():
            self.stdout.write(f"  {field}: {json.dumps(getattr(workflow, field), ensure_ascii=False)}")

    def _report(self, decided: Decided, done: str) -> str:
        self.stdout.write(f"{done}: {len(decided.done)}.")
        return decided.refusal()

    def _confirm(self, source: Source | None) -> None:
        if source is None:
            raise CommandError("--confirm-listing requires --source.")
        held = DiscoveryRun.objects.held().filter(source=source).first()
        if held is None:
            raise CommandError(f"No listing of {source} is held.")
        try:
            run = confirm_listing(held, by=BY)
        except ReviewRefused as refused:
            raise CommandError(str(refused)) from None
        if run is not None and run.outcome != DiscoveryRun.Outcome.SUCCEEDED:
            raise CommandError(run.error)
        outcome = "its next listing counts" if run is None else f"{run.missing} missing, {run.found} found"
        self.stdout.write(f"Confirmed; {outcome}.")


def _seen(given: Iterable[str], known: Offers) -> Offers:
    """The full offer hash by workflow key; an offer that matches none stays as given."""
    if EVERYTHING in given:
        return known
    named: dict[str, str] = {}
    for one in given:
        name, _, offer = one.partition(":")
        if len(offer) < SHOWN_OFFER:
            raise CommandError(f"{one}: name the offer that you reviewed, such as {name}:5f1d09c2ab34.")
        named[name] = offer
    keys = dict(Workflow.objects.filter(tool_name__in=named).values_list("tool_name", "pk"))
    if unknown := sorted(named.keys() - keys.keys()):
        raise CommandError(f"No such workflow: {', '.join(unknown)}")
    whole = {keys[name]: known.get(keys[name], "") for name in named}
    return {
        keys[name]: whole[keys[name]] if whole[keys[name]].startswith(offer) else offer
        for name, offer in named.items()
    }
