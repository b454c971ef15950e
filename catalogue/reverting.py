"""Taking back a change that the history tells of: a new change, which is checked like any other."""

from collections.abc import Callable
from typing import Any

from django.core.exceptions import ValidationError
from django.db import models, transaction

from catalogue.curation import OVERRIDABLE, override_workflow
from catalogue.history import SECRET, Actor, plain, record_change, recorded_model, remember_relations
from catalogue.models import HistoryEntry, ProductSettings, Revision, Source, Toolset, Workflow
from catalogue.product_settings import InvalidSettings, change_settings
from catalogue.sources import UPDATABLE, configure_source, update_source
from catalogue.toolsets import UnknownPicks, write_toolset

SHOWN_CHARACTERS = 60


class RevertRefused(Exception):
    """Nothing was changed; the message says why."""


def why_not_revertible(entry: HistoryEntry) -> str:
    """By what the entry itself says; empty where it can be tried."""
    if entry.kind == HistoryEntry.Kind.ADDED:
        return f"{entry.object_name} was added: delete it instead."
    if entry.kind == HistoryEntry.Kind.DELETED:
        return f"{entry.object_name} was deleted: add it again with the values that it had."
    if not entry.changes or recorded_model(entry.model) is None:
        return "The entry does not say from what value to what value it changed anything."
    if any(SECRET in values for values in entry.changes.values()):
        return "It changed secrets, which the history does not keep: enter them again."
    return ""


@transaction.atomic
def revert_change(entry: HistoryEntry, *, by: Actor) -> None:
    """Give back the values from before. Raises RevertRefused where others have changed them since."""
    model = recorded_model(entry.model)
    if (problem := why_not_revertible(entry)) or model is None:
        raise RevertRefused(problem)
    Revision.lock()
    row: Any = model._default_manager.filter(pk=entry.object_id).first()
    if row is None:
        raise RevertRefused(f"{entry.object_name} does not exist any more.")
    remember_relations(row)
    _check_is_as_left(row, entry)
    wanted = {name: _value_for(row, name, old) for name, (old, _) in entry.changes.items()}
    try:
        reverters.get(model, _write)(row, wanted, by)
    except ValidationError as error:
        raise RevertRefused(" ".join(error.messages)) from None
    except (UnknownPicks, InvalidSettings) as error:
        raise RevertRefused(f"{error}.") from None
    record_change(by, [row], f"Reverted: {entry.message}", reverts=entry)


def _check_is_as_left(row: Any, entry: HistoryEntry) -> None:
    present = row.related_as_read or {}
    for name, (_, new) in entry.changes.items():
        now = present[name] if name in present else plain(getattr(row, _attribute(row, name), None))
        if now != new:
            told = f"{name} is {_shown(now)} now and not {_shown(new)} any more"
            raise RevertRefused(f"{told}: somebody has changed it since. Revert that change first.")


def _shown(value: Any) -> str:
    text = "empty" if value in (None, "", [], {}) else str(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


def _attribute(row: models.Model, name: str) -> str:
    return next((field.attname for field in row._meta.concrete_fields if field.name == name), name)


def _value_for(row: models.Model, name: str, value: Any) -> Any:
    field = next((field for field in row._meta.concrete_fields if field.name == name), None)
    # What is no text is JSON already.
    return value if field is None or not isinstance(value, str) else field.to_python(value)


Reverter = Callable[[Any, dict[str, Any], Actor], None]


def _write(row: Any, wanted: dict[str, Any], by: Actor) -> None:
    for name, value in wanted.items():
        setattr(row, name, value)
    row.full_clean()
    row.save(update_fields=list(wanted))


def _write_workflow(workflow: Workflow, wanted: dict[str, Any], by: Actor) -> None:
    decisions = {name: value for name, value in wanted.items() if name in OVERRIDABLE}
    if decisions:
        override_workflow(workflow, **decisions)
    if others := {name: wanted[name] for name in wanted if name not in OVERRIDABLE}:
        _write(workflow, others, by)


def _write_source(source: Source, wanted: dict[str, Any], by: Actor) -> None:
    decisions = {name: value for name, value in wanted.items() if name in UPDATABLE}
    if decisions:
        update_source(source, **decisions)
    if "config" in wanted:
        configure_source(source, config=wanted["config"])
    if others := {name: wanted[name] for name in wanted if name not in (*UPDATABLE, "config")}:
        _write(source, others, by)


def _write_toolset(toolset: Toolset, wanted: dict[str, Any], by: Actor) -> None:
    write_toolset(toolset, **wanted)


def _write_settings(row: ProductSettings, wanted: dict[str, Any], by: Actor) -> None:
    change_settings({**dict.fromkeys(row.overrides), **wanted["overrides"]}, by=by.name)


reverters: dict[type[models.Model], Reverter] = {
    Workflow: _write_workflow,
    Source: _write_source,
    Toolset: _write_toolset,
    ProductSettings: _write_settings,
}
"""What is written otherwise than field by field; the rooms above add theirs."""
