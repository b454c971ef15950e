"""MCP servers as engines: what their tools become, and what holds when they restart, flood or stay silent."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest
from pydantic import ValidationError

from connectors.definitions import WorkflowDefinition
from connectors.errors import ConnectorError, Misconfigured, OutcomeUnknown, Rejected, Unreachable
from connectors.network.policy import StdioCommand, allow_stdio_commands
from connectors.protocol import RunSnapshot, RunState, WorkflowRef, ignore_progress
from connectors.testing import free_port
from connectors.upstream_mcp.config import McpConfig
from connectors.upstream_mcp.connector import McpConnector
from telemetry.traces import continued
from tests.connectors.scripted import Received, ScriptedEngine, replies, response
from tests.engines.many_tools import KEY, ManyToolsServer, command, running_many_tools
from tests.processes import ROOT

VARIANTS = ("sessions", "stateless", "program")
PATIENCE_SECONDS = 10.0
Connect = Callable[..., AbstractAsyncContextManager[McpConnector]]


@pytest.fixture(scope="module")
def mcp_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, ManyToolsServer]]:
    folder = tmp_path_factory.mktemp("many-tools")
    with (
        running_many_tools(folder / "2025", era="2025") as sessions,
        running_many_tools(folder / "2026", era="2026") as stateless,
    ):
        yield {"sessions": sessions, "stateless": stateless}


@pytest.fixture
def allowed(tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Allows a command of this name, for the length of the test."""
    commands: dict[str, StdioCommand] = {}

    def allow(name: str, line: list[str], **more: Any) -> None:
        commands[name] = StdioCommand(command=line, **{"directory": str(ROOT)} | more)
        allow_stdio_commands(commands)

    allow("many-tools", command(tmp_path / "journal", "--stdio"), environment={"MANY_TOOLS_KEY"})
    yield allow
    allow_stdio_commands({})


@pytest.fixture(params=VARIANTS)
def connect(
    request: pytest.FixtureRequest, mcp_servers: dict[str, ManyToolsServer], allowed: Callable[..., None]
) -> Connect:
    """Connects to the same server in each of the ways in which servers are reached."""
    if request.param == "program":
        return lambda **settings: connected(transport="stdio", command="many-tools", **settings)
    url = mcp_servers[request.param].url
    return lambda **settings: connected(url=url, bearer_token=KEY, **settings)


@asynccontextmanager
async def connected(**settings: Any) -> AsyncIterator[McpConnector]:
    connector = McpConnector(McpConfig(**settings))
    try:
        yield connector
    finally:
        await connector.aclose()


async def call(
    connector: McpConnector, name: str, report: Any = ignore_progress, **arguments: Any
) -> RunSnapshot:
    """How a call of a tool ended."""
    started = await connector.start(WorkflowRef(id=name, name=name), arguments, key=uuid4(), report=report)
    assert started.snapshot is not None
    return started.snapshot


async def test_tools_of_all_pages_become_workflows_with_what_is_said_of_them(connect):
    """A1.1, A6.1, B10: schemas, hints and how to call it; a tool may go without a description."""
    async with connect() as connector:
        items = [item async for item in connector.discover()]
    found = {item.id: item for item in items if isinstance(item, WorkflowDefinition)}
    assert len(found) == len(items) == 13
    assert found["say"].title == "Say it"
    assert found["say"].input_schema["required"] == ["sentence"]
    assert found["say"].execution_type == "async"
    assert found["measure"].execution_type == "sync"
    assert found["measure"].output_schema["properties"] == {"letters": {"type": "integer"}}
    assert found["measure"].annotations == {"readOnlyHint": True}
    assert found["show"].description == "No description."


async def test_a_result_keeps_every_block_and_its_structure(connect):
    """A2.3: nothing of what the server answers is lost."""
    async with connect() as connector:
        shown, measured = await call(connector, "show"), await call(connector, "measure", sentence="tea")
    assert [block["type"] for block in shown.content or ()] == ["text", "image", "resource", "text"]
    assert shown.output == "One.\nTwo."
    assert measured.output == {"letters": 3}


