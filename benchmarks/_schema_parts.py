"""JSON Schemas of parameters, in few words."""

from typing import Any

Schema = dict[str, Any]


def text(description: str = "", **more: Any) -> Schema:
    return {"type": "string", **({"description": description} if description else {}), **more}


def whole(description: str = "", **more: Any) -> Schema:
    return {"type": "integer", **({"description": description} if description else {}), **more}


def choice(description: str, *values: str, **more: Any) -> Schema:
    return {"type": "string", "enum": list(values), "description": description, **more}


def group(description: str, required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    return {
        "type": "object",
        "description": description,
        "properties": properties,
        **({"required": list(required)} if required else {}),
    }


def several(description: str, item: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": item, "description": description, **more}
