"""Questions about the result of a run: what is found, what is too large to show, and what does no harm."""

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from mcp import MCPError

from catalogue.descriptions import tokens_for
from executions import asking, result_reader
from executions.asking import MAX_QUERY, NotAnswered, ask_result, end_readers
from executions.models import Execution, State
from executions.result_reader import shape_of
from mcp_bridge.builtin_tools import BUILT_IN_TOOLS
from mcp_bridge.tool_lists import serialise_tool
from tests.api.clients import administrator, agent, problem_paths
from tests.content_blocks import EVERY_KIND, embedded, in_base64, text
from tests.executions.engines import until
from tests.factories import make_execution, make_workflow
from tests.mcp_bridge.database import in_database
from tests.mcp_bridge.test_tasks import owned

ROWS = [{"id": number, "name": f"row {number}", "paid": number % 2 == 0} for number in range(1000)]
LOG = "\n".join(f"{number} {'ERROR: disk' if number in (40, 700) else 'fine'}" for number in range(1000))


LEVELS = "[@, @] | " * 60
EQUAL = f"{{a: (@ | {LEVELS}@), b: (@ | {LEVELS}@)}} | a == b"  # One comparison, which Python's code makes
HOSTILE = [
    EQUAL,
    "rows | " + "[@, @][] | " * 60 + "length(@)",
    "join('', rows[].name) | " + "join('', [@, @]) | " * 60 + "length(@)",
    "rows | " + "[[*].[@, @][][], @][] | " * 40 + "length(@)",
    f"{LEVELS}to_string(@)",
    f"[{LEVELS}@] | " + "[][] | " * 60 + "length(@)",
]


@pytest.fixture
def make(token: str, transactional_db: None) -> Any:
    """Makes a run of the token's caller, with this payload."""

    def made(**payload: Any) -> Any:
        return in_database(lambda: owned(make_workflow(name="report"), payload=payload))()

    return made


async def ask(connect: Any, execution: Execution, query: str, **more: Any) -> Any:
    arguments = {"execution_id": str(execution.pk), "query": query, **more}
    async with connect() as client:
        return await client.call_tool("get_execution_status", arguments)


def readers() -> list[psutil.Process]:
    return [
        one
        for one in psutil.Process().children()
        if any("result_reader" in word for word in one.cmdline() or [""])
    ]


@pytest.mark.parametrize(
    ("payload", "query", "found"),
    [
        ({"output": {"rows": ROWS}}, "length(rows)", 1000),
        ({"output": {"rows": ROWS}}, "rows[?paid] | [-1].name", "row 998"),
        ({"output": ROWS}, "[2:4].id", [2, 3]),
        ({"output": ROWS}, "nothing", None),
        ({"output": LOG}, "lines[?contains(text, 'ERROR')].number", [40, 700]),
        ({"output": LOG}, "lines[40:42].text", ["40 ERROR: disk", "41 fine"]),
        ({"output": "a\r\n\r\nb\n"}, "lines[*].text", ["a", "", "b"]),
        ({"output": json.dumps(ROWS)}, "[7].name", "row 7"),  # As many MCP servers send their JSON
        ({"output": "[not JSON"}, "lines[0].text", "[not JSON"),
        ({"output": 4711}, "@", 4711),
        ({"output": {"rows": ROWS}, "content": [text("See the table.")]}, "length(rows)", 1000),
        ({"output": "Three of them.", "content": EVERY_KIND}, "lines[0].text", "Three of them."),
        ({"output": None, "content": [text(json.dumps(ROWS))]}, "[7].name", "row 7"),
        (
            {"output": "", "content": [embedded(mimeType="a/b", blob=in_base64(b"\0"))]},
            "lines[*].text",
            ["[a/b: no text]"],
        ),
    ],
)
async def test_a_question_finds_its_part_of_any_kind_of_result(connect, make, payload, query, found):
    execution = await make(**payload)
    result = await ask(connect, execution, query)
    assert result.structured_content == {"execution_id": str(execution.pk), "answer": found}
    assert json.loads(result.content[0].text) == result.structured_content


async def test_of_several_blocks_one_can_be_asked(connect, make):
    execution = await make(output=None, content=[text("a"), text('{"b": [1, 2]}')])
    assert (await ask(connect, execution, "b[1]", content_block=1)).structured_content["answer"] == 2
    assert (await ask(connect, execution, "b", content_block=2)).is_error


