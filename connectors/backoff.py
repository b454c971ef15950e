"""Pauses between attempts at what keeps failing."""

import random


def backoff_seconds(repeated: int, *, first: float, longest: float) -> float:
    """`first`, doubled for each attempt that was `repeated` before, and `longest` at most."""
    # 2.0 ** 1024 overflows.
    return min(first * 2.0 ** min(repeated, 100), longest)


def spread(seconds: float) -> float:
    """Half of it at least, so that callers who were turned away together do not come back together."""
    return seconds * random.uniform(0.5, 1)  # noqa: S311
