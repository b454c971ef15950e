"""Declared tools, for tests of the connector of kind "http"."""

from typing import Any

from connectors.http_tools.checks import definition_of
from connectors.http_tools.connector import HttpConfig, HttpConnector
from connectors.http_tools.tool import HttpOperation, ToolConfig, connection_of
from connectors.protocol import WorkflowRef

API = "https://api.example.com"
TEXT = {"type": "string"}
WHOLE = {"type": "integer"}


def tool(
    method: str = "GET",
    endpoint: str = f"{API}/orders",
    properties: dict[str, Any] | None = None,
    *,
    required: list[str] | None = None,
    mappings: dict[str, Any] | None = None,
    constants: list[dict[str, Any]] | None = None,
    output: dict[str, str] | None = None,
    schema: dict[str, Any] | None = None,
    **api: Any,
) -> ToolConfig:
    """A tool with these arguments; `mappings`: by argument, as in `field_mappings.input`."""
    return ToolConfig.model_validate(
        {
            "name": "Order",
            "description": "What was ordered.",
            "api": {"endpoint": endpoint, "method": method} | api,
            "input_schema": {"type": "object", "properties": properties or {}, "required": required or []}
            | (schema or {}),
            "field_mappings": {
                "input": mappings or {},
                "constants": constants or [],
                "output": output or {},
            },
        }
    )


def workflow_of(declared: ToolConfig) -> WorkflowRef:
    """As the catalogue would keep it."""
    definition = definition_of(declared, base_url=connection_of(declared).base_url)
    return WorkflowRef(id=definition.id, name=definition.name, metadata=definition.metadata)


def operation_in(workflow: WorkflowRef) -> HttpOperation:
    return HttpOperation.of(workflow)


def connector_of(declared: ToolConfig, **settings: Any) -> HttpConnector:
    connection = connection_of(declared)
    declared_settings = {"base_url": connection.base_url, **connection.settings, **connection.secrets}
    return HttpConnector(HttpConfig(**declared_settings | settings))
