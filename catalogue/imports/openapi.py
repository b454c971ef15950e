"""Importing OpenAPI documents: each chosen operation becomes an HTTP tool or is refused with its reason."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction

from catalogue.connections import find_setting_problems, secret_fields
from catalogue.database import collection_paused
from catalogue.descriptions import tokens_for
from catalogue.http_tools import KIND
from catalogue.imports.pipeline import (
    ImportOutcome,
    ImportRefused,
    ImportRequest,
    ToolsRefused,
    policy_for_new,
    require_kind,
    stored_secrets,
)
from catalogue.imports.tools import StoredTools, ToolChange, address_of, free_source_name, store_tools
from catalogue.models import Revision, Source
from catalogue.patterns import find_pattern_problem
from catalogue.reconciliation import Change
from catalogue.reduced_schemas import serve_reduced
from catalogue.sources import create_source
from connectors.formats.json import write_json
from connectors.http_tools.connector import HttpConfig
from connectors.http_tools.openapi.document import (
    Document,
    RefusedOperation,
    UnusableDocument,
    base_url_of,
    note_on_servers,
    quoted,
)
from connectors.http_tools.openapi.operations import (
    ReadTools,
    Selection,
    Settings,
    read_tools,
    refusal_of,
    settings_for,
)
from connectors.http_tools.tool import EXTRA_KEYS

LARGE_LIST = 20_000  # Tokens of `tools/list` above which a compact toolset serves agents better


@dataclass(frozen=True, kw_only=True)
class OpenApiImportRequest(ImportRequest):
    """Without a source, the API's address decides; secrets and settings are for a new source."""

    base_url: str = ""  # Replaces the document's first server
    settings: dict[str, Any] = field(default_factory=dict)  # HttpConfig's further fields
    selection: Selection = field(default_factory=Selection)


AUTHENTICATION = (
    "authentication",
    *(f"{key}{part}" for key in ("api_key", *EXTRA_KEYS) for part in ("_in", "_name")),
    "extra_headers",
)  # Settings


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetApi:
    source: Source | None  # None for a new source
    name: str
    base_url: str
    config: dict[str, Any]
    secrets: dict[str, str] = field(repr=False)

    @property
    def authentication(self) -> Settings:
        """The settings of authentication, with defaults filled in."""
        fields = HttpConfig.model_fields
        return {name: self.config.get(name, fields[name].default) for name in AUTHENTICATION}

    @property
    def lacking(self) -> str:
        """Settings that calls need and the source lacks; empty if it has all."""
        settings = self.config | self.secrets
        if find_setting_problems(KIND, settings):
            return ""
        return HttpConfig.model_validate(settings).lacking


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportedTool:
    method: str
    path: str
    tags: list[str]
    stored: ToolChange
    notes: list[str]  # Parts of the operation that the tool leaves out


@dataclass(kw_only=True)
class OpenApiImport(ImportOutcome):
    """Every operation of the document counts once. Without a tool no source is created."""

    base_url: str
    authentication: str
    tools: list[ImportedTool]
    removed: list[ToolChange]
    refused: list[RefusedOperation]
    deprecated: int  # Operations left out because the document marks them as deprecated
    not_chosen: int
    characters: int  # Size of the tools in `tools/list`

    @property
    def tokens(self) -> int:
        return tokens_for(self.characters)

    def count(self, change: Change) -> int:
        removed = len(self.removed) if change is Change.REMOVED else 0
        return removed + sum(tool.stored.change is change for tool in self.tools)


def import_document(request: OpenApiImportRequest) -> OpenApiImport:
    """Refuses each operation that cannot be a tool. Raises ImportRefused for a useless document."""
    with collection_paused():
        try:
            document = Document.read(request.content)
            target = find_target(document, request)
            # Takes seconds for a large document, so the catalogue is not locked for it.
            found = read_tools(
                document,
                base_url=target.base_url,
                settings=target.authentication,
                selection=request.selection,
                usable_pattern=lambda pattern: not find_pattern_problem(syntax="regex", pattern=pattern),
            )
            with transaction.atomic():
                Revision.lock()
                outcome = _store_found(request, document, target, found)
                if request.dry_run or not outcome.tools:
                    transaction.set_rollback(True)
        except UnusableDocument as error:
            raise ImportRefused([str(error)]) from None
    return outcome


