"""The tasks extension as a client speaks it through the official package, which has only the seams for it."""

import asyncio
from collections.abc import Sequence
from typing import Any, Literal

from mcp.client.extension import ClaimContext, ClientExtension, NotificationBinding, ResultClaim
from mcp.client.session import ClientSession
from mcp_types import (
    CallToolResult,
    Request,
    RequestParams,
    Result,
    SubscriptionFilter,
    SubscriptionsListenRequest,
    SubscriptionsListenRequestParams,
)
from pydantic import BaseModel, ConfigDict, TypeAdapter

TASKS = "io.modelcontextprotocol/tasks"
ENDED = ("completed", "failed", "cancelled")
AnyResult = TypeAdapter(dict[str, Any])


class CreatedTask(Result):
    model_config = ConfigDict(extra="allow")
    result_type: Literal["task"] = "task"
    task_id: str


class HeardTask(BaseModel):
    model_config = ConfigDict(extra="allow")


class TaskParams(RequestParams):
    task_id: str
    input_responses: dict[str, Any] | None = None


class TaskRequest(Request[TaskParams, str]):
    name_param = "taskId"


class TasksExtension(ClientExtension):
    """Declares the extension; a task that a call gives is followed to its end, as the extension asks."""

    identifier = TASKS

    def __init__(self) -> None:
        self.created: list[CreatedTask] = []
        self.heard: list[dict[str, Any]] = []
        self.heard_of: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def claims(self) -> Sequence[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=CreatedTask, resolve=self._resolve)]

    def notifications(self) -> Sequence[NotificationBinding[Any]]:
        return [NotificationBinding(method="notifications/tasks", params_type=HeardTask, handler=self._hear)]

    async def _hear(self, task: HeardTask) -> None:
        document = task.model_dump()
        self.heard.append(document)
        self.heard_of.put_nowait(document)

    async def _resolve(self, created: CreatedTask, context: ClaimContext) -> CallToolResult:
        self.created.append(created)
        session = context.session
        while (task := await ask(session, "tasks/get", created.task_id))["status"] not in ENDED:  # noqa: ASYNC110
            await asyncio.sleep(task["pollIntervalMs"] / 1000)  # As the extension asks of clients.
        return CallToolResult.model_validate(task["result"], by_name=False)


async def ask(session: ClientSession, method: str, task_id: str, **params: Any) -> dict[str, Any]:
    """One of the extension's requests, answered by its whole result."""
    request = TaskRequest(method=method, params=TaskParams(task_id=task_id, **params))
    return await session.send_request(request, AnyResult)


async def start_task(
    session: ClientSession, tool: str, arguments: dict[str, Any], **options: Any
) -> CreatedTask:
    """A call that has to give a task."""
    created = await session.call_tool(tool, arguments, allow_claimed=True, **options)
    assert isinstance(created, CreatedTask), created
    return created


async def listen(session: ClientSession, *task_ids: str) -> dict[str, Any]:
    """The result with which the server ends the subscription."""
    wanted = SubscriptionFilter.model_validate({"taskIds": list(task_ids)})
    request = SubscriptionsListenRequest(params=SubscriptionsListenRequestParams(notifications=wanted))
    return await session.send_request(request, AnyResult)
