"""The guard: decides whether the model's proposal may be carried out.

The request is built from the arguments, by the tool's definition. One that the model wrote is only compared
with it, and never sent.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from catalogue.argument_overrides import complete_arguments
from catalogue.http_tools import is_http_tool
from catalogue.models import Workflow
from catalogue.schemas import check_arguments
from connectors.errors import ConnectorError
from connectors.formats.json import UnreadableJSON, parse_json, write_json
from connectors.http_tools.request import build_request, difference_between
from connectors.http_tools.tool import HttpOperation, HTTPRequestSpec
from connectors.network.redaction import shorten

MAX_PROPOSAL = 100_000  # Characters
MAX_REASON = 2_000
MAX_PROBLEMS = 5  # In one error message
REQUEST_SCHEMA = {
    "type": "object",
    "properties": {
        "method": {"type": "string"},
        "url": {"type": "string"},
        "headers": {"type": "object"},
        "query_params": {"type": "object"},
        "body": {},
    },
    "required": ["method", "url"],
}
TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[{}]', re.DOTALL)
"""Possessive, so that an unclosed string is scanned only once."""


class Proposal(BaseModel):
    """The model's answer to the selection prompt, checked for its shape only (C4.4, C4.5)."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    tool: str | None  # None: no tool fits
    reason: str = Field(default="", max_length=MAX_REASON)
    arguments: dict[str, Any] | None = None
    http_request: HTTPRequestSpec | None = None  # What the model would send, for comparison


class UnreadableProposal(ValueError):
    """The message tells the model what to correct."""


def read_proposal(text: str) -> Proposal:
    """Accepts JSON in a fence or within text. Raises UnreadableProposal."""
    if len(text) > MAX_PROPOSAL:
        raise UnreadableProposal(f"The answer is longer than {MAX_PROPOSAL:,} characters.")
    objects = list(objects_in(text))
    proposals = [found for found in objects if "tool" in found]
    if not objects:
        raise UnreadableProposal("The answer contains no complete JSON object.")
    if not proposals:
        raise UnreadableProposal('The JSON object has no "tool".')
    if proposals.count(proposals[0]) < len(proposals):
        raise UnreadableProposal("The answer contains more than one proposal; give exactly one.")
    written = _with_plain_members(proposals[0])
    try:
        return Proposal.model_validate(written)
    except ValidationError as error:
        # Without values, which may be long.
        problems = error.errors(include_url=False, include_input=False, include_context=False)
        listed = [f'"{".".join(map(str, problem["loc"]))}": {problem["msg"]}' for problem in problems]
        raise UnreadableProposal(
            "The proposal does not have the requested shape. " + "; ".join(listed[:MAX_PROBLEMS])
        ) from None


def proposal_schema(tool_names: list[str], *, has_endpoints: bool = True) -> dict[str, Any]:
    """Returns a JSON Schema. The reason comes first, so that the model thinks before it chooses."""
    names: list[str | None] = [*tool_names, None]
    properties: dict[str, Any] = {
        "reason": {"type": "string"},
        # No type: with a list of types, llama.cpp ignores the enum.
        "tool": {"enum": names},
        "arguments": {"type": "object"},
    }
    requests = {"http_request": REQUEST_SCHEMA} if has_endpoints else {}
    return {"type": "object", "properties": properties | requests, "required": list(properties)}


def _with_plain_members(found: dict[str, Any]) -> dict[str, Any]:
    """Normalises unambiguous deviations."""
    # The name in function calling, which many models are trained for.
    arguments = found.get("arguments", found.get("parameters"))
    if isinstance(arguments, str):
        # Function calling may write them as text.
        try:
            written = arguments.encode("utf-8", "replace")
            arguments = parse_json(written) if arguments.strip() else None
        except UnreadableJSON as error:
            raise UnreadableProposal(f'"arguments" is text that is not a JSON object. {error}') from None
    reason = found.get("reason")
    return {
        "tool": found["tool"] or None,
        "reason": shorten(reason, MAX_REASON) if isinstance(reason, str) else reason or "",
        "arguments": arguments,
        "http_request": _request(found.get("http_request")),
    }


