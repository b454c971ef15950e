"""Probes, metrics and the id of a request, as operators' programs meet them at a real server."""

import asyncio
import errno
import itertools
import os
import re
import socket
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from celery import current_app
from django.core.checks import run_checks
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from loguru import logger
from mcp import MCPError
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode, TraceFlags
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr

from catalogue.access import Scope
from catalogue.database import THREADS
from catalogue.discovery import refresh_source
from config.celery import SCHEME, broker_options
from config.monitoring import collect, forget_measures, publication, readiness
from connectors.testing import free_port
from executions.local_worker import SILENCE, note_worker, show_life, stand_in
from executions.models import Execution, WorkerPresence
from executions.tasks import poll_due_executions
from mcp_bridge.addresses import warn_once
from mcp_bridge.tokens import create_token
from telemetry.metrics import Publication
from tests import plain_http
from tests.executions.engines import WireEngine, wait_until
from tests.executions.steps import advance_due_executions, wrapping_statements
from tests.factories import make_discovery_run, make_execution, make_source, make_toolset, make_workflow
from tests.logs import shown_lines
from tests.mcp_bridge.conftest import McpServer
from tests.processes import running

ADDRESSES = ["/health/sources", "/metrics"]
NOT_FOUND = {"2026-07-28": "-32602", "legacy": "-32002"}
PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
FULL = os.strerror(errno.ENOSPC)
PASSWORD = "top-secret-of-the-engine"


@pytest.fixture
def reader() -> str:
    return create_token(name="prometheus", scopes=[Scope.VIEW])[1]


