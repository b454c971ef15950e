"""Notifies one listener of changes, whatever carries the notifications."""

import asyncio
import contextlib
import itertools
import signal
import uuid
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from django.db import DatabaseError, InterfaceError
from loguru import logger
from mcp.shared.subscriptions import (
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
)

from catalogue import exposure
from catalogue.database import run_in_database
from catalogue.scopes import Scope
from executions.change_feed import Watch, watching
from executions.models import Execution
from executions.reading import UnknownExecution, find_execution
from mcp_bridge.prompts import offered_workflows, workflow_prompt
from mcp_bridge.resources import (
    EXECUTION_RESOURCES,
    Reading,
    ResourceKind,
    UnknownResource,
    find_kind,
    listed_resources,
)
from mcp_bridge.tasks import describe_task
from mcp_bridge.tokens import Access, granted_tokens
from mcp_bridge.tool_lists import STALE_SECONDS, ToolLists, View

SCOPES: Mapping[ServerEvent, tuple[Scope, ...]] = {
    ToolsListChanged(): (Scope.READ, Scope.RUN),
    PromptsListChanged(): (Scope.RUN,),
    ResourcesListChanged(): (Scope.READ,),
}
"""Of which any lets a caller hear of it: without them its list is always empty."""
STATE, *RESULTS = EXECUTION_RESOURCES

