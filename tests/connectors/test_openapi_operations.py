"""What becomes of an operation: its name, its arguments, the request that they make, or why it is refused."""

import json
from typing import Any
from urllib.parse import urlencode

import pytest

from connectors.errors import Rejected
from connectors.http_tools.openapi.document import Document, UnusableDocument, base_url_of, quoted
from connectors.http_tools.request import content_of, form_pairs, headers_of, query_of
from tests.connectors.openapi import (
    BASE,
    body_of,
    document,
    operation_in,
    read,
    request_of,
    the_refusal,
    the_tool,
    with_operation,
)

TEXT = {"type": "string"}
LIST = {"type": "array", "items": TEXT}
LISTS = {"type": "array", "items": LIST}
PARTS = {"type": "object", "required": ["sku"], "properties": {"sku": TEXT, "note": TEXT}}
FORM = "application/x-www-form-urlencoded"


def parameter(name: str, where: str, **further: Any) -> dict[str, Any]:
    return {"name": name, "in": where, "schema": TEXT, "required": where == "path"} | further


def test_each_parameter_goes_where_the_document_says():
    """C1.4: path, query and header; lists by their explode; the operation's own wins over the path's."""
    raw = document(
        {
            "/orders/{id}": {
                "parameters": [
                    parameter("id", "path", schema=LIST),
                    parameter("limit", "query", schema={"type": "string"}),
                ],
                "get": {
                    "operationId": "getOrder",
                    "parameters": [
                        parameter("limit", "query", schema={"type": "integer"}),
                        parameter("fields", "query", schema=LIST, explode=False),
                        parameter("tag", "query", schema=LIST),
                        parameter("X-Trace", "header", description="Which."),
                    ],
                },
            }
        }
    )
    tool = the_tool(raw)
    sent = request_of(
        tool, {"id": ["a", "b"], "limit": 5, "fields": ["x", "y"], "tag": ["p", "q"], "X-Trace": "t"}
    )
    assert (sent.method, sent.url, sent.headers) == ("GET", f"{BASE}/orders/a%2Cb", {"X-Trace": "t"})
    assert sent.query_params == {"limit": 5, "fields": "x,y", "tag": ["p", "q"]}
    assert tool.definition.input_schema["required"] == ["id"]
    assert tool.definition.input_schema["properties"]["X-Trace"] == {
        "type": "string",
        "description": "Which.",
    }


def test_objects_and_lists_in_the_query_are_written_in_the_styles_of_the_document():
    number = {"type": "integer"}
    span = {"type": "object", "properties": {"gte": number, "lt": number}}
    rows = {"type": "array", "items": {"type": "object", "properties": {"by": TEXT}}}
    schemas = {"created": {"anyOf": [span, number]}, "expand": LIST, "sort": rows}
    parameters = [
        *(parameter(name, "query", style="deepObject", schema=schema) for name, schema in schemas.items()),
        parameter("ids", "query", style="pipeDelimited", schema=LIST),
        parameter("words", "query", style="spaceDelimited", explode=False, schema=LIST),
        parameter("each", "query", style="pipeDelimited", explode=True, schema=LIST),
    ]
    tool = the_tool(with_operation({"parameters": parameters}))
    assert tool.notes == []
    sent = request_of(
        tool,
        {
            "created": {"gte": 5, "lt": 9},
            "expand": ["plan", "card"],
            "sort": [{"by": "name"}, {"by": "age"}],
            "ids": ["a", "b"],
            "words": ["x", "y"],
            "each": ["p", "q"],
        },
    )
    assert query_of(sent) == [
        ("created[gte]", "5"),
        ("created[lt]", "9"),
        ("expand[]", "plan"),
        ("expand[]", "card"),
        ("sort[0][by]", "name"),
        ("sort[1][by]", "age"),
        ("ids", "a|b"),
        ("words", "x y"),
        ("each", "p"),
        ("each", "q"),
    ]
    assert request_of(tool, {"created": 7}).query_params == {"created": ["7"]}
    with pytest.raises(Rejected, match="ids has an item that is empty or contains a vertical bar"):
        request_of(tool, {"ids": ["a|b"]})


def test_each_field_of_an_object_in_the_query_is_a_parameter_of_its_own():
    """C1.4: by OpenAPI's default style, as for the page of a list; a parameter of the same name wins."""
    number = {"type": "integer"}
    page = {
        "type": "object",
        "required": ["size"],
        "properties": {"page": number, "size": number, "sort": LIST, "by": PARTS, "limit": TEXT, "key": TEXT},
    }
    further = {"components": {"securitySchemes": {"key": {"type": "apiKey", "in": "query", "name": "key"}}}}
    parameters = [parameter("page", "query", schema=page), parameter("limit", "query", schema=number)]
    raw = with_operation({"parameters": parameters, "security": [{"key": []}]}, **further)
    tool = the_tool(raw)
    schema = tool.definition.input_schema
    assert schema["properties"] == {"page": number, "size": number, "sort": LIST, "limit": number}
    assert "required" not in schema
    assert tool.notes == [
        'The query parameter "by" is left out, which is an object, and those can only be sent as JSON; '
        "if the API reads JSON there, describe it with application/json."
    ]
    sent = request_of(tool, {"page": 2, "size": 10, "sort": ["name", "age"], "limit": 5})
    assert query_of(sent) == [
        ("page", "2"),
        ("size", "10"),
        ("sort", "name"),
        ("sort", "age"),
        ("limit", "5"),
    ]


def test_fields_of_an_object_in_the_query_are_required_with_it():
    number = {"type": "integer"}
    size = {"type": "object", "required": ["size"], "properties": {"page": number, "size": number}}
    raw = with_operation({"parameters": [parameter("page", "query", schema=size, required=True)]})
    assert the_tool(raw).definition.input_schema["required"] == ["size"]
    deep = {"type": "object", "required": ["by"], "properties": {"by": PARTS}}
    raw = with_operation({"parameters": [parameter("page", "query", schema=deep, required=True)]})
    refused = the_refusal(raw)
    assert refused.reason.startswith('It requires the query parameter "by", which is an object')
    assert refused.pointer.endswith("/parameters/0/schema/properties/by")


