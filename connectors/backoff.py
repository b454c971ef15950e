"""Exponential backoff with jitter."""

import random


def backoff_seconds(repeated: int, *, first: float, longest: float) -> float:
    """`first`, doubled for each attempt that was `repeated` before, and `longest` at most."""
    # 2.0 ** 1024 overflows.
    return min(first * 2.0 ** min(repeated, 100), longest)


def spread(seconds: float) -> float:
    """At least half of it, so that callers that were refused together return at different times."""
    return seconds * random.uniform(0.5, 1)  # noqa: S311
