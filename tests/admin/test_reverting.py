"""Old and new values of every change, by every door, and the way back."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from catalogue.actions.workflows import disable_workflows
from catalogue.exposure import load_exposed_catalogue
from catalogue.history import command, values_of
from catalogue.models import HistoryEntry, Revision, Source, Toolset, Workflow, WorkflowFilter
from catalogue.models.history import HistoryIsKept
from identity.models import AccessToken
from identity.tokens import create_token
from tests.admin.pages import (
    answer_question,
    form_at,
    list_url,
    page_url,
    press,
    press_and_agree,
    run_action,
    text_of,
    told,
)
from tests.api.clients import administrator, staff_session
from tests.factories import make_filter, make_source, make_toolset, make_workflow, make_workflows

pytestmark = pytest.mark.django_db


def latest(obj: Any) -> HistoryEntry:
    return HistoryEntry.of(obj).latest("pk")


def post_form(client: Client, obj: Any, changes: dict[str, Any]) -> None:
    given = form_at(client, page_url(obj)) | changes
    response = client.post(page_url(obj), given)
    assert response.status_code == 302, text_of(response)


def rename_by_form(client: Client) -> Any:
    workflow = make_workflow(name="report")
    post_form(client, workflow, {"tool_name": "monthly", "title_override": "Monthly", "enabled": ""})
    return workflow


def override_by_rest(client: Client) -> Any:
    workflow = make_workflow(name="report", tags=["a"])
    body = {"description": "Better.", "tags": ["b"], "timeout_seconds": 5}
    assert administrator().patch("/api/workflows/report/", body, format="json").status_code == 200
    return workflow


def disable_in_bulk(client: Client) -> Any:
    workflow = make_workflow()
    run_action(client, "disable_selected", workflow)
    return workflow


def disable_by_command(client: Client) -> Any:
    workflow = make_workflow(make_source("orders"))
    call_command("disable_workflows", "--source", "orders", "--all")
    return workflow


def change_source_by_rest(client: Client) -> Any:
    source = make_source("orders")
    body = {"max_concurrent": 2, "refresh_interval": 60}
    assert administrator().patch("/api/sources/orders/", body, format="json").status_code == 200
    return source


def switch_source_off(client: Client) -> Any:
    source = make_source()
    run_action(client, "disable_selected", source)
    return source


def change_toolset_by_form(client: Client) -> Any:
    kept = make_workflow(name="kept")
    toolset = make_toolset("finance", picked=[kept], rules=["a*", "b*"])
    picked = [make_workflow(name="other").pk]
    rules = {"rules-TOTAL_FORMS": 2, "rules-INITIAL_FORMS": 2}
    for number, rule in enumerate(toolset.rules.all()):
        names = ("id", "position", "action", "subject", "syntax", "pattern", "enabled")
        rules |= {f"rules-{number}-{name}": getattr(rule, name if name != "id" else "pk") for name in names}
    post_form(client, toolset, rules | {"picked": picked, "mode": "compact", "rules-1-DELETE": "on"})
    return toolset


def change_toolset_by_rest(client: Client) -> Any:
    toolset = make_toolset("finance", rules=["a*"])
    make_workflow(name="report")
    body = {"picked": ["report"], "rules": [{"pattern": "z*", "action": "exclude"}], "title": "Money"}
    assert administrator().patch("/api/toolsets/finance/", body, format="json").status_code == 200
    return toolset


def move_filter(client: Client) -> Any:
    rule = make_filter("nothing*", action="exclude", position=1)
    row = {"form-TOTAL_FORMS": 1, "form-INITIAL_FORMS": 1, "form-0-id": rule.pk, "form-0-position": 7}
    client.post(list_url(WorkflowFilter), row | {"form-0-enabled": "on", "_save": "Save"})
    return rule


def change_wait_of_token(client: Client) -> Any:
    token, _ = create_token(name="agent")
    post_form(client, token, {"inline_wait_seconds": "9"})
    return token


def change_setting_by_rest(client: Client) -> Any:
    from catalogue.product_settings import settings_row

    row = settings_row()
    assert (
        administrator().patch("/api/settings/", {"discovery_interval": 77}, format="json").status_code == 200
    )
    return row


def change_retention(client: Client) -> Any:
    from executions.models import Retention

    row, _ = Retention.objects.get_or_create(pk=Retention.ONLY)
    post_form(client, row, {"keep_records_days": "12"})
    return row


CHANGES: dict[Callable[[Client], Any], dict[str, list[Any]]] = {
    rename_by_form: {
        "tool_name": ["report", "monthly"],
        "title_override": ["", "Monthly"],
        "enabled": [True, False],
    },
    override_by_rest: {
        "description_override": ["", "Better."],
        "tags_override": [None, ["b"]],
        "timeout_seconds": [None, 5],
    },
    disable_in_bulk: {"enabled": [True, False]},
    disable_by_command: {"enabled": [True, False]},
    change_source_by_rest: {"max_concurrent": [None, 2], "refresh_interval": [None, 60]},
    switch_source_off: {"enabled": [True, False]},
    change_toolset_by_form: {"mode": ["full", "compact"], "picked": [["kept"], ["other"]]},
    change_toolset_by_rest: {"title": ["", "Money"], "picked": [[], ["report"]]},
    move_filter: {"position": [1, 7]},
    change_wait_of_token: {"inline_wait_seconds": [None, 9]},
    change_setting_by_rest: {"overrides": [{}, {"discovery_interval": 77}]},
    change_retention: {"keep_records_days": [90, 12]},
}


@pytest.mark.parametrize("change", CHANGES, ids=lambda one: one.__name__)
def test_each_change_is_kept_with_its_values_and_can_be_reverted(admin_client, change):
    """B8: whatever the door; the way back is a change of its own, which can be reverted again."""
    obj = change(admin_client)
    entry, before = latest(obj), Revision.current()
    values = {name: pair for name, pair in entry.changes.items() if name != "rules"}
    assert values == CHANGES[change]
    assert entry.revision == (before if hasattr(obj, "tool_name") or entry.revision else None)
    answer = press_and_agree(admin_client, entry, "revert")
    assert "has its previous values again" in told(answer)
    back = latest(obj)
    assert back.reverts == entry and back.actor_name == "admin"
    assert back.changes == {name: [new, old] for name, (old, new) in entry.changes.items()}
    assert "has its previous values again" in told(press(admin_client, back, "revert"))


def test_what_agents_see_comes_back_with_it_and_the_entry_names_the_revision(admin_client):
    """A4.3, B8."""
    workflow = rename_by_form(admin_client)
    assert latest(workflow).revision == Revision.current()
    press_and_agree(admin_client, latest(workflow), "revert")
    shown = load_exposed_catalogue().workflows
    assert list(shown) == ["report"] and shown["report"].former_tool_names == ["monthly"]


def test_a_change_is_not_reverted_once_somebody_has_changed_it_again(admin_client):
    """B8: nor where the object is gone, was added or deleted, or where it would not be valid any more."""
    workflow = rename_by_form(admin_client)
    entry = latest(workflow)
    make_workflow(name="report")
    refused = told(press(admin_client, entry, "revert"))
    assert "Nothing was changed: " in refused and "has this name" in refused
    post_form(admin_client, Workflow.objects.get(tool_name="monthly"), {"title_override": "Weekly"})
    refused = told(press(admin_client, entry, "revert"))
    assert "title_override is now Weekly and no longer Monthly" in refused
    workflow.source.delete()
    assert "no longer exists" in told(press(admin_client, entry, "revert"))
    assert HistoryEntry.of(workflow).count() == 2


def test_a_setting_is_reverted_although_another_has_changed_since(admin_client):
    """B8: all settings are in one row."""
    row = change_setting_by_rest(admin_client)
    entry = latest(row)
    body = {"execution_timeout": 55}
    assert administrator().patch("/api/settings/", body, format="json").status_code == 200
    assert "has its previous values again" in told(press(admin_client, entry, "revert"))
    row.refresh_from_db()
    assert row.overrides == body
    assert "discovery_interval is now empty and no longer 77" in told(press(admin_client, entry, "revert"))


def test_what_was_done_to_many_is_reverted_together(admin_client):
    """B8: several changes of one object in turn, and what cannot be is told with its reason."""
    workflows = make_workflows(3)
    run_action(admin_client, "disable_selected", *workflows)
    run_action(admin_client, "enable_selected", workflows[0])
    added = administrator().post("/api/toolsets/", {"slug": "finance"}, format="json")
    assert added.status_code == 201
    entries = HistoryEntry.objects.all()
    asked = run_action(admin_client, "revert_selected", *entries)
    assert "5 changes selected" in (page := text_of(asked)) and "enabled: on → off" in page
    assert Toolset.objects.exists() and Workflow.objects.filter(enabled=True).count() == 1
    keys = {"_selected_action": [entry.pk for entry in entries]}
    question = answer_question(admin_client, asked, **keys)
    assert question.context["count"] == 2, "what was enabled before both is exposed again"
    assert Toolset.objects.exists() and Workflow.objects.filter(enabled=True).count() == 1
    shown = told(answer_question(admin_client, question, **keys))
    assert "Reverted: 5 changes." in shown and not Toolset.objects.exists()
    assert Workflow.objects.filter(enabled=True).count() == 3


# What one action changed, and the button beside its message


def undo(client: Client, answer: Any) -> Any:
    """Click the button beside the message that the answer leads to."""
    page = client.get(answer.url if answer.status_code == 302 else answer.wsgi_request.get_full_path())
    found = re.search(r'action="(/admin/catalogue/historyentry/undo/[^"]+)"', page.content.decode())
    return client.post(found[1], {"back": list_url(Workflow)}) if found else None


def test_a_bulk_action_is_one_entry_that_opens_to_its_members_and_is_undone_as_one(admin_client):
    workflows = make_workflows(30, enabled=False)
    question = run_action(admin_client, "enable_selected", *workflows)
    answer = answer_question(admin_client, question, _selected_action=[one.pk for one in workflows])
    assert undo(admin_client, answer).status_code == 302
    assert not Workflow.objects.filter(enabled=True).exists()
    rows = admin_client.get(list_url(HistoryEntry)).context["cl"].result_list
    assert [row.together for row in rows] == [30, 30]
    members = admin_client.get(list_url(HistoryEntry), {"batch": str(rows[0].batch)})
    assert members.context["cl"].result_count == 30
    assert {entry.reverts_id for entry in HistoryEntry.objects.filter(batch=rows[0].batch)} == {
        entry.pk for entry in HistoryEntry.objects.filter(batch=rows[1].batch)
    }


def test_undoing_what_hid_tools_asks_first_and_names_them(admin_client):
    workflows = make_workflows(25)
    hidden = run_action(admin_client, "disable_selected", *workflows)
    hidden = answer_question(admin_client, hidden, _selected_action=[one.pk for one in workflows])
    question = undo(admin_client, hidden)
    assert (question.status_code, question.context["count"]) == (200, 25)
    assert question.context["names"] == sorted(one.tool_name for one in workflows)[:20]
    assert not Workflow.objects.filter(enabled=True).exists()
    assert answer_question(admin_client, question).status_code == 302
    assert Workflow.objects.filter(enabled=True).count() == 25


def test_an_agreement_is_only_to_the_tools_that_were_named(admin_client):
    one, other = make_workflows(2)
    answer = run_action(admin_client, "disable_selected", one, other)
    make_filter(other.tool_name, action="exclude")
    question = undo(admin_client, answer)
    assert question.context["names"] == [one.tool_name]
    WorkflowFilter.objects.all().delete()
    asked_again = answer_question(admin_client, question)
    assert asked_again.context["names"] == sorted([one.tool_name, other.tool_name])
    assert not Workflow.objects.filter(enabled=True).exists()


def test_undoing_leaves_what_others_have_changed_meanwhile(admin_client):
    one, other = make_workflows(2, enabled=False)
    answer = run_action(admin_client, "enable_selected", one, other)
    disable_workflows(Workflow.objects.filter(pk=one.pk), by=command("disable_workflows"))
    done = undo(admin_client, answer)
    assert f"Not reverted: {one.tool_name}" in told(done)
    assert not Workflow.objects.filter(enabled=True).exists()
    assert latest(one).actor == "command"


def test_who_may_not_change_the_objects_can_neither_see_nor_use_the_button(admin_client, staff_with):
    workflow = make_workflow(enabled=False)
    answer = run_action(admin_client, "enable_selected", workflow)
    batch = HistoryEntry.of(workflow).get().batch
    url = reverse("admin:catalogue_historyentry_undo", args=[batch])
    member = staff_with("view_workflow", "view_historyentry")
    assert member.post(url).status_code == 403
    assert admin_client.get(url).status_code == 405
    assert undo(admin_client, answer).url == list_url(Workflow)
    elsewhere = admin_client.post(url, {"back": "https://evil.example/"})
    assert elsewhere.url == reverse("admin:index")


def test_a_deleted_toolset_is_back_with_one_click(admin_client):
    toolset = make_toolset("finance", rules=["a*"])
    answer = admin_client.post(reverse("admin:catalogue_toolset_delete", args=[toolset.pk]), {"post": "yes"})
    undo(admin_client, answer)
    assert Toolset.objects.get(slug="finance").pk == toolset.pk


def test_what_changes_nothing_of_the_catalogue_offers_no_undo(admin_client):
    source = make_source()
    assert undo(admin_client, press(admin_client, source, "refresh_now")) is None


def test_secrets_are_never_kept(admin_client):
    """B9: only that they changed; the same ones encrypted anew are no change."""
    source = make_source("orders", api_key="first-secret")
    client = administrator()
    for key in ("second-secret", "second-secret"):
        body = {"credentials": {"api_key": key}}
        assert client.patch("/api/sources/orders/", body, format="json").status_code == 200
    last, first = HistoryEntry.of(source)
    assert (first.changes, last.changes) == ({"encrypted_credentials": ["(secret)", "(secret)"]}, {})
    assert "enter them again" in text_of(admin_client.get(page_url(first)))
    assert press(admin_client, first, "revert").status_code == 403
    client.delete("/api/sources/orders/")
    gone = latest(source)
    assert gone.kind == "deleted" and gone.changes["name"] == ["orders", None]
    assert not any("second-secret" in str(entry.changes) for entry in HistoryEntry.objects.all())


def test_a_revoked_token_stays_revoked(admin_client):
    """B8."""
    token, _ = create_token(name="agent")
    press(admin_client, token, "revoke")
    assert latest(token).changes["revoked_at"][0] is None
    assert "cannot be restored" in told(press(admin_client, latest(token), "revert"))
    assert AccessToken.objects.get().revoked_at


def test_what_was_added_is_told_with_its_values(admin_client):
    """B8: what is empty is left out."""
    make_workflow(name="report")
    body = {"slug": "finance", "picked": ["report"]}
    assert administrator().post("/api/toolsets/", body, format="json").status_code == 201
    entry = latest(Toolset.objects.get())
    assert entry.kind == "added" and entry.changes["picked"] == [None, ["report"]]
    assert entry.changes["slug"] == [None, "finance"] and "title" not in entry.changes
    assert "finance was deleted again" in told(press(admin_client, entry, "revert"))


def test_the_history_is_only_added_to(admin_client):
    """B8: by no door, and by no code."""
    disable_in_bulk(admin_client)
    entry = HistoryEntry.objects.get()
    for attempt in (entry.save, entry.delete, HistoryEntry.objects.all().delete):
        with pytest.raises(HistoryIsKept):
            attempt()
    with pytest.raises(HistoryIsKept):
        HistoryEntry.objects.update(message="Nothing.")
    delete = page_url(entry).replace("/change/", "/delete/")
    assert admin_client.post(delete, {"post": "yes"}).status_code == 403
    assert admin_client.post(page_url(entry), {"message": "Nothing."}).status_code == 403


@pytest.mark.databases("catalogue.admin.history")
def test_the_whole_history_is_searched_and_filtered(admin_client):
    """B8."""
    rename_by_form(admin_client)
    change_source_by_rest(admin_client)

    def shown(**query: str) -> list[str]:
        page = admin_client.get(list_url(HistoryEntry), query)
        return [entry.object_name for entry in page.context["cl"].result_list]

    assert shown() == ["orders", "monthly"]
    assert shown(q="month") == shown(door__exact="admin") == shown(of="catalogue.workflow") == ["monthly"]
    page = text_of(admin_client.get(list_url(HistoryEntry)))
    assert "Monthly" in page and "concurrent runs: empty → 2" in page
    assert text_of(admin_client.get(page_url(HistoryEntry.objects.latest("pk")))).count("60") >= 1


def test_an_objects_history_tells_the_values_and_leads_to_the_entries(admin_client):
    """B8."""
    workflow = rename_by_form(admin_client)
    url = reverse("admin:catalogue_workflow_history", args=[workflow.pk])
    page = admin_client.get(url)
    assert "title: empty → Monthly" in text_of(page)
    assert page_url(latest(workflow)) in page.content.decode()


def test_who_may_not_change_an_object_reverts_nothing_of_it(admin_client, staff_with):
    """B8: nor sees the button."""
    entry = latest(disable_in_bulk(admin_client))
    client = staff_with("view_historyentry", "view_workflow")
    assert "/revert/" not in client.get(page_url(entry)).content.decode()
    assert press(client, entry, "revert").status_code == 403
    assert not Workflow.objects.get().enabled


def test_a_change_of_many_costs_as_many_queries_as_one_of_few():
    """B8: with an entry for each, and its values."""
    counts = []
    for count in (2, 60):
        workflows = make_workflows(count)
        with CaptureQueriesContext(connection) as queries:
            disable_workflows(Workflow.objects.filter(enabled=True), by=command("somebody"))
        counts.append(len(queries))
        assert all(latest(workflow).changes == {"enabled": [True, False]} for workflow in workflows)
    assert counts[0] == counts[1] <= 12


# What was added and deleted


FILTER_BODY = {"pattern": "draft*", "action": "exclude", "position": 5, "note": "Not yet."}
TOOLSET_BODY = {
    "slug": "finance",
    "title": "Money",
    "mode": "compact",
    "picked": ["report"],
    "rules": [{"pattern": "pay*", "note": "All."}],
}
ADDITIONS = {
    "filters": (WorkflowFilter, FILTER_BODY),
    "toolsets": (Toolset, TOOLSET_BODY),
    "sources": (Source, {"name": "new", "kind": "simplified", "config": {"base_url": "http://127.0.0.1:9"}}),
}


def revert(client: Any, entry: HistoryEntry) -> Any:
    return client.post(f"/api/history/{entry.pk}/revert/", {}, format="json")


@pytest.mark.parametrize("kind", ADDITIONS)
def test_what_was_added_goes_and_what_was_deleted_comes_back(kind):
    """B8: whole, under the key that its history knows, and back again; each time as a change of its own."""
    make_workflow(make_source("orders"), name="report")
    model, body = ADDITIONS[kind]
    client, known = administrator(), set(model.objects.values_list("pk", flat=True))
    assert client.post(f"/api/{kind}/", body, format="json").status_code == 201
    added = HistoryEntry.objects.latest("pk")
    row = model.objects.exclude(pk__in=known).get()
    described = values_of(row)
    gone = revert(client, added)
    assert (gone.status_code, gone.json()["kind"], gone.json()["reverts"]) == (200, "deleted", added.pk)
    assert set(model.objects.values_list("pk", flat=True)) == known
    back = revert(client, HistoryEntry.objects.latest("pk"))
    assert (back.status_code, back.json()["kind"]) == (200, "added")
    restored = model.objects.exclude(pk__in=known).get()
    assert values_of(restored) == described and (kind == "sources" or restored.pk == row.pk)
    again = revert(client, HistoryEntry.objects.get(pk=gone.json()["id"]))
    assert again.status_code == 409
    assert revert(client, HistoryEntry.objects.get(pk=back.json()["id"])).status_code == 200
    assert set(model.objects.values_list("pk", flat=True)) == known


def test_a_toolset_deleted_by_a_page_comes_back_by_a_page(admin_client):
    toolset = make_toolset("finance", picked=[make_workflow(name="report")], rules=["pay*"])
    described = values_of(toolset)
    admin_client.post(page_url(toolset).replace("/change/", "/delete/"), {"post": "yes"})
    assert not Toolset.objects.exists()
    assert "finance was restored" in told(press(admin_client, latest(toolset), "revert"))
    assert values_of(Toolset.objects.get()) == described
    assert "already exists again." in told(
        press(admin_client, HistoryEntry.objects.get(kind="deleted"), "revert")
    )


def test_what_cannot_be_added_or_deleted_says_why(admin_client):
    """B8, B9: secrets are not kept, what is used stays, and nobody's later work is thrown away."""
    client = administrator()

    def add(address: str, body: dict[str, Any]) -> HistoryEntry:
        assert client.post(f"/api/{address}/", body, format="json").status_code == 201
        return HistoryEntry.objects.latest("pk")

    def refusal(entry: HistoryEntry) -> str:
        answer = revert(client, entry)
        assert answer.status_code == 409, answer.json()
        return str(answer.json()["detail"])

    toolset = add("toolsets", {"slug": "finance"})
    client.patch("/api/toolsets/finance/", {"title": "Money"}, format="json")
    assert "title of finance changed since it was added. Revert that change first" in refusal(toolset)
    assert revert(client, HistoryEntry.objects.latest("pk")).status_code == 200
    create_token(name="agent", toolset=Toolset.objects.get())
    assert "finance cannot be deleted: Access tokens belong to it." in refusal(toolset)
    rule = make_filter("a*")
    rename = make_workflow(name="report")
    source = make_source("secret", api_key="hidden")
    client.delete("/api/sources/secret/")
    assert "enter them again" in refusal(latest(source))
    new = add("sources", ADDITIONS["sources"][1])
    make_workflow(Source.objects.get(name="new"))
    assert "new now has 1 workflow: delete it by hand." in refusal(new)
    other = add("toolsets", {"slug": "other", "picked": ["report"]})
    client.delete("/api/toolsets/other/")
    deleted = HistoryEntry.objects.latest("pk")
    rename.source.delete()
    assert "No such workflow: report." in refusal(deleted)
    assert "no longer exists" in refusal(other) and rule.pk


