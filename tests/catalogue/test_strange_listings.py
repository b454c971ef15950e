"""What a careless or hostile engine can put into a listing, and what becomes of it."""

from typing import Any

import pytest

from catalogue.discovery import refresh_source
from catalogue.exposure import load_exposed_catalogue
from catalogue.models import DiscoveryRun, Source, Workflow
from catalogue.reconciliation import RECORDED_OBJECTS
from catalogue.schemas import GENERIC_SCHEMA, find_argument_problems
from tests.catalogue.engine import definition, definitions

GOOD = definition(1)
DRAFT_4 = "http://json-schema.org/draft-04/schema#"
DRAFT_2019 = "https://json-schema.org/draft/2019-09/schema"


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def referring(levels: int, times: int) -> dict[str, Any]:
    """Each definition names the one before it so many times."""
    definitions: dict[str, Any] = {"d0": {"type": "object"}}
    for level in range(1, levels):
        definitions[f"d{level}"] = {"allOf": [{"$ref": f"#/$defs/d{level - 1}"}] * times}
    return {"$defs": definitions, "$ref": f"#/$defs/d{levels - 1}"}


def within(levels: int, times: int) -> dict[str, Any]:
    """The same by its properties: no work for a validator, but for clients that write out all references."""
    definitions: dict[str, Any] = {"d0": {"type": "object"}}
    for level in range(1, levels):
        inner = {f"p{number}": {"$ref": f"#/$defs/d{level - 1}"} for number in range(times)}
        definitions[f"d{level}"] = {"properties": inner}
    return {"$defs": definitions, "$ref": f"#/$defs/d{levels - 1}"}


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (definition(2, id=None), "id: Field required"),
        (definition(2, name=None), "name: Field required"),
        (definition(2, description=None), "description: Field required"),
        (definition(2, id=""), "id: String should have at least 1 character"),
        (definition(2, id="x" * 256), "id: String should have at most 255 characters"),
        (definition(2, name="\u0000\u0007"), "name: String should have at least 1 character"),
        (definition(2, name="n" * 256), "name: String should have at most 255 characters"),
        (definition(2, description="d" * 20_001), "description: String should have at most 20000 characters"),
        (definition(2, executionType="later"), "executionType: Input should be 'sync' or 'async'"),
        (definition(2, tags=[1]), "tags.0: Input should be a valid string"),
        (definition(2, metadata=[1]), "metadata: Input should be a valid dictionary"),
        (definition(2, id=True), "id: Input should be a valid string"),
        (definition(2, inputSchema=nested(200)), "nested too deep to be read"),
        ("report", "expected an object, got str"),
        (None, "expected an object, got NoneType"),
        ([GOOD], "expected an object, got list"),
    ],
)
def test_a_bad_object_is_skipped_with_its_reason_and_stops_no_other(engine, source, bad, reason):
    """A5.3, A6.2, B6"""
    engine.workflows = [bad, GOOD]

    run = refresh_source(source)

    assert (run.outcome, run.added, run.skipped_count) == (DiscoveryRun.Outcome.SUCCEEDED, 1, 1)
    run.refresh_from_db()
    assert run.skipped[0]["position"] == 0 and reason in run.skipped[0]["reason"]
    assert Workflow.objects.get().upstream_id == "wf-1"


def test_a_workflow_without_words_is_kept_and_flagged(engine, source):
    """A5.3, A6.2: an empty description is one that a curator can write."""
    engine.workflows = [definition(2, description=" "), GOOD]
    run = refresh_source(source)
    assert (run.outcome, run.added, run.skipped_count) == (DiscoveryRun.Outcome.SUCCEEDED, 2, 0)
    run.refresh_from_db()
    assert [(one["id"], one["reason"]) for one in run.flagged] == [
        ("wf-2", "It has no description. Agents choose by descriptions, so a curator must write one.")
    ]
    assert Workflow.objects.get(upstream_id="wf-2").shown_description == ""


def test_the_source_says_how_many_objects_were_skipped(engine, source):
    """A5.3, A5.1."""
    engine.workflows = [GOOD, None, definition(2, name=None)]
    refresh_source(source)
    source.refresh_from_db()
    assert source.health_message == "Workflows listed: 1, 2 skipped."


