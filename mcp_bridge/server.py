"""The MCP server: what it answers to each method. Transports are elsewhere."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from django.conf import settings
from mcp import MCPError
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    Tool,
)

from catalogue.connections import close_connectors
from catalogue.database import run_in_database
from catalogue.exposure import current_catalogue
from catalogue.models import Workflow
from catalogue.scopes import Scope
from executions.advancing import finish_steps
from executions.refusals import UnknownTool
from mcp_bridge.access import Access
from mcp_bridge.builtin_tools import BUILT_IN_TOOLS, call_built_in
from mcp_bridge.calls import ToolCall, run_workflow

INSTRUCTIONS = (
    "The company's workflows as tools. Call a workflow's own tool, or find one with list_workflows and run "
    "it with execute_workflow. A run that takes long answers with an execution_id: it goes on by itself, so "
    "ask get_execution_status for its result instead of starting it again."
)
Context = ServerRequestContext[Any, Any]


def build_server(*, local_access: Access | None = None) -> Server[None]:
    """A server for one transport. `local_access` is the caller where requests carry none (stdio)."""
    bridge = _Bridge(local_access)
    return Server(
        "workflow-catalogue",
        version=settings.VERSION,
        title="Workflow Catalogue",
        description="Workflows of the company's engines, curated, as tools.",
        instructions=INSTRUCTIONS,
        lifespan=_lifespan,
        # No tool of ours maps arguments to headers. Without an answer the SDK lists all tools at every call.
        get_tool_input_schema=lambda name: {},
        on_list_tools=bridge.list_tools,
        on_call_tool=bridge.call_tool,
    )


def visible_tools(access: Access) -> list[Tool]:
    """What `tools/list` shows to this caller, in a stable order: the built-in tools, then the workflows."""
    built_in = [tool.tool for tool in BUILT_IN_TOOLS.values() if access.allows(tool.scope)]
    if not access.allows(Scope.RUN):
        return built_in
    return built_in + [workflow_tool(workflow) for workflow in current_catalogue().workflows.values()]


def workflow_tool(workflow: Workflow) -> Tool:
    """An output schema only for synchronous workflows: others may answer with a handle, which breaks it."""
    promises = workflow.effective_execution_type == Workflow.ExecutionType.SYNC
    return Tool(
        name=workflow.tool_name,
        title=workflow.title,
        description=workflow.shown_description,
        input_schema=workflow.input_schema,
        output_schema=workflow.output_schema if promises else None,
    )


@contextlib.asynccontextmanager
async def _lifespan(_: Server[None]) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await finish_steps()
        await close_connectors()


class _Bridge:
    """The handlers, for callers that the transport has let in."""

    def __init__(self, local_access: Access | None) -> None:
        self._local_access = local_access

    async def list_tools(self, context: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
        if params is not None and params.cursor is not None:
            raise MCPError(INVALID_PARAMS, "Unknown cursor: the list comes in one piece.")
        tools = await run_in_database(visible_tools, self._access(context))
        return ListToolsResult(tools=tools, ttl_ms=0, cache_scope="private")

    async def call_tool(self, context: Context, params: CallToolRequestParams) -> CallToolResult:
        call, arguments = self._call(context), params.arguments or {}
        built_in = BUILT_IN_TOOLS.get(params.name)
        if not call.access.allows(needed := built_in.scope if built_in else Scope.RUN):
            raise MCPError(
                INVALID_PARAMS, f"This token may not call {params.name}: it lacks the scope {needed.value}."
            )
        if built_in is not None:
            return await call_built_in(built_in, call, arguments)
        try:
            return await run_workflow(call, params.name, arguments)
        except UnknownTool as error:
            raise MCPError(INVALID_PARAMS, str(error)) from None

    def _call(self, context: Context) -> ToolCall:
        asked_for_progress = context.meta is not None and context.meta.get("progress_token") is not None
        return ToolCall(
            access=self._access(context),
            protocol_version=context.protocol_version,
            report=context.session.report_progress if asked_for_progress else None,
        )

    def _access(self, context: Context) -> Access:
        if context.request is None:
            if self._local_access is None:
                raise MCPError(INVALID_PARAMS, "This request carries no credentials.")
            return self._local_access
        access: Access = context.request.scope["state"]["access"]
        return access
