"""`subscriptions/listen`: news of tasks as they come, whichever process makes them."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from django.utils import timezone
from mcp.client.stdio import StdioServerParameters

from catalogue.models import Workflow
from executions import watching
from executions.models import Execution, State
from mcp_bridge import subscriptions
from mcp_bridge.models import AccessToken
from mcp_bridge.tokens import METADATA_PATH, forget_tokens
from tests.connectors.scripted import replies
from tests.executions.engines import WireEngine, completed, in_thread, status, until
from tests.factories import make_execution, make_workflow
from tests.mcp_bridge.conftest import Connect, McpServer
from tests.mcp_bridge.database import in_database
from tests.mcp_bridge.tasks_client import TASKS, TasksExtension, ask, listen, start_task
from tests.mcp_bridge.test_tasks import is_free, modern, owned, send, work_on
from tests.processes import free_port, running

TAG = "io.modelcontextprotocol/subscriptionId"
PATIENCE_SECONDS = 20


@dataclass(frozen=True)
class OtherProcess:
    """A second server on the same database."""

    server: McpServer
    process: subprocess.Popen[bytes]


@pytest.fixture
def other_process(
    stdio_server: StdioServerParameters, tmp_path: Path, mcp_server: McpServer
) -> Iterator[OtherProcess]:
    port = free_port()
    server = McpServer(f"http://127.0.0.1:{port}")
    command = [sys.executable, "-m", "uvicorn", "config.asgi:application", f"--port={port}", "--lifespan=on"]
    with running(
        command,
        answers_at=f"{server.base_url}{METADATA_PATH}/mcp",
        log=tmp_path / "server.log",
        environment=stdio_server.env,
    ) as process:
        yield OtherProcess(server, process)


class Stream:
    """What comes on one subscription, as it is on the wire."""

    def __init__(self, response: httpx2.Response) -> None:
        self.response = response
        self._lines = response.aiter_lines()

    async def message(self) -> dict[str, Any]:
        """The next message; comments keep the connection alive and are none."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            async for line in self._lines:
                if line.startswith("data:"):
                    message: dict[str, Any] = json.loads(line.removeprefix("data:"))
                    return message
        raise AssertionError("the stream ended without another message")

    async def task(self) -> dict[str, Any]:
        message = await self.message()
        assert message["method"] == "notifications/tasks", message
        assert message["params"].pop("_meta") == {TAG: 7}
        return dict(message["params"])


@asynccontextmanager
async def listening(server: McpServer, token: str, *task_ids: str, **filters: Any) -> AsyncIterator[Stream]:
    wanted = {"taskIds": list(task_ids), **filters}
    body, headers = modern("subscriptions/listen", notifications=wanted)
    headers |= {"authorization": f"Bearer {token}", "accept": "application/json, text/event-stream"}
    async with (
        httpx2.AsyncClient(trust_env=False, timeout=PATIENCE_SECONDS) as client,
        client.stream("POST", server.url, json=body, headers=headers) as response,
    ):
        yield Stream(response)


def acknowledgement(message: dict[str, Any]) -> dict[str, Any]:
    assert message["method"] == "notifications/subscriptions/acknowledged"
    assert message["params"]["_meta"] == {TAG: 7}
    return dict(message["params"]["notifications"])


def is_the_end(message: dict[str, Any]) -> bool:
    result = message["result"]
    return message["id"] == 7 and result["resultType"] == "complete" and result["_meta"][TAG] == 7


