"""Hints and icons, as engines list them."""

import hashlib
import json
from typing import Any

import pytest

from catalogue.discovery import refresh_source
from catalogue.models import Source, Workflow
from tests.catalogue.engine import Engine, definition
from tests.icons import PNG

pytestmark = pytest.mark.django_db

SECURE = "https://engine.example.com/icons/report.svg"


def listed(engine: Engine, source: Source, **fields: Any) -> tuple[Workflow, list[str]]:
    """The workflow as it was taken, and what was flagged."""
    engine.workflows = [definition(1, **fields)]
    run = refresh_source(source)
    assert (run.outcome, run.skipped) == ("succeeded", [])
    return Workflow.objects.get(), [item["reason"] for item in run.flagged]


@pytest.mark.parametrize("place", ["object", "metadata"])
def test_an_engines_hints_and_icons_are_taken_from_either_place(engine, source, place):
    """A3.1, A6.1: `metadata` is where an engine puts what the schema has no field for."""
    said = {
        "annotations": {"readOnlyHint": True, "openWorldHint": False, "title": "Report", "team": "blue"},
        "icons": [{"src": SECURE, "mimeType": "image/svg+xml", "sizes": ["any"], "theme": "dark"}],
    }
    workflow, flagged = listed(engine, source, **(said if place == "object" else {"metadata": said}))
    assert (workflow.hints, workflow.icons) == (
        {"readOnlyHint": True, "openWorldHint": False},
        said["icons"],
    )
    assert flagged == []


@pytest.mark.parametrize("annotations", [None, [], "read-only", 7, {}, {"note": "x"}, {"readOnlyHint": None}])
@pytest.mark.parametrize("icons", [None, {}, "truck", 7, []])
def test_what_an_engine_calls_so_for_reasons_of_its_own_is_let_be(engine, source, annotations, icons):
    """A6.1: metadata is free."""
    workflow, flagged = listed(engine, source, metadata={"annotations": annotations, "icons": icons})
    assert (workflow.hints, workflow.icons, flagged) == ({}, [], [])


@pytest.mark.parametrize("value", ["true", 1, 0, [], {}])
def test_a_hint_that_is_no_boolean_is_left_out_and_the_admin_told(engine, source, value):
    """A5.3, A6.3: the others stay, and so does the workflow."""
    annotations = {"readOnlyHint": value, "idempotentHint": True}
    workflow, flagged = listed(engine, source, annotations=annotations)
    assert workflow.hints == {"idempotentHint": True}
    assert flagged == ["readOnlyHint is left out: it is neither true nor false."]


@pytest.mark.parametrize(
    "icon",
    [
        "https://engine.example.com/icon.png",
        {},
        {"src": None},
        {"src": 5},
        {"src": "http://engine.example.com/icon.png"},
        {"src": "javascript:alert(1)"},
        {"src": "//engine.example.com/icon.png"},
        {"src": "https://user@engine.example.com/icon.png"},
        {"src": "https://engine.example.com/" + "x" * 2_000},
        {"src": "https://engine.example.com/\u202e"},
        {"src": "data:image/svg+xml;base64,PHN2Zy8+"},
        {"src": "data:text/html;base64,PHN2Zy8+"},
        {"src": "data:image/png,abc"},
        {"src": "data:image/png;base64,abc"},
        {"src": PNG + "A" * 20_000},
    ],
)
def test_an_icon_that_clients_should_not_get_is_left_out_and_the_admin_told(engine, source, icon):
    """A5.3, B8: the others stay, and so does the workflow."""
    workflow, flagged = listed(engine, source, icons=[{"src": SECURE}, icon, {"src": PNG}])
    assert workflow.icons == [{"src": SECURE}, {"src": PNG}]
    assert len(flagged) == 1 and flagged[0].startswith("Icon 2 is left out: ")


@pytest.mark.parametrize(
    "more",
    [
        {"mimeType": "text/html"},
        {"mimeType": 5},
        {"sizes": "48x48"},
        {"sizes": ["large"]},
        {"sizes": [48]},
        {"sizes": []},
        {"theme": "pink"},
        {"theme": []},
        {"_meta": {"a": 1}},
    ],
)
def test_an_icon_keeps_only_what_mcp_knows_of_it(engine, source, more):
    """B8: one member that no client could read must not cost the tool its place in the list."""
    workflow, _ = listed(engine, source, icons=[{"src": SECURE, **more}])
    assert workflow.icons == [{"src": SECURE}]


def test_icons_are_bounded_in_number_and_in_size_together(engine, source):
    """B8: every list of tools carries them."""
    workflow, flagged = listed(engine, source, icons=[{"src": SECURE}] * 200)
    assert len(workflow.icons) == 8
    assert flagged == ["Icons beyond the first 8 are left out."]
    half = "data:image/png;base64," + "A" * 12_000
    workflow, flagged = listed(engine, source, icons=[{"src": half}, {"src": half}, {"src": PNG}])
    assert workflow.icons == [{"src": half}, {"src": PNG}]
    assert "Icon 2 is left out: it is too large" in flagged[0]


def test_everything_that_is_wrong_with_a_workflow_is_told_at_once(engine, source):
    """A5.3, A6.3"""
    _, flagged = listed(
        engine, source, inputSchema=5, annotations={"openWorldHint": "no"}, icons=[{"src": "x"}]
    )
    assert len(flagged) == 1
    assert all(part in flagged[0] for part in ("not an object but int", "openWorldHint", "Icon 1"))


def test_a_changed_hint_or_icon_is_a_change_of_the_workflow(engine, source):
    """A4.3: and what was taken away is gone."""
    said: list[dict[str, Any]] = [
        {},
        {"annotations": {"readOnlyHint": True}},
        {"annotations": {"readOnlyHint": False}},
        {"icons": [{"src": SECURE}]},
        {},
    ]
    hashes = []
    for fields in said:
        workflow, _ = listed(engine, source, **fields)
        hashes.append(workflow.content_hash)
        assert workflow.hints == fields.get("annotations", {})
        assert workflow.icons == fields.get("icons", [])
    assert len(set(hashes)) == 4 and hashes[0] == hashes[-1]


def test_workflows_without_them_keep_the_hash_that_earlier_releases_gave_them(engine, source):
    """A6.4: an update of the product does not make every workflow look changed."""
    workflow, _ = listed(engine, source, metadata={"team": "blue"}, tags=["a"])
    hashed = (
        "upstream_id", "name", "description", "category", "version", "author", "tags", "execution_type",
        "input_schema", "output_schema", "schema_problem", "metadata",
    )  # fmt: skip
    layer = {name: getattr(workflow, name) for name in hashed}
    canonical = json.dumps(layer, sort_keys=True, separators=(",", ":"))
    assert workflow.content_hash == hashlib.sha256(canonical.encode()).hexdigest()
