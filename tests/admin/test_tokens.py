"""Access tokens in the admin: made, shown once, revoked."""

import re
from datetime import timedelta
from html import unescape
from io import StringIO

import pytest
from django.contrib.auth.models import Group, User
from django.core.management import CommandError, call_command
from django.utils import timezone

from access.callers import Scope
from catalogue.models import HistoryEntry
from executions.models import Execution
from identity.bearers import authenticate
from identity.client_configuration import HttpServer, McpClient
from identity.models import AccessToken, default_scopes
from identity.tokens import create_token, find_token
from tests.admin.pages import add_url, list_url, page_url, press, run_action, text_of, told
from tests.factories import make_execution, make_toolset

pytestmark = pytest.mark.django_db

NEW = {"name": "claude", "scopes": ["workflows:read", "workflows:run"]}
MAKING = (
    "add_accesstoken", "view_accesstoken", "view_workflow", "view_execution", "view_workflowrequest",
)  # fmt: skip
TOKEN = re.compile(r"wfc_[\w-]{20,}")


def test_a_new_token_is_shown_once_with_a_configuration_to_paste(admin_client):
    """E8: the token works, its configuration is valid JSON, and no cache keeps the page."""
    response = admin_client.post(add_url(AccessToken), NEW)
    page = unescape(response.content.decode())
    text = TOKEN.findall(page)[0]
    token = find_token(text)
    assert token is not None
    assert (token.name, token.scopes) == ("claude", NEW["scopes"])
    assert token.created_by is not None
    for client in McpClient:
        assert client.label in page and HttpServer(token=text).configure(client) in page
    assert "no-store" in response["Cache-Control"]
    for url in (list_url(AccessToken), page_url(token)):
        assert not TOKEN.findall(admin_client.get(url).content.decode())


def test_the_scopes_are_explained(admin_client):
    """B8: who makes a token reads what it allows."""
    shown = text_of(admin_client.get(add_url(AccessToken)))
    assert "workflows:run: start executions, and read and cancel those" in shown


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"name": "taken"}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"scopes": []}, "scopes"),
        ({"inline_wait_seconds": "0"}, "inline_wait_seconds"),
        ({"scopes": ["everything"]}, "scopes"),
        ({"expires_at": "2020-01-01T00:00"}, "expires_at"),
    ],
)
def test_a_token_that_makes_no_sense_is_refused(admin_client, given, field):
    """B4: a taken name, no or unknown scopes, an end in the past."""
    create_token(name="taken")
    response = admin_client.post(add_url(AccessToken), NEW | given)
    assert response.context["adminform"].form.errors[field]
    assert AccessToken.objects.count() == 1


@pytest.mark.parametrize(
    ("permissions", "scopes"),
    [
        ((), ()),
        (("view_workflow", "view_execution", "view_workflowrequest"), ("workflows:read",)),
        (("add_execution", "change_execution", "add_workflowrequest"), ()),
        (
            (
                "add_execution",
                "change_execution",
                "view_execution",
                "add_workflowrequest",
                "view_workflowrequest",
            ),
            ("workflows:run",),
        ),
        (("view_source", "change_source", "change_workflow"), ()),
    ],
)
def test_nobody_makes_a_token_that_may_more_than_they_may(staff_with, permissions, scopes):
    """B8: the form offers the scopes whose permissions the maker has, and takes no others."""
    client = staff_with("add_accesstoken", "view_accesstoken", *permissions)
    form = client.get(add_url(AccessToken)).context["adminform"].form
    assert tuple(value for value, _ in form.fields["scopes"].choices) == scopes
    for scope in Scope:
        client.post(add_url(AccessToken), {"name": scope.value, "scopes": [scope.value]})
    assert {token.name for token in AccessToken.objects.all()} == set(scopes)


