"""How a worker gets through what is due: without gaps, fair to every engine, and in few statements."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, OperationalError, connection, transaction
from django.utils import timezone
from loguru import logger

from catalogue.models import Source, Workflow
from connectors.background import run_in_background_loop
from executions import advancing
from executions.advancing import finish_polling, poll_due_executions
from executions.models import Execution, State
from executions.runner import engine_calls
from executions.runner.lease import LANE_ROOM, Lane, claim_due_executions
from executions.runner.recording import record
from executions.tasks import finish_steps_of_worker
from telemetry import metrics
from tests.connectors.scripted import Behaviour, replies
from tests.executions.engines import (
    WORKFLOW_ID,
    Gate,
    WireEngine,
    completed,
    receipt,
    running_wire_engine,
    status,
    wait_until,
)
from tests.executions.steps import advance_due_executions, let_pass, make_active, read, wrapping_statements
from tests.factories import make_source, make_workflow

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.databases("executions.advancing", "executions.runner.lease", "executions.runner.follow"),
]


@pytest.fixture
def other_engine() -> Iterator[WireEngine]:
    with running_wire_engine() as engine:
        yield engine


@pytest.fixture
def other_workflow(other_engine: WireEngine) -> Workflow:
    return make_workflow(make_source(base_url=other_engine.base_url), upstream_id=WORKFLOW_ID)


def make_due(count: int, workflow: Workflow, state: State = State.RUNNING) -> list[Execution]:
    return [make_active(workflow, state) for _ in range(count)]


def polled() -> int:
    return Execution.objects.filter(polls__gt=0, lease_holder="").count()


def successful_polls() -> float:
    return metrics.registry.get_sample_value("catalogue_polls_total", {"outcome": "ok"}) or 0


# The drain.


def test_one_tick_is_enough_for_however_many_are_due(engine, workflow, configured):
    """B7, E7: places are filled again as steps end, and an engine never sees more of them at a time."""
    configured(status_check_interval=60)  # None is due again before the last one was polled.
    count = 3 * LANE_ROOM + 7
    make_due(count, workflow)
    engine.on_status = gate = Gate(engine.on_status)
    counted = successful_polls()

    poll_due_executions()

    wait_until(lambda: engine.count("status") == LANE_ROOM)
    gate.open()
    wait_until(lambda: polled() == count)
    assert engine.count("status") == count
    assert successful_polls() - counted == count


def test_what_falls_due_while_an_engine_hangs_is_begun_by_the_next_tick(
    engine, workflow, other_engine, other_workflow
):
    """B7: there is one drain in a process, and ticks wake it."""
    engine.on_status = gate = Gate(replies(200, status()))
    make_due(LANE_ROOM + 3, workflow)
    poll_due_executions()
    wait_until(lambda: engine.count("status") == LANE_ROOM)

    make_due(2, other_workflow)
    for _ in range(3):
        poll_due_executions()

    wait_until(lambda: polled() == 2)
    assert (other_engine.count("status"), engine.count("status")) == (2, LANE_ROOM)
    gate.open()
    wait_until(lambda: polled() == LANE_ROOM + 5)
    assert engine.count("status") == LANE_ROOM + 3


def test_starts_that_take_long_do_not_keep_runs_of_the_same_engine_from_being_polled(engine, workflow):
    """B7: a synchronous workflow answers its start when it is done, which may be in an hour."""
    engine.on_start = gate = Gate(replies(200, receipt() | completed()))
    make_due(LANE_ROOM + 5, workflow, State.PENDING)
    poll_due_executions()
    wait_until(lambda: engine.count("start") == LANE_ROOM)

    make_due(1, workflow)
    poll_due_executions()

    wait_until(lambda: polled() == 1)
    assert engine.count("status") == 1
    gate.open()
    wait_until(lambda: Execution.objects.filter(state=State.COMPLETED).count() == LANE_ROOM + 5)


def test_a_worker_that_is_stopped_claims_no_more_and_finishes_what_it_has(engine, workflow):
    """B8: what it leaves is free for others at once."""
    engine.on_status = gate = Gate(replies(200, status()))
    make_due(LANE_ROOM + 9, workflow)
    poll_due_executions()
    wait_until(lambda: engine.count("status") == LANE_ROOM)

    stopping = threading.Thread(target=finish_steps_of_worker)
    stopping.start()
    wait_until(lambda: advancing._drain._running is None or advancing._drain._running.done())
    gate.open()
    stopping.join()

    assert engine.count("status") == LANE_ROOM
    assert not Execution.objects.exclude(lease_holder="").exists()
    assert advance_due_executions() == 9


def test_a_worker_that_has_nothing_to_do_stops_at_once():
    """B8."""
    run_in_background_loop(finish_polling())
    poll_due_executions()
    run_in_background_loop(finish_polling())


def test_a_claim_that_fails_is_made_again_by_the_next_tick(engine, workflow):
    """B8: a database that is away costs a tick."""
    make_due(1, workflow)
    with wrapping_statements(failing(lambda sql: "lease_holder" in sql)):
        poll_due_executions()
        wait_until(lambda: advancing._drain._running is not None and advancing._drain._running.done())
    assert engine.requests == []

    poll_due_executions()

    wait_until(lambda: polled() == 1)


def failing(matches: Callable[[str], bool]) -> Any:
    """For `wrapping_statements`: the database refuses each statement that matches."""

    def execute_or_fail(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if matches(sql):
            raise OperationalError("the database is away")
        return execute(sql, params, many, context)

    return execute_or_fail


# Claims.


def test_a_claim_leaves_room_for_others_behind_a_long_queue_of_one_engine():
    """B7: however late the runs of the slow engine are, and however early it was asked for them."""
    slow, quick = make_workflow(), make_workflow()
    for execution in make_due(LANE_ROOM + 20, slow):
        let_pass(execution, 100)
    due = make_due(3, quick)

    claimed = claim_due_executions(limit=LANE_ROOM + 10)

    names = [execution.source_name for execution in claimed]
    assert names.count(slow.source.name) == LANE_ROOM
    assert {execution.pk for execution in claimed if execution.source_name == quick.source.name} == {
        execution.pk for execution in due
    }


def test_a_claim_counts_what_is_under_way_already():
    """B7: per source, polls apart from starts."""
    workflow = make_workflow()
    make_due(5, workflow)
    make_due(5, workflow, State.PENDING)
    polls = Lane(workflow.source.name, polls=True)

    claimed = claim_due_executions(limit=50, in_flight={polls: LANE_ROOM - 2})

    states = [execution.state for execution in claimed]
    assert (states.count(State.RUNNING), states.count(State.PENDING)) == (2, 5)


def test_a_claim_passes_over_what_others_have_locked():
    """B8: two that wait for each other's rows would wait for ever."""
    if not connection.features.has_select_for_update_skip_locked:
        pytest.skip("this database has no locks on rows")
    first, second = make_due(2, make_workflow())
    locked, done = threading.Event(), threading.Event()

    def lock() -> None:
        with transaction.atomic():
            Execution.objects.select_for_update().get(pk=first.pk)
            locked.set()
            done.wait(30)
        connection.close()

    locker = threading.Thread(target=lock)
    locker.start()
    assert locked.wait(30)
    claimed = claim_due_executions(limit=10)
    done.set()
    locker.join()

    assert [execution.pk for execution in claimed] == [second.pk]
    assert [execution.pk for execution in claim_due_executions(limit=10)] == [first.pk]


