"""`tools/list` as bytes, serialised once per view and revision (docs/decisions/0017-tool-lists.md)."""

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

from cachetools import FIFOCache, cached
from django.conf import settings
from loguru import logger
from mcp_types import (
    LATEST_PROTOCOL_VERSION,
    SERVER_INFO_META_KEY,
    Icon,
    ListToolsResult,
    Tool,
    ToolAnnotations,
)
from mcp_types.methods import serialize_server_result
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION, MODERN_PROTOCOL_VERSIONS

from catalogue.access import Bounds, Person, Scope
from catalogue.database import run_in_database
from catalogue.descriptions import tokens_for
from catalogue.exposure import (
    MAX_AGE_SECONDS,
    NOTHING,
    ExposedCatalogue,
    Workflows,
    confirmed_catalogue,
    current_catalogue,
    ExposedToolset,
    fresh_catalogue,
    shown_by,
)
from catalogue.interactions import InteractionKind
from catalogue.models import Toolset, Workflow
from catalogue.naming import counted
from mcp_bridge.builtin_tools import BUILT_IN_TOOLS
from mcp_bridge.content import promises_output
from mcp_bridge.models import default_scopes
from mcp_bridge.portability import PortableView, portable_view
from mcp_bridge.request_meta import make_cursor, page_bounds
from mcp_bridge.tokens import Access

Made = TypeVar("Made")
_logged_at: dict[int, int] = {}  # The last revision at which a workflow's error was logged
forget_left_out = _logged_at.clear
METHOD = "tools/list"
STALE_SECONDS = 0.9 - MAX_AGE_SECONDS  # While the next list is made; agents see changes within 1 s
MOST_VIEWS = 64
MOST_COSTS = 10_000
_all_lists: "WeakSet[ToolLists]" = WeakSet()


def visible_tools(catalogue: ExposedCatalogue, access: Access) -> list[Tool]:
    workflows = listed_workflows(catalogue, access.bounds, scopes=access.scopes)
    portable = portable_view(catalogue, access.bounds)
    make = partial(workflow_tool, portable=portable)
    tools = (tool for _, tool in make_of_each(make, workflows.values(), catalogue))
    built_in = built_in_tools(catalogue.seen_within(access.bounds), access.scopes).values()
    return [*(portable.show(tool) if portable else tool for tool in built_in), *tools]


def built_in_tools(seen: Workflows, scopes: frozenset[str]) -> Mapping[str, Tool]:
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


def listed_workflows(catalogue: ExposedCatalogue, bounds: Bounds, *, scopes: frozenset[str]) -> Workflows:
    """Those with a tool of their own; none in a compact toolset."""
    entry = catalogue.toolset_within(bounds)
    if Scope.RUN not in scopes or (entry is not None and entry.toolset.mode == Toolset.Mode.COMPACT):
        return NOTHING
    return catalogue.seen_within(bounds)


def make_of_each(
    make: Callable[[Workflow], Made], workflows: Iterable[Workflow], catalogue: ExposedCatalogue
) -> Iterator[tuple[Workflow, Made]]:
    """Skips workflows for which `make` fails: one invalid row must not break a list."""
    for workflow in workflows:
        try:
            made = make(workflow)
        except Exception as error:  # noqa: BLE001 - any error concerns this row alone
            if _logged_at.get(workflow.pk) != catalogue.revision:
                _logged_at[workflow.pk] = catalogue.revision
                logger.error(
                    "{} is left out of lists because its record is invalid: {}", workflow, str(error)[:300]
                )
        else:
            yield workflow, made


def workflow_tool(
    workflow: Workflow, *, portable: PortableView | None = None, to_the_end: bool = True
) -> Tool:
    """`to_the_end`: as in `promises_output`."""
    is_promised = promises_output(workflow, to_the_end=to_the_end)
    hints = workflow.effective_hints
    tool = Tool(
        name=workflow.tool_name,
        title=workflow.title,
        description=workflow.shown_description,
        input_schema=workflow.served_input_schema,
        output_schema=workflow.served_output_schema if is_promised else None,
        annotations=ToolAnnotations.model_validate(hints) if hints else None,
        icons=icon_models(workflow.shown_icons),
    )
    return tool if portable is None else portable.show(tool)


