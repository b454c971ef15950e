"""Names that every model provider takes: of arguments, and of tools."""

import hashlib
import keyword
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Set

from catalogue.naming import RESERVED

PORTABLE_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
"""Vertex AI takes letters, digits and underscores; pydantic no underscore in front."""
PORTABLE_TOOL = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
"""OpenAI takes no dots; Gemini wants a letter or an underscore in front."""
LONGEST_KEY = 64
SERVER_NAME = "workflow-catalogue"
LONGEST_WITH_SERVER = 57
"""Of the server's name and the tool's: Cursor shows fewer than 60, `mcp__server__tool` may have 64."""
SHORTEST_LIMIT = 24
"""For tools of servers with long names: the built-in ones need nearly as much."""
DIGEST = 6


def server_name(toolset: str | None) -> str:
    """What clients are told to call us; one may have several toolsets, each under a name of its own."""
    return f"{SERVER_NAME}-{toolset}" if toolset else SERVER_NAME


def limit_for_tools(toolset: str | None) -> int:
    """How long the name of a tool may be for clients that call its server as they are told."""
    return max(LONGEST_WITH_SERVER - len(server_name(toolset)), SHORTEST_LIMIT)


def is_portable_key(key: str) -> bool:
    return PORTABLE_KEY.fullmatch(key) is not None and not keyword.iskeyword(key)


def is_portable_tool(name: str, *, limit: int) -> bool:
    return PORTABLE_TOOL.fullmatch(name) is not None and len(name) <= limit


def alias_keys(keys: Iterable[str]) -> dict[str, str]:
    """An alias for each key that needs one; no two keys share one, and none is another's key."""
    known = set(keys)
    odd = {key: _mangled(key) for key in known if not is_portable_key(key)}
    plain = {key: f"{alias}_" if keyword.iskeyword(alias) else alias for key, alias in odd.items()}
    return _told_apart(plain, taken=known, limit=LONGEST_KEY)


def alias_tools(names: Iterable[str], *, limit: int) -> dict[str, str]:
    """The same for tools, none of which is called like a built-in one."""
    known = set(names)
    odd = {name: _mangled(name, also="-") for name in known if not is_portable_tool(name, limit=limit)}
    return _told_apart(odd, taken=known | RESERVED, limit=limit)


def _told_apart(plain: dict[str, str], *, taken: Set[str], limit: int) -> dict[str, str]:
    """The plain names where these will do, else with a digest of the whole."""
    used = Counter(plain.values())

    def is_unique(alias: str) -> bool:
        return len(alias) <= limit and used[alias] == 1 and alias not in taken

    return {
        name: alias if is_unique(alias) else _with_digest(name, alias, limit) for name, alias in plain.items()
    }


def _with_digest(name: str, alias: str, limit: int) -> str:
    digest = hashlib.sha256(name.encode(errors="replace")).hexdigest()[:DIGEST]
    return f"{alias[: limit - DIGEST - 1].rstrip('_-')}_{digest}"


def _mangled(name: str, also: str = "") -> str:
    """`page[size]` -> `page_size`; what has no letter in front gets one."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode("ascii")
    words = re.sub(rf"[^A-Za-z0-9_{also}]+", "_", plain).strip("_-")
    return words if words[:1].isalpha() else f"n_{words}".rstrip("_")
