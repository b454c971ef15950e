from typing import Any

from django.http import HttpRequest
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from catalogue.admin.rendering import (
    DASH,
    ago,
    badge,
    chip,
    duration,
    exactly,
    link,
    link_if_allowed,
    paragraphs,
    pretty_json,
    side_by_side,
    table,
    text_block,
    to_the_millisecond,
)
from catalogue.models import Workflow
from catalogue.schemas import find_argument_problems
from executions.admin.filters import show_caller
from executions.admin.payloads import HttpExchange, show_content, show_request, show_response
from executions.models import Execution, ExecutionPayload, State

STATE_BADGES = {
    State.UNAPPROVED: "warning",
    State.PENDING: "",
    State.STARTING: "info",
    State.RUNNING: "info",
    State.COMPLETED: "success",
    State.FAILED: "danger",
    State.CANCELLED: "",
    State.TIMED_OUT: "warning",
    State.UNCONFIRMED: "warning",
}
PAYLOADS = (
    ("input", "Input"),
    ("output", "Output"),
    ("content", "Content"),
    ("start_answer", "The engine's answer to the start"),
    ("status_answer", "The engine's last status"),
)
RAW = ("start_answer", "status_answer")
SHOWN_EVENTS = 500
SHOWN_HASH = 12
SHOWN_PROBLEMS = 10
Facts = list[tuple[str, Any]]
Titled = tuple[str, Any]


def state_badge(execution: Execution) -> SafeString:
    if execution.is_queued:
        return badge("waiting in the queue", title="The limits are reached.")
    state = State(execution.state)
    shown = badge(state.label, STATE_BADGES[state])
    if execution.cached_at is None:
        return shown
    return side_by_side([shown, badge("cached", "info", title="From the result cache, without a run.")])


def describe_page(request: HttpRequest, execution: Execution) -> dict[str, Any]:
    payload = ExecutionPayload.objects.filter(pk=execution.pk).first()
    return {
        "headline": _headline(execution, payload),
        "facts": [
            *_progress_facts(execution),
            *_time_facts(execution),
            *_cancel_facts(execution),
            *_engine_facts(execution),
            *_identity_facts(request, execution),
            *_metadata_facts(payload),
        ],
        "events": _timeline(execution),
        "timeline_note": _removed(execution.events_pruned_at) if execution.events_pruned_at else "",
        "payloads": _shown_payloads(execution, payload),
    }


def _headline(execution: Execution, payload: ExecutionPayload | None) -> list[Any]:
    kind = badge(execution.get_error_kind_display(), title="kind of error") if execution.error_kind else ""
    error = execution.error
    # Several lines are usually a traceback, which needs its indentation.
    shown_error = text_block(error, unrolled=True) if "\n" in error else error and paragraphs(error)
    return [
        side_by_side([state_badge(execution), kind]),
        _progress_bar(execution),
        shown_error,
        paragraphs(unlike) if (unlike := _schema_violations(execution, payload)) else "",
    ]


def _progress_bar(execution: Execution) -> SafeString | str:
    if execution.is_settled:
        return ""
    percent = execution.progress_percent
    told = {
        "percent": "" if percent is None else f"{min(max(percent, 0.0), 100.0):g}",
        "message": execution.progress_message or execution.state_label,
    }
    return render_to_string("executions/admin/progress.html", told)


def _schema_violations(execution: Execution, payload: ExecutionPayload | None) -> str:
    """How the output violates a schema that is only documentation; the caller got it all the same."""
    workflow = execution.workflow
    if workflow is None or workflow.output_schema is None or workflow.promised_output_schema is not None:
        return ""
    if execution.state != State.COMPLETED or payload is None or payload.output is None or payload.cut:
        return ""
    if not (problems := find_argument_problems(workflow.output_schema, payload.output)):
        return ""
    told = "\n".join(str(problem) for problem in problems[:SHOWN_PROBLEMS])
    return f"The answer was delivered, but it violates the output schema that its API documents:\n{told}"


def _progress_facts(execution: Execution) -> Facts:
    percent = "" if execution.progress_percent is None else f"{execution.progress_percent:g} %"
    so_far = timezone.now() - execution.created_at
    return [
        ("Took", duration(execution.duration_ms)),
        ("So far", "" if execution.is_settled else duration(int(so_far.total_seconds()) * 1000)),
        ("From the result cache", _origin(execution)),
        ("Progress", ", ".join(filter(None, [percent, execution.progress_message]))),
        ("Caller waits", _waiting(execution)),
        ("Next step", _next_step(execution)),
        ("Last poll", execution.poll_problem),
        ("Lookup since", exactly(execution.looked_up_since)),
    ]


def _origin(execution: Execution) -> str:
    if execution.cached_at is None:
        return ""
    told = exactly(execution.cached_at)
    if execution.cached_from_id is None:
        return format_html("run at {}", told)
    return format_html(
        "run at {}: {}", told, link("its record", "executions_execution_change", execution.cached_from_id)
    )


def _waiting(execution: Execution) -> str:
    if execution.is_awaited:
        return "a request waits for it"
    if execution.is_unanswered:
        return format_html("its caller left without an answer, {}", ago(execution.awaited_until))
    return ""


def _next_step(execution: Execution) -> str:
    if execution.is_settled:
        return ""
    if execution.is_queued:
        return "as soon as the limits allow"
    if execution.is_unapproved:
        return link("once it is approved", "executions_approval_change", execution.pk)
    failures = f", after {execution.attempts} failed attempts in a row" if execution.attempts else ""
    return format_html("{}{}", exactly(execution.next_attempt_at), failures)


