"""What frameworks for agents that are too heavy to install send to a catalogue, and what comes of it.

The files in `recorded/` have one request a line: what such a client sent when it listed the tools of
`tests/e2e/clients` and called each, recorded between it and the product. Their names tell its release.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from catalogue.curation import enable_workflows
from catalogue.discovery import refresh_source
from catalogue.models import Workflow
from executions.models import Execution
from tests.e2e.clients.workflows import WORKFLOWS
from tests.e2e.simplified_engine import Engine
from tests.factories import make_source
from tests.mcp_bridge.serving import serving

RECORDED = Path(__file__).parent / "recorded"
CLIENTS = sorted(path.stem for path in RECORDED.glob("*.jsonl"))
Request = dict[str, Any]


@pytest.fixture
def _catalogue() -> Iterator[None]:
    with serving(Engine(WORKFLOWS).build_app()) as base_url:
        source = make_source("schemas", base_url=base_url)
        assert refresh_source(source).added == len(WORKFLOWS)
        enable_workflows(Workflow.objects.filter(source=source))
        yield


@pytest.mark.usefixtures("_catalogue")
@pytest.mark.parametrize("client", CLIENTS)
def test_a_heavy_framework_lists_tools_that_it_can_take_and_calls_each(mcp_server, token, client):
    """A2.1, A2.2: null for what the schema does not require, and cannot be null, is as good as nothing."""
    for line in (RECORDED / f"{client}.jsonl").read_text(encoding="utf-8").splitlines():
        sent = json.loads(line)
        response = mcp_server.post(sent["body"], token=token, headers=sent["headers"])
        assert response.is_success, response.text
        if sent["body"]["method"] == "tools/list":
            check_list(answer(response.text)["tools"])
        if sent["body"]["method"] == "tools/call":
            check_call(sent["body"]["params"], answer(response.text))
    assert {state for (state,) in Execution.objects.values_list("state")} == {"completed"}


def answer(text: str) -> dict[str, Any]:
    """The result in a response or in the last event of a stream."""
    data = [line.removeprefix("data:") for line in text.splitlines() if line.startswith("data:")]
    message = json.loads(data[-1] if data else text)
    assert "result" in message, message
    result: dict[str, Any] = message["result"]
    return result


def check_list(tools: list[dict[str, Any]]) -> None:
    """What CrewAI, smolagents and LlamaIndex read of each schema without looking whether it is there."""
    assert WORKFLOWS.keys() <= {tool["name"] for tool in tools}
    for tool in tools:
        schema = tool["inputSchema"]
        assert schema["type"] == "object"
        assert all(isinstance(part, dict) for part in schema["properties"].values()), schema
        patterns = re.findall(r'"pattern": "[^"]*', json.dumps(schema))
        assert not any("(?" in pattern for pattern in patterns), "few engines know look-arounds"
        if fixture := WORKFLOWS.get(tool["name"]):
            assert fixture.given.keys() <= schema["properties"].keys(), "other arguments are not sent"


def check_call(called: dict[str, Any], result: dict[str, Any]) -> None:
    assert not result.get("isError"), result["content"][0]["text"]
    if fixture := WORKFLOWS.get(called["name"]):
        received = result["structuredContent"]["received"]
        kept = {name: value for name, value in called["arguments"].items() if value is not None}
        assert {name: value for name, value in received.items() if value is not None} == kept
        assert received.keys() <= called["arguments"].keys() - set(fixture.left_out) | kept.keys()
