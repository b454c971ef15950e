"""OpenAPI documents with every style of parameter and body that is imported, and calls that they allow.

A call says what it means by the document's names; `expected` is what then has to arrive, once the texts of
the wire are read by the style of their parameter. Nothing here knows how the product writes requests.
"""

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

Raw = dict[str, Any]
Values = st.SearchStrategy[Any]
VERSIONS = ("3.0.3", "3.1.0")
JSON = "application/json"
JSON_LINES = ("application/x-ndjson", "application/jsonl")
FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"
SEPARATORS = {"form": ",", "simple": ",", "pipeDelimited": "|", "spaceDelimited": " "}
FILE: Raw = {"type": "string", "format": "binary"}
TEXTS = st.sampled_from(
    ["a", "two words", "ü&=%+?#", "50 %", 'a "quote"', "semi;colon", "tab\there", "1", "true", "null", "😀"]
)
TEXT = TEXTS | st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=8)
WORD = st.sampled_from(["a", "b2", "ü&=%+?#", "x-y_z", "semi;colon", "true", "😀"])
"""Without what separates the items of a list or the segments of a path."""
ASCII_WORD = st.sampled_from(["a", "b2", "x-y_z", "true", "12"])


@dataclass(frozen=True)
class Described:
    """A schema, and the values that it means."""

    schema: Raw
    values: Values


@dataclass
class Meant:
    """A call by the document's names; what is left out is not in it."""

    said: dict[tuple[str, str], Any] = field(default_factory=dict)
    """By where a parameter is, and its name."""
    body: Any = None
    has_body: bool = False
    media_type: str = ""
    """The one that the body has to arrive with."""
    part_types: dict[str, str] = field(default_factory=dict)
    """Of a form's fields."""


@dataclass
class Expected:
    path: str = ""
    """Decoded; a slash within a value is one of the path."""
    query: list[tuple[str, str]] = field(default_factory=list)
    json_in_query: Raw = field(default_factory=dict)
    """By parameter: values that are written as JSON, whose white space does not matter."""


@dataclass(frozen=True)
class Call:
    operation_id: str
    path: str
    method: str
    operation: Raw
    meant: Meant
    expected: Expected


@dataclass(frozen=True, repr=False)
class RandomDocument:
    raw: Raw
    """Without servers."""
    calls: list[Call]


