"""Finds the changes that one listener is notified of; independent of the transport."""

import asyncio
import contextlib
import signal
import uuid
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import mcp_types as types
from django.db import DatabaseError, InterfaceError
from mcp import MCPError
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import require_client_extension
from mcp.shared import subscriptions

from access.callers import Scope
from catalogue import exposure
from catalogue.database import DatabaseOutage, run_in_database
from executions.change_feed import Watch, watching
from executions.models import Execution
from executions.reading import UnknownExecution, find_execution
from identity.bearers import still_usable, withdrawn
from identity.tokens import Access
from mcp_bridge import resources
from mcp_bridge.prompts import list_prompts, offered_prompts
from mcp_bridge.request_meta import TASKS, Context, elicitation_modes, is_modern, shows_cards
from mcp_bridge.resources import RESOURCE_NOT_FOUND
from mcp_bridge.tasks import describe_task_to
from mcp_bridge.tool_lists import ToolLists, View
from telemetry.traces import create_detached_task

SCOPES: Mapping[subscriptions.ServerEvent, tuple[Scope, ...]] = {
    subscriptions.ToolsListChanged(): (Scope.READ, Scope.RUN),
    subscriptions.PromptsListChanged(): (Scope.RUN,),
    subscriptions.ResourcesListChanged(): (Scope.READ, Scope.RUN),
}
"""Any of them suffices; without them the list is always empty."""
LISTS: Mapping[str, subscriptions.ServerEvent] = {  # By the field of a subscription
    "tools_list_changed": subscriptions.ToolsListChanged(),
    "prompts_list_changed": subscriptions.PromptsListChanged(),
    "resources_list_changed": subscriptions.ResourcesListChanged(),
}
Seen = tuple[View, subscriptions.ServerEvent]
Addresses = Mapping[uuid.UUID, Collection[str]]  # As the listener wrote them, by execution
SETTLING_SECONDS = exposure.MAX_AGE_SECONDS + 0.1  # After this, every process serves the new lists
MAX_STREAMS = 20  # Per caller and process
LOOK_SECONDS = 0.5  # Interval between checks whether the process or a token has ended: one query for all
MAX_TASKS = 100
MAX_RESOURCES = 100  # In one subscription


@dataclass(frozen=True, kw_only=True, slots=True)
class Interests:
    events: tuple[subscriptions.ServerEvent, ...] = ()
    states: Addresses = field(default_factory=dict)  # Resources with an execution's state
    results: Addresses = field(default_factory=dict)  # Resources that exist once it has ended
    tasks: tuple[uuid.UUID, ...] = ()

    @property
    def executions(self) -> tuple[uuid.UUID, ...]:
        return tuple(dict.fromkeys((*self.tasks, *self.states, *self.results)))

    @property
    def addresses(self) -> set[str]:
        of_catalogue = {
            event.uri for event in self.events if isinstance(event, subscriptions.ResourceUpdated)
        }
        return of_catalogue.union(*self.states.values(), *self.results.values())


def admissible_lists(access: Access) -> tuple[subscriptions.ServerEvent, ...]:
    return tuple(event for event, scopes in SCOPES.items() if any(map(access.allows, scopes)))


