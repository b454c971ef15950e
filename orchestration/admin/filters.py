"""By what the list of requests is narrowed."""

from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest
from unfold.contrib.filters.admin import DropdownFilter

from orchestration.models import WorkflowRequest


class ToolFilter(DropdownFilter):  # type: ignore[misc]
    """By what the model chose in the newest requests; the search finds other tools, too."""

    NEWEST = 2_000
    title = "tool"
    parameter_name = "tool"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        newest = WorkflowRequest.objects.order_by("-created_at").values_list("selected_tool", flat=True)
        return [(name, name) for name in sorted({*newest[: self.NEWEST]} - {""})]

    def queryset(
        self, request: HttpRequest, queryset: QuerySet[WorkflowRequest]
    ) -> QuerySet[WorkflowRequest]:
        return queryset.filter(selected_tool=self.value()) if self.value() else queryset


class DryRunFilter(DropdownFilter):  # type: ignore[misc]
    title = "what for"
    parameter_name = "dry_run"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("yes", "dry run"), ("no", "to be run")]

    def queryset(
        self, request: HttpRequest, queryset: QuerySet[WorkflowRequest]
    ) -> QuerySet[WorkflowRequest]:
        if self.value() in ("yes", "no"):
            return queryset.filter(dry_run=self.value() == "yes")
        return queryset
