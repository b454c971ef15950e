"""The chain over the audit: whatever was changed, put in or taken away is found and named."""

import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection, transaction
from django.utils import timezone

from audit.models import Entry, Kind, Progress, Segment, digest_of, record
from audit.sealing import Report, head, prune, root_of, seal, verify
from catalogue.history import command, record_change
from catalogue.models import HistoryEntry
from executions.models import Execution, Retention
from executions.retention import prune as prune_executions
from tests import factories
from tests.audit.opened import opened_audit
from tests.factories import make_source, make_workflow
from tests.tables import table_row

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.databases("audit.models", "audit.sealing"),
]
LONG = 60  # Seconds


def make_execution(workflow: Any, *, state: str, **fields: Any) -> Execution:
    """One that ended a moment ago, if it has ended."""
    ended = {} if state == "running" else {"finished_at": timezone.now()}
    return factories.make_execution(workflow, state=state, **ended | fields)


def make_audit() -> list[Entry]:
    """Two segments of sign-ins, and one of tokens."""
    entries = [
        record(Kind.SIGN_IN, "sign_in.succeeded", actor="user:1", actor_name="ada", address="10.0.0.1")
    ]
    seal()
    entries.append(record(Kind.SIGN_IN, "sign_in.ended", actor="user:1", backend="x"))
    entries.append(record(Kind.TOKEN, "token.refused", outcome="refused", why="unknown"))
    seal()
    assert verify().holds
    return entries


def sql(statement: str, *parameters: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)


def by_force(statement: str, *parameters: Any) -> Report:
    """What is found after somebody who may do anything in the database has done this."""
    with opened_audit():
        sql(statement, *parameters)
    return verify()


def found(report: Report) -> set[tuple[int | None, int | None]]:
    return {(problem.segment, problem.entry) for problem in report.problems}


def test_a_changed_byte_of_any_column_is_found_and_named(subtests):
    """16.6"""
    entry = make_audit()[1]
    for field in Entry._meta.concrete_fields:
        if field.name in ("id", "segment", "proof"):  # A sealed one needs no proof
            continue
        value: Any = "x" if field.name != "at" else timezone.now()
        with table_row(subtests, field.name):
            report = by_force(f'UPDATE audit_entry SET "{field.column}" = %s WHERE id = %s', value, entry.pk)
            assert found(report) == {(2, entry.pk)}, str(report.problems)


def test_a_changed_byte_of_a_segment_is_found(subtests):
    make_audit()
    values = {"sealed_at": timezone.now(), "newest_at": timezone.now(), "entries": 7}
    for field in Segment._meta.concrete_fields:
        if field.name in ("number", "pruned_at", "seal_key"):
            continue
        with table_row(subtests, field.name):
            value = values.get(field.name, "x")
            report = by_force(f'UPDATE audit_segment SET "{field.column}" = %s WHERE number = 2', value)
            assert 2 in {problem.segment for problem in report.problems}, str(report.problems)


@pytest.mark.parametrize(
    ("statement", "place"),
    [
        ("DELETE FROM audit_entry WHERE id = {1}", (2, 1)),
        ("DELETE FROM audit_segment WHERE number = 2", (2, None)),
        ("DELETE FROM audit_segment WHERE number = 1", (1, None)),
        ("DELETE FROM audit_segment WHERE number = 3", (3, 2)),
        ("UPDATE audit_entry SET segment = 1 WHERE id = {1}", (1, 1)),
        ("UPDATE audit_entry SET segment = NULL WHERE id = {1}", (2, 1)),
        ("UPDATE audit_segment SET leaves = '', pruned_at = sealed_at WHERE number = 2", (2, None)),
    ],
)
def test_what_is_missing_or_in_another_place_is_found(statement, place):
    """16.6: also a segment that is marked as if the retention had emptied it."""
    keys = [entry.pk for entry in make_audit()]
    expected = (place[0], None if place[1] is None else keys[place[1]])

    assert expected in found(by_force(statement.format(*keys)))


def test_an_entry_that_is_put_into_a_sealed_segment_is_found():
    make_audit()
    with opened_audit():
        put_in = record(Kind.SIGN_IN, "sign_in.succeeded", actor="user:9")
        sql("UPDATE audit_entry SET segment = 1 WHERE id = %s", put_in.pk)

    assert found(verify()) == {(1, put_in.pk)}


