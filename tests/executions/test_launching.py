"""Starting at the engine: never twice, never lost, and honest where it cannot be known."""

import re
import threading
import uuid
from contextvars import copy_context
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone
from loguru import logger

from catalogue.actions.sources import change_source
from catalogue.actions.workflows import override_workflow
from catalogue.exposure import forget_catalogue
from catalogue.models import Source, Workflow
from connectors.background import run_in_background_loop
from connectors.registry import BUILT_IN
from connectors.testing import free_port
from executions.models import Execution, State
from executions.models.lifecycle import StartRequest
from executions.queue import admit_queued
from executions.starting import create_execution, prepare_execution
from telemetry.traces import request_id
from tests import plain_http
from tests.api.clients import administrator
from tests.connectors.scripted import replies, sends_and_hangs_up, stays_silent_after
from tests.executions.engines import (
    BAD_VALUES,
    RUN_ID,
    WORKFLOW_ID,
    Gate,
    completed,
    in_thread,
    in_turn,
    receipt,
    until,
    wait_until,
)
from tests.executions.steps import (
    ALICE,
    advance_due_executions,
    call,
    expire_lease,
    in_database,
    is_nothing_under_way,
    let_pass,
    make_active,
    only,
    reach_deadline,
    read,
    reconfigure,
    request_for,
    source_of,
    timeline,
    told,
)
from tests.factories import make_source, make_workflow
from tests.logs import shown_lines
from tests.processes import ExampleEngine
from tests.threads import together

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("quick_looks")]

LATER = timezone.now() + timedelta(hours=1)
BUSY = replies(503, {"error": "busy"}, retry_after="0")
REFUSED = replies(400, {"error": "no such year"})
HANGS_UP = sends_and_hangs_up()
HTML = replies(200, "<html><body>Please log in</body></html>", content_type="text/html")


def create_pending(workflow: Workflow, *, door: str = Execution.Door.REST) -> Execution:
    """As REST creates it without waiting: a worker starts it."""
    return create_execution(
        StartRequest(
            tool_name=workflow.tool_name, arguments={"text": "To be"}, caller=ALICE, door=Execution.Door(door)
        )
    )


def work_until_settled(execution: Execution, *, at_most: int = 10) -> Execution:
    """Ticks of a worker, with all the time between them that backing off asks for."""
    Execution.objects.update(deadline_at=timezone.now() + timedelta(hours=1))
    for _ in range(at_most):
        if read(execution).is_settled:
            break
        let_pass(execution, 61)
        advance_due_executions()
    return read(execution)


# What nobody waits for.


def test_a_worker_starts_what_nobody_waits_for(engine, workflow):
    """A7.1, A2.2: the record is there first, the engine is contacted by whoever takes it."""
    engine.on_start = replies(200, completed() | receipt())
    execution = create_pending(workflow)
    assert engine.requests == []

    assert advance_due_executions() == 1

    assert read(execution).succeeded
    assert engine.asked("start")[0].received.json["input"] == {"text": "To be"}
    assert advance_due_executions() == 0


@pytest.mark.parametrize(
    ("switch_off", "why"),
    [
        (lambda w: Workflow.objects.update(enabled=False), "the workflow was disabled"),
        (lambda w: Workflow.objects.update(missing_since=timezone.now()), "no longer lists the workflow"),
        (lambda w: Source.objects.update(enabled=False), "was switched off"),
        (lambda w: w.delete(), "Its workflow was deleted before it was started"),
    ],
    ids=["disabled", "missing", "source off", "deleted"],
)
def test_what_was_switched_off_before_it_was_started_is_not_started(engine, workflow, switch_off, why):
    """A4.4, B5: nothing of a source that is off is run, and the record says why."""
    execution = create_pending(workflow)
    switch_off(workflow)

    advance_due_executions()

    record = read(execution)
    assert (record.state, record.error_kind) == (State.FAILED, "configuration")
    assert why in record.error
    assert engine.requests == []


