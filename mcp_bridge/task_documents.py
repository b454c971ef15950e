"""An execution as a task of the extension `io.modelcontextprotocol/tasks` (SEP-2663)."""

from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone
from mcp_types import CallToolResult
from mcp_types.methods import serialize_server_result

from executions.models import Execution, Retention, State
from mcp_bridge.answers.results import execution_result

SHORTEST_POLL_MS = 1_000
LONGEST_POLL_MS = 10_000


def describe_created_task(execution: Execution) -> dict[str, Any]:
    """CreateTaskResult, for an execution that goes on."""
    return {"resultType": "task", **_describe_state(execution, "working")}


def describe_task(execution: Execution, *, protocol_version: str) -> dict[str, Any]:
    """DetailedTask: when it has ended, with the result that the call would have had.

    Whatever went wrong in the run is such a result too; `failed` would mean that the protocol did. One whose
    start is unconfirmed changes no more by itself, so that its task has ended with a result that says so.
    """
    if execution.state == State.CANCELLED:
        return _describe_state(execution, "cancelled")
    if not execution.is_settled:
        return _describe_state(execution, "working")
    result = execution_result(execution, protocol_version=protocol_version)
    return _describe_state(execution, "completed") | {"result": _dump(result, protocol_version)}


def _describe_state(execution: Execution, status: str) -> dict[str, Any]:
    task = {
        "taskId": str(execution.pk),
        "status": status,
        "statusMessage": _status_message(execution),
        "createdAt": execution.created_at.isoformat(),
        "lastUpdatedAt": _last_updated_at(execution).isoformat(),
        "ttlMs": _ttl_ms(execution),
    }
    return task if execution.is_settled else task | {"pollIntervalMs": _poll_interval_ms(execution)}


def _status_message(execution: Execution) -> str:
    if execution.is_settled:
        return execution.error or f"{execution.tool_name} {execution.get_state_display()}."
    done = "" if execution.told_progress is None else f"{execution.told_progress:g} %: "
    cancelling = ", cancelling was asked for" if execution.cancel_requested_at else ""
    doubt = f". {execution.doubt}" if execution.doubt else ""
    return f"{done}{execution.progress_message or execution.told_state}{cancelling}{doubt}"


def _last_updated_at(execution: Execution) -> datetime:
    times = (
        execution.created_at,
        execution.admitted_at,
        execution.started_at,
        execution.polled_at,
        execution.cancel_requested_at,
        execution.finished_at,
    )
    return max(time for time in times if time is not None)


def _ttl_ms(execution: Execution) -> int | None:
    """From its creation until the retention takes its result; None while that cannot be known."""
    if not execution.is_final or execution.finished_at is None:
        return None
    if (limit := Retention.current().keeps_results_for) is None:
        return None
    lifetime = execution.finished_at - execution.created_at + limit
    return lifetime // timedelta(milliseconds=1)


def _poll_interval_ms(execution: Execution) -> int:
    """A tenth of the run's age: who waits for a long run need not ask often."""
    age_ms = (timezone.now() - execution.created_at).total_seconds() * 1000
    return round(min(max(age_ms / 10, SHORTEST_POLL_MS), LONGEST_POLL_MS))


def _dump(result: CallToolResult, protocol_version: str) -> dict[str, Any]:
    """As the SDK would have sent it in answer to the call."""
    dumped = result.model_dump(by_alias=True, mode="json", exclude_none=True)
    return serialize_server_result("tools/call", protocol_version, dumped)
