from collections.abc import Callable
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import Exists, Max, OuterRef, Q, QuerySet, Subquery, Sum
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html

from catalogue.actions.workflows import disable_workflows
from catalogue.admin.base import SHOWN_NAMES, OptionsFilter
from catalogue.admin.rendering import DASH, ago, chip, duration, link, link_if_allowed, table
from catalogue.exposure import members_of_toolsets
from catalogue.history import actor_of
from catalogue.models import Toolset, Workflow
from catalogue.models.workflow import WorkflowQuerySet
from catalogue.naming import counted
from executions import statistics
from executions.admin.page import ALL_TOOLS, UNSUCCESSFUL, show_caller
from executions.models import HourlyUsage
from executions.models.usage import FAILURES

MAY_LOOK = "executions.view_execution"
PAGE = "admin:executions_usage"
UNCALLED_PAGE = "admin:executions_uncalled"
EXECUTIONS = "executions_execution_changelist"
ROWS = 100
UNCALLED_DAYS = (7, 30, 90)
MAX_UNCALLED = 500
TABS = {
    statistics.Subject.TOOL: "Tools",
    statistics.Subject.TOOLSET: "Toolsets",
    statistics.Subject.CALLER: "Callers",
}
ORDERS: dict[str, tuple[str, Callable[[statistics.Use], Any]]] = {
    "name": ("Name", lambda use: use.name.casefold()),
    "calls": ("Calls", lambda use: use.figures.calls),
    "failures": ("Failed", lambda use: use.figures.failures),
    "p50": ("Median", lambda use: use.figures.p50_ms or -1),
    "p95": ("95th percentile", lambda use: use.figures.p95_ms or -1),
    "in": ("Tokens in", lambda use: use.figures.input_characters),
    "out": ("Tokens out", lambda use: use.figures.output_characters),
    "last": ("Last call", lambda use: use.figures.last_at),
}


class UsageForm(forms.Form):
    """Invalid parameters fall back to the defaults."""

    by = forms.ChoiceField(choices=[(subject.value, label) for subject, label in TABS.items()])
    period = forms.ChoiceField(choices=[(period.value, period.words) for period in statistics.Period])
    order = forms.ChoiceField(choices=[(f"{sign}{name}", name) for name in ORDERS for sign in ("", "-")])

    @property
    def chosen(self) -> tuple[statistics.Subject, statistics.Period, str]:
        self.full_clean()
        given = self.cleaned_data
        subject = statistics.Subject(given.get("by") or statistics.Subject.TOOL)
        return (
            subject,
            statistics.Period(given.get("period") or statistics.Period.WEEK),
            given.get("order") or "-calls",
        )


def query_of(subject: statistics.Subject, use: statistics.Use) -> dict[str, str]:
    if subject is statistics.Subject.TOOLSET:
        return {"toolset": use.key or ALL_TOOLS}
    if subject is statistics.Subject.CALLER:
        return {"caller__exact": use.key}
    if use.workflow_id is not None:
        return {"workflow__id__exact": str(use.workflow_id)}
    return {"tool_name__exact": use.key, "workflow__isnull": "True"}


def linked(number: int, period: statistics.Period, /, **query: str) -> Any:
    address = "?" + urlencode(query | {"ended": period.value})
    return link(f"{number:,}", EXECUTIONS, query=address) if number else DASH


def shown_figures(figures: statistics.Figures, period: statistics.Period, query: dict[str, str]) -> list[Any]:
    return [
        linked(figures.calls, period, **query),
        linked(figures.failures, period, **query, state__exact=UNSUCCESSFUL),
        duration(figures.p50_ms),
        duration(figures.p95_ms),
        f"{figures.input_tokens:,}",
        f"{figures.output_tokens:,}",
        ago(figures.last_at),
    ]


def show_usage(request: HttpRequest) -> HttpResponse:
    if not request.user.has_perm(MAY_LOOK):
        raise PermissionDenied
    form = UsageForm(request.GET)
    subject, period, order = form.chosen
    uses = statistics.usage_by(subject, period)
    uses.sort(key=lambda use: use.name)
    uses.sort(key=ORDERS[order.lstrip("-")][1], reverse=order.startswith("-"))
    page = Paginator(uses, ROWS).get_page(request.GET.get("page"))
    chosen = {"by": subject.value, "period": period.value, "order": order}
    context = admin.site.each_context(request) | {
        "title": "Usage",
        "tabs": [
            *_choices(chosen, "by", {subject.value: label for subject, label in TABS.items()}),
            (reverse(UNCALLED_PAGE), "Not called", False),
        ],
        "periods": _choices(chosen, "period", {one.value: one.words for one in statistics.Period}),
        "headers": [_header(chosen, name, heading) for name, (heading, _) in ORDERS.items()],
        "rows": [_row(request, subject, period, use) for use in page],
        "page": page,
        "pages": [
            (f"?{urlencode(chosen | {'page': number})}", number, number == page.number)
            for number in page.paginator.page_range
        ]
        if page.has_other_pages()
        else [],
        "period": period,
    }
    return TemplateResponse(request, "executions/admin/usage.html", context)


