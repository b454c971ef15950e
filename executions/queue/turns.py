"""Whose turn it is when places become free."""

import heapq
import uuid
from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from executions.queue.limits import PRODUCT, Occupancy, Place, Room


@dataclass(frozen=True, slots=True)
class Waiting:
    """One that has no place yet."""

    key: uuid.UUID
    place: Place


@dataclass(slots=True)
class Choice:
    chosen: list[uuid.UUID] = field(default_factory=list)
    full: set[Room] = field(default_factory=set)
    """What the others wait for."""
    is_cut: bool = False
    """It has as many as it may have; there may be room for others too."""


def choose(queue: Iterable[Waiting], occupancy: Occupancy, *, at_most: int) -> Choice:
    """Who of the queue, which is in the order in which they came, gets a place.

    The occupancy is counted on with them.
    """
    choice = Choice()
    lines: dict[str, deque[tuple[int, Waiting]]] = defaultdict(deque)
    for position, waiting in enumerate(queue):
        lines[waiting.place.caller].append((position, waiting))
    heads = [_turn(line, occupancy) for line in lines.values()]
    heapq.heapify(heads)
    while heads and not choice.is_cut:
        line = lines[heapq.heappop(heads)[2]]
        _, waiting = line.popleft()
        full = set(occupancy.full(waiting.place.limits))
        if not full:
            choice.chosen.append(waiting.key)
            choice.is_cut = len(choice.chosen) >= at_most
            occupancy.take(waiting.place)
        # What is full now stays full for the rest of this choice, so nobody has to be looked at twice.
        choice.full |= full
        if PRODUCT in full:
            break
        if line and waiting.place.callers_room not in full:
            heapq.heappush(heads, _turn(line, occupancy))
    return choice


def _turn(line: deque[tuple[int, Waiting]], occupancy: Occupancy) -> tuple[int, int, str]:
    """Sorts callers: who has the fewest running, then whose call came first."""
    position, waiting = line[0]
    return occupancy.number_in(waiting.place.callers_room), position, waiting.place.caller
