"""What an engine calls completed is completed, whatever becomes of the request for its result; and a run that
it forgets after its cancellation is cancelled. Engines of http_job, on the wire."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from django.utils import timezone

from catalogue.models import Workflow
from executions.models import Execution, State
from executions.models.result_cache import CachedResult
from executions.reading import describe_execution
from mcp_bridge.results import execution_result
from tests.admin.conftest import admin_client
from tests.admin.pages import page_url, text_of
from tests.api.clients import administrator
from tests.connectors.scripted import Behaviour, Received, replies, sends, sends_and_hangs_up
from tests.engines.hostile_servers import hostile
from tests.executions.engines import in_turn
from tests.executions.steps import advance_due_executions, let_pass, make_active, reach_deadline, read, told
from tests.factories import make_source, make_workflow

__all__ = ["admin_client"]
pytestmark = pytest.mark.django_db(transaction=True)

RESULT = "{get: '/runs/{run_id}/result', output: '@'}"
TEA = """
name: Tea
list: {get: /jobs, items: "@", id: id}
start: {post: "/jobs/{id}/runs", json: "{arguments}", run_id: id}
status:
  get: /runs/{run_id}
  state: state
  states: {going: running, done: completed, broken: failed, stopped: cancelled}
cancel: {delete: "/runs/{run_id}"}
"""
GOING, DONE = replies(200, {"state": "going"}), replies(200, {"state": "done", "left_at": "/shelf"})
NOT_FOUND = replies(404, {"error": "no such thing"})
BUSY = replies(503, {"error": "busy"})
PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\xff\xfe"
SHORT = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{"


@dataclass
class Tea:
    on_status: Behaviour = DONE
    on_result: Behaviour = field(default_factory=lambda: replies(200, {"cups": 2}))
    on_cancel: Behaviour = field(default_factory=lambda: replies(200, {}))
    asked: list[str] = field(default_factory=list)
    base_url: str = ""

    async def behave(self, request: Received, writer: Any) -> None:
        self.asked.append(f"{request.method} {request.target}")
        answer = self.on_cancel if request.method == "DELETE" else self.on_status
        if request.target.partition("?")[0].endswith("/result"):
            answer = self.on_result
        await answer(request, writer)


@pytest.fixture
def tea() -> Iterator[Tea]:
    engine = Tea()
    with hostile(engine.behave) as scripted:
        engine.base_url = scripted.base_url
        yield engine


def of(
    tea: Tea,
    more: str = f"result: {RESULT}\n",
    *,
    output: str = "nothing",
    request_timeout_seconds: float = 1.0,
    **fields: Any,
) -> Workflow:
    declaration = TEA.replace("  state: state", f"  output: {output}\n  state: state") + more
    config = {"declaration": declaration, "max_response_bytes": 1_000}
    config["request_timeout_seconds"] = request_timeout_seconds
    source = make_source(kind="http_job", base_url=tea.base_url, api_key="", config=config)
    return make_workflow(source, upstream_id="brew", **fields)


def followed(
    execution: Execution, *, until: Callable[[Execution], Any] = lambda row: row.is_settled
) -> Execution:
    """As a worker follows it, at most for ten polls."""
    for _ in range(10):
        advance_due_executions()
        if until(row := read(execution)):
            return row
        let_pass(execution, 61)
    raise AssertionError(f"still {row.state}: {row.poll_failure}")


def run_of(workflow: Workflow, **fields: Any) -> Execution:
    return make_active(workflow, State.RUNNING, timeout_seconds=86_400, **fields)


# Results


@pytest.mark.parametrize(
    ("answer", "output"),
    [
        (replies(200, {"cups": 2}), {"cups": 2}),
        (replies(200, "[1]", content_type="text/plain"), [1]),
        (replies(200, "cup,sugar\n1,2\n", content_type="text/csv"), "cup,sugar\n1,2\n"),
        (replies(200, "\ufeffTasse\n", content_type="text/csv; charset=utf-8"), "Tasse\n"),
        (replies(200, "Süße\n".encode("latin-1"), content_type="text/csv; charset=ISO-8859-1"), "Süße\n"),
        (replies(200, "Two cups.", content_type="text/plain"), "Two cups."),
        (replies(200, "# Tea", content_type="text/markdown"), "# Tea"),
        (replies(200, "", content_type="text/csv"), ""),
    ],
)
def test_text_is_a_result(tea, answer, output):
    tea.on_result = answer
    ended = followed(run_of(of(tea)))
    assert (ended.state, ended.error, ended.payload.output) == (State.COMPLETED, "", output)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (replies(200, PNG, content_type="image/png"), "image/png"),
        (replies(200, b"PK\x03\x04", content_type="application/zip"), "application/zip"),
        (replies(200, "<title>Log in</title>", content_type="text/html"), "text/html"),
        (replies(200, "{", content_type="application/json"), "JSON"),
        (replies(200, b""), "JSON"),
        (replies(204), "JSON"),
        (replies(200, {"cups": "x" * 1_000}), "1,000 bytes"),
        (replies(302, b"", location="https://shelf.example.com/1?token=t"), "https://shelf.example.com/1,"),
        (replies(400, {"error": "bad format"}), "bad format"),
        (replies(403, {"error": "not yours"}), "403"),
        (replies(404, {"error": "no such thing"}), "404"),
        (replies(410), "410"),
        (replies(500, {"error": "broken"}), "500"),
        (replies(501), "501"),
        (BUSY, "503"),
        (replies(429, b"", retry_after="1"), "429"),
        (sends_and_hangs_up(), ""),
        (sends_and_hangs_up(SHORT), ""),
        (sends(SHORT), ""),  # And no more
    ],
)
def test_a_completed_run_is_completed_whatever_becomes_of_its_result(tea, answer, words):
    tea.on_result = answer
    ended = followed(run_of(of(tea)))
    assert ended.state == State.COMPLETED and ended.payload.output is None
    assert "GET /runs/run-1/result" in ended.error and words in ended.error
    assert "token=" not in ended.error
    assert ended.payload.status_answer == {"state": "done", "left_at": "/shelf"}
    assert ended.error_kind == ("configuration" if words == "403" else "execution")
    assert told(ended, "completed") == [ended.error]
    described = describe_execution(ended)
    assert (described["state"], described["error"], described["output"]) == ("completed", ended.error, None)
    shown = execution_result(ended, protocol_version="2025-11-25")
    assert ended.error in shown.content[0].text


@pytest.mark.parametrize("declared", ["not_found: missing", "refused: missing"])
def test_an_error_that_a_success_reports_names_its_request_too(tea, declared):
    tea.on_result = replies(200, {"missing": "the shelf"})
    step = f"{{get: '/runs/{{run_id}}/result', query: {{a: b}}, {declared}, output: '@'}}"
    ended = followed(run_of(of(tea, f"result: {step}\n")))
    assert ended.state == State.COMPLETED and "GET /runs/run-1/result: " in ended.error


@pytest.mark.parametrize(("state", "part"), [("done", "result"), ("broken", "failure"), ("stopped", "logs")])
def test_a_state_is_not_lost_for_a_slow_second_request(tea, monkeypatch, state, part):
    """A poll that took longer than a poll may would be repeated until the run's timeout."""
    monkeypatch.setattr("connectors.http_job.connector.DETAILS_SECONDS", 0.1)
    tea.on_status, tea.on_result = replies(200, {"state": state}), sends(SHORT)
    ended = followed(run_of(of(tea, f"{part}: {RESULT}\n", request_timeout_seconds=20.0)))
    states = {"done": State.COMPLETED, "broken": State.FAILED, "stopped": State.CANCELLED}
    assert ended.state == states[state] and (state != "done" or "/result" in ended.error)


