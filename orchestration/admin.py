"""Texts of requests come from callers, models and APIs, so everything is shown as text."""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, ClassVar

from django import forms, http
from django.conf import settings
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db import IntegrityError
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.text import format_lazy
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from pydantic import ValidationError
from unfold import widgets
from unfold.contrib.filters.admin import ChoicesDropdownFilter
from unfold.decorators import action

from access.callers import Caller
from catalogue.admin import rendering
from catalogue.admin.base import (
    BoundedChangeList,
    ButtonsMixin,
    ColumnFilter,
    OptionsFilter,
    PanelOnlyMixin,
    cell,
    column,
)
from catalogue.admin.form_fields import switch
from catalogue.admin.workflow_picker import MAX_SHOWN, Choice, WorkflowPicker
from catalogue.database import run_without_connection
from catalogue.exposure import current_catalogue
from catalogue.long_lists import SEARCHED
from catalogue.models import Workflow
from catalogue.search_terms import search_workflows
from connectors.http_tools.tool import HTTPRequestSpec, HTTPResponseSpec
from executions.admin.page import (
    CreatedFilter,
    Part,
    caller_of,
    show_content,
    show_json,
    show_request,
    show_response,
    show_run,
)
from executions.dashboard import WINDOW, Card
from executions.inbox import address
from executions.models import ExecutionPayload
from orchestration import records
from orchestration.models import Stage, StageState, WorkflowRequest
from orchestration.pipeline import answer_request, can_be_replayed, input_of_dry_run, settle_requests
from orchestration.records import raw_response_of

STATUS_BADGES = {
    WorkflowRequest.Status.RUNNING: "info",
    WorkflowRequest.Status.SUCCESS: "success",
    WorkflowRequest.Status.ERROR: "danger",
}
STATE_BADGES = {
    StageState.RUNNING: "info",
    StageState.DONE: "success",
    StageState.FAILED: "danger",
}
NARROWEST = 0.5  # Percent, to keep short stages visible
TRY_IT = "admin:orchestration_workflowrequest_try_it"
LONG_TEXTS = ("http_spec", "arguments", "reason", "formatted_response", "format_instructions", "tool_ids")
REQUESTS = "admin:orchestration_workflowrequest_changelist"
LAST_DAY = {"created": "in the last 24 hours"}


class SendForm(forms.Form):
    id = forms.UUIDField(widget=forms.HiddenInput)  # Of the new request


def may_run(request: HttpRequest) -> bool:
    return request.user.has_perms(["orchestration.add_workflowrequest", "executions.add_execution"])


def outcome_badge(record: WorkflowRequest) -> SafeString:
    deadline = record.deadline_at
    if record.is_running and deadline is not None and deadline < timezone.now():
        return rendering.badge(_("lost"), "warning", title=_("Its process ended before the request did."))
    status = WorkflowRequest.Status(record.status)
    shown = [rendering.badge(status.label, STATUS_BADGES[status])]
    if record.dry_run:
        shown.append(rendering.badge(_("dry run"), title=_("The request stops before anything is sent.")))
    if record.warnings:
        shown.append(
            rendering.badge(_("warning"), "warning", title=" ".join(map(str, record.warnings))[:500])
        )
    return rendering.side_by_side(shown)


def describe_request(request: HttpRequest, record: WorkflowRequest) -> dict[str, Any]:
    can_be_sent = may_run(request) and can_be_replayed(record, caller=caller_of(request))
    known = {entry.get("stage"): entry for entry in record.stages if isinstance(entry, dict)}
    end = record.finished_at or max(timezone.now(), record.created_at)
    return {
        "record": record,
        "progress": reverse("admin:orchestration_workflowrequest_progress", args=[record.pk]),
        "told": _tell_progress(record),
        "outcome": outcome_badge(record),
        "failed_at": Stage(record.error_stage).label if record.error_stage in Stage else _("unknown"),
        "facts": _facts(record),
        "stages": [_line(record, Stage(stage), known.get(stage, {}), end) for stage in Stage.values],
        "send_form": SendForm(initial={"id": uuid.uuid4()}, auto_id=False) if can_be_sent else None,
        "cards": [
            (_("Answer in words"), _as_text(record.formatted_response)),
            (_("Raw response"), _raw_response(request, record)),
            (_("Why this tool, in the model's words"), record.reason and rendering.paragraphs(record.reason)),
            (_("Exact request, without credentials"), _exact_request(record.http_spec)),
            (_("Arguments"), "" if record.arguments is None else rendering.pretty_json(record.arguments)),
        ],
    }


