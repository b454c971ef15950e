"""Answers that a healthy Prefect does not give at will: odd states, refusals, a busy database, nonsense."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from pydantic import ValidationError

from connectors.definitions import RejectedDefinition, WorkflowDefinition
from connectors.errors import InvalidAnswer, NotFound, OutcomeUnknown, Rejected, Unreachable
from connectors.prefect import PAUSES_FOR_LOGS, PrefectConfig, PrefectConnector
from connectors.protocol import RunFilter, RunRef, RunState, WorkflowRef
from tests.connectors.scripted import Behaviour, Received, ScriptedEngine, response

RUN_ID = "0ca4ef6e-2f2b-4d0e-9b3d-6f3f1d3a8f10"
DEPLOYMENT_ID = "5b1f8d4c-0d0c-4f66-8a6f-3ad6c1f1c0de"
FLOW_ID = "b9a3b6c0-96f5-4b4a-8b77-0d7c7f0f3a11"
STATE_ID = "8d3c8f5e-6f3a-4f0b-8d53-2f6b8f0c1d11"
KEY = UUID("3f0e4a52-7a37-4d3f-9d0a-3c8e86b4a001")
WORKFLOW = WorkflowRef(id=DEPLOYMENT_ID, name="tea/afternoon")
RUN = RunRef(workflow=WORKFLOW, run_id=RUN_ID, key=KEY)
READ = f"/api/flow_runs/{RUN_ID}"
SET_STATE = f"{READ}/set_state"
RESUME = f"{READ}/resume"
ARTIFACTS, LOGS, RUNS = "/api/artifacts/filter", "/api/logs/filter", "/api/flow_runs/filter"
CREATE = f"/api/deployments/{DEPLOYMENT_ID}/create_flow_run"
NOTHING_LEFT = {ARTIFACTS: [], LOGS: []}


def flow_run(kind: str | None, *, name: str = "", message: str | None = None, **more: Any) -> dict[str, Any]:
    state = {"id": STATE_ID, "type": kind, "message": message, "data": {"storage_key": "/srv/pickles/1"}}
    return {"id": RUN_ID, "state_type": kind, "state_name": name or kind, "state": state, **more}


class Status(int):
    """An answer without words."""


def answers(by_target: dict[str, Any]) -> Behaviour:
    """200 with the JSON given for the target, or a Status; of a tuple one after the other."""
    left = {target: list(told) for target, told in by_target.items() if isinstance(told, tuple)}

    async def behave(request: Received, writer: asyncio.StreamWriter) -> None:
        told = by_target.get(request.target, Status(404))
        if isinstance(told, tuple):
            told = left[request.target].pop(0)
        status, body = (told, {}) if isinstance(told, Status) else (200, told)
        writer.write(response(status, json.dumps(body)))

    return behave


BUSY = Status(503)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connectors.prefect.FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr("connectors.prefect.PAUSES_FOR_LOGS", (0.01,) * len(PAUSES_FOR_LOGS))


@asynccontextmanager
async def prefect(told: dict[str, Any] | Behaviour, **settings: Any) -> AsyncIterator[Any]:
    """The connector, and the engine that it talks to."""
    behave = told if callable(told) else answers(told)
    async with ScriptedEngine(behave) as engine:
        config = {"base_url": f"{engine.base_url}/api", "request_timeout_seconds": 5} | settings
        connector = PrefectConnector(PrefectConfig.model_validate(config))
        try:
            yield connector, engine
        finally:
            await connector.aclose()


@pytest.mark.parametrize(
    ("told", "message"),
    [
        (flow_run(None), "Waiting for a worker."),
        (
            flow_run("SCHEDULED", name="Late", expected_start_time="2026-01-02T03:04:05Z"),
            "Waiting for a worker since 2026-01-02 03:04:05 UTC.",
        ),
        (
            flow_run("SCHEDULED", next_scheduled_start_time="2999-01-02T03:04:05Z"),
            "Scheduled: due at 2999-01-02 03:04:05 UTC.",
        ),
        (
            flow_run("SCHEDULED", name="AwaitingRetry", next_scheduled_start_time="2026-01-02T03:04:05Z"),
            "Waiting for a retry: due at 2026-01-02 03:04:05 UTC.",
        ),
        (flow_run("PENDING"), "A worker is preparing the run."),
        (
            flow_run("PAUSED", message="Is the kettle on?"),
            "Paused in Prefect until it is resumed: Is the kettle on?",
        ),
        (flow_run("CANCELLING"), "Prefect is cancelling the run."),
    ],
)
async def test_a_run_that_waits_says_what_for_with_one_request(told, message):
    """A7.3: whoever waits is told why nothing seems to happen."""
    async with prefect({READ: told}) as (connector, engine):
        seen = await connector.poll(RUN)
    assert (seen.state, seen.progress_message) == (RunState.RUNNING, message)
    assert len(engine.received) == 1


@pytest.mark.parametrize(
    ("told", "error"),
    [
        (flow_run("FAILED"), "The flow run failed and Prefect gave no reason."),
        (flow_run("CRASHED", message=""), "The flow run crashed. The process ended without a message."),
    ],
)
async def test_a_failure_without_words_still_says_what_happened(told, error):
    """A7.4: an error is never empty."""
    async with prefect(NOTHING_LEFT | {READ: told}) as (connector, _):
        assert (await connector.poll(RUN)).error == error


async def test_an_unknown_state_is_no_valid_answer():
    """B2: a state that means nothing to us is neither an end nor a progress."""
    async with prefect({READ: flow_run("DREAMING")}) as (connector, _):
        with pytest.raises(InvalidAnswer, match="DREAMING"):
            await connector.poll(RUN)


@pytest.mark.parametrize(
    ("data", "output"),
    [
        ('{"cups": 2}', {"cups": 2}),
        ("```json\n[1, 2]\n```\n", [1, 2]),
        ("Two cups, **hot**.", "Two cups, **hot**."),
        ('{"cups": ', '{"cups": '),
        ([{"cups": 2}], [{"cups": 2}]),
        ("null", None),
    ],
)
async def test_an_artifact_is_read_as_what_it_holds(data, output):
    """A2.3: structured where it is JSON, else text as it stands."""
    told = {READ: flow_run("COMPLETED", message="not this"), ARTIFACTS: [{"data": data}], LOGS: []}
    async with prefect(told) as (connector, engine):
        assert (await connector.poll(RUN)).output == output
    (asked,) = (request.json for request in engine.received if request.target == ARTIFACTS)
    assert (asked["sort"], asked["limit"]) == ("CREATED_DESC", 1)


async def test_logs_and_progress_that_cannot_be_read_cost_no_state():
    """A8.1: a service account that may not read logs is served all the same."""
    async with prefect({READ: flow_run("RUNNING"), LOGS: Status(403), ARTIFACTS: Status(500)}) as (
        connector,
        _,
    ):
        seen = await connector.poll(RUN)
    assert (seen.state, seen.progress, seen.progress_message) == (RunState.RUNNING, None, "")


async def test_a_result_that_cannot_be_read_is_asked_for_again():
    """A7.2: the run has completed all the same."""
    told = {READ: flow_run("COMPLETED"), ARTIFACTS: (Status(500), [{"data": "7"}]), LOGS: []}
    async with prefect(told) as (connector, _):
        seen = await connector.poll(RUN)
        assert (seen.state, type(seen.unread)) == (RunState.COMPLETED, Unreachable)
        assert (await connector.poll(RUN)).output == 7


@pytest.mark.parametrize(
    ("artifacts", "error"),
    [
        ([{"data": "x" * 3000}], InvalidAnswer),
        ({"data": "7"}, InvalidAnswer),
        (Status(403), Rejected),
        (Status(404), NotFound),
        (Status(500), Unreachable),
        (Status(503), Unreachable),
    ],
)
async def test_a_completed_run_whose_result_cannot_be_read_has_completed(artifacts, error):
    """B6"""
    told = {READ: flow_run("COMPLETED"), ARTIFACTS: artifacts, LOGS: Status(500)}
    async with prefect(told, max_response_bytes=2000) as (connector, _):
        seen = await connector.poll(RUN)
    assert (seen.state, seen.output, type(seen.unread)) == (RunState.COMPLETED, None, error)


async def test_logs_are_not_asked_for_where_none_are_wanted():
    """A7.3: who keeps logs to himself still gets progress."""
    told = {READ: flow_run("RUNNING"), ARTIFACTS: [{"data": 250.0}]}
    async with prefect(told, log_lines=0) as (connector, engine):
        assert (await connector.poll(RUN)).progress == 100.0
    assert sorted(request.target for request in engine.received) == [ARTIFACTS, READ]


@pytest.mark.parametrize(
    ("told", "error"),
    [
        ({"status": "ABORT", "details": {"reason": "Run is already COMPLETED."}}, Rejected),
        ({"status": "REJECT", "state": {"type": "RUNNING"}, "details": {"reason": "No."}}, Rejected),
        ({"status": "WAIT", "details": {"delay_seconds": 7, "reason": "Busy."}}, Unreachable),
        ({"status": "PERHAPS"}, InvalidAnswer),
        ([], InvalidAnswer),
    ],
)
async def test_a_cancellation_counts_only_if_prefect_says_so(told, error):
    """A7.5: the status 200 alone says nothing."""
    async with prefect({SET_STATE: told}) as (connector, _):
        with pytest.raises(error) as caught:
            await connector.cancel(RUN)
    if isinstance(caught.value, Unreachable):
        assert caught.value.retry_after == 7.0


async def test_a_run_that_was_cancelled_instead_of_cancelling_is_cancelled():
    """A7.5: Prefect rejects the one state and sets the other where nothing runs yet."""
    told = {"status": "REJECT", "state": {"type": "CANCELLED"}, "details": {"reason": "Nothing to end."}}
    async with prefect({SET_STATE: told}) as (connector, engine):
        await connector.cancel(RUN)
    assert engine.received[0].json == {
        "state": {"type": "CANCELLING", "message": "Cancelled by workflow-catalogue."},
        "force": False,
    }


async def test_a_busy_database_is_asked_again_with_the_same_key():
    """B3: Prefect's 503 starts nothing twice."""
    async with prefect({CREATE: (BUSY, BUSY, flow_run("SCHEDULED"))}) as (connector, engine):
        assert (await connector.start(WORKFLOW, {}, key=KEY)).run_id == RUN_ID
    assert [request.json["idempotency_key"] for request in engine.received] == [str(KEY)] * 3


