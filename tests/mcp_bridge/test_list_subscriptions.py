"""Being told that a list has changed: only when it has, for the one who listens."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client as Browser
from mcp.shared.subscriptions import PromptsListChanged, ResourcesListChanged, ToolsListChanged

from catalogue.access import Scope
from catalogue.curation import disable_workflows
from catalogue.models import Toolset, Workflow, WorkflowFilter
from mcp_bridge.models import AccessToken
from mcp_bridge.tokens import create_token
from tests.admin.pages import add_url, form_values
from tests.executions.engines import in_thread
from tests.factories import make_source, make_toolset, make_workflow
from tests.mcp_bridge.conftest import McpServer
from tests.mcp_bridge.database import in_database
from tests.mcp_bridge.listening import (
    PATIENCE_SECONDS,
    PROMPTS,
    RESOURCES,
    TOOLS,
    Curator,
    listening,
    noticed,
)
from tests.mcp_bridge.test_tasks import send

pytestmark = pytest.mark.usefixtures("quick_news")

ALL = {"toolsListChanged": True, "promptsListChanged": True, "resourcesListChanged": True}
LISTS = {"toolsListChanged": TOOLS, "promptsListChanged": PROMPTS, "resourcesListChanged": RESOURCES}
Change = Callable[[Curator], None]


@pytest.fixture
def workflow(transactional_db: None) -> Workflow:
    """`pay`, which agents see."""
    return make_workflow(make_source("bank"), name="pay", description="Pays a bill.")


@pytest.fixture
def curator(mcp_server: McpServer) -> Curator:
    return Curator(mcp_server)


def add_filter_in_the_admin(_: Curator) -> None:
    browser = Browser()
    browser.force_login(User.objects.create(username="admin", is_staff=True, is_superuser=True))
    filled = {"action": "exclude", "subject": "name", "syntax": "glob", "pattern": "pa*", "position": "1"}
    asked = browser.post(add_url(WorkflowFilter), filled | {"enabled": "on"})
    assert browser.post(add_url(WorkflowFilter), form_values(asked)).status_code == 302


def switch_source_off(curator: Curator) -> None:
    curator.change("sources/bank", enabled=False)


def describe_otherwise(curator: Curator) -> None:
    curator.change("workflows/pay", description="Pays at once.")


def tool_names(server: McpServer, token: str) -> list[str]:
    listed = send(server, token, "tools/list").json()["result"]["tools"]
    return [tool["name"] for tool in listed]


@pytest.mark.parametrize("change", [add_filter_in_the_admin, switch_source_off])
async def test_a_change_that_hides_a_workflow_is_told_and_the_list_is_the_new_one_by_then(
    mcp_server, token, workflow, curator, change
):
    """A4.2, A4.4: the admin's door and REST's; whoever asks for the list at once gets the new one."""
    assert "pay" in await in_thread(tool_names, mcp_server, token)
    async with listening(mcp_server, token, **ALL) as stream:
        assert await stream.honoured() == ALL
        await in_thread(change, curator)
        assert {await stream.news(), await stream.news()} == {TOOLS, RESOURCES}
        assert "pay" not in await in_thread(tool_names, mcp_server, token)


async def test_a_listing_that_a_workflow_has_vanished_from_is_told(mcp_server, token, workflow):
    """A1.3: like everything that discovery and curators' actions do to rows."""
    async with listening(mcp_server, token, toolsListChanged=True) as stream:
        await stream.honoured()
        await in_database(disable_workflows)(Workflow.objects.all())
        assert await stream.news() == TOOLS


async def test_only_the_list_that_has_changed_is_told(mcp_server, token, workflow, curator):
    """A prompt more is no other tool, and a hint is only in the list of tools."""
    async with listening(mcp_server, token, **ALL) as stream:
        await stream.honoured()
        await in_thread(lambda: curator.change("workflows/pay", offered_as_prompt=True))
        assert await stream.news() == PROMPTS
        await in_thread(lambda: curator.change("workflows/pay", read_only_hint=True))
        assert await stream.news() == TOOLS
        await in_thread(describe_otherwise, curator)
        told = [await stream.news() for _ in range(3)]
        assert sorted(told) == sorted((TOOLS, PROMPTS, RESOURCES))


@pytest.mark.parametrize("invisible", ["interval", "filter", "same words", "other toolset"])
async def test_a_change_that_the_listener_cannot_see_is_not_told(
    mcp_server, token, workflow, curator, invisible
):
    """The first that it hears is what could be seen, which is another list's."""
    await in_database(make_toolset)("other", picked=[workflow])
    changes: dict[str, Change] = {
        "interval": lambda _: curator.change("sources/bank", refresh_interval=600),
        "filter": lambda _: make_filter_of_nothing(),
        "same words": lambda _: curator.change("workflows/pay", description="Pays a bill."),
        "other toolset": lambda _: curator.change("toolsets/other", mode="compact"),
    }
    async with listening(mcp_server, token, **ALL) as stream:
        await stream.honoured()
        await in_thread(changes[invisible], curator)
        await noticed()
        await in_thread(lambda: curator.change("workflows/pay", offered_as_prompt=True))
        assert await stream.news() == PROMPTS


def make_filter_of_nothing() -> None:
    WorkflowFilter.objects.create(pattern="no-such-*", action="exclude")


