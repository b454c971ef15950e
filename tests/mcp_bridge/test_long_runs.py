"""Runs that outlast their client's patience: giving up, coming back, asking later, in both eras."""

import asyncio

import pytest
from django.utils import timezone
from mcp import Client, MCPError

from catalogue.models import Workflow
from executions import watching
from executions.models import Execution, State
from mcp_bridge.tokens import create_token
from tests.connectors.scripted import replies
from tests.executions.engines import WireEngine, completed, in_thread, status, until
from tests.executions.steps import only, timeline
from tests.mcp_bridge.conftest import Connect
from tests.mcp_bridge.database import in_database
from tests.mcp_bridge.pipes import over_pipes
from tests.mcp_bridge.tasks_client import TasksExtension, ask, start_task
from tests.mcp_bridge.test_tasks import change, is_free, work_on

ERAS = ("2026-07-28", "legacy")


def is_abandoned() -> bool:
    """Whether the one execution's caller is known to be gone without an answer."""
    awaited_until = only().awaited_until
    return awaited_until is not None and awaited_until < timezone.now()


@pytest.mark.parametrize("era", ERAS)
async def test_a_call_that_its_client_gave_up_goes_on_and_the_same_call_gets_its_result(
    open_client: Connect, long_workflow: Workflow, wire_engine: WireEngine, era: str
):
    """A7.5: the client's timeout ends its wait, not the run; what it sends again attaches to it."""
    await in_database(change)(inline_wait_seconds=None)
    async with open_client(mode=era) as client:
        with pytest.raises(MCPError, match=r"[Tt]imed out"):
            await client.call_tool("report", {"n": 1}, read_timeout_seconds=1)
        await until(lambda: Execution.objects.exists() and is_abandoned(), "the server knows that it is gone")
        wire_engine.on_status = replies(200, completed())
        result = await client.call_tool("report", {"n": 1})
    assert result.structured_content == {"answer": 42}
    execution = await in_database(only)()
    assert wire_engine.count("start") == 1
    assert "reattached" in await in_database(timeline)(execution)


@pytest.mark.parametrize("era", ERAS)
async def test_a_workflow_that_is_cancelled_on_disconnect_is_cancelled_at_the_engine(
    open_client: Connect, long_workflow: Workflow, wire_engine: WireEngine, era: str
):
    """A7.5: where the curator decided so."""
    await in_database(change)(inline_wait_seconds=None, on_disconnect="cancel")
    async with open_client(mode=era) as client:
        call = asyncio.create_task(client.call_tool("report", {}))
        await until(lambda: wire_engine.count("status"), "the run is under way")
        call.cancel()
        await until(lambda: wire_engine.count("cancel"), "the engine is told")
        wire_engine.on_status = replies(200, status("CANCELLED"))
        await until(lambda: only().cancel_requested_at, "and it is recorded")


async def test_of_two_clients_with_one_token_only_the_one_that_gave_up_loses_its_wait(
    connect: Connect, long_workflow: Workflow, wire_engine: WireEngine
):
    """In the handshake era both count their requests from the same number: which one is meant is unclear."""
    await in_database(change)(inline_wait_seconds=None)
    async with connect(mode="legacy") as one, connect(mode="legacy") as other:
        given_up = asyncio.create_task(one.call_tool("report", {"n": 1}))
        kept = asyncio.create_task(other.call_tool("report", {"n": 2}))
        await until(
            lambda: wire_engine.count("start") == 2 and wire_engine.count("status"), "both are under way"
        )
        given_up.cancel()
        await asyncio.wait({given_up})
        wire_engine.on_status = replies(200, completed())
        assert (await kept).structured_content == {"answer": 42}


async def test_a_call_of_another_token_cannot_be_given_up(
    connect: Connect, long_workflow: Workflow, wire_engine: WireEngine
):
    await in_database(change)(inline_wait_seconds=None)
    charlie = (await in_database(create_token)(name="charlie"))[1]
    async with connect(mode="legacy") as mine, connect(mode="legacy", as_token=charlie) as foreign:
        call = asyncio.create_task(mine.call_tool("report", {}))
        await until(lambda: wire_engine.count("status"), "the run is under way")
        for request_id in range(10):
            await foreign.session._dispatcher.notify("notifications/cancelled", {"requestId": request_id})
        assert (await foreign.list_tools()).tools, "the notifications have arrived"
        wire_engine.on_status = replies(200, completed())
        assert (await call).structured_content == {"answer": 42}


