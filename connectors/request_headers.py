"""Headers of requests, checked here because the HTTP library's complaint would quote their values."""

import re
from collections.abc import Mapping

from connectors.errors import Misconfigured

NAME = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")
OURS = {
    "accept-encoding",
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
}
"""They say how a message is written and to whom it goes: two opinions about that are an attack."""


def sendable(headers: Mapping[str, str]) -> dict[str, str]:
    """The same. Raises Misconfigured for a value that cannot be sent."""
    for name, value in headers.items():
        if not (value.isascii() and value.isprintable() and value == value.strip()):
            raise Misconfigured(f"The header {name} has characters that HTTP does not allow there.")
    return dict(headers)


def with_lower_names(headers: Mapping[str, str]) -> dict[str, str]:
    """So that what is said twice replaces what was said before."""
    return {name.lower(): value for name, value in headers.items()}


def own_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """By name in lower case. Raises Misconfigured, also for a name that cannot be sent or be chosen."""
    named = with_lower_names(headers)
    for name in named:
        if not NAME.fullmatch(name):
            raise Misconfigured(f"{name!r} is no name of a header.")
        if name in OURS or name.startswith("proxy-"):
            raise Misconfigured(f"The header {name} cannot be chosen: it follows from the request.")
    return sendable(named)
