"""The query and the headers of a request that somebody else wrote."""

from collections.abc import Mapping
from typing import Any

from connectors.http_tools.reading_pairs import read_pairs
from connectors.http_tools.reading_values import argument_of
from connectors.http_tools.refusing import NotThisTool, listed, shown
from connectors.http_tools.request import ACCEPT, media_type_of, text_of
from connectors.http_tools.specs import Scalar
from connectors.http_tools.tool import HttpOperation, Place

CREDENTIAL_NAMES = frozenset({"authorization", "cookie", "proxy-authorization", "x-api-key", "api-key"})


def read_query(
    operation: HttpOperation,
    in_url: str,
    said: Mapping[str, Scalar | list[Scalar]],
    input_schema: dict[str, Any],
) -> dict[str, Any]:
    """The arguments in the query, which may stand in the URL, beside it or both alike."""
    query = _together(read_pairs(in_url, "The query"), said)
    arguments = {place.name: name for name, place in operation.arguments.items() if place.place == "query"}
    constants = _constants(operation, "query")
    if strangers := query.keys() - arguments.keys() - constants.keys():
        raise NotThisTool(f"The tool's query has no {listed(strangers)}.")
    for name in query.keys() & constants.keys():
        if _texts(query[name]) != _texts(constants[name]):
            raise NotThisTool(f"{shown(name)} in the query always has the value that the tool gives it.")
    return {
        argument: argument_of(
            argument,
            operation.arguments[argument],
            query[name],
            input_schema,
            commas=not operation.arguments[argument].explode,
        )
        for name, argument in arguments.items()
        if name in query
    }


def read_headers(
    operation: HttpOperation, said: Mapping[str, str], input_schema: dict[str, Any]
) -> dict[str, Any]:
    """The arguments in headers."""
    headers = {name.lower(): value for name, value in said.items()}
    if len(headers) < len(said):
        raise NotThisTool("A header is given more than once.")
    arguments = {
        place.name.lower(): name for name, place in operation.arguments.items() if place.place == "header"
    }
    constants = {name.lower(): value for name, value in _constants(operation, "header").items()}
    for name, value in headers.items():
        if name in constants and value.strip() != text_of(constants[name]):
            raise NotThisTool(f"The header {shown(name)} always has the value that the tool gives it.")
    known = arguments.keys() | constants.keys() | _needless(operation, headers)
    if strangers := headers.keys() - known:
        raise NotThisTool(_strange_headers(strangers))
    return {
        argument: argument_of(
            argument, operation.arguments[argument], headers[name].strip(), input_schema, commas=True
        )
        for name, argument in arguments.items()
        if name in headers
    }


def _needless(operation: HttpOperation, headers: Mapping[str, str]) -> set[str]:
    """Headers that say what the product would say of itself."""
    own = {"accept": {*_media_types(ACCEPT), "*/*"}, "content-type": {media_type_of(operation)}}
    return {name for name, types in own.items() if name in headers and _media_types(headers[name]) <= types}


def _media_types(header: str) -> set[str]:
    return {part.partition(";")[0].strip().lower() for part in header.split(",")}


def _strange_headers(names: set[str]) -> str:
    told = f"The tool sends no header {listed(names)}."
    return f"{told} Credentials are added by the product itself." if names & CREDENTIAL_NAMES else told


def _together(
    in_url: dict[str, Scalar | list[Scalar]], beside: Mapping[str, Scalar | list[Scalar]]
) -> dict[str, Scalar | list[Scalar]]:
    for name in in_url.keys() & beside.keys():
        if _texts(in_url[name]) != _texts(beside[name]):
            raise NotThisTool(f"{shown(name)} has one value in the URL and another in query_params.")
    return in_url | dict(beside)


def _texts(value: Any) -> list[str]:
    return [text_of(item) for item in (value if isinstance(value, list) else [value])]


def _constants(operation: HttpOperation, place: Place) -> dict[str, Any]:
    return {constant.name: constant.value for constant in operation.constants if constant.place == place}
