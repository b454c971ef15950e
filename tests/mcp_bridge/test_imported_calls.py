"""Operations of imported documents, called over MCP: what arrives at the API, and what agents get."""

import json
from collections.abc import Callable, Iterator
from email import message_from_bytes
from email.message import Message
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client as Browser
from mcp.types import Tool

from catalogue.connections import close_connectors
from catalogue.imports.openapi import OpenApiImport, OpenApiImportRequest, import_document
from catalogue.models import Source, Workflow
from connectors.background import run_in_background_loop
from executions.models import Execution
from tests.connectors.http_tool_hosts import http_tool_hosts
from tests.connectors.openapi import body_of, document
from tests.engines.target_api import Arrived, Reply, TargetApi, running_target_api
from tests.mcp_bridge.conftest import Connect
from tests.mcp_bridge.database import in_database

TEXT = {"type": "string"}
KEY = {"type": "apiKey", "in": "header", "name": "X-Key"}
SECRET = "hunter2-hunter2"
MULTIPART = "multipart/form-data"

Import = Callable[..., Any]


@pytest.fixture
def api() -> Iterator[TargetApi]:
    def answer(_: TargetApi, request: Arrived) -> Reply:
        return Reply(200, {"done": True})

    with http_tool_hosts("127.0.0.1"), running_target_api(answer=answer) as running:
        yield running
        run_in_background_loop(close_connectors())


@pytest.fixture
def bring(api: TargetApi) -> Import:
    """Imports operations by path and method, exposed, for the API of the test."""

    @in_database
    def bring(
        paths: dict[str, Any], *, settings: Any = None, secrets: Any = None, **further: Any
    ) -> OpenApiImport:
        raw = document(paths, servers=[{"url": api.base_url}], **further)
        request = OpenApiImportRequest(
            content=json.dumps(raw).encode(), settings=settings or {}, secrets=secrets or {}, expose=True
        )
        outcome = import_document(request)
        assert not outcome.refused
        return outcome

    return bring


def operation(name: str, **further: Any) -> dict[str, Any]:
    return {"operationId": name, **further}


async def tools_of(connect: Connect) -> dict[str, Tool]:
    async with connect() as client:
        return {tool.name: tool for tool in (await client.list_tools()).tools}


async def call(connect: Connect, name: str, arguments: dict[str, Any]) -> Any:
    async with connect() as client:
        # As clients do that check what they get against the list.
        await client.list_tools()
        return await client.call_tool(name, arguments)


NUMBERED = {
    "200": {
        "content": {
            "application/json": {
                "schema": {"type": "object", "required": ["id"], "properties": {"id": {"type": "number"}}}
            }
        }
    }
}
"""What n8n says of its executions, whose ids are texts."""


async def test_an_answer_unlike_its_documentation_is_delivered_and_curators_are_told(api, bring, connect):
    """A7.4, C1.4: documents are often wrong about answers, which is no fault of whoever asks."""
    await bring({"/executions/1": {"get": operation("get_execution", responses=NUMBERED)}})
    api.tell("GET", "/executions/1", Reply(200, {"id": "1", "status": "success"}))
    assert (await tools_of(connect))["get_execution"].output_schema is None

    result = await call(connect, "get_execution", {})

    assert not result.is_error and result.structured_content == {"id": "1", "status": "success"}
    page = await in_database(_page_of_execution)()
    assert "does not match the output schema that the API documents" in page and "/id: " in page


async def test_a_curator_may_have_documented_answers_promised(api, bring, connect):
    """A7.4: the source's setting; then clients have the schema, and what breaks it is an error to them."""
    paths = {"/executions/1": {"get": operation("get_execution", responses=NUMBERED)}}
    await bring(paths)
    await in_database(_promise)()
    api.tell("GET", "/executions/1", Reply(200, {"id": 1}), Reply(200, {"id": "1"}))
    listed = (await tools_of(connect))["get_execution"].output_schema
    assert listed is not None and listed["properties"]["id"]["type"] == ["number", "null"]

    kept = await call(connect, "get_execution", {})
    broken = await call(connect, "get_execution", {})

    assert not kept.is_error and kept.structured_content == {"id": 1}
    assert broken.is_error and '"1"' in broken.content[0].text


def _promise() -> None:
    source = Source.objects.get()
    source.config = source.config | {"promise_output_schemas": True}
    source.save()


def _page_of_execution() -> str:
    admin = get_user_model().objects.create_superuser("admin", "admin@example.com", "pw")
    browser = Browser()
    browser.force_login(admin)
    key = Execution.objects.get().pk
    return browser.get(f"/admin/executions/execution/{key}/change/").content.decode()


SECURITY: dict[str, tuple[Any, bool]] = {
    "wants it": ([{"key": []}], True),
    "says nothing of its own": (None, True),
    "takes it or nothing": ([{}, {"key": []}], True),
    "wants none": ([{}], False),
    "takes back what all others want": ([], False),
    "takes another one or nothing": ([{"cookie": []}, {}], False),
}


