"""Stored HTTP tools as declarations, without secrets."""

from datetime import datetime
from typing import Any, ClassVar

from catalogue.exposure import FilterChain, Visibility, explain_exposure
from catalogue.models import Workflow, WorkflowFilter
from connectors.http_tools.tool import (
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
SECRET_OF = {
    "api_key": "key",
    "bearer": "token",
    "basic": "password",
    "oauth_client_credentials": "client_secret",
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
            method=operation.method,
            authentication=authentication_of(source.config),
            body_format=operation.body_format,
            idempotency_header=operation.idempotency_header,
            anonymous=operation.anonymous,
            response_headers=operation.response_headers,
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
    match config.get("authentication"):
        case "api_key":
            name, where = config.get("api_key_name", "X-API-Key"), config.get("api_key_in", "header")
            return ApiKey.model_validate({"type": "api_key", "in": where, "name": name})
        case "bearer":
            return Bearer(type="bearer")
        case "basic":
            return Basic(type="basic", username=config.get("username", ""))
        case "oauth_client_credentials":
            return OAuthClientCredentials(
                type="oauth_client_credentials",
                token_url=config.get("oauth_token_url", ""),
                client_id=config.get("oauth_client_id", ""),
                scope=config.get("oauth_scope", ""),
                audience=config.get("oauth_audience", ""),
            )
    return NoAuthentication()


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

    READ_ONLY: ClassVar = ("id", "source", "exposed", "hidden_because", "updated_at")  # Not declared


def stored_tool_of(workflow: Workflow, chain: FilterChain[WorkflowFilter]) -> StoredTool:
    """Raises Misconfigured for a workflow that is not an HTTP tool."""
    visibility = explain_exposure(workflow, chain).visibility
    exposed = visibility is Visibility.EXPOSED
    return StoredTool(
        **dict(tool_config_of(workflow)),
        id=workflow.tool_name,
        source=workflow.source.name,
        exposed=exposed,
        hidden_because="" if exposed else visibility.value,
        updated_at=workflow.changed_at,
    )


def write_tool_config(tool: ToolConfig) -> dict[str, Any]:
    """As JSON, without a field for the secret."""
    secret = SECRET_OF.get(tool.api.authentication.type, "")
    return tool.model_dump(mode="json", by_alias=True, exclude={"api": {"authentication": {secret}}})
