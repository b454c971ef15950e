"""Toolsets through the MCP door: what each shows, to whom, and what it costs."""

import json
from typing import Any

import pytest
from loguru import logger
from mcp import Client, MCPError

from access.callers import Scope
from catalogue.actions.toolsets import write_toolset
from catalogue.exposure import confirmed_catalogue, forget_catalogue
from catalogue.models import Toolset, Workflow
from executions.models import Execution
from identity.tokens import create_token
from mcp_bridge.builtin_tools import BUILT_IN_TOOLS
from mcp_bridge.tool_lists import ToolsetCost, cost_of_toolset
from tests.factories import make_filter, make_source, make_toolset, make_workflow
from tests.mcp_bridge.database import in_database
from tests.mcp_bridge.test_endpoint import modern

UNKNOWN_TOOL = "Unknown or disabled tool"


def bound_token(toolset: Toolset, *scopes: Scope) -> str:
    return create_token(name=f"bound to {toolset}", scopes=scopes or None, toolset=toolset)[1]


def notice_changes() -> None:
    """As after the second that a process may go on with what it knows."""
    forget_catalogue()


def make_workflows_named(*names: str) -> dict[str, Workflow]:
    source = make_source()
    return {name: make_workflow(source, name=name) for name in names}


async def workflows_of(client: Client) -> list[str]:
    """The tools that are workflows."""
    listed = [tool.name for tool in (await client.list_tools()).tools]
    usual = {
        name for name, tool in BUILT_IN_TOOLS.items() if tool.takes_part_in is None and not tool.app_only
    }
    assert usual - {"ClearCache"} <= set(listed)
    return [name for name in listed if name not in BUILT_IN_TOOLS]


async def found_by(client: Client) -> list[str]:
    """The workflows that `list_workflows` knows."""
    document = (await client.call_tool("list_workflows", {})).structured_content
    return [workflow["name"] for workflow in document["workflows"]]


RULES_AND_WHAT_THEY_CHOOSE: dict[str, tuple[list[Any], list[str]]] = {
    "no rule": ([], ["picked"]),
    "only a rule that is off": ([{"pattern": "*", "enabled": False}], ["picked"]),
    "an include rule": (["a*"], ["a1", "a2", "picked"]),
    "only an exclude rule": ([{"pattern": "a*", "action": "exclude"}], ["b1", "picked"]),
    "an exclude rule on what is picked": ([{"pattern": "*", "action": "exclude"}], ["picked"]),
    "the first match decides": ([{"pattern": "a1", "action": "exclude"}, "a*"], ["a2", "picked"]),
    "two include rules": (["a1", "b*"], ["a1", "b1", "picked"]),
}


@pytest.mark.parametrize("name", RULES_AND_WHAT_THEY_CHOOSE)
async def test_a_toolset_shows_what_was_picked_and_what_its_rules_let_through(connect, name, era):
    """A4.2: in both eras, as tools and to the built-in ones."""
    rules, expected = RULES_AND_WHAT_THEY_CHOOSE[name]
    made = await in_database(make_workflows_named)("a1", "a2", "b1", "picked")
    await in_database(make_toolset)("chosen", picked=[made["picked"]], rules=rules)
    async with connect(toolset="chosen", mode=era) as client:
        assert await workflows_of(client) == expected
        assert await found_by(client) == expected


async def test_what_is_not_exposed_is_in_no_toolset(connect):
    """A4.2: neither by hand nor by rule."""
    made = await in_database(make_workflows_named)("off", "gone", "filtered", "shown")
    await in_database(Workflow.objects.filter(name="off").update)(enabled=False)
    await in_database(Workflow.objects.filter(name="gone").update)(missing_since="2026-01-01T00:00Z")
    await in_database(make_filter)("filtered", action="exclude")
    await in_database(make_toolset)("all", picked=list(made.values()), rules=["*"])
    async with connect(toolset="all") as client:
        assert await workflows_of(client) == ["shown"]


