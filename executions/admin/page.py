import base64
import json
import uuid
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from pydantic import BaseModel, ConfigDict, ValidationError
from unfold.contrib.filters.admin import DropdownFilter

from access.callers import Caller
from catalogue.admin.base import ColumnFilter, OptionsFilter, since
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
from catalogue.audit import record_export
from catalogue.history import actor_of
from catalogue.http_tools import is_http_tool
from catalogue.long_lists import begin_at
from catalogue.models import Source, Toolset, Workflow
from catalogue.naming import counted
from catalogue.schemas import find_argument_problems, find_schema_problem
from connectors.http_tools.tool import HTTPRequestSpec, HTTPResponseSpec
from executions.models import Execution, ExecutionPayload, State
from executions.models.execution import ACTIVE, recorded_source_names
from executions.models.usage import FAILURES
from executions.reading import decode_base64
from executions.statistics import Period

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
    ("start_answer", "The engine's response to the start"),
    ("status_answer", "The engine's last status"),
)
RAW = ("start_answer", "status_answer")
Facts = list[tuple[str, Any]]
Titled = tuple[str, Any]
PICTURES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})  # SVG may contain scripts
SOUNDS = frozenset(
    {"audio/wav", "audio/x-wav", "audio/mpeg", "audio/mp3", "audio/mp4", "audio/ogg", "audio/flac"}
    | {"audio/aac", "audio/webm"}
)
SHOWN_BYTES = 4 * 1024 * 1024  # Pictures and sounds of one page
SHOWN_CHARACTERS = 100_000  # Texts of one page
SHOWN_BLOCKS = 100


def caller_of(request: HttpRequest) -> Caller:
    return Caller.of_user(request.user, sees_everything=True)


CALLER_PAGES = {"user": "auth_user_change", "token": "mcp_bridge_accesstoken_change"}  # By kind of key


def show_caller(request: HttpRequest, *, key: str, name: str) -> Any:
    label = f"{name} ({key})"
    kind, _, number = key.partition(":")
    if kind not in CALLER_PAGES or not number.isdecimal():
        return label
    return link_if_allowed(request, label, CALLER_PAGES[kind], number)


QUEUED = "queued"
SHOWN_SOURCES = 500
UNDER_WAY, UNSUCCESSFUL = "under_way", "unsuccessful"
ALL_TOOLS = "*"


class StateFilter(OptionsFilter):
    title = "state"
    parameter_name = "state__exact"
    options = {
        QUEUED: ("waiting in the queue", Q(state=State.PENDING, admitted_at=None)),
        **{state.value: (state.label, Q(state=state)) for state in State},
        State.PENDING.value: (State.PENDING.label, Q(state=State.PENDING, admitted_at__isnull=False)),
        UNDER_WAY: ("running or about to run", Q(state__in=ACTIVE, admitted_at__isnull=False)),
        UNSUCCESSFUL: ("failed or timed out", Q(state__in=FAILURES)),
    }


class SourceFilter(ColumnFilter):
    """Compares the name at the time: executions outlast their source."""

    title = "source"
    parameter_name = column = "source_name"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        names = {*Source.objects.values_list("name", flat=True), *recorded_source_names(limit=SHOWN_SOURCES)}
        return [(name, name) for name in sorted(names)]


class CacheFilter(OptionsFilter):
    title = "result"
    parameter_name = "cached"
    options = {
        "yes": ("from the result cache", Q(cached_at__isnull=False)),
        "no": ("from its own run", Q(cached_at=None)),
    }


class ToolsetFilter(DropdownFilter):  # type: ignore[misc]
    title = "toolset"
    parameter_name = "toolset"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        slugs = Toolset.objects.values_list("slug", flat=True)
        return [(ALL_TOOLS, "none: the address for all tools"), *((slug, slug) for slug in slugs)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Execution]) -> QuerySet[Execution]:
        if (chosen := self.value()) is None:
            return queryset
        return queryset.filter(toolset="" if chosen == ALL_TOOLS else chosen)


class EndedFilter(DropdownFilter):  # type: ignore[misc]
    """Matches what the statistics of the period count."""

    title = "ended"
    parameter_name = "ended"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(period.value, f"in the last {period.words}") for period in Period]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Execution]) -> QuerySet[Execution]:
        if self.value() not in list(Period):
            return queryset
        return begin_at(queryset, "finished_at", Period(self.value()).start())


class CreatedFilter(OptionsFilter):
    title = "created"
    parameter_name = "created"
    options = {
        name: (name, since("created_at", hours=hours))
        for name, hours in (
            ("in the last hour", 1),
            ("in the last 24 hours", 24),
            ("in the last 7 days", 7 * 24),
            ("in the last 30 days", 30 * 24),
        )
    }


@dataclass(frozen=True, slots=True)
class Shown:
    line: str
    text: str = ""
    picture: str = ""
    sound: str = ""


