import json
from functools import partial
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import Q, QuerySet, Value
from django.db.models.functions import Coalesce, NullIf
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.template.loader import render_to_string
from django.urls import URLPattern, path
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import smart_split
from unfold import widgets

from catalogue.actions import workflows as actions
from catalogue.actions.toolsets import add_to_toolset
from catalogue.admin import rendering as html
from catalogue.admin.base import (
    CatalogueChangeList,
    CatalogueForm,
    FixedRowsMixin,
    TableMixin,
    ask_for_selected,
    ask_if_many,
    change_if_sure,
    column,
)
from catalogue.admin.discovery import (
    COMMANDING,
    accept_for_workflows,
    note_reviews,
    review_badge,
    review_fact,
)
from catalogue.admin.extensions import added
from catalogue.admin.filters import HINT_WORDS, LIST_FILTERS
from catalogue.admin.form_fields import MONOSPACE, ApprovalRulesField, ArgumentsField, CommasField
from catalogue.admin.tools import ToolPagesMixin, declaration_fact
from catalogue.approval_rules import COMPARISONS, write_rules
from catalogue.exposure import (
    Explanation,
    Visibility,
    count_switched,
    enabled_filters,
    explain_exposure,
    memberships_of,
)
from catalogue.history import actor_of
from catalogue.http_tools import is_http_tool
from catalogue.long_lists import KeyPaginator
from catalogue.models import Toolset, Workflow
from catalogue.models.workflow import WorkflowQuerySet
from catalogue.naming import counted
from catalogue.portable_schemas import find_refusals, limit_for_tools
from catalogue.presentation import CURATORS_HINTS

NO_TAGS, SEEN, WARNED = "-", "seen", "warned"
DEFAULT_ALIAS_DAYS = 30
MAX_SUGGESTED, MAX_WARNED = 500, 500
ANSWERS = {True: "yes", False: "no", None: "unknown"}


class TagsField(CommasField):
    """Empty for the engine's own, a hyphen for none."""

    def prepare_value(self, value: Any) -> Any:
        return NO_TAGS if value == [] else super().prepare_value(value)

    def to_python(self, value: Any) -> list[str] | None:  # type: ignore[override]
        if isinstance(value, list):  # As stored
            return value
        tags: list[str] = super().to_python(value)
        return [] if tags == [NO_TAGS] else tags or None

    def has_changed(self, initial: Any, data: Any) -> bool:
        return bool(initial != self.to_python(data))


class TagsForm(forms.Form):
    tags = CommasField(
        label="Tags",
        help_text="Separated by commas.",
        error_messages={"required": "Enter at least one tag."},
        widget=widgets.UnfoldAdminTextInputWidget(
            attrs={"autocomplete": "off", "list": "known-tags", "autofocus": True}
        ),
    )
    suggested = staticmethod(lambda: actions.known_tags()[:MAX_SUGGESTED])


class ToolsetForm(forms.Form):
    toolset = forms.ModelChoiceField(
        Toolset.objects.all(),
        label="Toolset",
        help_text="Adds them by hand. The toolset shows those that are exposed.",
        widget=widgets.UnfoldAdminSelectWidget,
        error_messages={"required": "Choose a toolset."},
    )


