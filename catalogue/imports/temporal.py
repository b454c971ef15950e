"""Importing a file that declares a Temporal service and its workflows: all of it, or nothing."""

from dataclasses import dataclass
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction

from catalogue.actions import sources
from catalogue.connections import secret_fields
from catalogue.imports import cache_takers
from catalogue.imports.pipeline import (
    ImportOutcome,
    ImportRefused,
    ImportRequest,
    policy_for_new,
    record_import,
    require_kind,
    stored_secrets,
)
from catalogue.models import DiscoveryRun, Revision, Source
from catalogue.reconciliation import Change, plan_changes, read_listing, reconcile
from connectors.errors import Misconfigured
from connectors.formats.yaml import UnusableText, write_document
from connectors.protocol import Health
from connectors.temporal.config import (
    PLACES,
    SETTING_OF,
    Declared,
    TemporalConfig,
    name_in_file,
    read_declared,
    read_definitions,
)
from connectors.temporal.declarations import CacheBlock

KIND = "temporal"
DEFAULT_SOURCE = "temporal"
OWN_SETTINGS = ("definitions", "definitions_file")


@dataclass(frozen=True, kw_only=True)
class TemporalImportRequest(ImportRequest):
    """Secrets, by the file's or the settings' names, override the file's. `expose`: of a new source only."""

    source: str = DEFAULT_SOURCE
    path: str = ""  # If set, each refresh reads the file there; otherwise the content is stored


@dataclass(kw_only=True)
class TemporalImport(ImportOutcome):
    changes: dict[str, Change]  # By workflow name
    settings: list[str]  # Changed settings of the source, by the file's names
    health: Health | None = None

    @property
    def every_change(self) -> list[Change]:
        return list(self.changes.values())


def import_file(request: TemporalImportRequest) -> TemporalImport:
    """Create or update the source and its workflows. Raises ImportRefused, and changes nothing then. Temporal
    need not be reachable; the outcome's `health` says whether it is."""
    with transaction.atomic():
        Revision.lock()
        known = Source.objects.filter(name=request.source).first()
        if known is not None:
            require_kind(known, KIND)
        declared = _read(request, known)
        config = _config(request, known, declared)
        credentials = _credentials(request, known, declared, config)
        settings = _changed_settings(known, config, credentials)
        try:
            source = _write(request, known, config, credentials)
        except ValidationError as error:
            raise ImportRefused(error.messages) from None
        listing = read_listing(read_declared(TemporalConfig.model_validate(config | credentials)).workflows)
        if listing.skipped:
            raise ImportRefused([f"{skipped['name']}: {skipped['reason']}." for skipped in listing.skipped])
        outcome = TemporalImport(
            source=request.source,
            is_new=known is None,
            dry_run=request.dry_run,
            changes={
                name: Change.KEPT if name in listing.layers and name not in declared.entries else change
                for name, change in plan_changes(known, listing).items()
            },
            settings=settings,
            notes=[*(f"{one['id']}: {one['reason']}" for one in listing.flagged), *_take_cache(declared)],
        )
        if Change.ADDED in outcome.every_change and source.new_workflows == Source.NewWorkflows.HIDDEN:
            why = ": only a new source can enable them at once, and this one hides new workflows"
            later = "Agents see the added workflows once a curator enables them"
            outcome.notes.append(f"{later}{why if request.expose else ''}.")
        run = DiscoveryRun.objects.create(source=source, trigger=DiscoveryRun.Trigger.MANUAL)
        reconcile(source, listing, run, by_hand=True, by=request.by)
        record_import(request.by, source, "a Temporal file", outcome.every_change)
        run.finish(outcome=DiscoveryRun.Outcome.SUCCEEDED)
        _take_cache(declared, apply=True)
        if request.dry_run:
            transaction.set_rollback(True)
    check = sources.check_candidate if request.dry_run else sources.check_source
    outcome.health = check(source)
    return outcome


