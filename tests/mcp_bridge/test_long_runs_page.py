"""What `docs/long-runs.md` tells clients to do works as it is written there."""

import ast
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

import pytest
from django.utils import timezone
from mcp import Client

from catalogue.exposure import forget_catalogue
from catalogue.models import Source, Workflow
from config.environment import Environment
from executions.models import Execution
from mcp_bridge.builtin_tools import LONGEST_WAIT_SECONDS
from mcp_bridge.notifications import MOST_STREAMS, MOST_TASKS
from tests.executions.steps import advance_due_executions
from tests.mcp_bridge.conftest import Connect
from tests.mcp_bridge.database import in_database
from tests.processes import ROOT

PAGE = (ROOT / "docs" / "long-runs.md").read_text()
WAITING, CALLING_TWICE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


async def run(example: str, client: Client) -> dict[str, Any]:
    """The names that the example has defined."""
    names: dict[str, Any] = {"client": client}
    code: CodeType = compile(example, "docs/long-runs.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if (awaitable := eval(code, names)) is not None:
        await awaitable
    return names


@contextmanager
def working() -> Iterator[None]:
    """A worker for which every execution is due again and again."""
    over = threading.Event()

    def work() -> None:
        from django.db import connection

        while not over.wait(0.05):
            Execution.objects.update(next_attempt_at=timezone.now())
            advance_due_executions()
        connection.close()

    worker = threading.Thread(target=work)
    worker.start()
    try:
        yield
    finally:
        over.set()
        worker.join()


def wait_for_nobody() -> None:
    Workflow.objects.filter(tool_name="countdown").update(inline_wait_seconds=0)
    forget_catalogue()


@pytest.mark.usefixtures("quick_news")
async def test_the_loop_gets_the_output_of_a_run_that_outlasts_the_wait(connect: Connect, source: Source):
    await in_database(wait_for_nobody)()
    with working():
        async with connect() as client:
            names = await run(WAITING.replace("90", "0.5"), client)
    assert names["result"].structured_content["state"] == "completed"
    assert names["result"].structured_content["output"]["seconds"] == 0.5


async def test_the_loop_gets_the_output_of_a_short_run_too(connect: Connect, source: Source):
    async with connect() as client:
        names = await run(WAITING.replace("90", "0"), client)
    assert names["result"].structured_content["seconds"] == 0


async def test_one_key_starts_one_run(connect: Connect, source: Source):
    async with connect() as client:
        names = await run(CALLING_TWICE, client)
    assert names["first"].structured_content == names["again"].structured_content
    assert await in_database(Execution.objects.count)() == 1


def test_the_numbers_on_the_page_are_those_of_the_code():
    defaults = Environment()
    assert defaults.inline_wait == 50.0
    assert (defaults.idempotency_hours, defaults.reattach_seconds) == (24.0, 3600.0)
    assert defaults.reattach_result_seconds == 120.0
    assert f"`wait_seconds` (up to {LONGEST_WAIT_SECONDS})" in PAGE
    assert f"At most {MOST_TASKS} ids each; at most {MOST_STREAMS} subscriptions" in PAGE
