import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from django.conf import settings
from django.db.models import Count, Max, Min, Q
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone
from django.utils.timesince import timesince, timeuntil

from catalogue.admin.extensions import added, added_by_permission
from catalogue.admin.rendering import ago, duration, link, table
from catalogue.exposure import current_catalogue
from catalogue.models import HistoryEntry, Review, Source, Workflow
from catalogue.naming import counted
from executions.admin.page import UNDER_WAY, UNSUCCESSFUL, state_badge
from executions.admin.usage import query_of, shown_figures
from executions.models import Approval, Execution, HourlyUsage, State
from executions.models.usage import Outcome
from executions.statistics import Figures, Period, Subject, Use, called_since, figures_in, usage_by

WINDOW = timedelta(hours=24)
SHOWN_ROWS = 8
SHOWN_TOOLS = 5
SOURCES, WORKFLOWS = "admin:catalogue_source_changelist", "admin:catalogue_workflow_changelist"
REVIEWS = "admin:catalogue_review_changelist"
EXECUTIONS = "admin:executions_execution_changelist"
APPROVALS = "admin:executions_approval_changelist"


def address(view: str, **query: str) -> str:
    return f"{reverse(view)}?{urlencode(query)}" if query else reverse(view)


@dataclass(frozen=True, kw_only=True, slots=True)
class Numbered:
    number: int
    url: str

    @property
    def told(self) -> str:
        return f"{self.number:,}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Card(Numbered):
    title: str
    badges: list[tuple[str, str, str]] = field(default_factory=list)  # Text, kind, and an address or ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Need(Numbered):
    words: str
    kind: str = "warning"


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    title: str
    done: bool
    url: str
    permission: str