def admit_interests(
    access: Access,
    *,
    lists: Collection[subscriptions.ServerEvent] = (),
    addresses: Iterable[str] = (),
    tasks: Iterable[str] = (),
) -> Interests:
    """Returns what exists and is visible to the caller."""
    of_catalogue: list[str] = []
    states: defaultdict[uuid.UUID, list[str]] = defaultdict(list)
    results: defaultdict[uuid.UUID, list[str]] = defaultdict(list)
    for uri in addresses:
        with contextlib.suppress(resources.UnknownResource):
            kind, variables = resources.find_kind(uri)
            if not kind.is_open_to(access.scopes):
                continue
            if kind not in resources.EXECUTION_RESOURCES:
                kind.read(resources.Reading(access, uri, variables))
                of_catalogue.append(uri)
            elif (key := resources.execution_key(variables["id"].lower())) is not None:
                (states if kind == resources.EXECUTION_RESOURCES[0] else results)[key].append(uri)
    keys = [key for text in dict.fromkeys(tasks) if (key := resources.execution_key(text)) is not None]
    visible: set[uuid.UUID] = set()
    if (wanted := {*states, *results, *keys}) and (access.allows(Scope.READ) or access.allows(Scope.RUN)):
        rows = Execution.objects.visible_to(access.caller).filter(pk__in=wanted)
        visible = set(rows.values_list("pk", flat=True))
    return Interests(
        events=(
            *(event for event in admissible_lists(access) if event in lists),
            *(subscriptions.ResourceUpdated(uri) for uri in of_catalogue),
        ),
        states={key: found for key, found in states.items() if key in visible},
        results={key: found for key, found in results.items() if key in visible},
        tasks=tuple(key for key in keys if key in visible),
    )


@dataclass(frozen=True, slots=True)
class ListSnapshot:
    catalogue: exposure.ExposedCatalogue
    seen: Mapping[subscriptions.ServerEvent, Any]  # By event: a value that changes with what is served


class ListSnapshots:
    """Shared by the listeners of one server; each view is read once per revision."""

    def __init__(self, tool_lists: ToolLists) -> None:
        self._tool_lists = tool_lists
        self._remembered: tuple[exposure.ExposedCatalogue | None, dict[Seen, Any]] = (None, {})
        self._turn = asyncio.Lock()

    async def look(
        self, access: Access, version: str, events: Collection[subscriptions.ServerEvent], shows_cards: bool
    ) -> ListSnapshot:
        """Reads the present revision, which this process serves from now on."""
        # All listeners arrive at the same moment, most of them for the same view.
        async with self._turn:
            return await run_in_database(self._look, access, version, events, shows_cards)

    def _look(
        self, access: Access, version: str, events: Collection[subscriptions.ServerEvent], shows_cards: bool
    ) -> ListSnapshot:
        catalogue = exposure.current_catalogue()
        if self._remembered[0] is not catalogue:
            self._remembered = (catalogue, {})
        view = View.of(access, version, catalogue, shows_cards=shows_cards)
        known = self._remembered[1]
        for event in events:
            if (view, event) not in known:
                known[view, event] = self._see(event, access, view, catalogue)
        return ListSnapshot(catalogue, {event: known[view, event] for event in events})

    def _see(
        self,
        event: subscriptions.ServerEvent,
        access: Access,
        view: View,
        catalogue: exposure.ExposedCatalogue,
    ) -> Any:
        match event:
            case subscriptions.ToolsListChanged():
                return self._tool_lists.current(view).what_shows()
            case subscriptions.PromptsListChanged():
                offered = offered_prompts(catalogue, access.bounds, scopes=access.scopes)
                return list_prompts(offered.values())
            case subscriptions.ResourcesListChanged():
                return resources.what_shows(
                    catalogue, access.bounds, scopes=access.scopes, has_cards=view.shows_cards
                )
            case subscriptions.ResourceUpdated(uri=uri):
                # Of the catalogue: the same for all callers with this view.
                with contextlib.suppress(resources.UnknownResource):
                    kind, variables = resources.find_kind(uri)
                    return kind.read(resources.Reading(access, uri, variables)).contents
                return None


class TooManyStreams(Exception):
    def __init__(self) -> None:
        super().__init__(
            f"This token already has {MAX_STREAMS} open notification streams. Close one first. "
            "One subscription can listen for everything at once."
        )


@dataclass(slots=True, eq=False)
class Stream:
    access: Access
    change_event: asyncio.Event = field(default_factory=asyncio.Event)  # There may be news, or it must end
    is_over: bool = False  # The process ends, or the token is revoked or expired

    def end(self) -> None:
        self.is_over = True
        self.change_event.set()


