"""Workflows: find them, enable them, say in one's own words what they do."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import DropdownFilter, RelatedDropdownFilter
from unfold.views import ChangeList
from unfold.widgets import UnfoldAdminTextareaWidget, UnfoldAdminTextInputWidget

from catalogue.admin.base import ButtonsMixin, CatalogueForm
from catalogue.admin.rendering import (
    badge,
    chip,
    exactly,
    link,
    paragraphs,
    pretty_json,
    shortened,
    side_by_side,
)
from catalogue.curation import OVERRIDABLE, disable_workflows, enable_workflows, override_workflow
from catalogue.exposure import Explanation, Visibility, explain_exposure
from catalogue.filters import FilterChain
from catalogue.models import Workflow, WorkflowFilter

VISIBILITY_BADGES = {
    Visibility.EXPOSED: "success",
    Visibility.SOURCE_OFF: "",
    Visibility.MISSING: "danger",
    Visibility.DISABLED: "",
    Visibility.FILTERED: "warning",
}
NO_TAGS = "-"
LARGE_COLUMNS = ("input_schema", "output_schema", "metadata")


class WorkflowChangeList(ChangeList):  # type: ignore[misc]
    """Asks once for the filters, and tells each row on the page what they make of it."""

    def get_queryset(self, request: HttpRequest, *args: Any, **kwargs: Any) -> QuerySet[Workflow]:
        workflows: QuerySet[Workflow] = super().get_queryset(request, *args, **kwargs)
        return workflows.defer(*LARGE_COLUMNS)

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        chain = _present_chain()
        for workflow in self.result_list:
            workflow.explanation = explain_exposure(workflow, chain)


class AvailabilityFilter(DropdownFilter):  # type: ignore[misc]
    """Whether the engine still lists it."""

    title = "presence in the engine's list"
    parameter_name = "available"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("present", "present"), ("missing", "missing")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Workflow]) -> QuerySet[Workflow]:
        if self.value() in ("present", "missing"):
            return queryset.filter(missing_since__isnull=self.value() == "present")
        return queryset


class SchemaFilter(DropdownFilter):  # type: ignore[misc]
    title = "input schema"
    parameter_name = "schema"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("own", "the engine's own"), ("replaced", "replaced, because invalid")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Workflow]) -> QuerySet[Workflow]:
        if self.value() == "own":
            return queryset.filter(schema_problem="")
        return queryset.exclude(schema_problem="") if self.value() == "replaced" else queryset


class CategoryFilter(DropdownFilter):  # type: ignore[misc]
    title = "category"
    parameter_name = "category"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterator[tuple[str, str]]:
        categories = Workflow.objects.order_by("category").values_list("category", flat=True).distinct()
        return ((category, category) for category in categories)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Workflow]) -> QuerySet[Workflow]:
        return queryset.filter(category=self.value()) if self.value() else queryset


class LimitFilter(DropdownFilter):  # type: ignore[misc]
    """Whether a curator bounds how many runs of it there are at a time."""

    title = "concurrent runs"
    parameter_name = "limit"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("own", "limited for the workflow"), ("none", "without a limit of its own")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Workflow]) -> QuerySet[Workflow]:
        if self.value() in ("own", "none"):
            return queryset.filter(max_concurrent__isnull=self.value() == "none")
        return queryset


class TagsField(forms.CharField):
    """`a, b`; empty for the engine's own, a hyphen for none."""

    widget = UnfoldAdminTextInputWidget

    def prepare_value(self, value: Any) -> Any:
        return (", ".join(value) or NO_TAGS) if isinstance(value, list) else value

    def to_python(self, value: Any) -> list[str] | None:  # type: ignore[override]
        tags = [tag.strip() for tag in str(value or "").split(",") if tag.strip()]
        return [] if tags == [NO_TAGS] else tags or None

    def has_changed(self, initial: Any, data: Any) -> bool:
        return bool(initial != self.to_python(data))


if TYPE_CHECKING:
    WorkflowModelForm = CatalogueForm
else:
    WorkflowModelForm = forms.ModelForm


class WorkflowForm(WorkflowModelForm):
    tags_override = TagsField(
        label="Tags",
        required=False,
        help_text="Separated by commas. Empty: the engine's tags; a hyphen: none.",
    )

    class Meta:
        model = Workflow
        fields = (*OVERRIDABLE, "enabled")


