"""`logging/setLevel` of the handshake versions: the least level of the log messages that a client wants."""

from typing import Any

from mcp.server.lowlevel import Server
from mcp_types import SetLevelRequestParams

from mcp_bridge.declarations import Context


class LogLevels:
    """Takes any level and keeps to it: without sessions there is nowhere to send log messages."""

    def register(self, server: Server[None]) -> None:
        server.add_request_handler("logging/setLevel", SetLevelRequestParams, self.set_level)

    async def set_level(self, context: Context, params: SetLevelRequestParams) -> dict[str, Any]:
        return {}
