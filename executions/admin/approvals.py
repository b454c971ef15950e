from datetime import timedelta
from functools import partial
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet
from django.http import (
    Http404,
    HttpRequest,
    HttpResponseBase,
    HttpResponseNotAllowed,
    HttpResponseRedirect,
)
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import ChoicesDropdownFilter, DropdownFilter
from unfold.widgets import (
    UnfoldAdminIntegerFieldWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextareaWidget,
)

from catalogue.admin.base import (
    Button,
    ButtonsMixin,
    OptionsFilter,
    PanelOnlyMixin,
    ReadOnlyMixin,
    button,
    column,
)
from catalogue.admin.rendering import (
    ago,
    badge,
    duration,
    exactly,
    link,
    link_if_allowed,
    paragraphs,
    pretty_json,
    side_by_side,
    table,
    wrapped,
)
from catalogue.long_lists import SEARCHED
from catalogue.naming import counted
from connectors.network.redaction import printable
from executions.admin.page import show_caller, show_wait, state_badge
from executions.approvals import (
    MAX_MESSAGE_LENGTH,
    MAX_MINUTES,
    OWN_CALL,
    PERMISSION,
    NotDecided,
    Past,
    UnknownApproval,
    Verdict,
    decide,
    is_own_call,
    may_approve,
    read_past,
    revoke_standing,
)
from executions.models import Approval, Execution, ExecutionPayload, StandingApproval
from executions.runner.start import switched_off

STATE_BADGES = {
    Approval.State.WAITING: "warning",
    Approval.State.APPROVED: "success",
    Approval.State.REFUSED: "danger",
    Approval.State.EXPIRED: "",
    Approval.State.CANCELLED: "",
    Approval.State.OUTDATED: "",
}
CALLER_GONE = "The caller left without an answer. An approved call runs all the same."


class TimeForm(forms.Form):
    number = forms.IntegerField(
        label="Duration",
        min_value=1,
        max_value=MAX_MINUTES,
        initial=60,
        widget=UnfoldAdminIntegerFieldWidget(attrs={"autocomplete": "off"}),
    )
    unit = forms.ChoiceField(
        label="Unit",
        choices=[("1", "minutes"), ("60", "hours"), ("1440", "days")],
        widget=UnfoldAdminSelectWidget(attrs={"aria-label": "Unit"}),
    )


class RefusalForm(forms.Form):
    words = forms.CharField(
        label="Reason, which the caller sees",
        max_length=MAX_MESSAGE_LENGTH,
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 2}),
    )


class WaitingFilter(OptionsFilter):
    title = "decision"
    parameter_name = "decision"
    options = {
        "waiting": ("waiting", Q(state=Approval.State.WAITING)),
        "decided": ("decided", ~Q(state=Approval.State.WAITING)),
    }


class MineFilter(DropdownFilter):  # type: ignore[misc]
    title = "person"
    parameter_name = "whose"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("mine", "requested or decided by me"), ("others", "requested by others and waiting")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        of_user = Approval.objects.of_user(request.user).values("pk")
        match self.value():
            case "mine":
                return queryset.of_user(request.user)  # type: ignore[attr-defined,no-any-return]
            case "others":
                return queryset.waiting().exclude(pk__in=of_user)  # type: ignore[attr-defined,no-any-return]
        return queryset


def _may_decide(request: HttpRequest) -> bool:
    return request.user.has_perm(PERMISSION)


class DecisionsMixin(ReadOnlyMixin, ButtonsMixin):
    """Users who may decide see the rows and their buttons."""

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return _may_decide(request) or request.user.has_perm(f"executions.view_{self.opts.model_name}")

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def may_press_buttons(self, request: HttpRequest) -> bool:
        return _may_decide(request)


