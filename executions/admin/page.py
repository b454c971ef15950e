import base64
import json
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from pydantic import BaseModel, ConfigDict, ValidationError
from unfold.contrib.filters.admin import ChoicesDropdownFilter, DropdownFilter

from access.callers import Caller
from catalogue.admin.base import ColumnFilter, OptionsFilter, since
from catalogue.audit import record_export
from catalogue.history import actor_of
from catalogue.http_tools import is_http_tool
from catalogue.long_lists import begin_at
from catalogue.models import Source, Toolset
from catalogue.schemas import find_argument_problems, find_schema_problem
from connectors.formats.json import readable_json
from connectors.http_tools.tool import HTTPRequestSpec, HTTPResponseSpec
from connectors.network.redaction import printable
from executions.failures import find_line
from executions.models import Execution, ExecutionPayload, State
from executions.models.execution import ACTIVE, ErrorKind, ExecutionEvent, recorded_source_names
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


def page_of_caller(key: str) -> tuple[str, str]:
    """Its view and key; both empty if the caller has no page."""
    kind, _colon, number = key.partition(":")
    return (CALLER_PAGES[kind], number) if kind in CALLER_PAGES and number.isdecimal() else ("", "")


QUEUED = "queued"
SHOWN_SOURCES = 500
UNDER_WAY, UNSUCCESSFUL, PAUSED = "under_way", "unsuccessful", "paused"
ALL_TOOLS = "*"


class StateFilter(OptionsFilter):
    title = gettext_lazy("state")
    parameter_name = "state__exact"
    options = {
        QUEUED: (gettext_lazy("waiting in the queue"), Q(state=State.PENDING, admitted_at=None)),
        **{state.value: (state.label, Q(state=state)) for state in State},
        State.PENDING.value: (State.PENDING.label, Q(state=State.PENDING, admitted_at__isnull=False)),
        PAUSED: (
            gettext_lazy("waiting for a person's answer"),
            lambda: Q(pk__in=Execution.objects.paused().order_by().values("pk")),
        ),
        UNDER_WAY: (gettext_lazy("running or about to run"), Q(state__in=ACTIVE, admitted_at__isnull=False)),
        UNSUCCESSFUL: (gettext_lazy("failed or timed out"), Q(state__in=FAILURES)),
    }


class SourceFilter(ColumnFilter):
    """Compares the name at the time: executions outlast their source."""

    title = gettext_lazy("source")
    parameter_name = column = "source_name"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        names = {*Source.objects.values_list("name", flat=True), *recorded_source_names(limit=SHOWN_SOURCES)}
        return [(name, name) for name in sorted(names)]


class DoorFilter(ChoicesDropdownFilter):  # type: ignore[misc]
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.title = _("called by")


class CacheFilter(OptionsFilter):
    title = gettext_lazy("result")
    parameter_name = "cached"
    options = {
        "yes": (gettext_lazy("from the result cache"), Q(cached_at__isnull=False)),
        "no": (gettext_lazy("from its own run"), Q(cached_at=None)),
    }


class ToolsetFilter(DropdownFilter):  # type: ignore[misc]
    title = gettext_lazy("toolset")
    parameter_name = "toolset"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        slugs = Toolset.objects.values_list("slug", flat=True)
        return [(ALL_TOOLS, _("none: the address for all tools")), *((slug, slug) for slug in slugs)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Execution]) -> QuerySet[Execution]:
        if (chosen := self.value()) is None:
            return queryset
        return queryset.filter(toolset="" if chosen == ALL_TOOLS else chosen)


class EndedFilter(DropdownFilter):  # type: ignore[misc]
    """Matches what the statistics of the period count."""

    title = gettext_lazy("ended")
    parameter_name = "ended"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(period.value, _("in the last %s") % period.words) for period in Period]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Execution]) -> QuerySet[Execution]:
        if self.value() not in list(Period):
            return queryset
        if "door__exact" not in request.GET:
            queryset = queryset.exclude(door=Execution.Door.TEST)
        return begin_at(queryset, "finished_at", Period(self.value()).start())


class CreatedFilter(OptionsFilter):
    title = gettext_lazy("created")
    parameter_name = "created"
    options = {
        "in the last hour": (gettext_lazy("in the last hour"), since("created_at", hours=1)),
        "in the last 24 hours": (gettext_lazy("in the last 24 hours"), since("created_at", hours=24)),
        "in the last 7 days": (gettext_lazy("in the last 7 days"), since("created_at", hours=7 * 24)),
        "in the last 30 days": (gettext_lazy("in the last 30 days"), since("created_at", hours=30 * 24)),
    }


