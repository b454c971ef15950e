"""What the product adds to a result for the model, in clients that show it less than they got.

Codex 0.171 gives its model nothing but structured content if a result has any. Claude Code 2.1.332 leaves out
its texts then, and of an error gives the texts alone.
"""

import json
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from jsonschema import validate
from mcp import Client
from mcp_types import CallToolResult, TextContent

from catalogue.models import Workflow
from mcp_bridge.request_meta import EXECUTION_ID, NOTE
from tests.content_blocks import Blocks, gives, held, patient, picture, text
from tests.mcp_bridge.database import in_database

__all__ = ["held", "patient"]
pytestmark = pytest.mark.usefixtures("held")

SUM = {"type": "object", "required": ["sum"], "properties": {"sum": {"type": "integer"}}}
FORMER = {"summary": (timezone.now() + timedelta(days=1)).isoformat()}


def shown_by_codex(result: CallToolResult) -> str:
    if result.structured_content is not None:
        return json.dumps(result.structured_content)
    return json.dumps(result.model_dump(mode="json", by_alias=True)["content"])


def shown_by_claude_code(result: CallToolResult) -> str:
    blocks = result.content
    if result.is_error:
        blocks = [block for block in blocks if isinstance(block, TextContent)]
    elif result.structured_content is not None:
        others = [block for block in blocks if not isinstance(block, TextContent)]
        blocks = [*others, TextContent(text=json.dumps(result.structured_content))]
    return json.dumps([block.model_dump(mode="json", by_alias=True) for block in blocks])


def notes_of(result: CallToolResult) -> list[str]:
    return [block.text for block in result.content if (block.meta or {}).get(NOTE)]


def is_read(result: CallToolResult, words: str) -> list[bool]:
    escaped = json.dumps(words)[1:-1]
    return [escaped in shown for shown in (shown_by_codex(result), shown_by_claude_code(result))]


async def run(client: Client, door: str, name: str = "report") -> CallToolResult:
    if door == "execute_workflow":
        return await client.call_tool(door, {"name": name})
    return await client.call_tool(name, {})


async def change(**fields: Any) -> None:
    await in_database(Workflow.objects.update)(**fields)


OUTPUTS: dict[str, tuple[Blocks, Any]] = {
    "JSON as text": ([text('{"sum": 5}')], {"sum": 5}),
    "other words": ([text("Five.")], {"sum": 5}),
    "a picture": ([text("Five."), picture()], {"sum": 5}),
    "an array": ([text("Both.")], [2, 3]),
}
DOORS = ("its own tool", "execute_workflow")
EACH_DOOR = pytest.mark.parametrize(("door", "era"), [*zip(DOORS, ("2026-07-28", "legacy"), strict=True)])


@EACH_DOOR
@pytest.mark.parametrize("given", OUTPUTS)
@pytest.mark.parametrize("note", ["cached", "renamed", "both"])
async def test_a_note_beside_a_result_is_read_and_nothing_of_the_result_is_lost(
    connect, patient, era, door, given, note
):
    blocks, output = OUTPUTS[given]
    gives(patient, blocks, output=output)
    await change(cache_seconds=60 if note != "renamed" else None, tool_aliases=FORMER)
    async with connect(mode=era) as client:
        first = await run(client, door)
        noted = await run(client, door, name="report" if note == "cached" else "summary")
    assert not notes_of(first) and first.structured_content is not None
    notes = notes_of(noted)
    assert len(notes) == (2 if note == "both" else 1)
    for words in (*notes, json.dumps(output)):
        assert is_read(noted, words) == [True, True]
    assert ["image" in shown_by_codex(noted)] == [given == "a picture"]


@pytest.mark.parametrize("door", DOORS)
async def test_a_tool_with_an_output_schema_keeps_its_structured_content_beside_a_note(
    connect, patient, era, door
):
    """Its clients refuse a result without. `execute_workflow` has no such schema."""
    gives(patient, [text("Five.")], output={"sum": 5})
    await change(output_schema=SUM, execution_type_override="sync", cache_seconds=60)
    async with connect(mode=era) as client:
        await client.list_tools()
        await run(client, door)
        noted = await run(client, door)
    (words,) = notes_of(noted)
    if door == "execute_workflow":
        assert noted.structured_content is None and is_read(noted, words) == [True, True]
    else:
        assert noted.structured_content == {"sum": 5}


