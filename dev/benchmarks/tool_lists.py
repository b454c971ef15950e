"""tools/list of 1,000 tools against a bare ASGI application that sends the same bytes (goal: 0.5 of it)."""

import asyncio
import gc
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx2

from dev.benchmarks._figures import milliseconds, percentile, stopwatch, table
from dev.benchmarks._load import send_load
from dev.benchmarks._processes import (
    McpServer,
    bare_server,
    catalogue_server,
    do_nothing_server,
    own_database,
)
from dev.benchmarks._workflows import fill_catalogue

SMALL, TOOLS, MANY, MEMORY = 100, 1_000, 10_000, 5_000
GOAL_OF_BARE = 0.5
GOAL_P99_SECONDS = 0.05
GOAL_MEGABYTES = 300
CLIENTS = 8
ROUNDS = 5
TOOLSETS, EVERYTHING = 50, "everything"
GOAL_UNDER_CHANGES, GOAL_P99_UNDER_CHANGES = 0.5, 0.02
"""Of the bare application's rate, and seconds."""
LONG_BURST, SLOW_REQUESTS = 6_000, 200
"""So many that each round meets some changes."""
ERAS = ("2026-07-28", "2025-11-25")
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "benchmark", "version": "1"},
}


@dataclass
class Figures:
    per_second: float
    latencies: list[float]
    cpu_seconds: float


