"""What happened that people should look at: the inbox of the overview, and the events of subscriptions."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from urllib.parse import urlencode

from django.db.models import (
    Case,
    CharField,
    Count,
    F,
    Min,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    Value,
    When,
    Window,
)
from django.db.models.functions import Cast, Coalesce, Concat, Left
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from catalogue.long_lists import Unindexed
from catalogue.models import DiscoveryRun, Review, Source, Workflow
from executions.failure_spikes import Runs, find_spikes
from executions.models import Approval, EventKind, Execution, HourlyUsage, ProblemReport, State
from executions.models.execution import ExecutionEvent
from executions.models.usage import FAILURES
from executions.statistics import Period

SHOWN_NAMES = 3
SHOWN_MESSAGE = 150
NEW_FOR = timedelta(days=7)
Urgency = Literal["danger", "warning", "info"]
URGENCIES: tuple[Urgency, ...] = ("danger", "warning", "info")

# The pages to which rows lead, each with the query that shows exactly what the row counts.
WORKFLOWS = "admin:catalogue_workflow_changelist"
SOURCES = "admin:catalogue_source_changelist"
REVIEWS = "admin:catalogue_review_changelist"
EXECUTIONS = "admin:executions_execution_changelist"
APPROVALS = "admin:executions_approval_changelist"
REPORTS = "admin:executions_problemreport_changelist"
FILTER = "inbox"  # The parameter with a topic's key, in the lists of workflows and sources


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
class Row(Numbered):
    key: str
    words: str
    urgency: Urgency = "warning"
    since: datetime | None = None
    names: Sequence[str] = ()

    @property
    def others(self) -> int:
        return self.number - len(self.names) if self.names else 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Topic:
    key: str
    kind: EventKind
    words: Any
    urgency: Urgency
    permissions: Sequence[str]  # For what it counts, and for the page to which it leads
    rows: Callable[[], QuerySet[Any]]
    name: str  # The path of a row's name
    since: str  # The path of the time at which it came about
    page: str
    query: Mapping[str, str] = field(default_factory=dict)
    version: str = ""  # The path of a text; another one makes another event of the row
    quiet: timedelta = timedelta(hours=1)  # What ends and comes about again within is the same event.
    is_of_runs: bool = False  # The keys of its rows are those of executions

    @property
    def url(self) -> str:
        return address(self.page, **(self.query or {FILTER: self.key}))

    def is_visible_to(self, user: Any) -> bool:
        return bool(user.has_perms(self.permissions))

    def in_inbox(self) -> Row | None:
        """One query, however many there are; the latest ones are named."""
        numbered = self.rows().order_by().annotate(
            named=F(self.name), at=F(self.since), whole=Window(Count("pk")), first=Window(Min(F(self.since)))
        )  # fmt: skip
        found = list(numbered.order_by("-at", "pk").values_list("named", "whole", "first")[:SHOWN_NAMES])
        if not found:
            return None
        _, number, since = found[0]
        return Row(
            key=self.key,
            number=number,
            words=str(self.words),
            url=self.url,
            urgency=self.urgency,
            since=since,
            names=[name for name, *_ in found],
        )


def rows_for(user: Any) -> Iterator[Row]:
    for topic in TOPICS.values():
        if topic.is_visible_to(user) and (row := topic.in_inbox()):
            yield row


def _exposed() -> QuerySet[Workflow]:
    return Workflow.objects.filter(enabled=True, source__enabled=True)


def _lost() -> QuerySet[Workflow]:
    # Not by excluding, for which SQLite has no use for the index.
    return _exposed().filter(missing_since__gt=datetime.min.replace(tzinfo=UTC))


def _present() -> QuerySet[Workflow]:
    workflows = Workflow.objects.alias(gone_since=Unindexed("missing_since"))
    return workflows.filter(gone_since=None, source__enabled=True)


def _paused() -> QuerySet[Execution]:
    asked = ExecutionEvent.objects.filter(execution=OuterRef("pk"), kind="asked").order_by("-pk")
    return Execution.objects.paused().annotate(
        asked=Cast("input_request", CharField()), asked_at=Subquery(asked.values("at")[:1])
    )


def _undecided() -> Q:
    # Not `enabled=False`, for which Django writes NOT, and SQLite then does not use the index.
    return Q(enabled__in=[False], first_seen_at__gte=timezone.now() - NEW_FOR)


def _new() -> QuerySet[Workflow]:
    return _present().filter(_undecided())


def _flagged() -> QuerySet[Workflow]:
    """Others were looked at, and are not exposed."""
    return _present().filter(Q(enabled=True) | _undecided()).exclude(warning="", resembles="")


def _sources(state: Source.HealthState) -> QuerySet[Source]:
    """With the engine's message beside the name."""
    sources: QuerySet[Source] = Source.objects.filter(enabled=True, health_state=state)
    return sources.annotate(with_message=Concat("name", Value(": "), Left("health_message", SHOWN_MESSAGE)))


