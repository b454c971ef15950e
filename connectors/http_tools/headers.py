"""Names and values of headers: which there can be, and which are not a tool's to set."""

import re

TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+\-.^_`|~]+")
OURS = frozenset(
    {
        "accept-encoding",
        "authorization",
        "connection",
        "content-encoding",
        "content-length",
        "cookie",
        "cookie2",
        "expect",
        "forwarded",
        "host",
        "http2-settings",
        "keep-alive",
        "max-forwards",
        "set-cookie",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "via",
        "x-http-method",
        "x-http-method-override",
        "x-method-override",
        "x-original-url",
        "x-real-ip",
        "x-rewrite-url",
    }
)
"""What says who asks, where the request goes and where it ends."""
FRAMING = OURS - {"authorization", "cookie"}
"""No place for credentials either."""
OUR_PREFIXES = ("proxy-", "x-forwarded-", "sec-")
CONSTANT_ONLY = frozenset({"accept", "content-type", "user-agent"})


def objection_to_name(name: str, *, constant: bool = False) -> str:
    """`is no name of a header`; empty for a header that a tool may set."""
    lowered = name.lower()
    if not TOKEN.fullmatch(name):
        return "is no name of a header"
    if lowered in OURS or lowered.startswith(OUR_PREFIXES):
        return "is a header that only the product itself sets"
    if lowered in CONSTANT_ONLY and not constant:
        return "is a header that can be a constant, but no argument"
    return ""


def objection_to_value(value: str) -> str:
    """`has characters ...`; empty for a value that can be sent and arrives as it is."""
    if not (value.isascii() and value.isprintable()):
        return "has characters that HTTP does not allow in a header"
    return "begins or ends with a blank, which HTTP drops" if value != value.strip() else ""
