"""Making the catalogue match a configuration file, in one transaction and one revision. A plan runs the same
code and rolls back. The file describes each object as a whole: omitted fields get their defaults. Objects and
sections that are not in the file stay, unless they are pruned."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any

from django.contrib.auth.models import Group, Permission
from django.core.exceptions import ValidationError
from django.db import models, transaction
from django.db.models import CharField, ProtectedError, Value
from django.db.models.functions import Cast, Concat
from django.utils import timezone
from pydantic import ValidationError as PydanticError

from access.models import Role
from catalogue.actions.features import change_feature
from catalogue.actions.reviews import note_layer, note_state
from catalogue.actions.sources import change_source, check_address_is_kept, create_source
from catalogue.actions.toolsets import POSITIONS_APART, write_toolset
from catalogue.actions.workflows import (
    MAX_FORMER_NAMES,
    UnknownWorkflows,
    disable_workflows,
    enable_workflows,
)
from catalogue.configuration import (
    DEFINITION,
    FEATURE,
    FILTER,
    LISTED,
    LISTED_BESIDES,
    MISSING,
    ROWS,
    RULE_FIELDS,
    SOURCE,
    TOOLSET,
    TOOLSET_RULE,
    WORKFLOW,
    CatalogueFile,
    Curated,
    describe_curation,
    describe_feature,
    describe_rule,
    describe_source,
    describe_toolset,
    name_in_file,
    permissions_of,
    row_of,
)
from catalogue.connections import secret_fields
from catalogue.database import in_batches
from catalogue.drift import warning_of
from catalogue.features import is_enabled_when_new, words_of
from catalogue.history import (
    Actor,
    cut_to_difference,
    record_changes,
    record_deletion,
    remember_relations,
    set_fields,
)
from catalogue.http_tools import KIND as DECLARED_HERE
from catalogue.imports.pipeline import stored_secrets
from catalogue.models import Review, Revision, ServerFeature, Source, Toolset, Workflow, WorkflowFilter
from catalogue.models.workflow import describe_alias
from catalogue.naming import counted, make_tool_name
from catalogue.product_settings import InvalidSettings, change_settings, live_settings, settings_row
from catalogue.reconciliation import read_listing
from connectors.definitions import FeatureDefinition, explain, parse_definition
from connectors.errors import Misconfigured
from connectors.formats.yaml import Path

SHOWN_VALUE = 160
SHOWN_CHANGES = 12  # Per object in the history


class Verb(StrEnum):
    ADD = "add"
    CHANGE = "change"
    REMOVE = "remove"


SIGNS = {Verb.ADD: "+", Verb.CHANGE: "~", Verb.REMOVE: "-"}
DONE = {Verb.ADD: "added", Verb.CHANGE: "changed", Verb.REMOVE: "removed"}


@dataclass(frozen=True, slots=True)
class FieldChange:
    name: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.name}: {self.old} -> {self.new}"


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedChange:
    verb: Verb
    kind: str
    name: str
    fields: tuple[FieldChange, ...] = ()

    def __str__(self) -> str:
        lines = [f"{SIGNS[self.verb]} {self.kind} {self.name}", *(f"    {one}" for one in self.fields)]
        return "\n".join(lines)

    @property
    def summary(self) -> str:
        shown = "; ".join(map(str, self.fields[:SHOWN_CHANGES]))
        more = len(self.fields) - SHOWN_CHANGES
        return shown + (f"; and {more} more" if more > 0 else "")


@dataclass(slots=True)
class Plan:
    changes: list[PlannedChange] = field(default_factory=list)
    is_done: bool = False

    def __bool__(self) -> bool:
        return bool(self.changes)

    def __str__(self) -> str:
        return "\n".join([*map(str, self.changes), self.counts])

    @property
    def counts(self) -> str:
        """`2 sources to add, 1 workflow to change.`; after the import `added` and `changed`."""
        if not self.changes:
            return "Nothing differs."
        parts = []
        for (kind, verb), number in Counter((change.kind, change.verb) for change in self.changes).items():
            what = kind if kind.endswith("s") else counted(number, kind)
            parts.append(f"{what} {DONE[verb] if self.is_done else f'to {verb}'}")
        return ", ".join(parts) + "."

    @property
    def digest(self) -> str:
        return hashlib.sha256("\n".join(map(str, self.changes)).encode()).hexdigest()


def compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[FieldChange, ...]:
    """Returns the changed keys; a value missing on one side is `-`."""
    names = [*new, *(name for name in old if name not in new)]
    return tuple(
        FieldChange(name, *cut_to_difference(_text(old, name), _text(new, name), shown=SHOWN_VALUE))
        for name in names
        if name not in old or name not in new or old[name] != new[name]
    )


def _text(values: Mapping[str, Any], name: str) -> str:
    return json.dumps(values[name], ensure_ascii=False) if name in values else "-"


BATCH = 200
KNOWN = ("enabled", "former_tool_names", *WORKFLOW.names)
NOT_LISTED = (
    "its source has not listed this workflow yet: refresh the source first, or import a file whose section "
    "`listed` has it"
)
DECIDED = (*WORKFLOW.fields, "former_tool_names")
DECLARED = (*LISTED.values(), *LISTED_BESIDES, "warning", "missing_since", "changed_at", "content_hash")
UNCHECKED = ["source", "former_tool_names", *DECLARED]  # Columns that are validated elsewhere
LISTED_PREFIX = "listed "
Layer = Mapping[str, Any]  # The engine's fields of a workflow, by the model's names


@dataclass(slots=True)
class Workflows:
    """The rows to write, of all sources together, because tool names are unique across them."""

    file: CatalogueFile
    prune: bool
    added: list[Workflow] = field(default_factory=list)
    changed: dict[Workflow, tuple[FieldChange, ...]] = field(default_factory=dict)
    removed: list[Workflow] = field(default_factory=list)
    accepted: list[Workflow] = field(default_factory=list)  # Their held change is accepted in the file
    is_declared: bool = False  # Some workflows are declared here, so their listed fields are written too

    def path_of(self, row: Workflow) -> Path:
        path = (row.source.name, row.upstream_id)
        return ("workflows", *path) if self.file.has("workflows", *path) else ("listed", *path)

    def read(self, source: Source) -> None:
        curated = self.file.mapping(("workflows", source.name))
        listed = self.file.mapping(("listed", source.name))
        present = {row.upstream_id: row for row in source.workflows.select_related("source")}
        declared = source.kind == DECLARED_HERE
        self.is_declared |= declared
        held = Review.objects.changes().filter(workflow__source=source)
        read = held.select_related("workflow").only("kind", "offer_hash", "kept_at", "workflow__upstream_id")
        offers = {review.workflow.upstream_id: review for review in read}
        wanted = [one for one in listed if declared or one not in present or one in offers]
        layers = self._read_layers(source, wanted)
        for upstream_id in dict.fromkeys([*curated, *wanted]):
            row, layer = present.get(upstream_id), layers.get(upstream_id)
            if row is not None and layer is not None and not declared:
                # A change accepted elsewhere is accepted here if the engine offers the same.
                layer = self._accept(row, layer, offers[upstream_id])
            if row is not None:
                self._change(row, layer)
            elif layer is not None:
                self._add(source, layer)
            elif upstream_id not in wanted:
                self.file.refuse(("workflows", source.name, upstream_id), NOT_LISTED)
        if declared and self.prune and self.file.has("listed", source.name):
            gone = (row for one, row in present.items() if one not in listed and row.missing_since is None)
            self.removed.extend(gone)

    def find_names(self) -> None:
        """Name unnamed rows, and refuse names that are taken or still serve as an alias."""
        touched, changed = [*self.changed, *self.added], {row.pk for row in self.changed}
        known = Workflow.objects.select_related("source").order_by()
        columns = ("tool_name", "upstream_id", "tool_aliases", "source__name")
        others = [row for row in known.only(*columns) if row.pk not in changed]
        taken = {row.tool_name: row for row in others}
        aliases = {
            name: (row, until) for row in (*others, *touched) for name, until in row.live_aliases.items()
        }
        counts = Counter(row.tool_name for row in touched if row.tool_name)
        for row in touched:
            if row.tool_name and (row.tool_name in taken or counts[row.tool_name] > 1):
                by = taken.get(row.tool_name)
                holder = (
                    f"workflow {by.upstream_id} of {by.source.name}" if by else "another workflow of the file"
                )
                message = f"the tool name {row.tool_name} belongs to {holder}"
                self.file.refuse(self.path_of(row), f"{message}: rename one of them, here or in the file")
            elif row.tool_name in aliases and (alias := aliases[row.tool_name])[0] is not row:
                message = describe_alias(alias[0].tool_name, alias[1])
                self.file.refuse(self.path_of(row), f"{row.tool_name}: {message}")
        names = {*taken, *counts, *aliases}
        for row in self.added:
            if not row.tool_name:
                row.tool_name = make_tool_name(
                    name=row.name, upstream_id=row.upstream_id, source_name=row.source.name, taken=names
                )
                names.add(row.tool_name)

    def write(self) -> None:
        Workflow.objects.bulk_create(self.added, batch_size=BATCH)
        names = {name for fields in self.changed.values() for name in (one.name for one in fields)}
        renamed = [row.pk for row, fields in self.changed.items() if fields[0].name == "tool_name"]
        for keys in in_batches(renamed, BATCH):
            # Unique names can be swapped only by way of names that no tool can have.
            Workflow.objects.filter(pk__in=keys).update(tool_name=Concat(Value("~"), Cast("pk", CharField())))
        if self.changed:
            decided = [column for column in DECIDED if name_in_file(column) in names]
            columns = [*decided, *(DECLARED if self.is_declared or self.accepted else ())]
            if columns:
                Workflow.objects.bulk_update(self.changed, columns, batch_size=BATCH)
        for batch in in_batches(self.accepted, BATCH):
            Review.objects.changes().filter(workflow__in=batch).delete()
        switched = [
            row for row, fields in self.changed.items() if any(one.name == "enabled" for one in fields)
        ]
        for rows in in_batches(switched, BATCH):
            enable_workflows(Workflow.objects.filter(pk__in=[row.pk for row in rows if row.enabled]))
            disable_workflows(Workflow.objects.filter(pk__in=[row.pk for row in rows if not row.enabled]))
        gone = [row.pk for row in self.removed]
        Workflow.objects.filter(pk__in=gone).update(missing_since=timezone.now())

    def _accept(self, row: Workflow, layer: Layer, review: Review) -> Layer | None:
        if layer["content_hash"] != review.offer_hash:
            return None
        review.workflow = row
        note_layer(row, layer)
        note_state(review, None)
        self.accepted.append(row)
        return {**layer, MISSING: row.missing_since is not None}

    def _add(self, source: Source, layer: Layer) -> None:
        enabled = source.new_workflows == Source.NewWorkflows.EXPOSED
        row = Workflow(source=source, enabled=enabled)
        _take_layer(row, layer)
        if self._decide(row):
            self.added.append(row)

    def _change(self, row: Workflow, layer: Layer | None) -> None:
        before = _described(row, layer)
        if layer is not None:
            _take_layer(row, layer)
        if self._decide(row) and (fields := compare(before, _described(row, layer))):
            self.changed[row] = fields

    def _decide(self, row: Workflow) -> bool:
        """Apply the curator's fields of the file. Returns whether none is refused."""
        path: Path = ("workflows", row.source.name, row.upstream_id)
        problems, given, name = len(self.file.problems), self.file.mapping(path, known=KNOWN), row.tool_name
        for field_name, value in self.file.fields(path, WORKFLOW, given).items():
            if field_name != "tool_name" or "tool_name" in given:
                setattr(row, field_name, value)
        if isinstance(enabled := given.get("enabled", row.enabled), bool):
            row.enabled = enabled
        else:
            self.file.refuse((*path, "enabled"), "must be true or false")
        row.former_tool_names = _join_names(row, name, self.file.items((*path, "former_tool_names"), str))
        try:
            row.clean_fields(exclude=UNCHECKED if row.tool_name else [*UNCHECKED, "tool_name"])
        except ValidationError as error:
            self.file.refuse_all(path, error)
        for column, problem in row.find_own_problems().items():
            field_name = name_in_file(column)
            self.file.refuse((*path, field_name) if self.file.has(*path, field_name) else path, problem)
        return len(self.file.problems) == problems

    def _read_layers(self, source: Source, wanted: list[str]) -> dict[str, Layer]:
        """Reads the listed fields of the file, and checks them like an engine's listing."""
        definitions, besides = [], {}
        for position, upstream_id in enumerate(wanted):
            path: Path = ("listed", source.name, upstream_id)
            given = self.file.mapping(path, known=(*LISTED, *LISTED_BESIDES, MISSING))
            said = {name: given[name] for name in LISTED if name in given}
            definitions.append(parse_definition({"id": upstream_id} | said, position=position))
            found = {name: given[name] for name in LISTED_BESIDES if isinstance(given.get(name), str)}
            besides[upstream_id] = found | {MISSING: given.get(MISSING) is True}
        listing = read_listing(definitions)
        for skipped in listing.skipped:
            self.file.refuse(("listed", source.name, wanted[skipped["position"]]), skipped["reason"])
        return {one: layer | besides.get(one, {MISSING: False}) for one, layer in listing.layers.items()}


