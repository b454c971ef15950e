"""HTTP tools that are declared here: storing, replacing and removing them, for every door.

Everything is checked before anything is written, and one submission is one transaction.
"""

from collections.abc import Sequence

from django.db import transaction
from django.utils import timezone

from catalogue.changes import Change
from catalogue.history import Actor
from catalogue.http_tools.configs import KIND, tool_config_of, write_tool_config
from catalogue.http_tools.moves import Move, StoredTools, ToolChange
from catalogue.http_tools.refusals import ToolFault, ToolsRefused
from catalogue.http_tools.sources import Home, find_homes
from catalogue.models import DiscoveryRun, Revision, Workflow
from connectors.http_tools.tool import ToolConfig

__all__ = [
    "KIND",
    "Change",
    "StoredTools",
    "ToolChange",
    "ToolFault",
    "ToolsRefused",
    "remove_tool",
    "replace_tool",
    "store_tools",
    "tool_config_of",
    "write_tool_config",
]


def store_tools(
    tools: Sequence[ToolConfig],
    *,
    source: str | None = None,
    expose: bool,
    prune: bool = False,
    replace: bool = True,
    may_add_source: bool = True,
    dry_run: bool = False,
    by: Actor | None = None,
) -> StoredTools:
    """Add the tools, or make those that there are as declared. Raises ToolsRefused, and stores nothing then.

    `source` names where they belong, also a new source; without it their addresses decide. `expose` is for
    tools that are new: whether they are enabled. `prune` removes the other tools of the named source.
    Without `replace` a tool that is there already stays as it is. `may_add_source` is the caller's right to
    have a source added. A dry run writes nothing. `by`: in whose name the history tells of it.
    """
    if prune and (source is None or not replace):
        raise ValueError("Pruning needs the name of a source, and replaces what it has.")
    with transaction.atomic():
        Revision.lock()
        homes, faults = find_homes(tools, source=source)
        if not may_add_source:
            faults += [_forbidden(home) for home in homes if home.source is None]
        moves = [Move.of(home, tools, faults) for home in homes]
        if faults:
            raise ToolsRefused(faults)
        stored = StoredTools(dry_run=dry_run)
        for move in moves:
            move.carry_out(stored, expose=expose, prune=prune, replace=replace, by=by)
        stored.tools.sort(key=lambda tool: len(tools) if tool.position is None else tool.position)
        if dry_run:
            transaction.set_rollback(True)
    return stored


def replace_tool(workflow: Workflow, tool: ToolConfig, *, by: Actor | None = None) -> StoredTools:
    """Make a tool as declared now; it keeps its name, its API and its id. Raises ToolsRefused."""
    with transaction.atomic():
        Revision.lock()
        present = Workflow.objects.present().select_related("source").filter(pk=workflow.pk).first()
        if present is None:
            raise ToolsRefused([ToolFault(message=f"There is no tool {workflow.tool_name} any more.")])
        if tool.name != present.upstream_id:
            told = f"The tool is called {present.upstream_id}; submit another one for another name."
            raise ToolsRefused([ToolFault(position=0, path="/name", message=told)])
        name = present.source.name
        return store_tools([tool], source=name, expose=present.enabled, may_add_source=False, by=by)


def remove_tool(workflow: Workflow) -> None:
    """Take it from the list: it can no longer be called, what it ran stays. Stored again, it has its id back.

    Raises ValueError for a workflow that is no HTTP tool.
    """
    if workflow.source.kind != KIND:
        raise ValueError(f"{workflow.tool_name} is no HTTP tool")
    with transaction.atomic():
        Revision.lock()
        present = Workflow.objects.present().filter(pk=workflow.pk)
        if present.update(missing_since=timezone.now()):
            run = DiscoveryRun(source_id=workflow.source_id, trigger=DiscoveryRun.Trigger.MANUAL, missing=1)
            run.save()
            run.finish(outcome=DiscoveryRun.Outcome.SUCCEEDED)
            Revision.bump()


def _forbidden(home: Home) -> ToolFault:
    told = f"No source fits {home.base_url}, and you may not add one (catalogue.add_source)."
    return ToolFault(position=home.positions[0], path="/api/endpoint", message=told)
