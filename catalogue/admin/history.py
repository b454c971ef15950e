"""The history of curation, and the audit, which includes that history: a searchable list, each entry with its
seal, and an export of all entries."""

import json
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from django import forms
from django.apps import apps
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import Count, OuterRef, Q, QuerySet, Subquery
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, URLPattern, path, reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.safestring import SafeString
from django.utils.text import capfirst, format_lazy
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_POST
from unfold.contrib.filters.admin import ChoicesDropdownFilter, DropdownFilter
from unfold.decorators import action

from audit.models import Entry, Segment
from audit.sealing import head
from catalogue.actions.reverting import (
    WouldExpose,
    agreement,
    permission_to_revert,
    revert_together,
    why_not_revertible,
)
from catalogue.admin import base
from catalogue.admin.rendering import (
    DASH,
    badge,
    chip,
    exactly,
    link,
    link_if_allowed,
    pretty_json,
    rendered,
    side_by_side,
    wrapped,
)
from catalogue.audit import matching, send_export
from catalogue.history import actor_of, recorded_model
from catalogue.long_lists import SEARCHED
from catalogue.models import HistoryEntry
from catalogue.naming import counted

KIND_BADGES = {
    HistoryEntry.Kind.ADDED: "success",
    HistoryEntry.Kind.CHANGED: "info",
    HistoryEntry.Kind.DELETED: "danger",
}
REVERTED = {
    HistoryEntry.Kind.ADDED: "was deleted again",
    HistoryEntry.Kind.CHANGED: "has its previous values again",
    HistoryEntry.Kind.DELETED: "was restored",
}
MAX_ACTORS, MAX_REVERTED, SHOWN_REFUSALS, SHOWN_NAMES = 500, 500, 5, 20
TOO_MANY = f"{{:,}} are too many: you can revert at most {MAX_REVERTED} at a time."
AGREED = "agreed"
LEFT_OUT = (AGREED, "csrfmiddlewaretoken")
TOGETHER = {"who", "door__exact", "since", "p", "o", "all", "_facets", "at__lte"}
"""Parameters that leave whole batches; others choose among their members."""


def _is_in_batches(request: HttpRequest) -> bool:
    """Whether the list shows what one action changed as one row."""
    return {name for name, value in request.GET.items() if value} <= TOGETHER


def _kind_of_object(label: str) -> str:
    try:
        return capfirst(str(apps.get_model(label)._meta.verbose_name))
    except LookupError:
        return label


def _count_objects(entry: HistoryEntry, count: int) -> str:
    model = recorded_model(entry.model)
    kinds = HistoryEntry.objects.filter(batch=entry.batch).order_by().values("model").distinct().count()
    if model is None or kinds > 1:
        return counted(count, "change")
    return counted(count, str(model._meta.verbose_name), str(model._meta.verbose_name_plural))


class ActorFilter(DropdownFilter):  # type: ignore[misc]
    title = _("who")
    parameter_name = "who"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        newest = HistoryEntry.objects.order_by("-at").values_list("actor", "actor_name")[:SEARCHED]
        # A renamed user keeps the key, while all commands share one.
        known = sorted(set(newest), key=lambda pair: pair[::-1])
        return [(f"{actor} {name}", name) for actor, name in known[:MAX_ACTORS]]

    def queryset(self, request: HttpRequest, queryset: QuerySet[HistoryEntry]) -> QuerySet[HistoryEntry]:
        actor, _, name = (self.value() or "").partition(" ")
        return queryset.filter(actor=actor, actor_name=name) if actor else queryset


class ModelFilter(base.ColumnFilter):
    title = _("kind of object")
    parameter_name = "of"
    column = "model"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(label, _kind_of_object(label)) for label in HistoryEntry.known_models()]