def request_of(era: str, token: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Body and headers as clients of that era send them."""
    headers = {
        "accept": "application/json, text/event-stream",
        "authorization": f"Bearer {token}",
        "mcp-protocol-version": era,
    }
    params: dict[str, Any] = {}
    if era == "2026-07-28":
        headers["mcp-method"] = "tools/list"
        params["_meta"] = ENVELOPE
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": params}, headers


def burst(server: McpServer, era: str, *, requests: int, clients: int = CLIENTS) -> Figures:
    body, headers = request_of(era, server.token)
    cpu = server.cpu_seconds()
    with stopwatch() as took:
        latencies = asyncio.run(send_load(server, body, headers, clients=clients, requests=requests))
    return Figures(requests / took.seconds, latencies, (server.cpu_seconds() - cpu) / requests)


def best(servers: dict[str, McpServer], era: str, requests: dict[str, int]) -> dict[str, Figures]:
    """The best round of each; they take turns, so that a busy machine disturbs all alike."""
    rounds: dict[str, list[Figures]] = {name: [] for name in servers}
    for name, server in servers.items():
        burst(server, era, requests=max(CLIENTS, requests[name] // 10))
    for _ in range(ROUNDS):
        for name, server in servers.items():
            gc.collect()
            rounds[name].append(burst(server, era, requests=requests[name]))
    return {name: max(found, key=lambda figures: figures.per_second) for name, found in rounds.items()}


def answer_of(server: McpServer, era: str) -> bytes:
    body, headers = request_of(era, server.token)
    response = httpx2.post(server.url, json=body, headers=headers, trust_env=False, timeout=60)
    return response.raise_for_status().content


def compare(stack: ExitStack, folder: Path) -> bool:
    """The product, the bare application and the SDK, with the same tools, in both eras."""
    product = stack.enter_context(catalogue_server(folder))
    sdk = stack.enter_context(do_nothing_server(folder))
    met = True
    for era in ERAS:
        answer = answer_of(product, era)
        with bare_server(folder, answer) as bare:
            servers = {"bare ASGI": bare, "product": product, "SDK": sdk}
            found = best(servers, era, {"bare ASGI": 1600, "product": 1600, "SDK": 24})
        reference, bare_cpu = found["bare ASGI"].per_second, found["bare ASGI"].cpu_seconds
        table(
            (
                f"{TOOLS} tools, {len(answer):,} bytes, {era}",
                "per second",
                "of bare",
                "p50",
                "p99",
                "CPU",
                "of bare",
            ),
            *(
                (
                    name,
                    f"{figures.per_second:,.0f}",
                    f"{figures.per_second / reference:.3f}",
                    *(milliseconds(percentile(figures.latencies, percent)) for percent in (50, 99)),
                    f"{figures.cpu_seconds * 1e6:,.0f} us",
                    f"{bare_cpu / figures.cpu_seconds:.3f}",
                )
                for name, figures in found.items()
            ),
        )
        ours = found["product"]
        met &= ours.per_second >= GOAL_OF_BARE * reference
        met &= percentile(ours.latencies, 99) < GOAL_P99_SECONDS
    return met


def add_toolsets() -> None:
    """With a rule each, most of which match some tools, and one that has all."""
    from catalogue.models import Toolset, ToolsetRule

    patterns = {f"unit-{number}": f"*{number}*" for number in range(TOOLSETS - 1)} | {EVERYTHING: "*"}
    for slug, pattern in patterns.items():
        toolset = Toolset.objects.create(slug=slug, title=slug)
        ToolsetRule.objects.create(toolset=toolset, action="include", subject="name", pattern=pattern)


@contextmanager
def curator() -> Iterator[None]:
    """Changes the title of one workflow after the other, one a second."""
    with tempfile.TemporaryFile() as log:
        command = [sys.executable, "-m", "dev.benchmarks._curator"]
        process = subprocess.Popen(command, env=os.environ, stdout=log, stderr=log)
        try:
            yield
            log.seek(0)
            assert process.poll() is None, log.read().decode()
        finally:
            process.terminate()
            process.wait(timeout=30)


def compare_under_changes(stack: ExitStack, folder: Path) -> bool:
    """While a curator works, at full load and at a low one, at the address of all tools and of a toolset."""
    product, met = stack.enter_context(catalogue_server(folder)), True
    toolset = replace(product, url=f"{product.url}/{EVERYTHING}")
    header = ("a change a second", "per second", "of bare", "p99", "p50 at low load", "its p99", "of bare")
    for era in ERAS:
        with bare_server(folder, answer_of(product, era)) as bare, curator():
            servers = {"bare ASGI": bare, "all tools": product, "toolset": toolset}
            found = best(servers, era, dict.fromkeys(servers, LONG_BURST))
            alone = {name: at_low_load(server, era) for name, server in servers.items()}
        lines = []
        for name, figures in found.items():
            ratio = figures.per_second / found["bare ASGI"].per_second
            p99 = percentile(figures.latencies, 99)
            low, low_bare = (percentile(alone[each], 99) for each in (name, "bare ASGI"))
            lines.append(
                (
                    f"{era}, {name}",
                    f"{figures.per_second:,.0f}",
                    f"{ratio:.3f}",
                    *(milliseconds(seconds) for seconds in (p99, percentile(alone[name], 50), low)),
                    f"{low / low_bare:.1f}",
                )
            )
            if name != "bare ASGI":
                met &= ratio >= GOAL_UNDER_CHANGES and p99 < GOAL_P99_UNDER_CHANGES
        table(header, *lines)
    return met


def at_low_load(server: McpServer, era: str) -> list[float]:
    """One request every 50 ms, for so long that some meet a change."""
    body, headers = request_of(era, server.token)

    async def ask() -> list[float]:
        seconds = []
        for _ in range(SLOW_REQUESTS):
            seconds += await send_load(server, body, headers, clients=1, requests=1)
            await asyncio.sleep(0.05)
        return seconds

    return asyncio.run(ask())


def first_page(folder: Path, *, tools: int) -> tuple[float, float]:
    """Median seconds of the first page of 100 tools for one client, and the server's megabytes."""
    with catalogue_server(folder) as server:
        burst(server, ERAS[0], requests=20, clients=1)
        rounds = [
            percentile(burst(server, ERAS[0], requests=200, clients=1).latencies, 50) for _ in range(ROUNDS)
        ]
        for era in ERAS:
            answer_of(server, era)
        return min(rounds), server.process.memory_info().rss / 2**20


def main() -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        database = stack.enter_context(own_database(os.environ.get("DATABASE_URL", "")))
        print(f"  {database}, {CLIENTS} clients, one process, best of {ROUNDS} rounds")
        os.environ["CATALOGUE_PAGE_SIZE"] = str(SMALL)
        fill_catalogue(SMALL)
        few, _ = first_page(folder, tools=SMALL)
        fill_catalogue(TOOLS - SMALL)
        del os.environ["CATALOGUE_PAGE_SIZE"]
        met = compare(stack, folder)
        add_toolsets()
        met &= compare_under_changes(stack, folder)
        fill_catalogue(MEMORY - TOOLS)
        _, megabytes = first_page(folder, tools=MEMORY)
        os.environ["CATALOGUE_PAGE_SIZE"] = str(SMALL)
        fill_catalogue(MANY - MEMORY)
        many, _ = first_page(folder, tools=MANY)
    table(
        ("first page of 100", "p50 of one client"),
        (f"{SMALL} tools", milliseconds(few)),
        (f"{MANY:,} tools", milliseconds(many)),
    )
    print(
        f"  a web process with {MEMORY:,} workflows, both eras: {megabytes:.0f} MB (goal: {GOAL_MEGABYTES})"
    )
    met &= megabytes < GOAL_MEGABYTES
    goal = f"{GOAL_OF_BARE:g} of a bare application, p99 under {milliseconds(GOAL_P99_SECONDS)}; "
    goal += f"under changes {GOAL_UNDER_CHANGES:g} and {milliseconds(GOAL_P99_UNDER_CHANGES)}"
    print(f"  goals: {goal}, memory: {'met' if met else 'MISSED'}")
    sys.exit(not met)


if __name__ == "__main__":
    main()