def _choices(chosen: dict[str, str], name: str, values: dict[str, str]) -> list[tuple[str, str, bool]]:
    return [
        (f"{reverse(PAGE)}?{urlencode(chosen | {name: value})}", label, chosen[name] == value)
        for value, label in values.items()
    ]


def _header(chosen: dict[str, str], name: str, heading: str) -> dict[str, Any]:
    present = chosen["order"]
    order = f"-{name}" if name != "name" and present != f"-{name}" else name
    if name == "name" and present == "name":
        order = "-name"
    sorted_by = present.lstrip("-") == name
    direction = ("descending" if present.startswith("-") else "ascending") if sorted_by else ""
    return {
        "heading": heading,
        "address": f"?{urlencode(chosen | {'order': order})}",
        "direction": direction,
        "icon": {"descending": "arrow_downward", "ascending": "arrow_upward"}.get(direction, ""),
    }


def _row(
    request: HttpRequest, subject: statistics.Subject, period: statistics.Period, use: statistics.Use
) -> list[Any]:
    figures, query = use.figures, query_of(subject, use)
    calls, failures, *others = shown_figures(figures, period, query)
    if figures.failures:
        failures = format_html("{} ({:})", failures, f"{figures.failures / figures.calls:.0%}")
    return [_name(request, subject, use), calls, failures, *others]


def _name(request: HttpRequest, subject: statistics.Subject, use: statistics.Use) -> Any:
    match subject:
        case statistics.Subject.CALLER:
            return show_caller(request, key=use.key, name=use.name)
        case statistics.Subject.TOOLSET:
            return use.name or "none: the address for all tools"
    if use.workflow_id is None:
        return f"{use.name} (deleted)"
    return link_if_allowed(request, use.name, "catalogue_workflow_change", use.workflow_id)


def _disable_uncalled(request: HttpRequest, uncalled: WorkflowQuerySet) -> HttpResponse:
    """Shows the consequences first; disables once confirmed."""
    chosen = [key for key in request.POST.getlist("workflow") if key.isdecimal()][:MAX_UNCALLED]
    # Filtered again: one may have been called since the page was shown.
    shown = Workflow.objects.for_lists().filter(pk__in=uncalled.filter(pk__in=chosen).values("pk"))
    workflows = {workflow.pk: workflow for workflow in shown}
    if not workflows:
        messages.warning(request, "Nothing to disable. Choose at least one workflow without calls.")
    elif "confirmed" in request.POST:
        disabled = disable_workflows(Workflow.objects.filter(pk__in=list(workflows)), by=actor_of(request))
        messages.success(request, f"Disabled: {disabled}.")
    else:
        return _ask_before_disabling(request, workflows)
    return HttpResponseRedirect(request.get_full_path())


def _ask_before_disabling(request: HttpRequest, workflows: dict[int, Workflow]) -> HttpResponse:
    number = len(workflows)
    losing = {
        toolset: (len(lost), len(members))
        for toolset, members in members_of_toolsets().items()
        if (lost := members & workflows.keys())
    }
    keys = dict(Toolset.objects.filter(slug__in=losing).values_list("slug", "pk"))
    consequences = [
        format_html(
            "{} loses {} of its {}",
            link_if_allowed(request, toolset, "catalogue_toolset_change", keys[toolset]),
            lost,
            counted(whole, "workflow"),
        )
        for toolset, (lost, whole) in losing.items()
        if toolset in keys
    ]
    context = admin.site.each_context(request) | {
        "title": f"Disable {counted(number, 'workflow')}",
        "note": "Agents cannot see or call these workflows until you enable them again.",
        "names": [chip(workflow.tool_name) for workflow in list(workflows.values())[:SHOWN_NAMES]],
        "more": max(0, number - SHOWN_NAMES),
        "consequences": [(f"Toolsets that lose workflows: {len(consequences)}", consequences)]
        if consequences
        else [("No toolset contains any of these workflows", consequences)],
        "sent": [("confirmed", "yes"), *(("workflow", key) for key in workflows)],
        "back": request.get_full_path(),
        "variant": "danger",
    }
    return TemplateResponse(request, "catalogue/admin/bulk_form.html", context)


