"""`tools/list` as bytes, serialised once per view and revision (docs/decisions/0017-tool-lists.md)."""

import json
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, TypeVar

from cachetools import FIFOCache
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

from access.callers import Bounds, Person, Scope
from catalogue.database import run_in_database
from catalogue.descriptions import InteractionKind, tokens_for
from catalogue.exposure import (
    NOTHING,
    ExposedCatalogue,
    ExposedToolset,
    Workflows,
    current_catalogue,
    fresh_catalogue,
    shown_by,
)
from catalogue.models import Toolset, Workflow
from catalogue.naming import counted
from connectors.formats.lists import split_list
from identity.models import default_scopes
from identity.tokens import Access
from mcp_bridge.builtin_tools import BUILT_IN_TOOLS
from mcp_bridge.cards import APP_ONLY, allows_cards, has_our_card, tool_meta
from mcp_bridge.content import promises_output
from mcp_bridge.portability import PortableView, portable_view
from mcp_bridge.request_meta import page_bounds

Made = TypeVar("Made")
METHOD = "tools/list"
MAX_VIEWS = 64


def visible_tools(catalogue: ExposedCatalogue, access: Access) -> list[Tool]:
    workflows = listed_workflows(catalogue, access.bounds, scopes=access.scopes)
    portable = portable_view(catalogue, access.bounds)
    make = partial(workflow_tool, portable=portable)
    tools = (tool for _, tool in make_of_each(make, workflows.values()))
    seen = catalogue.seen_within(access.bounds)
    built_in = built_in_tools(seen, access.scopes, left_out_tools()).values()
    return [*(portable.show(tool) if portable else tool for tool in built_in), *tools]


def left_out_tools() -> frozenset[str]:
    """Returns the names of those that the operator leaves out or has switched off."""
    off = [name for name, tool in BUILT_IN_TOOLS.items() if not tool.is_on]
    return frozenset([*split_list(settings.CATALOGUE.left_out_tools), *off])


def built_in_tools(
    seen: Workflows, scopes: frozenset[str], left_out: Collection[str], *, shows_cards: bool = False
) -> Mapping[str, Tool]:
    """Returns tools by name; those for queries and signals only if a workflow declares some."""
    useful: set[InteractionKind | None] = {None}
    if any(workflow.queries for workflow in seen.values()):
        useful.add(InteractionKind.QUERY)
    if any(workflow.signals for workflow in seen.values()):
        useful.add(InteractionKind.SIGNAL)
    return {
        name: tool.tool_with_card if shows_cards else tool.tool
        for name, tool in BUILT_IN_TOOLS.items()
        if tool.is_open_to(scopes) and tool.takes_part_in in useful and name not in left_out
        if shows_cards or not tool.app_only
    }


def listed_workflows(catalogue: ExposedCatalogue, bounds: Bounds, *, scopes: frozenset[str]) -> Workflows:
    """Returns those with a tool of their own; none in a compact toolset."""
    entry = catalogue.toolset_within(bounds)
    if Scope.RUN not in scopes or (entry is not None and entry.toolset.mode == Toolset.Mode.COMPACT):
        return NOTHING
    return catalogue.seen_within(bounds)


def make_of_each(
    make: Callable[[Workflow], Made], workflows: Iterable[Workflow]
) -> Iterator[tuple[Workflow, Made]]:
    """Skips workflows for which `make` fails: one invalid row must not break a list."""
    for workflow in workflows:
        try:
            made = make(workflow)
        except Exception as error:  # noqa: BLE001 - any error concerns this row alone
            if "error" not in workflow.derived:
                workflow.derived["error"] = told = str(error)[:300]
                logger.error("{} is left out of lists because its record is invalid: {}", workflow, told)
        else:
            yield workflow, made


def workflow_tool(
    workflow: Workflow,
    *,
    portable: PortableView | None = None,
    to_the_end: bool = True,
    shows_cards: bool = False,
) -> Tool:
    """`to_the_end`: as in `promises_output`."""
    is_left_to_card = shows_cards and has_our_card(workflow)
    is_promised = promises_output(workflow, to_the_end=to_the_end and not is_left_to_card)
    hints = workflow.effective_hints
    tool = Tool(
        name=workflow.tool_name,
        title=workflow.title,
        description=workflow.shown_description,
        input_schema=workflow.served_input_schema,
        output_schema=workflow.served_output_schema if is_promised else None,
        annotations=ToolAnnotations.model_validate(hints) if hints else None,
        icons=icon_models(workflow.shown_icons),
        _meta=tool_meta(workflow) if shows_cards else None,
    )
    return tool if portable is None else portable.show(tool)


def icon_models(icons: Iterable[dict[str, Any]]) -> list[Icon] | None:
    return [Icon.model_validate(icon) for icon in icons] or None


