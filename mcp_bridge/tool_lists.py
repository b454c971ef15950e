"""`tools/list` as bytes, serialised once per view and revision (docs/decisions/0013-tool-lists.md)."""

import asyncio
import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, TypeVar
from weakref import WeakSet

from cachetools import FIFOCache
from django.conf import settings
from loguru import logger
from mcp_types import SERVER_INFO_META_KEY, Icon, ListToolsResult, Tool, ToolAnnotations
from mcp_types.methods import serialize_server_result
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION, MODERN_PROTOCOL_VERSIONS

from catalogue import exposure
from catalogue.database import run_in_database
from catalogue.interactions import InteractionKind
from catalogue.models import Toolset, Workflow
from catalogue.scopes import Scope
from mcp_bridge.builtin_tools import BUILT_IN_TOOLS
from mcp_bridge.content import promises_output
from mcp_bridge.declarations import page_bounds
from mcp_bridge.portability import PortableView, portable_view
from mcp_bridge.tokens import Access

Made = TypeVar("Made")
_logged_at: dict[int, int] = {}  # The last revision at which a workflow's error was logged
forget_left_out = _logged_at.clear
METHOD = "tools/list"
STALE_SECONDS = 0.9 - exposure.MAX_AGE_SECONDS  # While the next list is made; agents see changes within 1 s
MOST_VIEWS = 64
_all_lists: "WeakSet[ToolLists]" = WeakSet()


def visible_tools(catalogue: exposure.ExposedCatalogue, access: Access) -> list[Tool]:
    workflows = listed_workflows(catalogue, toolset=access.toolset, scopes=access.scopes)
    portable = portable_view(catalogue, access.toolset)
    make = partial(workflow_tool, portable=portable)
    tools = (tool for _, tool in make_of_each(make, workflows.values(), catalogue))
    built_in = built_in_tools(catalogue.seen_through(access.toolset), access.scopes).values()
    return [*(portable.show(tool) if portable else tool for tool in built_in), *tools]


def built_in_tools(seen: exposure.Workflows, scopes: frozenset[str]) -> Mapping[str, Tool]:
    """By name. Tools for queries and signals only if a workflow declares some."""
    kinds = set()
    if any(workflow.queries for workflow in seen.values()):
        kinds.add(InteractionKind.QUERY)
    if any(workflow.signals for workflow in seen.values()):
        kinds.add(InteractionKind.SIGNAL)
    return _built_in_tools(scopes, frozenset(kinds))


@cache
def _built_in_tools(scopes: frozenset[str], kinds: frozenset[InteractionKind]) -> Mapping[str, Tool]:
    useful = {None, *kinds}
    return {
        name: tool.tool
        for name, tool in BUILT_IN_TOOLS.items()
        if tool.is_open_to(scopes) and tool.takes_part_in in useful
    }


def listed_workflows(
    catalogue: exposure.ExposedCatalogue, *, toolset: str | None, scopes: frozenset[str]
) -> exposure.Workflows:
    """Those with a tool of their own; none in a compact toolset."""
    entry = catalogue.toolsets.get(toolset or "")
    if Scope.RUN not in scopes or (entry is not None and entry.toolset.mode == Toolset.Mode.COMPACT):
        return exposure.NOTHING
    return catalogue.seen_through(toolset)


def make_of_each(
    make: Callable[[Workflow], Made], workflows: Iterable[Workflow], catalogue: exposure.ExposedCatalogue
) -> Iterator[tuple[Workflow, Made]]:
    """Skips workflows for which `make` fails: one invalid row must not break a list."""
    for workflow in workflows:
        try:
            made = make(workflow)
        except Exception as error:  # noqa: BLE001 - any error concerns this row alone
            if _logged_at.get(workflow.pk) != catalogue.revision:
                _logged_at[workflow.pk] = catalogue.revision
                logger.error("{} is left out of lists, as its row is broken: {}", workflow, str(error)[:300])
        else:
            yield workflow, made


