"""Runs that a server keeps as tasks, of MCP 2025-11-25 or of the extension for stateless servers."""

import contextlib
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from connectors.errors import ConnectorError, InvalidAnswer, NotFound, Rejected, Unreachable, Unsupported
from connectors.network.redaction import printable, shorten, shorten_error
from connectors.protocol import RunSnapshot, RunState, WorkflowRef
from connectors.upstream_mcp.conversation import TASKS_EXTENSION, Era
from connectors.upstream_mcp.session import McpSession
from connectors.upstream_mcp.tools import read_result, wants_task

KEPT_MILLISECONDS = 86_400_000
"""The requested lifetime of a task: long enough to fetch the result."""
INPUT_SECONDS = 5.0
"""For the request for input, its refusal and the task's next state."""
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


def task_wish(workflow: WorkflowRef, era: Era) -> dict[str, Any]:
    """Parameters that make a call a task; empty where the server decides."""
    calls = era.capabilities.get("tasks")
    for key in ("requests", "tools", "call"):
        calls = calls.get(key) if isinstance(calls, dict) else None
    wished = not era.is_modern and calls is not None and wants_task(workflow)
    return {"task": {"ttl": KEPT_MILLISECONDS}} if wished else {}


def created_task(answer: dict[str, Any]) -> dict[str, Any] | None:
    """The task that a call was answered with, if it was."""
    task = answer if answer.get("resultType") == "task" else answer.get("task")
    if isinstance(task, dict) and isinstance(task.get("taskId"), str) and "content" not in answer:
        return task
    return None


def read_task(task: dict[str, Any]) -> RunSnapshot:
    """Its state, without its result. Raises InvalidAnswer for a state that means nothing to us."""
    state = STATES.get(str(task.get("status")))
    if state is None:
        shown = printable(shorten(str(task.get("status")), 50))
        raise InvalidAnswer(f"The task has the status {shown!r}, which this connector does not know.")
    said = task.get("statusMessage")
    words = shorten_error(printable(said)) if isinstance(said, str) else ""
    created, updated = _time(task.get("createdAt")), _time(task.get("lastUpdatedAt"))
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
    """Asks a server about its tasks."""

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
            return replace(snapshot, error=str(error.get("message") or snapshot.error))
        return snapshot

    async def cancel(self, task_id: str) -> None:
        try:
            await self._ask("tasks/cancel", task_id)
        except Unsupported:
            raise Unsupported("This MCP server cannot cancel a task.") from None
        except Rejected as error:
            # The same code says that there is no such task, and that it has ended.
            if read_task(await self._get(task_id)).state is not RunState.RUNNING:
                raise Rejected("The task has already ended.") from None
            raise error

    async def _get(self, task_id: str) -> dict[str, Any]:
        if not _has_tasks(await self._session.era()):
            raise NotFound("The MCP server keeps no tasks.")
        try:
            return await self._ask("tasks/get", task_id)
        except Unsupported:
            raise NotFound("The MCP server keeps no tasks.") from None
        except Rejected as error:
            if error.details.get("code") == INVALID_PARAMS:
                raise NotFound(error.message, details=error.details) from None
            raise

    async def _ask(self, method: str, task_id: str, *, seconds: float | None = None) -> dict[str, Any]:
        return await self._session.request(method, {"taskId": task_id}, silence=seconds, name=task_id)

    async def _with_result(self, task: dict[str, Any], snapshot: RunSnapshot) -> RunSnapshot:
        """The result stands in the task, or has to be asked for."""
        answer = task.get("result")
        try:
            if not isinstance(answer, dict):
                answer = await self._ask("tasks/result", task["taskId"])
        except (Rejected, Unsupported) as error:
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
        """Of MCP 2025-11-25 the question comes while the result is waited for, and is declined there."""
        if (await self._session.era()).is_modern:
            with contextlib.suppress(ConnectorError):
                await self.cancel(task_id)
            failed = replace(snapshot, state=RunState.FAILED, error=NEEDS_INPUT, progress_message="")
            return replace(failed, depends_on_arguments=False)
        try:
            answer = await self._ask("tasks/result", task_id, seconds=INPUT_SECONDS)
        except (Unreachable, Rejected):
            return replace(snapshot, progress_message=NEEDS_INPUT)
        return read_result(answer)


def _has_tasks(era: Era) -> bool:
    if era.is_modern:
        extensions = era.capabilities.get("extensions")
        return isinstance(extensions, dict) and TASKS_EXTENSION in extensions
    return isinstance(era.capabilities.get("tasks"), dict)


def _time(text: Any) -> datetime | None:
    """A moment in UTC; None for what is none."""
    if not isinstance(text, str):
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
