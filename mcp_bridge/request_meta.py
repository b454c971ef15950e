"""Metadata of MCP requests: `_meta` keys, client capabilities, cursors."""

import base64
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from mcp import MCPError
from mcp.server.apps import APP_MIME_TYPE, EXTENSION_ID, client_supports_apps
from mcp.server.context import ServerRequestContext
from mcp_types import CLIENT_CAPABILITIES_META_KEY, INVALID_PARAMS, RequestId
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from access.addresses import client_address
from connectors.formats.json import UnreadableJSON, as_object, parse_top_level
from executions.refusals import InvalidIdempotencyKey
from executions.run_callers import ANSWERS, CARDS

Context = ServerRequestContext[Any, Any]
TASKS = "io.modelcontextprotocol/tasks"
IDEMPOTENCY_KEY = "workflow-catalogue/idempotency-key"
NOTIFY = "workflow-catalogue/notify"  # As `notify` of REST
FRESH = "workflow-catalogue/fresh"
CACHED_AT = "workflow-catalogue/cached-at"  # In `_meta` of a cached result: when its run ended
REATTACHED = "workflow-catalogue/reattached-to"  # Likewise, of an earlier identical call: when it arrived
RENAMED_TO = "workflow-catalogue/renamed-to"  # Likewise, of a call by a former name: the new name
NOTE = "workflow-catalogue/note"  # In `_meta` of a text about the result, which is not part of it: true
EXECUTION_ID = "workflow-catalogue/execution-id"  # In `_meta` of every result of a run
KEPT_CHARACTERS = 100
MAX_CURSOR = 2000
SESSION_HEADER = "mcp-session-id"
ELICITATION_MODES = ("form", "url")
OTHER_ANSWERS = ("sampling", "roots")


def usable_id(message: Any) -> RequestId | None:
    """Returns the id of a request; None for other messages."""
    found = message.get("id") if isinstance(message, dict) and "method" in message else None
    return found if type(found) in (int, str) else None


def id_in(text: bytes) -> RequestId | None:
    """Reads the id despite unreadable parameters, so that the client does not wait for an answer."""
    try:
        return usable_id(parse_top_level(text))
    except UnreadableJSON:
        return None


def is_modern(context: Context) -> bool:
    """Returns whether its protocol version has no handshake."""
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS


def session_marks(headers: Mapping[str, str]) -> frozenset[str]:
    """Returns what later calls need to know of the handshake. The session id begins with it, since no process
    stores sessions."""
    return frozenset(headers.get(SESSION_HEADER, "").split("-")[:-1])


def marks_of_handshake(message: dict[str, Any]) -> list[str]:
    """Returns those of an `initialize` request."""
    params = message.get("params")
    if "id" not in message or not isinstance(params, dict):
        return []
    capabilities, marks = as_object(params.get("capabilities")), []
    if isinstance(asks := capabilities.get("elicitation"), dict):
        marks += [mode for mode in ELICITATION_MODES if isinstance(asks.get(mode), dict)] or ["form"]
    marks += [name for name in OTHER_ANSWERS if isinstance(capabilities.get(name), dict)]
    return [*marks, CARDS] if declares_cards(capabilities) else marks


def declares_cards(capabilities: Any) -> bool:
    """Reads a client's capabilities as `client_supports_apps` does."""
    apps = as_object(as_object(as_object(capabilities).get("extensions")).get(EXTENSION_ID))
    mime_types = apps.get("mimeTypes")
    return isinstance(mime_types, list) and APP_MIME_TYPE in mime_types


def shows_cards(context: Context) -> bool:
    """Returns whether the client shows cards of MCP Apps."""
    if context.method == "initialize":
        return declares_cards((context.params or {}).get("capabilities"))
    if context.request is not None and not is_modern(context):
        return CARDS in session_marks(context.request.headers)
    return client_supports_apps(context)


def sender_shows_cards(message: dict[str, Any], headers: Mapping[str, str], version: str) -> bool:
    """Returns the same for a message over HTTP that the SDK has not read."""
    if version not in MODERN_PROTOCOL_VERSIONS:
        return CARDS in session_marks(headers)
    meta = as_object(as_object(message.get("params")).get("_meta"))
    return declares_cards(meta.get(CLIENT_CAPABILITIES_META_KEY))


