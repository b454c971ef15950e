"""`tools/list` as bytes: serialised once per view and revision, and answered from memory.

The SDK alone needs 67 ms for a thousand tools, a request (docs/decisions/0013-tool-lists.md).
"""

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import WeakSet

from django.conf import settings
from loguru import logger
from mcp_types import SERVER_INFO_META_KEY
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION, MODERN_PROTOCOL_VERSIONS

from catalogue.database import run_in_database
from catalogue.exposure import MAX_AGE_SECONDS, ExposedCatalogue, current_catalogue, fresh_catalogue
from mcp_bridge.access import Access
from mcp_bridge.cursors import page_bounds
from mcp_bridge.portability import portable_view
from mcp_bridge.tool_entries import (
    built_in_tools,
    forget_left_out,
    list_on_the_wire,
    listed_workflows,
    make_of_each,
    serialise_tool,
    serialised_tools,
    write_json,
)

STALE_SECONDS = 0.9 - MAX_AGE_SECONDS
"""How long a list is still served while the next one is made; agents see a change at most 1 s later."""
MOST_VIEWS = 64
"""Lists kept in a process; the least recently asked for goes first."""


@dataclass(frozen=True, slots=True)
class View:
    """What makes two callers see the same list."""

    toolset: str | None
    scopes: frozenset[str]
    version: str
    """Of the protocol; the handshake versions share one wire format."""

    @classmethod
    def of(cls, access: Access, version: str) -> "View":
        shared = LATEST_HANDSHAKE_VERSION if version in HANDSHAKE_PROTOCOL_VERSIONS else version
        return cls(access.toolset, access.scopes, shared)


@dataclass(slots=True)
class ToolList:
    """One view's tools at one revision, each serialised, and its pages as far as they were asked for."""

    view: View
    catalogue: ExposedCatalogue
    positions: list[str]
    """Sorted, by which cursors go on."""
    tools: list[bytes]
    server_info: dict[str, Any]
    current_at: float = field(default_factory=time.monotonic)
    """When its catalogue was last seen to be the present one."""
    _pages: dict[int, bytes] = field(default_factory=dict)
    """By where they begin."""

    def closed_page(self, cursor: str | None) -> bytes:
        """The JSON of a result, and the brace that closes the answer. Raises MCPError for a bad cursor."""
        size = settings.CATALOGUE["page_size"]
        begin, end, following = page_bounds(self.positions, cursor, size)
        if (known := self._pages.get(begin)) is not None:
            return known
        made = self._before_tools(following) + b",".join(self.tools[begin:end]) + b"]}}"
        # Cursors of other revisions begin pages anywhere; only those that this list gives come again.
        if begin % size == 0:
            self._pages[begin] = made
        return made

    def _before_tools(self, following: str | None) -> bytes:
        """All of the result but the tools, open for them."""
        ttl = round(settings.CATALOGUE["list_ttl"] * 1000)
        wire = list_on_the_wire(
            [], self.view.version, next_cursor=following, ttl_ms=ttl, cache_scope="private"
        )
        del wire["tools"]
        if self.view.version in MODERN_PROTOCOL_VERSIONS:
            wire |= {"resultType": "complete", "_meta": {SERVER_INFO_META_KEY: self.server_info}}
        members = write_json(wire)[1:-1]
        return b"{" + (members + b"," if members else b"") + b'"tools":['


_all_lists: "WeakSet[ToolLists]" = WeakSet()


class ToolLists:
    """The lists of one server, each for the present revision; the next one is made in the background."""

    def __init__(
        self,
        server_info: dict[str, Any],
        on_new_catalogue: Callable[[ExposedCatalogue], None] = lambda _: None,
    ) -> None:
        self._server_info = server_info
        self._on_new_catalogue = on_new_catalogue
        self._lists: OrderedDict[View, ToolList] = OrderedDict()
        self._making = threading.Lock()
        self._refreshing: asyncio.Task[None] | None = None
        _all_lists.add(self)

    async def closed_page(self, access: Access, version: str, cursor: str | None) -> bytes:
        """A result of `tools/list`, as `ToolList.closed_page` has it."""
        view = View.of(access, version)
        known = self._lists.get(view)
        if known is None or not self._is_usable(known):
            known = await run_in_database(self.current, view)
        return known.closed_page(cursor)

    def recall(self, access: Access, view: View, cursor: str | None) -> bytes | None:
        """The same from memory alone; None where somebody has to look. Raises MCPError for a bad cursor."""
        known = self._lists.get(view)
        if known is None or (access.toolset or "") not in ("", *known.catalogue.toolsets):
            return None
        return known.closed_page(cursor) if self._is_usable(known) else None

    def current(self, view: View) -> ToolList:
        """The list of the present revision; may ask the database."""
        # Before anything is loaded and made of it, which may take longer than a list may be stale.
        asked_at = time.monotonic()
        catalogue = current_catalogue()
        with self._making:
            known = self._lists.get(view)
            if known is None or known.catalogue is not catalogue:
                known = self._lists[view] = self._made(view, catalogue)
                serialised_tools.forget_gone(catalogue)
                self._on_new_catalogue(catalogue)
            known.current_at = asked_at
            self._lists.move_to_end(view)
            if len(self._lists) > MOST_VIEWS:
                self._lists.popitem(last=False)
            return known

    def forget(self) -> None:
        with self._making:
            self._lists.clear()

    def _is_usable(self, known: ToolList) -> bool:
        if fresh_catalogue() is known.catalogue:
            known.current_at = time.monotonic()
            return True
        if time.monotonic() - known.current_at >= STALE_SECONDS:
            return False
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh())
        return True

    async def _refresh(self) -> None:
        """Before anybody has to wait for it; whoever does learns what went wrong."""
        try:
            await run_in_database(self._refresh_recent)
        except Exception as error:  # noqa: BLE001 - nobody waits for this; the next request tries again
            logger.warning("Making the lists of tools in the background failed: {}", error)

    def _refresh_recent(self) -> None:
        """Those that somebody has just asked for; the others wait until somebody does."""
        since = time.monotonic() - STALE_SECONDS - MAX_AGE_SECONDS
        for view, known in list(self._lists.items()):
            if known.current_at > since:
                self.current(view)

    def _made(self, view: View, catalogue: ExposedCatalogue) -> ToolList:
        built_in = [*built_in_tools(catalogue.seen_through(view.toolset), view.scopes).values()]
        workflows = listed_workflows(catalogue, toolset=view.toolset, scopes=view.scopes).values()
        portable = portable_view(catalogue, view.toolset)
        serialise = partial(serialised_tools.of, version=view.version, portable=portable)
        serialised = [*make_of_each(serialise, workflows, catalogue)]
        if portable is not None:
            built_in = [*map(portable.show, built_in)]
        return ToolList(
            view=view,
            catalogue=catalogue,
            positions=[
                *(f"0{number:03}" for number in range(len(built_in))),
                *(f"1{workflow.tool_name}" for workflow, _ in serialised),
            ],
            tools=[
                *(serialise_tool(tool, view.version) for tool in built_in),
                *(made.tool for _, made in serialised),
            ],
            server_info=self._server_info,
        )


def forget_tool_lists() -> None:
    forget_left_out()
    serialised_tools.forget()
    for lists in _all_lists:
        lists.forget()
