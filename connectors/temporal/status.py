"""Snapshots of runs: state, progress, output, failure."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from cachetools import TTLCache
from google.protobuf.json_format import MessageToDict
from temporalio.api.common.v1 import Payload, WorkflowExecution
from temporalio.api.enums import v1 as enums
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.query.v1 import WorkflowQuery
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    DescribeTaskQueueRequest,
    DescribeWorkflowExecutionResponse,
    QueryWorkflowRequest,
)

from connectors.errors import ConnectorError, InvalidAnswer
from connectors.formats.json import is_number, read_percent
from connectors.network.redaction import printable, shorten, shorten_error
from connectors.protocol import RunSnapshot, RunState
from connectors.temporal.connection import Connection
from connectors.temporal.runs import attributes_of, is_readable, moment, run_of, values_of

RUNNING = enums.WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING
PAUSED = enums.WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_PAUSED
GOES_ON = (RUNNING, PAUSED)
DETAILS_BYTES = 100_000
MESSAGE_LIMIT = 500
PROGRESS_BYTES = 10_000
QUERY_SECONDS = 2.0  # A query needs a worker, which may be busy
PERCENT_KEYS = ("progress", "percent", "percentage", "progress_percent")
DONE_KEYS = ("completed", "current", "done", "processed")
MESSAGE_KEYS = ("message", "progress_message", "status", "step", "stage", "description")
REMEMBERED_SECONDS = 5.0
SEEN_WITHIN = timedelta(seconds=75)
"""Workers poll at least every 60 s; the service lists them for 5 min after a poll."""
MOST_QUEUES = 1_000
DETAILS_LIMIT = 300
LONGEST_CHAIN = 20
FAILURE_BYTES = 100_000
TIMEOUTS = {
    enums.TimeoutType.TIMEOUT_TYPE_START_TO_CLOSE: "it took longer than its timeout",
    enums.TimeoutType.TIMEOUT_TYPE_SCHEDULE_TO_START: "no worker took it in time",
    enums.TimeoutType.TIMEOUT_TYPE_SCHEDULE_TO_CLOSE: "it was not done in time, in all its attempts",
    enums.TimeoutType.TIMEOUT_TYPE_HEARTBEAT: "it sent no heartbeat in time",
}
GAVE_UP = {
    enums.RetryState.RETRY_STATE_MAXIMUM_ATTEMPTS_REACHED: " in all its attempts",
    enums.RetryState.RETRY_STATE_TIMEOUT: " until its time was up",
}


@dataclass(frozen=True, slots=True)
class Progress:
    percent: float | None = None
    message: str = ""


class Pollers:
    """Whether workers poll task queues, cached for REMEMBERED_SECONDS."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._found: TTLCache[str, bool] = TTLCache(MOST_QUEUES, REMEMBERED_SECONDS)

    async def listen(self, task_queue: str) -> bool:
        if (found := self._found.get(task_queue)) is not None:
            return found
        request = DescribeTaskQueueRequest(
            namespace=self._connection.namespace,
            task_queue=TaskQueue(name=task_queue),
            task_queue_type=enums.TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
        )
        oldest = datetime.now(UTC) - SEEN_WITHIN
        answer = await self._connection.read(lambda service: service.describe_task_queue, request)
        listens = any(poller.last_access_time.ToDatetime(UTC) >= oldest for poller in answer.pollers)
        self._found[task_queue] = listens
        return listens


def running(answer: DescribeWorkflowExecutionResponse, progress: Progress) -> RunSnapshot:
    paused = answer.workflow_execution_info.status == PAUSED
    return RunSnapshot(
        state=RunState.RUNNING,
        progress=progress.percent,
        progress_message="It is paused at Temporal." if paused else progress.message,
        raw=_raw(answer),
        **_times(answer),
    )


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
            state, error = RunState.CANCELLED, "The workflow was cancelled at Temporal."
            raw = {"details": values_of(attributes.details.payloads, limit=DETAILS_BYTES)}
        case enums.EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED:
            reason, by = printable(attributes.reason), printable(attributes.identity)
            words = "The workflow was terminated at Temporal" + (f" by {by}" if by else "")
            state, error = RunState.CANCELLED, shorten_error(f"{words}: {reason}" if reason else f"{words}.")
            raw = {"details": values_of(attributes.details.payloads, limit=DETAILS_BYTES)}
        case other:
            raise InvalidAnswer(f"The run's last event is {enums.EventType.Name(other)}, which is no end.")
    return RunSnapshot(state=state, output=output, error=error, raw=_raw(answer) | raw, **_times(answer))


def _timed_out(answer: DescribeWorkflowExecutionResponse, retry_state: int) -> str:
    config = answer.execution_config
    limits = [
        limit.ToTimedelta().total_seconds()
        for limit in (config.workflow_run_timeout, config.workflow_execution_timeout)
        if limit.seconds > 0
    ]
    limit = f" of {min(limits):g} s" if limits else ""
    again = (
        ", in all its attempts"
        if retry_state == enums.RetryState.RETRY_STATE_MAXIMUM_ATTEMPTS_REACHED
        else ""
    )
    return f"Temporal ended the workflow: it took longer than its timeout{limit}{again}."