async def test_a_busy_database_that_stays_busy_leaves_the_outcome_open():
    """A7.2: the start may have happened, and is repeated with its key by whoever keeps the record."""
    async with prefect({CREATE: BUSY, READ: BUSY}) as (connector, _):
        with pytest.raises(OutcomeUnknown):
            await connector.start(WORKFLOW, {}, key=KEY)
        with pytest.raises(Unreachable):
            await connector.poll(RUN)


async def test_one_that_says_when_to_come_back_is_not_asked_before():
    """B2: the engine's own time counts."""

    async def later(request: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(response(503, "{}", retry_after="9"))

    async with prefect(later) as (connector, engine):
        with pytest.raises(Unreachable) as caught:
            await connector.poll(RUN)
    assert caught.value.retry_after == 9.0
    assert len(engine.received) == 1


@pytest.mark.parametrize("told", [[], {}, {"id": ""}, {"id": 7}])
async def test_a_start_that_names_no_run_has_an_unknown_outcome(told):
    """A7.2: there may be a run all the same."""
    async with prefect({CREATE: told}) as (connector, _):
        with pytest.raises(OutcomeUnknown):
            await connector.start(WORKFLOW, {}, key=KEY)


async def test_a_run_that_ended_before_its_repeated_start_is_left_to_the_poll():
    """B3: what it left behind has to be fetched, so the start's answer is not its end."""
    async with prefect({CREATE: flow_run("COMPLETED")}) as (connector, _):
        assert (await connector.start(WORKFLOW, {}, key=KEY)).snapshot is None


async def test_anybody_elses_run_is_not_taken_for_the_one_with_our_key():
    """A7.2: a Prefect that does not know the condition lists what it likes."""
    async with prefect({RUNS: [flow_run("RUNNING", idempotency_key="another")]}) as (connector, _):
        with pytest.raises(InvalidAnswer):
            await connector.find_run(WORKFLOW, {}, key=KEY)


@pytest.mark.parametrize(
    ("deployment", "is_found"), [(WORKFLOW.id, True), (None, True), ("0ca4ef6e-another", False)]
)
async def test_a_run_is_found_by_its_key_unless_it_is_of_another_deployment(deployment, is_found):
    """B3: Prefect keeps the runs of a deployment that was deleted, without its id."""
    ours = flow_run("RUNNING", idempotency_key=str(KEY), deployment_id=deployment)
    async with prefect({RUNS: [ours]}) as (connector, _):
        assert (await connector.find_run(WORKFLOW, {}, key=KEY) is not None) is is_found


@pytest.mark.parametrize("odd", ["../admin", "", "7", "0ca4ef6e/../.."])
async def test_what_is_no_id_never_reaches_an_address(odd):
    """E6: a path is made of ids only."""
    async with prefect({}) as (connector, engine):
        with pytest.raises(NotFound):
            await connector.poll(RunRef(workflow=WORKFLOW, run_id=odd, key=KEY))
        with pytest.raises(NotFound):
            await connector.start(WorkflowRef(id=odd, name="odd"), {}, key=KEY)
    assert not engine.received


def listing(pages: list[list[Any]], flows: list[Any]) -> Behaviour:
    """Deployments in pages of the server's own size."""
    by_offset, offset = {}, 0
    for page in pages:
        by_offset[offset] = page
        offset += len(page)

    async def behave(request: Received, writer: asyncio.StreamWriter) -> None:
        of_flows = request.target == "/api/flows/filter"
        told = flows if of_flows else by_offset.get(request.json["offset"], [])
        writer.write(response(200, json.dumps(told)))

    return behave


def deployment(**told: Any) -> dict[str, Any]:
    return {"id": DEPLOYMENT_ID, "name": "afternoon", "flow_id": FLOW_ID} | told


async def test_pages_of_any_size_are_read_to_the_end_and_odd_objects_are_skipped():
    """A1.4, A5.3: a bad object costs itself only, and flows are asked for once."""
    pages = [[deployment(description="None"), 7], [deployment(name=None)], [deployment(flow_id="unknown")]]
    flows = [{"id": FLOW_ID, "name": "tea"}, {"id": 7}, "nonsense"]
    async with prefect(listing(pages, flows)) as (connector, engine):
        found = [item async for item in connector.discover()]
    kinds = [type(item) for item in found]
    assert kinds == [WorkflowDefinition, RejectedDefinition, RejectedDefinition, WorkflowDefinition]
    assert [item.name for item in found] == ["tea/afternoon", "", "", "afternoon"]
    assert (
        found[0].description == "Runs the Prefect deployment tea/afternoon, which does not say what it does."
    )
    asked = [request.json["flows"]["id"]["any_"] for request in engine.received if "flows" in request.target]
    assert asked == [[FLOW_ID], ["unknown"]]


@pytest.mark.parametrize("told", [None, 7, {"type": "array"}])
async def test_a_parameter_schema_that_is_none_is_left_to_the_catalogue(told):
    """A5.3: it says what is wrong with it, and serves the workflow all the same."""
    page = [deployment(parameter_openapi_schema=told)]
    async with prefect(listing([page], [])) as (connector, _):
        (found,) = [item async for item in connector.discover()]
    assert found.input_schema == told


async def test_prefects_marks_are_taken_out_of_a_schema_and_arguments_of_that_name_stay():
    """A6.1: agents see what an argument has to be, whatever it is called."""
    schema = {
        "type": "object",
        "properties": {
            "position": {"title": "position", "position": 0, "type": "integer"},
            "store": {"allOf": [{"$ref": "#/definitions/Store"}], "position": 1},
            "secret": {"type": "string"},
        },
        "required": ["position", "secret"],
        "definitions": {"Store": {"type": "object", "block_type_slug": "s3", "secret_fields": ["key"]}},
    }
    values = {"secret": {"__prefect_kind": "workspace_variable", "variable_name": "pin"}, "other": 1}
    page = [deployment(parameter_openapi_schema=schema, parameters=values)]
    async with prefect(listing([page], [])) as (connector, _):
        (found,) = [item async for item in connector.discover()]
    assert found.input_schema == {
        "type": "object",
        "properties": {
            "position": {"type": "integer"},
            "store": {"allOf": [{"$ref": "#/$defs/Store"}]},
            "secret": {"type": "string"},
        },
        "required": ["position"],
        "$defs": {"Store": {"type": "object"}},
        "additionalProperties": False,
    }


async def test_runs_without_a_deployment_or_a_known_key_are_listed_too():
    """E10: also those that somebody started by hand, and those of schedules."""
    told = [flow_run("CRASHED", name="Crashed", flow_id=FLOW_ID, idempotency_key="scheduled 2026-01-02")]
    flows = {"/api/flows/filter": [{"id": FLOW_ID, "name": "tea"}], "/api/deployments/filter": []}
    async with prefect({RUNS: told} | flows) as (connector, _):
        (run,) = (await connector.list_runs(RunFilter(), page_size=5)).runs
    assert (run.workflow, run.state, run.told_state, run.key) == ("tea", RunState.FAILED, "Crashed", None)


@pytest.mark.parametrize(
    ("settings", "header"),
    [
        ({"api_key": "pnu_0123456789"}, "Bearer pnu_0123456789"),
        ({"auth_string": "tea:pot"}, f"Basic {base64.b64encode(b'tea:pot').decode()}"),
        ({}, None),
    ],
)
async def test_each_kind_of_login_is_sent_as_prefect_wants_it(settings, header):
    """A5.1: Prefect Cloud takes a bearer token, a server of one's own a user and a password."""
    told = {"/api/deployments/count": 3, "/api/admin/version": Status(404)}
    async with prefect(told, **settings) as (connector, engine):
        health = await connector.check()
    assert (health.ok, health.message) == (True, "Prefect answered; deployments: 3.")
    assert {request.headers.get("authorization") for request in engine.received} == {header}


@pytest.mark.parametrize(
    "settings",
    [
        {"auth_string": "no colon"},
        {"auth_string": "a:b", "api_key": "c"},
        {"api_key": "ключ"},
        {"result_artifact_key": "Not A Key"},
    ],
)
def test_settings_that_cannot_work_are_refused(settings):
    """A5.1: before anything is sent, and without quoting a secret."""
    with pytest.raises(ValidationError) as caught:
        PrefectConfig.model_validate({"base_url": "http://127.0.0.1:4200/api"} | settings)
    assert "no colon" not in str(caught.value)


async def test_the_last_error_of_a_run_that_failed_just_now_is_waited_for():
    """A2.4: a flow run sends the rest of its logs after its last state."""
    failed = flow_run("FAILED", message="No tea.", end_time=datetime.now(UTC).isoformat())
    error = {"level": 40, "message": "The kettle is empty.", "timestamp": "2026-01-02T03:04:05Z"}
    last = {
        "level": 20,
        "message": "Finished in state Failed('No tea.')",
        "timestamp": "2026-01-02T03:04:06Z",
    }
    async with prefect({READ: failed, LOGS: ([], [error], [last, error])}) as (connector, engine):
        snapshot = await connector.poll(RUN)
    assert snapshot.error == "No tea.\nThe last logged error: The kettle is empty."
    assert [request.target for request in engine.received].count(LOGS) == 3


@pytest.mark.parametrize(
    ("state", "ended"),
    [("FAILED", "2026-01-02T03:04:05Z"), ("FAILED", None), ("COMPLETED", "now")],
    ids=["long ago", "nobody knows when", "completed"],
)
async def test_the_logs_of_other_ended_runs_are_read_once(state, ended):
    told = flow_run(state, end_time=datetime.now(UTC).isoformat() if ended == "now" else ended)
    async with prefect({READ: told, LOGS: [], ARTIFACTS: []}) as (connector, engine):
        await connector.poll(RUN)
    assert [request.target for request in engine.received].count(LOGS) == 1


KEYSET = {"schema": "paused-1-schema", "description": "paused-1-description"}
PAUSED = flow_run("PAUSED")
PAUSED["state"]["state_details"] = {"run_input_keyset": KEYSET}


async def test_a_pause_whose_schema_is_not_written_yet_asks_nothing():
    """A8.2: Prefect has the pause a moment before its form, without which no answer is taken."""
    schema = (Status(404), {"type": "object", "properties": {}})
    told = {READ: PAUSED, f"{READ}/input/paused-1-schema": schema}
    async with prefect(told) as (connector, _):
        assert not (await connector.poll(RUN)).questions
        (question,) = (await connector.poll(RUN)).questions
    assert (question.id, question.message) == (STATE_ID, "")


async def test_another_pause_is_another_question():
    """A8.2: an answer never reaches a later pause, which the request could not tell from the first."""
    async with prefect({READ: PAUSED}) as (connector, engine):
        with pytest.raises(NotFound, match="no longer in this pause"):
            await connector.answer(RUN, "of-the-pause-before", {"approve": True})
    assert [one.method for one in engine.received] == ["GET"]


REASON = {"reason": "Reason: 1 is not of type 'string'"}


@pytest.mark.parametrize(
    ("told", "error", "words"),
    [
        ({"status": "REJECT", "state": {"type": "PAUSED"}, "details": REASON}, Rejected, "not of type"),
        ({"status": "REJECT", "state": {"type": "FAILED"}, "details": REASON}, NotFound, "does not resume"),
        ({"status": "ABORT", "state": None, "details": REASON}, NotFound, "does not resume"),
        ({"status": "WAIT", "details": {"delay_seconds": 3}}, Unreachable, "gave no reason"),
        ({"status": "LATER"}, OutcomeUnknown, "does not say"),
        ([], OutcomeUnknown, "does not say"),
        (BUSY, OutcomeUnknown, "503"),
        (Status(409), Rejected, "409"),
    ],
)
async def test_what_prefect_says_of_an_answer_is_read(told, error, words):
    """A8.2: with 200 it refuses as well, and an answer that may have arrived is not sent again."""
    async with prefect({READ: PAUSED, RESUME: told}) as (connector, engine):
        with pytest.raises(error, match=words):
            await connector.answer(RUN, STATE_ID, {"approve": 1})
    assert [one.target for one in engine.received] == [READ, RESUME]
    sent = {"__prefect_kind": "json", "value": '{"approve":1}'}
    assert engine.received[1].json == {"run_input": sent}


TASKS, NO_TASKS = "/api/task_runs/filter", {"/api/task_runs/filter": []}


@pytest.mark.parametrize(
    ("told", "error", "words"),
    [
        ({"status": "REJECT", "details": REASON}, Rejected, "refused to run the flow again"),
        ({"status": "ABORT", "details": REASON}, Rejected, "refused to run the flow again"),
        ({"status": "WAIT", "details": {"delay_seconds": 3}}, Unreachable, "gave no reason"),
        ({"status": "LATER"}, OutcomeUnknown, "does not say"),
        ([], OutcomeUnknown, "does not say"),
        (BUSY, OutcomeUnknown, "503"),
        (Status(409), Rejected, "409"),
    ],
)
async def test_what_prefect_says_of_a_retry_is_read(told, error, words):
    """A7.2: with 200 it refuses as well, and a retry that may have arrived is not sent again."""
    async with prefect({READ: flow_run("CRASHED"), SET_STATE: told} | NO_TASKS) as (connector, engine):
        with pytest.raises(error, match=words):
            await connector.retry(RUN, key=KEY)
    assert [one.target for one in engine.received] == [READ, TASKS, SET_STATE]
    message = {
        "type": "SCHEDULED",
        "name": "AwaitingRetry",
        "message": f"Retried by workflow-catalogue: {KEY}",
    }
    assert engine.received[-1].json == {"state": message, "force": False}


async def test_a_task_without_a_result_is_found_among_all_that_have_succeeded():
    """A7.2: Prefect lists 200 at a time."""
    persisted, lost = ({"name": name, "state": {"data": data}} for name, data in (("one", {}), ("two", None)))
    told = {READ: flow_run("FAILED"), TASKS: ([persisted] * 200, [persisted, lost])}
    async with prefect(told) as (connector, engine):
        with pytest.raises(Rejected, match=r"not persisted their results: two\."):
            await connector.retry(RUN, key=KEY)
    assert [one.json["offset"] for one in engine.received if one.target == TASKS] == [0, 200]


@pytest.mark.parametrize("kind", ["RUNNING", "SCHEDULED", "COMPLETED", "CANCELLED", "PAUSED"])
async def test_only_a_flow_run_that_has_failed_is_retried(kind):
    """A7.2: Prefect would schedule others as well."""
    async with prefect({READ: flow_run(kind)}) as (connector, engine):
        with pytest.raises(Rejected, match="Only a flow run that has failed"):
            await connector.retry(RUN, key=KEY)
    assert len(engine.received) == 1
