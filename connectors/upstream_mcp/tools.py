"""The tools of an MCP server's listing, their results, and the tasks that run them."""

import contextlib
import json
from collections import Counter
from dataclasses import replace
from typing import Any

from mcp.shared.inbound import find_invalid_x_mcp_header, mcp_param_headers, x_mcp_header_map

from connectors.definitions import (
    META,
    METADATA_KEY,
    TOO_DEEP,
    RejectedDefinition,
    WorkflowDefinition,
    parse_definition,
)
from connectors.errors import ConnectorError, InvalidAnswer, NotFound, Rejected, Unreachable, Unsupported
from connectors.formats.json import as_object, read_time
from connectors.formats.mcp_apps import read_tool_meta
from connectors.network.redaction import printable, shorten, shorten_error
from connectors.protocol import DETAILS_SECONDS, RunSnapshot, RunState, WorkflowRef
from connectors.upstream_mcp.messages import CUT
from connectors.upstream_mcp.run_callers import read_error
from connectors.upstream_mcp.session import TASKS_EXTENSION, Era, McpSession

INVALID_PARAMS = -32602
STATES = {
    "working": RunState.RUNNING,
    "input_required": RunState.RUNNING,
    "completed": RunState.COMPLETED,
    "failed": RunState.FAILED,
    "cancelled": RunState.CANCELLED,
}
REASONS = {
    RunState.FAILED: "The task failed and the server gave no reason.",
    RunState.CANCELLED: "The task was cancelled at the server.",
}
NEEDS_INPUT = "The task asks for input, which this client cannot provide."
NO_DESCRIPTION = "No description."
NO_REASON = "The tool failed and the server gave no reason."


def prepare_call(
    workflow: WorkflowRef, arguments: dict[str, Any], era: Era
) -> tuple[dict[str, Any], dict[str, str]]:
    """The parameters, which make the call a task if it should be one, and the headers in which a stateless
    server expects arguments."""
    needed = as_object(workflow.metadata.get(METADATA_KEY))
    parameters: dict[str, Any] = {"name": workflow.id, "arguments": arguments}
    requests = as_object(as_object(era.capabilities.get("tasks")).get("requests"))
    calls = as_object(requests.get("tools")).get("call")
    if not era.is_modern and calls is not None and needed.get("task") is True:
        parameters["task"] = {"ttl": 86_400_000}  # Milliseconds in which its result can be fetched
    headers = {tuple(path): token for path, token in needed.get("headers", [])}
    return parameters, mcp_param_headers(headers, arguments)


def created_task(answer: dict[str, Any]) -> dict[str, Any] | None:
    task = answer if answer.get("resultType") == "task" else answer.get("task")
    if isinstance(task, dict) and isinstance(task.get("taskId"), str) and "content" not in answer:
        return task
    return None


def read_task(task: dict[str, Any]) -> RunSnapshot:
    """Reads a task without its result. Raises InvalidAnswer for an unknown state."""
    state = STATES.get(str(task.get("status")))
    if state is None:
        shown = printable(shorten(str(task.get("status")), 50))
        raise InvalidAnswer(f"The task has the status {shown!r}, which this connector does not know.")
    said = task.get("statusMessage")
    words = shorten_error(printable(said)) if isinstance(said, str) else ""
    created, updated = read_time(task.get("createdAt")), read_time(task.get("lastUpdatedAt"))
    is_over = state is not RunState.RUNNING
    return RunSnapshot(
        state=state,
        error=(words or REASONS[state]) if state in REASONS else "",
        progress_message="" if is_over else words,
        created_at=created,
        started_at=created,
        updated_at=updated,
        finished_at=updated if is_over else None,
        raw=task,
    )


class ServerTasks:
    def __init__(self, session: McpSession) -> None:
        self._session = session

    async def poll(self, task_id: str) -> RunSnapshot:
        task = await self._get(task_id)
        snapshot = read_task(task)
        if snapshot.state is RunState.COMPLETED or (
            snapshot.state is RunState.FAILED and "error" not in task
        ):
            return await self._with_result(task, snapshot)
        if task.get("status") == "input_required":
            return await self._decline(task_id, snapshot)
        error = task.get("error")
        if snapshot.state is RunState.FAILED and isinstance(error, dict):
            message = str(error.get("message") or snapshot.error)
            words, _ = read_error(error.get("code"), message, error.get("data"))
            return replace(snapshot, error=words)
        return snapshot

    async def cancel(self, task_id: str) -> None:
        try:
            await self._ask("tasks/cancel", task_id)
        except Unsupported:
            raise Unsupported("This MCP server cannot cancel a task.") from None
        except Rejected as error:
            # The same code means an unknown task or one that has ended.
            if read_task(await self._get(task_id)).state is not RunState.RUNNING:
                raise Rejected("The task has already ended.") from None
            raise error

    async def _get(self, task_id: str) -> dict[str, Any]:
        era = await self._session.era()
        offered = era.capabilities.get("extensions" if era.is_modern else "tasks")
        if not isinstance(offered, dict) or (era.is_modern and TASKS_EXTENSION not in offered):
            raise NotFound("The MCP server does not keep tasks.")
        try:
            return await self._ask("tasks/get", task_id)
        except Unsupported:
            raise NotFound("The MCP server does not keep tasks.") from None
        except Rejected as error:
            if error.details.get("code") == INVALID_PARAMS:
                raise NotFound(error.message, details=error.details) from None
            raise

    async def _ask(self, method: str, task_id: str, *, seconds: float | None = None) -> dict[str, Any]:
        return await self._session.request(method, {"taskId": task_id}, silence=seconds, name=task_id)

    async def _with_result(self, task: dict[str, Any], snapshot: RunSnapshot) -> RunSnapshot:
        """The result is in the task, or must be requested."""
        answer = task.get("result")
        try:
            if not isinstance(answer, dict):
                answer = await self._ask("tasks/result", task["taskId"], seconds=DETAILS_SECONDS)
        except ConnectorError as error:
            if snapshot.state is RunState.COMPLETED:
                return replace(snapshot, unread=error)
            if not isinstance(error, Rejected | Unsupported):
                raise
            return replace(snapshot, state=RunState.FAILED, error=shorten_error(error.message))
        result = read_result(answer)
        return replace(
            snapshot,
            state=result.state,
            output=result.output,
            content=result.content,
            error=result.error,
            raw=result.raw | {"task": {key: value for key, value in task.items() if key != "result"}},
        )

    async def _decline(self, task_id: str, snapshot: RunSnapshot) -> RunSnapshot:
        """Cancels and fails the run. In MCP 2025-11-25 the question arrives during the request for the
        result, where it is declined."""
        if (await self._session.era()).is_modern:
            with contextlib.suppress(ConnectorError):
                await self.cancel(task_id)
            failed = replace(snapshot, state=RunState.FAILED, error=NEEDS_INPUT, progress_message="")
            return replace(failed, depends_on_arguments=False)
        try:
            # In this time, input is requested and refused, and the task has its next state.
            answer = await self._ask("tasks/result", task_id, seconds=5.0)
        except (Unreachable, Rejected):
            return replace(snapshot, progress_message=NEEDS_INPUT)
        return read_result(answer)


