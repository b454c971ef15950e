import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial

from loguru import logger
from mcp_types import LATEST_PROTOCOL_VERSION, Tool

from catalogue.describing import tokens_for
from catalogue.exposure import ExposedCatalogue, Workflows, confirmed_catalogue, expose, shown_by
from catalogue.models import Toolset, Workflow
from mcp_bridge.builtin_tools import BUILT_IN_TOOLS
from mcp_bridge.models import default_scopes
from mcp_bridge.portability import PortableView
from mcp_bridge.tool_lists import built_in_tools, make_of_each, serialise_tool, serialised_tools


@dataclass(frozen=True, slots=True)
class ListCost:
    tools: int
    characters: int

    @property
    def tokens(self) -> int:
        return tokens_for(self.characters)

    def __str__(self) -> str:
        tools = "1 tool" if self.tools == 1 else f"{self.tools:,} tools"
        return f"{tools}, {self.characters:,} characters, about {self.tokens:,} tokens"


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
        remedy = "switch it to compact or take workflows out"
        if self.compact.tokens > self.budget:
            remedy = f"raise the budget, since the built-in tools alone take {self.compact.tokens:,}"
        return f"{self.compared}; {remedy}"


def cost_of_catalogue(catalogue: ExposedCatalogue) -> ToolsetCost:
    everything = catalogue.workflows
    return _remembered.cost(
        catalogue, None, lambda: _weigh(everything, catalogue, mode=Toolset.Mode.FULL, budget=None)
    )


def cost_of_toolset(toolset: Toolset, catalogue: ExposedCatalogue) -> ToolsetCost:
    """For a disabled toolset as if it were enabled, which queries rules and picks unless prefetched."""
    return _remembered.cost(
        catalogue, toolset.pk, lambda: cost_of_proposal(toolset, shown_by(toolset, catalogue), catalogue)
    )


def cost_of_proposal(toolset: Toolset, workflows: Workflows, catalogue: ExposedCatalogue) -> ToolsetCost:
    portable = PortableView(expose(toolset, workflows)) if toolset.portable else None
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
    if portable is None:
        built_in = [_size_of_built_in_tool(name) for name in listed]
    else:
        built_in = [_size_of(portable.show(tool)) for tool in listed.values()]
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


@cache
def _size_of_built_in_tool(name: str) -> int:
    return _size_of(BUILT_IN_TOOLS[name].tool)


def _size_of(tool: Tool) -> int:
    return len(serialise_tool(tool, LATEST_PROTOCOL_VERSION).decode())


class _Remembered:
    """Costs at one revision, which every change of a toolset or its workflows increments."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._revision: int | None = None
        self._costs: dict[int | None, ToolsetCost] = {}

    def cost(
        self, catalogue: ExposedCatalogue, key: int | None, weigh: Callable[[], ToolsetCost]
    ) -> ToolsetCost:
        with self._lock:
            if self._revision != catalogue.revision:
                self._revision, self._costs = catalogue.revision, {}
            if key not in self._costs:
                self._costs[key] = weigh()
            return self._costs[key]

    def forget(self) -> None:
        with self._lock:
            self._revision, self._costs = None, {}


_remembered = _Remembered()
forget_costs = _remembered.forget


class BudgetWatch:
    """Logs once per process when a toolset goes over its budget."""

    def __init__(self) -> None:
        self._over: set[int] = set()

    def look(self, catalogue: ExposedCatalogue) -> None:
        entries: Iterable[Toolset] = (entry.toolset for entry in catalogue.toolsets.values())
        budgeted = [toolset for toolset in entries if toolset.token_budget is not None]
        over = {toolset: cost_of_toolset(toolset, catalogue) for toolset in budgeted}
        over = {toolset: cost for toolset, cost in over.items() if cost.is_over_budget}
        for toolset, cost in over.items():
            if toolset.pk not in self._over:
                logger.warning("Toolset {} is over its token budget: {}", toolset.slug, cost.warning)
        self._over = {toolset.pk for toolset in over}
