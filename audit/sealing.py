"""Gathering the records of other rooms; sealing, exporting and verifying the audit; and its retention.

Writers only insert, and never wait for a sealer or for each other. An entry belongs to no segment until a
sealer finds it committed: an entry that commits late, with a lower number than a sealed one, gets into a
later segment. Sealers take turns by the lock of one row. Segments are numbered without gaps, and their
numbers are unique. Records that other rooms write anyway are not written twice: a sealer reads them there, by
their time, and looks back far enough for transactions that commit late. The key of the record prevents
duplicate entries.
"""

import hashlib
import json
import re
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import Count, Exists, Max, Min, Model, OuterRef, Q, QuerySet
from django.utils import timezone
from django.utils.crypto import constant_time_compare, salted_hmac
from loguru import logger

from audit.models import TOLD, Entry, Kind, Progress, Segment, digest_of, record
from connectors.background import CLOCKS_APART, WorkTime

BATCH = 200  # Entries at a time: SQLite has one writer
MAX_PROBLEMS = 1_000
LATE = timedelta(minutes=2)  # How long after the time that it wrote a transaction may commit
RECHECKED_EVERY, RECHECKED = timedelta(hours=1), timedelta(days=1)
SALT = "audit seal v1"
LONG_AGO = datetime(1970, 1, 1, tzinfo=timezone.get_default_timezone())
FAR_AHEAD = datetime(9999, 1, 1, tzinfo=timezone.get_default_timezone())
DAYS: dict[
    str, str
] = {  # The setting for how long entries are kept; the audit's own entries are kept forever
    Kind.CALL: "audit_call_days",
    Kind.SIGN_IN: "audit_sign_in_days",
    Kind.TOKEN: "audit_access_days",
    Kind.ACCOUNT: "audit_access_days",
    Kind.APPROVAL: "audit_access_days",
    Kind.CURATION: "audit_change_days",
    Kind.SETTING: "audit_change_days",
    Kind.IMPORT: "audit_change_days",
    Kind.EXPORT: "audit_change_days",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditSource:
    """Records of another room that the audit covers."""

    name: str  # Keys of entries are `name:key of the record`
    rows: Callable[[], QuerySet[Any]]
    by: str
    """The column with the time of a record."""
    delay: timedelta
    """The minimum age of gathered records."""
    entries: Callable[[Collection[str], bool], dict[str, Entry]]
    """Entries for the records with these keys that still exist, by key, as they are now; if wanted, with
    digests of their payloads as they are now."""
    rows_are_deletable: bool
    """Whether another retention removes the records."""

    def gather(
        self, since: datetime, until: datetime, *, adopts: bool
    ) -> tuple[list[Entry], datetime | None]:
        """A batch of new entries for records in a span of time, the oldest first. Also the time that was
        reached, or None for the whole span."""
        found: list[Entry] = []
        for entries, reached in self.missing(since, until):
            found += [entry for entry in entries if entry.is_proven or adopts]
            if len(found) >= BATCH:
                return found, reached
        return found, None

    def missing(self, since: datetime, until: datetime) -> Iterator[tuple[list[Entry], datetime]]:
        """A page of entries that the audit does not have yet, and the time of the page's last record."""
        begin, after, reached = since, Q(), None
        while True:
            # An index serves only the span.
            span = {f"{self.by}__gte": begin, f"{self.by}__lte": until}
            rows = self.rows().filter(after, **span).order_by(self.by, "pk")
            page = list(rows.values_list("pk", self.by)[:BATCH])
            # Times that somebody else wrote may be in another form, which is after itself.
            if not page or page[-1] == reached:
                return
            last, begin = reached = page[-1]
            yield self._new_entries([f"{self.name}:{key}" for key, _ in page]), begin
            if len(page) < BATCH:
                return
            after = Q(**{f"{self.by}__gt": begin}) | Q(pk__gt=last)

    def _new_entries(self, keys: Sequence[str]) -> list[Entry]:
        known = set(Entry.objects.filter(key__in=keys).values_list("key", flat=True))
        entries = self.entries([key for key in keys if key not in known], False)
        return [entries[key] for key in keys if key in entries]


witnesses: list[AuditSource] = []
checks: list[Callable[["Report"], None]] = []  # Of other rooms: they note what contradicts the audit
renewals: list[Callable[[bool], None]] = []  # See `renew_proofs`
changes_of_retention: list[Callable[[], list[tuple[datetime, dict[str, Any]]]]] = []
"""When people changed settings in DAYS, the oldest first, and to what; others are the environment's."""


def seal(*, seconds: float | None = None, adopts: bool = False) -> int:
    """Seal everything that is settled and that the product wrote, for about `seconds` if given. Returns how
    many entries. Several processes may call it at the same time."""
    sealed, last, work_time = 0, 0, WorkTime(seconds)
    while not work_time.is_over:
        begun = time.monotonic()
        try:
            number, last, is_more = _seal_batch(last, adopts)
        except IntegrityError as error:
            # Of the processes that begin an empty audit together, another one created the first rows.
            logger.debug("Another process seals the audit: {}", error)
            break
        sealed += number
        if not is_more:
            break
        work_time.rest_after(begun)
    if sealed:
        logger.info("Sealed {} entries of the audit; its head is now {}", sealed, head())
    return sealed


def head() -> str:
    """`number:digest` of the last segment, to store elsewhere; empty before the first."""
    last = Segment.objects.order_by("number").last()
    return "" if last is None else str(last)


@transaction.atomic
def _seal_batch(after: int, adopts: bool) -> tuple[int, int, bool]:
    """Seals stored entries after that number. Returns how many were sealed, the last number that was
    examined, and whether there may be more."""
    progress = Progress.objects.select_for_update(skip_locked=not adopts).filter(pk=Progress.ONLY).first()
    if progress is None and not Progress.objects.filter(pk=Progress.ONLY).exists():
        progress = Progress.objects.create()
    if progress is None:  # Another process seals
        return 0, after, False
    last = Segment.objects.order_by("number").last()
    if last is not None and not adopts and not _is_sealed(last, _known_keys()):
        logger.warning("The audit is not sealed any more: verify_audit says more of segment {}", last.number)
        return 0, after, False
    by_kind: dict[str, list[Entry]] = defaultdict(list)
    is_more = _gather(progress, by_kind, adopts)
    written = list(Entry.objects.filter(segment=None, pk__gt=after).order_by("pk")[:BATCH])
    for entry in written:
        if adopts or not _why_not_sealed(entry):
            by_kind[entry.kind].append(entry)
    for kind, entries in sorted(by_kind.items()):
        _seal_entries(kind, entries)
    reached = written[-1].pk if written else after
    return sum(map(len, by_kind.values())), reached, is_more or len(written) == BATCH


def _gather(progress: Progress, by_kind: dict[str, list[Entry]], adopts: bool) -> bool:
    """Adds entries that are not stored yet. Returns whether there are more."""
    now, gathered, is_more = timezone.now(), json.loads(progress.gathered), False
    # In the future after the clock was set back, when records may be older than the mark.
    is_due = progress.rechecked_at is None or not (
        -CLOCKS_APART < now - progress.rechecked_at <= RECHECKED_EVERY
    )
    reach = RECHECKED if is_due else LATE
    for witness in witnesses:
        mark = datetime.fromisoformat(gathered.get(witness.name, LONG_AGO.isoformat()))
        until = now - witness.delay
        if mark > until + CLOCKS_APART:
            mark = until
        begin = LONG_AGO if adopts else max(LONG_AGO, mark - reach)
        found, reached = witness.gather(begin, until, adopts=adopts)
        for entry in found:
            by_kind[entry.kind].append(entry)
        is_more |= reached is not None
        # While there are more, everything behind the mark was examined in this turn.
        gathered[witness.name] = max(mark, until if reached is None else reached).isoformat()
    progress.gathered = json.dumps(gathered)
    if not is_more:
        progress.rechecked_at = now if is_due else progress.rechecked_at
    progress.save()
    return is_more


def gathered_until(name: str) -> datetime:
    """Until when the records of this witness are in the audit."""
    progress = Progress.objects.filter(pk=Progress.ONLY).first()
    gathered = {} if progress is None else json.loads(progress.gathered)
    mark = datetime.fromisoformat(gathered.get(name, LONG_AGO.isoformat()))
    return mark if mark - LONG_AGO < LATE else mark - LATE


def _seal_entries(kind: str, entries: list[Entry]) -> None:
    last = Segment.objects.order_by("number").last()
    number, previous = (1, "") if last is None else (last.number + 1, last.digest)
    new = [entry for entry in entries if entry._state.adding]
    for entry in new:
        entry.segment = number
    Entry.objects.bulk_create(new)
    stored = [entry.pk for entry in entries if entry.segment is None]
    if stored:
        Entry.objects.filter(pk__in=stored, segment=None).update(segment=number)
    leaves = "\n".join(f"{entry.pk}:{entry.digest}" for entry in sorted(entries, key=lambda entry: entry.pk))
    segment = Segment(
        number=number,
        kind=kind,
        sealed_at=timezone.now(),
        newest_at=max(entry.at for entry in entries),
        entries=len(entries),
        root=root_of(leaves),
        previous=previous,
        leaves=leaves,
    )
    segment.digest = digest_of(segment.content())
    segment.seal, segment.seal_key = seal_of(segment.digest, settings.SECRET_KEY)
    segment.save(force_insert=True)  # The key is no proof that the row is new


def _known_keys() -> dict[str, str]:
    return {key_name(key): key for key in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)}


