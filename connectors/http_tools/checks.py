"""Checks of tools, declared and imported, and their operations and definitions."""

from collections.abc import Container, Iterable, Iterator
from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from connectors.definitions import OUTPUT_SCHEMA, WorkflowDefinition
from connectors.errors import Rejected
from connectors.formats.json_schema import (
    NESTED,
    item_types_of,
    pointer_of,
    references_within,
    steps_of,
    types_of,
)
from connectors.http_tools.request import (
    MEDIA_TYPE,
    NoText,
    form_pairs,
    is_json_lines,
    is_yaml,
    scalar_of,
    scalars_of,
    text_of,
)
from connectors.http_tools.tool import (
    ApiKey,
    ArgumentPlace,
    Constant,
    HttpOperation,
    InvalidTool,
    OAuthClientCredentials,
    Place,
    ToolConfig,
    ValidationProblem,
    objections_to,
    parameters_in,
    path_below,
    path_value_objection,
)
from connectors.network.headers import TOKEN, objection_to_name, objection_to_value
from connectors.network.policy import normalise_base_url


def definition_of(tool: ToolConfig, *, base_url: str) -> WorkflowDefinition:
    """Raises InvalidTool with every problem."""
    of_request = {"api", "field_mappings", "output_is_promised"}
    return define(operation_of(tool, base_url=base_url), **tool.model_dump(exclude=of_request))


def define(
    operation: HttpOperation,
    *,
    name: str,
    input_schema: dict[str, Any],
    output_schema: dict[str, Any] | None,
    **more: Any,
) -> WorkflowDefinition:
    """The workflow of a checked operation; `more`: its further fields. Raises InvalidTool."""
    # Few tools have any; without it, the metadata of stored tools stays the same.
    without = None if operation.required else {"required"}
    metadata = operation.model_dump(mode="json", by_alias=True, exclude=without)
    if output_schema is not None and output_schema.get("type") != "object":
        # MCP promises objects only; the metadata keep the schema of any other result.
        metadata[OUTPUT_SCHEMA], output_schema = output_schema, None
    says = input_schema.keys() & {"additionalProperties", "unevaluatedProperties"}
    closed = {} if says else {"additionalProperties": False}
    # Guarantees of the method (RFC 9110, 9.2).
    hints = {"idempotentHint": True} if operation.method in ("PUT", "DELETE") else None
    try:
        return WorkflowDefinition(
            id=name,
            name=name,
            # Arguments without a place in the request are refused, unless the schema says otherwise.
            input_schema={"type": "object", **input_schema} | closed,
            execution_type="sync",
            annotations={"readOnlyHint": True} if operation.is_safe else hints,
            output_schema=output_schema,
            metadata=metadata,
            **more,
        )
    except ValidationError as error:
        # A string may be too short once its unprintable characters are dropped.
        problems = error.errors(include_url=False, include_input=False)
        raise InvalidTool(
            [ValidationProblem(pointer_of(problem["loc"]), f"{problem['msg']}.") for problem in problems]
        ) from None


def operation_of(tool: ToolConfig, *, base_url: str) -> HttpOperation:
    """Raises InvalidTool with every problem."""
    problems = []
    try:
        path = path_below(base_url, tool.api.endpoint)
    except ValueError as error:
        problems.append(ValidationProblem("/api/endpoint", str(error)))
        # Its arguments are checked all the same.
        path = "".join(f"/{{{name}}}" for name in parameters_in(tool.api.endpoint))
    problems += _declaration_problems(tool)
    if schema_problems := list(_schema_problems(tool.input_schema)):
        raise InvalidTool(problems + schema_problems)
    given, arguments = tool.field_mappings.input, placed_arguments(tool, parameters_in(path))
    for argument in given.keys() - arguments.keys():
        message = f"{argument} is mapped, but it is not a property of the input schema."
        problems.append(ValidationProblem(pointer_of(["field_mappings", "input", argument]), message))
    said = dict(tool) | dict(tool.api) | dict(tool.field_mappings)
    headers = [name.lower() for name in tool.api.response_headers]
    said |= {"path": path, "arguments": arguments, "response_headers": headers}
    operation = HttpOperation.model_validate(said)
    key = tool.api.authentication
    if isinstance(key, ApiKey):
        taken = key.where, _folded(key.where, key.name)
        problems += [
            ValidationProblem(where, f"{place.name} is reserved for the credentials, which the product adds.")
            for where, _, place in _places(operation, given)
            if (place.place, _folded(place.place, place.name)) == taken
        ]
    return checked(operation, tool.input_schema, mapped=given, problems=problems)