class OpenStreams:
    """Holds the streams of one server. Does not poll while there are none."""

    def __init__(self) -> None:
        self._streams: set[Stream] = set()
        self._of_callers: Counter[str] = Counter()
        self._closing = False
        self._looking: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None  # Asks other servers; nothing here waits for it

    @contextlib.contextmanager
    def opened(self, access: Access) -> Iterator[Stream]:
        """Raises TooManyStreams."""
        if self._of_callers[access.caller.key] >= MAX_STREAMS:
            raise TooManyStreams
        stream = Stream(access, is_over=self._closing)
        self._streams.add(stream)
        self._of_callers[access.caller.key] += 1
        if self._looking is None or self._looking.done():
            self._looking = create_detached_task(self._check_tokens())
        try:
            yield stream
        finally:
            self._streams.discard(stream)
            self._of_callers -= Counter({access.caller.key: 1})
            if not self._streams:
                self._looking.cancel()
                self._looking = None
                if self._asking is not None:
                    self._asking.cancel()
                    self._asking = None

    def close(self) -> None:
        """Ends present and future streams gracefully."""
        self._closing = True
        for stream in self._streams:
            stream.end()

    async def _check_tokens(self) -> None:
        outage = DatabaseOutage("Checking the tokens of open streams")
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            # Uvicorn waits for open responses before the lifespan's shutdown. Its signal handler is a method
            # of the server, which has the flag.
            server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
            if getattr(server, "should_exit", False):
                self.close()
                return
            await self._end_those_without_grant(outage)

    async def _end_those_without_grant(self, outage: DatabaseOutage) -> None:
        accesses = {stream.access for stream in self._streams}
        if not accesses:
            return
        try:
            usable = await run_in_database(still_usable, accesses)
        except (DatabaseError, InterfaceError) as error:
            outage.note(error)
            return
        outage.end()
        self._end(accesses - usable)

        async def end_withdrawn() -> None:
            self._end(await withdrawn(usable))

        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(end_withdrawn())

    def _end(self, accesses: set[Access]) -> None:
        for stream in self._streams:
            if stream.access in accesses:
                stream.end()


@dataclass(frozen=True, slots=True)
class TaskChanged:
    task: dict[str, Any]


Send = Callable[[subscriptions.ServerEvent | TaskChanged], Awaitable[None]]


