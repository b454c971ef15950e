"""The admin's list of executions, which reads no payloads, and the page of one execution."""

import uuid
from collections.abc import Sequence
from functools import partial
from typing import Any

from django import forms
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
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.views.decorators.cache import never_cache
from unfold.contrib.filters.admin import ChoicesDropdownFilter
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextareaWidget, UnfoldAdminTextInputWidget

from catalogue.actions.sources import webhook_address
from catalogue.admin.base import Button, ButtonsMixin, PanelOnlyMixin, TableMixin, button, column
from catalogue.admin.form_fields import MONOSPACE
from catalogue.admin.rendering import (
    DASH,
    ago,
    badge,
    chip,
    duration,
    link,
    pretty_json,
    shortened,
    side_by_side,
    table,
    wrapped,
)
from catalogue.database import run_without_connection
from catalogue.descriptions import DeclaredInteraction, InteractionKind, interactions_of
from catalogue.long_lists import SEARCHED
from catalogue.models import Source
from catalogue.served_schemas import summarise_inputs
from connectors.errors import ConnectorError
from connectors.formats.json import UnreadableJSON, parse_json
from connectors.protocol import ListedRun, RunFilter, RunState
from executions import engine_runs
from executions.admin import page
from executions.admin.page import describe_page, send_payload, state_badge
from executions.admin.running import RunningMixin, run_again
from executions.admin.usage import show_uncalled, show_usage
from executions.engine_runs import EngineRun, EngineRunPage, list_engine_runs, present_capabilities
from executions.interacting import (
    CancelOutcome,
    InteractionRefused,
    cancel_execution,
    query_execution,
    signal_execution,
    why_not_now,
)
from executions.models import Execution, State
from executions.models.execution import TEXTS
from executions.reading import UnknownExecution
from executions.wakeups import request_poll_if_stale

LABELS = {InteractionKind.QUERY: "Query", InteractionKind.SIGNAL: "Send"}
MAY_LOOK = "executions.view_execution"
BADGES = {
    RunState.RUNNING: "info",
    RunState.COMPLETED: "success",
    RunState.FAILED: "danger",
    RunState.CANCELLED: "",
}
HEADERS = ("Started", "Workflow", "State", "Took", "Execution", "Run")


class InteractionForm(forms.Form):
    name = forms.CharField(widget=forms.HiddenInput)
    arguments = forms.JSONField(
        required=False,
        initial=dict,
        error_messages={"invalid": "This is not valid JSON."},
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 2, **MONOSPACE}),
    )

    def clean_arguments(self) -> dict[str, Any]:
        arguments = self.cleaned_data["arguments"]
        if arguments is not None and not isinstance(arguments, dict):
            raise forms.ValidationError('Enter a JSON object, such as {"text": "Hello"}.')
        return arguments or {}


