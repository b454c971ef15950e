"""Declaring HTTP tools in the admin: a form to add and to change one, a button to remove it."""

import json
from typing import Any

import pytest
from django.urls import reverse

from catalogue.actions.sources import create_source
from catalogue.imports.tools import store_tools
from catalogue.models import Source, Workflow
from tests.admin.pages import errors_in, list_url, page_url, press, shown_in, text_of, told
from tests.declared_tools import API, TOKEN, tool
from tests.factories import make_workflow
from tests.tables import table_row

pytestmark = pytest.mark.django_db


@pytest.fixture
def source(db: None) -> Source:
    return create_source(
        name="orders",
        kind="http",
        config={"base_url": f"{API}/v1", "authentication": "bearer"},
        credentials={"token": TOKEN},
    )


@pytest.fixture
def workflow(source: Source) -> Workflow:
    store_tools([tool()], source="orders", expose=True)
    return Workflow.objects.select_related("source").get()


def add_url(source: str = "") -> str:
    return reverse("admin:catalogue_workflow_add_tool") + (f"?source={source}" if source else "")


def edit_url(workflow: Workflow) -> str:
    return reverse("admin:catalogue_workflow_tool", args=[workflow.pk])


def shown_values(page: Any) -> dict[str, Any]:
    """What the browser would send back if nobody changed anything."""
    form = page.context["form"]
    values = {bound.html_name: bound.field.prepare_value(bound.value()) for bound in form}
    return {name: value for name, value in values.items() if value not in (None, False)}


FILLED_IN = {
    "source": "orders",
    "name": "place_order",
    "description": "Places an order.",
    "tags": "orders, money",
    "method": "POST",
    "endpoint": f"{API}/v1/customers/{{customer}}/orders",
    "body_format": "json",
    "input_schema": json.dumps(
        {
            "type": "object",
            "properties": {"customer": {"type": "string"}, "amount": {"type": "number"}},
            "required": ["customer", "amount"],
        }
    ),
    "input_mappings": '{"amount": {"in": "body", "name": "/payment/amount"}}',
    "constants": '[{"in": "query", "name": "format", "value": "full"}]',
    "output_mappings": '{"number": "/order/number"}',
    "timeout_seconds": "20",
    "expose": "on",
}


def test_a_tool_is_added_from_its_sources_page(admin_client, source):
    """C1.1, C1.4"""
    page = admin_client.get(page_url(source))
    assert f'href="{add_url("orders")}"' in page.content.decode()
    form = admin_client.get(add_url("orders"))
    assert shown_values(form)["source"] == "orders"
    assert shown_values(form)["endpoint"] == f"{API}/v1/"
    assert "expose" not in shown_values(form), "hidden at first, as what is discovered"

    done = admin_client.post(add_url("orders"), FILLED_IN)

    workflow = Workflow.objects.get()
    assert done.headers["location"] == page_url(workflow)
    assert told(done) == "place_order: added."
    assert workflow.enabled and workflow.tags == ["orders", "money"]
    assert workflow.metadata["path"] == "/customers/{customer}/orders"
    assert workflow.metadata["arguments"]["amount"]["name"] == "/payment/amount"
    assert workflow.upstream_timeout_seconds == 20
    history = text_of(admin_client.get(reverse("admin:catalogue_workflow_history", args=[workflow.pk])))
    assert "Declared: added." in history
    assert "1 added" in text_of(admin_client.get(page_url(source)))


WRONG = [
    ("input_schema", "{", "Not valid JSON"),
    ("input_schema", "[]", "valid dictionary"),
    (
        "input_schema",
        '{"properties": {"customer": {"type": "nonsense"}}, "required": ["customer"]}',
        "/properties/customer/type",
    ),
    ("endpoint", "https://elsewhere.example.com/x", f"not below {API}/v1"),
    ("input_mappings", '{"nobody": {"in": "query"}}', "not a property of the input schema"),
    ("input_mappings", '{"amount": {"in": "cookies"}}', "/amount/in: "),
    ("constants", '{"in": "query"}', "valid list"),
    ("output_mappings", '{"number": "order"}', "/number: "),
    ("output_schema", '{"type": 7}', "JSON Schema"),
    ("timeout_seconds", "0", "greater than or equal to 1"),
    ("name", "", "required"),
    ("method", "FETCH", "Select a valid choice"),
]


def test_what_is_wrong_is_told_at_its_field(admin_client, source, subtests):
    """C1.4, A5.3"""
    for field, value, message in WRONG:
        with table_row(subtests, f"{field}: {value}"):
            sent = FILLED_IN | {"input_mappings": ""} | {field: value}
            page = admin_client.post(add_url(), sent)

            assert page.status_code == 200
            assert message in errors_in(page)[field]
            shown = {name: shown for name, shown in shown_in(page).items() if name in sent}
            assert shown == sent | {"expose": True}
            assert "Nothing was stored" in text_of(page)
            assert not Workflow.objects.exists()


