"""The result cache over MCP: hits, fresh runs, and the tool ClearCache."""

import json
from typing import Any

import pytest
from mcp import Client, MCPError

from catalogue.curation import override_workflow
from catalogue.exposure import forget_catalogue
from catalogue.models import Toolset, Workflow
from executions.models import CachedResult, Execution
from mcp_bridge.tokens import create_token
from tests.executions.caching import cache_for, cached_outputs, finish_run, numbered
from tests.executions.engines import WireEngine
from tests.factories import make_workflow
from tests.mcp_bridge.database import in_database

FRESH = "workflow-catalogue/fresh"
CACHED_AT = "workflow-catalogue/cached-at"


@pytest.fixture
def report(long_workflow: Workflow, wire_engine: WireEngine) -> Workflow:
    """`report`, whose results are cached; each run's result tells which run it is of."""
    numbered(wire_engine)
    override_workflow(long_workflow, inline_wait_seconds=None)
    return cache_for(long_workflow)


@pytest.fixture
def other(report: Workflow) -> Workflow:
    """Another workflow with one cached result."""
    workflow = make_workflow(name="other", cache_seconds=600)
    finish_run(workflow, output={"other": 1})
    return workflow


async def run(client: Client, **options: Any) -> Any:
    result = await client.call_tool("report", {"text": "To be"}, **options)
    assert not result.is_error, result.content
    return result


def output_of(result: Any) -> Any:
    """Of a cached result, whose note some clients would not show beside structured content."""
    return json.loads(result.content[0].text)


async def clear(client: Client, **arguments: Any) -> Any:
    return await client.call_tool("ClearCache", arguments)


async def test_the_same_call_is_answered_from_the_cache_and_says_so(connect, report, wire_engine, era):
    """E4: the same result, and when it is from."""
    async with connect(mode=era) as client:
        first, again = await run(client), await run(client)
        listed = (await client.call_tool("list_executions", {})).structured_content["executions"]
        status = await client.call_tool("get_execution_status", {"execution_id": listed[0]["execution_id"]})

    *same, note = again.content
    assert first.content == same and again.structured_content is None
    assert output_of(again) == first.structured_content == {"run": 1} and wire_engine.count("start") == 1
    ran = await in_database(Execution.objects.get)(cached_at=None)
    assert CACHED_AT not in first.meta and again.meta[CACHED_AT] == ran.finished_at.isoformat()
    ended = f"{ran.finished_at:%Y-%m-%d %H:%M:%S} UTC"
    assert note.text == f"(From the result cache: the workflow ran earlier, until {ended}.)"
    assert note.meta == {"workflow-catalogue/note": True}
    assert [entry.get("cached_from") for entry in listed] == [str(ran.pk), None]
    assert status.structured_content["cached_at"] == again.meta[CACHED_AT]
    assert status.structured_content["output"] == {"run": 1}


async def test_execute_workflow_and_another_caller_get_the_same_cached_result(connect, report, wire_engine):
    """E4: which is what the curator decided by switching it on."""
    async with connect() as client:
        await run(client)
    _, bob = await in_database(create_token)(name="bob")
    async with connect(as_token=bob) as client:
        asked = {"name": "report", "arguments": {"text": "To be"}}
        result = await client.call_tool("execute_workflow", asked)
    assert output_of(result) == {"run": 1} and result.meta[CACHED_AT]
    assert wire_engine.count("start") == 1


async def test_a_client_can_have_it_run_anew(connect, report, wire_engine, era):
    """E4: and everybody gets the new result from then on."""
    async with connect(mode=era) as client:
        await run(client)
        fresh = await run(client, meta={FRESH: True})
        again = await run(client, meta={FRESH: False})
    assert fresh.structured_content == output_of(again) == {"run": 2}
    assert CACHED_AT not in fresh.meta and CACHED_AT in again.meta


@pytest.mark.parametrize("wish", ["true", 1, {}])
async def test_a_wish_for_a_fresh_run_that_is_neither_yes_nor_no_is_refused(
    connect, report, wire_engine, wish
):
    """D7."""
    async with connect() as client:
        with pytest.raises(MCPError, match="true or false"):
            await run(client, meta={FRESH: wish})
    assert wire_engine.count("start") == 0


async def test_one_workflow_or_all_are_cleared(connect, report, other, wire_engine, era):
    """E4: the answer has exactly these members."""
    async with connect(mode=era) as client:
        await run(client)
        one = await clear(client, workflowName="report")
        assert one.structured_content == {"success": True, "entriesCleared": 1, "workflow": "report"}
        assert (await run(client)).structured_content == {"run": 2}
        everything = await clear(client)
        assert everything.structured_content == {"success": True, "entriesCleared": 2, "workflow": ""}
        nothing = await clear(client, workflowName="")
        assert nothing.structured_content == {"success": True, "entriesCleared": 0, "workflow": ""}
    assert await in_database(CachedResult.objects.count)() == 0


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"workflowName": "reprot"}, "reprot"),
        ({"workflowName": 7}, "/workflowName"),
        ({"workflow": "report"}, "/workflow: no such argument"),
    ],
)
async def test_what_cannot_be_cleared_is_refused_in_words(connect, report, other, arguments, why):
    """A2.5, D7."""
    async with connect() as client:
        result = await clear(client, **arguments)
    assert result.is_error and why in result.content[0].text
    assert await in_database(cached_outputs)() == [{"other": 1}]


async def test_a_caller_clears_nothing_that_it_could_not_call(connect, report, other):
    """D5: a token bound to a toolset, and one without the scope to run."""

    def bound_token() -> str:
        toolset = Toolset.objects.create(slug="desk")
        toolset.picked.add(report)
        forget_catalogue()
        return create_token(name="bound", toolset=toolset)[1]

    async with connect() as client:
        await run(client)
    bound = await in_database(bound_token)()
    async with connect(as_token=bound, toolset="desk") as client:
        assert (await clear(client, workflowName="other")).is_error
        assert (await clear(client)).structured_content["entriesCleared"] == 1
    assert await in_database(cached_outputs)() == [{"other": 1}]


async def test_clients_are_told_what_clearing_does(connect, report):
    """A2.7: it changes something, but nothing is lost, and nothing outside is touched."""
    async with connect() as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    hints = tools["ClearCache"].annotations
    assert (hints.read_only_hint, hints.destructive_hint) == (False, False)
    assert (hints.idempotent_hint, hints.open_world_hint) == (True, False)
    assert list(tools["ClearCache"].input_schema["properties"]) == ["workflowName"]


async def test_it_works_over_every_transport(open_client, other, era):
    """E8: another process clears what this one has cached."""
    async with open_client(mode=era) as client:
        result = await clear(client, workflowName="other")
    assert result.structured_content == {"success": True, "entriesCleared": 1, "workflow": "other"}
    assert await in_database(cached_outputs)() == []


async def test_its_name_is_understood_as_other_tools_are_spelled_unless_a_workflow_has_that_name(
    connect, report, wire_engine, era
):
    """E4: an agent writes what it is used to; no workflow of that name, hidden or not, is mistaken for it."""
    async with connect(mode=era) as client:
        await run(client)
        cleared = await client.call_tool("clear_cache", {"workflowName": "report"})
        assert cleared.structured_content == {"success": True, "entriesCleared": 1, "workflow": "report"}
        assert "clear_cache" not in [tool.name for tool in (await client.list_tools()).tools]
        await in_database(make_workflow)(report.source, name="clear_cache", enabled=False)
        with pytest.raises(MCPError, match="Unknown or disabled tool: clear_cache"):
            await client.call_tool("clear_cache", {})