def show_uncalled(request: HttpRequest) -> HttpResponse:
    if not (request.user.has_perm(MAY_LOOK) and request.user.has_perm("catalogue.view_workflow")):
        raise PermissionDenied
    days = next((days for days in UNCALLED_DAYS if request.GET.get("days") == str(days)), 30)
    uncalled = statistics.uncalled_workflows(days=days).select_related("source").order_by("tool_name")
    may_disable = request.user.has_perm("catalogue.change_workflow")
    if request.method == "POST":
        if not may_disable:
            raise PermissionDenied
        return _disable_uncalled(request, uncalled)
    number = uncalled.count()
    shown = list(uncalled.for_lists()[:MAX_UNCALLED])
    last_calls = statistics.last_calls_of(workflow.pk for workflow in shown)
    context = admin.site.each_context(request) | {
        "title": "Not called",
        "tabs": [
            *((f"{reverse(PAGE)}?by={subject.value}", label, False) for subject, label in TABS.items()),
            (reverse(UNCALLED_PAGE), "Not called", True),
        ],
        "periods": [(f"?days={each}", f"{each} days", each == days) for each in UNCALLED_DAYS],
        "days": days,
        "number": number,
        "left_out": number - len(shown),
        "workflows": [
            {
                "key": workflow.pk,
                "tool_name": workflow.tool_name,
                "cells": [
                    link_if_allowed(request, workflow.tool_name, "catalogue_workflow_change", workflow.pk),
                    workflow.source.name,
                    ago(workflow.first_seen_at),
                    ago(last_calls.get(workflow.pk)) if workflow.pk in last_calls else "never",
                ],
            }
            for workflow in shown
        ],
        "headers": ("Tool", "Source", "First seen", "Last call"),
        "may_disable": may_disable,
    }
    return TemplateResponse(request, "executions/admin/uncalled.html", context)


MONTH = statistics.Period.MONTH


def note_usage(workflows: list[Any]) -> None:
    """Sets the figures on the workflows of a list page, with at most four queries."""
    found = statistics.calls_of((workflow.pk for workflow in workflows), MONTH)
    figures = {workflow.pk: found.get(workflow.pk, statistics.Figures()) for workflow in workflows}
    last_calls = statistics.last_calls_of(key for key, each in figures.items() if not each.calls)
    for workflow in workflows:
        workflow.figures = figures[workflow.pk]
        workflow.last_call = workflow.figures.last_at or last_calls.get(workflow.pk)


def usage_orders() -> dict[str, Any]:
    recent = statistics.usage_since(MONTH.start()).filter(workflow=OuterRef("pk")).order_by()
    failed = recent.filter(outcome__in=FAILURES)
    ever = HourlyUsage.objects.filter(workflow=OuterRef("pk")).order_by()
    return {
        "usage_calls": Coalesce(Subquery(_total(recent)), 0),
        "usage_failures": Coalesce(Subquery(_total(failed)), 0),
        # Databases differ in where they sort NULL.
        "usage_last_call": Coalesce(
            Subquery(ever.values("workflow").annotate(last=Max("last_at")).values("last")),
            datetime.fromisoformat("1970-01-01T00:00:00+00:00"),
        ),
    }


def _total(rows: QuerySet[HourlyUsage]) -> QuerySet[HourlyUsage, Any]:
    return rows.values("workflow").annotate(total=Sum("calls")).values("total")


@admin.display(description="calls, 30 days", ordering="usage_calls")
def calls(workflow: Any) -> str:
    return _number(workflow, workflow.figures.calls)


@admin.display(description="failed", ordering="usage_failures")
def failures(workflow: Any) -> str:
    return _number(workflow, workflow.figures.failures, f"&state__exact={UNSUCCESSFUL}")


@admin.display(description="last called", ordering="usage_last_call")
def last_call(workflow: Any) -> str:
    return ago(workflow.last_call)


def _number(workflow: Workflow, number: int, further: str = "") -> str:
    if not number:
        return DASH
    query = f"?workflow__id__exact={workflow.pk}&ended={MONTH.value}{further}"
    return link(f"{number:,}", EXECUTIONS, query=query)


def _has_failed() -> Q:
    recent = statistics.usage_since(MONTH.start()).filter(workflow=OuterRef("pk"))
    return Q(Exists(recent.filter(outcome__in=FAILURES)))


class UseFilter(OptionsFilter):
    title = "use"
    parameter_name = "use"
    options = {
        "called": ("called in the last 30 days", lambda: Q(statistics.called_since(MONTH.start()))),
        "uncalled": ("not called in the last 30 days", lambda: ~Q(statistics.called_since(MONTH.start()))),
        "never": ("never called", lambda: ~Q(statistics.called_since())),
        "failing": ("failed in the last 30 days", _has_failed),
    }


def usage_section(request: HttpRequest, workflow: Workflow) -> tuple[str, Any]:
    if not request.user.has_perm("executions.view_execution"):
        return ("Usage", "")
    query, rows = {"workflow__id__exact": str(workflow.pk)}, []
    for period in reversed(statistics.Period):
        ended = statistics.usage_since(period.start()).filter(workflow=workflow)
        figures = statistics.figures_by(ended).get((), statistics.Figures())
        rows.append([f"Last {period.words}", *shown_figures(figures, period, query)])
        if not figures.calls:
            break
    headings = ("", "Calls", "Failed", "Median", "95th percentile", "Tokens in", "Tokens out", "Last call")
    return ("Usage", table(headings, rows))