class InteractionsMixin(ButtonsMixin):
    def get_urls(self) -> list[URLPattern]:
        return [
            path(
                f"<uuid:key>/{kind}/",
                self.admin_site.admin_view(partial(self._talk, kind=kind)),
                name=f"executions_execution_{kind}",
            )
            for kind in InteractionKind
        ] + super().get_urls()

    def shown_interactions(self, request: HttpRequest, execution: Execution) -> list[dict[str, Any]]:
        if execution.workflow is None:
            return []
        return [
            _shown(one, InteractionForm(initial={"name": one.name}, auto_id=f"{one.kind}-{number}-%s"))
            for number, one in enumerate(interactions_of(execution.workflow))
            if self._may_talk(request, one.kind) and not why_not_now(execution, one.kind)
        ]

    def _may_talk(self, request: HttpRequest, kind: InteractionKind) -> bool:
        if kind == InteractionKind.SIGNAL:
            return self.may_press_buttons(request)
        return self.has_view_permission(request)

    def _talk(self, request: HttpRequest, key: uuid.UUID, kind: InteractionKind) -> HttpResponseBase:
        if not self._may_talk(request, kind):
            raise PermissionDenied
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        execution = Execution.objects.select_related("workflow").filter(pk=key).first()
        if execution is None:
            raise Http404
        form = InteractionForm(request.POST)
        if not form.is_valid():
            return self._answer_page(request, execution, kind, form)
        try:
            return self._carry_out(request, execution, kind, form)
        except UnknownExecution as error:
            raise Http404(str(error)) from None
        except InteractionRefused as error:
            form.add_error(None, str(error))
            return self._answer_page(request, execution, kind, form)

    def _carry_out(
        self, request: HttpRequest, execution: Execution, kind: InteractionKind, form: InteractionForm
    ) -> HttpResponseBase:
        name, arguments = form.cleaned_data["name"], form.cleaned_data["arguments"]
        caller = page.caller_of(request)
        if kind == InteractionKind.QUERY:
            asked = query_execution(str(execution.pk), name, arguments, caller=caller)
            answer = pretty_json(run_without_connection(asked).value)
            return self._answer_page(request, execution, kind, form, answer=answer)
        run_without_connection(signal_execution(str(execution.pk), name, arguments, caller=caller))
        self.log_change(request, execution, f"Sent the signal “{name}”.")
        messages.success(request, f"The signal {name} was sent to the run.")
        return HttpResponseRedirect(reverse("admin:executions_execution_change", args=[execution.pk]))

    def _answer_page(
        self,
        request: HttpRequest,
        execution: Execution,
        kind: InteractionKind,
        form: InteractionForm,
        answer: str = "",
    ) -> HttpResponseBase:
        name = form.cleaned_data.get("name", "")
        declared = interactions_of(execution.workflow, kind) if execution.workflow else []
        asked = next((one for one in declared if one.name == name), None)
        context = self.admin_site.each_context(request) | {
            "title": f"{execution.tool_name}: {LABELS[kind].lower()} {name}",
            "opts": self.opts,
            "execution": execution,
            "answer": answer,
            "problems": [problem for problems in form.errors.values() for problem in problems],
            "interactions": [] if asked is None else [_shown(asked, form)],
        }
        return TemplateResponse(request, "executions/admin/answer.html", context)


def _shown(one: DeclaredInteraction, form: InteractionForm) -> dict[str, Any]:
    is_signal = one.kind == InteractionKind.SIGNAL
    return {
        "kind": one.kind.value,
        "name": one.name,
        "description": one.description,
        "inputs": summarise_inputs(one.schema) if one.schema.get("properties") else "",
        "takes_arguments": bool(one.schema.get("properties"))
        or one.schema.get("additionalProperties") is not False,
        "is_folded": not one.schema.get("properties") and not form.is_bound,
        "form": form,
        "label": LABELS[one.kind],
        "icon": "campaign" if is_signal else "contact_support",
        "question": f"Send the signal {one.name} to this run?" if is_signal else "",
    }


class RunIdForm(forms.Form):
    run_id = forms.CharField(
        label="Run id at the engine",
        max_length=255,
        widget=UnfoldAdminTextInputWidget(attrs={"autocomplete": "off"}),
    )


class OutputForm(forms.Form):
    output = forms.CharField(
        label="Output as JSON; leave empty if it is not known",
        required=False,
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 2, **MONOSPACE}),
    )


def describe_resolution(execution: Execution) -> dict[str, Any]:
    # Loads all rows first: the connectors' loop cannot query.
    at_hand = Execution.objects.select_related("workflow__source").get(pk=execution.pk)
    try:
        traces = run_without_connection(engine_runs.find_traces(at_hand))
    except engine_runs.EngineSilent:
        # The source's settings are unusable: naming a run then shows why it cannot be looked up.
        traces = engine_runs.StartEvidence(run_may_be_named=True, run_may_be_missing=False, key="")
    return {
        "key": traces.key,
        "run_id_form": RunIdForm() if traces.run_may_be_named else None,
        "output_form": OutputForm() if traces.run_may_be_missing else None,
    }


