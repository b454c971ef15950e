"""Small OpenAPI documents, and what is read out of them."""

import json
from typing import Any

from catalogue.schemas import check_arguments
from connectors.http_tools.openapi.document import Document, RefusedOperation, base_url_of
from connectors.http_tools.openapi.operations import ReadTool, ReadTools, Selection, read_tools, settings_for
from connectors.http_tools.request import build_request, content_of, headers_of
from connectors.http_tools.tool import HttpOperation, HTTPRequestSpec

BASE = "https://api.example.com/v1"


def document(paths: dict[str, Any], *, openapi: str = "3.1.0", **further: Any) -> dict[str, Any]:
    info = {"title": "Orders API", "version": "1"}
    return {"openapi": openapi, "info": info, "servers": [{"url": BASE}], "paths": paths} | further


def with_operation(
    operation: dict[str, Any], *, method: str = "get", path: str = "/orders", **further: Any
) -> dict[str, Any]:
    return document({path: {method: {"operationId": "op"} | operation}}, **further)


def body_of(schema: Any, *, media_type: str = "application/json", **further: Any) -> dict[str, Any]:
    return {"requestBody": {"content": {media_type: {"schema": schema}}} | further}


def read(
    raw: dict[str, Any] | str | bytes,
    *,
    base_url: str = "",
    secrets: frozenset[str] = frozenset(),
    settings: dict[str, str] | None = None,
    **selection: Any,
) -> ReadTools:
    text = json.dumps(raw) if isinstance(raw, dict) else raw
    read_document = Document.read(text if isinstance(text, bytes) else text.encode())
    return read_tools(
        read_document,
        base_url=base_url_of(read_document, base_url),
        settings=settings or settings_for(read_document, secrets),
        selection=Selection(**selection),
        usable_pattern=lambda pattern: "(?=" not in pattern,
    )


def the_tool(raw: dict[str, Any], **options: Any) -> ReadTool:
    """The document's one operation as a tool."""
    found = read(raw, **options)
    assert not found.refused, found.refused
    (tool,) = found.tools
    return tool


def the_refusal(raw: dict[str, Any], **options: Any) -> RefusedOperation:
    found = read(raw, **options)
    assert not found.tools
    (refused,) = found.refused
    return refused


def request_of(tool: ReadTool, arguments: dict[str, Any]) -> HTTPRequestSpec:
    """What the tool sends for these arguments."""
    return build_request(operation_in(tool), base_url=BASE, arguments=arguments)


def operation_in(tool: ReadTool) -> HttpOperation:
    return HttpOperation.model_validate(tool.definition.metadata)


def sent_by(tool: ReadTool, arguments: dict[str, Any]) -> tuple[str, bytes | None]:
    """Media type and body that arrive for the arguments of an agent."""
    checked = check_arguments(tool.definition.input_schema, arguments)
    assert not checked.problems, checked.problems
    operation, spec = operation_in(tool), request_of(tool, checked.arguments)
    content, media_type = content_of(operation, spec)
    return headers_of(operation, spec, key="", content_type=media_type).get("content-type", ""), content
