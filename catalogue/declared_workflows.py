"""Importing a file that declares a Temporal service and its workflows, for every door.

Everything is checked before anything is written, and what would change is told the same way as what did.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction

from catalogue.changes import Change, foresee_changes, tell_counts
from catalogue.connections import secret_fields
from catalogue.history import Actor, record_change
from catalogue.models import DiscoveryRun, Revision, Source
from catalogue.reconciliation import Listing, read_listing, reconcile
from catalogue.secrets import CredentialsUnreadable
from catalogue.sources import (
    check_address_is_kept,
    check_candidate,
    check_settings,
    check_source,
    configure_source,
    create_source,
)
from connectors.errors import Misconfigured
from connectors.formats.yaml import UnusableText
from connectors.protocol import Health
from connectors.temporal.config import TemporalConfig, read_declared
from connectors.temporal.declarations import CacheBlock
from connectors.temporal.definitions_file import (
    PLACES,
    Declared,
    name_in_file,
    read_definitions,
    setting_named,
    write_definitions,
)

KIND = "temporal"
USUAL_NAME = "temporal"
SEEN_LATER = "Agents see the added workflows once somebody enables them."
SEEN_LATER_AS_BEFORE = (
    "Agents see the added workflows once somebody enables them: that they are enabled at once can be "
    "asked for with a new source only, and this one hides what is new."
)
OWN_SETTINGS = ("definitions", "definitions_file")

cache_takers: list[Callable[..., list[str]]] = []
"""What the rooms above do with the file's block `cache`; they add themselves.

Each is called with the block and `apply`, without which it only tells what it would do.
"""


class ImportRefused(Exception):
    """Nothing was written; every reason is a sentence."""

    def __init__(self, reasons: list[str]) -> None:
        super().__init__("\n".join(reasons))
        self.reasons = reasons


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportRequest:
    content: bytes = field(repr=False)
    source: str = USUAL_NAME
    path: str = ""
    """Where the server itself finds the file from now on; empty: the content is stored."""
    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    """By the file's names or the settings', such as `clientSecret`; they win over those in the file."""
    prune: bool = False
    """Workflows that the source has from earlier files, and this one has not, go."""
    expose_new: bool = False
    """Agents see what a new source brings at once, without a curator who enables it."""
    by: Actor | None = None
    """In whose name the history tells of it."""


@dataclass(kw_only=True, slots=True)
class Import:
    """What an import comes to."""

    source: str
    is_new: bool
    changes: dict[str, Change]
    """By the workflows' names."""
    settings: list[str]
    """The source's settings that change, by the file's names."""
    notes: list[str]
    run: DiscoveryRun | None = None
    """What changed the catalogue; None for a plan."""
    health: Health | None = None
    """Whether Temporal answers by the settings that the source gets; None: it was not asked."""

    def count(self, change: Change) -> int:
        return sum(one is change for one in self.changes.values())


def permission_to_import(source: str) -> str:
    """What a member of staff needs to import into the source of this name."""
    known = Source.objects.filter(name=source).exists()
    return f"catalogue.{'change' if known else 'add'}_source"


def plan_import(request: ImportRequest) -> Import:
    """What `import_file` would do now, and whether Temporal answers. Raises ImportRefused."""
    prepared = _prepare(request)
    prepared.outcome.health = check_candidate(prepared.candidate())
    return prepared.outcome


def import_file(request: ImportRequest) -> Import:
    """Create or update the source and its workflows. Raises ImportRefused, and changes nothing then.

    Temporal need not answer for it; whether it does is told.
    """
    with transaction.atomic():
        Revision.lock()
        prepared = _prepare(request)
        source = prepared.write()
        run = DiscoveryRun.objects.create(source=source, trigger=DiscoveryRun.Trigger.MANUAL)
        reconcile(source, prepared.listing, run, by_hand=True, by=request.by)
        if request.by is not None:
            counts = tell_counts(prepared.outcome.count) or "no workflows"
            record_change(request.by, [source], f"Imported a Temporal file: {counts}.")
        prepared.outcome.run = run.finish(outcome=DiscoveryRun.Outcome.SUCCEEDED)
        _take_cache(prepared.declared, apply=True)
    prepared.outcome.health = check_source(source)
    return prepared.outcome


@dataclass(kw_only=True, slots=True)
class _Prepared:
    """An import that nothing stands in the way of."""

    source: Source | None
    declared: Declared
    listing: Listing
    config: dict[str, Any]
    credentials: dict[str, str] = field(repr=False)
    policy: str
    outcome: Import

    def candidate(self) -> Source:
        """The source as it would be, which is not to be stored."""
        candidate = Source(name=self.outcome.source, kind=KIND, config=self.config)
        candidate.credentials = self.credentials
        return candidate

    def write(self) -> Source:
        if self.source is None:
            return create_source(
                name=self.outcome.source,
                kind=KIND,
                config=self.config,
                credentials=self.credentials,
                new_workflows=self.policy,
            )
        # Settings that stay as they are leave open connections and cached results alone.
        if self.config != self.source.config or self.credentials != _stored(self.source):
            configure_source(self.source, config=self.config, credentials=self.credentials)
        return self.source


