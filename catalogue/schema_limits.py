"""Limits for schemas of engines: their size, their depth, and the work that references multiply. A validator
follows each reference every time: forty short definitions that each refer twice to the previous one keep it
busy for years. The demand of a schema therefore counts nodes as often as a validator visits them."""

import json
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field
from itertools import chain
from typing import Any
from urllib.parse import unquote

from connectors.formats.json import as_object, write_json
from connectors.formats.json_schema import child_of, steps_of

MAX_BYTES = 1024 * 1024
MAX_SERVED = 32 * 1024  # Larger ones are reduced for clients (`catalogue.reduced_schemas`)
MAX_DEPTH = 40
MAX_NODES = 20_000
MAX_REFERENCES_IN_A_ROW = 100
MAX_EXPANDED = 100_000  # Nodes with references followed; a validator takes some milliseconds for as many
DIALECTS = tuple(
    f"{scheme}://json-schema.org/{path}/schema"
    for scheme in ("http", "https")
    for path in ("draft-04", "draft-06", "draft-07", "draft/2019-09", "draft/2020-12")
)
LITERALS = frozenset({"enum", "const", "default", "examples", "example"})  # Data, not schemas
DEFINITIONS = frozenset({"$defs", "definitions"})
NAMED = DEFINITIONS | {"properties", "patternProperties", "dependentSchemas", "dependencies"}
"""Keywords with an object by names, which are not keywords."""
NOT_FOLLOWED = LITERALS | DEFINITIONS
REFERENCES = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})
ANCHORS = frozenset({"$anchor", "$dynamicAnchor"})
MCP_HEADER = "x-mcp-header"
"""Removed: with it, an engine could make clients copy arguments into HTTP headers, and clients drop tools
with invalid annotations."""


class UnsafeSchema(ValueError):
    """The schema must neither be served nor replaced silently."""


class ExcessiveSchema(UnsafeSchema):
    """The schema is beyond a limit."""


class BrokenSchema(ValueError):
    """The schema is invalid."""


def read_bounded(text: str) -> tuple[dict[str, Any], str]:
    """The object of a JSON text without `x-mcp-header`, and its text. Raises UnsafeSchema or BrokenSchema."""
    schema = json.loads(text)
    if (dialect := schema.get("$schema")) is not None and str(dialect).rstrip("#") not in DIALECTS:
        raise UnsafeSchema(f"The schema's dialect {str(dialect)[:200]!r} is not supported.")
    reader = _Reader()
    try:
        reader.read(schema)
        if reader.nodes > MAX_NODES:
            raise too_large()
        if reader.has_headers:
            text = write_json(schema)
        if len(text) > MAX_BYTES:
            raise ExcessiveSchema(f"The schema is larger than {MAX_BYTES // 1024:,} KiB.")
        if reader.has_references:
            measure_demand(schema, is_inlined=len(text) <= MAX_SERVED)
    except ExcessiveSchema as error:
        raise UnsafeSchema(f"{error} {_advice(schema)}") from None
    return schema, text


def too_large() -> ExcessiveSchema:
    return ExcessiveSchema(
        f"The schema is nested deeper than {MAX_DEPTH} or has more than {MAX_NODES:,} parts."
    )


def _advice(schema: dict[str, Any]) -> str:
    sizes = {
        name: len(write_json(part))
        for key in DEFINITIONS
        for name, part in as_object(schema.get(key)).items()
    }
    if not sizes:
        return "Move inner schemas to $defs and refer to them, or replace them by {}, which allows any value."
    largest = max(sizes, key=lambda name: sizes[name])
    return (
        f"Its largest definition is {largest[:100]!r}; replace parts of it by {{}}, which allows any value."
    )


def measure_demand(schema: dict[str, Any], *, is_inlined: bool = False) -> int:
    """The number of recursive references, by which each level of arguments can multiply the work. Raises
    UnsafeSchema for external references or excessive work, BrokenSchema for dangling ones. `is_inlined`: the
    work of clients that write out all references, not only of the validator."""
    nodes = subschemas(schema)
    if all(map(REFERENCES.isdisjoint, nodes)):
        return 0
    expansion = _Expansion(Places.of(schema, nodes), is_inlined)
    expansion.expand(schema)
    return len(expansion.recursive)


