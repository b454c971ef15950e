"""JSON Pointers (RFC 6901), and the types that a JSON Schema allows."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import jsonschema_rs

LINEAR = jsonschema_rs.RegexOptions(size_limit=1024 * 1024, dfa_size_limit=4 * 1024 * 1024)
"""For patterns of untrusted schemas: the engine whose time is linear, with bounded memory."""
INDEX = re.compile(r"0|[1-9][0-9]{0,8}")
MAX_REFERENCES = 20  # References followed one after the other
MAX_LOOKED_AT = 200  # Subschemas inspected for the types of one
JSON_TYPES = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
}
NESTED = frozenset({"array", "object"})
RANGES = (
    *(("minimum", "maximum"), ("minimum", "exclusiveMaximum"), ("exclusiveMinimum", "maximum")),
    *(("exclusiveMinimum", "exclusiveMaximum"), ("minLength", "maxLength"), ("minItems", "maxItems")),
    *(("minProperties", "maxProperties"), ("minContains", "maxContains")),
)
Types = frozenset[str]  # Names of JSON types; empty: any
Follow = Callable[[Any, str], tuple[Any, str]]
"""Takes a schema and its pointer; returns the target of its references, and its pointer."""


@lru_cache(maxsize=1_000)
def steps_of(pointer: str) -> tuple[str, ...]:
    """The pointer's keys; none: the whole document. Raises ValueError with a sentence."""
    if not pointer:
        return ()
    if not pointer.startswith("/"):
        raise ValueError('A JSON Pointer begins with "/", such as "/payment/amount".')
    if re.search(r"~(?![01])", pointer):
        raise ValueError('In a JSON Pointer "~" is written "~0", and "/" within a name "~1".')
    if "~" not in pointer:
        return tuple(pointer[1:].split("/"))
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in pointer[1:].split("/"))


def pointer_of(steps: Iterable[str | int]) -> str:
    return "".join(["/" + str(step).replace("~", "~0").replace("/", "~1") for step in steps])


def value_at(document: Any, pointer: str) -> Any:
    for step in steps_of(pointer):
        document = child_of(document, step)
    return document


def child_of(document: Any, step: str) -> Any:
    """Raises LookupError for a missing value."""
    match document:
        case Mapping():
            return document[step]
        case str():
            raise LookupError(step)
        case Sequence() if INDEX.fullmatch(step):
            return document[int(step)]
    raise LookupError(step)


def references_within(root: dict[str, Any]) -> Follow:
    """Follows references within a schema; the target of a broken one is None."""

    def follow(schema: Any, pointer: str) -> tuple[Any, str]:
        for _ in range(MAX_REFERENCES):
            reference = schema.get("$ref") if isinstance(schema, dict) else None
            if not isinstance(reference, str):
                break
            try:
                schema = value_at(root, reference.removeprefix("#")) if reference.startswith("#") else None
            except (LookupError, ValueError):
                schema = None
        return schema, pointer

    return follow


def types_of(schema: Any, follow: Follow, pointer: str = "") -> Types:
    """The allowed JSON types except null. Raises what `follow` raises."""
    return (_Types(follow).of(schema, pointer) or frozenset()) - {"null"}


def item_types_of(schema: Any, follow: Follow, pointer: str = "") -> Types:
    return _Types(follow).of_items(schema, pointer) - {"null"}


@dataclass(slots=True)
class _Types:
    follow: Follow
    looked_at: int = 0
    entered: set[int] = field(default_factory=set)

    def of(self, schema: Any, pointer: str) -> Types | None:
        """None for a schema within itself, which allows no further types."""
        self.looked_at += 1
        if not isinstance(schema, dict) or self.looked_at > MAX_LOOKED_AT:
            return frozenset()
        schema, pointer = self.follow(schema, pointer)
        if id(schema) in self.entered:
            return None
        self.entered.add(id(schema))
        types = self._own(schema, pointer) if isinstance(schema, dict) else frozenset()
        self.entered.discard(id(schema))
        return types

    def of_items(self, schema: Any, pointer: str, depth: int = 0) -> Types:
        self.looked_at += 1
        if not isinstance(schema, dict) or depth > MAX_REFERENCES or self.looked_at > MAX_LOOKED_AT:
            return frozenset()
        schema, pointer = self.follow(schema, pointer)
        if not isinstance(schema, dict):
            return frozenset()
        if "items" in schema:
            return self.of(schema["items"], f"{pointer}/items") or frozenset()
        choices = (one for word in ("anyOf", "oneOf", "allOf") for one in parts_of(schema, word, pointer))
        return next(filter(None, (self.of_items(*one, depth + 1) for one in choices)), frozenset())

    def _own(self, schema: dict[str, Any], pointer: str) -> Types:
        if isinstance(named := schema.get("type"), str | list):
            names = [named] if isinstance(named, str) else named
            return frozenset(name for name in names if isinstance(name, str))
        values = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if values and isinstance(values, list):
            return frozenset(JSON_TYPES[type(value)] for value in values if type(value) in JSON_TYPES)
        for word in ("anyOf", "oneOf"):
            # If one choice allows any type, so do all together.
            if (choices := self._parts(schema, word, pointer)) and all(choices):
                return frozenset().union(*choices)
        if known := list(filter(None, self._parts(schema, "allOf", pointer))):
            return frozenset.intersection(*known)
        is_object = "properties" in schema or isinstance(schema.get("additionalProperties"), dict)
        return frozenset({"object"} if is_object else ())

    def _parts(self, schema: dict[str, Any], word: str, pointer: str) -> list[Types]:
        found = (self.of(*one) for one in parts_of(schema, word, pointer))
        return [types for types in found if types is not None]


def empty_ranges(schema: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields pairs of bounds, such as `minimum` and `maximum`, that together allow no value."""
    for low, high in RANGES:
        least, most = schema.get(low), schema.get(high)
        if not isinstance(least, int | float) or not isinstance(most, int | float):
            continue
        if least > most or (least == most and "exclusive" in low + high):
            yield low, high


def parts_of(schema: dict[str, Any], word: str, pointer: str) -> Iterator[tuple[Any, str]]:
    """The subschemas of a keyword such as `anyOf`, each with its pointer."""
    listed = schema.get(word)
    for position, part in enumerate(listed if isinstance(listed, list) else ()):
        yield part, f"{pointer}/{word}/{position}"