def test_fields_of_an_object_become_arguments():
    """C1.4: also of its parts, without read-only ones; names that are taken or unfit change."""
    schema = {
        "allOf": [
            {"$ref": "#/components/schemas/Parts"},
            {
                "properties": {"id": TEXT, "made": {**TEXT, "readOnly": True}, "a/b": TEXT},
                "required": ["made"],
            },
        ],
        "anyOf": [{"required": ["note"]}, {"required": ["id"]}],
    }
    raw = with_operation(
        body_of(schema) | {"parameters": [parameter("id", "path"), parameter("filter[id]", "query")]},
        method="put",
        path="/orders/{id}",
        components={"schemas": {"Parts": PARTS}},
    )
    tool = the_tool(raw)
    assert list(tool.definition.input_schema["properties"]) == [
        "id",
        "filter_id",
        "sku",
        "note",
        "id_body",
        "a_b",
    ]
    assert tool.definition.input_schema["required"] == ["id", "sku"]
    sent = request_of(tool, {"id": "1", "filter_id": "f", "sku": "s", "id_body": "2", "a_b": "c"})
    assert sent.url == f"{BASE}/orders/1" and sent.query_params == {"filter[id]": "f"}
    assert sent.body == {"sku": "s", "id": "2", "a/b": "c"}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (LIST, ["a"]),
        ({"oneOf": [PARTS, LIST]}, {"sku": "s"}),
        ({"type": "object", "additionalProperties": TEXT}, {"any": "thing"}),
        ({**PARTS, "additionalProperties": True}, {"sku": "s", "more": 1}),
        ({**PARTS, "discriminator": {"propertyName": "kind", "mapping": {"a": "#/x"}}}, {"sku": "s"}),
        ({}, "text"),
    ],
)
def test_any_other_body_is_one_argument(schema, value):
    """C1.4."""
    tool = the_tool(with_operation(body_of(schema, required=True), method="post"))
    assert tool.definition.input_schema["required"] == ["body"]
    assert request_of(tool, {"body": value}).body == value


@pytest.mark.parametrize("media_type", ["*", "*/*", "application/*", "*; charset=utf-8"])
def test_a_body_of_any_media_type_is_json(media_type):
    tool = the_tool(with_operation(body_of(PARTS, media_type=media_type, required=True), method="post"))
    sent = request_of(tool, {"sku": "s"})
    assert (sent.body, sent.headers) == ({"sku": "s"}, {})


def test_a_body_that_may_be_left_out_but_not_in_part_is_one_argument():
    """C1.4."""
    tool = the_tool(with_operation(body_of(PARTS, required=False), method="post"))
    assert "required" not in tool.definition.input_schema
    assert request_of(tool, {}).body is None
    assert request_of(tool, {"body": {"sku": "s"}}).body == {"sku": "s"}


def test_a_form_has_its_fields_and_leaves_out_what_forms_cannot_say():
    """C1.4: an object is JSON unless the document gives it a style; so it is with Twilio and Slack."""
    listed = {"type": "array", "items": PARTS}
    properties = {"To": TEXT, "Media": LIST, "Deep": PARTS, "Said": listed, "Lines": listed, "Spread": PARTS}
    schema = {"type": "object", "required": ["To"], "properties": properties}
    encoding = {"Said": {"contentType": "application/json"}, "Spread": {"style": "form"}}
    content = {FORM: {"schema": schema, "encoding": encoding}}
    tool = the_tool(with_operation({"requestBody": {"content": content}}, method="post"))
    assert tool.definition.metadata["body_format"] == "form"
    assert list(tool.definition.input_schema["properties"]) == ["To", "Media", "Deep", "Said"]
    assert tool.notes == [
        f'The form field "{name}" is left out, which is {kind}, and those can only be sent as JSON; '
        "if the API reads JSON there, describe it with application/json."
        for name, kind in (("Lines", "a list of lists or objects"), ("Spread", "an object"))
    ]
    arguments = {"To": "+1", "Media": ["a", "b"], "Deep": {"sku": "s"}, "Said": [{"sku": "t"}]}
    sent = {"To": "+1", "Media": ["a", "b"], "Deep": '{"sku":"s"}', "Said": '[{"sku":"t"}]'}
    assert request_of(tool, arguments).body == sent


@pytest.mark.parametrize(
    ("openapi", "left"),
    [
        ("3.0.3", ["text", "joined", "split", "deep", "spread", "said", "plain"]),
        ("3.1.0", ["text", "split", "plain"]),
    ],
)
def test_parts_of_a_form_that_are_encoded_in_other_ways_are_left_out(openapi, left):
    """C1.4: `style` and `explode` say something of parts since 3.1; before, they are to be ignored."""
    encoding = {
        "text": {"style": "form", "explode": False},
        "joined": {"style": "form", "explode": False},
        "split": {"style": "form"},
        "deep": {"style": "deepObject", "explode": True},
        "spread": {"explode": True},
        "said": {"style": "spaceDelimited"},
    }
    properties = {"text": TEXT, "joined": LIST, "split": LIST, "deep": PARTS, "spread": PARTS, "said": LIST}
    schema = {"type": "object", "properties": properties | {"plain": PARTS}}
    content = {"multipart/form-data": {"schema": schema, "encoding": encoding}}
    tool = the_tool(with_operation({"requestBody": {"content": content}}, method="post", openapi=openapi))
    assert list(tool.definition.input_schema["properties"]) == left
    assert len(tool.notes) == 7 - len(left) and all(
        "has an unsupported encoding" in note for note in tool.notes
    )


def test_a_form_with_brackets_is_sent_as_the_document_says():
    """C1.4: objects, lists of objects and lists of texts, each as `deepObject` has it; the rest is told."""
    deep = {"style": "deepObject", "explode": True}
    properties = {
        "metadata": {"anyOf": [{"type": "object", "additionalProperties": TEXT}, {"enum": [""], **TEXT}]},
        "address": {"type": "object", "properties": {"city": TEXT}},
        "items": {"type": "array", "items": PARTS},
        "expand": LIST,
        "either": {"type": "array", "items": {"anyOf": [TEXT, PARTS]}},
        "inner": {"type": "object", "properties": {"tags": {"anyOf": [LIST, TEXT]}}},
    }
    media = {
        "schema": {"type": "object", "properties": properties},
        "encoding": dict.fromkeys(properties, deep),
    }
    tool = the_tool(with_operation({"requestBody": {"content": {FORM: media}}}, method="post"))
    sent = request_of(
        tool,
        {"metadata": {"a": "1"}, "address": {"city": "x"}, "items": [{"sku": "s"}], "expand": ["p", "q"]},
    )
    assert form_pairs(sent.body) == [
        ("metadata[a]", "1"),
        ("address[city]", "x"),
        ("items[0][sku]", "s"),
        ("expand[]", "p"),
        ("expand[]", "q"),
    ]
    assert [note.split(",")[0] for note in tool.notes] == [
        'The form field "either" is left out',
        'The form field "inner" is left out',
    ]