@admin.register(Approval)
class ApprovalAdmin(PanelOnlyMixin, DecisionsMixin):
    list_display = ("tool", "state_shown", "caller_shown", "why", "requested", "expires", "answers")
    list_filter = (WaitingFilter, MineFilter, ("state", ChoicesDropdownFilter))
    list_select_related = ("execution",)
    list_per_page = 50
    newest_by = "requested_at"
    ordering = ("-requested_at", "-pk")
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    search_fields = ("execution__tool_name", "execution__caller_name", "reason", "outcome")
    search_help_text = f"Tools, callers, reasons and outcomes, in the newest {SEARCHED:,}"
    history_model = Execution
    change_form_outer_before_template = "executions/admin/approval.html"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Approval]:
        approvals: QuerySet[Approval] = super().get_queryset(request)
        return approvals.prefetch_related("decisions")

    def get_urls(self) -> list[URLPattern]:
        return [
            path(
                f"<uuid:key>/{name}/",
                self.admin_site.admin_view(partial(self._decide, name=name)),
                name=f"executions_approval_{name}",
            )
            for name in ("approve", "approve_for", "refuse")
        ] + super().get_urls()

    tool = column("tool name", "execution__tool_name", wrapped)
    requested = column("requested", "requested_at")

    @admin.display(description="state", ordering="state")
    def state_shown(self, approval: Approval) -> SafeString:
        return badge(approval.get_state_display(), STATE_BADGES[Approval.State(approval.state)])

    @admin.display(description="caller")
    def caller_shown(self, approval: Approval) -> SafeString:
        return side_by_side([approval.execution.caller_name or approval.execution.caller, *_gone(approval)])

    @admin.display(description="reason")
    def why(self, approval: Approval) -> SafeString:
        return paragraphs(approval.outcome or approval.reason)

    @admin.display(description="expires", ordering="expires_at")
    def expires(self, approval: Approval) -> str:
        return exactly(approval.expires_at) if approval.is_waiting else ""

    @admin.display(description="approvals")
    def answers(self, approval: Approval) -> str:
        given = sum(one.verdict == Verdict.APPROVE for one in approval.decisions.all())
        return f"{given} of {approval.approvers_needed}"

    def panel(self, request: HttpRequest, obj: Approval) -> dict[str, Any]:
        execution = Execution.objects.select_related("workflow__source").get(pk=obj.pk)
        payload = ExecutionPayload.objects.filter(pk=obj.pk).first()
        is_open = obj.is_waiting and obj.expires_at > timezone.now() and _may_decide(request)
        decisions = [
            [ago(one.at), one.user_name, _answer(one.verdict, one.minutes), paragraphs(one.words)]
            for one in obj.decisions.all()
        ]
        return {
            "headline": [
                side_by_side([self.state_shown(obj), *_gone(obj)]),
                paragraphs(obj.outcome or obj.reason),
            ],
            "facts": _facts(request, obj, execution, payload),
            "arguments": ""
            if payload is None or payload.input is None
            else pretty_json(payload.input, uncut=True),
            "past": _shown_past(read_past(execution)),
            "decisions": table(("When", "Who", "Answer", "Words"), decisions),
            "is_open": is_open,
            "is_gone": execution.is_unanswered,
            "is_own": is_own_call(obj, execution, request.user),
            "barred": "" if may_approve(obj, execution, request.user) else OWN_CALL,
            "off": execution.workflow and switched_off(execution.workflow, execution.door),
            "time_form": TimeForm(),
            "refusal_form": RefusalForm(),
        }

    def _decide(self, request: HttpRequest, key: Any, name: str) -> HttpResponseBase:
        if not _may_decide(request):
            raise PermissionDenied
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        answer = HttpResponseRedirect(reverse("admin:executions_approval_change", args=[key]))
        kind = {"approve_for": TimeForm, "refuse": RefusalForm}.get(name, forms.Form)
        form: forms.Form = kind(request.POST)
        if not form.is_valid():
            for field, problems in form.errors.items():
                label = form.fields[field].label
                messages.error(request, f"Nothing was decided. {label}: {' '.join(map(str, problems))}")
            return answer
        minutes = None
        if name == "approve_for":
            minutes = form.cleaned_data["number"] * int(form.cleaned_data["unit"])
        verdict = Verdict.REFUSE if name == "refuse" else Verdict.APPROVE
        words = form.cleaned_data.get("words", "")
        try:
            decided = decide(key, user=request.user, verdict=verdict, words=words, minutes=minutes)
        except UnknownApproval as error:
            raise Http404(str(error)) from None
        except NotDecided as error:
            messages.error(request, str(error))
            return answer
        done = "Approved." if verdict == Verdict.APPROVE else "Refused."
        self.log_change(request, decided.execution, done)
        messages.success(request, decided.outcome or f"{done} The call waits for another person's approval.")
        return answer


def _gone(approval: Approval) -> list[SafeString]:
    """A badge if nobody waits for the answer any more."""
    return [badge("caller is gone", "warning", title=CALLER_GONE)] if approval.is_unanswered else []


def _answer(verdict: str, minutes: int | None) -> str:
    if verdict == Verdict.REFUSE:
        return "refused"
    return "approved, this call" if minutes is None else f"approved, for {timedelta(minutes=minutes)}"


