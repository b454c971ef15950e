"""An MCP server, made with the SDK, that lists workflows with one tool and runs them with others (B10)."""

import asyncio
import json
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

from mcp import MCPError
from mcp.server.connection import Connection
from mcp.server.lowlevel import Server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    ServerCapabilities,
    TextContent,
    Tool,
)
from mcp_types.version import LATEST_HANDSHAKE_VERSION
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.mcp_bridge.serving import serving

LIST, START, STATUS, CANCEL = (
    "workflows-list-tool",
    "workflow-start-tool",
    "workflow-status-tool",
    "workflow-cancel-tool",
)
RUNNING, COMPLETED, FAILED, CANCELLED = "RUNNING", "COMPLETED", "FAILED", "CANCELLED"
ANY_OBJECT: dict[str, Any] = {"type": "object"}


def workflow(workflow_id: str, name: str, **more: Any) -> dict[str, Any]:
    return {"id": workflow_id, "name": name, "description": f"The workflow {name}."} | more


@dataclass
class Run:
    """Its state follows from the clock, unless somebody cancelled it."""

    workflow_id: str
    arguments: dict[str, Any]
    key: str | None
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    started: float = field(default_factory=time.time)
    cancelled: float | None = None

    @property
    def ends(self) -> float:
        return self.started + float(self.arguments.get("seconds", 0.05))

    @property
    def status(self) -> str:
        if self.cancelled:
            return CANCELLED
        if time.time() < self.ends:
            return RUNNING
        return FAILED if self.workflow_id == "broken" else COMPLETED

    def describe(self) -> dict[str, Any]:
        status = self.status
        ended = None if status == RUNNING else self.cancelled or self.ends
        output = {
            COMPLETED: {"said": self.arguments.get("message", "done")},
            FAILED: {"error": "The oven was cold."},
        }
        return {
            "workflow_id": self.workflow_id,
            "status": status,
            "create_time": _milliseconds(self.started),
            "start_time": _milliseconds(self.started),
            "update_time": _milliseconds(time.time()),
            **({"end_time": _milliseconds(ended)} if ended else {}),
            "input": self.arguments,
            "output": output.get(status),
        }


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


