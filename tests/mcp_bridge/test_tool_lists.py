"""`tools/list`: pages, cursors, and lists that are answered from memory."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from mcp import MCPError

from access.callers import Scope
from catalogue.models import Workflow
from identity.models import AccessToken
from identity.tokens import create_token
from mcp_bridge.builtin_tools import BUILT_IN_TOOLS
from mcp_bridge.request_meta import make_cursor
from tests.factories import make_workflow, make_workflows
from tests.mcp_bridge.conftest import McpServer
from tests.mcp_bridge.database import in_database
from tests.mcp_bridge.test_endpoint import modern

USUAL = [tool for tool in BUILT_IN_TOOLS.values() if tool.takes_part_in is None and not tool.app_only]
BUILT_IN = len([tool for tool in USUAL if tool.scope in (Scope.READ, Scope.RUN)])


@pytest.fixture
def pages_of(settings) -> Callable[[int], None]:
    """Sets how many tools a page has."""

    def sized(size: int) -> None:
        settings.CATALOGUE = settings.CATALOGUE | {"page_size": size}

    return sized


def listed(server: McpServer, token: str, **params: Any) -> dict[str, Any]:
    body, headers = modern("tools/list", **params)
    answer: dict[str, Any] = server.post(body, headers=headers, token=token).json()
    return answer


def names_in(answer: dict[str, Any]) -> list[str]:
    return [tool["name"] for tool in answer["result"]["tools"]]


async def test_all_tools_come_page_by_page_each_once_in_both_eras(connect, era, pages_of):
    """A2.1"""
    await in_database(make_workflows)(25)
    pages_of(7)
    async with connect(mode=era) as client:
        pages, cursor = [], None
        while cursor is not None or not pages:
            page = await client.list_tools(cursor=cursor)
            pages.append([tool.name for tool in page.tools])
            cursor = page.next_cursor
    assert [len(page) for page in pages[:-1]] == [7] * (len(pages) - 1)
    names = [name for page in pages for name in page]
    assert len(names) == len(set(names)) == BUILT_IN + 25


def test_a_list_that_fits_one_page_has_no_cursor(mcp_server, token, pages_of):
    make_workflows(3)
    pages_of(BUILT_IN + 3)
    assert "nextCursor" not in listed(mcp_server, token)["result"]


@pytest.mark.databases("mcp_bridge.tool_lists")
def test_what_comes_and_goes_between_two_pages_moves_nothing_else(mcp_server, token, pages_of):
    """A cursor is good for every revision: it names the last tool of its page."""
    pages_of(BUILT_IN + 2)
    rows = [make_workflow(name=name) for name in ("b", "d", "f", "h")]
    first = listed(mcp_server, token)
    assert names_in(first)[BUILT_IN:] == ["b", "d"]
    make_workflow(name="a")
    make_workflow(name="e")
    Workflow.objects.filter(pk=rows[1].pk).delete()
    wait_for(mcp_server, token, lambda names: "d" not in names)
    second = listed(mcp_server, token, cursor=first["result"]["nextCursor"])
    assert names_in(second) == ["e", "f", "h"]


@pytest.mark.databases("mcp_bridge.tool_lists")
def test_the_order_does_not_depend_on_the_databases_alphabet(mcp_server, token, pages_of):
    pages_of(BUILT_IN + 1)
    names = ["Zebra", "a-b", "a.c", "a_d", "aB", "ab", "b"]
    for name in names:
        make_workflow(name=name)
    found, cursor = [], None
    while cursor is not None or not found:
        answer = listed(mcp_server, token, **({"cursor": cursor} if cursor else {}))
        found += names_in(answer)
        cursor = answer["result"].get("nextCursor")
    assert found[BUILT_IN:] == sorted(names)


@pytest.mark.parametrize("cursor", ["", "x", "!!!", "bm9wZQ==", "é", "A" * 5000, make_cursor("1a") + "="])
def test_a_cursor_that_is_none_is_refused(mcp_server, token, cursor):
    for _ in range(2):
        error = listed(mcp_server, token, cursor=cursor)["error"]
        assert error["code"] == -32602
        assert "cursor" in error["message"]


async def test_a_client_is_told_how_long_it_may_keep_a_list(connect, settings):
    settings.CATALOGUE = settings.CATALOGUE | {"list_ttl": 12.5}
    async with connect() as client:
        page = await client.list_tools()
    assert (page.ttl_ms, page.cache_scope) == (12_500, "private")


def test_a_repeated_request_gets_the_same_list_with_its_own_id(mcp_server, token):
    make_workflows(3)
    first = listed(mcp_server, token)
    assert listed(mcp_server, token) == first
    body, headers = modern("tools/list")
    other = mcp_server.post(body | {"id": 'quoted " \\ ü'}, headers=headers, token=token).json()
    assert (other["id"], other["result"]) == ('quoted " \\ ü', first["result"])


def test_a_repeated_request_is_refused_once_its_token_is_revoked(mcp_server, token):
    """B8: within a second, in every process."""
    assert "result" in listed(mcp_server, token) and "result" in listed(mcp_server, token)
    AccessToken.objects.get(name="agent").revoke()
    body, headers = modern("tools/list")
    deadline = (asked_at := time.monotonic()) + 1.0
    while (answer := mcp_server.post(body, headers=headers, token=token)).status_code == 200:
        assert asked_at < deadline, "the token still opens the door"
        asked_at = time.monotonic()
    assert answer.status_code == 401


def test_each_token_sees_what_its_scopes_allow(mcp_server):
    """B8"""
    make_workflow(name="payroll")
    _, reader = create_token(name="reader", scopes=[Scope.READ])
    _, runner = create_token(name="runner", scopes=[Scope.RUN])
    for _ in range(2):
        assert "payroll" not in names_in(listed(mcp_server, reader))
        assert "execute_workflow" not in names_in(listed(mcp_server, reader))
        assert {"payroll", "execute_workflow"} <= set(names_in(listed(mcp_server, runner)))
        assert "list_workflows" not in names_in(listed(mcp_server, runner))


def wait_for(server: McpServer, token: str, holds: Any) -> None:
    """Agents who ask a second later see a change; how long an answer takes is another matter."""
    deadline = (asked_at := time.monotonic()) + 1.0
    while not holds(names := names_in(listed(server, token))):
        assert asked_at < deadline, names
        asked_at = time.monotonic()


async def test_a_workflow_that_is_called_like_a_number_has_a_cursor_too(connect, pages_of):
    pages_of(BUILT_IN + 1)
    for name in ("0", "1"):
        await in_database(make_workflow)(name=name)
    async with connect() as client:
        first = await client.list_tools()
        second = await client.list_tools(cursor=first.next_cursor)
        with pytest.raises(MCPError, match="cursor"):
            await client.list_tools(cursor=json.dumps(first.next_cursor))
    assert [tool.name for tool in first.tools][-1] == "0"
    assert [tool.name for tool in second.tools] == ["1"]
