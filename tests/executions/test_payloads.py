"""What goes in comes out: odd characters, odd numbers, and payloads that are too large."""

import json

import pytest

from connectors.background import run_in_background_loop
from connectors.protocol import RunSnapshot, RunState, Started
from executions.models import Execution, State
from executions.reading import describe_execution
from tests.connectors.scripted import replies
from tests.executions.engines import completed, receipt, status
from tests.executions.steps import advance_due_executions, call, make_active, payload_of, read, told
from tests.factories import make_execution

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.databases("executions.models.execution"),
]

ODD = {
    "NUL": "a\x00b",
    "control characters": "\x01\x1f\x7f\u202e",
    "beyond the basic plane": "\U0001f375",
    "a long number": 10**300 + 7,
    "the largest float": 1.7976931348623157e308,
    "1e308": 1e308,
    "-0.0": -0.0,
    "\x00 as a key": [None, True, {}, [], ""],
    "order": {"z": 1, "a": 2},
}
HALF_AN_EMOJI = "cut off: \ud83c"


def test_whatever_an_engine_answers_is_kept_as_it_was(engine, workflow):
    """B3, A2.3: on both databases, in the record and in what the caller gets."""
    answer = completed(ODD) | receipt() | {"odd": ODD}
    engine.on_start = replies(200, json.dumps(answer))

    returned = run_in_background_loop(call("report", ODD))

    stored = payload_of(returned)
    assert stored.input == stored.output == ODD
    assert list(stored.output["order"]) == ["z", "a"]
    assert (stored.start_answer, stored.status_answer) == (answer, None)
    assert returned.payload.output == describe_execution(read(returned))["output"] == ODD
    assert engine.asked("start")[0].received.json["input"] == ODD


def test_half_a_character_in_an_answer_becomes_a_question_mark(engine, workflow):
    """A text that was cut inside an emoji: nothing could send it on."""
    engine.on_start = replies(200, json.dumps(completed({"text": HALF_AN_EMOJI}) | receipt()))
    returned = run_in_background_loop(call("report"))
    assert payload_of(returned).output == {"text": "cut off: ?"}


def test_odd_characters_in_words_of_the_engine_are_recorded(engine, workflow):
    """A7.3, A7.4: in progress, errors and events, which are text columns."""
    odd = "no\x00 paper \u202e" + HALF_AN_EMOJI
    running = make_active(workflow, State.RUNNING)
    engine.on_status = replies(200, json.dumps(status(progress=1e308, progress_message=odd)))
    advance_due_executions()
    assert "no  paper" in read(running).progress_message
    assert read(running).progress == 100.0

    failing = make_active(workflow, State.RUNNING)
    engine.on_status = replies(200, json.dumps(status("FAILED", error=odd)))
    advance_due_executions()
    assert "no  paper" in read(failing).error


def test_the_record_takes_odd_words_from_any_connector():
    """Connectors to come may be less careful than the one that there is."""
    odd = "no\x00 paper " + HALF_AN_EMOJI
    snapshot = RunSnapshot(
        state=RunState.RUNNING, progress_message=odd * 100, raw={"odd": odd}, output={"odd": odd}
    )
    execution = make_execution(state=State.RUNNING)
    assert execution.record_poll(snapshot, next_attempt_at=execution.created_at)
    assert execution.record_failed_poll(odd, next_attempt_at=execution.created_at)
    assert execution.fail(odd, snapshot=snapshot)
    assert read(execution).error == execution.error == "no  paper cut off:"
    assert len(read(execution).progress_message) == 500
    assert read(execution).payload.output == {"odd": odd}


@pytest.mark.parametrize("state", ["completed", "failed"])
def test_an_answer_beyond_the_limit_is_cut_and_the_record_says_so(engine, workflow, configured, state):
    """E6, B3: what is left out is named with its size; the execution ends as it ended."""
    configured(max_payload_bytes=1024)
    large = {"text": "x" * 2000}
    engine.on_status = replies(
        200, completed(large) if state == "completed" else status("FAILED", output=large)
    )
    execution = make_active(workflow, State.RUNNING)

    advance_due_executions()

    record = read(execution)
    assert record.state == state
    assert record.payload.output is None and record.payload.status_answer is None
    cut = {entry["payload"]: entry["bytes"] for entry in record.payload.cut}
    assert cut["output"] == len(json.dumps(large)) and cut.keys() == {"output", "status_answer"}
    assert len(told(execution, "cut")) == 2
    assert f"{cut['output']} bytes exceeds the limit of 1024" in told(execution, "cut")[0]


def test_what_was_cut_earlier_stays_named(configured):
    """B3: the start's answer and the output, recorded at different times."""
    configured(max_payload_bytes=1024)
    large = {"text": "x" * 2000}
    execution = make_execution(state=State.STARTING)
    execution.mark_running(Started(run_id="run-1", raw=large), next_attempt_at=execution.created_at)
    execution.finish_as_reported(RunSnapshot(state=RunState.COMPLETED, output=large, raw={}))
    assert [entry["payload"] for entry in payload_of(execution).cut] == ["start_answer", "output"]
    assert [entry["payload"] for entry in execution.payload.cut] == ["start_answer", "output"]


def test_a_large_result_is_kept_out_of_the_rows_that_lists_read():
    """B7: no column of an execution holds a payload."""
    columns = {field.name for field in Execution._meta.get_fields() if field.concrete}
    assert not columns & {"input", "output", "start_answer", "status_answer"}