async def test_what_is_left_out_of_a_result_is_read(connect, patient, settings):
    """Blocks that are too large, or too large to store."""
    settings.CATALOGUE = settings.CATALOGUE | {"inline_result_characters": 100}
    gives(patient, [text("x" * 500)], output={"sum": 5})
    async with connect() as client:
        large = await run(client, "its own tool")
        settings.CATALOGUE = settings.CATALOGUE | {"max_payload_bytes": 1024}
        gives(patient, [picture(bytes(2000))], output={"sum": 5})
        cut = await run(client, "its own tool")
    assert is_read(large, "get_execution_status") == is_read(cut, "Too large to store") == [True, True]
    assert is_read(large, '{"sum": 5}') == is_read(cut, '{"sum": 5}') == [True, True]


FAILURES: dict[str, tuple[Blocks, Any]] = {
    "text alone": ([text("Line 3 is ragged.")], None),
    "an object": ([text("Line 3 is ragged.")], {"error": "x"}),
    "another type": ([text("Line 3 is ragged.")], {"sum": "five"}),
    "an array": ([text("Line 3 is ragged.")], [1]),
    "a text": ([text("Line 3 is ragged.")], "ragged"),
    "null": ([text("Line 3 is ragged.")], {"sum": None}),
    "what the schema has": ([text("Line 3 is ragged.")], {"sum": 5}),
}


@EACH_DOOR
@pytest.mark.parametrize("has_schema", [True, False], ids=["schema", "no schema"])
@pytest.mark.parametrize("given", FAILURES)
async def test_a_failure_is_read_whole_and_has_structured_content_only_by_its_schema(
    connect, patient, era, door, has_schema, given
):
    """The TypeScript SDK 1.x throws away an error whose structured content does not fit."""
    blocks, output = FAILURES[given]
    gives(patient, blocks, output=output, error="Line 3 is ragged.")
    if has_schema:
        await change(output_schema=SUM, execution_type_override="sync")
    async with connect(mode=era) as client:
        await client.list_tools()
        failed = await run(client, door)
    assert failed.is_error
    if has_schema and door == "its own tool":
        if failed.structured_content is not None:
            validate(failed.structured_content, SUM)
        assert (failed.structured_content is not None) == (given == "what the schema has")
    if failed.structured_content is None:
        assert is_read(failed, "Line 3 is ragged.") == [True, True]
        assert is_read(failed, failed.meta[EXECUTION_ID]) == [True, True]
        assert output is None or is_read(failed, json.dumps(output).strip('"')) == [True, True]
    elif output is None:
        assert "try again" in failed.structured_content["note"]


async def test_the_note_of_a_handle_is_part_of_its_document(connect, patient, era):
    await change(inline_wait_seconds=0, tool_aliases=FORMER)
    async with connect(mode=era) as client:
        handle = await run(client, "its own tool", name="summary")
        patient.complete({"sum": 5})
    assert notes_of(handle)[0][1:-1] in handle.structured_content["note"]
    assert is_read(handle, "do not start it again") == [True, True]


async def test_a_picture_of_a_result_is_seen_where_the_status_shows_it(connect, patient, era):
    gives(patient, [text("Five."), picture()], output={"sum": 5})
    async with connect(mode=era) as client:
        result = await run(client, "its own tool")
        asking = {"execution_id": result.meta[EXECUTION_ID]}
        status = [
            await client.call_tool("get_execution_status", asking | block)
            for block in ({}, {"content_block": 1}, {"content_block": 0})
        ]
    assert ['"image"' in shown_by_codex(one) for one in status] == [True, True, False]
    assert status[2].structured_content["output_part"] == "Five."
    assert json.loads(status[0].content[0].text)["output"] == {"sum": 5}
