"""The admin of natural-language requests: the list and the page of each."""

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from django import forms
from django.conf import settings
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db import IntegrityError
from django.db.models import Count, QuerySet
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseBadRequest,
    HttpResponseNotAllowed,
    HttpResponseRedirect,
    JsonResponse,
)
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import ChoicesDropdownFilter, DropdownFilter
from unfold.decorators import action
from unfold.widgets import (
    BASE_INPUT_CLASSES,
    CHECKBOX_CLASSES,
    UnfoldAdminTextareaWidget,
    UnfoldBooleanSwitchWidget,
)

from catalogue.admin.base import ButtonsMixin, CatalogueChangeList, ReadOnlyMixin
from catalogue.admin.rendering import DASH, ago, cut_short, duration, shortened
from catalogue.database import run_without_connection
from catalogue.exposure import current_catalogue
from executions.admin.filters import CreatedFilter, caller_of
from executions.callers import Caller
from executions.dashboard import WINDOW, Card, address, further_cards
from orchestration.admin.page import (
    STATUS_BADGES,
    SendForm,
    describe_input,
    describe_request,
    may_run,
    outcome_badge,
    progress_sentence,
)
from orchestration.models import WorkflowRequest
from orchestration.pipeline import answer_request, input_of_dry_run
from orchestration.records import settle_with_runs
from orchestration.request_types import (
    LONGEST_FORMAT_INSTRUCTIONS,
    LONGEST_INSTRUCTIONS,
    MOST_TOOLS,
    RequestInput,
    RequestRefused,
)

MAY_TRY = "orchestration.add_workflowrequest"
PROGRESS = "admin:orchestration_workflowrequest_progress"
TRY_IT = "admin:orchestration_workflowrequest_try_it"
NO_MODEL = (
    "No language model is set up, so that nothing can be asked. Set OPENAI_MODEL to the model's name, "
    "OPENAI_API_KEY, and for another server than OpenAI's OPENAI_BASE_URL; then start the product again."
)


SHOWN_DESCRIPTION = 140


class ToolNames(forms.MultipleChoiceField):
    """Any names: the first stage of the request checks them."""

    def valid_value(self, value: Any) -> bool:
        return True