def add_dashboard(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    allowed = request.user.has_perm
    chosen = request.GET.get("period", "")
    period = Period(chosen) if chosen in list(Period) else Period.DAY
    tables = {"catalogue.view_source": _failing_sources, "executions.view_execution": _latest_executions}
    cards_by, needs_by = CARDS | added_by_permission("cards"), NEEDS | added_by_permission("needs")
    needs = [need for permission, make in needs_by.items() if allowed(permission) for need in make()]
    usage = _usage(period) if allowed("executions.view_execution") else {}
    return (
        context
        | usage
        | _first_steps(request)
        | {
            "needs": [need for need in needs if need.number],
            "may_see_needs": any(map(allowed, needs_by)),
            "addresses": [find() for find in added("addresses")],
            "cards": [make() for permission, make in cards_by.items() if allowed(permission)],
            "tables": [
                shown for permission, make in tables.items() if allowed(permission) and (shown := make())
            ],
            "periods": [(f"?period={each.value}", f"Last {each.words}", each is period) for each in Period],
        }
    )


def _first_steps(request: HttpRequest) -> dict[str, Any]:
    """Each with whether the user may take it, and the demo beside them; nothing once all are done."""
    if not request.user.has_perm("catalogue.view_source"):
        return {}
    is_demo = Q(name=settings.DEMO_SOURCE)
    sources = Source.objects.aggregate(own=Count("pk", filter=~is_demo), demo=Max("pk", filter=is_demo))
    decided = HistoryEntry.objects.filter(model=HistoryEntry.label_of(Workflow))
    steps = [
        Step(
            title="Connect an engine of your own",
            done=bool(sources["own"]),
            url=reverse("admin:catalogue_source_add"),
            permission="catalogue.add_source",
        ),
        Step(
            title="Review its workflows",
            done=Workflow.objects.filter(enabled=True).exists() or decided.exists(),
            url=reverse(WORKFLOWS),
            permission="catalogue.view_workflow",
        ),
        Step(
            title="Expose the workflows that agents may use",
            done=bool(current_catalogue().workflows),
            url=address(WORKFLOWS, enabled__exact="0"),
            permission="catalogue.change_workflow",
        ),
        *(make() for make in added("first_steps")),
        Step(
            title="Call a tool: run a workflow here, or connect a client to the address above",
            done=HourlyUsage.objects.exists() or Execution.objects.exists(),
            url=address(WORKFLOWS, visibility="exposed"),
            permission="catalogue.view_workflow",
        ),
    ]
    if all(step.done for step in steps):
        return {}
    shown = [(step, request.user.has_perm(step.permission)) for step in steps]
    return {"steps": shown, "demo": (settings.DEMO_SOURCE, sources["demo"])}


def _source_needs() -> list[Need]:
    enabled = Source.objects.filter(enabled=True)
    return [
        Need(
            number=enabled.filter(health_state=Source.HealthState.FAILING).count(),
            words="Failing sources: discovery of their workflows failed",
            url=address(SOURCES, enabled__exact="1", health_state__exact="failing"),
            kind="danger",
        ),
        Need(
            number=enabled.filter(health_state=Source.HealthState.HELD).count(),
            words="Held listings: too many workflows, or all of them, were missing",
            url=address(SOURCES, enabled__exact="1", health_state__exact="held"),
        ),
    ]


def _workflow_needs() -> list[Need]:
    missing = Workflow.objects.filter(missing_since__isnull=False)
    return [
        Need(
            number=Review.objects.awaiting().changes().count(),
            words="Changed workflows to review: agents see the accepted versions",
            url=address(REVIEWS, kind__exact=Review.Kind.CHANGED.value),
        ),
        Need(
            number=Review.objects.awaiting().new_workflows().count(),
            words="New workflows to review",
            url=address(REVIEWS, kind__exact=Review.Kind.NEW.value),
            kind="info",
        ),
        Need(
            number=missing.filter(called_since(Period.MONTH.start())).count(),
            words="Missing workflows that were called in the last 30 days",
            url=address(WORKFLOWS, available="missing", use="called"),
            kind="danger",
        ),
        Need(
            number=Workflow.objects.present().exclude(resembles="").count(),
            words="Look-alikes: their name or title can be mistaken for another tool's",
            url=address(WORKFLOWS, available="present", lookalike="yes"),
        ),
    ]


def _execution_needs() -> list[Need]:
    return [
        Need(
            number=Execution.objects.filter(state=State.UNCONFIRMED).order_by().count(),
            words="Unconfirmed executions: it is not known whether they ran",
            url=address(EXECUTIONS, state__exact="unconfirmed"),
        )
    ]


NEEDS: dict[str, Callable[[], list[Need]]] = {  # By permission
    "catalogue.view_source": _source_needs,
    "catalogue.view_workflow": _workflow_needs,
    "executions.view_execution": _execution_needs,
}


def _usage(period: Period) -> dict[str, Any]:
    start = period.start()
    over_time = figures_in(period, bucket=period.bucket)
    tools, total = usage_by(Subject.TOOL, period), Figures()
    for figures in over_time.values():
        total.include(figures)
    return {
        "period": period,
        "usage_cards": _usage_cards(period, total.by_outcome),
        "charts": _charts(period, start, {moment: figures for (moment,), figures in over_time.items()}),
        "tool_tables": [
            (title, table(("Tool", "Calls", "Failed", "Median", "95th percentile"), shown))
            for title, shown in (
                ("Slowest tools", _top(tools, period, lambda use: use.figures.p95_ms or 0)),
                ("Tools with the most failures", _top(tools, period, lambda use: use.figures.failures)),
            )
            if shown
        ],
    }


def _top(tools: Iterable[Use], period: Period, number: Callable[[Use], int]) -> list[list[Any]]:
    top = sorted(filter(number, tools), key=lambda use: (-number(use), use.name))[:SHOWN_TOOLS]
    return [[use.name, *shown_figures(use.figures, period, query_of(Subject.TOOL, use))[:4]] for use in top]


def _usage_cards(period: Period, outcomes: dict[str, int]) -> list[Card]:
    ended = {"ended": period.value}
    failed = {Outcome.FAILED: "danger", Outcome.TIMED_OUT: "warning"}
    kinds = {Outcome.COMPLETED: "success", Outcome.CANCELLED: ""}
    badges = _outcome_badges(outcomes, kinds, ended)
    if number := outcomes.get(Outcome.CACHED):
        cached = address(EXECUTIONS, cached="yes", **ended)
        badges.append((f"{number:,} from the result cache", "", cached))
    return [
        Card(
            title=f"Executions in the last {period.words}",
            number=sum(outcomes.values()),
            url=address(EXECUTIONS, **ended),
            badges=badges,
        ),
        Card(
            title=f"Failed in the last {period.words}",
            number=sum(outcomes.get(outcome, 0) for outcome in failed),
            url=address(EXECUTIONS, state__exact=UNSUCCESSFUL, **ended),
            badges=_outcome_badges(outcomes, failed, ended),
        ),
    ]


def _outcome_badges(
    outcomes: dict[str, int], kinds: dict[Outcome, str], query: dict[str, str]
) -> list[tuple[str, str, str]]:
    return [
        (
            f"{outcomes[outcome]:,} {outcome.label}",
            kind,
            address(EXECUTIONS, state__exact=outcome.value, cached="no", **query),
        )
        for outcome, kind in kinds.items()
        if outcomes.get(outcome)
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    title: str
    kind: str
    description: str  # For screen readers
    data: str
    options: str


GREY = "#9ca3af"
RED = "#dc2626"
PRIMARY, LIGHT = "var(--color-primary-600)", "var(--color-primary-300)"


def _charts(period: Period, start: datetime, found: dict[datetime, Figures]) -> list[Chart]:
    now, moments = timezone.now(), [start]
    while moments[-1] + period.bucket <= now:
        moments.append(moments[-1] + period.bucket)
    form = "%H:%M" if period is Period.DAY else "%d %b"
    labels = [moment.strftime(form) for moment in moments]
    figures = [found.get(moment, Figures()) for moment in moments]
    failures = [each.failures for each in figures]
    most, failed = sum(each.calls for each in figures), sum(failures)
    return [
        _chart(
            "Calls", "bar", labels, f"{counted(most, 'call')} in the last {period.words}",
            {"Calls": ([each.calls for each in figures], PRIMARY)},
        ),
        _chart(
            "Failures", "bar", labels, f"{counted(failed, 'failure')} in the last {period.words}",
            {"Failures": (failures, RED)},
        ),
        _chart(
            "Durations in seconds", "line", labels,
            f"How long runs took in the last {period.words}; the tables below name the slowest tools",
            {
                "Median": ([_seconds(each.p50_ms) for each in figures], LIGHT),
                "95th percentile": ([_seconds(each.p95_ms) for each in figures], PRIMARY),
            },
        ),
    ]  # fmt: skip


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else round(milliseconds / 1000, 2)


def _chart(
    title: str, kind: str, labels: list[str], description: str, lines: dict[str, tuple[list[Any], str]]
) -> Chart:
    datasets = [
        {
            "label": label,
            "data": values,
            "backgroundColor": color,
            "borderColor": color,
            "borderWidth": 0 if kind == "bar" else 2,
            "borderRadius": 2,
            "borderJoinStyle": "round",  # A mitre would reach below zero where a line turns sharply.
            "pointRadius": 2,
            "spanGaps": True,
        }
        for label, (values, color) in lines.items()
    ]
    ticks = {"color": GREY, "maxRotation": 0, "autoSkipPadding": 12}
    options = {
        "animation": False,
        "responsive": True,
        "maintainAspectRatio": False,
        "interaction": {"mode": "index", "intersect": False},
        "plugins": {
            "legend": {
                "display": len(lines) > 1,
                "align": "end",
                "labels": {"boxHeight": 5, "boxWidth": 5, "color": GREY},
            }
        },
        "scales": {
            "x": {"grid": {"display": False}, "ticks": ticks},
            "y": {
                "beginAtZero": True,
                "border": {"display": False},
                "grid": {"tickWidth": 0},
                "ticks": {"color": GREY, "maxTicksLimit": 5} | ({"precision": 0} if kind == "bar" else {}),
            },
        },
    }
    return Chart(
        title=title,
        kind=kind,
        description=description,
        data=json.dumps({"labels": labels, "datasets": datasets}),
        options=json.dumps(options),
    )


def _sources() -> Card:
    states = Source.objects.filter(enabled=True).values_list("health_state").annotate(Count("pk")).order_by()
    counts, enabled = dict(states), {"enabled__exact": "1"}
    kinds = {"ok": "success", "failing": "danger", "held": "warning"}
    return Card(
        title="Enabled sources",
        number=sum(counts.values()),
        url=address(SOURCES, **enabled),
        badges=[
            (
                f"{counts[state]} {state.label}",
                kinds.get(state, ""),
                address(SOURCES, **enabled, health_state__exact=state),
            )
            for state in Source.HealthState
            if state in counts
        ],
    )


def _workflows() -> Card:
    exposed = len(current_catalogue().workflows)
    hidden = Workflow.objects.present().count() - exposed
    return Card(
        title="Workflows that agents see",
        number=exposed,
        url=address(WORKFLOWS, visibility="exposed"),
        badges=[(f"{hidden} not exposed", "", "")] if hidden > 0 else [],
    )


def _under_way() -> Card:
    # Two statements, each from an index; no index covers both.
    counts = Execution.objects.queued().order_by().aggregate(queued=Count("pk"), oldest=Min("created_at"))
    badges = []
    if counts["queued"]:
        waiting = address(EXECUTIONS, state__exact="queued")
        badges.append((f"{counts['queued']} waiting in the queue", "warning", waiting))
    if counts["oldest"]:
        badges.append((f"the oldest for {timesince(counts['oldest'], depth=1)}", "", ""))
    return Card(
        title="Running executions",
        number=Execution.objects.under_way().order_by().count(),
        url=address(EXECUTIONS, state__exact=UNDER_WAY),
        badges=badges,
    )


def _unapproved() -> Card:
    waiting = Approval.objects.waiting().aggregate(number=Count("pk"), first=Min("expires_at"))
    badges = []
    if waiting["first"]:
        # The sweep ends what has expired within seconds.
        left = timeuntil(waiting["first"], depth=1)
        badges.append((f"the first expires in {left}", "warning", ""))
    return Card(
        title="Calls waiting for approval",
        number=waiting["number"],
        url=address(APPROVALS, decision="waiting"),
        badges=badges,
    )


CARDS: dict[str, Callable[[], Card]] = {  # By permission
    "catalogue.view_source": _sources,
    "catalogue.view_workflow": _workflows,
    "executions.view_execution": _under_way,
    "executions.view_approval": _unapproved,
}
Titled = tuple[str, dict[str, Any]]


def _failing_sources() -> Titled | None:
    failing = Source.objects.filter(enabled=True, health_state=Source.HealthState.FAILING)[:SHOWN_ROWS]
    rows = [
        (link(source, "catalogue_source_change", source.pk), ago(source.failing_since), source.health_message)
        for source in failing
    ]
    return ("Failing sources", table(("Source", "Since", "The engine's message"), rows)) if rows else None


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