async def test_a_subscription_tells_of_each_change_and_ends_with_the_task(
    mcp_server: McpServer, connect: Connect, token: str, long_workflow: Workflow, wire_engine: WireEngine
):
    """A8.3: acknowledged first, then the whole task each time, as `tasks/get` would show it."""
    async with connect(extensions=[TasksExtension()]) as client:
        task_id = (await start_task(client.session, "report", {})).task_id
        await until(is_free, "a worker could go on")
        async with listening(mcp_server, token, task_id, toolsListChanged=True) as stream:
            assert acknowledgement(await stream.message()) == {"taskIds": [task_id]}
            present = await stream.task()
            wire_engine.on_status = replies(200, status(progress=40, progress_message="Counting"))
            await in_thread(work_on)
            moved = await stream.task()
            wire_engine.on_status = replies(200, completed({"sum": None}))
            await in_thread(work_on)
            ended = await stream.task()
            assert is_the_end(await stream.message())
        shown = await ask(client.session, "tasks/get", task_id)
    assert (present["taskId"], present["status"], present["ttlMs"]) == (task_id, "working", None)
    assert (moved["status"], moved["statusMessage"]) == ("working", "40 %: Counting")
    assert ended == {name: value for name, value in shown.items() if name not in ("_meta", "resultType")}
    assert ended["result"]["structuredContent"] == {"sum": None}


async def test_the_official_client_hears_of_its_tasks(
    open_client: Connect, long_workflow: Workflow, wire_engine: WireEngine
):
    """E8: over both transports."""
    extension = TasksExtension()
    async with open_client(mode="2026-07-28", extensions=[extension]) as client:
        task_id = (await start_task(client.session, "report", {})).task_id
        await until(is_free, "a worker could go on")
        subscription = asyncio.create_task(listen(client.session, task_id))
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert (await extension.heard_of.get())["status"] == "working"
            wire_engine.on_status = replies(200, completed())
            await in_thread(work_on)
            assert (await extension.heard_of.get())["result"]["structuredContent"] == {"answer": 42}
            assert (await subscription)["resultType"] == "complete"


async def test_only_the_callers_own_tasks_are_honoured(mcp_server: McpServer, token: str):
    """Foreign and unknown ones are left out alike."""
    mine = await in_database(lambda: owned(make_workflow(), state=State.RUNNING))()
    foreign = await in_database(lambda: make_execution(make_workflow(), caller="token:0"))()
    unknown = "00000000-0000-4000-8000-000000000000"
    async with listening(mcp_server, token, str(foreign.pk), str(mine.pk), unknown, "nonsense") as stream:
        assert acknowledgement(await stream.message()) == {"taskIds": [str(mine.pk)]}
        assert (await stream.task())["taskId"] == str(mine.pk)
    async with listening(mcp_server, token, str(foreign.pk), unknown) as stream:
        assert acknowledgement(await stream.message()) == {}
        assert is_the_end(await stream.message())


async def test_what_is_not_supported_is_left_out_of_the_acknowledgement(mcp_server: McpServer, token: str):
    """Nothing can ever come of it, so the stream ends at once."""
    body, headers = modern("subscriptions/listen", capabilities={}, notifications={"toolsListChanged": True})
    answer = await in_thread(lambda: mcp_server.post(body, token=token, headers=headers))
    messages = [json.loads(line[5:]) for line in answer.text.splitlines() if line.startswith("data:")]
    assert acknowledgement(messages[0]) == {}
    assert is_the_end(messages[1])


async def test_a_task_that_has_ended_is_told_of_once(mcp_server: McpServer, token: str):
    """So that nothing is lost between a client's last look and its subscription."""
    execution = await in_database(lambda: owned(make_workflow(), state=State.CANCELLED, error="Enough."))()
    async with listening(mcp_server, token, str(execution.pk), str(execution.pk)) as stream:
        assert acknowledgement(await stream.message()) == {"taskIds": [str(execution.pk)]}
        assert (await stream.task())["status"] == "cancelled"
        assert is_the_end(await stream.message())


def test_listening_for_tasks_needs_the_extension(mcp_server: McpServer, token: str):
    answer = send(
        mcp_server, token, "subscriptions/listen", capabilities={}, notifications={"taskIds": ["a"]}
    )
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32021)
    assert answer.json()["error"]["data"]["requiredCapabilities"] == {"extensions": {TASKS: {}}}