def icon_models(icons: Iterable[dict[str, Any]]) -> list[Icon] | None:
    return [Icon.model_validate(icon) for icon in icons] or None


@dataclass(frozen=True, slots=True)
class SerialisedTool:
    workflow: Workflow
    shown_as: str
    made_of: tuple[Any, ...]
    tool: bytes
    characters: int
    is_approved: bool  # By a toolset, which changes without the workflow's object


class SerialisedTools:
    """Tools of workflows, shared by all lists of a process; most stay the same at a new revision."""

    def __init__(self) -> None:
        # By protocol version, slug of a portable toolset, and whether the client waits to the end.
        self._by_version: defaultdict[tuple[str, str, bool], dict[int, SerialisedTool]] = defaultdict(dict)
        self._shown: dict[int, tuple[Workflow, bool, tuple[Any, ...]]] = {}
        self._changing = threading.Lock()

    def of(
        self,
        workflow: Workflow,
        version: str,
        portable: PortableView | None = None,
        *,
        to_the_end: bool = True,
    ) -> SerialisedTool:
        key = (version, portable.entry.toolset.slug if portable else "", to_the_end)
        known = self._by_version.get(key, {}).get(workflow.pk)
        shown_as = portable.shown_name(workflow.tool_name) if portable else workflow.tool_name
        is_approved = bool(workflow.approving_toolsets)
        # The catalogue keeps the object as long as its row is the same.
        if (
            known is not None
            and known.workflow is workflow
            and (known.shown_as, known.is_approved) == (shown_as, is_approved)
        ):
            return known
        made_of = self.what_shows(workflow)
        if known is not None and (known.shown_as, known.made_of) == (shown_as, made_of):
            made = replace(known, workflow=workflow, is_approved=is_approved)
        else:
            made_tool = workflow_tool(workflow, portable=portable, to_the_end=to_the_end)
            tool = serialise_tool(made_tool, version)
            made = SerialisedTool(workflow, shown_as, made_of, tool, len(tool.decode()), is_approved)
        with self._changing:
            self._by_version[key][workflow.pk] = made
        return made

    def what_shows(self, workflow: Workflow) -> tuple[Any, ...]:
        """Changes whenever the tool does."""
        known, is_approved = self._shown.get(workflow.pk), bool(workflow.approving_toolsets)
        if known is None or known[0] is not workflow or known[1] != is_approved:
            known = (workflow, is_approved, _what_shows(workflow))
            with self._changing:
                self._shown[workflow.pk] = known
        return known[2]

    def forget_gone(self, catalogue: ExposedCatalogue) -> None:
        present = {workflow.pk for workflow in catalogue.workflows.values()}
        with self._changing:
            for gone in self._shown.keys() - present:
                del self._shown[gone]
            for tools in self._by_version.values():
                for gone in tools.keys() - present:
                    del tools[gone]

    def forget(self) -> None:
        with self._changing:
            self._by_version.clear()
            self._shown.clear()


serialised_tools = SerialisedTools()


def _what_shows(workflow: Workflow) -> tuple[Any, ...]:
    """The hash covers all that upstream provides, including schemas."""
    return (
        workflow.content_hash,
        # As text, since 1 equals True.
        json.dumps(workflow.argument_overrides),
        workflow.title,
        workflow.shown_description,
        workflow.effective_execution_type,
        promises_output(workflow),
        workflow.effective_hints,
        workflow.shown_icons,
    )


def serialise_tool(tool: Tool, version: str) -> bytes:
    (on_the_wire,) = list_on_the_wire([tool], version)["tools"]
    return write_json(on_the_wire)


def list_on_the_wire(tools: list[Tool], version: str, **others: Any) -> dict[str, Any]:
    """A result of `tools/list` as the SDK creates it, without its stamp."""
    result = ListToolsResult(tools=tools, **others).model_dump(by_alias=True, mode="json", exclude_none=True)
    return serialize_server_result(METHOD, version, result)


def list_ttl_ms() -> int:
    """How long clients may keep a list."""
    return round(settings.CATALOGUE.list_ttl * 1000)