def test_a_token_says_what_its_owner_may_not_use(admin_client):
    """As the agent is told; the scopes themselves look all right."""
    sales = Group.objects.create(name="Sales")
    toolset = make_toolset("sales", reserved_for=["group:Sales"])
    owner = User.objects.create_user("vic", is_staff=True)
    body = NEW | {"owner": owner.pk, "toolset": toolset.pk}
    expected = (
        "vic lacks the permissions of workflows:read, workflows:run. "
        "The toolset sales is reserved for others than vic."
    )
    assert expected in text_of(admin_client.post(add_url(AccessToken), body))
    token = AccessToken.objects.get()
    assert expected in text_of(admin_client.get(page_url(token)))
    owner.is_staff = False
    owner.save()
    owner.groups.add(sales)
    assert "Without effect" not in text_of(admin_client.get(page_url(token)))


def test_a_token_can_have_an_end(admin_client):
    """E6: access for a while."""
    end = (timezone.now() + timedelta(days=30)).replace(microsecond=0)
    given = NEW | {"expires_at": f"{end:%Y-%m-%dT%H:%M:%S}"}
    admin_client.post(add_url(AccessToken), given)
    assert AccessToken.objects.get().expires_at == end
    assert "in 4 weeks" in text_of(admin_client.get(list_url(AccessToken)))


def test_a_token_can_say_how_long_its_client_waits(admin_client):
    """A8.4"""
    admin_client.post(add_url(AccessToken), NEW | {"inline_wait_seconds": "4"})
    token = AccessToken.objects.get()
    assert token.inline_wait_seconds == 4
    assert "Inline wait 4 s" in " ".join(text_of(admin_client.get(page_url(token))).split())
    call_command("create_mcp_token", "hasty", "--inline-wait", "8", stdout=StringIO())
    assert AccessToken.objects.get(name="hasty").inline_wait_seconds == 8
    with pytest.raises(CommandError, match=r"inline_wait_seconds: .* greater than or equal to 1"):
        call_command("create_mcp_token", "none", "--inline-wait", "0", stdout=StringIO())


def test_a_token_is_revoked_on_its_page_and_in_bulk(admin_client):
    """B8: whoever holds it is locked out."""
    tokens = [create_token(name=name) for name in ("one", "two", "three")]
    assert "Revoked: one." in told(press(admin_client, tokens[0][0], "revoke"))
    assert "Revoked: 2." in told(run_action(admin_client, "revoke_selected", *(token for token, _ in tokens)))
    assert [authenticate(text) for _, text in tokens] == [None, None, None]
    assert "revoked" in text_of(admin_client.get(page_url(tokens[0][0])))


def test_neither_name_nor_rights_of_a_token_can_be_edited_nor_is_it_deleted(admin_client):
    """B8: executions name their token for ever; its digest is nobody's business."""
    token, _ = create_token(name="one")
    assert admin_client.post(page_url(token), {"name": "two", "toolset": "1"}).status_code == 302
    assert AccessToken.objects.get().name == "one"
    url = page_url(token).replace("/change/", "/delete/")
    assert admin_client.post(url, {"post": "yes"}).status_code == 403
    assert token.digest not in admin_client.get(page_url(token)).content.decode()


@pytest.mark.databases("identity.admin.tokens", "identity.models")
def test_tokens_are_filtered_by_whether_they_can_be_used(admin_client):
    """B8: expired and revoked ones are told apart from those that open the door."""
    create_token(name="usable")
    create_token(name="expired")
    AccessToken.objects.filter(name="expired").update(expires_at=timezone.now() - timedelta(days=1))
    create_token(name="revoked")[0].revoke()
    usable = text_of(admin_client.get(list_url(AccessToken), {"usable": "yes"}))
    assert "1 access token" in usable
    rest = admin_client.get(list_url(AccessToken), {"usable": "no"}).context["cl"].result_list
    assert {token.name for token in rest} == {"expired", "revoked"}


def test_people_who_may_only_look_cannot_make_or_revoke_tokens(staff_with):
    """B8."""
    token, text = create_token(name="one")
    client = staff_with("view_accesstoken")
    assert client.post(add_url(AccessToken), NEW).status_code == 403
    assert press(client, token, "revoke").status_code == 403
    run_action(client, "revoke_selected", token)
    assert authenticate(text) is not None


