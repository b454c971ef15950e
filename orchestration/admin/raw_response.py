"""What the tool answered, from the payload of the execution: it is kept once."""

from typing import Any

from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from pydantic import ValidationError

from catalogue.admin.rendering import paragraphs, pretty_json
from connectors.http_tools.specs import HTTPResponseSpec
from executions.admin.callers import caller_of
from executions.admin.content import show_content
from executions.admin.http_exchange import show_response
from executions.admin.page import state_badge
from executions.models import Execution, ExecutionPayload
from orchestration.models import WorkflowRequest
from orchestration.running import raw_response_of


def show_raw_response(request: HttpRequest, record: WorkflowRequest) -> SafeString | str:
    """Nothing where nothing was sent. What others ran is for those who may look at executions."""
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
    """Of another engine, or of a run that has not ended: its state and what there is."""
    shown: list[Any] = [state_badge(execution)]
    if execution.error:
        shown.append(paragraphs(execution.error))
    if payload is not None and payload.output is not None:
        shown.append(pretty_json(payload.output))
    elif payload is not None and payload.content:
        shown.append(show_content(payload.content))
    parts = format_html_join("", "<div>{}</div>", ((part,) for part in shown))
    return format_html('<div class="flex flex-col gap-4">{}</div>', parts)
