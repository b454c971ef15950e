"""YAML as plain values, of which each is known by its line; a text that is not fit tells every reason.

Scalars mean what YAML 1.2 says: `no` and `12:30` are texts, and numbers are those of JSON.
"""

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import yaml

from connectors.redaction import printable, shorten
from connectors.yaml_nodes import (
    BOOLEANS,
    INTEGER,
    NO_NUMBER,
    NULLS,
    NUMBER,
    ListNode,
    Mapping,
    Node,
    Problem,
    Scalar,
    UnusableText,
    compose,
    is_number,
)

MAX_BYTES = 1_048_576
SHOWN_KEY = 80


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """How much of a text is read."""

    bytes: int = MAX_BYTES
    depth: int = 30
    parts: int = 100_000
    """Values, counted as often as an alias repeats them."""
    integer: int = 2**63 - 1


USUAL_LIMITS = Limits()

Path = tuple[str | int, ...]


@dataclass(slots=True)
class Document:
    """What a text says: JSON values, and where they stand in it."""

    value: Any
    lines: dict[Path, int]
    """By the keys and positions that lead to a value; of a key's value, the line of the key."""
    problems: list[Problem] = field(default_factory=list)
    """What was left out of `value`: keys that stand twice, numbers beyond measure."""

    def line_of(self, path: Path) -> int:
        """The line of the nearest place that there is."""
        while path not in self.lines:
            path = path[:-1]
        return self.lines[path]


def read_document(
    content: bytes, *, private: Path = (), limits: Limits = USUAL_LIMITS, fast: bool = False
) -> Document:
    """Read a text that holds one YAML document. Raises UnusableText for what is no usable YAML at all.

    Below `private` no key is ever told, since it may be a secret in the wrong place. `fast` reads by libyaml,
    which tells less of mistakes.
    """
    root, problems = compose(content, max_bytes=limits.bytes, max_depth=limits.depth, fast=fast)
    return _Reading(problems, private, limits).document(root)


def write_document(value: Any, *, in_blocks: bool = False) -> str:
    """A text that `read_document` reads as this JSON value; `in_blocks` for texts of several lines."""
    dumper: Any = _BlockDumper if in_blocks else _Dumper
    return yaml.dump(value, Dumper=dumper, allow_unicode=True, sort_keys=False, width=100)


def name_of(path: Path) -> str:
    """`workflows.ChatWorkflow.input.fields[0]`"""
    name = "".join(f"[{part}]" if isinstance(part, int) else f".{_shown(part)}" for part in path)
    return name.removeprefix(".")


def _shown(key: str) -> str:
    return shorten(" ".join(printable(key).split()), SHOWN_KEY)


class _Reading:
    """Nodes as values, with every alias followed."""

    def __init__(self, problems: list[Problem], private: Path, limits: Limits) -> None:
        self._problems = problems
        self._private = private
        self._limits = limits
        self._lines: dict[Path, int] = {}
        self._parts = 0

    def document(self, root: Node) -> Document:
        self._lines[()] = root.line
        return Document(self._value(root, ()), self._lines, self._problems)

    def _value(self, node: Node, path: Path) -> Any:
        self._parts += 1
        if self._parts > self._limits.parts or len(path) >= self._limits.depth:
            message = f"more than {self._limits.parts:,} values, or more than {self._limits.depth} levels"
            raise UnusableText([Problem(node.line, "", message)])
        if isinstance(node, Scalar):
            return self._scalar(node, path)
        if isinstance(node, ListNode):
            return [self._at(item.line, item, (*path, index)) for index, item in enumerate(node.items)]
        return self._mapping(node, path)

    def _at(self, line: int, node: Node, path: Path) -> Any:
        self._lines[path] = line
        return self._value(node, path)

    def _mapping(self, node: Mapping, path: Path) -> dict[str, Any]:
        value: dict[str, Any] = {}
        for key, inner in node.entries:
            if not isinstance(key, Scalar) or (key.plain and key.text in NULLS):
                self._note(key.line, path, "a key has to be a word")
            elif key.plain and key.text == "<<":
                self._note(key.line, path, "'<<' is not known here; write the keys out")
            elif key.text in value:
                first = self._lines[(*path, key.text)]
                self._note(key.line, (*path, key.text), f"the key stands twice; first in line {first}")
            else:
                value[key.text] = self._at(key.line, inner, (*path, key.text))
        return value

    def _scalar(self, node: Scalar, path: Path) -> Any:
        text = node.text
        if not node.plain:
            return text
        if text in NULLS:
            return None
        if text in BOOLEANS:
            return BOOLEANS[text]
        if NO_NUMBER.match(text):
            return self._note(node.line, path, "neither infinite nor undefined numbers can be used")
        return self._number(node, path) if is_number(text) else text

    def _number(self, node: Scalar, path: Path) -> Any:
        text, largest = node.text, self._limits.integer
        if NUMBER.match(text) and not INTEGER.match(text):
            number: int | float = float(text)
        else:
            # Python refuses to read decimal numbers of thousands of digits.
            number = int(text, 10 if INTEGER.match(text) else 0) if len(text) < 50 else largest + 1
        if not math.isfinite(number) or (isinstance(number, int) and abs(number) > largest):
            return self._note(node.line, path, "a number that is too large; a text needs quotes")
        return number

    def _note(self, line: int, path: Path, message: str) -> None:
        hidden = bool(self._private) and path[: len(self._private)] == self._private
        self._problems.append(Problem(line, name_of(self._private if hidden else path), message))


class _Dumper(yaml.SafeDumper):
    """Quotes every text that could be read as something else, by YAML's older rules or ours."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


@lru_cache(10_000)
def _means_something(text: str) -> bool:
    plain = text in NULLS or text in BOOLEANS or text == "<<"
    return plain or is_number(text) or NO_NUMBER.match(text) is not None


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # Not to remember long ones.
    quoted = (_means_something if len(text) < 100 else _means_something.__wrapped__)(text)
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if quoted else None)


_Dumper.add_representer(str, _represent_text)


class _BlockDumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """Likewise, with texts of several lines as they are, so that a change of one is a change of a line."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_in_blocks(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # Other characters that YAML's older rules take for the end of a line would not come back.
    if "\n" in text and all(line.isprintable() for line in text.split("\n")):
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|")
    return _represent_text(dumper, text)


_BlockDumper.add_representer(str, _represent_in_blocks)
