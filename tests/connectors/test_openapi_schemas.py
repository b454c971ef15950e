"""Schemas of OpenAPI documents as JSON Schema 2020-12."""

import time
from typing import Any

import jsonschema_rs
import pytest

from tests.connectors.openapi import body_of, request_of, the_refusal, the_tool, with_operation


def argument(schema: Any, *, openapi: str = "3.0.3", **components: Any) -> dict[str, Any]:
    """The input schema of a tool whose one argument `x` has this schema."""
    raw = with_operation(
        body_of({"type": "object", "properties": {"x": schema}}),
        method="post",
        openapi=openapi,
        components={"schemas": components},
    )
    return the_tool(raw).definition.input_schema


def accepts(schema: dict[str, Any], value: Any) -> bool:
    return jsonschema_rs.validator_for(schema).is_valid({"x": value})


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string", "nullable": True}, [None, "a"], [1]),
        ({"type": "string", "nullable": True, "enum": ["a"]}, [None, "a"], ["b"]),
        ({"$ref": "#/components/schemas/Name"}, ["a"], [None, 1]),
        ({"allOf": [{"$ref": "#/components/schemas/Name"}], "nullable": True}, [None, "a"], [1]),
        ({"type": "integer", "minimum": 1, "exclusiveMinimum": True}, [2], [1]),
        ({"type": "integer", "minimum": 1, "exclusiveMinimum": False}, [1], [0]),
        ({"type": "number", "maximum": 9, "exclusiveMaximum": True}, [8.9], [9]),
        (
            {"type": "object", "properties": {"a": {"type": "string", "required": True}}},
            [{}, {"a": "b"}],
            [1],
        ),
        ({"type": "string", "pattern": "(?=a)b"}, ["anything"], [1]),
        (
            {"type": "array", "items": {"$ref": "#/components/schemas/Tree"}},
            [[{"of": [{}]}]],
            [[{"of": [1]}]],
        ),
        ({"$ref": "#/components/schemas/Tree/properties/of"}, [[{}]], [{}]),
    ],
)
def test_a_schema_of_3_0_means_the_same_as_json_schema(schema, good, bad):
    """C1.4: nullable, exclusive bounds that are flags, references and recursion."""
    tree = {
        "type": "object",
        "properties": {"of": {"type": "array", "items": {"$ref": "#/components/schemas/Tree"}}},
    }
    made = argument(schema, Name={"type": "string"}, Tree=tree)
    assert all(accepts(made, value) for value in good), made
    assert not any(accepts(made, value) for value in bad), made


PET = {"type": "object", "required": ["kind"], "properties": {"kind": {"type": "string"}}}
DOG = {"allOf": [{"$ref": "#/components/schemas/Pet"}, {"properties": {"bark": {"type": "boolean"}}}]}
CAT = {"allOf": [{"$ref": "#/components/schemas/Pet"}, {"properties": {"lives": {"type": "integer"}}}]}
ANY_PET = [{"$ref": "#/components/schemas/Dog"}, {"$ref": "#/components/schemas/Cat"}]


@pytest.mark.parametrize(
    ("discriminator", "bad"),
    [
        ({"propertyName": "kind", "mapping": {"dog": "#/components/schemas/Dog", "cat": "Cat"}}, "horse"),
        ({"propertyName": "kind"}, 1),
    ],
    ids=["with a mapping", "without one"],
)
def test_an_object_that_a_discriminator_tells_from_others_may_look_like_them(discriminator, bad):
    """C1.4: a dog is also what the schema of a cat describes, and the API takes it by its kind."""
    made = argument({"oneOf": ANY_PET, "discriminator": discriminator}, Pet=PET, Dog=DOG, Cat=CAT)
    assert accepts(made, {"kind": "dog", "bark": True}), made
    assert accepts(made, {"kind": "cat", "lives": 9}), made
    assert not accepts(made, {"kind": bad}), made


