"""Webhooks of engines: what a delivery causes, what it cannot cause, and whom the door lets in."""

import asyncio
import hmac
import json
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import httpx2
import pytest
from django.db import connection
from django.utils import timezone
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from audit.models import Entry
from catalogue.models import Revision, Source, Workflow
from connectors.http_job.connector import HttpJobConnector
from executions import advancing, engine_webhooks, waiting
from executions.models import Execution, State
from executions.runner import follow
from executions.runner.schedule import MIN_RUNS, learn_from_end
from identity import doorkeeper
from identity.authentication import DELIVERIES
from identity.engine_webhooks import MAX_BODY_BYTES, REFUSED
from tests import plain_http
from tests.admin.conftest import admin_client
from tests.admin.pages import page_url, text_of
from tests.api.clients import administrator
from tests.connectors.job_engines import Answer, Asked, Busy, GitHub, serving
from tests.executions.engines import until, wait_until
from tests.executions.steps import advance_due_executions, let_pass, only, read, timeline
from tests.factories import make_execution, make_source, make_workflow
from tests.mcp_bridge.conftest import DEFAULT_OPTIONS, McpServer
from tests.mcp_bridge.database import in_database
from tests.mcp_bridge.other_process import other_process

__all__ = ["admin_client", "other_process"]
pytestmark = pytest.mark.databases(
    "executions.models.lifecycle",
    "executions.engine_webhooks",
    "executions.runner.follow",
    "identity.authentication",
)
SECRET = "webhook-secret-of-tea-0123456789"
LONG = 3_600.0
PATIENCE_SECONDS = 30.0


class Tea(GitHub):
    """Octo's repository, whose runs last until the test ends them."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[str, threading.Event] = {}
        self.met = threading.Event()
        self.busy_for = 0

    def answer(self, asked: Asked) -> Answer:
        answer = super().answer(asked)
        # Held after it was made, as an answer that is on its way.
        if (gate := self.held.get(asked.method)) is not None:
            self.met.set()
            assert gate.wait(PATIENCE_SECONDS), "nobody let the answer through"
        if self.busy_for:
            return 429, Busy(self.busy_for)
        return answer

    def hold(self, method: str) -> threading.Event:
        self.met.clear()
        self.held[method] = gate = threading.Event()
        return gate

    def end(self, run_id: str) -> None:
        self.runs[run_id].began -= 600

    @property
    def polls(self) -> int:
        """Of the status alone: an ended run has its jobs asked for as well."""
        asked = [(one.method, one.path.rpartition("/")[0]) for one in self.asked]
        return asked.count(("GET", "/repos/octo/tea/actions/runs"))


@pytest.fixture
def engine() -> Iterator[Tea]:
    with serving(Tea()) as running:
        assert isinstance(running, Tea)
        yield running
        wait_until(lambda: not advancing._under_way, "the steps under way come to their end")


@pytest.fixture
def source(engine: Tea) -> Source:
    return make_tea("tea", engine)


@pytest.fixture
def workflow(source: Source) -> Workflow:
    return make_workflow(source, upstream_id="103", name="brew")


def make_tea(name: str, engine: Tea, *, secret: str = SECRET, **config: Any) -> Source:
    settings = {"preset": "github_actions", "min_poll_seconds": 1.0} | config
    address = f"http://127.0.0.1:{engine.port}/repos/octo/tea"
    source = make_source(name, kind="http_job", base_url=address, config=settings)
    source.credentials = {"token": GitHub.secret} | ({"webhook_secret": secret} if secret else {})
    source.save()
    return source


def report(run_id: str, *, action: str = "completed", workflow_id: int = 103) -> bytes:
    """The event `workflow_run`, as far as GitHub's documentation goes, without most of its addresses."""
    run = {
        "id": int(run_id),
        "name": "brew",
        "head_branch": "main",
        "event": "workflow_dispatch",
        "status": "completed" if action == "completed" else "in_progress",
        "conclusion": "success" if action == "completed" else None,
        "workflow_id": workflow_id,
        "run_attempt": 1,
        "html_url": f"https://github.com/octo/tea/actions/runs/{run_id}",
    }
    workflow = {"id": workflow_id, "name": "brew", "path": ".github/workflows/brew.yml", "state": "active"}
    repository = {"id": 1296269, "full_name": "octo/tea", "private": False}
    event = {"action": action, "workflow_run": run, "workflow": workflow, "repository": repository}
    return json.dumps(event).encode()