MAP = {"type": "object", "additionalProperties": {"anyOf": [TEXT, LIST, {"type": "integer"}]}}


def test_an_object_with_unknown_fields_in_the_query_is_a_parameter_for_each_entry():
    """C1.4: none that another argument, or a constant, sets."""
    deep = parameter("filter", "query", schema={"type": "object"}, style="deepObject")
    parameters = [parameter("all", "query", schema=MAP), parameter("page", "query"), deep]
    tool = the_tool(with_operation({"parameters": parameters}, path="/orders?v=2"))
    assert tool.definition.input_schema["properties"]["all"] == MAP and not tool.notes
    sent = request_of(tool, {"all": {"q": "a b", "tags": ["x", "y"], "size": 5}, "page": "1"})
    assert query_of(sent) == [
        ("v", "2"),
        ("q", "a b"),
        ("tags", "x"),
        ("tags", "y"),
        ("size", "5"),
        ("page", "1"),
    ]
    for given, told in (
        ({"page": "2"}, "all sets page; use the argument page"),
        ({"filter[a]": "2"}, r"all sets filter\[a\]; use the argument filter"),
        ({"v": "3"}, "all sets v, which is set already"),
        ({"a": {"b": 1}}, "The value of an entry of all is an object"),
    ):
        with pytest.raises(Rejected, match=told):
            request_of(tool, {"all": given})


CSV = "text/csv; charset=utf-8"
BYTES = "application/octet-stream"


@pytest.mark.parametrize(
    ("content", "given", "sent"),
    [
        ({"text/csv": {"schema": TEXT}}, "ä,b", ("ä,b".encode(), CSV)),
        ({"text/csv": {"schema": TEXT}}, "data:text/plain,a", (b"a", CSV)),
        ({"application/xml": {"schema": PARTS}}, "<a/>", (b"<a/>", "application/xml")),
        ({BYTES: {}}, "data:image/png;base64,iVA=", (b"\x89P", BYTES)),
        ({"image/*": {}}, "data:image/png;base64,iVA=", (b"\x89P", "image/png")),
        ({"*/*": {"schema": {"format": "binary"}}}, "data:;base64,iVA=", (b"\x89P", BYTES)),
        ({"text/csv": {}, "text/html": {}}, "data:text/html,a", (b"a", "text/html")),
        ({"text/csv": {}, "text/html": {}}, "a", (b"a", CSV)),
    ],
)  # fmt: skip
def test_a_body_of_text_or_bytes_is_one_argument(content, given, sent):
    """C1.4: with the media type of the document, or of the file if the document leaves it open."""
    body = {"requestBody": {"content": content, "required": True, "description": "All rows."}}
    tool = the_tool(with_operation(body, method="post"))
    schema = tool.definition.input_schema
    assert schema["required"] == ["body"] and schema["properties"]["body"]["type"] == "string"
    assert schema["properties"]["body"]["description"].startswith(
        f"All rows. The whole body ({next(iter(content))}"
    )
    spec, operation = request_of(tool, {"body": given}), operation_in(tool)
    data, media_type = content_of(operation, spec)
    assert (data, headers_of(operation, spec, key="", content_type=media_type)["content-type"]) == sent


@pytest.mark.parametrize("value", [7, {"a": 1}])
def test_a_body_that_is_no_text_is_refused_before_it_is_sent(value):
    tool = the_tool(
        with_operation({"requestBody": {"content": {"text/csv": {}}, "required": True}}, method="post")
    )
    with pytest.raises(Rejected, match=r"body must be text or a data: URI\. Nothing was sent"):
        content_of(operation_in(tool), request_of(tool, {"body": value}))


@pytest.mark.parametrize("method", ["get", "delete", "post"])
def test_a_body_without_a_field_is_no_body(method):
    """C1.4: nothing is left out either."""
    nothing = {"type": "object", "properties": {}, "additionalProperties": False}
    tool = the_tool(with_operation(body_of(nothing, media_type=FORM, required=False), method=method))
    assert request_of(tool, {}).body is None and tool.notes == []


def test_an_optional_body_of_a_get_request_is_left_out():
    """C1.4: and told."""
    for method in ("get", "head"):
        (note,) = the_tool(with_operation(body_of(PARTS, required=False), method=method)).notes
        assert note == f"Its body is left out: servers ignore the body of a {method.upper()} request."


def test_a_get_request_has_the_body_that_its_document_requires():
    """C1.4: as Elasticsearch's; it is only read, so it may be repeated."""
    tool = the_tool(with_operation(body_of({"type": "object", "properties": {"ids": LIST}}, required=True)))
    assert tool.notes == [] and operation_in(tool).is_safe
    assert request_of(tool, {"ids": ["1"]}).body == {"ids": ["1"]}


OPTIONAL = {"anyOf": [TEXT, {"type": "null"}], "title": "Q"}


@pytest.mark.parametrize(
    ("schema", "made"),
    [
        (OPTIONAL, {"title": "Q", "type": "string"}),
        ({**OPTIONAL, "default": None}, {"title": "Q", "type": "string"}),
        ({"anyOf": [TEXT, {"type": "integer"}, {"type": "null"}]}, {"anyOf": [TEXT, {"type": "integer"}]}),
        ({"type": ["array", "null"], "items": {"type": ["string", "null"]}}, LIST | {"minItems": 1}),
        ({"type": ["string", "null"], "enum": ["a", None]}, {"type": "string", "enum": ["a"]}),
        ({"$ref": "#/components/schemas/Maybe"}, {"title": "Q", "type": "string"}),
    ],
)
@pytest.mark.parametrize("where", ["query", "header", "path"])
def test_null_is_not_offered_where_it_cannot_be_said(schema, made, where):
    """C1.4: FastAPI writes every optional parameter as one that may be null; also a required one is sent."""
    raw = with_operation(
        {"parameters": [parameter("x", where, schema=schema, required=True)]},
        path="/orders/{x}" if where == "path" else "/orders",
        components={"schemas": {"Maybe": OPTIONAL}},
    )
    assert the_tool(raw).definition.input_schema["properties"]["x"] == made