Addresses = Mapping[uuid.UUID, Collection[str]]
"""As the listener wrote them, by the execution that they are about."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Interests:
    events: tuple[ServerEvent, ...] = ()
    """Those that come of changes of the catalogue."""
    states: Addresses = field(default_factory=dict)
    """Resources that show how an execution is."""
    results: Addresses = field(default_factory=dict)
    """Resources that are there once it has ended."""
    tasks: tuple[uuid.UUID, ...] = ()

    @property
    def executions(self) -> tuple[uuid.UUID, ...]:
        return tuple(dict.fromkeys((*self.tasks, *self.states, *self.results)))

    @property
    def addresses(self) -> set[str]:
        of_executions = (*self.states.values(), *self.results.values())
        return {event.uri for event in self.events if isinstance(event, ResourceUpdated)}.union(
            *of_executions
        )

    def events_of(self, execution: Execution) -> Iterable[ResourceUpdated]:
        results = self.results.get(execution.pk, ()) if execution.is_settled else ()
        return map(ResourceUpdated, (*self.states.get(execution.pk, ()), *results))


def admissible_lists(access: Access) -> tuple[ServerEvent, ...]:
    """The events of the lists that the caller may hear of."""
    return tuple(event for event, scopes in SCOPES.items() if any(map(access.allows, scopes)))


def admit_interests(
    access: Access,
    *,
    lists: Collection[ServerEvent] = (),
    addresses: Iterable[str] = (),
    tasks: Iterable[str] = (),
) -> Interests:
    """What of it there is and the caller may see; what is foreign and what is unknown are left out alike."""
    resources = list(_find_resources(access, addresses))
    states, results = _addresses_of([STATE], resources), _addresses_of(RESULTS, resources)
    keys = [key for text in dict.fromkeys(tasks) if (key := _execution_key(text)) is not None]
    visible = _visible_executions(access, {*states, *results, *keys})
    return Interests(
        events=(
            *(event for event in admissible_lists(access) if event in lists),
            *(ResourceUpdated(uri) for uri in _readable_of_catalogue(resources)),
        ),
        states={key: found for key, found in states.items() if key in visible},
        results={key: found for key, found in results.items() if key in visible},
        tasks=tuple(key for key in keys if key in visible),
    )


def _find_resources(access: Access, addresses: Iterable[str]) -> Iterator[tuple[ResourceKind, Reading]]:
    for uri in addresses:
        with contextlib.suppress(UnknownResource):
            kind, variables = find_kind(uri)
            if kind.is_open_to(access.scopes):
                yield kind, Reading(access, uri, variables)


def _readable_of_catalogue(resources: Iterable[tuple[ResourceKind, Reading]]) -> Iterator[str]:
    for kind, reading in resources:
        if kind not in EXECUTION_RESOURCES:
            with contextlib.suppress(UnknownResource):
                kind.read(reading)
                yield reading.uri


def _addresses_of(
    wanted: Collection[ResourceKind], resources: Iterable[tuple[ResourceKind, Reading]]
) -> Addresses:
    found: defaultdict[uuid.UUID, list[str]] = defaultdict(list)
    for kind, reading in resources:
        if kind in wanted and (key := _execution_key(reading.variables["id"].lower())) is not None:
            found[key].append(reading.uri)
    return found


def _visible_executions(access: Access, keys: set[uuid.UUID]) -> set[uuid.UUID]:
    if not keys or not (access.allows(Scope.READ) or access.allows(Scope.RUN)):
        return set()
    visible = Execution.objects.visible_to(access.caller).filter(pk__in=keys)
    return set(visible.values_list("pk", flat=True))


def _execution_key(text: str) -> uuid.UUID | None:
    """Of an id as we write it: clients compare it too."""
    with contextlib.suppress(ValueError):
        key = uuid.UUID(text)
        return key if str(key) == text else None
    return None


@dataclass(frozen=True, slots=True)
class ListSnapshot:
    catalogue: exposure.ExposedCatalogue
    seen: Mapping[ServerEvent, Any]
    """By the event that tells of its change: something that differs when what is served differs."""


@dataclass(slots=True)
class _AtRevision:
    catalogue: exposure.ExposedCatalogue
    seen: dict[tuple[View, ServerEvent], Any] = field(default_factory=dict)


class ListSnapshots:
    """The snapshots of one server's callers. What several of them see is looked at once per revision."""

    def __init__(self, tool_lists: ToolLists) -> None:
        self._tool_lists = tool_lists
        self._remembered: _AtRevision | None = None
        self._turn = asyncio.Lock()

    async def look(self, access: Access, version: str, events: Collection[ServerEvent]) -> ListSnapshot:
        """At the present revision, of which this process serves such a caller's list of tools from now on."""
        view = View.of(access, version)
        if (known := self._known(view, events)) is not None:
            return known
        # In turn, because all who listen come in the same moment, and most of them for the same.
        async with self._turn:
            if (known := self._known(view, events)) is not None:
                return known
            return await run_in_database(self._look, access, view, events)

    def _known(self, view: View, events: Collection[ServerEvent]) -> ListSnapshot | None:
        remembered = self._remembered
        if remembered is None or remembered.catalogue is not exposure.fresh_catalogue():
            return None
        if any((view, event) not in remembered.seen for event in events):
            return None
        return ListSnapshot(remembered.catalogue, {event: remembered.seen[view, event] for event in events})

    def _look(self, access: Access, view: View, events: Collection[ServerEvent]) -> ListSnapshot:
        catalogue = exposure.current_catalogue()
        if self._remembered is None or self._remembered.catalogue is not catalogue:
            self._remembered = _AtRevision(catalogue)
        seen = {event: self._see(event, access, view, catalogue) for event in events}
        self._remembered.seen |= {(view, event): what for event, what in seen.items()}
        return ListSnapshot(catalogue, seen)

    def _see(
        self, event: ServerEvent, access: Access, view: View, catalogue: exposure.ExposedCatalogue
    ) -> Any:
        match event:
            case ToolsListChanged():
                return self._tool_lists.current(view).tools
            case PromptsListChanged():
                return _see_prompts(access, catalogue)
            case ResourcesListChanged():
                return _see_resources(access, catalogue)
            case ResourceUpdated():
                return _read(event.uri, access)


def _see_prompts(access: Access, catalogue: exposure.ExposedCatalogue) -> Any:
    offered = offered_workflows(catalogue, toolset=access.toolset, scopes=access.scopes)
    return [workflow_prompt(workflow) for workflow in offered.values()]