def test_the_source_warns_of_enabled_workflows_that_are_listed_no_more(engine, source, logged):
    """A1.3, A5.1: as long as they are gone; the log names them once."""
    engine.workflows = definitions(3)
    refresh_source(source)
    Workflow.objects.update(enabled=True)
    engine.workflows = [definition(3)]
    for _ in range(2):
        refresh_source(source)
        source.refresh_from_db()
        assert source.health_message == (
            "Workflows listed: 1. Warning: 2 enabled workflows are no longer listed."
        )
    (line,) = logged
    gone = ", ".join(Workflow.objects.exclude(missing_since=None).values_list("tool_name", flat=True))
    hidden = "The engine no longer lists 2 workflows, whose tools are hidden until it does: "
    assert line.startswith(f"WARNING {hidden}{gone} ")


def test_a_skipped_object_is_logged_as_a_warning_that_cannot_forge_lines(engine, source, logged):
    """A6.2"""
    engine.workflows = [definition(2, name="x\n2026 INFO all is well", description=None)]

    refresh_source(source)

    (line,) = logged
    assert (
        "WARNING Skipped workflow 'wf-2' ('x\\n2026 INFO all is well') at position 0: description: Field"
        in line
    )
    assert line.count("\n") == 1
    logged.clear()

    refresh_source(source)

    assert logged == [], "what was said at the listing before is not said again"

    engine.workflows = [GOOD, *engine.workflows]
    refresh_source(source)

    assert not [line for line in logged if "Skipped" in line], "nor is it because it stands elsewhere now"

    engine.workflows *= 2
    refresh_source(source)

    assert [line for line in logged if "Skipped workflow 'wf-2'" in line], "a second one is news"


def test_of_two_objects_with_one_id_the_first_counts(engine, source):
    """A5.3, A6.4"""
    engine.workflows = [GOOD, definition(1, name="impostor")]

    run = refresh_source(source)

    assert (run.added, run.skipped_count) == (1, 1)
    assert run.skipped[0] == {
        "position": 1,
        "id": "wf-1",
        "name": "impostor",
        "reason": "an earlier object of this listing has the same id",
    }
    assert refresh_source(source).unchanged == 1


def test_an_object_that_was_skipped_does_not_claim_its_id(engine, source):
    """A5.3, B6: the first usable one counts."""
    engine.workflows = [definition(1, inputSchema=nested(40)), GOOD]

    run = refresh_source(source)

    assert (run.added, [skipped["position"] for skipped in run.skipped]) == (1, [0])
    assert Workflow.objects.get().input_schema == GOOD["inputSchema"]


def test_a_known_workflow_whose_definition_became_unusable_stays_as_it_was_and_is_flagged(engine, source):
    """A1.4, A5.3, A6.2: the engine lists it, so that it is not gone."""
    engine.workflows = definitions(2)
    refresh_source(source)
    engine.workflows = [definition(1), definition(2, description=None)]

    run = refresh_source(source)

    assert (run.unchanged, run.missing, run.skipped_count) == (1, 0, 1)
    assert [(one["id"], one["reason"]) for one in run.flagged] == [
        ("wf-2", "It is kept unchanged, because its object cannot be read: description: Field required")
    ]
    assert not Workflow.objects.exclude(missing_since=None).exists()


def test_more_bad_objects_than_a_record_holds_are_still_counted(engine, source):
    """A5.3"""
    engine.workflows = [{"id": str(number)} for number in range(RECORDED_OBJECTS + 5)]

    run = refresh_source(source)

    assert run.skipped_count == RECORDED_OBJECTS + 5 and len(run.skipped) == RECORDED_OBJECTS


