"""An MCP server with one tool, which tells when a call reached it and when it was done: PORT."""

import asyncio
import sys
import time

import uvicorn
from mcp.server.mcpserver import MCPServer
from starlette.responses import PlainTextResponse

server = MCPServer("timed")


@server.tool(structured_output=False)
async def timed(seconds: float) -> str:
    """Take some time."""
    taken = time.time()
    await asyncio.sleep(seconds)
    return f"{taken} {time.time()}"


if __name__ == "__main__":
    application = server.streamable_http_app(stateless_http=True, json_response=True)
    application.add_route("/ready", lambda request: PlainTextResponse("ready"))
    uvicorn.run(
        application, port=int(sys.argv[1]), log_level="warning", access_log=False, timeout_graceful_shutdown=1
    )
