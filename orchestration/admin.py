"""Texts of requests come from callers, models and APIs, so everything is shown as text."""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from django import forms, http
from django.conf import settings
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db import IntegrityError
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.html import format_html, format_html_join
from django.utils.http import urlencode
from django.utils.safestring import SafeString
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
    column,
)
from catalogue.admin.form_fields import switch
from catalogue.database import run_without_connection
from catalogue.exposure import current_catalogue
from catalogue.long_lists import SEARCHED
from connectors.http_tools.tool import HTTPRequestSpec, HTTPResponseSpec
from executions.admin.page import (
    CreatedFilter,
    caller_of,
    removal_note,
    show_content,
    show_request,
    show_response,
    state_badge,
)
from executions.dashboard import WINDOW, Card, address
from executions.models import Execution, ExecutionPayload
from orchestration import records
from orchestration.models import Stage, StageState, WorkflowRequest
from orchestration.pipeline import answer_request, can_be_replayed, input_of_dry_run, settle_requests
from orchestration.records import raw_response_of

STATUS_BADGES = {
    WorkflowRequest.Status.RUNNING: "info",
    WorkflowRequest.Status.SUCCESS: "success",
    WorkflowRequest.Status.ERROR: "danger",
}
SHOWN_TOOLS = 30
Facts = list[tuple[str, Any]]
Titled = tuple[str, Any]
STATE_BADGES = {
    StageState.RUNNING: "info",
    StageState.DONE: "success",
    StageState.FAILED: "danger",
    StageState.SKIPPED: "",
}
NARROWEST = 0.5  # Percent, to keep short stages visible
TRY_IT = "admin:orchestration_workflowrequest_try_it"
PROGRESS = "admin:orchestration_workflowrequest_progress"
NO_MODEL = (
    "No language model is configured, so requests cannot be answered. Set OPENAI_MODEL to the model's "
    "name, OPENAI_API_KEY, and OPENAI_BASE_URL for a server other than OpenAI's; then restart the product."
)
SHOWN_DESCRIPTION = 140
LONG_TEXTS = ("http_spec", "arguments", "reason", "formatted_response", "format_instructions", "tool_ids")
REQUESTS = "admin:orchestration_workflowrequest_changelist"
LAST_DAY = {"created": "in the last 24 hours"}


class SendForm(forms.Form):
    id = forms.UUIDField(widget=forms.HiddenInput)  # Of the new request


def outcome_badge(record: WorkflowRequest) -> SafeString:
    deadline = record.deadline_at
    if record.is_running and deadline is not None and deadline < timezone.now():
        return rendering.badge("lost", "warning", title="Its process ended before the request did.")
    status = WorkflowRequest.Status(record.status)
    shown = [rendering.badge(status.label, STATUS_BADGES[status])]
    if record.dry_run:
        shown.append(rendering.badge("dry run", title="The request stops before anything is sent."))
    if record.warnings:
        shown.append(rendering.badge("warning", "warning", title=" ".join(map(str, record.warnings))[:500]))
    return rendering.side_by_side(shown)


def describe_request(request: HttpRequest, record: WorkflowRequest) -> dict[str, Any]:
    can_be_sent = may_run(request) and can_be_replayed(record, caller=caller_of(request))
    known = {entry.get("stage"): entry for entry in record.stages if isinstance(entry, dict)}
    end = record.finished_at or max(timezone.now(), record.created_at)
    return {
        "record": record,
        "headline": _headline(record),
        "facts": _facts(record),
        "stages": [_line(record, Stage(stage), known.get(stage, {}), end) for stage in Stage.values],
        "send_form": SendForm(initial={"id": uuid.uuid4()}, auto_id=False) if can_be_sent else None,
        "cards": [(title, shown) for title, shown in _cards(request, record) if shown],
    }


def describe_input(record: WorkflowRequest) -> list[Titled]:
    if record.payload_pruned_at is not None:
        return [("", removal_note(record.payload_pruned_at))]
    names = [str(name) for name in record.tool_ids]
    more = f"and {len(names) - SHOWN_TOOLS:,} more" if len(names) > SHOWN_TOOLS else ""
    tools = rendering.side_by_side([*map(rendering.chip, names[:SHOWN_TOOLS]), more])
    texts = [
        ("", rendering.text_block(record.instructions)),
        ("How to phrase the answer", _as_text(record.format_instructions)),
        ("Tools that the model may use", tools),
    ]
    return [(title, shown) for title, shown in texts if shown]


def may_run(request: HttpRequest) -> bool:
    return request.user.has_perms(["orchestration.add_workflowrequest", "executions.add_execution"])


