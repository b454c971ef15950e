import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
import mcp_types as types
from django.conf import settings
from loguru import logger
from mcp import MCPError
from mcp.server.apps import EXTENSION_ID
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import Server
from mcp.shared.message import ServerMessageMetadata
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from opentelemetry.trace import Span, SpanKind
from pydantic import ValidationError

from access.callers import Bounds
from catalogue.connections import close_background_connectors, close_connectors
from catalogue.database import run_in_database
from catalogue.database_problems import describe_outage, is_unusable, log_outage
from catalogue.descriptions import Outage, Outages, current_outages, fresh_outages, outages_within
from catalogue.exposure import ExposedCatalogue, current_catalogue, fresh_catalogue, present_catalogue
from catalogue.models import Toolset
from catalogue.naming import counted
from connectors.formats.json_schema import pointer_of
from connectors.protocol import LOG_LEVELS
from executions.advancing import finish_steps
from executions.local_worker import LocalWorker
from executions.refusals import UnknownTool
from executions.wakeups import stands_in_for_workers
from identity.tokens import Access
from mcp_bridge import request_meta
from mcp_bridge.builtin_tools import call_tool
from mcp_bridge.calls import (
    ClientLog,
    OpenCalls,
    ProgressNotifications,
    ToolCall,
    client_key,
    in_words,
    keep_level,
)
from mcp_bridge.cards import allows_cards
from mcp_bridge.elicitation import Ask, Question
from mcp_bridge.notifications import ListSnapshots, OpenStreams, PushedChanges, Subscriptions
from mcp_bridge.prompts import complete, register_prompts
from mcp_bridge.request_meta import Context, is_modern, takes_tasks
from mcp_bridge.resources import register_resources
from mcp_bridge.results import ToolAnswer
from mcp_bridge.tasks import TaskMethods
from mcp_bridge.tool_lists import BudgetWatch, ToolLists
from telemetry import metrics, traces


