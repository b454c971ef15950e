"""The contract for MCP servers that list workflows with a tool, run by tools or by an HTTP API (B10)."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any
from unittest.mock import ANY
from uuid import UUID

import pytest

from connectors.protocol import Connector, WorkflowRef
from connectors.testing import (
    BROKEN_OFF,
    GARBAGE,
    Asked,
    ConnectorContract,
    EngineHarness,
    Sample,
    advance_clock,
    closing,
    http_answer,
)
from connectors.upstream_mcp.config import McpConfig
from connectors.upstream_mcp.connector import LISTED, PREFIX, McpConnector
from connectors.upstream_mcp.tools import METADATA_KEY
from tests.engines.mute_mcp import answer_after_handshake
from tests.engines.workflow_server import CANCEL, START, STATUS, WorkflowServer, workflow
from tests.processes import ExampleEngine

KEY = "key-of-the-server-0123456789"
WRONG_KEY = "wrong-key-fedcba9876543210"


def listed(workflow_id: str, name: str) -> WorkflowRef:
    return WorkflowRef(id=PREFIX + workflow_id, name=name, metadata={METADATA_KEY: LISTED})


class ToolsHarness(EngineHarness):
    """The server's own tools run the workflows, know our key, and cancel."""

    completing = Sample(listed("quick", "Quick one"), {"message": "done"})
    output = {"said": "done"}
    # A tool answers with text whatever the bytes.
    garbage = {name: answer for name, answer in GARBAGE.items() if name != "bytes that are not text"}
    failing = Sample(listed("broken", "Broken one"), {})
    failure = "The oven was cold."
    lasting = Sample(listed("endless", "Endless one"), {"seconds": 600})
    settings: dict[str, Any] = {"cancel_tool": CANCEL, "idempotent_starts": True}

    def __init__(self, server: WorkflowServer, engine: ExampleEngine) -> None:
        self.server = server
        self.engine = engine
        self.secrets = frozenset({KEY, WRONG_KEY, engine.api_key})

    def connector(self) -> Connector:
        return self._connector(self.server.url, KEY, 10.0)

    def connector_with_wrong_credentials(self) -> Connector:
        return self._connector(self.server.url, WRONG_KEY, 10.0)

    def connector_at(self, port: int) -> Connector:
        return self._connector(f"http://127.0.0.1:{port}/mcp", KEY, 10.0)

    @asynccontextmanager
    async def connector_without_answers(self) -> AsyncIterator[Connector]:
        """The conversation begins as it should, so that the start does reach the server."""
        mute = WorkflowServer(key=KEY)
        mute.silent = {START, STATUS, CANCEL}
        mute.on_silence = partial(asyncio.get_running_loop().call_soon_threadsafe, advance_clock, 5.0)
        with mute.running():
            async with closing(self._connector(mute.url, KEY, 5.0)) as connector:
                await connector.check()
                yield connector

    def garbled(self, asked: Asked, garbage: bytes) -> bytes:
        """In the text that a tool answers with, after the handshake."""
        body = garbage.partition(b"\r\n\r\n")[2].decode("utf-8", "replace")
        result = {"content": [{"type": "text", "text": body}]}
        answer = json.dumps({"jsonrpc": "2.0", "id": _id_of(asked), "result": result}).encode()
        broken_off = garbage == self.garbage[BROKEN_OFF]
        return answer_after_handshake(asked, http_answer(answer, missing=100 * broken_off), era="2026")

    def runs_started_with(self, key: UUID) -> int:
        return self.server.runs_started_with(key)

    def _connector(self, url: str, key: str, seconds: float) -> Connector:
        return McpConnector(
            McpConfig(
                url=url,
                bearer_token=key,
                request_timeout_seconds=seconds,
                call_timeout_seconds=seconds,
                **self.settings,
            )
        )


class SparseToolsHarness(ToolsHarness):
    """The same server, configured as one that promises nothing, cannot cancel and offers nothing else."""

    settings = {"offer": "workflows"}


class ApiHarness(ToolsHarness):
    """The server only lists; the example engine runs what it lists."""

    completing = Sample(listed("1003", "countdown"), {"seconds": 0.05})
    output = {"seconds": 0.05, "started_at": ANY, "finished_at": ANY}
    failure = "The oven was cold."
    failing = Sample(listed("1003", "countdown"), {"seconds": 0, "fail": True, "message": failure})
    lasting = Sample(listed("1003", "countdown"), {"seconds": 600})

    def __init__(self, server: WorkflowServer, engine: ExampleEngine) -> None:
        super().__init__(server, engine)
        server.workflows = [workflow("1003", "countdown")]

    def connector_without_answers(self) -> AbstractAsyncContextManager[Connector]:
        return EngineHarness.connector_without_answers(self)

    def garbled(self, asked: Asked, garbage: bytes) -> bytes:
        """The API answers with it, and so does the server in place of a conversation."""
        return garbage

    def runs_started_with(self, key: UUID) -> int:
        return len(self.engine.runs(idempotency_key=str(key)))

    def _connector(self, url: str, key: str, seconds: float) -> Connector:
        right = key == KEY
        api = self.engine.base_url if url == self.server.url else url.removesuffix("/mcp")
        return McpConnector(
            McpConfig(
                url=url,
                bearer_token=key,
                request_timeout_seconds=seconds,
                rest_base_url=api,
                rest_api_key=self.engine.api_key if right else WRONG_KEY,
                rest_idempotency_header="Idempotency-Key",
            )
        )


def _id_of(asked: Asked) -> Any:
    return json.loads(asked.body or b"{}").get("id")


@pytest.fixture(scope="module")
def running_server() -> Iterator[WorkflowServer]:
    with WorkflowServer(key=KEY).running() as server:
        yield server


@pytest.fixture
def server(running_server: WorkflowServer) -> WorkflowServer:
    running_server.forget_everything()
    return running_server


class TestListedWorkflows(ConnectorContract):
    @pytest.fixture(params=[ToolsHarness, SparseToolsHarness, ApiHarness])
    def harness(
        self, request: pytest.FixtureRequest, server: WorkflowServer, example_engine: ExampleEngine
    ) -> EngineHarness:
        harness: EngineHarness = request.param(server, example_engine)
        return harness
