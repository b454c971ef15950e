"""/api/result-cache/, and what the cache means for /api/executions/"""

import pytest

from catalogue.models import Workflow
from executions.models import Execution
from tests.api.clients import TokenClient, administrator, agent, problem_paths
from tests.executions.caching import cache_for, cached_outputs, finish_run
from tests.factories import make_workflow

pytestmark = pytest.mark.django_db

ADDRESS, CLEAR = "/api/result-cache/", "/api/result-cache/clear/"
DIGEST = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
"""Of a call without arguments."""


@pytest.fixture
def report() -> Workflow:
    """Its results are cached: a call without arguments has come to {"sum": 3}."""
    workflow = cache_for(make_workflow(name="report"))
    finish_run(workflow, digest=DIGEST, output={"sum": 3})
    return workflow


def run(client: TokenClient, **headers: str):
    return client.post("/api/executions/", {"tool": "report", "wait_seconds": 0}, headers=headers)


def test_a_cached_result_answers_at_once(report):
    """E4: 201 with the output, though nobody waited for it; the record says what it is."""
    client = agent()
    answer = run(client)
    shown = answer.json()
    assert (answer.status_code, shown["state"], shown["output"]) == (201, "completed", {"sum": 3})
    made = Execution.objects.get(cached_at=None)
    assert shown["cached_from"] == str(made.pk) and shown["cached_at"] is not None
    assert (shown["duration_ms"], shown["metadata"]["content_hash"]) == (0, report.content_hash)
    assert [event["kind"] for event in shown["events"]] == ["created", "cached"]
    listed = client.get("/api/executions/", {"cached": "true"}).json()["results"]
    assert [(row["id"], row["cached_from"]) for row in listed] == [(shown["id"], str(made.pk))]
    (ran,) = administrator().get("/api/executions/", {"cached": "false"}).json()["results"]
    assert (ran["id"], ran["cached_from"], ran["cached_at"]) == (str(made.pk), None, None)


@pytest.mark.parametrize(
    ("header", "is_fresh"),
    [("no-cache", True), ("max-age=0, No-Cache", True), ("max-age=60", False), ("", False)],
)
def test_cache_control_asks_for_a_fresh_run(report, header, is_fresh):
    """E4."""
    answer = run(agent(), **{"Cache-Control": header})
    assert (answer.status_code, answer.json()["cached_at"] is None) == (202 if is_fresh else 201, is_fresh)


@pytest.mark.databases("executions.rest.result_cache")
def test_the_figures(report):
    """E9."""
    run(agent())
    finish_run(make_workflow(name="other", cache_seconds=60), output=2)
    client = administrator()
    assert client.get(ADDRESS).json() == {
        "enabled": True,
        "max_bytes": 104_857_600,
        "entries": 2,
        "bytes": 11,
        "hits": 1,
        "misses": 2,
        "hit_rate": 1 / 3,
        "refreshes": 0,
        "stored": 2,
        "oversized": 0,
        "evictions": 0,
        "expired": 0,
        "cleared": 0,
    }
    shown = client.get(ADDRESS, {"workflow": "report"}).json()
    assert (shown["entries"], shown["hits"], shown["hit_rate"]) == (1, 1, 0.5)
    assert client.get("/api/").json()["result-cache"].endswith(ADDRESS)


@pytest.mark.databases("executions.rest.result_cache")
def test_one_workflow_or_all_are_cleared(report):
    """E4: the answer has the shape of the tool ClearCache."""
    finish_run(make_workflow(name="other", cache_seconds=60), output=2)
    client = administrator()
    answer = client.post(CLEAR, {"workflow": "report"})
    assert answer.json() == {"success": True, "entriesCleared": 1, "workflow": "report"}
    assert cached_outputs() == [2]
    assert client.post(CLEAR).json() == {"success": True, "entriesCleared": 1, "workflow": ""}


@pytest.mark.parametrize(
    "body",
    [
        '{"workflow": "nobody"}',
        r'{"workflow": "\ud800"}',
        r'{"workflow": "\u0000"}',
        '{"workflow": 3.5}',
        '{"workflow": null}',
        '{"name": "x"}',
    ],
)
def test_what_cannot_be_cleared_is_refused(report, body):
    answer = administrator().generic("POST", CLEAR, body, content_type="application/json")
    assert answer.status_code == 400 and problem_paths(answer) in (["/workflow"], ["/name"])
    assert cached_outputs() == [{"sum": 3}]


def test_figures_of_a_workflow_that_there_is_not():
    answer = administrator().get(ADDRESS, {"workflow": "nobody\x00"})
    assert answer.status_code == 400 and problem_paths(answer) == ["?workflow"]
