"""Results that would flood a model's context: their beginning, how large they are, and where the rest is."""

import io
import json
from typing import Any

import pytest
from django.core.management import call_command
from mcp_types import CallToolResult

from tests.connectors.scripted import replies
from tests.executions.engines import WireEngine, completed, in_thread, until
from tests.executions.steps import only
from tests.mcp_bridge.conftest import Connect
from tests.mcp_bridge.database import in_database
from tests.mcp_bridge.tasks_client import TasksExtension, ask, start_task
from tests.mcp_bridge.test_tasks import change, is_free, work_on

ROWS = {"rows": [f"row {number}" for number in range(1000)]}
CHARACTERS = len(json.dumps(ROWS))
EXECUTION_ID = "workflow-catalogue/execution-id"


@pytest.fixture(autouse=True)
def _small_bound(settings: Any) -> None:
    settings.CATALOGUE = settings.CATALOGUE | {"inline_result_characters": 4000}


async def call(connect: Connect, engine: WireEngine, era: str, output: Any, **fields: Any) -> CallToolResult:
    """The result of a call that waits for this output."""
    await in_database(change)(inline_wait_seconds=None, **fields)
    engine.on_status = replies(200, completed(output))
    async with connect(mode=era) as client:
        return await client.call_tool("report", {})


def check_beginning(result: CallToolResult, execution_id: str, *, text: str) -> None:
    told, link = result.content
    assert f"The output has {len(text):,} characters" in told.text
    assert told.text.endswith(text[:2000])
    assert len(told.text) < 3000
    assert json.dumps({"execution_id": execution_id, "output_offset": 2000}) in told.text
    assert (link.type, link.uri) == ("resource_link", f"execution://{execution_id}/result")
    assert link.size == len(text.encode())


async def test_a_large_output_is_told_by_its_beginning_and_a_link(connect, long_workflow, wire_engine, era):
    """Neither the text nor the structured content carries the whole; the link leads to it."""
    result = await call(connect, wire_engine, era, ROWS)
    execution_id = str((await in_database(only)()).pk)
    check_beginning(result, execution_id, text=json.dumps(ROWS))
    assert result.structured_content is None
    assert not result.is_error
    async with connect(mode=era) as client:
        first = (await client.read_resource(result.content[1].uri)).contents[0]
    assert first.meta["workflow-catalogue/characters"] == CHARACTERS
    assert first.text == json.dumps(ROWS)[:4000]


async def test_a_large_text_is_cut_between_characters(connect, long_workflow, wire_engine):
    text = "\U0001f600☃" * 3000
    result = await call(connect, wire_engine, "2026-07-28", text)
    check_beginning(result, str((await in_database(only)()).pk), text=text)
    assert result.content[1].mime_type == "text/plain"


async def test_what_fits_comes_whole(connect, long_workflow, wire_engine, era):
    """A2.3: also when it is exactly as long as allowed; the result says which execution it is of."""
    output = {"text": "x" * (4000 - len('{"text": ""}'))}
    result = await call(connect, wire_engine, era, output)
    assert result.structured_content == output
    assert [json.loads(content.text) for content in result.content] == [output]
    assert result.meta is not None
    assert result.meta[EXECUTION_ID] == str((await in_database(only)()).pk)


async def test_a_tool_with_an_output_schema_gives_its_structured_content_however_large(
    connect, long_workflow, wire_engine, era
):
    """Clients that validate demand it; the text is short all the same."""
    promised = {"output_schema": {"type": "object", "required": ["rows"]}, "execution_type_override": "sync"}
    result = await call(connect, wire_engine, era, ROWS, **promised)
    assert result.structured_content == ROWS
    check_beginning(result, str((await in_database(only)()).pk), text=json.dumps(ROWS))


async def test_a_large_output_that_breaks_its_schema_floods_nobody_either(
    connect, long_workflow, wire_engine
):
    promised = {"output_schema": {"type": "object", "required": ["sum"]}, "execution_type_override": "sync"}
    result = await call(connect, wire_engine, "2026-07-28", ROWS, **promised)
    assert result.is_error
    assert "/sum: required, but missing" in result.content[0].text
    check_beginning(result, str((await in_database(only)()).pk), text=json.dumps(ROWS))


async def test_the_status_gives_a_large_output_part_by_part(connect, long_workflow, wire_engine, era):
    """A8.4: for models whose clients show them no resources."""
    await call(connect, wire_engine, era, ROWS)
    execution_id = str((await in_database(only)()).pk)
    async with connect(mode=era) as client:
        status = (
            await client.call_tool("get_execution_status", {"execution_id": execution_id})
        ).structured_content
        assert "output" not in status
        assert status["output_characters"] == CHARACTERS
        resource, *_ = (await client.read_resource(status["output_resource"])).contents
        assert resource.text.startswith(status["output_beginning"][:1_000])
        text, document = status["output_beginning"], status
        while following := document.get("rest"):
            assert following["tool"] == "get_execution_status"
            document = (await client.call_tool(following["tool"], following["arguments"])).structured_content
            text += document["output_part"]
        beyond = await client.call_tool(
            "get_execution_status", {"execution_id": execution_id, "output_offset": CHARACTERS}
        )
    assert json.loads(text) == ROWS
    assert beyond.is_error
    assert f"the output has {CHARACTERS:,} characters" in beyond.content[0].text


async def test_a_task_ends_with_the_same_result(connect, long_workflow, wire_engine):
    async with connect(extensions=[TasksExtension()]) as client:
        task_id = (await start_task(client.session, "report", {})).task_id
        await until(is_free, "a worker could go on")
        wire_engine.on_status = replies(200, completed(ROWS))
        await in_thread(work_on)
        task = await ask(client.session, "tasks/get", task_id)
    check_beginning(
        CallToolResult.model_validate(task["result"], by_name=False), task_id, text=json.dumps(ROWS)
    )


def test_the_command_line_prints_it_whole(long_workflow, wire_engine):
    """A terminal, or the file behind `>`, has no context to flood."""
    change(inline_wait_seconds=None)
    wire_engine.on_status = replies(200, completed(ROWS))
    printed = io.StringIO()
    call_command("call_tool", "report", stdout=printed)
    assert json.loads(printed.getvalue()) == ROWS


async def test_clients_of_2025_03_26_get_no_link_which_they_could_not_read(
    mcp_server, token, connect, long_workflow, wire_engine
):
    """The words are enough; an unknown block would cost them the whole result."""
    await in_database(change)(inline_wait_seconds=None)
    wire_engine.on_status = replies(200, completed(ROWS))
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "report", "arguments": {}}}
    kinds = {}
    for version in ("2025-03-26", "2025-06-18", "2025-11-25"):
        headers = {"mcp-protocol-version": version}
        answer = await in_thread(lambda: mcp_server.post(body, token=token, headers=headers))  # noqa: B023
        data = next(line for line in answer.text.splitlines() if line.startswith("data: {"))
        kinds[version] = [block["type"] for block in json.loads(data[6:])["result"]["content"]]
    assert kinds == {
        "2025-03-26": ["text"],
        "2025-06-18": ["text", "resource_link"],
        "2025-11-25": ["text", "resource_link"],
    }