def _is_sealed(segment: Segment, keys: dict[str, str]) -> bool:
    key = keys.get(segment.seal_key)
    return key is not None and constant_time_compare(seal_of(segment.digest, key)[0], segment.seal)


def root_of(leaves: str) -> str:
    return hashlib.sha256(leaves.encode()).hexdigest()


def seal_of(digest: str, key: str) -> tuple[str, str]:
    """The seal, and an identifier of the key."""
    made = salted_hmac(SALT, digest, secret=key, algorithm="sha256").hexdigest()
    return made, key_name(key)


def key_name(key: str) -> str:
    return salted_hmac(SALT, "name of the key", secret=key, algorithm="sha256").hexdigest()[:16]


def prune(*, seconds: float | None = None) -> int:
    """Remove the entries of segments past the retention of their kind, one segment at a time. The digest
    stays, and an entry of the audit itself records the removal. Returns how many entries."""
    removed, work_time = 0, WorkTime(seconds)
    for kind, setting in DAYS.items():
        days: int = getattr(settings.CATALOGUE, setting)
        if days not in _days_in_force(setting, _given_days(setting), timezone.now()):
            logger.warning("No entry of the audit is removed: no change explains {} = {}", setting, days)
            continue
        while days and not work_time.is_over:
            begun = time.monotonic()
            number = _prune_segment(kind, timezone.now() - timedelta(days=days), days)
            if number is None:
                break
            removed += number
            work_time.rest_after(begun)
    return removed