def read_tool(
    tool: Any, *, position: int, needs_headers: bool = False, apps: bool = False
) -> WorkflowDefinition | RejectedDefinition:
    """Reads one entry of `tools/list`; `needs_headers`: the server expects some arguments as headers; `apps`:
    `_meta` is kept as far as it is known."""
    if not isinstance(tool, dict):
        return parse_definition(tool, position=position)
    if CUT in tool:
        return _rejected(tool, position, TOO_DEEP)
    wrong = find_invalid_x_mcp_header(tool.get("inputSchema"))
    if wrong is not None and needs_headers:
        return _rejected(tool, position, f"inputSchema: {wrong}")
    description = tool.get("description")
    # It is optional in MCP; a blank one, or one that is no text, counts as missing.
    if not isinstance(description, str) or not description.strip():
        description = NO_DESCRIPTION
    support = as_object(tool.get("execution")).get("taskSupport")
    # A task outlives its connection, but callers of a tool with an output schema wait for the result.
    is_best = support == "optional" and not isinstance(tool.get("outputSchema"), dict)
    metadata: dict[str, Any] = {"task": support == "required" or is_best}
    # Arguments to send as headers, too
    if wrong is None and (headers := x_mcp_header_map(tool.get("inputSchema"))):
        metadata["headers"] = sorted([list(path), token] for path, token in headers.items())
    if apps and (meta := read_tool_meta(tool.get("_meta"))):
        metadata[META] = meta
    raw = {
        "id": tool.get("name"),
        "name": tool.get("name"),
        "title": tool.get("title"),
        "description": description,
        "inputSchema": tool.get("inputSchema"),
        "outputSchema": tool.get("outputSchema"),
        "annotations": tool.get("annotations"),
        "icons": tool.get("icons"),
        # Only a synchronous workflow can keep an output schema: others may answer with a handle.
        "executionType": "sync" if isinstance(tool.get("outputSchema"), dict) else "async",
        "metadata": {METADATA_KEY: metadata},
    }
    return parse_definition(raw, position=position)


def _rejected(tool: dict[str, Any], position: int, reason: str) -> RejectedDefinition:
    name = tool.get("name")
    readable = name[:255] if isinstance(name, str) else ""
    return RejectedDefinition(position=position, id=readable, name=readable, reason=reason[:1000])


def read_result(answer: dict[str, Any]) -> RunSnapshot:
    """A tool's result: failed if the tool reports an error, or if nothing of its content is readable. Parts
    that are not, beside others that are, are shown as JSON."""
    content = answer.get("content")
    parts = content if isinstance(content, list) else [] if content is None else [content]
    if parts and not any(map(_is_block, parts)):
        problem = "The tool ended, but the server's answer cannot be used: its content has no content block."
        return RunSnapshot(state=RunState.FAILED, error=problem, raw=answer)
    blocks = [part if _is_block(part) else {"type": "text", "text": _as_text(part)} for part in parts]
    text = "\n".join(block["text"] for block in blocks if block["type"] == "text")
    kinds = Counter(block["type"] for block in blocks).items()
    described = ", ".join(f"{count} {kind}" for kind, count in kinds)
    has_structure = "structuredContent" in answer
    output = answer["structuredContent"] if has_structure else text or described
    repeats_output = has_structure and blocks == [{"type": "text", "text": _as_text(output)}]
    failed = answer.get("isError") in (True, "true")
    return RunSnapshot(
        state=RunState.FAILED if failed else RunState.COMPLETED,
        output=output if has_structure or not failed else None,
        error=(shorten_error(text) or NO_REASON) if failed else "",
        # Without structured content the blocks are the result, and the output repeats their text.
        content=None if repeats_output and not failed else blocks,
        # The output and the content hold the rest.
        raw={key: value for key, value in answer.items() if key not in ("content", "structuredContent")}
        | {"contentTypes": [block["type"] for block in blocks]},
    )


def _is_block(part: Any) -> bool:
    block = as_object(part)
    return isinstance(block.get("text" if block.get("type") == "text" else "type"), str)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