def test_a_token_reverts_what_rest_lets_it_change_and_a_person_what_they_may(admin_client):
    """B8: and no less, as for the wait of another token."""
    token = change_wait_of_token(admin_client)
    assert revert(administrator(), latest(token)).status_code == 200
    entry = latest(disable_in_bulk(admin_client))
    for permissions in (["view_historyentry"], ["change_workflow"]):
        assert revert(staff_session(*permissions), entry).status_code == 403
        User.objects.filter(username="curator").delete()
    assert revert(staff_session("view_historyentry", "change_workflow"), entry).status_code == 200
    assert Workflow.objects.get().enabled


# Imports and what is declared here


TOOL = {
    "name": "get_order",
    "description": "Reads one order.",
    "api": {"endpoint": "https://api.example.com/orders/{order_id}", "method": "GET"},
    "input_schema": {
        "type": "object",
        "properties": {"order_id": {"type": "string"}},
        "required": ["order_id"],
    },
}


def openapi(summary: str) -> dict[str, str]:
    operation = {"operationId": "list_orders", "summary": summary, "responses": {"200": {"description": ""}}}
    document = {
        "openapi": "3.1.0",
        "info": {"title": "Shop", "version": "1"},
        "servers": [{"url": "https://shop.example.com"}],
        "paths": {"/orders": {"get": operation}},
    }
    return {"document": json.dumps(document)}


