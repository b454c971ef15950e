import os
import signal
from contextlib import suppress

import anyio
from mcp.server.stdio import stdio_server

from executions.local_worker import LocalWorker
from mcp_bridge.server import CatalogueServer
from mcp_bridge.tokens import Access


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
        """The client is gone."""
    finally:
        # Buffered output of libraries must not reach the client.
        with suppress(OSError):
            os.dup2(2, 1)


async def _note_signal(received: list[signal.Signals], scope: anyio.CancelScope) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for number in signals:
            received.append(number)
            scope.cancel()