def scraped(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """By name and labels, without those of the process."""
    return {
        (sample.name, frozenset((k, v) for k, v in sample.labels.items() if k not in ("pid", "process"))): (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(name: str, **labels: str) -> float:
    forget_measures()
    return scraped(collect().decode()).get((f"catalogue_{name}", frozenset(labels.items())), 0.0)


def test_the_process_says_that_it_lives_also_under_another_host_name(mcp_server):
    """B9: probes name a machine's address; nothing is asked of the database."""
    answer = mcp_server.get("/health/live")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
    assert ready(mcp_server, host="10.1.2.3:8000").status_code == 503


def ready(server: McpServer, query: str = "", **headers: str) -> Any:
    forget_measures()
    return plain_http.get(f"{server.base_url}/health/ready{query}", headers=headers, timeout=20)


@pytest.fixture
def heartbeat(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Waits for one of a worker, which then falls silent."""

    def show_life_once() -> None:
        began, ended = timezone.now(), threading.Event()
        thread = threading.Thread(target=show_life, args=(ended,))
        thread.start()
        try:
            wait_until(lambda: WorkerPresence.objects.filter(worker_at__gte=began), "the worker shows life")
        finally:
            ended.set()
            thread.join()

    monkeypatch.setattr("executions.local_worker.HEARTBEAT_SECONDS", 0.01)
    return show_life_once


@pytest.mark.databases("config.monitoring", "executions.local_worker")
def test_readiness_names_what_is_missing_and_each_check_has_a_reason(mcp_server, heartbeat):
    """B9: beat's last tick and workers are told apart; a load balancer may leave them out."""
    nobody = ready(mcp_server)
    assert nobody.status_code == 503
    checks = nobody.json()["checks"]
    assert [name for name, check in checks.items() if not check["ok"]] == ["beat", "workers"]
    assert checks["broker"]["ok"] and all(check["reason"] for check in checks.values())
    assert ready(mcp_server, "?leave_out=beat,workers").json()["status"] == "ready"
    assert ready(mcp_server, "?leave_out=everything").status_code == 400

    poll_due_executions()
    assert ready(mcp_server).status_code == 200

    WorkerPresence.objects.update(seen_at=timezone.now() - SILENCE * 2)
    heartbeat()
    checks = ready(mcp_server).json()["checks"]
    assert checks["workers"]["ok"] and not checks["beat"]["ok"]
    assert "Is beat running?" in checks["beat"]["reason"]

    WorkerPresence.objects.update(worker_at=timezone.now() - SILENCE * 2)
    checks = ready(mcp_server).json()["checks"]
    assert not checks["workers"]["ok"] and "20 s ago" in checks["workers"]["reason"]


@pytest.mark.databases("config.monitoring", "executions.local_worker")
def test_readiness_says_by_how_much_the_clock_of_a_worker_is_wrong(mcp_server, heartbeat):
    """O7: one that is ahead drops all ticks, so that none was ever processed."""
    heartbeat()
    checks = ready(mcp_server).json()["checks"]
    assert checks["workers"]["ok"]
    assert not checks["beat"]["ok"] and "No tick has been processed yet" in checks["beat"]["reason"]

    WorkerPresence.objects.update(worker_at=timezone.now() + timedelta(hours=1))
    checks = ready(mcp_server).json()["checks"]
    for name in ("beat", "workers"):
        assert not checks[name]["ok"]
        assert re.search(r"is dated 3(599|600) s ahead .* Compare the clocks", checks[name]["reason"]), name

    # One that is behind gives signs, too, that seem to be old.
    readiness.forget()
    for seconds in range(2):
        behind = timezone.now() - timedelta(hours=1) + timedelta(seconds=seconds)
        WorkerPresence.objects.update(worker_at=behind, seen_at=behind)
        readiness.checks.forget()
        found = readiness.checks()
    for name in ("beat", "workers"):
        assert not found[name].ok and re.search(r"3(599|600) s behind", found[name].reason), name


@pytest.mark.parametrize(
    ("public", "sent", "told"),
    [
        ("http://catalogue.example.com", "https", "cookies are not Secure"),
        ("http://catalogue.example.com", "https, http", "cookies are not Secure"),
        ("https://catalogue.example.com", "http", "clients use http"),
        ("https://catalogue.example.com", "wss", "no known scheme: no HSTS"),
        ("https://catalogue.example.com", None, "no known scheme: no HSTS"),
        ("https://catalogue.example.com", "https", ""),
        ("http://catalogue.example.com", "http", ""),
        ("http://catalogue.example.com", None, ""),
    ],
)
def test_the_log_says_once_that_a_trusted_proxy_has_another_scheme_than_the_public_address(
    mcp_server, settings, public, sent, told
):
    """O9: cookies were not Secure, and nothing said so."""
    headers = {} if sent is None else {"x-forwarded-proto": sent}
    settings.PUBLIC_URL = public
    paths = ("/mcp", "/admin/login/", "/api/")
    for path, trusted in itertools.product(paths, ("10.0.0.0/8", "127.0.0.0/8, ::1")):
        settings.CATALOGUE = settings.CATALOGUE | {"trusted_proxies": trusted}
        warn_once.cache_clear()
        with shown_lines() as lines:
            for _ in range(2):
                plain_http.get(f"{mcp_server.base_url}{path}", headers=headers)
        noted = [line for line in lines if "trusted proxy" in line]
        assert len(noted) == bool(told and trusted.startswith("127"))
        assert all(told in line and public in line for line in noted)


def test_a_check_of_the_system_tells_of_an_address_without_https_behind_a_proxy(settings):
    """O9"""
    for trusted, public, ids in (
        ("10.0.0.1", "http://catalogue.example.com", ["product.W001"]),
        ("10.0.0.1", "https://catalogue.example.com", []),
        ("", "http://localhost:8000", []),
    ):
        settings.PUBLIC_URL = public
        settings.CATALOGUE = settings.CATALOGUE | {"trusted_proxies": trusted}
        assert [one.id for one in run_checks() if one.id.startswith("product.")] == ids


def test_readiness_does_not_count_a_tick_that_lies_ahead(mcp_server, heartbeat):
    """A dead worker seemed to be alive until the time was reached."""
    note_worker()
    WorkerPresence.objects.update(seen_at=timezone.now() + timedelta(hours=2), worker_at=None)
    checks = ready(mcp_server).json()["checks"]
    for name in ("beat", "workers"):
        assert not checks[name]["ok"] and "Compare the clocks" in checks[name]["reason"]

    heartbeat()
    assert ready(mcp_server).json()["checks"]["workers"]["ok"]


@pytest.mark.databases("config.monitoring", "mcp_bridge.transports.http")
def test_requests_and_probes_without_the_database_cost_a_line_for_each_kind(mcp_server):
    def fail(*_: Any) -> Any:
        raise OperationalError("the server is gone")

    with wrapping_statements(fail), shown_lines() as lines:
        for number in range(3):
            bearer = {"Authorization": f"Bearer {number}"}
            for answer in (
                plain_http.post(f"{mcp_server.base_url}/mcp", headers=bearer, json=PING),
                plain_http.get(f"{mcp_server.base_url}/health/sources", headers=bearer),
                ready(mcp_server),
            ):
                assert answer.status_code == 503
    assert sorted(lines) == [
        "MCP requests and probes cannot be answered without the database: the server is gone",
        "Not ready: the database cannot be queried: the server is gone",
    ]


def test_a_full_disk_below_the_embedded_broker_is_named(mcp_server, settings, tmp_path):
    """The worker and beat, which cannot write either, looked as if they had died."""
    settings.CELERY_BROKER_URL = SecretStr(f"{SCHEME}://")
    settings.DATA_DIR = tmp_path
    probe = settings.DATA_DIR / "broker" / "messages" / ".probe"
    probe.parent.mkdir(parents=True)
    probe.symlink_to("/dev/full")

    with shown_lines("ERROR") as lines:
        found = [ready(mcp_server).json()["checks"]["broker"] for _ in range(3)]

    assert found == [{"ok": False, "reason": "The disk of the embedded broker's folder is full."}] * 3
    (line,) = lines
    assert line == f"Not ready: {probe.parent}, the embedded broker's folder, is not writable: {FULL}"


def test_a_broker_that_is_away_costs_one_line(mcp_server, settings, monkeypatch):
    settings.CELERY_BROKER_URL = SecretStr("redis://127.0.0.1:1/0")
    monkeypatch.setitem(current_app.conf, "broker_write_url", "redis://127.0.0.1:1/0")
    note_worker()
    WorkerPresence.objects.update(seen_at=timezone.now() - SILENCE * 2)
    with shown_lines("ERROR") as lines:
        for _ in range(3):
            checks = ready(mcp_server).json()["checks"]
            assert not checks["broker"]["ok"]
            assert checks["beat"]["reason"].endswith("s ago. Ticks need the broker.")
    (line,) = lines
    assert line.startswith("Not ready: the broker cannot be reached: ")


def test_a_broker_that_hangs_is_named_and_holds_up_no_call(mcp_server, settings, monkeypatch, tmp_path):
    """It accepts connections and says nothing: each probe held a thread that serves calls, forever."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        settings.CELERY_BROKER_URL = SecretStr(url)
        monkeypatch.setitem(current_app.conf, "broker_write_url", url)
        monkeypatch.setitem(current_app.conf, "broker_transport_options", broker_options(url, tmp_path))
        forget_measures()
        checks = ready(mcp_server).json()["checks"]
    assert not checks["broker"]["ok"] and checks["database"]["ok"]


@pytest.mark.databases("config.monitoring")
def test_a_database_that_hangs_is_named_and_all_probes_together_hold_one_thread(mcp_server, monkeypatch):
    monkeypatch.setattr("config.monitoring.PATIENCE_SECONDS", 0.05)
    answers_again = threading.Event()

    def hang(execute: Callable[..., Any], sql: str, *others: Any) -> Any:
        if "workerpresence" in sql:
            assert answers_again.wait(60)
        return execute(sql, *others)

    url = f"{mcp_server.base_url}/health/ready"
    forget_measures()
    with wrapping_statements(hang), shown_lines("ERROR") as lines:
        try:
            for _ in range(THREADS + 1):
                answer = plain_http.get(url, timeout=20)
                assert answer.status_code == 503
                assert "has not responded within" in answer.json()["checks"]["database"]["reason"]
            # It needs one of the threads.
            unknown = {"Authorization": "Bearer unknown"}
            assert (
                plain_http.post(f"{mcp_server.base_url}/mcp", headers=unknown, json=PING).status_code == 401
            )
        finally:
            answers_again.set()
        wait_until(lambda: has_database(plain_http.get(url)), "the check responds")
    (line,) = lines
    assert line.startswith("Not ready: the database has not responded for ")


def has_database(answer: Any) -> bool:
    return bool(answer.json()["checks"]["database"]["ok"])


def test_a_process_that_stands_in_for_workers_counts_as_one():
    """E8: `mcp_stdio` and the embedded default."""
    assert stand_in("this one")
    assert readiness.checks()["workers"].ok and readiness.checks()["beat"].ok


def test_a_probe_every_second_costs_one_query_and_many_at_once_no_more():
    """B9: whatever there is in the database."""
    note_worker()
    readiness.checks()
    forget_measures()
    readiness.checks()
    readiness.checks.forget()
    with CaptureQueriesContext(
        connection,
    ) as asked:
        for _ in range(20):
            readiness.checks()
    assert len(asked) == 1


@pytest.mark.parametrize("address", ADDRESSES)
def test_only_who_may_see_the_catalogue_reads_sources_and_metrics(mcp_server, address):
    """B8: agents' tokens do not suffice, nor one of a toolset; nothing leaks to anybody else."""
    make_toolset("part")
    allowed = {scope: create_token(name=scope, scopes=[scope])[1] for scope in (Scope.VIEW, Scope.ADMIN)}
    refused = [create_token(name="agent", scopes=[Scope.READ, Scope.RUN])[1]]

    def status(token: str = "") -> int:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        answer = plain_http.get(mcp_server.base_url + address, headers=headers, timeout=20)
        assert answer.headers["cache-control"] == "no-store"
        return int(answer.status_code)

    assert (status(), status("wfc_wrong")) == (401, 401)
    assert [status(token) for token in refused] == [403]
    assert [status(token) for token in allowed.values()] == [200, 200]


def test_sources_tell_their_last_success_and_the_kind_of_their_error(mcp_server, reader, wire_engine):
    """B9, A5.1: without secrets."""
    good = make_source("good", base_url=wire_engine.base_url, api_key=PASSWORD)
    bad = make_source("bad", base_url="http://127.0.0.1:9", api_key=PASSWORD)
    for source in (good, bad):
        refresh_source(source)
    answer = mcp_server_get(mcp_server, "/health/sources", reader)
    found = {source["name"]: source for source in answer.json()["sources"]}
    assert (found["bad"]["state"], found["bad"]["error"], found["bad"]["failures"]) == (
        "failing",
        "unreachable",
        1,
    )
    assert found["bad"]["last_success"] is None and found["bad"]["failing_since"]
    assert PASSWORD not in answer.text


def mcp_server_get(server: McpServer, path: str, token: str) -> Any:
    return plain_http.get(server.base_url + path, headers={"authorization": f"Bearer {token}"}, timeout=20)


def test_executions_are_counted_by_source_tool_and_outcome_with_their_durations(settings):
    """B9: also by processes that did not run them; of more tools than allowed, the rest is one."""
    source = make_source("billing")
    first, second = make_workflow(source, name="first"), make_workflow(source, name="second")
    settings.CATALOGUE.metrics_tools = 1
    try:
        for workflow in (first, second):
            for state in ("completed", "completed", "failed", "cancelled"):
                make_execution(workflow, state=state)
        assert value("executions_ended_total", source="billing", outcome="completed") == 4
        assert value("executions_ended_total", source="billing", outcome="failed") == 2
        assert value("tool_calls_total", tool="first", outcome="completed") == 2
        assert value("tool_calls_total", tool="other", outcome="completed") == 2
        assert value("tool_calls_total", tool="second", outcome="completed") == 0
        assert value("execution_duration_seconds_count", source="billing") == 6
        assert value("execution_duration_seconds_bucket", source="billing", le="+Inf") == 6
    finally:
        settings.CATALOGUE.metrics_tools = 100


@pytest.mark.databases("config.monitoring", "executions.measures")
def test_what_the_database_knows_costs_as_many_queries_whatever_there_is():
    """B9."""

    def cost() -> int:
        forget_measures()
        readiness.checks()
        with CaptureQueriesContext(connection) as asked:
            collect()
        return len(asked)

    make_discovery_run(make_source("engine-of-all"), added=1)
    one = cost()
    for number in range(5):
        source = make_source(f"engine-of-{number}")
        make_discovery_run(source, added=8, skipped_count=2)
        for state in ("completed", "running", "unapproved", "pending"):
            make_execution(make_workflow(source), state=state)
    assert cost() == one <= 12
    assert value("workflows_registered_ratio", source="engine-of-1") == 0.8
    assert value("workflows", source="engine-of-1", state="enabled") == 4
    assert value("executions", state="running") == 5
    assert value("approvals_waiting") == 5


def test_other_processes_of_the_data_folder_are_shown_until_they_end(mcp_server, reader):
    """B9: workers serve no HTTP. A file that is old, broken or dated ahead harms nothing."""
    worker = Publication(publication._folder, "worker")
    worker.begin()
    (publication._folder / "broken-host-1.prom").write_text("catalogue_polls_total{ nonsense")
    text = mcp_server_get(mcp_server, "/metrics", reader).text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    shown = {sample.labels["process"] for sample in families["process_cpu_seconds"].samples}
    assert "worker" in shown and len(shown) == 2
    assert text.count("# TYPE process_cpu_seconds_total ") == 1
    worker.publish()
    for apart in (-60, 3000):  # The latter of a process that ended before the clock was set back
        written = timezone.now().timestamp() + apart
        os.utime(worker._file, (written, written))
        assert 'process="worker"' not in mcp_server_get(mcp_server, "/metrics", reader).text
    worker.end()
    (publication._folder / "broken-host-1.prom").unlink()
    assert not worker._file.exists()


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["manage.py", "beat"], "beat"),
        (["manage.py", "serve"], "web"),
        (["-m", "uvicorn", "config.asgi:application"], "web"),
    ],
    ids=["beat", "serve", "uvicorn"],
)
def test_a_process_that_serves_its_own_metrics_labels_them_like_all_others(tmp_path, command, name):
    """B9: the dashboard showed no CPU, memory and open files of the workers in a cluster."""
    address, port = f"127.0.0.1:{free_port()}", free_port()
    variables = {
        "CATALOGUE_METRICS_ADDRESS": address,
        "CATALOGUE_DATA_DIR": str(tmp_path),
        "DATABASE_URL": "",
    }
    url, log = f"http://{address}/metrics", tmp_path / "log"
    command, answers_at = [sys.executable, *command], url
    if name == "web":  # Which has then finished its start
        command, answers_at = [*command, f"--port={port}"], f"http://127.0.0.1:{port}/health/live"
    with running(command, answers_at=answers_at, log=log, environment=variables) as process:
        text = plain_http.get(url, timeout=20).text
    (sample,) = [
        sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "process_open_fds"
    ]
    assert sample.labels == {"process": name, "pid": str(process.pid)}
    assert "cannot be served" not in log.read_text()


def test_a_process_starts_and_ends_where_its_metrics_cannot_be_written(tmp_path):
    lines: list[str] = []
    sink = logger.add(lines.append, format="{message}")
    (tmp_path / "full").write_text("")
    worker = Publication(tmp_path / "full" / "metrics", "worker")
    worker.begin()
    worker.end()
    logger.remove(sink)
    (line,) = lines
    assert line.startswith("Other processes miss the metrics of this one, which cannot be written: ")


def test_a_disk_that_is_full_below_a_processs_metrics_is_logged_as_a_problem_that_recurs(
    tmp_path, monkeypatch
):
    """A worker with a data folder of its own needs it for nothing else, so that nothing else would say so."""
    monkeypatch.setattr("telemetry.metrics.PUBLISHING_SECONDS", 0.01)
    worker = Publication(tmp_path, "worker")
    entries: list[Any] = []
    sink = logger.add(lambda line: entries.append(line.record["extra"].get("recurring")), level="WARNING")
    worker._file.with_suffix(".tmp").symlink_to("/dev/full")
    worker.begin()
    try:
        wait_until(lambda: len(entries) > 2, "several attempts have failed")
    finally:
        worker.end()
        logger.remove(sink)
    assert len(set(entries)) == 1 and "No space left" in entries[0]


def test_two_servers_of_a_process_publish_at_the_same_time(tmp_path):
    """Each of them renames the temporary file that it has written, not the other's."""
    shared = Publication(tmp_path, "web")
    with ThreadPoolExecutor(4) as pool:
        for published in [pool.submit(shared.publish) for _ in range(80)]:
            published.result()
    assert [file.suffix for file in tmp_path.iterdir()] == [".prom"]


async def test_every_log_line_and_the_engines_request_carry_the_clients_request_id_and_trace(
    mcp_server, long_workflow, wire_engine, token
):
    """B9: from the client's header to the engine, also in the step that a worker takes later."""
    trace = "0af7651916cd43dd8448eb211c80319c"
    lines: list[dict[str, Any]] = []

    def poll_as_a_worker() -> bool:
        """Once the request's process has released its lease."""
        Execution.objects.update(next_attempt_at=timezone.now())
        advance_due_executions()
        return wire_engine.count("status") > 0

    sink = logger.add(lambda message: lines.append(dict(message.record["extra"])), level="DEBUG")
    try:
        sent = {"x-request-id": "ticket-4711", "traceparent": f"00-{trace}-b7ad6b7169203331-01"}
        answer = await call_by_hand(mcp_server, token, "report", sent)
        assert answer.headers["x-request-id"] == "ticket-4711"
        execution = await Execution.objects.aget()
        await asyncio.to_thread(wait_until, poll_as_a_worker, "a worker polls")
    finally:
        logger.remove(sink)
    assert execution.request_id == "ticket-4711" and execution.traceparent is not None
    requests = {request.kind: request.received.headers for request in wire_engine.requests}
    assert {"start", "status"} <= requests.keys()
    for kind in ("start", "status"):
        assert requests[kind]["x-request-id"] == "ticket-4711", kind
        assert requests[kind]["traceparent"].split("-")[1] == trace, kind
    about = [line for line in lines if line.get("execution") == execution.pk]
    named = {(line.get("request_id"), line.get("trace_id")) for line in about}
    assert about and named == {("ticket-4711", trace)}


async def call_by_hand(server: McpServer, token: str, tool: str, headers: dict[str, str]) -> Any:
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"name": tool, "arguments": {}, "_meta": meta}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    routing = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": tool}
    return await asyncio.to_thread(server.post, body, token=token, headers=routing | headers)


