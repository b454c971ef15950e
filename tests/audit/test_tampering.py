# ruff: noqa: E501 - statements
"""Whoever writes the database without SECRET_KEY, also its owner, who can drop triggers and constraints."""

import json
from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.core.management.sql import emit_post_migrate_signal
from django.db import connection
from django.utils import timezone

from audit.models import Entry, Kind, Segment, digest_of, record
from audit.sealing import head, prune, root_of, seal, verify
from catalogue.curation import override_workflow
from catalogue.history import command, record_change
from catalogue.models import HistoryEntry, Workflow
from catalogue.product_settings import change_settings, remembered, settings_row
from executions.approvals import decide, lacks_approval, revoke_standing
from executions.models import Approval, Execution, Retention, StandingApproval
from executions.starting import create_execution
from tests.audit.opened import opened_audit
from tests.executions.steps import request_for
from tests.factories import make_execution, make_workflow
from tests.tables import table_row

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.timeout(300),
    pytest.mark.databases("audit.sealing", "catalogue.audit", "executions.audit", "executions.approvals"),
]
Attack = Callable[[], Any]


def sql(*statements: str, **parameters: Any) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            named = {name: value for name, value in parameters.items() if f"%({name})s" in statement}
            cursor.execute(statement, named or None)


def verified() -> str:
    """What the command fails with; empty if the audit holds."""
    remembered.known_until = float("-inf")
    try:
        call_command("verify_audit", stdout=StringIO())
    except CommandError as error:
        return str(error)
    return ""


def after(attack: Attack) -> str:
    """What is found once the product has gone on: it seals and prunes as ever."""
    with opened_audit():
        attack()
    remembered.known_until = float("-inf")
    seal()
    prune()
    seal()
    return verified()


def copied(model: Any, **changed: str) -> str:
    """The rows once more, with some other values."""
    names = [each.column for each in model._meta.concrete_fields if each.column != "id" or "id" in changed]
    values, table = ", ".join(changed.get(name, name) for name in names), model._meta.db_table
    return f"INSERT INTO {table} ({', '.join(names)}) SELECT {values} FROM {table}"


# A day's entries are emptied


def empty(number: int = 1) -> None:
    sql(
        "UPDATE audit_segment SET pruned_at = sealed_at, leaves = '' WHERE number = %(number)s",
        "DELETE FROM audit_entry WHERE segment = %(number)s",
        number=number,
    )


def forge_pruned(number: int = 1, segment: int | None = None, kept_days: Any = 1, **columns: Any) -> None:
    digest = Segment.objects.get(number=number).digest
    details = {
        "digest": digest,
        "entries": 2,
        "of": "sign_in",
        "kept_days": kept_days,
        "given_days": kept_days,
    }
    values = {
        "at": timezone.now(), "kind": "audit", "event": "audit.pruned", "actor": "retention",
        "actor_name": "retention", "subject": f"audit.segment:{number}", "details": json.dumps(details),
        "segment": segment, **dict.fromkeys(("address", "client", "door", "subject_name", "outcome"), ""),
    } | columns  # fmt: skip
    places = ", ".join(f"%({name})s" for name in values)
    sql(f"INSERT INTO audit_entry ({', '.join(values)}) VALUES ({places})", **values)


def chain_again(**columns: Any) -> None:
    """All digests, by somebody who knows how."""
    previous = ""
    for number, segment in enumerate(Segment.objects.order_by("number"), 1):
        entries = Entry.objects.filter(segment=segment.number).order_by("pk")
        former, segment.number, segment.previous = segment.number, number, previous
        segment.leaves = "\n".join(f"{one.pk}:{one.digest}" for one in entries)
        segment.root = root_of(segment.leaves)
        segment.entries = len(entries)
        segment.digest = previous = digest_of(segment.content())
        sql(
            "UPDATE audit_entry SET segment = %(number)s WHERE segment = %(former)s",
            "UPDATE audit_segment SET number = %(number)s, leaves = %(leaves)s, root = %(root)s, "
            "previous = %(previous)s, entries = %(entries)s, digest = %(digest)s WHERE number = %(former)s",
            former=former, **{name: getattr(segment, name) for name in (
                "number", "leaves", "root", "previous", "entries", "digest")},
        )  # fmt: skip
        for name, value in columns.items():
            sql(
                f"UPDATE audit_segment SET {name} = %(value)s WHERE number = %(number)s",
                value=value,
                number=number,
            )