def _facts(record: WorkflowRequest) -> list[tuple[str, Any]]:
    tool: Any = record.selected_tool
    if (workflow := current_catalogue().workflows.get(tool)) is not None:
        tool = rendering.link(tool, "catalogue_workflow_change", workflow.pk)
    execution: Any = ""
    if record.execution_id is not None:
        execution = rendering.link(record.execution_id, "executions_execution_change", record.execution_id)
    tokens = _("{:,} read, {:,} written").format(record.prompt_tokens, record.completion_tokens)
    return [
        (_("Asked"), rendering.exactly(record.created_at)),
        (_("By"), f"{record.caller_name} ({record.caller})"),
        (_("Toolset"), record.toolset),
        (_("Took"), rendering.duration(_milliseconds(record))),
        (_("Answer in words"), _("requested") if record.format_response else _("not requested")),
        (_("Chosen tool"), tool),
        (_("Execution"), execution),
        (_("Model"), record.model),
        (_("Tokens"), tokens if record.prompt_tokens or record.completion_tokens else ""),
        (_("Request id"), str(record.pk)),
    ]


def _tell_progress(record: WorkflowRequest) -> str:
    if not record.is_running:
        return _("Ended: {}.").format(record.get_status_display())
    reached = [entry for entry in record.stages if entry.get("state") == StageState.RUNNING]
    return f"{Stage(reached[-1]['stage']).label.capitalize()} …" if reached else _("Started …")


def _milliseconds(record: WorkflowRequest) -> int | None:
    return None if record.seconds is None else round(record.seconds * 1000)


def _as_text(words: str) -> SafeString | str:
    return rendering.text_block(words) if words else ""


def _exact_request(spec: Any) -> Part | str:
    if spec is None:
        return ""
    try:
        return show_request(HTTPRequestSpec.model_validate(spec))
    except ValidationError:
        # Recorded by an earlier version, in another shape.
        return show_json(spec)


def _raw_response(request: HttpRequest, record: WorkflowRequest) -> Part | str:
    """Empty if nothing was sent; for a run without an HTTP response, its state, error and output. Others'
    runs need the permission to view executions."""
    execution = record.execution
    if execution is None:
        return ""
    if not (request.user.has_perm("executions.view_execution") or record.caller == caller_of(request).key):
        return _("You may not view other callers' executions.")
    if execution.payload_pruned_at is not None:
        return _("Removed by the retention policy.")
    payload = ExecutionPayload.objects.filter(pk=execution.pk).first()
    if payload is not None:
        raw = raw_response_of(execution, of_http_tool=record.http_spec is not None)
        with suppress(ValidationError):
            return show_response(HTTPResponseSpec.model_validate(raw))
    output: Part | None = None
    if payload is not None and payload.output is not None:
        output = show_json(payload.output)
    elif payload is not None and payload.content:
        output = show_content(payload.content)
    return Part("orchestration/admin/result.html", {"run": show_run(execution), "output": output})


def _line(record: WorkflowRequest, stage: Stage, entry: Mapping[str, Any], end: datetime) -> dict[str, Any]:
    """A stage with its bar, which begins at and is as wide as so many percent of the whole."""
    if not entry:
        return {"label": stage.label, "state": _("pending") if record.is_running else _("not reached")}
    state = StageState(entry["state"])
    line = {"label": stage.label, "state": state.label, "message": entry.get("message")}
    if state == StageState.SKIPPED:
        return line
    begun = parse_datetime(entry["started_at"] or "") or record.created_at
    seconds = entry["seconds"]
    if seconds is None:
        seconds = max(0.0, (end - begun).total_seconds())
    whole = max((end - record.created_at).total_seconds(), 0.001)
    begins = min(max((begun - record.created_at).total_seconds() / whole, 0), 1) * 100
    return line | {
        "kind": STATE_BADGES[state],
        "took": round(seconds * 1000),
        "begins": min(begins, 100 - NARROWEST),
        "width": max(min(seconds / whole * 100, 100 - begins), NARROWEST),
    }


