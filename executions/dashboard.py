"""The numbers on the admin's first page."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.db.models import Count, Min, Q
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone
from django.utils.timesince import timesince

from catalogue.admin.rendering import ago, duration, link, table
from catalogue.exposure import current_catalogue
from catalogue.models import Source, Workflow
from executions.admin.page import STATE_BADGES, state_badge
from executions.models import Execution, State

WINDOW = timedelta(hours=24)
SHOWN_ROWS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    title: str
    number: int
    url: str
    badges: list[tuple[str, str]] = field(default_factory=list)
    """Text and kind."""


further_cards: dict[str, tuple[Callable[[], Card], ...]] = {}
"""By permission: what the rooms above count; they add themselves."""


def add_dashboard(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """What people may not look at, they get no numbers of."""
    allowed = request.user.has_perm
    cards: dict[str, tuple[Callable[[], Card], ...]] = {
        "catalogue.view_source": (_sources,),
        "catalogue.view_workflow": (_workflows,),
        "executions.view_execution": (_under_way, _unconfirmed, _executions),
    } | further_cards
    tables = {"catalogue.view_source": _failing_sources, "executions.view_execution": _latest_executions}
    return context | {
        "cards": [make() for permission, makers in cards.items() if allowed(permission) for make in makers],
        "tables": [shown for permission, make in tables.items() if allowed(permission) and (shown := make())],
    }


def _sources() -> Card:
    states = Source.objects.filter(enabled=True).values_list("health_state").annotate(Count("pk")).order_by()
    counts = dict(states)
    kinds = {"ok": "success", "failing": "danger", "held": "warning", "unknown": ""}
    return Card(
        title="Sources switched on",
        number=sum(counts.values()),
        url=reverse("admin:catalogue_source_changelist"),
        badges=[
            (f"{counts[state]} {Source.HealthState(state).label}", kind)
            for state, kind in kinds.items()
            if state in counts
        ],
    )


def _workflows() -> Card:
    exposed = len(current_catalogue().workflows)
    hidden = Workflow.objects.present().count() - exposed
    return Card(
        title="Workflows that agents see",
        number=exposed,
        url=reverse("admin:catalogue_workflow_changelist"),
        badges=[(f"{hidden} not exposed", "")] if hidden > 0 else [],
    )


def _executions() -> Card:
    recent = Execution.objects.filter(created_at__gte=timezone.now() - WINDOW)
    counts = dict(recent.values_list("state").annotate(Count("pk")).order_by())
    return Card(
        title="Executions in the last 24 hours",
        number=sum(counts.values()),
        url=reverse("admin:executions_execution_changelist"),
        badges=[
            (f"{counts[state]} {state.label}", kind)
            for state, kind in STATE_BADGES.items()
            if counts.get(State(state))
        ],
    )


def _under_way() -> Card:
    """What the engines have in hand, and what waits in front of them."""
    active = Execution.objects.active().order_by()
    queued = Q(state=State.PENDING, admitted_at=None)
    counts = active.aggregate(
        admitted=Count("pk", filter=~queued),
        queued=Count("pk", filter=queued),
        oldest=Min("created_at", filter=queued),
    )
    waiting = [(f"{counts['queued']} waiting in the queue", "warning")] if counts["queued"] else []
    if counts["oldest"]:
        waiting.append((f"the oldest for {timesince(counts['oldest'], depth=1)}", ""))
    return Card(
        title="Executions under way",
        number=counts["admitted"],
        url=reverse("admin:executions_execution_changelist")
        + ("?state__exact=queued" if counts["queued"] else "?state__exact=running"),
        badges=waiting,
    )


def _unconfirmed() -> Card:
    """Those that wait for an admin to find out whether they ran."""
    number = Execution.objects.filter(state=State.UNCONFIRMED).order_by().count()
    return Card(
        title="Unconfirmed executions",
        number=number,
        url=reverse("admin:executions_execution_changelist") + "?state__exact=unconfirmed",
        badges=[("to be resolved", "warning")] if number else [],
    )


Titled = tuple[str, dict[str, Any]]


def _failing_sources() -> Titled | None:
    failing = Source.objects.filter(enabled=True, health_state=Source.HealthState.FAILING)[:SHOWN_ROWS]
    rows = [
        (link(source, "catalogue_source_change", source.pk), ago(source.failing_since), source.health_message)
        for source in failing
    ]
    return ("Failing sources", table(("Source", "Since", "What the engine said"), rows)) if rows else None


def _latest_executions() -> Titled:
    rows = [
        (
            link(execution.tool_name, "executions_execution_change", execution.pk),
            state_badge(execution),
            execution.caller_name,
            ago(execution.created_at),
            duration(execution.duration_ms),
        )
        for execution in Execution.objects.all()[:SHOWN_ROWS]
    ]
    return "Latest executions", table(("Tool", "State", "Caller", "Created", "Took"), rows)
