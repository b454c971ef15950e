"""Retrying, pausing, resuming and terminating runs, and that none of it is done twice."""

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from access.callers import Caller
from catalogue.actions.workflows import disable_workflows, override_workflow
from catalogue.history import command
from catalogue.models import Source, Workflow
from connectors.registry import BUILT_IN
from executions import advancing
from executions.approvals import UnfitChange, change_arguments
from executions.control import Action, prepare_retry
from executions.models import Approval, Execution, State
from executions.rerunning import rerun_id, run_again
from executions.waiting import start_and_wait
from executions.wakeups import waits
from tests.api.clients import TokenClient, administrator, agent, staff_session
from tests.connectors.scripted import replies, response
from tests.executions.caching import at_once as at_once_completed
from tests.executions.caching import cache_for
from tests.executions.controlled_engine import FOUND, KEYED, Controlled
from tests.executions.engines import WORKFLOW_ID, WireEngine, in_thread, status, until
from tests.executions.steps import (
    advance_due_executions,
    disconnect,
    expire_lease,
    let_pass,
    reach_deadline,
    read,
    reconfigure,
    timeline,
    told,
)
from tests.executions.test_approvals import make_approver
from tests.factories import make_execution, make_source, make_workflow

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.databases("executions.control", "executions.rerunning", "executions.models.lifecycle"),
]

RUN = "run-1"


@pytest.fixture
def controlled(engine: WireEngine) -> Controlled:
    return Controlled(engine)


@pytest.fixture
def config() -> dict[str, Any]:
    """Of the source: what it promises of starts and retries."""
    return {}


