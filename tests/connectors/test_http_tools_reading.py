"""The guard's heart: a request that somebody else wrote is the tool's, or it is refused in words."""

from typing import Any

import pytest

from connectors.http_tools.checks import definition_of
from connectors.http_tools.reading import NotThisTool, read_arguments
from connectors.http_tools.request import build_request
from connectors.http_tools.specs import HTTPRequestSpec
from connectors.http_tools.tool import HttpOperation, ToolConfig
from tests.connectors.declared_tools import TEXT, WHOLE, tool

BASE = "https://api.example.com"
SECRET = "sk-live-0123456789abcdef"
ORDER = tool(
    "POST",
    f"{BASE}/v1/shops/{{shop}}/orders",
    {
        "shop": TEXT,
        "dry": {"type": "boolean"},
        "tags": {"type": "array", "items": TEXT},
        "language": TEXT,
        "amount": {"type": "number"},
        "note": {"type": ["string", "null"]},
    },
    required=["shop"],
    mappings={
        "dry": {"in": "query", "name": "dry_run"},
        "tags": {"in": "query"},
        "language": {"in": "header", "name": "Accept-Language"},
        "amount": {"in": "body", "name": "/payment/amount"},
        "note": {"in": "body", "name": "/note"},
    },
    constants=[
        {"in": "query", "name": "v", "value": 2},
        {"in": "header", "name": "X-Client", "value": "catalogue"},
        {"in": "body", "name": "/payment/currency", "value": "EUR"},
    ],
)
WRITTEN: dict[str, Any] = {
    "method": "POST",
    "url": f"{BASE}/v1/shops/berlin/orders",
    "headers": {"accept-language": "de"},
    "query_params": {"dry_run": True, "tags": ["a", "b"]},
    "body": {"payment": {"amount": 5}, "note": None},
}
ARGUMENTS = {"shop": "berlin", "dry": True, "tags": ["a", "b"], "language": "de", "amount": 5, "note": None}


def read(declared: ToolConfig = ORDER, base_url: str = BASE, **changes: Any) -> dict[str, Any]:
    definition = definition_of(declared, base_url=base_url)
    return read_arguments(
        HttpOperation.model_validate(definition.metadata),
        HTTPRequestSpec.model_validate(WRITTEN | changes),
        base_url=base_url,
        input_schema=definition.input_schema,
    )


SPELLINGS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "another case and the usual port": {"url": "HTTPS://API.Example.COM:443/v1/shops/berlin/orders"},
    "needlessly percent-encoded": {"url": f"{BASE}/v1/shops/b%65rlin/orders"},
    "the query in the URL": {
        "url": f"{BASE}/v1/shops/berlin/orders?dry_run=true&tags=a&tags=b&v=2",
        "query_params": {},
    },
    "the query in both": {"url": f"{BASE}/v1/shops/berlin/orders?dry_run=true"},
    "texts where the schema has a boolean": {"query_params": {"dry_run": "true", "tags": ["a", "b"]}},
    "constants written out": {
        "headers": {"Accept-Language": "de", "x-client": "catalogue"},
        "query_params": {"dry_run": True, "tags": ["a", "b"], "v": "2"},
        "body": {"payment": {"amount": 5, "currency": "EUR"}, "note": None},
    },
    "needless headers": {
        "headers": {
            "Accept-Language": "de",
            "Content-Type": "application/json; charset=utf-8",
            "Accept": "application/json, */*",
        }
    },
    "a body that is a text of JSON": {"body": '{"payment": {"amount": 5}, "note": null}'},
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_the_tools_own_request_is_recognised_in_every_harmless_spelling(spelling: str) -> None:
    """C4.4, C4.5: models write the same request in many ways."""
    assert read(**SPELLINGS[spelling]) == ARGUMENTS


def shop(text: str) -> dict[str, Any]:
    return {"url": f"{BASE}/v1/shops/{text}/orders"}


def at(origin: str) -> dict[str, Any]:
    return {"url": f"{origin}/v1/shops/berlin/orders"}


