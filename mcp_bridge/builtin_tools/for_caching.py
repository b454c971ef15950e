"""The built-in tool that clears the result cache."""

from typing import Any

from mcp_types import CallToolResult, ToolAnnotations

from catalogue.database import run_in_database
from catalogue.exposure import current_catalogue
from catalogue.scopes import Scope
from executions.result_cache import clear_results
from executions.starting import exposed_workflow
from mcp_bridge.answers.results import document_result
from mcp_bridge.builtin_tools.tool import Arguments, BuiltInTool
from mcp_bridge.calls import ToolCall


async def _clear_cache(call: ToolCall, arguments: Arguments) -> CallToolResult:
    return document_result(await run_in_database(_clear, call, arguments.get("workflowName", "")))


def _clear(call: ToolCall, name: str) -> dict[str, Any]:
    """Of what the caller may run, and no more."""
    if name:
        cleared = clear_results({exposed_workflow(name, caller=call.access.caller).pk})
    else:
        visible = current_catalogue().seen_through(call.access.toolset).values()
        cleared = clear_results({workflow.pk for workflow in visible})
    return {"success": True, "entriesCleared": cleared, "workflow": name}


CACHING_TOOLS = (
    BuiltInTool(
        name="ClearCache",
        title="Clear the result cache",
        description=(
            "Forget the cached results of one workflow, or of all that you can call, so that the next calls "
            "run. For when what they tell is known to be out of date."
        ),
        # Whoever may run a workflow may have it run anew instead of taking a cached result.
        scope=Scope.RUN,
        properties={
            "workflowName": {
                "type": "string",
                "description": "The workflow's tool name. Left out: all workflows.",
            }
        },
        names_workflow="workflowName",
        read_only=False,
        hints=ToolAnnotations(
            read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=False
        ),
        call=_clear_cache,
    ),
)