def set_days(days: int) -> None:
    sql(
        "UPDATE catalogue_productsettings SET overrides = %(text)s",
        text=json.dumps({"audit_sign_in_days": days}),
    )


def empty_with_copy_of_proof() -> None:
    """A genuine record of another segment, made to speak of this one."""
    empty()
    genuine = Entry.objects.get(event="audit.pruned")
    forge_pruned(proof=genuine.proof)


def set_days_in_history() -> None:
    set_days(1)
    sql(
        "INSERT INTO catalogue_historyentry (at, actor, actor_name, door, model, object_id, object_name, message, "
        "changes, kind) VALUES (%(at)s, 'user:1', 'ada', 'admin', 'catalogue.productsettings', '1', 'Settings', "
        "'Changed.', %(changes)s, 'changed')",
        at=timezone.now() - timedelta(minutes=5),
        changes=json.dumps({"overrides": [{"audit_sign_in_days": 1000}, {"audit_sign_in_days": 1}]}),
    )


def put_back() -> None:
    """As the retention removed it."""
    forge_pruned(kind="call", event="call.ended", details="{}", at=Pruned.at, proof=Pruned.proof,
                 actor="user:1", actor_name="ada", subject="")  # fmt: skip


class Pruned:
    at: Any = None
    proof: Any = None


@pytest.fixture
def audit() -> None:
    """Segment 1 with sign-ins of two days ago, 2 with a token, 3 that the retention has emptied."""
    old = timezone.now() - timedelta(days=2)
    for actor in ("user:1", "user:2"):
        Entry.objects.create(kind=Kind.SIGN_IN, event="sign_in.succeeded", actor=actor, at=old)
    seal()
    row = settings_row()
    change_settings({"audit_sign_in_days": 1000}, by="ada")
    record_change(command("ada"), [row], "Changed.")
    for change in HistoryEntry.objects.all():
        change.at -= timedelta(hours=1)
        values = {"at": change.at, "proof": change.make_proof("proof")}
        HistoryEntry._base_manager.filter(pk=change.pk).update(**values)
    seal()
    record(Kind.TOKEN, "token.refused", outcome="refused")
    seal()
    gone = Entry.objects.create(
        kind=Kind.CALL,
        event="call.ended",
        at=timezone.now() - timedelta(days=500),
        actor="user:1",
        actor_name="ada",
    )
    Pruned.at, Pruned.proof = gone.at, gone.proof
    seal()
    assert prune() == 1
    seal()
    assert verified() == ""


