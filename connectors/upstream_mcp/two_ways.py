"""A source of kind `mcp`: the workflows that a server lists, its tools, or both at once (B10)."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, ClassVar
from uuid import UUID

from pydantic import BaseModel

from connectors.definitions import RejectedDefinition, WorkflowDefinition
from connectors.protocol import (
    Capabilities,
    Health,
    ReportProgress,
    RunRef,
    RunSnapshot,
    Started,
    WorkflowRef,
    ignore_progress,
)
from connectors.upstream_mcp import McpConnector
from connectors.upstream_mcp.listed import ListedWorkflows, is_listed
from connectors.upstream_mcp.listed_config import McpSourceConfig

Found = AsyncGenerator[WorkflowDefinition | RejectedDefinition]


class McpSourceConnector:
    """Any MCP server, at a URL or started here: its tools, and the workflows that it lists."""

    kind: ClassVar[str] = McpConnector.kind
    label: ClassVar[str] = McpConnector.label
    Config: ClassVar[type[BaseModel]] = McpSourceConfig

    def __init__(self, config: McpSourceConfig) -> None:
        self._config = config
        self._tools = McpConnector(config)
        self._listed = ListedWorkflows(config, self._tools.call_tool) if config.lists_workflows else None

    def __repr__(self) -> str:
        return repr(self._tools)

    @property
    def capabilities(self) -> Capabilities:
        """With two ways: what one of them can do, and what both promise."""
        tools = self._tools.capabilities
        if self._listed is None:
            return tools
        listed = self._listed.capabilities
        return Capabilities(
            idempotent_start=tools.idempotent_start and listed.idempotent_start,
            can_find_runs=tools.can_find_runs and listed.can_find_runs,
            can_cancel=tools.can_cancel or listed.can_cancel,
            min_poll_seconds=max(tools.min_poll_seconds, listed.min_poll_seconds),
            tells_of_changes=tools.tells_of_changes,
            differ_by_workflow=True,
        )

    def capabilities_for(self, workflow: WorkflowRef) -> Capabilities:
        return self._way_of(workflow).capabilities

    async def check(self) -> Health:
        return await self._tools.check()

    async def discover(self) -> AsyncIterator[WorkflowDefinition | RejectedDefinition]:
        found = self._tools.discover() if self._listed is None else self._discover(self._listed)
        async with aclosing(found):
            async for item in found:
                yield item

    async def start(
        self,
        workflow: WorkflowRef,
        arguments: dict[str, Any],
        *,
        key: UUID,
        report: ReportProgress = ignore_progress,
    ) -> Started:
        return await self._way_of(workflow).start(workflow, arguments, key=key, report=report)

    async def poll(self, run: RunRef) -> RunSnapshot:
        return await self._way_of(run.workflow).poll(run)

    async def cancel(self, run: RunRef) -> None:
        await self._way_of(run.workflow).cancel(run)

    async def find_run(
        self, workflow: WorkflowRef, arguments: dict[str, Any], *, key: UUID
    ) -> Started | None:
        return await self._way_of(workflow).find_run(workflow, arguments, key=key)

    def tell_of_changes(self, listener: Callable[[], None]) -> None:
        self._tools.tell_of_changes(listener)

    async def aclose(self) -> None:
        if self._listed is not None:
            await self._listed.aclose()
        await self._tools.aclose()

    def _way_of(self, workflow: WorkflowRef) -> McpConnector | ListedWorkflows:
        return self._listed if self._listed is not None and is_listed(workflow) else self._tools

    async def _discover(self, listed: ListedWorkflows) -> Found:
        """Listed workflows first; whether there are any, a server with other tools too says by its tools."""
        others = [] if self._config.offer == "workflows" else [item async for item in self._tools.discover()]
        if self._config.offer == "workflows" or self._config.list_tool in {item.id for item in others}:
            async for item in listed.discover():
                yield item
            others = [item for item in others if item.id not in listed.tools]
        for item in others:
            yield item
