"""Swagger 2.0 documents, which many frameworks still generate: the same tools as from OpenAPI 3."""

import json
from typing import Any

import pytest

from connectors.http_tools.openapi.document import Document, UnusableDocument, base_url_of
from connectors.http_tools.openapi.operations import settings_for
from connectors.http_tools.request import form_pairs, query_of
from tests.connectors.openapi import operation_in, read, request_of, sent_by, the_refusal, the_tool

HOST = {"host": "api.example.com", "basePath": "/v1"}
ORDER = {"type": "object", "required": ["sku"], "properties": {"sku": {"type": "string"}}}
FILE = {"name": "file", "in": "formData", "type": "file"}


def swagger(operation: dict[str, Any], *, path: str = "/orders", **further: Any) -> dict[str, Any]:
    raw = {"swagger": "2.0", "info": {"title": "Orders API", "version": "1"}} | HOST
    return raw | {"paths": {path: {"post": {"operationId": "op"} | operation}}} | further


def items(name: str, where: str, **further: Any) -> dict[str, Any]:
    return {"name": name, "in": where, "type": "array", "items": {"type": "string"}} | further


def test_parameters_have_the_schemas_and_formats_that_the_document_gives_them():
    """C1.4: lists are separated by commas unless it says otherwise."""
    raw = swagger(
        {
            "parameters": [
                {"$ref": "#/parameters/id"},
                {"name": "limit", "in": "query", "type": "integer", "maximum": 9, "description": "How many."},
                {"name": "X-Shop", "in": "header", "type": "string", "x-nullable": True},
                items("a", "query"),
                items("b", "query", collectionFormat="multi"),
                items("c", "query", collectionFormat="pipes"),
                items("d", "query", collectionFormat="tsv"),
            ]
        },
        path="/orders/{id}",
        parameters={"id": {"name": "id", "in": "path", "type": "string", "required": True, "maxLength": 5}},
    )
    tool = the_tool(raw)
    properties = tool.definition.input_schema["properties"]
    assert properties["id"] == {"type": "string", "maxLength": 5}
    assert properties["limit"] == {"type": "integer", "maximum": 9, "description": "How many."}
    assert properties["X-Shop"] == {"type": "string"} and tool.definition.input_schema["required"] == ["id"]
    assert [note for note in tool.notes if '"d"' in note]
    sent = request_of(tool, {"id": "7", "limit": 3, "a": ["x", "y"], "b": ["x", "y"], "c": ["x", "y"]})
    assert sent.url.endswith("/v1/orders/7")
    assert query_of(sent) == [("limit", "3"), ("a", "x,y"), ("b", "x"), ("b", "y"), ("c", "x|y")]


@pytest.mark.parametrize("consumes", [None, ["application/json", "application/xml"], ["multipart/form-data"]])
def test_a_body_becomes_the_arguments_of_its_fields(consumes):
    """C1.4: by references to definitions and to shared parameters, also of the whole path."""
    raw = swagger({}, definitions={"Order": ORDER | {"x-nullable": True}})
    raw["parameters"] = {"order": {"name": "order", "in": "body", "required": True}}
    raw["parameters"]["order"]["schema"] = {"$ref": "#/definitions/Order"}
    raw["paths"]["/orders"]["parameters"] = [{"$ref": "#/parameters/order"}]
    tool = the_tool(raw | ({"consumes": consumes} if consumes else {}))
    assert tool.definition.input_schema == {
        "type": "object", "properties": {"sku": {"type": "string"}}, "required": ["sku"],
        "additionalProperties": False,
    }  # fmt: skip
    assert request_of(tool, {"sku": "a"}).body == {"sku": "a"}


def test_a_form_has_an_argument_for_each_field_and_joins_lists_by_commas():
    """C1.4."""
    fields = [
        {"name": "sku", "in": "formData", "type": "string", "required": True},
        items("tags", "formData"),
        items("each", "formData", collectionFormat="multi"),
    ]
    tool = the_tool(swagger({"parameters": fields, "consumes": ["application/x-www-form-urlencoded"]}))
    assert tool.definition.metadata["body_format"] == "form" and tool.definition.input_schema["required"] == [
        "sku"
    ]
    sent = request_of(tool, {"sku": "a", "tags": ["x", "y"], "each": ["x", "y"]})
    assert form_pairs(sent.body) == [("sku", "a"), ("tags", "x,y"), ("each", "x"), ("each", "y")]


def test_the_fields_of_a_form_add_to_those_of_its_path():
    """C1.4: an operation's own wins."""
    token = {"name": "token", "in": "formData", "type": "string", "required": True}
    raw = swagger({"parameters": [FILE, {"name": "kind", "in": "formData", "type": "integer"}]})
    raw["paths"]["/orders"]["parameters"] = [token, {"name": "kind", "in": "formData", "type": "string"}]
    schema = the_tool(raw).definition.input_schema
    assert schema["properties"].keys() == {"token", "file", "kind"} and schema["required"] == ["token"]
    assert schema["properties"]["kind"] == {"type": "integer"}


