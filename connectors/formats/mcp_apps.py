"""What is kept of the metadata of MCP Apps: only what is known, since clients make addresses, permissions and
a Content-Security-Policy of it."""

import json
import re
from typing import Any

from connectors.formats.json import as_object

EXTENSION = "io.modelcontextprotocol/ui"
MIME_TYPE = "text/html;profile=mcp-app"
MIME_TYPES = (MIME_TYPE, "text/html+skybridge")  # The second: ChatGPT's own
SCHEME = "ui://"
ADDRESS = re.compile(r"ui://[A-Za-z0-9._~!$&+=:@/?%-]{1,450}")
FLAT_ADDRESS = "ui/resourceUri"  # The older form of `ui.resourceUri`
OPENAI_ADDRESS = "openai/outputTemplate"
ALWAYS_LOAD = "anthropic/alwaysLoad"
OF_OPENAI = re.compile(r"openai/[A-Za-z0-9_./-]{1,100}")
AUDIENCES = ("model", "app")
MAX_KEYS, MAX_CHARACTERS = 50, 5_000  # Of OpenAI's entries together
CSP = ("connectDomains", "resourceDomains", "frameDomains", "baseUriDomains")
ORIGIN = re.compile(
    r"(?:https?|wss?)://(?:\*\.[a-z0-9-]+\.)?[a-z0-9-]+(?:\.[a-z0-9-]+)*(?::[0-9]{1,5})?", re.IGNORECASE
)
MAX_ORIGINS = 50  # In each list
PERMISSIONS = ("camera", "microphone", "geolocation", "clipboardWrite")
DOMAIN = re.compile(r"[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*")


def read_tool_meta(raw: Any) -> dict[str, Any]:
    """Returns what is kept of the `_meta` of a tool or of a tool's result."""
    given, ui = as_object(raw), as_object(as_object(raw).get("ui"))
    shown: dict[str, Any] = {}
    if is_app_address(ui.get("resourceUri")):
        shown["resourceUri"] = ui["resourceUri"]
    if isinstance(ui.get("visibility"), list):
        shown["visibility"] = [audience for audience in AUDIENCES if audience in ui["visibility"]]
    kept: dict[str, Any] = {"ui": shown} if shown else {}
    if is_app_address(given.get(FLAT_ADDRESS)):
        kept[FLAT_ADDRESS] = given[FLAT_ADDRESS]
    if isinstance(given.get(ALWAYS_LOAD), bool):
        kept[ALWAYS_LOAD] = given[ALWAYS_LOAD]
    room = MAX_CHARACTERS
    for key in sorted(filter(OF_OPENAI.fullmatch, given))[:MAX_KEYS]:
        written = json.dumps(given[key], ensure_ascii=False)
        # NUL and lone surrogates cannot be stored, and nobody sees what is not printable.
        if len(written) <= room and written.isprintable() and "\\u0000" not in written:
            kept[key] = given[key]
            room -= len(written)
    return kept


def is_app_address(value: Any) -> bool:
    return isinstance(value, str) and ADDRESS.fullmatch(value) is not None


def app_address(meta: dict[str, Any]) -> str:
    """The address of a tool's app, of the `_meta` that is kept; empty without one."""
    named = as_object(meta.get("ui")).get("resourceUri") or meta.get(FLAT_ADDRESS) or meta.get(OPENAI_ADDRESS)
    return str(named) if is_app_address(named) else ""


def audiences_of(meta: dict[str, Any]) -> list[str]:
    """Returns who may call the tool: "model", "app" or both."""
    audiences: list[str] = as_object(meta.get("ui")).get("visibility", [*AUDIENCES])
    return audiences


def read_app_meta(raw: Any) -> dict[str, Any]:
    """Returns what is kept of `_meta.ui` of an app: csp, permissions, prefersBorder, domain."""
    given = as_object(raw)
    asked, wanted = as_object(given.get("csp")), as_object(given.get("permissions"))
    kept: dict[str, Any] = {}
    usable = {name: list(filter(ORIGIN.fullmatch, _strings(asked.get(name)))) for name in CSP}
    if csp := {name: origins[:MAX_ORIGINS] for name, origins in usable.items() if origins}:
        kept["csp"] = csp
    if asked_for := [name for name in PERMISSIONS if isinstance(wanted.get(name), dict)]:
        kept["permissions"] = {name: {} for name in asked_for}
    if isinstance(given.get("prefersBorder"), bool):
        kept["prefersBorder"] = given["prefersBorder"]
    domain = given.get("domain")
    if isinstance(domain, str) and len(domain) <= 253 and DOMAIN.fullmatch(domain):
        kept["domain"] = domain
    return kept


def refused_origins(raw: Any) -> list[str]:
    """Returns what the app's CSP asks for and does not get."""
    asked, kept = as_object(as_object(raw).get("csp")), read_app_meta(raw).get("csp", {})
    wanted = ((name, origin) for name in CSP for origin in _strings(asked.get(name)))
    return [origin for name, origin in wanted if origin not in kept.get(name, ())]


def _strings(value: Any) -> list[str]:
    texts = [one for one in value if isinstance(one, str)] if isinstance(value, list) else []
    return [text.removesuffix("/") for text in texts]