def tool_json(
    workflow: Workflow,
    version: str,
    portable: PortableView | None = None,
    *,
    to_the_end: bool = True,
    shows_cards: bool = False,
) -> bytes:
    """Kept with the workflow, because most stay the same at a new revision: 1,000 tools take 0.2 s."""
    shown_as = None if portable is None else portable.shown_name(workflow.tool_name)
    # Toolsets that require approval, and apps, change without the workflow's object.
    app = workflow.app.served_as if shows_cards and workflow.app else ""
    key = (version, shown_as, to_the_end, shows_cards, app, bool(workflow.approving_toolsets))
    made: bytes | None = workflow.derived.get(key)
    if made is None:
        tool = workflow_tool(workflow, portable=portable, to_the_end=to_the_end, shows_cards=shows_cards)
        made = workflow.derived[key] = serialise_tool(tool, version)
    return made


def serialise_tool(tool: Tool, version: str) -> bytes:
    (on_the_wire,) = list_on_the_wire([tool], version)["tools"]
    return write_json(on_the_wire)


def list_on_the_wire(tools: list[Tool], version: str, **others: Any) -> dict[str, Any]:
    """A result of `tools/list` as the SDK creates it, without its stamp."""
    result = ListToolsResult(tools=tools, **others).model_dump(by_alias=True, mode="json", exclude_none=True)
    return serialize_server_result(METHOD, version, result)


def list_ttl_ms() -> int:
    """Returns for how long clients may keep a list."""
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
    shows_cards: bool = False
    left_out: frozenset[str] = frozenset()  # Names of built-in tools

    @classmethod
    def of(cls, access: Access, version: str, catalogue: ExposedCatalogue, *, shows_cards: bool) -> "View":
        """`shows_cards`: whether the client does; the toolset may not allow it."""
        shared = LATEST_HANDSHAKE_VERSION if version in HANDSHAKE_PROTOCOL_VERSIONS else version
        person = catalogue.reservations.relevant_of(access.bounds.person)
        waits_to_the_end = access.inline_wait_seconds is None
        has_cards = shows_cards and allows_cards(catalogue, access.bounds)
        left_out = left_out_tools()
        return cls(access.toolset, access.scopes, shared, person, waits_to_the_end, has_cards, left_out)

    @property
    def bounds(self) -> Bounds:
        return Bounds(self.toolset, self.person)


class ToolList:
    """The list of one view and revision. Its pages are created on request, so that the first of many is
    available immediately."""

    def __init__(self, view: View, catalogue: ExposedCatalogue, server_info: dict[str, Any]) -> None:
        self.view, self.catalogue, self._server_info = view, catalogue, server_info
        self.pages: dict[int, bytes] = {}  # By their begin
        self._portable = portable_view(catalogue, view.bounds)
        entry = catalogue.toolset_within(view.bounds)
        self._to_the_end = view.waits_to_the_end and (
            entry is None or entry.toolset.inline_wait_seconds is None
        )
        seen = catalogue.seen_within(view.bounds)
        built_in = built_in_tools(seen, view.scopes, view.left_out, shows_cards=view.shows_cards).values()
        self._built_in = [
            # Cards call theirs as they are.
            serialise_tool(
                self._portable.show(tool) if self._portable and tool.meta != APP_ONLY else tool, view.version
            )
            for tool in built_in
        ]
        # Listed after the built-in tools.
        shown = catalogue.for_cards if view.shows_cards else catalogue
        self._workflows = [*listed_workflows(shown, view.bounds, scopes=view.scopes).values()]
        # Sorted; cursors are positions.
        self._positions = [
            *(f"0{number:03}" for number in range(len(self._built_in))),
            *(f"1{workflow.tool_name}" for workflow in self._workflows),
        ]

    def bounds_of(self, cursor: str | None) -> tuple[int, int, str | None]:
        """Raises MCPError for a bad cursor."""
        return page_bounds(self._positions, cursor, settings.CATALOGUE.page_size)

    def page_json(self, cursor: str | None) -> bytes:
        """The JSON of a result and the closing brace of the answer. Raises MCPError for a bad cursor."""
        begin, end, following = self.bounds_of(cursor)
        if (known := self.pages.get(begin)) is not None:
            return known
        wire = list_on_the_wire(
            [], self.view.version, next_cursor=following, ttl_ms=list_ttl_ms(), cache_scope="private"
        )
        del wire["tools"]
        if self.view.version in MODERN_PROTOCOL_VERSIONS:
            wire |= {"resultType": "complete", "_meta": {SERVER_INFO_META_KEY: self._server_info}}
        members = write_json(wire)[1:-1]
        tools = b",".join(self._tools(begin, end))
        made = b"{" + (members + b"," if members else b"") + b'"tools":[' + tools + b"]}}"
        # Cursors of other revisions may begin anywhere; only those of this list recur.
        if begin % settings.CATALOGUE.page_size == 0:
            self.pages[begin] = made
        return made

    def what_shows(self) -> list[bytes]:
        """Differs from that of another list of this view if a client would see a difference."""
        return self._tools(0, len(self._positions))

    def _tools(self, begin: int, end: int) -> list[bytes]:
        ahead = len(self._built_in)
        workflows = self._workflows[max(begin - ahead, 0) : max(end - ahead, 0)]
        make = partial(
            tool_json,
            version=self.view.version,
            portable=self._portable,
            to_the_end=self._to_the_end,
            shows_cards=self.view.shows_cards,
        )
        return self._built_in[begin:end] + [tool for _, tool in make_of_each(make, workflows)]