def resolve_as_said(request: HttpRequest, execution_id: str, *, ran: bool) -> tuple[Execution, str]:
    """Returns the execution and a message. Raises UnknownExecution or ResolutionRefused."""
    caller, run_id = page.caller_of(request), request.POST.get("run_id", "").strip()
    if not ran:
        resolved = engine_runs.resolve_as_not_started(execution_id, caller=caller)
        return resolved, "Resolved: the engine did not start it."
    if run_id or "output" not in request.POST:
        started = engine_runs.resolve_as_started(execution_id, run_id, caller=caller)
        return run_without_connection(started), f"Resolved: the engine runs it as {run_id}."
    written = request.POST["output"]
    try:
        output = parse_json(written.encode(errors="replace"), given=True) if written.strip() else None
    except UnreadableJSON as error:
        why = f"The output is not valid JSON. Nothing was changed. {error}"
        raise engine_runs.ResolutionRefused(why) from None
    resolving_it = engine_runs.resolve_as_ran(execution_id, output, caller=caller)
    known = "its output is not known" if output is None else "with the output that you gave"
    return run_without_connection(resolving_it), f"Resolved: it ran, {known}."


CANCEL_MESSAGES = {
    CancelOutcome.CANCELLED: messages.success,
    CancelOutcome.REQUESTED: messages.info,
    CancelOutcome.ALREADY_FINISHED: messages.warning,
    CancelOutcome.NOT_SUPPORTED: messages.error,
    CancelOutcome.REFUSED: messages.error,
}
SIGNED_OUT = '<p role="alert" class="mb-6">You are signed out. Reload the page to see the latest state.</p>'
GONE = '<p role="alert" class="mb-6">The record of this execution has been removed.</p>'
POLL_SECONDS = ((60, 1), (600, 3), (86_400, 10))  # Up to this age, every so many seconds


def _poll_seconds(execution: Execution) -> int:
    """0: not at all."""
    if execution.is_settled:
        return 0
    age = (timezone.now() - execution.created_at).total_seconds()
    return next((seconds for limit, seconds in POLL_SECONDS if age < limit), 60)


def _page_state(execution: Execution) -> str:
    return f"{execution.state} {'queued' if execution.is_queued else ''}".strip()


