"""Titles and descriptions for agents, out of a document's Markdown."""

import re
from typing import Any

LONGEST_DESCRIPTION = 2_000
"""Of an operation; every agent that sees the tool pays for it."""
LONGEST_ARGUMENT_DESCRIPTION = 600
LONGEST_TITLE = 255
LINK = re.compile(r"!?\[([^\[\]]*)\]\([^()\s]*(?:\s+\"[^\"]*\")?\)")
COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
TAG = re.compile(r"</?[A-Za-z][^<>]{0,500}>")
BLANK_LINES = re.compile(r"\n\s*\n\s*")
SPACES = re.compile(r"[ \t]+")


def plain_text(value: Any, longest: int) -> str:
    """Without links, tags and comments; Markdown's other signs are plain enough. Cut at a word."""
    if not isinstance(value, str):
        return ""
    # What comes after can only be cut away.
    text = COMMENT.sub(" ", value[: 20 * longest])
    text = TAG.sub(" ", LINK.sub(r"\1", text))
    text = BLANK_LINES.sub("\n\n", SPACES.sub(" ", text)).strip()
    if len(text) <= longest:
        return text
    return text[: longest - 3].rpartition(" ")[0].rstrip() + "..."


def description_of(summary: Any, description: Any, *, otherwise: str) -> str:
    """Both, unless the one begins with the other."""
    short, long = plain_text(summary, LONGEST_TITLE), plain_text(description, LONGEST_DESCRIPTION)
    if short and not long.startswith(short.rstrip(".")):
        # A summary is a heading: the description goes on below it.
        long = f"{short}\n\n{long}".strip()
    return plain_text(long, LONGEST_DESCRIPTION) or otherwise
