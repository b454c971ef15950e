"""The MCP server: what it answers to each method. Transports are elsewhere."""

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from django.conf import settings
from mcp import MCPError
from mcp.server.lowlevel import Server
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CancelledNotificationParams,
    PaginatedRequestParams,
    ServerCapabilities,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from catalogue.connections import close_connectors
from executions.advancing import finish_steps
from executions.refusals import UnknownTool
from mcp_bridge.access import Access
from mcp_bridge.builtin_tools import (
    BUILT_IN_TOOLS,
    call_built_in,
    describe_missing_scope,
    scope_of_tool,
)
from mcp_bridge.calls import ToolCall, run_workflow
from mcp_bridge.declarations import (
    Context,
    describe_client,
    idempotency_key,
    takes_tasks,
    wants_progress,
)
from mcp_bridge.interruptions import OpenCalls
from mcp_bridge.results import ToolAnswer
from mcp_bridge.subscriptions import Subscriptions
from mcp_bridge.task_methods import TaskMethods
from mcp_bridge.tool_lists import ToolLists

INSTRUCTIONS = (
    "The company's workflows as tools. Call a workflow's own tool, or find one with list_workflows and run "
    "it with execute_workflow. A run that takes long answers with an execution_id: it goes on by itself, so "
    "ask get_execution_status for its result instead of starting it again; list_executions finds a lost id."
)


class CatalogueServer(Server[None]):
    """The server of one transport; `local_access` is the caller where requests carry none (stdio)."""

    def __init__(self, *, local_access: Access | None = None) -> None:
        bridge = _Bridge(self, local_access)
        super().__init__(
            "workflow-catalogue",
            version=settings.VERSION,
            title="Workflow Catalogue",
            description="Workflows of the company's engines, curated, as tools.",
            instructions=INSTRUCTIONS,
            lifespan=bridge.lifespan,
            # No tool of ours maps arguments to headers. Without an answer the SDK lists all at every call.
            get_tool_input_schema=lambda name: {},
            on_subscriptions_listen=bridge.subscriptions.listen,
        )
        self.tool_lists = ToolLists(self.server_info_stamp)
        self.add_request_handler("tools/list", PaginatedRequestParams, bridge.list_tools)
        self.add_request_handler("tools/call", CallToolRequestParams, bridge.call_tool)
        self.add_notification_handler(
            "notifications/cancelled", CancelledNotificationParams, bridge.note_cancelled
        )
        TaskMethods(bridge.access_of).register(self)

    def get_capabilities(
        self, *args: Any, protocol_version: str | None = None, **options: Any
    ) -> ServerCapabilities:
        """Advertise in each era what is there in it."""
        capabilities = super().get_capabilities(*args, protocol_version=protocol_version, **options)
        if protocol_version not in MODERN_PROTOCOL_VERSIONS:
            capabilities.extensions = None
        if capabilities.tools is not None:
            # The SDK infers it from `subscriptions/listen`, which tells of tasks only.
            capabilities.tools.list_changed = False
        return capabilities


class _Bridge:
    """The handlers, for callers that the transport has let in."""

    def __init__(self, server: CatalogueServer, local_access: Access | None) -> None:
        self._server = server
        self._local_access = local_access
        self._open_calls = OpenCalls()
        self.subscriptions = Subscriptions(self.access_of)

    @contextlib.asynccontextmanager
    async def lifespan(self, _: Server[None]) -> AsyncIterator[None]:
        try:
            yield
        finally:
            self.subscriptions.close()
            await finish_steps()
            await close_connectors()

    async def list_tools(self, context: Context, params: PaginatedRequestParams | None) -> dict[str, Any]:
        """For what comes here; over HTTP nearly all is answered before it does, from the same bytes."""
        cursor = None if params is None else params.cursor
        page = await self._server.tool_lists.page(self.access_of(context), context.protocol_version, cursor)
        listed: dict[str, Any] = json.loads(page)
        return listed

    async def call_tool(self, context: Context, params: CallToolRequestParams) -> ToolAnswer:
        call, arguments = self._call(context), params.arguments or {}
        built_in = BUILT_IN_TOOLS.get(params.name)
        if not call.access.allows(needed := scope_of_tool(params.name)):
            raise MCPError(INVALID_PARAMS, describe_missing_scope(params.name, needed))
        with self._open_calls.interruptible(context, call.access):
            if built_in is not None:
                return await call_built_in(built_in, call, arguments)
            try:
                return await run_workflow(call, params.name, arguments)
            except UnknownTool as error:
                raise MCPError(INVALID_PARAMS, str(error)) from None

    async def note_cancelled(self, context: Context, params: CancelledNotificationParams) -> None:
        self._open_calls.interrupt(context, params, self.access_of(context))

    def access_of(self, context: Context) -> Access:
        """Who the transport has let in."""
        if context.request is None:
            if self._local_access is None:
                raise MCPError(INVALID_PARAMS, "This request carries no credentials.")
            return self._local_access
        access: Access = context.request.scope["state"]["access"]
        return access

    def _call(self, context: Context) -> ToolCall:
        return ToolCall(
            access=self.access_of(context),
            protocol_version=context.protocol_version,
            idempotency_key=idempotency_key(context),
            client=describe_client(context),
            takes_tasks=takes_tasks(context),
            report=context.session.report_progress if wants_progress(context) else None,
        )
