"""The tools that a caller sees: the built-in ones, then its workflows."""

from collections.abc import Mapping
from functools import cache

from mcp_types import Icon, Tool, ToolAnnotations

from catalogue.exposure import NOTHING, ExposedCatalogue, Workflows
from catalogue.models import Toolset, Workflow
from catalogue.scopes import Scope
from mcp_bridge.access import Access
from mcp_bridge.builtin_tools import BUILT_IN_TOOLS


def visible_tools(catalogue: ExposedCatalogue, access: Access) -> list[Tool]:
    """What `tools/list` shows, in a stable order."""
    workflows = listed_workflows(catalogue, toolset=access.toolset, scopes=access.scopes)
    return [*built_in_tools(access.scopes).values(), *map(workflow_tool, workflows.values())]


@cache
def built_in_tools(scopes: frozenset[str]) -> Mapping[str, Tool]:
    """Those that these scopes allow, by name."""
    return {name: tool.tool for name, tool in BUILT_IN_TOOLS.items() if tool.scope in scopes}


def listed_workflows(
    catalogue: ExposedCatalogue, *, toolset: str | None, scopes: frozenset[str]
) -> Workflows:
    """The workflows that are tools of their own; a compact toolset has none."""
    entry = catalogue.toolsets.get(toolset or "")
    if Scope.RUN not in scopes or (entry is not None and entry.toolset.mode == Toolset.Mode.COMPACT):
        return NOTHING
    return catalogue.seen_through(toolset)


def workflow_tool(workflow: Workflow) -> Tool:
    """An output schema only for synchronous workflows: others may answer with a handle, which breaks it."""
    promises = workflow.effective_execution_type == Workflow.ExecutionType.SYNC
    hints, icons = workflow.effective_hints, workflow.shown_icons
    return Tool(
        name=workflow.tool_name,
        title=workflow.title,
        description=workflow.shown_description,
        input_schema=workflow.input_schema,
        output_schema=workflow.output_schema if promises else None,
        annotations=ToolAnnotations.model_validate(hints) if hints else None,
        icons=[Icon.model_validate(icon) for icon in icons] or None,
    )