# --- schemas --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ("text", "The input schema is not an object but str."),
        ([], "The input schema is not an object but list."),
        ({"type": "array"}, "The input schema's type is 'array' instead of \"object\"."),
        ({"type": ["object", "null"]}, "instead of"),
        ({"properties": {"a": {"$id": "x"}, "b": {"$id": "x"}, "c": {"$ref": "x"}}}, "the name 'x' twice"),
    ],
)
def test_an_invalid_schema_is_replaced_by_the_generic_one_and_flagged(engine, source, schema, problem):
    """A6.3"""
    engine.workflows = [definition(1, inputSchema=schema), definition(2)]

    run = refresh_source(source)

    assert (run.outcome, run.added, run.skipped_count) == (DiscoveryRun.Outcome.SUCCEEDED, 2, 0)
    workflow = Workflow.objects.get(upstream_id="wf-1")
    assert workflow.input_schema == GENERIC_SCHEMA and problem in workflow.schema_problem
    assert run.flagged == [{"id": "wf-1", "name": "report_1", "reason": workflow.schema_problem}]


@pytest.mark.parametrize(
    ("schema", "kept", "named"),
    [
        ({"properties": {"a": {"type": "texts"}}}, {"properties": {"a": {}}}, "/properties/a/type"),
        ({"properties": {"a": {"$ref": "#/$defs/gone"}}}, {"properties": {"a": {}}}, "#/$defs/gone"),
        ({"properties": {"a": {"$ref": "#gone"}}}, {"properties": {"a": {}}}, "#gone"),
        ({"$id": "My tool", "properties": {"a": {}}}, {"properties": {"a": {}}}, "My tool"),
        ({"properties": {"a": {"$id": "https://[x"}}}, {"properties": {"a": {}}}, "https://[x"),
        (
            {"$schema": DRAFT_4, "id": "a b", "properties": {"a": {}}},
            {"$schema": DRAFT_4, "properties": {"a": {}}},
            "a b",
        ),
        ({"required": "month"}, {}, "/required"),
        ({"properties": {"ab": {"type": 5}}}, {"properties": {"ab": {}}}, "/properties/ab/type"),
        ({"properties": []}, {}, "/properties"),
        ({"type": None, "properties": {"a": None}}, {"properties": {"a": {}}}, "/properties/a"),
    ],
)
def test_an_invalid_keyword_is_left_out_and_flagged(engine, source, schema, kept, named):
    """A6.3"""
    engine.workflows = [definition(1, inputSchema=schema), definition(2)]

    run = refresh_source(source)

    assert (run.outcome, run.added, run.skipped_count) == (DiscoveryRun.Outcome.SUCCEEDED, 2, 0)
    workflow = Workflow.objects.get(upstream_id="wf-1")
    assert (workflow.input_schema, workflow.schema_problem) == ({"type": "object"} | kept, "")
    (flagged,) = run.flagged
    assert named in flagged["reason"]


@pytest.mark.parametrize("name", ["List<Row>", "a b", "Record[str, int]", "x|y", "größe ü", '"quoted"'])
@pytest.mark.parametrize("definitions", ["$defs", "definitions"])
def test_a_reference_to_a_type_whose_name_no_uri_can_have_is_followed(engine, source, definitions, name):
    """A6.3: generators of schemas name them so."""
    member = {"$ref": f"#/{definitions}/{name}"}
    schema = {"properties": {"a": member}, definitions: {name: {"type": "integer"}}}
    engine.workflows = [definition(1, inputSchema=schema)]

    assert refresh_source(source).flagged == []

    workflow = Workflow.objects.get(upstream_id="wf-1")
    assert find_argument_problems(workflow.input_schema, {"a": 1}) == []
    assert [problem.path for problem in find_argument_problems(workflow.input_schema, {"a": "x"})] == ["/a"]


@pytest.mark.parametrize("pattern", ["(", "(?<=a", "(a{1000}){1000}", "(" * 5000 + ")" * 5000])
def test_a_pattern_that_cannot_be_used_is_left_out_and_flagged(engine, source, pattern):
    """A6.3"""
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern, "minLength": 1}}}
    engine.workflows = [definition(1, inputSchema=schema, outputSchema=schema)]

    run = refresh_source(source)

    workflow = Workflow.objects.get()
    kept = {"type": "object", "properties": {"a": {"type": "string", "minLength": 1}}}
    assert (workflow.input_schema, workflow.output_schema, workflow.schema_problem) == (kept, kept, "")
    (flagged,) = run.flagged
    assert flagged["reason"].startswith("Left out of the input schema: the pattern '(")


