"""What a request says of its client and of itself, beside what it asks for."""

from typing import Any

from mcp import MCPError
from mcp.server.context import ServerRequestContext
from mcp_types import INVALID_PARAMS
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from executions.refusals import InvalidIdempotencyKey

Context = ServerRequestContext[Any, Any]
TASKS = "io.modelcontextprotocol/tasks"
IDEMPOTENCY_KEY = "workflow-catalogue/idempotency-key"
FRESH = "workflow-catalogue/fresh"
CACHED_AT = "workflow-catalogue/cached-at"
"""In `_meta` of a result from the result cache: when the run ended that had it."""
REATTACHED = "workflow-catalogue/reattached-to"
"""In `_meta` of a result of a run that an earlier, identical call began: when that call came."""
RENAMED_TO = "workflow-catalogue/renamed-to"
"""In `_meta` of a result of a call by a former name: what the tool is called now."""
NOTE = "workflow-catalogue/note"
"""In `_meta` of a text that tells of the result and is no part of it: true."""
EXECUTION_ID = "workflow-catalogue/execution-id"
"""In `_meta` of every result that comes of a run."""
KEPT_CHARACTERS = 100
"""Of each thing that a client says of itself."""


def is_modern(context: Context) -> bool:
    """Whether the request is of the era without a handshake."""
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS


def takes_tasks(context: Context) -> bool:
    """Whether this very request declares the tasks extension."""
    capabilities = context.session.client_capabilities
    return is_modern(context) and TASKS in ((capabilities and capabilities.extensions) or {})


def wants_progress(context: Context) -> bool:
    return context.meta is not None and context.meta.get("progress_token") is not None


def idempotency_key(context: Context) -> str:
    """The caller's own name for its call; empty where it gave none. What is no text at all is malformed."""
    key = _extra(context).get(IDEMPOTENCY_KEY)
    if key is None:
        return ""
    if not isinstance(key, str) or not key:
        raise MCPError(INVALID_PARAMS, f"_meta[{IDEMPOTENCY_KEY!r}]: {InvalidIdempotencyKey()}")
    return key


def wants_fresh(context: Context) -> bool:
    """Whether the workflow has to run though a cached result could answer."""
    wanted = _extra(context).get(FRESH, False)
    if not isinstance(wanted, bool):
        raise MCPError(INVALID_PARAMS, f"_meta[{FRESH!r}]: This has to be true or false.")
    return wanted


def describe_client(context: Context) -> dict[str, Any]:
    """Name and version as the client tells them, else what its HTTP library says, and the protocol's version.

    Without sessions a request of the handshake era over HTTP does not tell who sent it.
    """
    described = {"protocol_version": context.protocol_version}
    if (client := context.session.client_params) is not None:
        described |= {"name": client.client_info.name, "version": client.client_info.version}
    elif context.request is not None:
        described["user_agent"] = context.request.headers.get("user-agent", "")
    return {name: text[:KEPT_CHARACTERS] for name, text in described.items() if text}


def _extra(context: Context) -> dict[str, Any]:
    return {} if context.meta is None else dict(context.meta)
