"""What a real Temporal namespace lists, by REST: filters, pages, and values that mean harm."""

import asyncio
import itertools
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from catalogue.models import Source
from executions.models import Execution
from tests.api.clients import TokenClient, administrator
from tests.engines.temporal.asking import make_temporal_source
from tests.engines.temporal.server import TASK_QUEUE, TemporalServer, second_namespace
from tests.executions.engines import wait_until
from tests.executions.steps import advance_due_executions
from tests.processes import PROBE_SECONDS

__all__ = ["second_namespace"]

pytestmark = pytest.mark.django_db(transaction=True)

QUOTES = "it's 100%_sure"
OTHERS = {f"order-{number}": "Echo" for number in range(3)} | {
    "lasting-1": "Lasting",
    "failing-1": "FailAlone",
    QUOTES: "Echo",
}
"""Workflow type by workflow id, in the order of their starts."""


@pytest.fixture(scope="module")
def others(temporal_server: TemporalServer, second_namespace: str) -> Iterator[str]:
    """The namespace, with runs that somebody else started, all of them listed by now."""

    async def start() -> None:
        client = await temporal_server.client(second_namespace)
        for workflow_id, kind in OTHERS.items():
            handle = await client.start_workflow(
                kind, {}, id=workflow_id, task_queue=TASK_QUEUE, memo={"of": "somebody else"}
            )
            if kind != "Lasting":
                await asyncio.gather(handle.result(), return_exceptions=True)
        ended = "ExecutionStatus != 'Running'"
        while (await client.count_workflows(ended)).count < len(OTHERS) - 1:  # noqa: ASYNC110
            await asyncio.sleep(PROBE_SECONDS)

    async def end() -> None:
        client = await temporal_server.client(second_namespace)
        await client.get_workflow_handle("lasting-1").terminate()

    asyncio.run(start())
    yield second_namespace
    asyncio.run(end())


@pytest.fixture
def source(temporal_server: TemporalServer, others: str) -> Source:
    return make_temporal_source(temporal_server, namespace=others)


@pytest.fixture
def client(source: Source) -> TokenClient:
    return administrator()


def listed(client: TokenClient, **asked: Any) -> list[str]:
    """Workflow ids of the runs that others started, in the order of the list."""
    answer = client.get("/api/sources/temporal/runs/", asked)
    assert answer.status_code == 200, answer.content
    found = [run["details"]["workflow_id"] for run in answer.json()["results"]]
    # Those that another test had us start are none of these tests' business.
    return [workflow_id for workflow_id in found if workflow_id in OTHERS]


def test_runs_that_others_started_are_listed_the_latest_first(client):
    """E10."""
    found = listed(client)
    # Those that go on come before all that have ended.
    assert set(found) == set(OTHERS) and found[0] == "lasting-1"
    assert [name for name in found if name.startswith("order")] == ["order-2", "order-1", "order-0"]


def test_a_run_is_told_with_its_state_times_memo_and_queue(client):
    """E10."""
    (run,) = client.get("/api/sources/temporal/runs/", {"run": "failing"}).json()["results"]
    assert run["run_id"].startswith("failing-1/")
    assert (run["workflow"], run["state"], run["told_state"]) == ("FailAlone", "failed", "Failed")
    assert run["started_at"] <= run["finished_at"]
    assert run["details"]["memo"] == {"of": "somebody else"}
    assert run["details"]["task_queue"] == TASK_QUEUE
    assert listed(client, run=run["run_id"]) == ["failing-1"]


def test_runs_are_found_by_workflow_state_id_and_time(client):
    """E10."""
    assert listed(client, workflow="Lasting") == ["lasting-1"]
    assert set(listed(client, workflow="Echo")) == {"order-0", "order-1", "order-2", QUOTES}
    assert set(listed(client, state=["running", "failed"])) == {"lasting-1", "failing-1"}
    assert set(listed(client, run="order-")) == {"order-0", "order-1", "order-2"}
    assert listed(client, run="rder-") == []
    assert listed(client, workflow="Echo", run="order-1", state="completed") == ["order-1"]
    begun = client.get("/api/sources/temporal/runs/", {"run": "order-1"}).json()["results"][0]["started_at"]
    assert set(listed(client, run="order-", started_after=begun)) == {"order-1", "order-2"}
    assert set(listed(client, run="order-", started_before=begun)) == {"order-0"}
    assert listed(client, started_after=datetime(2100, 1, 1, tzinfo=UTC).isoformat()) == []


def test_a_condition_of_temporals_own_narrows_the_list_further(client):
    """E10."""
    assert listed(client, run="order-", query="WorkflowId = 'order-1' OR WorkflowId = 'lasting-1'") == [
        "order-1"
    ]
    assert listed(client, query="ExecutionStatus = 'Failed' OR WorkflowType = \"Lasting\"") != []


