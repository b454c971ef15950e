"""Bodies of imported operations: what of a call arrives, and as which media type."""

import json
from email import message_from_bytes
from typing import Any
from urllib.parse import parse_qsl

import pytest

from catalogue.schemas import check_arguments
from connectors.errors import Rejected
from connectors.http_tools.request import is_json
from tests.connectors.openapi import request_of, sent_by, the_refusal, the_tool, with_operation

TEXT = {"type": "string"}
NUMBER = {"type": "integer"}
LIST = {"type": "array", "items": TEXT}
ANY_OBJECT = {"type": "object"}
FILE = {"type": "string", "format": "binary"}
JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"
PATCH = "application/json-patch+json"


def tool_with(content: dict[str, Any], *, method: str = "patch", **further: Any):
    return the_tool(
        with_operation({"requestBody": {"content": content, "required": True}}, method=method, **further)
    )


def arrived(content: dict[str, Any], arguments: dict[str, Any], **further: Any) -> tuple[str, Any]:
    media_type, body = sent_by(tool_with(content, **further), arguments)
    return media_type, json.loads(body or b"null")


ITEM = {
    "type": "object",
    "properties": {
        "title": TEXT,
        "size": {"type": "integer", "minimum": 1},
        "kind": {"type": "string", "enum": ["a", "b"]},
        "only": {"const": "x"},
        "due": {"type": "string", "format": "date"},
        "done": {"type": "boolean"},
        "tags": LIST,
        "labels": {"type": "object", "additionalProperties": TEXT},
        "owner": {
            "type": "object",
            "properties": {"name": TEXT, "address": {"$ref": "#/components/schemas/Address"}},
        },
        "address": {"$ref": "#/components/schemas/Address"},
        "either": {"oneOf": [TEXT, NUMBER]},
        "parts": {"allOf": [{"type": "object", "properties": {"sku": TEXT}}, {"properties": {"note": TEXT}}]},
    },
}
ADDRESS = {"type": "object", "properties": {"city": TEXT, "next": {"$ref": "#/components/schemas/Address"}}}
SHARED = {"components": {"schemas": {"Address": ADDRESS, "Item": ITEM}}}


@pytest.mark.parametrize("media_type", [MERGE, f"{MERGE}; charset=utf-8", "Application/Merge-Patch+JSON"])
@pytest.mark.parametrize(
    "given",
    [
        *({name: None} for name in ITEM["properties"]),
        {"labels": {"old": None, "new": "x"}},
        {"owner": {"name": None}},
        {"owner": {"address": {"city": None}}},
        {"address": {"next": {"next": {"city": None}}, "city": None}},
        {"parts": {"sku": None, "note": None}},
        {"title": None, "size": 3},
    ],
)
def test_null_deletes_a_member_of_a_merge_patch_at_any_depth(media_type, given):
    """C1.4: RFC 7396."""
    schema = {"$ref": "#/components/schemas/Item"}
    assert arrived({media_type: {"schema": schema}}, given, **SHARED) == (media_type, given)


@pytest.mark.parametrize(
    "media_type",
    [STRATEGIC, "application/vnd.acme.merge-patch+json", "application/vnd.acme-merge-patch+json"],
)
def test_null_is_kept_in_other_media_types_of_merge_patches(media_type):
    """C1.4."""
    arguments = {"labels": {"old": None}, "title": None}
    arguments = {"body": arguments} if media_type == STRATEGIC else arguments
    assert arrived({media_type: {"schema": ITEM}}, arguments, **SHARED)[1] == arguments.get("body", arguments)


def test_a_definition_takes_null_only_in_merge_patches():
    """C1.4: an optional null of another body counts as left out, and agents of a PATCH read so."""
    found = {
        kind: tool_with({kind: {"schema": {"$ref": "#/components/schemas/Item"}}}, **SHARED)
        for kind in (MERGE, JSON)
    }
    assert found[JSON].definition.input_schema["$defs"]["Address"]["properties"]["city"] == TEXT
    assert found[MERGE].definition.input_schema["$defs"]["Address"]["properties"]["city"] != TEXT
    assert "null deletes what is there" in found[MERGE].definition.input_schema["description"]
    assert "counts as left out" in found[JSON].definition.input_schema["description"]
    assert json.loads(sent_by(found[JSON], {"title": None, "address": {"city": None}})[1]) == {"address": {}}


