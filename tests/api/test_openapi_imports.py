"""/api/openapi-imports/"""

import json

import pytest

from catalogue.models import Source, Workflow
from tests.api.clients import administrator, agent, problem_paths, staff_session
from tests.connectors.openapi import BASE, body_of, document

pytestmark = pytest.mark.django_db

PATH = "/api/openapi-imports/"
SECRET = "hunter2-hunter2"
ORDERS = document(
    {
        "/orders": {"get": {"operationId": "listOrders", "tags": ["orders"]}},
        "/upload": {"post": {"operationId": "upload", **body_of({}, media_type="multipart/mixed")}},
    }
)
TEXT = json.dumps(ORDERS)


def test_a_document_is_imported_after_a_dry_run_has_told_the_same():
    """C1.1, C1.4: what is refused is told with its reason and its place."""
    client = administrator()
    planned = client.post(PATH, {"document": TEXT, "dry_run": True}).json()
    assert not Source.objects.exists()
    done = client.post(PATH, {"document": TEXT}).json()

    assert planned == done | {"dry_run": True}
    assert (done["source"], done["is_new"], done["base_url"]) == ("api.example.com", True, BASE)
    assert done["tools"] == [
        {
            "tool_id": "listOrders",
            "name": "listOrders",
            "method": "GET",
            "path": "/orders",
            "tags": ["orders"],
            "change": "added",
            "exposed": False,
            "notes": [],
        }
    ]
    (refused,) = done["refused"]
    assert (
        refused["pointer"] == "/paths/~1upload/post/requestBody/content"
        and "multipart/mixed" in refused["reason"]
    )
    assert Workflow.objects.get().tool_name == "listOrders"


@pytest.mark.parametrize("word", ["credentials", "secrets"])
def test_a_secret_is_stored_encrypted_and_never_answered(word):
    """E6: called as sources call it, or as it was called before."""
    schemes = {"token": {"type": "http", "scheme": "bearer"}}
    raw = ORDERS | {"components": {"securitySchemes": schemes}, "security": [{"token": []}]}
    body = {"document": json.dumps(raw), word: {"token": SECRET}, "expose": True, "only": ["list*"]}
    done = administrator().post(PATH, body)
    assert done.status_code == 200 and SECRET not in done.content.decode()
    assert (done.json()["authentication"], done.json()["not_chosen"]) == ("bearer", 1)
    assert Source.objects.get().credentials == {"token": SECRET} and Workflow.objects.get().enabled


@pytest.mark.parametrize(
    ("body", "paths"),
    [
        ({}, ["/document"]),
        ({"document": TEXT, "prone": True}, ["/prone"]),
        ({"document": TEXT, "only": "list*"}, ["/only"]),
        ({"document": TEXT, "credentials": {"token": {}}}, ["/credentials/token"]),
        ({"document": "{}"}, ["/document"]),
        ({"document": '{"swagger": "1.2"}'}, ["/document"]),
        ({"document": TEXT, "base_url": "ftp://example.com"}, ["/document"]),
        ({"document": TEXT, "settings": {"token": SECRET}}, ["/document"]),
    ],
)
def test_what_cannot_be_imported_is_refused_by_field(body, paths):
    """A2.5, B4: with a sentence that quotes no secret."""
    refused = administrator().post(PATH, body)
    assert refused.status_code == 400 and problem_paths(refused) == paths
    assert SECRET not in refused.content.decode() and not Source.objects.exists()


def test_only_who_may_write_sources_imports():
    """B4: staff need the permission to add, or to change the one that there is."""
    body = {"document": TEXT, "source": "orders"}
    assert agent().post(PATH, body).status_code == 403
    client = staff_session("view_source", "add_source")
    assert client.post(PATH, {"document": TEXT}).status_code == 403
    assert client.post(PATH, body).status_code == 200
    assert client.post(PATH, body).status_code == 403


def test_keys_that_are_required_together_are_given_by_their_names():
    """C1.4: names may also be chosen, such as another order."""
    schemes = {name: {"type": "apiKey", "in": "header", "name": name} for name in ("DD-API", "DD-APP")}
    raw = ORDERS | {"components": {"securitySchemes": schemes}, "security": [{"DD-API": [], "DD-APP": []}]}
    settings = {"authentication": "api_key", "api_key_name": "DD-APP", "extra_key_1_name": "DD-API"}
    body = {"document": json.dumps(raw), "settings": settings, "credentials": {"extra_key_1": SECRET}}
    done = administrator().post(PATH, body)
    assert done.status_code == 200 and SECRET not in done.content.decode()
    assert done.json()["notes"] == ["Calls fail until source api.example.com has: API key."]
    assert Source.objects.get().credentials == {"extra_key_1": SECRET}