def _times(answer: DescribeWorkflowExecutionResponse) -> dict[str, Any]:
    info = answer.workflow_execution_info
    created = moment(answer.workflow_extended_info.original_start_time) or moment(info.start_time)
    # The chain starts with its first run.
    return {"created_at": created, "started_at": created, "finished_at": moment(info.close_time)}


def _raw(answer: DescribeWorkflowExecutionResponse) -> dict[str, Any]:
    info = answer.workflow_execution_info
    return {
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


async def progress_of(
    connection: Connection, pollers: Pollers, answer: DescribeWorkflowExecutionResponse, query: str
) -> Progress:
    """`query` may be empty. Never raises ConnectorError."""
    try:
        if (stalled := await _why_stalled(pollers, answer)) is not None:
            return Progress(message=stalled)
        if query:
            return _read([await _ask(connection, answer, query)])
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


async def _ask(connection: Connection, answer: DescribeWorkflowExecutionResponse, query: str) -> Any:
    execution = answer.workflow_execution_info.execution
    request = QueryWorkflowRequest(
        namespace=connection.namespace,
        execution=WorkflowExecution(workflow_id=execution.workflow_id, run_id=execution.run_id),
        query=WorkflowQuery(query_type=query),
        query_reject_condition=enums.QueryRejectCondition.QUERY_REJECT_CONDITION_NONE,
    )
    limit = min(connection.rpc_timeout.total_seconds(), QUERY_SECONDS)
    # The SDK's handle would retry a query that a busy worker did not answer.
    reply = await connection.ask(
        lambda client: client.workflow_service.query_workflow(
            request, retry=False, timeout=timedelta(seconds=limit)
        ),
        seconds=limit,
    )
    return values_of(reply.query_result.payloads, limit=PROGRESS_BYTES)


def _of_activities(answer: DescribeWorkflowExecutionResponse) -> Progress:
    """From the latest heartbeat, else from an activity that is retried."""
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
        message = message or _message_in(value)
    return Progress(percent, shorten(printable(message), MESSAGE_LIMIT))


def _percent(value: Any) -> float | None:
    if isinstance(value, dict):
        if is_number(value.get("total")) and value["total"] > 0:
            done = _first(value, (*DONE_KEYS, *PERCENT_KEYS))
            return None if done is None else read_percent(100 * done / value["total"])
        value = _first(value, PERCENT_KEYS)
    return read_percent(value)


def _first(value: dict[str, Any], keys: tuple[str, ...]) -> float | None:
    return next((float(value[key]) for key in keys if is_number(value.get(key))), None)


def _message_in(value: Any) -> str:
    if isinstance(value, dict):
        value = next((value[key] for key in MESSAGE_KEYS if isinstance(value.get(key), str)), "")
    return value if isinstance(value, str) else ""


def no_worker_on(task_queue: str) -> str:
    return f"No worker is listening on the task queue {task_queue}."


def words_of_failure(failure: Failure) -> str:
    """`activity brew: OutOfTea: The kettle cannot help. (details: ...), caused by ValueError: ...`"""
    text = ""
    for link in _chain(failure):
        words, holds_the_next = _words_of_link(link)
        text += words
        if link.HasField("cause"):
            text += ": " if holds_the_next else ", caused by "
    return shorten_error(printable(text))


def failure_as_json(failure: Failure) -> dict[str, Any]:
    whole: dict[str, Any] = MessageToDict(failure, preserving_proto_field_name=True)
    level: Any = whole
    for link in _chain(failure):
        if link.HasField("application_failure_info") and "details" in level["application_failure_info"]:
            payloads = link.application_failure_info.details.payloads
            level["application_failure_info"]["details"] = values_of(payloads, limit=FAILURE_BYTES)
        if not isinstance(level := level.get("cause"), dict):
            break
    return whole


def _chain(failure: Failure) -> Iterator[Failure]:
    for _ in range(LONGEST_CHAIN):
        yield failure
        if not failure.HasField("cause"):
            return
        failure = failure.cause


def _words_of_link(link: Failure) -> tuple[str, bool]:
    """Its description, and whether it only locates the next link."""
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
    return _message(link) or "no reason was given", False


def _message(link: Failure) -> str:
    if link.HasField("encoded_attributes"):
        return "the reason is encrypted"
    return link.message.strip()


def _bracketed(details: Sequence[Payload]) -> str:
    if not details:
        return ""
    if not all(map(is_readable, details)):
        return "(with details that are no JSON)"
    values = values_of(details, limit=FAILURE_BYTES)
    return f"(details: {shorten(json.dumps(values, ensure_ascii=False), DETAILS_LIMIT)})"
