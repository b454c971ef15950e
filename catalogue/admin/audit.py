"""The audit: a list to search, each entry with its seal, and the whole as a file."""

import json
from collections.abc import Sequence
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponseBase
from django.urls import NoReverseMatch
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import ChoicesDropdownFilter, DropdownFilter
from unfold.decorators import action

from audit.models import Entry, Segment
from audit.sealing import head
from catalogue.admin import base
from catalogue.admin.rendering import (
    DASH,
    ago,
    badge,
    chip,
    exactly,
    link,
    link_if_allowed,
    pretty_json,
    wrapped,
)
from catalogue.audit import matching, send_export
from catalogue.history import actor_of, recorded_model
from catalogue.long_lists import SEARCHED

OUTCOMES = {
    "succeeded": "success", "completed": "success", "approved": "success",
    "failed": "danger", "refused": "danger", "timed_out": "danger",
}  # fmt: skip


class SealedFilter(base.OptionsFilter):
    title = "seal"
    parameter_name = "sealed"
    options = {
        "yes": ("sealed", lambda entries: entries.filter(segment__isnull=False)),
        "no": ("not sealed yet", lambda entries: entries.filter(segment=None)),
    }


class OutcomeFilter(DropdownFilter):  # type: ignore[misc]
    title = "outcome"
    parameter_name = "outcome"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, name.replace("_", " ")) for name in OUTCOMES]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Entry]) -> QuerySet[Entry]:
        return queryset.filter(outcome=self.value()) if self.value() else queryset


@admin.register(Entry)
class EntryAdmin(base.ReadOnlyMixin, base.ButtonsMixin):
    list_display = ("when", "who", "what", "result", "place")
    list_filter = (("kind", ChoicesDropdownFilter), OutcomeFilter, SealedFilter, base.SinceFilter)
    list_per_page = 50
    newest_by = "at"
    show_full_result_count = False
    search_fields = ("actor_name",)  # `search_rows` decides
    search_help_text = (
        f"Names, events, addresses and clients, in the newest {SEARCHED:,}; ids of executions in all"
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

    @admin.display(description="when", ordering="at")
    def when(self, entry: Entry) -> str:
        return ago(entry.at)

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

    @admin.display(description="from where")
    def place(self, entry: Entry) -> SafeString:
        look = "overflow-wrap: anywhere; white-space: normal; min-width: 8rem"
        parts = [part for part in (entry.address, entry.client) if part]
        lines = format_html(
            '{}<div class="text-xs">{}</div>', parts[0] if parts else DASH, " ".join(parts[1:])
        )
        return format_html('<div style="{}">{}</div>', look, lines)

    def get_fieldsets(self, request: HttpRequest, obj: Entry | None = None) -> Any:
        return []

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