@dataclass(kw_only=True, eq=False)
class Notifier:
    stream: Stream
    interests: Interests
    version: str
    shows_cards: bool
    snapshots: ListSnapshots
    modes: frozenset[str] = frozenset()  # See `elicitation_modes`
    ends_with_toolset: bool = True  # Whether the listener can reconnect when its toolset is back
    _settled: dict[subscriptions.ServerEvent, None] = field(default_factory=dict)  # To send now, in order
    _toolset_is_gone: bool = False

    async def run(self, send: Send, *, begin: Callable[[], Awaitable[None]]) -> None:
        """Sends changes until none can follow. Calls `begin` once no later change can be missed."""
        with self._watching() as (revisions, watch):
            snapshot = await self._look()
            await begin()
            # Lists can always change, ended executions cannot.
            while not (self.stream.is_over or self._toolset_is_gone) and (
                self.interests.events or list(watch.executions)
            ):
                changed = await watch.changes()
                if revisions.moved:
                    revisions.moved = False
                    snapshot = await self._compare(snapshot)
                if not self.stream.is_over:
                    await self._send_executions(changed, watch, send)
                    settled, self._settled = self._settled, {}
                    for event in settled:
                        await send(event)

    @contextlib.contextmanager
    def _watching(self) -> Iterator[tuple[exposure.RevisionWatch, Watch]]:
        """Watches executions only if there are some: the watch polls."""
        change_event, executions = self.stream.change_event, self.interests.executions
        idle = contextlib.nullcontext(Watch((), change_event=change_event))
        with (
            exposure.watching_revisions(change_event) as revisions,
            watching(executions, change_event=change_event) if executions else idle as watch,
        ):
            yield revisions, watch

    async def _look(self) -> ListSnapshot:
        return await self.snapshots.look(
            self.stream.access, self.version, self.interests.events, self.shows_cards
        )

    async def _compare(self, before: ListSnapshot) -> ListSnapshot:
        """Returns the present snapshot; differences are sent once every process serves it."""
        now = await self._look()
        changed = [event for event, what in now.seen.items() if what != before.seen[event]]
        has_gone = self._has_toolset(before.catalogue) and not self._has_toolset(now.catalogue)
        if changed or has_gone:
            asyncio.get_running_loop().call_later(SETTLING_SECONDS, self._settle, changed, has_gone)
        return now

    def _settle(self, changed: list[subscriptions.ServerEvent], has_gone: bool) -> None:
        self._settled |= dict.fromkeys(changed)
        self._toolset_is_gone |= has_gone
        self.stream.change_event.set()

    def _has_toolset(self, catalogue: exposure.ExposedCatalogue) -> bool:
        bounds = self.stream.access.bounds
        is_shown = bounds.toolset is None or catalogue.toolset_within(bounds) is not None
        return is_shown or not self.ends_with_toolset

    async def _send_executions(self, changed: list[uuid.UUID], watch: Watch, send: Send) -> None:
        """Stops watching those that have ended or were removed."""
        for key in changed:
            try:
                execution, task = await run_in_database(self._read, key)
            except UnknownExecution:
                watch.forget(key)
                continue
            if watch.saw(execution):
                if task is not None:
                    await send(TaskChanged(task))
                results = self.interests.results.get(key, ()) if execution.is_settled else ()
                for uri in (*self.interests.states.get(key, ()), *results):
                    await send(subscriptions.ResourceUpdated(uri))
            if execution.is_settled:
                watch.forget(key)

    def _read(self, key: uuid.UUID) -> tuple[Execution, dict[str, Any] | None]:
        """Raises UnknownExecution, also if the token is no longer usable."""
        access = self.stream.access
        if not still_usable({access}):
            raise UnknownExecution(str(key))
        execution = find_execution(str(key), caller=access.caller)
        if key not in self.interests.tasks:
            return execution, None
        return execution, describe_task_to(access, execution, self.version, self.modes)


class TaskNotification(types.Notification[dict[str, Any], Literal["notifications/tasks"]]):
    """`params` is a dictionary: a model would leave out null values."""

    method: Literal["notifications/tasks"] = "notifications/tasks"
    params: dict[str, Any]


