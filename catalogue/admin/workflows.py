"""Workflows: find them, enable them, say in one's own words what they do."""

import json
from collections.abc import Callable
from typing import Any, ClassVar

from django.contrib import admin, messages
from django.db.models import QuerySet, Value
from django.db.models.functions import Coalesce, NullIf
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import BooleanRadioFilter, RelatedDropdownFilter
from unfold.views import ChangeList
from unfold.widgets import UnfoldAdminTextareaWidget

from catalogue.admin.rendering import (
    badge,
    chip,
    exactly,
    icon_or_address,
    link,
    paragraphs,
    pretty_json,
    shortened,
    side_by_side,
    wrapped,
)
from catalogue.admin.reviews import tell_of_review
from catalogue.admin.tools import ToolPagesMixin, tell_of_declaration
from catalogue.admin.workflow_filters import (
    AvailabilityFilter,
    CacheFilter,
    CategoryFilter,
    DescriptionFilter,
    LimitFilter,
    LookalikeFilter,
    ReviewFilter,
    SchemaFilter,
)
from catalogue.admin.workflow_form import WorkflowForm
from catalogue.curation import (
    OVERRIDABLE,
    clear_hints,
    disable_workflows,
    enable_workflows,
    mark_read_only,
    override_workflow,
)
from catalogue.exposure import Explanation, Visibility, explain_exposure, memberships_of
from catalogue.filters import FilterChain
from catalogue.history import actor_of
from catalogue.models import Workflow, WorkflowFilter
from catalogue.portable_names import limit_for_tools
from catalogue.portable_schemas import find_refusals
from catalogue.querysets import WorkflowQuerySet

VISIBILITY_BADGES = {
    Visibility.EXPOSED: "success",
    Visibility.SOURCE_OFF: "",
    Visibility.MISSING: "danger",
    Visibility.DISABLED: "",
    Visibility.FILTERED: "warning",
}
HINT_WORDS = {
    "readOnlyHint": ("read-only", "changes things"),
    "destructiveHint": ("destructive", "not destructive"),
    "idempotentHint": ("idempotent", "not idempotent"),
    "openWorldHint": ("open world", "closed world"),
}
AREAS = {"description_override": 5, "icon_override": 2}
"""Fields for longer texts, and their height in lines."""

SHOWN_TITLE = Coalesce(NullIf("title_override", Value("")), NullIf("upstream_title", Value("")), "name")
"""What `Workflow.title` says, for the database."""


class WorkflowChangeList(ChangeList):  # type: ignore[misc]
    """Asks once for the filters, and tells each row on the page what they make of it."""

    def get_queryset(self, request: HttpRequest, *args: Any, **kwargs: Any) -> QuerySet[Workflow]:
        workflows: WorkflowQuerySet = super().get_queryset(request, *args, **kwargs)
        return workflows.for_lists()

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        chain = _present_chain()
        for workflow in self.result_list:
            workflow.explanation = explain_exposure(workflow, chain)


