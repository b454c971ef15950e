"""The product's MCP door as clients find it: a real server on a real port."""

import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp_types import Implementation

from catalogue import exposure
from catalogue.actions.workflows import enable_workflows
from catalogue.discovery import refresh_source
from catalogue.models import Source, Workflow
from connectors.protocol import Capabilities, Connector
from executions import advancing, change_feed
from executions.models import Execution
from executions.runner import follow, start
from executions.runner.engine_calls import capabilities_of
from identity.tokens import create_token
from mcp_bridge import notifications
from tests import plain_http
from tests.executions.engines import WORKFLOW_ID, WireEngine, running_wire_engine, wait_until
from tests.factories import make_source, make_workflow
from tests.mcp_bridge.pipes import over_pipes
from tests.mcp_bridge.serving import serving
from tests.processes import ROOT, ExampleEngine, database_url

Connect = Callable[..., AbstractAsyncContextManager[Client]]
DEFAULT_OPTIONS: dict[str, Any] = {"cache": None, "client_info": Implementation(name="agent", version="1.0")}
"""Named, since clients that are not may get their handles early."""


@dataclass(frozen=True)
class McpServer:
    """The ASGI application behind a port."""

    base_url: str

    @property
    def url(self) -> str:
        return f"{self.base_url}/mcp"

    def toolset_url(self, slug: str | None) -> str:
        return f"{self.url}/{slug}" if slug else self.url

    def get(self, path: str) -> httpx2.Response:
        return plain_http.get(f"{self.base_url}{path}", timeout=20)

    def post(
        self, body: Any = None, *, token: str = "", toolset: str | None = None, **options: Any
    ) -> httpx2.Response:
        """A request by hand, for what no well-behaved client sends."""
        headers = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
        headers |= {"authorization": f"Bearer {token}"} if token else {}
        headers |= options.pop("headers", {})
        content = {"json": body} if body is not None else {}
        url = self.toolset_url(toolset)
        return plain_http.post(url, headers=headers, timeout=20, **content, **options)


@pytest.fixture(scope="session")
def mcp_server() -> Iterator[McpServer]:
    from config.asgi import build_application

    with serving(build_application()) as base_url:
        yield McpServer(base_url)


@pytest.fixture(autouse=True)
def _committed_rows(transactional_db: None) -> None:
    """The server reads on threads of its own, so rows have to be committed."""


@pytest.fixture(autouse=True)
def quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines are polled ten times as often as usual, but not those that want to be polled less often."""

    def more_often(connector: Connector, execution: Execution) -> Capabilities:
        capabilities = capabilities_of(connector, execution)
        least = capabilities.min_poll_seconds
        return replace(capabilities, min_poll_seconds=0.1 if least <= 1 else least)

    monkeypatch.setattr(follow, "capabilities_of", more_often)
    monkeypatch.setattr(start, "FIRST_POLL", start.FIRST_POLL / 10)


QUICKER = 40


@pytest.fixture
def quick_news(monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes are looked for so many times as often as usual, and told as much sooner."""
    for module, name in (
        (exposure, "LOOK_SECONDS"),
        (exposure, "MAX_AGE_SECONDS"),
        (notifications, "SETTLING_SECONDS"),
        (notifications, "LOOK_SECONDS"),
        (change_feed, "LOOK_SECONDS"),
    ):
        monkeypatch.setattr(module, name, getattr(module, name) / QUICKER)


@pytest.fixture
def source(example_engine: ExampleEngine) -> Source:
    """The example engine, discovered, with all its workflows enabled."""
    config = {"idempotency_header": "Idempotency-Key"}
    source = make_source(
        "example", base_url=example_engine.base_url, api_key=example_engine.api_key, config=config
    )
    assert refresh_source(source).outcome == "succeeded"
    enable_workflows(Workflow.objects.filter(source=source))
    return source


@pytest.fixture
def wire_engine() -> Iterator[WireEngine]:
    """An engine whose every answer the test decides; at first its runs go on and on."""
    with running_wire_engine() as running:
        yield running
        # Steps go on when nobody waits for them; they must not meet the rows of the next test.
        wait_until(lambda: not advancing._under_way, "the steps under way come to their end")


@pytest.fixture
def long_workflow(wire_engine: WireEngine) -> Workflow:
    """`report` of the wire engine, which nobody waits for unless the test says so."""
    wire_source = make_source("wire", base_url=wire_engine.base_url)
    return make_workflow(wire_source, upstream_id=WORKFLOW_ID, name="report", inline_wait_seconds=0)


@pytest.fixture
def stdio_server(transactional_db: None) -> StdioServerParameters:
    """The command as a desktop client would be told to start it, on the tests' database."""
    environment = os.environ | {"DATABASE_URL": database_url()}
    return StdioServerParameters(
        command=sys.executable,
        args=[str(Path(ROOT, "manage.py")), "mcp_stdio"],
        env=environment,
        cwd=str(ROOT),
    )


@pytest.fixture
def token() -> str:
    return create_token(name="agent")[1]


@pytest.fixture(params=["2026-07-28", "legacy"])
def era(request: pytest.FixtureRequest) -> str:
    """Both eras of the protocol: without and with the handshake."""
    return str(request.param)


@pytest.fixture
def connect(mcp_server: McpServer, token: str) -> Connect:
    """Opens the official client: `async with connect() as client`."""

    @asynccontextmanager
    async def opened(
        *, as_token: str = token, mode: str = "2026-07-28", toolset: str | None = None, **options: Any
    ) -> AsyncIterator[Client]:
        headers = {"authorization": f"Bearer {as_token}"}
        async with plain_http.AsyncClient(headers=headers, timeout=20) as http_client:
            transport = streamable_http_client(mcp_server.toolset_url(toolset), http_client=http_client)
            async with Client(transport, mode=mode, **DEFAULT_OPTIONS | options) as client:
                yield client

    return opened


@pytest.fixture(params=["http", "stdio"])
def open_client(request: pytest.FixtureRequest, connect: Connect) -> Connect:
    """Opens the official client over either transport."""

    @asynccontextmanager
    async def over_stdio(*, mode: str, **options: Any) -> AsyncIterator[Client]:
        async with Client(over_pipes(), mode=mode, **DEFAULT_OPTIONS | options) as client:
            yield client

    return connect if request.param == "http" else over_stdio
