"""Callers that go away where the workflow says that this cancels the run; and what their going costs."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError
from django.utils import timezone
from loguru import logger

from catalogue.connections import close_connectors
from catalogue.database import THREADS
from catalogue.models import Workflow
from executions import advancing
from executions.models import Execution, State
from executions.waiting import start_and_wait
from tests.connectors.scripted import replies
from tests.executions.engines import (
    RUN_ID,
    Gate,
    completed,
    in_thread,
    receipt,
    status,
    until,
)
from tests.executions.steps import (
    advance_due_executions,
    call,
    disconnect,
    in_database,
    is_abandoned,
    is_nothing_under_way,
    let_pass,
    make_active,
    only,
    payload_of,
    read,
    request_for,
    timeline,
    told,
    wrapping_statements,
)
from tests.factories import make_source, make_workflow

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("quick_looks")]

CANCELLED = replies(200, status("CANCELLED"))
POLICY = "The on_disconnect policy of report asked for it."


@pytest.fixture
def fickle(workflow: Workflow) -> Workflow:
    """A workflow whose runs nobody wants without their caller."""
    workflow.on_disconnect = Workflow.OnDisconnect.CANCEL
    workflow.save()
    return workflow


async def ask(**fields: Any) -> Execution:
    return await call("report", request={"may_reattach": True} | fields)


async def test_the_run_is_cancelled_at_the_engine(engine, fickle):
    """A7.5: and the timeline tells why."""
    waiting = asyncio.create_task(ask())
    await until(lambda: Execution.objects.filter(polls=1).exists())
    engine.on_status = CANCELLED

    await disconnect(waiting)

    execution = await in_database(only)
    await until(lambda: engine.count("cancel") == 1)
    await until(is_nothing_under_way)
    await in_database(let_pass, execution, 10)
    await in_thread(advance_due_executions)
    assert (await in_database(only)).state == State.CANCELLED
    kinds = ["created", "started", "caller_gone", "cancel_requested", "cancel_sent", "cancelled"]
    assert await in_database(timeline, execution) == kinds
    assert await in_database(told, execution, "cancel_requested") == [POLICY]


async def test_an_engine_that_cannot_cancel_lets_the_run_go_on_and_the_caller_come_back(engine):
    """A8.5: the timeline says so; the result is not lost."""

    def make() -> None:
        source = make_source("press", base_url=engine.base_url, config={"cancel_path": ""})
        make_workflow(source, upstream_id="2724", name="report", on_disconnect="cancel")

    await in_database(make)
    engine.on_start = gate = Gate(replies(200, receipt()))
    waiting = await gate.keep(ask())

    await disconnect(waiting)

    execution = await in_database(only)
    await until(lambda: is_abandoned(execution))
    assert "cannot cancel runs" in (await in_database(told, execution, "not_cancelled"))[0]
    gate.open()
    engine.on_status = replies(200, completed({"sum": 3}))
    again = await ask()
    assert (again.pk, again.succeeded) == (execution.pk, True)
    assert (engine.count("start"), engine.count("cancel")) == (1, 0)
    assert (await in_database(only)).cancel_requested_at is None


async def test_a_completion_that_comes_first_is_kept_for_the_caller(engine, fickle):
    """Disconnect against completion: the poll that was under way found the end."""
    engine.on_status = gate = Gate(replies(200, completed({"sum": 3})))
    waiting = await gate.keep(ask())

    leaving = asyncio.create_task(disconnect(waiting))
    await until(lambda: only().cancel_requested_at, "the cancel is asked for")
    gate.open()
    await leaving

    await until(lambda: is_abandoned(only()), "the result is kept")
    execution = await in_database(only)
    assert execution.succeeded and (await in_database(payload_of, execution)).output == {"sum": 3}
    assert engine.count("cancel") == 0
    assert (await ask()).pk == execution.pk
    assert engine.count("start") == 1


async def test_a_synchronous_run_that_completes_after_its_caller_has_gone_is_kept_too(engine, fickle):
    """There was never a run id to cancel by."""
    engine.on_start = gate = Gate(replies(200, completed({"sum": 3}) | receipt()))
    waiting = await gate.keep(ask())
    leaving = asyncio.create_task(disconnect(waiting))
    await until(lambda: only().cancel_requested_at)
    gate.open()
    await leaving
    await until(lambda: is_abandoned(only()))
    assert (await ask()).pk == (await in_database(only)).pk
    assert [request.kind for request in engine.requests] == ["start"]


async def test_a_caller_that_goes_during_the_start_has_the_run_cancelled_once_it_is_known(engine, fickle):
    """The wish is on record at once, whatever becomes of this process."""
    gate = Gate(replies(200, receipt()))
    engine.on_start, engine.on_status = gate, CANCELLED
    waiting = await gate.keep(ask())

    leaving = asyncio.create_task(disconnect(waiting))

    await until(lambda: only().cancel_requested_at, "before the engine has answered")
    gate.open()
    await leaving
    await until(lambda: only().state == State.CANCELLED)
    assert [request.kind for request in engine.requests] == ["start", "cancel", "status"]


@contextmanager
def busy_database_threads() -> Iterator[None]:
    """Whatever asks for the database meanwhile has to wait in line."""
    over = threading.Event()
    occupied = [asyncio.ensure_future(in_database(over.wait)) for _ in range(THREADS)]
    try:
        yield
    finally:
        over.set()
        assert len(occupied) == THREADS


async def call_and_leave() -> asyncio.Task[Execution]:
    """Not longer than it takes to ask for the record."""
    waiting = asyncio.create_task(ask())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.sleep(0)
    return waiting


@pytest.mark.databases("executions.starting")
async def test_a_caller_that_goes_before_the_record_is_committed_starts_nothing(engine, fickle):
    """The record tells of it all the same."""
    with busy_database_threads():
        waiting = await call_and_leave()
    await disconnect(waiting)
    await until(is_nothing_under_way)

    execution = await in_database(only)
    assert execution.state == State.CANCELLED
    assert "connection closed before it received an answer. It was not started." in execution.error
    assert engine.requests == []


async def test_where_the_run_goes_on_such_a_caller_has_it_started(engine, workflow):
    """What was called is run; the same call gets the result."""
    engine.on_start = replies(200, completed() | receipt())
    with busy_database_threads():
        waiting = await call_and_leave()
    await disconnect(waiting)
    await until(is_nothing_under_way)
    execution = await in_database(only)
    assert execution.succeeded and await in_database(is_abandoned, execution)
    assert (await ask()).pk == execution.pk
    assert engine.count("start") == 1


@pytest.fixture
def full(workflow: Workflow) -> Execution:
    """The one execution of the workflow for which there is room."""
    workflow.max_concurrent = 1
    workflow.save()
    return make_active(workflow, State.RUNNING)


async def queue() -> tuple[asyncio.Task[Execution], Execution]:
    waiting = asyncio.create_task(ask())
    await until(lambda: Execution.objects.queued().exists(), "it is queued")
    return waiting, await in_database(Execution.objects.queued().get)


async def test_a_caller_that_goes_while_it_waits_in_the_queue_leaves_the_queue(engine, full, fickle):
    waiting, queued = await queue()
    await disconnect(waiting)
    await until(lambda: read(queued).state == State.CANCELLED)
    assert engine.count("start") == 0
    assert (await in_database(read, queued)).error == (
        "The on_disconnect policy of report cancelled it in the queue."
    )


async def test_where_the_run_goes_on_it_keeps_its_place_in_the_queue(engine, full, workflow):
    waiting, queued = await queue()
    await disconnect(waiting)
    await until(lambda: is_abandoned(queued))
    await until(is_nothing_under_way)
    assert (await in_database(read, queued)).is_queued

    waiting = asyncio.create_task(ask())
    await until(lambda: "reattached" in timeline(queued))
    await disconnect(waiting)
    await until(lambda: is_abandoned(queued))
    assert await in_database(Execution.objects.count) == 2


@pytest.mark.usefixtures("quick_repeats")
async def test_somebody_else_who_waits_with_the_same_key_keeps_the_run(engine, fickle):
    """The first connection died unnoticed, the client came again with its key, and then it was noticed."""
    waiting = asyncio.create_task(ask(idempotency_key="a key"))
    await until(lambda: Execution.objects.filter(polls__gte=1).exists())
    second = request_for("report", idempotency_key="a key")
    heard = asyncio.Event()

    async def listen(execution: Execution) -> None:
        heard.set()

    again = asyncio.create_task(start_and_wait(second, patient=True, on_progress=listen))
    await heard.wait()

    await disconnect(waiting)

    engine.on_status = replies(200, completed())
    assert (await again).succeeded
    assert engine.count("cancel") == 0


async def test_a_server_that_stops_notes_who_has_gone(engine, workflow):
    """Its callers come back to the next one at once."""

    async def serve() -> None:
        waiting = asyncio.create_task(ask())
        await until(lambda: Execution.objects.filter(polls=1).exists())
        await disconnect(waiting)
        await advancing.finish_steps()
        await close_connectors()

    await asyncio.to_thread(asyncio.run, serve())

    execution = await in_database(only)
    assert await in_database(is_abandoned, execution)
    assert (execution.run_id, execution.lease_holder) == (RUN_ID, "")


async def test_a_server_that_stops_waits_for_what_the_last_steps_begin(engine, fickle):
    """The cancel that follows a start is sent before the connectors are closed."""
    gate = Gate(replies(200, receipt()))
    engine.on_start, engine.on_status = gate, CANCELLED

    async def serve() -> None:
        waiting = await gate.keep(ask())
        leaving = asyncio.create_task(disconnect(waiting))
        await until(lambda: only().cancel_requested_at)
        stopping = asyncio.create_task(advancing.finish_steps())
        gate.open()
        await asyncio.gather(leaving, stopping)
        await close_connectors()

    await asyncio.to_thread(asyncio.run, serve())

    assert (await in_database(only)).state == State.CANCELLED


async def test_a_server_that_stops_waits_for_a_step_that_the_only_other_one_began_as_it_ended():
    ended = asyncio.Event()

    async def last() -> None:
        await asyncio.sleep(0.02)  # A step that takes as long
        ended.set()

    async def first() -> None:
        advancing.begin(last())

    advancing.begin(first())
    await advancing.finish_steps()
    assert ended.is_set()


async def test_a_server_that_stops_notes_who_was_answered_in_the_last_moment(engine, workflow, monkeypatch):
    """What the end of a step begins is waited for as well."""
    monkeypatch.setattr("executions.waiting.LEASE", timedelta(0))
    engine.on_start = gate = Gate(replies(200, completed() | receipt()))

    async def serve() -> None:
        waiting = await gate.keep(ask())
        await in_database(Execution.objects.update, awaited_until=timezone.now())
        stopping = asyncio.create_task(advancing.finish_steps())
        gate.open()
        await stopping
        assert is_nothing_under_way() and (await waiting).succeeded
        await close_connectors()

    await asyncio.to_thread(asyncio.run, serve())

    assert (await in_database(only)).awaited_until is None


class Faults:
    """Fails the statements that match, as a database does that is locked or gone for a moment."""

    def __init__(self) -> None:
        self.fails = ""
        self.times = 0

    def __call__(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if self.times and self.fails in sql:
            self.times -= 1
            raise OperationalError("database is locked")
        return execute(sql, params, many, context)


@pytest.fixture
def faults() -> Iterator[Faults]:
    faults = Faults()
    with wrapping_statements(faults):
        yield faults


@pytest.fixture
def log() -> Iterator[list[str]]:
    lines: list[str] = []
    sink = logger.add(lines.append, level="WARNING", format="{message}")
    yield lines
    logger.remove(sink)


@pytest.mark.parametrize("statement", ['UPDATE "executions_execution"', 'SELECT "executions_execution"'])
@pytest.mark.databases("executions.waiting")
@pytest.mark.usefixtures("quick_repeats")
async def test_a_database_that_fails_for_a_moment_costs_a_waiting_caller_no_result(
    faults, engine, workflow, log, statement
):
    """B6: whichever statement of the wait it hits."""
    waiting = asyncio.create_task(ask())
    await until(lambda: Execution.objects.filter(polls__gte=1).exists())
    faults.fails, faults.times = statement, 1
    await until(lambda: faults.times == 0, "the statement fails")
    engine.on_status = replies(200, completed({"sum": 3}))
    assert (await waiting).succeeded
    assert "database is locked" in "".join(log)


@pytest.mark.databases("executions.waiting", "catalogue.database")
@pytest.mark.usefixtures("quick_repeats")
async def test_an_outage_of_the_database_is_logged_when_it_begins_and_when_it_ends(
    faults, engine, workflow, log
):
    """B6, B9: and not with each attempt of each call that waits."""
    waiting = asyncio.create_task(ask())
    await until(lambda: Execution.objects.filter(polls__gte=1).exists())
    faults.fails, faults.times = 'SELECT "executions_execution"', 5
    await until(lambda: faults.times == 0, "the statements fail")
    engine.on_status = replies(200, completed({"sum": 3}))
    assert (await waiting).succeeded
    first, last = [line for line in log if line.startswith("Following the execution")]
    assert "failed, and is repeated until the database answers: database is locked" in first
    assert "works again; the database failed for " in last


async def test_a_note_that_cannot_be_written_is_logged(faults, engine, workflow, log):
    """B9: nobody is left to raise it to. The heartbeat ends, so the caller is missed after a while."""
    engine.on_start = gate = Gate(replies(200, receipt()))
    waiting = await gate.keep(ask())
    faults.fails, faults.times = "awaited_until", 1
    await disconnect(waiting)
    await until(lambda: any("A step of an execution failed" in line for line in log), "it is logged")
    gate.open()
    await until(is_nothing_under_way)
    assert not (await in_database(only)).lease_holder


async def test_a_record_that_cannot_be_written_is_logged_though_its_caller_has_gone(
    faults, engine, workflow, log
):
    faults.fails, faults.times = 'INSERT INTO "executions_execution"', 1
    with busy_database_threads():
        waiting = await call_and_leave()
    await disconnect(waiting)
    await until(lambda: any("its caller is gone" in line for line in log))
    assert await in_database(Execution.objects.count) == 0 and engine.requests == []
