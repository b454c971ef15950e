import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from django.apps import apps
from django.core.serializers.json import DjangoJSONEncoder
from django.db import models, transaction
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import translation

from catalogue.models import Exposing, HistoryEntry, Recorded, Revision

if TYPE_CHECKING:
    # Without REST a process starts faster.
    from rest_framework.request import Request

MAX_NAME = 255
BATCH = 500
SECRET = "(secret)"  # noqa: S105 - no password
SHOWN_BEFORE = 3  # A third of a value that is cut precedes what differs
EMPTY: tuple[Any, ...] = (None, "", [], {})


@dataclass(frozen=True, kw_only=True, slots=True)
class Actor:
    key: str  # Such as `user:1` or `token:7`
    name: str
    door: HistoryEntry.Door


def actor_of(request: "HttpRequest | Request") -> Actor:
    """The token of a REST request, otherwise the user."""
    # Only REST requests have `auth`.
    door = HistoryEntry.Door.REST if hasattr(request, "auth") else HistoryEntry.Door.ADMIN
    token: Any = getattr(request, "auth", None)
    if token is not None:
        return Actor(key=token.caller.key, name=token.caller.name, door=door)
    return Actor(key=f"user:{request.user.pk}", name=request.user.get_username(), door=door)


def command(name: str) -> Actor:
    return Actor(key="command", name=f"manage.py {name}", door=HistoryEntry.Door.COMMAND)


class Batch:
    """What one action changed; `size` also counts entries of transactions that were rolled back."""

    def __init__(self) -> None:
        self.key, self.size = uuid4(), 0


_batch: ContextVar[Batch | None] = ContextVar("batch", default=None)


@contextmanager
def one_batch() -> Iterator[Batch]:
    """All that is recorded in this block belongs together. Elsewhere, what one call records does."""
    token = _batch.set(batch := Batch())
    try:
        yield batch
    finally:
        _batch.reset(token)


def remember_relations(obj: models.Model) -> None:
    """Call it before changing related tables; the object's own columns are remembered anyway."""
    if isinstance(obj, Recorded):
        obj.related_as_read = obj.recorded_relations()


def record_change(
    actor: Actor, objects: Iterable[models.Model], message: str, *, reverts: HistoryEntry | None = None
) -> None:
    """Call it after the change, in its transaction, with the objects as read before. One query per model."""
    record_changes(actor, [(obj, message) for obj in objects], reverts=reverts)


def record_changes(
    actor: Actor, entries: Sequence[tuple[models.Model, str]], *, reverts: HistoryEntry | None = None
) -> None:
    """Like `record_change`, with a message for each object."""
    changes = _find_changes([obj for obj, _ in entries])
    found = [(obj, message, changes.get(id(obj), {})) for obj, message in entries]
    record_values(actor, found, reverts=reverts)


@transaction.atomic
def change_rows(by: Actor | None, rows: QuerySet[Any], message: str, *, named_by: str, **values: Any) -> int:
    """Set the values on those rows that have others, and record it if there is an actor. `named_by`: the
    column by which the history names the rows. Returns how many changed."""
    Revision.lock()
    # By primary key, because the callers' querysets may be ordered, sliced or joined.
    keys = list(rows.values_list("pk", flat=True))
    changing = rows.model._default_manager.filter(pk__in=keys).exclude(**values)
    before = list(changing.only(named_by, *values).order_by())
    changing.update(**values)
    if before:
        Revision.bump()
    if by is not None:
        record_change(by, before, message)
    return len(before)


def record_deletion(
    actor: Actor,
    objects: Iterable[models.Model],
    message: str = "Deleted.",
    *,
    reverts: HistoryEntry | None = None,
) -> None:
    """Call it before the deletion and in its transaction."""
    gone = [(row, message, {name: [old, None] for name, old in values_of(row).items()}) for row in objects]
    record_values(actor, gone, reverts=reverts, are_deleted=True)


def record_values(
    actor: Actor,
    entries: Sequence[tuple[models.Model, str, Mapping[str, list[Any]]]],
    *,
    reverts: HistoryEntry | None = None,
    are_deleted: bool = False,
) -> None:
    """`{field: [old value, new value]}` of each row, as JSON values; also for fields that curators cannot
    edit."""
    seen_by_agents = {id(row) for row, _, values in entries if values and isinstance(row, Exposing)}
    revision = Revision.current() if seen_by_agents else None
    added = {id(row) for row, _, _ in entries if isinstance(row, Recorded) and row.as_read is None}
    batch = _batch.get() or (Batch() if len(entries) > 1 else None)
    if batch is not None:
        batch.size += len(entries)
    kinds = HistoryEntry.Kind
    with translation.override(None):  # In English, whatever the language of the page
        names = [str(row)[:MAX_NAME] for row, _, _ in entries]
    HistoryEntry.objects.bulk_create(
        [
            HistoryEntry(
                actor=actor.key,
                actor_name=actor.name[:MAX_NAME],
                door=actor.door,
                model=HistoryEntry.label_of(type(row)),
                object_id=str(row.pk),
                object_name=name,
                kind=kinds.DELETED if are_deleted else kinds.ADDED if id(row) in added else kinds.CHANGED,
                message=message,
                changes=values,
                revision=revision if id(row) in seen_by_agents else None,
                reverts=reverts,
                batch=None if batch is None else batch.key,
            )
            for name, (row, message, values) in zip(names, entries, strict=True)
        ],
        batch_size=BATCH,
    )