def label_of(row: Workflow) -> str:
    return f"{row.source.name}/{row.upstream_id} ({row.tool_name})"


def _described(row: Workflow, layer: Layer | None) -> dict[str, Any]:
    """Describes it as the file does, with the listed fields of a declared workflow."""
    described = describe_curation(row)
    if layer is None:
        return described
    described |= {f"{LISTED_PREFIX}{name}": getattr(row, column) for name, column in LISTED.items()}
    return described | {f"{LISTED_PREFIX}{MISSING}": row.missing_since is not None}


def _take_layer(row: Workflow, layer: Layer) -> None:
    now = timezone.now()
    if row.content_hash != layer["content_hash"]:
        row.changed_at = now
    for name, value in layer.items():
        if name != MISSING:
            setattr(row, name, value)
    row.warning = warning_of(layer)
    row.missing_since = (row.missing_since or now) if layer[MISSING] else None


def _join_names(row: Workflow, name: str, of_file: list[str]) -> list[str]:
    """Returns former names here and in the file, unchanged unless the file adds one."""
    known: list[str] = row.former_tool_names
    names = dict.fromkeys([*([name] if name else []), *of_file, *known])
    joined = [one for one in names if one != row.tool_name][:MAX_FORMER_NAMES]
    return known if set(joined) == set(known) else joined