EMPTYING: dict[str, tuple[Attack, str]] = {
    "with a forged record of the retention": (lambda: (empty(), forge_pruned()), "segment 1: "),
    "without a record": (empty, "segment 1: its entries are missing"),
    "entries alone": (lambda: sql("DELETE FROM audit_entry WHERE segment = 1"), ": it is missing"),
    "one entry": (lambda: sql("DELETE FROM audit_entry WHERE id = (SELECT MAX(id) FROM audit_entry WHERE segment = 1)"), ": it is missing"),
    "with a forged record in a sealed segment": (
        lambda: (empty(), forge_pruned(segment=Segment.objects.filter(kind="audit").last().number)),
        "inserted after",
    ),
    "with a forged record in an emptied segment": (lambda: (empty(), forge_pruned(segment=1)), "inserted after"),
    "with a forged record in no segment": (lambda: (empty(), forge_pruned(segment=0)), "its segment is missing"),
    "with the proof of another record": (empty_with_copy_of_proof, "segment 1: "),
    "with a copy of another record": (
        lambda: (empty(), sql(copied(Entry, segment="NULL") + " WHERE event = 'audit.pruned'")),
        "is a copy of another",
    ),
    "with a record of another form": (lambda: (empty(), forge_pruned(kept_days=[1])), "segment 1: "),
    "with a sealed record that is changed": (
        lambda: (empty(), sql("UPDATE audit_entry SET subject = 'audit.segment:1' WHERE event = 'audit.pruned'")),
        "segment 1: ",
    ),
    "by a shorter retention": (lambda: set_days(1), "productsettings: overrides"),
    "by a shorter retention with a forged history": (set_days_in_history, "history:"),
    "by removing the settings": (lambda: sql("DELETE FROM catalogue_productsettings"), "overrides"),
    "by another kind": (lambda: sql("UPDATE audit_entry SET kind = 'call' WHERE id = (SELECT MIN(id) FROM audit_entry)"), ": it was changed"),
    "by another kind of segment": (lambda: sql("UPDATE audit_segment SET kind = 'call' WHERE number = 1"), "segment 1"),
    "by another time": (
        lambda: sql("UPDATE audit_segment SET newest_at = %(at)s WHERE number = 1", at=timezone.now() - timedelta(2000)),
        "segment 1",
    ),
    "with its segment, all others numbered again": (
        lambda: (
            sql("DELETE FROM audit_entry WHERE segment = 1", "DELETE FROM audit_segment WHERE number = 1"),
            chain_again(),
        ),
        "seal",
    ),
    "with its segment, under an unknown key": (
        lambda: (
            sql("DELETE FROM audit_entry WHERE segment = 1", "DELETE FROM audit_segment WHERE number = 1"),
            chain_again(seal_key="0" * 16),
        ),
        "unknown",
    ),
    "two entries change places": (
        lambda: sql("UPDATE audit_entry SET actor = CASE actor WHEN 'user:1' THEN 'user:2' ELSE 'user:1' END WHERE segment = 1"),
        ": it was changed",
    ),
    "an old one comes again": (put_back, "put back"),
    "an entry is added": (
        lambda: forge_pruned(kind="sign_in", event="sign_in.succeeded", details="{}"), "did not write it",
    ),
    "an entry is added to a segment": (
        lambda: forge_pruned(kind="sign_in", event="sign_in.succeeded", segment=1), "inserted after",
    ),
    "an entry is copied": (
        lambda: sql(copied(Entry, segment="NULL") + " WHERE segment = 1"), "is a copy of another",
    ),
    "an entry is copied with its proof": (
        lambda: (
            sql(copied(Entry, segment="NULL") + " WHERE segment = 1"),
            sql("UPDATE audit_entry SET proof = NULL WHERE segment = 1"),
        ),
        "is a copy of another",
    ),
    "an entry is copied and changed": (
        lambda: sql(copied(Entry, segment="NULL", actor="'user:9'") + " WHERE segment = 1"), "did not write it",
    ),
    "two hundred entries are added, and the sealer goes on": (
        lambda: [forge_pruned(kind="sign_in", event="x", details="{}") for _ in range(201)], "did not write it",
    ),
}  # fmt: skip


def test_entries_that_are_removed_or_added_are_noticed(audit, subtests):
    """H3: emptying a day's entries."""
    before = verify()
    for name, (attack, told) in EMPTYING.items():
        with table_row(subtests, name):
            assert told in after(attack), verified()
    assert verify() == before


def test_what_an_unexplained_retention_would_remove_stays(audit):
    after(lambda: set_days(1))
    assert Entry.objects.filter(kind=Kind.SIGN_IN).count() == 2
    set_days(1000)
    assert verified() == ""
    row = settings_row()
    change_settings({"audit_sign_in_days": 1}, by="ada")
    record_change(command("ada"), [row], "Changed.")
    remembered.known_until = float("-inf")
    assert prune() == 2
    assert verified() == ""


def test_a_retention_that_was_changed_and_changed_back_is_noticed(audit, settings):
    """The environment's applied meanwhile: the row and its history were taken away, and put back."""
    kept = list(HistoryEntry.objects.values())
    with opened_audit():
        set_days(1)
        HistoryEntry._base_manager.all()._raw_delete("default")
        sql("DELETE FROM catalogue_productsettings")
    remembered.known_until = float("-inf")
    usual = settings.CATALOGUE
    settings.CATALOGUE = usual | {"audit_sign_in_days": 1}
    assert prune() == 2
    settings.CATALOGUE = usual
    with opened_audit():
        HistoryEntry._base_manager.bulk_create(HistoryEntry(**row) for row in kept)
        sql(
            "INSERT INTO catalogue_productsettings (id, overrides, changed_by) VALUES (1, %(text)s, 'ada')",
            text=json.dumps({"audit_sign_in_days": 1000}),
        )
    assert "removed too early" in verified()


