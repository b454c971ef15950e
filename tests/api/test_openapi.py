"""The API's description."""

import inspect
import json
import re
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml
from django.conf import settings
from django.core.management import call_command
from drf_spectacular import validation
from rest_framework.test import APIClient

from catalogue.models import HistoryEntry
from catalogue.rest.views import ApiViewSet
from tests.api.clients import administrator, agent
from tests.factories import make_execution, make_toolset, make_workflow

DOCUMENT = Path(__file__).with_name("openapi.yaml")
OPENAPI_SCHEMA = Path(inspect.getfile(validation)).with_name("openapi_3_1_schema.json")
COMMAND = "python manage.py spectacular --fail-on-warn --validate --file tests/api/openapi.yaml"


@cache
def parsed(document: bytes) -> Any:
    return yaml.load(document, yaml.CSafeLoader)


def committed() -> Any:
    return parsed(DOCUMENT.read_bytes())


def test_the_committed_document_is_current(tmp_path):
    """And it is valid, and made without a warning."""
    fresh = tmp_path / "openapi.yaml"

    call_command("spectacular", file=str(fresh), fail_on_warn=True)

    assert fresh.read_text() == DOCUMENT.read_text(), f"tests/api/openapi.yaml is out of date; run: {COMMAND}"
    # What --validate does, in a hundredth of the time.
    jsonschema_rs.validate(json.loads(OPENAPI_SCHEMA.read_bytes()), committed())


@pytest.mark.django_db
def test_the_document_is_served_to_everyone_who_is_let_in():
    served = parsed(agent().get("/api/schema/").content)

    assert served == committed()


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("query", "read", "media_type"),
    [("?format=json", json.loads, "application/json"), ("?format=yaml", parsed, "application/yaml")],
)
def test_a_link_can_name_the_format_of_the_document(query, read, media_type):
    answer = agent().get(f"/api/schema/{query}", headers={"accept": "text/html,*/*"})

    assert answer["content-type"] == media_type
    assert read(answer.content) == committed()


@pytest.mark.django_db
def test_an_unknown_format_of_the_document_is_refused():
    answer = agent().get("/api/schema/?format=xml")

    assert (answer.status_code, answer.json()["kind"]) == (400, "validation")
    assert "?format=json" in answer.json()["detail"]


@pytest.mark.django_db
def test_single_objects_have_only_the_fields_that_are_asked_for_as_the_document_says():
    make_execution()
    make_toolset()
    client, tried = administrator(), set()
    for path, operations in committed()["paths"].items():
        described = operations.get("get", {}).get("parameters", ())
        parameters = {parameter["name"]: parameter["in"] for parameter in described}
        keys = [name for name, place in parameters.items() if place == "path"]
        if "fields" not in parameters or not keys:
            continue
        for row in client.get(path.partition("{")[0]).json()["results"][:1]:
            alone = client.get(f"{path.format_map({keys[0]: row[keys[0]]})}?fields={keys[0]}")
            assert alone.json() == {keys[0]: row[keys[0]]}, path
            tried.add(path)
    assert len(tried) >= 6, tried


def test_the_document_shows_no_way_to_read_credentials():
    schemas = committed()["components"]["schemas"]

    assert "credentials" not in schemas["Source"]["properties"]
    assert schemas["NewSourceRequest"]["properties"]["credentials"]["writeOnly"] is True


def test_generators_of_clients_can_make_a_class_of_each_schema():
    """openapi-python-client names classes by titles, of which two were the same, and takes no object as the
    default of another class: it left out the calls that store and read HTTP tools."""
    for name, schema in committed()["components"]["schemas"].items():
        assert "title" not in schema, name
        for field in schema.get("properties", {}).values():
            is_class = "$ref" in field or "oneOf" in field
            assert not (is_class and isinstance(field.get("default"), dict)), name


def test_an_id_has_the_same_type_in_an_answer_and_in_a_path():
    """Clients of openapi-generator refused the id of a token that they had read."""
    document = committed()
    schemas = document["components"]["schemas"]
    for path, name in (
        ("/api/tokens/{id}/", "Token"),
        ("/api/filters/{id}/", "Filter"),
        ("/api/history/{id}/revert/", "HistoryEntry"),
        ("/api/executions/{id}/", "Execution"),
    ):
        (operation, *_) = document["paths"][path].values()
        (given,) = [one["schema"] for one in operation["parameters"] if one["in"] == "path"]
        answered = schemas[name]["properties"]["id"]
        assert given["type"] == answered["type"], path
        assert given.get("format") in ("int64", answered.get("format")), path