@admin.register(Execution)
class ExecutionAdmin(PanelOnlyMixin, TableMixin, RunningMixin, InteractionsMixin):
    list_display = (
        "tool", "source_name", "state_shown", "caller_shown", "door",
        "created", "took", "progress_shown",
    )  # fmt: skip
    list_filter = (
        page.StateFilter, page.SourceFilter, page.ToolsetFilter, ("door", ChoicesDropdownFilter),
        page.CacheFilter, page.CreatedFilter, page.EndedFilter,
    )  # fmt: skip
    list_per_page = 50
    newest_by = "created_at"
    # Also behind a chosen column, as the indexes have it.
    ordering = ("-created_at", "-id")
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    search_fields = TEXTS
    search_help_text = (
        f"Searches the newest {SEARCHED:,} by tool, caller, error and key; all by complete id or tool name"
    )
    buttons = ("cancel",)
    change_form_outer_before_template = "executions/admin/execution.html"

    def get_urls(self) -> list[URLPattern]:
        guarded = self.admin_site.admin_view
        # Not guarded: a signed-out person gets a message instead of the login page as a fragment.
        live = path("<uuid:key>/live/", never_cache(self._live), name="executions_execution_live")
        return [
            live,
            path("at-engine/<int:key>/", guarded(show_engine_runs), name="executions_engine_runs"),
            path("usage/", guarded(show_usage), name="executions_usage"),
            path("usage/uncalled/", guarded(show_uncalled), name="executions_uncalled"),
            path(
                "<uuid:key>/payload/<slug:name>/", guarded(send_payload), name="executions_execution_payload"
            ),
            *(
                path(
                    f"<uuid:key>/{name}/",
                    guarded(partial(self._resolve, ran=ran)),
                    name=f"executions_execution_{name}",
                )
                for name, ran in (("it_ran", True), ("it_did_not_run", False))
            ),
            *super().get_urls(),
        ]

    def search_rows(self, rows: QuerySet[Any], words: Sequence[str]) -> QuerySet[Any]:
        return rows.matching(*words)  # type: ignore[attr-defined,no-any-return]

    tool = column("tool name", "tool_name", wrapped)
    created = column("created", "created_at")
    took = column("took", "duration_ms", duration, sorts=False)

    @admin.display(description="state", ordering="state")
    def state_shown(self, execution: Execution) -> SafeString:
        return state_badge(execution)

    @admin.display(description="caller")
    def caller_shown(self, execution: Execution) -> str:
        return execution.caller_name or execution.caller

    @admin.display(description="progress")
    def progress_shown(self, execution: Execution) -> str:
        return DASH if execution.progress_percent is None else f"{execution.progress_percent:g} %"

    def get_buttons(self, request: HttpRequest, obj: Execution) -> list[Button]:
        return [] if obj.is_settled else super().get_buttons(request, obj)

    @button("Cancel", icon="cancel", variant="danger", confirm="Cancel this execution?")
    def cancel(self, request: HttpRequest, execution: Execution) -> None:
        cancelling = cancel_execution(str(execution.pk), caller=page.caller_of(request))
        cancellation = run_without_connection(cancelling)
        CANCEL_MESSAGES[cancellation.outcome](request, cancellation.message)

    def panel(self, request: HttpRequest, obj: Execution) -> dict[str, Any]:
        live = reverse("admin:executions_execution_live", args=[obj.pk])
        resolvable = obj.state == State.UNCONFIRMED and self.may_press_buttons(request)
        return describe_page(request, obj) | {
            "resolution": describe_resolution(obj) if resolvable else None,
            "interactions": self.shown_interactions(request, obj),
            "links": run_again(request, obj),
            "poll_seconds": _poll_seconds(obj),
            "live_address": f"{live}?{urlencode({'state': _page_state(obj)})}",
        }

    def _live(self, request: HttpRequest, key: uuid.UUID) -> HttpResponseBase:
        if not (self.admin_site.has_permission(request) and self.has_view_permission(request)):
            return HttpResponse(SIGNED_OUT)
        execution = Execution.objects.select_related("workflow__source").filter(pk=key).first()
        if execution is None:
            return HttpResponse(GONE)
        request_poll_if_stale(execution)
        context = self.panel(request, execution) | {
            "original": execution,
            "buttons": self.get_buttons(request, execution),
            "is_update": True,
            "is_another_state": request.GET.get("state") != _page_state(execution),
        }
        return TemplateResponse(request, "executions/admin/live.html", context)

    def _resolve(self, request: HttpRequest, key: uuid.UUID, ran: bool) -> HttpResponseBase:
        if not self.may_press_buttons(request):
            raise PermissionDenied
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        try:
            execution, done = resolve_as_said(request, str(key), ran=ran)
        except UnknownExecution as error:
            raise Http404(str(error)) from None
        except engine_runs.ResolutionRefused as error:
            messages.error(request, str(error))
        else:
            self.log_change(request, execution, done)
            messages.success(request, done)
        return HttpResponseRedirect(reverse("admin:executions_execution_change", args=[key]))


class MomentInput(UnfoldAdminTextInputWidget):  # type: ignore[misc]
    input_type = "datetime-local"


class RunFilterForm(forms.Form):
    workflow = forms.CharField(required=False, max_length=255, widget=UnfoldAdminTextInputWidget)
    state = forms.ChoiceField(
        required=False,
        choices=[("", "any"), *((state.value, state.value) for state in RunState)],
        widget=UnfoldAdminSelectWidget,
    )
    run = forms.CharField(
        label="Run id begins with", required=False, max_length=255, widget=UnfoldAdminTextInputWidget
    )
    started_after = forms.DateTimeField(label="Started after, UTC", required=False, widget=MomentInput)
    started_before = forms.DateTimeField(label="Started before, UTC", required=False, widget=MomentInput)
    query = forms.CharField(
        label="Filter in the engine's query language",
        required=False,
        max_length=2_000,
        widget=UnfoldAdminTextInputWidget(attrs={"spellcheck": "false"}),
    )
    cursor = forms.CharField(required=False, max_length=4_000, widget=forms.HiddenInput)

    @property
    def wanted(self) -> RunFilter:
        asked = self.cleaned_data
        return RunFilter(
            workflow=asked["workflow"],
            run=asked["run"],
            states=frozenset([RunState(asked["state"])] if asked["state"] else []),
            started_after=asked["started_after"],
            started_before=asked["started_before"],
            engine_query=asked["query"],
        )


