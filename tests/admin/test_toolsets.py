"""Toolsets in the admin: chosen, weighed, looked at, deleted."""

import re
from html import unescape
from typing import Any

import pytest
from django.urls import reverse

from catalogue.exposure import load_exposed_catalogue
from catalogue.models import Revision, Toolset, ToolsetRule
from identity.bearers import authenticate
from identity.client_configuration import HttpServer, McpClient
from identity.models import AccessToken
from identity.tokens import create_token
from tests.admin.pages import add_url, list_url, page_url, text_of
from tests.factories import make_toolset, make_workflow

pytestmark = pytest.mark.django_db


def test_a_token_added_from_a_toolsets_tokens_is_bound_to_it(admin_client):
    """D4, B8: the way there leads by the toolset's number of tokens and the list's button to add one."""
    toolset = make_toolset("finance")
    page = admin_client.get(page_url(toolset)).content.decode()
    tokens = re.search(r'href="([^"]*toolset__id__exact=[^"]*)"', page)
    assert tokens
    listed = admin_client.get(unescape(tokens[1])).content.decode()
    add = re.search(rf'href="({add_url(AccessToken)}[^"]*)"', listed)
    assert add
    form = admin_client.get(unescape(add[1])).context["adminform"].form
    assert form["toolset"].value() == str(toolset.pk)


NEW = {"slug": "finance", "mode": "full", "enabled": "on", "description": "For accounting."}


def rules_form(*rules: dict[str, Any], before: int = 0) -> dict[str, Any]:
    """The inline forms of these rules; `before` of them exist already."""
    fields: dict[str, Any] = {"rules-TOTAL_FORMS": len(rules), "rules-INITIAL_FORMS": before}
    usual = {"action": "include", "subject": "name", "syntax": "glob", "enabled": "on", "position": ""}
    for number, rule in enumerate(rules):
        fields |= {f"rules-{number}-{name}": value for name, value in (usual | rule).items()}
    return fields


def shown_by(slug: str) -> list[str]:
    return list(load_exposed_catalogue().toolsets[slug].workflows)


def test_a_toolset_is_made_of_rules_and_picks(admin_client):
    """A4.2, A4.4: in one go, and agents notice."""
    workflows = {name: make_workflow(name=name) for name in ("a1", "a2", "b")}
    revision = Revision.current()
    given = (
        NEW
        | {"picked": [workflows["b"].pk]}
        | rules_form({"pattern": "a2", "action": "exclude"}, {"pattern": "a*"})
    )
    response = admin_client.post(add_url(Toolset), given)
    assert response.status_code == 302, response.context["errors"]
    assert shown_by("finance") == ["a1", "b"]
    assert Revision.current() > revision


def test_new_rules_come_last_in_the_order_in_which_they_stand(admin_client):
    """A4.2: so that an addition overrules nothing by accident."""
    toolset = make_toolset("finance", rules=["first", "second"])
    kept = [
        {"id": rule.pk, "position": rule.position, "pattern": rule.pattern} for rule in toolset.rules.all()
    ]
    given = NEW | rules_form(*kept, {"pattern": "third"}, {"pattern": "fourth"}, before=2)
    assert admin_client.post(page_url(toolset), given).status_code == 302
    assert [rule.pattern for rule in toolset.rules.all()] == ["first", "second", "third", "fourth"]
    moved = [
        {"id": rule.pk, "position": rule.position, "pattern": rule.pattern} for rule in toolset.rules.all()
    ]
    moved[0]["position"] = ""
    assert admin_client.post(page_url(toolset), NEW | rules_form(*moved, before=4)).status_code == 302
    assert [rule.pattern for rule in toolset.rules.all()] == ["second", "third", "fourth", "first"]


@pytest.mark.parametrize(
    ("given", "rule", "said"),
    [
        ({"slug": "Not A Slug"}, {"pattern": "a"}, "lower-case letters"),
        ({"slug": "taken"}, {"pattern": "a"}, "already exists"),
        ({"token_budget": "0"}, {"pattern": "a"}, "greater than or equal to 1"),
        ({}, {"pattern": "(?=x)", "syntax": "regex"}, "look-arounds"),
        ({}, {"pattern": "a", "position": "-1"}, "greater than or equal to 0"),
        ({"picked": ["99999999"]}, {"pattern": "a"}, "not one of the available choices"),
    ],
)
def test_what_cannot_be_is_explained_and_nothing_is_saved(admin_client, given, rule, said):
    """B4, B5"""
    make_toolset("taken")
    response = admin_client.post(add_url(Toolset), NEW | given | rules_form(rule))
    assert said in text_of(response)
    assert Toolset.objects.count() == 1
    assert not ToolsetRule.objects.exists()