def test_alternatives_that_name_their_own_kind_are_not_told_it_twice():
    """C1.4: documents of FastAPI have both, and agents pay for each character."""
    dog = {"type": "object", "required": ["kind"], "properties": {"kind": {"const": "dog"}}}
    said = {"propertyName": "kind", "mapping": {"dog": "#/components/schemas/Dog"}}
    made = argument({"oneOf": ANY_PET[:1], "discriminator": said}, openapi="3.1.0", Dog=dog)
    assert made["properties"]["x"] == {"anyOf": [{"$ref": "#/$defs/Dog"}]}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": ["string", "null"]}, [None, "a"], [1]),
        ({"$ref": "#/components/schemas/Name", "maxLength": 1}, ["a"], ["ab"]),
        ({"exclusiveMinimum": 1}, [2], [1]),
        ({"prefixItems": [{"type": "string"}], "items": False}, [["a"]], [["a", "b"], [1]]),
        (True, [1, None, {}], []),
        ({"$ref": "#/components/schemas/Node"}, [{"next": {}}], [{"next": 1}]),
        ({"$ref": "#/components/schemas/Old"}, [{"next": {}}], [{"next": 1}]),
    ],
)
def test_a_schema_of_3_1_is_kept(schema, good, bad):
    """C1.4: also the dynamic references of documents that mean their own schema by them."""
    node = {"$dynamicAnchor": "n", "type": "object", "properties": {"next": {"$dynamicRef": "#n"}}}
    old = {"$recursiveAnchor": True, "type": "object", "properties": {"next": {"$recursiveRef": "#"}}}
    made = argument(schema, openapi="3.1.0", Name={"type": "string"}, Node=node, Old=old)
    assert all(accepts(made, value) for value in good), made
    assert not any(accepts(made, value) for value in bad), made


@pytest.mark.parametrize(
    "pattern", ["(a(?i)b)", "(?i:a)", "(?-s)a", r"\Aa\z", r"a\\\Z", "(?P<n>a)", "(?>a)", "(?#why)a"]
)
def test_patterns_that_javascript_cannot_read_are_left_to_the_api(pattern):
    """C1.4: clients that compile them refuse the whole tool."""
    assert argument({"type": "string", "pattern": pattern})["properties"] == {"x": {"type": "string"}}


@pytest.mark.parametrize("pattern", ["(?:a)b", "(?<n>a)", r"\(?i\)", r"a\\A", "[A-Z]a", "^a$"])
def test_patterns_that_javascript_can_read_are_kept(pattern):
    """C1.4: also those that only look like another syntax."""
    assert argument({"type": "string", "pattern": pattern})["properties"]["x"]["pattern"] == pattern


def test_null_without_quotes_in_yaml_is_the_type_null():
    """C1.4: YAML reads it as null, and many documents mean the name of the type."""
    text = """
openapi: 3.1.0
info: {title: Orders API, version: "1"}
servers: [{url: https://api.example.com/v1}]
paths:
  /orders:
    post:
      operationId: op
      requestBody:
        content:
          application/json:
            schema:
              type: [object, null]
              properties:
                tags: {type: [array, null], items: {type: [string, null]}}
"""
    tags = {"type": ["array", "null"], "items": {"type": ["string", "null"]}}
    assert the_tool(text).definition.input_schema["properties"] == {"tags": tags}


def test_only_definitions_that_are_needed_come_along():
    """C1.4: under short names, references made local; what means nothing to JSON Schema is dropped."""
    used = {"type": "string", "example": "A-1", "xml": {"name": "x"}, "x-internal": 1, "format": "uuid"}
    made = argument(
        {"$ref": "#/components/schemas/a.Used", "description": "Which."}, **{"a.Used": used, "Not": {}}
    )
    assert made["properties"]["x"] == {"$ref": "#/$defs/a_Used", "description": "Which."}
    assert made["$defs"] == {"a_Used": {"type": "string", "format": "uuid", "examples": ["A-1"]}}


