"""An MCP server, made with the SDK, whose tools end, fail, last and answer with all sorts of things.

`python -m tests.engines.mcp_server --journal FILE (--stdio | --port N [--path PATH]) [--era 2025|2026|both]`
serves them. Requests have to carry the token that MANY_TOOLS_KEY holds; over stdio it must not begin with
"wrong". What the server was asked to do, and what became of it, is in the journal: one line of JSON for each
event.
"""

import argparse
import asyncio
import json
import os
import sys
import time
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvicorn
from mcp import MCPError
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    CallToolRequestParams,
    CreateMessageRequest,
    CreateMessageRequestParams,
    CreateMessageResult,
    ListToolsResult,
    PaginatedRequestParams,
    RequestParams,
    Tool,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

TASKS_EXTENSION = "io.modelcontextprotocol/tasks"
STEP_SECONDS = 0.05
SENTENCE = {"type": "object", "properties": {"sentence": {"type": "string"}}, "required": ["sentence"]}
SECONDS = {"type": "object", "properties": {"seconds": {"type": "number"}}}
TOOLS = {
    "say": {"title": "Say it", "description": "Says it.", "inputSchema": SENTENCE},
    "measure": {
        "description": "Counts the letters.",
        "inputSchema": SENTENCE,
        "outputSchema": {"type": "object", "properties": {"letters": {"type": "integer"}}},
        "annotations": {"readOnlyHint": True},
    },
    "burn": {"description": "Fails.", "inputSchema": {"type": "object"}},
    "last": {"description": "Lasts, and says how far it is.", "inputSchema": SECONDS},
    "sleep": {"description": "Lasts, and says nothing.", "inputSchema": SECONDS},
    "show": {"inputSchema": {"type": "object"}},
    "lie": {
        "description": "Breaks its own output schema.",
        "inputSchema": {"type": "object"},
        "outputSchema": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
    },
    "ask": {"description": "Asks for a sample.", "inputSchema": {"type": "object"}},
    "pour": {"description": "Says much.", "inputSchema": {"type": "object"}},
    "die": {"description": "Ends the server.", "inputSchema": {"type": "object"}},
    "environment": {"description": "Tells its variables.", "inputSchema": {"type": "object"}},
    "research": {
        "description": "A task.",
        "inputSchema": SECONDS,
        "execution": {"taskSupport": "required"},
    },
    "research-in-vain": {
        "description": "A task that fails.",
        "inputSchema": {"type": "object"},
        "execution": {"taskSupport": "required"},
    },
}
BLOCKS = [
    {"type": "text", "text": "One."},
    {"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"},
    {"type": "resource", "resource": {"uri": "test://note", "text": "A note.", "mimeType": "text/plain"}},
    {"type": "text", "text": "Two."},
]


@dataclass
class Task:
    """Its state follows from the clock, unless somebody cancelled it."""

    fails: bool
    seconds: float
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    began: float = field(default_factory=time.time)
    cancelled: bool = False

    @property
    def status(self) -> str:
        if self.cancelled:
            return "cancelled"
        if time.time() < self.began + self.seconds:
            return "working"
        return "failed" if self.fails else "completed"

    def describe(self) -> dict[str, Any]:
        ended = min(time.time(), self.began + self.seconds)
        return {
            "taskId": self.id,
            "status": self.status,
            "statusMessage": "The oven was cold." if self.fails else "Reading.",
            "createdAt": _moment(self.began),
            "lastUpdatedAt": _moment(ended),
            "ttlMs": 60_000,
            "pollIntervalMs": 1000,
        }

    @property
    def result(self) -> dict[str, Any]:
        text = "The oven was cold." if self.fails else "All is known."
        return {"content": [{"type": "text", "text": text}], "isError": self.fails}