@pytest.fixture
def workflow(controlled: Controlled, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Workflow:
    monkeypatch.setitem(BUILT_IN, "controlled", "tests.executions.controlled_engine:ControlledConnector")
    controlled.takes_keys = config == KEYED
    source = make_source(base_url=controlled.wire.base_url, kind="controlled", config=config)
    schema = {"type": "object", "properties": {"amount": {}, "region": {}}}
    workflow = make_workflow(source, upstream_id=WORKFLOW_ID, name="report", input_schema=schema)
    let_pass(make_execution(workflow), 3600)  # Its settings are older than the runs below
    return workflow


@pytest.fixture
def client() -> TokenClient:
    return agent()


@pytest.fixture
def make(workflow: Workflow, client: TokenClient) -> Callable[..., Execution]:
    """A run of the client, which began and ended minutes ago."""

    def make(state: State = State.FAILED, **fields: Any) -> Execution:
        caller, ago = client.token.caller, timezone.now() - timedelta(minutes=5)
        given = {"caller": caller.key, "caller_name": caller.name, "run_id": RUN, "created_at": ago}
        given |= {"payload": {"input": {"amount": 7}, "output": None}, "admitted_at": ago}
        given["deadline_at"] = timezone.now() + timedelta(hours=9)
        return make_execution(fields.pop("workflow", workflow), state=state, **given | fields)

    return make


def send(client: Any, execution: Execution, action: str, **body: Any) -> Any:
    address = f"/api/executions/{execution.pk}/control/"
    return client.post(address, {"action": action, **body}, format="json")


def step(execution: Execution, seconds: float = 60) -> Execution:
    """The next step of a worker, after so much time."""
    let_pass(execution, seconds)
    advance_due_executions()
    return read(execution)


def attempt_of(execution: Execution) -> Execution:
    return Execution.objects.select_related("payload").get(pk=rerun_id(execution.pk))


# Retrying


def test_a_retry_is_a_new_run_of_the_same_arguments_and_is_linked_both_ways(make, client, engine):
    failed = make()
    answered = send(client, failed, "retry")
    assert answered.status_code == 202, answered.json()
    new = answered.json()
    assert answered["Location"].endswith(f"/api/executions/{new['id']}")
    assert (new["retry_of"], new["retries"], new["from_failed_step"]) == (str(failed.pk), 1, False)
    assert new["input"] == {"amount": 7}
    step(attempt_of(failed))
    (started,) = engine.asked("start")
    assert started.received.json["input"] == {"amount": 7}
    assert told(failed, "retried") == [
        f"{client.token.name} ran it again through REST, as execution {new['id']}."
    ]
    assert read(failed).state == State.FAILED


@pytest.mark.parametrize("state", [State.FAILED, State.CANCELLED])
def test_a_retry_from_the_failed_step_continues_the_run_and_leaves_the_settled_record(
    make, client, engine, controlled, state
):
    failed = make(state)
    before = Execution.objects.filter(pk=failed.pk).values().get()
    new = send(client, failed, "retry_failed").json()
    assert (new["retry_of"], new["from_failed_step"]) == (str(failed.pk), True)
    attempt = step(step(attempt_of(failed)))
    assert (attempt.state, attempt.run_id, attempt.payload.output) == (State.COMPLETED, RUN, {"run": RUN})
    assert controlled.retried == [(RUN, str(failed.pk))] and not engine.count("start")
    assert attempt.engine_started_at is None, "the engine tells when the first attempt began"
    assert Execution.objects.filter(pk=failed.pk).values().get() == before


def test_a_run_that_goes_on_is_known_by_the_key_of_its_start(make, client, controlled):
    """Also to the third attempt, and after one that the engine refused."""
    first = make()
    send(client, first, "retry_failed")
    second = step(attempt_of(first))
    controlled.states[RUN] = "FAILED"
    assert step(second).state == State.FAILED
    controlled.refusal = response(409, '{"error": "locked"}')
    send(client, second, "retry_failed")
    third = step(attempt_of(second))
    assert (third.state, third.run_id) == (State.FAILED, "")
    controlled.refusal = None
    assert send(client, third, "retry_failed").json()["retries"] == 3
    fourth = step(attempt_of(third))
    assert controlled.retried == [(RUN, str(first.pk))] * 2
    assert fourth.run.key == first.pk


@pytest.mark.parametrize(
    "state", [State.UNCONFIRMED, State.COMPLETED, State.RUNNING, State.STARTING, State.PENDING]
)
@pytest.mark.parametrize("action", ["retry", "retry_failed"])
def test_what_has_not_certainly_failed_is_not_retried(make, client, state, action):
    execution = make(state)
    assert send(client, execution, action).status_code == 409
    assert not Execution.objects.filter(pk=rerun_id(execution.pk)).exists()


@pytest.mark.parametrize("action", ["retry", "retry_failed"])
@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (replies(200, status("RUNNING")), 409),
        (replies(200, status("COMPLETED")), 409),
        (replies(200, status("CANCELLED")), 202),
        (replies(404), 202),
        (replies(503), 503),
    ],
)
def test_the_engine_is_asked_whether_a_run_past_its_timeout_still_runs(
    make, client, engine, action, answer, code
):
    timed_out = make(State.TIMED_OUT)
    engine.on_status = answer
    assert send(client, timed_out, action).status_code == code
    assert Execution.objects.filter(pk=rerun_id(timed_out.pk)).exists() == (code == 202)


def test_only_a_run_at_an_engine_that_can_is_retried_from_its_failed_step(make, client, engine):
    never_ran = make(run_id="")
    assert send(client, never_ran, "retry_failed").status_code == 409
    plain = make_workflow(make_source("plain", base_url=engine.base_url))
    let_pass(never_ran, 3600)
    refused = send(client, make(workflow=plain), "retry_failed")
    assert refused.status_code == 409 and "Not supported" in refused.json()["detail"]
    assert send(client, never_ran, "retry").status_code == 202


def test_a_run_that_may_be_at_another_engine_is_not_continued(make, client, workflow, controlled):
    """Neither if the settings change before the retry, nor while it waits for its turn."""
    failed, other = make(), make()
    send(client, other, "retry_failed")
    reconfigure(Source.objects.get())
    assert send(client, failed, "retry_failed").status_code == 409
    advance_due_executions()
    waiting = read(attempt_of(other))
    assert (waiting.state, controlled.retried) == (State.FAILED, [])
    # One that never reached the engine says nothing about where the run is.
    assert send(client, waiting, "retry_failed").status_code == 409
    assert send(client, failed, "retry").status_code == 202