def _time_facts(execution: Execution) -> Facts:
    created, admitted = execution.created_at, execution.admitted_at
    return [
        ("Created", exactly(created)),
        ("Left the queue", exactly(admitted) if admitted != created else ""),
        ("Taken by the engine", exactly(execution.started_at)),
        ("Finished", exactly(execution.finished_at)),
        ("Given up at", DASH if execution.is_settled else exactly(execution.deadline_at)),
        ("Timeout", f"{execution.timeout_seconds} s"),
    ]


def _cancel_facts(execution: Execution) -> Facts:
    asked_at, progress = execution.cancel_requested_at, execution.cancel_progress
    asked = format_html("{} by {}", exactly(asked_at), execution.cancel_requested_by) if asked_at else ""
    outcome = progress.label if progress else ""
    if execution.cancel_refusal:
        outcome = f"{outcome}: {execution.cancel_refusal}" if outcome else execution.cancel_refusal
    return [
        ("Cancel requested", asked),
        ("Timeout passed", exactly(execution.overdue_since)),
        ("Cancel sent", exactly(execution.cancel_sent_at)),
        ("Terminate sent", exactly(execution.terminate_sent_at)),
        ("Outcome of cancelling", outcome),
    ]


def _engine_facts(execution: Execution) -> Facts:
    return [
        ("Engine: created", exactly(execution.engine_created_at)),
        ("Engine: started", exactly(execution.engine_started_at)),
        ("Engine: updated", exactly(execution.engine_updated_at)),
        ("Engine: finished", exactly(execution.engine_finished_at)),
        ("Status asked for", _times(execution.polls)),
    ]


def _times(number: int) -> str:
    if not number:
        return ""
    return "once" if number == 1 else f"{number:,} times"


def _identity_facts(request: HttpRequest, execution: Execution) -> Facts:
    workflow: Any = execution.tool_name
    source: Any = execution.source_name
    mine = Workflow.objects.filter(executions=execution)
    known = mine.values_list("source_id", flat=True).first()
    if known is not None:
        workflow = link_if_allowed(request, workflow, "catalogue_workflow_change", execution.workflow_id)
        source = link_if_allowed(request, source, "catalogue_source_change", known)
    key = execution.idempotency_key
    caller = show_caller(request, key=execution.caller, name=execution.caller_name)
    return [
        ("Workflow", workflow),
        ("Source", source),
        ("Engine's workflow id", execution.upstream_id),
        ("Engine's run id", execution.run_id),
        ("Correlation id", execution.correlation_id),
        ("Caller", format_html("{} by {}", caller, execution.get_door_display())),
        ("Idempotency key", chip(key) if key else ""),
        ("Execution id", str(execution.pk)),
    ]


def _metadata_facts(payload: ExecutionPayload | None) -> Facts:
    known: dict[str, Any] = payload.metadata if payload else {}
    client = known.get("client") or {}
    described = " ".join(str(client[name]) for name in ("name", "version") if client.get(name))
    protocol = client.get("protocol") or client.get("protocol_version")
    told = f"{described}, protocol {protocol}" if described and protocol else described
    content_hash = str(known.get("content_hash") or "")
    return [
        ("Workflow version", known.get("version")),
        (
            "Workflow content",
            content_hash
            and format_html('<span title="{}">{}</span>', content_hash, chip(content_hash[:SHOWN_HASH])),
        ),
        ("Client", told),
    ]


def _timeline(execution: Execution) -> dict[str, Any]:
    rows = []
    for event in execution.events.all()[:SHOWN_EVENTS]:
        message = event.message
        if message == execution.error and "\n" in message:
            # The page shows the whole error above; its last line says what happened.
            message = message.splitlines()[-1]
        rows.append([to_the_millisecond(event.at), event.kind.replace("_", " "), paragraphs(message)])
    return table(("When", "What", "Details"), rows)


def _removed(moment: Any) -> SafeString:
    return format_html("Removed by the retention: {}.", exactly(moment))


def _shown_payloads(execution: Execution, payload: ExecutionPayload | None) -> list[Titled]:
    if execution.payload_pruned_at is not None:
        return [("Input, output and answers", _removed(execution.payload_pruned_at))]
    if payload is None:
        return []
    cut = {entry["payload"]: entry["bytes"] for entry in payload.cut}
    shown: list[Titled] = []
    for name, label in PAYLOADS:
        value = getattr(payload, name)
        if name in cut:
            shown.append((label, f"Not kept: its {cut[name]:,} bytes are over the limit."))
        elif value is not None and not (name in RAW and not value):
            whole = reverse("admin:executions_execution_payload", args=[execution.pk, name])
            shown += _show_payload(name, label, value, whole=whole, output=payload.output)
    return shown


def _show_payload(name: str, label: str, value: Any, *, whole: str, output: Any) -> list[Titled]:
    if name == "content":
        return [(label, show_content(value, whole=whole))]
    if name in RAW and (exchange := HttpExchange.read(value)) is not None:
        response = exchange.response
        is_output = response.body not in (None, "") and response.body == output
        return [
            ("HTTP request", show_request(exchange.request, whole=whole)),
            ("HTTP response", show_response(response, whole=whole, is_output=is_output)),
        ]
    return [(label, pretty_json(value, whole=whole))]
