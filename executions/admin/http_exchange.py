"""Requests and responses of HTTP tools, as people read them. APIs say in them whatever they like."""

from typing import Any

from django.template.loader import render_to_string
from django.utils.safestring import SafeString
from pydantic import BaseModel, ConfigDict, ValidationError

from catalogue.admin.rendering import badge, pretty_json, text_block
from connectors.http_tools.specs import HTTPRequestSpec, HTTPResponseSpec

METHOD_BADGES = {"GET": "info", "HEAD": "info", "DELETE": "danger"}
STATUS_BADGES = {1: "", 2: "success", 3: "info", 4: "warning", 5: "danger"}


class HttpExchange(BaseModel):
    """What is recorded of the run of an HTTP tool as the engine's answer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    request: HTTPRequestSpec
    response: HTTPResponseSpec

    @classmethod
    def read(cls, recorded: Any) -> "HttpExchange | None":
        """None: another engine's answer."""
        try:
            return cls.model_validate(recorded)
        except ValidationError:
            return None


def show_request(spec: HTTPRequestSpec, *, whole: str = "") -> SafeString:
    """`whole` is the address of all of it, for bodies that are cut."""
    context = {
        "method": badge(spec.method, METHOD_BADGES.get(spec.method, "warning")),
        "url": spec.url,
        "tables": [("Query", _rows(spec.query_params)), ("Headers", _rows(spec.headers))],
        "body": "" if spec.body is None else _show_body(spec.body, whole),
    }
    return render_to_string("executions/admin/http_request.html", context)


def show_response(spec: HTTPResponseSpec, *, whole: str = "", is_output: bool = False) -> SafeString:
    """`is_output`: the page shows its body already, as the run's output."""
    context = {
        "status": badge(str(spec.status_code), STATUS_BADGES.get(spec.status_code // 100, "")),
        "milliseconds": round(spec.execution_time_ms, 1),
        "headers": _rows(spec.headers),
        "is_output": is_output,
        "body": "" if is_output or spec.body in (None, "") else _show_body(spec.body, whole),
    }
    return render_to_string("executions/admin/http_response.html", context)


def _rows(named: dict[str, Any]) -> list[tuple[str, str]]:
    """A line for each value, as it is sent."""
    return [
        (name, _sent(one))
        for name, value in named.items()
        for one in (value if isinstance(value, list) else [value])
    ]


def _show_body(body: Any, whole: str) -> SafeString:
    return text_block(body, whole=whole) if isinstance(body, str) else pretty_json(body, whole=whole)


def _sent(value: Any) -> str:
    """JSON's words for truth, which APIs expect, not Python's."""
    return str(value).lower() if isinstance(value, bool) else str(value)
