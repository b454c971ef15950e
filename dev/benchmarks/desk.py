"""What the admin's pages take with 5,000 workflows and 100,000 executions (goal: 300 ms at p95)."""

import os
import sys
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import httpx2

from dev.benchmarks._figures import milliseconds, percentile, stopwatch
from dev.benchmarks._processes import McpServer, catalogue_server, own_database
from dev.benchmarks._workflows import fill_catalogue

WORKFLOWS, EXECUTIONS, DAYS = 5_000, 100_000, 30
CALLED = 400
"""Most workflows of a catalogue are hardly ever called."""
GOAL_SECONDS = 0.3
REQUESTS = 20
LISTS = (
    "sources", "workflows", "reviews", "filters", "toolsets", "tools", "discovery-runs", "history",
    "executions", "result-cache", "tokens", "workflow-requests",
)  # fmt: skip
SIMPLEST = "/admin/password_change/"
"""What the others are compared with: the frame of the admin around two fields."""


def fill_executions(count: int = EXECUTIONS) -> None:
    """With their sums, in one transaction: a recount would take longer than all that is measured."""
    from django.db import transaction
    from django.utils import timezone

    from catalogue.models import Workflow
    from executions.models import Execution, ExecutionPayload, State
    from executions.models.usage import Key, Sums, add_usage, end_of

    chance, now = Random(7), timezone.now()
    called = list(Workflow.objects.select_related("source").order_by("pk")[:CALLED])
    states = [State.COMPLETED] * 90 + [State.FAILED] * 8 + [State.CANCELLED, State.RUNNING]

    def execution() -> Execution:
        workflow = called[min(int(chance.paretovariate(0.7)) - 1, CALLED - 1)]
        created = now - timedelta(seconds=chance.uniform(60, DAYS * 86_400))
        ended = created + timedelta(seconds=min(chance.lognormvariate(0, 2), 600))
        state = chance.choice(states)
        return Execution(
            workflow=workflow,
            tool_name=workflow.tool_name,
            workflow_name=workflow.name,
            upstream_id=workflow.upstream_id,
            source_name=workflow.source.name,
            caller=f"token:{chance.randint(1, 40)}",
            caller_name="an agent",
            door=Execution.Door.MCP,
            state=state,
            timeout_seconds=300,
            deadline_at=created + timedelta(seconds=300),
            created_at=created,
            started_at=created,
            admitted_at=created,
            finished_at=None if state == State.RUNNING else min(ended, now),
        )

    sums: dict[Key, Sums] = {}
    with transaction.atomic():
        for _ in range(count // 1000):
            batch = Execution.objects.bulk_create([execution() for _ in range(1000)])
            ExecutionPayload.objects.bulk_create(
                [ExecutionPayload(execution=each, input={}, output={"answer": 42}) for each in batch]
            )
            for key, ended in (end_of(each, {}) for each in batch if each.finished_at):
                if key in sums:
                    sums[key].add(ended)
                else:
                    sums[key] = ended
        rows = list(sums.items())
        for start in range(0, len(rows), 500):
            add_usage(rows[start : start + 500])


def fill_desk() -> None:
    """What else curators look at: changes, history, listings, toolsets, tokens, requests, cached results."""
    from django.utils import timezone

    from catalogue.models import HistoryEntry, Review, Workflow
    from catalogue.reconciliation import layer_of
    from executions.models import CachedResult, CacheUse, Execution
    from identity.tokens import create_token
    from tests.factories import make_discovery_run, make_toolset, make_workflow_request

    now, workflows = timezone.now(), list(Workflow.objects.select_related("source").order_by("pk")[:CALLED])
    changed = {"description": "Another description, with a word or two more.", "content_hash": "f" * 64}
    Review.objects.bulk_create(
        Review(
            workflow=each,
            kind=Review.Kind.CHANGED,
            offer_hash="f" * 64,
            offered=layer_of(each) | changed,
        )
        for each in workflows[: CALLED // 2]
    )
    HistoryEntry.objects.bulk_create(
        HistoryEntry(
            at=now - timedelta(minutes=number),
            actor_name="somebody",
            door=HistoryEntry.Door.ADMIN,
            model=HistoryEntry.label_of(Workflow),
            object_id=str(workflows[number % CALLED].pk),
            object_name=workflows[number % CALLED].tool_name,
            kind=HistoryEntry.Kind.CHANGED,
            message="Enabled.",
            changes={"enabled": [False, True]},
        )
        for number in range(20 * CALLED)
    )
    CacheUse.objects.bulk_create(CacheUse(workflow=each, entries=1, bytes=100) for each in workflows)
    times = {"created_at": now, "last_used_at": now, "expires_at": now + timedelta(hours=1)}
    CachedResult.objects.bulk_create(
        CachedResult(workflow=each, key=f"{number:064x}", execution=execution, size=100, **times)
        for number, (each, execution) in enumerate(
            zip(workflows, Execution.objects.all()[:CALLED], strict=True)
        )
    )
    for number in range(10):
        toolset = make_toolset(f"toolset-{number}", picked=workflows[: 20 * number], rules=["*invoice*"])
        create_token(name=f"agent {number}", toolset=toolset)
    for number in range(CALLED):
        make_discovery_run(workflows[0].source, added=number)
        make_workflow_request(f"Request {number}", selected_tool=workflows[number].tool_name)


def settle() -> None:
    """As PostgreSQL's autovacuum leaves a database within minutes."""
    from django.db import connection

    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("VACUUM ANALYZE")


def log_in() -> dict[str, str]:
    """The cookies of an administrator."""
    from django.conf import settings
    from django.contrib.auth.models import User
    from django.test import Client

    client = Client()
    client.force_login(User.objects.create_superuser("benchmark"))
    return {settings.SESSION_COOKIE_NAME: client.cookies[settings.SESSION_COOKIE_NAME].value}


def paths() -> Iterable[str]:
    """The overview, of each of our models the list and one page, our own pages, and the lists of REST."""
    from django.contrib import admin
    from django.urls import reverse

    import config.urls  # noqa: F401 - it registers the pages
    from catalogue.models import Workflow

    start = datetime.now(UTC) - timedelta(days=DAYS)
    yield SIMPLEST
    yield "/admin/"
    for model in admin.site._registry:
        name = f"admin:{model._meta.app_label}_{model._meta.model_name}"
        yield reverse(f"{name}_changelist")
        if (key := model._default_manager.values_list("pk", flat=True).first()) is not None:
            yield reverse(f"{name}_change", args=[key])
    for period in ("7d", "30d"):
        yield f"/admin/?period={period}"
        for subject in ("tool", "toolset", "caller"):
            yield f"{reverse('admin:executions_usage')}?period={period}&by={subject}"
    workflows = reverse("admin:catalogue_workflow_changelist")
    for query in ("q=invoice", "use=failing", "use=uncalled", "visibility=exposed", "review=changed", "o=-4"):
        yield f"{workflows}?{query}"
    yield reverse("admin:executions_execution_changelist") + "?state__exact=failed"
    yield reverse("admin:orchestration_workflowrequest_try_it")
    yield reverse("admin:catalogue_productsettings_as_code")
    yield reverse("admin:executions_run", args=[Workflow.objects.values_list("pk", flat=True)[0]])
    for name in LISTS:
        yield f"/api/{name}/"
    yield f"/api/statistics/?bucket=day&ended_after={start:%Y-%m-%dT%H:00:00Z}"
    yield f"/api/statistics/?group_by=tool&ended_after={start:%Y-%m-%dT%H:00:00Z}"


@dataclass
class Taken:
    first: float
    """The first answer of this kind, which finds nothing remembered."""
    seconds: list[float]
    cpu: float
    """Of the server for each request: other work on the machine hardly changes it."""


def measure(server: McpServer, client: httpx2.Client, path: str) -> Taken:
    with stopwatch() as first:
        client.get(path).raise_for_status()
    found, before = [], server.cpu_seconds()
    for _ in range(REQUESTS):
        with stopwatch() as took:
            client.get(path).raise_for_status()
        found.append(took.seconds)
    return Taken(first.seconds, found, (server.cpu_seconds() - before) / REQUESTS)


def main() -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        database = stack.enter_context(own_database(os.environ.get("DATABASE_URL", "")))
        fill_catalogue(WORKFLOWS)
        fill_executions()
        fill_desk()
        settle()
        cookies = log_in()
        server = stack.enter_context(catalogue_server(folder))
        print(f"  {database}; {WORKFLOWS:,} workflows, {EXECUTIONS:,} executions")
        base = server.url.removesuffix("/mcp")
        client = stack.enter_context(
            httpx2.Client(base_url=base, cookies=cookies, trust_env=False, timeout=120, follow_redirects=True)
        )
        header = ("GET", "first", "p50", "p95", "CPU", "CPU, times the simplest page's")
        print("  {:<60} {:>11} {:>11} {:>11} {:>11} {:>9}".format(*header))
        found: dict[str, Taken] = {}
        for path in paths():
            took = found[path] = measure(server, client, path)
            name = path if len(path) < 60 else f"{path[:56]}..."
            times = (took.first, percentile(took.seconds, 50), percentile(took.seconds, 95), took.cpu)
            told = " ".join(f"{milliseconds(seconds):>11}" for seconds in times)
            print(f"  {name:<60} {told} {took.cpu / found[SIMPLEST].cpu:>9,.1f}", flush=True)
    slow = [path for path, took in found.items() if percentile(took.seconds, 95) > GOAL_SECONDS]
    print(
        f"  goal: p95 under {milliseconds(GOAL_SECONDS)}: {'MISSED by ' + ', '.join(slow) if slow else 'met'}"
    )
    sys.exit(bool(slow))


if __name__ == "__main__":
    main()