@pytest.mark.parametrize("case", SECURITY)
async def test_credentials_go_to_who_wants_them(api, bring, connect, case):
    """E6: an operation that is declared anonymous gets none; some APIs answer 401 to it."""
    said, is_sent = SECURITY[case]
    security = {} if said is None else {"security": said}
    cookie = {"type": "apiKey", "in": "cookie", "name": "session"}
    await bring(
        {"/things": {"get": operation("things", **security)}, "/others": {"get": operation("others")}},
        components={"securitySchemes": {"key": KEY, "cookie": cookie}},
        security=[{"key": []}],
        secrets={"api_key": SECRET},
    )

    assert not (await call(connect, "things", {})).is_error

    assert api.last.header("X-Key") == (SECRET if is_sent else None)


async def test_credentials_go_where_a_document_knows_of_none(api, bring, connect):
    """E6: empty lists in a document that wants nothing anywhere take nothing back."""
    await bring({"/things": {"get": operation("things", security=[])}}, secrets={"token": SECRET})
    assert not (await call(connect, "things", {})).is_error
    assert api.last.header("Authorization") == f"Bearer {SECRET}"


async def test_a_bearer_token_does_for_a_key_in_the_header_authorization(api, bring, connect):
    """E6: documents call it a key, and mean "Bearer ..."."""
    key = {"type": "apiKey", "in": "header", "name": "authorization"}
    await bring(
        {"/things": {"get": operation("things")}},
        components={"securitySchemes": {"key": key}},
        security=[{"key": []}],
        secrets={"token": SECRET},
    )
    assert not (await call(connect, "things", {})).is_error
    assert api.last.header("Authorization") == f"Bearer {SECRET}"


ACCEPTED: dict[str, tuple[dict[str, Any], str]] = {
    "JSON and others": ({"enum": ["text/csv", "*/*", "application/json"]}, "application/json"),
    "no JSON": ({"enum": ["text/event-stream", "text/csv"]}, "text/event-stream"),
    "one": ({"const": "application/vnd.api+json"}, "application/vnd.api+json"),
    "anything": ({}, "application/json, text/*;q=0.9, */*;q=0.5"),
    "no list": ({"enum": 7}, "application/json, text/*;q=0.9, */*;q=0.5"),
    "no media type": ({"enum": [7, "a\r\nX-Key: b"]}, "application/json, text/*;q=0.9, */*;q=0.5"),
}


@pytest.mark.parametrize("case", ACCEPTED)
async def test_an_api_that_takes_only_some_values_of_accept_gets_one(api, bring, connect, case):
    """C1.4: Airflow and ReadMe list them, and servers made from such documents refuse every other."""
    said, sent = ACCEPTED[case]
    accept = {"name": "accept", "in": "header", "required": True, "schema": {"type": "string"} | said}
    await bring({"/log": {"get": operation("log", parameters=[accept])}})
    assert not (await tools_of(connect))["log"].input_schema["properties"]

    assert not (await call(connect, "log", {})).is_error

    assert api.last.header("Accept") == sent


async def test_an_entry_of_an_object_in_the_query_is_not_the_sources_key(api, bring, connect):
    """E6: the call is refused, and the reason names the entry."""
    everything = {"name": "all", "in": "query", "schema": {"type": "object"}}
    await bring(
        {"/things": {"get": operation("things", parameters=[everything])}},
        components={"securitySchemes": {"key": KEY | {"in": "query", "name": "key"}}},
        security=[{"key": []}],
        secrets={"api_key": SECRET},
    )
    assert not (await call(connect, "things", {"all": {"q": "a"}})).is_error
    assert sorted(api.last.query) == [("key", SECRET), ("q", "a")]
    refused = await call(connect, "things", {"all": {"key": "mine"}})
    assert refused.is_error and "key is reserved for the source's keys; leave it out" in str(refused.content)


def parts_of(request: Arrived) -> list[Message]:
    """As Python's own reader of MIME takes them apart."""
    head = f"Content-Type: {request.header('Content-Type')}\r\n\r\n".encode()
    whole = message_from_bytes(head + request.body)
    assert whole.get_content_type() == MULTIPART and not whole.defects
    payload = whole.get_payload()
    assert isinstance(payload, list)
    return payload


def told(part: Message) -> tuple[Any, ...]:
    return (
        part.get_param("name", header="content-disposition"),
        part.get_filename(),
        part["content-type"],
        part.get_payload(decode=True),
    )


UPLOAD = {
    "type": "object",
    "required": ["file", "purpose"],
    "properties": {
        "file": {"type": "string", "format": "binary", "description": "What is uploaded."},
        "purpose": TEXT,
        "count": {"type": "integer"},
        "labels": {"type": "array", "items": TEXT},
        "meta": {"type": "object", "properties": {"a": {"type": "integer"}}},
        "pages": {"type": "array", "items": {"type": "string", "format": "binary"}},
        "raw": {"type": "string", "contentMediaType": "image/png"},
    },
}


