"""Toolsets and sources that are reserved: what others neither see nor run, at any door."""

from importlib import import_module
from typing import Any

import pytest
from django.apps import apps
from django.contrib.auth.models import Group, Permission, User
from django.test import Client
from django.utils import timezone
from mcp import MCPError
from mcp_types import ResourceTemplateReference
from rest_framework.test import APIClient

from catalogue.access import Bounds, Caller, Person, Scope, person_of
from catalogue.curation import write_toolset
from catalogue.descriptions import forget_outages
from catalogue.exposure import confirmed_catalogue
from catalogue.models import Revision, Role, Source, Toolset, Workflow
from catalogue.sources import update_source
from executions.models import Execution
from executions.models.lifecycle import StartRequest
from executions.refusals import UnknownTool
from executions.starting import create_execution, prepare_execution
from mcp_bridge.bearers import forget_bearers
from mcp_bridge.models import AccessToken
from mcp_bridge.tokens import create_token
from orchestration.models import StageFailed
from orchestration.retrieval import find_tools
from tests.admin.test_running import run
from tests.factories import make_source, make_toolset, make_workflow
from tests.mcp_bridge.conftest import McpServer
from tests.mcp_bridge.database import in_database
from tests.mcp_bridge.test_endpoint import modern
from tests.mcp_bridge.test_toolsets import found_by, notice_changes, workflows_of

hold_by_key = import_module("catalogue.migrations.0020_reserved_keys").hold_by_key
pytestmark = pytest.mark.databases("catalogue.sources", "catalogue.exposure")


def ada_of_finance() -> Person | None:
    return person_of(make_person("ada", "Finance"))


def bob_of_nothing() -> Person | None:
    return person_of(make_person("bob"))


def shown_to(person: Person | None, slug: str | None = None) -> list[str]:
    return list(confirmed_catalogue().seen_within(Bounds(slug, person)))


def make_rooms() -> None:
    """`pay` is Finance's by its toolset, `audit` by its source, `shared` also in a toolset for all."""
    open_source, closed = make_source("open"), make_source("closed", reserved_for=["group:Finance"])
    pay, plain = (make_workflow(open_source, name=name, offered_as_prompt=True) for name in ("pay", "plain"))
    shared = make_workflow(open_source, name="shared")
    make_workflow(closed, name="audit", offered_as_prompt=True)
    make_toolset("finance", picked=[pay, shared], reserved_for=["group:Finance"])
    make_toolset("all", picked=[plain, shared])


def make_person(name: str, *groups: str, **fields: Any) -> User:
    user, _ = User.objects.update_or_create(username=name, defaults=fields)
    for group in groups:
        user.groups.add(Group.objects.get_or_create(name=group)[0])
    return user


def token_of(user: User, *scopes: Scope) -> str:
    token, text = create_token(name=f"of {user} {AccessToken.objects.count()}", scopes=scopes or None)
    AccessToken.objects.filter(pk=token.pk).update(created_by=user)
    return text


@pytest.fixture
def finance(db: None) -> None:
    Group.objects.create(name="Finance")
    make_rooms()


EVERYTHING = ["audit", "pay", "plain", "shared"]


def test_a_reservation_hides_workflows_in_its_toolset_and_outside_of_it(finance):
    ada, bob = ada_of_finance(), bob_of_nothing()
    for person, expected in ((None, EVERYTHING), (ada, EVERYTHING), (bob, ["plain", "shared"])):
        assert shown_to(person) == expected
    assert shown_to(ada, "finance") == ["pay", "shared"]
    assert shown_to(bob, "finance") == []
    assert confirmed_catalogue().toolset_within(Bounds("finance", bob)) is None
    User.objects.get(username="ada").groups.clear()
    assert shown_to(person_of(User.objects.get(username="ada"))) == ["plain", "shared"]


def test_a_reservation_outlives_the_switch_of_its_toolset_and_its_group(finance):
    """What is reserved is not opened by accident."""
    ada, bob = ada_of_finance(), bob_of_nothing()
    write_toolset(Toolset.objects.get(slug="finance"), enabled=False)
    assert shown_to(bob) == ["plain", "shared"]
    assert shown_to(ada) == EVERYTHING
    Group.objects.get(name="Finance").delete()
    write_toolset(Toolset.objects.get(slug="finance"), enabled=True, title="Finance")
    assert shown_to(bob) == ["plain", "shared"]
    assert Toolset.objects.get(slug="finance").reserved_for == ["group:Finance"]