class WorkflowServer:
    """What the server has, and what it was asked; tests change both as they like."""

    def __init__(self, *, key: str = "", stateless: bool = True) -> None:
        """`key`: the bearer token that every request has to carry; empty: none.

        `stateless`: whether it speaks 2026-07-28 beside the handshake versions.
        """
        self.key = key
        self.stateless = stateless
        self.streams = 0
        """How many clients of the handshake versions have a stream open."""
        self.forget_everything()
        self.url = ""
        self._bus = InMemorySubscriptionBus()
        self._connections: WeakSet[Connection] = WeakSet()
        self._loop: asyncio.AbstractEventLoop | None = None

    def forget_everything(self) -> None:
        """As it was when it was made, except for its connections."""
        self.workflows = [
            workflow("quick", "Quick one", inputSchema={"type": "object", "properties": {"message": {}}}),
            workflow("broken", "Broken one"),
            workflow("endless", "Endless one"),
        ]
        self.tools = {name: f"Tool {name}." for name in (LIST, START, STATUS, CANCEL, "echo")}
        """Description by name. Those beyond the first four answer with their arguments."""
        self.runs: dict[str, Run] = {}
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.as_text = False
        """Answer with JSON as text instead of structured content."""
        self.listing: Any = None
        """What the list tool answers instead of the workflows."""
        self.start_answer: Any = None
        """What the start tool answers instead of the run."""
        self.silent: set[str] = set()
        """Tools that take a call and do not answer it."""
        self.on_silence: Callable[[], object] = lambda: None
        self.before_listing: Callable[[], None] = lambda: None
        """Called in the server's thread, before it answers with its tools."""
        self.page_size = 1000

    def runs_started_with(self, key: uuid.UUID) -> int:
        return sum(run.key == str(key) for run in self.runs.values())

    def change_tools(self, **described: str) -> None:
        """Add tools, or describe them anew, and tell whoever listens."""
        self.tools |= described
        self.tell_of_change()

    @property
    def is_listened_to(self) -> bool:
        return bool(self._bus._listeners or self.streams)

    def tell_of_change(self) -> None:
        assert self._loop is not None, "nobody has asked this server anything yet"
        asyncio.run_coroutine_threadsafe(self._tell(), self._loop).result(5)

    @contextmanager
    def running(self) -> Iterator["WorkflowServer"]:
        """Serve on a port of its own in a thread of this process; `url` says where."""
        application = _Server(self).streamable_http_app()
        with serving(_Doorman(application, self), timeout_graceful_shutdown=0) as base_url:
            self.url = f"{base_url}/mcp"
            yield self

    async def _tell(self) -> None:
        await self._bus.publish(ToolsListChanged())
        for connection in list(self._connections):
            await connection.send_tool_list_changed()

    async def list_tools(self, ctx: Any, params: PaginatedRequestParams | None) -> ListToolsResult:
        self._loop = asyncio.get_running_loop()
        self._connections.add(ctx.session._connection)
        await asyncio.to_thread(self.before_listing)
        begin = int((params and params.cursor) or 0)
        names = list(self.tools)[begin : begin + self.page_size]
        end = begin + len(names)
        return ListToolsResult(
            tools=[Tool(name=name, description=self.tools[name], input_schema=ANY_OBJECT) for name in names],
            next_cursor=str(end) if end < len(self.tools) else None,
        )

    async def call_tool(self, ctx: Any, params: CallToolRequestParams) -> CallToolResult:
        arguments = params.arguments or {}
        self.calls.append((params.name, arguments))
        if params.name not in self.tools:
            raise MCPError(code=INVALID_PARAMS, message=f"Unknown tool: {params.name}")
        if params.name in self.silent:
            self.on_silence()
            await asyncio.Event().wait()
        answers = {LIST: self._list, START: self._start, STATUS: self._status, CANCEL: self._cancel}
        try:
            answer = answers.get(params.name, lambda given: given)(arguments)
        except _Refused as refusal:
            return self._result(refusal.args[0], is_error=True)
        return self._result(answer, is_error=False)

    def _result(self, answer: Any, *, is_error: bool) -> CallToolResult:
        return CallToolResult(
            content=[TextContent(text=json.dumps(answer))],
            structured_content=None if self.as_text else answer,
            is_error=is_error,
        )

    def _list(self, arguments: dict[str, Any]) -> Any:
        if self.listing is not None:
            return self.listing
        begin = int(arguments.get("cursor", 0))
        end = begin + self.page_size
        following = {"next_cursor": str(end)} if end < len(self.workflows) else {}
        return {"workflows": self.workflows[begin:end]} | following

    def _start(self, arguments: dict[str, Any]) -> Any:
        if arguments["workflow_id"] not in {known["id"] for known in self.workflows}:
            raise _Refused({"error": {"code": "NOT_FOUND", "message": "No such workflow."}})
        key = arguments.get("idempotency_key")
        run = next((run for run in self.runs.values() if key and run.key == key), None)
        if run is None:
            run = Run(arguments["workflow_id"], arguments["input"], key)
            self.runs[run.id] = run
        return self.start_answer or {"correlation_id": f"c_{run.id}", "workflow_id": run.id}

    def _status(self, arguments: dict[str, Any]) -> Any:
        return self._run(arguments).describe()

    def _cancel(self, arguments: dict[str, Any]) -> Any:
        run = self._run(arguments)
        if run.status != RUNNING:
            raise _Refused({"error": f"The run is {run.status} already."})
        run.cancelled = time.time()
        return {"cancelled": True}

    def _run(self, arguments: dict[str, Any]) -> Run:
        try:
            return self.runs[arguments["run_id"]]
        except KeyError:
            raise _Refused({"error": {"code": "NOT_FOUND", "message": "No such run."}}) from None

    @property
    def listen(self) -> ListenHandler:
        return ListenHandler(self._bus)


class _Refused(Exception):
    """Carries what the tool says."""


class _Server(Server[Any]):
    def __init__(self, served: WorkflowServer) -> None:
        super().__init__(
            "workflow-server",
            version="1",
            on_list_tools=served.list_tools,
            on_call_tool=served.call_tool,
            on_subscriptions_listen=served.listen,
            get_tool_input_schema=lambda name: {},
        )

    def get_capabilities(self, *args: Any, **options: Any) -> ServerCapabilities:
        capabilities = super().get_capabilities(*args, **options)
        assert capabilities.tools is not None
        capabilities.tools.list_changed = True
        return capabilities


class _Doorman:
    """Lets those in who have the key, and speak what the server speaks."""

    def __init__(self, application: ASGIApp, served: WorkflowServer) -> None:
        self._application = application
        self._served = served

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
        elif self._served.key and _header(scope, b"authorization") != f"Bearer {self._served.key}":
            await JSONResponse({"error": "invalid_token"}, 401)(scope, receive, send)
        elif (
            not self._served.stateless and _header(scope, b"mcp-protocol-version") > LATEST_HANDSHAKE_VERSION
        ):
            error = {"code": -32000, "message": "Bad Request: Server not initialized"}
            await JSONResponse({"jsonrpc": "2.0", "id": None, "error": error}, 400)(scope, receive, send)
        else:
            await self._count(scope, receive, send)

    async def _count(self, scope: Scope, receive: Receive, send: Send) -> None:
        streams = int(scope["method"] == "GET")
        self._served.streams += streams
        try:
            await self._application(scope, receive, send)
        finally:
            self._served.streams -= streams


def _version(scope: Scope) -> str:
    return _header(scope, b"mcp-protocol-version")


def _header(scope: Scope, wanted: bytes) -> str:
    return next((value.decode() for name, value in scope["headers"] if name == wanted), "")
