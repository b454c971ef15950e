"""What may be declared as an HTTP tool, and what is told of what may not."""

from typing import Any

import pytest
from pydantic import ValidationError

from connectors.http_tools.checks import definition_of, operation_of
from connectors.http_tools.tool import HttpOperation, InvalidTool, ToolConfig, connection_of
from tests.connectors.declared_tools import API, TEXT, WHOLE, tool

KEY = "api-key-0123456789abcdef"
LIST = {"type": "array", "items": TEXT}


def test_every_argument_gets_its_place_where_nothing_else_is_said():
    """C1.4: the path names some, GET and DELETE put the others into the query, the rest into the body."""
    got = operation_of(
        tool("GET", f"{API}/v1/orders/{{id}}", {"id": WHOLE, "page": WHOLE}, required=["id"]), base_url=API
    )
    assert got.path == "/v1/orders/{id}"
    assert {name: (place.place, place.name) for name, place in got.arguments.items()} == {
        "id": ("path", "id"),
        "page": ("query", "page"),
    }
    posted = operation_of(tool("POST", f"{API}/orders", {"a/b": TEXT, "~": TEXT}), base_url=API)
    assert [(place.place, place.name) for place in posted.arguments.values()] == [
        ("body", "/a~1b"),
        ("body", "/~0"),
    ]


def test_a_path_is_kept_relative_to_the_sources_base_url():
    """C1.4: the source is one API, and its tools are below its address."""
    declared = tool("GET", "https://API.example.com:443/v1/orders")
    assert operation_of(declared, base_url="https://api.example.com/v1").path == "/orders"
    assert operation_of(declared, base_url="https://api.example.com/v1/orders").path == ""
    assert operation_of(declared, base_url="https://api.example.com").path == "/v1/orders"


@pytest.mark.parametrize(
    "base_url", ["https://other.example.com", "http://api.example.com", f"{API}/v2", f"{API}/v"]
)
def test_an_endpoint_elsewhere_is_refused(base_url):
    """C1.4: a tool cannot borrow another API's credentials."""
    assert problems(tool("GET", f"{API}/v1/orders"), base_url=base_url) == [
        ("/api/endpoint", f"The endpoint is not below {base_url}, the base URL of the tool's source.")
    ]


def test_what_the_catalogue_keeps_has_a_closed_schema_and_the_operation():
    """C1.4: whatever has no place in the request is refused before anything runs."""
    declared = tool("GET", f"{API}/orders", {"page": WHOLE}, output={"first": "/orders/0"})
    definition = definition_of(declared, base_url=API)
    assert (definition.id, definition.name, definition.execution_type) == ("Order", "Order", "sync")
    assert definition.input_schema["additionalProperties"] is False
    assert definition.annotations == {"readOnlyHint": True}
    assert HttpOperation.model_validate(definition.metadata) == operation_of(declared, base_url=API)
    open_schema = tool("GET", f"{API}/orders", schema={"additionalProperties": True})
    assert definition_of(open_schema, base_url=API).input_schema["additionalProperties"] is True


def test_written_out_and_read_again_a_tool_is_the_same():
    """C9: there is one model of a tool."""
    declared = tool(
        "POST",
        f"{API}/orders",
        {"note": TEXT},
        mappings={"note": {"in": "body", "name": ""}},
        authentication={"type": "api_key", "in": "query", "name": "key"},
    )
    again = ToolConfig.model_validate(declared.model_dump(mode="json", by_alias=True, exclude_unset=True))
    assert again == declared
    assert operation_of(again, base_url=API).arguments["note"].name == ""


def test_the_source_of_a_tool_has_its_settings_and_apart_from_them_its_secrets():
    """C1.4: tools of one address and authentication share a source."""
    basic = connection_of(tool(authentication={"type": "basic", "username": "shop", "password": KEY}))
    assert basic.base_url == API
    assert basic.settings == {"authentication": "basic", "username": "shop"}
    assert basic.secrets == {"password": KEY}
    assert KEY not in repr(basic)
    later = connection_of(tool(authentication={"type": "api_key", "in": "query", "name": "k"}))
    assert later.settings == {"authentication": "api_key", "api_key_in": "query", "api_key_name": "k"}
    assert later.secrets == {}


