"""`tools/list` and `tools/call` of a fast workflow, eight at a time, against the SDK doing nothing."""

import asyncio
import os
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks._database import own_database
from benchmarks._figures import milliseconds, percentile, stopwatch, table
from benchmarks._processes import McpServer, do_nothing_server, product

CONCURRENCY = 8
WARM_UP = 40
REQUESTS = 240
ROUNDS = 3
VERSION = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": VERSION,
    "io.modelcontextprotocol/clientCapabilities": {},
}
TEXT = "Benchmarks measure. What they measure is written in their first line. Nothing more."
CALL = {"name": "text_statistics", "arguments": {"text": TEXT}}
METHODS: dict[str, dict[str, Any]] = {"tools/list": {}, "tools/call": CALL}


@dataclass
class Figures:
    per_second: float
    latencies: list[float]

    @property
    def median(self) -> float:
        return percentile(self.latencies, 50)

    @property
    def p99(self) -> float:
        return percentile(self.latencies, 99)


async def one_request(client: httpx.AsyncClient, url: str, method: str) -> float:
    params = METHODS[method]
    headers = {"mcp-method": method} | ({"mcp-name": params["name"]} if "name" in params else {})
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"_meta": META, **params}}
    with stopwatch() as took:
        answer = await client.post(url, json=body, headers=headers)
    assert answer.status_code == 200 and '"result"' in answer.text, answer.text[:500]
    assert '"isError":true' not in answer.text, answer.text[:500]
    return took.seconds


async def burst(server: McpServer, method: str, requests: int) -> Figures:
    headers = {
        "accept": "application/json, text/event-stream",
        "authorization": f"Bearer {server.token}",
        "mcp-protocol-version": VERSION,
    }
    latencies: list[float] = []
    limits = httpx.Limits(max_connections=CONCURRENCY, max_keepalive_connections=CONCURRENCY)
    async with httpx.AsyncClient(headers=headers, limits=limits, timeout=60, trust_env=False) as client:

        async def worker() -> None:
            while len(latencies) + CONCURRENCY <= requests:
                latencies.append(await one_request(client, server.url, method))

        with stopwatch() as took:
            await asyncio.gather(*(worker() for _ in range(CONCURRENCY)))
    return Figures(len(latencies) / took.seconds, latencies)


def measure(servers: dict[str, McpServer], method: str) -> dict[str, Figures]:
    """The best round of each; they take turns, so that a busy machine disturbs both."""
    rounds: dict[str, list[Figures]] = {name: [] for name in servers}
    for server in servers.values():
        asyncio.run(burst(server, method, WARM_UP))
    for _ in range(ROUNDS):
        for name, server in servers.items():
            rounds[name].append(asyncio.run(burst(server, method, REQUESTS)))
    return {name: max(figures, key=lambda found: found.per_second) for name, figures in rounds.items()}


def report(method: str, found: dict[str, Figures]) -> None:
    nothing = found["SDK, do-nothing"]
    table(
        (method, "per second", "median", "p99", "times the SDK alone"),
        *(
            (
                name,
                f"{figures.per_second:,.0f}",
                milliseconds(figures.median),
                milliseconds(figures.p99),
                f"{nothing.per_second / figures.per_second:.2f}",
            )
            for name, figures in found.items()
        ),
    )


def main() -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        database = stack.enter_context(own_database(os.environ.get("DATABASE_URL", "")))
        servers = {"product": stack.enter_context(product(folder))}
        servers["SDK, do-nothing"] = stack.enter_context(do_nothing_server(folder))
        print(f"  {database}, {CONCURRENCY} requests at a time, {REQUESTS} a round, best of {ROUNDS} rounds")
        for method in METHODS:
            report(method, measure(servers, method))


if __name__ == "__main__":
    main()