def _find_changes(rows: Sequence[models.Model]) -> dict[int, dict[str, list[Any]]]:
    found = {}
    recorded = [row for row in rows if isinstance(row, Recorded)]
    for model in {type(row) for row in recorded}:
        ours = [row for row in recorded if type(row) is model]
        names = {field.attname for field in recorded_fields(model)}
        if all(row.as_read is not None for row in ours):
            names &= {name for row in ours if row.as_read for name in row.as_read[0]}
        now = model._base_manager.only(*names).in_bulk([row.pk for row in ours])
        for row in ours:
            if (present := now.get(row.pk)) is not None:
                found[id(row)] = _compare(row, present) | row.changed_besides
    return found


def _compare(row: Recorded, present: Recorded) -> dict[str, list[Any]]:
    """Old and new values of changed columns; for a new row those that are not empty."""
    read = None if row.as_read is None else dict(zip(*row.as_read, strict=True))
    changes: dict[str, list[Any]] = {}
    for field in recorded_fields(type(row)):
        if read is not None and field.attname not in read:
            continue
        old = None if read is None else read[field.attname]
        new = getattr(present, field.attname)
        if field.name in row.recorded_as_secret:
            if not row.is_same_secret(old or "", new or ""):
                changes[field.name] = [SECRET if old else None, SECRET if new else None]
        elif old != new and not (read is None and new in EMPTY):
            changes[field.name] = [plain(old), plain(new)]
    if row.related_as_read is not None or read is None:
        before, after = row.related_as_read or {}, row.recorded_relations()
        changes |= {
            name: [before.get(name), after[name]]
            for name in after
            if before.get(name) != after[name] and (before.get(name) or after[name])
        }
    return changes


def values_of(row: models.Model) -> dict[str, Any]:
    """The values of a deleted row that are not empty; secrets are masked."""
    if not isinstance(row, Recorded):
        return {}
    deferred = row.get_deferred_fields()
    fields = [field for field in recorded_fields(type(row)) if field.attname not in deferred]
    values = {
        field.name: SECRET if field.name in row.recorded_as_secret else plain(getattr(row, field.attname))
        for field in fields
        if getattr(row, field.attname) not in EMPTY
    }
    return values | {name: value for name, value in row.recorded_relations().items() if value}


def recorded_fields(model: type[Recorded]) -> list[Any]:
    named = {*model.recorded_besides, *model.recorded_as_secret}
    return [
        field
        for field in model._meta.concrete_fields
        if field.name in named or (field.editable and not field.primary_key)
    ]


def plain(value: Any) -> Any:
    """The value as JSON in the history."""
    if value is None or isinstance(value, str | bool | int):
        return value  # Most values are, and an import records tens of thousands
    return json.loads(json.dumps(value, cls=DjangoJSONEncoder))


def recorded_model(label: str) -> type[Recorded] | None:
    """None if the model is gone or its values are not recorded."""
    try:
        model = apps.get_model(label)
    except LookupError:
        return None
    return model if issubclass(model, Recorded) else None


def set_fields(row: models.Model, values: Mapping[str, Any], *, allowed: Collection[str]) -> None:
    """Sets the allowed fields without saving. Raises TypeError for any other field."""
    if unknown := values.keys() - set(allowed):
        raise TypeError(f"These fields cannot be set here: {', '.join(sorted(unknown))}")
    for name, value in values.items():
        setattr(row, name, value)


def write_fields(row: models.Model, values: Mapping[str, Any]) -> None:
    """Raises ValidationError keyed by field."""
    set_fields(row, values, allowed=values)
    row.full_clean()
    row.save(update_fields=list(values))


def changed_fields(names: Iterable[str]) -> str:
    return f"Changed {', '.join(sorted(names)) or 'nothing'}."


def cut_to_difference(old: str, new: str, *, shown: int) -> tuple[str, str]:
    """Long values, cut to that many characters around the first that differs."""
    if max(len(old), len(new)) <= shown:
        return old, new
    alike = min(len(old), len(new))
    same = next((at for at in range(alike) if old[at] != new[at]), alike)
    start = max(0, same - shown // SHOWN_BEFORE)
    return _cut(old, start, shown), _cut(new, start, shown)


def _cut(text: str, start: int, shown: int) -> str:
    before, after = "…" if start else "", "…" if len(text) > start + shown else ""
    return f"{before}{text[start : start + shown]}{after}"
