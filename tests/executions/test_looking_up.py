"""A start whose answer was lost, at an engine that promises nothing but can look a run up by its key."""

import asyncio
from typing import Any

import pytest
from django.utils import timezone

from catalogue.models import Source, Workflow
from executions.models import Execution, State
from executions.models.lifecycle import StartRequest
from executions.runner.start import LOOKING_UP, MIN_LOOKS
from executions.starting import prepare_execution
from tests import plain_http
from tests.connectors.scripted import Received, replies, sends_and_hangs_up
from tests.executions.engines import (
    RUN_ID,
    WORKFLOW_ID,
    Gate,
    WireEngine,
    completed,
    in_thread,
    in_turn,
    receipt,
    relays,
)
from tests.executions.steps import (
    ALICE,
    advance_due_executions,
    call,
    cancel,
    expire_lease,
    in_database,
    let_pass,
    only,
    reach_deadline,
    read,
    reconfigure,
    timeline,
    told,
)
from tests.factories import make_execution, make_source, make_workflow
from tests.processes import ExampleEngine

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("quick_looks")]

LOOKUP = "/runs?workflow_id={workflow_id}&idempotency_key={key}"
HANGS_UP = sends_and_hangs_up()
NONE = replies(200, {"total": 0, "runs": []})
FOUND = replies(200, {"total": 1, "runs": [{"run_id": RUN_ID, "status": "RUNNING"}]})


@pytest.fixture
def workflow(engine: WireEngine) -> Workflow:
    """Of an engine that promises nothing about keys, and can look runs up by them."""
    source = make_source(base_url=engine.base_url, config={"run_lookup_path": LOOKUP})
    return make_workflow(source, upstream_id=WORKFLOW_ID, name="report")


@pytest.fixture
def keyed_workflow(engine: WireEngine, configured: Any) -> Workflow:
    """Of an engine that starts one run per key and can look runs up, too; no answer to a start arrives."""
    configured(retry_attempts=1)
    engine.on_start = HANGS_UP
    config = {"run_lookup_path": LOOKUP, "idempotency_header": "Idempotency-Key"}
    return make_workflow(
        make_source(base_url=engine.base_url, config=config), upstream_id=WORKFLOW_ID, name="report"
    )


def killed_while_starting(workflow: Workflow, **arguments: Any) -> Execution:
    """What a process that was killed in mid-start leaves, once its lease has run out."""
    request = StartRequest(
        tool_name=workflow.tool_name, arguments=arguments, caller=ALICE, door=Execution.Door.MCP
    )
    execution = prepare_execution(request, "a process that was killed")()
    expire_lease(execution)
    return execution


def look(execution: Execution, times: int = 1, *, every: float = 31) -> Execution:
    """So many ticks of a worker, far enough apart for the longest pause between two looks."""
    for _ in range(times):
        let_pass(execution, every)
        advance_due_executions()
    return read(execution)


# The real engine, which records the key and starts anew whatever it is.


def relayed_countdown(wire: WireEngine, engine: ExampleEngine) -> Workflow:
    wire.on_start = relays(engine, answers=False)
    wire.on_status = wire.on_cancel = wire.on_lookup = relays(engine)
    source = make_source(base_url=wire.base_url, api_key=engine.api_key, config={"run_lookup_path": LOOKUP})
    return make_workflow(source, upstream_id="1003", name="countdown")


@pytest.mark.parametrize("sent", [False, True], ids=["before it sent", "after it sent"])
def test_a_killed_start_is_looked_up(engine, forgetful_engine, sent):
    """B8: never a second run, whenever the process was killed, and nobody has to find out."""
    workflow = relayed_countdown(engine, forgetful_engine)
    execution = killed_while_starting(workflow, seconds=0)
    if sent:
        start_by_hand(forgetful_engine, execution)

    record = look(execution, 5)

    assert record.state == (State.COMPLETED if sent else State.FAILED)
    assert len(forgetful_engine.runs(idempotency_key=str(execution.pk))) == sent
    assert engine.count("start") == 0


