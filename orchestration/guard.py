"""The guard: decides whether a proposal of the model may be carried out.

Nothing of what the model wrote is sent. From its request the tool's arguments are read back, and the request
that is sent is made of these by the tool's own definition.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from catalogue.argument_overrides import complete_arguments
from catalogue.http_tools.configs import is_http_tool
from catalogue.models import Workflow
from catalogue.schemas import check_arguments
from connectors.errors import ConnectorError
from connectors.http_tools.building import build_request
from connectors.http_tools.operation import HttpOperation
from connectors.http_tools.reading import NotThisTool, read_arguments
from connectors.http_tools.specs import HTTPRequestSpec
from orchestration.proposals import Proposal

SHOWN_NAME = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Approved:
    """A call that may be made."""

    workflow: Workflow
    arguments: dict[str, Any]
    http_spec: HTTPRequestSpec | None
    """For HTTP tools, what will be sent, but for credentials."""
    reason: str


class ProposalRefused(Exception):
    """The proposal names no allowed tool, or calls it wrongly; the message says what is wrong."""


def check_proposal(proposal: Proposal, tools: Mapping[str, Workflow]) -> Approved:
    """`tools`: those that the request allows, by tool name. Raises ProposalRefused."""
    if (workflow := tools.get(proposal.tool or "")) is None:
        named = f"{proposal.tool[:SHOWN_NAME]!r} is" if proposal.tool else "No tool was named, and that is"
        raise ProposalRefused(f"{named} none of the tools of this request: {', '.join(tools)}.")
    if is_http_tool(workflow):
        return _check_http(proposal, workflow)
    if proposal.http_request is not None:
        raise ProposalRefused(f"{workflow.tool_name} is no HTTP tool: leave http_request out.")
    arguments = _checked(workflow, proposal.arguments or {})
    return Approved(workflow=workflow, arguments=arguments, http_spec=None, reason=proposal.reason)


def _check_http(proposal: Proposal, workflow: Workflow) -> Approved:
    tool = _HttpTool(workflow)
    # Without what is null for nothing, which the request does not say.
    arguments = check_arguments(workflow.offered_input_schema, proposal.arguments or {}).arguments
    if proposal.http_request is not None:
        read_back = tool.read(proposal.http_request)
        if not arguments:
            # Servers with structured outputs have the model write some, and empty ones say nothing.
            arguments = read_back
        elif not tool.mean_the_same(arguments, read_back):
            raise ProposalRefused(
                f"The arguments and the http_request for {workflow.tool_name} do not mean the same call."
            )
    arguments = _checked(workflow, arguments)
    return Approved(
        workflow=workflow, arguments=arguments, http_spec=tool.build(arguments), reason=proposal.reason
    )


def _checked(workflow: Workflow, arguments: dict[str, Any]) -> dict[str, Any]:
    checked = check_arguments(workflow.offered_input_schema, arguments)
    if checked.problems:
        listed = "; ".join(map(str, checked.problems))
        raise ProposalRefused(f"The arguments for {workflow.tool_name} are not valid: {listed}.")
    return checked.arguments


class _HttpTool:
    """The one call that a tool is."""

    def __init__(self, workflow: Workflow) -> None:
        self._schema: dict[str, Any] = workflow.offered_input_schema
        self._overrides: dict[str, Any] = workflow.argument_overrides
        self._base_url = str(workflow.source.config.get("base_url", ""))
        try:
            self._operation = HttpOperation.of(workflow.ref)
        except ConnectorError as error:
            raise ProposalRefused(error.message) from None

    def read(self, spec: HTTPRequestSpec) -> dict[str, Any]:
        try:
            read = read_arguments(self._operation, spec, base_url=self._base_url, input_schema=self._schema)
        except NotThisTool as error:
            raise ProposalRefused(str(error)) from None
        # The whole request may well have what the catalogue adds to it.
        return {name: value for name, value in read.items() if not self._is_added(name, value)}

    def _is_added(self, name: str, value: Any) -> bool:
        override = self._overrides.get(name, {})
        return "constant" in override and override["constant"] == value

    def build(self, arguments: dict[str, Any]) -> HTTPRequestSpec:
        """The request as it will be sent, with what the catalogue sets."""
        sent = complete_arguments(self._overrides, arguments)
        try:
            return build_request(self._operation, base_url=self._base_url, arguments=sent)
        except ConnectorError as error:
            raise ProposalRefused(error.message) from None

    def mean_the_same(self, some: dict[str, Any], others: dict[str, Any]) -> bool:
        """Whether both make the same request, once what is left out is what the schema says it is then."""
        return self.build(self._with_defaults(some)) == self.build(self._with_defaults(others))

    def _with_defaults(self, arguments: dict[str, Any]) -> dict[str, Any]:
        properties = self._schema.get("properties", {})
        defaults = {
            name: schema["default"]
            for name, schema in properties.items()
            if isinstance(schema, dict) and "default" in schema
        }
        return defaults | arguments
