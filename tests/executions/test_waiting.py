"""Calling a workflow and waiting for it: results, records, progress, and the ends of the wait."""

import asyncio
import itertools
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from catalogue.exposure import current_catalogue
from catalogue.models import Workflow
from connectors.background import run_in_background_loop
from connectors.simplified import SimplifiedConfig
from executions import advancing, starting, waiting
from executions.models import Execution, State
from executions.models.statements import ONE_STATEMENT
from executions.reading import describe_execution
from executions.refusals import InvalidArguments, UnknownTool
from tests.connectors.scripted import Behaviour, Received, replies
from tests.executions.conftest import QUICKER
from tests.executions.engines import (
    RUN_ID,
    Gate,
    WireEngine,
    completed,
    in_thread,
    in_turn,
    receipt,
    status,
    until,
)
from tests.executions.steps import (
    advance_due_executions,
    call,
    cancel,
    disconnect,
    in_database,
    let_pass,
    make_active,
    only,
    payload_of,
    reach_deadline,
    read,
    timeline,
    wrapping_statements,
)

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("quick_looks")]


async def test_the_record_keeps_everything_that_the_engine_said(engine, workflow):
    """B3: ids, status, input, output, the four times, the duration and both raw answers."""
    ended = completed({"sum": 3}, progress=100, progress_message="done", extra={"node": "a7"})
    engine.on_status = replies(200, ended)

    returned = await call("report", {"numbers": [1, 2]})

    record = await in_database(read, returned)
    assert record.succeeded and record.error == "" and record.error_kind == ""
    assert (record.run_id, record.correlation_id) == (RUN_ID, f"2724_{RUN_ID[:8]}")
    assert (record.upstream_id, record.workflow_name, record.tool_name) == ("2724", "report", "report")
    assert (record.caller, record.caller_name, record.door) == ("token:1", "Alice", "mcp")
    assert record.payload.input == {"numbers": [1, 2]}
    assert record.payload.output == {"sum": 3}
    assert record.payload.start_answer == receipt()
    assert record.payload.status_answer == ended
    assert record.engine_created_at == datetime.fromtimestamp(1_790_000_000, UTC)
    assert record.engine_started_at == datetime.fromtimestamp(1_790_000_001, UTC)
    assert record.engine_updated_at == datetime.fromtimestamp(1_790_000_002, UTC)
    assert record.engine_finished_at == datetime.fromtimestamp(1_790_000_004.5, UTC)
    assert record.duration_ms == 3500
    assert record.created_at < record.started_at <= record.finished_at
    assert (record.progress, record.progress_message) == (100.0, "done")
    assert await in_database(timeline, record) == ["created", "started", "completed"]
    start, poll = engine.requests
    assert start.received.json == {"input": {"numbers": [1, 2]}, "source": "application"}
    assert poll.received.target == f"/api/v1/service/workflows/2724/runs/{RUN_ID}/status"


async def test_a_start_that_answers_with_the_result_took_as_long_as_its_answer(engine, workflow):
    """Engines that answer so often report no times of their own."""
    took = 0.0

    async def answer_late(received: Received, writer: asyncio.StreamWriter) -> None:
        nonlocal took
        begun = time.monotonic()
        await asyncio.sleep(0.05)
        took = time.monotonic() - begun
        ended = {"status": "COMPLETED", "output": {"sum": 3}}
        await replies(200, receipt() | ended)(received, writer)

    engine.on_start = answer_late
    record = await in_database(read, await call("report", {"numbers": [1, 2]}))
    assert record.succeeded and record.engine_started_at is None
    assert record.duration_ms is not None and record.duration_ms >= 1000 * took - 1


async def test_what_is_returned_is_what_is_stored(engine, workflow):
    """A8.4: a door may render the execution without reading it again."""
    engine.on_start = replies(200, completed({"sum": 3}) | receipt())
    returned = await call("report")
    stored = await in_database(read, returned)
    same = await in_database(lambda: describe_execution(returned) == describe_execution(stored))
    assert same
    assert returned.payload.output == stored.payload.output == {"sum": 3}
    assert engine.count("status") == 0


