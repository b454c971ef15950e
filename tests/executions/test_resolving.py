"""An admin says what came of a start that nobody knows the outcome of."""

import asyncio
from typing import Any

import pytest
from django.utils import timezone

from catalogue.models import Source, Workflow
from connectors.background import run_in_background_loop
from executions.engine_runs import (
    EngineSilent,
    NotUnconfirmed,
    UnknownRun,
    resolve_as_not_started,
    resolve_as_ran,
    resolve_as_started,
)
from executions.models import Execution, State
from executions.reading import UnknownExecution
from tests.connectors.scripted import replies, sends_and_hangs_up
from tests.executions.engines import RUN_ID, Gate, completed, status
from tests.executions.steps import (
    ADMIN,
    BOB,
    advance_due_executions,
    in_database,
    let_pass,
    make_active,
    read,
    timeline,
    told,
)
from tests.factories import make_execution

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def unconfirmed(workflow: Workflow) -> Execution:
    return make_unconfirmed(workflow)


def make_unconfirmed(workflow: Workflow) -> Execution:
    execution = make_active(workflow, State.STARTING, run_id="")
    assert execution.mark_unconfirmed("It is not known whether the run was started: silence.")
    return read(execution)


def it_ran(execution: Execution, run_id: str = RUN_ID, **options: Any) -> Execution:
    options = {"caller": ADMIN} | options
    return run_in_background_loop(resolve_as_started(str(execution.pk), run_id, **options))


def it_did_not_run(execution: Execution, **options: Any) -> Execution:
    return resolve_as_not_started(str(execution.pk), **{"caller": ADMIN} | options)


def test_a_run_that_an_admin_found_is_followed_to_its_result(engine, unconfirmed):
    """B8, A8.4: the engine is asked first, then a worker goes on as with any other run."""
    engine.on_status = replies(200, completed({"sum": 3}))

    it_ran(unconfirmed)

    running = read(unconfirmed)
    assert (running.state, running.run_id, running.error) == (State.RUNNING, RUN_ID, "")
    assert running.deadline_at > timezone.now()
    assert told(unconfirmed, "confirmed") == [f"admin: the engine runs it as {RUN_ID}."]
    let_pass(unconfirmed, 2)
    advance_due_executions()
    record = read(unconfirmed)
    assert record.succeeded and record.payload.output == {"sum": 3}


def test_the_run_is_not_polled_again_before_the_engine_allows_it(engine, unconfirmed):
    """B2: asking whether it exists was a poll."""
    it_ran(unconfirmed)
    assert read(unconfirmed).next_attempt_at > timezone.now()
    assert engine.count("status") == 1


def test_a_start_that_an_admin_did_not_find_has_failed(engine, unconfirmed):
    """B8: who said so is in the record; no engine is asked."""
    it_did_not_run(unconfirmed)
    record = read(unconfirmed)
    assert (record.state, record.error_kind) == (State.FAILED, "execution")
    assert record.error == "admin: the engine did not start it."
    assert record.finished_at is not None
    assert engine.requests == []


def test_a_run_that_the_engine_does_not_know_is_refused_with_its_words(engine, unconfirmed):
    """A mistyped id must not be followed until it fails."""
    engine.on_status = replies(404, {"error": "no such run here"})
    with pytest.raises(UnknownRun, match="no such run here"):
        it_ran(unconfirmed, "mistyped")
    assert read(unconfirmed).state == State.UNCONFIRMED


@pytest.mark.parametrize(
    ("answer", "refusal", "why"),
    [
        (sends_and_hangs_up(), EngineSilent, "could not be asked"),
        (replies(503, {"error": "down"}, retry_after="5"), EngineSilent, "try again later"),
        (replies(401, {"error": "who are you?"}), UnknownRun, "who are you"),
        (replies(200, status("CONFUSED")), UnknownRun, "CONFUSED"),
    ],
    ids=["silent", "busy", "refuses us", "unreadable"],
)
def test_a_run_that_the_engine_says_nothing_of_is_refused(engine, unconfirmed, answer, refusal, why):
    """A5.2: nothing changes, and the message says why."""
    engine.on_status = answer
    with pytest.raises(refusal, match=why):
        it_ran(unconfirmed)
    assert read(unconfirmed).state == State.UNCONFIRMED
    assert timeline(unconfirmed) == ["created", "unconfirmed"]


