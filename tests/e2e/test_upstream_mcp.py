"""MCP servers as sources, end to end: their tools are ours, in both eras, over stdio, and when they die."""

import asyncio
import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from mcp import Client
from mcp_types import CallToolResult

from connectors.testing import free_port
from tests.e2e.product import Product, Rest, place_for_one, started, wait_until
from tests.e2e.test_clients import client_of_2026, newest, text_of
from tests.engines.many_tools import KEY, ManyToolsServer, command, running_many_tools
from tests.processes import ROOT, _answers

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

PATIENCE_SECONDS = 30.0
SOURCES = ("sessions", "stateless", "program")


@dataclass
class Server:
    """One over HTTP, which can be killed and brought back at the same address."""

    folder: Path
    era: str
    port: int = field(default_factory=free_port)
    _running: ExitStack = field(default_factory=ExitStack)

    def bring_up(self) -> None:
        self.tools = self._running.enter_context(
            running_many_tools(self.folder, era=self.era, port=self.port)
        )

    def kill(self) -> None:
        self._running.close()


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    folder = tmp_path_factory.mktemp("upstream")
    servers = {"sessions": Server(folder / "2025", "2025"), "stateless": Server(folder / "2026", "2026")}
    try:
        for server in servers.values():
            server.bring_up()
        yield servers
    finally:
        for server in servers.values():
            server.kill()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> ManyToolsServer:
    """What the product starts by itself, and its journal."""
    return ManyToolsServer(tmp_path_factory.mktemp("program"))


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory, program: ManyToolsServer) -> Iterator[Product]:
    """A product of its own, whose operator allows one command."""
    allowed = {
        "command": command(program.journal, "--stdio"),
        "environment": ["MANY_TOOLS_KEY"],
        "directory": str(ROOT),
    }
    with place_for_one(tmp_path_factory.mktemp("product")) as place:
        place |= {
            "CATALOGUE_INLINE_WAIT": "2",
            "CATALOGUE_STATUS_CHECK_INTERVAL": "1",
            "CATALOGUE_STDIO_COMMANDS": json.dumps({"many-tools": allowed}),
        }
        with started(place) as product:
            product.wait_until_up()
            yield product


@pytest.fixture(scope="module")
def rest(product: Product, servers: dict[str, Server]) -> Rest:
    """As an administrator, who has added the three sources and let agents see what they have."""
    rest = Rest(product, product.manage("create_mcp_token", "dashboard", "--scope", "catalogue:admin"))
    for name, server in servers.items():
        add_source(rest, name, {"url": server.tools.url}, {"bearer_token": KEY})
    program = {"transport": "stdio", "command": "many-tools"}
    add_source(rest, "program", program, {"secret_environment": f"MANY_TOOLS_KEY={KEY}"})
    return rest


def add_source(rest: Rest, name: str, config: dict[str, str], credentials: dict[str, str]) -> None:
    """The worker lists it at once; then agents may see all of it."""
    rest.post("/sources/", name=name, kind="mcp", config=config, credentials=credentials)
    wait_until(lambda: len(rest.get("/workflows/", source=name)["results"]) == 13, PATIENCE_SECONDS)
    rest.post("/workflows/enable/", source=name, all=True)


@pytest.fixture(scope="module")
def named(rest: Rest) -> dict[str, dict[str, str]]:
    """What each tool of each source is called at our endpoint."""
    return {
        source: {
            workflow["upstream"]["id"]: workflow["tool_name"]
            for workflow in rest.get("/workflows/", source=source)["results"]
        }
        for source in SOURCES
    }


async def patiently(client: Client, tool: str, arguments: dict[str, Any]) -> CallToolResult:
    """The result, however long it takes: a call that wants to hear of progress gets no handle."""

    async def ignore(value: float, total: float | None, message: str | None) -> None:
        return None

    return await client.call_tool(tool, arguments, progress_callback=ignore)


def noted(product: Product, tools: ManyToolsServer, event: str, tool: str, *, more_than: int) -> None:
    wait_until(lambda: tools.count(event, tool) > more_than, PATIENCE_SECONDS, product.told)


async def until_running(rest: Rest, tool: str) -> dict[str, Any]:
    """Its latest execution, once the server has said how far it is. An earlier one has ended, and keeps its
    progress."""

    def look() -> dict[str, Any] | None:
        found = newest(rest, tool)
        return found if found["state"] in ("starting", "running") and found["progress"] is not None else None

    return await asyncio.to_thread(wait_until, look, PATIENCE_SECONDS)


