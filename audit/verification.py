"""Whether every sealed entry is there as it was sealed."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

from django.conf import settings
from django.utils.crypto import constant_time_compare

from audit.models import Entry, Kind, Segment, digest_of
from audit.sealing import key_name, root_of, seal_of, witnesses

AT_A_TIME = 100  # Segments
MOST_PROBLEMS = 1_000


@dataclass(frozen=True, slots=True)
class Problem:
    segment: int | None
    entry: int | None
    message: str

    def __str__(self) -> str:
        places = [
            f"{name} {number}"
            for name, number in (("segment", self.segment), ("entry", self.entry))
            if number is not None
        ]
        return f"{', '.join(places) or 'chain'}: {self.message}"


@dataclass(slots=True)
class Report:
    segments: int = 0
    entries: int = 0
    pruned: int = 0  # Segments whose entries the retention removed
    unsealed: int = 0
    unsealed_since: datetime | None = None
    unknown_keys: int = 0  # Segments sealed with a key that is not known any more
    vanished: int = 0  # Records of other rooms that their own retention has removed
    head: str = ""
    problems: list[Problem] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        return not self.problems

    def note(self, message: str, *, segment: int | None = None, entry: int | None = None) -> None:
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(Problem(segment, entry, message))


def verify(*, known_head: str = "") -> Report:
    """`known_head`: `number:digest` from `sealing.head` before; proves that nothing was cut off since."""
    report, previous, pruned = Report(), "", {}
    keys = {key_name(key): key for key in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)}
    known_number, _, known_digest = known_head.partition(":")
    is_found = not known_head
    for segment in _segments():
        report.segments += 1
        if segment.number != report.segments:
            report.note(f"segment {report.segments} is missing", segment=report.segments)
            report.segments = segment.number
        elif segment.previous != previous:
            report.note("it does not continue the segment before", segment=segment.number)
        _verify_segment(segment, keys, report)
        if segment.pruned_at is None:
            _verify_entries(segment, report)
        else:
            report.pruned += 1
            pruned[segment.number] = segment.digest
        previous, report.head = segment.digest, str(segment)
        is_found |= known_number == str(segment.number) and known_digest == segment.digest
    if not is_found:
        report.note(f"the known head {known_head} is not in it: it was cut off or written anew")
    _verify_pruning(pruned, report)
    _count_unsealed(report)
    return report


def _segments() -> Iterator[Segment]:
    """Without a cursor of the server, which would hold back its clean-up for as long as this takes."""
    last = 0
    while page := list(Segment.objects.filter(number__gt=last).order_by("number")[:AT_A_TIME]):
        yield from page
        last = page[-1].number


def _verify_segment(segment: Segment, keys: dict[str, str], report: Report) -> None:
    number = segment.number
    if digest_of(segment.content()) != segment.digest:
        report.note("it was changed: its digest is another", segment=number)
    if (key := keys.get(segment.seal_key)) is None:
        report.unknown_keys += 1
    elif not constant_time_compare(seal_of(segment.digest, key)[0], segment.seal):
        report.note("its seal was not made with this product's key", segment=number)
    if segment.pruned_at is None and root_of(segment.leaves) != segment.root:
        report.note("the list of its entries was changed", segment=number)


def _verify_entries(segment: Segment, report: Report) -> None:
    leaves = dict(line.partition(":")[::2] for line in segment.leaves.splitlines())
    entries = {str(entry.pk): entry for entry in Entry.objects.filter(segment=segment.number)}
    report.entries += len(entries)
    for number, digest in leaves.items():
        if (entry := entries.get(number)) is None:
            report.note("it is missing", segment=segment.number, entry=_number(number))
        elif entry.digest != digest:
            report.note("it was changed", segment=segment.number, entry=entry.pk)
    for number in entries.keys() - leaves.keys():
        report.note("it was put in after the sealing", segment=segment.number, entry=_number(number))
    _verify_records(segment.number, {entry.key: entry for entry in entries.values() if entry.key}, report)


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else None


def _verify_records(segment: int, entries: dict[str, Entry], report: Report) -> None:
    """Whether the records of other rooms are as they were when they were gathered."""
    for witness in witnesses:
        ours = {key: entry for key, entry in entries.items() if key.startswith(f"{witness.name}:")}
        now = witness.again(ours) if ours else {}
        for key, entry in ours.items():
            if (present := now.get(key)) is None:
                report.vanished += 1
                if not witness.may_vanish:
                    report.note(f"its record {key} is missing", segment=segment, entry=entry.pk)
            elif present.told() != entry.told():
                report.note(f"its record {key} was changed", segment=segment, entry=entry.pk)


def _verify_pruning(pruned: dict[int, str], report: Report) -> None:
    """The audit says of each segment that the retention has emptied it."""
    noted = set()
    for details in Entry.objects.filter(kind=Kind.AUDIT, event="audit.pruned").values_list(
        "subject", "details"
    ):
        subject, told = details
        noted.add((subject.rpartition(":")[2], json.loads(told).get("digest")))
    for number, digest in pruned.items():
        if (str(number), digest) not in noted:
            report.note("its entries are gone, and no retention has noted that", segment=number)


def _count_unsealed(report: Report) -> None:
    unsealed = Entry.objects.filter(segment=None).order_by("at")
    report.unsealed = unsealed.count()
    report.unsealed_since = unsealed.values_list("at", flat=True).first()
    last = 0 if not report.head else int(report.head.partition(":")[0])
    for entry in Entry.objects.filter(segment__gt=last).order_by("pk")[:MOST_PROBLEMS]:
        report.note("its segment is missing", segment=entry.segment, entry=entry.pk)
