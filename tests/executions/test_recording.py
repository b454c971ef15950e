"""Recording in company: every unit is carried out, whenever it is put."""

import asyncio
import contextlib
import json
import uuid
from collections.abc import Sequence
from typing import Any

import pytest
from django.db import IntegrityError, OperationalError, connection, transaction
from django.utils import timezone

from catalogue.models import Workflow
from catalogue.product_settings import change_settings
from connectors.background import run_in_background_loop
from connectors.protocol import RunSnapshot, RunState
from executions.advancing import poll_due_executions
from executions.models import Execution, State
from executions.models.execution import ExecutionEvent
from executions.refusals import UnknownTool
from executions.runner.recording import record, record_together
from tests.connectors.scripted import Received, response
from tests.executions.caching import cache_for, numbered
from tests.executions.engines import Gate, status, wait_until
from tests.executions.steps import call, in_database, make_active, read, told, wrapping_statements
from tests.factories import make_workflow

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.databases("executions.runner.recording"),
]


async def test_what_is_put_while_a_hop_comes_to_its_end_is_carried_out_too():
    """Each step goes on, and records again, in the moment in which the hop that served it ends."""
    async with asyncio.timeout(30):
        assert [await record(int, number) for number in range(50)] == list(range(50))


@pytest.mark.parametrize("numbers", [range(6), (3, 4)], ids=["six", "two"])
async def test_what_spoils_it_for_all_only_fails_itself(numbers):
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


def test_each_run_of_a_batch_keeps_its_own_news(engine, workflow):
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


ENDED = RunSnapshot(state=RunState.COMPLETED, output={"pages": 3})


def _of_nothing() -> None:
    """Refused at once on PostgreSQL, with the COMMIT on SQLite, which then has written nothing."""
    ExecutionEvent.objects.create(execution_id=uuid.uuid4(), at=timezone.now(), kind="progress", message="")


def _no_number() -> None:
    raise ValueError("7 is no number of pages")


def _spoilt_in_silence() -> None:
    with contextlib.suppress(ValueError), transaction.atomic(savepoint=False):
        _no_number()


@pytest.mark.parametrize(
    ("spoiler", "told_it"),
    [(_of_nothing, IntegrityError), (_no_number, ValueError), (_spoilt_in_silence, type(None))],
    ids=["the database refuses it", "it raises", "it breaks the transaction"],
)
async def test_what_fails_costs_those_that_are_written_with_it_nothing(workflow, spoiler, told_it):
    """A8.3: an end that is recorded under its lease, twice if the first time is undone."""
    held = {"lease_holder": "this process", "lease_expires_at": timezone.now()}

    def make_held() -> list[Execution]:
        return [make_active(workflow, State.RUNNING, **held, run_id=f"run-{number}") for number in range(4)]

    ending = await in_database(make_held)
    units = [record(execution.finish_as_reported, ENDED) for execution in ending]
    units.insert(2, record(spoiler))
    moved = await asyncio.gather(*units, return_exceptions=True)

    assert isinstance(moved.pop(2), told_it)
    assert moved == [True] * len(ending)
    for execution in ending:
        recorded = await in_database(read, execution)
        assert (recorded.state, recorded.lease_holder) == (State.COMPLETED, "")
        assert recorded.payload.output == {"pages": 3}
        assert await in_database(told, execution, "completed") == [""]


async def test_instances_are_as_their_rows_when_what_they_share_is_undone(workflow):
    """A8.3: whoever tries again relies on the lease that the instance names."""
    made = make_active
    first = await in_database(made, workflow, State.RUNNING, lease_holder="this process", run_id="run-1")
    lost = await in_database(made, workflow, State.RUNNING, lease_holder="this process", run_id="run-2")
    is_second = False

    def end_and_fail_the_second_time() -> bool:
        nonlocal is_second
        if is_second:
            raise ValueError("gone")
        is_second = True
        return lost.finish_as_reported(ENDED)

    others = record(_of_nothing), record(first.finish_as_reported, ENDED)
    await asyncio.gather(record(end_and_fail_the_second_time), *others, return_exceptions=True)

    is_together = connection.vendor == "sqlite"
    assert (lost.state, lost.lease_holder) == (
        (State.RUNNING, "this process") if is_together else (State.COMPLETED, "")
    )
    assert lost.state == (await in_database(read, lost)).state


async def test_calls_at_once_are_refused_and_answered_each_for_itself(engine, workflow):
    """B7: one whose workflow is gone, while the catalogue still lists it, among others."""
    numbered(engine)
    await in_database(make_workflow, source=workflow.source, tool_name="gone")
    assert (await call("gone")).succeeded
    await in_database(Workflow.objects.filter(tool_name="gone").delete)
    tools = ["report", "gone", "report", "report"]
    outcomes = await asyncio.gather(*map(call, tools), return_exceptions=True)

    refused = outcomes.pop(1)
    assert isinstance(refused, UnknownTool)
    assert all(isinstance(outcome, Execution) and outcome.succeeded for outcome in outcomes)
    assert await in_database(Execution.objects.filter(tool_name="report").count) == 3


def test_rates_are_booked_while_no_transaction_is_open(engine, workflow):
    """B7: who books waits for the database under a lock of the rate; who waits for that lock within a
    transaction would keep it waiting for ever."""
    numbered(engine)
    change_settings({"calls_per_minute": 6_000, "calls_at_once": 1_000}, by="test")
    booked: list[bool] = []

    def watch(execute: Any, sql: str, *rest: Any) -> Any:
        if sql.startswith("UPDATE") and "ratebucket" in sql:
            booked.append(connection.in_atomic_block)
        return execute(sql, *rest)

    async def at_once() -> None:
        assert all(ended.succeeded for ended in await asyncio.gather(*(call("report") for _ in range(20))))

    with wrapping_statements(watch):
        run_in_background_loop(at_once())
    assert booked
    assert not any(booked)


def test_calls_at_once_are_written_in_few_transactions_on_sqlite(engine, workflow):
    """A8.3: a COMMIT is half of what a cached answer costs there."""
    numbered(engine)
    cache_for(workflow)
    assert run_in_background_loop(call("report")).succeeded
    begun: list[str] = []

    def watch(execute: Any, sql: str, *rest: Any) -> Any:
        if sql.startswith("BEGIN"):
            begun.append(sql)
        return execute(sql, *rest)

    async def at_once() -> None:
        answered = await asyncio.gather(*(call("report") for _ in range(12)))
        assert all(execution.cached_at for execution in answered)

    with wrapping_statements(watch):
        run_in_background_loop(at_once())
    assert connection.vendor != "sqlite" or len(begun) < 12


@pytest.mark.skipif(connection.vendor != "sqlite", reason="PostgreSQL writes without a transaction")
def test_a_database_that_is_locked_is_waited_for_once_and_not_once_for_each():
    """A8.3: for 20 s, which fifty records would make a quarter of an hour."""
    waits: list[str] = []

    def refuse(execute: Any, sql: str, *rest: Any) -> Any:
        if sql.startswith("BEGIN"):
            waits.append(sql)
            raise OperationalError("database is locked")
        return execute(sql, *rest)

    async def at_once() -> list[Any]:
        return await asyncio.gather(*(record(int) for _ in range(6)), return_exceptions=True)

    with wrapping_statements(refuse):
        outcomes = run_in_background_loop(at_once())
    assert [type(outcome) for outcome in outcomes] == [OperationalError] * 6
    assert len(waits) == 1
