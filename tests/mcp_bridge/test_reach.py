"""Who can call what today, compared with what the doors really serve."""

import random
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from oauth2_provider.models import Application
from rest_framework.test import APIClient

from access.callers import Scope
from access.models import Role
from catalogue.exposure import confirmed_catalogue
from identity.admin.reach import COLUMNS
from identity.models import AccessToken, AllowedApplication
from identity.reach import Holder, Reach, find_holders
from identity.tokens import create_token
from tests.factories import make_filter, make_source, make_toolset, make_workflow
from tests.mcp_bridge.test_endpoint import modern

PAGE = "/admin/mcp_bridge/accesstoken/reach/"
GROUPS = ("Finance", "Sales")


def make_world(chance: random.Random) -> dict[str, str]:
    """Everything that bounds a call, in any combination. Returns the tokens' texts by name."""
    for name in GROUPS:
        Group.objects.create(name=name)

    def reserved() -> list[str]:
        return chance.choice([[], [], ["group:Finance"], ["group:Sales"], ["user:ada"]])

    users = [User.objects.create(username=name) for name in ("ada", "bob", "eve", "root")]
    User.objects.filter(username="root").update(is_superuser=True)
    for user in users:
        user.groups.set(Group.objects.filter(name__in=chance.sample(GROUPS, chance.randrange(3))))
    users[2].groups.add(Role.objects.get(name=chance.choice(["viewer", "curator", "operator"])).group)
    User.objects.filter(username="eve").update(is_staff=True)
    sources = [make_source(f"s{number}", reserved_for=reserved(), enabled=number < 3) for number in range(4)]
    workflows = [
        make_workflow(
            chance.choice(sources),
            name=f"w{number:02}",
            enabled=chance.random() < 0.8,
            only_in_toolsets=chance.random() < 0.4,
        )
        for number in range(20)
    ]
    make_filter("w1[89]", action="exclude")
    toolsets = [
        make_toolset(
            f"t{number}",
            picked=chance.sample(workflows, 6),
            rules=chance.choice([[], ["w0*"]]),
            reserved_for=reserved(),
            enabled=number < 4,
            mode=chance.choice(["full", "full", "compact"]),
        )
        for number in range(5)
    ]
    texts = {}
    for number in range(12):
        scopes = chance.choice([None, None, [Scope.READ], [Scope.ADMIN]])
        owner = chance.choice([*users, None])
        toolset = None if scopes == [Scope.ADMIN] else chance.choice([*toolsets, None, None])
        name = f"token {number}"
        token, texts[name] = create_token(name=name, scopes=scopes, toolset=toolset)
        AccessToken.objects.filter(pk=token.pk).update(owner=owner)
    AccessToken.objects.filter(name="token 0").update(revoked_at=timezone.now())
    User.objects.filter(username="bob").update(is_active=chance.random() < 0.5)
    return texts


def served_over_mcp(mcp_server: Any, text: str, slug: str | None) -> set[str] | None:
    """The workflows that the endpoint lists by name; None if it refuses the token."""
    body, headers = modern("tools/call", name="list_workflows", arguments={})
    answer = mcp_server.post(body, token=text, headers=headers, toolset=slug)
    if answer.status_code != 200:
        return None
    return {one["name"] for one in answer.json()["result"]["structuredContent"]["workflows"]}


@pytest.mark.databases("catalogue.exposure")
@pytest.mark.parametrize("seed", range(3))
def test_the_report_says_what_each_token_is_served_at_each_address(mcp_server, seed):
    texts = make_world(random.Random(seed))
    reach = Reach(confirmed_catalogue(), find_holders(with_applications=True))
    holders = {holder.name: holder for holder in reach.holders}
    for name, text in texts.items():
        for slug in (None, *(f"t{number}" for number in range(5))):
            served = served_over_mcp(mcp_server, text, slug)
            if (holder := holders.get(name)) is None:
                assert served is None or not may_start(text), name
                continue
            bound = holder.bounds.toolset
            if bound is not None and slug is None:
                slug = bound
            told = set(reach.seen_by(holder).get(slug, ()))
            assert told == (served or set()), (name, slug)
        if (holder := holders.get(name)) is not None:
            assert may_start(text)
            assert shown_over_rest(text) == shown_by(reach, holder)


def may_start(text: str) -> bool:
    return rest(text).post("/api/executions/", {"tool": "no such tool"}, format="json").status_code == 404


def rest(text: str) -> APIClient:
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {text}")
    return client


def shown_over_rest(text: str) -> set[str] | None:
    """None for administrators, who see everything there."""
    if rest(text).get("/api/sources/").status_code == 200:
        return None
    return {one["tool_name"] for one in rest(text).get("/api/workflows/?page_size=100").json()["results"]}