def test_a_hidden_workflow_is_run_for_somebody_who_tries_it_in_the_admin(engine, workflow):
    """A4.4: also where it waits for its turn first."""
    engine.on_start = replies(200, completed() | receipt())
    waiting, execution = (create_pending(workflow, door=Execution.Door.ADMIN) for _ in range(2))
    Execution.objects.filter(pk=waiting.pk).update(admitted_at=None)
    Workflow.objects.update(enabled=False)

    admit_queued()
    advance_due_executions()

    assert read(execution).succeeded and read(waiting).succeeded


def test_an_execution_that_waited_too_long_for_its_start_times_out(engine, workflow):
    """A7.2."""
    execution = create_pending(workflow)
    reach_deadline(execution)
    advance_due_executions()
    record = read(execution)
    assert (record.state, record.error_kind) == (State.TIMED_OUT, "timeout")
    assert record.error == "It took longer than its timeout of 300 s before the engine accepted it."
    assert engine.requests == []


# Starts that surely did not happen.


@pytest.mark.usefixtures("quick_repeats")
async def test_a_start_that_did_not_happen_is_tried_again_while_the_caller_waits(engine, workflow):
    """B4: the engine said that it is busy."""
    engine.on_start = in_turn(BUSY, replies(200, completed() | receipt()))
    execution = await call("report")
    assert execution.succeeded
    assert engine.count("start") == 2
    assert await in_database(timeline, execution) == ["created", "start_postponed", "started", "completed"]


def test_starts_that_do_not_happen_are_given_up_after_the_attempts_set(engine, workflow, configured):
    """B4, A5.2: one start and two more."""
    configured(retry_attempts=2)
    engine.on_start = BUSY
    record = work_until_settled(create_pending(workflow))
    assert record.state == State.FAILED and "busy" in record.error
    assert engine.count("start") == 3
    assert engine.count("status") == 0


def test_an_engine_that_is_away_for_a_while_costs_a_delay(workflow):
    """B6: nothing listens at the port, so nothing can have been started."""
    away = make_source(base_url=f"http://127.0.0.1:{free_port()}")
    execution = create_pending(make_workflow(away, name="distant"))
    advance_due_executions()
    record = read(execution)
    assert record.state == State.PENDING and record.attempts == 1
    assert "onnect" in told(execution, "start_postponed")[0]


def test_the_engines_own_retry_after_is_respected(engine, workflow):
    """B4: not before the engine asked for it, however impatient our own backoff is."""
    engine.on_start = replies(429, {"error": "slow down"}, retry_after="120")
    execution = create_pending(workflow)
    advance_due_executions()
    wait = read(execution).next_attempt_at - timezone.now()
    assert 115 < wait.total_seconds() <= 120

    let_pass(execution, 100)
    assert advance_due_executions() == 0
    let_pass(execution, 21)
    assert advance_due_executions() == 1
    assert engine.count("start") == 2


def test_an_engine_that_asks_to_be_left_alone_beyond_the_deadline_fails_the_start_at_once(engine, workflow):
    """A7.2, B4: waiting for the deadline could not change that, and a longer timeout is not what it takes."""
    engine.on_start = replies(429, {"error": "slow down"}, retry_after="3600")
    execution = create_pending(workflow)
    advance_due_executions()
    record = read(execution)
    assert (record.state, record.error_kind) == (State.FAILED, "execution")
    assert (
        "429 Too Many Requests: slow down. Nothing was done: the engine asks clients to wait" in record.error
    )
    assert re.search(r"wait 3,600 s, and only (300|2\d\d) s of the timeout are left\.$", record.error)
    assert timeline(execution) == ["created", "nothing_done", "failed"]
    assert engine.count("start") == 1


def test_an_engine_that_refuses_our_credentials_is_an_error_of_configuration(engine, workflow):
    """B5: no other arguments would help."""
    engine.on_start = replies(401, {"error": "key expired"})
    record = work_until_settled(create_pending(workflow))
    assert (record.state, record.error_kind) == (State.FAILED, "configuration")
    assert "key expired" in record.error


