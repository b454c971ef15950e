"""What is entered into the audit at each door, and who reads it where."""

import json
import logging
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from rest_framework.test import APIClient

from audit.models import Entry, Kind, record
from audit.sealing import head, seal, verify
from catalogue.access import Scope
from catalogue.long_lists import SEARCHED
from mcp_bridge.tokens import create_token
from tests.admin.pages import text_of
from tests.api.clients import TokenClient, administrator, staff_session
from tests.factories import make_execution, make_source, make_toolset, make_workflow

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.databases("catalogue.admin.history", "catalogue.audit", "executions.audit"),
]
PASSWORD = "correct horse battery"
FROM = {"REMOTE_ADDR": "203.0.113.9", "HTTP_USER_AGENT": "Firefox/150"}


def sign_in(client: Client, name: str, password: str) -> Any:
    return client.post(reverse("admin:login"), {"username": name, "password": password}, **FROM)


def entries(**wanted: Any) -> list[tuple[str, ...]]:
    shown = Entry.objects.filter(**wanted).order_by("pk")
    return [(one.event, one.actor_name, one.subject_name, one.address, one.client) for one in shown]


# What is entered


def test_sign_ins_sign_outs_and_failures_are_entered_with_where_they_came_from():
    """16.6"""
    User.objects.create_superuser("ada", password=PASSWORD)
    client = Client()
    sign_in(client, "ada", "wrong")
    sign_in(client, "ada", PASSWORD)
    client.post(reverse("admin:logout"), **FROM)

    where = ("203.0.113.9", "Firefox/150")
    assert entries() == [
        ("sign_in.failed", "", "ada", *where),
        ("sign_in.succeeded", "ada", "", *where),
        ("sign_in.ended", "ada", "", *where),
    ]


def test_what_is_entered_as_the_name_of_an_account_that_does_not_exist_is_not_kept():
    """16.7: people type their password there."""
    sign_in(Client(), PASSWORD, PASSWORD)

    entry = Entry.objects.get()
    assert (entry.event, json.loads(entry.details)) == ("sign_in.failed", {"known_account": False})
    assert PASSWORD not in str(entry.content())


def test_refused_tokens_are_entered_without_the_token(caplog):
    caplog.set_level(logging.CRITICAL)
    APIClient().get("/api/sources/", HTTP_AUTHORIZATION="Bearer wfc_unknown0123456789", **FROM)

    entry = Entry.objects.get()
    assert (entry.kind, entry.event, entry.outcome, entry.address) == (
        Kind.TOKEN, "token.refused", "refused", "203.0.113.9",
    )  # fmt: skip
    assert "0123456789" not in str(entry.content())


def test_what_the_history_says_is_entered_by_its_kind(admin_client):
    """16.6: tokens, accounts, settings and curation, each from the door that did it."""
    source, api = make_source("erp"), administrator()
    api.patch(f"/api/sources/{source.name}/", {"enabled": False})
    api.patch("/api/settings/", {"inline_wait": 7})
    token, _ = create_token(name="agent")
    admin_client.post(reverse("admin:mcp_bridge_accesstoken_revoke", args=[token.pk]))
    admin_client.post(
        reverse("admin:auth_user_add"),
        {"username": "eve", "usable_password": "true", "password1": PASSWORD, "password2": PASSWORD},
    )
    seal()

    told = {(one.kind, one.event, one.door, one.subject_name) for one in Entry.objects.exclude(key=None)}
    assert told == {
        (Kind.CURATION, "source.changed", "rest", "erp"),
        (Kind.SETTING, "productsettings.added", "rest", "Settings"),
        (Kind.TOKEN, "accesstoken.changed", "admin", "agent"),
        (Kind.ACCOUNT, "user.changed", "admin", "eve"),
    }
    assert "access token: changed" in text_of(admin_client.get(reverse("admin:audit_entry_changelist")))
    assert verify().holds


def test_a_call_by_rest_is_entered_with_address_and_client(settings):
    workflow = make_workflow(name="report")
    caller = TokenClient(Scope.RUN)
    answer = caller.post("/api/executions/", {"tool": workflow.tool_name, "arguments": {"a": 1}}, **FROM)
    assert answer.status_code == 202
    assert workflow.executions.get().fail("It did not start.")
    seal()

    entry = Entry.objects.get(kind=Kind.CALL)
    assert (entry.actor, entry.address, entry.client, entry.door) == (
        f"token:{caller.token.pk}", "203.0.113.9", "Firefox/150", "rest",
    )  # fmt: skip


def test_exports_are_entered(admin_client):
    api = administrator()
    api.get("/api/catalogue/export/")
    api.get("/api/executions/?format=csv")
    admin_client.get(reverse("admin:catalogue_productsettings_as_code_export"))
    b"".join(api.get("/api/audit/export/").streaming_content)

    run = make_execution(make_workflow(), state="completed")
    admin_client.get(reverse("admin:executions_execution_payload", args=[run.pk, "input"]))

    shown = Entry.objects.filter(kind=Kind.EXPORT).order_by("pk").values_list("event", "door")
    assert list(shown) == [
        ("configuration.exported", "rest"),
        ("executions.exported", "rest"),
        ("configuration.exported", "admin"),
        ("audit.exported", "rest"),
        ("payload.exported", "admin"),
    ]
    assert json.loads(Entry.objects.get(event="payload.exported").details) == {
        "execution": str(run.pk),
        "part": "input",
    }


# Who reads it