def _facts(
    request: HttpRequest, approval: Approval, execution: Execution, payload: ExecutionPayload | None
) -> list[tuple[str, Any]]:
    client = (payload.metadata if payload else {}).get("client") or {}
    named = " ".join(str(client[part]) for part in ("name", "version", "user_agent") if client.get(part))
    workflow: Any = execution.tool_name
    if execution.workflow_id is not None:
        workflow = link_if_allowed(request, workflow, "catalogue_workflow_change", execution.workflow_id)
    caller = show_caller(request, key=execution.caller, name=execution.caller_name)
    waits = show_wait(execution) or "the caller can ask for the result"
    standing = approval.standing
    earlier = "" if standing is None else link(standing, "executions_standingapproval_change", standing.pk)
    record = link_if_allowed(request, "its record", "executions_execution_change", execution.pk)
    return [
        ("Workflow", workflow),
        ("Source", execution.source_name),
        ("Caller", format_html("{} by {}", caller, execution.get_door_display())),
        ("On behalf of", "" if approval.asked_by is None else approval.asked_by.get_username()),
        ("Client", printable(named)),
        ("Caller waits", waits if approval.is_waiting else ""),
        ("Toolset", execution.toolset),
        ("Reason", paragraphs(approval.reason) if approval.outcome else ""),
        ("Approvals required", str(approval.approvers_needed)),
        ("Requested", exactly(approval.requested_at)),
        ("Expires" if approval.is_waiting else "Would have expired", exactly(approval.expires_at)),
        ("Decided", exactly(approval.decided_at) if approval.decided_at else ""),
        ("Earlier approval", earlier),
        ("Execution", side_by_side([state_badge(execution), str(record)])),
    ]


def _shown_past(past: Past) -> dict[str, Any]:
    rate = past.success_rate
    told = "The tool has never run."
    if past.runs:
        told = f"Recent runs: {past.runs:,}, {past.by_caller:,} of them by this caller. "
        ended = f"Ended: {past.ended:,}, of which {past.succeeded:,} succeeded"
        told += "No run has ended." if rate is None else f"{ended} ({rate:.0%})."
    rows = [
        [ago(run.created_at), state_badge(run), run.caller_name or run.caller, duration(run.duration_ms)]
        for run in past.last
    ]
    return {"told": told, "table": table(("When", "State", "Caller", "Took"), rows)}


class StandingFilter(OptionsFilter):
    title = "state"
    parameter_name = "valid"
    options = {
        "yes": ("valid", StandingApproval.valid_now),
        "no": ("ended", lambda: ~StandingApproval.valid_now()),
    }


@admin.register(StandingApproval)
class StandingApprovalAdmin(DecisionsMixin):
    list_display = ("tool_name", "caller_shown", "granted_by", "granted", "holds")
    list_filter = (StandingFilter,)
    search_fields = ("tool_name", "caller_name", "granted_by")
    search_help_text = f"Tools, callers and approvers, in the newest {SEARCHED:,}"
    newest_by = "granted_at"
    show_full_result_count = False
    list_per_page = 50
    buttons = ("revoke",)
    fields = (
        "tool_name",
        "caller",
        "caller_name",
        "granted_by",
        "granted_at",
        "until",
        "revoked_at",
        "revoked_by",
    )
    change_form_outer_before_template = "catalogue/admin/panel.html"

    def get_buttons(self, request: HttpRequest, obj: StandingApproval) -> list[Button]:
        return super().get_buttons(request, obj) if obj.is_valid else []

    @admin.display(description="caller", ordering="caller_name")
    def caller_shown(self, standing: StandingApproval) -> str:
        return standing.caller_name or standing.caller

    granted = column("granted", "granted_at")

    @admin.display(description="valid until", ordering="until")
    def holds(self, standing: StandingApproval) -> str:
        return exactly(standing.until) if standing.revoked_at is None else f"revoked by {standing.revoked_by}"

    @button(
        "Revoke",
        icon="block",
        variant="danger",
        confirm="Revoke this approval? The next call needs a new one.",
    )
    def revoke(self, request: HttpRequest, standing: StandingApproval) -> None:
        if revoke_standing(standing.pk, by=request.user.get_username()):
            messages.success(request, "Revoked. The next call needs a new approval.")
        else:
            messages.warning(request, "The approval has already ended.")

    def panel(self, request: HttpRequest, obj: StandingApproval) -> dict[str, Any]:
        state = badge("valid", "success") if obj.is_valid else badge("ended")
        used = f"{counted(obj.used_by.count(), 'call')} used this approval."
        return {"headline": [side_by_side([state, used])], "facts": []}
