"""Asking and telling runs something by REST."""

import pytest

from catalogue.models import Workflow
from connectors.errors import OutcomeUnknown, Rejected, Unreachable
from connectors.protocol import Capabilities
from executions.models import Execution, State
from tests.api.clients import TokenClient, administrator, agent, problem_paths
from tests.executions.steps import timeline, told
from tests.executions.talkative import NOTHING, review, talker
from tests.factories import make_execution

__all__ = ["review", "talker"]

pytestmark = pytest.mark.django_db(transaction=True)


def run_of(client: TokenClient, workflow: Workflow, **fields) -> Execution:
    caller = client.token.caller
    fields = {"state": State.RUNNING, "run_id": "run-1"} | fields
    return make_execution(workflow, caller=caller.key, caller_name=caller.name, **fields)


def post(client, execution: Execution, what: str, **body):
    return client.post(f"/api/executions/{execution.pk}/{what}/", body, format="json")


def test_a_run_is_asked_and_told(review, talker):
    """E10: the answer to a signal is the record, with what is new on its timeline."""
    client = agent()
    execution = run_of(client, review)
    talker.answer = {"percent": 40}

    answer = post(client, execution, "query", name="progress")
    assert answer.status_code == 200
    assert answer.json() == {
        "execution_id": str(execution.pk),
        "query": "progress",
        "answer": {"percent": 40},
    }
    record = post(client, execution, "signal", name="approve", arguments={"text": "yes"})
    assert record.status_code == 200
    assert record.json()["events"][-1]["kind"] == "signalled"
    assert talker.heard == [("run-1", "progress", {}), ("run-1", "approve", {"text": "yes"})]


def test_each_offending_place_of_a_request_is_named(review, talker):
    """B5, E5."""
    client = agent()
    execution = run_of(client, review)
    unknown = post(client, execution, "query", name="nothing")
    assert unknown.status_code == 400 and problem_paths(unknown) == ["/name"]
    assert "It has progress, count" in unknown.json()["detail"]
    unfit = post(client, execution, "query", name="count", arguments={"text": 3, "colour": "red"})
    assert unfit.status_code == 400 and unfit.json()["kind"] == "validation"
    assert set(problem_paths(unfit)) == {"/arguments/text", "/arguments/colour"}
    for body in ({}, {"name": "count", "arguments": []}, {"name": "count", "force": True}):
        assert post(client, execution, "signal", **body).status_code == 400, body
    assert talker.heard == []


@pytest.mark.parametrize(
    ("error", "code"), [(Rejected("No."), 409), (Unreachable("Hello?"), 503), (OutcomeUnknown("Hm."), 504)]
)
def test_what_comes_of_a_signal_is_told_by_the_code(review, talker, error, code):
    """B5: 504 means that nobody knows, so that nothing repeats it by itself."""
    client = agent()
    execution = run_of(client, review)
    talker.answer = error
    refused = post(client, execution, "signal", name="approve", arguments={"text": "yes"})
    assert refused.status_code == code and str(error) in refused.json()["detail"]
    assert len(timeline(execution)) == 2 and not told(execution, "signalled")


def test_runs_that_do_not_go_on_and_engines_that_cannot_are_conflicts(review, talker):
    """A8.5, E10."""
    client = agent()
    ended = run_of(client, review, state=State.COMPLETED)
    refused = post(client, ended, "signal", name="approve", arguments={"text": "yes"})
    assert refused.status_code == 409 and "It is completed" in refused.json()["detail"]
    talker.capabilities = Capabilities()
    refused = post(client, run_of(client, review), "query", name="progress")
    assert refused.status_code == 409 and "Not supported" in refused.json()["detail"]


def test_a_workflows_own_page_tells_its_queries_and_signals(review):
    """E10."""
    shown = administrator().get("/api/workflows/review/").json()["upstream"]
    assert shown["queries"][0] == {
        "name": "progress",
        "description": "How far it is.",
        "inputSchema": NOTHING,
    }
    assert [signal["name"] for signal in shown["signals"]] == ["approve"]
