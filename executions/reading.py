"""One execution as every door shows it (A8.2, B3)."""

import uuid
from typing import Any

from catalogue.interactions import name_interactions
from executions.callers import Caller
from executions.models import Execution, State


class UnknownExecution(Exception):
    """No execution of this id, or none that the caller may see: the two are not told apart."""

    def __init__(self, execution_id: str) -> None:
        super().__init__(f"Unknown execution: {str(execution_id)[:100]}.")


def find_execution(execution_id: str, *, caller: Caller) -> Execution:
    """The execution with its workflow and source at hand. Raises UnknownExecution."""
    try:
        key = uuid.UUID(str(execution_id))
        return Execution.objects.visible_to(caller).select_related("workflow__source").get(pk=key)
    except (ValueError, Execution.DoesNotExist):
        raise UnknownExecution(execution_id) from None


def describe_execution(execution: Execution) -> dict[str, Any]:
    """State, progress and times; the output once it is there. JSON values only.

    Of one that runs also the names of what it can be asked and told, where there are any.
    """
    described = summarise_execution(execution)
    if execution.state == State.RUNNING and execution.workflow is not None:
        described |= name_interactions(execution.workflow)
    if execution.state == State.COMPLETED:
        described["output"] = execution.payload.output
        if execution.payload_pruned_at is not None:
            described["output_removed_at"] = execution.payload_pruned_at.isoformat()
    return described


def summarise_execution(execution: Execution) -> dict[str, Any]:
    """The same without the output: what the row itself tells.

    `cached_at` is there if a cached result answered the call: when the run ended that had it.
    """
    described: dict[str, Any] = {
        "execution_id": str(execution.pk),
        "tool": execution.tool_name,
        "state": execution.state,
        "progress": execution.told_progress,
        "progress_message": execution.progress_message
        or (execution.told_state if execution.is_queued else None),
        "created_at": execution.created_at.isoformat(),
        "started_at": execution.started_at and execution.started_at.isoformat(),
        "finished_at": execution.finished_at and execution.finished_at.isoformat(),
        "duration_ms": execution.duration_ms,
        "cancel_requested": execution.cancel_requested_at is not None,
    }
    if execution.cached_at is not None:
        described |= {
            "cached_from": execution.cached_from_id and str(execution.cached_from_id),
            "cached_at": execution.cached_at.isoformat(),
        }
    if execution.doubt:
        described["status_problem"] = execution.doubt
    if execution.error:
        described |= {"error": execution.error, "error_kind": execution.error_kind}
    return described
