"""What this process knows of the queue without asking the database."""

import time
from collections.abc import Iterable

from executions.models import Execution
from executions.queue.limits import Place, Room

STALE_SECONDS = 1.0
"""How long a process relies on what it saw of the queue: no longer than the tick that looks anyway."""


class _Expectation:
    """Which full rooms somebody waits for, as far as this process knows.

    An end far from any limit must cost nothing, so only one that leaves such a room has the queue looked at.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._rooms: frozenset[Room] = frozenset()
        self._unsure = False
        self._learned_at = 0.0

    def add(self, rooms: Iterable[Room]) -> None:
        self._rooms |= frozenset(rooms)

    def learn(self, rooms: Iterable[Room], *, unsure: bool = False) -> None:
        """What a look at the whole queue showed."""
        self._rooms, self._unsure, self._learned_at = frozenset(rooms), unsure, time.monotonic()

    def suspect(self) -> None:
        """Somebody waits, perhaps for what another process filled."""
        if time.monotonic() - self._learned_at > STALE_SECONDS:
            self._unsure = True

    @property
    def is_empty(self) -> bool:
        return not self._rooms and not self._unsure

    def concerns(self, rooms: Iterable[Room]) -> bool:
        return self._unsure or not self._rooms.isdisjoint(rooms)


expected = _Expectation()


def is_waited_for(execution: Execution) -> bool:
    """Whether somebody may be waiting for the place of an execution that has ended."""
    return not expected.is_empty and expected.concerns(Place.of(execution.workflow, execution.caller).rooms)