def test_the_audit_is_read_with_the_permission_for_it_alone():
    """16.6"""
    record(Kind.SIGN_IN, "sign_in.succeeded", actor_name="ada")
    allowed, others = staff_session("view_entry"), staff_session("view_historyentry", "view_source")
    addresses = ["/api/audit/", "/api/audit/head/", "/api/audit/export/"]
    for address in addresses:
        assert allowed.get(address).status_code == 200, address
        assert others.get(address).status_code == 403, address
        assert TokenClient(Scope.READ, Scope.RUN).get(address).status_code == 403, address
        assert allowed.delete(address).status_code == allowed.post(address).status_code == 405
    page = reverse("admin:audit_entry_changelist")
    assert allowed.get(page).status_code == 200
    assert others.get(page).status_code == others.get(f"{page}export/").status_code == 403


def test_the_list_pages_by_cursor_and_repeats_and_misses_nothing():
    now = timezone.now()
    for number in range(7):
        Entry.objects.create(kind=Kind.SIGN_IN, event="sign_in.ended", actor=f"user:{number}", at=now)
    api, address, found = administrator(), "/api/audit/?page_size=3", []
    while address:
        answer = api.get(address).json()
        found += [entry["actor"] for entry in answer["results"]]
        address = answer["next"]
    assert found == [f"user:{number}" for number in reversed(range(7))]

    for wrong in ("?cursor=nonsense", "?cursor=*", "?page=2", "?page_size=0"):
        assert api.get(f"/api/audit/{wrong}").status_code == 400, wrong
    for wrong in ("?kind=x", "?colour=red", "?at_after=x"):
        assert api.get(f"/api/audit/{wrong}").status_code == 400, wrong
    for wrong in ("?kind=x", "?since=x", "?until=2026", "?colour=red"):
        assert api.get(f"/api/audit/export/{wrong}").status_code == 400, wrong


def test_the_list_is_filtered_and_searched():
    record(Kind.SIGN_IN, "sign_in.failed", subject_name="Ada", outcome="failed", address="10.0.0.1")
    record(Kind.TOKEN, "token.refused", actor="token:1", outcome="refused")
    execution = make_execution(make_workflow(name="report"), finished_at=timezone.now())
    seal()
    api = administrator()
    for query, events in (
        ("kind=token", ["token.refused"]),
        ("event=sign_in.failed", ["sign_in.failed"]),
        ("outcome=refused", ["token.refused"]),
        ("actor=token:1&kind=token", ["token.refused"]),
        ("search=ada", ["sign_in.failed"]),
        ("search=10.0.0.1 FAILED", ["sign_in.failed"]),
        (f"search={execution.pk}", ["call.ended"]),
        (f"subject=execution:{execution.pk}", ["call.ended"]),
        ("search=nothing", []),
        (f"at_after={timezone.now():%Y-%m-%dT%H:%M:%S.%fZ}", []),
    ):
        found = [entry["event"] for entry in api.get(f"/api/audit/?{query}").json()["results"]]
        assert found == events, query


def test_an_entry_is_read_with_its_digest_and_the_head_of_the_chain():
    entry = record(Kind.SIGN_IN, "sign_in.succeeded", actor_name="ada", backend="x")
    api = administrator()
    assert api.get("/api/audit/head/").json() == {"head": "", "unsealed": 1}
    seal()
    read = api.get(f"/api/audit/{entry.pk}/").json()

    assert (read["details"], read["segment"], read["digest"]) == ({"backend": "x"}, 1, entry.digest)
    assert api.get("/api/audit/head/").json() == {"head": head(), "unsealed": 0}


# The admin's pages


def test_the_admins_list_says_who_did_what_when_and_from_where(admin_client):
    record(Kind.SIGN_IN, "sign_in.failed", subject_name="ada", outcome="failed", address="10.0.0.1")
    shown = text_of(admin_client.get(reverse("admin:audit_entry_changelist")))
    for words in ("sign in: failed", "ada", "failed", "10.0.0.1", "Export"):
        assert words in shown
    searched = admin_client.get(reverse("admin:audit_entry_changelist"), {"q": "10.0.0.1"})
    assert "10.0.0.1" in text_of(searched)
    assert f"{SEARCHED:,}" in searched.content.decode()


def test_an_entrys_page_leads_to_what_it_tells_of(admin_client):
    toolset, api = make_toolset("finance"), administrator()
    api.patch(f"/api/toolsets/{toolset.slug}/", {"enabled": False})
    execution = make_execution(make_workflow(), finished_at=timezone.now())
    seal()
    for kind, address in (
        (Kind.CURATION, "/admin/catalogue/historyentry/"),
        (Kind.CALL, f"/admin/executions/execution/{execution.pk}/"),
    ):
        entry = Entry.objects.get(kind=kind)
        page = admin_client.get(reverse("admin:audit_entry_change", args=[entry.pk]))
        assert address in page.content.decode()
        assert entry.digest in page.content.decode()
        assert f"actor__exact={entry.actor}" in page.content.decode()
    assert (
        admin_client.get(reverse("admin:audit_entry_changelist"), {"actor__exact": "token:1"}).status_code
        == 200
    )


def test_the_admins_export_is_the_whole_audit(admin_client):
    record(Kind.TOKEN, "token.refused")
    seal()
    answer = admin_client.get(f"{reverse('admin:audit_entry_changelist')}export/")
    lines = b"".join(answer.streaming_content).decode().splitlines()

    assert answer["Content-Disposition"] == 'attachment; filename="audit.jsonl"'
    assert [json.loads(line)["type"] for line in lines][-2:] == ["segment", "entry"]