async def test_what_is_too_large_is_answered_by_its_shape_and_how_to_ask_for_less(connect, make):
    """The number of items that it proposes fits."""
    execution = await make(output={"rows": ROWS, "log": LOG})
    result = await ask(connect, execution, "rows[?paid]")
    document = result.structured_content
    row = document["shape"]["items"]["object"]
    assert (document["shape"]["array"], row.keys()) == (500, {"id", "name", "paid"})
    assert row["paid"] == "boolean" and row["name"].startswith(
        "string of 5 to 7 characters, such as row 0 or"
    )
    assert len(result.content[0].text.encode()) < 2_048
    proposed = document["note"].split('"')[1]
    assert len((await ask(connect, execution, f"rows[?paid]{proposed}")).structured_content["answer"]) > 20
    whole = (await ask(connect, execution, "@")).structured_content["shape"]["object"]
    assert whole["rows"]["array"] == 1000 and whole["log"].startswith(f"string of {len(LOG)} characters")


@pytest.mark.parametrize("output", [{"rows": ROWS}, LOG])
async def test_a_large_result_comes_with_a_question_that_is_answered(connect, make, settings, output):
    """Beside its beginning and the call for the rest."""
    settings.CATALOGUE = settings.CATALOGUE | {"inline_result_characters": 4000}
    execution = await make(output=output)
    async with connect() as client:
        status = await client.call_tool("get_execution_status", {"execution_id": str(execution.pk)})
        following = status.structured_content["ask"]
        answer = await client.call_tool(following["tool"], following["arguments"])
    assert not answer.is_error and answer.structured_content["answer"]
    assert ("output_shape" in status.structured_content) == isinstance(output, dict)
    assert status.structured_content["rest"]


@pytest.mark.parametrize(
    "query",
    [
        "rows[",
        "`",
        "nope(@)",
        "sum(rows)",
        "\0",
        "&rows",
        "rows[::0]",
        "sum(`[1e308, 1e308]`)",
        "(" * 1_000,
        "[" * 1_999,
        "!" * 1_999 + "a",
        "x" * (MAX_QUERY + 1),
        f"{LEVELS}sort(@)",
    ],
)
async def test_a_wrong_question_is_refused_with_the_reason(connect, make, query):
    execution = await make(output={"rows": ROWS})
    result = await ask(connect, execution, query)
    assert result.is_error and len(result.content[0].text) < 1_000
    assert (await ask(connect, execution, "length(rows)")).structured_content["answer"] == 1000


@pytest.mark.parametrize("query", HOSTILE)
async def test_a_hostile_question_ends_within_its_bound_and_the_next_is_answered(
    connect, make, monkeypatch, query
):
    monkeypatch.setattr(asking, "SECONDS", 0.5)
    execution = await make(output={"rows": ROWS})
    assert (await ask(connect, execution, query)).is_error
    assert (await ask(connect, execution, "length(rows)")).structured_content["answer"] == 1000


async def test_the_answer_of_shared_values_is_not_written_to_its_end(connect, make):
    """2 to the power of 60 lists, which take no memory."""
    execution = await make(output={"rows": ROWS})
    result = await ask(connect, execution, f"{LEVELS}@")
    assert result.structured_content["shape"]["array"] == 2


KEYS = st.text(max_size=300)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | KEYS,
    lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner),
    max_leaves=200,
)


@given(VALUES)
def test_every_shape_has_its_size(value):
    assert (
        len(json.dumps(shape_of(value, most=1_000), ensure_ascii=False).encode("utf-8", "replace")) <= 1_000
    )


@pytest.mark.parametrize(
    "value",
    [
        {f"{number}" * 50: number for number in range(100_000)},
        [{"\0" * 1_000: ["\U0001f600" * 1_000]}] * 100_000,
        [{f"{number} {row}": 1 for number in range(2_000)} for row in range(1_000)],
        json.loads("[" * 900 + "]" * 900),
        "x" * 10_000_000,
        [[], {}, 1, "", None, True, 1.5] * 1_000,
    ],
)
def test_hostile_values_have_a_shape_soon(value):
    began = time.process_time()
    assert 0 < len(json.dumps(shape_of(value, most=1_000), ensure_ascii=False).encode()) <= 1_000
    assert time.process_time() - began < 2


