"""In a checkout only: the package leaves the collection of texts out."""

from dev.scripts.collect_texts import Command

__all__ = ["Command"]
