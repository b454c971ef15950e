"""The file's workflows beside those that there are: which to add and change, and under which names."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from django.core.exceptions import ValidationError
from django.db.models import CharField, Value
from django.db.models.functions import Cast, Concat
from django.utils import timezone

from catalogue.configuration.document import CatalogueFile
from catalogue.configuration.exporting import describe_curation
from catalogue.configuration.fields import LISTED, LISTED_BESIDES, MISSING, WORKFLOW
from catalogue.configuration.plan import FieldChange, compare
from catalogue.curation import MOST_FORMER_NAMES
from catalogue.http_tools.configs import KIND as DECLARED_HERE
from catalogue.models import Review, Source, Workflow
from catalogue.models.workflow import tell_alias
from catalogue.naming import make_tool_name
from catalogue.reconciliation import read_listing
from connectors.definitions import parse_definition
from connectors.formats.yaml import Path

BATCH = 200
KNOWN = ("enabled", "former_tool_names", *WORKFLOW.names)
NOT_LISTED = (
    "its source has not listed this workflow yet: refresh the source first, or import a file whose section "
    "`listed` has it"
)
DECIDED = (*WORKFLOW.fields, "enabled", "former_tool_names")
DECLARED = (*LISTED.values(), *LISTED_BESIDES, "missing_since", "changed_at", "content_hash")
UNCHECKED = ["source", "former_tool_names", *DECLARED]
"""What others check than the fields themselves."""
NAMES = {column: name for name, column in WORKFLOW.names.items()}

LISTED_PREFIX = "listed "
"""Before what a plan tells of the section `listed`."""

Layer = Mapping[str, Any]
"""What an engine says of a workflow, by the model's fields."""