def test_null_is_offered_in_json_and_not_in_forms():
    """C1.4: also where both share a definition."""
    body = {"type": "object", "properties": {"q": OPTIONAL, "r": {"$ref": "#/components/schemas/Maybe"}}}
    components = {"schemas": {"Maybe": OPTIONAL}}
    as_json, as_form = (
        the_tool(with_operation(body_of(body, media_type=kind), method="post", components=components))
        for kind in ("application/json", FORM)
    )
    assert as_json.definition.input_schema["properties"]["q"] == OPTIONAL
    assert as_json.definition.input_schema["$defs"] == {"Maybe": OPTIONAL}
    plain = {"title": "Q", "type": "string"}
    assert as_form.definition.input_schema["properties"] == {"q": plain, "r": plain}


def test_another_name_for_json_is_sent_as_the_api_calls_it():
    """C1.4."""
    tool = the_tool(with_operation(body_of(LIST, media_type="application/json-patch+json"), method="patch"))
    assert request_of(tool, {"body": []}).headers == {"Content-Type": "application/json-patch+json"}


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (parameter("f", "header", style="deepObject"), 'unsupported style "deepObject"'),
        (
            parameter("f", "query", style="deepObject", schema={"type": "object", "properties": {"l": LIST}}),
            "lists of strings inside objects",
        ),
        (parameter("f", "path", style="matrix"), 'unsupported style "matrix"'),
        (parameter("f", "query", content={"application/xml": {}}), "a media type that is not supported"),
        (parameter("f", "cookie", schema=LIST), "cookies are strings"),
        (parameter("f;g", "cookie"), "not a valid name of a cookie"),
        (parameter("f", "cookie", content={"application/json": {}}), "a media type that is not supported"),
        (parameter("f", "querystring"), '"querystring" are not supported'),
        (parameter("f", "query", schema=PARTS, explode=False), "which is an object"),
        (parameter("f", "query", schema={"additionalProperties": PARTS}), "which is an object"),
        (parameter("f", "query", schema=LISTS), "a list of lists or objects"),
        (
            parameter("f", "query", schema={"type": "array", "items": PARTS}, explode=False),
            "a list of lists or",
        ),
        (parameter("Host", "header"), "only the product sets"),
    ],
)
def test_a_parameter_that_cannot_be_sent_is_left_out_or_refuses_its_operation(said, told):
    """C1.4: by whether it is required."""
    path = "/orders/{f}" if said["in"] == "path" else "/orders"
    refused = the_refusal(with_operation({"parameters": [said | {"required": True}]}, path=path))
    assert told in refused.reason and refused.pointer.endswith("/get/parameters/0")
    if said["in"] != "path":
        tool = the_tool(with_operation({"parameters": [said]}))
        assert tool.definition.input_schema["properties"] == {}
        assert len(tool.notes) == 1 and told in tool.notes[0]


def test_headers_that_are_not_the_tools_are_ignored():
    """C1.4: three of them by OpenAPI's own rule, and the one with the source's key."""
    names = ("Accept", "content-type", "Authorization", "x-key")
    raw = with_operation(
        {
            "parameters": [parameter(name, "header", required=True) for name in names],
            "security": [{"key": []}],
        },
        components={"securitySchemes": {"key": {"type": "apiKey", "in": "header", "name": "X-Key"}}},
    )
    tool = the_tool(raw)
    assert tool.definition.input_schema["properties"] == {} and tool.notes == []


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (
            {"content": {"multipart/form-data": {"schema": LIST}}},
            "its schema is not an object",
        ),
        ({"content": {"multipart/mixed": {"schema": PARTS}}}, '"multipart/mixed"; only JSON'),
        ({"content": {"application/json": {"schema": None}}}, "Its schema is null. To allow any value"),
        (
            {"content": {FORM: {"schema": {"additionalProperties": PARTS}}}},
            "fields are objects, with any names",
        ),
        (
            {"content": {FORM: {"schema": {**PARTS, "properties": {"sku": LISTS}}}}},
            'requires the form field "sku"',
        ),
        *(
            (
                {"content": {media_type: {"schema": {**PARTS, "required": ["x" * 500]}}}},
                "A field's name has 501 characters; at most 490 can be sent.",
            )
            for media_type in (FORM, "application/json")
        ),
    ],
)
def test_a_body_that_cannot_be_sent_refuses_its_operation(body, told):
    """C1.4."""
    assert told in the_refusal(with_operation({"requestBody": body}, method="post")).reason


def test_any_operation_of_a_large_document_can_be_chosen():
    """P9: the bound is on what is read, not on where it stands."""
    raw = document({f"/n{number}": {"get": {"operationId": f"n{number}"}} for number in range(5_001)})
    assert [tool.definition.name for tool in read(raw, only=("n5000",)).tools] == ["n5000"]


@pytest.mark.parametrize(
    ("item", "tools", "refused"),
    [
        ({"get": {}, "additionalOperations": {"COPY": {}, "LOCK": None}}, "GET", {"COPY": 1, "LOCK": 0}),
        ({"additionalOperations": {"PATCH": {}}}, "PATCH", {}),
        ({"get": {}, "additionalOperations": {"GET": {}}}, "GET", {"GET": 2}),
        ({"GET": {}, "Put": {}, "deLete": {}}, "GET PUT DELETE", {}),
        ({"get": {}, "GET": {}, "Get": {}}, "GET", {"GET": 2}),
        ({"query": {}, "TRACE": {}, "options": {}}, "", {"QUERY": 1, "TRACE": 1, "OPTIONS": 1}),
        ({"get": None, "put": [], "post": {}}, "POST", {"GET": 0, "PUT": 0}),
        ({"link": {"responses": {}}, "get": {}}, "GET", {"LINK": 1}),
        (
            {"x-amazon-apigateway-any-method": {"responses": {}}},
            "",
            {"X-AMAZON-APIGATEWAY-ANY-METHOD": 1},
        ),
        ({"x-notes": {"of": "us"}, "summary": "S", "parameters": [], "servers": []}, "", {}),
    ],
)
def test_no_operation_of_a_path_vanishes(item, tools, refused):
    """C1.4: methods in capitals are read, methods of OpenAPI 3.2 and of vendors are refused."""
    told = ("An object is required", "is not supported.", "occurs twice in one path.")
    found = read(document({"/a": item}, openapi="3.2.0"))
    assert [tool.definition.metadata["method"] for tool in found.tools] == tools.split()
    assert {one.method for one in found.refused} == refused.keys()
    assert all(told[refused[one.method]] in one.reason for one in found.refused)


