from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import Exists, Max, OuterRef, Q, QuerySet, Subquery, Sum
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from catalogue.admin.extensions import Cell
from catalogue.admin.facets import OptionsFacet
from catalogue.models import Workflow
from executions import statistics
from executions.admin.page import ALL_TOOLS, UNSUCCESSFUL, Part, page_of_caller
from executions.models import HourlyUsage
from executions.models.usage import FAILURES

MAY_LOOK = "executions.view_execution"
PAGE = "admin:executions_usage"
WORKFLOWS = "admin:catalogue_workflow_changelist"
UNCALLED = {"use": "uncalled", "is": "enabled", "not-changed": "new-month"}  # Of the list of workflows
EXECUTIONS = "executions_execution_changelist"
ROWS = 50
SHOWN_CALLERS = 5
TABS = {
    statistics.Subject.TOOL: gettext_lazy("Tools"),
    statistics.Subject.TOOLSET: gettext_lazy("Toolsets"),
    statistics.Subject.CALLER: gettext_lazy("Callers"),
}
ORDERS: dict[str, tuple[Any, Callable[[statistics.Use], Any]]] = {
    "name": (gettext_lazy("Name"), lambda use: use.name.casefold()),
    "calls": (gettext_lazy("Calls"), lambda use: use.figures.calls),
    "failures": (gettext_lazy("Failed"), lambda use: use.figures.failures),
    "p50": (gettext_lazy("Median"), lambda use: use.figures.p50_ms or -1),
    "p95": (gettext_lazy("95th percentile"), lambda use: use.figures.p95_ms or -1),
    "in": (gettext_lazy("Tokens in"), lambda use: use.figures.input_characters),
    "out": (gettext_lazy("Tokens out"), lambda use: use.figures.output_characters),
    "last": (gettext_lazy("Last call"), lambda use: use.figures.last_at),
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
        "title": _("Usage"),
        "tabs": _choices(chosen, "by", {subject.value: str(label) for subject, label in TABS.items()}),
        "uncalled": f"{reverse(WORKFLOWS)}?{urlencode(UNCALLED)}",
        "periods": _choices(chosen, "period", {one.value: one.words for one in statistics.Period}),
        "headers": [_header(chosen, name, heading) for name, (heading, by) in ORDERS.items()],
        "rows": [show_use(subject, period, use) for use in page],
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


def _choices(chosen: dict[str, str], name: str, values: Mapping[str, Any]) -> list[tuple[str, str, bool]]:
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


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownUse:
    name: str
    view: str
    """The page to which the name leads, with `key`; empty if there is none."""
    key: Any
    figures: statistics.Figures
    calls: str
    """The address of the list of its executions."""
    failures: str
    """The address of its failures."""

    @property
    def share(self) -> str:
        return f"{self.figures.failures / self.figures.calls:.0%}"


def show_use(subject: statistics.Subject, period: statistics.Period, use: statistics.Use) -> ShownUse:
    name, view = use.name, ""
    key: Any = None
    failures = {"period": period.value}
    calls = {**query_of(subject, use), "ended": period.value}
    address = f"{reverse(f'admin:{EXECUTIONS}')}?{urlencode(calls)}"
    match subject:
        case statistics.Subject.CALLER:
            name, (view, key) = f"{use.name} ({use.key})", page_of_caller(use.key)
            failures["caller"] = use.key
        case statistics.Subject.TOOLSET:
            name = use.name or _("none: the address for all tools")
        case _ if use.workflow_id is None:
            name = _("%s (deleted)") % use.name
            failures["tool"] = use.key
        case _:
            view, key = "catalogue_workflow_change", use.workflow_id
            failures["tool"] = use.name
    of_failures = f"{reverse('admin:executions_failures')}?{urlencode(failures)}"
    if subject is statistics.Subject.TOOLSET:
        of_failures = f"{address}&{urlencode({'state__exact': UNSUCCESSFUL})}"
    return ShownUse(name=name, view=view, key=key, figures=use.figures, calls=address, failures=of_failures)


MONTH = statistics.Period.MONTH


def note_usage(workflows: list[Any]) -> None:
    """Sets the figures on the workflows of a list page, with at most four queries."""
    found = statistics.calls_of((workflow.pk for workflow in workflows), MONTH)
    figures = {workflow.pk: found.get(workflow.pk, statistics.Figures()) for workflow in workflows}
    last_calls = statistics.last_calls_of(key for key, each in figures.items() if not each.calls)
    for workflow in workflows:
        workflow.figures = figures[workflow.pk]
        workflow.last_call = workflow.figures.last_at or last_calls.get(workflow.pk)


def recent_callers(request: HttpRequest, workflow: Workflow) -> dict[str, Any] | None:
    """Who called it in the last 30 days, the most frequent callers first."""
    if not request.user.has_perm(MAY_LOOK):
        return None
    recent = statistics.usage_since(MONTH.start()).filter(workflow=workflow).values("caller", "caller_name")
    callers = list(recent.annotate(number=Sum("calls")).order_by("-number")[: SHOWN_CALLERS + 1])
    return {
        "label": _("Called in the last 30 days by"),
        "values": [
            f"{one['caller_name'] or one['caller']} ({one['number']:,})" for one in callers[:SHOWN_CALLERS]
        ],
        "has_more": len(callers) > SHOWN_CALLERS,
    }


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


@admin.display(description=gettext_lazy("calls, 30 days"), ordering="usage_calls")
def calls(workflow: Any) -> Cell:
    return _number(workflow, workflow.figures.calls)


@admin.display(description=gettext_lazy("failed"), ordering="usage_failures")
def failures(workflow: Any) -> Cell:
    return _number(workflow, workflow.figures.failures, f"&state__exact={UNSUCCESSFUL}")


@admin.display(description=gettext_lazy("last called"), ordering="usage_last_call")
def last_call(workflow: Any) -> Cell:
    return Cell(at=workflow.last_call)


def _number(workflow: Workflow, number: int, further: str = "") -> Cell:
    query = f"?workflow__id__exact={workflow.pk}&ended={MONTH.value}{further}"
    return Cell(f"{number:,}", reverse(f"admin:{EXECUTIONS}") + query) if number else Cell()


def _has_failed() -> Q:
    recent = statistics.usage_since(MONTH.start()).filter(workflow=OuterRef("pk"))
    return Q(Exists(recent.filter(outcome__in=FAILURES)))


class UseFacet(OptionsFacet):
    title, name = gettext_lazy("use"), "use"
    may_see = MAY_LOOK
    options = {
        "called": (
            gettext_lazy("called in the last 30 days"),
            lambda: Q(statistics.called_since(MONTH.start())),
        ),
        "uncalled": (
            gettext_lazy("not called in the last 30 days"),
            lambda: ~Q(statistics.called_since(MONTH.start())),
        ),
        "never": (gettext_lazy("never called"), lambda: ~Q(statistics.called_since())),
        "failing": (gettext_lazy("failed in the last 30 days"), _has_failed),
    }


def usage_section(request: HttpRequest, workflow: Workflow) -> tuple[str, Any]:
    """A line for each period, up to the first without calls."""
    if not request.user.has_perm(MAY_LOOK):
        return (_("Usage"), "")
    shown = []
    for period in reversed(statistics.Period):
        ended = statistics.usage_since(period.start()).filter(workflow=workflow)
        figures = statistics.figures_by(ended).get((), statistics.Figures())
        use = statistics.Use(workflow.tool_name, workflow.tool_name, figures, workflow.pk)
        line = show_use(statistics.Subject.TOOL, period, use)
        shown.append(replace(line, name=_("Last %s") % period.words, view=""))
        if not figures.calls:
            break
    return (_("Usage"), Part("executions/admin/tool_uses.html", {"heading": _("Time"), "uses": shown}))