def workflow_tool(workflow: Workflow, *, portable: PortableView | None = None) -> Tool:
    hints = workflow.effective_hints
    tool = Tool(
        name=workflow.tool_name,
        title=workflow.title,
        description=workflow.shown_description,
        input_schema=workflow.served_input_schema,
        output_schema=workflow.served_output_schema if promises_output(workflow) else None,
        annotations=ToolAnnotations.model_validate(hints) if hints else None,
        icons=icons_of(workflow),
    )
    return tool if portable is None else portable.show(tool)


def icons_of(workflow: Workflow) -> list[Icon] | None:
    return [Icon.model_validate(icon) for icon in workflow.shown_icons] or None


@dataclass(frozen=True, slots=True)
class SerialisedTool:
    workflow: Workflow
    shown_as: str
    made_of: tuple[Any, ...]
    tool: bytes
    characters: int


class SerialisedTools:
    """Tools of workflows, shared by all lists of a process; most stay the same at a new revision."""

    def __init__(self) -> None:
        # By protocol version and slug of a portable toolset.
        self._by_version: defaultdict[tuple[str, str], dict[int, SerialisedTool]] = defaultdict(dict)
        self._changing = threading.Lock()

    def of(self, workflow: Workflow, version: str, portable: PortableView | None = None) -> SerialisedTool:
        key = (version, portable.entry.toolset.slug if portable else "")
        known = self._by_version.get(key, {}).get(workflow.pk)
        shown_as = portable.shown_name(workflow.tool_name) if portable else workflow.tool_name
        # The catalogue keeps the object as long as its row is the same.
        if known is not None and known.workflow is workflow and known.shown_as == shown_as:
            return known
        made_of = _what_shows(workflow)
        if known is not None and (known.shown_as, known.made_of) == (shown_as, made_of):
            made = replace(known, workflow=workflow)
        else:
            tool = serialise_tool(workflow_tool(workflow, portable=portable), version)
            made = SerialisedTool(workflow, shown_as, made_of, tool, len(tool.decode()))
        with self._changing:
            self._by_version[key][workflow.pk] = made
        return made

    def forget_gone(self, catalogue: exposure.ExposedCatalogue) -> None:
        present = {workflow.pk for workflow in catalogue.workflows.values()}
        with self._changing:
            for tools in self._by_version.values():
                for gone in tools.keys() - present:
                    del tools[gone]

    def forget(self) -> None:
        with self._changing:
            self._by_version.clear()


serialised_tools = SerialisedTools()


def _what_shows(workflow: Workflow) -> tuple[Any, ...]:
    """Changes whenever the tool does; the hash covers all that upstream provides, including schemas."""
    return (
        workflow.content_hash,
        # As text: 1 equals True.
        json.dumps(workflow.argument_overrides),
        workflow.title,
        workflow.shown_description,
        workflow.effective_execution_type,
        workflow.promised_output_schema is None,
        workflow.effective_hints,
        workflow.shown_icons,
    )


def serialise_tool(tool: Tool, version: str) -> bytes:
    (on_the_wire,) = list_on_the_wire([tool], version)["tools"]
    return write_json(on_the_wire)


def list_on_the_wire(tools: list[Tool], version: str, **others: Any) -> dict[str, Any]:
    """A result of `tools/list` as the SDK makes it, without its stamp."""
    result = ListToolsResult(tools=tools, **others).model_dump(by_alias=True, mode="json", exclude_none=True)
    return serialize_server_result(METHOD, version, result)


def write_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class View:
    toolset: str | None
    scopes: frozenset[str]
    version: str  # Of the protocol; handshake versions share one wire format

    @classmethod
    def of(cls, access: Access, version: str) -> "View":
        shared = LATEST_HANDSHAKE_VERSION if version in HANDSHAKE_PROTOCOL_VERSIONS else version
        return cls(access.toolset, access.scopes, shared)


