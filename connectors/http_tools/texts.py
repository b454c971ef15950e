"""Values as they are written in paths, queries, headers and forms, which know nothing but texts."""

import json
import re
from collections.abc import Iterable
from typing import Any

from connectors.errors import Rejected
from connectors.http_tools.specs import Scalar

NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
LONGEST_NUMBER = 400
SCALAR_TYPES = frozenset({"string", "integer", "number", "boolean"})
WORDS = {"true": True, "false": False}


class NoText(ValueError):
    """The value has no spelling there; the message says why, `is an object`."""


def text_of(value: Scalar) -> str:
    """`true`, `1.5`: as JSON writes it; a text as it is."""
    return value if isinstance(value, str) else json.dumps(value)


def written_json(value: Any, *, ascii_only: bool = False) -> str:
    """Raises Rejected for what cannot be written."""
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=ascii_only, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError):
        raise Rejected("The arguments cannot be written as JSON, so nothing was sent.") from None


def scalar_of(value: Any) -> Scalar:
    """Raises NoText for what is none."""
    if isinstance(value, str | bool | int):
        return value
    if isinstance(value, float) and value == value and abs(value) != float("inf"):
        return value
    if value is None:
        raise NoText("is null, which only a JSON body can say; leave it out")
    raise NoText("is an object" if isinstance(value, dict) else "is no text, number or boolean")


def scalars_of(value: Any) -> Scalar | list[Scalar]:
    """A list of them, too."""
    return [scalar_of(item) for item in value] if isinstance(value, list) else scalar_of(value)


def with_commas(items: Iterable[Scalar]) -> str:
    """Raises NoText where the commas would not tell what the items were."""
    texts = [text_of(item) for item in items]
    if any("," in text for text in texts) or texts == [""]:
        raise NoText("has an item with a comma in it, or an empty one, and commas separate the items there")
    return ",".join(texts)


def value_of(said: Scalar, types: frozenset[str]) -> Scalar:
    """What it stands for where values of these JSON types are wanted; itself where it is none of them."""
    if not types or _types_of(said) & types:
        return said
    text = text_of(said)
    if "string" in types:
        return text
    if "boolean" in types and text in WORDS:
        return WORDS[text]
    if types & {"integer", "number"} and NUMBER.fullmatch(text) and len(text) <= LONGEST_NUMBER:
        number: int | float = json.loads(text)
        return number
    return said


def _types_of(said: Scalar) -> frozenset[str]:
    match said:
        case bool():
            return frozenset({"boolean"})
        case int():
            return frozenset({"integer", "number"})
        case float():
            return frozenset({"number"})
    return frozenset({"string"})
