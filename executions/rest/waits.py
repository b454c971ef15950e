"""Requests that wait for a run keep a thread each: some threads are left for everybody else."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

MOST = 128
"""At a time, in one web process; it has twice as many threads."""
MOST_OF_ONE = 64
"""Of one caller."""


class WaitingPlaces:
    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._taken: Counter[str] = Counter()

    @contextmanager
    def one_for(self, caller: str) -> Iterator[bool]:
        """Whether there was a place; it is kept for the length of the block."""
        has_place = self._take(caller)
        try:
            yield has_place
        finally:
            if has_place:
                self._give_back(caller)

    def _take(self, caller: str) -> bool:
        with self._turn:
            has_place = self._taken.total() < MOST and self._taken[caller] < MOST_OF_ONE
            if has_place:
                self._taken[caller] += 1
        return has_place

    def _give_back(self, caller: str) -> None:
        with self._turn:
            self._taken[caller] -= 1
            if not self._taken[caller]:
                del self._taken[caller]


waiting_places = WaitingPlaces()