def test_what_a_request_never_has_is_left_out_at_every_depth():
    """C1.4: read-only fields, and that they are required."""
    inner = {"type": "object", "required": ["id", "a"], "properties": {"id": {"readOnly": True}, "a": {}}}
    made = argument(inner)
    assert made["properties"]["x"] == {"type": "object", "required": ["a"], "properties": {"a": {}}}


def test_references_that_multiply_cost_no_time():
    """C1.4: forty definitions, each naming the one before it twice."""
    bomb = {f"L{n}": {"allOf": [{"$ref": f"#/components/schemas/L{n - 1}"}] * 2} for n in range(1, 40)}
    begun = time.monotonic()
    made = argument({"$ref": "#/components/schemas/L39"}, L0={"type": "string"}, **bomb)
    assert len(made["$defs"]) == 40 and time.monotonic() - begun < 5


def test_a_schema_that_is_too_much_refuses_its_operation():
    """C1.4: told, and not made into one that takes anything."""
    wide = {"type": "object", "properties": {f"p{n}": {"type": "object"} for n in range(21_000)}}
    raw = with_operation(body_of({"type": "array", "items": wide}), method="post")
    assert "more than 20,000 parts" in the_refusal(raw).reason
    many = {
        f"S{n}": {
            "properties": {f"p{m}": {} for m in range(60)} | {"s": {"$ref": f"#/components/schemas/S{n + 1}"}}
        }
        for n in range(350)
    } | {
        "S350": {},
        "S7": {"properties": {f"p{m}": {} for m in range(200)} | {"s": {"$ref": "#/components/schemas/S8"}}},
    }
    reference = {"type": "array", "items": {"$ref": "#/components/schemas/S0"}}
    raw = with_operation(body_of(reference), method="post", components={"schemas": many})
    refused = the_refusal(raw)
    assert "including everything that it refers to" in refused.reason and "--only" in refused.reason
    assert refused.pointer == "/components/schemas/S7"


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        (5, "A schema is required here."),
        (None, "Its schema is null. To allow any value, omit the key or use {}."),
        ({"anyOf": {}}, "A list of schemas is required here."),
        ({"properties": []}, "An object with named schemas is required here."),
        ({"items": {"$ref": "http://example.com"}}, "outside the document"),
    ],
)
def test_a_schema_that_cannot_be_read_refuses_its_operation(schema, told):
    """C1.4: with the place."""
    refused = the_refusal(with_operation(body_of({"type": "array", "items": schema}), method="post"))
    assert told in refused.reason
    assert refused.pointer.startswith(
        "/paths/~1orders/post/requestBody/content/application~1json/schema/items"
    )


@pytest.mark.parametrize("types", ["array", ["array", "null"]])
def test_a_list_without_items_may_have_any(types):
    """C1.4: model APIs refuse lists that do not describe their items."""
    schema = {"type": "object", "properties": {"tags": {"type": types}}}
    tool = the_tool(with_operation(body_of(schema), method="post"))
    assert tool.definition.input_schema["properties"]["tags"] == {"type": types, "items": {}}


@pytest.mark.parametrize("wrong", ["date-time", "int", "", ["uuid", "null"], 7])
def test_a_type_that_there_is_not_is_left_to_the_api(wrong):
    """C1.4: documents often have a format there."""
    field = {"type": wrong, "description": "When."}
    raw = with_operation(body_of({"type": "object", "properties": {"at": field}}), method="post")
    assert the_tool(raw).definition.input_schema["properties"]["at"] == {"description": "When."}


def test_a_definition_that_does_not_exist_accepts_any_value():
    """C1.4: generators forget some; the rest of the body is known, and the report names the place."""
    components = {"schemas": {"Line": {"properties": {"price": {"$ref": "#/components/schemas/Money"}}}}}
    lines = {"type": "array", "items": {"$ref": "#/components/schemas/Line"}}
    body = body_of({"type": "object", "properties": {"lines": lines, "sku": {"type": "string"}}})
    tool = the_tool(with_operation(body, method="post", components=components))
    schema = tool.definition.input_schema
    assert list(schema["properties"]) == ["lines", "sku"] and schema["$defs"]["Money"] == {}
    assert tool.notes == ['"#/components/schemas/Money" does not exist; any value is accepted in its place.']
    part = {"allOf": [{"$ref": "#/components/schemas/Base"}, {"properties": {"sku": {"type": "string"}}}]}
    whole = the_tool(with_operation(body_of(part), method="post"))
    assert list(whole.definition.input_schema["properties"]) == ["body"] and len(whole.notes) == 1