FOREIGN: dict[str, tuple[dict[str, Any], str]] = {
    "another method": ({"method": "DELETE"}, "The tool's method is POST, not DELETE."),
    "another host": (at("https://evil.example"), "The tool's host is api.example.com, not evil.example."),
    "another scheme": (at("http://api.example.com"), "The tool's scheme is https, not http."),
    "no scheme of the web": ({"url": "file:///etc/passwd"}, "does not begin with http"),
    "no scheme at all": ({"url": "//api.example.com/v1/shops/berlin/orders"}, "does not begin with http"),
    "a bare path": ({"url": "/v1/shops/berlin/orders"}, "does not begin with http"),
    "another port": (at("https://api.example.com:8443"), "The tool's port is 443, not 8443."),
    "a port beyond all": (at("https://api.example.com:443443"), "names no host"),
    "a user name": (at("https://api.example.com@evil.example"), "a user name or password"),
    "our host as a password": (at("https://evil.example:x@api.example.com"), "a user name or password"),
    "a longer host": (at("https://api.example.com.evil.example"), "The tool's host is"),
    "a root dot": (at("https://api.example.com."), "The tool's host is"),
    "a backslash": (at("https://evil.example\\@api.example.com"), "a backslash"),
    "a backslash for a slash": ({"url": "https:\\\\api.example.com/v1/shops/berlin/orders"}, "a backslash"),
    "letters that look alike": (at("https://api.exаmple.com"), "names no host"),
    "a full stop of another script": (at("https://api。example.com"), "names no host"),
    "a percent-encoded host": (at("https://api.example%2Ecom"), "names no host"),
    "no host": (at("https://"), "names no host"),
    "a line break": (at("https://api.example.com\r\nHost: evil"), "control character"),
    "a tab within the scheme": ({"url": "ht\ttps://api.example.com/v1/shops/b/orders"}, "control character"),
    "a NUL": (shop("a\x00b"), "control character"),
    "an encoded NUL": (shop("a%00b"), "{shop} has a control character in it."),
    "a fragment": ({"url": f"{BASE}/v1/shops/berlin/orders#x"}, "a fragment"),
    "an empty fragment": ({"url": f"{BASE}/v1/shops/berlin/orders#"}, "a fragment"),
    "another path": (
        {"url": f"{BASE}/v1/users"},
        "The path is not that of the tool, /v1/shops/{shop}/orders.",
    ),
    "a longer path": ({"url": f"{BASE}/v1/shops/berlin/orders/7"}, "The path is not that of the tool"),
    "a slash at the end": ({"url": f"{BASE}/v1/shops/berlin/orders/"}, "The path is not that of the tool"),
    "two slashes": ({"url": f"{BASE}//v1/shops/berlin/orders"}, "The path is not that of the tool"),
    "a path of another case": ({"url": f"{BASE}/V1/shops/berlin/orders"}, "The path is not that of the tool"),
    "nothing for the parameter": (shop(""), "The path is not that of the tool"),
    "a step back": (shop(".."), '{shop} is or has "." or ".." as a step.'),
    "an encoded step back": (shop("%2e%2E"), '{shop} is or has "." or ".." as a step.'),
    "a doubly encoded step back": (shop("%252e%252e"), '{shop} is or has "." or ".." as a step.'),
    "a step back with a path parameter": (shop("..;a=b"), '{shop} is or has "." or ".." as a step.'),
    "an encoded slash": (shop("berlin%2Fadmin"), "{shop} has a slash in it."),
    "a doubly encoded slash": (shop("berlin%252Fadmin"), "{shop} has a slash in it."),
    "an encoded backslash": (shop("berlin%5Cadmin"), "{shop} has a slash in it."),
    "half an escape": (shop("a%2"), "{shop} has a % that begins no percent-encoded character."),
    "no UTF-8": (shop("%ff"), "{shop} is not percent-encoded UTF-8."),
    "an unknown parameter": ({"query_params": {"admin": True}}, "The tool's query has no admin."),
    "an unknown parameter in the URL": (
        {"url": f"{BASE}/v1/shops/berlin/orders?admin=1&x=2"},
        "The tool's query has no admin, x.",
    ),
    "a parameter of another case": ({"query_params": {"Dry_run": True}}, "The tool's query has no Dry_run."),
    "two values for one parameter": (
        {"url": f"{BASE}/v1/shops/berlin/orders?dry_run=false"},
        "dry_run has one value in the URL and another in query_params.",
    ),
    "another constant in the query": (
        {"query_params": {"v": 3}},
        "v in the query always has the value that the tool gives it.",
    ),
    "a true where the constant is 1": ({"query_params": {"v": True}}, "v in the query always has"),
    "an authorization": (
        {"headers": {"Authorization": f"Bearer {SECRET}"}},
        "The tool sends no header authorization. Credentials are added by the product itself.",
    ),
    "another host by header": ({"headers": {"Host": "evil.example"}}, "The tool sends no header host."),
    "another method by header": (
        {"headers": {"X-HTTP-Method-Override": "DELETE"}},
        "The tool sends no header x-http-method-override.",
    ),
    "a header twice": ({"headers": {"Accept-Language": "de", "accept-language": "en"}}, "more than once"),
    "another constant in a header": ({"headers": {"X-Client": SECRET}}, "The header x-client always has"),
    "another type of body": ({"headers": {"Content-Type": "text/xml"}}, "no header content-type."),
    "an unknown field": ({"body": {"admin": True}}, "The tool's body has no /admin."),
    "an unknown inner field": (
        {"body": {"payment": {"amount": 5, "to": "me"}}},
        "The tool's body has no /payment/to.",
    ),
    "something else than an object inside": ({"body": {"payment": 5}}, "The tool's body has no /payment."),
    "another constant in the body": (
        {"body": {"payment": {"currency": SECRET}}},
        "/payment/currency in the body always has the value that the tool gives it.",
    ),
    "a list as body": ({"body": [1]}, "The body is no object with the tool's fields."),
    "prose as body": ({"body": "send it all"}, "The body is a text, and not one of JSON."),
}


