import json
import shlex
import uuid
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from catalogue.admin.base import ButtonsMixin, Link
from catalogue.admin.form_fields import switch
from catalogue.argument_overrides import constants_of, settle_arguments
from catalogue.models import Workflow
from executions.admin.page import Part, caller_of, may_see, show_runs
from executions.admin.schema_form import MISSING, SchemaForm, read_posted
from executions.models import Execution, ExecutionPayload
from executions.models.lifecycle import StartRequest
from executions.refusals import IdempotencyConflict, InvalidArguments, StartRefused
from executions.starting import create_execution
from executions.wakeups import request_poll

MAY_RUN = "executions.add_execution"
MAY_TEST = "catalogue.change_workflow"  # Curators, of what they curate
RUN = "admin:executions_run"
SHOWN_RUNS = 10


class RunForm(forms.Form):
    key = forms.UUIDField(widget=forms.HiddenInput)  # Of this form: submitted twice, it runs once
    fresh = switch("Run even if a cached result is available")
    sure = switch("Run even though the workflow may delete or overwrite data")

    def __init__(self, workflow: Workflow, data: Any = None, given: Any = MISSING) -> None:
        super().__init__(data, initial={"key": uuid.uuid4()})
        self.workflow = workflow
        self.arguments = SchemaForm(workflow.offered_input_schema, given)
        self.is_destructive = workflow.effective_hints.get("destructiveHint") is True
        if workflow.effective_cache_seconds is None:
            del self.fields["fresh"]
        if not self.is_destructive:
            del self.fields["sure"]

    def read(self) -> Any:
        """The arguments; None if something is wrong, which the form then shows."""
        arguments, is_valid = self.arguments.read(), self.is_valid()
        if not self.arguments.wrong:
            settled = settle_arguments(
                self.workflow.input_schema, self.workflow.argument_overrides, arguments
            )
            for problem in settled.problems:
                self.arguments.blame(problem.path, problem.message)
            self.arguments.check_formats()
        if is_valid and self.is_destructive and not self.cleaned_data["sure"]:
            why = _("The workflow may delete or overwrite data. Confirm that you want to run it.")
            self.add_error("sure", why)
        if self.errors or self.arguments.wrong or self.arguments.problems:
            return None
        return arguments

    def as_call(self, kind: str) -> str:
        """The values as a call by an agent, `tool`, or by a program, `curl`; empty if they cannot be read."""
        arguments, name = self.arguments.read(), self.workflow.tool_name
        if self.arguments.wrong:
            return ""
        if kind == "tool":
            call = {"name": name, "arguments": arguments}
            return _json({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call})
        address = f"{settings.PUBLIC_URL}{reverse('execution-list')}"
        body = shlex.quote(_json({"tool": name, "arguments": arguments}))
        lines = [
            f"curl -X POST {shlex.quote(address)}",
            "-H 'Authorization: Bearer YOUR_TOKEN'",
            "-H 'Content-Type: application/json'",
            f"-d {body}",
        ]
        return " \\\n  ".join(lines)


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


class RunningMixin(ButtonsMixin):
    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self._run)
        return [path("run/<int:key>/", view, name="executions_run"), *super().get_urls()]

    def _run(self, request: HttpRequest, key: int) -> HttpResponse:
        if not may_run(request):
            raise PermissionDenied
        workflow = get_object_or_404(Workflow.objects.select_related("source"), pk=key)
        if request.method != "POST":
            return self._show(request, RunForm(workflow, given=_arguments_of(request, workflow)))
        form = RunForm(workflow, request.POST, read_posted(request.POST))
        # Only a button of the page starts a run; what htmx sends changes the form.
        wanted = request.POST.get("change", "show" if "HX-Request" in request.headers else None)
        if wanted is not None:
            return self._show(request, form, copied=_change(form, wanted))
        if (arguments := form.read()) is None or (execution := _start(request, form, arguments)) is None:
            return self._show(request, form)
        if self.has_view_permission(request, execution):
            return HttpResponseRedirect(reverse("admin:executions_execution_change", args=[execution.pk]))
        self.message_user(request, _("Started as execution %(key)s.") % {"key": execution.pk})
        return HttpResponseRedirect(reverse("admin:catalogue_workflow_change", args=[workflow.pk]))

    def _show(self, request: HttpRequest, form: RunForm, copied: str = "") -> HttpResponse:
        is_refused = form.is_bound and "change" not in request.POST
        if is_refused and (wrong := form.arguments.wrong):
            form.arguments.focus_on(wrong[0])
        context = self.admin_site.each_context(request) | {
            "title": _("Run %(tool)s") % {"tool": form.workflow.tool_name},
            "workflow": form.workflow,
            "form": form,
            "is_refused": is_refused,
            "copied": copied,
            "buttons": [
                ("fields", "list_alt", _("Edit in fields"))
                if form.arguments.is_json
                else ("json", "data_object", _("Edit as JSON")),
                ("example", "edit_note", _("Fill in an example")),
                ("tool", "content_copy", _("Copy as a tool call")),
                ("curl", "terminal", _("Copy as curl")),
            ],
            "may_run": request.user.has_perm(MAY_RUN),
            "may_test": request.user.has_perm(MAY_TEST),
        }
        return TemplateResponse(request, "executions/admin/run.html", context)


