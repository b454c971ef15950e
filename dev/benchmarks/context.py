"""What `list_workflows` costs a model, in each mode against full schemas, and what it costs the server."""

import asyncio
import os
import sys
import tempfile
import tracemalloc
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from dev.benchmarks._figures import milliseconds, percentile, table
from dev.benchmarks._load import send_load
from dev.benchmarks._processes import McpServer, catalogue_server, own_database
from dev.benchmarks._workflows import fill_catalogue, realistic_definitions

COUNTS = (10, 20, 50, 80, 100, 200)
TYPICAL = 80
GOALS = {"compact": 0.60, "standard": 0.45}
"""How much smaller than full schemas a list of the typical number has to be."""
MODES = (*GOALS, "detailed")
CHARACTERS_PER_TOKEN = 4
GOAL_P99_SECONDS = 0.02
GOAL_MEGABYTES = 3.0
WARM_UP, REQUESTS, ROUNDS = 30, 250, 4
VERSION = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": VERSION,
    "io.modelcontextprotocol/clientCapabilities": {},
}


def expose_first(count: int) -> None:
    """Of the workflows in the database, those of this process's next list."""
    from catalogue.exposure import confirmed_catalogue
    from catalogue.models import Revision, Workflow

    wanted = [definition["id"] for definition in realistic_definitions(count)]
    Workflow.objects.filter(upstream_id__in=wanted).update(enabled=True)
    Workflow.objects.exclude(upstream_id__in=wanted).update(enabled=False)
    Revision.bump()
    assert len(confirmed_catalogue().workflows) == count


def full_schemas() -> int:
    """Characters that `tools/list` sends for the workflows alone, without the built-in tools."""
    from catalogue.exposure import current_catalogue
    from mcp_bridge.tool_lists import workflow_tool

    tools = map(workflow_tool, current_catalogue().workflows.values())
    return sum(len(tool.model_dump_json(by_alias=True, exclude_none=True)) + 1 for tool in tools)


def listed(mode: str) -> str:
    """What a model reads of the answer."""
    from identity.tokens import Access
    from mcp_bridge.builtin_tools import BUILT_IN_TOOLS, call_built_in
    from mcp_bridge.calls import ToolCall

    call = ToolCall(access=Access.of_local_user(), protocol_version=VERSION)
    result: Any = asyncio.run(call_built_in(BUILT_IN_TOOLS["list_workflows"], call, {"mode": mode}))
    assert not result.is_error, result.content[0].text
    return str(result.content[0].text)


def measure_sizes(count: int) -> dict[str, int]:
    expose_first(count)
    return {"full": full_schemas(), **{mode: len(listed(mode)) for mode in MODES}}


def saving(sizes: dict[str, int], mode: str) -> float:
    return 1 - sizes[mode] / sizes["full"]


def size_rows(found: dict[int, dict[str, int]]) -> Iterable[tuple[str, ...]]:
    yield "workflows", "full schemas", *(f"{mode} (saved)" for mode in MODES)
    for count, sizes in found.items():
        yield (
            str(count),
            _size(sizes["full"]),
            *(f"{_size(sizes[mode])} ({saving(sizes, mode):.0%})" for mode in MODES),
        )


def _size(characters: int) -> str:
    return f"{characters:,} = {round(characters / CHARACTERS_PER_TOKEN):,} t"


def measure_memory(mode: str) -> float:
    """The peak in megabytes of making the answer, of a second call: the first one loads modules."""
    listed(mode)
    tracemalloc.start()
    listed(mode)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak / 1_000_000


def measure_times(server: McpServer) -> dict[str, list[float]]:
    """The best round of each mode; they take turns, so that a busy machine disturbs all."""
    for mode in MODES:
        send(server, mode, WARM_UP)
    rounds = [{mode: send(server, mode, REQUESTS) for mode in MODES} for _ in range(ROUNDS)]
    return {mode: min((found[mode] for found in rounds), key=lambda f: percentile(f, 99)) for mode in MODES}


def send(server: McpServer, mode: str, requests: int) -> list[float]:
    params = {"name": "list_workflows", "arguments": {"mode": mode}, "_meta": META}
    headers = {
        "accept": "application/json, text/event-stream",
        "authorization": f"Bearer {server.token}",
        "mcp-protocol-version": VERSION,
        "mcp-method": "tools/call",
        "mcp-name": "list_workflows",
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    return asyncio.run(send_load(server, body, headers, clients=1, requests=requests))


def cost_rows(memory: dict[str, float], times: dict[str, list[float]]) -> Iterable[tuple[str, ...]]:
    yield f"{TYPICAL} workflows", "p50", "p99", "memory while making it"
    for mode in MODES:
        latencies = (milliseconds(percentile(times[mode], percent)) for percent in (50, 99))
        yield mode, *latencies, f"{memory[mode]:.2f} MB"


def main() -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        database = stack.enter_context(own_database(os.environ.get("DATABASE_URL", "")))
        fill_catalogue(max(COUNTS))
        print(f"  characters, and tokens at {CHARACTERS_PER_TOKEN} characters each")
        sizes = {count: measure_sizes(count) for count in COUNTS}
        table(*size_rows(sizes))
        expose_first(TYPICAL)
        memory = {mode: measure_memory(mode) for mode in MODES}
        server = stack.enter_context(catalogue_server(folder))
        times = measure_times(server)
        print(f"  {database}, one client, {REQUESTS} requests a round, best of {ROUNDS} rounds")
        table(*cost_rows(memory, times))
    missed = [
        *(
            f"{mode} saves {least:.0%}"
            for mode, least in GOALS.items()
            if saving(sizes[TYPICAL], mode) < least
        ),
        *(
            f"{mode} in {GOAL_P99_SECONDS}s"
            for mode in MODES
            if percentile(times[mode], 99) > GOAL_P99_SECONDS
        ),
        *(f"{mode} in {GOAL_MEGABYTES} MB" for mode in MODES if memory[mode] > GOAL_MEGABYTES),
    ]
    goals = f"at {TYPICAL} compact saves 60 %, standard 45 %; p99 under 20 ms; under 3 MB"
    print(f"  goals: {goals}: {'MISSED: ' + ', '.join(missed) if missed else 'met'}")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
