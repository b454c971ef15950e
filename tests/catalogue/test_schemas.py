"""Arguments against a schema: every offending path, whatever the arguments, in bounded time."""

import json
import subprocess
import sys
from typing import Any

import pytest

from catalogue.schemas import MAX_PROBLEMS, check_input_schema, find_argument_problems

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
def test_each_offending_path_is_named(schema: dict[str, Any], arguments: Any, paths: set[str]) -> None:
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
def test_arguments_that_fit_are_let_through(schema: dict[str, Any], arguments: Any) -> None:
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
def test_each_dialect_is_understood_as_its_own(
    dialect: str, schema: dict[str, Any], wrong: Any, right: Any
) -> None:
    """A3.4, A6.1"""
    whole = {"$schema": dialect, "properties": {"a": schema}}

    assert told(whole, {"a": right}) == {}
    assert set(told(whole, {"a": wrong})) == {"/a"}


def test_formats_are_checked_where_the_dialect_says_so() -> None:
    """A3.4: since 2019-09 `format` is a remark unless somebody asks for more."""
    schema = {"properties": {"day": {"type": "string", "format": "date"}}}
    draft_7 = {"$schema": "http://json-schema.org/draft-07/schema#"} | schema

    assert set(told(draft_7, {"day": "yesterday"})) == {"/day"}
    assert told(schema, {"day": "yesterday"}) == {}


def test_at_most_fifty_problems_are_told_and_no_path_twice() -> None:
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
def test_wrong_arguments_of_any_size_are_refused_in_no_time(
    schema: dict[str, Any], arguments: Any, paths: set[str]
) -> None:
    """A2.5, B8: listing every problem of these would take minutes and all memory."""

    problems = told(schema, arguments)

    assert set(problems) == paths and all(len(message) <= 300 for message in problems.values())


@pytest.mark.parametrize("schema", [{}, {"additionalProperties": {"$ref": "#"}}], ids=["plain", "recursive"])
def test_arguments_nested_ten_thousand_deep_are_refused_and_the_process_lives(schema: dict[str, Any]) -> None:
    """A2.5, B8"""
    assert told(schema, deep(10_000)) == {"": "nested deeper than 128 levels"}


def test_half_a_character_is_refused_in_words_and_not_with_an_exception() -> None:
    """A2.5"""
    problems = told({"properties": {"a": {"pattern": "x"}}}, {"a": "\ud83d"})
    assert problems == {"": "a text contains half of a surrogate pair, which is no character"}


def test_a_hostile_schema_costs_neither_time_nor_the_process() -> None:
    """B8: in a process of its own, since the failure would be a crash or a hang of this one."""
    done = subprocess.run(
        [sys.executable, "-c", HOSTILE], capture_output=True, text=True, timeout=30, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == ["UnsafeSchema", "UnsafeSchema", "UnsafeSchema", "BrokenSchema", 0, 0]


HOSTILE = """
import json
from catalogue.schema_limits import BrokenSchema, UnsafeSchema, bounded_copy
from catalogue.schemas import find_argument_problems

def definitions(levels, body):
    return {f"d{n}": body(f"#/$defs/d{n - 1}") for n in range(1, levels)} | {"d0": {}}

def outcome(schema):
    try:
        return len(find_argument_problems(bounded_copy(schema), {"a": {}}))
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
