from typing import Any

from django import forms
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget

from catalogue.admin import rendering
from catalogue.admin.sources import SourceAdmin
from catalogue.database import run_without_connection
from catalogue.models import Source
from catalogue.sources import webhook_address
from connectors.errors import ConnectorError
from connectors.protocol import ListedRun, RunFilter, RunState
from executions.engine_runs import EngineRun, EngineRunPage, list_engine_runs, present_capabilities
from executions.models import Execution

MAY_LOOK = "executions.view_execution"
BADGES = {
    RunState.RUNNING: "info",
    RunState.COMPLETED: "success",
    RunState.FAILED: "danger",
    RunState.CANCELLED: "",
}
HEADERS = ("Started", "Workflow", "State", "Took", "Execution", "Run")


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
    started_after = forms.DateTimeField(required=False, widget=MomentInput)
    started_before = forms.DateTimeField(required=False, widget=MomentInput)
    query = forms.CharField(
        label="Condition in the engine's own query language",
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
    context = admin.site.each_context(request) | {
        "title": f"{source.name}: runs at the engine",
        "source": source,
        "form": form,
        "problem": problem,
        "runs": None if page is None else rendering.table(HEADERS, map(_row, page.runs)),
        "is_later_page": form.is_bound and bool(form["cursor"].value()),
        "next_page": _address_of_next(request, page),
    }
    return TemplateResponse(request, "executions/admin/engine_runs.html", context)


def _read(source: Source, form: RunFilterForm) -> tuple[EngineRunPage | None, str]:
    try:
        reading = list_engine_runs(source, form.wanted, cursor=form.cleaned_data["cursor"])
        return run_without_connection(reading), ""
    except ConnectorError as error:
        return None, error.message


def _address_of_next(request: HttpRequest, page: EngineRunPage | None) -> str:
    if page is None or not page.next_cursor:
        return ""
    asked = request.GET.copy()
    asked["cursor"] = page.next_cursor
    return f"?{asked.urlencode()}"


def _row(run: EngineRun) -> list[Any]:
    listed, ours, took = run.listed, rendering.DASH, rendering.DASH
    if run.execution is not None:
        ours = rendering.link(run.execution.tool_name, "executions_execution_change", run.execution.pk)
    if listed.started_at is not None and listed.finished_at is not None:
        took = rendering.duration(round((listed.finished_at - listed.started_at).total_seconds() * 1000))
    state = rendering.badge(listed.told_state or listed.state.value, BADGES[listed.state])
    return [
        rendering.ago(listed.started_at),
        rendering.shortened(listed.workflow, 40),
        rendering.side_by_side([state]),
        took,
        ours,
        format_html('<div class="min-w-0">{}{}</div>', rendering.chip(listed.run_id), _details(listed)),
    ]


def _details(run: ListedRun) -> SafeString | str:
    if not run.details:
        return ""
    folded = '<details class="mt-1"><summary class="cursor-pointer text-link">Details</summary>{}</details>'
    return format_html(folded, rendering.pretty_json(run.details))


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
        received = format_html("last delivery {}", rendering.ago(source.webhook_received_at))
    lines: list[Any] = [rendering.chip(webhook_address(source)), received]
    if source.webhook_refused_at is not None:
        refused = rendering.ago(source.webhook_refused_at)
        lines.append(format_html("last refusal {}: {}", refused, source.webhook_refusal))
    return ("Webhook", format_html_join("", "<div>{}</div>", ((line,) for line in lines)))


SourceAdmin.further_facts += [engine_runs_fact, webhook_fact]


def executions_consequence(sources: list[Source]) -> str:
    """Without their workflow, running executions become unconfirmed; the engine goes on with them."""
    theirs = Execution.objects.filter(workflow__source__in=sources).order_by()
    active = theirs.active().count()
    others = theirs.count() - active
    followed = "execution is" if active == 1 else "executions are"
    parts = [
        f"{active:,} {followed} under way and will no longer be followed" if active else "",
        f"{others:,} {'stays' if others == 1 else 'stay'} on record" if others else "",
    ]
    listed = "; ".join(filter(None, parts))
    return f"Executions: {listed}." if listed else ""


SourceAdmin.further_losses.append(executions_consequence)