WORDS = st.sampled_from(
    ["@", "rows", "[]", "[*]", "*", ".", "|", "[?paid]", "[0]", "[::-1]", "length(@)", "sort_by(@, &id)", "&",
     "`1`", "==", "join('', @)", "{a: @}", "[@, @]", "to_string(@)", "reverse(@)", "values(@)", "(", ")", "'",
     "\ud800", "\0", '"\\ud800"', '`"\\ud800"`', "map(&[@, @][], @)", "max_by(@, &@)", "to_number(@)",
     "merge(@, @)", "!", "&&", "<"]
)  # fmt: skip


@pytest.mark.django_db(transaction=True)
def test_every_expression_ends_and_the_next_question_is_answered(monkeypatch):
    monkeypatch.setattr(asking, "SECONDS", 1.0)
    execution = make_execution(payload={"output": {"rows": ROWS}})

    @examples(max_examples=150)
    @given(
        st.lists(WORDS, min_size=1, max_size=40).map("".join)
        | st.lists(WORDS, max_size=20).map(" ".join)
        | st.text()
    )
    def check(query):
        with contextlib.suppress(NotAnswered):
            found = asyncio.run(ask_result(execution, query))
            assert len(json.dumps(found, ensure_ascii=False).encode()) < 2_048
        assert asyncio.run(ask_result(execution, "length(rows)")) == {"answer": 1000}

    check()


# The process


async def test_one_process_holds_the_last_result_and_none_is_left(connect, make):
    first, second = await make(output=[1]), await in_database(make_execution)(payload={"output": [2]})
    await ask(connect, first, "@")
    (held,) = readers()
    await ask(connect, first, "[0]")
    assert readers() == [held]
    assert await ask_result(second, "@") == {"answer": [2]}
    (other,) = readers()
    assert other != held
    end_readers()
    assert readers() == []


async def test_a_process_that_is_idle_or_killed_is_replaced(connect, make, monkeypatch):
    execution = await make(output=[1])
    await ask(connect, execution, "@")
    (held,) = readers()
    held.kill()
    held.wait(10)
    assert (await ask(connect, execution, "@")).structured_content["answer"] == [1]
    monkeypatch.setattr(asking, "IDLE_SECONDS", 0.05)
    await ask(connect, execution, "[0]")
    await until(lambda: not readers(), "the idle process has ended")
    assert (await ask(connect, execution, "@")).structured_content["answer"] == [1]


async def test_a_process_that_is_killed_while_it_works_is_told(make, monkeypatch):
    """As by a system that lacks memory."""
    monkeypatch.setattr(asking, "SECONDS", 60.0)
    execution = await make(output={"rows": ROWS})
    assert await ask_result(execution, "length(@)") == {"answer": 1}
    (held,) = readers()
    endless = asyncio.ensure_future(ask_result(execution, EQUAL))
    before = held.cpu_times().user
    await until(lambda: held.cpu_times().user > before + 0.1, "it works")
    held.kill()
    with pytest.raises(NotAnswered, match="Ask again"):
        await endless
    assert await ask_result(execution, "length(rows)") == {"answer": 1000}


async def test_a_result_that_takes_too_long_to_read_or_too_much_memory_is_told(make, monkeypatch):
    execution = await make(output={"rows": ROWS})
    monkeypatch.setattr(asking, "MEMORY_BYTES", 1024)
    with pytest.raises(NotAnswered):
        await ask_result(execution, "@")
    monkeypatch.undo()
    monkeypatch.setattr(asking, "ALL_SECONDS", 0.0)
    with pytest.raises(NotAnswered):
        await ask_result(execution, "@")
    assert readers() == []


async def test_as_many_questions_as_there_are_wait_a_bounded_time_for_their_turn(make, monkeypatch):
    monkeypatch.setattr(asking, "SECONDS", 60.0)
    execution = await make(output={"rows": ROWS})
    endless = [asyncio.ensure_future(ask_result(execution, EQUAL)) for _ in range(asking.AT_ONCE)]
    await until(lambda: len(readers()) == asking.AT_ONCE, "both are asked")
    monkeypatch.setattr(asking, "WAIT_SECONDS", 0.1)
    with pytest.raises(asking.TooManyQuestions):
        await ask_result(execution, "@")
    for reader in readers():
        reader.kill()
    await asyncio.gather(*endless, return_exceptions=True)


