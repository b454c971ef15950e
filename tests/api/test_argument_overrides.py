"""Arguments that a curator changes: described in our words, fixed and hidden, or given a default."""

import json
from typing import Any

import pytest

from catalogue.argument_overrides import offer_schema, settle_arguments
from catalogue.exposure import forget_catalogue
from catalogue.models import Revision, Source, Workflow
from catalogue.reconciliation import read_listing, reconcile
from connectors.definitions import WorkflowDefinition
from executions.models import Execution
from tests.api.clients import TokenClient, administrator, agent, problem_paths
from tests.factories import make_discovery_run, make_workflow

pytestmark = pytest.mark.django_db

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "The engine's words."},
        "tenant": {"type": "string", "enum": ["acme", "globex"]},
        "days": {"type": "integer", "minimum": 1},
    },
    "required": ["city", "tenant", "days"],
    "additionalProperties": False,
}


@pytest.fixture
def workflow() -> Workflow:
    return make_workflow(tool_name="forecast", input_schema=SCHEMA)


def change(overrides: dict[str, Any]) -> Any:
    response = administrator().patch("/api/workflows/forecast/", {"argument_overrides": overrides})
    forget_catalogue()
    return response


def call(arguments: dict[str, Any], *, client: TokenClient | None = None, key: str = "") -> Any:
    asked = {"tool": "forecast", "arguments": arguments, "wait_seconds": 0}
    headers = {"Idempotency-Key": key} if key else {}
    return (client or agent()).post("/api/executions/", asked, headers=headers)


def test_a_hidden_argument_is_seen_nowhere_and_sent_with_each_call(workflow):
    """Issue 13, 5: one that a caller sends all the same is refused in plain words."""
    before = Revision.current()
    changed = change(
        {
            "city": {"description": "Our words."},
            "tenant": {"constant": "acme"},
            "days": {"default": 3},
        }
    )
    assert changed.status_code == 200, changed.json()
    assert Revision.current() > before
    shown = agent().get("/api/workflows/forecast/").json()["input_schema"]
    assert shown["properties"] == {
        "city": {"type": "string", "description": "Our words."},
        "days": {"type": "integer", "minimum": 1, "default": 3},
    }
    assert shown["required"] == ["city"]

    execution = Execution.objects.get(pk=call({"city": "Rome"}).json()["id"])
    assert execution.payload.input == {"city": "Rome", "tenant": "acme", "days": 3}
    refused = call({"city": "Rome", "tenant": "globex"})
    assert refused.status_code == 400
    assert "/tenant: is set by the catalogue; leave it out" in refused.json()["detail"]
    assert problem_paths(call({"days": 0})) == ["/arguments/days", "/arguments/city"]


def test_null_for_an_argument_with_a_default_counts_as_left_out(workflow):
    """A2.5: many clients write null for what they leave out."""
    change({"tenant": {"constant": "acme"}, "days": {"default": 3}})
    execution = Execution.objects.get(pk=call({"city": "Rome", "days": None}).json()["id"])
    assert execution.payload.input["days"] == 3


def test_a_value_is_checked_when_it_is_set(workflow):
    refused = change({"tenant": {"constant": "initech"}, "days": {"default": 0}, "colour": {"constant": 1}})
    assert refused.status_code == 400
    told = json.dumps(refused.json())
    assert "tenant" in told and "not one of" in told
    assert "days: 0 is less than the minimum of 1" in told
    assert "colour: The engine's schema has no such argument." in told
    workflow.refresh_from_db()
    assert workflow.argument_overrides == {}
    assert change({"tenant": {"constant": "acme", "default": "acme"}}).status_code == 400
    assert change({"tenant": {"colour": 1}}).status_code == 400
    assert change({"tenant": {}}).status_code == 400


