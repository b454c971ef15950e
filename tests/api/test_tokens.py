"""Access tokens by REST: made, changed, rotated, revoked; nothing is handed out beyond what its maker has."""

from datetime import timedelta

import pytest
from django.contrib.auth.models import Permission, User
from django.db import OperationalError, connection
from django.utils import timezone
from loguru import logger
from rest_framework.test import APIClient

from access.callers import Scope
from access.permissions import permissions_behind
from access.rates import forget_rates
from identity.bearers import forget_bearers
from identity.models import AccessToken
from identity.tokens import create_token, find_token
from tests.api.clients import TokenClient, administrator, agent, problem_paths, staff_session
from tests.factories import make_toolset, make_workflow

pytestmark = [pytest.mark.django_db, pytest.mark.databases("identity.tokens", "identity.models")]

ADDRESS = "/api/tokens/"


def test_a_token_is_made_and_its_text_is_shown_this_once():
    owner = User.objects.create_user("ada")
    make_toolset("finance")
    given = {
        "name": "agent of billing",
        "purpose": "Answers customers.",
        "owner": "ada",
        "toolset": "finance",
        "calls_per_minute": 60,
        "calls_at_once": 5,
    }
    answer = administrator().post(ADDRESS, given, format="json")
    assert answer.status_code == 201, answer.content
    made = answer.json()
    token = find_token(made["token"])
    assert token is not None and token.owner == owner and token.toolset.slug == "finance"
    assert {name: made[name] for name in given} == given
    assert (made["state"], made["usable"], made["former_secret"]) == ("usable", True, None)
    assert timedelta(days=89) < token.expires_at - timezone.now() < timedelta(days=90)
    read = administrator().get(f"{ADDRESS}{made['id']}/").json()
    assert "token" not in read and made["token"] not in str(read)


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({"owner": "nobody"}, "/owner"),
        ({"owner": "gone"}, "/owner"),
        ({"expires_at": "2020-01-01T00:00:00Z"}, "/expires_at"),
        ({"scopes": ["everything"]}, "/scopes/0"),
        ({"toolset": "nowhere"}, "/toolset"),
        ({"calls_per_minute": 0}, "/calls_per_minute"),
        ({"calls_at_once": 3}, "/calls_at_once"),
        ({"digest": "x"}, "/digest"),
        ({"name": "a\nb"}, "/name"),
        ({"name": "a\u2028b"}, "/name"),
    ],
)
def test_what_makes_no_sense_is_refused_where_it_stands(given, place):
    User.objects.create_user("gone", is_active=False)
    answer = administrator().post(ADDRESS, {"name": "x"} | given, format="json")
    assert answer.status_code == 400, answer.content
    assert [problem["path"] for problem in answer.json()["errors"]] == [place]
    assert not AccessToken.objects.filter(name="x").exists()


def test_a_token_of_a_name_that_is_refused_by_now_goes_on():
    """B8"""
    token, text = create_token(name="agent")
    AccessToken.objects.filter(pk=token.pk).update(name="a\nb")
    answer = administrator().patch(f"{ADDRESS}{token.pk}/", {"purpose": "Answers."}, format="json")
    assert (answer.status_code, answer.json()["purpose"]) == (200, "Answers.")
    assert find_token(text).name == "a\nb"


RUNNING = (
    "add_accesstoken", "view_accesstoken", "change_accesstoken", "view_workflow", "view_execution",
    "view_workflowrequest",
)  # fmt: skip


@pytest.mark.parametrize(
    ("permissions", "given", "code"),
    [
        ((), {}, 201),
        ((), {"expires_at": None}, 400),
        (("keep_accesstoken",), {"expires_at": None}, 201),
        ((), {"owner": "ada"}, 400),
        (("assign_accesstoken",), {"owner": "ada"}, 201),
        ((), {"scopes": ["catalogue:admin"]}, 400),
    ],
)
def test_staff_hand_out_no_more_than_they_may(permissions, given, code):
    User.objects.create_user("ada")
    client = staff_session(*RUNNING, *permissions)
    body = {"name": "x", "scopes": ["workflows:read"]} | given
    assert client.post(ADDRESS, body, format="json").status_code == code
    if code == 201:
        owner = AccessToken.objects.get(name="x").owner
        assert owner is not None and owner.username == given.get("owner", owner.username)


