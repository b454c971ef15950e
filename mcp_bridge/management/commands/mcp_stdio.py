"""MCP over standard input and output, for desktop clients that start us themselves."""

from typing import Any

import anyio
from django.core.management.base import BaseCommand
from mcp.server.stdio import stdio_server

from mcp_bridge.access import Access
from mcp_bridge.server import CatalogueServer


class Command(BaseCommand):
    help = "Serve MCP on standard input and output as the local user. Logs go to standard error."
    requires_system_checks: list[str] = []

    def handle(self, *args: Any, **options: Any) -> None:
        anyio.run(_serve)


async def _serve() -> None:
    server = CatalogueServer(local_access=Access.of_local_user())
    async with stdio_server() as (read_stream, write_stream):
        await server.run(read_stream, write_stream, server.create_initialization_options())
