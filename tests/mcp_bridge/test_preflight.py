"""Which calls would run now, and why others would not, at each door."""

import json
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from mcp import Client

from catalogue.actions.workflows import override_workflow
from catalogue.descriptions import tokens_for
from catalogue.models import Revision, Source, Workflow
from executions.models import Execution
from executions.preflight import MAX_CALLS
from mcp_bridge.builtin_tools import BUILT_IN_TOOLS
from mcp_bridge.tool_lists import serialise_tool
from tests.api.clients import agent, staff_session
from tests.factories import make_source, make_toolset, make_workflow
from tests.mcp_bridge.database import in_database

pytestmark = [pytest.mark.django_db(transaction=True)]

SCHEMA = {"type": "object", "properties": {"amount": {"type": "number"}}, "required": ["amount"]}
RULE = {"argument": "/amount", "is": "over", "value": 5}


@pytest.fixture
def workflows() -> Source:
    source = make_source("erp")
    make_workflow(source, name="pay", input_schema=SCHEMA, approval_rules=[RULE])
    make_workflow(source, name="ask", input_schema=SCHEMA, approval_required=True)
    make_workflow(source, name="idle", enabled=False)
    make_workflow(source, name="gone", missing_since=timezone.now())
    return source


async def codes(client: Client, *calls: dict) -> list[list[str]]:
    """Of each call, what stands in its way."""
    result = await client.call_tool("preflight", {"calls": list(calls)})
    verdicts = result.structured_content["calls"]
    assert [verdict["ready"] for verdict in verdicts] == ["problems" not in verdict for verdict in verdicts]
    return [[problem["code"] for problem in verdict.get("problems", [])] for verdict in verdicts]


@pytest.mark.parametrize(
    ("call", "found"),
    [
        ({"tool": "pay"}, ["needs_approval"]),  # What the rule cannot judge
        ({"tool": "pay", "arguments": {"amount": 5}}, []),
        ({"tool": "pay", "arguments": {"amount": 6}}, ["needs_approval"]),
        ({"tool": "pay", "arguments": {}}, ["invalid_arguments"]),
        ({"tool": "pay", "arguments": {"amount": "6"}}, ["invalid_arguments"]),
        ({"tool": "pay", "arguments": {"amount": 1}, "schema_hash": "0" * 16}, ["schema_changed"]),
        ({"tool": "ask", "arguments": {"amount": 1}}, ["needs_approval"]),
        ({"tool": "idle"}, ["unknown_tool"]),
        ({"tool": "gone"}, ["unknown_tool"]),
        ({"tool": "list_workflows"}, ["unknown_tool"]),
    ],
)
async def test_an_agent_is_told_why_a_call_would_not_run(workflows, connect, call, found):
    async with connect() as client:
        assert await codes(client, call) == [found]
    assert not await in_database(Execution.objects.exists)()


async def test_an_engine_that_is_away_stands_in_the_way_of_its_calls_alone(workflows, connect):
    make = in_database(make_workflow)
    await make(await in_database(make_source)("away", health_state="failing"), name="ship")
    async with connect() as client:
        calls = [{"tool": "ship"}, {"tool": "pay", "arguments": {"amount": 1}}]
        assert await codes(client, *calls) == [["engine_unavailable"], []]


async def test_the_hash_is_of_the_arguments_as_agents_see_them(workflows, connect):
    """A curator who hides an argument changes it; one who renames the tool does not."""
    pay, call = {"tool": "pay"}, {"tool": "pay", "arguments": {"amount": 1}}
    async with connect() as client:
        before = (await client.call_tool("preflight", {"calls": [pay]})).structured_content["calls"][0]
        workflow = await in_database(Workflow.objects.get)(tool_name="pay")
        await in_database(override_workflow)(workflow, title_override="Pay it", approval_rules=[])
        assert await codes(client, call | {"schema_hash": before["schema_hash"]}) == [[]]
        hidden = {"amount": {"constant": 2}}
        await in_database(override_workflow)(workflow, argument_overrides=hidden)
        told = await codes(client, {"tool": "pay", "arguments": {}, "schema_hash": before["schema_hash"]})
    assert told == [["schema_changed"]]