def test_a_token_leads_to_what_it_called_and_back(admin_client, staff_with):
    """B8: only for people who may see those pages."""
    token, _ = create_token(name="claude", scopes=["workflows:read"])
    theirs = make_execution(caller=token.caller.key, caller_name="claude")
    make_execution(caller="token:999")
    address = f"{list_url(Execution)}?caller__exact={token.caller.key}"
    assert f'href="{address}"' in admin_client.get(page_url(token)).content.decode()
    assert list(admin_client.get(address).context["cl"].result_list) == [theirs]
    assert f'href="{page_url(token)}"' in admin_client.get(page_url(theirs)).content.decode()
    member = staff_with("view_accesstoken")
    assert list_url(Execution) not in member.get(page_url(token)).content.decode()


def test_the_form_and_the_page_of_a_new_token_say_what_they_are_about(admin_client):
    """E8."""
    assert "If empty, the token expires in 90 days." in text_of(admin_client.get(add_url(AccessToken)))
    page = admin_client.post(add_url(AccessToken), NEW).content.decode()
    assert ">Token claude</h2>" in page


def test_a_token_whose_owner_is_disabled_stops_and_is_marked_and_found(admin_client):
    """B8: an administrator revokes it, or gives it to another user, with whom it goes on."""
    leaver = User.objects.create(username="leaver")
    token, text = create_token(name="theirs", owner=leaver)
    create_token(name="of the command")
    assert "owner disabled" not in text_of(admin_client.get(list_url(AccessToken)))
    User.objects.filter(pk=leaver.pk).update(is_active=False)
    assert find_token(text) is None
    for address in (list_url(AccessToken), page_url(token)):
        assert "owner disabled" in text_of(admin_client.get(address))
    found = admin_client.get(list_url(AccessToken), {"usable": "orphaned"}).context["cl"].result_list
    assert list(found) == [token]
    assert "Access tokens that stopped with their owner" in text_of(admin_client.get("/admin/"))
    heir = User.objects.create(username="heir")
    admin_client.post(page_url(token), {"owner": str(heir.pk)})
    assert find_token(text) is not None
    assert HistoryEntry.of(token).get().changes == {"owner": [leaver.pk, heir.pk]}


def test_a_token_that_ends_soon_is_marked_in_the_list_and_counted_on_the_overview(admin_client):
    """B8: seven days before, so that nobody is locked out unawares."""
    soon, _ = create_token(name="soon", expires_at=timezone.now() + timedelta(days=6))
    create_token(name="later")
    assert text_of(admin_client.get(list_url(AccessToken))).count("expires soon") == 1
    found = admin_client.get(list_url(AccessToken), {"usable": "soon"}).context["cl"].result_list
    assert list(found) == [soon]
    assert "Access tokens that expire within 7 days" in text_of(admin_client.get("/admin/"))


def test_a_token_is_rotated_on_its_page_and_the_former_secret_ended_there(admin_client):
    """B8: the new secret is shown once, and both as long as both open the door."""
    token, old = create_token(name="agent")
    rotate = page_url(token).replace("/change/", "/rotate/")
    response = admin_client.post(rotate, {"overlap_hours": "24"})
    new = TOKEN.findall(unescape(response.content.decode()))[0]
    assert "no-store" in response["Cache-Control"]
    assert find_token(old) is not None and find_token(new) is not None
    page = text_of(admin_client.get(page_url(token)))
    assert "two secrets" in page and f"{old[:12]}…" in page and new[:12] in page
    assert "Former secret works until" in page and "<time" not in page
    press(admin_client, token, "end_former_secret")
    assert find_token(old) is None and find_token(new) is not None
    assert [entry.message for entry in HistoryEntry.of(token)][:2] == [
        "Ended the former secret.", "Rotated: it has a new secret.",
    ]  # fmt: skip
    assert old not in str(HistoryEntry.of(token).values()) and token.digest not in str(
        HistoryEntry.of(token).values()
    )