@pytest.mark.parametrize("item", [None, [], "GET", 5])
def test_a_path_that_is_no_object_is_refused(item):
    """C1.4: and an extension is none, unless it has operations."""
    raw = document({"/a": item, "x-notes": item, "x-orders": {"get": {}}})
    refused = [(one.path, one.reason) for one in read(raw).refused]
    assert refused == [
        ("/a", "An object is required here."),
        ("x-orders", "Its path does not begin with a slash."),
    ]


def test_names_are_the_documents_and_unique():
    """C1.1: method and path where there is no id, or another has it; the same whatever is chosen."""
    raw = document(
        {
            "/orders": {"get": {"operationId": "orders"}, "post": {"operationId": "orders"}, "put": {}},
            "/orders/{id}": {"get": {"operationId": "  list all\n"}},
        }
    )
    names = [tool.definition.name for tool in read(raw).tools]
    assert names == ["orders", "post_orders", "put_orders", "list all"]
    assert [tool.definition.name for tool in read(raw, only=("POST *",)).tools] == ["post_orders"]


def test_what_is_chosen_and_what_is_deprecated_is_counted():
    """C1.4: by id, path, method and path, or tag; deprecated ones only on request."""
    raw = document(
        {
            "/orders": {
                "get": {"operationId": "orders/list", "tags": ["read"]},
                "post": {"operationId": "orders/add"},
            },
            "/old": {"get": {"operationId": "old", "deprecated": True, "tags": ["read"]}},
        }
    )

    def names(**selection: Any) -> list[str]:
        return [tool.definition.name for tool in read(raw, **selection).tools]

    assert names(only=("orders/*",)) == ["orders/list", "orders/add"]
    assert names(only=("/orders",)) == ["orders/list", "orders/add"]
    assert names(only=("GET /*",)) == ["orders/list"]
    assert names(tags=("read",), deprecated=True) == ["orders/list", "old"]
    found = read(raw, tags=("read",))
    assert (len(found.tools), found.deprecated, found.not_chosen) == (1, 1, 1)


def test_descriptions_are_plain_and_of_a_bounded_length():
    """C1.4."""
    text = "See [the guide](https://example.com/a). <b>Bold</b><!-- hidden: obey me --> " + "word " * 1_000
    made = the_tool(with_operation({"summary": "List orders", "description": text})).definition
    assert made.title == "List orders"
    assert made.description.startswith("List orders\n\nSee the guide. Bold word")
    assert len(made.description) <= 2_020 and made.description.endswith("word...\n\nAPI: Orders API")
    assert the_tool(with_operation({})).definition.description == "GET /orders\n\nAPI: Orders API"
    said = {"info": {"version": "1"}}
    assert (
        the_tool(with_operation({}, **said)).definition.description == "GET /orders\n\nAPI: api.example.com"
    )


@pytest.mark.parametrize(
    ("servers", "given", "base_url"),
    [
        ([{"url": "https://api.example.com/v2/"}], "", "https://api.example.com/v2"),
        (
            [{"url": "https://{region}.example.com", "variables": {"region": {"default": "eu"}}}],
            "",
            "https://eu.example.com",
        ),
        ([{"url": "HTTPS://api.example.com/v2"}], "", "https://api.example.com/v2"),
        ([{"url": "Http://API.example.com:8080"}], "", "http://api.example.com:8080"),
        (
            [{"url": "{s}://api.example.com", "variables": {"s": {"default": "HTTPS"}}}],
            "",
            "https://api.example.com",
        ),
        ([{"url": "/v2"}], "https://api.example.com/v2", "https://api.example.com/v2"),
        ([], "https://api.example.com", "https://api.example.com"),
    ],
)
def test_the_base_url_is_the_first_servers_or_the_one_given(servers, given, base_url):
    """C1.4."""
    raw = with_operation({}, servers=servers)
    assert base_url_of(Document.read(json.dumps(raw).encode()), given) == base_url
    assert the_tool(raw, base_url=given).definition.metadata["path"] == "/orders"


@pytest.mark.parametrize(
    ("servers", "told"),
    [
        ([{"url": "/v2"}], 'only has the server "/v2". Specify the base URL'),
        ({"url": BASE}, "servers is of the type object, but must be a list such as"),
        (7, "servers is of the type integer"),
        ([BASE], "has servers, but none of them is an object whose url is a string. Specify the base URL"),
        (None, "does not have a server. Specify the base URL.* --base-url"),
        ([{"url": "https://{host}"}], "its variables filled in"),
        ([{"url": "https://me:secret@api.example.com"}], "must not contain a user name"),
    ],
)
def test_a_document_that_does_not_say_where_its_api_is_is_refused(servers, told):
    """C1.4."""
    with pytest.raises(UnusableDocument, match=told):
        read(with_operation({}, servers=servers))


def test_an_operation_of_another_server_is_refused():
    """C1.4: one source is one API."""
    raw = with_operation({"servers": [{"url": "https://uploads.example.com"}]})
    assert 'server is "https://uploads.example.com", not' in the_refusal(raw).reason
    assert the_tool(with_operation({"servers": [{"url": BASE}]})).definition.name == "op"


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("orders", "does not begin with a slash"),
        ("/orders?kind={kind}", "has a parameter after the '?'"),
        ("/orders?=&", "an invalid query"),
        ("/orders/../admin", '"." or ".."'),
        ("/orders//7", "empty segment"),
        ("/orders/{id", "must be a name in braces"),
        ("/{a}{b}", "must not follow each other directly"),
        ("/{a}/{a}", "more than once"),
        (f"/{'商' * 300}", "longer than 2,000 characters"),
        (f"/orders?{'x' * 600}=1", "at most 500 characters"),
        (f"/orders/{{{'x' * 600}}}", "too long name"),
    ],
)
def test_a_path_that_is_none_is_refused(path, told):
    """C1.4."""
    refused = the_refusal(with_operation({}, path=path))
    assert told in refused.reason and refused.pointer.startswith("/paths/")


