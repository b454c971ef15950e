"""What metrics, JSON logs and traces cost a `tools/call`, also with every trace (goal: under 10 %)."""

import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

import httpx2
import psutil

from benchmarks._figures import table
from benchmarks._processes import McpServer, own_database, status_engine, traces_collector
from benchmarks._status_engine import AT_ONCE, CACHED, POLLED
from benchmarks.calls import TITLES, WARM_UP, burst, prepare_workflows
from connectors.testing import free_port
from tests.processes import running, web_command

GOAL = 0.10
CLIENTS, REQUESTS, ROUNDS = 8, 300, 7
DEFAULT, ALL_TRACES, OFF = "all on", "with every trace", "off"
GROUPS = 3
"""Of processes: two that run the same code differ by 5 % in what a call costs them."""
SCRAPE_SECONDS = 5.0


@contextmanager
def web_process(
    folder: Path, name: str, command: list[str], port: int, **variables: str
) -> Iterator[McpServer]:
    from catalogue.access import Scope
    from mcp_bridge.tokens import create_token

    _, token = create_token(name=f"benchmark {name}", scopes=[Scope.READ, Scope.RUN, Scope.VIEW])
    address = f"http://127.0.0.1:{port}"
    log = folder / f"{name}.log"
    with running(command, answers_at=f"{address}/health/live", log=log, environment=variables) as started:
        yield McpServer(f"{address}/mcp", psutil.Process(started.pid), token)


@contextmanager
def scraped(server: McpServer) -> Iterator[None]:
    """As Prometheus would, though three times as often."""
    ended, headers = threading.Event(), {"authorization": f"Bearer {server.token}"}
    address = server.url.removesuffix("/mcp") + "/metrics"

    def scrape() -> None:
        while not ended.wait(SCRAPE_SECONDS):
            httpx2.get(address, headers=headers, timeout=30).raise_for_status()

    thread = threading.Thread(target=scrape, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def costs_of_a_call(groups: list[dict[str, McpServer]], tool: str) -> list[dict[str, float]]:
    """Seconds of CPU in each kind of process, by rounds in which they take turns."""
    rounds: list[dict[str, float]] = []
    for servers in groups:
        for server in servers.values():
            burst(server, tool, clients=CLIENTS, requests=WARM_UP)
        rounds += [
            {
                name: burst(server, tool, clients=CLIENTS, requests=REQUESTS).cpu_seconds
                for name, server in servers.items()
            }
            for _ in range(ROUNDS)
        ]
    return rounds


def loss(rounds: list[dict[str, float]], kind: str) -> float:
    """The median over the rounds: a machine's pace changes less within one than between them."""
    return median(1 - costs[OFF] / costs[kind] for costs in rounds)


def main() -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(own_database(os.environ.get("DATABASE_URL", "")))
        prepare_workflows(stack.enter_context(status_engine(folder)))
        collector = stack.enter_context(traces_collector(folder))
        everything = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector, "LOG_FORMAT": "json", "LOG_LEVEL": "INFO"}
        kinds = {
            DEFAULT: everything,
            ALL_TRACES: everything | {"OTEL_TRACES_SAMPLER": "parentbased_always_on"},
        }
        groups = []
        for number in range(GROUPS):
            group = {}
            for kind, variables in kinds.items():
                observed = web_process(
                    folder, f"{kind} {number}", web_command(port := free_port()), port, **variables
                )
                group[kind] = stack.enter_context(observed)
                stack.enter_context(scraped(group[kind]))
            bare = [sys.executable, "-m", "benchmarks._unobserved", str(port := free_port())]
            unobserved = web_process(folder, f"off {number}", bare, port, LOG_LEVEL="ERROR")
            groups.append(group | {OFF: stack.enter_context(unobserved)})
        found = {tool: costs_of_a_call(groups, tool) for tool in (POLLED, AT_ONCE, CACHED)}
        received = httpx2.get(f"{collector}/received").text
    lost = {tool: {kind: loss(rounds, kind) for kind in kinds} for tool, rounds in found.items()}
    cost = {
        tool: {kind: f"{median(costs[kind] for costs in rounds) * 1000:.2f} ms" for kind in (OFF, *kinds)}
        for tool, rounds in found.items()
    }
    table(
        ("CPU of a call", "not observed", *(part for kind in kinds for part in (kind, "loss"))),
        *(
            (
                TITLES[tool],
                cost[tool][OFF],
                *(part for kind in kinds for part in (cost[tool][kind], f"{lost[tool][kind]:.1%}")),
            )
            for tool in found
        ),
    )
    print(f"The collector got {int(received):,} bytes of spans.")
    assert int(received), "no span was exported"
    if missed := [TITLES[tool] for tool, losses in lost.items() if losses[DEFAULT] > GOAL]:
        sys.exit(f"More than {GOAL:.0%} is lost by calls {', '.join(missed)}.")


if __name__ == "__main__":
    main()
