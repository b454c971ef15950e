"""What agents are told about workflows, from whatever schemas there are."""

import json
from typing import Any

import pytest

from catalogue.descriptions import Mode, describe_workflow, shorten, summarise_workflow
from catalogue.models import Source, Workflow
from catalogue.served_schemas import describe_inputs, summarise_inputs
from tests.factories import make_source, make_workflow

SCHEMA = {
    "type": "object",
    "properties": {
        "region": {"type": "string", "description": "Where.", "default": "emea"},
        "amount": {"type": "number"},
    },
    "required": ["amount"],
}


def unsaved(**fields: Any) -> Workflow:
    fields = {
        "name": "close_books",
        "tool_name": "close_books",
        "description": "Closes the books.",
        "tags": ["finance"],
        "input_schema": SCHEMA,
    } | fields
    return Workflow(source=Source(name="erp"), **fields)


def word_for(schema: Any, **definitions: Any) -> str:
    """The type that a summary gives a parameter of this schema."""
    whole = {"type": "object", "properties": {"it": schema}, "$defs": definitions}
    return summarise_inputs(whole).removeprefix("it (").removesuffix(", optional)")


def test_a_compact_entry_has_exactly_what_it_takes_to_choose():
    """D1, D2"""
    assert summarise_workflow(unsaved()) == {
        "name": "close_books",
        "description": "Closes the books.",
        "tags": ["finance"],
        "input_summary": "amount (number, required), region (string, optional)",
    }


def test_a_standard_entry_has_the_whole_description_as_it_was_written():
    """D1"""
    long = "First paragraph.\n\n" + "More words. " * 40

    standard = summarise_workflow(unsaved(description=long), Mode.STANDARD)

    assert standard["description"] == long
    assert standard.keys() == summarise_workflow(unsaved()).keys()


def test_a_detailed_entry_has_every_input_and_output_instead_of_a_summary():
    """D1"""
    outputs = {"type": "object", "properties": {"total": {"type": "number", "description": "Sum."}}}

    detailed = summarise_workflow(
        unsaved(version="2.1", author="Accounting", output_schema=outputs), Mode.DETAILED
    )

    assert detailed == {
        "name": "close_books",
        "description": "Closes the books.",
        "tags": ["finance"],
        "version": "2.1",
        "author": "Accounting",
        "inputs": {
            "amount": {"type": "number", "description": "", "required": True, "default": None},
            "region": {"type": "string", "description": "Where.", "required": False, "default": "emea"},
        },
        "outputs": {"total": {"type": "number", "description": "Sum."}},
    }


def test_a_detailed_entry_has_the_same_fields_where_nothing_is_known():
    """D1"""
    bare = summarise_workflow(unsaved(input_schema={"type": "object"}, output_schema=None), Mode.DETAILED)

    assert (bare["author"], bare["inputs"], bare["outputs"]) == (None, {}, {})


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("Short.", "Short."),
        ("x" * 150, "x" * 150),
        ("a" * 140 + " " + "b" * 20, "a" * 140 + "..."),
        ("a" * 149 + " b" + "c" * 10, "a" * 149 + "..."),
        ("a" * 150 + " b", "a" * 150 + "..."),
        ("a" * 100 + " " + "b" * 49 + " c", "a" * 100 + " " + "b" * 49 + "..."),
        ("a" * 200, "a" * 150 + "..."),
        ("One,\n\n  two\tthree", "One, two three"),
        ("word, " * 30, "word, " * 24 + "word..."),
        ("月末に帳簿を締める。" * 30, "月末に帳簿を締める。" * 15 + "..."),
        ("", ""),
    ],
)
def test_a_description_is_cut_after_a_whole_word(text, short):
    """D1"""
    assert shorten(text) == short


@pytest.mark.parametrize(
    "schema",
    [None, {}, True, {"type": "object"}, {"type": "object", "additionalProperties": True}],
)
def test_a_workflow_whose_engine_says_nothing_of_its_inputs_takes_any_object(schema):
    """A3.5, D2: which is not the same as none."""
    assert summarise_inputs(schema) == "any object"


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {}},
        {"type": "object", "properties": {}, "additionalProperties": True},
        {"type": "object", "additionalProperties": False},
    ],
)
def test_without_inputs_the_summary_says_so(schema):
    """D2"""
    assert summarise_inputs(schema) == "No inputs required"


def test_inputs_are_summarised_in_alphabetical_order():
    """D2"""
    schema = {
        "properties": {"b": {"type": "integer"}, "a": {"type": "string"}, "C": {"type": "boolean"}},
        "required": ["b"],
    }

    assert summarise_inputs(schema) == "C (boolean, optional), a (string, optional), b (integer, required)"


