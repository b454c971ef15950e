"""Results of other kinds than text: content blocks come out of the endpoint as the engine gave them."""

import base64
import io
import json
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone
from mcp import MCPError
from mcp_types import CallToolResult

from catalogue.models import Workflow
from executions.models import ExecutionPayload, Retention
from executions.retention import prune
from executions.runner import start
from mcp_bridge.models import AccessToken
from mcp_bridge.tokens import create_token
from tests.content_blocks import (
    EVERY_KIND,
    PNG,
    Blocks,
    embedded,
    gives,
    held,
    in_base64,
    link,
    patient,
    picture,
    sound,
    text,
)
from tests.executions.engines import in_thread, until
from tests.executions.steps import only
from tests.factories import make_execution
from tests.mcp_bridge.conftest import Connect
from tests.mcp_bridge.database import in_database
from tests.mcp_bridge.tasks_client import TasksExtension, ask, start_task

__all__ = ["held", "patient"]
pytestmark = pytest.mark.usefixtures("held")

OBJECT = {"type": "object", "required": ["sum"], "properties": {"sum": {"type": "number"}}}


@pytest.fixture
def small_bounds(settings: Any) -> None:
    bounds = {"inline_result_characters": 4000, "inline_content_bytes": 5000}
    settings.CATALOGUE = settings.CATALOGUE | bounds


async def call(connect: Connect, era: str = "2026-07-28") -> CallToolResult:
    async with connect(mode=era) as client:
        return await client.call_tool("report", {})


def sent(result: CallToolResult) -> Blocks:
    """The blocks as they came over the wire."""
    blocks: Blocks = result.model_dump(mode="json", by_alias=True, exclude_none=True)["content"]
    return blocks


async def keep(content: Blocks | None, output: Any = None, **fields: Any) -> str:
    """An execution of the caller that has ended so; its id."""

    def make() -> str:
        agent = AccessToken.objects.get(name="agent")
        payload = {"output": output, "content": content}
        return str(make_execution(caller=f"token:{agent.pk}", payload=payload, **fields).pk)

    return await in_database(make)()


async def test_every_kind_of_block_comes_out_as_it_went_in(connect, patient, era):
    """Text, pictures, sounds, links, embedded resources; with their annotations and metadata."""
    gives(patient, EVERY_KIND)
    result = await call(connect, era)
    assert sent(result) == EVERY_KIND
    assert result.structured_content is None
    assert not result.is_error


async def test_structured_content_stays_structured_content(connect, patient, era):
    """A2.3: beside blocks that say something else."""
    gives(patient, [text("Five."), picture()], output={"sum": 5})
    result = await call(connect, era)
    assert sent(result) == [text("Five."), picture()]
    assert result.structured_content == {"sum": 5}


async def test_a_text_that_the_output_repeats_is_no_structured_content(connect, patient, era):
    gives(patient, [text("Five.")], output="Five.")
    result = await call(connect, era)
    assert sent(result) == [text("Five.")]
    assert result.structured_content is None


async def test_a_result_without_any_block_stays_empty(connect, patient, era):
    gives(patient, [])
    result = await call(connect, era)
    assert (result.content, result.is_error) == ([], False)


async def test_what_no_client_could_read_is_told_in_words(connect, patient, era):
    """One bad block must not cost a client the others; what came is found at the address."""
    broken = picture() | {"data": "not base64!"}
    video = {"type": "video", "data": "AAAA", "mimeType": "video/mp4"}
    no_type = {"type": "image", "data": in_base64(PNG)}
    gives(patient, [text("Before."), video, broken, no_type, text("After.")])
    result = await call(connect, era)
    before, *told, after = sent(result)
    assert (before, after) == (text("Before."), text("After."))
    key = (await in_database(only)()).pk
    for number, (block, kind) in enumerate(zip(told, ["video", "image", "image"], strict=True), start=1):
        assert block["type"] == "text"
        assert f"type '{kind}'" in block["text"]
        assert f"execution://{key}/result/content/{number}" in block["text"]
    async with connect(mode=era) as client:
        (found,) = (await client.read_resource(f"execution://{key}/result/content/1")).contents
    assert (found.mime_type, json.loads(found.text)) == ("application/json", video)