@dataclass(slots=True)
class _Reader:
    nodes: int = 0
    has_references: bool = False
    has_headers: bool = False

    def read(self, value: Any, *, depth: int = 0, named: bool = False, literal: bool = False) -> None:
        """Counts the parts of an object or list, and removes `x-mcp-header` where it is a keyword."""
        items: Iterable[tuple[Any, Any]] = ((None, item) for item in value)
        if isinstance(value, dict):
            if not (literal or named):
                self.has_references = self.has_references or not REFERENCES.isdisjoint(value)
                if MCP_HEADER in value:
                    del value[MCP_HEADER]
                    self.has_headers = True
            items = value.items()
        self.nodes += not literal
        if (value and depth >= MAX_DEPTH) or self.nodes > MAX_NODES:
            raise too_large()
        for key, item in items:
            is_literal = literal or (key in LITERALS and not named)
            if isinstance(item, dict | list):
                is_named = isinstance(item, dict) and key in NAMED and not named
                self.read(item, depth=depth + 1, named=is_named, literal=is_literal)
            elif not is_literal:
                self.nodes += 1


Schema = dict[str, Any]


@dataclass(slots=True)
class Places:
    """The targets of a schema's references; nodes are compared by identity."""

    identifier: str  # The keyword that starts a resource, the base of the pointers within
    resources: dict[str, Schema] = field(default_factory=dict)
    anchors: dict[str, Schema] = field(default_factory=dict)

    @classmethod
    def of(cls, schema: Schema, nodes: list[Schema]) -> "Places":
        old = "draft-04" in str(schema.get("$schema"))
        places = cls("id" if old else "$id")
        for node in nodes:
            if isinstance(name := node.get(places.identifier), str):
                is_anchor = name.startswith("#")
                _add(places.anchors if is_anchor else places.resources, name.strip("#"), node)
            # A dynamic anchor usually repeats a plain one on the same node.
            for name in {node[key] for key in ANCHORS & node.keys() if isinstance(node[key], str)}:
                _add(places.anchors, name, node)
        for reference in chain.from_iterable(map(_references, nodes)):
            if (base := reference.partition("#")[0]) and base not in places.resources:
                raise UnsafeSchema(f"The schema refers to {reference[:200]!r}, which is outside of it.")
        return places

    def starts_resource(self, node: Any) -> bool:
        name = node.get(self.identifier) if isinstance(node, dict) else None
        return isinstance(name, str) and not name.startswith("#")

    def find(self, reference: str, resource: Schema) -> tuple[Any, Schema]:
        """The target and its resource. Raises BrokenSchema if there is none."""
        base, _, fragment = reference.partition("#")
        start = self.resources[base] if base else resource
        fragment = unquote(fragment)
        if not fragment:
            return start, start
        place: Any = start
        try:
            if not fragment.startswith("/"):
                return self.anchors[fragment], start
            for step in steps_of(fragment):
                place = child_of(place, step)
                start = place if self.starts_resource(place) else start
        except (LookupError, ValueError):
            raise BrokenSchema(f"It refers to {reference[:200]!r}, which does not exist.") from None
        return place, start


def _add(places: dict[str, Schema], name: str, node: Schema) -> None:
    if places.setdefault(name, node) is not node:
        raise BrokenSchema(f"It defines the name {name[:200]!r} twice.")


def _references(node: Schema) -> list[str]:
    if REFERENCES.isdisjoint(node):
        return []
    return [node[key] for key in REFERENCES if isinstance(node.get(key), str)]


def subschemas(schema: Any) -> list[Schema]:
    """All objects that may be subschemas, in order."""
    found: list[Schema] = []
    waiting: list[tuple[Any, bool]] = [(schema, False)]
    while waiting:
        value, named = waiting.pop()
        if isinstance(value, list):
            waiting += [(item, False) for item in reversed(value)]
        elif isinstance(value, dict):
            if not named:
                found.append(value)
            waiting += [
                (item, key in NAMED and not named)
                for key, item in reversed(value.items())
                if isinstance(item, dict | list) and (named or key not in LITERALS)
            ]
    return found