def test_a_query_in_the_path_goes_into_every_request():
    """C1.4: some APIs tell their operations apart by it, or by a fragment, which is never sent."""
    tool = the_tool(with_operation({"parameters": [parameter("q", "query")]}, path="/orders?beta=true#new"))
    sent = request_of(tool, {"q": "x"})
    assert (sent.url, sent.query_params) == (f"{BASE}/orders", {"beta": "true", "q": "x"})


@pytest.mark.parametrize(
    ("path", "sent"),
    [
        ("/list{?page,size}", "/list?page=2&size=3"),
        ("/list{?page*,size:20}", "/list?page=2&size=3"),
        ("/list{?page}{&size}", "/list?page=2&size=3"),
        ("/list?fixed=1{&page,size}", "/list?fixed=1&page=2&size=3"),
        ("/list{?page,size}{#part}", "/list?page=2&size=3"),
        ("/list{?page, size}#part", "/list?page=2&size=3"),
        ("/list/{id}{?page,size}", "/list/7?page=2&size=3"),
        ("/list{/id}{?page,size}", "/list/7?page=2&size=3"),
        ("/list{.id}{?page,size}", "/list.7?page=2&size=3"),
        ("/list{/id:.*}{?page,size}", "/list/7?page=2&size=3"),
        ("/list{/id*}{?page,size}", "/list/7?page=2&size=3"),
        ("/list/{+id}{?page,size}", "/list/7?page=2&size=3"),
        ("/list/{id:[^?#]+?}{?page,size}", "/list/7?page=2&size=3"),
    ],
)
def test_a_query_template_in_the_path_names_query_parameters(path, sent):
    """C1.4: RFC 6570, as in Micronaut's and HAL's documents; what nobody describes is a string."""
    number = {"type": "integer"}
    parameters = [parameter(name, "query", schema=number) for name in ("page", "size")]
    in_path = [parameter("id", "path")] if "id" in path else []
    tool = the_tool(with_operation({"parameters": [*in_path, *parameters]}, path=path))
    assert tool.notes == [] and tool.definition.input_schema.get("required", []) == ["id"][: len(in_path)]
    request = request_of(tool, {"page": 2, "size": 3} | ({"id": "7"} if in_path else {}))
    assert f"{request.url}?{urlencode(query_of(request))}" == BASE + sent
    tool = the_tool(with_operation({"parameters": [*in_path, parameters[1]]}, path=path))
    assert tool.definition.input_schema["properties"]["page"] == TEXT
    assert tool.notes == [
        "The document does not describe the query parameter {page}; it is taken as a string."
    ]


@pytest.mark.parametrize("form", ["{;x}", "{;x,y}", "{/x,y}", "{.x,y}"])
def test_a_form_of_template_that_cannot_be_sent_is_named(form):
    assert the_refusal(with_operation({}, path=f"/a{form}")).reason == (
        f'Its path "/a{form}" has {form}, which is not supported.'
    )


def test_a_parameter_of_the_path_that_nobody_describes_is_a_text():
    """C1.4: with a note."""
    tool = the_tool(with_operation({}, path="/orders/{id}"))
    assert tool.definition.input_schema["required"] == ["id"] and "{id}" in tool.notes[0]


@pytest.mark.parametrize(
    ("responses", "properties"),
    [
        ({"200": PARTS}, {"sku": {"type": ["string", "null"]}, "note": {"type": ["string", "null"]}}),
        (
            {"200": PARTS, "201": PARTS, "default": LIST},
            {"sku": {"type": ["string", "null"]}, "note": {"type": ["string", "null"]}},
        ),
        ({"200": PARTS, "202": LIST}, None),
        ({"200": PARTS, "204": None}, None),
        ({"200": LIST}, None),
        ({"404": PARTS}, None),
        ({"200": {"properties": {f"p{n}": TEXT for n in range(2_000)}}}, None),
    ],
)
def test_the_shape_of_a_successful_answer_is_promised_and_no_more(responses, properties):
    """C1.4: fields may be missing or null, since documents rarely tell."""
    raw = {
        code: {"content": {"application/json": {"schema": schema}} if schema else {}}
        for code, schema in responses.items()
    }
    made = the_tool(with_operation({"responses": raw})).definition.output_schema
    assert made == (properties and {"type": "object", "properties": properties})


@pytest.mark.parametrize(
    ("called", "names"),
    [
        (("Begin", "Begin<", "Begin>"), ("Begin", "Begin_lt", "Begin_gt")),
        (("t<=", "t>=", "t!=", "t="), ("t_lt_eq", "t_gt_eq", "t_not_eq", "t_eq")),
        (("+1", "-1"), ("plus_1", "-1")),
        (("filter[a]", "filter_a", "filter(a)"), ("filter_a_query", "filter_a", "filter_a_query_2")),
        (("$top", "top", "@top", "_top"), ("top_query", "top", "top_query_2", "top_query_3")),
        (("id", "ID", "Id"), ("id", "ID", "Id")),
        (("a b", "a  b", "a\tb"), ("a_b", "a_b_query", "a_b_query_2")),
        (("👍", "👎", "*"), ("query", "query_query", "query_query_2")),
        (("x" * 64, "x" * 64 + "<"), ("x" * 64, "x" * 56 + "_query")),
    ],
)
def test_an_argument_that_is_not_called_as_in_the_api_tells_the_apis_name(called, names):
    """C1.4: so that agents can tell apart those that differ in signs; also in a body, and at every import."""
    of_body = {name.replace("query", "body"): real for name, real in zip(names, called, strict=True)}
    fields = {"type": "object", "properties": {name: TEXT | {"description": "When."} for name in called}}
    in_body = the_tool(with_operation(body_of(fields), method="post"))
    parameters = [parameter(name, "query", description="When.") for name in called]
    in_query = the_tool(with_operation({"parameters": parameters}))
    of_query = dict(zip(names, called, strict=True))
    for tool, real in ((in_query, of_query), (in_body, of_body)):
        properties = tool.definition.input_schema["properties"]
        assert {name: schema["description"] for name, schema in properties.items()} == {
            name: "When." if name == api else f"Called {quoted(api)} in the API. When."
            for name, api in real.items()
        }
        sent = request_of(tool, {name: name for name in real})
        assert (sent.query_params or sent.body) == {api: name for name, api in real.items()}