@pytest.mark.parametrize(
    ("schema", "is_sent"),
    [
        ({**TEXT, "nullable": True}, True),
        ({**TEXT, "nullable": False, "default": None}, False),
        ({"type": ["string", "null"]}, True),
        ({"anyOf": [TEXT, {"type": "null"}]}, True),
        ({"oneOf": [NUMBER, {"type": "null"}]}, True),
        ({"enum": ["a", None]}, True),
        ({**TEXT, "enum": ["a", None]}, True),
        ({"const": None}, True),
        ({**TEXT, "default": None}, True),
        ({**NUMBER, "default": None}, True),
        ({**LIST, "default": None}, True),
        ({**TEXT, "examples": ["a", None]}, True),
        ({**TEXT, "description": "Omit to leave unchanged, send null to clear."}, True),
        ({**NUMBER, "description": "To unassign the task, pass `null` here."}, True),
        ({**LIST, "description": "Labels. Set to NULL to remove all of them."}, True),
        ({**TEXT, "description": "The title. It must not be null. Deleted with the item."}, False),
        ({**TEXT, "nullable": False, "description": "Send null to clear."}, False),
        ({}, True),
        ({**TEXT, "example": None}, False),
        (TEXT, False),
        (NUMBER, False),
        (LIST, False),
        ({**TEXT, "enum": ["a"]}, False),
    ],
)
def test_null_is_sent_where_the_document_gives_it_as_a_value(schema, is_sent):
    """C1.4: an `example: null` is what generators write where there is none."""
    content = {JSON: {"schema": {"type": "object", "properties": {"x": schema, "y": TEXT}}}}
    assert arrived(content, {"x": None, "y": "a"}) == (JSON, {"y": "a"} | ({"x": None} if is_sent else {}))


@pytest.mark.parametrize(
    "media",
    [
        {"example": {"parent": None}},
        {"examples": {"top": {"value": {"parent": None, "title": "a"}}}},
        {"schema": {"type": "object", "properties": {"parent": NUMBER}, "example": {"parent": None}}},
    ],
)
def test_null_is_sent_for_a_member_that_is_null_in_an_example_of_the_object(media):
    """C1.4: it moves something to the top, say."""
    schema = {"type": "object", "properties": {"parent": NUMBER, "title": TEXT}}
    assert arrived({JSON: {"schema": schema} | media}, {"parent": None}) == (JSON, {"parent": None})


@pytest.mark.parametrize(
    ("offered", "schema", "body", "chosen"),
    [
        ((PATCH, MERGE, STRATEGIC), ANY_OBJECT, {"a": 1}, MERGE),
        ((STRATEGIC, PATCH, MERGE), ANY_OBJECT, {"a": 1}, MERGE),
        ((PATCH, STRATEGIC), ANY_OBJECT, {"a": 1}, STRATEGIC),
        ((PATCH, APPLY), ANY_OBJECT, {"a": 1}, APPLY),
        ((PATCH, MERGE, STRATEGIC, APPLY, "application/apply-patch+cbor"), ANY_OBJECT, {"a": None}, MERGE),
        (
            (PATCH, "application/vnd.acme.merge-patch+json"),
            ANY_OBJECT,
            {},
            "application/vnd.acme.merge-patch+json",
        ),
        ((PATCH, "application/vnd.acme+json"), ANY_OBJECT, {"a": 1}, "application/vnd.acme+json"),
        ((MERGE, PATCH), {"type": "array", "items": ANY_OBJECT}, [{"op": "remove"}], PATCH),
        ((MERGE, PATCH), {"type": "array"}, [], PATCH),
        ((MERGE, PATCH), {}, {"a": 1}, MERGE),
        ((PATCH, MERGE), {}, [{"op": "remove"}], PATCH),
        ((PATCH, MERGE), {"oneOf": [ANY_OBJECT, {"type": "array"}]}, [{"op": "add"}], PATCH),
        ((PATCH, MERGE), {"oneOf": [ANY_OBJECT, {"type": "array"}]}, {"a": None}, MERGE),
        ((PATCH, JSON), ANY_OBJECT, {"a": 1}, JSON),
        ((PATCH, JSON), {"type": "array"}, [1], JSON),
        (("application/vnd.acme+json", JSON), {}, 7, JSON),
        (("application/xml", JSON), ANY_OBJECT, {"a": 1}, JSON),
        (("text/plain", "application/vnd.acme+json"), ANY_OBJECT, {"a": 1}, "application/vnd.acme+json"),
        (("multipart/form-data", "text/csv", JSON), ANY_OBJECT, {"a": 1}, JSON),
        (("text/json", "text/html"), ANY_OBJECT, {"a": 1}, "text/json"),
        (("text/html", "application/yaml"), ANY_OBJECT, {"a": 1}, "application/yaml"),
        (("application/*+json",), ANY_OBJECT, {"a": 1}, JSON),
    ],
)
def test_the_media_type_is_one_that_can_hold_the_body(offered, schema, body, chosen):
    """C1.4: whatever the order, a merge patch is no list and a JSON Patch no object."""
    for names in (offered, offered[::-1]):
        assert arrived({name: {"schema": schema} for name in names}, {"body": body}) == (chosen, body)