def start_by_hand(engine: ExampleEngine, execution: Execution) -> None:
    plain_http.post(
        f"{engine.base_url}/api/v1/service/workflows/1003/start",
        json={"input": {"seconds": 0}, "source": "application"},
        headers={"authorization": f"Api-Key {engine.api_key}", "idempotency-key": str(execution.pk)},
    ).raise_for_status()


# What the engine says, on the wire.


@pytest.mark.usefixtures("quick_repeats")
@pytest.mark.parametrize("behaviour", [HANGS_UP, replies(500, {"error": "gone"}), replies(200, {"ok": True})],
    ids=["hangs up", "500", "names no run"],
)  # fmt: skip
async def test_a_start_of_unknown_outcome_is_looked_up_instead_of_left_to_a_human(
    engine, workflow, behaviour
):
    """A run that turns up at the second look is followed to its end."""
    engine.on_start, engine.on_status = behaviour, replies(200, completed())
    engine.on_lookup = in_turn(NONE, FOUND)

    execution = await call("report")

    assert execution.succeeded and execution.run_id == RUN_ID
    assert (engine.count("start"), engine.count("runs")) == (1, 2)
    target = engine.asked("runs")[0].received.target
    assert target == f"/runs?workflow_id={WORKFLOW_ID}&idempotency_key={execution.pk}"
    assert engine.asked("start")[0].key == str(execution.pk)


def test_a_run_that_has_ended_by_the_time_it_is_found_gives_its_result(engine, workflow):
    """A8.4: the lookup's answer has the whole status."""
    engine.on_lookup = replies(200, completed({"sum": 3}) | {"run_id": RUN_ID})
    record = look(killed_while_starting(workflow))
    assert record.succeeded and record.payload.output == {"sum": 3}
    assert engine.count("status") == 0


def test_a_start_that_the_engine_has_no_run_for_is_given_up_after_a_minute_and_several_looks(
    engine, workflow
):
    """Not before: it may still be on its way. Then it has failed, and says that a new call is safe."""
    execution = killed_while_starting(workflow)
    engine.on_lookup = NONE

    waiting = look(execution, 1)
    assert waiting.state == State.STARTING and waiting.looked_up_since is not None
    while (passed := timezone.now() - read(execution).looked_up_since) < LOOKING_UP:  # type: ignore[operator]
        assert read(execution).state == State.STARTING, passed
        look(execution, every=20)
    record = look(execution)

    assert (record.state, record.error_kind) == (State.FAILED, "execution")
    assert "safe to call again" in record.error
    assert engine.count("runs") >= MIN_LOOKS
    assert engine.count("start") == 0


def test_one_answer_of_an_engine_that_was_away_is_not_believed_at_once(engine, workflow):
    """It may not have caught up: only several answers in a row count."""
    execution = killed_while_starting(workflow)
    engine.on_lookup = in_turn(HANGS_UP, HANGS_UP, HANGS_UP, NONE)
    assert look(execution, 3).state == State.STARTING
    assert look(execution, MIN_LOOKS - 1).state == State.STARTING
    assert look(execution).state == State.FAILED


def test_looks_are_spaced_by_growing_pauses(engine, workflow):
    """An engine in trouble is not asked every second."""
    execution = killed_while_starting(workflow)
    engine.on_lookup = NONE
    shortest, longest = [], []
    for _ in range(5):
        # As if the pause had passed, and hardly more.
        let_pass(execution, (read(execution).next_attempt_at - timezone.now()).total_seconds() + 0.01)
        before = timezone.now()
        assert advance_due_executions() == 1
        after, due = timezone.now(), read(execution).next_attempt_at
        shortest.append((due - after).total_seconds())
        longest.append((due - before).total_seconds())
    # A look begins and ends at some time between the two, however busy the machine is.
    assert all(least < most for least, most in zip(shortest, longest[1:], strict=False))
    assert longest[0] < shortest[-1]


