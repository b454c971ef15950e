"""The page of a workflow, with its form."""

import json
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.templatetags.admin_urls import add_preserved_filters
from django.contrib.admin.utils import flatten
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.text import format_lazy
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from unfold import widgets

from catalogue.actions import workflows as actions
from catalogue.actions.toolsets import add_to_toolset, remove_from_toolset
from catalogue.admin.base import CatalogueForm, cell, column, describe_changes
from catalogue.admin.discovery_runs import NAMED
from catalogue.admin.extensions import added
from catalogue.admin.form_fields import MONOSPACE, ApprovalRulesField, ArgumentsField, CommasField
from catalogue.admin.tools import ToolPagesMixin, may_declare
from catalogue.approval_rules import COMPARISONS, write_rules
from catalogue.argument_overrides import find_override_problems
from catalogue.exposure import Visibility, enabled_filters, explain_exposure, memberships_of
from catalogue.history import actor_of
from catalogue.http_tools import is_http_tool
from catalogue.long_lists import find_neighbours
from catalogue.models import DiscoveryRun, HistoryEntry, Review, Toolset, Workflow
from catalogue.naming import counted
from catalogue.portable_schemas import find_refusals, limit_for_tools
from catalogue.presentation import CURATORS_HINTS
from catalogue.served_schemas import describe_inputs, required_first
from connectors.formats.json import readable_json

NO_TAGS, SEEN, WARNED = "-", "seen", "warned"
NEXT = "_next"  # The name of the button that saves and opens the next workflow, with its key as the value
FILTERS = "_changelist_filters"  # Django's name for the query of the list from which a page was opened
TABS = {
    "overview": gettext_lazy("Overview"),
    "text": gettext_lazy("Text"),
    "arguments": gettext_lazy("Arguments"),
    "behaviour": gettext_lazy("Behaviour"),
    "safety": gettext_lazy("Safety"),
    "runs": gettext_lazy("Runs"),
    "history": gettext_lazy("History"),
}
SHOWN_NOTES, SHOWN_ENTRIES, SHOWN_LISTINGS, SEARCHED_LISTINGS = 10, 20, 10, 1_000
DEFAULT_ALIAS_DAYS = 30
ANSWERS = {True: gettext_lazy("yes"), False: gettext_lazy("no"), None: gettext_lazy("unknown")}
FOR_READERS = {
    "argument_overrides": "arguments_summary",
    "approval_rules": "rules_summary",
    ("tool_name", "alias_days"): "tool_name",
}
VISIBILITY_BADGES = {
    Visibility.EXPOSED: "success",
    Visibility.IN_TOOLSETS: "success",
    Visibility.SOURCE_OFF: "",
    Visibility.MISSING: "danger",
    Visibility.DISABLED: "",
    Visibility.FOR_APPS: "info",
    Visibility.FILTERED: "warning",
}
HINT_WORDS = {
    "readOnlyHint": ("read-only", "changes things"),
    "destructiveHint": ("destructive", "not destructive"),
    "idempotentHint": ("idempotent", "not idempotent"),
    "openWorldHint": ("open world", "closed world"),
}
AREAS = {"description_override": 5, "icon_override": 2}  # Heights of text areas, in lines


class TagsField(CommasField):
    """Empty for the engine's own, a hyphen for none."""

    def __init__(self, **options: Any) -> None:
        told = gettext_lazy("Separated by commas. Empty: the engine's tags. A hyphen: no tags.")
        super().__init__(label=gettext_lazy("Tags"), help_text=told, required=False, **options)

    def prepare_value(self, value: Any) -> Any:
        return NO_TAGS if value == [] else super().prepare_value(value)

    def to_python(self, value: Any) -> list[str] | None:  # type: ignore[override]
        if isinstance(value, list):  # As stored
            return value
        tags: list[str] = super().to_python(value)
        return [] if tags == [NO_TAGS] else tags or None

    def has_changed(self, initial: Any, data: Any) -> bool:
        return bool(initial != self.to_python(data))


