"""Arguments against a schema: every offending path, whatever the arguments, in bounded time."""

import copy
import itertools
import json
from collections.abc import Callable
from typing import Any

import jsonschema_rs
import pytest

from catalogue.schema_limits import DIALECTS
from catalogue.schemas import (
    MAX_PROBLEMS,
    check_arguments,
    check_input_schema,
    find_argument_problems,
)
from catalogue.served_schemas import serve_schema
from tests.processes import run_python

TRICKY_RECURSION = {
    "type": "object",
    "properties": {"a": {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}},
}


def told(schema: dict[str, Any], arguments: Any) -> dict[str, str]:
    """The message by path, for a schema that discovery accepts."""
    checked = check_input_schema(schema)
    assert not checked.problem
    return {problem.path: problem.message for problem in find_argument_problems(checked.schema, arguments)}


def deep(levels: int, bottom: Any = None) -> Any:
    value = bottom if bottom is not None else {}
    for _ in range(levels):
        value = {"a": value}
    return value


COLOURS = [f"colour {number}" for number in range(60)]
ALL_COLOURS = ", ".join(f'"{colour}"' for colour in COLOURS)
MANY = [f"value {number:05} of many" for number in range(2_000)]


@pytest.mark.parametrize(
    ("schema", "value", "message"),
    [
        ({"enum": COLOURS}, "red", f'"red" is not one of {ALL_COLOURS}'),
        ({"enum": [",", ";", "|", "\t"]}, 1, '1 is not one of ",", ";", "|", "\\t"'),
        ({"enum": [3, None, {"a": 1}]}, "red", '"red" is not one of 3, null, {"a": 1}'),
        ({"enum": ["a"]}, "x" * 500, f'"{"x" * 199}… is not one of "a"'),
        (
            {"anyOf": [{"enum": COLOURS}, {"type": "null"}]},
            "red",
            f'"red" fits no alternative: "red" is not one of {ALL_COLOURS}; "red" is not of type "null"',
        ),
        (
            {"anyOf": [{"required": ["b"]}, {"properties": {"a": {"type": "null"}}}]},
            {"a": 1},
            """{"a": 1} fits no alternative: "b" is a required property; /a: 1 is not of type "null\"""",
        ),
    ],
    ids=["many values", "short ones", "of all types", "a long value", "or null", "inner problems"],
)
def test_a_problem_lists_all_values_that_are_allowed(schema, value, message):
    """A2.5: what a model needs to correct itself."""
    assert told({"properties": {"a": schema}}, {"a": value}) == {"/a": message}


CAT = {"properties": {"kind": {"const": "cat"}}, "required": ["kind"]}
DOG = {"properties": {"kind": {"const": "dog"}, "age": {"type": "integer"}}, "required": ["kind", "bark"]}


@pytest.mark.parametrize("word", ["anyOf", "oneOf"])
def test_what_one_kind_of_several_lacks_is_told_first(word):
    """The usual union of an engine's models, told apart by a member."""
    schema = {"properties": {"pet": {word: [CAT, DOG, {"type": "null"}]}}}
    message = told(schema, {"pet": {"kind": "dog", "age": "2"}})["/pet"]
    assert message.startswith(
        '{"age": "2", "kind": "dog"} fits no alternative: '
        '"bark" is a required property and /age: "2" is not of type "integer"; /kind: "cat" was expected; '
    )


def test_reasons_of_many_alternatives_are_bounded():
    digits = {str(number): {"enum": MANY[:500]} for number in range(10)}
    inner = {"properties": {"x": {"anyOf": [{"$ref": "#/$defs/digits"}] * 20}}}
    schema = {
        "properties": {"a": {"anyOf": [{"$ref": "#/$defs/inner"}] * 20}},
        "$defs": {"inner": inner, "digits": {"properties": digits}},
    }
    message = told(schema, {"a": {"x": dict.fromkeys("0123", 1)}})["/a"]
    assert len(message) < 40_000 and message.endswith("and 19 more")


def test_allowed_values_are_listed_as_far_as_an_answer_can_hold_them():
    message = told({"properties": {"a": {"enum": MANY}}}, {"a": "x"})["/a"]
    assert 9_000 < len(message) < 11_000
    assert message.endswith(" more, which the schema lists") and '"value 00400 of many"' in message


