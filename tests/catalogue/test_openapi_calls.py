"""Calls of imported operations: what a document allows is sent, and what arrives says what was meant."""

import asyncio
import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from email import message_from_bytes
from http.cookies import SimpleCookie
from operator import itemgetter
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from catalogue.argument_overrides import settle_arguments
from catalogue.imports.openapi import OpenApiImportRequest, import_document
from catalogue.models import Source, Workflow
from connectors.formats.json_schema import pointer_of
from connectors.http_tools.connector import HttpConfig, HttpConnector
from connectors.http_tools.tool import HttpOperation
from connectors.protocol import RunState
from connectors.testing import closing
from tests.connectors.http_tool_hosts import http_tool_hosts
from tests.engines.random_documents import (
    FORM,
    JSON,
    JSON_LINES,
    MULTIPART,
    VERSIONS,
    Call,
    Meant,
    RandomDocument,
    random_documents,
    text_of,
)
from tests.engines.target_api import Arrived, Reply, TargetApi, running_target_api
from tests.thoroughness import THOROUGH

OPERATIONS = 6
DOCUMENTS = (840 if THOROUGH else 60) // len(VERSIONS)
"""Of each version; together they have 5,000 calls, or 360."""
KEY = "hunter2-hunter2"
KEY_IN_A_HEADER = {"authentication": "api_key", "api_key_name": "X-Key"}


@pytest.fixture
def api() -> Iterator[TargetApi]:
    with (
        running_target_api(answer=lambda *_: Reply(200, {"done": True})) as running,
        http_tool_hosts("127.0.0.1"),
    ):
        yield running


