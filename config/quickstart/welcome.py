"""What the first start adds to an empty catalogue, and what every start tells its user."""

import json
import secrets
from dataclasses import dataclass
from pathlib import Path

from django.contrib.auth import get_user_model
from loguru import logger

from catalogue.discovery import RefreshRefused, refresh_source
from catalogue.exposure import load_exposed_catalogue
from catalogue.models import DiscoveryRun, Source
from catalogue.secrets import CredentialsUnreadable
from catalogue.sources import configure_source, create_source
from config.private_files import write_secret
from config.quickstart.place import ExampleEngine
from mcp_bridge.client_configuration import TOKEN_HERE, HttpServer, McpClient
from mcp_bridge.models import AccessToken
from mcp_bridge.tokens import create_token

SOURCE_NAME = "example-engine"
TOKEN_NAME = "quickstart"  # noqa: S105 - what it is called
ADMIN_NAME = "admin"


@dataclass(frozen=True, kw_only=True, slots=True)
class Welcome:
    """What the banner shows."""

    address: str
    """Base URL without a trailing slash."""
    password: str | None
    """Of the admin; only known to the start that made it."""
    token: str | None
    """For MCP and REST; None when it is not ours to show any more."""
    tools: int


def is_first_start() -> bool:
    """The admin is made last, so a first start that was interrupted is begun again."""
    return not get_user_model().objects.filter(is_superuser=True).exists()


def connect_engine(engine: ExampleEngine, *, before: ExampleEngine | None, first: bool) -> None:
    """Add the example engine at the first start; later only follow it to another port."""
    source = Source.objects.filter(name=SOURCE_NAME).first()
    if source is None and first:
        _add_source(engine)
    elif source is not None and _is_ours(source, before):
        _follow(source, engine)


def make_admin() -> str:
    """The new admin's password, which nothing keeps."""
    password = secrets.token_urlsafe(12)
    get_user_model().objects.create_superuser(username=ADMIN_NAME, email="", password=password)
    return password


def quickstart_token(data_dir: Path, *, first: bool) -> str | None:
    """The token that the first start made. It is kept in a file so that later starts can show it again."""
    path = data_dir / "quickstart-token"
    known = AccessToken.objects.filter(name=TOKEN_NAME).first()
    if known is None and first:
        _, token = create_token(name=TOKEN_NAME)
        write_secret(path, token)
        return token
    token = path.read_text(encoding="utf-8").strip() if path.exists() else ""
    usable = known is not None and AccessToken.objects.usable().filter(pk=known.pk).exists()
    return token if usable and known is not None and token.startswith(known.prefix) else None


def count_tools() -> int:
    """The workflows that agents see."""
    return len(load_exposed_catalogue().workflows)


def banner(welcome: Welcome) -> str:
    url = f"{welcome.address}/mcp"
    token = welcome.token or TOKEN_HERE
    server = HttpServer(token=token)
    shown_token = welcome.token or "make one: .venv/bin/python manage.py create_mcp_token NAME"
    if welcome.password:
        login = f"{ADMIN_NAME} / {welcome.password}   (shown only now: write it down)"
    else:
        login = f"{ADMIN_NAME} / unchanged; forgotten? .venv/bin/python manage.py changepassword {ADMIN_NAME}"
    return "\n".join(
        [
            "",
            "=" * 78,
            f"  Workflow Catalogue is up, with {welcome.tools} workflows as tools. Ctrl-C stops it.",
            "",
            f"  Admin   {welcome.address}/admin/",
            f"  Login   {login}",
            f"  REST    {welcome.address}/api/",
            f"  MCP     {url}",
            f"  Token   {shown_token}",
            "",
            "  Claude Code:",
            "",
            server.configure(McpClient.CLAUDE_CODE),
            "",
            "  Most other MCP clients:",
            "",
            server.configure(McpClient.GENERIC),
            "",
            "  For VS Code, Cursor and Claude Desktop, or without a token over stdio:",
            "  .venv/bin/python manage.py client_config [--stdio]",
            "",
            "  Or from another terminal:",
            "",
            f"curl -s {url} -H 'Authorization: Bearer {token}' \\",
            "  -H 'Content-Type: application/json' -H 'Accept: application/json, text/event-stream' \\",
            f"  -d '{json.dumps(_EXAMPLE_CALL)}'",
            "=" * 78,
            "",
        ]
    )


_EXAMPLE_CALL = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {"name": "text_statistics", "arguments": {"text": "Hello, catalogue."}},
}


def _add_source(engine: ExampleEngine) -> None:
    source = create_source(
        name=SOURCE_NAME,
        kind="simplified",
        config=_config(engine),
        credentials={"api_key": engine.api_key},
        # Enabled as they are found, whoever lists them first: this start or the worker.
        new_workflows=Source.NewWorkflows.EXPOSED,
    )
    try:
        run = refresh_source(source)
    except RefreshRefused:
        return
    if run.outcome == DiscoveryRun.Outcome.FAILED:
        logger.warning("The example engine could not be listed: {}", run.error)


def _is_ours(source: Source, before: ExampleEngine | None) -> bool:
    """Whether the source still points where the start before had put it."""
    return before is not None and source.config.get("base_url") == before.base_url


def _follow(source: Source, engine: ExampleEngine) -> None:
    config = source.config | {"base_url": engine.base_url}
    credentials = {"api_key": engine.api_key}
    try:
        unchanged = config == source.config and credentials == source.credentials
    except CredentialsUnreadable:
        unchanged = False
    if not unchanged:
        configure_source(source, config=config, credentials=credentials)


def _config(engine: ExampleEngine) -> dict[str, str]:
    return {"base_url": engine.base_url, "idempotency_header": "Idempotency-Key"}
