"""What people paste into the configuration of their MCP client."""

import json
from collections.abc import Mapping

from mcp_bridge.tokens import resource_url

SERVER_NAME = "workflow-catalogue"


def http_client_configuration(token: str, *, toolset: str | None = None) -> str:
    """For clients that speak Streamable HTTP; `toolset` is the slug of the one to connect to."""
    headers = {"Authorization": f"Bearer {token}"}
    return _configuration({"type": "http", "url": resource_url(toolset), "headers": headers}, toolset)


def stdio_client_configuration(
    python: str, manage: str, *, variables: Mapping[str, str], toolset: str | None = None
) -> str:
    """For clients that start their servers themselves: the interpreter and `manage.py`, as absolute paths.

    `variables` are those of the environment that the client has to set.
    """
    arguments = [manage, "mcp_stdio", *(["--toolset", toolset] if toolset else [])]
    server: dict[str, object] = {"command": python, "args": arguments}
    return _configuration(server | ({"env": dict(variables)} if variables else {}), toolset)


def _configuration(server: Mapping[str, object], toolset: str | None) -> str:
    # A client may have several toolsets, each under a name of its own.
    name = f"{SERVER_NAME}-{toolset}" if toolset else SERVER_NAME
    return json.dumps({"mcpServers": {name: server}}, indent=2)
