"""Which JSON types the schema of an argument allows, as far as that decides how it is written."""

from collections.abc import Iterable
from typing import Any

from connectors.http_tools.pointers import value_at

DEEPEST = 20
"""References that are followed, one after the other."""
NAMES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}


def types_of(schema: Any, root: dict[str, Any], *, depth: int = 0) -> frozenset[str]:
    """Empty: whatever; "null" is left out."""
    if not isinstance(schema, dict) or depth > DEEPEST:
        return frozenset()
    if isinstance(reference := schema.get("$ref"), str):
        return types_of(_referred(reference, root), root, depth=depth + 1)
    if "type" in schema:
        named = schema["type"]
        return frozenset([named] if isinstance(named, str) else filter(_is_text, named)) - {"null"}
    if values := schema.get("enum", [schema["const"]] if "const" in schema else None):
        return frozenset(NAMES[type(value)] for value in values if type(value) in NAMES)
    for word in ("anyOf", "oneOf"):
        if isinstance(choices := schema.get(word), list):
            return _any_of(
                types_of(choice, root, depth=depth + 1) for choice in choices if not _is_null(choice)
            )
    if isinstance(parts := schema.get("allOf"), list):
        known = [types for part in parts if (types := types_of(part, root, depth=depth + 1))]
        return frozenset.intersection(*known) if known else frozenset()
    return frozenset()


def item_types_of(schema: Any, root: dict[str, Any], *, depth: int = 0) -> frozenset[str]:
    """Of the items of a list."""
    if not isinstance(schema, dict) or depth > DEEPEST:
        return frozenset()
    if isinstance(reference := schema.get("$ref"), str):
        return item_types_of(_referred(reference, root), root, depth=depth + 1)
    if "items" in schema:
        return types_of(schema["items"], root)
    for word in ("anyOf", "oneOf", "allOf"):
        for choice in schema.get(word, ()) if isinstance(schema.get(word), list) else ():
            if types := item_types_of(choice, root, depth=depth + 1):
                return types
    return frozenset()


def _any_of(choices: Iterable[frozenset[str]]) -> frozenset[str]:
    """One choice that allows whatever makes all of them do so."""
    listed = list(choices)
    return frozenset().union(*listed) if all(listed) else frozenset()


def _referred(reference: str, root: dict[str, Any]) -> Any:
    if not reference.startswith("#"):
        return None
    try:
        return value_at(root, reference[1:])
    except (LookupError, ValueError):
        return None


def _is_null(schema: Any) -> bool:
    return isinstance(schema, dict) and schema.get("type") == "null"


def _is_text(value: Any) -> bool:
    return isinstance(value, str)
