"""Importing OpenAPI documents: each chosen operation becomes an HTTP tool or is refused with its reason."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pydantic
from django.core.exceptions import ValidationError
from django.db import transaction

from catalogue.actions.sources import create_source
from catalogue.connections import find_setting_problems, secret_fields
from catalogue.descriptions import tokens_for
from catalogue.history import Actor
from catalogue.http_tools import KIND
from catalogue.imports.pipeline import (
    ImportOutcome,
    ImportRefused,
    ImportRequest,
    policy_for_new,
    record_import,
    require_kind,
    stored_secrets,
)
from catalogue.imports.tools import ToolChange, address_of, free_source_name, read_definitions, store_layers
from catalogue.models import Revision, Source
from catalogue.patterns import find_pattern_problem
from catalogue.reconciliation import Change
from catalogue.reduced_schemas import serve_reduced
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
from connectors.http_tools.openapi.operations import Selection, Settings, read_tools, refusal_of, settings_for
from connectors.http_tools.tool import EXTRA_KEYS


@dataclass(frozen=True, kw_only=True)
class OpenApiImportRequest(ImportRequest):
    """Lets the API's address decide if no source is named; secrets and settings are for a new source."""

    base_url: str = ""  # Replaces the document's first server
    settings: dict[str, Any] = field(default_factory=dict)  # HttpConfig's further fields
    only: Sequence[str] = ()  # As in Selection
    tags: Sequence[str] = ()
    deprecated: bool = False


AUTHENTICATION = (
    "authentication",
    *(f"{key}{part}" for key in ("api_key", *EXTRA_KEYS) for part in ("_in", "_name")),
    "extra_headers",
)  # Settings


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetApi:
    key: int | None  # The source's; None for a new source
    name: str
    base_url: str
    config: dict[str, Any]
    lacking: str  # Settings that calls need and the source lacks; empty if it has all
    secrets: dict[str, str] = field(default_factory=dict, repr=False)  # Of a new source

    @property
    def authentication(self) -> Settings:
        return authentication_in(self.config)


def authentication_in(config: dict[str, Any]) -> Settings:
    return {name: config.get(name, HttpConfig.model_fields[name].default) for name in AUTHENTICATION}


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportedTool:
    method: str
    path: str
    tags: list[str]
    stored: ToolChange
    notes: list[str]  # Parts of the operation that the tool leaves out


@dataclass(kw_only=True)
class OpenApiImport(ImportOutcome):
    """Every operation of the document counts once. Without a tool no source is created. The outcome of a dry
    run, as JSON, is a plan: it has all that `import_planned` stores."""

    target: TargetApi
    expose: bool
    prune: bool
    layers: dict[str, dict[str, Any]] = field(repr=False)  # What is stored, by the tools' names
    tools: list[ImportedTool]
    removed: list[ToolChange]
    refused: list[RefusedOperation]
    deprecated: int  # Operations left out because the document marks them as deprecated
    not_chosen: int
    characters: int  # Size of the tools in `tools/list`

    @property
    def tokens(self) -> int:
        return tokens_for(self.characters)

    @property
    def changes(self) -> list[ToolChange]:
        return [*(tool.stored for tool in self.tools), *self.removed]

    @property
    def every_change(self) -> list[Change]:
        return [one.change for one in self.changes]


PLAN = pydantic.TypeAdapter(OpenApiImport)