@admin.register(HistoryEntry)
class HistoryEntryAdmin(base.PanelOnlyMixin, base.ButtonsMixin):
    list_display = ("when", "who", "object_shown", "what")
    list_filter = (
        ActorFilter, ("door", ChoicesDropdownFilter), ModelFilter, ("kind", ChoicesDropdownFilter),
        base.SinceFilter,
    )  # fmt: skip
    list_per_page = 50
    newest_by = "at"
    when_empty = _("It records who changes sources, workflows, toolsets and settings, with a way back.")
    search_fields = ("object_name", "actor_name", "message", "changes")
    search_help_text = format_lazy(
        _("Searches names, messages and values of the newest {} entries"),
        f"{SEARCHED:,}",
    )
    actions = ("revert_selected",)
    buttons = ("revert",)
    change_form_outer_before_template = "catalogue/admin/history_entry.html"

    when = base.column(_("when"), "at")

    def get_queryset(self, request: HttpRequest) -> QuerySet[HistoryEntry]:
        entries: QuerySet[HistoryEntry] = super().get_queryset(request)
        is_list = (
            request.resolver_match is not None
            and request.resolver_match.url_name == f"{self._url_name}_changelist"
        )
        if not (is_list and _is_in_batches(request)):
            return entries
        members = HistoryEntry.objects.filter(batch=OuterRef("batch")).order_by().values("batch")
        counts = members.annotate(count=Count("pk")).values("count")
        return entries.one_of_each_batch().annotate(together=Subquery(counts))  # type: ignore[attr-defined, no-any-return]

    @admin.display(description=_("who"), ordering="actor_name")
    def who(self, entry: HistoryEntry) -> SafeString:
        return wrapped(f"{entry.actor_name} ({entry.get_door_display()})")

    @admin.display(description=_("object"), ordering="object_name")
    def object_shown(self, entry: HistoryEntry) -> SafeString:
        if (count := getattr(entry, "together", None) or 1) > 1:
            members = f"?batch={entry.batch}"
            return link(_count_objects(entry, count), "catalogue_historyentry_changelist", query=members)
        return rendered(
            "parts/lines", width="9rem", lines=[f"{_kind_of_object(entry.model)} {entry.object_name}"]
        )

    @admin.display(description=_("what"), ordering="message")
    def what(self, entry: HistoryEntry) -> SafeString:
        return rendered("parts/lines", width="12rem", lines=[entry.message, *base.describe_changes(entry)])

    # The page

    def get_buttons(self, request: HttpRequest, obj: HistoryEntry) -> list[base.Button]:
        return super().get_buttons(request, obj) if self._may_revert(request, obj) else []

    def may_press_buttons(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def _may_revert(self, request: HttpRequest, entry: HistoryEntry) -> bool:
        return not why_not_revertible(entry) and request.user.has_perm(permission_to_revert(entry))

    @base.button(_("Revert"), icon="undo", confirm="Restore the state before this change?")
    def revert(self, request: HttpRequest, entry: HistoryEntry) -> HttpResponse | None:
        if not self._may_revert(request, entry):
            raise PermissionDenied
        done = f"Reverted: {entry.object_name} {REVERTED[HistoryEntry.Kind(entry.kind)]}."
        return self._revert(request, [entry], done=done)

    def get_urls(self) -> list[URLPattern]:
        undo = self.admin_site.admin_view(require_POST(self._undo))
        told = self.admin_site.admin_view(self._show_messages)
        return [
            path("undo/<uuid:batch>/", undo, name="catalogue_historyentry_undo"),
            path("messages/", told, name="catalogue_historyentry_messages"),
            *super().get_urls(),
        ]

    def _show_messages(self, request: HttpRequest) -> HttpResponse:
        """For pages that have changed something in place."""
        shown = urlsplit(request.headers.get("HX-Current-URL", ""))
        page = f"{shown.path}?{shown.query}"
        return TemplateResponse(request, "unfold/helpers/messages.html", {"undo_leads_to": page})

    def _undo(self, request: HttpRequest, batch: UUID) -> HttpResponse:
        """For those who may revert the changes, also without permission to see the history."""
        entries = HistoryEntry.objects.filter(batch=batch)
        if not any(request.user.has_perm(permission_to_revert(entry)) for entry in entries[:1]):
            raise PermissionDenied
        back = request.POST.get("back", "")
        if not url_has_allowed_host_and_scheme(back, allowed_hosts=None):
            back = reverse("admin:index")
        if (count := entries.count()) > MAX_REVERTED:
            messages.error(request, TOO_MANY.format(count))
        elif asked := self._revert(request, entries, back=back):
            return asked
        return HttpResponseRedirect(back)

    def _revert(
        self, request: HttpRequest, entries: Iterable[HistoryEntry], *, done: str = "", back: str = ""
    ) -> HttpResponse | None:
        """Returns the question whether tools may be exposed, if that would happen and it is not answered."""
        entries = list(entries)
        try:
            outcome = revert_together(
                entries,
                by=actor_of(request),
                may=request.user.has_perm,
                agreed=request.POST.get(AGREED, ""),
            )
        except WouldExpose as question:
            return self._ask(request, question, back)
        if outcome.refused:
            told = [f"{entry.object_name}: {problem}" for entry, problem in outcome.refused]
            more = f" And {len(told) - SHOWN_REFUSALS} more." if len(told) > SHOWN_REFUSALS else ""
            what = "Not reverted" if outcome.reverted else "Nothing was changed"
            messages.warning(request, f"{what}: {' '.join(told[:SHOWN_REFUSALS])}{more}")
        if outcome.reverted:
            messages.success(request, done or f"Reverted: {counted(outcome.reverted, 'change')}.")
        return None

    def _ask(self, request: HttpRequest, question: WouldExpose, back: str) -> HttpResponse:
        context = self.admin_site.each_context(request) | {
            "title": _("Revert and expose"),
            "opts": self.opts,
            "names": question.names[:SHOWN_NAMES],
            "count": len(question.names),
            "more": max(0, len(question.names) - SHOWN_NAMES),
            "sent": [
                (AGREED, agreement(question.names)),
                *((name, one) for name in request.POST if name not in LEFT_OUT
                  for one in request.POST.getlist(name)),
            ],
            "action": request.get_full_path(),
            "back": back or reverse("admin:catalogue_historyentry_changelist"),
        }  # fmt: skip
        return TemplateResponse(request, "catalogue/admin/revert_and_expose.html", context)

    def has_revert_permission(self, request: HttpRequest) -> bool:
        """Each entry's object decides."""
        return self.has_view_permission(request)

    @admin.action(description=_("Revert"), permissions=["revert"])
    def revert_selected(self, request: HttpRequest, queryset: QuerySet[HistoryEntry]) -> HttpResponse | None:
        chosen = Q(pk__in=queryset.values("pk"))
        if _is_in_batches(request):
            chosen |= Q(batch__in=queryset.exclude(batch=None).values("batch"))
        entries = HistoryEntry.objects.filter(chosen)
        if (count := entries.count()) > MAX_REVERTED:
            messages.error(request, TOO_MANY.format(count))
            return None
        if "post" in request.POST:
            return self._revert(request, entries)
        shown = [side_by_side([self.object_shown(entry), self.what(entry)]) for entry in entries]
        note = f"{counted(count, 'change')} selected"
        return base.ask_for_selected(
            self, request, queryset, forms.Form, "Revert", lambda _: None, note=note, shown=shown
        )

    def log_change(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        """Buttons of an entry's page change other objects, which have the history."""

    def panel(self, request: HttpRequest, obj: HistoryEntry) -> dict[str, Any]:
        return {
            "headline": [
                side_by_side(
                    [badge(obj.get_kind_display(), KIND_BADGES[HistoryEntry.Kind(obj.kind)]), obj.message]
                )
            ],
            "facts": [
                (gettext("When"), exactly(obj.at)),
                (gettext("Who"), f"{obj.actor_name} ({obj.get_door_display()})"),
                (gettext("Object"), _link_to_object(request, obj)),
                (gettext("Kind of object"), _kind_of_object(obj.model)),
                (
                    gettext("Visible to agents since revision"),
                    "" if obj.revision is None else f"{obj.revision:,}",
                ),
                (gettext("Changed together with"), _members_of(obj)),
                (gettext("Reverts"), _link_to_entry(obj.reverts) if obj.reverts else ""),
                (gettext("Reverted by"), side_by_side(map(_link_to_entry, obj.reverted_by.all()))),
                (gettext("Revert"), why_not_revertible(obj)),
            ],
            "changes": base.changes_in_full(obj),
        }


def _members_of(entry: HistoryEntry) -> Any:
    others = 0 if entry.batch is None else HistoryEntry.objects.filter(batch=entry.batch).count() - 1
    page, query = "catalogue_historyentry_changelist", f"?batch={entry.batch}"
    return link(counted(others, "other change"), page, query=query) if others > 0 else ""


def _link_to_entry(entry: HistoryEntry) -> SafeString:
    return link(f"{entry.message} ({entry.actor_name})", "catalogue_historyentry_change", entry.pk)


def _link_to_object(request: HttpRequest, entry: HistoryEntry) -> Any:
    if entry.kind == HistoryEntry.Kind.DELETED:
        return entry.object_name
    try:
        return link_if_allowed(
            request, entry.object_name, f"{entry.model.replace('.', '_')}_change", entry.object_id
        )
    except NoReverseMatch:
        return entry.object_name or DASH


# The audit

OUTCOMES = {
    "succeeded": "success", "completed": "success", "approved": "success",
    "failed": "danger", "refused": "danger", "timed_out": "danger",
}  # fmt: skip


class SealedFilter(base.OptionsFilter):
    title = _("seal")
    parameter_name = "sealed"
    options = {
        "yes": (_("sealed"), Q(segment__isnull=False)),
        "no": (_("not sealed yet"), Q(segment=None)),
    }


class OutcomeFilter(base.ColumnFilter):
    title = _("outcome")
    parameter_name = column = "outcome"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, name.replace("_", " ")) for name in OUTCOMES]


