"""Requests that arrive all at once: each must be answered soon, and every process stays ready and can end.

Run `python -m dev.chaos.bursts --connections 6`. The last line holds the figures; the exit code is 1 if an
answer was late, missing, or neither acceptance nor an honest refusal.
"""

import argparse
import asyncio
import itertools
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from dev.chaos.deployment import OBSERVER, Deployment, deployed
from dev.chaos.doors import META, VERSION
from dev.chaos.plan import CALLERS, KEYED, WEBS
from dev.chaos.stacks import StackName, choose_name, own_stack

SOON = 10.0
"""Seconds within which each answer must have arrived."""
HONEST = {200, 201, 202, 204, 400, 403, 404, 409, 429}
TOOL = "countdown"
GRACE = 2
"""Seconds that the web processes have to end, and what forces them needs as long again."""
PROBE_SECONDS = 0.5
MCP_SECONDS = 60.0
"""For tool calls, which wait for their runs."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, and with `soon` one that must not wait."""

    url: str
    token: str
    body: dict[str, Any] = field(default_factory=dict)
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=dict)
    soon: bool = True


@dataclass(slots=True)
class Report:
    answers: Counter[str] = field(default_factory=Counter)
    longest: float = 0.0
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        figures = " ".join(f"{status}={number}" for status, number in sorted(self.answers.items()))
        return f"{figures} longest={self.longest:.1f}"


async def burst(requests: Sequence[Asked], *, probes: Sequence[str] = ()) -> Report:
    """Send all of them at the same moment, each on a connection of its own, and ask whether the processes at
    the addresses of `probes` are ready until all are answered."""
    report, over = Report(), asyncio.Event()
    unlimited = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=unlimited) as session, asyncio.TaskGroup() as probing:
        for url in probes:
            probing.create_task(_probe(session, url, report, over))
        await asyncio.gather(*(_ask(session, asked, report) for asked in requests))
        over.set()
    return report


async def _probe(session: aiohttp.ClientSession, url: str, report: Report, over: asyncio.Event) -> None:
    while not over.is_set():
        async with session.get(f"{url}/health/ready") as answer:
            if answer.status != 200:
                report.problems.append(f"{url} is not ready: {await answer.text()}")
        with suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), PROBE_SECONDS)


async def _ask(session: aiohttp.ClientSession, asked: Asked, report: Report) -> None:
    begun = time.monotonic()
    headers = {"authorization": f"Bearer {asked.token}", **asked.headers}
    limit = aiohttp.ClientTimeout(total=MCP_SECONDS)
    try:
        async with session.request(
            asked.method, asked.url, json=asked.body, headers=headers, timeout=limit
        ) as answer:
            text, status = await answer.text(), answer.status
            is_busy = status == 503 and "Busy:" in text and "retry-after" in answer.headers
    except (aiohttp.ClientError, TimeoutError) as error:
        text, status, is_busy = repr(error), 0, False
    seconds = time.monotonic() - begun
    report.answers["busy" if is_busy else str(status)] += 1
    if asked.soon:
        report.longest = max(report.longest, seconds)
    if not (is_busy or status in HONEST):
        report.problems.append(f"{asked.method} {asked.url}: {status} {text[:300]}")
    if asked.soon and seconds > SOON:
        report.problems.append(f"{asked.method} {asked.url}: after {seconds:.1f} s")


def starts(deployment: Deployment, number: int, *, processes: int) -> list[Asked]:
    """Starts of runs by REST, without waiting."""
    tool = deployment.tools[KEYED][TOOL]
    ways = _ways(deployment, processes)
    return [
        Asked(
            f"{url}/api/executions/",
            token,
            {"tool": tool, "arguments": {"seconds": 0, "message": str(index)}, "wait_seconds": 0},
        )
        for index, (url, token) in zip(range(number), ways, strict=False)
    ]


def calls(deployment: Deployment, number: int, *, processes: int) -> list[Asked]:
    """Tool calls by MCP, which wait for the result."""
    tool = deployment.tools[KEYED][TOOL]
    headers = {
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": VERSION,
        "mcp-method": "tools/call",
        "mcp-name": tool,
    }
    ways = _ways(deployment, processes)
    return [
        Asked(
            f"{url}/mcp",
            token,
            {
                "jsonrpc": "2.0",
                "id": index,
                "method": "tools/call",
                "params": {"name": tool, "arguments": {"seconds": 0, "message": str(index)}, "_meta": META},
            },
            headers=headers,
            soon=False,
        )
        for index, (url, token) in zip(range(number), ways, strict=False)
    ]