VERBS = {Verb.ADD: "add", Verb.CHANGE: "change", Verb.REMOVE: "delete"}
CHANGE_SOURCE = "catalogue.change_source"
GROUPS_REFUSED = (
    "only superusers in the admin and manage.py import_catalogue can change groups; omit the section"
)
Rights = Callable[[str], bool]  # Whether the actor has a permission such as `catalogue.change_source`


@dataclass(frozen=True, kw_only=True, slots=True)
class CatalogueImportRequest:
    file: CatalogueFile  # Parsed again for each import, which consumes it
    secrets: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    """By source and setting; others stay as stored."""
    prune: bool = False  # Remove objects that the file's sections do not have
    sources_only: bool = False  # Settings and sources, to list these first; new workflows stay hidden
    secret_hint: Callable[[str, str], str] = lambda source, secret: "give it with the file"
    """How to give a missing secret, for the error message."""
    by: Actor
    rights: Rights | None = None  # None allows everything
    dry_run: bool = False
    expected: str = ""  # Digest of the plan that the user confirmed; any other plan raises PlanChanged


def rights_of(user: Any | None) -> Rights:
    """Groups grant permissions, so only superusers may change them. None is the bearer of a token: users who
    may not change groups can grant the scope `catalogue:admin`."""
    if user is None:
        return lambda name: not name.startswith("auth.")
    return lambda name: user.is_superuser or (not name.startswith("auth.") and user.has_perm(name))