def takes_tasks(context: Context) -> bool:
    capabilities = context.session.client_capabilities
    return TASKS in ((capabilities and capabilities.extensions) or {}) and is_modern(context)


def elicitation_modes(context: Context) -> frozenset[str]:
    """ "form", "url" or both: how the client can ask its user."""
    if context.request is not None and not is_modern(context):
        return session_marks(context.request.headers) & set(ELICITATION_MODES)
    capabilities = context.session.client_capabilities
    if capabilities is None or (asks := capabilities.elicitation) is None:
        return frozenset()
    modes = {name for name in ELICITATION_MODES if getattr(asks, name) is not None}
    # An empty capability means forms.
    return frozenset(modes or {"form"})


def answers_of(context: Context) -> dict[str, Any]:
    """Returns the client's capabilities for answering a server's questions."""
    modes = elicitation_modes(context)
    answers: dict[str, Any] = {"elicitation": {mode: {} for mode in sorted(modes)}} if modes else {}
    if context.request is not None and not is_modern(context):
        return answers | {name: {} for name in session_marks(context.request.headers) & set(OTHER_ANSWERS)}
    for name in OTHER_ANSWERS:
        if (offered := getattr(context.session.client_capabilities, name, None)) is not None:
            answers[name] = offered.model_dump(by_alias=True, mode="json", exclude_none=True)
    return answers


def as_sent(responses: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """A client's answers to questions, as JSON by the keys of the questions."""
    return {
        key: response.model_dump(by_alias=True, mode="json", exclude_none=True)
        for key, response in responses.items()
    }


def idempotency_key(context: Context) -> str:
    """Empty if the client sent none. Raises MCPError for a malformed one."""
    key: Any = (context.meta or {}).get(IDEMPOTENCY_KEY)
    if key is None:
        return ""
    if not isinstance(key, str) or not key:
        raise MCPError(INVALID_PARAMS, f"_meta[{IDEMPOTENCY_KEY!r}]: {InvalidIdempotencyKey()}")
    return key


def wants_fresh(context: Context) -> bool:
    wanted: Any = (context.meta or {}).get(FRESH)
    if not isinstance(wanted, bool | None):
        raise MCPError(INVALID_PARAMS, f"_meta[{FRESH!r}]: Must be true or false.")
    return bool(wanted)


def describe_client(context: Context) -> dict[str, Any]:
    """Returns the client's name and version (with a handshake, its HTTP library), the protocol version, the
    network address, and which questions it can answer."""
    described = {"protocol_version": context.protocol_version}
    if (client := context.session.client_params) is not None:
        described |= {"name": client.client_info.name, "version": client.client_info.version}
    elif context.request is not None:
        described["user_agent"] = context.request.headers.get("user-agent", "")
    if context.request is not None:
        described["address"] = peer = context.request.client.host if context.request.client else ""
        if forwarded := context.request.headers.get("x-forwarded-for", ""):
            described["address"] = client_address(peer, forwarded)
    texts: dict[str, Any] = {name: text[:KEPT_CHARACTERS] for name, text in described.items() if text}
    answers = answers_of(context)
    return texts | {ANSWERS: answers} if answers else texts


def make_cursor(last: str) -> str:
    return base64.urlsafe_b64encode(last.encode()).decode().rstrip("=")


def read_cursor(cursor: str) -> str:
    """Returns the name that the cursor was made from. Raises MCPError."""
    try:
        if not 0 < len(cursor) <= MAX_CURSOR:
            raise ValueError
        padded = cursor + "=" * (-len(cursor) % 4)
        last = base64.b64decode(padded.encode("ascii"), altchars=b"-_", validate=True).decode()
        if make_cursor(last) != cursor:
            raise ValueError
    except ValueError:
        raise MCPError(INVALID_PARAMS, "Unknown cursor: send the nextCursor of the page before.") from None
    return last


def page_bounds(names: Sequence[str], cursor: str | None, size: int) -> tuple[int, int, str | None]:
    """Begin, end and next cursor of a page of sorted names. Raises MCPError."""
    # Cursors name the last item, so that added and removed items do not shift pages.
    begin = 0 if cursor is None else bisect_right(names, read_cursor(cursor))
    end = min(begin + size, len(names))
    return begin, end, make_cursor(names[end - 1]) if end < len(names) else None
