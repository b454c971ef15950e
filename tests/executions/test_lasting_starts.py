"""Engines whose answer to a start is the result: progress, cancelling and deadlines meanwhile."""

import asyncio
from typing import Any

import pytest

from catalogue.models import Source, Workflow
from connectors.registry import BUILT_IN
from executions.models import Execution, State
from tests.executions.engines import until
from tests.executions.patient_engine import PatientEngine, renew
from tests.executions.steps import (
    call,
    cancel,
    disconnect,
    in_database,
    only,
    payload_of,
    timeline,
)
from tests.factories import make_workflow

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("quick_looks")]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> PatientEngine:
    monkeypatch.setitem(BUILT_IN, "holding", "tests.executions.patient_engine:HoldingConnector")
    return renew()


@pytest.fixture
def held(patient: PatientEngine) -> Workflow:
    """A workflow whose starts last as long as its runs; the product waits for them half a minute."""
    source = Source.objects.create(name="holding", kind="holding")
    return make_workflow(source, name="report", inline_wait_seconds=30)


async def begin_call(patient: PatientEngine, **options: Any) -> "asyncio.Task[Execution]":
    """A call whose start has reached the engine."""
    waiting = asyncio.create_task(call("report", **options))
    await until(lambda: patient.count("start"), "the start reaches the engine")
    return waiting


@pytest.mark.databases("executions.runner.start")
async def test_progress_is_recorded_and_told_while_the_start_lasts(held, patient):
    """A7.3, A8.2: on the row, in the timeline and to whoever waits."""
    heard: asyncio.Queue[tuple[float | None, str]] = asyncio.Queue()

    async def listen(execution: Execution) -> None:
        heard.put_nowait((execution.progress, execution.progress_message))

    patient.tell(40, "page 2 of 5")
    waiting = await begin_call(patient, on_progress=listen)

    assert await heard.get() == (40, "page 2 of 5")
    record = await in_database(only)
    assert (record.state, record.progress, record.progress_message) == (State.STARTING, 40, "page 2 of 5")
    assert "progress" in await in_database(timeline, record)
    patient.complete()
    assert (await waiting).succeeded


async def test_a_cancel_breaks_the_start_off_and_the_engine_hears_of_it(held, patient):
    """A7.5."""
    waiting = await begin_call(patient)

    await cancel(await in_database(only))

    execution = await waiting
    assert execution.state == State.CANCELLED
    assert patient.count("broken off") == 1


@pytest.mark.databases("executions.runner.start")
async def test_a_cancel_that_another_process_recorded_is_seen_too(held, patient):
    """A7.5: nobody wakes this process."""
    waiting = await begin_call(patient)

    await in_database(lambda: only().request_cancel("somebody else"))

    assert (await waiting).state == State.CANCELLED
    assert patient.count("broken off") == 1


async def test_a_deadline_breaks_the_start_off_as_timed_out(held, patient):
    """A7.2, A7.5: told apart from a start of which nobody knows what became."""
    await in_database(Workflow.objects.update, timeout_seconds=1)

    execution = await call("report")

    assert execution.state == State.TIMED_OUT
    assert execution.error_kind == "timeout" and "the engine was asked to cancel it" in execution.error
    assert patient.count("broken off") == 1


async def test_a_result_that_comes_in_the_last_moment_is_kept(held, patient):
    """A8.4: what the engine did is what the record says."""
    patient.survives = True
    waiting = await begin_call(patient)

    await cancel(await in_database(only))

    execution = await waiting
    assert execution.succeeded
    assert (await in_database(payload_of, execution)).output == "in the last moment"


async def test_a_caller_that_goes_away_ends_its_wait_only(held, patient):
    """A7.1: the result is there when it comes back."""
    await disconnect(await begin_call(patient))
    patient.complete("kept")

    record = await until(lambda: (row := only()).is_settled and row, "the run comes to its end")

    assert record.succeeded and record.payload.output == "kept"
    assert patient.count("broken off") == 0