@pytest.mark.parametrize("era", ERAS)
async def test_a_client_without_tasks_gets_the_result_of_a_run_that_outlasts_its_timeout(
    connect: Connect, long_workflow: Workflow, wire_engine: WireEngine, era: str
):
    """A7.2, A8.4: each of its requests is answered within its timeout, which the run as a whole exceeds."""
    async with connect(mode=era, read_timeout_seconds=10) as client:
        handle = (await client.call_tool("report", {})).structured_content
        assert handle["next"]["arguments"] == {"execution_id": handle["execution_id"], "wait_seconds": 30}
        await until(is_free, "a worker could go on")
        asking = {"execution_id": handle["execution_id"], "wait_seconds": 0.5}
        waited = (await client.call_tool(handle["next"]["tool"], asking)).structured_content
        assert waited["state"] == "running" and waited["next"] == handle["next"]
        wire_engine.on_status = replies(200, completed())
        await in_thread(work_on)
        ended = (await client.call_tool(handle["next"]["tool"], asking)).structured_content
    assert (ended["state"], ended["output"]) == ("completed", {"answer": 42})
    assert "next" not in ended


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("No worker is listening on the queue.", ": No worker is listening on the queue. It goes on"),
        ("weighing the letters", ": weighing the letters. It goes on"),
    ],
)
async def test_a_handle_says_in_its_text_what_the_run_is_at(
    connect: Connect, long_workflow: Workflow, wire_engine: WireEngine, word: str, told: str
):
    """A7.5, A8.3: models read the text, not the structured content."""
    wire_engine.on_status = replies(200, status(progress=40, progress_message=word))
    await in_database(change)(inline_wait_seconds=2)
    async with connect() as client:
        handle = await client.call_tool("report", {})
    assert f"report is still running, 40 % done{told}" in handle.content[0].text


async def test_a_timeout_says_what_the_run_was_at_last(
    connect: Connect, long_workflow: Workflow, wire_engine: WireEngine
):
    """A7.2, B5: more time helps nobody who waits for a worker."""
    word = "No worker is listening on the queue."
    wire_engine.on_status = replies(200, status(progress=0, progress_message=word))
    await in_database(change)(inline_wait_seconds=None, timeout_seconds=1)
    async with connect() as client:
        result = await client.call_tool("report", {})
    assert result.is_error
    assert "It took longer than its timeout of 1 s" in result.content[0].text
    assert f"The last that it told: {word}\n" in result.content[0].text


async def test_a_client_with_tasks_gets_the_result_of_a_run_that_outlasts_its_timeout(
    open_client: Connect, long_workflow: Workflow, wire_engine: WireEngine
):
    """A7.2, A8.4: its own code calls a tool and gets a result; tasks are between its library and us."""
    extension = TasksExtension()
    async with open_client(mode="2026-07-28", read_timeout_seconds=10, extensions=[extension]) as client:
        call = asyncio.create_task(client.call_tool("report", {}))
        await until(lambda: Execution.objects.exists() and is_free(), "the call has given a task")
        wire_engine.on_status = replies(200, completed())
        await in_thread(work_on)
        result = await call
    assert result.structured_content == {"answer": 42}
    assert [created.task_id for created in extension.created] == [str((await in_database(only)()).pk)]


async def test_tasks_can_be_cancelled_and_progress_is_told_over_stdio(
    long_workflow: Workflow, wire_engine: WireEngine
):
    """E8: the extension's methods have no headers there."""
    heard: list[float] = []

    async def hear(value: float, total: float | None, message: str | None) -> None:
        heard.append(value)

    wire_engine.on_status = replies(200, status(progress=40))
    await in_database(change)(inline_wait_seconds=2)
    async with Client(over_pipes(), mode="2026-07-28", extensions=[TasksExtension()]) as client:
        created = await start_task(client.session, "report", {}, progress_callback=hear)
        await until(is_free, "nobody holds it")
        assert (await ask(client.session, "tasks/cancel", created.task_id))["resultType"] == "complete"
        assert wire_engine.count("cancel") == 1
        wire_engine.on_status = replies(200, status("CANCELLED"))
        await in_thread(work_on)
        assert (await ask(client.session, "tasks/get", created.task_id))["status"] == "cancelled"
    assert heard and heard == sorted(set(heard))


@pytest.mark.parametrize("era", ERAS)
async def test_waiting_for_a_status_ends_with_the_run(
    connect: Connect, long_workflow: Workflow, wire_engine: WireEngine, era: str
):
    """A8.3: long before the time that was given to it is over; progress is told on the way."""
    heard: list[float] = []

    async def hear(value: float, total: float | None, message: str | None) -> None:
        heard.append(value)

    async with connect(mode=era) as client:
        execution_id = (await client.call_tool("report", {})).structured_content["execution_id"]
        await until(is_free, "a worker could go on")
        asking = {"execution_id": execution_id, "wait_seconds": 50}
        waiting = asyncio.create_task(
            client.call_tool("get_execution_status", asking, progress_callback=hear)
        )
        await until(lambda: watching._watchers, "the request waits")
        wire_engine.on_status = replies(200, status(progress=40))
        await in_thread(work_on)
        await until(lambda: heard, "the client hears of the progress")
        wire_engine.on_status = replies(200, completed())
        await in_thread(work_on)
        async with asyncio.timeout(30):
            ended = (await waiting).structured_content
    assert (ended["state"], ended["output"]) == ("completed", {"answer": 42})
    assert heard[0] == 40


