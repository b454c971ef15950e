"""The contract for MCP servers whose tools are workflows: HTTP in both eras, stdio, tasks (B10)."""

import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from connectors.errors import OutcomeUnknown
from connectors.network.policy import StdioCommand, allow_stdio_commands
from connectors.protocol import Connector, RunState, WorkflowRef
from connectors.testing import (
    BROKEN_OFF,
    GARBAGE,
    Asked,
    ConnectorContract,
    EngineHarness,
    Sample,
    ask,
    closing,
    http_answer,
    start,
)
from connectors.upstream_mcp.config import McpConfig
from connectors.upstream_mcp.connector import McpConnector
from tests.engines.many_tools import KEY, ManyToolsServer, command, running_many_tools
from tests.engines.mute_mcp import answer_after_handshake, serving_mute_server

WRONG_KEY = "wrong-key-fedcba9876543210"
RESULTS = {"null as a result": b"null", "a number as a result": b"7", "a list as a result": b"[]"}
"""Garbage within the protocol."""
NO_JSON = {"a web page", "nothing", "JSON cut in half", "10,000 lists in one another", BROKEN_OFF}


def tool(name: str) -> WorkflowRef:
    return WorkflowRef(id=name, name=name)


class HttpHarness(EngineHarness):
    """A server that speaks only the era with sessions."""

    era = "2025"
    garbage = GARBAGE | RESULTS
    completing = Sample(tool("say"), {"sentence": "The kettle boils."})
    output = "The kettle boils."
    failing = Sample(tool("burn"), {})
    failure = "The tea went cold."
    lasting = Sample(tool("last"), {"seconds": 600})

    def __init__(self, server: ManyToolsServer) -> None:
        self.server = server
        self.secrets = frozenset({KEY, WRONG_KEY})

    def connector(self) -> Connector:
        return self._connector(self.server.url, KEY, 10.0)

    def connector_with_wrong_credentials(self) -> Connector:
        return self._connector(self.server.url, WRONG_KEY, 10.0)

    def connector_at(self, port: int) -> Connector:
        return self._connector(f"http://127.0.0.1:{port}/mcp", KEY, 10.0)

    @asynccontextmanager
    async def connector_without_answers(self) -> AsyncIterator[Connector]:
        """The conversation begins as it should, so that the start does reach the server."""
        with serving_mute_server(self.era) as url:
            async with closing(self._connector(url, KEY, 0.2)) as connector:
                yield connector

    def garbled(self, asked: Asked, garbage: bytes) -> bytes:
        """Only after the handshake, so that the call of the tool does reach the garbage."""
        if garbage in RESULTS.values():
            message = {"jsonrpc": "2.0", "id": json.loads(asked.body or b"{}").get("id")}
            garbage = http_answer(json.dumps(message | {"result": json.loads(garbage)}).encode())
        return answer_after_handshake(asked, garbage, era=self.era)

    def runs_started_with(self, key: UUID) -> int:
        raise AssertionError("nothing is promised of keys")

    def starts_broken_off(self) -> int:
        return self.server.count("cancelled", "last")

    def _connector(self, url: str, key: str, seconds: float) -> Connector:
        return _connector(
            url=url, bearer_token=key, request_timeout_seconds=seconds, call_timeout_seconds=seconds
        )


class ModernHttpHarness(HttpHarness):
    """A server that speaks only the stateless era."""

    era = "2026"


class TaskHarness(ModernHttpHarness):
    """Calls that the server answers with tasks of its own, which can be asked about."""

    completing = Sample(tool("research"), {"seconds": 0.1})
    output = "All is known."
    failing = Sample(tool("research-in-vain"), {})
    failure = "The oven was cold."
    lasting = Sample(tool("research"), {"seconds": 600})

    def starts_last(self, connector: Connector) -> bool:
        return False


class StdioHarness(HttpHarness):
    """A server that the connector itself starts."""

    # What such a server writes that is no MCP is in test_hostile_mcp_programs.py.
    garbage: dict[str, bytes] = {}

    def connector(self) -> Connector:
        return self._started("many-tools", KEY, 10.0)

    def connector_with_wrong_credentials(self) -> Connector:
        return self._started("many-tools", WRONG_KEY, 10.0)

    def connector_at(self, port: int) -> Connector:
        return self._started("nothing", KEY, 5.0)

    @asynccontextmanager
    async def connector_without_answers(self) -> AsyncIterator[Connector]:
        async with closing(self._started("mute", KEY, 2.0, silence=0.2)) as connector:
            yield connector

    def _started(self, name: str, key: str, seconds: float, silence: float = 10.0) -> Connector:
        return _connector(
            transport="stdio",
            command=name,
            secret_environment=f"MANY_TOOLS_KEY={key}",
            request_timeout_seconds=seconds,
            call_timeout_seconds=silence,
        )


def _connector(**settings: Any) -> Connector:
    return McpConnector(McpConfig(**settings))


@pytest.fixture(scope="module")
def mcp_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, ManyToolsServer]]:
    folder = tmp_path_factory.mktemp("many-tools")
    with (
        running_many_tools(folder / "2025", era="2025") as with_sessions,
        running_many_tools(folder / "2026", era="2026") as stateless,
    ):
        yield {"2025": with_sessions, "2026": stateless}


@pytest.fixture
def mcp_programs(tmp_path: Path) -> Iterator[ManyToolsServer]:
    """What the operator allows, for the length of a test."""
    server = ManyToolsServer(tmp_path)
    mute = [sys.executable, "-m", "tests.engines.mute_mcp"]
    own = {"environment": frozenset({"MANY_TOOLS_KEY"}), "directory": str(Path.cwd())}
    allow_stdio_commands(
        {
            "many-tools": StdioCommand(command=command(server.journal, "--stdio"), **own),
            "mute": StdioCommand(command=mute, **own),
            "nothing": StdioCommand(command=["false"], **own),
        }
    )
    yield server
    allow_stdio_commands({})


class TestMcpOverHttp(ConnectorContract):
    @pytest.fixture(params=[HttpHarness, ModernHttpHarness, TaskHarness])
    def harness(
        self, request: pytest.FixtureRequest, mcp_servers: dict[str, ManyToolsServer]
    ) -> EngineHarness:
        harness: EngineHarness = request.param(mcp_servers[request.param.era])
        return harness

    async def test_a_start_whose_answer_is_garbage_has_an_unknown_outcome(self, harness):
        """A7.2: unless it came whole and is JSON, which ends the call whatever it says."""
        async with aclosing(harness.connectors_with_garbage()) as answers:
            async for name, connector in answers:
                answer = await ask(name, start, connector, harness.completing)
                if name in NO_JSON:
                    assert isinstance(answer, OutcomeUnknown), f"start, answered with {name}: {answer!r}"
                else:
                    assert answer[0].snapshot.state is RunState.FAILED, name


class TestMcpOverStdio(ConnectorContract):
    @pytest.fixture
    def harness(self, mcp_programs: ManyToolsServer) -> EngineHarness:
        return StdioHarness(mcp_programs)
