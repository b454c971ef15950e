"""From a tool's arguments to the request that they stand for."""

from typing import Any

from pydantic import ValidationError

from connectors.errors import Rejected
from connectors.formats.json_schema import steps_of
from connectors.http_tools.operation import HttpOperation
from connectors.http_tools.path_template import fill
from connectors.http_tools.specs import HTTPRequestSpec, Scalar
from connectors.http_tools.texts import NoText, scalars_of, text_of, with_commas, written_json
from connectors.http_tools.tool_config import ArgumentPlace, Place
from connectors.network.headers import objection_to_value


def build_request(operation: HttpOperation, *, base_url: str, arguments: dict[str, Any]) -> HTTPRequestSpec:
    """The request without credentials. Raises Rejected for arguments that have no place in it.

    A null that cannot be said where it goes is an argument that is not given.
    """
    if strangers := sorted(arguments.keys() - operation.arguments.keys()):
        raise Rejected(f"The tool has no place for {', '.join(strangers)[:300]}. Nothing was sent.")
    arguments = {name: value for name, value in arguments.items() if _can_be_said(operation, name, value)}
    try:
        return HTTPRequestSpec(
            method=operation.method,
            url=base_url.rstrip("/") + _path(operation, arguments),
            headers=_headers(operation, arguments),
            query_params=_query(operation, arguments),
            body=_body(operation, arguments),
        )
    except ValidationError:
        raise Rejected("The arguments make an address that is too long. Nothing was sent.") from None


def _can_be_said(operation: HttpOperation, argument: str, value: Any) -> bool:
    """Models write null for whatever they do not want; one that is required is refused as before."""
    if value is not None or argument in operation.required:
        return True
    place = operation.arguments[argument]
    return place.as_json or (place.place == "body" and operation.body_format == "json")


def _path(operation: HttpOperation, arguments: dict[str, Any]) -> str:
    given = operation.path_defaults | arguments
    texts: dict[str, str] = {}
    slashes: set[str] = set()
    for argument, place in _placed(operation, "path"):
        if argument not in given:
            raise Rejected(f"{argument} is missing, and it is part of the address. Nothing was sent.")
        texts[place.name] = _one_text(argument, place, given[argument])
        slashes |= {place.name} if place.slashes else set()
    return fill(operation.path, texts, with_slashes=frozenset(slashes))


def _headers(operation: HttpOperation, arguments: dict[str, Any]) -> dict[str, str]:
    headers = {
        constant.name: text_of(scalar)
        for constant in operation.constants
        if constant.place == "header" and not isinstance(scalar := scalars_of(constant.value), list)
    }
    for argument, place in _placed(operation, "header"):
        if argument in arguments:
            headers[place.name] = _header_text(argument, place, arguments[argument])
    return headers


def _header_text(argument: str, place: ArgumentPlace, value: Any) -> str:
    text = _one_text(argument, place, value)
    if why := objection_to_value(text):
        raise Rejected(f"The value of {argument} {why}. Nothing was sent.")
    return text


def _query(operation: HttpOperation, arguments: dict[str, Any]) -> dict[str, Scalar | list[Scalar]]:
    query = {
        constant.name: scalars_of(constant.value)
        for constant in operation.constants
        if constant.place == "query"
    }
    for argument, place in _placed(operation, "query"):
        if argument in arguments:
            query[place.name] = _query_value(argument, place, arguments[argument])
    return query


def _query_value(argument: str, place: ArgumentPlace, value: Any) -> Scalar | list[Scalar]:
    if place.as_json:
        return written_json(value)
    try:
        scalars = scalars_of(value)
        # No item at all is no parameter at all, however the list is written.
        return (
            with_commas(scalars) if isinstance(scalars, list) and scalars and not place.explode else scalars
        )
    except NoText as error:
        raise _unsayable(argument, error) from None


def _one_text(argument: str, place: ArgumentPlace, value: Any) -> str:
    if place.as_json:
        # A header takes no other characters, and to everybody else it is the same.
        return written_json(value, ascii_only=True)
    try:
        scalars = scalars_of(value)
        return with_commas(scalars) if isinstance(scalars, list) else text_of(scalars)
    except NoText as error:
        raise _unsayable(argument, error) from None


def _unsayable(argument: str, error: NoText) -> Rejected:
    return Rejected(f"The value of {argument} {error}. Nothing was sent.")


def _body(operation: HttpOperation, arguments: dict[str, Any]) -> Any:
    """None where no body is sent."""
    placed = _placed(operation, "body")
    fields = {
        constant.name: constant.value for constant in operation.constants if constant.place == "body"
    } | {
        place.name: _body_value(operation, place, arguments[argument])
        for argument, place in placed
        if argument in arguments
    }
    if "" in fields:
        return fields[""]
    has_fields = bool(fields) or any(place.name for _, place in placed)
    return _nested(fields) if has_fields else None


def _body_value(operation: HttpOperation, place: ArgumentPlace, value: Any) -> Any:
    """A body that is JSON says everything as it is."""
    return written_json(value) if place.as_json and operation.body_format != "json" else value


def _nested(fields: dict[str, Any]) -> dict[str, Any]:
    """`{"/payment/amount": 5}` as `{"payment": {"amount": 5}}`."""
    body: dict[str, Any] = {}
    for pointer, value in fields.items():
        *outer, last = steps_of(pointer)
        inner = body
        for step in outer:
            inner = inner.setdefault(step, {})
        inner[last] = value
    return body


def _placed(operation: HttpOperation, place: Place) -> list[tuple[str, ArgumentPlace]]:
    return [(name, where) for name, where in operation.arguments.items() if where.place == place]
