"""The streams of notifications that are open in this process, and what ends them from outside."""

import asyncio
import contextlib
import itertools
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from django.db import DatabaseError, InterfaceError
from loguru import logger

from catalogue.database import run_in_database
from mcp_bridge.access import Access, granted_tokens

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