IN_HEADER = {"id": {"in": "header", "name": "X-Id"}}
BODIES = {"a": TEXT, "b": TEXT}
WRONG: dict[str, tuple[ToolConfig, str, str]] = {
    "no address": (tool(endpoint="/orders"), "/api/endpoint", "must be an absolute URL"),
    "another scheme": (tool(endpoint="ftp://api.example.com/x"), "/api/endpoint", "http:// or https://"),
    "a query": (tool(endpoint=f"{API}/x?a=1"), "/api/endpoint", "must not contain '?' or '#'"),
    "a fragment": (tool(endpoint=f"{API}/x#a"), "/api/endpoint", "must not contain '?' or '#'"),
    "a password": (tool(endpoint="https://me:secret@api.example.com/x"), "/api/endpoint", "user name"),
    "a host of the caller's": (
        tool(endpoint="https://{host}/x", properties={"host": TEXT}),
        "/api/endpoint",
        "not in the host",
    ),
    "a metadata address": (tool(endpoint="http://169.254.169.254/x"), "/api/endpoint", "metadata"),
    "dots": (tool(endpoint=f"{API}/a/../b"), "/api/endpoint", '".."'),
    "encoded dots": (tool(endpoint=f"{API}/a/%2e%2E/b"), "/api/endpoint", '".."'),
    "an empty step": (tool(endpoint=f"{API}//b"), "/api/endpoint", "empty segment"),
    "a blank": (tool(endpoint=f"{API}/a b"), "/api/endpoint", "percent-encoded"),
    "a lone brace": (tool(endpoint=f"{API}/a{{b"), "/api/endpoint", "braces"),
    "a parameter twice": (
        tool(endpoint=f"{API}/{{a}}/{{a}}", properties={"a": TEXT}, required=["a"]),
        "/api/endpoint",
        "more than once",
    ),
    "parameters side by side": (
        tool(endpoint=f"{API}/{{a}}{{b}}", properties=BODIES, required=["a", "b"]),
        "/api/endpoint",
        "must not follow each other directly",
    ),
    "a parameter without argument": (
        tool(endpoint=f"{API}/{{id}}"),
        "/api/endpoint",
        "no argument has this place",
    ),
    "an optional part of the path": (
        tool(endpoint=f"{API}/{{id}}", properties={"id": TEXT}),
        "/input_schema/properties/id",
        "must be required or have a default",
    ),
    "a default that leads elsewhere": (
        tool(endpoint=f"{API}/{{id}}", properties={"id": TEXT | {"default": ".."}}),
        "/input_schema/properties/id",
        "has a default that",
    ),
    "a place that the path has not": (
        tool(properties={"id": TEXT}, required=["id"], mappings={"id": {"in": "path"}}),
        "/field_mappings/input/id",
        "which the path does not contain",
    ),
    "a mapped stranger": (
        tool(mappings=IN_HEADER),
        "/field_mappings/input/id",
        "not a property of the input",
    ),
    "two at one place": (
        tool(properties=BODIES, mappings={"b": {"in": "query", "name": "a"}}),
        "/field_mappings/input/b",
        "b and a both set a in the query.",
    ),
    "two headers that differ by case": (
        tool(
            properties=BODIES,
            mappings={"a": {"in": "header", "name": "X-A"}, "b": {"in": "header", "name": "x-a"}},
        ),
        "/field_mappings/input/b",
        "both set x-a in the header",
    ),
    "an argument where a constant is": (
        tool(properties={"a": TEXT}, constants=[{"in": "query", "name": "a", "value": 1}]),
        "/field_mappings/constants/0",
        "a constant and a both set a in the query",
    ),
    "a field within another": (
        tool("POST", properties=BODIES, mappings={"b": {"in": "body", "name": "/a/b"}}),
        "/field_mappings/input/b",
        "inside the value of a",
    ),
    "a field beside the whole body": (
        tool("POST", properties=BODIES, mappings={"b": {"in": "body", "name": ""}}),
        "/input_schema/properties/a",
        "inside the value of b",
    ),
    "a body with HEAD": (
        tool("HEAD", properties={"a": TEXT}, mappings={"a": {"in": "body"}}),
        "/field_mappings/input/a",
        "A HEAD request cannot have a body.",
    ),
    "a constant body with HEAD": (
        tool("HEAD", constants=[{"in": "body", "name": "/a", "value": 1}]),
        "/field_mappings/constants/0",
        "A HEAD request cannot have a body.",
    ),
    "a bad pointer": (
        tool("POST", properties={"a": TEXT}, mappings={"a": {"in": "body", "name": "a"}}),
        "/field_mappings/input/a",
        'begins with "/"',
    ),
    "a bad pointer of the output": (tool(output={"id": "/a~2"}), "/field_mappings/output/id", '"~0"'),
    "an object in the query": (
        tool(properties={"a": {"type": "object"}}),
        "/input_schema/properties/a",
        "only a body can carry",
    ),
    "objects in a list in the query": (
        tool(
            properties={"a": {"type": "array", "items": {"$ref": "#/$defs/o"}}},
            schema={"$defs": {"o": {"type": "object"}}},
        ),
        "/input_schema/properties/a",
        "only a body can carry",
    ),
    "a form that is a list": (
        tool("POST", properties={"a": LIST}, mappings={"a": {"in": "body", "name": ""}}, body_format="form"),
        "/field_mappings/input/a",
        "must be of the type object",
    ),
    "a constant with a line break": (
        tool(constants=[{"in": "header", "name": "X-A", "value": "1\r\nHost: evil"}]),
        "/field_mappings/constants/0",
        "characters that HTTP does not allow",
    ),
    "a constant nothing": (
        tool(constants=[{"in": "query", "name": "a", "value": None}]),
        "/field_mappings/constants/0",
        "is null",
    ),
    "another type of body": (
        tool("POST", constants=[{"in": "header", "name": "Content-Type", "value": "text/xml"}]),
        "/field_mappings/constants/0",
        "can only be a type of JSON or YAML",
    ),
    "a free type of body": (
        tool("POST", properties={"a": TEXT}, mappings={"a": {"in": "header", "name": "Content-Type"}}),
        "/field_mappings/input/a",
        "can be a constant but not an argument",
    ),
    **{
        f"a choice of types of body: {media_type!r}": (
            tool(
                "POST",
                properties={"a": TEXT},
                mappings={
                    "a": {"in": "header", "name": "content-type", "media_types": ["a/json", media_type]}
                },
            ),
            "/field_mappings/input/a",
            message,
        )
        for media_type, message in (
            ("text/xml", "can only be a type of JSON or YAML"),
            ("a/json\r\nHost: evil", "characters that HTTP does not allow"),
        )
    },
    "a choice of another header": (
        tool(
            "POST",
            properties={"a": TEXT},
            mappings={"a": {"in": "header", "name": "X-Type", "media_types": ["a/json"]}},
        ),
        "/field_mappings/input/a",
        "Only the header Content-Type can have media_types",
    ),
    "a part of no media type": (
        tool(
            "POST",
            properties={"a": TEXT},
            mappings={"a": {"in": "body", "name": "/a", "media_type": "text/a\r\nX-A: 1"}},
            body_format="multipart",
        ),
        "/field_mappings/input/a",
        "The media type of a is not valid",
    ),
    "a field of a raw body": (
        tool("POST", properties={"a": TEXT}, body_format="raw"),
        "/input_schema/properties/a",
        'set "name": ""',
    ),
    "a constant in a raw body": (
        tool("POST", constants=[{"in": "body", "name": "/a", "value": 1}], body_format="raw"),
        "/field_mappings/constants/0",
        "A raw body has no fields",
    ),
    "a raw body that is a list": (
        tool("POST", properties={"a": LIST}, mappings={"a": {"in": "body", "name": ""}}, body_format="raw"),
        "/field_mappings/input/a",
        "must be of the type string",
    ),
    "a file in JSON": (
        tool("POST", properties={"a": TEXT}, mappings={"a": {"in": "body", "name": "/a", "file": True}}),
        "/field_mappings/input/a",
        "a field of a multipart body, or a raw body",
    ),
    "the key's header": (
        tool(
            properties={"a": TEXT},
            mappings={"a": {"in": "header", "name": "x-KEY"}},
            authentication={"type": "api_key", "in": "header", "name": "X-Key"},
        ),
        "/field_mappings/input/a",
        "is reserved for the credentials",
    ),
    "the key's parameter": (
        tool(properties={"key": TEXT}, authentication={"type": "api_key", "in": "query", "name": "key"}),
        "/input_schema/properties/key",
        "is reserved for the credentials",
    ),
    "a key in no header": (
        tool(authentication={"type": "api_key", "in": "header", "name": "X Key"}),
        "/api/authentication/name",
        "not a valid header name",
    ),
    "an idempotency key that is an argument": (
        tool(
            "POST",
            properties={"a": TEXT},
            mappings={"a": {"in": "header", "name": "Idempotency-Key"}},
            idempotency_header="idempotency-key",
        ),
        "/api/idempotency_header",
        "both set idempotency-key in the header",
    ),
    "a required stranger": (tool(required=["id"]), "/input_schema/required", "not a property"),
    "a schema that is none": (
        tool(properties={"a": 5}),
        "/input_schema/properties/a",
        "must be an object",
    ),
    "nothing printable": (tool().model_copy(update={"name": "\x00"}), "/id", "at least 1 character"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_cannot_be_a_tool_is_refused_with_the_place_and_a_sentence(wrong):
    """C1.4, B5: whoever declared it reads where it is wrong."""
    declared, where, why = WRONG[wrong]
    found = dict(problems(declared))
    assert why in found[where]
    assert found[where].endswith(".")
    assert "secret" not in str(found)


RESERVED = [
    *("Authorization", "cookie", "Host", "Content-Length", "Transfer-Encoding", "Connection", "Upgrade"),
    *("Proxy-Authorization", "Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-HTTP-Method-Override"),
    *("Accept-Encoding", "TE"),
]


@pytest.mark.parametrize("name", RESERVED)
def test_headers_that_say_who_asks_or_where_it_goes_are_not_a_tools_to_set(name):
    """C4.5: neither by an argument nor by a constant."""
    by_argument = tool(properties={"a": TEXT}, mappings={"a": {"in": "header", "name": name}})
    by_constant = tool(constants=[{"in": "header", "name": name, "value": "x"}])
    for declared in (by_argument, by_constant):
        ((_, why),) = problems(declared)
        assert why == f"{name} is a header that only the product sets."


def test_accept_may_be_a_constant_but_no_argument():
    """C1.4: APIs choose versions by it."""
    assert (
        problems(tool(constants=[{"in": "header", "name": "Accept", "value": "application/vnd.x+json"}]))
        == []
    )
    ((_, why),) = problems(tool(properties={"Accept": TEXT}, mappings={"Accept": {"in": "header"}}))
    assert "can be a constant but not an argument" in why


def test_everything_that_is_wrong_is_told_at_once():
    """C1.4: nobody likes to be sent back three times."""
    declared = tool(
        "GET",
        f"{API}/{{id}}?x=1",
        {"a": {"type": "object"}, "b": TEXT},
        mappings={"b": {"in": "header", "name": "Host"}, "c": {"in": "query"}},
        output={"o": "no"},
    )
    assert [where for where, _ in problems(declared)] == [
        "/api/endpoint",
        "/field_mappings/output/o",
        "/field_mappings/input/c",
        "/api/endpoint",
        "/input_schema/properties/a",
        "/field_mappings/input/b",
    ]
    with pytest.raises(InvalidTool) as refused:
        connection_of(tool(endpoint="nowhere"))
    assert refused.value.problems[0].path == "/api/endpoint"


def test_no_error_about_a_declaration_quotes_a_secret():
    """B8: a mistyped declaration is shown to people and logged."""
    raw: dict[str, Any] = {
        "name": "x",
        "description": "x",
        "api": {
            "endpoint": API,
            "method": "GET",
            "authentication": {"type": "bearer", "token": f"{KEY}\n", "extra": KEY},
        },
    }
    with pytest.raises(ValidationError) as refused:
        ToolConfig.model_validate(raw)
    assert KEY not in str(refused.value)


@pytest.mark.timeout(10)
def test_a_schema_that_refers_to_itself_in_many_ways_is_checked_at_once():
    """C1.4: references within choices multiply, and declarations come from strangers too."""
    nested = {"anyOf": [{"$ref": "#/$defs/nested"}] * 30 + [{"type": "object"}]}
    declared = tool(properties={"where": {"$ref": "#/$defs/nested"}}, schema={"$defs": {"nested": nested}})
    assert problems(declared) == [
        ("/input_schema/properties/where", "where is an object, which only a body can carry.")
    ]


def problems(declared: ToolConfig, *, base_url: str = API) -> list[tuple[str, str]]:
    try:
        definition_of(declared, base_url=base_url)
    except InvalidTool as refused:
        return [(problem.path, problem.message) for problem in refused.problems]
    return []
