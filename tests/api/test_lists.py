"""What all lists have in common: pages, filters that count, and a price that does not grow."""

from uuid import uuid4

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from catalogue.exposure import forget_catalogue
from catalogue.history import command, record_change
from catalogue.imports.tools import store_tools
from mcp_bridge.bearers import forget_bearers
from tests.api.clients import administrator, agent, problem_paths, staff_session
from tests.declared_tools import tool
from tests.factories import (
    make_discovery_run,
    make_execution,
    make_feature,
    make_source,
    make_toolset,
    make_workflow,
    make_workflows,
)

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.databases("catalogue.rest.base"),
]

LISTS = [
    "sources", "tools", "workflows", "toolsets", "server-features", "discovery-runs", "executions", "history",
]  # fmt: skip
ROWS = {
    "sources": lambda: make_workflow(make_source()),
    "tools": lambda: store_tools([tool(uuid4().hex)], source=uuid4().hex, expose=True),
    "workflows": lambda: make_workflow(make_source()),
    "toolsets": lambda: make_toolset(picked=[make_workflow(make_source())], enabled=False, rules=["x*"]),
    "server-features": lambda: make_feature(make_source(), "greet", served_as=uuid4().hex),
    "discovery-runs": lambda: make_discovery_run(make_source()),
    "executions": lambda: make_execution(make_workflow(make_source())),
    "history": lambda: record_change(command("somebody"), [make_workflow(make_source())], "Changed."),
}


def count_queries(client, address):
    # What processes remember for half a second must not make the number depend on the machine's speed.
    forget_bearers()
    forget_catalogue()
    with CaptureQueriesContext(connection) as queries:
        response = client.get(address)
    assert response.status_code == 200
    return len(queries), response.json()["count"]


@pytest.mark.parametrize(
    ("name", "make_client"),
    [*((name, administrator) for name in LISTS), ("workflows", agent), ("executions", agent)],
)
def test_a_list_costs_the_same_queries_for_three_rows_as_for_thirty(name, make_client):
    client = make_client()
    owner = {"caller": client.token.caller.key} if name == "executions" else {}
    add = ROWS[name] if not owner else lambda: make_execution(**owner)
    for _ in range(3):
        add()
    client.get(f"/api/{name}/")
    few, count_of_few = count_queries(client, f"/api/{name}/")
    for _ in range(27):
        add()
    many, count_of_many = count_queries(client, f"/api/{name}/")

    assert (count_of_few, count_of_many) == (3, 30)
    assert few == many <= 13


def test_the_list_of_executions_does_not_touch_payloads():
    make_execution(payload={"output": "x" * 1000})
    client = administrator()

    with CaptureQueriesContext(connection) as queries:
        client.get("/api/executions/")

    assert not [query for query in queries if "executionpayload" in query["sql"].lower()]


def test_the_list_of_workflows_does_not_read_schemas():
    make_workflow()
    client = staff_session("view_workflow")

    with CaptureQueriesContext(connection) as queries:
        client.get("/api/workflows/")

    assert not [query for query in queries if "input_schema" in query["sql"]]


def test_pages_join_without_gaps():
    make_workflows(7)
    client = administrator()

    pages = [
        client.get(f"/api/workflows/?page_size=3&page={page}&ordering=category").json() for page in (1, 2, 3)
    ]
    names = [workflow["tool_name"] for page in pages for workflow in page["results"]]

    assert (len(names), len(set(names))) == (7, 7)
    assert [page["count"] for page in pages] == [7, 7, 7]
    assert pages[0]["previous"] is None and pages[2]["next"] is None


def test_the_largest_page_has_200_rows():
    make_workflows(201, make_source())

    assert len(administrator().get("/api/workflows/?page_size=200").json()["results"]) == 200


@pytest.mark.parametrize("name", LISTS)
def test_a_page_size_that_is_not_possible_is_refused_by_name(name, subtests):
    client = administrator()
    for size in ("0", "-1", "201", "x", "", "1.5", "²", "9" * 5000, "%00"):
        with subtests.test(size=size):
            response = client.get(f"/api/{name}/?page_size={size}")

            assert response.status_code == 400
            assert problem_paths(response) == ["?page_size"]


@pytest.mark.parametrize(
    ("value", "count"), [("true", 1), ("True", 1), ("1", 1), ("false", 2), ("0", 2), ("", 3)]
)
def test_a_boolean_parameter_may_be_written_in_any_usual_way(value, count):
    for enabled in (True, False, False):
        make_source(enabled=enabled)

    assert administrator().get(f"/api/sources/?enabled={value}").json()["count"] == count