def import_document(request: OpenApiImportRequest) -> OpenApiImport:
    """Refuses each operation that cannot be a tool. Raises ImportRefused for a useless document."""
    try:
        document = Document.read(request.content)
        target = find_target(document, request)
    except UnusableDocument as error:
        raise ImportRefused([str(error)]) from None
    # Takes seconds for a large document, so the catalogue is not locked for it.
    found = read_tools(
        document,
        base_url=target.base_url,
        settings=target.authentication,
        selection=Selection(
            only=tuple(request.only), tags=tuple(request.tags), deprecated=request.deprecated
        ),
        usable_pattern=lambda pattern: not find_pattern_problem(syntax="regex", pattern=pattern),
    )
    layers, faults = read_definitions({tool.definition.id: tool.definition for tool in found.tools})
    for tool in found.tools:
        if messages := dict.fromkeys(fault.message for fault in faults.get(tool.definition.id, ())):
            found.refused.append(refusal_of(tool.operation, " ".join(messages)))
    characters = 0  # An estimate
    for layer in layers.values():
        schema = serve_reduced(layer["input_schema"])
        shown = {"name": layer["name"], "title": layer["upstream_title"], "inputSchema": schema}
        characters += len(write_json(shown | {"description": layer["description"]}))
    outcome = OpenApiImport(
        source=target.name,
        is_new=target.key is None and bool(layers),
        target=target,
        expose=request.expose,
        prune=request.prune,
        layers=layers,
        tools=[],
        removed=[],
        refused=found.refused,
        deprecated=found.deprecated,
        not_chosen=found.not_chosen,
        characters=characters,
        notes=[*found.notes, *filter(None, [note_on_servers(document, target.base_url)])],
        dry_run=request.dry_run,
    )
    if target.lacking:
        outcome.notes.append(f"Calls fail until source {target.name} has: {target.lacking}.")
    outcome.notes += [
        f"No operation has {quoted(pattern)}: neither as its id or path nor as a tag."
        for pattern in found.idle
    ]
    if request.expose and outcome.tokens > 20_000:
        outcome.notes.append(
            f"In tools/list they take about {outcome.tokens:,} tokens, more than agents should read with "
            "every conversation. Make a toolset with the mode compact, in which agents look for tools, "
            "and bind its token to the agent; or choose fewer operations (docs/toolsets.md)."
        )
    changes = {change.name: change for change in _store(outcome, by=request.by)}
    outcome.tools = [
        ImportedTool(
            method=tool.operation.method,
            path=tool.operation.path,
            tags=tool.operation.tags,
            stored=changes.pop(tool.definition.id),
            notes=tool.notes,
        )
        for tool in found.tools
        if tool.definition.id in layers
    ]
    outcome.removed = list(changes.values())
    return outcome


def import_planned(plan: bytes, *, by: Actor | None) -> OpenApiImport:
    """Store exactly what the plan says. Raises ImportRefused if it would change something else by now."""
    try:
        outcome = PLAN.validate_json(plan)
    except pydantic.ValidationError:
        raise ImportRefused(["The plan is of another version of this product. Make it again."]) from None
    outcome.dry_run = False
    _store(outcome, by=by)
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
    require_kind(known, KIND)
    if request.settings or request.secrets:
        raise ImportRefused([f"Source {known.name} exists: change its settings and secrets at the source."])
    wanted = own = address_of(known)
    try:
        wanted = base_url_of(document, request.base_url)
    except UnusableDocument:
        # The document need not say where the API is.
        if request.base_url:
            raise
    if wanted != own:
        raise ImportRefused(
            [f"Source {known.name} is {own}, and this API is {wanted}. Name another source, or give the "
             f"base URL {own} if the document is about that one."],
            about="source",
        )  # fmt: skip
    settings = known.config | stored_secrets(known)
    lacking = "" if find_setting_problems(KIND, settings) else HttpConfig.model_validate(settings).lacking
    return TargetApi(key=known.pk, name=known.name, base_url=own, config=known.config, lacking=lacking)