def placed_arguments(tool: ToolConfig, in_path: Container[str]) -> dict[str, ArgumentPlace]:
    """Keeps the order of the schema's properties."""
    usual: Place = "query" if tool.api.method in ("GET", "HEAD", "DELETE") else "body"
    placed = {}
    for argument in tool.input_schema.get("properties", {}):
        place = tool.field_mappings.input.get(argument)
        place = place or ArgumentPlace(place="path" if argument in in_path else usual)
        is_body = place.place == "body"
        # An explicit empty pointer is the whole body.
        if not place.name and not (is_body and "name" in place.model_fields_set):
            place = place.model_copy(update={"name": pointer_of([argument]) if is_body else argument})
        placed[argument] = place
    return placed


def _declaration_problems(tool: ToolConfig) -> Iterator[ValidationProblem]:
    match tool.api.authentication:
        case ApiKey(where="header" | "cookie" as where, name=name) if not TOKEN.fullmatch(name):
            yield ValidationProblem("/api/authentication/name", f"{name} is not a valid {where} name.")
        case OAuthClientCredentials(token_url=url):
            try:
                normalise_base_url(url)
            except ValueError as error:
                yield ValidationProblem("/api/authentication/token_url", str(error))
    for field, pointer in tool.field_mappings.output.items():
        try:
            steps_of(pointer)
        except ValueError as error:
            yield ValidationProblem(pointer_of(["field_mappings", "output", field]), str(error))


def _schema_problems(schema: dict[str, Any]) -> Iterator[ValidationProblem]:
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict):
        message = "The properties must be an object with a schema for each argument."
        yield ValidationProblem("/input_schema/properties", message)
        return
    for name, argument in properties.items():
        if not isinstance(argument, dict | bool):
            where = pointer_of(["input_schema", "properties", name])
            yield ValidationProblem(where, f"The schema of {name} must be an object, such as {{}}.")
    if not isinstance(required, list):
        yield ValidationProblem("/input_schema/required", "The required arguments must be a list of names.")
        return
    for name in required:
        if name not in properties:
            yield ValidationProblem(
                "/input_schema/required", f"{name} is required, but it is not a property."
            )


def checked(
    operation: HttpOperation,
    schema: dict[str, Any],
    *,
    mapped: Container[str] = (),
    problems: Iterable[ValidationProblem] = (),
) -> HttpOperation:
    """The operation with what follows from the schema of its arguments. Raises InvalidTool with every
    problem, and the given ones. Pointers lead into a ToolConfig that maps the arguments `mapped`."""
    if found := [*problems, *_problems(operation, schema, mapped)]:
        raise InvalidTool(found)
    properties, arguments = schema.get("properties", {}), operation.arguments
    return operation.model_copy(
        update={
            # Required arguments with a schema that allows null, in places that cannot express it.
            "required": [
                name
                for name in schema.get("required", [])
                if (operation.body_format != "json" or arguments[name].place != "body")
                and not arguments[name].as_json
                and (isinstance(one := properties[name], bool) or "null" in one.get("type", "null"))
            ],
            "path_defaults": {
                name: properties[name]["default"]
                for name, place in arguments.items()
                if place.place == "path" and "default" in properties[name]
            },
        }
    )


