"""The limits as the engine sees them, with several processes that create and end executions at once."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from catalogue.curation import override_workflow
from catalogue.models import Workflow
from executions.models import Execution, State
from executions.queue import admit_queued
from tests.executions.engines import WireEngine
from tests.executions.held import HeldRuns
from tests.executions.steps import advance_due_executions
from tests.processes import CALLERS, start_together

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.databases("executions.queue"),
]

CALLS = 12
TICK_SECONDS = 0.1
CALL_AND_WAIT = """
import asyncio, sys
import django
django.setup()
from catalogue.connections import close_connectors
from access.callers import Caller
from executions.models import Execution
from executions.models.lifecycle import StartRequest
from executions.waiting import start_and_wait

async def call_all(name, calls):
    caller = Caller(key=f"token:{name}", name=name)
    print("ready", flush=True)
    sys.stdin.readline()
    ended = await asyncio.gather(*(
        start_and_wait(StartRequest(
            tool_name="report", arguments={"call": f"{name} {n}"}, caller=caller, door=Execution.Door.MCP
        ), patient=True)
        for n in range(calls)
    ))
    await close_connectors()
    return sum(execution.succeeded for execution in ended)

sys.exit(0 if asyncio.run(call_all(sys.argv[1], int(sys.argv[2]))) == int(sys.argv[2]) else 1)
"""


def limit_product(workflow: Workflow, configured: Any) -> dict[str, str]:
    configured(max_concurrent_executions=3)
    return {"CATALOGUE_MAX_CONCURRENT_EXECUTIONS": "3"}


def limit_workflow(workflow: Workflow, configured: Any) -> dict[str, str]:
    override_workflow(workflow, max_concurrent=3)
    return {}


@pytest.mark.e2e
@pytest.mark.parametrize("limit", [limit_product, limit_workflow])
def test_several_processes_together_never_give_the_engine_more_than_the_limit(
    limit: Callable[..., dict[str, str]],
    engine: WireEngine,
    workflow: Workflow,
    configured: Any,
    tmp_path: Path,
) -> None:
    """B7: two that are called, and this one, which does what a worker does. All calls get their results."""
    engine.on_start = runs = HeldRuns()

    callers = start_together(
        CALL_AND_WAIT, calls=CALLS, folder=tmp_path, variables=limit(workflow, configured)
    )
    runs.wait_for(3)
    runs.end_all()
    while any(caller.poll() is None for caller in callers):
        admit_queued()
        advance_due_executions()
        time.sleep(TICK_SECONDS)

    for caller in callers:
        caller.communicate()
    assert [caller.returncode for caller in callers] == [0] * CALLERS
    assert Execution.objects.filter(state=State.COMPLETED).count() == len(runs.arrived) == CALLERS * CALLS
    assert runs.peak == 3
