"""Schemas that are too large for agents: what they read of them, and how they see the rest."""

import json
import re
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from catalogue import reduced_schemas
from catalogue.reduced_schemas import UnknownPart, open_part, serve_reduced
from catalogue.schema_limits import MAX_SERVED, measure_demand
from catalogue.schemas import check_input_schema, find_argument_problems
from catalogue.served_schemas import serve_schema
from connectors.formats.json_schema import value_at
from tests.thoroughness import examples

Schema = dict[str, Any]
HINT = re.compile(r"get_workflow_info with part=(\S*) shows this part")
ADDRESS = {
    "type": "object",
    "title": "Address",
    "description": "Where it is.",
    "properties": {
        **{name: {"type": "string", "maxLength": 80} for name in ("street", "city", "country", "zip")},
        "since": {"type": "string", "format": "date", "description": "The day of the move."},
    },
    "required": ["street", "city"],
}


def written(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def accepts(schema: Schema, value: Any) -> bool:
    return bool(jsonschema_rs.validator_for(schema, offline=True).is_valid(value))


def recursive(kinds: int) -> Schema:
    """A query language: each kind of query has queries within it."""
    queries = {
        f"kind_{number}": {
            "type": "object",
            "description": f"The query number {number}. " * 5,
            "properties": {
                "boost": {"type": "number", "description": "How much it counts. " * 5},
                "inner": {"$ref": "#/$defs/Query"},
                "several": {"type": "array", "items": {"$ref": f"#/$defs/kind_{(number + 1) % kinds}"}},
            },
            "additionalProperties": False,
        }
        for number in range(kinds)
    }
    query = {
        "type": "object",
        "properties": {name: {"$ref": f"#/$defs/{name}"} for name in queries},
        "minProperties": 1,
        "maxProperties": 1,
        "additionalProperties": False,
    }
    arguments = {
        "index": {"type": "string", "description": "Where to search. " * 3},
        "query": {"description": "What to find.", "$ref": "#/$defs/Query"},
    }
    return {
        "type": "object", "properties": arguments, "required": ["query"], "additionalProperties": False,
        "$defs": {"Query": query, **queries, "Unused": ADDRESS},
    }  # fmt: skip


def alternatives(levels: int) -> Schema:
    """Alternatives within alternatives, without definitions."""
    inner: Schema = {"type": "integer"}
    for level in range(levels):
        inner = {
            "oneOf": [
                {
                    "properties": {f"way_{level}_{number}": inner | {"title": f"{number}"}},
                    "required": [f"way_{level}_{number}"],
                }
                for number in range(3)
            ]
        }
    return {"type": "object", "properties": {"plan": inner}}


def wide(arguments: int) -> Schema:
    properties = {
        f"argument_{number:05}": {"type": "string", "description": f"The argument number {number}."}
        for number in range(arguments)
    }
    required = [f"argument_{arguments - 1:05}"]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def repeated(times: int) -> Schema:
    return {
        "type": "object",
        "properties": {
            f"address_{number}": {"type": "object", "properties": {"at": ADDRESS}} for number in range(times)
        },
    }


def described(fields: int) -> Schema:
    field = {"type": "string", "description": "What nobody needs to know at once. " * 10}
    inner = {
        "type": "object",
        "properties": {f"field_{number}": field | {"maxLength": number} for number in range(fields)},
    }
    return {
        "type": "object",
        "properties": {"order": inner | {"description": "What to order."}, "count": {"type": "integer"}},
    }


LARGE = {
    "recursive": recursive(1_000),
    "alternatives": alternatives(6),
    "wide": wide(4_000),
    "repeated": repeated(300),
    "described": described(120),
}


@pytest.mark.parametrize("name", LARGE)
def test_what_agents_read_of_a_large_schema_fits_is_valid_and_the_same_each_time(name):
    schema = LARGE[name]
    assert not check_input_schema(schema).problem and len(written(schema)) > MAX_SERVED
    served = serve_reduced(schema)
    assert len(written(served)) <= MAX_SERVED
    assert served["type"] == "object" and jsonschema_rs.meta.is_valid(served)
    jsonschema_rs.validator_for(served, offline=True)
    assert written(serve_reduced(schema)) == written(served)


NAMES = ("a", "b", "c")
SCALARS = st.sampled_from([
    {}, {"type": "string", "description": "A text that is long enough to be left out. " * 3},
    {"enum": ["x", 1, None]}, {"const": "x"}, {"type": ["string", "null"], "maxLength": 1}, {"minimum": 1},
    {"type": "integer"}, {"not": {"type": "integer"}},
    {"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b", "description": "b"}, {"$ref": "#"},
])  # fmt: skip


def nested_in(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    named = st.dictionaries(st.sampled_from(NAMES), inner, max_size=3)
    several = st.lists(inner, min_size=1, max_size=3)
    keywords: dict[str, st.SearchStrategy[Any]] = {
        "properties": named, "patternProperties": named, "dependentSchemas": named,
        "allOf": several, "anyOf": several, "oneOf": several, "prefixItems": several,
        "not": inner, "if": inner, "then": inner, "else": inner, "items": inner, "contains": inner,
        "additionalProperties": inner | st.just(False), "unevaluatedProperties": st.just(False),
        "unevaluatedItems": st.just(False), "propertyNames": st.just({"maxLength": 1}),
        "maxContains": st.just(1), "type": st.sampled_from(["object", "array"]),
        "required": st.lists(st.sampled_from(NAMES), unique=True, max_size=2),
        "$ref": st.sampled_from(["#/$defs/a", "#/$defs/b", "#/properties/a"]), "title": st.just("T" * 50),
    }  # fmt: skip
    return st.sets(st.sampled_from(sorted(keywords)), min_size=1, max_size=4).flatmap(
        lambda chosen: st.fixed_dictionaries({keyword: keywords[keyword] for keyword in sorted(chosen)})
    )


SCHEMAS = st.recursive(SCALARS, nested_in, max_leaves=12)
VALUES = st.recursive(
    st.sampled_from(["x", "xy", 0, 1, None]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from((*NAMES, "d")), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=examples(500), suppress_health_check=list(HealthCheck), deadline=None)
@given(
    properties=st.fixed_dictionaries(dict.fromkeys(NAMES, SCHEMAS)),
    further=nested_in(SCHEMAS),
    definitions=st.fixed_dictionaries({"a": SCHEMAS, "b": SCHEMAS}),
    values=st.lists(
        st.dictionaries(st.sampled_from((*NAMES, "d")), VALUES, max_size=3), min_size=5, max_size=10
    ),
    room=st.integers(400, 2_000),
)
def test_what_the_whole_schema_accepts_the_reduced_one_accepts(
    properties, further, definitions, values, room
):
    """A3.5: calls are checked with the whole one."""
    schema = {"type": "object"} | further | {"type": "object", "properties": properties, "$defs": definitions}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reduced_schemas, "MAX_SERVED", room)
        reduced = reduced_schemas._reduced(schema, written(schema), "", "")
        size = len(written(reduced))
    assert jsonschema_rs.meta.is_valid(reduced) and size <= room
    for value in values:
        if accepts(schema, value):
            assert accepts(reduced, value), (schema, reduced, value)


QUERY = {"index": "logs", "query": {"kind_7": {"boost": 2, "inner": {"kind_8": {"several": [{"boost": 1}]}}}}}


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        (QUERY["query"], None),
        ({"kind_7": {"boost": "much"}}, ("/query/kind_7/boost", '"much" is not of type "number"')),
        (
            {"kind_7": {"inner": {"kind_8": {"bost": 1}}}},
            ("/query/kind_7/inner/kind_8/bost", "no such argument"),
        ),
        ({"kind_x": {}}, ("/query/kind_x", "no such argument")),
    ],
)
def test_arguments_are_checked_with_the_whole_schema_and_each_problem_is_named(query, problem):
    """A2.5: also where the schema is so recursive that the worst of arguments could not be reported."""
    schema = LARGE["recursive"]
    assert accepts(serve_reduced(schema), QUERY | {"query": query}) is True
    problems = find_argument_problems(schema, QUERY | {"query": query})
    assert [(one.path, one.message) for one in problems] == ([problem] if problem else [])