def _problems(
    operation: HttpOperation, schema: dict[str, Any], mapped: Container[str]
) -> Iterator[ValidationProblem]:
    if objections := objections_to(operation.path):
        yield ValidationProblem("/api/endpoint", " ".join(objections))
    header = operation.idempotency_header
    if header and (why := objection_to_name(header)):
        yield ValidationProblem("/api/idempotency_header", f"{header} {why}.")
    yield from _path_problems(operation, schema)
    places = list(_places(operation, mapped))
    for pointer, subject, place in places:
        if isinstance(place, Constant):
            found = [_name_objection(operation, place), _value_objection(operation, place)]
        else:
            found = [_name_objection(operation, place), *_objections(operation, schema, subject, place)]
        for objection in filter(None, found):
            yield ValidationProblem(pointer, objection)
    yield from _overlaps(operation, places)


def _places(
    operation: HttpOperation, mapped: Container[str]
) -> Iterator[tuple[str, str, ArgumentPlace | Constant]]:
    """Each place with its pointer and what is placed there."""
    for argument, place in operation.arguments.items():
        step = ("field_mappings", "input") if argument in mapped else ("input_schema", "properties")
        yield pointer_of([*step, argument]), argument, place
    for position, constant in enumerate(operation.constants):
        yield f"/field_mappings/constants/{position}", "a constant", constant


def _path_problems(operation: HttpOperation, schema: dict[str, Any]) -> Iterator[ValidationProblem]:
    in_path, parameters = operation.by_place["path"], parameters_in(operation.path)
    for name in dict.fromkeys(parameters):
        if all(place.name != name for _, place in in_path):
            message = f"The path contains {{{name}}}, but no argument has this place."
            yield ValidationProblem("/api/endpoint", message)
    for argument, place in in_path:
        where = pointer_of(["input_schema", "properties", argument])
        declared = schema["properties"][argument]
        if place.name not in parameters:
            message = f"{argument} is placed at {{{place.name}}}, which the path does not contain."
            yield ValidationProblem(pointer_of(["field_mappings", "input", argument]), message)
        elif argument in schema.get("required", []):
            continue
        elif not isinstance(declared, dict) or "default" not in declared:
            message = f"{argument} is part of the path, so it must be required or have a default."
            yield ValidationProblem(where, message)
        elif why := _default_objection(declared["default"], place):
            message = f"{argument} has a default that {why}, so it cannot be part of the path."
            yield ValidationProblem(where, message)


def _default_objection(value: Any, place: ArgumentPlace) -> str:
    try:
        return path_value_objection(text_of(scalar_of(value)), slashes=place.slashes)
    except NoText as error:
        return str(error)


def _name_objection(operation: HttpOperation, place: ArgumentPlace | Constant) -> str:
    name = place.name
    # An argument can choose among the media types of the body.
    chooses = not isinstance(place, Constant) and bool(place.media_types)
    if chooses and (place.place, name.lower()) != ("header", "content-type"):
        return f"Only the header Content-Type can have media_types, not {name}."
    is_constant = chooses or isinstance(place, Constant)
    if place.place == "header" and (why := objection_to_name(name, constant=is_constant)):
        return f"{name} {why}."
    if place.place == "cookie" and not TOKEN.fullmatch(name):
        return f"{name} is not a valid name of a cookie."
    if place.place != "body":
        return ""
    if operation.method == "HEAD":
        return "A HEAD request cannot have a body."
    try:
        steps_of(name)
    except ValueError as error:
        return str(error)
    return ""


