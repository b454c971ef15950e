"""An execution as the result of a tool call."""

import json
from typing import Any

from mcp_types import CallToolResult, TextContent
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from catalogue.schemas import find_argument_problems
from executions.models import Execution, State
from executions.reading import describe_execution

ToolAnswer = CallToolResult | dict[str, Any]
"""A tool's result, or the task that stands for it."""
PROPOSED_WAIT_SECONDS = 30


def text_result(text: str, *, structured: Any = None, is_error: bool = False) -> CallToolResult:
    return CallToolResult(
        content=[TextContent(type="text", text=text)], structured_content=structured, is_error=is_error
    )


def document_result(document: dict[str, Any]) -> CallToolResult:
    """A document both ways: as text for models, as structured content for programs."""
    return text_result(_json(document), structured=document)


def execution_result(execution: Execution, *, protocol_version: str) -> CallToolResult:
    """The workflow's output; or what went wrong and what to do; or how to ask for a run that goes on."""
    if execution.state == State.COMPLETED:
        return _output_result(execution, protocol_version)
    if execution.is_settled:
        return text_result(_failure_text(execution), is_error=True)
    return _handle_result(execution)


def _output_result(execution: Execution, protocol_version: str) -> CallToolResult:
    if execution.payload_pruned_at is not None:
        return text_result(
            f"The run completed, but its output is kept no longer: the retention removed it on "
            f"{execution.payload_pruned_at:%Y-%m-%d}. Call the tool again if the result is still needed. "
            f"{_reference(execution)}",
            is_error=True,
        )
    output, cut = execution.payload.output, [entry["payload"] for entry in execution.payload.cut]
    if "output" in cut:
        return text_result(
            f"The run completed, but its output was too large to keep. {_reference(execution)}", is_error=True
        )
    promised = execution.workflow.output_schema if execution.workflow else None
    if promised is not None and (problems := find_argument_problems(promised, output)):
        broken = "\n".join(f"- {problem}" for problem in problems)
        return text_result(
            "The run completed, but its output breaks the engine's own output schema:\n"
            f"{broken}\n\nOutput:\n{_json(output)}",
            is_error=True,
        )
    # Handshake versions allow only an object as structured content.
    fits = isinstance(output, dict) or protocol_version in MODERN_PROTOCOL_VERSIONS
    structured = output if fits else {"result": output}
    return text_result(output if isinstance(output, str) else _json(output), structured=structured)


def _failure_text(execution: Execution) -> str:
    advice = {
        State.FAILED: "Check the arguments and try again, or tell the person who runs the workflow.",
        State.CANCELLED: "Call the tool again if the result is still needed.",
        State.TIMED_OUT: "Try again with less work, or ask an administrator for a longer timeout.",
        State.UNCONFIRMED: "Do not call it again: it may be running. An administrator has to find out.",
    }[State(execution.state)]
    happened = f"{execution.tool_name} {execution.get_state_display()}: {execution.error}"
    return f"{happened}\n{advice} {_reference(execution)}"


def _handle_result(execution: Execution) -> CallToolResult:
    """Not an error: the run goes on, and this is how to get at its result."""
    document = describe_execution(execution) | next_step(execution)
    asking = json.dumps(document["next"]["arguments"])
    progress = "" if execution.progress is None else f", {execution.progress:g} % done"
    text = (
        f"{execution.tool_name} is still {execution.told_state}{progress}. "
        "It goes on and its result is kept: do not start it again. "
        f"Call get_execution_status with {asking}: it answers as soon as the run has ended, "
        "or tells how far it is."
    )
    return text_result(text, structured=document)


def next_step(execution: Execution) -> dict[str, Any]:
    """How to go on with a run that goes on, for programs."""
    arguments = {"execution_id": str(execution.pk), "wait_seconds": PROPOSED_WAIT_SECONDS}
    return {"next": {"tool": "get_execution_status", "arguments": arguments}}


def _reference(execution: Execution) -> str:
    return f"(execution {execution.pk})"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)