class ToolPicker(WorkflowPicker):
    """The values are names of tools, among those that the user may call."""

    field = "tool_ids"
    view = "admin:orchestration_workflowrequest_tools"
    most = records.MAX_TOOLS

    def __init__(self, caller: Caller) -> None:
        super().__init__()
        self.seen = current_catalogue().seen_within(caller.bounds)

    def find(self, text: str) -> tuple[Iterable[Workflow], int]:
        names = list(self.seen)
        if text.strip():
            found = search_workflows(Workflow.objects.runnable(), text)
            names = [name for name in found.values_list("tool_name", flat=True) if name in self.seen]
        return map(self.seen.__getitem__, names[:MAX_SHOWN]), len(names)

    def find_picked(self, values: Iterable[Any]) -> Iterable[Workflow]:
        return (self.seen[name] for name in values if name in self.seen)

    def choices_of(self, workflows: Iterable[Workflow]) -> list[Choice]:
        return [Choice(workflow=workflow, key=workflow.tool_name) for workflow in workflows]


class ToolNames(forms.MultipleChoiceField):
    """Any names: the first stage of the request checks them."""

    def valid_value(self, value: Any) -> bool:
        return True


class TryForm(forms.Form):
    """Its fields are those of a RequestInput."""

    id = forms.UUIDField(widget=forms.HiddenInput)
    user_instructions = forms.CharField(
        label=gettext_lazy("Instructions"),
        max_length=records.MAX_INSTRUCTIONS_LENGTH,
        help_text=gettext_lazy("Describe what you want, in your own words."),
        error_messages={"required": gettext_lazy("Describe what you want.")},
        widget=widgets.UnfoldAdminTextareaWidget(attrs={"rows": 5}),
    )
    tool_ids = ToolNames(error_messages={"required": gettext_lazy("Pick at least one tool.")})
    format_response = switch(
        gettext_lazy("Answer in words"),
        gettext_lazy("The model reads the tool's response and summarizes it in words."),
    )
    response_format_instructions = forms.CharField(
        label=gettext_lazy("How to phrase the answer"),
        max_length=records.MAX_FORMAT_INSTRUCTIONS,
        required=False,
        help_text=gettext_lazy(
            "For example: two sentences, for a customer. Used only for an answer in words."
        ),
        widget=widgets.UnfoldAdminTextareaWidget(attrs={"rows": 2}),
    )

    def __init__(self, caller: Caller, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["tool_ids"].widget = ToolPicker(caller)

    def clean_tool_ids(self) -> list[str]:
        tools: list[str] = self.cleaned_data["tool_ids"]
        if len(tools) > records.MAX_TOOLS:
            raise forms.ValidationError(f"Pick at most {records.MAX_TOOLS} tools; {len(tools)} are picked.")
        return tools

    @property
    def problems(self) -> list[str]:
        return [str(problem) for problems in self.errors.values() for problem in problems]


def blank_form(caller: Caller, known: WorkflowRequest | None) -> TryForm:
    """Returns a form with the values of `known` and a new id."""
    initial: dict[str, Any] = {"id": uuid.uuid4()}
    if known is not None:
        initial |= {
            "user_instructions": known.instructions,
            "tool_ids": known.tool_ids,
            "format_response": known.format_response,
            "response_format_instructions": known.format_instructions,
        }
    return TryForm(caller, initial=initial)


def _answer_once(asked: records.RequestInput) -> uuid.UUID:
    """The record's key. By its id, a form posted twice makes one request."""
    if WorkflowRequest.objects.filter(pk=asked.id).exists():
        return asked.id
    try:
        return run_without_connection(answer_request(asked)).pk
    except IntegrityError:
        if not WorkflowRequest.objects.filter(pk=asked.id).exists():
            raise
        return asked.id


def _redirect_to(request: HttpRequest, key: uuid.UUID) -> HttpResponse:
    if _wants_json(request):
        return http.JsonResponse({"request": str(key)})
    return http.HttpResponseRedirect(f"{reverse(TRY_IT)}?{urlencode({'request': str(key)})}#record")


def _wants_json(request: HttpRequest) -> bool:
    """Returns whether the page's script sent it."""
    return request.accepts("application/json") and not request.accepts("text/html")


class ToolFilter(ColumnFilter):
    """Tools chosen in the newest requests; the search finds others."""

    NEWEST = 2_000
    title, parameter_name = gettext_lazy("tool"), "tool"
    column = "selected_tool"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        newest = WorkflowRequest.objects.order_by("-created_at").values_list("selected_tool", flat=True)
        return [(name, name) for name in sorted({*newest[: self.NEWEST]} - {""})]


class DryRunFilter(OptionsFilter):
    title = gettext_lazy("purpose")
    parameter_name = "dry_run"
    options = {
        "yes": (gettext_lazy("dry run"), Q(dry_run=True)),
        "no": (gettext_lazy("run"), Q(dry_run=False)),
    }


class RequestList(BoundedChangeList):
    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Any]:
        requests: QuerySet[Any] = super().get_queryset(request, exclude_parameters)
        return requests.defer(*LONG_TEXTS, "stages", "error")