def _objections(
    operation: HttpOperation, schema: dict[str, Any], argument: str, place: ArgumentPlace
) -> Iterator[str]:
    is_body, body_format = place.place == "body", operation.body_format
    is_raw = is_body and body_format == "raw"
    is_part = is_body and body_format == "multipart" and place.name.count("/") < 2
    if is_raw and place.name:
        yield f'A raw body has no fields: set "name": "" for the argument that is the body, not {argument}.'
    if place.file and not (is_raw or is_part):
        yield f"{argument} is a file, so it must be a field of a multipart body, or a raw body."
    if place.media_type and not MEDIA_TYPE.fullmatch(place.media_type):
        yield f"The media type of {argument} is not valid."
    yield from (_header_objection(operation, "content-type", one) for one in place.media_types)
    if place.as_json and (place.file or is_raw):
        yield f"{argument} cannot be both a file and JSON."
    elif place.as_json and place.place == "cookie":
        yield f"{argument} is a cookie, which cannot carry JSON."
    # In brackets, as entries of their own and within a body, values of any type can be sent.
    elif not (
        place.as_json
        or (place.place == "query" and (place.brackets or place.spread))
        or (is_body and (place.name or body_format == "json"))
    ):
        yield from _type_objections(schema, argument, place, body_format)


def _type_objections(
    schema: dict[str, Any], argument: str, place: ArgumentPlace, body_format: str
) -> Iterator[str]:
    value, follow = schema["properties"][argument], references_within(schema)
    types = types_of(value, follow)
    if place.place == "body":
        kind, wanted = ("body", "string") if body_format == "raw" else ("form", "object")
        if types and wanted not in types:
            yield f"{argument} is the whole {kind}, so it must be of the type {wanted}."
    elif types == {"object"}:
        yield f"{argument} is an object, which only a body can carry."
    elif types == {"array"} and place.place == "cookie":
        yield f"{argument} is a list, which a cookie cannot carry."
    elif types == {"array"} and (items := item_types_of(value, follow)) and items <= NESTED:
        yield f"{argument} is a list of lists or objects, which only a body can carry."


def _value_objection(operation: HttpOperation, constant: Constant) -> str:
    try:
        match constant.place:
            case "header":
                return _header_objection(operation, constant.name, text_of(scalar_of(constant.value)))
            case "query":
                scalars_of(constant.value)
            case "body" if operation.body_format == "raw":
                return f"A raw body has no fields, so {constant.name} cannot be sent in it."
            case "body" if operation.body_format != "json":
                form_pairs({constant.name: constant.value})
    except NoText as error:
        return f"The value of {constant.name} {error}."
    except Rejected:
        return f"The value of {constant.name} cannot be written in a form."
    return ""


def _header_objection(operation: HttpOperation, name: str, value: str) -> str:
    if why := objection_to_value(value):
        return f"The value of {name} {why}."
    if name.lower() != "content-type" or operation.body_format == "raw":
        return ""
    media_type = value.partition(";")[0].strip().lower()
    is_written = media_type.endswith(("/json", "+json")) or is_yaml(media_type) or is_json_lines(media_type)
    if operation.body_format == "json" and is_written:
        return ""
    return "The body is sent in the tool's body_format, so Content-Type can only be a type of JSON or YAML."


def _overlaps(
    operation: HttpOperation, places: Iterable[tuple[str, str, ArgumentPlace | Constant]]
) -> Iterator[ValidationProblem]:
    claims = [(pointer, who, one.place, _folded(one.place, one.name)) for pointer, who, one in places]
    if header := operation.idempotency_header:
        claims.append(("/api/idempotency_header", "the idempotency key", "header", header.lower()))
    taken: dict[tuple[str, str], str] = {}
    fields: dict[tuple[str, ...], tuple[str, str, str]] = {}
    for pointer, who, where, name in claims:
        if first := taken.get((where, name)):
            target = f"{name} in the {where}" if name else f"the whole {where}"
            yield ValidationProblem(pointer, f"{who} and {first} both set {target}.")
            continue
        taken[where, name] = who
        if where == "body":
            with suppress(ValueError):  # A problem of the name, found before
                fields[steps_of(name)] = pointer, who, name
    for steps, (pointer, who, name) in fields.items():
        for length in range(len(steps)):
            if outer := fields.get(steps[:length]):
                message = f"{who} sets {name}, which is inside the value of {outer[1]}."
                yield ValidationProblem(pointer, message)


def _folded(where: str, name: str) -> str:
    return name.lower() if where == "header" else name
