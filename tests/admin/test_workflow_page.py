"""One workflow in the admin: what its engine says, and what a curator decides."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.utils import flatten
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone
from django.utils.http import urlencode
from mcp_types import LATEST_PROTOCOL_VERSION

from access.callers import Caller, Scope
from catalogue.exposure import confirmed_catalogue
from catalogue.models import HistoryEntry, Revision, Workflow
from identity.tokens import Access, create_token
from mcp_bridge.tool_lists import serialise_tool, visible_tools
from tests.admin.pages import form_at, list_url, page_url, text_of, told
from tests.factories import make_discovery_run, make_filter, make_source, make_toolset, make_workflow
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

    page = admin_client.get(page_url(odd))

    assert 'recursion, on which LlamaIndex fails; the name "pay.all", which contains a dot.' in text_of(page)
    assert 'id="refused-by-providers"' in page.content.decode()
    assert 'id="refused-by-providers"' not in admin_client.get(page_url(plain)).content.decode()


def test_a_workflows_page_names_the_filter_that_decides(admin_client):
    """A4.2: why it is exposed or not, with a link to the rule."""
    rule = make_filter("pay*", action="exclude")
    workflow = make_workflow(name="pay_all")
    page = admin_client.get(page_url(workflow))
    assert 'data-visibility="filtered"' in page.content.decode()
    assert page_url(rule) in page.content.decode()


def test_a_workflow_that_no_filter_includes_says_so(admin_client):
    """A4.2: whoever says what is in has said that the rest is out."""
    make_filter("pay*", action="include")
    assert "no exposure rule includes it" in text_of(admin_client.get(page_url(make_workflow())))


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
    assert re.search(r'data-tokens="1\d\d"', admin_client.get(page_url(workflow)).content.decode())


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
        assert refused.content.decode().count("data-problem") == 1
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
    page = admin_client.get(page_url(workflow))
    (entry,) = page.context["entries"]
    assert '"description": "Ours."' in entry.as_json and "tenant" not in entry.as_json
    agent = Access(caller=Caller(key="token:1", name="an agent"), scopes=frozenset(Scope))
    tools = {tool.name: tool for tool in visible_tools(confirmed_catalogue(), agent)}
    listed = tools[workflow.tool_name]
    length = len(serialise_tool(listed, LATEST_PROTOCOL_VERSION))
    assert (entry.characters, entry.tokens) == (length, -(-length // 4))
    assert f'data-tokens="{entry.tokens}"' in page.content.decode()


def preview(client: Client, workflow: Workflow, **typed: str) -> Any:
    given = form_at(client, page_url(workflow)) | typed
    return client.post(reverse("admin:catalogue_workflow_preview", args=[workflow.pk]), given)


def test_the_preview_shows_what_the_form_would_make_of_the_tool_and_saves_nothing(admin_client):
    workflow = make_workflow(input_schema=ARGUMENTS)
    before = Workflow.objects.values().get()
    shown = preview(
        admin_client, workflow, tool_name="renamed", title_override="Ours", description_override="<b>Ours.",
        read_only_hint="true",
    )  # fmt: skip
    (entry,), (saved,) = shown.context_data["entries"], shown.context_data["saved"]
    assert (entry.tool["name"], entry.tool["title"]) == ("renamed", "Ours")
    assert entry.tool["annotations"] == {"readOnlyHint": True}
    assert entry.tokens != saved.tokens and "&lt;b&gt;Ours." in shown.content.decode()
    assert Workflow.objects.values().get() == before
    assert not HistoryEntry.of(workflow).exists()


def test_the_preview_says_what_cannot_be_saved_and_shows_the_rest(admin_client):
    workflow = make_workflow(tool_name="mine")
    shown = preview(admin_client, workflow, tool_name="not a name", description_override="Ours.")
    assert 'id="preview-problems"' in shown.content.decode()
    tool = shown.context_data["entries"][0].tool
    assert (tool["name"], tool["description"]) == ("mine", "Ours.")


def test_only_people_who_may_change_a_workflow_get_a_preview(admin_client, staff_with):
    workflow = make_workflow()
    address = reverse("admin:catalogue_workflow_preview", args=[workflow.pk])
    assert admin_client.get(address).status_code == 405
    assert staff_with("view_workflow").post(address, {}).status_code == 403


def test_a_tab_counts_the_errors_of_its_fields_and_opens(admin_client):
    shown = change(admin_client, make_workflow(), read_only_hint="true", destructive_hint="true")
    assert {tab.slug: tab.errors for tab in shown.context["tabs"] if tab.errors} == {"safety": 1}
    assert shown.context["wrong_tab"] == "safety"


def test_runs_have_a_tab_only_for_people_who_may_see_them(admin_client, staff_with):
    workflow = make_workflow()
    assert 'href="#runs"' in admin_client.get(page_url(workflow)).content.decode()
    assert 'href="#runs"' not in staff_with("view_workflow").get(page_url(workflow)).content.decode()


def test_every_field_of_the_form_is_in_a_tab(admin_client):
    page = admin_client.get(page_url(make_workflow()))
    shown = {name for tab in page.context["tabs"] for one in tab.fieldsets for name in flatten(one.fields)}
    assert page.context["adminform"].form.fields.keys() <= shown


@pytest.mark.parametrize(
    ("query", "neighbours"),
    [
        ("", ("a", "c")),
        ("o=-2", ("c", "a")),
        ("not-is=enabled", ("a", "d")),
        ("q=nothing-has-this", (None, None)),
        ("no_such=1", (None, None)),
    ],
)
def test_the_page_leads_to_the_previous_and_the_next_workflow_of_the_list(admin_client, query, neighbours):
    """Also where the workflow itself is no longer in the list."""
    rows = {name: make_workflow(tool_name=name, enabled=name in "bc") for name in "abcd"}
    page = admin_client.get(page_url(rows["b"]), {"_changelist_filters": query})
    expected = [name and page_url(rows[name]) for name in neighbours]
    found = [page.context[place] for place in ("previous", "next")]
    assert [address and address.partition("?")[0] for address in found] == expected
    kept = urlencode({"_changelist_filters": query})
    assert all(address.endswith(kept) for address in found if address and query)


def test_the_neighbours_take_as_many_queries_in_a_long_list(admin_client, django_assert_max_num_queries):
    workflow = make_workflow(tool_name="b")
    with CaptureQueriesContext(connection) as few:
        admin_client.get(page_url(workflow))
    for number in range(30):
        make_workflow(workflow.source, tool_name=f"c{number}")
    with django_assert_max_num_queries(len(few) + 2):  # The next one's row
        admin_client.get(page_url(workflow))


def test_save_and_next_saves_and_opens_the_next_of_the_list(admin_client):
    first, second = make_workflow(tool_name="a"), make_workflow(tool_name="b")
    address = f"{page_url(first)}?_changelist_filters=o%3D1"
    given = form_at(admin_client, page_url(first)) | {"title_override": "Ours", "_next": str(second.pk)}
    response = admin_client.post(address, given)
    assert response.headers["Location"] == f"{page_url(second)}?_changelist_filters=o%3D1"
    first.refresh_from_db()
    assert first.title == "Ours"


def test_a_workflow_is_added_to_a_toolset_and_removed_on_its_page_with_a_history(admin_client):
    workflow, toolset = make_workflow(), make_toolset("finance")
    address = reverse("admin:catalogue_workflow_toolsets", args=[workflow.pk])
    assert list(admin_client.get(page_url(workflow)).context["offered_toolsets"]) == [toolset]
    assert admin_client.post(address, {"toolset": toolset.pk, "add": ""}).status_code == 302
    assert list(toolset.picked.all()) == [workflow]
    assert not admin_client.get(page_url(workflow)).context["offered_toolsets"]
    assert admin_client.post(address, {"toolset": toolset.pk, "remove": ""}).status_code == 302
    assert not toolset.picked.exists()
    assert HistoryEntry.of(toolset).count() == HistoryEntry.of(workflow).count() == 2
    assert HistoryEntry.of(toolset).first().changes == {"picked": [[workflow.tool_name], []]}
    assert admin_client.post(address, {"toolset": "x", "add": ""}).status_code == 404


def test_toolsets_are_shown_and_changed_only_with_their_permissions(staff_with):
    workflow = make_workflow()
    toolset = make_toolset("finance", picked=[workflow])
    curator = staff_with("change_workflow")
    assert "finance" not in text_of(curator.get(page_url(workflow)))
    address = reverse("admin:catalogue_workflow_toolsets", args=[workflow.pk])
    assert curator.post(address, {"toolset": toolset.pk, "remove": ""}).status_code == 403
    assert list(toolset.picked.all()) == [workflow]


def test_the_page_counts_the_tokens_and_applications_that_reach_the_workflow(admin_client, staff_with):
    workflow = make_workflow()
    shown, other = make_toolset("finance", picked=[workflow]), make_toolset("other")
    for name, toolset in (("all", None), ("in", shown), ("out", other)):
        create_token(name=name, toolset=toolset)
    create_token(name="reads", scopes=[Scope.READ])
    create_token(name="revoked")[0].revoke()
    facts = dict(admin_client.get(page_url(workflow)).context["facts"])
    assert facts["Reached by"] == "2 tokens, 0 applications"
    assert not dict(staff_with("view_workflow").get(page_url(workflow)).context["facts"])["Reached by"]
    change(admin_client, workflow, enabled="")
    assert not dict(admin_client.get(page_url(workflow)).context["facts"])["Reached by"]


def test_the_history_has_what_curators_changed_and_what_listings_found(admin_client):
    workflow, other = make_workflow(name="mine"), make_workflow(name="other")
    change(admin_client, workflow, title_override="Ours")
    for one in (workflow, other):
        named = {"workflow": one.pk, "id": one.upstream_id, "name": one.name, "tool_name": one.tool_name}
        make_discovery_run(workflow.source, updated=1, changes={"updated": [named]})
    events = admin_client.get(page_url(workflow)).context["events"]
    assert [event.view for event in events] == [
        "catalogue_discoveryrun_change", "catalogue_historyentry_change",
    ]  # fmt: skip
    assert events[1].changes == ["title: empty → Ours"]


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