def _see_resources(access: Access, catalogue: exposure.ExposedCatalogue) -> Any:
    listed = listed_resources(catalogue, toolset=access.toolset, scopes=access.scopes)
    return [
        (uri, workflow and (workflow.title, workflow.shown_description, workflow.shown_icons))
        for uri, workflow in listed.items()
    ]


def _read(uri: str, access: Access) -> Any:
    """What is at an address of the catalogue's, which whoever has the same view finds there too."""
    try:
        kind, variables = find_kind(uri)
        return kind.read(Reading(access, uri, variables)).contents
    except UnknownResource:
        return None


SETTLING_SECONDS = exposure.MAX_AGE_SECONDS + STALE_SECONDS
"""From noticing a revision to telling of it. The listener asks for the list at once, perhaps another process:
by then each of them serves the new one."""
MOST_STREAMS = 20
"""Of one caller, in one process."""
LOOK_SECONDS = 0.5
"""Between two looks at whether the process has to end."""
LOOKS_PER_GRANTS = 4
"""Every so many looks, the tokens of all streams are looked at, with one query."""


class TooManyStreams(Exception):
    """The caller has as many as it may have."""

    def __init__(self) -> None:
        super().__init__(
            f"{MOST_STREAMS} streams of notifications of this token are open already: end one first. One "
            "subscription can listen for everything at once."
        )


@dataclass(slots=True, eq=False)
class Stream:
    access: Access
    stirred: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when there may be something to tell, or the stream has to end."""
    is_over: bool = False
    """Whether nothing more may be told: the process ends, or the token is revoked or has expired."""

    def end(self) -> None:
        self.is_over = True
        self.stirred.set()


class OpenStreams:
    """Those of one server. While there are none, nothing is looked at."""

    def __init__(self) -> None:
        self._streams: set[Stream] = set()
        self._of_callers: Counter[str] = Counter()
        self._closing = False
        self._looking: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def opened(self, access: Access) -> Iterator[Stream]:
        """Raises TooManyStreams."""
        if self._of_callers[access.caller.key] >= MOST_STREAMS:
            raise TooManyStreams
        stream = Stream(access, is_over=self._closing)
        self._streams.add(stream)
        self._of_callers[access.caller.key] += 1
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._keep_looking())
        try:
            yield stream
        finally:
            self._streams.discard(stream)
            self._of_callers -= Counter({access.caller.key: 1})
            if not self._streams:
                self._looking.cancel()
                self._looking = None

    def close(self) -> None:
        """Have every stream end gracefully, now and from now on."""
        self._closing = True
        for stream in self._streams:
            stream.end()

    async def _keep_looking(self) -> None:
        for number in itertools.count(1):
            await asyncio.sleep(LOOK_SECONDS)
            # The server waits for open responses before it says by the lifespan that it is shutting down.
            if _is_shutting_down():
                self.close()
                return
            if number % LOOKS_PER_GRANTS == 0:
                await self._end_those_without_grant()

    async def _end_those_without_grant(self) -> None:
        tokens = {token for stream in self._streams if (token := stream.access.token_id) is not None}
        if not tokens:
            return
        try:
            granted = await run_in_database(granted_tokens, tokens)
        except (DatabaseError, InterfaceError) as error:
            logger.warning("Looking at the tokens of open streams failed, trying again: {}", error)
            return
        for stream in self._streams:
            if stream.access.token_id in tokens - granted:
                stream.end()


def _is_shutting_down() -> bool:
    """Uvicorn's handler of the signal is a method of the server, which notes there that it has to end."""
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return bool(getattr(server, "should_exit", False))


@dataclass(frozen=True, slots=True)
class TaskChanged:
    """News of a task, as the tasks extension describes it."""

    task: dict[str, Any]


Send = Callable[[ServerEvent | TaskChanged], Awaitable[None]]


