"""The settings of an MCP server whose tools are workflows."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr, field_validator, model_validator

from connectors import settings
from connectors.definitions import MAX_SECONDS
from connectors.settings import REQUESTS, FieldProblem, SourceConfig, hint
from connectors.simplified import HttpWord, KeyHeader, SimplifiedConfig

HTTP = {"transport": "http"}
STDIO = {"transport": "stdio"}
OAUTH = hint(group="OAuth", only_if=HTTP)
LISTS = {"offer": ["both", "workflows"]}
LISTED_GROUP = "Workflows that a tool lists"
LISTED = hint(group=LISTED_GROUP, only_if=LISTS)


def _variables(lines: list[str]) -> list[str]:
    for line in lines:
        name, equals, _ = line.partition("=")
        if not equals or not name.isascii() or not name.isidentifier() or "\0" in line:
            raise ValueError("each entry must have the form NAME=value")
    return lines


def _tool(default: str, *, title: str, description: str) -> str:
    name: str = Field(
        default=default,
        max_length=255,
        title=title,
        description=description,
        json_schema_extra=LISTED,
    )
    return name


class McpConfig(SourceConfig):
    """A source of kind `mcp`: how to reach the server, and which workflows it offers."""

    transport: Literal["http", "stdio"] = Field(
        default="http",
        title="Transport",
        description="http: a server at a URL (Streamable HTTP). stdio: a program that this server starts.",
    )
    url: settings.OptionalEndpoint = Field(
        default="",
        title="URL",
        description="The server's endpoint, such as https://mcp.example.com/mcp. Required for http.",
        json_schema_extra=hint(address=True, only_if=HTTP),
    )
    bearer_token: settings.HeaderSecret = Field(
        default=SecretStr(""),
        title="Token or API key",
        description="Sent with every request over HTTP. Leave empty to omit the header.",
        json_schema_extra=hint(only_if=HTTP),
    )
    authorization_scheme: HttpWord = Field(
        default="Bearer",
        title="Authorization scheme",
        description="The scheme before the token. Leave empty to send the token alone, as many APIs expect "
        "for API keys.",
        json_schema_extra=hint(group="Authorization", only_if=HTTP),
    )
    authorization_header: HttpWord = Field(
        default="Authorization",
        min_length=1,
        title="Authorization header",
        description="The header that carries the token, such as X-API-Key.",
        json_schema_extra=hint(group="Authorization", only_if=HTTP),
    )
    oauth_url: settings.OAuthUrl = Field(
        default="", json_schema_extra=hint(address=True, group="OAuth", only_if=HTTP)
    )
    oauth_client_id: settings.OAuthClientId = Field(default="", json_schema_extra=OAUTH)
    oauth_client_secret: settings.OAuthClientSecret = Field(default=SecretStr(""), json_schema_extra=OAUTH)
    oauth_audience: settings.OAuthAudience = Field(default="", json_schema_extra=OAUTH)
    oauth_scope: settings.OAuthScope = Field(default="", json_schema_extra=OAUTH)
    verify_tls: settings.VerifyTls = Field(default=True, json_schema_extra=hint(only_if=HTTP))
    ca_file: settings.CaFile = Field(default="", json_schema_extra=hint(only_if=HTTP))
    command: str = Field(
        default="",
        max_length=100,
        title="Command",
        description="Required for stdio: the name of a command that the operator has allowed in "
        "CATALOGUE_STDIO_COMMANDS. Other commands cannot be started.",
        json_schema_extra=hint(address=True, only_if=STDIO),
    )
    arguments: list[str] = Field(
        default=[],
        max_length=100,
        title="Arguments",
        description="Arguments for the command, if the operator allows them.",
        json_schema_extra=hint(address=True, only_if=STDIO),
    )
    environment: Annotated[list[str], AfterValidator(_variables)] = Field(
        default=[],
        max_length=100,
        title="Environment variables",
        description="Environment variables for the command, as NAME=value. The operator decides which "
        "names can be set.",
        json_schema_extra=hint(address=True, only_if=STDIO),
    )
    secret_environment: SecretStr = Field(
        default=SecretStr(""),
        title="Secret environment variables",
        description="Environment variables that hold secrets, one NAME=value per line.",
        json_schema_extra=hint(only_if=STDIO, multiline=True),
    )
    request_timeout_seconds: settings.RequestTimeoutSeconds = Field(
        default=30.0,
        description="The time limit for connecting, for listing tools and for requesting a run's status.",
    )
    call_timeout_seconds: float = Field(
        default=600.0,
        gt=0,
        le=MAX_SECONDS,
        title="Idle timeout (s)",
        description="A call fails if the server sends nothing about it for this long, not even a progress "
        "notification. The workflow's own timeout also applies.",
        json_schema_extra=REQUESTS,
    )
    max_response_bytes: settings.MaxResponseBytes = 10_000_000
    questions: Literal["elicitation", "all", "none"] = Field(
        default="elicitation",
        title="Requests to callers",
        description="Which of a tool's requests during a call are forwarded to clients that support them. "
        "elicitation: requests for input from the user. all: also requests for the client's model "
        "(sampling) and its folders (roots). none: no requests.",
        json_schema_extra=REQUESTS,
    )
    apps: bool = Field(
        default=False,
        title="Apps of the server",
        description="Show the user interfaces of the server's tools in clients that can. A curator enables "
        "each. An app runs in the client with everything that the client lets an app of this product call: "
        "turn this on only for servers that are trusted, or that are in a toolset of their own.",
    )

    offer: Literal["both", "tools", "workflows"] = Field(
        default="both",
        title="Offer",
        description="workflows: the workflows that the list tool returns. tools: each tool of the server "
        "is a workflow. both: the listed workflows, if the server has the list tool, and the server's "
        "other tools.",
    )
    list_tool: str = _tool(
        "workflows-list-tool",
        title="List tool",
        description="The tool that lists the server's workflows. Leave empty for none, even if a tool has "
        "the usual name.",
    )
    start_tool: str = _tool(
        "workflow-start-tool",
        title="Start tool",
        description="Called with {workflow_id, input} to start a listed workflow. Returns "
        "{workflow_id, correlation_id}, where workflow_id is the id of the run.",
    )
    status_tool: str = _tool(
        "workflow-status-tool",
        title="Status tool",
        description="Called with {workflow_id, run_id}. Returns the run's status and output.",
    )
    cancel_tool: str = _tool(
        "",
        title="Cancel tool",
        description="Called with {workflow_id, run_id} to cancel a run. Leave empty if the server cannot "
        "cancel runs.",
    )
    idempotent_starts: bool = Field(
        default=False,
        title="Start tool is idempotent",
        description="Turn this on only if the start tool also takes idempotency_key and starts a single "
        "run for each key. If off, the key is not sent, and a start whose outcome is unknown is never "
        "retried.",
        json_schema_extra=LISTED,
    )
    min_poll_seconds: settings.MinPollSeconds = Field(
        default=1.0,
        description="The minimum time between two requests for the status of a listed workflow's run.",
        json_schema_extra=LISTED,
    )
    rest_base_url: settings.OptionalUrl = Field(
        default="",
        title="HTTP API for runs",
        description="The base URL of a simplified workflow API that runs the listed workflows. Leave empty "
        "to run them with the start, status and cancel tools.",
        json_schema_extra=hint(address=True, group=LISTED_GROUP, only_if=LISTS),
    )
    rest_api_key: settings.HeaderSecret = Field(
        default=SecretStr(""),
        title="Key of that API",
        description="Sent in the Authorization header, after the scheme Api-Key.",
        json_schema_extra=LISTED,
    )
    rest_idempotency_header: KeyHeader = Field(
        default="",
        title="Idempotency header of that API",
        description="Set this (for example to Idempotency-Key) only if the API starts a single run for "
        "each key.",
        json_schema_extra=LISTED,
    )

    @field_validator("secret_environment")
    @classmethod
    def _lines_of_variables(cls, text: SecretStr) -> SecretStr:
        _variables(_lines_of(text))
        return text

    @model_validator(mode="after")
    def _has_what_the_transport_needs(self) -> "McpConfig":
        if self.transport == "http" and not self.url:
            raise FieldProblem("url", "The transport http requires a URL.")
        if self.transport == "stdio" and not self.command:
            raise FieldProblem("command", "The transport stdio requires a command.")
        settings.check_oauth(self, beside="bearer_token", called="a token")
        return self

    @model_validator(mode="after")
    def _can_run_what_it_lists(self) -> "McpConfig":
        if self.offer == "workflows" and not self.list_tool:
            raise ValueError("Offering listed workflows requires a list tool.")
        named = [
            name for name in (self.list_tool, self.start_tool, self.status_tool, self.cancel_tool) if name
        ]
        if len(named) != len(set(named)):
            raise ValueError("The list, start, status and cancel tools must be different tools.")
        if self.lists_workflows and not (self.rest_base_url or (self.start_tool and self.status_tool)):
            raise ValueError(
                "Listed workflows require a start tool and a status tool, or an HTTP API for runs."
            )
        return self

    @property
    def secrets(self) -> list[str]:
        own = (self.bearer_token, self.oauth_client_secret, self.rest_api_key)
        return [*(secret.get_secret_value() for secret in own), *secret_variables(self).values()]

    @property
    def lists_workflows(self) -> bool:
        return self.offer != "tools" and bool(self.list_tool)

    @property
    def runs_api(self) -> SimplifiedConfig | None:
        """Settings of the HTTP API that runs listed workflows, if any."""
        if not self.rest_base_url:
            return None
        return SimplifiedConfig(
            base_url=self.rest_base_url,
            api_key=self.rest_api_key,
            idempotency_header=self.rest_idempotency_header,
            min_poll_seconds=self.min_poll_seconds,
            request_timeout_seconds=self.request_timeout_seconds,
            max_response_bytes=self.max_response_bytes,
            verify_tls=self.verify_tls,
            ca_file=self.ca_file,
        )


def variables(config: McpConfig) -> dict[str, str]:
    return _as_dict(config.environment) | secret_variables(config)


def secret_variables(config: McpConfig) -> dict[str, str]:
    return _as_dict(_lines_of(config.secret_environment))


def _lines_of(text: SecretStr) -> list[str]:
    return [line.strip() for line in text.get_secret_value().splitlines() if line.strip()]


def _as_dict(lines: list[str]) -> dict[str, str]:
    return {name: value for name, _, value in (line.partition("=") for line in lines)}