class CatalogueServer(Server[None]):
    """`local_access`: the caller of requests without credentials (stdio). `worker` ends with the server."""

    def __init__(self, *, local_access: Access | None = None, worker: LocalWorker | None = None) -> None:
        super().__init__(
            "workflow-catalogue",
            version=settings.VERSION,
            title="Workflow Catalogue",
            description="Workflows of the company's engines, curated, as tools.",
            lifespan=self._lifespan,
            # No tool maps arguments to headers; by default the SDK would list all tools at every call.
            get_tool_input_schema=lambda name: {},
        )
        self._local_access, self._worker = local_access, worker
        self._open_calls = OpenCalls()
        self._level = ""  # Of log messages over stdio, as `logging/setLevel` asked for
        self.middleware = [_observe, self._instruct]
        self.tool_lists = ToolLists(self.server_info_stamp, BudgetWatch().look)
        self.add_request_handler("tools/list", types.PaginatedRequestParams, self._list_tools)
        self.add_request_handler("tools/call", types.CallToolRequestParams, self._call_tool)
        self.add_notification_handler(
            "notifications/cancelled", types.CancelledNotificationParams, self._note_cancelled
        )
        TaskMethods(self.access_of).register(self)
        self.streams, self.snapshots = OpenStreams(), ListSnapshots(self.tool_lists)
        Subscriptions(self.access_of, self.streams, self.snapshots).register(self)
        if local_access is not None:
            PushedChanges(self.access_of, self.streams, self.snapshots).register(self)
        register_resources(self, self.access_of)
        register_prompts(self, self.access_of)
        self.add_request_handler(
            "completion/complete",
            types.CompleteRequestParams,
            lambda context, params: complete(context, params, self.access_of(context)),
        )
        self.add_request_handler("logging/setLevel", types.SetLevelRequestParams, self._set_level)

    def get_capabilities(
        self, *args: Any, protocol_version: str | None = None, **options: Any
    ) -> types.ServerCapabilities:
        capabilities = super().get_capabilities(*args, protocol_version=protocol_version, **options)
        if protocol_version not in MODERN_PROTOCOL_VERSIONS:
            capabilities.extensions = None
            # Sent over the GET stream of HTTP, and without a subscription over stdio.
            for listed in (capabilities.tools, capabilities.prompts, capabilities.resources):
                if listed is not None:
                    listed.list_changed = True
        else:
            # logging/setLevel belongs to the handshake versions.
            capabilities.logging = None
        return capabilities

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Server[None]) -> AsyncIterator[None]:
        try:
            yield
        finally:
            self.streams.close()
            with anyio.CancelScope(shield=True):
                await finish_steps()
                if self._worker is not None:
                    await asyncio.to_thread(self._worker.end)
                await close_connectors()
                # Uvicorn re-raises the signal, so exit handlers do not run.
                await asyncio.to_thread(close_background_connectors)

    async def _list_tools(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> dict[str, Any]:
        """Over HTTP, `McpEndpoint` answers nearly all of these from the same bytes."""
        cursor = None if params is None else params.cursor
        access, has_cards = self.access_of(context), request_meta.shows_cards(context)
        page_json = await self.tool_lists.page_json(
            access, context.protocol_version, cursor, shows_cards=has_cards
        )
        listed: dict[str, Any] = json.loads(page_json[:-1])
        return listed

    async def _call_tool(self, context: Context, params: types.CallToolRequestParams) -> ToolAnswer:
        access, modern, gets_tasks = self.access_of(context), is_modern(context), takes_tasks(context)
        reports = context.meta is not None and context.meta.get("progress_token") is not None
        call = ToolCall(
            access=access,
            protocol_version=context.protocol_version,
            idempotency_key=request_meta.idempotency_key(context),
            fresh=request_meta.wants_fresh(context),
            notify=(context.meta or {}).get(request_meta.NOTIFY),
            client=request_meta.describe_client(context),
            shows_cards=(has_cards := await self._shows_cards(context)),
            shows_apps=has_cards,
            takes_tasks=gets_tasks,
            progress=ProgressNotifications(context.session.report_progress) if reports else None,
            log=self._log_for(context),
            stays_for_progress=reports and modern and not gets_tasks,
            elicits=partial(request_meta.elicitation_modes, context),
            ask=None if modern else _way_to_ask(context),
            continues=params.request_state or "",
            responses=params.input_responses or {},
        )
        with self._open_calls.interruptible(context, access):
            try:
                return await call_tool(call, params.name, params.arguments or {})
            except UnknownTool as error:
                raise MCPError(types.INVALID_PARAMS, in_words(error, call.door)) from None

    async def _note_cancelled(self, context: Context, params: types.CancelledNotificationParams) -> None:
        self._open_calls.interrupt(context, params, self.access_of(context))

    async def _set_level(self, context: Context, params: types.SetLevelRequestParams) -> dict[str, Any]:
        if context.request is None:
            self._level = params.level
        else:
            await run_in_database(keep_level, client_key(context, self.access_of(context)), params.level)
        return {}

    def _log_for(self, context: Context) -> ClientLog | None:
        """Uses the level of the request in 2026-07-28, else the one that the client has set once."""
        if is_modern(context):
            level: Any = (context.meta or {}).get(types.LOG_LEVEL_META_KEY)
            return ClientLog(context, level) if level in LOG_LEVELS else None
        if context.request is None:
            return ClientLog(context, self._level)
        return ClientLog(context, None, client_key(context, self.access_of(context)))

    def access_of(self, context: Context) -> Access:
        if context.request is None:
            if self._local_access is None:
                raise MCPError(types.INVALID_PARAMS, "This request has no credentials.")
            return self._local_access
        access: Access = context.request.scope["state"]["access"]
        return access

    async def _instruct(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Middleware: instructions are written for each caller, where the SDK has one text for all."""
        result = await call_next(ctx)
        if ctx.method not in WITH_INSTRUCTIONS or not isinstance(result, dict):
            return result
        if await self._shows_cards(ctx):
            # After the SDK has left out what the versions with a handshake do not define.
            extensions = {**result["capabilities"].get("extensions", {}), EXTENSION_ID: {}}
            result = {**result, "capabilities": {**result["capabilities"], "extensions": extensions}}
        return {**result, "instructions": await instructions_for(self.access_of(ctx))}

    async def _shows_cards(self, context: Context) -> bool:
        if not request_meta.shows_cards(context):
            return False
        return allows_cards(await present_catalogue(), self.access_of(context).bounds)


NAMING = {"tools/call": "gen_ai.tool.name", "prompts/get": "gen_ai.prompt.name"}
"""The attribute of a span that names what is called."""
METHODS = frozenset({
    "initialize", "ping", "server/discover", "tools/list", "tools/call", "prompts/list", "prompts/get",
    "resources/list", "resources/read", "resources/templates/list", "resources/subscribe",
    "resources/unsubscribe", "completion/complete", "logging/setLevel", "subscriptions/listen", "tasks/get",
    "tasks/update", "tasks/cancel", "notifications/initialized", "notifications/cancelled",
    "notifications/progress", "notifications/roots/list_changed",
})  # fmt: skip


async def _observe(ctx: Context, call_next: CallNext) -> HandlerResult:
    """Counts, times and traces each message; over stdio, it also assigns the request id.

    Replaces the SDK's OpenTelemetryMiddleware, which copies errors, and so what callers sent, into its spans.
    """
    method, outcome, failure = metrics.bounded(ctx.method, METHODS), "ok", ""
    attributes = {"mcp.method.name": method, "mcp.protocol.version": ctx.protocol_version}
    started, parent = time.perf_counter(), traces.context_of(ctx.meta)
    with traces.span(method, kind=SpanKind.SERVER, parent=parent, attributes=attributes) as span:
        if not traces.request_id.get():
            traces.request_id.set(traces.current_trace_id() or traces.new_request_id())
        try:
            result = await _answer(ctx, method, call_next)
            is_error = isinstance(result, dict) and result.get("isError") is True
            if is_error or getattr(result, "is_error", False) is True:
                outcome = failure = "tool_error"
            return result
        except BaseException as error:
            outcome = failure = "cancelled"
            if not isinstance(error, asyncio.CancelledError):
                code = error.error.code if isinstance(error, MCPError) else type(error).__name__
                outcome, failure = "error", str(code)
            raise
        finally:
            metrics.mcp_requests.labels(method, outcome).inc()
            if method != "subscriptions/listen":  # Its client decides how long it lasts
                metrics.mcp_seconds.labels(method).observe(time.perf_counter() - started)
            if span is not None:
                _describe(span, ctx, failure)


async def _answer(ctx: Context, method: str, call_next: CallNext) -> HandlerResult:
    """Raises MCPError. Of any other error, the SDK would send the text, which is about the inside of this
    server."""
    try:
        meta = ctx.params and ctx.params.get("_meta")
        if isinstance(meta, dict) and meta.get("progressToken", ...) is None:
            # Some clients send `progressToken: null` for none, which the SDK refuses. It is removed from the
            # message itself, since the SDK reads that of `initialize` again.
            del meta["progressToken"]
            ctx = replace(ctx, meta=types.RequestParams.model_validate({"_meta": meta}, by_name=False).meta)
        return await call_next(ctx)
    except MCPError:
        raise
    except ValidationError as error:
        raise MCPError(types.INVALID_PARAMS, _name_faults(ctx, error)) from None
    except Exception as error:  # noqa: BLE001 - it is logged
        if is_unusable(error):
            log_outage(method, error)
            told = describe_outage(error, method="POST" if method == "tools/call" else "GET")
        else:
            logger.opt(exception=error).error("{} failed because of an internal error", method)
            identity = traces.request_id.get()
            told = f"An internal error. The server's log has the details under the request id {identity}."
    raise MCPError(types.INTERNAL_ERROR, told)


def _describe(span: Span, ctx: Context, failure: str) -> None:
    """Follows OpenTelemetry's conventions for MCP. A refused message may name what does not exist here."""
    if failure:
        traces.fail(span, failure)
    if failure in ("", "tool_error") and (naming := NAMING.get(ctx.method)) and ctx.params:
        span.update_name(f"{ctx.method} {ctx.params['name']}")
        span.set_attribute(naming, ctx.params["name"])


JSON_TYPES = {
    "string_type": "string",
    "dict_type": "object",
    "model_type": "object",
    "list_type": "array",
    "bool_type": "boolean",
    "int_type": "integer",
    "float_type": "number",
}
NAMED_FAULTS = 10
FAULT_CHARACTERS = 200


def _name_faults(ctx: Context, error: ValidationError) -> str:
    """Names the invalid parameters, which the SDK's own answer does not."""
    if not error.title.endswith(("Request", "RequestParams")):
        return "Invalid request parameters"  # Other validation errors are not about what the caller sent
    lines = [f"Invalid parameters of {ctx.method}:"]
    for one in error.errors(include_url=False, include_input=False)[:NAMED_FAULTS]:
        is_missing = one["type"] == "missing"
        wanted = JSON_TYPES.get(one["type"])
        said = f'not of type "{wanted}"' if wanted else one["msg"].removeprefix("Input ")
        place = _place(one["loc"], ctx.params, ends_beyond=is_missing)
        lines.append(f"- {place}: {'required, but missing' if is_missing else said}"[:FAULT_CHARACTERS])
    return "\n".join(dict.fromkeys(lines))


def _place(location: tuple[int | str, ...], params: Any, *, ends_beyond: bool) -> str:
    """A JSON Pointer, without the types that the validator tried, which the message does not contain."""
    place = ""
    found: Any = {"params": params}
    for position, key in enumerate(location, 1):
        is_there = key in found if isinstance(found, dict) else isinstance(found, list) and type(key) is int
        if is_there:
            found = found[key]
        if is_there or (ends_beyond and position == len(location)):
            place += pointer_of([key])
    return place.removeprefix("/params") or "params"


ASKED: dict[str, tuple[Any, Any]] = {
    "elicitation/create": (types.ElicitRequest, types.ElicitResult),
    "sampling/createMessage": (types.CreateMessageRequest, types.CreateMessageResult),
    "roots/list": (types.ListRootsRequest, types.ListRootsResult),
}


def _way_to_ask(context: Context) -> Ask | None:
    """Returns how a client with a handshake is asked while its call waits."""
    if context.request is not None:
        questions = context.request.scope["state"].get("questions")
        return None if questions is None else questions.ask

    async def ask(_: str, method: str, question: Question) -> dict[str, Any]:
        kind, answered = ASKED[method]
        related = ServerMessageMetadata(related_request_id=context.request_id)
        try:
            request = kind.model_validate({"method": method, "params": question})
            result = await context.session.send_request(request, answered, metadata=related)
        except MCPError as error:
            return {"error": error.error.model_dump(mode="json")}
        dumped: dict[str, Any] = result.model_dump(by_alias=True, mode="json", exclude_none=True)
        return dumped

    return ask


OF_LONG_RUNS = (
    "A run that takes long answers with an execution_id: it goes on by itself, so ask get_execution_status "
    "for its result instead of starting it again; list_executions finds a lost id."
)
FULL = (
    "The company's workflows as tools. Call a workflow's own tool, or find one with list_workflows and run "
    f"it with execute_workflow. {OF_LONG_RUNS}"
)
COMPACT = (
    "The company's workflows. They are not tools of their own here: find one with list_workflows, see its "
    f"arguments with get_workflow_info and run it with execute_workflow. {OF_LONG_RUNS}"
)
ALONE = (
    "No worker is running beside this server: it lists the engines and follows runs itself, as long as this "
    "connection lasts. Runs that continue after that are checked the next time."
)
DESCRIBED_CHARACTERS = 2_000
NAMED_OUTAGES = 5
REASON_CHARACTERS = 200
WITH_INSTRUCTIONS = ("initialize", "server/discover")


async def instructions_for(access: Access) -> str:
    """Queries the database only if the cached catalogue or outages are stale."""
    catalogue, outages = fresh_catalogue(), fresh_outages()
    if catalogue is None or outages is None:
        asked = await run_in_database(lambda: (current_catalogue(), current_outages()))
        return write_instructions(*asked, access.bounds)
    return write_instructions(catalogue, outages, access.bounds)


def write_instructions(catalogue: ExposedCatalogue, outages: Outages, bounds: Bounds) -> str:
    seen = outages_within(catalogue, outages, bounds)
    paragraphs = [*_about_toolset(catalogue, bounds), *map(_about_outage, seen[:NAMED_OUTAGES])]
    if stands_in_for_workers():
        paragraphs.append(ALONE)
    if (more := len(seen) - NAMED_OUTAGES) > 0:
        paragraphs.append(
            f"{counted(more, 'more source')} cannot be reached. list_workflows names all of them."
        )
    return "\n\n".join(paragraphs)


def _about_toolset(catalogue: ExposedCatalogue, bounds: Bounds) -> list[str]:
    if (slug := bounds.toolset) is None:
        return [FULL]
    if (entry := catalogue.toolset_within(bounds)) is None:
        why = "is reserved for others" if slug in catalogue.toolsets else "is switched off"
        off = f"Toolset {slug}, all that may be seen here, {why}: no workflow can be run at present."
        return [COMPACT, f"{off} An administrator can change that."]
    fixed = COMPACT if entry.toolset.mode == Toolset.Mode.COMPACT else FULL
    purpose = entry.toolset.description.strip()[:DESCRIBED_CHARACTERS]
    return [fixed, f"{entry.toolset.title or slug}: {purpose}"] if purpose else [fixed]


def _about_outage(outage: Outage) -> str:
    """The reason is quoted and on one line: it may be the engine's text."""
    since = f" since {outage.since:%Y-%m-%d %H:%M} UTC" if outage.since else ""
    reason = " ".join(outage.reason.split())[:REASON_CHARACTERS]
    shown = (
        "Its workflows are those of its last good list."
        if outage.was_listed
        else "None of its workflows is known."
    )
    return (
        f"Source {outage.source} cannot be reached{since}: {json.dumps(reason, ensure_ascii=False)}. {shown}"
    )
