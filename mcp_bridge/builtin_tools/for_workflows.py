"""Built-in tools about workflows: which there are, everything about one, run one."""

from typing import Any

from mcp_types import CallToolResult

from catalogue.database import run_in_database
from catalogue.describing import describe_workflow
from catalogue.exposure import current_catalogue
from catalogue.scopes import Scope
from executions.starting import exposed_workflow
from mcp_bridge.answers.results import ToolAnswer, document_result
from mcp_bridge.builtin_tools.listing import LIST_WORKFLOWS
from mcp_bridge.builtin_tools.tool import Arguments, BuiltInTool
from mcp_bridge.calls import ToolCall, run_workflow
from mcp_bridge.portability import portable_view

NAME = {
    "type": "string",
    "minLength": 1,
    "description": "The workflow's tool name, as list_workflows shows it.",
}


async def _get_workflow_info(call: ToolCall, arguments: Arguments) -> CallToolResult:
    return document_result(await run_in_database(_everything_about, arguments["name"], call))


def _everything_about(name: str, call: ToolCall) -> dict[str, Any]:
    described = describe_workflow(exposed_workflow(name, caller=call.access.caller))
    portable = portable_view(current_catalogue(), call.access.toolset)
    return described if portable is None else described | {"name": portable.shown_name(described["name"])}


async def _execute_workflow(call: ToolCall, arguments: Arguments) -> ToolAnswer:
    return await run_workflow(call, arguments["name"], arguments.get("arguments", {}))


WORKFLOW_TOOLS = (
    LIST_WORKFLOWS,
    BuiltInTool(
        name="get_workflow_info",
        title="Get everything about a workflow",
        description=(
            "Show one workflow in full: description, arguments and result as JSON Schema, timeout, for how "
            "long results are cached, hints, and whether its engine cannot be listed at present."
        ),
        scope=Scope.READ,
        properties={"name": NAME},
        required=("name",),
        names_workflow="name",
        call=_get_workflow_info,
    ),
    BuiltInTool(
        name="execute_workflow",
        title="Execute a workflow",
        description=(
            "Run a workflow by name and return its result. A run that takes long returns an execution_id "
            "instead; ask get_execution_status for its result later."
        ),
        scope=Scope.RUN,
        properties={
            "name": NAME,
            "arguments": {
                "type": "object",
                "description": "The workflow's arguments, by its input schema.",
            },
        },
        required=("name",),
        names_workflow="name",
        read_only=False,
        starts=True,
        call=_execute_workflow,
    ),
)