def show_content(blocks: list[Any], *, whole: str = "") -> SafeString:
    shown, characters, size = list[Shown](), SHOWN_CHARACTERS, SHOWN_BYTES
    for block in blocks[:SHOWN_BLOCKS]:
        one = _show(block if isinstance(block, dict) else {"type": "?", "value": block}, characters, size)
        characters -= len(one.text)
        size -= len(one.picture) + len(one.sound)
        shown.append(one)
    left = len(blocks) - len(shown)
    return render_to_string("executions/admin/content.html", {"blocks": shown, "left": left, "whole": whole})


def _show(block: dict[str, Any], characters: int, size: int) -> Shown:
    resource = block.get("resource")
    held: dict[str, Any] = resource if isinstance(resource, dict) else block
    encoded = held.get("blob", held.get("data"))
    if isinstance(encoded, str):
        return _show_data(_line(block, held), str(held.get("mimeType", "")), encoded, size)
    text = held.get("text")
    if not isinstance(text, str):
        text = json.dumps(block, indent=2, ensure_ascii=False)
    cut = f", the first {characters:,} of {len(text):,} characters" if len(text) > characters else ""
    return Shown(_line(block, held) + cut, text=text[:characters])


def _show_data(line: str, mime_type: str, encoded: str, size: int) -> Shown:
    if (data := decode_base64(encoded)) is None:
        return Shown(f"{line}, not readable: the data is not valid base64")
    line = f"{line}, {len(data):,} bytes"
    mime_type = mime_type.lower()
    if mime_type not in PICTURES | SOUNDS:
        return Shown(line)
    address = f"data:{mime_type};base64,{base64.b64encode(data).decode()}"
    if len(address) > size:
        return Shown(f"{line}, too large for this page")
    return Shown(line, picture=address) if mime_type in PICTURES else Shown(line, sound=address)


def _line(block: dict[str, Any], held: dict[str, Any]) -> str:
    words = [block.get("type"), held.get("mimeType"), held.get("title") or held.get("name"), held.get("uri")]
    return ", ".join(str(word)[:300] for word in words if word)


METHOD_BADGES = {"GET": "info", "HEAD": "info", "DELETE": "danger"}
STATUS_BADGES = {1: "", 2: "success", 3: "info", 4: "warning", 5: "danger"}


