"""Discovery of 1,000 tools of an MCP server against the SDK client listing them alone (goal: under 3 s)."""

import asyncio
import os
import sys
import tempfile
from pathlib import Path

import httpx2
from mcp import Client

from connectors.testing import free_port
from dev.benchmarks._figures import best_of, milliseconds, stopwatch, table
from dev.benchmarks._paged_tools import COUNT
from dev.benchmarks._processes import own_database
from tests.processes import running

GOAL_SECONDS = 3.0
KINDS = (("first", 1, "added"), ("unchanged", 1, "unchanged"), ("all changed", 2, "updated"))


def bare_listing(url: str) -> float:
    """Seconds, with the connection; the best of a few."""

    async def list_all() -> int:
        async with Client(url, cache=None) as client:
            cursor, count = None, 0
            while True:
                page = await client.list_tools(cursor=cursor)
                count, cursor = count + len(page.tools), page.next_cursor
                if cursor is None:
                    return count

    def act() -> None:
        assert asyncio.run(list_all()) == COUNT

    return best_of(5, act)


def measure(base_url: str) -> list[tuple[str, float, int]]:
    """Name, seconds and queries of each kind of listing."""
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    from catalogue.actions.sources import create_source
    from catalogue.discovery import refresh_source

    source = create_source(name="bench", kind="mcp", config={"url": f"{base_url}/mcp"}, credentials={})
    results = []
    for name, edition, counted in KINDS:
        httpx2.get(f"{base_url}/edition/{edition}", trust_env=False).raise_for_status()
        with CaptureQueriesContext(connection) as queries, stopwatch() as took:
            run = refresh_source(source)
        assert getattr(run, counted) == COUNT, run.error or vars(run)
        results.append((name, took.seconds, len(queries)))
    return results


def main() -> None:
    base_url = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "-m", "dev.benchmarks._paged_tools", str(port)]
    with (
        tempfile.TemporaryDirectory() as folder,
        own_database(os.environ.get("DATABASE_URL", "")) as database,
        running(command, answers_at=f"{base_url}/ready", log=Path(folder) / "server.log"),
    ):
        bare = bare_listing(f"{base_url}/mcp")
        results = measure(base_url)
    print(f"  {database}, {COUNT:,} tools")
    table(
        ("listing", "time", "queries", "times the SDK's"),
        ("the SDK's client alone", milliseconds(bare), "", "1.0"),
        *((name, milliseconds(took), str(queries), f"{took / bare:.1f}") for name, took, queries in results),
    )
    slowest = max(took for _, took, _ in results)
    print(f"  goal: {slowest:.2f} s of {GOAL_SECONDS:g} s {'met' if slowest < GOAL_SECONDS else 'MISSED'}")
    sys.exit(slowest >= GOAL_SECONDS)


if __name__ == "__main__":
    main()
