"""The settings of an MCP server whose tools are workflows."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from connectors.settings import (
    CaFile,
    FieldProblem,
    HeaderSecret,
    MaxResponseBytes,
    OAuthAudience,
    OAuthClientId,
    OAuthClientSecret,
    OAuthScope,
    OAuthUrl,
    OptionalEndpoint,
    RequestTimeoutSeconds,
    VerifyTls,
    hint,
)
from connectors.simplified.config import HttpWord

MAX_SECONDS = 2_592_000
HTTP = {"transport": "http"}
STDIO = {"transport": "stdio"}
REQUESTS = hint(group="Requests")
TRUST = hint(address=True, group="TLS", only_if=HTTP)
"""Who is believed to be the server decides who gets our secrets."""
OAUTH = hint(group="OAuth", only_if=HTTP)


def _variables(lines: list[str]) -> list[str]:
    for line in lines:
        name, equals, _ = line.partition("=")
        if not equals or not name.isascii() or not name.isidentifier() or "\0" in line:
            raise ValueError("each entry must have the form NAME=value")
    return lines


class McpConfig(BaseModel):
    """Where the server is or what starts it, how it is talked to, and what it may cost."""

    # Without hide_input_in_errors a mistyped token would be quoted by the error about it.
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    transport: Literal["http", "stdio"] = Field(
        default="http",
        title="Transport",
        description="http: a server at a URL (Streamable HTTP). stdio: a program that is started here.",
    )
    url: OptionalEndpoint = Field(
        default="",
        title="URL",
        description="The server's endpoint, such as https://mcp.example.com/mcp. Needed for http only.",
        json_schema_extra=hint(address=True, only_if=HTTP),
    )
    bearer_token: HeaderSecret = Field(
        default=SecretStr(""),
        title="Token or API key",
        description="Sent with every request over HTTP. Empty: the header is left out.",
        json_schema_extra=hint(only_if=HTTP),
    )
    authorization_scheme: HttpWord = Field(
        default="Bearer",
        title="Authorization scheme",
        description="The word before the token. Empty: the token stands alone, as API keys often do.",
        json_schema_extra=hint(group="Authorization", only_if=HTTP),
    )
    authorization_header: HttpWord = Field(
        default="Authorization",
        min_length=1,
        title="Authorization header",
        description="The header that carries the token, such as X-API-Key.",
        json_schema_extra=hint(group="Authorization", only_if=HTTP),
    )
    oauth_url: OAuthUrl = Field(default="", json_schema_extra=hint(address=True, group="OAuth", only_if=HTTP))
    oauth_client_id: OAuthClientId = Field(default="", json_schema_extra=OAUTH)
    oauth_client_secret: OAuthClientSecret = Field(default=SecretStr(""), json_schema_extra=OAUTH)
    oauth_audience: OAuthAudience = Field(default="", json_schema_extra=OAUTH)
    oauth_scope: OAuthScope = Field(default="", json_schema_extra=OAUTH)
    verify_tls: VerifyTls = Field(default=True, json_schema_extra=TRUST)
    ca_file: CaFile = Field(default="", json_schema_extra=TRUST)
    command: str = Field(
        default="",
        max_length=100,
        title="Command",
        description="Needed for stdio only: the name of a command that the operator has allowed in "
        "CATALOGUE_STDIO_COMMANDS. Others cannot be started.",
        json_schema_extra=hint(address=True, only_if=STDIO),
    )
    arguments: list[str] = Field(
        default=[],
        max_length=100,
        title="Arguments",
        description="Added to the command, where the operator allows that.",
        json_schema_extra=hint(address=True, only_if=STDIO),
    )
    environment: Annotated[list[str], AfterValidator(_variables)] = Field(
        default=[],
        max_length=100,
        title="Environment variables",
        description="NAME=value for the command; the operator says which names may be set.",
        json_schema_extra=hint(address=True, only_if=STDIO),
    )
    secret_environment: SecretStr = Field(
        default=SecretStr(""),
        title="Secret environment variables",
        description="The same for secrets, one NAME=value a line.",
        json_schema_extra=hint(only_if=STDIO, multiline=True),
    )
    request_timeout_seconds: RequestTimeoutSeconds = Field(
        default=30.0,
        description="For connecting, listing tools and asking for a run's status.",
        json_schema_extra=REQUESTS,
    )
    call_timeout_seconds: float = Field(
        default=600.0,
        gt=0,
        le=MAX_SECONDS,
        title="Longest silence (s)",
        description="A call is given up when the server has said nothing about it for so long, not even a "
        "progress notification. The workflow's own timeout ends it as well.",
        json_schema_extra=REQUESTS,
    )
    max_response_bytes: MaxResponseBytes = Field(default=10_000_000, json_schema_extra=REQUESTS)

    @field_validator("secret_environment")
    @classmethod
    def _lines_of_variables(cls, text: SecretStr) -> SecretStr:
        _variables(_lines_of(text))
        return text

    @model_validator(mode="after")
    def _has_what_the_transport_needs(self) -> "McpConfig":
        if self.transport == "http" and not self.url:
            raise FieldProblem("url", "The transport http needs a URL.")
        if self.transport == "stdio" and not self.command:
            raise FieldProblem("command", "The transport stdio needs a command.")
        if self.oauth_url and not (self.oauth_client_id and self.oauth_client_secret.get_secret_value()):
            raise FieldProblem("oauth_url", "OAuth needs a client id and a client secret besides the URL.")
        if self.oauth_url and self.bearer_token.get_secret_value():
            raise FieldProblem("bearer_token", "Give either a token or OAuth, not both.")
        return self

    @property
    def secrets(self) -> list[str]:
        own = (self.bearer_token, self.oauth_client_secret)
        return [*(secret.get_secret_value() for secret in own), *secret_variables(self).values()]


def variables(config: McpConfig) -> dict[str, str]:
    """All environment variables for the command."""
    return _as_dict(config.environment) | secret_variables(config)


def secret_variables(config: McpConfig) -> dict[str, str]:
    return _as_dict(_lines_of(config.secret_environment))


def _lines_of(text: SecretStr) -> list[str]:
    return [line.strip() for line in text.get_secret_value().splitlines() if line.strip()]


def _as_dict(lines: list[str]) -> dict[str, str]:
    return {name: value for name, _, value in (line.partition("=") for line in lines)}
