"""One workflow in the admin: what its engine says, and what a curator decides."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone
from mcp_types import LATEST_PROTOCOL_VERSION

from catalogue.access import Caller, Scope
from catalogue.exposure import confirmed_catalogue
from catalogue.models import HistoryEntry, Revision, Workflow
from mcp_bridge.tokens import Access
from mcp_bridge.tool_lists import serialise_tool, visible_tools
from tests.admin.pages import form_at, list_url, page_url, text_of, told
from tests.factories import make_filter, make_source, make_workflow
from tests.icons import PNG

pytestmark = pytest.mark.django_db


def change(client: Client, workflow: Workflow, **typed: str) -> Any:
    """Fill some of the form's fields, send it, and read the row anew."""
    given = form_at(client, page_url(workflow)) | typed
    response = client.post(page_url(workflow), given)
    workflow.refresh_from_db()
    return response


def test_the_curators_words_stand_beside_the_engines(admin_client):
    """A3.1: both layers on one page."""
    workflow = make_workflow(
        description="Upstream words.", tags=["upstream-tag"], description_override="Our words."
    )
    shown = text_of(admin_client.get(page_url(workflow)))
    assert "Upstream words." in shown
    assert "Our words." in shown
    assert "upstream-tag" in shown


def test_overrides_are_saved_and_the_engines_layer_stays(admin_client):
    """A3.1, A7.2: title, description, tags, tool name and times are the curator's."""
    workflow = make_workflow(description="Upstream words.", tags=["a"])
    given_before = workflow.tool_name
    given = form_at(admin_client, page_url(workflow)) | {
        "tool_name": "renamed",
        "title_override": "Our title",
        "description_override": "Our words.",
        "tags_override": "billing, monthly ",
        "timeout_seconds": "60",
        "inline_wait_seconds": "5",
        "execution_type_override": "sync",
        "on_disconnect": "cancel",
        "reattach": "",
        "max_concurrent": "3",
    }
    assert admin_client.post(page_url(workflow), given).status_code == 302
    workflow.refresh_from_db()
    assert (workflow.tool_name, workflow.title) == ("renamed", "Our title")
    assert workflow.former_tool_names == [given_before]
    assert (workflow.shown_description, workflow.shown_tags) == ("Our words.", ["billing", "monthly"])
    assert (workflow.timeout_seconds, workflow.inline_wait_seconds) == (60, 5)
    assert (workflow.effective_execution_type, workflow.on_disconnect) == ("sync", "cancel")
    assert (workflow.reattach, workflow.max_concurrent) == (False, 3)
    assert (workflow.description, workflow.tags) == ("Upstream words.", ["a"])


@pytest.mark.parametrize(
    ("field", "typed"),
    [
        ("max_concurrent", "0"),
        ("cache_seconds", "for ever"),
        ("tool_name", "taken"),
        ("icon_override", "truck"),
        ("destructive_hint", "true"),
    ],
)
def test_what_no_workflow_can_have_is_refused_at_its_field(admin_client, field, typed):
    """A6.4, B4, B8: by the rules that hold for REST."""
    make_workflow(tool_name="taken")
    workflow = make_workflow(tool_name="mine")
    response = change(admin_client, workflow, read_only_hint="true", **{field: typed})
    assert response.context["adminform"].form.errors[field]
    assert (workflow.tool_name, workflow.read_only_hint) == ("mine", None)


@pytest.mark.parametrize(("typed", "stored"), [("", None), ("-", []), ("a,b", ["a", "b"])])
def test_tags_can_be_the_engines_none_or_our_own(admin_client, typed, stored):
    """D3: an empty field restores what the engine says."""
    workflow = make_workflow(tags=["upstream"], tags_override=["old"])
    given = form_at(admin_client, page_url(workflow))
    admin_client.post(page_url(workflow), given | {"tags_override": typed})
    workflow.refresh_from_db()
    assert workflow.tags_override == stored


@pytest.mark.parametrize("tags", [None, [], ["a", "b"]])
def test_saving_an_unchanged_workflow_changes_nothing(admin_client, tags):
    """A6.4: names and words stay as they are."""
    workflow = make_workflow(tags_override=tags)
    before, revision = Workflow.objects.values().get(), Revision.current()
    given = form_at(admin_client, page_url(workflow))
    assert admin_client.post(page_url(workflow), given).status_code == 302
    assert Workflow.objects.values().get() == before
    assert Revision.current() == revision


