"""What ran: a list that never reads payloads, and one page with everything about one execution."""

import uuid
from datetime import timedelta
from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import ChoicesDropdownFilter, DropdownFilter

from catalogue.admin.base import Button, ButtonsMixin, ReadOnlyMixin, button
from catalogue.admin.rendering import (
    DASH,
    ago,
    badge,
    duration,
    exactly,
    link,
    paragraphs,
    pretty_json,
    side_by_side,
    table,
    to_the_millisecond,
)
from catalogue.models import Source
from connectors.background import run_in_background_loop
from executions.callers import Caller
from executions.cancelling import CancelOutcome, cancel_execution
from executions.models import Execution, ExecutionPayload, State

admin.site.index_template = "executions/admin/index.html"
admin.site.index_title = "Overview"

STATE_BADGES = {
    State.PENDING: "",
    State.STARTING: "info",
    State.RUNNING: "info",
    State.COMPLETED: "success",
    State.FAILED: "danger",
    State.CANCELLED: "",
    State.TIMED_OUT: "warning",
    State.UNCONFIRMED: "warning",
}
PAYLOADS = (
    ("input", "Input"),
    ("output", "Output"),
    ("start_answer", "The engine's answer to the start"),
    ("status_answer", "The engine's last status"),
)
SHOWN_EVENTS = 500
AGES = {
    "in the last hour": timedelta(hours=1),
    "in the last 24 hours": timedelta(hours=24),
    "in the last 7 days": timedelta(days=7),
    "in the last 30 days": timedelta(days=30),
}
CANCEL_MESSAGES = {
    CancelOutcome.CANCELLED: messages.success,
    CancelOutcome.REQUESTED: messages.info,
    CancelOutcome.ALREADY_FINISHED: messages.warning,
    CancelOutcome.NOT_SUPPORTED: messages.error,
}


class SourceFilter(DropdownFilter):  # type: ignore[misc]
    """By the name at the time: what ran stays when its source goes."""

    title = "source"
    parameter_name = "source_name"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, name) for name in Source.objects.values_list("name", flat=True)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Execution]) -> QuerySet[Execution]:
        return queryset.filter(source_name=self.value()) if self.value() else queryset


class CreatedFilter(DropdownFilter):  # type: ignore[misc]
    title = "created"
    parameter_name = "created"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, name) for name in AGES]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Execution]) -> QuerySet[Execution]:
        age = AGES.get(self.value() or "")
        return queryset if age is None else queryset.filter(created_at__gte=timezone.now() - age)


def state_badge(state: str) -> SafeString:
    return badge(State(state).label, STATE_BADGES[State(state)])


@admin.register(Execution)
class ExecutionAdmin(ReadOnlyMixin, ButtonsMixin):
    list_display = (
        "tool_name", "source_name", "state_shown", "caller_shown", "door",
        "created", "took", "progress_shown",
    )  # fmt: skip
    list_filter = (
        ("state", ChoicesDropdownFilter),
        SourceFilter,
        ("door", ChoicesDropdownFilter),
        CreatedFilter,
    )
    list_per_page = 50
    # The table is the largest of all: nothing that counts all of its rows more often than needed.
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    search_fields = ("tool_name", "=run_id", "=correlation_id", "caller_name", "=caller")
    search_help_text = "Tool, caller, execution id, run id, correlation id"
    buttons = ("cancel",)
    change_form_outer_before_template = "executions/admin/execution.html"

    def get_fieldsets(self, request: HttpRequest, obj: Execution | None = None) -> Any:
        """None: the panel shows the record, and better."""
        return []

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Execution], search_term: str
    ) -> tuple[QuerySet[Execution], bool]:
        try:
            key = uuid.UUID(search_term.strip())
        except ValueError:
            return super().get_search_results(request, queryset, search_term)
        return queryset.filter(pk=key) | queryset.filter(run_id__iexact=search_term.strip()), False

    @admin.display(description="state", ordering="state")
    def state_shown(self, execution: Execution) -> SafeString:
        return state_badge(execution.state)

    @admin.display(description="caller", ordering="caller_name")
    def caller_shown(self, execution: Execution) -> str:
        return execution.caller_name or execution.caller

    @admin.display(description="created", ordering="created_at")
    def created(self, execution: Execution) -> str:
        return ago(execution.created_at)

    @admin.display(description="took")
    def took(self, execution: Execution) -> str:
        return duration(execution.duration_ms)

    @admin.display(description="progress", ordering="progress")
    def progress_shown(self, execution: Execution) -> str:
        return DASH if execution.progress is None else f"{execution.progress:g} %"

    def get_buttons(self, request: HttpRequest, obj: Execution) -> list[Button]:
        return [] if obj.is_settled else super().get_buttons(request, obj)

    @button("Cancel", icon="cancel", variant="danger", confirm="Cancel this execution?")
    def cancel(self, request: HttpRequest, execution: Execution) -> None:
        caller = Caller(key=f"user:{request.user.pk}", name=request.user.get_username(), sees_everything=True)
        cancellation = run_in_background_loop(cancel_execution(str(execution.pk), caller=caller))
        CANCEL_MESSAGES[cancellation.outcome](request, cancellation.message)

    def panel(self, request: HttpRequest, obj: Execution) -> dict[str, Any]:
        events = obj.events.all()[:SHOWN_EVENTS]
        return {
            "headline": _headline(obj),
            "facts": [*_progress_facts(obj), *_time_facts(obj), *_identity_facts(obj)],
            "events": table(
                ("When", "What", "Details"),
                ([to_the_millisecond(event.at), event.kind, paragraphs(event.message)] for event in events),
            ),
            "payloads": _shown_payloads(obj),
        }


