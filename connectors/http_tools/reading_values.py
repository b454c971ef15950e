"""What is written in a request as the value of an argument."""

from typing import Any

from connectors.formats.json import UnreadableJSON, parse_json
from connectors.formats.json_schema import item_types_of, references_within, types_of
from connectors.http_tools.refusing import NotThisTool, shown
from connectors.http_tools.request import SCALAR_TYPES, value_of
from connectors.http_tools.specs import Scalar
from connectors.http_tools.tool import ArgumentPlace


def argument_of(
    argument: str,
    place: ArgumentPlace,
    said: Scalar | list[Scalar],
    input_schema: dict[str, Any],
    *,
    commas: bool,
) -> Any:
    """The value for which this would be written; `commas`: those in a text may separate a list's items."""
    if place.as_json and isinstance(said, str):
        return _read_json(argument, said)
    schema = input_schema.get("properties", {}).get(argument)
    types, items = (
        types_of(schema, references_within(input_schema)),
        item_types_of(schema, references_within(input_schema)),
    )
    if not isinstance(said, list) and ("array" not in types or types & SCALAR_TYPES):
        return value_of(said, types)
    return [value_of(item, items) for item in _items(said, commas=commas)]


def _read_json(argument: str, text: str) -> Any:
    try:
        return parse_json(text.encode("utf-8", "replace"))
    except UnreadableJSON:
        raise NotThisTool(f"{shown(argument)} is written as JSON, and this is none.") from None


def _items(said: Scalar | list[Scalar], *, commas: bool) -> list[Scalar]:
    if isinstance(said, list):
        return said
    if not commas or not isinstance(said, str):
        return [said]
    return list(said.split(",")) if said else []
