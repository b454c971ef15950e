"""What REST answers cost, against the same bytes from a bare ASGI application (goal: 30 ms for 50 rows)."""

import asyncio
import os
import sys
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import httpx2

from dev.benchmarks._figures import milliseconds, percentile, stopwatch, table
from dev.benchmarks._load import send_load
from dev.benchmarks._processes import McpServer, bare_server, catalogue_server, own_database
from dev.benchmarks._workflows import fill_catalogue

WORKFLOWS, EXECUTIONS = 500, 500
GOAL_PAGE_SECONDS = 0.03
CLIENTS = 4
REQUESTS = 200
ROUNDS = 3
PAGES = ("/api/workflows/", "/api/executions/")


@dataclass
class Figures:
    alone: list[float]
    per_second: float
    cpu_seconds: float


def fill_executions() -> None:
    from executions.models import Execution, State
    from tests.factories import make_execution

    workflow = make_execution().workflow
    for _ in range(EXECUTIONS):
        make_execution(workflow, state=State.COMPLETED)
    assert Execution.objects.count() > EXECUTIONS


def measure(server: McpServer) -> Figures:
    """The latency for one client, and the best round of several."""
    headers = {"authorization": f"Bearer {server.token}"}

    def burst(clients: int) -> list[float]:
        return asyncio.run(
            send_load(server, None, headers, clients=clients, requests=REQUESTS, expected=b"{")
        )

    burst(CLIENTS)
    alone, best = burst(1), Figures([], 0.0, 0.0)
    for _ in range(ROUNDS):
        cpu = server.cpu_seconds()
        with stopwatch() as took:
            burst(CLIENTS)
        figures = Figures(alone, REQUESTS / took.seconds, (server.cpu_seconds() - cpu) / REQUESTS)
        best = max(best, figures, key=lambda found: found.per_second)
    return best


def paths() -> Iterable[str]:
    from catalogue.models import Workflow
    from executions.models import Execution

    yield "/api/"
    yield from PAGES
    yield f"/api/workflows/{Workflow.objects.filter(enabled=True).values_list('tool_name', flat=True)[0]}/"
    yield f"/api/executions/{Execution.objects.values_list('pk', flat=True)[0]}/"


def compare(folder: Path, product: McpServer, path: str) -> tuple[tuple[str, ...], float]:
    """A line of the table, and the latency that has a goal."""
    url = urlsplit(product.url)._replace(path=path).geturl()
    headers = {"authorization": f"Bearer {product.token}"}
    answer = httpx2.get(url, headers=headers, trust_env=False, timeout=60).raise_for_status().content
    found = measure(replace(product, url=url))
    with bare_server(folder, answer) as bare:
        reference = measure(bare)
    name = path if len(path) < 40 else path[:16] + "..."
    p50 = percentile(found.alone, 50)
    return (
        name,
        f"{len(answer):,} bytes",
        milliseconds(p50),
        milliseconds(percentile(found.alone, 95)),
        f"{found.per_second:,.0f}",
        milliseconds(found.cpu_seconds),
        f"{reference.per_second / found.per_second:,.1f}",
    ), p50


def main() -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        database = stack.enter_context(own_database(os.environ.get("DATABASE_URL", "")))
        fill_catalogue(WORKFLOWS)
        fill_executions()
        product = stack.enter_context(catalogue_server(folder))
        print(f"  {database}; {WORKFLOWS} workflows, {EXECUTIONS} executions; {CLIENTS} clients for the rate")
        found = {path: compare(folder, product, path) for path in paths()}
        header = ("GET", "answer", "p50, alone", "p95, alone", "per second", "CPU", "times bare ASGI")
        table(header, *(line for line, _ in found.values()))
    worst = max(found[path][1] for path in PAGES)
    met = worst < GOAL_PAGE_SECONDS
    goal = milliseconds(GOAL_PAGE_SECONDS)
    print(f"  goal: a page of 50 in {goal}, p50: {milliseconds(worst)} {'met' if met else 'MISSED'}")
    sys.exit(not met)


if __name__ == "__main__":
    main()