async def test_a_listener_of_a_toolset_hears_of_its_changes_only(mcp_server, token):
    """By the address and by the token's own toolset."""
    inside, outside = await in_database(lambda: (make_workflow(name="inside"), make_workflow(name="out")))()
    toolset = await in_database(make_toolset)("finance", picked=[inside])
    bound = (await in_database(create_token)(name="bound", toolset=toolset))[1]
    async with (
        listening(mcp_server, token, toolset="finance", **ALL) as by_address,
        listening(mcp_server, bound, **ALL) as by_token,
    ):
        for stream in (by_address, by_token):
            assert await stream.honoured() == ALL
        for unseen, seen, heard in (
            ((outside, "offered_as_prompt", True), (inside, "read_only_hint", True), TOOLS),
            ((outside, "enabled", False), (inside, "offered_as_prompt", True), PROMPTS),
        ):
            await in_database(save)(*unseen)
            await noticed()
            await in_database(save)(*seen)
            for stream in (by_address, by_token):
                assert await stream.news() == heard


def save(workflow: Workflow, field: str, value: object) -> None:
    setattr(workflow, field, value)
    workflow.save()


@pytest.mark.parametrize("change", ["compact", "rules"])
async def test_a_change_of_the_toolset_itself_is_told(mcp_server, token, workflow, curator, change):
    await in_database(make_toolset)("finance", picked=[workflow])
    fields: dict[str, Any] = {"mode": "compact"} if change == "compact" else {"picked": [], "rules": []}
    async with listening(mcp_server, token, toolset="finance", toolsListChanged=True) as stream:
        await stream.honoured()
        await in_thread(lambda: curator.change("toolsets/finance", **fields))
        assert await stream.news() == TOOLS


async def test_when_its_toolset_disappears_a_listener_is_told_and_its_stream_ends(
    mcp_server, token, workflow, curator
):
    """The list is empty now; then there is nothing more to come."""
    await in_database(make_toolset)("finance", picked=[workflow])
    async with listening(mcp_server, token, toolset="finance", toolsListChanged=True) as stream:
        await stream.honoured()
        await in_thread(lambda: curator.change("toolsets/finance", enabled=False))
        assert await stream.news() == TOOLS
        assert await stream.ends()


async def test_a_toolset_that_comes_back_is_told_to_whoever_is_bound_to_it(mcp_server, curator, workflow):
    """A token of a toolset that is switched off is let in, and sees nothing for the time being."""
    toolset = await in_database(make_toolset)("finance", picked=[workflow], enabled=False)
    bound = (await in_database(create_token)(name="bound", toolset=toolset))[1]
    async with listening(mcp_server, bound, toolsListChanged=True) as stream:
        assert await stream.honoured() == {"toolsListChanged": True}
        await in_thread(lambda: curator.change("toolsets/finance", enabled=True))
        assert await stream.news() == TOOLS
    assert await in_database(Toolset.objects.filter(enabled=True).count)() == 1


@pytest.mark.parametrize(
    ("scopes", "honoured"),
    [
        ([Scope.READ], {"toolsListChanged": True, "resourcesListChanged": True}),
        ([Scope.RUN], ALL),
        ([Scope.READ, Scope.RUN], ALL),
    ],
)
async def test_the_scopes_decide_which_lists_are_honoured(mcp_server, scopes, honoured):
    limited = (await in_database(create_token)(name="limited", scopes=scopes))[1]
    async with listening(mcp_server, limited, **ALL) as stream:
        assert await stream.honoured() == honoured


@pytest.mark.parametrize("wanted", [{}, {"toolsListChanged": False}, ALL])
async def test_a_listener_that_nothing_can_come_for_is_told_so(mcp_server, wanted):
    """It asked for nothing, or its token has no scope any more: acknowledged as empty, ended at once."""

    def make_token_without_scopes() -> str:
        token, text = create_token(name="limited")
        AccessToken.objects.filter(pk=token.pk).update(scopes=[])
        return text

    async with listening(mcp_server, await in_database(make_token_without_scopes)(), **wanted) as stream:
        assert await stream.honoured() == {}
        assert await stream.ends()


async def test_the_official_client_hears_of_each_list(open_client, workflow, curator):
    """E8: over both transports, by its own subscriptions; it finds the new list when it has heard."""
    async with open_client(mode="2026-07-28") as client:
        listening = client.listen(
            tools_list_changed=True, prompts_list_changed=True, resources_list_changed=True
        )
        async with asyncio.timeout(PATIENCE_SECONDS), listening as subscription:
            await in_thread(switch_source_off, curator)
            told = [await anext(subscription) for _ in range(2)]
            names = [tool.name for tool in (await client.list_tools()).tools]
            assert sorted(map(str, told)) == sorted(map(str, (ToolsListChanged(), ResourcesListChanged())))
            assert "pay" not in names
            await in_thread(lambda: curator.change("sources/bank", enabled=True))
            await in_thread(lambda: curator.change("workflows/pay", offered_as_prompt=True))
            while await anext(subscription) != PromptsListChanged():
                pass


async def test_over_http_each_era_is_promised_what_it_can_have(connect):
    """Without a session there is none to remember a handshake client's subscriptions to resources."""
    promised = {}
    for mode in ("auto", "legacy"):
        async with connect(mode=mode) as client:
            capabilities = client.server_capabilities
            assert capabilities is not None
            assert capabilities.tools and capabilities.tools.list_changed
            assert capabilities.prompts and capabilities.prompts.list_changed
            assert capabilities.resources and capabilities.resources.list_changed
            promised[client.protocol_version] = capabilities.resources.subscribe
    assert promised == {"2026-07-28": True, "2025-11-25": False}