class ManyTools:
    """The handlers."""

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._tasks: dict[str, Task] = {}

    async def list_tools(self, ctx: Any, params: PaginatedRequestParams | None) -> ListToolsResult:
        """Three on a page."""
        begin = int((params and params.cursor) or 0)
        names = list(TOOLS)[begin : begin + 3]
        following = begin + len(names)
        return ListToolsResult(
            tools=[Tool.model_validate({"name": name} | TOOLS[name]) for name in names],
            next_cursor=str(following) if following < len(TOOLS) else None,
        )

    async def call_tool(self, ctx: Any, params: CallToolRequestParams) -> dict[str, Any]:
        arguments = params.arguments or {}
        if params.name not in TOOLS:
            raise MCPError(code=INVALID_PARAMS, message=f"Unknown tool: {params.name}")
        if params.name.startswith("research"):
            return self._begin_task(ctx, params)
        self._note("called", params.name, arguments)
        try:
            answer = await self._answer(ctx, params.name, arguments)
        except asyncio.CancelledError:
            self._note("cancelled", params.name, arguments)
            raise
        self._note("ended", params.name, arguments)
        return answer if not _is_modern(ctx) else {"resultType": "complete"} | answer

    async def get_task(self, ctx: Any, params: "TaskParams") -> dict[str, Any]:
        task = self._task(params)
        told = task.describe()
        if task.status in ("completed", "failed"):
            told |= {"status": "completed", "result": {"resultType": "complete"} | task.result}
        return told | {"resultType": "complete"}

    async def cancel_task(self, ctx: Any, params: "TaskParams") -> dict[str, Any]:
        task = self._task(params)
        if task.status != "working":
            raise MCPError(code=INVALID_PARAMS, message=f"The task is {task.status} already.")
        task.cancelled = True
        self._note("cancelled", "research", {})
        return {"resultType": "complete"}

    def _begin_task(self, ctx: Any, params: CallToolRequestParams) -> dict[str, Any]:
        """The SDK lets tasks pass in the stateless era only."""
        if not _is_modern(ctx):
            raise MCPError(code=METHOD_NOT_FOUND, message=f"{params.name} needs the stateless era.")
        task = Task(
            fails=params.name == "research-in-vain",
            seconds=float((params.arguments or {}).get("seconds", 0.05)),
        )
        self._tasks[task.id] = task
        self._note("called", params.name, params.arguments or {})
        return {"resultType": "task"} | task.describe()

    def _task(self, params: "TaskParams") -> Task:
        try:
            return self._tasks[params.task_id]
        except KeyError:
            raise MCPError(code=INVALID_PARAMS, message="Failed to retrieve task: Task not found") from None

    async def _answer(self, ctx: Any, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if name in FIXED:
            return FIXED[name]
        match name:
            case "say":
                return _text(arguments["sentence"])
            case "measure":
                structured = {"letters": len(arguments["sentence"])}
                return {"content": [_block(json.dumps(structured))], "structuredContent": structured}
            case "last":
                return await self._last(ctx, float(arguments.get("seconds", 600)))
            case "sleep":
                await asyncio.sleep(float(arguments["seconds"]))
                return _text("It has slept.")
            case "ask":
                return await _ask(ctx)
            case "die":
                os._exit(3)
        return _text(json.dumps(dict(os.environ)))

    async def _last(self, ctx: Any, seconds: float) -> dict[str, Any]:
        began = time.monotonic()
        while (passed := time.monotonic() - began) < seconds:
            await ctx.session.report_progress(passed, seconds, f"{passed:.2f} s have passed")
            await asyncio.sleep(min(STEP_SECONDS, seconds - passed))
        return _text("It has lasted.")

    def _note(self, event: str, tool: str, arguments: dict[str, Any]) -> None:
        with self._journal.open("a", encoding="utf-8") as journal:
            journal.write(json.dumps({"event": event, "tool": tool, "arguments": arguments}) + "\n")


class TaskParams(RequestParams):
    task_id: str


def _block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _text(text: str) -> dict[str, Any]:
    return {"content": [_block(text)]}


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _is_modern(ctx: Any) -> bool:
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS


async def _ask(ctx: Any) -> dict[str, Any]:
    """What the client says to a question of the server's."""
    if _is_modern(ctx):
        request = {
            "method": "sampling/createMessage",
            "params": {"messages": [], "maxTokens": 1},
        }
        return {"resultType": "input_required", "inputRequests": {"one": request}, "requestState": "s"}
    try:
        question = CreateMessageRequest(params=CreateMessageRequestParams(messages=[], max_tokens=1))
        await ctx.session.send_request(question, CreateMessageResult)
    except MCPError as error:
        return {"content": [_block(f"Declined: {error.message}")], "isError": True}
    return _text("The client answered.")


FIXED = {
    "burn": {"content": [_block("The tea went cold.")], "isError": True},
    "show": {"content": BLOCKS},
    "lie": {"content": [_block("{}")], "structuredContent": {"n": "many"}},
    "pour": _text("x" * 2_000_000),
}


def make_server(journal: Path) -> Server[Any]:
    tools = ManyTools(journal)
    server: Server[Any] = Server(
        "many-tools",
        version="1",
        on_list_tools=tools.list_tools,
        on_call_tool=tools.call_tool,
        get_tool_input_schema=lambda name: {},
    )
    server.middleware.append(_refuse_the_wrong)
    server.extensions[TASKS_EXTENSION] = {}
    server.add_request_handler("tasks/get", TaskParams, tools.get_task)
    server.add_request_handler("tasks/cancel", TaskParams, tools.cancel_task)
    return server


async def _refuse_the_wrong(ctx: Any, call_next: Any) -> Any:
    if os.environ.get("MANY_TOOLS_KEY", "").startswith("wrong"):
        raise MCPError(code=-32000, message=f"The key {os.environ['MANY_TOOLS_KEY']} is wrong.")
    return await call_next(ctx)


class Guard:
    """Lets in those who come to the one path, have the token and speak an era that is served."""

    def __init__(self, application: ASGIApp, *, path: str, token: str, era: str) -> None:
        self._application = application
        self._path = path
        self._token = token
        self._era = era

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        await (refusal or self._application)(scope, receive, send)

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        if scope["path"] == "/healthz":
            return JSONResponse({})
        if scope["path"] != self._path:
            return JSONResponse({"error": "not_found"}, 404)
        if self._token and headers.get("authorization") != f"Bearer {self._token}":
            return JSONResponse({"error": "invalid_token"}, 401)
        modern = headers.get(MCP_PROTOCOL_VERSION_HEADER.lower()) in MODERN_PROTOCOL_VERSIONS
        if self._era == ("2025" if modern else "2026"):
            error = {"code": -32000, "message": "Bad Request: Server not initialized"}
            return JSONResponse({"jsonrpc": "2.0", "id": None, "error": error}, 400)
        return None


async def _serve_stdio(server: Server[Any]) -> None:
    async with stdio_server() as (read_stream, write_stream):
        await server.run(read_stream, write_stream, server.create_initialization_options())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--port", type=int)
    parser.add_argument("--path", default="/mcp")
    parser.add_argument("--stdio", action="store_true")
    parser.add_argument("--era", default="both")
    options = parser.parse_args()
    server = make_server(options.journal)
    if options.stdio:
        print(f"The key is {os.environ.get('MANY_TOOLS_KEY', 'none')}.", file=sys.stderr)
        asyncio.run(_serve_stdio(server))
        return
    guarded = Guard(
        server.streamable_http_app(streamable_http_path=options.path),
        path=options.path,
        token=os.environ.get("MANY_TOOLS_KEY", ""),
        era=options.era,
    )
    uvicorn.run(
        guarded, host="127.0.0.1", port=options.port, log_level="warning", timeout_graceful_shutdown=1
    )


if __name__ == "__main__":
    main()