def sign(body: bytes, secret: str = SECRET) -> dict[str, str]:
    signature = hmac.digest(secret.encode(), body, "sha256").hex()
    return {
        "x-hub-signature-256": f"sha256={signature}",
        "x-github-event": "workflow_run",
        "x-github-delivery": "72d3162e-cc78-11e3-81ab-4c9367dc0958",
        "user-agent": "GitHub-Hookshot/044aadd",
        "content-type": "application/json",
    }


def deliver(
    server: McpServer, body: bytes, *, name: str = "tea", headers: dict[str, str] | None = None
) -> httpx2.Response:
    signed = sign(body) if headers is None else headers
    return plain_http.post(f"{server.base_url}/hooks/{name}", content=body, headers=signed, timeout=20)


def running(workflow: Workflow, engine: Tea, **changes: Any) -> Execution:
    """A run that was polled long ago, and is to be polled next in an hour."""
    logged_in = {"authorization": f"Bearer {GitHub.secret}"}
    body = {"ref": "main", "inputs": {}, "return_run_details": True}
    place = "/repos/octo/tea/actions/workflows/103/dispatches"
    _, started = engine.answer(Asked("POST", place, {}, logged_in, body))
    now, ago = timezone.now(), timezone.now() - timedelta(seconds=LONG)
    times = dict.fromkeys(("created_at", "admitted_at", "started_at", "polled_at"), ago)
    planned = {"deadline_at": now + timedelta(days=1), "next_attempt_at": now + timedelta(seconds=LONG)}
    fields = {"run_id": str(started["workflow_run_id"]), "state": State.RUNNING} | times | planned
    return make_execution(workflow, **fields | changes)


def with_minimum(source: Source, seconds: float) -> dict[str, Any]:
    """Its settings, where the engine allows a poll of a run in so many seconds."""
    return source.config | {"min_poll_seconds": seconds}


def make_ended(workflow: Workflow, *, seconds: float) -> Execution:
    begun = timezone.now() - timedelta(seconds=seconds)
    return make_execution(workflow, state=State.COMPLETED, started_at=begun, polled_at=timezone.now())


def is_due(execution: Execution) -> bool:
    return read(execution).next_attempt_at <= timezone.now()


def first() -> Execution | None:
    return Execution.objects.first()


# What a delivery causes.


async def test_a_call_that_waits_has_its_result_as_soon_as_the_engine_reports_the_end(
    connect, mcp_server, engine, workflow, monkeypatch
):
    """A7: by a second poll, where without the report the next one would have come at the deadline."""
    monkeypatch.setattr(follow, "UNREPORTED_SECONDS", LONG)
    # The delivery wakes the call, which would not look by itself.
    monkeypatch.setattr(waiting, "LOOK_AGAIN_SECONDS", LONG)
    await in_database(Source.objects.update)(webhook_matched_at=timezone.now())
    async with connect() as client:
        calling = asyncio.create_task(client.call_tool("brew", {"cups": 2}))
        await until(lambda: first() is not None and only().polls == 1, "it was polled once")
        execution = await in_database(only)()
        assert execution.next_attempt_at == execution.deadline_at
        engine.end(execution.run_id)
        delivered = await asyncio.to_thread(deliver, mcp_server, report(execution.run_id))
        result = await calling
    assert (delivered.status_code, delivered.json()) == (202, {})
    assert result.structured_content["conclusion"] == "success"
    assert engine.polls == 2
    assert "end_reported" in await in_database(timeline)(execution)


