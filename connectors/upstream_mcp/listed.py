"""Workflows that an MCP server lists with one of its tools, and runs with others or by an HTTP API (B10)."""

from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any, Protocol
from uuid import UUID

from connectors.definitions import RejectedDefinition, WorkflowDefinition, parse_definition
from connectors.errors import InvalidAnswer, Unsupported
from connectors.protocol import (
    Capabilities,
    ReportProgress,
    RunRef,
    RunSnapshot,
    Started,
    WorkflowRef,
    ignore_progress,
)
from connectors.simplified.answers import read_listing
from connectors.simplified.connector import MAX_PAGES, MAX_WORKFLOWS, SimplifiedConnector
from connectors.upstream_mcp.listed_config import McpSourceConfig
from connectors.upstream_mcp.listed_runs import CallTool, RunsByTools
from connectors.upstream_mcp.tool_answers import read_answer
from connectors.upstream_mcp.tools import METADATA_KEY

PREFIX = "workflow:"
"""Of our ids for listed workflows. Tools go by their names, in which a colon is not allowed."""
LONGEST_ID = 255
LISTED = {"offered_as": "workflow"}
LISTING_KEYS = ["workflows", "items", "data", "results", "result"]


class _Runner(Protocol):
    @property
    def capabilities(self) -> Capabilities: ...

    async def start(self, workflow: WorkflowRef, arguments: dict[str, Any], *, key: UUID) -> Started: ...

    async def poll(self, run: RunRef) -> RunSnapshot: ...

    async def cancel(self, run: RunRef) -> None: ...

    async def aclose(self) -> None: ...


class ListedWorkflows:
    """The workflows of one server, beside those that are its tools."""

    def __init__(self, config: McpSourceConfig, call: CallTool) -> None:
        self._config = config
        self._call = call
        api = config.runs_api
        self._runner: _Runner = RunsByTools(config, call) if api is None else SimplifiedConnector(api)

    @property
    def capabilities(self) -> Capabilities:
        """Of these workflows' runs only."""
        return self._runner.capabilities

    @property
    def tools(self) -> frozenset[str]:
        """Those of the server's tools that list and run workflows, and are none themselves."""
        config = self._config
        return frozenset({config.list_tool, config.start_tool, config.status_tool, config.cancel_tool})

    async def discover(self) -> AsyncGenerator[WorkflowDefinition | RejectedDefinition]:
        """Every object of the list tool's answers, in its order."""
        position, cursor, seen = 0, "", {""}
        while True:
            items, cursor = await self._page(cursor)
            for item in items:
                if position == MAX_WORKFLOWS:
                    raise InvalidAnswer(f"The server lists more than {MAX_WORKFLOWS:,} workflows.")
                yield _as_ours(parse_definition(item, position=position), position)
                position += 1
            if not cursor:
                return
            if cursor in seen:
                raise InvalidAnswer("The list of workflows leads back to a page that was read before.")
            if len(seen) == MAX_PAGES:
                raise InvalidAnswer(f"The list of workflows has more than {MAX_PAGES:,} pages.")
            seen.add(cursor)

    async def start(
        self,
        workflow: WorkflowRef,
        arguments: dict[str, Any],
        *,
        key: UUID,
        report: ReportProgress = ignore_progress,
    ) -> Started:
        return await self._runner.start(_as_theirs(workflow), arguments, key=key)

    async def poll(self, run: RunRef) -> RunSnapshot:
        return await self._runner.poll(replace(run, workflow=_as_theirs(run.workflow)))

    async def cancel(self, run: RunRef) -> None:
        await self._runner.cancel(replace(run, workflow=_as_theirs(run.workflow)))

    async def aclose(self) -> None:
        await self._runner.aclose()

    async def find_run(
        self, workflow: WorkflowRef, arguments: dict[str, Any], *, key: UUID
    ) -> Started | None:
        raise Unsupported("A listed workflow's run cannot be looked up by the key of its start.")

    async def _page(self, cursor: str) -> tuple[list[Any], str]:
        tool = self._config.list_tool
        result = await self._call(tool, {"cursor": cursor} if cursor else {}, repeatable=True)
        return read_listing(read_answer(result, tool=tool), LISTING_KEYS)


def is_listed(workflow: WorkflowRef) -> bool:
    """Whether the list tool named it; otherwise it is a tool."""
    return workflow.metadata.get(METADATA_KEY) == LISTED and workflow.id.startswith(PREFIX)


def _as_ours(
    item: WorkflowDefinition | RejectedDefinition, position: int
) -> WorkflowDefinition | RejectedDefinition:
    if isinstance(item, RejectedDefinition):
        return item
    ours = PREFIX + item.id
    if len(ours) > LONGEST_ID:
        reason = f"id: longer than {LONGEST_ID - len(PREFIX)} characters"
        return RejectedDefinition(position=position, id=item.id, name=item.name, reason=reason)
    return item.model_copy(update={"id": ours, "metadata": item.metadata | {METADATA_KEY: LISTED}})


def _as_theirs(workflow: WorkflowRef) -> WorkflowRef:
    return replace(workflow, id=workflow.id.removeprefix(PREFIX))
