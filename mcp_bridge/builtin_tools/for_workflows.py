"""Built-in tools about workflows: which there are, everything about one, run one."""

from typing import Any

from mcp_types import CallToolResult

from catalogue.database import run_in_database
from catalogue.exposure import current_catalogue
from catalogue.models import Source, Workflow
from catalogue.scopes import Scope
from executions.starting import exposed_workflow
from mcp_bridge.builtin_tools.tool import Arguments, BuiltInTool
from mcp_bridge.calls import ToolCall, run_workflow
from mcp_bridge.results import ToolAnswer, document_result

NAME = {
    "type": "string",
    "minLength": 1,
    "description": "The workflow's tool name, as list_workflows shows it.",
}


async def _list_workflows(call: ToolCall, arguments: Arguments) -> CallToolResult:
    return document_result(await run_in_database(_listing, call, arguments.get("tags", [])))


def _listing(call: ToolCall, tags: list[str]) -> dict[str, Any]:
    shown = [
        workflow
        for workflow in current_catalogue().seen_through(call.access.toolset).values()
        if set(tags) <= set(workflow.shown_tags)
    ]
    return {
        "workflows": [
            {
                "name": workflow.tool_name,
                "title": workflow.title,
                "description": workflow.shown_description,
                "tags": workflow.shown_tags,
                "source": workflow.source.name,
            }
            for workflow in shown
        ],
        "total": len(shown),
        "unavailable_sources": _unavailable_sources(),
    }


def _unavailable_sources() -> list[dict[str, Any]]:
    """Engines whose present list we do not know: what is shown of them is the last good one."""
    failing = Source.objects.filter(enabled=True, health_state=Source.HealthState.FAILING)
    return [
        {
            "source": source.name,
            "since": source.failing_since and source.failing_since.isoformat(),
            "reason": source.health_message,
            "shown": "the last good list" if source.last_refreshed_at else "nothing",
        }
        for source in failing
    ]


async def _get_workflow_info(call: ToolCall, arguments: Arguments) -> CallToolResult:
    workflow = await run_in_database(exposed_workflow, arguments["name"], caller=call.access.caller)
    return document_result(_everything_about(workflow))


def _everything_about(workflow: Workflow) -> dict[str, Any]:
    return {
        "name": workflow.tool_name,
        "title": workflow.title,
        "description": workflow.shown_description,
        "tags": workflow.shown_tags,
        "category": workflow.category,
        "version": workflow.version,
        "author": workflow.author or None,
        "source": workflow.source.name,
        "execution_type": workflow.effective_execution_type,
        "input_schema": workflow.input_schema,
        "output_schema": workflow.output_schema,
    }


async def _execute_workflow(call: ToolCall, arguments: Arguments) -> ToolAnswer:
    return await run_workflow(call, arguments["name"], arguments.get("arguments", {}))


WORKFLOW_TOOLS = (
    BuiltInTool(
        name="list_workflows",
        title="List workflows",
        description=(
            "List the workflows that can be run, with what each is for. Also names the engines that "
            "cannot be reached at present. Use get_workflow_info for a workflow's arguments."
        ),
        scope=Scope.READ,
        properties={
            "tags": {
                "type": "array",
                "items": {"type": "string"},
                "description": "Only workflows that carry every one of these tags.",
            }
        },
        call=_list_workflows,
    ),
    BuiltInTool(
        name="get_workflow_info",
        title="Get everything about a workflow",
        description="Show one workflow in full: description, arguments and result as JSON Schema.",
        scope=Scope.READ,
        properties={"name": NAME},
        required=("name",),
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
        read_only=False,
        call=_execute_workflow,
    ),
)
