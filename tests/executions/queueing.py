"""Making calls that meet a limit: fixtures and steps."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest

from access.callers import Caller
from catalogue.curation import override_workflow
from catalogue.models import Source, Workflow
from catalogue.sources import update_source
from executions import advancing
from executions.models import Execution, State
from tests.executions.engines import WireEngine, until
from tests.executions.held import HeldRuns
from tests.executions.steps import (
    ALICE,
    call,
    in_database,
    let_pass,
    read,
)
from tests.factories import make_execution, make_workflow


@pytest.fixture
async def runs(engine: WireEngine) -> AsyncIterator[HeldRuns]:
    """What the engine runs; whatever a test leaves behind comes to its end."""
    runs = HeldRuns()
    engine.on_start = runs
    yield runs
    runs.end_all()
    await until(lambda: not advancing._under_way)


@pytest.fixture
def other_workflow(source: Source) -> Workflow:
    return make_workflow(source, upstream_id="2725", name="summary")


def calls(number: int, tool_name: str = "report", **fields: Any) -> list[asyncio.Task[Execution]]:
    """So many calls at once."""
    asked = [call(tool_name, {"call": n}, request=fields) for n in range(number)]
    return [asyncio.create_task(one) for one in asked]


async def all_succeed(called: Iterable[asyncio.Task[Execution]]) -> bool:
    return all(execution.succeeded for execution in await asyncio.gather(*called))


async def queue_up(name: str, *, caller: Caller = ALICE) -> asyncio.Task[Execution]:
    """A call that comes after all that were made before, and waits in the queue."""
    before = await in_database(Execution.objects.queued().count)
    called = asyncio.create_task(call("report", {"name": name}, request={"caller": caller}))
    await until(lambda: Execution.objects.queued().count() == before + 1, f"{name} waits in the queue")
    return called


async def hold_one(runs: HeldRuns, **fields: Any) -> asyncio.Task[Execution]:
    """A call that has the engine's attention until the test ends it."""
    called = asyncio.create_task(call("report", {"name": "first"}, request=fields))
    await asyncio.to_thread(runs.wait_for, len(runs.arrived) + 1)
    return called


def make_queued(workflow: Workflow, *, seconds_ago: float = 10, **fields: Any) -> Execution:
    """One that waits in the queue, and whose process is gone."""
    queued = make_execution(workflow, state=State.PENDING, **{"caller": ALICE.key} | fields)
    let_pass(queued, seconds_ago)
    Execution.objects.filter(pk=queued.pk).update(admitted_at=None)
    return read(queued)


def names_of(runs: HeldRuns) -> list[object]:
    return [arguments["name"] for arguments in runs.arrived]


def limit_product(workflow: Workflow, configured: Any) -> None:
    configured(max_concurrent_executions=2)


def limit_caller(workflow: Workflow, configured: Any) -> None:
    configured(max_concurrent_per_caller=2)


def limit_source(workflow: Workflow, configured: Any) -> None:
    update_source(workflow.source, max_concurrent=2)


def limit_workflow(workflow: Workflow, configured: Any) -> None:
    override_workflow(workflow, max_concurrent=2)


LIMITS = [limit_product, limit_caller, limit_source, limit_workflow]
