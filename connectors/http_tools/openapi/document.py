"""An OpenAPI 3 document: its text, its references, and why it cannot be used."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import unquote

from connectors.formats.json import UnreadableJSON, parse_json
from connectors.formats.json_schema import child_of, pointer_of, steps_of
from connectors.formats.yaml import Limits, TooManyValues, UnusableText, read_values

SHOWN = 200


class UnusableDocument(ValueError):
    """The document cannot be imported at all; the message says why, and what to do."""


class NoTool(Exception):
    """An operation cannot be a tool; the message is a sentence that says why."""

    def __init__(self, reason: str, pointer: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.pointer = pointer
        """Where in the document; empty: the operation as a whole."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RefusedOperation:
    """An operation that becomes no tool."""

    method: str
    """In capitals."""
    path: str
    operation_id: str
    """Empty where the document gives none."""
    pointer: str
    """JSON Pointer to the part that is not supported."""
    reason: str
    """A sentence."""


def quoted(text: object) -> str:
    """A name from the document, shortened and printable, for a sentence."""
    shown = "".join(char if char.isprintable() else " " for char in str(text))
    return f'"{shown[:SHOWN]}..."' if len(shown) > SHOWN else f'"{shown}"'


LONGEST_DESCRIPTION = 2_000
"""Of an operation; every agent that sees the tool pays for it."""
LONGEST_ARGUMENT_DESCRIPTION = 600
LONGEST_TITLE = 255
LINK = re.compile(r"!?\[([^\[\]]*)\]\([^()\s]*(?:\s+\"[^\"]*\")?\)")
COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
TAG = re.compile(r"</?[A-Za-z][^<>]{0,500}>")
BLANK_LINES = re.compile(r"\n\s*\n\s*")
SPACES = re.compile(r"[ \t]+")


def plain_text(value: Any, longest: int) -> str:
    """Without links, tags and comments; Markdown's other signs are plain enough. Cut at a word."""
    if not isinstance(value, str):
        return ""
    # What comes after can only be cut away.
    text = COMMENT.sub(" ", value[: 20 * longest])
    text = TAG.sub(" ", LINK.sub(r"\1", text))
    text = BLANK_LINES.sub("\n\n", SPACES.sub(" ", text)).strip()
    if len(text) <= longest:
        return text
    return text[: longest - 3].rpartition(" ")[0].rstrip() + "..."


def description_of(summary: Any, description: Any, *, otherwise: str) -> str:
    """Both, unless the one begins with the other."""
    short, long = plain_text(summary, LONGEST_TITLE), plain_text(description, LONGEST_DESCRIPTION)
    if short and not long.startswith(short.rstrip(".")):
        # A summary is a heading: the description goes on below it.
        long = f"{short}\n\n{long}".strip()
    return plain_text(long, LONGEST_DESCRIPTION) or otherwise


MAX_BYTES = 20_000_000
MAX_YAML_BYTES = 8_000_000
"""YAML takes some ten times as long as JSON."""
MAX_DEPTH = 100
MAX_VALUES = 2_000_000
"""Counted as often as a YAML alias repeats them."""
YAML_LIMITS = Limits(bytes=MAX_YAML_BYTES, depth=MAX_DEPTH, parts=MAX_VALUES, integer=10**40)


class Ambiguous(dict[str, Any]):
    """An object with a duplicate key: a reader must not choose one of the two values."""

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
        return read_values(content, limits=YAML_LIMITS, object_of=_object_of)
    except TooManyValues:
        raise _too_many() from None
    except UnusableText as error:
        raise UnusableDocument(f"The document is no YAML that can be read: {error}") from None


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    plain = dict(pairs)
    return plain if len(plain) == len(pairs) else Ambiguous(pairs)


def _too_many() -> UnusableDocument:
    return UnusableDocument(f"The document has more than {MAX_VALUES:,} values, the most that is read.")


VERSION = re.compile(r"3\.(\d{1,3})(?:\.|\Z)")
LONGEST_CHAIN = 20
"""References that lead to references."""


class Document:
    """What a document says; its parts are known by JSON Pointers from the outermost object on."""

    def __init__(self, value: dict[str, Any], minor: int) -> None:
        self.value = value
        self.minor = minor
        """1 for OpenAPI 3.1."""

    @classmethod
    def read(cls, content: bytes) -> Self:
        """Raises UnusableDocument."""
        value = read_text(content)
        if not isinstance(value, dict):
            raise UnusableDocument(
                "The document is no JSON object (YAML mapping), so it is no OpenAPI document."
            )
        return cls(value, _minor_version(value))

    @property
    def title(self) -> str:
        info = self.value.get("info")
        title = info.get("title") if isinstance(info, dict) else None
        return title if isinstance(title, str) else ""

    def object_at(self, value: Any, pointer: str) -> tuple[dict[str, Any], str]:
        """The object after following references, and its pointer. Raises NoTool."""
        for _ in range(LONGEST_CHAIN):
            if not isinstance(value, dict):
                raise NoTool("There is something else where an object has to be.", pointer)
            if isinstance(value, Ambiguous):
                raise NoTool(f"The key {quoted(value.key)} stands twice in one object.", pointer)
            if "$ref" not in value:
                return value, pointer
            value, pointer = self.follow(value["$ref"], pointer)
        raise NoTool("A reference leads to ever more references.", pointer)

    def follow(self, reference: Any, pointer: str) -> tuple[Any, str]:
        """One step; `pointer` is where the reference stands. Raises NoTool."""
        where = f"{pointer}/$ref"
        if not isinstance(reference, str):
            raise NoTool("A $ref is no text.", where)
        if not reference.startswith("#"):
            raise NoTool(
                f"It refers to {quoted(reference)} outside of the document, which is never fetched; bundle "
                "the document into one file first.",
                where,
            )
        try:
            steps = steps_of(unquote(reference[1:]))
            return self._value_at(steps), pointer_of(steps)
        except ValueError:
            raise NoTool(
                f"It refers to {quoted(reference)} by an anchor; only paths are followed.", where
            ) from None
        except LookupError:
            raise NoTool(f"It refers to {quoted(reference)}, where there is nothing.", where) from None

    def _value_at(self, steps: Iterable[str]) -> Any:
        """Raises LookupError."""
        value: Any = self.value
        for step in steps:
            if isinstance(value, Ambiguous) and value.repeats(step):
                raise NoTool(f"The key {quoted(step)} stands twice in one object.")
            value = child_of(value, step)
        return value


def _minor_version(value: dict[str, Any]) -> int:
    if "swagger" in value and "openapi" not in value:
        raise UnusableDocument(
            f"This is a Swagger {value['swagger']!s:.10} document. Convert it to OpenAPI 3 first, for "
            "example with the Swagger Editor (Edit, Convert to OpenAPI 3) or npx swagger2openapi FILE."
        )
    found = VERSION.match(str(value.get("openapi", "")))
    if found is None:
        raise UnusableDocument(
            "The document does not say that it is OpenAPI 3: its first key has to be openapi, such as 3.1.0."
        )
    return int(found[1])
