"""Requests in words: a list of what was asked, and a page with everything about one."""

import uuid
from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import ChoicesDropdownFilter

from catalogue.admin.base import ButtonsMixin, ReadOnlyMixin
from catalogue.admin.rendering import DASH, ago, duration, shortened
from executions.admin.filters import CreatedFilter
from orchestration.admin.filters import DryRunFilter, ToolFilter
from orchestration.admin.page import describe_asked, describe_request, outcome_badge
from orchestration.admin.trying import TryItMixin
from orchestration.interrupting import end_with_runs
from orchestration.models import WorkflowRequest

if TYPE_CHECKING:
    from django.contrib.admin.views.main import ChangeList
else:
    from unfold.views import ChangeList

LONG_TEXTS = ("http_spec", "arguments", "reason", "formatted_response", "format_instructions", "tool_ids")


class RequestList(ChangeList):
    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Any]:
        return super().get_queryset(request, exclude_parameters).defer(*LONG_TEXTS, "stages", "error")


@admin.register(WorkflowRequest)
class WorkflowRequestAdmin(ReadOnlyMixin, TryItMixin, ButtonsMixin):
    list_display = (
        "asked", "caller_name", "instructions_shown", "tool_shown", "outcome", "failed_at", "took", "tokens",
    )  # fmt: skip
    list_display_links = ("instructions_shown",)
    list_filter = (
        ("status", ChoicesDropdownFilter),
        ("error_stage", ChoicesDropdownFilter),
        ToolFilter,
        DryRunFilter,
        CreatedFilter,
    )
    list_per_page = 50
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    search_fields = ("instructions", "selected_tool", "caller_name", "=caller")
    search_help_text = "Instructions, tool, caller, request id"
    actions_list = ("try_it",)
    change_form_outer_before_template = "orchestration/admin/request.html"

    class Media:
        css: ClassVar[dict[str, tuple[str, ...]]] = {"all": ("orchestration/admin/requests.css",)}
        js = ("orchestration/admin/requests.js", "orchestration/admin/tool_picker.js")

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return RequestList

    def get_queryset(self, request: HttpRequest) -> QuerySet[WorkflowRequest]:
        end_with_runs()
        return super().get_queryset(request)

    def get_fieldsets(self, request: HttpRequest, obj: WorkflowRequest | None = None) -> Any:
        """None: the panel shows the record, and better."""
        return []

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[WorkflowRequest], search_term: str
    ) -> tuple[QuerySet[WorkflowRequest], bool]:
        try:
            return queryset.filter(pk=uuid.UUID(search_term.strip())), False
        except ValueError:
            return super().get_search_results(request, queryset, search_term)

    @admin.display(description="asked", ordering="created_at")
    def asked(self, record: WorkflowRequest) -> str:
        return ago(record.created_at)

    @admin.display(description="instructions")
    def instructions_shown(self, record: WorkflowRequest) -> str:
        return shortened(" ".join(record.instructions.split()))

    @admin.display(description="chosen tool", ordering="selected_tool")
    def tool_shown(self, record: WorkflowRequest) -> str:
        return record.selected_tool or DASH

    @admin.display(description="outcome", ordering="status")
    def outcome(self, record: WorkflowRequest) -> SafeString:
        return outcome_badge(record)

    @admin.display(description="failed at", ordering="error_stage")
    def failed_at(self, record: WorkflowRequest) -> str:
        return record.get_error_stage_display() or DASH

    @admin.display(description="took")
    def took(self, record: WorkflowRequest) -> str:
        return duration(None if record.seconds is None else round(record.seconds * 1000))

    @admin.display(description="tokens")
    def tokens(self, record: WorkflowRequest) -> str:
        spent = record.prompt_tokens + record.completion_tokens
        return f"{spent:,}" if spent else DASH

    def panel(self, request: HttpRequest, obj: WorkflowRequest) -> dict[str, Any]:
        return describe_request(request, obj) | {"asked": describe_asked(obj)}
