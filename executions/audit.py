"""Audit entries of calls: who called what, with which client and arguments, and how it ended. They are built
from columns that never change once written, so a call writes nothing extra."""

import json
import uuid
from collections import defaultdict
from collections.abc import Collection
from datetime import timedelta
from functools import partial
from typing import Any

from audit.models import ADDRESS_LENGTH, Entry, Kind, clean
from audit.sealing import AuditSource, Report, checks, note_copies, renewals, witnesses
from catalogue.audit import note_unrecorded
from executions.models import (
    Approval,
    ApprovalDecision,
    Execution,
    ExecutionPayload,
    Retention,
    StandingApproval,
)
from executions.models.execution import DIGEST, digest_of_values, is_proven, parts_of_call, parts_of_end

ENDED, BEGAN = "call", "began"
LONG_RUN = timedelta(minutes=1)  # A call that takes longer has an entry of its beginning, too
COLUMNS = (
    "id", "tool_name", "source_name", "upstream_id", "caller", "caller_name", "door", "toolset",
    "input_characters", "output_characters", "arguments_hash", "state", "run_id", "error_kind", "created_at",
    "finished_at", "cached_at", "payload_pruned_at", "payload__metadata", "payload__began_proof",
    "payload__ended_proof",
)  # fmt: skip
PAYLOAD = ("payload__input", "payload__output", "payload__content")
PAYLOADS_AT_ONCE = 20


def follow_calls() -> None:
    every = Execution.objects.all()
    # For executions that have ended, the entry of the end contains everything.
    active = Execution.objects.filter(finished_at=None)
    for name, rows, by, delay in (
        (ENDED, every, "finished_at", timedelta(0)),
        (BEGAN, active, "created_at", LONG_RUN),
    ):
        witnesses.append(
            AuditSource(
                name=name,
                rows=rows.all,
                by=by,
                delay=delay,
                entries=partial(_entries, name),
                rows_are_deletable=True,
            )
        )
    checks.append(_verify_approvals)
    renewals.append(_renew)


def _entries(name: str, keys: Collection[str], with_payloads: bool) -> dict[str, Entry]:
    ours = [uuid.UUID(key.partition(":")[2]) for key in keys]
    rows = Execution.objects.filter(pk__in=ours).values(*COLUMNS, *(PAYLOAD if with_payloads else ()))
    entries = (_entry_of(row, name) for row in rows.iterator(chunk_size=PAYLOADS_AT_ONCE))
    return {str(entry.key): entry for entry in entries}


def _entry_of(row: dict[str, Any], name: str) -> Entry:
    metadata = row["payload__metadata"] or {}
    began, ended = row["payload__began_proof"], row["payload__ended_proof"] if name == ENDED else None
    digests = {"input_sha256": began and began[:DIGEST], "output_sha256": ended and ended[:DIGEST]}
    payload = [row.get(column) for column in PAYLOAD]
    if PAYLOAD[0] in row and (row["payload_pruned_at"] is None or payload != [None, None, None]):
        now = {"input_sha256": payload[:1], "output_sha256": payload[1:]}
        digests = {digest: known and digest_of_values(*now[digest]) for digest, known in digests.items()}
    client = metadata.get("client") or {}
    described = " ".join(str(client[part]) for part in ("name", "version", "user_agent") if client.get(part))
    details = {
        "execution": str(row["id"]),
        "tool": row["tool_name"],
        "source": row["source_name"],
        "upstream_id": row["upstream_id"],
        "toolset": row["toolset"],
        "arguments_sha256": row["arguments_hash"],
        "input_characters": row["input_characters"],
        "created_at": row["created_at"].isoformat(),
        "workflow_version": metadata.get("version"),
        "workflow_content": metadata.get("content_hash"),
        # Rows of older versions have none.
        **{digest: value for digest, value in digests.items() if value},
    }
    if name == ENDED:
        details |= {
            "run_id": row["run_id"],
            "error_kind": row["error_kind"],
            "output_characters": row["output_characters"],
            "from_cache": row["cached_at"] is not None,
        }
    entry = Entry(
        at=row["finished_at"] if name == ENDED else row["created_at"],
        kind=Kind.CALL,
        event="call.ended" if name == ENDED else "call.began",
        actor=row["caller"],
        actor_name=clean(row["caller_name"]),
        address=clean(str(client.get("address", "")), ADDRESS_LENGTH),
        client=clean(described),
        door=row["door"],
        subject=f"execution:{row['id']}",
        subject_name=row["tool_name"],
        outcome=row["state"] if name == ENDED else "",
        details=json.dumps(details, sort_keys=True),
        key=f"{name}:{row['id']}",
    )
    entry.is_of_proven_record = is_proven(began, parts_of_call(row, metadata)) and (
        name == BEGAN or is_proven(ended, parts_of_end(row))
    )
    return entry


DECIDING: tuple[Any, ...] = (Approval, ApprovalDecision, StandingApproval)


def _renew(adopts: bool) -> None:
    for row in (row for model in DECIDING for row in model.objects.all()):
        if adopts or row.is_proven:
            type(row).objects.filter(pk=row.pk).update(proof=row.make_proof("proof"))
    active = ExecutionPayload.objects.filter(execution__finished_at=None).select_related("execution")
    for payload in active:
        if adopts or is_proven(payload.began_proof, parts_of_call(vars(payload.execution), payload.metadata)):
            active.filter(pk=payload.pk).update(began_proof=payload.make_proof("began_proof"))


def _verify_approvals(report: Report) -> None:
    """Proofs show rows that were changed or added; entries show those that are missing or as they were."""
    note_unrecorded(Retention, report)
    told: dict[str, list[str]] = defaultdict(list)
    for entry in Entry.objects.filter(kind=Kind.APPROVAL).order_by("pk").iterator():
        if entry.is_trusted and entry.event == "approval.changed":
            # Those that were given before went with the arguments that they were of.
            told[f"approval.answered {entry.subject}"].clear()
        elif entry.is_trusted:
            told[f"{entry.event} {entry.subject}"].append(entry.actor)
    note_copies(ApprovalDecision, report, "approval", "user_name")
    note_copies(StandingApproval, report, "binding", "granted_at")
    for model in DECIDING:
        for row in model.objects.order_by("pk").iterator():
            if not row.is_proven or _is_contradicted(row, told):
                report.note(
                    f"{model._meta.verbose_name} {row.pk} was changed, or the product did not write it"
                )
    for key in Execution.objects.exclude(approval_hash="").filter(approval=None).values_list("pk", flat=True):
        report.note(f"the approval of execution {key} is missing")


def _is_contradicted(row: Any, told: dict[str, list[str]]) -> bool:
    """The retention may have removed entries."""
    match row:
        case Approval():
            is_reopened = row.is_waiting and bool(told[f"approval.ended execution:{row.pk}"])
            return is_reopened or len(told[f"approval.answered execution:{row.pk}"]) > row.decisions.count()
        case ApprovalDecision():
            users = told[f"approval.answered execution:{row.approval_id}"]
            return bool(users and row.user_id) and f"user:{row.user_id}" not in users
    return row.revoked_at is None and bool(row.was_revoked)