@pytest.mark.parametrize("again", [False, True], ids=["the first", "after a busy engine"])
def test_a_refused_start_fails_with_the_engines_words(engine, workflow, again):
    """A2.4, B5: a refusal is final; it is not sent again."""
    engine.on_start = in_turn(BUSY, REFUSED) if again else REFUSED
    record = work_until_settled(create_pending(workflow))
    assert (record.state, record.error_kind) == (State.FAILED, "execution")
    assert "no such year" in record.error
    assert engine.count("start") == 1 + again


def test_a_source_whose_settings_cannot_be_used_is_an_error_of_configuration(engine, workflow):
    """B5."""
    Source.objects.update(config={"base_url": "not an address"})
    record = work_until_settled(create_pending(workflow))
    assert (record.state, record.error_kind) == (State.FAILED, "configuration")
    assert engine.requests == []


# Starts of unknown outcome.


@pytest.mark.parametrize(
    "behaviour", [HANGS_UP, HTML, replies(500, {"error": "gone"}), replies(200, {"ok": True})],
    ids=["hangs up", "HTML", "500", "names no run"],
)  # fmt: skip
async def test_a_start_of_unknown_outcome_is_left_to_a_human(engine, workflow, behaviour):
    """Never retried by itself where the engine could start a second run."""
    engine.on_start = behaviour
    execution = await call("report")
    assert execution.state == State.UNCONFIRMED
    assert execution.error.startswith("It is not known whether the run was started: ")
    assert await in_thread(advance_due_executions) == 0
    assert engine.count("start") == 1


@pytest.mark.parametrize("run_id", ["r" * 600, "a\nb"], ids=["too long", "a line break"])
async def test_an_id_of_a_run_that_cannot_be_kept_is_not_taken_for_none(engine, workflow, run_id):
    """An engineer looks for the fault where it is: there is a run, and its id is the trouble."""
    engine.on_start = replies(200, receipt() | {"workflow_id": run_id})
    execution = await call("report")
    assert execution.state == State.UNCONFIRMED
    assert f"has {len(run_id)} characters; it must have at most 255 characters" in execution.error


async def test_a_start_that_is_never_answered_is_left_to_a_human(engine, workflow, monkeypatch):
    """Whatever patience a connector's settings have, a start ends before its lease does."""
    monkeypatch.setattr("executions.runner.start.START_SECONDS", 0.2)
    engine.on_start = stays_silent_after()
    execution = await call("report")
    assert execution.state == State.UNCONFIRMED
    assert "did not answer within 0.2 s" in execution.error


async def test_the_start_of_a_synchronous_workflow_may_last_as_long_as_its_timeout(
    engine, workflow, monkeypatch
):
    """A7.1: it answers when it is done; other starts only tell that there is a run."""
    monkeypatch.setattr("executions.runner.start.START_SECONDS", 0.0)
    workflow.source.config |= {"request_timeout_seconds": 900}
    await in_database(workflow.source.save)
    engine.on_start = replies(200, completed() | receipt())
    assert (await call("report")).state == State.UNCONFIRMED

    await in_database(Workflow.objects.update, execution_type="sync")
    await in_database(forget_catalogue)
    assert (await call("report")).succeeded


@pytest.mark.usefixtures("quick_repeats")
async def test_an_engine_that_knows_our_key_is_asked_again(engine, keyed_workflow):
    """The same key with every start, so that there is one run."""
    engine.on_start = in_turn(HANGS_UP, replies(200, completed() | receipt()))
    execution = await call("report")
    assert execution.succeeded
    assert {request.key for request in engine.asked("start")} == {str(execution.pk)}
    assert engine.count("start") == 2
    assert await in_database(timeline, execution) == ["created", "start_unknown", "started", "completed"]


@pytest.mark.parametrize("last", [HANGS_UP, BUSY, REFUSED], ids=["unknown", "busy", "refused"])
def test_a_start_that_stays_unknown_is_never_called_failed(engine, keyed_workflow, configured, last):
    """What a later start comes to says nothing of the first, which may be running."""
    configured(retry_attempts=1)
    engine.on_start = in_turn(HANGS_UP, last)
    record = work_until_settled(create_pending(keyed_workflow))
    assert record.state == State.UNCONFIRMED
    assert engine.count("start") == 2