def _change(form: RunForm, wanted: str) -> str:
    """Carry out what the button says; returns the text to copy if it asks for one."""
    if wanted in ("tool", "curl"):
        return form.as_call(wanted)
    if wanted == "example":
        form.arguments.fill_in_example()
    else:
        form.arguments.change(wanted)
    return ""


def may_run(request: HttpRequest) -> bool:
    has = request.user.has_perm
    return has(MAY_TEST) or (has(MAY_RUN) and has("catalogue.view_workflow"))


def _arguments_of(request: HttpRequest, workflow: Workflow) -> Any:
    if not request.GET.get("again"):
        return MISSING
    try:
        key = uuid.UUID(request.GET["again"])
    except ValueError:
        raise Http404 from None
    payloads = ExecutionPayload.objects.select_related("execution")
    payload = payloads.filter(pk=key, execution__workflow=workflow).first()
    if not may_see(request, None if payload is None else payload.execution):
        raise PermissionDenied
    if payload is None or not isinstance(payload.sent_input, dict):
        messages.warning(request, _("The arguments of that run have been removed."))
        return MISSING
    constants = constants_of(workflow.argument_overrides)
    return {name: value for name, value in payload.sent_input.items() if name not in constants}


def _start(
    request: HttpRequest, form: RunForm, arguments: dict[str, Any], key: uuid.UUID | None = None
) -> Execution | None:
    """None if refused; the form then has the reason."""
    is_test = "test" in request.POST and request.user.has_perm(MAY_TEST)
    wanted = StartRequest(
        tool_name=form.workflow.tool_name,
        arguments=arguments,
        caller=caller_of(request),
        door=Execution.Door.TEST if is_test or not request.user.has_perm(MAY_RUN) else Execution.Door.ADMIN,
        idempotency_key=f"form-{key or form.cleaned_data['key']}",
        fresh=form.cleaned_data.get("fresh", False),
        may_be_hidden=request.user.has_perm(MAY_TEST),
        in_any_toolset=True,
    )
    try:
        execution = create_execution(wanted)
    except InvalidArguments as error:
        for problem in error.problems:
            form.arguments.blame(problem.path, problem.message)
        return None
    except IdempotencyConflict:
        # The browser went back to a submitted form with other arguments.
        return _start(request, form, arguments, uuid.uuid4())
    except StartRefused as error:
        form.add_error(None, str(error))
        return None
    if not execution.is_settled:
        request_poll()
    return execution


def run_again(request: HttpRequest, execution: Execution) -> list[Link]:
    if execution.workflow_id is None or not may_run(request):
        return []
    address = f"{reverse(RUN, args=[execution.workflow_id])}?again={execution.pk}"
    return [Link(label=gettext_lazy("Run again"), icon="replay", address=address)]


def link_to_run(request: HttpRequest, workflow: Workflow) -> list[Link]:
    label = _("Run") if request.user.has_perm(MAY_RUN) else _("Test run")
    run = Link(label=label, icon="play_circle", address=reverse(RUN, args=[workflow.pk]))
    return [run] if may_run(request) else []


def recent_runs(request: HttpRequest, workflow: Workflow) -> tuple[str, Part | None]:
    if not request.user.has_perm("executions.view_execution"):
        return (_("Recent runs"), None)
    return (_("Recent runs"), show_runs(workflow.executions.order_by("-created_at", "-id")[:SHOWN_RUNS]))