@pytest.mark.parametrize(
    ("offered", "schema", "text", "chosen"),
    [
        ((JSON, "text/plain"), TEXT, "a", "text/plain; charset=utf-8"),
        (("application/octet-stream", JSON), {**TEXT, "format": "binary"}, "a", "application/octet-stream"),
        ((JSON, "image/png"), {"contentMediaType": "image/png"}, "a", "image/png"),
        (("text/csv", "application/x-www-form-urlencoded"), TEXT, "a,b", "text/csv; charset=utf-8"),
    ],
)
def test_texts_and_files_are_not_written_as_json_where_the_api_takes_them_plainly(
    offered, schema, text, chosen
):
    """C1.4."""
    tool = tool_with({name: {"schema": schema} for name in offered}, method="post")
    assert sent_by(tool, {"body": text}) == (chosen, text.encode())


@pytest.mark.parametrize(
    ("example", "ending"),
    [
        ("<Order/>", "An example: <Order/>"),
        ("<a/>" * 300, "base64,..."),
        ({"a": 1}, "base64,..."),
        (None, "..."),
    ],
)
def test_agents_read_the_media_type_and_a_short_example_of_a_body_that_is_text(example, ending):
    """C1.4, P9: the form of XML is told by nothing else."""
    tool = tool_with({"application/xml": {"schema": ANY_OBJECT, "example": example}}, method="post")
    description = tool.definition.input_schema["properties"]["body"]["description"]
    assert "application/xml" in description and description.endswith(ending)


def test_agents_read_that_each_item_is_a_line():
    """C1.4."""
    tool = tool_with({"application/x-ndjson": {"schema": {"type": "array"}}})
    assert "on a line of its own" in tool.definition.input_schema["properties"]["body"]["description"]


@pytest.mark.parametrize("others", [(JSON,), ("application/xml", JSON), ("application/vnd.acme+json", FORM)])
def test_an_object_with_a_file_is_sent_in_parts_where_the_api_takes_them(others):
    """C1.4: JSON cannot hold bytes; without parts, it is what is left."""
    schema = {"type": "object", "properties": {"title": TEXT, "doc": FILE}}
    content = {name: {"schema": schema} for name in (*others, MULTIPART)}
    assert sent_by(tool_with(content), {"doc": "x"})[0].startswith(MULTIPART)
    del content[MULTIPART]
    assert is_json(sent_by(tool_with(content), {"doc": "x"})[0])


def test_an_agent_can_say_which_kind_of_patch_it_means():
    """C1.4: Kubernetes' directives and nulls arrive as they are."""
    tool = tool_with({name: {"schema": ANY_OBJECT} for name in (PATCH, MERGE, STRATEGIC, APPLY)})
    body = {
        "spec": {
            "$setElementOrder/containers": [{"name": "a"}],
            "containers": [{"$patch": "delete", "name": "b"}],
        }
    }
    body["spec"] |= {"strategy": {"$retainKeys": ["type"], "type": None}}
    for kind in (MERGE, STRATEGIC, APPLY):
        media_type, content = sent_by(tool, {"body": body, "content_type": kind})
        assert (media_type, json.loads(content)) == (kind, body)
    assert tool.definition.input_schema["properties"]["content_type"]["enum"] == [MERGE, STRATEGIC, APPLY]
    for other in (PATCH, JSON, f"{MERGE}\r\nX-Admin: 1", "", 7):
        assert check_arguments(tool.definition.input_schema, {"body": {}, "content_type": other}).problems
        with pytest.raises(Rejected, match=r"For such a body, content_type must be .* Nothing was sent"):
            request_of(tool, {"body": {}, "content_type": other})