def write_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class View:
    toolset: str | None
    scopes: frozenset[str]
    version: str  # Of the protocol; handshake versions share one wire format
    person: Person | None = None  # Only names that occur in reservations
    waits_to_the_end: bool = True  # No inline wait is set for the token

    @classmethod
    def of(cls, access: Access, version: str, catalogue: ExposedCatalogue) -> "View":
        return cls._made(access, version, catalogue.reservations.relevant_of(access.bounds.person))

    @classmethod
    def at_once(cls, access: Access, version: str) -> "View | None":
        """Without the database; None if it must be queried, for callers to whom reservations apply."""
        if access.bounds.person is None:
            return cls._made(access, version, None)
        catalogue = fresh_catalogue()
        return None if catalogue is None else cls.of(access, version, catalogue)

    @classmethod
    def _made(cls, access: Access, version: str, person: Person | None) -> "View":
        shared = LATEST_HANDSHAKE_VERSION if version in HANDSHAKE_PROTOCOL_VERSIONS else version
        return cls(access.toolset, access.scopes, shared, person, access.inline_wait_seconds is None)

    @property
    def bounds(self) -> Bounds:
        return Bounds(self.toolset, self.person)


@dataclass(slots=True)
class ToolList:
    """Its pages are created on request, so that the first of many is available immediately."""

    view: View
    catalogue: ExposedCatalogue
    positions: list[str]  # Sorted; cursors are positions
    built_in: list[bytes]
    workflows: list[Workflow]  # Listed after the built-in tools
    portable: PortableView | None
    server_info: dict[str, Any]
    current_at: float = field(default_factory=time.monotonic)  # When its catalogue was last confirmed
    pages: dict[int, bytes] = field(default_factory=dict)  # By their begin

    def closed_page(self, cursor: str | None) -> bytes:
        """The JSON of a result and the closing brace of the answer. Raises MCPError for a bad cursor."""
        begin, end, following = self._bounds(cursor)
        return self.pages.get(begin) or self._make(begin, end, following)

    def known_page(self, cursor: str | None) -> bytes | None:
        """The same if it exists already."""
        return self.pages.get(self._bounds(cursor)[0])

    def what_shows(self) -> list[Any]:
        """Differs from that of another list of this view if a client would see a difference."""
        portable = self.portable
        shown_as = portable.shown_name if portable else str
        of_workflows = make_of_each(serialised_tools.what_shows, self.workflows, self.catalogue)
        named = ((shown_as(workflow.tool_name), what) for workflow, what in of_workflows)
        return [self._is_awaited_to_the_end, *self.built_in, *named]

    def make_pages_of(self, former: "ToolList") -> None:
        for begin in list(former.pages):
            if 0 < begin < len(self.positions):
                self.closed_page(make_cursor(self.positions[begin - 1]))
            elif begin == 0:
                self.closed_page(None)

    @property
    def _is_awaited_to_the_end(self) -> bool:
        entry = self.catalogue.toolset_within(self.view.bounds)
        return self.view.waits_to_the_end and (entry is None or entry.toolset.inline_wait_seconds is None)

    def _bounds(self, cursor: str | None) -> tuple[int, int, str | None]:
        return page_bounds(self.positions, cursor, settings.CATALOGUE.page_size)

    def _make(self, begin: int, end: int, following: str | None) -> bytes:
        ahead = len(self.built_in)
        workflows = self.workflows[max(begin - ahead, 0) : max(end - ahead, 0)]
        serialise = partial(
            serialised_tools.of,
            version=self.view.version,
            portable=self.portable,
            to_the_end=self._is_awaited_to_the_end,
        )
        of_workflows = [made.tool for _, made in make_of_each(serialise, workflows, self.catalogue)]
        tools = b",".join(self.built_in[begin:end] + of_workflows)
        made = self._before_tools(following) + tools + b"]}}"
        # Cursors of other revisions may begin anywhere; only those of this list recur.
        if begin % settings.CATALOGUE.page_size == 0:
            self.pages[begin] = made
        return made

    def _before_tools(self, following: str | None) -> bytes:
        wire = list_on_the_wire(
            [], self.view.version, next_cursor=following, ttl_ms=list_ttl_ms(), cache_scope="private"
        )
        del wire["tools"]
        if self.view.version in MODERN_PROTOCOL_VERSIONS:
            wire |= {"resultType": "complete", "_meta": {SERVER_INFO_META_KEY: self.server_info}}
        members = write_json(wire)[1:-1]
        return b"{" + (members + b"," if members else b"") + b'"tools":['


