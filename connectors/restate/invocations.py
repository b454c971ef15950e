"""Invocations: the SQL that finds them, and what their rows say."""

import re
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from connectors.errors import InvalidAnswer, NotFound, Rejected
from connectors.formats.json import UnreadableJSON, parse_json, read_time
from connectors.network.redaction import printable, shorten, shorten_error
from connectors.protocol import ListedRun, RunFilter, RunSnapshot, RunState, WorkflowRef
from connectors.restate.handlers import WORKFLOW, type_of

ID = re.compile(r"inv_[0-9A-Za-z]{1,100}")
BEGINNING_OF_ID = re.compile(r"(?:inv_?)?[0-9A-Za-z]{0,100}")
CODE = re.compile(r"\[(\d{3})[^\]]*\] ?")
"""Before the message of a failure, as in "[422] No such order" and "[500 Internal] ..."."""
LINE_LIMIT = 500
COLUMNS = (
    "select id, target, target_service_name, target_handler_name, target_service_key, idempotency_key, "
    "status, completion_result, completion_failure, retry_count, last_failure, next_retry_at, invoked_by, "
    "created_at, modified_at, running_at, completed_at from sys_invocation"
)
WHEREABOUTS = "select target_service_key, status, completion_result, completion_failure from sys_invocation"
EVENTS = "select event_json from sys_journal_events"
CANCELLED = ("[409] cancelled", "[409] canceled", "[409] killed")
"""Restate has no state for a cancelled invocation: it fails with these words."""
IS_CANCELLED = f"lower(completion_failure) in ({', '.join(repr(words) for words in CANCELLED)})"
CONDITIONS = {
    RunState.RUNNING: "status <> 'completed'",
    RunState.COMPLETED: "completion_result = 'success'",
    RunState.CANCELLED: IS_CANCELLED,
    RunState.FAILED: f"completion_result = 'failure' and not {IS_CANCELLED}",
}
UNDER_WAY = {
    "pending": "Waits for its turn: another invocation has the same key.",
    "scheduled": "Scheduled for later.",
    "ready": "",
    "running": "",
    "suspended": "",
    "backing-off": "An attempt failed and is repeated",
    "paused": "Paused after its attempts failed, until it is resumed at Restate",
}


def checked_id(run_id: str) -> str:
    """Raises NotFound for anything else: Restate answers 500 to it, and it would stand in a query."""
    if not ID.fullmatch(run_id):
        raise NotFound(f"{run_id[:100]!r} is no id of an invocation, so Restate was not asked.")
    return run_id


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def query_by_id(run_id: str) -> str:
    return f"{COLUMNS} where id = {quoted(checked_id(run_id))}"


def query_by_key(workflow: WorkflowRef, key: UUID) -> str:
    service, _, handler = workflow.id.partition("/")
    column = "target_service_key" if type_of(workflow) == WORKFLOW else "idempotency_key"
    conditions = [
        f"target_service_name = {quoted(service)}",
        f"target_handler_name = {quoted(handler)}",
        f"{column} = {quoted(str(key))}",
    ]
    return f"{COLUMNS} where {' and '.join(conditions)} limit 2"


def query_whereabouts(run_id: str) -> str:
    """Whose run it is, and whether it goes on."""
    return f"{WHEREABOUTS} where id = {quoted(checked_id(run_id))}"


def query_last_pause(run_id: str) -> str:
    conditions = f"id = {quoted(checked_id(run_id))} and event_type = 'Paused'"
    return f"{EVENTS} where {conditions} order by appended_at desc limit 1"