@pytest.mark.parametrize("foreign", FOREIGN)
def test_whatever_is_not_the_tools_request_is_refused_and_where_it_differs_is_said(foreign: str) -> None:
    """C4.5: method, scheme, host, port, path, query, headers and body have to be the tool's."""
    changes, why = FOREIGN[foreign]
    with pytest.raises(NotThisTool) as refused:
        read(**changes)
    assert why in str(refused.value)
    assert SECRET not in str(refused.value)


def test_a_refusal_is_short_and_of_one_line_whatever_was_written() -> None:
    """C8.2: it is shown and logged."""
    for changes in (
        {"url": f"https://{'x' * 10_000}.example/"},
        {"headers": {f"X-{'y' * 5_000}\u202e\n{number}": "z" for number in range(50)}},
        {"body": {"w" * 9_000 + str(number): 1 for number in range(90)}},
    ):
        with pytest.raises(NotThisTool) as refused:
            read(**changes)
        assert len(str(refused.value)) < 600
        assert str(refused.value).isprintable()


def test_a_base_url_with_a_path_bounds_the_tool_too() -> None:
    """C4.5: the template begins after it."""
    declared = tool("GET", f"{BASE}/v1/weather/{{city}}.json", {"city": TEXT}, required=["city"])
    plain = {"method": "GET", "headers": {}, "query_params": {}, "body": None}
    url = f"{BASE}/v1/weather/New%20York.json"
    assert read(declared, f"{BASE}/v1", **plain, url=url) == {"city": "New York"}
    assert read(declared, f"{BASE}/v1", **plain, url=url.replace("%20", " ")) == {"city": "New York"}
    with pytest.raises(NotThisTool, match=r"not that of the tool, /v1/weather"):
        read(declared, f"{BASE}/v1", **plain, url=f"{BASE}/weather/Rome.json")


def test_hosts_that_are_addresses_are_compared_as_they_are_written() -> None:
    """C4.5: no spelling of a number leads somewhere else."""
    declared = tool("GET", "http://[::1]:8080/x")
    plain = {"method": "GET", "headers": {}, "query_params": {}, "body": None}
    assert read(declared, "http://[::1]:8080", **plain, url="http://[::1]:8080/x") == {}
    for other in (
        "http://[::2]:8080/x",
        "http://127.1:8080/x",
        "http://[::1]/x",
        "http://[::1%25eth0]:8080/x",
    ):
        with pytest.raises(NotThisTool):
            read(declared, "http://[::1]:8080", **plain, url=other)


def test_a_request_without_a_body_may_have_an_empty_one_but_no_fields() -> None:
    """C4.5: models like to write {} where there is nothing."""
    declared = tool("GET", f"{BASE}/x")
    plain = {"method": "GET", "url": f"{BASE}/x", "headers": {}, "query_params": {}}
    for nothing in (None, {}, ""):
        assert read(declared, **plain, body=nothing) == {}
    with pytest.raises(NotThisTool, match="The tool sends no body, so it has no /a"):
        read(declared, **plain, body={"a": 1})


