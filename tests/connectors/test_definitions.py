"""How one object of a listing becomes a definition, or a reason why not."""

from typing import Any

import pytest

from connectors.definitions import RejectedDefinition, WorkflowDefinition, parse_definition

MINIMAL = {"id": "2724", "name": "report", "description": "Builds the report."}


def parsed(**changes: Any) -> WorkflowDefinition:
    definition = parse_definition(MINIMAL | changes, position=0)
    assert isinstance(definition, WorkflowDefinition), definition
    return definition


def rejected(raw: Any) -> RejectedDefinition:
    rejection = parse_definition(raw, position=3)
    assert isinstance(rejection, RejectedDefinition), rejection
    assert rejection.position == 3
    return rejection


def test_missing_optional_fields_get_their_defaults():
    """A3.2, A3.3, A6.1: three fields are enough."""
    definition = parsed()
    assert (definition.id, definition.name, definition.description) == (
        "2724",
        "report",
        "Builds the report.",
    )
    assert (definition.category, definition.version, definition.execution_type) == (
        "workflow",
        "1.0.0",
        "async",
    )
    assert definition.input_schema is None
    assert definition.metadata == {}


def test_null_optional_fields_count_as_missing():
    """A3.3: an engine that writes null means "none"."""
    definition = parsed(category=None, version=None, executionType=None, metadata=None, tags=None)
    assert (definition.category, definition.version, definition.execution_type) == (
        "workflow",
        "1.0.0",
        "async",
    )
    assert (definition.metadata, definition.tags) == ({}, [])


def test_every_field_of_the_schema_is_read():
    """A3.1, A6.1: name, description and schema come from the definition."""
    schema = {"type": "object", "properties": {"year": {"type": "integer"}}, "required": ["year"]}
    definition = parsed(
        category="finance", version="2.1", inputSchema=schema, executionType="sync", metadata={"team": "blue"}
    )
    assert (definition.category, definition.version, definition.execution_type) == ("finance", "2.1", "sync")
    assert definition.input_schema == schema
    assert definition.metadata == {"team": "blue"}


@pytest.mark.parametrize("field", ["id", "name", "description"])
@pytest.mark.parametrize("value", ["missing", None, "", "  ", [], {}, True, "\x00"])
def test_an_object_without_a_required_field_is_rejected_naming_it(field, value):
    """A6.2: the reason says which field is at fault."""
    raw = {key: item for key, item in MINIMAL.items() if key != field or value != "missing"}
    if value != "missing":
        raw[field] = value
    if field == "description" and value in ("", "  ", "\x00"):
        assert parsed(description=value).description == "", "without words it is a workflow all the same"
    else:
        assert f"{field}: " in rejected(raw).reason


def test_all_faults_of_an_object_are_named_at_once():
    """A5.3, A6.2: one look is enough to repair a definition."""
    reason = rejected({"id": "7", "executionType": "batch"}).reason
    assert all(part in reason for part in ("name: ", "description: ", "executionType: "))


@pytest.mark.parametrize(("raw", "kind"), [(None, "NoneType"), ("x", "str"), ([], "list"), (7, "int")])
def test_what_is_no_object_is_rejected(raw, kind):
    """A6.2, B6: a stray value is skipped like any other bad object."""
    assert rejected(raw).reason == f"expected an object, got {kind}"


def test_a_rejection_still_says_which_workflow_it_was():
    """A5.3: an admin can find the object in the listing."""
    rejection = rejected({"id": 12, "name": "re\x1b[31mport"})
    assert (rejection.id, rejection.name) == ("12", "re[31mport")


def test_numbers_serve_as_ids_and_versions():
    """A6.1: engines number their workflows."""
    definition = parsed(id=2724, version=2)
    assert (definition.id, definition.version) == ("2724", "2")


def test_characters_that_no_database_takes_are_dropped():
    """B8: NUL, escapes and half surrogate pairs do not get in."""
    definition = parsed(name="re\x00po\x1brt\ud83d", description="line one\nline two\x07")
    assert (definition.name, definition.description) == ("report", "line one\nline two")


def test_an_input_schema_is_passed_on_unjudged():
    """A6.3: the catalogue decides what a schema is worth."""
    assert parsed(inputSchema="nonsense").input_schema == "nonsense"


def test_tags_author_and_output_schema_may_stand_in_the_metadata():
    """D1, A6.1: `metadata` is where an engine puts what the schema has no field for."""
    metadata = {"tags": ["a", "b"], "author": "Ada", "outputSchema": {"type": "object"}}
    definition = parsed(metadata=metadata)
    assert (definition.tags, definition.author) == (["a", "b"], "Ada")
    assert definition.output_schema == {"type": "object"}
    assert parsed(metadata=metadata, author="Grace").author == "Grace"


@pytest.mark.parametrize(
    ("field", "length"),
    [("id", 256), ("name", 256), ("description", 20_001), ("category", 101), ("version", 101)],
)
def test_fields_beyond_their_length_are_rejected(field, length):
    """B8, A5.3: nothing is cut silently."""
    assert f"{field}: " in rejected(MINIMAL | {field: "x" * length}).reason


def test_a_reason_does_not_quote_the_object():
    """E6: what an engine sent by mistake does not spread through logs."""
    assert "hunter2" not in rejected(MINIMAL | {"executionType": "hunter2", "tags": "hunter2"}).reason
