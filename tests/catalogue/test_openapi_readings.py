"""Schemas of OpenAPI documents that by the letter accept no value, or not those that they mean: each kind
with many values, at many places of a body."""

import random
from collections.abc import Callable
from typing import Any

import jsonschema_rs
import pytest

from catalogue.schema_limits import UnsafeSchema
from catalogue.schemas import (
    CheckedArguments,
    check_arguments,
    check_input_schema,
    find_argument_problems,
)
from connectors.formats.json_schema import JSON_TYPES
from tests.connectors.openapi import (
    body_of,
    read,
    request_of,
    the_refusal,
    the_tool,
    with_operation,
)
from tests.thoroughness import examples

Schema = dict[str, Any]
Case = tuple[Any, list[Any], list[Any]]  # A schema, values that it means, and values that it refuses
REF = "#/components/schemas/"
TEXT, WHOLE, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}


def offered(raw: Schema, **options: Any) -> Schema:
    """The input schema that calls are checked with; it can be compiled."""
    checked = check_input_schema(the_tool(raw, **options).definition.input_schema)
    assert checked.remark == ""
    return checked.schema


def fields(**properties: Any) -> Schema:
    return {"type": "object", "properties": properties}


def overlapping(some: random.Random) -> Case:
    """Alternatives that only a format tells apart, or that describe each other's values."""
    a, b = some.sample("abcdefgh", 2)
    return some.choice([
        ([TEXT | {"format": one} for one in some.sample(["date", "date-time", "uuid", "email", "ipv4"], 2)],
         ["2026-05-01", "x", ""], [1, None]),
        ([TEXT | {"format": "uuid"}, TEXT | {"pattern": f"^[{a}-z]+$"}], [a, "z", "0b8a1f0e-3c1d"], [1]),
        ([TEXT, TEXT | {"enum": [a, b]}], [a, b, "other"], [1]),
        ([WHOLE, NUMBER], [3, 3.5, -1], ["3"]),
        ([TEXT | {"maxLength": 5}, TEXT | {"minLength": 2}], ["abc", "a", "abcdefg"], [1]),
        ([fields(**{a: TEXT}), fields(**{b: WHOLE})], [{a: "x"}, {b: 1}, {a: "x", b: 1}, {}], [[], "x"]),
        ([{"type": "array", "items": TEXT}, {"type": "array", "items": NUMBER}], [[], ["x"], [1]], ["x"]),
        ([{"oneOf": [TEXT, TEXT | {"format": "uri"}]}, WHOLE], ["x", 1], [1.5, None]),
        ([{}, TEXT], ["x", 1], []),
    ])  # fmt: skip


def one_of(some: random.Random) -> Case:
    choices, good, bad = overlapping(some)
    beside = some.choice([{}, {"description": "Either."}, {"anyOf": [{}, {"type": "boolean"}]}])
    return {"oneOf": choices} | beside, good, bad


def int_or_string(some: random.Random) -> Case:
    names = [
        "int-or-string",
        "intorstring",
        "IntOrString",
        "int32-or-string",
        "string-or-int",
        "int_or_string",
    ]
    said = {"format": some.choice(names)}
    flag = {some.choice(["x-kubernetes-int-or-string", "x-int-or-string"]): True}
    types = some.choice([{}, {"type": "string"}, {"type": "integer"}, {"anyOf": [WHOLE, TEXT]}])
    return types | some.choice([said, flag, said | flag]), [8080, "http", "25%", 0], [[], 1.5, None]