@pytest.mark.parametrize(
    ("operation", "arguments"),
    [
        (body_of({"$ref": "#/nowhere"}), {"body": {"a": [1]}}),
        (body_of({"$ref": "#/nowhere"}, media_type="*/*"), {"body": [7]}),
        ({"requestBody": {"$ref": "#/nowhere"}}, {"body": {"a": 1}}),
        ({"parameters": [{"name": "a", "in": "query", "schema": {"$ref": "#/nowhere"}}]}, {"a": "x"}),
        ({"parameters": [{"$ref": "#/nowhere"}]}, {}),
    ],
)
def test_a_body_or_parameter_that_does_not_exist_leaves_a_tool_without_its_description(operation, arguments):
    """C1.4: the body is any JSON, and the report names the place."""
    tool = the_tool(with_operation(operation, method="post"))
    assert [note.partition(";")[0] for note in tool.notes] == ['"#/nowhere" does not exist']
    assert list(tool.definition.input_schema["properties"]) == list(arguments)
    assert jsonschema_rs.validator_for(tool.definition.input_schema).is_valid(arguments)
    sent = request_of(tool, arguments)
    assert (sent.body or sent.query_params) == (arguments.get("body") or arguments)


def test_a_form_that_does_not_exist_refuses_its_operation():
    """C1.4: nothing says what its fields are."""
    form = body_of({"$ref": "#/nowhere"}, media_type="application/x-www-form-urlencoded")
    assert "which does not exist" in the_refusal(with_operation(form, method="post")).reason


def test_read_only_fields_stay_if_a_body_has_no_others():
    """C1.4: the document of GOV.UK Pay marks all fields of a new payment."""
    fields = {
        "amount": {"type": "integer", "readOnly": True},
        "reference": {"type": "string", "readOnly": True},
    }
    schema = {"type": "object", "properties": fields, "required": ["amount"]}
    tool = the_tool(with_operation(body_of(schema), method="post"))
    assert list(tool.definition.input_schema["properties"]) == ["amount", "reference"]
    assert tool.definition.input_schema["required"] == ["amount"]


@pytest.mark.parametrize(
    ("schema", "default"),
    [
        ({"type": "boolean", "default": "false"}, False),
        ({"type": "boolean", "default": "True"}, True),
        ({"type": "integer", "default": "10"}, 10),
        ({"type": "integer", "default": 5.0}, 5.0),
        ({"type": ["number", "null"], "default": "1.5"}, 1.5),
        ({"type": "number", "default": 1}, 1),
        ({"type": "array", "items": {}, "default": "[]"}, []),
        ({"type": "string", "default": 10}, "10"),
        ({"type": "string", "default": False}, "false"),
        ({"type": ["string", "null"], "default": None}, None),
        ({"default": "x"}, "x"),
        ({"type": "boolean", "default": "no"}, False),
        ({"type": "boolean", "default": 0}, ...),
        ({"type": "integer", "default": True}, ...),
        ({"type": "integer", "default": "ten"}, ...),
        ({"type": "string", "default": 1.1}, ...),
        ({"type": "array", "items": {}, "default": "a"}, ...),
    ],
)  # fmt: skip
def test_a_default_of_another_type_is_converted_or_left_out(schema, default):
    """C1.4: YAML's 1.1 may have been the version 1.10."""
    body = body_of({"type": "object", "properties": {"a": schema}})
    made = the_tool(with_operation(body, method="post")).definition.input_schema["properties"]["a"]
    assert made.get("default", ...) == default and type(made.get("default", ...)) is type(default)
