"""10,000 running executions on one worker (goal: p99 lag under 5 s), and how soon a caller has its result."""

import os
import random
import re
import sys
import tempfile
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path

import httpx2
import psutil

from dev.benchmarks._figures import milliseconds, percentile, table
from dev.benchmarks._processes import McpServer, own_database, product, running_worker, status_engine
from dev.benchmarks._status_engine import ARRIVALS_PATH
from dev.benchmarks.calls import META, VERSION

RUNS = 10_000
INTERVAL_SECONDS = 30
WARM_UP_SECONDS = 60
WINDOW_SECONDS = 90
ON_TIME_SECONDS = 2.0
"""The worker looks once a second for what is due."""
GOAL_P99_SECONDS = 5.0
CATCH_UP_PATIENCE_SECONDS = 120

CALLS = 60
CALLERS = 8
GOAL_ANSWER_SECONDS = 1.1
"""The shortest interval between two polls (B2), and 100 ms."""


@dataclass
class Polling:
    lags: list[float]
    """Of each poll in the window, and of each that should have happened in it and did not."""
    cpu_share: float
    """CPU seconds of the worker per second."""
    resident_bytes: int
    catch_up_seconds: float
    """From all being due at once, as after a long stop, to each having been polled."""

    @property
    def on_time(self) -> float:
        return sum(lag <= ON_TIME_SECONDS for lag in self.lags) / len(self.lags)


def make_running(base_url: str) -> None:
    """Executions whose next polls are spread evenly over one interval."""
    from django.utils import timezone

    from catalogue.actions.sources import create_source
    from catalogue.models import Workflow
    from executions.models import Execution, ExecutionPayload, State

    source = create_source(
        name="status-engine", kind="simplified", config={"base_url": base_url}, credentials={}
    )
    workflow = Workflow.objects.create(
        source=source, upstream_id="1", name="long", tool_name="long", input_schema={}, content_hash="0" * 64
    )
    now = timezone.now()
    executions = [
        Execution(
            workflow=workflow,
            tool_name="long",
            workflow_name="long",
            upstream_id="1",
            source_name=source.name,
            caller="somebody",
            door=Execution.Door.MCP,
            state=State.RUNNING,
            run_id=uuid.uuid4().hex,
            admitted_at=now,
            started_at=now,
            timeout_seconds=86_400,
            deadline_at=now + timedelta(days=1),
            next_attempt_at=now + timedelta(seconds=INTERVAL_SECONDS * random.random()),
        )
        for _ in range(RUNS)
    ]
    Execution.objects.bulk_create(executions, batch_size=500)
    payloads = (ExecutionPayload(execution=execution, input={}, output=None) for execution in executions)
    ExecutionPayload.objects.bulk_create(payloads, batch_size=500)


def arrivals(base_url: str) -> dict[str, list[float]]:
    """When the engine was asked for each run, by its clock, which is this machine's."""
    answer: dict[str, list[float]] = httpx2.get(base_url + ARRIVALS_PATH, trust_env=False, timeout=30).json()
    return answer


def find_lags(seen: dict[str, list[float]], *, since: float, until: float) -> list[float]:
    lags = [max(0.0, until - since)] * (RUNS - len(seen))
    for times in seen.values():
        before = [at for at in times if at <= until]
        lags += [at - previous - INTERVAL_SECONDS for previous, at in pairwise(before) if at >= since]
        overdue = until - (before[-1] if before else since) - INTERVAL_SECONDS
        lags += [overdue] if overdue > 0 else []
    return lags


def cpu_seconds(process: psutil.Process) -> float:
    used = process.cpu_times()
    return used.user + used.system


def measure_polling(folder: Path) -> Polling:
    with status_engine(folder) as base_url:
        make_running(base_url)
        # The engine has no listing: whatever it is asked for is a status.
        settings = {
            "CATALOGUE_STATUS_CHECK_INTERVAL": str(INTERVAL_SECONDS),
            "CATALOGUE_DISCOVERY_ENABLED": "false",
        }
        with running_worker(folder, **settings) as worker:
            time.sleep(WARM_UP_SECONDS)
            since, used = time.time(), cpu_seconds(worker)
            time.sleep(WINDOW_SECONDS)
            until, used = time.time(), cpu_seconds(worker) - used
            lags = find_lags(arrivals(base_url), since=since, until=until)
            catch_up = measure_catch_up(base_url)
            return Polling(lags, used / (until - since), worker.memory_info().rss, catch_up)


