"""Timing and printing."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class Took:
    seconds: float = 0.0


@contextmanager
def stopwatch() -> Iterator[Took]:
    took, started = Took(), time.perf_counter()
    try:
        yield took
    finally:
        took.seconds = time.perf_counter() - started


def best_of(times: int, act: Callable[[], object]) -> float:
    """The shortest time in seconds: the one that other work on the machine disturbed least."""
    found = []
    for _ in range(times):
        with stopwatch() as took:
            act()
        found.append(took.seconds)
    return min(found)


def percentile(values: Sequence[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:,.1f} ms"


def table(*rows: Sequence[str]) -> None:
    """The first row is the header; the first column is aligned left, the others right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        first, *others = (
            cell.ljust(w) if not i else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join(["", first, *others]), flush=True)
