"""The HTTP door itself: who is let in, and what hostile requests get."""

import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from django.utils import timezone

from identity.bearers import forget_bearers
from identity.models import AccessToken
from identity.tokens import create_token
from tests import plain_http
from tests.factories import make_source, make_workflow

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


def modern(method: str, **params: object) -> tuple[dict[str, object], dict[str, str]]:
    """Body and headers of a well-formed request of the present revision."""
    headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": method}
    headers |= {"mcp-name": str(params["name"])} if "name" in params else {}
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"_meta": META, **params}}, headers


@pytest.mark.databases("identity.tokens", "identity.models")
def test_a_revoked_and_an_expired_token_are_refused(mcp_server, token):
    body, headers = modern("tools/list")
    assert mcp_server.post(body, headers=headers, token=token).status_code == 200
    AccessToken.objects.get(name="agent").revoke()
    forget_bearers()
    assert mcp_server.post(body, headers=headers, token=token).status_code == 401
    old, expired = create_token(name="old")
    AccessToken.objects.filter(pk=old.pk).update(expires_at=timezone.now() - timedelta(seconds=1))
    assert mcp_server.post(body, headers=headers, token=expired).status_code == 401


@pytest.mark.databases("identity.tokens", "identity.models")
def test_a_token_is_stored_only_as_its_hash(token):
    stored = AccessToken.objects.values().get(name="agent")
    assert token not in json.dumps(stored, default=str)
    assert token.startswith(stored["prefix"])


def test_server_discover_names_both_the_product_and_what_it_can_do(mcp_server, token):
    body, headers = modern("server/discover")
    result = mcp_server.post(body, headers=headers, token=token).json()["result"]
    assert "2026-07-28" in result["supportedVersions"]
    assert "tools" in result["capabilities"]
    assert result["resultType"] == "complete"


def test_clients_get_english_whatever_language_they_accept(mcp_server, token):
    """Models read it, and records have it."""
    schema = {"type": "object", "properties": {"month": {"type": "integer"}}, "required": ["month"]}
    make_workflow(make_source("orders"), name="report", input_schema=schema)
    for body, headers in (
        modern("tools/list"),
        modern("tools/call", name="report", arguments={"month": "May"}),
        modern("tools/call", name="nothing", arguments={}),
    ):
        answers = [
            mcp_server.post(body, headers=headers | accepted, token=token).json()
            for accepted in ({}, {"accept-language": "de"})
        ]
        assert answers[0] == answers[1]


HOSTILE_BODIES = {
    "not JSON": b"{",
    "not UTF-8": b'{"jsonrpc":"2.0","id":1,"method":"\xff"}',
    "nested 10,000 deep": b"[" * 10_000 + b"]" * 10_000,
    "arguments nested 10,000 deep": (
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"countdown","arguments":'
        + b'{"a":' * 10_000
        + b"1"
        + b"}" * 10_000
        + b"}}"
    ),
    "a batch": b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]',
    "a number": b"1",
    "null": b"null",
    "an empty batch": b"[]",
    "a batch of no numbers": b"[NaN, 1e999]",
    "a method that is a number": b'{"jsonrpc":"2.0","id":1,"method":1}',
    "params that are a list": b'{"jsonrpc":"2.0","id":1,"method":"ping","params":[1]}',
    "a huge integer": b'{"jsonrpc":"2.0","id":' + b"9" * 5_000 + b',"method":"ping"}',
    "empty": b"",
    "no method": b'{"jsonrpc":"2.0","id":1}',
}


HALVES = {
    "high": rb'"text": "cut: \ud83d"',
    "low": rb'"text": "cut: \udc4d"',
    "first": rb'"text": "\ud83d cut."',
    "capital": rb'"text": "cut: \uD83D"',
    "of two": rb'"text": "cut\ud83d\ud83d\udc4d."',
    "beside a backslash": rb'"text": "cu\\\ud83d.."',
    "name": rb'"text": "a", "\ud83d": 1',
}


def answer_in(response: httpx2.Response) -> Any:
    return json.loads(response.text.rpartition("data: ")[2])


NOT_ONE_MESSAGE = ["a batch", "an empty batch", "null", "a number", "no method"]
VERSIONS = ("2026-07-28", "2025-06-18", None)


def test_a_hostile_body_gets_a_clean_error_and_the_server_goes_on(mcp_server, token, subtests):
    for name, version in itertools.product(HOSTILE_BODIES, VERSIONS):
        with subtests.test(f"{name} ({version})"):
            headers = {"mcp-protocol-version": version} if version else {}
            response = mcp_server.post(content=HOSTILE_BODIES[name], token=token, headers=headers)
            assert 400 <= response.status_code < 500
            assert "Traceback" not in response.text
            assert "pydantic" not in response.text
            body, good_headers = modern("tools/list")
            assert mcp_server.post(body, headers=good_headers, token=token).status_code == 200


