"""What pages show of reviews: differences as data for `review_differences.html`, and notes on other pages."""

import json
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from catalogue.actions.curation import Queue
from catalogue.admin import base
from catalogue.admin import rendering as html
from catalogue.drift import Difference, show_unseen
from catalogue.models import DiscoveryRun, Review, Source, Workflow
from connectors.formats.json import readable_json

COMMANDING = "may try to command agents"
MAX_COMPARED_LENGTH = 400  # Words of two compared texts; the comparison takes cubic time at worst
SHOWN_JSON = 20_000  # Characters
SHOWN_AT_ONCE = 50  # Changes on one page, and so the most that one click accepts


@dataclass(frozen=True, slots=True)
class ShownValue:
    words: list[tuple[str, str]]  # The mark (`del`, `ins` or none) and the text; empty for nothing
    json: str = ""


@dataclass(frozen=True, slots=True)
class ShownDifference:
    told: list[str]  # Every second part is code
    warning: str
    harmless: bool
    old: ShownValue
    new: ShownValue


def show_difference(difference: Difference) -> ShownDifference:
    text, old, new = difference.text, difference.old, difference.new
    if isinstance(old, str) and isinstance(new, str):
        shown_old, shown_new = _marked(show_unseen(old), show_unseen(new))
    else:
        shown_old, shown_new = _shown(old), _shown(new)
    told = f"{text[:1].upper()}{text[1:]}".split("`")
    return ShownDifference(told, difference.warning, difference.harmless, shown_old, shown_new)


def _shown(value: Any) -> ShownValue:
    if value is None or value == "":
        return ShownValue([])
    if isinstance(value, str):
        return ShownValue([("", show_unseen(value))])
    if isinstance(value, dict | list):
        readable = readable_json(json.loads(show_unseen(json.dumps(value, ensure_ascii=False))))
        return ShownValue([], html.cut_short(readable, SHOWN_JSON))
    return ShownValue([("", json.dumps(value))])


def _marked(old: str, new: str) -> tuple[ShownValue, ShownValue]:
    before, after = old.split(" "), new.split(" ")
    if len(before) + len(after) > MAX_COMPARED_LENGTH or not (old and new):
        return _shown(old), _shown(new)
    left, right = list[tuple[str, str]](), list[tuple[str, str]]()
    for kind, a, b, c, d in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        for side, mark, words in ((left, "del", before[a:b]), (right, "ins", after[c:d])):
            if words:
                side.append(("" if kind == "equal" else mark, " ".join(words)))
    return ShownValue(left), ShownValue(right)


# In the list and on the pages of workflows and sources


def note_reviews(workflows: list[Any]) -> None:
    """Set the kind of the undecided review on each row of a page, by one query."""
    awaiting = Review.objects.awaiting().filter(pk__in=[workflow.pk for workflow in workflows]).order_by()
    kinds = dict(awaiting.values_list("pk", "kind"))
    for workflow in workflows:
        workflow.awaited_review = kinds.get(workflow.pk)


def accept_for_workflows(
    pages: base.CatalogueAdmin, request: HttpRequest, workflows: QuerySet[Workflow]
) -> HttpResponse | None:
    """Leads to the page that shows these changes in full, and accepts them."""
    reviews = Review.objects.awaiting().filter(workflow__in=workflows.order_by().values("pk"))
    keys = list(reviews.values_list("pk", flat=True)[:SHOWN_AT_ONCE])
    if not keys:
        messages.warning(request, _("None of the selected workflows has a held change."))
        return None
    chosen = urlencode({"workflows": ",".join(map(str, keys)), "back": request.get_full_path()})
    return HttpResponseRedirect(f"{reverse('admin:catalogue_review_accept')}?{chosen}")


def reviews_fact(request: HttpRequest, source: Source) -> tuple[str, Any]:
    count = Queue(source=source.pk).rows().count()
    query = f"?source={source.pk}"
    return _("To decide"), html.link(count, "catalogue_review_changelist", query=query) if count else ""


def held_listing_fact(request: HttpRequest, source: Source) -> tuple[str, Any]:
    run = DiscoveryRun.objects.held().filter(source=source).for_lists().first()
    if run is None:
        return _("Held listing"), ""
    advice = ngettext(
        "%(count)s workflow is missing from it: review and confirm",
        "%(count)s workflows are missing from it: review and confirm",
        run.missing,
    ) % {"count": f"{run.missing:,}"}
    return _("Held listing"), html.link_if_allowed(request, advice, "catalogue_discoveryrun_change", run.pk)