@pytest.mark.parametrize("page", ["0", "-1", "x", "99", "9" * 5000, "%00"])
def test_a_page_that_does_not_exist_is_not_found(page):
    response = administrator().get(f"/api/workflows/?page={page}")

    assert response.status_code == 404
    assert response.json()["detail"]


@pytest.mark.parametrize("name", LISTS)
def test_a_parameter_that_does_not_exist_is_refused_and_not_ignored(name):
    response = administrator().get(f"/api/{name}/?sorce=typo")

    assert response.status_code == 400
    assert problem_paths(response) == ["?sorce"]
    assert response.json()["kind"] == "validation"


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("executions/?state=finished", "?state"),
        ("executions/?created_after=yesterday", "?created_after"),
        ("executions/?created_after=0001-01-01T00:00%2B14:00", "?created_after"),
        ("executions/?format=csv&created_before=9999-12-31T23:59-12:00", "?created_before"),
        ("statistics/?ended_after=0001-01-01T00:00%2B14:00", "?ended_after"),
        ("history/?at_after=0001-01-01T00:00%2B14:00", "?at_after"),
        ("audit/?at_before=9999-12-31T23:59-12:00", "?at_before"),
        ("workflow-requests/?created_after=9999-12-31T23:59-12:00", "?created_after"),
        ("executions/?door=back", "?door"),
        ("executions/?ordering=payload", "?ordering"),
        ("executions/?tool=%00", "?tool"),
        ("workflows/?search=%00", "?search"),
        ("workflows/?tag=a%00", "?tag"),
        ("workflows/?source=%00", "?source"),
        ("discovery-runs/?outcome=odd", "?outcome"),
        ("sources/?health=odd", "?health"),
        ("sources/?enabled=banana", "?enabled"),
        ("workflows/?enabled=unknown", "?enabled"),
        ("workflows/?missing=maybe", "?missing"),
        ("workflows/?exposed=7", "?exposed"),
        ("executions/?tool=a&tool=b", "?tool"),
        ("workflows/?ordering=source&ordering=tool_name", "?ordering"),
        ("tokens/?page_size=1&page_size=2", "?page_size"),
    ],
)
def test_a_bad_value_of_a_parameter_is_refused_by_name(address, path):
    response = administrator().get(f"/api/{address}")

    assert response.status_code == 400
    assert problem_paths(response) == [path]


def test_parameters_that_take_several_values_are_given_several_times():
    for state in ("failed", "running", "completed"):
        make_execution(state=state)

    answer = administrator().get("/api/executions/?state=failed&state=running&fields=id&fields=state").json()

    assert sorted(one["state"] for one in answer["results"]) == ["failed", "running"]
    assert all(set(one) == {"id", "state"} for one in answer["results"])


@pytest.mark.parametrize("name", ["workflows", "tools", "executions", "history", "audit"])
@pytest.mark.parametrize("text", ["w " * 5_000, "w" * 50_001])
def test_a_text_that_is_too_long_to_search_for_is_refused(name, text):
    """It took seconds, and then the answer said that the database was away."""
    refused = administrator().get(f"/api/{name}/", {"search": text})
    assert refused.status_code == 400 and problem_paths(refused) == ["?search"]
    assert "Search for at most" in refused.content.decode()


def test_a_tag_that_is_too_long_to_search_for_is_refused():
    assert administrator().get("/api/workflows/", {"tag": "w" * 50_001}).status_code == 400


@pytest.mark.skipif(connection.vendor != "sqlite", reason="a database of PostgreSQL has its own collation")
def test_names_are_sorted_regardless_of_case():
    """SQLite had Zebra before apple."""
    names, client = ["apple", "Banana", "cherry", "Zebra"], administrator()
    for name in reversed(names):
        make_workflow(make_source(name), tool_name=name, category=name)
    for address, field in (
        ("workflows", "tool_name"),
        ("workflows", "category"),
        ("sources", "name"),
    ):
        rows = client.get(f"/api/{address}/?ordering={field}").json()["results"]
        backwards = client.get(f"/api/{address}/?ordering=-{field}&page_size=3").json()["results"]
        assert [row[field] for row in rows] == names, address
        assert [row[field] for row in backwards] == names[:0:-1], address