def test_a_reason_is_told_also_of_a_value_that_is_too_long_to_be():
    message = told({"properties": {"a": {"maxLength": 5}}}, {"a": "x" * 5_000})["/a"]
    assert message.endswith("is longer than 5 characters") and len(message) < 1_250


@pytest.mark.parametrize(
    ("schema", "arguments", "paths"),
    [
        ({"required": ["a", "b"]}, {}, {"/a", "/b"}),
        ({"properties": {"a": {"required": ["b"]}}}, {"a": {}}, {"/a/b"}),
        ({"properties": {"a": {"type": "integer"}}}, {"a": "1"}, {"/a"}),
        ({"properties": {"a": {"items": {"type": "integer"}}}}, {"a": [1, "x", None, 2]}, {"/a/1", "/a/2"}),
        ({"properties": {"a": {}}, "additionalProperties": False}, {"a": 1, "x": 2, "y": 3}, {"/x", "/y"}),
        ({"additionalProperties": False}, {"x": 2, "y": 3}, {"/x", "/y"}),
        ({"properties": {"o": {"additionalProperties": False}}}, {"o": {"x": 1}}, {"/o/x"}),
        ({"additionalProperties": {"type": "integer"}}, {"x": "a", "y": 1}, {"/x"}),
        ({"unevaluatedProperties": False, "allOf": [{"properties": {"a": {}}}]}, {"a": 1, "x": 2}, {"/x"}),
        ({"properties": {"a/b~c": {"type": "integer"}}}, {"a/b~c": ""}, {"/a~1b~0c"}),
        ({"properties": {"a": {"anyOf": [{"type": "string"}, {"type": "integer"}]}}}, {"a": []}, {"/a"}),
        ({"properties": {"a": {"oneOf": [{"type": "number"}, {"type": "integer"}]}}}, {"a": 1}, {"/a"}),
        ({"properties": {"a": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"minimum": 5}}}, {"a": 4}, {"/a"}),
        ({"properties": {"a": {"enum": ["x", "y"]}, "b": {"const": 1}}}, {"a": "z", "b": 2}, {"/a", "/b"}),
        ({"properties": {"a": {"pattern": "^[a-z]+$"}}}, {"a": "A"}, {"/a"}),
        ({"properties": {"a": {"$ref": "#"}}, "required": ["b"]}, {"a": {"a": {}}}, {"/b", "/a/b", "/a/a/b"}),
        ({}, [1], {""}),
        ({}, None, {""}),
        ({}, "text", {""}),
    ],
)
def test_each_offending_path_is_named(schema, arguments, paths):
    """A2.5, A3.4"""
    assert set(told(schema, arguments)) == paths


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        ({}, {}),
        ({}, {"anything": [1, {"x": None}]}),
        ({"properties": {"a": {"type": "number", "maximum": 10**300}}}, {"a": 10**299}),
        ({"properties": {"a": {"type": "integer"}}}, {"a": 10**4000}),
        ({"properties": {"a": {"type": "string", "minLength": 3}}}, {"a": "a\u0000b"}),
        ({"properties": {"a": {"type": "string", "maxLength": 2}}}, {"a": "🚀🚀"}),
        ({"properties": {"a": {"type": "integer"}}}, {"a": 1.0}),
        ({"properties": {"a": {"$ref": "#"}}}, deep(100)),
    ],
)
def test_arguments_that_fit_are_let_through(schema, arguments):
    """A3.4, A3.5"""
    assert told(schema, arguments) == {}