@dataclass(slots=True)
class Workflows:
    """Rows to write, of all sources together, since tool names are unique among them all."""

    file: CatalogueFile
    prune: bool
    added: list[Workflow] = field(default_factory=list)
    changed: dict[Workflow, tuple[FieldChange, ...]] = field(default_factory=dict)
    removed: list[Workflow] = field(default_factory=list)
    accepted: list[Workflow] = field(default_factory=list)
    """Those whose change awaits a review here, and was accepted where the file comes from."""
    is_declared: bool = False
    """Some are declared here, not listed by an engine, so that what the file says of them is written too."""
    _paths: dict[int, Path] = field(default_factory=dict)

    def path_of(self, row: Workflow) -> Path:
        """Where it stands in the file; by its identity, since a row that is not stored has no key."""
        return self._paths[id(row)]

    def read(self, source: Source) -> None:
        """Compare what the file says of a source's workflows with what there is."""
        curated = self.file.mapping(("workflows", source.name))
        listed = self.file.mapping(("listed", source.name))
        present = {row.upstream_id: row for row in source.workflows.select_related("source")}
        declared = source.kind == DECLARED_HERE
        self.is_declared |= declared
        held = Review.objects.changes().filter(workflow__source=source)
        offers = dict(held.values_list("workflow__upstream_id", "offer_hash"))
        wanted = [one for one in listed if declared or one not in present or one in offers]
        layers = self._read_layers(source, wanted)
        for upstream_id in dict.fromkeys([*curated, *wanted]):
            row, layer = present.get(upstream_id), layers.get(upstream_id)
            if row is not None and layer is not None and not declared:
                # What was accepted elsewhere is accepted here, if it is what the engine here offers.
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
        """Give names to rows without one, and refuse names that two would have, as a former one too."""
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
                self.file.refuse(self.path_of(row), _tell_taken(row.tool_name, taken.get(row.tool_name)))
            elif row.tool_name in aliases and (holder := aliases[row.tool_name])[0] is not row:
                told = tell_alias(holder[0].tool_name, holder[1])
                self.file.refuse(self.path_of(row), f"{row.tool_name}: {told}")
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
        for start in range(0, len(renamed), BATCH):
            # Names may be exchanged, and are unique at every moment: first names that no tool can have.
            rows = Workflow.objects.filter(pk__in=renamed[start : start + BATCH])
            rows.update(tool_name=Concat(Value("~"), Cast("pk", CharField())))
        if self.changed:
            decided = [column for column in DECIDED if NAMES.get(column, column) in names]
            columns = [*decided, *(DECLARED if self.is_declared or self.accepted else ())]
            Workflow.objects.bulk_update(self.changed, columns, batch_size=BATCH)
        self._settle()
        gone = [row.pk for row in self.removed]
        Workflow.objects.filter(pk__in=gone).update(missing_since=timezone.now())

    def _accept(self, row: Workflow, layer: Layer, offer_hash: str) -> Layer | None:
        if layer["content_hash"] != offer_hash:
            return None
        self.accepted.append(row)
        return {**layer, MISSING: row.missing_since is not None}

    def _settle(self) -> None:
        """What was decided elsewhere awaits no review here."""
        for start in range(0, len(self.accepted), BATCH):
            batch = self.accepted[start : start + BATCH]
            Review.objects.changes().filter(workflow__in=batch).delete()
        enabled = [row.pk for row, fields in self.changed.items() if row.enabled and _has(fields, "enabled")]
        for start in range(0, len(enabled), BATCH):
            Review.objects.new_workflows().filter(workflow__in=enabled[start : start + BATCH]).delete()

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
        """Give it what the file says that curators decided; False where some of that is refused."""
        path: Path = ("workflows", row.source.name, row.upstream_id)
        self._paths[id(row)] = path if self.file.has(*path) else ("listed", *path[1:])
        problems, given, name = len(self.file.problems), self.file.mapping(path, known=KNOWN), row.tool_name
        for field_name, value in self.file.fields(path, WORKFLOW, given).items():
            if field_name != "tool_name" or "tool_name" in given:
                setattr(row, field_name, value)
        if isinstance(enabled := given.get("enabled", row.enabled), bool):
            row.enabled = enabled
        else:
            self.file.refuse((*path, "enabled"), "has to be true or false")
        row.former_tool_names = _join_names(row, name, self.file.items((*path, "former_tool_names"), str))
        try:
            row.clean_fields(exclude=UNCHECKED if row.tool_name else [*UNCHECKED, "tool_name"])
        except ValidationError as error:
            self.file.refuse_all(path, error, NAMES)
        for column, problem in row.find_own_problems().items():
            field_name = NAMES.get(column, column)
            self.file.refuse((*path, field_name) if self.file.has(*path, field_name) else path, problem)
        return len(self.file.problems) == problems

    def _read_layers(self, source: Source, wanted: list[str]) -> dict[str, Layer]:
        """What the file says that the engine says, checked as if the engine had."""
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


def _has(fields: tuple[FieldChange, ...], name: str) -> bool:
    return any(one.name == name for one in fields)


def name_of(row: Workflow) -> str:
    return f"{row.source.name}/{row.upstream_id} ({row.tool_name})"


def _described(row: Workflow, layer: Layer | None) -> dict[str, Any]:
    """As the file has it, with what is listed of workflows that are declared here."""
    told = describe_curation(row)
    if layer is None:
        return told
    told |= {f"{LISTED_PREFIX}{name}": getattr(row, column) for name, column in LISTED.items()}
    return told | {f"{LISTED_PREFIX}{MISSING}": row.missing_since is not None}


def _take_layer(row: Workflow, layer: Layer) -> None:
    now = timezone.now()
    if row.content_hash != layer["content_hash"]:
        row.changed_at = now
    for name, value in layer.items():
        if name != MISSING:
            setattr(row, name, value)
    row.missing_since = (row.missing_since or now) if layer[MISSING] else None


def _join_names(row: Workflow, name: str, of_file: list[str]) -> list[str]:
    """Its former names, here and in the file; as they are, unless that brings another one."""
    known: list[str] = row.former_tool_names
    names = dict.fromkeys([*([name] if name else []), *of_file, *known])
    joined = [one for one in names if one != row.tool_name][:MOST_FORMER_NAMES]
    return known if set(joined) == set(known) else joined


def _tell_taken(name: str, by: Workflow | None) -> str:
    holder = f"workflow {by.upstream_id} of {by.source.name}" if by else "another workflow of the file"
    return f"the tool name {name} belongs to {holder}: rename one of them, here or in the file"
