"""Watching the catalogue: whoever listens learns of a new revision, whichever process made it.

All who listen on an event loop share one look at the revision; while nobody listens there is none.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from django.db import DatabaseError, InterfaceError
from loguru import logger

from catalogue.database import run_in_database
from catalogue.exposure import ExposedCatalogue, confirmed_catalogue

LOOK_SECONDS = 0.25
"""Between two looks. What is looked at is remembered, so that requests in between need not ask themselves."""


@dataclass(slots=True, eq=False)
class RevisionWatch:
    """Whether there has been a new revision since its holder last set `moved` to False."""

    stirred: asyncio.Event
    """Set along with it; the same event may stand for other news of the holder's too."""
    moved: bool = False

    def notice(self) -> None:
        self.moved = True
        self.stirred.set()


@dataclass(slots=True)
class _Watcher:
    """Who listens on one event loop."""

    watches: set[RevisionWatch] = field(default_factory=set)
    looking: asyncio.Task[None] | None = None


_watchers: dict[asyncio.AbstractEventLoop, _Watcher] = {}


@contextlib.contextmanager
def watching_revisions(stirred: asyncio.Event) -> Iterator[RevisionWatch]:
    """Hear of each new revision until the block ends. For code that runs on an event loop.

    When it is told, `current_catalogue()` is of that revision already. The catalogue that is to be compared
    with has to be read within the block, so that no revision is missed.
    """
    loop, watch = asyncio.get_running_loop(), RevisionWatch(stirred)
    watcher = _watchers.setdefault(loop, _Watcher())
    watcher.watches.add(watch)
    if watcher.looking is None or watcher.looking.done():
        watcher.looking = loop.create_task(_keep_looking(watcher))
    try:
        yield watch
    finally:
        watcher.watches.discard(watch)
        if not watcher.watches:
            watcher.looking.cancel()
            _watchers.pop(loop, None)


async def _keep_looking(watcher: _Watcher) -> None:
    known: ExposedCatalogue | None = None
    while True:
        try:
            catalogue = await run_in_database(confirmed_catalogue)
        except (DatabaseError, InterfaceError) as error:
            logger.warning("Watching the catalogue failed, trying again in {:g} s: {}", LOOK_SECONDS, error)
        else:
            if catalogue is not known:
                known = catalogue
                for watch in list(watcher.watches):
                    watch.notice()
        await asyncio.sleep(LOOK_SECONDS)
