"""The settings of an MCP server that lists workflows with one of its tools."""

from typing import Literal

from pydantic import Field, SecretStr, model_validator

from connectors.settings import HeaderSecret, OptionalUrl, hint
from connectors.simplified.config import KeyHeader, SimplifiedConfig
from connectors.upstream_mcp.config import McpConfig

MAX_TOOL_NAME = 255
LISTS = {"offer": ["both", "workflows"]}
LISTED_GROUP = "Workflows that a tool lists"
LISTED = hint(group=LISTED_GROUP, only_if=LISTS)


def _tool(default: str, *, title: str, description: str) -> str:
    name: str = Field(
        default=default,
        max_length=MAX_TOOL_NAME,
        title=title,
        description=description,
        json_schema_extra=LISTED,
    )
    return name


class McpSourceConfig(McpConfig):
    """What a source of kind `mcp` is told: how to reach the server, and what of it becomes workflows."""

    offer: Literal["both", "tools", "workflows"] = Field(
        default="both",
        title="Offer",
        description="workflows: what the list tool names. tools: each tool of the server is a workflow. "
        "both: the listed workflows where the server has the list tool, and its other tools.",
    )
    list_tool: str = _tool(
        "workflows-list-tool",
        title="List tool",
        description="The tool that lists the server's workflows. Empty: there is none, even if one has the "
        "usual name.",
    )
    start_tool: str = _tool(
        "workflow-start-tool",
        title="Start tool",
        description="Called with {workflow_id, input} to start a listed workflow; answers "
        "{workflow_id, correlation_id}, in which workflow_id is the run's.",
    )
    status_tool: str = _tool(
        "workflow-status-tool",
        title="Status tool",
        description="Called with {workflow_id, run_id}; answers with the run's status and output.",
    )
    cancel_tool: str = _tool(
        "",
        title="Cancel tool",
        description="Called with {workflow_id, run_id} to cancel a run. Empty: the server cannot cancel.",
    )
    idempotent_starts: bool = Field(
        default=False,
        title="Starts know our key",
        description="Only if the start tool takes idempotency_key too, and starts a single run however often "
        "it gets the same one. Off: the key is not sent, and a start of unknown outcome is never repeated.",
        json_schema_extra=LISTED,
    )
    min_poll_seconds: float = Field(
        default=1.0,
        ge=1.0,
        le=3600,
        title="Shortest polling interval (s)",
        description="A listed workflow's run is never asked for its status more often than this.",
        json_schema_extra=LISTED,
    )
    rest_base_url: OptionalUrl = Field(
        default="",
        title="HTTP API for runs",
        description="Base URL of a simplified workflow API that runs the listed workflows instead of the "
        "start, status and cancel tools. Empty: the tools run them.",
        json_schema_extra=hint(address=True, group=LISTED_GROUP, only_if=LISTS),
    )
    rest_api_key: HeaderSecret = Field(
        default=SecretStr(""),
        title="Key of that API",
        description="Sent to it in the Authorization header, after the word Api-Key.",
        json_schema_extra=LISTED,
    )
    rest_idempotency_header: KeyHeader = Field(
        default="",
        title="Idempotency header of that API",
        description="Fill in (for example Idempotency-Key) only if it starts a single run however often it "
        "gets the same key.",
        json_schema_extra=LISTED,
    )

    @model_validator(mode="after")
    def _can_run_what_it_lists(self) -> "McpSourceConfig":
        if self.offer == "workflows" and not self.list_tool:
            raise ValueError("Workflows are to be offered, but no list tool is named.")
        named = [
            name for name in (self.list_tool, self.start_tool, self.status_tool, self.cancel_tool) if name
        ]
        if len(named) != len(set(named)):
            raise ValueError("The list, start, status and cancel tools have to be different ones.")
        if self.lists_workflows and not (self.rest_base_url or (self.start_tool and self.status_tool)):
            raise ValueError("Listed workflows need a start and a status tool, or an HTTP API for runs.")
        return self

    @property
    def lists_workflows(self) -> bool:
        return self.offer != "tools" and bool(self.list_tool)

    @property
    def secrets(self) -> list[str]:
        return [*super().secrets, self.rest_api_key.get_secret_value()]

    @property
    def runs_api(self) -> SimplifiedConfig | None:
        """The settings of the HTTP API that runs listed workflows, where there is one."""
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
