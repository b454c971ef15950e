"""How far a run is: by the heartbeats of its activities, or by what its workflow answers to a query."""

from dataclasses import dataclass
from datetime import UTC, timedelta
from typing import Any

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import PendingWorkflowTaskState, QueryRejectCondition
from temporalio.api.query.v1 import WorkflowQuery
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice.v1 import (
    DescribeWorkflowExecutionResponse,
    QueryWorkflowRequest,
    QueryWorkflowResponse,
)
from temporalio.client import Client

from connectors.errors import ConnectorError
from connectors.network.redaction import printable, shorten
from connectors.temporal.connection import Connection
from connectors.temporal.failures import words_of_failure
from connectors.temporal.payloads import values_of
from connectors.temporal.pollers import Pollers, nobody_listens

MESSAGE_LIMIT = 500
DETAILS_BYTES = 10_000
QUERY_SECONDS = 2.0
"""A query needs a worker, which may be busy; nobody waits long for it."""
PERCENT_KEYS = ("progress", "percent", "percentage", "progress_percent")
DONE_KEYS = ("completed", "current", "done", "processed")
MESSAGE_KEYS = ("message", "progress_message", "status", "step", "stage", "description")


@dataclass(frozen=True, slots=True)
class Progress:
    percent: float | None = None
    message: str = ""


async def progress_of(
    connection: Connection, pollers: Pollers, answer: DescribeWorkflowExecutionResponse, query: str
) -> Progress:
    """Of a run that goes on; `query` may be empty. Never raises for what cannot be found out."""
    try:
        if (stands := await _why_it_stands(pollers, answer)) is not None:
            return Progress(message=stands)
        if query:
            return _read([await _ask(connection, answer, query)])
    except ConnectorError as error:
        return Progress(message=shorten(f"How far it is cannot be told: {error.message}", MESSAGE_LIMIT))
    return _of_activities(answer)


async def _why_it_stands(pollers: Pollers, answer: DescribeWorkflowExecutionResponse) -> str | None:
    """The worker's next step is due: is there one, and does it manage it?"""
    task = answer.pending_workflow_task
    if task.attempt > 1 and not _waits(answer):
        return f"Its worker has failed to carry on with it; this is attempt {task.attempt}."
    if not _waits(answer):
        return None
    task_queue = answer.execution_config.task_queue.name
    if not await pollers.listen(task_queue):
        return nobody_listens(task_queue)
    if task.attempt > 1:
        return f"Its worker has failed to carry on with it; attempt {task.attempt} comes next."
    return None


def _waits(answer: DescribeWorkflowExecutionResponse) -> bool:
    """For a worker to take its next step."""
    scheduled = PendingWorkflowTaskState.PENDING_WORKFLOW_TASK_STATE_SCHEDULED
    return answer.HasField("pending_workflow_task") and answer.pending_workflow_task.state == scheduled


async def _ask(connection: Connection, answer: DescribeWorkflowExecutionResponse, query: str) -> Any:
    execution = answer.workflow_execution_info.execution
    request = QueryWorkflowRequest(
        namespace=connection.namespace,
        execution=WorkflowExecution(workflow_id=execution.workflow_id, run_id=execution.run_id),
        query=WorkflowQuery(query_type=query),
        query_reject_condition=QueryRejectCondition.QUERY_REJECT_CONDITION_NONE,
    )
    limit = min(connection.rpc_timeout.total_seconds(), QUERY_SECONDS)

    async def ask(client: Client) -> QueryWorkflowResponse:
        return await client.workflow_service.query_workflow(
            request, retry=False, timeout=timedelta(seconds=limit)
        )

    told = await connection.ask(ask, seconds=limit)
    return values_of(told.query_result.payloads, limit=DETAILS_BYTES)


def _of_activities(answer: DescribeWorkflowExecutionResponse) -> Progress:
    """What the activity says that gave the latest sign of life; failing that, which one is tried again."""
    told = [activity for activity in answer.pending_activities if activity.heartbeat_details.payloads]
    if told:
        latest = max(told, key=lambda activity: activity.last_heartbeat_time.ToDatetime(UTC))
        payloads = latest.heartbeat_details.payloads
        return _read([values_of([payload], limit=DETAILS_BYTES) for payload in payloads])
    failing = [activity for activity in answer.pending_activities if activity.HasField("last_failure")]
    return Progress(message=_tried_again(failing[0])) if failing else Progress()


def _tried_again(activity: PendingActivityInfo) -> str:
    why = words_of_failure(activity.last_failure)
    told = (
        f"Activity {activity.activity_type.name} is at attempt {activity.attempt}; the last one failed: {why}"
    )
    return shorten(told, MESSAGE_LIMIT)


def _read(values: list[Any]) -> Progress:
    """A number is percent, a text a message, an object may have both; of several values the first of each."""
    percent, message = None, ""
    for value in values:
        if percent is None:
            percent = _percent(value)
        message = message or _message(value)
    return Progress(percent, shorten(printable(message), MESSAGE_LIMIT))


def _percent(value: Any) -> float | None:
    if isinstance(value, dict):
        if _number(value.get("total")) and value["total"] > 0:
            done = _first(value, (*DONE_KEYS, *PERCENT_KEYS))
            return None if done is None else _within(100 * done / value["total"])
        value = _first(value, PERCENT_KEYS)
    return _within(value) if _number(value) else None


def _first(value: dict[str, Any], keys: tuple[str, ...]) -> float | None:
    return next((float(value[key]) for key in keys if _number(value.get(key))), None)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _within(percent: float) -> float:
    return float(min(max(percent, 0), 100))


def _message(value: Any) -> str:
    if isinstance(value, dict):
        value = next((value[key] for key in MESSAGE_KEYS if isinstance(value.get(key), str)), "")
    return value if isinstance(value, str) else ""
