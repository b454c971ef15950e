"""Messages of every method that we serve, with something hostile in one or two places of them."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

MODERN = "2026-07-28"
CAPABILITIES: dict[str, Any] = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": CAPABILITIES,
    "io.modelcontextprotocol/clientInfo": {"name": "fuzz", "version": "1"},
    "progressToken": "p",
    "workflow-catalogue/idempotency-key": "k",
    "workflow-catalogue/notify": {"webhook": "https://8.8.8.8/", "secret": "k" * 24, "email": False},
}
SOME_ID = "0199c0de-0000-7000-8000-000000000000"
TOOL_CALLS: dict[str, dict[str, Any]] = {
    "report": {"text": "one", "deeper": {"list": [1, "two", None]}},
    "list_workflows": {"tags": ["a", "b"]},
    "get_workflow_info": {"name": "report"},
    "execute_workflow": {"name": "report", "arguments": {"text": "one"}},
    "get_execution_status": {"execution_id": SOME_ID},
    "list_executions": {"state": "completed", "tool": "report", "limit": 3, "cursor": "YQ"},
    "cancel_execution": {"execution_id": SOME_ID},
    "ClearCache": {"workflowName": "report"},
    "no_such_tool": {},
}
PARAMS: list[tuple[str, dict[str, Any]]] = [
    ("tools/list", {"cursor": "MTAwMA"}),
    *(("tools/call", {"name": name, "arguments": arguments}) for name, arguments in TOOL_CALLS.items()),
    ("resources/list", {"cursor": "YQ"}),
    ("resources/templates/list", {"cursor": "YQ"}),
    ("resources/read", {"uri": "workflow://list?tags=a,b"}),
    ("resources/read", {"uri": "workflow://schema/report"}),
    ("resources/read", {"uri": f"execution://{SOME_ID}/result"}),
    ("resources/subscribe", {"uri": "workflow://list"}),
    ("prompts/list", {"cursor": "YQ"}),
    ("prompts/get", {"name": "report", "arguments": {"text": "one"}}),
    (
        "completion/complete",
        {
            "ref": {"type": "ref/resource", "uri": "workflow://schema/{name}"},
            "argument": {"name": "name", "value": "re"},
            "context": {"arguments": {"a": "b"}},
        },
    ),
    ("tasks/get", {"taskId": SOME_ID}),
    ("tasks/update", {"taskId": SOME_ID, "inputResponses": {"a": {}}}),
    ("tasks/cancel", {"taskId": SOME_ID}),
    ("tasks/list", {"cursor": "YQ"}),
    ("subscriptions/listen", {"notifications": {"taskIds": [SOME_ID]}}),
    ("subscriptions/listen", {"notifications": {"resourceSubscriptions": ["workflow://list"]}}),
    ("server/discover", {}),
    (
        "initialize",
        {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "f", "version": "1"}},
    ),
    ("ping", {}),
    ("logging/setLevel", {"level": "debug"}),
    ("notifications/initialized", {}),
    ("notifications/cancelled", {"requestId": 1, "reason": "so"}),
    ("notifications/progress", {"progressToken": "p", "progress": 1}),
    ("notifications/roots/list_changed", {}),
]
FRAGMENTS = [
    *("null", "true", "false", "0", "-0", "-1", "1.5", "1e3", "1e999", "-1e999", "NaN", "Infinity"),
    *(
        "9" * 25,
        "-" + "9" * 400,
        "9" * 5_000,
        "0." + "1" * 5_000,
        '""',
        "[]",
        "{}",
        "[[]]",
        "[null]",
        "[1,1]",
    ),
    *(
        r'"\u0000"',
        r'"\ud800"',
        r'"a\udfffb"',
        r'"\n\r\u2028"',
        '"\U0001f600"',
        '"\u202e"',
        '"${7*7}{{7*7}}%s{}"',
    ),
    *(r'"../../etc/passwd\u0000.json"', '"\'; DROP TABLE x; --"', '"=?base64?////?="', '"workflow://%ff%00"'),
    *(
        '{"__proto__":{"a":1},"constructor":{"prototype":1}}',
        '{"a":1,"a":[2]}',
        r'{"":"","\u0000":0,"\ud800":1}',
    ),
    *("[" * depth + "]" * depth for depth in (60, 150, 900, 20_000)),
    *('{"a":' * depth + "0" + "}" * depth for depth in (60, 150, 900, 20_000)),
    '"' + "x" * 10_000 + '"',
    '"' + "\u00e9" * 500_000 + '"',
    "[" + ",".join("1" * 100_000) + "]",
    "{" + ",".join(f'"key{number}":{number}' for number in range(20_000)) + "}",
]
"""JSON, or what some parsers take for it, that is meant to hurt."""

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=8,
)
fragments = st.sampled_from(FRAGMENTS) | json_values.map(json.dumps)


@dataclass(frozen=True)
class HostileRequest:
    method: str
    headers: dict[str, str]
    wounds: list[str]
    """What is hostile and where, short enough to read."""
    body: bytes = field(repr=False)


@st.composite
def hostile_requests(draw: st.DrawFn, *, modern: bool) -> HostileRequest:
    """Well-formed but for one or two places. The headers agree with the body as it was before."""
    method, params = draw(st.sampled_from(PARAMS))
    message = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params | {"_meta": _meta(params)}}
    if method.startswith("notifications/"):
        del message["id"]
    headers = _headers(method, params) if modern else {"mcp-protocol-version": "2025-06-18"}
    replaced = draw(st.lists(st.sampled_from(list(_places(message))), min_size=1, max_size=2, unique=True))
    wounds = {place: draw(fragments) for place in replaced}
    described = [f"{'.'.join(place)}={fragment[:200]}" for place, fragment in wounds.items()]
    return HostileRequest(method, headers, described, _render(message, wounds).encode())


def _meta(params: dict[str, Any]) -> dict[str, Any]:
    """A run is not waited for: with a progress token it would be until its end."""
    runs = params.get("name") in ("report", "execute_workflow")
    return {key: value for key, value in META.items() if not (runs and key == "progressToken")}


def _headers(method: str, params: dict[str, Any]) -> dict[str, str]:
    named = next((params[key] for key in ("name", "uri", "taskId") if key in params), None)
    headers = {"mcp-protocol-version": MODERN, "mcp-method": method}
    return headers | ({"mcp-name": named} if named is not None else {})


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _places(inner, (*path, key))


def _render(value: Any, wounds: dict[tuple[Any, ...], str], path: tuple[Any, ...] = ()) -> str:
    """As JSON, with fragments in their places as they are: some are not JSON."""
    if path in wounds:
        return wounds[path]
    if not isinstance(value, dict):
        return json.dumps(value)
    members = (f"{json.dumps(key)}:{_render(inner, wounds, (*path, key))}" for key, inner in value.items())
    return "{" + ",".join(members) + "}"