async def test_a_call_that_waits_in_another_process_has_its_result_too(
    mcp_server, token, other_process, engine, workflow
):
    """A7, B8: the report is in the database, where each waiting request looks every second."""
    await in_database(Source.objects.update)(
        config=with_minimum(await in_database(Source.objects.get)(), LONG)
    )
    async with plain_http.AsyncClient(headers={"authorization": f"Bearer {token}"}, timeout=60) as http:
        transport = streamable_http_client(other_process.server.url, http_client=http)
        async with Client(transport, mode="2026-07-28", **DEFAULT_OPTIONS) as client:
            calling = asyncio.create_task(client.call_tool("brew", {}))
            await until(lambda: first() is not None and only().polls == 1, "it was polled once")
            execution = await in_database(only)()
            # As if that poll were long ago: the engine allows one an hour.
            await in_database(Execution.objects.update)(polled_at=execution.created_at - timedelta(days=1))
            engine.end(execution.run_id)
            await asyncio.to_thread(deliver, mcp_server, report(execution.run_id))
            result = await calling
    assert result.structured_content["conclusion"] == "success"
    assert engine.polls == 2


def test_a_run_that_no_request_waits_for_is_polled_by_a_worker_at_once(mcp_server, engine, workflow):
    """A7.5, B7."""
    execution = running(workflow, engine)
    assert advance_due_executions() == 0
    engine.end(execution.run_id)
    assert deliver(mcp_server, report(execution.run_id)).status_code == 202
    assert advance_due_executions() == 1
    assert read(execution).state == State.COMPLETED
    assert read(execution).payload.output["conclusion"] == "success"


def test_the_engine_decides_and_not_the_delivery(mcp_server, engine, workflow):
    """B7: a genuine delivery that is wrong costs a poll."""
    execution = running(workflow, engine)
    deliver(mcp_server, report(execution.run_id))
    assert advance_due_executions() == 1
    assert (read(execution).state, read(execution).polls) == (State.RUNNING, 1)
    assert not is_due(execution)


def test_a_flood_of_genuine_deliveries_causes_no_more_polls_than_the_engine_allows(
    mcp_server, engine, workflow
):
    """B2, B7: repeated ones change nothing until the one before has led to a poll."""
    Source.objects.update(config=with_minimum(Source.objects.get(), LONG))
    polled_at = timezone.now()
    execution = running(workflow, engine, polled_at=polled_at)
    reported = set()
    for _ in range(20):
        assert deliver(mcp_server, report(execution.run_id)).status_code == 202
        advance_due_executions()
        reported.add(read(execution).end_reported_at)
    assert engine.polls == 0 and len(reported) == 1
    assert read(execution).next_attempt_at == polled_at + timedelta(seconds=LONG)
    assert timeline(execution).count("end_reported") == 1


@pytest.mark.parametrize("is_polled_alone", [False, True])
def test_a_report_that_comes_while_a_poll_is_under_way_leads_to_another(
    mcp_server, engine, workflow, is_polled_alone
):
    """B7: that poll's answer may have been made before the run ended. Whether it is recorded with others or
    alone, as runs are that were reported before."""
    before = timezone.now() - timedelta(hours=2) if is_polled_alone else None
    now = timezone.now()
    execution = running(workflow, engine, next_attempt_at=now, end_reported_at=before)
    answered = engine.hold("GET")
    worker = threading.Thread(target=advance_due_executions)
    worker.start()
    assert engine.met.wait(PATIENCE_SECONDS)
    engine.end(execution.run_id)
    assert deliver(mcp_server, report(execution.run_id)).status_code == 202
    engine.held.clear()
    answered.set()
    worker.join()
    assert (read(execution).state, read(execution).polls) == (State.RUNNING, 1)
    assert is_due(execution)
    let_pass(execution, 5)
    assert advance_due_executions() == 1
    assert read(execution).state == State.COMPLETED