@dataclass(frozen=True, slots=True)
class Shown:
    line: str
    text: str = ""
    picture: str = ""
    sound: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """What a page includes: `executions/admin/part.html` shows it."""

    template: str
    shown: Any


def show_text(text: str, *, whole: str = "") -> Part:
    """`whole` is the address of the complete text, for a long one."""
    note = ""
    if len(text) > SHOWN_CHARACTERS:
        note = f"The first {SHOWN_CHARACTERS:,} of {len(text):,} characters."
    shown = {"text": text[:SHOWN_CHARACTERS], "note": note, "whole": whole}
    return Part("executions/admin/text.html", shown)


def show_json(value: Any, *, whole: str = "") -> Part:
    return show_text(readable_json(value), whole=whole)


def show_removal(at: datetime) -> Part:
    return Part("executions/admin/removed.html", at)


def show_content(blocks: list[Any], *, whole: str = "") -> Part:
    shown, characters, size = list[Shown](), SHOWN_CHARACTERS, SHOWN_BYTES
    for block in blocks[:SHOWN_BLOCKS]:
        one = _show(block if isinstance(block, dict) else {"type": "?", "value": block}, characters, size)
        characters -= len(one.text)
        size -= len(one.picture) + len(one.sound)
        shown.append(one)
    left = len(blocks) - len(shown)
    return Part("executions/admin/content.html", {"blocks": shown, "left": left, "whole": whole})


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


def show_request(spec: HTTPRequestSpec, *, whole: str = "") -> Part:
    """`whole` is the address of the complete exchange, for long bodies."""
    shown = {
        "method": (spec.method, METHOD_BADGES.get(spec.method, "warning")),
        "url": spec.url,
        "tables": [(_("Query"), _rows(spec.query_params)), (_("Headers"), _rows(spec.headers))],
        "body": None if spec.body is None else _show_body(spec.body, whole),
    }
    return Part("executions/admin/http_request.html", shown)


