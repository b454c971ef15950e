"""Queries and signals of a real Temporal service, through every door."""

import asyncio
from typing import Any

import pytest
from django.utils import timezone
from mcp import Client

from catalogue.models import Source, Workflow
from executions.models import Execution, State
from tests.admin.conftest import admin_client
from tests.api.clients import administrator
from tests.engines.temporal.asking import make_temporal_source
from tests.engines.temporal.server import TemporalServer
from tests.executions.engines import in_thread, until, wait_until
from tests.executions.steps import advance_due_executions, told
from tests.mcp_bridge.database import in_database
from tests.processes import PROBE_SECONDS

__all__ = ["admin_client"]


@pytest.fixture
def source(temporal_server: TemporalServer) -> Source:
    return make_temporal_source(temporal_server)


async def start(client: Client, tool: str = "Lasting", **arguments: Any) -> str:
    """The id of an execution whose run the engine has."""
    execution_id = (await client.call_tool(tool, arguments)).structured_content["execution_id"]
    await until(lambda: Execution.objects.get(pk=execution_id).state == State.RUNNING)
    return str(execution_id)


async def ask(client: Client, execution_id: str, name: str, **arguments: Any) -> Any:
    asked = {"execution_id": execution_id, "name": name, "arguments": arguments}
    result = await client.call_tool("query_execution", asked)
    assert not result.is_error, result.content[0].text
    return result.structured_content["answer"]


async def tell(client: Client, execution_id: str, name: str, **arguments: Any) -> None:
    asked = {"execution_id": execution_id, "name": name, "arguments": arguments}
    result = await client.call_tool("signal_execution", asked)
    assert not result.is_error, result.content[0].text


async def ended(execution_id: str) -> Execution:
    """Its record, once a worker has seen the end."""
    return await in_thread(settle, execution_id)


def settle(execution_id: Any) -> Execution:
    def look() -> Execution | None:
        Execution.objects.filter(pk=execution_id).update(next_attempt_at=timezone.now())
        advance_due_executions()
        execution = Execution.objects.select_related("payload").get(pk=execution_id)
        return execution if execution.is_settled else None

    return wait_until(look)


async def refusal(client: Client, tool: str, **asked: Any) -> str:
    result = await client.call_tool(tool, asked)
    assert result.is_error
    return str(result.content[0].text)


async def test_what_an_agent_tells_a_run_changes_its_answers_and_its_result(connect, source):
    """E10: queries with and without arguments, signals likewise, and the same query after the end."""
    async with connect() as client:
        run = await start(client)
        assert (await ask(client, run, "progress"))["message"] == "waiting for the signal"
        assert await ask(client, run, "add", a=2, b=3) == 5
        await tell(client, run, "note", text="first")
        await tell(client, run, "note", text="säcond ☕")
        assert await ask(client, run, "notes") == ["first", "säcond ☕"]
        await tell(client, run, "finish")
        assert (await ended(run)).payload.output == {"total": 2, "notes": ["first", "säcond ☕"]}
        assert await ask(client, run, "notes") == ["first", "säcond ☕"]
        gone = await refusal(client, "signal_execution", execution_id=run, name="finish")
        assert "It is completed" in gone
    execution = await in_database(Execution.objects.get)()
    assert await in_database(told)(execution, "signalled") == [
        f"agent sent {name}." for name in ("note", "note", "finish")
    ]


async def test_what_a_run_asks_is_answered_once_through_the_product(connect, source):
    """A8.2: a workflow that declares how it asks needs nothing else."""
    by = await in_database(administrator)()

    async def answer(run: str, **content: Any) -> Any:
        (question,) = await in_thread(lambda: step(run, by))
        assert question["message"] == "Is the  tea good?"
        sent = {"question": question["question"], "content": content}
        response = await in_thread(lambda: by.post(f"/api/executions/{run}/answer/", sent, format="json"))
        assert response.status_code == 200, response.json()
        return question

    async with connect() as client:
        run = await start(client, "Asking")
        first = await answer(run, approve=True)
        assert not first["refusals"] and first["schema"]["required"] == ["approve"]
        assert (await ended(run)).payload.output == {"answers": [{"approve": True}]}


def step(run: str, by: Any) -> list[dict[str, Any]]:
    """What it asks, as the next poll has found."""
    Execution.objects.filter(pk=run).update(next_attempt_at=timezone.now())
    advance_due_executions()
    questions: list[dict[str, Any]] = by.get(f"/api/executions/{run}/").json()["questions"]
    return questions


async def test_what_the_run_itself_says_against_a_query_is_told(connect, source):
    """E10."""
    async with connect() as client:
        run = await start(client)
        refused = await refusal(client, "query_execution", execution_id=run, name="refuse")
        assert refused == "The run did not answer: That is nobody's business."
        unheard = await refusal(client, "query_execution", execution_id=run, name="unheard_of")
        assert "The run did not answer" in unheard and "unheard_of" in unheard
        hidden = await refusal(client, "query_execution", execution_id=run, name="__stack_trace")
        assert "It has progress" in hidden
        await tell(client, run, "finish")


async def test_a_run_whose_queue_has_no_worker_is_said_to_have_none(connect, source, temporal_server):
    """E10: at once, where the service would only fall silent. A signal is kept for the run meanwhile."""
    workflow = await in_database(Workflow.objects.get)(tool_name="Lasting")
    workflow.metadata["temporal"]["task_queue"] = "deserted"
    await in_database(workflow.save)()
    async with connect() as client:
        run = await start(client)
        async with asyncio.timeout(4):
            refused = await refusal(client, "query_execution", execution_id=run, name="progress")
        assert "No worker is listening on the task queue deserted." in refused
        await tell(client, run, "finish")
    execution = await in_database(Execution.objects.get)()
    handle = (await temporal_server.client()).get_workflow_handle(execution.run_id.partition("/")[0])
    signals = [
        event.workflow_execution_signaled_event_attributes.signal_name
        async for event in handle.fetch_history_events()
        if event.HasField("workflow_execution_signaled_event_attributes")
    ]
    await handle.terminate()
    assert signals == ["finish"]


async def test_a_run_that_ended_behind_our_back_is_not_told_anything(connect, source, temporal_server):
    """E10: the record does not know it yet, but the engine does."""
    async with connect() as client:
        run = await start(client)
        execution = await in_database(Execution.objects.get)()
        handle = (await temporal_server.client()).get_workflow_handle(execution.run_id.partition("/")[0])
        await handle.terminate()
        refused = await refusal(client, "signal_execution", execution_id=run, name="finish")
    assert "already completed" in refused
    assert await in_database(told)(execution, "signalled") == []


async def test_a_run_that_continued_as_new_is_reached_where_it_has_got_to(connect, source, temporal_server):
    """E10: the record names the first of its runs."""
    anything = {"name": "anything", "description": "", "inputSchema": {"type": "object"}}
    await in_database(Workflow.objects.filter(tool_name="Rounds").update)(signals=[anything])
    async with connect() as client:
        run = await start(client, "Rounds", rounds=1, seconds=0.7)
        execution = await in_database(Execution.objects.get)()
        workflow_id, _, first_run_id = execution.run_id.partition("/")
        handle = (await temporal_server.client()).get_workflow_handle(workflow_id)
        while (await handle.describe()).run_id == first_run_id:  # noqa: ASYNC110
            await asyncio.sleep(PROBE_SECONDS)
        await tell(client, run, "anything")
        await handle.terminate()
    assert await in_database(told)(execution, "signalled") == ["agent sent anything."]