@pytest.mark.parametrize("task_ids", ["all", [1], [None], {"a": 1}, ["x"] * (subscriptions.MOST_TASKS + 1)])
def test_malformed_and_too_many_ids_are_refused(mcp_server: McpServer, token: str, task_ids: Any):
    answer = send(mcp_server, token, "subscriptions/listen", notifications={"taskIds": task_ids})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32602)
    assert "taskIds" in answer.json()["error"]["message"]


async def test_a_caller_has_a_bounded_number_of_subscriptions(
    mcp_server: McpServer, token: str, monkeypatch: pytest.MonkeyPatch
):
    """The one too many is refused; one that ends makes room for another."""
    monkeypatch.setattr(subscriptions, "MOST_SUBSCRIPTIONS", 1)
    execution = await in_database(lambda: owned(make_workflow(), state=State.RUNNING))()
    wanted = {"taskIds": [str(execution.pk)]}
    async with listening(mcp_server, token, str(execution.pk)) as stream:
        await stream.message()
        refused = await in_thread(
            lambda: send(mcp_server, token, "subscriptions/listen", notifications=wanted)
        )
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, -32600)
        assert "1 subscriptions of this token are open already" in refused.json()["error"]["message"]
    await until(lambda: not watching._watchers, "the stream that was closed is noticed")
    async with listening(mcp_server, token, str(execution.pk)) as stream:
        assert acknowledgement(await stream.message()) == wanted


async def test_whoever_disconnects_leaves_nothing_behind(mcp_server: McpServer, token: str):
    """While nobody watches, nothing is asked of the database."""
    execution = await in_database(lambda: owned(make_workflow(), state=State.RUNNING))()
    async with listening(mcp_server, token, str(execution.pk)) as stream:
        await stream.message()
        await until(lambda: watching._watchers, "the execution is watched")
    await until(lambda: not watching._watchers, "nothing is watched any more")


@pytest.mark.parametrize("change", ["revoked", "expired", "removed"])
async def test_a_stream_ends_when_what_it_was_let_in_for_is_gone(
    mcp_server: McpServer, token: str, change: str
):
    """Nothing is told any more to a token that has been revoked since, nor of an execution that is gone."""
    execution = await in_database(lambda: owned(make_workflow(), state=State.RUNNING))()

    def make_it_so() -> None:
        holders = AccessToken.objects.filter(name="agent")
        if change == "removed":
            execution.delete()
            return
        if change == "revoked":
            holders.update(revoked_at=timezone.now())
        else:
            holders.update(expires_at=timezone.now() - timedelta(seconds=1))
        forget_tokens()
        Execution.objects.update(progress=50)

    async with listening(mcp_server, token, str(execution.pk)) as stream:
        await stream.message()
        await stream.task()
        await in_thread(make_it_so)
        assert is_the_end(await stream.message())


async def test_another_process_tells_of_the_task_and_ends_its_streams_when_it_shuts_down(
    other_process: OtherProcess,
    connect: Connect,
    long_workflow: Workflow,
    wire_engine: WireEngine,
    token: str,
):
    """B7: tasks are in the database only; a server that is told to end says so to whoever listens."""
    async with connect(extensions=[TasksExtension()]) as client:
        task_id = (await start_task(client.session, "report", {})).task_id
    await until(is_free, "a worker could go on")
    shown = await in_thread(lambda: send(other_process.server, token, "tasks/get", taskId=task_id))
    assert shown.json()["result"]["status"] == "working"
    async with listening(other_process.server, token, task_id) as stream:
        assert acknowledgement(await stream.message()) == {"taskIds": [task_id]}
        await stream.task()
        wire_engine.on_status = replies(200, status(progress=40))
        await in_thread(work_on)
        assert (await stream.task())["statusMessage"].startswith("40 %")
        other_process.process.terminate()
        assert is_the_end(await stream.message())
    assert await in_thread(lambda: other_process.process.wait(PATIENCE_SECONDS)) in (0, -15)