def find_target(document: Document, request: OpenApiImportRequest) -> TargetApi:
    """Raises ImportRefused or UnusableDocument. Nothing is written."""
    known = Source.objects.filter(name=request.source).first() if request.source else None
    if known is None:
        wanted = base_url_of(document, request.base_url)
        at_address = [one for one in Source.objects.filter(kind=KIND) if address_of(one) == wanted]
        if request.source or len(at_address) != 1:
            return _new_api(document, request, wanted)
        known = at_address[0]
    return _known_api(document, request, known)


def _new_api(document: Document, request: OpenApiImportRequest, base_url: str) -> TargetApi:
    settings, secrets = request.settings, request.secrets
    _check_names(settings, secrets)
    said = {} if "authentication" in settings else settings_for(document, frozenset(secrets))
    config = {"base_url": base_url} | said | settings
    if problems := find_setting_problems(KIND, config | secrets):
        raise ImportRefused(
            [f"{name}: {message}" for name, messages in problems.items() for message in messages]
        )
    name = request.source or free_source_name(base_url, set(Source.objects.values_list("name", flat=True)))
    return TargetApi(source=None, name=name, base_url=base_url, config=config, secrets=secrets)


def _check_names(settings: dict[str, Any], secrets: dict[str, str]) -> None:
    known = set(secret_fields(KIND))
    if unknown := sorted(secrets.keys() - known):
        raise ImportRefused([f"Unknown secrets: {', '.join(unknown)}; there are {', '.join(sorted(known))}."])
    if misplaced := sorted(settings.keys() & known):
        raise ImportRefused([f"{', '.join(misplaced)}: a secret; give it as one, so that it is encrypted."])
    if "base_url" in settings:
        raise ImportRefused(["Give the base URL separately, not among the settings."])


def _known_api(document: Document, request: OpenApiImportRequest, source: Source) -> TargetApi:
    require_kind(source, KIND)
    if request.settings or request.secrets:
        raise ImportRefused([f"Source {source.name} exists: change its settings and secrets at the source."])
    own = address_of(source)
    try:
        wanted = base_url_of(document, request.base_url)
    except UnusableDocument:
        # The document need not say where the API is.
        if request.base_url:
            raise
        wanted = own
    if wanted != own:
        raise ImportRefused(
            [f"Source {source.name} is {own}, and this API is {wanted}. Name another source, or give the "
             f"base URL {own} if the document is about that one."],
            about="source",
        )  # fmt: skip
    return TargetApi(
        source=source, name=source.name, base_url=own, config=source.config, secrets=stored_secrets(source)
    )


def _store_found(
    request: OpenApiImportRequest, document: Document, seen: TargetApi, found: ReadTools
) -> OpenApiImport:
    target = find_target(document, request)
    if (target.base_url, target.authentication) != (seen.base_url, seen.authentication):
        raise ImportRefused(
            [f"Source {target.name} was changed meanwhile. Nothing was stored; import again."]
        )
    source = _create(request, target) if target.source is None and found.tools else target.source
    stored = _store(request, target, found)
    by_name = {change.name: change for change in stored.tools}
    characters = 0  # An estimate
    for one in (tool.config for tool in found.tools):
        listed = {"name": one.name, "title": one.title, "description": one.description}
        characters += len(write_json(listed | {"inputSchema": serve_reduced(one.input_schema)}))
    outcome = OpenApiImport(
        source=target.name,
        is_new=target.source is None and bool(found.tools),
        base_url=target.base_url,
        authentication=target.authentication["authentication"],
        tools=[
            ImportedTool(
                method=tool.operation.method,
                path=tool.operation.path,
                tags=tool.operation.tags,
                stored=by_name.pop(tool.config.name),
                notes=tool.notes,
            )
            for tool in found.tools
        ],
        removed=list(by_name.values()),
        refused=found.refused,
        deprecated=found.deprecated,
        not_chosen=found.not_chosen,
        characters=characters,
        notes=[
            *_notes(document, target, found, stored, tokens=tokens_for(characters) if request.expose else 0)
        ],
        dry_run=request.dry_run,
    )
    if source is not None:
        outcome.record(request.by, source, "an OpenAPI document")
    return outcome


