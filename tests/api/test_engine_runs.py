"""Runs that an engine itself lists, by REST."""

from datetime import UTC, datetime
from uuid import uuid4

import pytest

from access.callers import Scope
from connectors.errors import Misconfigured, Rejected, Unreachable
from connectors.protocol import Capabilities, ListedRun, RunFilter, RunState
from executions.models import State
from tests.api.clients import TokenClient, administrator, agent, problem_paths, staff_session
from tests.executions.talkative import review, talker
from tests.factories import make_execution, make_source, make_workflow

__all__ = ["review", "talker"]

pytestmark = pytest.mark.django_db(transaction=True)
RUNS = "/api/sources/talkative/runs/"
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def listed(run_id: str, **fields) -> ListedRun:
    fields = {"workflow": "Review", "state": RunState.RUNNING, "told_state": "Running"} | fields
    return ListedRun(run_id=run_id, **fields)


def test_runs_are_listed_as_the_engine_tells_them(review, talker):
    """E10."""
    talker.list(
        listed("run-2", started_at=NOON, details={"memo": {"of": "others"}}),
        listed("run-1", state=RunState.FAILED, told_state="TimedOut"),
        next_cursor="more",
    )
    answer = administrator().get(RUNS)
    assert answer.status_code == 200
    assert answer.json() == {
        "results": [
            {
                "run_id": "run-2",
                "workflow": "Review",
                "state": "running",
                "told_state": "Running",
                "started_at": "2026-11-21T12:00:00Z",
                "finished_at": None,
                "details": {"memo": {"of": "others"}},
                "execution_id": None,
            },
            {
                "run_id": "run-1",
                "workflow": "Review",
                "state": "failed",
                "told_state": "TimedOut",
                "started_at": None,
                "finished_at": None,
                "details": {},
                "execution_id": None,
            },
        ],
        "next_cursor": "more",
    }


def test_a_run_that_a_retry_continues_leads_to_the_last_attempt(review, talker):
    make_execution(review, run_id="run-1", state=State.FAILED, created_at=NOON)
    last = make_execution(review, run_id="run-1", state=State.RUNNING)
    talker.list(listed("run-1"))
    (run,) = administrator().get(RUNS).json()["results"]
    assert run["execution_id"] == str(last.pk)


def test_every_filter_reaches_the_engine_and_empty_ones_do_not_matter(review, talker):
    """E10."""
    asked = {
        "workflow": "Review",
        "state": ["running", "failed"],
        "run": "order-",
        "started_after": "2026-11-21T12:00:00Z",
        "started_before": "",
        "query": "Priority > 3",
        "page_size": "7",
        "cursor": "more",
    }
    assert administrator().get(RUNS, asked).status_code == 200
    nothing = dict.fromkeys(asked, "")
    assert administrator().get(RUNS, nothing).status_code == 200
    wanted = RunFilter(
        workflow="Review",
        run="order-",
        states=frozenset({RunState.RUNNING, RunState.FAILED}),
        started_after=NOON,
        engine_query="Priority > 3",
    )
    assert talker.asked_for == [(wanted, 7, "more"), (RunFilter(), 50, "")]


@pytest.mark.databases("executions.engine_runs")
def test_runs_of_our_executions_are_marked_by_run_id_or_key(review, talker):
    """E10: also a start of unknown outcome, whose run nobody has named to us."""
    ours = make_execution(review, state=State.RUNNING, run_id="run-1")
    lost = make_execution(review, state=State.UNCONFIRMED, run_id="")
    elsewhere = make_execution(make_workflow(make_source("other")), run_id="run-3")
    talker.list(
        listed("run-1"),
        listed("run-2", key=lost.pk),
        listed("run-3", key=elsewhere.pk),
        listed("run-4", key=uuid4()),
    )
    results = administrator().get(RUNS).json()["results"]
    assert [run["execution_id"] for run in results] == [str(ours.pk), str(lost.pk), None, None]


def test_only_administrators_may_look(review, talker):
    """E10."""
    for client in (agent(), TokenClient(Scope.READ), staff_session("view_source")):
        assert client.get(RUNS).status_code == 403
    assert staff_session("view_execution").get(RUNS).status_code == 200
    assert len(talker.asked_for) == 1


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("state", "asleep"),
        ("page_size", "0"),
        ("page_size", "201"),
        ("started_after", "yesterday"),
        ("workflow", "x" * 256),
        ("query", "x" * 2001),
        ("wrokflow", "Review"),
    ],
)
def test_a_filter_that_cannot_be_read_is_named(review, talker, parameter, value):
    """B5: none is ignored in silence."""
    refused = administrator().get(RUNS, {parameter: value})
    assert refused.status_code == 400 and problem_paths(refused)[0].startswith(f"?{parameter}")
    assert talker.asked_for == []


@pytest.mark.parametrize(
    ("error", "code"),
    [(Rejected("invalid query"), 400), (Unreachable("Hello?"), 503), (Misconfigured("No key."), 503)],
)
def test_an_engine_that_refuses_or_does_not_answer_is_told_in_its_words(review, talker, error, code):
    """B5."""
    talker.answer = error
    refused = administrator().get(RUNS)
    assert refused.status_code == code and str(error) in refused.json()["detail"]


def test_an_engine_that_cannot_list_its_runs_is_said_to_be_unable(review, talker):
    """A8.5."""
    talker.capabilities = Capabilities()
    refused = administrator().get(RUNS)
    assert refused.status_code == 409 and "Not supported" in refused.json()["detail"]
    make_source("plain")
    assert administrator().get("/api/sources/plain/runs/").status_code == 409


def test_a_source_that_does_not_exist_is_not_found():
    """B5."""
    assert administrator().get("/api/sources/nowhere/runs/").status_code == 404
