"""What one web process, one worker and 1,000 runs need: the figures that docs/sizing.md counts with."""

import asyncio
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from statistics import median

import httpx2
import psutil

from dev.benchmarks import polling
from dev.benchmarks._figures import stopwatch, table
from dev.benchmarks._processes import McpServer, catalogue_server, own_database, running_worker, status_engine
from dev.benchmarks._status_engine import AT_ONCE, CACHED, POLLED
from dev.benchmarks.calls import META, TEXT, TITLES, VERSION, WARM_UP, burst, prepare_workflows

CLIENTS, REQUESTS, ROUNDS = 8, 200, 3
WAITING = 200
LONG = "waits"
"""Of the status engine: its runs never end."""
RUNS, INTERVAL_SECONDS = 2_000, 10
UPKEEP_SECONDS = 10.0
POLL_WARM_UP_SECONDS, POLL_SECONDS = 20, 30
LOOK_SECONDS = 0.5
TABLES = {
    "executions_": "executions, events, payloads, statistics",
    "audit_": "audit",
}


@dataclass
class Peak:
    bytes: int = 0
    connections: int = 0
    readings: list[int] = field(default_factory=list)


@contextmanager
def watched(process: psutil.Process) -> Iterator[Peak]:
    """The most that it needed within the block."""
    peak, over = Peak(), threading.Event()

    def look() -> None:
        while not over.wait(LOOK_SECONDS):
            peak.bytes = max(peak.bytes, process.memory_full_info().uss)
            peak.connections = max(peak.connections, connections_of(process))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()


def connections_of(process: psutil.Process) -> int:
    """To PostgreSQL; 0 on SQLite."""
    return sum(bool(one.raddr) and one.raddr.port == database_port() for one in process.net_connections())


def database_port() -> int:
    from django.db import connection

    return int(connection.settings_dict.get("PORT") or 5432)


def sizes() -> dict[str, int]:
    """Bytes by group of tables, with their indexes; of SQLite the whole file alone."""
    from django.db import connection

    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            return {"all": os.path.getsize(connection.settings_dict["NAME"])}
        cursor.execute("SELECT relname, pg_total_relation_size(oid) FROM pg_class WHERE relkind = 'r'")
        found = dict(cursor.fetchall())
    groups = {
        title: sum(size for name, size in found.items() if name.startswith(prefix))
        for prefix, title in TABLES.items()
    }
    return groups | {"all": sum(size for name, size in found.items() if not name.startswith(("pg_", "sql_")))}


def rows() -> dict[str, int]:
    from audit.models import Entry
    from executions.models import Execution, ExecutionEvent, HourlyUsage

    return {
        model.__name__: model.objects.count() for model in (Execution, ExecutionEvent, Entry, HourlyUsage)
    }


def measure_calls(server: McpServer) -> None:
    cpu: dict[str, float] = {}
    for tool in (POLLED, AT_ONCE, CACHED):
        burst(server, tool, clients=CLIENTS, requests=WARM_UP)
        found = [burst(server, tool, clients=CLIENTS, requests=REQUESTS) for _ in range(ROUNDS)]
        cpu[tool] = median(one.cpu_seconds for one in found)
    print("  one web process")
    table(
        ("calls", "CPU of one", "a second, of a core"),
        *((TITLES[tool], f"{cost * 1000:.1f} ms", f"{1 / cost:,.0f}") for tool, cost in cpu.items()),
    )


def measure_growth(server: McpServer) -> None:
    """Of the calls that are over by their first poll; with what dead rows take until vacuum."""
    before, counted = sizes(), rows()
    burst(server, POLLED, clients=CLIENTS, requests=1_000)
    after, counts = sizes(), rows()
    print("  1,000 runs, with a text of 90 characters and a result of 50")
    table(
        ("what", "grows by"),
        *((what, f"{(size - before[what]) / 1e6:.2f} MB") for what, size in after.items()),
        *((f"rows of {name}", f"{count - counted[name]:,}") for name, count in counts.items()),
    )


def measure_upkeep() -> None:
    """Of the runs so far: statistics, the audit's entries and seals, and what the retention removes."""
    from django.db.models import F

    from audit.sealing import seal
    from executions import retention
    from executions.models import Execution
    from executions.statistics import fold

    def age(days: int) -> None:
        by = timedelta(days=days)
        ended = Execution.objects.exclude(finished_at=None)
        ended.update(created_at=F("created_at") - by, finished_at=F("finished_at") - by)

    runs, before, counted = Execution.objects.exclude(finished_at=None).count(), sizes(), rows()
    with stopwatch() as folding:
        fold()
    age(1)
    with stopwatch() as sealing:
        entries = seal()
    after, counts = sizes(), rows()
    age(400)
    with stopwatch() as pruning:
        removed = retention.prune(seconds=UPKEEP_SECONDS)
    print(f"  upkeep of {runs:,} runs; sealing and removing rest for as long as they work")
    table(
        ("what", "figure"),
        ("statistics folded a second", f"{runs / folding.seconds:,.0f} runs"),
        ("rows of HourlyUsage left", f"{counts['HourlyUsage']:,} of {counted['HourlyUsage']:,}"),
        ("entries of the audit", f"{entries:,}, {entries / sealing.seconds:,.0f} a second"),
        ("they take", f"{(after['all'] - before['all']) / max(entries, 1) / 1e3:.2f} MB for 1,000"),
        ("removed a second", f"{removed.executions / pruning.seconds:,.0f} runs"),
    )


