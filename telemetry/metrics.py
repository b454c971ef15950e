"""The metrics of each process, and how those of all processes of a data folder are combined.

A process counts in its own registry and publishes it as a file every few seconds; the process that is scraped
adds the files of the others. Series have the process and its id as labels: when a process ends, its series
end with it, and no counter decreases. docs/observability.md explains each metric.
"""

import contextlib
import os
import re
import socket
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace

from loguru import logger
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
    start_http_server,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PUBLISHING_SECONDS = 5.0
FRESH_SECONDS = 30.0  # A file that is older belongs to a process that has ended or hangs
FORGOTTEN_SECONDS = 3600.0
OTHER = "other"

disable_created_metrics()  # type: ignore[no-untyped-call]
registry = CollectorRegistry()
ProcessCollector(registry=registry)

_REQUEST_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_LAG_BUCKETS = (0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 300)


def _counter(name: str, meaning: str, *labels: str) -> Counter:
    return Counter(f"catalogue_{name}", meaning, labels, registry=registry)


def _histogram(name: str, meaning: str, *labels: str, buckets: tuple[float, ...]) -> Histogram:
    return Histogram(f"catalogue_{name}", meaning, labels, registry=registry, buckets=buckets)


http_requests = _counter("http_requests", "Requests answered, by area and status class.", "area", "status")
mcp_requests = _counter("mcp_requests", "MCP requests, by method and outcome.", "method", "outcome")
mcp_seconds = _histogram(
    "mcp_request_duration_seconds",
    "Duration of MCP requests, without lists answered from memory.",
    "method",
    buckets=_REQUEST_BUCKETS,
)
lists_of_workflows = _counter(
    "list_workflows",
    "Calls of list_workflows, by mode and by the argument that chose it.",
    "mode",
    "argument",
)
calls_refused = _counter("calls_refused", "Workflow calls refused, by reason.", "reason")
for _reason in ("busy", "rate"):
    # From 0, so that the first one counts as an increase.
    calls_refused.labels(_reason)
database_refusals = _counter(
    "database_refusals", "Requests refused for lack of the database, by cause.", "cause"
)
for _cause in ("busy", "exhausted", "away", "not_migrated"):
    database_refusals.labels(_cause)
engine_requests = _counter("engine_requests", "HTTP requests to engines, by status class.", "status")
engine_seconds = _histogram(
    "engine_request_duration_seconds", "Duration of HTTP requests to engines.", buckets=_REQUEST_BUCKETS
)
connector_errors = _counter(
    "connector_errors", "Errors that ended a call to an engine, by connector and kind.", "connector", "error"
)
discovery_runs = _counter("discovery_runs", "Finished listings of sources, by outcome.", "outcome")
steps_claimed = _counter("steps_claimed", "Steps of runs that workers claimed.")
step_lag = _histogram(
    "step_lag_seconds", "Delay of workers in claiming a due step: a start or a poll.", buckets=_LAG_BUCKETS
)
polls = _counter("polls", "Polls of runs, by outcome.", "outcome")
webhook_deliveries = _counter("webhook_deliveries", "Webhook deliveries from engines, by outcome.", "outcome")
leases_lost = _counter("leases_lost", "Runs taken over after the lease of their process expired.")
model_requests = _counter("model_requests", "Requests to the language model, by outcome.", "outcome")
model_tokens = _counter("model_tokens", "Tokens of the language model, counted by its server.", "direction")
REFUSED = "refused requests"  # The `recurring` of log entries that requests without a token can cause
log_entries = _counter("log_entries", "Warnings and errors logged.", "level")


def bounded(value: str, known: Collection[str]) -> str:
    """A label's value. Unknown values become one: otherwise, clients could create any number of series."""
    return value if value in known else OTHER


def status_class(status: int) -> str:
    return f"{status // 100}xx" if 100 <= status < 600 else "none"


def exposition(families: Iterable[Metric]) -> bytes:
    return generate_latest(SimpleNamespace(collect=lambda: families))


class _Own(Collector):
    """This process's metrics, labelled as everywhere."""

    def __init__(self, process: str) -> None:
        self._process = process

    def collect(self) -> Iterator[Metric]:
        labels = {"process": self._process, "pid": str(os.getpid())}
        for family in registry.collect():
            family.samples = [
                Sample(sample.name, {**sample.labels, **labels}, *sample[2:]) for sample in family.samples
            ]
            yield family


class Publication:
    """This process's metrics as a file among those of its data folder."""

    def __init__(self, folder: Path, process: str) -> None:
        self._folder, self._own = folder, _Own(process)
        host = re.sub(r"[^A-Za-z0-9.]", "_", socket.gethostname())
        self._file = folder / f"{process}-{host}-{os.getpid()}.prom"
        self._lock = threading.Lock()  # Two servers of one process, as in tests, share this publication
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """May be called again after `end`: a process may start its server more than once."""
        with contextlib.suppress(OSError):  # The next line logs it
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._try_to_publish()
        self._ended.clear()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Remove the file. May be called before `begin`."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        with contextlib.suppress(OSError):
            self._file.unlink(missing_ok=True)

    def publish(self) -> None:
        """Atomic: renames a temporary file."""
        written = self._file.with_suffix(".tmp")
        with self._lock:
            written.write_bytes(exposition(self._own.collect()))
            written.replace(self._file)

    def families(self) -> list[Metric]:
        """The current metrics of this process, and the published ones of the others."""
        merged = {family.name: family for family in self._own.collect()}
        for family in self._of_others():
            if (known := merged.setdefault(family.name, family)) is not family:
                known.samples += family.samples
        return list(merged.values())

    def _run(self) -> None:
        while not self._ended.wait(PUBLISHING_SECONDS):
            self._try_to_publish()

    def _try_to_publish(self) -> None:
        try:
            self.publish()
        except OSError as error:
            text = "Other processes miss the metrics of this one, which cannot be written: {}"
            logger.bind(recurring=f"metrics: {error}").warning(text, error)

    def _of_others(self) -> Iterator[Metric]:
        now = time.time()
        for file in sorted(self._folder.glob("*.prom")):
            if file == self._file:
                continue
            # The process may have ended in the meantime, or its disk may have failed.
            with contextlib.suppress(OSError, ValueError, UnicodeDecodeError):
                age = abs(now - file.stat().st_mtime)  # It may be from before the clock was set back
                if age > FORGOTTEN_SECONDS:
                    file.unlink()
                elif age <= FRESH_SECONDS:
                    yield from list(text_string_to_metric_families(file.read_text(encoding="utf-8")))


_served_at: set[str] = set()


def serve_if_asked(address: str, process: str) -> None:
    """Serves this process's own metrics at `host:port`, without authentication, if set and not done yet.
    Raises OSError."""
    if address and address not in _served_at:
        host, _, port = address.rpartition(":")
        own = CollectorRegistry(auto_describe=True)
        own.register(_Own(process))
        start_http_server(int(port), addr=host.strip("[]"), registry=own)
        _served_at.add(address)