SCRIPTS = ["javascript:alert(1)", " JavaScript:x", "java\nscript:x", "\x01vbscript:x", "data:text/html,<b>"]


async def test_a_link_that_a_client_would_run_is_no_link(connect, patient, era):
    links = [{"type": "resource_link", "uri": uri, "name": "click"} for uri in SCRIPTS]
    held = [{"uri": uri, "text": "x", "mimeType": "text/plain"} for uri in SCRIPTS]
    gives(patient, [*links, *({"type": "resource", "resource": one} for one in held), text("After.")])
    blocks = sent(await call(connect, era))
    assert [block["type"] for block in blocks] == ["text"] * (2 * len(SCRIPTS) + 1)
    assert not any("script:" in block["text"] or "<b>" in block["text"] for block in blocks)


async def test_annotations_that_are_none_are_left_out_and_the_block_stays(connect, patient):
    gives(patient, [picture(annotations={"priority": "high"}), text("x", unheard_of=1)])
    assert sent(await call(connect)) == [picture(), text("x")]


async def test_clients_of_older_versions_are_told_in_words_of_blocks_that_they_do_not_know(
    mcp_server, token, patient
):
    """An unknown block would cost them the whole result."""
    gives(patient, [sound(), link()])
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "report", "arguments": {}}}
    kinds = {}
    for version in ("2024-11-05", "2025-03-26", "2025-06-18"):
        headers = {"mcp-protocol-version": version}
        answer = await in_thread(lambda: mcp_server.post(body, token=token, headers=headers))  # noqa: B023
        data = next(line for line in answer.text.splitlines() if line.startswith("data: {"))
        blocks = json.loads(data[6:])["result"]["content"]
        kinds[version] = [block["type"] for block in blocks]
        if version == "2024-11-05":
            assert blocks[0]["text"].startswith("[audio/wav, 16 bytes: execution://")
            assert blocks[1]["text"] == "[Link to Report: demo://resource/1]"
    assert kinds == {
        "2024-11-05": ["text", "text"],
        "2025-03-26": ["audio", "text"],
        "2025-06-18": ["audio", "resource_link"],
    }


async def test_a_failure_keeps_the_engines_blocks_and_adds_ours(connect, patient, era):
    """A2.4, A7.4: why it failed in the engine's words and pictures, then what to do."""
    gives(patient, [text("Line 3 is ragged."), picture()], output={"line": 3}, error="Line 3 is ragged.")
    result = await call(connect, era)
    key = (await in_database(only)()).pk
    *blocks, ours, output = sent(result)
    assert blocks == [text("Line 3 is ragged."), picture()]
    assert json.loads(output["text"]) == {"line": 3}
    assert str(key) in ours["text"]
    assert "try again" in ours["text"]
    assert "ragged" not in ours["text"], "it was said already"
    assert (result.is_error, result.structured_content) == (True, None)


async def test_a_failure_without_words_of_its_own_says_why(connect, patient):
    gives(patient, [picture()], error="The tool failed.")
    assert "The tool failed." in sent(await call(connect))[-1]["text"]


async def test_a_promised_output_is_checked(connect, patient, era):
    """Clients that validate refuse a result without it, so that the engine's fault is told as an error."""
    fields = {"output_schema": OBJECT, "execution_type_override": "sync"}
    await in_database(lambda: Workflow.objects.update(**fields))()
    gives(patient, [text("Five."), picture()], output={"sum": 5})
    async with connect(mode=era) as client:
        await client.list_tools()
        kept = await client.call_tool("report", {})
        gives(patient, [text("Five."), picture()], output="Five.")
        broken = await client.call_tool("report", {})
    assert (kept.is_error, kept.structured_content) == (False, {"sum": 5})
    assert broken.is_error
    assert "violates the engine's own output schema:\n- (output): " in broken.content[0].text
    assert sent(broken)[1:] == [text("Five."), picture()]