def shown_by(reach: Reach, holder: Holder) -> set[str] | None:
    token = AccessToken.objects.select_related("toolset", "owner", "created_by").get(pk=holder.pk)
    if not token.granted.isdisjoint((Scope.ADMIN, Scope.VIEW)):
        return None
    return set(reach.seen_by(holder).get(holder.bounds.toolset, ()))


def test_both_directions_of_the_report_agree(db):
    make_world(random.Random(7))
    catalogue = confirmed_catalogue()
    reach = Reach(catalogue, find_holders(with_applications=True))
    by_caller = {(name, one.key) for one in reach.holders for name in reach.tools_of(one)}
    by_tool = {
        (name, one.key)
        for name, workflow in catalogue.workflows.items()
        for _, holders in reach.callers_of(workflow)
        for one in holders
    }
    assert by_caller == by_tool and by_tool


def make_small_world() -> None:
    ada = User.objects.create(username="ada")
    pay = make_workflow(name="pay", only_in_toolsets=True)
    make_workflow(name="report")
    finance = make_toolset("finance", picked=[pay])
    create_token(name="=agent", toolset=finance, owner=ada)
    create_token(name="everything")
    create_token(name="reads", scopes=[Scope.READ])
    application = Application.objects.create(
        name="Editor", client_type="public", authorization_grant_type="authorization-code"
    )
    AllowedApplication.objects.create(
        user=ada, application=application, name="Editor", scopes=["workflows:run"], allowed_at=timezone.now()
    )


def callers_on(page: Any) -> dict[str, set[str]]:
    return {
        row.workflow.tool_name: {one.name for _, holders in row.callers for one in holders}
        for row in page.context["rows"]
    }


def test_the_page_shows_it_by_tool_and_by_caller_and_narrows_it(db, admin_client):
    make_small_world()
    everyone = {"=agent", "everything", "Editor"}
    shown = callers_on(admin_client.get(PAGE))
    assert shown == {"pay": everyone, "report": everyone - {"=agent"}}
    assert list(callers_on(admin_client.get(PAGE, {"q": "PAY"}))) == ["pay"]
    by_caller = admin_client.get(PAGE, {"by": "caller"}).context["rows"]
    counts = {row["holder"].name: row["count"] for row in by_caller}
    assert counts == {"=agent": 1, "everything": 2, "Editor": 2}
    key = AccessToken.objects.get(name="=agent").pk
    assert list(callers_on(admin_client.get(PAGE, {"caller": f"accesstoken-{key}"}))) == ["pay"]
    narrowed = admin_client.get(PAGE, {"by": "caller", "tool": "report"}).context["rows"]
    assert {row["holder"].name for row in narrowed} == {"everything", "Editor"}


def test_the_csv_has_a_line_for_each_tool_and_no_formulas(db, admin_client):
    make_small_world()
    answered = admin_client.get(PAGE, {"csv": "1"})
    lines = b"".join(answered.streaming_content).decode().splitlines()
    assert lines[0] == ",".join(COLUMNS)
    assert [line.partition(",")[0] for line in lines[1:]] == ["pay", "report"]
    assert '"\'=agent, everything"' in lines[1] and "Editor for ada" in lines[1]


@pytest.mark.parametrize(
    ("rights", "status", "applications"),
    [
        (("view_workflow", "view_accesstoken"), 403, False),
        (("view_workflow", "view_toolset", "view_accesstoken"), 200, False),
        (("view_workflow", "view_toolset", "view_accesstoken", "view_allowedapplication"), 200, True),
    ],
)
def test_the_page_needs_the_rights_to_see_its_parts(db, client, rights, status, applications):
    make_small_world()
    person = User.objects.create(username="auditor", is_staff=True)
    person.user_permissions.set(Permission.objects.filter(codename__in=rights))
    client.force_login(person)
    page = client.get(PAGE)
    assert page.status_code == status
    if status == 200:
        assert ("Editor" in page.content.decode()) is applications


def queries_of(ask: Any) -> int:
    confirmed_catalogue()
    with CaptureQueriesContext(connection) as captured:
        ask()
    return len(captured)


def test_it_takes_the_same_number_of_queries_for_many_tokens_and_workflows(db, admin_client):
    make_small_world()
    few = queries_of(lambda: admin_client.get(PAGE))
    source = make_source()
    for number in range(30):
        make_workflow(source, name=f"more{number}")
        owner = User.objects.create(username=f"user{number}")
        owner.groups.add(Group.objects.get_or_create(name=f"group{number % 3}")[0])
        create_token(name=f"more {number}", owner=owner)
    assert queries_of(lambda: admin_client.get(PAGE)) <= few
