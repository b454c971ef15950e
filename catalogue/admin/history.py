"""The history of curation, and the audit, which includes that history: a searchable list, each entry with its
seal, and an export of all entries."""

import json
from collections.abc import Sequence
from typing import Any

from django import forms
from django.apps import apps
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.urls import NoReverseMatch
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from unfold.contrib.filters.admin import ChoicesDropdownFilter, DropdownFilter
from unfold.decorators import action

from audit.models import Entry, Segment
from audit.sealing import head
from catalogue.actions.reverting import RevertRefused, permission_to_revert, revert_change, why_not_revertible
from catalogue.admin import base
from catalogue.admin.rendering import (
    DASH,
    badge,
    chip,
    exactly,
    link,
    link_if_allowed,
    pretty_json,
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
MAX_ACTORS, MAX_REVERTED, SHOWN_REFUSALS = 500, 500, 5


def _kind_of_object(label: str) -> str:
    try:
        return capfirst(str(apps.get_model(label)._meta.verbose_name))
    except LookupError:
        return label


class ActorFilter(DropdownFilter):  # type: ignore[misc]
    title = "who"
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
    title = "kind of object"
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
    search_fields = ("object_name", "actor_name", "message", "changes")
    search_help_text = f"Searches names, messages and values of the newest {SEARCHED:,} entries"
    actions = ("revert_selected",)
    buttons = ("revert",)
    change_form_outer_before_template = "catalogue/admin/history_entry.html"

    when = base.column("when", "at")

    @admin.display(description="who", ordering="actor_name")
    def who(self, entry: HistoryEntry) -> SafeString:
        return wrapped(f"{entry.actor_name} ({entry.get_door_display()})")

    @admin.display(description="object", ordering="object_name")
    def object_shown(self, entry: HistoryEntry) -> SafeString:
        named = _kind_of_object(entry.model), entry.object_name
        return format_html(
            '<div style="overflow-wrap: anywhere; white-space: normal; min-width: 9rem">{} {}</div>', *named
        )

    @admin.display(description="what", ordering="message")
    def what(self, entry: HistoryEntry) -> SafeString:
        lines = format_html_join(
            "", '<div class="text-xs">{}</div>', ((line,) for line in base.describe_changes(entry))
        )
        look = "overflow-wrap: anywhere; white-space: normal; min-width: 12rem; max-width: 40rem"
        return format_html('<div style="{}">{}{}</div>', look, entry.message, lines)

    # The page

    def get_buttons(self, request: HttpRequest, obj: HistoryEntry) -> list[base.Button]:
        return super().get_buttons(request, obj) if self._may_revert(request, obj) else []

    def may_press_buttons(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def _may_revert(self, request: HttpRequest, entry: HistoryEntry) -> bool:
        return not why_not_revertible(entry) and request.user.has_perm(permission_to_revert(entry))

    @base.button("Revert", icon="undo", confirm="Restore the state before this change?")
    def revert(self, request: HttpRequest, entry: HistoryEntry) -> None:
        if not self._may_revert(request, entry):
            raise PermissionDenied
        if problem := self._try_to_revert(request, entry):
            messages.error(request, f"Nothing was changed: {problem}")
        else:
            messages.success(
                request, f"Reverted: {entry.object_name} {REVERTED[HistoryEntry.Kind(entry.kind)]}."
            )

    def has_revert_permission(self, request: HttpRequest) -> bool:
        """Each entry's object decides."""
        return self.has_view_permission(request)

    @admin.action(description="Revert", permissions=["revert"])
    def revert_selected(self, request: HttpRequest, queryset: QuerySet[HistoryEntry]) -> HttpResponse | None:
        """The latest first, so that several changes of one object are reverted in turn."""
        if (count := queryset.count()) > MAX_REVERTED:
            messages.error(
                request, f"{count:,} are too many: you can revert at most {MAX_REVERTED} at a time."
            )
            return None

        def revert(_: forms.Form) -> None:
            latest = queryset.order_by("-at", "-pk")
            problems = ((entry, self._try_to_revert(request, entry)) for entry in latest)
            refused = [f"{entry.object_name}: {problem}" for entry, problem in problems if problem]
            if reverted := count - len(refused):
                messages.success(request, f"Reverted: {reverted}.")
            if refused:
                more = f" And {len(refused) - SHOWN_REFUSALS} more." if len(refused) > SHOWN_REFUSALS else ""
                messages.warning(request, f"Not reverted: {' '.join(refused[:SHOWN_REFUSALS])}{more}")

        shown = [format_html("{}: {}", self.object_shown(entry), self.what(entry)) for entry in queryset]
        note = f"{counted(count, 'change')} selected"
        return base.ask_for_selected(
            self, request, queryset, forms.Form, "Revert", revert, note=note, shown=shown
        )

    def _try_to_revert(self, request: HttpRequest, entry: HistoryEntry) -> str:
        """Why it cannot be reverted; empty after a revert."""
        if problem := why_not_revertible(entry):
            return problem
        if not self._may_revert(request, entry):
            return f"You lack the permission {permission_to_revert(entry)}."
        try:
            revert_change(entry, by=actor_of(request))
        except RevertRefused as refused:
            return str(refused)
        return ""

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
                ("When", exactly(obj.at)),
                ("Who", f"{obj.actor_name} ({obj.get_door_display()})"),
                ("Object", _link_to_object(request, obj)),
                ("Kind of object", _kind_of_object(obj.model)),
                ("Visible to agents since revision", "" if obj.revision is None else f"{obj.revision:,}"),
                ("Reverts", _link_to_entry(obj.reverts) if obj.reverts else ""),
                ("Reverted by", side_by_side(map(_link_to_entry, obj.reverted_by.all()))),
                ("Revert", why_not_revertible(obj)),
            ],
            "changes": base.changes_in_full(obj),
        }


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
    title = "seal"
    parameter_name = "sealed"
    options = {
        "yes": ("sealed", Q(segment__isnull=False)),
        "no": ("not sealed yet", Q(segment=None)),
    }


