"""Short ways to write the JSON Schemas of inputs and outputs."""

from collections.abc import Iterable
from typing import Any

from examples.engine.runs import JsonObject


def text(description: str, **rules: Any) -> JsonObject:
    return {"type": "string", "description": description, **rules}


def day(description: str) -> JsonObject:
    return text(f"{description} As YYYY-MM-DD.", format="date")


def integer(description: str, **rules: Any) -> JsonObject:
    return {"type": "integer", "description": description, **rules}


def number(description: str, **rules: Any) -> JsonObject:
    return {"type": "number", "description": description, **rules}


def boolean(description: str, **rules: Any) -> JsonObject:
    return {"type": "boolean", "description": description, **rules}


def array(description: str, items: JsonObject, **rules: Any) -> JsonObject:
    return {"type": "array", "description": description, "items": items, **rules}


def record(
    description: str, properties: dict[str, JsonObject], optional: Iterable[str] = (), **rules: Any
) -> JsonObject:
    """An object with exactly these properties, all required but the optional ones."""
    return {
        "type": "object",
        "description": description,
        "properties": properties,
        "required": [name for name in properties if name not in set(optional)],
        "additionalProperties": False,
        **rules,
    }


def nullable(schema: JsonObject) -> JsonObject:
    return {**schema, "type": [schema["type"], "null"]}
