"""The product's MCP door as clients find it: a real server on a real port."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import httpx2
import pytest
import uvicorn
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from catalogue.curation import enable_workflows
from catalogue.discovery import refresh_source
from catalogue.models import Source, Workflow
from mcp_bridge.tokens import create_token
from tests.factories import make_source
from tests.processes import ExampleEngine, running_example_engine

Connect = Callable[..., AbstractAsyncContextManager[Client]]


@dataclass(frozen=True)
class McpServer:
    """The ASGI application behind a port."""

    base_url: str

    @property
    def url(self) -> str:
        return f"{self.base_url}/mcp"

    def post(self, body: Any = None, *, token: str = "", **options: Any) -> httpx.Response:
        """A request by hand, for what no well-behaved client sends."""
        headers = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
        headers |= {"authorization": f"Bearer {token}"} if token else {}
        headers |= options.pop("headers", {})
        content = {"json": body} if body is not None else {}
        return httpx.post(self.url, headers=headers, trust_env=False, timeout=20, **content, **options)


@pytest.fixture(scope="session")
def mcp_server() -> Iterator[McpServer]:
    from config.asgi import build_application

    config = uvicorn.Config(build_application(), host="127.0.0.1", port=0, log_config=None, lifespan="on")
    server = uvicorn.Server(config)
    started = threading.Event()
    original_startup = server.startup

    async def startup(sockets: Any = None) -> None:
        await original_startup(sockets)
        started.set()

    server.startup = startup  # type: ignore[method-assign]
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    assert started.wait(20), "the server did not start"
    port = server.servers[0].sockets[0].getsockname()[1]
    yield McpServer(f"http://127.0.0.1:{port}")
    server.should_exit = True
    thread.join(20)


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExampleEngine]:
    with running_example_engine(tmp_path_factory.mktemp("engine")) as running:
        yield running


@pytest.fixture(autouse=True)
def _committed_rows(transactional_db: None) -> None:
    """The server reads on threads of its own, so rows have to be committed."""


@pytest.fixture
def source(engine: ExampleEngine) -> Source:
    """The example engine, discovered, with all its workflows enabled."""
    config = {"idempotency_header": "Idempotency-Key"}
    source = make_source("example", base_url=engine.base_url, api_key=engine.api_key, config=config)
    assert refresh_source(source).outcome == "succeeded"
    enable_workflows(Workflow.objects.filter(source=source))
    return source


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
    async def opened(*, as_token: str = token, mode: str = "2026-07-28") -> AsyncIterator[Client]:
        headers = {"authorization": f"Bearer {as_token}"}
        async with httpx2.AsyncClient(headers=headers, timeout=20, trust_env=False) as http_client:
            transport = streamable_http_client(mcp_server.url, http_client=http_client)
            async with Client(transport, mode=mode) as client:
                yield client

    return opened
