"""Where a failed run goes on: the point to which it is reset so that its failed step runs again."""

from collections.abc import Sequence
from uuid import UUID

from temporalio.api.enums.v1 import WorkflowTaskFailedCause
from temporalio.api.history.v1 import HistoryEvent

from connectors.errors import InvalidAnswer, Rejected
from connectors.network.redaction import printable, shorten
from connectors.temporal.runs import attributes_of, chain_of

SUFFIX = "_event_attributes"
BEGINS = (
    "activity_task_scheduled",
    "start_child_workflow_execution_initiated",
    "nexus_operation_scheduled",
    "signal_external_workflow_execution_initiated",
)
DID_NOT_SUCCEED = ("_failed", "_timed_out", "_canceled", "_terminated")


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
    begun_by = {event.event_id: _task_of(event) for event in events if _kind_of(event) in BEGINS}
    tasks = [event.event_id for event in events if _kind_of(event) == "workflow_task_completed"]
    point = begun_by.get(_failed_step(events[-1]), tasks[-1] if tasks else 0)
    if not point:
        raise Rejected("The run failed before its first step, so it cannot go on from there.")
    if again := _begun_after(point, events):
        steps = shorten(printable(", ".join(sorted(again))), 300)
        raise Rejected(f"Steps that have not failed began with the failed one and would run again: {steps}.")
    return point


def _begun_after(point: int, events: Sequence[HistoryEvent]) -> set[str]:
    """The names of the steps that have not failed."""
    begun: dict[int, str] = {}
    for event in events:
        kind = _kind_of(event)
        if event.event_id > point and (kind in BEGINS or _is_local_activity(event)):
            begun[event.event_id] = _name_of(event)
        elif kind.endswith(DID_NOT_SUCCEED):
            for of in ("scheduled_event_id", "initiated_event_id"):
                begun.pop(getattr(attributes_of(event), of, 0), None)
    return {*begun.values()}


def _kind_of(event: HistoryEvent) -> str:
    return (event.WhichOneof("attributes") or "").removesuffix(SUFFIX)


def _task_of(event: HistoryEvent) -> int:
    return int(attributes_of(event).workflow_task_completed_event_id)


def _failed_step(end: HistoryEvent) -> int:
    """The event with which it began; 0 if the workflow failed by itself."""
    if _kind_of(end) not in ("workflow_execution_failed", "workflow_execution_timed_out"):
        raise InvalidAnswer("The run's last event does not say that it failed.")
    for link in chain_of(end.workflow_execution_failed_event_attributes.failure):
        match link.WhichOneof("failure_info"):
            case "activity_failure_info":
                return int(link.activity_failure_info.scheduled_event_id)
            case "child_workflow_execution_failure_info":
                return int(link.child_workflow_execution_failure_info.initiated_event_id)
            case "nexus_operation_execution_failure_info":
                return int(link.nexus_operation_execution_failure_info.scheduled_event_id)
    return 0


def _is_local_activity(event: HistoryEvent) -> bool:
    marker = event.marker_recorded_event_attributes
    name = marker.marker_name.replace("_", "").lower()
    return "localactivity" in name and not marker.HasField("failure")


def _name_of(event: HistoryEvent) -> str:
    attributes = attributes_of(event)
    for field in ("activity_type", "workflow_type"):
        if hasattr(attributes, field):
            return str(getattr(attributes, field).name)
    return str(getattr(attributes, "operation", "") or _kind_of(event).replace("_", " "))
