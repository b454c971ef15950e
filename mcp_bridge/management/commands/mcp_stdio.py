import os
import signal
from argparse import ArgumentParser
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
from mcp.server.stdio import stdio_server

from catalogue.database import prepare_embedded_database, require_database
from catalogue.exposure import current_catalogue
from catalogue.management.base import CatalogueCommand
from executions.local_worker import LocalWorker
from mcp_bridge.management import add_toolset_option, local_access
from mcp_bridge.server import CatalogueServer
from mcp_bridge.tokens import Access


class Command(CatalogueCommand):
    help = (
        "Serve MCP on standard input and output as the local user. Logs go to standard error. "
        "If no worker is running, the command lists the engines and follows the runs itself."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_toolset_option(parser, what="serve this toolset, as /mcp/<slug> does")

    def handle(self, *args: Any, **options: Any) -> None:
        # Errors should appear now, not at the first request.
        require_database()
        prepare_embedded_database()
        current_catalogue()
        access = local_access(options)
        worker = LocalWorker()
        worker.begin()
        anyio.run(partial(serve_stdio, access, worker=worker))


async def serve_stdio(access: Access, *, worker: LocalWorker | None = None) -> None:
    """Serve until the client closes standard input or disconnects; then end `worker`. At a signal, clean up
    and let the signal take effect instead of returning."""
    try:
        async with stdio_server() as (read_stream, write_stream):
            server = CatalogueServer(local_access=access, worker=worker)
            received: list[signal.Signals] = []
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_note_signal, received, tasks.cancel_scope)
                await server.run(read_stream, write_stream, server.create_initialization_options())
                tasks.cancel_scope.cancel()
            if received:
                # The thread that reads standard input cannot be ended and would keep the process alive.
                signal.signal(received[0], signal.SIG_DFL)
                os.kill(os.getpid(), received[0])
    except* BrokenPipeError:
        """The client has disconnected."""
    finally:
        # Buffered output of libraries must not reach the client.
        with suppress(OSError):
            os.dup2(2, 1)


async def _note_signal(received: list[signal.Signals], scope: anyio.CancelScope) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for number in signals:
            received.append(number)
            scope.cancel()