@pytest.mark.parametrize(
    ("dialect", "schema", "wrong", "right"),
    [
        ("http://json-schema.org/draft-04/schema#", {"minimum": 3, "exclusiveMinimum": True}, 3, 4),
        ("http://json-schema.org/draft-06/schema#", {"exclusiveMinimum": 3}, 3, 4),
        ("http://json-schema.org/draft-07/schema", {"if": {"minimum": 3}, "then": {"multipleOf": 2}}, 3, 4),
        ("https://json-schema.org/draft-07/schema#", {"const": 4}, 3, 4),
        ("https://json-schema.org/draft/2019-09/schema", {"exclusiveMinimum": 3}, 3, 4),
        ("https://json-schema.org/draft/2020-12/schema", {"dependentSchemas": {"x": False}}, {"x": 1}, {}),
    ],
)
def test_each_dialect_is_understood_as_its_own(dialect, schema, wrong, right):
    """A3.4, A6.1"""
    whole = {"$schema": dialect, "properties": {"a": schema}}

    assert told(whole, {"a": right}) == {}
    assert set(told(whole, {"a": wrong})) == {"/a"}


@pytest.mark.parametrize(
    "dialect", ["draft-04/schema#", "draft-06/schema#", "draft-07/schema#", "draft/2020-12/schema"]
)
def test_a_format_refuses_nothing_in_any_dialect(dialect):
    """A3.4: formats describe; engines and APIs differ in which dates, addresses and ids they take."""
    schema = {"$schema": f"http://json-schema.org/{dialect}", "properties": {"day": {"format": "date"}}}

    assert told(schema, {"day": "yesterday"}) == {}


def test_at_most_fifty_problems_are_told_and_no_path_twice():
    """A2.5"""
    many = told({"additionalProperties": {"type": "integer"}}, {f"p{number}": "x" for number in range(80)})
    assert len(many) == MAX_PROBLEMS

    problems = find_argument_problems(TRICKY_RECURSION, deep(5, bottom=1))
    assert [problem.path for problem in problems] == ["/a/a/a/a/a"]


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("schema", "arguments", "paths"),
    [
        ({"properties": {"a": {"items": {"type": "string"}}}}, {"a": list(range(200_000))}, {"/a/0", ""}),
        ({"properties": {"a": {"maxLength": 3}}}, {"a": "x" * 3_000_000}, {"/a"}),
        (TRICKY_RECURSION, deep(60, bottom=1), {""}),
        ({"properties": {"a": {"anyOf": [{"$ref": "#"}] * 3}}}, deep(40, bottom=1), {""}),
    ],
    ids=["many wrong items", "long text", "recursion", "recursion with a choice"],
)
def test_wrong_arguments_of_any_size_are_refused_in_no_time(schema, arguments, paths):
    """A2.5, B8: listing every problem of these would take minutes and all memory."""

    problems = told(schema, arguments)

    assert set(problems) == paths and all(len(message) <= 1_250 for message in problems.values())


@pytest.mark.parametrize("schema", [{}, {"additionalProperties": {"$ref": "#"}}], ids=["plain", "recursive"])
def test_arguments_nested_ten_thousand_deep_are_refused_and_the_process_lives(schema):
    """A2.5, B8"""
    assert told(schema, deep(10_000)) == {"": "nested deeper than 128 levels"}


def test_half_a_character_is_refused_in_words_and_not_with_an_exception():
    """A2.5: also where the schema says nothing of the text, so that the validator does not read it."""
    for schema in ({"properties": {"a": {"pattern": "x"}}}, {"properties": {"a": {"type": "string"}}}, {}):
        problems = told(schema, {"a": "\ud83d", "b": [{"\ud83d": 1}]})
        assert problems == {
            "/a": "contains half of a surrogate pair, which is not a character",
            "/b/0": "has a name that contains half of a surrogate pair, which is not a character",
        }


def test_a_hostile_schema_costs_neither_time_nor_the_process():
    """B8: in a process of its own, since the failure would be a crash or a hang of this one."""
    done = run_python(["-c", HOSTILE], seconds=30)

    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == ["UnsafeSchema", "UnsafeSchema", "UnsafeSchema", "BrokenSchema", 0, 0]


