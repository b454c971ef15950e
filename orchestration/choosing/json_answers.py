"""Finding JSON in what a model says, whatever it says around it."""

import re
from collections.abc import Iterator
from typing import Any

from connectors.formats.json import UnreadableJSON, parse_json

TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[{}]', re.DOTALL)
"""Possessive, so that even an unclosed string is passed over once."""


def objects_in(text: str) -> Iterator[dict[str, Any]]:
    """Those that are in no other. Braces that hold no JSON are passed over, with all that is in them."""
    for span in _braces(text):
        try:
            value = parse_json(span.encode("utf-8", "replace"))
        except UnreadableJSON:
            continue
        if isinstance(value, dict):
            yield value


def _braces(text: str) -> Iterator[str]:
    """From each outermost brace to the one that closes it."""
    begin = text.find("{")
    while begin >= 0:
        depth = 0
        for token in TOKEN.finditer(text, begin):
            depth += (token[0] == "{") - (token[0] == "}")
            if not depth:
                break
        if depth:
            return
        yield text[begin : token.end()]
        begin = text.find("{", token.end())