@admin.register(Workflow)
class WorkflowAdmin(ToolPagesMixin):
    further_facts: ClassVar[list[Callable[[HttpRequest, Workflow], tuple[str, Any]]]] = [
        tell_of_review,
        tell_of_declaration,
    ]
    """What the rooms above tell of a workflow; they add themselves."""
    form = WorkflowForm
    list_display = (
        "tool", "shown_title", "source", "category", "version", "state", "type_shown",
    )  # fmt: skip
    list_filter = (
        ("source", RelatedDropdownFilter), ("enabled", BooleanRadioFilter), AvailabilityFilter,
        ReviewFilter, CategoryFilter, DescriptionFilter, SchemaFilter, LookalikeFilter, LimitFilter,
        CacheFilter,
        ("offered_as_prompt", BooleanRadioFilter),
    )  # fmt: skip
    list_select_related = ("source",)
    list_per_page = 50
    search_fields = (
        "name",
        "upstream_id",
        "description",
        "tool_name",
        "title_override",
        "upstream_title",
        "description_override",
    )
    search_help_text = "Names, titles, descriptions, ids"
    actions = ("enable_selected", "disable_selected", "mark_selected_read_only", "clear_selected_hints")
    change_form_outer_before_template = "catalogue/admin/workflow_panel.html"
    change_form_outer_after_template = "catalogue/admin/workflow_schema.html"
    readonly_fields = ("upstream_title", "upstream_description", "upstream_tags", "upstream_icons")
    fieldsets = (
        (None, {"fields": ("enabled", "tool_name")}),
        (
            "What agents read: on the left our words, on the right the engine's",
            {
                "fields": (
                    ("title_override", "upstream_title"),
                    ("description_override", "upstream_description"),
                    ("tags_override", "upstream_tags"),
                )
            },
        ),
        (
            "How clients present it",
            {
                "fields": (
                    ("read_only_hint", "destructive_hint"),
                    ("idempotent_hint", "open_world_hint"),
                    ("icon_override", "upstream_icons"),
                    "offered_as_prompt",
                )
            },
        ),
        (
            "Calls",
            {
                "fields": (
                    "execution_type_override",
                    "inline_wait_seconds",
                    "on_disconnect",
                    "reattach",
                    "cache_seconds",
                )
            },
        ),
        ("Limits", {"fields": ("timeout_seconds", "max_concurrent")}),
    )

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[WorkflowChangeList]:
        return WorkflowChangeList

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name in AREAS:
            kwargs["widget"] = UnfoldAdminTextareaWidget(attrs={"rows": AREAS[db_field.name]})
        return super().formfield_for_dbfield(db_field, request, **kwargs)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def save_model(self, request: HttpRequest, obj: Workflow, form: Any, change: bool) -> None:
        decisions = {name: form.cleaned_data[name] for name in form.changed_data if name in OVERRIDABLE}
        if decisions:
            override_workflow(obj, **decisions)
        if "tool_name" in decisions:
            old = form.initial["tool_name"]
            messages.warning(
                request, f"Agents that still call {old} are told to call {obj.tool_name} instead."
            )
        if "enabled" in form.changed_data:
            switch = enable_workflows if form.cleaned_data["enabled"] else disable_workflows
            switch(Workflow.objects.filter(pk=obj.pk))

    @admin.action(description="Enable: agents may see and call them", permissions=["change"])
    def enable_selected(self, request: HttpRequest, queryset: QuerySet[Workflow]) -> None:
        messages.success(request, f"Enabled: {enable_workflows(queryset, by=actor_of(request))}.")

    @admin.action(description="Disable", permissions=["change"])
    def disable_selected(self, request: HttpRequest, queryset: QuerySet[Workflow]) -> None:
        messages.success(request, f"Disabled: {disable_workflows(queryset, by=actor_of(request))}.")

    @admin.action(description="Mark as read-only: clients may call them unasked", permissions=["change"])
    def mark_selected_read_only(self, request: HttpRequest, queryset: QuerySet[Workflow]) -> None:
        messages.success(request, f"Marked as read-only: {mark_read_only(queryset, by=actor_of(request))}.")

    @admin.action(description="Take the engine's hints again", permissions=["change"])
    def clear_selected_hints(self, request: HttpRequest, queryset: QuerySet[Workflow]) -> None:
        cleared = clear_hints(queryset, by=actor_of(request))
        messages.success(request, f"The engine's hints count again: {cleared}.")

    @admin.display(description="tool name", ordering="tool_name")
    def tool(self, workflow: Workflow) -> SafeString:
        return wrapped(workflow.tool_name)

    @admin.display(description="title", ordering=SHOWN_TITLE)
    def shown_title(self, workflow: Workflow) -> SafeString:
        return wrapped(shortened(workflow.title))

    @admin.display(description="state")
    def state(self, workflow: Any) -> SafeString:
        return _state_badges(workflow, workflow.explanation)

    @admin.display(description="type", ordering="execution_type")
    def type_shown(self, workflow: Workflow) -> str:
        return Workflow.ExecutionType(workflow.effective_execution_type).label

    @admin.display(description="engine's description")
    def upstream_description(self, workflow: Workflow) -> SafeString:
        return paragraphs(workflow.description)

    @admin.display(description="engine's tags")
    def upstream_tags(self, workflow: Workflow) -> SafeString:
        return side_by_side(map(chip, workflow.tags))

    @admin.display(description="engine's icons")
    def upstream_icons(self, workflow: Workflow) -> SafeString:
        return side_by_side(icon_or_address(icon["src"]) for icon in workflow.icons)

    def panel(self, request: HttpRequest, obj: Workflow) -> dict[str, Any]:
        explanation = explain_exposure(obj, _present_chain())
        executions = link(
            "Executions", "executions_execution_changelist", query=f"?workflow__id__exact={obj.pk}"
        )
        return {
            "headline": [side_by_side([_state_badges(obj, explanation), _told_filter(explanation)])],
            "facts": [
                ("Source", link(obj.source, "catalogue_source_change", obj.source_id)),
                ("Can be mistaken for", obj.resembles),
                ("Engine's name", obj.name),
                ("Engine's id", obj.upstream_id),
                (
                    "Category, version, type",
                    f"{obj.category}, {obj.version}, {obj.get_execution_type_display()}",
                ),
                ("Author", obj.author),
                ("First seen", exactly(obj.first_seen_at)),
                ("Changed upstream", exactly(obj.changed_at)),
                ("Missing since", exactly(obj.missing_since)),
                ("Toolsets", _told_toolsets(obj)),
                ("Clients are told", side_by_side(map(badge, _told_hints(obj)))),
                ("Icon", side_by_side(icon_or_address(icon["src"]) for icon in obj.shown_icons)),
                ("Some model providers refuse", _told_refusals(obj)),
                ("In a list of tools", f"about {_tokens_as_tool(obj):,} tokens"),
                ("What ran", executions),
                *(tell(request, obj) for tell in self.further_facts),
            ],
            "schema_problem": obj.schema_problem,
            "input_schema": pretty_json(obj.input_schema),
            "output_schema": pretty_json(obj.output_schema) if obj.output_schema else "",
            "metadata": pretty_json(obj.metadata) if obj.metadata else "",
        }


