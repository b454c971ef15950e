"""Paths with parameters in them, `/orders/{order_id}/lines/{line}.json`."""

import re
from collections.abc import Mapping
from urllib.parse import unquote

from connectors.errors import Rejected
from connectors.network.client import fill_path

PARAMETER = re.compile(r"\{([^{}/]+)\}")
LITERAL = re.compile(r"(?:[A-Za-z0-9\-._~!$&'()*+,;=:@/]|%[0-9A-Fa-f]{2})*")
SEPARATORS = re.compile(r"[/\\]")
MOST_DECODINGS = 5
"""Each of several servers in a row may decode a path once more."""


def parameters_in(path: str) -> list[str]:
    return PARAMETER.findall(path)


def objections_to(path: str) -> list[str]:
    """Why the path cannot be that of a tool, a sentence for each reason."""
    literals = PARAMETER.sub("", path)
    found = []
    if "{" in literals or "}" in literals:
        found.append("A parameter of the path is a name in braces, such as {order_id}.")
    elif not LITERAL.fullmatch(literals):
        found.append("The path has characters that have to be percent-encoded.")
    if "}{" in path:
        found.append("Two parameters of the path stand side by side with nothing between them.")
    names = parameters_in(path)
    found += [
        f"The path names {{{name}}} more than once." for name in dict.fromkeys(names) if names.count(name) > 1
    ]
    if "//" in path or _leads_astray(literals):
        found.append('The path has an empty step, or "." or ".." as a step.')
    return found


def fill(path: str, values: Mapping[str, str], *, with_slashes: frozenset[str] = frozenset()) -> str:
    """The path with all values in it, percent-encoded. Raises Rejected for a value that changes the path."""
    for name, value in values.items():
        if why := path_value_objection(value, slashes=name in with_slashes):
            raise Rejected(f"The value of {name} {why}, so it cannot stand in the path. Nothing was sent.")
    return fill_path(path, **values)


def path_value_objection(value: str, *, slashes: bool = False) -> str:
    """`has a slash in it`; empty for a value that stays one step however often the path is decoded."""
    if not value:
        return "is empty"
    decoded = value
    for _ in range(MOST_DECODINGS):
        if decoded != decoded.encode("utf-8", "replace").decode():
            return "has half a character in it"
        if any(ord(char) < 32 or ord(char) == 127 for char in decoded):
            return "has a control character in it"
        if not slashes and SEPARATORS.search(decoded):
            return "has a slash in it"
        if _leads_astray(decoded):
            return 'is or has "." or ".." as a step'
        further = unquote(decoded)
        if further == decoded:
            return ""
        decoded = further
    return "is percent-encoded again and again"


def _leads_astray(path: str) -> bool:
    # "a;b" in a step is a parameter of it to some servers, which leave it out before they resolve "..".
    steps = (step.partition(";")[0] for step in SEPARATORS.split(unquote(path)))
    return any(step in (".", "..") for step in steps)