@dataclass(slots=True)
class ToolList:
    view: View
    catalogue: exposure.ExposedCatalogue
    positions: list[str]  # Sorted; cursors are positions
    tools: list[bytes]
    server_info: dict[str, Any]
    current_at: float = field(default_factory=time.monotonic)  # When its catalogue was last confirmed
    _pages: dict[int, bytes] = field(default_factory=dict)  # By their begin

    def closed_page(self, cursor: str | None) -> bytes:
        """The JSON of a result and the closing brace of the answer. Raises MCPError for a bad cursor."""
        size = settings.CATALOGUE["page_size"]
        begin, end, following = page_bounds(self.positions, cursor, size)
        if (known := self._pages.get(begin)) is not None:
            return known
        made = self._before_tools(following) + b",".join(self.tools[begin:end]) + b"]}}"
        # Cursors of other revisions may begin anywhere; only those of this list recur.
        if begin % size == 0:
            self._pages[begin] = made
        return made

    def _before_tools(self, following: str | None) -> bytes:
        ttl = round(settings.CATALOGUE["list_ttl"] * 1000)
        wire = list_on_the_wire(
            [], self.view.version, next_cursor=following, ttl_ms=ttl, cache_scope="private"
        )
        del wire["tools"]
        if self.view.version in MODERN_PROTOCOL_VERSIONS:
            wire |= {"resultType": "complete", "_meta": {SERVER_INFO_META_KEY: self.server_info}}
        members = write_json(wire)[1:-1]
        return b"{" + (members + b"," if members else b"") + b'"tools":['


class ToolLists:
    """Lists of one server; those of the next revision are made in the background."""

    def __init__(
        self,
        server_info: dict[str, Any],
        on_new_catalogue: Callable[[exposure.ExposedCatalogue], None] = lambda _: None,
    ) -> None:
        self._server_info = server_info
        self._on_new_catalogue = on_new_catalogue
        self._lists: FIFOCache[View, ToolList] = FIFOCache(MOST_VIEWS)
        self._making = threading.Lock()
        self._refreshing: asyncio.Task[None] | None = None
        _all_lists.add(self)

    async def closed_page(self, access: Access, version: str, cursor: str | None) -> bytes:
        view = View.of(access, version)
        known = self._lists.get(view)
        if known is None or not self._is_usable(known):
            known = await run_in_database(self.current, view)
        return known.closed_page(cursor)

    def recall(self, access: Access, view: View, cursor: str | None) -> bytes | None:
        """From memory; None if that is not possible. Raises MCPError for a bad cursor."""
        known = self._lists.get(view)
        if known is None or (access.toolset or "") not in ("", *known.catalogue.toolsets):
            return None
        return known.closed_page(cursor) if self._is_usable(known) else None

    def current(self, view: View) -> ToolList:
        """The list of the present revision; may query the database."""
        # Taken first: loading may take longer than STALE_SECONDS.
        asked_at = time.monotonic()
        catalogue = exposure.current_catalogue()
        with self._making:
            known = self._lists.get(view)
            if known is None or known.catalogue is not catalogue:
                known = self._made(view, catalogue)
                serialised_tools.forget_gone(catalogue)
                self._on_new_catalogue(catalogue)
            known.current_at = asked_at
            # Also moves it to the end of the FIFO.
            self._lists[view] = known
            return known

    def forget(self) -> None:
        with self._making:
            self._lists.clear()

    def _is_usable(self, known: ToolList) -> bool:
        if exposure.fresh_catalogue() is known.catalogue:
            known.current_at = time.monotonic()
            return True
        if time.monotonic() - known.current_at >= STALE_SECONDS:
            return False
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh())
        return True

    async def _refresh(self) -> None:
        try:
            await run_in_database(self._refresh_recent)
        except Exception as error:  # noqa: BLE001 - the next request tries again
            logger.warning("Making the lists of tools in the background failed: {}", error)

    def _refresh_recent(self) -> None:
        """Lists in use; others are made on request."""
        since = time.monotonic() - STALE_SECONDS - exposure.MAX_AGE_SECONDS
        for view, known in list(self._lists.items()):
            if known.current_at > since:
                self.current(view)

    def _made(self, view: View, catalogue: exposure.ExposedCatalogue) -> ToolList:
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
