"""Naming, reading and listing runs. A run's id here is its workflow id and its chain's first run id, to which
continuations and retries refer."""

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from cachetools import LRUCache
from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.api.common.v1 import Payload, WorkflowExecution
from temporalio.api.enums.v1 import HistoryEventFilterType
from temporalio.api.enums.v1 import WorkflowExecutionStatus as Status
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflow.v1 import WorkflowExecutionInfo
from temporalio.api.workflowservice import v1 as api
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from connectors.errors import InvalidAnswer, Rejected
from connectors.formats.json import UnreadableJSON, parse_json
from connectors.protocol import ListedRun, RunFilter, RunPage, RunState
from connectors.temporal.connection import Connection

RUN_ID_LIMIT = 255
RUN_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
WORKFLOW_ID_LIMIT = RUN_ID_LIMIT - 37
MOST_HOPS = 1_000
REMEMBERED = 10_000
TIME_IS_UP = (RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED)
ENCODING = "encoding"
MEMO_KEY = "catalogue_execution_id"
JSON_ENCODINGS = ("json/plain", "json/protobuf")
NOTHING = "binary/null"
ENDS = frozenset(
    f"workflow_execution_{end}_event_attributes"
    for end in ("completed", "failed", "timed_out", "canceled", "terminated", "continued_as_new")
)
PAUSED = "Paused"  # Servers released before 2026 refuse conditions with it
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
MOST_ENTRIES = 50
CURSOR_DIGEST_BYTES = 8
OTHER_CURSOR = "The cursor belongs to no page of this list: begin without one."


@dataclass(frozen=True, slots=True)
class TemporalRun:
    workflow_id: str
    first_run_id: str  # Empty: the current run of the workflow id

    def __str__(self) -> str:
        return f"{self.workflow_id}/{self.first_run_id}" if self.first_run_id else self.workflow_id


def parse_run(text: str) -> TemporalRun:
    """`workflow-id/run-id`; any other text is a workflow id."""
    workflow_id, slash, run_id = text.rpartition("/")
    if slash and workflow_id and RUN_ID.fullmatch(run_id):
        return TemporalRun(workflow_id, run_id)
    return TemporalRun(text, "")


def run_of(info: WorkflowExecutionInfo) -> TemporalRun:
    return TemporalRun(info.execution.workflow_id, info.first_run_id or info.execution.run_id)


async def describe(connection: Connection, run: TemporalRun) -> api.DescribeWorkflowExecutionResponse:
    """The chain's latest run. Raises NotFound."""
    latest = await _describe(connection, run.workflow_id, "")
    if run.first_run_id in ("", run_of(latest.workflow_execution_info).first_run_id):
        return latest
    # Another run has the workflow id by now, so the chain has to be followed.
    run_id = run.first_run_id
    for _ in range(MOST_HOPS):
        answer = await _describe(connection, run.workflow_id, run_id)
        if answer.workflow_execution_info.status == Status.WORKFLOW_EXECUTION_STATUS_RUNNING:
            return answer
        event = await close_event(connection, run.workflow_id, run_id)
        if not (run_id := "" if event is None else continued_as(event)):
            return answer
    raise InvalidAnswer(f"The run continued as new more than {MOST_HOPS:,} times.")


async def _describe(
    connection: Connection, workflow_id: str, run_id: str
) -> api.DescribeWorkflowExecutionResponse:
    request = api.DescribeWorkflowExecutionRequest(
        namespace=connection.namespace, execution=WorkflowExecution(workflow_id=workflow_id, run_id=run_id)
    )
    # The SDK's handles and iterators raise ValueError for the status of a paused run.
    return await connection.read(lambda service: service.describe_workflow_execution, request)


async def list_page(
    connection: Connection, condition: str, *, page_size: int, token: bytes
) -> api.ListWorkflowExecutionsResponse:
    request = api.ListWorkflowExecutionsRequest(
        namespace=connection.namespace, query=condition, page_size=page_size, next_page_token=token
    )
    return await connection.read(lambda service: service.list_workflow_executions, request)


