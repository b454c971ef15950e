"""Calls that a cached result answers, against the SDK doing nothing (goal: p99 under 10 ms, one client)."""

import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmarks._figures import milliseconds, percentile
from benchmarks._processes import do_nothing_server, own_database, product
from benchmarks.tools import CALL, CLIENTS, REQUESTS, ROUNDS, WARM_UP, Figures, measure, report

GOAL_P99_SECONDS = 0.01
CACHED_FOR_SECONDS = 3600


def cache_results() -> None:
    from catalogue.curation import override_workflow
    from catalogue.models import Workflow

    override_workflow(Workflow.objects.get(tool_name=CALL["name"]), cache_seconds=CACHED_FOR_SECONDS)


def check_hits(calls: int) -> None:
    """All were hits but those that came before the first result was there."""
    from executions.result_cache import cache_figures

    figures = cache_figures()
    assert figures.hits + figures.misses == calls and figures.misses <= CLIENTS, figures


def main() -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        database = stack.enter_context(own_database(os.environ.get("DATABASE_URL", "")))
        servers = {"product": stack.enter_context(product(folder))}
        servers["SDK, do-nothing"] = stack.enter_context(do_nothing_server(folder))
        cache_results()
        print(f"  {database}, {REQUESTS} requests a round, best of {ROUNDS} rounds")
        found: dict[int, dict[str, Figures]] = {}
        for clients in (1, CLIENTS):
            found[clients] = measure(servers, "tools/call", clients=clients)
            report(f"cached tools/call x {clients}", found[clients])
        check_hits(len(found) * (WARM_UP + ROUNDS * REQUESTS))
    p99 = percentile(found[1]["product"].latencies, 99)
    met = p99 < GOAL_P99_SECONDS
    goal = f"p99 under {milliseconds(GOAL_P99_SECONDS)} for one client"
    print(f"  goal: {goal}: {milliseconds(p99)} {'met' if met else 'MISSED'}")
    sys.exit(not met)


if __name__ == "__main__":
    main()
