"""A second server on the tests' database, as a deployment has several."""

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from mcp.client.stdio import StdioServerParameters

from connectors.testing import free_port
from identity.tokens import METADATA_PATH
from tests.mcp_bridge.conftest import McpServer
from tests.processes import running, web_command


@dataclass(frozen=True)
class OtherProcess:
    server: McpServer
    process: subprocess.Popen[bytes]


@pytest.fixture
def other_process(
    request: pytest.FixtureRequest,
    stdio_server: StdioServerParameters,
    tmp_path: Path,
    mcp_server: McpServer,
) -> Iterator[OtherProcess]:
    """Import this name into the test module that wants it. A parameter is its time for a graceful end."""
    port = free_port()
    server = McpServer(f"http://127.0.0.1:{port}")
    with running(
        web_command(port, graceful_seconds=getattr(request, "param", 2)),
        answers_at=f"{server.base_url}{METADATA_PATH}/mcp",
        log=tmp_path / "server.log",
        environment=stdio_server.env,
    ) as process:
        yield OtherProcess(server, process)
