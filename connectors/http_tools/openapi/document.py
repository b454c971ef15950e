"""An OpenAPI 3 document, and what its references lead to."""

import re
from collections.abc import Iterable
from typing import Any, Self
from urllib.parse import unquote

from connectors.formats.json_schema import pointer_of, steps_of
from connectors.http_tools.openapi.document_text import Ambiguous, read_text
from connectors.http_tools.openapi.refusals import NoTool, UnusableDocument, quoted

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
        """The object that is meant, any references followed, and where it stands. Raises NoTool."""
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
            if isinstance(value, list):
                value = value[_index(step)]
            elif isinstance(value, dict):
                value = value[step]
            else:
                raise LookupError(step)
        return value


def _index(step: str) -> int:
    if not (step.isascii() and step.isdigit() and len(step) < 8):
        raise LookupError(step)
    return int(step)


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
