"""MCP's hints and icons of a workflow; only valid ones, since clients drop tools with invalid annotations."""

import base64
import binascii
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from connectors.formats.json import as_object

CURATORS_HINTS = {  # The fields of a workflow with the curator's value, and MCP's names
    "read_only_hint": "readOnlyHint",
    "destructive_hint": "destructiveHint",
    "idempotent_hint": "idempotentHint",
    "open_world_hint": "openWorldHint",
}
MAX_ICONS = 8
MAX_ICON_CHARACTERS = 20_000  # Of all icons of a workflow together; every list of tools carries them
MAX_ADDRESS_CHARACTERS = 2_000
RASTER = re.compile(r"data:image/(?:png|jpeg|webp|gif);base64,([A-Za-z0-9+/]+={0,2})")  # SVG can hold scripts
MEDIA_TYPE = re.compile(r"image/[a-z0-9.+-]{1,80}")
SIZE = re.compile(r"any|[1-9][0-9]{0,4}x[1-9][0-9]{0,4}")


class Unusable(ValueError):
    """The message states the problem without quoting the value."""


def read_hints(raw: Any) -> tuple[dict[str, bool], list[str]]:
    """The hints among an engine's annotations, and the problems of malformed ones; others are ignored."""
    raw = as_object(raw)
    given = {name: raw[name] for name in CURATORS_HINTS.values() if name in raw}
    hints = {name: hint for name, hint in given.items() if isinstance(hint, bool)}
    wrong = [name for name, hint in given.items() if name not in hints and hint is not None]
    return hints, [f"{name} is left out: it is neither true nor false." for name in wrong]


def read_icons(raw: Any) -> tuple[list[dict[str, Any]], list[str]]:
    icons: list[dict[str, Any]] = []
    problems = []
    left = MAX_ICON_CHARACTERS
    for number, given in enumerate(raw if isinstance(raw, list) else [], start=1):
        if number > MAX_ICONS:
            problems.append(f"Icons beyond the first {MAX_ICONS} are left out.")
            break
        try:
            # `src` and MCP's other members where well-formed.
            if not isinstance(given, dict):
                raise Unusable("it is not an object.")
            check_icon_address(given.get("src"), at_most=left)
            optional = [name for name, is_valid in OPTIONAL_MEMBERS.items() if is_valid(given.get(name))]
            icon = {name: given[name] for name in ("src", *optional)}
        except Unusable as problem:
            problems.append(f"Icon {number} is left out: {problem}")
        else:
            icons.append(icon)
            left -= len(icon["src"])
    return icons, problems


def check_icon_address(address: Any, *, at_most: int = MAX_ICON_CHARACTERS) -> None:
    """Raises Unusable for addresses that clients cannot show or should not fetch."""
    if not isinstance(address, str):
        raise Unusable("it has no address.")
    if address.startswith("data:"):
        if len(address) > at_most:
            raise Unusable(f"it is too large; all icons together have {MAX_ICON_CHARACTERS:,} characters.")
        image = RASTER.fullmatch(address)
        if image is None:
            raise Unusable("of images in data: only PNG, JPEG, WebP and GIF in base64 are accepted.")
        try:
            base64.b64decode(image[1], validate=True)
        except binascii.Error:
            raise Unusable("its base64 is invalid.") from None
    elif not _is_secure_address(address):
        raise Unusable(
            "its address is neither https: nor data:image/png (jpeg, webp, gif) in base64. "
            "SVG is not accepted in data:, because it may contain scripts."
        )


def _is_secure_address(address: str) -> bool:
    if len(address) > MAX_ADDRESS_CHARACTERS or not (address.isascii() and address.isprintable()):
        return False
    try:
        parts = urlsplit(address)
        return parts.scheme == "https" and bool(parts.hostname) and not parts.username and " " not in address
    except ValueError:
        return False


def _are_sizes(value: Any) -> bool:
    return (
        isinstance(value, list)
        and 0 < len(value) <= MAX_ICONS
        and all(isinstance(size, str) and SIZE.fullmatch(size) for size in value)
    )


OPTIONAL_MEMBERS: dict[str, Callable[[Any], bool]] = {
    "mimeType": lambda value: isinstance(value, str) and MEDIA_TYPE.fullmatch(value) is not None,
    "sizes": _are_sizes,
    "theme": lambda value: value in ("light", "dark"),
}