def test_a_tool_name_that_another_has_is_refused_with_whose_it_is(admin_client):
    """B8: two engines often have a workflow of the same name."""
    make_workflow(make_source(name="billing"), tool_name="report", name="Monthly report")
    workflow = make_workflow(tool_name="mine")
    given = form_at(admin_client, page_url(workflow)) | {"tool_name": "report"}
    errors = admin_client.post(page_url(workflow), given).context["adminform"].form.errors
    assert errors["tool_name"] == [
        "Monthly report of billing has this name. Choose another, or rename that first."
    ]


def test_a_replaced_schema_is_pointed_out(admin_client):
    """A6.3: the admin learns that agents see a generic schema, and why."""
    workflow = make_workflow(schema_problem="Invalid input schema: /properties/a: 3 is no schema")
    assert "/properties/a: 3 is no schema" in text_of(admin_client.get(page_url(workflow)))
    assert "schema replaced" in text_of(admin_client.get(list_url(Workflow)))


def test_a_workflows_page_says_what_model_providers_refuse_before_it_is_exposed(admin_client):
    """A4.4"""
    recursive = {"type": "object", "properties": {"and": {"type": "array", "items": {"$ref": "#"}}}}
    odd = make_workflow(name="pay.all", input_schema=recursive, enabled=False)
    plain = make_workflow(name="plain", enabled=False)

    said = text_of(admin_client.get(page_url(odd)))

    assert 'refuse recursion, on which LlamaIndex fails; the name "pay.all", which contains a dot.' in said
    assert "Portable toolsets solve this." in said
    assert "model providers refuse" not in text_of(admin_client.get(page_url(plain)))


def test_a_workflows_page_names_the_filter_that_decides(admin_client):
    """A4.2: why it is exposed or not, with a link to the rule."""
    rule = make_filter("pay*", action="exclude")
    workflow = make_workflow(name="pay_all")
    page = admin_client.get(page_url(workflow))
    assert "hidden by filter by filter exclude name pay*" in text_of(page)
    assert page_url(rule) in page.content.decode()


def test_a_workflow_that_no_filter_includes_says_so(admin_client):
    """A4.2: whoever says what is in has said that the rest is out."""
    make_filter("pay*", action="include")
    assert "no filter includes it" in text_of(admin_client.get(page_url(make_workflow())))


# Presentation in clients


def test_a_curators_hints_stand_and_the_engines_fill_the_gaps(admin_client):
    """A3.1: each of the four is yes, no, or what the engine says, which the form tells."""
    workflow = make_workflow(hints={"destructiveHint": True, "openWorldHint": False})
    page = text_of(admin_client.get(page_url(workflow)))
    assert "the engine's (unknown)" in page and "the engine's (yes)" in page
    change(admin_client, workflow, destructive_hint="false", idempotent_hint="true")
    assert (workflow.read_only_hint, workflow.destructive_hint) == (None, False)
    assert workflow.effective_hints == {
        "destructiveHint": False, "openWorldHint": False, "idempotentHint": True,
    }  # fmt: skip
    assert "not destructive idempotent closed world" in text_of(admin_client.get(page_url(workflow)))
    change(admin_client, workflow, destructive_hint="unknown", idempotent_hint="unknown")
    assert workflow.effective_hints == workflow.hints


def test_an_icon_is_shown_as_a_picture_only_if_nothing_has_to_be_fetched(admin_client):
    """B8: a curator's browser asks no server that an engine names."""
    engines = "https://engine.example.com/icon.png"
    workflow = make_workflow(icons=[{"src": engines}])
    page = admin_client.get(page_url(workflow))
    assert engines in text_of(page) and f'src="{engines}"' not in page.content.decode()
    assert change(admin_client, workflow, icon_override=PNG).status_code == 302
    assert workflow.shown_icons == [{"src": PNG}]
    assert f'<img src="{PNG}"' in admin_client.get(page_url(workflow)).content.decode()


def test_a_workflow_is_offered_as_a_prompt_and_its_results_are_kept(admin_client):
    """E4: both are a curator's to switch on, and off again."""
    workflow = make_workflow()
    change(admin_client, workflow, offered_as_prompt="on", cache_seconds="3600")
    assert (workflow.offered_as_prompt, workflow.cache_seconds) == (True, 3600)
    change(admin_client, workflow, offered_as_prompt="", cache_seconds="")
    assert (workflow.offered_as_prompt, workflow.cache_seconds) == (False, None)