@pytest.mark.parametrize("era", ERAS)
async def test_whoever_gives_up_waiting_for_a_status_ends_the_wait_only(
    connect: Connect, long_workflow: Workflow, wire_engine: WireEngine, era: str
):
    await in_database(change)(on_disconnect="cancel")
    async with connect(mode=era) as client:
        execution_id = (await client.call_tool("report", {})).structured_content["execution_id"]
        await until(is_free, "a worker could go on")
        asking = {"execution_id": execution_id, "wait_seconds": 50}
        waiting = asyncio.create_task(client.call_tool("get_execution_status", asking))
        await until(lambda: watching._watchers, "the request waits")
        waiting.cancel()
        await until(lambda: not watching._watchers, "nobody waits any more")
    execution = await in_database(only)()
    assert (execution.state, execution.cancel_requested_at) == (State.RUNNING, None)
    assert wire_engine.count("cancel") == 0


async def test_waiting_longer_than_clients_do_is_refused(connect: Connect, long_workflow: Workflow):
    async with connect() as client:
        for seconds in (50.5, -1, "long"):
            refused = await client.call_tool(
                "get_execution_status", {"execution_id": "x", "wait_seconds": seconds}
            )
            assert refused.is_error and "/wait_seconds" in refused.content[0].text
        unknown = await client.call_tool("get_execution_status", {"execution_id": "x", "wait_seconds": 50})
    assert unknown.is_error and "Unknown execution" in unknown.content[0].text


KEY = "workflow-catalogue/idempotency-key"


@pytest.mark.parametrize("era", ERAS)
async def test_calls_with_one_idempotency_key_are_one_execution(
    connect: Connect, long_workflow: Workflow, wire_engine: WireEngine, era: str
):
    async with connect(mode=era) as client:
        first = await client.call_tool("report", {"n": 1}, meta={KEY: "order-7"})
        by_name = {"name": "report", "arguments": {"n": 1}}
        second = await client.call_tool("execute_workflow", by_name, meta={KEY: "order-7"})
        conflict = await client.call_tool("report", {"n": 2}, meta={KEY: "order-7"})
        too_long = await client.call_tool("report", {"n": 1}, meta={KEY: "k" * 256})
        for malformed in (7, "", ["order-7"], {"a": 1}):
            with pytest.raises(MCPError, match="An idempotency key is a text of 1 to 255") as refusal:
                await client.call_tool("report", {"n": 1}, meta={KEY: malformed})
            assert refusal.value.code == -32602
    assert first.structured_content["execution_id"] == second.structured_content["execution_id"]
    assert conflict.is_error
    assert (
        "belongs to execution" in conflict.content[0].text
        and "nothing was started" in conflict.content[0].text
    )
    assert too_long.is_error and "1 to 255 printable" in too_long.content[0].text
    assert wire_engine.count("start") == 1
    assert (await in_database(only)()).idempotency_key == "order-7"


@pytest.mark.parametrize("era", ERAS)
async def test_the_record_says_which_client_called(open_client: Connect, long_workflow: Workflow, era: str):
    """B3: over HTTP a client of the handshake era is known by its library only: there are no sessions."""
    from mcp_types import Implementation

    info = Implementation(name="inspector " + "x" * 200, version="1.2.3")
    async with open_client(mode=era, client_info=info) as client:
        await client.call_tool("report", {})
    told = (await in_database(only)()).payload.metadata["client"]
    assert told["protocol_version"] == ("2026-07-28" if era == "2026-07-28" else "2025-11-25")
    if "name" in told:
        assert (told["name"], told["version"]) == (info.name[:100], "1.2.3")
    else:
        assert era == "legacy" and told["user_agent"]


async def test_an_agent_that_lost_an_id_finds_its_run(connect: Connect, long_workflow: Workflow):
    """B3: its own ones only, the newest first, a page at a time, by state and by tool."""
    charlie = (await in_database(create_token)(name="charlie"))[1]
    async with connect(as_token=charlie) as client:
        await client.call_tool("report", {})
    async with connect() as client:
        started = [(await client.call_tool("report", {"n": n})).structured_content for n in range(5)]
        ids = [handle["execution_id"] for handle in reversed(started)]
        seen: list[str] = []
        cursor: dict[str, str] = {}
        for _ in range(3):
            page = (await client.call_tool("list_executions", {"limit": 2.0, **cursor})).structured_content
            seen += [execution["execution_id"] for execution in page["executions"]]
            cursor = {"cursor": page["next_cursor"]}
        none = (await client.call_tool("list_executions", {"state": "failed"})).structured_content
        other = (await client.call_tool("list_executions", {"tool": "countdown"})).structured_content
        refused = await client.call_tool("list_executions", {"state": "lost", "limit": 51, "cursor": ""})
        for made_up in ("x", "AAAA", "MjAyNi0xMS0yMQ=="):
            unknown = await client.call_tool("list_executions", {"cursor": made_up})
            assert unknown.is_error and "begin again without one" in unknown.content[0].text
    assert seen == ids
    assert page["next_cursor"] is None
    assert "output" not in page["executions"][0]
    assert (none["executions"], other["executions"]) == ([], [])
    assert all(path in refused.content[0].text for path in ("/state", "/limit", "/cursor"))
