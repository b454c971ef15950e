"""The admin's list of executions, which reads no payloads, and the page of one execution."""

import uuid
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

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
from django.utils.http import urlencode
from django.utils.text import format_lazy
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from django.views.decorators.cache import never_cache
from unfold.decorators import display
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextareaWidget, UnfoldAdminTextInputWidget

from access.callers import Caller
from catalogue.actions.sources import webhook_address
from catalogue.admin.base import ButtonsMixin, PanelOnlyMixin, TableMixin, button, column
from catalogue.admin.form_fields import MONOSPACE
from catalogue.admin.rendering import DASH, cut_short, duration, link
from catalogue.database import run_without_connection
from catalogue.descriptions import DeclaredInteraction, InteractionKind, interactions_of
from catalogue.long_lists import SEARCHED
from catalogue.models import Source
from catalogue.served_schemas import summarise_inputs
from connectors.errors import ConnectorError
from connectors.formats.json import UnreadableJSON, parse_json, readable_json
from connectors.protocol import RunFilter, RunState
from executions import engine_runs
from executions.admin import page
from executions.admin.answering import AnsweringMixin
from executions.admin.control import ControlMixin
from executions.admin.failures import CauseFilter, ask_to_run_again, like, show_failures
from executions.admin.page import describe_page, send_payload
from executions.admin.running import RunningMixin, run_again
from executions.admin.usage import show_usage
from executions.control import Action
from executions.engine_runs import EngineRun, EngineRunPage, list_engine_runs, present_capabilities
from executions.failures import find_line
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
from executions.rerunning import find_retry
from executions.wakeups import request_poll_if_stale

LABELS = {InteractionKind.QUERY: "Query", InteractionKind.SIGNAL: "Send"}
MAY_LOOK = "executions.view_execution"
BADGES = {
    RunState.RUNNING: "info",
    RunState.COMPLETED: "success",
    RunState.FAILED: "danger",
    RunState.CANCELLED: "",
}


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
            raise forms.ValidationError(_('Enter a JSON object, such as {"text": "Hello"}.'))
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
        execution = get_object_or_404(Execution.objects.select_related("workflow"), pk=key)
        form, answer = InteractionForm(request.POST), None
        if form.is_valid():
            try:
                answer = _carry_out(execution, kind, form.cleaned_data, caller=page.caller_of(request))
            except UnknownExecution as error:
                raise Http404(str(error)) from None
            except InteractionRefused as error:
                form.add_error(None, str(error))
        name = form.cleaned_data.get("name", "")
        if form.is_valid() and kind == InteractionKind.SIGNAL:
            self.log_change(request, execution, f"Sent the signal “{name}”.")
            messages.success(request, f"The signal {name} was sent to the run.")
            return HttpResponseRedirect(reverse("admin:executions_execution_change", args=[execution.pk]))
        declared = interactions_of(execution.workflow, kind) if execution.workflow else []
        context = self.admin_site.each_context(request) | {
            "title": f"{execution.tool_name}: {LABELS[kind].lower()} {name}",
            "opts": self.opts,
            "execution": execution,
            "answer": answer,
            "problems": [problem for problems in form.errors.values() for problem in problems],
            "interactions": [_shown(one, form) for one in declared if one.name == name],
        }
        return TemplateResponse(request, "executions/admin/answer.html", context)


def _carry_out(
    execution: Execution, kind: InteractionKind, asked: dict[str, Any], *, caller: Caller
) -> page.Part | None:
    """Returns the answer to a query."""
    key, name, arguments = str(execution.pk), asked["name"], asked["arguments"]
    if kind == InteractionKind.SIGNAL:
        run_without_connection(signal_execution(key, name, arguments, caller=caller))
        return None
    return page.show_json(run_without_connection(query_execution(key, name, arguments, caller=caller)).value)


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
        label=gettext_lazy("Run id at the engine"),
        max_length=255,
        widget=UnfoldAdminTextInputWidget(attrs={"autocomplete": "off"}),
    )