async def test_a_portable_toolset_is_asked_by_the_names_that_it_shows(connect):
    workflow = await in_database(make_workflow)(name="ship.order")
    await in_database(make_toolset)("warehouse", picked=[workflow], portable=True)
    async with connect(toolset="warehouse") as client:
        shown = [tool.name for tool in (await client.list_tools()).tools][-1]
        assert shown != "ship.order"
        assert await codes(client, {"tool": shown}, {"tool": "elsewhere"}) == [[], ["unknown_tool"]]


NO_CALLS = pytest.mark.parametrize(
    "calls", [[{}], [{"tool": "pay"}] * (MAX_CALLS + 1), [{"tool": "pay", "x": 1}], "pay"]
)


@NO_CALLS
async def test_an_agent_that_sends_no_list_of_calls_is_refused(workflows, connect, calls):
    async with connect() as client:
        assert (await client.call_tool("preflight", {"calls": calls})).is_error


@NO_CALLS
def test_rest_refuses_what_is_no_list_of_calls(workflows, calls):
    assert agent().post("/api/executions/preflight/", {"calls": calls}, format="json").status_code == 400


def test_curators_are_told_by_rest_why_a_workflow_is_hidden(workflows):
    calls = {"calls": [{"tool": "idle"}, {"tool": "gone"}, {"tool": "pay", "arguments": {"amount": 1}}]}
    theirs = agent().post("/api/executions/preflight/", calls, format="json").json()["calls"]
    ours = staff_session("add_execution").post("/api/executions/preflight/", calls, format="json").json()
    messages = [[one["message"] for one in verdict.get("problems", [])] for verdict in ours["calls"]]
    assert messages == [["Agents cannot call it: disabled."], ["Agents cannot call it: missing."], []]
    assert [verdict["ready"] for verdict in theirs] == [False, False, True]
    assert not any("Agents" in problem["message"] for one in theirs for problem in one.get("problems", []))


def test_fifty_calls_take_as_many_queries_as_five(workflows):
    client, counts = agent(), []
    for number in (5, 5, MAX_CALLS):  # The first fills caches
        calls = [{"tool": "pay", "arguments": {"amount": 1}}, *[{"tool": "nothing"}] * (number - 1)]
        Revision.bump()
        with CaptureQueriesContext(
            connection,
        ) as queries:
            client.post("/api/executions/preflight/", {"calls": calls}, format="json")
        counts.append(len(queries))
    assert counts[1] == counts[2]


@pytest.mark.parametrize(("tools", "code"), [(["pay"], 1), (["free"], None), (["free", "idle"], 1)])
def test_the_command_ends_with_1_unless_every_call_would_run(workflows, capsys, tools, code):
    make_workflow(name="free")
    out = StringIO()
    try:
        call_command("preflight", *tools, "--json", stdout=out)
        ended = None
    except SystemExit as ending:
        ended = ending.code
    assert ended == code
    assert [one["tool"] for one in json.loads(out.getvalue())] == tools


def test_the_command_reads_calls_from_a_file(workflows, tmp_path):
    calls = tmp_path / "calls.json"
    calls.write_text(json.dumps([{"tool": "pay", "arguments": {"amount": 1}}]))
    out = StringIO()
    call_command("preflight", "--calls", str(calls), stdout=out)
    assert out.getvalue() == "pay: ready\n"


def test_the_tool_costs_at_most_120_tokens():
    assert tokens_for(len(serialise_tool(BUILT_IN_TOOLS["preflight"].tool, "2026-07-28"))) <= 120


async def test_an_operator_leaves_it_out_of_the_lists(connect, settings):
    """Who knows it may still call it."""
    settings.CATALOGUE = settings.CATALOGUE | {"left_out_tools": "preflight,list_executions"}
    async with connect() as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert not {"preflight", "list_executions"} & set(names)
        assert await codes(client, {"tool": "nothing"}) == [["unknown_tool"]]


@pytest.mark.parametrize("command", [["preflight", "--calls", "-"], ["call_tool", "pay"]])
@pytest.mark.parametrize("text", ["[" * 100_000, "{", "5"])
def test_commands_refuse_what_is_no_json_for_them(workflows, monkeypatch, command, text):
    monkeypatch.setattr("sys.stdin", StringIO(text))
    with pytest.raises(CommandError, match=r"JSON|cannot be read"):
        call_command(*command, *([] if "-" in command else [text]))