def test_a_report_that_comes_before_the_answer_to_the_start_makes_the_first_poll_due_at_once(
    mcp_server, engine, workflow, monkeypatch
):
    """B7: the run's id is not known yet, and so every start that is under way may be meant."""
    for _ in range(MIN_RUNS):
        learn_from_end(make_ended(workflow, seconds=600), ended_at=None)
    execution = make_execution(workflow, state=State.PENDING)
    answered = engine.hold("POST")
    worker = threading.Thread(target=advance_due_executions)
    worker.start()
    assert engine.met.wait(PATIENCE_SECONDS)
    (run_id,) = engine.runs
    engine.end(run_id)
    assert deliver(mcp_server, report(run_id)).status_code == 202
    engine.held.clear()
    answered.set()
    worker.join()
    assert (read(execution).state, read(execution).run_id) == (State.RUNNING, run_id)
    assert is_due(execution)
    assert advance_due_executions() == 1
    assert read(execution).state == State.COMPLETED


def test_a_report_of_a_run_that_a_retry_continues_is_of_the_retry(engine, workflow):
    """The answer to the retry may not be recorded yet; the failed execution stays as it is."""
    failed = running(workflow, engine, state=State.FAILED, finished_at=timezone.now())
    starting = {"run_id": "", "state": State.STARTING}
    retry = running(workflow, engine, **starting, retried_run_id=failed.run_id)
    other = running(workflow, engine, **starting)
    body = report(failed.run_id)
    engine_webhooks.take_delivery("tea", sign(body), body)
    reported = [read(one).end_reported_at is not None for one in (failed, retry, other)]
    assert reported == [False, True, False]


def test_a_report_that_comes_just_when_that_answer_is_recorded_is_not_lost(engine, workflow):
    """B7: between the look for the run and the look for starts."""
    execution = running(workflow, engine)
    run_id = execution.run_id
    row = Execution.objects.filter(pk=execution.pk)
    row.update(state=State.STARTING, run_id="")
    recorded = []

    def record_the_answer_before(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.startswith("SELECT") and "starting" in (params or ()) and not recorded:
            recorded.append(row.update(state=State.RUNNING, run_id=run_id))
        return execute(sql, params, many, context)

    body = report(run_id)
    with connection.execute_wrapper(record_the_answer_before):
        engine_webhooks.take_delivery("tea", sign(body), body)
    assert recorded == [1]
    assert is_due(execution)


def test_a_report_does_not_hurry_an_engine_that_asked_to_be_left_alone(mcp_server, engine, workflow):
    """B8: such as one whose limit of requests is used up."""
    later = timezone.now() + timedelta(minutes=10)
    execution = running(workflow, engine, attempts=1, next_attempt_at=later)
    deliver(mcp_server, report(execution.run_id))
    assert read(execution).next_attempt_at == later


def test_nor_does_one_that_comes_while_the_engine_asks_for_that(mcp_server, engine, workflow):
    """B8: the report may be on its way when a poll is refused."""
    execution = running(workflow, engine, next_attempt_at=timezone.now())
    engine.busy_for = 600
    answered = engine.hold("GET")
    worker = threading.Thread(target=advance_due_executions)
    worker.start()
    assert engine.met.wait(PATIENCE_SECONDS)
    assert deliver(mcp_server, report(execution.run_id)).status_code == 202
    engine.held.clear()
    answered.set()
    worker.join()
    assert read(execution).poll_failure
    assert read(execution).next_attempt_at > timezone.now() + timedelta(seconds=100)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(report("9000000001", action="in_progress"), id="of no end"),
        pytest.param(report("77"), id="of another client's run"),
        pytest.param(report("9000000001", workflow_id=7), id="of another workflow"),
        pytest.param(b'{"zen": "Keep it logically awesome.", "hook_id": 1}', id="a ping"),
    ],
)
def test_a_delivery_about_anything_else_is_taken_and_changes_nothing(mcp_server, engine, workflow, body):
    """B7: engines repeat what is answered with an error."""
    execution = running(workflow, engine)
    assert execution.run_id == "9000000001"
    revision = Revision.current()
    assert deliver(mcp_server, body).status_code == 202
    assert not is_due(execution) and read(execution).end_reported_at is None
    assert Revision.current() == revision


