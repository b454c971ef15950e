"""Audit entries of calls: who called what, with which client and arguments, and how it ended. They are built
from columns that never change once written, so a call writes nothing extra."""

import json
import uuid
from collections.abc import Collection
from datetime import timedelta
from functools import partial
from typing import Any

from audit.models import ADDRESS_LENGTH, Entry, Kind, clean
from audit.sealing import Witness, witnesses
from executions.models import Execution, ExecutionPayload

ENDED, BEGAN = "call", "began"
LONG_RUN = timedelta(minutes=1)  # A call that takes longer has an entry of its beginning, too
COLUMNS = (
    "id", "tool_name", "source_name", "upstream_id", "caller", "caller_name", "door", "toolset",
    "input_characters", "output_characters", "arguments_hash", "state", "run_id", "error_kind", "created_at",
    "finished_at", "cached_at",
)  # fmt: skip


def follow_calls() -> None:
    every = Execution.objects.all()
    # For executions that have ended, the entry of the end contains everything.
    active = Execution.objects.filter(finished_at=None)
    for name, rows, by, delay in (
        (ENDED, every, "finished_at", timedelta(0)),
        (BEGAN, active, "created_at", LONG_RUN),
    ):
        witnesses.append(
            Witness(
                name=name,
                rows=rows.all,
                by=by,
                delay=delay,
                entries=partial(_entries, name),
                may_vanish=True,
            )
        )


def _entries(name: str, keys: Collection[str]) -> dict[str, Entry]:
    ours = [uuid.UUID(key.partition(":")[2]) for key in keys]
    rows = list(Execution.objects.filter(pk__in=ours).values(*COLUMNS))
    payloads = ExecutionPayload.objects.filter(pk__in=[row["id"] for row in rows])
    metadata = dict(payloads.values_list("pk", "metadata"))
    entries = (_entry_of(row, metadata.get(row["id"]) or {}, name) for row in rows)
    return {str(entry.key): entry for entry in entries}


def _entry_of(row: dict[str, Any], metadata: dict[str, Any], name: str) -> Entry:
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
    }
    if name == ENDED:
        details |= {
            "run_id": row["run_id"],
            "error_kind": row["error_kind"],
            "output_characters": row["output_characters"],
            "from_cache": row["cached_at"] is not None,
        }
    return Entry(
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
