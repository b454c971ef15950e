"""Where the API begins."""

import pytest
from django.db import OperationalError, connection

from catalogue.database_problems import NOT_READY, TAKEN
from config.environment import MIGRATE_FIRST
from config.urls import api
from tests.api.clients import administrator, agent, staff_session
from tests.logs import shown_lines

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("address", ["/api/", "/api"])
@pytest.mark.parametrize("make_client", [administrator, agent, staff_session])
def test_everyone_who_is_let_in_finds_every_collection(address, make_client):
    collections = {prefix for prefix, view, _ in api.registry if hasattr(view, "list") and "(" not in prefix}
    found = make_client().get(address).json()
    assert found == {name: f"http://testserver/api/{name}/" for name in found}
    assert collections <= found.keys()


def test_every_link_leads_somewhere():
    client = administrator()

    assert {client.get(link).status_code for link in client.get("/api/").json().values()} == {200}


@pytest.mark.parametrize(("method", "is_safe"), [("get", True), ("post", False)])
def test_without_the_database_the_answer_is_503_and_says_what_to_do(method, is_safe):
    """Not as a bug: what was asked for can be asked for again, unless it may have taken effect."""

    def locked(*_):
        raise OperationalError("database is locked")

    client = administrator()
    with connection.execute_wrapper(locked), shown_lines() as lines:
        for _ in range(3):
            answer = getattr(client, method)("/api/filters/")
    assert (answer.status_code, answer["Retry-After"]) == (503, "5")
    assert "is unavailable at present" in answer.json()["detail"]
    assert ("Check before you repeat it" in answer.json()["detail"]) != is_safe
    asked = f"{method.upper()} /api/filters/"
    assert lines == [f"{asked} cannot be answered without the database: database is locked"]


@pytest.mark.databases("catalogue.database_problems")
def test_before_the_database_is_migrated_the_answer_is_503_without_details():
    """On PostgreSQL it was an internal error; on SQLite, clients were told to try again in some seconds."""

    def find_no_table(execute, sql, params, many, context):
        return execute("SELECT 1 FROM not_made_yet", (), False, context)

    client = administrator()
    with connection.execute_wrapper(find_no_table), shown_lines() as lines:
        answer = client.get("/api/filters/")
    assert (answer.status_code, answer["Retry-After"]) == (503, "5")
    assert answer.json() == {"detail": NOT_READY, "kind": "execution"}
    (line,) = lines
    assert "not_made_yet" in line and line.endswith(f". {MIGRATE_FIRST}")


@pytest.mark.databases("catalogue.database_problems")
@pytest.mark.parametrize(
    ("address", "table", "body"),
    [
        ("tokens", "mcp_bridge_accesstoken", {"name": "twin"}),
        ("toolsets", "catalogue_toolset", {"slug": "twin"}),
        (
            "sources",
            "catalogue_source",
            {"name": "twin", "kind": "simplified", "config": {"base_url": "http://localhost:9"}},
        ),
    ],
)
def test_of_two_requests_that_use_a_name_at_once_the_second_is_told(address, table, body):
    """It was an internal error, where both had found the name free."""
    inserted = []

    def insert_twice(execute, sql, params, many, context):
        if sql.startswith(f'INSERT INTO "{table}"') and not inserted:
            inserted.append(execute(sql, params, many, context))
        return execute(sql, params, many, context)

    client = administrator()
    with connection.execute_wrapper(insert_twice):
        answer = client.post(f"/api/{address}/", body)
    assert inserted and (answer.status_code, answer.json()["detail"]) == (409, TAKEN)