EMPTIABLE: dict[str, dict[str, Any]] = {
    "in the query": {"parameters": [{"name": "ids", "in": "query", "required": True}]},
    "in the query, with commas": {
        "parameters": [{"name": "ids", "in": "query", "required": True, "explode": False}]
    },
    "in a header": {"parameters": [{"name": "ids", "in": "header", "required": True}]},
    "in a form": {"form": "application/x-www-form-urlencoded"},
    "in a form with files": {"form": MULTIPART},
}


@pytest.mark.parametrize("case", EMPTIABLE)
@pytest.mark.parametrize("items", [TEXT, {"type": "string", "format": "binary"}], ids=["texts", "files"])
async def test_a_list_that_has_to_be_there_has_an_item_where_none_is_nothing(
    api, bring, connect, case, items
):
    """A2.5: only JSON can say an empty list; elsewhere the API would miss the argument."""
    schema = {"type": "array", "items": items}
    said = dict(EMPTIABLE[case])
    if form := said.pop("form", ""):
        said = body_of(
            {"type": "object", "required": ["ids"], "properties": {"ids": schema}}, media_type=form
        )
    else:
        said["parameters"] = [
            one | {"schema": {"$ref": "#/components/schemas/Ids"}} for one in said["parameters"]
        ]
    await bring(
        {"/things": {"put": operation("put_things", **said)}}, components={"schemas": {"Ids": schema}}
    )

    refused = await call(connect, "put_things", {"ids": []})
    assert refused.is_error and not api.arrived
    assert not (await call(connect, "put_things", {"ids": ["a"]})).is_error and api.arrived


@pytest.mark.parametrize("file", ["data:image/png;base64,###", "data:nothing", "data:a b;base64,AAAA"])
async def test_a_file_that_cannot_be_read_is_refused_before_anything_is_sent(api, bring, connect, file):
    """C5.3."""
    await bring({"/files": {"post": operation("upload", **body_of(UPLOAD, media_type=MULTIPART))}})
    result = await call(connect, "upload", {"file": file, "purpose": "p"})
    assert result.is_error and "Nothing was sent" in result.content[0].text and not api.arrived


DEMANDS: dict[str, tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]], str]] = {
    "one field, whichever": (
        {"minProperties": 1},
        [{"a": 1}, {"c": 1}],
        [{}],
        "at least one of a, b, c is required",
    ),
    "some of them": (
        {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        [{"a": 1}, {"a": 1, "b": 2}],
        [{}, {"c": 1}],
        "at least one of a, b is required",
    ),
    "together or another": (
        {"anyOf": [{"required": ["a", "b"]}, {"required": ["c"]}]},
        [{"a": 1, "b": 2}, {"c": 1}],
        [{"a": 1}],
        "one or more of these is required: a with b / c",
    ),
    "one and no other": (
        {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        [{"a": 1}, {"b": 1, "c": 2}],
        [{}, {"a": 1, "b": 2}],
        "exactly one of these is required: a / b",
    ),
}


@pytest.mark.parametrize("case", DEMANDS)
async def test_what_a_body_demands_as_a_whole_is_checked_before_it_is_sent(api, bring, connect, case):
    """A2.5: said without `anyOf` and `oneOf` at the root, which models' interfaces refuse."""
    demanded, good, bad, words = DEMANDS[case]
    number = {"type": "integer"}
    schema = {"type": "object", "properties": dict.fromkeys("abc", number)} | demanded
    parameter = {"name": "shop", "in": "path", "required": True, "schema": TEXT}
    await bring({"/{shop}": {"patch": operation("change", parameters=[parameter], **body_of(schema))}})
    assert not {"anyOf", "oneOf", "allOf"} & (await tools_of(connect))["change"].input_schema.keys()

    async with connect() as client:
        for arguments in good:
            assert not (await client.call_tool("change", {"shop": "s"} | arguments)).is_error
        assert [request.json for request in api.arrived] == good
        for arguments in bad:
            refused = await client.call_tool("change", {"shop": "s"} | arguments)
            assert refused.is_error and words in refused.content[0].text
    assert len(api.arrived) == len(good)


async def test_agents_are_told_of_which_api_a_tool_is(api, bring, connect):
    """A7.1: operations that are described alike are told apart by their calls."""
    alike = {"summary": "Ping."}
    await bring(
        {"/a/ping": {"get": operation("ping", **alike)}, "/b/ping": {"get": operation("ping_b", **alike)}},
        info={"title": "Orders API", "version": "1"},
    )
    other = document({"/ping": {"get": operation("ping", **alike)}}, servers=[{"url": f"{api.base_url}/two"}])
    other["info"] = {"title": "Stock API", "version": "1"}
    await in_database(import_document)(OpenApiImportRequest(content=json.dumps(other).encode(), expose=True))

    names = await in_database(lambda: set(Workflow.objects.values_list("tool_name", flat=True)))()
    tools = await tools_of(connect)

    assert sorted(tools[name].description or "" for name in names) == [
        "Ping.\n\nAPI: Orders API, GET /a/ping",
        "Ping.\n\nAPI: Orders API, GET /b/ping",
        "Ping.\n\nAPI: Stock API",
    ]