def test_a_value_that_no_longer_fits_is_told_and_calls_are_refused(workflow):
    """A4.3: the engine changes its schema under a value that a curator has set."""
    change({"tenant": {"constant": "acme"}})
    Source.objects.update(change_policy=Source.ChangePolicy.FOLLOW)
    workflow.source.refresh_from_db()
    changed = SCHEMA | {"properties": SCHEMA["properties"] | {"tenant": {"type": "integer"}}}
    definition = WorkflowDefinition(
        id=workflow.upstream_id, name=workflow.name, description="Changed.", input_schema=changed
    )
    run = make_discovery_run(workflow.source)
    reconcile(workflow.source, read_listing([definition]), run)
    run.save()
    (flagged,) = administrator().get(f"/api/discovery-runs/{run.pk}/").json()["flagged"]
    assert (flagged["id"], flagged["name"]) == (workflow.upstream_id, workflow.name)
    assert "do not fit the engine's new schema. tenant:" in flagged["reason"]
    forget_catalogue()
    refused = call({"city": "Rome", "days": 1})
    assert refused.status_code == 400
    assert "no longer fits the engine's schema" in refused.json()["detail"]
    curator = administrator().get("/api/workflows/forecast/").json()["curator"]
    assert list(curator["argument_problems"]) == ["tenant"]
    assert administrator().patch("/api/workflows/forecast/", {"title": "Still changed"}).status_code == 200


def test_a_key_stands_for_the_arguments_that_the_engine_got(workflow):
    """B2: the same request with the same key is another one once a curator has set another value."""
    change({"tenant": {"constant": "acme"}})
    client = agent()
    first = call({"city": "Rome", "days": 1}, client=client, key="k1")
    again = call({"days": 1, "city": "Rome"}, client=client, key="k1")
    assert first.json()["id"] == again.json()["id"]
    change({"tenant": {"constant": "globex"}})
    assert call({"city": "Rome", "days": 1}, client=client, key="k1").status_code == 409


def test_hiding_keeps_what_the_schema_says_of_the_others():
    """Alternatives, conditions and dependencies are those that hold for the fixed value."""
    schema = {
        "type": "object",
        "properties": {"kind": {"enum": ["file", "text"]}, "path": {}, "text": {}, "size": {}},
        "required": ["kind"],
        "dependentRequired": {"kind": ["size"]},
        "oneOf": [
            {"properties": {"kind": {"const": "file"}}, "required": ["path"]},
            {"properties": {"kind": {"const": "text"}}, "required": ["text"]},
        ],
        "if": {"properties": {"kind": {"const": "text"}}},
        "then": {"properties": {"size": {"maximum": 9}}},
        "minProperties": 3,
    }
    fixed = {"kind": {"constant": "text"}}
    offered = offer_schema(schema, fixed)
    assert "kind" not in json.dumps(offered)
    assert schema["required"] == ["kind"]
    good = {"text": "a", "size": 1}
    assert settle_arguments(schema, fixed, good).arguments == good | {"kind": "text"}
    for bad in ({"path": "a", "size": 1}, {"text": "a"}, {"text": "a", "size": 10}):
        assert settle_arguments(schema, fixed, bad).problems, bad


def test_a_value_that_a_part_of_the_schema_refuses_takes_that_part_away():
    """Of conditions too, and of parts that forbid what they do not name."""
    schema = {
        "type": "object",
        "properties": {"region": {"type": "string"}, "zone": {}},
        "anyOf": [
            {"properties": {"zone": {}}, "additionalProperties": False},
            {"required": ["zone"], "minProperties": 2},
            {"maxProperties": 0},
        ],
        "dependentSchemas": {
            "region": {"properties": {"region": {"minLength": 2}, "zone": {"type": "string"}}}
        },
    }
    fixed = {"region": {"constant": "eu"}}
    offered = offer_schema(schema, fixed)
    assert offered["anyOf"] == [{"not": {}}, {"required": ["zone"], "minProperties": 1}, {"not": {}}]
    assert offered["allOf"] == [{"properties": {"zone": {"type": "string"}}}]
    assert settle_arguments(schema, fixed, {"zone": "b"}).arguments == {"zone": "b", "region": "eu"}
    for bad in ({}, {"zone": 1}):
        assert settle_arguments(schema, fixed, bad).problems
