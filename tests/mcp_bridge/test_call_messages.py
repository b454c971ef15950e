"""`tools/call` over HTTP: long calls, and messages that readers may understand in two ways."""

import json
from typing import Any

import pytest
from mcp.server import _streamable_http_modern

from catalogue.models import Workflow
from tests import plain_http

VERSION = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": VERSION,
    "io.modelcontextprotocol/clientCapabilities": {},
}


def headers_of(name: str, **others: str) -> dict[str, str]:
    return {"mcp-protocol-version": VERSION, "mcp-method": "tools/call", "mcp-name": name, **others}


def message_of(name: str, arguments: Any, **meta: Any) -> dict[str, Any]:
    params = {"name": name, "arguments": arguments, "_meta": META | meta}
    return {"jsonrpc": "2.0", "id": "call-1", "method": "tools/call", "params": params}


def test_a_call_that_takes_long_becomes_a_stream_that_proxies_keep_open(
    mcp_server, token, wire_engine, long_workflow, monkeypatch, settings
):
    """A2.7."""
    monkeypatch.setattr(_streamable_http_modern, "_SSE_PING_INTERVAL", 0.02)
    settings.CATALOGUE = settings.CATALOGUE | {"inline_wait": 0.3}
    Workflow.objects.update(inline_wait_seconds=None)
    response = mcp_server.post(message_of("report", {"n": 1}), token=token, headers=headers_of("report"))
    assert response.headers["content-type"] == "text/event-stream"
    *pings, event = response.text.removesuffix("\r\n\r\n").split("\r\n\r\n")
    assert set(pings) == {": ping"} and len(pings) > 2
    assert event.startswith("event: message\r\ndata: ")
    answered = json.loads(event.partition("data: ")[2])
    assert answered["id"] == "call-1" and "is still running" in answered["result"]["content"][0]["text"]


TWICE = [
    '{"name": "report", "arguments": {"n": 1, "n": 2}}',
    '{"name": "report", "arguments": {"n": 1, "\\u006e": 1}}',
    '{"name": "report", "name": "other", "arguments": {}}',
    '{"name": "report", "arguments": {"deep": [{"a": {"b": 1, "b": 1}}]}}',
    '{"name": "report", "arguments": {"n": 1}, "arguments": {"n": 2}}',
    f'{{"name": "report", "arguments": {{"n": 1, "n": 2, "long": "{"x" * 250_000}"}}}}',
    '{"name": "report", "arguments": {}}, "params": {"name": "report"}',
]


@pytest.mark.parametrize("modern", [True, False])
@pytest.mark.parametrize("params", TWICE)
def test_a_name_that_a_message_has_twice_is_refused_as_by_rest(
    params, modern, mcp_server, token, long_workflow, wire_engine
):
    """Of which only the last would count, while others on the way here may have read the first."""
    if modern:
        meta = json.dumps(message_of("report", {})["params"]["_meta"])
        params = params.replace("{", f'{{"_meta": {meta}, ', 1)
    body = f'{{"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {params}}}'
    usual = {"accept": "application/json, text/event-stream", "authorization": f"Bearer {token}"}
    headers = usual | {"content-type": "application/json"} | (headers_of("report") if modern else {})
    response = plain_http.post(mcp_server.url, headers=headers, content=body.encode(), timeout=20)
    assert response.status_code == 400 and response.json()["id"] == 7
    assert "more than once" in response.json()["error"]["message"]
    assert wire_engine.count("start") == 0


@pytest.mark.parametrize(
    "body",
    [
        '{"jsonrpc": "2.0", "id": 1, "id": 7, "method": "tools/list", "params": {}}',
        '{"jsonrpc": "2.0", "id": 7, "method": "tools/list", "method": "tools/call", "params": {}}',
        '{"jsonrpc": "2.0", "id": 7, "method": "ping", "params": {"_meta": {"a": 1, "a": 1}}}',
    ],
)
def test_so_is_one_in_any_other_message(body, mcp_server, token):
    usual = {"accept": "application/json, text/event-stream", "authorization": f"Bearer {token}"}
    headers = usual | {"content-type": "application/json"}
    response = plain_http.post(mcp_server.url, headers=headers, content=body.encode(), timeout=20)
    assert (response.status_code, response.json()["id"]) == (400, 7)


def test_a_header_that_is_sent_twice_is_refused(mcp_server, token, long_workflow):
    twice = [*headers_of("report").items(), ("mcp-name", "other")]
    usual = {"accept": "application/json, text/event-stream", "authorization": f"Bearer {token}"}
    response = plain_http.post(
        mcp_server.url, headers=[*usual.items(), *twice], json=message_of("report", {"n": 1}), timeout=20
    )
    assert response.status_code == 400 and "more than once" in response.json()["error"]["message"]
