import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import mcp_types as types
from mcp import MCPError
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import require_client_extension
from mcp.shared import subscriptions

from catalogue.database import run_in_database
from mcp_bridge.declarations import TASKS, Context, elicitation_modes, is_modern
from mcp_bridge.notifications import notifier
from mcp_bridge.resources import RESOURCE_NOT_FOUND
from mcp_bridge.tokens import Access

MOST_TASKS = 100
MOST_RESOURCES = 100  # In one subscription


class TaskNotification(types.Notification[dict[str, Any], Literal["notifications/tasks"]]):
    """`params` is a dictionary: a model would leave out null values."""

    method: Literal["notifications/tasks"] = "notifications/tasks"
    params: dict[str, Any]


@dataclass(frozen=True)
class Subscriptions:
    access_of: Callable[[Context], Access]
    streams: notifier.OpenStreams
    snapshots: notifier.ListSnapshots

    def register(self, server: Server[Any]) -> None:
        server.add_request_handler(
            "subscriptions/listen", types.SubscriptionsListenRequestParams, self.listen
        )

    async def listen(
        self, context: Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        """Ends when either side ends it or nothing more can change."""
        if (subscription_id := context.request_id) is None:
            raise MCPError(types.INVALID_REQUEST, "subscriptions/listen needs a request id.")
        access, requested = self.access_of(context), params.notifications
        tasks = _wanted_tasks(context, requested)
        if len(uris := requested.resource_subscriptions or []) > MOST_RESOURCES:
            raise _too_many("resourceSubscriptions", len(uris), MOST_RESOURCES)
        uris = list(dict.fromkeys(uris))
        try:
            with self.streams.opened(access) as stream:
                interests = await run_in_database(
                    notifier.admit_interests,
                    access,
                    lists=_wanted_lists(requested),
                    addresses=uris,
                    tasks=tasks,
                )
                listener = _Listener(context, subscription_id, _honoured(interests, uris))
                changes = notifier.Notifier(
                    stream=stream,
                    interests=interests,
                    version=context.protocol_version,
                    snapshots=self.snapshots,
                    modes=elicitation_modes(context),
                )
                await changes.run(listener.notify, begin=listener.acknowledge)
        except notifier.TooManyStreams as error:
            raise MCPError(types.INVALID_REQUEST, str(error)) from None
        return types.SubscriptionsListenResult(_meta=listener.tag)


@dataclass(frozen=True)
class _Listener:
    context: Context
    subscription_id: types.RequestId
    honoured: types.SubscriptionFilter

    @property
    def tag(self) -> dict[str, Any]:
        return {subscriptions.SUBSCRIPTION_ID_META_KEY: self.subscription_id}

    async def acknowledge(self) -> None:
        params = types.SubscriptionsAcknowledgedNotificationParams(
            notifications=self.honoured, _meta=self.tag
        )
        await self._send(types.SubscriptionsAcknowledgedNotification(params=params))

    async def notify(self, news: subscriptions.ServerEvent | notifier.TaskChanged) -> None:
        if isinstance(news, notifier.TaskChanged):
            await self._send(TaskNotification(params={**news.task, "_meta": self.tag}))
        else:
            await self._send(subscriptions.event_to_notification(news, self.tag))

    async def _send(self, notification: Any) -> None:
        await self.context.session.send_notification(notification, self.subscription_id)


def _honoured(interests: notifier.Interests, uris: list[str]) -> types.SubscriptionFilter:
    """Without what is not honoured, not even as false."""
    addresses = interests.addresses
    extra: dict[str, Any] = {"taskIds": [str(key) for key in interests.tasks]} if interests.tasks else {}
    return types.SubscriptionFilter(
        tools_list_changed=subscriptions.ToolsListChanged() in interests.events or None,
        prompts_list_changed=subscriptions.PromptsListChanged() in interests.events or None,
        resources_list_changed=subscriptions.ResourcesListChanged() in interests.events or None,
        resource_subscriptions=[uri for uri in uris if uri in addresses] or None,
        **extra,
    )


def _wanted_lists(requested: types.SubscriptionFilter) -> list[subscriptions.ServerEvent]:
    wanted: dict[subscriptions.ServerEvent, bool | None] = {
        subscriptions.ToolsListChanged(): requested.tools_list_changed,
        subscriptions.PromptsListChanged(): requested.prompts_list_changed,
        subscriptions.ResourcesListChanged(): requested.resources_list_changed,
    }
    return [event for event, is_wanted in wanted.items() if is_wanted]


def _wanted_tasks(context: Context, requested: types.SubscriptionFilter) -> list[str]:
    wanted = (requested.model_extra or {}).get("taskIds")
    if wanted is None:
        return []
    require_client_extension(context, TASKS)
    if not isinstance(wanted, list) or not all(isinstance(task_id, str) for task_id in wanted):
        raise MCPError(types.INVALID_PARAMS, "taskIds has to be a list of strings.")
    if len(wanted) > MOST_TASKS:
        raise _too_many("taskIds", len(wanted), MOST_TASKS)
    return wanted


def _too_many(name: str, count: int, most: int) -> MCPError:
    return MCPError(
        types.INVALID_PARAMS, f"{count} {name} are too many: one subscription takes {most}, so open several."
    )


@dataclass(eq=False)
class PushedChanges:
    access_of: Callable[[Context], Access]
    streams: notifier.OpenStreams
    snapshots: notifier.ListSnapshots
    _is_pushing: bool = False
    _subscribed: dict[str, asyncio.Task[None]] = field(default_factory=dict)  # By address

    def register(self, server: Server[None]) -> None:
        server.add_notification_handler(
            "notifications/initialized", types.NotificationParams, self.push_lists
        )
        server.add_request_handler("resources/subscribe", types.SubscribeRequestParams, self.subscribe)
        server.add_request_handler("resources/unsubscribe", types.UnsubscribeRequestParams, self.unsubscribe)

    async def push_lists(self, context: Context, params: types.NotificationParams) -> None:
        """Runs until the end of the connection, which cancels it."""
        if self._is_pushing or is_modern(context):
            return
        self._is_pushing = True
        interests = notifier.Interests(events=notifier.admissible_lists(self.access_of(context)))
        await self._push(context, interests, asyncio.Event())

    async def subscribe(self, context: Context, params: types.SubscribeRequestParams) -> types.EmptyResult:
        """Returns once no later change can be missed."""
        interests = await run_in_database(
            notifier.admit_interests, self.access_of(context), addresses=[params.uri]
        )
        if not interests.addresses:
            raise MCPError(RESOURCE_NOT_FOUND, f"There is no resource {params.uri[:100]!r} to subscribe to.")
        if params.uri not in self._subscribed:
            begun = asyncio.Event()
            pushing = asyncio.create_task(self._push(context, interests, begun))
            self._subscribed[params.uri] = pushing
            pushing.add_done_callback(lambda _: self._forget(params.uri, pushing))
            await begun.wait()
            if pushing.done():
                pushing.result()
        return types.EmptyResult()

    async def unsubscribe(
        self, context: Context, params: types.UnsubscribeRequestParams
    ) -> types.EmptyResult:
        if (pushing := self._subscribed.pop(params.uri, None)) is not None:
            pushing.cancel()
        return types.EmptyResult()

    def _forget(self, uri: str, pushing: asyncio.Task[None]) -> None:
        """Unless there is a new subscription by now."""
        if self._subscribed.get(uri) is pushing:
            del self._subscribed[uri]

    async def _push(self, context: Context, interests: notifier.Interests, begun: asyncio.Event) -> None:
        """Sets `begun` when no later change can be missed, or on failure."""

        async def notify(news: subscriptions.ServerEvent | notifier.TaskChanged) -> None:
            if not isinstance(news, notifier.TaskChanged):
                await context.session.send_notification(subscriptions.event_to_notification(news, {}))

        async def begin() -> None:
            begun.set()

        try:
            with self.streams.opened(self.access_of(context)) as stream:
                changes = notifier.Notifier(
                    stream=stream,
                    interests=interests,
                    version=context.protocol_version,
                    snapshots=self.snapshots,
                    ends_with_toolset=False,
                )
                await changes.run(notify, begin=begin)
        except notifier.TooManyStreams as error:
            raise MCPError(types.INVALID_REQUEST, str(error)) from None
        finally:
            begun.set()