@pytest.mark.parametrize("source", SOURCES)
async def test_progress_reaches_the_caller_and_a_cancel_reaches_the_server(
    product, rest, servers, program, named, source
):
    """A7.1, A7.3, A7.5, A8.2, A8.5: passed on both ways, whatever the server speaks."""
    tools = servers[source].tools if source in servers else program
    tool, before = named[source]["last"], tools.count("cancelled", "last")
    heard: list[tuple[float, float | None, str | None]] = []
    passed = asyncio.Event()

    async def note(value: float, total: float | None, message: str | None) -> None:
        heard.append((value, total, message))
        if message and "have passed" in message:
            passed.set()

    async with client_of_2026(product) as client:
        call = asyncio.create_task(client.call_tool(tool, {"seconds": 30}, progress_callback=note))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await passed.wait()
        execution = await until_running(rest, tool)
        await client.call_tool("cancel_execution", {"execution_id": execution["id"]})
        result = await call
    assert result.is_error and "cancelled" in text_of(result)
    assert newest(rest, tool)["state"] == "cancelled"
    noted(product, tools, "cancelled", "last", more_than=before)


async def test_a_task_of_the_server_is_followed_to_its_result_and_can_be_cancelled(
    product, rest, servers, named
):
    """A7.2, A7.5, A8.1: what the server answers with a task is a run like any other."""
    tool = named["stateless"]["research"]
    async with client_of_2026(product) as client:
        done = await patiently(client, tool, {"seconds": 0.1})
        handle = (await client.call_tool(tool, {"seconds": 600})).structured_content
        assert handle["state"] == "running"
        await client.call_tool("cancel_execution", {"execution_id": handle["execution_id"]})
    assert text_of(done) == "All is known."
    wait_until(lambda: newest(rest, tool)["state"] == "cancelled", PATIENCE_SECONDS, product.told)
    assert servers["stateless"].tools.count("cancelled", "research") == 1


@pytest.mark.parametrize("source", ["sessions", "stateless"])
async def test_a_server_killed_in_mid_call_leaves_the_outcome_open_and_serves_the_next_call(
    product, rest, servers, named, source
):
    """A5.1, A7.2, B5: nobody is told that nothing happened; the other sources are not touched."""
    names, server = named[source], servers[source]
    async with client_of_2026(product) as client:
        call = asyncio.create_task(patiently(client, names["last"], {"seconds": 30}))
        await until_running(rest, names["last"])
        server.kill()
        lost = await call
        away = await client.call_tool(names["say"], {"sentence": "Anybody there?"})
        other = await patiently(client, named["program"]["say"], {"sentence": "Still here."})
        server.bring_up()
        back = await patiently(client, names["say"], {"sentence": "Back again."})
    assert "not known" in text_of(lost)
    assert newest(rest, names["last"])["state"] == "unconfirmed"
    assert text_of(other) == "Still here."
    assert text_of(back) == "Back again."
    assert away.is_error or "execution_id" in (away.structured_content or {})


async def test_a_program_that_dies_is_started_again_with_what_it_started_gone(product, rest, named):
    """A5.1, B10: a source over stdio is back with the next call, and nothing of the old one is left."""
    names = named["program"]
    async with client_of_2026(product) as client:
        lost = await patiently(client, names["die"], {})
        back = await patiently(client, names["say"], {"sentence": "Back again."})
        told = text_of(await patiently(client, names["environment"], {}))
    assert "not known" in text_of(lost)
    assert text_of(back) == "Back again."
    assert '"MANY_TOOLS_KEY": "***"' in told
    assert not re.search(r"SECRET_KEY|DATABASE_URL|CATALOGUE_DATA_DIR|\"PORT\"", told)


def test_a_program_ends_with_the_process_that_talks_to_it(product, named):
    """B10: even when that one is killed."""
    started = product.program("tests.engines.mcp_server")
    assert started is not None
    os.kill(started.ppid(), signal.SIGKILL)
    _, left = psutil.wait_procs([started], timeout=PATIENCE_SECONDS)
    assert not left
    wait_until(lambda: _answers(f"{product.url}/admin/login/"), PATIENCE_SECONDS, product.told)
