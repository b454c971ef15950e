import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.conf import settings
from django.contrib.humanize.templatetags.humanize import NaturalTimeFormatter
from django.db.models import Count, Max, Min, Q
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone
from django.utils.timesince import timesince
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from catalogue.admin.base import OptionsFilter
from catalogue.admin.extensions import added, added_by_permission
from catalogue.admin.facets import OptionsFacet
from catalogue.admin.rendering import duration
from catalogue.exposure import current_catalogue
from catalogue.models import HistoryEntry, Source, Workflow
from executions.admin.page import UNDER_WAY, show_runs
from executions.admin.usage import ShownUse, show_use
from executions.inbox import (
    EXECUTIONS,
    FILTER,
    SOURCES,
    TOPICS,
    URGENCIES,
    WORKFLOWS,
    Numbered,
    Row,
    Topic,
    address,
    rows_for,
)
from executions.models import Execution, HourlyUsage
from executions.models.usage import Outcome
from executions.statistics import Figures, Period, Subject, Use, figures_in, usage_by
from executions.subscriptions import may_subscribe

FAILURES = "admin:executions_failures"
WINDOW = timedelta(hours=24)
SHOWN_ROWS = 8
SHOWN_TOOLS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Card(Numbered):
    title: str
    badges: list[tuple[str, str, str]] = field(default_factory=list)  # Text, kind, and an address or ""


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
    sees_runs = allowed("executions.view_execution")
    cards = [
        make() for permission, make in (CARDS | added_by_permission("cards")).items() if allowed(permission)
    ]
    usage = _usage(request, period) if sees_runs else {}
    return (
        context
        | _first_steps(request)
        | usage
        | {
            "inbox": _inbox(request),
            "may_see_inbox": may_subscribe(request.user) or any(map(allowed, added_by_permission("inbox"))),
            "may_subscribe": may_subscribe(request.user),
            "addresses": [find() for find in added("addresses")],
            "cards": usage.get("usage_cards", []) + cards,
            "latest": show_runs(Execution.objects.all()[:SHOWN_ROWS]) if sees_runs else None,
            "periods": [(f"?period={each.value}", each.words, each is period) for each in Period],
        }
    )


def _inbox(request: HttpRequest) -> list[Row]:
    """The most urgent ones first; those of equal urgency in the order in which they are declared."""
    rows = [*rows_for(request.user)]
    for permission, make in added_by_permission("inbox").items():
        if request.user.has_perm(permission):
            rows += [row for row in make() if row.number]
    return sorted(rows, key=lambda row: URGENCIES.index(row.urgency))


def _first_steps(request: HttpRequest) -> dict[str, Any]:
    """Each with whether the user may take it, and the demo beside them; nothing once all are done."""
    if not request.user.has_perm("catalogue.view_source"):
        return {}
    is_demo = Q(name=settings.DEMO_SOURCE)
    sources = Source.objects.aggregate(own=Count("pk", filter=~is_demo), demo=Max("pk", filter=is_demo))
    decided = HistoryEntry.objects.filter(model=HistoryEntry.label_of(Workflow))
    steps = [
        Step(
            title=_("Connect an engine of your own"),
            done=bool(sources["own"]),
            url=reverse("admin:catalogue_source_add"),
            permission="catalogue.add_source",
        ),
        Step(
            title=_("Review its workflows"),
            done=Workflow.objects.filter(enabled=True).exists() or decided.exists(),
            url=reverse(WORKFLOWS),
            permission="catalogue.view_workflow",
        ),
        Step(
            title=_("Expose the workflows that agents may use"),
            done=bool(current_catalogue().workflows),
            url=address(WORKFLOWS, enabled__exact="0"),
            permission="catalogue.change_workflow",
        ),
        *(make() for make in added("first_steps")),
        Step(
            title=_("Call a tool: run a workflow here, or connect a client to the address above"),
            done=HourlyUsage.objects.exists() or Execution.objects.exists(),
            url=address(WORKFLOWS, visibility="exposed"),
            permission="catalogue.view_workflow",
        ),
    ]
    if all(step.done for step in steps):
        return {}
    shown = [(step, request.user.has_perm(step.permission)) for step in steps]
    return {"steps": shown, "demo": (settings.DEMO_SOURCE, sources["demo"])}


def _usage(request: HttpRequest, period: Period) -> dict[str, Any]:
    over_time = figures_in(period, bucket=period.bucket)
    tools, total = usage_by(Subject.TOOL, period), Figures()
    for figures in over_time.values():
        total.include(figures)
    return {
        "period": period,
        "total": total,
        "usage_cards": _usage_cards(period, total),
        "charts": Charts(period, {moment: figures for (moment,), figures in over_time.items()}),
        "tool_tables": [
            (title, {"heading": _("Tool"), "uses": uses})
            for title, uses in (
                (_("Slowest tools"), _top(tools, period, lambda use: use.figures.p95_ms or 0)),
                (_("Tools with the most failures"), _top(tools, period, lambda use: use.figures.failures)),
            )
            if uses
        ],
    }


def _top(tools: Iterable[Use], period: Period, number: Callable[[Use], int]) -> list[ShownUse]:
    top = sorted(filter(number, tools), key=lambda use: (-number(use), use.name))[:SHOWN_TOOLS]
    return [show_use(Subject.TOOL, period, use) for use in top]