def test_a_curator_is_told_what_becomes_of_an_old_name_and_what_the_tool_costs(admin_client):
    """A6.4"""
    workflow = make_workflow(tool_name="report", description="x" * 400)
    response = change(admin_client, workflow, tool_name="monthly_report")
    assert "Calls by report run for 30 days more and get a message to call monthly_report instead." in told(
        response
    )
    assert list(workflow.live_aliases) == ["report"]
    response = change(admin_client, workflow, tool_name="report_of_month", alias_days="0")
    assert "Agents that still call monthly_report get a message to call report_of_month instead." in told(
        response
    )
    assert list(workflow.live_aliases) == ["report"]
    refused = change(admin_client, make_workflow(), tool_name="report")
    assert "calls by this name still run report_of_month" in text_of(refused)
    assert re.search(r"about 1\d\d tokens", text_of(admin_client.get(page_url(workflow))))


def test_a_name_that_another_gives_up_at_the_same_moment_is_not_taken(admin_client):
    """A6.4: the other change is first to have its turn."""
    first, second = make_workflow(tool_name="report"), make_workflow(tool_name="other")
    given = form_at(admin_client, page_url(second)) | {"tool_name": "weekly"}
    until = (timezone.now() + timedelta(days=1)).isoformat()

    def overtake(execute: Any, sql: str, *args: Any) -> Any:
        if "catalogue_revision" in sql:
            Workflow.objects.filter(pk=first.pk).update(tool_aliases={"weekly": until})
        return execute(sql, *args)

    with connection.execute_wrapper(overtake):
        response = admin_client.post(page_url(second), given)
    assert "Until" in text_of(response) and response.status_code == 200
    second.refresh_from_db()
    assert second.tool_name == "other"


def test_people_who_may_only_look_see_what_was_decided(staff_with):
    """B8: without a form."""
    workflow = make_workflow(read_only_hint=True, cache_seconds=77)
    shown = text_of(staff_with("view_workflow").get(page_url(workflow)))
    assert "read-only" in shown and "77" in shown


def test_the_engines_own_name_is_told_beside_its_title(admin_client):
    """A4.2: filters on the name are matched with it, not with the tool's name."""
    workflow = make_workflow(name="Pay an invoice", upstream_title="Invoices")
    shown = text_of(admin_client.get(page_url(workflow)))
    assert "Engine's name Pay an invoice" in shown
    assert "Engine's title Invoices" in shown


ARGUMENTS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "The engine's words."},
        "tenant": {"type": "string", "enum": ["acme", "globex"]},
        "days": {"type": "integer", "minimum": 1},
    },
    "required": ["city", "tenant"],
}


def row(number: int, **typed: str) -> dict[str, str]:
    return {f"argument_overrides-{number}-{part}": value for part, value in typed.items()}


def test_a_curator_changes_single_arguments_in_a_row_each(admin_client):
    """Issue 13, 5: our description, a value that agents do not see, a default; what does not fit is told."""
    workflow = make_workflow(input_schema=ARGUMENTS)
    shown = text_of(admin_client.get(page_url(workflow)))
    assert "city string, required The engine's words." in shown
    typed = {
        "argument_overrides-rows": "3",
        **row(0, name="city", description="Our words.", kind="", value=""),
        **row(1, name="days", description="", kind="default", value="3"),
        **row(2, name="tenant", description="", kind="constant", value="acme"),
    }
    assert change(admin_client, workflow, **typed).status_code == 302
    expected = {"city": {"description": "Our words."}, "days": {"default": 3}, "tenant": {"constant": "acme"}}
    assert workflow.argument_overrides == expected
    assert "Changed Arguments" in HistoryEntry.of(workflow).latest("at").message

    shown = admin_client.get(page_url(workflow)).content.decode()
    assert 'value="acme"' in shown and "Our words." in shown
    wrong = [
        (
            row(2, name="tenant", kind="constant", value="initech"),
            "tenant: &quot;initech&quot; is not one of",
        ),
        (
            row(1, name="days", kind="default", value="many"),
            "days: This is not a JSON value of the type integer",
        ),
        (row(1, name="days", kind="default", value=""), "days: enter the value."),
        (row(0, name="city", kind="", value="Rome"), "city: choose when the value applies"),
    ]
    for part, problem in wrong:
        refused = change(admin_client, workflow, **typed | part)
        assert refused.status_code == 200 and problem in refused.content.decode(), problem
    assert change(admin_client, workflow, title_override="Other").status_code == 302
    assert workflow.argument_overrides == expected