def text_of(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


class Grammar:
    """Of documents of one version, whose kinds of schemas differ in what may be null, and how."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.is_30 = version.startswith("3.0")
        self.colour = Described({"$ref": "#/components/schemas/Colour"}, st.sampled_from(["red", "grün"]))
        self.line = Described({"$ref": "#/components/schemas/Line"}, LINES)
        self.tree = Described({"$ref": "#/components/schemas/Tree"}, TREES)

    def scalars(self, text: Values) -> list[Described]:
        positive: Raw = {"exclusiveMinimum": 0}
        if self.is_30:
            positive = {"minimum": 0, "exclusiveMinimum": True}
        return [
            Described({"type": "string"}, text),
            Described({"type": "integer", "minimum": -5, "maximum": 500}, st.integers(-5, 500)),
            Described({"type": "number", "maximum": 9.5} | positive, st.sampled_from([0.5, 2.25, 1e-7, 9.5])),
            Described({"type": "boolean"}, st.booleans()),
            Described({"type": "string", "enum": ["asc", "desc"], "default": "asc"}, st.just("desc")),
            self.colour,
        ]

    def nullable(self, one: Described) -> Described:
        if "$ref" in one.schema:
            return one
        if self.is_30:
            schema = one.schema | {"nullable": True}
        else:
            schema = one.schema | {"type": [one.schema["type"], "null"]}
        if "enum" in schema:
            schema |= {"enum": [*schema["enum"], None]}
        return Described(schema, one.values | st.none())

    def nullable_line(self) -> Described:
        schema: Raw = {"anyOf": [self.line.schema, {"type": "null"}]}
        if self.is_30:
            schema = self.line.schema | {"nullable": True}
        return Described(schema, LINES | st.none())

    def values(self) -> st.SearchStrategy[Described]:
        """Of a JSON body."""
        scalars = st.sampled_from(self.scalars(TEXT))
        choice = Described(
            {
                "oneOf": [
                    {"type": "integer"},
                    {"type": "object", "required": ["all"], "properties": {"all": {"enum": [1]}}},
                ]
            },
            st.integers(-9, 9) | st.just({"all": 1}),
        )
        leaves = st.one_of(
            scalars,
            scalars.map(self.nullable),
            st.sampled_from([self.line, self.tree, choice, Described({}, ANYTHING)]),
            st.sampled_from([*CONTRADICTORY, SHAPE, BOTH, self.nullable_line()]),
        )
        return st.recursive(leaves, lambda inner: inner.map(_list_of) | inner.map(_map_of), max_leaves=3)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(WORD, inner, max_size=2),
    max_leaves=4,
)
LINES = st.fixed_dictionaries({"sku": TEXT}, optional={"amount": st.integers(1, 9)})
TREES = st.recursive(
    st.fixed_dictionaries({}, optional={"name": TEXT}),
    lambda inner: st.fixed_dictionaries(
        {"children": st.lists(inner, min_size=1, max_size=2)}, optional={"name": TEXT}
    ),
    max_leaves=3,
)
LISTED = Described(
    {"type": "array", "items": {"type": "string"}, "enum": ["north", "south"]},
    st.lists(st.sampled_from(["north", "south"]), min_size=1, max_size=2, unique=True),
)
"""The enum is meant for the items."""
NUMBERED = Described({"type": "string", "enum": [1, 2]}, st.sampled_from(["1", "2"]))
INT_OR_STRING = Described({"type": "string", "format": "int-or-string"}, st.integers(0, 9000) | WORD)
OVERLAPPING = Described(
    {"oneOf": [{"type": "string", "format": "date"}, {"type": "string", "format": "date-time"}]},
    st.sampled_from(["2031-12-31", "2031-12-31T23:59:59Z"]),
)
CONTRADICTORY = (
    LISTED,
    NUMBERED,
    INT_OR_STRING,
    OVERLAPPING,
    Described({"type": "integer", "enum": ["1", "2"]}, st.sampled_from([1, 2])),
    Described({"oneOf": [{"type": "integer"}, {"type": "number"}]}, st.sampled_from([1, 0.5])),
    Described({"oneOf": [{"type": "string"}, {"type": "string", "enum": ["-1"]}]}, st.just("-1") | TEXT),
    Described(
        {
            "oneOf": [
                {"type": "object", "properties": {"name": {"type": "string"}, "mail": {"type": "string"}}},
                {"type": "object", "properties": {"name": {"type": "string"}, "size": {"type": "integer"}}},
            ]
        },
        st.fixed_dictionaries({"name": TEXT}, optional={"mail": TEXT}),
    ),
    Described({"type": "string", "pattern": "/^[a-z]+$/i"}, st.just("Anna")),
)
"""By the letter nothing, or not all that is meant, is valid."""
SHAPE = Described(
    {"$ref": "#/components/schemas/Shape"},
    st.fixed_dictionaries({"kind": st.just("Circle"), "radius": st.integers(0, 9)}, optional={"name": TEXT})
    | st.fixed_dictionaries({"kind": st.just("Square")}, optional={"side": st.booleans()}),
)
BOTH = Described(
    {"$ref": "#/components/schemas/Both"},
    st.fixed_dictionaries({"a": TEXT, "b": st.integers(-9, 9)}),
)
STAMP: Raw = {"$ref": "#/components/schemas/Stamp"}
COMPONENTS: Raw = {
    "schemas": {
        "Colour": {"type": "string", "enum": ["red", "grün", "dark blue"]},
        "Stamp": {"type": "object", "readOnly": True, "properties": {"at": {"type": "string"}}},
        "Line": {
            "type": "object",
            "required": ["sku"],
            "properties": {
                "sku": {"type": "string"},
                "amount": {"type": "integer", "minimum": 1, "maximum": 9},
                "stamp": STAMP,
            },
            "additionalProperties": False,
        },
        "Shape": {
            "type": "object",
            "properties": {"kind": {"type": "string"}, "name": {"type": "string"}},
            "required": ["kind"],
            "discriminator": {"propertyName": "kind"},
        },
        "Circle": {
            "allOf": [
                {"$ref": "#/components/schemas/Shape"},
                {"type": "object", "properties": {"radius": {"type": "integer"}}, "required": ["radius"]},
            ]
        },
        "Square": {
            "allOf": [{"$ref": "#/components/schemas/Shape"}, {"properties": {"side": {"type": "boolean"}}}]
        },
        "Closed": {
            "type": "object",
            "properties": {"a": {"type": "string"}},
            "required": ["a"],
            "additionalProperties": False,
        },
        "Both": {
            "allOf": [
                {"$ref": "#/components/schemas/Closed"},
                {"type": "object", "properties": {"b": {"type": "integer"}}},
            ]
        },
        "Tree": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "children": {
                    "type": "array",
                    "maxItems": 2,
                    "items": {"$ref": "#/components/schemas/Tree"},
                },
            },
        },
    },
    "securitySchemes": {"key": {"type": "apiKey", "in": "header", "name": "X-Key"}},
}


def _list_of(one: Described) -> Described:
    return Described({"type": "array", "items": one.schema}, st.lists(one.values, max_size=3))


def _map_of(one: Described) -> Described:
    values = st.dictionaries(TEXT, one.values, max_size=2)
    return Described({"type": "object", "additionalProperties": one.schema}, values)


def _items(one: Described) -> Described:
    """A list outside of JSON, where an empty one cannot be told from none."""
    schema = {"type": "array", "minItems": 1, "items": one.schema}
    return Described(schema, st.lists(one.values, min_size=1, max_size=3))


@st.composite
def random_documents(draw: st.DrawFn, version: str, *, operations: int) -> RandomDocument:
    grammar = Grammar(version)
    calls = [draw(_calls(grammar, number)) for number in range(operations)]
    paths: dict[str, Raw] = {}
    for call in calls:
        paths[call.path] = {call.method: call.operation}
    raw: Raw = {
        "openapi": grammar.version,
        "info": {"title": "Random", "version": "1"},
        "paths": paths,
        "components": COMPONENTS,
        "security": [{"key": []}],
    }
    return RandomDocument(raw, calls)


@st.composite
def _calls(draw: st.DrawFn, grammar: Grammar, number: int) -> Call:
    method = draw(st.sampled_from(["get", "delete", "post", "put", "patch"]))
    meant, expected = Meant(), Expected(path=f"/op{number}")
    operation: Raw = {
        "operationId": f"op{number}",
        "parameters": [],
        "responses": {"200": {"description": ""}},
    }
    path = expected.path
    for place in range(draw(st.integers(0, 2))):
        template, further, described = draw(_in_path(grammar, f"p{place}"))
        path += f"/x/{template}"
        parameter = {"name": f"p{place}", "in": "path", "required": True, "schema": described.schema}
        operation["parameters"].append(parameter | further)
        value = meant.said["path", f"p{place}"] = draw(described.values)
        expected.path += "/x/" + ",".join(map(text_of, value if isinstance(value, list) else [value]))
    for place in range(draw(st.integers(0, 3))):
        operation["parameters"].append(draw(_in_query(grammar, f"q{place}", meant, expected)))
    for where, name in draw(st.lists(st.sampled_from([("header", "X-H"), ("cookie", "c")]), unique=True)):
        operation["parameters"].append(draw(_beside(grammar, where, name, meant)))
    if method not in ("get", "delete"):
        operation["requestBody"] = draw(_body(grammar, meant))
    if draw(st.integers(0, 4)) == 0:
        operation["security"] = draw(st.sampled_from([[], [{}]]))
    return Call(f"op{number}", path, method, operation, meant, expected)


@st.composite
def _in_path(draw: st.DrawFn, grammar: Grammar, name: str) -> tuple[str, Raw, Described]:
    """Its place in the path, and what its parameter has besides the schema."""
    if draw(st.integers(0, 3)) == 0:
        rest = Described({"type": "string"}, st.lists(WORD, min_size=1, max_size=3).map("/".join))
        templates = ["{+%s}", "{%s+}", "{*%s}", "{**%s}", "{%s:.+}", "{%s:.*}"]
        encoded = (f"{{{name}}}", {"x-ms-skip-url-encoding": True})
        return *draw(st.sampled_from([*((one % name, {}) for one in templates), encoded])), rest
    scalar = draw(st.sampled_from([*grammar.scalars(WORD), INT_OR_STRING, OVERLAPPING]))
    return f"{{{name}}}", {}, draw(st.sampled_from([scalar, _items(scalar)]))


@st.composite
def _beside(draw: st.DrawFn, grammar: Grammar, where: str, name: str, meant: Meant) -> Raw:
    described = draw(st.sampled_from(grammar.scalars(ASCII_WORD)[:5]))
    required = draw(st.booleans())
    if required or draw(st.booleans()):
        meant.said[where, name] = draw(described.values)
    return {"name": name, "in": where, "required": required, "schema": described.schema}


@st.composite
def _in_query(draw: st.DrawFn, grammar: Grammar, name: str, meant: Meant, expected: Expected) -> Raw:
    name += draw(st.sampled_from(["", "[x]", ".y", " z"]))
    required = draw(st.booleans())
    parameter: Raw = {"name": name, "in": "query", "required": required}
    kind = draw(st.sampled_from([_scalar, _list, _joined, _json, _deep, _spread, _lines]))
    described, further, write = kind(draw, grammar, name)
    if required or draw(st.booleans()):
        value = draw(described.values)
        # The fields of an object without a style are parameters of their own.
        own = value if kind is _spread else {name: value}
        meant.said |= {("query", one): each for one, each in own.items()}
        if write is None:
            expected.json_in_query[name] = value
        else:
            expected.query += write(value)
    return parameter | further | ({} if write is None else {"schema": described.schema})


Pairs = list[tuple[str, str]]
Kind = tuple[Described, Raw, Callable[[Any], Pairs] | None]


def _scalar(draw: st.DrawFn, grammar: Grammar, name: str) -> Kind:
    kinds = [*grammar.scalars(TEXT), OVERLAPPING, INT_OR_STRING, NUMBERED]
    return draw(st.sampled_from(kinds)), {}, lambda value: [(name, text_of(value))]


def _list(draw: st.DrawFn, grammar: Grammar, name: str) -> Kind:
    lists = [*map(_items, [*grammar.scalars(TEXT), OVERLAPPING, INT_OR_STRING]), LISTED]
    described = draw(st.sampled_from(lists))
    return described, {}, lambda value: [(name, text_of(item)) for item in value]


def _joined(draw: st.DrawFn, grammar: Grammar, name: str) -> Kind:
    style = draw(st.sampled_from(["form", "pipeDelimited", "spaceDelimited"]))
    described = _items(draw(st.sampled_from(grammar.scalars(WORD))))
    further = {"style": style, "explode": False}
    return described, further, lambda value: [(name, SEPARATORS[style].join(map(text_of, value)))]


def _json(draw: st.DrawFn, grammar: Grammar, name: str) -> Kind:
    described = draw(grammar.values())
    return described, {"content": {JSON: {"schema": described.schema}}}, None


def _deep(draw: st.DrawFn, grammar: Grammar, name: str) -> Kind:
    inner = draw(st.sampled_from(grammar.scalars(TEXT)))
    fields = {"gte": inner.schema, "lt": inner.schema}
    schema: Raw = {"type": "object", "properties": fields, "additionalProperties": False}
    values = st.dictionaries(st.sampled_from(sorted(fields)), inner.values, min_size=1)
    further = {"style": "deepObject", "explode": True}
    return (
        Described(schema, values),
        further,
        lambda value: [(f"{name}[{key}]", text_of(one)) for key, one in value.items()],
    )


def _spread(draw: st.DrawFn, grammar: Grammar, name: str) -> Kind:
    inner = draw(st.sampled_from(grammar.scalars(TEXT)))
    fields = {f"{name}_page": inner.schema, f"{name}_size": inner.schema}
    values = st.dictionaries(st.sampled_from(sorted(fields)), inner.values, min_size=1)
    return (
        Described({"type": "object", "properties": fields}, values),
        {},
        lambda value: [(key, text_of(one)) for key, one in value.items()],
    )


def _lines(draw: st.DrawFn, grammar: Grammar, name: str) -> Kind:
    """Lists of objects, as PHP, Rails, Express and ASP.NET read them."""
    described = Described(
        {"type": "array", "minItems": 1, "items": grammar.line.schema},
        st.lists(LINES, min_size=1, max_size=2),
    )
    return (
        described,
        {},
        lambda value: [
            (f"{name}[{number}][{key}]", text_of(one))
            for number, item in enumerate(value)
            for key, one in item.items()
        ],
    )


@st.composite
def _body(draw: st.DrawFn, grammar: Grammar, meant: Meant) -> Raw:
    if draw(st.integers(0, 3)) == 0:
        return draw(_patch(meant))
    kind = draw(st.sampled_from([_json_fields, _json_whole, _json_lines, _form, _multipart, _raw]))
    media_type, media, values = kind(draw, grammar)
    # What an object demands is demanded of the arguments, also where the body may be left out.
    demands = {"required", "minProperties", "anyOf", "oneOf"}
    required = not demands.isdisjoint(media["schema"]) or draw(st.booleans())
    if required or draw(st.booleans()):
        meant.body, meant.has_body, meant.media_type = draw(values), True, media_type
        encoding = media.get("encoding", {})
        meant.part_types = {name: one["contentType"] for name, one in encoding.items()}
    return {"required": required, "content": {media_type: media}}


Body = tuple[str, Raw, Values]


def _json_whole(draw: st.DrawFn, grammar: Grammar) -> Body:
    described = draw(grammar.values())
    values = described.values
    if described.schema == grammar.nullable_line().schema:
        # The arguments are the fields of the object, so no call can say null.
        values = values.filter(lambda value: value is not None)
    return JSON, {"schema": described.schema}, values


def _json_fields(draw: st.DrawFn, grammar: Grammar) -> Body:
    fields = {f"f{place}": draw(grammar.values()) for place in range(3)}
    return JSON, *_fields(draw, fields)


def _form(draw: st.DrawFn, grammar: Grammar) -> Body:
    kinds = [*grammar.scalars(TEXT), *map(_items, grammar.scalars(TEXT)), grammar.line, grammar.tree]
    return FORM, *_fields(draw, {f"f{place}": draw(st.sampled_from(kinds)) for place in range(3)}, fewest=1)


def _multipart(draw: st.DrawFn, grammar: Grammar) -> Body:
    file = Described(FILE, FILES)
    kinds = [*grammar.scalars(TEXT), *map(_items, [*grammar.scalars(TEXT), file]), grammar.line, file, file]
    fields = {f"f{place}": draw(st.sampled_from(kinds)) for place in range(3)}
    media, values = _fields(draw, fields, fewest=1)
    typed = st.sampled_from(["application/json", "application/vnd.acme+json"])
    if draw(st.booleans()):
        one = draw(st.sampled_from([grammar.line, *grammar.scalars(TEXT)[:4]]))
        media["schema"]["properties"]["typed"] = one.schema
        media["encoding"] = {"typed": {"contentType": draw(typed)}}
        values = st.builds(lambda body, own: body | {"typed": own}, values, one.values)
    return MULTIPART, media, values


PATCHES = st.fixed_dictionaries(
    {},
    optional={
        "title": TEXT | st.none(),
        "size": st.integers(-9, 9) | st.none(),
        "labels": st.none() | st.dictionaries(WORD, TEXT | st.none(), max_size=2),
        "line": st.none() | st.fixed_dictionaries({"sku": TEXT}, optional={"amount": st.none()}),
    },
)
PATCHED: Raw = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "minLength": 0},
        "size": {"type": "integer"},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "line": {"$ref": "#/components/schemas/Line"},
    },
}
MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"


@st.composite
def _patch(draw: st.DrawFn, meant: Meant) -> Raw:
    """Of one media type or several, of which an object is no JSON Patch, and a list is nothing else."""
    types = draw(st.permutations([JSON_PATCH, MERGE, STRATEGIC]))[: draw(st.integers(1, 3))]
    objects = [one for one in types if one != JSON_PATCH]
    schema, values, meant.media_type = PATCHED, PATCHES, JSON_PATCH
    if not objects or draw(st.integers(0, 3)) == 0:
        types = [*types, JSON_PATCH] if JSON_PATCH not in types else types
        schema = {"type": "array", "minItems": 1, "items": {"type": "object"}}
        values = st.just([{"op": "replace", "path": "/size", "value": None}])
    else:
        meant.media_type = draw(st.sampled_from(objects))
        if len(objects) > 1:
            meant.said["header", "Content-Type"] = meant.media_type
    meant.body, meant.has_body = draw(values), True
    return {"required": True, "content": {one: {"schema": schema} for one in types}}


def _json_lines(draw: st.DrawFn, grammar: Grammar) -> Body:
    media_type = draw(st.sampled_from(JSON_LINES))
    described = draw(grammar.values())
    schema = {"type": "array", "items": described.schema}
    return media_type, {"schema": schema}, st.lists(described.values, min_size=1, max_size=3)


def _raw(draw: st.DrawFn, grammar: Grammar) -> Body:
    media_type = draw(st.sampled_from(["text/plain", "application/xml"]))
    return media_type, {"schema": {"type": "string"}}, TEXT.filter(bool)


FILES = st.binary(max_size=20).map(
    lambda content: f"data:image/png;base64,{base64.b64encode(content).decode()}"
)


def _fields(draw: st.DrawFn, fields: dict[str, Described], *, fewest: int = 0) -> tuple[Raw, Values]:
    """An object with these fields, some demanded, and one that is only for answers."""
    properties = {name: one.schema for name, one in fields.items()}
    schema: Raw = {
        "type": "object",
        "properties": properties | {"made": STAMP},
        "additionalProperties": False,
    }
    values = st.fixed_dictionaries({}, optional={name: one.values for name, one in fields.items()})
    demand = draw(st.sampled_from(DEMANDS))
    schema |= demand.schema
    return {"schema": schema}, values.filter(lambda value: len(value) >= fewest and demand.holds(value))


@dataclass(frozen=True)
class Demand:
    schema: Raw
    holds: Callable[[Raw], bool]


DEMANDS = (
    Demand({}, lambda body: True),
    Demand({"minProperties": 1}, bool),
    Demand({"required": ["f2", "made"]}, lambda body: "f2" in body),
    Demand(
        {"anyOf": [{"required": ["f0"]}, {"required": ["f1"]}]},
        lambda body: not body.keys().isdisjoint({"f0", "f1"}),
    ),
    Demand(
        {"oneOf": [{"required": ["f0"]}, {"required": ["f1", "f2"]}]},
        lambda body: ("f0" in body) != ({"f1", "f2"} <= body.keys()),
    ),
)