def test_a_chain_that_is_made_anew_without_the_key_is_found():
    """Whoever changes the database and knows how, but has no SECRET_KEY."""
    entry = make_audit()[0]
    with opened_audit():
        sql("UPDATE audit_entry SET actor_name = 'eve' WHERE id = %s", entry.pk)
        previous = ""
        for segment in Segment.objects.order_by("number"):
            entries = Entry.objects.filter(segment=segment.number).order_by("pk")
            segment.leaves = "\n".join(f"{one.pk}:{one.digest}" for one in entries)
            segment.root, segment.previous = root_of(segment.leaves), previous
            previous = digest_of(segment.content())
            sql(
                "UPDATE audit_segment SET leaves=%s, root=%s, previous=%s, digest=%s WHERE number=%s",
                segment.leaves, segment.root, segment.previous, previous, segment.number,
            )  # fmt: skip
    report = verify()

    assert {problem.message for problem in report.problems} == {
        "its seal was not made with this product's key"
    }
    assert {problem.segment for problem in report.problems} == {1, 2, 3}


def test_an_end_that_was_cut_off_is_found_with_a_head_from_outside():
    make_audit()
    kept_outside = head()
    report = by_force("DELETE FROM audit_entry WHERE segment > 1")
    report = by_force("DELETE FROM audit_segment WHERE number > 1")
    assert report.holds, "without that head, it looks whole"

    assert not verify(known_head=kept_outside).holds
    with pytest.raises(CommandError, match="truncated or rewritten"):
        call_command("verify_audit", head=kept_outside, stdout=StringIO())


@pytest.mark.parametrize("head", ["812:9f2c", "9f2c", "", f"1:{'A' * 64}"])
def test_what_is_no_head_is_not_told_as_an_end_that_was_cut_off(head):
    with pytest.raises(CommandError, match="argument --head: must be a head as printed by seal_audit"):
        call_command("verify_audit", "--head", head, stdout=StringIO())


def test_a_head_is_not_ignored_where_a_file_is_checked(tmp_path):
    with pytest.raises(CommandError, match="not allowed with argument"):
        call_command("verify_audit", "--head", f"1:{'a' * 64}", "--file", str(tmp_path / "audit.jsonl"))


def test_a_key_that_is_gone_leaves_the_chain_to_check(settings):
    """After SECRET_KEY was rotated: with the former key as a fallback seals are checked, later the chain."""
    make_audit()
    former = settings.SECRET_KEY
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "another key", [former]
    record(Kind.SIGN_IN, "sign_in.ended")
    seal()
    assert verify() == Report(segments=4, entries=4, head=head())

    settings.SECRET_KEY_FALLBACKS = []
    assert verify() == Report(segments=4, entries=4, unknown_keys=3, head=head())


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE audit_entry SET actor_name = 'eve'",
        "UPDATE audit_entry SET segment = NULL WHERE segment IS NOT NULL",
        "UPDATE audit_entry SET segment = 1 WHERE segment IS NULL",
        "UPDATE audit_entry SET segment = 99, actor = 'user:9' WHERE segment IS NULL",
        "DELETE FROM audit_entry WHERE segment IS NULL",
        "DELETE FROM audit_entry WHERE segment IS NOT NULL",
        "UPDATE audit_segment SET digest = 'x'",
        "UPDATE audit_segment SET pruned_at = sealed_at",
        "UPDATE audit_segment SET pruned_at = sealed_at, leaves = '', kind = 'x'",
        "DELETE FROM audit_segment",
        "TRUNCATE audit_entry",
        "TRUNCATE audit_segment",
        "INSERT INTO audit_entry (at, kind, event, actor, actor_name, address, client, door, subject, "
        "subject_name, outcome, details, segment) SELECT at, kind, event, actor, actor_name, address, "
        "client, door, subject, subject_name, outcome, details, segment FROM audit_entry WHERE segment = 1",
    ],
)
def test_the_database_refuses_other_changes_than_sealing_and_pruning(statement):
    make_audit()
    record(Kind.SIGN_IN, "sign_in.ended")

    with pytest.raises(DatabaseError), transaction.atomic():
        sql(statement)

    assert verify() == Report(
        segments=3, entries=3, unsealed=1, unsealed_since=_first_unsealed(), head=head()
    )


def _first_unsealed() -> datetime:
    return Entry.objects.filter(segment=None).order_by("at")[0].at


