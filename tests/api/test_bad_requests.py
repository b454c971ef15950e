"""Whatever is sent, the answer is a sentence in JSON, and never 500."""

import gzip
import itertools
import json

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection
from rest_framework.test import APIClient

from catalogue.models import Role, Source
from executions.models import Execution
from tests import plain_http
from tests.api.clients import administrator, problem_paths
from tests.factories import make_workflow
from tests.mcp_bridge.conftest import mcp_server as mcp_server  # noqa: PLC0414
from tests.tables import table_row

pytestmark = pytest.mark.django_db

DOORS = [
    ("post", "/api/sources/"),
    ("post", "/tools"),
    ("patch", "/api/sources/orders/"),
    ("patch", "/api/workflows/greet/"),
    ("post", "/api/workflows/enable/"),
    ("post", "/api/executions/"),
]
BODIES = {
    "empty": b"",
    "blank": b"   ",
    "not JSON": b"{name: orders}",
    "cut off": b'{"name": "ord',
    "not UTF-8": b'{"name": "\xff\xfe"}',
    "nested arrays": b"[" * 10_000 + b"]" * 10_000,
    "nested objects": b'{"config":' * 10_000 + b"1" + b"}" * 10_000,
    "not a number": b'{"wait_seconds": NaN}',
    "endless number": b'{"wait_seconds": ' + b"9" * 5000 + b"}",
    "infinite number": b'{"wait_seconds": 1e999}',
    "null": b"null",
    "array": b"[]",
    "text": b'"orders"',
    "NUL in a name": b'{"\\u0000": 1}',
    "many unknown names": json.dumps(dict.fromkeys(map(str, range(5000)))).encode(),
}


@pytest.mark.parametrize(("method", "address"), DOORS)
def test_a_body_that_makes_no_sense_gets_a_sentence(method, address, subtests):
    make_workflow(_source(), tool_name="greet")
    send = getattr(administrator(), method)
    for name, body in BODIES.items():
        with table_row(subtests, name):
            response = send(address, body, content_type="application/json")

            if method == "patch" and not body:
                assert response.status_code == 200
                continue
            assert response.status_code == 400
            assert response["Content-Type"] == "application/json"
            assert response.json()["detail"].endswith((".", "`"))
            assert response.json()["kind"] == "validation"
            assert len(response.content) < 10_000
            assert not Execution.objects.exists()


@pytest.mark.parametrize(("method", "address"), DOORS)
def test_a_body_over_the_limit_gets_413(method, address):
    make_workflow(_source(), tool_name="greet")
    body = b'{"name": "' + b"x" * settings.CATALOGUE.max_request_bytes + b'"}'

    response = getattr(administrator(), method)(address, body, content_type="application/json")

    assert response.status_code == 413
    assert "CATALOGUE_MAX_REQUEST_BYTES" in response.json()["detail"]


def test_a_body_of_unknown_length_gets_411_instead_of_being_taken_for_none():
    _source()

    response = administrator().generic("PATCH", "/api/sources/orders/", HTTP_TRANSFER_ENCODING="chunked")

    assert response.status_code == 411
    assert "Content-Length" in response.json()["detail"]


def test_a_compressed_body_is_told_apart_from_one_that_is_not_text():
    body = gzip.compress(b'{"name": "x"}')

    response = administrator().generic(
        "POST", "/api/sources/", body, content_type="application/json", HTTP_CONTENT_ENCODING="gzip"
    )

    assert response.status_code == 415
    assert response.json()["detail"] == "Send the body without Content-Encoding; compressed ones are refused."


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
)
def test_a_body_that_is_not_declared_as_json_gets_415(content_type):
    response = administrator().post("/api/sources/", b'{"name": "x"}', content_type=content_type)

    assert response.status_code == 415
    assert response.json()["detail"] == "Send the body as Content-Type: application/json."


def test_a_media_type_that_is_not_understood_is_answered_with_those_that_are():
    """A5.1"""
    client = administrator()
    refused = client.post("/api/catalogue/import/?plan=true", b"version: 1", content_type="text/plain")
    assert (refused.status_code, refused.json()["detail"]) == (
        415,
        "Send the body as Content-Type: application/json or application/yaml.",
    )
    refused = client.get("/api/sources/", HTTP_ACCEPT="text/html")
    assert (refused.status_code, refused.json()["detail"]) == (
        406,
        "Send Accept: application/json. The response has no other media type.",
    )


def test_a_plan_of_a_few_bytes_that_stand_for_very_many_values_is_refused():
    """H14: also a viewer can ask for one."""
    letters = "abcde"
    lines = ["version: 1", "a: &a [x,x,x,x,x,x,x,x,x]"]
    lines += [f"{new}: &{new} [{','.join(['*' + old] * 9)}]" for old, new in itertools.pairwise(letters)]
    viewer = User.objects.create_user("viewer", is_staff=True)
    viewer.groups.add(Role.objects.get(name="viewer").group)
    (client := APIClient()).force_login(viewer)
    for path in ("/api/catalogue/import/?plan=true", "/api/catalogue/import/"):
        response = client.post(path, "\n".join(lines), content_type="application/yaml")
        assert (response.status_code, len(response.json()["errors"])) == (400, 1)
        assert "aliases" in str(response.json()["errors"])


