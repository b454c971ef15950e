"""What exactly is sent for a tool, to a real API on loopback."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from connectors.errors import Rejected
from connectors.protocol import capabilities_for
from tests.connectors.calling import KEY, run
from tests.connectors.declared_tools import TEXT, WHOLE, connector_of, tool, workflow_of
from tests.connectors.http_tool_hosts import http_tool_hosts
from tests.engines.target_api import TargetApi, running_target_api


@pytest.fixture
def api() -> Iterator[TargetApi]:
    with running_target_api() as api, http_tool_hosts("127.0.0.1"):
        yield api


async def test_every_argument_arrives_in_its_place(api):
    """C1.4, C5.1: percent-encoded in the path, in order in the query, nested in the body."""
    declared = tool(
        "PATCH",
        f"{api.base_url}/echo/{{shop}}/orders/{{id}}",
        {
            "shop": TEXT,
            "id": WHOLE,
            "tags": {"type": "array", "items": TEXT},
            "ids": {"type": "array", "items": WHOLE},
            "bars": {"type": "array", "items": TEXT},
            "dry": {"type": "boolean"},
            "trace": TEXT,
            "amount": {"type": "number"},
            "lines": {"type": "array"},
            "left_out": TEXT,
        },
        required=["shop", "id"],
        mappings={
            "tags": {"in": "query", "name": "tag"},
            "ids": {"in": "query", "explode": False},
            "bars": {"in": "query", "explode": False, "separator": "|"},
            "dry": {"in": "query"},
            "trace": {"in": "header", "name": "X-Trace"},
            "amount": {"in": "body", "name": "/payment/amount"},
        },
        constants=[
            {"in": "query", "name": "v", "value": 2},
            {"in": "header", "name": "X-Client", "value": "catalogue"},
            {"in": "body", "name": "/payment/currency", "value": "EUR"},
        ],
    )
    arguments = {
        "shop": "Café & Söhne?",
        "id": 7,
        "tags": ["a b", "c&d=é", "e,f"],
        "ids": [1, 2],
        "bars": ["g,h", "i"],
        "dry": True,
        "trace": "t-1",
        "amount": 5.0,
        "lines": [{"sku": "ü", "note": None}],
    }
    await run(declared, arguments)
    arrived = api.last
    assert arrived.method == "PATCH"
    assert arrived.path == "/echo/Caf%C3%A9%20%26%20S%C3%B6hne%3F/orders/7"
    assert arrived.query == [
        ("v", "2"),
        ("tag", "a b"),
        ("tag", "c&d=é"),
        ("tag", "e,f"),
        ("ids", "1,2"),
        ("bars", "g,h|i"),
        ("dry", "true"),
    ]
    # RFC 6570, 3.2.8: a comma that is sent as it is separates items, an encoded one belongs to a value.
    assert "&tag=e%2Cf&ids=1,2&bars=g%2Ch%7Ci&" in arrived.target
    assert arrived.json == {
        "payment": {"currency": "EUR", "amount": 5.0},
        "lines": [{"sku": "ü", "note": None}],
    }
    assert arrived.header("x-trace") == "t-1"
    assert arrived.header("x-client") == "catalogue"
    assert arrived.header("content-type") == "application/json"
    assert arrived.header("authorization") is None


async def test_a_form_is_sent_as_apis_expect_it(api):
    """C5.1: nested fields with brackets, lists repeated, lists of objects numbered."""
    declared = tool(
        "POST",
        f"{api.base_url}/echo",
        {
            "amount": WHOLE,
            "expand[]": {"type": "array"},
            "meta": {"type": "object"},
            "items": {"type": "array"},
        },
        constants=[{"in": "body", "name": "/card/kind", "value": "gift card"}],
        body_format="form",
    )
    given = {
        "amount": 5,
        "expand[]": ["a", "b"],
        "meta": {"k": True},
        "items": [{"price": "p_1", "n": 1}, {"price": "p_2"}],
    }
    await run(declared, given)
    assert api.last.header("content-type") == "application/x-www-form-urlencoded"
    assert api.last.form == [
        ("card[kind]", "gift card"),
        ("amount", "5"),
        ("expand[]", "a"),
        ("expand[]", "b"),
        ("meta[k]", "true"),
        ("items[0][price]", "p_1"),
        ("items[0][n]", "1"),
        ("items[1][price]", "p_2"),
    ]


async def test_what_is_not_given_leaves_no_trace(api):
    """C5.1: neither an empty parameter nor a null."""
    declared = tool("GET", f"{api.base_url}/echo", {"a": TEXT, "list": {"type": "array"}})
    await run(declared, {"list": []})
    assert api.last.target == "/echo"
    assert api.last.body == b""
    assert api.last.header("content-type") is None
    await run(tool("POST", f"{api.base_url}/echo", {"a": TEXT}))
    assert api.last.json == {}
    await run(tool("POST", f"{api.base_url}/echo"))
    assert (api.last.body, api.last.header("content-type")) == (b"", None)


@pytest.mark.parametrize("value", [None, False, "", [], {}])
async def test_any_json_value_can_be_the_whole_body(api, value):
    """C5.1: also null, which takes a setting back at many APIs and is not the same as no body."""
    whole = tool(
        "PUT",
        f"{api.base_url}/echo",
        {"limit": {}},
        required=["limit"],
        mappings={"limit": {"in": "body", "name": ""}},
    )
    await run(whole, {"limit": value})
    assert api.last.body == json.dumps(value).encode()
    assert api.last.header("content-type") == "application/json"


async def test_null_is_not_given_where_only_a_json_body_could_say_it(api):
    """C5.1: models write null for what they do not want. One that is required is refused."""
    anything: dict[str, Any] = {"version": {"default": "v2"}, "q": {}, "h": {}, "note": {}}
    declared = tool(
        "POST",
        f"{api.base_url}/echo/{{version}}",
        anything,
        mappings={"q": {"in": "query"}, "h": {"in": "header", "name": "X-H"}},
    )
    await run(declared, dict.fromkeys(anything))
    assert (api.last.target, api.last.header("x-h")) == ("/echo/v2", None)
    assert api.last.json == {"note": None}

    form = tool("POST", f"{api.base_url}/echo", {"a": {}, "b": {}}, body_format="form")
    await run(form, {"a": None, "b": "given"})
    assert api.last.form == [("b", "given")]

    needed = tool("GET", f"{api.base_url}/echo", {"q": {"type": ["string", "null"]}}, required=["q"])
    with pytest.raises(Rejected, match="The value of q is null, which only a JSON body can express"):
        await run(needed, {"q": None})
    assert len(api.arrived) == 2


async def test_one_argument_can_be_the_whole_body_and_a_part_of_the_path_have_a_default(api):
    """C1.4: as APIs that take a list of things want it."""
    declared = tool(
        "PUT",
        f"{api.base_url}/echo/{{version}}",
        {"version": TEXT | {"default": "v 2"}, "things": {"type": "array"}},
        mappings={"things": {"in": "body", "name": ""}},
    )
    await run(declared, {"things": [1, None]})
    assert (api.last.path, api.last.json) == ("/echo/v%202", [1, None])


UNSENDABLE: dict[str, tuple[Any, str]] = {
    "an object in the query": ({"q": {"a": 1}}, "The value of q is an object. Nothing was sent."),
    "null within a list": ({"l": ["a", None]}, "The value of l is null, which only a JSON body can express"),
    "a line break in a header": (
        {"h": "a\r\nX-Admin: 1"},
        "The value of h contains characters that HTTP does not",
    ),
    "no ASCII in a header": ({"h": "é"}, "The value of h contains characters that HTTP does not allow"),
    "a comma within a list": ({"l": ["a,b"]}, "The value of l has an item that is empty or contains a comma"),
    "a step back": ({"p": ".."}, 'The value of p contains "." or ".." as a segment, so it cannot be'),
    "an encoded step back": ({"p": "%2e%2e"}, 'The value of p contains "." or ".." as a segment'),
    "a slash": ({"p": "a/b"}, "The value of p contains a slash"),
    "nothing": ({"p": ""}, "The value of p is empty"),
    "a NUL": ({"p": "a\x00"}, "The value of p contains a control character"),
    "too long an address": ({"p": "x" * 20_000}, "The arguments make the URL too long"),
    "a stranger": ({"other": 1}, "The tool does not accept other."),
}


@pytest.mark.parametrize("unsendable", UNSENDABLE)
async def test_arguments_that_cannot_be_sent_are_refused_before_anything_is(api, unsendable):
    """A2.5, C4.5: whatever a schema without types lets through."""
    declared = tool(
        "GET",
        f"{api.base_url}/echo/{{p}}",
        {"p": {}, "q": {}, "h": {}, "l": {}},
        required=["p"],
        mappings={"h": {"in": "header", "name": "X-H"}, "l": {"in": "query", "explode": False}},
        schema={"additionalProperties": True},
    )
    arguments, why = UNSENDABLE[unsendable]
    with pytest.raises(Rejected) as refused:
        await run(declared, {"p": "x"} | arguments)
    assert why in refused.value.message
    assert api.arrived == []


async def test_the_key_of_a_run_is_sent_where_the_api_knows_it(api):
    """C5.1: so that a repeated request counts once."""
    declared = tool("POST", f"{api.base_url}/orders", idempotency_header="Idempotency-Key")
    for _ in range(2):
        await run(declared)
    assert [request.header("idempotency-key") for request in api.arrived] == [str(KEY)] * 2
    assert len(api.kept["orders"]) == 1


PROMISES = [
    ("GET", {}, True, True),
    ("HEAD", {}, True, True),
    ("PUT", {}, True, False),
    ("POST", {}, False, False),
    ("DELETE", {}, False, False),
    ("POST", {"idempotency_header": "Idempotency-Key"}, True, False),
]


@pytest.mark.parametrize(("method", "more", "idempotent", "breakable"), PROMISES)
def test_what_may_be_repeated_or_broken_off_follows_from_the_method(method, more, idempotent, breakable):
    """C5.3: nothing is sent twice that could happen twice."""
    declared = tool(method, **more)
    promised = capabilities_for(connector_of(declared), workflow_of(declared))
    assert (promised.idempotent_start, promised.cancellable_start) == (idempotent, breakable)
    assert (promised.lists_workflows, promised.keeps_runs, promised.can_cancel) == (False, False, False)


async def test_a_text_of_json_is_sent_as_it_is_in_utf_8(api):
    """C5.1: no escapes where none are needed."""
    await run(tool("POST", f"{api.base_url}/echo", {"note": TEXT}), {"note": "日本"})
    assert api.last.body == '{"note":"日本"}'.encode()
    assert json.loads(api.last.body) == {"note": "日本"}
