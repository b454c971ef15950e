"""Calls of workflows that are over at once, on one core, against the SDK (goals: calls a second)."""

import asyncio
import os
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dev.benchmarks._figures import milliseconds, percentile, stopwatch, table
from dev.benchmarks._load import send_load
from dev.benchmarks._processes import (
    McpServer,
    catalogue_server,
    do_nothing_server,
    own_database,
    status_engine,
)
from dev.benchmarks._status_engine import AT_ONCE, CACHED, POLLED

TITLES = {
    POLLED: "over by its first poll",
    AT_ONCE: "result with the start",
    CACHED: "answered from the cache",
}
GOALS = {
    "SQLite": {POLLED: 11.0, AT_ONCE: 8.0, CACHED: 6.0},
    "PostgreSQL": {POLLED: 14.0, AT_ONCE: 10.0, CACHED: 6.0},
}
"""How many times as many calls as the product's the SDK may answer in the same time, at 64 connections."""
CONNECTIONS = (1, 8, 64)
DEFAULT_SECONDS, SPREAD = 0.030, 2.0  # p50 at one connection; p99 of the most, as a multiple of their p50
REQUESTS = {"product": {1: 100, 8: 300, 64: 600}, "SDK": {1: 500, 8: 2_000, 64: 2_000}}
WARM_UP, ROUNDS = 150, 3
VERSION = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": VERSION,
    "io.modelcontextprotocol/clientCapabilities": {},
}
TEXT = "Benchmarks measure. What they measure is written in their first line. Nothing more."


@dataclass
class Figures:
    per_second: float
    latencies: list[float]
    cpu_seconds: float
    """Of the server's process, for one call."""


def prepare_workflows(base_url: str) -> None:
    """A workflow for each case."""
    from catalogue.actions.sources import create_source
    from catalogue.models import Revision, Workflow

    source = create_source(name="memory", kind="simplified", config={"base_url": base_url}, credentials={})
    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    for name in TITLES:
        Workflow.objects.create(
            source=source,
            upstream_id=name,
            name=name,
            tool_name=name,
            enabled=True,
            input_schema=schema,
            content_hash=f"{len(name):064x}",
            cache_seconds=3600 if name == CACHED else None,
        )
    Revision.bump()


def burst(server: McpServer, tool: str, *, clients: int, requests: int) -> Figures:
    headers = {
        "accept": "application/json, text/event-stream",
        "authorization": f"Bearer {server.token}",
        "mcp-protocol-version": VERSION,
        "mcp-method": "tools/call",
        "mcp-name": tool,
    }
    params: dict[str, Any] = {"_meta": META, "name": tool, "arguments": {"text": TEXT}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    cpu = server.cpu_seconds()
    with stopwatch() as took:
        latencies = asyncio.run(send_load(server, body, headers, clients=clients, requests=requests))
    return Figures(requests / took.seconds, latencies, (server.cpu_seconds() - cpu) / requests)


def measure(servers: dict[str, McpServer], tool: str, *, clients: int) -> dict[str, Figures]:
    """The fastest round of each; they take turns, so that a busy machine disturbs both."""
    rounds: dict[str, list[Figures]] = {name: [] for name in servers}
    for server in servers.values():
        burst(server, tool, clients=clients, requests=WARM_UP)
    for _ in range(ROUNDS):
        for name, server in servers.items():
            rounds[name].append(burst(server, tool, clients=clients, requests=REQUESTS[name][clients]))
    return {name: max(figures, key=lambda found: found.per_second) for name, figures in rounds.items()}


def report(found: dict[tuple[str, int], dict[str, Figures]]) -> None:
    table(
        ("", "connections", "a second", "the SDK", "times", "p50", "p99", "CPU", "the SDK's"),
        *(
            (
                TITLES[tool],
                str(clients),
                f"{(product := figures['product']).per_second:,.0f}",
                f"{figures['SDK'].per_second:,.0f}",
                f"{times_the_sdk(figures):.1f}",
                *(milliseconds(percentile(product.latencies, percent)) for percent in (50, 99)),
                f"{product.cpu_seconds * 1000:.2f} ms",
                f"{figures['SDK'].cpu_seconds * 1000:.2f} ms",
            )
            for (tool, clients), figures in found.items()
        ),
    )


def times_the_sdk(figures: dict[str, Figures]) -> float:
    return figures["SDK"].per_second / figures["product"].per_second


def missed_goals(found: dict[tuple[str, int], dict[str, Figures]], database: str) -> list[str]:
    missed = []
    for tool, goal in GOALS[database].items():
        if (times := times_the_sdk(found[tool, CONNECTIONS[-1]])) > goal:
            missed.append(f"{TITLES[tool]}: {times:.1f} times the SDK, goal {goal:g}")
        alone, crowded = (found[tool, clients]["product"].latencies for clients in (1, CONNECTIONS[-1]))
        if (usual := percentile(alone, 50)) > DEFAULT_SECONDS:
            missed.append(f"{TITLES[tool]}: p50 {milliseconds(usual)} at one connection")
        if (spread := percentile(crowded, 99) / percentile(crowded, 50)) > SPREAD:
            missed.append(f"{TITLES[tool]}: p99 is {spread:.1f} times p50 at {CONNECTIONS[-1]} connections")
    return missed


def main() -> None:
    cores = sorted(os.sched_getaffinity(0))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        database = stack.enter_context(own_database(os.environ.get("DATABASE_URL", "")))
        # The engine and the load have a core; the servers that are measured take turns on the other.
        os.sched_setaffinity(0, cores[-1:])
        prepare_workflows(stack.enter_context(status_engine(folder)))
        os.sched_setaffinity(0, cores)
        servers = {"product": stack.enter_context(catalogue_server(folder))}
        servers["SDK"] = stack.enter_context(do_nothing_server(folder))
        for server in servers.values():
            for thread in server.process.threads():
                os.sched_setaffinity(thread.id, cores[:1])
        os.sched_setaffinity(0, cores[-1:])
        print(f"  {database}, one core for the web process; of {ROUNDS} rounds the fastest")
        found = {
            (tool, clients): measure(servers, tool, clients=clients)
            for tool in TITLES
            for clients in CONNECTIONS
        }
    report(found)
    missed = missed_goals(found, database)
    print("\n".join(f"  MISSED: {goal}" for goal in missed) or "  goals: all met")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