@pytest.mark.parametrize("sent", ["a b", "x" * 65, "ü", "<script>", "a\tb"])
def test_a_request_id_that_could_forge_something_is_replaced(mcp_server, sent):
    """B9."""
    given = plain_http.get(f"{mcp_server.base_url}/health/live", headers={"x-request-id": sent.encode()})
    assert given.headers["x-request-id"] != sent and len(given.headers["x-request-id"]) == 32


@pytest.mark.parametrize("mode", ["2026-07-28", "legacy"])
async def test_a_span_says_what_was_refused_by_the_code_and_never_by_words(connect, spans, mode):
    """B9: the words of an error quote what the caller sent."""
    async with connect(mode=mode) as client:
        with pytest.raises(MCPError, match=r"salary-of-mrs-miller"):
            await client.read_resource("catalogue://workflows/salary-of-mrs-miller")
        refused = await client.call_tool("get_execution_status", {"execution_id": "salary-of-mrs-miller"})
    assert refused.is_error
    made, code = {span.name: span for span in spans.get_finished_spans()}, NOT_FOUND[mode]
    by_code, by_tool = made["resources/read"], made["tools/call get_execution_status"]
    assert by_code.kind == by_tool.kind == SpanKind.SERVER
    assert [(span.attributes or {})["error.type"] for span in (by_code, by_tool)] == [code, "tool_error"]
    assert {span.status.status_code for span in (by_code, by_tool)} == {StatusCode.ERROR}
    assert (by_tool.attributes or {})["gen_ai.tool.name"] == "get_execution_status"
    assert not any("miller" in span.to_json() for span in made.values())


