"""/api/statistics/"""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from catalogue.access import Scope
from executions.models import HourlyUsage
from executions.statistics import recount
from tests.api.clients import TokenClient, administrator, agent, problem_paths, staff_session
from tests.factories import make_execution, make_source, make_workflow

pytestmark = [pytest.mark.django_db, pytest.mark.databases("executions.rest.statistics")]

ADDRESS = "/api/statistics/"
NOW = timezone.now()
COUNTS = ("calls", "failures", "cancelled", "cached")


def make_calls() -> None:
    shop, books = make_source("shop"), make_source("books")
    order, ledger = make_workflow(shop, name="order"), make_workflow(books, name="ledger")
    for days, fields in (
        (0, {"toolset": "sales"}),
        (0, {"state": "failed", "door": "rest"}),
        (0, {"cached_at": NOW}),
        (2, {"state": "timed_out", "caller": "token:9"}),
    ):
        make_execution(order, **ended(days), **fields)
    make_execution(ledger, state="cancelled", **ended(2))


def ended(days: int) -> dict[str, Any]:
    end = NOW - timedelta(days=days)
    return {"created_at": end, "started_at": end - timedelta(seconds=4), "finished_at": end}


def rows(client: Any = None, **query: Any) -> list[dict[str, Any]]:
    answer = (client or administrator()).get(ADDRESS, query)
    assert answer.status_code == 200, answer.json()
    found: list[dict[str, Any]] = answer.json()["results"]
    return found


def since(days: int) -> str:
    return (NOW - timedelta(days=days)).isoformat()


def test_without_parameters_the_last_24_hours_are_told_in_one_row():
    """Issue 13."""
    make_calls()
    (row,) = rows()
    assert [row[name] for name in COUNTS] == [3, 1, 0, 1]
    assert row["mean_ms"] == 4000 and row["p50_ms"] == row["p95_ms"] == 4000
    assert [row[name] for name in ("time", "tool", "toolset", "caller", "source", "door")] == [None] * 6


def test_rows_are_divided_by_time_and_by_what_is_asked_for():
    """Issue 13."""
    make_calls()
    told = rows(ended_after=since(5), bucket="day", group_by=["tool", "source"])
    assert [(row["time"][:10], row["tool"], row["source"], row["calls"]) for row in told] == [
        (since(2)[:10], "ledger", "books", 1),
        (since(2)[:10], "order", "shop", 1),
        (since(0)[:10], "order", "shop", 3),
    ]
    by_door = {row["door"]: row["calls"] for row in rows(group_by="door")}
    assert by_door == {"mcp": 2, "rest": 1}
    by_toolset = {row["toolset"]: row["calls"] for row in rows(ended_after=since(5), group_by="toolset")}
    assert by_toolset == {"": 4, "sales": 1}
    by_caller = [(row["caller"], row["calls"]) for row in rows(ended_after=since(5), group_by="caller")]
    assert by_caller == [("token:1", 4), ("token:9", 1)]
    assert rows(bucket="hour")[-1]["time"] == f"{NOW:%Y-%m-%dT%H}:00:00Z"


@pytest.mark.parametrize(
    ("query", "calls"),
    [
        ({"tool": "order"}, 4),
        ({"source": "books"}, 1),
        ({"toolset": "sales"}, 1),
        ({"caller": "token:9"}, 1),
        ({"door": "rest"}, 1),
        ({"outcome": ["failed", "timed_out"]}, 2),
        ({"outcome": "cached"}, 1),
        ({"ended_before": (NOW - timedelta(days=1)).isoformat()}, 2),
    ],
)
def test_rows_are_narrowed(query, calls):
    """Issue 13."""
    make_calls()
    assert sum(row["calls"] for row in rows(ended_after=since(5), **query)) == calls


@pytest.mark.parametrize(
    ("query", "path"),
    [
        ({"ended_after": since(36), "bucket": "hour"}, "?ended_after"),
        ({"ended_after": since(402), "bucket": "day"}, "?ended_after"),
        ({"ended_after": since(802)}, "?ended_after"),
        ({"ended_after": "yesterday"}, "?ended_after"),
        ({"bucket": "week"}, "?bucket"),
        ({"group_by": "colour"}, "?group_by"),
        ({"colour": "red"}, "?colour"),
    ],
)
def test_what_is_too_much_or_not_understood_is_refused(query, path):
    """Bounded."""
    answer = administrator().get(ADDRESS, query)
    assert answer.status_code == 400 and problem_paths(answer) == [path]


def test_whoever_is_no_administrator_sees_what_it_called():
    """D5, issue 13."""
    _, reader = administrator(), TokenClient(Scope.READ)  # Not token:1, which calls all else.
    make_calls()
    make_execution(caller=reader.token.caller.key)
    assert [row["calls"] for row in rows(reader)] == [1]
    assert [row["calls"] for row in rows(staff_session("view_execution"))] == [4]
    assert staff_session("view_source").get(ADDRESS).status_code == 403
    assert TokenClient(Scope.RUN).get(ADDRESS).status_code == 403
    assert rows(agent()) == []
    assert administrator().get("/api/").json()["statistics"].endswith(ADDRESS)


def test_past_days_are_read_once_for_each_question_and_caller():
    """Issue 13. They are read again after a late end, and no caller gets what another one may see."""
    make_calls()
    client, reader = administrator(), TokenClient(Scope.READ)
    query = {"ended_after": since(5), "group_by": "tool"}

    def rows_read(**more: Any) -> tuple[int, int]:
        """How many calls are told, and how many statements add up rows."""
        with CaptureQueriesContext(connection) as queries:
            calls = sum(row["calls"] for row in rows(client, **query | more))
        return calls, sum("SUM" in each["sql"] and "duration_class" in each["sql"] for each in queries)

    assert rows_read() == (5, 2)
    assert rows_read() == (5, 1)
    assert rows_read(source="books") == (1, 2)
    assert rows(reader, **query) == []
    make_execution(caller=reader.token.caller.key, **ended(3))
    assert rows_read() == (6, 2)
    assert [row["calls"] for row in rows(reader, **query)] == [1]


def test_many_rows_come_in_pages_at_the_same_number_of_queries():
    """And they say the same after a recount."""
    workflow = make_workflow()
    client, counts = administrator(), []
    query = {"ended_after": since(30), "bucket": "hour", "group_by": "tool"}
    client.get(ADDRESS, query)
    for hours in (range(3), range(3, 60)):
        for hour in hours:
            make_execution(workflow, finished_at=NOW - timedelta(hours=hour))
        with CaptureQueriesContext(connection) as queries:
            told = client.get(ADDRESS, query).json()
        counts.append(len(queries))
    assert max(counts) <= 5  # Past days and today apart. Now and then a process asks again who the token is.
    assert (told["count"], len(told["results"])) == (60, 50) and told["next"]
    HourlyUsage.objects.all().delete()
    recount()
    assert client.get(ADDRESS, query).json() == told