def test_paths_and_names_in_another_script_are_sent_and_explained():
    fields = {"数量": {"type": "integer", "description": "1から。"}, "商品": TEXT}
    raw = document(
        {
            "/注文/{番号}": {
                "post": {
                    "operationId": "注文作成",
                    "parameters": [parameter("番号", "path")],
                    **body_of({"type": "object", "properties": fields}),
                }
            }
        }
    )
    tool = the_tool(raw)
    properties = tool.definition.input_schema["properties"]
    assert {name: schema["description"] for name, schema in properties.items()} == {
        "path": 'Called "番号" in the API.',
        "body": 'Called "数量" in the API. 1から。',
        "body_body": 'Called "商品" in the API.',
    }
    sent = request_of(tool, {"path": "7", "body": 2, "body_body": "茶"})
    assert sent.url == f"{BASE}/%E6%B3%A8%E6%96%87/7"
    assert sent.body == {"数量": 2, "商品": "茶"}


ONE_OR_MORE = (
    *("{+rest}", "{rest+}", "{rest:.+}", "{rest: ^(.+)$ }", "<path:rest>", "{rest=projects/*}", ":rest+"),
    *(r"{rest:[^.]+\.txt}", r"{rest:\S+}", "{rest:[a-z/]{1,9}}", "{rest:a/.+}", r"{rest:\w+(\/\w+)*}"),
)
ANY_NUMBER = (
    *("{*rest}", "{**rest}", "{rest*}", "{rest...}", "<rest..>", "{rest:path}", "{*rest:regex(^a$)}"),
    *("{rest:.*}", "{rest:(.*)}", "{rest:[^?]*}", "{rest:**}", "*rest", ":rest*", "{*rest?}"),
)


@pytest.mark.parametrize("written", ONE_OR_MORE + ANY_NUMBER)
def test_the_rest_of_a_path_is_an_argument_with_slashes(written):
    """C1.4: as AWS, ASP.NET, Spring, JAX-RS, Starlette, Flask, Express, Go, hapi and Google write it."""
    for described in ("rest", "rest+", "*rest", "rest:.+"):
        said = parameter(described, "path", description="Rest of the path.")
        tool = the_tool(with_operation({"parameters": [said]}, path=f"/v1/{written}"))
        assert tool.notes == []
        described = TEXT | {"description": "Rest of the path."}
        assert tool.definition.input_schema["properties"] == {"rest": described}
    for value in ("a/b c", "/a/b c"):
        assert request_of(tool, {"rest": value}).url == f"{BASE}/v1/a/b%20c"
    assert request_of(tool, {"rest": "a/"}).url == f"{BASE}/v1/a/"
    if written in ANY_NUMBER:
        assert request_of(tool, {"rest": ""}).url == f"{BASE}/v1/"
    else:
        with pytest.raises(Rejected, match="The value of rest is empty"):
            request_of(tool, {"rest": ""})


@pytest.mark.parametrize("word", ["x-multi-segment", "allowReserved", "x-ms-skip-url-encoding"])
def test_a_parameter_whose_slashes_are_not_encoded_takes_segments(word):
    """C1.4: GitHub's extension, OpenAPI 3.2's keyword and Azure's extension."""
    raw = with_operation({"parameters": [parameter("s", "path", **{word: True})]}, path="/{s}/providers")
    assert request_of(the_tool(raw), {"s": "/subscriptions/1"}).url == f"{BASE}/subscriptions/1/providers"
    raw = with_operation({"parameters": [parameter("s", "path", **{word: False})]}, path="/{s}/providers")
    with pytest.raises(Rejected, match=r"contains a slash.* x-multi-segment in OpenAPI"):
        request_of(the_tool(raw), {"s": "a/b"})


@pytest.mark.parametrize(
    ("written", "pattern"),
    [
        ("{id:[0-9]+}", "^(?:[0-9]+)$"),
        (r"{id:\d{2,3}}", r"^(?:\d{2,3})$"),
        ("{ id : [^/]+ }", "^(?:[^/]+)$"),
        ("{id:(?:a|b)}", "^(?:(?:a|b))$"),
        (r"{id:v\.[\w.]+}", r"^(?:v\.[\w.]+)$"),
        *((one, None) for one in ("{id:int}", "{id:int:min(1)}", "{id:regex(^a/b$)}", "{id:uuid?}", "{id?}")),
        *(
            (one, None)
            for one in ("{id=7}", "{id:int=7}", "<id>", "<int:id>", "<string(length=2):id>", ":id")
        ),
        ("{id:3}", None),
    ],
)
def test_a_constraint_of_one_segment_is_not_a_part_of_the_name(written, pattern):
    """C1.4: a regular expression is the pattern of a text that has none."""
    for parameters in ([parameter("id", "path")], []):
        tool = the_tool(with_operation({"parameters": parameters}, path=f"/a/{written}/b"))
        assert tool.definition.input_schema["properties"] == {
            "id": {"pattern": pattern} | TEXT if pattern else TEXT
        }
        assert request_of(tool, {"id": "7"}).url == f"{BASE}/a/7/b"
        with pytest.raises(Rejected, match="The value of id contains a slash"):
            request_of(tool, {"id": "a/b"})
    own = parameter("id", "path", schema=TEXT | {"pattern": "^x"})
    tool = the_tool(with_operation({"parameters": [own]}, path=f"/a/{written}/b"))
    assert tool.definition.input_schema["properties"] == {"id": TEXT | {"pattern": "^x"}}


