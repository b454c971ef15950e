"""Toolsets in portable mode: tools that every provider of models takes, and calls that mean the same."""

import json
from typing import Any

import pytest
from mcp import MCPError

from catalogue.curation import override_workflow
from catalogue.models import Toolset, Workflow
from catalogue.schemas import check_input_schema
from executions.models import Execution
from mcp_bridge.tokens import create_token
from tests import plain_http
from tests.executions.engines import WORKFLOW_ID, WireEngine, until
from tests.factories import make_source, make_toolset, make_workflow
from tests.mcp_bridge.database import in_database
from tests.mcp_bridge.provider_rules import RULES, claude, cursor, gemini, openai_strict
from tests.schema_catalogue import NASTY_SCHEMAS

ADMIN = ["workflows:read", "catalogue:admin"]
NAMES = ["report.monthly", "1st", "a.b", "a_b", "n" * 64, "n" * 63 + "m", "-dash", "Plain-name"]
ORDER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "user-id": {"type": "string"},
        "from": {"type": "string", "format": "date"},
        "config": {"type": "string"},  # Of which LangChain sends nothing
        "items": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"unit price": {"type": "number", "minimum": 0}, "sku": {"type": "string"}},
                "required": ["unit price"],
            },
        },
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "filter": {"$ref": "#/$defs/filter"},
        "anything": {},
    },
    "required": ["user-id"],
    "additionalProperties": {"type": "integer"},
    "$defs": {
        "filter": {
            "type": "object",
            "properties": {
                "field-name": {"type": "string"},
                "and": {"type": "array", "items": {"$ref": "#/$defs/filter"}},
            },
            "additionalProperties": False,
        }
    },
}
WRITTEN = {
    "user_id": "u1",
    "from_": "2026-01-01",
    "config_": "fast",
    "items": [{"unit_price": 2.5, "sku": "x"}],
    "labels": '{"a-b": "c", "unit_price": "kept"}',
    "filter": {"field_name": "x", "and_": ['{"field-name": "y"}']},
    "anything": "[1, 2]",
    "other_arguments": '{"count": 3}',
}
MEANT = {
    "user-id": "u1",
    "from": "2026-01-01",
    "config": "fast",
    "items": [{"unit price": 2.5, "sku": "x"}],
    "labels": {"a-b": "c", "unit_price": "kept"},
    "filter": {"field-name": "x", "and": [{"field-name": "y"}]},
    "anything": [1, 2],
    "count": 3,
}


@pytest.fixture
def nasty() -> Toolset:
    """A portable toolset with every schema that somebody trips over, and names of all sorts."""
    source = make_source("everything")
    for name, schema in NASTY_SCHEMAS.items():
        checked = check_input_schema(schema).schema
        make_workflow(source, name=name.replace(" ", "_"), input_schema=checked, output_schema=checked)
    for name in NAMES:
        make_workflow(source, name=name, execution_type="sync", output_schema={"type": "object"})
    return make_toolset("some", rules=["*"], portable=True)


@pytest.fixture
def order(wire_engine: WireEngine) -> Workflow:
    wire_source = make_source("wire", base_url=wire_engine.base_url)
    schema = check_input_schema(ORDER).schema
    workflow = make_workflow(
        wire_source, upstream_id=WORKFLOW_ID, name="orders.place", inline_wait_seconds=0, input_schema=schema
    )
    make_toolset("shop", picked=[workflow], portable=True)
    make_toolset("plain", picked=[workflow])
    return workflow


async def test_every_tool_is_one_that_every_provider_takes(connect, nasty, era):
    async with connect(mode=era, toolset="some") as client:
        tools = (await client.list_tools()).tools

    assert len(tools) >= len(NASTY_SCHEMAS) + len(NAMES) + 7
    assert len({tool.name for tool in tools}) == len(tools)
    refused = [
        (rule.__name__, tool.name, problem)
        for tool in tools
        for rule in RULES
        for problem in rule(tool.name, tool.input_schema)
    ]
    assert refused == []
    assert [
        tool.name for tool in tools if list(cursor(tool.name, {}, server="workflow-catalogue-some"))
    ] == []
    assert {tool.output_schema for tool in tools} == {None}


async def test_the_same_tools_are_refused_without_portable_mode(connect, nasty):
    """So that the rules can fail."""
    async with connect() as client:
        tools = (await client.list_tools()).tools

    for rule in (claude, openai_strict, gemini, cursor):
        assert [tool.name for tool in tools if list(rule(tool.name, tool.input_schema))], rule.__name__