def test_a_schema_that_was_mended_is_used_and_flagged_no_longer(engine, source):
    """A6.3"""
    engine.workflows = [definition(1, inputSchema={"type": "array"})]
    refresh_source(source)
    engine.workflows = [GOOD]

    run = refresh_source(source)

    assert (run.updated, run.flagged) == (1, [])
    workflow = Workflow.objects.get()
    assert workflow.schema_problem == "" and workflow.input_schema == GOOD["inputSchema"]


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (
            {"properties": {"a": {"$ref": "http://169.254.169.254/x"}}},
            "'http://169.254.169.254/x', which is outside",
        ),
        ({"properties": {"a": {"$ref": "file:///etc/passwd"}}}, "outside of it"),
        ({"properties": {"default": {"$ref": "https://example.com/s"}}}, "outside of it"),
        ({"$defs": {"unused": {"$dynamicRef": "https://example.com/s#x"}}}, "outside of it"),
        ({"$schema": "https://example.com/dialect"}, "'https://example.com/dialect' is not supported"),
        ({"$schema": "http://json-schema.org/draft-03/schema#"}, "is not supported"),
        ({"$schema": 7}, "'7' is not supported"),
        (nested(40), "nested deeper than 40 or has more than 20,000 parts. Move inner schemas to $defs"),
        (nested(110), "nested deeper than 40"),
        ({"properties": {f"p{number}": {} for number in range(21_000)}}, "more than 20,000 parts"),
        ({"properties": {f"{number}" + "p" * 3000: {} for number in range(400)}}, "larger than 1,024 KiB"),
        ({"default": "x" * 1_100_000}, "larger than 1,024 KiB"),
        (
            {"$defs": {"small": {}, "large": {"properties": {f"p{number}": {} for number in range(21_000)}}}},
            "Its largest definition is 'large'",
        ),
        (referring(38, times=2), "more than 100,000 parts, references followed"),
        (within(38, times=2), "more than 100,000 parts, references followed"),
        (referring(38, times=2) | {"default": "x" * 50_000}, "more than 100,000 parts, references followed"),
        (referring(1000, times=1), "more than 100 references in a row"),
        (within(150, times=1), "more than 100 references in a row"),
    ],
)
def test_a_schema_that_could_harm_us_or_others_is_skipped_with_its_reason(engine, source, schema, reason):
    """A5.3, B8"""
    engine.workflows = [definition(1, inputSchema=schema), definition(2)]

    run = refresh_source(source)

    assert (run.added, run.skipped_count) == (1, 1)
    assert run.skipped[0]["id"] == "wf-1" and reason in run.skipped[0]["reason"]


@pytest.mark.parametrize(
    "schema",
    [
        {"$id": "https://example.com/tree", "properties": {"a": {"$ref": "https://example.com/tree"}}},
        {"properties": {"tree": {"$id": "Node", "properties": {"a": {"items": {"$ref": "Node"}}}}}},
        {"properties": {"a": {"$ref": "#"}}},
        {"properties": {"a": {"$ref": "#word"}}, "$defs": {"w": {"$anchor": "word", "type": "string"}}},
        {"properties": {"a": {"$ref": "#/$defs/a~1b%20c"}}, "$defs": {"a/b c": {"type": "string"}}},
        {"properties": {"a": {"$ref": "#/allOf/0"}}, "allOf": [{"type": "object"}]},
        {"properties": {"$ref": {"type": "string"}, "const": {"type": "string"}}},
        {"properties": {"a": {"const": {"$ref": "https://example.com"}}}},
        {"$schema": DRAFT_4, "id": "x", "properties": {"a": {"$ref": "x#"}}},
        {"$schema": DRAFT_2019, "properties": {"a": {"$recursiveRef": "#"}}},
        {"$dynamicAnchor": "n", "properties": {"a": {"$dynamicRef": "#n"}}},
        referring(10, times=2),
        nested(18),
    ],
)
def test_schemas_that_only_look_unusual_are_used_as_they_are(engine, source, schema):
    """A3.4"""
    engine.workflows = [definition(1, inputSchema=schema)]

    run = refresh_source(source)

    assert (run.added, run.skipped, run.flagged) == (1, [], [])
    assert Workflow.objects.get().input_schema == {"type": "object"} | schema