@dataclass(slots=True)
class _Expansion:
    """Counts nodes with references followed; each target is expanded once. Unless all are written out, only
    those that a validator visits on its way to one value."""

    places: Places
    is_inlined: bool
    recursive: set[tuple[int, str]] = field(default_factory=set)  # Nodes, and their recursive references
    _sizes: dict[int, int] = field(default_factory=dict)
    _chains: dict[int, int] = field(default_factory=dict)  # The most references in a row for one value
    _begun: set[int] = field(default_factory=set)
    _needed: list[tuple[Any, Schema]] = field(default_factory=list)
    _chain: int = 0

    def expand(self, schema: Schema) -> None:
        # Not by recursion, because a path through all definitions may be long.
        waiting: list[tuple[Any, Schema]] = [(schema, schema)]
        while waiting:
            place, resource = waiting[-1]
            key = id(place)
            if key not in self._sizes:
                self._begun.add(key)
                self._needed, self._chain = [], 0
                size = self._size(place, resource)
                if self._needed:
                    waiting += self._needed
                    continue
                self._sizes[key], self._chains[key] = size, self._chain + 1
            waiting.pop()

    def _size(self, value: Any, resource: Schema, *, keyword: str = "", in_place: bool = True) -> int:
        if isinstance(value, list):
            size = 1 + sum(self._size(item, resource, in_place=in_place) for item in value)
        elif isinstance(value, dict) and keyword in NAMED:
            sizes = [self._size(item, resource, in_place=in_place) for item in value.values()]
            # A value is one property only, but may match several patterns.
            is_one = keyword == "properties" and not self.is_inlined
            size = 1 + (max(sizes, default=0) if is_one else sum(sizes))
        elif isinstance(value, dict):
            size = self._size_of_object(value, resource, in_place)
        else:
            return 0
        if size > MAX_EXPANDED:
            raise ExcessiveSchema(f"The schema has more than {MAX_EXPANDED:,} parts, references followed.")
        return size

    def _size_of_object(self, node: Schema, resource: Schema, in_place: bool) -> int:
        resource = node if self.places.starts_resource(node) else resource
        size = 1
        for reference in _references(node):
            place, owner = self.places.find(reference, resource)
            if id(place) in self._sizes:
                size += self._sizes[id(place)]
                self._chain = max(self._chain, self._chains[id(place)] if in_place else 0)
            elif id(place) in self._begun:
                size += 1
                self.recursive.add((id(node), reference))
            else:
                self._needed.append((place, owner))
        if self._chain > MAX_REFERENCES_IN_A_ROW:
            raise ExcessiveSchema(f"The schema has more than {MAX_REFERENCES_IN_A_ROW} references in a row.")
        for key, item in node.items():
            if isinstance(item, dict | list) and key not in NOT_FOLLOWED:
                is_same = in_place and (self.is_inlined or key in IN_PLACE)
                size += self._size(item, resource, keyword=key, in_place=is_same)
        return size


IN_PLACE = frozenset({
    "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies",
})  # fmt: skip
SINGLE = frozenset({
    "items", "additionalItems", "unevaluatedItems", "contains", "propertyNames", "not", "if", "then", "else",
    "additionalProperties", "unevaluatedProperties",
})  # fmt: skip
SEVERAL = frozenset({"items", "prefixItems", "allOf", "anyOf", "oneOf"})
NAMED_PARTS = NAMED - DEFINITIONS
PARTS = SINGLE | SEVERAL | NAMED_PARTS
OF_ITEMS = frozenset({"items", "prefixItems", "additionalItems", "unevaluatedItems", "contains"})


def parts_of(node: Schema, named: Set[str] = NAMED_PARTS) -> Iterator[tuple[str, str | int | None, Any]]:
    """Keyword, key or number, and schema of each part; by default without definitions."""
    for keyword, value in node.items():
        if isinstance(value, dict) and keyword in named:
            yield from ((keyword, name, part) for name, part in value.items())
        elif isinstance(value, list) and keyword in SEVERAL:
            yield from ((keyword, number, part) for number, part in enumerate(value))
        elif keyword in SINGLE:
            yield keyword, None, value


def count_visits(schema: Schema, arguments: Any, *, most: int) -> int:
    """Returns at least how often a validator visits a part to find all errors, each of which may give one;
    counts no further than `most`."""
    places = Places.of(schema, subschemas(schema))
    waiting: list[tuple[Any, Schema, Any]] = [(schema, schema, arguments)]
    visits = 0
    while waiting and visits + len(waiting) <= most:
        node, resource, value = waiting.pop()
        visits += 1
        if not isinstance(node, dict):
            continue
        resource = node if places.starts_resource(node) else resource
        visits += len(node.get("required", ()))
        waiting += [(*places.find(reference, resource), value) for reference in _references(node)]
        for keyword, key, part in parts_of(node):
            if keyword == "properties":
                within = [value[key]] if isinstance(value, dict) and key in value else []
            elif keyword in IN_PLACE:
                within = [value]
            elif keyword in OF_ITEMS:
                within = value if isinstance(value, list) else []
            else:
                within = [*value.values()] if isinstance(value, dict) else []
            if visits + len(waiting) + len(within) > most:
                return most + 1
            waiting += [(part, resource, one) for one in within]
    return visits + len(waiting)