class ToolLists:
    """Lists of one server; those of the next revision are created in the background."""

    def __init__(
        self,
        server_info: dict[str, Any],
        on_new_catalogue: Callable[[ExposedCatalogue], None] = lambda _: None,
    ) -> None:
        self._server_info = server_info
        self._on_new_catalogue = on_new_catalogue
        self._lists: FIFOCache[View, ToolList] = FIFOCache(MOST_VIEWS)
        self._making = threading.Lock()
        self._refreshing: asyncio.Task[None] | None = None
        _all_lists.add(self)

    async def closed_page(self, access: Access, version: str, cursor: str | None) -> bytes:
        view = View.at_once(access, version)
        page = None if view is None else self.recall(view, cursor)
        if page is None:
            page = await run_in_database(self._make_page, access, version, cursor)
        return page

    def _make_page(self, access: Access, version: str, cursor: str | None) -> bytes:
        present = self.current(View.of(access, version, current_catalogue()))
        with self._making:
            return present.closed_page(cursor)

    def recall(self, view: View, cursor: str | None) -> bytes | None:
        """A page from memory; None if that is not possible. Raises MCPError for a bad cursor."""
        known = self._lists.get(view)
        if known is None or (view.toolset and known.catalogue.toolset_within(view.bounds) is None):
            return None
        return known.known_page(cursor) if self._is_usable(known) else None

    def current(self, view: View) -> ToolList:
        """The list of the present revision; may query the database."""
        # Read first: loading may take longer than STALE_SECONDS.
        asked_at = time.monotonic()
        catalogue = current_catalogue()
        with self._making:
            known = self._lists.get(view)
            if known is None or known.catalogue is not catalogue:
                former, known = known, self._made(view, catalogue)
                if former is not None:
                    known.make_pages_of(former)
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
        if fresh_catalogue() is known.catalogue:
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
            logger.warning("Building the lists of tools in the background failed: {}", error)

    def _refresh_recent(self) -> None:
        """Lists in use; others are created on request."""
        since = time.monotonic() - STALE_SECONDS - MAX_AGE_SECONDS
        for view, known in list(self._lists.items()):
            if known.current_at > since:
                self.current(view)

    def _made(self, view: View, catalogue: ExposedCatalogue) -> ToolList:
        built_in = [*built_in_tools(catalogue.seen_within(view.bounds), view.scopes).values()]
        workflows = [*listed_workflows(catalogue, view.bounds, scopes=view.scopes).values()]
        portable = portable_view(catalogue, view.bounds)
        if portable is not None:
            built_in = [*map(portable.show, built_in)]
        return ToolList(
            view=view,
            catalogue=catalogue,
            positions=[
                *(f"0{number:03}" for number in range(len(built_in))),
                *(f"1{workflow.tool_name}" for workflow in workflows),
            ],
            built_in=[serialise_tool(tool, view.version) for tool in built_in],
            workflows=workflows,
            portable=portable,
            server_info=self._server_info,
        )


def forget_tool_lists() -> None:
    forget_left_out()
    serialised_tools.forget()
    for lists in _all_lists:
        lists.forget()


