"""Requests that are built, compared and sent, whatever the tool and whatever is given to it."""

from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from hypothesis import given, settings
from hypothesis import strategies as st

from connectors.errors import Rejected
from connectors.http_tools.request import build_request, content_of, difference_between, query_of
from connectors.http_tools.tool import HTTPRequestSpec, fill_template, parameters_in
from tests.connectors.random_tools import JSON, NAMES, RandomCall, random_calls
from tests.thoroughness import examples

EXAMPLES = settings(max_examples=examples(100))
TRICKS = [
    "@",
    "//",
    "\\",
    "..",
    "%2e",
    "%2f",
    "%00",
    "#",
    "?",
    "&",
    "=",
    ":",
    ";",
    "é",
    " ",
    "evil.example",
    "\n",
    "a",
]


def build(call: RandomCall, arguments: dict[str, Any] | None = None) -> HTTPRequestSpec:
    given = call.arguments if arguments is None else arguments
    return build_request(call.operation, base_url=call.base_url, arguments=given)


def difference(call: RandomCall, written: HTTPRequestSpec) -> str:
    places = call.operation.arguments
    in_path = {name: value for name, value in call.arguments.items() if places[name].place == "path"}
    built, usual = build(call), build(call, in_path)
    return difference_between(written, built, usual=usual, operation=call.operation)


@EXAMPLES
@given(random_calls())
def test_the_request_that_the_arguments_make_is_recognised(call):
    """C4.4, C4.5: of every type, in every place, also with all of its query in the URL."""
    spec = build(call)
    assert difference(call, spec) == ""
    moved = spec.model_copy(update={"url": f"{spec.url}?{urlencode(query_of(spec))}", "query_params": {}})
    assert difference(call, moved) == ""


@EXAMPLES
@given(random_calls())
def test_what_is_built_can_be_sent_and_comes_apart_again(call):
    """C5.1: by another reader than ours, the query and the form are what was meant."""
    spec = build(call)
    assert parse_qsl(urlencode(query_of(spec)), keep_blank_values=True) == query_of(spec)
    assert urlsplit(spec.url).netloc == urlsplit(call.base_url).netloc
    content_of(call.operation, spec)


@EXAMPLES
@given(random_calls(), st.data())
def test_a_changed_request_differs_or_means_the_same(call, data):
    """C4.5: to other readers of addresses, too."""
    built = build(call)
    changed = _changed(data, built)
    if difference(call, changed):
        return
    assert changed.method == built.method
    assert urlsplit(changed.url).netloc == urlsplit(built.url).netloc
    assert unquote(urlsplit(changed.url).path) == unquote(urlsplit(built.url).path)
    assert set(changed.query_params) <= set(built.query_params)
    tolerated = {"accept", "content-type"}
    assert {name.lower() for name in changed.headers} <= {name.lower() for name in built.headers} | tolerated


def _changed(data: st.DataObject, spec: HTTPRequestSpec) -> HTTPRequestSpec:
    match data.draw(st.sampled_from(["url", "query", "headers", "body", "method"])):
        case "url":
            where = data.draw(st.integers(0, len(spec.url)))
            until = data.draw(st.sampled_from([where, where + 1, where + 3]))
            trick = data.draw(st.sampled_from(TRICKS))
            change: dict[str, Any] = {"url": spec.url[:where] + trick + spec.url[until:]}
        case "query":
            change = {"query_params": spec.query_params | {data.draw(NAMES): "x"}}
        case "headers":
            name = data.draw(st.sampled_from(["Authorization", "Host", "accept", "Content-Type", "X-a"]))
            change = {"headers": spec.headers | {name: "application/json"}}
        case "body":
            change = {"body": data.draw(JSON)}
        case _:
            change = {"method": data.draw(st.sampled_from(["GET", "POST", "DELETE"]))}
    return spec.model_copy(update=change)


@EXAMPLES
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=12))
def test_a_value_in_the_path_stays_one_step_of_it_for_whoever_decodes_it_how_often(value):
    """C4.5: servers and proxies decode and resolve paths each in its own way."""
    path = "/orders/{id}/lines"
    assert parameters_in(path) == ["id"]
    try:
        filled = fill_template(path, {"id": value})
    except Rejected:
        return
    for _ in range(4):
        first, step, last = filled.strip("/").split("/")
        assert (first, last) == ("orders", "lines")
        assert step not in ("", ".", "..")
        filled = unquote(filled)
