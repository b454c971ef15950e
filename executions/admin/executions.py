"""What ran: a list that never reads payloads, and one page with everything about one execution."""

import uuid
from collections.abc import Callable
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseBase,
    HttpResponseNotAllowed,
    HttpResponseRedirect,
)
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.views.decorators.cache import never_cache
from unfold.contrib.filters.admin import ChoicesDropdownFilter

from catalogue.admin.base import Button, ReadOnlyMixin, button
from catalogue.admin.rendering import DASH, ago, duration, wrapped
from catalogue.database import run_without_connection
from executions.admin.callers import caller_of
from executions.admin.engine_runs import show_engine_runs
from executions.admin.filters import (
    CacheFilter,
    CreatedFilter,
    EndedFilter,
    SourceFilter,
    StateFilter,
    ToolsetFilter,
)
from executions.admin.interactions import InteractionsMixin
from executions.admin.page import describe_page, state_badge
from executions.admin.payload_files import send_payload
from executions.admin.resolving import describe_resolution, resolve_as_said
from executions.admin.running import RunningMixin, run_again
from executions.admin.usage import show_uncalled, show_usage
from executions.cancelling import CancelOutcome, cancel_execution
from executions.dispatch import want_fresh
from executions.models import Execution, State
from executions.reading import UnknownExecution
from executions.resolving import ResolutionRefused, resolve_as_not_started

CANCEL_MESSAGES = {
    CancelOutcome.CANCELLED: messages.success,
    CancelOutcome.REQUESTED: messages.info,
    CancelOutcome.ALREADY_FINISHED: messages.warning,
    CancelOutcome.NOT_SUPPORTED: messages.error,
}


SIGNED_OUT = '<p role="alert" class="mb-6">You are signed out: reload the page to see how it goes on.</p>'
GONE = '<p role="alert" class="mb-6">The record of this execution has been removed.</p>'
POLL_SECONDS = ((60, 1), (600, 3), (86_400, 10))
"""Up to this age in seconds, how often the page asks; of older ones, once a minute."""


def _poll_seconds(execution: Execution) -> int:
    """0 where nothing changes any more."""
    if execution.is_settled:
        return 0
    age = (timezone.now() - execution.created_at).total_seconds()
    return next((seconds for limit, seconds in POLL_SECONDS if age < limit), 60)


def _live_address(execution: Execution) -> str:
    address = reverse("admin:executions_execution_live", args=[execution.pk])
    return f"{address}?{urlencode({'state': _told_apart(execution)})}"


def _told_apart(execution: Execution) -> str:
    """States that have other buttons and forms."""
    return f"{execution.state} {'queued' if execution.is_queued else ''}".strip()


