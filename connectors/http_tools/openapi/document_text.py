"""The text of a document, JSON or YAML, as plain values of a bounded size."""

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

from connectors.formats.json import UnreadableJSON, parse_json
from connectors.formats.yaml import (
    BOOLEANS,
    INTEGER,
    NULLS,
    NUMBER,
    Mapping,
    Node,
    Problem,
    Scalar,
    UnusableText,
    compose,
    is_number,
)
from connectors.http_tools.openapi.refusals import UnusableDocument

MAX_BYTES = 20_000_000
MAX_YAML_BYTES = 8_000_000
"""YAML takes some ten times as long as JSON."""
MAX_DEPTH = 100
MAX_VALUES = 2_000_000
"""Counted as often as a YAML alias repeats them."""
LONGEST_INTEGER = 40
"""Digits; 64 bits need twenty."""


class Ambiguous(dict[str, Any]):
    """An object in which a key stands twice. Whoever needs it must not choose between the two."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self._pairs = pairs
        self._times = Counter(key for key, _ in pairs)

    @property
    def key(self) -> str:
        """The first one that stands twice."""
        return next(key for key in self if self.repeats(key))

    def repeats(self, key: str) -> bool:
        return self._times[key] > 1

    def items(self) -> list[tuple[str, Any]]:  # type: ignore[override]
        """Every pair that stands there."""
        return self._pairs


def read_text(content: bytes) -> Any:
    """JSON values. Raises UnusableDocument."""
    if len(content) > MAX_BYTES:
        raise UnusableDocument(f"The document is larger than {MAX_BYTES:,} bytes, the most that is read.")
    if content.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"{":
        return _read_json(content)
    return _read_yaml(content)


def _read_json(content: bytes) -> Any:
    # Never less than there are, since every value but the first follows one of these.
    if sum(map(content.count, (b",", b"[", b"{"))) > MAX_VALUES:
        raise _too_many()
    try:
        return parse_json(content, max_depth=MAX_DEPTH, object_of=_object_of)
    except UnreadableJSON as error:
        raise UnusableDocument(str(error)) from None


def _read_yaml(content: bytes) -> Any:
    if len(content) > MAX_YAML_BYTES:
        raise UnusableDocument(
            f"The document is YAML of more than {MAX_YAML_BYTES:,} bytes; JSON is read up to {MAX_BYTES:,}."
        )
    try:
        root, _ = compose(content, max_bytes=MAX_YAML_BYTES, max_depth=MAX_DEPTH, fast=True)
        if _count(root, {}) > MAX_VALUES:
            raise _too_many()
        return _value(root, 0)
    except UnusableText as error:
        raise UnusableDocument(f"The document is no YAML that can be read: {error}") from None


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    plain = dict(pairs)
    return plain if len(plain) == len(pairs) else Ambiguous(pairs)


def _too_many() -> UnusableDocument:
    return UnusableDocument(f"The document has more than {MAX_VALUES:,} values, the most that is read.")


def _count(node: Node, known: dict[int, int]) -> int:
    """How many values it stands for, each alias as many as what it repeats."""
    if id(node) not in known:
        # Of what repeats itself no end is found: it is refused as too deep, later.
        known[id(node)] = 0
        known[id(node)] = 1 + sum(_count(inner, known) for inner in _inner(node))
    return known[id(node)]


def _inner(node: Node) -> Iterable[Node]:
    if isinstance(node, Scalar):
        return ()
    return (inner for _, inner in node.entries) if isinstance(node, Mapping) else node.items


def _value(node: Node, depth: int) -> Any:
    """YAML's nodes as the values that JSON has."""
    if depth > MAX_DEPTH:
        raise UnusableText([Problem(node.line, "", f"nested deeper than {MAX_DEPTH} levels")])
    if isinstance(node, Scalar):
        return _scalar(node)
    if isinstance(node, Mapping):
        return _object(node, depth)
    return [_value(item, depth + 1) for item in node.items]


def _object(node: Mapping, depth: int) -> dict[str, Any]:
    pairs: list[tuple[str, Any]] = []
    merged: dict[str, Any] = {}
    for key, inner in node.entries:
        if not isinstance(key, Scalar):
            raise UnusableText([Problem(key.line, "", "a key has to be a word")])
        if key.plain and key.text == "<<":
            merged |= _merged(inner, depth)
        else:
            pairs.append((key.text, _value(inner, depth + 1)))
    own = {key for key, _ in pairs}
    return _object_of([*((key, value) for key, value in merged.items() if key not in own), *pairs])


def _merged(node: Node, depth: int) -> dict[str, Any]:
    """What `<<` brings in; of several the first one counts."""
    value = _value(node, depth + 1)
    found: dict[str, Any] = {}
    for one in value if isinstance(value, list) else [value]:
        if not isinstance(one, dict):
            raise UnusableText([Problem(node.line, "", "'<<' has to be followed by a mapping")])
        found = dict(one) | found
    return found


def _scalar(node: Scalar) -> Any:
    text = node.text
    if not node.plain:
        return text
    if text in NULLS:
        return None
    if text in BOOLEANS:
        return BOOLEANS[text]
    return _number(text) if is_number(text) else text


def _number(text: str) -> Any:
    """The text itself where it is a number beyond measure."""
    if NUMBER.match(text) and not INTEGER.match(text):
        number = float(text)
        return number if math.isfinite(number) else text
    return int(text, 10 if INTEGER.match(text) else 0) if len(text) <= LONGEST_INTEGER else text