def test_a_run_of_another_source_is_not_meant(mcp_server, engine, workflow):
    """B7: two repositories may have runs with one id, and secrets of their own."""
    other = make_tea("coffee", engine, secret="the-secret-of-coffee-0123456789")
    execution = running(workflow, engine)
    body = report(execution.run_id)
    signed = sign(body, "the-secret-of-coffee-0123456789")
    assert deliver(mcp_server, body, name=other.name, headers=signed).status_code == 202
    assert not is_due(execution)


def test_github_sends_a_form_unless_it_is_told_otherwise(mcp_server, engine, workflow):
    """B10: the signature is that of the form."""
    execution = running(workflow, engine)
    body = urlencode({"payload": report(execution.run_id).decode()}).encode()
    form = sign(body) | {"content-type": "application/x-www-form-urlencoded"}
    assert deliver(mcp_server, body, headers=form).status_code == 202
    assert is_due(execution)


# How often a run is polled besides.


def test_runs_are_polled_less_often_while_their_webhook_reports_ends(mcp_server, engine, workflow):
    """B7: from the first report of a run of ours on, also of one that was over by then."""
    ended = running(workflow, engine, state=State.COMPLETED, finished_at=timezone.now())
    deliver(mcp_server, report(ended.run_id))
    execution = running(workflow, engine, next_attempt_at=timezone.now(), started_at=timezone.now())
    assert advance_due_executions() == 1
    pause = read(execution).next_attempt_at - read(execution).polled_at
    assert pause > timedelta(seconds=follow.UNREPORTED_SECONDS - 1)


@pytest.mark.parametrize("works", [True, False])
def test_who_reads_the_status_causes_no_more_polls_either(engine, workflow, works):
    """B7: an end would have been reported, and progress may be 20 s old."""
    Source.objects.update(webhook_matched_at=timezone.now() if works else None)
    execution = running(workflow, engine, polled_at=timezone.now() - timedelta(seconds=5))
    administrator().get(f"/api/executions/{execution.pk}/")
    assert is_due(execution) is not works


def test_a_webhook_that_misses_an_end_is_not_relied_on_until_it_reports_again(mcp_server, engine, workflow):
    """B7, B8: such as one that was deleted at the engine."""
    Source.objects.update(webhook_matched_at=timezone.now())
    execution = running(workflow, engine, next_attempt_at=timezone.now())
    engine.end(execution.run_id)
    engine.runs[execution.run_id].began -= engine_webhooks.LATE.total_seconds() + 5
    assert advance_due_executions() == 1
    assert read(execution).state == State.COMPLETED
    assert Source.objects.get().webhook_matched_at is None
    deliver(mcp_server, report(execution.run_id))
    assert Source.objects.get().webhook_matched_at is not None


@pytest.mark.parametrize("seconds_ago", [0.0, 2 * LONG])
def test_an_end_that_was_found_early_or_is_reported_just_then_is_not_missed(
    mcp_server, engine, workflow, monkeypatch, seconds_ago
):
    """B7: the report may be on its way, or come while the poll is."""
    monkeypatch.setattr(engine_webhooks, "LATE", timedelta(seconds=LONG / 2))
    Source.objects.update(webhook_matched_at=timezone.now())
    execution = running(workflow, engine, next_attempt_at=timezone.now())
    engine.end(execution.run_id)
    engine.runs[execution.run_id].began -= seconds_ago
    answered = engine.hold("GET")
    worker = threading.Thread(target=advance_due_executions)
    worker.start()
    assert engine.met.wait(PATIENCE_SECONDS)
    if seconds_ago:
        deliver(mcp_server, report(execution.run_id))
    engine.held.clear()
    answered.set()
    worker.join()
    assert read(execution).state == State.COMPLETED
    assert Source.objects.get().webhook_matched_at is not None


# Whom the door lets in.

BODY = report("9000000001")
OTHERS = "the-secret-of-coffee-0123456789"


