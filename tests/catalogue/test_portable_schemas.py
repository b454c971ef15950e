"""Portable schemas: nothing that can be said is lost on the way there and back, whatever the schema."""

import json
from typing import Any

import pytest

from catalogue.portable_schemas import (
    LIBRARY_KEYS,
    alias_keys,
    alias_tools,
    find_refusals,
    limit_for_tools,
    make_portable,
)
from catalogue.schemas import check_arguments, check_input_schema
from catalogue.served_schemas import serve_schema
from tests.schema_catalogue import NASTY_SCHEMAS, Schema

ARGUMENTS: dict[str, list[dict[str, Any]]] = {
    "nothing": [{}, {"a": 1, "other_arguments": "x"}],
    "only a type": [{"a-b": [1, None]}],
    "no arguments": [{}],
    "true": [{"any": value} for value in ("text", "5", 5, True, [1], {"a": None}, '"quoted"', "")],
    "items false": [{"nested": {"pair": ["a", {"b": 1}]}}],
    "old tuple": [{"pair": ["a"]}],
    "root oneOf": [{"id": 1}, {"name": "a"}],
    "root anyOf beside properties": [{"id": 1, "why": "x"}],
    "root allOf of references": [{"a": "x", "b": 1}],
    "root if": [{"kind": "a", "size": 1}],
    "root reference": [{"a": "x"}],
    "discriminated root": [{"kind": "a", "size": 1}, {"kind": "b", "rest": "x", "note": "y"}],
    "look-ahead": [{"a": "a1", "b": ["y"], "pattern": "x"}],
    "odd names": [
        {
            "user-id": "a",
            "$ref": "b",
            "a b": {"c d": "x", "": [1]},
            "n" * 80: "c",
            "page[size]": 1,
            "page.size": 2,
        }
    ],
    "names that collide": [{name: name for name in ("a-b", "a.b", "a_b", "a b", "a-b_")}],
    "tree": [{"root": {"label": "a", "children": [{"label": "b", "children": [{"label": "c"}]}]}}],
    "self": [{"and": [{"and": [{"x": "a"}], "x": "b"}]}],
    "mutual recursion": [{"a": {"b": {"a": {"b": {}}}}}],
    "reference that doubles": [{"p": {"left": {"right": {"left": {"left": {"right": {}}}}}}}],
    "free objects": [
        {
            "labels": {"a-b": "c"},
            "anything": {"other_arguments": {}},
            "known": {"a": "x", "b-c": [1]},
            "rows": [{"a": 1}, {}],
            "untyped": {"a": 1},
            "list": [1, "a", {"b": 2}],
            "more": 3,
        }
    ],
    "types in lists": [{"a": None, "b": 1, "c": {"x-y": "1"}}, {"b": "1", "c": None}],
    "values": [{"text": "", "const": "only", "number": 2, "mixed": 1, "objects": [2], "const number": 3}],
    "constraints": [{"mail": "a@b.c", "share": 0.1, "tags": ["a"]}],
    "discriminated": [
        {"shape": {"kind-of": "circle", "radius": 1}},
        {"shape": {"kind-of": "square", "side length": 2}},
        {"shape": "5"},
    ],
    "deep": [{"l1": {"l2": {"l3": {"l4": {"l5": {"l6": {"l7": {"l8": "x"}}}}}}}}],
}


def valid(schema: Schema, arguments: dict[str, Any]) -> bool:
    return not check_arguments(check_input_schema(schema).schema, arguments).problems


@pytest.mark.parametrize("name", ARGUMENTS)
def test_what_is_written_by_a_portable_schema_is_read_back_as_it_was_meant(name):
    portable = make_portable(serve_schema(check_input_schema(NASTY_SCHEMAS[name]).schema))

    for arguments in ARGUMENTS[name]:
        written = json.loads(json.dumps(portable.plan.write(arguments)))
        assert valid(portable.schema, written), written
        assert portable.read(written) == (arguments, [])


@pytest.mark.parametrize("name", ARGUMENTS)
def test_what_is_written_by_the_engines_own_names_is_left_as_it_is(name):
    portable = make_portable(check_input_schema(NASTY_SCHEMAS[name]).schema)

    for arguments in ARGUMENTS[name]:
        if not any(isinstance(value, str) and name in ("true", "nothing") for value in arguments.values()):
            assert portable.read(arguments)[0] == arguments


