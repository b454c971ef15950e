"""Schemas of answers, as far as a document can be trusted with them.

What breaks its tool's output schema is a failure to MCP's clients, and hardly any API answers quite as its
document says: fields are missing or null, choices have new members. So the shape is promised, and no more.
"""

from typing import Any

KEPT = frozenset(
    {"type", "properties", "items", "allOf", "anyOf", "$ref", "title", "description", "default", "examples"}
)
SHOWN_VALUES = 10


def loosen(schema: dict[str, Any]) -> dict[str, Any]:
    """Names and types of fields, of which every one may be missing or null."""
    loose = {key: value for key, value in schema.items() if key in KEPT}
    if isinstance(extra := schema.get("additionalProperties"), dict):
        loose["additionalProperties"] = extra
    if "anyOf" not in loose and isinstance(choices := schema.get("oneOf"), list):
        loose["anyOf"] = choices
    if isinstance(values := schema.get("enum"), list):
        loose["examples"] = [value for value in values if value is not None][:SHOWN_VALUES]
    if isinstance(named := schema.get("type"), str) and named != "null":
        loose["type"] = [named, "null"]
    return loose
