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
from django.utils.safestring import SafeString
from django.utils.text import format_lazy
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _
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
from catalogue.admin.form_fields import MONOSPACE
from catalogue.admin.rendering import (
    badge,
    exactly,
    paragraphs,
    side_by_side,
    wrapped,
)
from catalogue.long_lists import SEARCHED
from connectors.formats.json import as_object, readable_json
from executions.admin.page import describe_caller, describe_client, show_runs
from executions.approvals import (
    MAX_MESSAGE_LENGTH,
    MAX_MINUTES,
    OWN_CALL,
    PERMISSION,
    NotDecided,
    UnknownApproval,
    Verdict,
    change_arguments,
    changed_names,
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
        label=_("Duration"),
        min_value=1,
        max_value=MAX_MINUTES,
        initial=60,
        widget=UnfoldAdminIntegerFieldWidget(attrs={"autocomplete": "off"}),
    )
    unit = forms.ChoiceField(
        label=_("Unit"),
        choices=[("1", _("minutes")), ("60", _("hours")), ("1440", _("days"))],
        widget=UnfoldAdminSelectWidget(attrs={"aria-label": _("Unit")}),
    )


class RefusalForm(forms.Form):
    words = forms.CharField(
        label=_("Reason, which the caller sees"),
        max_length=MAX_MESSAGE_LENGTH,
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 2}),
    )


class ReadableJSONField(forms.JSONField):
    def prepare_value(self, value: Any) -> Any:
        return readable_json(value)


class ArgumentsForm(forms.Form):
    arguments = ReadableJSONField(
        label=_("Arguments as JSON"),
        required=False,  # An object without members is a value
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 8, "spellcheck": "false", **MONOSPACE}),
    )


class WaitingFilter(OptionsFilter):
    title = _("decision")
    parameter_name = "decision"
    options = {
        "waiting": (_("waiting"), Q(state=Approval.State.WAITING)),
        "decided": (_("decided"), ~Q(state=Approval.State.WAITING)),
    }


