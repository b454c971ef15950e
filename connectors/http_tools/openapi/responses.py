"""What a successful answer looks like, as far as a tool can promise it."""

import json
from typing import Any

from connectors.http_tools.openapi.arguments import types_of
from connectors.http_tools.openapi.document import Document
from connectors.http_tools.openapi.media_types import is_json
from connectors.http_tools.openapi.refusals import NoTool
from connectors.http_tools.openapi.schemas import Schemas

MAX_BYTES = 8_192
"""Of an output schema: every agent that sees the tool pays for it."""


def output_schema_of(
    document: Document, schemas: Schemas, responses: Any, pointer: str
) -> dict[str, Any] | None:
    """None where there is no JSON object that every success answers, or its schema is too large."""
    try:
        found = [_schema_of(document, raw, at) for raw, at in _successes(responses, pointer)]
        if not found or found[0] is None or any(one is None or one[0] != found[0][0] for one in found):
            return None
        return _converted(document, schemas, *found[0])
    except NoTool:
        return None


def _successes(responses: Any, pointer: str) -> list[tuple[Any, str]]:
    if not isinstance(responses, dict):
        return []
    return [(raw, f"{pointer}/{code}") for code, raw in responses.items() if str(code).startswith("2")]


def _schema_of(document: Document, raw: Any, pointer: str) -> tuple[Any, str] | None:
    """None for an answer without JSON."""
    answer, pointer = document.object_at(raw, pointer)
    content = answer.get("content")
    for name, media in content.items() if isinstance(content, dict) else ():
        if is_json(name) and isinstance(media, dict) and isinstance(media.get("schema"), dict):
            schema, at = media["schema"], f"{pointer}/content/schema"
            return document.object_at(schema, at) if schema.keys() == {"$ref"} else (schema, at)
    return None


def _converted(document: Document, schemas: Schemas, raw: Any, pointer: str) -> dict[str, Any] | None:
    if types_of(document, raw, pointer) != {"object"} or raw.get("nullable") is True:
        return None
    converted = schemas.convert(raw, pointer)
    if not isinstance(converted.schema, dict):
        return None
    definitions = schemas.definitions_for(converted.needs, parts=converted.parts)
    schema = converted.schema | {"type": "object"} | ({"$defs": definitions} if definitions else {})
    return schema if len(json.dumps(schema, separators=(",", ":"))) <= MAX_BYTES else None
