"""What a stranger's schema may cost us: its size, its depth, and the work that its references multiply.

A validator follows every reference anew, so that forty short definitions, each naming the one before it
twice, keep it busy for years. What a schema demands is therefore counted as a validator meets it.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any
from urllib.parse import unquote

MAX_BYTES = 256 * 1024
MAX_DEPTH = 40
MAX_NODES = 5_000
MAX_DEPTH_OF_REFERENCES = 200
MAX_EXPANDED = 100_000
"""Parts with every reference followed; a validator needs about a millisecond for as many."""
DIALECTS = tuple(
    f"{scheme}://json-schema.org/{path}"
    for scheme in ("http", "https")
    for path in (
        "draft-04/schema",
        "draft-06/schema",
        "draft-07/schema",
        "draft/2019-09/schema",
        "draft/2020-12/schema",
    )
)
LITERALS = frozenset({"enum", "const", "default", "examples", "example"})
"""Keywords whose values are data: what looks like a reference in there is none."""
DEFINITIONS = frozenset({"$defs", "definitions"})
NAMED = DEFINITIONS | {"properties", "patternProperties", "dependentSchemas", "dependencies"}
"""Keywords with an object whose keys are names, and so no keywords whatever they look like."""
REFERENCES = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})
ANCHORS = frozenset({"$anchor", "$dynamicAnchor"})
MCP_HEADER = "x-mcp-header"
"""An annotation with which an engine could make clients copy arguments into HTTP headers; clients drop
tools whose annotations are invalid, so none is passed on."""


class UnsafeSchema(ValueError):
    """A schema that must not be served, nor be replaced in silence; the message says why."""


class BrokenSchema(ValueError):
    """A schema that means nothing; the message says why."""


@dataclass(frozen=True, slots=True)
class Demand:
    """How much a schema asks of a validator at one place of the arguments."""

    expanded: int
    """Its parts, counted as often as references lead to them."""
    recursive: int
    """References that lead back to where they came from; each level of arguments may multiply by these."""


def bounded_copy(raw: dict[str, Any]) -> dict[str, Any]:
    """A copy without annotations that are not the engine's to give. Raises UnsafeSchema or BrokenSchema."""
    if (dialect := raw.get("$schema")) is not None and str(dialect).rstrip("#") not in DIALECTS:
        raise UnsafeSchema(f"The schema's dialect {str(dialect)[:200]!r} is not supported.")
    schema: dict[str, Any] = _Copier().of(raw, depth=0)
    if len(json.dumps(schema)) > MAX_BYTES:
        raise UnsafeSchema(f"The schema is larger than {MAX_BYTES // 1024} KiB.")
    measure_demand(schema)
    return schema


def measure_demand(schema: dict[str, Any]) -> Demand:
    """Follow every reference once.

    Raises UnsafeSchema for what leads outside or to too much work, BrokenSchema for what leads nowhere.
    """
    nodes = subschemas(schema)
    if all(map(REFERENCES.isdisjoint, nodes)):
        return Demand(len(nodes), 0)
    expansion = _Expansion(Places.of(schema, nodes))
    expanded = expansion.size_at(schema, resource=schema, depth=0)
    return Demand(expanded, expansion.recursive)


def _is_literal(key: str, *, named: bool) -> bool:
    return key in LITERALS and not named


@dataclass(slots=True)
class _Copier:
    """Copies a schema while counting what it holds."""

    nodes: int = 0

    def of(self, value: Any, *, depth: int, named: bool = False, literal: bool = False) -> Any:
        self.nodes += not literal
        if depth > MAX_DEPTH or self.nodes > MAX_NODES:
            raise UnsafeSchema(
                f"The schema is nested deeper than {MAX_DEPTH} or has more than {MAX_NODES} parts."
            )
        if isinstance(value, list):
            return [self.of(item, depth=depth + 1, literal=literal) for item in value]
        if not isinstance(value, dict):
            return value
        return {
            key: self.of(
                item,
                depth=depth + 1,
                named=key in NAMED and not named,
                literal=literal or _is_literal(key, named=named),
            )
            for key, item in value.items()
            if literal or named or key != MCP_HEADER
        }


Schema = dict[str, Any]