def listed(some: random.Random) -> Case:
    a, b, n = *some.sample("abcdefgh", 2), some.randint(2, 99)
    return some.choice([
        ({"type": "array", "items": TEXT, "enum": [a, b]}, [[a], [a, b], []], [["other"], a]),
        ({"type": "array", "enum": [a, n]}, [[a, n], []], [[None], ["other"]]),
        ({"type": "array", "items": WHOLE, "enum": [str(n)]}, [[n], [str(n)]], [["other"]]),
        ({"type": "string", "enum": [n, n + 1]}, [str(n), n, str(n + 1)], ["other", n + 2, None]),
        ({"type": "integer", "enum": [str(n), "7"]}, [n, 7, "7"], [n + 9, "other"]),
        ({"type": "string", "enum": [1.1, 2.0, "latest"]}, ["1.1", "1.10", "2.0", "2", "latest"], ["3"]),
        ({"type": "boolean", "enum": ["true", "false"]}, [True, False, "true"], ["other", 2]),
        ({"type": "string", "enum": ["auto", True, False]}, ["auto", "true", "on", "no", False], ["other"]),
        ({"type": "boolean", "enum": [0, 1]}, [True, False, 0, 1], ["other", 2]),
        ({"type": "boolean", "enum": ["yes", "no"]}, [True, "yes", "no"], ["other"]),
        ({"type": "string", "nullable": True, "enum": [a, None]}, [a, None], ["null", "other"]),
        ({"type": "string", "enum": [a, None]}, [a, None], ["other", 1]),
        ({"type": "string", "enum": [None]}, ["null", None], ["other"]),
        ({"type": "integer", "enum": ["Low", "High"]}, ["Low", 0, 1], ["other"]),
        ({"type": "object", "enum": [a, b]}, [a, {"code": 1}], ["other"]),
        ({"type": "number", "enum": ["0.5", "1"], "nullable": True}, [0.5, 1, "1", None], [2, "other"]),
        ({"type": "string", "const": n}, [n, str(n)], ["other"]),
        ({"type": "string", "enum": []}, ["any"], [n]),
        ({"type": "string", "pattern": "^[0-9]{3}$", "enum": [a, b]}, [a, b], ["123"]),
        ({"type": "string", "minLength": 9, "enum": [a, "x"]}, [a], ["a longer one"]),
        ({"type": "integer", "enum": [n], "maximum": 1}, [n], [1]),
    ])  # fmt: skip


def exclusive_bounds(some: random.Random) -> Case:
    n = some.randint(1, 50)
    return some.choice([
        ({"type": "integer", "minimum": n, "maximum": n - 1}, [n, n - 1, 0], ["x"]),
        ({"type": "number", "minimum": n, "maximum": n, "exclusiveMaximum": True}, [n, n - 0.5], ["x"]),
        ({"type": "number", "exclusiveMinimum": n, "maximum": n}, [n, n + 1], ["x"]),
        ({"type": "string", "minLength": n + 1, "maxLength": n}, ["", "x" * n, "x" * 60], [1]),
        ({"type": "array", "items": TEXT, "minItems": n + 1, "maxItems": n}, [[], ["x"]], [[1]]),
        ({"type": "object", "minProperties": n + 1, "maxProperties": n}, [{}, {"a": 1}], [1]),
        ({"type": "string", "maxLength": 0}, [""], ["x"]),
        ({"type": "integer", "minimum": n, "maximum": n}, [n], [n + 1]),
        (fields(a=TEXT) | {"required": ["a", "naem"], "additionalProperties": False},
         [{"a": "x"}, {"a": "x", "naem": 1}], [{}, {"a": "x", "b": 1}]),
    ])  # fmt: skip


def closed(some: random.Random) -> Case:
    a, b, c = some.sample("abcdefgh", 3)
    how = some.choice(["additionalProperties", "unevaluatedProperties"])
    part = fields(**{a: TEXT}) | {"required": [a], how: False}
    other = fields(**{b: WHOLE}) | some.choice([{}, {"required": [b]}, {"additionalProperties": False}])
    both, third = {a: "x", b: 1}, {a: "x", b: 1, "z": 1}
    return some.choice([
        ({"allOf": [part, other]}, [both], [third, {b: 1}]),
        ({"allOf": [other, part]}, [both], [third]),
        (fields(**{b: WHOLE}) | {"allOf": [part]}, [both, {a: "x"}], [third]),
        (fields(**{b: WHOLE}) | {"allOf": [fields(**{a: TEXT})], "additionalProperties": False},
         [both, {}], [third]),
        ({"allOf": [{"allOf": [part, fields(**{c: TEXT})]}, other]}, [both | {c: "x"}, both], [third]),
        ({"allOf": [part, {"oneOf": [other, fields(**{c: TEXT})]}]}, [both], [third, {b: 1}]),
        (fields(**{c: TEXT}) | {"oneOf": [part, other | {"required": [b]}]}, [{a: "x", c: "y"}], [{a: 1}]),
        ({"allOf": [fields(**{a: TEXT})], "additionalProperties": False}, [{a: "x"}, {}], [both]),
        ({"allOf": [fields(**{a: TEXT}), {"additionalProperties": False}]}, [{a: "x"}], [both]),
        ({"allOf": [part, {"description": "More of it."}]}, [{a: "x"}], [both]),
        ({"allOf": [fields(**{a: TEXT}), fields(**{b: WHOLE}) | {"maxProperties": 1}]}, [both], [{b: "x"}]),
        ({"allOf": [fields(**{a: TEXT}), {"maxProperties": 1}]}, [{a: "x"}], [both]),
        ({"allOf": [part, {"required": [a]}]}, [{a: "x"}], [both, {}]),
    ])  # fmt: skip


