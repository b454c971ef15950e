"""MCP over standard input and output: a process of its own, started by the client."""

import asyncio
import json

import pytest
from mcp import Client, MCPError
from mcp.client.stdio import StdioServerParameters

from catalogue.models import Source, Workflow
from executions.models import Execution
from mcp_bridge.builtin_tools import BUILT_IN_TOOLS
from mcp_bridge.client_configuration import stdio_client_configuration
from tests.connectors.scripted import replies
from tests.executions.engines import WireEngine, completed
from tests.factories import make_workflows
from tests.mcp_bridge.database import in_database

pytestmark = pytest.mark.usefixtures("transactional_db")


def with_variables(server: StdioServerParameters, **variables: str) -> StdioServerParameters:
    return server.model_copy(update={"env": (server.env or {}) | variables})


async def test_a_desktop_client_lists_and_calls_over_stdio(
    stdio_server: StdioServerParameters, source: Source, era: str
):
    """E8: both eras; what it runs is recorded under the local user."""
    async with Client(stdio_server, mode=era) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        result = await client.call_tool("text_statistics", {"text": "Over a pipe."})
    assert "text_statistics" in names
    assert result.structured_content["words"] == 3
    execution = await in_database(Execution.objects.get)()
    assert execution.caller.startswith("local:")


async def test_a_long_list_comes_in_pages(stdio_server: StdioServerParameters, era: str):
    """A2.1, E8: each tool once, in the order of the whole list."""
    await in_database(make_workflows)(10)
    names, cursor, pages = [], None, 0
    async with Client(with_variables(stdio_server, CATALOGUE_PAGE_SIZE="4"), mode=era) as client:
        while cursor is not None or not pages:
            page = await client.list_tools(cursor=cursor)
            assert len(page.tools) <= 4
            names, cursor, pages = [*names, *(tool.name for tool in page.tools)], page.next_cursor, pages + 1
    async with Client(stdio_server, mode=era) as client:
        assert names == [tool.name for tool in (await client.list_tools()).tools]
    assert len(names) == len(set(names)) > 10


async def test_progress_is_told_while_a_call_waits(
    stdio_server: StdioServerParameters, source: Source, era: str
):
    """A7.3, E8"""
    seen: list[float] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)

    async with Client(stdio_server, mode=era) as client:
        result = await client.call_tool("countdown", {"seconds": 2}, progress_callback=note)
    assert result.structured_content["seconds"] == 2
    assert seen and seen == sorted(set(seen))


async def test_built_in_tools_work_as_over_http(
    stdio_server: StdioServerParameters, source: Source, era: str
):
    """D7, A8.4, E8"""
    async with Client(stdio_server, mode=era) as client:
        listed = await client.call_tool("list_workflows", {"query": "statistics of a text"})
        ran = await client.call_tool(
            "execute_workflow", {"name": "text_statistics", "arguments": {"text": "One two."}}
        )
        execution = await in_database(Execution.objects.get)()
        status = await client.call_tool("get_execution_status", {"execution_id": str(execution.pk)})
        with pytest.raises(MCPError, match="no_such_tool"):
            await client.call_tool("no_such_tool", {})
    assert "text_statistics" in json.dumps(listed.structured_content)
    assert ran.structured_content["words"] == 2
    assert status.structured_content["state"] == "completed"


async def test_resources_and_prompts_are_there_as_over_http(
    stdio_server: StdioServerParameters, source: Source, era: str
):
    """D8, E8"""
    await in_database(Workflow.objects.filter(name="text_statistics").update)(offered_as_prompt=True)
    async with Client(stdio_server, mode=era) as client:
        resources = [str(resource.uri) for resource in (await client.list_resources()).resources]
        (schema,) = (await client.read_resource("workflow://schema/text_statistics")).contents
        prompts = [prompt.name for prompt in (await client.list_prompts()).prompts]
        prompt = await client.get_prompt("text_statistics", {"text": "Hello."})
    assert "workflow://list" in resources
    assert "text" in json.loads(schema.text)["input_schema"]["properties"]
    assert prompts == ["text_statistics"] and "Hello." in prompt.messages[0].content.text


async def test_two_desktop_clients_at_once_share_one_catalogue(
    stdio_server: StdioServerParameters, source: Source
):
    """E7, E8: two processes, also on SQLite, and neither waits for the other to end."""
    async with Client(stdio_server) as one, Client(stdio_server) as other:
        calls = [
            client.call_tool("text_statistics", {"text": "word " * number})
            for number in range(1, 6)
            for client in (one, other)
        ]
        results = await asyncio.gather(*calls)
    assert [result.structured_content["words"] for result in results] == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert await in_database(Execution.objects.count)() == 10


async def test_a_message_of_a_megabyte_comes_through(
    stdio_server: StdioServerParameters, wire_engine: WireEngine, long_workflow: Workflow, era: str
):
    """E8: with every sort of line break, none of which may end the message."""
    text = "line\n\r\n\u2028\x85 🙂 " * 80_000
    wire_engine.on_status = replies(200, completed({"answer": text[:1000]}))
    await in_database(Workflow.objects.update)(inline_wait_seconds=20)
    async with Client(stdio_server, mode=era) as client:
        result = await client.call_tool("report", {"text": text})
    assert result.structured_content["answer"] == text[:1000]
    (start,) = wire_engine.asked("start")
    assert json.loads(start.received.body)["input"]["text"] == text


async def test_the_configuration_that_people_paste_works_from_anywhere(
    stdio_server: StdioServerParameters, source: Source, tmp_path
):
    """E8: desktop clients start it in a folder of theirs, with hardly any environment."""
    environment = stdio_server.env or {}
    variables = {name: environment[name] for name in ("DATABASE_URL", "CATALOGUE_DATA_DIR")}
    pasted = json.loads(
        stdio_client_configuration(stdio_server.command, stdio_server.args[0], variables=variables)
    )
    (server,) = pasted["mcpServers"].values()
    async with Client(StdioServerParameters(**server, cwd=tmp_path)) as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
    usual = {name for name, tool in BUILT_IN_TOOLS.items() if tool.takes_part_in is None}
    assert usual | {"text_statistics"} <= names
