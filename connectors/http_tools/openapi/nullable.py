"""OpenAPI 3.0's `nullable`, which JSON Schema says by the type `null`."""

from typing import Any


def accept_null(schema: dict[str, Any], raw: dict[str, Any]) -> dict[str, Any]:
    """The schema, of which null is valid too where `raw` says so."""
    if raw.get("nullable") is not True:
        return schema
    if isinstance(schema.get("type"), str) and not schema.keys() & {"allOf", "anyOf", "oneOf", "const"}:
        return schema | {"type": [schema["type"], "null"]} | _enum(schema)
    if "type" not in schema and not schema.keys() & {"allOf", "anyOf", "oneOf", "enum", "const", "not"}:
        return schema
    told = {key: schema[key] for key in ("title", "description", "default", "deprecated") if key in schema}
    kept = {key: value for key, value in schema.items() if key not in told}
    return told | {"anyOf": [kept, {"type": "null"}]}


def _enum(schema: dict[str, Any]) -> dict[str, Any]:
    values = schema.get("enum")
    if not isinstance(values, list) or None in values:
        return {}
    return {"enum": [*values, None]}
