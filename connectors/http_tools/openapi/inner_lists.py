"""Lists of texts within the objects of a form's field."""

from typing import Any

from connectors.http_tools.openapi.arguments import MAX_LOOKED_AT, NESTED, item_types_of, types_of
from connectors.http_tools.openapi.document import Document

CHOICES = ("allOf", "anyOf", "oneOf")


def has_inner_lists(document: Document, raw: Any, pointer: str) -> bool:
    """Whether a list that may hold texts is anywhere below the schema's outermost value. Raises NoTool."""
    waiting, seen = [(raw, pointer, False)], set[tuple[str, bool]]()
    while waiting:
        raw, pointer, is_inner = waiting.pop()
        if not isinstance(raw, dict):
            continue
        raw, pointer = document.object_at(raw, pointer)
        if (pointer, is_inner) in seen:
            continue
        seen.add((pointer, is_inner))
        # What is too much to look at may have some.
        if len(seen) > MAX_LOOKED_AT or (is_inner and _holds_texts(document, raw, pointer)):
            return True
        for word in CHOICES:
            parts = raw[word] if isinstance(raw.get(word), list) else []
            waiting += [(one, f"{pointer}/{word}/{n}", is_inner) for n, one in enumerate(parts)]
        fields = raw["properties"] if isinstance(raw.get("properties"), dict) else {}
        waiting += [(one, f"{pointer}/properties/{name}", True) for name, one in fields.items()]
        waiting += [(raw.get(word), f"{pointer}/{word}", True) for word in ("items", "additionalProperties")]
    return False


def _holds_texts(document: Document, raw: dict[str, Any], pointer: str) -> bool:
    is_list = "array" in types_of(document, {"type": raw.get("type")}, pointer)
    items = item_types_of(document, raw, pointer)
    return is_list and not (items and items <= NESTED)
