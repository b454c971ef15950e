"""Notifier one listener of changes, whatever carries the notifications to it."""

import asyncio
import contextlib
import itertools
import signal
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from django.db import DatabaseError, InterfaceError
from loguru import logger
from mcp.shared.subscriptions import ServerEvent

from catalogue.database import run_in_database
from catalogue.exposure import MAX_AGE_SECONDS, ExposedCatalogue
from catalogue.watching import RevisionWatch, watching_revisions
from executions.change_feed import Watch, watching
from executions.models import Execution
from executions.reading import UnknownExecution, find_execution
from mcp_bridge.access import Access, granted_tokens
from mcp_bridge.notifications.list_snapshots import ListSnapshot, ListSnapshots
from mcp_bridge.notifications.subscription_filter import Interests
from mcp_bridge.tasks import describe_task
from mcp_bridge.tool_lists import STALE_SECONDS

SETTLING_SECONDS = MAX_AGE_SECONDS + STALE_SECONDS
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
    """One that is open."""

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
    def _watching(self) -> Iterator[tuple[RevisionWatch, Watch]]:
        """Of executions only if there are some: looking at none costs something too."""
        stirred, executions = self._stream.stirred, self._interests.executions
        idle = contextlib.nullcontext(Watch((), stirred=stirred))
        with (
            watching_revisions(stirred) as revisions,
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

    def _has_toolset(self, catalogue: ExposedCatalogue) -> bool:
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
        if not access.is_still_granted():
            raise UnknownExecution(str(key))
        execution = find_execution(str(key), caller=access.caller)
        if key not in self._interests.tasks:
            return execution, None
        return execution, describe_task(execution, protocol_version=self._version)