class WorkflowForm(CatalogueForm):
    tags_override = TagsField()
    argument_overrides = ArgumentsField(
        label=gettext_lazy("Arguments"),
        help_text=gettext_lazy(
            "Do not put secrets into values: records of runs show them. Enter text as it is, and all "
            "other values as JSON."
        ),
    )
    approval_rules = ApprovalRulesField(
        label=gettext_lazy("Or depending on arguments"),
        required=False,
        widget=widgets.UnfoldAdminTextareaWidget(attrs={"rows": 3, **MONOSPACE}),
        help_text=format_lazy(
            gettext_lazy(
                "One rule per line, such as /amount over 1000 or /items/*/country none_of "
                '["DE", "FR"]. Comparisons: {}. A call also needs approval if the argument is '
                "missing, or its type is not the rule's."
            ),
            ", ".join(COMPARISONS),
        ),
    )
    alias_days = forms.IntegerField(
        label=gettext_lazy("Days for which the old name still works"),
        min_value=0,
        max_value=actions.MAX_ALIAS_DAYS,
        required=False,
        initial=DEFAULT_ALIAS_DAYS,
        help_text=gettext_lazy(
            "During this time, calls by the old name run, and no other workflow can get it. Afterwards "
            "(immediately with 0), they are refused. Both answers contain the new name."
        ),
        widget=widgets.UnfoldAdminIntegerFieldWidget,
    )

    # The displayed content hash
    seen = forms.CharField(label=gettext_lazy("Seen"), required=False, widget=forms.HiddenInput)

    class Meta:
        model = Workflow
        fields = (*actions.OVERRIDABLE, "enabled")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if SEEN in self.fields:
            self.initial[SEEN] = self.instance.content_hash
        if isinstance(arguments := self.fields.get("argument_overrides"), ArgumentsField):
            row = self.instance
            arguments.offer(row.input_schema, row.argument_overrides, row.argument_problems)
        for name, hint in CURATORS_HINTS.items():
            # Readers have no fields.
            if name in self.fields:
                engines = _("the engine's (%s)") % ANSWERS[self.instance.hints.get(hint)]
                choices = [("unknown", engines), ("true", _("yes")), ("false", _("no"))]
                self.fields[name].widget.choices = choices

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        self._ask_to_enable(cleaned)
        # What did not change may stay, though the engine's schema has changed since.
        changed = {name: cleaned[name] for name in self.changed_data if name in cleaned}
        schema = self.instance.input_schema
        for field, told in actions.find_misfits(schema, changed).items():
            self.add_error(field, told)
            if field == "argument_overrides":
                self.fields[field].show_problems(find_override_problems(schema, changed[field]))  # type: ignore[attr-defined]
        return cleaned

    def _ask_to_enable(self, cleaned: dict[str, Any]) -> None:
        """Once, which the sent hash notes."""
        cleaned[SEEN], _, warned = cleaned.get(SEEN, "").partition(" ")
        is_enabled = "enabled" in self.changed_data and cleaned.get("enabled")
        if is_enabled and self.instance.warning and not warned:
            data: Any = self.data
            self.data = data = data.copy()
            data[self.add_prefix(SEEN)] = f"{cleaned[SEEN]} {WARNED}"
            told = f"Its texts may try to command agents: {self.instance.warning}. Save again to enable it."
            self.add_error("enabled", told)


@dataclass(frozen=True, slots=True)
class Tab:
    slug: str
    label: str
    fieldsets: list[Any]  # Those of the form that it shows
    errors: int


def hint_words(hints: dict[str, bool]) -> list[str]:
    return [words[not hints[name]] for name, words in HINT_WORDS.items() if name in hints]


@dataclass(frozen=True, slots=True)
class Event:
    """A line of the tab History: a change by a curator, or what a listing found."""

    at: Any
    who: str
    told: str
    view: str  # The name of the page with the details
    key: int
    changes: list[str]


def _in_seconds(seconds: int | None) -> str:
    return "-" if seconds is None else f"{seconds:,} s"


def _in_form(tab: str, title: Any, *fields: Any) -> tuple[Any, dict[str, Any]]:
    return title, {"fields": fields, "classes": (tab,)}