def test_a_tool_is_changed_and_unchanged_as_it_is_shown(admin_client, workflow):
    """C1.4"""
    assert f'href="{edit_url(workflow)}"' in admin_client.get(page_url(workflow)).content.decode()
    values = shown_values(admin_client.get(edit_url(workflow)))
    assert TOKEN not in json.dumps(values)

    assert told(admin_client.post(edit_url(workflow), values)) == "get_order: unchanged."
    values |= {"method": "HEAD", "name": "renamed", "response_headers": "ETag, X-Export-Id"}
    changed = admin_client.post(edit_url(workflow), values)

    assert "get_order: updated." in told(changed)
    workflow.refresh_from_db()
    assert (workflow.metadata["method"], workflow.upstream_id) == ("HEAD", "get_order")
    assert workflow.metadata["response_headers"] == ["etag", "x-export-id"]
    values = shown_values(admin_client.get(edit_url(workflow)))
    assert told(admin_client.post(edit_url(workflow), values)) == "get_order: unchanged."
    refused = admin_client.post(edit_url(workflow), values | {"endpoint": "https://elsewhere.example.com"})
    assert "not below" in " ".join(refused.context["form"].errors["endpoint"])


@pytest.mark.parametrize("body_format", ["json", "raw"])
def test_an_argument_that_is_the_whole_body_stays_so_when_the_page_is_saved(
    admin_client, source, body_format
):
    """C1.4: an import makes such tools; the field of the argument's name is something else."""
    whole = tool(
        name="add_note",
        api={"endpoint": f"{API}/v1/notes", "method": "POST", "body_format": body_format},
        input_schema={"type": "object", "properties": {"note": {"type": "string"}}},
        field_mappings={"input": {"note": {"in": "body", "name": ""}}},
    )
    store_tools([whole], source="orders", expose=False)
    workflow = Workflow.objects.get()
    values = shown_values(admin_client.get(edit_url(workflow)))
    assert told(admin_client.post(edit_url(workflow), values)) == "add_note: unchanged."


def test_a_tool_is_removed_and_its_page_stays(admin_client, workflow):
    """A1.3"""
    done = press(admin_client, workflow, "remove_tool")

    assert "get_order was removed" in told(done)
    page = admin_client.get(page_url(workflow))
    assert page.status_code == 200
    assert not page.context["buttons"] and "Change the tool" not in text_of(page)
    assert admin_client.get(edit_url(workflow)).status_code == 404
    assert Workflow.objects.get().missing_since is not None


def test_workflows_of_engines_are_not_declared_here(admin_client):
    workflow = make_workflow()

    page = text_of(admin_client.get(page_url(workflow)))

    assert "Remove tool" not in page and "Change the tool" not in page
    assert admin_client.get(edit_url(workflow)).status_code == 404
    press(admin_client, workflow, "remove_tool")
    assert Workflow.objects.get().missing_since is None


def test_without_an_api_the_page_says_where_to_add_one(admin_client):
    page = admin_client.get(add_url())

    assert "There is no source for HTTP tools yet" in text_of(page)
    assert f"{reverse('admin:catalogue_source_add')}?kind=http" in page.content.decode()


def test_who_may_change_sources_finds_the_page_beside_the_workflows(staff_with, source):
    client = staff_with("view_workflow", "change_source")

    assert "Add tool" in text_of(client.get(list_url(Workflow)))
    assert client.post(add_url(), FILLED_IN).status_code == 302


def test_what_another_tab_changed_of_a_tool_is_kept_or_told(admin_client, workflow):
    """C1.4: as on every form that changes something."""
    page: Any = admin_client.get(edit_url(workflow))
    assert 'name="_shown"' in page.content.decode()
    mine = shown_values(page) | {"_shown": page.context["mark"]}
    admin_client.post(edit_url(workflow), mine | {"title": "Theirs", "timeout_seconds": "21"})
    saved = admin_client.post(edit_url(workflow), mine | {"description": "Mine."})
    assert saved.status_code == 302, saved.context["form"].errors
    workflow.refresh_from_db()
    assert (workflow.upstream_title, workflow.description) == ("Theirs", "Mine.")
    refused: Any = admin_client.post(edit_url(workflow), mine | {"title": "Mine"})
    assert "It was changed in the meantime, and is now: Theirs" in text_of(refused)
    assert "Nothing was saved" in text_of(refused)
    again = shown_values(refused) | {"_shown": refused.context["mark"]}
    assert (again["title"], again["timeout_seconds"]) == ("Mine", 21)
    assert admin_client.post(edit_url(workflow), again).status_code == 302