def test_what_a_chain_cannot_show_needs_a_head_from_elsewhere(audit):
    """An end that was not sealed, and an earlier state of the whole database."""
    record(Kind.SIGN_IN, "sign_in.ended")
    with opened_audit():
        sql("DELETE FROM audit_entry WHERE segment IS NULL")
    assert verified() == ""
    last = head()
    with opened_audit():
        number = Segment.objects.count()
        sql(
            "DELETE FROM audit_entry WHERE segment = %(n)s",
            "DELETE FROM audit_segment WHERE number = %(n)s",
            n=number,
        )
    assert not verify(known_head=last).holds


# An approval, a payload, a setting of retention or a record of another room is forged


@pytest.fixture
def guarded() -> Workflow:
    return override_workflow(make_workflow(name="report"), approval_required=True, approvers_needed=2)


def ask(number: int) -> Execution:
    return create_execution(request_for("report", {"number": number}))


@pytest.fixture
def people() -> list[User]:
    return [User.objects.create_superuser(name) for name in ("ada", "ben", "eve")]


@pytest.fixture
def approvals(guarded: Workflow, people: list[User]) -> list[Execution]:
    """One approved for an hour, one refused, one that waits with one of two; and a run with its payload."""
    ada, ben, _ = people
    approved, refused, waiting = ask(1), ask(2), ask(3)
    for person in (ada, ben):
        decide(approved.pk, user=person, verdict="approve", words="Fine.", minutes=60)
    decide(refused.pk, user=ada, verdict="refuse", words="No.")
    decide(waiting.pk, user=ada, verdict="approve")
    repeated = ask(1)
    assert Approval.objects.get(pk=repeated.pk).standing is not None
    payload = {"input": {"a": 1}, "output": {"b": 2}, "content": [{"type": "text"}]}
    run = make_execution(guarded, payload=payload, finished_at=timezone.now())
    revoked = create_execution(request_for("report", {"number": 4}))
    for person in (ada, ben):
        decide(revoked.pk, user=person, verdict="approve", minutes=60)
    revoke_standing(StandingApproval.objects.order_by("pk").last().pk, by="ada")
    Retention.objects.create()
    return [approved, refused, waiting, repeated, run]


