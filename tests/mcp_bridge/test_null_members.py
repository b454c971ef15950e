"""Requests with null for members that a client leaves out: a progress token, a cursor, `_meta`."""

import itertools
from typing import Any

import pytest
from mcp import stdio_client
from mcp.shared.message import SessionMessage
from mcp_types import CLIENT_CAPABILITIES_META_KEY, PROTOCOL_VERSION_META_KEY, jsonrpc_message_adapter

from mcp_bridge.request_meta import FRESH, IDEMPOTENCY_KEY
from tests.executions.engines import in_thread

NULL_TOKEN = {"progressToken": None}
REQUESTS: dict[str, dict[str, Any]] = {
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"elicitation": None, "sampling": None},
        "clientInfo": {"name": "agent", "version": "1", "title": None},
    },
    "ping": {},
    "server/discover": {},
    "tools/list": {"cursor": None},
    "tools/call": {"name": "list_executions", "arguments": None, "task": None},
    "resources/list": {"cursor": None},
    "resources/templates/list": {"cursor": None},
    "resources/read": {"uri": "workflow://list"},
    "prompts/list": {"cursor": None},
    "completion/complete": {
        "ref": {"type": "ref/resource", "uri": "workflow://metadata/{name}"},
        "argument": {"name": "name", "value": ""},
        "context": None,
    },
}
UNKNOWN = {"2026-07-28": {"initialize", "ping"}, "legacy": {"server/discover"}}


METAS = (NULL_TOKEN, NULL_TOKEN | {FRESH: None, IDEMPOTENCY_KEY: None}, None)


@pytest.mark.usefixtures("long_workflow")
def test_null_for_an_optional_member_of_a_request_is_as_good_as_none(mcp_server, token, era, subtests):
    # Without `_meta`, a request of the modern version is none.
    metas = METAS if era == "legacy" else METAS[:2]
    for method, meta in itertools.product(REQUESTS.keys() - UNKNOWN[era], metas):
        params: dict[str, Any] = REQUESTS[method] | {"_meta": meta}
        headers = {"mcp-protocol-version": "2025-11-25"}
        if era != "legacy":
            headers = {"mcp-protocol-version": era, "mcp-method": method}
            headers |= {"mcp-name": name} if (name := params.get("name") or params.get("uri")) else {}
            params["_meta"] = meta | {PROTOCOL_VERSION_META_KEY: era, CLIENT_CAPABILITIES_META_KEY: {}}
        with subtests.test(method=method, meta=meta):
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            answer = mcp_server.post(body, token=token, headers=headers)
            assert '"result":' in answer.text and '"isError":true' not in answer.text, answer.text


async def test_a_session_over_stdio_may_begin_with_null_tokens(stdio_server):
    """The SDK reads the parameters of `initialize` once more when it has answered."""
    lines = [
        {"id": 1, "method": "initialize", "params": REQUESTS["initialize"] | {"_meta": NULL_TOKEN}},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/list", "params": {"_meta": NULL_TOKEN, "cursor": None}},
    ]
    async with stdio_client(stdio_server) as (read, write):
        for line in lines:
            message = jsonrpc_message_adapter.validate_python({"jsonrpc": "2.0", **line})
            await write.send(SessionMessage(message))
        answers = [(await read.receive()).message for _ in (1, 2)]
    assert [type(answer).__name__ for answer in answers] == ["JSONRPCResponse"] * 2, answers


@pytest.mark.parametrize("odd", [1.5, {}, []])
async def test_a_token_that_is_something_else_is_still_refused(mcp_server, token, odd):
    body = {"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"_meta": {"progressToken": odd}}}
    answer = await in_thread(lambda: mcp_server.post(body, token=token))
    assert '"code":-32602' in answer.text