class WorkflowPage(ToolPagesMixin):
    class Media:
        css: ClassVar[dict[str, tuple[str, ...]]] = {"all": ("catalogue/admin/workflow.css",)}
        js = ("catalogue/admin/workflow.js",)

    form = WorkflowForm
    change_form_template = "catalogue/admin/workflow.html"
    warn_unsaved_form = True
    compressed_fields = False  # Labels above the fields: two of them stand side by side
    readonly_fields = (
        "upstream_title", "upstream_description", "upstream_tags", "upstream_icons",
        "upstream_hints", "upstream_type", "upstream_timeout", "upstream_cache",
    )  # fmt: skip
    fieldsets: ClassVar[Any] = (
        _in_form("overview", None, ("enabled", "only_in_toolsets"), SEEN),
        _in_form("text", gettext_lazy("Name"), ("tool_name", "alias_days")),
        _in_form(
            "text",
            gettext_lazy("Text: yours beside the engine's"),
            ("title_override", "upstream_title"),
            ("description_override", "upstream_description"),
            ("tags_override", "upstream_tags"),
            ("icon_override", "upstream_icons"),
            "offered_as_prompt",
        ),
        _in_form(
            "arguments",
            gettext_lazy("Arguments: yours beside the engine's"),
            "argument_overrides",
        ),
        _in_form(
            "behaviour",
            gettext_lazy("Calls: yours beside the engine's"),
            ("execution_type_override", "upstream_type"),
            ("timeout_seconds", "upstream_timeout"),
            ("cache_seconds", "upstream_cache"),
            ("inline_wait_seconds", "on_disconnect"),
            "reattach",
        ),
        _in_form(
            "behaviour",
            gettext_lazy("Limits"),
            "max_concurrent",
            ("calls_per_minute", "calls_at_once"),
        ),
        _in_form(
            "safety",
            gettext_lazy("Hints: what clients may do without asking"),
            ("read_only_hint", "destructive_hint"),
            ("idempotent_hint", "open_world_hint"),
            "upstream_hints",
        ),
        _in_form(
            "safety",
            gettext_lazy("Approval"),
            ("approval_required", "approvers_needed"),
            "approval_rules",
            ("answered_by", "answer_group"),
        ),
    )

    def get_fieldsets(self, request: HttpRequest, obj: Workflow | None = None) -> Any:
        fieldsets = super().get_fieldsets(request, obj)
        if self.has_change_permission(request, obj):
            return fieldsets
        return [
            (
                title,
                options
                | {
                    "fields": tuple(FOR_READERS.get(name, name) for name in options["fields"] if name != SEEN)
                },
            )
            for title, options in fieldsets
        ]

    def get_urls(self) -> list[URLPattern]:
        preview = self.guarded(self._preview, self.has_change_permission, "POST")
        toolsets = self.guarded(self._change_toolsets, self._may_pick, "POST")
        return [
            path("<int:key>/preview/", preview, name="catalogue_workflow_preview"),
            path("<int:key>/toolsets/", toolsets, name="catalogue_workflow_toolsets"),
            *super().get_urls(),
        ]

    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        """Refuses to enable content other than the form showed."""
        try:
            return super().changeform_view(request, *args, **kwargs)
        except ValidationError as error:
            messages.error(request, f"Nothing was changed. {' '.join(error.messages)}")
            return HttpResponseRedirect(request.get_full_path())

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name in AREAS:
            kwargs["widget"] = widgets.UnfoldAdminTextareaWidget(attrs={"rows": AREAS[db_field.name]})
        return super().formfield_for_dbfield(db_field, request, **kwargs)

    def save_model(self, request: HttpRequest, obj: Workflow, form: Any, change: bool) -> None:
        decisions = {
            name: form.cleaned_data[name] for name in form.changed_data if name in actions.OVERRIDABLE
        }
        if "tool_name" in decisions or "alias_days" in form.changed_data:
            decisions["alias_days"] = form.cleaned_data["alias_days"] or 0
        if decisions:
            actions.override_workflow(obj, **decisions)
        if "tool_name" in decisions:
            old, days = form.initial["tool_name"], decisions["alias_days"]
            who = (
                f"Calls by {old} run for {counted(days, 'day')} more and"
                if days
                else f"Agents that still call {old}"
            )
            messages.warning(request, f"{who} get a message to call {obj.tool_name} instead.")
        if "enabled" in form.changed_data:
            if not form.cleaned_data["enabled"]:
                actions.disable_workflows(Workflow.objects.filter(pk=obj.pk))
            elif message := actions.enable_if_unchanged({obj.pk: form.cleaned_data[SEEN]}).refusal():
                raise ValidationError(message)

    def response_change(self, request: HttpRequest, obj: Workflow) -> HttpResponse:
        following = request.POST.get(NEXT, "")
        if not following.isdecimal():
            return super().response_change(request, obj)
        messages.success(request, _("%s was saved.") % obj.tool_name)
        return HttpResponseRedirect(self._address_of(request, "change", int(following)))

    def _address_of(self, request: HttpRequest, view: str, key: int) -> str:
        """Keeps the query of the list from which the page was opened."""
        kept: Any = {"preserved_filters": self.get_preserved_filters(request), "opts": self.opts}
        return str(add_preserved_filters(kept, reverse(f"admin:catalogue_workflow_{view}", args=[key])))

    # The engine's values beside the curator's

    upstream_description = column(gettext_lazy("engine's description"), "description", str)
    upstream_tags = column(gettext_lazy("engine's tags"), "tags", ", ".join)
    upstream_timeout = column(gettext_lazy("engine's timeout"), "upstream_timeout_seconds", _in_seconds)
    rules_summary = column(gettext_lazy("or depending on arguments"), "approval_rules", write_rules)
    upstream_hints = column(
        gettext_lazy("engine's hints"), "hints", lambda hints: ", ".join(hint_words(hints))
    )
    upstream_type = cell(
        gettext_lazy("engine's type"), lambda workflow: workflow.get_execution_type_display()
    )
    upstream_cache = column(gettext_lazy("engine's cache time"), "upstream_cache_seconds", _in_seconds)

    @admin.display(description=gettext_lazy("arguments"))
    def arguments_summary(self, workflow: Workflow) -> str:
        lines = []
        for name, override in workflow.argument_overrides.items():
            if "constant" in override:
                lines.append(f"{name}: always {json.dumps(override['constant'])}, hidden from agents")
            if "default" in override:
                lines.append(f"{name}: {json.dumps(override['default'])} if agents omit it")
            if "description" in override:
                lines.append(f"{name}: {override['description']}")
        return "\n".join(lines)

    @admin.display(description=gettext_lazy("engine's icons"))
    def upstream_icons(self, workflow: Workflow) -> str:
        addresses = [icon["src"] for icon in workflow.icons]
        return "\n".join(_("a picture") if one.startswith("data:") else one for one in addresses)

    # The parts of the page

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        form, tabs = context["adminform"].form, _tabs_of(context["adminform"])
        context |= {
            "tabs": tabs,
            "wrong_tab": next((tab.slug for tab in tabs if tab.errors), ""),
            **preview_of(form),
        }
        return super().render_change_form(request, context, *args, **kwargs)

    def panel(self, request: HttpRequest, obj: Workflow) -> dict[str, Any]:
        previous, following = self._neighbours(request, obj)
        refused = find_refusals(obj.tool_name, obj.offered_input_schema, limit=limit_for_tools(None))
        notes = obj.metadata.get("notes", ()) if is_http_tool(obj) else ()
        may_see_toolsets = any(
            request.user.has_perm(f"catalogue.{verb}_toolset") for verb in ("view", "change")
        )
        explanation = explain_exposure(obj, enabled_filters())
        may_change_toolsets = request.user.has_perm("catalogue.change_toolset")
        return {
            "show_history": False,  # A tab has it
            "previous": previous and self._address_of(request, "change", previous),
            "next": following and self._address_of(request, "change", following),
            "next_key": following,
            "explanation": explanation,
            "is_exposed": explanation.is_exposed,
            "visibility_kind": VISIBILITY_BADGES[explanation.visibility],
            "review": Review.objects.filter(pk=obj.pk).defer("offered").first(),
            "refused": refused,
            "notes": notes[:SHOWN_NOTES],
            "more_notes": len(notes[SHOWN_NOTES:]),
            "may_change_tool": is_http_tool(obj) and obj.missing_since is None and may_declare(request),
            "facts": [fact(request, obj) for fact in added("workflow_facts")],
            "links": [one for offer in added("workflow_links") for one in offer(request, obj)],
            "memberships": memberships_of(obj) if may_see_toolsets else [],
            "offered_toolsets": may_change_toolsets and Toolset.objects.exclude(picked=obj).only("slug"),
            "toolsets_url": self._address_of(request, "toolsets", obj.pk),
            "preview_url": self._preview_url(request, obj),
            "usage": [section(request, obj) for section in added("workflow_sections")],
            "runs": [runs for section in added("workflow_runs") if (runs := section(request, obj))[1]],
            "events": _events_of(obj),
            "input_schema": readable_json(obj.input_schema),
            "output_schema": readable_json(obj.output_schema) if obj.output_schema else "",
            "metadata": readable_json(obj.metadata) if obj.metadata else "",
        }

    def _preview_url(self, request: HttpRequest, obj: Workflow) -> str:
        may = self.has_change_permission(request, obj)
        return reverse("admin:catalogue_workflow_preview", args=[obj.pk]) if may else ""

    def _neighbours(self, request: HttpRequest, obj: Workflow) -> tuple[Any, Any]:
        """The keys of the previous and the next workflow in the list from which the page was opened."""
        listing = copy(request)
        listing.method, listing.GET = "GET", QueryDict(request.GET.get(FILTERS, ""))
        listed = self.read_list(listing)
        return (
            find_neighbours(listed.queryset, obj.pk, among=self.get_queryset(request))
            if listed
            else (None, None)
        )

    def _preview(self, request: HttpRequest, key: int) -> HttpResponse:
        """What agents would see if the submitted form were saved; saves nothing."""
        workflow = get_object_or_404(Workflow, pk=key)
        saved = _entries_of(workflow)
        form = self.get_form(request, workflow, change=True)(request.POST, instance=workflow)
        form.is_valid()
        context = preview_of(form) | {"saved": saved}
        return TemplateResponse(request, "catalogue/admin/workflow_preview.html", context)

    def _may_pick(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request) and request.user.has_perm("catalogue.change_toolset")

    def _change_toolsets(self, request: HttpRequest, key: int) -> HttpResponse:
        """Picks the workflow for a toolset by hand, or takes it back."""
        chosen = request.POST.get("toolset", "")
        toolset = get_object_or_404(Toolset, pk=chosen if chosen.isdecimal() else None)
        change = remove_from_toolset if "remove" in request.POST else add_to_toolset
        changed = change(toolset, Workflow.objects.filter(pk=key), by=actor_of(request))
        told = _("Removed from %s.") if "remove" in request.POST else _("Added to %s.")
        messages.success(request, told % toolset if changed else _("Nothing was changed."))
        return HttpResponseRedirect(self._address_of(request, "change", key))