def test_a_retry_is_judged_by_todays_rules_as_the_callers_call(make, client, workflow, configured):
    failed = make()
    assert send(agent(), failed, "retry").status_code == 404
    override_workflow(workflow, approval_required=True)
    asked = send(client, failed, "retry_failed").json()
    assert asked["state"] == State.UNAPPROVED
    approval, anna = Approval.objects.get(), make_approver("anna")
    with pytest.raises(UnfitChange):
        change_arguments(approval.pk, user=anna, arguments={"amount": 8}, seen=approval.binding)
    disabled = make()
    disable_workflows(Workflow.objects.filter(pk=workflow.pk))
    assert send(client, disabled, "retry").status_code == 404
    assert not Execution.objects.filter(pk=rerun_id(disabled.pk)).exists()


def test_arguments_that_the_curator_has_set_since_hold_for_a_retry(make, client, workflow, engine):
    failed = make(payload={"input": {"amount": 7, "region": "eu"}})
    override_workflow(workflow, argument_overrides={"region": {"constant": "us"}})
    assert send(client, failed, "retry_failed").status_code == 409
    assert send(client, failed, "retry").json()["input"] == {"amount": 7, "region": "us"}
    pruned = make(payload={"input": None})
    assert send(client, pruned, "retry").status_code == 409


def test_no_cached_result_answers_a_retry_and_a_half_of_a_run_is_not_cached(make, client, workflow, engine):
    cache_for(workflow)
    engine.on_start = at_once_completed()
    body = {"tool": "report", "arguments": {"amount": 7}}
    for _ in range(2):
        client.post("/api/executions/", body | {"wait_seconds": 5}, format="json")
    assert Execution.objects.exclude(cached_at=None).count() == 1
    for action, is_cached in (("retry", True), ("retry_failed", False)):
        failed = make()
        assert send(client, failed, action).json()["cached_at"] is None
        assert bool(attempt_of(failed).cache_key) == is_cached


def test_an_execution_is_retried_once_by_whatever_door(make, client, workflow):
    failed = make()
    operator = administrator()
    first = send(operator, failed, "retry").json()
    assert first["caller"] == operator.token.caller.key
    again = send(operator, failed, "retry")
    assert again.json()["id"] == first["id"]
    for other, action in ((client, "retry"), (operator, "retry_failed")):
        refused = send(other, failed, action)
        assert refused.status_code == 409 and first["id"] in refused.json()["detail"]
    assert Execution.objects.filter(retry_of=failed).count() == 1


ADA = Caller(key="user:1", name="Ada", sees_everything=True)


def at_once(*works: Callable[[], Any]) -> list[Any]:
    together, outcomes = threading.Barrier(len(works)), dict[int, Any]()

    def run(number: int) -> None:
        together.wait()
        try:
            outcomes[number] = works[number]()
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=[number]) for number in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [outcomes[number] for number in range(len(works))]


@pytest.mark.parametrize("actions", [("retry", "retry"), ("retry", "retry_failed"), ("retry", "desk")])
def test_of_retries_at_once_from_two_doors_one_runs(make, client, engine, controlled, actions):
    failed, operator = make(), administrator()

    def desk() -> Any:
        return run_again([failed], caller=ADA, actor=command("x"), may_be_hidden=True)

    def ask(door: Any, action: str) -> Callable[[], Any]:
        return desk if action == "desk" else lambda: send(door, failed, action)

    outcomes = at_once(ask(client, actions[0]), ask(operator, actions[1]))
    won = [one.started != [] if hasattr(one, "started") else one.status_code == 202 for one in outcomes]
    assert sorted(won) == [False, True], outcomes
    step(step(attempt_of(failed)))
    assert engine.count("start") + len(controlled.retried) == 1