@pytest.mark.parametrize("hiccup", [BUSY, NOT_FOUND, replies(500), replies(408), sends_and_hangs_up(SHORT)])
def test_a_result_is_not_lost_for_a_hiccup(tea, hiccup):
    """Also after an outage during which the run ended."""
    tea.on_result = in_turn(hiccup, hiccup, replies(200, {"cups": 2}))
    execution = run_of(of(tea))
    tea.on_status = in_turn(*[BUSY] * 4, DONE)
    ended = followed(execution)
    assert (ended.state, ended.error, ended.payload.output) == (State.COMPLETED, "", {"cups": 2})
    assert ended.poll_failure == ""


def test_a_result_is_waited_for_as_long_as_its_engine_says(tea):
    tea.on_result = replies(503, b"", retry_after="600")
    execution = run_of(of(tea))
    advance_due_executions()
    assert (read(execution).next_attempt_at - timezone.now()).total_seconds() > 500


def test_a_run_past_its_timeout_keeps_its_end_without_its_result(tea):
    tea.on_result, tea.on_cancel = BUSY, replies(409, {"error": "has ended"})
    execution = run_of(of(tea))
    reach_deadline(execution)
    advance_due_executions()
    ended = read(execution)
    assert ended.state == State.COMPLETED and "503" in ended.error


@pytest.mark.parametrize("answer", [NOT_FOUND, replies(200, PNG, content_type="image/png"), BUSY])
def test_what_could_be_read_of_a_result_is_kept(tea, answer):
    """Of the status, or of an earlier request."""
    steps = "[{get: '/runs/{run_id}', output: left_at}, {get: '/runs/{run_id}/result', output: '@'}]"
    tea.on_result = answer
    for workflow in (of(tea, output="left_at"), of(tea, f"result: {steps}\n")):
        ended = followed(run_of(workflow))
        assert (ended.state, ended.payload.output) == (State.COMPLETED, "/shelf")
        shown = execution_result(ended, protocol_version="2025-11-25")
        assert not shown.is_error
        assert ["/shelf" in shown.content[0].text, ended.error in shown.content[-1].text] == [True, True]


