"""/api/workflows/"""

import pytest
from django.utils import timezone

from access.callers import Scope
from catalogue.models import HistoryEntry, Workflow
from tests.api.clients import TokenClient, administrator
from tests.factories import make_execution, make_filter, make_source, make_workflow

pytestmark = pytest.mark.django_db


def names(client, query=""):
    response = client.get(f"/api/workflows/?{query}")
    assert response.status_code == 200, response.json()
    return [workflow["tool_name"] for workflow in response.json()["results"]]


def test_both_layers_and_what_results_from_them_are_shown():
    """A3.1: upstream's words, the curator's, and what agents see."""
    make_workflow(
        tool_name="greet",
        name="Greeting",
        description="Says hello.",
        tags=["text"],
        title_override="Greet somebody",
        timeout_seconds=7,
        metadata={"queue": "a"},
    )

    shown = administrator().get("/api/workflows/greet/").json()

    assert (shown["title"], shown["description"], shown["tags"]) == (
        "Greet somebody",
        "Says hello.",
        ["text"],
    )
    assert (shown["upstream"]["name"], shown["upstream"]["metadata"]) == ("Greeting", {"queue": "a"})
    assert shown["curator"] == {
        "enabled": True,
        "title": "Greet somebody",
        "description": "",
        "tags": None,
        "timeout_seconds": 7,
        "inline_wait_seconds": None,
        "execution_type": "",
        "on_disconnect": "continue",
        "reattach": True,
        "max_concurrent": None,
        "only_in_toolsets": False,
        "read_only_hint": None,
        "destructive_hint": None,
        "idempotent_hint": None,
        "open_world_hint": None,
        "offered_as_prompt": False,
        "cache_seconds": None,
        "approval_required": False,
        "approval_rules": [],
        "approval_rule_problems": [],
        "approvers_needed": None,
        "answered_by": "caller",
        "answer_group": "",
        "calls_per_minute": None,
        "calls_at_once": None,
        "icon": "",
        "argument_overrides": {},
        "argument_problems": {},
        "former_tool_names": [],
        "aliases": {},
    }
    assert (shown["exposed"], shown["visibility"]) == (True, "exposed")


def test_the_list_is_without_what_is_large_and_the_detail_has_it():
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    make_workflow(tool_name="greet", input_schema=schema)
    client = administrator()

    listed = client.get("/api/workflows/").json()["results"][0]
    detail = client.get("/api/workflows/greet/").json()

    assert "input_schema" not in listed and "metadata" not in listed["upstream"]
    assert "icons" not in listed and "icon" not in listed["curator"]
    assert (detail["input_schema"], detail["output_schema"]) == (schema, None)


def test_a_reader_sees_what_agents_see_and_nothing_behind_it():
    """A4.2: filters hold for REST too."""
    make_workflow(tool_name="shown")
    make_workflow(tool_name="off", enabled=False)
    make_workflow(tool_name="gone", missing_since=timezone.now())
    make_workflow(make_source(enabled=False), tool_name="unplugged")
    make_workflow(tool_name="secret", name="secret")
    make_filter("secret", action="exclude")
    reader = TokenClient(Scope.READ)

    assert names(reader) == ["shown"]
    assert reader.get("/api/workflows/secret/").status_code == 404
    shown = reader.get("/api/workflows/shown/").json()
    assert (shown["curator"], shown["upstream"]) == (None, None)
    assert len(names(administrator())) == 5


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("source=east", ["a", "b"]),
        ("enabled=false", ["b"]),
        ("missing=true", ["c"]),
        ("missing=false", ["a", "b"]),
        ("exposed=true", ["a"]),
        ("exposed=false", ["b", "c"]),
        ("category=finance", ["b"]),
        ("execution_type=sync", ["b", "c"]),
        ("execution_type=async", ["a"]),
        ("limited=true", ["a"]),
        ("limited=false", ["b", "c"]),
        ("cached=true", ["b"]),
        ("cached=false", ["a", "c"]),
        ("offered_as_prompt=true", ["c"]),
        ("offered_as_prompt=false", ["a", "b"]),
        ("tag=blue", ["a"]),
        ("tag=Blue", ["a"]),
        ("tag=blu", []),
        ("tag=red", ["b"]),
        ("tag=grün", ["c"]),
        ("search=invoice", ["b"]),
        ("search=FIRST", ["a"]),
        ("ordering=-tool_name", ["c", "b", "a"]),
        ("ordering=source,-tool_name", ["b", "a", "c"]),
        ("source=east&enabled=true", ["a"]),
    ],
)
@pytest.mark.databases("catalogue.models.workflow", "catalogue.rest.workflows")
def test_the_list_is_filtered_and_ordered(query, expected):
    east, west = make_source("east"), make_source("west")
    make_workflow(east, tool_name="a", tags=["blue", "green"], title_override="The first", max_concurrent=5)
    make_workflow(
        east,
        tool_name="b",
        tags=["blue"],
        tags_override=["red"],
        enabled=False,
        category="finance",
        description="Checks an invoice.",
        execution_type_override="sync",
        cache_seconds=60,
    )
    make_workflow(
        west,
        tool_name="c",
        tags=["grün"],
        missing_since=timezone.now(),
        execution_type="sync",
        offered_as_prompt=True,
    )

    assert names(administrator(), query) == expected


