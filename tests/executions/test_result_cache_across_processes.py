"""The result cache with several processes on one database."""

from pathlib import Path

import pytest

from catalogue.models import Workflow
from executions.models import Execution
from tests.executions.caching import cache_for, counts, numbered, output_of, totals_agree
from tests.executions.engines import WireEngine
from tests.executions.steps import call, in_database
from tests.processes import CALLERS, start_together

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.databases("executions.models.result_cache"),
]

CALLS = 15
CALL_AGAIN = """
import asyncio, sys
import django
django.setup()
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
            tool_name="report", arguments={"text": "To be"}, caller=caller, door=Execution.Door.MCP
        ))
        for _ in range(calls)
    ))
    return sum(execution.cached_at is not None for execution in ended)

sys.exit(0 if asyncio.run(call_all(sys.argv[1], int(sys.argv[2]))) == int(sys.argv[2]) else 1)
"""


@pytest.mark.e2e
async def test_what_one_process_has_cached_answers_calls_of_all_and_every_hit_is_counted(
    engine: WireEngine, workflow: Workflow, tmp_path: Path
) -> None:
    """E4, E7, E9: the database is the truth; calls at the same time lose no count."""
    numbered(engine)
    await in_database(cache_for, workflow)
    await call("report", {"text": "To be"})

    await in_database(_call_from_other_processes, tmp_path)

    hits = CALLERS * CALLS
    assert await in_database(counts, workflow) == {"entries": 1, "hits": hits, "misses": 1, "stored": 1}
    assert engine.count("start") == 1 and await in_database(totals_agree)
    answered = Execution.objects.exclude(cached_at=None)
    assert await in_database(answered.count) == hits
    assert await in_database(lambda: output_of(answered[0])) == {"run": 1}


def _call_from_other_processes(folder: Path) -> None:
    callers = start_together(CALL_AGAIN, calls=CALLS, folder=folder)
    for caller in callers:
        caller.communicate()
    assert [caller.returncode for caller in callers] == [0] * CALLERS
