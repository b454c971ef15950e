"""All that can be wrong with a declared tool."""

from collections.abc import Iterator
from typing import Any

from connectors.formats.json_schema import pointer_of, steps_of
from connectors.http_tools.checking_places import place_problems
from connectors.http_tools.endpoint import Endpoint
from connectors.http_tools.path_template import objection_to_value, parameters_in
from connectors.http_tools.placing import placed_arguments
from connectors.http_tools.problems import ToolProblem
from connectors.http_tools.texts import NoText, scalar_of, text_of
from connectors.http_tools.tool_config import ApiKey, ArgumentPlace, OAuthClientCredentials, ToolConfig
from connectors.network.headers import TOKEN, objection_to_name
from connectors.network.policy import normalise_base_url


def problems_of(tool: ToolConfig, *, base_url: str) -> list[ToolProblem]:
    """All at once, so that whoever declared it mends it once."""
    problems = [*_endpoint(tool, base_url), *_authentication(tool), *_idempotency(tool), *_output(tool)]
    if schema_problems := list(_schema(tool.input_schema)):
        return problems + schema_problems
    parameters = parameters_in(tool.api.endpoint)
    arguments = placed_arguments(tool, parameters)
    problems += _strange_arguments(tool)
    problems += _path_parameters(tool, parameters, arguments)
    return problems + list(place_problems(tool, arguments))


def _endpoint(tool: ToolConfig, base_url: str) -> Iterator[ToolProblem]:
    try:
        Endpoint.of(tool.api.endpoint).path_below(base_url)
    except ValueError as error:
        yield ToolProblem("/api/endpoint", str(error))


def _authentication(tool: ToolConfig) -> Iterator[ToolProblem]:
    match tool.api.authentication:
        case ApiKey(where="header", name=name) if not TOKEN.fullmatch(name):
            yield ToolProblem("/api/authentication/name", f"{name} is no name of a header.")
        case OAuthClientCredentials(token_url=url):
            try:
                normalise_base_url(url)
            except ValueError as error:
                yield ToolProblem("/api/authentication/token_url", str(error))


def _idempotency(tool: ToolConfig) -> Iterator[ToolProblem]:
    header = tool.api.idempotency_header
    if header and (why := objection_to_name(header)):
        yield ToolProblem("/api/idempotency_header", f"{header} {why}.")


def _output(tool: ToolConfig) -> Iterator[ToolProblem]:
    for field, pointer in tool.field_mappings.output.items():
        try:
            steps_of(pointer)
        except ValueError as error:
            yield ToolProblem(pointer_of(["field_mappings", "output", field]), str(error))


def _schema(schema: dict[str, Any]) -> Iterator[ToolProblem]:
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict):
        yield ToolProblem(
            "/input_schema/properties", "The properties are an object, a schema for each argument."
        )
        return
    for name, argument in properties.items():
        if not isinstance(argument, dict | bool):
            where = pointer_of(["input_schema", "properties", name])
            yield ToolProblem(where, f"{name} has no schema: that is an object, such as {{}}.")
    if not isinstance(required, list):
        yield ToolProblem("/input_schema/required", "The required arguments are a list of names.")
        return
    for name in required:
        if name not in properties:
            yield ToolProblem(
                "/input_schema/required", f"{name} is required, but it is none of the properties."
            )


def _strange_arguments(tool: ToolConfig) -> Iterator[ToolProblem]:
    for argument in tool.field_mappings.input.keys() - tool.input_schema.get("properties", {}).keys():
        where = pointer_of(["field_mappings", "input", argument])
        yield ToolProblem(where, f"{argument} is mapped, but it is none of the input schema's properties.")


def _path_parameters(
    tool: ToolConfig, parameters: list[str], arguments: dict[str, ArgumentPlace]
) -> Iterator[ToolProblem]:
    in_path = {argument: place.name for argument, place in arguments.items() if place.place == "path"}
    for name in dict.fromkeys(parameters):
        if name not in in_path.values():
            told = f"The path has {{{name}}}, but no argument goes there."
            yield ToolProblem("/api/endpoint", told)
    for argument, name in in_path.items():
        if name not in parameters:
            where = pointer_of(["field_mappings", "input", argument])
            yield ToolProblem(where, f"{argument} goes into the path as {{{name}}}, which the path has not.")
        elif why := _why_not_always_there(argument, arguments[argument], tool.input_schema):
            yield ToolProblem(pointer_of(["input_schema", "properties", argument]), f"{argument} {why}")


def _why_not_always_there(argument: str, place: ArgumentPlace, schema: dict[str, Any]) -> str:
    if argument in schema.get("required", []):
        return ""
    declared = schema["properties"][argument]
    if not isinstance(declared, dict) or "default" not in declared:
        return "is part of the path, so it has to be required or to have a default."
    try:
        why = objection_to_value(text_of(scalar_of(declared["default"])), slashes=place.slashes)
    except NoText as error:
        why = str(error)
    return f"has a default that {why}, so it cannot stand in the path." if why else ""