def _given_days(setting: str) -> Any:
    return settings.CATALOGUE.given(setting)  # type: ignore[attr-defined]


@transaction.atomic
def _prune_segment(kind: str, before: datetime, days: int) -> int | None:
    """Returns how many entries were removed; None if no segment is due."""
    due = Segment.objects.filter(kind=kind, newest_at__lt=before, pruned_at=None).order_by("newest_at")
    segment = due.select_for_update(skip_locked=True).first()
    if segment is None:
        return None
    record(
        Kind.AUDIT,
        "audit.pruned",
        actor="retention",
        actor_name="retention",
        subject=f"audit.segment:{segment.number}",
        subject_name=f"segment {segment.number}",
        digest=segment.digest,
        entries=segment.entries,
        of=segment.kind,
        kept_days=days,
        given_days=_given_days(DAYS[kind]),
    )
    Segment.objects.filter(pk=segment.pk).update(pruned_at=timezone.now(), leaves="")
    return Entry.objects.filter(segment=segment.number).delete()[0]


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
    unknown_keys: int = 0  # Segments sealed with a key that is no longer known
    vanished: int = 0  # Records of other rooms that another retention removed
    head: str = ""
    problems: list[Problem] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        return not self.problems

    def note(self, message: str, *, segment: int | None = None, entry: int | None = None) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(Problem(segment, entry, message))


def verify(*, known_head: str = "") -> Report:
    """`known_head`: `number:digest` from `sealing.head` before; proves that nothing was cut off since."""
    report, previous, pruned = Report(), "", []
    keys, is_covered = _known_keys(), True
    known_number, _, known_digest = known_head.partition(":")
    is_found = not known_head
    for segment in _in_pages(Segment.objects.all(), "number"):
        report.segments += 1
        if segment.number != report.segments:
            report.note(f"segment {report.segments} is missing", segment=report.segments)
            report.segments = segment.number
        elif segment.previous != previous:
            report.note("it does not continue the segment before", segment=segment.number)
        _verify_segment(segment, keys, report)
        _verify_entries(segment, report)
        if segment.pruned_at is not None:
            report.pruned += 1
            pruned.append(segment)
        previous, report.head, is_covered = segment.digest, str(segment), segment.seal_key in keys
        is_found |= known_number == str(segment.number) and known_digest == segment.digest
    if not is_found:
        report.note(f"the known head {known_head} is not in it: it was truncated or rewritten")
    if not is_covered:
        report.note(f"the key that sealed its end, {report.head}, is unknown")
    _verify_pruning(pruned, Entry.objects.filter(kind=Kind.AUDIT, event="audit.pruned"), report)
    _verify_unsealed(report)
    _verify_gathering(report)
    note_copies(Entry, report, "at", *TOLD)
    for check in checks:
        check(report)
    return report


