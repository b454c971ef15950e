"""Asking and telling runs something, as agents do."""

import json

import pytest
from mcp import Client

from catalogue.access import Scope
from catalogue.models import Toolset, Workflow
from connectors.errors import OutcomeUnknown
from executions.models import Execution, State
from mcp_bridge.content import BEGINNING
from mcp_bridge.tokens import create_token
from tests.executions.engines import until
from tests.executions.steps import after, told
from tests.executions.talkative import QUERIES, SIGNALS, review, talker
from tests.factories import make_toolset, make_workflow
from tests.mcp_bridge.database import in_database

__all__ = ["review", "talker"]

BOTH = {"query_execution", "signal_execution"}


async def names_of(client: Client) -> set[str]:
    return {tool.name for tool in (await client.list_tools()).tools}


async def started(client: Client) -> str:
    """The id of an execution whose run goes on."""
    result = await client.call_tool("review", {})
    execution_id = str(result.structured_content["execution_id"])
    await until(lambda: Execution.objects.get(pk=execution_id).state == State.RUNNING)
    return execution_id


@pytest.fixture
def patient_review(review: Workflow) -> Workflow:
    """Nobody waits for its runs, so that a call is answered with a handle."""
    Workflow.objects.filter(pk=review.pk).update(inline_wait_seconds=0)
    return review


async def test_an_agent_asks_and_tells_a_run_that_it_started(connect, patient_review, talker, era):
    """E10: what it can ask and tell, get_execution_status says."""
    talker.answer = {"percent": 40}
    async with connect(mode=era) as client:
        run = {"execution_id": await started(client)}
        status = (await client.call_tool("get_execution_status", run)).structured_content
        assert (status["queries"], status["signals"]) == (["progress", "count"], ["approve"])
        answer = await client.call_tool("query_execution", run | {"name": "progress"})
        assert answer.structured_content == run | {"query": "progress", "answer": {"percent": 40}}
        assert json.loads(answer.content[0].text) == answer.structured_content
        told_it = await client.call_tool(
            "signal_execution", run | {"name": "approve", "arguments": {"text": "yes"}}
        )
        assert not told_it.is_error
    execution = await in_database(Execution.objects.get)()
    assert [(name, arguments) for _, name, arguments in talker.heard] == [
        ("progress", {}),
        ("approve", {"text": "yes"}),
    ]
    assert await in_database(told)(execution, "signalled") == ["agent sent approve."]


async def test_get_workflow_info_shows_what_runs_can_be_asked_and_told(connect, patient_review):
    """D7, E10: of a workflow that declares neither, nothing."""
    await in_database(make_workflow)(name="plain")
    async with connect() as client:
        info = (await client.call_tool("get_workflow_info", {"name": "review"})).structured_content
        plain = (await client.call_tool("get_workflow_info", {"name": "plain"})).structured_content
    assert (info["queries"], info["signals"]) == (QUERIES, SIGNALS)
    assert not {"queries", "signals"} & plain.keys()


async def test_the_tools_are_listed_only_for_who_sees_a_workflow_that_declares_such(connect, patient_review):
    """E10: a list costs every agent tokens, so that nothing is in it that cannot be used."""
    plain = await in_database(make_workflow)(name="plain")
    asked = await in_database(make_workflow)(name="asked", queries=QUERIES)
    for slug, picked in (("all", patient_review), ("none", plain), ("one", asked)):
        await in_database(make_toolset)(slug, picked=[picked])
    await in_database(make_toolset)("small", picked=[patient_review], mode=Toolset.Mode.COMPACT)
    _, reader = await in_database(create_token)(name="reader", scopes=[Scope.READ])
    expected = {
        (None, ""): BOTH,
        ("all", ""): BOTH,
        ("small", ""): BOTH,
        ("none", ""): set(),
        ("one", ""): {"query_execution"},
        ("all", reader): {"query_execution"},
    }
    for (slug, token), tools in expected.items():
        options = {"as_token": token} if token else {}
        async with connect(toolset=slug, **options) as client:
            assert await names_of(client) & BOTH == tools, (slug, token)


async def test_mistakes_are_told_where_the_model_can_correct_itself(connect, patient_review, talker):
    """A2.5, E10."""
    async with connect() as client:
        run = {"execution_id": await started(client)}
        for tool, asked, words in (
            ("query_execution", run | {"name": "nothing"}, "It has progress, count"),
            ("query_execution", run | {"name": "count", "arguments": {"text": 3}}, "/text"),
            ("query_execution", run, "/name"),
            ("signal_execution", {"execution_id": "gone", "name": "approve"}, "Unknown execution: gone"),
            ("signal_execution", run | {"name": "approve"}, "/text: required"),
        ):
            result = await client.call_tool(tool, asked)
            assert result.is_error and words in result.content[0].text, asked
    assert talker.heard == []


async def test_a_signal_of_unknown_outcome_tells_the_model_not_to_repeat_it(connect, patient_review, talker):
    """A5.2, E10."""
    async with connect() as client:
        run = await started(client)
        talker.answer = OutcomeUnknown("The line went dead.")
        result = await client.call_tool(
            "signal_execution", {"execution_id": run, "name": "approve", "arguments": {"text": "yes"}}
        )
    assert result.is_error and "Do not send it again" in result.content[0].text
    assert len(talker.heard) == 1


async def test_of_an_answer_that_would_flood_a_context_only_the_beginning_comes(
    connect, patient_review, talker
):
    """A2.3, E10."""
    talker.answer = "x" * 200_000
    async with connect() as client:
        run = await started(client)
        result = await client.call_tool("query_execution", {"execution_id": run, "name": "progress"})
    answer = result.structured_content
    assert "answer" not in answer and answer["answer_characters"] == 200_000
    assert answer["answer_beginning"] == "x" * BEGINNING
    assert len(result.content[0].text) < BEGINNING + 300


async def test_the_handle_of_a_run_names_what_it_can_be_asked_and_told(connect, review):
    """A8.2, E10: as soon as there is somebody to ask."""
    async with connect() as client:
        was_polled = Execution.objects.filter(polls__gt=0).exists
        handle = (await after(50, client.call_tool("review", {}), was_polled)).structured_content
    assert (handle["queries"], handle["signals"]) == (["progress", "count"], ["approve"])
