"""What an agent sees and gets through the official client, in both eras."""

import asyncio
import json
import time
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.db.models import QuerySet
from mcp import Client, MCPError

from catalogue import exposure
from catalogue.actions.workflows import disable_workflows, enable_workflows, override_workflow
from catalogue.database_problems import LOOK_FIRST, NOT_READY
from catalogue.models import Source, Workflow
from catalogue.models.history import BUMP
from executions.models import Execution, ExecutionEvent
from identity.tokens import create_token
from mcp_bridge.builtin_tools import BUILT_IN_TOOLS
from tests.connectors.scripted import ScriptedEngine
from tests.engines.hostile_servers import result, server
from tests.executions.engines import until
from tests.executions.steps import wrapping_statements
from tests.factories import make_workflow
from tests.logs import shown_lines
from tests.mcp_bridge.conftest import QUICKER
from tests.mcp_bridge.database import in_database
from tests.mcp_bridge.test_tasks import is_free

USUAL = [name for name, tool in BUILT_IN_TOOLS.items() if tool.takes_part_in is None and not tool.app_only]
"""The built-in tools that are listed whatever the workflows are."""


async def tool_names(client: Client) -> list[str]:
    return [tool.name for tool in (await client.list_tools()).tools]


async def test_a_client_of_either_era_sees_built_in_and_workflow_tools(connect, source, era):
    """A1.2, A2.1"""
    async with connect(mode=era) as client:
        names = await tool_names(client)
    assert names[: len(USUAL)] == USUAL
    assert {"text_statistics", "csv_profile", "countdown"} <= set(names[len(USUAL) :])


async def test_a_tool_carries_the_definition_of_its_workflow(connect, source):
    """A3.1"""
    async with connect() as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert "sentences" in (tools["text_statistics"].description or "")
    assert tools["text_statistics"].input_schema["required"] == ["text"]
    assert tools["text_statistics"].output_schema is not None
    assert tools["countdown"].output_schema is None


async def test_a_curators_words_replace_the_engines(connect, source):
    workflow = await in_database(Workflow.objects.get)(tool_name="countdown")
    await in_database(override_workflow)(
        workflow, tool_name="wait_a_little", title_override="Wait", description_override="Waits."
    )
    async with connect() as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert "countdown" not in tools
    assert (tools["wait_a_little"].title, tools["wait_a_little"].description) == ("Wait", "Waits.")


async def test_a_call_runs_the_workflow_and_returns_its_output_twice(connect, source, example_engine, era):
    """A2.2, A2.3: as text for the model and as structured content for the program; the engine ran it once."""
    async with connect(mode=era) as client:
        result = await client.call_tool("text_statistics", {"text": f"Two words in {era}."})
    assert not result.is_error
    assert result.structured_content["words"] == 4
    assert json.loads(result.content[0].text) == result.structured_content
    execution = await in_database(Execution.objects.get)()
    assert (execution.state, execution.door, execution.caller_name) == ("completed", "mcp", "agent")
    assert [run["run_id"] for run in example_engine.runs(idempotency_key=str(execution.pk))] == [
        execution.run_id
    ]


async def test_a_waiting_client_of_either_era_gets_rising_progress(connect, source, era):
    """A7.1, A7.3"""
    told: list[tuple[float, float | None, str | None]] = []

    async def listen(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, total, message))

    async with connect(mode=era) as client:
        result = await client.call_tool("countdown", {"seconds": 0.5}, progress_callback=listen)
    assert not result.is_error
    values = [value for value, _, _ in told]
    assert len(values) >= 2
    assert values == sorted(set(values))
    assert all(value <= 100 for value in values)
    kinds = await in_database(lambda: list(ExecutionEvent.objects.values_list("kind", flat=True)))()
    assert "progress" in kinds


async def test_a_failing_run_is_an_error_result_in_the_engines_words(connect, source, era):
    """A2.4, A7.4"""
    async with connect(mode=era) as client:
        result = await client.call_tool("csv_profile", {"csv": "a,b\n1,2\n1,2,3\n"})
    assert result.is_error
    assert "Line 3 has 3 fields where the header has 2" in result.content[0].text


