"""Listing a namespace's runs by visibility queries, whatever started them."""

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import WorkflowExecutionStatus as Status
from temporalio.api.workflow.v1 import WorkflowExecutionInfo

from connectors.errors import Rejected
from connectors.protocol import ListedRun, RunFilter, RunPage, RunState
from connectors.temporal.connection import Connection
from connectors.temporal.runs import list_page, moment, parse_run, run_of, value_of
from connectors.temporal.starting import memo_key, quoted

PAUSED = "Paused"
"""Servers released before 2026 refuse conditions that name it."""
STATES = {
    Status.WORKFLOW_EXECUTION_STATUS_RUNNING: (RunState.RUNNING, "Running"),
    Status.WORKFLOW_EXECUTION_STATUS_PAUSED: (RunState.RUNNING, PAUSED),
    Status.WORKFLOW_EXECUTION_STATUS_COMPLETED: (RunState.COMPLETED, "Completed"),
    Status.WORKFLOW_EXECUTION_STATUS_CONTINUED_AS_NEW: (RunState.COMPLETED, "ContinuedAsNew"),
    Status.WORKFLOW_EXECUTION_STATUS_FAILED: (RunState.FAILED, "Failed"),
    Status.WORKFLOW_EXECUTION_STATUS_TIMED_OUT: (RunState.FAILED, "TimedOut"),
    Status.WORKFLOW_EXECUTION_STATUS_CANCELED: (RunState.CANCELLED, "Canceled"),
    Status.WORKFLOW_EXECUTION_STATUS_TERMINATED: (RunState.CANCELLED, "Terminated"),
}
UNKNOWN = (RunState.RUNNING, "Unknown")
QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`""")
QUOTES = frozenset("'\"`")
DETAIL_BYTES = 2_000
"""The longest value of a memo or a search attribute."""
MOST_ENTRIES = 50
CURSOR_DIGEST_BYTES = 8
OTHER_CURSOR = "The cursor belongs to no page of this list: begin without one."


async def list_runs(
    connection: Connection, wanted: RunFilter, *, page_size: int, cursor: str = ""
) -> RunPage:
    """Newest first. Raises Rejected for an unusable condition."""
    condition = " AND ".join(_conditions(wanted))
    token = _read_cursor(cursor, condition)
    answer = await list_page(connection, condition, page_size=page_size, token=token)
    runs = [_listed(info) for info in answer.executions]
    return RunPage(runs=runs, next_cursor=_make_cursor(answer.next_page_token, condition))


def _conditions(wanted: RunFilter) -> Iterator[str]:
    """In Temporal's query language. Raises Rejected for unusable values."""
    if wanted.workflow:
        yield f"WorkflowType = {_value(wanted.workflow)}"
    if wanted.run:
        yield from _by_run(wanted.run)
    if wanted.states:
        statuses = sorted(
            word for state, word in STATES.values() if state in wanted.states and word != PAUSED
        )
        yield f"ExecutionStatus IN ({', '.join(map(_value, statuses))})"
    if wanted.started_after is not None:
        yield f"StartTime >= {_time(wanted.started_after)}"
    if wanted.started_before is not None:
        yield f"StartTime < {_time(wanted.started_before)}"
    if wanted.engine_query.strip():
        yield f"({_closed(wanted.engine_query)})"


def _by_run(text: str) -> Iterator[str]:
    """`workflow-id/run-id` names one run; any other text is a prefix of workflow ids."""
    run = parse_run(text)
    if not run.first_run_id:
        yield f"WorkflowId STARTS_WITH {_value(text)}"
        return
    yield f"WorkflowId = {_value(run.workflow_id)}"
    yield f"RunId = {_value(run.first_run_id)}"


def _value(text: str) -> str:
    """Quoted. Raises Rejected for unprintable characters, which would reach the service's database."""
    if not text.isprintable():
        raise Rejected("What is looked for contains a character that cannot be printed.")
    return quoted(text)


def _time(moment: datetime) -> str:
    return _value(moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"))


def _closed(query: str) -> str:
    """A condition with balanced brackets and quotes; Temporal reports any other mistake."""
    query = " ".join(query.split())
    if not query.isprintable():
        raise Rejected("The condition contains a character that cannot be printed.")
    depth = 0
    for character in (outside := QUOTED.sub("", query)):
        depth += (character == "(") - (character == ")")
        if depth < 0:
            break
    if depth or QUOTES.intersection(outside):
        raise Rejected("The condition has a bracket or a quote without its partner.")
    return query


def _listed(info: WorkflowExecutionInfo) -> ListedRun:
    state, label = STATES.get(info.status, UNKNOWN)
    return ListedRun(
        run_id=str(run_of(info)),
        workflow=info.type.name,
        state=state,
        told_state=label,
        key=_key(info),
        started_at=moment(info.start_time),
        finished_at=moment(info.close_time),
        details=_details(info),
    )


def _key(info: WorkflowExecutionInfo) -> UUID | None:
    try:
        return UUID(memo_key(info))
    except ValueError:
        return None


def _details(info: WorkflowExecutionInfo) -> dict[str, Any]:
    details = {
        "workflow_id": info.execution.workflow_id,
        "run_id": info.execution.run_id,
        "task_queue": info.task_queue,
        "history_length": info.history_length,
        "parent_workflow_id": info.parent_execution.workflow_id,
        "memo": _values(info.memo.fields.items()),
        "search_attributes": _values(info.search_attributes.indexed_fields.items()),
    }
    return {name: value for name, value in details.items() if value}


def _values(payloads: Iterable[tuple[str, Payload]]) -> dict[str, Any]:
    entries = sorted(payloads)[:MOST_ENTRIES]
    return {name: value_of(payload, limit=DETAIL_BYTES) for name, payload in entries}


def _make_cursor(token: bytes, condition: str) -> str:
    return base64.urlsafe_b64encode(_digest(condition) + token).decode() if token else ""


def _read_cursor(cursor: str, condition: str) -> bytes:
    """The page token. Raises Rejected for a cursor of another condition, on which Temporal would fail."""
    try:
        read = base64.urlsafe_b64decode(cursor.encode("ascii"))
    except (ValueError, binascii.Error):
        raise Rejected(OTHER_CURSOR) from None
    if cursor and read[:CURSOR_DIGEST_BYTES] != _digest(condition):
        raise Rejected(OTHER_CURSOR)
    return read[CURSOR_DIGEST_BYTES:]


def _digest(condition: str) -> bytes:
    return hashlib.sha256(condition.encode()).digest()[:CURSOR_DIGEST_BYTES]
