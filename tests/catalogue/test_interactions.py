"""Queries and signals as engines declare them: what is kept, and what is left out."""

from typing import Any

from catalogue.reconciliation import MAX_INTERACTIONS, read_interactions, read_listing
from catalogue.schemas import GENERIC_SCHEMA
from connectors.definitions import Interaction, WorkflowDefinition

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}}


def declared(name: str, schema: Any = None) -> Interaction:
    return Interaction(name=name, description=f"About {name}.", input_schema=schema)


def test_what_is_declared_is_kept_with_a_schema_to_check_arguments_with():
    """E10."""
    kept, problems = read_interactions([declared("progress"), declared("note", TEXT)])
    assert kept == [
        {"name": "progress", "description": "About progress.", "inputSchema": GENERIC_SCHEMA},
        {"name": "note", "description": "About note.", "inputSchema": TEXT},
    ]
    assert problems == []


def test_a_broken_schema_costs_its_own_interaction_its_checks_and_nothing_else():
    """A3.5, B6."""
    kept, problems = read_interactions(
        [declared("note", {"type": "nonsense"}), declared("list", {"type": "array"}), declared("progress")]
    )
    assert [one["inputSchema"] for one in kept] == [{"type": "object"}, GENERIC_SCHEMA, GENERIC_SCHEMA]
    assert len(problems) == 2 and problems[0].startswith("note: ") and problems[1].startswith("list: ")


def test_a_schema_that_could_hang_us_leaves_its_interaction_out():
    """B6: and an interaction that is declared twice is taken once, of too many the first."""
    elsewhere = {"type": "object", "$ref": "https://example.com/schema.json"}
    kept, problems = read_interactions([declared("far", elsewhere), declared("near"), declared("near", TEXT)])
    assert [one["name"] for one in kept] == ["near"] and kept[0]["inputSchema"] == GENERIC_SCHEMA
    assert [problem.partition(" is left out")[0] for problem in problems] == ["far", "near"]
    kept, problems = read_interactions(declared(f"q{number}") for number in range(MAX_INTERACTIONS + 2))
    assert len(kept) == MAX_INTERACTIONS and len(problems) == 2


def test_a_listing_keeps_its_workflow_and_says_what_was_left_out():
    """A5.3."""
    workflow = WorkflowDefinition(
        id="wf-1",
        name="review",
        description="Reviews.",
        queries=[declared("progress"), declared("progress")],
        signals=[declared("approve", {"type": "nonsense"})],
    )
    listing = read_listing([workflow])
    layer = listing.layers["wf-1"]
    assert [one["name"] for one in layer["queries"] + layer["signals"]] == ["progress", "approve"]
    (flagged,) = listing.flagged
    assert "progress is left out" in flagged["reason"] and "approve: " in flagged["reason"]


def test_a_changed_query_is_a_changed_workflow():
    """A5.2: agents are told what it is now."""
    hashes = set()
    for queries in ([], [declared("progress")], [declared("progress", TEXT)]):
        workflow = WorkflowDefinition(id="wf-1", name="review", description="Reviews.", queries=queries)
        hashes.add(read_listing([workflow]).layers["wf-1"]["content_hash"])
    assert len(hashes) == 3