@pytest.mark.parametrize(
    ("name", "headers"),
    [
        pytest.param("tea", sign(BODY, OTHERS), id="another source's secret"),
        pytest.param("tea", sign(BODY + b" "), id="the signature of another body"),
        pytest.param("tea", {"content-type": "application/json"}, id="no signature"),
        pytest.param("tea", sign(BODY) | {"x-hub-signature-256": "sha256="}, id="an empty signature"),
        pytest.param("tea", sign(BODY) | {"x-hub-signature-256": "sha1=0"}, id="another digest"),
        pytest.param("tea", sign(BODY, ""), id="signed with nothing"),
        pytest.param("nowhere", sign(BODY), id="no such source"),
        pytest.param("without-secret", sign(BODY, ""), id="no secret"),
        pytest.param("simple", sign(BODY), id="an engine without webhooks"),
        pytest.param("broken", sign(BODY), id="unusable settings"),
    ],
)
def test_whoever_cannot_prove_to_be_the_engine_gets_one_and_the_same_refusal(
    mcp_server, engine, workflow, name, headers
):
    """B8: it says neither which sources there are nor what was wrong."""
    make_tea("coffee", engine, secret=OTHERS)
    make_tea("without-secret", engine, secret="")
    make_source("simple")
    make_source("broken", kind="http_job", config={"preset": "nothing"})
    execution = running(workflow, engine)
    refused = deliver(mcp_server, BODY, name=name, headers=headers)
    assert refused.status_code == 401
    assert refused.json() == {"detail": REFUSED}
    assert not is_due(execution)


