"""Naming, reading and listing runs, and their snapshots. A run's id here is its workflow id and its chain's
first run id, to which continuations and retries refer."""

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from cachetools import TTLCache
from google.protobuf.json_format import MessageToDict
from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.api.common.v1 import Payload, WorkflowExecution
from temporalio.api.enums import v1 as enums
from temporalio.api.enums.v1 import HistoryEventFilterType
from temporalio.api.enums.v1 import WorkflowExecutionStatus as Status
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.query.v1 import WorkflowQuery
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflow.v1 import WorkflowExecutionInfo
from temporalio.api.workflowservice import v1 as api
from temporalio.api.workflowservice.v1 import (
    DescribeTaskQueueRequest,
    DescribeWorkflowExecutionResponse,
    QueryWorkflowRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from connectors.errors import ConnectorError, InvalidAnswer, Rejected
from connectors.formats.json import (
    UnreadableJSON,
    is_number,
    parse_json,
    read_percent,
    read_uuid,
    write_arguments,
)
from connectors.network.redaction import printable, shorten, shorten_error
from connectors.protocol import ListedRun, RunFilter, RunPage, RunSnapshot, RunState
from connectors.temporal.connection import Connection

RUN_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
WORKFLOW_ID_LIMIT = 255 - 37  # A slash and a run id follow it
MAX_HOPS = 1_000
TIME_IS_UP = (RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED)
ENCODING = "encoding"
MEMO_KEY = "catalogue_execution_id"
JSON_ENCODINGS = ("json/plain", "json/protobuf")
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
QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`""")
CURSOR_DIGEST_BYTES = 8
OTHER_CURSOR = "The cursor does not belong to this list; start without one."
GOES_ON = (Status.WORKFLOW_EXECUTION_STATUS_RUNNING, Status.WORKFLOW_EXECUTION_STATUS_PAUSED)
DETAILS_BYTES = 100_000
MESSAGE_LIMIT = 500
PROGRESS_BYTES = 10_000
PERCENT_KEYS = ("progress", "percent", "percentage", "progress_percent")
MESSAGE_KEYS = ("message", "progress_message", "status", "step", "stage", "description")
REMEMBERED_SECONDS = 5.0
MAX_CHAIN = 20
FAILURE_BYTES = 100_000
TIMEOUTS = {
    enums.TimeoutType.TIMEOUT_TYPE_START_TO_CLOSE: "it took longer than its timeout",
    enums.TimeoutType.TIMEOUT_TYPE_SCHEDULE_TO_START: "no worker picked it up in time",
    enums.TimeoutType.TIMEOUT_TYPE_SCHEDULE_TO_CLOSE: "it did not finish in time, in all attempts",
    enums.TimeoutType.TIMEOUT_TYPE_HEARTBEAT: "it did not send a heartbeat in time",
}
GAVE_UP = {
    enums.RetryState.RETRY_STATE_MAXIMUM_ATTEMPTS_REACHED: " in all attempts",
    enums.RetryState.RETRY_STATE_TIMEOUT: " until its timeout",
}


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
    # Another run has the workflow id now, so the chain must be followed.
    run_id = run.first_run_id
    for _ in range(MAX_HOPS):
        answer = await _describe(connection, run.workflow_id, run_id)
        if answer.workflow_execution_info.status == Status.WORKFLOW_EXECUTION_STATUS_RUNNING:
            return answer
        event = await close_event(connection, run.workflow_id, run_id)
        if not (run_id := "" if event is None else continued_as(event)):
            return answer
    raise InvalidAnswer(f"The run continued as new more than {MAX_HOPS:,} times.")


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


async def history_of(connection: Connection, execution: WorkflowExecution) -> list[HistoryEvent]:
    """Of exactly this run; Temporal itself ends runs with more than 51,200 events."""
    events: list[HistoryEvent] = []
    request = api.GetWorkflowExecutionHistoryRequest(namespace=connection.namespace, execution=execution)
    while True:
        answer = await connection.read(lambda service: service.get_workflow_execution_history, request)
        events += answer.history.events
        if not answer.next_page_token:
            return events
        request.next_page_token = answer.next_page_token


def attributes_of(event: HistoryEvent) -> Any:
    return getattr(event, event.WhichOneof("attributes") or "")


def continued_as(event: HistoryEvent) -> str:
    """The next run's id, or empty."""
    return str(getattr(attributes_of(event), "new_execution_run_id", ""))


def moment(stamp: Timestamp) -> datetime | None:
    return stamp.ToDatetime(UTC) if stamp.seconds > 0 else None


def payload_of(value: Any) -> Payload:
    """Raises Rejected for what JSON cannot express."""
    written = write_arguments(value, ascii_only=True).encode()
    return Payload(metadata={ENCODING: JSON_ENCODINGS[0].encode()}, data=written)


def value_of(payload: Payload, *, limit: int, bytes_in_all: int | None = None) -> Any:
    """The JSON value; for an unreadable or too large one, an object with the reason."""
    encoding = _encoding_of(payload)
    if encoding == "binary/null":
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
    return {"unreadable": f"This value in Temporal {why}.", ENCODING: encoding, "bytes": len(payload.data)}


def values_of(payloads: Sequence[Payload], *, limit: int) -> Any:
    """A list for several payloads, which some SDKs send; None without any."""
    total = sum(len(payload.data) for payload in payloads)
    values = [value_of(payload, limit=limit, bytes_in_all=total) for payload in payloads]
    return values[0] if len(values) == 1 else values or None


def _encoding_of(payload: Payload) -> str:
    return payload.metadata.get(ENCODING, b"").decode("ascii", "replace") or "none"


def quoted(text: str) -> str:
    """Writes a string literal of Temporal's query language."""
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
    runs, following = [_listed(info) for info in answer.executions], answer.next_page_token
    cursor = base64.urlsafe_b64encode(_digest(condition) + following).decode() if following else ""
    return RunPage(runs=runs, next_cursor=cursor)


def _conditions(wanted: RunFilter) -> Iterator[str]:
    """Yields conditions in Temporal's query language. Raises Rejected for unusable values."""
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
        raise Rejected("The filter contains an unprintable character.")
    return quoted(text)


def _time(moment: datetime) -> str:
    return _value(moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"))


def _closed(query: str) -> str:
    """A condition with balanced brackets and quotes; Temporal reports any other mistake."""
    query = " ".join(query.split())
    if not query.isprintable():
        raise Rejected("The condition contains an unprintable character.")
    depth = 0
    for character in (outside := QUOTED.sub("", query)):
        depth += (character == "(") - (character == ")")
        if depth < 0:
            break
    if depth or any(quote in outside for quote in "'\"`"):
        raise Rejected("The condition has an unbalanced bracket or quote.")
    return query


def _listed(info: WorkflowExecutionInfo) -> ListedRun:
    state, label = STATES.get(info.status, (RunState.RUNNING, "Unknown"))
    details = {
        "workflow_id": info.execution.workflow_id,
        "run_id": info.execution.run_id,
        "task_queue": info.task_queue,
        "history_length": info.history_length,
        "parent_workflow_id": info.parent_execution.workflow_id,
        "memo": _values(info.memo.fields.items()),
        "search_attributes": _values(info.search_attributes.indexed_fields.items()),
    }
    return ListedRun(
        run_id=str(run_of(info)),
        workflow=info.type.name,
        state=state,
        told_state=label,
        key=read_uuid(memo_key(info)),
        started_at=moment(info.start_time),
        finished_at=moment(info.close_time),
        details={name: value for name, value in details.items() if value},
    )


def _values(payloads: Iterable[tuple[str, Payload]]) -> dict[str, Any]:
    return {name: value_of(payload, limit=2_000) for name, payload in sorted(payloads)[:50]}


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


@dataclass(frozen=True, slots=True)
class Progress:
    percent: float | None = None
    message: str = ""


class Pollers:
    """Finds whether workers poll task queues, cached for REMEMBERED_SECONDS."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._found: TTLCache[str, bool] = TTLCache(1_000, REMEMBERED_SECONDS)

    async def listen(self, task_queue: str) -> bool:
        if (found := self._found.get(task_queue)) is not None:
            return found
        request = DescribeTaskQueueRequest(
            namespace=self._connection.namespace,
            task_queue=TaskQueue(name=task_queue),
            task_queue_type=enums.TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
        )
        # Workers poll at least every 60 s; the service lists them for 5 min after a poll.
        oldest = datetime.now(UTC) - timedelta(seconds=75)
        answer = await self._connection.read(lambda service: service.describe_task_queue, request)
        listens = any(poller.last_access_time.ToDatetime(UTC) >= oldest for poller in answer.pollers)
        self._found[task_queue] = listens
        return listens


def is_paused(answer: DescribeWorkflowExecutionResponse) -> bool:
    return answer.workflow_execution_info.status == Status.WORKFLOW_EXECUTION_STATUS_PAUSED


def running(answer: DescribeWorkflowExecutionResponse, progress: Progress) -> RunSnapshot:
    paused = is_paused(answer)
    message = "Paused in Temporal." if paused else progress.message
    seen = snapshot_of(answer, RunState.RUNNING, progress=progress.percent, progress_message=message)
    return replace(seen, is_paused=paused)


def ended(
    answer: DescribeWorkflowExecutionResponse, event: HistoryEvent, *, output_bytes: int
) -> RunSnapshot:
    """Raises InvalidAnswer for an unknown closing event."""
    attributes = attributes_of(event)
    output: Any = None
    error, raw = "", {}
    match event.event_type:
        case enums.EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED:
            state = RunState.COMPLETED
            output = values_of(attributes.result.payloads, limit=output_bytes)
        case enums.EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED:
            state, error = RunState.FAILED, words_of_failure(attributes.failure)
            raw = {"failure": failure_as_json(attributes.failure)}
        case enums.EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT:
            state, error = RunState.FAILED, _timed_out(answer, attributes.retry_state)
        case enums.EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED:
            state, error = RunState.CANCELLED, "The workflow was cancelled in Temporal."
            raw = {"details": values_of(attributes.details.payloads, limit=DETAILS_BYTES)}
        case enums.EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED:
            reason, by = printable(attributes.reason), printable(attributes.identity)
            words = "The workflow was terminated in Temporal" + (f" by {by}" if by else "")
            state, error = RunState.CANCELLED, shorten_error(f"{words}: {reason}" if reason else f"{words}.")
            raw = {"details": values_of(attributes.details.payloads, limit=DETAILS_BYTES)}
        case other:
            raise InvalidAnswer(
                f"The run's last event is {enums.EventType.Name(other)}, which does not end a run."
            )
    seen = snapshot_of(answer, state, output=output, error=error)
    return replace(seen, raw=seen.raw | raw)


def _timed_out(answer: DescribeWorkflowExecutionResponse, retry_state: int) -> str:
    config = answer.execution_config
    limits = [
        limit.ToTimedelta().total_seconds()
        for limit in (config.workflow_run_timeout, config.workflow_execution_timeout)
        if limit.seconds > 0
    ]
    limit = f" of {min(limits):g} s" if limits else ""
    has_retried = retry_state == enums.RetryState.RETRY_STATE_MAXIMUM_ATTEMPTS_REACHED
    again = ", in all attempts" if has_retried else ""
    return f"Temporal ended the workflow: it took longer than its timeout{limit}{again}."


def snapshot_of(answer: DescribeWorkflowExecutionResponse, state: RunState, **said: Any) -> RunSnapshot:
    info = answer.workflow_execution_info
    # A chain starts with its first run.
    created = moment(answer.workflow_extended_info.original_start_time) or moment(info.start_time)
    raw = {
        "workflow_id": info.execution.workflow_id,
        "run_id": info.execution.run_id,
        "first_run_id": run_of(info).first_run_id,
        "type": info.type.name,
        "task_queue": answer.execution_config.task_queue.name,
        "status": enums.WorkflowExecutionStatus.Name(info.status).removeprefix("WORKFLOW_EXECUTION_STATUS_"),
        "history_length": info.history_length,
        "pending_activities": [
            {"type": activity.activity_type.name, "attempt": activity.attempt}
            for activity in answer.pending_activities[:20]
        ],
    }
    return RunSnapshot(
        state=state,
        created_at=created,
        started_at=created,
        finished_at=moment(info.close_time),
        raw=raw,
        **said,
    )


async def progress_of(
    connection: Connection, pollers: Pollers, answer: DescribeWorkflowExecutionResponse, query: str
) -> Progress:
    """`query` may be empty. Never raises ConnectorError."""
    try:
        if (stalled := await _why_stalled(pollers, answer)) is not None:
            return Progress(message=stalled)
        if query:
            return _read([await ask_run(connection, answer, query)])
    except ConnectorError as error:
        return Progress(message=shorten(f"Its progress is unknown: {error.message}", MESSAGE_LIMIT))
    return _of_activities(answer)


async def _why_stalled(pollers: Pollers, answer: DescribeWorkflowExecutionResponse) -> str | None:
    task = answer.pending_workflow_task
    scheduled = enums.PendingWorkflowTaskState.PENDING_WORKFLOW_TASK_STATE_SCHEDULED
    if not answer.HasField("pending_workflow_task") or task.state != scheduled:
        failed = f"Its worker failed to continue it; this is attempt {task.attempt}."
        return failed if task.attempt > 1 else None
    task_queue = answer.execution_config.task_queue.name
    if not await pollers.listen(task_queue):
        return no_worker_on(task_queue)
    if task.attempt > 1:
        return f"Its worker failed to continue it; attempt {task.attempt} comes next."
    return None


async def ask_run(
    connection: Connection,
    answer: DescribeWorkflowExecutionResponse,
    query: str,
    *,
    limit_bytes: int = PROGRESS_BYTES,
) -> Any:
    execution = answer.workflow_execution_info.execution
    request = QueryWorkflowRequest(
        namespace=connection.namespace,
        execution=WorkflowExecution(workflow_id=execution.workflow_id, run_id=execution.run_id),
        query=WorkflowQuery(query_type=query),
        query_reject_condition=enums.QueryRejectCondition.QUERY_REJECT_CONDITION_NONE,
    )
    # A query needs a worker, which may be busy. The SDK's handle would then retry it.
    limit = min(connection.rpc_timeout.total_seconds(), 2.0)
    reply = await connection.ask(
        lambda client: client.workflow_service.query_workflow(
            request, retry=False, timeout=timedelta(seconds=limit)
        ),
        seconds=limit,
    )
    return values_of(reply.query_result.payloads, limit=limit_bytes)


def _of_activities(answer: DescribeWorkflowExecutionResponse) -> Progress:
    """Reads the latest heartbeat, else an activity that is retried."""
    beating = [activity for activity in answer.pending_activities if activity.heartbeat_details.payloads]
    if beating:
        latest = max(beating, key=lambda activity: activity.last_heartbeat_time.ToDatetime(UTC))
        payloads = latest.heartbeat_details.payloads
        return _read([values_of([payload], limit=PROGRESS_BYTES) for payload in payloads])
    failing = [activity for activity in answer.pending_activities if activity.HasField("last_failure")]
    if not failing:
        return Progress()
    name, why = failing[0].activity_type.name, words_of_failure(failing[0].last_failure)
    words = f"Activity {name} is at attempt {failing[0].attempt}; the last one failed: {why}"
    return Progress(message=shorten(words, MESSAGE_LIMIT))


def _read(values: list[Any]) -> Progress:
    """Numbers are percent, texts messages, objects may have both; the first of each counts."""
    percent, message = None, ""
    for value in values:
        if percent is None:
            percent = _percent(value)
        texts = [value.get(key) for key in MESSAGE_KEYS] if isinstance(value, dict) else [value]
        message = message or next((text for text in texts if isinstance(text, str)), "")
    return Progress(percent, shorten(printable(message), MESSAGE_LIMIT))


def _percent(value: Any) -> float | None:
    if isinstance(value, dict):
        if is_number(value.get("total")) and value["total"] > 0:
            done = _first(value, ("completed", "current", "done", "processed", *PERCENT_KEYS))
            return None if done is None else read_percent(100 * done / value["total"])
        value = _first(value, PERCENT_KEYS)
    return read_percent(value)


def _first(value: dict[str, Any], keys: tuple[str, ...]) -> float | None:
    return next((float(value[key]) for key in keys if is_number(value.get(key))), None)


def no_worker_on(task_queue: str) -> str:
    return f"No worker is listening on the task queue {task_queue}."


def words_of_failure(failure: Failure) -> str:
    """`activity brew: OutOfTea: The kettle cannot help. (details: ...), caused by ValueError: ...`"""
    text = ""
    for link in chain_of(failure):
        words, holds_the_next = _words_of_link(link)
        text += words
        if link.HasField("cause"):
            text += ": " if holds_the_next else ", caused by "
    return shorten_error(printable(text))


def failure_as_json(failure: Failure) -> dict[str, Any]:
    whole: dict[str, Any] = MessageToDict(failure, preserving_proto_field_name=True)
    level: Any = whole
    for link in chain_of(failure):
        if link.HasField("application_failure_info") and "details" in level["application_failure_info"]:
            payloads = link.application_failure_info.details.payloads
            level["application_failure_info"]["details"] = values_of(payloads, limit=FAILURE_BYTES)
        if not isinstance(level := level.get("cause"), dict):
            break
    return whole


def chain_of(failure: Failure) -> Iterator[Failure]:
    for _ in range(MAX_CHAIN):
        yield failure
        if not failure.HasField("cause"):
            return
        failure = failure.cause


def _words_of_link(link: Failure) -> tuple[str, bool]:
    """Returns its description, and whether it only locates the next link."""
    match link.WhichOneof("failure_info"):
        case "activity_failure_info":
            info = link.activity_failure_info
            return f"activity {info.activity_type.name} failed{GAVE_UP.get(info.retry_state, '')}", True
        case "child_workflow_execution_failure_info":
            child = link.child_workflow_execution_failure_info
            return f"child workflow {child.workflow_type.name} failed", True
        case "nexus_operation_execution_failure_info":
            nexus = link.nexus_operation_execution_failure_info
            return f"operation {nexus.operation} of {nexus.service} failed", True
        case "timeout_failure_info":
            kind = TIMEOUTS.get(link.timeout_failure_info.timeout_type, link.message or "a timeout passed")
            return kind, False
        case "application_failure_info":
            application = link.application_failure_info
            words = ": ".join(filter(None, (application.type, _message(link)))) or "no reason given"
            return f"{words} {_bracketed(application.details.payloads)}".rstrip(), False
        case "canceled_failure_info":
            return link.message or "cancelled", False
    return _message(link) or "no reason given", False


def _message(link: Failure) -> str:
    if link.HasField("encoded_attributes"):
        return "the reason is encrypted"
    return link.message.strip()


def _bracketed(details: Sequence[Payload]) -> str:
    if not details:
        return ""
    if not all(_encoding_of(payload) in JSON_ENCODINGS for payload in details):
        return "(with details that are not JSON)"
    values = values_of(details, limit=FAILURE_BYTES)
    return f"(details: {shorten(json.dumps(values, ensure_ascii=False), 300)})"