def test_a_token_makes_none_that_outlives_it():
    client = administrator()
    ends = timezone.now() + timedelta(days=3)
    AccessToken.objects.filter(pk=client.token.pk).update(expires_at=ends)
    assert client.post(ADDRESS, {"name": "later", "expires_at": None}, format="json").status_code == 400
    assert client.post(ADDRESS, {"name": "usual"}, format="json").status_code == 201
    assert AccessToken.objects.get(name="usual").expires_at == ends


def test_a_rotated_token_has_two_secrets_for_a_while_and_the_old_one_ends_on_demand():
    client, (token, old) = administrator(), create_token(name="agent")
    answer = client.post(f"{ADDRESS}{token.pk}/rotate/", {"overlap_hours": 4}, format="json")
    new = answer.json()["token"]
    assert answer.status_code == 200 and new != old
    assert [find_token(text).pk for text in (new, old)] == [token.pk] * 2
    shown = client.get(f"{ADDRESS}{token.pk}/").json()
    assert shown["prefix"] == new[:12] and shown["former_secret"]["prefix"] == old[:12]
    assert shown["former_secret"]["last_used_at"] is not None
    client.post(f"{ADDRESS}{token.pk}/end-former-secret/")
    assert find_token(old) is None and find_token(new) is not None
    assert client.get(f"{ADDRESS}{token.pk}/").json()["former_secret"] is None


def test_without_an_overlap_the_old_secret_ends_at_once_and_a_third_one_ends_the_first():
    client, (token, first) = administrator(), create_token(name="agent")

    def rotate(hours):
        body = {"overlap_hours": hours}
        return client.post(f"{ADDRESS}{token.pk}/rotate/", body, format="json").json()["token"]

    second, third = rotate(1), rotate(1)
    assert [bool(find_token(text)) for text in (first, second, third)] == [False, True, True]
    fourth = rotate(0)
    assert [bool(find_token(text)) for text in (second, third, fourth)] == [False, False, True]


def test_a_revoked_token_is_refused_and_not_rotated():
    client, (token, text) = administrator(), create_token(name="agent")
    assert client.post(f"{ADDRESS}{token.pk}/revoke/").json()["state"] == "revoked"
    assert find_token(text) is None
    assert client.post(f"{ADDRESS}{token.pk}/rotate/", {}, format="json").status_code == 409


def test_the_tokens_of_a_disabled_user_stop_and_go_on_when_the_user_is_back():
    """L7: at REST within the half second that a process trusts what it knows."""
    owner = User.objects.create_superuser("leaver")
    token, text = create_token(name="theirs", owner=owner, scopes=[Scope.ADMIN])
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {text}")
    seen = []
    for is_active in (True, False, True):
        User.objects.filter(pk=owner.pk).update(is_active=is_active)
        forget_bearers()
        seen.append(client.get("/api/sources/").status_code)
        state = administrator().get(f"{ADDRESS}{token.pk}/").json()["state"]
        assert state == ("usable" if is_active else "owner disabled")
    assert seen == [200, 401, 200]


def test_the_tokens_of_a_deleted_user_are_revoked_and_stay_on_record():
    owner = User.objects.create_user("leaver")
    token, text = create_token(name="theirs", owner=owner)
    owner.delete()
    token.refresh_from_db()
    assert token.revoked_at is not None and token.owner is None
    assert find_token(text) is None


def test_where_a_token_was_used_from_is_kept_for_the_last_ten_places(settings):
    settings.CATALOGUE = settings.CATALOGUE | {"trusted_proxies": "127.0.0.1"}
    client = agent()
    for number in range(12):
        forget_bearers()
        AccessToken.objects.filter(pk=client.token.pk).update(
            last_used_at=timezone.now() - timedelta(minutes=2)
        )
        origin = {"HTTP_X_FORWARDED_FOR": f"203.0.113.{number}", "HTTP_USER_AGENT": f"client/{number}"}
        client.get("/api/workflows/", **origin)
    shown = administrator().get(f"{ADDRESS}{client.token.pk}/").json()["last_uses"]
    assert [use["address"] for use in shown] == [f"203.0.113.{number}" for number in range(11, 1, -1)]
    assert shown[0]["client"] == "client/11"