@pytest.mark.parametrize(
    ("keyed", "code", "state"),
    [
        (False, 400, State.FAILED),
        (False, 429, State.PENDING),
        (False, 500, State.UNCONFIRMED),
        (True, 500, State.STARTING),
    ],
    ids=["refused", "to be tried again", "unconfirmed", "to be repeated"],
)
def test_the_record_shows_what_the_engine_answered_to_a_start_that_has_not_led_to_a_run(
    engine, *, keyed, code, state
):
    """A8.4: an administrator sees the engine's own words, whatever becomes of the start."""
    config = {"idempotency_header": "Idempotency-Key"} if keyed else {}
    source = make_source(base_url=engine.base_url, config=config)
    execution = create_pending(make_workflow(source, upstream_id=WORKFLOW_ID))
    engine.on_start = replies(code, {"error": "the press is jammed"})
    advance_due_executions()
    shown = administrator().get(f"/api/executions/{execution.pk}/").json()
    assert shown["state"] == state
    assert (shown["start_answer"]["status"], shown["start_answer"]["answer"]) == (code, "the press is jammed")


# Killed processes: a record that is STARTING, and a lease that ran out.


def countdown_of(engine: ExampleEngine, *, keyed: bool) -> Workflow:
    return make_workflow(source_of(engine, keyed=keyed), upstream_id="1003", name="countdown")


def start_by_hand(engine: ExampleEngine, execution: Execution, arguments: dict[str, Any]) -> None:
    """What a process sent before it was killed."""
    plain_http.post(
        f"{engine.base_url}/api/v1/service/workflows/1003/start",
        json={"input": arguments, "source": "application"},
        headers={"authorization": f"Api-Key {engine.api_key}", "idempotency-key": str(execution.pk)},
    ).raise_for_status()


def killed_while_starting(workflow: Workflow) -> Execution:
    request = StartRequest(
        tool_name=workflow.tool_name,
        arguments={"seconds": 0},
        caller=ALICE,
        door=Execution.Door.MCP,
    )
    execution = prepare_execution(request, "a process that was killed")()
    expire_lease(execution)
    return execution


@pytest.mark.parametrize("sent", [False, True], ids=["before it sent", "after it sent"])
@pytest.mark.databases("executions.runner.start")
def test_a_killed_start_is_found_out_where_the_engine_knows_our_key(example_engine, sent):
    """B8: the engine's own record shows exactly one run, whenever the process was killed."""
    execution = killed_while_starting(countdown_of(example_engine, keyed=True))
    if sent:
        start_by_hand(example_engine, execution, {"seconds": 0})

    record = work_until_settled(execution)

    assert record.succeeded
    (run,) = example_engine.runs(idempotency_key=str(execution.pk))
    assert run["run_id"] == record.run_id


@pytest.mark.parametrize("sent", [False, True], ids=["before it sent", "after it sent"])
def test_a_killed_start_is_left_to_a_human_where_the_engine_knows_no_keys(forgetful_engine, sent):
    """Never a second run: the engine has what the killed process sent, and nothing more."""
    execution = killed_while_starting(countdown_of(forgetful_engine, keyed=False))
    if sent:
        start_by_hand(forgetful_engine, execution, {"seconds": 0})
    before = len(forgetful_engine.runs())

    record = work_until_settled(execution)

    assert record.state == State.UNCONFIRMED
    assert len(forgetful_engine.runs()) == before


@pytest.mark.databases("executions.runner.start")
async def test_an_unanswered_start_is_sent_once_in_spite_of_other_workers(engine, keyed_workflow):
    """While the lease holds, nobody else thinks that the start was given up."""
    engine.on_start = gate = Gate(replies(200, completed() | receipt()))
    waiting = await gate.keep(call("report"))
    assert await in_thread(advance_due_executions) == 0
    gate.open()
    assert (await waiting).succeeded
    assert engine.count("start") == 1


