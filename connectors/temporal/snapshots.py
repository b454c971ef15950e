"""What a run's description and last event say, as a snapshot for the record."""

from typing import Any

from temporalio.api.enums.v1 import EventType, RetryState, WorkflowExecutionStatus
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionResponse

from connectors.errors import InvalidAnswer
from connectors.network.redaction import printable, shorten_error
from connectors.protocol import RunSnapshot, RunState
from connectors.temporal.failures import failure_as_json, words_of_failure
from connectors.temporal.payloads import values_of
from connectors.temporal.progress import Progress
from connectors.temporal.reading import attributes_of, first_run_id, moment

RUNNING = WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING
PAUSED = WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_PAUSED
GOES_ON = (RUNNING, PAUSED)
DETAILS_BYTES = 100_000


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
    """Raises InvalidAnswer for an end that this connector does not know."""
    attributes = attributes_of(event)
    output: Any = None
    error, told = "", {}
    match event.event_type:
        case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED:
            state = RunState.COMPLETED
            output = values_of(attributes.result.payloads, limit=output_bytes)
        case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED:
            state, error = RunState.FAILED, words_of_failure(attributes.failure)
            told = {"failure": failure_as_json(attributes.failure)}
        case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT:
            state, error = RunState.FAILED, _timed_out(answer, attributes.retry_state)
        case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED:
            state, error = RunState.CANCELLED, "The workflow was cancelled at Temporal."
            told = {"details": values_of(attributes.details.payloads, limit=DETAILS_BYTES)}
        case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED:
            state, error = RunState.CANCELLED, _terminated(attributes)
            told = {"details": values_of(attributes.details.payloads, limit=DETAILS_BYTES)}
        case other:
            raise InvalidAnswer(f"The run's last event is {EventType.Name(other)}, which is no end.")
    return RunSnapshot(state=state, output=output, error=error, raw=_raw(answer) | told, **_times(answer))


def _timed_out(answer: DescribeWorkflowExecutionResponse, retry_state: int) -> str:
    config = answer.execution_config
    limits = [
        limit.ToTimedelta().total_seconds()
        for limit in (config.workflow_run_timeout, config.workflow_execution_timeout)
        if limit.seconds > 0
    ]
    limit = f" of {min(limits):g} s" if limits else ""
    again = ", in all its attempts" if retry_state == RetryState.RETRY_STATE_MAXIMUM_ATTEMPTS_REACHED else ""
    return f"Temporal ended the workflow: it took longer than its timeout{limit}{again}."


def _terminated(attributes: Any) -> str:
    reason = printable(attributes.reason)
    by = printable(attributes.identity)
    told = "The workflow was terminated at Temporal" + (f" by {by}" if by else "")
    return shorten_error(f"{told}: {reason}" if reason else f"{told}.")


def _times(answer: DescribeWorkflowExecutionResponse) -> dict[str, Any]:
    info = answer.workflow_execution_info
    created = moment(answer.workflow_extended_info.original_start_time) or moment(info.start_time)
    return {
        "created_at": created,
        # Of the first run, where it continued as new.
        "started_at": created,
        "finished_at": moment(info.close_time),
    }


def _raw(answer: DescribeWorkflowExecutionResponse) -> dict[str, Any]:
    info = answer.workflow_execution_info
    return {
        "workflow_id": info.execution.workflow_id,
        "run_id": info.execution.run_id,
        "first_run_id": first_run_id(answer),
        "type": info.type.name,
        "task_queue": answer.execution_config.task_queue.name,
        "status": WorkflowExecutionStatus.Name(info.status).removeprefix("WORKFLOW_EXECUTION_STATUS_"),
        "history_length": info.history_length,
        "pending_activities": [
            {"type": activity.activity_type.name, "attempt": activity.attempt}
            for activity in answer.pending_activities[:20]
        ],
    }