Facts = list[tuple[str, Any]]


def _headline(execution: Execution) -> list[str]:
    kind = badge(execution.get_error_kind_display(), title="kind of error") if execution.error_kind else ""
    return [side_by_side([state_badge(execution.state), kind]), execution.error]


def _progress_facts(execution: Execution) -> Facts:
    progress = (
        f"{execution.progress:g} % {execution.progress_message}" if execution.progress is not None else ""
    )
    return [
        ("Took", duration(execution.duration_ms)),
        ("Progress", progress or execution.progress_message),
    ]


def _time_facts(execution: Execution) -> Facts:
    asked_at = execution.cancel_requested_at
    asked = format_html("{} by {}", exactly(asked_at), execution.cancel_requested_by) if asked_at else ""
    return [
        ("Created", exactly(execution.created_at)),
        ("Taken by the engine", exactly(execution.started_at)),
        ("Finished", exactly(execution.finished_at)),
        ("Given up at", DASH if execution.is_settled else exactly(execution.deadline_at)),
        ("Timeout", f"{execution.timeout_seconds} s"),
        ("Cancelling asked for", asked),
        ("Engine: created", exactly(execution.engine_created_at)),
        ("Engine: started", exactly(execution.engine_started_at)),
        ("Engine: updated", exactly(execution.engine_updated_at)),
        ("Engine: finished", exactly(execution.engine_finished_at)),
        ("Status asked for", f"{execution.polls} times"),
    ]


def _identity_facts(execution: Execution) -> Facts:
    workflow: Any = execution.tool_name
    if execution.workflow_id is not None:
        workflow = link(execution.tool_name, "catalogue_workflow_change", execution.workflow_id)
    return [
        ("Workflow", workflow),
        ("Source", execution.source_name),
        ("Engine's workflow id", execution.upstream_id),
        ("Engine's run id", execution.run_id),
        ("Correlation id", execution.correlation_id),
        ("Caller", f"{execution.caller_name} ({execution.caller}) by {execution.get_door_display()}"),
        ("Execution id", str(execution.pk)),
    ]


def _shown_payloads(execution: Execution) -> list[tuple[str, Any]]:
    """Those that there are; one that was too large to keep says so."""
    payload = ExecutionPayload.objects.filter(pk=execution.pk).first()
    if payload is None:
        return []
    cut = {entry["payload"]: entry["bytes"] for entry in payload.cut}
    shown: list[tuple[str, Any]] = []
    for name, label in PAYLOADS:
        value = getattr(payload, name)
        if name in cut:
            shown.append((label, f"Not kept: its {cut[name]:,} bytes are over the limit."))
        elif value is not None:
            shown.append((label, pretty_json(value)))
    return shown