def changes(deployment: Deployment, number: int, *, processes: int) -> list[Asked]:
    """All other requests that lock rows or take turns: curation, settings, tokens, listings, cancelling."""
    tool = deployment.tools[KEYED][TOOL]
    token = deployment.tokens[OBSERVER]
    kinds: list[tuple[str, str, dict[str, Any]]] = [
        ("POST", f"/workflows/{tool}/enable/", {}),
        ("PATCH", f"/workflows/{tool}/", {"title": "Echo"}),
        ("PATCH", "/settings/", {"reattach_seconds": 60}),
        ("POST", "/toolsets/", {"slug": "burst", "name": "Burst"}),
        ("POST", f"/sources/{KEYED}/refresh/", {}),
        ("POST", "/tokens/", {"name": "burst", "scopes": ["workflows:read"]}),
        ("POST", "/result-cache/clear/", {}),
        ("POST", "/executions/00000000-0000-0000-0000-000000000000/cancel/", {}),
        ("POST", "/reviews/accept/", {"offers": {}}),
    ]
    urls = itertools.cycle(deployment.web_urls[:processes])
    return [
        Asked(f"{url}/api{path}", token, body, method)
        for (method, path, body), url, _ in zip(itertools.cycle(kinds), urls, range(number), strict=False)
    ]


def _ways(deployment: Deployment, processes: int) -> Any:
    tokens = [deployment.tokens[caller] for caller in CALLERS]
    return itertools.cycle(itertools.product(deployment.web_urls[:processes], tokens))


async def set_limits(deployment: Deployment, **limits: int | None) -> None:
    """Live settings by REST; None: as usual."""
    asked = Asked(f"{deployment.web_urls[0]}/api/settings/", deployment.tokens[OBSERVER], limits, "PATCH")
    report = await burst([asked])
    assert not report.problems, report.problems


async def end_all(deployment: Deployment) -> dict[str, int | None]:
    """Interrupt every web process. Its exit status."""
    return {name: await deployment.programs[name].interrupt(seconds=2 * GRACE + SOON) for name in WEBS}


async def run_bursts(connections: int, folder: Path, stack: StackName) -> list[str]:
    """Returns what went wrong, and prints the figures of each burst."""
    problems: list[str] = []
    variables = {"CATALOGUE_DATABASE_CONNECTIONS": str(connections)}
    with own_stack(stack) as own:
        async with deployed(
            own, folder, engines=[KEYED], graceful_seconds=GRACE, variables=variables
        ) as running:
            for limit, number, processes in PLAN:
                await set_limits(running, max_concurrent_executions=limit, max_queued_executions=limit)
                wanted = starts(running, number, processes=processes)
                if number >= BESIDE_CALLS:
                    wanted += calls(running, 200, processes=processes)
                report = await burst(wanted, probes=running.web_urls)
                print(f"limit={limit} starts={number} processes={processes}: {report}", flush=True)
                problems += report.problems
            await set_limits(running, max_concurrent_executions=None, max_queued_executions=None)
            report = await burst(changes(running, 64, processes=2), probes=running.web_urls)
            print(f"changes=64: {report}", flush=True)
            problems += report.problems
            problems += [
                f"{name} ended with {status}"
                for name, status in (await end_all(running)).items()
                if status != 0
            ]
    return problems


PLAN = (  # The limit of running and of queued executions, how many starts, at how many web processes
    (None, 32, 1),
    (None, 64, 1),
    (20, 64, 1),
    (None, 500, 1),
    (20, 500, 2),
    (None, 500, 2),
)
BESIDE_CALLS = 500


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m dev.chaos.bursts",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--connections", type=int, default=6, metavar="N", help="of each process to the database (default: 6)"
    )
    add("--stack", type=StackName, choices=list(StackName), help="default: what DATABASE_URL says, or sqlite")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="workflow-catalogue-bursts-") as folder:
        problems = asyncio.run(run_bursts(given.connections, Path(folder), given.stack or choose_name()))
    for problem in problems:
        print(f"WRONG {problem}")
    print(f"{given.stack or choose_name()} connections={given.connections} wrong={len(problems)}")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