def _prepare(request: ImportRequest) -> _Prepared:
    source = Source.objects.filter(name=request.source).first()
    if source is not None and source.kind != KIND:
        raise ImportRefused([f"Source {source.name} is of the kind {source.kind}, not {KIND}."])
    declared = _read(request, source)
    if source is None and declared.connection is None:
        raise ImportRefused(
            [f"There is no source {request.source} yet, and the file does not say where Temporal is "
             "(temporal.hostPort)."]
        )  # fmt: skip
    config = _config(request, source, declared)
    credentials = _credentials(request, source, declared, config)
    _check(Source(name=request.source, kind=KIND, config=config), credentials)
    listing = read_listing(read_declared(TemporalConfig.model_validate(config | credentials)).workflows)
    if listing.skipped:
        raise ImportRefused([f"{skipped['name']}: {skipped['reason']}." for skipped in listing.skipped])
    policy = _policy(request, source)
    outcome = Import(
        source=request.source,
        is_new=source is None,
        changes=_changes(source, listing, set(declared.entries)),
        settings=_changed_settings(source, config, credentials),
        notes=[*(f"{one['id']}: {one['reason']}" for one in listing.flagged), *_take_cache(declared)],
    )
    if outcome.count(Change.ADDED) and policy == Source.NewWorkflows.HIDDEN:
        outcome.notes.append(SEEN_LATER_AS_BEFORE if request.expose_new else SEEN_LATER)
    return _Prepared(
        source=source,
        declared=declared,
        listing=listing,
        config=config,
        credentials=credentials,
        policy=policy,
        outcome=outcome,
    )


def _policy(request: ImportRequest, source: Source | None) -> str:
    if source is not None:
        return source.new_workflows
    return Source.NewWorkflows.EXPOSED if request.expose_new else Source.NewWorkflows.HIDDEN


def _read(request: ImportRequest, source: Source | None) -> Declared:
    queue = source.config.get("default_task_queue", "") if source else ""
    try:
        return read_definitions(request.content, default_task_queue=queue)
    except UnusableText as error:
        raise ImportRefused(error.reasons) from None


def _config(request: ImportRequest, source: Source | None, declared: Declared) -> dict[str, Any]:
    """The file's word on the connection is the whole word on it; other settings of the source stay."""
    replaced = {*OWN_SETTINGS, *(PLACES if declared.connection else ())}
    config = {
        name: value for name, value in (source.config if source else {}).items() if name not in replaced
    }
    if declared.connection is not None:
        config |= declared.connection.settings
    earlier = {} if request.prune or source is None else _entries_of(source)
    if not request.path:
        return config | {"definitions": write_definitions(earlier | declared.entries)}
    if lost := sorted(earlier.keys() - declared.entries.keys()):
        raise ImportRefused(
            [f"The source has workflows that the file has not ({', '.join(lost)}). A file that is read "
             "by its path decides alone: put them into it, or prune them."]
        )  # fmt: skip
    return config | {"definitions_file": request.path}


def _entries_of(source: Source) -> dict[str, dict[str, Any]]:
    """What it has from earlier files."""
    known = {
        name: source.config[name] for name in (*OWN_SETTINGS, "default_task_queue") if name in source.config
    }
    try:
        settings = TemporalConfig.model_validate({"host_port": "localhost"} | known)
        return read_declared(settings).entries
    except (Misconfigured, ValueError):
        raise ImportRefused(
            [f"What source {source.name} declares at present cannot be read, so that nothing can be added to "
             "it. Pruning replaces it."]
        ) from None  # fmt: skip


def _credentials(
    request: ImportRequest, source: Source | None, declared: Declared, config: dict[str, Any]
) -> dict[str, str]:
    given = {setting_named(name): value for name, value in request.secrets.items()}
    if unknown := sorted(given.keys() - set(secret_fields(KIND))):
        known = ", ".join(name_in_file(name).rpartition(".")[2] for name in secret_fields(KIND))
        raise ImportRefused([f"Unknown secrets: {', '.join(unknown)}; there are {known}."])
    given = (declared.connection.secrets if declared.connection else {}) | given
    stored = _stored(source) if source else {}
    if source is not None and stored.keys() - given.keys():
        try:
            check_address_is_kept(source, config)
        except ValidationError as error:
            raise ImportRefused(error.messages) from None
    return stored | given


def _stored(source: Source) -> dict[str, str]:
    try:
        return source.credentials
    except CredentialsUnreadable:
        return {}


def _check(candidate: Source, credentials: dict[str, str]) -> None:
    candidate.credentials = credentials
    try:
        candidate.clean_fields(exclude=["encrypted_credentials"])
        check_settings(candidate)
    except ValidationError as error:
        raise ImportRefused(error.messages) from None


def _changes(source: Source | None, listing: Listing, declared: set[str]) -> dict[str, Change]:
    foreseen = foresee_changes(source, listing)
    kept = listing.layers.keys() - declared
    return {name: Change.KEPT if name in kept else change for name, change in foreseen.items()}


def _changed_settings(
    source: Source | None, config: dict[str, Any], credentials: dict[str, str]
) -> list[str]:
    if source is None:
        return []
    stored = _stored(source)
    changed = [name for name in PLACES if config.get(name) != source.config.get(name)]
    changed += [name for name in credentials if credentials[name] != stored.get(name)]
    return [name_in_file(name) for name in changed]


def _take_cache(declared: Declared, *, apply: bool = False) -> list[str]:
    block: CacheBlock | None = declared.cache
    return [] if block is None else [note for take in cache_takers for note in take(block, apply=apply)]
