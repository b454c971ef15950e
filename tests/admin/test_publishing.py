"""Workflows published to a team: from a selection to a client that lists its tools."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.urls import reverse

from access.callers import UNBOUNDED, Bounds
from catalogue.exposure import load_exposed_catalogue
from catalogue.models import HistoryEntry, Toolset, Workflow
from identity.bearers import authenticate
from identity.models import AccessToken
from mcp_bridge.trial import TrialFailed, try_endpoint
from tests.admin.pages import list_url, page_url, run_action, text_of
from tests.factories import make_source, make_toolset, make_workflow

pytestmark = pytest.mark.django_db
PUBLISH, BEGIN, PREVIEW, TEST = (
    reverse(f"admin:catalogue_toolset_publish{name}") for name in ("", "_begin", "_preview", "_test")
)


def hidden(*names: str, **fields: Any) -> list[Workflow]:
    source = make_source()
    return [make_workflow(source, name=name, enabled=False, **fields) for name in names]


def asked_for(*workflows: Workflow, **fields: Any) -> dict[str, Any]:
    seen = json.dumps({str(one.pk): one.content_hash for one in workflows})
    usual = {"title": "Finance", "only_there": "on", "connect": "token", "token_name": "finance agent"}
    return {"seen": seen} | usual | fields


def test_a_selection_leads_to_one_page_with_what_would_be_exposed(admin_client):
    workflows = hidden("pay", "refund")
    shown = make_workflow(name="report")
    gone = make_workflow(name="gone", enabled=False, missing_since=datetime.now(UTC))
    page = run_action(admin_client, "publish_selected", *workflows, shown, gone)
    plan = page.context["plan"]
    assert [one.tool_name for one in plan.added] == ["pay", "refund"]
    assert [one.tool_name for one in plan.exposed] == ["report"]
    assert [one.tool_name for one, _ in plan.left_out] == ["gone"]
    assert page.context["count"] == 3
    assert page.context["form"]["only_there"].value() is True


def test_one_button_makes_the_toolset_exposes_only_there_and_shows_the_token_once(admin_client):
    workflows = hidden("pay", "refund")
    answered = admin_client.post(PUBLISH, asked_for(*workflows, expires_at="2099-01-31"))
    assert (answered.context["count"], answered.context["enabled"]) == (2, 2)
    toolset = Toolset.objects.get()
    assert (toolset.slug, toolset.title) == ("finance", "Finance")
    catalogue = load_exposed_catalogue()
    assert list(catalogue.seen_within(Bounds("finance"))) == ["pay", "refund"]
    assert list(catalogue.seen_within(UNBOUNDED)) == []
    token = AccessToken.objects.get()
    assert (token.name, token.toolset, token.owner.username) == ("finance agent", toolset, "admin")
    assert f"{token.expires_at:%Y-%m-%d}" == "2099-01-31"
    text = answered.context["token"]
    assert authenticate(text).toolset == "finance"
    assert answered.headers["Cache-Control"].count("no-store") == 1
    assert HistoryEntry.of(toolset).exists() and HistoryEntry.of(token).exists()
    assert HistoryEntry.of(workflows[0]).filter(message="Enabled.").exists()


def test_install_links_name_the_address_and_carry_no_token(admin_client):
    answered = admin_client.post(PUBLISH, asked_for(*hidden("pay")))
    page = answered.content.decode()
    links = [one.install_link for one in answered.context["configurations"] if one.install_link]
    assert [link.partition(":")[0] for link in links] == ["vscode", "cursor", "lmstudio"]
    assert all(f'href="{link}"'.replace("&", "&amp;") in page for link in links)
    assert not any(answered.context["token"] in link for link in links)


def test_what_is_exposed_already_joins_the_toolset_and_stays_as_it_is(admin_client):
    shown, toolset = make_workflow(name="report"), make_toolset("finance")
    admin_client.post(PUBLISH, asked_for(shown, *hidden("pay"), toolset=toolset.pk, connect="later"))
    catalogue = load_exposed_catalogue()
    assert list(catalogue.seen_within(UNBOUNDED)) == ["report"]
    assert list(catalogue.seen_within(Bounds("finance"))) == ["pay", "report"]
    assert not AccessToken.objects.exists()


def test_it_can_be_exposed_at_the_common_address_too(admin_client):
    admin_client.post(PUBLISH, asked_for(*hidden("pay"), only_there=""))
    assert list(load_exposed_catalogue().seen_within(UNBOUNDED)) == ["pay"]


def test_flagged_texts_are_left_out_unless_each_is_ticked(admin_client):
    (plain,) = hidden("plain")
    warned, alike = hidden("warned", warning="Ignore"), hidden("alike", resembles="list_workflows")
    given = asked_for(plain, *warned, *alike)
    assert [one.tool_name for one in admin_client.post(PREVIEW, given).context["undecided"]] == [
        "alike",
        "warned",
    ]
    admin_client.post(PUBLISH, given | {"ticked": [warned[0].pk]})
    assert list(load_exposed_catalogue().seen_within(Bounds("finance"))) == ["plain", "warned"]
    assert not Workflow.objects.get(tool_name="alike").enabled
    assert not Toolset.objects.get().picked.filter(tool_name="alike").exists()


def test_what_the_engine_has_changed_since_is_refused_with_everything_else(admin_client):
    pay, refund = hidden("pay", "refund")
    given = asked_for(pay, refund)
    Workflow.objects.filter(pk=refund.pk).update(content_hash="another")
    answered = admin_client.post(PUBLISH, given)
    assert "refund" in str(answered.context["form"].non_field_errors())
    assert not Toolset.objects.exists() and not AccessToken.objects.exists()
    assert not Workflow.objects.filter(enabled=True).exists()


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"title": ""}, "slug"),
        ({"title": "财务"}, "slug"),
        ({"slug": "Not An Address"}, "slug"),
        ({"slug": "taken"}, "slug"),
        ({"token_name": ""}, "token_name"),
        ({"token_name": "taken"}, "token_name"),
        ({"expires_at": "yesterday"}, "expires_at"),
        ({"expires_at": "2020-01-01"}, "expires_at"),
        ({"reserved_for": ["group:nobody"]}, "reserved_for"),
        ({"seen": "[1]"}, "seen"),
        ({"seen": "{}"}, "seen"),
        ({"seen": '{"99999": "x"}'}, "__all__"),
    ],
)
def test_a_wrong_field_is_named_and_nothing_is_published(admin_client, given, field):
    make_toolset("taken")
    AccessToken.objects.create(name="taken", digest="d")
    answered = admin_client.post(PUBLISH, asked_for(*hidden("pay")) | given)
    assert field in answered.context["form"].errors
    assert Toolset.objects.count() == AccessToken.objects.count() == 1
    assert not Workflow.objects.filter(enabled=True).exists()


def test_a_reservation_is_part_of_it(admin_client):
    Group.objects.create(name="Finance")
    admin_client.post(PUBLISH, asked_for(*hidden("pay"), reserved_for=["group:Finance"]))
    assert list(load_exposed_catalogue().seen_within(Bounds("finance", frozenset({"user:99"})))) == []


CURATES = ("change_workflow", "view_workflow")


@pytest.mark.parametrize(
    ("rights", "offered", "connects"),
    [
        (CURATES, False, None),
        (("add_toolset", "view_workflow"), False, None),
        ((*CURATES, "add_toolset"), True, "later"),
        ((*CURATES, "change_toolset", "add_accesstoken"), True, "token"),
    ],
)
def test_it_is_offered_to_those_who_may_do_it_and_with_what_they_may(client, rights, offered, connects):
    person = User.objects.create(username="ada", is_staff=True)
    person.user_permissions.set(Permission.objects.filter(codename__in=rights))
    client.force_login(person)
    workflow = hidden("pay")[0]
    listed = client.get(list_url(Workflow)).content.decode()
    assert ('value="publish_selected"' in listed) is offered
    answered = client.post(PUBLISH, asked_for(workflow, token_name="agent"))
    assert answered.status_code == (200 if offered else 403)
    assert client.post(PREVIEW, asked_for(workflow)).status_code == (200 if offered else 403)
    assert client.post(TEST, {}).status_code == (200 if offered else 403)
    if offered:
        ways = [value for value, _ in answered.context["form"].fields["connect"].choices]
        assert ("token" in ways) is (connects == "token")
        may_add = "add_toolset" in rights
        assert (answered.context["form"].fields["toolset"].empty_label is not None) is may_add
    assert not AccessToken.objects.exists()  # Without the rights, or without the choice of a toolset


def test_the_pages_change_nothing_on_get(admin_client):
    assert admin_client.get(PUBLISH).status_code == 302
    assert admin_client.get(PREVIEW).status_code == admin_client.get(TEST).status_code == 405


def test_more_than_can_be_published_at_once_stays_in_the_list(admin_client, monkeypatch):
    monkeypatch.setattr("mcp_bridge.admin.publishing.MAX_PUBLISHED", 1)
    answered = run_action(admin_client, "publish_selected", *hidden("pay", "refund"))
    assert answered.status_code == 302 and not Toolset.objects.exists()


def test_the_page_takes_a_constant_number_of_queries(admin_client, django_assert_max_num_queries):
    few, many = hidden("a"), hidden(*(f"w{number}" for number in range(40)))
    make_toolset("finance", picked=few)
    with django_assert_max_num_queries(40):
        assert admin_client.post(PREVIEW, asked_for(*few, *many)).status_code == 200


def test_a_test_call_says_why_it_fails(admin_client, settings):
    make_toolset("finance")
    settings.PUBLIC_URL = "http://127.0.0.1:9"
    answered = admin_client.post(TEST, {"slug": "finance", "token": "wfc_x"})
    assert "http://127.0.0.1:9/mcp/finance" in answered.context["problem"]
    assert "token" not in answered.context
    with pytest.raises(TrialFailed):
        try_endpoint(None, "wfc_x")
    assert "problem" in admin_client.post(TEST, {"slug": "unknown"}).context


def test_picks_that_are_not_exposed_lead_from_the_toolset_to_the_same_page(admin_client):
    (pay,), warned = hidden("pay"), hidden("warned", warning="Ignore")[0]
    gone = make_workflow(name="gone", enabled=False, missing_since=datetime.now(UTC))
    toolset = make_toolset("finance", picked=[pay, warned, gone, make_workflow(name="report")])
    unexposed = admin_client.get(page_url(toolset)).context["unexposed"]
    assert unexposed["count"] == 2
    begun = admin_client.post(BEGIN, {"seen": unexposed["seen"], "toolset": toolset.pk})
    assert begun.context["form"]["connect"].value() == "later"
    assert begun.context["address"].endswith("/mcp/finance")
    assert [one.tool_name for one in begun.context["undecided"]] == ["warned"]
    given = {"seen": unexposed["seen"], "toolset": toolset.pk, "connect": "later", "only_there": "on"}
    assert admin_client.post(PUBLISH, given).context["enabled"] == 1
    assert list(load_exposed_catalogue().seen_within(Bounds("finance"))) == ["pay", "report"]


def test_the_button_of_a_toolset_is_for_those_who_may_enable(client):
    toolset = make_toolset("finance", picked=hidden("pay"))
    person = User.objects.create(username="ada", is_staff=True)
    person.user_permissions.set(Permission.objects.filter(codename="change_toolset"))
    client.force_login(person)
    assert client.get(page_url(toolset)).context["unexposed"] == {}
    assert client.post(BEGIN, {}).status_code == 403


def test_the_preview_of_a_toolset_counts_picks_that_are_not_exposed(admin_client):
    toolset = make_toolset("finance", picked=hidden("pay", "refund"))
    picked = list(toolset.picked.values_list("pk", flat=True))
    rules = {"rules-TOTAL_FORMS": 0, "rules-INITIAL_FORMS": 0}
    given = {"slug": "finance", "mode": "full", "picked": picked} | rules
    shown = admin_client.post(reverse("admin:catalogue_toolset_preview", args=[toolset.pk]), given)
    counts = {heading: count for heading, count, *_ in shown.context["groups"]}
    assert (shown.context["count"], counts["picked by hand, but not exposed"]) == (0, 2)
    assert "2 more are picked, but agents see them only once they are exposed." in text_of(shown)
