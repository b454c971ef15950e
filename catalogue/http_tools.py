"""Stored HTTP tools as declarations, without secrets."""

from datetime import datetime
from typing import Any

from catalogue.exposure import FilterChain, explain_exposure
from catalogue.models import Workflow, WorkflowFilter
from connectors.http_tools.tool import (
    SETTINGS,
    ApiConfig,
    ApiKey,
    Authentication,
    Basic,
    Bearer,
    FieldMappings,
    HttpOperation,
    NoAuthentication,
    OAuthClientCredentials,
    ToolConfig,
)
from connectors.network.policy import normalise_base_url

KIND = "http"
AUTHENTICATIONS: dict[str, type[Authentication]] = {
    "none": NoAuthentication,
    "api_key": ApiKey,
    "bearer": Bearer,
    "basic": Basic,
    "oauth_client_credentials": OAuthClientCredentials,
}


def tool_config_of(workflow: Workflow) -> ToolConfig:
    """The tool's present declaration. Raises Misconfigured for a workflow that is not an HTTP tool."""
    operation = HttpOperation.of(workflow.ref)
    source = workflow.source
    return ToolConfig(
        name=workflow.upstream_id,
        description=workflow.description,
        title=workflow.upstream_title,
        tags=workflow.tags,
        api=ApiConfig(
            endpoint=f"{normalise_base_url(source.config['base_url'])}{operation.path}",
            authentication=authentication_of(source.config),
            **{name: getattr(operation, name) for name in ApiConfig.model_fields if hasattr(operation, name)},
        ),
        input_schema=workflow.input_schema,
        output_schema=workflow.declared_output_schema,
        output_is_promised=operation.output_is_promised,
        field_mappings=FieldMappings(
            input=operation.arguments, constants=operation.constants, output=operation.output
        ),
        timeout_seconds=workflow.upstream_timeout_seconds,
        cache_seconds=workflow.upstream_cache_seconds,
    )


def is_http_tool(workflow: Workflow) -> bool:
    return workflow.source.kind == KIND


def authentication_of(config: dict[str, Any]) -> Authentication:
    """The authentication in a source's settings, without its secret."""
    said = {"authentication": "none", "api_key_in": "header", "api_key_name": "X-API-Key"} | config
    model = AUTHENTICATIONS[said["authentication"]]
    return model.model_validate({name: said.get(SETTINGS.get(name, name), "") for name in model.model_fields})


def why_hidden(workflow: Workflow, chain: FilterChain[WorkflowFilter]) -> str:
    """Empty for a workflow that agents see."""
    explanation = explain_exposure(workflow, chain)
    return "" if explanation.is_exposed else explanation.visibility.value


class StoredTool(ToolConfig):
    """A declared tool as it is stored."""

    id: str
    """Its tool name, which is unique and permanent."""
    source: str
    exposed: bool
    """Whether agents see it and may call it."""
    hidden_because: str
    """The reason if they do not; otherwise empty."""
    updated_at: datetime
    """When its declaration last changed."""


def stored_tool_of(workflow: Workflow, chain: FilterChain[WorkflowFilter]) -> StoredTool:
    """Raises Misconfigured for a workflow that is not an HTTP tool."""
    hidden_because = why_hidden(workflow, chain)
    return StoredTool(
        **dict(tool_config_of(workflow)),
        id=workflow.tool_name,
        source=workflow.source.name,
        exposed=not hidden_because,
        hidden_because=hidden_because,
        updated_at=workflow.changed_at,
    )


def write_tool_config(tool: ToolConfig) -> dict[str, Any]:
    """Returns JSON without a field for the secret."""
    secret = {tool.api.authentication.secret}
    return tool.model_dump(mode="json", by_alias=True, exclude={"api": {"authentication": secret}})