@pytest.mark.databases("executions.runner.start")
async def test_an_answer_that_comes_after_the_lease_confirms_the_start(engine, workflow):
    """A process that was stopped for too long: its answer is better late than never."""
    engine.on_start = gate = Gate(replies(200, receipt()))
    waiting = await gate.keep(call("report"))
    execution = await in_database(only)
    await in_database(expire_lease, execution)
    await in_thread(advance_due_executions)
    assert (await in_database(read, execution)).state == State.UNCONFIRMED

    engine.on_status = replies(200, completed())
    gate.open()

    assert (await waiting).succeeded
    assert RUN_ID in (await in_database(told, execution, "confirmed"))[0]
    assert engine.count("start") == 1
    record = await in_database(read, execution)
    assert record.correlation_id and record.payload.start_answer == receipt()


@pytest.mark.parametrize(
    ("resolve", "state", "noted"),
    [
        (lambda e: e.confirm_not_started(by="Ada"), State.FAILED, True),
        (lambda e: e.confirm_started(RUN_ID, by="Ada", next_attempt_at=LATER), State.RUNNING, False),
        (lambda e: e.confirm_started("run-9", by="Ada", next_attempt_at=LATER), State.RUNNING, True),
    ],
    ids=["as not started", "as the same run", "as another run"],
)
@pytest.mark.databases("executions.runner.start")
async def test_an_answer_that_comes_after_an_admins_word_changes_nothing(
    engine, workflow, resolve, state, noted
):
    """B8: but the timeline tells of a run that the admin did not know of."""
    engine.on_start = gate = Gate(replies(200, receipt()))
    waiting = await gate.keep(call("report", seconds=0))
    await waiting
    execution = await in_database(only)
    await in_database(expire_lease, execution)
    # A row that is being written in that instant is left to the next tick.
    await until(lambda: advance_due_executions() == 1)
    assert await in_database(resolve, await in_database(read, execution))
    before = await in_database(read, execution)

    gate.open()

    await until(is_nothing_under_way)
    after = await in_database(read, execution)
    assert (after.state, after.run_id) == (state, before.run_id)
    assert bool(await in_database(told, execution, "started_late")) is noted
    assert engine.count("start") == 1


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has no server that could restart")
@pytest.mark.databases("executions.runner.start", "config.postgresql.base")
def test_a_database_that_restarts_during_a_start_loses_no_run(engine, workflow):
    """A process that knows the run's id tries until it is recorded: nobody else could find it out."""
    engine.on_start = gate = Gate(replies(200, receipt()))
    waiting = threading.Thread(target=lambda: run_in_background_loop(call("report", seconds=0)))
    waiting.start()
    gate.wait_for_request()
    waiting.join()
    fill_pool()

    end_other_sessions()
    gate.open()

    wait_until(lambda: only().run_id == RUN_ID, "the run is recorded")
    wait_until(is_nothing_under_way)
    connection.pool.check()
    assert engine.count("start") == 1


def fill_pool() -> None:
    """With as many connections as a busy process has; the pool replaces dead ones slowly by itself."""

    def use(number: int) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(0.05)")

    together(*(partial(use, number) for number in range(18)))


