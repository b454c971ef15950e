"""`subscriptions/listen`: one request is one stream of notifications, open until either side ends it."""

from collections.abc import Callable
from typing import Any, Literal

from mcp import MCPError
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import require_client_extension
from mcp.shared.subscriptions import (
    SUBSCRIPTION_ID_META_KEY,
    PromptsListChanged,
    ResourcesListChanged,
    ServerEvent,
    ToolsListChanged,
    event_to_notification,
)
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
from mcp_bridge.access import Access
from mcp_bridge.declarations import TASKS, Context
from mcp_bridge.notifications.interests import Interests, admit_interests
from mcp_bridge.notifications.sights import Sights
from mcp_bridge.notifications.streams import OpenStreams, TooManyStreams
from mcp_bridge.notifications.telling import TaskChanged, Telling

MOST_TASKS = 100
MOST_RESOURCES = 100
"""Of one subscription."""


class TaskNotification(Notification[dict[str, Any], Literal["notifications/tasks"]]):
    """A dictionary, because a model would leave out what is null."""

    method: Literal["notifications/tasks"] = "notifications/tasks"
    params: dict[str, Any]


class Subscriptions:
    """The handler, for callers that the transport has let in."""

    def __init__(self, access_of: Callable[[Context], Access], streams: OpenStreams, sights: Sights) -> None:
        self._access_of = access_of
        self._streams = streams
        self._sights = sights

    def register(self, server: Server[Any]) -> None:
        server.add_request_handler("subscriptions/listen", SubscriptionsListenRequestParams, self.listen)

    async def listen(
        self, context: Context, params: SubscriptionsListenRequestParams
    ) -> SubscriptionsListenResult:
        """Acknowledge what is honoured, tell of it until nothing more can come, then end gracefully."""
        if (subscription_id := context.request_id) is None:
            raise MCPError(INVALID_REQUEST, "subscriptions/listen needs a request id.")
        access, requested = self._access_of(context), params.notifications
        tasks, uris = _wanted_tasks(context, requested), _wanted_resources(requested)
        try:
            with self._streams.opened(access) as stream:
                interests = await run_in_database(
                    admit_interests, access, lists=_wanted_lists(requested), addresses=uris, tasks=tasks
                )
                listener = _Listener(context, subscription_id, _honoured(interests, uris))
                telling = Telling(
                    stream=stream, interests=interests, version=context.protocol_version, sights=self._sights
                )
                await telling.go_on(listener.tell, begin=listener.acknowledge)
        except TooManyStreams as error:
            raise MCPError(INVALID_REQUEST, str(error)) from None
        return SubscriptionsListenResult(_meta=listener.tag)


class _Listener:
    """The client's side of one subscription."""

    def __init__(self, context: Context, subscription_id: RequestId, honoured: SubscriptionFilter) -> None:
        self._context = context
        self._id = subscription_id
        self._honoured = honoured

    @property
    def tag(self) -> dict[str, Any]:
        """What each message carries."""
        return {SUBSCRIPTION_ID_META_KEY: self._id}

    async def acknowledge(self) -> None:
        params = SubscriptionsAcknowledgedNotificationParams(notifications=self._honoured, _meta=self.tag)
        await self._send(SubscriptionsAcknowledgedNotification(params=params))

    async def tell(self, news: ServerEvent | TaskChanged) -> None:
        if isinstance(news, TaskChanged):
            await self._send(TaskNotification(params={**news.task, "_meta": self.tag}))
        else:
            await self._send(event_to_notification(news, self.tag))

    async def _send(self, notification: Any) -> None:
        await self._context.session.send_notification(notification, self._id)


def _honoured(interests: Interests, uris: list[str]) -> SubscriptionFilter:
    """What the acknowledgement names; nothing that is not honoured is in it, not even as false."""
    addresses = interests.addresses
    extra: dict[str, Any] = {"taskIds": [str(key) for key in interests.tasks]} if interests.tasks else {}
    return SubscriptionFilter(
        tools_list_changed=ToolsListChanged() in interests.events or None,
        prompts_list_changed=PromptsListChanged() in interests.events or None,
        resources_list_changed=ResourcesListChanged() in interests.events or None,
        resource_subscriptions=[uri for uri in uris if uri in addresses] or None,
        **extra,
    )


def _wanted_lists(requested: SubscriptionFilter) -> list[ServerEvent]:
    wanted: dict[ServerEvent, bool | None] = {
        ToolsListChanged(): requested.tools_list_changed,
        PromptsListChanged(): requested.prompts_list_changed,
        ResourcesListChanged(): requested.resources_list_changed,
    }
    return [event for event, is_wanted in wanted.items() if is_wanted]


def _wanted_resources(requested: SubscriptionFilter) -> list[str]:
    uris = requested.resource_subscriptions or []
    if len(uris) > MOST_RESOURCES:
        raise _too_many("resourceSubscriptions", len(uris), MOST_RESOURCES)
    return list(dict.fromkeys(uris))


def _wanted_tasks(context: Context, requested: SubscriptionFilter) -> list[str]:
    wanted = (requested.model_extra or {}).get("taskIds")
    if wanted is None:
        return []
    require_client_extension(context, TASKS)
    if not isinstance(wanted, list) or not all(isinstance(task_id, str) for task_id in wanted):
        raise MCPError(INVALID_PARAMS, "taskIds has to be a list of strings.")
    if len(wanted) > MOST_TASKS:
        raise _too_many("taskIds", len(wanted), MOST_TASKS)
    return wanted


def _too_many(name: str, count: int, most: int) -> MCPError:
    return MCPError(
        INVALID_PARAMS, f"{count} {name} are too many: one subscription takes {most}, so open several."
    )