@pytest.mark.parametrize(
    "change",
    [
        lambda: Entry.objects.all().update(actor="x"),
        lambda: Entry.objects.all().delete(),
        lambda: Entry.objects.get().delete(),
        lambda: Entry.objects.get().save(),
        lambda: Segment.objects.all().update(digest="x"),
        lambda: Segment.objects.all().delete(),
        lambda: Segment.objects.get().delete(),
        lambda: Segment.objects.get().save(),
    ],
)
def test_the_database_refuses_to_change_or_remove(change):
    record(Kind.SIGN_IN, "sign_in.ended")
    seal()
    with pytest.raises(DatabaseError, match="the audit is only added to"), transaction.atomic():
        change()


# Races


class Held:
    """A transaction in a thread of its own that has written, and commits when it may."""

    def __init__(self, write: Callable[[], Any]) -> None:
        self._write, self._wrote, self._may_commit = write, threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._wrote.wait(LONG)

    def _run(self) -> None:
        try:
            with transaction.atomic():
                self._write()
                self._wrote.set()
                assert self._may_commit.wait(LONG)
        finally:
            connection.close()

    def commit(self) -> None:
        self._may_commit.set()
        self._thread.join(LONG)


@pytest.mark.skipif(
    "connection.vendor == 'sqlite'", reason="SQLite has one writer: none is open beside others"
)
def test_an_entry_that_commits_late_with_a_lower_number_is_sealed_in_a_later_segment():
    """The sequence has given the number 1 when 2 is sealed already; the sealer waits for no writer."""
    late = Held(lambda: record(Kind.SIGN_IN, "sign_in.succeeded", actor="late"))
    record(Kind.SIGN_IN, "sign_in.succeeded", actor="early")
    assert seal() == 1
    late.commit()
    assert seal() == 1

    assert list(Entry.objects.order_by("segment").values_list("actor", flat=True)) == ["early", "late"]
    early, after = Entry.objects.order_by("segment")
    assert after.pk < early.pk
    assert verify().holds


@pytest.mark.skipif(
    "connection.vendor == 'sqlite'", reason="SQLite has one writer: none is open beside others"
)
@pytest.mark.parametrize("of", ["execution", "history"])
def test_a_record_of_another_room_that_commits_late_is_gathered_later(of):
    """Its time is before that to which records were gathered when it was not to be seen yet."""
    workflow = make_workflow()
    write = {
        "execution": lambda: make_execution(workflow, state="completed"),
        "history": lambda: record_change(command("late"), [workflow], "Changed."),
    }
    late = Held(write[of])
    assert seal() == 0
    late.commit()
    assert seal() == 1
    assert seal() == 0
    assert verify().holds


def at_once(steps: list[Callable[[int], Any]], each: int) -> list[BaseException]:
    """Each in a thread of its own, so many times. Returns what was raised."""
    errors: list[BaseException] = []
    meeting = threading.Barrier(len(steps))

    def run(step: Callable[[int], Any]) -> None:
        try:
            meeting.wait(LONG)
            for number in range(each):
                step(number)
        except BaseException as error:  # noqa: BLE001 - shown by the test
            errors.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=(step,)) for step in steps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    return errors


def test_many_writers_and_sealers_at_once_seal_each_entry_once():
    """16.6: whatever comes between; no number is left out, and nobody waits for ever."""
    writers, sealers, each = 3, 3, 15
    workflow = make_workflow()

    def write(number: int) -> None:
        if number % 3:
            record(Kind.SIGN_IN, "sign_in.succeeded", actor=f"user:{number}")
        elif number % 2:
            make_execution(workflow, state="completed")
        else:
            record_change(command("x"), [workflow], "Changed.")

    assert at_once([write] * writers + [lambda number: seal()] * sealers, each) == []
    seal()

    report = verify()
    assert report.holds and report.unsealed == 0
    assert report.entries == writers * each == Entry.objects.count()
    numbers = list(Segment.objects.order_by("number").values_list("number", flat=True))
    assert numbers == list(range(1, len(numbers) + 1))