def end_other_sessions() -> None:
    """What a restart of PostgreSQL does to the connections that lie in the pool."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


@pytest.mark.databases("executions.runner.start")
async def test_both_answers_to_a_repeated_start_are_the_same_run(engine, keyed_workflow):
    """The lease ran out though the process lived; the engine knows our key, so nothing is doubled."""
    gate = Gate(replies(200, receipt()))
    engine.on_start = in_turn(gate, replies(200, receipt()))
    engine.on_status = replies(200, completed())
    waiting = await gate.keep(call("report"))
    execution = await in_database(only)
    await in_database(expire_lease, execution)
    assert await in_thread(advance_due_executions) == 1
    assert (await in_database(read, execution)).run_id == RUN_ID

    gate.open()

    await waiting
    await until(lambda: not only().lease_holder)
    await in_thread(work_until_settled, execution)
    assert (await in_database(read, execution)).succeeded
    assert {request.key for request in engine.asked("start")} == {str(execution.pk)}
    assert "started_late" not in await in_database(timeline, execution)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda e: reach_deadline(e), "its timeout passed"),
        (lambda e: e.request_cancel("Alice"), "it was cancelled"),
        (lambda e: Workflow.objects.update(enabled=False), "the workflow was disabled"),
        (lambda e: Source.objects.update(enabled=False), "was switched off"),
        (lambda e: reconfigure(Source.objects.get()), "settings were changed"),
        (lambda e: Workflow.objects.get().delete(), "Its workflow was deleted while it was being started"),
    ],
    ids=["overdue", "cancelled", "disabled", "source off", "source changed", "deleted"],
)
def test_a_start_that_is_not_wanted_any_more_is_not_sent_again_to_find_out(
    engine, keyed_workflow, change, why
):
    """Finding out must not start what was cancelled, switched off, or belongs to another engine now."""
    execution = killed_while_starting(keyed_workflow)
    change(execution)
    expire_lease(execution)

    advance_due_executions()

    record = read(execution)
    assert record.state == State.UNCONFIRMED and why in record.error
    assert engine.requests == []


def test_a_start_is_sent_again_though_a_limit_of_its_source_was_changed(engine, keyed_workflow):
    """What has nothing to do with the engine and its keys says nothing about the start."""
    execution = killed_while_starting(keyed_workflow)
    change_source(Source.objects.get(), max_concurrent=3)
    expire_lease(execution)

    advance_due_executions()

    assert [request.key for request in engine.asked("start")] == [str(execution.pk)]
    assert read(execution).state != State.UNCONFIRMED


# Connectors with bugs.


@pytest.fixture
def clumsy(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setitem(BUILT_IN, "clumsy", "tests.executions.engines:ClumsyConnector")

    def make(stumbles_over: str, **config: Any) -> Workflow:
        source = Source.objects.create(
            name=f"clumsy-{uuid.uuid4().hex[:6]}",
            kind="clumsy",
            config={"stumbles_over": stumbles_over} | config,
        )
        return make_workflow(source, name="clumsy")

    return make


@pytest.mark.parametrize("idempotent", [False, True])
def test_a_bug_in_a_start_counts_as_an_unknown_outcome(clumsy, idempotent):
    """A5.2, B6: nobody knows how far it came, and the record says that the log has the details."""
    record = work_until_settled(create_pending(clumsy("start", idempotent=idempotent)))
    assert record.state == State.UNCONFIRMED
    assert "the log has the details" in record.error


def test_a_start_that_returns_another_type_says_so_and_counts_as_an_unknown_outcome(clumsy):
    """B6: the author of a first connector returns the run's id."""
    record = work_until_settled(create_pending(clumsy("a receipt")))
    assert record.state == State.UNCONFIRMED
    assert "ClumsyConnector.start returned str instead of Started" in record.error


@pytest.mark.parametrize(
    ("stumbles_over", "failure"),
    [
        ("a snapshot", "ClumsyConnector.poll returned dict instead of RunSnapshot."),
        *((value, "the log has the details.") for value in ("a state", "a time", "a progress")),
    ],
)
def test_a_poll_that_returns_a_wrong_type_fails_and_the_record_says_so(clumsy, stumbles_over, failure):
    """B6: a state that was no RunState made a run that had succeeded a failed one."""
    execution = make_active(clumsy(stumbles_over), State.RUNNING)
    advance_due_executions()
    assert read(execution).poll_failure.startswith("The connector failed")
    assert read(execution).poll_failure.endswith(failure)


