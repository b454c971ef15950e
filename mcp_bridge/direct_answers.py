"""Well-formed `tools/list` requests over HTTP, answered from memory before the SDK's dispatcher.

What is in any way unusual is left to the SDK, which knows what to say of it.
"""

import json
from typing import Any

from mcp import MCPError
from mcp.server.streamable_http import check_accept_headers
from mcp.shared.inbound import InboundModernRoute, classify_inbound_request, find_duplicated_routing_header
from mcp_types.methods import validate_client_request
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pydantic import ValidationError
from starlette.requests import Request

from mcp_bridge.access import Access
from mcp_bridge.tool_lists import METHOD, ToolLists

MEMBERS = {"jsonrpc", "id", "method", "params"}
VERSION_HEADER = "mcp-protocol-version"
ASSUMED_VERSION = "2025-03-26"
"""Of a request that names none, as Streamable HTTP has it."""


async def answer_directly(
    request: Request, message: dict[str, Any], access: Access, lists: ToolLists
) -> bytes | None:
    """The whole JSON-RPC answer; None for what the SDK has to answer."""
    if message.get("method") != METHOD or (version := _valid_version(request, message)) is None:
        return None
    cursor = (message.get("params") or {}).get("cursor")
    try:
        page = await lists.page(access, version, cursor)
    except MCPError:
        return None
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (json.dumps(message["id"]).encode(), page)


def _valid_version(request: Request, message: dict[str, Any]) -> str | None:
    """The protocol version of a request with which nothing is wrong, by the SDK's own checks."""
    if message.keys() - MEMBERS or message.get("jsonrpc") != "2.0":
        return None
    if type(message.get("id")) not in (str, int) or not all(check_accept_headers(request)):
        return None
    version = request.headers.get(VERSION_HEADER, ASSUMED_VERSION)
    if version not in HANDSHAKE_PROTOCOL_VERSIONS:
        if find_duplicated_routing_header(request.headers.items()) is not None:
            return None
        route = classify_inbound_request(message, headers=dict(request.headers))
        if not isinstance(route, InboundModernRoute):
            return None
        version = route.protocol_version
    try:
        validate_client_request(METHOD, version, message.get("params"))
    except ValidationError:
        return None
    return version
