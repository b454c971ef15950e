"""What people paste into the configuration of their MCP client."""

import json
from collections.abc import Mapping

from mcp_bridge.tokens import resource_url

SERVER_NAME = "workflow-catalogue"


def http_client_configuration(token: str) -> str:
    """For clients that speak Streamable HTTP."""
    headers = {"Authorization": f"Bearer {token}"}
    return _configuration({"type": "http", "url": resource_url(), "headers": headers})


def stdio_client_configuration(python: str, manage: str, *, variables: Mapping[str, str]) -> str:
    """For clients that start their servers themselves: the interpreter and `manage.py`, as absolute paths.

    `variables` are those of the environment that the client has to set.
    """
    server: dict[str, object] = {"command": python, "args": [manage, "mcp_stdio"]}
    return _configuration(server | ({"env": dict(variables)} if variables else {}))


def _configuration(server: Mapping[str, object]) -> str:
    return json.dumps({"mcpServers": {SERVER_NAME: server}}, indent=2)
