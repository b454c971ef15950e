"""One trace from the client to the engine: a collector that speaks OTLP gets the spans of web and worker."""

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests import plain_http
from tests.e2e.product import Product, place_for_one, started, wait_until
from tests.executions.engines import WORKFLOW_ID, WireEngine, completed, replies, running_wire_engine
from tests.mcp_bridge.serving import serving

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PATIENCE_SECONDS = 90.0


@dataclass
class Collector:
    """Spans by name, with the process that sent each."""

    spans: list[tuple[str, Any]] = field(default_factory=list)
    address: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    async def take(self, request: Request) -> Response:
        sent = ExportTraceServiceRequest.FromString(await request.body())
        for resource in sent.resource_spans:
            attributes = {item.key: item.value.string_value for item in resource.resource.attributes}
            assert attributes["service.name"] == "workflow-catalogue"
            process = attributes["catalogue.process"]
            with self._lock:
                self.spans += [(process, span) for scope in resource.scope_spans for span in scope.spans]
        answer = ExportTraceServiceResponse().SerializeToString()
        return Response(answer, media_type="application/x-protobuf")

    def of_trace(self, trace: str) -> list[tuple[str, Any]]:
        with self._lock:
            return [(process, span) for process, span in self.spans if span.trace_id.hex() == trace]


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    made = Collector()
    with serving(Starlette(routes=[Route("/v1/traces", made.take, methods=["POST"])])) as address:
        made.address = address
        yield made


@pytest.fixture(scope="module")
def engine() -> Iterator[WireEngine]:
    listed = {"id": WORKFLOW_ID, "name": "report", "description": "Writes a report."}
    with running_wire_engine() as running:
        running.on_listing = replies(200, [listed])
        yield running


@pytest.fixture(scope="module")
def product(
    tmp_path_factory: pytest.TempPathFactory, collector: Collector, engine: WireEngine
) -> Iterator[Product]:
    observed = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.address,
        "OTEL_BSP_SCHEDULE_DELAY": "200",
        "CATALOGUE_TRACES_PER_SECOND": "0",
        "LOG_FORMAT": "json",
        "CATALOGUE_INLINE_WAIT": "0",
        "CATALOGUE_STATUS_CHECK_INTERVAL": "1",
    }
    with place_for_one(tmp_path_factory.mktemp("traces")) as place, started(place | observed) as running:
        running.wait_until_up()
        config = f'{{"base_url": "{engine.base_url}"}}'
        running.manage("add_source", "wire", "simplified", "--config", config)
        running.manage("refresh_sources", "wire")
        running.manage("enable_workflows", "--source", "wire", "--all")
        yield running


def test_one_trace_leads_from_the_client_through_web_and_worker_to_the_engine(product, collector, engine):
    """B9: by the client's `_meta`, as MCP has it; the request's id is in the log lines of both processes."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        "traceparent": f"00-{TRACE}-00f067aa0ba902b7-01",
    }
    headers = {
        "accept": "application/json, text/event-stream",
        "authorization": f"Bearer {product.token}",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": "tools/call",
        "mcp-name": "report",
        "x-request-id": "order-66",
    }
    params = {"name": "report", "arguments": {}, "_meta": meta}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}

    answer = plain_http.post(f"{product.url}/mcp", json=body, headers=headers, timeout=30)
    assert answer.status_code == 200 and answer.headers["x-request-id"] == "order-66", answer.text
    wait_until(lambda: engine.count("status") >= 2, PATIENCE_SECONDS)
    engine.on_status = replies(200, completed())
    wait_until(lambda: "Execution completed" in product.output, PATIENCE_SECONDS, lambda: product.output)

    requests = [*engine.asked("start"), *engine.asked("status")]
    sent = {request.received.headers["traceparent"].split("-")[1] for request in requests}
    assert sent == {TRACE}
    assert {request.received.headers["x-request-id"] for request in requests} == {"order-66"}

    both, named = {"web", "worker"}, {"tools/call report", "POST", "poll report"}
    wait_until(lambda: both <= {process for process, _ in collector.of_trace(TRACE)}, PATIENCE_SECONDS)
    # Each process sends its spans in portions, so that not all need come with the first.
    wait_until(lambda: named <= {span.name for _, span in collector.of_trace(TRACE)}, PATIENCE_SECONDS)
    spans = {span.span_id: (process, span) for process, span in collector.of_trace(TRACE)}
    by_name = {span.name: (process, span) for process, span in spans.values()}
    process, polled = by_name["poll report"]
    assert process == "worker" and polled.parent_span_id in spans
    _, called = by_name["tools/call report"]
    assert called.parent_span_id.hex() == "00f067aa0ba902b7"
    of_run = {attribute.key: attribute.value.string_value for attribute in called.attributes}
    assert of_run["catalogue.execution"] == str(
        json.loads(answer.text)["result"]["structuredContent"]["execution_id"]
    )
    # The request that the engine got names the span of that very request.
    started_by = engine.asked("start")[0].received.headers["traceparent"].split("-")[2]
    assert spans[bytes.fromhex(started_by)][1].name == "POST"

    about = [line for line in product.output.splitlines() if '"order-66"' in line]
    assert {name for name in both for line in about if f'"process": "{name}"' in line} == both


def test_the_processes_are_ready_and_the_workers_metrics_are_among_those_of_the_web(product):
    """B9: with the embedded broker, whose folder is what counts."""
    address = f"{product.url}/health/ready"
    wait_until(lambda: plain_http.get(address).status_code == 200, PATIENCE_SECONDS, lambda: product.output)
    ready = plain_http.get(address).json()
    assert ready["checks"]["broker"]["reason"] == "Embedded: its folder is writable."
    token = product.manage("create_mcp_token", "prometheus", "--scope", "catalogue:read").strip()
    headers = {"authorization": f"Bearer {token}"}
    text = plain_http.get(f"{product.url}/metrics", headers=headers).text
    for process in ("web", "worker", "beat"):
        assert f'process="{process}"' in text, process
        assert any(f'"process": "{process}"' in line for line in product.output.splitlines()), process


def test_the_words_of_a_server_s_error_are_in_no_span(product, collector):
    """E6: they may quote the credentials. The SDK makes spans of its own for requests to MCP servers."""

    async def refuse(request: Request) -> Response:
        sent = json.loads(await request.body())
        error = {"code": -32000, "message": f"Refused {request.headers['authorization']}"}
        document = {"jsonrpc": "2.0", "id": sent.get("id"), "error": error}
        return Response(json.dumps(document), media_type="application/json")

    with serving(Starlette(routes=[Route("/mcp", refuse, methods=["POST"])])) as address:
        config = json.dumps({"transport": "http", "url": f"{address}/mcp"})
        key = "bearer_token=hunter2hunter2"
        product.manage("add_source", "refusing", "mcp", "--config", config, "--secret", key)

        def sent() -> list[Any]:
            return [span for _, span in list(collector.spans) if span.name.startswith("MCP send ")]

        wait_until(sent, PATIENCE_SECONDS)
    assert all(span.status.code == 2 and not span.status.message for span in sent())
    assert not any("hunter2" in str(span) for _, span in list(collector.spans))