def _write(
    request: TemporalImportRequest,
    source: Source | None,
    config: dict[str, Any],
    credentials: dict[str, str],
) -> Source:
    """Raises ValidationError."""
    if source is None:
        return sources.create_source(
            name=request.source,
            kind=KIND,
            config=config,
            credentials=credentials,
            new_workflows=policy_for_new(expose=request.expose),
        )
    # Unchanged settings keep open connections and cached results.
    if config != source.config or credentials != stored_secrets(source):
        sources.change_source(source, config=config, credentials=credentials)
    else:
        sources.check_settings(source)
    return source


def _read(request: TemporalImportRequest, source: Source | None) -> Declared:
    queue = source.config.get("default_task_queue", "") if source else ""
    try:
        declared = read_definitions(request.content, default_task_queue=queue)
    except UnusableText as error:
        raise ImportRefused(error.reasons) from None
    if source is None and declared.connection is None:
        raise ImportRefused(
            [f"There is no source {request.source} yet, and the file does not say where Temporal is "
             "(temporal.hostPort)."]
        )  # fmt: skip
    return declared


def _config(request: TemporalImportRequest, source: Source | None, declared: Declared) -> dict[str, Any]:
    """A connection in the file replaces the source's whole connection; other settings stay."""
    replaced = {*OWN_SETTINGS, *(PLACES if declared.connection else ())}
    config = {
        name: value for name, value in (source.config if source else {}).items() if name not in replaced
    }
    if declared.connection is not None:
        config |= declared.connection.settings
    earlier = {} if request.prune or source is None else _entries_of(source)
    if not request.path:
        return config | {"definitions": write_document({"workflows": earlier | declared.entries})}
    if lost := sorted(earlier.keys() - declared.entries.keys()):
        raise ImportRefused(
            [f"The file lacks workflows that the source has ({', '.join(lost)}). A file that is read "
             "at each refresh must contain all: add them to it, or prune them."]
        )  # fmt: skip
    return config | {"definitions_file": request.path}


def _entries_of(source: Source) -> dict[str, dict[str, Any]]:
    """The declarations that earlier files left in the source."""
    known = {
        name: source.config[name] for name in (*OWN_SETTINGS, "default_task_queue") if name in source.config
    }
    try:
        settings = TemporalConfig.model_validate({"host_port": "localhost"} | known)
        return read_declared(settings).entries
    except (Misconfigured, ValueError):
        raise ImportRefused(
            [f"The present declaration of source {source.name} cannot be read, so nothing can be added to "
             "it. Pruning replaces it."]
        ) from None  # fmt: skip


def _credentials(
    request: TemporalImportRequest, source: Source | None, declared: Declared, config: dict[str, Any]
) -> dict[str, str]:
    given = {SETTING_OF.get(name, name): value for name, value in request.secrets.items()}
    if unknown := sorted(given.keys() - set(secret_fields(KIND))):
        known = ", ".join(name_in_file(name).rpartition(".")[2] for name in secret_fields(KIND))
        raise ImportRefused([f"Unknown secrets: {', '.join(unknown)}; there are {known}."])
    given = (declared.connection.secrets if declared.connection else {}) | given
    stored = stored_secrets(source)
    if source is not None and stored.keys() - given.keys():
        try:
            sources.check_address_is_kept(source, config)
        except ValidationError as error:
            raise ImportRefused(error.messages) from None
    return stored | given


def _changed_settings(
    source: Source | None, config: dict[str, Any], credentials: dict[str, str]
) -> list[str]:
    if source is None:
        return []
    stored = stored_secrets(source)
    changed = [name for name in PLACES if config.get(name) != source.config.get(name)]
    changed += [name for name in credentials if credentials[name] != stored.get(name)]
    return [name_in_file(name) for name in changed]


def _take_cache(declared: Declared, *, apply: bool = False) -> list[str]:
    block: CacheBlock | None = declared.cache
    return [] if block is None else [note for take in cache_takers for note in take(block, apply=apply)]
