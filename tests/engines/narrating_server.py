"""An MCP server of one era, made with the SDK, whose tools send log messages while they work.

`python -m tests.engines.narrating_server --port N --era 2025|2026`.
"""

import argparse
from typing import Any

import anyio
import uvicorn
from mcp.server.lowlevel import Server
from mcp_types import (
    LOG_LEVEL_META_KEY,
    ListToolsResult,
    LoggingMessageNotification,
    LoggingMessageNotificationParams,
    SetLevelRequestParams,
    Tool,
)

from tests.engines.mcp_server import Guard

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")


class NarratingServer:
    def __init__(self) -> None:
        self.server: Server[Any] = Server(
            "narrating", version="1", on_list_tools=self.list_tools, on_call_tool=self.call_tool,
            get_tool_input_schema=lambda name: {},
        )  # fmt: skip
        self.server.add_request_handler("logging/setLevel", SetLevelRequestParams, self.set_level)
        self.level = "warning"  # Of all sessions: the product has one
        self.present = 0
        self.arrived = anyio.Event()

    async def list_tools(self, ctx: Any, params: Any) -> ListToolsResult:
        names = ["narrate", "chatter", "recite"]
        return ListToolsResult(
            tools=[Tool(name=one, description="Logs.", input_schema={"type": "object"}) for one in names]
        )

    async def set_level(self, ctx: Any, params: SetLevelRequestParams) -> dict[str, Any]:
        self.level = params.level
        return {}

    async def call_tool(self, ctx: Any, params: Any) -> Any:
        given = params.arguments or {}
        if params.name == "chatter":
            for number in range(given["messages"]):
                await self.log(ctx, "info", f"message {number}")
        elif params.name == "recite":
            await self.log(ctx, "info", {"verses": ["la " * 20_000]})
        else:
            who = given.get("who", "nobody")
            await self.log(ctx, "debug", f"{who} thinks")
            await self._wait_for_others(given.get("together", 1))
            await self.log(ctx, "error", {"who": who, "said": given.get("said", "")})
        return {"resultType": "complete", "content": [{"type": "text", "text": "done"}]}

    async def log(self, ctx: Any, level: Any, data: Any) -> None:
        wanted = (ctx.meta or {}).get(LOG_LEVEL_META_KEY) or self.level
        if LEVELS.index(level) >= LEVELS.index(wanted):
            params = LoggingMessageNotificationParams(level=level, data=data, logger="narrator")
            message = LoggingMessageNotification(params=params)
            await ctx.session.send_notification(message, related_request_id=ctx.request_id)

    async def _wait_for_others(self, number: int) -> None:
        self.present += 1
        if self.present >= number:
            self.present = 0
            self.arrived.set()
            self.arrived = anyio.Event()
        else:
            await self.arrived.wait()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--era", required=True)
    options = parser.parse_args()
    application = NarratingServer().server.streamable_http_app()
    guarded = Guard(application, path="/mcp", token="", era=options.era)
    uvicorn.run(
        guarded, host="127.0.0.1", port=options.port, log_level="warning", timeout_graceful_shutdown=1
    )


if __name__ == "__main__":
    main()
