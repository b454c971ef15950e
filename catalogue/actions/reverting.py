"""Reverting a recorded change by a new change, with all of its checks."""

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import ValidationError
from django.db import models, transaction
from django.utils.text import capfirst

from catalogue import history
from catalogue.actions.reviews import REVIEW, state_of, take_back
from catalogue.actions.sources import UPDATABLE, change_source, create_source
from catalogue.actions.toolsets import write_toolset
from catalogue.actions.workflows import (
    OVERRIDABLE,
    UnknownWorkflows,
    disable_workflows,
    enable_workflows,
    override_workflow,
)
from catalogue.exposure import exposed_tools
from catalogue.models import (
    HistoryEntry,
    ProductSettings,
    Revision,
    Source,
    Toolset,
    Workflow,
    WorkflowFilter,
)
from catalogue.naming import counted
from catalogue.product_settings import InvalidSettings, change_settings
from catalogue.reconciliation import LAYER_FIELDS

SHOWN_CHARACTERS = 60
LAYER = frozenset(LAYER_FIELDS)  # Of an accepted change with its hash, otherwise of a declared tool


class RevertRefused(Exception):
    """Nothing was changed."""


def why_not_revertible(entry: HistoryEntry) -> str:
    """The reason in the entry itself; empty if a revert can be attempted."""
    model = history.recorded_model(entry.model)
    if model is None or not entry.changes:
        return "The entry does not contain the old and new values."
    if entry.kind == HistoryEntry.Kind.ADDED and model not in removers:
        return f"Adding {entry.object_name} cannot be reverted here. Delete it on its own page, if possible."
    if entry.kind == HistoryEntry.Kind.DELETED and model not in restorers:
        return f"{entry.object_name} was deleted, and the history does not contain all of it. Add it again."
    if entry.kind == HistoryEntry.Kind.ADDED:
        return ""
    if any(history.SECRET in values for values in entry.changes.values()):
        return "It changed secrets, which the history does not contain: enter them again."
    if model is Workflow and entry.changes.keys() & LAYER and "content_hash" not in entry.changes:
        return "It changed a declared tool: declare it again with the old values shown here."
    return ""


def permission_to_revert(entry: HistoryEntry) -> str:
    """Returns the permission for what reverts the entry, such as `catalogue.delete_toolset`."""
    kinds = HistoryEntry.Kind
    verb = {kinds.ADDED: "delete", kinds.DELETED: "add"}.get(kinds(entry.kind), "change")
    app, _, model = entry.model.partition(".")
    return f"{app}.{verb}_{model}"


@transaction.atomic
def revert_change(entry: HistoryEntry, *, by: history.Actor) -> HistoryEntry:
    """Returns the new entry. Raises RevertRefused, also if the object has changed since."""
    model = history.recorded_model(entry.model)
    if (problem := why_not_revertible(entry)) or model is None:
        raise RevertRefused(problem)
    Revision.lock()
    row: Any = model._default_manager.filter(pk=entry.object_id).first()
    message = f"Reverted: {entry.message}"
    try:
        if entry.kind == HistoryEntry.Kind.DELETED:
            if row is not None:
                raise RevertRefused(f"{entry.object_name} already exists again.")
            restored = restorers[model](entry.object_id, _old_values(model, entry))
            history.record_change(by, [restored], message, reverts=entry)
        elif row is None:
            raise RevertRefused(f"{entry.object_name} no longer exists.")
        elif entry.kind == HistoryEntry.Kind.ADDED:
            _check_is_as_added(row, entry)
            history.record_deletion(by, [row], message, reverts=entry)
            removers[model](row)
        else:
            history.remember_relations(row)
            _check_is_as_left(row, entry)
            reverters.get(model, _write)(row, _old_values(model, entry), by)
            history.record_change(by, [row], message, reverts=entry)
    except ValidationError as error:
        raise RevertRefused(" ".join(error.messages)) from None
    except (UnknownWorkflows, InvalidSettings) as error:
        raise RevertRefused(f"{error}.") from None
    return entry.reverted_by.latest("pk")


@dataclass(frozen=True, slots=True)
class Together:
    """What came of reverting several changes."""

    reverted: int
    refused: list[tuple[HistoryEntry, str]]  # With the reason; nothing of these was changed
    exposes: list[str]  # Tools that agents see since, and did not before