def temporal(purpose: str) -> dict[str, str]:
    connection = "temporal: {hostPort: '127.0.0.1:9', timeout: 1s}"
    return {"file": f"{connection}\nworkflows: {{A: {{purpose: {purpose}, taskQueue: q}}}}"}


DECLARATIONS: dict[str, Callable[[str], dict[str, Any]]] = {
    "tools": lambda words: TOOL | {"description": words},
    "openapi-imports": openapi,
    "temporal-imports": temporal,
}


@pytest.mark.parametrize("door", DECLARATIONS)
def test_what_is_declared_anew_is_kept_with_its_values(door):
    """B8: of the tool what its words were, of the source that it was added."""
    client, declare = administrator(), DECLARATIONS[door]
    assert client.post(f"/api/{door}/", declare("First words."), format="json").status_code in (200, 201)
    workflow, source = Workflow.objects.get(), Source.objects.get()
    added = latest(workflow)
    assert (added.kind, added.message, added.door) == ("added", "Declared: added.", "rest")
    nothing, first = added.changes["description"]
    assert nothing is None and first.startswith("First words.") and "input_schema" in added.changes
    assert "content_hash" not in added.changes, "it follows from the others"
    assert latest(source).kind == "added" and latest(source).changes["name"] == [None, source.name]
    assert client.post(f"/api/{door}/", declare("Other words."), format="json").status_code == 200
    changed = latest(workflow)
    assert (changed.kind, changed.message) == ("changed", "Declared: updated.")
    assert changed.changes["description"] == [first, first.replace("First", "Other")]
    assert "input_schema" not in changed.changes and changed.revision == Revision.current()
    assert "declare it again" in revert(client, changed).json()["detail"]
    count = HistoryEntry.of(workflow).count()
    client.post(f"/api/{door}/", declare("Other words."), format="json")
    assert HistoryEntry.of(workflow).count() == count, "nothing changed"


