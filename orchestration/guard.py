"""The guard: decides whether a proposal of the model may be carried out.

The request that is sent is made of the arguments, by the tool's own definition. A request that the model
wrote beside them is only compared with that one, and never sent.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from catalogue.argument_overrides import complete_arguments
from catalogue.http_tools.configs import is_http_tool
from catalogue.models import Workflow
from catalogue.schemas import check_arguments
from connectors.errors import ConnectorError
from connectors.http_tools.comparison import difference_between
from connectors.http_tools.request import build_request
from connectors.http_tools.specs import HTTPRequestSpec
from connectors.http_tools.tool import HttpOperation
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
    arguments = _checked(workflow, proposal.arguments or {})
    http_spec = tool.build(arguments)
    if proposal.http_request is not None:
        tool.compare(proposal.http_request, arguments)
    return Approved(workflow=workflow, arguments=arguments, http_spec=http_spec, reason=proposal.reason)


def _checked(workflow: Workflow, arguments: dict[str, Any]) -> dict[str, Any]:
    checked = check_arguments(workflow.offered_input_schema, arguments)
    if checked.problems:
        listed = "; ".join(map(str, checked.problems))
        raise ProposalRefused(f"The arguments for {workflow.tool_name} are not valid: {listed}.")
    return checked.arguments


class _HttpTool:
    """The one call that a tool is."""

    def __init__(self, workflow: Workflow) -> None:
        self._name = workflow.tool_name
        self._schema: dict[str, Any] = workflow.offered_input_schema
        self._overrides: dict[str, Any] = workflow.argument_overrides
        self._base_url = str(workflow.source.config.get("base_url", ""))
        try:
            self._operation = HttpOperation.of(workflow.ref)
        except ConnectorError as error:
            raise ProposalRefused(error.message) from None

    def build(self, arguments: dict[str, Any]) -> HTTPRequestSpec:
        """The request as it will be sent, with what the catalogue sets."""
        sent = complete_arguments(self._overrides, arguments)
        try:
            return build_request(self._operation, base_url=self._base_url, arguments=sent)
        except ConnectorError as error:
            raise ProposalRefused(error.message) from None

    def compare(self, written: HTTPRequestSpec, arguments: dict[str, Any]) -> None:
        """Raises ProposalRefused where the request is not the one that the arguments make.

        Constants, and arguments that have their defaults, may be in it or not.
        """
        defaults = {
            name: schema["default"]
            for name, schema in self._schema.get("properties", {}).items()
            if isinstance(schema, dict) and "default" in schema
        }
        in_path = {
            name: value
            for name, value in arguments.items()
            if self._operation.arguments[name].place == "path"
        }
        built, usual = self.build(defaults | arguments), self.build(defaults | in_path)
        if difference := difference_between(written, built, usual=usual, operation=self._operation):
            raise ProposalRefused(
                f"The arguments and the http_request for {self._name} do not mean the same call: {difference}"
            )
