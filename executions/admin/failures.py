"""Failures by cause, and running those of one cause again."""

import uuid
from dataclasses import asdict, dataclass
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from unfold.contrib.filters.admin import DropdownFilter

from catalogue.history import actor_of
from executions.admin.page import STATE_BADGES, caller_of, kind_label
from executions.admin.running import MAY_RUN
from executions.failures import (
    STATES,
    WINDOW,
    Cause,
    FailureFilter,
    Failures,
    Named,
    cause_key,
    find_failures,
)
from executions.models import Execution
from executions.rerunning import AT_ONCE, Reruns, plan_reruns, run_again
from executions.statistics import Period

MAY_LOOK = "executions.view_execution"
PAGE, AGAIN = "admin:executions_failures", "admin:executions_again"
EXECUTIONS = "admin:executions_execution_changelist"
SHOWN_CAUSES = 50
SHOWN_NAMES = 5
SHOWN_CHOICES = 12


class FilterForm(forms.Form):
    """Of an address: values that make no sense fall back to the defaults."""

    period = forms.ChoiceField(required=False, choices=[(one.value, one.words) for one in Period])
    tool = forms.CharField(required=False, max_length=255)
    source = forms.CharField(required=False, max_length=255)
    caller = forms.CharField(required=False, max_length=255)
    cause = forms.CharField(required=False, max_length=64)

    @property
    def wanted(self) -> FailureFilter:
        self.full_clean()
        texts = {name: self.cleaned_data.get(name, "") for name in ("tool", "source", "caller")}
        return FailureFilter(period=Period(self.cleaned_data.get("period") or Period.DAY), **texts)


def address(view: str, wanted: FailureFilter, **more: str) -> str:
    query = {name: str(value) for name, value in (asdict(wanted) | more).items() if value}
    return f"{reverse(view)}?{urlencode(query)}"


def runs_address(cause: Cause, wanted: FailureFilter) -> str:
    """The list of the executions of a cause."""
    query = {
        "cause": f"{wanted.period.value}.{cause.key}",
        "tool_name__exact": wanted.tool,
        "source_name": wanted.source,
        "caller__exact": wanted.caller,
    }
    return f"{reverse(EXECUTIONS)}?{urlencode({name: value for name, value in query.items() if value})}"


def like(execution: Execution) -> str:
    """The address of the failures with the cause of this one; empty if it did not fail in their periods."""
    failed_at = execution.finished_at or execution.created_at
    period = next((period for period in Period if period.start() <= failed_at), None)
    if execution.state not in STATES or period is None:
        return ""
    key = cause_key(execution.state, execution.error_kind, execution.error)
    return address(PAGE, FailureFilter(period=period), cause=key)


@dataclass(frozen=True, slots=True)
class Choice:
    text: str
    runs: int
    address: str
    is_chosen: bool = False


@dataclass(frozen=True, slots=True)
class ShownCause:
    cause: Cause
    state: str
    look: str
    """The kind of the badge."""
    kind: str
    """Of the error; empty where the state says as much."""
    runs: str
    """The address of the list of all."""
    again: str
    """The address of the question whether to run them again."""
    tools: list[Choice]
    callers: list[Choice]
    bars: list[tuple[int, str]]
    """The height in percent and what it says, for each hour or day."""


def show_failures(request: HttpRequest) -> HttpResponse:
    if not request.user.has_perm(MAY_LOOK):
        raise PermissionDenied
    form = FilterForm(request.GET)
    wanted = form.wanted
    found = find_failures(wanted)
    chosen = found.find(form.cleaned_data.get("cause", ""))
    causes = [chosen] if chosen else found.causes
    context = admin.site.each_context(request) | {
        "title": _("Failures by cause"),
        "found": found,
        "window": WINDOW,
        "period": wanted.period,
        "causes": [_show(cause, wanted) for cause in causes[:SHOWN_CAUSES]],
        "more": max(0, len(causes) - SHOWN_CAUSES),
        "others": address(PAGE, wanted) if chosen and len(found.causes) > 1 else "",
        "periods": [
            (
                address(PAGE, wanted, period=one, cause=chosen.key if chosen else ""),
                _("Last %s") % one.words,
                one is wanted.period,
            )
            for one in Period
        ],
        "filters": _filters(wanted, found),
        "may_run": request.user.has_perm(MAY_RUN),
    }
    return TemplateResponse(request, "executions/admin/failures.html", context)


def _filters(wanted: FailureFilter, found: Failures) -> list[tuple[str, list[Choice]]]:
    return [
        (label, _choices(wanted, column, found.count(column).most_common(SHOWN_CHOICES)))
        for label, column in ((_("Tool"), "tools"), (_("Source"), "sources"), (_("Called by"), "callers"))
    ]


