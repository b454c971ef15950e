"""Old and new values of a change, for people."""

import json
from typing import Any

from catalogue.history import recorded_model
from catalogue.models import HistoryEntry

SHOWN_CHANGES, SHOWN_VALUE = 4, 50


def tell_changes(entry: HistoryEntry) -> list[str]:
    """`title: empty → Report`, a line for each of the first fields."""
    told = [
        f"{field_label(entry, name)}: {_in_short(old)} → {_in_short(new)}"
        for name, (old, new) in entry.changes.items()
    ]
    more = len(told) - SHOWN_CHANGES
    return told[:SHOWN_CHANGES] + ([f"and {more} more"] if more > 0 else [])


def _in_short(value: Any) -> str:
    text = " ".join(value_in_full(value).split())
    return text if len(text) <= SHOWN_VALUE else f"{text[:SHOWN_VALUE]}…"


def value_in_full(value: Any) -> str:
    match value:
        case None | "" | [] | {}:
            return "empty"
        case bool():
            return "on" if value else "off"
        case str():
            return value
        case list() if all(isinstance(part, str) for part in value):
            return ", ".join(value)
    return json.dumps(value, ensure_ascii=False, indent=2)


def field_label(entry: HistoryEntry, name: str) -> str:
    """The field as the forms call it."""
    model = recorded_model(entry.model)
    fields = {} if model is None else {field.name: field for field in model._meta.get_fields()}
    return str(getattr(fields.get(name), "verbose_name", name.replace("_", " ")))
