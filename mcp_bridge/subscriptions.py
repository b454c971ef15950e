"""`subscriptions/listen`: one request is one stream of notifications, open until either side ends it."""

import asyncio
import contextlib
import signal
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Literal

from mcp import MCPError
from mcp.server.mcpserver import require_client_extension
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp_types import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    Notification,
    RequestId,
    SubscriptionFilter,
    SubscriptionsAcknowledgedNotification,
    SubscriptionsAcknowledgedNotificationParams,
    SubscriptionsListenRequestParams,
    SubscriptionsListenResult,
)

from catalogue.database import run_in_database
from catalogue.scopes import Scope
from executions.models import Execution
from executions.reading import UnknownExecution, find_execution
from executions.watching import Watch, watching
from mcp_bridge.access import Access
from mcp_bridge.declarations import TASKS, Context
from mcp_bridge.task_documents import describe_task

MOST_TASKS = 100
"""Of one subscription."""
MOST_SUBSCRIPTIONS = 20
"""Of one caller, in one process."""
SHUTDOWN_LOOK_SECONDS = 0.5


class TaskNotification(Notification[dict[str, Any], Literal["notifications/tasks"]]):
    """A dictionary, because a model would leave out what is null."""

    method: Literal["notifications/tasks"] = "notifications/tasks"
    params: dict[str, Any]


class Subscriptions:
    """The streams that are open in this process."""

    def __init__(self, access_of: Callable[[Context], Access]) -> None:
        self._access_of = access_of
        self._open: Counter[str] = Counter()
        self._streams: set[asyncio.Event] = set()
        self._closing = False
        self._watching_for_shutdown: asyncio.Task[None] | None = None

    async def listen(
        self, context: Context, params: SubscriptionsListenRequestParams
    ) -> SubscriptionsListenResult:
        """Acknowledge what is honoured, tell of it until nothing more can come, then end gracefully."""
        if (subscription_id := context.request_id) is None:
            raise MCPError(INVALID_REQUEST, "subscriptions/listen needs a request id.")
        access, wanted = self._access_of(context), _wanted_tasks(context, params.notifications)
        tagged = {SUBSCRIPTION_ID_META_KEY: subscription_id}
        with self._counted(access):
            honoured = await run_in_database(_visible_tasks, wanted, access)
            with watching(honoured) as watch, self._ended_at_shutdown(watch):
                await _acknowledge(context, subscription_id, honoured)
                while honoured and not self._closing and list(watch.executions):
                    await self._tell_changes(context, watch, access, tagged)
        return SubscriptionsListenResult(_meta=tagged)

    def close(self) -> None:
        """Have every stream end gracefully, now and from now on."""
        self._closing = True
        for stirred in self._streams:
            stirred.set()

    async def _tell_changes(
        self, context: Context, watch: Watch, access: Access, tagged: dict[str, Any]
    ) -> None:
        """Wait for changes, then tell of each; a task that has ended, or is gone, is not watched any more."""
        for key in await watch.changes():
            try:
                execution, task = await run_in_database(_read, key, access, context.protocol_version)
            except UnknownExecution:
                watch.forget(key)
                continue
            if watch.saw(execution):
                notification: Any = TaskNotification(params={**task, "_meta": tagged})
                await context.session.send_notification(notification, context.request_id)
            if execution.is_settled:
                watch.forget(key)

    @contextlib.contextmanager
    def _counted(self, access: Access) -> Iterator[None]:
        """Raises when the caller has as many subscriptions as it may have."""
        key = access.caller.key
        if self._open[key] >= MOST_SUBSCRIPTIONS:
            raise MCPError(
                INVALID_REQUEST,
                f"{MOST_SUBSCRIPTIONS} subscriptions of this token are open already: end one first, or "
                f"listen for several tasks with one, up to {MOST_TASKS}.",
            )
        self._open[key] += 1
        try:
            yield
        finally:
            self._open -= Counter({key: 1})

    @contextlib.contextmanager
    def _ended_at_shutdown(self, watch: Watch) -> Iterator[None]:
        self._streams.add(watch.stirred)
        if self._watching_for_shutdown is None or self._watching_for_shutdown.done():
            self._watching_for_shutdown = asyncio.create_task(self._close_at_shutdown())
        try:
            yield
        finally:
            self._streams.discard(watch.stirred)
            if not self._streams:
                self._watching_for_shutdown.cancel()

    async def _close_at_shutdown(self) -> None:
        """The server waits for open responses before it says by the lifespan that it is shutting down."""
        while not _is_shutting_down():  # noqa: ASYNC110 - a signal handler sets no event of ours
            await asyncio.sleep(SHUTDOWN_LOOK_SECONDS)
        self.close()


def _is_shutting_down() -> bool:
    """Uvicorn's handler of the signal is a method of the server, which notes there that it has to end."""
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return bool(getattr(server, "should_exit", False))


def _wanted_tasks(context: Context, requested: SubscriptionFilter) -> list[str]:
    wanted = (requested.model_extra or {}).get("taskIds")
    if wanted is None:
        return []
    require_client_extension(context, TASKS)
    if not isinstance(wanted, list) or not all(isinstance(task_id, str) for task_id in wanted):
        raise MCPError(INVALID_PARAMS, "taskIds has to be a list of strings.")
    if len(wanted) > MOST_TASKS:
        raise MCPError(
            INVALID_PARAMS,
            f"{len(wanted)} taskIds are too many: one subscription takes {MOST_TASKS}, so open several.",
        )
    return wanted


def _visible_tasks(wanted: list[str], access: Access) -> list[uuid.UUID]:
    """Those that exist and that the caller may see, as they were asked for; the others are not told apart."""
    if not wanted or not (access.allows(Scope.READ) or access.allows(Scope.RUN)):
        return []
    keys = [key for text in dict.fromkeys(wanted) if (key := _parse(text)) is not None]
    visible = set(
        Execution.objects.visible_to(access.caller).filter(pk__in=keys).values_list("pk", flat=True)
    )
    return [key for key in keys if key in visible]


def _parse(task_id: str) -> uuid.UUID | None:
    """Only as we write it: the id is compared by the client too."""
    with contextlib.suppress(ValueError):
        key = uuid.UUID(task_id)
        return key if str(key) == task_id else None
    return None


def _read(key: uuid.UUID, access: Access, protocol_version: str) -> tuple[Execution, dict[str, Any]]:
    """Raises UnknownExecution; also for a token that has been revoked or has expired since it began."""
    if not access.is_still_granted():
        raise UnknownExecution(str(key))
    execution = find_execution(str(key), caller=access.caller)
    return execution, describe_task(execution, protocol_version=protocol_version)


async def _acknowledge(context: Context, subscription_id: RequestId, honoured: list[uuid.UUID]) -> None:
    told: dict[str, Any] = {"taskIds": [str(key) for key in honoured]} if honoured else {}
    params = SubscriptionsAcknowledgedNotificationParams(
        notifications=SubscriptionFilter(**told), _meta={SUBSCRIPTION_ID_META_KEY: subscription_id}
    )
    await context.session.send_notification(
        SubscriptionsAcknowledgedNotification(params=params), subscription_id
    )
