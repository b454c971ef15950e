"""The address of a request that somebody else wrote, taken apart by hand.

URL libraries mend what they are given, and each in another way; here nothing is mended.
"""

import re
from dataclasses import dataclass
from typing import Any

import httpx2

from connectors.http_tools import path_template
from connectors.http_tools.reading_values import argument_of
from connectors.http_tools.refusing import NotThisTool, shown
from connectors.http_tools.tool import HttpOperation

PARTS = re.compile(
    r"(?P<scheme>https?)://(?P<authority>[^/?#]*)(?P<path>[^?#]*)(?:\?(?P<query>[^#]*))?(?P<fragment>#.*)?",
    re.DOTALL | re.IGNORECASE,
)
AUTHORITY = re.compile(r"(?P<host>[A-Za-z0-9.\-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?", re.ASCII)
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class WrittenUrl:
    """What follows scheme, host and port, which are the API's."""

    path: str
    query: str


def split_url(text: str, base_url: str) -> WrittenUrl:
    """Raises NotThisTool for another scheme, host or port than the base URL's, and for all that hides one."""
    if "\\" in text or CONTROL.search(text):
        raise NotThisTool("The URL has a backslash or a control character in it.")
    found = PARTS.fullmatch(text)
    if found is None:
        raise NotThisTool("The URL does not begin with http:// or https://.")
    if "@" in found["authority"]:
        raise NotThisTool("The URL has a user name or password in it.")
    _refuse_other_origin(found["scheme"], found["authority"], base_url)
    if found["fragment"] is not None:
        raise NotThisTool("The URL has a fragment, a part after '#'.")
    return WrittenUrl(found["path"], found["query"] or "")


def read_path(
    operation: HttpOperation, raw: str, base_url: str, input_schema: dict[str, Any]
) -> dict[str, Any]:
    """The arguments in the path."""
    base = httpx2.URL(base_url).raw_path.decode("ascii").rstrip("/")
    # An empty path is sent as "/".
    path = base + operation.path or "/"
    try:
        texts = path_template.read_values(path, raw or "/")
    except ValueError as error:
        raise NotThisTool(f"The part of the path in the place of {shown(str(error))}.") from None
    if texts is None:
        raise NotThisTool(f"The path is not that of the tool, {shown(path)}.")
    found = {}
    for argument, place in operation.arguments.items():
        if place.place == "path":
            text = texts[place.name]
            if why := path_template.path_value_objection(text, slashes=place.slashes):
                raise NotThisTool(f"The part of the path in the place of {{{place.name}}} {why}.")
            found[argument] = argument_of(argument, place, text, input_schema, commas=True)
    return found


def _refuse_other_origin(scheme: str, authority: str, base_url: str) -> None:
    base = httpx2.URL(base_url)
    scheme = scheme.lower()
    if scheme != base.scheme:
        raise NotThisTool(f"The tool's scheme is {base.scheme}, not {scheme}.")
    found = AUTHORITY.fullmatch(authority)
    if found is None:
        raise NotThisTool("The URL names no host, or not in plain letters, digits, dots and hyphens.")
    if found["host"].lower() != base.raw_host.decode("ascii").lower().join(_brackets(base)):
        raise NotThisTool(f"The tool's host is {base.host}, not {shown(found['host'])}.")
    port = int(found["port"] or PORTS[scheme])
    if port != (base.port or PORTS[scheme]):
        raise NotThisTool(f"The tool's port is {base.port or PORTS[scheme]}, not {port}.")


def _brackets(base: httpx2.URL) -> tuple[str, str]:
    return ("[", "]") if b":" in base.raw_host else ("", "")