@pytest.mark.parametrize(
    "lookup",
    [
        HANGS_UP,
        replies(401, {"error": "who are you?"}),
        replies(200, {"ok": True}),
        replies(200, {"runs": [{"run_id": "a"}, {"run_id": "b"}]}),
        replies(200, {"runs": [{"run_id": "a", "idempotency_key": "another"}]}),
    ],
    ids=["silent", "refuses", "says nothing", "several", "another's"],
)
def test_a_lookup_that_leaves_it_open_goes_on_until_the_deadline_and_is_then_left_to_a_human(
    engine, workflow, lookup
):
    """What is no clear "there is none" must never pass for one."""
    engine.on_lookup = lookup
    execution = killed_while_starting(workflow)
    assert look(execution, 5).state == State.STARTING
    reach_deadline(execution)
    record = look(execution)
    assert record.state == State.UNCONFIRMED
    assert "the engine does not report it" in record.error


def test_a_404_says_that_there_is_no_run(engine, workflow):
    """Engines that answer a lookup with one run have no empty list."""
    engine.on_lookup = replies(404, {"error": "no such key"})
    assert look(killed_while_starting(workflow), 5).state == State.FAILED


def test_a_lookup_that_does_not_even_find_a_run_that_there_is_is_not_believed(engine, workflow):
    """A mistake in the lookup path must not call a start failed that was not, and have it called again."""
    engine.on_lookup = replies(404, {"error": "no such path"})
    known = make_execution(workflow, run_id="run-1")
    record = look(killed_while_starting(workflow), 5)
    assert record.state == State.UNCONFIRMED
    assert f"it does not find run run-1 of execution {known.pk} either" in record.error


@pytest.mark.databases("executions.runner.start")
def test_a_lookup_that_finds_another_run_is_believed_when_it_finds_none(engine, workflow):
    """The engine is asked for the known run only once, before what it says is believed."""
    known = make_execution(workflow, run_id="run-1")

    async def behave(request: Received, writer: asyncio.StreamWriter) -> None:
        await (FOUND if str(known.pk) in request.target else NONE)(request, writer)

    engine.on_lookup = behave
    assert look(killed_while_starting(workflow), 5).state == State.FAILED
    assert sum(str(known.pk) in asked.received.target for asked in engine.asked("runs")) == 1


def test_a_short_timeout_does_not_shorten_the_look(engine, workflow):
    """A7.2: the run may be there though its time is up; then it is cancelled like any other."""
    engine.on_lookup = in_turn(NONE, FOUND)
    execution = killed_while_starting(workflow)
    reach_deadline(execution)
    assert look(execution, every=1).state == State.STARTING
    assert look(execution, every=5).state == State.RUNNING
    look(execution)
    assert engine.count("cancel") == 1


@pytest.mark.parametrize("found", [False, True])
def test_a_start_that_is_looked_up_can_be_cancelled(engine, workflow, found):
    """A7.5: the run is cancelled as soon as it is found; where there is none, that is the end of it."""
    engine.on_lookup = FOUND if found else NONE
    engine.on_status = in_turn(replies(200, completed() | {"status": "CANCELLED"}))
    execution = killed_while_starting(workflow)
    assert read(execution).request_cancel("Alice")

    record = look(execution, 5)

    assert record.state == State.CANCELLED
    assert engine.count("cancel") == found


@pytest.mark.parametrize(
    "change",
    [lambda e: reconfigure(Source.objects.get()), lambda e: Workflow.objects.get().delete()],
    ids=["source changed", "deleted"],
)
def test_what_was_sent_with_other_settings_is_not_looked_up(engine, workflow, change):
    """Another engine has none of our runs, and saying so would be a lie."""
    execution = killed_while_starting(workflow)
    change(execution)
    advance_due_executions()
    assert read(execution).state == State.UNCONFIRMED
    assert engine.requests == []


def test_a_source_that_was_switched_off_is_still_asked_what_became_of_a_start(engine, workflow):
    """A4.4: asking starts nothing, and runs that are under way are followed too."""
    engine.on_lookup, engine.on_status = FOUND, replies(200, completed())
    execution = killed_while_starting(workflow)
    Source.objects.update(enabled=False)
    assert look(execution, 2).succeeded


# Engines that start one run per key as well.


@pytest.mark.usefixtures("quick_repeats")
async def test_a_start_is_looked_up_once_its_repeats_are_used_up(engine, keyed_workflow):
    """A7.2, B8: the engine ran it and says so; nobody has to find out."""
    engine.on_lookup, engine.on_status = in_turn(NONE, FOUND), replies(200, completed())

    execution = await call("report")

    assert execution.succeeded and execution.run_id == RUN_ID
    assert [request.kind for request in engine.requests] == ["start", "start", "runs", "runs", "status"]
    assert {request.key for request in engine.asked("start")} == {str(execution.pk)}