async def test_a_rule_that_cannot_be_used_lets_nothing_more_through(connect):
    """B6: one that was loaded past every check."""
    made = await in_database(make_workflows_named)("a", "b")
    toolset = await in_database(make_toolset)("broken", picked=[made["a"]], rules=["*"])
    await in_database(toolset.rules.update)(syntax="regex", pattern="(?=x)")
    await in_database(toolset.save)()
    async with connect(toolset="broken") as client:
        assert await workflows_of(client) == ["a"]


async def test_a_change_of_a_toolset_is_seen_by_the_next_request(connect):
    """A4.4: rules, picks, mode and switch."""
    made = await in_database(make_workflows_named)("a", "b")
    toolset = await in_database(make_toolset)("live")
    change = in_database(write_toolset)
    async with connect(toolset="live") as client:
        assert await workflows_of(client) == []
        for changes, expected in (
            ({"rules": [{"pattern": "a"}]}, ["a"]),
            ({"picked": ["b"]}, ["a", "b"]),
            ({"rules": []}, ["b"]),
            ({"mode": "compact"}, []),
            ({"mode": "full"}, ["b"]),
        ):
            await change(toolset, **changes)
            notice_changes()
            assert await workflows_of(client) == expected
        await in_database(made["b"].toolsets.clear)()
        notice_changes()
        assert await workflows_of(client) == []


async def test_a_compact_toolset_lists_only_built_in_tools_and_runs_everything_of_it(connect, source, era):
    """A2.1, D7: by execute_workflow, and by name for whoever knows it."""
    await in_database(make_toolset)("small", mode="compact", rules=["text_statistics"])
    async with connect(toolset="small", mode=era) as client:
        assert await workflows_of(client) == []
        assert await found_by(client) == ["text_statistics"]
        arguments = {"text": "One two."}
        asked = {"name": "text_statistics", "arguments": arguments}
        by_execute = await client.call_tool("execute_workflow", asked)
        by_name = await client.call_tool("text_statistics", arguments)
        outside = await client.call_tool("execute_workflow", {"name": "csv_profile", "arguments": {}})
    assert [answer.structured_content["words"] for answer in (by_execute, by_name)] == [2, 2]
    assert outside.is_error and UNKNOWN_TOOL in outside.content[0].text


async def test_nothing_outside_the_toolset_is_seen_or_run_by_any_tool(connect, source, era):
    """A4.2: at the toolset's address without a bound token, and at `/mcp` with one."""
    toolset = await in_database(make_toolset)("words", rules=["text_*"])
    bound = await in_database(bound_token)(toolset)
    for address in ({"toolset": "words"}, {"as_token": bound}, {"toolset": "words", "as_token": bound}):
        async with connect(mode=era, **address) as client:
            assert await workflows_of(client) == await found_by(client) == ["text_redact", "text_statistics"]
            info = await client.call_tool("get_workflow_info", {"name": "countdown"})
            run = await client.call_tool(
                "execute_workflow", {"name": "countdown", "arguments": {"seconds": 0}}
            )
            with pytest.raises(MCPError, match=UNKNOWN_TOOL):
                await client.call_tool("countdown", {"seconds": 0})
        assert info.is_error and run.is_error
    assert not await in_database(Execution.objects.exists)()


async def test_runs_from_before_are_readable_through_a_toolset_without_their_workflow(connect, source):
    """A8.4: the toolset bounds what is started, not what one's own record shows."""
    toolset = await in_database(make_toolset)("words", rules=["text_*"])
    bound = await in_database(bound_token)(toolset)
    async with connect(as_token=bound) as client:
        await client.call_tool("text_statistics", {"text": "kept"})
        execution = await in_database(Execution.objects.get)()
        asked = {"execution_id": str(execution.pk)}
        await in_database(write_toolset)(toolset, rules=[{"pattern": "countdown"}])
        notice_changes()
        assert await workflows_of(client) == ["countdown"]
        moved = await client.call_tool("get_execution_status", asked)
        await in_database(write_toolset)(toolset, enabled=False)
        notice_changes()
        assert await workflows_of(client) == []
        switched_off = await client.call_tool("get_execution_status", asked)
    assert [status.structured_content["output"]["words"] for status in (moved, switched_off)] == [1, 1]


