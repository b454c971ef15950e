"""Whose account a login at the OpenID provider opens, and with which groups."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from threading import Barrier
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.conf import settings as django_settings
from django.contrib.auth import SESSION_KEY
from django.contrib.auth.models import Group, Permission, User
from django.db import connection
from django.test import Client
from pytest_django import Settings

from catalogue.models import HistoryEntry
from catalogue.secrets import encrypt_credentials
from connectors.background import run_in_background_loop
from identity.company_login import ID_TOKEN, LoginRefused, admit
from identity.identity_provider import close_issuers
from identity.models import ExternalIdentity
from identity.second_factor import COMPANY
from tests.admin.pages import text_of
from tests.connectors.issuing import OPENID_METADATA, AuthorizationServer
from tests.connectors.scripted import ScriptedEngine

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.databases("identity.company_login", "identity.identity_provider"),
]

ISSUER = "https://login.example.com"


@pytest.fixture(autouse=True)
def _configured(settings: Settings) -> None:
    settings.CATALOGUE = settings.CATALOGUE | {
        "login_issuer": ISSUER,
        "login_user_claim": "preferred_username",
        "login_creates_users": True,
        "login_groups": {"platform": "Curator", "nights": "Operator"},
    }
    for name in ("Curator", "Operator", "Local"):
        Group.objects.get_or_create(name=name)


def log_in(sub: str = "7", *groups: str, name: str = "ada", **claims: Any) -> User:
    return admit({"iss": ISSUER, "sub": sub, "preferred_username": name, "groups": list(groups)} | claims)


def groups_of(user: User) -> set[str]:
    return set(user.groups.values_list("name", flat=True))


def test_the_first_login_makes_the_account_and_later_ones_find_it_under_any_name():
    user = log_in("7", "platform", email="ada@example.com", email_verified=True)
    assert (user.username, user.email, user.is_staff, user.is_superuser) == (
        "ada",
        "ada@example.com",
        True,
        False,
    )
    assert not user.has_usable_password()
    assert log_in("7", "platform", name="ada.married") == user
    assert ExternalIdentity.objects.get().made_user
    assert [one.message for one in HistoryEntry.objects.order_by("pk")] == [
        "Created at the first login with your company.",
        "At a login with your company: joined Curator.",
    ]


def test_groups_follow_the_provider_and_others_stay():
    user = log_in("7", "platform")
    user.groups.add(Group.objects.get(name="Local"))
    assert groups_of(log_in("7", "nights", "unknown")) == {"Operator", "Local"}
    assert groups_of(log_in("7")) == {"Local"}
    assert User.objects.get().is_staff, "the local group is still there"
    User.objects.get().groups.clear()
    log_in("7", "nights")
    log_in("7")
    assert not User.objects.get().is_staff


@pytest.mark.parametrize(
    "groups", [None, "platform", {"platform": 1}, [1, "platform"], ["PLATFORM"]], ids=str
)
def test_only_groups_that_the_setting_names_count(groups):
    User.objects.create(username="ada")
    expected = {"Curator"} if groups in ("platform", [1, "platform"]) else set()
    assert groups_of(log_in("7", groups=groups)) == expected


def test_a_group_that_does_not_exist_gives_nothing(settings):
    settings.CATALOGUE = settings.CATALOGUE | {"login_groups": {"platform": "Nowhere"}}
    assert groups_of(log_in("7", "platform")) == set()


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "a stranger": ({"login_creates_users": False}, {}, "There is no account for ada"),
    "one without a role": ({}, {"groups": ["other"]}, "None of your groups"),
    "a disabled user": ({}, {"name": "disabled"}, "Your account is disabled"),
    "a superuser": ({}, {"name": "root"}, "names a superuser"),
    "a taken name": ({"login_user_claim": ""}, {"name": "root"}, "the name is already taken"),
    "no valid name": ({}, {"name": "<script>"}, "is not valid"),
    "one of two": (
        {"login_user_claim": "email"},
        {"email": "two@example.com", "email_verified": True},
        "several users",
    ),
    "too long a name": ({}, {"sub": "x" * 256}, "subject is too long"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_who_has_no_account_here_is_refused_and_nothing_is_kept(settings, case):
    User.objects.create(username="root", is_superuser=True, email="two@example.com")
    User.objects.create(username="disabled", is_active=False, email="two@example.com")
    changes, claims, words = REFUSED[case]
    settings.CATALOGUE = settings.CATALOGUE | changes
    with pytest.raises(LoginRefused, match=words):
        log_in(**{"sub": "7", "groups": ["platform"]} | claims)
    assert User.objects.count() == 2
    assert not ExternalIdentity.objects.exists()


@pytest.mark.parametrize(
    "sub", ["", " ", "\t", "\u200b", "7\u200b", " 7", "7\n", "7\0", "7" * 256, 7, 0, True, None, [], {}]
)
def test_a_subject_that_is_no_text_of_visible_characters_is_nobody(sub):
    """H17: several people could share it."""
    with pytest.raises(LoginRefused):
        log_in(sub, "platform")
    assert not User.objects.exists() and not ExternalIdentity.objects.exists()


@pytest.mark.parametrize(
    ("known", "name"),
    [
        ("admin", "Admin"), ("admin", "ADMIN"), ("admin", "\u0430dmin"), ("admin", "adm\u0456n"),
        ("admin", "\uff41dmin"), ("admin", "\u00e1dmin"), ("admin", "\u13aadmin"),
        ("Ada.Lovelace", "ada.lovelace"), ("ada@example.com", "\u0430da@example.com"),
        ("ana_1", "ana_l"), ("paul", "pau1"), ("\u0438\u0432\u0430\u043d", "\u0438\u0432a\u043d"),
    ],
)  # fmt: skip
def test_a_first_login_makes_no_account_that_looks_like_another(known, name):
    """H17. The account that there is may belong to somebody else."""
    User.objects.create_user(known)
    with pytest.raises(LoginRefused):
        log_in("8", "platform", name=name)
    assert [user.username for user in User.objects.all()] == [known]
    assert not ExternalIdentity.objects.exists()


@pytest.mark.parametrize(
    ("known", "name"),
    [
        ("j.doe", "jdoe"), ("a-b", "a.b"), ("anna", "anna2"), ("anna", "hanna"),
        ("\u0438\u0432\u0430\u043d", "\u0438\u0432\u0430\u043d\u0430"),
    ],
)  # fmt: skip
def test_names_that_differ_visibly_are_accounts_of_their_own(known, name):
    User.objects.create_user(known)
    assert log_in("8", "platform", name=name).username == name


def test_of_two_first_logins_with_names_that_look_alike_one_gets_an_account():
    meeting = Barrier(2)

    def log_in_at_once(name: str) -> bool:
        meeting.wait(10)
        try:
            return log_in(name, "platform", name=name).pk > 0
        except LoginRefused:
            return False
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as threads:
        assert sorted(threads.map(log_in_at_once, ["admin", "Admin"])) == [False, True]
    assert User.objects.count() == 1


def test_two_first_logins_at_once_make_one_account():
    def log_in_elsewhere(_: int) -> int | None:
        try:
            return log_in("7", "platform").pk
        except LoginRefused:
            return None  # Whose next attempt finds the account
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as threads:
        made = set(threads.map(log_in_elsewhere, range(4))) - {None}
    assert made == {User.objects.get().pk}
    assert log_in("7", "platform").pk in made


def test_without_a_provider_there_are_no_such_pages(settings):
    settings.CATALOGUE = settings.CATALOGUE | {"login_issuer": ""}
    for path in ("/login/company/", "/login/company/callback?code=x&state=y"):
        assert Client().get(path).status_code == 404
    assert "/login/company/" not in Client().get("/admin/login/").content.decode()


def logged_in(provider: AuthorizationServer, settings: Settings) -> Client:
    """A browser that has logged in at this provider, as the session keeps it."""
    settings.CATALOGUE = settings.CATALOGUE | {"login_issuer": provider.base_url, "login_client_id": "us"}
    client = Client()
    client.force_login(User.objects.get_or_create(username="ada", is_staff=True)[0])
    session = client.session
    session[ID_TOKEN] = encrypt_credentials({ID_TOKEN: "of.ada.today"})
    session.save()
    return client


@pytest.fixture
def provider() -> Iterator[AuthorizationServer]:
    provider = AuthorizationServer()
    engine = ScriptedEngine(provider.behave)
    run_in_background_loop(engine.__aenter__())
    provider.base_url = engine.base_url
    yield provider
    run_in_background_loop(close_issuers())
    run_in_background_loop(engine.__aexit__(None, None, None))


def begin_login(client: Client, provider: AuthorizationServer, next_page: str) -> str:
    """The state, with which the provider sends the browser back."""
    begun = client.get("/login/company/", {"next": next_page})
    asked = {name: value for name, (value,) in parse_qs(urlsplit(begun["Location"]).query).items()}
    id_token = provider.sign(headers={"typ": "JWT"}, aud="us", nonce=asked["nonce"])
    provider.answers["/token"] = {"access_token": "of.ada", "id_token": id_token}
    return asked["state"]


def end_login(client: Client, state: str) -> Any:
    return client.get("/login/company/callback", {"code": "x", "state": state})


@pytest.fixture
def serving(provider: AuthorizationServer, settings: Settings) -> AuthorizationServer:
    """People log in there, and it describes them at its userinfo endpoint alone."""
    settings.CATALOGUE = settings.CATALOGUE | {"login_issuer": provider.base_url, "login_client_id": "us"}
    settings.AUTHENTICATION_BACKENDS = [*settings.AUTHENTICATION_BACKENDS, COMPANY]
    url = provider.base_url
    provider.metadata = {"authorization_endpoint": f"{url}/authorize", "token_endpoint": f"{url}/token"}
    provider.answers = {
        OPENID_METADATA: {
            "issuer": url,
            "userinfo_endpoint": f"{url}/user",
            "end_session_endpoint": f"{url}/end",
        },
        "/user": {"sub": "7", "preferred_username": "ada", "groups": ["platform"]},
    }
    return provider


def test_endpoints_that_only_the_openid_metadata_names_are_used(serving, settings):
    settings.CATALOGUE = settings.CATALOGUE | {"login_ends_at_provider": True}
    client = Client()
    assert end_login(client, begin_login(client, serving, "/admin/"))["Location"] == "/admin/"
    assert groups_of(User.objects.get(username="ada")) == {"Curator"}
    assert f"{serving.base_url}/end?" in client.post("/admin/logout/")["Refresh"]


@pytest.mark.parametrize("passwords", [True, False])
def test_an_application_s_user_signs_in_at_the_company(serving, settings, passwords):
    settings.CATALOGUE = settings.CATALOGUE | {"login_name": "Example Corp", "login_passwords": passwords}
    client, wanted = Client(), "/oauth/authorize?client_id=x&state=y"
    page = client.get("/oauth/sign-in", {"next": wanted}).content.decode()
    assert "Log in with Example Corp" in page
    assert ('type="password"' in page) is passwords
    (address,) = re.findall(r'href="(/login/company/[^"]*)"', page)
    assert parse_qs(urlsplit(unescape(address)).query)["next"] == [wanted]


def test_each_tab_continues_at_its_own_page(serving):
    client = Client()
    first, second = (
        begin_login(client, serving, page) for page in ("/admin/?tab=1", "/oauth/authorize?tab=2")
    )
    assert end_login(client, second)["Location"] == "/oauth/authorize?tab=2"
    provider_gave_up = client.get("/login/company/callback", {"error": "access_denied", "state": first})
    assert parse_qs(urlsplit(provider_gave_up["Location"]).query) == {"next": ["/admin/?tab=1"]}


def test_a_page_is_not_forgotten_while_the_provider_is_away(serving):
    serving.status = 503
    refused = Client().get("/login/company/", {"next": "/admin/auth/user/"})
    assert refused["Location"] == "/admin/login/?next=%2Fadmin%2Fauth%2Fuser%2F"


def test_a_session_ends_at_its_hour_whatever_it_is_used_for(serving, settings):
    settings.CATALOGUE = settings.CATALOGUE | {"login_hours": 2}
    client = Client()
    end_login(client, begin_login(client, serving, "/admin/"))
    ends_at = client.session.get_expiry_date()
    begin_login(client, serving, "/admin/")
    assert client.session.get_expiry_date() == ends_at
    assert 7000 < client.session.get_expiry_age() <= 7200


def test_a_company_login_that_was_given_up_does_not_shorten_a_login_by_password(serving, settings):
    User.objects.create_superuser("boss", password="of-the-boss")
    client = Client()
    begin_login(client, serving, "/admin/")
    assert client.session.get_expiry_age() <= 3600
    client.post("/admin/login/", {"username": "boss", "password": "of-the-boss"})
    assert SESSION_KEY in client.session
    assert client.session.get_expiry_age() == settings.SESSION_COOKIE_AGE


def test_logging_out_leads_on_to_the_provider_where_the_login_was_made_there(provider, settings):
    provider.metadata = {"end_session_endpoint": f"{provider.base_url}/end?tenant=1"}
    client = logged_in(provider, settings)
    assert client.get("/admin/logout/").status_code == 405, "a link on a page logs nobody out"
    answer = client.post("/admin/logout/")
    address = answer["Refresh"].removeprefix("0; url=")
    assert address.startswith(f"{provider.base_url}/end?tenant=1&")
    query = parse_qs(urlsplit(address).query)
    assert query["id_token_hint"] == ["of.ada.today"] and query["client_id"] == ["us"]
    assert query["post_logout_redirect_uri"] == [f"{django_settings.PUBLIC_URL}/admin/login/"]
    assert SESSION_KEY not in client.session
    client.force_login(User.objects.get())
    assert "Refresh" not in client.post("/admin/logout/"), "a login by password ends here"


@pytest.mark.parametrize("problem", ["no such endpoint", "away", "another SECRET_KEY"])
def test_people_are_logged_out_here_whatever_the_provider_does(provider, settings, problem):
    client = logged_in(provider, settings)
    if problem == "away":
        provider.status = 503
    if problem == "another SECRET_KEY":
        provider.metadata = {"end_session_endpoint": f"{provider.base_url}/end"}
        session = client.session
        session[ID_TOKEN] = session[ID_TOKEN][:-4]
        session.save()
    answer = client.post("/admin/logout/")
    assert (answer.status_code, "Refresh" in answer) == (200, False)
    assert SESSION_KEY not in client.session


def test_an_administrator_removes_the_link_to_a_person_and_the_history_tells():
    ada = log_in("7", "platform")
    helper = User.objects.create_user("helper", is_staff=True)
    helper.user_permissions.set(Permission.objects.filter(codename__in=("change_user", "view_user")))
    client, unlink = Client(), f"/admin/auth/user/{ada.pk}/unlink_company_login/"
    button = 'action="../unlink_company_login/"'
    ada.user_permissions.set(Permission.objects.filter(codename="view_source"))
    client.force_login(helper)
    assert client.post(unlink).status_code == 403, "ada has more permissions"
    client.force_login(User.objects.create_superuser("boss"))
    page = client.get(f"/admin/auth/user/{ada.pk}/change/")
    assert f"7 at {ISSUER}, last used" in text_of(page)
    assert button in page.content.decode()
    assert client.post(unlink).status_code == 302
    assert not ExternalIdentity.objects.exists()
    told = HistoryEntry.objects.filter(object_name="ada", actor_name="boss").get()
    assert told.message == f"Unlinked from 7 at {ISSUER}."
    assert button not in client.get(f"/admin/auth/user/{ada.pk}/change/").content.decode()
    assert log_in("8", "platform") == ada, "the next login finds the account by its name"