@pytest.mark.parametrize(
    ("schema", "word"),
    [
        ({"type": ["string", "null"]}, "string or null"),
        ({"type": ["null"]}, "null"),
        ({"type": "date"}, "any"),
        ({"type": 5}, "any"),
        ({"type": []}, "any"),
        ({}, "any"),
        (True, "any"),
        (False, "never"),
        (None, "any"),
        ("string", "any"),
        ({"enum": ["a", 1, 2]}, "string or integer"),
        ({"enum": [True, None, 1.5]}, "boolean or null or number"),
        ({"enum": []}, "any"),
        ({"const": {"a": 1}}, "object"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string or null"),
        ({"oneOf": [{"type": "integer"}, {"type": "integer"}]}, "integer"),
        ({"anyOf": [{"type": "string"}, {}]}, "any"),
        ({"anyOf": [{"type": "string"}, False]}, "string"),
        ({"anyOf": []}, "any"),
        ({"anyOf": [{"type": kind} for kind in ("string", "integer", "array", "object", "null")]}, "any"),
        ({"allOf": [{"description": "x"}, {"type": "array"}]}, "array"),
        ({"not": {"type": "string"}}, "any"),
        ({"properties": {"x": {}}}, "object"),
        ({"items": {"type": "string"}}, "array"),
        ({"minLength": 3}, "string"),
        ({"maximum": 3}, "number"),
        ({"$ref": "#/$defs/Color"}, "string"),
        ({"$ref": "#/$defs/Loop"}, "any"),
        ({"$ref": "#/$defs/Nowhere"}, "any"),
        ({"$ref": "#"}, "object"),
        ({"$ref": "other.json"}, "any"),
        ({"$ref": 3}, "any"),
        ({"$ref": "#/$defs/a~1b"}, "integer"),
    ],
)
def test_every_schema_of_a_parameter_has_a_word(schema, word):
    """D2"""
    definitions = {
        "Color": {"enum": ["red", "blue"]},
        "Loop": {"$ref": "#/$defs/Loop"},
        "a/b": {"type": "integer"},
    }

    assert word_for(schema, **definitions) == word


def test_inputs_of_composed_schemas_are_found():
    """D2: a schema generated from classes refers to its parts, or has alternatives."""
    schema = {
        "type": "object",
        "$ref": "#/$defs/Order",
        "allOf": [{"properties": {"dry_run": {"type": "boolean"}}}],
        "oneOf": [
            {"properties": {"email": {"type": "string"}}, "required": ["email", "id"]},
            {"properties": {"phone": {"type": "string"}}, "required": ["phone", "id"]},
        ],
        "$defs": {
            "Order": {
                "properties": {"id": {"type": "string"}, "parent": {"$ref": "#/$defs/Order"}},
                "allOf": [{"$ref": "#/$defs/Order"}],
            }
        },
    }

    assert summarise_inputs(schema) == (
        "dry_run (boolean, optional), email (string, optional), id (string, required), "
        "parent (object, optional), phone (string, optional)"
    )


def test_an_input_that_is_required_without_being_described_is_told():
    """D2"""
    assert summarise_inputs({"required": ["token"]}) == "token (any, required)"


def test_what_a_parameter_refers_to_describes_it_unless_it_does_so_itself():
    """D1"""
    schema = {
        "properties": {"a": {"$ref": "#/$defs/C"}, "b": {"$ref": "#/$defs/C", "description": "Own."}},
        "$defs": {"C": {"type": "string", "description": "Shared.", "default": "red"}},
    }

    told = describe_inputs(schema)

    assert [told[name]["description"] for name in "ab"] == ["Shared.", "Own."]
    assert told["b"]["default"] == "red"


def test_a_summary_stays_short_however_many_inputs_there_are():
    """D2: a schema with hundreds of parameters must not fill the context of whoever lists workflows."""
    schema = {"properties": {f"p{number:03}" + "x" * 300: {"type": "string"} for number in range(300)}}

    summary = summarise_inputs(schema)

    assert summary.endswith(", and 260 more")
    assert len(summary) < 5_000


def test_alternatives_within_alternatives_do_not_multiply():
    """D6: this one has 5 ** 30 ways to be read."""
    definitions: dict[str, Any] = {"d30": {"type": "string"}}
    for level in range(30):
        definitions[f"d{level}"] = {"anyOf": [{"$ref": f"#/$defs/d{level + 1}"}] * 5}

    assert word_for({"$ref": "#/$defs/d0"}, **definitions) == "any"
    assert summarise_inputs({"$ref": "#/$defs/d0", "$defs": definitions}) == "No inputs required"


def test_everything_about_a_workflow_is_told(db):
    """D7"""
    workflow = make_workflow(
        make_source("erp"),
        name="close_books",
        input_schema=SCHEMA,
        timeout_seconds=900,
        cache_seconds=60,
        read_only_hint=True,
        icon_override="https://example.com/books.png",
    )

    described = describe_workflow(workflow)

    assert described["input_schema"] == SCHEMA
    assert (described["timeout_seconds"], described["cache_seconds"]) == (900, 60)
    assert described["hints"] == {"readOnlyHint": True}
    assert described["icons"] == [{"src": "https://example.com/books.png"}]
    assert described["source"] == "erp"
    assert "unavailable_source" not in described
    json.dumps(described)


def test_a_workflow_without_a_timeout_of_its_own_tells_the_products(db, settings):
    """D7"""
    settings.CATALOGUE = settings.CATALOGUE | {"execution_timeout": 77}

    assert describe_workflow(make_workflow())["timeout_seconds"] == 77