class Notifier:
    """One listener's stream, from its begin to its end."""

    def __init__(
        self,
        *,
        stream: Stream,
        interests: Interests,
        version: str,
        snapshots: ListSnapshots,
        ends_with_toolset: bool = True,
    ) -> None:
        """`ends_with_toolset`: whether the listener could come back later, when its toolset does."""
        self._stream = stream
        self._interests = interests
        self._version = version
        self._snapshots = snapshots
        self._settled: dict[ServerEvent, None] = {}
        """Events that are to be told now."""
        self._ends_with_toolset = ends_with_toolset
        self._toolset_is_gone = False

    async def go_on(self, send: Send, *, begin: Callable[[], Awaitable[None]]) -> None:
        """Send of each change until nothing more can come; `begin` is called when none can be missed."""
        with self._watching() as (revisions, watch):
            snapshot = await self._look()
            await begin()
            while not self._stream.is_over and self._something_can_come(watch):
                changed = await watch.changes()
                if revisions.moved:
                    revisions.moved = False
                    snapshot = await self._compare(snapshot)
                if not self._stream.is_over:
                    await self._send_executions(changed, watch, send)
                    await self._send_settled(send)

    @contextlib.contextmanager
    def _watching(self) -> Iterator[tuple[exposure.RevisionWatch, Watch]]:
        """Of executions only if there are some: looking at none costs something too."""
        stirred, executions = self._stream.stirred, self._interests.executions
        idle = contextlib.nullcontext(Watch((), stirred=stirred))
        with (
            exposure.watching_revisions(stirred) as revisions,
            watching(executions, stirred=stirred) if executions else idle as watch,
        ):
            yield revisions, watch

    def _something_can_come(self, watch: Watch) -> bool:
        """Lists can always change; of an execution that has ended there is nothing more to tell."""
        return not self._toolset_is_gone and bool(self._interests.events or list(watch.executions))

    async def _look(self) -> ListSnapshot:
        return await self._snapshots.look(self._stream.access, self._version, self._interests.events)

    async def _compare(self, before: ListSnapshot) -> ListSnapshot:
        """The present snapshot; what differs is told of once every process serves it."""
        now = await self._look()
        changed = [event for event, what in now.seen.items() if what != before.seen[event]]
        has_gone = self._has_toolset(before.catalogue) and not self._has_toolset(now.catalogue)
        if changed or has_gone:
            asyncio.get_running_loop().call_later(SETTLING_SECONDS, self._settle, changed, has_gone)
        return now

    def _settle(self, changed: list[ServerEvent], has_gone: bool) -> None:
        self._settled |= dict.fromkeys(changed)
        self._toolset_is_gone |= has_gone
        self._stream.stirred.set()

    def _has_toolset(self, catalogue: exposure.ExposedCatalogue) -> bool:
        """Whether there is what the listener sees the catalogue through, as far as that matters to it."""
        toolset = self._stream.access.toolset
        return toolset is None or toolset in catalogue.toolsets or not self._ends_with_toolset

    async def _send_settled(self, send: Send) -> None:
        settled, self._settled = self._settled, {}
        for event in settled:
            await send(event)

    async def _send_executions(self, changed: list[uuid.UUID], watch: Watch, send: Send) -> None:
        """One that has ended, or is gone, is not watched any more."""
        for key in changed:
            try:
                execution, task = await run_in_database(self._read, key)
            except UnknownExecution:
                watch.forget(key)
                continue
            if watch.saw(execution):
                if task is not None:
                    await send(TaskChanged(task))
                for event in self._interests.events_of(execution):
                    await send(event)
            if execution.is_settled:
                watch.forget(key)

    def _read(self, key: uuid.UUID) -> tuple[Execution, dict[str, Any] | None]:
        """Raises UnknownExecution; also for a token that has been revoked or has expired since it began."""
        access = self._stream.access
        if access.token_id is not None and not granted_tokens({access.token_id}):
            raise UnknownExecution(str(key))
        execution = find_execution(str(key), caller=access.caller)
        if key not in self._interests.tasks:
            return execution, None
        return execution, describe_task(execution, protocol_version=self._version)
