"""The protocol's own server for testing clients: it has a tool for each thing that a result can hold."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
from mcp import StdioServerParameters

from connectors.testing import free_port
from tests import plain_http
from tests.e2e.node_tools import FOLDER, PACKAGES
from tests.e2e.product import wait_until
from tests.processes import guarded

PROGRAM = PACKAGES / "@modelcontextprotocol" / "server-everything" / "dist" / "index.js"
LOOPBACK = FOLDER / "bind_loopback.cjs"
START_SECONDS = 20.0


@dataclass(frozen=True)
class Everything:
    """The server over HTTP, and how it is started over stdio."""

    url: str
    command: tuple[str, ...]
    """A process of it that speaks over its standard input and output."""

    @property
    def stdio(self) -> StdioServerParameters:
        program, *arguments = self.command
        return StdioServerParameters(command=program, args=arguments)


@pytest.fixture(scope="session")
def everything(node: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Everything]:
    port, log = free_port(), tmp_path_factory.mktemp("everything") / "server.log"
    url = f"http://127.0.0.1:{port}/mcp"
    command = [str(node), "--require", str(LOOPBACK), str(PROGRAM), "streamableHttp"]
    # Its tool get-env tells its whole environment.
    environment = {"PATH": os.environ["PATH"], "PORT": str(port), "TZ": "UTC"}
    with guarded(command, log=log, environment=environment):
        wait_until(lambda: _listens(url), START_SECONDS, log.read_text)
        yield Everything(url, (str(node), str(PROGRAM), "stdio"))


def _listens(url: str) -> bool:
    """It refuses what belongs to no session, which is answer enough."""
    try:
        return plain_http.get(url, timeout=2).status_code == 400
    except httpx2.TransportError:
        return False