def _told_toolsets(workflow: Workflow) -> SafeString:
    """Those that have it, though they show it only while it is exposed."""
    return format_html_join(
        ", ",
        "{} ({}{})",
        (
            (
                link(membership.toolset, "catalogue_toolset_change", membership.toolset.pk),
                "picked by hand" if membership.picked else "by its rules",
                "" if membership.toolset.enabled else ", switched off",
            )
            for membership in memberships_of(workflow)
        ),
    )


def _present_chain() -> FilterChain[WorkflowFilter]:
    return FilterChain(WorkflowFilter.objects.filter(enabled=True))


def _state_badges(workflow: Workflow, explanation: Explanation) -> SafeString:
    badges = [badge(explanation.visibility.value, VISIBILITY_BADGES[explanation.visibility])]
    if workflow.schema_problem:
        badges.append(badge("schema replaced", "warning", title=workflow.schema_problem[:500]))
    if workflow.resembles:
        told = f"Its name or title can be mistaken for {workflow.resembles}."
        badges.append(badge("look-alike", "danger", title=told))
    if not workflow.shown_description:
        badges.append(badge("needs a description", "warning", title="Agents choose by it."))
    return side_by_side(badges)


def _told_filter(explanation: Explanation) -> str:
    """The filter that decides; that none matched may hide a workflow too."""
    rule = explanation.deciding_filter
    if rule is not None:
        return format_html("by filter {}", link(rule, "catalogue_workflowfilter_change", rule.pk))
    if explanation.visibility == Visibility.FILTERED:
        return "no filter includes it"
    return ""


def _told_hints(workflow: Workflow) -> list[str]:
    hints = workflow.effective_hints
    return [words[not hints[name]] for name, words in HINT_WORDS.items() if name in hints]


def _told_refusals(workflow: Workflow) -> str:
    """Empty where every provider takes its tool."""
    refused = find_refusals(workflow.tool_name, workflow.input_schema, limit=limit_for_tools(None))
    return f"{'; '.join(refused)}. Portable toolsets mend that." if refused else ""


def _tokens_as_tool(workflow: Workflow) -> int:
    """Roughly what its tool costs an agent's context window: four characters are a token."""
    read = [workflow.tool_name, workflow.title, workflow.shown_description, workflow.input_schema]
    return len(json.dumps(read, ensure_ascii=False, separators=(",", ":"))) // 4
