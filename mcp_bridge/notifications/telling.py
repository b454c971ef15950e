"""Telling one listener of changes, whatever carries the notifications to it."""

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

from mcp.shared.subscriptions import ServerEvent

from catalogue.database import run_in_database
from catalogue.exposure import MAX_AGE_SECONDS, ExposedCatalogue
from catalogue.watching import RevisionWatch, watching_revisions
from executions.models import Execution
from executions.reading import UnknownExecution, find_execution
from executions.watching import Watch, watching
from mcp_bridge.lists.tool_lists import STALE_SECONDS
from mcp_bridge.notifications.interests import Interests
from mcp_bridge.notifications.sights import Sight, Sights
from mcp_bridge.notifications.streams import Stream
from mcp_bridge.task_documents import describe_task

SETTLING_SECONDS = MAX_AGE_SECONDS + STALE_SECONDS
"""From noticing a revision to telling of it. The listener asks for the list at once, perhaps another process:
by then each of them serves the new one."""


@dataclass(frozen=True, slots=True)
class TaskChanged:
    """News of a task, as the tasks extension describes it."""

    task: dict[str, Any]


Tell = Callable[[ServerEvent | TaskChanged], Awaitable[None]]


class Telling:
    """One listener's stream, from its begin to its end."""

    def __init__(
        self,
        *,
        stream: Stream,
        interests: Interests,
        version: str,
        sights: Sights,
        ends_with_toolset: bool = True,
    ) -> None:
        """`ends_with_toolset`: whether the listener could come back later, when its toolset does."""
        self._stream = stream
        self._interests = interests
        self._version = version
        self._sights = sights
        self._settled: dict[ServerEvent, None] = {}
        """Events that are to be told now."""
        self._ends_with_toolset = ends_with_toolset
        self._toolset_is_gone = False

    async def go_on(self, tell: Tell, *, begin: Callable[[], Awaitable[None]]) -> None:
        """Tell of each change until nothing more can come; `begin` is called when none can be missed."""
        with self._watching() as (revisions, watch):
            sight = await self._look()
            await begin()
            while not self._stream.is_over and self._something_can_come(watch):
                changed = await watch.changes()
                if revisions.moved:
                    revisions.moved = False
                    sight = await self._compare(sight)
                if not self._stream.is_over:
                    await self._tell_of_executions(changed, watch, tell)
                    await self._tell_of_settled(tell)

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

    async def _look(self) -> Sight:
        return await self._sights.look(self._stream.access, self._version, self._interests.events)

    async def _compare(self, before: Sight) -> Sight:
        """The present sight; what differs is told of once every process serves it."""
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

    async def _tell_of_settled(self, tell: Tell) -> None:
        settled, self._settled = self._settled, {}
        for event in settled:
            await tell(event)

    async def _tell_of_executions(self, changed: list[uuid.UUID], watch: Watch, tell: Tell) -> None:
        """One that has ended, or is gone, is not watched any more."""
        for key in changed:
            try:
                execution, task = await run_in_database(self._read, key)
            except UnknownExecution:
                watch.forget(key)
                continue
            if watch.saw(execution):
                if task is not None:
                    await tell(TaskChanged(task))
                for event in self._interests.events_of(execution):
                    await tell(event)
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
