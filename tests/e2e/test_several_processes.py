"""Two web processes and two workers on one database: it does not matter which one is asked."""

import asyncio
import json
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate, pairwise
from threading import Barrier
from typing import Any

import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from dev.chaos.deployment import OBSERVER, Deployment, deployed
from dev.chaos.plan import KEYED, PLAIN
from dev.chaos.stacks import choose_name, own_stack
from tests import plain_http
from tests.e2e.product import AGENT, wait_until
from tests.processes import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

PATIENCE_SECONDS = 90.0
MIN_POLL_SECONDS = 1.0
LIMIT = 3
"""Runs at a time at the other engine."""
ENDED = ("completed", "failed", "cancelled", "timed_out")
STATUS_REQUEST = re.compile(r"^(\S+ \S+) INFO uvicorn\.access: .*/runs/([0-9a-f-]{36})/status")


@dataclass
class Web:
    """One of the two web processes, as one caller sees it."""

    url: str
    token: str

    def start(self, tool: str, arguments: dict[str, Any], *, key: str = "", wait: int = 0) -> dict[str, Any]:
        headers = {"idempotency-key": key} if key else {}
        body = {"tool": tool, "arguments": arguments, "wait_seconds": wait}
        return self.ask("POST", "/executions/", json=body, headers=headers)

    def read(self, execution_id: str) -> dict[str, Any]:
        return self.ask("GET", f"/executions/{execution_id}/")

    def cancel(self, execution_id: str) -> dict[str, Any]:
        return self.ask("POST", f"/executions/{execution_id}/cancel/")

    def settled(self, execution_id: str) -> dict[str, Any]:
        """The execution once it has ended."""
        found: dict[str, Any] = wait_until(
            lambda: (read := self.read(execution_id))["state"] in ENDED and read, PATIENCE_SECONDS
        )
        return found

    @asynccontextmanager
    async def mcp(self) -> AsyncIterator[Client]:
        headers = {"Authorization": f"Bearer {self.token}"}
        async with plain_http.AsyncClient(headers=headers, timeout=60) as http:
            transport = streamable_http_client(f"{self.url}/mcp", http_client=http)
            async with Client(transport, mode="2026-07-28", client_info=AGENT) as client:
                yield client

    def ask(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        headers = request.pop("headers", {}) | {"authorization": f"Bearer {self.token}"}
        answer = plain_http.request(method, f"{self.url}/api{path}", headers=headers, timeout=60, **request)
        found: dict[str, Any] = answer.raise_for_status().json()
        return found


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("several")
    with asyncio.Runner() as runner, own_stack(choose_name()) as stack:
        entering = deployed(stack, folder, limits={PLAIN: LIMIT}, engine_log_level="debug")
        running = runner.run(entering.__aenter__())
        try:
            yield running
        finally:
            runner.run(entering.__aexit__(None, None, None))


@pytest.fixture
def webs(deployment: Deployment) -> tuple[Web, Web]:
    first, second = (Web(url, deployment.tokens["alice"]) for url in deployment.web_urls)
    return first, second


@pytest.fixture
def tools(deployment: Deployment) -> dict[str, str]:
    return deployment.tools[KEYED]


def runs_with(deployment: Deployment, mark: str) -> list[dict[str, Any]]:
    return [run for run in deployment.engines[KEYED].runs() if mark in json.dumps(run["input"])]


def test_a_run_started_at_one_is_seen_and_cancelled_at_the_other(deployment, webs, tools):
    """A8.1, A7.5: status and cancelling need no process in particular."""
    here, there = webs
    started = here.start(tools["countdown"], {"seconds": 3600, "message": "seen there"})
    wait_until(lambda: there.read(started["id"])["state"] == "running", PATIENCE_SECONDS)
    there.cancel(started["id"])
    assert here.settled(started["id"])["state"] == "cancelled"
    assert [run["status"] for run in runs_with(deployment, "seen there")] == ["CANCELLED"]


async def test_a_call_that_waits_at_one_is_cancelled_at_the_other(deployment, webs, tools):
    """A7.5: whoever waits learns of it, though another process was told."""
    here, there = webs
    arguments = {"seconds": 3600, "message": "waited for here"}

    async def cancel_there() -> None:
        started = await asyncio.to_thread(
            wait_until, lambda: runs_with(deployment, "waited for here"), PATIENCE_SECONDS
        )
        await asyncio.to_thread(there.cancel, started[0]["idempotency_key"])

    async with here.mcp() as client, asyncio.TaskGroup() as together:
        together.create_task(cancel_there())
        # Progress makes it wait for as long as the run takes.
        result = await client.call_tool(tools["countdown"], arguments, progress_callback=_ignore)
    assert result.is_error
    assert "cancelled" in str(result.content)
    assert [run["status"] for run in runs_with(deployment, "waited for here")] == ["CANCELLED"]


@pytest.mark.parametrize("wait", [0, 10])
def test_one_key_at_both_in_the_same_instant_is_one_execution_and_one_run(deployment, webs, tools, wait):
    """The database decides who was first."""
    keys = [f"both-{wait}-{number}" for number in range(4)]
    barrier = Barrier(2)

    def start(web: Web) -> list[str]:
        ids = []
        for key in keys:
            barrier.wait(PATIENCE_SECONDS)
            arguments = {"seconds": 0, "message": f"{key}."}
            ids.append(web.start(tools["countdown"], arguments, key=key, wait=wait)["id"])
        return ids

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(start, webs)
    assert first == second
    for key, execution_id in zip(keys, first, strict=True):
        assert webs[0].settled(execution_id)["state"] == "completed"
        assert len(runs_with(deployment, f"{key}.")) == 1


async def test_a_call_that_broke_off_at_one_goes_on_when_it_is_repeated_at_the_other(deployment, webs, tools):
    """The repeated call gets the run that its lost connection left behind."""
    here, there = webs
    arguments = {"seconds": 3, "message": "broken off"}
    async with here.mcp() as client:
        waiting = asyncio.create_task(client.call_tool(tools["countdown"], arguments))
        await asyncio.to_thread(wait_until, lambda: runs_with(deployment, "broken off"), PATIENCE_SECONDS)
        waiting.cancel()
        await asyncio.wait({waiting})
    execution_id = runs_with(deployment, "broken off")[0]["idempotency_key"]
    await asyncio.to_thread(
        wait_until, lambda: "caller_gone" in _kinds(there.read(execution_id)), PATIENCE_SECONDS
    )
    async with there.mcp() as client:
        result = await client.call_tool(tools["countdown"], arguments)
    assert not result.is_error
    assert "reattached" in _kinds(here.read(execution_id))
    assert len(runs_with(deployment, "broken off")) == 1


def test_two_workers_together_ask_for_no_run_more_often_than_one_may(deployment, webs, tools):
    """B2, B7: an execution is in the hands of one process at a time; the engine's own log shows it."""
    ids = [
        webs[number % 2].start(tools["countdown"], {"seconds": 4, "message": f"polled {number}"})["id"]
        for number in range(20)
    ]
    settled = [webs[0].settled(execution_id) for execution_id in ids]
    asked = _status_requests(deployment)
    for execution in settled:
        assert execution["state"] == "completed"
        gaps = [(later - earlier).total_seconds() for earlier, later in pairwise(asked[execution["run_id"]])]
        assert gaps, "a run of this length is asked for more than once"
        assert min(gaps) >= 0.99 * MIN_POLL_SECONDS


def test_a_limit_holds_over_all_processes_and_everything_gets_its_turn(deployment, webs):
    """B7: calls at both web processes at once, started by them and by both workers."""
    tool = deployment.tools[PLAIN]["countdown"]

    def start(number: int) -> dict[str, Any]:
        arguments = {"seconds": 0.5, "message": f"limited {number}"}
        return webs[number % 2].start(tool, arguments, wait=number % 3)

    with ThreadPoolExecutor(8) as threads:
        ids = [execution["id"] for execution in threads.map(start, range(12))]
    assert {webs[0].settled(execution_id)["state"] for execution_id in ids} == {"completed"}
    runs = deployment.engines[PLAIN].runs()
    assert len(runs) == len(ids)
    moments = sorted([(run["create_time"], 1) for run in runs] + [(run["end_time"], -1) for run in runs])
    assert max(accumulate(change for _, change in moments)) <= LIMIT


async def _ignore(value: float, total: float | None, message: str | None) -> None:
    pass


def _kinds(execution: dict[str, Any]) -> list[str]:
    return [event["kind"] for event in execution["events"]]


def _status_requests(deployment: Deployment) -> dict[str, list[datetime]]:
    """When the engine was asked how each run is, by its log."""
    found = defaultdict(list)
    for line in deployment.programs[KEYED].log.read_text().splitlines():
        if request := STATUS_REQUEST.match(line):
            found[request[2]].append(datetime.strptime(request[1], "%Y-%m-%d %H:%M:%S,%f"))  # noqa: DTZ007
    return found


def make_token(deployment: Deployment, **fields: Any) -> dict[str, Any]:
    curator = Web(deployment.web_urls[0], deployment.tokens[OBSERVER])
    return curator.ask("POST", "/tokens/", json={"name": f"agent {time.monotonic_ns()}", **fields})


def test_a_token_that_is_used_at_both_makes_no_more_calls_than_its_rate(deployment, tools):
    """One a second and five at once: exact, whichever process is asked. Nothing is started beyond it."""
    made = make_token(deployment, calls_per_minute=60, calls_at_once=5)
    headers = {"authorization": f"Bearer {made['token']}"}
    body = {"tool": tools["countdown"], "arguments": {"seconds": 0, "message": made["name"]}}
    begun, answers = time.monotonic(), []

    def hammer(url: str) -> None:
        while time.monotonic() < begun + 4:
            answer = plain_http.request(
                "POST", f"{url}/api/executions/", headers=headers, timeout=60, json=body
            )
            answers.append(answer)

    with ThreadPoolExecutor(8) as threads:
        for url in deployment.web_urls * 4:
            threads.submit(hammer, url)
    took = time.monotonic() - begun
    passed = [answer for answer in answers if answer.status_code == 202]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert len(passed) + len(refused) == len(answers)
    assert 5 <= len(passed) <= 5 + took
    assert refused and all(1 <= int(answer.headers["retry-after"]) <= 2 for answer in refused)
    own = Web(deployment.web_urls[1], made["token"]).ask("GET", "/executions/")
    assert own["count"] == len(passed)


@pytest.mark.parametrize("end", ["revoked", "owner disabled", "former secret ended"])
def test_a_token_that_ends_at_one_opens_nothing_at_the_other_a_second_later(deployment, end):
    """REST, MCP and an open stream of the other process."""
    curator = Web(deployment.web_urls[0], deployment.tokens[OBSERVER])
    made = make_token(deployment)
    there, where = deployment.web_urls[1], f"/tokens/{made['id']}"
    if end == "former secret ended":
        curator.ask("POST", f"{where}/rotate/", json={"overlap_hours": 1})
    if end == "owner disabled":
        manage_users(deployment, made["id"], create=True)
    headers = {"authorization": f"Bearer {made['token']}", "accept": "application/json, text/event-stream"}
    with plain_http.Client(headers=headers, timeout=30) as client:
        with client.stream("GET", f"{there}/mcp") as stream:
            parts = stream.iter_bytes()
            next(parts)
            if end == "owner disabled":
                manage_users(deployment, made["id"], create=False)
            else:
                curator.ask("POST", f"{where}/{'revoke' if end == 'revoked' else 'end-former-secret'}/")
            ended_at = asked_at = time.monotonic()
            for _ in parts:
                pass
            assert time.monotonic() - ended_at < 1.5
        while client.get(f"{there}/api/workflows/").status_code != 401:
            assert asked_at - ended_at < 1.5
            asked_at = time.monotonic()
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        assert client.post(f"{there}/mcp", json=ping).status_code == 401
        assert client.get(f"{there}/api/workflows/").status_code == 401


def manage_users(deployment: Deployment, token: int, *, create: bool) -> None:
    """Make a user the token's owner, or disable that user, in a process of its own."""
    made = "AccessToken.objects.filter(pk={0}).update(owner=User.objects.create(username='owner of {0}'))"
    ended = "User.objects.filter(username='owner of {0}').update(is_active=False)"
    setting_up = "from django.contrib.auth.models import User; from identity.models import AccessToken; "
    subprocess.run(
        [sys.executable, "manage.py", "shell", "-c", setting_up + (made if create else ended).format(token)],
        cwd=ROOT,
        env=deployment.variables,
        check=True,
        capture_output=True,
    )