@pytest.mark.usefixtures("quick_repeats")
async def test_a_listener_hears_of_every_poll_before_the_result(engine, workflow):
    """A7.3: a patient caller waits beyond the inline wait, up to the run's own deadline."""
    engine.on_status = in_turn(replies(200, status(progress=10)), replies(200, completed()))
    await in_database(Workflow.objects.update, inline_wait_seconds=0)
    heard: list[float | None] = []

    async def listen(execution: Execution) -> None:
        heard.append(execution.progress)

    execution = await call("report", patient=True, on_progress=listen)

    assert execution.succeeded
    assert set(heard) == {10.0}


async def test_a_listener_that_fails_ends_the_wait_and_not_the_run(engine, workflow):
    """A client that went away while it was told of progress."""
    engine.on_status = in_turn(replies(200, status(progress=10)), replies(200, completed()))

    async def listen(execution: Execution) -> None:
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        await call("report", on_progress=listen)

    await until(lambda: not only().lease_holder, "the lease is given back")
    execution = await in_database(only)
    await in_database(let_pass, execution, 60)
    assert await in_thread(advance_due_executions) == 1
    assert (await in_database(read, execution)).succeeded


SECONDS = {
    "type": "object",
    "properties": {"seconds": {"type": "number"}, "fail": {"type": "boolean"}, "text": {}},
    "required": ["seconds"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("arguments", "paths"),
    [
        ({}, ["/seconds"]),
        ({"seconds": "three", "fail": 1}, ["/fail", "/seconds"]),
        ({"seconds": 1, "colour": "red"}, ["/colour"]),
        ({"seconds": float("nan")}, [""]),
        ({"seconds": float("inf")}, [""]),
        ({"seconds": 1, "text": "cut off: \ud83c"}, ["/text"]),
        ({"seconds": 1, "text": "x" * 1024}, [""]),
    ],
)
async def test_invalid_arguments_record_nothing_and_send_nothing(
    engine, workflow, configured, arguments, paths
):
    """A2.2, A2.5, B5, B8, E6: each offending path is named. What a repeated start sends is kept whole."""
    configured(max_payload_bytes=1024)
    await in_database(Workflow.objects.update, input_schema=SECONDS)
    with pytest.raises(InvalidArguments) as refused:
        await call("report", arguments)
    assert sorted(problem.path for problem in refused.value.problems) == paths
    assert all(path in str(refused.value) for path in paths)
    assert await in_database(Execution.objects.count) == 0
    assert engine.requests == []


@pytest.mark.parametrize(
    "change",
    [
        {"enabled": False},
        {"missing_since": timezone.now()},
        {"tool_name": "renamed"},
    ],
    ids=["disabled", "missing", "renamed"],
)
async def test_a_tool_that_is_not_exposed_cannot_be_called(engine, workflow, change):
    """A1.3, A4.2: nothing is recorded, and nothing is sent. Where to look, each door says."""
    await in_database(Workflow.objects.update, **change)
    with pytest.raises(UnknownTool, match=r"Unknown or disabled tool: report\.$"):
        await call("report")
    assert await in_database(Execution.objects.count) == 0
    assert engine.requests == []


@pytest.mark.databases("executions.waiting")
async def test_a_tool_that_is_deleted_while_it_is_remembered_is_unknown(engine, workflow):
    """A process remembers the catalogue for half a second; the database has the last word."""

    def remember_and_delete() -> None:
        current_catalogue()
        Workflow.objects.all().delete()

    await in_database(remember_and_delete)
    with pytest.raises(UnknownTool):
        await call("report")
    assert await in_database(Execution.objects.count) == 0
    assert engine.requests == []


async def test_a_wait_that_is_over_returns_the_running_execution_and_a_worker_finishes_it(engine, workflow):
    """A7.1: the caller gets a handle instead of an error, and the run goes on without it."""
    returned = await call("report", seconds=0.2)
    assert not returned.is_settled

    await until(lambda: not only().lease_holder, "the lease is given back")
    engine.on_status = replies(200, completed({"late": True}))
    await in_database(let_pass, returned, 60)
    assert await in_thread(advance_due_executions) == 1
    record = await in_database(read, returned)
    assert record.succeeded and record.payload.output == {"late": True}
    assert engine.count("start") == 1


async def test_a_wait_of_nothing_returns_at_once_and_the_start_is_sent_all_the_same(engine, workflow):
    """A7.1: the workflow's own inline wait counts where the call says nothing."""
    await in_database(Workflow.objects.update, inline_wait_seconds=0)
    returned = await call("report")
    assert not returned.is_settled
    await until(lambda: only().run_id == RUN_ID and not only().lease_holder)


@pytest.mark.parametrize(
    "fields",
    [{"execution_type": "sync"}, {"execution_type": "async", "execution_type_override": "sync"}],
    ids=["by the engine's word", "by the curator's"],
)
async def test_a_synchronous_workflow_is_waited_for_to_its_end(engine, workflow, fields):
    """A7.1: never a handle, whatever the inline wait: its output schema promises a result."""
    await in_database(Workflow.objects.update, inline_wait_seconds=0, **fields)
    gate = Gate(replies(200, receipt()))
    engine.on_start, engine.on_status = gate, replies(200, completed({"sum": 3}))
    waiting = await gate.keep(call("report"))
    gate.open()
    assert (await waiting).succeeded


async def test_a_synchronous_workflow_that_takes_too_long_is_waited_for_until_that_is_known(engine, workflow):
    """A7.2: also where the engine takes its time to answer the cancel."""
    await in_database(Workflow.objects.update, inline_wait_seconds=0, execution_type="sync")
    gate = Gate(replies(200, status("CANCELLED")))
    engine.on_cancel, engine.on_status = (
        gate,
        in_turn(replies(200, status()), replies(200, status("CANCELLED"))),
    )
    waiting = asyncio.create_task(call("report"))
    execution = await until(lambda: Execution.objects.filter(polls=1).first())
    await in_database(reach_deadline, execution)
    await gate.request()
    assert not waiting.done()
    gate.open()
    assert (await waiting).state == State.TIMED_OUT


@pytest.mark.usefixtures("quick_repeats")
async def test_while_it_waits_it_asks_no_more_often_than_the_engine_allows(engine, workflow):
    """B2: at least 1000 ms between two polls of one run, or a twentieth of it here."""
    assert SimplifiedConfig.model_fields["min_poll_seconds"].default == 1.0
    engine.on_status = in_turn(replies(200, status()), replies(200, status()), replies(200, completed()))
    await call("report")
    polls = [request.at for request in engine.asked("status")]
    assert len(polls) == 3
    assert all(later - earlier >= 1.0 / QUICKER for earlier, later in itertools.pairwise(polls))


# A waiter that is cancelled: the client went away.


async def test_a_client_that_leaves_while_the_start_is_unanswered_gets_its_run_recorded(engine, workflow):
    """A start that is cut off in the middle would be known to the engine only."""
    engine.on_start = gate = Gate(replies(200, receipt()))
    waiting = await gate.keep(call("report"))
    await disconnect(waiting)
    assert (await in_database(only)).state == State.STARTING
    gate.open()
    await until(lambda: only().run_id == RUN_ID and not only().lease_holder)
    assert engine.count("start") == 1


async def test_a_client_that_leaves_during_a_poll_costs_no_answer(engine, workflow):
    """Disconnect against completion: the answer that was on its way is recorded."""
    engine.on_status = gate = Gate(replies(200, completed({"sum": 3})))
    waiting = await gate.keep(call("report"))
    await disconnect(waiting)
    gate.open()
    record = await until(lambda: Execution.objects.filter(state=State.COMPLETED).first())
    assert (await in_database(payload_of, record)).output == {"sum": 3}


async def test_a_server_that_stops_does_not_wait_for_ever(engine, workflow, monkeypatch):
    """B6: an engine that does not answer cannot keep a process from being stopped."""
    engine.on_start = gate = Gate(replies(200, receipt()))
    waiting = await gate.keep(call("report"))
    monkeypatch.setattr(advancing, "LAST_STEPS_SECONDS", 0.05)
    await asyncio.wait_for(advancing.finish_steps(), timeout=5)
    assert not waiting.done()
    gate.open()
    engine.on_status = replies(200, completed())
    assert (await waiting).succeeded


def connections_lent() -> int:
    """How many connections the pool has given out; SQLite has no pool."""
    if connection.vendor != "postgresql":
        return 0
    stats = connection.pool.get_stats()
    return stats["pool_size"] - stats["pool_available"]


@pytest.mark.databases("catalogue.database")
async def test_many_calls_at_once_share_few_connections(engine, workflow):
    """E7, B7: more callers than the pool has connections; each gets its result, and gives all back."""
    engine.on_start = replies(200, completed({"sum": 3}) | receipt())
    lent_before = connections_lent()

    executions = await asyncio.gather(*(call("report", {"number": number}) for number in range(40)))

    assert all(execution.succeeded for execution in executions)
    sent = sorted(request.received.json["input"]["number"] for request in engine.asked("start"))
    assert sent == list(range(40))
    assert connections_lent() == lent_before


# Others who act while somebody waits.


def cancels(engine: WireEngine) -> Behaviour:
    """The run is cancelled as soon as that is asked for."""

    async def cancel_at_the_engine(request: Received, writer: asyncio.StreamWriter) -> None:
        engine.on_status = replies(200, status("CANCELLED"))
        await replies(200, {})(request, writer)

    return cancel_at_the_engine


@pytest.mark.usefixtures("quick_repeats")
async def test_a_waiter_hears_of_a_cancel_by_somebody_else(engine, workflow):
    """A7.5: the holder tells the engine, and the waiting call ends."""
    waiting = asyncio.create_task(call("report"))
    execution = await until(lambda: Execution.objects.filter(polls__gte=1).first())
    engine.on_cancel = cancels(engine)

    cancellation = await cancel(execution)

    assert cancellation.outcome == "cancel requested"
    assert (await waiting).state == State.CANCELLED
    assert engine.count("cancel") == 1


@pytest.mark.databases("executions.waiting")
@pytest.mark.usefixtures("quick_repeats")
async def test_a_cancel_by_another_process_before_the_first_poll_reaches_the_engine(engine, workflow):
    """A7.5: the first poll does not read the row again, so that only a later look can see the request."""

    async def start_and_cancel(request: Received, writer: asyncio.StreamWriter) -> None:
        await in_thread(lambda: only().request_cancel("another process"))
        await replies(200, receipt())(request, writer)

    engine.on_start, engine.on_cancel = start_and_cancel, cancels(engine)
    engine.on_status = replies(200, status())

    assert (await call("report")).state == State.CANCELLED
    assert engine.count("cancel") == 1


@pytest.mark.databases("executions.waiting")
async def test_a_lease_that_was_taken_during_a_long_start_is_not_polled_under(engine, workflow, monkeypatch):
    """What is remembered of the lease holds for half of it: then it is taken again, or found to be lost."""
    monkeypatch.setattr(starting, "LEASE", timedelta(seconds=5))
    another = {"lease_holder": "another", "lease_expires_at": timezone.now() + timedelta(minutes=1)}

    async def start_and_lose(request: Received, writer: asyncio.StreamWriter) -> None:
        await in_thread(lambda: Execution.objects.update(**another))
        await replies(200, receipt())(request, writer)

    engine.on_start, engine.on_status = start_and_lose, replies(200, completed())

    execution = await call("report", seconds=0.5)

    assert (execution.state, engine.count("status")) == (State.RUNNING, 0)


@pytest.mark.databases("executions.waiting")
async def test_a_waiter_whose_lease_was_taken_watches_and_returns_the_others_result(engine, workflow):
    """A process that was stopped for longer than its lease wakes up and finds the run ended."""
    engine.on_status = replies(200, status())
    waiting = asyncio.create_task(call("report"))
    execution = await until(lambda: Execution.objects.filter(polls=1).first())

    def take_over() -> None:
        Execution.objects.update(
            lease_holder="another", lease_expires_at=timezone.now(), next_attempt_at=timezone.now()
        )

    await in_database(take_over)
    engine.on_status = replies(200, completed())
    await in_database(let_pass, execution, 60)
    await in_thread(advance_due_executions)
    assert (await waiting).succeeded


@pytest.mark.databases("executions.waiting")
async def test_a_record_that_vanishes_while_it_is_waited_for_ends_the_wait(engine, workflow):
    """An error of ours is logged, and the caller gets what is known."""
    waiting = asyncio.create_task(call("report"))
    await until(lambda: Execution.objects.filter(polls=1).exists())
    await in_database(Execution.objects.all().delete)
    assert not (await waiting).is_settled


# What a call costs.


@pytest.fixture
def statements() -> Iterator[list[str]]:
    """Every statement that the database threads execute, except the COMMITs."""
    seen: list[str] = []

    def watch(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        seen.append(sql)
        return execute(sql, params, many, context)

    with wrapping_statements(watch):
        yield seen


@pytest.mark.databases("executions.waiting")
def test_a_synchronous_call_costs_few_statements(engine, workflow, statements, monkeypatch):
    """E7: record, engine, result; no look-up, no lease that nobody needs, no count far from a limit."""
    engine.on_start = replies(200, completed() | receipt())
    # What a process remembers for a moment, it remembers for the whole test.
    monkeypatch.setattr(starting, "MAX_AGE_SECONDS", 3600)
    run_in_background_loop(call("report"))
    current_catalogue()
    statements.clear()

    execution = run_in_background_loop(call("report"))

    assert execution.succeeded
    created, ended = ["INSERT"] * 3, ["UPDATE", "UPDATE", "INSERT", "INSERT"]
    assert work_of(statements) == (["WITH", "WITH"] if ONE_STATEMENT else [*created, *ended])
    assert len(statements) - len(work_of(statements)) <= 2


@pytest.mark.databases("executions.waiting")
def test_a_call_that_is_over_by_its_first_poll_costs_few_statements(
    engine, workflow, statements, monkeypatch
):
    """E7: record, run id, result; the row that this process has just written is not read again."""
    engine.on_status = replies(200, completed())
    monkeypatch.setattr(starting, "MAX_AGE_SECONDS", 3600)
    # However slow the machine: the first poll comes before the next look at the row.
    monkeypatch.setattr(waiting, "LOOK_AGAIN_SECONDS", 3600)
    run_in_background_loop(call("report"))
    current_catalogue()
    statements.clear()

    execution = run_in_background_loop(call("report"))

    assert execution.succeeded
    created, started = ["INSERT"] * 3, ["UPDATE", "UPDATE", "INSERT"]
    assert work_of(statements) == (
        ["WITH"] * 3 if ONE_STATEMENT else [*created, *started, *started, "INSERT"]
    )


def work_of(statements: list[str]) -> list[str]:
    """The first word of each that does not only begin or end a transaction."""
    return [sql.split()[0] for sql in statements if not sql.startswith(("BEGIN", "SAVEPOINT", "RELEASE"))]


@pytest.mark.skipif(connection.vendor != "sqlite", reason="PostgreSQL plans by what its tables hold")
def test_looking_for_a_lost_call_does_not_read_the_history(engine, workflow, statements):
    """E7: every call looks, so that it must not cost more with every run that is kept."""
    engine.on_start = replies(200, completed() | receipt())

    run_in_background_loop(call("report", request={"may_reattach": True}))

    (looked,) = [sql for sql in statements if sql.startswith("SELECT") and "arguments_hash" in sql]
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN QUERY PLAN {looked}", [None] * looked.count("%s"))
        plan = str(cursor.fetchall())
    assert "USING INDEX execution_awaited" in plan


@pytest.mark.databases("executions.waiting")
def test_a_poll_costs_few_statements(engine, workflow, statements):
    """E7: what is due, the lease, the row and its workflow; then what the poll found, and the lease back."""
    make_active(workflow, State.RUNNING)
    advance_due_executions()
    let_pass(only(), 60)
    statements.clear()

    advance_due_executions()

    work = [sql.split()[0] for sql in statements if not sql.startswith("BEGIN")]
    assert work == ["SELECT", "UPDATE", "SELECT", "SELECT", "UPDATE"]