def test_a_change_of_a_reservation_is_a_new_revision(finance):
    before = confirmed_catalogue()
    bob = bob_of_nothing()
    update_source(Source.objects.get(name="closed"), reserved_for=["user:bob"])
    assert confirmed_catalogue().revision > before.revision
    assert shown_to(bob) == ["audit", "plain", "shared"]
    update_source(Source.objects.get(name="closed"), reserved_for=[])
    write_toolset(Toolset.objects.get(slug="finance"), reserved_for=[])
    assert shown_to(bob) == EVERYTHING
    assert confirmed_catalogue().seen_within(Bounds(None, bob)) is confirmed_catalogue().workflows


def test_persons_with_the_same_bars_share_what_is_made_for_them(finance):
    catalogue = confirmed_catalogue()
    one, other = (Bounds(None, frozenset({f"user:{key}", "group:9999"})) for key in (9998, 9999))
    assert catalogue.seen_within(one) is catalogue.seen_within(other)
    assert catalogue.reservations.relevant_of(one.person) == catalogue.reservations.relevant_of(other.person)


async def test_another_user_neither_lists_nor_runs_what_is_reserved(connect, era):
    """Tools, built-in tools, search, resources, prompts and completions; in both eras."""
    await in_database(Group.objects.create)(name="Finance")
    await in_database(make_rooms)()
    bob = await in_database(make_person)("bob")
    async with connect(as_token=await in_database(token_of)(bob), mode=era) as client:
        assert await workflows_of(client) == ["plain", "shared"]
        assert await found_by(client) == ["plain", "shared"]
        searched = (await client.call_tool("list_workflows", {"query": "pay audit"})).structured_content
        assert searched["workflows"] == []
        listed = {str(resource.uri) for resource in (await client.list_resources()).resources}
        assert not [uri for uri in listed if uri.endswith(("pay", "audit"))]
        assert [prompt.name for prompt in (await client.list_prompts()).prompts] == ["plain"]
        for name in ("pay", "audit"):
            for address in (f"workflow://metadata/{name}", f"workflow://schema/{name}"):
                with pytest.raises(MCPError):
                    await client.read_resource(address)
            with pytest.raises(MCPError):
                await client.get_prompt(name, {})
            with pytest.raises(MCPError):
                await client.call_tool(name, {})
            for tool, argument in (("execute_workflow", "name"), ("get_workflow_info", "name")):
                refused = await client.call_tool(tool, {argument: name})
                assert refused.is_error and "Unknown or disabled" in refused.content[0].text
    assert not await in_database(Execution.objects.exists)()


async def test_completions_and_instructions_name_nothing_that_is_reserved_for_others(connect, era):
    await in_database(Group.objects.create)(name="Finance")
    await in_database(make_rooms)()
    failing = {"health_state": "failing", "health_message": "401", "failing_since": timezone.now()}
    await in_database(Source.objects.update)(**failing)
    await in_database(Revision.bump)()
    told: dict[str, set[str]] = {}
    for name, groups in (("bob", ()), ("ada", ("Finance",))):
        person = await in_database(make_person)(name, *groups)
        forget_outages()
        text = await in_database(token_of)(person)
        # Without `server/discover`, clients of 2026-07-28 hear no instructions.
        async with connect(as_token=text, mode="legacy" if era == "legacy" else "auto") as client:
            named = {word for word in ("open", "closed", "finance") if word in (client.instructions or "")}
            for uri in ("workflow://schema/{name}", "workflow://metadata/{name}"):
                asked = ResourceTemplateReference(type="ref/resource", uri=uri)
                found = await client.complete(asked, {"name": "name", "value": ""})
                named |= set(found.completion.values)
        told[name] = named
    assert told["bob"] == {"open", "plain", "shared"}
    assert told["ada"] >= {"open", "closed", "audit", "pay"}


