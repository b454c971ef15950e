"""Built-in tools for talking to runs that go on; listed only for callers who see a workflow that can be."""

from typing import Any

from mcp_types import CallToolResult

from catalogue.interactions import InteractionKind
from catalogue.scopes import Scope
from executions.interacting import Answer, query_execution, signal_execution
from mcp_bridge.answers.outputs import BEGINNING, fits_inline, write_output
from mcp_bridge.answers.results import document_result
from mcp_bridge.builtin_tools.for_executions import EXECUTION_ID
from mcp_bridge.builtin_tools.tool import Arguments, BuiltInTool
from mcp_bridge.calls import ToolCall


async def _query_execution(call: ToolCall, arguments: Arguments) -> CallToolResult:
    answer = await query_execution(
        arguments["execution_id"],
        arguments["name"],
        arguments.get("arguments", {}),
        caller=call.access.caller,
    )
    return document_result(_describe(answer))


def _describe(answer: Answer) -> dict[str, Any]:
    """Of an answer that would flood a model's context only the beginning, with its size."""
    described = {"execution_id": str(answer.execution.pk), "query": answer.query}
    if fits_inline(text := write_output(answer.value)):
        return described | {"answer": answer.value}
    return described | {"answer_beginning": text[:BEGINNING], "answer_characters": len(text)}


async def _signal_execution(call: ToolCall, arguments: Arguments) -> CallToolResult:
    name = arguments["name"]
    execution = await signal_execution(
        arguments["execution_id"], name, arguments.get("arguments", {}), caller=call.access.caller
    )
    told = "The run was told; what it makes of it, its status shows."
    return document_result({"execution_id": str(execution.pk), "signal": name, "message": told})


def _properties(kind: InteractionKind) -> dict[str, Any]:
    return {
        "execution_id": EXECUTION_ID,
        "name": {"type": "string", "minLength": 1, "description": f"The {kind}'s name."},
        "arguments": {"type": "object", "description": f"By the {kind}'s inputSchema."},
    }


INTERACTION_TOOLS = (
    BuiltInTool(
        name="query_execution",
        title="Ask a run",
        description=(
            "Ask a run that you started one of the queries of its workflow, which get_workflow_info shows."
        ),
        scope=Scope.READ,
        properties=_properties(InteractionKind.QUERY),
        required=("execution_id", "name"),
        takes_part_in=InteractionKind.QUERY,
        call=_query_execution,
    ),
    BuiltInTool(
        name="signal_execution",
        title="Tell a run",
        description=(
            "Send a run that you started one of the signals of its workflow, which get_workflow_info shows."
        ),
        scope=Scope.RUN,
        properties=_properties(InteractionKind.SIGNAL),
        required=("execution_id", "name"),
        read_only=False,
        takes_part_in=InteractionKind.SIGNAL,
        call=_signal_execution,
    ),
)