def _headline(record: WorkflowRequest) -> list[Any]:
    error = ""
    if record.error:
        stage = Stage(record.error_stage).label if record.error_stage in Stage else "unknown"
        error = format_html("<b>Failed at {}:</b> {}", stage, rendering.paragraphs(record.error))
    return [outcome_badge(record), error, *map(rendering.paragraphs, record.warnings)]


def _facts(record: WorkflowRequest) -> Facts:
    tool: Any = record.selected_tool
    if (workflow := current_catalogue().workflows.get(tool)) is not None:
        tool = rendering.link(tool, "catalogue_workflow_change", workflow.pk)
    execution: Any = ""
    if record.execution_id is not None:
        execution = rendering.link(record.execution_id, "executions_execution_change", record.execution_id)
    tokens = f"{record.prompt_tokens:,} read, {record.completion_tokens:,} written"
    return [
        ("Asked", rendering.exactly(record.created_at)),
        ("By", f"{record.caller_name} ({record.caller})"),
        ("Toolset", record.toolset),
        ("Took", rendering.duration(None if record.seconds is None else round(record.seconds * 1000))),
        ("Answer in words", "requested" if record.format_response else "not requested"),
        ("Chosen tool", tool),
        ("Execution", execution),
        ("Model", record.model),
        ("Tokens", tokens if record.prompt_tokens or record.completion_tokens else ""),
        ("Request id", str(record.pk)),
    ]


def _cards(request: HttpRequest, record: WorkflowRequest) -> list[Titled]:
    arguments = record.arguments
    return [
        ("Answer in words", _as_text(record.formatted_response)),
        ("Raw response", show_raw_response(request, record)),
        ("Why this tool, in the model's words", rendering.paragraphs(record.reason) if record.reason else ""),
        ("Exact request, without credentials", _show_spec(record.http_spec)),
        ("Arguments", "" if arguments is None else rendering.pretty_json(arguments)),
    ]


def _as_text(words: str) -> SafeString | str:
    return rendering.text_block(words) if words else ""


def _show_spec(spec: Any) -> SafeString | str:
    if spec is None:
        return ""
    try:
        return show_request(HTTPRequestSpec.model_validate(spec))
    except ValidationError:
        # Recorded by an earlier version, in another shape.
        return rendering.pretty_json(spec)


def show_raw_response(request: HttpRequest, record: WorkflowRequest) -> SafeString | str:
    """Empty if nothing was sent. Others' runs need the permission to view executions."""
    execution = record.execution
    if execution is None:
        return ""
    if not (request.user.has_perm("executions.view_execution") or record.caller == caller_of(request).key):
        return "You may not view other callers' executions."
    if execution.payload_pruned_at is not None:
        return "Removed by the retention policy."
    if not ExecutionPayload.objects.filter(pk=execution.pk).exists():
        return _show_result(execution, None)
    raw = raw_response_of(execution, of_http_tool=record.http_spec is not None)
    try:
        return show_response(HTTPResponseSpec.model_validate(raw))
    except ValidationError:
        return _show_result(execution, execution.payload)


def _show_result(execution: Execution, payload: ExecutionPayload | None) -> SafeString:
    shown: list[Any] = [state_badge(execution)]
    if execution.error:
        shown.append(rendering.paragraphs(execution.error))
    if payload is not None and payload.output is not None:
        shown.append(rendering.pretty_json(payload.output))
    elif payload is not None and payload.content:
        shown.append(show_content(payload.content))
    parts = format_html_join("", "<div>{}</div>", ((part,) for part in shown))
    return format_html('<div class="flex flex-col gap-4">{}</div>', parts)


@dataclass(frozen=True, kw_only=True, slots=True)
class StageLine:
    label: str
    state: SafeString
    took: str = ""
    message: str = ""
    begins: float = 0  # Of its bar, in percent of the whole width
    width: float = 0  # Likewise; 0: no bar


def _line(record: WorkflowRequest, stage: Stage, entry: Mapping[str, Any], end: datetime) -> StageLine:
    label = stage.label
    if not entry:
        is_running = record.status == WorkflowRequest.Status.RUNNING
        return StageLine(label=label, state=rendering.badge("pending" if is_running else "not reached"))
    state = StageState(entry["state"])
    begun = parse_datetime(entry["started_at"] or "") or record.created_at
    seconds = entry["seconds"]
    if seconds is None:
        seconds = max(0.0, (end - begun).total_seconds())
    whole = max((end - record.created_at).total_seconds(), 0.001)
    begins = min(max((begun - record.created_at).total_seconds() / whole, 0), 1) * 100
    width = max(round(min(seconds / whole * 100, 100 - begins), 2), NARROWEST)
    return StageLine(
        label=label,
        state=rendering.badge(state.label, STATE_BADGES[state]),
        took="" if state == StageState.SKIPPED else rendering.duration(round(seconds * 1000)),
        message=entry.get("message") or "",
        begins=min(round(begins, 2), 100 - NARROWEST),
        width=0 if state == StageState.SKIPPED else width,
    )


