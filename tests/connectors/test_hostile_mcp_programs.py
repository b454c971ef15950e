"""MCP servers that we start, and that flood, lie, die or do not want to: nothing of them is left."""

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from connectors.definitions import WorkflowDefinition
from connectors.errors import ConnectorError
from connectors.network.policy import StdioCommand, allow_stdio_commands
from connectors.testing import advance_clock, closing
from connectors.upstream_mcp import stdio_transport
from connectors.upstream_mcp.config import McpConfig
from connectors.upstream_mcp.connector import McpConnector
from tests.executions.engines import until
from tests.processes import ROOT

MakeConnector = Callable[..., McpConnector]
MARK = "tests.engines.hostile_program"


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeConnector]:
    """A connector to a program that does what is said, and is not waited for long."""
    monkeypatch.setattr(stdio_transport, "EXIT_SECONDS", 0.1)

    def make(what: str, **config: Any) -> McpConnector:
        line = [sys.executable, "-m", MARK, what, str(tmp_path)]
        allow_stdio_commands({"hostile": StdioCommand(command=line, directory=str(ROOT))})
        settings = {"request_timeout_seconds": 10, "max_response_bytes": 100_000} | config
        return McpConnector(McpConfig(transport="stdio", command="hostile", **settings))

    yield make
    allow_stdio_commands({})


def left_of(folder: Path) -> list[int]:
    """What is there still of this test's programs and of what they started: each leads a group."""
    groups = {int(path.name) for path in folder.iterdir()}
    return [process.pid for process in psutil.process_iter() if _group_of(process.pid) in groups]


def _group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


async def names(connector: McpConnector) -> list[str]:
    return [item.name async for item in connector.discover() if isinstance(item, WorkflowDefinition)]


@pytest.mark.parametrize(
    "what",
    [
        "floods stderr",
        "prints garbage",
        "floods progress",
        "prints 50 MB without an end",
        "forks children",
        "ignores SIGTERM and the end of its input",
    ],
)
async def test_a_program_that_misbehaves_is_listed_all_the_same_and_nothing_of_it_is_left(
    make, tmp_path, monkeypatch, what
):
    """B6, B10"""
    monkeypatch.setattr(stdio_transport, "STDERR_SECONDS", 0.1)
    async with closing(make(what)) as connector:
        assert await names(connector) == ["good"]
        assert left_of(tmp_path)
    await until(lambda: not left_of(tmp_path), "nothing of the program is left")


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("exits at once", "ended with status 7. It said: No license found."),
        ("leaves in the middle", "I have had enough."),
        ("lists in lists", "nested more than 150 levels deep"),
        ("says nothing", "no response within 10 s"),
    ],
)
async def test_a_program_that_cannot_be_listed_says_why_and_nothing_of_it_is_left(
    make, tmp_path, what, words
):
    """A5.1, B6"""
    async with closing(make(what)) as connector:
        listing = asyncio.create_task(names(connector))
        while what == "says nothing" and not listing.done():
            await until(lambda: left_of(tmp_path) or listing.done(), "the program is started")
            advance_clock(10)
        with pytest.raises(ConnectorError) as caught:
            await listing
        assert words in caught.value.message
    await until(lambda: not left_of(tmp_path), "nothing of the program is left")
