"""Documents that are wrong in any way: each operation is a tool or refused with a reason."""

import copy
import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from connectors.http_tools.openapi.document import Document, UnusableDocument
from connectors.http_tools.openapi.operations import operations_of
from tests.connectors.openapi import BASE, document, read
from tests.thoroughness import examples

A = {"$ref": "#/components/schemas/A"}
WHOLE: dict[str, Any] = document(
    {
        "/orders/{id}": {
            "parameters": [{"$ref": "#/components/parameters/Id"}],
            "servers": [{"url": BASE}],
            "get": {
                "operationId": "get",
                "tags": ["orders"],
                "security": [{"key": []}, {"flow": ["read"]}],
                "parameters": [{"name": "q", "in": "query", "style": "form", "explode": False, "schema": {}}],
                "responses": {"200": {"content": {"application/json": {"schema": A}}}},
            },
            "put": {
                "requestBody": {
                    "required": True,
                    "content": {
                        "application/json": {"schema": {"allOf": [{"$ref": "#/components/schemas/A"}]}}
                    },
                },
                "deprecated": False,
            },
            "patch": {
                "requestBody": {
                    "content": {
                        "application/json-patch+json": {"schema": {"type": "array", "items": {}}},
                        "application/merge-patch+json": {"schema": A, "example": {"a": None}},
                        "application/strategic-merge-patch+json": {
                            "schema": A,
                            "examples": {"x": {"value": "{}"}},
                        },
                    }
                }
            },
        },
        "/parts": {
            "post": {
                "requestBody": {
                    "content": {
                        "multipart/form-data": {
                            "schema": {
                                "oneOf": [A, {"allOf": [A, {"anyOf": [A, A]}]}],
                                "additionalProperties": {},
                            },
                            "encoding": {
                                "a": {"contentType": "text/csv", "headers": {"X-A": {"required": True}}}
                            },
                        },
                        "application/x-ndjson": {"schema": A},
                    }
                }
            }
        },
        "/rest/{path:.*}{?page}": {
            "$ref": "#/components/pathItems/Rest",
            "parameters": [{"name": "path", "in": "path", "x-multi-segment": True}],
            "additionalOperations": {"COPY": {}},
            "DELETE": {},
        },
        "/form": {
            "post": {
                "requestBody": {
                    "content": {
                        "application/x-www-form-urlencoded": {
                            "schema": {"properties": {"a": {"type": "array", "items": {"type": "string"}}}},
                            "encoding": {"a": {"style": "form"}},
                        }
                    }
                }
            }
        },
    },
    components={
        "schemas": {
            "A": {
                "type": "object",
                "required": ["a"],
                "properties": {
                    "a": {"type": "string", "enum": ["x"]},
                    "b": A,
                },
            }
        },
        "pathItems": {"Rest": {"get": {}, "parameters": [{"name": "page", "in": "query"}]}},
        "parameters": {"Id": {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}},
        "securitySchemes": {
            "key": {"type": "apiKey", "in": "header", "name": "X-Key"},
            "flow": {"type": "oauth2", "flows": {"clientCredentials": {"tokenUrl": "https://a.example.com"}}},
        },
    },
)


def places_in(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [path, *(place for key in keys for place in places_in(value[key], (*path, key)))]


PLACES = [place for place in places_in(WHOLE) if place]
REFERENCES = (
    "#",
    "#/components/pathItems/Rest",
    "#/",
    "#/paths",
    "#/components/schemas/A",
    "https://example.com",
)
WORDS = st.sampled_from((*REFERENCES, "", "object", "array", "path", "{", "x" * 3_000)) | st.text(max_size=8)
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
NAMES = ("$ref", "type", "allOf", "properties", "items", "in", "name", "schema", "content")
KEYS = st.sampled_from(NAMES) | st.text(max_size=5)
JUNK = st.recursive(
    st.none() | st.booleans() | NUMBERS | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


def replaced(raw: dict[str, Any], place: tuple[Any, ...], value: Any) -> None:
    """Where the place is gone already, nothing."""
    for step in place[:-1]:
        try:
            raw = raw[step]
        except (LookupError, TypeError):
            return
    if isinstance(raw, dict) or (isinstance(raw, list) and place[-1] in range(len(raw))):
        raw[place[-1]] = value


def outcome_of(content: bytes) -> tuple[list[str], int]:
    """The reasons of what is refused, and how many operations are neither a tool nor refused."""
    try:
        found = read(content, base_url=BASE, deprecated=True)
        operations = list(operations_of(Document.read(content)))
    except UnusableDocument as refusal:
        return [str(refusal)], 0
    return [one.reason for one in found.refused], len(operations) - len(found.tools) - len(found.refused)


@settings(max_examples=examples(300), suppress_health_check=[HealthCheck.too_slow])
@given(changes=st.lists(st.tuples(st.sampled_from(PLACES), JUNK), min_size=1, max_size=5))
def test_whatever_is_wrong_every_operation_is_a_tool_or_refused_with_a_reason(changes):
    """C1.4."""
    raw = copy.deepcopy(WHOLE)
    for place, value in changes:
        replaced(raw, place, value)
    reasons, lost = outcome_of(json.dumps(raw).encode())
    assert lost == 0 and all(len(reason) > 10 for reason in reasons)


@settings(max_examples=examples(300))
@given(content=st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode(errors="ignore")))
def test_whatever_the_bytes_they_are_a_document_or_refused_in_words(content):
    """C1.4."""
    for text in (content, b"openapi: 3.1.0\npaths: " + content, b'{"openapi": "3.1.0", "paths": ' + content):
        reasons, lost = outcome_of(text)
        assert lost == 0 and all(len(reason) > 10 for reason in reasons)
