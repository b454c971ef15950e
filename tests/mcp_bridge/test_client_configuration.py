"""What people paste into their client's configuration works as it is pasted."""

import io
import json
import shlex
import sys
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from mcp_bridge.client_configuration import HttpServer, McpClient, StdioServer
from mcp_bridge.tokens import create_token
from tests.factories import make_toolset

FILES = [client for client in McpClient if client != McpClient.CLAUDE_CODE]
"""Clients that are configured by a file."""


def configure(*options: str, client: McpClient | None = None) -> tuple[str, str]:
    """What the command prints, and what it says on standard error."""
    out, err = io.StringIO(), io.StringIO()
    chosen = ("--client", client) if client else ()
    call_command("client_config", *chosen, *options, stdout=out, stderr=err, no_color=True)
    return out.getvalue(), err.getvalue()


def server_in(text: str, client: McpClient, name: str = "workflow-catalogue") -> dict[str, Any]:
    """VS Code has a key of its own for the servers."""
    ((key, servers),) = json.loads(text).items()
    assert key == ("servers" if client == McpClient.VS_CODE else "mcpServers")
    server: dict[str, Any] = servers[name]
    return server


@pytest.mark.parametrize(
    ("client", "names"),
    [
        (McpClient.VS_CODE, {"type", "url", "headers"}),
        (McpClient.CURSOR, {"url", "headers"}),
        (McpClient.GENERIC, {"type", "url", "headers"}),
    ],
)
def test_an_http_configuration_names_the_endpoint_and_carries_the_token(client, names):
    """E8: in the form that the client takes."""
    server = server_in(HttpServer(token="wfc_abc").configure(client), client)
    assert server["url"].endswith("/mcp")
    assert server["headers"] == {"Authorization": "Bearer wfc_abc"}
    assert server.keys() == names and server.get("type", "http") == "http"


def test_claude_code_is_configured_by_a_command():
    """E8"""
    words = shlex.split(HttpServer(token="wfc_abc").configure(McpClient.CLAUDE_CODE))
    assert words[:5] == ["claude", "mcp", "add", "--transport", "http"]
    assert words[5] == "workflow-catalogue" and words[6].endswith("/mcp")
    assert words[7:] == ["--header", "Authorization: Bearer wfc_abc"]
    variables = {"CATALOGUE_DATA_DIR": "/our data"}
    stdio = StdioServer(python="/venv/python", manage="/app/manage.py", variables=variables)
    assert shlex.split(stdio.configure(McpClient.CLAUDE_CODE)) == [
        *("claude", "mcp", "add", "--transport", "stdio", "workflow-catalogue"),
        *("--env", "CATALOGUE_DATA_DIR=/our data", "--", "/venv/python", "/app/manage.py", "mcp_stdio"),
    ]


@pytest.mark.parametrize(
    ("address", "is_plain"),
    [("https://tools.example.com", False), ("http://localhost:8000", False), ("http://tools.internal", True)],
)
def test_claude_desktop_reaches_the_endpoint_by_a_bridge(settings, address, is_plain):
    """E8: its file knows only servers that it starts itself."""
    settings.PUBLIC_URL = address
    text = HttpServer(token="wfc_abc").configure(McpClient.CLAUDE_DESKTOP)
    server = server_in(text, McpClient.CLAUDE_DESKTOP)
    assert (server["command"], server["args"][:3]) == ("npx", ["-y", "mcp-remote", f"{address}/mcp"])
    assert "Authorization:${AUTHORIZATION}" in server["args"]
    assert server["env"] == {"AUTHORIZATION": "Bearer wfc_abc"}
    assert not any(" " in argument for argument in server["args"])
    assert ("--allow-http" in server["args"]) is is_plain


@pytest.mark.parametrize("client", FILES)
def test_a_stdio_configuration_finds_the_data_of_the_running_product(client):
    """E8: a desktop client starts the command without the environment that the product was started with."""
    variables = {"CATALOGUE_DATA_DIR": "/data"}
    stdio = StdioServer(python="/venv/python", manage="/app/manage.py", variables=variables)
    server = server_in(stdio.configure(client), client)
    assert (server["command"], server["args"]) == ("/venv/python", ["/app/manage.py", "mcp_stdio"])
    assert server["env"] == variables
    assert server.get("type") == ("stdio" if client == McpClient.VS_CODE else None)
    assert "env" not in server_in(StdioServer(variables={}).configure(client), client)


