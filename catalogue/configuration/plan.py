"""What an import changes, told before and after in the same words."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

SHOWN_VALUE = 160
SHOWN_BEFORE = 30
SHOWN_CHANGES = 12
"""Of one object, in its history."""


class Verb(StrEnum):
    ADD = "add"
    CHANGE = "change"
    REMOVE = "remove"


SIGNS = {Verb.ADD: "+", Verb.CHANGE: "~", Verb.REMOVE: "-"}
DONE = {Verb.ADD: "added", Verb.CHANGE: "changed", Verb.REMOVE: "removed"}


@dataclass(frozen=True, slots=True)
class FieldChange:
    """From one value to another, both as text."""

    name: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.name}: {self.old} -> {self.new}"


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedChange:
    verb: Verb
    kind: str
    """Such as `source`."""
    name: str
    fields: tuple[FieldChange, ...] = ()

    def __str__(self) -> str:
        lines = [f"{SIGNS[self.verb]} {self.kind} {self.name}", *(f"    {one}" for one in self.fields)]
        return "\n".join(lines)

    @property
    def told(self) -> str:
        """For the object's history."""
        shown = "; ".join(map(str, self.fields[:SHOWN_CHANGES]))
        more = len(self.fields) - SHOWN_CHANGES
        return shown + (f"; and {more} more" if more > 0 else "")


@dataclass(slots=True)
class Plan:
    """Everything that an import changes, in the order in which it does."""

    changes: list[PlannedChange] = field(default_factory=list)
    is_done: bool = False

    def __bool__(self) -> bool:
        return bool(self.changes)

    def __str__(self) -> str:
        return "\n".join([*map(str, self.changes), self.counts])

    @property
    def counts(self) -> str:
        """`2 sources to add, 1 workflow to change.`, and `added` and `changed` afterwards."""
        if not self.changes:
            return "Nothing differs."
        counted = Counter((change.kind, change.verb) for change in self.changes)
        parts = [
            f"{number:,} {_plural(kind, number)} {DONE[verb] if self.is_done else f'to {verb}'}"
            for (kind, verb), number in counted.items()
        ]
        return ", ".join(parts) + "."

    @property
    def digest(self) -> str:
        """The same for the same changes."""
        return hashlib.sha256("\n".join(map(str, self.changes)).encode()).hexdigest()


def _plural(kind: str, number: int) -> str:
    return kind if number == 1 or kind.endswith("s") else f"{kind}s"


def compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[FieldChange, ...]:
    """The keys whose values differ; what is only in one of them is `-` in the other."""
    names = [*new, *(name for name in old if name not in new)]
    return tuple(
        FieldChange(name, *_show_both(_text(old, name), _text(new, name)))
        for name in names
        if name not in old or name not in new or old[name] != new[name]
    )


def _text(values: Mapping[str, Any], name: str) -> str:
    return json.dumps(values[name], ensure_ascii=False) if name in values else "-"


def _show_both(old: str, new: str) -> tuple[str, str]:
    """Cut where they are long, and begun shortly before they begin to differ."""
    if max(len(old), len(new)) <= SHOWN_VALUE:
        return old, new
    same = next((at for at, (one, other) in enumerate(zip(old, new, strict=False)) if one != other), 0)
    start = max(0, same - SHOWN_BEFORE)
    return _cut(old, start), _cut(new, start)


def _cut(text: str, start: int) -> str:
    before, after = "..." if start else "", "..." if len(text) > start + SHOWN_VALUE else ""
    return f"{before}{text[start : start + SHOWN_VALUE]}{after}"
