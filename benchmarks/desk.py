"""What the admin's pages take with 5,000 workflows and 100,000 executions (goal: 300 ms at p95)."""

import os
import sys
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from random import Random

import httpx2

from benchmarks._figures import milliseconds, percentile, stopwatch, table
from benchmarks._processes import catalogue_server, own_database
from benchmarks._workflows import fill_catalogue

WORKFLOWS, EXECUTIONS, DAYS = 5_000, 100_000, 30
CALLED = 400
"""Most workflows of a catalogue are hardly ever called."""
GOAL_SECONDS = 0.3
REQUESTS = 10
SIMPLEST = "/admin/password_change/"
"""What the others are compared with: the frame of the admin around two fields."""


def fill_executions() -> None:
    from django.utils import timezone

    from catalogue.models import Workflow
    from executions.models import Execution, ExecutionPayload, State

    chance, now = Random(7), timezone.now()
    called = list(Workflow.objects.select_related("source").order_by("pk")[:CALLED])
    states = [State.COMPLETED] * 90 + [State.FAILED] * 8 + [State.CANCELLED, State.RUNNING]
    for _ in range(EXECUTIONS // 1000):
        batch = []
        for _ in range(1000):
            workflow = called[min(int(chance.paretovariate(0.7)) - 1, CALLED - 1)]
            created = now - timedelta(seconds=chance.uniform(60, DAYS * 86_400))
            ended = created + timedelta(seconds=min(chance.lognormvariate(0, 2), 600))
            state = chance.choice(states)
            batch.append(
                Execution(
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
                    finished_at=None if state == State.RUNNING else ended,
                )
            )
        Execution.objects.bulk_create(batch)
        ExecutionPayload.objects.bulk_create(
            [ExecutionPayload(execution=execution, input={}, output={"answer": 42}) for execution in batch]
        )


def log_in() -> dict[str, str]:
    """The cookies of an administrator."""
    from django.conf import settings
    from django.contrib.auth.models import User
    from django.test import Client

    client = Client()
    client.force_login(User.objects.create_superuser("benchmark"))
    return {settings.SESSION_COOKIE_NAME: client.cookies[settings.SESSION_COOKIE_NAME].value}


def paths() -> Iterable[str]:
    """The overview, and of each of our models the list and one page."""
    from django.contrib import admin
    from django.urls import reverse

    import config.urls  # noqa: F401 - it registers the pages

    yield SIMPLEST
    yield "/admin/"
    for model in admin.site._registry:
        name = f"admin:{model._meta.app_label}_{model._meta.model_name}"
        yield reverse(f"{name}_changelist")
        if (key := model._default_manager.values_list("pk", flat=True).first()) is not None:
            yield reverse(f"{name}_change", args=[key])
    for period in ("7d", "30d"):
        yield f"/admin/?period={period}"
        yield f"{reverse('admin:executions_usage')}?period={period}"
    yield reverse("admin:executions_uncalled")
    yield reverse("admin:catalogue_workflow_changelist") + "?q=invoice"
    yield reverse("admin:catalogue_workflow_changelist") + "?use=failing"
    yield reverse("admin:executions_execution_changelist") + "?state__exact=failed"


def measure(client: httpx2.Client, path: str) -> list[float]:
    client.get(path).raise_for_status()
    found = []
    for _ in range(REQUESTS):
        with stopwatch() as took:
            client.get(path).raise_for_status()
        found.append(took.seconds)
    return found


def main() -> None:
    from django.core.management import call_command

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        database = stack.enter_context(own_database(os.environ.get("DATABASE_URL", "")))
        fill_catalogue(WORKFLOWS)
        fill_executions()
        cookies = log_in()
        call_command("recount_statistics", verbosity=0)
        server = stack.enter_context(catalogue_server(folder))
        print(f"  {database}; {WORKFLOWS:,} workflows, {EXECUTIONS:,} executions")
        base = server.url.removesuffix("/mcp")
        client = stack.enter_context(
            httpx2.Client(base_url=base, cookies=cookies, trust_env=False, timeout=120, follow_redirects=True)
        )
        found = {path: measure(client, path) for path in paths()}
        simplest = percentile(found[SIMPLEST], 50)
        header = ("GET", "p50", "p95", "times the simplest page")
        rows = [
            (
                path if len(path) < 60 else f"{path[:44]}...",
                milliseconds(percentile(took, 50)),
                milliseconds(percentile(took, 95)),
                f"{percentile(took, 50) / simplest:,.1f}",
            )
            for path, took in found.items()
        ]
        table(header, *rows)
    slow = [path for path, took in found.items() if percentile(took, 95) > GOAL_SECONDS]
    print(
        f"  goal: p95 under {milliseconds(GOAL_SECONDS)}: {'MISSED by ' + ', '.join(slow) if slow else 'met'}"
    )
    sys.exit(bool(slow))


if __name__ == "__main__":
    main()