class WorkflowForm(CatalogueForm):
    tags_override = TagsField(
        label="Tags",
        required=False,
        help_text="Separated by commas. Empty: the engine's tags. A hyphen: no tags.",
    )

    argument_overrides = ArgumentsField(
        label="Arguments",
        help_text="Do not put secrets into values: records of runs show them. Enter text as it is, and all "
        "other values as JSON.",
    )
    approval_rules = ApprovalRulesField(
        label="Or depending on arguments",
        required=False,
        widget=widgets.UnfoldAdminTextareaWidget(attrs={"rows": 3, **MONOSPACE}),
        help_text="One rule per line, such as /amount over 1000 or /items/*/country none_of "
        f'["DE", "FR"]. Comparisons: {", ".join(COMPARISONS)}. A call also needs approval if the argument is '
        "missing, or its type is not the rule's.",
    )
    alias_days = forms.IntegerField(
        label="Days for which the old name still works",
        min_value=0,
        max_value=actions.MAX_ALIAS_DAYS,
        required=False,
        initial=DEFAULT_ALIAS_DAYS,
        help_text="During this time, calls by the old name run, and no other workflow can get it. Afterwards "
        "(immediately with 0), they are refused. Both answers contain the new name.",
        widget=widgets.UnfoldAdminIntegerFieldWidget,
    )

    seen = forms.CharField(required=False, widget=forms.HiddenInput)  # The displayed content hash

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
                engines = f"the engine's ({ANSWERS[self.instance.hints.get(hint)]})"
                choices = [("unknown", engines), ("true", "yes"), ("false", "no")]
                self.fields[name].widget.choices = choices

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        self._ask_to_enable(cleaned)
        # What did not change may stay, though the engine's schema has changed since.
        changed = {name: cleaned[name] for name in self.changed_data if name in cleaned}
        for field, told in actions.find_misfits(self.instance.input_schema, changed).items():
            self.add_error(field, told)
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


VISIBILITY_BADGES = {
    Visibility.EXPOSED: "success",
    Visibility.SOURCE_OFF: "",
    Visibility.MISSING: "danger",
    Visibility.DISABLED: "",
    Visibility.FILTERED: "warning",
}
HINT_BADGES = {"readOnlyHint": "success", "destructiveHint": "danger"}
SHOWN_DESCRIPTION = 80
SHOWN_TAGS = 4
GLOB_SIGNS = "*?["
FOR_READERS = {
    "argument_overrides": "arguments_summary",
    "approval_rules": "rules_summary",
    ("tool_name", "alias_days"): "tool_name",
}
AREAS = {"description_override": 5, "icon_override": 2}  # Heights of text areas, in lines

# `Workflow.title`
SHOWN_TITLE = Coalesce(NullIf("title_override", Value("")), NullIf("upstream_title", Value("")), "name")


class WorkflowChangeList(CatalogueChangeList):
    """Reads the filters once and sets each row's verdict."""

    result_list: Any

    def get_queryset(self, request: HttpRequest, *args: Any, **kwargs: Any) -> QuerySet[Workflow]:
        workflows: Any = super().get_queryset(request, *args, **kwargs)
        listed: WorkflowQuerySet = workflows.for_lists()
        return listed

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        rows: list[Any] = list(self.result_list)
        self.result_list = rows
        chain, may_switch = enabled_filters(), self.model_admin.has_change_permission(request)
        for workflow in rows:
            workflow.explanation, workflow.may_be_switched = explain_exposure(workflow, chain), may_switch
        note_reviews(rows)
        for prepare in added("prepare_workflows"):
            prepare(rows)


def _in_seconds(seconds: int | None) -> str:
    return html.DASH if seconds is None else f"{seconds:,} s"