class OutcomeFilter(base.ColumnFilter):
    title = parameter_name = column = "outcome"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, name.replace("_", " ")) for name in OUTCOMES]


@admin.register(Entry)
class EntryAdmin(base.PanelOnlyMixin, base.ButtonsMixin):
    list_display = ("when", "who", "what", "result", "place")
    list_filter = (("kind", ChoicesDropdownFilter), OutcomeFilter, SealedFilter, base.SinceFilter)
    list_per_page = 50
    newest_by = "at"
    search_fields = ("actor_name",)  # `search_rows` decides
    search_help_text = (
        f"Names, events, addresses and clients of the newest {SEARCHED:,} entries; all execution ids"
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
        description="Export", url_path="export", icon="download", permissions=["view"]
    )
    def export(self, request: HttpRequest) -> HttpResponseBase:
        return send_export(actor_of(request))

    when = base.column("when", "at")

    @admin.display(description="who")
    def who(self, entry: Entry) -> SafeString:
        return wrapped(_who(entry))

    @admin.display(description="what")
    def what(self, entry: Entry) -> SafeString:
        look = "overflow-wrap: anywhere; white-space: normal; min-width: 11rem"
        return format_html(
            '<div style="{}">{}<div class="text-xs">{}</div></div>',
            look,
            _in_words(entry),
            entry.subject_name,
        )

    @admin.display(description="outcome")
    def result(self, entry: Entry) -> Any:
        return _outcome(entry) if entry.outcome else DASH

    @admin.display(description="origin")
    def place(self, entry: Entry) -> SafeString:
        look = "overflow-wrap: anywhere; white-space: normal; min-width: 8rem"
        parts = [part for part in (entry.address, entry.client) if part]
        lines = format_html(
            '{}<div class="text-xs">{}</div>', parts[0] if parts else DASH, " ".join(parts[1:])
        )
        return format_html('<div style="{}">{}</div>', look, lines)

    def panel(self, request: HttpRequest, obj: Entry) -> dict[str, Any]:
        segment = None if obj.segment is None else Segment.objects.filter(number=obj.segment).first()
        by_actor = f"?actor__exact={obj.actor}"
        page = "audit_entry_changelist"
        return {
            "headline": [badge(obj.get_kind_display(), "info"), _in_words(obj)],
            "facts": [
                ("When", exactly(obj.at)),
                ("Who", link(_who(obj), page, query=by_actor) if obj.actor else DASH),
                ("What", _link_to_subject(request, obj)),
                ("Outcome", _outcome(obj) if obj.outcome else ""),
                ("Door", obj.door),
                ("Address", obj.address),
                ("Client", obj.client),
                ("Digest", chip(obj.digest)),
                ("Sealed in segment", "not sealed yet" if segment is None else f"{segment.number:,}"),
                ("Sealed", None if segment is None else exactly(segment.sealed_at)),
                ("Digest of the segment", "" if segment is None else chip(segment.digest)),
                ("Head of the chain", chip(head()) if segment is not None else ""),
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