def measure_catch_up(base_url: str) -> float:
    from django.utils import timezone

    from executions.models import Execution

    Execution.objects.update(next_attempt_at=timezone.now())
    began = time.time()
    while time.time() < began + CATCH_UP_PATIENCE_SECONDS:
        time.sleep(1)
        seen = arrivals(base_url)
        if all(times[-1] >= began for times in seen.values()):
            return max(min(at for at in times if at >= began) for times in seen.values()) - began
    return CATCH_UP_PATIENCE_SECONDS


def report_polling(found: Polling, database: str) -> bool:
    print(f"  {database}, {RUNS:,} runs polled each {INTERVAL_SECONDS} s, {WINDOW_SECONDS} s measured")
    table(
        ("polls", "on time", "lag p50", "lag p99", "lag max", "worker CPU", "worker RSS", "all due at once"),
        (
            f"{len(found.lags):,}",
            f"{found.on_time:.2%}",
            milliseconds(percentile(found.lags, 50)),
            milliseconds(percentile(found.lags, 99)),
            milliseconds(max(found.lags)),
            f"{found.cpu_share:.0%} of a core",
            f"{found.resident_bytes / 1e6:,.0f} MB",
            f"{found.catch_up_seconds:.1f} s ({RUNS / found.catch_up_seconds:,.0f} a second)",
        ),
    )
    p99 = percentile(found.lags, 99)
    return told("p99 lag", p99, GOAL_P99_SECONDS)


def measure_answers(server: McpServer) -> list[float]:
    """Seconds from the end of each run, by the engine's clock, to the whole answer at the caller."""
    lengths = [0.5 + 5.5 * number / CALLS for number in range(CALLS)]
    random.Random(7).shuffle(lengths)
    headers = {
        "accept": "application/json, text/event-stream",
        "authorization": f"Bearer {server.token}",
        "mcp-protocol-version": VERSION,
        "mcp-method": "tools/call",
        "mcp-name": "countdown",
    }
    with (
        httpx2.Client(headers=headers, timeout=60, trust_env=False) as client,
        ThreadPoolExecutor(CALLERS) as callers,
    ):
        return list(callers.map(partial(one_answer, client, server.url), lengths))


def one_answer(client: httpx2.Client, url: str, seconds: float) -> float:
    params = {"_meta": META, "name": "countdown", "arguments": {"seconds": seconds}}
    answer = client.post(url, json={"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    answered_at = time.time()
    assert answer.status_code == 200, answer.text
    found = re.search(r'"finished_at":\s*"([^"]+)"', answer.text)
    assert found, answer.text
    return answered_at - datetime.fromisoformat(found[1]).timestamp()


def report_answers(found: list[float]) -> bool:
    print(
        f"  {CALLS} countdowns of 0.5 to 6 s, {CALLERS} callers that wait: from the run's end to the answer"
    )
    table(
        ("p50", "p95", "max"),
        (*(milliseconds(percentile(found, percent)) for percent in (50, 95)), milliseconds(max(found))),
    )
    return told("p95 to the answer", percentile(found, 95), GOAL_ANSWER_SECONDS)


def told(what: str, seconds: float, goal: float) -> bool:
    met = seconds < goal
    print(f"  goal: {what}: {seconds:.2f} s of {goal:g} s {'met' if met else 'MISSED'}", flush=True)
    return met


def main() -> None:
    os.environ["CATALOGUE_MAX_CONCURRENT_EXECUTIONS"] = "0"
    with own_database(os.environ.get("DATABASE_URL", "")) as database, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        met = report_polling(measure_polling(folder), database)
        with product(folder) as server:
            met &= report_answers(measure_answers(server))
    sys.exit(not met)


if __name__ == "__main__":
    main()
