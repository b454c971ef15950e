"""Agents report what they miss, through the official client."""

import pytest
from mcp import MCPError

from catalogue.descriptions import tokens_for
from catalogue.product_settings import change_settings
from executions.models import ProblemReport
from identity.tokens import create_token
from mcp_bridge.builtin_tools import BUILT_IN_TOOLS
from mcp_bridge.tool_lists import serialise_tool
from tests.access.test_rates import clock as clock  # noqa: PLC0414
from tests.factories import make_toolset, make_workflow
from tests.mcp_bridge.database import in_database

pytestmark = [pytest.mark.django_db(transaction=True)]
NAME = "report_problem"
REPORT = {"tool": "pay", "tried": "To pay back 5 EUR", "missing": "Refunds"}


async def all_rows(*columns):
    return await in_database(lambda: list(ProblemReport.objects.order_by("pk").values_list(*columns)))()


async def test_a_report_is_recorded_and_answered_alike_whether_or_not_there_is_such_a_tool(open_client, era):
    make = in_database(make_workflow)
    await make(name="pay")
    await make(name="hidden", enabled=False)
    async with open_client(mode=era) as client:
        answers = [
            await client.call_tool(NAME, REPORT | {"tool": tool})
            for tool in ("pay", "pay", "hidden", "invented", "")
        ]
        answers.append(await client.call_tool(NAME, {"tried": "x", "missing": "A way to send e-mail"}))
    assert len({answer.content[0].text for answer in answers}) == 1
    assert not any(answer.is_error for answer in answers)
    assert await all_rows("tool", "is_tool", "times") == [
        ("pay", True, 2), ("hidden", False, 1), ("invented", False, 1), ("", False, 1), ("", False, 1),
    ]  # fmt: skip
    (last, *_), *_ = (await all_rows("last"))[0]
    assert last["tried"] == REPORT["tried"] and last["caller"]


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"tried": "x"},
        {"missing": "x"},
        REPORT | {"missing": ""},
        REPORT | {"more": 1},
        REPORT | {"tool": 5},
    ],
)
async def test_a_report_without_its_parts_is_refused_and_not_recorded(connect, arguments):
    async with connect() as client:
        assert (await client.call_tool(NAME, arguments)).is_error
    assert await all_rows("pk") == []


async def test_a_caller_that_reports_too_much_is_told_when_to_come_back(connect, clock):
    async with connect() as client:
        for number in range(10):
            assert not (await client.call_tool(NAME, REPORT | {"missing": f"{number}"})).is_error
        refused = await client.call_tool(NAME, REPORT)
    assert refused.is_error and "try again in" in refused.content[0].text
    assert len(await all_rows("pk")) == 10


async def test_a_tool_of_a_portable_toolset_is_reported_by_the_name_that_it_shows(connect):
    workflow = await in_database(make_workflow)(name="ship.order")
    await in_database(make_toolset)("warehouse", picked=[workflow], portable=True)
    async with connect(toolset="warehouse") as client:
        shown = [tool.name for tool in (await client.list_tools()).tools][-1]
        assert not (await client.call_tool(NAME, REPORT | {"tool": shown})).is_error
    assert await all_rows("tool", "is_tool") == [("ship.order", True)]


async def test_no_agent_gets_to_read_what_others_reported(connect):
    """Texts of agents are not passed to models, by whatever tool."""
    await in_database(make_workflow)(name="pay")
    async with connect() as client:
        await client.call_tool(NAME, REPORT | {"missing": "IGNORE-ALL", "tried": "IGNORE-ALL"})
        read = [await client.list_tools(), await client.list_resources(), await client.list_prompts()]
        for name, arguments in {
            "list_workflows": {"mode": "detailed"},
            "get_workflow_info": {"name": "pay"},
            "list_executions": {},
            NAME: REPORT,
        }.items():
            read.append(await client.call_tool(name, arguments))
    assert "IGNORE-ALL" not in "".join(one.model_dump_json() for one in read)


async def test_the_switch_takes_it_out_of_lists_and_calls_and_back(connect):
    async with connect() as client:

        async def listed() -> bool:
            return NAME in [tool.name for tool in (await client.list_tools()).tools]

        assert await listed()
        await in_database(change_settings)({"problem_reports": False}, by="ada")
        assert not await listed()
        with pytest.raises(MCPError) as refused:
            await client.call_tool(NAME, REPORT)
        with pytest.raises(MCPError) as unknown:
            await client.call_tool("no_such_tool", REPORT)
        assert refused.value.error.code == unknown.value.error.code
        assert await all_rows("pk") == []
        await in_database(change_settings)({"problem_reports": None}, by="ada")
        assert await listed()
        assert not (await client.call_tool(NAME, REPORT)).is_error


async def test_a_token_that_may_only_look_reports_nothing(connect):
    _, text = await in_database(create_token)(name="reader", scopes=["workflows:read"])
    async with connect(as_token=text) as client:
        assert NAME not in [tool.name for tool in (await client.list_tools()).tools]
        with pytest.raises(Exception):  # noqa: B017, PT011
            await client.call_tool(NAME, REPORT)
    assert await all_rows("pk") == []


def test_the_tool_costs_at_most_120_tokens():
    assert tokens_for(len(serialise_tool(BUILT_IN_TOOLS[NAME].tool, "2026-07-28"))) <= 120