@pytest.mark.parametrize(("sent", "exported"), [("00", False), ("01", True)])
async def test_who_asks_for_no_trace_gets_none_and_the_engine_is_told_so(
    mcp_server, token, long_workflow, wire_engine, spans, sent, exported
):
    """B9: by the flag of the client's trace context; its ids are passed on either way."""
    trace, client = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    await call_by_hand(mcp_server, token, "report", {"traceparent": f"00-{trace}-{client}-{sent}"})
    await asyncio.to_thread(wait_until, lambda: wire_engine.count("start") > 0, "the run is started")
    start = next(request.received.headers for request in wire_engine.requests if request.kind == "start")
    version, passed_on, parent, flags = start["traceparent"].split("-")
    assert (version, passed_on, flags) == ("00", trace, sent) and parent != client

    def above(span_id: str) -> ReadableSpan | None:
        """The span of the server that the client's span with this id has above it, once both have ended."""
        made = {span.context.span_id: span for span in spans.get_finished_spans() if span.context}
        request = made.get(int(span_id, 16))
        return made.get(request.parent.span_id) if request and request.parent else None

    if exported:
        message = await asyncio.to_thread(wait_until, lambda: above(parent), "both spans have ended")
        assert message.kind is SpanKind.SERVER and f"{message.parent.span_id:016x}" == client
    else:
        assert not spans.get_finished_spans()


