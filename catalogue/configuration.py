"""The configuration file: which fields of each model it contains, and how it is written and read. The same
rows give the same text, which contains no secrets. Every mistake is reported with its line and key. A test
fails if a field of a model is missing from the lists here."""

from collections.abc import Callable, Collection, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import Any

from django.contrib.auth.models import Group, Permission
from django.core.exceptions import ValidationError
from django.db import models, transaction

from catalogue import features
from catalogue.actions.features import CHANGEABLE as FEATURE_FIELDS
from catalogue.actions.sources import UPDATABLE
from catalogue.actions.toolsets import CHANGEABLE as TOOLSET_FIELDS
from catalogue.actions.workflows import OVERRIDABLE
from catalogue.connections import secret_fields
from catalogue.fields import JSONTextField
from catalogue.imports.pipeline import ImportRefused
from catalogue.models import (
    ProductSettings,
    Revision,
    ServerFeature,
    Source,
    Toolset,
    ToolsetRule,
    Workflow,
    WorkflowFilter,
)
from catalogue.naming import find_similar_names
from catalogue.secrets import CredentialsUnreadable
from connectors.definitions import WorkflowDefinition
from connectors.errors import Misconfigured
from connectors.formats.yaml import (
    Document,
    Limits,
    Path,
    Problem,
    UnusableText,
    name_of,
    read_document,
    write_document,
)

VERSION = 1
SECTIONS: dict[str, type[models.Model]] = {  # In the file's order, with the model whose permissions count
    "settings": ProductSettings,
    "groups": Group,
    "sources": Source,
    "filters": WorkflowFilter,
    "toolsets": Toolset,
    "workflows": Workflow,
    "listed": Workflow,
    "features": ServerFeature,
}


def name_in_file(column: str) -> str:
    return column.removesuffix("_override")


@dataclass(frozen=True)
class Curated:
    """The fields of a model that the file has under their own names, unless they have the model's default."""

    model: type[models.Model]
    fields: tuple[str, ...]

    @cached_property
    def names(self) -> dict[str, str]:
        """The model's field names by the file's."""
        return {name_in_file(field): field for field in self.fields}

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """The defaults by the model's field names. Copy a mutable one before use."""
        found = {field: self.model._meta.get_field(field).get_default() for field in self.fields}  # type: ignore[union-attr]
        return {
            field: default.value if isinstance(default, models.Choices) else default
            for field, default in found.items()
        }

    def decided(self, row: models.Model) -> dict[str, Any]:
        """The values that differ from the defaults, by the file's names."""
        return {
            name: value
            for name, field in self.names.items()
            if (value := getattr(row, field)) != self.defaults[field]
        }


LISTED: Mapping[str, str] = {  # The model's names by those of `WorkflowDefinition`
    "name": "name", "title": "upstream_title", "description": "description", "category": "category",
    "version": "version", "author": "author", "tags": "tags", "execution_type": "execution_type",
    "input_schema": "input_schema", "output_schema": "output_schema", "annotations": "hints",
    "icons": "icons", "timeout_seconds": "upstream_timeout_seconds",
    "cache_seconds": "upstream_cache_seconds", "queries": "queries", "signals": "signals",
    "metadata": "metadata",
}  # fmt: skip
LISTED_BESIDES = ("schema_problem", "resembles")
DEFINITION = "definition"  # A server's words on a prompt or resource
MISSING = "missing"  # Marks a workflow that its engine no longer lists

SOURCE = Curated(Source, tuple(name for name in UPDATABLE if name != "name"))
WORKFLOW = Curated(Workflow, (*OVERRIDABLE, "tool_aliases"))
TOOLSET = Curated(Toolset, tuple(name for name in TOOLSET_FIELDS if name != "slug"))
FEATURE = Curated(ServerFeature, FEATURE_FIELDS)
RULE_FIELDS = ("action", "subject", "syntax", "pattern", "enabled", "note")
FILTER, TOOLSET_RULE = Curated(WorkflowFilter, RULE_FIELDS), Curated(ToolsetRule, RULE_FIELDS)
ROWS: dict[str, Curated] = {}  # By section: models of other packages of which there is one row
HEADER = "# The curation of a Workflow Catalogue. `manage.py import_catalogue --plan FILE` compares it.\n"
MEDIA_TYPE = "application/yaml"
FILE_NAME = "catalogue.yaml"


