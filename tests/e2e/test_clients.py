"""The main job, end to end: what clients of both protocol eras get from the running product."""

import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, TextContent

from tests import plain_http
from tests.e2e.product import AGENT, Product, Rest, wait_until
from tests.processes import ROOT

pytestmark = pytest.mark.e2e

PATIENCE_SECONDS = 60.0
TEXT = "One sentence. And another one!"
RAGGED = "name,price\nbolt,1\nnut"
WORKFLOWS = {"text_statistics", "csv_profile", "countdown"}
BUILT_IN = {
    "list_workflows",
    "get_workflow_info",
    "execute_workflow",
    "get_execution_status",
    "cancel_execution",
}


@asynccontextmanager
async def client_of_2026(product: Product, **options: Any) -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {product.token}"}
    async with plain_http.AsyncClient(headers=headers, timeout=60) as http:
        transport = streamable_http_client(f"{product.url}/mcp", http_client=http)
        async with Client(transport, mode="2026-07-28", cache=None, client_info=AGENT, **options) as client:
            yield client


def text_of(result: CallToolResult) -> str:
    return "\n".join(block.text for block in result.content if isinstance(block, TextContent))


def newest(rest: Rest, tool: str) -> dict[str, Any]:
    """The latest execution of a tool, once there is one, with its payload."""
    latest, *_ = wait_until(lambda: rest.executions(tool=tool), PATIENCE_SECONDS)
    return rest.execution(latest["id"])


async def test_current_client_lists_the_built_in_and_the_workflow_tools(product):
    """A1.2, A2.1: discovered workflows are tools beside the built-in ones, without a code change."""
    async with client_of_2026(product) as client:
        assert client.protocol_version == "2026-07-28"
        names = {tool.name for tool in (await client.list_tools()).tools}
    assert names >= WORKFLOWS | BUILT_IN


async def test_fast_workflow_answers_with_text_and_structure_and_is_recorded(product, rest):
    """A2.2, A2.3: the call runs the workflow with its arguments and returns its output."""
    async with client_of_2026(product) as client:
        result = await client.call_tool("text_statistics", {"text": TEXT})
    assert not result.is_error
    assert result.structured_content["words"] == 5
    assert json.loads(text_of(result)) == result.structured_content
    recorded = newest(rest, "text_statistics")
    assert recorded["state"] == "completed"
    assert recorded["input"] == {"text": TEXT}
    assert recorded["output"] == result.structured_content


async def test_slow_workflow_reports_rising_progress_until_its_result(product, rest):
    """A7.1, A7.3: a call with a progress token waits for as long as the run takes, and hears from it."""
    heard: list[tuple[float, float | None, str | None]] = []

    async def note(value: float, total: float | None, message: str | None) -> None:
        heard.append((value, total, message))

    async with client_of_2026(product) as client:
        result = await client.call_tool("countdown", {"seconds": 6}, progress_callback=note)
    assert not result.is_error
    assert result.structured_content["seconds"] == 6
    values = [value for value, _, _ in heard]
    assert len(values) >= 3
    assert values == sorted(set(values))
    assert any(total == 100 for _, total, _ in heard)
    assert newest(rest, "countdown")["state"] == "completed"


async def test_failing_workflow_says_why_in_the_result_and_is_recorded(product, rest):
    """A2.4, A7.4: an asynchronous failure comes back as a tool result with the engine's words."""
    async with client_of_2026(product) as client:
        result = await client.call_tool("csv_profile", {"csv": RAGGED})
    assert result.is_error
    recorded = newest(rest, "csv_profile")
    assert recorded["state"] == "failed"
    assert recorded["error"]["kind"] == "execution"
    assert recorded["error"]["message"] in text_of(result)
    assert "3" in recorded["error"]["message"], "it names the ragged line"


@pytest.mark.timeout(180)
def test_client_of_2025_lists_and_calls_the_same_tools(product, rest, python_of_2025):
    """The handshake protocol is served from the same endpoint."""
    calls = [
        ["text_statistics", {"text": TEXT}],
        ["countdown", {"seconds": 3}],
        ["countdown", {"seconds": 0, "fail": True, "message": "asked for"}],
    ]
    answer = subprocess.run(
        [python_of_2025, "tests/e2e/client_2025.py", f"{product.url}/mcp", product.token],
        cwd=ROOT,
        input=json.dumps(calls),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert answer.returncode == 0, answer.stderr
    told = json.loads(answer.stdout)
    fast, slow, failing = told["calls"]
    assert told["protocol"] == "2025-11-25"
    assert set(told["tools"]) >= WORKFLOWS | BUILT_IN
    assert json.loads(fast["text"])["words"] == 5
    assert not slow["is_error"]
    assert "Call get_execution_status with" in slow["text"], (
        "clients of its time give up in spite of progress"
    )
    assert slow["progress"]
    assert failing["is_error"]
    assert "asked for" in failing["text"]
    assert newest(rest, "countdown")["state"] == "failed"
