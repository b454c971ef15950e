"""The admin of natural-language requests: the list and the page of each."""

import uuid
from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib import admin
from django.db.models import Count, QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import ChoicesDropdownFilter, DropdownFilter

from catalogue.admin.base import ButtonsMixin, ReadOnlyMixin
from catalogue.admin.rendering import DASH, ago, duration, shortened
from executions.admin.filters import CreatedFilter
from executions.dashboard import WINDOW, Card, address, further_cards
from orchestration.admin.page import STATUS_BADGES, describe_input, describe_request, outcome_badge
from orchestration.admin.try_it import TryItMixin
from orchestration.models import WorkflowRequest
from orchestration.records import settle_with_runs

if TYPE_CHECKING:
    from django.contrib.admin.views.main import ChangeList
else:
    from unfold.views import ChangeList


LONG_TEXTS = ("http_spec", "arguments", "reason", "formatted_response", "format_instructions", "tool_ids")


class ToolFilter(DropdownFilter):  # type: ignore[misc]
    """The tool that the model chose in one of the newest requests; the search finds others."""

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
        settle_with_runs()
        return super().get_queryset(request)

    def get_fieldsets(self, request: HttpRequest, obj: WorkflowRequest | None = None) -> Any:
        """None: the panel shows the record."""
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
        return describe_request(request, obj) | {"asked": describe_input(obj)}


REQUESTS = "admin:orchestration_workflowrequest_changelist"
LAST_DAY = {"created": "in the last 24 hours"}


def _requests() -> Card:
    recent = WorkflowRequest.objects.filter(created_at__gte=timezone.now() - WINDOW)
    counts = dict(recent.values_list("status").annotate(Count("pk")).order_by())
    return Card(
        title="Natural-language requests in the last 24 hours",
        number=sum(counts.values()),
        url=address(REQUESTS, **LAST_DAY),
        badges=[
            (
                f"{counts[status]} {status.label}",
                kind,
                address(REQUESTS, **LAST_DAY, status__exact=status.value),
            )
            for status, kind in STATUS_BADGES.items()
            if status in counts
        ],
    )


further_cards["orchestration.view_workflowrequest"] = (_requests,)
