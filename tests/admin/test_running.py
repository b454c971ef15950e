"""Running a workflow by hand: the form made of its input schema, and running an execution again."""

from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse

from catalogue.models import Workflow
from executions.models import Execution
from tests.admin.pages import page_url, text_of
from tests.factories import make_source, make_workflow

pytestmark = pytest.mark.django_db

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "note": {"type": "string", "description": "In your words."},
        "amount": {"type": "number", "minimum": 1},
        "count": {"type": "integer"},
        "urgent": {"type": "boolean"},
        "colour": {"enum": ["red", 5]},
        "day": {"type": "string", "format": "date"},
        "at": {"type": "string", "format": "date-time"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "numbers": {"type": "array", "items": {"$ref": "#/$defs/number"}},
        "person": {"type": "object", "properties": {"age": {"type": "integer"}}},
        "tenant": {"type": "string"},
    },
    "required": ["note", "tenant"],
    "$defs": {"number": {"type": "integer"}},
}


def run_url(workflow: Workflow) -> str:
    return reverse("admin:executions_run", args=[workflow.pk])


def filled(client: Client, address: str, **typed: str) -> dict[str, str]:
    """What the browser sends, with some arguments typed."""
    form = client.get(address).context["form"]
    sent = {field.html_name: field.value() for field in form if field.html_name != "json"}
    number = {name: f"argument-{number}" for number, name in enumerate(form.names)}
    sent |= {number.get(name, name): text for name, text in typed.items()}
    return {name: value for name, value in sent.items() if value not in (None, False)}


def run(client: Client, workflow: Workflow, **typed: str) -> Any:
    return client.post(run_url(workflow), filled(client, run_url(workflow), **typed))


def test_a_workflow_runs_with_what_is_typed_in_a_field_for_each_argument(admin_client):
    """Recorded with the admin as its door; what the catalogue sets is added."""
    workflow = make_workflow(input_schema=SCHEMA, argument_overrides={"tenant": {"constant": "acme"}})
    page = text_of(admin_client.get(run_url(workflow)))
    assert "note string, required" in page and "In your words." in page and "tenant" not in page
    typed = {
        "note": "5\r\nlines",
        "amount": "2.5",
        "count": "3",
        "urgent": "false",
        "colour": "5",
        "day": "2026-02-01",
        "at": "2026-02-01T08:30:00",
        "tags": "a\r\nb c",
        "numbers": "1\n2",
        "person": '{"age": 7}',
    }
    response = run(admin_client, workflow, **typed)
    execution = Execution.objects.get()
    assert response.headers["Location"] == page_url(execution)
    assert execution.payload.input == {
        "note": "5\nlines",
        "amount": 2.5,
        "count": 3,
        "urgent": False,
        "colour": 5,
        "day": "2026-02-01",
        "at": "2026-02-01T08:30:00+00:00",
        "tags": ["a", "b c"],
        "numbers": [1, 2],
        "person": {"age": 7},
        "tenant": "acme",
    }
    assert (execution.door, execution.caller_name) == ("admin", "admin")
    assert execution.caller == f"user:{User.objects.get().pk}"

    again = f"{run_url(workflow)}?again={execution.pk}"
    assert f'href="{again}"' in admin_client.get(page_url(execution)).content.decode()
    admin_client.post(run_url(workflow), filled(admin_client, again, count="4"))
    second = Execution.objects.exclude(pk=execution.pk).get()
    assert second.payload.input == execution.payload.input | {"count": 4}
    assert text_of(admin_client.get(page_url(workflow))).count("admin by admin") == 2


def test_what_is_wrong_is_told_beside_its_field_and_nothing_starts(admin_client):
    """A2.5"""
    workflow = make_workflow(input_schema=SCHEMA, argument_overrides={"tenant": {"constant": "acme"}})
    form = run(admin_client, workflow, amount="0", count="x", person="{").context["form"]
    told = {field.label: " ".join(field.errors) for field in form.argument_fields if field.errors}
    assert told.keys() == {"count", "person"} and "not a JSON value of the type integer" in told["count"]
    form = run(admin_client, workflow, amount="0", person='{"age": "old"}').context["form"]
    told = {field.label: " ".join(field.errors) for field in form.argument_fields if field.errors}
    assert told.keys() == {"note", "amount", "person"}
    assert told["note"] == "required, but missing" and told["person"].startswith("age: ")
    assert not Execution.objects.exists()


def test_arguments_can_be_written_as_json_and_go_there_and_back(admin_client):
    """For what a schema takes and no field shows."""
    workflow = make_workflow(input_schema=SCHEMA | {"required": ["note"]})
    sent = filled(admin_client, run_url(workflow), note="a", count="3")
    as_json = admin_client.post(run_url(workflow), sent | {"to": "json"}).context["form"]
    assert as_json.initial["json"] == '{\n  "note": "a",\n  "count": 3\n}'
    sent = {"key": sent["key"], "mode": "json", "json": '{"note": "a", "count": 4, "else": null}'}
    refused = admin_client.post(run_url(workflow), sent | {"to": "form"})
    assert "The form has no field for else." in text_of(refused)
    half = "/note contains half of a surrogate pair"
    mistakes = {"{": "The JSON cannot be read.", "[]": "Enter a JSON object", r'{"note": "\ud83d"}': half}
    for broken, problem in mistakes.items():
        assert problem in text_of(admin_client.post(run_url(workflow), sent | {"json": broken}))
    admin_client.post(run_url(workflow), sent)
    assert Execution.objects.get().payload.input == {"note": "a", "count": 4, "else": None}


def test_a_form_that_is_sent_twice_runs_once(admin_client):
    """Filled in with something else after going back, it runs again."""
    workflow = make_workflow()
    sent = filled(admin_client, run_url(workflow)) | {"mode": "json", "json": '{"a": 1}'}
    addresses = {admin_client.post(run_url(workflow), sent).headers["Location"] for _ in range(2)}
    assert len(addresses) == 1
    assert admin_client.post(run_url(workflow), sent | {"json": '{"a": 2}'}).status_code == 302
    assert Execution.objects.count() == 2


def test_what_may_delete_is_run_only_by_somebody_who_says_so(admin_client):
    workflow = make_workflow(destructive_hint=True)
    assert "Confirm that you want to run it" in text_of(run(admin_client, workflow))
    assert not Execution.objects.exists()
    assert run(admin_client, workflow, sure="on").status_code == 302


def test_who_may_run_and_who_may_try_what_agents_do_not_see(staff_with):
    """B8: the right to run is one of its own; a hidden workflow is for those who could expose it."""
    hidden, shown = make_workflow(enabled=False), make_workflow()
    off = make_workflow(make_source(enabled=False))
    client = staff_with("view_workflow", "view_execution")
    assert client.get(run_url(shown)).status_code == 403
    assert (
        reverse("admin:executions_run", args=[shown.pk]) not in client.get(page_url(shown)).content.decode()
    )
    user = User.objects.get()
    user.user_permissions.add(*_permissions("add_execution"))
    assert run(client, shown).status_code == 302
    assert "Unknown or disabled tool" in text_of(run(client, hidden))
    user.user_permissions.add(*_permissions("change_workflow"))
    assert run(client, hidden).status_code == 302
    assert "Unknown or disabled tool" in text_of(run(client, off))
    user.user_permissions.remove(*_permissions("view_workflow", "change_workflow"))
    assert client.get(run_url(shown)).status_code == 403


def _permissions(*codenames: str) -> Any:
    return Permission.objects.filter(codename__in=codenames)