@pytest.mark.parametrize("stumbles_over", ["making", "start", "poll"])
def test_a_connector_that_exits_does_not_end_the_work_of_others(clumsy, engine, workflow, stumbles_over):
    """B6: SystemExit ends an event loop, and some SDKs raise it."""
    engine.on_status = replies(200, completed())
    exiting = clumsy(f"{stumbles_over}, and exits")
    make_active(exiting, State.RUNNING) if stumbles_over == "poll" else create_pending(exiting)
    healthy = make_active(workflow, State.RUNNING)
    for _ in range(2):
        advance_due_executions()
    assert read(healthy).succeeded


@pytest.mark.parametrize("stumbles_over", ["making", "capabilities", "poll", "cancel", *BAD_VALUES])
def test_a_run_whose_connector_has_a_bug_ends_at_its_deadline_at_the_latest(clumsy, stumbles_over):
    """A7.2, B6: no bug keeps an execution alive for ever, nor asks every second until then."""
    execution = make_active(clumsy(stumbles_over), State.RUNNING)
    advance_due_executions()
    record = read(execution)
    assert record.state == State.RUNNING and record.next_attempt_at > timezone.now()
    assert record.lease_holder == ""

    reach_deadline(execution)
    advance_due_executions()
    let_pass(execution, 30)
    advance_due_executions()

    assert read(execution).state == State.TIMED_OUT


def test_a_percentage_beyond_100_is_100(clumsy):
    """B6: some engines count more than they announced."""
    execution = make_active(clumsy("a percentage"), State.RUNNING)
    advance_due_executions()
    assert read(execution).progress == 100


def test_a_connector_whose_bug_stays_is_asked_ever_more_rarely(clumsy):
    """B6: the log has one error for each attempt."""
    execution, pauses = make_active(clumsy("poll"), State.RUNNING), []
    for _ in range(3):
        let_pass(execution, 30)
        advance_due_executions()
        pauses.append(read(execution).next_attempt_at - timezone.now())
    assert pauses[0] * 1.5 < pauses[1] and pauses[1] * 1.5 < pauses[2]


# What the log says about the record.


@pytest.fixture(params=["for approval", "in the queue"])
def waiting_calls(request: pytest.FixtureRequest, workflow: Workflow) -> None:
    """Calls of the workflow wait for it; the log says so."""
    if request.param == "for approval":
        override_workflow(workflow, approval_required=True)
    else:
        make_active(workflow, State.RUNNING)
        override_workflow(workflow, max_concurrent=1)


@pytest.mark.usefixtures("waiting_calls")
def test_the_log_says_of_no_call_whose_record_was_not_committed_that_it_was_recorded(workflow):
    """A full disk shows itself at the commit."""
    before = Execution.objects.count()
    with shown_lines("INFO") as lines, transaction.atomic():
        create_execution(request_for("report"))
        transaction.set_rollback(True)
    assert lines == [] and Execution.objects.count() == before


@pytest.mark.usefixtures("waiting_calls")
def test_calls_that_are_recorded_together_are_logged_with_their_own_requests(workflow):
    def record(identity: str) -> Execution:
        request_id.set(identity)
        return create_execution(request_for("report", {"text": identity}))

    logged: dict[uuid.UUID, str] = {}

    def note(line: Any) -> None:
        logged[line.record["extra"]["execution"]] = line.record["extra"]["request_id"]

    sink = logger.add(note, level="INFO")
    try:
        with transaction.atomic():
            recorded = {copy_context().run(record, name).pk: name for name in ("first", "second")}
    finally:
        logger.remove(sink)
    assert logged == recorded


@pytest.mark.parametrize("is_over_at_once", [True, False])
def test_the_log_tells_of_a_call_once_the_engine_has_answered(engine, workflow, is_over_at_once):
    """One line of most calls: logs are paid for by volume."""
    engine.on_start = replies(200, completed() | receipt() if is_over_at_once else receipt())
    engine.on_status = replies(200, completed())
    with shown_lines("INFO") as lines:
        run_in_background_loop(call("report"))
    *begun, ended = lines
    assert begun == ([] if is_over_at_once else [f"The engine runs it as {RUN_ID}"])
    assert re.fullmatch(r"Execution completed after \d+ ms", ended)