@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.django_db(transaction=True)
@settings(max_examples=DOCUMENTS, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(data=st.data())
def test_what_a_document_allows_is_sent_and_arrives_as_it_was_meant(api, version, data):
    """C1.4, C5.1: every style of parameter and body that is imported, with values of every kind."""
    random = data.draw(random_documents(version, operations=OPERATIONS))
    content = json.dumps(random.raw | {"servers": [{"url": api.base_url}]}).encode()
    request = OpenApiImportRequest(content=content, prune=True)
    if not Source.objects.exists():
        request = replace(request, settings=KEY_IN_A_HEADER, secrets={"api_key": KEY})
    imported = import_document(request)
    assert not imported.refused
    workflows = {workflow.upstream_id: workflow for workflow in Workflow.objects.select_related("source")}
    asyncio.run(_make_calls(api, random, workflows))


async def _make_calls(api: TargetApi, random: RandomDocument, workflows: dict[str, Workflow]) -> None:
    config = HttpConfig.model_validate(KEY_IN_A_HEADER | {"base_url": api.base_url, "api_key": KEY})
    async with closing(HttpConnector(config)) as connector:
        for call in random.calls:
            try:
                await _make(api, connector, workflows[call.operation_id], call)
            except Exception as error:
                # Says more than a whole document made smaller, which takes minutes.
                error.add_note(f"{call.method} {call.path} {json.dumps(call.operation)}\n{call.meant}")
                raise


async def _make(api: TargetApi, connector: HttpConnector, workflow: Workflow, call: Call) -> None:
    said = arguments_of(HttpOperation.of(workflow.ref), call.meant)
    settled = settle_arguments(workflow.input_schema, {}, said)
    assert settled.problems == []
    api.arrived.clear()
    started = await connector.start(workflow.ref, settled.arguments, key=uuid4())
    assert started.snapshot is not None and started.snapshot.state != RunState.RUNNING
    (arrived,) = api.arrived
    assert_arrived(arrived, call)


def arguments_of(operation: HttpOperation, meant: Meant) -> dict[str, Any]:
    """The call by the tool's arguments, which have to be there for all that is meant."""
    arguments, unsaid = {}, dict(meant.said)
    for argument, place in operation.arguments.items():
        # Of a path's parameters that take slashes, the name has what says so.
        if (said := (place.place, place.name.partition(":")[0].strip("+*"))) in unsaid:
            arguments[argument] = unsaid.pop(said)
    assert not unsaid
    fields = (
        {place.name: argument for argument, place in operation.by_place["body"]} if meant.has_body else {}
    )
    if "" in fields:
        return arguments | {fields[""]: meant.body}
    named = meant.body if fields else {}
    return arguments | {fields[pointer_of([name])]: value for name, value in named.items()}


def assert_arrived(arrived: Arrived, call: Call) -> None:
    meant, expected = call.meant, call.expected
    assert (arrived.method, unquote(arrived.path)) == (call.method.upper(), expected.path)
    query = [pair for pair in arrived.query if pair[0] not in expected.json_in_query]
    assert sorted(query) == sorted(expected.query)
    in_json = {name: json.loads(text) for name, text in arrived.query if name in expected.json_in_query}
    assert_same(in_json, expected.json_in_query)
    cookies = {name: one.value for name, one in SimpleCookie(arrived.header("Cookie") or "").items()}
    for where, texts in (("header", {"X-H": arrived.header("X-H")}), ("cookie", cookies)):
        said = {name: text_of(value) for (place, name), value in meant.said.items() if place == where}
        said.pop("Content-Type", None)
        assert {name: text for name, text in texts.items() if text is not None} == said
    assert (arrived.header("X-Key") == KEY) == ("security" not in call.operation)
    media_type = (arrived.header("Content-Type") or "").partition(";")[0]
    if not meant.has_body:
        # A body with known fields of which none is given is an empty object.
        assert arrived.body in (b"", b"{}") or media_type in (FORM, MULTIPART)
        return
    assert media_type == meant.media_type or (not arrived.body and meant.body == {})
    if media_type == FORM:
        assert_form_arrived(arrived.form, meant.body)
    elif media_type == MULTIPART:
        assert_parts_arrived(arrived, meant)
    elif media_type in JSON_LINES:
        lines = arrived.body.decode().removesuffix("\n").split("\n")
        assert_same([json.loads(line) for line in lines], meant.body)
    elif media_type.endswith("json"):
        assert_same(arrived.json, meant.body)
    else:
        assert arrived.body.decode() == meant.body


def assert_form_arrived(pairs: list[tuple[str, str]], meant: dict[str, Any]) -> None:
    """Objects are written as JSON, by the rule of forms for values without a style."""
    pairs = sorted(pairs, key=itemgetter(0))
    expected = _items(meant)
    assert [name for name, _ in pairs] == [name for name, _ in expected]
    for (_, text), (_, item) in zip(pairs, expected, strict=True):
        if isinstance(item, dict):
            assert_same(json.loads(text), item)
        else:
            assert text == text_of(item)


def assert_parts_arrived(arrived: Arrived, meant: Meant) -> None:
    content_type = arrived.header("Content-Type")
    message = message_from_bytes(f"Content-Type: {content_type}\r\n\r\n".encode() + arrived.body)
    assert message.is_multipart() and not message.defects
    parts = [(part.get_param("name", header="content-disposition"), part) for part in message.get_payload()]
    for (said, part), (name, item) in zip(sorted(parts, key=itemgetter(0)), _items(meant.body), strict=True):
        assert said == name
        content: Any = part.get_payload(decode=True)
        if isinstance(item, dict) or name in meant.part_types:
            assert part.get_content_type() == meant.part_types.get(name, JSON)
            assert_same(json.loads(content), item)
        elif isinstance(item, str) and item.startswith("data:image/png"):
            assert part.get_content_type() == "image/png"
            assert part.get_filename()
            assert f"data:image/png;base64,{base64.b64encode(content).decode()}" == item
        else:
            assert content.decode() == text_of(item)


def _items(meant: dict[str, Any]) -> list[tuple[str, Any]]:
    """By name; of a list in its order."""
    listed = ((name, value if isinstance(value, list) else [value]) for name, value in sorted(meant.items()))
    return [(name, item) for name, items in listed for item in items]


def assert_same(arrived: Any, meant: Any) -> None:
    """Not by comparison: to Python, 1 and True are the same."""
    assert json.dumps(arrived, sort_keys=True) == json.dumps(meant, sort_keys=True)
