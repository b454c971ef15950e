"""The audit as JSON lines: each segment's entries, then the segment; last those that are not sealed yet.

An export proves itself: the digests of entries, segments and chain can be made from its lines alone.
"""

import json
from collections.abc import Collection, Iterable, Iterator
from datetime import datetime
from typing import Any

from audit.models import Entry, Segment, digest_of
from audit.sealing import Report, root_of

AT_A_TIME = 500


def export_lines(
    *, kinds: Collection[str] = (), since: datetime | None = None, until: datetime | None = None
) -> Iterator[str]:
    """One JSON object a line. Segments are whole: one is left out if all of its entries are out of bounds."""
    last = 0
    while page := list(Segment.objects.filter(number__gt=last).order_by("number")[:AT_A_TIME]):
        for segment in page:
            yield from _lines_of(segment, kinds, since, until)
        last = page[-1].number
    yield from _unsealed_lines(_bounds(kinds, since, until))


def _unsealed_lines(bounds: dict[str, Any]) -> Iterator[str]:
    last = 0
    unsealed = Entry.objects.filter(segment=None, **bounds).order_by("pk")
    while page := list(unsealed.filter(pk__gt=last)[:AT_A_TIME]):
        for entry in page:
            yield _line({"type": "entry", "segment": None, **entry.content()})
        last = page[-1].pk


def _lines_of(
    segment: Segment, kinds: Collection[str], since: datetime | None, until: datetime | None
) -> Iterator[str]:
    if (kinds and segment.kind not in kinds) or (since is not None and segment.newest_at < since):
        return
    if segment.pruned_at is None:
        entries = list(Entry.objects.filter(segment=segment.number).order_by("pk"))
        if until is not None and entries and min(entry.at for entry in entries) >= until:
            return
        for entry in entries:
            yield _line({"type": "entry", "segment": segment.number, **entry.content()})
    more = {"digest": segment.digest, "seal": segment.seal, "seal_key": segment.seal_key}
    is_pruned = segment.pruned_at is not None
    yield _line({"type": "segment", **segment.content(), **more, "pruned": is_pruned})


def _bounds(kinds: Collection[str], since: datetime | None, until: datetime | None) -> dict[str, Any]:
    given = {"kind__in": list(kinds), "at__gte": since, "at__lt": until}
    return {name: value for name, value in given.items() if value}


def _line(content: dict[str, Any]) -> str:
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False) + "\n"


def verify_lines(lines: Iterable[str]) -> Report:
    """Of an export alone. Segments need not follow one another, as an export may have some kinds only."""
    leaves: list[str] = []
    report, previous = Report(), None
    for number, line in enumerate(lines, 1):
        try:
            content = json.loads(line)
            kind = content.pop("type")
        except (ValueError, KeyError, TypeError, AttributeError):
            report.note(f"line {number} is no line of an export")
            continue
        segment = content.pop("segment", None)
        if kind == "segment":
            _verify_line(content, leaves, previous, report)
            leaves, previous = [], content
        elif segment is None:
            report.unsealed += 1
        else:
            report.entries += 1
            leaves.append(f"{content.get('id')}:{digest_of(content)}")
    if leaves:
        report.note("the last entries have no segment: the export was cut off")
    return report


def _verify_line(
    content: dict[str, Any], leaves: list[str], previous: dict[str, Any] | None, report: Report
) -> None:
    number = content.get("number")
    digest, is_pruned = content.pop("digest", ""), content.pop("pruned", False)
    sealed = {name: value for name, value in content.items() if name not in ("seal", "seal_key")}
    report.segments += 1
    report.pruned += bool(is_pruned)
    report.head = f"{number}:{digest}"
    if digest_of(sealed) != digest:
        report.note("it was changed: its digest is another", segment=number)
    if not is_pruned and root_of("\n".join(leaves)) != content.get("root"):
        report.note("an entry of it was changed, left out or put in", segment=number)
    follows = previous is not None and previous.get("number") == (number or 0) - 1
    if follows and previous is not None and content.get("previous") != previous.get("digest"):
        report.note("it does not continue the segment before", segment=number)
    content["digest"] = digest