def literal(some: random.Random) -> Case:
    inner = some.choice(["^[a-z]+$", r"^\d{4}-\d{2}$", "^(red|green)$", "[A-Z]{2,}$", "^a/b$", "^x"])
    sign, flags = some.choice([("/", ""), ("/", "i"), ("/", "gu"), ("#", ""), ("~", "iu"), ("@", "")])
    inner = inner.replace("/", "\\/")
    return TEXT | {"pattern": f"{sign}{inner}{sign}{flags}"}, ["Anna", "", "12"], [1]


def with_slashes(some: random.Random) -> Case:
    return some.choice([
        (TEXT | {"pattern": "^/a/b$"}, ["/a/b"], ["a"]),
        (TEXT | {"pattern": "/v1/.*"}, ["/v1/x"], ["x"]),
        (TEXT | {"pattern": "^/[a-z]+/$"}, ["/ab/"], ["ab"]),
        (TEXT | {"pattern": "/users/me"}, ["/users/me"], ["me"]),
        (TEXT | {"pattern": "[a-z]+/[0-9]+"}, ["ab/1"], ["ab"]),
        (TEXT | {"pattern": "^#[0-9a-f]{6}$"}, ["#00ff00"], ["00ff00"]),
        (TEXT | {"pattern": "#[0-9]+"}, ["#1"], ["1"]),
    ])  # fmt: skip


def nullable(some: random.Random) -> Case:
    word = some.choice(["nullable", "x-nullable"])
    inner = some.choice([fields(id=WHOLE), TEXT | {"enum": ["a"]}, {"type": "array", "items": TEXT}])
    good = {"object": {"id": 1}, "string": "a", "array": ["x"]}[inner["type"]]
    return some.choice([
        ({"$ref": inner, word: True}, [good, None], [True]),
        ({"$ref": inner, word: True, "description": "It."}, [good, None], [True]),
        ({"$ref": inner, word: False}, [good], [None]),
        ({"allOf": [{"$ref": inner}], word: True}, [good, None], [True]),
        ({"oneOf": [{"$ref": inner}], word: True}, [good, None], [True]),
        ({"anyOf": [{"$ref": inner}, {"type": "null"}]}, [good, None], [True]),
        ({"oneOf": [{"$ref": inner}, {"type": "null"}]}, [good, None], [True]),
        (inner | {word: True}, [good, None], [True]),
        ({"type": ["string", "null"], "enum": ["a"], word: True}, ["a", None], ["b"]),
        ({"enum": ["a"], word: True}, ["a", None], ["b"]),
    ])  # fmt: skip


