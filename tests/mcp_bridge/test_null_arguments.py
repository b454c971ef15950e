"""Arguments as clients write them that fill in every one: null, empty texts, "any"; or that write JSON as
text."""

import json
from typing import Any

import pytest

from catalogue.models import Workflow
from executions.models import Execution, ExecutionPayload
from mcp_bridge.builtin_tools import BUILT_IN_TOOLS
from tests.executions.engines import until
from tests.mcp_bridge.database import in_database

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "month": {"type": "string"},
        "note": {"type": ["string", "null"]},
        "layout": {"type": "object", "properties": {"colour": {"enum": ["red", "blue"]}, "size": {}}},
        "copies": {"type": "integer"},
    },
    "required": ["month"],
    "additionalProperties": False,
}


async def test_an_argument_that_is_null_for_nothing_never_reaches_the_engine(
    connect, long_workflow, wire_engine, era
):
    """A2.5: CrewAI and others write null for whatever they leave out."""
    await in_database(Workflow.objects.filter(pk=long_workflow.pk).update)(input_schema=SCHEMA)
    written = {"month": "2026-07", "note": None, "layout": {"colour": None, "size": None}, "copies": None}
    async with connect(mode=era) as client:
        result = await client.call_tool(long_workflow.tool_name, written)

    assert not result.is_error, result.content[0].text
    meant = {"month": "2026-07", "note": None, "layout": {"size": None}}
    execution = await in_database(Execution.objects.select_related("payload").get)()
    assert execution.payload.input == meant
    (request,) = await until(lambda: wire_engine.asked("start"), "the engine is asked")
    assert meant in request.received.json.values()


EVERY_ARGUMENT: dict[str, dict[str, Any]] = {
    "list_workflows": {
        "query": "", "tags": [], "source": "", "mode": "standard",
        "limit": 5, "cursor": "", "detailed": False,
    },
    "list_executions": {"state": "any", "tool": "", "limit": 10, "cursor": ""},
    "ClearCache": {"workflowName": ""},
}  # fmt: skip


@pytest.mark.parametrize("name", EVERY_ARGUMENT)
@pytest.mark.parametrize("filled", ["with empty texts", "with null"])
async def test_built_in_tools_can_be_called_by_clients_that_fill_in_every_argument(
    connect, long_workflow, name, filled
):
    """A2.5, D1: strict function calling makes every argument required."""
    written = EVERY_ARGUMENT[name]
    assert written.keys() == BUILT_IN_TOOLS[name].properties.keys()
    if filled == "with null":
        written = dict.fromkeys(written)
    async with connect() as client:
        result = await client.call_tool(name, written)

    assert not result.is_error, result.content[0].text


async def test_any_state_lists_runs_in_every_state(connect, long_workflow):
    async with connect() as client:
        await client.call_tool(long_workflow.tool_name, {})
        listed = await client.call_tool("list_executions", {"state": "any"})
        others = await client.call_tool("list_executions", {"state": "completed"})

    assert len(listed.structured_content["executions"]) == 1
    assert others.structured_content["executions"] == []


async def test_an_empty_text_for_a_required_argument_is_refused(connect, long_workflow):
    """A2.5"""
    async with connect() as client:
        result = await client.call_tool("get_workflow_info", {"name": ""})

    assert result.is_error and "/name" in result.content[0].text


async def test_json_text_for_nested_arguments_reaches_the_engine_as_what_it_says(
    connect, long_workflow, wire_engine, era
):
    await in_database(Workflow.objects.filter(pk=long_workflow.pk).update)(input_schema=SCHEMA)
    meant = {"month": '{"not": "read"}', "layout": {"colour": "red"}}
    written = meant | {"layout": '{"colour": "red"}'}
    async with connect(mode=era) as client:
        direct = await client.call_tool(long_workflow.tool_name, written)
        named = {"name": long_workflow.tool_name, "arguments": json.dumps(written)}
        compact = await client.call_tool("execute_workflow", named)
        listed = await client.call_tool("list_workflows", {"tags": "[]"})

    assert not (direct.is_error or compact.is_error or listed.is_error), direct.content[0].text
    inputs = await in_database(lambda: [one.input for one in ExecutionPayload.objects.all()])()
    assert inputs == [meant, meant]


@pytest.mark.parametrize("arguments", ["{", "[]", "5", '{"month": '])
async def test_text_that_is_no_object_is_refused_for_arguments(connect, long_workflow, arguments):
    async with connect() as client:
        named = {"name": long_workflow.tool_name, "arguments": arguments}
        result = await client.call_tool("execute_workflow", named)

    assert result.is_error and "/arguments" in result.content[0].text
    assert not await in_database(Execution.objects.exists)()
