"""JSON Pointers (RFC 6901), and what a JSON Schema says of the types that it allows."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

BAD_ESCAPE = re.compile(r"~(?![01])")
INDEX = re.compile(r"0|[1-9][0-9]{0,8}")


def steps_of(pointer: str) -> tuple[str, ...]:
    """The fields that lead to the place; none: the whole. Raises ValueError with a sentence."""
    if not pointer:
        return ()
    if not pointer.startswith("/"):
        raise ValueError('A JSON Pointer begins with "/", such as "/payment/amount".')
    if BAD_ESCAPE.search(pointer):
        raise ValueError('In a JSON Pointer "~" is written "~0", and "/" within a name "~1".')
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in pointer[1:].split("/"))


def pointer_of(steps: Iterable[str | int]) -> str:
    return "".join(["/" + str(step).replace("~", "~0").replace("/", "~1") for step in steps])


def value_at(document: Any, pointer: str) -> Any:
    """Raises LookupError where there is nothing."""
    for step in steps_of(pointer):
        document = _field(document, step)
    return document


def _field(document: Any, step: str) -> Any:
    match document:
        case Mapping():
            return document[step]
        case str():
            raise LookupError(step)
        case Sequence() if INDEX.fullmatch(step):
            return document[int(step)]
    raise LookupError(step)


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