def conditions(some: random.Random) -> Case:
    """A weaker schema under `not` would be a stricter one."""
    a, b = some.sample("abcdefgh", 2)
    return some.choice([
        ({"not": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}, ["x", 3], [3.5]),
        ({"type": "string", "not": {"format": "uuid"}}, ["x", ""], [1]),
        ({"type": "string", "not": {"pattern": "(?=a)"}}, ["x", "a"], [1]),
        ({"type": "string", "not": {"pattern": "/^a$/i"}}, ["x", "a"], [1]),
        ({"type": "string", "not": {"type": "string", "enum": [1]}}, ["x", "1"], [1]),
        ({"type": "string", "not": {"enum": [a]}}, [b], [a]),
        ({"not": {"$ref": {"oneOf": [TEXT, TEXT | {"format": "uri"}]}}}, ["x", 1], []),
        (fields(a=TEXT) | {"not": {"required": [a, b]}}, [{a: "x"}], [{a: "x", b: "y"}]),
        ({"if": {"format": "uuid"}, "then": WHOLE, "else": TEXT}, ["x", 1], []),
        (fields() | {"oneOf": [{"required": [a]}, {"required": [b]}]}, [{a: 1}], [{a: 1, b: 1}, {}]),
        (fields() | {"oneOf": [{"required": [a]}, {"required": [a, b]}]}, [{a: 1}, {a: 1, b: 1}], [{}]),
    ])  # fmt: skip


def repeated(some: random.Random) -> Case:
    a, b = some.sample("abcdefgh", 2)
    return some.choice([
        ({"type": "string", "enum": [a, b, a]}, [a, b], ["other"]),
        ({"enum": [1, 1.0, True, a, a]}, [1, True, a], [False, 2]),
        ({"type": ["string", "string"]}, [a], [1]),
        ({"type": ["string", "null", "string"]}, [a, None], [1]),
        (fields() | {"required": [a, a]}, [{a: 1}], [{}]),
        ({"enum": [[a], [a], {"a": 1}, {"a": 1}]}, [[a], {"a": 1}], [[b]]),
    ])  # fmt: skip


KINDS: list[Callable[[random.Random], Case]] = [
    *(one_of, int_or_string, listed, exclusive_bounds, closed, literal, with_slashes, nullable, conditions),
    repeated,
]  # fmt: skip


def referred(schema: Any, components: Schema) -> Any:
    """With an object below `$ref` as a definition."""
    if isinstance(schema, list):
        return [referred(one, components) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: referred(value, components) for key, value in schema.items()}
    if isinstance(made.get("$ref"), dict):
        components[f"D{len(components)}"] = made["$ref"]
        made["$ref"] = f"{REF}D{len(components) - 1}"
    return made


PLACES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "a field": (lambda schema: schema, lambda value: value),
    "an item": (lambda schema: {"type": "array", "items": schema}, lambda value: [value]),
    "an entry": (lambda schema: {"additionalProperties": schema}, lambda value: {"k": value}),
    "an inner field": (lambda schema: fields(inner=schema), lambda value: {"inner": value}),
    "a definition": (lambda schema: {"$ref": schema}, lambda value: value),
    "an item of a definition": (
        lambda schema: {"$ref": {"type": "array", "items": {"$ref": schema}}}, lambda value: [value],
    ),
    "a part": (lambda schema: {"allOf": [{"$ref": schema}]}, lambda value: value),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_schema_accepts_what_its_document_means(kind):
    """C1.4: in every place, the values arrive as they are, and others are still refused."""
    some = random.Random(kind.__name__)
    for _ in range(examples(150)):
        schema, good, bad = kind(some)
        place, (wrapped, given) = some.choice([*PLACES.items()])
        components: Schema = {}
        x = referred(wrapped(schema), components)
        raw = with_operation(
            body_of(fields(x=x, y=TEXT)), method="post", openapi="3.0.3", components={"schemas": components}
        )
        made = offered(raw)
        for value in good:
            arguments = {"x": given(value)}
            assert check_arguments(made, arguments) == CheckedArguments(arguments), (place, schema, made)
        for value in bad:
            assert check_arguments(made, {"x": given(value)}) != CheckedArguments({"x": given(value)}), (
                schema,
                made,
            )


NAMES = "abck"