def _held() -> QuerySet[Source]:
    """Since the first of them after the last one that was not held."""
    good = DiscoveryRun.objects.filter(source=OuterRef("source"), outcome="succeeded").order_by("-pk")
    later = Coalesce(Subquery(good.values("pk")[:1]), 0)
    runs = DiscoveryRun.objects.filter(source=OuterRef("pk"), outcome="held", pk__gt=later).order_by("pk")
    return _sources(Source.HealthState.HELD).annotate(held_at=Subquery(runs.values("started_at")[:1]))


def _spiking(rows: QuerySet[Any], found: dict[int, Runs], name: str, of: str) -> QuerySet[Any]:
    """With the share that failed beside the name, and the hour in which the failures began."""
    failures = HourlyUsage.objects.filter(
        **{of: OuterRef("pk")}, hour__gte=Period.DAY.start(), outcome__in=FAILURES
    )
    shares = [
        When(pk=key, then=Value(f" ({runs.rate:.0%} of {runs.calls:,} runs)")) for key, runs in found.items()
    ]
    spiking: QuerySet[Any] = rows.filter(pk__in=list(found)).annotate(
        failing_at=Subquery(failures.order_by("hour").values("hour")[:1]),
        with_share=Concat(name, Case(*shares, default=Value("")), output_field=CharField()),
    )
    return spiking


def _spiking_workflows() -> QuerySet[Workflow]:
    return _spiking(Workflow.objects.all(), find_spikes().workflows, "tool_name", "workflow")


def _spiking_sources() -> QuerySet[Source]:
    return _spiking(Source.objects.all(), find_spikes().sources, "name", "workflow__source")


def _reports() -> QuerySet[ProblemReport]:
    """With the beginning of what is missing beside the tool's name."""
    missing = Left("missing", SHOWN_MESSAGE)
    named = Case(When(tool="", then=missing), default=Concat("tool", Value(": "), missing))
    return ProblemReport.objects.filter(resolved_at=None).annotate(with_missing=named)