def _new_api(document: Document, request: OpenApiImportRequest, base_url: str) -> TargetApi:
    settings, secrets, known = request.settings, request.secrets, set(secret_fields(KIND))
    if unknown := sorted(secrets.keys() - known):
        raise ImportRefused([f"Unknown secrets: {', '.join(unknown)}; there are {', '.join(sorted(known))}."])
    if misplaced := sorted(settings.keys() & known):
        raise ImportRefused([f"{', '.join(misplaced)}: a secret; give it as one, so that it is encrypted."])
    if "base_url" in settings:
        raise ImportRefused(["Give the base URL separately, not among the settings."])
    usual = {} if "authentication" in settings else settings_for(document, frozenset(secrets))
    config = {"base_url": base_url} | usual | settings
    if problems := find_setting_problems(KIND, config | secrets):
        raise ImportRefused([f"{name}: {said}" for name, messages in problems.items() for said in messages])
    name = request.source or free_source_name(base_url, set(Source.objects.values_list("name", flat=True)))
    lacking = HttpConfig.model_validate(config | secrets).lacking
    return TargetApi(key=None, name=name, base_url=base_url, config=config, lacking=lacking, secrets=secrets)


def _store(plan: OpenApiImport, *, by: Actor | None) -> list[ToolChange]:
    """Raises ImportRefused, and stores nothing then, if the source changed since the plan was made, or the
    changes are no longer those that it shows."""
    target = plan.target
    stale = ImportRefused([f"Source {target.name} was changed meanwhile. Nothing was stored; import again."])
    if not plan.layers:
        return []
    with transaction.atomic():
        Revision.lock()
        source = Source.objects.select_for_update().filter(name=target.name).first()
        if source is not None:
            require_kind(source, KIND)
        seen = target.key and (target.key, target.base_url, target.authentication)
        if seen != (source and (source.pk, address_of(source), authentication_in(source.config))):
            raise stale
        if source is None:
            try:
                source = create_source(
                    name=target.name,
                    kind=KIND,
                    config=target.config,
                    credentials=target.secrets,
                    new_workflows=policy_for_new(expose=plan.expose),
                )
            except ValidationError as error:
                raise ImportRefused(error.messages) from None
        changes = store_layers(source, plan.layers, expose=plan.expose, prune=plan.prune, by=by)
        planned, done = (
            [(one.name, one.change, one.differences) for one in those] for those in (plan.changes, changes)
        )
        if planned and planned != done:
            raise stale
        record_import(by, source, "an OpenAPI document", [one.change for one in changes])
        if plan.dry_run:
            transaction.set_rollback(True)
    return changes


def tools_by_tag(outcome: OpenApiImport) -> dict[str, list[str]]:
    """The tools' ids by the first tag of their operations, in the document's order."""
    groups: dict[str, list[str]] = {}
    for tool in outcome.tools:
        groups.setdefault(tool.tags[0] if tool.tags else "without a tag", []).append(tool.stored.tool_id)
    return groups


def tools_by_change(outcome: OpenApiImport) -> dict[Change, list[str]]:
    """The ids of the tools that an import changes; those that agents lose or see differently come first."""
    return {
        change: names
        for change in (Change.REMOVED, Change.UPDATED, Change.RETURNED, Change.ADDED)
        if (names := [tool.tool_id for tool in outcome.changes if tool.change is change])
    }


def group_refusals(refused: list[RefusedOperation]) -> list[tuple[str, list[RefusedOperation]]]:
    """Groups operations refused for reasons that differ in names only. Largest group first."""
    groups: dict[str, list[RefusedOperation]] = {}
    for one in refused:
        groups.setdefault(re.sub(r'"[^"]*"', '"..."', one.reason), []).append(one)
    found = [
        (kind if len({one.reason for one in alike}) > 1 else alike[0].reason, alike)
        for kind, alike in groups.items()
    ]
    return sorted(found, key=lambda group: -len(group[1]))


def group_notes(outcome: OpenApiImport) -> list[tuple[str, list[ImportedTool]]]:
    """Most frequent note first."""
    groups: dict[str, list[ImportedTool]] = {}
    for tool in outcome.tools:
        for note in tool.notes:
            groups.setdefault(note, []).append(tool)
    return sorted(groups.items(), key=lambda group: -len(group[1]))