def _usage_cards(period: Period, total: Figures) -> list[Card]:
    outcomes = total.by_outcome
    ended = {"ended": period.value}
    failed = {Outcome.FAILED: "danger", Outcome.TIMED_OUT: "warning"}
    kinds = {Outcome.COMPLETED: "success", Outcome.CANCELLED: ""}
    badges = _outcome_badges(outcomes, kinds, ended)
    if number := outcomes.get(Outcome.CACHED):
        cached = address(EXECUTIONS, cached="yes", **ended)
        badges.append((_("%s from the result cache") % f"{number:,}", "", cached))
    if total.cards:
        badges.append((_("%s shown by a card in a chat") % f"{total.cards:,}", "", ""))
    return [
        Card(
            title=_("Executions in the last %s") % period.words,
            number=sum(outcomes.values()),
            url=address(EXECUTIONS, **ended),
            badges=badges,
        ),
        Card(
            title=_("Failed in the last %s") % period.words,
            number=sum(outcomes.get(outcome, 0) for outcome in failed),
            url=address(FAILURES, period=period.value),
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


class Bar(NamedTuple):
    text: str
    height: float  # Percent of the chart
    inner: float = 0.0  # Percent of the bar, in another colour


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    key: str
    title: str
    told: str
    highest: str
    bars: list[Bar]


class Charts:
    """They share one time axis and its labels."""

    MAX_LABELS = 6  # Have room at 390 pixels

    def __init__(self, period: Period, found: dict[datetime, Figures]) -> None:
        moments = period.buckets()
        figures = [found.get(moment, Figures()) for moment in moments]
        self.moments = list(map(period.label, moments))
        self.zone = _("Days in UTC")
        if period is Period.DAY:
            self.zone = _("Hours in %(zone)s") % {"zone": f"{timezone.localtime(moments[-1]):%Z}"}
        self.each = [
            self._counting("calls", _("Calls"), [each.calls for each in figures]),
            self._counting("failures", _("Failures"), [each.failures for each in figures]),
            self._durations(figures),
        ]

    @property
    def labels(self) -> list[str]:
        """Only every so many have room."""
        step = math.ceil(len(self.moments) / self.MAX_LABELS)
        return ["" if number % step else moment for number, moment in enumerate(self.moments)]

    def _counting(self, key: str, title: str, numbers: list[int]) -> Chart:
        highest = max(numbers)
        return Chart(
            key=key,
            title=title,
            told=f"{sum(numbers):,}",
            highest=f"{highest:,}",
            bars=[
                Bar(f"{moment}: {number:,}", 100 * number / (highest or 1))
                for moment, number in zip(self.moments, numbers, strict=True)
            ],
        )

    def _durations(self, figures: list[Figures]) -> Chart:
        longest = max(each.p95_ms or 0 for each in figures)
        return Chart(
            key="durations",
            title=_("Durations"),
            told=_("95th percentile, and within it the median"),
            highest=duration(longest),
            bars=[
                Bar(
                    f"{moment}: {duration(each.p95_ms)}, {duration(each.p50_ms)}",
                    100 * (each.p95_ms or 0) / (longest or 1),
                    100 * (each.p50_ms or 0) / (each.p95_ms or 1),
                )
                for moment, each in zip(self.moments, figures, strict=True)
            ],
        )


def _sources() -> Card:
    states = Source.objects.filter(enabled=True).values_list("health_state").annotate(Count("pk")).order_by()
    counts, enabled = dict(states), {"enabled__exact": "1"}
    kinds = {"ok": "success", "failing": "danger", "held": "warning"}
    return Card(
        title=_("Enabled sources"),
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
        title=_("Workflows that agents see"),
        number=exposed,
        url=address(WORKFLOWS, visibility="exposed"),
        badges=[(_("%s not exposed") % hidden, "", "")] if hidden > 0 else [],
    )


def _under_way() -> Card:
    # Two statements, each from an index; no index covers both.
    counts = Execution.objects.queued().order_by().aggregate(queued=Count("pk"), oldest=Min("created_at"))
    badges = []
    if counts["queued"]:
        waiting = address(EXECUTIONS, state__exact="queued")
        badges.append((_("%s waiting in the queue") % counts["queued"], "warning", waiting))
    if counts["oldest"]:
        words = NaturalTimeFormatter.past_substrings
        since = timesince(counts["oldest"], time_strings=words, depth=1)
        badges.append((_("the oldest for %s") % since, "", ""))
    return Card(
        title=_("Running executions"),
        number=Execution.objects.under_way().order_by().count(),
        url=address(EXECUTIONS, state__exact=UNDER_WAY),
        badges=badges,
    )


CARDS: dict[str, Callable[[], Card]] = {  # By permission
    "catalogue.view_source": _sources,
    "catalogue.view_workflow": _workflows,
    "executions.view_execution": _under_way,
}


def _options(page: str) -> dict[str, tuple[Any, Callable[[], Q]]]:
    """The topics of the inbox that lead to the page, so that it shows exactly the rows that they count."""
    shown = (topic for topic in TOPICS.values() if topic.page == page and not topic.query)
    return {topic.key: (topic.words, _condition_of(topic)) for topic in shown}


def _condition_of(topic: Topic) -> Callable[[], Q]:
    return lambda: Q(pk__in=topic.rows().order_by().values("pk"))


class WorkflowsOfInbox(OptionsFacet):
    title, name = gettext_lazy("inbox"), FILTER
    options = _options(WORKFLOWS)


class SourcesOfInbox(OptionsFilter):
    title, parameter_name = gettext_lazy("inbox"), FILTER
    options = _options(SOURCES)