# What polls find, in few statements.


def test_many_polls_that_find_nothing_new_are_recorded_in_few_statements(engine, workflow):
    """E7: and each run has its time, its count and its lease given back."""
    count, updates = 40, list[str]()

    def watch(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.startswith("UPDATE"):
            updates.append(sql)
        return execute(sql, params, many, context)

    make_due(count, workflow)
    advance_due_executions()
    for execution in Execution.objects.all():
        let_pass(execution, 20)

    engine.on_status = gate = Gate(engine.on_status)
    with wrapping_statements(watch):
        poll_due_executions()
        wait_until(lambda: engine.count("status") == 2 * count)
        gate.open()
        run_in_background_loop(finish_polling())

    assert Execution.objects.filter(polls=2, lease_holder="", lease_expires_at=None).count() == count
    assert len(updates) < count / 2
    for execution in Execution.objects.all():
        assert execution.polled_at is not None
        assert 4 < (execution.next_attempt_at - execution.polled_at).total_seconds() < 7


def test_an_outage_of_an_engine_is_logged_as_it_begins_and_ends_and_not_with_each_poll(engine, workflow):
    """A5.1: with the number of runs that it concerns; then the source is listed again, if that failed too."""
    later = timezone.now() + timedelta(hours=1)
    Source.objects.update(failures=9, next_refresh_at=later)
    other = make_source(failures=9, next_refresh_at=later)
    lines: list[str] = []
    sink = logger.add(lines.append, level="WARNING", format="{level} {message} {extra[source]}")
    try:
        make_due(12, workflow)
        engine.on_status = replies(503)
        for _ in range(3):
            advance_due_executions()
            for execution in Execution.objects.all():
                let_pass(execution, 60)
        engine.on_status = replies(401)
        for _ in range(2):
            advance_due_executions()
            for execution in Execution.objects.all():
                let_pass(execution, 60)
        begun, refused = lines
        assert not Source.objects.exclude(next_refresh_at=later).exists()
        engine.on_status = replies(200, status())
        advance_due_executions()
    finally:
        logger.remove(sink)

    source = workflow.source.name
    assert begun.startswith(f"WARNING Polls of 12 runs at source {source} fail. The runs go on;")
    assert "503" in begun and begun.endswith(f" {source}\n")
    assert "401" in refused, "another reason is no repetition"
    (ended,) = lines[2:]
    assert ended.startswith(f"WARNING Polls at source {source} work again after ")
    assert Source.objects.get(next_refresh_at__lte=timezone.now()) == workflow.source
    assert Source.objects.get(next_refresh_at=later) == other
    assert "they failed for 12 runs" in ended


def test_another_outage_soon_after_the_first_is_logged_once_it_lasts(engine, workflow, monkeypatch):
    """An engine that fails now and then costs two lines in some minutes, but no outage stays unknown."""
    lines: list[str] = []

    def poll(behaviour: Behaviour) -> None:
        engine.on_status = behaviour
        advance_due_executions()
        for execution in Execution.objects.all():
            let_pass(execution, 10)

    sink = logger.add(lines.append, level="WARNING", format="{message}")
    try:
        make_due(1, workflow)
        for _ in range(3):
            poll(replies(503))
            poll(replies(200, status()))
        assert [" fail. " in line for line in lines] == [True, False]
        poll(replies(503))
        monkeypatch.setattr(engine_calls, "AGAIN_SECONDS", 0.0)
        poll(replies(503))
        poll(replies(503))
        poll(replies(200, status()))
    finally:
        logger.remove(sink)
    assert [" fail. " in line for line in lines] == [True, False, True, False]


def test_runs_that_an_engine_has_forgotten_are_no_outage_of_all_its_runs(engine, workflow):
    """A7.1: an engine that comes back without some of its runs. Each has its own entry."""
    lines: list[str] = []
    sink = logger.add(lines.append, level="WARNING", format="{message}")
    try:
        due = make_due(3, workflow)
        advance_due_executions()
        for execution in due:
            let_pass(execution, 60)
        engine.on_status = replies(404)
        while Execution.objects.filter(state=State.RUNNING).exists():
            assert advance_due_executions()
            for execution in Execution.objects.all():
                let_pass(execution, 60)
    finally:
        logger.remove(sink)
    assert len(lines) == 3
    assert all(line.startswith("The engine no longer knows the run: ") for line in lines)


def test_a_cancel_that_is_asked_for_during_an_uneventful_poll_is_not_put_off(engine, workflow):
    """A7.5: the next step is due at once."""
    (execution,) = make_due(1, workflow)
    advance_due_executions()
    let_pass(execution, 20)
    engine.on_status = gate = Gate(engine.on_status)
    poll_due_executions()
    gate.wait_for_request()

    read(execution).request_cancel("Alice")
    gate.open()
    run_in_background_loop(finish_polling())

    recorded = read(execution)
    assert recorded.polls == 2 and recorded.next_attempt_at == recorded.cancel_requested_at


async def test_of_units_that_are_recorded_together_only_the_bad_one_fails(workflow):
    """B8: each is a transaction of its own."""

    def fail() -> None:
        raise IntegrityError("a bug of this one")

    kept = [f"kind-{number}" for number in range(30)]
    execution = await record(make_active, workflow, State.RUNNING)
    noted = [record(execution.note, kind, "noted") for kind in kept]
    outcomes = await asyncio.gather(*noted[:15], record(fail), *noted[15:], return_exceptions=True)

    assert [str(outcome) for outcome in outcomes if outcome is not None] == ["a bug of this one"]
    kinds = await record(lambda: set(execution.events.values_list("kind", flat=True)))
    assert set(kept) <= kinds
