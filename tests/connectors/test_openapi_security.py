"""Authentication of a document's API, and operations that require another."""

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
    "app": {"type": "apiKey", "in": "header", "name": "X-App"},
    "third": {"type": "apiKey", "in": "header", "name": "X-Third"},
    "fourth": {"type": "apiKey", "in": "header", "name": "X-Fourth"},
    "version": {"type": "apiKey", "in": "header", "name": "X-Version"},
    "header": {"type": "apiKey", "in": "header", "name": "Authorization"},
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
        ("cookie", {"authentication": "api_key", "api_key_in": "cookie", "api_key_name": "session"}),
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


def test_the_cookie_of_a_session_is_the_last_of_several_ways():
    """C1.4: frameworks list it first, and it is seldom what a program has."""
    assert settings_of(api([{"cookie": []}, {"bearer": []}])) == {"authentication": "bearer"}


@pytest.mark.parametrize(
    ("requirement", "told"),
    [
        (
            [{"cookie": []}],
            '"cookie" (an API key), but the source has an API key in X-Key (add session (cookie) to ',
        ),
        ([{"digest": []}], "http digest"),
        ([{"tls": []}], "mutualTLS"),
        (
            [{"key": [], "bearer": []}],
            '"bearer" (a bearer token or OAuth client credentials) in addition to "key"',
        ),
        ([{"key": [], "tls": []}], '"tls", which is mutualTLS and not supported'),
        ([{"basic": []}], '"basic" (a user name and a password), but the source has an API key in X-Key'),
        (
            [{"query": []}],
            '"query" (an API key), but the source has an API key in X-Key (add key (query) to the source as '
            "an extra key, and import again)",
        ),
        ([{"nowhere": [], "basic": []}], '"basic" (a user name and a password), but the source has an API'),
        (
            [{"basic": []}, {"bearer": []}],
            '"basic" (a user name and a password), but the source has an API key in X-Key; or "bearer"',
        ),
    ],
)
def test_an_operation_that_wants_something_else_is_refused(requirement, told):
    """C1.4: the others of the document are not."""
    found = read(api([{"key": []}], [{"key": []}], requirement))
    assert [tool.definition.name for tool in found.tools] == ["op0", "op1"]
    (refused,) = found.refused
    assert refused.reason.startswith("It requires ") and told in refused.reason
    assert refused.pointer == "/paths/~12/get/security"


@pytest.mark.parametrize(
    ("requirement", "is_noted", "anonymous"),
    [
        ([{"nowhere": []}], True, False),
        ([{"nowhere": [], "key": []}], True, False),
        ([{"nowhere": []}, {"basic": []}], True, False),
        ([{"nowhere": []}, {"key": []}], False, False),
        ([{"nowhere": []}, {}], False, True),
    ],
)
def test_a_scheme_that_the_document_does_not_describe_is_up_to_the_source(requirement, is_noted, anonymous):
    """C1.4: only who knows the API can say what is required; a described way is taken before it."""
    first, tool = read(api([{"key": []}], requirement)).tools
    assert not first.notes and tool.definition.metadata.get("anonymous", False) is anonymous
    note = 'It requires "nowhere", which the document does not describe. The source\'s authentication is used'
    assert [told.startswith(note) for told in tool.notes] == [True] * is_noted


@pytest.mark.parametrize("requirement", [[], [{}], [{"cookie": []}, {}], [{"cookie": []}, {"key": []}], None])
def test_an_operation_that_wants_nothing_else_is_fine(requirement):
    """C1.4: also where the whole document wants something."""
    assert len(read(api([{"key": []}], requirement, usual=[{"key": []}])).tools) == 2


TWO = {"key": [], "app": []}
X_KEY = {"authentication": "api_key", "api_key_in": "header", "api_key_name": "X-Key"}
X_APP = {"extra_key_1_in": "header", "extra_key_1_name": "X-App"}
QUERY = {"extra_key_1_in": "query", "extra_key_1_name": "key"}


@pytest.mark.parametrize(
    ("requirement", "settings"),
    [
        (TWO, X_KEY | X_APP),
        (TWO | {"query": []}, X_KEY | X_APP | {"extra_key_2_in": "query", "extra_key_2_name": "key"}),
        ({"query": [], "bearer": []}, {"authentication": "bearer"} | QUERY),
        ({"query": [], "client": []}, {"authentication": "oauth_client_credentials"} | QUERY),
        ({"bearer": [], "connect": []}, {"authentication": "bearer"}),
        ({"bearer": [], "cookie": []}, {"extra_key_1_in": "cookie", "extra_key_1_name": "session"}),
    ],
)
def test_schemes_that_are_required_together_become_extra_keys(requirement, settings):
    """C1.4: a new source has the names, and only the values are missing."""
    raw = api([requirement], [{}])
    assert settings_of(raw).items() >= settings.items()
    assert [tool.definition.metadata.get("anonymous", False) for tool in read(raw).tools] == [False, True]


@pytest.mark.parametrize(
    "requirement",
    [
        {"bearer": [], "basic": []},
        {"basic": [], "header": []},
        {"cookie": [], "digest": []},
        {"key": [], "app": [], "query": [], "third": [], "fourth": []},
    ],
)
def test_schemes_that_no_source_has_together_are_refused(requirement):
    """C1.4: both in one header, by a challenge, or too many."""
    raw = api([requirement])
    assert settings_of(raw) == {"authentication": "none"}
    (refused,) = read(raw).refused
    assert refused.reason.startswith("It requires ")


@pytest.mark.parametrize("requirement", [{"app": []}, {"key": []}, TWO, {"version": [], "app": []}])
def test_an_operation_may_require_any_of_the_sources_keys_and_headers(requirement):
    """C1.4: also one alone; an agent is not asked for what the source sends."""
    raw = api([requirement])
    raw["paths"]["/0"]["get"]["parameters"] = [
        {"name": name, "in": where, "required": True, "schema": {"type": "string"}}
        for name, where in (("x-app", "header"), ("x-version", "header"), ("id", "query"))
    ]
    found = read(raw, settings=X_KEY | X_APP | {"extra_headers": {"X-Version": "1"}})
    (tool,) = found.tools
    assert not tool.definition.metadata.get("anonymous", False)
    assert [*tool.definition.input_schema["properties"]] == ["id"]