def test_a_start_that_is_looked_up_is_never_sent_again(engine, keyed_workflow):
    """B8: also not after a process was killed meanwhile: a run could begin that was said not to exist."""
    engine.on_lookup = NONE
    execution = look(killed_while_starting(keyed_workflow), 3, every=61)
    assert execution.looked_up_since is not None
    before = engine.count("start")

    expire_lease(execution)
    engine.on_lookup = in_turn(HANGS_UP, NONE)
    record = look(execution, 5)

    assert record.state == State.FAILED and "safe to call again" in record.error
    assert engine.count("start") == before == 2


@pytest.mark.parametrize("ended_by", ["cancel", "deadline", "disabled"])
def test_a_start_that_may_not_be_repeated_is_looked_up(engine, keyed_workflow, ended_by):
    """A7.5: its run is found, and cancelled where it is to end."""
    engine.on_lookup = FOUND
    engine.on_status = in_turn(replies(200, completed() | {"status": "CANCELLED"}))
    execution = killed_while_starting(keyed_workflow)
    if ended_by == "cancel":
        assert read(execution).request_cancel("Alice")
    elif ended_by == "deadline":
        reach_deadline(execution)
    else:
        Workflow.objects.update(enabled=False)

    record = look(execution, 2, every=5)

    assert record.run_id == RUN_ID
    assert record.state == (State.TIMED_OUT if ended_by == "deadline" else State.CANCELLED)
    assert (engine.count("start"), engine.count("cancel")) == (0, ended_by != "disabled")


def test_a_known_run_that_the_engine_has_forgotten_does_not_make_its_answer_worthless(engine, workflow):
    """Engines keep runs for a while: that one is gone says nothing of how well others are found."""
    engine.on_lookup, engine.on_status = NONE, replies(404, {"error": "no such run"})
    make_execution(workflow, run_id="run-1")
    assert look(killed_while_starting(workflow), 5).state == State.FAILED


# Races.


async def test_an_answer_that_comes_while_it_is_looked_up_is_the_same_run(engine, workflow):
    """A process that was stopped for too long: it is answered, while a worker has found the run already."""
    gate = Gate(replies(200, receipt()))
    engine.on_start, engine.on_lookup = gate, FOUND
    engine.on_status = replies(200, completed())
    waiting = await gate.keep(call("report"))
    execution = await in_database(only)
    await in_database(expire_lease, execution)
    await in_thread(look, execution)

    gate.open()

    assert (await waiting).succeeded
    assert "started_late" not in await in_database(timeline, execution)
    assert engine.count("start") == 1


@pytest.mark.databases("executions.runner.start")
async def test_a_look_that_is_answered_after_somebody_else_has_found_the_run_changes_nothing(
    engine, workflow
):
    """The lease ran out during a look; "there is none" is old by the time it is heard."""
    gate = Gate(NONE)
    engine.on_lookup, engine.on_status = in_turn(gate, FOUND), replies(200, completed())
    execution = await in_database(killed_while_starting, workflow)
    slow = await gate.keep(in_thread(advance_due_executions))
    await in_database(expire_lease, execution)
    await in_thread(advance_due_executions)
    assert (await in_database(read, execution)).run_id == RUN_ID

    gate.open()
    await slow

    assert (await in_database(read, execution)).run_id == RUN_ID
    assert await in_database(told, execution, "failed") == []


async def test_cancelling_while_it_is_looked_up_is_noted_and_the_look_comes_at_once(engine, workflow):
    """A7.5."""
    engine.on_lookup, engine.on_status = (
        in_turn(NONE, FOUND),
        replies(200, completed() | {"status": "CANCELLED"}),
    )
    execution = await in_database(killed_while_starting, workflow)
    await in_thread(look, execution)
    cancellation = await cancel(execution)
    assert cancellation.execution.cancel_requested_at is not None
    assert engine.count("runs") == 2