async def call_and_wait(server: McpServer) -> None:
    headers = {
        "accept": "application/json, text/event-stream",
        "authorization": f"Bearer {server.token}",
        "mcp-protocol-version": VERSION,
        "mcp-method": "tools/call",
        "mcp-name": LONG,
    }
    params = {"_meta": META, "name": LONG, "arguments": {"text": TEXT}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    limits = httpx2.Limits(max_connections=None)
    async with httpx2.AsyncClient(headers=headers, timeout=300, limits=limits, trust_env=False) as client:
        answers = await asyncio.gather(*(client.post(server.url, json=body) for _ in range(WAITING)))
    assert all("execution_id" in answer.text for answer in answers), answers[0].text


def measure_waiting(server: McpServer) -> None:
    process, idle = server.process, server.process.memory_full_info().uss
    used = server.cpu_seconds()
    began = time.monotonic()
    with watched(process) as peak:
        asyncio.run(call_and_wait(server))
    seconds = time.monotonic() - began
    used = server.cpu_seconds() - used
    print(f"  {WAITING} calls that wait in one web process for {seconds:.0f} s")
    table(
        ("memory before", "meanwhile", "of one call", "CPU of one call", "connections"),
        (
            f"{idle / 1e6:,.0f} MB",
            f"{peak.bytes / 1e6:,.0f} MB",
            f"{(peak.bytes - idle) / WAITING / 1e3:,.0f} kB",
            f"{used / WAITING * 1000:.1f} ms",
            str(peak.connections),
        ),
    )


def measure_worker(folder: Path, base_url: str) -> None:
    polling.RUNS, polling.INTERVAL_SECONDS = RUNS, INTERVAL_SECONDS
    polling.make_running(base_url)
    settings = {
        "CATALOGUE_STATUS_CHECK_INTERVAL": str(INTERVAL_SECONDS),
        "CATALOGUE_DISCOVERY_ENABLED": "false",
    }
    with running_worker(folder, **settings) as worker:
        time.sleep(POLL_WARM_UP_SECONDS)
        since, used = time.time(), polling.cpu_seconds(worker)
        with watched(worker) as peak:
            time.sleep(POLL_SECONDS)
        until, used = time.time(), polling.cpu_seconds(worker) - used
        seen = polling.arrivals(base_url)
        beat = next(
            one for one in psutil.Process().children() if one.pid != worker.pid and "beat" in one.cmdline()
        )
        beat_bytes = beat.memory_full_info().uss
    polls = sum(since <= at <= until for times in seen.values() for at in times)
    print(f"  one worker, {RUNS:,} running executions, of which each is polled every {INTERVAL_SECONDS} s")
    table(
        ("polls a second", "CPU of one", "a second, of a core", "memory", "connections", "beat's memory"),
        (
            f"{polls / (until - since):,.0f}",
            f"{used / max(polls, 1) * 1000:.1f} ms",
            f"{polls / used:,.0f}",
            f"{peak.bytes / 1e6:,.0f} MB",
            str(peak.connections),
            f"{beat_bytes / 1e6:,.0f} MB",
        ),
    )


def add_long_workflow() -> None:
    from catalogue.models import Revision, Source, Workflow

    model = Workflow.objects.get(name=POLLED)
    Workflow.objects.create(
        source=Source.objects.get(pk=model.source_id),
        upstream_id=LONG,
        name=LONG,
        tool_name=LONG,
        enabled=True,
        input_schema=model.input_schema,
        content_hash="1" * 64,
    )
    Revision.bump()


def main() -> None:
    os.environ["CATALOGUE_MAX_CONCURRENT_EXECUTIONS"] = "0"
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        database = stack.enter_context(own_database(os.environ.get("DATABASE_URL", "")))
        base_url = stack.enter_context(status_engine(folder))
        prepare_workflows(base_url)
        add_long_workflow()
        print(f"  {database}")
        with catalogue_server(folder) as server:
            started_with = server.process.memory_full_info().uss
            print(f"  a web process that has just started: {started_with / 1e6:,.0f} MB")
            measure_calls(server)
            measure_growth(server)
            measure_waiting(server)
        measure_upkeep()
        measure_worker(folder, base_url)


if __name__ == "__main__":
    main()