async def test_arguments_are_read_back_before_they_are_checked_and_sent(connect, order, wire_engine, era):
    async with connect(mode=era, toolset="shop") as client:
        (tool,) = [tool for tool in (await client.list_tools()).tools if tool.name.startswith("orders")]
        result = await client.call_tool(tool.name, WRITTEN)

    assert (tool.name, result.is_error) == ("orders_place", False), result.content[0].text
    assert tool.input_schema["properties"].keys() == WRITTEN.keys()
    execution = await in_database(Execution.objects.select_related("payload").get)()
    assert (execution.tool_name, execution.payload.input) == ("orders.place", MEANT)
    (request,) = await until(lambda: wire_engine.asked("start"), "the engine is asked")
    assert MEANT in request.received.json.values()


async def test_a_client_that_knows_the_tool_by_its_own_names_is_understood(connect, order):
    async with connect(toolset="shop") as client:
        result = await client.call_tool("orders.place", MEANT)

    assert not result.is_error, result.content[0].text
    execution = await in_database(Execution.objects.select_related("payload").get)()
    assert execution.payload.input == MEANT


async def test_null_for_every_optional_argument_counts_as_left_out(connect, order):
    """A2.5: strict function calling makes every argument required."""
    async with connect(toolset="shop") as client:
        result = await client.call_tool(
            "orders_place",
            dict.fromkeys(WRITTEN) | {"user_id": "u1", "items": [{"unit_price": 1, "sku": None}]},
        )

    assert not result.is_error, result.content[0].text
    execution = await in_database(Execution.objects.select_related("payload").get)()
    assert execution.payload.input == {
        "user-id": "u1",
        "items": [{"unit price": 1}],
        "anything": None,
    }


NUMBER, TEXT = {"properties": {"number": {"type": "integer"}}}, {"properties": {"text": {"type": "string"}}}


@pytest.mark.parametrize(
    ("schema", "written", "meant"),
    [
        ({}, {"other_arguments": '{"a": 1}'}, {"a": 1}),
        ({}, {"other_arguments": None}, {}),
        ({"anyOf": [NUMBER, TEXT]}, {"number": None, "text": "seven"}, {"text": "seven"}),
        ({"properties": {"note": {"type": ["string", "null"]}}}, {"note": None}, {"note": None}),
    ],
)
async def test_what_only_the_portable_schema_has_does_not_reach_the_workflow(
    connect, wire_engine, schema, written, meant
):
    wire_source = await in_database(make_source)("wire", base_url=wire_engine.base_url)
    workflow = await in_database(make_workflow)(
        wire_source,
        upstream_id=WORKFLOW_ID,
        inline_wait_seconds=0,
        input_schema=check_input_schema(schema).schema,
    )
    await in_database(make_toolset)("shop", picked=[workflow], portable=True)
    async with connect(toolset="shop") as client:
        result = await client.call_tool(workflow.tool_name, written)

    assert not result.is_error, result.content[0].text
    execution = await in_database(Execution.objects.select_related("payload").get)()
    assert execution.payload.input == meant


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"user_id": 7}, "/user_id: 7 is not of type"),
        ({"items": [{"unit_price": -1}]}, "/items/0/unit_price: -1 is less than"),
        ({"items": [{}]}, "/items/0/unit_price: required, but missing"),
        ({"filter": {"and_": ['{"x": 1}']}}, "/filter/and_/0/x: no such argument"),
        ({"labels": "no JSON"}, "/labels: this must be JSON text"),
        ({"other_arguments": "[1]"}, "/other_arguments: this must be an object, as JSON text"),
        ({"other_arguments": '{"count": "x"}'}, '/count: "x" is not of type'),
    ],
)
async def test_what_is_wrong_is_told_by_the_names_that_the_agent_used(connect, order, change, problem):
    """A2.5"""
    async with connect(toolset="shop") as client:
        result = await client.call_tool("orders_place", WRITTEN | change)

    told = result.content[0].text
    assert result.is_error and problem in told and "for orders_place" in told
    assert not await in_database(Execution.objects.exists)()


async def test_an_unknown_tool_is_answered_with_the_names_of_this_toolset(connect, order):
    """A2.5"""
    async with connect(toolset="shop") as client:
        with pytest.raises(MCPError, match="Did you mean orders_place"):
            await client.call_tool("order_place", {})


async def test_a_former_name_is_answered_with_the_present_one_of_this_toolset(connect, order):
    """A6.4"""
    await in_database(override_workflow)(order, tool_name="purchases.begin")
    async with connect(toolset="shop") as client:
        with pytest.raises(MCPError, match="It was renamed: call purchases_begin instead"):
            await client.call_tool("orders.place", {})