def _verify_segment(segment: Segment, keys: dict[str, str], report: Report) -> None:
    number = segment.number
    if digest_of(segment.content()) != segment.digest:
        report.note("it was changed: its digest is another", segment=number)
    if segment.seal_key not in keys:
        report.unknown_keys += 1  # The next segments cover it
    elif not _is_sealed(segment, keys):
        report.note("its seal was not made with this product's key", segment=number)
    if segment.pruned_at is None and root_of(segment.leaves) != segment.root:
        report.note("the list of its entries was changed", segment=number)


def _verify_entries(segment: Segment, report: Report) -> None:
    leaves = dict(line.partition(":")[::2] for line in segment.leaves.splitlines())  # Pruned ones have none
    entries = {str(entry.pk): entry for entry in Entry.objects.filter(segment=segment.number)}
    report.entries += len(entries)
    for number, digest in leaves.items():
        if (entry := entries.get(number)) is None:
            report.note("it is missing", segment=segment.number, entry=_number(number))
        elif entry.digest != digest:
            report.note("it was changed", segment=segment.number, entry=entry.pk)
    for number in entries.keys() - leaves.keys():
        report.note("it was inserted after the sealing", segment=segment.number, entry=_number(number))
    _verify_records(segment.number, {entry.key: entry for entry in entries.values() if entry.key}, report)


UNPROVEN = "this version of the product did not write it"


def _why_not_sealed(entry: Entry) -> str:
    if not entry.is_proven:
        return UNPROVEN
    emptied = Segment.objects.filter(kind=entry.kind, newest_at__gte=entry.at).exclude(pruned_at=None)
    # The retention is at least a day.
    was_removed = timezone.now() - entry.at > timedelta(days=1) and emptied.exists()
    return "the retention had removed it, and it was put back" if was_removed else ""


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else None


def _verify_records(segment: int, entries: dict[str, Entry], report: Report) -> None:
    """Checks that the records of other rooms are unchanged since they were gathered."""
    for witness in witnesses:
        ours = {key: entry for key, entry in entries.items() if key.startswith(f"{witness.name}:")}
        now = witness.entries(ours, True) if ours else {}
        for key, entry in ours.items():
            if (present := now.get(key)) is None:
                report.vanished += 1
                if not witness.rows_are_deletable:
                    report.note(f"its record {key} is missing", segment=segment, entry=entry.pk)
            elif not _agree(present, entry):
                report.note(f"its record {key} was changed", segment=segment, entry=entry.pk)


def _agree(present: Entry, sealed: Entry) -> bool:
    """Older versions have sealed fewer details."""
    alike = present.contents() | {"details": ""} == sealed.contents() | {"details": ""}
    return alike and present.told | sealed.told == present.told


def _verify_pruning(pruned: Iterable[Segment], noted: Iterable[Entry], report: Report) -> None:
    """The audit contains an entry for each segment that the retention has emptied, when it was due."""
    known = {(entry.subject, str(entry.told.get("digest"))): entry for entry in noted if entry.is_trusted}
    for segment in pruned:
        entry = known.get((f"audit.segment:{segment.number}", segment.digest))
        if entry is None:
            report.note(
                "its entries are missing, and no retention record explains it", segment=segment.number
            )
        elif not _was_due(segment, entry):
            report.note("its entries were removed too early", segment=segment.number, entry=entry.pk)


def _was_due(segment: Segment, entry: Entry) -> bool:
    days, given, setting = entry.told.get("kept_days"), entry.told.get("given_days"), DAYS.get(segment.kind)
    if setting is None or not isinstance(days, int) or not days:
        return False
    is_old = (entry.at - segment.newest_at).total_seconds() >= days * 86_400
    # Older versions did not record what the environment had.
    return is_old and (given is None or days in _days_in_force(setting, given, entry.at))