def add_section(name: str, model: type[models.Model]) -> None:
    """Adds a section of all editable fields of a model with one row, for `AppConfig.ready` of its room."""
    fields = tuple(field.name for field in model._meta.fields if field.editable)
    SECTIONS[name], ROWS[name] = model, (curated := Curated(model, fields))
    _WRITERS[name] = lambda: curated.decided(row_of(model))


def row_of(model: type[models.Model]) -> models.Model:
    """Returns the one row, with the defaults if it is not stored yet."""
    return model._default_manager.first() or model()


def export_catalogue(sections: Collection[str] | None = None) -> str:
    with transaction.atomic():
        Revision.lock()
        document = {"version": VERSION} | {
            name: write() for name, write in _WRITERS.items() if sections is None or name in sections
        }
    return HEADER + write_document(document, in_blocks=True)


def sections_for(user: Any, wanted: Iterable[str] | None = None) -> list[str]:
    models = {name: SECTIONS[name]._meta for name in (SECTIONS if wanted is None else wanted)}
    return [
        name
        for name, meta in models.items()
        if any(user.has_perm(f"{meta.app_label}.{verb}_{meta.model_name}") for verb in ("view", "change"))
    ]


def permissions_of(permissions: Iterable[Permission]) -> dict[str, Permission]:
    """Returns them by `app.codename`."""
    return {f"{one.content_type.app_label}.{one.codename}": one for one in permissions}


def describe_source(source: Source) -> dict[str, Any]:
    described = {"kind": source.kind, "config": dict(sorted(source.config.items()))}
    return described | {"secrets": secrets_of(source)} | SOURCE.decided(source)


def secrets_of(source: Source) -> list[str]:
    """Returns the names of the source's secrets, or all that its kind has if they cannot be decrypted."""
    try:
        return sorted(source.credentials)
    except CredentialsUnreadable:
        pass
    try:
        return sorted(secret_fields(source.kind))
    except Misconfigured:
        return []


def describe_curation(workflow: Workflow) -> dict[str, Any]:
    described = {"tool_name": workflow.tool_name, "enabled": workflow.enabled} | WORKFLOW.decided(workflow)
    former = workflow.former_tool_names
    return described | ({"former_tool_names": former} if former else {})


def _describe_listed(workflow: Workflow) -> dict[str, Any]:
    described = {}
    for name, column in LISTED.items():
        value = getattr(workflow, column)
        if name not in _LISTED_DEFAULTS or value != _LISTED_DEFAULTS[name]:
            described[name] = value
    # Hints and icons may be any JSON, so an empty value has no definite type.
    described = {
        name: value for name, value in described.items() if value or name not in ("annotations", "icons")
    }
    described |= {name: value for name in LISTED_BESIDES if (value := getattr(workflow, name))}
    return described | ({MISSING: True} if workflow.missing_since else {})


_LISTED_DEFAULTS = {
    name: info.get_default(call_default_factory=True, validated_data={})
    for name, info in WorkflowDefinition.model_fields.items()
    if not info.is_required()
}


def _by_source(describe: Any) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    rows = Workflow.objects.select_related("source").defer("source__encrypted_credentials").order_by()
    for workflow in sorted(rows, key=lambda row: (row.source.name, row.upstream_id)):
        found.setdefault(workflow.source.name, {})[workflow.upstream_id] = describe(workflow)
    return found


