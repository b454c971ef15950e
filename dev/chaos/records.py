"""What is on record in the end: the product's executions and the engines' runs."""

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx2

from dev.chaos.deployment import OBSERVER, Deployment
from dev.chaos.plan import PLAIN

ACTIVE = ("pending", "starting", "running")
MARK = re.compile(r"mark-\d{5}")
LOOK_AGAIN_SECONDS = 1.0
ATTEMPTS = 20
Found = TypeVar("Found")


@dataclass(frozen=True, kw_only=True, slots=True)
class Execution:
    """One of the product's."""

    id: str
    mark: str
    source: str
    state: str
    run_id: str = ""
    output: Any = field(default=None, repr=False)
    error: str = ""
    cancel_requested: bool = False
    story: str = field(default="", repr=False)
    """The timeline, for finding out what went wrong."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One of an engine's."""

    source: str
    run_id: str
    mark: str
    key: str
    """The product's id of the execution, where it was sent."""
    status: str
    output: Any = field(default=None, repr=False)
    error: str = ""
    started_at: int = 0
    ended_at: int = 0
    """Milliseconds since the epoch, by the engine's clock."""


class Records:
    """Reads both sides; what is down for a moment is asked again."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._client = httpx2.AsyncClient(timeout=60, trust_env=False)

    async def aclose(self) -> None:
        await self._client.aclose()

    async def wait_until_settled(self, *, seconds: float) -> bool:
        """Until nothing changes by itself any more on either side; False when the time was not enough."""
        deadline, quiet = time.monotonic() + seconds, 0
        while time.monotonic() < deadline:
            # Twice in a row: between a run's end and its record there is a moment.
            quiet = quiet + 1 if await self._is_quiet() else 0
            if quiet == 2:
                return True
            await asyncio.sleep(LOOK_AGAIN_SECONDS)
        return False

    async def executions(self) -> list[Execution]:
        """All of them, with their payloads and timelines."""
        ids, page = [], 1
        while True:
            listed = await self._list(page=str(page), ordering="created_at", page_size="200")
            ids += [entry["id"] for entry in listed["results"]]
            if not listed["next"]:
                break
            page += 1
        return [_execution(await self._ask(f"/executions/{execution_id}/")) for execution_id in ids]

    async def runs(self) -> list[Run]:
        found = [(name, run) for name in self._deployment.engines for run in await self._runs_of(name)]
        return [_run(name, run) for name, run in found]

    async def _is_quiet(self) -> bool:
        for name in self._deployment.engines:
            if any(run["status"] == "RUNNING" for run in await self._runs_of(name)):
                return False
        active = [await self._list(state=state, page_size="1") for state in ACTIVE]
        return not any(listed["count"] for listed in active)

    async def _runs_of(self, name: str) -> list[dict[str, Any]]:
        engine = self._deployment.engines[name]
        headers = {"authorization": f"Api-Key {engine.api_key}"}
        answer = await _insist(lambda: self._client.get(f"{engine.base_url}/runs", headers=headers))
        runs: list[dict[str, Any]] = answer.json()["runs"]
        return runs

    async def _list(self, **filters: str) -> Any:
        return await self._ask("/executions/", **filters)

    async def _ask(self, path: str, **filters: str) -> Any:
        headers = {"authorization": f"Bearer {self._deployment.tokens[OBSERVER]}"}
        url = f"{self._deployment.web_urls[0]}/api{path}"
        return (await _insist(lambda: self._client.get(url, params=filters, headers=headers))).json()


async def _insist(ask: Callable[[], Awaitable[httpx2.Response]]) -> httpx2.Response:
    for attempt in range(ATTEMPTS):
        try:
            answer = await ask()
        except httpx2.TransportError:
            if attempt == ATTEMPTS - 1:
                raise
        else:
            if answer.status_code < 500 or attempt == ATTEMPTS - 1:
                return answer.raise_for_status()
        await asyncio.sleep(LOOK_AGAIN_SECONDS)
    raise AssertionError("the last attempt returns or raises")


def mark_of(arguments: Any) -> str:
    found = MARK.search(json.dumps(arguments))
    return found[0] if found else ""


def _execution(row: dict[str, Any]) -> Execution:
    lines = [f"{event['at']} {event['kind']}: {event['message']}" for event in row["events"]]
    return Execution(
        id=row["id"],
        mark=mark_of(row["input"]),
        source=row["source"],
        state=row["state"],
        run_id=row["run_id"],
        output=row["output"],
        error=(row["error"] or {}).get("message", ""),
        cancel_requested=row["cancel_requested_at"] is not None,
        story="\n".join(lines),
    )


def _run(source: str, row: dict[str, Any]) -> Run:
    return Run(
        source=source,
        run_id=row["run_id"],
        mark=mark_of(row["input"]),
        key=(row["idempotency_key"] or "") if source != PLAIN else "",
        status=row["status"],
        output=row["output"],
        error=row["error"] or "",
        started_at=row["create_time"],
        ended_at=row["end_time"] or 0,
    )