@admin.register(WorkflowRequest)
class WorkflowRequestAdmin(PanelOnlyMixin, ButtonsMixin):
    list_display = (
        "asked", "caller_name", "instructions_shown", "tool_shown", "outcome", "failed_at", "took", "tokens",
    )  # fmt: skip
    list_display_links = ("instructions_shown",)
    list_filter = (
        ("status", ChoicesDropdownFilter), ("error_stage", ChoicesDropdownFilter), ToolFilter, DryRunFilter,
        CreatedFilter,
    )  # fmt: skip
    list_per_page = 50
    newest_by = "created_at"
    show_facets = admin.ShowFacets.NEVER
    search_fields = ("instructions", "selected_tool", "caller_name", "caller")
    search_help_text = format_lazy(
        gettext_lazy("Searches the newest {} by instructions, tool and caller; all by request id"),
        f"{SEARCHED:,}",
    )
    actions_list = ("try_it",)
    change_form_outer_before_template = "orchestration/admin/request.html"

    class Media:
        css: ClassVar[dict[str, tuple[str, ...]]] = {"all": ("orchestration/admin/requests.css",)}
        js = ("orchestration/admin/requests.js",)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[RequestList]:
        return RequestList

    def get_queryset(self, request: HttpRequest) -> QuerySet[WorkflowRequest]:
        settle_requests()
        return super().get_queryset(request)

    def search_rows(self, rows: QuerySet[WorkflowRequest], words: Sequence[str]) -> QuerySet[WorkflowRequest]:
        try:
            return rows.filter(pk=uuid.UUID(" ".join(words)))
        except ValueError:
            return super().search_rows(rows, words)

    asked = column(gettext_lazy("asked"), "created_at")
    outcome = cell(gettext_lazy("outcome"), outcome_badge, sorts_by="status")
    took = cell(gettext_lazy("took"), lambda record: rendering.duration(_milliseconds(record)))
    instructions_shown = column(
        gettext_lazy("instructions"),
        "instructions",
        lambda text: rendering.shortened(" ".join(text.split())),
        sorts=False,
    )
    tool_shown = column(gettext_lazy("chosen tool"), "selected_tool", lambda name: name or rendering.DASH)

    @admin.display(description=gettext_lazy("failed at"), ordering="error_stage")
    def failed_at(self, record: WorkflowRequest) -> str:
        return record.get_error_stage_display() or rendering.DASH

    @admin.display(description=gettext_lazy("tokens"))
    def tokens(self, record: WorkflowRequest) -> str:
        spent = record.prompt_tokens + record.completion_tokens
        return f"{spent:,}" if spent else rendering.DASH

    def panel(self, request: HttpRequest, obj: WorkflowRequest) -> dict[str, Any]:
        return describe_request(request, obj)

    def get_urls(self) -> list[URLPattern]:
        guarded, page = self.admin_site.admin_view, "orchestration_workflowrequest"
        return [
            path("tools/", guarded(self._tools), name=f"{page}_tools"),
            path("<uuid:key>/progress/", guarded(self._progress), name=f"{page}_progress"),
            path("<uuid:key>/send/", guarded(self._send), name=f"{page}_send"),
            *super().get_urls(),
        ]

    def has_try_it_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("orchestration.add_workflowrequest")

    @action(description=gettext_lazy("Try a request"), url_path="try", icon="chat", permissions=["try_it"])  # type: ignore[untyped-decorator]
    def try_it(self, request: HttpRequest) -> HttpResponse:
        if request.method != "POST":
            known = self._asked_before(request)
            return self._show_form(request, blank_form(caller_of(request), known), known)
        dry_run = "run" not in request.POST
        if not (dry_run or may_run(request)):
            raise PermissionDenied
        caller = caller_of(request)
        form = TryForm(caller, request.POST)
        if not form.is_valid():
            return self._refuse(request, form, form.problems)
        try:
            key = _answer_once(records.RequestInput(**form.cleaned_data, dry_run=dry_run, caller=caller))
        except records.RequestRefused as error:
            return self._refuse(request, form, [str(error)])
        return _redirect_to(request, key)

    def _asked_before(self, request: HttpRequest) -> WorkflowRequest | None:
        """The request in the page's address, as after a reload."""
        try:
            key = uuid.UUID(request.GET.get("request", ""))
        except ValueError:
            return None
        return self._visible(request, key)

    def _visible(self, request: HttpRequest, key: uuid.UUID) -> WorkflowRequest | None:
        """Returns None if it is missing or, without the permission to view, not the user's own."""
        settle_requests()
        record = WorkflowRequest.objects.select_related("execution").filter(pk=key).first()
        if record is None or self.has_view_permission(request) or record.caller == caller_of(request).key:
            return record
        return None

    def _show_form(
        self, request: HttpRequest, form: TryForm, record: WorkflowRequest | None, *problems: str
    ) -> HttpResponse:
        context = self.admin_site.each_context(request) | {
            "title": _("Try a request"),
            "opts": self.opts,
            "media": self.media + form.media,
            "form": form,
            "problems": problems,
            # The script replaces the key of this address.
            "progress": reverse("admin:orchestration_workflowrequest_progress", args=[uuid.uuid4()]),
            "has_model": bool(settings.CATALOGUE.openai_model),
            "may_run": may_run(request),
            **({} if record is None else describe_request(request, record)),
        }
        return TemplateResponse(request, "orchestration/admin/try_it.html", context)

    def _tools(self, request: HttpRequest) -> HttpResponse:
        if not self.has_try_it_permission(request):
            raise PermissionDenied
        return ToolPicker(caller_of(request)).show_found(request)

    def _send(self, request: HttpRequest, key: uuid.UUID) -> HttpResponse:
        if not may_run(request):
            raise PermissionDenied
        if request.method != "POST":
            return http.HttpResponseNotAllowed(["POST"])
        if (dry_run := self._visible(request, key)) is None:
            raise http.Http404
        form = SendForm(request.POST)
        if not form.is_valid():
            return http.HttpResponseBadRequest("The id of the new request is missing or is not a valid UUID.")
        try:
            asked = input_of_dry_run(dry_run, caller=caller_of(request), key=form.cleaned_data["id"])
            return _redirect_to(request, _answer_once(asked))
        except records.RequestRefused as error:
            return self._refuse(request, blank_form(caller_of(request), dry_run), [str(error)])

    def _refuse(self, request: HttpRequest, form: TryForm, problems: list[str]) -> HttpResponse:
        if _wants_json(request):
            return http.JsonResponse({"problems": problems}, status=400)
        return self._show_form(request, form, None, *problems)

    def _progress(self, request: HttpRequest, key: uuid.UUID) -> HttpResponse:
        if (record := self._visible(request, key)) is None:
            raise http.Http404
        context = describe_request(request, record)
        return TemplateResponse(request, "orchestration/admin/record.html", context)


def requests_card() -> Card:
    recent = WorkflowRequest.objects.filter(created_at__gte=timezone.now() - WINDOW)
    counts = dict(recent.values_list("status").annotate(Count("pk")).order_by())
    return Card(
        title=_("Natural-language requests in the last 24 hours"),
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
