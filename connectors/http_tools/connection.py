"""The settings of the source that a tool's API makes."""

from dataclasses import dataclass, field
from typing import Any

from pydantic import SecretStr

from connectors.http_tools.endpoint import Endpoint
from connectors.http_tools.problems import InvalidTool, ToolProblem
from connectors.http_tools.tool_config import (
    ApiKey,
    Authentication,
    Basic,
    Bearer,
    OAuthClientCredentials,
    ToolConfig,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Connection:
    """Where a tool's API is and who we are there, in the fields of HttpConfig."""

    base_url: str
    """Its origin; tools of one origin and authentication share a source."""
    settings: dict[str, Any]
    """All but the base URL and what is secret."""
    secrets: dict[str, str] = field(repr=False)


def connection_of(tool: ToolConfig) -> Connection:
    """Raises InvalidTool where the endpoint is no address."""
    try:
        base_url = Endpoint.of(tool.api.endpoint).origin
    except ValueError as error:
        raise InvalidTool([ToolProblem("/api/endpoint", str(error))]) from None
    authentication = tool.api.authentication
    return Connection(
        base_url=base_url,
        settings={"authentication": authentication.type} | _settings(authentication),
        secrets=_secrets(authentication),
    )


def _settings(authentication: Authentication) -> dict[str, str]:
    match authentication:
        case ApiKey():
            return {"api_key_in": authentication.where, "api_key_name": authentication.name}
        case Basic():
            return {"username": authentication.username}
        case OAuthClientCredentials():
            return {
                "oauth_token_url": authentication.token_url,
                "oauth_client_id": authentication.client_id,
                "oauth_scope": authentication.scope,
                "oauth_audience": authentication.audience,
            }
    return {}


def _secrets(authentication: Authentication) -> dict[str, str]:
    """Those that were given; the others are entered later."""
    given = {name: secret.get_secret_value() for name, secret in _secret_fields(authentication).items()}
    return {name: secret for name, secret in given.items() if secret}


def _secret_fields(authentication: Authentication) -> dict[str, SecretStr]:
    match authentication:
        case ApiKey():
            return {"api_key": authentication.key}
        case Bearer():
            return {"token": authentication.token}
        case Basic():
            return {"password": authentication.password}
        case OAuthClientCredentials():
            return {"oauth_client_secret": authentication.client_secret}
    return {}
