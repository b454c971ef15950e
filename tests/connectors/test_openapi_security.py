"""Who we are at a document's API, and which operations want to know somebody else."""

import json
from typing import Any

import pytest

from connectors.http_tools.openapi.document import Document
from connectors.http_tools.openapi.operations import settings_for
from tests.connectors.openapi import document, read

CLIENT = {"type": "oauth2", "flows": {"clientCredentials": {"tokenUrl": "https://auth.example.com/token"}}}
CODE = {"type": "oauth2", "flows": {"authorizationCode": {"tokenUrl": "https://auth.example.com/token"}}}
SCHEMES = {
    "key": {"type": "apiKey", "in": "header", "name": "X-Key"},
    "query": {"type": "apiKey", "in": "query", "name": "key"},
    "cookie": {"type": "apiKey", "in": "cookie", "name": "session"},
    "bearer": {"type": "http", "scheme": "Bearer"},
    "basic": {"type": "http", "scheme": "basic"},
    "digest": {"type": "http", "scheme": "digest"},
    "client": CLIENT,
    "code": CODE,
    "connect": {"type": "openIdConnect", "openIdConnectUrl": "https://auth.example.com"},
    "tls": {"type": "mutualTLS"},
}


def api(
    *requirements: list[dict[str, Any]] | None, usual: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    paths = {
        f"/{n}": {"get": {"operationId": f"op{n}"} | ({} if one is None else {"security": one})}
        for n, one in enumerate(requirements)
    }
    further = {} if usual is None else {"security": usual}
    return document(paths, components={"securitySchemes": SCHEMES}, **further)


def settings_of(raw: dict[str, Any], *secrets: str) -> dict[str, str]:
    return settings_for(Document.read(json.dumps(raw).encode()), frozenset(secrets))


@pytest.mark.parametrize(
    ("scheme", "settings"),
    [
        ("key", {"authentication": "api_key", "api_key_in": "header", "api_key_name": "X-Key"}),
        ("query", {"authentication": "api_key", "api_key_in": "query", "api_key_name": "key"}),
        ("bearer", {"authentication": "bearer"}),
        ("basic", {"authentication": "basic"}),
        (
            "client",
            {
                "authentication": "oauth_client_credentials",
                "oauth_token_url": "https://auth.example.com/token",
            },
        ),
        ("code", {"authentication": "bearer"}),
        ("connect", {"authentication": "bearer"}),
    ],
)
def test_a_new_source_authenticates_as_the_document_says(scheme, settings):
    """C1.4: a token that somebody got by other flows is a bearer token."""
    raw = api([{scheme: []}])
    assert settings_of(raw) == settings
    assert len(read(raw).tools) == 1


def test_the_secret_that_is_given_decides_between_several_ways():
    """C1.4."""
    raw = api([{"key": []}, {"bearer": []}], [{"key": []}])
    assert settings_of(raw)["authentication"] == "api_key"
    assert settings_of(raw, "token") == {"authentication": "bearer"}
    assert settings_of(document({}), "token") == {"authentication": "bearer"}
    assert settings_of(document({})) == {"authentication": "none"}


@pytest.mark.parametrize(
    ("requirement", "told"),
    [
        ([{"cookie": []}], '"cookie", which is apiKey cookie and not supported'),
        ([{"digest": []}], "http digest"),
        ([{"tls": []}], "mutualTLS"),
        ([{"key": [], "bearer": []}], '"key" and "bearer" together'),
        ([{"basic": []}], '"basic" (a user name and a password), but the source has an API key in X-Key'),
        ([{"query": []}], '"query" (an API key), but the source has an API key in X-Key'),
        ([{"nowhere": []}], "which the document does not describe"),
        (
            [{"basic": []}, {"bearer": []}],
            '"basic" (a user name and a password), but the source has an API key in X-Key; or "bearer"',
        ),
    ],
)
def test_an_operation_that_wants_something_else_is_refused(requirement, told):
    """C1.4: the others of the document are not."""
    found = read(api([{"key": []}], [{"key": []}], requirement))
    assert [tool.config.name for tool in found.tools] == ["op0", "op1"]
    (refused,) = found.refused
    assert refused.reason.startswith("It requires ") and told in refused.reason
    assert refused.pointer == "/paths/~12/get/security"


@pytest.mark.parametrize("requirement", [[], [{}], [{"cookie": []}, {}], [{"cookie": []}, {"key": []}], None])
def test_an_operation_that_wants_nothing_else_is_fine(requirement):
    """C1.4: also where the whole document wants something."""
    assert len(read(api([{"key": []}], requirement, usual=[{"key": []}])).tools) == 2
