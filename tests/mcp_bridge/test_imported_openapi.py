"""OpenAPI documents by others as tools of agents: Temporal's own, and a small API that is called."""

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import temporalio
from django.db import connection
from django.test.utils import CaptureQueriesContext

from catalogue.imports.openapi import OpenApiImport, OpenApiImportRequest, import_document
from catalogue.models import Workflow
from catalogue.reconciliation import Change
from connectors.http_tools.request import build_request
from connectors.http_tools.tool import HttpOperation
from mcp_bridge.builtin_tools import BUILT_IN_TOOLS
from tests.connectors.http_tool_hosts import http_tool_hosts
from tests.connectors.openapi import body_of, document
from tests.engines.target_api import Reply, running_target_api
from tests.mcp_bridge.database import in_database

FOLDER = Path(temporalio.__file__).parent / "bridge/sdk-core/crates/protos/protos/api_upstream/openapi"
"""In the package that the Temporal connector needs: a large document that others wrote."""
BASE = "https://temporal.example.com"
OPERATIONS = 228
"""In the pinned version."""
KEY = {"type": "apiKey", "in": "header", "name": "X-Key"}
SECRET = "hunter2-hunter2"


def import_temporal() -> OpenApiImport:
    content = (FOLDER / "openapiv3.yaml").read_bytes()
    return import_document(OpenApiImportRequest(content=content, base_url=BASE, expose=True))


REQUESTS: list[tuple[str, dict[str, Any], str, str, dict[str, Any], Any]] = [
    ("GetClusterInfo", {}, "GET", "/api/v1/cluster-info", {}, None),
    (
        "ListWorkflowExecutions",
        {"namespace": "default", "pageSize": 5, "query": "WorkflowType='a'"},
        "GET",
        "/api/v1/namespaces/default/workflows",
        {"pageSize": 5, "query": "WorkflowType='a'"},
        None,
    ),
    (
        "StartWorkflowExecution",
        {"namespace": "default", "workflowId": "w 1", "workflowType": {"name": "T"}, "requestId": "r"},
        "POST",
        "/api/v1/namespaces/default/workflows/w%201",
        {},
        {"workflowType": {"name": "T"}, "requestId": "r"},
    ),
    (
        "SignalWorkflowExecution",
        {
            "namespace": "default",
            "workflow_execution.workflow_id": "w",
            "signalName": "stop",
            "workflowExecution": {"workflowId": "w", "runId": "r"},
        },
        "POST",
        "/api/v1/namespaces/default/workflows/w/signal/stop",
        {},
        {"workflowExecution": {"workflowId": "w", "runId": "r"}},
    ),
]
"""Operation, arguments, and the request's method, address, query and body."""


def test_every_operation_of_a_large_document_becomes_a_tool_that_makes_its_request(subtests):
    """C1.1, C1.4: with queries by the batch, and again without a change."""
    with CaptureQueriesContext(connection) as queries:
        outcome = import_temporal()
    assert len(outcome.tools) + len(outcome.refused) == OPERATIONS and outcome.deprecated == 0
    assert all(refused.reason for refused in outcome.refused)
    assert outcome.every_change.count(Change.ADDED) == Workflow.objects.count() == OPERATIONS
    assert len(queries) < OPERATIONS / 4
    assert not Workflow.objects.exclude(schema_problem="").exists()
    assert import_temporal().every_change.count(Change.UNCHANGED) == OPERATIONS
    for name, arguments, method, address, query, body in REQUESTS:
        with subtests.test(name):
            workflow = Workflow.objects.get(name=name)
            assert jsonschema_rs.validator_for(workflow.input_schema).is_valid(arguments)
            sent = build_request(HttpOperation.of(workflow.ref), base_url=BASE, arguments=arguments)
            assert (sent.method, sent.url) == (method, BASE + address)
            assert (sent.query_params, sent.body) == (query, body)


def test_its_older_version_in_swagger_2_becomes_tools_too():
    """C1.4: with the document that grpc-gateway made."""
    content = (FOLDER / "openapiv2.json").read_bytes()
    outcome = import_document(OpenApiImportRequest(content=content, base_url=BASE))
    assert len(outcome.tools) == 228 and not outcome.refused
    # The generator did not write some of the definitions.
    notes = [note for tool in outcome.tools for note in tool.notes]
    assert notes and all("does not exist; any value is accepted" in note for note in notes)


async def test_agents_see_all_of_its_tools(connect):
    """A2.1: the official client takes every schema."""
    await in_database(import_temporal)()
    async with connect() as client:
        tools, cursor = [], None
        while cursor is not None or not tools:
            page = await client.list_tools(cursor=cursor)
            tools, cursor = [*tools, *page.tools], page.next_cursor
    imported = [tool for tool in tools if tool.name not in BUILT_IN_TOOLS]
    assert len(imported) == OPERATIONS
    for tool in imported:
        jsonschema_rs.validator_for(tool.input_schema)
        assert tool.input_schema["additionalProperties"] is False
        assert tool.output_schema is None or jsonschema_rs.validator_for(tool.output_schema)


async def test_an_imported_tool_is_called_with_the_sources_key(connect):
    """A2.2, C1.4: what the document describes arrives; an answer may have less than it says."""
    parts = {"type": "object", "required": ["sku"], "properties": {"sku": {"type": "string"}}}
    answered = {"200": {"content": {"application/json": {"schema": parts}}}}
    parameters = [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}]
    operation = {"operationId": "putOrder", "parameters": parameters, "responses": answered, **body_of(parts)}
    with running_target_api(required_headers={"X-Key": SECRET}) as api, http_tool_hosts("127.0.0.1"):
        api.tell("PUT", "/v1/orders/a%20b", Reply(body={"sku": None}))
        raw: dict[str, Any] = document(
            {"/orders/{id}": {"put": operation}},
            servers=[{"url": f"{api.base_url}/v1"}],
            components={"securitySchemes": {"key": KEY}},
            security=[{"key": []}],
        )
        request = OpenApiImportRequest(
            content=json.dumps(raw).encode(), secrets={"api_key": SECRET}, expose=True
        )
        await in_database(import_document)(request)
        async with connect() as client:
            result = await client.call_tool("putOrder", {"id": "a b", "sku": "S-1"})
        (arrived,) = api.arrived
    assert not result.is_error and result.structured_content == {"sku": None}
    assert (arrived.method, arrived.path, arrived.json) == ("PUT", "/v1/orders/a%20b", {"sku": "S-1"})