def query_listed(wanted: RunFilter, *, size: int, offset: int) -> str:
    if wanted.engine_query:
        raise Rejected("Runs of Restate cannot be narrowed by a further condition.")
    conditions = [f"({CONDITIONS[state]})" for state in sorted(wanted.states)]
    conditions = [f"({' or '.join(conditions)})"] if conditions else []
    if wanted.run:
        if not BEGINNING_OF_ID.fullmatch(wanted.run):
            raise Rejected("An invocation's id begins with inv_, and has letters and digits only.")
        conditions.append(f"starts_with(id, {quoted(wanted.run)})")
    names = ("target_service_name", "target_handler_name")
    parts = filter(None, wanted.workflow.split("/", 1))
    conditions += [f"{name} = {quoted(part)}" for name, part in zip(names, parts, strict=False)]
    for moment, sign in ((wanted.started_after, ">="), (wanted.started_before, "<=")):
        if moment:
            conditions.append(f"created_at {sign} timestamp {quoted(moment.astimezone(UTC).isoformat())}")
    where = f"where {' and '.join(conditions)}" if conditions else ""
    return f"{COLUMNS} {where} order by created_at desc, id limit {size} offset {offset}"


def state_of(row: dict[str, Any]) -> RunState:
    """Raises InvalidAnswer for a state that this connector does not know."""
    status = row.get("status")
    if status == "completed":
        if row.get("completion_result") == "success":
            return RunState.COMPLETED
        if row.get("completion_result") == "failure":
            failure = str(row.get("completion_failure")).lower()
            return RunState.CANCELLED if failure in CANCELLED else RunState.FAILED
    if not isinstance(status, str) or status not in UNDER_WAY:
        shown = printable(shorten(str(status), 50))
        raise InvalidAnswer(f"The invocation has the status {shown!r}, which this connector does not know.")
    return RunState.RUNNING


def snapshot_of(row: dict[str, Any]) -> RunSnapshot:
    """Without the output, which the ingress has."""
    state, failure = state_of(row), CODE.sub("", str(row.get("completion_failure") or ""), count=1)
    error = ""
    if state is RunState.FAILED:
        error = shorten_error(printable(failure)) or "The invocation failed and Restate gave no reason."
    elif state is RunState.CANCELLED:
        error = "The invocation was killed." if failure == "killed" else "The invocation was cancelled."
    is_running = state is RunState.RUNNING
    return RunSnapshot(
        state=state,
        error=error,
        progress_message=progress_of(row, row.get("last_failure")) if is_running else "",
        created_at=read_time(row.get("created_at")),
        # One that was cancelled while it waited for its turn has not run.
        started_at=read_time(row.get("running_at")),
        updated_at=read_time(row.get("modified_at")),
        finished_at=None if is_running else read_time(row.get("completed_at")),
        raw=row,
    )


def progress_of(row: dict[str, Any], failure: Any) -> str:
    """What an invocation that has not ended is about; `failure`: of its last attempt."""
    words = UNDER_WAY.get(str(row.get("status")), "")
    if not words or words.endswith("."):
        return words
    due = read_time(row.get("next_retry_at"))
    if due is not None and due > datetime.now(UTC):
        words += f" at {due.astimezone(UTC):%H:%M:%S} UTC"
    told = CODE.sub("", failure, count=1) if isinstance(failure, str) else ""
    line = shorten(next(iter(printable(told).splitlines()), ""), LINE_LIMIT)
    return f"{words}: {line}" if line else f"{words}."


def failure_in(event: Any) -> str:
    """The reason in a journal's event of a pause, or empty."""
    try:
        told = parse_json(event.encode("utf-8", "replace")) if isinstance(event, str) else None
    except UnreadableJSON:
        return ""
    last = told.get("last_failure") if isinstance(told, dict) else None
    message = last.get("error_message") if isinstance(last, dict) else None
    return message if isinstance(message, str) else ""


def read_listed(row: dict[str, Any]) -> ListedRun:
    key = row.get("idempotency_key") or row.get("target_service_key")
    return ListedRun(
        run_id=str(row.get("id")),
        workflow=f"{row.get('target_service_name')}/{row.get('target_handler_name')}",
        state=state_of(row),
        told_state=str(row.get("status")),
        key=_as_uuid(key),
        started_at=read_time(row.get("created_at")),
        finished_at=read_time(row.get("completed_at")),
        details={
            name: row.get(name)
            for name in ("target", "invoked_by", "retry_count", "last_failure", "completion_failure")
        },
    )


def _as_uuid(key: Any) -> UUID | None:
    """Our keys are UUIDs; those of other clients need not be."""
    try:
        return UUID(key) if isinstance(key, str) else None
    except ValueError:
        return None