def test_annotations_that_would_put_arguments_into_headers_are_taken_out(engine, source):
    """B8: wherever they stand, but not a property or a value that is called so."""
    marked = {"type": "string", "x-mcp-header": "Authorization"}
    plain = {"type": "string"}
    engine.workflows = [
        definition(
            1,
            inputSchema={
                "type": "object",
                "x-mcp-header": "Host",
                "properties": {"a": marked, "default": marked, "enum": marked, "x-mcp-header": marked},
                "$defs": {"d": marked, "example": marked},
                "anyOf": [{"properties": {"b": marked}}],
                "default": {"x-mcp-header": "data"},
            },
        )
    ]

    refresh_source(source)

    assert Workflow.objects.get().input_schema == {
        "type": "object",
        "properties": {"a": plain, "default": plain, "enum": plain, "x-mcp-header": plain},
        "$defs": {"d": plain, "example": plain},
        "anyOf": [{"properties": {"b": plain}}],
        "default": {"x-mcp-header": "data"},
    }


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array"},
        "text",
        {"type": "object", "properties": {"a": {"$ref": "https://example.com/x"}}},
        {"type": "object", "required": 1},
        {"type": "object", "$ref": "#/nowhere"},
        nested(42),
    ],
)
def test_an_output_schema_that_cannot_be_promised_is_left_out(engine, source, schema):
    """A2.3"""
    engine.workflows = [definition(1, outputSchema=schema)]

    run = refresh_source(source)

    assert run.added == 1 and Workflow.objects.get().output_schema is None


# --- texts ----------------------------------------------------------------------------------------------


def test_texts_that_databases_and_terminals_refuse_are_cleaned_and_all_others_kept(engine, source):
    """B8"""
    engine.workflows = [
        definition(
            1,
            id="日本-1",
            name="月次\u0000\u001b[31m報告",
            description="Umlaute äöü, emoji 🚀,\nsecond line\u202e",
            tags=["Größe\u0000"],
            metadata={"key\u0000": "value\u0000", "large": 10**40, "text": "half \ud83d"},
        )
    ]

    run = refresh_source(source)

    assert run.added == 1
    workflow = Workflow.objects.get()
    assert (workflow.upstream_id, workflow.name) == ("日本-1", "月次[31m報告")
    assert workflow.description == "Umlaute äöü, emoji 🚀,\nsecond line"
    assert workflow.tags == ["Größe"]
    assert workflow.metadata == {"key\u0000": "value\u0000", "large": 10**40, "text": "half ?"}
    assert refresh_source(source).unchanged == 1


def test_names_and_ids_may_be_as_long_as_their_columns(engine, source):
    """B8"""
    engine.workflows = [definition(1, id="ä" * 255, name="日" * 255), definition(2, name="n" * 255)]

    assert refresh_source(source).added == 2
    assert refresh_source(source).unchanged == 2


def test_one_strange_workflow_leaves_the_exposed_ones_usable(engine, source):
    """B6, A3.4: what was let in can be listed and its arguments checked."""
    Source.objects.update(new_workflows=Source.NewWorkflows.EXPOSED)
    engine.workflows = [
        GOOD,
        definition(2, inputSchema=referring(38, times=2)),
        definition(3, inputSchema={"type": "object", "allOf": [{"$ref": "#"}]}),
        definition(4, name="list_workflows"),
    ]

    refresh_source(source)

    exposed = load_exposed_catalogue().workflows
    assert list(exposed) == ["report_1", "report_3"]
    # Its title is a built-in tool's name: it waits for a curator, by a name of its own.
    assert Workflow.objects.get(tool_name="list_workflows_wf-4").enabled is False
    assert find_argument_problems(exposed["report_3"].input_schema, {"any": 1}) == []
