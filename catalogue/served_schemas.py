"""Schemas as clients read them: the engine's own, written so that every client can.

MCP wants an object for every property, and many clients fail on what is valid JSON Schema besides: `true` and
`false` in a schema's place, a root without `type` or `properties`, members that only its alternatives name,
patterns with look-arounds. Arguments are checked with the engine's own.
"""

import copy
from collections.abc import Iterator
from typing import Any

from catalogue.patterns import is_linear
from catalogue.schema_limits import NAMED, subschemas
from catalogue.schema_words import Place

EVERYTHING: dict[str, Any] = {}
NOTHING: dict[str, Any] = {"not": {}}
SINGLE = ("items", "contains", "not", "if", "then", "else", "propertyNames", "additionalItems")
"""Keywords with one schema. In `additionalProperties` and its like `false` is usual, and clients know it."""
SEVERAL = ("items", "prefixItems", "allOf", "anyOf", "oneOf")
"""Keywords with a list of schemas; `items` had one in older dialects."""


def serve_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """A copy for clients, of an object's schema: arguments, or a structured result."""
    served = copy.deepcopy(schema)
    for node in subschemas(served):
        _spell_out(node)
        _say_pattern(node)
    # Some clients allow what is named here, and nothing else.
    members = members_of_parts(served) | served.get("properties", {})
    return {"type": "object"} | served | {"properties": members}


def _spell_out(node: dict[str, Any]) -> None:
    for keyword in SINGLE:
        if isinstance(node.get(keyword), bool):
            node[keyword] = _spelled_out(node[keyword])
    for keyword in SEVERAL:
        if isinstance(parts := node.get(keyword), list):
            node[keyword] = [_spelled_out(part) for part in parts]
    for keyword in NAMED:
        if isinstance(parts := node.get(keyword), dict):
            node[keyword] = {name: _spelled_out(part) for name, part in parts.items()}


def _say_pattern(node: dict[str, Any]) -> None:
    """pydantic, and so most clients in Python, refuses the schema for it."""
    if isinstance(pattern := node.get("pattern"), str) and not is_linear(pattern):
        del node["pattern"]
        said = node.get("description")
        told = f"Must match the regular expression {pattern}"
        node["description"] = f"{said} {told}" if isinstance(said, str) and said else told


def members_of_parts(schema: dict[str, Any]) -> dict[str, Any]:
    """What the root's references and alternatives name; of several schemas for one name, any may be meant."""
    found: dict[str, list[Any]] = {}
    for name, inner in _named_by_parts(Place(schema, schema), {id(schema)}):
        known = found.setdefault(name, [])
        if inner not in known:
            known.append(inner)
    return {name: inner[0] if len(inner) == 1 else {"anyOf": inner} for name, inner in found.items()}


def _named_by_parts(place: Place, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Each part once, though many references may lead to it, or back."""
    target = place.target()
    parts = [part for keyword in ("allOf", "anyOf", "oneOf") for part in place.each(keyword)]
    for part in parts if target is None else [target, *parts]:
        if isinstance(part.schema, dict) and id(part.schema) not in seen:
            seen.add(id(part.schema))
            properties = part.schema.get("properties")
            yield from properties.items() if isinstance(properties, dict) else ()
            yield from _named_by_parts(part, seen)


def _spelled_out(schema: Any) -> Any:
    if isinstance(schema, bool):
        return dict(EVERYTHING if schema else NOTHING)
    return schema
