"""The tools in an MCP server's listing, as workflows."""

from typing import Any

from mcp.shared.inbound import find_invalid_x_mcp_header, mcp_param_headers, x_mcp_header_map

from connectors.definitions import TOO_DEEP, RejectedDefinition, WorkflowDefinition, parse_definition
from connectors.json_limits import TooDeep
from connectors.protocol import WorkflowRef

NO_DESCRIPTION = "No description."
METADATA_KEY = "mcp"
CUT = "workflow-catalogue/cut"
"""Marks a tool of which the transport left out what was nested too deep."""


def read_tool(
    tool: Any, *, position: int, needs_headers: bool = False
) -> WorkflowDefinition | RejectedDefinition:
    """One entry of `tools/list`; `needs_headers` where the server wants arguments as headers, too."""
    if not isinstance(tool, dict):
        return parse_definition(tool, position=position)
    if isinstance(tool, TooDeep) or CUT in tool:
        return _rejected(tool, position, TOO_DEEP)
    wrong = find_invalid_x_mcp_header(tool.get("inputSchema"))
    if wrong is not None and needs_headers:
        return _rejected(tool, position, f"inputSchema: {wrong}")
    raw = {
        "id": tool.get("name"),
        "name": tool.get("name"),
        "title": tool.get("title"),
        "description": _description_of(tool),
        "inputSchema": tool.get("inputSchema"),
        "outputSchema": tool.get("outputSchema"),
        "annotations": tool.get("annotations"),
        "icons": tool.get("icons"),
        # Only a synchronous workflow can keep an output schema: others may answer with a handle.
        "executionType": "sync" if isinstance(tool.get("outputSchema"), dict) else "async",
        "metadata": {METADATA_KEY: _needed_to_start(tool, has_headers=wrong is None)},
    }
    return parse_definition(raw, position=position)


def _rejected(tool: dict[str, Any], position: int, reason: str) -> RejectedDefinition:
    name = tool.get("name")
    readable = name[:255] if isinstance(name, str) else ""
    return RejectedDefinition(position=position, id=readable, name=readable, reason=reason[:1000])


def _description_of(tool: dict[str, Any]) -> Any:
    """MCP does without one; a text of blanks is none."""
    description = tool.get("description")
    is_missing = description is None or (isinstance(description, str) and not description.strip())
    return NO_DESCRIPTION if is_missing else description


def _needed_to_start(tool: dict[str, Any], *, has_headers: bool) -> dict[str, Any]:
    """`task`: have calls kept as tasks; `headers`: the arguments that HTTP servers want as such, too."""
    needed: dict[str, Any] = {"task": _is_best_as_task(tool)}
    headers = x_mcp_header_map(tool.get("inputSchema")) if has_headers else {}
    if headers:
        needed["headers"] = sorted([list(path), token] for path, token in headers.items())
    return needed


def _is_best_as_task(tool: dict[str, Any]) -> bool:
    """A task outlives the connection. Where it is left to us, tools that promise an output schema go without:
    their callers wait for the result anyway."""
    execution = tool.get("execution")
    support = execution.get("taskSupport") if isinstance(execution, dict) else None
    return support == "required" or (support == "optional" and not isinstance(tool.get("outputSchema"), dict))


def wants_task(workflow: WorkflowRef) -> bool:
    return _metadata(workflow).get("task") is True


def argument_headers(workflow: WorkflowRef, arguments: dict[str, Any]) -> dict[str, str]:
    """What a stateless server wants to see of the arguments in front of the body."""
    listed = _metadata(workflow).get("headers", [])
    return mcp_param_headers({tuple(path): token for path, token in listed}, arguments)


def _metadata(workflow: WorkflowRef) -> dict[str, Any]:
    metadata = workflow.metadata.get(METADATA_KEY)
    return metadata if isinstance(metadata, dict) else {}