async def test_structure_that_breaks_the_servers_own_schema_is_handed_on_as_it_is(connect):
    """A2.4: who promised the schema to our callers checks it; here no answer is lost for it."""
    async with connect() as connector:
        assert (await call(connector, "lie")).output == {"n": "many"}


async def test_many_calls_at_once_share_a_connection_and_each_gets_its_own_answer(connect):
    """A7.6: calls do not wait for each other."""
    async with connect() as connector:
        answers = await asyncio.gather(*(call(connector, "measure", sentence="x" * n) for n in range(60)))
    assert [answer.output["letters"] for answer in answers] == list(range(60))


async def test_a_flood_of_an_answer_costs_its_own_call_only(connect):
    """A7.6: the call beside it goes on and ends."""
    async with connect(max_response_bytes=100_000) as connector:
        beside = asyncio.create_task(call(connector, "last", seconds=1))
        with pytest.raises(OutcomeUnknown, match="larger than 100,000 bytes"):
            await call(connector, "pour")
        assert (await beside).output == "It has lasted."


async def test_progress_keeps_a_call_alive_and_silence_ends_it(connect):
    """A7.1, A7.2: a long call is not given up as long as the server says how far it is."""
    told: list[RunSnapshot] = []
    async with connect(call_timeout_seconds=0.8) as connector:
        assert (await call(connector, "last", told.append, seconds=1.2)).state is RunState.COMPLETED
        percents = [snapshot.progress for snapshot in told]
        assert percents == sorted(percents) and 0 < percents[-1] <= 100
        with pytest.raises(OutcomeUnknown, match=r"no response within 0\.8 s"):
            await call(connector, "sleep", seconds=30)


async def test_questions_of_the_server_are_declined_in_words(connect):
    """B10: a call without a caller that could answer them."""
    async with connect() as connector:
        try:
            declined = (await call(connector, "ask")).error
        except ConnectorError as error:
            declined = error.message
    assert "does not support sampling" in declined or "caller's client cannot provide" in declined


@pytest.mark.engines
@pytest.mark.parametrize("eras", [("2025", "2025"), ("2026", "2025"), ("2025", "2026")])
async def test_a_server_that_was_restarted_or_replaced_meanwhile_answers_the_next_call(tmp_path, eras):
    """A5.1: sessions are begun anew, whatever the server speaks now."""
    port = free_port()
    async with connected(url=f"http://127.0.0.1:{port}/mcp", bearer_token=KEY) as connector:
        for era in eras:
            with running_many_tools(tmp_path / "server", era=era, port=port):
                assert (await call(connector, "say", sentence="Hello.")).output == "Hello."
        with pytest.raises(Unreachable):
            await call(connector, "say", sentence="Hello?")


@pytest.mark.engines
@pytest.mark.parametrize("path", ["/mcp/", "/mcp", "/"])
async def test_server_and_token_url_are_asked_at_the_very_address_that_was_typed(tmp_path, path):
    """A5.1, E6: to a server that answers at one of them only, `/mcp` and `/mcp/` are two addresses."""

    async def give_one(received: Received, writer: asyncio.StreamWriter) -> None:
        token = {"access_token": KEY, "expires_in": 3600}
        writer.write(response(200, json.dumps(token)) if received.target == "/o/token/" else response(404))
        await writer.drain()

    async with ScriptedEngine(give_one) as issuer:
        oauth = {
            "oauth_url": f" {issuer.base_url}/o/token/ ",
            "oauth_client_id": "us",
            "oauth_client_secret": "pst",
        }
        with running_many_tools(tmp_path / "server", path=path) as server:
            async with connected(url=server.url, **oauth) as connector:
                assert (await call(connector, "say", sentence="Hello.")).output == "Hello."