def import_catalogue(request: CatalogueImportRequest) -> Plan:
    """Import everything or nothing. Raises ImportRefused and PlanChanged."""
    return _Import(request).carry_out()


class PlanChanged(Exception):
    """The plan differs from the one that the user confirmed."""


class _Import:
    def __init__(self, request: CatalogueImportRequest) -> None:
        self._request = request
        self._by = request.by
        self._file = request.file
        self._plan = Plan()
        self._histories: list[tuple[models.Model, str]] = []

    def carry_out(self) -> Plan:
        expected, dry_run = self._request.expected, self._request.dry_run
        with transaction.atomic():
            Revision.lock()
            before = Revision.current()
            self._write()
            record_changes(self._by, self._histories)
            if self._plan:
                # Each saved row has raised it.
                Revision.objects.filter(pk=1).update(number=before + 1)
            superseded = bool(expected) and expected != self._plan.digest
            if dry_run or superseded or self._file.problems:
                transaction.set_rollback(True)
        self._file.raise_problems()
        if superseded:
            raise PlanChanged
        self._plan.is_done = not dry_run
        return self._plan

    def _write(self) -> None:
        sections: dict[str, Callable[[], None]] = {
            "settings": self._write_settings,
            "groups": self._write_groups,
            "sources": self._write_sources,
            "workflows": self._write_workflows,
            "features": self._write_features,
            "filters": self._write_filters,
            "toolsets": self._write_toolsets,
            **{name: partial(self._write_row, name, curated) for name, curated in ROWS.items()},
        }
        for section, write in sections.items():
            if self._request.sources_only and section not in ("settings", "sources"):
                continue
            if self._file.has(section) or (section == "workflows" and self._file.has("listed")):
                write()

    def _write_entries(
        self, section: str, present: Mapping[str, Any], write: Callable[[Path, str, Any], None]
    ) -> None:
        """Write each entry of the section, with its row or None, and prune the other rows."""
        wanted = self._file.mapping((section,))
        for name in wanted:
            write((section, name), name, present.get(name))
        for name, row in present.items():
            if self._request.prune and name not in wanted:
                try:
                    with transaction.atomic():
                        self._note(section.removesuffix("s"), row, (section,), after=None)
                        row.delete()
                except ProtectedError:
                    message = f"tokens are bound to {row}: delete it by hand, or keep it in the file"
                    self._file.refuse((section,), message)

    def _note(
        self,
        kind: str,
        row: models.Model,
        path: Path,
        before: Mapping[str, Any] | None = None,
        after: Mapping[str, Any] | None = None,
        *,
        name: str = "",
        permission: str = "",
        fields: Iterable[FieldChange] = (),
    ) -> None:
        """Add what differs, and `fields`, to the plan and the history, and refuse it without the permission.
        Without `before` the row is new, and without `after` it is removed."""
        differing = (*compare(before or {}, after or {}), *fields) if after is not None else ()
        verb = Verb.REMOVE if after is None else Verb.ADD if before is None else Verb.CHANGE
        if verb is Verb.CHANGE and not differing:
            return
        change = PlannedChange(verb=verb, kind=kind, name=name or str(row), fields=differing)
        self._plan.changes.append(change)
        message = f"Import: {change.summary or ('deleted' if verb is Verb.REMOVE else 'added')}."
        if verb is Verb.REMOVE and not isinstance(row, Workflow):
            # Needs the row to exist; a workflow only leaves the list.
            record_deletion(self._by, [row], message)
        else:
            self._histories.append((row, message))
        permission = permission or f"{row._meta.app_label}.{VERBS[verb]}_{row._meta.model_name}"
        if self._request.rights is not None and not self._request.rights(permission):
            message = f"this needs the permission {permission}; an administrator can grant it"
            self._file.refuse(path, GROUPS_REFUSED if permission.startswith("auth.") else message)

    # Settings.

    def _write_settings(self) -> None:
        known = live_settings()
        wanted = self._file.mapping(("settings",), known=known)
        row = settings_row()
        before = {name: value for name, value in row.overrides.items() if name in known}
        changes = {name: value for name, value in wanted.items() if before.get(name) != value}
        if self._request.prune:
            changes |= {name: None for name in before if name not in wanted}
        if not changes:
            return
        try:
            change_settings(changes, by=self._by.name)
        except InvalidSettings as error:
            for name, problem in error.problems.items():
                self._file.refuse(("settings", name), problem)
            return
        after = {name: value for name, value in {**before, **changes}.items() if value is not None}
        self._note("settings", row, ("settings",), before, after, name="of the product")

    def _write_row(self, section: str, curated: Curated) -> None:
        path, row = (section,), row_of(curated.model)
        before = curated.decided(row)
        given = self._file.mapping(path, known=curated.names)
        set_fields(row, self._file.fields(path, curated, given), allowed=curated.fields)
        after = curated.decided(row)
        if self._is_allowed(path, row.full_clean) and after != before:
            row.save()
            self._note(section, row, path, before, after, name="of the product")

    # Groups.

    def _write_groups(self) -> None:
        for role in Role.objects.filter(group__name__in=[*self._file.mapping(("groups",))]):
            self._file.refuse(("groups", role.group.name), "is a role, which the product manages: omit it")
        known = permissions_of(Permission.objects.select_related("content_type"))
        own = Group.objects.filter(role=None).prefetch_related("permissions__content_type")
        self._write_entries("groups", {one.name: one for one in own}, partial(self._write_group, known))

    def _write_group(
        self, known: Mapping[str, Permission], path: Path, name: str, present: Group | None
    ) -> None:
        names = self._file.items(path, str)
        for index, one in enumerate(names):
            if one not in known:
                self._file.refuse_unknown((*path, index), f"there is no permission {one}", one, known)
        wanted = sorted({one for one in names if one in known})
        before = sorted(permissions_of(present.permissions.all())) if present else []
        group = present or Group(name=name)
        if (present is None or before != wanted) and self._is_allowed(path, group.full_clean):
            group.save()
            group.permissions.set([known[one] for one in wanted])
            fields = compare({"permissions": before}, {"permissions": wanted})
            self._note("group", group, path, {} if present else None, {}, fields=fields)

    # Sources.

    def _write_sources(self) -> None:
        present = {source.name: source for source in Source.objects.order_by("name")}
        self._write_entries("sources", present, self._write_source)
        for name in self._request.secrets.keys() - self._file.mapping(("sources",)).keys():
            self._file.refuse(("sources",), f"secrets are given for {name}, which is not in the file")

    def _write_source(self, path: Path, name: str, source: Source | None) -> None:
        given = self._file.mapping(path, known=("kind", "config", "secrets", *SOURCE.names))
        kind, config = given.get("kind"), given.get("config") or {}
        if not isinstance(kind, str) or not isinstance(config, dict):
            self._file.refuse(path, "must have a `kind`, such as simplified, and a mapping as `config`")
            return
        if source is not None and source.kind != kind:
            message = (
                f"is of the kind {source.kind} here, which cannot be changed: delete it first, or rename one"
            )
            self._file.refuse(path, message)
            return
        values = self._file.fields(path, SOURCE, given)
        if (credentials := self._credentials(path, kind, source)) is None:
            return
        if source is not None:
            self._change_source(path, source, config, credentials, values)
            return
        if self._request.sources_only:
            values["new_workflows"] = Source.NewWorkflows.HIDDEN
        try:
            source = create_source(name=name, kind=kind, config=config, credentials=credentials, **values)
        except ValidationError as error:
            self._file.refuse_all(path, error)
        else:
            self._note("source", source, path, None, describe_source(source))

    def _credentials(self, path: Path, kind: str, source: Source | None) -> dict[str, str] | None:
        """Returns None if they are refused."""
        try:
            known = secret_fields(kind)
        except Misconfigured as error:
            self._file.refuse((*path, "kind"), error.message)
            return None
        stored, given = stored_secrets(source), dict(self._request.secrets.get(str(path[1]), {}))
        named = self._file.items((*path, "secrets"), str)
        if not self._file.has(*path, "secrets"):
            named = sorted({*stored, *given})
        if unknown := sorted({*named, *given} - set(known)):
            message = f"unknown secrets: {', '.join(unknown)}; possible ones are {', '.join(known) or 'none'}"
            self._file.refuse(path, message)
            return None
        if missing := [one for one in named if one not in given and one not in stored]:
            self._refuse_secrets(path, missing, "is not stored here")
            return None
        return {one: given.get(one) or stored[one] for one in named}

    def _refuse_secrets(self, path: Path, names: Iterable[str], why: str) -> None:
        for name in names:
            where = self._request.secret_hint(str(path[1]), name)
            self._file.refuse(path, f"the secret {name} {why}: {where}")

    def _change_source(
        self,
        path: Path,
        source: Source,
        config: dict[str, Any],
        credentials: dict[str, str],
        values: dict[str, Any],
    ) -> None:
        stored, before = stored_secrets(source), describe_source(source)
        if self._request.sources_only:
            del values["new_workflows"]
        changed = {name: value for name, value in values.items() if getattr(source, name) != value}
        given = self._request.secrets.get(source.name, {})
        try:
            if not self._may_keep_secrets(path, source, config, sorted(credentials.keys() - given.keys())):
                return
            if config != source.config or credentials != stored:
                changed |= {"config": config, "credentials": credentials}
            change_source(source, **changed)
        except Misconfigured as error:
            self._file.refuse(path, error.message)
        except ValidationError as error:
            self._file.refuse_all(path, error)
        else:
            # Secret values never appear.
            entered = [name for name in sorted(given) if given[name] != stored.get(name)]
            fields = compare(dict.fromkeys(entered, "as before"), dict.fromkeys(entered, "as given"))
            self._note("source", source, path, before, describe_source(source), fields=fields)

    def _may_keep_secrets(self, path: Path, source: Source, config: dict[str, Any], kept: list[str]) -> bool:
        """Raises Misconfigured."""
        try:
            if kept and config != source.config:
                check_address_is_kept(source, config)
        except ValidationError:
            self._refuse_secrets(path, kept, "does not follow the source to another address")
            return False
        return True

    # Workflows.

    def _write_workflows(self) -> None:
        sources = {source.name: source for source in Source.objects.all()}
        named = {
            name: (section, name)
            for section in ("listed", "workflows")
            for name in self._file.mapping((section,))
        }
        rows = Workflows(self._file, prune=self._request.prune)
        for name in sorted(named):
            if name in sources:
                rows.read(sources[name])
            elif not self._file.problems:
                self._file.refuse_unknown(named[name], "there is no such source", name, sources)
        if not self._file.problems:
            rows.find_names()
        if not self._file.problems:
            rows.write()
            self._note_workflows(rows)

    def _note_workflows(self, rows: Workflows) -> None:
        """Listed fields and declared workflows need the permission to change sources."""
        for row in rows.added:
            described, name = describe_curation(row), label_of(row)
            self._note(
                *("workflow", row, rows.path_of(row), None, described), name=name, permission=CHANGE_SOURCE
            )
        for row, fields in rows.changed.items():
            declared = any(one.name.startswith(LISTED_PREFIX) for one in fields)
            permission = CHANGE_SOURCE if declared else ""
            path, name = rows.path_of(row), label_of(row)
            self._note("workflow", row, path, {}, {}, name=name, permission=permission, fields=fields)
        for row in rows.removed:
            path, name = ("listed", row.source.name), label_of(row)
            self._note("workflow", row, path, name=name, permission=CHANGE_SOURCE)

    # Prompts and resources.

    def _write_features(self) -> None:
        rows = ServerFeature.objects.select_related("source").order_by("source__name", "kind", "upstream_id")
        present = {(row.source.name, row.kind, row.upstream_id): row for row in rows}
        for source in self._file.mapping(("features",)):
            for kind in self._file.mapping(("features", source), known=ServerFeature.Kind.values):
                for identifier in self._file.mapping(("features", source, kind)):
                    feature = present.pop((source, kind, identifier), None)
                    self._write_feature(("features", source, kind, identifier), feature)
        for feature in present.values():
            if self._request.prune and describe_feature(feature):
                enabled = is_enabled_when_new(feature.source, feature.definition)
                undecided = FEATURE.defaults | {"enabled": enabled}
                self._change_feature(("features",), feature, undecided)

    def _write_feature(self, path: Path, feature: ServerFeature | None) -> None:
        """Create unknown features from the file; for others only the decisions count."""
        given = self._file.mapping(path, known=(*FEATURE.names, DEFINITION))
        values = self._file.fields(path, FEATURE, given)
        if feature is not None:
            self._change_feature(path, feature, values)
        elif DEFINITION in given:
            self._add_feature(path, given[DEFINITION], values)
        else:
            message = "its server has not listed it here: refresh the source first, or give its `definition`"
            self._file.refuse(path, message)

    def _add_feature(self, path: Path, definition: Any, values: dict[str, Any]) -> None:
        # The modules for MCP take long to load.
        from connectors.upstream_mcp.connector import problem_of

        _, name, kind, identifier = map(str, path)
        if (source := Source.objects.filter(name=name).first()) is None:
            self._file.refuse(path, f"there is no source {name}")
            return
        try:
            checked = FeatureDefinition.model_validate({**definition, "kind": kind, "id": identifier})
        except (TypeError, PydanticError) as error:
            reason = explain(error) if isinstance(error, PydanticError) else "must be a mapping"
            self._file.refuse((*path, DEFINITION), reason)
            return
        if problem := problem_of(checked):
            self._file.refuse(path, problem)
            return
        feature = ServerFeature(source=source, kind=kind, upstream_id=identifier, **values)
        feature.definition = words_of(checked)
        feature.served_as = feature.served_as or identifier
        if self._is_allowed(path, feature.full_clean):
            feature.save()
            label, kind = f"{identifier} of {name}", feature.get_kind_display()
            decided = FEATURE.decided(feature)
            self._note(kind, feature, path, None, decided, name=label, permission=CHANGE_SOURCE)

    def _change_feature(self, path: Path, feature: ServerFeature, values: dict[str, Any]) -> None:
        # Otherwise it keeps the name or address that was made here.
        values["served_as"] = values["served_as"] or feature.served_as
        before = FEATURE.decided(feature)
        changed = {name: value for name, value in values.items() if getattr(feature, name) != value}
        if changed and self._is_allowed(path, partial(change_feature, feature, **changed)):
            kind, name = feature.get_kind_display(), f"{feature.upstream_id} of {feature.source.name}"
            self._note(kind, feature, path, before, FEATURE.decided(feature), name=name)

    # Filters.

    def _write_filters(self) -> None:
        """Write them in the file's order; other filters follow."""
        wanted = self._read_rules(("filters",), FILTER)
        if wanted is None:
            return
        left = list(WorkflowFilter.objects.all())
        known, ordered = {rule.pk for rule in left}, list[WorkflowFilter]()
        for index, values in enumerate(wanted):
            rule, before = WorkflowFilter(**values, position=(index + 1) * POSITIONS_APART), None
            if present := next((one for one in left if _rule_key(one) == _rule_key(rule)), None):
                left.remove(present)
                before = describe_rule(FILTER, present)
                present.enabled, present.note = rule.enabled, rule.note
                rule = present
            after = describe_rule(FILTER, rule)
            if before != after:
                rule.save()
            self._note("filter", rule, ("filters", index), before, after)
            ordered.append(rule)
        for rule in left:
            if self._request.prune:
                self._note("filter", rule, ("filters",))
                rule.delete()
            else:
                ordered.append(rule)
        self._move_filters(ordered, added={rule.pk for rule in ordered} - known)

    def _move_filters(self, ordered: list[WorkflowFilter], *, added: set[int]) -> None:
        """Write positions only if the order changes."""
        in_place = sorted(ordered, key=lambda rule: (rule.position, rule.pk))
        if in_place == ordered:
            return
        places = {rule.pk: place for place, rule in enumerate(in_place, start=1)}
        for number, rule in enumerate(ordered, start=1):
            rule.position = number * POSITIONS_APART
            rule.save(update_fields=["position"])
            if rule.pk not in added:
                self._note("filter", rule, ("filters",), {"place": places[rule.pk]}, {"place": number})

    def _read_rules(self, path: Path, curated: Curated) -> list[dict[str, Any]] | None:
        """Returns None if some are refused."""
        known, wanted = len(self._file.problems), []
        for index, _ in enumerate(self._file.items(path, dict)):
            place = (*path, index)
            given = self._file.mapping(place, known=RULE_FIELDS)
            values = self._file.fields(place, curated, given)
            rule: Any = curated.model(**values)
            self._is_allowed(place, partial(rule.clean_fields, exclude=["position", "toolset"]))
            wanted.append(values)
        return None if len(self._file.problems) > known else wanted

    # Toolsets.

    def _write_toolsets(self) -> None:
        present = Toolset.objects.prefetch_related("rules", "picked")
        self._write_entries("toolsets", {one.slug: one for one in present}, self._write_toolset)

    def _write_toolset(self, path: Path, slug: str, toolset: Toolset | None) -> None:
        given = self._file.mapping(path, known=(*TOOLSET.names, "rules", "picked"))
        values = self._file.fields(path, TOOLSET, given)
        rules = self._read_rules((*path, "rules"), TOOLSET_RULE)
        picked = sorted(set(self._file.items((*path, "picked"), str)))
        if rules is None:
            return
        before = None if toolset is None else describe_toolset(toolset)
        described = [describe_rule(TOOLSET_RULE, TOOLSET_RULE.model(**rule)) for rule in rules]
        wanted = TOOLSET.decided(Toolset(slug=slug, **values))
        wanted |= ({"rules": described} if described else {}) | ({"picked": picked} if picked else {})
        if before == wanted:
            return
        if toolset is not None:
            remember_relations(toolset)
        try:
            written = write_toolset(toolset or Toolset(slug=slug), picked=picked, rules=rules, **values)
        except UnknownWorkflows as unknown:
            self._refuse_picks((*path, "picked"), given["picked"], unknown.names)
        except ValidationError as error:
            self._file.refuse_all(path, error)
        else:
            self._note("toolset", written, path, before, wanted)

    def _refuse_picks(self, path: Path, picked: list[str], unknown: Iterable[str]) -> None:
        """Except for workflows of the file that are missing because of a reported mistake."""
        sources = self._file.at(("workflows",)) if self._file.problems else None
        given = sources.values() if isinstance(sources, dict) else ()
        rows = [row for one in given if isinstance(one, dict) for row in one.values()]
        unwritten = [row.get("tool_name") for row in rows if isinstance(row, dict)]
        known = list(Workflow.objects.only("tool_name", "former_tool_names"))
        renamed = {former: row.tool_name for row in known for former in row.former_tool_names}
        for name in (one for one in unknown if one not in unwritten):
            place = (*path, picked.index(name))
            if name in renamed:
                self._file.refuse(place, f"the workflow {name} is called {renamed[name]} now")
            else:
                names = [row.tool_name for row in known]
                self._file.refuse_unknown(place, f"there is no workflow {name}", name, names)

    def _is_allowed(self, path: Path, check: Callable[[], Any]) -> bool:
        try:
            check()
        except ValidationError as error:
            self._file.refuse_all(path, error)
            return False
        return True


def _rule_key(rule: Any) -> tuple[Any, ...]:
    return rule.action, rule.subject, rule.syntax, rule.pattern