def test_a_sealer_that_is_broken_off_leaves_nothing_half_done(monkeypatch):
    make_execution(make_workflow(), state="completed")
    record(Kind.SIGN_IN, "sign_in.succeeded")
    with monkeypatch.context() as patch:
        patch.setattr(Segment, "save", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            seal()
    assert not Segment.objects.exists() and Entry.objects.get().segment is None

    assert seal() == 2
    assert verify().holds


# What other rooms record


def test_a_call_has_one_entry_with_what_is_known_of_it():
    execution = make_execution(make_workflow(name="report"), state="failed", caller="token:7", door="mcp")
    seal()
    entry = Entry.objects.get(kind=Kind.CALL)

    assert (entry.event, entry.actor, entry.door, entry.outcome) == ("call.ended", "token:7", "mcp", "failed")
    assert (entry.subject, entry.subject_name) == (f"execution:{execution.pk}", "report")
    told = json.loads(entry.details)
    assert told["arguments_sha256"] == execution.arguments_hash
    assert told["execution"] == str(execution.pk)


def test_a_run_that_takes_long_has_an_entry_of_its_beginning_too():
    begun = timezone.now() - timedelta(minutes=2)
    execution = make_execution(make_workflow(), state="running", created_at=begun, payload={"output": None})
    seal()
    seal()
    assert list(Entry.objects.values_list("event", flat=True)) == ["call.began"]

    execution.fail("It was too long.")
    seal()
    assert sorted(Entry.objects.values_list("event", flat=True)) == ["call.began", "call.ended"]
    assert verify().holds, "the beginning is as it was"


def test_many_records_are_gathered_in_batches(monkeypatch):
    monkeypatch.setattr("audit.sealing.BATCH", 3)
    workflow, now = make_workflow(), timezone.now()
    for _ in range(4):
        # Of the same moment, so that a batch ends between them.
        make_execution(workflow, state="completed", created_at=now, finished_at=now)
        record_change(command("x"), [workflow], "Changed.")
    make_execution(workflow, state="completed", finished_at=now - timedelta(days=50))

    assert seal() == 9
    assert seal() == 0
    assert verify().holds


def test_a_changed_record_of_another_room_is_found(subtests):
    """Curation and calls are not kept twice: the audit has their digests."""
    source = make_source("erp")
    record_change(command("x"), [source], "Changed description.")
    execution = make_execution(make_workflow(source), state="completed")
    seal()
    changed, called = Entry.objects.get(kind=Kind.CURATION), Entry.objects.get(kind=Kind.CALL)
    history = "UPDATE catalogue_historyentry SET"
    run = "UPDATE executions_execution SET"
    for statement, entry in (
        (f"{history} message = 'Nothing.'", changed),
        (f"{history} actor = 'token:9'", changed),
        (f"{history} changes = '{{}}'", changed),
        ("DELETE FROM catalogue_historyentry", changed),
        (f"{run} caller = 'token:9'", called),
        (f"{run} arguments_hash = 'x'", called),
        (f"{run} state = 'failed'", called),
        ("DELETE FROM executions_execution", None),
    ):
        with table_row(subtests, statement):
            if statement.startswith("DELETE FROM executions"):
                Execution.objects.filter(pk=execution.pk).delete()
            else:
                sql(statement)
            report = verify()
            places = set() if entry is None else {(entry.segment, entry.pk)}
            assert found(report) == places, str(report.problems)


def test_the_retention_of_executions_removes_none_before_it_is_in_the_audit():
    record_change(command("x"), [Retention.objects.create(keep_records_days=0)], "Changed.")
    execution = make_execution(
        make_workflow(), state="completed", finished_at=timezone.now() - timedelta(hours=1)
    )
    assert prune_executions().executions == 1

    assert Entry.objects.get(kind=Kind.CALL).subject == f"execution:{execution.pk}"
    assert verify() == Report(segments=2, entries=2, vanished=1, head=head())


# The retention


def test_pruned_segments_keep_the_chain_and_say_who_pruned(settings):
    old = timezone.now() - timedelta(days=401)
    Entry.objects.create(kind=Kind.SIGN_IN, event="sign_in.succeeded", at=old)
    Entry.objects.create(kind=Kind.CURATION, event="source.changed", at=old)
    seal()
    record(Kind.SIGN_IN, "sign_in.ended")
    seal()

    assert prune() == 1
    assert sorted(Entry.objects.values_list("event", flat=True)) == [
        "audit.pruned", "sign_in.ended", "source.changed",
    ]  # fmt: skip
    report = verify()
    assert (report.holds, report.pruned, report.segments, report.unsealed) == (True, 1, 3, 1)
    assert prune() == 0
    seal()
    assert verify().holds


def test_nothing_is_pruned_where_it_is_kept_for_ever(settings):
    settings.CATALOGUE = settings.CATALOGUE | {"audit_sign_in_days": 0}
    Entry.objects.create(kind=Kind.SIGN_IN, event="x", at=datetime(2001, 1, 1, tzinfo=UTC))
    Entry.objects.create(kind=Kind.AUDIT, event="x", at=datetime(2001, 1, 1, tzinfo=UTC))
    seal()
    assert prune() == 0


# Exports


def exported(**options: Any) -> list[str]:
    out = StringIO()
    call_command("export_audit", stdout=out, **options)
    return out.getvalue().splitlines(keepends=True)


def verified(path: Path, lines: list[str]) -> str:
    path.write_text("".join(lines), encoding="utf-8")
    out = StringIO()
    call_command("verify_audit", file=str(path), stdout=out)
    return out.getvalue()


def test_an_export_proves_itself(tmp_path):
    make_audit()
    kept = head()
    lines = exported()
    assert [json.loads(line)["type"] for line in lines] == ["entry", "segment"] * 3 + ["entry"]
    assert json.loads(lines[-1])["event"] == "audit.exported"

    told = verified(tmp_path / "audit.jsonl", lines)
    assert "3 segments with 3 entries; 1 unsealed" in told and f"Head: {kept}" in told
    only_tokens = exported(kind=["token"])
    assert [json.loads(line)["kind"] for line in only_tokens] == ["token", "token"]
    assert "1 segment with 1 entry" in verified(tmp_path / "tokens.jsonl", only_tokens)


@pytest.mark.parametrize(
    "tamper",
    [
        lambda lines: [lines[0].replace("ada", "eve"), *lines[1:]],
        lambda lines: lines[1:],
        lambda lines: [lines[0], *lines],
        lambda lines: [*lines[:3], lines[3].replace('"entries":1', '"entries":2'), *lines[4:]],
        lambda lines: lines[:5],
        lambda lines: ["{}\n", *lines],
        lambda lines: ["[1]\n", *lines],
        lambda lines: ["[" * 100_000 + "\n", *lines],
        lambda lines: [],
    ],
)
def test_an_export_that_was_changed_is_refused(tamper, tmp_path):
    make_audit()
    with pytest.raises(CommandError, match="does not hold"):
        verified(tmp_path / "audit.jsonl", tamper(exported()))


def test_an_export_that_an_editor_saved_unchanged_holds(tmp_path):
    """Some begin a file with a byte order mark, end its lines in another way or add an empty one."""
    make_audit()
    lines = [line.replace("\n", "\r\n") for line in exported()]
    assert "3 segments with 3 entries" in verified(tmp_path / "audit.jsonl", ["\ufeff", *lines, "\r\n"])


@pytest.mark.parametrize(
    ("bounds", "problem"),
    [
        (["--since", "2026-11-27", "--until", "2026-11-26"], "--since must be before --until"),
        (["--since", "0001-01-01T00:00+14:00"], "not a time such as"),
        (["--until", "9999-12-31T23:59-12:00"], "not a time such as"),
    ],
)
def test_bounds_of_an_export_that_can_mean_nothing_are_refused(bounds, problem):
    with pytest.raises(CommandError, match=problem):
        call_command("export_audit", *bounds, stdout=StringIO())


def test_the_command_says_where_the_audit_was_changed():
    entry = make_audit()[0]
    out = StringIO()
    call_command("verify_audit", stdout=out)
    assert "The audit holds." in out.getvalue()

    by_force("UPDATE audit_entry SET actor_name = 'adb' WHERE id = %s", entry.pk)
    with pytest.raises(CommandError, match=f"segment 1, entry {entry.pk}: it was changed"):
        call_command("verify_audit", stdout=StringIO())


def test_the_triggers_are_there_after_all_migrations():
    """SQLite drops them wherever a migration makes a table anew."""
    names = "SELECT name FROM sqlite_master WHERE type = 'trigger' AND name LIKE 'audit%'"
    if connection.vendor == "postgresql":
        names = "SELECT tgname FROM pg_trigger WHERE NOT tgisinternal AND tgname LIKE 'audit%'"
    with connection.cursor() as cursor:
        cursor.execute(names)
        assert len(cursor.fetchall()) == (4 if connection.vendor == "postgresql" else 5)


def test_progress_is_one_row():
    seal()
    seal()
    assert Progress.objects.count() == 1
    assert HistoryEntry.objects.count() == 0