DOUBLING: Schema = {
    "type": "object",
    "properties": {"p": {"$ref": "#/$defs/d14"}},
    "$defs": {"d0": {"type": "string"}}
    | {
        f"d{number}": {
            "type": "object",
            "properties": {side: {"$ref": f"#/$defs/d{number - 1}"} for side in ("left", "right")},
        }
        for number in range(1, 15)
    },
}
CHAIN: Schema = {
    "type": "object",
    "properties": {"p": {"$ref": "#/$defs/d60"}},
    "$defs": {"d0": {"type": "string"}}
    | {f"d{n}": {"items": {"$ref": f"#/$defs/d{n - 1}"}} for n in range(1, 61)},
}
MANY_ALTERNATIVES: Schema = {
    "oneOf": [
        {"properties": {"same": {"type": "object", "properties": {f"p{number}": {}}}}}
        for number in range(700)
    ]
}
NESTED_ALTERNATIVES: Schema = {"type": "object", "properties": {"a": {}}}
for _ in range(9):
    NESTED_ALTERNATIVES = {"anyOf": [NESTED_ALTERNATIVES, {"properties": {"b": {"type": "string"}}}]}
    NESTED_ALTERNATIVES = {"allOf": [NESTED_ALTERNATIVES]}


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "schema",
    [DOUBLING, CHAIN, MANY_ALTERNATIVES, NESTED_ALTERNATIVES],
    ids=["doubling", "chain", "many alternatives", "nested alternatives"],
)
def test_schemas_that_multiply_are_written_in_no_time_and_stay_small(schema):
    """B8"""
    checked = check_input_schema(schema)
    assert not checked.problem

    assert len(json.dumps(make_portable(checked.schema).schema)) < 500_000


@pytest.mark.parametrize(
    ("schema", "name", "refused"),
    [
        (NASTY_SCHEMAS["root oneOf"], "a", ["oneOf at the root of the schema"]),
        (NASTY_SCHEMAS["tree"], "a", ["recursion, on which LlamaIndex fails"]),
        (NASTY_SCHEMAS["root reference"], "a", ["references"]),
        ({"properties": {"a b": {}, "c[]": {}}}, "a", ['arguments called "a b", "c[]"']),
        (
            {"properties": {"$ref": {"type": "string"}}},
            "a",
            ['arguments called "$ref", which LangChain in Python takes for a reference'],
        ),
        (
            {"properties": {"self": {}, "config": {}, "inner": {"properties": {"runtime": {}}}}},
            "a",
            ['arguments called "config", "self", which LangChain in Python or LlamaIndex use themselves'],
        ),
        ({}, "a.b", ['the name "a.b", which contains a dot']),
        ({}, "1st", ['the name "1st", which does not begin with a letter']),
        ({}, "n" * 64, ["a name of 64 characters; with the server's name before it, at most 39 fit"]),
        (NASTY_SCHEMAS["constraints"], "plain-name", []),
    ],
)
def test_curators_are_told_what_providers_refuse(schema, name, refused):
    assert find_refusals(name, check_input_schema(schema).schema, limit=limit_for_tools(None)) == refused


def test_recursion_that_names_several_types_of_its_own_is_given_as_json():
    written = make_portable({"properties": {"next": {"$ref": "#", "type": ["object", "null"]}}})
    assert written.schema["properties"]["next"]["description"] == "Any value, as JSON text."
    assert written.read({"next": '{"next": null}'}) == ({"next": {"next": None}}, [])


def test_no_two_names_get_the_same_alias_and_none_gets_anothers_name():
    keys = [
        "a-b",
        "a.b",
        "a_b",
        "class",
        "class_",
        "self",
        "$self",
        "model_config",
        "",
        "ä",
        "a",
        "日本",
        "本日",
        "9",
        "_",
        "n" * 65,
        "n" * 66,
        "-",
    ]
    aliases = alias_keys(keys)
    shown = [aliases.get(key, key) for key in keys]
    assert len(set(shown)) == len(keys)
    assert all(alias.isidentifier() and alias.isascii() and len(alias) <= 64 for alias in shown)
    assert not LIBRARY_KEYS.intersection(shown)

    tools = alias_tools(["list.workflows", "list_workflows.", "a.b", "a_b", "x" * 60, "x" * 61], limit=30)
    assert tools.keys() == {"list.workflows", "list_workflows.", "a.b", "x" * 60, "x" * 61}
    assert not set(tools.values()) & {"list_workflows", "a_b"}
    assert len(set(tools.values())) == 5 and all(len(alias) <= 30 for alias in tools.values())


def test_an_alias_stays_as_it_is_when_other_names_come_and_go():
    assert alias_tools(["a.b"], limit=30) == {"a.b": "a_b"}
    assert alias_tools(["a.b", "c.d", "e"], limit=30)["a.b"] == "a_b"