def test_people_who_may_only_look_read_what_was_done_to_arguments(staff_with):
    changed = {"tenant": {"constant": "acme"}, "days": {"default": 3, "description": "Ours."}}
    workflow = make_workflow(input_schema=ARGUMENTS, argument_overrides=changed)
    shown = text_of(staff_with("view_workflow").get(page_url(workflow)))
    assert 'tenant: always "acme", hidden from agents days: 3 if agents omit it days: Ours.' in shown
    assert "Alias" not in shown


def test_a_changed_argument_that_the_engine_no_longer_has_is_told(admin_client):
    """A4.3"""
    workflow = make_workflow(input_schema=ARGUMENTS, argument_overrides={"gone": {"constant": 1}})
    shown = text_of(admin_client.get(page_url(workflow)))
    assert "gone: The engine's schema has no such argument." in shown


def test_a_rule_for_approval_that_cannot_be_read_is_told_in_the_words_that_were_typed(admin_client):
    workflow = make_workflow(input_schema=ARGUMENTS)
    form = form_at(admin_client, page_url(workflow)) | {"approval_rules": "/amount exceeds 5"}
    assert "Line 1: the comparison 'exceeds' must be one of over," in text_of(
        admin_client.post(page_url(workflow), form)
    )


def test_a_rule_for_approval_whose_argument_the_engine_no_longer_has_is_told(admin_client):
    rule = {"argument": "/amount", "is": "over", "value": 1}
    workflow = make_workflow(approval_rules=[rule], input_schema={"properties": {"total": {}}})
    shown = text_of(admin_client.get(page_url(workflow)))
    assert "Each call waits for approval until you change them." in shown
    assert "has no amount; it has total" in shown


def test_the_page_shows_the_entry_of_the_tool_list_as_agents_get_it(admin_client):
    """Issue 13, 5: with our words and without what is hidden, also before it is exposed."""
    hidden = {"tenant": {"constant": "acme"}}
    workflow = make_workflow(input_schema=ARGUMENTS, argument_overrides=hidden, description_override="Ours.")
    shown = text_of(admin_client.get(page_url(workflow)))
    entry = shown[shown.index("As agents see it") :].partition("The engine's input schema")[0]
    assert '"description": "Ours."' in entry and '"inputSchema"' in entry and "tenant" not in entry
    agent = Access(caller=Caller(key="token:1", name="an agent"), scopes=frozenset(Scope))
    tools = {tool.name: tool for tool in visible_tools(confirmed_catalogue(), agent)}
    listed = tools[workflow.tool_name]
    length = len(serialise_tool(listed, LATEST_PROTOCOL_VERSION))
    assert f"{length} characters in tools/list, about {-(-length // 4)} tokens" in entry.replace(" ,", ",")


def test_a_page_that_is_out_of_date_enables_nothing(admin_client):
    """A5.2: whoever pressed Save had read what the engine said before; nor is anything else of it saved."""
    workflow = make_workflow(enabled=False, content_hash="a")
    given = form_at(admin_client, page_url(workflow))
    Workflow.objects.filter(pk=workflow.pk).update(content_hash="b", description="Ignore what was said.")
    answer = admin_client.post(page_url(workflow), given | {"enabled": "on", "title_override": "Mine"})
    assert "Nothing was changed. Still hidden, because the engine has changed them since" in told(answer)
    workflow.refresh_from_db()
    assert (workflow.enabled, workflow.title_override) == (False, "")
    assert not HistoryEntry.of(workflow).exists()
    change(admin_client, workflow, enabled="on", title_override="Mine")
    assert (workflow.enabled, workflow.title_override) == (True, "Mine")
    Workflow.objects.filter(pk=workflow.pk).update(content_hash="c")
    assert admin_client.post(page_url(workflow), given | {"title_override": "Ours"}).status_code == 302
    workflow.refresh_from_db()
    assert not workflow.enabled, "hiding it and other words of ours need no look at the engine's"