@pytest.mark.parametrize("setting", ["url", "oauth_url"])
@pytest.mark.parametrize(
    ("address", "complaint"),
    [
        ("https://mcp.example.com/mcp/?key=hunter2", "before any"),
        ("https://mcp.example.com/mcp/#hunter2", "before any"),
        ("https://us:hunter2@mcp.example.com/mcp/", "user name or password"),
        ("mcp.example.com/mcp/", "http:// or https://"),
    ],
)
async def test_an_unusable_address_is_refused_without_quoting_it(setting, address, complaint):
    """B4, E6: a password or key in an address is not repeated."""
    settings = {"url": "https://mcp.example.com/mcp", setting: address}
    with pytest.raises(ValidationError, match=complaint) as caught:
        McpConfig(**settings)
    assert "hunter2" not in str(caught.value)


async def test_an_access_token_is_got_by_client_credentials_and_renewed_when_it_is_refused(mcp_servers):
    """E6: no token of ours has to be kept, and none shows."""
    tokens = iter(["outdated-token-0123456789", KEY])

    async def give_one(received: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(response(200, json.dumps({"access_token": next(tokens), "expires_in": 3600})))
        await writer.drain()

    async with ScriptedEngine(give_one) as issuer:
        oauth = {
            "oauth_url": f"{issuer.base_url}/token",
            "oauth_client_id": "us",
            "oauth_client_secret": "pst",
        }
        async with connected(url=mcp_servers["stateless"].url, **oauth) as connector:
            assert (await call(connector, "say", sentence="Hello.")).output == "Hello."
            assert KEY not in repr(vars(connector))
    assert len(issuer.received) == 2
    assert b"grant_type=client_credentials" in issuer.received[0].body


async def test_the_token_goes_into_the_header_that_the_server_wants():
    """A5.1: servers with API keys of their own are served, too."""
    async with ScriptedEngine(replies(403, {"error": "no"})) as engine:
        settings = {"authorization_header": "X-API-Key", "authorization_scheme": "", "bearer_token": "key-1"}
        async with connected(url=f"{engine.base_url}/mcp", **settings) as connector:
            with pytest.raises(Rejected, match="rejected the credentials"):
                await call(connector, "say")
    assert engine.received[0].headers["x-api-key"] == "key-1"
    assert "authorization" not in engine.received[0].headers


async def test_a_redirect_to_another_origin_is_not_followed():
    """E6: credentials are meant for the configured address only."""

    async def lead_astray(received: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(response(307, b"", location=f"{elsewhere.base_url}/mcp?secret=1"))
        await writer.drain()

    async with (
        ScriptedEngine(replies(200, {})) as elsewhere,
        ScriptedEngine(lead_astray) as engine,
        connected(url=f"{engine.base_url}/mcp", bearer_token=KEY) as connector,
    ):
        with pytest.raises(Misconfigured, match="which is not followed") as caught:
            await call(connector, "say")
    assert not elsewhere.received
    assert "secret=1" not in str(caught.value)


async def test_a_server_that_is_busy_says_when_to_come_back():
    """A7.2: nothing was started, so the call may be made again."""
    async with (
        ScriptedEngine(replies(503, {"error": "busy"}, retry_after="7")) as engine,
        connected(url=f"{engine.base_url}/mcp") as connector,
    ):
        with pytest.raises(Unreachable) as caught:
            await call(connector, "say")
    assert caught.value.retry_after == 7


async def test_a_cloud_metadata_address_is_not_contacted():
    """E6: the address policy holds for MCP servers as for other engines."""
    with pytest.raises(ValidationError, match="link-local"):
        McpConfig(url="http://169.254.169.254/mcp")


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"command": "rm"}, r"'rm' is not allowed.*CATALOGUE_STDIO_COMMANDS.*many-tools"),
        ({"command": "many-tools", "arguments": ["--port=1"]}, "takes no arguments.*more_arguments"),
        (
            {"command": "many-tools", "environment": ["NODE_OPTIONS=x"]},
            "no environment variable NODE_OPT",
        ),
    ],
)
async def test_only_what_the_operator_allows_can_be_started(allowed, settings, complaint):
    """E6, B4: whoever may edit sources may not start programs of their own."""
    with pytest.raises(Misconfigured, match=complaint):
        McpConnector(McpConfig(transport="stdio", **settings))