def test_a_retry_beside_a_cancellation_starts_nothing_while_the_run_may_go_on(make, client, controlled):
    running = make(State.RUNNING, lease_holder="", lease_expires_at=None)
    controlled.wire.others["cancel"] = controlled.wire.others["terminate"]  # Which ends it

    def cancel() -> Any:
        return client.post(f"/api/executions/{running.pk}/cancel/")

    def retry() -> Any:
        return send(client, running, "retry")

    _, retried = at_once(cancel, retry)
    if retried.status_code == 202:
        assert read(running).state == State.CANCELLED
    else:
        assert retried.status_code == 409
    controlled.states[RUN] = "CANCELLED"
    step(running)
    assert send(client, running, "retry").status_code == 202
    assert Execution.objects.filter(retry_of=running).count() == 1


async def test_who_repeats_a_retry_and_leaves_does_not_cancel_it(make, client, workflow, quick_looks):
    """Although runs of the workflow are cancelled when their callers leave."""
    await in_thread(partial(override_workflow, workflow, on_disconnect=Workflow.OnDisconnect.CANCEL))
    failed, caller, door = await in_thread(make), client.token.caller, Execution.Door.MCP
    request = await prepare_retry(str(failed.pk), Action.RETRY, caller=caller, door=door)
    await start_and_wait(request, seconds=0.5)
    repeated = asyncio.create_task(start_and_wait(request, seconds=30))
    await until(lambda: waits.timeouts, "it waits")
    await disconnect(repeated)
    await until(lambda: not advancing._under_way, "what follows from its end is done")
    attempt = await in_thread(attempt_of, failed)
    assert (attempt.state, attempt.cancel_requested_at) == (State.RUNNING, None)


@pytest.mark.parametrize("config", [KEYED, FOUND, {}], ids=["keyed", "found", "neither"])
@pytest.mark.parametrize("killed", [False, True], ids=["a lost answer", "killed after it was sent"])
def test_a_retry_of_unknown_outcome_is_not_sent_twice(make, client, controlled, config, killed):
    failed = make()
    controlled.reply = lambda: None
    send(client, failed, "retry_failed")
    if killed:
        attempt = attempt_of(failed)
        controlled.by_key[str(attempt.pk)] = RUN
        controlled.retried.append((RUN, str(failed.pk)))
        controlled.states[RUN] = "COMPLETED"
        Execution.objects.filter(pk=attempt.pk).update(state=State.STARTING)
        expire_lease(attempt)
    else:
        step(attempt_of(failed), 1)
    controlled.reply = None
    for _ in range(4):
        attempt = step(attempt_of(failed), 20)
    assert controlled.retried == [(RUN, str(failed.pk))]
    assert attempt.state == (State.COMPLETED if config else State.UNCONFIRMED)
    assert read(failed).state == State.FAILED
    if not config:
        resolved = administrator().post(
            f"/api/executions/{attempt.pk}/resolve/", {"ran": True, "run_id": RUN}, format="json"
        )
        assert resolved.status_code == 200, resolved.json()
        assert step(attempt).state == State.COMPLETED


@pytest.mark.parametrize("config", [FOUND])
def test_runs_of_retries_do_not_make_the_lookup_of_starts_suspect(make, client, controlled, workflow):
    """They are looked up in another way."""
    make(State.COMPLETED, retried_run_id="run-0", run_id="run-9", created_at=timezone.now())
    lost = make(State.STARTING, run_id="", looked_up_since=timezone.now(), next_attempt_at=timezone.now())
    for _ in range(5):
        lost = step(lost, 30)
    assert lost.state == State.FAILED


# Pausing and terminating


def shown(client: Any, execution: Execution) -> dict[str, Any]:
    found: dict[str, Any] = client.get(f"/api/executions/{execution.pk}/").json()
    return found


def test_a_run_is_paused_and_resumed_and_polls_show_it(make, client, controlled):
    run = make(State.RUNNING)
    assert send(client, run, "pause").status_code == 200
    assert controlled.paused == {RUN}
    step(run)
    assert shown(client, run)["paused"] is True
    assert read(run).state_label == "paused at the engine"
    assert told(run, "paused") == [f"By {client.token.name} through REST."]
    assert send(client, run, "resume").status_code == 200
    step(run)
    assert (shown(client, run)["paused"], told(run, "resumed")) == (
        False,
        [f"By {client.token.name} through REST."],
    )