class MineFilter(DropdownFilter):  # type: ignore[misc]
    title = _("person")
    parameter_name = "whose"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [
            ("mine", gettext("requested or decided by me")),
            ("others", gettext("requested by others and waiting")),
        ]

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
    when_empty = _("Calls wait here if their workflow, toolset or arguments require a person's approval.")
    ordering = ("-requested_at", "-pk")
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    search_fields = ("execution__tool_name", "execution__caller_name", "reason", "outcome")
    search_help_text = format_lazy(
        _("Tools, callers, reasons and outcomes, in the newest {}"), f"{SEARCHED:,}"
    )
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
            for name in ("approve", "approve_for", "refuse", "change_arguments")
        ] + super().get_urls()

    tool = column(_("tool name"), "execution__tool_name", wrapped)
    requested = column(_("requested"), "requested_at")

    @admin.display(description=_("state"), ordering="state")
    def state_shown(self, approval: Approval) -> SafeString:
        return badge(approval.get_state_display(), STATE_BADGES[Approval.State(approval.state)])

    @admin.display(description=_("caller"))
    def caller_shown(self, approval: Approval) -> SafeString:
        return side_by_side([approval.execution.caller_name or approval.execution.caller, *_gone(approval)])

    @admin.display(description=_("reason"))
    def why(self, approval: Approval) -> SafeString:
        return paragraphs(approval.outcome or approval.reason)

    @admin.display(description=_("expires"), ordering="expires_at")
    def expires(self, approval: Approval) -> str:
        return exactly(approval.expires_at) if approval.is_waiting else ""

    @admin.display(description=_("approvals"))
    def answers(self, approval: Approval) -> str:
        given = sum(one.verdict == Verdict.APPROVE for one in approval.decisions.all())
        return f"{given} of {approval.approvers_needed}"

    def panel(self, request: HttpRequest, obj: Approval) -> dict[str, Any]:
        execution = Execution.objects.select_related("workflow__source").get(pk=obj.pk)
        payload = ExecutionPayload.objects.filter(pk=obj.pk).first()
        sent = payload and payload.sent_input
        past = read_past(execution)
        return {
            "look": STATE_BADGES[Approval.State(obj.state)],
            "caller_gone": CALLER_GONE,
            "run": execution,
            "client": describe_client(payload.metadata if payload else {}),
            **describe_caller(execution),
            "arguments": None if sent is None else readable_json(sent),
            "changed_by": payload.changed_by if payload else "",
            "differences": _differences(payload),
            "arguments_form": ArgumentsForm(initial={"arguments": sent}),
            "past": past,
            "success_rate": f"{past.success_rate or 0:.0%}",
            "last_runs": show_runs(past.last),
            "decisions": [(one, _answer(one.verdict, one.minutes)) for one in obj.decisions.all()],
            "is_open": obj.is_waiting and obj.expires_at > timezone.now() and _may_decide(request),
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
        kind = FORMS.get(name, forms.Form)
        form: forms.Form = kind(request.POST)
        if not form.is_valid():
            for field, problems in form.errors.items():
                label = form.fields[field].label
                messages.error(request, f"Nothing was decided. {label}: {' '.join(map(str, problems))}")
            return answer
        try:
            decided = _carry_out(name, key, request, form.cleaned_data)
        except UnknownApproval as error:
            raise Http404(str(error)) from None
        except NotDecided as error:
            messages.error(request, str(error))
            return answer
        done = str(DONE.get(name, _("Approved.")))
        self.log_change(request, decided.execution, done)
        messages.success(request, decided.outcome or f"{done} {_('The call waits for approval.')}")
        return answer


FORMS: dict[str, type[forms.Form]] = {
    "approve_for": TimeForm,
    "refuse": RefusalForm,
    "change_arguments": ArgumentsForm,
}
DONE = {"refuse": _("Refused."), "change_arguments": _("Changed the arguments.")}


def _carry_out(name: str, key: Any, request: HttpRequest, given: dict[str, Any]) -> Approval:
    user, seen = request.user, request.POST.get("seen", "")
    if name == "change_arguments":
        return change_arguments(key, user=user, arguments=given["arguments"], seen=seen)
    minutes = given["number"] * int(given["unit"]) if name == "approve_for" else None
    verdict = Verdict.REFUSE if name == "refuse" else Verdict.APPROVE
    return decide(key, user=user, verdict=verdict, words=given.get("words", ""), minutes=minutes, seen=seen)


def _differences(payload: ExecutionPayload | None) -> list[tuple[str, ...]]:
    """The name of each argument that an approver has changed, what the caller asked for, and what is sent."""
    if payload is None or payload.changed_input is None:
        return []
    asked, sent = as_object(payload.input), as_object(payload.changed_input)
    shown = [{name: readable_json(value) for name, value in one.items()} for one in (asked, sent)]
    return [(name, *(one.get(name, "") for one in shown)) for name in changed_names(asked, sent)]


def _gone(approval: Approval) -> list[SafeString]:
    """A badge if nobody waits for the answer any more."""
    return [badge("caller is gone", "warning", title=CALLER_GONE)] if approval.is_unanswered else []


def _answer(verdict: str, minutes: int | None) -> str:
    if verdict == Verdict.REFUSE:
        return "refused"
    return "approved, this call" if minutes is None else f"approved, for {timedelta(minutes=minutes)}"


class StandingFilter(OptionsFilter):
    title = _("state")
    parameter_name = "valid"
    options = {
        "yes": (_("valid"), StandingApproval.valid_now),
        "no": (_("ended"), lambda: ~StandingApproval.valid_now()),
    }


@admin.register(StandingApproval)
class StandingApprovalAdmin(DecisionsMixin):
    list_display = ("tool_name", "caller_shown", "granted_by", "granted", "holds")
    list_filter = (StandingFilter,)
    search_fields = ("tool_name", "caller_name", "granted_by")
    search_help_text = format_lazy(
        _("Tools, callers and approvers, in the newest {}"),
        f"{SEARCHED:,}",
    )
    newest_by = "granted_at"
    when_empty = _("An approver can let identical calls of a caller run for a period.")
    show_full_result_count = False
    list_per_page = 50
    buttons = ("revoke",)
    fields = (
        "tool_name", "caller", "caller_name", "granted_by", "granted_at", "until", "revoked_at", "revoked_by",
    )  # fmt: skip
    change_form_outer_before_template = "catalogue/admin/panel.html"

    def get_buttons(self, request: HttpRequest, obj: StandingApproval) -> list[Button]:
        return super().get_buttons(request, obj) if obj.is_valid else []

    @admin.display(description=_("caller"), ordering="caller_name")
    def caller_shown(self, standing: StandingApproval) -> str:
        return standing.caller_name or standing.caller

    granted = column(_("granted"), "granted_at")

    @admin.display(description=_("valid until"), ordering="until")
    def holds(self, standing: StandingApproval) -> str:
        return exactly(standing.until) if standing.revoked_at is None else f"revoked by {standing.revoked_by}"

    @button(
        _("Revoke"),
        icon="block",
        variant="danger",
        confirm="Revoke this approval? The next call needs a new one.",
    )
    def revoke(self, request: HttpRequest, standing: StandingApproval) -> None:
        if revoke_standing(standing.pk, by=request.user.get_username()):
            messages.success(request, gettext("Revoked. The next call needs a new approval."))
        else:
            messages.warning(request, gettext("The approval has already ended."))

    def panel(self, request: HttpRequest, obj: StandingApproval) -> dict[str, Any]:
        state = badge(gettext("valid"), "success") if obj.is_valid else badge(gettext("ended"))
        calls = obj.used_by.count()
        used = ngettext("%s call used this approval.", "%s calls used this approval.", calls) % f"{calls:,}"
        return {"headline": [side_by_side([state, used])], "facts": []}
