"""MCP over standard input and output, as the official client sees it."""

import json

import pytest
from mcp import Client, MCPError

from catalogue.models import Workflow
from executions.models import Execution
from tests.connectors.scripted import replies
from tests.executions.engines import completed
from tests.mcp_bridge.database import in_database
from tests.mcp_bridge.pipes import over_pipes


async def test_progress_is_told_while_a_call_waits(source, era):
    """A7.3, E8"""
    seen: list[float] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)

    async with Client(over_pipes(), mode=era) as client:
        result = await client.call_tool("countdown", {"seconds": 0.5}, progress_callback=note)
    assert result.structured_content["seconds"] == 0.5
    assert len(seen) > 1 and seen == sorted(set(seen))


async def test_built_in_tools_work_as_over_http(source, era):
    """D7, A8.4, E8"""
    async with Client(over_pipes(), mode=era) as client:
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


async def test_resources_and_prompts_are_there_as_over_http(source, era):
    """D8, E8"""
    await in_database(Workflow.objects.filter(name="text_statistics").update)(offered_as_prompt=True)
    async with Client(over_pipes(), mode=era) as client:
        resources = [str(resource.uri) for resource in (await client.list_resources()).resources]
        (schema,) = (await client.read_resource("workflow://schema/text_statistics")).contents
        prompts = [prompt.name for prompt in (await client.list_prompts()).prompts]
        prompt = await client.get_prompt("text_statistics", {"text": "Hello."})
    assert "workflow://list" in resources
    assert "text" in json.loads(schema.text)["input_schema"]["properties"]
    assert prompts == ["text_statistics"] and "Hello." in prompt.messages[0].content.text


async def test_a_message_of_a_megabyte_comes_through(wire_engine, long_workflow, era):
    """E8: with every sort of line break, none of which may end the message."""
    text = "line\n\r\n\u2028\x85 🙂 " * 80_000
    wire_engine.on_status = replies(200, completed({"answer": text[:1000]}))
    await in_database(Workflow.objects.update)(inline_wait_seconds=20)
    async with Client(over_pipes(), mode=era) as client:
        result = await client.call_tool("report", {"text": text})
    assert result.structured_content["answer"] == text[:1000]
    (start,) = wire_engine.asked("start")
    assert json.loads(start.received.body)["input"]["text"] == text
