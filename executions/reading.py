import base64
import json
import uuid
from collections.abc import Mapping
from typing import Any

from django.core.exceptions import ObjectDoesNotExist

from access.callers import Caller
from catalogue.argument_overrides import constants_of
from catalogue.descriptions import declared_interactions
from catalogue.long_lists import Page, page_of
from catalogue.models import Workflow
from executions.approvals import describe_wait
from executions.models import Execution, State
from executions.models.statements import find_row
from executions.questions import describe_pause

SHOWN_INPUT = 2_000  # Characters


class UnknownExecution(Exception):
    """No execution with this id, or none that the caller may see; the two look the same."""

    def __init__(self, execution_id: str) -> None:
        super().__init__(f"Unknown execution: {str(execution_id)[:100]}.")


def find_execution(execution_id: str, *, caller: Caller) -> Execution:
    """Returns it with its workflow and source. Raises UnknownExecution."""
    try:
        key = uuid.UUID(str(execution_id))
        return Execution.objects.visible_to(caller).select_related("workflow__source").get(pk=key)
    except (ValueError, Execution.DoesNotExist):
        raise UnknownExecution(execution_id) from None


def glance_at(execution_id: str, *, caller: Caller, workflows: Mapping[int, Workflow]) -> Execution:
    """Returns the same, with its workflow from those at hand: in a tenth of the time, which is a sixth of a
    card's question. Raises UnknownExecution."""
    try:
        execution = find_row(Execution, uuid.UUID(str(execution_id)))
    except (ValueError, ObjectDoesNotExist):
        raise UnknownExecution(execution_id) from None
    if not (caller.sees_everything or caller.owns(execution)):
        raise UnknownExecution(execution_id)
    if (workflow := workflows.get(execution.workflow_id or 0)) is not None:
        execution.workflow = workflow
    return execution


def describe_execution(execution: Execution) -> dict[str, Any]:
    """State, progress, times and output as JSON values; of a running one also its interactions, and of one
    that ended otherwise than completed its input, without arguments that are hidden from agents."""
    described = summarise_execution(execution) | describe_pause(execution)
    if execution.is_unapproved:
        described["approval"] = describe_wait(execution)
    if execution.state == State.RUNNING and execution.workflow is not None:
        declared = declared_interactions(execution.workflow)
        described |= {kind: [one["name"] for one in several] for kind, several in declared.items()}
    if execution.is_settled:
        output, given = execution.payload.output, execution.payload.sent_input
        if execution.succeeded or output is not None:
            described["output"] = output
        if not execution.succeeded and execution.workflow is not None and isinstance(given, dict):
            described["input"] = without_hidden(execution.workflow, given)
        if execution.payload.changed_by:
            described["arguments_changed"] = describe_changed_input(execution)
        if execution.payload_pruned_at is not None:
            described["output_removed_at"] = execution.payload_pruned_at.isoformat()
    return described


def without_hidden(workflow: Workflow, given: dict[str, Any]) -> dict[str, Any]:
    hidden = constants_of(workflow.argument_overrides)
    return {name: value for name, value in given.items() if name not in hidden}


def describe_changed_input(execution: Execution) -> str:
    """A sentence for the caller if an approver has changed the arguments, otherwise empty."""
    payload = execution.payload
    if not payload.changed_by:
        return ""
    told = f"{payload.changed_by} changed the arguments before the call was approved."
    if execution.workflow is None or not isinstance(payload.changed_input, dict):
        return told  # Not known what is hidden from agents, or removed by the retention
    sent = json.dumps(without_hidden(execution.workflow, payload.changed_input), ensure_ascii=False)
    return f"{told} Sent: {sent if len(sent) <= SHOWN_INPUT else f'{sent[:SHOWN_INPUT]}…'}"


def summarise_execution(execution: Execution) -> dict[str, Any]:
    """Describes the row, without the output. `cached_at` is when the cached result's run ended."""
    described: dict[str, Any] = {
        "execution_id": str(execution.pk),
        "tool": execution.tool_name,
        "state": execution.state,
        "progress": execution.progress_percent,
        "progress_message": execution.progress_message
        or (execution.state_label if execution.is_queued or execution.is_unapproved else None),
        "created_at": execution.created_at.isoformat(),
        "started_at": execution.started_at and execution.started_at.isoformat(),
        "finished_at": execution.ended_at and execution.ended_at.isoformat(),
        "duration_ms": execution.duration_ms,
        "cancel_requested": execution.cancel_requested_at is not None,
    }
    if execution.is_held_now:
        described["paused"] = True
    if execution.retries:
        described |= {
            "attempt": execution.retries + 1,
            "retry_of": execution.retry_of_id and str(execution.retry_of_id),
        }
    if execution.cached_at is not None:
        described |= {
            "cached_from": execution.cached_from_id and str(execution.cached_from_id),
            "cached_at": execution.cached_at.isoformat(),
        }
    if execution.cancel_progress is not None:
        described["cancel_progress"] = execution.cancel_progress
    if execution.cancel_refusal:
        described["cancel_refusal"] = execution.cancel_refusal
    if execution.poll_problem:
        described["status_problem"] = execution.poll_problem
    if execution.error:
        described |= {"error": execution.error, "error_kind": execution.error_kind}
    return described


MAX_AT_A_TIME = 50


def list_own_executions(
    caller: Caller, *, state: str = "", tool_name: str = "", limit: int = MAX_AT_A_TIME, cursor: str = ""
) -> Page[Execution]:
    """One query, without payloads; administrators too get only their own. Raises UnknownCursor."""
    wanted = Execution.objects.filter(caller.own)
    if state:
        wanted = wanted.filter(state=state)
    if tool_name:
        wanted = wanted.filter(tool_name=tool_name)
    return page_of(wanted, by="created_at", limit=limit, cursor=cursor)


def decode_base64(encoded: str) -> bytes | None:
    """Tolerates line breaks and missing padding, as clients do. Returns None for invalid base64."""
    compact = "".join(encoded.split()).rstrip("=")
    try:
        return base64.b64decode(compact + "=" * (-len(compact) % 4), validate=True)
    except ValueError:
        return None


def describe_cut(cut: list[dict[str, Any]]) -> str:
    """A sentence about what of a result was too large to keep; empty if nothing was."""
    names = {"output": "structured content", "content": "content blocks"}
    sizes = {entry["payload"]: entry["bytes"] for entry in cut}
    lost = [f"{words} ({sizes[name]:,} bytes)" for name, words in names.items() if name in sizes]
    return f"Too large to store, and therefore missing here: its {' and its '.join(lost)}." if lost else ""