@pytest.mark.usefixtures("small_bounds")
async def test_a_picture_that_is_too_large_is_a_link_and_is_read_in_parts(connect, patient, era):
    """The others come whole; the parts put together are the picture."""
    large = PNG + bytes(range(256)) * 50
    gives(patient, [picture(large), picture(), text("Done.")])
    result = await call(connect, era)
    words, linked, *others = sent(result)
    assert others == [picture(), text("Done.")]
    assert f"{len(large):,} bytes" in words["text"]
    assert linked["uri"] in words["text"]
    assert (linked["mimeType"], linked["size"]) == ("image/png", len(large))
    found, address = b"", linked["uri"]
    async with connect(mode=era) as client:
        while address:
            part = (await client.read_resource(address)).contents[0]
            data = base64.b64decode(part.blob)
            assert len(data) <= 5000
            assert part.meta["workflow-catalogue/bytes"] == len(large)
            found, address = found + data, part.meta.get("workflow-catalogue/next")
        small = (await client.read_resource(linked["uri"].replace("content/0", "content/1"))).contents
    assert found == large
    assert [(content.mime_type, base64.b64decode(content.blob)) for content in small] == [("image/png", PNG)]


@pytest.mark.usefixtures("small_bounds")
async def test_pictures_together_are_bounded_too(connect, patient):
    gives(patient, [picture(bytes(2000)) for _ in range(4)])
    kinds = [block["type"] for block in sent(await call(connect))]
    assert kinds == ["image", "image", *["text", "resource_link"] * 2]


@pytest.mark.usefixtures("small_bounds")
@pytest.mark.parametrize("make", [text, lambda words: embedded(mimeType="text/plain", text=words)])
async def test_a_text_that_is_too_large_is_told_by_its_beginning(connect, patient, era, make):
    """A8.4: a model gets the rest from get_execution_status, a client from the resource."""
    words = "".join(f"row {number}\n" for number in range(1500))
    gives(patient, [picture(), make(words)])
    result = await call(connect, era)
    shown, told, linked = sent(result)
    assert shown == picture()
    assert told["text"].endswith(words[:2000])
    assert len(told["text"]) < 3000
    key = str((await in_database(only)()).pk)
    asked = {"execution_id": key, "content_block": 1, "output_offset": 2000}
    assert json.dumps(asked) in told["text"]
    async with connect(mode=era) as client:
        found, rest = words[:2000], {"arguments": asked}
        while rest:
            part = (await client.call_tool("get_execution_status", rest["arguments"])).structured_content
            found, rest = found + part["output_part"], part.get("rest")
        first = (await client.read_resource(linked["uri"])).contents[0]
    assert found == words
    assert first.text == words[:4000]


ROWS = {"rows": [f"row {number}" for number in range(1000)]}
BESIDE: dict[str, tuple[Blocks, Any, bool]] = {  # Blocks, structured content, and whether its beginning shows
    "a short text": ([text("See the data.")], ROWS, True),
    "nothing": ([], ROWS, True),
    "a picture": ([picture()], ROWS, True),
    "a large text": ([text("x" * 9_000)], ROWS, True),
    "several texts": ([text("One."), text("Two.")], ROWS, True),
    "a large array": ([text("See the data.")], [5] * 9_000, True),
    "one more than fits": ([], {"k": "x" * (4_001 - len('{"k": ""}'))}, True),
    "as much as fits": ([], {"k": "x" * (4_000 - len('{"k": ""}'))}, False),
    "the same as text": ([text(json.dumps(ROWS, indent=1))], ROWS, False),
    "no structured content": ([text("x" * 9_000)], "x" * 9_000, False),
}


@pytest.mark.usefixtures("small_bounds")
@pytest.mark.parametrize(("blocks", "output", "begins"), BESIDE.values(), ids=BESIDE)
async def test_large_structured_content_is_told_by_its_beginning_beside_blocks(
    connect, patient, era, blocks, output, begins
):
    gives(patient, blocks, output=output)
    result = await call(connect, era)

    key = str((await in_database(only)()).pk)
    address, asked = f"execution://{key}/result", {"execution_id": key, "output_offset": 2000}
    added = sent(result)[-2:] if begins else []
    assert [block.get("uri") for block in added] == ([None, address] if begins else [])
    assert not begins or added[0]["text"].endswith(json.dumps(output)[:2000])
    assert not begins or json.dumps(asked) in added[0]["text"]
    assert not begins or sum(len(block.get("text", "")) for block in sent(result)) < 6_000
    # Nothing of the answer is lost, and no success is empty.
    assert result.content or result.structured_content is not None
    fits = len(json.dumps(output)) <= 4_000
    assert result.structured_content == (output if fits else None)
    assert not result.is_error
    if begins:
        async with connect(mode=era) as client:
            status = await client.call_tool("get_execution_status", asked)
            first = (await client.read_resource(address)).contents[0]
        assert status.structured_content["output_part"] == json.dumps(output)[2000:6000]
        assert first.text == json.dumps(output)[:4000]


