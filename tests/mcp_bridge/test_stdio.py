"""MCP over standard input and output: a process of its own, started by the client."""

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from catalogue.models import Source
from executions.models import Execution
from tests.mcp_bridge.database import in_database


@pytest.mark.parametrize("mode", ["2026-07-28", "legacy"])
async def test_a_desktop_client_lists_and_calls_over_stdio(
    stdio_server: StdioServerParameters, source: Source, mode: str
):
    """E8: both eras; what it runs is recorded under the local user."""
    async with Client(stdio_server, mode=mode) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        result = await client.call_tool("text_statistics", {"text": "Over a pipe."})
    assert "text_statistics" in names
    assert result.structured_content["words"] == 3
    execution = await in_database(Execution.objects.get)()
    assert execution.caller.startswith("local:")
