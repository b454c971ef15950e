"""Random HTTP tools with arguments that fit them."""

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from connectors.http_tools.checks import definition_of
from connectors.http_tools.tool import HttpOperation
from tests.connectors.declared_tools import API, tool

BASE_URLS = st.sampled_from([API, f"{API}:8443", f"{API}/v1", "http://[::1]:8080/api"])
NAMES = st.text("abcXYZ019-_.~/é[] &=+%", min_size=1, max_size=6)
HEADER_NAMES = st.text("abcXYZ01-_", min_size=1, max_size=6).map("X-{}".format)
TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=8)
HEADER_TEXTS = st.text('ab 1,;="/', max_size=6).map(str.strip)
PATH_TEXTS = TEXTS.filter(lambda text: text.strip(". ") and not set(text) & set("/\\%;"))
NUMBERS = st.integers(-(10**18), 10**18) | st.floats(allow_nan=False, allow_infinity=False)
FILES = TEXTS | st.sampled_from(["data:,a%20b", "data:image/png;base64,iVBORw0=", "data:text/csv,a"])
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "integer": st.integers(-(10**18), 10**18),
    "number": NUMBERS,
    "boolean": st.booleans(),
}


@dataclass(frozen=True)
class RandomCall:
    """A tool and arguments for which it makes a request."""

    operation: HttpOperation
    base_url: str
    schema: dict[str, Any]
    arguments: dict[str, Any]


@dataclass(frozen=True)
class _Argument:
    schema: dict[str, Any]
    place: dict[str, Any]
    value: Any


@st.composite
def random_calls(draw: st.DrawFn) -> RandomCall:
    method = draw(st.sampled_from(["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]))
    body_format = draw(st.sampled_from(["json", "form", "raw"]))
    in_path = draw(st.lists(st.sampled_from("abcd"), unique=True, max_size=2))
    arguments = {f"path {name}": _path_argument(draw, name) for name in in_path}
    for name in draw(st.lists(NAMES, unique=True, max_size=3)):
        arguments[f"query {name}"] = _query_argument(draw, name)
    for name in draw(st.lists(HEADER_NAMES, unique_by=str.lower, max_size=2)):
        arguments[f"header {name}"] = _text_argument(draw, HEADER_TEXTS, {"in": "header", "name": name})
    if method not in ("GET", "HEAD") and body_format == "raw":
        arguments["body"] = _Argument({"type": "string"}, {"in": "body", "name": ""}, draw(FILES))
    elif method not in ("GET", "HEAD"):
        for number, pointer in enumerate(
            draw(st.lists(st.sampled_from(["/a", "/b/c", "/b/~1", "/d/e/f"]), unique=True))
        ):
            arguments[f"body {number}"] = _body_argument(draw, pointer, form=body_format == "form")
    base_url = draw(BASE_URLS)
    declared = tool(
        method,
        base_url + "".join(f"/step/{{{name}}}.x" for name in in_path),
        {name: argument.schema for name, argument in arguments.items()},
        required=[f"path {name}" for name in in_path],
        mappings={name: argument.place for name, argument in arguments.items()},
        body_format=body_format,
    )
    definition = definition_of(declared, base_url=base_url)
    left_out = {name for name in arguments if not name.startswith("path") and draw(st.integers(0, 4)) == 0}
    return RandomCall(
        HttpOperation.model_validate(definition.metadata),
        base_url,
        definition.input_schema,
        {name: argument.value for name, argument in arguments.items() if name not in left_out},
    )


def _text_argument(draw: st.DrawFn, texts: st.SearchStrategy[str], place: dict[str, Any]) -> _Argument:
    kind = draw(st.sampled_from(["string", *SCALARS]))
    return _Argument({"type": kind}, place, draw(SCALARS.get(kind, texts)))


def _path_argument(draw: st.DrawFn, name: str) -> _Argument:
    return _text_argument(draw, PATH_TEXTS, {"in": "path", "name": name})


def _query_argument(draw: st.DrawFn, name: str) -> _Argument:
    place = {"in": "query", "name": name, "explode": draw(st.booleans())}
    if draw(st.booleans()):
        return _text_argument(draw, TEXTS, place)
    kind = draw(st.sampled_from(["string", *SCALARS]))
    items = SCALARS.get(kind, TEXTS.filter(lambda text: text and "," not in text))
    return _Argument({"type": "array", "items": {"type": kind}}, place, draw(st.lists(items, max_size=3)))


def _body_argument(draw: st.DrawFn, pointer: str, *, form: bool) -> _Argument:
    place = {"in": "body", "name": pointer}
    return _text_argument(draw, TEXTS, place) if form else _Argument({}, place, draw(JSON))
