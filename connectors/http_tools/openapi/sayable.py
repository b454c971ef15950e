"""Schemas of arguments that are written as texts, where null cannot be said."""

from typing import Any

CHOICES = ("anyOf", "oneOf")
INNER = ("items", "additionalProperties")


def without_null(schema: Any) -> Any:
    """The same values but null, at every depth; one that allows only null stays. References stay as well."""
    if not isinstance(schema, dict):
        return schema
    told = {key: value for key, value in schema.items() if not (key == "default" and value is None)}
    told |= {key: without_null(told[key]) for key in INNER if key in told}
    if isinstance(fields := told.get("properties"), dict):
        told["properties"] = {name: without_null(field) for name, field in fields.items()}
    if isinstance(parts := told.get("allOf"), list):
        told["allOf"] = [without_null(part) for part in parts]
    for word in CHOICES:
        told = _without_choice(told, word)
    return _without_type(told)


def _without_type(schema: dict[str, Any]) -> dict[str, Any]:
    told = dict(schema)
    if isinstance(types := schema.get("type"), list) and (left := [one for one in types if one != "null"]):
        told["type"] = left[0] if len(left) == 1 else left
    if isinstance(values := schema.get("enum"), list) and (
        some := [one for one in values if one is not None]
    ):
        told["enum"] = some
    return told


def _without_choice(schema: dict[str, Any], word: str) -> dict[str, Any]:
    choices = schema.get(word)
    if not isinstance(choices, list):
        return schema
    left = [without_null(choice) for choice in choices if not _is_null(choice)]
    if not left:
        return schema
    beside = {key: value for key, value in schema.items() if key != word}
    # One choice is none, and models read a plain schema better.
    if len(left) == 1 and isinstance(left[0], dict) and beside.keys() <= {"title", "description", "examples"}:
        return left[0] | beside
    return beside | {word: left}


def _is_null(schema: Any) -> bool:
    return isinstance(schema, dict) and schema.get("type") in ("null", ["null"])
