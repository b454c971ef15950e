"""How a request is written on the wire."""

import json
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlencode

from connectors.errors import Rejected
from connectors.http_tools.operation import HttpOperation
from connectors.http_tools.specs import HTTPRequestSpec
from connectors.http_tools.texts import NoText, scalar_of, text_of
from connectors.http_tools.tool_config import BodyFormat

ACCEPT = "application/json, text/*;q=0.9, */*;q=0.5"
MEDIA_TYPES: dict[BodyFormat, str] = {
    "json": "application/json",
    "form": "application/x-www-form-urlencoded",
}
Pair = tuple[str, str]


def media_type_of(operation: HttpOperation) -> str:
    return MEDIA_TYPES[operation.body_format]


def headers_of(operation: HttpOperation, spec: HTTPRequestSpec, *, key: str) -> dict[str, str]:
    """All but credentials, by name in lower case."""
    usual = {"accept": ACCEPT}
    if spec.body is not None:
        usual["content-type"] = media_type_of(operation)
    if operation.idempotency_header:
        usual[operation.idempotency_header.lower()] = key
    return usual | {name.lower(): value for name, value in spec.headers.items()}


def query_of(spec: HTTPRequestSpec) -> list[Pair]:
    return [
        (name, text_of(value))
        for name, said in spec.query_params.items()
        for value in (said if isinstance(said, list) else [said])
    ]


def content_of(operation: HttpOperation, spec: HTTPRequestSpec) -> bytes | None:
    """The body's bytes. Raises Rejected for what cannot be written."""
    if spec.body is None:
        return None
    if operation.body_format == "form":
        return urlencode(form_pairs(spec.body)).encode("ascii")
    try:
        return json.dumps(spec.body, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError):
        raise Rejected("The arguments cannot be written as JSON, so nothing was sent.") from None


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
