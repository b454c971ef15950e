"""What the whole answer to an HTTP request says, as far as a transport has to know."""

import json
import re
from typing import Any

from mcp_types import INVALID_PARAMS

from connectors.formats.json import TooDeep, UnreadableJSON, parse_json, parse_listing
from connectors.network.exchange import Exchange
from connectors.upstream_mcp.tools import CUT

MAX_DEPTH = 150
"""The SDK's own parser gives up at 200."""
NOT_BEGUN = re.compile(r"\bnot initialized\b", re.IGNORECASE)
NO_SUCH_SESSION = re.compile(r"\bsession\b|\bnot initialized\b", re.IGNORECASE)


def is_lost(exchange: Exchange, *, has_session: bool) -> bool:
    """Whether the conversation has to begin anew: MCP says 404, some servers say 400 and why."""
    if exchange.status == 404:
        return has_session
    if exchange.status != 400 or _error_code(bytes(exchange.body)) == INVALID_PARAMS:
        return False
    return bool((NO_SUCH_SESSION if has_session else NOT_BEGUN).search(exchange.words()))


def why_unreadable(body: bytes) -> str:
    try:
        parse_json(body, max_depth=MAX_DEPTH)
    except UnreadableJSON as error:
        return str(error)
    return ""


def cut_deep_tools(body: bytes) -> bytes:
    """A listing in which tools that are nested too deep are left with what they say at their top level."""
    if not body.lstrip().startswith(b"{"):
        return body
    try:
        listing = parse_listing(body, max_depth=MAX_DEPTH)
    except UnreadableJSON:
        return body
    tools = listing["result"]["tools"] if _lists_tools(listing) else []
    if not any(isinstance(tool, TooDeep) for tool in tools):
        return body
    listing["result"]["tools"] = [tool | {CUT: True} if isinstance(tool, TooDeep) else tool for tool in tools]
    return json.dumps(listing).encode()


def _lists_tools(message: Any) -> bool:
    result = message.get("result") if isinstance(message, dict) else None
    return isinstance(result, dict) and isinstance(result.get("tools"), list)


def is_message(body: bytes) -> bool:
    message = _message(body)
    return "error" in message or "result" in message


def _error_code(body: bytes) -> Any:
    error = _message(body).get("error")
    return error.get("code") if isinstance(error, dict) else None


def _message(body: bytes) -> dict[str, Any]:
    """Empty for what is none."""
    try:
        message = parse_json(body, max_depth=MAX_DEPTH)
    except UnreadableJSON:
        return {}
    return message if isinstance(message, dict) else {}
