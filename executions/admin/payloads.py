import base64
import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404
from django.template.loader import render_to_string
from django.utils.safestring import SafeString
from pydantic import BaseModel, ConfigDict, ValidationError

from catalogue.admin.rendering import badge, pretty_json, text_block
from catalogue.audit import record_export
from catalogue.history import actor_of
from connectors.http_tools.tool import HTTPRequestSpec, HTTPResponseSpec
from executions.models import ExecutionPayload
from executions.reading import decode_base64

PICTURES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})  # SVG may contain scripts
SOUNDS = frozenset(
    {"audio/wav", "audio/x-wav", "audio/mpeg", "audio/mp3", "audio/mp4", "audio/ogg", "audio/flac"}
    | {"audio/aac", "audio/webm"}
)
SHOWN_BYTES = 4 * 1024 * 1024  # Pictures and sounds of one page
SHOWN_CHARACTERS = 100_000  # Texts of one page
SHOWN_BLOCKS = 100


@dataclass(frozen=True, slots=True)
class Shown:
    line: str
    text: str = ""
    picture: str = ""
    sound: str = ""


def show_content(blocks: list[Any], *, whole: str = "") -> SafeString:
    shown = list(_show_in_turn(blocks[:SHOWN_BLOCKS]))
    left = len(blocks) - len(shown)
    return render_to_string("executions/admin/content.html", {"blocks": shown, "left": left, "whole": whole})


def _show_in_turn(blocks: list[Any]) -> Iterator[Shown]:
    characters, size = SHOWN_CHARACTERS, SHOWN_BYTES
    for block in blocks:
        shown = _show(block if isinstance(block, dict) else {"type": "?", "value": block}, characters, size)
        characters -= len(shown.text)
        size -= len(shown.picture) + len(shown.sound)
        yield shown


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
        return Shown(f"{line}, not readable: its data is not base64")
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
NAMES = frozenset({"input", "output", "content", "start_answer", "status_answer"})


def send_payload(request: HttpRequest, key: uuid.UUID, name: str) -> HttpResponse:
    """As a JSON download that browsers never render: engines control its content."""
    if not any(map(request.user.has_perm, MAY_LOOK)):
        raise PermissionDenied
    payload = get_object_or_404(ExecutionPayload, pk=key)
    value = getattr(payload, name) if name in NAMES else None
    if value is None:
        raise Http404(f"There is no {name} of this execution.")
    record_export(actor_of(request), "payload", execution=str(key), part=name)
    response = JsonResponse(value, safe=False, json_dumps_params={"indent": 2})
    response["Content-Disposition"] = f'attachment; filename="{key}-{name}.json"'
    response["X-Content-Type-Options"] = "nosniff"
    return response