@pytest.mark.usefixtures("small_bounds")
async def test_structured_content_that_a_schema_promises_comes_whole_beside_blocks(
    connect, patient, held, era
):
    promised = {"output_schema": {"type": "object"}, "execution_type_override": "sync"}
    await in_database(Workflow.objects.filter(pk=held.pk).update)(**promised)
    gives(patient, [text("See the data.")], output=ROWS)
    result = await call(connect, era)

    assert (sent(result), result.structured_content) == ([text("See the data.")], ROWS)


@pytest.mark.usefixtures("small_bounds")
@pytest.mark.parametrize("words", ["", "x" * 5000], ids=["empty", "large"])
async def test_any_number_of_blocks_floods_nobody(connect, patient, words):
    gives(patient, [text(words) for _ in range(2000)])
    blocks = sent(await call(connect))
    assert len(blocks) <= 501
    assert sum(len(json.dumps(block)) for block in blocks) < 100_000
    assert "more content blocks" in blocks[-1]["text"]
    asked = json.loads(blocks[-1]["text"].partition("get_execution_status with ")[2].partition(" for")[0])
    async with connect() as client:
        part = (await client.call_tool("get_execution_status", asked)).structured_content
    assert part["output_part"] == words[:4000]


async def test_the_status_describes_the_blocks_and_shows_the_pictures(connect, era):
    """A8.4: no base64 in what a model reads."""
    key = await keep(EVERY_KIND)
    async with connect(mode=era) as client:
        status = await client.call_tool("get_execution_status", {"execution_id": key})
        read = (await client.read_resource(f"execution://{key}")).contents[0]
        result = (await client.read_resource(f"execution://{key}/result")).contents
        one = await client.call_tool("get_execution_status", {"execution_id": key, "content_block": 1})
        none = await client.call_tool("get_execution_status", {"execution_id": key, "content_block": 6})
    document, *blocks = sent(status)
    assert in_base64(PNG) not in document["text"]
    outlines = json.loads(document["text"])["content"]
    assert [outline["type"] for outline in outlines] == [block["type"] for block in EVERY_KIND]
    assert outlines[0] == EVERY_KIND[0]
    assert outlines[1] == {
        "type": "image",
        "mimeType": "image/png",
        "bytes": len(PNG),
        "resource": f"execution://{key}/result/content/1",
    }
    assert blocks == [EVERY_KIND[1], EVERY_KIND[2], EVERY_KIND[5]]
    assert json.loads(read.text)["content"] == outlines
    assert "Three of them." in result[0].text
    assert [content.uri for content in result[1:]] == [
        f"execution://{key}/result/content/{n}" for n in (1, 2, 5)
    ]
    assert base64.b64decode(result[1].blob) == PNG
    assert sent(one)[1:] == [EVERY_KIND[1]]
    assert none.is_error
    assert "6 content blocks" in none.content[0].text


async def test_the_status_does_not_say_twice_what_the_output_says(connect):
    """Servers are advised to send structured content as text, too."""
    key = await keep([text('{"sum":  5}')], output={"sum": 5})
    async with connect() as client:
        status = await client.call_tool("get_execution_status", {"execution_id": key})
    assert status.structured_content["output"] == {"sum": 5}
    assert "content" not in status.structured_content


async def test_progress_has_the_engines_words_and_percent(connect, patient, monkeypatch, era):
    """A7.3: while the answer is still to come."""
    monkeypatch.setattr(start, "LOOK_SECONDS", 0.05)
    heard: list[tuple[float, float | None, str | None]] = []

    async def note(value: float, total: float | None, message: str | None) -> None:
        heard.append((value, total, message))
        gives(patient, EVERY_KIND)

    patient.tell(40.0, "Counting sheep")
    async with connect(mode=era) as client:
        result = await client.call_tool("report", {}, progress_callback=note)
    assert heard[0] == (40.0, 100.0, "Counting sheep")
    assert sent(result) == EVERY_KIND