@pytest.mark.django_db(transaction=True)
def test_a_database_that_only_reads_still_answers_what_only_reads():
    """As with a full disk: monitoring is needed most then."""

    def full(execute, sql, params, many, context):
        if sql.startswith("UPDATE"):
            raise OperationalError("database or disk is full")
        return execute(sql, params, many, context)

    client = agent()
    with connection.execute_wrapper(full):
        assert client.get("/api/workflows/").status_code == 200


def test_another_place_is_noted_within_a_minute_and_not_at_each_call():
    """Also while the process relies on what it knows of the token."""
    client = agent()
    for number in range(3):
        client.get("/api/workflows/", REMOTE_ADDR=f"203.0.113.{number}")
    assert len(AccessToken.objects.get(pk=client.token.pk).last_uses) == 1
    AccessToken.objects.filter(pk=client.token.pk).update(last_used_at=timezone.now() - timedelta(minutes=2))
    forget_bearers()
    client.get("/api/workflows/", REMOTE_ADDR="203.0.113.0")
    noted = {use["address"] for use in AccessToken.objects.get(pk=client.token.pk).last_uses}
    assert noted == {"203.0.113.0", "203.0.113.1", "203.0.113.2"}


def test_a_call_beyond_the_rate_is_answered_with_429_and_when_to_come_back():
    make_workflow(tool_name="report")
    client = agent()
    AccessToken.objects.filter(pk=client.token.pk).update(calls_per_minute=6, calls_at_once=2)
    forget_bearers()
    forget_rates()
    answers = [client.post("/api/executions/", {"tool": "report"}, format="json") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [202, 202, 429]
    assert 1 <= int(answers[-1]["Retry-After"]) <= 10
    assert "Nothing was started" in answers[-1].json()["detail"]
    assert client.get("/api/executions/").json()["count"] == 2


def test_a_repeated_key_does_not_count_as_a_call():
    make_workflow(tool_name="report")
    client = agent()
    AccessToken.objects.filter(pk=client.token.pk).update(calls_per_minute=1, calls_at_once=1)
    forget_bearers()
    key = {"HTTP_IDEMPOTENCY_KEY": "one"}
    codes = [
        client.post("/api/executions/", {"tool": "report"}, format="json", **key).status_code
        for _ in range(3)
    ]
    assert codes == [202] * 3


def test_tokens_are_found_by_owner_and_by_their_end():
    owner = User.objects.create_user("ada")
    create_token(name="soon", owner=owner, expires_at=timezone.now() + timedelta(days=2))
    create_token(name="later", owner=owner)
    client = administrator()

    def named(query):
        return [row["name"] for row in client.get(f"{ADDRESS}?{query}").json()["results"]]

    assert named("owner=ada") == ["later", "soon"]
    assert named("expires_soon=true") == ["soon"]
    assert named("owner=ada&expires_soon=false") == ["later"]


def test_that_a_token_in_use_ends_soon_is_logged_once():
    token, text = create_token(name="agent", expires_at=timezone.now() + timedelta(days=6))
    create_token(name="unused", expires_at=timezone.now() + timedelta(days=6))
    said: list[str] = []
    sink = logger.add(lambda line: said.append(str(line)), level="WARNING", format="{message}")
    try:
        for _ in range(3):
            find_token(text)
    finally:
        logger.remove(sink)
    assert len(said) == 1 and said[0].startswith(f"The token {token.name!r} is in use and expires at")


def test_changing_a_token_leaves_its_rights_alone():
    client, (token, _) = TokenClient(Scope.ADMIN), create_token(name="agent")
    for given in ({"name": "other"}, {"scopes": ["catalogue:admin"]}, {"expires_at": None}):
        assert client.patch(f"{ADDRESS}{token.pk}/", given, format="json").status_code == 400
    answer = client.patch(f"{ADDRESS}{token.pk}/", {"calls_per_minute": 5, "purpose": "p"}, format="json")
    assert answer.status_code == 200 and answer.json()["calls_per_minute"] == 5


@pytest.mark.parametrize(
    ("permissions", "token", "refused"),
    [
        ((), {"owner": "me"}, ""),
        ((), {"owner": "ada"}, "you need the permission mcp_bridge.assign_accesstoken"),
        ((), {}, "you need the permission mcp_bridge.assign_accesstoken"),
        (("assign_accesstoken",), {"owner": "ada"}, ""),
        (("assign_accesstoken",), {}, ""),
        (("assign_accesstoken",), {"scopes": ["catalogue:admin"]}, "To grant catalogue:admin, you need"),
        ((), {"owner": "me", "expires_at": None}, "mcp_bridge.keep_accesstoken"),
        (("keep_accesstoken",), {"owner": "me", "expires_at": None}, ""),
    ],
)
def test_a_new_secret_is_given_only_to_who_could_make_such_a_token(permissions, token, refused):
    """Else who may only change tokens would get the rights of each of them."""
    client = staff_session(*RUNNING, *permissions)
    users = {"ada": User.objects.create_user("ada"), "me": User.objects.get(is_staff=True)}
    owner = users.get(token.get("owner"))
    row, text = create_token(**{"name": "theirs", "scopes": ["workflows:read"]} | token | {"owner": owner})
    answer = client.post(f"{ADDRESS}{row.pk}/rotate/", {}, format="json")
    assert (answer.status_code, refused in answer.content.decode()) == (400 if refused else 200, True)
    assert bool(find_token(text)) is bool(refused)


def test_a_token_gives_no_new_secret_to_one_that_outlives_it():
    client, (row, text) = administrator(), create_token(name="lasting", expires_at=None)
    AccessToken.objects.filter(pk=client.token.pk).update(expires_at=timezone.now() + timedelta(days=3))
    answer = client.post(f"{ADDRESS}{row.pk}/rotate/", {}, format="json")
    assert (answer.status_code, problem_paths(answer)) == (400, ["/expires_at"])
    assert find_token(text) == row


def test_what_the_token_of_a_user_makes_is_bound_to_that_user():
    """An operator's token, which no account limits, would stay when the user is gone."""
    owner = User.objects.create_superuser("leaver")
    client = administrator()
    AccessToken.objects.filter(pk=client.token.pk).update(owner=owner)
    made = client.post(ADDRESS, {"name": "left behind", "owner": None}, format="json").json()
    assert made["created_by"] == "leaver" and find_token(made["token"]) is not None
    owner.delete()
    assert find_token(made["token"]) is None


def test_a_token_of_a_user_hands_out_no_more_than_the_user_may():
    client = administrator()
    user = User.objects.create_user("curator", is_staff=True)
    needed = [name.partition(".")[2] for name in permissions_behind(Scope.ADMIN)]
    user.user_permissions.set(Permission.objects.filter(codename__in=needed))
    AccessToken.objects.filter(pk=client.token.pk).update(owner=user)
    User.objects.create_superuser("ada")
    for given, place in (({"owner": "ada"}, "/owner"), ({"expires_at": None}, "/expires_at")):
        AccessToken.objects.filter(pk=client.token.pk).update(expires_at=None)
        answer = client.post(ADDRESS, {"name": "x"} | given, format="json")
        assert (answer.status_code, problem_paths(answer)) == (400, [place])


@pytest.mark.parametrize(
    ("permissions", "owner", "code"),
    [
        ((), None, 400),
        ((), "curator", 400),
        ((), "bob", 200),
        (("assign_accesstoken",), "ada", 400),
        (("assign_accesstoken",), None, 400),
    ],
)
def test_another_owner_gives_a_token_no_scope_that_its_changer_lacks(permissions, owner, code):
    """Without an owner, or with an administrator, the secret that its user has would allow more."""
    client = staff_session(*RUNNING, *permissions)
    staff = User.objects.get(is_staff=True)
    ada, bob = User.objects.create_superuser("ada"), User.objects.create_user("bob")
    token, _ = create_token(name="bob's", owner=bob, created_by=ada, scopes=[Scope.ADMIN])
    given = {"owner": staff.username if owner == "curator" else owner}
    answer = client.patch(f"{ADDRESS}{token.pk}/", given, format="json")
    assert answer.status_code == code, answer.content
    token.refresh_from_db()
    assert token.owner == bob