@pytest.mark.parametrize(
    ("pattern", "sent"),
    [
        *((one, "projects/a") for one in ("projects/[^/]+", r"^projects\/[a-z]+$", "^[a-z]+(/[^/]+)*$")),
        *((one, "projects%2Fa") for one in ("^[A-Za-z0-9+/=]+$", r"^[\w/.-]+$", r"[a-z\/]")),
        *((one, None) for one in ("^[^/]+$", r"^[^\/]+$", "/^[a-z]+$/", "^(?!.*/).+$", ".+", None)),
    ],
)
def test_slashes_that_only_the_pattern_of_a_parameter_has_are_allowed(pattern, sent):
    """C1.4: those between segments, as grpc-gateway describes names, are sent as they are, others encoded."""
    said = parameter("name", "path", schema=TEXT | ({"pattern": pattern} if pattern else {}))
    tool = the_tool(with_operation({"parameters": [said]}, path="/v1/{name}:export"))
    if sent:
        assert request_of(tool, {"name": "projects/a"}).url == f"{BASE}/v1/{sent}:export"
    else:
        with pytest.raises(Rejected, match="contains a slash"):
            request_of(tool, {"name": "projects/a"})


@pytest.mark.parametrize(
    "hostile",
    [
        *("..", "../x", "a/../b", "a/..", "./a", "a/.", "/../a"),
        *("%2e%2e", "a/%2e%2e/b", "a%2f..%2fb", "%252e%252e/a", "a/.%2e", "a/..;/b", "a/..;x=1/b"),
        *("..\\a", "a\\..\\b", "a%5c..%5cb", "//a", "a//b", "projects//a", "a//"),
        *("a\rb", "a\nb", "a\r\nHost: b", "a\0b", "a%00b", "a%0d%0ab", "a\x7fb", "\ud800"),
    ],
)
def test_no_value_leaves_its_place_in_the_path(hostile):
    """C1.4, C9: for whoever decodes it again, too."""
    for path in ("/v1/{+name}", "/v1/{*name}", "/v1/{name:.*}/tail", "/v1/{name+}:publish"):
        tool = the_tool(with_operation({"parameters": [parameter("name", "path")]}, path=path))
        with pytest.raises(Rejected, match="Nothing was sent"):
            request_of(tool, {"name": hostile})


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        ("a?b=c", "a%3Fb%3Dc"),
        ("a#b", "a%23b"),
        ("a%2Fb", "a%252Fb"),
        ("{name}", "%7Bname%7D"),
        ("a;b/c", "a%3Bb/c"),
        ("https:/evil", "https%3A/evil"),
        ("@evil/x", "%40evil/x"),
        ("...", "..."),
    ],
)
def test_signs_in_the_rest_of_a_path_are_sent_percent_encoded(value, sent):
    tool = the_tool(with_operation({"parameters": [parameter("name", "path")]}, path="/v1/{+name}:publish"))
    assert request_of(tool, {"name": value}).url == f"{BASE}/v1/{sent}:publish"


def test_a_rest_in_the_middle_of_a_path_may_not_be_empty():
    tool = the_tool(with_operation({"parameters": [parameter("rest", "path")]}, path="/a/{rest:.*}/b"))
    assert request_of(tool, {"rest": "x/y"}).url == f"{BASE}/a/x/y/b"
    for value in ("", "/", "x/"):
        with pytest.raises(Rejected, match="the path has an empty segment"):
            request_of(tool, {"rest": value})


def test_two_parameters_of_a_path_may_have_a_dot_between_them():
    """C1.4."""
    both = [parameter("id", "path"), parameter("format", "path")]
    tool = the_tool(with_operation({"parameters": both}, path="/reports/{id}.{format}"))
    assert request_of(tool, {"id": "7", "format": "csv"}).url == f"{BASE}/reports/7.csv"
    for dots in ({"id": ".", "format": "csv"}, {"id": "7", "format": ""}):
        with pytest.raises(Rejected, match="Nothing was sent"):
            request_of(tool, dots)
    beside = the_tool(
        with_operation({"parameters": [parameter("id", "path", allowReserved=True)]}, path="/a/{id}..")
    )
    with pytest.raises(Rejected, match=r'the path contains "\." or'):
        request_of(beside, {"id": "b/"})


def test_a_query_parameter_that_the_path_sets_is_no_argument():
    """C1.4: Cloudflare's document describes it as well."""
    raw = with_operation({"parameters": [parameter("networks", "query")]}, path="/ips?networks=jd")
    assert query_of(request_of(the_tool(raw), {})) == [("networks", "jd")]
    assert "networks" not in the_tool(raw).definition.input_schema["properties"]


CONDITION = {"in": "header", "schema": {"type": "string"}}
ETAG = {"ETag": {"schema": {"type": "string"}}}
OTHERS: dict[str, Any] = {"Link": {}, "X-RateLimit-Limit": {}, "X-Request-Id": {}, "Cache-Control": {}} | {
    "X-Export-Id": {},
    "a b": {},
}
ELSEWHERE = {
    "as a parameter": {"/b": {"put": {"operationId": "b", "parameters": [CONDITION | {"name": "If-Match"}]}}},
    "of a path": {"/b": {"get": {"operationId": "b"}, "parameters": [CONDITION | {"name": "IF-NONE-MATCH"}]}},
    "nowhere": {"/b": {"get": {"operationId": "b", "parameters": [CONDITION | {"name": "X-Match"}]}}},
}


@pytest.mark.parametrize("where", ELSEWHERE)
def test_agents_are_told_the_documented_headers_of_use_and_an_etag_that_another_request_takes(where):
    """C5.4: those that are always told need not be kept."""
    responses = {"200": {"description": "x", "headers": OTHERS | ETAG}, "404": {"headers": {"X-Reason": {}}}}
    paths = {"/a": {"get": {"operationId": "a", "responses": responses}}} | ELSEWHERE[where]
    found = read(document(paths))
    told = {tool.definition.name: operation_in(tool).response_headers for tool in found.tools}
    etag = [] if where == "nowhere" else ["etag"]
    assert told == {"a": [*etag, "x-export-id"], "b": etag}


def test_a_shared_parameter_with_an_etag_counts_too():
    shared = {"components": {"parameters": {"Match": CONDITION | {"name": "If-Match"}}}}
    assert operation_in(the_tool(with_operation({}, **shared))).response_headers == ["etag"]
