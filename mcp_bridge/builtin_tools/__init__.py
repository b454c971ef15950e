"""The tools of our own: find a workflow, run it, ask how far it is, talk to it, cancel it."""

from catalogue.scopes import Scope
from mcp_bridge.builtin_tools.for_caching import CACHING_TOOLS
from mcp_bridge.builtin_tools.for_executions import EXECUTION_TOOLS
from mcp_bridge.builtin_tools.for_interactions import INTERACTION_TOOLS
from mcp_bridge.builtin_tools.for_workflows import WORKFLOW_TOOLS
from mcp_bridge.builtin_tools.tool import BuiltInTool, call_built_in

BUILT_IN_TOOLS = {
    tool.name: tool for tool in (*WORKFLOW_TOOLS, *EXECUTION_TOOLS, *CACHING_TOOLS, *INTERACTION_TOOLS)
}


def scope_of_tool(name: str) -> Scope:
    """What a caller needs to call the tool; names that no tool has are not told apart from workflows."""
    return BUILT_IN_TOOLS[name].scope if name in BUILT_IN_TOOLS else Scope.RUN


def describe_missing_scope(name: str, needed: Scope) -> str:
    return f"This token may not call {name}: it lacks the scope {needed.value}."


__all__ = ["BUILT_IN_TOOLS", "BuiltInTool", "call_built_in", "describe_missing_scope", "scope_of_tool"]