async def test_where_other_arguments_do_not_help_nobody_is_told_to_try_some(connect, era):
    """A2.4: the engine's tool wants to be talked to in the middle of a call."""
    asks = {"resultType": "input_required", "inputRequests": {"one": {"method": "roots/list"}}}
    async with ScriptedEngine(server(call=lambda message, _: result(message, asks))) as engine:
        config = {"url": f"{engine.base_url}/mcp"}
        upstream = await in_database(Source.objects.create)(name="upstream", kind="mcp", config=config)
        await in_database(make_workflow)(upstream, upstream_id="good", name="good")
        async with connect(mode=era) as client:
            told = await client.call_tool("good", {})
    assert told.is_error and "asks for input during the call" in told.content[0].text
    assert "Other arguments do not help: tell the person who runs the workflow." in told.content[0].text


HOSTILE_QUESTIONS: dict[str, Any] = {
    "no method": {"one": {}},
    "a list for a method": {"one": {"method": ["elicitation/create"], "params": {}}},
    "a list for a mode": {"one": {"method": "elicitation/create", "params": {"mode": ["form"]}}},
    "a list for parameters": {"one": {"method": "elicitation/create", "params": [1]}},
    "a script for a page": {
        "one": {"method": "elicitation/create", "params": {"mode": "url", "url": "javascript:alert(1)"}}
    },
    "half a page": {"one": {"method": "elicitation/create", "params": {"mode": "url", "url": "//["}}},
    "no object": [1],
    "too many": {str(number): {"method": "roots/list"} for number in range(50)},
    "too large": {"one": {"method": "elicitation/create", "params": {"message": "x" * 200_000}}},
}


@pytest.mark.parametrize("asked", HOSTILE_QUESTIONS.values(), ids=HOSTILE_QUESTIONS)
async def test_a_malformed_question_of_a_tool_is_a_failed_run_and_asks_nothing(connect, asked):
    """B10: also of a client that could answer."""

    async def never(context: Any, params: Any) -> Any:
        raise AssertionError("nothing is asked")

    asks = {"resultType": "input_required", "inputRequests": asked}
    async with ScriptedEngine(server(call=lambda message, _: result(message, asks))) as engine:
        config = {"url": f"{engine.base_url}/mcp"}
        upstream = await in_database(Source.objects.create)(name="upstream", kind="mcp", config=config)
        await in_database(make_workflow)(upstream, upstream_id="good", name="good")
        async with connect(elicitation_callback=never) as client:
            told = await client.call_tool("good", {})
    assert told.is_error
    assert "for input" in told.content[0].text


async def test_invalid_arguments_are_refused_with_every_offending_path(connect, source, example_engine, era):
    """A2.5: nothing is recorded and the engine is not asked."""
    before = len(example_engine.runs())
    async with connect(mode=era) as client:
        result = await client.call_tool("countdown", {"seconds": "many", "fail": 3, "colour": "red"})
    assert result.is_error
    assert all(path in result.content[0].text for path in ("/seconds", "/fail", "/colour"))
    assert "; nothing was started:" in result.content[0].text
    assert not await in_database(Execution.objects.exists)()
    assert len(example_engine.runs()) == before


@pytest.mark.parametrize(
    ("tool", "arguments", "may_start"),
    [
        ("list_workflows", {"mode": "everything"}, False),
        ("list_workflows", {"cursor": "x"}, False),
        ("list_executions", {"state": "asleep"}, False),
        ("get_execution_status", {}, False),
        ("cancel_execution", {}, False),
        ("execute_workflow", {}, True),
    ],
)
async def test_only_what_might_have_started_a_run_says_that_it_started_none(
    connect, tool, arguments, may_start
):
    """A2.5"""
    async with connect() as client:
        result = await client.call_tool(tool, arguments)
    assert result.is_error and result.content[0].text.startswith(f"Invalid arguments for {tool}")
    assert ("nothing was started" in result.content[0].text) is may_start