@pytest.mark.parametrize("run_id", ["", "  ", "x" * 256, "line\nbreak"])
def test_what_is_no_run_id_is_not_asked_for(engine, unconfirmed, run_id):
    with pytest.raises(UnknownRun, match="1 to 255"):
        it_ran(unconfirmed, run_id)
    assert engine.requests == []


@pytest.mark.databases("executions.engine_runs")
def test_a_run_of_another_execution_is_refused(engine, unconfirmed):
    """Two records of one run would count it twice."""
    other = make_execution(unconfirmed.workflow, run_id=RUN_ID)
    with pytest.raises(UnknownRun, match=str(other.pk)):
        it_ran(unconfirmed)
    assert engine.requests == []


@pytest.mark.parametrize("state", [state for state in State if state != State.UNCONFIRMED])
def test_only_what_is_unconfirmed_can_be_resolved(workflow, state):
    execution = make_execution(workflow, state=state, run_id="run-1")
    for resolve in (it_ran, it_did_not_run):
        with pytest.raises(NotUnconfirmed, match="Only unconfirmed executions"):
            resolve(execution)
    assert (read(execution).state, read(execution).run_id) == (state, "run-1")


def test_an_execution_that_one_may_not_see_is_unknown(unconfirmed):
    """B8."""
    for resolve in (it_ran, it_did_not_run):
        with pytest.raises(UnknownExecution):
            resolve(unconfirmed, caller=BOB)


@pytest.mark.parametrize(("ran", "state"), [(True, State.COMPLETED), (False, State.FAILED)])
def test_of_an_execution_whose_workflow_was_deleted_an_admin_says_whether_it_ran(
    engine, unconfirmed, ran, state
):
    """A1.3: nobody could follow the run."""
    Workflow.objects.all().delete()
    with pytest.raises(EngineSilent, match="was deleted"):
        it_ran(unconfirmed)
    if ran:
        run_in_background_loop(resolve_as_ran(str(unconfirmed.pk), caller=ADMIN))
    else:
        it_did_not_run(unconfirmed)
    assert read(unconfirmed).state == state


def test_a_source_that_cannot_be_used_is_said(unconfirmed):
    """B5."""
    Source.objects.update(config={"base_url": "not an address"})
    with pytest.raises(EngineSilent, match="cannot be used"):
        it_ran(unconfirmed)


# Races: the first wins, the other is told what it has become.


@pytest.mark.databases("executions.engine_runs")
async def test_of_two_admins_one_resolves_it(engine, workflow):
    """B8: while the engine is asked for the first, the second says that it did not run."""
    engine.on_status = gate = Gate(replies(200, status()))
    execution = await in_database(make_unconfirmed, workflow)
    first = await gate.keep(resolve_as_started(str(execution.pk), RUN_ID, caller=ADMIN))

    await in_database(it_did_not_run, execution)
    gate.open()

    with pytest.raises(NotUnconfirmed, match="the execution is failed"):
        await first
    assert (await in_database(read, execution)).state == State.FAILED
    assert await in_database(timeline, execution) == ["created", "unconfirmed", "failed"]


@pytest.mark.databases("executions.engine_runs")
async def test_two_admins_who_say_the_same_are_heard_once(engine, workflow):
    execution = await in_database(make_unconfirmed, workflow)
    resolutions = await asyncio.gather(
        *(resolve_as_started(str(execution.pk), RUN_ID, caller=ADMIN) for _ in range(2)),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in resolutions].count(NotUnconfirmed) == 1
    assert len(await in_database(told, execution, "confirmed")) == 1
