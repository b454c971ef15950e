"""The stages of a request as a small timeline."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.safestring import SafeString

from catalogue.admin.rendering import badge, duration
from orchestration.models import WorkflowRequest
from orchestration.stages import Stage, StageState

STATE_BADGES = {
    StageState.RUNNING: "info",
    StageState.DONE: "success",
    StageState.FAILED: "danger",
    StageState.SKIPPED: "",
}
NARROWEST = 0.5
"""Percent, so that also what took no time can be seen."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StageLine:
    label: str
    state: SafeString
    took: str = ""
    message: str = ""
    begins: float = 0
    """Where its bar begins, in percent of the whole width."""
    width: float = 0
    """Likewise; 0: it has no bar."""


def stage_lines(record: WorkflowRequest) -> list[StageLine]:
    """All four in their order, also those that were not reached."""
    known = {entry.get("stage"): entry for entry in record.stages if isinstance(entry, dict)}
    end = record.finished_at or max(timezone.now(), record.created_at)
    return [_line(record, Stage(stage), known.get(stage, {}), end) for stage in Stage.values]


def told_of_stages(record: WorkflowRequest) -> str:
    """In one sentence how far it is, for those who hear the page."""
    if record.status != WorkflowRequest.Status.RUNNING:
        return f"Ended: {record.get_status_display()}."
    reached = [entry for entry in record.stages if entry.get("state") == StageState.RUNNING]
    return f"{Stage(reached[-1]['stage']).label.capitalize()} …" if reached else "Begun …"


def _line(record: WorkflowRequest, stage: Stage, entry: Mapping[str, Any], end: datetime) -> StageLine:
    label = stage.label
    if not entry:
        is_running = record.status == WorkflowRequest.Status.RUNNING
        return StageLine(label=label, state=badge("to come" if is_running else "not reached"))
    state = StageState(entry["state"])
    begun = parse_datetime(entry["started_at"] or "") or record.created_at
    seconds = entry["seconds"]
    if seconds is None:
        seconds = max(0.0, (end - begun).total_seconds())
    begins, width = _bar(record, begun, seconds, end)
    return StageLine(
        label=label,
        state=badge(state.label, STATE_BADGES[state]),
        took="" if state == StageState.SKIPPED else duration(round(seconds * 1000)),
        message=entry.get("message") or "",
        begins=begins,
        width=0 if state == StageState.SKIPPED else width,
    )


def _bar(record: WorkflowRequest, begun: datetime, seconds: float, end: datetime) -> tuple[float, float]:
    whole = max((end - record.created_at).total_seconds(), 0.001)
    begins = min(max((begun - record.created_at).total_seconds() / whole, 0), 1) * 100
    width = min(seconds / whole * 100, 100 - begins)
    return min(round(begins, 2), 100 - NARROWEST), max(round(width, 2), NARROWEST)