def test_an_import_of_a_configuration_is_kept_with_its_values_and_can_be_reverted(tmp_path):
    """B8: of every kind of object, and of what it pruned."""
    make_workflow(make_source("orders"), name="report", upstream_id="wf-1")
    toolset, rule = make_toolset("finance", rules=["a*"]), make_filter("draft*", action="exclude")
    make_toolset("old")
    text = """
version: 1
sources: {orders: {kind: simplified, config: {base_url: 'http://127.0.0.1:9'}, change_policy: hold}}
filters: [{action: exclude, subject: name, syntax: glob, pattern: draft*, note: Not yet.}]
toolsets: {finance: {title: Money, picked: [monthly], rules: [{action: include, subject: name, pattern: b*}]}}
workflows: {orders: {wf-1: {tool_name: monthly, title: Monthly}}}
"""
    (tmp_path / "catalogue.yaml").write_text(text)
    call_command("import_catalogue", str(tmp_path / "catalogue.yaml"), "--prune")
    source, workflow = Source.objects.get(), Workflow.objects.get()
    assert latest(source).changes["change_policy"] == ["careful", "hold"]
    assert latest(rule).changes["note"] == ["", "Not yet."]
    assert latest(workflow).changes == {"tool_name": ["report", "monthly"], "title_override": ["", "Monthly"]}
    changes = latest(toolset).changes
    assert changes["picked"] == [[], ["monthly"]] and changes["title"] == ["", "Money"]
    assert [rule["pattern"] for side in changes["rules"] for rule in side] == ["a*", "b*"]
    pruned = HistoryEntry.objects.get(object_name="old")
    assert (pruned.kind, pruned.changes["slug"]) == ("deleted", ["old", None])
    client = administrator()
    for entry in (latest(toolset), latest(workflow), latest(source), latest(rule), pruned):
        assert revert(client, entry).status_code == 200, entry
    assert Workflow.objects.get().tool_name == "report" and Toolset.objects.filter(slug="old").exists()


@pytest.mark.databases("catalogue.rest.history")
def test_rest_lists_the_history(admin_client):
    """B8: with filters, for administrators; and changes nothing of it."""
    workflow = disable_in_bulk(admin_client)
    change_source_by_rest(admin_client)
    client = administrator()
    assert client.get("/api/history/").json()["count"] == 2
    query = {"model": "catalogue.workflow", "object_id": workflow.pk, "door": "admin", "search": "WORKFLOW"}
    (entry,) = client.get("/api/history/", query).json()["results"]
    assert entry["changes"] == {"enabled": [True, False]} and entry["revision"]
    assert client.get(f"/api/history/{entry['id']}/").json() == entry
    assert client.delete(f"/api/history/{entry['id']}/").status_code == 405
    later = {"at_after": "2999-01-01T00:00:00Z"}
    assert client.get("/api/history/", later).json()["count"] == 0
    assert Source.objects.count() == 2