VIEW_SOURCE, VIEW_WORKFLOW = "catalogue.view_source", "catalogue.view_workflow"
VIEW_EXECUTION, DECIDE = "executions.view_execution", "executions.decide_approval"
TOPICS = {
    topic.key: topic
    for topic in (
        Topic(
            key="approvals",
            kind=EventKind.APPROVAL,
            words=_("Calls waiting for approval"),
            urgency="danger",
            permissions=[DECIDE],
            rows=Approval.objects.waiting,
            name="execution__tool_name",
            since="requested_at",
            page=APPROVALS,
            query={"decision": "waiting"},
            is_of_runs=True,
        ),
        Topic(
            key="lost",
            kind=EventKind.LOST,
            words=_("Exposed tools that vanished from their engine"),
            urgency="danger",
            permissions=[VIEW_WORKFLOW],
            rows=_lost,
            name="tool_name",
            since="missing_since",
            page=WORKFLOWS,
        ),
        Topic(
            key="failing-sources",
            kind=EventKind.SOURCE,
            words=_("Failing sources"),
            urgency="danger",
            permissions=[VIEW_SOURCE],
            rows=lambda: _sources(Source.HealthState.FAILING),
            name="with_message",
            since="failing_since",
            page=SOURCES,
            query={"enabled__exact": "1", "health_state__exact": "failing"},
        ),
        Topic(
            key="failing-tools",
            kind=EventKind.SPIKE,
            words=_("Tools that fail more often than before"),
            urgency="danger",
            permissions=[VIEW_EXECUTION, VIEW_WORKFLOW],
            rows=_spiking_workflows,
            name="with_share",
            quiet=timedelta(days=1),
            since="failing_at",
            page=WORKFLOWS,
        ),
        Topic(
            key="failing-engines",
            kind=EventKind.SPIKE,
            words=_("Sources whose runs fail more often"),
            urgency="danger",
            permissions=[VIEW_EXECUTION, VIEW_SOURCE],
            rows=_spiking_sources,
            name="with_share",
            quiet=timedelta(days=1),
            since="failing_at",
            page=SOURCES,
        ),
        Topic(
            key="flagged",
            kind=EventKind.FLAGGED,
            words=_("Commanding texts and look-alikes"),
            urgency="danger",
            permissions=[VIEW_WORKFLOW],
            rows=_flagged,
            name="tool_name",
            since="changed_at",
            page=WORKFLOWS,
            version="content_hash",
        ),
        Topic(
            key="held-listings",
            kind=EventKind.SOURCE,
            words=_("Held listings to confirm"),
            urgency="warning",
            permissions=[VIEW_SOURCE],
            rows=_held,
            name="name",
            since="held_at",
            page=SOURCES,
            query={"enabled__exact": "1", "health_state__exact": "held"},
        ),
        Topic(
            key="paused",
            kind=EventKind.PAUSED,
            words=_("Runs that wait for a person"),
            urgency="warning",
            permissions=[VIEW_EXECUTION],
            rows=_paused,
            name="tool_name",
            since="asked_at",
            page=EXECUTIONS,
            query={"state__exact": "paused"},
            version="asked",
            is_of_runs=True,
        ),
        Topic(
            key="unconfirmed",
            kind=EventKind.UNCONFIRMED,
            words=_("Unconfirmed runs"),
            urgency="warning",
            permissions=[VIEW_EXECUTION],
            rows=lambda: Execution.objects.filter(state=State.UNCONFIRMED),
            name="tool_name",
            since="created_at",
            page=EXECUTIONS,
            query={"state__exact": "unconfirmed"},
            is_of_runs=True,
        ),
        Topic(
            key="changed",
            kind=EventKind.CHANGED,
            words=_("Changed workflows to review"),
            urgency="warning",
            permissions=[VIEW_WORKFLOW],
            rows=lambda: Review.objects.awaiting().changes(),
            name="workflow__tool_name",
            since="held_since",
            page=REVIEWS,
            query={"kind": "changed"},
            version="offer_hash",
        ),
        Topic(
            key="held-new",
            kind=EventKind.NEW,
            words=_("New workflows to review"),
            urgency="warning",
            permissions=[VIEW_WORKFLOW],
            rows=lambda: Review.objects.awaiting().new_workflows(),
            name="workflow__tool_name",
            since="held_since",
            page=WORKFLOWS,
            query={"is": "new-held"},
        ),
        Topic(
            key="new",
            kind=EventKind.NEW,
            words=_("New workflows, not exposed"),
            urgency="info",
            permissions=[VIEW_WORKFLOW],
            rows=_new,
            name="tool_name",
            since="first_seen_at",
            page=WORKFLOWS,
        ),
        Topic(
            key="reports",
            kind=EventKind.REPORT,
            words=_("Problems that agents report"),
            urgency="info",
            permissions=["executions.view_problemreport"],
            rows=_reports,
            name="with_missing",
            since="first_at",
            page=REPORTS,
            query={"resolved": "no"},
        ),
    )
}
ENDED = Topic(  # Reported, but never in the inbox: nobody has to do anything about it
    key="ended",
    kind=EventKind.ENDED,
    words=_("Runs that ended"),
    urgency="info",
    permissions=[VIEW_EXECUTION],
    rows=Execution.objects.none,
    name="tool_name",
    since="finished_at",
    page=EXECUTIONS,
    query={"p": "1"},
    is_of_runs=True,
)
