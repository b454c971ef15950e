"""The tools in an MCP server's listing, as workflows."""

import json
from collections import Counter
from typing import Any

from mcp.shared.inbound import find_invalid_x_mcp_header, mcp_param_headers, x_mcp_header_map

from connectors.definitions import TOO_DEEP, RejectedDefinition, WorkflowDefinition, parse_definition
from connectors.formats.json import TooDeep
from connectors.network.redaction import shorten_error
from connectors.protocol import RunSnapshot, RunState, WorkflowRef

NO_DESCRIPTION = "No description."
METADATA_KEY = "mcp"
CUT = "workflow-catalogue/cut"
"""Marks a tool of which the transport left out what was nested too deep."""
NO_REASON = "The tool failed and the server gave no reason."


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
    description = tool.get("description")
    # MCP does without one; a text of blanks is none.
    if description is None or (isinstance(description, str) and not description.strip()):
        description = NO_DESCRIPTION
    raw = {
        "id": tool.get("name"),
        "name": tool.get("name"),
        "title": tool.get("title"),
        "description": description,
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


def _needed_to_start(tool: dict[str, Any], *, has_headers: bool) -> dict[str, Any]:
    """`task`: run calls as tasks; `headers`: arguments to send as headers, too."""
    needed: dict[str, Any] = {"task": _is_best_as_task(tool)}
    headers = x_mcp_header_map(tool.get("inputSchema")) if has_headers else {}
    if headers:
        needed["headers"] = sorted([list(path), token] for path, token in headers.items())
    return needed


def _is_best_as_task(tool: dict[str, Any]) -> bool:
    """A task outlives the connection. Where it is optional, tools with an output schema are called directly:
    their callers wait for the result anyway."""
    execution = tool.get("execution")
    support = execution.get("taskSupport") if isinstance(execution, dict) else None
    return support == "required" or (support == "optional" and not isinstance(tool.get("outputSchema"), dict))


def wants_task(workflow: WorkflowRef) -> bool:
    return _metadata(workflow).get("task") is True


def argument_headers(workflow: WorkflowRef, arguments: dict[str, Any]) -> dict[str, str]:
    """The arguments that a stateless server expects as headers."""
    listed = _metadata(workflow).get("headers", [])
    return mcp_param_headers({tuple(path): token for path, token in listed}, arguments)


def _metadata(workflow: WorkflowRef) -> dict[str, Any]:
    metadata = workflow.metadata.get(METADATA_KEY)
    return metadata if isinstance(metadata, dict) else {}


def read_result(answer: dict[str, Any]) -> RunSnapshot:
    """A tool's result as a snapshot: failed where the tool says so, or the result is unreadable."""
    blocks = answer.get("content", [])
    if problem := _problem_of(blocks):
        return RunSnapshot(
            state=RunState.FAILED,
            error=f"The tool ended, but the server's answer cannot be used: {problem}.",
            raw=answer,
        )
    text = _text_of(blocks)
    has_structure = "structuredContent" in answer
    output = answer["structuredContent"] if has_structure else text or _described(blocks)
    failed = answer.get("isError") is True
    return RunSnapshot(
        state=RunState.FAILED if failed else RunState.COMPLETED,
        output=output if has_structure or not failed else None,
        error=(shorten_error(text) or NO_REASON) if failed else "",
        # Without structured content the blocks are the result, and the output repeats their text.
        content=blocks if failed or not has_structure or _say_more_than(output, blocks) else None,
        # The output and the content hold the rest.
        raw={key: value for key, value in answer.items() if key not in ("content", "structuredContent")}
        | {"contentTypes": [block["type"] for block in blocks]},
    )


def _problem_of(blocks: Any) -> str:
    """What is wrong with the content; empty where each block has a type."""
    if not isinstance(blocks, list):
        return "its content is no list"
    for block in blocks:
        if not isinstance(block, dict) or not isinstance(block.get("type"), str):
            return "its content has a part without a type"
        if block["type"] == "text" and not isinstance(block.get("text"), str):
            return "its content has a text without a text"
    return ""


def _text_of(blocks: list[dict[str, Any]]) -> str:
    return "\n".join(block["text"] for block in blocks if block["type"] == "text")


def _described(blocks: list[dict[str, Any]]) -> str:
    """`2 image, 1 audio`; empty without blocks."""
    counted = Counter(block["type"] for block in blocks)
    return ", ".join(f"{count} {kind}" for kind, count in counted.items())


def _say_more_than(output: Any, blocks: list[dict[str, Any]]) -> bool:
    """Whether the blocks are more than the output as one text."""
    text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
    return blocks != [{"type": "text", "text": text}]


def percent_of(progress: float, total: float | None) -> tuple[float | None, str]:
    """The percentage, or a text for progress without a total."""
    if total is not None and total > 0:
        return min(max(100.0 * progress / total, 0.0), 100.0), ""
    return None, f"{progress:g}"
