"""Importing an OpenAPI document, each chosen operation as an HTTP tool, for every door.

An operation that cannot be a tool is told with its reason and stops no other one.
"""

import gc
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction

from catalogue.changes import Change, tell_counts
from catalogue.declared_workflows import ImportRefused, permission_to_import
from catalogue.history import Actor, record_change
from catalogue.http_tools.registry import KIND, StoredTools, ToolChange, ToolsRefused, store_tools
from catalogue.models import Revision, Source
from catalogue.openapi.sources import Target, find_target
from catalogue.patterns import compile_pattern
from catalogue.sources import create_source
from catalogue.token_estimates import tokens_for
from connectors.http_tools.openapi.document import Document, RefusedOperation, UnusableDocument, quoted
from connectors.http_tools.openapi.operations import ReadTool, ReadTools, Selection, read_tools, refusal_of
from connectors.http_tools.openapi.servers import note_on_servers

__all__ = [
    "ImportRefused",
    "ImportRequest",
    "ImportedTool",
    "OpenApiImport",
    "Selection",
    "import_document",
    "permissions_to_import",
]


LARGE_LIST = 20_000
"""Tokens of `tools/list` from which agents are better served by a compact toolset."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportRequest:
    content: bytes = field(repr=False)
    source: str = ""
    """The API's source, of the kind http, or the name of a new one; empty: by the API's address."""
    base_url: str = ""
    """Instead of the document's first server."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Of a new source, besides what the document says: HttpConfig's fields."""
    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    """Of a new source, by setting: `api_key`, `token`, `password` or `oauth_client_secret`."""
    selection: Selection = field(default_factory=Selection)
    expose: bool = False
    """Agents see new tools at once, without a curator who enables them."""
    prune: bool = False
    """The source's tools that the import does not bring go."""
    dry_run: bool = False
    by: Actor | None = None
    """In whose name the history tells of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportedTool:
    """An operation that became a tool, or would."""

    method: str
    path: str
    tags: list[str]
    stored: ToolChange
    notes: list[str]
    """What of the operation the tool has not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Read:
    """The document's tools, for an API at this address that is entered like this."""

    base_url: str
    authentication: dict[str, Any]
    tools: ReadTools


@dataclass(kw_only=True, slots=True)
class OpenApiImport:
    """What an import came to, or would come to: every operation of the document counts once."""

    source: str
    is_new: bool
    """Whether the source was created; without a tool it is not."""
    base_url: str
    authentication: str
    tools: list[ImportedTool]
    removed: list[ToolChange]
    refused: list[RefusedOperation]
    deprecated: int
    """Operations left out because the document calls them deprecated."""
    not_chosen: int
    characters: int
    """What the tools take in `tools/list`, which fills agents' contexts."""
    notes: list[str]
    dry_run: bool

    @property
    def tokens(self) -> int:
        return tokens_for(self.characters)

    def count(self, change: Change) -> int:
        return sum(tool.stored.change is change for tool in self.tools) + (
            len(self.removed) if change is Change.REMOVED else 0
        )


def permissions_to_import(source: str) -> list[str]:
    """What a member of staff needs to import into the source of this name; empty: into whichever it is."""
    if not source:
        return ["catalogue.add_source", "catalogue.change_source"]
    return [permission_to_import(source)]


def import_document(request: ImportRequest) -> OpenApiImport:
    """Store what can be stored. Raises ImportRefused where the document or the settings are of no use."""
    with _collection_paused():
        return _import_document(request)