@pytest.mark.parametrize(("permission", "may"), [("", False), ("keep_accesstoken", True)])
def test_only_those_who_may_make_tokens_that_never_expire(staff_with, permission, may):
    """B8"""
    client = staff_with(*MAKING, *filter(None, [permission]))
    assert ("never_expires" in client.get(add_url(AccessToken)).context["adminform"].form.fields) is may
    client.post(add_url(AccessToken), {"name": "x", "scopes": ["workflows:read"], "never_expires": "on"})
    assert (AccessToken.objects.get().expires_at is None) is may
    assert AccessToken.objects.get().owner == AccessToken.objects.get().created_by


def test_the_settings_bound_how_long_a_token_lives(staff_with, settings):
    """B8"""
    settings.CATALOGUE = settings.CATALOGUE | {"token_days": 30, "max_token_days": 10}
    client = staff_with(*MAKING)
    end = timezone.now() + timedelta(days=11)
    given = {"name": "x", "scopes": ["workflows:read"]}
    late = given | {"expires_at": f"{end:%Y-%m-%dT%H:%M:%S}"}
    errors = client.post(add_url(AccessToken), late).context["adminform"].form.errors
    assert "The settings allow 10 days at most." in str(errors)
    client.post(add_url(AccessToken), given)
    expires_at = AccessToken.objects.get().expires_at
    assert expires_at is not None and expires_at < timezone.now() + timedelta(days=10)


def test_commands_make_rotate_list_and_revoke_tokens():
    """B8: each leaves its trace."""
    User.objects.create(username="ada")

    def run(*words: str) -> str:
        call_command(*words, stdout=(printed := StringIO()))
        return printed.getvalue().strip()

    given = ("--owner", "ada", "--purpose", "Answers.", "--never-expires", "--calls-per-minute", "60")
    first = run("create_mcp_token", "agent", *given)
    second = run("rotate_mcp_token", "agent", "--overlap", "1")
    assert find_token(first) is not None and find_token(second) is not None
    assert run("list_mcp_tokens").split("\t")[:3] == ["usable", "ada", "never"]
    run("revoke_mcp_token", "agent", "--former-secret")
    assert find_token(first) is None and find_token(second) is not None
    run("revoke_mcp_token", "agent")
    assert find_token(second) is None and run("list_mcp_tokens", "--usable") == ""
    assert [entry.actor_name for entry in HistoryEntry.of(AccessToken.objects.get())] == [
        "manage.py revoke_mcp_token", "manage.py revoke_mcp_token", "manage.py rotate_mcp_token",
        "manage.py create_mcp_token",
    ]  # fmt: skip
    with pytest.raises(CommandError, match="There is no access token nobody"):
        run("rotate_mcp_token", "nobody")
    for name in ("a\nb", " ", "\x1b[2J"):
        with pytest.raises(CommandError, match="name: A name must be one line of text"):
            run("create_mcp_token", name)


def test_the_wait_of_a_tokens_calls_can_be_changed_and_nothing_else_of_it(admin_client):
    """C4: its client learns to wait longer, and needs no new token for that."""
    token, text = create_token(name="agent")
    form = admin_client.get(page_url(token)).context["adminform"].form
    changeable = {"purpose", "owner", "inline_wait_seconds", "calls_per_minute", "calls_at_once"}
    assert set(form.fields) == changeable
    given = {"inline_wait_seconds": "120", "name": "other", "scopes": ["catalogue:admin"]}
    assert admin_client.post(page_url(token), given).status_code == 302
    token.refresh_from_db()
    assert (token.inline_wait_seconds, token.name, token.scopes) == (120, "agent", default_scopes())
    assert HistoryEntry.of(token).get().changes == {"inline_wait_seconds": [None, 120]}
    assert authenticate(text)