async def test_a_task_ends_with_the_same_blocks(connect, held, patient):
    await in_database(lambda: Workflow.objects.update(inline_wait_seconds=0))()
    async with connect(extensions=[TasksExtension()]) as client:
        task_id = (await start_task(client.session, "report", {})).task_id
        gives(patient, EVERY_KIND)

        async def ended() -> Any:
            task = await ask(client.session, "tasks/get", task_id)
            return task if task["status"] == "completed" else None

        while not (task := await ended()):
            await until(lambda: only().is_settled, "the run ends")
    assert task["result"]["content"] == EVERY_KIND


async def test_blocks_are_read_by_whoever_may_see_the_execution(connect, held):
    key = await keep(EVERY_KIND)
    stranger = (await in_database(create_token)(name="stranger"))[1]
    async with connect(as_token=stranger) as client:
        with pytest.raises(MCPError, match="Unknown execution"):
            await client.read_resource(f"execution://{key}/result/content/1")


@pytest.mark.parametrize("ending", ["6", "-1", "x", "1?offset=-1", "1?offset=1000000", "4?offset=99"])
async def test_what_is_not_there_is_refused_in_words(connect, ending):
    key = await keep(EVERY_KIND)
    async with connect() as client:
        with pytest.raises(MCPError) as refused:
            await client.read_resource(f"execution://{key}/result/content/{ending}")
    assert refused.value.error.code == -32602
    assert any(
        words in refused.value.error.message
        for words in ("numbered from 0", "must be an integer", "is past the end")
    )


async def test_content_that_is_gone_is_said_to_be_gone(connect):
    """B7, E6: removed by the retention."""
    key = await keep(EVERY_KIND, finished_at=timezone.now() - timedelta(days=2))

    def remove() -> int:
        Retention.objects.update_or_create(pk=Retention.ONLY, defaults={"keep_payloads_days": 1})
        return prune().payloads

    assert await in_database(remove)() == 1
    async with connect() as client:
        with pytest.raises(MCPError, match="no longer stored"):
            await client.read_resource(f"execution://{key}/result/content/1")
        status = await client.call_tool("get_execution_status", {"execution_id": key})
    assert "output_removed_at" in status.structured_content


async def test_content_that_was_too_large_to_keep_is_said_to_be(connect, patient, settings, era):
    """E3: what is left is shown, with what is missing."""
    settings.CATALOGUE = settings.CATALOGUE | {"max_payload_bytes": 1024}
    gives(patient, [picture(bytes(2000))], output={"sum": 5})
    partly = await call(connect, era)
    gives(patient, [picture(bytes(2000))])
    nothing = await call(connect, era)
    assert json.loads(partly.content[0].text) == {"sum": 5}
    assert "content blocks" in partly.content[-1].text
    assert not partly.is_error
    assert nothing.is_error
    assert "too large to store" in nothing.content[0].text


def test_the_command_line_describes_what_is_no_text(patient):
    """A terminal is no place for base64."""
    gives(patient, EVERY_KIND)
    out, err = io.StringIO(), io.StringIO()
    call_command("call_tool", "report", stdout=out, stderr=err)
    lines = out.getvalue().splitlines()
    assert f"[image/png, {len(PNG)} bytes]" in lines
    assert "[Link to The report: demo://resource/1]" in lines
    assert "# Heading" in lines
    gives(patient, EVERY_KIND, output={"sum": 5})
    out, err = io.StringIO(), io.StringIO()
    call_command("call_tool", "report", stdout=out, stderr=err)
    assert json.loads(out.getvalue()) == {"sum": 5}
    assert "image/png" in err.getvalue()
    gives(patient, [text("No."), picture()], error="No.")
    with pytest.raises(CommandError, match=r"No\.\n\[image/png"):
        call_command("call_tool", "report", stdout=out, stderr=err)


def test_raw_answers_are_kept_apart_from_the_content(patient):
    """B3: what the record has of it, once."""
    gives(patient, EVERY_KIND, raw={"isError": False})
    call_command("call_tool", "report", stdout=io.StringIO(), stderr=io.StringIO())
    kept = ExecutionPayload.objects.get()
    assert (kept.content, kept.output) == (EVERY_KIND, None)