def test_each_kind_of_patch_may_have_its_own_schema():
    """C1.4."""
    operations = {
        "type": "array",
        "items": {"type": "object", "required": ["op"], "properties": {"op": TEXT}},
    }
    content = {
        PATCH: {"schema": operations},
        MERGE: {"schema": {"type": "object", "properties": {"a": TEXT}}},
    }
    assert arrived(content, {"body": [{"op": "test"}]}) == (PATCH, [{"op": "test"}])
    assert arrived(content, {"body": {"a": None}, "content_type": MERGE}) == (MERGE, {"a": None})
    with pytest.raises(Rejected, match=f"content_type must be {MERGE}".replace("+", r"\+")):
        request_of(tool_with(content), {"body": {"a": "b"}, "content_type": PATCH})


LINES = 'text\n{"index": {}}\n'


@pytest.mark.parametrize(
    ("content", "body", "sent"),
    [
        (
            {"application/x-ndjson": {"schema": {"type": "array"}}},
            [{"index": {}}, {"a": "ä"}],
            '{"index":{}}\n{"a":"ä"}\n',
        ),
        (
            {JSON: {"schema": {"type": "array"}}, "application/jsonl": {"schema": {"type": "array"}}},
            [1, None],
            "1\nnull\n",
        ),
        ({"application/x-jsonlines": {"schema": ANY_OBJECT}}, {"a": 1}, '{"a":1}\n'),
        ({"application/vnd.acme.ndjson": {"schema": ANY_OBJECT}}, [{"a": 1}, {"b": 2}], '{"a":1}\n{"b":2}\n'),
        (
            {JSON: {"schema": {"type": "array", "items": {}}, "example": '{"a": 1}\n{"b": 2}'}},
            [{"c": 3}],
            '{"c":3}\n',
        ),
        (
            {JSON: {"schema": {"type": "array"}, "examples": {"x": {"value": "{ }\n{}"}}}},
            [{}, {}],
            "{}\n{}\n",
        ),
        ({JSON: {"schema": {"type": "array"}, "examples": {"x": {"value": "[1]"}}}}, [{}], "[{}]"),
        ({"application/yaml": {"schema": ANY_OBJECT}}, {"a": None}, '{"a":null}'),
        ({"application/x-ndjson": {"schema": TEXT}}, LINES, LINES),
        ({"application/jsonl": {}}, LINES, LINES),
        *(
            ({media_type: {"schema": TEXT}}, "a: ä\n", "a: ä\n")
            for media_type in (
                "application/yaml",
                "application/x-yaml",
                "application/vnd.oai.openapi+yaml",
                "application/toml",
                "application/csv",
                "application/sql",
                "application/graphql",
                "application/xml",
                "application/openmetrics-text",
            )
        ),
    ],
)
def test_a_body_is_written_as_its_media_type_has_it(content, body, sent):
    """C1.4: text as it is, JSON lines with one value a line, and YAML as JSON, which is YAML."""
    media_type, content_sent = sent_by(tool_with(content, method="post"), {"body": body})
    assert content_sent.decode() == sent and media_type in content


CODE = {"type": "object", "required": ["grant", "code"], "properties": {"grant": TEXT, "code": TEXT}}
REFRESH = {"type": "object", "required": ["grant", "token"], "properties": {"grant": TEXT, "token": TEXT}}
OPEN = {"type": "object", "properties": {"title": TEXT, "doc": FILE}, "additionalProperties": True}


def parts_of(body: bytes) -> dict[str, tuple[str, str]]:
    """Media type and content of each part of a multipart body."""
    message = message_from_bytes(
        b"Content-Type: multipart/form-data; boundary=" + body[2:34] + b"\n\n" + body
    )
    return {
        part.get_param("name", header="content-disposition"): (
            part["Content-Type"] or "",
            part.get_payload(decode=True).decode(),
        )
        for part in message.get_payload()
    }