HOSTILE = """
import json
from catalogue.schema_limits import BrokenSchema, UnsafeSchema, read_bounded
from catalogue.schemas import find_argument_problems

def definitions(levels, body):
    return {f"d{n}": body(f"#/$defs/d{n - 1}") for n in range(1, levels)} | {"d0": {}}

def outcome(schema):
    try:
        return len(find_argument_problems(read_bounded(json.dumps(schema))[0], {"a": {}}))
    except (UnsafeSchema, BrokenSchema) as error:
        return type(error).__name__

chain = definitions(2000, lambda ref: {"$ref": ref})
double = definitions(60, lambda ref: {"anyOf": [{"$ref": ref}, {"$ref": ref}]})
decoy = {"$id": "http://x/", "$defs": double, "$ref": "#/$defs/d59"}
print(json.dumps([
    outcome({"$defs": chain, "$ref": "#/$defs/d1999"}),
    outcome({"$defs": double, "properties": {"a": {"$ref": "#/$defs/d59"}}}),
    outcome({"$defs": {"decoy": decoy, "d59": {}}, "properties": {"a": {"$ref": "http://x/"}}}),
    outcome({"$anchor": "n", "allOf": [{"$anchor": "n", "$ref": "#n"}]}),
    outcome({"allOf": [{"$ref": "#"}, {"$ref": "#"}], "not": {"not": {"$ref": "#"}}}),
    outcome({"$dynamicAnchor": "n", "properties": {"a": {"$dynamicRef": "#n"}}}),
]))
"""


EMAIL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
"""What zod writes for `z.string().email()`."""


@pytest.mark.parametrize(
    ("pattern", "right", "wrong"),
    [
        (r"^(?=.*[a-z])\w+$", "a1", "A1"),
        (EMAIL, "jane.doe@example.com", "jane..doe@example.com"),
        (r"^(?=.*\d)(?=.*[^\w\s]).{8,128}$", "pass-word1", "password1"),
        (r"^(\w+) \1$", "so so", "so what"),
        (r"^(?!-)[a-z\d-]{1,63}(?<!-)$", "a-1", "a-"),
        (r"^(?=.)\w+$", "cafe", "café"),
        (r"^(?=.)[\w\]-]+\D$", "a]-x", "a]-1"),
    ],
)
def test_patterns_with_look_arounds_and_back_references_are_checked(pattern, right, wrong):
    """A3.4: they are valid ECMA-262, and common in schemas that JavaScript writes."""
    schema = {"properties": {"a": {"type": "string", "pattern": pattern}}}

    assert told(schema, {"a": right}) == {}
    assert told(schema, {"a": wrong}) == {"/a": f'"{wrong}" does not match "{pattern}"'}


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"^(?:(?=a)a+)+$", "a" * 30 + "b"),
        (r"(?=[^b]*b)c", "a" * 1000),
        (r"(?=(?:[ab]{0,50}a){0,10}[ab]{30}c)x", "aab" * 330),
        (r"(?=[^b]*b)c", "a" * 1_000_000),
        (r"(a?){3000}a{3000}", ("a" * 2_900 + "b") * 40),
        (r"(a?){300}a{300}[0-9]{3000}", ("a" * 290 + "b") * 3),
    ],
    ids=["exponential", "quadratic", "large automata", "long text", "large and linear", "large and many"],
)
@pytest.mark.timeout(20)
def test_no_pattern_keeps_a_check_busy_however_many_texts_there_are(pattern, text):
    """B8: a hostile engine's pattern; each search alone takes milliseconds and more."""
    texts = [text] * (5 if len(text) > 100_000 else 5000)

    told({"properties": {"a": {"items": {"pattern": pattern}}}}, {"a": texts})


def test_what_was_not_searched_to_its_end_counts_as_fitting():
    """A3.4: the engine behind the workflow checks it anyway."""
    schema = {"properties": {"a": {"pattern": r"^(?:(?=a)a+)+$"}, "b": {"type": "integer"}}}

    assert told(schema, {"a": "a" * 30 + "b"}) == {} == told(schema, {"a": "b" * 5000})
    assert set(told(schema, {"a": "a" * 30 + "b", "b": "x"})) == {"/b"}


def test_a_large_pattern_is_still_checked():
    schema = check_input_schema(
        {"type": "object", "properties": {"x": {"type": "string", "pattern": r"^\p{L}{1,20}$"}}}
    ).schema
    assert not find_argument_problems(schema, {"x": "été"})
    assert find_argument_problems(schema, {"x": "1"})


