"""The tools that are always there: find a workflow, run it, ask how far it is, cancel it."""

from mcp_bridge.builtin_tools.for_executions import EXECUTION_TOOLS
from mcp_bridge.builtin_tools.for_workflows import WORKFLOW_TOOLS
from mcp_bridge.builtin_tools.tool import BuiltInTool, call_built_in

BUILT_IN_TOOLS = {tool.name: tool for tool in (*WORKFLOW_TOOLS, *EXECUTION_TOOLS)}

__all__ = ["BUILT_IN_TOOLS", "BuiltInTool", "call_built_in"]