def test_a_body_that_is_not_one_message_gets_one_sentence(mcp_server, token, subtests):
    sentence = "The body must be one JSON-RPC request or notification. Batches are not supported."
    for name, version in itertools.product(NOT_ONE_MESSAGE, VERSIONS):
        with subtests.test(f"{name} ({version})"):
            headers = {"mcp-protocol-version": version} if version else {}
            response = mcp_server.post(content=HOSTILE_BODIES[name], token=token, headers=headers)
            assert response.status_code == 400
            assert response.json() == {
                "jsonrpc": "2.0",
                "id": None,
                "error": {"code": -32600, "message": sentence},
            }


def test_what_is_wrong_with_a_message_is_said_to_its_request(mcp_server, token, subtests):
    wrong_id = "The id of a request must be an integer or a string."
    cases = [({"id": odd}, None, wrong_id) for odd in (None, 1.5, True, [1])]
    cases += [({"id": 7, "params": odd}, 7, "The params of a message must be an object.") for odd in ([], 1)]
    for (changes, told_to, sentence), version in itertools.product(cases, VERSIONS):
        with subtests.test(f"{changes} ({version})"):
            headers = {"mcp-protocol-version": version} if version else {}
            body = json.dumps({"jsonrpc": "2.0", "method": "ping"} | changes).encode()
            response = mcp_server.post(content=body, token=token, headers=headers)
            error = {"code": -32600, "message": sentence}
            assert response.json() == {"jsonrpc": "2.0", "id": told_to, "error": error}
            assert response.status_code == 400


def test_a_body_over_the_limit_is_refused(mcp_server, token):
    response = mcp_server.post(content=b'{"a":"' + b"x" * 5_000_000 + b'"}', token=token)
    assert response.status_code == 413


@pytest.mark.parametrize("depth", [60, 150, 300, 900])
@pytest.mark.parametrize("version", ["2026-07-28", "2025-06-18"])
def test_deeply_nested_arguments_never_break_a_call(mcp_server, token, source, depth, version):
    """Deeper than any check allows, but not so deep that the JSON parser gives up."""
    arguments: dict[str, object] = {"seconds": 0}
    for _ in range(depth):
        arguments = {"deeper": arguments}
    body, headers = modern("tools/call", name="countdown", arguments=arguments)
    response = mcp_server.post(body, token=token, headers=headers | {"mcp-protocol-version": version})
    assert response.status_code in (200, 400)
    assert "Internal" not in response.text


def test_a_header_that_contradicts_the_body_is_refused(mcp_server, token, source):
    body, headers = modern("tools/call", name="countdown", arguments={"seconds": 0})
    response = mcp_server.post(body, token=token, headers=headers | {"mcp-name": "text_statistics"})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == -32020


def test_blanks_around_a_header_are_no_part_of_it(mcp_server, token, source):
    """Sent by a client that writes them as they are; RFC 9110 has the receiver take them off."""
    body, headers = modern("tools/call", name="text_statistics", arguments={"text": "one"})
    headers |= {"authorization": f"Bearer {token} ", "accept": "application/json, text/event-stream\t"}
    headers |= {"mcp-name": "  text_statistics \t ", "content-type": "application/json "}
    connection = HTTPConnection(urlsplit(mcp_server.url).netloc, timeout=20)
    with closing(connection):
        connection.request("POST", "/mcp", json.dumps(body), headers)
        answer = connection.getresponse()
        assert (answer.status, json.load(answer)["result"]["isError"]) == (200, False)


FAULTS = {
    "a text for arguments": ({"name": "countdown", "arguments": "x"}, '- /arguments: not of type "object"'),
    "a list for arguments": ({"name": "countdown", "arguments": [1]}, '- /arguments: not of type "object"'),
    "no name": ({"arguments": {}}, "- /name: required, but missing"),
}


@pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25"])
def test_what_is_wrong_with_the_parameters_is_named(mcp_server, token, subtests, version):
    for name, (params, fault) in FAULTS.items():
        with subtests.test(name):
            body, headers = modern("tools/call", **params)
            response = mcp_server.post(body, token=token, headers=headers | {"mcp-protocol-version": version})
            text = response.text.partition("data: ")[2] or response.text
            error = json.loads(text)["error"]
            assert error["code"] == -32602
            assert error["message"] == f"Invalid parameters of tools/call:\n{fault}"


@pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25"])
def test_half_a_character_becomes_a_whole_one(mcp_server, token, source, subtests, version):
    """A client has cut a text in the middle of an emoji."""
    for place, sent in HALVES.items():
        with subtests.test(place):
            body, headers = modern("tools/call", name="text_statistics", arguments={"text": "PLACE"})
            content = json.dumps(body).encode().replace(b'"text": "PLACE"', sent)
            headers |= {"mcp-protocol-version": version}
            response = mcp_server.post(content=content, token=token, headers=headers)
            result = answer_in(response)["result"]
            if place == "name":
                assert result["isError"] and "\ufffd" in result["content"][0]["text"]
            else:
                assert result["structuredContent"]["characters"] == 6


UNREADABLE = {
    "nested deeply": b"[" * 900 + b"]" * 900,
    "an integer of 5,000 digits": b"9" * 5_000,
    "a control character": b'"a\x01b"',
    "a line break": b'"a\nb"',
    "no UTF-8": b'"\xf0\x9f\x91"',
    "an unknown escape": b'"\\x41"',
    "a trailing comma": b'"a",',
    "two values": b'"a" "b"',
    "a name twice": b'"a", "text": "b"',
}


@pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25"])
def test_what_cannot_be_read_is_said_to_its_request(mcp_server, token, subtests, version):
    for fault, value in UNREADABLE.items():
        with subtests.test(fault):
            body, headers = modern("tools/call", name="text_statistics", arguments={"text": "PLACE"})
            content = json.dumps(body | {"id": "call-7"}).encode().replace(b'"PLACE"', value)
            headers |= {"mcp-protocol-version": version}
            response = mcp_server.post(content=content, token=token, headers=headers)
            assert (response.status_code, response.json()["id"]) == (400, "call-7")


@pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25"])
def test_a_byte_order_mark_is_no_part_of_a_message(mcp_server, token, version):
    body, headers = modern("tools/list")
    headers |= {"mcp-protocol-version": version}
    content = b"\xef\xbb\xbf" + json.dumps(body).encode()
    assert "result" in answer_in(mcp_server.post(content=content, token=token, headers=headers))


def test_an_unknown_method_is_not_found(mcp_server, token):
    body, headers = modern("tools/destroy")
    response = mcp_server.post(body, token=token, headers=headers)
    assert (response.status_code, response.json()["error"]["code"]) == (404, -32601)


def test_a_level_for_log_messages_is_taken_where_the_protocol_has_them(mcp_server, token):
    wanted = {"jsonrpc": "2.0", "id": 1, "method": "logging/setLevel", "params": {"level": "error"}}
    version = {"mcp-protocol-version": "2025-11-25"}
    assert '"result":{}' in mcp_server.post(wanted, token=token, headers=version).text
    unknown = wanted | {"params": {"level": "loud"}}
    assert '"code":-32602' in mcp_server.post(unknown, token=token, headers=version).text
    body, headers = modern("logging/setLevel", level="error")
    assert mcp_server.post(body, token=token, headers=headers).status_code == 404
    body, headers = modern("server/discover")
    offered = mcp_server.post(body, token=token, headers=headers).json()["result"]["capabilities"]
    assert "logging" not in offered


def test_many_callers_at_once_are_all_answered(mcp_server, token, source):
    """B7: more requests than database threads."""
    body, headers = modern("tools/call", name="text_statistics", arguments={"text": "one"})

    def call(_: int) -> bool:
        return bool(
            mcp_server.post(body, token=token, headers=headers).json()["result"]["structuredContent"]["words"]
        )

    with ThreadPoolExecutor(24) as callers:
        assert all(callers.map(call, range(72)))


def test_an_endless_body_for_django_is_cut_off_before_it_fills_the_disk(mcp_server, token):
    """Sent in chunks, so that no header says how much is to come; of strangers hardly any of it is taken."""
    for headers, status in (({"authorization": f"Bearer {token}"}, 413), ({}, 403)):
        chunks = (b"x" * 1_000_000 for _ in range(50))
        response = plain_http.post(f"{mcp_server.base_url}/admin/login/", content=chunks, headers=headers)
        assert response.status_code == status


def test_the_endpoint_is_found_with_a_slash_at_its_end_too(mcp_server, token):
    body, headers = modern("tools/list")
    headers |= {"authorization": f"Bearer {token}", "accept": "application/json, text/event-stream"}
    response = plain_http.post(f"{mcp_server.url}/", json=body, headers=headers)
    assert response.status_code == 200