def _store(request: OpenApiImportRequest, target: TargetApi, found: ReadTools) -> StoredTools:
    """Move tools that the registry refuses to the refused operations until it accepts the rest."""
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


def _create(request: OpenApiImportRequest, target: TargetApi) -> Source:
    try:
        return create_source(
            name=target.name,
            kind=KIND,
            config=target.config,
            credentials=target.secrets,
            new_workflows=policy_for_new(expose=request.expose),
        )
    except ValidationError as error:
        raise ImportRefused(error.messages) from None


def _move_refused(found: ReadTools, refusal: ToolsRefused) -> None:
    reasons: dict[int, list[str]] = {}
    for problem in refusal.problems:
        if problem.position is None:
            raise ImportRefused([problem.message])
        reasons.setdefault(problem.position, []).append(problem.message)
    for position, messages in reasons.items():
        reason = " ".join(dict.fromkeys(messages))
        found.refused.append(refusal_of(found.tools[position].operation, reason))
    found.tools = [tool for position, tool in enumerate(found.tools) if position not in reasons]


def _notes(
    document: Document, target: TargetApi, found: ReadTools, stored: StoredTools, *, tokens: int
) -> Iterator[str]:
    """`tokens`: what agents read more in `tools/list`."""
    if note := note_on_servers(document, target.base_url):
        yield note
    if target.lacking:
        yield f"Calls fail until source {target.name} has: {target.lacking}."
    for name in found.idle:
        yield f"No operation has {quoted(name)}: neither as its id or path nor as a tag."
    yield from stored.notes
    if tokens > LARGE_LIST:
        yield (
            f"In tools/list they take about {tokens:,} tokens, more than agents should read with every "
            "conversation. Make a toolset with the mode compact, in which agents look for tools, and bind "
            "its token to the agent; or choose fewer operations (docs/toolsets.md)."
        )


QUOTED = re.compile(r'"[^"]*"')
CHANGES = (Change.REMOVED, Change.UPDATED, Change.RETURNED, Change.ADDED)


@dataclass(frozen=True, slots=True)
class RefusalGroup:
    """Operations refused for reasons that differ in names only."""

    reason: str
    operations: list[RefusedOperation]


@dataclass(frozen=True, slots=True)
class NoteGroup:
    note: str
    tools: list[ImportedTool]


def tools_by_tag(outcome: OpenApiImport) -> dict[str, list[str]]:
    """The tools' ids by the first tag of their operations, in the document's order."""
    groups: dict[str, list[str]] = {}
    for tool in outcome.tools:
        groups.setdefault(tool.tags[0] if tool.tags else "without a tag", []).append(tool.stored.tool_id)
    return groups


def tools_by_change(outcome: OpenApiImport) -> dict[Change, list[str]]:
    """The ids of the tools that an import changes; those that agents lose or see differently come first."""
    changed = [*outcome.removed, *(tool.stored for tool in outcome.tools)]
    groups: dict[Change, list[str]] = {change: [] for change in CHANGES}
    for tool in changed:
        if tool.change in groups:
            groups[tool.change].append(tool.tool_id)
    return {change: names for change, names in groups.items() if names}


def group_refusals(refused: list[RefusedOperation]) -> list[RefusalGroup]:
    """Largest group first."""
    by_kind: dict[str, list[RefusedOperation]] = {}
    for one in refused:
        by_kind.setdefault(QUOTED.sub('"..."', one.reason), []).append(one)
    groups = [
        RefusalGroup(kind if len({one.reason for one in alike}) > 1 else alike[0].reason, alike)
        for kind, alike in by_kind.items()
    ]
    return sorted(groups, key=lambda group: -len(group.operations))


def group_notes(outcome: OpenApiImport) -> list[NoteGroup]:
    """Most frequent note first."""
    groups: dict[str, list[ImportedTool]] = {}
    for tool in outcome.tools:
        for note in tool.notes:
            groups.setdefault(note, []).append(tool)
    found = [NoteGroup(note, tools) for note, tools in groups.items()]
    return sorted(found, key=lambda group: -len(group.tools))
