"""Looking for news in the database with one task for each event loop, as long as something on it watches."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from telemetry.traces import begin_apart

Watch = TypeVar("Watch")


@dataclass(slots=True)
class Watcher(Generic[Watch]):
    watches: set[Watch] = field(default_factory=set)
    woken: asyncio.Event = field(default_factory=asyncio.Event)  # For a look before its time
    looking: asyncio.Task[None] | None = None


class Watchers(dict[asyncio.AbstractEventLoop, Watcher[Watch]]):
    @contextlib.contextmanager
    def watching(
        self, watch: Watch, look: Callable[[Watcher[Watch]], Coroutine[Any, Any, None]]
    ) -> Iterator[Watcher[Watch]]:
        """All watches of a loop share one `look`, which goes on until the last of them ends."""
        loop = asyncio.get_running_loop()
        watcher = self.setdefault(loop, Watcher())
        watcher.watches.add(watch)
        if watcher.looking is None or watcher.looking.done():
            watcher.looking = begin_apart(look(watcher))
        try:
            yield watcher
        finally:
            watcher.watches.discard(watch)
            if not watcher.watches:
                watcher.looking.cancel()
                self.pop(loop, None)
