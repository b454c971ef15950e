"""Cursors of MCP's lists: opaque to clients, and good for whatever the list has become meanwhile."""

import base64
import binascii
from bisect import bisect_right
from collections.abc import Sequence

from mcp import MCPError
from mcp_types import INVALID_PARAMS

LONGEST_CURSOR = 2000


def make_cursor(last: str) -> str:
    """For the page after the item of this name."""
    return base64.urlsafe_b64encode(last.encode()).decode().rstrip("=")


def read_cursor(cursor: str) -> str:
    """The name that the cursor was made from. Raises MCPError for one that we cannot have made."""
    try:
        if not 0 < len(cursor) <= LONGEST_CURSOR:
            raise ValueError
        padded = cursor + "=" * (-len(cursor) % 4)
        last = base64.b64decode(padded.encode("ascii"), altchars=b"-_", validate=True).decode()
    except (ValueError, binascii.Error):
        raise MCPError(INVALID_PARAMS, "Unknown cursor: send the nextCursor of the page before.") from None
    if make_cursor(last) != cursor:
        raise MCPError(INVALID_PARAMS, "Unknown cursor: send the nextCursor of the page before.")
    return last


def page_bounds(names: Sequence[str], cursor: str | None, size: int) -> tuple[int, int, str | None]:
    """Where the page begins and ends in the sorted names, and the cursor of the next one, if there is one.

    An item that came or went since the last page moves nothing else. Raises MCPError.
    """
    begin = 0 if cursor is None else bisect_right(names, read_cursor(cursor))
    end = min(begin + size, len(names))
    return begin, end, make_cursor(names[end - 1]) if end < len(names) else None
