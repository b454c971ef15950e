"""The ordered filters, and what they do to the workflows at hand."""

from typing import Any

from django.contrib import admin
from django.db.models import Max, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString
from unfold.widgets import UnfoldAdminIntegerFieldWidget

from catalogue.admin.base import ButtonsMixin
from catalogue.admin.rendering import badge, chip, side_by_side
from catalogue.exposure import FilterPreview, effect_of_filter, preview_filters
from catalogue.models import WorkflowFilter

SHOWN_NAMES = 20
HELP = {
    "subject": "What the pattern is matched with. The name is the engine's, as the workflow's page tells it, "
    "and not the tool's. Of tags, one that matches is enough.",
    "syntax": "A glob has to match the whole; a regular expression may match anywhere in it.",
    "pattern": "Upper and lower case count.",
}
"""What curators have to know of a filter's fields to write one that hits."""


@admin.register(WorkflowFilter)
class WorkflowFilterAdmin(ButtonsMixin):
    list_display = ("rule", "position", "action", "subject", "syntax", "pattern", "enabled", "note")
    list_display_links = ("rule",)
    list_editable = ("position", "enabled")
    ordering = ("position", "pk")
    list_before_template = "catalogue/admin/filter_preview.html"
    change_form_outer_after_template = "catalogue/admin/filter_effect.html"
    fieldsets = (
        (None, {"fields": ("action", "subject", "syntax", "pattern", "position", "enabled", "note")}),
    )

    @admin.display(description="rule")
    def rule(self, rule: WorkflowFilter) -> str:
        if not (problem := rule.pattern_problem):
            return str(rule)
        return side_by_side([str(rule), badge("unusable: hides what reaches it", "danger", title=problem)])

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[WorkflowFilter]) -> None:
        for rule in queryset:
            rule.delete()

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name == "position":
            kwargs["widget"] = UnfoldAdminIntegerFieldWidget(attrs={"style": "max-width: 6rem"})
        if db_field.name in HELP:
            kwargs["help_text"] = HELP[db_field.name]
        return super().formfield_for_dbfield(db_field, request, **kwargs)

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        last = WorkflowFilter.objects.aggregate(last=Max("position"))["last"]
        return {"position": (last or 0) + 10} | super().get_changeform_initial_data(request)

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        (preview,) = preview_filters(WorkflowFilter.objects.all())
        groups = _described(preview, shown="let through", hidden="hidden")
        return super().changelist_view(request, (extra_context or {}) | {"preview": groups})

    def panel(self, request: HttpRequest, obj: WorkflowFilter) -> dict[str, Any]:
        effect = effect_of_filter(obj)
        groups = _described(effect, shown="let through because of it", hidden="hidden because of it")
        return {"effect": groups}


def _described(
    preview: FilterPreview, *, shown: str, hidden: str
) -> list[tuple[str, int, list[SafeString], int]]:
    """Heading, number, the first names, how many more there are."""
    return [
        (heading, len(names), [chip(name) for name in names[:SHOWN_NAMES]], max(0, len(names) - SHOWN_NAMES))
        for heading, names in ((shown, preview.shown), (hidden, preview.hidden))
    ]
