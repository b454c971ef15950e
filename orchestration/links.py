"""Addresses in what the model wrote: only those that the person or the API gave stay.

A response may talk the model into writing an address that carries what it has read to a stranger: whoever
shows the text as Markdown or HTML would fetch an image of it at once, and a person may follow a link.
"""

import html
import re
from collections.abc import Iterable, Iterator
from typing import Any

REMOVED = "[address removed]"
REST = r"""[^\s<>"'`)\]}]+"""
SCHEMES = "https?|ftp|file|wss?|data|blob|javascript|vbscript|mailto|tel|sms"
ADDRESS = re.compile(
    # Browsers take backslashes for slashes, and do without slashes after these schemes.
    rf"\b[a-z][a-z0-9+.-]{{1,30}}:[/\\]{{2}}{REST}|\b(?:{SCHEMES}):{REST}|\bwww\.{REST}",
    re.IGNORECASE,
)
DESTINATION = re.compile(r"(\]\(\s*<?|^ {0,3}\[[^\]\n]+\]:\s*<?)([^)\s>]+)", re.MULTILINE)
"""What a link of Markdown leads to, whatever it looks like, in a link or apart from it."""
IMAGE = re.compile(r"!(?=\[)")
"""Markdown's mark that makes an image of a link."""
PLAIN_TAGS = (
    "b|blockquote|br|caption|code|dd|div|dl|dt|em|h[1-6]|hr|i|li|ol|p|pre|s|small|span|strong|sub|sup|table|"
    "tbody|td|tfoot|th|thead|tr|u|ul"
)
TAG = re.compile(rf"<(?!/?(?:{PLAIN_TAGS})\s*/?>)(?=[a-z/!?])", re.IGNORECASE)
"""Where any other tag begins, or one with attributes."""
PUNCTUATION = ".,;:!?"


def remove_foreign_addresses(text: str, *, given: Iterable[Any]) -> tuple[str, int]:
    """The text, and how many addresses were taken out of it, since nothing `given` (JSON values) has them.

    Images become links, and tags text unless they only arrange it, so that nothing is fetched or run for
    being shown.
    """
    known, removed = frozenset(_addresses_in(given)), 0

    def keep_or_remove(address: str) -> str:
        nonlocal removed
        if _bare(address) in known:
            return address
        removed += 1
        return REMOVED + address[len(address.rstrip(PUNCTUATION)) :]

    text = DESTINATION.sub(lambda found: found[1] + keep_or_remove(found[2]), text)
    text = ADDRESS.sub(lambda found: keep_or_remove(found[0]), text)
    return TAG.sub("< ", IMAGE.sub("", text)), removed


def _addresses_in(values: Iterable[Any]) -> Iterator[str]:
    for text in _texts_in(values):
        yield from (_bare(found[0]) for found in ADDRESS.finditer(text))
        yield from (_bare(found[2]) for found in DESTINATION.finditer(text))


def _texts_in(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for name, inner in value.items():
                yield from _texts_in((name, inner))
        case list() | tuple():
            for inner in value:
                yield from _texts_in(inner)


def _bare(address: str) -> str:
    """Without the punctuation of the sentence around it."""
    return html.unescape(address).rstrip(PUNCTUATION)
