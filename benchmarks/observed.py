"""What metrics, JSON logs and traces cost a `tools/call`: all of them against none (goal: under 10 %)."""

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
CLIENTS, REQUESTS, ROUNDS = 8, 600, 3
PAIRS = 3
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


def loss(pairs: list[dict[str, McpServer]], tool: str) -> tuple[float, float, float]:
    """CPU of a call with and without, in seconds, and the loss, by the medians. They take turns."""
    found: dict[str, list[float]] = {"on": [], "off": []}
    for servers in pairs:
        for server in servers.values():
            burst(server, tool, clients=CLIENTS, requests=WARM_UP)
        for _ in range(ROUNDS):
            for name, server in servers.items():
                found[name].append(burst(server, tool, clients=CLIENTS, requests=REQUESTS).cpu_seconds)
    on, off = median(found["on"]), median(found["off"])
    return on, off, 1 - off / on


def main() -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(own_database(os.environ.get("DATABASE_URL", "")))
        prepare_workflows(stack.enter_context(status_engine(folder)))
        collector = stack.enter_context(traces_collector(folder))
        everything = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector, "LOG_FORMAT": "json", "LOG_LEVEL": "INFO"}
        pairs = []
        for number in range(PAIRS):
            on, off = free_port(), free_port()
            bare = [sys.executable, "-m", "benchmarks._unobserved", str(off)]
            observed = web_process(folder, f"on {number}", web_command(on), on, **everything)
            unobserved = web_process(folder, f"off {number}", bare, off, LOG_LEVEL="ERROR")
            pairs.append({"on": stack.enter_context(observed), "off": stack.enter_context(unobserved)})
            stack.enter_context(scraped(pairs[-1]["on"]))
        found = {}
        for tool in (POLLED, AT_ONCE, CACHED):
            found[tool] = loss(pairs, tool)
            print(f"  {TITLES[tool]}: {found[tool][2]:.1%} lost", flush=True)
        received = httpx2.get(f"{collector}/received").text
    table(
        ("CPU of a call", "observed", "not", "loss"),
        *(
            (TITLES[tool], f"{with_all * 1000:.2f} ms", f"{without * 1000:.2f} ms", f"{lost:.1%}")
            for tool, (with_all, without, lost) in found.items()
        ),
    )
    print(f"The collector got {int(received):,} bytes of spans.")
    assert int(received), "no span was exported"
    if missed := [TITLES[tool] for tool, (*_, lost) in found.items() if lost > GOAL]:
        sys.exit(f"More than {GOAL:.0%} is lost by calls {', '.join(missed)}.")


if __name__ == "__main__":
    main()
