"""The operations of a document, one after the other, and which of them are wanted."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from connectors.formats.json_schema import pointer_of
from connectors.http_tools.openapi.document import Document
from connectors.http_tools.openapi.document_text import Ambiguous
from connectors.http_tools.openapi.refusals import NoTool, quoted

METHODS = ("get", "put", "post", "delete", "patch", "head")
OTHERS = ("options", "trace", "query")
MAX_TAGS = 20
LONGEST_TAG = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """One operation, as far as it can be read; what keeps it from being a tool may be known already."""

    method: str
    """In capitals."""
    path: str
    pointer: str
    raw: dict[str, Any] = field(default_factory=dict)
    item: dict[str, Any] = field(default_factory=dict)
    """The path item, with parameters and servers of all its operations."""
    item_pointer: str = ""
    objection: NoTool | None = None

    @property
    def id(self) -> str:
        """Empty where the document gives none."""
        given = self.raw.get("operationId")
        return " ".join(given.split()) if isinstance(given, str) else ""

    @property
    def tags(self) -> list[str]:
        given = self.raw.get("tags")
        tags = given if isinstance(given, list) else []
        texts = (tag.strip()[:LONGEST_TAG] for tag in tags if isinstance(tag, str))
        return list(dict.fromkeys(filter(None, texts)))[:MAX_TAGS]

    @property
    def is_deprecated(self) -> bool:
        return self.raw.get("deprecated") is True


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """Which operations are wanted; everything that is said has to be true."""

    only: tuple[str, ...] = ()
    """Patterns such as `issues/*`, `/repos/*` or `GET /repos/*`: of an id, a path, or a method and a path."""
    tags: tuple[str, ...] = ()
    deprecated: bool = False
    """Also those that the document calls deprecated."""

    def names(self, operation: Operation) -> bool:
        """Whether it is chosen, deprecated or not."""
        known = (operation.id, operation.path, f"{operation.method} {operation.path}")
        by_name = not self.only or any(fnmatchcase(name, pattern) for name in known for pattern in self.only)
        return by_name and (not self.tags or not {*self.tags}.isdisjoint(operation.tags))

    def left_over(self, operations: Collection[Operation]) -> list[str]:
        """What is said and chooses no operation, a misspelt pattern above all."""
        names = {operation.id for operation in operations}
        for operation in operations:
            names |= {operation.path, f"{operation.method} {operation.path}"}
        tags = {tag for operation in operations for tag in operation.tags}
        idle = [pattern for pattern in self.only if not any(fnmatchcase(name, pattern) for name in names)]
        return idle + [tag for tag in self.tags if tag not in tags]


def operations_of(document: Document) -> Iterator[Operation]:
    paths = document.value.get("paths")
    for path, raw in paths.items() if isinstance(paths, dict) else ():
        pointer = f"/paths{pointer_of([path])}"
        if path.startswith("x-"):
            continue
        try:
            if isinstance(paths, Ambiguous) and paths.repeats(path):
                raise NoTool(f"The path {quoted(path)} stands twice.", "/paths")
            item, pointer = _path_item(document, raw, pointer)
        except NoTool as refusal:
            yield Operation(method="*", path=path, pointer=pointer, objection=refusal)
            continue
        for method in item:
            if method in METHODS or method in OTHERS:
                yield _operation(document, method, path, item, pointer)


def _path_item(document: Document, raw: Any, pointer: str) -> tuple[dict[str, Any], str]:
    """One in which methods stand twice is still good for its other methods."""
    if isinstance(raw, Ambiguous) and "$ref" not in raw:
        return raw, pointer
    return document.object_at(raw, pointer)


def _operation(document: Document, method: str, path: str, item: dict[str, Any], pointer: str) -> Operation:
    at = f"{pointer}/{method}"
    raw, objection = item[method], None
    try:
        if isinstance(item, Ambiguous) and item.repeats(method):
            raise NoTool(f"The key {quoted(method)} stands twice in one object.", pointer)
        raw, at = document.object_at(raw, at)
        if method in OTHERS:
            raise NoTool(f"Requests with the method {method.upper()} are not made.", at)
        if not path.startswith("/"):
            raise NoTool("Its path does not begin with a slash.", pointer)
    except NoTool as refusal:
        objection = refusal
    return Operation(
        method=method.upper(),
        path=path,
        pointer=at,
        raw=raw if isinstance(raw, dict) else {},
        item=item,
        item_pointer=pointer,
        objection=objection,
    )
