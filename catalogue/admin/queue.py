"""The queue of curation: candidates one after another, decided by a key each."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import urlencode

from django import forms
from django.contrib import admin, messages
from django.contrib.messages import SUCCESS, WARNING
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect, QueryDict
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.text import format_lazy
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from unfold import widgets

from catalogue.actions.curation import (
    HARMLESS,
    Candidate,
    EditedMeanwhile,
    Flag,
    FlagsNotNamed,
    Place,
    Queue,
    add_to_toolset_named,
    decide,
    read_candidates,
    rename_candidate,
    undo_last_decision,
)
from catalogue.actions.reverting import RevertRefused
from catalogue.actions.reviews import KINDS, UnknownFields, accept_offers, fields_together, find_misfits
from catalogue.admin import base
from catalogue.admin.extensions import added
from catalogue.admin.reviews import SHOWN_AT_ONCE, show_difference
from catalogue.drift import show_unseen
from catalogue.exposure import current_catalogue, memberships_of
from catalogue.history import actor_of
from catalogue.long_lists import read_key
from catalogue.models import HistoryEntry, Review, Source, Toolset
from catalogue.naming import listed
from catalogue.search import find_alike
from catalogue.served_schemas import describe_inputs, required_first

LIST = "admin:catalogue_review_changelist"
FLAGS = {  # The key that names it, and in words
    Flag.COMMANDING: ("c", gettext_lazy("Its texts may try to command agents")),
    Flag.LOOK_ALIKE: ("l", gettext_lazy("It can be mistaken for another tool")),
    Flag.DESTRUCTIVE: ("d", gettext_lazy("It may delete or overwrite")),
}
RENAMED = ("tool_name", "title_override", "description_override")
FORMER_PARAMETERS = {"workflow__source__id__exact": "source", "kind__exact": "kind"}  # Of the former list
SHOWN_NEXT, SHOWN_ALIKE, SHOWN_TOOLSETS, SHOWN_ARGUMENTS, SHOWN_DONE = 12, 3, 200, 40, 5
OFFER = "offer-"


def _only(kind: str) -> Any:
    words = gettext_lazy(kind.removeprefix("upstream_").replace("_", " "))
    return format_lazy(gettext_lazy("only {kind}"), kind=words)


def _one_of(label: Any, *choices: tuple[str, Any]) -> forms.ChoiceField:
    widget = widgets.UnfoldAdminSelectWidget
    return forms.ChoiceField(choices=choices, required=False, label=label, widget=widget)


class QueueForm(forms.Form):
    """Invalid criteria do not narrow the queue."""

    source = forms.ModelChoiceField(
        Source.objects.all(),
        required=False,
        label=gettext_lazy("Source"),
        empty_label=gettext_lazy("All sources"),
        widget=widgets.UnfoldAdminSelectWidget,
    )
    kind = _one_of(
        gettext_lazy("Kind"),
        ("", gettext_lazy("New and changed")),
        ("new", gettext_lazy("New")),
        ("changed", gettext_lazy("Changed")),
    )
    only = _one_of(
        gettext_lazy("What differs"),
        ("", gettext_lazy("Any difference")),
        (HARMLESS, gettext_lazy("Only harmless changes")),
        *((kind, _only(kind)) for kind in KINDS),
    )
    decision = _one_of(
        gettext_lazy("Decision"), ("", gettext_lazy("Undecided")), ("kept", gettext_lazy("Turned down"))
    )
    tag = forms.CharField(
        required=False,
        max_length=100,
        label=gettext_lazy("Tag"),
        widget=widgets.UnfoldAdminTextInputWidget,
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for field in self.fields.values():
            field.widget.attrs |= {"aria-label": field.label, "placeholder": field.label}

    @property
    def queue(self) -> Queue:
        self.full_clean()
        given = self.cleaned_data
        source = given.get("source")
        return Queue(
            source=source.pk if source else None,
            tag=given.get("tag", ""),
            kind=given.get("kind", ""),
            only=given.get("only", ""),
            turned_down=given.get("decision") == "kept",
        )


class RenameForm(forms.Form):
    tool_name = forms.CharField(
        max_length=64, label=gettext_lazy("Tool name"), widget=widgets.UnfoldAdminTextInputWidget
    )
    title_override = forms.CharField(
        max_length=255,
        required=False,
        label=gettext_lazy("Title"),
        widget=widgets.UnfoldAdminTextInputWidget,
    )
    description_override = forms.CharField(
        required=False,
        label=gettext_lazy("Description"),
        widget=widgets.UnfoldAdminTextareaWidget(attrs={"rows": 4}),
    )


@dataclass(frozen=True, slots=True)
class Note:
    text: str
    is_done: bool = False  # Otherwise a warning
    can_undo: bool = False


@admin.register(Review)
class ReviewAdmin(base.ReadOnlyMixin, base.CatalogueAdmin):
    class Media:
        css: ClassVar[dict[str, tuple[str, ...]]] = {"all": ("catalogue/admin/reviews.css",)}
        js = ("catalogue/admin/queue.js",)

    # The permissions of workflows apply.

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("catalogue.view_workflow") or self.may_decide(request)

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def may_decide(self, request: HttpRequest) -> bool:
        return request.user.has_perm("catalogue.change_workflow")

    def get_urls(self) -> list[URLPattern]:
        view, decide = self.has_view_permission, self.may_decide
        views = {
            "candidate": self.guarded(self._show_candidate, view, "GET"),
            "decide": self.guarded(self._decide, decide, "POST"),
            "rename": self.guarded(self._rename, decide, "POST"),
            "toolset": self.guarded(self._add_to_toolset, decide, "POST"),
            "undo": self.guarded(self._undo, decide, "POST"),
            "accept": self.guarded(self._accept, decide, "GET", "POST"),
        }
        pages = [path(f"{name}/", one, name=f"catalogue_review_{name}") for name, one in views.items()]
        return pages + super().get_urls()

    # The page

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        if request.method != "GET":
            return HttpResponseNotAllowed(["GET"])
        if not FORMER_PARAMETERS.keys().isdisjoint(request.GET):
            now = {FORMER_PARAMETERS.get(name, name): value for name, value in request.GET.items()}
            return HttpResponseRedirect(f"{request.path}?{urlencode(now)}")
        form = QueueForm(request.GET)
        queue, at = form.queue, read_key(request.GET.get("at"))
        if at is not None and (rows := _rows_at(queue, at)):
            following = queue.upcoming(_place_of(rows[0]), SHOWN_NEXT)
        else:
            first = queue.upcoming(None, 1 + SHOWN_NEXT)
            rows, following = first[:1], first[1:]
        changes = len(queue.unflagged_changes(SHOWN_AT_ONCE + 1).values_list("pk"))
        context = self.admin_site.each_context(request) | {
            "title": _("Changes to review"),
            "opts": self.opts,
            "media": self.media,
            "filters": form,
            "current": self._cards(request, queue, rows),
            "next": self._cards(request, queue, following[:1]),
            "unflagged_changes": min(changes, SHOWN_AT_ONCE) if not queue.turned_down else 0,
            "flags": [(key, words) for key, words in FLAGS.values()],
            **self._rail(request, queue, following),
        }
        return TemplateResponse(request, "catalogue/admin/review_queue.html", context)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        key = read_key(object_id)
        review = Review.objects.filter(pk=key).defer("offered").first()
        where = {"decision": "kept"} if review is not None and review.kept_at else {}
        if review is None:
            messages.warning(request, _decided_since(key))
        return HttpResponseRedirect(f"{reverse(LIST)}?{urlencode({**where, 'at': object_id})}")

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        return HttpResponseRedirect(reverse("admin:catalogue_workflow_history", args=[object_id]))

    def _rail(self, request: HttpRequest, queue: Queue, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """What each answer renews, beside the candidates."""
        return {
            "rail": rows,
            "left": queue.rows().count(),
            "query": _query(request.GET),
        }

    def _cards(
        self, request: HttpRequest, queue: Queue, rows: Sequence[dict[str, Any]], **besides: Any
    ) -> list[dict[str, Any]]:
        places = {row["pk"]: _place_of(row) for row in rows}
        candidates = read_candidates(list(places))
        return [
            self._card(request, one, places[one.workflow.pk]) | besides | {"query": _query(request.GET)}
            for one in candidates
        ]

    def _card(self, request: HttpRequest, candidate: Candidate, place: Place) -> dict[str, Any]:
        workflow, review = candidate.workflow, candidate.review
        may, flags = request.user.has_perm, candidate.flags()
        offered: dict[str, Any] = (review and review.offered) or {}
        catalogue = current_catalogue()
        return {
            "candidate": candidate,
            "workflow": workflow,
            "description": show_unseen(workflow.shown_description),
            "title": show_unseen(workflow.title),
            "place": json.dumps(place),
            "flags": [(flag, *FLAGS[flag], text) for flag, text in flags.items()],
            "differences": [show_difference(one) for one in candidate.differences],
            "breaking": [show_difference(one).told for one in candidate.breaking],
            "parts": _parts(candidate),
            "misfits": find_misfits(review) if review else [],
            "arguments": _arguments(offered.get("input_schema", workflow.offered_input_schema)),
            "alike": find_alike(catalogue, workflow, most=SHOWN_ALIKE),
            "toolsets": memberships_of(workflow) if may("catalogue.view_toolset") else [],
            "facts": [fact for show in added("candidate_facts") if (fact := show(request, workflow))],
            "known_toolsets": Toolset.objects.values_list("slug", flat=True)[:SHOWN_TOOLSETS],
            "rename": RenameForm(
                initial={name: getattr(workflow, name) for name in RENAMED}, auto_id=f"{workflow.pk}-%s"
            ),
        }

    # Answers to htmx, which leave the page where it is

    def _answer(
        self,
        request: HttpRequest,
        note: Note | None,
        *,
        current: int | None = None,
        again: int | None = None,
        **besides: Any,
    ) -> HttpResponse:
        """Renews what is around the candidate that the browser shows by now. `current` is shown instead of
        it, and `again` after it."""
        queue, sent = QueueForm(request.GET).queue, request.POST or request.GET
        now, place = _read_place(sent.get("now", "")), _read_place(sent.get("place", ""))
        if not request.headers.get("HX-Request"):
            if note:
                messages.add_message(request, SUCCESS if note.is_done else WARNING, note.text)
            return HttpResponseRedirect(_list_at(request, current or again))
        shown = (_rows_at(queue, current) or queue.upcoming(place, 1)) if current else []
        if shown and now and now[3] != current:
            again = again or now[3]
        anchor = _place_of(shown[0]) if shown else now or place
        following = queue.upcoming(anchor, SHOWN_NEXT)
        first = _rows_at(queue, again) if again else []
        rows = [*first, *(row for row in following if row["pk"] != again)]
        context = {
            "note": note,
            "replaces": current is not None,
            "current": self._cards(request, queue, shown, **besides),
            "next": self._cards(request, queue, rows[: 1 if now or shown else 2]),
            **self._rail(request, queue, rows[:SHOWN_NEXT]),
        }
        return TemplateResponse(request, "catalogue/admin/review_deck.html", context)

    def _show_candidate(self, request: HttpRequest) -> HttpResponse:
        """Of the next one, only what follows it, since the browser has it; or the one before."""
        place = _read_place(request.GET.get("place", ""))
        if "previous" in request.GET and place is not None:
            return self._answer(request, None, current=QueueForm(request.GET).queue.before(place))
        return self._answer(request, None)

    def _decide(self, request: HttpRequest) -> HttpResponse:
        sent, key = request.POST, read_key(request.POST.get("key"))
        if key is None:
            return self._answer(request, None)
        accepts, fields = sent.get("decision") == "accept", sent.getlist("field")
        # Unlike a decision on the whole, one in part leaves the candidate where it is.
        is_in_part = "in_part" in sent
        here = {"current": key} if is_in_part else {"again": key}
        if is_in_part and not fields:
            return self._answer(request, Note(_("Select at least one of the differences.")), **here)
        try:
            decided = decide(
                key,
                sent.get("seen", ""),
                by=actor_of(request),
                accepts=accepts,
                fields=fields,
                named=sent.getlist("named"),
                awaiting="kept" not in sent,
            )
        except (FlagsNotNamed, UnknownFields) as refused:
            return self._answer(request, Note(str(refused)), **here)
        if decided.done:
            note = Note(_done(sent, decided.done[0]), is_done=True, can_undo=not is_in_part)
        elif decided.nothing_held or decided.turned_down:
            note = Note(_decided_since(key))
        else:
            return self._answer(request, Note(decided.refusal()), **here)
        return self._answer(request, note, current=key if is_in_part else None)

    def _rename(self, request: HttpRequest) -> HttpResponse:
        refused = Note(_("Nothing was changed."))
        key, form = read_key(request.POST.get("key")), RenameForm(request.POST, auto_id="rename-%s")
        version = request.POST.get("version", "")
        if key is None:
            return self._answer(request, None)
        if not form.is_valid():
            return self._answer(request, refused, current=key, rename=form, panel="rename")
        try:
            workflow = rename_candidate(key, version, by=actor_of(request), **form.cleaned_data)
        except EditedMeanwhile:
            note = Note(_("Nothing was changed: it has been edited meanwhile, and is shown as it is now."))
            return self._answer(request, note, current=key)
        except ValidationError as error:
            for field, problems in getattr(error, "error_dict", {"tool_name": error.messages}).items():
                form.add_error(field if field in form.fields else None, problems)
            return self._answer(request, refused, current=key, rename=form, panel="rename")
        return self._answer(request, Note(_("Saved: %s.") % workflow.tool_name, is_done=True), current=key)

    def _add_to_toolset(self, request: HttpRequest) -> HttpResponse:
        may = request.user.has_perm
        if not (may("catalogue.change_toolset") and may("catalogue.view_toolset")):
            raise PermissionDenied
        key, slug = read_key(request.POST.get("key")), request.POST.get("toolset", "").strip()
        if key is None or not slug:
            return self._answer(request, Note(_("Enter the name of a toolset.")), current=key)
        may_create = may("catalogue.add_toolset")
        try:
            toolset = add_to_toolset_named(slug, key, by=actor_of(request), may_create=may_create)
        except ValidationError as error:
            note = Note(" ".join(error.messages))
        else:
            note = Note(_("Picked for the toolset %s.") % toolset, is_done=True)
        return self._answer(request, note, current=key)

    def _undo(self, request: HttpRequest) -> HttpResponse:
        try:
            undone = undo_last_decision(actor_of(request))
        except RevertRefused as refused:
            return self._answer(request, Note(_("Nothing was undone: %s") % refused))
        note = Note(_("Undone: %s") % f"{undone.object_name}. {undone.message}", is_done=True)
        return self._answer(request, note, current=int(undone.object_id))

    # Several at once

    def _accept(self, request: HttpRequest) -> HttpResponse:
        """Shows the changes in full, flagged ones first; submitting it accepts them as shown."""
        back = request.GET.get("back", "")
        if not url_has_allowed_host_and_scheme(back, allowed_hosts=None):
            back = _list_at(request, None)
        if request.method == "POST":
            offers = {
                int(name.removeprefix(OFFER)): str(offer)
                for name, offer in request.POST.items()
                if name.startswith(OFFER) and read_key(name.removeprefix(OFFER)) is not None
            }
            decided = accept_offers(offers, by=actor_of(request), awaiting=offers.keys())
            if decided.done:
                messages.success(request, _("Accepted: %s.") % listed(decided.done, SHOWN_DONE))
            if refused := decided.refusal():
                messages.warning(request, refused)
            return HttpResponseRedirect(back)
        if "workflows" in request.GET:
            wanted = [key for key in map(read_key, request.GET["workflows"].split(",")) if key is not None]
            awaiting = Review.objects.awaiting().filter(pk__in=wanted[:SHOWN_AT_ONCE])
            keys = list(awaiting.values_list("pk", flat=True))
        else:
            queue = QueueForm(request.GET).queue
            keys = list(queue.unflagged_changes(SHOWN_AT_ONCE).values_list("pk", flat=True))
        held = sorted(read_candidates(keys), key=lambda one: not one.flags())
        shown = [
            {
                "candidate": one,
                "flags": [(*FLAGS[flag], text) for flag, text in one.flags().items()],
                "differences": [show_difference(difference) for difference in one.differences],
                "description": show_unseen(one.workflow.shown_description),
                "arguments": [] if one.is_change else _arguments(one.workflow.offered_input_schema),
            }
            for one in held
        ]
        context = self.admin_site.each_context(request) | {
            "title": ngettext("Accept %d change", "Accept %d changes", len(shown)) % len(shown),
            "opts": self.opts,
            "media": self.media,
            "shown": shown,
            "back": back,
        }
        return TemplateResponse(request, "catalogue/admin/review_accept.html", context)


def _query(sent: QueryDict) -> str:
    """The filters of the queue, as the end of an address."""
    kept = {name: sent[name] for name in QueueForm.base_fields if sent.get(name)}
    return f"?{urlencode(kept)}" if kept else "?"


def _list_at(request: HttpRequest, key: int | None) -> str:
    query = _query(request.GET)
    return f"{reverse(LIST)}{query}" + (f"&at={key}" if key else "")


def _rows_at(queue: Queue, key: int) -> list[dict[str, Any]]:
    return list(queue.rows().filter(pk=key).values("pk", "tool_name", "source__name", "rank"))


def _place_of(row: dict[str, Any]) -> Place:
    return row["rank"], row["source__name"], row["tool_name"], row["pk"]


def _read_place(text: str) -> Place | None:
    with suppress(ValueError, TypeError):
        rank, source, name, key = json.loads(text)
        if read_key(rank) is not None and read_key(key) is not None:
            return int(rank), str(source), str(name), int(key)
    return None


def _decided_since(key: int | None) -> str:
    """Names who decided on a workflow that is no longer a candidate."""
    entry = HistoryEntry.objects.filter(model="catalogue.workflow", object_id=str(key)).first()
    if entry is None:
        return _("Skipped: it no longer needs a decision.")
    told = {"name": entry.object_name, "who": entry.actor_name, "what": entry.message}
    return _("Skipped: %(name)s was decided meanwhile by %(who)s: %(what)s") % told


def _done(sent: QueryDict, name: str) -> str:
    if sent.get("decision") != "accept":
        return _("Kept: %s.") % name
    if sent.getlist("field"):
        return _("Accepted in part: %s.") % name
    return _("Accepted: %s.") % name


def _arguments(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """Required ones first; their texts are the engine's."""
    described = describe_inputs(schema)
    required = {name for name, one in described.items() if one["required"]}
    return [
        {
            **described[name],
            "name": show_unseen(name),
            "description": show_unseen(described[name]["description"]),
        }
        for name in required_first(described, required, schema)[:SHOWN_ARGUMENTS]
    ]


def _parts(candidate: Candidate) -> list[tuple[str, str]]:
    """The fields that can be accepted separately, with their names; empty for a single one."""
    parts: dict[tuple[str, ...], list[str]] = {}
    for field in dict.fromkeys(one.field for one in candidate.differences):
        parts.setdefault(fields_together(field, candidate.workflow.source), []).append(field)
    shown = [
        (fields[0], ", ".join(field.removeprefix("upstream_").replace("_", " ") for field in fields))
        for fields in parts.values()
    ]
    return shown if len(shown) > 1 else []