class ToolLists:
    """Lists of one server, each at the last revision at which it was asked for."""

    def __init__(
        self,
        server_info: dict[str, Any],
        on_new_catalogue: Callable[[ExposedCatalogue], None] = lambda _: None,
    ) -> None:
        self._server_info = server_info
        self._on_new_catalogue = on_new_catalogue
        self._lists: FIFOCache[View, ToolList] = FIFOCache(MAX_VIEWS)
        self._making = threading.Lock()  # A hundred requests at once have a list made once

    async def page_json(
        self, access: Access, version: str, cursor: str | None, *, shows_cards: bool = False
    ) -> bytes:
        """Reads from memory where the database need not be asked. Raises MCPError for a bad cursor."""
        if (catalogue := fresh_catalogue()) is not None:
            view = View.of(access, version, catalogue, shows_cards=shows_cards)
            known = self._lists.get(view)
            is_within = view.toolset is None or catalogue.toolset_within(view.bounds) is not None
            if known is not None and known.catalogue is catalogue and is_within:
                page = known.pages.get(known.bounds_of(cursor)[0])
                if page is not None:
                    return page
        return await run_in_database(self._make_page, access, version, cursor, shows_cards)

    def current(self, view: View) -> ToolList:
        """The list of the present revision; may query the database."""
        catalogue = current_catalogue()
        with self._making:
            known = self._lists.get(view)
            if known is None or known.catalogue is not catalogue:
                known = self._lists[view] = ToolList(view, catalogue, self._server_info)
                self._on_new_catalogue(catalogue)
            return known

    def _make_page(self, access: Access, version: str, cursor: str | None, shows_cards: bool) -> bytes:
        present = self.current(View.of(access, version, current_catalogue(), shows_cards=shows_cards))
        with self._making:
            return present.page_json(cursor)


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


@lru_cache(maxsize=1)  # Each page of the list of toolsets shows it
def cost_of_catalogue(catalogue: ExposedCatalogue) -> ToolsetCost:
    return _weigh(catalogue.outside, mode=Toolset.Mode.FULL, budget=None)


def cost_of_toolset(toolset: Toolset, catalogue: ExposedCatalogue) -> ToolsetCost:
    """A disabled toolset counts as enabled, which queries rules and picks unless prefetched."""
    if (entry := catalogue.toolsets.get(toolset.slug)) is None:
        return cost_of_proposal(toolset, shown_by(toolset, catalogue))
    # Once a revision, because the overview and each page of the list weigh many toolsets.
    if "cost" not in entry.derived:
        entry.derived["cost"] = cost_of_proposal(entry.toolset, entry.workflows)
    cost: ToolsetCost = entry.derived["cost"]
    return cost


def cost_of_proposal(toolset: Toolset, workflows: Workflows) -> ToolsetCost:
    proposed = ExposedToolset(toolset, workflows)
    proposed.workflows = workflows
    portable = PortableView(proposed) if toolset.portable else None
    return _weigh(workflows, mode=toolset.mode, budget=toolset.token_budget, portable=portable)


def tokens_by_key(keys: Iterable[int]) -> dict[int, int]:
    """Tokens of each workflow's tool in a full list, without invalid rows."""
    return tokens_of(Workflow.objects.select_related("source").filter(pk__in=keys))


def tokens_of(workflows: Iterable[Workflow]) -> dict[int, int]:
    """Likewise, by key. Costs little for the catalogue's own objects, with which their tools are kept."""
    made = make_of_each(partial(tool_json, version=LATEST_PROTOCOL_VERSION), workflows)
    return {workflow.pk: tokens_for(len(tool.decode())) for workflow, tool in made}


def _weigh(
    workflows: Workflows, *, mode: str, budget: int | None, portable: PortableView | None = None
) -> ToolsetCost:
    listed = built_in_tools(workflows, frozenset(default_scopes()), left_out_tools())
    built_in = [
        len(serialise_tool(portable.show(tool) if portable else tool, LATEST_PROTOCOL_VERSION).decode())
        for tool in listed.values()
    ]
    make = partial(tool_json, version=LATEST_PROTOCOL_VERSION, portable=portable)
    sizes = [len(tool.decode()) for _, tool in make_of_each(make, workflows.values())]
    return ToolsetCost(
        full=_cost_of_array([*built_in, *sizes]),
        compact=_cost_of_array(built_in),
        is_compact=mode == Toolset.Mode.COMPACT,
        budget=budget,
    )


def _cost_of_array(sizes: list[int]) -> ListCost:
    commas, brackets = max(0, len(sizes) - 1), 2
    return ListCost(len(sizes), sum(sizes) + commas + brackets)


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