def test_a_schema_that_is_not_too_large_is_served_as_it_is():
    for fields in (1, 20, 60):
        schema = described(fields) | {"$defs": {"unused": {}}}
        assert len(written(schema)) < MAX_SERVED and serve_reduced(schema) == serve_schema(schema)


def test_texts_of_inner_parts_go_first_and_those_of_arguments_stay():
    served = serve_reduced(LARGE["described"])
    order = served["properties"]["order"]
    assert order["description"] == "What to order."
    assert order["properties"]["field_3"] == {"type": "string", "maxLength": 3}
    assert "Defs" not in served and not HINT.search(written(served))


def test_equal_parts_are_named_once():
    served = serve_reduced(LARGE["repeated"])
    references = {written(one) for one in served["properties"].values()}
    assert len(references) == 1 and len(served["$defs"]) == 1
    assert accepts(served, {"address_7": {"at": {"street": "a", "city": "b"}}})
    assert not accepts(served, {"address_7": {"at": {"street": "a"}}})


@pytest.mark.parametrize("name", LARGE)
def test_each_closed_part_is_opened_as_the_whole_schema_has_it(name):
    schema = LARGE[name]
    waiting, seen = set(HINT.findall(written(serve_reduced(schema)))), set[str]()
    while waiting and len(seen) < 30:
        seen.add(pointer := min(waiting))
        opened = open_part(schema, pointer)
        assert len(written(opened)) <= MAX_SERVED and jsonschema_rs.meta.is_valid(opened)
        part = value_at(schema, pointer)
        shown, there = (one.get("properties", {}).keys() for one in (opened, part))
        assert shown == there or (shown < there and "more arguments" in opened["description"])
        waiting |= set(HINT.findall(written(opened)))
        waiting -= seen


