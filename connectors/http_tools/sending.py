"""How a request is written on the wire."""

from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlencode

from connectors.errors import Rejected
from connectors.http_tools.multipart import write_multipart
from connectors.http_tools.operation import HttpOperation
from connectors.http_tools.specs import HTTPRequestSpec
from connectors.http_tools.texts import NoText, scalar_of, text_of, written_json
from connectors.http_tools.tool_config import BodyFormat

ACCEPT = "application/json, text/*;q=0.9, */*;q=0.5"
MEDIA_TYPES: dict[BodyFormat, str] = {
    "json": "application/json",
    "form": "application/x-www-form-urlencoded",
    "multipart": "multipart/form-data",
}
Pair = tuple[str, str]


def media_type_of(operation: HttpOperation) -> str:
    return MEDIA_TYPES[operation.body_format]


def headers_of(
    operation: HttpOperation, spec: HTTPRequestSpec, *, key: str, content_type: str
) -> dict[str, str]:
    """All but credentials, by name in lower case. `content_type`: of the body; empty: there is none."""
    usual = {"accept": ACCEPT}
    if content_type:
        usual["content-type"] = content_type
    if operation.idempotency_header:
        usual[operation.idempotency_header.lower()] = key
    return usual | {name.lower(): value for name, value in spec.headers.items()}


def query_of(spec: HTTPRequestSpec) -> list[Pair]:
    return [
        (name, text_of(value))
        for name, said in spec.query_params.items()
        for value in (said if isinstance(said, list) else [said])
    ]


def content_of(operation: HttpOperation, spec: HTTPRequestSpec) -> tuple[bytes | None, str]:
    """The body's bytes and their media type; None and nothing without a body.

    Raises Rejected for what cannot be written.
    """
    if spec.body is None:
        return None, ""
    media_type = media_type_of(operation)
    match operation.body_format:
        case "form":
            return urlencode(form_pairs(spec.body)).encode("ascii"), media_type
        case "multipart":
            content, boundary = write_multipart(operation, spec.body)
            return content, f"{media_type}; boundary={boundary}"
    return written_json(spec.body).encode(), media_type


def form_pairs(body: Any) -> list[Pair]:
    """`{"a": {"b": 1}, "c": [2, 3]}` as a[b]=1, c=2, c=3. Raises Rejected for what a form cannot say."""
    if not isinstance(body, dict):
        raise Rejected("The body is a form, so it has to be an object. Nothing was sent.")
    try:
        return [pair for name, value in body.items() for pair in _pairs(name, value)]
    except NoText as error:
        raise Rejected(f"A field of the form {error}. Nothing was sent.") from None


def form_name(steps: Sequence[str]) -> str:
    """`a[b]`."""
    return steps[0] + "".join(f"[{step}]" for step in steps[1:])


def _pairs(name: str, value: Any) -> Iterator[Pair]:
    match value:
        case dict():
            for field, inner in value.items():
                yield from _pairs(f"{name}[{field}]", inner)
        case list() if any(isinstance(item, dict | list) for item in value):
            # Only a number tells which fields belong to one item.
            for position, item in enumerate(value):
                yield from _pairs(f"{name}[{position}]", item)
        case list():
            yield from ((name, text_of(scalar_of(item))) for item in value)
        case _:
            yield name, text_of(scalar_of(value))