def test_a_connector_that_fails_to_read_a_delivery_says_no_more_than_that(mcp_server, source, monkeypatch):
    """B8: connectors may be other packages'; the log has the error."""

    def fail(*_: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(HttpJobConnector, "read_delivery", fail)
    refused = deliver(mcp_server, BODY)
    assert (refused.status_code, refused.json()) == (401, {"detail": REFUSED})
    assert Source.objects.get().webhook_refusal == "The connector failed; the log has the details."


@pytest.mark.parametrize(
    ("body", "content_type", "why"),
    [
        pytest.param(BODY, "text/plain", "must be application/json; it is text/plain", id="another type"),
        pytest.param(b"not JSON", "application/json", "cannot be read", id="no JSON"),
        pytest.param(b"\0" * 100, "application/json", "cannot be read", id="NUL bytes"),
        pytest.param(b"[" * 5_000, "application/json", "nested", id="deep"),
        pytest.param(
            b'{"action": "completed", "workflow_run": {"id": "9\\u0000"}}',
            "application/json",
            "no run id",
            id="NUL in the id",
        ),
        pytest.param(
            b"payload=%ff%fe", "application/x-www-form-urlencoded", "cannot be read", id="a broken form"
        ),
    ],
)
def test_a_genuine_delivery_that_is_not_as_declared_is_refused_in_words(
    mcp_server, source, body, content_type, why
):
    """B8: the engine's list of deliveries shows them, and so does the source."""
    refused = deliver(mcp_server, body, headers=sign(body) | {"content-type": content_type})
    assert refused.status_code == 400
    assert why in refused.json()["detail"]
    assert why in (Source.objects.get().webhook_refusal or "")


def test_a_giant_delivery_is_refused_before_anything_of_it_is_read(mcp_server, source):
    """B8: also where it is genuine, as nobody knows that before."""
    body = b'{"a": "' + b"x" * MAX_BODY_BYTES + b'"}'
    assert deliver(mcp_server, body).status_code == 413
    assert "larger than 65,536 bytes" in (Source.objects.get().webhook_refusal or "")


def test_a_source_is_asked_by_post_only(mcp_server, source):
    """B8: browsers and crawlers learn nothing either."""
    assert mcp_server.get("/hooks/tea").status_code == mcp_server.get("/hooks/nowhere").status_code == 405


def test_whoever_sends_wrong_deliveries_again_and_again_is_told_to_wait_and_the_engine_is_not(
    mcp_server, source
):
    """B8: they may come from one address, as those of all repositories do."""
    body = report("77")
    for _ in range(DELIVERIES.failures):
        assert deliver(mcp_server, body, headers=sign(body, OTHERS)).status_code == 401
    noted = Entry.objects.filter(event="delivery.refused").count()
    for _ in range(2):
        refused = deliver(mcp_server, body, headers=sign(body, OTHERS))
        assert refused.status_code == 429
        assert 0 < int(refused.headers["retry-after"]) <= DELIVERIES.seconds
    assert deliver(mcp_server, body).status_code == 202
    wrong_token = plain_http.get(
        f"{mcp_server.base_url}/api/workflows/", headers={"authorization": "Bearer wfc_wrong"}
    )
    assert wrong_token.status_code == 401, "wrong tokens count by themselves"
    assert noted == DELIVERIES.failures
    assert Entry.objects.filter(event="delivery.refused").count() == noted + 1


def test_the_refusals_of_an_address_that_goes_on_are_held_up(mcp_server, source, monkeypatch):
    """B8: as those of wrong tokens."""
    held: list[float] = []

    async def sleep(seconds: float) -> None:
        held.append(seconds)

    monkeypatch.setattr(doorkeeper, "HOLD_SECONDS", 2.0)
    monkeypatch.setattr(doorkeeper.doorkeeper, "_sleep", sleep)
    for _ in range(doorkeeper.FREE_GUESSES + 2):
        deliver(mcp_server, BODY, headers=sign(BODY, OTHERS))
    assert held == [2.0, 4.0]
    assert deliver(mcp_server, BODY).status_code == 202
    assert len(held) == 2


def test_more_genuine_deliveries_than_an_engine_can_have_are_told_to_wait(
    mcp_server, engine, workflow, monkeypatch
):
    """B8: in all processes together, and for each source by itself."""
    monkeypatch.setattr(engine_webhooks, "DELIVERIES_PER_MINUTE", 1)
    monkeypatch.setattr(engine_webhooks, "DELIVERIES_AT_ONCE", 2)
    other = make_tea("coffee", engine)
    answers = [deliver(mcp_server, report("77")) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [202, 202, 429]
    assert 0 < int(answers[-1].headers["retry-after"]) <= 60
    assert deliver(mcp_server, b"{}", headers=sign(b"{}") | {"content-type": "a/b"}).status_code == 429
    assert deliver(mcp_server, report("77"), name=other.name).status_code == 202


# What people see of it.


def test_the_sources_page_shows_the_address_and_what_came_and_no_secret(
    mcp_server, admin_client, source, settings
):
    """B8, E1."""
    settings.PUBLIC_URL = "https://catalogue.example.com"
    page = admin_client.get(page_url(source))
    assert "https://catalogue.example.com/hooks/tea" in text_of(page)
    assert "nothing delivered yet" in text_of(page)
    body = report("77")
    deliver(mcp_server, body)
    deliver(mcp_server, body, headers=sign(body, OTHERS))
    shown = admin_client.get(page_url(source))
    assert "nothing delivered yet" not in text_of(shown)
    assert "does not match the body and the secret" in text_of(shown)
    told = administrator().get("/api/sources/tea/")
    assert told.data["webhook"]["url"] == "https://catalogue.example.com/hooks/tea"
    assert told.data["webhook"]["received_at"] and told.data["webhook"]["refused_at"]
    assert "does not match the body" in told.data["webhook"]["refusal"]
    for answer in (page, shown, told):
        assert SECRET not in answer.content.decode()


def test_when_something_came_is_noted_every_ten_seconds_at_most(mcp_server, source, monkeypatch):
    """B8: a flood writes no row for each."""
    monkeypatch.setattr(engine_webhooks, "NOTED_EVERY", timedelta(seconds=LONG))

    def noted_after_another() -> datetime:
        deliver(mcp_server, report("77"))
        at = Source.objects.get().webhook_received_at
        assert at is not None
        return at

    first_at = noted_after_another()
    assert noted_after_another() == first_at
    Source.objects.update(webhook_received_at=first_at - timedelta(seconds=2 * LONG))
    assert noted_after_another() > first_at


def test_a_source_without_a_webhook_shows_none(admin_client, engine):
    """E1."""
    for source in (make_source("simple"), make_tea("without-secret", engine, secret="")):
        assert "/hooks/" not in admin_client.get(page_url(source)).content.decode()