@pytest.mark.parametrize("output", ["nothing", "left_at"])
def test_every_door_says_why_the_result_is_missing(tea, admin_client, output):
    """Also to clients that were promised an object: without one, they get an error with the reason."""
    tea.on_result = NOT_FOUND
    promised = {"type": "object", "properties": {"cups": {"type": "integer"}}}
    workflow = of(tea, output=output, output_schema=promised, execution_type=Workflow.ExecutionType.SYNC)
    ended = followed(run_of(workflow))
    assert workflow.promised_output_schema is not None
    shown = execution_result(ended, protocol_version="2025-11-25")
    assert shown.is_error and ended.error in " ".join(block.text for block in shown.content)
    described = administrator().get(f"/api/executions/{ended.pk}/").json()
    assert (described["state"], described["success"]) == ("completed", True)
    assert described["error"] == {"kind": "execution", "message": ended.error}
    assert "GET /runs/run-1/result: " in text_of(admin_client.get(page_url(ended)))


def test_steps_that_end_early_keep_what_they_found(tea):
    steps = "[{get: '/runs/{run_id}', output: left_at, keep: {more: nothing}}, {get: '/runs/{more}/result'}]"
    ended = followed(run_of(of(tea, f"result: {steps}\n")))
    assert (ended.error, ended.payload.output) == ("", "/shelf")
    assert "/result" not in json.dumps(tea.asked)


def test_a_result_that_could_not_be_read_is_not_cached(tea):
    tea.on_result = replies(200, PNG, content_type="image/png")
    workflow = of(tea, cache_seconds=600)
    ended = followed(run_of(workflow, cache_key="k" * 64))
    assert ended.state == State.COMPLETED and not CachedResult.objects.exists()


@pytest.mark.parametrize("answer", [BUSY, NOT_FOUND, replies(200, PNG, content_type="image/png")])
def test_reasons_and_logs_that_cannot_be_read_cost_no_end(tea, answer):
    tea.on_status, tea.on_result = replies(200, {"state": "broken"}), answer
    ended = followed(run_of(of(tea, f"failure: {RESULT}\nlogs: {RESULT}\n")))
    assert ended.state == State.FAILED and tea.asked.count("GET /runs/run-1/result") == 2


# Runs that their engine forgets


def asked_to_end(execution: Execution) -> Execution:
    assert execution.request_cancel("Alice")
    return execution


@pytest.mark.parametrize("answer", [replies(200, {}), replies(202), replies(204)])
def test_a_run_that_is_forgotten_after_its_cancellation_is_cancelled(tea, answer):
    tea.on_cancel = answer
    tea.on_status = in_turn(GOING, NOT_FOUND)
    execution = run_of(of(tea))
    advance_due_executions()
    ended = followed(asked_to_end(read(execution)))
    assert (ended.state, ended.cancel_progress) == (State.CANCELLED, "confirmed")
    assert "404" in ended.error and tea.asked.count("DELETE /runs/run-1") == 1


@pytest.mark.parametrize("lost", [sends_and_hangs_up(), replies(500), replies(504), BUSY])
def test_so_is_one_whose_answer_to_the_cancellation_was_lost(tea, lost):
    """The engine has carried it out, and knows the run no more when it is asked again."""
    tea.on_cancel = in_turn(lost, NOT_FOUND)
    tea.on_status = in_turn(GOING, NOT_FOUND)
    execution = run_of(of(tea))
    advance_due_executions()
    ended = followed(asked_to_end(read(execution)))
    assert (ended.state, ended.cancel_refusal) == (State.CANCELLED, "")


@pytest.mark.parametrize("refusal", [replies(409), replies(403), replies(405)])
def test_one_whose_cancellation_was_refused_is_not(tea, refusal):
    tea.on_cancel = refusal
    tea.on_status = in_turn(GOING, NOT_FOUND)
    execution = run_of(of(tea))
    advance_due_executions()
    ended = followed(asked_to_end(read(execution)))
    assert ended.state == State.FAILED and ended.cancel_refusal


def test_nor_is_one_that_its_engine_never_knew(tea):
    tea.on_cancel = tea.on_status = NOT_FOUND
    ended = followed(asked_to_end(run_of(of(tea))))
    assert ended.state == State.FAILED


def test_nor_one_that_nobody_wanted_to_end(tea):
    tea.on_status = in_turn(GOING, NOT_FOUND)
    ended = followed(run_of(of(tea)))
    assert ended.state == State.FAILED and not any("DELETE" in request for request in tea.asked)


def test_a_cancellation_that_is_not_found_is_refused_where_the_run_goes_on(tea):
    """As with a wrong path: it is sent once."""
    tea.on_cancel, tea.on_status = NOT_FOUND, GOING
    execution = asked_to_end(run_of(of(tea)))
    for _ in range(3):
        advance_due_executions()
        let_pass(execution, 61)
    row = read(execution)
    assert (row.state, row.cancel_progress) == (State.RUNNING, "refused")
    assert tea.asked.count("DELETE /runs/run-1") == 1


def test_a_run_that_is_cancelled_for_its_timeout_and_then_forgotten_has_timed_out(tea):
    tea.on_status = in_turn(GOING, NOT_FOUND)
    execution = run_of(of(tea))
    advance_due_executions()
    reach_deadline(execution)
    for _ in range(8):
        advance_due_executions()
        if (row := read(execution)).is_settled:
            break
        let_pass(execution, 4)
    assert row.state == State.TIMED_OUT and "404" in row.error
