"""How a refused request is told: in sentences of a bounded length that quote names, never values."""

from collections.abc import Iterable

from connectors.network.redaction import printable, shorten

LONGEST_NAME = 80
MOST_NAMES = 5


class NotThisTool(ValueError):
    """The request is not one that the tool makes; the message is a sentence that says where it differs."""


def shown(name: str) -> str:
    """A name that a stranger chose, fit for a sentence."""
    return shorten(printable(name).replace("\n", " "), LONGEST_NAME)


def listed(names: Iterable[str]) -> str:
    """`a, b and 3 more`."""
    told = sorted(map(shown, names))
    rest = len(told) - MOST_NAMES
    return ", ".join(told[:MOST_NAMES]) + (f" and {rest} more" if rest > 0 else "")