@pytest.mark.parametrize("is_busy", [False, True])
def test_no_process_outlives_the_server_however_that_ends(is_busy):
    """Its pipe closes; what it works on meanwhile ends within the bound."""
    told = {"block": None, "notes": [], "memory": 2**30, "seconds": 1.0, "most": 100}
    process = subprocess.Popen(
        [sys.executable, "-P", result_reader.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    question = EQUAL if is_busy else "@"
    process.stdin.write(json.dumps(told).encode() + b"\n[]\nnull\n" + json.dumps(question).encode() + b"\n")
    with process:
        process.stdin.close()
        assert process.wait(30) == (-signal.SIGPROF if is_busy else 0)


# The other doors


async def test_the_resource_answers_a_query(connect, make, era):
    execution = await make(output={"rows": ROWS})
    address = f"execution://{execution.pk}/result"
    async with connect(mode=era) as client:
        (content,) = (await client.read_resource(f"{address}?query=rows%5B7%5D.name")).contents
        assert json.loads(content.text) == {"answer": "row 7"}
        for wrong in ("query=rows%5B", "query=rows&offset=4"):
            with pytest.raises(MCPError):
                await client.read_resource(f"{address}?{wrong}")


@pytest.mark.django_db(transaction=True)
def test_rest_answers_a_query():
    client, execution = administrator(), make_execution(payload={"output": {"rows": ROWS}})
    path = f"/api/executions/{execution.pk}/result/"
    assert client.get(path, {"query": "rows[7].name"}).json() == {"answer": "row 7"}
    assert client.get(path, {"query": '`"\\ud800"`'}).json() == {"answer": "?"}
    shaped = client.get(path, {"query": "rows"}).json()
    assert (shaped["shape"]["array"], "answer" in shaped) == (1000, False)
    wrong = client.get(path, {"query": "rows["})
    assert (wrong.status_code, problem_paths(wrong)) == (400, ["?query"])
    assert problem_paths(client.get(path)) == ["?query"]
    other = make_execution(state=State.FAILED)
    assert client.get(f"/api/executions/{other.pk}/result/", {"query": "@"}).status_code == 409


@pytest.mark.django_db(transaction=True)
def test_a_result_of_another_caller_is_not_there_to_ask():
    execution = make_execution(caller="token:0")
    assert agent().get(f"/api/executions/{execution.pk}/result/", {"query": "@"}).status_code == 404


@pytest.mark.databases("executions.asking")
async def test_a_cached_result_and_one_that_is_gone(connect, make):
    """What is stored with the original run is asked there; what the retention has removed is not."""
    original = await make(output={"rows": ROWS})
    shared = await in_database(make_execution)(
        original.workflow, caller=original.caller, cached_from=original, cached_at=original.finished_at,
        payload={"output": None, "shares_output": True},
    )  # fmt: skip
    assert (await ask(connect, shared, "length(rows)")).structured_content["answer"] == 1000
    await in_database(Execution.objects.filter(pk=shared.pk).update)(payload_pruned_at=original.finished_at)
    assert (await ask(connect, shared, "length(rows)")).is_error


@pytest.mark.databases("executions.asking")
async def test_what_was_too_large_to_keep_is_told_with_the_answer(connect, make):
    cut = [{"payload": "content", "bytes": 12_345}]
    found = (await ask(connect, await make(output=[1], cut=cut), "@")).structured_content
    assert found["answer"] == [1] and "12,345 bytes" in found["missing"]


async def test_until_a_run_has_completed_a_question_gets_its_state(connect, token):
    running = await in_database(lambda: owned(make_workflow(), state=State.RUNNING))()
    assert (await ask(connect, running, "@")).structured_content["state"] == "running"


def test_the_argument_costs_few_tokens():
    tool = BUILT_IN_TOOLS["get_execution_status"]
    without = replace(tool, properties={key: one for key, one in tool.properties.items() if key != "query"})
    whole, before = (len(serialise_tool(one.tool, "2026-07-28")) for one in (tool, without))
    assert tokens_for(whole - before) < 60