async def test_members_of_the_group_see_it_within_a_second_of_joining(connect, mcp_server):
    await in_database(Group.objects.create)(name="Finance")
    await in_database(make_rooms)()
    ada = await in_database(make_person)("ada")
    text = await in_database(token_of)(ada)
    body, headers = modern("tools/list")
    answer = await in_database(mcp_server.post)(body, token=text, headers=headers, toolset="finance")
    assert answer.status_code == 404
    group = await in_database(Group.objects.get)(name="Finance")
    await in_database(ada.groups.add)(group)
    forget_bearers()
    async with connect(as_token=text) as client:
        assert await workflows_of(client) == EVERYTHING
    async with connect(as_token=text, toolset="finance") as client:
        assert await workflows_of(client) == ["pay", "shared"]
    await in_database(ada.groups.clear)()
    forget_bearers()
    async with connect(as_token=text) as client:
        assert await workflows_of(client) == ["plain", "shared"]
    await in_database(User.objects.filter(pk=ada.pk).update)(is_superuser=True)
    forget_bearers()
    notice_changes()
    async with connect(as_token=text) as client:
        assert await workflows_of(client) == EVERYTHING


def test_rest_and_words_and_starts_are_bound_as_well(finance):
    """POST /workflow looks its tools up as the caller may see them, and every run starts at one place."""
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {token_of(make_person('bob'))}")
    listed = client.get("/api/workflows/").json()["results"]
    assert [workflow["tool_name"] for workflow in listed] == ["plain", "shared"]
    assert client.get("/api/workflows/pay/").status_code == 404
    assert client.post("/api/executions/", {"tool": "pay"}, format="json").status_code == 404
    asked = {"instructions": "Pay it.", "tool_ids": ["pay"]}
    assert client.post("/workflow", asked, format="json").status_code in (400, 404)
    bob = Caller(key="user:2", name="bob", person=bob_of_nothing())
    with pytest.raises(StageFailed):
        find_tools(["pay"], caller=bob)
    for may_be_hidden in (False, True):
        for name in ("pay", "audit"):
            request = StartRequest(
                tool_name=name,
                arguments={},
                caller=bob,
                door=Execution.Door.ADMIN,
                may_be_hidden=may_be_hidden,
            )
            with pytest.raises(UnknownTool):
                create_execution(request)
    assert not Execution.objects.exists()


@pytest.mark.parametrize("toolset_enabled", [True, False])
def test_the_run_page_starts_nothing_that_is_reserved_for_others_while_it_is_hidden(finance, toolset_enabled):
    """People who may run hidden workflows could otherwise hide it first."""
    write_toolset(Toolset.objects.get(slug="finance"), enabled=toolset_enabled)
    Workflow.objects.update(enabled=False)
    notice_changes()
    rights = Permission.objects.filter(
        codename__in=("add_execution", "view_execution", "change_workflow", "view_workflow")
    )
    for name, groups, expected in (("bob", (), ["plain", "shared"]), ("ada", ("Finance",), EVERYTHING)):
        person = make_person(name, *groups, is_staff=True)
        person.user_permissions.set(rights)
        (browser := Client()).force_login(person)
        for workflow in Workflow.objects.all():
            run(browser, workflow)
        started = Execution.objects.filter(caller=f"user:{person.pk}").values_list("tool_name", flat=True)
        assert sorted(started) == expected


def test_a_cached_result_of_another_is_not_given_to_who_may_not_run_the_workflow(finance):
    Workflow.objects.filter(name="pay").update(cache_seconds=60)
    with pytest.raises(UnknownTool):
        prepare_execution(
            StartRequest(
                tool_name="pay",
                arguments={},
                caller=Caller(key="user:2", name="bob", person=bob_of_nothing()),
                door=Execution.Door.MCP,
                may_reattach=True,
            ),
            "one",
        )


def test_a_token_allows_no_more_than_its_user_may_now(db):
    """Taken rights, a disabled account and a deleted one; one made by a command has no user."""
    owner = make_person("owner", is_staff=True)
    owner.groups.add(Role.objects.get(name="owner").group)
    text = token_of(owner, Scope.ADMIN)
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {text}")

    def answers() -> list[int]:
        forget_bearers()
        return [client.get("/api/sources/").status_code, client.patch("/api/settings/", {}).status_code]

    assert answers() == [200, 200]
    owner.groups.set([Role.objects.get(name="viewer").group])
    assert answers() == [200, 403]
    owner.groups.clear()
    assert answers() == [403, 403]
    User.objects.filter(pk=owner.pk).update(is_active=False)
    assert set(answers()) <= {401, 403}
    owner.delete()
    assert answers() == [401, 401]
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {create_token(name='made', scopes=[Scope.ADMIN])[1]}")
    assert answers() == [200, 200]


