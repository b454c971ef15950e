"""How often workflows are called, in the catalogue's list of them and on their pages."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

from django.db.models import Max, OuterRef, QuerySet, Subquery, Sum
from django.db.models.functions import Coalesce
from django.http import HttpRequest
from unfold.contrib.filters.admin import DropdownFilter

from catalogue.admin.rendering import DASH, ago, duration, link, table
from catalogue.admin.workflows import WorkflowAdmin
from catalogue.models import Workflow
from executions.admin.filters import UNSUCCESSFUL
from executions.admin.usage import linked_calls, linked_failures
from executions.models import HourlyUsage
from executions.models.usage import FAILURES
from executions.statistics import (
    Figures,
    Period,
    called_since,
    figures_in,
    figures_of_workflows,
    last_calls_of,
    usage_since,
)

MONTH = Period.MONTH
EXECUTIONS = "executions_execution_changelist"


def note_usage(workflows: list[Any]) -> None:
    """On each row of a page, for the columns below: four queries at most."""
    figures = {workflow.pk: Figures() for workflow in workflows}
    for (key, _), found in figures_in(MONTH, "workflow", "tool_name").items():
        if key in figures:
            figures[key].include(found)
    last_calls = last_calls_of(key for key, found in figures.items() if not found.calls)
    for workflow in workflows:
        workflow.figures = figures[workflow.pk]
        workflow.last_call = workflow.figures.last_at or last_calls.get(workflow.pk)


def _usage_orders() -> dict[str, Any]:
    recent = usage_since(MONTH.start()).filter(workflow=OuterRef("pk")).order_by()
    failed = recent.filter(outcome__in=FAILURES)
    ever = HourlyUsage.objects.filter(workflow=OuterRef("pk")).order_by()
    return {
        "usage_calls": Coalesce(Subquery(_total(recent)), 0),
        "usage_failures": Coalesce(Subquery(_total(failed)), 0),
        # NULL would be first on one database and last on the other.
        "usage_last_call": Coalesce(
            Subquery(ever.values("workflow").annotate(last=Max("last_at")).values("last")),
            datetime.fromisoformat("1970-01-01T00:00:00+00:00"),
        ),
    }


def _total(rows: QuerySet[HourlyUsage]) -> QuerySet[HourlyUsage, Any]:
    return rows.values("workflow").annotate(total=Sum("calls")).values("total")


def _column(description: str, order: str) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    def mark(show: Callable[[Any], Any]) -> Callable[[Any], Any]:
        show.short_description = description  # type: ignore[attr-defined]
        show.admin_order_field = order  # type: ignore[attr-defined]
        return show

    return mark


@_column("calls, 30 days", "usage_calls")
def calls(workflow: Any) -> str:
    return _number(workflow, workflow.figures.calls)


@_column("failed", "usage_failures")
def failures(workflow: Any) -> str:
    return _number(workflow, workflow.figures.failures, f"&state__exact={UNSUCCESSFUL}")


@_column("last called", "usage_last_call")
def last_call(workflow: Any) -> str:
    return ago(workflow.last_call)


def _number(workflow: Workflow, number: int, further: str = "") -> str:
    if not number:
        return DASH
    query = f"?workflow__id__exact={workflow.pk}&ended={MONTH.value}{further}"
    return link(f"{number:,}", EXECUTIONS, query=query)


class UseFilter(DropdownFilter):  # type: ignore[misc]
    title = "use"
    parameter_name = "use"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [
            ("called", "called in the last 30 days"),
            ("uncalled", "not called in the last 30 days"),
            ("never", "never called"),
            ("failing", "failed in the last 30 days"),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Workflow]) -> QuerySet[Workflow]:
        match self.value():
            case "called":
                return queryset.filter(called_since(MONTH.start()))
            case "uncalled":
                return queryset.exclude(called_since(MONTH.start()))
            case "never":
                return queryset.exclude(called_since())
            case "failing":
                recent = figures_in(MONTH, "workflow", "tool_name").items()
                return queryset.filter(pk__in={key for (key, _), found in recent if found.failures})
        return queryset


def _usage_section(request: HttpRequest, workflow: Workflow) -> tuple[str, Any]:
    """Of each period that the page *Usage* offers: a query each."""
    if not request.user.has_perm("executions.view_execution"):
        return ("Usage", "")
    query, rows = {"workflow__id__exact": str(workflow.pk)}, []
    for period in reversed(Period):
        figures = figures_of_workflows([workflow.pk], start=period.start()).get(workflow.pk, Figures())
        rows.append(
            [
                f"Last {period.words}",
                linked_calls(figures, period, query),
                linked_failures(figures, period, query),
                duration(figures.p50_ms),
                duration(figures.p95_ms),
                f"{figures.input_tokens:,}",
                f"{figures.output_tokens:,}",
                ago(figures.last_at),
            ]
        )
        if not figures.calls:
            break
    headings = ("", "Calls", "Failed", "Median", "95th percentile", "Tokens in", "Tokens out", "Last call")
    return ("Usage", table(headings, rows))


WorkflowAdmin.further_sections.append(_usage_section)
WorkflowAdmin.prepare_rows.append(note_usage)
WorkflowAdmin.further_orders.append(_usage_orders)
WorkflowAdmin.further_columns += [calls, failures, last_call]
WorkflowAdmin.list_filter = (*WorkflowAdmin.list_filter, UseFilter)  # type: ignore[assignment]
