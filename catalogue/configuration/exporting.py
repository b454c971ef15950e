"""The catalogue as a YAML text: the same rows give the same text, and no secret is in it."""

from collections.abc import Collection, Iterable
from operator import attrgetter
from typing import Any

from django.contrib.auth.models import Group, Permission
from django.db import transaction

from catalogue.configuration.fields import (
    FILTER,
    LISTED,
    LISTED_BESIDES,
    MISSING,
    SECTIONS,
    SOURCE,
    TOOLSET,
    TOOLSET_RULE,
    VERSION,
    WORKFLOW,
    Curated,
)
from catalogue.connections import secret_fields
from catalogue.models import ProductSettings, Revision, Source, Toolset, Workflow, WorkflowFilter
from catalogue.secrets import CredentialsUnreadable
from connectors.definitions import WorkflowDefinition
from connectors.errors import Misconfigured
from connectors.formats.yaml import write_document

HEADER = "# The curation of a Workflow Catalogue. `manage.py import_catalogue --plan FILE` compares it.\n"
MEDIA_TYPE = "application/yaml"
FILE_NAME = "catalogue.yaml"


def export_catalogue(sections: Collection[str] = tuple(SECTIONS)) -> str:
    """Those sections as they are at one moment."""
    with transaction.atomic():
        Revision.lock()
        document = {"version": VERSION} | {
            name: write() for name, write in _WRITERS.items() if name in sections
        }
    return HEADER + write_document(document, in_blocks=True)


def sections_for(user: Any, wanted: Iterable[str] = tuple(SECTIONS)) -> list[str]:
    """Those of the sections that the user may see."""
    models = {name: SECTIONS[name]._meta for name in wanted}
    return [
        name
        for name, meta in models.items()
        if any(user.has_perm(f"{meta.app_label}.{verb}_{meta.model_name}") for verb in ("view", "change"))
    ]


def permissions_of(permissions: Iterable[Permission]) -> dict[str, Permission]:
    """By `app.codename`."""
    return {f"{one.content_type.app_label}.{one.codename}": one for one in permissions}


def _settings() -> dict[str, Any]:
    row = ProductSettings.objects.filter(pk=ProductSettings.ONLY).first()
    return dict(sorted(row.overrides.items())) if row else {}


def _groups() -> dict[str, list[str]]:
    groups = Group.objects.prefetch_related("permissions__content_type").order_by("name")
    return {group.name: sorted(permissions_of(group.permissions.all())) for group in groups}


def _sources() -> dict[str, Any]:
    return {source.name: describe_source(source) for source in _in_order(Source.objects.all(), "name")}


def describe_source(source: Source) -> dict[str, Any]:
    told = {"kind": source.kind, "config": dict(sorted(source.config.items()))}
    return told | {"secrets": secrets_of(source)} | SOURCE.decided(source)


def secrets_of(source: Source) -> list[str]:
    """Their names. Of those that cannot be read any more, which there could be."""
    try:
        return sorted(source.credentials)
    except CredentialsUnreadable:
        pass
    try:
        return sorted(secret_fields(source.kind))
    except Misconfigured:
        return []


def _workflows() -> dict[str, dict[str, Any]]:
    return _by_source(describe_curation)


def describe_curation(workflow: Workflow) -> dict[str, Any]:
    told = {"tool_name": workflow.tool_name, "enabled": workflow.enabled} | WORKFLOW.decided(workflow)
    former = workflow.former_tool_names
    return told | ({"former_tool_names": former} if former else {})


def _listed() -> dict[str, dict[str, Any]]:
    return _by_source(_describe_listed)


def _describe_listed(workflow: Workflow) -> dict[str, Any]:
    told = {}
    for name, field in LISTED.items():
        value = getattr(workflow, field)
        if name not in _LISTED_DEFAULTS or value != _LISTED_DEFAULTS[name]:
            told[name] = value
    # Engines' hints and icons may be anything, so that nothing has no type of its own there.
    told = {name: value for name, value in told.items() if value or name not in ("annotations", "icons")}
    told |= {name: value for name in LISTED_BESIDES if (value := getattr(workflow, name))}
    return told | ({MISSING: True} if workflow.missing_since else {})


_LISTED_DEFAULTS = {
    name: info.get_default(call_default_factory=True, validated_data={})
    for name, info in WorkflowDefinition.model_fields.items()
    if not info.is_required()
}


def _by_source(describe: Any) -> dict[str, dict[str, Any]]:
    told: dict[str, dict[str, Any]] = {}
    rows = Workflow.objects.select_related("source").defer("source__encrypted_credentials").order_by()
    for workflow in sorted(rows, key=lambda row: (row.source.name, row.upstream_id)):
        told.setdefault(workflow.source.name, {})[workflow.upstream_id] = describe(workflow)
    return told


def _filters() -> list[dict[str, Any]]:
    return [describe_rule(FILTER, rule) for rule in WorkflowFilter.objects.all()]


def describe_rule(curated: Curated, rule: Any) -> dict[str, Any]:
    """The whole of what it does; whether it is on and its note where they say something."""
    whole = {name: getattr(rule, name) for name in ("action", "subject", "syntax", "pattern")}
    return whole | curated.decided(rule)


def _toolsets() -> dict[str, Any]:
    toolsets = Toolset.objects.prefetch_related("rules", "picked")
    return {toolset.slug: describe_toolset(toolset) for toolset in _in_order(toolsets, "slug")}


def describe_toolset(toolset: Toolset) -> dict[str, Any]:
    rules = [describe_rule(TOOLSET_RULE, rule) for rule in toolset.rules.all()]
    picked = sorted(workflow.tool_name for workflow in toolset.picked.all())
    told = TOOLSET.decided(toolset)
    return told | ({"rules": rules} if rules else {}) | ({"picked": picked} if picked else {})


def _in_order(rows: Any, name: str) -> list[Any]:
    """Not by the database, whose alphabet depends on its locale."""
    return sorted(rows.order_by(), key=attrgetter(name))


_WRITERS = {
    "settings": _settings,
    "groups": _groups,
    "sources": _sources,
    "filters": _filters,
    "toolsets": _toolsets,
    "workflows": _workflows,
    "listed": _listed,
}