async def test_a_problem_with_many_allowed_values_is_told_in_an_answer_of_bearable_length(
    connect, long_workflow
):
    """A2.5: each list whole, as long as there is room, and the first in any case."""
    allowed = [f"value {number:04}" for number in range(500)]
    schema = {"type": "object", "properties": {name: {"enum": allowed} for name in "abcdefgh"}}
    await in_database(Workflow.objects.update)(input_schema=schema)
    async with connect() as client:
        result = await client.call_tool("report", dict.fromkeys("abcdefgh", "x"))
    *told, left = result.content[0].text.splitlines()[1:]
    assert all('"value 0000", ' in line and '"value 0499"' in line for line in told)
    assert len(told) == 2 and left == "- and 6 more problems"


@pytest.mark.usefixtures("quick_news")
async def test_a_disabled_workflow_is_gone_from_the_list_and_refused(connect, source):
    """A4.4: at once in this process; no restart."""
    async with connect() as client:
        assert "countdown" in await tool_names(client)
        await in_database(disable_workflows)(Workflow.objects.filter(tool_name="countdown"))
        await _until_absent(client, "countdown")
        with pytest.raises(MCPError, match=r"disabled tool: countdown\. list_workflows shows"):
            await client.call_tool("countdown", {"seconds": 0})
        await in_database(enable_workflows)(Workflow.objects.filter(tool_name="countdown"))


async def _until_absent(client: Client, name: str) -> None:
    """Each listing is a fresh look; the bound on what a process remembers is half a second."""
    deadline = (asked_at := time.monotonic()) + 1.0 / QUICKER
    while name in await tool_names(client):
        assert asked_at < deadline, f"{name} stayed"
        await asyncio.sleep(0.005)
        asked_at = time.monotonic()


async def test_what_this_process_changes_holds_for_its_next_call_and_new_tools_of_others_too(
    connect, source, monkeypatch
):
    """A4.4, E7: a script that enables a tool or enters a key calls at once."""
    monkeypatch.setattr(exposure, "MAX_AGE_SECONDS", 3600)
    workflows = Workflow.objects.filter(tool_name="text_statistics")

    async def is_refused(client: Client) -> bool:
        try:
            return (await client.call_tool("text_statistics", {"text": "a"})).is_error
        except MCPError:
            return True

    async with connect() as client:
        assert not await is_refused(client)
        await in_database(disable_workflows)(workflows)
        assert await is_refused(client)
        await in_database(enable_workflows)(workflows)
        assert not await is_refused(client)
        await in_database(disable_workflows)(workflows)
        assert await is_refused(client)
        await in_database(enable_elsewhere)(workflows)
        assert not await is_refused(client)


def enable_elsewhere(workflows: QuerySet[Workflow]) -> None:
    workflows.update(enabled=True)
    with connection.cursor() as cursor:
        cursor.execute(BUMP)


async def test_a_run_that_outlasts_the_wait_answers_with_a_handle_and_goes_on(
    connect, source, example_engine
):
    """A8.1, A8.2: the handle says how to ask; cancelling by it reaches the engine."""
    workflow = await in_database(Workflow.objects.get)(tool_name="countdown")
    await in_database(override_workflow)(workflow, inline_wait_seconds=0)
    async with connect() as client:
        handle = await client.call_tool("countdown", {"seconds": 60})
        assert not handle.is_error
        execution_id = handle.structured_content["execution_id"]
        assert handle.structured_content["next"]["tool"] == "get_execution_status"
        status = await client.call_tool("get_execution_status", {"execution_id": execution_id})
        assert status.structured_content["state"] in ("starting", "running")
        await until(is_free, "the request that started it has let go of it")
        cancelled = await client.call_tool("cancel_execution", {"execution_id": execution_id})
        assert cancelled.structured_content["outcome"] in ("cancelled", "cancel requested")
    assert [run["status"] for run in example_engine.runs(idempotency_key=execution_id)] == ["CANCELLED"]