def test_a_form_with_files_is_sent_in_parts():
    """C1.4: whatever the operation consumes."""
    several = items("files", "formData", items={"type": "file"}, collectionFormat="multi")
    tool = the_tool(swagger({"parameters": [FILE | {"required": True}, several]}))
    assert tool.definition.metadata["body_format"] == "multipart"
    assert {name: place.file for name, place in operation_in(tool).arguments.items()} == {
        "file": True, "files": True
    }  # fmt: skip


NAME = {"type": "object", "properties": {"name": {"type": "string"}}}
CONTENT = {"type": "object", "required": ["content"], "properties": {"content": {"type": "string"}}}
WORD = {"type": "string"}


@pytest.mark.parametrize(
    ("bodies", "given", "sent"),
    [
        ({"a": NAME, "b": {"properties": {"size": {}}}}, {"name": "n", "size": 1}, {"name": "n", "size": 1}),
        ({"a": NAME, "b": {"$ref": "#/definitions/Order"}}, {"sku": "s"}, {"sku": "s"}),
        ({"a": NAME, "b": CONTENT}, {"name": "n", "content": "c"}, {"name": "n", "content": "c"}),
        ({"a": CONTENT, "b": ORDER}, {"body": {"sku": "s"}}, {"sku": "s"}),
        ({"a": CONTENT, "!b": ORDER}, {"sku": "s"}, {"sku": "s"}),
        ({"!a": NAME, "!b": CONTENT}, {"name": "n", "content": "c"}, {"name": "n", "content": "c"}),
        ({"email": WORD, "name": WORD}, {"email": "e", "name": "n"}, {"email": "e", "name": "n"}),
        (
            {"!id": {"type": "integer"}, "user": NAME},
            {"id": 1, "user": {"name": "n"}},
            {"id": 1, "user": {"name": "n"}},
        ),
        ({"a": WORD, "b": WORD, "c": WORD}, {"c": "x"}, {"c": "x"}),
    ],
)
def test_several_bodies_are_sent_as_one(bodies, given, sent):
    """C1.4: which 2.0 does not allow; objects by their fields, other values by their names."""
    parameters = [
        {"in": "body", "name": name.strip("!"), "required": name.startswith("!"), "schema": schema}
        for name, schema in bodies.items()
    ]
    tool = the_tool(swagger({"parameters": parameters}, definitions={"Order": ORDER}))
    media_type, body = sent_by(tool, given)
    assert (media_type, json.loads(body)) == ("application/json", sent)
    assert "The document describes several bodies," in tool.notes[0]


@pytest.mark.parametrize("field", [FILE, {"name": "file", "in": "formData", "type": "string"}])
@pytest.mark.parametrize("consumes", [[], ["application/json"], ["multipart/form-data"]])
def test_a_body_beside_a_form_is_a_part_of_it(field, consumes):
    """C1.4: as frameworks describe a part that is JSON."""
    body = {"in": "body", "name": "order", "required": True, "schema": {"$ref": "#/definitions/Order"}}
    raw = swagger({"parameters": [body, field | {"required": True}], "consumes": consumes})
    tool = the_tool(raw | {"definitions": {"Order": ORDER}})
    assert tool.definition.input_schema["required"] == ["order", "file"]
    media_type, content = sent_by(tool, {"order": {"sku": "a"}, "file": "text"})
    assert media_type.startswith("multipart/form-data")
    assert b'name="order"\r\nContent-Type: application/json\r\n\r\n{"sku":"a"}\r\n' in content
    assert b'name="file"' in content and "several bodies" in tool.notes[0]


def test_the_response_describes_the_output():
    """C1.4: also of a shared response."""
    raw = swagger({"responses": {"200": {"$ref": "#/responses/order"}}}, definitions={"Order": ORDER})
    raw["responses"] = {"order": {"description": "", "schema": {"$ref": "#/definitions/Order"}}}
    assert the_tool(raw).definition.output_schema["properties"].keys() == {"sku"}


@pytest.mark.parametrize(
    ("further", "url"),
    [
        (HOST, "https://api.example.com/v1"),
        (HOST | {"schemes": ["http"]}, "http://api.example.com/v1"),
        (HOST | {"schemes": ["wss", "http", "https"]}, "https://api.example.com/v1"),
        ({"host": "localhost:8080", "basePath": "/"}, "http://localhost:8080"),
    ],
)
def test_host_base_path_and_schemes_are_the_base_url(further, url):
    """C1.4."""
    raw = {"swagger": "2.0", "paths": {}} | further
    assert base_url_of(Document.read(json.dumps(raw).encode()), "") == url


