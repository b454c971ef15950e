"""Flow runs as Prefect tells them: the states, the times, and what they mean to whoever waits."""

from datetime import UTC, datetime
from typing import Any

from connectors.errors import InvalidAnswer
from connectors.network.redaction import printable, shorten, shorten_error
from connectors.protocol import RunSnapshot, RunState

STATES = {
    "SCHEDULED": RunState.RUNNING,
    "PENDING": RunState.RUNNING,
    "RUNNING": RunState.RUNNING,
    "PAUSED": RunState.RUNNING,
    "CANCELLING": RunState.RUNNING,
    "COMPLETED": RunState.COMPLETED,
    "FAILED": RunState.FAILED,
    "CRASHED": RunState.FAILED,
    "CANCELLED": RunState.CANCELLED,
}
LINE_LIMIT = 500
NO_REASON = {
    "FAILED": "The flow run failed and Prefect gave no reason.",
    "CRASHED": "Its process ended without a word.",
    "CANCELLED": "The flow run was cancelled at Prefect.",
}
SCHEDULED_FOR_A_REASON = {
    "AwaitingRetry": "It failed and is tried again",
    "AwaitingConcurrencySlot": "It waits until fewer such runs go on",
    "Resuming": "It was resumed and waits for a worker",
}


def type_of(flow_run: dict[str, Any]) -> str:
    """Prefect's word for the state. A run that has none yet is as good as scheduled."""
    told = flow_run.get("state_type")
    if told is None:
        return "SCHEDULED"
    if not isinstance(told, str) or told not in STATES:
        shown = printable(shorten(str(told), 50))
        raise InvalidAnswer(f"The flow run has the state {shown!r}, which this connector does not know.")
    return told


def snapshot_of(flow_run: dict[str, Any]) -> RunSnapshot:
    """The run without its result, its logs and its progress, which Prefect keeps elsewhere."""
    kind = type_of(flow_run)
    state = STATES[kind]
    return RunSnapshot(
        state=state,
        error=error_of(flow_run, kind),
        progress_message=_waiting_for(flow_run, kind) if state is RunState.RUNNING else "",
        created_at=moment(flow_run.get("created")),
        started_at=moment(flow_run.get("start_time")),
        updated_at=moment(flow_run.get("updated")),
        finished_at=_finished_at(flow_run) if state is not RunState.RUNNING else None,
        raw=without_storage(flow_run),
    )


def message_of(flow_run: dict[str, Any]) -> str:
    """What the flow, or who ran it, said with the state."""
    told = _state(flow_run).get("message")
    return printable(told) if isinstance(told, str) else ""


def error_of(flow_run: dict[str, Any], kind: str) -> str:
    if kind not in NO_REASON:
        return ""
    words = shorten_error(message_of(flow_run)) or NO_REASON[kind]
    return f"The flow run crashed. {words}" if kind == "CRASHED" else words


def moment(told: Any) -> datetime | None:
    try:
        found = datetime.fromisoformat(told) if isinstance(told, str) else None
    except ValueError:
        return None
    return found.replace(tzinfo=found.tzinfo or UTC) if found else None


def first_line(text: str) -> str:
    line = next(iter(printable(text).splitlines()), "")
    return shorten(line, LINE_LIMIT)


def without_storage(flow_run: dict[str, Any]) -> dict[str, Any]:
    """A state's data says where a worker has put a pickle, which is for nobody but Prefect's own clients."""
    state = {key: value for key, value in _state(flow_run).items() if key != "data"}
    return flow_run | ({"state": state} if state else {})


def _state(flow_run: dict[str, Any]) -> dict[str, Any]:
    state = flow_run.get("state")
    return state if isinstance(state, dict) else {}


def _finished_at(flow_run: dict[str, Any]) -> datetime | None:
    """A run that was cancelled before it began has no end of its own."""
    return moment(flow_run.get("end_time")) or moment(_state(flow_run).get("timestamp"))


def _waiting_for(flow_run: dict[str, Any], kind: str) -> str:
    """Why nothing seems to happen; empty while the flow itself runs."""
    match kind:
        case "SCHEDULED":
            return _scheduled(flow_run)
        case "PENDING":
            return "A worker has taken the run and prepares it."
        case "PAUSED":
            words = first_line(message_of(flow_run))
            return f"Paused at Prefect until somebody resumes it there{f': {words}' if words else '.'}"
        case "CANCELLING":
            return "Prefect is cancelling the run."
    return ""


def _scheduled(flow_run: dict[str, Any]) -> str:
    due = moment(flow_run.get("next_scheduled_start_time")) or moment(flow_run.get("expected_start_time"))
    reason = SCHEDULED_FOR_A_REASON.get(str(flow_run.get("state_name")))
    if due is None:
        return f"{reason or 'Waiting for a worker'}."
    when = f"{due.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    if reason or due > datetime.now(UTC):
        return f"{reason or 'Waiting for its time'}: due at {when}."
    return f"Waiting for a worker since {when}."
