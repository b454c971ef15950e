"""Workflows that an MCP server lists, and its other tools, called through our endpoint by a real client."""

import asyncio
from collections.abc import Iterator

import pytest

from catalogue.connections import close_connectors
from catalogue.curation import enable_workflows
from catalogue.discovery import refresh_source
from catalogue.models import Source, Workflow
from connectors.background import run_in_background_loop
from executions.models import Execution
from tests.engines.workflow_server import CANCEL, START, WorkflowServer
from tests.executions.engines import until
from tests.mcp_bridge.database import in_database


@pytest.fixture(scope="module")
def running_server() -> Iterator[WorkflowServer]:
    with WorkflowServer().running() as server:
        yield server


@pytest.fixture
def server(running_server: WorkflowServer) -> WorkflowServer:
    running_server.forget_everything()
    return running_server


@pytest.fixture
def source(server: WorkflowServer) -> Iterator[Source]:
    """Listed, with all that it offers enabled."""
    config = {"url": server.url, "cancel_tool": CANCEL, "request_timeout_seconds": 5}
    source = Source(name="upstream", kind="mcp", config=config)
    source.credentials = {}
    source.save()
    assert refresh_source(source).outcome == "succeeded"
    enable_workflows(Workflow.objects.filter(source=source))
    yield source
    run_in_background_loop(close_connectors())


def the_execution() -> Execution:
    return Execution.objects.get()


async def test_listed_workflows_and_other_tools_stand_beside_each_other_and_run(connect, source, server):
    """B10, A2.2, A2.3: two ways at once."""
    async with connect() as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        ran = await client.call_tool("Quick_one", {"message": "baked"})
        echoed = await client.call_tool("echo", {"message": "again"})
    assert {"Quick_one", "Broken_one", "Endless_one", "echo"} <= names and START not in names
    assert ran.structured_content == {"said": "baked"}
    assert echoed.structured_content == {"message": "again"}
    assert [run.arguments for run in server.runs.values()] == [{"message": "baked"}]


async def test_a_listed_run_is_cancelled_by_the_servers_tool(connect, source, server):
    """A7.5, A8.1"""
    async with connect() as client:
        call = asyncio.create_task(client.call_tool("Endless_one", {"seconds": 600}))
        await until(lambda: server.runs and the_execution().run_id, "the run is known")
        execution = await in_database(the_execution)()
        await client.call_tool("cancel_execution", {"execution_id": str(execution.pk)})
        result = await call
    assert result.is_error
    assert [run.status for run in server.runs.values()] == ["CANCELLED"]
