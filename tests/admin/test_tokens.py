"""Access tokens in the admin: made, shown once, revoked."""

import json
import re
from datetime import timedelta
from html import unescape

import pytest
from django.test import Client
from django.utils import timezone

from executions.models import Execution
from mcp_bridge.models import AccessToken
from mcp_bridge.tokens import authenticate, create_token
from tests.admin.conftest import StaffWith
from tests.admin.pages import add_url, list_url, page_url, press, run_action, text_of, told
from tests.factories import make_execution

pytestmark = pytest.mark.django_db

NEW = {"name": "claude", "scopes": ["workflows:read", "workflows:run"]}
TOKEN = re.compile(r"wfc_[\w-]{20,}")


def test_a_new_token_is_shown_once_with_a_configuration_to_paste(admin_client: Client) -> None:
    """E8: the token works, its configuration is valid JSON, and no cache keeps the page."""
    response = admin_client.post(add_url(AccessToken), NEW)
    page = unescape(response.content.decode())
    text = TOKEN.findall(page)[0]
    token = authenticate(text)
    assert token is not None
    assert (token.name, token.scopes) == ("claude", NEW["scopes"])
    assert token.created_by is not None
    config = json.loads(re.findall(r"\{\s+\"mcpServers\".*?\n\}", page, re.DOTALL)[0])
    server = config["mcpServers"]["workflow-catalogue"]
    assert server["headers"] == {"Authorization": f"Bearer {text}"}
    assert server["url"].endswith("/mcp")
    assert "no-store" in response["Cache-Control"]
    for url in (list_url(AccessToken), page_url(token)):
        assert not TOKEN.findall(admin_client.get(url).content.decode())


def test_the_scopes_are_explained(admin_client: Client) -> None:
    """B8: who makes a token reads what it allows."""
    shown = text_of(admin_client.get(add_url(AccessToken)))
    assert "workflows:run: start and cancel executions" in shown


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"name": "taken"}, "name"),
        ({"scopes": []}, "scopes"),
        ({"scopes": ["everything"]}, "scopes"),
        ({"expires_at_0": "2020-01-01", "expires_at_1": "00:00:00"}, "expires_at"),
    ],
)
def test_a_token_that_makes_no_sense_is_refused(
    admin_client: Client, given: dict[str, object], field: str
) -> None:
    """B4: a taken name, no or unknown scopes, an end in the past."""
    create_token(name="taken")
    response = admin_client.post(add_url(AccessToken), NEW | given)
    assert response.context["adminform"].form.errors[field]
    assert AccessToken.objects.count() == 1


def test_a_token_can_have_an_end(admin_client: Client) -> None:
    """E6: access for a while."""
    end = (timezone.now() + timedelta(days=30)).replace(microsecond=0)
    given = NEW | {"expires_at_0": f"{end:%Y-%m-%d}", "expires_at_1": f"{end:%H:%M:%S}"}
    admin_client.post(add_url(AccessToken), given)
    assert AccessToken.objects.get().expires_at == end
    assert "in 4 weeks" in text_of(admin_client.get(list_url(AccessToken)))


def test_a_token_is_revoked_on_its_page_and_in_bulk(admin_client: Client) -> None:
    """B8: whoever holds it is locked out."""
    tokens = [create_token(name=name) for name in ("one", "two", "three")]
    assert "Revoked: one." in told(press(admin_client, tokens[0][0], "revoke"))
    assert "Revoked: 2." in told(run_action(admin_client, "revoke_selected", *(token for token, _ in tokens)))
    assert [authenticate(text) for _, text in tokens] == [None, None, None]
    assert "revoked" in text_of(admin_client.get(page_url(tokens[0][0])))


def test_nothing_of_a_token_can_be_edited_or_deleted(admin_client: Client) -> None:
    """B8: executions name their token for ever; its digest is nobody's business."""
    token, _ = create_token(name="one")
    assert admin_client.post(page_url(token), {"name": "two"}).status_code == 403
    url = page_url(token).replace("/change/", "/delete/")
    assert admin_client.post(url, {"post": "yes"}).status_code == 403
    assert token.digest not in admin_client.get(page_url(token)).content.decode()


@pytest.mark.databases("mcp_bridge.admin.tokens", "mcp_bridge.models")
def test_tokens_are_filtered_by_whether_they_can_be_used(admin_client: Client) -> None:
    """B8: expired and revoked ones are told apart from those that open the door."""
    create_token(name="usable")
    create_token(name="expired", expires_at=timezone.now() - timedelta(days=1))
    create_token(name="revoked")[0].revoke()
    usable = text_of(admin_client.get(list_url(AccessToken), {"usable": "yes"}))
    assert "1 access token" in usable
    rest = admin_client.get(list_url(AccessToken), {"usable": "no"}).context["cl"].result_list
    assert {token.name for token in rest} == {"expired", "revoked"}


def test_people_who_may_only_look_cannot_make_or_revoke_tokens(staff_with: StaffWith) -> None:
    """B8."""
    token, text = create_token(name="one")
    client = staff_with("view_accesstoken")
    assert client.post(add_url(AccessToken), NEW).status_code == 403
    assert press(client, token, "revoke").status_code == 403
    run_action(client, "revoke_selected", token)
    assert authenticate(text) is not None


def test_a_token_leads_to_what_it_called_and_back(admin_client: Client, staff_with: StaffWith) -> None:
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


def test_the_form_and_the_page_of_a_new_token_say_what_they_are_about(admin_client: Client) -> None:
    """E8."""
    assert "In UTC. Empty: it never expires." in text_of(admin_client.get(add_url(AccessToken)))
    page = admin_client.post(add_url(AccessToken), NEW).content.decode()
    assert ">Token claude</h2>" in page