def show_response(spec: HTTPResponseSpec, *, whole: str = "", is_output: bool = False) -> Part:
    """`is_output`: the page already shows the body as the output."""
    shown = {
        "status": (str(spec.status_code), STATUS_BADGES.get(spec.status_code // 100, "")),
        "milliseconds": round(spec.execution_time_ms, 1),
        "headers": _rows(spec.headers),
        "is_output": is_output,
        "body": None if is_output or spec.body in (None, "") else _show_body(spec.body, whole),
    }
    return Part("executions/admin/http_response.html", shown)


def _rows(named: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (name, str(one).lower() if isinstance(one, bool) else str(one))
        for name, value in named.items()
        for one in (value if isinstance(value, list) else [value])
    ]


def _show_body(body: Any, whole: str) -> Part:
    return show_text(body, whole=whole) if isinstance(body, str) else show_json(body, whole=whole)


MAY_LOOK = ("executions.view_execution", "executions.change_execution")


def may_see(request: HttpRequest, execution: Execution | None) -> bool:
    return any(map(request.user.has_perm, MAY_LOOK)) or is_own_test(request, execution)


def is_own_test(request: HttpRequest, execution: Execution | None) -> bool:
    """Curators may see and cancel the tests that they started themselves."""
    if execution is None or execution.door != Execution.Door.TEST:
        return False
    return execution.caller == caller_of(request).key and request.user.has_perm("catalogue.change_workflow")


def send_payload(request: HttpRequest, key: uuid.UUID, name: str) -> HttpResponse:
    """Responds with a JSON download that browsers never render: engines control its content."""
    payload = ExecutionPayload.objects.select_related("execution").filter(pk=key).first()
    if not may_see(request, None if payload is None else payload.execution):
        raise PermissionDenied
    if payload is None:
        raise Http404
    value = getattr(payload, name) if name in dict(PAYLOADS) else None
    if value is None:
        raise Http404(f"This execution has no {name}.")
    record_export(actor_of(request), "payload", execution=str(key), part=name)
    response = JsonResponse(value, safe=False, json_dumps_params={"indent": 2})
    response["Content-Disposition"] = f'attachment; filename="{key}-{name}.json"'
    response["X-Content-Type-Options"] = "nosniff"
    return response


@dataclass(frozen=True, slots=True)
class ShownRun:
    run: Execution
    look: str
    """The kind of the badge of its state."""
    cause: str
    """The line of its error that tells the cause."""


def show_run(run: Execution) -> ShownRun:
    return ShownRun(run, STATE_BADGES[State(run.state)], find_line(run.error))


def show_runs(runs: Iterable[Execution]) -> Part:
    return Part("executions/admin/runs.html", [show_run(run) for run in runs])


KIND_LABELS = {
    ErrorKind.CONFIGURATION: gettext_lazy("needs an operator"),
    ErrorKind.VALIDATION: gettext_lazy("invalid arguments"),
    ErrorKind.DISCOVERY: gettext_lazy("discovery"),
}


def kind_label(error_kind: str) -> str:
    """Empty where the state says as much: an execution failed, or timed out."""
    return str(KIND_LABELS.get(ErrorKind(error_kind), "")) if error_kind else ""


def describe_page(request: HttpRequest, execution: Execution) -> dict[str, Any]:
    payload = ExecutionPayload.objects.filter(pk=execution.pk).first()
    state = State(execution.state)
    line = find_line(execution.error)
    percent = execution.progress_percent
    of_whole = "" if percent is None else f"{percent:g} %"
    metadata: dict[str, Any] = payload.metadata if payload else {}
    shown = _shown_payloads(execution, payload)
    return {
        "state": (execution.state_label, STATE_BADGES[state]),
        "kind": kind_label(execution.error_kind),
        "cause": line,
        "whole_error": execution.error if " ".join(execution.error.split()) != line else "",
        "unlike": _schema_violations(execution, payload),
        "percent": "" if percent is None else f"{min(max(percent, 0.0), 100.0):g}",
        "progress": "" if execution.is_settled else execution.progress_message or execution.state_label,
        "so_far": int((timezone.now() - execution.created_at).total_seconds() * 1000),
        "progress_told": ", ".join(filter(None, [of_whole, execution.progress_message])),
        "metadata": metadata,
        "client": describe_client(metadata),
        **describe_caller(execution),
        "events": [_describe_event(event, line, execution) for event in execution.events.all()[:500]],
        "payloads": [(label, value) for name, label, value in shown if name not in RAW],
        "raw": [(label, value) for name, label, value in shown if name in RAW],
    }


def _describe_event(event: ExecutionEvent, line: str, execution: Execution) -> tuple[str, str, str]:
    """To the millisecond, as the order within a second matters."""
    at = timezone.localtime(event.at)
    # The page shows the whole error above.
    message = line if event.message == execution.error and "\n" in event.message else event.message
    return (
        f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03} {at:%Z}",
        event.kind.replace("_", " "),
        message,
    )


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


def describe_caller(execution: Execution) -> dict[str, str]:
    """What `executions/admin/facts_of_call.html` needs."""
    view, key = page_of_caller(execution.caller)
    caller = f"{execution.caller_name} ({execution.caller})"
    return {"caller": caller, "caller_view": view, "caller_key": key}


def describe_client(metadata: dict[str, Any]) -> str:
    """How the client of a call described itself."""
    client = metadata.get("client") or {}
    described = [str(client[name]) for name in ("name", "version", "user_agent") if client.get(name)]
    protocol = client.get("protocol") or client.get("protocol_version")
    return printable(" ".join(described) + (f", protocol {protocol}" if described and protocol else ""))


def _shown_payloads(execution: Execution, payload: ExecutionPayload | None) -> list[tuple[str, str, Part]]:
    """The name, the label and what is shown of each."""
    if execution.payload_pruned_at is not None:
        return [("input", "Input, output and responses", show_removal(execution.payload_pruned_at))]
    if payload is None:
        return []
    cut = {entry["payload"]: entry["bytes"] for entry in payload.cut}
    shown: list[tuple[str, str, Part]] = []
    for name, label in PAYLOADS:
        value = getattr(payload, name)
        if name in cut:
            note = f"Not kept: the size of {cut[name]:,} bytes exceeds the limit."
            shown.append((name, label, Part("executions/admin/note.html", note)))
        elif value is not None and not (name in RAW and not value):
            whole = reverse("admin:executions_execution_payload", args=[execution.pk, name])
            shown += [
                (name, *one) for one in _show_payload(name, label, value, whole=whole, output=payload.output)
            ]
    return shown


def _show_payload(name: str, label: str, value: Any, *, whole: str, output: Any) -> list[tuple[str, Part]]:
    if name == "content":
        return [(label, show_content(value, whole=whole))]
    if name in RAW and (exchange := HttpExchange.read(value)) is not None:
        response = exchange.response
        is_output = response.body not in (None, "") and response.body == output
        return [
            (_("HTTP request"), show_request(exchange.request, whole=whole)),
            (_("HTTP response"), show_response(response, whole=whole, is_output=is_output)),
        ]
    return [(label, show_json(value, whole=whole))]