def _choices(wanted: FailureFilter, column: str, found: list[tuple[Named, int]]) -> list[Choice]:
    """What is chosen can be taken away, also where nothing is found."""
    name = column.removesuffix("s")
    chosen: str = getattr(wanted, name)
    return [
        Choice(text, runs, address(PAGE, wanted, **{name: "" if chosen else value}), bool(chosen))
        for (value, text), runs in found or ([((chosen, chosen), 0)] if chosen else [])
    ]


def _show(cause: Cause, wanted: FailureFilter) -> ShownCause:
    begins = wanted.period.buckets()
    runs = [cause.buckets[number] for number in range(len(begins))]
    return ShownCause(
        cause=cause,
        state=str(cause.state.label),
        look=STATE_BADGES[cause.state],
        kind=kind_label(cause.error_kind),
        runs=runs_address(cause, wanted),
        again=address(AGAIN, wanted, cause=cause.key),
        tools=_choices(wanted, "tools", cause.tools.most_common(SHOWN_NAMES)),
        callers=_choices(wanted, "callers", cause.callers.most_common(SHOWN_NAMES)),
        bars=[
            (round(100 * count / max(runs)), f"{wanted.period.label(begin)}: {count:,}")
            for begin, count in zip(begins, runs, strict=True)
        ],
    )


def ask_to_run_again(request: HttpRequest) -> HttpResponse:
    """Says how many of a cause can be run again and why the others are not; runs them once confirmed."""
    if not (request.user.has_perm(MAY_LOOK) and request.user.has_perm(MAY_RUN)):
        raise PermissionDenied
    form = FilterForm(request.GET)
    wanted = form.wanted
    if request.method == "POST":
        return _run(request, address(PAGE, wanted))
    cause = find_failures(wanted).find(form.cleaned_data.get("cause", ""))
    if cause is None:
        messages.warning(request, _("The last %s have no failures with that cause.") % wanted.period.words)
        return HttpResponseRedirect(address(PAGE, wanted))
    plan = plan_reruns(cause.keys)
    asked = plan.ready[:AT_ONCE]
    context = admin.site.each_context(request) | {
        "title": _("Run again"),
        "cause": cause,
        "asked": asked,
        "later": len(plan.ready) - len(asked),
        "keys": ",".join(str(execution.pk) for execution in asked),
        "obstacles": [(count, obstacle.label) for obstacle, count in plan.obstacles.items()],
        "back": address(PAGE, wanted),
    }
    return TemplateResponse(request, "executions/admin/run_again.html", context)


class KeysForm(forms.Form):
    keys = forms.CharField(max_length=AT_ONCE * 37)

    def clean_keys(self) -> list[uuid.UUID]:
        try:
            return [uuid.UUID(key) for key in self.cleaned_data["keys"].split(",")][:AT_ONCE]
        except ValueError:
            raise forms.ValidationError(_("These are not ids of executions.")) from None


def _run(request: HttpRequest, back: str) -> HttpResponse:
    form = KeysForm(request.POST)
    keys = form.cleaned_data["keys"] if form.is_valid() else []
    plan = plan_reruns(keys)
    done = run_again(
        plan.ready,
        caller=caller_of(request),
        actor=actor_of(request),
        may_be_hidden=request.user.has_perm("catalogue.change_workflow"),
    )
    for obstacle, count in plan.obstacles.items():
        done.refusals[str(obstacle.label)] += count
    return _tell(request, done, back)


def _tell(request: HttpRequest, done: Reruns, back: str) -> HttpResponse:
    for why, count in done.refusals.items():
        messages.warning(request, _("%(count)d not run again: %(why)s") % {"count": count, "why": why})
    if not done.started:
        if not done.refusals:
            messages.warning(request, _("Nothing was run again."))
        return HttpResponseRedirect(back)
    count = len(done.started)
    told = ngettext("%d execution was run again.", "%d executions were run again.", count) % count
    messages.success(request, told)
    query = {
        "caller__exact": done.started[0].caller,
        "door__exact": Execution.Door.ADMIN.value,
        "created_at__gte": min(execution.created_at for execution in done.started).isoformat(),
    }
    return HttpResponseRedirect(f"{reverse(EXECUTIONS)}?{urlencode(query)}")


class CauseFilter(DropdownFilter):  # type: ignore[misc]
    """Chosen on the page of failures: a period and the key of a cause. It has no other choices."""

    title = gettext_lazy("cause")
    parameter_name = "cause"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        chosen = request.GET.get(self.parameter_name, "")
        period, _dot, key = chosen.partition(".")
        self.keys: list[uuid.UUID] = []
        if not key:
            return []
        given = {
            "period": period,
            "tool": request.GET.get("tool_name__exact", ""),
            "source": request.GET.get("source_name", ""),
            "caller": request.GET.get("caller__exact", ""),
        }
        wanted = FilterForm(given).wanted
        if (cause := find_failures(wanted).find(key)) is None:
            return [(chosen, _("no longer among the failures"))]
        self.keys = cause.keys
        return [(chosen, cause.words or _("No error is recorded."))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Execution]) -> QuerySet[Execution]:
        return queryset.filter(pk__in=self.keys) if self.value() else queryset
