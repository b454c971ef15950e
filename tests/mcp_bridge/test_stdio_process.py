"""The command on standard input and output as a process: what it writes where, and how it ends."""

import asyncio
import json
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from catalogue.models import Source, Workflow
from executions.models import Execution, State
from identity.client_configuration import McpClient, StdioServer
from mcp_bridge.builtin_tools import BUILT_IN_TOOLS
from tests.executions.engines import RUN_ID, Gate, wait_until
from tests.factories import make_toolset, make_workflow
from tests.mcp_bridge.database import in_database
from tests.mcp_bridge.piped import Piped, piped

Run = Callable[..., AbstractContextManager[Piped]]

CHATTY_ENGINE = """
import os, subprocess, warnings

print("chatty: was imported")

from connectors.simplified import SimplifiedConnector


class ChattyConnector(SimplifiedConnector):
    kind = "chatty"

    async def start(self, *args, **kwargs):
        print("chatty: starts")
        os.write(1, b"chatty: writes to the descriptor\\n")
        subprocess.run(["echo", "chatty: has a child"])
        warnings.warn("chatty: warns")
        return await super().start(*args, **kwargs)
"""


@pytest.fixture
def run(stdio_server: StdioServerParameters, tmp_path: Path) -> Run:
    """Runs the command with more variables in its environment: `with run(LOG_LEVEL="DEBUG") as process`."""
    return partial(piped, stdio_server, tmp_path / "stderr.log")


@pytest.fixture
def chatty_source(source: Source, tmp_path: Path) -> Path:
    """The example engine by a connector that prints; the folder has to be on the process's path."""
    package = tmp_path / "chatty_engine-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: chatty-engine\nVersion: 1.0\n")
    entry = "[workflow_catalogue.connectors]\nchatty = chatty_engine:ChattyConnector\n"
    (package / "entry_points.txt").write_text(entry)
    (tmp_path / "chatty_engine.py").write_text(CHATTY_ENGINE)
    Source.objects.filter(pk=source.pk).update(kind="chatty")
    return tmp_path


# What is written where


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_nothing_but_messages_is_written_to_standard_output(run, chatty_source, unbuffered):
    """E8: whatever Python, a connector or its child processes have to say goes to standard error."""
    environment = {"PYTHONPATH": str(chatty_source), "PYTHONWARNINGS": "always", "LOG_LEVEL": "DEBUG"}
    with run(PYTHONUNBUFFERED=unbuffered, **environment) as process:
        assert "result" in process.ask("tools/list")
        called = process.ask(
            "tools/call", number=2, name="text_statistics", arguments={"text": "Words, words."}
        )
        code = process.end()
    assert called["result"]["structuredContent"]["words"] == 2
    assert (code, [json.loads(line)["id"] for line in process.lines]) == (0, [1, 2])
    for said in ("was imported", "starts", "writes to the descriptor", "has a child", "warns"):
        assert f"chatty: {said}" in process.told


def test_a_crash_at_the_start_is_told_on_standard_error(run):
    """E8, B4: a client shows its user that, and reads nothing that it could take for a message."""
    with run(CATALOGUE_INLINE_WAIT="for ever") as process:
        assert process.end() != 0
    assert process.lines == []
    assert "CATALOGUE_INLINE_WAIT" in process.told


# How it ends


def closes_its_side(process: Piped) -> int:
    return process.end()


def ends_by(number: signal.Signals, process: Piped) -> int:
    process.process.send_signal(number)
    return process.process.wait(timeout=30)


ENDS = [
    pytest.param(closes_its_side, 0, id="stdin closed"),
    pytest.param(partial(ends_by, signal.SIGTERM), -signal.SIGTERM, id="SIGTERM"),
    pytest.param(partial(ends_by, signal.SIGINT), -signal.SIGINT, id="SIGINT"),
]


@pytest.mark.parametrize(("end", "code"), ENDS)
def test_it_ends_quietly(run, end, code):
    """E8: with the client or by a signal."""
    with run() as process:
        process.ask("tools/list")
        assert end(process) == code
    assert process.told == ""


def test_it_ends_quietly_when_the_client_never_says_a_word(run):
    """E8"""
    with run() as process:
        assert process.end() == 0
    assert (process.lines, process.told) == ([], "")


@pytest.mark.parametrize("how", ["stdin closed", "SIGTERM", "SIGINT"])
def test_a_start_that_is_under_way_comes_to_its_end_first(run, wire_engine, long_workflow, how):
    """E8, A7.1: otherwise only the engine would know what came of it."""
    wire_engine.on_start = gate = Gate(wire_engine.on_start)
    Workflow.objects.update(inline_wait_seconds=3600)
    with run() as process:
        process.send("tools/call", name="report", arguments={}, number=5)
        gate.wait_for_request()
        if how == "stdin closed":
            assert process.process.stdin
            process.process.stdin.close()
        else:
            process.process.send_signal(signal.Signals[how])
        # The call is given up by then, and the start is not.
        assert "error" in process.answer_to(5)
        gate.open()
        process.process.wait(timeout=30)
    execution = Execution.objects.get()
    assert (execution.state, execution.lease_holder) == (State.RUNNING, "")
    assert execution.run_id == RUN_ID