def test_without_a_host_the_base_url_must_be_given():
    """C1.4."""
    with pytest.raises(UnusableDocument, match=r'only has the server "/v1"\. Specify the base URL'):
        base_url_of(Document.read(b'{"swagger": "2.0", "basePath": "/v1", "paths": {}}'), "")


@pytest.mark.parametrize(
    ("further", "told"),
    [
        ({"host": 7}, "The document's host is of the type integer, but must be a string such as"),
        ({"host": ["a.example.com"]}, "The document's host is of the type array"),
        (HOST | {"basePath": {"v": 1}}, "The document's basePath is of the type object"),
    ],
)
def test_a_host_that_is_no_text_is_no_address(further, told):
    """C1.4: the document is refused with the reason, and another base URL can be given."""
    document = Document.read(json.dumps({"swagger": "2.0", "paths": {}} | further).encode())
    with pytest.raises(UnusableDocument, match=rf"{told}.* Correct it, or: Specify the base URL"):
        base_url_of(document, "")
    assert base_url_of(document, "https://api.example.com/v2") == "https://api.example.com/v2"


@pytest.mark.parametrize(
    ("scheme", "settings"),
    [
        ({"type": "basic"}, {"authentication": "basic"}),
        (
            {"type": "apiKey", "in": "query", "name": "key"},
            {"authentication": "api_key", "api_key_in": "query", "api_key_name": "key"},
        ),
        (
            {"type": "oauth2", "flow": "application", "tokenUrl": "https://example.com/token", "scopes": {}},
            {"authentication": "oauth_client_credentials", "oauth_token_url": "https://example.com/token"},
        ),
        ({"type": "oauth2", "flow": "implicit", "authorizationUrl": "/"}, {"authentication": "bearer"}),
    ],
)  # fmt: skip
def test_security_definitions_decide_the_authentication(scheme, settings):
    """C1.4."""
    raw = swagger({"security": [{"own": []}]}, securityDefinitions={"own": scheme})
    assert settings_for(Document.read(json.dumps(raw).encode()), frozenset()) == settings
    assert not read(raw).refused


@pytest.mark.parametrize(
    ("operation", "reason"),
    [
        ({"parameters": [{"$ref": "other.json#/a"}]}, "outside the document"),
        ({"parameters": {"a": 1}}, "must be a list"),
        ({"parameters": [7]}, "An object is required"),
    ],
)
def test_what_is_broken_is_refused_with_its_reason(operation, reason):
    """C1.4."""
    assert reason in the_refusal(swagger(operation)).reason


def test_duplicate_keys_are_still_seen():
    """C1.4: in paths, operations and parameters."""
    body = '{"get": {"operationId": "a", "operationId": "b"}, "put": {}, "put": {}, "post": {}}'
    text = f'{{"swagger": "2.0", "host": "a.example.com", "paths": {{"/a": {body}, "/b": {{}}, "/b": {{}}}}}}'
    found = read(text.encode())
    assert [tool.operation.method for tool in found.tools] == ["POST"]
    assert all("occurs twice" in one.reason for one in found.refused) and len(found.refused) >= 3


@pytest.mark.parametrize("version", ["2.0", "2", 2, 2.0, "2.0.0", "2.0.1"])
def test_every_spelling_of_version_2_is_read(version):
    """C1.4."""
    assert the_tool(swagger({}) | {"swagger": version}).definition.name == "op"


@pytest.mark.parametrize(
    ("further", "base_url"),
    [
        ({"schemes": ["HTTPS"]}, "https://api.example.com/v1"),
        ({"schemes": ["HTTP", "Https"]}, "https://api.example.com/v1"),
        ({"schemes": ["WSS", "HTTP"]}, "http://api.example.com/v1"),
        ({"schemes": [5, "http"]}, "http://api.example.com/v1"),
        ({"schemes": "https"}, "https://api.example.com/v1"),
    ],
)
def test_schemes_may_be_in_capitals(further, base_url):
    raw = swagger({}, **further)
    assert base_url_of(Document.read(json.dumps(raw).encode()), "") == base_url
    assert the_tool(raw).definition.metadata["path"] == "/orders"


def test_a_method_in_capitals_and_the_rest_of_a_path_are_read_as_in_openapi():
    """C1.4: Azure's documents mark a scope, which has slashes, beside its type."""
    scope = {
        "name": "scope",
        "in": "path",
        "required": True,
        "type": "string",
        "x-ms-skip-url-encoding": True,
    }
    body = {"name": "body", "in": "body", "schema": ORDER}
    raw = swagger({}, path="/{scope}/locks")
    raw["paths"]["/{scope}/locks"] = {"PUT": {"parameters": [scope, body]}}
    sent = request_of(the_tool(raw), {"scope": "/subscriptions/1", "body": {"sku": "a"}})
    assert (sent.method, sent.body) == ("PUT", {"sku": "a"})
    assert sent.url.endswith("/v1/subscriptions/1/locks")