class RandomSchemas:
    """Schemas of 3.1 with every keyword, also where they mean nothing, and values for them."""

    def __init__(self, seed: int) -> None:
        self.some = random.Random(seed)

    def value(self, depth: int = 0) -> Any:
        some = self.some
        if depth > 2 or some.random() < 0.5:
            return some.choice([None, True, False, 0, 1, 2, 1.5, -3, "a", "b", "abc", "", "1", "true"])
        if some.random() < 0.3:
            return [self.value(depth + 1) for _ in range(some.randint(0, 3))]
        return {name: self.value(depth + 1) for name in some.sample(NAMES, some.randint(0, 3))}

    def schema(self, depth: int = 0) -> Any:
        some, inner = self.some, depth + 1
        if depth > 3:
            return some.choice([{}, TEXT, True])
        number, names = some.randint(0, 3), some.sample(NAMES, some.randint(1, 2))
        several = [self.schema(inner) for _ in range(some.randint(1, 2))]
        types = [*JSON_TYPES.values(), "object", ["string", "null"], ["string", "string"]]
        all_keywords: Schema = {
            "type": some.choice(types),
            "properties": dict(zip(names, several, strict=False)),
            "enum": [self.value(2) for _ in range(3)],
            "const": self.value(2),
            "pattern": some.choice(["^a", "/^a$/", "b"]),
            "format": some.choice(["date", "uuid"]),
            "$ref": f"{REF}{some.choice('ABC')}",
            "required": names,
            "additionalProperties": some.choice([False, False, True, several[0]]),
            "patternProperties": {"^a": several[0]},
            "dependentSchemas": {"a": several[-1]},
            "discriminator": {"propertyName": "k"},
        }
        all_keywords |= dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), several)
        all_keywords |= dict.fromkeys(("items", "not", "contains", "propertyNames"), several[0])
        words = ("Length", "Items", "Properties", "imum")
        all_keywords |= {f"{bound}{word}": number for bound in ("min", "max") for word in words}
        return {key: all_keywords[key] for key in some.sample([*all_keywords], some.randint(1, 4))}


@pytest.mark.parametrize("seed", range(examples(10)))
def test_what_a_schema_accepts_by_the_letter_is_accepted(seed):
    """C1.4: no reading is stricter than the document, below `not` and in alternatives either."""
    made = RandomSchemas(seed)
    accepted = 0
    for _ in range(60):
        schemas = {name: made.schema() for name in "ABC"} | {"X": made.schema()}
        letter = jsonschema_rs.validator_for({"$ref": f"{REF}X", "components": {"schemas": schemas}})
        body = body_of({"type": "array", "items": {"$ref": f"{REF}X"}})
        found = read(with_operation(body, method="post", components={"schemas": schemas}))
        try:
            definition = found.tools[0].definition
            schema = check_input_schema(definition.input_schema).schema
        except (IndexError, UnsafeSchema):
            continue
        for value in filter(letter.is_valid, [made.value() for _ in range(20)]):
            accepted += 1
            assert find_argument_problems(schema, {"body": [value]}) == [], (schemas, value)
    assert accepted > 100


@pytest.mark.parametrize("beside", [fields(b=WHOLE), fields(b=WHOLE) | {"additionalProperties": False}])
@pytest.mark.parametrize("closing", [{}, {"additionalProperties": False}, {"unevaluatedProperties": False}])
def test_fields_beside_a_reference_belong_to_the_same_object(beside, closing):
    """C1.4: in 3.1; alone, the closed definition stays closed."""
    whole, a = {"$ref": f"{REF}A"} | beside, {"$ref": f"{REF}A"}
    schemas = {"A": fields(a=TEXT) | closing}
    made = offered(
        with_operation(body_of(fields(x=whole, y=a)), method="post", components={"schemas": schemas})
    )
    assert check_arguments(made, both := {"x": {"a": "x", "b": 1}, "y": {"a": "x"}}) == CheckedArguments(both)
    assert check_arguments(made, {"x": {"b": "x"}}).problems
    assert bool(check_arguments(made, {"y": {"b": 1}}).problems) == bool(closing)


