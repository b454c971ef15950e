"""The tools that a caller sees: the built-in ones, then its workflows."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from typing import TypeVar

from loguru import logger
from mcp_types import Icon, Tool, ToolAnnotations

from catalogue.exposure import NOTHING, ExposedCatalogue, Workflows
from catalogue.interactions import InteractionKind
from catalogue.models import Toolset, Workflow
from catalogue.scopes import Scope
from mcp_bridge.access import Access
from mcp_bridge.answers.outputs import promises_output
from mcp_bridge.builtin_tools import BUILT_IN_TOOLS
from mcp_bridge.portability import PortableView, portable_view

Made = TypeVar("Made")


def visible_tools(catalogue: ExposedCatalogue, access: Access) -> list[Tool]:
    """What `tools/list` shows, in a stable order."""
    workflows = listed_workflows(catalogue, toolset=access.toolset, scopes=access.scopes)
    portable = portable_view(catalogue, access.toolset)
    make = partial(workflow_tool, portable=portable)
    tools = (tool for _, tool in make_of_each(make, workflows.values(), catalogue))
    built_in = built_in_tools(catalogue.seen_through(access.toolset), access.scopes).values()
    return [*(portable.show(tool) if portable else tool for tool in built_in), *tools]


def built_in_tools(seen: Workflows, scopes: frozenset[str]) -> Mapping[str, Tool]:
    """Those that these scopes allow, by name; those that talk to runs only where a workflow declares how."""
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
    catalogue: ExposedCatalogue, *, toolset: str | None, scopes: frozenset[str]
) -> Workflows:
    """The workflows that are tools of their own; a compact toolset has none."""
    entry = catalogue.toolsets.get(toolset or "")
    if Scope.RUN not in scopes or (entry is not None and entry.toolset.mode == Toolset.Mode.COMPACT):
        return NOTHING
    return catalogue.seen_through(toolset)


def make_of_each(
    make: Callable[[Workflow], Made], workflows: Iterable[Workflow], catalogue: ExposedCatalogue
) -> Iterator[tuple[Workflow, Made]]:
    """What is made of each workflow, without those of which nothing can be made.

    A row that holds what MCP does not know must not cost the others their place in a list.
    """
    for workflow in workflows:
        try:
            made = make(workflow)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with it, it is wrong with this one alone
            if _told_at.get(workflow.pk) != catalogue.revision:
                _told_at[workflow.pk] = catalogue.revision
                logger.error("{} is left out of lists, as its row is broken: {}", workflow, str(error)[:300])
        else:
            yield workflow, made


_told_at: dict[int, int] = {}
"""At which revision it was said of a workflow, so that it is said once for each."""
forget_left_out = _told_at.clear


def workflow_tool(workflow: Workflow, *, portable: PortableView | None = None) -> Tool:
    """The workflow as clients see it."""
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
