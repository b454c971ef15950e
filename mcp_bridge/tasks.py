"""An execution as a task of the extension `io.modelcontextprotocol/tasks` (SEP-2663)."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.utils import timezone
from mcp import MCPError
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import require_client_extension
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp_types import HEADER_MISMATCH, INVALID_PARAMS, METHOD_NOT_FOUND, RequestParams
from mcp_types.methods import serialize_server_result

from access.callers import Scope, describe_lack
from catalogue.database import run_in_database
from executions.change_feed import find_fresh_execution
from executions.interacting import cancel_execution
from executions.models import Execution, Retention, State
from executions.reading import UnknownExecution, find_execution
from identity.tokens import Access
from mcp_bridge.elicitation import requests_of, take_task_responses
from mcp_bridge.request_meta import TASKS, Context, elicitation_modes, is_modern
from mcp_bridge.results import execution_result

MIN_POLL_MS = 1_000
MAX_POLL_MS = 10_000
ACKNOWLEDGED: dict[str, Any] = {"resultType": "complete"}


def describe_task(
    execution: Execution, *, protocol_version: str, modes: frozenset[str] | None = None
) -> dict[str, Any]:
    """Returns a DetailedTask. Failed runs are `completed` with an error: `failed` is for failures of the
    protocol. `modes`: how the client can ask its user; None: it is not asked."""
    if execution.state == State.CANCELLED:
        return _describe_state(execution, "cancelled")
    if modes is not None and (requests := requests_of(execution, modes)):
        return _describe_state(execution, "input_required") | {"inputRequests": requests}
    if not execution.is_settled:
        return _describe_state(execution, "working")
    result = execution_result(execution, protocol_version=protocol_version)
    dumped = result.model_dump(by_alias=True, mode="json", exclude_none=True)
    sent = serialize_server_result("tools/call", protocol_version, dumped)
    return _describe_state(execution, "completed") | {"result": sent}


def describe_task_to(
    access: Access, execution: Execution, protocol_version: str, modes: frozenset[str]
) -> dict[str, Any]:
    """Asks only the caller of the run, not an administrator who looks at it."""
    asked = modes if execution.caller == access.caller.key else None
    return describe_task(execution, protocol_version=protocol_version, modes=asked)


def _describe_state(execution: Execution, status: str) -> dict[str, Any]:
    times = (
        execution.created_at,
        execution.admitted_at,
        execution.started_at,
        execution.polled_at,
        execution.cancel_requested_at,
        execution.finished_at,
    )
    task = {
        "taskId": str(execution.pk),
        "status": status,
        "statusMessage": _status_message(execution),
        "createdAt": execution.created_at.isoformat(),
        "lastUpdatedAt": max(time for time in times if time is not None).isoformat(),
        "ttlMs": _ttl_ms(execution),
    }
    if execution.is_settled:
        return task
    # Long runs need fewer polls: a tenth of the age.
    age_ms = (timezone.now() - execution.created_at).total_seconds() * 1000
    return task | {"pollIntervalMs": round(min(max(age_ms / 10, MIN_POLL_MS), MAX_POLL_MS))}


def _status_message(execution: Execution) -> str:
    if execution.is_settled:
        return execution.error or f"{execution.tool_name} {execution.get_state_display()}."
    done = "" if execution.progress_percent is None else f"{execution.progress_percent:g} %: "
    is_cancelling = execution.cancel_requested_at and not execution.cancel_refusal
    cancelling = ", cancellation requested" if is_cancelling else ""
    state = f"{done}{execution.progress_message or execution.state_label}{cancelling}"
    return ". ".join([state, *execution.problems])


def _ttl_ms(execution: Execution) -> int | None:
    """Returns the time from creation until the retention removes the result; None if not known yet."""
    if not execution.is_final or execution.finished_at is None:
        return None
    if (limit := Retention.current().keeps_results_for) is None:
        return None
    return (execution.finished_at - execution.created_at + limit) // timedelta(milliseconds=1)


class TaskParams(RequestParams):
    """Untyped: errors of the request as a whole take precedence over those of its parameters."""

    task_id: Any = None
    input_responses: Any = None


@dataclass(frozen=True)
class TaskMethods:
    access_of: Callable[[Context], Access]

    def register(self, server: Server[None]) -> None:
        server.extensions[TASKS] = {}
        server.add_request_handler("tasks/get", TaskParams, self.get)
        server.add_request_handler("tasks/update", TaskParams, self.update)
        server.add_request_handler("tasks/cancel", TaskParams, self.cancel)

    async def get(self, context: Context, params: TaskParams) -> dict[str, Any]:
        access, task_id = self._admit(context, params, Scope.READ, Scope.RUN)

        def read() -> dict[str, Any]:
            execution = find_fresh_execution(task_id, caller=access.caller)
            return describe_task_to(access, execution, context.protocol_version, elicitation_modes(context))

        try:
            task = await run_in_database(read)
        except UnknownExecution:
            raise _unknown_task(task_id) from None
        return {"resultType": "complete", **task}

    async def update(self, context: Context, params: TaskParams) -> dict[str, Any]:
        """Takes answers to the questions of the task; ignores anything else."""
        access, task_id = self._admit(context, params, Scope.RUN)
        if not isinstance(params.input_responses, dict):
            raise MCPError(INVALID_PARAMS, "inputResponses must be an object.")
        try:
            await run_in_database(find_execution, task_id, caller=access.caller)
        except UnknownExecution:
            raise _unknown_task(task_id) from None
        await take_task_responses(task_id, params.input_responses, access)
        return ACKNOWLEDGED

    async def cancel(self, context: Context, params: TaskParams) -> dict[str, Any]:
        """Acknowledges only; the task's state shows the outcome."""
        access, task_id = self._admit(context, params, Scope.RUN)
        try:
            await cancel_execution(task_id, caller=access.caller)
        except UnknownExecution:
            raise _unknown_task(task_id) from None
        return ACKNOWLEDGED

    def _admit(self, context: Context, params: TaskParams, *scopes: Scope) -> tuple[Access, str]:
        """Returns the caller and the task's id. Raises MCPError as the extension specifies."""
        if not is_modern(context):
            raise MCPError(METHOD_NOT_FOUND, "Method not found", data=context.method)
        require_client_extension(context, TASKS)
        task_id = params.task_id
        if not isinstance(task_id, str):
            raise MCPError(INVALID_PARAMS, "taskId must be a string.")
        request = context.request
        if request is not None and decode_header_value(request.headers.get(MCP_NAME_HEADER)) != task_id:
            raise MCPError(
                HEADER_MISMATCH,
                f"{MCP_NAME_HEADER} header does not match the request body's 'taskId' parameter",
            )
        access = self.access_of(context)
        if not any(access.allows(scope) for scope in scopes):
            lack = describe_lack(*scopes)
            raise MCPError(INVALID_PARAMS, f"This token may not call {context.method}: {lack}")
        return access, task_id


def _unknown_task(task_id: str) -> MCPError:
    return MCPError(INVALID_PARAMS, f"Unknown task: {task_id[:100]}.")