def test_a_person_is_known_with_their_groups_and_a_superuser_is_bound_by_nothing(db):
    ada = make_person("ada", "Finance", "Sales")
    groups = {f"group:{group.pk}" for group in Group.objects.filter(name__in=("Finance", "Sales"))}
    assert person_of(ada) == {f"user:{ada.pk}", *groups}
    assert person_of(make_person("root", is_superuser=True)) is None
    gone = make_person("gone", is_superuser=True, is_active=False)
    assert person_of(gone) == {f"user:{gone.pk}"}


# H12: by key, not by name


def delete_user() -> None:
    User.objects.get(username="ada").delete()


def delete_users_at_once() -> None:
    User.objects.filter(username="ada").delete()


def rename_user() -> None:
    User.objects.filter(username="ada").update(username="ada.old")


def delete_group() -> None:
    Group.objects.get(name="Finance").delete()


def rename_group() -> None:
    Group.objects.filter(name="Finance").update(name="Former Finance")


def as_a_toolset(name: str) -> None:
    make_toolset("finance", picked=[make_workflow(name="pay")], reserved_for=[name])


def as_a_source(name: str) -> None:
    make_workflow(make_source("closed", reserved_for=[name]), name="pay")


def nothing_more() -> None:
    pass


def save_it_unchanged() -> None:
    for source in Source.objects.all():
        update_source(source, reserved_for=source.reserved_for, max_concurrent=3)
    for toolset in Toolset.objects.all():
        write_toolset(toolset, reserved_for=toolset.reserved_for, title="Finance")


@pytest.mark.parametrize("reserve", [as_a_toolset, as_a_source])
@pytest.mark.parametrize(
    ("name", "go"),
    [
        ("user:ada", delete_user), ("user:ada", delete_users_at_once), ("user:ada", rename_user),
        ("group:Finance", delete_group), ("group:Finance", rename_group),
    ],
)  # fmt: skip
def test_another_user_or_group_of_the_same_name_is_not_admitted(name, go, reserve, mcp_server):
    ada = make_person("ada", "Finance")
    reserve(name)
    assert names_of_tools(mcp_server, token_of(ada)) == {"pay"}
    go()
    impostor = make_person("ada" if name.startswith("user:") else "other", "Finance")
    for then in (nothing_more, save_it_unchanged):
        then()
        notice_changes()
        forget_bearers()
        assert names_of_tools(mcp_server, token_of(impostor)) == set()
    if go in (rename_user, rename_group):
        assert names_of_tools(mcp_server, token_of(ada)) == {"pay"}


def test_the_other_one_is_admitted_once_the_name_is_entered_again(mcp_server):
    make_person("ada")
    as_a_toolset("user:ada")
    delete_user()
    other = make_person("ada")
    for names in ([], ["user:ada"]):
        write_toolset(Toolset.objects.get(), reserved_for=names)
    notice_changes()
    assert names_of_tools(mcp_server, token_of(other)) == {"pay"}


def names_of_tools(mcp_server: McpServer, token: str) -> set[str]:
    body, headers = modern("tools/list")
    tools = mcp_server.post(body, token=token, headers=headers).json()["result"]["tools"]
    return {tool["name"] for tool in tools} & {"pay"}


@pytest.mark.parametrize(
    "wrong", [["Finance"], ["group:"], "group:Finance", [1], ["group:Nobody"], ["user:x"]]
)
def test_a_reservation_names_users_and_groups_that_there_are(db, wrong):
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {create_token(name='a', scopes=[Scope.ADMIN])[1]}")
    make_toolset("finance")
    make_source("closed")
    for address in ("/api/toolsets/finance/", "/api/sources/closed/"):
        refused = client.patch(address, {"reserved_for": wrong}, format="json")
        assert refused.status_code == 400, refused.content
        assert refused.json()["errors"][0]["path"].startswith("/reserved_for")


def test_reservations_from_before_are_held_by_the_keys_of_who_has_the_names(db):
    ada = make_person("ada", "Finance")
    group = ada.groups.get()
    names = ["group:Finance", "group:Gone", "user:ada"]
    make_toolset("finance")
    Toolset.objects.update(reserved_for=names, reserved_keys={})
    Source.objects.bulk_create([Source(name="closed", kind="simplified", reserved_for=names)])
    hold_by_key(apps, None)
    held = {"group:Finance": f"group:{group.pk}", "group:Gone": "", "user:ada": f"user:{ada.pk}"}
    assert Toolset.objects.get().reserved_keys == Source.objects.get().reserved_keys == held