class OutputForm(forms.Form):
    output = forms.CharField(
        label=gettext_lazy("Output as JSON; leave empty if it is not known"),
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
SHOWN_ERROR = 120  # Characters in the list
POLL_SECONDS = ((60, 1), (600, 3), (86_400, 10))  # Up to this age, every so many seconds


def _poll_seconds(execution: Execution) -> int:
    """0: not at all."""
    if execution.is_settled:
        return 0
    age = (timezone.now() - execution.created_at).total_seconds()
    return next((seconds for limit, seconds in POLL_SECONDS if age < limit), 60)


def _page_state(execution: Execution) -> str:
    asks = execution.input_request or execution.question_answered_at
    held = "held" if execution.is_held else ""
    return f"{execution.state} {'queued' if execution.is_queued else asks or held}".strip()


@admin.register(Execution)
class ExecutionAdmin(
    PanelOnlyMixin, TableMixin, RunningMixin, InteractionsMixin, AnsweringMixin, ControlMixin
):
    class Media:
        css: ClassVar[dict[str, tuple[str, ...]]] = {"all": ("executions/admin/runs.css",)}

    list_display = (
        "tool_name", "state_shown", "error_shown", "source_name", "caller_shown", "created", "took",
    )  # fmt: skip
    list_filter = (
        page.StateFilter, page.SourceFilter, page.ToolsetFilter, ("door", page.DoorFilter),
        page.CacheFilter, page.CreatedFilter, page.EndedFilter, CauseFilter,
    )  # fmt: skip
    list_per_page = 50
    newest_by = "created_at"
    # Also behind a chosen column, as the indexes have it.
    ordering = ("-created_at", "-id")
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    search_fields = TEXTS
    search_help_text = format_lazy(
        gettext_lazy(
            "Searches the newest {} by tool, caller, error and key; all by complete id or tool name"
        ),
        f"{SEARCHED:,}",
    )
    buttons = ("cancel", *Action)
    change_form_outer_before_template = "executions/admin/execution.html"

    def get_urls(self) -> list[URLPattern]:
        guarded = self.admin_site.admin_view
        # Not guarded: a signed-out person gets a message instead of the login page as a fragment.
        live = path("<uuid:key>/live/", never_cache(self._live), name="executions_execution_live")
        return [
            live,
            path("at-engine/<int:key>/", guarded(show_engine_runs), name="executions_engine_runs"),
            path("failures/", guarded(show_failures), name="executions_failures"),
            path("failures/again/", guarded(ask_to_run_again), name="executions_again"),
            path("usage/", guarded(show_usage), name="executions_usage"),
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

    created = column(gettext_lazy("created"), "created_at")
    took = column(gettext_lazy("took"), "duration_ms", duration, sorts=False)

    @display(description=gettext_lazy("state"), ordering="state", label=page.STATE_BADGES)  # type: ignore[untyped-decorator]
    def state_shown(self, execution: Execution) -> tuple[str, str]:
        words = [execution.state_label]
        if execution.state == State.RUNNING and execution.progress_percent is not None:
            words.append(f"{execution.progress_percent:g} %")
        if execution.cached_at is not None:
            words.append("cached")
        return execution.state, ", ".join(words)

    @admin.display(description=gettext_lazy("error"))
    def error_shown(self, execution: Execution) -> str:
        return cut_short(find_line(execution.error), SHOWN_ERROR) or DASH

    @admin.display(description=gettext_lazy("called by"))
    def caller_shown(self, execution: Execution) -> str:
        return f"{execution.caller_name or execution.caller}, {execution.get_door_display()}"

    def has_view_permission(self, request: HttpRequest, obj: Execution | None = None) -> bool:
        return super().has_view_permission(request, obj) or page.may_see(request, obj)

    def may_press_buttons_of(self, request: HttpRequest, obj: Execution | None) -> bool:
        return self.may_press_buttons(request) or page.is_own_test(request, obj)

    @button(gettext_lazy("Cancel"), icon="cancel", variant="danger", confirm="Cancel this execution?")
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
            "questions": self.shown_questions(request, obj),
            "links": run_again(request, obj),
            "like": like(obj),
            "retry": find_retry(obj) if obj.is_settled else None,
            "poll_seconds": _poll_seconds(obj),
            "live_address": f"{live}?{urlencode({'state': _page_state(obj)})}",
        }

    def _live(self, request: HttpRequest, key: uuid.UUID) -> HttpResponseBase:
        execution = Execution.objects.select_related("workflow__source").filter(pk=key).first()
        if not (self.admin_site.has_permission(request) and self.has_view_permission(request, execution)):
            return HttpResponse(SIGNED_OUT)
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
        choices=[("", gettext_lazy("any")), *((state.value, state.value) for state in RunState)],
        widget=UnfoldAdminSelectWidget,
    )
    run = forms.CharField(
        label=gettext_lazy("Run id begins with"),
        required=False,
        max_length=255,
        widget=UnfoldAdminTextInputWidget,
    )
    started_after = forms.DateTimeField(
        label=gettext_lazy("Started after"), required=False, widget=MomentInput
    )
    started_before = forms.DateTimeField(
        label=gettext_lazy("Started before"), required=False, widget=MomentInput
    )
    query = forms.CharField(
        label=gettext_lazy("Filter in the engine's query language"),
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
        "title": _("Runs at the engine: %s") % source.name,
        "source": source,
        "form": form,
        "problem": problem,
        "runs": None if page is None else [_show(run) for run in page.runs],
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


def _show(run: EngineRun) -> dict[str, Any]:
    listed, took = run.listed, None
    if listed.started_at is not None and listed.finished_at is not None:
        took = round((listed.finished_at - listed.started_at).total_seconds() * 1000)
    return {
        "listed": listed,
        "state": listed.told_state or listed.state.value,
        "look": BADGES[listed.state],
        "took": took,
        "execution": run.execution,
        "details": readable_json(listed.details) if listed.details else "",
    }


def engine_runs_fact(request: HttpRequest, source: Source) -> tuple[str, Any]:
    if not (request.user.has_perm(MAY_LOOK) and present_capabilities(source).can_list_runs):
        return (_("Runs at the engine"), "")
    return (_("Runs at the engine"), link(_("All runs"), "executions_engine_runs", source.pk))


def webhook_fact(request: HttpRequest, source: Source) -> tuple[str, Any]:
    if not present_capabilities(source).reports_ends:
        return (_("Webhook"), "")
    shown = {"address": webhook_address(source), "source": source}
    return (_("Webhook"), page.Part("executions/admin/webhook.html", shown))


def executions_consequence(sources: list[Source]) -> str:
    """Counts those that lose their workflow. Running ones become unconfirmed; they continue at the engine."""
    theirs = Execution.objects.filter(workflow__source__in=sources).order_by()
    active = theirs.active().count()
    others = theirs.count() - active
    followed = ngettext(
        "%(count)s execution is running and will no longer be followed",
        "%(count)s executions are running and will no longer be followed",
        active,
    )
    kept = ngettext("%(count)s remains on record", "%(count)s remain on record", others)
    counts = ((followed, active), (kept, others))
    listed = "; ".join(words % {"count": f"{count:,}"} for words, count in counts if count)
    return _("Executions: %s.") % listed if listed else ""
