"""The SDK's own server with tools that do nothing: what the protocol costs without a product behind it.

Shows the tools in the JSON file that DO_NOTHING_TOOLS names; every call gets the same short answer.
"""

import json
import os
from pathlib import Path
from typing import Any

from mcp.server.lowlevel import Server
from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult, TextContent, Tool
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

TOOLS = [Tool.model_validate(tool) for tool in json.loads(Path(os.environ["DO_NOTHING_TOOLS"]).read_text())]
ANSWER = {"words": 5, "characters": 26, "sentences": 1}


async def list_tools(context: Any, params: Any) -> ListToolsResult:
    return ListToolsResult(tools=TOOLS)


async def call_tool(context: Any, params: CallToolRequestParams) -> CallToolResult:
    text = TextContent(type="text", text=json.dumps(ANSWER))
    return CallToolResult(content=[text], structured_content=ANSWER)


server: Server[Any] = Server(
    "do-nothing",
    get_tool_input_schema=lambda name: {},
    on_list_tools=list_tools,
    on_call_tool=call_tool,
)


async def ready(_: Request) -> PlainTextResponse:
    return PlainTextResponse("ready")


application = server.streamable_http_app(
    stateless_http=True, json_response=True, custom_starlette_routes=[Route("/ready", ready)]
)
