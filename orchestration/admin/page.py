"""What the page of one request in words tells of it.

Callers, the model and APIs say in it whatever they like, so that everything is shown as text.
"""

import uuid
from typing import Any

from django.http import HttpRequest
from django.utils import timezone
from django.utils.html import format_html
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
from connectors.http_tools.specs import HTTPRequestSpec
from executions.admin.callers import caller_of
from executions.admin.http_exchange import show_request
from orchestration.admin.raw_response import show_raw_response
from orchestration.admin.stages import stage_lines
from orchestration.admin.try_form import SendForm
from orchestration.models import WorkflowRequest
from orchestration.sending import may_be_sent
from orchestration.stages import Stage

STATUS_BADGES = {
    WorkflowRequest.Status.RUNNING: "info",
    WorkflowRequest.Status.SUCCESS: "success",
    WorkflowRequest.Status.ERROR: "danger",
}
SHOWN_TOOLS = 30
Facts = list[tuple[str, Any]]
Titled = tuple[str, Any]


def outcome_badge(record: WorkflowRequest) -> SafeString:
    if is_lost(record):
        return badge("lost", "warning", title="Whoever worked on it went away without an end.")
    status = WorkflowRequest.Status(record.status)
    shown = [badge(status.label, STATUS_BADGES[status])]
    if record.dry_run:
        shown.append(badge("dry run", title="It ends before anything is sent."))
    if record.warnings:
        shown.append(badge("warning", "warning", title=" ".join(map(str, record.warnings))[:500]))
    return side_by_side(shown)


def is_lost(record: WorkflowRequest) -> bool:
    """Its process ended before it did."""
    deadline = record.deadline_at
    return record.is_running and deadline is not None and deadline < timezone.now()


def describe_request(request: HttpRequest, record: WorkflowRequest) -> dict[str, Any]:
    """Everything that there is to see of the record: how it does, the facts, the stages, the texts."""
    return {
        "record": record,
        "headline": _headline(record),
        "facts": [*_origin_facts(record), *_choice_facts(record), *_model_facts(record)],
        "stages": stage_lines(record),
        "send_form": _send_form(request, record),
        "cards": [(title, shown) for title, shown in _cards(request, record) if shown],
    }


def describe_asked(record: WorkflowRequest) -> list[Titled]:
    """What was asked, in the words in which it was."""
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


def _send_form(request: HttpRequest, record: WorkflowRequest) -> SendForm | None:
    if not (may_run(request) and may_be_sent(record, caller=caller_of(request))):
        return None
    return SendForm(initial={"id": uuid.uuid4()}, auto_id=False)


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
    """What came of it first, as far as it got."""
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
        # Of a version that wrote requests down in another way.
        return pretty_json(spec)


def _show_tools(names: list[str]) -> SafeString:
    more = f"and {len(names) - SHOWN_TOOLS:,} more" if len(names) > SHOWN_TOOLS else ""
    return side_by_side([*map(chip, names[:SHOWN_TOOLS]), more])
