"""Importing files that declare sources and their tools."""

from collections.abc import Callable

cache_takers: list[Callable[..., list[str]]] = []
"""Appliers of a Temporal file's block `cache`, which rooms above register. Each takes the block and `apply`;
without it, it only returns what it would do. They are here because the importers are slow to load."""