def test_a_part_that_fits_is_opened_with_its_texts_and_with_what_it_refers_to():
    schema = LARGE["described"] | {
        "$defs": {"Address": ADDRESS, "Person": {"items": {"$ref": "#/$defs/Address"}}}
    }
    for name in ("/$defs/Person", "#/$defs/Person", "Person"):
        opened = open_part(schema, name)
        assert opened == {"items": {"$ref": "#/$defs/Address"}, "$defs": {"Address": ADDRESS}}
    assert open_part(schema, "/$defs/Person/items/properties/since") == ADDRESS["properties"]["since"]


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        ("/$defs/Adress", "there is no schema at '/$defs/Adress'. /$defs has Address"),
        ("Adress", "there is no schema at '/$defs/Adress'. /$defs has Address"),
        ("/$defs", "there is no schema at '/$defs'. /$defs has Address"),
        ("/$defs/Address/required", "/$defs/Address/required has no parts"),
        ("/properties/order/properties/nothing", "/properties/order/properties has field_0, field_1"),
        ("/$defs/Address/type/x", "/$defs/Address/type has no parts"),
    ],
)
def test_a_wrong_part_is_answered_with_what_there_is(part, problem):
    with pytest.raises(UnknownPart) as refused:
        open_part(LARGE["described"] | {"$defs": {"Address": ADDRESS}}, part)
    assert problem in str(refused.value)


def test_an_old_dialect_and_places_with_names_of_their_own_are_reduced_too():
    long = {
        "type": "object",
        "properties": {f"p{number}": {"type": "string", "title": "t" * 300} for number in range(90)},
    }
    named = {
        "$id": "https://example.com/inner",
        "$defs": {"x": {"type": "integer"}},
        "properties": {"n": {"$ref": "#/$defs/x"}},
    }
    for schema in (
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "definitions": {"A": long},
            "$ref": "#/definitions/A",
        },
        {"properties": {"a": {"$ref": "#there"}}, "$defs": {"A": long | {"$anchor": "there"}, "B": named}},
        {"properties": {"a": long, "b": {"$ref": "https://example.com/inner"}}, "$defs": {"B": named}},
        {"$dynamicAnchor": "node", "properties": {"a": long, "b": {"$dynamicRef": "#node"}}},
    ):
        served = serve_reduced({"type": "object"} | schema)
        assert len(written(served)) <= MAX_SERVED and jsonschema_rs.meta.is_valid(served)
        for value in ({}, {"p3": "x", "a": {"p4": "x"}, "b": {"n": 1}}):
            assert accepts(served, value) or not accepts(schema, value)


def test_what_clients_write_out_stays_bounded_in_a_reduced_schema():
    """B8: 2 to the power of 60 places for those that replace each reference by its target."""
    both = {
        f"d{n}": {"properties": {"a": {"$ref": f"#/$defs/d{n - 1}"}, "b": {"$ref": f"#/$defs/d{n - 1}"}}}
        for n in range(1, 60)
    }
    schema = LARGE["described"] | {"$defs": both | {"d0": {"type": "object"}}}
    schema["properties"] = schema["properties"] | {"bomb": {"$ref": "#/$defs/d59"}}
    assert not check_input_schema(schema).problem
    measure_demand(serve_reduced(schema), is_inlined=True)  # Raises ExcessiveSchema beyond MAX_EXPANDED


@pytest.mark.timeout(20)
def test_no_schema_keeps_the_reduction_busy_or_does_not_fit():
    """B8"""
    big = {"type": "object", "properties": {f"p{number}": {"pattern": "x" * 200} for number in range(2_500)}}
    names = [f"argument {number:05}" for number in range(1_500)]
    to_a = {"$ref": "#/$defs/a"}
    in_circles = {"a": {"$ref": "#/$defs/b"}, "b": to_a}
    for schema in (
        {
            "properties": {f"p{number}": {"$ref": "#/$defs/big"} for number in range(5_000)},
            "$defs": {"big": big},
        },
        {"properties": dict.fromkeys(names, ADDRESS), "required": names},
        {"required": [*names[:900]], "dependentRequired": {"a": names[:900]}, "enum": [{"a": "x" * 16_000}]},
        {"anyOf": [{"properties": {f"p{number}": to_a}} for number in range(3_000)], "$defs": in_circles},
    ):
        whole = {"type": "object"} | schema
        served = serve_reduced(whole)
        assert len(written(served)) <= MAX_SERVED and served["type"] == "object"
        assert len(written(open_part(whole, "#"))) <= MAX_SERVED
