"""What handshake clients on a channel of their own (stdio) are told without asking for a stream.

They hear of changed lists from the moment they are initialized, and of the resources that they subscribe to.
"""

import asyncio
from collections.abc import Callable

from mcp import MCPError
from mcp.server.lowlevel import Server
from mcp.shared.subscriptions import ServerEvent, event_to_notification
from mcp_types import (
    INVALID_REQUEST,
    EmptyResult,
    NotificationParams,
    SubscribeRequestParams,
    UnsubscribeRequestParams,
)

from catalogue.database import run_in_database
from mcp_bridge.access import Access
from mcp_bridge.declarations import Context, is_modern
from mcp_bridge.notifications.interests import Interests, admissible_lists, admit_interests
from mcp_bridge.notifications.sights import Sights
from mcp_bridge.notifications.streams import OpenStreams, TooManyStreams
from mcp_bridge.notifications.telling import TaskChanged, Telling
from mcp_bridge.resources.methods import RESOURCE_NOT_FOUND


class PushedChanges:
    """The handlers, for the one client of a server on standard input and output."""

    def __init__(self, access_of: Callable[[Context], Access], streams: OpenStreams, sights: Sights) -> None:
        self._access_of = access_of
        self._streams = streams
        self._sights = sights
        self._is_pushing = False
        self._subscribed: dict[str, asyncio.Task[None]] = {}
        """By address; each is a stream of its own."""

    def register(self, server: Server[None]) -> None:
        server.add_notification_handler("notifications/initialized", NotificationParams, self.push_lists)
        server.add_request_handler("resources/subscribe", SubscribeRequestParams, self.subscribe)
        server.add_request_handler("resources/unsubscribe", UnsubscribeRequestParams, self.unsubscribe)

    async def push_lists(self, context: Context, params: NotificationParams) -> None:
        """As long as the connection lasts, whose end cancels it."""
        if self._is_pushing or is_modern(context):
            return
        self._is_pushing = True
        interests = Interests(events=admissible_lists(self._access_of(context)))
        await self._push(context, interests, asyncio.Event())

    async def subscribe(self, context: Context, params: SubscribeRequestParams) -> EmptyResult:
        """Answered when no change can be missed any more."""
        interests = await run_in_database(admit_interests, self._access_of(context), addresses=[params.uri])
        if not interests.addresses:
            raise MCPError(RESOURCE_NOT_FOUND, f"There is no resource {params.uri[:100]!r} to subscribe to.")
        if params.uri not in self._subscribed:
            begun = asyncio.Event()
            telling = asyncio.create_task(self._push(context, interests, begun))
            self._subscribed[params.uri] = telling
            telling.add_done_callback(lambda _: self._forget(params.uri, telling))
            await begun.wait()
            if telling.done():
                telling.result()
        return EmptyResult()

    async def unsubscribe(self, context: Context, params: UnsubscribeRequestParams) -> EmptyResult:
        if (telling := self._subscribed.pop(params.uri, None)) is not None:
            telling.cancel()
        return EmptyResult()

    def _forget(self, uri: str, telling: asyncio.Task[None]) -> None:
        """Unless it has been subscribed to anew since."""
        if self._subscribed.get(uri) is telling:
            del self._subscribed[uri]

    async def _push(self, context: Context, interests: Interests, begun: asyncio.Event) -> None:
        """Until nothing more can come. `begun` is set when nothing can be missed, or it has failed."""

        async def tell(news: ServerEvent | TaskChanged) -> None:
            if not isinstance(news, TaskChanged):
                await context.session.send_notification(event_to_notification(news, {}))

        async def begin() -> None:
            begun.set()

        try:
            with self._streams.opened(self._access_of(context)) as stream:
                telling = Telling(
                    stream=stream,
                    interests=interests,
                    version=context.protocol_version,
                    sights=self._sights,
                    ends_with_toolset=False,
                )
                await telling.go_on(tell, begin=begin)
        except TooManyStreams as error:
            raise MCPError(INVALID_REQUEST, str(error)) from None
        finally:
            begun.set()
