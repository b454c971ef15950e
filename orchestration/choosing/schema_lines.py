"""A JSON Schema as lines for the model: one for each value, nested ones below it, and no end of neither."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from catalogue.inputs import Input, inputs_at
from catalogue.schema_words import Place
from connectors.network.redaction import printable, shorten

LONGEST_NAME = 120
LONGEST_VALUE = 80
"""Characters of a default, and of each value that an enumeration allows."""
MOST_VALUES = 20
LIMITS = ("format", "pattern", "minimum", "maximum", "maxLength")


@dataclass(frozen=True, kw_only=True, slots=True)
class Detail:
    """How much is told of a schema."""

    description: int
    """Characters of each value's description; 0: none."""
    depth: int
    """Levels of nesting."""
    lines: int
    """At most; the required ones come first."""


def schema_lines(schema: dict[str, Any] | None, detail: Detail, *, says_required: bool) -> list[str]:
    """`- order.lines[].sku (string, required): The article's number.`; empty where nothing is declared."""
    if not isinstance(schema, dict):
        return []
    lines: list[str] = []
    if schema.get("type", "object") != "object":
        schema = _as_a_field(schema)
    for line in _lines(Place(schema, schema), "", detail.depth, detail, says_required):
        if len(lines) == detail.lines:
            return [*lines, "- and more"]
        lines.append(line)
    return lines


def one_line(text: str, limit: int) -> str:
    """So that no text can begin a line that looks like ours."""
    line = " ".join(text.split())
    return shorten(line if line.isprintable() else " ".join(printable(line).split()), limit)


def _as_a_field(schema: dict[str, Any]) -> dict[str, Any]:
    """Of a value that is no object: an object that has it under a name, which can then be told of."""
    wrapped: dict[str, Any] = {"type": "object", "properties": {"result": schema}}
    return wrapped | {name: schema[name] for name in ("$defs", "definitions") if name in schema}


def _lines(place: Place, prefix: str, depth: int, detail: Detail, says_required: bool) -> Iterator[str]:
    found = inputs_at(place)
    for name, given in sorted(found.properties.items(), key=lambda item: item[0] not in found.required):
        path = f"{prefix}{one_line(name, LONGEST_NAME)}"
        yield _line(path, given, detail, _need(name in found.required) if says_required else "")
        if depth > 1:
            inner, mark = _inside(given.place)
            yield from _lines(inner, f"{path}{mark}.", depth - 1, detail, says_required)


def _need(required: bool) -> str:
    return "required" if required else "optional"


def _line(path: str, given: Input, detail: Detail, need: str) -> str:
    stated = _stated(given.place)
    facts = [given.type, need, _values(stated), _default(given), *_limits(stated)]
    line = f"- {path} ({', '.join(filter(None, facts))})"
    told = one_line(given.description, detail.description) if detail.description else ""
    return f"{line}: {told}" if told else line


def _stated(place: Place) -> dict[str, Any]:
    """Its keywords, and those of what it refers to where it has none of its own."""
    stated: dict[str, Any] = {}
    for schema in place.chain():
        stated = schema | stated
    return stated


def _inside(place: Place) -> tuple[Place, str]:
    """What the value holds, and how a path says so: `[]` for each item of a list."""
    items = _stated(place).get("items")
    return (place.at(items), "[]") if isinstance(items, dict) else (place, "")


def _limits(stated: dict[str, Any]) -> Iterator[str]:
    """Those that models tend to break unless they are told."""
    for keyword in LIMITS:
        if isinstance(limit := stated.get(keyword), str | int | float):
            yield f"{keyword} {one_line(str(limit), LONGEST_VALUE)}"


def _values(stated: dict[str, Any]) -> str:
    listed = stated.get("enum")
    values = [stated["const"]] if "const" in stated else listed if isinstance(listed, list) else []
    if not values:
        return ""
    more = f" and {len(values) - MOST_VALUES} more" if len(values) > MOST_VALUES else ""
    return f"one of {' | '.join(map(_as_json, values[:MOST_VALUES]))}{more}"


def _default(given: Input) -> str:
    return "" if given.default is None else f"default {_as_json(given.default)}"


def _as_json(value: Any) -> str:
    return one_line(json.dumps(value, ensure_ascii=False), LONGEST_VALUE)