DECISION, APPROVAL = "UPDATE executions_approvaldecision SET", "UPDATE executions_approval SET"
STANDING, PAYLOAD = "UPDATE executions_standingapproval SET", "UPDATE executions_executionpayload SET"
RUN = "UPDATE executions_execution SET"
AS_DECIDED = (
    "INSERT INTO executions_approvaldecision (approval_id, user_id, user_name, verdict, words, at{more}) SELECT "
    "approval_id, {user}, {name}, verdict, words, at{more} FROM executions_approvaldecision WHERE minutes IS NULL "
    "AND verdict = 'approve'"
)
FORGING = {
    "the approver's name": f"{DECISION} user_name = 'eve' WHERE user_name = 'ada'",
    "the approver": f"{DECISION} user_id = (SELECT MAX(id) FROM auth_user) WHERE user_name = 'ada'",
    "a refusal into an approval": f"{DECISION} verdict = 'approve'",
    "the words": f"{DECISION} words = 'By all means.'",
    "the period": f"{DECISION} minutes = 9999",
    "the time of a decision": f"{DECISION} at = requested_at FROM executions_approval WHERE execution_id = approval_id",
    "a second approver": AS_DECIDED.format(user="(SELECT MAX(id) FROM auth_user)", name="'eve'", more=""),
    "a second approver with the proof of the first": AS_DECIDED.format(
        user="(SELECT MAX(id) FROM auth_user)", name="'eve'", more=", proof"
    ),
    "a decision twice": AS_DECIDED.format(user="NULL", name="user_name", more=", proof"),
    "no decision": "DELETE FROM executions_approvaldecision WHERE user_name = 'ben'",
    "no refusal": "DELETE FROM executions_approvaldecision WHERE verdict = 'refuse'",
    "approved": f"{APPROVAL} state = 'approved', outcome = 'ada, ben approved it.' WHERE state = 'waiting'",
    "approved though refused": f"{APPROVAL} state = 'approved' WHERE state = 'refused'",
    "open again": f"{APPROVAL} state = 'waiting', outcome = '', decided_at = NULL WHERE state = 'refused'",
    "how it ended": f"{APPROVAL} outcome = 'eve approved it.' WHERE state = 'approved'",
    "why": f"{APPROVAL} reason = 'None.'",
    "how many": f"{APPROVAL} approvers_needed = 1",
    "the hash": f"{APPROVAL} binding = content",
    "the content": f"{APPROVAL} content = binding",
    "when it was asked": f"{APPROVAL} requested_at = expires_at",
    "a longer period": f"{STANDING} until = granted_at",
    "a period of another call": f"{STANDING} binding = tool_name",
    "a period that was revoked": f"{STANDING} revoked_at = NULL, revoked_by = ''",
    "a period of more people": f"{STANDING} approvers = 9",
    "a forged period": "INSERT INTO executions_standingapproval (binding, workflow_id, tool_name, caller, "
    "caller_name, granted_by, approvers, granted_at, until, revoked_by) SELECT 'x', workflow_id, tool_name, caller, "
    "caller_name, granted_by, approvers, granted_at, until, '' FROM executions_standingapproval",
    "the input": f"{PAYLOAD} input = '{{\"a\":2}}' WHERE output IS NOT NULL",
    "the output": f"{PAYLOAD} output = '{{\"b\":3}}' WHERE output IS NOT NULL",
    "the content blocks": f"{PAYLOAD} content = '[]' WHERE output IS NOT NULL",
    "no output": f"{PAYLOAD} output = NULL",
    "the client": f'{PAYLOAD} metadata = \'{{"client":{{"name":"x"}}}}\' WHERE output IS NOT NULL',
    "a digest of the payload": f"{PAYLOAD} began_proof = ended_proof",
    "no digests": f"{PAYLOAD} began_proof = NULL, ended_proof = NULL",
    "the caller": f"{RUN} caller = 'token:9'",
    "how a run ended": f"{RUN} state = 'failed' WHERE state = 'completed'",
    "the retention": "UPDATE executions_retention SET keep_payloads_days = 1",
    "the retention of executions": "UPDATE executions_retention SET keep_records_days = NULL",
}


@pytest.mark.parametrize("is_sealed", [True, False])
def test_what_approvals_payloads_and_settings_say_cannot_be_changed(is_sealed, approvals, subtests):
    """H3: forging an approval, also before the sealer comes."""
    if is_sealed:
        seal()
    assert verified() == ""
    for name, statement in FORGING.items():
        with table_row(subtests, name):
            said = after(lambda statement=statement: sql(statement))
            assert said, "it holds"
    with table_row(subtests, "no approval"):
        assert after(lambda: sql(
            *(f"DELETE FROM executions_{table}" for table in ("approvalnotice", "approvaldecision", "approval"))
        ))  # fmt: skip


def test_records_that_the_product_did_not_write_are_not_taken_in(approvals, subtests):
    record_change(command("x"), approvals[4:], "Changed.")
    seal()
    copy = copied(HistoryEntry, reverts_id="NULL")
    calls, changes = Entry.objects.filter(kind=Kind.CALL).count(), HistoryEntry.objects.count()
    new, ended = {"id": "'00000000000000000000000000000001'"}, " WHERE state = 'completed'"
    forged = {
        "a call": copied(Execution, **new) + ended,
        "a call that runs": copied(Execution, **new, finished_at="NULL", state="'running'") + ended,
        "a change": copied(HistoryEntry, proof="NULL"),
        "a change by another": copied(HistoryEntry, actor="'user:9'"),
        "a change twice": copy,
    }
    for name, statement in forged.items():
        with table_row(subtests, name):
            said = after(lambda statement=statement: sql(statement))
            assert "did not write it" in said or "is a copy of another" in said, said
            assert Entry.objects.filter(kind=Kind.CALL).count() == calls
    assert HistoryEntry.objects.count() == changes


