"""The tools that a caller sees: the built-in ones, then its workflows."""

import json
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeVar

from loguru import logger
from mcp_types import Icon, ListToolsResult, Tool, ToolAnnotations
from mcp_types.methods import serialize_server_result

from catalogue.exposure import NOTHING, ExposedCatalogue, Workflows
from catalogue.interactions import InteractionKind
from catalogue.models import Toolset, Workflow
from catalogue.scopes import Scope
from mcp_bridge.access import Access
from mcp_bridge.builtin_tools import BUILT_IN_TOOLS
from mcp_bridge.content import promises_output
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


METHOD = "tools/list"


@dataclass(frozen=True, slots=True)
class SerialisedTool:
    """A workflow's tool, and what it was made of."""

    made_of: tuple[Any, ...]
    tool: bytes
    characters: int


class SerialisedTools:
    """The tools of workflows, for all lists of a process: most outlive most revisions."""

    def __init__(self) -> None:
        self._by_version: defaultdict[tuple[str, str], dict[int, SerialisedTool]] = defaultdict(dict)
        """By the protocol's version, and the slug of a portable toolset."""
        self._changing = threading.Lock()

    def of(self, workflow: Workflow, version: str, portable: PortableView | None = None) -> SerialisedTool:
        key = (version, portable.entry.toolset.slug if portable else "")
        known, made_of = self._by_version.get(key, {}).get(workflow.pk), _what_shows(workflow, portable)
        if known is None or known.made_of != made_of:
            tool = serialise_tool(workflow_tool(workflow, portable=portable), version)
            known = SerialisedTool(made_of, tool, len(tool.decode()))
            with self._changing:
                self._by_version[key][workflow.pk] = known
        return known

    def forget_gone(self, catalogue: ExposedCatalogue) -> None:
        present = {workflow.pk for workflow in catalogue.workflows.values()}
        with self._changing:
            for tools in self._by_version.values():
                for gone in tools.keys() - present:
                    del tools[gone]

    def forget(self) -> None:
        with self._changing:
            self._by_version.clear()


serialised_tools = SerialisedTools()


def _what_shows(workflow: Workflow, portable: PortableView | None) -> tuple[Any, ...]:
    """Changes whenever the tool does; the hash stands for all that upstream says, the schemas above all."""
    return (
        workflow.content_hash,
        # As text: 1 and true are the same to Python.
        json.dumps(workflow.argument_overrides),
        portable.shown_name(workflow.tool_name) if portable else workflow.tool_name,
        workflow.title,
        workflow.shown_description,
        workflow.effective_execution_type,
        workflow.promised_output_schema is None,
        workflow.effective_hints,
        workflow.shown_icons,
    )


def serialise_tool(tool: Tool, version: str) -> bytes:
    """One tool as clients of this protocol version read it."""
    (on_the_wire,) = list_on_the_wire([tool], version)["tools"]
    return write_json(on_the_wire)


def list_on_the_wire(tools: list[Tool], version: str, **others: Any) -> dict[str, Any]:
    """A result of `tools/list` as the SDK shapes it for this version, before it stamps it."""
    result = ListToolsResult(tools=tools, **others).model_dump(by_alias=True, mode="json", exclude_none=True)
    return serialize_server_result(METHOD, version, result)


def write_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
