"""Validation of declared tools, and their operations and definitions."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from connectors.definitions import WorkflowDefinition
from connectors.errors import Rejected
from connectors.formats.json_schema import (
    NESTED,
    item_types_of,
    pointer_of,
    references_within,
    steps_of,
    types_of,
)
from connectors.http_tools.request import MEDIA_TYPE, NoText, form_pairs, scalar_of, scalars_of, text_of
from connectors.http_tools.tool import (
    SAFE_METHODS,
    ApiKey,
    ArgumentPlace,
    Connection,
    Constant,
    Endpoint,
    HttpOperation,
    InvalidTool,
    OAuthClientCredentials,
    Place,
    ToolConfig,
    ToolProblem,
    connection_of,
    parameters_in,
    path_value_objection,
    placed_arguments,
)
from connectors.network.headers import TOKEN, objection_to_name, objection_to_value
from connectors.network.policy import normalise_base_url

__all__ = ["Connection", "InvalidTool", "ToolProblem", "connection_of", "definition_of", "operation_of"]


@dataclass(frozen=True, slots=True)
class _Claim:
    place: Place
    name: str  # Normalised for comparison; in a body, the pointer
    who: str
    declared_at: tuple[str, ...]  # Steps into the ToolConfig

    def problem(self, message: str) -> ToolProblem:
        return ToolProblem(pointer_of(self.declared_at), message)


def place_problems(tool: ToolConfig, arguments: dict[str, ArgumentPlace]) -> Iterator[ToolProblem]:
    for argument, place in arguments.items():
        yield from _argument(tool, argument, place)
    for position, constant in enumerate(tool.field_mappings.constants):
        where = f"/field_mappings/constants/{position}"
        objections = (
            _name_objection(tool, constant.place, constant.name, constant=True),
            _value(tool, constant),
        )
        for objection in filter(None, objections):
            yield ToolProblem(where, objection)
    yield from _shared_places([*_claims(tool, arguments)])


def _argument(tool: ToolConfig, argument: str, place: ArgumentPlace) -> Iterator[ToolProblem]:
    is_raw = place.place == "body" and tool.api.body_format == "raw"
    objections = [
        _name_objection(tool, place.place, place.name),
        *(_file_objections(tool, argument, place) if place.file or is_raw else ()),
        *([_cookie_objection(tool, argument, place)] if place.place == "cookie" else ()),
        *(() if place.as_json else [_type_objection(tool, argument, place)]),
    ]
    for objection in filter(None, objections):
        yield ToolProblem(pointer_of(_declared_at(tool, argument)), objection)


def _cookie_objection(tool: ToolConfig, argument: str, place: ArgumentPlace) -> str:
    if place.as_json:
        return f"{argument} is a cookie, which cannot carry JSON."
    types = types_of(tool.input_schema["properties"][argument], references_within(tool.input_schema))
    return f"{argument} is a list, which a cookie cannot carry." if types == {"array"} else ""


def _type_objection(tool: ToolConfig, argument: str, place: ArgumentPlace) -> str:
    is_body = place.place == "body"
    if (place.place == "query" and (place.brackets or place.spread)) or (
        is_body and (place.name or tool.api.body_format == "json")
    ):
        return ""
    schema, follow = tool.input_schema["properties"][argument], references_within(tool.input_schema)
    types = types_of(schema, follow)
    if is_body:
        kind, wanted = ("body", "string") if tool.api.body_format == "raw" else ("form", "object")
        is_none = types and wanted not in types
        return f"{argument} is the whole {kind}, so it must be of the type {wanted}." if is_none else ""
    if types == {"object"}:
        return f"{argument} is an object, which only a body can carry."
    if types == {"array"} and (items := item_types_of(schema, follow)) and items <= NESTED:
        return f"{argument} is a list of lists or objects, which only a body can carry."
    return ""


def _file_objections(tool: ToolConfig, argument: str, place: ArgumentPlace) -> Iterator[str]:
    body_format = tool.api.body_format if place.place == "body" else ""
    if body_format == "raw" and place.name:
        yield f'A raw body has no fields: set "name": "" for the argument that is the body, not {argument}.'
    elif body_format != "raw" and not (body_format == "multipart" and place.name.count("/") == 1):
        yield f"{argument} is a file, so it must be a field of a multipart body, or a raw body."
    if place.as_json:
        yield f"{argument} cannot be both a file and JSON."
    if place.media_type and not MEDIA_TYPE.fullmatch(place.media_type):
        yield f"The media type of {argument} is not valid."


def _name_objection(tool: ToolConfig, place: Place, name: str, *, constant: bool = False) -> str:
    match tool.api.authentication:
        case ApiKey(where=where, name=taken) if where == place:
            if name == taken or (where == "header" and name.lower() == taken.lower()):
                return f"{name} is reserved for the credentials, which the product adds."
    if place == "header" and (why := objection_to_name(name, constant=constant)):
        return f"{name} {why}."
    if place == "cookie" and not TOKEN.fullmatch(name):
        return f"{name} is not a valid name of a cookie."
    if place != "body":
        return ""
    if tool.api.method in SAFE_METHODS:
        return f"A {tool.api.method} request cannot have a body."
    try:
        steps_of(name)
    except ValueError as error:
        return str(error)
    return ""


def _value(tool: ToolConfig, constant: Constant) -> str:
    try:
        match constant.place:
            case "header":
                return _header_value(tool, constant.name, text_of(scalar_of(constant.value)))
            case "query":
                scalars_of(constant.value)
            case "body" if tool.api.body_format == "raw":
                return f"A raw body has no fields, so {constant.name} cannot be sent in it."
            case "body" if tool.api.body_format != "json":
                form_pairs({constant.name: constant.value})
    except NoText as error:
        return f"The value of {constant.name} {error}."
    except Rejected:
        return f"The value of {constant.name} cannot be written in a form."
    return ""


def _header_value(tool: ToolConfig, name: str, value: str) -> str:
    if why := objection_to_value(value):
        return f"The value of {name} {why}."
    if name.lower() != "content-type" or tool.api.body_format == "raw":
        return ""
    media_type = value.partition(";")[0].strip().lower()
    if tool.api.body_format == "json" and media_type.endswith(("/json", "+json")):
        return ""
    return "The body is sent in the tool's body_format, so Content-Type can only be a type of JSON."


def _claims(tool: ToolConfig, arguments: dict[str, ArgumentPlace]) -> Iterator[_Claim]:
    for argument, place in arguments.items():
        yield _Claim(place.place, _compared(place.place, place.name), argument, _declared_at(tool, argument))
    for position, constant in enumerate(tool.field_mappings.constants):
        at = ("field_mappings", "constants", str(position))
        yield _Claim(constant.place, _compared(constant.place, constant.name), "a constant", at)
    if header := tool.api.idempotency_header:
        yield _Claim("header", header.lower(), "the idempotency key", ("api", "idempotency_header"))


def _compared(place: Place, name: str) -> str:
    return name.lower() if place == "header" else name


def _shared_places(claims: list[_Claim]) -> Iterator[ToolProblem]:
    taken: dict[tuple[str, str], _Claim] = {}
    for claim in claims:
        if first := taken.get((claim.place, claim.name)):
            target = f"{claim.name} in the {claim.place}" if claim.name else f"the whole {claim.place}"
            yield claim.problem(f"{claim.who} and {first.who} both set {target}.")
        taken.setdefault((claim.place, claim.name), claim)
    fields = {steps: claim for claim in taken.values() if (steps := _steps(claim)) is not None}
    for steps, claim in fields.items():
        for length in range(len(steps)):
            if outer := fields.get(steps[:length]):
                message = f"{claim.who} sets {claim.name}, which is inside the value of {outer.who}."
                yield claim.problem(message)


def _steps(claim: _Claim) -> tuple[str, ...] | None:
    try:
        return steps_of(claim.name) if claim.place == "body" else None
    except ValueError:
        return None


def _declared_at(tool: ToolConfig, argument: str) -> tuple[str, ...]:
    if argument in tool.field_mappings.input:
        return "field_mappings", "input", argument
    return "input_schema", "properties", argument


def problems_of(tool: ToolConfig, *, base_url: str) -> list[ToolProblem]:
    problems = list(_api_problems(tool, base_url))
    for field, pointer in tool.field_mappings.output.items():
        try:
            steps_of(pointer)
        except ValueError as error:
            problems.append(ToolProblem(pointer_of(["field_mappings", "output", field]), str(error)))
    if schema_problems := list(_schema_problems(tool.input_schema)):
        return problems + schema_problems
    parameters = parameters_in(tool.api.endpoint)
    arguments = placed_arguments(tool, parameters)
    for argument in tool.field_mappings.input.keys() - tool.input_schema.get("properties", {}).keys():
        where = pointer_of(["field_mappings", "input", argument])
        message = f"{argument} is mapped, but it is not a property of the input schema."
        problems.append(ToolProblem(where, message))
    problems += _path_parameters(tool, parameters, arguments)
    return problems + list(place_problems(tool, arguments))


def _api_problems(tool: ToolConfig, base_url: str) -> Iterator[ToolProblem]:
    try:
        Endpoint.of(tool.api.endpoint).path_below(base_url)
    except ValueError as error:
        yield ToolProblem("/api/endpoint", str(error))
    match tool.api.authentication:
        case ApiKey(where="header" | "cookie" as where, name=name) if not TOKEN.fullmatch(name):
            yield ToolProblem("/api/authentication/name", f"{name} is not a valid {where} name.")
        case OAuthClientCredentials(token_url=url):
            try:
                normalise_base_url(url)
            except ValueError as error:
                yield ToolProblem("/api/authentication/token_url", str(error))
    header = tool.api.idempotency_header
    if header and (why := objection_to_name(header)):
        yield ToolProblem("/api/idempotency_header", f"{header} {why}.")


def _schema_problems(schema: dict[str, Any]) -> Iterator[ToolProblem]:
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict):
        yield ToolProblem(
            "/input_schema/properties", "The properties must be an object with a schema for each argument."
        )
        return
    for name, argument in properties.items():
        if not isinstance(argument, dict | bool):
            where = pointer_of(["input_schema", "properties", name])
            yield ToolProblem(where, f"The schema of {name} must be an object, such as {{}}.")
    if not isinstance(required, list):
        yield ToolProblem("/input_schema/required", "The required arguments must be a list of names.")
        return
    for name in required:
        if name not in properties:
            yield ToolProblem("/input_schema/required", f"{name} is required, but it is not a property.")


def _path_parameters(
    tool: ToolConfig, parameters: list[str], arguments: dict[str, ArgumentPlace]
) -> Iterator[ToolProblem]:
    in_path = {argument: place.name for argument, place in arguments.items() if place.place == "path"}
    for name in dict.fromkeys(parameters):
        if name not in in_path.values():
            message = f"The path contains {{{name}}}, but no argument has this place."
            yield ToolProblem("/api/endpoint", message)
    for argument, name in in_path.items():
        if name not in parameters:
            where = pointer_of(["field_mappings", "input", argument])
            yield ToolProblem(where, f"{argument} is placed at {{{name}}}, which the path does not contain.")
        elif why := _why_not_always_there(argument, arguments[argument], tool.input_schema):
            yield ToolProblem(pointer_of(["input_schema", "properties", argument]), f"{argument} {why}")


def _why_not_always_there(argument: str, place: ArgumentPlace, schema: dict[str, Any]) -> str:
    if argument in schema.get("required", []):
        return ""
    declared = schema["properties"][argument]
    if not isinstance(declared, dict) or "default" not in declared:
        return "is part of the path, so it must be required or have a default."
    try:
        why = path_value_objection(text_of(scalar_of(declared["default"])), slashes=place.slashes)
    except NoText as error:
        why = str(error)
    return f"has a default that {why}, so it cannot be part of the path." if why else ""


def operation_of(tool: ToolConfig, *, base_url: str) -> HttpOperation:
    if problems := problems_of(tool, base_url=base_url):
        raise InvalidTool(problems)
    path = Endpoint.of(tool.api.endpoint).path_below(base_url)
    arguments = placed_arguments(tool, parameters_in(path))
    properties = tool.input_schema.get("properties", {})
    return HttpOperation(
        method=tool.api.method,
        path=path,
        arguments=arguments,
        constants=tool.field_mappings.constants,
        body_format=tool.api.body_format,
        output=tool.field_mappings.output,
        idempotency_header=tool.api.idempotency_header,
        anonymous=tool.api.anonymous,
        response_headers=[name.lower() for name in tool.api.response_headers],
        output_is_promised=tool.output_is_promised,
        # Required arguments with a schema that allows null, in places that cannot express it.
        required=[
            name
            for name in tool.input_schema.get("required", [])
            if name in arguments
            and (tool.api.body_format != "json" or arguments[name].place != "body")
            and not arguments[name].as_json
            and (isinstance(schema := properties[name], bool) or "null" in schema.get("type", "null"))
        ],
        path_defaults={
            name: properties[name]["default"]
            for name, place in arguments.items()
            if place.place == "path" and "default" in properties[name]
        },
    )


def definition_of(tool: ToolConfig, *, base_url: str) -> WorkflowDefinition:
    """Raises InvalidTool with every problem."""
    operation = operation_of(tool, base_url=base_url)
    says = tool.input_schema.keys() & {"additionalProperties", "unevaluatedProperties"}
    closed = {} if says else {"additionalProperties": False}
    # Guarantees of the method (RFC 9110, 9.2).
    hints = {"idempotentHint": True} if operation.method in ("PUT", "DELETE") else None
    hints = {"readOnlyHint": True} if operation.is_safe else hints
    try:
        return WorkflowDefinition(
            id=tool.name,
            name=tool.name,
            title=tool.title,
            description=tool.description,
            # Arguments without a place in the request are refused, unless the schema says otherwise.
            input_schema={"type": "object", **tool.input_schema} | closed,
            output_schema=tool.output_schema,
            execution_type="sync",
            tags=tool.tags,
            annotations=hints,
            timeout_seconds=tool.timeout_seconds,
            cache_seconds=tool.cache_seconds,
            # Few tools have any; without it, the metadata of stored tools stays the same.
            metadata=operation.model_dump(
                mode="json", by_alias=True, exclude=None if operation.required else {"required"}
            ),
        )
    except ValidationError as error:
        # A string may be too short once its unprintable characters are dropped.
        problems = error.errors(include_url=False, include_input=False)
        raise InvalidTool(
            [ToolProblem(pointer_of(problem["loc"]), f"{problem['msg']}.") for problem in problems]
        ) from None
