"""Audit entries of changes to the catalogue, the audit's export as a file, and searching its lists."""

import hashlib
import json
from collections.abc import Collection, Iterator
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from django.db.models import QuerySet
from django.http import StreamingHttpResponse

from audit.models import Entry, Kind, as_text, record
from audit.sealing import (
    AuditSource,
    Report,
    changes_of_retention,
    checks,
    export_lines,
    note_copies,
    witnesses,
)
from catalogue.database import release_connection
from catalogue.history import Actor, plain, recorded_fields
from catalogue.long_lists import search_newest, with_keys
from catalogue.models import HistoryEntry, ProductSettings, Recorded
from connectors.formats.json import as_object
from connectors.network.redaction import printable

NAME = "history"
KINDS = {
    "mcp_bridge.accesstoken": Kind.TOKEN,
    "mcp_bridge.allowedapplication": Kind.TOKEN,
    "auth.user": Kind.ACCOUNT,
    "auth.group": Kind.ACCOUNT,
    "catalogue.productsettings": Kind.SETTING,
    "executions.retention": Kind.SETTING,
    "executions.cachepolicy": Kind.SETTING,
}
IMPORTED = "Imported "  # The prefix of messages of imports


def follow_history() -> None:
    witnesses.append(
        AuditSource(
            name=NAME,
            rows=HistoryEntry.objects.all,
            by="at",
            delay=timedelta(0),
            entries=_entries,
            rows_are_deletable=False,
        )
    )
    changes_of_retention.append(_changes_of_settings)
    checks.append(_verify_history)


def _changes_of_settings() -> list[tuple[datetime, dict[str, Any]]]:
    changes = HistoryEntry.of_key(ProductSettings, ProductSettings.ONLY).order_by("at", "pk")
    news = ((each.at, _new_values(each)) for each in changes)
    return [(at, as_object(new["overrides"])) for at, new in news if "overrides" in new]


def _new_values(change: HistoryEntry) -> dict[str, Any]:
    changes = as_object(change.changes).items()
    return {name: values[1] for name, values in changes if isinstance(values, list) and len(values) == 2}


def _verify_history(report: Report) -> None:
    note_copies(HistoryEntry, report, "at", "model", "object_id", "message")
    note_unrecorded(ProductSettings, report)


def note_unrecorded(model: type[Recorded], report: Report) -> None:
    """Reports where the only row differs from the history's last record, or without one from the defaults."""
    row, last = model._default_manager.first() or model(), dict[str, Any]()
    for change in HistoryEntry.of_key(model, row.pk).order_by("at", "pk"):
        last |= _new_values(change)
    for column in recorded_fields(model):
        recorded = last.get(column.name, column.get_default())
        if (stored := plain(getattr(row, column.attname))) != recorded and (stored or recorded):
            report.note(f"{model._meta.label_lower}: {column.name} is {stored}, recorded was {recorded}")


def _entries(keys: Collection[str], _: bool) -> dict[str, Entry]:
    changes = HistoryEntry.objects.filter(pk__in=[int(key.partition(":")[2]) for key in keys])
    return {f"{NAME}:{change.pk}": _entry_of(change) for change in changes}


def _entry_of(change: HistoryEntry) -> Entry:
    entry = Entry(
        at=change.at,
        kind=_kind_of(change),
        event=f"{change.model.rpartition('.')[2]}.{change.kind}"[:40],
        actor=change.actor,
        actor_name=printable(change.actor_name),
        door=change.door,
        subject=f"{change.model}:{change.object_id}"[:255],
        subject_name=printable(change.object_name),
        outcome=change.kind,
        details=json.dumps({"history": change.pk, "sha256": _digest_of(change)}, sort_keys=True),
        key=f"{NAME}:{change.pk}",
    )
    entry.is_of_proven_record = change.is_proven
    return entry


def _kind_of(change: HistoryEntry) -> Kind:
    if change.message.startswith(IMPORTED):
        return Kind.IMPORT
    return KINDS.get(change.model, Kind.CURATION)


def _digest_of(change: HistoryEntry) -> str:
    """Covers the whole change, with its values, but not its proof and batch, which older ones lack."""
    whole = {field.attname: getattr(change, field.attname) for field in change._meta.concrete_fields}
    del whole["proof"], whole["batch"]
    whole["at"] = as_text(change.at)
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()


TEXTS = ("event", "actor", "actor_name", "subject_name", "address", "client")
AT_A_TIME = 1_000  # Lines
MEDIA_TYPE = "application/jsonl"
FILE_NAME = "audit.jsonl"


def matching(entries: QuerySet[Entry], texts: Collection[str]) -> QuerySet[Entry]:
    """The newest entries with each text, and all entries of an execution with that id."""
    found = search_newest(entries, texts, TEXTS, by="at")
    keys = [f"{name}:{text}" for text in texts for name in ("call", "began")]
    found |= set(entries.filter(key__in=keys).values_list("pk", flat=True))
    return with_keys(entries, found)


def record_export(by: Actor, what: str, **details: Any) -> None:
    """Call it for everything that leaves the product as a file. `details` must not contain secrets."""
    record(
        Kind.EXPORT,
        f"{what.replace(' ', '_')}.exported",
        actor=by.key,
        actor_name=by.name,
        door=by.door.value,
        subject_name=what,
        **details,
    )


def send_export(by: Actor, **chosen: Any) -> StreamingHttpResponse:
    """The audit as a file; see `audit.sealing.export_lines`."""
    filters = {name: str(value) for name, value in chosen.items() if value}
    record_export(by, "audit", **filters)
    response = StreamingHttpResponse(
        _encoded(export_lines(**chosen)), content_type=f"{MEDIA_TYPE}; charset=utf-8"
    )
    response["Content-Disposition"] = f'attachment; filename="{FILE_NAME}"'
    return response


def _encoded(lines: Iterator[str]) -> Iterator[bytes]:
    while batch := list(islice(lines, AT_A_TIME)):
        yield "".join(batch).encode("utf-8", "surrogateescape")
        # A slow reader must not occupy a connection.
        release_connection()