class ToolNames(forms.MultipleChoiceField):
    """Any names: the first stage of the request checks them."""

    def valid_value(self, value: Any) -> bool:
        return True


class TryForm(forms.Form):
    id = forms.UUIDField(widget=forms.HiddenInput)
    instructions = forms.CharField(
        label="Instructions",
        max_length=records.MAX_INSTRUCTIONS_LENGTH,
        help_text="Describe what you want, in your own words.",
        error_messages={"required": "Describe what you want."},
        widget=widgets.UnfoldAdminTextareaWidget(attrs={"rows": 5}),
    )
    tools = ToolNames(error_messages={"required": "Pick at least one tool."})
    format_response = switch(
        "Answer in words", "The model reads the tool's response and summarizes it in words."
    )
    format_instructions = forms.CharField(
        label="How to phrase the answer",
        max_length=records.MAX_FORMAT_INSTRUCTIONS,
        required=False,
        help_text="For example: two sentences, for a customer. Used only for an answer in words.",
        widget=widgets.UnfoldAdminTextareaWidget(attrs={"rows": 2}),
    )

    def clean_tools(self) -> list[str]:
        tools: list[str] = self.cleaned_data["tools"]
        if len(tools) > records.MAX_TOOLS:
            raise forms.ValidationError(f"Pick at most {records.MAX_TOOLS} tools; {len(tools)} are picked.")
        return tools

    def asked(self, *, dry_run: bool, caller: Caller) -> records.RequestInput:
        given = self.cleaned_data
        return records.RequestInput(
            id=given["id"],
            user_instructions=given["instructions"],
            tool_ids=given["tools"],
            format_response=given["format_response"],
            response_format_instructions=given["format_instructions"],
            dry_run=dry_run,
            caller=caller,
        )

    @property
    def problems(self) -> list[str]:
        return [str(problem) for problems in self.errors.values() for problem in problems]

    @property
    def picked(self) -> set[str]:
        return set(self["tools"].value() or ())


def blank_form(known: WorkflowRequest | None) -> TryForm:
    """Returns a form with the values of `known` and a new id."""
    initial: dict[str, Any] = {"id": uuid.uuid4()}
    if known is not None:
        initial |= {
            "instructions": known.instructions,
            "tools": known.tool_ids,
            "format_response": known.format_response,
            "format_instructions": known.format_instructions,
        }
    return TryForm(initial=initial)


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolChoice:
    name: str
    description: str
    words: str  # Searched, but not shown
    is_picked: bool


def tool_choices(picked: Iterable[str]) -> list[ToolChoice]:
    """Exposed tools, picked ones first."""
    chosen = set(picked)
    choices = [
        ToolChoice(
            name=workflow.tool_name,
            description=rendering.cut_short(workflow.shown_description, SHOWN_DESCRIPTION),
            words=" ".join([workflow.source.name, *workflow.shown_tags]),
            is_picked=workflow.tool_name in chosen,
        )
        for workflow in current_catalogue().workflows.values()
    ]
    return sorted(choices, key=lambda choice: not choice.is_picked)