@pytest.mark.databases("mcp_bridge.admin.toolsets")
def test_the_list_shows_addresses_sizes_and_budgets(admin_client):
    """D5: what each list of tools costs a client's context."""
    make_workflow(name="long", description="x" * 4000)
    make_toolset("tight", rules=["*"], token_budget=1900)
    make_toolset("wide", rules=["*"], token_budget=1_000_000)
    make_toolset("small", rules=["*"], mode="compact", enabled=False)
    page = admin_client.get(list_url(Toolset))
    shown = text_of(page)
    assert re.search(r"/mcp/tight full 1 about [\d,]+ \d+ % over budget 0", shown)
    assert re.search(r"/mcp/wide full 1 about [\d,]+ within budget 0", shown)
    assert re.search(r"/mcp/small compact 1 about [\d,]+ - 0", shown)
    tight = text_of(admin_client.get(page_url(Toolset.objects.get(slug="tight"))))
    assert re.search(r"of 1,900 tokens: \d+ % over; switch it to compact mode or", tight)
    assert re.search(r"see all of them at \S+/mcp: \d+ tools, [\d,]+ characters, about [\d,]+ tokens", shown)


def test_a_toolsets_page_tells_what_it_shows_why_and_what_it_costs(admin_client):
    """A4.2, D5: with the first names."""
    picked, hidden = make_workflow(name="by_hand"), make_workflow(name="not_enabled", enabled=False)
    for number in range(23):
        make_workflow(name=f"rule_{number:02}")
    toolset = make_toolset("finance", picked=[picked, hidden], rules=["rule_*"], token_budget=10)
    shown = text_of(admin_client.get(page_url(toolset)))
    assert "1 picked by hand by_hand" in shown
    assert "23 included by its rules rule_00" in shown
    assert "and 3 more" in shown
    assert "24 workflows would be in it. 1 more is picked, but agents see it only once" in shown
    assert "1 picked by hand, but not exposed not_enabled" in shown
    assert re.search(r"List in full mode 3\d tools, [\d,]+ characters, about [\d,]+ tokens", shown)
    assert re.search(
        r"of 10 tokens: [\d,]+ % over; raise the budget, because the built-in tools alone", shown
    )


def test_a_toolsets_page_has_a_configuration_for_its_address(admin_client):
    """E8"""
    page = unescape(admin_client.get(page_url(make_toolset("finance"))).content.decode())
    for client in McpClient:
        assert HttpServer(token=None, toolset="finance").configure(client) in page


def test_a_switched_off_toolset_is_previewed(admin_client):
    """A4.2: before agents notice anything."""
    make_workflow(name="a")
    shown = text_of(admin_client.get(page_url(make_toolset(rules=["a"], enabled=False))))
    assert "What it would show if it were enabled" in shown
    assert "1 included by its rules a" in shown


@pytest.mark.databases("identity.tokens")
def test_a_tokens_name_does_not_turn_why_its_toolset_is_not_deleted(admin_client):
    toolset = make_toolset("finance")
    create_token(name="ci\u202erunner", toolset=toolset)
    question = admin_client.get(page_url(toolset).replace("/change/", "/delete/"))
    assert r"bound to the toolset finance: ci\u202erunner. Revoke them" in text_of(question)


def test_a_toolset_with_tokens_is_not_deleted_until_they_are_revoked(admin_client):
    """B8: a token must not see everything because its bounds are gone."""
    toolset = make_toolset("finance")
    token, _ = create_token(name="accounting", toolset=toolset)
    url = page_url(toolset).replace("/change/", "/delete/")
    assert "Revoke them first" in text_of(admin_client.get(url))
    admin_client.post(url, {"post": "yes"})
    in_bulk = {"action": "delete_selected", "_selected_action": [toolset.pk], "post": "yes"}
    admin_client.post(list_url(Toolset), in_bulk)
    assert Toolset.objects.exists()
    token.revoke()
    assert admin_client.post(url, {"post": "yes"}).status_code == 302
    assert not Toolset.objects.exists()
    other = make_toolset("other", rules=["a"])
    admin_client.post(list_url(Toolset), in_bulk | {"_selected_action": [other.pk]})
    assert not Toolset.objects.exists()


def test_a_workflows_page_names_its_toolsets(admin_client):
    """A4.2: and why it is in each."""
    workflow = make_workflow(name="a")
    make_toolset("by-hand", picked=[workflow])
    make_toolset("by-rule", rules=["a"], enabled=False)
    make_toolset("elsewhere", rules=["b"])
    page = admin_client.get(page_url(workflow))
    assert [(one.slug, picked) for one, picked in page.context["memberships"]] == [
        ("by-hand", True), ("by-rule", False),
    ]  # fmt: skip
    assert "by-rule : by its rules, but the toolset is disabled" in text_of(page)


def test_a_token_is_bound_to_a_toolset_when_it_is_made(admin_client):
    """A4.2: its configuration has the toolset's address, its list and page name the toolset."""
    toolset = make_toolset("finance")
    given = {"name": "accounting", "scopes": ["workflows:read", "workflows:run"], "toolset": toolset.pk}
    page = unescape(admin_client.post(add_url(AccessToken), given).content.decode())
    token = authenticate(re.findall(r"wfc_[\w-]{20,}", page)[0])
    assert token is not None and token.caller.toolset == "finance"
    assert "/mcp/finance" in page
    assert "finance" in text_of(admin_client.get(list_url(AccessToken), {"toolset__id__exact": toolset.pk}))
    shown = text_of(admin_client.get(page_url(AccessToken.objects.get())))
    assert re.search(r"Toolset finance Address \S+/mcp/finance", shown)