def test_what_tells_alternatives_apart_is_required_in_each():
    """OpenAPI says so; openapi-generator left the alternative out where it was not."""
    schemas = committed()["components"]["schemas"]
    fields = [field for schema in schemas.values() for field in schema.get("properties", {}).values()]
    told_apart = [field["discriminator"] for field in fields if "discriminator" in field]
    assert told_apart
    for discriminator in told_apart:
        for reference in discriminator["mapping"].values():
            alternative = reference.rpartition("/")[2]
            assert discriminator["propertyName"] in schemas[alternative]["required"], alternative


def test_every_operation_says_what_it_answers_when_it_refuses():
    operations = [
        (f"{method} {path}", operation)
        for path, methods in committed()["paths"].items()
        for method, operation in methods.items()
    ]

    assert len(operations) >= 18
    for name, operation in operations:
        assert {"401", "403"} <= operation["responses"].keys(), name
        assert ("404" in operation["responses"]) or "{" not in name, name
        assert operation["summary"], name
        assert not operation.get("description", "").startswith(inspect.getdoc(ApiViewSet)[:20]), name


LISTS = [
    path
    for path, methods in committed()["paths"].items()
    if "{" not in path
    and any(parameter["name"] == "page_size" for parameter in methods.get("get", {}).get("parameters", ()))
]