async def test_a_command_that_is_not_there_is_said_to_be_missing(allowed):
    """B5: a wrong setting is told apart from an engine that is down."""
    allowed("gone", ["/no/such/program"])
    async with connected(transport="stdio", command="gone") as connector:
        health = await connector.check()
    assert not health.ok
    assert "cannot be started: no such file or directory" in health.message


@pytest.mark.engines
async def test_a_program_gets_none_of_our_secrets_but_those_of_its_source(allowed, monkeypatch):
    """E6: what our own process knows stays there; an echo of the source's secret is masked."""
    monkeypatch.setenv("SECRET_KEY", "ours")
    monkeypatch.setenv("DATABASE_URL", "postgres://ours")
    settings = {"secret_environment": f"MANY_TOOLS_KEY={KEY}"}
    async with connected(transport="stdio", command="many-tools", **settings) as connector:
        told = json.loads((await call(connector, "environment")).output)
    assert told["MANY_TOOLS_KEY"] == "***"
    assert not {"SECRET_KEY", "DATABASE_URL"} & told.keys()


@pytest.mark.engines
async def test_what_a_program_started_ends_with_it(allowed, tmp_path):
    """B10: nothing is left of a source that was closed."""
    noted = tmp_path / "pid"
    script = 'sleep 600 & echo $! > "$0"; exec "$@"'
    allowed("family", ["sh", "-c", script, str(noted), *command(tmp_path / "journal", "--stdio")])
    async with connected(transport="stdio", command="family") as connector:
        assert (await connector.check()).ok
        child = psutil.Process(int(noted.read_text()))
    async with asyncio.timeout(PATIENCE_SECONDS):
        while child.is_running() and child.status() != psutil.STATUS_ZOMBIE:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@pytest.mark.engines
async def test_a_program_that_dies_is_started_again_and_one_that_always_does_is_given_time(allowed):
    """A5.1: a crash costs the call that it met, and a broken command no machine's time."""
    allowed("broken", [sys.executable, "-c", "import sys; sys.exit('No licence was found.')"])
    async with connected(transport="stdio", command="many-tools") as connector:
        with pytest.raises(OutcomeUnknown):
            await call(connector, "die")
        assert (await call(connector, "say", sentence="Hello.")).output == "Hello."
    async with connected(transport="stdio", command="broken") as connector:
        with pytest.raises(Unreachable, match="No licence was found"):
            await call(connector, "say")
        for _ in range(5):
            with pytest.raises(Unreachable) as caught:
                await call(connector, "say")
    assert caught.value.retry_after
    assert "times in a row" in caught.value.message


@pytest.mark.engines
async def test_sources_never_share_a_program(allowed):
    """E6: what one source tells its program, another one does not get to see."""
    settings = {"transport": "stdio", "command": "many-tools"}
    async with connected(**settings) as one, connected(**settings) as another:
        for connector in (one, another):
            assert (await connector.check()).ok
        mine = [child for child in psutil.Process(os.getpid()).children() if "--stdio" in child.cmdline()]
    assert len(mine) == 2


async def test_the_server_gets_the_trace_context_of_the_request_that_caused_the_call():
    """B9: in `_meta`, as MCP has it."""
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with ScriptedEngine(replies(403, {"error": "no"})) as engine:
        connector = McpConnector(McpConfig(url=f"{engine.base_url}/mcp"))
        with continued(traceparent=parent, identity="ticket-7"):
            await connector.check()
        await connector.aclose()
    (first, *_) = engine.received
    meta = json.loads(first.body)["params"].get("_meta", {})
    assert meta.get("traceparent") == parent