def test_a_pattern_that_no_engine_knows_costs_that_pattern_and_nothing_else():
    """A6.3"""
    schema = {
        "properties": {
            "a": {"type": "string", "pattern": "(", "maxLength": 3},
            "b": {"pattern": "(?<=x"},
            "pattern": {"type": "integer"},
            "c": {"patternProperties": {"^(?!x-)": {"type": "string"}}, "additionalProperties": False},
        }
    }

    checked = check_input_schema(schema)

    assert checked.problem == ""
    assert checked.left_out == (
        "Left out of the input schema: the pattern '(', the pattern '(?<=x', the pattern '^(?!x-)'"
    )
    assert checked.schema == {
        "type": "object",
        "properties": {
            "a": {"type": "string", "maxLength": 3},
            "b": {},
            "pattern": {"type": "integer"},
            "c": {"patternProperties": {}},
        },
    }


@pytest.mark.parametrize(
    "argument",
    [
        {"type": "text"},
        {"type": ["string", "string"]},
        {"maxLength": 2.5},
        {"maxLength": 2**70},
        {"multipleOf": 0},
        {"minimum": float("nan")},
        {"enum": [float("inf")]},
        {"items": [{}]},
        {"required": ["a", "a"]},
        {"anyOf": []},
        {"title": 5},
        {"enum": ["\\ud800", "é"]},
        {"$ref": "#/$defs/nowhere"},
        {"$id": 5},
        {"patternProperties": {"^a": {"type": "text"}}},
        {"format": "nonsense", "x-more": [None]},
    ],
    ids=str,
)
def test_what_arguments_cannot_be_checked_with_is_left_out_and_named(argument):
    """A6.3: of any argument, which itself stays."""
    schema = {"type": "object", "properties": {"a": argument}}
    try:
        find_argument_problems(schema, {"a": "b"})
        is_usable = True
    except ValueError:
        is_usable = False

    checked = check_input_schema(schema)

    assert (checked.problem, checked.left_out == "") == ("", is_usable)
    assert (checked.schema == schema) == is_usable and "a" in checked.schema["properties"]


ODD: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "PHP's empty array for an object": ({"type": "object", "properties": []}, {"type": "object"}),
    "null for nothing": (
        {"type": "string", "description": None, "enum": None, "format": None, "default": None},
        {"type": "string", "default": None},
    ),
    "draft 3 and 4": (
        {"type": "number", "minimum": 0, "exclusiveMinimum": True, "required": True},
        {"type": "number", "minimum": 0},
    ),
    "types of a programming language": ({"type": "int", "title": "A"}, {"title": "A"}),
    "one type of several": ({"type": ["string", None], "maxLength": 3}, {"maxLength": 3}),
    "a number as text": ({"type": "number", "minimum": "0", "maximum": 9}, {"type": "number", "maximum": 9}),
    "an example outside of a list": ({"type": "string", "examples": "x"}, {"type": "string"}),
    "a member without a schema": (
        {"type": "object", "properties": {"in": None, "put": "text", "b": {"type": "any"}, "c": []}},
        {"type": "object", "properties": {"in": {}, "put": {}, "b": {}, "c": {}}},
    ),
    "an alternative": (
        {"anyOf": [{"type": "object", "properties": {"x": {"type": "float"}}}, {"type": "null"}]},
        {"anyOf": [{"type": "object", "properties": {"x": {}}}, {"type": "null"}]},
    ),
    "a reference that leads nowhere": ({"$ref": "#/$defs/gone", "title": "A"}, {"title": "A"}),
    "an extension": (
        {"type": "str", "x-ui": {"type": "slider"}, "nullable": True},
        {"x-ui": {"type": "slider"}, "nullable": True},
    ),
}


@pytest.mark.parametrize("dialect", [None, "http://json-schema.org/draft-07/schema#"])
@pytest.mark.parametrize(("given", "kept"), ODD.values(), ids=ODD)
def test_an_odd_keyword_costs_that_keyword_and_nothing_else(given, kept, dialect):
    stated = {} if dialect is None else {"$schema": dialect}
    schema = stated | {
        "properties": {"a": given, "other": {"type": "integer"}, "l": {"items": given}},
        "$defs": {"d": given},
        "required": None,
        "additionalProperties": None,
    }

    checked = check_input_schema(schema)

    usual = {"type": "object", "properties": {"a": kept, "other": {"type": "integer"}, "l": {"items": kept}}}
    assert checked.schema == stated | usual | {"$defs": {"d": kept}}
    assert checked.problem == "" and checked.left_out


