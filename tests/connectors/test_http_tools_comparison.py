"""A request that a model wrote is the one that its arguments make, or the difference is named."""

from typing import Any

import pytest

from connectors.errors import Rejected
from connectors.http_tools.checks import definition_of
from connectors.http_tools.request import build_request, difference_between
from connectors.http_tools.tool import HttpOperation, HTTPRequestSpec, ToolConfig
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


def difference(
    declared: ToolConfig = ORDER,
    base_url: str = BASE,
    arguments: dict[str, Any] = ARGUMENTS,
    usual: dict[str, Any] | None = None,
    **changes: Any,
) -> str:
    """Of the written request, with these changes, from the one that the arguments make; empty: none."""
    operation = HttpOperation.model_validate(definition_of(declared, base_url=base_url).metadata)
    in_path = {name: arguments[name] for name, at in operation.arguments.items() if at.place == "path"}
    return difference_between(
        HTTPRequestSpec.model_validate(WRITTEN | changes),
        build_request(operation, base_url=base_url, arguments=arguments),
        usual=build_request(operation, base_url=base_url, arguments=in_path | (usual or {})),
        operation=operation,
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
    "a full stop of another script": {"url": "https://api。example.com/v1/shops/berlin/orders"},
    "a step back and forth": {"url": f"{BASE}/v1/shops/../shops/berlin/orders"},
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
def test_the_tools_own_request_is_recognised_in_every_harmless_spelling(spelling):
    """C4.4, C4.5: models write the same request in many ways."""
    assert difference(**SPELLINGS[spelling]) == ""


def shop(text: str) -> dict[str, Any]:
    return {"url": f"{BASE}/v1/shops/{text}/orders"}


def at(origin: str) -> dict[str, Any]:
    return {"url": f"{origin}/v1/shops/berlin/orders"}


FOREIGN: dict[str, tuple[dict[str, Any], str]] = {
    "another method": ({"method": "DELETE"}, "the method"),
    "another host": (at("https://evil.example"), "the address"),
    "another scheme": (at("http://api.example.com"), "the address"),
    "no scheme of the web": ({"url": "file:///etc/passwd"}, "the address"),
    "no scheme at all": ({"url": "//api.example.com/v1/shops/berlin/orders"}, "the address"),
    "a bare path": ({"url": "/v1/shops/berlin/orders"}, "the address"),
    "another port": (at("https://api.example.com:8443"), "the address"),
    "a port beyond all": (at("https://api.example.com:443443"), "the address"),
    "a user name": (at("https://api.example.com@evil.example"), "the address"),
    "our host as a password": (at("https://evil.example:x@api.example.com"), "the address"),
    "a longer host": (at("https://api.example.com.evil.example"), "the address"),
    "a root dot": (at("https://api.example.com."), "the address"),
    "a backslash": (at("https://evil.example\\@api.example.com"), "the address"),
    "a backslash for a slash": ({"url": "https:\\\\api.example.com/v1/shops/berlin/orders"}, "the address"),
    "letters that look alike": (at("https://api.exаmple.com"), "the address"),
    "a percent-encoded host": (at("https://api.example%2Ecom"), "the address"),
    "no host": (at("https://"), "the address"),
    "a line break": (at("https://api.example.com\r\nHost: evil"), "no valid URL"),
    "a blank before the port": (at("https://api.example.com: 443"), "no valid URL"),
    "no digits in the port": (at("https://api.example.com:+443"), "no valid URL"),
    "a NUL": (shop("a\x00b"), "no valid URL"),
    "an encoded NUL": (shop("a%00b"), "the address"),
    "a fragment": ({"url": f"{BASE}/v1/shops/berlin/orders#x"}, "the address"),
    "another path": ({"url": f"{BASE}/v1/users"}, "the address"),
    "a longer path": ({"url": f"{BASE}/v1/shops/berlin/orders/7"}, "the address"),
    "a slash at the end": ({"url": f"{BASE}/v1/shops/berlin/orders/"}, "the address"),
    "two slashes": ({"url": f"{BASE}//v1/shops/berlin/orders"}, "the address"),
    "a path of another case": ({"url": f"{BASE}/V1/shops/berlin/orders"}, "the address"),
    "another argument in the path": (shop("paris"), "the address"),
    "nothing for the parameter": (shop(""), "the address"),
    "a step back": (shop(".."), "the address"),
    "an encoded step back": (shop("%2e%2E"), "the address"),
    "a doubly encoded step back": (shop("%252e%252e"), "the address"),
    "an encoded slash": (shop("berlin%2Fadmin"), "the address"),
    "an argument that is encoded twice": (shop("b%2565rlin"), "the address"),
    "no UTF-8": (shop("%ff"), "utf-8"),
    "an unknown parameter": ({"query_params": {"admin": True}}, "the query admin does not match"),
    "unknown parameters in the URL": (
        {"url": f"{BASE}/v1/shops/berlin/orders?admin=1&x=2"},
        "the query admin, query x does not match",
    ),
    "a parameter of another case": ({"query_params": {"Dry_run": True}}, "the query Dry_run does not match"),
    "two values for one parameter": (
        {"url": f"{BASE}/v1/shops/berlin/orders?dry_run=false"},
        "contains the query dry_run twice",
    ),
    "another value in the query": ({"query_params": {"dry_run": False, "tags": ["a", "b"]}}, "query dry_run"),
    "a list with another item": ({"query_params": {"dry_run": True, "tags": ["a"]}}, "the query tags"),
    "an argument that is missing from the query": (
        {"query_params": {"tags": ["a", "b"]}},
        "the query dry_run is missing",
    ),
    "another constant in the query": ({"query_params": {"v": 3}}, "the query v does not match"),
    "a true where the constant is 2": ({"query_params": {"v": True}}, "the query v does not match"),
    "an authorization": (
        {"headers": {"Authorization": f"Bearer {SECRET}"}},
        "the header authorization does not match",
    ),
    "another host by header": ({"headers": {"Host": "evil.example"}}, "the header host does not match"),
    "another method by header": (
        {"headers": {"X-HTTP-Method-Override": "DELETE"}},
        "the header x-http-method-override does not match",
    ),
    "a header twice": (
        {"headers": {"Accept-Language": "de", "accept-language": "en"}},
        "contains the header accept-language twice",
    ),
    "an argument that is missing from the headers": (
        {"headers": {}},
        "the header accept-language is missing",
    ),
    "another constant in a header": ({"headers": {"X-Client": SECRET}}, "the header x-client does not match"),
    "another type of body": (
        {"headers": {"Content-Type": "text/xml"}},
        "the header content-type does not match",
    ),
    "an unknown field": ({"body": {"admin": True}}, "the body /admin does not match"),
    "an unknown inner field": (
        {"body": {"payment": {"amount": 5, "to": "me"}}},
        "the body /payment/to does not match",
    ),
    "another value in the body": ({"body": {"payment": {"amount": 6}, "note": None}}, "body /payment/amount"),
    "a true where 1 is meant": (
        {"arguments": ARGUMENTS | {"amount": 1}, "body": {"payment": {"amount": True}, "note": None}},
        "the body /payment/amount does not match",
    ),
    "an argument that is missing from the body": (
        {"body": {"payment": {"amount": 5}}},
        "the body /note is missing",
    ),
    "something else than an object inside": ({"body": {"payment": 5}}, "the body /payment does not match"),
    "another constant in the body": (
        {"body": {"payment": {"currency": SECRET}}},
        "the body /payment/currency does not match",
    ),
    "a list as body": ({"body": [1]}, "the body does not match"),
    "prose as body": ({"body": "send it all"}, "not valid JSON"),
}


@pytest.mark.parametrize("foreign", FOREIGN)
def test_whatever_the_arguments_do_not_make_is_a_difference_and_is_named(foreign):
    """C4.5: method, scheme, host, port, path, query, headers and body have to be those of the arguments."""
    changes, where = FOREIGN[foreign]
    found = difference(**changes)
    assert where in found
    assert SECRET not in found


def test_a_difference_is_short_and_of_one_line_whatever_was_written():
    """C8.2: it is shown and logged."""
    for changes in (
        {"url": f"https://{'x' * 10_000}.example/"},
        {"headers": {f"X-{'y' * 5_000}\u202e\n{number}": "z" for number in range(50)}},
        {"body": {"w" * 9_000 + str(number): 1 for number in range(90)}},
    ):
        found = difference(**changes)
        assert 0 < len(found) < 600
        assert found.isprintable()


PLAIN: dict[str, Any] = {"method": "GET", "headers": {}, "query_params": {}, "body": None}


def test_cookies_are_compared_one_by_one():
    """C4.5: in any order, and none beside those of the arguments."""
    places = {"a": {"in": "cookie"}, "b": {"in": "cookie"}}
    declared = tool("GET", f"{BASE}/orders", {"a": TEXT, "b": TEXT}, mappings=places)
    of_both: dict[str, Any] = PLAIN | {"arguments": {"a": "1", "b": "x=2"}, "url": f"{BASE}/orders"}
    assert difference(declared, **of_both | {"headers": {"cookie": "b=x=2;a=1"}}) == ""
    assert "the cookie b is missing" in difference(declared, **of_both | {"headers": {"Cookie": "a=1"}})
    for further in ("a=1; b=x=2; session=7", "a=1; b=3"):
        found = difference(declared, **of_both | {"headers": {"Cookie": further}})
        assert found in ("the cookie session does not match the arguments.",
                         "the cookie b does not match the arguments.")  # fmt: skip


def test_a_base_url_with_a_path_is_part_of_the_address():
    """C4.5"""
    declared = tool("GET", f"{BASE}/v1/weather/{{city}}.json", {"city": TEXT}, required=["city"])
    of_city: dict[str, Any] = {"arguments": {"city": "New York"}} | PLAIN
    url = f"{BASE}/v1/weather/New%20York.json"
    assert difference(declared, f"{BASE}/v1", **of_city, url=url) == ""
    assert difference(declared, f"{BASE}/v1", **of_city, url=url.replace("%20", " ")) == ""
    assert "address" in difference(declared, f"{BASE}/v1", **of_city, url=url.replace("/v1", ""))


def test_a_host_that_is_an_address_is_that_address():
    """C4.5"""
    declared = tool("GET", "http://[::1]:8080/x")
    same: dict[str, Any] = {"declared": declared, "base_url": "http://[::1]:8080", "arguments": {}} | PLAIN
    assert difference(**same, url="http://[::1]:8080/x") == ""
    for other in ("http://[::2]:8080/x", "http://127.1:8080/x", "http://[::1]/x"):
        assert "address" in difference(**same, url=other)
    for unclear in (
        "http://[::1] 8080/x",
        "http://[::1]8080/x",
        "http://[::1]: 8080/x",
        "http://[::1]:8_080/x",
    ):
        assert "no valid URL" in difference(**same, url=unclear)


def test_a_request_without_a_body_may_have_an_empty_one_but_no_fields():
    """C4.5: models like to write {} where there is nothing."""
    same: dict[str, Any] = {"declared": tool("GET", f"{BASE}/x"), "arguments": {}, "url": f"{BASE}/x"}
    for nothing in (None, {}, ""):
        assert difference(**same | PLAIN | {"body": nothing}) == ""
    assert "body /a" in difference(**same | PLAIN | {"body": {"a": 1}})


def test_what_has_its_usual_value_may_be_in_the_request_or_not():
    """C4.4: a default that the model spells out makes no difference."""
    declared = tool("GET", f"{BASE}/x", {"size": WHOLE, "page": WHOLE})
    same: dict[str, Any] = {"declared": declared, "arguments": {"size": 20, "page": 2}, "url": f"{BASE}/x"}
    same |= PLAIN | {"usual": {"size": 20, "page": 1}}
    assert difference(**same | {"query_params": {"page": 2}}) == ""
    assert difference(**same | {"query_params": {"page": 2, "size": "20"}}) == ""
    assert "size does not match" in difference(**same | {"query_params": {"page": 2, "size": 30}})
    assert "page is missing" in difference(**same | {"query_params": {"size": 20}})


def test_a_list_with_commas_and_json_in_the_query_are_recognised():
    """C4.4"""
    declared = tool(
        "GET",
        f"{BASE}/x",
        {"ids": {"type": "array", "items": WHOLE}, "filter": {"type": "object"}},
        mappings={"ids": {"in": "query", "explode": False}, "filter": {"in": "query", "as_json": True}},
    )
    same: dict[str, Any] = {"declared": declared, "url": f"{BASE}/x"} | PLAIN
    same |= {"arguments": {"ids": [1, 2], "filter": {"a": 1}}}
    for ids, written in (("1,2", '{"a": 1}'), ([1, 2], '{"a":1}')):
        assert difference(**same | {"query_params": {"ids": ids, "filter": written}}) == ""
    assert "filter" in difference(**same | {"query_params": {"ids": "1,2", "filter": '{"a": 2}'}})


def test_brackets_and_other_separators_in_the_query_are_recognised():
    declared = tool(
        "GET",
        f"{BASE}/x",
        {"ids": {"type": "array", "items": WHOLE}, "filter": {"type": "object"}},
        mappings={
            "ids": {"in": "query", "explode": False, "separator": "|"},
            "filter": {"in": "query", "brackets": True},
        },
    )
    same: dict[str, Any] = {"declared": declared, "url": f"{BASE}/x"} | PLAIN
    same |= {"arguments": {"ids": [1, 2], "filter": {"a": 1}}}
    assert difference(**same | {"query_params": {"ids": "1|2", "filter[a]": 1}}) == ""
    assert difference(**same | {"query_params": {"ids": [1, 2], "filter": '{"a": 1}'}}) == ""
    assert difference(**same | {"url": f"{BASE}/x?ids=1|2&filter[a]=1"}) == ""
    assert "filter[b]" in difference(**same | {"query_params": {"ids": [1, 2], "filter": '{"b": 1}'}})


def test_a_field_of_an_object_in_the_query_does_not_replace_a_constant():
    """What the declaration fixes is not the caller's to set."""
    declared = tool(
        "GET",
        f"{BASE}/x",
        {"filter": {"type": "object"}},
        mappings={"filter": {"in": "query", "brackets": True}},
        constants=[{"in": "query", "name": "filter[tenant]", "value": 7}],
    )
    operation = HttpOperation.model_validate(definition_of(declared, base_url=BASE).metadata)
    with pytest.raises(Rejected, match=r"filter sets filter\[tenant\], which is set already"):
        build_request(operation, base_url=BASE, arguments={"filter": {"tenant": 8}})
    sent = build_request(operation, base_url=BASE, arguments={"filter": {"state": "open"}})
    assert sent.query_params == {"filter[tenant]": 7, "filter[state]": ["open"]}


def test_a_raw_body_is_recognised_with_the_type_of_its_file():
    """C4.4: also a text that looks like JSON."""
    declared = tool(
        "PUT", f"{BASE}/f", {"a": TEXT}, mappings={"a": {"in": "body", "name": ""}}, body_format="raw"
    )
    same: dict[str, Any] = {"declared": declared, "url": f"{BASE}/f"} | PLAIN | {"method": "PUT"}
    for text, media_type in (('{"b": 1}', "text/plain"), ("data:image/png;base64,iVBORw0=", "image/png")):
        same |= {"arguments": {"a": text}, "body": text}
        assert difference(**same | {"headers": {"Content-Type": media_type}}) == ""
        assert "header content-type" in difference(**same | {"headers": {"Content-Type": "text/html"}})
        assert "the body does not match" in difference(**same | {"body": f"{text} "})
        assert "the body is missing" in difference(**same | {"body": None})


def test_a_form_is_recognised_as_an_object_and_as_it_is_sent():
    """C4.4: what is sent as a form is proposed as an object."""
    declared = tool("POST", f"{BASE}/f", {"amount": WHOLE, "meta": {"type": "object"}}, body_format="form")
    same: dict[str, Any] = {
        "declared": declared,
        "url": f"{BASE}/f",
        "arguments": {"amount": 5, "meta": {"a": "1"}},
    }
    same |= PLAIN | {"method": "POST"}
    for body in (
        {"amount": "5", "meta": {"a": "1"}},
        "amount=5&meta[a]=1",
        '{"amount": 5, "meta": {"a": 1}}',
    ):
        assert difference(**same | {"body": body}) == ""
    assert "admin" in difference(**same | {"body": "amount=5&meta[a]=1&admin=1"})
    assert "amount is missing" in difference(**same | {"body": {"meta": {"a": "1"}}})