@admin.register(Entry)
class EntryAdmin(base.PanelOnlyMixin, base.ButtonsMixin):
    list_display = ("when", "who", "what", "result", "place")
    list_filter = (("kind", ChoicesDropdownFilter), OutcomeFilter, SealedFilter, base.SinceFilter)
    list_per_page = 50
    newest_by = "at"
    when_empty = _("It records sign-ins, changes, approvals and calls.")
    search_fields = ("actor_name",)  # `search_rows` decides
    search_help_text = format_lazy(
        _("Names, events, addresses and clients of the newest {} entries; all execution ids"),
        f"{SEARCHED:,}",
    )
    actions_list = ("export",)
    actions = ()
    change_form_outer_before_template = "catalogue/admin/audit_entry.html"

    def search_rows(self, rows: QuerySet[Entry], words: Sequence[str]) -> QuerySet[Entry]:
        return matching(rows, words)

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        return {}

    def _has_history(self, obj: Any) -> bool:
        return False

    @action(  # type: ignore[untyped-decorator]
        description=_("Export"), url_path="export", icon="download", permissions=["view"]
    )
    def export(self, request: HttpRequest) -> HttpResponseBase:
        return send_export(actor_of(request))

    when = base.column(_("when"), "at")
    who = base.cell(_("who"), lambda entry: wrapped(_who(entry)))
    result = base.cell(_("outcome"), lambda entry: _outcome(entry) if entry.outcome else DASH)

    @admin.display(description=_("what"))
    def what(self, entry: Entry) -> SafeString:
        return rendered("parts/lines", width="11rem", lines=[_in_words(entry), entry.subject_name])

    @admin.display(description=_("origin"))
    def place(self, entry: Entry) -> SafeString:
        lines = [part for part in (entry.address, entry.client) if part]
        return rendered("parts/lines", width="8rem", lines=lines or [DASH])

    def panel(self, request: HttpRequest, obj: Entry) -> dict[str, Any]:
        segment = None if obj.segment is None else Segment.objects.filter(number=obj.segment).first()
        by_actor = f"?actor__exact={obj.actor}"
        page = "audit_entry_changelist"
        return {
            "headline": [badge(obj.get_kind_display(), "info"), _in_words(obj)],
            "facts": [
                (gettext("When"), exactly(obj.at)),
                (gettext("Who"), link(_who(obj), page, query=by_actor) if obj.actor else DASH),
                (gettext("What"), _link_to_subject(request, obj)),
                (gettext("Outcome"), _outcome(obj) if obj.outcome else ""),
                (gettext("Through"), obj.door),
                (gettext("Address"), obj.address),
                (gettext("Client"), obj.client),
                (gettext("Digest"), chip(obj.digest)),
                (
                    gettext("Sealed in segment"),
                    gettext("not sealed yet") if segment is None else f"{segment.number:,}",
                ),
                (gettext("Sealed"), None if segment is None else exactly(segment.sealed_at)),
                (gettext("Digest of the segment"), "" if segment is None else chip(segment.digest)),
                (gettext("Head of the chain"), chip(head()) if segment is not None else ""),
            ],
            "details": pretty_json(json.loads(obj.details)),
        }


def _who(entry: Entry) -> str:
    return entry.actor_name or entry.actor or DASH


def _in_words(entry: Entry) -> str:
    subject, _, what = entry.event.rpartition(".")
    label = entry.subject.partition(":")[0]
    model = recorded_model(label) if "." in label else None
    if model is not None and model._meta.model_name == subject:
        subject = str(model._meta.verbose_name)
    return f"{subject}: {what}".replace("_", " ")


def _outcome(entry: Entry) -> SafeString:
    return badge(entry.outcome.replace("_", " "), OUTCOMES.get(entry.outcome, ""))


def _link_to_subject(request: HttpRequest, entry: Entry) -> Any:
    """The entry of the history, the execution, or the object itself."""
    told, name = json.loads(entry.details), entry.subject_name or entry.subject or DASH
    if number := told.get("history"):
        return link_if_allowed(request, name, "catalogue_historyentry_change", number)
    model, _, key = entry.subject.partition(":")
    model = {"execution": "executions.execution", "user": "auth.user"}.get(model, model)
    try:
        return link_if_allowed(request, name, f"{model.replace('.', '_')}_change", key)
    except (NoReverseMatch, ValueError):
        return name
