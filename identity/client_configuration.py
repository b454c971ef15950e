import base64
import json
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from django.conf import settings

from catalogue.portable_schemas import server_name
from identity.tokens import authorization_server, resource_url

TOKEN_HERE = "YOUR-TOKEN"  # noqa: S105 - stands for one
HOSTS_WITHOUT_TLS = ("localhost", "127.0.0.1")  # mcp-remote accepts plain HTTP to these


class McpClient(StrEnum):
    CLAUDE_CODE = "claude-code"
    CLAUDE_DESKTOP = "claude-desktop"
    VS_CODE = "vscode"
    CURSOR = "cursor"
    LM_STUDIO = "lmstudio"
    GENERIC = "generic"

    @property
    def label(self) -> str:
        return _TITLES[self][0]

    @property
    def place(self) -> str:
        return _TITLES[self][1]


_TITLES = {
    McpClient.CLAUDE_CODE: ("Claude Code", "run in a terminal"),
    McpClient.CLAUDE_DESKTOP: ("Claude Desktop", "claude_desktop_config.json, under Settings > Developer"),
    McpClient.VS_CODE: ("VS Code", ".vscode/mcp.json, or the user's mcp.json"),
    McpClient.CURSOR: ("Cursor", "~/.cursor/mcp.json"),
    McpClient.LM_STUDIO: ("LM Studio", "mcp.json, under Program > Install > Edit mcp.json"),
    McpClient.GENERIC: ("Other clients", "the file that lists their MCP servers"),
}


_INSTALLERS = {
    McpClient.CURSOR: "cursor://anysphere.cursor-deeplink/mcp/install",
    McpClient.LM_STUDIO: "lmstudio://add_mcp",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpServer:
    token: str | None = TOKEN_HERE  # None: the client signs its user in
    toolset: str | None = None

    def configure(self, client: McpClient) -> str:
        url = resource_url(self.toolset)
        authorization = None if self.token is None else f"Bearer {self.token}"
        server: dict[str, Any] = {"type": "http", "url": url}
        if authorization is not None:
            server["headers"] = {"Authorization": authorization}
        match client:
            case McpClient.CLAUDE_CODE:
                # Every shell supports double quotes.
                header = "" if authorization is None else f' --header "Authorization: {authorization}"'
                return f"claude mcp add --transport http {self._name} {url}{header}"
            case McpClient.CLAUDE_DESKTOP:
                return _document("mcpServers", self._name, _bridged(url, authorization))
            case McpClient.VS_CODE:
                return _document("servers", self._name, server)
            case McpClient.CURSOR | McpClient.LM_STUDIO:
                del server["type"]
        return _document("mcpServers", self._name, server)

    def install_link(self, client: McpClient) -> str:
        """Returns the address with which the client offers to add the server, without the token: addresses
        stay in histories and logs. Empty for clients without one."""
        server = {"url": resource_url(self.toolset)}
        match client:
            case McpClient.VS_CODE:
                described = {"name": self._name, "type": "http", **server}
                return f"vscode:mcp/install?{quote(json.dumps(described))}"
            case McpClient.CURSOR | McpClient.LM_STUDIO:
                config = base64.b64encode(json.dumps(server).encode()).decode()
                return f"{_INSTALLERS[client]}?{urlencode({'name': self._name, 'config': config})}"
        return ""

    @property
    def _name(self) -> str:
        return server_name(self.toolset)


def _variables() -> dict[str, str]:
    """Clients start the server without this environment, and so with the default data folder."""
    folder = settings.DATA_DIR.absolute()
    return {} if folder == settings.DEFAULT_DATA_DIR else {"CATALOGUE_DATA_DIR": str(folder)}


@dataclass(frozen=True, kw_only=True, slots=True)
class StdioServer:
    toolset: str | None = None
    python: str = sys.executable
    manage: str = field(default_factory=lambda: str(settings.BASE_DIR / "manage.py"))
    variables: Mapping[str, str] = field(default_factory=_variables)  # Of the environment, set by the client

    def configure(self, client: McpClient) -> str:
        name = server_name(self.toolset)
        arguments = [self.manage, "mcp_stdio", *(["--toolset", self.toolset] if self.toolset else [])]
        if client == McpClient.CLAUDE_CODE:
            # Each option takes all words up to the next one, so the name comes first.
            options = [word for pair in self.variables.items() for word in ("--env", "=".join(pair))]
            added = ["claude", "mcp", "add", "--transport", "stdio", name, *options]
            return shlex.join([*added, "--", self.python, *arguments])
        server: dict[str, Any] = {"command": self.python, "args": arguments}
        server |= {"env": dict(self.variables)} if self.variables else {}
        if client == McpClient.VS_CODE:
            return _document("servers", name, {"type": "stdio"} | server)
        return _document("mcpServers", name, server)


def server_for_users(toolset: str | None) -> HttpServer:
    """Omits the token where clients can sign their users in."""
    return HttpServer(token=TOKEN_HERE if authorization_server() is None else None, toolset=toolset)


class Configuration(NamedTuple):
    client: McpClient
    text: str
    install_link: str  # Empty if the client has none


def configurations_of(server: HttpServer | StdioServer) -> list[Configuration]:
    link = server.install_link if isinstance(server, HttpServer) else lambda _: ""
    return [Configuration(client, server.configure(client), link(client)) for client in McpClient]


def _bridged(url: str, authorization: str | None) -> dict[str, Any]:
    """Uses mcp-remote, for clients that can only start servers."""
    parts = urlsplit(url)
    is_plain = parts.scheme == "http" and parts.hostname not in HOSTS_WITHOUT_TLS
    options = ["--transport", "http-only", *(["--allow-http"] if is_plain else [])]
    if authorization is None:
        return {"command": "npx", "args": ["-y", "mcp-remote", url, *options]}
    # Some versions break arguments with spaces, so the header's value is in the environment.
    return {
        "command": "npx",
        "args": ["-y", "mcp-remote", url, "--header", "Authorization:${AUTHORIZATION}", *options],
        "env": {"AUTHORIZATION": authorization},
    }


def _document(key: str, name: str, server: Mapping[str, object]) -> str:
    return json.dumps({key: {name: server}}, indent=2)