@pytest.mark.parametrize("kind", [None, "Object", [], 5, ["object", None]])
def test_a_root_whose_type_is_none_is_an_object(kind):
    given = {"type": kind, "properties": {"a": {}}}

    assert check_input_schema(given).schema == given | {"type": "object"}


KEYWORDS = """
    $schema $id $ref $anchor $dynamicRef $dynamicAnchor $recursiveRef $vocabulary $comment $defs definitions
    type enum const default examples title description format nullable readOnly minimum maximum
    exclusiveMinimum exclusiveMaximum multipleOf minLength maxLength pattern items prefixItems
    additionalItems contains minContains minItems uniqueItems properties patternProperties
    additionalProperties unevaluatedProperties propertyNames required dependencies dependentRequired
    dependentSchemas allOf anyOf oneOf not if then contentSchema discriminator id
"""
VALUES: list[Any] = [
    *(None, True, 0, -1, 1.5, "", "#/nowhere", [], [None], {}, {"a": None}, {"a": []}),
    *({"type": "int"}, [5, {"type": "int"}], ["string", None], {"a": {"type": "int", "title": 5}}),
]
PLACES: dict[str, Callable[[Any], dict[str, Any]]] = {
    "root": lambda odd: odd,
    "argument": lambda odd: {"properties": {"a": {"type": "string"} | odd}},
    "nested": lambda odd: {"properties": {"a": {"properties": {"b": odd}}}},
    "items": lambda odd: {"properties": {"a": {"type": "array", "items": odd}}},
    "alternative": lambda odd: {"properties": {"a": {"anyOf": [odd, {"type": "null"}]}}},
    "definition": lambda odd: {"properties": {"a": {"$ref": "#/$defs/d"}}, "$defs": {"d": odd}},
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("dialect", [None, *DIALECTS[:3]])
@pytest.mark.parametrize("place", PLACES)
def test_whatever_value_a_keyword_has_anywhere_the_arguments_are_shown(place, dialect):
    for keyword, value in itertools.product(KEYWORDS.split(), VALUES):
        schema: dict[str, Any] = {"type": "object", **PLACES[place]({keyword: copy.deepcopy(value)})}
        if dialect is not None:
            schema = {"$schema": dialect} | schema
        if place != "root" or keyword != "properties":
            schema["properties"] = schema.get("properties", {}) | {"other": {"type": "integer"}}
        if place == "root" and keyword == "$schema" and value is not None:
            continue  # Another dialect, which is refused

        checked = check_input_schema(schema)
        served: dict[str, Any] = serve_schema(checked.schema)

        meant = isinstance(schema.get("properties"), dict) and set(schema["properties"])
        assert checked.problem == "" and set(served["properties"]) >= (meant or set()), schema
        assert jsonschema_rs.meta.is_valid(served), schema


def test_a_schema_is_replaced_if_nothing_of_it_can_be_used():
    """A6.3"""
    half = {"type": "object", "properties": {"a": {"default": "\ud800"}}}

    whole: list[Any] = [half, {"type": "string"}, {"type": ["string", "null"]}, [], "object"]
    for schema in whole:
        checked = check_input_schema(schema)
        assert checked.problem and checked.schema == {"type": "object", "additionalProperties": True}


@pytest.mark.timeout(20)
def test_thousands_of_patterns_are_not_all_tried():
    """B8: each takes milliseconds and memory to compile."""
    many = {f"p{number}": {"pattern": rf"(?={number})[a-z]{{0,900}}"} for number in range(2000)}

    checked = check_input_schema({"properties": many})

    assert checked.problem == "" and checked.left_out.endswith("'(?=24)[a-z]{0,900}', 1975 more")
    assert "pattern" in checked.schema["properties"]["p0"]


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "born": {"type": "integer"}},
    "required": ["name"],
}
SHAPES = {
    "anyOf": [
        {
            "properties": {"kind": {"const": "circle"}, "size": {"type": "string"}},
            "required": ["kind", "size"],
        },
        {"properties": {"kind": {"const": "square"}, "size": {"type": "integer"}}, "required": ["kind"]},
    ]
}