def _request(given: Any) -> Any:
    """Removes nulls; puts the method in capitals."""
    if not isinstance(given, dict):
        return given or None
    stated = {name: value for name, value in given.items() if value is not None}
    if isinstance(method := stated.get("method"), str):
        stated["method"] = method.upper()
    if isinstance(query := stated.get("query_params"), dict):
        stated["query_params"] = {name: _query_value(value) for name, value in query.items()}
    return stated or None


def _query_value(value: Any) -> Any:
    """Objects as JSON: how they are sent depends on the tool."""
    items = value if isinstance(value, list) else [value]
    return write_json(value) if any(isinstance(item, dict | list) for item in items) else value


def objects_in(text: str) -> Iterator[dict[str, Any]]:
    """Outermost objects; skips braces without valid JSON, including their contents."""
    for span in _braces(text):
        try:
            value = parse_json(span.encode("utf-8", "replace"))
        except UnreadableJSON:
            continue
        if isinstance(value, dict):
            yield value


def _braces(text: str) -> Iterator[str]:
    """Spans of outermost braces."""
    begin = text.find("{")
    while begin >= 0:
        depth = 0
        for token in TOKEN.finditer(text, begin):
            depth += (token[0] == "{") - (token[0] == "}")
            if not depth:
                break
        if depth:
            return
        yield text[begin : token.end()]
        begin = text.find("{", token.end())


@dataclass(frozen=True, kw_only=True, slots=True)
class Approved:
    workflow: Workflow
    arguments: dict[str, Any]
    http_spec: HTTPRequestSpec | None
    """What will be sent, without credentials; None for tools of other engines."""
    reason: str


class ProposalRefused(Exception):
    """The proposal names no allowed tool, or its arguments are invalid."""


def check_proposal(proposal: Proposal, tools: Mapping[str, Workflow]) -> Approved:
    """`tools`: the allowed ones, by tool name. Raises ProposalRefused."""
    if (workflow := tools.get(proposal.tool or "")) is None:
        named = f"{proposal.tool[:100]!r} is" if proposal.tool else "No tool was named, and that is"
        raise ProposalRefused(f"{named} none of the tools of this request: {', '.join(tools)}.")
    is_http = is_http_tool(workflow)
    if not is_http and proposal.http_request is not None:
        raise ProposalRefused(f"{workflow.tool_name} is not an HTTP tool: leave out http_request.")
    checked = check_arguments(workflow.offered_input_schema, proposal.arguments or {})
    if checked.problems:
        listed = "; ".join(map(str, checked.problems))
        raise ProposalRefused(f"The arguments for {workflow.tool_name} are not valid: {listed}.")
    arguments = checked.arguments
    http_spec = _build_request(workflow, arguments, proposal.http_request) if is_http else None
    return Approved(workflow=workflow, arguments=arguments, http_spec=http_spec, reason=proposal.reason)


def _build_request(
    workflow: Workflow, arguments: dict[str, Any], written: HTTPRequestSpec | None
) -> HTTPRequestSpec:
    """Returns what will be sent, with the catalogue's overrides. Raises ProposalRefused, also if the model's
    own request differs from it. Constants and defaults are optional there."""
    base_url = str(workflow.source.config.get("base_url", ""))
    try:
        operation = HttpOperation.of(workflow.ref)

        def build(given: dict[str, Any]) -> HTTPRequestSpec:
            sent = complete_arguments(workflow.argument_overrides, given)
            return build_request(operation, base_url=base_url, arguments=sent)

        spec = build(arguments)
        if written is None:
            return spec
        defaults = {
            name: schema["default"]
            for name, schema in workflow.offered_input_schema.get("properties", {}).items()
            if isinstance(schema, dict) and "default" in schema
        }
        in_path = {
            name: value for name, value in arguments.items() if operation.arguments[name].place == "path"
        }
        built, usual = build(defaults | arguments), build(defaults | in_path)
    except ConnectorError as error:
        raise ProposalRefused(error.message) from None
    if difference := difference_between(written, built, usual=usual, operation=operation):
        name = workflow.tool_name
        raise ProposalRefused(
            f"The arguments and the http_request for {name} describe different calls: {difference}"
        )
    return spec
