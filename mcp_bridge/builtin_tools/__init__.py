from collections.abc import Awaitable, Collection
from typing import Any

from catalogue.access import Scope
from catalogue.database import run_in_database
from catalogue.models import Workflow
from executions.refusals import UnknownTool
from mcp_bridge.builtin_tools.executions import CACHING_TOOLS, EXECUTION_TOOLS, INTERACTION_TOOLS
from mcp_bridge.builtin_tools.tool import call_built_in
from mcp_bridge.builtin_tools.workflows import WORKFLOW_TOOLS
from mcp_bridge.calls import ToolCall, run_workflow
from mcp_bridge.results import ToolAnswer

BUILT_IN_TOOLS = {
    tool.name: tool for tool in (*WORKFLOW_TOOLS, *EXECUTION_TOOLS, *CACHING_TOOLS, *INTERACTION_TOOLS)
}
OTHER_SPELLINGS = {"clear_cache": "ClearCache"}  # Of built-in tools, where no workflow has that name


def call_tool(call: ToolCall, name: str, arguments: dict[str, Any]) -> Awaitable[ToolAnswer]:
    """Awaiting it raises UnknownTool."""
    if (built_in := BUILT_IN_TOOLS.get(name)) is not None:
        return call_built_in(built_in, call, arguments)
    if name in OTHER_SPELLINGS:
        return _call_by_other_spelling(call, name, arguments)
    return run_workflow(call, name, arguments)


async def _call_by_other_spelling(call: ToolCall, name: str, arguments: dict[str, Any]) -> ToolAnswer:
    try:
        return await run_workflow(call, name, arguments)
    except UnknownTool:
        if await run_in_database(Workflow.objects.filter(tool_name=name).exists):
            raise
    return await call_built_in(BUILT_IN_TOOLS[OTHER_SPELLINGS[name]], call, arguments)


def missing_scope(name: str, scopes: Collection[str]) -> Scope | None:
    """The scope that is needed to call the tool; for unknown names as for workflows."""
    if (tool := BUILT_IN_TOOLS.get(name)) is not None:
        return None if tool.is_open_to(scopes) else tool.scope
    return None if Scope.RUN in scopes else Scope.RUN


def describe_missing_scope(name: str, needed: Scope) -> str:
    return f"This token may not call {name}: it lacks the scope {needed.value}."
