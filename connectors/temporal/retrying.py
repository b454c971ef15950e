"""Where a failed run goes on: the point to which it is reset so that its failed step runs again."""

from collections.abc import Sequence
from uuid import UUID

from temporalio.api.enums.v1 import WorkflowTaskFailedCause
from temporalio.api.history.v1 import HistoryEvent

from connectors.errors import Rejected
from connectors.network.redaction import printable, shorten
from connectors.temporal.runs import attributes_of, chain_of

BEGINS = (
    "activity_task_scheduled",
    "start_child_workflow_execution_initiated",
    "nexus_operation_scheduled",
    "signal_external_workflow_execution_initiated",
)
DID_NOT_SUCCEED = ("_failed", "_timed_out", "_canceled", "_terminated")
OF_STEP = ("scheduled_event_id", "initiated_event_id")


def reason_of(key: UUID) -> str:
    return f"Retried in the workflow catalogue: {key}"


def is_reset_by(event: HistoryEvent, key: UUID) -> bool:
    """Returns True for the event that the retry with this key has left in the reset run."""
    told = event.workflow_task_failed_event_attributes
    is_reset = told.cause == WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_WORKFLOW
    return is_reset and told.failure.message == reason_of(key)


def reset_point(events: Sequence[HistoryEvent]) -> int:
    """The workflow task that began the step whose failure ended the run, else the last one. Raises Rejected
    if steps that have not failed began with it or later: they would run again."""
    begun = {event.event_id: event for event in events if _kind_of(event) in BEGINS}
    tasks = [event.event_id for event in events if _kind_of(event) == "workflow_task_completed"]
    point = tasks[-1] if tasks else 0
    for link in chain_of(events[-1].workflow_execution_failed_event_attributes.failure):
        # The first one that names a step: those that follow are of a child's history.
        if step := begun.get(_step_of(getattr(link, link.WhichOneof("failure_info") or "", None))):
            point = attributes_of(step).workflow_task_completed_event_id
            break
    if not point:
        raise Rejected("The run failed before its first step, so it cannot go on from there.")
    begun |= {event.event_id: event for event in events if _is_local_activity(event)}
    failed = {_step_of(attributes_of(event)) for event in events if _kind_of(event).endswith(DID_NOT_SUCCEED)}
    if again := {_name_of(event) for at, event in begun.items() if at > point and at not in failed}:
        steps = shorten(printable(", ".join(sorted(again))), 300)
        raise Rejected(f"Steps that began with the failed one or after it have not failed: {steps}.")
    return int(point)


def _kind_of(event: HistoryEvent) -> str:
    return (event.WhichOneof("attributes") or "").removesuffix("_event_attributes")


def _step_of(told: object) -> int:
    """The event with which the step began that a failure or an event is about; 0 if it is about none."""
    return next((found for field in OF_STEP if (found := getattr(told, field, 0))), 0)


def _is_local_activity(event: HistoryEvent) -> bool:
    """That has succeeded."""
    marker = event.marker_recorded_event_attributes
    is_local = "localactivity" in marker.marker_name.replace("_", "").lower()
    return is_local and not marker.HasField("failure")


def _name_of(event: HistoryEvent) -> str:
    told = attributes_of(event)
    named = getattr(told, "activity_type", None) or getattr(told, "workflow_type", None)
    return str(named.name) if named else _kind_of(event).replace("_", " ")