@dataclass(frozen=True)
class Subscriptions:
    access_of: Callable[[Context], Access]
    streams: OpenStreams
    snapshots: ListSnapshots

    def register(self, server: Server[Any]) -> None:
        server.add_request_handler(
            "subscriptions/listen", types.SubscriptionsListenRequestParams, self.listen
        )

    async def listen(
        self, context: Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        """Ends when either side ends it or nothing more can change."""
        if (subscription_id := context.request_id) is None:
            raise MCPError(types.INVALID_REQUEST, "subscriptions/listen requires a request id.")
        access, requested = self.access_of(context), params.notifications
        tasks = _wanted_tasks(context, requested)
        if len(uris := requested.resource_subscriptions or []) > MAX_RESOURCES:
            raise _too_many("resourceSubscriptions", len(uris), MAX_RESOURCES)
        uris = list(dict.fromkeys(uris))
        try:
            with self.streams.opened(access) as stream:
                interests = await run_in_database(
                    admit_interests,
                    access,
                    lists=[event for name, event in LISTS.items() if getattr(requested, name)],
                    addresses=uris,
                    tasks=tasks,
                )
                # What is not honoured is left out instead of being false.
                honoured: dict[str, Any] = {
                    name: True for name, event in LISTS.items() if event in interests.events
                }
                if interests.tasks:
                    honoured["taskIds"] = [str(key) for key in interests.tasks]
                admitted = interests.addresses
                subscribed = [uri for uri in uris if uri in admitted]
                shown = types.SubscriptionFilter(resource_subscriptions=subscribed or None, **honoured)
                listener = _Listener(context, subscription_id, shown)
                changes = Notifier(
                    stream=stream,
                    interests=interests,
                    version=context.protocol_version,
                    shows_cards=shows_cards(context),
                    snapshots=self.snapshots,
                    modes=elicitation_modes(context),
                )
                await changes.run(listener.notify, begin=listener.acknowledge)
        except TooManyStreams as error:
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

    async def notify(self, news: subscriptions.ServerEvent | TaskChanged) -> None:
        if isinstance(news, TaskChanged):
            await self._send(TaskNotification(params={**news.task, "_meta": self.tag}))
        else:
            await self._send(subscriptions.event_to_notification(news, self.tag))

    async def _send(self, notification: Any) -> None:
        await self.context.session.send_notification(notification, self.subscription_id)


def _wanted_tasks(context: Context, requested: types.SubscriptionFilter) -> list[str]:
    wanted = (requested.model_extra or {}).get("taskIds")
    if wanted is None:
        return []
    require_client_extension(context, TASKS)
    if not isinstance(wanted, list) or not all(isinstance(task_id, str) for task_id in wanted):
        raise MCPError(types.INVALID_PARAMS, "taskIds must be a list of strings.")
    if len(wanted) > MAX_TASKS:
        raise _too_many("taskIds", len(wanted), MAX_TASKS)
    return wanted


def _too_many(name: str, count: int, most: int) -> MCPError:
    return MCPError(
        types.INVALID_PARAMS,
        f"{count} {name} are too many: one subscription can have {most}. Open several subscriptions.",
    )


@dataclass(eq=False)
class PushedChanges:
    access_of: Callable[[Context], Access]
    streams: OpenStreams
    snapshots: ListSnapshots
    _is_pushing: bool = False
    _subscribed: dict[str, asyncio.Task[None]] = field(default_factory=dict)  # By address

    def register(self, server: Server[None]) -> None:
        server.add_notification_handler(
            "notifications/initialized", types.NotificationParams, self.push_lists
        )
        server.add_request_handler("resources/subscribe", types.SubscribeRequestParams, self.subscribe)
        server.add_request_handler("resources/unsubscribe", types.UnsubscribeRequestParams, self.unsubscribe)

    async def push_lists(self, context: Context, params: types.NotificationParams) -> None:
        """Runs until the connection ends, which cancels it."""
        if self._is_pushing or is_modern(context):
            return
        self._is_pushing = True
        interests = Interests(events=admissible_lists(self.access_of(context)))
        await self._push(context, interests, asyncio.Event())

    async def subscribe(self, context: Context, params: types.SubscribeRequestParams) -> types.EmptyResult:
        """Returns once no later change can be missed."""
        interests = await run_in_database(admit_interests, self.access_of(context), addresses=[params.uri])
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
        """Unless a new subscription has replaced it."""
        if self._subscribed.get(uri) is pushing:
            del self._subscribed[uri]

    async def _push(self, context: Context, interests: Interests, begun: asyncio.Event) -> None:
        """Sets `begun` when no later change can be missed, or on failure."""

        async def notify(news: subscriptions.ServerEvent | TaskChanged) -> None:
            if not isinstance(news, TaskChanged):
                await context.session.send_notification(subscriptions.event_to_notification(news, {}))

        async def begin() -> None:
            begun.set()

        try:
            with self.streams.opened(self.access_of(context)) as stream:
                changes = Notifier(
                    stream=stream,
                    interests=interests,
                    version=context.protocol_version,
                    shows_cards=shows_cards(context),
                    snapshots=self.snapshots,
                    ends_with_toolset=False,
                )
                await changes.run(notify, begin=begin)
        except TooManyStreams as error:
            raise MCPError(types.INVALID_REQUEST, str(error)) from None
        finally:
            begun.set()
