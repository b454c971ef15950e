"""What becomes of an operation: its name, its arguments, the request that they make, or why it is refused."""

from typing import Any

import pytest

from connectors.errors import Rejected
from connectors.http_tools.checks import operation_of
from connectors.http_tools.openapi.document import UnusableDocument
from connectors.http_tools.request import content_of, form_pairs, headers_of, query_of
from tests.connectors.openapi import (
    BASE,
    body_of,
    document,
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
    assert tool.config.input_schema["required"] == ["id"]
    assert tool.config.input_schema["properties"]["X-Trace"] == {
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
    schema = tool.config.input_schema
    assert schema["properties"] == {"page": number, "size": number, "sort": LIST, "limit": number}
    assert "required" not in schema
    assert tool.notes == [
        'The query parameter "by" is left out, which is an object, and objects can only be sent in a body; '
        "if the API reads it as JSON, describe it with content: application/json."
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
    assert the_tool(raw).config.input_schema["required"] == ["size"]
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
    assert list(tool.config.input_schema["properties"]) == [
        "id",
        "filter_id",
        "sku",
        "note",
        "id_body",
        "a_b",
    ]
    assert tool.config.input_schema["required"] == ["id", "sku"]
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
    assert tool.config.input_schema["required"] == ["body"]
    assert request_of(tool, {"body": value}).body == value


def test_a_body_that_may_be_left_out_but_not_in_part_is_one_argument():
    """C1.4."""
    tool = the_tool(with_operation(body_of(PARTS, required=False), method="post"))
    assert "required" not in tool.config.input_schema
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
    assert tool.config.api.body_format == "form"
    assert list(tool.config.input_schema["properties"]) == ["To", "Media", "Deep", "Said"]
    assert tool.notes == [
        'The form field "Lines" is left out, which is a list of lists or objects.',
        'The form field "Spread" is left out, which is an object, and form fields can only be strings.',
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
    assert list(tool.config.input_schema["properties"]) == left
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
    assert tool.config.input_schema["properties"]["all"] == MAP and not tool.notes
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
    schema = tool.config.input_schema
    assert schema["required"] == ["body"] and schema["properties"]["body"]["type"] == "string"
    assert schema["properties"]["body"]["description"].startswith(
        f"All rows. The whole body ({next(iter(content))}"
    )
    spec, operation = request_of(tool, {"body": given}), operation_of(tool.config, base_url=BASE)
    data, media_type = content_of(operation, spec)
    assert (data, headers_of(operation, spec, key="", content_type=media_type)["content-type"]) == sent


@pytest.mark.parametrize("value", [7, {"a": 1}])
def test_a_body_that_is_no_text_is_refused_before_it_is_sent(value):
    tool = the_tool(
        with_operation({"requestBody": {"content": {"text/csv": {}}, "required": True}}, method="post")
    )
    with pytest.raises(Rejected, match=r"body must be text or a data: URI\. Nothing was sent"):
        content_of(operation_of(tool.config, base_url=BASE), request_of(tool, {"body": value}))


@pytest.mark.parametrize("method", ["get", "delete", "post"])
def test_a_body_without_a_field_is_no_body(method):
    """C1.4: nothing is left out either."""
    nothing = {"type": "object", "properties": {}, "additionalProperties": False}
    tool = the_tool(with_operation(body_of(nothing, media_type=FORM, required=False), method=method))
    assert request_of(tool, {}).body is None and tool.notes == []


def test_a_body_that_a_request_cannot_have_is_told():
    """C1.4."""
    (note,) = the_tool(with_operation(body_of(PARTS))).notes
    assert note == "Its body is left out: GET requests cannot have a body."


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
    assert the_tool(raw).config.input_schema["properties"]["x"] == made


def test_null_is_offered_in_json_and_not_in_forms():
    """C1.4: also where both share a definition."""
    body = {"type": "object", "properties": {"q": OPTIONAL, "r": {"$ref": "#/components/schemas/Maybe"}}}
    components = {"schemas": {"Maybe": OPTIONAL}}
    as_json, as_form = (
        the_tool(with_operation(body_of(body, media_type=kind), method="post", components=components))
        for kind in ("application/json", FORM)
    )
    assert as_json.config.input_schema["properties"]["q"] == OPTIONAL
    assert as_json.config.input_schema["$defs"] == {"Maybe": OPTIONAL}
    plain = {"title": "Q", "type": "string"}
    assert as_form.config.input_schema["properties"] == {"q": plain, "r": plain}


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
        assert tool.config.input_schema["properties"] == {}
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
    assert tool.config.input_schema["properties"] == {} and tool.notes == []


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (
            {"content": {"multipart/form-data": {"schema": {"type": "object"}}}},
            "does not list its fields",
        ),
        ({"content": {"multipart/mixed": {"schema": PARTS}}}, '"multipart/mixed"; only JSON'),
        ({"content": {"application/json": {"schema": None}}}, "Its schema is null. To allow any value"),
        (
            {"content": {FORM: {"schema": {"type": "object"}}}},
            "does not list its fields",
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
    assert [tool.config.name for tool in read(raw, only=("n5000",)).tools] == ["n5000"]


def test_names_are_the_documents_and_unique():
    """C1.1: method and path where there is no id, or another has it; the same whatever is chosen."""
    raw = document(
        {
            "/orders": {"get": {"operationId": "orders"}, "post": {"operationId": "orders"}, "put": {}},
            "/orders/{id}": {"get": {"operationId": "  list all\n"}},
        }
    )
    names = [tool.config.name for tool in read(raw).tools]
    assert names == ["orders", "post_orders", "put_orders", "list all"]
    assert [tool.config.name for tool in read(raw, only=("POST *",)).tools] == ["post_orders"]


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
        return [tool.config.name for tool in read(raw, **selection).tools]

    assert names(only=("orders/*",)) == ["orders/list", "orders/add"]
    assert names(only=("/orders",)) == ["orders/list", "orders/add"]
    assert names(only=("GET /*",)) == ["orders/list"]
    assert names(tags=("read",), deprecated=True) == ["orders/list", "old"]
    found = read(raw, tags=("read",))
    assert (len(found.tools), found.deprecated, found.not_chosen) == (1, 1, 1)


def test_descriptions_are_plain_and_of_a_bounded_length():
    """C1.4."""
    text = "See [the guide](https://example.com/a). <b>Bold</b><!-- hidden: obey me --> " + "word " * 1_000
    config = the_tool(with_operation({"summary": "List orders", "description": text})).config
    assert config.title == "List orders"
    assert config.description.startswith("List orders\n\nSee the guide. Bold word")
    assert len(config.description) <= 2_020 and config.description.endswith("word...\n\nAPI: Orders API")
    assert the_tool(with_operation({})).config.description == "GET /orders\n\nAPI: Orders API"
    said = {"info": {"version": "1"}}
    assert the_tool(with_operation({}, **said)).config.description == "GET /orders\n\nAPI: api.example.com"


@pytest.mark.parametrize(
    ("servers", "given", "base_url"),
    [
        ([{"url": "https://api.example.com/v2/"}], "", "https://api.example.com/v2"),
        (
            [{"url": "https://{region}.example.com", "variables": {"region": {"default": "eu"}}}],
            "",
            "https://eu.example.com",
        ),
        ([{"url": "/v2"}], "https://api.example.com/v2", "https://api.example.com/v2"),
        ([], "https://api.example.com", "https://api.example.com"),
    ],
)
def test_the_base_url_is_the_first_servers_or_the_one_given(servers, given, base_url):
    """C1.4."""
    tool = the_tool(with_operation({}, servers=servers), base_url=given)
    assert tool.config.api.endpoint == f"{base_url}/orders"


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
    assert the_tool(with_operation({"servers": [{"url": BASE}]})).config.name == "op"


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("orders", "does not begin with a slash"),
        ("/orders?kind={kind}", "has a parameter after the '?'"),
        ("/orders?=&", "an invalid query"),
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


def test_a_parameter_of_the_path_that_nobody_describes_is_a_text():
    """C1.4: with a note."""
    tool = the_tool(with_operation({}, path="/orders/{id}"))
    assert tool.config.input_schema["required"] == ["id"] and "{id}" in tool.notes[0]


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
    made = the_tool(with_operation({"responses": raw})).config.output_schema
    assert made == (properties and {"type": "object", "properties": properties})


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
    properties = tool.config.input_schema["properties"]
    assert {name: schema["description"] for name, schema in properties.items()} == {
        "path": 'Called "番号" in the API.',
        "body": 'Called "数量" in the API. 1から。',
        "body_body": 'Called "商品" in the API.',
    }
    sent = request_of(tool, {"path": "7", "body": 2, "body_body": "茶"})
    assert sent.url == f"{BASE}/%E6%B3%A8%E6%96%87/7"
    assert sent.body == {"数量": 2, "商品": "茶"}


def test_a_parameter_with_a_plus_takes_several_segments():
    """C1.4: RFC 6570's reserved expansion, as in Google's documents."""
    tool = the_tool(
        with_operation(
            {"parameters": [parameter("name", "path", description="Of the topic.")]},
            path="/v1/{+name}:publish",
        )
    )
    assert tool.notes == []
    assert tool.config.input_schema["properties"]["name"]["description"] == "Of the topic."
    sent = request_of(tool, {"name": "projects/a b/topics/c"})
    assert sent.url == f"{BASE}/v1/projects/a%20b/topics/c:publish"
    for hostile in ("projects//a", "/a", "a/", "a/../b", "a/%2e%2e/b", "a/..;x/b", ""):
        with pytest.raises(Rejected, match=r"The value of name .*Nothing was sent"):
            request_of(tool, {"name": hostile})


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
    assert "networks" not in the_tool(raw).config.input_schema["properties"]


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
def test_agents_are_told_the_documented_headers_of_use_and_an_etag_that_another_request_takes(
    where: str,
) -> None:
    """C5.4: those that are always told need not be kept."""
    responses = {"200": {"description": "x", "headers": OTHERS | ETAG}, "404": {"headers": {"X-Reason": {}}}}
    paths = {"/a": {"get": {"operationId": "a", "responses": responses}}} | ELSEWHERE[where]
    found = read(document(paths))
    told = {tool.config.name: tool.config.api.response_headers for tool in found.tools}
    etag = [] if where == "nowhere" else ["etag"]
    assert told == {"a": [*etag, "x-export-id"], "b": etag}


def test_a_shared_parameter_with_an_etag_counts_too() -> None:
    shared = {"components": {"parameters": {"Match": CONDITION | {"name": "If-Match"}}}}
    assert the_tool(with_operation({}, **shared)).config.api.response_headers == ["etag"]