@pytest.mark.parametrize(
    ("schema", "arguments", "meant"),
    [
        ({"properties": {"a": {"type": "string"}}}, {"a": None}, {}),
        ({"properties": {"a": {"type": ["string", "null"]}, "b": {}}}, {"a": None, "b": None}, None),
        ({"properties": {"a": {"enum": ["x"]}, "b": {"const": 1}, "c": False}}, dict.fromkeys("abc"), {}),
        ({"properties": {"p": PERSON}}, {"p": {"name": "A", "born": None}}, {"p": {"name": "A"}}),
        ({"properties": {"p": PERSON}}, {"p": None}, {}),
        (
            {"properties": {"p": {"items": PERSON}}},
            {"p": [{"name": "A", "born": None}]},
            {"p": [{"name": "A"}]},
        ),
        ({"properties": {"a": {"$ref": "#/$defs/t"}}, "$defs": {"t": {"type": "string"}}}, {"a": None}, {}),
        ({"properties": {"a": {"anyOf": [{"type": "string"}, {"type": "integer"}]}}}, {"a": None}, {}),
        ({"allOf": [{"properties": {"a": {"type": "string"}}}]}, {"a": None}, {}),
        ({"additionalProperties": {"type": "string"}}, {"a": None}, {}),
        (
            {"properties": {"s": SHAPES}},
            {"s": {"kind": "square", "size": None}},
            {"s": {"kind": "square"}},
        ),
        (
            {"oneOf": [{"properties": {"a": {"type": "string"}}, "required": ["b"]}, {"required": ["c"]}]},
            {"a": None, "b": 1},
            {"b": 1},
        ),
        (
            {
                "properties": {
                    "a": {"type": "string"},
                    "b": {"type": "integer"},
                    "l": {"items": {"type": "integer"}},
                }
            },
            {"a": None, "b": None, "l": [1] * 60_000},
            {"l": [1] * 60_000},
        ),
    ],
)
def test_null_for_what_is_optional_counts_as_left_out_unless_null_is_allowed(schema, arguments, meant):
    """A2.5"""
    given = json.dumps(arguments)

    checked = check_arguments(check_input_schema(schema).schema, arguments)

    assert (checked.arguments, checked.problems) == (arguments if meant is None else meant, [])
    assert json.dumps(arguments) == given


@pytest.mark.parametrize(
    ("schema", "arguments", "problems"),
    [
        (
            {"properties": {"a": {"type": "string"}}, "required": ["a"]},
            {"a": None},
            {"/a": 'null is not of type "string"'},
        ),
        ({"properties": {"p": PERSON}}, {"p": {"name": None}}, {"/p/name": 'null is not of type "string"'}),
        ({"properties": {}, "additionalProperties": False}, {"x": None}, {"/x": "no such argument"}),
        (
            {"properties": {"a": {"items": {"type": "string"}}}},
            {"a": [None]},
            {"/a/0": 'null is not of type "string"'},
        ),
        (
            {"properties": {"a": {"type": "string"}, "b": {"type": "string"}}},
            {"a": None, "b": 1},
            {"/b": '1 is not of type "string"'},
        ),
    ],
)
def test_null_for_what_is_required_or_unknown_is_refused(schema, arguments, problems):
    """A2.5"""
    checked = check_arguments(check_input_schema(schema).schema, arguments)

    assert {problem.path: problem.message for problem in checked.problems} == problems


def test_null_in_arguments_that_no_validator_could_follow_does_no_harm():
    """B8"""
    schema = check_input_schema({"properties": {"s": {"type": "string"}}}).schema

    too_deep = check_arguments(schema, {"s": None, "a": deep(10_000, bottom={"n": None})})
    pattern = check_input_schema({"properties": {"s": {"type": "string"}, "a": {"pattern": "x"}}}).schema
    half = check_arguments(pattern, {"s": None, "a": "\ud83d"})

    assert [problem.message for problem in too_deep.problems] == ["nested deeper than 128 levels"]
    assert "half of a surrogate pair" in half.problems[0].message


