"""`subscriptions/listen` with `taskIds`: news of tasks as they come."""

import asyncio
from datetime import timedelta

import pytest
from django.utils import timezone

from executions.models import Execution, State
from mcp_bridge import notifications
from mcp_bridge.bearers import forget_bearers
from mcp_bridge.models import AccessToken
from tests.connectors.scripted import replies
from tests.executions.engines import completed, in_thread, status, until
from tests.factories import make_execution, make_workflow
from tests.mcp_bridge.database import in_database
from tests.mcp_bridge.listening import PATIENCE_SECONDS, listening
from tests.mcp_bridge.tasks_client import TASKS, TasksExtension, ask, listen, start_task
from tests.mcp_bridge.test_tasks import is_free, owned, send, work_on

pytestmark = pytest.mark.usefixtures("quick_news")


async def test_a_subscription_tells_of_each_change_and_ends_with_the_task(
    mcp_server, connect, token, long_workflow, wire_engine
):
    """A8.3: acknowledged first, then the whole task each time, as `tasks/get` would show it."""
    async with connect(extensions=[TasksExtension()]) as client:
        task_id = (await start_task(client.session, "report", {})).task_id
        await until(is_free, "a worker could go on")
        async with listening(mcp_server, token, task_id) as stream:
            assert await stream.honoured() == {"taskIds": [task_id]}
            present = await stream.task()
            wire_engine.on_status = replies(200, status(progress=40, progress_message="Counting"))
            await in_thread(work_on)
            moved = await stream.task()
            wire_engine.on_status = replies(200, completed({"sum": None}))
            await in_thread(work_on)
            ended = await stream.task()
            assert await stream.ends()
        shown = await ask(client.session, "tasks/get", task_id)
    assert (present["taskId"], present["status"], present["ttlMs"]) == (task_id, "working", None)
    assert (moved["status"], moved["statusMessage"]) == ("working", "40 %: Counting")
    assert ended == {name: value for name, value in shown.items() if name not in ("_meta", "resultType")}
    assert ended["result"]["structuredContent"] == {"sum": None}


async def test_the_official_client_hears_of_its_tasks(open_client, long_workflow, wire_engine):
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


async def test_only_the_callers_own_tasks_are_honoured(mcp_server, token):
    """Foreign and unknown ones are left out alike."""
    mine = await in_database(lambda: owned(make_workflow(), state=State.RUNNING))()
    foreign = await in_database(lambda: make_execution(make_workflow(), caller="token:0"))()
    unknown = "00000000-0000-4000-8000-000000000000"
    async with listening(mcp_server, token, str(foreign.pk), str(mine.pk), unknown, "nonsense") as stream:
        assert await stream.honoured() == {"taskIds": [str(mine.pk)]}
        assert (await stream.task())["taskId"] == str(mine.pk)
    async with listening(mcp_server, token, str(foreign.pk), unknown) as stream:
        assert await stream.honoured() == {}
        assert await stream.ends()


async def test_a_task_that_has_ended_is_told_of_once(mcp_server, token):
    """So that nothing is lost between a client's last look and its subscription."""
    execution = await in_database(lambda: owned(make_workflow(), state=State.CANCELLED, error="Enough."))()
    async with listening(mcp_server, token, str(execution.pk), str(execution.pk)) as stream:
        assert await stream.honoured() == {"taskIds": [str(execution.pk)]}
        assert (await stream.task())["status"] == "cancelled"
        assert await stream.ends()


def test_listening_for_tasks_needs_the_extension(mcp_server, token):
    answer = send(
        mcp_server, token, "subscriptions/listen", capabilities={}, notifications={"taskIds": ["a"]}
    )
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32021)
    assert answer.json()["error"]["data"]["requiredCapabilities"] == {"extensions": {TASKS: {}}}


@pytest.mark.parametrize("task_ids", ["all", [1], [None], {"a": 1}, ["x"] * (notifications.MOST_TASKS + 1)])
def test_malformed_and_too_many_ids_are_refused(mcp_server, token, task_ids):
    answer = send(mcp_server, token, "subscriptions/listen", notifications={"taskIds": task_ids})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32602)
    assert "taskIds" in answer.json()["error"]["message"]


@pytest.mark.parametrize("change", ["revoked", "expired", "removed"])
async def test_nothing_is_told_of_a_task_once_what_its_listener_was_let_in_for_is_gone(
    mcp_server, token, change
):
    """Not even of the very next change, as results are nobody's business any more."""
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
        forget_bearers()
        Execution.objects.update(progress=50)

    async with listening(mcp_server, token, str(execution.pk)) as stream:
        await stream.honoured()
        await stream.task()
        await in_thread(make_it_so)
        assert await stream.ends()