def _days_in_force(setting: str, given: Any, at: datetime) -> set[Any]:
    """Then or just before: processes notice a change a moment later."""
    changes = [(LONG_AGO, dict[str, Any]()), *(change for read in changes_of_retention for change in read())]
    before = [values for changed_at, values in changes if changed_at <= at - LATE][-1:]
    lately = [values for changed_at, values in changes if at - LATE < changed_at <= at]
    return {values.get(setting, given) for values in [*before, *lately]}


def _verify_unsealed(report: Report) -> None:
    unsealed = Entry.objects.filter(segment=None)
    report.unsealed = unsealed.count()
    report.unsealed_since = unsealed.aggregate(first=Min("at"))["first"]
    for entry in unsealed.order_by("pk").iterator():
        if why := _why_not_sealed(entry):
            report.note(why, entry=entry.pk)
    known = Segment.objects.filter(number=OuterRef("segment"))
    lost = Entry.objects.exclude(segment=None).filter(~Exists(known))
    for entry in lost.order_by("pk")[:MAX_PROBLEMS]:
        report.note("its segment is missing", segment=entry.segment, entry=entry.pk)


def _verify_gathering(report: Report) -> None:
    """Records that the audit does not have are the product's, or the retention has removed their entries."""
    emptied = dict(
        Segment.objects.exclude(pruned_at=None).values_list("kind").annotate(Max("newest_at")).order_by()
    )
    for witness in witnesses:
        for entries, _ in witness.missing(LONG_AGO, FAR_AHEAD):
            for entry in entries:
                if not entry.is_proven and entry.at > emptied.get(entry.kind, LONG_AGO):
                    report.note(f"{entry.key}: {UNPROVEN}")


def note_copies(model: type[Model], report: Report, *columns: str) -> None:
    """No two rows that the product wrote are equal in these columns."""
    rows = model._default_manager.order_by()
    for same in rows.values(*columns).annotate(number=Count("*")).filter(number__gt=1).values(*columns):
        keys = ", ".join(map(str, rows.filter(**same).values_list("pk", flat=True)[:MAX_PROBLEMS]))
        report.note(f"{model._meta.verbose_name} {keys}: one is a copy of another")


def renew_proofs(*, adopts: bool = False) -> None:
    """Prove again, with the present key, what decides later; with `adopts` also what has no proof."""
    for renew in renewals:
        renew(adopts)


def adopt(*, by: str) -> int:
    """Seal what is there as if the product had written it, after a record of what `verify` names. Returns
    how many entries."""
    if problems := [str(problem) for problem in verify().problems]:
        record(Kind.AUDIT, "audit.adopted", actor_name=by, problems=problems)
    renew_proofs(adopts=True)
    return seal(adopts=True)


# The audit as JSON lines, which are self-contained: all digests derive from them.

AT_A_TIME = 100


def export_lines(
    *, kinds: Collection[str] = (), since: datetime | None = None, until: datetime | None = None
) -> Iterator[str]:
    """One JSON object per line. Segments are complete: only those without entries within the bounds are
    omitted."""
    for segment in _in_pages(Segment.objects.all(), "number"):
        yield from _lines_of(segment, kinds, since, until)
    for entry in _in_pages(Entry.objects.filter(segment=None, **_bounds(kinds, since, until)), "pk"):
        yield _line({"type": "entry", "segment": None, **entry.content()})


def _in_pages(rows: QuerySet[Any], number: str) -> Iterator[Any]:
    """Does not use a server-side cursor, which would block the server's clean-up meanwhile."""
    last = 0
    while page := list(rows.filter(**{f"{number}__gt": last}).order_by(number)[:AT_A_TIME]):
        yield from page
        last = getattr(page[-1], number)


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
    """Verifies an export on its own. Segments need not be consecutive, because an export may have only some
    kinds."""
    leaves: list[str] = []
    report, previous = Report(), None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            content = json.loads(line)
            kind = content.pop("type")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            report.note(f"line {number} is not a line of an export")
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
        report.note("the last entries have no segment: the export was truncated")
    if not (report.segments or report.unsealed or report.problems):
        report.note("the export is empty, so it proves nothing")
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
        report.note("one of its entries was changed, removed or inserted", segment=number)
    follows = previous is not None and previous.get("number") == (number or 0) - 1
    if follows and previous is not None and content.get("previous") != previous.get("digest"):
        report.note("it does not continue the segment before", segment=number)
    content["digest"] = digest