@pytest.mark.parametrize(
    ("schema", "shown"),
    [
        ({"type": "string", "enum": ["a", "b", "a"]}, {"type": "string", "enum": ["a", "b"]}),
        ({"enum": [1, True, 1.0, "1", 1]}, {"enum": [1, True, "1"]}),
        ({"type": ["string", "string"]}, {"type": ["string"]}),
        ({"required": ["b", "a", "b"]}, {"required": ["b", "a"]}),
        ({"type": "string", "pattern": "/^a$/i"}, {"type": "string"}),
        ({"type": "array", "enum": ["a"]}, {"type": "array", "items": {"enum": ["a"]}}),
    ],
)
def test_a_schema_shows_each_value_once_and_nothing_that_contradicts_it(schema, shown):
    """C1.4: clients with draft 7 refuse a tool with duplicates, and agents follow what they read."""
    body = body_of({"type": "object", "properties": {"x": schema}})
    assert offered(with_operation(body, method="post"))["properties"]["x"] == shown


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ({"type": "string", "enum": [1]}, "are not of its type; both readings are accepted"),
        ({"type": "array", "enum": ["a"]}, "is that of its items"),
        ({"enum": []}, "is empty; any value is accepted"),
        ({"type": "string", "pattern": "~^a$~"}, "has delimiters around it and is left to the API"),
        ({"minimum": 2, "maximum": 1}, "minimum and maximum of"),
        ({"enum": ["a"], "minLength": 2}, "refuse all listed values"),
        ({"not": {"pattern": "/^a$/"}}, "is left to the API"),
        ({"$dynamicRef": "#other"}, "any value is accepted"),
        (
            {"allOf": [fields(a=TEXT) | {"additionalProperties": False}, fields(b=TEXT)]},
            "A closed or limited part of",
        ),
    ],
)
def test_the_report_names_the_place_where_a_document_is_not_followed_by_the_letter(schema, told):
    """C1.4: once, also where many tools have the same definition."""
    schemas = {"One": {"type": "object", "properties": {"x": schema}}}
    body = body_of({"type": "array", "items": {"$ref": f"{REF}One"}})
    raw = with_operation(body, method="post", components={"schemas": schemas})
    note = the_tool(raw).notes[-1]
    assert told in note and '"#/components/schemas/One/properties/x' in note


def test_notes_on_the_schemas_of_a_tool_are_bounded():
    """C1.4."""
    body = body_of({"type": "object", "properties": {f"f{n}": {"enum": []} for n in range(200)}})
    notes = the_tool(with_operation(body, method="post")).notes
    assert len(notes) == 50


SHAPE = fields(kind=TEXT, name=TEXT) | {"required": ["kind"]}


def extending(base: str, **own: Any) -> Schema:
    return {"allOf": [{"$ref": f"{REF}{base}"}, fields(**own) | {"required": [*own][:1]}]}


def shapes(discriminator: Any, **further: Any) -> Schema:
    schemas = {
        "Shape": SHAPE | {"discriminator": discriminator},
        "Circle": extending("Shape", radius=NUMBER, size=TEXT),
        "Square": extending("Shape", side=WHOLE | {"description": "In mm."}),
        "Cube": extending("Square", size=WHOLE, corner={"$ref": f"{REF}Shape"}),
    }
    return schemas | further


def with_shapes(schema: Any, schemas: Schema, **further: Any) -> Schema:
    return with_operation(body_of(schema), method="post", components={"schemas": schemas}, **further)


CUBE = {"kind": "Cube", "side": 1, "size": 2, "corner": {"kind": "Circle", "radius": 1}}


@pytest.mark.parametrize("discriminator", [{"propertyName": "kind"}, "kind"])
@pytest.mark.parametrize(
    "schema",
    [{"$ref": f"{REF}Shape"}, {"allOf": [{"$ref": f"{REF}Shape"}]}, {"$ref": f"{REF}Square"}],
    ids=["the base", "a part", "a subtype"],
)
def test_a_body_of_a_base_has_the_fields_of_its_subtypes(schema, discriminator):
    """C1.4: those that extend it by `allOf`, also indirectly; each field says whose it is."""
    made = offered(with_shapes(schema, shapes(discriminator)))
    assert check_arguments(made, CUBE) == CheckedArguments(CUBE)
    assert check_arguments(made, CUBE | {"other": 1}).problems
    assert check_arguments(made, {"side": 1}).problems
    if "Square" in str(schema):
        assert "radius" not in made["properties"]
    else:
        assert made["required"] == ["kind"]
        assert made["properties"]["side"]["description"] == "Of Square, Cube. In mm."
        assert made["properties"]["radius"] == {"description": "Of Circle.", "type": "number"}


