"""Recording in company: every unit is carried out, whenever it is put."""

import asyncio
import json
from collections.abc import Sequence

import pytest

from catalogue.models import Workflow
from executions.advancing import poll_due_executions
from executions.models import Execution, State
from executions.runner.follow import record, record_together
from tests.connectors.scripted import Received, response
from tests.executions.engines import Gate, WireEngine, status, wait_until
from tests.executions.steps import make_active, read, told

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.databases("executions.runner.follow"),
]


async def test_what_is_put_while_a_hop_comes_to_its_end_is_carried_out_too() -> None:
    """Each step goes on, and records again, in the moment in which the hop that served it ends."""
    async with asyncio.timeout(30):
        assert [await record(int, number) for number in range(50)] == list(range(50))


@pytest.mark.parametrize("numbers", [range(6), (3, 4)], ids=["six", "two"])
async def test_what_spoils_it_for_all_only_fails_itself(numbers: Sequence[int]) -> None:
    """B8: what cannot be recorded together is recorded one by one."""
    recorded: list[int] = []

    def write(items: Sequence[int]) -> None:
        if 3 in items:
            raise ValueError("the database does not take a 3")
        recorded.extend(items)

    calls = [record_together(write, number) for number in numbers]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)

    assert [str(outcome) for outcome in outcomes if outcome is not None] == ["the database does not take a 3"]
    assert sorted(recorded) == [number for number in numbers if number != 3]


def test_each_run_of_a_batch_keeps_its_own_news(engine: WireEngine, workflow: Workflow) -> None:
    """A7.3, A8.3: progress, words and times, some with news and some without, are recorded in one go."""
    shown = {
        f"run-{number}": status(progress=number, progress_message=f"page {number}") for number in range(9)
    }
    shown |= {"run-7": status(), "run-8": status(progress_message="it's 100 % \u2713", update_time=None)}
    executions = [make_active(workflow, State.RUNNING, run_id=run_id) for run_id in shown]

    async def answer(request: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(response(200, json.dumps(shown[request.target.split("/")[-2]])))

    engine.on_status = gate = Gate(answer)
    poll_due_executions()
    wait_until(lambda: engine.count("status") == len(shown))
    gate.open()
    wait_until(lambda: Execution.objects.filter(polls=1, lease_holder="").count() == len(shown))

    for number, execution in enumerate(map(read, executions)):
        said = shown[f"run-{number}"]
        assert execution.progress == said.get("progress")
        assert execution.progress_message == said.get("progress_message", "")
        assert (execution.engine_updated_at is None) == (said["update_time"] is None)
        assert execution.engine_started_at is not None
        assert bool(told(execution, "progress")) == ("progress_message" in said)
        assert (execution.progress_noted_at is not None) == ("progress_message" in said)
