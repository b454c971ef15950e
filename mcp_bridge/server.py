"""The MCP server: what it answers to each method. Transports are elsewhere."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import anyio
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

from catalogue.connections import close_background_connectors, close_connectors
from executions.advancing import finish_steps
from executions.local_worker import LocalWorker
from executions.refusals import UnknownTool
from mcp_bridge.access import Access
from mcp_bridge.answers.results import ToolAnswer
from mcp_bridge.builtin_tools import call_tool, describe_missing_scope, missing_scope
from mcp_bridge.calls import ToolCall
from mcp_bridge.completions import CompletionMethod
from mcp_bridge.declarations import (
    Context,
    describe_client,
    idempotency_key,
    is_modern,
    takes_tasks,
    wants_fresh,
    wants_progress,
)
from mcp_bridge.instructions import Instructions
from mcp_bridge.interruptions import OpenCalls
from mcp_bridge.lists.tool_lists import ToolLists
from mcp_bridge.lists.toolset_costs import BudgetWatch
from mcp_bridge.log_levels import LogLevels
from mcp_bridge.notifications.pushed_changes import PushedChanges
from mcp_bridge.notifications.sights import Sights
from mcp_bridge.notifications.streams import OpenStreams
from mcp_bridge.notifications.subscriptions import Subscriptions
from mcp_bridge.prompts import PromptMethods
from mcp_bridge.resources import ResourceMethods
from mcp_bridge.task_methods import TaskMethods


class CatalogueServer(Server[None]):
    """The server of one transport; `local_access` is the caller where requests carry none (stdio).

    `worker` ends with it.
    """

    def __init__(self, *, local_access: Access | None = None, worker: LocalWorker | None = None) -> None:
        bridge = _Bridge(self, local_access, worker)
        super().__init__(
            "workflow-catalogue",
            version=settings.VERSION,
            title="Workflow Catalogue",
            description="Workflows of the company's engines, curated, as tools.",
            lifespan=bridge.lifespan,
            # No tool of ours maps arguments to headers. Without an answer the SDK lists all at every call.
            get_tool_input_schema=lambda name: {},
        )
        self.tool_lists = ToolLists(self.server_info_stamp, BudgetWatch().look)
        self.add_request_handler("tools/list", PaginatedRequestParams, bridge.list_tools)
        self.add_request_handler("tools/call", CallToolRequestParams, bridge.call_tool)
        self.add_notification_handler(
            "notifications/cancelled", CancelledNotificationParams, bridge.note_cancelled
        )
        TaskMethods(bridge.access_of).register(self)
        self.streams, self.sights = OpenStreams(), Sights(self.tool_lists)
        Subscriptions(bridge.access_of, self.streams, self.sights).register(self)
        if local_access is not None:
            PushedChanges(bridge.access_of, self.streams, self.sights).register(self)
        ResourceMethods(bridge.access_of).register(self)
        PromptMethods(bridge.access_of).register(self)
        CompletionMethod(bridge.access_of).register(self)
        Instructions(bridge.access_of).register(self)
        LogLevels().register(self)

    def get_capabilities(
        self, *args: Any, protocol_version: str | None = None, **options: Any
    ) -> ServerCapabilities:
        """Advertise in each era what is there in it."""
        capabilities = super().get_capabilities(*args, protocol_version=protocol_version, **options)
        if protocol_version not in MODERN_PROTOCOL_VERSIONS:
            capabilities.extensions = None
            # Over HTTP by the stream that GET opens, over stdio without asking.
            for listed in (capabilities.tools, capabilities.prompts, capabilities.resources):
                if listed is not None:
                    listed.list_changed = True
        else:
            # Its method belongs to the handshake versions.
            capabilities.logging = None
        return capabilities


class _Bridge:
    """The handlers, for callers that the transport has let in."""

    def __init__(
        self, server: CatalogueServer, local_access: Access | None, worker: LocalWorker | None
    ) -> None:
        self._server = server
        self._worker = worker
        self._local_access = local_access
        self._open_calls = OpenCalls()

    @contextlib.asynccontextmanager
    async def lifespan(self, _: Server[None]) -> AsyncIterator[None]:
        try:
            yield
        finally:
            self._server.streams.close()
            with anyio.CancelScope(shield=True):
                await finish_steps()
                if self._worker is not None:
                    await asyncio.to_thread(self._worker.end)
                await close_connectors()
                # Uvicorn ends itself by the signal that it got, and so does nothing at exit.
                await asyncio.to_thread(close_background_connectors)

    async def list_tools(self, context: Context, params: PaginatedRequestParams | None) -> dict[str, Any]:
        """For what comes here; over HTTP nearly all is answered before it does, from the same bytes."""
        cursor = None if params is None else params.cursor
        closed_page = await self._server.tool_lists.closed_page(
            self.access_of(context), context.protocol_version, cursor
        )
        listed: dict[str, Any] = json.loads(closed_page[:-1])
        return listed

    async def call_tool(self, context: Context, params: CallToolRequestParams) -> ToolAnswer:
        call, arguments = self._call(context), params.arguments or {}
        if (needed := missing_scope(params.name, call.access.scopes)) is not None:
            raise MCPError(INVALID_PARAMS, describe_missing_scope(params.name, needed))
        with self._open_calls.interruptible(context, call.access):
            try:
                return await call_tool(call, params.name, arguments)
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
            fresh=wants_fresh(context),
            client=describe_client(context),
            takes_tasks=takes_tasks(context),
            report=context.session.report_progress if wants_progress(context) else None,
            stays_for_progress=wants_progress(context) and is_modern(context),
        )