def has_started(engine: WireEngine, more_than: int) -> bool:
    return engine.count("start") > more_than


@pytest.mark.parametrize("spans", [0.001], indirect=True)
async def test_beyond_so_many_traces_a_second_only_those_are_recorded_that_clients_ask_for(
    mcp_server, token, long_workflow, wire_engine, spans
):
    """B9: a busy process does not flood the collector. The engine is told what is recorded."""
    asked_for = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    for number, headers in enumerate(({}, {}, {"traceparent": asked_for}, {})):
        await call_by_hand(mcp_server, token, "report", headers)
        await asyncio.to_thread(wait_until, partial(has_started, wire_engine, number), "the run is started")
    starts = [request.received.headers for request in wire_engine.requests if request.kind == "start"]
    flags = [int(start["traceparent"].rpartition("-")[2], 16) for start in starts]
    assert [flag & TraceFlags.SAMPLED for flag in flags] == [1, 0, 1, 0]
    recorded = {f"{span.context.trace_id:032x}" for span in spans.get_finished_spans() if span.context}
    assert recorded == {start["traceparent"].split("-")[1] for start in (starts[0], starts[2])}


@pytest.mark.parametrize("mode", ["2026-07-28", "legacy"])
async def test_mcp_requests_are_counted_by_method_and_outcome(connect, long_workflow, mode):
    """B9: a client cannot make series by methods that it invents."""
    before = value_in_thread("mcp_requests_total", method="tools/call", outcome="ok")
    async with connect(mode=mode) as client:
        await client.call_tool("report", {})
    after = await asyncio.to_thread(value_in_thread, "mcp_requests_total", method="tools/call", outcome="ok")
    assert after == before + 1


def value_in_thread(name: str, **labels: str) -> float:
    """Of the process alone: without the database."""
    text = (
        __import__("telemetry.metrics", fromlist=["exposition"]).exposition(publication.families()).decode()
    )
    return scraped(text).get((f"catalogue_{name}", frozenset(labels.items())), 0.0)