@pytest.mark.parametrize(
    ("schema", "given", "sent", "told"),
    [
        (OPEN, {"title": "x"}, "title=x", "takes fields that the document does not list"),
        (
            {**CODE, "additionalProperties": TEXT},
            {"grant": "a", "code": "b"},
            "grant=a&code=b",
            "does not list",
        ),
        (
            {**CODE, "not": {"required": ["x"]}},
            {"grant": "a", "code": "b"},
            "grant=a&code=b",
            "does not list",
        ),
        (
            {"allOf": [OPEN, CODE]},
            {"grant": "a", "code": "b", "title": "c"},
            "title=c&grant=a&code=b",
            "does not",
        ),
        ({"oneOf": [CODE, REFRESH]}, {"grant": "r", "token": "y"}, "grant=r&token=y", "alternatives"),
        ({"anyOf": [CODE, REFRESH]}, {"grant": "r", "code": "y"}, "grant=r&code=y", "alternatives"),
        ({"anyOf": [CODE, OPEN]}, {"title": "x"}, "title=x", "alternatives"),
        (
            {"type": "object", "properties": {"scope": TEXT}, "oneOf": [CODE, REFRESH]},
            {"scope": "s", "grant": "r", "token": "y"},
            "scope=s&grant=r&token=y",
            "alternatives",
        ),
        (
            {"allOf": [{"oneOf": [CODE, REFRESH]}, OPEN]},
            {"grant": "r", "code": "y"},
            "grant=r&code=y",
            "alternat",
        ),
        ({"type": "object", "additionalProperties": TEXT}, {"body": {"a": "1", "b": "x y"}}, "a=1&b=x+y", ""),
        ({"type": "object", "additionalProperties": LIST}, {"body": {"a": ["1", "2"]}}, "a=1&a=2", ""),
        ({"type": "object"}, {"body": {"a": 1, "b": True}}, "a=1&b=true", ""),
        ({"type": "object", "patternProperties": {"^x": NUMBER}}, {"body": {"xa": 1}}, "xa=1", ""),
    ],
)
@pytest.mark.parametrize("media_type", [FORM, MULTIPART])
def test_a_form_that_is_more_than_a_list_of_fields_is_sent(media_type, schema, given, sent, told):
    """C1.4: open ones, alternatives and maps; a note says what the tool cannot express."""
    tool = tool_with({media_type: {"schema": schema}}, method="post")
    assert told in " ".join(tool.notes) and bool(tool.notes) == bool(told)
    body = sent_by(tool, given)[1]
    wanted = dict(parse_qsl(sent))
    if media_type == FORM:
        assert sorted(body.decode().split("&")) == sorted(sent.split("&"))
    else:
        assert {name: text for name, (_, text) in parts_of(body).items()} == wanted


@pytest.mark.parametrize("given", [{"grant": "r"}, {"code": "a"}, {"grant": "r", "other": "x"}, {}])
def test_a_form_with_alternatives_wants_the_fields_of_one_of_them(given):
    """C1.4."""
    tool = tool_with({FORM: {"schema": {"oneOf": [CODE, REFRESH]}}}, method="post")
    assert tool.definition.input_schema["required"] == ["grant"]
    assert check_arguments(tool.definition.input_schema | {"additionalProperties": False}, given).problems


def test_a_field_of_several_alternatives_takes_the_values_of_each():
    """C1.4."""
    kinds = [{"type": "object", "properties": {"kind": {"type": "string", "enum": [one]}}} for one in "ab"]
    tool = tool_with({FORM: {"schema": {"oneOf": kinds}}}, method="post")
    assert sent_by(tool, {"kind": "b"})[1] == b"kind=b"
    assert check_arguments(tool.definition.input_schema, {"kind": "c"}).problems