@pytest.mark.parametrize("keeps_the_other", [True, False])
def test_a_copy_of_a_period_that_was_revoked_allows_no_call(keeps_the_other, approvals):
    sql(copied(StandingApproval, revoked_at="NULL", revoked_by="''") + " WHERE revoked_by <> ''")
    if not keeps_the_other:
        sql("DELETE FROM executions_standingapproval WHERE revoked_by <> ''")
    assert ask(4).state == "unapproved"
    assert "standing approval" in verified()


def test_a_forged_approval_starts_nothing(approvals, people):
    approved, _, waiting, *_ = approvals
    assert not lacks_approval(approved)
    sql(f"{APPROVAL} state = 'approved' WHERE state = 'waiting'")
    assert lacks_approval(waiting)


def test_a_forged_decision_does_not_count(approvals, people):
    """Of two that are needed, one is forged and one is real."""
    decide(approvals[2].pk, user=people[1], verdict="approve")
    assert Approval.objects.get(pk=approvals[2].pk).state == "approved"
    waiting = ask(5)
    sql(
        "INSERT INTO executions_approvaldecision (approval_id, user_id, user_name, verdict, words, at) SELECT "
        "execution_id, %(user)s, 'eve', 'approve', '', requested_at FROM executions_approval WHERE state = 'waiting'",
        user=people[2].pk,
    )
    decide(waiting.pk, user=people[0], verdict="approve")
    assert Approval.objects.get(pk=waiting.pk).state == "waiting"


def test_an_approval_that_was_changed_while_it_waited_starts_nothing(approvals, people):
    """Nor does the product vouch for it as it is decided."""
    waiting = approvals[2]
    sql(f"{APPROVAL} reason = '' WHERE state = 'waiting'")
    decide(waiting.pk, user=people[1], verdict="approve")
    assert lacks_approval(Execution.objects.get(pk=waiting.pk))
    assert verified()


@pytest.mark.parametrize(
    "forged",
    ["until = '2999-01-01 00:00:00+00:00', revoked_at = NULL", "revoked_at = NULL, revoked_by = ''"],
)
def test_a_forged_period_allows_no_call(forged, approvals):
    sql(f"{STANDING} {forged} WHERE revoked_by <> ''")
    again = ask(4)
    assert again.state == "unapproved"


# What is honest holds


def test_all_that_happens_holds_also_with_another_key(approvals, people, settings):
    approved, _, waiting, *_ = approvals
    seal()
    former = settings.SECRET_KEY
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "another key", [former]
    assert verified() == ""
    call_command("rotate_secret_key", stdout=StringIO())
    settings.SECRET_KEY_FALLBACKS = []
    assert verified() == ""
    assert not lacks_approval(approved)
    decide(waiting.pk, user=people[1], verdict="approve")
    assert not lacks_approval(Execution.objects.get(pk=waiting.pk))
    assert ask(1).state == "pending", "the approval for a period is still valid"
    for user in people:
        user.delete()
    seal()
    assert verified() == ""


def test_what_an_older_version_wrote_is_taken_in_once_and_nothing_after_it(approvals):
    """As the upgrade does, and an operator after a rolling one."""
    sql(
        *(f"UPDATE {table} SET proof = NULL" for table in (
            "catalogue_historyentry", "executions_approval", "executions_approvaldecision",
            "executions_standingapproval")),
        f"{PAYLOAD} began_proof = NULL, ended_proof = NULL",
    )  # fmt: skip
    with opened_audit():
        sql("UPDATE audit_entry SET proof = NULL")
    assert "did not write it" in verified()
    import_module("executions.migrations.0021_proofs").adopt(None, None)
    emit_post_migrate_signal(0, False, "default")
    assert verified() == ""
    with opened_audit():
        forge_pruned(kind="approval", event="approval.ended", details="{}")
    assert seal() == 0
    assert "did not write it" in verified()
    call_command("seal_audit", "--adopt", stdout=StringIO())
    assert verified() == ""
    adopted = Entry.objects.get(event="audit.adopted")
    assert "did not write it" in adopted.details