async def close_event(
    connection: Connection, workflow_id: str, run_id: str, *, wait_seconds: float = 0
) -> HistoryEvent | None:
    """The last event of exactly this run; None if it is still running after `wait_seconds`."""
    request = api.GetWorkflowExecutionHistoryRequest(
        namespace=connection.namespace,
        execution=WorkflowExecution(workflow_id=workflow_id, run_id=run_id),
        wait_new_event=bool(wait_seconds),
        history_event_filter_type=HistoryEventFilterType.HISTORY_EVENT_FILTER_TYPE_CLOSE_EVENT,
        skip_archival=True,
    )
    timeout = timedelta(seconds=wait_seconds) if wait_seconds else connection.rpc_timeout

    async def ask(client: Client) -> api.GetWorkflowExecutionHistoryResponse | None:
        try:
            return await client.workflow_service.get_workflow_execution_history(
                request, retry=not wait_seconds, timeout=timeout
            )
        except RPCError as error:
            if not wait_seconds or error.status not in TIME_IS_UP:
                raise
        return None

    answer = await connection.ask(ask, seconds=wait_seconds or None)
    # For a running workflow, the service answers a request that does not wait with the latest event.
    events = [] if answer is None else answer.history.events
    return events[-1] if events and events[-1].WhichOneof("attributes") in ENDS else None


def attributes_of(event: HistoryEvent) -> Any:
    return getattr(event, event.WhichOneof("attributes") or "")


def continued_as(event: HistoryEvent) -> str:
    """The next run's id, or empty."""
    return str(getattr(attributes_of(event), "new_execution_run_id", ""))


class LatestRuns:
    """The latest known run of each chain, so that chains need not be followed from the start."""

    def __init__(self) -> None:
        self._known: LRUCache[TemporalRun, str] = LRUCache(REMEMBERED)

    def of(self, run: TemporalRun) -> str:
        return self._known.get(run, run.first_run_id)

    def note(self, run: TemporalRun, run_id: str) -> None:
        if run_id != run.first_run_id:
            self._known[run] = run_id


def moment(stamp: Timestamp) -> datetime | None:
    return stamp.ToDatetime(UTC) if stamp.seconds > 0 else None


def payload_of(value: Any) -> Payload:
    """Raises Rejected for what JSON cannot express."""
    try:
        written = json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError):
        raise Rejected("The arguments cannot be written as JSON, so they were not sent.") from None
    return Payload(metadata={ENCODING: JSON_ENCODINGS[0].encode()}, data=written)


def value_of(payload: Payload, *, limit: int, bytes_in_all: int | None = None) -> Any:
    """The JSON value; an unreadable one or one above `limit` bytes as an object that says so."""
    encoding = payload.metadata.get(ENCODING, b"").decode("ascii", "replace") or "none"
    if encoding == NOTHING:
        return None
    if (bytes_in_all or len(payload.data)) > limit:
        why = f"is larger than the limit of {limit:,} bytes"
    elif encoding not in JSON_ENCODINGS:
        why = "is not JSON"
    else:
        try:
            return parse_json(payload.data)
        except UnreadableJSON as error:
            why = f"cannot be read: {error}"
    return {"unreadable": f"What Temporal holds here {why}.", ENCODING: encoding, "bytes": len(payload.data)}


def values_of(payloads: Sequence[Payload], *, limit: int) -> Any:
    """A list for several payloads, which some SDKs send; None without any."""
    total = sum(len(payload.data) for payload in payloads)
    values = [value_of(payload, limit=limit, bytes_in_all=total) for payload in payloads]
    return values[0] if len(values) == 1 else values or None


def is_readable(payload: Payload) -> bool:
    return payload.metadata.get(ENCODING, b"").decode("ascii", "replace") in JSON_ENCODINGS


def quoted(text: str) -> str:
    """As a string literal of Temporal's query language."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def memo_key(info: WorkflowExecutionInfo) -> str:
    """The key of the start; empty for runs started elsewhere and child workflows."""
    held = info.memo.fields.get(MEMO_KEY)
    value = None if held is None else value_of(held, limit=1_000)
    return value if isinstance(value, str) else ""


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
    # `workflow-id/run-id` names one run; any other text is a prefix of workflow ids.
    run = parse_run(wanted.run)
    if run.first_run_id:
        yield f"WorkflowId = {_value(run.workflow_id)}"
        yield f"RunId = {_value(run.first_run_id)}"
    elif wanted.run:
        yield f"WorkflowId STARTS_WITH {_value(wanted.run)}"
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
    try:
        key = UUID(memo_key(info))
    except ValueError:
        key = None
    return ListedRun(
        run_id=str(run_of(info)),
        workflow=info.type.name,
        state=state,
        told_state=label,
        key=key,
        started_at=moment(info.start_time),
        finished_at=moment(info.close_time),
        details=_details(info),
    )


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