@admin.register(Workflow)
class WorkflowAdmin(FixedRowsMixin, TableMixin, ToolPagesMixin):
    form = WorkflowForm
    list_display = ("tool", "state", "shown_title", "origin", "changed")
    list_select_related = ("source",)
    list_per_page = 50
    paginator = KeyPaginator
    search_fields = (
        "name",
        "upstream_id",
        "description",
        "tool_name",
        "title_override",
        "upstream_title",
        "description_override",
    )
    search_help_text = "Words, tags, or names such as billing_*"
    actions = (
        "enable_selected", "disable_selected", "accept_selected", "tag_selected", "untag_selected",
        "add_selected_to_toolset", "mark_selected_read_only", "clear_selected_hints",
        "remove_selected",
    )  # fmt: skip
    change_form_outer_before_template = "catalogue/admin/workflow_panel.html"
    change_form_outer_after_template = "catalogue/admin/workflow_schema.html"
    readonly_fields = (
        "upstream_title", "upstream_description", "upstream_tags", "upstream_icons",
        "upstream_hints", "upstream_type", "upstream_timeout", "upstream_cache",
    )  # fmt: skip
    fieldsets = (
        (None, {"fields": ("enabled", ("tool_name", "alias_days"), SEEN)}),
        (
            "What agents see: your text on the left, the engine's on the right",
            {
                "fields": (
                    ("title_override", "upstream_title"),
                    ("description_override", "upstream_description"),
                    ("tags_override", "upstream_tags"),
                )
            },
        ),
        ("Arguments: the engine's text on the left, yours on the right", {"fields": ("argument_overrides",)}),
        (
            "Presentation in clients",
            {
                "fields": (
                    ("read_only_hint", "destructive_hint"),
                    ("idempotent_hint", "open_world_hint"),
                    "upstream_hints",
                    ("icon_override", "upstream_icons"),
                    "offered_as_prompt",
                )
            },
        ),
        (
            "Calls",
            {
                "fields": (
                    ("execution_type_override", "upstream_type"),
                    ("cache_seconds", "upstream_cache"),
                    "inline_wait_seconds",
                    "on_disconnect",
                    "reattach",
                )
            },
        ),
        (
            "Limits",
            {
                "fields": (
                    ("timeout_seconds", "upstream_timeout"),
                    "max_concurrent",
                    ("calls_per_minute", "calls_at_once"),
                )
            },
        ),
        ("Approval", {"fields": (("approval_required", "approvers_needed"), "approval_rules")}),
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

    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        """Refuses to enable content other than the form showed."""
        try:
            return super().changeform_view(request, *args, **kwargs)
        except ValidationError as error:
            messages.error(request, f"Nothing was changed. {' '.join(error.messages)}")
            return HttpResponseRedirect(request.get_full_path())

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[WorkflowChangeList]:
        return WorkflowChangeList

    def get_queryset(self, request: HttpRequest) -> QuerySet[Workflow]:
        workflows: QuerySet[Workflow] = super().get_queryset(request)
        for orders in added("workflow_orders"):
            workflows = workflows.alias(**orders())
        return workflows

    def get_list_display(self, request: HttpRequest) -> tuple[Any, ...]:
        *first, origin, changed = self.list_display
        return (*first, *added("workflow_columns"), origin, changed)

    def get_list_filter(self, request: HttpRequest) -> Any:
        return (*LIST_FILTERS, *added("workflow_filters"))

    def search_list(
        self, request: HttpRequest, queryset: QuerySet[Workflow], search_term: str
    ) -> tuple[QuerySet[Workflow], bool]:
        """Words anywhere, or as whole tags; a glob such as billing_* matches whole names."""
        words = search_term.split()
        for glob in [word for word in words if any(sign in word for sign in GLOB_SIGNS)]:
            queryset = queryset.named_like(glob)  # type: ignore[attr-defined]
            words.remove(glob)
        for word in smart_split(" ".join(words)):
            anywhere, _ = super().search_list(request, Workflow.objects.order_by(), word)
            tagged = Workflow.objects.tagged(word.strip("\"'")).order_by()
            queryset = queryset.filter(Q(pk__in=anywhere.values("pk")) | Q(pk__in=tagged.values("pk")))
        return queryset, False

    def get_urls(self) -> list[URLPattern]:
        switch = self.admin_site.admin_view(self._switch)
        return [path("<int:key>/switch/", switch, name="catalogue_workflow_switch"), *super().get_urls()]

    def _switch(self, request: HttpRequest, key: int) -> HttpResponse:
        """Enable or disable one row of the list; returns its cells as they are then."""
        if not self.has_change_permission(request):
            raise PermissionDenied
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        enabled, seen = None, request.POST.get(SEEN, "")
        rows, wanted = Workflow.objects.filter(pk=key), request.POST.get("enabled") == "true"
        # The next click, beside the warning, enables it.
        asks = wanted and WARNED not in request.POST and rows.exclude(warning="").exists()
        if not wanted:
            actions.disable_workflows(rows, by=actor_of(request))
        elif not asks:
            enabled = actions.enable_if_unchanged({key: seen}, by=actor_of(request))
        workflow: Any = get_object_or_404(Workflow.objects.for_lists().select_related("source"), pk=key)
        workflow.explanation, workflow.may_be_switched = explain_exposure(workflow, enabled_filters()), True
        workflow.asks = asks
        note_reviews([workflow])
        if enabled and enabled.changed_since:
            # The rest of the row still shows the old content, so its switch still refers to that.
            workflow.content_hash, workflow.has_changed = seen, True
        return HttpResponse(self.state(workflow))

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

    @admin.action(description="Enable: agents may see and call them", permissions=["change"])
    def enable_selected(self, request: HttpRequest, queryset: QuerySet[Workflow]) -> HttpResponse | None:
        """As the page showed them; rows of other pages, selected with all, as they are now."""
        by, keys = actor_of(request), list(queryset.values_list("pk", flat=True))
        seen = {key: shown for key in keys if (shown := request.POST.get(f"{SEEN}-{key}"))}

        def enable() -> None:
            enabled = actions.enable_if_unchanged(seen, by=by)
            others = Workflow.objects.filter(pk__in=[key for key in keys if key not in seen])
            changed = enabled.changed + actions.enable_workflows(others, by=by)
            messages.success(request, f"Enabled: {changed:,}.")
            if message := enabled.refusal():
                messages.warning(request, message)

        def note(count: int) -> str:
            tools = counted(count_switched(keys, enabled=True), "tool")
            selected = counted(len(keys), "selected workflow")
            warning = f" Texts of {len(asked):,} may try to command agents:" if asked else ""
            return f"Enables {count:,} of {selected}. Newly visible to agents: {tools}.{warning}"

        hidden = queryset.filter(enabled=False)
        warned = hidden.exclude(warning="").select_related(None).only("tool_name", "warning", "content_hash")
        asked = [] if "post" in request.POST else list(warned[:MAX_WARNED])
        # Others with a warning than the page showed stay hidden.
        unseen = dict.fromkeys(warned.values_list("pk", flat=True), "")
        seen = unseen | {row.pk: row.content_hash for row in asked} | seen
        sent = [(f"{SEEN}-{key}", content_hash) for key, content_hash in seen.items() if content_hash]
        told = [
            format_html(
                '<div style="overflow-wrap: anywhere">{}: {}</div>',
                html.link(row.tool_name, "catalogue_workflow_change", row.pk),
                row.warning,
            )
            for row in asked
        ]
        return ask_if_many(
            self, request, hidden, "Enable workflows", enable, note=note, shown=told, sent=sent
        )

    def action_checkbox(self, obj: Workflow) -> SafeString:
        """Adds the content hash of the row, which enabling compares."""
        seen = '<input type="hidden" name="{}-{}" value="{}">'
        return format_html("{}" + seen, super().action_checkbox(obj), SEEN, obj.pk, obj.content_hash)

    action_checkbox.short_description = ToolPagesMixin.action_checkbox.short_description  # type: ignore[attr-defined]

    @admin.action(description="Disable", permissions=["change"])
    def disable_selected(self, request: HttpRequest, queryset: QuerySet[Workflow]) -> HttpResponse | None:
        def disable() -> None:
            disabled = actions.disable_workflows(queryset, by=actor_of(request))
            messages.success(request, f"Disabled: {disabled:,}.")

        def note(count: int) -> str:
            keys = list(queryset.values_list("pk", flat=True))
            tools = counted(count_switched(keys, enabled=False), "tool")
            selected = counted(len(keys), "selected workflow")
            return f"Disables {count:,} of {selected}. No longer visible to agents: {tools}."

        shown = queryset.filter(enabled=True)
        return ask_if_many(self, request, shown, "Disable workflows", disable, note=note)

    @admin.action(description="Accept changes…", permissions=["change"])
    def accept_selected(self, request: HttpRequest, queryset: QuerySet[Workflow]) -> HttpResponse | None:
        return accept_for_workflows(self, request, queryset)

    @admin.action(
        description="Mark as read-only: clients may call them without asking", permissions=["change"]
    )
    def mark_selected_read_only(
        self, request: HttpRequest, queryset: QuerySet[Workflow]
    ) -> HttpResponse | None:
        mark = partial(actions.mark_read_only, queryset, by=actor_of(request))
        done, note = "Marked as read-only: {:,}.", "Clients may call {} without asking."
        return change_if_sure(self, request, queryset, "Mark as read-only", mark, done=done, note=note)

    @admin.action(description="Restore the engine's hints", permissions=["change"])
    def clear_selected_hints(self, request: HttpRequest, queryset: QuerySet[Workflow]) -> HttpResponse | None:
        clear = partial(actions.clear_hints, queryset, by=actor_of(request))
        done, note = "Restored the engine's hints: {:,}.", "Your hints of {} are removed."
        return change_if_sure(self, request, queryset, "Restore hints", clear, done=done, note=note)

    @admin.action(description="Add tags…", permissions=["change"])
    def tag_selected(self, request: HttpRequest, queryset: QuerySet[Workflow]) -> HttpResponse | None:
        def add(form: TagsForm) -> None:
            changed = actions.change_tags(queryset, add=form.cleaned_data["tags"], by=actor_of(request))
            messages.success(request, f"Tagged: {changed}.")

        return ask_for_selected(self, request, queryset, TagsForm, "Add tags", add)

    @admin.action(description="Remove tags…", permissions=["change"])
    def untag_selected(self, request: HttpRequest, queryset: QuerySet[Workflow]) -> HttpResponse | None:
        def remove(form: TagsForm) -> None:
            changed = actions.change_tags(queryset, remove=form.cleaned_data["tags"], by=actor_of(request))
            messages.success(request, f"Removed tags from: {changed}.")

        return ask_for_selected(self, request, queryset, TagsForm, "Remove tags", remove)

    @admin.action(description="Add to toolset…", permissions=["toolset"])
    def add_selected_to_toolset(
        self, request: HttpRequest, queryset: QuerySet[Workflow]
    ) -> HttpResponse | None:
        def add(form: ToolsetForm) -> None:
            toolset = form.cleaned_data["toolset"]
            added = add_to_toolset(toolset, queryset, by=actor_of(request))
            page = html.link(toolset, "catalogue_toolset_change", toolset.pk)
            messages.success(request, format_html("Added to {}: {}.", page, added))

        return ask_for_selected(self, request, queryset, ToolsetForm, "Add to a toolset", add)

    @admin.action(description="Remove, if the engine no longer lists them…", permissions=["change"])
    def remove_selected(self, request: HttpRequest, queryset: QuerySet[Workflow]) -> HttpResponse | None:
        def remove(_: forms.Form) -> None:
            outcome = actions.remove_missing(queryset, by=actor_of(request))
            messages.success(request, f"Removed: {outcome.removed:,}.")
            if message := outcome.kept_message():
                messages.warning(request, message)

        note = (
            f"Of {counted(queryset.count(), 'workflow')}, those that their engine no longer lists are "
            "removed with your texts, settings and picks for toolsets. Those with executions are kept."
        )
        return ask_for_selected(self, request, queryset, forms.Form, "Remove workflows", remove, note=note)

    def has_toolset_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.has_perm("catalogue.change_toolset"))

    tool = column("tool name", "tool_name", html.wrapped)
    changed = column("changed", "changed_at")
    upstream_description = column("engine's description", "description", html.paragraphs)
    upstream_tags = column("engine's tags", "tags", lambda tags: html.side_by_side(map(html.chip, tags)))
    upstream_timeout = column("engine's timeout", "upstream_timeout_seconds", _in_seconds)
    upstream_cache = column("engine's cache time", "upstream_cache_seconds", _in_seconds)

    def labels(self, workflow: Workflow) -> SafeString:
        hints = workflow.effective_hints
        badges = [
            html.badge(words[0], HINT_BADGES.get(name, ""))
            for name, words in HINT_WORDS.items()
            if hints.get(name)
        ]
        tags = [html.chip(tag) for tag in workflow.shown_tags[:SHOWN_TAGS]]
        more = workflow.shown_tags[SHOWN_TAGS:]
        if more:
            tags.append(format_html('<span title="{}">+{}</span>', ", ".join(more), len(more)))
        return html.side_by_side([*badges, *tags])

    @admin.display(description="source, category", ordering="source__name")
    def origin(self, workflow: Workflow) -> SafeString:
        look = "overflow-wrap: anywhere; white-space: normal; min-width: 5.5rem"
        kind = Workflow.ExecutionType(workflow.effective_execution_type).label
        lines = workflow.source, f"{workflow.category}, {kind}"
        return format_html('<div style="{}">{}<div class="text-xs">{}</div></div>', look, *lines)

    @admin.display(description="title and description", ordering=SHOWN_TITLE)
    def shown_title(self, workflow: Workflow) -> SafeString:
        title = html.shortened(workflow.title)
        # The first line of an imported description is its summary, which is also the title.
        heading, _, rest = workflow.shown_description.partition("\n")
        description = rest.strip() if heading == workflow.title else workflow.shown_description
        look = "overflow-wrap: anywhere; white-space: normal; min-width: 9rem"
        return format_html(
            '<div style="{}"><div class="text-important">{}</div><div class="text-xs">{}</div>{}</div>',
            look,
            title,
            html.shortened(description, SHOWN_DESCRIPTION) if description else "",
            self.labels(workflow),
        )

    @admin.display(description="enabled", ordering="enabled")
    def state(self, workflow: Any) -> SafeString:
        badges = html.side_by_side(
            filter(None, [_state_badges(workflow, workflow.explanation), review_badge(workflow)])
        )
        return render_to_string(
            "catalogue/admin/switch.html",
            {
                "workflow": workflow,
                "classes": " ".join(widgets.SWITCH_CLASSES),
                "may": workflow.may_be_switched,
                "badges": badges,
            },
        )

    @admin.display(description="arguments")
    def arguments_summary(self, workflow: Workflow) -> SafeString:
        lines = []
        for name, override in workflow.argument_overrides.items():
            if "constant" in override:
                lines.append(f"{name}: always {json.dumps(override['constant'])}, hidden from agents")
            if "default" in override:
                lines.append(f"{name}: {json.dumps(override['default'])} if agents omit it")
            if "description" in override:
                lines.append(f"{name}: {override['description']}")
        return html.paragraphs("\n".join(lines))

    @admin.display(description="or depending on arguments")
    def rules_summary(self, workflow: Workflow) -> SafeString:
        return html.paragraphs(write_rules(workflow.approval_rules))

    @admin.display(description="engine's hints")
    def upstream_hints(self, workflow: Workflow) -> str:
        return html.side_by_side(map(html.badge, _hint_words(workflow.hints))) or html.DASH

    @admin.display(description="engine's type")
    def upstream_type(self, workflow: Workflow) -> str:
        return workflow.get_execution_type_display()

    @admin.display(description="engine's icons")
    def upstream_icons(self, workflow: Workflow) -> SafeString:
        return html.side_by_side(html.icon_or_address(icon["src"]) for icon in workflow.icons)

    def panel(self, request: HttpRequest, obj: Workflow) -> dict[str, Any]:
        explanation = explain_exposure(obj, enabled_filters())
        refused = find_refusals(obj.tool_name, obj.offered_input_schema, limit=limit_for_tools(None))
        aliases = ((name, html.exactly(until)) for name, until in obj.live_aliases.items())
        executions = html.link(
            "Executions", "executions_execution_changelist", query=f"?workflow__id__exact={obj.pk}"
        )
        return {
            "headline": [html.side_by_side([_state_badges(obj, explanation), _filter_link(explanation)])],
            "facts": [
                ("Source", html.link(obj.source, "catalogue_source_change", obj.source_id)),
                ("Can be mistaken for", obj.resembles),
                ("Engine's name", obj.name),
                ("Engine's id", obj.upstream_id),
                (
                    "Category, version, type",
                    f"{obj.category}, {obj.version}, {obj.get_execution_type_display()}",
                ),
                ("Author", obj.author),
                ("First seen", html.exactly(obj.first_seen_at)),
                ("Changed upstream", html.exactly(obj.changed_at)),
                ("Missing since", html.exactly(obj.missing_since)),
                ("Former names that still work", format_html_join(", ", "{} until {}", aliases)),
                ("Toolsets", _toolset_links(obj)),
                ("MCP hints", html.side_by_side(map(html.badge, _hint_words(obj.effective_hints)))),
                ("Icon", html.side_by_side(html.icon_or_address(icon["src"]) for icon in obj.shown_icons)),
                (
                    "Some model providers refuse",
                    f"{'; '.join(refused)}. Portable toolsets solve this." if refused else "",
                ),
                ("Left out or read differently", format_html_join("", "<p>{}</p>", _notes_of(obj))),
                ("Executions", executions),
                review_fact(request, obj),
                declaration_fact(request, obj),
                *(fact(request, obj) for fact in added("workflow_facts")),
            ],
            "links": [one for offer in added("workflow_links") for one in offer(request, obj)],
            "sections": [section(request, obj) for section in added("workflow_sections")],
            "warning": obj.warning,
            "schema_problem": obj.schema_problem,
            "argument_problems": obj.argument_problems,
            "rule_problems": obj.approval_rule_problems,
            "input_schema": html.pretty_json(obj.input_schema),
            "output_schema": html.pretty_json(obj.output_schema) if obj.output_schema else "",
            "metadata": html.pretty_json(obj.metadata) if obj.metadata else "",
        }