async def test_a_call_by_a_former_name_that_still_works_is_told_the_present_one(connect, order):
    """Issue 13, 5: of a toolset its own; `execute_workflow` and `get_workflow_info` take it, too."""
    await in_database(override_workflow)(order, tool_name="purchases.begin", alias_days=1)
    asked = {"name": "orders.place", "arguments": json.dumps(WRITTEN)}
    async with connect(toolset="shop") as client:
        results = [
            await client.call_tool("orders.place", WRITTEN),
            await client.call_tool("execute_workflow", asked),
        ]
        told = (await client.call_tool("get_workflow_info", {"name": "orders.place"})).structured_content
        listed = [tool.name for tool in (await client.list_tools()).tools]
    async with connect() as client:
        results.append(await client.call_tool("orders.place", MEANT))
    assert told["name"] == "purchases_begin" and "orders_place" not in listed
    present = ["purchases_begin", "purchases_begin", "purchases.begin"]
    for result, name in zip(results, present, strict=True):
        assert not result.is_error, result.content[0].text
        assert result.meta["workflow-catalogue/renamed-to"] == name
        assert f"(orders.place is now called {name};" in result.content[-1].text


async def test_built_in_tools_use_the_names_of_this_toolset(connect, order):
    """D1, D7"""
    async with connect(toolset="shop") as client:
        listed = (await client.call_tool("list_workflows", {})).structured_content
        told = (await client.call_tool("get_workflow_info", {"name": "orders_place"})).structured_content
        run = await client.call_tool(
            "execute_workflow", {"name": "orders_place", "arguments": json.dumps(WRITTEN)}
        )
        refused = await client.call_tool(
            "execute_workflow", {"name": "orders_place", "arguments": {"user-id": 7}}
        )
        runs = (await client.call_tool("list_executions", {"tool": "orders_place"})).structured_content
        cleared = await client.call_tool("ClearCache", {"workflowName": "orders_place"})

    assert [entry["name"] for entry in listed["workflows"]] == ["orders_place"]
    assert (told["name"], told["input_schema"]["required"]) == ("orders_place", ["user-id"])
    assert not run.is_error, run.content[0].text
    assert refused.is_error and "/user_id" in refused.content[0].text
    assert len(runs["executions"]) == 1 and not cleared.is_error
    execution = await in_database(Execution.objects.select_related("payload").get)()
    assert execution.payload.input == MEANT


async def test_a_prompt_names_the_tool_and_its_arguments_as_the_model_sees_them(connect, order):
    await in_database(Workflow.objects.filter(pk=order.pk).update)(offered_as_prompt=True)
    arguments = {"user-id": "u1", "labels": '{"a": "b"}'}
    async with connect(toolset="shop") as client:
        prompt = await client.get_prompt("orders.place", arguments)

    text = prompt.messages[0].content.text
    written = json.loads(text.partition("```json")[2].strip("`\n"))
    assert "`orders_place`" in text
    assert written == {"user_id": "u1", "labels": '{"a": "b"}'}


async def test_other_toolsets_are_left_as_they_are(connect, order):
    async with connect(toolset="plain") as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        result = await client.call_tool("orders.place", MEANT)
        with pytest.raises(MCPError):
            await client.call_tool("orders_place", WRITTEN)

    assert "$defs" in tools["orders.place"].input_schema
    assert not result.is_error


async def test_portable_mode_is_switched_over_rest_and_seen_at_once(connect, order, mcp_server):
    """A10.2"""
    headers = {"authorization": f"Bearer {(await in_database(create_token)(name='a', scopes=ADMIN))[1]}"}
    address = f"{mcp_server.base_url}/api/toolsets/plain"
    before = (await in_database(plain_http.get)(address, headers=headers)).json()
    changed = await in_database(plain_http.request)(
        "PATCH", address, headers=headers, json={"portable": True}
    )
    async with connect(toolset="plain") as client:
        names = {tool.name for tool in (await client.list_tools()).tools}

    assert (before["portable"], changed.json()["portable"]) == (False, True)
    assert before["refused"] == {
        "orders.place": [
            "recursion, on which LlamaIndex fails",
            'arguments called "unit price"',
            'arguments called "config", which LangChain in Python or LlamaIndex use themselves',
            'the name "orders.place", which contains a dot',
        ]
    }
    assert changed.json()["refused"] == {}
    assert "orders_place" in names
    assert changed.json()["cost"]["full"] != before["cost"]["full"]