WORDS: dict[str, Any] = {"type": "array", "items": {"type": "string"}}
READ: dict[str, tuple[Any, Any, Any]] = {  # A schema, a text and what is read
    "an object": ({"type": "object"}, '{"a": 1}', {"a": 1}),
    "an empty object": ({"type": "object"}, "{}", {}),
    "an array": (WORDS, ' ["x", "y"]\n', ["x", "y"]),
    "an array or null": ({"anyOf": [WORDS, {"type": "null"}]}, '["x"]', ["x"]),
    "one of several types": ({"type": ["object", "array", "null"]}, "[]", []),
    "a reference": ({"$ref": "#/$defs/words"}, '["x"]', ["x"]),
    "text within text": (
        {"type": "object", "properties": {"in": WORDS}},
        json.dumps({"in": json.dumps(["x"])}),
        {"in": ["x"]},
    ),
    "an array of objects": ({"items": {"type": "object"}}, ['{"a": 1}', {}], [{"a": 1}, {}]),
    "beside null for what is optional": (
        {"type": "object", "properties": {"p": WORDS, "q": {"type": "string"}}},
        '{"p": ["x"], "q": null}',
        {"p": ["x"]},
    ),
    "large": (WORDS, json.dumps(["x" * 100] * 5_000), ["x" * 100] * 5_000),
}


@pytest.mark.parametrize(("schema", "text", "read"), READ.values(), ids=READ)
def test_json_text_is_read_where_the_schema_allows_no_text(schema, text, read):
    whole = {
        "type": "object",
        "$defs": {"words": WORDS},
        "properties": {"a": schema, "b": {"properties": {"c": schema}}},
    }
    given = {"a": text, "b": {"c": text}}

    checked = check_arguments(check_input_schema(whole).schema, given)

    assert (checked.arguments, checked.problems) == ({"a": read, "b": {"c": read}}, [])
    assert given == {"a": text, "b": {"c": text}}


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({}, '{"a": 1}'),
        ({"type": "string"}, "[]"),
        ({"type": ["object", "string"]}, "{}"),
        ({"anyOf": [WORDS, {"type": "string"}]}, '["x"]'),
        ({"enum": ["[]"]}, "[]"),
        ({"items": WORDS}, "[]"),
    ],
)
def test_text_stays_text_where_the_schema_allows_it(schema, text):
    whole = {"type": "object", "properties": {"a": schema}}

    checked = check_arguments(whole, {"a": text})

    assert (checked.arguments, checked.problems) == ({"a": text}, [])


@pytest.mark.parametrize(
    ("wanted", "text", "place"),
    [
        ("object", "", "/a"),
        ("object", "{", "/a"),
        ("object", "[]", "/a"),
        ("array", "{}", "/a"),
        ("object", "null", "/a"),
        ("array", "x", "/a"),
        ("integer", "5", "/a"),  # Only what holds other values: a number is no trouble to write
        ("boolean", "true", "/a"),
        ("object", '{"x": NaN}', "/a"),
        ("object", '{"x": 1, "x": 2}', "/a"),
        ("object", '{"x": "\\ud83d"}', "/a"),
        ("object", '{"x": "\ud83d"}', "/a"),
        ("object", '{"x": ' * 120 + "1" + "}" * 120, "/a"),
        ("array", "[" * 100_000, "/a"),
    ],
)
def test_text_that_is_no_json_of_that_type_is_refused(wanted, text, place):
    checked = check_arguments({"properties": {"a": {"type": wanted}}}, {"a": text})

    assert [problem.path for problem in checked.problems] == [place]
    assert len(checked.problems[0].message) < 2_000


def test_what_is_wrong_within_json_text_is_named_there():
    schema = {"properties": {"a": {"type": "object", "properties": {"n": {"type": "integer"}}}}}

    checked = check_arguments(schema, {"a": '{"n": "one"}'})

    assert [problem.path for problem in checked.problems] == ["/a/n"]
