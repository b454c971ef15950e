"""`tasks/get`, `tasks/update` and `tasks/cancel`: the extension `io.modelcontextprotocol/tasks` (SEP-2663).

A task is an execution and its id is the execution's, so that any process can answer for any task.
"""

from collections.abc import Callable
from typing import Any

from mcp import MCPError
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import require_client_extension
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp_types import HEADER_MISMATCH, INVALID_PARAMS, METHOD_NOT_FOUND, RequestParams

from catalogue.database import run_in_database
from catalogue.scopes import Scope
from executions.cancelling import cancel_execution
from executions.reading import UnknownExecution, find_execution
from executions.watching import find_fresh_execution
from mcp_bridge.access import Access
from mcp_bridge.declarations import TASKS, Context, is_modern
from mcp_bridge.task_documents import describe_task

ACKNOWLEDGED: dict[str, Any] = {"resultType": "complete"}


class TaskParams(RequestParams):
    """Lenient, because what is wrong with the request as a whole is told before what is wrong in it."""

    task_id: Any = None
    input_responses: Any = None


class TaskMethods:
    """The handlers, for callers that the transport has let in."""

    def __init__(self, access_of: Callable[[Context], Access]) -> None:
        self._access_of = access_of

    def register(self, server: Server[None]) -> None:
        server.extensions[TASKS] = {}
        server.add_request_handler("tasks/get", TaskParams, self.get)
        server.add_request_handler("tasks/update", TaskParams, self.update)
        server.add_request_handler("tasks/cancel", TaskParams, self.cancel)

    async def get(self, context: Context, params: TaskParams) -> dict[str, Any]:
        access, task_id = self._admit(context, params, Scope.READ, Scope.RUN)
        try:
            task = await run_in_database(_read, task_id, access, context.protocol_version)
        except UnknownExecution:
            raise _unknown_task(task_id) from None
        return {"resultType": "complete", **task}

    async def update(self, context: Context, params: TaskParams) -> dict[str, Any]:
        """No task of ours asks for input, so every response is one to a key that is not outstanding."""
        access, task_id = self._admit(context, params, Scope.RUN)
        if not isinstance(params.input_responses, dict):
            raise MCPError(INVALID_PARAMS, "inputResponses has to be an object.")
        try:
            await run_in_database(find_execution, task_id, caller=access.caller)
        except UnknownExecution:
            raise _unknown_task(task_id) from None
        return ACKNOWLEDGED

    async def cancel(self, context: Context, params: TaskParams) -> dict[str, Any]:
        """An acknowledgement, whatever comes of it: the task's state shows that."""
        access, task_id = self._admit(context, params, Scope.RUN)
        try:
            await cancel_execution(task_id, caller=access.caller)
        except UnknownExecution:
            raise _unknown_task(task_id) from None
        return ACKNOWLEDGED

    def _admit(self, context: Context, params: TaskParams, *scopes: Scope) -> tuple[Access, str]:
        """The caller, and the id of the task that it may ask for; raises what the extension says."""
        if not is_modern(context):
            raise MCPError(METHOD_NOT_FOUND, "Method not found", data=context.method)
        require_client_extension(context, TASKS)
        task_id = params.task_id
        if not isinstance(task_id, str):
            raise MCPError(INVALID_PARAMS, "taskId has to be a string.")
        if context.request is not None:
            _check_routing_header(context.request.headers.get(MCP_NAME_HEADER), task_id)
        access = self._access_of(context)
        if not any(access.allows(scope) for scope in scopes):
            needed = " or ".join(scope.value for scope in scopes)
            raise MCPError(
                INVALID_PARAMS, f"This token may not call {context.method}: it lacks the scope {needed}."
            )
        return access, task_id


def _read(task_id: str, access: Access, protocol_version: str) -> dict[str, Any]:
    execution = find_fresh_execution(task_id, caller=access.caller)
    return describe_task(execution, protocol_version=protocol_version)


def _check_routing_header(header: str | None, task_id: str) -> None:
    if decode_header_value(header) != task_id:
        raise MCPError(
            HEADER_MISMATCH, f"{MCP_NAME_HEADER} header does not match the request body's 'taskId' parameter"
        )


def _unknown_task(task_id: str) -> MCPError:
    return MCPError(INVALID_PARAMS, f"Unknown task: {task_id[:100]}.")