@contextmanager
def _collection_paused() -> Iterator[None]:
    """All of a document's millions of values are needed: looking for garbage takes a quarter of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _import_document(request: ImportRequest) -> OpenApiImport:
    try:
        document = Document.read(request.content)
        found = _read(document, request, _find_target(document, request))
        with transaction.atomic():
            Revision.lock()
            outcome = _import(request, document, found)
            if request.dry_run or not outcome.tools:
                transaction.set_rollback(True)
    except UnusableDocument as error:
        raise ImportRefused([str(error)]) from None
    return outcome


def _find_target(document: Document, request: ImportRequest) -> Target:
    return find_target(
        document,
        source=request.source,
        base_url=request.base_url,
        settings=request.settings,
        secrets=request.secrets,
    )


def _read(document: Document, request: ImportRequest, target: Target) -> _Read:
    """Takes seconds for a large document, in which others have to be able to write."""
    found = read_tools(
        document,
        base_url=target.base_url,
        settings=target.authentication,
        selection=request.selection,
        usable_pattern=_is_usable,
    )
    return _Read(base_url=target.base_url, authentication=target.authentication, tools=found)


def _import(request: ImportRequest, document: Document, read: _Read) -> OpenApiImport:
    target = _find_target(document, request)
    if (target.base_url, target.authentication) != (read.base_url, read.authentication):
        raise ImportRefused(
            [f"Source {target.name} was changed meanwhile. Nothing was stored; import again."]
        )
    found = read.tools
    source = _create(request, target) if target.source is None and found.tools else target.source
    stored = _store(request, target, found)
    by_name = {change.name: change for change in stored.tools}
    characters = sum(map(_size_in_list, found.tools))
    outcome = OpenApiImport(
        source=target.name,
        is_new=target.source is None and bool(found.tools),
        base_url=target.base_url,
        authentication=target.authentication["authentication"],
        tools=[_imported(tool, by_name.pop(tool.config.name)) for tool in found.tools],
        removed=list(by_name.values()),
        refused=found.refused,
        deprecated=found.deprecated,
        not_chosen=found.not_chosen,
        characters=characters,
        notes=[
            *_notes(document, target),
            *_idle_notes(found),
            *stored.notes,
            *_size_notes(characters, exposes=request.expose),
        ],
        dry_run=request.dry_run,
    )
    if request.by is not None and source is not None:
        counts = tell_counts(outcome.count) or "nothing"
        record_change(request.by, [source], f"Imported an OpenAPI document: {counts}.")
    return outcome


def _store(request: ImportRequest, target: Target, found: ReadTools) -> StoredTools:
    """What the registry refuses goes from the tools to the refused ones."""
    while found.tools:
        try:
            return store_tools(
                [tool.config for tool in found.tools],
                source=target.name,
                expose=request.expose,
                prune=request.prune,
                by=request.by,
            )
        except ToolsRefused as refusal:
            _move_refused(found, refusal)
    return StoredTools()


def _create(request: ImportRequest, target: Target) -> Source:
    policies = Source.NewWorkflows
    try:
        return create_source(
            name=target.name,
            kind=KIND,
            config=target.config,
            credentials=target.secrets,
            new_workflows=policies.EXPOSED if request.expose else policies.HIDDEN,
        )
    except ValidationError as error:
        raise ImportRefused(error.messages) from None


def _move_refused(found: ReadTools, refusal: ToolsRefused) -> None:
    reasons: dict[int, list[str]] = {}
    for problem in refusal.problems:
        if problem.position is None:
            raise ImportRefused([problem.message])
        reasons.setdefault(problem.position, []).append(problem.message)
    for position, told in reasons.items():
        reason = " ".join(dict.fromkeys(told))
        found.refused.append(refusal_of(found.tools[position].operation, reason))
    found.tools = [tool for position, tool in enumerate(found.tools) if position not in reasons]


def _imported(tool: ReadTool, change: ToolChange) -> ImportedTool:
    operation = tool.operation
    return ImportedTool(
        method=operation.method,
        path=operation.path,
        tags=operation.tags,
        stored=change,
        notes=tool.notes,
    )


def _notes(document: Document, target: Target) -> list[str]:
    told = f"Calls fail until source {target.name} has: {target.lacking}." if target.lacking else ""
    return [note for note in (note_on_servers(document, target.base_url), told) if note]


def _idle_notes(found: ReadTools) -> Iterator[str]:
    for name in found.idle:
        yield f"No operation has {quoted(name)}: neither as its id or path nor as a tag."


def _size_notes(characters: int, *, exposes: bool) -> Iterator[str]:
    if exposes and tokens_for(characters) > LARGE_LIST:
        yield (
            f"In tools/list they take about {tokens_for(characters):,} tokens, more than agents should read "
            "with every conversation. Make a toolset with the mode compact, in which agents look for tools, "
            "and bind its token to the agent; or choose fewer operations (docs/toolsets.md)."
        )


def _size_in_list(tool: ReadTool) -> int:
    """In characters, as near as it takes to choose."""
    config = tool.config
    listed = {"name": config.name, "title": config.title, "description": config.description}
    return len(json.dumps(listed | {"inputSchema": config.input_schema}, separators=(",", ":")))


def _is_usable(pattern: str) -> bool:
    try:
        compile_pattern(pattern)
    except ValueError:
        return False
    return True