@pytest.mark.parametrize(("end", "code"), ENDS)
def test_a_run_goes_on_when_the_client_ends_in_mid_call(run, wire_engine, long_workflow, end, code):
    """E8, A7.1: nothing is lost; a worker can take it up at once."""
    Workflow.objects.update(inline_wait_seconds=3600)
    with run() as process:
        process.send("tools/call", name="report", arguments={})
        wait_until(lambda: Execution.objects.filter(state=State.RUNNING).exists(), "the run has begun")
        assert end(process) == code
    assert "Traceback" not in process.told
    execution = Execution.objects.get()
    assert (execution.state, execution.lease_holder) == (State.RUNNING, "")
    assert wire_engine.count("cancel") == 0


def test_a_run_is_cancelled_with_the_client_where_its_workflow_says_so(run, wire_engine, long_workflow):
    """E8, A7.5"""
    Workflow.objects.update(inline_wait_seconds=3600, on_disconnect=Workflow.OnDisconnect.CANCEL)
    with run() as process:
        process.send("tools/call", name="report", arguments={})
        wait_until(lambda: Execution.objects.filter(state=State.RUNNING).exists(), "the run has begun")
        assert process.end() == 0
    assert wire_engine.count("cancel") == 1
    execution = Execution.objects.get()
    assert execution.cancel_requested_at is not None and execution.lease_holder == ""


def test_a_client_that_is_gone_altogether_is_no_error(run, wire_engine, long_workflow):
    """E8: it was killed, so that nobody reads the answers either."""
    Workflow.objects.update(inline_wait_seconds=3600)
    with run() as process:
        process.send("tools/call", name="report", arguments={})
        wait_until(lambda: Execution.objects.filter(state=State.RUNNING).exists(), "the run has begun")
        assert process.process.stdin and process.process.stdout
        process.process.stdout.close()
        process.process.stdin.close()
        assert process.process.wait(timeout=30) == 0
    assert "Traceback" not in process.told
    assert Execution.objects.get().lease_holder == ""


# Official clients that start it


async def test_a_desktop_client_lists_and_calls_over_stdio(stdio_server, source, era):
    """E8: both eras; what it runs is recorded under the local user."""
    async with Client(stdio_server, mode=era) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        result = await client.call_tool("text_statistics", {"text": "Over a pipe."})
    assert "text_statistics" in names
    assert result.structured_content["words"] == 3
    execution = await in_database(Execution.objects.get)()
    assert execution.caller.startswith("local:")


async def test_two_desktop_clients_at_once_share_one_catalogue(stdio_server, source):
    """E7, E8: two processes, also on SQLite, and neither waits for the other to end."""
    async with Client(stdio_server) as one, Client(stdio_server) as other:
        calls = [
            client.call_tool("text_statistics", {"text": "word " * number})
            for number in range(1, 6)
            for client in (one, other)
        ]
        results = await asyncio.gather(*calls)
    assert [result.structured_content["words"] for result in results] == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert await in_database(Execution.objects.count)() == 10


async def test_the_configuration_that_people_paste_works_from_anywhere(stdio_server, source, tmp_path):
    """E8: desktop clients start it in a folder of theirs, with hardly any environment."""
    environment = stdio_server.env or {}
    variables = {name: environment[name] for name in ("DATABASE_URL", "CATALOGUE_DATA_DIR")}
    pasted = json.loads(
        StdioServer(python=stdio_server.command, manage=stdio_server.args[0], variables=variables).configure(
            McpClient.GENERIC
        )
    )
    (server,) = pasted["mcpServers"].values()
    async with Client(StdioServerParameters(**server, cwd=tmp_path)) as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
    usual = {
        name for name, tool in BUILT_IN_TOOLS.items() if tool.takes_part_in is None and not tool.app_only
    }
    assert usual | {"text_statistics"} <= names


async def test_an_option_chooses_the_toolset(stdio_server):
    """E8: the command serves what the toolset's address does."""
    await in_database(make_workflow)(name="a")
    await in_database(make_workflow)(name="b")
    await in_database(make_toolset)("part", rules=["a"])
    server = stdio_server.model_copy(update={"args": [*stdio_server.args, "--toolset", "part"]})
    async with Client(server) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
    assert "a" in names and "b" not in names