class HttpExchange(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    request: HTTPRequestSpec
    response: HTTPResponseSpec

    @classmethod
    def read(cls, recorded: Any) -> "HttpExchange | None":
        """None for another engine's answer."""
        try:
            return cls.model_validate(recorded)
        except ValidationError:
            return None


def show_request(spec: HTTPRequestSpec, *, whole: str = "") -> SafeString:
    """`whole` is the address of the complete exchange, for long bodies."""
    context = {
        "method": badge(spec.method, METHOD_BADGES.get(spec.method, "warning")),
        "url": spec.url,
        "tables": [("Query", _rows(spec.query_params)), ("Headers", _rows(spec.headers))],
        "body": "" if spec.body is None else _show_body(spec.body, whole),
    }
    return render_to_string("executions/admin/http_request.html", context)


def show_response(spec: HTTPResponseSpec, *, whole: str = "", is_output: bool = False) -> SafeString:
    """`is_output`: the page already shows the body as the output."""
    context = {
        "status": badge(str(spec.status_code), STATUS_BADGES.get(spec.status_code // 100, "")),
        "milliseconds": round(spec.execution_time_ms, 1),
        "headers": _rows(spec.headers),
        "is_output": is_output,
        "body": "" if is_output or spec.body in (None, "") else _show_body(spec.body, whole),
    }
    return render_to_string("executions/admin/http_response.html", context)


def _rows(named: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (name, str(one).lower() if isinstance(one, bool) else str(one))
        for name, value in named.items()
        for one in (value if isinstance(value, list) else [value])
    ]


def _show_body(body: Any, whole: str) -> SafeString:
    return text_block(body, whole=whole) if isinstance(body, str) else pretty_json(body, whole=whole)


MAY_LOOK = ("executions.view_execution", "executions.change_execution")


def send_payload(request: HttpRequest, key: uuid.UUID, name: str) -> HttpResponse:
    """Responds with a JSON download that browsers never render: engines control its content."""
    if not any(map(request.user.has_perm, MAY_LOOK)):
        raise PermissionDenied
    payload = get_object_or_404(ExecutionPayload, pk=key)
    value = getattr(payload, name) if name in dict(PAYLOADS) else None
    if value is None:
        raise Http404(f"This execution has no {name}.")
    record_export(actor_of(request), "payload", execution=str(key), part=name)
    response = JsonResponse(value, safe=False, json_dumps_params={"indent": 2})
    response["Content-Disposition"] = f'attachment; filename="{key}-{name}.json"'
    response["X-Content-Type-Options"] = "nosniff"
    return response


def state_badge(execution: Execution) -> SafeString:
    if execution.is_queued:
        return badge("waiting in the queue", title="A limit on concurrent runs is reached.")
    state = State(execution.state)
    shown = badge(state.label, STATE_BADGES[state])
    if execution.cached_at is None:
        return shown
    cached = badge("cached", "info", title="Answered from the result cache, without a run.")
    return side_by_side([shown, cached])


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
        "timeline_note": removal_note(execution.events_pruned_at) if execution.events_pruned_at else "",
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
    context = {
        "percent": "" if percent is None else f"{min(max(percent, 0.0), 100.0):g}",
        "message": execution.progress_message or execution.state_label,
    }
    return render_to_string("executions/admin/progress.html", context)


def _schema_violations(execution: Execution, payload: ExecutionPayload | None) -> str:
    """Says how the output violates a schema that is only documentation; the caller received it anyway."""
    workflow = execution.workflow
    if workflow is None or workflow.promised_output_schema is not None:
        return ""
    if (schema := workflow.declared_output_schema) is None or find_schema_problem(schema):
        return ""
    if execution.state != State.COMPLETED or payload is None or payload.output is None or payload.cut:
        return ""
    if not (problems := find_argument_problems(schema, payload.output)):
        return ""
    listed = "\n".join(problem.of("(output)") for problem in problems[:10])
    by = "the API documents" if is_http_tool(workflow) else "its definition declares"
    return f"The result was delivered, but it does not match the output schema that {by}:\n{listed}"


def _progress_facts(execution: Execution) -> Facts:
    percent = "" if execution.progress_percent is None else f"{execution.progress_percent:g} %"
    so_far = timezone.now() - execution.created_at
    doing = "Waiting for" if execution.is_unapproved or execution.is_queued else "Running for"
    return [
        ("Took", duration(execution.duration_ms)),
        (doing, "" if execution.is_settled else duration(int(so_far.total_seconds()) * 1000)),
        ("From the result cache", _origin(execution)),
        ("Progress", ", ".join(filter(None, [percent, execution.progress_message]))),
        ("Caller waits", show_wait(execution)),
        ("Next step", _next_step(execution)),
        ("Last poll", execution.poll_problem),
        ("Lookup since", exactly(execution.looked_up_since)),
    ]


def _origin(execution: Execution) -> str:
    if execution.cached_at is None:
        return ""
    ran_at = exactly(execution.cached_at)
    if execution.cached_from_id is None:
        return format_html("run at {}", ran_at)
    return format_html(
        "run at {}: {}", ran_at, link("its record", "executions_execution_change", execution.cached_from_id)
    )


def show_wait(execution: Execution) -> str:
    """Says whether a request waits for the result or has left; empty if the caller has had an answer."""
    if execution.is_awaited:
        return "a request is waiting for the result"
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
    failed = counted(execution.attempts, "failed attempt")
    failures = f", after {failed} in a row" if execution.attempts else ""
    return format_html("{}{}", exactly(execution.next_attempt_at), failures)


def _time_facts(execution: Execution) -> Facts:
    created, admitted = execution.created_at, execution.admitted_at
    # Its approval sets the deadline anew.
    has_none = execution.is_settled or execution.is_unapproved
    return [
        ("Created", exactly(created)),
        ("Left the queue", exactly(admitted) if admitted != created else ""),
        ("Accepted by the engine", exactly(execution.started_at)),
        ("Finished", exactly(execution.ended_at)),
        ("Times out at", DASH if has_none else exactly(execution.deadline_at)),
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
        ("Status polled", _times(execution.polls)),
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
    shown = f"{described}, protocol {protocol}" if described and protocol else described
    content_hash = str(known.get("content_hash") or "")
    return [
        ("Workflow version", known.get("version")),
        (
            "Workflow content",
            content_hash and format_html('<span title="{}">{}</span>', content_hash, chip(content_hash[:12])),
        ),
        ("Client", shown),
    ]


def _timeline(execution: Execution) -> dict[str, Any]:
    rows = []
    for event in execution.events.all()[:500]:
        message = event.message
        if message == execution.error and "\n" in message:
            # The page shows the whole error above; its last line says what happened.
            message = message.splitlines()[-1]
        rows.append([to_the_millisecond(event.at), event.kind.replace("_", " "), paragraphs(message)])
    return table(("When", "What", "Details"), rows)


def removal_note(moment: Any) -> SafeString:
    return format_html("Removed by the retention policy: {}.", exactly(moment))


def _shown_payloads(execution: Execution, payload: ExecutionPayload | None) -> list[Titled]:
    if execution.payload_pruned_at is not None:
        return [("Input, output and responses", removal_note(execution.payload_pruned_at))]
    if payload is None:
        return []
    cut = {entry["payload"]: entry["bytes"] for entry in payload.cut}
    shown: list[Titled] = []
    for name, label in PAYLOADS:
        value = getattr(payload, name)
        if name in cut:
            shown.append((label, f"Not kept: the size of {cut[name]:,} bytes exceeds the limit."))
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
