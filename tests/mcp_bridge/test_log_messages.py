"""What an MCP server logs during a call reaches the client that called and asked for it, and no other."""

import sys
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from mcp import Client, MCPDeprecationWarning

from catalogue.curation import enable_workflows
from catalogue.discovery import refresh_source
from catalogue.models import Source, Workflow
from connectors.protocol import LogMessage, RunCaller
from connectors.testing import free_port
from connectors.upstream_mcp.run_callers import CALL, CallLogs
from executions import advancing
from executions.models import Execution
from mcp_bridge.models import ClientLogLevel
from mcp_bridge.tokens import create_token
from tests.executions.engines import until, wait_until
from tests.mcp_bridge.conftest import Connect
from tests.mcp_bridge.database import in_database
from tests.mcp_bridge.test_tasks import modern
from tests.processes import _wait_until_it_answers, guarded

pytestmark = pytest.mark.databases("mcp_bridge.log_messages", "executions.run_callers")
SECRET = "s3cr3t-of-the-source"


@pytest.fixture(scope="module", params=["2025", "2026"])
def narrating_server(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[str]:
    log, port = tmp_path_factory.mktemp("narrating") / "log", free_port()
    command = [sys.executable, "-m", "tests.engines.narrating_server", f"--port={port}"]
    with guarded([*command, f"--era={request.param}"], log=log) as process:
        _wait_until_it_answers(process, f"http://127.0.0.1:{port}/healthz", log)
        yield f"http://127.0.0.1:{port}/mcp"


@pytest.fixture
def narrator(narrating_server: str) -> Iterator[None]:
    source = Source(name="narrator", kind="mcp", config={"url": narrating_server})
    source.credentials = {"bearer_token": SECRET}
    source.save()
    assert refresh_source(source).outcome == "succeeded"
    enable_workflows(Workflow.objects.filter(source=source))
    yield
    wait_until(lambda: not advancing._under_way, "the steps under way come to their end")


@asynccontextmanager
async def hearing(
    open_client: Connect, era: str, level: Any, **options: Any
) -> AsyncIterator[tuple[Client, list[Any]]]:
    """A client that asks for log messages as its era does, and those that it gets."""
    heard: list[Any] = []

    async def hear(params: Any) -> None:
        heard.append(params)

    wanted = {"log_level": level} if era != "legacy" and level else {}
    async with open_client(mode=era, logging_callback=hear, **wanted, **options) as client:
        if era == "legacy" and level:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", MCPDeprecationWarning)
                await client.set_logging_level(level)
        yield client, heard


def told(heard: list[Any]) -> list[Any]:
    return [(params.level, params.data) for params in heard]


@pytest.mark.usefixtures("narrator")
async def test_a_client_gets_the_messages_from_the_level_on_that_it_asked_for(open_client, era):
    thought, said = ("debug", "Ada thinks"), ("error", {"who": "Ada", "said": "yes"})
    for level, expected in (("error", [said]), ("debug", [thought, said]), ("warning", [said])):
        async with hearing(open_client, era, level) as (client, heard):
            result = await client.call_tool("narrate", {"who": "Ada", "said": "yes"})
        assert result.content[0].text == "done"
        assert told(heard) == expected
        assert {params.logger for params in heard} == {"narrator"}


def test_a_caller_keeps_a_bounded_number_of_levels(mcp_server, token):
    """Each program that it names itself after had a row of its own for a week."""
    other = create_token(name="other")[1]

    def ask(token: str, agent: str, level: str) -> None:
        body = {"jsonrpc": "2.0", "id": 1, "method": "logging/setLevel", "params": {"level": level}}
        answer = mcp_server.post(body, token=token, headers={"user-agent": agent})
        assert answer.status_code == 200 and '"result":{}' in answer.text, answer.text

    ask(other, "desk", "error")
    ask(token, "desk", "alert")
    for number in range(50):
        ask(token, f"desk/{number}", "debug")
    levels = list(ClientLogLevel.objects.values_list("level", flat=True))
    assert sorted(levels) == ["debug"] * 20 + ["error"]


@pytest.mark.usefixtures("narrator")
async def test_a_client_that_asked_for_none_gets_none(open_client, era):
    async with hearing(open_client, era, None) as (client, heard):
        await client.call_tool("narrate", {"who": "Ada"})
    assert heard == []


@pytest.mark.usefixtures("narrator")
async def test_clients_on_one_session_of_the_server_get_only_their_own(connect, era):
    got: dict[str, list[Any]] = {}

    async def call(who: str, level: str | None) -> None:
        # Clients without sessions are told apart by what they call themselves.
        async with hearing(connect, era, level) as (client, heard):
            await client.call_tool("narrate", {"who": who, "together": 3})
            got[who] = told(heard)

    async with anyio.create_task_group() as tasks:
        for who in ("Ada", "Bob", "Cyd"):
            tasks.start_soon(call, who, "debug")
    assert got == {
        who: [("debug", f"{who} thinks"), ("error", {"who": who, "said": ""})]
        for who in ("Ada", "Bob", "Cyd")
    }


@pytest.mark.usefixtures("narrator")
async def test_a_flood_of_messages_is_bounded_and_costs_no_call(connect, era):
    async with hearing(connect, era, "info") as (client, heard):
        result = await client.call_tool("chatter", {"messages": 3_000})
        assert result.content[0].text == "done"
        assert heard[0].data == "message 0"
        assert len(heard) < 400
        heard.clear()
        await client.call_tool("recite", {})
    assert len(heard[0].data) <= 5_001


@pytest.mark.usefixtures("narrator")
async def test_the_sources_secrets_are_masked(connect, era):
    async with hearing(connect, era, "info") as (client, heard):
        await client.call_tool("narrate", {"who": "Ada", "said": f"It is {SECRET}."})
    assert len(heard) == 1
    assert SECRET not in str(heard[0].data)


@pytest.mark.usefixtures("narrator")
async def test_a_run_goes_on_whose_client_left_while_it_logs(connect, era, mcp_server, token):
    async with hearing(connect, era, "debug") as (client, heard):
        with anyio.move_on_after(30) as leaving:

            async def leave() -> None:
                while not heard:  # noqa: ASYNC110 - as clients do
                    await anyio.sleep(0.02)
                leaving.cancel()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(leave)
                await client.call_tool("narrate", {"who": "Ada", "together": 2})
    body, headers = modern("tools/call", name="narrate", arguments={"who": "Bob", "together": 2})
    await in_database(lambda: mcp_server.post(body, token=token, headers=headers))()
    await until(lambda: Execution.objects.filter(state="completed").count() == 2, "both runs end")


def a_caller(key: str, got: list[LogMessage], level: str = "info") -> RunCaller:
    async def ask(requests: Any) -> Any:
        return {}

    return RunCaller(capabilities={}, ask=ask, key=key, log_level=level, log=got.append)


def test_a_message_that_names_no_call_is_passed_on_only_where_it_can_be_no_other_callers():
    """As over stdio."""
    logs, message = CallLogs(), {"level": "info", "data": "x"}
    adas: list[LogMessage] = []
    with logs.during("tools/list", "", None), logs.during("tools/call", "call-1", a_caller("ada", adas)):
        logs.pass_on(message)
        assert not adas, "the list may have caused it"
        logs.pass_on(message | {"_meta": {CALL: "call-1"}})
        assert len(adas) == 1
    with logs.during("tools/call", "call-2", a_caller("ada", adas)):
        logs.pass_on(message)
        logs.pass_on(message | {"_meta": {CALL: "call-1"}})
        logs.pass_on(message | {"level": "debug"})
        logs.pass_on(message | {"level": ["info"]})
        assert len(adas) == 2
    with logs.during("tools/call", "call-3", a_caller("bob", [])):
        pass
    with logs.during("tools/call", "call-4", a_caller("ada", adas)):
        logs.pass_on(message)
        assert len(adas) == 2, "Bob's call may log after its end"