async def test_nobody_sees_the_executions_of_another_caller(connect, source):
    charlie = (await in_database(create_token)(name="charlie"))[1]
    async with connect() as client:
        await client.call_tool("text_statistics", {"text": "private"})
    execution = await in_database(Execution.objects.get)()
    async with connect(as_token=charlie) as client:
        for tool in ("get_execution_status", "cancel_execution"):
            result = await client.call_tool(tool, {"execution_id": str(execution.pk)})
            assert result.is_error
            assert "Unknown execution" in result.content[0].text


async def test_an_output_that_breaks_its_own_schema_is_said_and_still_shown(connect, source):
    """E5: a client that validates would refuse it without a word of why."""
    workflow = await in_database(Workflow.objects.get)(tool_name="text_statistics")
    schema = {"type": "object", "properties": {"words": {"type": "string"}}}
    await in_database(Workflow.objects.filter(pk=workflow.pk).update)(output_schema=schema)
    async with connect() as client:
        result = await client.call_tool("text_statistics", {"text": "a b"})
    assert result.is_error
    assert "/words" in result.content[0].text
    assert '"words": 2' in result.content[0].text


async def test_an_agent_sees_arguments_as_the_curator_changed_them_and_the_engine_gets_the_rest(
    connect, source
):
    """Issue 13, 5: in lists, in what is told of the workflow, and in what the engine answers to a call."""
    workflow = await in_database(Workflow.objects.get)(tool_name="countdown")
    changed = {"seconds": {"constant": 0}, "message": {"description": "Ours.", "default": "Tea"}}
    await in_database(override_workflow)(workflow, argument_overrides=changed)
    async with connect() as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        told = (await client.call_tool("get_workflow_info", {"name": "countdown"})).structured_content
        ran = await client.call_tool("countdown", {})
        refused = await client.call_tool(
            "execute_workflow", {"name": "countdown", "arguments": {"seconds": 9}}
        )
    schema = tools["countdown"].input_schema
    assert (
        schema == told["input_schema"] and "required" not in schema and "seconds" not in schema["properties"]
    )
    assert schema["properties"]["message"] == {"type": "string", "description": "Ours.", "default": "Tea"}
    assert (ran.structured_content["seconds"], ran.structured_content["message"]) == (0, "Tea")
    assert refused.is_error and "/seconds: is set by the catalogue; leave it out" in refused.content[0].text


@pytest.mark.databases("mcp_bridge.server")
@pytest.mark.parametrize(
    ("problem", "told"),
    [
        (OperationalError("disk full at srv_x"), LOOK_FIRST),
        (None, f"{NOT_READY} {LOOK_FIRST}"),
        (KeyError("srv_x"), "has the details under the"),
    ],
    ids=["database", "not migrated", "bug"],
)
def test_an_error_inside_the_server_is_logged_and_its_words_are_not_sent(connect, source, era, problem, told):
    """A5.2, E6: the SDK would send them in the older era."""

    def fail(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if 'INSERT INTO "executions_' in sql or 'UPDATE "executions_' in sql:
            if problem is not None:
                raise problem
            return execute("SELECT 1 FROM srv_x", (), False, context)
        return execute(sql, params, many, context)

    async def refusal() -> str:
        async with connect(mode=era) as client:
            for _ in range(2):
                with pytest.raises(MCPError) as refused:
                    await client.call_tool("text_statistics", {"text": "a"})
            return refused.value.error.message

    with wrapping_statements(fail), shown_lines("ERROR") as lines:
        message = asyncio.run(refusal())

    assert told in message and "srv_x" not in message
    outages = [line for line in lines if line.startswith("tools/call cannot be") and "srv_x" in line]
    bugs = [line for line in lines if line.startswith("tools/call failed because of an internal error")]
    assert (len(outages), len(bugs)) == ((1, 0) if LOOK_FIRST in told else (0, 2))
