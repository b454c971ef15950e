"""The page of one natural-language request.

Its texts come from callers, models and APIs, so everything is shown as text.
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django import forms
from django.http import HttpRequest
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from pydantic import ValidationError

from catalogue.admin.rendering import (
    badge,
    chip,
    duration,
    exactly,
    link,
    paragraphs,
    pretty_json,
    side_by_side,
    text_block,
)
from catalogue.exposure import current_catalogue
from connectors.http_tools.tool import HTTPRequestSpec, HTTPResponseSpec
from executions.admin.filters import caller_of
from executions.admin.page import state_badge
from executions.admin.payloads import show_content, show_request, show_response
from executions.models import Execution, ExecutionPayload
from orchestration.models import Stage, StageState, WorkflowRequest
from orchestration.pipeline import can_be_replayed
from orchestration.records import raw_response_of

STATUS_BADGES = {
    WorkflowRequest.Status.RUNNING: "info",
    WorkflowRequest.Status.SUCCESS: "success",
    WorkflowRequest.Status.ERROR: "danger",
}
SHOWN_TOOLS = 30
Facts = list[tuple[str, Any]]
Titled = tuple[str, Any]


class SendForm(forms.Form):
    id = forms.UUIDField(widget=forms.HiddenInput)
    """The new request's."""


def outcome_badge(record: WorkflowRequest) -> SafeString:
    deadline = record.deadline_at
    if record.is_running and deadline is not None and deadline < timezone.now():
        return badge("lost", "warning", title="Its process ended before the request did.")
    status = WorkflowRequest.Status(record.status)
    shown = [badge(status.label, STATUS_BADGES[status])]
    if record.dry_run:
        shown.append(badge("dry run", title="It ends before anything is sent."))
    if record.warnings:
        shown.append(badge("warning", "warning", title=" ".join(map(str, record.warnings))[:500]))
    return side_by_side(shown)


def describe_request(request: HttpRequest, record: WorkflowRequest) -> dict[str, Any]:
    can_be_sent = may_run(request) and can_be_replayed(record, caller=caller_of(request))
    return {
        "record": record,
        "headline": _headline(record),
        "facts": [*_origin_facts(record), *_choice_facts(record), *_model_facts(record)],
        "stages": stage_lines(record),
        "send_form": SendForm(initial={"id": uuid.uuid4()}, auto_id=False) if can_be_sent else None,
        "cards": [(title, shown) for title, shown in _cards(request, record) if shown],
    }


def describe_input(record: WorkflowRequest) -> list[Titled]:
    """The instructions and the tools that they may use."""
    if record.payload_pruned_at is not None:
        return [("", format_html("Removed by the retention: {}.", exactly(record.payload_pruned_at)))]
    texts = [
        ("", text_block(record.instructions)),
        ("How to put the answer", _as_text(record.format_instructions)),
        ("Tools that may be used", _show_tools([str(name) for name in record.tool_ids])),
    ]
    return [(title, shown) for title, shown in texts if shown]


def may_run(request: HttpRequest) -> bool:
    return request.user.has_perms(["orchestration.add_workflowrequest", "executions.add_execution"])


def _headline(record: WorkflowRequest) -> list[Any]:
    error = ""
    if record.error:
        stage = Stage(record.error_stage).label if record.error_stage in Stage else "unknown"
        error = format_html("<b>Failed at {}:</b> {}", stage, paragraphs(record.error))
    return [outcome_badge(record), error, *map(paragraphs, record.warnings)]


def _origin_facts(record: WorkflowRequest) -> Facts:
    return [
        ("Asked", exactly(record.created_at)),
        ("By", f"{record.caller_name} ({record.caller})"),
        ("Took", duration(None if record.seconds is None else round(record.seconds * 1000))),
        ("Answer in words", "asked for" if record.format_response else "not asked for"),
    ]


def _choice_facts(record: WorkflowRequest) -> Facts:
    tool: Any = record.selected_tool
    if (workflow := current_catalogue().workflows.get(tool)) is not None:
        tool = link(tool, "catalogue_workflow_change", workflow.pk)
    execution: Any = ""
    if record.execution_id is not None:
        execution = link(record.execution_id, "executions_execution_change", record.execution_id)
    return [("Chosen tool", tool), ("Execution", execution)]


def _model_facts(record: WorkflowRequest) -> Facts:
    tokens = f"{record.prompt_tokens:,} read, {record.completion_tokens:,} written"
    return [
        ("Model", record.model),
        ("Tokens", tokens if record.prompt_tokens or record.completion_tokens else ""),
        ("Request id", str(record.pk)),
    ]


def _cards(request: HttpRequest, record: WorkflowRequest) -> list[Titled]:
    arguments = record.arguments
    return [
        ("Answer in words", _as_text(record.formatted_response)),
        ("Raw response", show_raw_response(request, record)),
        ("Why this tool, in the model's words", paragraphs(record.reason) if record.reason else ""),
        ("Exact request, without credentials", _show_spec(record.http_spec)),
        ("Arguments", "" if arguments is None else pretty_json(arguments)),
    ]


def _as_text(words: str) -> SafeString | str:
    return text_block(words) if words else ""


def _show_spec(spec: Any) -> SafeString | str:
    if spec is None:
        return ""
    try:
        return show_request(HTTPRequestSpec.model_validate(spec))
    except ValidationError:
        # Recorded by an earlier version, in another shape.
        return pretty_json(spec)


def _show_tools(names: list[str]) -> SafeString:
    more = f"and {len(names) - SHOWN_TOOLS:,} more" if len(names) > SHOWN_TOOLS else ""
    return side_by_side([*map(chip, names[:SHOWN_TOOLS]), more])


def show_raw_response(request: HttpRequest, record: WorkflowRequest) -> SafeString | str:
    """Empty if nothing was sent. Runs of other callers need the permission to view executions."""
    execution = record.execution
    if execution is None:
        return ""
    if not (request.user.has_perm("executions.view_execution") or record.caller == caller_of(request).key):
        return "You may not look at executions of others."
    if execution.payload_pruned_at is not None:
        return "It was removed by the retention."
    if not ExecutionPayload.objects.filter(pk=execution.pk).exists():
        return _show_result(execution, None)
    raw = raw_response_of(execution, of_http_tool=record.http_spec is not None)
    try:
        return show_response(HTTPResponseSpec.model_validate(raw))
    except ValidationError:
        return _show_result(execution, execution.payload)


def _show_result(execution: Execution, payload: ExecutionPayload | None) -> SafeString:
    shown: list[Any] = [state_badge(execution)]
    if execution.error:
        shown.append(paragraphs(execution.error))
    if payload is not None and payload.output is not None:
        shown.append(pretty_json(payload.output))
    elif payload is not None and payload.content:
        shown.append(show_content(payload.content))
    parts = format_html_join("", "<div>{}</div>", ((part,) for part in shown))
    return format_html('<div class="flex flex-col gap-4">{}</div>', parts)


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
    known = {entry.get("stage"): entry for entry in record.stages if isinstance(entry, dict)}
    end = record.finished_at or max(timezone.now(), record.created_at)
    return [_line(record, Stage(stage), known.get(stage, {}), end) for stage in Stage.values]


def progress_sentence(record: WorkflowRequest) -> str:
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
