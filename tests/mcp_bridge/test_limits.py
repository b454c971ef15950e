"""Limits and the queue, as MCP clients meet them."""

import asyncio
from typing import Any

import pytest

from catalogue.curation import override_workflow
from executions import waiting
from executions.models import Execution
from executions.wakeups import waits
from mcp_bridge.tokens import create_token
from tests.executions.engines import WireEngine, until
from tests.executions.held import HeldRuns
from tests.executions.steps import after
from tests.mcp_bridge.database import in_database


@pytest.fixture
def runs(wire_engine: WireEngine) -> HeldRuns:
    runs = HeldRuns()
    wire_engine.on_start = runs
    return runs


@pytest.fixture
def configured(settings: Any) -> Any:
    def change(**values: Any) -> None:
        settings.CATALOGUE = settings.CATALOGUE | values

    return change


async def test_a_client_waits_in_the_queue_and_then_for_its_result(
    connect, long_workflow, runs, configured, monkeypatch, era
):
    """A7.3, B7: told so again and again, which keeps it patient; a handle says so too."""
    monkeypatch.setattr(waiting, "QUEUE_NEWS_SECONDS", 0.05)
    configured(max_concurrent_executions=1)
    await in_database(override_workflow)(long_workflow, inline_wait_seconds=None)
    hasty = (await in_database(create_token)(name="hasty", inline_wait_seconds=1))[1]
    heard: list[str | None] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append(message)

    async with connect(mode=era) as client, connect(mode=era, as_token=hasty) as other:
        first = asyncio.create_task(client.call_tool("report", {"n": 1}, progress_callback=hear))
        await asyncio.to_thread(runs.wait_for, 1)
        second = asyncio.create_task(client.call_tool("report", {"n": 2}, progress_callback=hear))
        await until(lambda: heard.count("waiting in the queue") >= 2)
        all_wait = lambda: len(waits.timeouts) == 3  # noqa: E731
        handle = await after(1, other.call_tool("report", {"n": 3}), all_wait)
        runs.end_all()
        results = await asyncio.gather(first, second)

    assert not any(result.is_error for result in (*results, handle))
    assert "report is still waiting in the queue" in handle.content[0].text
    assert handle.structured_content["progress_message"] == "waiting in the queue"
    assert runs.peak == 1


async def test_a_call_beyond_the_queue_is_an_error_that_says_when_to_come_back(
    connect, long_workflow, runs, configured, era
):
    """B5, B7: in-band, where the model reads it."""
    configured(max_queued_executions=1)
    await in_database(override_workflow)(long_workflow, max_concurrent=1)
    async with connect(mode=era) as client:
        for n in (1, 2):
            assert not (await client.call_tool("report", {"n": n})).is_error
        refused = await client.call_tool("report", {"n": 3})
        runs.end_all()

    assert refused.is_error
    assert "the queue is full, with 1 waiting" in refused.content[0].text
    assert "try again in 60 s" in refused.content[0].text
    assert await in_database(Execution.objects.count)() == 2


async def test_a_call_beyond_a_tokens_rate_is_an_error_that_says_when_to_come_back(
    connect, long_workflow, runs, era
):
    """B7: in-band; nothing is started, questions about runs go on, and other tokens are not concerned."""
    made = {"name": "hasty", "calls_per_minute": 6, "calls_at_once": 2, "inline_wait_seconds": 1}
    hasty = (await in_database(create_token)(**made))[1]
    async with connect(mode=era, as_token=hasty) as client:
        answers = [await client.call_tool("report", {"n": n}) for n in range(3)]
        built_in = await client.call_tool("execute_workflow", EXECUTE)
        listed = await client.call_tool("list_executions", {})
    await asyncio.to_thread(runs.wait_for, 2)
    runs.end_all()
    assert [answer.is_error for answer in (*answers, built_in, listed)] == [False, False, True, True, False]
    for refused in (answers[2], built_in):
        text = refused.content[0].text
        assert text.startswith("Too many calls: the token hasty is limited to 6 a minute and 2 at once.")
        assert "Nothing was started; try again in" in text
    assert await in_database(Execution.objects.count)() == len(runs.arrived) == 2


EXECUTE = {"name": "report", "arguments": {"n": 9}}
