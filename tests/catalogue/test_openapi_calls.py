"""Calls of imported operations, to an API that holds each request to its own document."""

import json
from uuid import uuid4

import pytest

from catalogue.imports.openapi import OpenApiImportRequest, import_document
from catalogue.models import Workflow
from catalogue.schemas import find_argument_problems
from connectors.errors import Rejected
from connectors.http_tools.connector import HttpConfig, HttpConnector
from connectors.protocol import RunState
from connectors.testing import closing
from tests.connectors.http_tool_hosts import http_tool_hosts
from tests.engines.documented_api import DocumentedApi
from tests.engines.random_documents import RandomDocuments
from tests.engines.target_api import running_target_api
from tests.mcp_bridge.database import in_database
from tests.thoroughness import examples

OPERATIONS, CALLS_EACH = 40, examples(30)
SECRET = "hunter2-hunter2"


@pytest.mark.django_db(transaction=True)
async def test_an_api_that_validates_requests_accepts_every_call_that_is_sent() -> None:
    """C1.4, C5.1: every style of parameter and body that is imported, with texts of every kind."""
    documents = RandomDocuments(seed=5)
    raw = documents.document(OPERATIONS)
    documented = DocumentedApi(raw)
    with running_target_api(answer=documented.answer) as api, http_tool_hosts("127.0.0.1"):
        raw["servers"] = [{"url": api.base_url}]
        request = OpenApiImportRequest(content=json.dumps(raw).encode(), secrets={"api_key": SECRET})
        outcome = await in_database(import_document)(request)
        notes = [note for tool in outcome.tools for note in tool.notes]
        assert not outcome.refused and all("brackets are used" in note for note in notes) and notes
        workflows = await in_database(lambda: list(Workflow.objects.order_by("name")))()
        settings = {"authentication": "api_key", "api_key_name": "X-Key", "api_key": SECRET}
        refused, sent = [], 0
        async with closing(HttpConnector(HttpConfig(base_url=api.base_url, **settings))) as connector:
            for workflow in workflows:
                for _ in range(CALLS_EACH):
                    arguments = documents.arguments(workflow.input_schema)
                    assert find_argument_problems(workflow.input_schema, arguments) == []
                    try:
                        started = await connector.start(workflow.ref, arguments, key=uuid4())
                    except Rejected as error:
                        refused.append(str(error))
                        continue
                    sent += 1
                    assert started.snapshot is not None and started.snapshot.state != RunState.RUNNING
    assert documented.objections == [] and documented.accepted == sent
    assert all("Nothing was sent" in told for told in refused) and len(refused) < sent / 10