@admin.register(Execution)
class ExecutionAdmin(ReadOnlyMixin, RunningMixin, InteractionsMixin):
    list_display = (
        "tool", "source_name", "state_shown", "caller_shown", "door",
        "created", "took", "progress_shown",
    )  # fmt: skip
    list_filter = (
        StateFilter, SourceFilter, ToolsetFilter, ("door", ChoicesDropdownFilter), CacheFilter, CreatedFilter,
        EndedFilter,
    )  # fmt: skip
    list_per_page = 50
    # The table is the largest of all: nothing that counts all of its rows more often than needed.
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    search_fields = ("tool_name", "=run_id", "=correlation_id", "caller_name", "=caller", "=idempotency_key")
    search_help_text = "Tool, caller, execution id, run id, correlation id, idempotency key"
    buttons = ("cancel",)
    change_form_outer_before_template = "executions/admin/execution.html"

    def get_urls(self) -> list[URLPattern]:
        guarded = self.admin_site.admin_view
        # Not guarded: whoever is signed out is told so, and does not get the page to sign in as a part of it.
        live = path("<uuid:key>/live/", never_cache(self._live), name="executions_execution_live")
        views = {"it_ran": self._it_ran, "it_did_not_run": self._it_did_not_run}
        return [
            live,
            path("at-engine/<int:key>/", guarded(show_engine_runs), name="executions_engine_runs"),
            path("usage/", guarded(show_usage), name="executions_usage"),
            path("usage/uncalled/", guarded(show_uncalled), name="executions_uncalled"),
            path(
                "<uuid:key>/payload/<slug:name>/", guarded(send_payload), name="executions_execution_payload"
            ),
            *(
                path(f"<uuid:key>/{name}/", guarded(view), name=f"executions_execution_{name}")
                for name, view in views.items()
            ),
            *super().get_urls(),
        ]

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
        same = search_term.strip()
        named = queryset.filter(run_id__iexact=same) | queryset.filter(idempotency_key__iexact=same)
        return queryset.filter(pk=key) | named, False

    @admin.display(description="tool name", ordering="tool_name")
    def tool(self, execution: Execution) -> SafeString:
        return wrapped(execution.tool_name)

    @admin.display(description="state", ordering="state")
    def state_shown(self, execution: Execution) -> SafeString:
        return state_badge(execution)

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
        return DASH if execution.told_progress is None else f"{execution.told_progress:g} %"

    def get_buttons(self, request: HttpRequest, obj: Execution) -> list[Button]:
        return [] if obj.is_settled else super().get_buttons(request, obj)

    @button("Cancel", icon="cancel", variant="danger", confirm="Cancel this execution?")
    def cancel(self, request: HttpRequest, execution: Execution) -> None:
        cancellation = run_without_connection(cancel_execution(str(execution.pk), caller=caller_of(request)))
        CANCEL_MESSAGES[cancellation.outcome](request, cancellation.message)

    def panel(self, request: HttpRequest, obj: Execution) -> dict[str, Any]:
        resolvable = obj.state == State.UNCONFIRMED and self.may_press_buttons(request)
        return describe_page(request, obj) | {
            "resolution": describe_resolution(obj) if resolvable else None,
            "interactions": self.shown_interactions(request, obj),
            "links": run_again(request, obj),
            "poll_seconds": _poll_seconds(obj),
            "live_address": _live_address(obj),
        }

    def _live(self, request: HttpRequest, key: uuid.UUID) -> HttpResponseBase:
        """What has changed since the page was shown or last asked."""
        if not (self.admin_site.has_permission(request) and self.has_view_permission(request)):
            return HttpResponse(SIGNED_OUT)
        execution = Execution.objects.select_related("workflow__source").filter(pk=key).first()
        if execution is None:
            return HttpResponse(GONE)
        want_fresh(execution)
        context = self.panel(request, execution) | {
            "original": execution,
            "buttons": self.get_buttons(request, execution),
            "is_update": True,
            "is_another_state": request.GET.get("state") != _told_apart(execution),
        }
        return TemplateResponse(request, "executions/admin/live.html", context)

    # Resolving what is unconfirmed

    def _it_ran(self, request: HttpRequest, key: uuid.UUID) -> HttpResponseBase:
        return self._resolve(request, key, lambda: resolve_as_said(request, str(key)))

    def _it_did_not_run(self, request: HttpRequest, key: uuid.UUID) -> HttpResponseBase:
        def resolve() -> tuple[Execution, str]:
            resolved = resolve_as_not_started(str(key), caller=caller_of(request))
            return resolved, "Resolved: the engine did not start it."

        return self._resolve(request, key, resolve)

    def _resolve(
        self, request: HttpRequest, key: uuid.UUID, resolve: Callable[[], tuple[Execution, str]]
    ) -> HttpResponseBase:
        if not self.may_press_buttons(request):
            raise PermissionDenied
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        try:
            execution, done = resolve()
        except UnknownExecution as error:
            raise Http404(str(error)) from None
        except ResolutionRefused as error:
            messages.error(request, str(error))
        else:
            self.log_change(request, execution, done)
            messages.success(request, done)
        return HttpResponseRedirect(reverse("admin:executions_execution_change", args=[key]))