class TryForm(forms.Form):
    id = forms.UUIDField(widget=forms.HiddenInput)
    instructions = forms.CharField(
        label="Instructions",
        max_length=LONGEST_INSTRUCTIONS,
        help_text="What you want, in your own words.",
        error_messages={"required": "Say what you want."},
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 5}),
    )
    tools = ToolNames(error_messages={"required": "Pick the tools that may be used: one at least."})
    format_response = forms.BooleanField(
        label="Answer in words",
        required=False,
        help_text="The model reads the tool's answer and tells what is in it.",
        widget=UnfoldBooleanSwitchWidget,
    )
    format_instructions = forms.CharField(
        label="How to put the answer",
        max_length=LONGEST_FORMAT_INSTRUCTIONS,
        required=False,
        help_text="Such as: two sentences, for a customer. Only for an answer in words.",
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 2}),
    )

    def clean_tools(self) -> list[str]:
        tools: list[str] = self.cleaned_data["tools"]
        if len(tools) > MOST_TOOLS:
            raise forms.ValidationError(f"Pick at most {MOST_TOOLS} tools; {len(tools)} are picked.")
        return tools

    def asked(self, *, dry_run: bool, caller: Caller) -> RequestInput:
        given = self.cleaned_data
        return RequestInput(
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
    """Filled in from `known`, if given; always with a new id."""
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
    """A tool to pick, with the words by which it is found."""

    name: str
    description: str
    words: str
    """Searched, but not shown."""
    is_picked: bool


def tool_choices(picked: Iterable[str]) -> list[ToolChoice]:
    """Every exposed tool, those that are picked first."""
    chosen = set(picked)
    choices = [
        ToolChoice(
            name=workflow.tool_name,
            description=cut_short(workflow.shown_description, SHOWN_DESCRIPTION),
            words=" ".join([workflow.source.name, *workflow.shown_tags]),
            is_picked=workflow.tool_name in chosen,
        )
        for workflow in current_catalogue().workflows.values()
    ]
    return sorted(choices, key=lambda choice: not choice.is_picked)


class TryItMixin(ButtonsMixin):
    def get_urls(self) -> list[URLPattern]:
        guarded = self.admin_site.admin_view
        return [
            path(
                "<uuid:key>/progress/", guarded(self._progress), name="orchestration_workflowrequest_progress"
            ),
            path("<uuid:key>/send/", guarded(self._send), name="orchestration_workflowrequest_send"),
            *super().get_urls(),
        ]

    def has_try_it_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(MAY_TRY)

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
        except RequestRefused as error:
            return self._refuse(request, form, [str(error)])
        return _redirect_to(request, key)

    def _asked_before(self, request: HttpRequest) -> WorkflowRequest | None:
        """The request in the page's address: what a reload shows."""
        try:
            key = uuid.UUID(request.GET.get("request", ""))
        except ValueError:
            return None
        return self._visible(request, key)

    def _visible(self, request: HttpRequest, key: uuid.UUID) -> WorkflowRequest | None:
        """Without the permission to view, users see their own requests."""
        settle_with_runs()
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
            "most_tools": MOST_TOOLS,
            "input_classes": " ".join(BASE_INPUT_CLASSES),
            "checkbox_classes": " ".join(CHECKBOX_CLASSES),
            "problems": problems,
            "progress": reverse(PROGRESS, args=[uuid.uuid4() if record is None else record.pk]),
            "no_model": "" if settings.CATALOGUE["openai_model"] else NO_MODEL,
            "may_run": may_run(request),
            **({} if record is None else describe_request(request, record)),
        }
        return TemplateResponse(request, "orchestration/admin/try_it.html", context)

    def _send(self, request: HttpRequest, key: uuid.UUID) -> HttpResponse:
        """Carry out a dry run."""
        if not may_run(request):
            raise PermissionDenied
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if (dry_run := self._visible(request, key)) is None:
            raise Http404
        form = SendForm(request.POST)
        if not form.is_valid():
            return HttpResponseBadRequest("The id of the new request is missing or none.")
        try:
            asked = input_of_dry_run(dry_run, caller=caller_of(request), key=form.cleaned_data["id"])
            return _redirect_to(request, _answer_once(asked))
        except RequestRefused as error:
            return self._refuse(request, blank_form(dry_run), [str(error)])

    def _refuse(self, request: HttpRequest, form: TryForm, problems: list[str]) -> HttpResponse:
        if _wants_json(request):
            return JsonResponse({"problems": problems}, status=400)
        return self._show_form(request, form, None, *problems)

    def _progress(self, request: HttpRequest, key: uuid.UUID) -> HttpResponse:
        if (record := self._visible(request, key)) is None:
            raise Http404
        context = describe_request(request, record)
        return JsonResponse(
            {
                "is_running": record.is_running,
                "told": progress_sentence(record),
                "shown": render_to_string("orchestration/admin/record.html", context, request),
            }
        )


def _answer_once(asked: RequestInput) -> uuid.UUID:
    """The record's key. The id makes a page that posts twice ask once."""
    if WorkflowRequest.objects.filter(pk=asked.id).exists():
        return asked.id
    try:
        return run_without_connection(answer_request(asked)).request.pk
    except IntegrityError:
        if not WorkflowRequest.objects.filter(pk=asked.id).exists():
            raise
        return asked.id


def _redirect_to(request: HttpRequest, key: uuid.UUID) -> HttpResponse:
    if _wants_json(request):
        return JsonResponse({"request": str(key)})
    return HttpResponseRedirect(f"{reverse(TRY_IT)}?{urlencode({'request': str(key)})}")


def _wants_json(request: HttpRequest) -> bool:
    """The page's script, which stays on the page."""
    return request.accepts("application/json") and not request.accepts("text/html")


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


class RequestList(CatalogueChangeList):
    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Any]:
        requests: QuerySet[Any] = super().get_queryset(request, exclude_parameters)
        return requests.defer(*LONG_TEXTS, "stages", "error")


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

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[RequestList]:
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