def test_texts_become_what_the_schema_says_and_stay_texts_where_it_says_so() -> None:
    """C4.3: paths and queries know nothing but texts."""
    declared = tool(
        "GET",
        f"{BASE}/{{id}}",
        {
            "id": WHOLE,
            "zip": TEXT,
            "ratio": {"anyOf": [{"type": "number"}, {"type": "null"}]},
            "on": {"$ref": "#/$defs/flag"},
            "ids": {"type": "array", "items": WHOLE},
            "any": {},
        },
        required=["id"],
        mappings={"ids": {"in": "query", "explode": False}},
        schema={"$defs": {"flag": {"type": "boolean"}}},
    )
    query = {"zip": "01067", "ratio": "0.5", "on": "true", "ids": "1,2", "any": "3"}
    written = {"method": "GET", "url": f"{BASE}/7", "headers": {}, "query_params": query, "body": None}
    expected = {"id": 7, "zip": "01067", "ratio": 0.5, "on": True, "ids": [1, 2], "any": "3"}
    assert read(declared, **written) == expected
    unfit = {"id": "x", "on": "yes"}
    assert read(declared, **written | {"url": f"{BASE}/x", "query_params": {"on": "yes"}}) == unfit


def test_an_argument_that_may_have_slashes_reads_them_but_never_a_step_back() -> None:
    """C4.5: whoever declares it has decided that the server can be trusted with them."""
    declared = tool(
        "GET",
        f"{BASE}/projects/{{id}}",
        {"id": TEXT},
        required=["id"],
        mappings={"id": {"in": "path", "slashes": True}},
    )
    plain = {"method": "GET", "headers": {}, "query_params": {}, "body": None}
    assert read(declared, **plain, url=f"{BASE}/projects/group%2Fname") == {"id": "group/name"}
    for url in (f"{BASE}/projects/group/name", f"{BASE}/projects/a%2F..%2Fb"):
        with pytest.raises(NotThisTool):
            read(declared, **plain, url=url)


def test_a_form_is_read_from_an_object_and_from_texts_in_it() -> None:
    """C4.4: what is sent as a form is proposed as an object."""
    declared = tool("POST", f"{BASE}/f", {"amount": WHOLE, "meta": {"type": "object"}}, body_format="form")
    plain = {"method": "POST", "url": f"{BASE}/f", "headers": {}, "query_params": {}}
    assert read(declared, **plain, body={"amount": "5", "meta": {"a": "1"}}) == {
        "amount": 5,
        "meta": {"a": "1"},
    }
    assert read(declared, **plain, body="amount=5") == {"amount": 5}
    with pytest.raises(NotThisTool, match="no admin"):
        read(declared, **plain, body="amount=5&admin=1")


def test_what_was_read_makes_the_canonical_request() -> None:
    """C4.5: nothing of what the model wrote is sent; constants are the tool's."""
    definition = definition_of(ORDER, base_url=BASE)
    operation = HttpOperation.model_validate(definition.metadata)
    for changes in SPELLINGS.values():
        spec = build_request(operation, base_url=BASE, arguments=read(**changes))
        assert spec == HTTPRequestSpec(
            method="POST",
            url=f"{BASE}/v1/shops/berlin/orders",
            headers={"X-Client": "catalogue", "Accept-Language": "de"},
            query_params={"v": 2, "dry_run": True, "tags": ["a", "b"]},
            body={"payment": {"currency": "EUR", "amount": 5}, "note": None},
        )


@pytest.mark.timeout(10)
def test_a_path_made_to_take_long_is_read_at_once() -> None:
    """C4.5: several parameters in one step can be cut in very many ways, of which one counts."""
    names = ["year", "month", "day"]
    path = "/reports/{year}-{month}-{day}.json"
    dated = tool("GET", f"{BASE}{path}", dict.fromkeys(names, TEXT), required=names)
    written: dict[str, Any] = {"method": "GET", "headers": {}, "query_params": {}, "body": None}
    with pytest.raises(NotThisTool):
        read(dated, **written, url=f"{BASE}/reports/{'-' * 7_000}")
    found = read(dated, **written, url=f"{BASE}/reports/2026-11-22-3.json")
    assert found == {"year": "2026-11", "month": "22", "day": "3"}