@pytest.mark.parametrize("client", FILES)
@pytest.mark.django_db
def test_a_toolset_has_an_address_and_a_name_of_its_own(client):
    """E8: several can stand in one client's configuration."""
    make_toolset("finance")
    name = "workflow-catalogue-finance"
    http = server_in(configure("--toolset", "finance", client=client)[0], client, name)
    assert "/mcp/finance" in json.dumps(http)
    stdio = server_in(configure("--stdio", "--toolset", "finance", client=client)[0], client, name)
    assert stdio["args"][1:] == ["mcp_stdio", "--toolset", "finance"]


@pytest.mark.django_db
def test_the_command_tells_every_client_what_to_paste_and_where():
    """E8"""
    told, noted = configure()
    for client in McpClient:
        text = HttpServer(token=None).configure(client)
        assert f"# {client.label} ({client}): {client.place}\n\n{text}\n" in told
    assert "signs you in through the browser" in noted and "YOUR-TOKEN" not in told and "Bearer" not in told
    local, _ = configure("--stdio")
    for client in McpClient:
        assert StdioServer().configure(client) in local
    assert sys.executable in local and "YOUR-TOKEN" not in local


@pytest.mark.parametrize("client", McpClient)
@pytest.mark.django_db
def test_where_no_client_can_sign_in_a_place_is_left_for_the_token(client, settings):
    """E8"""
    settings.CATALOGUE = settings.CATALOGUE | {"oauth_enabled": False}
    told, noted = configure(client=client)
    assert told.strip() == HttpServer().configure(client) and "YOUR-TOKEN" in told
    assert "Replace YOUR-TOKEN with an access token" in noted
    settings.CATALOGUE = settings.CATALOGUE | {"oauth_issuer": "https://login.example.com"}
    assert "YOUR-TOKEN" not in configure(client=client)[0]


@pytest.mark.django_db
def test_a_token_is_put_in_with_the_address_of_its_toolset(monkeypatch):
    """E8: the output of create_mcp_token may be piped in."""
    made = create_token(name="bound", toolset=make_toolset("finance"))[1]
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{made}\n"))
    told, noted = configure("--token", "-", client=McpClient.GENERIC)
    server = server_in(told, McpClient.GENERIC, "workflow-catalogue-finance")
    assert server["url"].endswith("/mcp/finance")
    assert (server["headers"], noted) == ({"Authorization": f"Bearer {made}"}, "")


@pytest.mark.django_db
def test_what_would_not_connect_is_not_printed():
    """E8"""
    make_toolset("other")
    token, bound = create_token(name="bound", toolset=make_toolset("finance"))
    for options, why in (
        (["--token", "wfc_unknown"], "This token is unknown"),
        (["--token", bound, "--toolset", "other"], "bound to the toolset finance"),
        (["--token", bound, "--stdio"], "does not take a token"),
        (["--toolset", "nothing"], "There is no toolset nothing"),
    ):
        with pytest.raises(CommandError, match=why):
            configure(*options)
    token.revoke()
    with pytest.raises(CommandError, match="This token is unknown"):
        configure("--token", bound)


@pytest.mark.django_db
def test_what_the_client_has_to_set_besides_is_named_but_no_secret_is_shown(monkeypatch, settings, tmp_path):
    """B8, E8"""
    settings.DATA_DIR = tmp_path
    monkeypatch.setenv("SECRET_KEY", "the-very-secret-key")
    monkeypatch.delenv("DATABASE_URL", raising=False)
    told, noted = configure("--stdio", client=McpClient.GENERIC)
    assert server_in(told, McpClient.GENERIC)["env"] == {"CATALOGUE_DATA_DIR": str(tmp_path)}
    assert "Add SECRET_KEY" in noted.replace("CELERY_BROKER_URL, ", "")
    assert "the-very-secret-key" not in told + noted
