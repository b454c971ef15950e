"""What callers see of that of which they want to be told when it changes."""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from mcp.shared.subscriptions import (
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
)

from catalogue.database import run_in_database
from catalogue.exposure import ExposedCatalogue, current_catalogue, fresh_catalogue
from mcp_bridge.prompts import offered_workflows, workflow_prompt
from mcp_bridge.resources import find_kind, listed_resources
from mcp_bridge.resources.resource import Reading, UnknownResource
from mcp_bridge.tokens import Access
from mcp_bridge.tool_lists import ToolLists, View


@dataclass(frozen=True, slots=True)
class ListSnapshot:
    catalogue: ExposedCatalogue
    seen: Mapping[ServerEvent, Any]
    """By the event that tells of its change: something that differs when what is served differs."""


@dataclass(slots=True)
class _AtRevision:
    catalogue: ExposedCatalogue
    seen: dict[tuple[View, ServerEvent], Any] = field(default_factory=dict)


class ListSnapshots:
    """The snapshots of one server's callers. What several of them see is looked at once per revision."""

    def __init__(self, tool_lists: ToolLists) -> None:
        self._tool_lists = tool_lists
        self._remembered: _AtRevision | None = None
        self._turn = asyncio.Lock()

    async def look(self, access: Access, version: str, events: Collection[ServerEvent]) -> ListSnapshot:
        """At the present revision, of which this process serves such a caller's list of tools from now on."""
        view = View.of(access, version)
        if (known := self._known(view, events)) is not None:
            return known
        # In turn, because all who listen come in the same moment, and most of them for the same.
        async with self._turn:
            if (known := self._known(view, events)) is not None:
                return known
            return await run_in_database(self._look, access, view, events)

    def _known(self, view: View, events: Collection[ServerEvent]) -> ListSnapshot | None:
        remembered = self._remembered
        if remembered is None or remembered.catalogue is not fresh_catalogue():
            return None
        if any((view, event) not in remembered.seen for event in events):
            return None
        return ListSnapshot(remembered.catalogue, {event: remembered.seen[view, event] for event in events})

    def _look(self, access: Access, view: View, events: Collection[ServerEvent]) -> ListSnapshot:
        catalogue = current_catalogue()
        if self._remembered is None or self._remembered.catalogue is not catalogue:
            self._remembered = _AtRevision(catalogue)
        seen = {event: self._see(event, access, view, catalogue) for event in events}
        self._remembered.seen |= {(view, event): what for event, what in seen.items()}
        return ListSnapshot(catalogue, seen)

    def _see(self, event: ServerEvent, access: Access, view: View, catalogue: ExposedCatalogue) -> Any:
        match event:
            case ToolsListChanged():
                return self._tool_lists.current(view).tools
            case PromptsListChanged():
                return _see_prompts(access, catalogue)
            case ResourcesListChanged():
                return _see_resources(access, catalogue)
            case ResourceUpdated():
                return _read(event.uri, access)


def _see_prompts(access: Access, catalogue: ExposedCatalogue) -> Any:
    offered = offered_workflows(catalogue, toolset=access.toolset, scopes=access.scopes)
    return [workflow_prompt(workflow) for workflow in offered.values()]


def _see_resources(access: Access, catalogue: ExposedCatalogue) -> Any:
    listed = listed_resources(catalogue, toolset=access.toolset, scopes=access.scopes)
    return [
        (uri, workflow and (workflow.title, workflow.shown_description, workflow.shown_icons))
        for uri, workflow in listed.items()
    ]


def _read(uri: str, access: Access) -> Any:
    """What is at an address of the catalogue's, which whoever has the same view finds there too."""
    try:
        kind, variables = find_kind(uri)
        return kind.read(Reading(access, uri, variables)).contents
    except UnknownResource:
        return None
