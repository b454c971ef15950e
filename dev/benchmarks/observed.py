"""What metrics, JSON logs and traces cost a `tools/call` (goal: under 10 %)."""

import math
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median, quantiles

import httpx2
import psutil

from connectors.testing import free_port
from dev.benchmarks._figures import table
from dev.benchmarks._processes import McpServer, own_database, status_engine, traces_collector
from dev.benchmarks._status_engine import AT_ONCE, CACHED, POLLED
from dev.benchmarks.calls import TITLES, WARM_UP, burst, prepare_workflows
from tests.processes import running

GOAL = 0.10
CLIENTS, REQUESTS, ROUNDS = 8, 40, 250
ON, OFF = "on", "off"
SWITCHING_SECONDS = 10.0
SCRAPE_SECONDS = 5.0


@contextmanager
def web_process(folder: Path, file: Path, **variables: str) -> Iterator[McpServer]:
    from access.callers import Scope
    from identity.tokens import create_token

    _, token = create_token(name="benchmark", scopes=[Scope.READ, Scope.RUN, Scope.VIEW])
    address = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "-m", "dev.benchmarks._switched", str(port), str(file)]
    ready = f"{address}/health/live"
    with running(command, answers_at=ready, log=folder / "web.log", environment=variables) as started:
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


def switch(server: McpServer, file: Path, state: str) -> None:
    new = file.with_suffix(".new")
    new.write_text(state)
    new.rename(file)
    server.process.send_signal(signal.SIGUSR1)
    deadline = time.monotonic() + SWITCHING_SECONDS
    while file.exists():
        assert time.monotonic() < deadline, "the process does not switch"
        time.sleep(0.001)


def costs_of_a_call(server: McpServer, file: Path, tool: str) -> list[dict[str, float]]:
    """Seconds of CPU of the same process, observed and not, by many short rounds.

    Two processes that run the same code differ by 5 %, and a machine's pace changes within a second.
    """
    burst(server, tool, clients=CLIENTS, requests=WARM_UP)
    rounds: list[dict[str, float]] = []
    for number in range(ROUNDS):
        costs = {}
        for state in (ON, OFF) if number % 2 else (OFF, ON):
            switch(server, file, state)
            costs[state] = burst(server, tool, clients=CLIENTS, requests=REQUESTS).cpu_seconds
        rounds.append(costs)
    return rounds


def loss(rounds: list[dict[str, float]]) -> tuple[float, float]:
    """The median, and its standard error by that of a normal distribution."""
    losses = [1 - costs[OFF] / costs[ON] for costs in rounds]
    tenth, *_, ninth = quantiles(losses, n=10)
    return median(losses), 1.25 * (ninth - tenth) / 2.56 / math.sqrt(len(losses))


def main() -> None:
    cores = sorted(os.sched_getaffinity(0))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(own_database(os.environ.get("DATABASE_URL", "")))
        # The engine and the load have a core, and the server that is measured has the other.
        os.sched_setaffinity(0, cores[-1:])
        prepare_workflows(stack.enter_context(status_engine(folder)))
        collector = stack.enter_context(traces_collector(folder))
        variables = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector,
            "LOG_FORMAT": "json",
            "LOG_LEVEL": "INFO",
            # Half of the default: it is observed half of the time, and what it may record adds up meanwhile.
            "CATALOGUE_TRACES_PER_SECOND": "10",
        }
        file = folder / "parts"
        server = stack.enter_context(web_process(folder, file, **variables))
        for thread in server.process.threads():
            os.sched_setaffinity(thread.id, cores[:1])
        stack.enter_context(scraped(server))
        found = {tool: costs_of_a_call(server, file, tool) for tool in (POLLED, AT_ONCE, CACHED)}
        received = httpx2.get(f"{collector}/received").text
    table(
        ("CPU of a call", "not observed", "observed", "loss", "give or take"),
        *(
            (
                TITLES[tool],
                *(f"{median(costs[state] for costs in rounds) * 1000:.2f} ms" for state in (OFF, ON)),
                *(f"{share:.1%}" for share in loss(rounds)),
            )
            for tool, rounds in found.items()
        ),
    )
    print(f"The collector got {int(received):,} bytes of spans.")
    assert int(received), "no span was exported"
    if missed := [TITLES[tool] for tool, rounds in found.items() if loss(rounds)[0] > GOAL]:
        sys.exit(f"More than {GOAL:.0%} is lost by calls {', '.join(missed)}.")


if __name__ == "__main__":
    main()