def test_the_timeout_passes_while_a_run_is_paused(make, client, controlled):
    run = make(State.RUNNING)
    controlled.paused.add(RUN)
    step(run)
    reach_deadline(run)
    for _ in range(3):
        step(run, 30)
    assert read(run).state == State.TIMED_OUT
    assert "paused" in read(run).error


@pytest.mark.parametrize(
    ("reply", "refusal", "code"),
    [
        (None, response(409, '{"error": "not now"}'), 409),
        (None, response(429, "{}"), 503),
        (lambda: None, None, 504),
    ],
    ids=["refused", "away", "lost"],
)
@pytest.mark.parametrize("action", ["pause", "resume"])
def test_what_became_of_a_pause_is_told(make, client, controlled, reply, refusal, code, action):
    run = make(State.RUNNING)
    controlled.reply, controlled.refusal = reply, refusal
    answered = send(client, run, action)
    assert answered.status_code == code
    assert ("again is harmless" in answered.json()["detail"]) == (code == 504)
    assert {f"{action}_failed", f"{action}_unknown"} & set(timeline(run))


@pytest.mark.parametrize("action", ["pause", "resume", "terminate"])
def test_what_does_not_run_or_cannot_be_held_is_left_alone(make, client, engine, action):
    for state in (State.COMPLETED, State.FAILED, State.UNCONFIRMED):
        assert send(client, make(state), action).status_code == 409
    plain = make(State.RUNNING, workflow=make_workflow(make_source("plain", base_url=engine.base_url)))
    refused = send(client, plain, action)
    assert refused.status_code == 409 and "Not supported" in refused.json()["detail"]
    assert (read(plain).cancel_requested_at, read(plain).cancel_refusal) == (None, "")
    assert send(agent(), plain, action).status_code == 404
    assert send(client, plain, "stop").status_code == 400


def test_a_run_that_is_being_ended_is_not_paused(make, client, controlled):
    run = make(State.RUNNING, cancel_requested_at=timezone.now())
    assert send(client, run, "pause").status_code == 409
    assert not controlled.paused


@pytest.mark.parametrize("is_cancelled", [False, True], ids=["at once", "after an ignored cancellation"])
def test_a_terminated_run_ends_as_cancelled(make, client, controlled, is_cancelled):
    run = make(State.RUNNING)
    if is_cancelled:
        client.post(f"/api/executions/{run.pk}/cancel/")
    assert send(client, run, "terminate").status_code == 200
    ended = step(run)
    assert ended.state == State.CANCELLED
    assert controlled.wire.count("terminate") == 1
    assert controlled.wire.count("cancel") == int(is_cancelled)
    assert told(run, "terminate_requested") == [f"{client.token.name} through REST asked for it."]


def test_a_termination_outlives_the_process_that_took_it(make, client, controlled):
    """Another one holds the lease, and sends it at its next step."""
    holds = {"lease_holder": "another", "lease_expires_at": timezone.now() + timedelta(minutes=1)}
    run = make(State.RUNNING, **holds)
    send(client, run, "terminate")
    assert not controlled.wire.count("terminate")
    expire_lease(run)
    assert step(run).state == State.CANCELLED


def test_a_cancellation_follows_a_termination_that_the_engine_refuses(make, client, controlled):
    run = make(State.RUNNING)
    controlled.refusal = response(409, '{"error": "never"}')
    refused = send(client, run, "terminate")
    assert refused.status_code == 409 and "never" in refused.json()["detail"]
    controlled.refusal = None
    step(run)
    assert controlled.wire.count("cancel") == 1
    assert send(client, run, "terminate").status_code == 200
    assert step(run).state == State.CANCELLED


def test_to_retry_takes_the_permission_to_start(make):
    failed, changer = make(), staff_session("change_execution", "view_execution")
    assert send(changer, failed, "retry").status_code == 403
    assert send(staff_session("change_execution", "add_execution"), failed, "retry").status_code == 202
