"""Clients that do not name both forms of an answer in `Accept` get the one that they take."""

import itertools
import json
from typing import Any

import httpx2
import pytest
from mcp.server import _streamable_http_modern

from catalogue.models import Workflow
from tests import plain_http
from tests.mcp_bridge.conftest import McpServer
from tests.mcp_bridge.test_endpoint import answer_in, modern

JSON, STREAM = "application/json", "text/event-stream"
ERAS = ("2026-07-28", "2025-11-25", "2025-03-26")
FORMS = {
    "application/json": JSON,
    "application/*": JSON,
    "*/*": JSON,
    None: JSON,
    "": JSON,
    "APPLICATION/JSON; charset=utf-8 ;q=0.1, text/html": JSON,
    "application/json, text/event-stream;q=0": JSON,
    "application/json, text/*; q=0.000": JSON,
    "text/html, */*;q=0.1": JSON,
    "text/event-stream": STREAM,
    "text/*": STREAM,
    "Text/Event-Stream, application/json;q=0": STREAM,
    "*/*, application/json;q=0, application/*;q=0": STREAM,
    "text/html": None,
    "application/jsonx, text/event-streams": None,
    "*/*;q=0": None,
    "application/json;q=0, application/*;q=1": None,
}
REQUESTS: dict[str, dict[str, Any]] = {
    "tools/list": {},
    "tools/call": {"name": "text_statistics", "arguments": {"text": "one"}},
    "resources/list": {},
    "prompts/get": {"name": "missing"},
}


def send(server: McpServer, token: str, accept: str | None, version: str, request: Any) -> httpx2.Response:
    body, headers = request
    headers |= {"mcp-protocol-version": version, "authorization": f"Bearer {token}"}
    headers |= {"content-type": JSON} | ({} if accept is None else {"accept": accept})
    with plain_http.Client(timeout=20) as client:
        del client.headers["accept"]
        return client.post(server.url, headers=headers, json=body)


def kind_of(response: httpx2.Response) -> str:
    return response.headers["content-type"].partition(";")[0]


@pytest.mark.parametrize("version", ERAS)
def test_an_answer_comes_in_the_form_that_is_accepted(mcp_server, token, source, subtests, version):
    for (accept, form), method in itertools.product(FORMS.items(), REQUESTS):
        with subtests.test(f"{accept}: {method}"):
            response = send(mcp_server, token, accept, version, modern(method, **REQUESTS[method]))
            if form is None:
                assert (response.status_code, kind_of(response)) == (406, JSON)
                assert "Accept: application/json, text/event-stream" in response.json()["error"]["message"]
                continue
            is_error = method == "prompts/get"
            # Of errors, the status says as much.
            assert kind_of(response) == form or response.status_code >= 400
            assert response.headers["cache-control"].startswith("no-")
            answer = answer_in(response)
            assert answer["id"] == 1 and ("error" in answer) == is_error


def test_two_headers_count_as_one(mcp_server, token, source):
    body, headers = modern("tools/list")
    pairs = [
        *headers.items(),
        ("authorization", f"Bearer {token}"),
        ("accept", "text/html"),
        ("accept", JSON),
    ]
    assert plain_http.post(mcp_server.url, headers=pairs, json=body, timeout=20).status_code == 200


@pytest.mark.parametrize("version", ERAS)
def test_a_long_call_is_one_document_without_progress(
    mcp_server, token, wire_engine, long_workflow, monkeypatch, settings, version
):
    """Also if it waits for so long that an event stream would begin."""
    monkeypatch.setattr(_streamable_http_modern, "_SSE_PING_INTERVAL", 0.02)
    settings.CATALOGUE = settings.CATALOGUE | {"inline_wait": 0.3}
    Workflow.objects.update(inline_wait_seconds=None)
    body, headers = modern("tools/call", name="report", arguments={"n": 1})
    response = send(mcp_server, token, JSON, version, (body, headers))
    assert (response.status_code, kind_of(response)) == (200, JSON)
    assert int(response.headers["content-length"]) == len(response.content)
    assert "is still running" in json.loads(response.text)["result"]["content"][0]["text"]


@pytest.mark.parametrize(
    ("accept", "status"), [(JSON, 406), ("application/*", 406), ("*/*", 200), (None, 200)]
)
def test_a_subscription_needs_a_stream(mcp_server, token, accept, status):
    body, headers = modern("subscriptions/listen", notifications={"toolsListChanged": True})
    headers |= {"authorization": f"Bearer {token}"} | ({} if accept is None else {"accept": accept})
    with plain_http.Client(timeout=20) as client:
        del client.headers["accept"]
        with client.stream("POST", mcp_server.url, headers=headers, json=body) as response:
            assert (response.status_code, kind_of(response)) == (status, STREAM if status == 200 else JSON)


def test_notifications_are_taken_from_all(mcp_server, token):
    notification = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    for accept in (JSON, STREAM, None):
        assert send(mcp_server, token, accept, "2025-11-25", (notification, {})).status_code == 202
