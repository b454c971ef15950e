"""From a ToolConfig to what the catalogue keeps of it."""

from typing import Any

from pydantic import ValidationError

from connectors.definitions import WorkflowDefinition
from connectors.formats.json_schema import pointer_of
from connectors.http_tools.checking import problems_of
from connectors.http_tools.connection import Connection, connection_of
from connectors.http_tools.endpoint import Endpoint
from connectors.http_tools.operation import HttpOperation
from connectors.http_tools.path_template import parameters_in
from connectors.http_tools.placing import placed_arguments
from connectors.http_tools.problems import InvalidTool, ToolProblem
from connectors.http_tools.tool_config import ArgumentPlace, ToolConfig

__all__ = ["Connection", "InvalidTool", "ToolProblem", "connection_of", "definition_of", "operation_of"]


def operation_of(tool: ToolConfig, *, base_url: str) -> HttpOperation:
    """Raises InvalidTool with everything that is wrong."""
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
        output_is_promised=tool.output_is_promised,
        required=_never_null(tool, arguments),
        path_defaults={
            name: properties[name]["default"]
            for name, place in arguments.items()
            if place.place == "path" and "default" in properties[name]
        },
    )


def _never_null(tool: ToolConfig, arguments: dict[str, ArgumentPlace]) -> list[str]:
    """Those that have to be given and may be null for the schema, though their place cannot say that."""
    required, properties = tool.input_schema.get("required", []), tool.input_schema.get("properties", {})
    is_form = tool.api.body_format != "json"
    return [
        name
        for name in required
        if name in arguments
        and (is_form or arguments[name].place != "body")
        and not arguments[name].as_json
        and _may_be_null(properties[name])
    ]


def _may_be_null(schema: dict[str, Any] | bool) -> bool:
    return isinstance(schema, bool) or "null" in schema.get("type", "null")


def definition_of(tool: ToolConfig, *, base_url: str) -> WorkflowDefinition:
    """Raises InvalidTool with everything that is wrong."""
    operation = operation_of(tool, base_url=base_url)
    try:
        return _definition(tool, operation)
    except ValidationError as error:
        raise InvalidTool(_told(error)) from None


def _definition(tool: ToolConfig, operation: HttpOperation) -> WorkflowDefinition:
    return WorkflowDefinition(
        id=tool.name,
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=_closed(tool.input_schema),
        output_schema=tool.output_schema,
        execution_type="sync",
        tags=tool.tags,
        annotations=_hints(operation),
        timeout_seconds=tool.timeout_seconds,
        cache_seconds=tool.cache_seconds,
        # Few tools have any, and those that were stored before do not become others by it.
        metadata=operation.model_dump(
            mode="json", by_alias=True, exclude=None if operation.required else {"required"}
        ),
    )


def _told(error: ValidationError) -> list[ToolProblem]:
    """What is left of a text once it is printable may be too short."""
    problems = error.errors(include_url=False, include_input=False)
    return [ToolProblem(pointer_of(problem["loc"]), f"{problem['msg']}.") for problem in problems]


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """What has no place in the request is refused before anything runs, unless the schema says otherwise."""
    said = schema.keys() & {"additionalProperties", "unevaluatedProperties"}
    return {"type": "object", **schema} | ({} if said else {"additionalProperties": False})


def _hints(operation: HttpOperation) -> dict[str, bool] | None:
    """MCP's annotations, as far as the method promises something (RFC 9110, 9.2)."""
    if operation.is_safe:
        return {"readOnlyHint": True}
    return {"idempotentHint": True} if operation.method in ("PUT", "DELETE") else None
