"""The tools that are always there: find a workflow, run it, ask how far it is, cancel it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from mcp_types import CallToolResult, Tool, ToolAnnotations

from catalogue.database import run_in_database
from catalogue.exposure import current_catalogue
from catalogue.models import Source, Workflow
from catalogue.schemas import find_argument_problems
from catalogue.scopes import Scope
from executions.cancelling import cancel_execution
from executions.models import State
from executions.reading import UnknownExecution, describe_execution, find_execution
from executions.refusals import InvalidArguments, StartRefused
from executions.starting import exposed_workflow
from mcp_bridge.access import Access
from mcp_bridge.calls import ToolCall, run_workflow
from mcp_bridge.results import document_result, text_result

Arguments = dict[str, Any]
NAME = {
    "type": "string",
    "minLength": 1,
    "description": "The workflow's tool name, as list_workflows shows it.",
}
EXECUTION_ID = {"type": "string", "minLength": 1, "description": "The execution_id that the call returned."}


@dataclass(frozen=True, kw_only=True, slots=True)
class BuiltInTool:
    """A tool of ours; it is seen and called with its scope only."""

    name: str
    title: str
    description: str
    scope: Scope
    properties: dict[str, Any]
    required: tuple[str, ...] = ()
    read_only: bool = True
    call: Callable[[ToolCall, Arguments], Awaitable[CallToolResult]]

    @property
    def input_schema(self) -> dict[str, Any]:
        schema = {"type": "object", "properties": self.properties, "additionalProperties": False}
        return schema | ({"required": list(self.required)} if self.required else {})

    @property
    def tool(self) -> Tool:
        hints = ToolAnnotations(read_only_hint=self.read_only, open_world_hint=not self.read_only)
        return Tool(
            name=self.name,
            title=self.title,
            description=self.description,
            input_schema=self.input_schema,
            annotations=hints,
        )


async def call_built_in(tool: BuiltInTool, call: ToolCall, arguments: Arguments) -> CallToolResult:
    """Check the arguments, call it, and tell refusals in-band, where the model can correct itself."""
    if problems := find_argument_problems(tool.input_schema, arguments):
        return text_result(str(InvalidArguments(tool.name, problems)), is_error=True)
    try:
        return await tool.call(call, arguments)
    except (StartRefused, UnknownExecution) as error:
        return text_result(str(error), is_error=True)


async def _list_workflows(call: ToolCall, arguments: Arguments) -> CallToolResult:
    return document_result(await run_in_database(_listing, arguments.get("tags", [])))


def _listing(tags: list[str]) -> dict[str, Any]:
    shown = [
        workflow
        for workflow in current_catalogue().workflows.values()
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
    return document_result(_everything_about(await run_in_database(exposed_workflow, arguments["name"])))


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


async def _execute_workflow(call: ToolCall, arguments: Arguments) -> CallToolResult:
    return await run_workflow(call, arguments["name"], arguments.get("arguments", {}))


async def _get_execution_status(call: ToolCall, arguments: Arguments) -> CallToolResult:
    return document_result(await run_in_database(_status, arguments["execution_id"], call.access))


def _status(execution_id: str, access: Access) -> dict[str, Any]:
    execution = find_execution(execution_id, caller=access.caller)
    described = describe_execution(execution)
    if execution.state == State.UNCONFIRMED:
        described["note"] = (
            "It may be running at the engine; an administrator has to find out. Do not start it again."
        )
    return described


async def _cancel_execution(call: ToolCall, arguments: Arguments) -> CallToolResult:
    cancellation = await cancel_execution(arguments["execution_id"], caller=call.access.caller)
    described = await run_in_database(describe_execution, cancellation.execution)
    return document_result(
        {"outcome": cancellation.outcome, "message": cancellation.message, "execution": described}
    )


BUILT_IN_TOOLS = {
    tool.name: tool
    for tool in (
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
        BuiltInTool(
            name="get_execution_status",
            title="Get an execution's status",
            description="Show how far a run that you started is; once it has completed, its output.",
            scope=Scope.READ,
            properties={"execution_id": EXECUTION_ID},
            required=("execution_id",),
            call=_get_execution_status,
        ),
        BuiltInTool(
            name="cancel_execution",
            title="Cancel an execution",
            description="Ask the engine to cancel a run that you started, and say what came of it.",
            scope=Scope.RUN,
            properties={"execution_id": EXECUTION_ID},
            required=("execution_id",),
            read_only=False,
            call=_cancel_execution,
        ),
    )
}
