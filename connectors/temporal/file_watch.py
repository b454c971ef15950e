"""Noticing that a file has changed, also where an editor or an orchestrator puts another in its place."""

import asyncio
import os
from collections.abc import Callable

SECONDS_BETWEEN_LOOKS = 2.0

State = tuple[int, ...]


class FileWatch:
    """Calls `listener` on the running loop after every change, until `end`."""

    def __init__(self, path: str, listener: Callable[[], None]) -> None:
        self._path = path
        self._listener = listener
        self._task = asyncio.get_running_loop().create_task(self._watch(_state_of(path)))

    def end(self) -> None:
        self._task.cancel()

    async def _watch(self, seen: State) -> None:
        while True:
            await asyncio.sleep(SECONDS_BETWEEN_LOOKS)
            state = await asyncio.to_thread(_state_of, self._path)
            if state != seen:
                seen = state
                self._listener()


def _state_of(path: str) -> State:
    """Empty for a file that is not there."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return ()
    return (status.st_mtime_ns, status.st_size, status.st_ino, status.st_dev)
