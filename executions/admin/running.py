"""Running a workflow by hand, from its page or again from the page of one of its executions."""

import uuid
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse

from catalogue.admin.base import ButtonsMixin, Link
from catalogue.admin.rendering import DASH, ago, duration, link, link_if_allowed, side_by_side, table
from catalogue.admin.workflows import WorkflowAdmin
from catalogue.argument_overrides import visible_arguments
from catalogue.models import Workflow
from executions.admin.callers import caller_of
from executions.admin.page import state_badge
from executions.admin.run_form import RunForm, initial_values
from executions.creating import StartRequest
from executions.dispatch import ask_for_a_poll
from executions.models import Execution, ExecutionPayload
from executions.refusals import IdempotencyConflict, InvalidArguments, StartRefused
from executions.starting import create_execution

MAY_RUN = "executions.add_execution"
MAY_RUN_HIDDEN = "catalogue.change_workflow"
RUN = "admin:executions_run"
SHOWN_RUNS = 10


class RunningMixin(ButtonsMixin):
    """The page, for the admin of executions."""

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self._run)
        return [path("run/<int:key>/", view, name="executions_run"), *super().get_urls()]

    def _run(self, request: HttpRequest, key: int) -> HttpResponse:
        if not request.user.has_perm(MAY_RUN) or not _may_see(request):
            raise PermissionDenied
        workflow = get_object_or_404(Workflow.objects.select_related("source"), pk=key)
        if request.method != "POST":
            return self._show(request, workflow, _blank_form(request, workflow))
        form = RunForm(workflow, request.POST)
        if (mode := request.POST.get("to")) in ("form", "json"):
            return self._show(request, workflow, _in_other_mode(workflow, form, mode))
        if form.is_valid():
            form.demand_certainty()
        if form.is_valid() and (execution := _start(request, workflow, form)) is not None:
            return self._lead_to(request, workflow, execution)
        return self._show(request, workflow, form)

    def _show(self, request: HttpRequest, workflow: Workflow, form: RunForm) -> HttpResponse:
        mode = str(form["mode"].value())
        context = self.admin_site.each_context(request) | {
            "title": f"Run {workflow.tool_name}",
            "workflow": workflow,
            "form": form,
            "is_json": mode == "json",
            "page": link_if_allowed(request, workflow.tool_name, "catalogue_workflow_change", workflow.pk),
        }
        return TemplateResponse(request, "executions/admin/run.html", context)

    def _lead_to(self, request: HttpRequest, workflow: Workflow, execution: Execution) -> HttpResponse:
        if self.has_view_permission(request):
            return HttpResponseRedirect(reverse("admin:executions_execution_change", args=[execution.pk]))
        self.message_user(request, f"Started as execution {execution.pk}.")
        return HttpResponseRedirect(reverse("admin:catalogue_workflow_change", args=[workflow.pk]))


def _may_see(request: HttpRequest) -> bool:
    return any(request.user.has_perm(f"catalogue.{verb}_workflow") for verb in ("view", "change"))


def _blank_form(request: HttpRequest, workflow: Workflow) -> RunForm:
    """With the arguments of an execution that is to run again."""
    arguments = _arguments_of(request, workflow)
    return RunForm(workflow, initial=initial_values(workflow, arguments) | {"key": uuid.uuid4()})


def _arguments_of(request: HttpRequest, workflow: Workflow) -> dict[str, Any]:
    if not request.GET.get("again"):
        return {}
    if not request.user.has_perm("executions.view_execution"):
        raise PermissionDenied
    try:
        key = uuid.UUID(request.GET["again"])
    except ValueError:
        raise Http404 from None
    payload = ExecutionPayload.objects.filter(pk=key, execution__workflow=workflow).first()
    if payload is None or not isinstance(payload.input, dict):
        messages.warning(request, "The arguments of that run are not kept any more.")
        return {}
    return visible_arguments(workflow.argument_overrides, payload.input)


def _in_other_mode(workflow: Workflow, form: RunForm, mode: str) -> RunForm:
    """With what was filled in so far; the same form where that cannot be read or has no field."""
    if not form.is_valid():
        return form
    initial = initial_values(workflow, form.arguments)
    if mode == "form" and initial["mode"] != "form":
        unknown = ", ".join(form.arguments.keys() - set(form.names))
        form.add_error("json", f"The form has no field for {unknown or 'any argument'}.")
        return form
    kept = {name: form.cleaned_data[name] for name in ("key", "fresh", "sure") if name in form.cleaned_data}
    return RunForm(workflow, initial=initial | kept | {"mode": mode})


def _start(
    request: HttpRequest, workflow: Workflow, form: RunForm, key: uuid.UUID | None = None
) -> Execution | None:
    """None where it was refused; the form then says why."""
    wanted = StartRequest(
        tool_name=workflow.tool_name,
        arguments=form.arguments,
        caller=caller_of(request),
        door=Execution.Door.ADMIN,
        idempotency_key=f"form-{key or form.cleaned_data['key']}",
        fresh=form.cleaned_data.get("fresh", False),
        may_be_hidden=request.user.has_perm(MAY_RUN_HIDDEN),
    )
    try:
        execution = create_execution(wanted)
    except InvalidArguments as error:
        for problem in error.problems:
            form.blame(problem.path, problem.message)
        return None
    except IdempotencyConflict:
        # The browser went back to the form, and something else was filled in.
        return _start(request, workflow, form, uuid.uuid4())
    except StartRefused as error:
        form.add_error(None, str(error))
        return None
    if not execution.is_settled:
        ask_for_a_poll()
    return execution


def run_again(request: HttpRequest, execution: Execution) -> list[Link]:
    """For the page of an execution: the way to its arguments, to be edited and run."""
    if execution.workflow_id is None or not request.user.has_perm(MAY_RUN) or not _may_see(request):
        return []
    address = f"{reverse(RUN, args=[execution.workflow_id])}?again={execution.pk}"
    return [Link(label="Run again", icon="replay", address=address)]


def _link_to_run(request: HttpRequest, workflow: Workflow) -> list[Link]:
    if not request.user.has_perm(MAY_RUN):
        return []
    return [Link(label="Run", icon="play_circle", address=reverse(RUN, args=[workflow.pk]))]


def _recent_runs(request: HttpRequest, workflow: Workflow) -> tuple[str, Any]:
    """One query, by an index."""
    if not request.user.has_perm("executions.view_execution"):
        return ("Recent runs", "")
    runs = list(workflow.executions.order_by("-created_at", "-id")[:SHOWN_RUNS])
    rows = [
        [
            link(ago(run.created_at), "executions_execution_change", run.pk),
            state_badge(run),
            duration(run.duration_ms),
            side_by_side([run.caller_name or run.caller, f"by {run.get_door_display()}"]),
            "" if run.told_progress is None else f"{run.told_progress:g} %",
        ]
        for run in runs
    ]
    return ("Recent runs", table(("Began", "State", "Took", "Caller", "Progress"), rows) if rows else DASH)


WorkflowAdmin.further_links.append(_link_to_run)
WorkflowAdmin.further_sections.append(_recent_runs)