@pytest.mark.django_db
@pytest.mark.parametrize("path", LISTS)
def test_a_list_without_further_pages_is_what_the_document_says(path):
    """A strict client fails on the last page if `next` may not be null there."""
    media_type = committed()["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]

    answer = administrator().get(path)

    described = media_type["schema"] | {"components": committed()["components"]}
    jsonschema_rs.validate(described, answer.json())


def test_it_knows_of_pages_that_do_not_exist_names_that_are_unknown_and_times_that_never_came():
    document = committed()
    for path, methods in document["paths"].items():
        for operation in methods.values():
            if any(parameter["name"] == "page" for parameter in operation.get("parameters", ())):
                assert "404" in operation["responses"], path
    for action in ("enable", "disable"):
        assert "404" in document["paths"][f"/api/workflows/{action}/"]["post"]["responses"]
    schemas = document["components"]["schemas"]
    for schema, field in (
        ("ExecutionDetail", "payload_removed_at"),
        ("ExecutionDetail", "events_removed_at"),
        ("WorkflowRequestDetail", "payload_removed_at"),
    ):
        assert "null" in schemas[schema]["properties"][field]["type"], field


def described_answer(method: str, path: str, code: int) -> dict[str, Any]:
    """What the document says that the request is answered with; at no endpoint, and by no method of one,
    `Problem`."""
    problem = {"$ref": "#/components/schemas/Problem"}
    for template, operations in committed()["paths"].items():
        pattern = re.sub(r"\\{\w+\\}", "[^/]+", re.escape(template.rstrip("/")))
        if re.fullmatch(pattern, path.partition("?")[0].rstrip("/")) and method in operations:
            answers = operations[method]["responses"]
            assert str(code) in answers, f"{method} {template} is not described to answer {code}"
            schema: dict[str, Any] = answers[str(code)]["content"]["application/json"]["schema"]
            return schema
    return problem


def check_problem(method: str, path: str, response: Any) -> None:
    """That the answer is the error that the document describes, without a field that it does not name."""
    components, body = committed()["components"], response.json()
    schema = described_answer(method, path, response.status_code)
    for described in (schema, {"$ref": "#/components/schemas/Problem"}):
        jsonschema_rs.validate(described | {"components": components}, body)
    named = components["schemas"][schema["$ref"].rpartition("/")[2]]["properties"]
    assert body.keys() <= named.keys()


def provoke() -> Iterator[tuple[int, str, str, Callable[[], Any]]]:
    """Requests that are refused: with which status, the method, the path, and the request."""
    make_workflow(tool_name="report", calls_per_minute=1, calls_at_once=1)
    ended = make_execution(caller="token:0")
    client, curator, key = agent(), administrator(), {"HTTP_IDEMPOTENCY_KEY": "one"}
    start, cancel = "/api/executions/", f"/api/executions/{ended.pk}/cancel/"
    client.post(start, {"tool": "report", "arguments": {"n": 1}}, format="json", **key)
    make_toolset("shop")
    for title in ("Shop", "Orders"):
        curator.patch("/api/toolsets/shop/", {"title": title}, format="json")
    outdated = HistoryEntry.objects.earliest("pk").pk
    large = b'{"name": "' + b"x" * settings.CATALOGUE.max_request_bytes + b'"}'

    def sent(code: int, by: APIClient, method: str, path: str, body: Any = None, **options: Any) -> Any:
        send = partial(getattr(by, method), path, body, **{"format": "json"} | options)
        return code, method, path, send

    raw = {"format": None, "content_type": "application/json"}
    yield sent(400, curator, "post", "/api/sources/", {"nmae": "x"})
    yield sent(400, curator, "post", "/api/sources/", b"{", **raw)
    yield sent(400, curator, "get", "/api/executions/?state=asleep", **raw)
    yield sent(400, client, "post", start, {"tool": "report"}, HTTP_IDEMPOTENCY_KEY="")
    yield sent(401, APIClient(), "get", "/api/sources/")
    yield sent(403, client, "post", "/api/sources/", {"name": "x"})
    yield sent(403, curator, "post", f"/api/approvals/{ended.pk}/approve/", {})
    yield sent(404, client, "get", "/api/nowhere/")
    yield sent(404, client, "get", "/api/workflows/nowhere/")
    yield sent(404, client, "post", start, {"tool": "nowhere"})
    yield sent(404, client, "post", cancel)
    yield sent(404, curator, "post", "/api/workflows/enable/", {"source": "nowhere", "all": True})
    yield sent(404, curator, "get", "/api/tools?ids=nowhere")
    yield sent(404, curator, "get", "/api/sources/?page=99")
    yield sent(405, curator, "delete", "/api/workflows/report/")
    yield sent(405, curator, "options", "/api/sources/")
    yield sent(406, curator, "get", "/api/sources/", HTTP_ACCEPT="text/html", **raw)
    yield sent(406, client, "get", "/api/schema/", HTTP_ACCEPT="text/html", **raw)
    yield sent(409, client, "post", start, {"tool": "report", "arguments": {"n": 2}}, **key)
    yield sent(409, curator, "post", cancel)
    yield sent(409, curator, "post", f"/api/executions/{ended.pk}/resolve/", {"ran": False})
    yield sent(409, curator, "post", f"/api/history/{outdated}/revert/")
    yield sent(411, curator, "post", "/api/sources/", b"", HTTP_TRANSFER_ENCODING="chunked", **raw)
    yield sent(413, curator, "post", "/api/sources/", large, **raw)
    yield sent(415, curator, "post", "/api/sources/", b"x", format=None, content_type="text/plain")
    yield sent(415, curator, "post", "/api/sources/", b"x", HTTP_CONTENT_ENCODING="gzip", **raw)
    yield sent(429, client, "post", start, {"tool": "report", "arguments": {"n": 3}})


@pytest.mark.django_db(transaction=True)
def test_every_refusal_is_the_problem_that_the_document_describes(subtests):
    """Some had no kind, an `execution_id` that was described nowhere, or a status that was."""
    seen = set()
    for code, method, path, send in provoke():
        with subtests.test(f"{code} {method} {path}"):
            response = send()
            assert response.status_code == code, response.content
            check_problem(method, path, response)
            seen.add(code)
    assert seen == {400, 401, 403, 404, 405, 406, 409, 411, 413, 415, 429}


@pytest.mark.django_db
def test_the_document_is_made_once(monkeypatch):
    """It took half a second of CPU each time, so that a few hundred requests kept everyone else waiting."""
    first = agent().get("/api/schema/")
    monkeypatch.setattr("drf_spectacular.generators.SchemaGenerator.get_schema", None)
    again = administrator().get("/api/schema/")
    assert again.status_code == 200 and again.content == first.content