def test_names_of_engines_are_shown_letter_by_letter(admin_client):
    """B8"""
    toolset = make_toolset(title="<script>alert(1)</script>", description="<img src=x onerror=alert(1)>")
    page = admin_client.get(page_url(toolset)).content.decode()
    assert "<script>alert" not in page and "<img src=x" not in page


def test_what_providers_refuse_is_said_before_and_mended_by_portable_mode(admin_client):
    """A4.4"""
    odd = {"type": "object", "properties": {"page[size]": {"type": "integer"}}, "oneOf": [{}]}
    workflows = [make_workflow(name="pay.all", input_schema=odd), make_workflow(name="fine")]
    toolset = make_toolset("finance", picked=workflows)

    said = text_of(admin_client.get(page_url(toolset)))
    given = NEW | {"picked": [one.pk for one in workflows], "portable": "on"} | rules_form()
    assert admin_client.post(page_url(toolset), given).status_code == 302
    mended = text_of(admin_client.get(page_url(toolset)))

    refused = 'pay.all : oneOf at the root of the schema; arguments called "page[size]"; the name "pay.all"'
    assert refused in said and "fine :" not in said
    assert "model providers refuse" not in mended
    assert Toolset.objects.get().portable
    assert load_exposed_catalogue().toolsets["finance"].aliases == {"pay.all": "pay_all"}


def test_whoever_may_change_toolsets_may_change_their_rules(staff_with):
    """B8: as by REST; previewed as well."""
    make_workflow(name="a1")
    curator = staff_with("view_toolset", "add_toolset", "change_toolset")
    given = NEW | rules_form({"pattern": "a*"})
    preview = reverse("admin:catalogue_toolset_preview_new")
    assert "1 new in it a1" in text_of(curator.post(preview, given))
    assert curator.post(add_url(Toolset), given).status_code == 302
    assert shown_by("finance") == ["a1"]


def test_what_is_picked_and_typed_is_weighed_against_the_budget_before_it_is_saved(admin_client):
    """D4, A4.2: what would be in it, new or no longer, and what the list would cost."""
    kept, picked, ruled = (make_workflow(name=name) for name in ("kept", "picked", "ruled"))
    toolset = make_toolset("finance", picked=[kept])
    url = reverse("admin:catalogue_toolset_preview", args=[toolset.pk])
    given = NEW | {"picked": [picked.pk], "token_budget": "10"} | rules_form({"pattern": "rul*"})
    shown = text_of(admin_client.post(url, given))
    assert "2 workflows would be in it." in shown
    assert "1 picked by hand picked" in shown and "1 included by its rules ruled" in shown
    assert "2 new in it picked ruled" in shown and "1 no longer in it kept" in shown
    assert " of 10 tokens: " in shown and " % over" in shown
    broken = text_of(admin_client.post(url, given | {"rules-0-syntax": "regex", "rules-0-pattern": "("}))
    assert "Rule: " in broken and "1 workflow would be in it." in broken
    assert list(toolset.picked.all()) == [kept] and not toolset.rules.exists()
    new = reverse("admin:catalogue_toolset_preview_new")
    assert "1 new in it kept" in text_of(admin_client.post(new, rules_form() | {"picked": [kept.pk]}))
    assert ruled.tool_name == "ruled"


@pytest.mark.databases("mcp_bridge.admin.toolsets")
def test_workflows_to_pick_are_found_by_words_and_globs(admin_client):
    """A4.2: with their cost; no more than a page shows."""
    for number in range(60):
        make_workflow(name=f"billing_{number}", tags=["money"])
    make_workflow(name="report", description="Money of last month.", enabled=False)
    url = reverse("admin:catalogue_toolset_choices")

    def found(text: str) -> str:
        return text_of(admin_client.get(url, {"find_workflows": text}))

    assert "and 11 more: type more of the name" in found("money")
    assert "and 10 more" in found("billing_*")
    only = found("money month")
    assert only.startswith("report") and "not exposed" in only and "tokens" in only
    assert "No workflow matches all of these words." in found("nothing")


def test_the_page_shows_what_is_picked_and_leads_to_a_token_for_it(admin_client, staff_with):
    """D4: bound to the toolset from the start; no way there for who may make none."""
    toolset = make_toolset("finance", picked=[make_workflow(name="report")])
    page = admin_client.get(page_url(toolset)).content.decode()
    assert 'name="picked"' in page and "report" in page
    way = re.search(rf'href="({add_url(AccessToken)}[^"]*)"', page)
    assert way
    form = admin_client.get(unescape(way[1])).context["adminform"].form
    assert str(form["toolset"].value()) == str(toolset.pk)
    curator = staff_with("change_toolset", "view_toolset")
    assert add_url(AccessToken) not in curator.get(page_url(toolset)).content.decode()