@pytest.mark.parametrize(
    ("query", "at"), [("plan=true&plan=false", "?plan"), ("prune=yes", "?prune"), ("dry_run=1", "?dry_run")]
)
def test_an_import_whose_parameters_are_not_understood_changes_nothing(query, at):
    """A5.1: of a parameter that is sent twice, the last value counted."""
    response = administrator().post(f"/api/catalogue/import/?{query}", {"file": "version: 1"})
    assert (response.status_code, problem_paths(response)) == (400, [at])


@pytest.mark.parametrize(
    "address",
    [
        "/api/nowhere/",
        "/api/workflows/unknown/",
        "/api/workflows/a%00b/",
        "/api/workflows/a b/",
        "/api/workflows/" + "x" * 5000 + "/",
        "/api/sources/unknown/",
        "/api/executions/not-an-id/",
        "/api/executions/------------------------------------/",
        "/api/executions/00000000-0000-0000-0000-000000000000/",
    ],
)
def test_an_address_where_nothing_is_gets_404_in_json(address):
    response = administrator().get(address)

    assert (response.status_code, response["Content-Type"]) == (404, "application/json")
    assert len(response.json()["detail"]) < 500


@pytest.mark.parametrize(
    ("method", "address", "said"),
    [
        ("post", "/api/executions/zzz/cancel/", "There is no zzz in /api/executions/, where ids are UUIDs"),
        ("get", "/api/executions/zzz", "There is no zzz in /api/executions/, where ids are UUIDs"),
        ("get", "/api/approvals/1/", "There is no 1 in /api/approvals/, where ids are UUIDs"),
        ("post", "/api/tokens/mine/revoke/", "no mine in /api/tokens/, where ids are whole numbers"),
        ("get", "/api/sources/a b/runs/", "There is no a b in /api/sources/, where ids are names"),
        ("get", "/api/workflows/a b/", "There is no a b in /api/workflows/, where ids are names"),
        ("get", "/api/executions/zzz/nonsense/", "There is no such endpoint"),
        ("get", "/api/docs/zzz/", "There is no such endpoint"),
        ("get", "/api/nowhere/zzz/", "There is no such endpoint"),
    ],
)
def test_an_id_that_can_be_none_is_told_from_an_address_that_is_none(method, address, said):
    """B6"""
    response = getattr(administrator(), method)(address)

    assert response.status_code == 404
    assert said in response.json()["detail"]


@pytest.mark.parametrize(
    ("method", "address"),
    [("delete", "/api/workflows/greet/"), ("put", "/api/sources/orders/"), ("options", "/api/sources/")],
)
def test_a_method_that_an_address_does_not_know_gets_405(method, address):
    response = getattr(administrator(), method)(address)

    assert response.status_code == 405
    assert response.json()["detail"]


def test_the_slash_at_the_end_may_be_left_out():
    client = administrator()

    created = client.post(
        "/api/sources", {"name": "orders", "kind": "simplified", "config": {"base_url": "http://h"}}
    )

    assert created.status_code == 201
    assert client.get("/api/sources/orders").json()["name"] == "orders"


@pytest.mark.databases("catalogue.rest.base")
def test_what_nobody_expected_is_answered_in_json_too():
    """A row that is broken in the database stands for any bug of ours."""
    _source()
    client = administrator()
    client.raise_request_exception = False
    with connection.cursor() as cursor:
        cursor.execute("UPDATE catalogue_source SET config = 'no JSON'")

    response = client.get("/api/sources/")

    assert (response.status_code, response["Content-Type"]) == (500, "application/json")
    assert "log" in response.json()["detail"]


def _source() -> Source:
    return Source.objects.create(name="orders", kind="simplified", config={"base_url": "http://127.0.0.1:9"})


@pytest.mark.parametrize(
    "address",
    ["toolsets/?mode=", "executions/?door=", "executions/?queued=null", "workflow-requests/?dry_run=no"],
)
def test_a_choice_that_is_none_is_refused_by_name(address):
    """B6: nothing chosen would be everything."""
    response = administrator().get(f"/api/{address}")
    assert response.status_code == 400
    assert problem_paths(response) == ["?" + address.partition("?")[2].partition("=")[0]]


@pytest.mark.parametrize("given", [0, 1, "no", "true", [], {}], ids=repr)
def test_in_a_body_only_true_and_false_say_whether(given):
    """B6: a dry run is one or is not."""
    for address, file in (("temporal-imports", "file"), ("openapi-imports", "document")):
        response = administrator().post(f"/api/{address}/", {file: "x", "dry_run": given})
        assert response.status_code == 400
        assert "/dry_run" in problem_paths(response)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "path", ["api/sources/%0A", "api/%0A", "tools%0A", "workflow%0A", "api/sources/x%0A/"]
)
def test_an_address_with_a_line_break_is_answered_like_any_other(mcp_server, path):
    """B6: in JSON, by the server as it is."""
    headers = {"authorization": f"Bearer {administrator().text}"}
    response = plain_http.get(f"{mcp_server.base_url}/{path}", headers=headers, timeout=20)
    assert response.status_code == 404
    assert response.json()["detail"].startswith("There is no ")
