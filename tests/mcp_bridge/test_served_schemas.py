"""Schemas as clients read them, at every door: an object wherever a schema stands."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema.validators import validator_for

from catalogue.models import Workflow
from catalogue.schemas import check_input_schema
from tests import plain_http
from tests.factories import make_toolset, make_workflow
from tests.mcp_bridge.database import in_database
from tests.schema_catalogue import NASTY_SCHEMAS

LITERALS = {"enum", "const", "default", "examples"}
NAMES = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
BOOLEAN = {"additionalProperties", "unevaluatedProperties", "unevaluatedItems", "uniqueItems", "deprecated"}


@pytest.fixture
def workflows() -> dict[str, Workflow]:
    """By what is nasty about their schemas, both of them."""
    return {
        name: make_workflow(
            name=name.replace(" ", "_"),
            input_schema=check_input_schema(schema).schema,
            output_schema=check_input_schema(schema).schema,
            execution_type="sync",
            queries=[{"name": "q", "description": "", "inputSchema": check_input_schema(schema).schema}],
        )
        for name, schema in NASTY_SCHEMAS.items()
    }


def booleans(value: Any, path: str = "", *, named: bool = False) -> Iterator[str]:
    """Where `true` or `false` stands for a schema."""
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from [f"{path}/{number}"] if isinstance(item, bool) else booleans(item, f"{path}/{number}")
    if not isinstance(value, dict):
        return
    for key, item in value.items():
        if not named and key in LITERALS:
            continue
        if isinstance(item, bool) and (named or key not in BOOLEAN):
            yield f"{path}/{key}"
        yield from booleans(item, f"{path}/{key}", named=key in NAMES and not named)


def assert_readable(schema: dict[str, Any]) -> None:
    assert schema["type"] == "object" and isinstance(schema["properties"], dict)
    assert list(booleans(schema)) == []
    validator_for(schema).check_schema(schema)


async def test_every_tool_of_a_list_can_be_read_by_clients_that_want_objects(connect, workflows, era):
    """A2.1: one that cannot costs some clients the whole list."""
    async with connect(mode=era) as client:
        tools = (await client.list_tools()).tools

    for tool in tools:
        assert_readable(tool.input_schema)
        if tool.output_schema is not None:
            assert_readable(tool.output_schema)
    shown = {tool.name: tool for tool in tools}
    assert shown.keys() >= {workflow.tool_name for workflow in workflows.values()}
    assert shown["true"].input_schema["properties"] == {"any": {}, "list": {"type": "array", "items": {}}}
    assert shown["false"].input_schema["properties"]["never"] == {"not": {}}
    assert shown["booleans_everywhere"].input_schema["properties"]["items"] == {
        "enum": [True, {"items": True}],
        "default": {"properties": {"x": True}},
    }
    assert shown["booleans_everywhere"].output_schema == shown["booleans_everywhere"].input_schema


async def test_members_that_only_alternatives_name_are_named_at_the_root(connect, workflows, settings):
    """CrewAI and others let a call name nothing else."""
    settings.CATALOGUE = settings.CATALOGUE | {"retry_attempts": 0}
    async with connect() as client:
        shown = {tool.name: tool.input_schema["properties"] for tool in (await client.list_tools()).tools}
        result = await client.call_tool("discriminated_root", {"kind": "b", "rest": "x"})

    assert shown["root_oneOf"] == {"id": {"type": "integer"}, "name": {"type": "string"}}
    assert shown["root_reference"] == {"a": {"type": "string"}}
    assert shown["root_allOf_of_references"].keys() == {"a", "b"}
    assert shown["discriminated_root"] == {
        "note": {"type": "string"},
        "kind": {"anyOf": [{"const": "a"}, {"const": "b"}]},
        "size": {"type": "integer"},
        "never": {"not": {}},
        "rest": {"type": "string"},
    }
    assert "Invalid arguments" not in result.content[0].text


async def test_patterns_with_look_arounds_are_said_in_words_and_checked(connect, workflows):
    """A2.5: clients whose validator is written in Rust refuse the whole list for one."""
    async with connect() as client:
        shown = {tool.name: tool.input_schema["properties"] for tool in (await client.list_tools()).tools}
        result = await client.call_tool("look-ahead", {"a": "A1"})

    assert shown["look-ahead"] == {
        "a": {
            "type": "string",
            "description": r"A word. Must match the regular expression ^(?=.*[a-z])\w+$",
        },
        "b": {
            "type": "array",
            "items": {"type": "string", "description": "Must match the regular expression ^(?!x)"},
        },
        "pattern": {"type": "string", "pattern": "^[a-z]+$"},
    }
    assert result.is_error and '/a: "A1" does not match' in result.content[0].text


async def test_details_and_resources_and_rest_show_the_schema_that_the_list_has(
    connect, workflows, mcp_server, token
):
    """A3.1"""
    async with connect() as client:
        listed = {tool.name: tool.input_schema for tool in (await client.list_tools()).tools}
        for workflow in workflows.values():
            name = workflow.tool_name
            told = (await client.call_tool("get_workflow_info", {"name": name})).structured_content
            read = json.loads((await client.read_resource(f"workflow://schema/{name}")).contents[0].text)
            headers = {"authorization": f"Bearer {token}"}
            rest = await in_database(_get)(f"{mcp_server.base_url}/api/workflows/{name}", headers)
            for schemas in (told, read, rest):
                assert (schemas["input_schema"], schemas["output_schema"]) == (listed[name], listed[name])
            assert told["queries"][0]["inputSchema"] == listed[name]


FIELD = {"type": "string", "description": "What nobody needs to know at once. " * 10}
KINDS = {
    f"kind_{n}": {"type": "object", "properties": {f"f{n}_{m}": FIELD for m in range(9)}} for n in range(200)
}
QUERY = {"type": "object", "properties": {name: {"$ref": f"#/$defs/{name}"} for name in KINDS}}
LARGE = {"type": "object", "properties": {"query": QUERY}, "$defs": KINDS}


@pytest.fixture
def large() -> Workflow:
    workflow = make_workflow(name="find", input_schema=LARGE, output_schema=LARGE, execution_type="sync")
    make_toolset("few", picked=[workflow], mode="compact")
    return workflow


async def test_agents_open_the_parts_of_a_large_schema_on_demand(connect, large, mcp_server, token):
    """D7: also in a compact toolset; REST has the whole one."""
    shown: dict[str, list[Any]] = {}
    for toolset in ("", "few"):
        async with connect(toolset=toolset) if toolset else connect() as client:
            told = (await client.call_tool("get_workflow_info", {"name": "find"})).structured_content
            texts = [json.dumps(told[side]) for side in ("input_schema", "output_schema")]
            parts = [re.findall(r"with part=(\S*) shows", text)[0] for text in texts]
            opened = [
                (
                    await client.call_tool("get_workflow_info", {"name": "find", "part": part})
                ).structured_content
                for part in (*parts, "kind_7")
            ]
            wrong = await client.call_tool("get_workflow_info", {"name": "find", "part": "/$defs/kind_x"})
            if not toolset:
                (listed,) = [one for one in (await client.list_tools()).tools if one.name == "find"]
                assert listed.input_schema == told["input_schema"]
        assert all(len(text) < 40_000 for text in texts)
        names = [part.rpartition("/")[2] for part in parts]
        assert parts == [f"/$defs/{names[0]}", f"/output_schema/$defs/{names[1]}"]
        assert [one["schema"] for one in opened[:2]] == [KINDS[name] for name in names]
        assert opened[2] == {"name": "find", "part": "kind_7", "schema": KINDS["kind_7"]}
        assert wrong.is_error and "/$defs has kind_0, kind_1" in wrong.content[0].text
        shown[toolset] = [told, opened]
    assert shown[""] == shown["few"]
    headers = {"authorization": f"Bearer {token}"}
    rest = await in_database(_get)(f"{mcp_server.base_url}/api/workflows/find", headers)
    assert rest["input_schema"] == LARGE == rest["output_schema"]


def _get(url: str, headers: dict[str, str]) -> dict[str, Any]:
    document: dict[str, Any] = plain_http.get(url, headers=headers, timeout=20).json()
    return document


async def test_arguments_are_checked_with_the_engines_own_schema(connect, workflows):
    """A2.5"""
    async with connect() as client:
        never = await client.call_tool("false", {"never": 1})
        neither = await client.call_tool("root_oneOf", {})

    assert never.is_error and "/never" in never.content[0].text
    assert neither.is_error and "oneOf" in neither.content[0].text