def test_a_field_that_only_the_discriminator_names_can_be_given():
    """C1.4: it tells the subtypes apart."""
    schemas = shapes("species") | {"Shape": {"type": "object", "discriminator": "species", "properties": {}}}
    made = offered(with_shapes({"$ref": f"{REF}Shape"}, schemas))
    square = {"species": "Square", "side": 1}
    assert check_arguments(made, square) == CheckedArguments(square)
    assert made["properties"]["species"] == TEXT


@pytest.mark.parametrize("mapping", [{}, {"mapping": {"square": f"{REF}Square", "cube": "Cube"}}])
@pytest.mark.parametrize("of_base", [{}, {"additionalProperties": False}])
@pytest.mark.parametrize("place", [*PLACES])
def test_a_base_within_a_body_stands_for_its_subtypes(place, of_base, mapping):
    """C1.4: in lists and fields, with each subtype's fields described, and recursive ones."""
    wrapped, given = PLACES[place]
    schemas = shapes({"propertyName": "kind"} | mapping)
    schemas["Shape"] |= of_base
    body = referred(fields(x=wrapped({"$ref": f"{REF}Shape"})), schemas)
    made = offered(with_shapes(body, schemas))
    assert {"Circle", "Square", "Cube"} <= {*made["$defs"]}
    arguments = {"x": given(CUBE)}
    assert check_arguments(made, arguments) == CheckedArguments(arguments), made
    assert check_arguments(made, {"x": given({"name": 1})}).problems


def test_a_base_that_lists_its_subtypes_itself_is_not_repeated_in_them():
    """C1.4: by the letter each circle would be a shape, which would be a circle, and so on."""
    listed = [{"$ref": f"{REF}Circle"}, {"$ref": f"{REF}Square"}]
    schemas = shapes({"propertyName": "kind"})
    schemas["Shape"] |= {"oneOf": listed}
    made = offered(with_shapes(fields(x={"$ref": f"{REF}Shape"}), schemas))
    for good in ({"kind": "Circle", "radius": 1}, {"kind": "Square", "side": 1}):
        assert check_arguments(made, {"x": good}) == CheckedArguments({"x": good})
    assert check_arguments(made, {"x": {"radius": 1}}).problems


def test_subtypes_of_swagger_2_are_found():
    """C1.4."""
    definitions = {
        "Shape": SHAPE | {"discriminator": "kind"},
        "Circle": {"allOf": [{"$ref": "#/definitions/Shape"}, fields(radius=NUMBER)]},
    }
    schema = fields(x={"$ref": "#/definitions/Shape"})
    operation = {
        "operationId": "op",
        "parameters": [
            {"name": "b", "in": "body", "required": True, "schema": {"$ref": "#/definitions/Shape"}}
        ],
    }
    raw = {"swagger": "2.0", "host": "api.example.com", "basePath": "/v1", "definitions": definitions}
    made = offered(raw | {"paths": {"/a": {"post": operation}}})
    assert check_arguments(made, circle := {"kind": "Circle", "radius": 1}) == CheckedArguments(circle)
    operation["parameters"][0]["schema"] = {"type": "array", "items": schema}
    made = offered(raw | {"paths": {"/a": {"post": operation}}})
    assert "radius" in str(made["$defs"])