@admin.register(Workflow)
class WorkflowAdmin(ButtonsMixin):
    form = WorkflowForm
    list_display = (
        "tool_name", "shown_title", "source", "category", "version", "state", "type_shown",
    )  # fmt: skip
    list_filter = (
        ("source", RelatedDropdownFilter), "enabled", AvailabilityFilter, CategoryFilter, SchemaFilter,
        LimitFilter,
    )  # fmt: skip
    list_select_related = ("source",)
    list_per_page = 50
    search_fields = (
        "name",
        "upstream_id",
        "description",
        "tool_name",
        "title_override",
        "description_override",
    )
    search_help_text = "Names, titles, descriptions, ids"
    actions = ("enable_selected", "disable_selected")
    change_form_outer_before_template = "catalogue/admin/workflow_panel.html"
    change_form_outer_after_template = "catalogue/admin/workflow_schema.html"
    readonly_fields = ("upstream_title", "upstream_description", "upstream_tags")
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
            "Calls",
            {"fields": ("execution_type_override", "inline_wait_seconds", "on_disconnect", "reattach")},
        ),
        ("Limits", {"fields": ("timeout_seconds", "max_concurrent")}),
    )

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[WorkflowChangeList]:
        return WorkflowChangeList

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name == "description_override":
            kwargs["widget"] = UnfoldAdminTextareaWidget(attrs={"rows": 5})
        return super().formfield_for_dbfield(db_field, request, **kwargs)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def save_model(self, request: HttpRequest, obj: Workflow, form: Any, change: bool) -> None:
        if decisions := {name: form.cleaned_data[name] for name in form.changed_data if name in OVERRIDABLE}:
            override_workflow(obj, **decisions)
        if "enabled" in form.changed_data:
            switch = enable_workflows if form.cleaned_data["enabled"] else disable_workflows
            switch(Workflow.objects.filter(pk=obj.pk))

    @admin.action(description="Enable: agents may see and call them", permissions=["change"])
    def enable_selected(self, request: HttpRequest, queryset: QuerySet[Workflow]) -> None:
        messages.success(request, f"Enabled: {enable_workflows(queryset)}.")

    @admin.action(description="Disable", permissions=["change"])
    def disable_selected(self, request: HttpRequest, queryset: QuerySet[Workflow]) -> None:
        messages.success(request, f"Disabled: {disable_workflows(queryset)}.")

    @admin.display(description="title", ordering="name")
    def shown_title(self, workflow: Workflow) -> str:
        return shortened(workflow.title)

    @admin.display(description="state")
    def state(self, workflow: Any) -> SafeString:
        return _state_badges(workflow, workflow.explanation)

    @admin.display(description="type", ordering="execution_type")
    def type_shown(self, workflow: Workflow) -> str:
        return Workflow.ExecutionType(workflow.effective_execution_type).label

    @admin.display(description="engine's name")
    def upstream_title(self, workflow: Workflow) -> str:
        return workflow.name

    @admin.display(description="engine's description")
    def upstream_description(self, workflow: Workflow) -> SafeString:
        return paragraphs(workflow.description)

    @admin.display(description="engine's tags")
    def upstream_tags(self, workflow: Workflow) -> SafeString:
        return side_by_side(map(chip, workflow.tags))

    def panel(self, request: HttpRequest, obj: Workflow) -> dict[str, Any]:
        explanation = explain_exposure(obj, _present_chain())
        executions = link(
            "Executions", "executions_execution_changelist", query=f"?workflow__id__exact={obj.pk}"
        )
        return {
            "headline": [side_by_side([_state_badges(obj, explanation), _told_filter(explanation)])],
            "facts": [
                ("Source", link(obj.source, "catalogue_source_change", obj.source_id)),
                ("Engine's id", obj.upstream_id),
                (
                    "Category, version, type",
                    f"{obj.category}, {obj.version}, {obj.get_execution_type_display()}",
                ),
                ("Author", obj.author),
                ("First seen", exactly(obj.first_seen_at)),
                ("Changed upstream", exactly(obj.changed_at)),
                ("Missing since", exactly(obj.missing_since)),
                ("What ran", executions),
            ],
            "schema_problem": obj.schema_problem,
            "input_schema": pretty_json(obj.input_schema),
            "output_schema": pretty_json(obj.output_schema) if obj.output_schema else "",
            "metadata": pretty_json(obj.metadata) if obj.metadata else "",
        }


def _present_chain() -> FilterChain[WorkflowFilter]:
    return FilterChain(WorkflowFilter.objects.filter(enabled=True))


def _state_badges(workflow: Workflow, explanation: Explanation) -> SafeString:
    badges = [badge(explanation.visibility.value, VISIBILITY_BADGES[explanation.visibility])]
    if workflow.schema_problem:
        badges.append(badge("schema replaced", "warning", title=workflow.schema_problem[:500]))
    return side_by_side(badges)


def _told_filter(explanation: Explanation) -> str:
    """The filter that decides; that none matched may hide a workflow too."""
    rule = explanation.deciding_filter
    if rule is not None:
        return format_html("by filter {}", link(rule, "catalogue_workflowfilter_change", rule.pk))
    if explanation.visibility == Visibility.FILTERED:
        return "no filter includes it"
    return ""
