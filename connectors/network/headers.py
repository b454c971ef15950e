"""Names and values of headers: which can be sent, which only the product sets, and the key of those that
sign."""

import base64
import re
from collections.abc import Mapping

from connectors.errors import Misconfigured

TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+\-.^_`|~]+")
SENDABLE = re.compile(r"(?:[!-~](?:[ -~]*[!-~])?)?")  # HTTP drops blanks at the ends of a value
SET_BY_CLIENT = frozenset(  # Framing and routing: conflicting ones make request smuggling possible
    {"accept-encoding", "connection", "content-length", "expect", "host", "keep-alive", "te", "trailer"}
    | {"transfer-encoding", "upgrade"}
)
RESERVED = SET_BY_CLIENT | frozenset(
    {"authorization", "content-encoding", "cookie", "cookie2", "forwarded", "http2-settings", "max-forwards"}
    | {"set-cookie", "via", "x-http-method", "x-http-method-override", "x-method-override"}
    | {"x-original-url", "x-real-ip", "x-rewrite-url"}
)
FRAMING = RESERVED - {"authorization", "cookie"}  # Headers that cannot carry credentials
CONSTANT_ONLY = frozenset({"accept", "content-type", "user-agent"})
TELLING = re.compile(
    r"location$|^link$|^retry-after$|asyncoperation$|entityid$|^content-range$|total|(?<!ac)count$|next"
    r"|cursor|continuation|pagination|has-?more"
)
"""Headers of responses that say what a body does not: where it is, how many there are, what comes next."""
NOISE = re.compile(  # Those that are of no use to an agent: of caches, browsers, proxies, limits and traces
    r"^(?:age|alt-svc|allow|b3|baggage|connection|date|expires|keep-alive|nel|p3p|pragma|server|via|vary)$"
    r"|^(?:accept-|access-control-|cache-|cf-|content-security-|cross-origin-|feature-|fly-|permissions-|proxy-"
    r"|referrer-|report|sec-|server-timing|set-cookie|strict-|timing-|trace|transfer-|warning|www-auth)"
    r"|^x-(?:amz-cf|amzn-|aspnet|cache|content-type-|dns-|download-|envoy|frame-|kong|nextjs|permitted-|powered"
    r"|robots|runtime|served|timer|ua-|varnish|xss)|correlation|rate-?limit|(?:request|span|trace)-?id"
)
NEVER_RECORDED = frozenset({"set-cookie", "set-cookie2"})  # Records of responses show a mask instead
STANDARD_PREFIX = "whsec_"  # Of a secret with the key in Base64, by Standard Webhooks


def signing_key(secret: str) -> bytes:
    """The bytes after `whsec_`, else the characters. Raises ValueError if no Base64 follows."""
    if secret.startswith(STANDARD_PREFIX):
        return base64.b64decode(secret.removeprefix(STANDARD_PREFIX), validate=True)
    return secret.encode()


def check_values(headers: Mapping[str, str]) -> dict[str, str]:
    """Raises Misconfigured for a value that cannot be sent."""
    for name, value in headers.items():
        if not SENDABLE.fullmatch(value):
            raise Misconfigured(f"The header {name} has characters that HTTP does not allow there.")
    return dict(headers)


def checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Writes names in lower case, and keeps the last of duplicates. Raises Misconfigured for names and values
    that cannot be sent or chosen."""
    checked: dict[str, str] = {}
    for name, value in headers.items():
        lowered = name.lower()
        if not TOKEN.fullmatch(name):
            raise Misconfigured(f"{lowered!r} is not a valid header name.")
        if lowered in SET_BY_CLIENT or lowered.startswith("proxy-"):
            raise Misconfigured(f"The header {lowered} cannot be set: the HTTP client sets it.")
        if not SENDABLE.fullmatch(value):
            check_values({name: value})
        checked[lowered] = value
    return checked


def objection_to_name(name: str, *, constant: bool = False) -> str:
    """`is not a valid header name`; empty for a header that a tool may set."""
    lowered = name.lower()
    if not TOKEN.fullmatch(name):
        return "is not a valid header name"
    if lowered in RESERVED or lowered.startswith(("proxy-", "x-forwarded-", "sec-")):
        return "is a header that only the product sets"
    if lowered in CONSTANT_ONLY and not constant:
        return "is a header that can be a constant but not an argument"
    return ""


def can_carry_a_key(name: str) -> bool:
    lowered = name.lower()
    return bool(TOKEN.fullmatch(name)) and lowered not in FRAMING and not lowered.startswith("proxy-")


def objection_to_cookie(value: str) -> str:
    """`contains a space ...`; empty for a value that is one cookie, and arrives as it is."""
    if re.fullmatch(r"[!#-+\--:<-\[\]-~]*", value):  # RFC 6265, 4.1.1
        return ""
    return "contains a space, comma, semicolon, quote, backslash or other character that a cookie cannot have"


def objection_to_value(value: str) -> str:
    """`has characters ...`; empty for a value that can be sent and arrives as it is."""
    if SENDABLE.fullmatch(value):
        return ""
    if not (value.isascii() and value.isprintable()):
        return "contains characters that HTTP does not allow in a header"
    return "begins or ends with a space, which HTTP drops"


def media_types_in(header: str) -> set[str]:
    """Returns them in lower case, without parameters."""
    return {part.partition(";")[0].strip().lower() for part in header.split(",")}