@pytest.mark.parametrize("fields_each", [1, 40])
def test_many_subtypes_are_left_out_of_a_schema_and_accepted(fields_each):
    """C1.4: a document may have thousands; their number bounds the work, and the base is open."""
    schemas = {"Shape": SHAPE | {"discriminator": "kind", "additionalProperties": False}}
    for n in range(1_500 // fields_each):
        own = {f"f{n}_{m}": TEXT for m in range(fields_each)}
        schemas[f"S{n}"] = extending("Shape", **own) | {"discriminator": "kind"}
    made = offered(with_shapes(fields(x={"$ref": f"{REF}Shape"}), schemas))
    assert check_arguments(made, {"x": {"kind": "S1", "f1_0": "a"}}).problems == []


IDS = {
    "Page": {"$id": "page", "properties": {"next": {"$ref": f"{REF}Page"}, "of": TEXT}},
    "Absolute": {"$id": "https://schemas.example.com/v1/order", "$defs": {"note": {"$anchor": "note"}}},
    "Plain": {"$anchor": "plain", "type": "string"},
}


@pytest.mark.parametrize(
    ("reference", "told"),
    [
        *(("page", "$id"), ("https://schemas.example.com/v1/order", "$id"), ("/v1/order#/$defs/note", "$id")),
        *(("#plain", "$anchor"), ("#none", "$anchor"), ("http://[", "outside the document")),
    ],
)
def test_a_reference_by_an_id_or_anchor_is_refused_with_what_to_write_instead(reference, told):
    """C1.4: nothing is fetched."""
    body = body_of({"type": "array", "items": {"$ref": reference}})
    refused = the_refusal(with_operation(body, method="post", components={"schemas": IDS}))
    assert told in refused.reason and "#/components/schemas/Page" in refused.reason


def test_a_schema_with_an_id_is_read_by_its_pointer():
    """C1.4."""
    body = body_of({"type": "array", "items": {"$ref": f"{REF}Page"}})
    made = offered(with_operation(body, method="post", components={"schemas": IDS}))
    assert check_arguments(made, {"body": [{"next": {"of": "a"}}]}).problems == []
    assert check_arguments(made, {"body": [{"next": {"of": 1}}]}).problems


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"oneOf": [TEXT, WHOLE]}, 1),
        ({"anyOf": [TEXT], "oneOf": [TEXT, {"format": "date"}]}, "x"),
        ({"type": "string", "enum": [1, 2]}, None),
        ({"type": "string", "format": "int-or-string"}, 1),
        ({"allOf": [fields(a=TEXT) | {"additionalProperties": False}, fields(b=TEXT)]}, {"a": "x", "b": "y"}),
        ({"$ref": f"{REF}Shape"}, {"kind": "Circle", "radius": 1}),
        ({"$ref": f"{REF}Shape", "nullable": True}, None),
        ({"type": ["string", "integer"]}, None),
    ],
)
def test_documented_responses_accept_the_same(schema, value):
    """C1.4: they describe, and every field may be null."""
    content = {"application/json": {"schema": fields(x=schema)}}
    operation = {"responses": {"200": {"description": "Done.", "content": content}}}
    raw = with_operation(operation, components={"schemas": shapes("kind")})
    made = the_tool(raw).definition.output_schema
    assert find_argument_problems(made, {"x": value}) == []


@pytest.mark.parametrize("where", ["query", "path", "header"])
@pytest.mark.parametrize(
    ("schema", "value", "sent"),
    [
        ({"oneOf": [TEXT | {"format": "date"}, TEXT | {"format": "date-time"}]}, "2026-05-01", "2026-05-01"),
        ({"oneOf": [WHOLE, TEXT]}, "12", "12"),
        ({"type": "string", "enum": [1.0, 1.1]}, "1.1", "1.1"),
        ({"type": "string", "format": "int-or-string"}, 80, "80"),
        ({"$ref": f"{REF}Kind", "nullable": True}, "a", "a"),
        ({"type": "string", "pattern": "/^[a-z]+$/i"}, "Anna", "Anna"),
    ],
)
def test_a_parameter_is_sent_as_its_document_means_it(where, schema, value, sent):
    """C1.4: as text."""
    parameter = {"name": "x", "in": where, "required": True, "schema": schema}
    path = "/orders/{x}" if where == "path" else "/orders"
    raw = with_operation({"parameters": [parameter]}, path=path, components={"schemas": {"Kind": TEXT}})
    assert check_arguments(offered(raw), {"x": value}) == CheckedArguments({"x": value})
    request = request_of(the_tool(raw), {"x": value})
    arrived = {
        "query": request.query_params,
        "header": request.headers,
        "path": {"x": request.url.split("/")[-1]},
    }
    assert str(arrived[where]["x"]) == sent