def _notes_of(workflow: Workflow) -> list[tuple[str]]:
    """Returns the first 10 notes of the import that made it; the metadata have all of them."""
    notes = [*workflow.metadata.get("notes", ())] if is_http_tool(workflow) else []
    more = [f"And {len(notes) - 10} more, in the metadata."] if len(notes) > 10 else []
    return [(note,) for note in [*notes[:10], *more]]


def _toolset_links(workflow: Workflow) -> SafeString:
    """Links the toolsets also of unexposed workflows, which toolsets do not show."""
    return format_html_join(
        ", ",
        "{} ({}{})",
        (
            (
                html.link(toolset, "catalogue_toolset_change", toolset.pk),
                "picked by hand" if is_picked else "by its rules",
                "" if toolset.enabled else ", disabled",
            )
            for toolset, is_picked in memberships_of(workflow)
        ),
    )


def _state_badges(workflow: Workflow, explanation: Explanation) -> SafeString:
    badges = [html.badge(explanation.visibility.value, VISIBILITY_BADGES[explanation.visibility])]
    if getattr(workflow, "has_changed", False):
        message = "The engine has changed it since this page was loaded. Reload the page and review it."
        badges.append(html.badge("changed in the meantime", "danger", title=message))
    if workflow.schema_problem:
        badges.append(html.badge("schema replaced", "warning", title=workflow.schema_problem[:500]))
    if workflow.resembles:
        message = f"Its name or title can be mistaken for {workflow.resembles}."
        badges.append(html.badge("look-alike", "danger", title=message))
    if workflow.warning:
        badges.append(html.badge("suspicious text", "danger", title=f"It {COMMANDING}: {workflow.warning}"))
    if not workflow.shown_description:
        badges.append(html.badge("needs a description", "warning", title="Agents choose by descriptions."))
    return html.side_by_side(badges)


def _filter_link(explanation: Explanation) -> str:
    rule = explanation.deciding_filter
    if rule is not None:
        return format_html("by filter {}", html.link(rule, "catalogue_workflowfilter_change", rule.pk))
    if explanation.visibility == Visibility.FILTERED:
        return "no filter includes it"
    return ""


def _hint_words(hints: dict[str, bool]) -> list[str]:
    return [words[not hints[name]] for name, words in HINT_WORDS.items() if name in hints]