@dataclass(frozen=True, slots=True)
class ListCost:
    tools: int
    characters: int

    @property
    def tokens(self) -> int:
        return tokens_for(self.characters)

    def __str__(self) -> str:
        return f"{counted(self.tools, 'tool')}, {self.characters:,} characters, about {self.tokens:,} tokens"


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolsetCost:
    full: ListCost
    compact: ListCost
    is_compact: bool
    budget: int | None  # Tokens; None: no limit

    @property
    def served(self) -> ListCost:
        return self.compact if self.is_compact else self.full

    @property
    def is_over_budget(self) -> bool:
        return self.budget is not None and self.served.tokens > self.budget

    @property
    def percent_over(self) -> int:
        """Rounded up; 0 within the budget."""
        if self.budget is None or not self.is_over_budget:
            return 0
        return -(-(self.served.tokens - self.budget) * 100 // self.budget)

    @property
    def compared(self) -> str:
        """`5,200 of 4,000 tokens: 30 % over`; empty without a budget."""
        if self.budget is None:
            return ""
        over = f": {self.percent_over:,} % over" if self.is_over_budget else ""
        return f"{self.served.tokens:,} of {self.budget:,} tokens{over}"

    @property
    def warning(self) -> str:
        """Empty within the budget."""
        if self.budget is None or not self.is_over_budget:
            return ""
        remedy = "switch it to compact mode or remove workflows"
        if self.compact.tokens > self.budget:
            remedy = f"raise the budget, because the built-in tools alone take {self.compact.tokens:,}"
        return f"{self.compared}; {remedy}"


# By the revision, which every change of a toolset or its workflows increments.
_costs: FIFOCache[tuple[int, int | None], ToolsetCost] = FIFOCache(MOST_COSTS)
_costs_turn = threading.Lock()
forget_costs = _costs.clear


@cached(_costs, lambda catalogue: (catalogue.revision, None), _costs_turn)
def cost_of_catalogue(catalogue: ExposedCatalogue) -> ToolsetCost:
    return _weigh(catalogue.workflows, catalogue, mode=Toolset.Mode.FULL, budget=None)


@cached(_costs, lambda toolset, catalogue: (catalogue.revision, toolset.pk), _costs_turn)
def cost_of_toolset(toolset: Toolset, catalogue: ExposedCatalogue) -> ToolsetCost:
    """A disabled toolset counts as enabled, which queries rules and picks unless prefetched."""
    return cost_of_proposal(toolset, shown_by(toolset, catalogue), catalogue)


def cost_of_proposal(toolset: Toolset, workflows: Workflows, catalogue: ExposedCatalogue) -> ToolsetCost:
    proposed = ExposedToolset(toolset, workflows)
    proposed.workflows = workflows
    portable = PortableView(proposed) if toolset.portable else None
    return _weigh(workflows, catalogue, mode=toolset.mode, budget=toolset.token_budget, portable=portable)


def tokens_by_key(keys: Iterable[int]) -> dict[int, int]:
    """Tokens of each workflow's tool in a full list, without invalid rows."""
    whole = Workflow.objects.select_related("source").filter(pk__in=keys)
    serialise = partial(serialised_tools.of, version=LATEST_PROTOCOL_VERSION)
    made = make_of_each(serialise, whole, confirmed_catalogue())
    return {workflow.pk: tokens_for(tool.characters) for workflow, tool in made}


def _weigh(
    workflows: Workflows,
    catalogue: ExposedCatalogue,
    *,
    mode: str,
    budget: int | None,
    portable: PortableView | None = None,
) -> ToolsetCost:
    listed = built_in_tools(workflows, frozenset(default_scopes()))
    built_in = [_size_of(portable.show(tool) if portable else tool) for tool in listed.values()]
    serialise = partial(serialised_tools.of, version=LATEST_PROTOCOL_VERSION, portable=portable)
    sizes = [tool.characters for _, tool in make_of_each(serialise, workflows.values(), catalogue)]
    return ToolsetCost(
        full=_cost_of_array([*built_in, *sizes]),
        compact=_cost_of_array(built_in),
        is_compact=mode == Toolset.Mode.COMPACT,
        budget=budget,
    )


def _cost_of_array(sizes: list[int]) -> ListCost:
    commas, brackets = max(0, len(sizes) - 1), 2
    return ListCost(len(sizes), sum(sizes) + commas + brackets)


def _size_of(tool: Tool) -> int:
    return len(serialise_tool(tool, LATEST_PROTOCOL_VERSION).decode())


class BudgetWatch:
    """Logs once per process when a toolset goes over its budget."""

    def __init__(self) -> None:
        self._over: set[int] = set()

    def look(self, catalogue: ExposedCatalogue) -> None:
        toolsets: Iterable[Toolset] = (entry.toolset for entry in catalogue.toolsets.values())
        costs = {one: cost_of_toolset(one, catalogue) for one in toolsets if one.token_budget is not None}
        over = {toolset: cost for toolset, cost in costs.items() if cost.is_over_budget}
        for toolset, cost in over.items():
            if toolset.pk not in self._over:
                logger.warning("Toolset {} is over its token budget: {}", toolset.slug, cost.warning)
        self._over = {toolset.pk for toolset in over}