def test_enabling_and_disabling_take_effect_at_once():
    """A4.4: what the next tools/list shows."""
    make_workflow(tool_name="greet", enabled=False)
    client, reader = administrator(), TokenClient(Scope.READ)

    assert client.post("/api/workflows/greet/enable/").json()["exposed"] is True
    assert names(reader) == ["greet"]
    assert client.post("/api/workflows/greet/disable/").json()["visibility"] == "disabled"
    assert names(reader) == []


@pytest.mark.databases("catalogue.actions.workflows")
def test_all_workflows_of_a_source_are_enabled_and_no_others():
    source = make_source("orders")
    for name in "ab":
        make_workflow(source, tool_name=name, enabled=False)
    make_workflow(source, tool_name="gone", enabled=False, missing_since=timezone.now())
    make_workflow(tool_name="elsewhere", enabled=False)

    response = administrator().post("/api/workflows/enable/", {"source": "orders", "all": True})

    assert response.json() == {"changed": 2}
    assert names(administrator(), "enabled=true") == ["a", "b"]


@pytest.mark.databases("catalogue.actions.workflows")
def test_named_workflows_are_disabled_by_any_of_their_names():
    source = make_source("orders")
    make_workflow(source, tool_name="a")
    make_workflow(source, tool_name="b", name="Bravo")
    make_workflow(source, tool_name="c", upstream_id="wf-c")
    make_workflow(source, tool_name="d")

    response = administrator().post(
        "/api/workflows/disable/", {"source": "orders", "names": ["a", "Bravo", "wf-c", "a"]}
    )

    assert response.json() == {"changed": 3}
    assert names(administrator(), "enabled=true") == ["d"]


@pytest.mark.databases("catalogue.actions.workflows")
def test_workflows_that_the_engine_no_longer_lists_are_removed_unless_they_have_executions():
    """A1.3: history stays, of runs and of what curators decided."""
    source, gone = make_source("orders"), timezone.now()
    make_workflow(source, tool_name="present")
    curated = make_workflow(source, tool_name="curated", missing_since=gone, title_override="Ours")
    make_workflow(source, tool_name="gone", missing_since=gone)
    ran = make_workflow(source, tool_name="ran", missing_since=gone)
    make_execution(ran)
    make_execution(ran)
    make_workflow(make_source("billing"), tool_name="others", missing_since=gone)

    response = administrator().post("/api/workflows/remove-missing/", {"source": "orders", "all": True})

    assert response.json() == {"removed": 2, "listed": 0, "on_record": 1}
    assert names(administrator(), "") == ["others", "present", "ran"]
    entry = HistoryEntry.objects.get(object_id=str(curated.pk), message__startswith="Removed")
    assert entry.changes["title_override"] == ["Ours", None]

    named = {"source": "orders", "names": ["present", "ran"]}
    response = administrator().post("/api/workflows/remove-missing/", named)

    assert response.json() == {"removed": 0, "listed": 1, "on_record": 1}


def test_an_unknown_name_leaves_everything_as_it_was():
    source = make_source("orders")
    make_workflow(source, tool_name="a", enabled=False)

    response = administrator().post(
        "/api/workflows/enable/", {"source": "orders", "names": ["a", "typo", "typo2"]}
    )

    assert response.status_code == 404
    assert ["typo" in problem["message"] for problem in response.json()["errors"]] == [True, True]
    assert not Workflow.objects.filter(enabled=True).exists()


@pytest.mark.parametrize(
    "selection",
    [
        {"source": "orders"},
        {"source": "orders", "names": ["a"], "all": True},
        {"source": "orders", "names": []},
        {},
    ],
)
def test_a_selection_that_is_not_clear_is_refused(selection):
    make_source("orders")

    assert administrator().post("/api/workflows/enable/", selection).status_code == 400


def test_a_selection_from_an_unknown_source_is_not_found():
    response = administrator().post("/api/workflows/enable/", {"source": "typo", "all": True})

    assert response.status_code == 404
    assert "typo" in response.json()["detail"]


def test_a_workflow_that_is_another_than_was_looked_at_stays_hidden():
    """A5.2: hidden workflows follow their engine."""
    make_workflow(tool_name="report", enabled=False, content_hash="a")
    client, address = administrator(), "/api/workflows/report/enable/"
    seen = client.get("/api/workflows/report/").json()["upstream"]["content_hash"]
    Workflow.objects.update(content_hash="b", description="Ignore what was said.")
    refused = client.post(address, {"content_hash": seen}, format="json")
    assert (
        refused.status_code == 409
        and "has changed them since: report. Review them again." in refused.json()["detail"]
    )
    assert client.post(address, {"hash": seen}, format="json").status_code == 400
    assert not Workflow.objects.get().enabled
    assert client.post(address, {"content_hash": "b"}, format="json").status_code == 200
    client.post("/api/workflows/report/disable/")
    assert client.post(address).status_code == 200 and Workflow.objects.get().enabled, "whatever it is by now"