UNREADABLE = [
    "Colour = 'red'",
    "WorkflowType = ",
    "ORDER BY StartTime",
    "WorkflowType = 'Echo' --",
    "WorkflowType = 'Echo' GROUP BY ExecutionStatus",
]


def test_a_condition_that_temporal_cannot_read_is_refused_in_its_words(client, subtests):
    """B5."""
    for query in UNREADABLE:
        with subtests.test(query):
            refused = client.get("/api/sources/temporal/runs/", {"query": query})
            assert refused.status_code == 400 and "invalid query" in refused.json()["detail"]


UNBALANCED = [
    "WorkflowType = 'Echo') OR (WorkflowType = 'Lasting'",
    "WorkflowType = 'Echo')",
    "(WorkflowType = 'Echo'",
    "WorkflowType = 'Echo",
    'WorkflowType = "Echo',
    "WorkflowType = 'E\\') OR (WorkflowId != ''",
    "`WorkflowType = 'Echo'",
    "WorkflowType = 'E\x07cho'",
]


def test_a_condition_cannot_break_out_of_its_brackets(client, subtests):
    """E10: else the other filters would seem to hold and would not."""
    for query in UNBALANCED:
        with subtests.test(query):
            refused = client.get("/api/sources/temporal/runs/", {"query": query, "run": "order-"})
            assert refused.status_code == 400
            assert "unbalanced" in refused.json()["detail"] or "unprintable" in refused.json()["detail"]


HOSTILE = [
    "Echo' OR WorkflowType = 'Lasting",
    "' OR '' = '",
    "Echo\\' OR WorkflowType = \\'Lasting",
    "\\",
    "Echo' -- ",
    'Echo" OR "" = "',
    "%",
    "_",
    "Echo') OR (WorkflowType = 'Lasting",
    "'; DROP TABLE executions_visibility; --",
    "${jndi:ldap://x}",
    "日本\u202e",
]


def test_what_is_looked_for_is_never_taken_for_a_condition(client, subtests):
    """E10."""
    for hostile, place in itertools.product(HOSTILE, ("workflow", "run")):
        with subtests.test(hostile, place=place):
            answer = client.get("/api/sources/temporal/runs/", {place: hostile})
            # What cannot be printed is refused; everything else is a name that no run has.
            assert answer.status_code == 400 or answer.json()["results"] == []
    assert len(listed(client)) == len(OTHERS)


def test_an_id_full_of_quotes_and_wildcards_is_found_by_its_beginning(client):
    """E10."""
    for beginning in ("it's", "it's 100%", QUOTES):
        assert listed(client, run=beginning) == [QUOTES]
    assert listed(client, run="it's 100__") == listed(client, run="it%") == []


def test_pages_show_every_run_once(client):
    """E10."""
    found, cursor, pages = [], "", 0
    while cursor or not pages:
        answer = client.get("/api/sources/temporal/runs/", {"page_size": 2, "cursor": cursor}).json()
        found += [run["details"]["workflow_id"] for run in answer["results"]]
        cursor, pages = answer["next_cursor"], pages + 1
        assert len(answer["results"]) <= 2
    assert set(OTHERS) <= set(found) and len(found) == len(set(found))
    assert pages >= len(OTHERS) / 2


def test_a_cursor_is_good_for_the_list_that_gave_it_and_no_other(client):
    """E10: Temporal itself would answer with whatever comes of it, or keep trying for ten seconds."""
    cursor = client.get("/api/sources/temporal/runs/", {"page_size": 2}).json()["next_cursor"]
    for asked in ({"cursor": cursor, "workflow": "Echo"}, {"cursor": "garbage"}, {"cursor": "ÄÄ=="}):
        refused = client.get("/api/sources/temporal/runs/", asked)
        assert refused.status_code == 400 and "cursor" in refused.json()["detail"], asked


def test_our_own_executions_are_marked(client):
    """E10: by the run that they name, and by their key while they name none."""
    started = client.post("/api/executions/", {"tool": "Echo", "arguments": {"a": 1}, "wait_seconds": 20})
    execution = Execution.objects.get(pk=started.json()["id"])
    wait_until(
        lambda: advance_due_executions() or execution.__class__.objects.get(pk=execution.pk).is_settled
    )
    workflow_id = Execution.objects.get(pk=execution.pk).run_id.partition("/")[0]

    def marked() -> list[str]:
        answer = client.get("/api/sources/temporal/runs/", {"run": workflow_id}).json()
        return [run["execution_id"] for run in answer["results"]]

    assert wait_until(marked) == [str(execution.pk)]
    Execution.objects.filter(pk=execution.pk).update(run_id="")
    assert marked() == [str(execution.pk)]


def test_a_service_that_is_gone_is_told_within_seconds(source):
    """A7.2, B5."""
    source.config = source.config | {"host_port": "127.0.0.1:9", "timeout_seconds": 1}
    source.save()
    refused = administrator().get("/api/sources/temporal/runs/")
    assert refused.status_code == 503 and "connection refused" in refused.json()["detail"]