def _features() -> dict[str, dict[str, dict[str, Any]]]:
    """Returns features with a curator's decision, by source, kind and the server's own name or address, with
    the server's definition, as `listed` has it for workflows."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    rows = ServerFeature.objects.select_related("source").defer("offered").order_by()
    for row in sorted(rows, key=lambda row: (row.source.name, row.kind, row.upstream_id)):
        if described := describe_feature(row):
            of_kind = found.setdefault(row.source.name, {}).setdefault(row.kind, {})
            of_kind[row.upstream_id] = described | {DEFINITION: features.split(row.definition)[0]}
    return found


def describe_feature(feature: ServerFeature) -> dict[str, Any]:
    """Returns nothing without a curator's decision: some servers list different features each time."""
    described = {"enabled": feature.enabled} | FEATURE.decided(feature)
    is_new = feature.enabled == features.is_enabled_when_new(feature.source, feature.definition)
    return {} if is_new and not described.keys() - {"enabled", "served_as"} else described


def describe_rule(curated: Curated, rule: Any) -> dict[str, Any]:
    """Returns what the rule does, with `enabled` and the note if they are not the default."""
    whole = {name: getattr(rule, name) for name in ("action", "subject", "syntax", "pattern")}
    return whole | curated.decided(rule)


def describe_toolset(toolset: Toolset) -> dict[str, Any]:
    rules = [describe_rule(TOOLSET_RULE, rule) for rule in toolset.rules.all()]
    picked = sorted(workflow.tool_name for workflow in toolset.picked.all())
    described = TOOLSET.decided(toolset)
    return described | ({"rules": rules} if rules else {}) | ({"picked": picked} if picked else {})


def _in_order(rows: Any, name: str) -> list[Any]:
    """Sorts in Python: the database's order depends on its locale."""
    return sorted(rows.order_by(), key=attrgetter(name))


_WRITERS: dict[str, Callable[[], Any]] = {
    "settings": lambda: {
        name: value for row in ProductSettings.objects.all() for name, value in sorted(row.overrides.items())
    },
    "groups": lambda: {
        group.name: sorted(permissions_of(group.permissions.all()))
        for group in Group.objects.filter(role=None)
        .prefetch_related("permissions__content_type")
        .order_by("name")
    },
    "sources": lambda: {one.name: describe_source(one) for one in _in_order(Source.objects, "name")},
    "filters": lambda: [describe_rule(FILTER, rule) for rule in WorkflowFilter.objects.all()],
    "toolsets": lambda: {
        toolset.slug: describe_toolset(toolset)
        for toolset in _in_order(Toolset.objects.prefetch_related("rules", "picked"), "slug")
    },
    "workflows": lambda: _by_source(describe_curation),
    "listed": lambda: _by_source(_describe_listed),
    "features": _features,
}

LIMITS = Limits(bytes=16 * 1024 * 1024, depth=250, parts=600_000, integer=10**40)  # Fits 5,000 workflows
CAREFUL_BYTES = 256 * 1024  # Smaller files are read by a slower parser, which explains mistakes better
TYPES: Mapping[type, str] = {bool: "true or false", int: "a whole number", str: "a string", list: "a list"}