def test_a_form_of_files_with_any_names_is_a_map_of_files():
    """C1.4."""
    schema = {"type": "object", "additionalProperties": FILE}
    tool = tool_with({MULTIPART: {"schema": schema}}, method="post")
    sent = sent_by(tool, {"body": {"a": "data:image/png;name=a.png;base64,aGk=", "b": "x"}})[1]
    assert parts_of(sent) == {"a": ("image/png", "hi"), "b": ("text/plain; charset=utf-8", "x")}


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (TEXT, "its schema is not an object"),
        ({"$ref": "#/components/schemas/Loop"}, "too many alternatives"),
        ({"allOf": [{"oneOf": [CODE, REFRESH]} for _ in range(9)]}, "too many alternatives"),
        ({"oneOf": [CODE] * 60}, "too many alternatives"),
    ],
)
def test_a_form_that_is_none_or_endless_is_refused_for_what_it_is(schema, reason):
    """C1.4: bounded work."""
    loop = {"oneOf": [{"$ref": "#/components/schemas/Loop"}] * 3}
    operation = {"requestBody": {"content": {FORM: {"schema": schema}}, "required": True}}
    raw = with_operation(operation, method="post", components={"schemas": {"Loop": loop}})
    assert reason in the_refusal(raw).reason


@pytest.mark.parametrize(
    ("schema", "kind", "value", "sent"),
    [
        (TEXT, JSON, '{"a":1}', (JSON, '{"a":1}')),
        (TEXT, JSON, "[1, 2]", (JSON, "[1, 2]")),
        (TEXT, JSON, "Ann", (JSON, '"Ann"')),
        (TEXT, JSON, "5", (JSON, '"5"')),
        (TEXT, f"{JSON};charset=utf-8", "{}", (f"{JSON};charset=utf-8", "{}")),
        (NUMBER, JSON, 5, (JSON, "5")),
        ({"type": "boolean"}, JSON, True, (JSON, "true")),
        (ANY_OBJECT, JSON, {"a": 1}, (JSON, '{"a":1}')),
        (ANY_OBJECT, "application/vnd.acme+json", {"a": 1}, ("application/vnd.acme+json", '{"a":1}')),
        (ANY_OBJECT, "application/vnd.acme+json", '{"a": 1}', ("application/vnd.acme+json", '{"a":1}')),
        (LIST, "application/vnd.acme+json", ["a"], ("application/vnd.acme+json", '["a"]')),
        (LIST, JSON, ["a", "b"], (JSON, '["a","b"]')),
        (
            {"type": "array", "items": ANY_OBJECT},
            "application/ld+json",
            [{}],
            ("application/ld+json", "[{}]"),
        ),
        (ANY_OBJECT, "application/yaml", {"a": 1}, ("application/yaml", '{"a":1}')),
        (ANY_OBJECT, "application/xml", "<a/>", ("application/xml", "<a/>")),
        (TEXT, "text/csv", "a,b", ("text/csv", "a,b")),
        (NUMBER, "text/csv", 5, ("text/csv", "5")),
        (LIST, "text/csv", ["a"], ("text/csv", "a")),
        (TEXT, "text/plain", "a", ("text/plain", "a")),
        (TEXT, "application/json, text/plain", "a", (JSON, '"a"')),
        (TEXT, "*/*", "a", ("", "a")),
        (ANY_OBJECT, "text/plain", {"a": 1}, ("text/plain", '{"a":1}')),
        (ANY_OBJECT, None, {"a": 1}, (JSON, '{"a":1}')),
        (TEXT, None, "a", ("", "a")),
    ],
)
def test_a_part_has_the_media_type_that_the_document_gives_it(schema, kind, value, sent):
    """C1.4: under one of JSON the part is JSON, and a text that is an object or a list is one already."""
    encoding = {"x": {"contentType": kind}} if kind else {}
    media = {"schema": {"type": "object", "properties": {"x": schema}}, "encoding": encoding}
    assert parts_of(sent_by(tool_with({MULTIPART: media}, method="post"), {"x": value})[1]) == {"x": sent}


def test_a_header_that_a_part_must_have_is_told():
    """C1.4."""
    headers = {"X-Kind": {"required": True, "schema": TEXT}, "X-Free": {"schema": TEXT}}
    encoding = {"x": {"contentType": "image/png", "headers": headers}}
    media = {"schema": {"type": "object", "properties": {"x": FILE}}, "encoding": encoding}
    assert tool_with({MULTIPART: media}).notes == ['The form field "x" is sent without its header "X-Kind".']