@pytest.mark.parametrize("method", ["tools/list", "server/discover"])
def test_unknown_disabled_and_foreign_toolsets_answer_alike(mcp_server, token, method):
    """B8: who has no business with a toolset cannot tell whether there is one."""
    make_toolset("off", enabled=False)
    make_toolset("foreign")
    bound = bound_token(make_toolset("mine"))
    body, headers = modern(method)
    answers = [
        mcp_server.post(body, headers=headers, token=sent, toolset=slug)
        for sent, slug in (
            (token, "unknown"),
            (token, "off"),
            (bound, "foreign"),
            (bound, "unknown"),
            (bound, "off"),
        )
    ]
    assert [answer.status_code for answer in answers] == [404] * 5
    messages = [answer.json()["error"]["message"] for answer in answers]
    assert {
        message.replace(slug, "…")
        for message, slug in zip(messages, ["unknown", "off", "foreign", "unknown", "off"], strict=True)
    } == {"There is no toolset '…' for this token. Check the last part of the address, /mcp/<toolset>."}
    assert mcp_server.post(body, headers=headers, token=bound, toolset="mine").status_code == 200
    assert mcp_server.post(body, headers=headers, token=bound, toolset="mine/").status_code == 200
    assert mcp_server.post(body, headers=headers, token=token, toolset="foreign").status_code == 200


@pytest.mark.parametrize("mode", ["full", "compact"])
async def test_the_estimate_counts_what_is_served(mcp_server, token, mode):
    """D5: character by character, over every page, also where a character takes several bytes."""
    make = in_database(make_workflow)
    source = await in_database(make_source)()
    for number in range(7):
        await make(source, name=f"überweisung_{number}", tool_name=f"w{number}", description="Prüft €. 概要")
    toolset = await in_database(make_toolset)("weighed", mode=mode, rules=["*"])
    body, headers = modern("tools/list")
    answer = await in_database(mcp_server.post)(body, headers=headers, token=token, toolset="weighed")
    tools = answer.json()["result"]["tools"]
    served = json.dumps(tools, ensure_ascii=False, separators=(",", ":"))
    cost = await in_database(_cost)(toolset)
    assert (cost.served.tools, cost.served.characters) == (len(tools), len(served))
    assert cost.served.tokens == -(-len(served) // 4)
    assert cost.compact.tokens < cost.full.tokens


def _cost(toolset: Toolset) -> ToolsetCost:
    return cost_of_toolset(toolset, confirmed_catalogue())


async def test_the_log_says_once_that_a_revision_put_a_toolset_over_its_budget(connect):
    """B9: not at every request, not for those within, and again after it was mended."""
    said: list[str] = []
    sink = logger.add(lambda message: said.append(message.record["message"]), level="WARNING")
    try:
        source = await in_database(make_source)()
        await in_database(make_workflow)(source, name="a", description="x" * 4000)
        toolset = await in_database(make_toolset)("tight", rules=["a"], token_budget=1_800)
        await in_database(make_toolset)("wide", rules=["a"], token_budget=1_000_000)
        async with connect(toolset="tight") as client:
            for changes in ({}, {"title": "Tight"}, {"mode": "compact"}, {"mode": "full"}):
                await in_database(write_toolset)(toolset, **changes)
                notice_changes()
                for _ in range(2):
                    await workflows_of(client)
    finally:
        logger.remove(sink)
    over = [message for message in said if "token budget" in message]
    assert len(over) == 2
    assert over[0].startswith("Toolset tight is over its token budget: ")
    assert "of 1,800 tokens" in over[0] and "switch it to compact mode or remove workflows" in over[0]


async def test_a_clients_first_page_of_a_toolset_is_cached_for_itself_only(connect):
    """A4.2: two toolsets and the whole catalogue never answer for each other."""
    await in_database(make_workflows_named)("a", "b")
    await in_database(make_toolset)("just-a", rules=["a"])
    await in_database(make_toolset)("just-b", rules=["b"])
    async with (
        connect(toolset="just-a") as first,
        connect(toolset="just-b") as second,
        connect() as whole,
    ):
        for _ in range(2):
            assert [await workflows_of(client) for client in (first, second, whole)] == [
                ["a"],
                ["b"],
                ["a", "b"],
            ]