def _tabs_of(adminform: Any) -> list[Tab]:
    tabs, wrong = [], adminform.form.errors.keys()
    for slug, label in TABS.items():
        fieldsets = [one for one in adminform if one.classes == slug]
        names = {name for one in fieldsets for name in flatten(one.fields)}
        tabs.append(Tab(slug, str(label), fieldsets, len(wrong & names)))
    return tabs


def _entries_of(workflow: Workflow) -> list[Any]:
    return [entry for make in added("tool_entries") if (entry := make(workflow)) is not None]


def preview_of(form: Any) -> dict[str, Any]:
    """What agents would see if the form were saved, and what is wrong with the values that are left out."""
    workflow: Workflow = form.instance
    for name in form.errors.keys() & form.initial.keys():
        # A value that the model refuses is on it already.
        setattr(workflow, name, form.initial[name])
    entries = _entries_of(workflow)
    schema = entries[0].tool["inputSchema"] if entries else {}
    inputs = describe_inputs(schema)
    required = {name for name, one in inputs.items() if one["required"]}
    return {
        "entries": entries,
        "arguments": {name: inputs[name] for name in required_first(inputs, required, schema)},
        "hints": hint_words(workflow.effective_hints),
        "icons": [icon["src"] for icon in workflow.shown_icons if icon["src"].startswith("data:")],
        "problems": [
            (form.fields[name].label if name in form.fields else "", told)
            for name, all_told in form.errors.items()
            for told in all_told
            if name != "enabled"
        ],
    }


def _events_of(workflow: Workflow) -> list[Event]:
    """The newest first. Listings are searched in the newest ones of the source."""
    listings = DiscoveryRun.objects.filter(source=workflow.source_id)
    searched = list(listings.order_by("-started_at").values_list("pk", flat=True)[:SEARCHED_LISTINGS])
    # As the column holds it; within a text of the engine, the quotes would have backslashes.
    named = listings.filter(pk__in=searched, changes__contains=f'{{"workflow":{workflow.pk},')
    events = [
        Event(
            run.started_at,
            str(workflow.source),
            str(NAMED[what]),
            "catalogue_discoveryrun_change",
            run.pk,
            [],
        )
        for run in named.only("started_at", "changes")[:SHOWN_LISTINGS]
        for what, found in run.changes.items()
        if any(one["workflow"] == workflow.pk for one in found)
    ]
    events += [
        Event(
            entry.at,
            entry.actor_name,
            entry.message,
            "catalogue_historyentry_change",
            entry.pk,
            describe_changes(entry),
        )
        for entry in HistoryEntry.of(workflow)[:SHOWN_ENTRIES]
    ]
    return sorted(events, key=lambda event: event.at, reverse=True)