@dataclass(slots=True)
class CatalogueFile:
    document: Document
    problems: list[Problem] = field(default_factory=list)

    @classmethod
    def read(cls, content: bytes) -> "CatalogueFile":
        """Raises ImportRefused for invalid YAML and for other versions."""
        try:
            document = read_document(content, limits=LIMITS, fast=len(content) > CAREFUL_BYTES)
        except UnusableText as error:
            raise ImportRefused(error.reasons) from None
        file = cls(document, document.problems)
        file._check_version()
        file.mapping((), known=("version", *SECTIONS))
        return file

    def has(self, *path: str | int) -> bool:
        value = self.document.value
        for part in path:
            if not isinstance(value, dict) or part not in value:
                return False
            value = value[part]
        return True

    def refuse(self, path: Path, message: str) -> None:
        self.problems.append(Problem(self.document.line_of(path), name_of(path), message))

    def refuse_all(self, path: Path, error: ValidationError) -> None:
        """Add a model's validation errors."""
        if not hasattr(error, "error_dict"):
            for message in error.messages:
                self.refuse(path, message)
            return
        for column, errors in error.error_dict.items():
            name = name_in_file(column)
            is_there = self.has(*path, name)
            for one in errors:
                messages = [f"needs `{name}`"] if one.code == "blank" and not is_there else one.messages
                for message in messages:
                    self.refuse((*path, name) if is_there else path, message)

    def refuse_unknown(self, path: Path, message: str, name: str, known: Iterable[str]) -> None:
        similar = find_similar_names(name, known)
        self.refuse(path, message + (f"; did you mean {' or '.join(similar)}?" if similar else ""))

    def raise_problems(self) -> None:
        if self.problems:
            raise ImportRefused(UnusableText(self.problems).reasons)

    def mapping(self, path: Path, *, known: Iterable[str] | None = None) -> dict[str, Any]:
        """Returns the mapping at the path without unknown keys, or an empty one."""
        value = self.at(path)
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.refuse(path, "must be a mapping of keys to values")
            return {}
        if known is None:
            return value
        known = tuple(known)
        for key in value:
            if key not in known:
                message = f"unknown key; possible keys are {', '.join(known)}"
                self.refuse_unknown((*path, key), message, key, known)
        return {key: given for key, given in value.items() if key in known}

    def items(self, path: Path, kind: type) -> list[Any]:
        """Returns the items of this type at the path, or none without a list."""
        value = self.at(path)
        if value is None:
            return []
        if not isinstance(value, list):
            self.refuse(path, "must be a list")
            return []
        wanted = "a mapping" if kind is dict else TYPES[kind]
        for index, one in enumerate(value):
            if not isinstance(one, kind):
                self.refuse((*path, index), f"must be {wanted}")
        return [one for one in value if isinstance(one, kind)]

    def fields(self, path: Path, curated: Curated, given: Mapping[str, Any]) -> dict[str, Any]:
        """Returns values by the model's field names: the given ones, and defaults for the others."""
        values = {}
        for name, field_name in curated.names.items():
            values[field_name] = deepcopy(curated.defaults[field_name])
            if name in given and self._has_type((*path, name), curated.model, field_name, given[name]):
                values[field_name] = given[name]
        return values

    def at(self, path: Path) -> Any:
        value = self.document.value
        for part in path:
            try:
                value = value[part]
            except (KeyError, IndexError, TypeError):
                return None
        return value

    def _has_type(self, path: Path, model: type[models.Model], name: str, value: Any) -> bool:
        """Django would accept `0` as false and `5` as a string; the model validates the values themselves."""
        column: Any = model._meta.get_field(name)
        if value is None:
            if not column.null:
                self.refuse(path, "must have a value; omit the key for the default")
            return bool(column.null)
        if (wanted := _type_of(column)) is None or type(value) is wanted:
            return True
        quotes = "; put it in quotes" if wanted is str else ""
        self.refuse(path, f"must be {TYPES[wanted]}{quotes}")
        return False

    def _check_version(self) -> None:
        value = self.document.value
        version = value.get("version") if isinstance(value, dict) else None
        if version != VERSION or isinstance(version, bool):
            found = (
                "the file must begin with `version: 1`"
                if version is None
                else f"version {version} is unknown"
            )
            path = ("version",) if version is not None else ()
            self.refuse(path, f"{found}; this product reads version {VERSION}, which its export writes")
            self.raise_problems()


def _type_of(column: Any) -> type | None:
    """Returns None for JSON columns."""
    if isinstance(column, models.BooleanField):
        return bool
    if isinstance(column, models.IntegerField):
        return int
    if isinstance(column, JSONTextField):
        return None
    return str if isinstance(column, models.CharField | models.TextField) else None