def show_engine_runs(request: HttpRequest, key: int) -> HttpResponse:
    if not request.user.has_perm(MAY_LOOK):
        raise PermissionDenied
    source = get_object_or_404(Source, pk=key)
    form = RunFilterForm(request.GET)
    page, problem = _read(source, form) if form.is_valid() else (None, "")
    asked = request.GET.copy()
    asked["cursor"] = "" if page is None else page.next_cursor
    context = admin.site.each_context(request) | {
        "title": f"Runs at the engine: {source.name}",
        "source": source,
        "form": form,
        "problem": problem,
        "runs": None if page is None else table(HEADERS, map(_row, page.runs)),
        "is_later_page": form.is_bound and bool(form["cursor"].value()),
        "next_page": f"?{asked.urlencode()}" if asked["cursor"] else "",
    }
    return TemplateResponse(request, "executions/admin/engine_runs.html", context)


def _read(source: Source, form: RunFilterForm) -> tuple[EngineRunPage | None, str]:
    try:
        reading = list_engine_runs(source, form.wanted, cursor=form.cleaned_data["cursor"])
        return run_without_connection(reading), ""
    except ConnectorError as error:
        return None, error.message


def _row(run: EngineRun) -> list[Any]:
    listed, ours, took = run.listed, DASH, DASH
    if run.execution is not None:
        ours = link(run.execution.tool_name, "executions_execution_change", run.execution.pk)
    if listed.started_at is not None and listed.finished_at is not None:
        took = duration(round((listed.finished_at - listed.started_at).total_seconds() * 1000))
    state = badge(listed.told_state or listed.state.value, BADGES[listed.state])
    return [
        ago(listed.started_at),
        shortened(listed.workflow, 40),
        side_by_side([state]),
        took,
        ours,
        format_html('<div class="min-w-0">{}{}</div>', chip(listed.run_id), _details(listed)),
    ]


def _details(run: ListedRun) -> SafeString | str:
    if not run.details:
        return ""
    folded = '<details class="mt-1"><summary class="cursor-pointer text-link">Details</summary>{}</details>'
    return format_html(folded, pretty_json(run.details))


def engine_runs_fact(request: HttpRequest, source: Source) -> tuple[str, Any]:
    if not (request.user.has_perm(MAY_LOOK) and present_capabilities(source).can_list_runs):
        return ("Runs at the engine", "")
    address = reverse("admin:executions_engine_runs", args=[source.pk])
    return ("Runs at the engine", format_html('<a class="text-link" href="{}">All runs</a>', address))


def webhook_fact(request: HttpRequest, source: Source) -> tuple[str, Any]:
    if not present_capabilities(source).reports_ends:
        return ("Webhook", "")
    received = "nothing delivered yet"
    if source.webhook_received_at is not None:
        received = format_html("last delivery {}", ago(source.webhook_received_at))
    lines: list[Any] = [chip(webhook_address(source)), received]
    if source.webhook_refused_at is not None:
        refused = ago(source.webhook_refused_at)
        lines.append(format_html("last refusal {}: {}", refused, source.webhook_refusal))
    return ("Webhook", format_html_join("", "<div>{}</div>", ((line,) for line in lines)))


def executions_consequence(sources: list[Source]) -> str:
    """Counts those that lose their workflow. Running ones become unconfirmed; they continue at the engine."""
    theirs = Execution.objects.filter(workflow__source__in=sources).order_by()
    active = theirs.active().count()
    others = theirs.count() - active
    followed = "execution is" if active == 1 else "executions are"
    parts = [
        f"{active:,} {followed} running and will no longer be followed" if active else "",
        f"{others:,} {'remains' if others == 1 else 'remain'} on record" if others else "",
    ]
    listed = "; ".join(filter(None, parts))
    return f"Executions: {listed}." if listed else ""