class TryItMixin(ButtonsMixin):
    def get_urls(self) -> list[URLPattern]:
        guarded, page = self.admin_site.admin_view, "orchestration_workflowrequest"
        return [
            path("<uuid:key>/progress/", guarded(self._progress), name=f"{page}_progress"),
            path("<uuid:key>/send/", guarded(self._send), name=f"{page}_send"),
            *super().get_urls(),
        ]

    def has_try_it_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("orchestration.add_workflowrequest")

    @action(description="Try a request", url_path="try", icon="chat", permissions=["try_it"])  # type: ignore[untyped-decorator]
    def try_it(self, request: HttpRequest) -> HttpResponse:
        if request.method != "POST":
            known = self._asked_before(request)
            return self._show_form(request, blank_form(known), known)
        dry_run = "run" not in request.POST
        if not (dry_run or may_run(request)):
            raise PermissionDenied
        form = TryForm(request.POST)
        if not form.is_valid():
            return self._refuse(request, form, form.problems)
        try:
            key = _answer_once(form.asked(dry_run=dry_run, caller=caller_of(request)))
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
            "title": "Try a request",
            "opts": self.opts,
            "media": self.media,
            "form": form,
            "tools": tool_choices(form.picked),
            "most_tools": records.MAX_TOOLS,
            "input_classes": " ".join(widgets.BASE_INPUT_CLASSES),
            "checkbox_classes": " ".join(widgets.CHECKBOX_CLASSES),
            "problems": problems,
            "progress": reverse(PROGRESS, args=[uuid.uuid4() if record is None else record.pk]),
            "no_model": "" if settings.CATALOGUE.openai_model else NO_MODEL,
            "may_run": may_run(request),
            **({} if record is None else describe_request(request, record)),
        }
        return TemplateResponse(request, "orchestration/admin/try_it.html", context)

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
            return self._refuse(request, blank_form(dry_run), [str(error)])

    def _refuse(self, request: HttpRequest, form: TryForm, problems: list[str]) -> HttpResponse:
        if _wants_json(request):
            return http.JsonResponse({"problems": problems}, status=400)
        return self._show_form(request, form, None, *problems)

    def _progress(self, request: HttpRequest, key: uuid.UUID) -> HttpResponse:
        if (record := self._visible(request, key)) is None:
            raise http.Http404
        context = describe_request(request, record)
        sentence = f"Ended: {record.get_status_display()}."
        if record.is_running:
            reached = [entry for entry in record.stages if entry.get("state") == StageState.RUNNING]
            sentence = f"{Stage(reached[-1]['stage']).label.capitalize()} …" if reached else "Started …"
        return http.JsonResponse(
            {
                "is_running": record.is_running,
                "told": sentence,
                "shown": render_to_string("orchestration/admin/record.html", context, request),
            }
        )


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
    return http.HttpResponseRedirect(f"{reverse(TRY_IT)}?{urlencode({'request': str(key)})}")


def _wants_json(request: HttpRequest) -> bool:
    """Returns whether the page's script sent it."""
    return request.accepts("application/json") and not request.accepts("text/html")


class ToolFilter(ColumnFilter):
    """Tools chosen in the newest requests; the search finds others."""

    NEWEST = 2_000
    title = parameter_name = "tool"
    column = "selected_tool"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        newest = WorkflowRequest.objects.order_by("-created_at").values_list("selected_tool", flat=True)
        return [(name, name) for name in sorted({*newest[: self.NEWEST]} - {""})]


class DryRunFilter(OptionsFilter):
    title = "purpose"
    parameter_name = "dry_run"
    options = {"yes": ("dry run", Q(dry_run=True)), "no": ("run", Q(dry_run=False))}


class RequestList(BoundedChangeList):
    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Any]:
        requests: QuerySet[Any] = super().get_queryset(request, exclude_parameters)
        return requests.defer(*LONG_TEXTS, "stages", "error")


@admin.register(WorkflowRequest)
class WorkflowRequestAdmin(PanelOnlyMixin, TryItMixin, ButtonsMixin):
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
    search_help_text = f"Searches the newest {SEARCHED:,} by instructions, tool and caller; all by request id"
    actions_list = ("try_it",)
    change_form_outer_before_template = "orchestration/admin/request.html"

    class Media:
        css: ClassVar[dict[str, tuple[str, ...]]] = {"all": ("orchestration/admin/requests.css",)}
        js = ("orchestration/admin/requests.js", "orchestration/admin/tool_picker.js")

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

    asked = column("asked", "created_at")
    instructions_shown = column(
        "instructions", "instructions", lambda text: rendering.shortened(" ".join(text.split())), sorts=False
    )
    tool_shown = column("chosen tool", "selected_tool", lambda name: name or rendering.DASH)

    @admin.display(description="outcome", ordering="status")
    def outcome(self, record: WorkflowRequest) -> SafeString:
        return outcome_badge(record)

    @admin.display(description="failed at", ordering="error_stage")
    def failed_at(self, record: WorkflowRequest) -> str:
        return record.get_error_stage_display() or rendering.DASH

    @admin.display(description="took")
    def took(self, record: WorkflowRequest) -> str:
        return rendering.duration(None if record.seconds is None else round(record.seconds * 1000))

    @admin.display(description="tokens")
    def tokens(self, record: WorkflowRequest) -> str:
        spent = record.prompt_tokens + record.completion_tokens
        return f"{spent:,}" if spent else rendering.DASH

    def panel(self, request: HttpRequest, obj: WorkflowRequest) -> dict[str, Any]:
        return describe_request(request, obj) | {"asked": describe_input(obj)}


def requests_card() -> Card:
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