@dataclass(slots=True)
class Places:
    """Where the references of a schema can lead; places are told apart by their identity."""

    identifier: str
    """The keyword that starts a resource of its own, to which the pointers within it are relative."""
    resources: dict[str, Schema] = field(default_factory=dict)
    anchors: dict[str, Schema] = field(default_factory=dict)

    @classmethod
    def of(cls, schema: Schema, nodes: list[Schema]) -> "Places":
        old = "draft-04" in str(schema.get("$schema"))
        places = cls("id" if old else "$id")
        for node in nodes:
            places._note(node)
        for reference in chain.from_iterable(map(_references, nodes)):
            if (base := reference.partition("#")[0]) and base not in places.resources:
                raise UnsafeSchema(f"The schema refers to {reference[:200]!r}, which lies outside of it.")
        return places

    def _note(self, node: Schema) -> None:
        if isinstance(name := node.get(self.identifier), str):
            kind, name = (self.anchors, name[1:]) if name.startswith("#") else (self.resources, name)
            _add(kind, name.rstrip("#"), node)
        # A dynamic anchor usually doubles a plain one on the same node.
        for name in {node[key] for key in ANCHORS if isinstance(node.get(key), str)}:
            _add(self.anchors, name, node)

    def starts_resource(self, node: Any) -> bool:
        name = node.get(self.identifier) if isinstance(node, dict) else None
        return isinstance(name, str) and not name.startswith("#")

    def find(self, reference: str, resource: Schema) -> tuple[Any, Schema]:
        """The place and the resource that it belongs to. Raises BrokenSchema where there is none."""
        base, _, fragment = reference.partition("#")
        start = self.resources[base] if base else resource
        fragment = unquote(fragment)
        if not fragment:
            return start, start
        if fragment.startswith("/"):
            return self._follow_pointer(fragment, start, reference)
        if fragment not in self.anchors:
            raise _nowhere(reference)
        return self.anchors[fragment], start

    def _follow_pointer(self, pointer: str, resource: Schema, reference: str) -> tuple[Any, Schema]:
        place: Any = resource
        for step in pointer.split("/")[1:]:
            place = _child(place, step.replace("~1", "/").replace("~0", "~"))
            if place is None:
                raise _nowhere(reference)
            resource = place if self.starts_resource(place) else resource
        return place, resource


def _add(places: dict[str, Schema], name: str, node: Schema) -> None:
    if places.setdefault(name, node) is not node:
        raise BrokenSchema(f"It has the name {name[:200]!r} twice.")


def _nowhere(reference: str) -> BrokenSchema:
    return BrokenSchema(f"It refers to {reference[:200]!r}, where there is nothing.")


def _references(node: Schema) -> Iterator[str]:
    return (node[key] for key in REFERENCES if isinstance(node.get(key), str))


def _child(place: Any, step: str) -> Any:
    if isinstance(place, list) and step.isascii() and step.isdigit() and len(step) < 6:
        return place[int(step)] if int(step) < len(place) else None
    return place.get(step) if isinstance(place, dict) else None


def subschemas(schema: Any) -> list[Schema]:
    """Every object that is, or may be, a subschema, in order; not those that hold them by name."""
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
                if isinstance(item, dict | list) and not _is_literal(key, named=named)
            ]
    return found


@dataclass(slots=True)
class _Expansion:
    """Counts the parts of a schema with its references followed; each place is expanded once."""

    places: Places
    recursive: int = 0
    _open: set[int] = field(default_factory=set)
    _sizes: dict[int, int] = field(default_factory=dict)

    def size_at(self, place: Any, *, resource: Schema, depth: int) -> int:
        """The size of a place that something refers to (or of the whole)."""
        key = id(place)
        if key in self._open:
            self.recursive += 1
            return 1
        if key not in self._sizes:
            self._open.add(key)
            self._sizes[key] = self._size(place, resource, depth)
            self._open.discard(key)
        return self._sizes[key]

    def _size(self, value: Any, resource: Schema, depth: int, *, named: bool = False) -> int:
        if depth > MAX_DEPTH_OF_REFERENCES:
            raise UnsafeSchema(
                f"The schema is nested deeper than {MAX_DEPTH_OF_REFERENCES}, references followed."
            )
        if isinstance(value, list):
            size = 1 + sum(self._size(item, resource, depth + 1) for item in value)
        elif isinstance(value, dict):
            size = self._size_of_object(value, resource, depth, named=named)
        else:
            return 0
        if size > MAX_EXPANDED:
            raise UnsafeSchema(f"The schema has more than {MAX_EXPANDED:,} parts, references followed.")
        return size

    def _size_of_object(self, node: Schema, resource: Schema, depth: int, *, named: bool) -> int:
        if named:
            return 1 + sum(self._size(item, resource, depth + 1) for item in node.values())
        if self.places.starts_resource(node):
            resource = node
        size = 1
        for reference in _references(node):
            place, owner = self.places.find(reference, resource)
            size += self.size_at(place, resource=owner, depth=depth + 1)
        for key in node.keys() - LITERALS - DEFINITIONS:
            size += self._size(node[key], resource, depth + 1, named=key in NAMED)
        return size
