"""Outlines of XML bodies, for the descriptions of the arguments that are such bodies."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from connectors.formats.json import as_object
from connectors.formats.json_schema import pointer_of
from connectors.http_tools.media_types import plain_name
from connectors.http_tools.openapi.document import Document, NoTool
from connectors.http_tools.openapi.schemas import is_left_out

LONGEST_OUTLINE = 1_500  # Characters: each agent that sees the tool pays for them
DEEPEST = 8
MOST_VALUES = 8
MORE = "..."


def is_xml(media_type: str) -> bool:
    return plain_name(media_type).endswith(("/xml", "+xml"))


def outline_of(document: Document, media: dict[str, Any], pointer: str) -> str:
    """`<Order id="integer"><sku>string</sku>...</Order>`: the document's example, else its schema's elements
    by OpenAPI's `xml` hints, with types in place of values. Empty if there is neither."""
    example = media.get("example")
    if isinstance(example, str) and len(example) <= LONGEST_OUTLINE and example.lstrip().startswith("<"):
        return example.strip()
    raw, at = media.get("schema"), f"{pointer}/schema"
    name = str(raw["$ref"]).rpartition("/")[2] if isinstance(raw, dict) and "$ref" in raw else "body"
    try:
        outline = "".join(_Outline(document).elements(name, raw, at))
    except NoTool:
        return ""
    if len(outline) > LONGEST_OUTLINE:
        outline = outline[:LONGEST_OUTLINE] + MORE
    # An element with a text alone says no more than that the body is text.
    return outline if outline.count("<") > 2 or '="' in outline else ""


@dataclass(slots=True)
class _Outline:
    document: Document
    within: list[str] = field(default_factory=list)  # Pointers of the schemas around this one
    size: int = 0

    def elements(self, name: str, raw: Any, pointer: str) -> Iterator[str]:
        """Raises NoTool."""
        schema, pointer = self._schema_at(raw, pointer)
        tag = _tag(name, _hint(schema))
        self.size += len(tag)
        if pointer in self.within or len(self.within) > DEEPEST or self.size > LONGEST_OUTLINE:
            yield f"<{tag}>{MORE}</{tag}>"
            return
        self.within.append(pointer)
        if schema.get("type") == "array":
            yield from self._list(tag, schema, pointer)
        else:
            yield from self._element(tag, schema, pointer)
        self.within.pop()

    def _schema_at(self, raw: Any, pointer: str) -> tuple[dict[str, Any], str]:
        found = self.document.object_or_nothing({} if raw is None else raw, pointer, [])
        return self.document.object_at(found, pointer)

    def _element(self, tag: str, schema: dict[str, Any], pointer: str) -> Iterator[str]:
        fields = list(self._fields(schema, pointer))
        attributes, inner = [_namespace(_hint(schema))], list[str]()
        for name, value, at in fields:
            own, _ = self._schema_at(value, at)
            if _hint(own).get("attribute") is True:
                attributes.append(f" {_tag(name, _hint(own))}={quoteattr(_text_of(own))}")
            else:
                inner += self.elements(name, value, at)
        content = "".join(inner) if fields else escape(_text_of(schema))
        yield f"<{tag}{''.join(attributes)}>{content}</{tag}>"

    def _list(self, tag: str, schema: dict[str, Any], pointer: str) -> Iterator[str]:
        # An item has its own name, else that of the list.
        items = "".join(self.elements(tag, schema.get("items"), f"{pointer}/items")) + MORE
        hint = _hint(schema)
        yield f"<{tag}{_namespace(hint)}>{items}</{tag}>" if hint.get("wrapped") is True else items

    def _fields(self, schema: dict[str, Any], pointer: str, depth: int = 0) -> Iterator[tuple[str, Any, str]]:
        for name, value in as_object(schema.get("properties")).items():
            at = f"{pointer}/properties{pointer_of([name])}"
            if not is_left_out(self.document, value, at, "request"):
                yield name, value, at
        parts = schema.get("allOf")
        for position, part in enumerate(parts if isinstance(parts, list) and depth < DEEPEST else ()):
            inner, at = self.document.object_at(part, f"{pointer}/allOf/{position}")
            yield from self._fields(inner, at, depth + 1)


def _hint(schema: dict[str, Any]) -> dict[str, Any]:
    return as_object(schema.get("xml"))


def _tag(name: str, hint: dict[str, Any]) -> str:
    own, prefix = hint.get("name"), hint.get("prefix")
    plain = own if isinstance(own, str) and own else name
    return escape(f"{prefix}:{plain}" if isinstance(prefix, str) and prefix else plain)


def _namespace(hint: dict[str, Any]) -> str:
    namespace, prefix = hint.get("namespace"), hint.get("prefix")
    if not isinstance(namespace, str) or not namespace:
        return ""
    mark = f":{escape(prefix)}" if isinstance(prefix, str) and prefix else ""
    return f" xmlns{mark}={quoteattr(namespace)}"


def _text_of(schema: dict[str, Any]) -> str:
    """In place of a value: the allowed ones, else the type."""
    values = schema.get("enum")
    if isinstance(values, list) and values:
        return "|".join(map(str, values[:MOST_VALUES])) + ("|..." if len(values) > MOST_VALUES else "")
    named = schema.get("format") or schema.get("type")
    return named if isinstance(named, str) else MORE