class WouldExpose(Exception):
    """Nothing was changed: agents would see further tools, and nobody has agreed to that."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(f"Agents would see {counted(len(names), 'more tool')}.")
        self.names = names


def agreement(names: Iterable[str]) -> str:
    """What an answer to the question repeats, so that it is an answer about these tools."""
    return hashlib.sha256(json.dumps(sorted(names)).encode()).hexdigest()


@transaction.atomic
def revert_together(
    entries: Iterable[HistoryEntry],
    *,
    by: history.Actor,
    may: Callable[[str], bool],
    agreed: str = "",
) -> Together:
    """The latest first, so that several changes of one object are reverted in turn. `may`: whether the person
    has a permission. Raises WouldExpose, unless `agreed` is the agreement to exposing just these tools."""
    Revision.lock()
    before, refused, reverted = exposed_tools(), [], 0
    with history.one_batch():
        for entry in sorted(entries, key=lambda one: (one.at, one.pk), reverse=True):
            needed = permission_to_revert(entry)
            try:
                if not (why_not_revertible(entry) or may(needed)):
                    raise RevertRefused(f"You lack the permission {needed}.")
                revert_change(entry, by=by)
                reverted += 1
            except RevertRefused as error:
                refused.append((entry, str(error)))
    exposes = [name for key, name in exposed_tools().items() if key not in before]
    if exposes and agreed != agreement(exposes):
        raise WouldExpose(exposes)
    return Together(reverted, refused, exposes)


def _check_is_as_added(row: Any, entry: HistoryEntry) -> None:
    """Raises RevertRefused rather than discard later changes of the object."""
    added = {name: new for name, (_, new) in entry.changes.items()}
    now = history.values_of(row)
    differing = sorted(name for name in added.keys() | now.keys() if added.get(name) != now.get(name))
    if differing:
        message = f"{', '.join(differing)} of {entry.object_name} changed since it was added"
        raise RevertRefused(f"{message}. Revert that change first, or delete it by hand.")


def _check_is_as_left(row: Any, entry: HistoryEntry) -> None:
    present = row.related_as_read or {}
    changes = entry.changes
    if isinstance(row, ProductSettings):
        present, changes = row.overrides, _changed_settings(entry)
        present = dict.fromkeys(changes) | present
    elif isinstance(row, Workflow):
        # Of what was accepted, the engine may have changed the rest since, and that may await review.
        present, besides = {REVIEW: state_of(row)}, {REVIEW, "content_hash"}
        changes = {name: changes[name] for name in changes.keys() - besides or changes}
    columns = {field.name: field.attname for field in row._meta.concrete_fields}
    for name, (_, new) in changes.items():
        now = present[name] if name in present else history.plain(getattr(row, columns.get(name, name), None))
        if now != new:
            message = f"{name} is now {_shown(now)} and no longer {_shown(new)}"
            raise RevertRefused(f"{message}: it has changed since. Revert that change first.")


def _changed_settings(entry: HistoryEntry) -> dict[str, list[Any]]:
    """Old and new values by name, None for the environment's. One row has all settings, and a change of one
    does not depend on the others."""
    old, new = entry.changes["overrides"]
    names = (name for name in old | new if old.get(name) != new.get(name))
    return {name: [old.get(name), new.get(name)] for name in names}


def _shown(value: Any) -> str:
    text = "empty" if value in (None, "", [], {}) else str(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


def _old_values(model: type[models.Model], entry: HistoryEntry) -> dict[str, Any]:
    """Returns the values before the entry, in the model's types."""
    if model is ProductSettings:
        return {name: old for name, (old, _) in _changed_settings(entry).items()}
    fields = {field.name: field for field in model._meta.concrete_fields}
    # Values other than texts are JSON already.
    return {
        name: fields[name].to_python(old) if name in fields and isinstance(old, str) else old
        for name, (old, _) in entry.changes.items()
    }


def _write(row: Any, wanted: dict[str, Any], by: history.Actor) -> Any:
    history.write_fields(row, wanted)


def _write_workflow(workflow: Workflow, wanted: dict[str, Any], by: history.Actor) -> None:
    if decisions := {name: value for name, value in wanted.items() if name in OVERRIDABLE}:
        override_workflow(workflow, **decisions)
    if "enabled" in wanted:
        switch = enable_workflows if wanted["enabled"] else disable_workflows
        switch(Workflow.objects.filter(pk=workflow.pk))
        workflow.enabled = wanted["enabled"]
    if of_review := {name: wanted[name] for name in wanted if name in LAYER or name == REVIEW}:
        take_back(workflow, of_review)


reverters: dict[type[models.Model], Callable[[Any, dict[str, Any], history.Actor], Any]] = {
    # Not written field by field; rooms above add theirs
    Workflow: _write_workflow,
    Source: lambda source, wanted, by: change_source(source, **wanted),
    Toolset: lambda toolset, wanted, by: write_toolset(toolset, **wanted),
    ProductSettings: lambda row, wanted, by: change_settings(wanted, by=by.name),
}


def _restore(key: str, values: dict[str, Any]) -> Any:
    """Under its old key, which history and links refer to."""
    rule = WorkflowFilter(pk=int(key), **values)
    rule.full_clean()
    rule.save(force_insert=True)
    return rule


def _restore_source(key: str, values: dict[str, Any]) -> Any:
    """The next listing adds its workflows again; their curation is lost."""
    known = {name: value for name, value in values.items() if name in ("name", "kind", "config", *UPDATABLE)}
    return create_source(**{"credentials": {}, "config": {}} | known)


def _remove(row: Any) -> None:
    try:
        row.delete()
    except models.ProtectedError as error:
        users = sorted(
            {capfirst(str(type(one)._meta.verbose_name_plural)) for one in error.protected_objects}
        )
        raise RevertRefused(f"{row} cannot be deleted: {', '.join(users)} belong to it.") from None


def _remove_source(source: Source) -> None:
    if count := source.workflows.count():
        raise RevertRefused(f"{source} now has {counted(count, 'workflow')}: delete it by hand.")
    _remove(source)


removers: dict[type[models.Model], Callable[[Any], None]] = {
    WorkflowFilter: _remove,
    Toolset: _remove,
    Source: _remove_source,
}
restorers: dict[type[models.Model], Callable[[str, dict[str, Any]], Any]] = {  # By key and values
    WorkflowFilter: _restore,
    Toolset: lambda key, values: write_toolset(Toolset(pk=int(key)), **values),
    Source: _restore_source,
}
